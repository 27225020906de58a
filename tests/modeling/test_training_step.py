# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""What a training step leaves out, and how many operations it has."""

import pytest
import torch
from transformers import M2M100Config, M2M100ForConditionalGeneration

import modeling_ode_transformer as ode

from ..conftest import build, tiny_config
from ..operators import CountOperators


@pytest.mark.parametrize(
    "model_class",
    [
        ode.OdeTransformerModel,
        ode.OdeTransformerForConditionalGeneration,
        ode.OdeTransformerRecurrenceForConditionalGeneration,
        ode.OdeTransformerForCausalLM,
    ],
)
def test_training_fills_a_cache_only_if_asked(model_class, batch):
    model = build(model_class)
    if model_class is ode.OdeTransformerForCausalLM:
        batch = {"input_ids": batch["decoder_input_ids"]}
    assert model(**batch).past_key_values.get_seq_length() == 6
    model.train()
    assert model(**batch).past_key_values is None
    assert model(**batch, use_cache=True).past_key_values.get_seq_length() == 6
    cache = model(**batch, use_cache=True).past_key_values
    assert model(**batch, past_key_values=cache).past_key_values.get_seq_length() == 12


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
        name: ode.OdeTransformerForConditionalGeneration(tiny_config(**sizes, **preset, encoder_solver=solver, **kind))
        for name, solver, kind in (
            ("residual", "euler", {}),
            ("RK2", "rk2", {"encoder_coefficients": "fixed"}),
            ("RK2, gate", "rk2", {"encoder_coefficients": "gate"}),
        )
    }
    kept = {"encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0}  # no layer is dropped by chance
    models["M2M100"] = M2M100ForConditionalGeneration(M2M100Config(**sizes, **kept))
    counts = {name: operators_of_a_step(model, batch) for name, model in models.items()}
    assert counts.pop("M2M100") == pytest.approx(2236, rel=0.02)  # 2272 with transformers 5.20
    assert counts == {"residual": 2709, "RK2": 3531, "RK2, gate": 3653}
