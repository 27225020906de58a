# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Warnings of trainings that come to little, with numbers and a way out."""

import pytest
import run_translation

from modeling_ode_transformer.training.watch import warn_of_empty

from .runs import arguments, losses


@pytest.fixture(autouse=True)
def notes(caplog):
    caplog.set_level("INFO", "modeling_ode_transformer")


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.name.endswith("training.watch")]


@pytest.mark.parametrize(("warmup", "warns"), [("4", True), ("9", True), ("3", False), ("0.5", False)])
def test_a_warm_up_as_long_as_the_run(warmup, warns, corpus, tmp_path, caplog):
    run_translation.main(arguments(corpus, tmp_path / "out", warmup_steps=warmup, lr_scheduler_type="inverse_sqrt"))
    found = [line for line in warnings(caplog) if "warm-up" in line]
    assert len(found) == warns
    assert not warns or f"The warm-up of {warmup} updates is not shorter than the run of 4" in found[0]


@pytest.mark.parametrize(
    ("values", "held"),
    [
        ({"save_strategy": "steps", "save_steps": 3, "max_steps": 7}, 3),
        ({"save_strategy": "epoch", "max_steps": None, "num_train_epochs": 2}, 2),
    ],
)
def test_too_few_checkpoints_are_refused_before_training(values, held, corpus, tmp_path):
    """And as many as there will be are averaged."""
    out = tmp_path / "out"
    with pytest.raises(
        ValueError, match=rf"_checkpoints {held + 1}: the run of \d+ updates will save {held} .*{held}\."
    ):
        run_translation.main(arguments(corpus, out, average_last_checkpoints=held + 1, **values))
    assert not (out / "trainer_state.json").exists() and not list(out.glob("checkpoint-*"))
    run_translation.main(arguments(corpus, out, average_last_checkpoints=held, **values))
    assert losses(out) and len(list(out.glob("checkpoint-*"))) == held


def test_outputs_that_are_empty(caplog):
    warn_of_empty(["a", ""], "test")
    assert warnings(caplog) == []
    warn_of_empty(["a", "", " "], "test")
    assert "2 of 3 outputs for the test data are empty" in caplog.text and "--min_target_length 1" in caplog.text
