# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Batches that do not fit into memory are computed in parts, and the updates stay the same."""

import pytest
import torch

from ..conftest import WITHOUT_DROPOUT
from .test_trainer import loss_history, new_model, pairs, trainer_for


def with_room_for(rows, model):
    """From the second batch on, the gradient of more rows is out of memory, after parts of it were added up."""
    batches = []
    model.register_forward_pre_hook(lambda _, args, kwargs: batches.append(len(kwargs["input_ids"])), with_kwargs=True)

    def fail(gradient):
        if len(batches) > 1 and batches[-1] > rows:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    model.get_encoder().layers[0].fc1.weight.register_hook(fail)
    return model


def accumulating(folder, model, **values):
    """Updates of two batches of eight pairs."""
    defaults = {"max_steps": 4, "max_tokens_per_batch": 40, "gradient_accumulation_steps": 2, "learning_rate": 0.01}
    defaults |= {"lr_scheduler_type": "constant", "logging_steps": 1, "save_strategy": "steps", "save_steps": 2}
    return trainer_for(folder, model, pairs(48), **defaults | {"auto_find_batch_size": True} | values)


def test_parts_of_batches_make_the_same_updates(tmp_path, caplog):
    models = new_model(**WITHOUT_DROPOUT), with_room_for(3, new_model(**WITHOUT_DROPOUT))
    whole, parts = (accumulating(tmp_path / name, model, optim="sgd") for name, model in zip("ab", models))
    for trainer in (whole, parts):
        trainer.train()
    assert (whole.parts, parts.parts) == (1, 4)
    assert parts.args.gradient_accumulation_steps == 2 and parts.args.auto_find_batch_size
    for expected, found in zip(loss_history(whole), loss_history(parts), strict=True):
        assert found == pytest.approx(expected, rel=1e-4)
    for expected, found in zip(whole.model.parameters(), parts.model.parameters()):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)
    warnings = [each.getMessage() for each in caplog.records if "Out of memory" in each.getMessage()]
    assert ["update 1: from here on each batch is computed in 2 parts" in warnings[0], len(warnings)] == [True, 2]


def test_a_resumed_run_computes_in_as_many_parts(tmp_path):
    """Otherwise dropout would draw other masks."""
    whole = accumulating(tmp_path / "a", with_room_for(3, new_model(dropout=0.3)))
    whole.train()
    accumulating(tmp_path / "b", with_room_for(3, new_model(dropout=0.3)), max_steps=2).train()
    resumed = accumulating(tmp_path / "b", new_model(dropout=0.3))
    resumed.train(resume_from_checkpoint=True)
    assert resumed.parts == 4
    later = [each for each in loss_history(whole) if each["step"] > 2]
    assert [each["loss"] for each in loss_history(resumed)][2:] == [each["loss"] for each in later]


def test_one_pair_that_does_not_fit_ends_the_training(tmp_path):
    trainer = accumulating(tmp_path, with_room_for(0, new_model()))
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
        trainer.train()
    assert trainer.parts == 8
    trainer = accumulating(tmp_path, with_room_for(3, new_model()), auto_find_batch_size=False)
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
        trainer.train()
    assert trainer.parts == 1
