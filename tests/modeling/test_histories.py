# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Ways through depth: each history against its equation, written out, and against the function where it starts."""

import pytest
import torch

from modeling_ode_transformer import OdeTransformerForConditionalGeneration, OdeTransformerModel
from modeling_ode_transformer.configuration_ode_transformer import CHOICES

from ..conftest import assert_close, build, randomize, tiny_config
from .test_blocks import f, full_batch, m2m100, reference_encoder  # noqa: F401 (a fixture)


def model_and_reference(**fields):
    """A model in float64, every parameter off its default, and transformers' model with the weights of its blocks."""
    reference = m2m100()
    model = OdeTransformerForConditionalGeneration(tiny_config(max_relative_position=0, **fields))
    model = randomize(model).double()
    model.load_state_dict(reference.state_dict(), strict=False)
    return model, reference


@pytest.mark.parametrize("solver", ["euler", "rk2"])
def test_depth_weighted_is_a_sum_of_outputs_after_each_block(solver, full_batch):  # noqa: F811
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

    expected = reference_encoder(reference, full_batch, step)
    assert_close(model.model.encoder(full_batch["input_ids"]).last_hidden_state, expected)


def test_attention_over_depth_is_that_of_the_increments(full_batch):  # noqa: F811
    """Attention Residuals: h_l = sum_i softmax_i(q_l . RMSNorm(v_i)) v_i, v_0 the embedding and v_i = F(h_i)."""
    model, reference = model_and_reference(layer_history="attention", encoder_solver="euler")
    queries = model.model.encoder.history.weight
    assert queries.shape == (3, 32)
    values = []

    def step(layer, state):
        if not values:
            values.append(state)
        values.append(f(layer)(state))
        V = torch.stack(values, dim=-2)  # (batch, length, values, d)
        norms = V / (V.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()
        weights = torch.softmax(norms @ queries[len(values) - 2], dim=-1)
        return torch.einsum("bti,btid->btd", weights, V)

    expected = reference_encoder(reference, full_batch, step)
    assert_close(model.model.encoder(full_batch["input_ids"]).last_hidden_state, expected)


def test_depth_weighted_starts_as_the_model_without_a_history(batch):
    model = OdeTransformerModel(tiny_config(layer_history="depth_weighted")).eval()
    plain = OdeTransformerModel(tiny_config(layer_history="none")).eval()
    missing, unexpected = plain.load_state_dict(model.state_dict(), strict=False)
    assert not missing and all("history" in name for name in unexpected)
    assert_close(model(**batch).last_hidden_state, plain(**batch).last_hidden_state)
    assert model.decoder.history.weight.tolist() == [[0, 1, 0], [0, 0, 1]]


def test_attention_over_depth_starts_as_the_mean_of_the_embedding_and_the_increments(full_batch):  # noqa: F811
    """Block l gets (v_0 + ... + v_{l-1}) / l."""
    reference = m2m100()
    config = tiny_config(max_relative_position=0, layer_history="attention", encoder_solver="euler")
    model = OdeTransformerForConditionalGeneration(config).double().eval()
    model.load_state_dict(reference.state_dict(), strict=False)
    values = []

    def step(layer, state):
        values.extend([] if values else [state])
        values.append(f(layer)(state))
        return sum(values) / len(values)

    expected = reference_encoder(reference, full_batch, step)
    assert_close(model.model.encoder(full_batch["input_ids"]).last_hidden_state, expected)
    assert not model.model.encoder.history.weight.any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scores_over_depth_of_large_states_are_finite_in_half_precision(dtype):
    """Squares of 300 are beyond float16; the scores are computed in float32."""
    history = build(layer_history="attention").model.encoder.history.to(dtype)
    states = [torch.full((1, 2, 32), 300.0, dtype=dtype), torch.randn(1, 2, 32).to(dtype)]
    output = history(states)
    assert output.dtype == dtype and output.isfinite().all()


@pytest.mark.parametrize("history", CHOICES["layer_history"])
def test_histories_are_saved_and_open_with_their_numbers(history, tmp_path, batch):
    model = build(layer_history=history)
    model.save_pretrained(tmp_path)
    loaded = OdeTransformerForConditionalGeneration.from_pretrained(tmp_path)
    assert loaded.config.layer_history == history
    assert_close(loaded(**batch).logits, model(**batch).logits)
