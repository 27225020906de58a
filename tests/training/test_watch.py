# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Warnings of trainings that come to little: once, with numbers and a way out."""

import json

import pytest
import run_translation

from modeling_ode_transformer.training.watch import CoefficientWatch, warn_of_empty

from .runs import MODEL, arguments, losses


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


def test_a_stage_that_does_not_count_for_an_epoch(caplog):
    watch, lively = CoefficientWatch(), {"encoder_0_stage_1": 0.5, "encoder_0_stage_2": 0.5}
    dead = {"encoder_0_stage_1": 0.996, "encoder_0_stage_2": 0.004}
    for epoch, means in ((0.5, dead), (1.0, lively), (1.5, dead), (2.0, dead)):
        watch.look(means, epoch)
    assert warnings(caplog) == []
    for epoch in (2.5, 3.0, 3.5):
        watch.look(dead, epoch)
    (line,) = warnings(caplog)
    assert (
        "1 of 2 stages" in line and "(encoder_0_stage_2 0.4%)" in line and "encoder_coefficients=scaled_gate" in line
    )


def test_a_training_warns_of_its_own_coefficients(corpus, tmp_path, caplog):
    """Learned ones that start at those of a residual block and stay there, without --log_coefficients."""
    scheme = {"encoder_solver": "rk2", "encoder_coefficients": "learned", "coefficient_start": "euler"}
    options = {"do_eval": True, "eval_strategy": "epoch", "num_train_epochs": 2, "max_steps": None}
    options |= {"learning_rate": 0, "predict_with_generate": None, "config_overrides": json.dumps(MODEL | scheme)}
    run_translation.main(arguments(corpus, tmp_path / "out", **options))
    (line,) = [line for line in warnings(caplog) if "stages" in line]
    assert "1 of 2 stages" in line and "encoder_0_stage_2 0%" in line


def test_outputs_that_are_empty(caplog):
    assert not warn_of_empty(["a", ""], "test") and warnings(caplog) == []
    assert warn_of_empty(["a", "", " "], "test")
    assert "2 of 3 outputs for the test data are empty" in caplog.text and "--min_target_length 1" in caplog.text


def test_a_run_warns_of_empty_outputs_once(corpus, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("modeling_ode_transformer.training.tasks.seq2seq.decode", lambda ids, _: [""] * len(ids))
    options = {"do_eval": True, "do_predict": True, "eval_strategy": "steps", "eval_steps": 2}
    run_translation.main(arguments(corpus, tmp_path / "out", **options))
    assert len([line for line in warnings(caplog) if "are empty" in line]) == 1


def test_a_resumed_run_with_too_few_checkpoints_is_refused_before_training(corpus, tmp_path):
    """Those of before count where they are in its folder."""
    values = {"save_strategy": "steps", "save_steps": 2, "max_steps": 6}
    first, other = tmp_path / "first", tmp_path / "other"
    run_translation.main(arguments(corpus, first, **values | {"max_steps": 4}))
    resumed = values | {"resume_from_checkpoint": first / "checkpoint-4", "average_last_checkpoints": 2}
    with pytest.raises(ValueError, match="_checkpoints 2: the run of 6 updates will save 1 "):
        run_translation.main(arguments(corpus, other, **resumed))
    run_translation.main(arguments(corpus, first, **resumed))
    assert (first / "model.safetensors").is_file()
