# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Configurations drawn at random over all fields: whatever validation lets pass is a model that works."""

import itertools
import random

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors.torch import load_file, save_file

import modeling_ode_transformer as ode
from modeling_ode_transformer.configuration_ode_transformer import CHOICES

from ..conftest import CORRECTORS, MULTISTEPS, TABLEAUS, TOLERANCES, assert_close, randomize
from ..processes import run_python
from ..test_beam_search import assert_search_is_that_of_transformers


NUMBER, SEED = 40, 25
SCHEMES = [*TABLEAUS, *MULTISTEPS, {"a": [[], [0.3]], "b": [0.2, 0.8]}, {"a": [[], [1], [1, 1]], "b": [1, 0, 0]}]
SCHEMES += [*CORRECTORS, {"predictor": "leapfrog", "corrector_iterations": 2}]
SCHEMES += [{"predictor": {"a": [[], [1], [0, 1]], "b": [0, 0.5, 0.5]}, "corrector_iterations": 1}]
STACKS = ("encoder", "decoder")
DROPOUTS = ("dropout", "attention_dropout", "activation_dropout", "word_dropout")
# A sample of its own for the newest history: the others stay the models that they were.
NEWEST = "hyper_connections"
# What each field is drawn from; `CHOICES` has the others.
SPACE = {
    **{name: list(values) for name, values in CHOICES.items()},
    "layer_history": [name for name in CHOICES["layer_history"] if name != NEWEST],
    "activation_function": ["relu", "gelu", "silu", "tanh"],
    "vocab_size": [41, 61],
    "decoder_vocab_size": [None, None, 41, 53],
    "d_model": [16, 32],
    **{f"{stack}_layers": [1, 2, 3] for stack in STACKS},
    **{f"{stack}_attention_heads": [1, 2, 4] for stack in STACKS},
    **{f"{stack}_ffn_dim": [8, 24] for stack in STACKS},
    **{f"{stack}_solver": SCHEMES for stack in STACKS},
    **{name: [0, 0.0, 0.3] for name in DROPOUTS},
    "layer_norm_eps": [1e-6, 1e-5, 1e-3],
    "max_position_embeddings": [40, 64],
    "padding_position": [0, 1, 3],
    "max_relative_position": [0, 1, 8],
    "steps_per_layer": [1, 1, 2],
    "stack_repeats": [1, 1, 2],
    "step_size": [1, 1.0, 0.5],
    "is_encoder_decoder": [True, True, True, False],
    "bos_token_id": [0, None],
    "pad_token_id": [1, 3],
    "eos_token_id": [2, [2, 5]],
    "decoder_start_token_id": [0, 2],
    **{name: [True, False] for name in ("share_encoder_decoder_embeddings", "tie_word_embeddings", "use_cache")},
    **{name: [True, False] for name in ("scale_embedding", "embedding_layer_norm", "lm_head_bias")},
    "decoder_start_from_labels": [False],  # of mBART's labels, which end with a language
}


# Two encoders, the second of each kind and everywhere in the decoder or at its top.
RECURRENCES = [
    {"recurrence_encoder": kind, "recurrence_layers": layers, "recurrence_steps": steps}
    | {"recurrence_integration": integration, "recurrence_decoder_layers": place}
    for kind, steps, integration, place, layers in (
        ("birnn", 8, "stack", "top", 1),
        ("biarn", 4, "gated_sum", "top", 2),
        ("biarn", 4, "stack", "all", 1),
        ("biarn", None, "gated_sum", "all", 2),
    )
]


def make_config(fields: dict) -> ode.OdeTransformerDecoderConfig:
    """A language model's lacks what is an encoder's."""
    if "recurrence_encoder" in fields:
        return ode.OdeTransformerRecurrenceConfig(**fields)
    if fields["is_encoder_decoder"]:
        return ode.OdeTransformerConfig(**fields)
    known = ode.OdeTransformerDecoderConfig.__dataclass_fields__
    return ode.OdeTransformerDecoderConfig(**{name: value for name, value in fields.items() if name in known})


def draw_fields(number: int, seed: int, **given) -> list[dict]:
    """Fields of so many configurations that are valid, of about 15 times as many drawn ones; `given` are not drawn."""
    rng, found = random.Random(seed), []
    while len(found) < number:
        fields = {name: rng.choice(values) for name, values in SPACE.items()} | given
        try:
            make_config(fields)
        except (ValueError, StrictDataclassError):
            continue
        found.append(fields)
    return found


FIELDS = draw_fields(NUMBER, SEED) + draw_fields(8, SEED, layer_history=NEWEST)
for name, scheme in itertools.product((f"{stack}_solver" for stack in STACKS), SCHEMES):
    if all(fields[name] != scheme for fields in FIELDS):
        FIELDS += draw_fields(1, SEED, **{name: scheme}, is_encoder_decoder=True)
for recurrence in RECURRENCES:
    FIELDS += draw_fields(1, SEED, **recurrence, is_encoder_decoder=True)
DRAWN = pytest.mark.parametrize("fields", FIELDS, ids=range(len(FIELDS)))
GENERATOR = torch.Generator().manual_seed(2)
SOURCES, TARGETS = (torch.randint(6, 41, (3, length), generator=GENERATOR) for length in (9, 6))
MASK = (torch.arange(9) < torch.tensor([[9], [7], [4]])).long()


def make(fields: dict, **others) -> torch.nn.Module:
    torch.manual_seed(0)
    classes = ode.OdeTransformerForCausalLM, ode.OdeTransformerForConditionalGeneration
    model_class = classes[fields["is_encoder_decoder"]]
    if "recurrence_encoder" in fields:
        model_class = ode.OdeTransformerRecurrenceForConditionalGeneration
    return randomize(model_class(make_config(fields | others)))


def inputs_of(model) -> dict[str, torch.Tensor]:
    """A batch, padded on the right; a language model has no sources."""
    if not model.config.is_encoder_decoder:
        return {"input_ids": TARGETS}
    input_ids = SOURCES.masked_fill(MASK == 0, model.config.pad_token_id)
    return {"input_ids": input_ids, "attention_mask": MASK, "decoder_input_ids": TARGETS}


def gradients(model) -> dict[str, torch.Tensor]:
    model.train()(**inputs_of(model), labels=TARGETS, use_cache=False).loss.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def test_the_space_has_all_fields_and_the_sample_all_values():
    fields = ode.OdeTransformerConfig.__annotations__ | ode.OdeTransformerDecoderConfig.__annotations__
    assert SPACE.keys() == fields.keys() - {"stacks"}
    for name, values in SPACE.items():
        assert {str(fields[name]) for fields in FIELDS} >= set(map(str, values)), name


@DRAWN
def test_gradients_are_finite_and_those_of_recomputed_activations(fields):
    model = make(fields)
    for name, gradient in gradients(model).items():
        assert gradient is not None and gradient.isfinite().all(), name
    kept, recomputed = (make(fields, **dict.fromkeys(DROPOUTS, 0.0)).double() for _ in range(2))
    recomputed.activation_checkpointing_enable()
    expected = gradients(kept)
    for name, gradient in gradients(recomputed).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-8, atol=1e-10, msg=name)


@DRAWN
def test_padding_the_cache_and_the_implementation_change_nothing(fields):
    """And outputs come once for each run of a layer, whatever its evaluations."""
    model = make(fields).double()
    inputs = inputs_of(model)
    expected = model(**inputs).logits
    scale = max(1.0, expected.abs().max().item())
    tokens = "decoder_input_ids" if model.config.is_encoder_decoder else "input_ids"
    others = {name: value for name, value in inputs.items() if name != tokens}
    outputs, logits = {}, []
    for start, end in ((0, 3), (3, 4), (4, 6)):
        outputs = model(**others, **{tokens: TARGETS[:, start:end]}, use_cache=True, **outputs)
        logits.append(outputs.logits)
        outputs = {"past_key_values": outputs.past_key_values}
    assert_close(torch.cat(logits, 1), expected, scale)
    for i, length in enumerate((9, 7, 4) if model.config.is_encoder_decoder else ()):
        ids, targets = SOURCES[i : i + 1, :length], TARGETS[i : i + 1]
        assert_close(model(ids, decoder_input_ids=targets).logits[0], expected[i], scale)
        if fields["position_counting"] != "absolute":
            left = torch.cat([torch.full((1, 3), model.config.pad_token_id), ids], 1)
            mask = torch.arange(3 + length)[None] >= 3
            assert_close(model(left, mask.long(), targets).logits[0], expected[i], scale)
    model.set_attn_implementation("eager")
    outputs = model(**inputs, output_attentions=True, output_hidden_states=True)
    tolerance = scale * TOLERANCES[torch.float32]  # of its softmax
    torch.testing.assert_close(outputs.logits, expected, rtol=0, atol=tolerance)
    heads = fields["decoder_attention_heads"]
    shapes = {"encoder": (3, fields["encoder_attention_heads"], 9, 9), "decoder": (3, heads, 6, 6)}
    shapes["cross"] = (3, heads, 6, 9)
    if not model.config.is_encoder_decoder:
        shapes, outputs = {"decoder": shapes["decoder"]}, {f"decoder_{name}": value for name, value in outputs.items()}
    for stack, shape in shapes.items():
        calls = fields[f"{stack.replace('cross', 'decoder')}_layers"] * fields["stack_repeats"]
        assert [tuple(each.shape) for each in outputs[f"{stack}_attentions"]] == [shape] * calls
        assert stack == "cross" or len(outputs[f"{stack}_hidden_states"]) == calls + 1


@DRAWN
def test_beams_are_those_of_transformers(fields):
    """A language model is searched by transformers itself: with its cache as without."""
    model = make(fields)
    with torch.no_grad():
        model.get_output_embeddings().weight.normal_(std=0.3)
    options = {"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 6, "do_sample": False, "use_cache": True}
    inputs = {name: value for name, value in inputs_of(model).items() if name != "decoder_input_ids"}
    if model.config.is_encoder_decoder:
        assert_search_is_that_of_transformers(model, inputs, **options)
    else:
        outputs = [model.double().generate(**inputs, **options | {"use_cache": cached}) for cached in (True, False)]
        assert torch.equal(*outputs)


@DRAWN
def test_bfloat16_is_close(fields):
    """As many of its roundings away from float64 as float32 is, or fewer than 10: some models, as those that normalize
    stages of small sublayers, magnify roundings. A batch's roundings are chance: targets have six orders."""
    model = make(fields).double()
    inputs = {name: tensor.repeat(6, 1) for name, tensor in inputs_of(model).items()}
    targets = "decoder_input_ids" if model.config.is_encoder_decoder else "input_ids"
    inputs[targets] = torch.cat([TARGETS.roll(order, 1) for order in range(6)])
    expected = model(**inputs).logits

    def error(dtype):
        actual = make(fields).to(dtype)(**inputs).logits
        assert actual.dtype == dtype and actual.isfinite().all()
        return (actual.double() - expected).square().mean().sqrt() / max(1.0, expected.square().mean().sqrt())

    magnified = error(torch.float32) / torch.finfo(torch.float32).eps / 10
    assert error(torch.bfloat16) < TOLERANCES[torch.bfloat16] * max(1.0, magnified)


# The first folder's code opens all of a kind.
WITHOUT_PACKAGE = """
import json, sys
sys.modules["modeling_ode_transformer"] = None
import torch
from pathlib import Path
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM
work, classes, logits = Path(sys.argv[1]), {}, {}
for folder in sorted(work.glob("[0-9]*"), key=lambda path: int(path.name)):
    kind = json.loads((folder / "config.json").read_text())["model_type"]
    opener = classes.get(kind, AutoModelForCausalLM if "decoder" in kind else AutoModelForSeq2SeqLM)
    options = {} if kind in classes else {"trust_remote_code": True}
    model = opener.from_pretrained(folder, **options).eval()
    classes[kind] = type(model)
    assert type(model).__module__.startswith("transformers_modules."), type(model)
    with torch.no_grad():
        logits[folder.name] = model(**load_file(folder / "inputs.safetensors")).logits.contiguous()
save_file(logits, work / "logits.safetensors")
"""


def test_saved_models_are_the_same_without_the_package(tmp_path):
    expected = {}
    for i, fields in enumerate(FIELDS):
        model = make(fields)
        model.save_pretrained(tmp_path / str(i))
        save_file(inputs_of(model), tmp_path / str(i) / "inputs.safetensors")
        with torch.no_grad():
            expected[str(i)] = model(**inputs_of(model)).logits
    run_python(WITHOUT_PACKAGE, tmp_path, str(tmp_path))
    found = load_file(tmp_path / "logits.safetensors")
    assert found.keys() == expected.keys()
    for name, logits in found.items():
        assert_close(logits, expected[name], max(1.0, expected[name].abs().max().item()))
