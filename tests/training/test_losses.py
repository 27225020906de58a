# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The loss that is computed for a part of the tokens at a time."""

import pytest
import torch
from torch import nn

from modeling_ode_transformer import OdeTransformerForCausalLM, OdeTransformerForConditionalGeneration
from modeling_ode_transformer.training.losses import chunked_loss, has_chunkable_loss, summed_cross_entropy

from ..conftest import build
from ..operators import CountOperators


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("chunk_size", [1, 4, 11, 64])
def test_loss_and_gradients_are_those_of_torch(smoothing, has_bias, chunk_size):
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(11, 8, generator=generator, requires_grad=True)
    weight = torch.randn(13, 8, generator=generator, requires_grad=True)
    bias = torch.randn(13, generator=generator, requires_grad=True) if has_bias else None
    labels = torch.randint(13, (11,), generator=generator)
    labels[[0, 5]] = -100
    inputs = [each for each in (states, weight, bias) if each is not None]
    expected = nn.functional.cross_entropy(
        nn.functional.linear(states, weight, bias), labels, label_smoothing=smoothing, reduction="sum"
    )
    loss = summed_cross_entropy(states, weight, bias, labels, smoothing, chunk_size)
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
    for actual, each in zip(torch.autograd.grad(loss / 7, inputs), torch.autograd.grad(expected / 7, inputs)):
        torch.testing.assert_close(actual, each, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("model_class", [OdeTransformerForConditionalGeneration, OdeTransformerForCausalLM])
def test_a_model_trains_by_it_without_its_logits(model_class, batch):
    """Losses and gradients of tied weights as without; no tensor has the logits of all tokens."""
    model = build(model_class)
    labels = batch.pop("decoder_input_ids")
    labels[0, 4:] = -100
    inputs = {**batch, "decoder_input_ids": labels.clamp(min=1)}
    if model_class is OdeTransformerForCausalLM:
        inputs = {"input_ids": labels.clamp(min=1)}
    logits = model(**inputs).logits
    expected = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1) * 16 / 5
    expected.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad()
    assert has_chunkable_loss(model)
    with CountOperators() as counted, chunked_loss(model, 0.1, chunk_size=5):
        loss = model(**inputs, labels=labels, num_items_in_batch=5).loss
        loss.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-5, atol=1e-6)
    tokens = {shape[0] for _, shape in counted.calls if len(shape) == 2 and shape[1] == 61}
    assert tokens & {5} and 18 not in tokens
    assert not any(shape[-1:] == (61,) for _, shape in counted.calls if len(shape) == 3)
    assert torch.equal(model(**inputs).logits, logits)


def test_under_autocast_products_are_in_its_dtype():
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(40, 16, generator=generator, requires_grad=True)
    weight = torch.randn(23, 16, generator=generator, requires_grad=True)
    labels = torch.randint(23, (40,), generator=generator)
    with torch.autocast("cpu", torch.bfloat16):
        loss = summed_cross_entropy(states, weight, None, labels, 0.1, 16)
        logits = nn.functional.linear(states, weight)
    assert logits.dtype == torch.bfloat16
    expected = nn.functional.cross_entropy(logits.float(), labels, label_smoothing=0.1, reduction="sum")
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
    inputs = (states, weight)
    for actual, each in zip(torch.autograd.grad(loss, inputs), torch.autograd.grad(expected, inputs)):
        assert actual.dtype == each.dtype == torch.float32
        torch.testing.assert_close(actual, each, rtol=2e-2, atol=2e-2)
