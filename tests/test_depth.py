# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Llama with integrated layers: schemes against a plain loop in float64, what is refused, what travels, and the
successors' language models against their released code. Other architectures: test_depth_architectures.py."""

import copy
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
from safetensors.torch import load_file

import modeling_ode_transformer as ode
from modeling_ode_transformer import cli
from modeling_ode_transformer.depth.successors import convert_successor, own_name
from modeling_ode_transformer.integration_ode_transformer import SCHEMES, ButcherTableau

from .conftest import randomize
from .processes import run_python


SIZES = {
    **{"vocab_size": 61, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 4},
    **{"num_attention_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0, "eos_token_id": 2},
}
GOLDEN = sorted(path.parent for path in Path(__file__).parent.glob("golden/language_models/*/config.json"))
PAIR = {
    **{"vocab_size": 61, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "pad_token_id": 0},
    **{"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24},
}
IDS = torch.randint(3, 61, (2, 9), generator=torch.Generator().manual_seed(0))


def llama(**fields):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**{**SIZES, **fields})
    return randomize(transformers.AutoModelForCausalLM.from_config(config))


def wrapped(*args, **options):
    return randomize(ode.depth.wrap(llama(), *args, **options))


def layer_by_layer(model, ids, step):
    """The logits of plain Llama whose layers are the functions `step(f, y, layer)` of its layers f."""
    core = model.model
    y, positions = core.embed_tokens(ids), torch.arange(ids.shape[1]).unsqueeze(0)
    rotations = core.rotary_emb(y, positions)
    mask = torch.full((ids.shape[1],) * 2, -torch.inf, dtype=y.dtype).triu(1)[None, None]
    for idx, layer in enumerate(core.layers):
        y = step(lambda z, f=layer: f(z, attention_mask=mask, position_embeddings=rotations), y, idx)
    return model.lm_head(core.norm(y))


def runge_kutta(tableau, weights, f, y):
    stages = []
    for row in tableau.a:
        z = y + sum(a * stage for a, stage in zip(row, stages))
        stages.append(f(z) - z)
    return y + sum(b * stage for b, stage in zip(weights, stages))


@pytest.mark.parametrize("solver", ["euler", "rk2", "midpoint", "ralston", "rk3", "rk4", "rk4_38"])
def test_layers_are_steps_of_the_scheme(solver):
    plain, tableau = llama().double(), SCHEMES[solver]
    model = ode.depth.wrap(copy.deepcopy(plain), solver, coefficients="fixed")
    expected = layer_by_layer(plain, IDS, lambda f, y, layer: runge_kutta(tableau, tableau.b, f, y))
    torch.testing.assert_close(model(IDS).logits, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("sharing", ["layer", "stack"])
@pytest.mark.parametrize("coefficients", ["learned", "ema", "gate", "sigmoid"])
def test_coefficients_weight_the_stages(coefficients, sharing):
    plain = llama().double()
    model = ode.depth.wrap(copy.deepcopy(plain), coefficients=coefficients, coefficient_sharing=sharing).double()
    randomize(model)
    plain.load_state_dict(model.state_dict(), strict=False)
    owners = [layer if sharing == "layer" else model.model.layers_depth for layer in model.model.layers]

    def step(f, y, layer):
        k_1 = f(y) - y
        k_2 = f(y + k_1) - (y + k_1)
        own = owners[layer].coefficients
        if coefficients == "learned":
            b = own.weight
        elif coefficients == "ema":
            b = own.weight * (1 - own.weight), own.weight
        else:
            gates = torch.sigmoid(torch.cat([k_1, k_2], dim=-1) @ own.gate.weight.T + own.gate.bias)
            b = (gates, 1 - gates) if coefficients == "gate" else gates.split(1, dim=-1)
        return y + b[0] * k_1 + b[1] * k_2

    torch.testing.assert_close(model(IDS).logits, layer_by_layer(plain, IDS, step), rtol=0, atol=1e-12)
    model(IDS).logits.square().mean().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("layers", "integrated"), [(slice(1, -1), {1, 2}), ("1:", {1, 2, 3}), ([0, -1], {0, 3}), ("::2", {0, 2})]
)
def test_the_named_layers_are_integrated(layers, integrated):
    plain, tableau = llama().double(), SCHEMES["rk2"]
    model = ode.depth.wrap(copy.deepcopy(plain), coefficients="fixed", layers=layers)
    expected = layer_by_layer(
        plain, IDS, lambda f, y, layer: runge_kutta(tableau, tableau.b, f, y) if layer in integrated else f(y)
    )
    torch.testing.assert_close(model(IDS).logits, expected, rtol=0, atol=1e-12)
    assert ode.depth.num_function_evaluations(model) == 4 + len(integrated)
    tokens = model.generate(IDS, max_new_tokens=6, do_sample=False)
    assert torch.equal(tokens, model.generate(IDS, max_new_tokens=6, do_sample=False, use_cache=False))


def test_plain_repetition():
    """The control of equal cost: `steps_per_layer` runs a layer as often; learned, it starts at the original."""
    plain = llama().double()
    model = ode.depth.wrap(copy.deepcopy(plain), "euler", steps_per_layer=2)
    expected = layer_by_layer(plain, IDS, lambda f, y, _: f(f(y)))
    torch.testing.assert_close(model(IDS).logits, expected, rtol=0, atol=1e-12)
    assert ode.depth.num_function_evaluations(model) == 8
    tokens = model.generate(IDS, max_new_tokens=6, do_sample=False)
    assert torch.equal(tokens, model.generate(IDS, max_new_tokens=6, do_sample=False, use_cache=False))
    repeated = ode.depth.wrap(copy.deepcopy(plain), ButcherTableau(a=((), (1,)), b=(1, 1)), start="tableau")
    torch.testing.assert_close(repeated(IDS).logits, model(IDS).logits, rtol=0, atol=1e-12)


@pytest.mark.parametrize("options", [{}, {"solver": "rk4", "layers": "1:-1"}, {"coefficients": "gate"}])
def test_a_new_model_starts_at_the_tableau(options):
    config = ode.depth.config(transformers.LlamaConfig(**SIZES), **options)
    assert type(config).__name__ == "OdeLlamaConfig" and config.model_type == "ode_llama"
    model = transformers.AutoModelForCausalLM.from_config(config)
    weights = {name: value for name, value in model.named_parameters() if ".coefficients." in name}
    assert {name.split(".")[2] for name in weights} == ({"1", "2"} if "layers" in options else set("0123"))
    for value in weights.values():
        if "coefficients" not in options:
            assert torch.equal(value, torch.tensor(SCHEMES[options.get("solver", "rk2")].b))
    assert type(transformers.AutoModel.from_config(config)).__name__ == "OdeLlamaModel"
    model(IDS, labels=IDS).loss.backward()


def test_integrated_layers_hold_the_memory_of_their_evaluations():
    """Caches and attentions have an entry for each evaluation, hidden states for each layer."""
    model = wrapped("rk4", layers="1:3")
    model.set_attn_implementation("eager")
    outputs = model(IDS, use_cache=True, output_hidden_states=True, output_attentions=True)
    cache = outputs.get("cache") or outputs["past_key_values"]
    assert len(cache.layers) == 4 + 2 * 3 and all(layer.keys.shape[-2] == 9 for layer in cache.layers)
    assert len(outputs.hidden_states) == 5 and len(outputs.attentions) == 4 + 2 * 3


def bert():
    sizes = {key: value for key, value in SIZES.items() if key != "eos_token_id"}
    return transformers.AutoModel.from_config(transformers.BertConfig(**sizes)), {}


OWN = ode.OdeTransformerDecoderConfig(vocab_size=61, decoder_layers=1)
REFUSED = {
    "post-norm": (bert, "post-norm"),
    "BART": (
        lambda: (transformers.AutoModelForSeq2SeqLM.from_config(transformers.BartConfig(**PAIR)), {}),
        "post-norm",
    ),
    "twice": (lambda: (wrapped(), {}), "OdeLlamaForCausalLM .*before its layers are integrated"),
    "a model of this package": (
        lambda: (ode.OdeTransformerForCausalLM(OWN), {}),
        "no PreTrainedModel of transformers",
    ),
    "a configuration": (lambda: (transformers.LlamaConfig(), {}), "LlamaConfig .*no PreTrainedModel"),
    "no such stack": (lambda: (llama(), {"stack": "encoder.layers"}), "named .'encoder.layers'.*model.layers"),
    "no such layers": (lambda: (llama(), {"layers": [7]}), r"layers=\[7\] of a stack of 4 layers"),
    "no such scheme": (lambda: (llama(), {"solver": "rk5"}), "rk5"),
    "no steps": (lambda: (llama(), {"steps_per_layer": 0}), "steps_per_layer=0 must be"),
    "multistep": (lambda: (llama(), {"solver": "leapfrog"}), "needs the steps before"),
    "a gate of four stages": (lambda: (llama(), {"solver": "rk4", "coefficients": "gate"}), "2 stages, not 4"),
    "half a corrector": (lambda: (llama(), {"solver": "iiet", "layers": "1:"}), "all layers"),
    "an unknown option": (lambda: (llama(), {"solvers": "rk2"}), "unexpected keyword argument 'solvers'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_integrated_is_refused(case):
    make, message = REFUSED[case]
    model, options = make()
    modules = getattr(model, "modules", list)
    before = getattr(model, "config", None), [type(module) for module in modules()]
    with pytest.raises((ValueError, TypeError), match=message):
        ode.depth.wrap(model, **options)
    assert before[0] is getattr(model, "config", None) and before[1] == [type(module) for module in modules()]


def test_a_configuration_is_not_made_of_a_name_or_a_model():
    for other in ("llama", llama()):
        with pytest.raises(TypeError, match="no PreTrainedConfig of transformers"):
            ode.depth.config(other)


def test_continuous_batching_is_refused():
    with pytest.raises(NotImplementedError, match="call `generate`"):
        wrapped().generate_batch(inputs=[[5, 6]])


def test_a_wrapped_model_is_no_longer_its_checkpoint(tmp_path, caplog):
    """An adapter that noted the checkpoint's name would be opened on the plain model. A warning says whether the
    function is still the same."""
    llama().save_pretrained(tmp_path)
    for options, warns in (({}, False), ({"coefficients": "gate"}, True), ({"steps_per_layer": 2}, True)):
        caplog.clear()
        model = ode.depth.wrap(transformers.AutoModelForCausalLM.from_pretrained(tmp_path), **options)
        assert model.name_or_path == model.config.name_or_path == ""
        assert ("another function" in caplog.text) == warns


def test_new_and_loaded_post_norm_models_are_refused(tmp_path):
    model = bert()[0]
    with pytest.raises(ValueError, match="post-norm"):
        transformers.AutoModel.from_config(ode.depth.config(model.config))
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="post-norm"):
        transformers.AutoModel.from_pretrained(tmp_path, config=ode.depth.config(model.config))


def test_other_models_keep_a_shared_configuration():
    config = transformers.LlamaConfig(**SIZES)
    first, second = transformers.LlamaForCausalLM(config), transformers.LlamaForCausalLM(config)
    ode.depth.wrap(first)
    assert type(config) is transformers.LlamaConfig and second.config is config
    assert {module.config.model_type for module in first.modules() if hasattr(module, "config")} == {"ode_llama"}
    assert ode.depth.wrap(second, solver="rk4").config.ode["solver"] == "rk4" and first.config.ode["solver"] == "rk2"


def test_heads_open_their_backbone_by_an_auto_class(tmp_path):
    config = ode.depth.config(transformers.LlamaConfig(**SIZES), start="euler")
    model = randomize(transformers.AutoModelForSequenceClassification.from_config(config))
    assert ode.depth.num_function_evaluations(model) == 8
    model.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert torch.equal(loaded(IDS).logits, model(IDS).logits)
    auto_map = json.loads((tmp_path / "config.json").read_text())["auto_map"]
    assert {"AutoConfig", "AutoModel", "AutoModelForCausalLM", "AutoModelForSequenceClassification"} <= auto_map.keys()
    for name, place in auto_map.items():
        assert place.startswith("depth_ode_transformer.Ode"), name


def trainer(folder, model, **arguments):
    examples = [{"input_ids": row, "labels": row} for row in IDS.repeat(4, 1).tolist()]
    shared = {"report_to": "none", "use_cpu": True, "disable_tqdm": True, "save_steps": 2, "max_steps": 4}
    shared |= {"per_device_train_batch_size": 2, "learning_rate": 0.01}
    arguments = transformers.TrainingArguments(str(folder), **shared, **arguments)
    return transformers.Trainer(model, arguments, train_dataset=examples)


def test_a_training_resumes_from_a_checkpoint_of_trainer(tmp_path):
    whole = trainer(tmp_path / "whole", wrapped())
    whole.train()
    resumed = trainer(tmp_path / "resumed", wrapped())
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    for name, value in whole.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], value), name


def test_label_smoothing_shifts_the_labels_as_for_the_plain_model(tmp_path):
    batch = {"input_ids": IDS, "labels": IDS}
    plain, model = llama(), ode.depth.wrap(llama())
    trainers = [trainer(tmp_path, each, label_smoothing_factor=0.1) for each in (plain, model)]
    assert torch.equal(*(each.compute_loss(each.model, dict(batch)) for each in trainers))


def test_correctors_need_all_layers_of_one_forward_pass():
    model = wrapped("iiet")
    expected = model(IDS).logits
    with pytest.raises(RuntimeError, match="Layer 2 finds 0 states"):
        model.model.layers[2](torch.zeros(1, 3, 16))
    with pytest.raises(IndexError):  # in the embeddings of ids that there are not
        model(IDS + 61)
    hook = model.model.layers[1].register_forward_pre_hook(lambda module, args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(IDS)
    hook.remove()
    assert model.model.layers_depth.states == ()
    assert torch.equal(model(IDS).logits, expected) and torch.equal(copy.deepcopy(model)(IDS).logits, expected)


def test_layers_that_change_the_shape_are_refused_where_they_do():
    sizes = {"image_size": 32, "patch_size": 2, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2]}
    model, images = transformers.SwinModel(transformers.SwinConfig(**sizes, window_size=2)), torch.randn(1, 3, 32, 32)
    expected = model.eval()(images).last_hidden_state
    with pytest.raises(ValueError, match=r"maps states \(1, 256, 8\) to .*'blocks' of Swin"):
        ode.depth.wrap(copy.deepcopy(model))(images)
    restricted = ode.depth.wrap(copy.deepcopy(model), stack="blocks")
    assert torch.equal(restricted(images).last_hidden_state, expected)
    assert not torch.equal(randomize(restricted)(images).last_hidden_state, expected)


def test_stacks_of_two_models_have_their_own_widths():
    """Gemma 3 with its vision tower: gates of both, and the text's stack alone by its name."""
    text = {**SIZES, "num_hidden_layers": 2, "num_key_value_heads": 2, "head_dim": 8}
    vision = {"hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = transformers.Gemma3ForConditionalGeneration(
        transformers.Gemma3Config(
            text_config={**text, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6},
            vision_config={**vision, "image_size": 16, "patch_size": 8},
            **{"mm_tokens_per_image": 4, "image_token_id": 60, "boi_token_id": 59, "eoi_token_id": 58},
        )
    ).eval()
    ids = torch.tensor([[2, 59, 60, 60, 60, 60, 58, 5, 6]])
    inputs = {"input_ids": ids, "pixel_values": torch.randn(1, 3, 16, 16), "token_type_ids": (ids == 60).long()}
    expected = model(**inputs).logits
    gated = ode.depth.wrap(copy.deepcopy(model), coefficients="gate")
    shapes = {tuple(value.shape) for name, value in gated.named_parameters() if name.endswith("gate.weight")}
    assert shapes == {(1, 2 * 24), (1, 2 * 16)} and gated(**inputs).logits.shape == expected.shape
    named = ode.depth.wrap(model, stack="language_model.layers")
    assert ode.depth.num_function_evaluations(named) == 2 + 4
    assert torch.equal(named(**inputs).logits, expected)


def test_state_space_layers_are_refused_unless_their_state_is_a_cache():
    sizes = {"vocab_size": 61, "hidden_size": 16, "state_size": 4, "num_hidden_layers": 2, "pad_token_id": 0}
    model = ode.depth.wrap(transformers.AutoModelForCausalLM.from_config(transformers.MambaConfig(**sizes)).eval())
    layer = model.backbone.layers[0]
    with pytest.raises(TypeError, match="keeps its state in cache_params, a SimpleNamespace"):
        layer(torch.randn(1, 3, 16), cache_params=SimpleNamespace())


def test_a_cache_of_another_model_is_refused():
    plain = llama()
    for config in (None, plain.config):
        cache = transformers.DynamicCache(config=config)
        plain(IDS, past_key_values=cache)
        with pytest.raises(ValueError, match="another model has filled it"):
            wrapped()(IDS[:, :1], past_key_values=cache)


def test_a_saved_folder_is_not_opened_as_plain_llama(tmp_path):
    wrapped().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="Runge-Kutta steps: import modeling_ode_transformer"):
        transformers.LlamaForCausalLM.from_pretrained(tmp_path)
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    assert config.dtype == torch.float32 and config.ode == {"solver": "rk2", "start": "euler"}
    assert transformers.AutoConfig.from_pretrained(tmp_path, dtype=torch.bfloat16).dtype == torch.bfloat16


WITHOUT_THE_PACKAGE = """
import sys
sys.modules["modeling_ode_transformer"] = None
import torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=True)
logits = torch.load(sys.argv[1] + "/logits.pt")
ids = torch.load(sys.argv[1] + "/ids.pt")
assert torch.equal(model(ids).logits, logits)
assert torch.equal(model.generate(ids, max_new_tokens=4, do_sample=False), torch.load(sys.argv[1] + "/tokens.pt"))
model.save_pretrained(sys.argv[2])
"""


@pytest.mark.parametrize("options", [{"solver": "rk4", "layers": "1:"}, {"solver": "iiet"}])
def test_a_saved_folder_opens_without_the_package(options, tmp_path):
    model = wrapped(**options)
    model.save_pretrained(tmp_path / "model")
    saved = {"ids": IDS, "logits": model(IDS).logits.detach()}
    saved["tokens"] = model.generate(IDS, max_new_tokens=4, do_sample=False)
    for name, value in saved.items():
        torch.save(value, tmp_path / "model" / f"{name}.pt")
    run_python(WITHOUT_THE_PACKAGE, tmp_path, str(tmp_path / "model"), str(tmp_path / "again"))
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "again")  # now with the package
    assert torch.equal(again(IDS).logits, model(IDS).logits)


def test_a_tableau_of_a_users_file_travels_as_data(monkeypatch):
    tableau = ButcherTableau(a=((), (0.4,)), b=(-0.25, 1.25))
    monkeypatch.setitem(SCHEMES, "mine", tableau)
    assert ode.depth.config(transformers.LlamaConfig(**SIZES), solver="mine").ode["solver"] == tableau.to_dict()
    corrected = {"predictor": "mine", "corrector_iterations": 1}
    corrected = ode.depth.config(transformers.LlamaConfig(**SIZES), solver=corrected)
    assert corrected.ode["solver"] == {"predictor": tableau.to_dict(), "corrector_iterations": 1}


def open_original(folder: Path) -> torch.nn.Module:
    """With IIET's number of corrections, where the folder changes that of the released code."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    changed = " ".join(config.get("changed_constants", {}).values())
    found = re.search(r"calculate_num = (\d+)", changed)
    model = convert_successor(folder, int(found[1]) if found and "iiet" in config["kind"] else None)
    model.set_attn_implementation("eager")  # as recorded
    return model


@pytest.mark.parametrize("folder", GOLDEN, ids=lambda folder: folder.name)
def test_successors_compute_what_their_code_computed(folder):
    """Logits, with padding on the left too, hidden states and norms of gradients."""
    expected, recorded = load_file(folder / "golden.safetensors"), json.loads((folder / "golden.json").read_text())
    model = open_original(folder).train()
    outputs = model(expected["input_ids"], labels=expected["labels"], output_hidden_states=True, use_cache=False)
    mask = expected["padded_attention_mask"]
    padded = model(expected["padded_input_ids"], attention_mask=mask, use_cache=False).logits
    for found, original in (
        (outputs.logits, expected["logits"]),
        (padded[mask.bool()], expected["padded_logits"][mask.bool()]),
        (torch.stack(outputs.hidden_states), expected["hidden_states"]),
    ):
        torch.testing.assert_close(found, original, rtol=0, atol=2e-6)
    outputs.loss.backward()
    norms = {name: parameter.grad.norm().item() for name, parameter in model.named_parameters()}
    for name, norm in recorded["gradient_norms"].items():
        assert not norm or norms[own_name(name)] == pytest.approx(norm, rel=1e-4), name


@pytest.mark.parametrize("folder", GOLDEN, ids=lambda folder: folder.name)
@pytest.mark.parametrize("use_cache", [True, False])
def test_successors_generate_the_same_tokens_with_a_cache(folder, use_cache):
    """The released code does so without a cache only; its cached tokens are those of another function."""
    expected, model = load_file(folder / "golden.safetensors"), open_original(folder).eval()
    model.generation_config.eos_token_id = None
    for prompt, mask, tokens in (
        ("prompt", None, "greedy_eager_uncached"),
        ("prompt_left_padded", "prompt_left_padded_mask", "greedy_eager_uncached_left_padded"),
    ):
        ids = expected[prompt]
        generated = model.generate(
            ids,
            attention_mask=torch.ones_like(ids) if mask is None else expected[mask],
            **{"max_new_tokens": 10, "do_sample": False, "use_cache": use_cache, "pad_token_id": 0},
        )
        assert torch.equal(generated, expected[tokens])


@pytest.mark.parametrize("solver", ["iiet", "pcformer"])
def test_correctors_recompute_their_layers(solver):
    """Gradient checkpointing after two forward passes: each layer reads its own pass's history."""
    model = wrapped(solver).train()

    def gradients():
        model.zero_grad()
        first, second = model(IDS).logits, model(IDS.flip(0, 1)).logits
        (first.square().mean() + (first * second).mean()).backward()
        return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}

    expected = gradients()
    model.activation_checkpointing_enable()
    for name, gradient in gradients().items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-6, msg=name)
    assert model.model.layers_depth.states == ()


def test_correctors_of_other_backbones_cache_all_evaluations(tmp_path):
    config = ode.depth.config(transformers.GPT2Config(vocab_size=61, n_embd=16, n_layer=3, n_head=2), solver="iiet")
    model = randomize(transformers.AutoModelForCausalLM.from_config(config)).eval()
    tokens = model.generate(IDS, max_new_tokens=6, do_sample=False)
    assert torch.equal(tokens, model.generate(IDS, max_new_tokens=6, do_sample=False, use_cache=False))
    model.save_pretrained(tmp_path)
    assert torch.equal(transformers.AutoModelForCausalLM.from_pretrained(tmp_path)(IDS).logits, model(IDS).logits)


@pytest.mark.parametrize(("name", "options"), [("iiet_1", ["--corrector_iterations", "1"]), ("pcformer_rk4_ema", [])])
def test_the_command_converts_a_folder_of_the_released_code(name, options, tmp_path, capsys):
    folder = GOLDEN[0].parent / name
    command = ["convert-successor", str(folder), "--output_dir", str(tmp_path / "converted"), *options]
    cli.run(command)
    expected = load_file(folder / "golden.safetensors")
    logits = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "converted")(expected["input_ids"]).logits
    torch.testing.assert_close(logits, expected["logits"], rtol=0, atol=2e-6)
    with pytest.raises(SystemExit):
        cli.main(command)
    assert "is not an empty folder" in capsys.readouterr().err


def test_folders_that_are_no_successors_are_refused(tmp_path):
    model = llama()
    model.save_pretrained(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**fields, "num_hidden_layers": 5}))
    with pytest.raises(ValueError, match="no model of PCformer or IIET: it lacks"):
        convert_successor(tmp_path)
    with pytest.raises(FileNotFoundError):
        convert_successor(tmp_path / "nothing")
