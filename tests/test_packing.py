# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Packed weights: against the same model before, and integer arithmetic by hand."""

import copy
import functools
import pickle

import pytest
import torch
from torch import nn

from modeling_ode_transformer import (
    OdeTransformerForCausalLM,
    OdeTransformerForConditionalGeneration,
    OdeTransformerModel,
    cpu_ode_transformer,
)
from modeling_ode_transformer.cpu_ode_transformer import (
    Int8Linear,
    OdeTransformerLinear,
    OneDnnLinear,
    PackedLinear,
)

from .conftest import assert_close, randomize, tiny_config


FORMS = [
    {},
    {"decoder_solver": "rk2", "max_relative_position": 0},
    {"vector_field": "macaron", "encoder_solver": "rk4", "coefficients": "learned"},
    {"encoder_solver": "leapfrog", "position_embedding_type": "learned", "tie_word_embeddings": False},
]
MODELS = (OdeTransformerForConditionalGeneration, OdeTransformerForCausalLM, OdeTransformerModel)
HAS_BFLOAT16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()


def build(model_class=OdeTransformerForConditionalGeneration, **fields):
    torch.manual_seed(0)
    model = randomize(model_class(tiny_config(**fields)))
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


@pytest.fixture
def warned(monkeypatch):
    messages = []
    monkeypatch.setattr(cpu_ode_transformer.logger, "warning", messages.append)
    return messages


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("model_class", MODELS)
def test_packed_weights_of_32_bits_have_the_same_numbers(model_class, form, batch, warned):
    model = build(model_class, **form).train()
    inputs = inputs_of(model, batch)
    expected = model.eval()(**inputs)[0].detach()
    searches = ({}, {"num_beams": 3}, {"num_beams": 3, "use_cache": False}) if hasattr(model, "lm_head") else ()
    tokens = [generate(model, batch, **options) for options in searches]
    parameters = sum(parameter.numel() for parameter in model.parameters())
    model.train()
    assert model.pack_for_inference() is model
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


@pytest.mark.parametrize("int8", [False, True])
def test_projections_of_the_same_input_are_joined(int8, batch):
    model = build()
    projections = {
        name: [layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj]
        for name, layer in (("encoder", model.model.encoder.layers[1]), ("decoder", model.model.decoder.layers[1]))
    }
    cross = model.model.decoder.layers[1].encoder_attn
    projections["cross"] = [cross.k_proj, cross.v_proj]
    x = torch.randn(2, 7, 32, generator=torch.Generator().manual_seed(0))
    expected = {name: torch.cat([each(x) for each in linears], -1) for name, linears in projections.items()}
    query = cross.q_proj(x)
    model.pack_for_inference(int8)
    packed_class = Int8Linear if int8 else OneDnnLinear
    for name in ("encoder", "decoder", "cross"):
        layer = model.model.encoder.layers[1] if name == "encoder" else model.model.decoder.layers[1]
        attention = layer.encoder_attn if name == "cross" else layer.self_attn
        names = "kv" if name == "cross" else "qkv"
        assert list(attention.joint_projections) == [names]
        joined = attention.joint_projections[names]
        assert type(joined) is packed_class
        assert (joined.in_features, joined.out_features) == (32, 32 * len(names))
        assert f"in_features=32, out_features={32 * len(names)}" in repr(joined)
        assert not any(hasattr(attention, f"{letter}_proj") for letter in names)
        assert_close(joined(x), expected[name], scale=1e4 if int8 else 1)
    assert type(cross.q_proj) is packed_class
    assert_close(cross.q_proj(x), query, scale=1e4 if int8 else 1)


@pytest.mark.skipif(not HAS_BFLOAT16, reason="the processor has no products in bfloat16")
@pytest.mark.parametrize("form", FORMS[:2], ids=str)
def test_packed_weights_in_bfloat16_have_the_same_numbers_to_its_rounding(form, batch, warned):
    model = build(**form).bfloat16()
    expected = model(**batch).logits.float()
    exact = build(**form)(**batch).logits
    rounding = (expected - exact).std()
    actual = model.pack_for_inference()(**batch).logits
    assert actual.dtype == torch.bfloat16 and not warned
    assert not any(isinstance(module, nn.Linear) for module in model.modules())
    assert 0 < rounding < 0.1 * exact.std()
    # As near to float32 as without packing.
    assert (actual.float() - exact).std() < 1.5 * rounding
    assert len(generate(model, batch, num_beams=3)) == 3


# In 8 bits


def by_integers(x, weight, bias, levels):
    """Weights from -127 to 127 with a scale for each output; inputs from 0 to `levels`, zero being one of these."""
    x, weight, bias = x.double(), weight.double(), bias.double()
    weight_scale = weight.abs().amax(1, keepdim=True).clamp(min=1e-30) / 127
    low, high = min(x.min().item(), 0), max(x.max().item(), 0)
    scale = (high - low) / levels
    zero = round(-low / scale)
    integers = (x / scale + zero).round().clamp(0, levels) - zero
    return integers @ (weight / weight_scale).round().t() * (weight_scale.squeeze(1) * scale) + bias, scale


@pytest.mark.parametrize("rows, width, outputs", [(1, 32, 61), (7, 48, 96), (64, 40, 32)])
@pytest.mark.parametrize("shift", [0.0, 2.0, -5.0])
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
    assert joint(x).shape == (3, 5, 64)
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
    assert model.pack_for_inference(int8=True) is model and not warned
    actual = model(**inputs)[0]
    assert {type(module) for module in model.modules() if isinstance(module, PackedLinear)} == {Int8Linear}
    assert not any(isinstance(module, nn.Linear) for module in model.modules())
    error = (actual - expected).std() / expected.std()
    assert 1e-4 < error < 0.08
    if hasattr(model, "lm_head"):
        assert {len(row) for row in generate(model, batch, num_beams=3)} == {9 if model_class is MODELS[0] else 14}


# What a packed model cannot do


@pytest.mark.parametrize("int8", [False, True])
def test_a_packed_model_is_neither_saved_nor_moved(int8, batch, tmp_path):
    model = build().pack_for_inference(int8)
    with pytest.raises(RuntimeError, match=r"save it before pack_for_inference\(\)"):
        model.save_pretrained(tmp_path / "model")
    with pytest.raises(RuntimeError, match=r"save it before pack_for_inference\(\)"):
        model.state_dict()
    moves = [
        lambda model: model.to("meta"),
        lambda model: model.half(),
        lambda model: model.to(torch.bfloat16),
        lambda model: model.double(),
    ]
    for move in moves:
        with pytest.raises(RuntimeError, match=r"move it before pack_for_inference\(\)"):
            move(build().pack_for_inference(int8))


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize(
    "move, reason",
    [
        (lambda model: model.half(), "in torch.float16"),
        (lambda model: model.double(), "in torch.float64"),
        (lambda model: model.to("meta"), "on meta, and only processors"),
    ],
    ids=["float16", "float64", "meta"],
)
def test_what_cannot_be_packed_stays_with_a_warning(move, reason, int8, warned):
    model = move(build())
    before = dict(model.named_parameters())
    assert model.pack_for_inference(int8) is model
    assert len(warned) == 1 and "not packed" in warned[0] and reason in warned[0]
    after = dict(model.named_parameters())
    assert list(after) == list(before) and all(after[name] is before[name] for name in before)
    assert not any(isinstance(module, PackedLinear) for module in model.modules())
    assert list(model.state_dict())


def test_8_bits_are_made_of_float32_only(batch, warned):
    model = build().bfloat16()
    expected = model(**batch).logits
    model.pack_for_inference(int8=True)
    assert len(warned) == 1 and "in torch.bfloat16, and int8=True takes a model in float32" in warned[0]
    assert torch.equal(model(**batch).logits, expected)


def test_a_model_in_two_dtypes_stays(warned):
    model = build()
    model.lm_head.to(torch.bfloat16)
    model.pack_for_inference()
    assert len(warned) == 1 and "torch.bfloat16, torch.float32" in warned[0]


def test_without_onednn_all_stays(monkeypatch, warned):
    monkeypatch.setattr(cpu_ode_transformer, "HAS_ONEDNN", False)
    model = build().pack_for_inference()
    assert len(warned) == 1 and "no oneDNN" in warned[0]
    assert not any(isinstance(module, PackedLinear) for module in model.modules())


# Weights that are not the model's own


@pytest.mark.parametrize("targets", [["q_proj", "v_proj"], ["out_proj", "fc1"], ["k_proj", "fc2", "lm_head"]], ids=str)
def test_a_model_with_an_adapter_generates_the_same(targets, batch, warned):
    peft = pytest.importorskip("peft")
    plain = generate(build(), batch, num_beams=3)
    model = peft.get_peft_model(build(), peft.LoraConfig(target_modules=targets, init_lora_weights=False)).eval()
    source = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"], "num_beams": 3}
    expected, tokens = model(**batch).logits.detach(), model.generate(**source).tolist()
    assert tokens != plain
    model.pack_for_inference()
    assert not warned
    assert any(isinstance(module, PackedLinear) for module in model.modules())
    assert_close(model(**batch).logits, expected, scale=2 * expected.abs().max().item())
    assert model.generate(**source).tolist() == tokens
    # Only where no projection has an adapter of its own are all joined.
    adapted = {"q_proj", "k_proj", "v_proj"} & set(targets)
    assert bool(model.base_model.model.model.encoder.layers[0].self_attn.joint_projections) == (not adapted)


def test_layers_that_torchao_has_quantized_stay(batch):
    quantization = pytest.importorskip("torchao.quantization")
    model = build()
    is_quantized = lambda module, name: isinstance(module, nn.Linear) and "decoder.layers.0.fc" in name  # noqa: E731
    quantization.quantize_(model, quantization.Int8WeightOnlyConfig(version=2), filter_fn=is_quantized)
    expected = model(**batch).logits.detach()
    model.pack_for_inference()
    layers = model.model.decoder.layers
    assert type(layers[0].fc1) is OdeTransformerLinear and type(layers[1].fc1) is OneDnnLinear
    assert_close(model(**batch).logits, expected, scale=2 * expected.abs().max().item())


class OwnParameter(nn.Parameter):
    """As the weight of a quantizer is."""


def test_a_weight_of_another_class_stays(batch):
    model = build()
    expected = model(**batch).logits.detach()
    layer = model.model.decoder.layers[0]
    layer.fc1.weight = OwnParameter(layer.fc1.weight.detach())
    layer.self_attn.k_proj.weight = OwnParameter(layer.self_attn.k_proj.weight.detach())
    model.pack_for_inference()
    assert type(layer.fc1) is OdeTransformerLinear and type(layer.fc2) is OneDnnLinear
    assert isinstance(layer.self_attn.k_proj, nn.Linear) and type(layer.self_attn.q_proj) is OneDnnLinear
    assert not layer.self_attn.joint_projections and layer.encoder_attn.joint_projections
    assert_close(model(**batch).logits, expected, scale=2 * expected.abs().max().item())


@pytest.mark.parametrize("int8", [False, True])
def test_adapters_stay(int8, batch):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(target_modules=["out_proj"], init_lora_weights=False)
    model = peft.get_peft_model(build(), config).eval()
    model.pack_for_inference(int8)
    model(**batch)
    assert type(model.base_model.model.model.encoder.layers[0].self_attn.out_proj.lora_A["default"]) is nn.Linear


@pytest.mark.parametrize("move", [lambda model: model.half(), lambda model: model.to(torch.float64)])
def test_a_refused_move_changes_nothing(move, batch):
    model = build().pack_for_inference()
    expected = model(**batch).logits
    with pytest.raises(RuntimeError, match="before pack_for_inference"):
        move(model)
    assert torch.equal(model(**batch).logits, expected)


def test_packing_twice_is_packing_once(batch):
    model = build().pack_for_inference()
    expected = model(**batch).logits
    assert torch.equal(model.pack_for_inference()(**batch).logits, expected)


@pytest.mark.parametrize("int8", [False, True])
def test_a_packed_model_runs_under_autocast(int8, batch):
    model = build().pack_for_inference(int8)
    expected = model(**batch).logits
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(**batch).logits
    assert (logits.float() - expected).std() < 0.1 * expected.std()


@pytest.mark.parametrize("copied", [copy.deepcopy, pickle.dumps])
def test_a_packed_model_is_not_copied(copied):
    with pytest.raises(RuntimeError, match="cannot be copied or pickled"):
        copied(build().pack_for_inference())


# Linear layers that are not packed


@pytest.fixture
def onednn_calls(monkeypatch):
    """The products that layers of this machine would leave to oneDNN on an x86 processor, as they are called."""
    calls = []
    product = cpu_ode_transformer.onednn_linear
    monkeypatch.setattr(cpu_ode_transformer, "HAS_ONEDNN", True)
    monkeypatch.setattr(cpu_ode_transformer, "IS_X86", True)
    monkeypatch.setattr(cpu_ode_transformer, "onednn_linear", lambda *args: calls.append(args) or product(*args))
    return calls


def inputs_of_a_layer():
    """Inputs of 48 features, whose memory is laid out in several ways."""
    return torch.randn(5, 3, 48), torch.randn(7, 96)[:, ::2], torch.randn(4, 9, 48)[:, -1:], torch.randn(0, 48)


@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_has_the_numbers_of_nn_linear(bias, onednn_calls):
    layer = OdeTransformerLinear(48, 70, bias=bias)
    for x in inputs_of_a_layer():
        expected = x.double() @ layer.weight.double().T + (layer.bias.double() if bias else 0)
        with torch.no_grad():
            assert torch.allclose(layer(x).double(), expected, atol=1e-5)
        assert torch.allclose(layer(x).double(), expected, atol=1e-5)
    assert len(onednn_calls) == 6


@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_has_the_gradients_of_nn_linear(bias, onednn_calls):
    layer = OdeTransformerLinear(48, 70, bias=bias)
    reference = copy.deepcopy(layer).double()
    for x in inputs_of_a_layer():
        for is_leaf in (True, False):
            for expand in (True, False):
                # The gradient of a sum is one number, expanded.
                weights = torch.ones(()) if expand else torch.randn(70, *x.shape[:-1]).movedim(0, -1)
                ours, theirs = x.clone().requires_grad_(is_leaf), x.double().requires_grad_(is_leaf)
                (layer(ours) * weights).sum().backward()
                nn.Linear.forward(reference, theirs).mul(weights.double()).sum().backward()
                pairs = [*zip(layer.parameters(), reference.parameters()), *([(ours, theirs)] if is_leaf else [])]
                for given, expected in pairs:
                    assert torch.allclose(given.grad.double(), expected.grad, atol=1e-5)
                layer.zero_grad()
                reference.zero_grad()
    assert onednn_calls


@pytest.mark.parametrize("shape", [(48,), (5, 48), (5, 3, 48)], ids=str)
def test_what_a_layer_returns_may_be_changed_in_place(shape, onednn_calls):
    layer, x = OdeTransformerLinear(48, 7), torch.randn(shape, requires_grad=True)
    gradients = []
    for forward in (layer, functools.partial(nn.Linear.forward, layer)):
        y = forward(x)
        y[..., 2] = 0
        y[..., 3:].mul_(2)
        gradients.append(torch.autograd.grad(y.tanh().sum(), [x, *layer.parameters()]))
    assert all(torch.allclose(given, expected, atol=1e-5) for given, expected in zip(*gradients))
    assert onednn_calls


def test_gradients_of_gradients_and_of_each_example(onednn_calls):
    layer, x = OdeTransformerLinear(6, 4), torch.randn(3, 6, requires_grad=True)
    plain = functools.partial(nn.Linear.forward, layer)
    norms = []
    for forward in (layer, plain):
        (gradient,) = torch.autograd.grad(forward(x).tanh().sum(), x, create_graph=True)
        norms.append(torch.autograd.grad(gradient.square().sum(), [x, *layer.parameters()]))
    assert all(torch.allclose(given, expected, atol=1e-6) for given, expected in zip(*norms))
    parameters = dict(layer.named_parameters())

    def loss(parameters, row):
        return torch.func.functional_call(layer, parameters, row).square().sum()

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x.detach())
    for row, gradient in zip(x.detach(), each["weight"]):
        (expected,) = torch.autograd.grad(plain(row).square().sum(), layer.weight)
        assert torch.allclose(gradient, expected, atol=1e-5)


def test_a_layer_multiplies_by_onednn_only_where_that_can(onednn_calls):
    layer, x = OdeTransformerLinear(8, 4), torch.randn(2, 8)
    with torch.autocast("cpu", torch.bfloat16):
        layer(x).sum().backward()
    for enabled in (False, True):
        with torch.set_grad_enabled(enabled):
            layer.double()(x.double())
            layer.bfloat16()(x.bfloat16())
            layer.float()
            layer(x[:0])
            torch.jit.trace(layer, x, check_trace=False)
            torch.export.export(layer, (x,))
            with torch.autocast("cpu", torch.bfloat16):
                assert layer(x).dtype == torch.bfloat16
            assert not onednn_calls
            layer(x)
            assert len(onednn_calls) == 1
            onednn_calls.clear()
    layer(x.requires_grad_()).sum().backward()
    assert len(onednn_calls) == 2  # the output and the input's gradient


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_a_relu_becomes_a_part_of_the_product_before_it(activation, int8, batch):
    model = build(activation_function=activation, vector_field="macaron")
    expected = model(**batch).logits.detach()
    model.pack_for_inference(int8)
    layer = model.model.decoder.layers[0]
    assert isinstance(layer.activation_fn, nn.Identity) == (activation == "relu")
    assert layer.fc1.rectify == layer.macaron_fc1.rectify == (activation == "relu") and not layer.fc2.rectify
    assert (model(**batch).logits - expected).std() < (0.1 if int8 else 1e-5) * expected.std()
