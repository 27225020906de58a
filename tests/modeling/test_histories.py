# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Ways through depth: each history against its equation, written out, and against the function where it starts."""

from pathlib import Path

import pytest
import torch

from modeling_ode_transformer import OdeTransformerForConditionalGeneration, OdeTransformerModel
from modeling_ode_transformer.configuration_ode_transformer import CHOICES
from modeling_ode_transformer.layers_ode_transformer import mask_and_distances

from ..conftest import assert_close, build, randomize, tiny_config
from ..correctors import STACKS, difference
from .test_blocks import check_encoder, f, m2m100, reference_encoder


def model_and_reference(**fields):
    """A model in float64, every parameter off its default, and transformers' model with the weights of its blocks."""
    reference = m2m100()
    model = OdeTransformerForConditionalGeneration(tiny_config(max_relative_position=0, **fields))
    model = randomize(model).double()
    model.load_state_dict(reference.state_dict(), strict=False)
    return model, reference


@pytest.mark.parametrize("solver", ["euler", "rk2"])
def test_depth_weighted_is_a_sum_of_outputs_after_each_block(solver, full_batch):
    """DenseFormer: Y_i = sum_{j <= i} a_ij X_j with X_0 the embedding and X_j = block(Y_{j-1})."""
    model, reference = model_and_reference(layer_history="depth_weighted", encoder_solver=solver, coefficients="fixed")
    a = model.model.encoder.history.weight
    assert a.shape == (3, 4)
    outputs, y = [], []

    def step(layer, state):
        if not outputs:
            outputs.append(state)
        F1 = f(layer)(state)
        outputs.append(state + F1 if solver == "euler" else state + (F1 + f(layer)(state + F1)) / 2)
        y[:] = [sum(weight * X for weight, X in zip(a[len(outputs) - 2], outputs))]
        return y[0]

    check_encoder(model, reference, full_batch, step)


def attention_over_depth(values, query):
    """sum_i softmax_i(q . RMSNorm(v_i)) v_i"""
    V = torch.stack(values, dim=-2)  # (batch, length, values, d)
    norms = V / (V.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()
    return torch.einsum("bti,btid->btd", torch.softmax(norms @ query, dim=-1), V)


def test_attention_over_depth_is_that_of_the_increments(full_batch):
    """Attention Residuals: h_l = sum_i softmax_i(q_l . RMSNorm(v_i)) v_i, v_0 the embedding and v_i = F(h_i)."""
    model, reference = model_and_reference(layer_history="attention", encoder_solver="euler")
    queries = model.model.encoder.history.weight
    assert queries.shape == (3, 32)
    values = []

    def step(layer, state):
        if not values:
            values.append(state)
        values.append(f(layer)(state))
        return attention_over_depth(values, queries[len(values) - 2])

    check_encoder(model, reference, full_batch, step)
    # It starts as the mean.
    assert not OdeTransformerModel(tiny_config(layer_history="attention")).encoder.history.weight.any()


def test_dynamic_weights_are_those_of_the_last_output(full_batch):
    """MUDDFormer: Y_i = sum_{j <= i} (W GELU(V RMSNorm(X_i) + b) + c)_j X_j."""
    model, reference = model_and_reference(layer_history="dynamic_dense", encoder_solver="euler")
    history, outputs = model.model.encoder.history, []

    def step(layer, state):
        outputs.extend([] if outputs else [state])
        X = state + f(layer)(state)
        outputs.append(X)
        V, W = history.hidden[len(outputs) - 2], history.gates[len(outputs) - 2]
        assert W.weight.shape == (len(outputs), len(outputs))
        z = (X / (X.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()) @ V.weight.T + V.bias
        a = z * (1 + torch.erf(z / 2**0.5)) / 2 @ W.weight.T + W.bias
        return torch.einsum("btj,btjd->btd", a, torch.stack(outputs, dim=-2))

    check_encoder(model, reference, full_batch, step)


def test_attention_to_increments_is_added_to_the_state(full_batch):
    """Delta Attention Residuals: x_{l+1} = x_l + F(x_l + sum_i softmax_i(q_l . RMSNorm(v_i)) v_i)."""
    model, reference = model_and_reference(layer_history="delta_attention", encoder_solver="euler")
    queries = model.model.encoder.history.weight
    assert queries.shape == (2, 32)
    values = []

    def step(layer, state):
        values.extend([] if values else [state])
        read = state
        if len(values) > 1:
            read = state + attention_over_depth(values, queries[len(values) - 2])
        values.append(f(layer)(read))
        return state + values[-1]

    check_encoder(model, reference, full_batch, step)


def test_one_layer_attends_to_nothing_and_has_no_queries(batch):
    """Every parameter has a gradient, which DDP waits for; the layer reads the embedding, as without a history."""
    fields = {"encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}
    model = build(layer_history="delta_attention", **fields)
    plain = build(layer_history="none", **fields)
    plain.load_state_dict(model.state_dict())
    assert_close(model(**batch).logits, plain(**batch).logits)
    model(**batch).logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_hyper_connections_are_those_of_deepseek_v4(full_batch):
    """The streams, their collapse before a block and at the end, by transformers' own modules."""
    deepseek = pytest.importorskip("transformers.models.deepseek_v4.modeling_deepseek_v4")  # not in 5.20
    fields = {"layer_history": "hyper_connections", "encoder_solver": "rk2", "coefficients": "fixed"}
    model, reference = model_and_reference(**fields)
    history, streams = model.model.encoder.history, []
    config = deepseek.DeepseekV4Config(hidden_size=32, hc_mult=4, rms_norm_eps=1e-5)

    def connection(i):
        module = deepseek.DeepseekV4HyperConnection(config).double()
        mixer = history.mixers[i]
        module.load_state_dict({"fn": mixer.weight, "base": mixer.bias, "scale": torch.ones(3)})
        return module

    def step(layer, state):
        if not streams:
            streams.append(torch.stack([state] * 4, dim=2))
            state = connection(0)(streams[0])[2]
        post, comb, _ = connection(len(streams) - 1)(streams[-1])
        F = (f(layer)(state) + f(layer)(state + f(layer)(state))) / 2
        streams.append(post.unsqueeze(-1) * F.unsqueeze(2) + comb.transpose(2, 3) @ streams[-1])
        if len(streams) <= len(history.mixers):
            return connection(len(streams) - 1)(streams[-1])[2]
        head = deepseek.DeepseekV4HyperHead(config).double()
        head.load_state_dict({"hc_fn": history.head.weight, "hc_base": history.head.bias, "hc_scale": torch.ones(1)})
        return head(streams[-1])

    expected = reference_encoder(reference, full_batch, step)
    # transformers computes the mixtures in float32.
    found = model.model.encoder(full_batch["input_ids"]).last_hidden_state
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("history", ["depth_weighted", "dynamic_dense"])
def test_combinations_start_as_the_model_without_a_history(history, batch):
    model = OdeTransformerModel(tiny_config(layer_history=history)).eval()
    plain = OdeTransformerModel(tiny_config(layer_history="none")).eval()
    missing, unexpected = plain.load_state_dict(model.state_dict(), strict=False)
    assert not missing and all("history" in name for name in unexpected)
    assert_close(model(**batch).last_hidden_state, plain(**batch).last_hidden_state)
    if history == "depth_weighted":
        assert model.decoder.history.weight.tolist() == [[0, 1, 0], [0, 0, 1]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["attention", "dynamic_dense", "hyper_connections"])
def test_norms_over_depth_of_large_states_are_finite_in_half_precision(name, dtype):
    """Squares of 300 are beyond float16; the norms are computed in float32."""
    history = build(layer_history=name).model.encoder.history.to(dtype)
    y, states = torch.randn(1, 2, 32).to(dtype), [torch.full((1, 2, 32), 300.0, dtype=dtype)]
    states = history.extend(states, y, y + 1)
    output = history(states)
    assert output.dtype == dtype and output.isfinite().all()


RUNS = sorted((Path(__file__).parent.parent / "golden" / "correctors").glob("*.safetensors"))


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.stem)
def test_blocks_correct_their_steps_as_the_released_code_does(run, stack):
    assert len(RUNS) == 6 and difference(run, stack) <= 1e-6


@pytest.mark.parametrize("history", CHOICES["layer_history"])
def test_a_repeated_stack_is_the_stack_of_its_own_output(history, full_batch):
    """y -> stack(stack(y)), then the final norm, with one set of parameters and a new history each time."""
    once = build(layer_history=history).double()
    twice = OdeTransformerForConditionalGeneration(tiny_config(layer_history=history, stack_repeats=2)).double()
    twice.eval().load_state_dict(once.state_dict())
    encoder, ids = once.model.encoder, full_batch["input_ids"]
    ends = []
    hook = encoder.layer_norm.register_forward_pre_hook(lambda module, arguments: ends.append(arguments[0]))
    encoder(ids)
    positions = torch.arange(9)[None]
    _, distances = mask_and_distances(once.config, False, None, (positions, positions), ends[0])
    encoder.run_layers(ends[0], relative_distances=distances)
    hook.remove()
    assert_close(twice.model.encoder(ids).last_hidden_state, encoder.layer_norm(ends[1]))


def test_hidden_states_of_a_repeated_stack_are_counted_from_the_end(batch):
    encoder, sources = build(stack_repeats=2).model.encoder, (batch["input_ids"], batch["attention_mask"])
    last = encoder(*sources, output_hidden_states=[-1]).hidden_states
    assert [i for i, each in enumerate(last) if each is not None] == [6]
    assert_close(last[6], encoder(*sources, output_hidden_states=True).hidden_states[6])
