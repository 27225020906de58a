# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""What a training step leaves out, and what it computes in fewer operations than formulas have."""

import pytest
import torch
from transformers import M2M100Config, M2M100ForConditionalGeneration

from modeling_ode_transformer import (
    OdeTransformerForCausalLM,
    OdeTransformerForConditionalGeneration,
    OdeTransformerModel,
    OdeTransformerRecurrenceForConditionalGeneration,
    integration_ode_transformer,
    layers_ode_transformer,
)
from modeling_ode_transformer.integration_ode_transformer import HISTORIES, KERNELS
from modeling_ode_transformer.kernels import LinearCombination
from modeling_ode_transformer.layers_ode_transformer import OdeTransformerRelativeKeys, relative_distances

from ..conftest import assert_close, build, tiny_config
from ..operators import CountOperators


@pytest.mark.parametrize(
    "model_class",
    [
        OdeTransformerModel,
        OdeTransformerForConditionalGeneration,
        OdeTransformerRecurrenceForConditionalGeneration,
        OdeTransformerForCausalLM,
    ],
)
def test_training_fills_a_cache_only_if_asked(model_class, batch):
    model = build(model_class)
    if model_class is OdeTransformerForCausalLM:
        batch = {"input_ids": batch["decoder_input_ids"]}
    assert model(**batch).past_key_values.get_seq_length() == 6
    model.train()
    assert model(**batch).past_key_values is None
    assert model(**batch, use_cache=True).past_key_values.get_seq_length() == 6
    cache = model(**batch, use_cache=True).past_key_values
    assert model(**batch, past_key_values=cache).past_key_values.get_seq_length() == 12


def test_generation_in_training_mode_uses_a_cache(batch):
    model = build(dropout=0.0, attention_dropout=0.0, activation_dropout=0.0)
    del batch["decoder_input_ids"]
    options = {"max_new_tokens": 5, "return_dict_in_generate": True}
    expected = model.generate(**batch, **options)
    outputs = model.train().generate(**batch, **options)
    assert torch.equal(outputs.sequences, expected.sequences)
    assert outputs.past_key_values.get_seq_length() == expected.past_key_values.get_seq_length() > 0


def test_one_product_combines_the_history_as_the_formula_does():
    """In float64, with gradients of gradients, and of states that the row is longer than."""
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(4, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    states = [torch.randn(2, 3, generator=generator, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    expected = sum(weight * state for weight, state in zip(matrix[2], states))
    assert_close(LinearCombination.apply(matrix, 2, *states), expected)

    def combined(matrix, *states):
        return LinearCombination.apply(matrix, 2, *states)

    assert torch.autograd.gradcheck(combined, (matrix, *states), check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(combined, (matrix, *states))


TWO_TERMS = [(0.5, 0.5), (0.25, 0.75), (0.0, 0.5), (1.0, -2.0)]


@pytest.mark.parametrize("weights", TWO_TERMS)
def test_a_step_of_float_weights_has_exactly_the_gradients_of_the_formula(weights):
    """A float32 state with bfloat16 stages, as under autocast, is compared bitwise; float64 by finite differences."""
    generator = torch.Generator().manual_seed(0)
    dtypes = torch.float32, torch.bfloat16, torch.bfloat16
    inputs = [torch.randn(5, 3, generator=generator).to(dtype).requires_grad_() for dtype in dtypes]
    direction = torch.randn(5, 3, generator=generator)
    found, expected = (
        torch.autograd.grad(function(inputs[0], weights, inputs[1:]), inputs, direction, allow_unused=True)
        for function in (KERNELS["add_terms"], integration_ode_transformer.add_terms)
    )
    for gradient, each in zip(found, expected):
        assert (gradient is each is None) or (gradient.dtype == each.dtype and torch.equal(gradient, each))
    output, directions = KERNELS["add_terms"](inputs[0], weights, inputs[1:]), torch.stack([direction, direction])
    batched = torch.autograd.grad(output, inputs, directions, is_grads_batched=True, allow_unused=True)
    for gradient, each in zip(batched, expected):
        assert (gradient is each is None) or torch.equal(gradient[1], each)

    def step(y, *terms):
        return KERNELS["add_terms"](y, weights, terms)

    inputs = [each.detach().double().requires_grad_() for each in inputs]
    assert torch.autograd.gradcheck(step, inputs, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(step, inputs)


def test_a_model_is_traced_with_gradients():
    """With plain operations: `torch.jit.trace` compares two traces."""
    model = build(encoder_coefficients="fixed", max_relative_position=3).eval()

    class Logits(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, ids, mask):
            return self.model(input_ids=ids, attention_mask=mask, decoder_input_ids=ids, use_cache=False).logits

    ids, mask = torch.randint(4, 61, (2, 5)), torch.tensor([[1] * 5, [1] * 3 + [0] * 2])
    traced = torch.jit.trace(Logits(), (ids, mask))
    assert_close(traced(ids, mask), Logits()(ids, mask))
    assert "SumOfFloatMultiples" not in str(traced.inlined_graph)


@pytest.mark.parametrize("length", [1, 3, 4, 9])
@pytest.mark.parametrize("has_mask", [False, True])
def test_relative_keys_have_the_gradients_of_a_gather(length, has_mask):
    """In float64: shorter than the largest distance, as long, and longer."""
    keys = OdeTransformerRelativeKeys(3, 4).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        keys.weight.copy_(torch.randn(7, 4, generator=generator))
    query = torch.randn(2, 2, length, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    mask = torch.randn(2, 1, length, length, generator=generator, dtype=torch.float64) if has_mask else None
    positions = torch.arange(length).unsqueeze(0)
    ordered = relative_distances(3, positions, positions)
    general = relative_distances(3, positions, positions.clone())
    assert ordered.shape == (length, length) and general.shape == (1, 1, length, length)
    weight = torch.randn(2, 2, length, length, generator=generator, dtype=torch.float64)
    inputs = (query, keys.weight)
    outputs = [keys(query, distances, mask) for distances in (ordered, general)]
    assert_close(*outputs)
    gradients, expected = (torch.autograd.grad((output * weight).sum(), inputs) for output in outputs)
    for gradient, each in zip(gradients, expected):
        torch.testing.assert_close(gradient, each, rtol=1e-12, atol=1e-12)

    def biases(query, weight):
        return torch.func.functional_call(keys, {"weight": weight}, (query, ordered, mask))

    assert torch.autograd.gradcheck(biases, inputs, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(biases, inputs)


def test_projections_of_one_input_share_its_conversion(batch):
    """Under autocast, conversions of states to bfloat16: one for each evaluation of a self-attention, a
    cross-attention and a feed-forward sublayer, one of the encoder's output, one before the output projection."""
    model = build().train()
    with CountOperators() as counted, torch.autocast("cpu", torch.bfloat16):
        model(**batch)
    converted = [shape for name, shape in counted.calls if name == "_to_copy" and len(shape) == 3 and shape[-1] == 32]
    encoder, decoder = 3 * 2 * 2, 2 * 3
    assert len(converted) == encoder + decoder + 1 + 1


def operators_of_a_step(model, batch) -> int:
    """Of forward and backward under autocast, at the base preset's depth; attention is that of a CPU."""
    with CountOperators() as counted, torch.autocast("cpu", torch.bfloat16):
        model.train()(**batch, labels=batch["decoder_input_ids"]).loss.backward()
    return len(counted.calls)


def test_a_training_step_has_as_many_operators_as_noted(batch):
    """A GPU waits for Python at each of them, whatever their size. A change of these numbers is to be noticed."""
    sizes = {"encoder_layers": 6, "decoder_layers": 6, "d_model": 32, "vocab_size": 100}
    sizes |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48}
    preset = {"max_relative_position": 8, "layer_history": "learned_dense", "decoder_solver": "euler"}
    models = {
        name: OdeTransformerForConditionalGeneration(tiny_config(**sizes, **preset, encoder_solver=solver, **kind))
        for name, solver, kind in (
            ("residual", "euler", {}),
            ("RK2", "rk2", {"encoder_coefficients": "fixed"}),
            ("RK2, gate", "rk2", {"encoder_coefficients": "gate"}),
        )
    }
    models["M2M100"] = M2M100ForConditionalGeneration(M2M100Config(**sizes))
    counts = {name: operators_of_a_step(model, batch) for name, model in models.items()}
    assert counts == {"residual": 2265, "RK2": 2991, "RK2, gate": 3131, "M2M100": 2272}


def gradients(model, batch) -> dict[str, torch.Tensor]:
    model.zero_grad()
    model(**batch, labels=batch["decoder_input_ids"]).loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def test_joined_projections_have_the_gradients_of_separate_ones(batch):
    """In float64; a hook, as adapters have, separates them and is called."""
    model = build(dropout=0.0, attention_dropout=0.0, activation_dropout=0.0).double().train()
    called = []

    joined = gradients(model, batch)
    for name, module in model.named_modules():
        if name.endswith(("q_proj", "k_proj", "v_proj")):
            module.register_forward_hook(lambda *args: called.append(1))
    separate = gradients(model, batch)
    encoder, decoder = 3 * 2 * 3, 2 * (3 + 3)
    assert len(called) == encoder + decoder
    for name, gradient in separate.items():
        torch.testing.assert_close(joined[name], gradient, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("history", HISTORIES)
def test_the_packages_kernels_have_the_gradients_of_those_that_travel(history, batch, monkeypatch):
    """In float64. A saved model that opens without the package computes with the plain functions."""
    inactive = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
    model = build(max_relative_position=3, layer_history=history, **inactive).double().train()
    plain = {name: getattr(integration_ode_transformer, name) for name in ("add_terms", "combine")}
    plain["biases"] = layers_ode_transformer.biases
    assert KERNELS.keys() == plain.keys() and not set(KERNELS.values()) & set(plain.values())

    found = gradients(model, batch)
    for name, function in plain.items():
        monkeypatch.setitem(KERNELS, name, function)
    for name, gradient in gradients(model, batch).items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", ["forward_pre_hook", "forward_hook", "full_backward_pre_hook", "full_backward_hook"])
def test_every_kind_of_hook_of_a_projection_is_called_in_training(kind, batch):
    called, model = [], build().train()
    projection = model.model.decoder.layers[0].self_attn.k_proj
    getattr(projection, f"register_{kind}")(lambda *args: called.append(kind))
    model(**batch, labels=batch["decoder_input_ids"]).loss.backward()
    assert called == [kind]
