# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Replaced modules: against the modules that they replace, and PyTorch's and transformers' own functions."""

import copy

import pytest
import torch
from torch import nn
from transformers import M2M100Config, M2M100ForConditionalGeneration
from transformers.dynamic_module_utils import get_class_from_dynamic_module

import modeling_ode_transformer as ode
from modeling_ode_transformer.inference import cpu
from modeling_ode_transformer.inference.cpu import Replacement, optimize_for_cpu

from ..conftest import TINY, assert_close, build
from .conftest import optimized


def is_optimized(model):
    return any(isinstance(module, Replacement) for module in model.modules())


MODELS = (ode.OdeTransformerForConditionalGeneration, ode.OdeTransformerForCausalLM, ode.OdeTransformerModel)
FORMS = [
    (MODELS[0], {"encoder_solver": "leapfrog", "position_embedding_type": "learned", "tie_word_embeddings": False}),
    (MODELS[1], {"decoder_solver": "rk4", "decoder_coefficients": "learned", "vector_field": "macaron"}),
    (MODELS[2], {"encoder_coefficients": "gate", "max_relative_position": 0, "layer_history": "none"}),
]


@pytest.mark.parametrize("model_class, form", FORMS)
def test_outputs_and_gradients_are_the_same(model_class, form, batch, onednn_calls):
    results = []
    for optimize in (lambda model: model, optimize_for_cpu):
        model = build(model_class, **form)
        assert optimize(model) is model
        inputs = batch if model.config.is_encoder_decoder else {"input_ids": batch["decoder_input_ids"]}
        states = model(**inputs)[0]
        states.tanh().sum().backward()
        results.append((states.detach(), {name: p.grad for name, p in model.named_parameters()}))
        with torch.no_grad():
            assert_close(model(**inputs)[0], states, scale=max(1, states.abs().max().item()))
    (expected, gradients), (actual, others) = results
    assert_close(actual, expected, scale=max(1, expected.abs().max().item()))
    assert list(gradients) == list(others) and onednn_calls
    for name, gradient in gradients.items():
        assert (gradient is None) == (others[name] is None), name
        if gradient is not None:
            assert_close(others[name], gradient, scale=10 * max(1, gradient.abs().max().item()))


@pytest.mark.parametrize("tied", [True, False])
def test_saving_loading_and_copying_know_nothing_of_it(tied, tmp_path, batch):
    model = build(tie_word_embeddings=tied)
    model.save_pretrained(tmp_path / "before")
    expected = model(**batch).logits
    optimize_for_cpu(model).save_pretrained(tmp_path / "after")
    for path in (tmp_path / "before").iterdir():
        assert path.read_bytes() == (tmp_path / "after" / path.name).read_bytes(), path.name
    assert len(list((tmp_path / "before").iterdir())) == len(list((tmp_path / "after").iterdir()))
    other = optimized(tie_word_embeddings=tied, attention_dropout=0.1)
    nn.init.normal_(other.lm_head.weight)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(**batch).logits, model(**batch).logits)
    loaded = ode.OdeTransformerForConditionalGeneration.from_pretrained(tmp_path / "after")
    assert not is_optimized(loaded) and torch.equal(loaded(**batch).logits, expected)
    assert (model.lm_head.weight is model.model.shared.weight) == tied
    copied = copy.deepcopy(model)
    assert torch.equal(copied(**batch).logits, model(**batch).logits)
    assert [type(each) for each in copied.modules()] == [type(each) for each in model.modules()]
    assert copied.lm_head.weight is not model.lm_head.weight


def test_classes_of_a_repository_are_replaced_too(tmp_path, batch):
    model = build()
    model.save_pretrained(tmp_path)
    name = "modeling_ode_transformer.OdeTransformerForConditionalGeneration"
    remote = get_class_from_dynamic_module(name, tmp_path).from_pretrained(tmp_path)
    assert type(remote).__module__.startswith("transformers_modules.")
    layer = optimize_for_cpu(remote).model.decoder.layers[0]
    assert all(isinstance(each, Replacement) for each in (layer.self_attn, layer.self_attn.q_proj, layer.dropout))
    assert_close(remote(**batch).logits, model(**batch).logits, scale=10)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_converted_model_runs_as_if_it_had_not_been_optimized(dtype, batch, onednn_calls):
    model = optimized().to(dtype)
    actual = model(**batch).logits
    assert torch.equal(actual, build().to(dtype)(**batch).logits) and actual.dtype == dtype and not onednn_calls
    ids = {"input_ids": torch.ones(3, 5, dtype=torch.long), "decoder_input_ids": torch.ones(3, 6, dtype=torch.long)}
    assert optimized().to("meta")(**{name: each.to("meta") for name, each in ids.items()}).logits.shape == actual.shape


def test_an_optimized_model_compiles_and_exports(batch):
    model = optimized(encoder_solver="rk2")
    inputs = {**batch, "labels": batch["decoder_input_ids"], "use_cache": False}
    with torch.no_grad():
        expected = model(**inputs)
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")(**inputs)
        exported = torch.export.export(model, (), inputs, strict=False).module()(**inputs)
    for outputs in (compiled, exported):
        assert_close(outputs.logits, expected.logits, scale=10)
        assert_close(outputs.loss, expected.loss)


def test_adapters_are_put_around_replaced_layers(batch, onednn_calls):
    peft = pytest.importorskip("peft")
    results = []
    for optimize in (lambda model: model, optimize_for_cpu):
        torch.manual_seed(1)
        config = peft.LoraConfig(target_modules=["q_proj", "fc1"], init_lora_weights=False)
        model = peft.get_peft_model(optimize(build()), config).eval()
        assert isinstance(model.base_model.model.model.encoder.layers[0].fc1.base_layer, nn.Linear)
        logits = model(**batch).logits
        optimize(model)
        assert_close(model(**batch).logits, logits, scale=10)
        with torch.no_grad():
            assert_close(model(**batch).logits, logits, scale=10)
        assert_close(model.merge_and_unload()(**batch).logits, logits, scale=10)
        results.append(logits)
    assert_close(results[1], results[0], scale=10)
    assert onednn_calls


def test_embeddings_are_resized_as_before():
    model = optimized(tie_word_embeddings=False)
    old = model.lm_head.weight.clone()
    model.resize_token_embeddings(70)
    assert model.lm_head.weight.shape == (70, 32) and torch.equal(model.lm_head.weight[:61], old)
    assert not isinstance(model.lm_head, Replacement)
    assert isinstance(optimize_for_cpu(model).lm_head, Replacement)


def test_other_devices_are_left_alone_with_a_line_that_says_so(warned):
    model = build().to("meta")
    for weights in cpu.WEIGHTS:
        assert optimize_for_cpu(model, weights) is model and not is_optimized(model)
    assert warned == ["The model is not optimized for CPUs: it is on meta."] * 3
    with pytest.raises(ValueError, match="weights='int4' must be one of 'keep', 'packed', 'int8'"):
        optimize_for_cpu(build(), "int4")


def test_other_models_of_transformers_have_their_linear_layers_replaced(batch, onednn_calls):
    torch.manual_seed(0)
    model = M2M100ForConditionalGeneration(M2M100Config(**TINY, dropout=0.0)).eval()
    expected = model(**batch).logits
    optimize_for_cpu(model)
    assert not onednn_calls
    assert_close(model(**batch).logits, expected)
    assert isinstance(model.model.encoder.layers[0].fc1, Replacement) and not onednn_calls
    with torch.no_grad():
        assert_close(model(**batch).logits, expected)
    assert onednn_calls
    attention = nn.MultiheadAttention(8, 2)
    assert not is_optimized(optimize_for_cpu(attention))  # its projection is a class of its own
