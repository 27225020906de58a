# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The configuration: defaults, sizes, validation, saving."""

import ast
import dataclasses
import inspect
import json
import math
import re

import pytest
import torch
from transformers import AutoConfig

from modeling_ode_transformer import (
    CsaOdeConfig,
    OdeTransformerConfig,
    OdeTransformerDecoderConfig,
    OdeTransformerForCausalLM,
    OdeTransformerForConditionalGeneration,
    OdeTransformerRecurrenceConfig,
)
from modeling_ode_transformer.configuration_ode_transformer import PRESETS
from modeling_ode_transformer.integration_ode_transformer import SCHEMES, ButcherTableau

from .conftest import build, tiny_config


def count_parameters(config):
    with torch.device("meta"):
        model = OdeTransformerForConditionalGeneration(config)
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    "preset, millions", [("base", 61), ("deep", 118), ("big", 211), ("small-18", 29), ("small-28", 37)]
)
def test_presets_have_the_parameters_that_the_paper_counts(preset, millions):
    assert count_parameters(OdeTransformerConfig.from_preset(preset)) == pytest.approx(1e6 * millions, rel=0.0125)


def test_a_runge_kutta_model_has_the_parameters_of_the_residual_one_plus_its_gate():
    residual = count_parameters(tiny_config(encoder_solver="euler"))
    assert count_parameters(tiny_config(encoder_solver="rk4")) == residual
    assert count_parameters(tiny_config(encoder_solver="rk2")) == residual + 2 * 32 + 1
    per_layer = tiny_config(encoder_solver="rk2", coefficient_sharing="layer")
    assert count_parameters(per_layer) == residual + 3 * (2 * 32 + 1)


def test_an_unknown_preset_is_refused():
    with pytest.raises(ValueError, match="'large': choose one of base, deep"):
        OdeTransformerConfig.from_preset("large")


def test_a_field_means_one_thing_whatever_others_say():
    """Coefficients are fixed and padding is at position 1, whatever the schemes and the tokens are."""
    for fields in ({}, {"encoder_solver": "midpoint", "decoder_solver": "rk4"}, {"pad_token_id": 3}):
        config = OdeTransformerConfig(**fields)
        assert (config.encoder_coefficients, config.decoder_coefficients) == ("fixed", "fixed")
        assert config.padding_position == 1
    fields = OdeTransformerConfig.__annotations__ | OdeTransformerDecoderConfig.__annotations__
    assert len(fields.keys() - {"stacks"}) <= 45


def test_presets_have_the_papers_gate_unless_another_scheme_is_given():
    assert OdeTransformerConfig.from_preset("base").encoder_coefficients == "gate"
    rk4 = OdeTransformerConfig.from_preset("deep", encoder_solver="rk4")
    assert (rk4.encoder_solver, rk4.encoder_coefficients, rk4.encoder_layers) == ("rk4", "fixed", 24)


def test_a_preset_without_an_encoder_has_its_scheme_and_sizes_in_the_decoder():
    for preset in PRESETS:
        pair, config = OdeTransformerConfig.from_preset(preset), OdeTransformerDecoderConfig.from_preset(preset)
        assert (config.decoder_solver, config.decoder_coefficients) == ("rk2", "gate")
        for size in ("layers", "attention_heads", "ffn_dim"):
            assert getattr(config, f"decoder_{size}") == getattr(pair, f"encoder_{size}")
    rk4 = OdeTransformerDecoderConfig.from_preset("deep", decoder_solver="rk4", decoder_layers=3)
    assert (rk4.decoder_solver, rk4.decoder_coefficients, rk4.decoder_layers) == ("rk4", "fixed", 3)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"encoder_solver": "rk5"}, "'rk5'.*choose one of euler"),
        ({"encoder_solver": {"a": [[1.0]], "b": [1.0]}}, "strictly lower triangular"),
        ({"encoder_solver": {"a": [[], [1.0]], "b": [0.5, 0.6]}, "coefficients": "fixed"}, "sum to 1.1"),
        ({"encoder_solver": "rk4", "coefficients": "gate"}, "encoder_solver='rk4' has 4"),
        ({"encoder_solver": "euler", "encoder_coefficients": "gate"}, "encoder_solver='euler' has 1"),
        ({"coefficient_start": "even", "coefficients": "ema"}, "is for 'learned', 'gate', 'sigmoid', "),
        ({"encoder_coefficients": "softmax"}, "'softmax' is unknown: choose one of fixed, ones"),
        ({"coefficient_sharing": "channel"}, "is for coefficients learned or ema, not for .*gate"),
        ({"coefficient_start": "euler"}, "is for 'learned' coefficients, not for .*gate"),
        ({"decoder_solver": "iiet", "layer_history": "none"}, "decoder_solver='iiet' corrects .*layer_history='none'"),
        ({"encoder_solver": {"predictor": "iiet", "corrector_iterations": 1}}, "'iiet' corrects its steps itself"),
        ({"encoder_solver": {"predictor": "rk2", "corrector_iterations": 0}}, "corrector_iterations=0 must be an int"),
        ({"decoder_solver": "leapfrog", "vector_field": "ffn"}, "choose one of layer, sublayers, macaron"),
        ({"layer_history": "gru"}, "choose one of learned_dense, dense, none, depth_weighted, .*, attention"),
        ({"position_embedding_type": "rotary"}, "choose one of sinusoidal, sinusoidal_vaswani, learned, none"),
        ({"activation_function": "rely"}, "'rely' is unknown: choose one of"),
        ({"encoder_attention_heads": 5}, "d_model=32 is not a multiple of encoder_attention_heads=5"),
        ({"dropout": 1.0}, "dropout=1.0 must be a probability"),
        ({"max_relative_position": -1}, "max_relative_position=-1"),
        ({"steps_per_layer": 0}, "steps_per_layer=0"),
        ({"stack_repeats": 0}, "stack_repeats=0 must be at least 1"),
        ({"step_size": math.nan}, "step_size=nan must be a positive number"),
        ({"encoder_layers": 0}, "encoder_layers=0"),
        ({"decoder_vocab_size": 70}, "decoder_vocab_size=70 is of a decoder with a vocabulary of its own"),
        ({"padding_position": -1}, "padding_position=-1 must not be negative"),
        ({"d_model": "32"}, "d_model"),
        ({"recurrence_encoder": "lstm"}, "recurrence_encoder='lstm' is unknown: choose one of birnn, biarn"),
        ({"recurrence_encoder": "biarn", "recurrence_layers": 0}, "recurrence_layers=0 must be at least 1"),
        ({"recurrence_encoder": "biarn", "recurrence_steps": 0}, "recurrence_steps=0 must be at least 1, or None"),
        ({"encoder_slover": "rk4"}, "encoder_slover='rk4' is not a field: did you mean encoder_solver"),
        ({"solver": "rk4"}, "solver='rk4' is not a field: did you mean encoder_solver or decoder_solver?"),
        ({"step_size": 1e300}, r"step_size=1e\+300 must be a positive number of at most 32768"),
        ({"encoder_solver": {"a": [[]], "b": [1e300]}}, "numbers within ±32768, unlike .*1e.300"),
    ],
)
def test_what_is_no_model_is_refused_at_construction_and_named(fields, message):
    is_recurrent = any(name.startswith("recurrence") for name in fields)
    with pytest.raises(Exception, match=message) as error:
        tiny_config(config_class=OdeTransformerRecurrenceConfig if is_recurrent else OdeTransformerConfig, **fields)
    assert isinstance(error.value, (ValueError, TypeError)) or "Strict" in type(error.value).__name__


def test_names_that_are_not_fields_may_be_saved_along_and_aliases_may_stand_alone():
    config = tiny_config(dataset_labels=["no"], hidden_size=32)
    assert (config.dataset_labels, config.d_model) == (["no"], 32)
    assert OdeTransformerConfig(hidden_size=256).d_model == 256


@pytest.mark.parametrize("config_class", [OdeTransformerConfig, OdeTransformerRecurrenceConfig, CsaOdeConfig])
def test_a_configuration_that_saves_opens(config_class, tmp_path):
    """Also with an attribute that was set under a name like a field's, as in transformers' own tests."""
    config = config_class()
    config.layer_norm_epsilon = 1.0
    config.save_pretrained(tmp_path)
    opened = [config_class.from_pretrained(tmp_path), AutoConfig.from_pretrained(tmp_path)]
    opened += [config_class.from_dict(config.to_dict()), config_class.from_json_file(tmp_path / "config.json")]
    assert [each.layer_norm_epsilon for each in opened] == [1.0] * 4
    with pytest.raises(ValueError, match=r"layer_norm_epsilon=1.0 is not a field: did you mean layer_norm_eps\?"):
        config_class(layer_norm_epsilon=1.0)


def test_a_tableau_may_be_an_object_and_is_saved_as_numbers(tmp_path):
    path = tmp_path / "ralston.json"
    path.write_text(json.dumps(SCHEMES["ralston"].to_dict()))
    polynet = ButcherTableau(a=[[], [1]], b=[1, 1], y=[1, 0])
    ralston = ButcherTableau.from_json_file(path)
    config = OdeTransformerConfig(encoder_solver=ralston, decoder_solver=polynet)
    assert config.scheme("encoder").tableau == SCHEMES["ralston"]
    config.save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path)
    tableaus = [loaded.scheme(stack).tableau for stack in ("encoder", "decoder")]
    assert tableaus == [SCHEMES["ralston"], SCHEMES["polynet"]]
    config = AutoConfig.from_pretrained(tmp_path, decoder_solver=SCHEMES["midpoint"])
    assert json.loads(config.to_json_string())["decoder_solver"] == SCHEMES["midpoint"].to_dict()
    OdeTransformerConfig(encoder_solver={"predictor": ralston, "corrector_iterations": 1}).save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).scheme("encoder") == (SCHEMES["ralston"], None, 1)


def test_learned_coefficients_accept_weights_that_do_not_sum_to_one():
    config = tiny_config(encoder_solver={"a": [[], [1.0]], "b": [0.5, 0.6]}, coefficients="learned")
    assert config.scheme("encoder").tableau.b == (0.5, 0.6)


@pytest.mark.parametrize(
    "fields, encoder, decoder",
    [
        ({}, [2, 2, 2], [1, 1]),
        ({"encoder_solver": "rk4", "decoder_solver": "rk3"}, [4, 4, 4], [3, 3]),
        ({"encoder_solver": "euler", "steps_per_layer": 2}, [2, 2, 2], [2, 2]),
        ({"decoder_solver": "iiet", "stack_repeats": 2}, [4, 4, 4], [8, 8]),
        ({"encoder_solver": "leapfrog", "decoder_solver": "multistep"}, [1, 1, 1], [1, 1]),
        ({"encoder_solver": "pcformer", "decoder_solver": "iiet"}, [3, 3, 3], [4, 4]),
        ({"decoder_solver": {"predictor": "rk4", "corrector_iterations": 2}, "steps_per_layer": 2}, [4] * 3, [10] * 2),
    ],
)
def test_function_evaluations_are_those_that_are_made(fields, encoder, decoder):
    """Counted at the attention of each layer, which a whole layer's field calls once."""
    model = OdeTransformerForConditionalGeneration(tiny_config(**fields))
    made = {"encoder": [], "decoder": []}
    for stack, calls in made.items():
        for i, layer in enumerate(getattr(model.model, stack).layers):
            layer.self_attn.register_forward_hook(lambda *_, calls=calls, i=i: calls.append(i))
    model(input_ids=torch.tensor([[5, 6]]), decoder_input_ids=torch.tensor([[2]]))
    counts = {stack: [calls.count(i) for i in range(max(calls) + 1)] for stack, calls in made.items()}
    assert counts == {"encoder": encoder, "decoder": decoder} == model.num_function_evaluations(per_layer=True)
    assert model.num_function_evaluations() == sum(encoder) + sum(decoder)


def test_generic_names_are_mapped():
    config = tiny_config()
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (32, 3, 4)
    decoder = config.get_text_config(decoder=True)
    assert (decoder.num_hidden_layers, decoder.num_attention_heads) == (2, 2)
    config = OdeTransformerConfig.from_preset("small-18", hidden_size=512, num_hidden_layers=3)
    assert (config.d_model, config.encoder_layers) == (512, 3)


def test_defaults_are_those_of_the_documentation():
    pattern = r"(?:^ {4}|, )(\w+(?:, \w+)*) \((?:`\w+`(?: or `\w+`)?), (?:defaults to `?(.+?)`?|\*optional\*)\)"
    found = re.findall(pattern, inspect.getdoc(OdeTransformerConfig), re.M)
    documented = {}
    for names, value in found:
        names, value = names.split(", "), ast.literal_eval(value or "None")
        documented |= zip(names, value) if isinstance(value, tuple) else dict.fromkeys(names, value)
    assert len(documented) > 40
    fields = {field.name: field.default for field in dataclasses.fields(OdeTransformerConfig)}
    assert {name: fields[name] for name in documented} == documented


def test_names_of_transformers_are_those_of_the_decoder_in_a_language_model(tmp_path):
    sizes = {"num_hidden_layers": 12, "num_attention_heads": 2}
    for config in (OdeTransformerDecoderConfig(**sizes), OdeTransformerDecoderConfig.from_preset("small-18", **sizes)):
        assert (config.decoder_layers, config.decoder_attention_heads) == (12, 2)
        with torch.device("meta"):
            assert len(OdeTransformerForCausalLM(config).model.layers) == 12
    build(OdeTransformerForCausalLM, decoder_layers=2, layer_history="none").save_pretrained(tmp_path)
    assert len(OdeTransformerForCausalLM.from_pretrained(tmp_path, num_hidden_layers=1).model.layers) == 1
    config = AutoConfig.from_pretrained(tmp_path, num_attention_heads=4)
    assert config.num_attention_heads == config.decoder_attention_heads == 4
