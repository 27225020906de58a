# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Kernels: against PyTorch's, float64, and statistics of random numbers."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from transformers import DynamicCache, EncoderDecoderCache
from transformers.loss.loss_utils import ForCausalLMLoss

from modeling_ode_transformer import OdeTransformerForCausalLM
from modeling_ode_transformer.inference import cpu
from modeling_ode_transformer.inference.cpu import dropout, language_model_loss, optimize_for_cpu

from ..conftest import assert_close, build
from ..operators import CountOperators
from .conftest import optimized


def fast(*args, **kwargs):
    return optimize_for_cpu(nn.Linear(*args, **kwargs))


@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_has_the_numbers_of_nn_linear(bias, onednn_calls):
    layer = fast(48, 70, bias=bias)
    layouts = torch.randn(5, 3, 48), torch.randn(7, 96)[:, ::2], torch.randn(4, 9, 48)[:, -1:], torch.randn(0, 48)
    for x in layouts:
        expected = x.double() @ layer.weight.double().T + (layer.bias.double() if bias else 0)
        for enabled in (False, True):  # with gradients it is nn.Linear itself
            with torch.set_grad_enabled(enabled):
                assert torch.allclose(layer(x).double(), expected, atol=1e-5)
    assert len(onednn_calls) == 3


def test_a_layer_multiplies_by_onednn_only_where_that_can(onednn_calls):
    layer, x = fast(8, 4), torch.randn(2, 8)
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
    with torch.no_grad():
        layer(torch.randn(65, 8))
        assert not onednn_calls
        layer(torch.randn(8, 8, 8))
    assert len(onednn_calls) == 1
    layer(x.requires_grad_()).sum().backward()
    assert len(onednn_calls) == 1


@pytest.mark.skipif(not cpu.HAS_ONEDNN, reason="this PyTorch has no oneDNN")
@pytest.mark.parametrize("packed, most", [(False, 22), (True, 46)])
def test_onednn_sees_few_numbers_of_rows_whatever_the_lengths(packed, most):
    """It keeps code for each, so that memory would grow with the number of shapes."""
    layer = nn.Linear(3, 5)
    product = cpu.OneDnnLinear([layer]) if packed else partial(cpu.fast_linear, weight=layer.weight, bias=None)
    with torch.no_grad(), CountOperators() as operators:
        for rows in range(1, 4097):
            assert product(torch.zeros(rows, 3)).shape == (rows, 5)
    shapes = {shape for name, shape in operators.calls if "linear_pointwise" in name}
    assert len(shapes) == most and max(rows for rows, _ in shapes) == (4096 if packed else 64)


def test_forward_mode_derivatives_are_those_of_backpropagation(batch):
    """oneDNN's products have none."""
    model = optimized(attn_implementation="eager")
    x = torch.randn(3, 5, model.config.d_model, requires_grad=True)
    mask = torch.ones(3, 5, dtype=torch.long)
    logits = model(inputs_embeds=x, attention_mask=mask, decoder_input_ids=batch["decoder_input_ids"]).logits
    direction, weights = torch.randn_like(x), torch.randn_like(logits)
    expected = (torch.autograd.grad(logits, x, weights)[0] * direction).sum().item()
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients), forward_ad.dual_level():
            dual = forward_ad.make_dual(x.detach(), direction)
            outputs = model(inputs_embeds=dual, attention_mask=mask, decoder_input_ids=batch["decoder_input_ids"])
            tangent = forward_ad.unpack_dual(outputs.logits).tangent
        assert (tangent * weights).sum().item() == pytest.approx(expected, rel=1e-4)


@pytest.fixture
def attention_calls(monkeypatch):
    calls, function = [], cpu.few_queries_attention
    monkeypatch.setattr(cpu, "few_queries_attention", lambda *args: calls.append(args) or function(*args))
    return calls


@pytest.mark.parametrize("max_relative_position", [0, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_queries_at_one_position_attend_as_before(max_relative_position, dtype, attention_calls):
    """As a beam search has them: five hypotheses of a source, each of which sees the entries of its own."""
    model = build(max_relative_position=max_relative_position).to(dtype)
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(16, 7, 32, generator=generator).to(dtype)
    source_mask = torch.arange(7) < torch.randint(1, 8, (16, 1), generator=generator)
    prompt, ids = (torch.randint(4, 61, (16, length), generator=generator) for length in (4, 5))
    visible = torch.rand(16, 1, 5, 9, generator=generator) < 0.5
    visible[:, :, :, 4:] = torch.eye(5, dtype=torch.bool)
    results = []
    for _ in range(2):
        cache = EncoderDecoderCache(DynamicCache(config=model.config), DynamicCache(config=model.config))
        options = {"encoder_hidden_states": states, "encoder_attention_mask": source_mask, "past_key_values": cache}
        model.model.decoder(prompt, **options)
        attention_calls.clear()
        outputs = model.model.decoder(ids, attention_mask=visible, position_ids=torch.full((16, 5), 4), **options)
        results.append(outputs.last_hidden_state)
        optimize_for_cpu(model)
    assert len(attention_calls) == 2 * model.config.decoder_layers
    assert_close(results[1], results[0])


@pytest.mark.parametrize("max_relative_position", [0, 3])
def test_attention_of_few_queries_has_no_gradients_and_no_dropout(max_relative_position, batch, attention_calls):
    model = optimized(max_relative_position=max_relative_position, dropout=0.1, attention_dropout=0.1)
    ids = torch.randint(4, 61, (16, 6), generator=torch.Generator().manual_seed(0))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "decoder_input_ids": ids}
    expected = model(**inputs).logits
    model.train()
    with torch.no_grad():
        model(**inputs)
        model.eval()
        assert not attention_calls
        for implementation in ("eager", "sdpa"):
            model.set_attn_implementation(implementation)
            assert_close(model(**inputs).logits, expected, scale=10)
            assert bool(attention_calls) == (implementation == "sdpa")
        # Enough of the keys for the fused kernel, and a single query.
        for shape in ((16, 40), (16, 1), (1, 6)):
            attention_calls.clear()
            model.model.encoder(torch.full(shape, 5))
            assert not attention_calls


@pytest.mark.parametrize(
    "vocab_size, dtype, number",
    [
        (5, torch.float32, None),
        (5, torch.bfloat16, torch.tensor(7)),
        (2**18 - 1, torch.float32, 7),  # parts of two tokens
        (2**19 + 1, torch.bfloat16, None),  # parts of one
    ],
)
def test_loss_and_gradients_are_those_of_transformers(vocab_size, dtype, number):
    logits = torch.randn(1, 7, vocab_size, dtype=dtype)
    labels = torch.randint(vocab_size, (1, 7))
    labels[0, 3] = -100
    results = []
    for function in (language_model_loss, ForCausalLMLoss):
        leaf = logits.clone().requires_grad_()
        loss = function(logits=leaf, labels=labels, vocab_size=vocab_size, num_items_in_batch=number)
        loss.backward()
        results.append((loss, leaf.grad))
    (loss, gradient), (expected, expected_gradient) = results
    assert loss.dtype == torch.float32 and gradient.dtype == dtype
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    assert torch.allclose(gradient, expected_gradient, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-9)


@pytest.mark.parametrize("kept", [15, 30])
def test_labels_that_are_not_those_of_the_logits_are_refused(kept):
    """With a vocabulary so large that the loss comes in parts, of which these logits fill some."""
    model = optimized(OdeTransformerForCausalLM, vocab_size=34040)
    ids = torch.randint(4, 1000, (1, 31))
    with pytest.raises(ValueError, match=f"Logits of {kept} tokens need as many labels, not .31,"):
        model(ids, labels=ids, logits_to_keep=kept)


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5])
def test_dropout_zeroes_the_share_p_and_keeps_the_mean(p):
    torch.manual_seed(0)
    x = torch.randn(7, 14285).exp()
    output = dropout(x, p, True)
    sigma = (p * (1 - p) / x.numel()) ** 0.5
    assert abs((output == 0).double().mean().item() - p) < 5 * sigma
    ones = dropout(torch.ones(99991), p, True)
    assert abs(ones.double().mean().item() - 1) < 5 * sigma / (1 - p)
    scale = 1 / (1 - round(p * 2**16) / 2**16)
    kept = output != 0
    assert torch.equal(output[kept], x[kept] * scale) and set(ones.tolist()) == {0, torch.tensor(scale).item()}
    # Masks of rows, columns and calls have nothing to do with each other.
    again = dropout(x, p, True) != 0
    for other in (again, kept.roll(1, 0), kept.roll(1, 1), kept.roll(4, 1)):
        both = ((p - kept.logical_not().double()) * (p - other.logical_not().double())).mean().item()
        assert abs(both) < 5 * p * (1 - p) / x.numel() ** 0.5
    # The last of the 16 bits counts, too: 2**-16 of a million entries are about 16.
    assert 0 < (dropout(torch.ones(2**20), 2**-16, True) == 0).sum() < 40


def test_dropout_is_reproduced_by_the_seed():
    x = torch.ones(40, 50)
    masks = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        masks.append([dropout(x, 0.4, True) for _ in range(2)])
    assert torch.equal(masks[0][0], masks[1][0]) and torch.equal(masks[0][1], masks[1][1])
    assert not torch.equal(masks[0][0], masks[0][1]) and not torch.equal(masks[0][0], masks[2][0])


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 0), (5, 7), (2, 3, 5), (4, 4)])
def test_dropout_takes_any_size_and_layout(shape):
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    for each in (x, x.mT if x.ndim > 1 else x):
        output = dropout(each, 0.3, True)
        assert output.shape == each.shape
        (gradient,) = torch.autograd.grad((3 * output).sum(), x)
        scale = 1 / (1 - round(0.3 * 2**16) / 2**16)
        expected = 3 * scale * (output != 0).double()
        assert torch.equal(gradient, expected if each is x else expected.mT)
        assert torch.equal(output, each * (output != 0) * scale)
    assert dropout(x, 0.0, True) is x and dropout(x, 0.5, False) is x and not dropout(x, 1.0, True).any()


def test_attention_to_few_keys_is_computed_in_float32_under_autocast(monkeypatch):
    """Of any model: here Llama's rotated queries are in float32 and its values in bfloat16."""
    monkeypatch.setattr(cpu, "MOST_KEYS", 6)
    key = torch.randn(2, 3, 6, 8, dtype=torch.bfloat16)
    query, value, mask = torch.randn(2, 3, 5, 8), torch.randn_like(key), torch.randn(2, 1, 5, 6, dtype=torch.bfloat16)
    original = nn.functional.scaled_dot_product_attention
    with torch.autocast("cpu", torch.bfloat16), cpu.attention_in_float32():
        attend = nn.functional.scaled_dot_product_attention
        wide = attend(query, key, value, attn_mask=mask)
        assert torch.equal(attend(value=value, query=query, key=key, attn_mask=mask), wide)
        longer = attend(query, *(torch.cat([x, x], dim=2) for x in (key, value)))
    assert longer.dtype == torch.bfloat16 and wide.dtype == torch.float32
    scores = query.double() @ key.double().mT / 8**0.5 + mask.double()
    assert_close(wide, (scores.softmax(-1) @ value.double()).float())
    with cpu.attention_in_float32():
        assert nn.functional.scaled_dot_product_attention(key, key, key).dtype == torch.bfloat16  # no autocast
    assert nn.functional.scaled_dot_product_attention is original
