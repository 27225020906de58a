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

from ..conftest import build


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
