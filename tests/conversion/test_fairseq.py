# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Converted models against the numbers of the original code (tests/golden)."""

import json
from argparse import Namespace
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from modeling_ode_transformer import convert_fairseq_state_dict
from modeling_ode_transformer.conversion.fairseq import rename_parameters

from ..conftest import assert_close


GOLDEN = Path(__file__).parents[1] / "golden"
NAMES = sorted(path.parent.name for path in GOLDEN.glob("*/reference.json"))
PAD = 1


@cache
def load(name):
    """The original's parameters, its inputs and outputs, and the other reference numbers."""
    tensors = load_file(GOLDEN / name / "tensors.safetensors")
    parts = {"weights": {}, "io": {}}
    for key, tensor in tensors.items():
        part, _, key = key.partition(".")
        parts[part][key] = tensor
    return parts["weights"], parts["io"], json.loads((GOLDEN / name / "reference.json").read_text())


def convert(name, attention="sdpa"):
    weights, _, reference = load(name)
    model = convert_fairseq_state_dict(weights, reference["args"])
    model.set_attn_implementation(attention)
    return model


def run(model, io, source="", target=""):
    source_tokens, labels = io[f"{source}src_tokens"], io[f"{target}target"]
    outputs = model(
        input_ids=source_tokens,
        attention_mask=(source_tokens != PAD).long(),
        decoder_input_ids=io[f"{target}prev_output_tokens"],
    )
    loss = torch.nn.functional.cross_entropy(
        outputs.logits.flatten(0, 1), labels.flatten(), ignore_index=PAD, label_smoothing=0.1, reduction="sum"
    )
    return outputs, loss


def test_every_architecture_that_is_promised_has_reference_numbers():
    kinds = {(load(name)[2]["args"]["arch"], load(name)[2]["args"].get("rk_type")) for name in NAMES}
    assert {kind for _, kind in kinds} == {None, "standard", "initialization", "learnable"}
    assert len(NAMES) == 13


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("source, target", [("", ""), ("left_", ""), ("long_", "long_"), ("long_left_", "long_")])
@pytest.mark.parametrize("name", NAMES)
def test_outputs_and_losses_are_those_of_the_original(name, source, target, attention):
    io = load(name)[1]
    with torch.no_grad():
        outputs, loss = run(convert(name, attention), io, source, target)
    assert_close(outputs.encoder_last_hidden_state, io[f"{source}encoder_out"])
    assert_close(outputs.logits, io[f"{source}logits"])
    assert loss.item() == pytest.approx(io[f"{source}loss"].item(), rel=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_gradient_norms_are_those_of_the_original(name):
    _, io, reference = load(name)
    model = convert(name)
    run(model, io)[1].backward()
    parameters, checked = dict(model.named_parameters()), set()
    for original_name, expected in reference["grad_norms"].items():
        names = rename_parameters({original_name: torch.zeros(3, 1)})
        names = [model.all_tied_weights_keys.get(new_name, new_name) for new_name in names]
        gradient = torch.cat([parameters[new_name].grad.flatten() for new_name in names])
        assert gradient.norm().item() == pytest.approx(expected, rel=1e-4), original_name
        checked.update(names)
    assert checked == set(parameters)


@pytest.mark.parametrize("name", NAMES)
def test_beam_search_is_that_of_the_original(name):
    """Sentences all of whose hypotheses end by themselves: the same tokens and scores in the same order. Where some
    were cut at the limit, in another way than transformers cuts, the others are scored."""
    _, io, reference = load(name)
    model, source = convert(name), io["src_tokens"]
    generated = model.generate(
        source,
        attention_mask=(source != PAD).long(),
        num_beams=4,
        num_return_sequences=4,
        length_penalty=0.6,
        early_stopping=True,
        max_length=22,
        return_dict_in_generate=True,
        output_scores=True,
    )
    for i, hypotheses in enumerate(reference["beam"]["nbest"]):
        cut = any(hypothesis["hit_max_len"] for hypothesis in hypotheses)
        for j, hypothesis in enumerate(hypotheses):
            if hypothesis["hit_max_len"]:
                continue
            tokens = torch.tensor(hypothesis["tokens"])
            if cut:
                log_probabilities = model(
                    input_ids=source[i : i + 1],
                    attention_mask=(source[i : i + 1] != PAD).long(),
                    decoder_input_ids=torch.cat([torch.tensor([2]), tokens[:-1]])[None],
                ).logits.log_softmax(-1)[0]
                score = log_probabilities.gather(-1, tokens[:, None]).sum() / len(tokens) ** 0.6
            else:
                sequence = generated.sequences[4 * i + j, 1:]
                assert sequence[sequence != PAD].tolist() == hypothesis["tokens"]
                score = generated.sequences_scores[4 * i + j]
            assert score.item() == pytest.approx(hypothesis["score"], abs=5e-6)


def test_checkpoints_of_the_first_public_version_are_converted(caplog):
    """Its models all have a gate; it is used with two evaluations, whatever rk_type says, and idle otherwise. Its
    scripts call ode_transformer_... transformer_ode_..."""
    gate = {name: tensor for name, tensor in load("rk2_learnable_i_plain")[0].items() if "gate_linear" in name}
    for name, rk_type in (
        ("rk2_learnable_i_plain", "standard"),
        ("rk2_learnable_i_plain", "initialization"),
        ("rk2_learnable_i_plain", None),
        ("rk2_initialization_i_plain", "initialization"),
        ("rk3_standard_ii_rpr8", "standard"),
        ("rk3_standard_ii_rpr8", "learnable"),
        ("rk4_standard_i_plain", "standard"),
        ("rk4_standard_i_plain", "learnable"),
    ):
        weights, io, reference = load(name)
        changes = {"rk_type": rk_type, "arch": "transformer_ode_t2t_wmt_en_de_big"}
        model = convert_fairseq_state_dict({**weights, **gate}, {**reference["args"], **changes})
        with torch.no_grad():
            assert_close(run(model, io)[0].logits, io["logits"])
        assert ("encoder.gate_linear" in caplog.text) == (name == "rk2_learnable_i_plain")
        caplog.clear()


def test_arguments_may_be_a_namespace():
    weights, _, reference = load("rk4_standard_iii_rpr8_dlcl")
    model = convert_fairseq_state_dict(weights, Namespace(**reference["args"]))
    assert model.config.to_dict() == convert("rk4_standard_iii_rpr8_dlcl").config.to_dict()


def test_the_three_sharings_are_kept():
    weights, _, reference = load("rk2_standard_i_plain")
    separate = {**weights, "decoder.embed_tokens.weight": 2 * weights["decoder.embed_tokens.weight"]}
    for sharing, state_dict, tied in [
        ((True, True), weights, {"lm_head", "model.encoder.embed_tokens", "model.decoder.embed_tokens"}),
        ((False, True), separate, {"lm_head"}),
        ((False, False), {**separate, "decoder.embed_out": 3 * weights["decoder.embed_tokens.weight"]}, set()),
    ]:
        names = ("share_all_embeddings", "share_decoder_input_output_embed")
        model = convert_fairseq_state_dict(state_dict, {**reference["args"], **dict(zip(names, sharing))})
        assert {name.removesuffix(".weight") for name in model.all_tied_weights_keys} == tied
        for name, tensor in (
            ("decoder.embed_tokens.weight", model.model.decoder.embed_tokens.weight),
            ("encoder.embed_tokens.weight", model.model.encoder.embed_tokens.weight),
            ("decoder.embed_out", model.lm_head.weight),
        ):
            assert torch.equal(tensor, state_dict.get(name, state_dict["decoder.embed_tokens.weight"]))


NOT_EXPRESSIBLE = json.loads((GOLDEN / "not_expressible.json").read_text())


@pytest.mark.parametrize("name", NOT_EXPRESSIBLE)
def test_other_architectures_are_refused_by_name(name):
    args = NOT_EXPRESSIBLE[name]
    with pytest.raises(ValueError, match=args["arch"]):
        convert_fairseq_state_dict(load("residual_i_plain")[0], args)


OTHERS = {"encoder_normalize_before": False, "k_only": False, "rk_type": "simpson", "encoder_history_type": "residual"}


@pytest.mark.parametrize("option, value", OTHERS.items())
def test_options_that_cannot_be_expressed_are_refused_by_name(option, value):
    weights, _, reference = load("rk2_standard_i_plain")
    with pytest.raises(ValueError, match=f"{option}={value!r}"):
        convert_fairseq_state_dict(weights, {**reference["args"], option: value})


def test_language_models_are_refused_as_such():
    weights, _, reference = load("rk2_standard_i_plain")
    with pytest.raises(ValueError, match="arch='ode_transformer_lm_single' is a language model"):
        convert_fairseq_state_dict(weights, {**reference["args"], "arch": "ode_transformer_lm_single"})


def test_parameters_that_do_not_fit_are_refused_by_name():
    weights, _, reference = load("rk2_learnable_i_plain")
    args = reference["args"]
    without_gate = {name: tensor for name, tensor in weights.items() if "gate_linear" not in name}
    with pytest.raises(ValueError, match=r"Missing key.* .*model.encoder.solver_coefficients.gate.bias"):
        convert_fairseq_state_dict(without_gate, args)
    with pytest.raises(ValueError, match=r"Unexpected key.* \"model.encoder.solver_coefficients.weight"):
        convert_fairseq_state_dict({**weights, "encoder.alpha": torch.ones(2)}, args)
    with pytest.raises(ValueError, match=r"decoder\.lstm\.weight"):
        convert_fairseq_state_dict({**weights, "decoder.lstm.weight": torch.zeros(1)}, args)
    with pytest.raises(ValueError, match=r"size mismatch for .*fc1.bias: .*\[64\]\) .*\[128\]"):
        convert_fairseq_state_dict(weights, {**args, "encoder_ffn_embed_dim": 128})
