# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""What a training step leaves out, and what it computes in fewer operations than formulas have."""

import pytest
import torch

from modeling_ode_transformer import (
    OdeTransformerForCausalLM,
    OdeTransformerForConditionalGeneration,
    OdeTransformerModel,
    OdeTransformerRecurrenceForConditionalGeneration,
)
from modeling_ode_transformer.integration_ode_transformer import LinearCombination
from modeling_ode_transformer.layers_ode_transformer import OdeTransformerRelativeKeys, relative_distances

from ..conftest import assert_close, build
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
