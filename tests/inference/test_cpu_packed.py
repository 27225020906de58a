# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Packed weights: against the same model before, and integer arithmetic by hand."""

from functools import partial

import pytest
import torch
from torch import nn

import modeling_ode_transformer as ode
from modeling_ode_transformer.inference import cpu
from modeling_ode_transformer.inference.cpu import (
    FewQueriesAttention,
    Int8Linear,
    OneDnnLinear,
    PackedLinear,
    optimize_for_cpu,
)

from ..conftest import assert_close
from ..conftest import build as build_plain


MODELS = (ode.OdeTransformerForConditionalGeneration, ode.OdeTransformerForCausalLM, ode.OdeTransformerModel)
FORMS = [
    (MODELS[0], {"vector_field": "macaron", "encoder_solver": "rk4", "coefficients": "learned"}),
    (MODELS[0], {"encoder_solver": "leapfrog", "position_embedding_type": "learned", "tie_word_embeddings": False}),
    (MODELS[1], {"decoder_solver": "rk2", "max_relative_position": 0}),
    (MODELS[2], {}),
]
PACKED = ("packed", "int8")
HAS_BFLOAT16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()
pack = partial(optimize_for_cpu, weights="packed")


def build(model_class=ode.OdeTransformerForConditionalGeneration, **fields):
    model = build_plain(model_class, **fields)
    if hasattr(model, "lm_head"):
        # A sharper distribution, so that no test hangs on a tie.
        model.lm_head.weight = nn.Parameter(10 * torch.randn(model.lm_head.weight.shape) / 32**0.5)
        model.generation_config.update(do_sample=False, max_length=None, min_new_tokens=8, max_new_tokens=8)
    return model


def inputs_of(model, batch):
    return batch if model.config.is_encoder_decoder else {"input_ids": batch["decoder_input_ids"]}


def generate(model, batch, **options):
    prompt = {name: tensor for name, tensor in inputs_of(model, batch).items() if name != "decoder_input_ids"}
    return model.generate(**prompt, **options).tolist()


@pytest.mark.parametrize("model_class, form", FORMS)
def test_packed_weights_of_32_bits_have_the_same_numbers(model_class, form, batch, warned):
    model = build(model_class, **form).train()
    inputs = inputs_of(model, batch)
    expected = model.eval()(**inputs)[0].detach()
    searches = ({}, {"use_cache": False}) if hasattr(model, "lm_head") else ()
    tokens = [generate(model, batch, **options) for options in searches]
    parameters = sum(parameter.numel() for parameter in model.parameters())
    model.train()
    assert pack(model) is model
    assert not model.training and not warned
    actual = model(**inputs)[0]
    assert not torch.equal(actual, torch.zeros_like(actual))
    assert_close(actual, expected, scale=2 * max(1, expected.abs().max().item()))
    assert [generate(model, batch, **options) for options in searches] == tokens
    # What is left are embeddings, norms, relative positions and coefficients.
    left = dict(model.named_parameters())
    assert 0 < sum(parameter.numel() for parameter in left.values()) < parameters / 2
    assert not any(parameter.requires_grad for parameter in left.values()) and not actual.requires_grad
    assert not any(isinstance(module, nn.Linear) for module in model.modules())
    # Projections of the same input are one product.
    for each in (module for module in model.modules() if isinstance(module, FewQueriesAttention)):
        assert list(each.joint_projections) == ["kv" if each.is_cross_attention else "qkv"]


@pytest.mark.skipif(not HAS_BFLOAT16, reason="the CPU has no products in bfloat16")
def test_packed_weights_in_bfloat16_have_the_same_numbers_to_its_rounding(batch, warned):
    form = {"decoder_solver": "rk2", "max_relative_position": 0}
    model = build(**form).bfloat16()
    expected = model(**batch).logits.float()
    exact = build(**form)(**batch).logits
    rounding = (expected - exact).std()
    actual = pack(model)(**batch).logits
    assert actual.dtype == torch.bfloat16 and not warned
    assert not any(isinstance(module, nn.Linear) for module in model.modules())
    assert 0 < rounding < 0.1 * exact.std()
    # As near to float32 as without packing.
    assert (actual.float() - exact).std() < 1.5 * rounding
    assert len(generate(model, batch)) == 3


def by_integers(x, weight, bias, levels):
    """Weights from -127 to 127 with a scale for each output; inputs from 0 to `levels`, zero being one of these."""
    x, weight, bias = x.double(), weight.double(), bias.double()
    weight_scale = weight.abs().amax(1, keepdim=True).clamp(min=1e-30) / 127
    low, high = min(x.min().item(), 0), max(x.max().item(), 0)
    scale = (high - low) / levels
    zero = round(-low / scale)
    integers = (x / scale + zero).round().clamp(0, levels) - zero
    return integers @ (weight / weight_scale).round().t() * (weight_scale.squeeze(1) * scale) + bias, scale


@pytest.mark.parametrize("rows, width, outputs, shift", [(1, 32, 61, 2.0), (7, 48, 96, 0.0), (64, 40, 32, -5.0)])
def test_products_of_8_bits_are_those_of_integers(rows, width, outputs, shift):
    torch.manual_seed(rows)
    linear = nn.Linear(width, outputs)
    linear.weight.data[0] *= 100
    linear.weight.data[1] = 0
    x = torch.randn(rows, width) + shift
    packed = Int8Linear([linear])
    actual = packed(x)
    levels = 127 if packed.reduce_range else 255
    expected, scale = by_integers(x, linear.weight.detach(), linear.bias.detach(), levels)
    error = (actual.double() - expected).abs()
    # An input at the border of two integers may have got the other one: that is one scale times a weight.
    weights = linear.weight.detach().double().abs()
    assert (error <= 2.1 * scale * weights.amax(1) + 1e-5).all()
    assert (error > 1e-4 * (1 + weights.amax(1))).double().mean() < 0.05
    # And the bound of the rounding: a scale of the input times the weights, half a scale of these times the input.
    exact = x.double() @ linear.weight.detach().double().t() + linear.bias.detach().double()
    bound = scale * weights.sum(1) + x.abs().max() * weights.amax(1) / 127 * width / 2
    assert ((actual.double() - exact).abs() <= 1.1 * bound + 1e-5).all()
    assert torch.equal(actual[:, 1], linear.bias[1].expand(rows)) and not torch.equal(actual.double(), exact)


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("packed_class", [OneDnnLinear, Int8Linear])
def test_a_joint_layer_has_the_outputs_of_each(packed_class, has_bias):
    torch.manual_seed(0)
    linears = [nn.Linear(24, size, bias=has_bias) for size in (8, 16, 40)]
    linears[1].weight.data *= 50
    # Views, as the parts of one matrix are.
    linears[2].weight = nn.Parameter(torch.randn(24, 40).t())
    x = torch.randn(3, 5, 24)
    joint = packed_class(linears)
    assert joint(x).shape == (3, 5, 64) and "in_features=24, out_features=64" in repr(joint)
    separate = torch.cat([packed_class([linear])(x) for linear in linears], -1)
    assert_close(joint(x), separate, scale=20)
    exact = torch.cat([linear(x) for linear in linears], -1).detach()
    error = (joint(x) - exact).view(-1, 64).std(0) / exact.view(-1, 64).std(0)
    assert error.max() < (0.05 if packed_class is Int8Linear else 1e-6)
    # Any layout of the inputs.
    transposed = x.transpose(0, 1)
    assert_close(joint(transposed), joint(x).transpose(0, 1))


@pytest.mark.parametrize("model_class", MODELS)
def test_the_model_of_8_bits_is_near(model_class, batch, warned):
    model = build(model_class)
    inputs = inputs_of(model, batch)
    expected = model(**inputs)[0].detach()
    assert optimize_for_cpu(model, "int8") is model and not warned
    actual = model(**inputs)[0]
    assert {type(module) for module in model.modules() if isinstance(module, PackedLinear)} == {Int8Linear}
    assert not any(isinstance(module, nn.Linear) for module in model.modules())
    error = (actual - expected).std() / expected.std()
    assert 1e-4 < error < 0.08
    if hasattr(model, "lm_head"):
        assert {len(row) for row in generate(model, batch)} == {9 if model_class is MODELS[0] else 14}


@pytest.mark.parametrize("weights", PACKED)
def test_a_packed_model_is_not_saved(weights, batch, tmp_path):
    model = optimize_for_cpu(build(), weights)
    with pytest.raises(RuntimeError, match=r"save it before optimize_for_cpu\(\)"):
        model.save_pretrained(tmp_path / "model")
    with pytest.raises(RuntimeError, match=r"save it before optimize_for_cpu\(\)"):
        model.state_dict()


@pytest.mark.parametrize(
    "weights, dtype, has_onednn, reason",
    [
        ("packed", torch.float16, True, "in torch.float16"),
        ("int8", torch.float64, True, "in torch.float64"),
        ("int8", torch.bfloat16, True, "in torch.bfloat16, and weights='int8' takes a model in float32"),
        ("packed", torch.float32, False, "no oneDNN"),
    ],
)
def test_what_cannot_be_packed_stays_with_a_warning(weights, dtype, has_onednn, reason, warned, monkeypatch):
    if not has_onednn:
        monkeypatch.setattr(cpu, "HAS_ONEDNN", False)
    model = build().to(dtype)
    before = dict(model.named_parameters())
    assert optimize_for_cpu(model, weights) is model
    assert len(warned) == 1 and "not packed" in warned[0] and reason in warned[0]
    after = dict(model.named_parameters())
    assert list(after) == list(before) and all(after[name] is before[name] for name in before)
    assert not any(isinstance(module, PackedLinear) for module in model.modules())
    assert list(model.state_dict())


@pytest.mark.parametrize("targets", [["q_proj", "v_proj"], ["out_proj", "fc1"], ["k_proj", "fc2", "lm_head"]], ids=str)
def test_a_model_with_an_adapter_generates_the_same(targets, batch, warned):
    peft = pytest.importorskip("peft")
    plain = generate(build(), batch)
    model = peft.get_peft_model(build(), peft.LoraConfig(target_modules=targets, init_lora_weights=False)).eval()
    source = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    expected, tokens = model(**batch).logits.detach(), model.generate(**source).tolist()
    assert tokens != plain
    pack(model)
    assert not warned
    assert any(isinstance(module, PackedLinear) for module in model.modules())
    assert_close(model(**batch).logits, expected, scale=2 * expected.abs().max().item())
    assert model.generate(**source).tolist() == tokens
    adapters = [each for name, each in model.named_modules() if name.endswith("lora_A.default")]
    assert adapters and all(isinstance(each, nn.Linear) for each in adapters)
    # Only where no projection has an adapter of its own are all joined.
    adapted = {"q_proj", "k_proj", "v_proj"} & set(targets)
    assert hasattr(model.base_model.model.model.encoder.layers[0].self_attn, "joint_projections") == (not adapted)


def test_layers_that_torchao_has_quantized_stay(batch):
    quantization = pytest.importorskip("torchao.quantization")
    model = build()
    is_quantized = lambda module, name: isinstance(module, nn.Linear) and "decoder.layers.0.fc" in name  # noqa: E731
    quantization.quantize_(model, quantization.Int8WeightOnlyConfig(version=2), filter_fn=is_quantized)
    expected = model(**batch).logits.detach()
    pack(model)
    layers = model.model.decoder.layers
    assert isinstance(layers[0].fc1, nn.Linear) and type(layers[1].fc1) is OneDnnLinear
    assert_close(model(**batch).logits, expected, scale=2 * expected.abs().max().item())


@pytest.mark.parametrize("weights", PACKED)
def test_a_packed_model_runs_under_autocast(weights, batch):
    model = optimize_for_cpu(build(), weights)
    expected = model(**batch).logits
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(**batch).logits
    assert (logits.float() - expected).std() < 0.1 * expected.std()
