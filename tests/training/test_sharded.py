# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Sharded checkpoints of FSDP2: a training of two processes, resumed and averaged."""

import json
import shutil

import pytest
import run_translation
import torch
from transformers import AutoModelForSeq2SeqLM

from modeling_ode_transformer.training.average import average_checkpoints
from modeling_ode_transformer.training.checkpoints import incomplete_reason

from .runs import MODEL, arguments, losses
from .test_resumption import LAUNCHERS, train_in_two_processes


LAUNCHER = ["SHARDED_STATE_DICT" if word == "FULL_STATE_DICT" else word for word in LAUNCHERS["FSDP"]]


def weights(folder):
    return AutoModelForSeq2SeqLM.from_pretrained(folder).state_dict()


def test_sharded_checkpoints_are_resumed_from_and_averaged(corpus, tmp_path):
    """Two processes, stopped after the first of two checkpoints, have losses, tokens and averages of one process."""
    fields = dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.0)
    values = {"config_overrides": json.dumps(MODEL | fields), "max_tokens_per_batch": 300, "do_predict": True}
    values |= {"train_sampling_strategy": None, "per_device_train_batch_size": None}
    values |= {"save_strategy": "steps", "save_steps": 2, "max_steps": 4, "average_last_checkpoints": 0}
    one, two = tmp_path / "one", tmp_path / "two"
    run_translation.main(arguments(corpus, one, **values, gradient_accumulation_steps=2))
    for _ in range(2):
        printed = train_in_two_processes(arguments(corpus, two, **values), tmp_path, LAUNCHER)
        assert len(list((two / "checkpoint-4" / "pytorch_model_fsdp_0").glob("*.distcp"))) == 2
        assert not (two / "checkpoint-4" / "model.safetensors").exists()
        if "Resuming from" not in printed:
            (two / "checkpoint-4" / "pytorch_model_fsdp_0" / ".metadata").unlink()
            assert "pytorch_model_fsdp_0 is cut off" in incomplete_reason(two / "checkpoint-4")
            shutil.rmtree(two / "checkpoint-4")
    assert "checkpoint-2" in printed
    assert losses(two) == pytest.approx(losses(one), rel=1e-5)
    assert sorted(losses(two)) == [1, 2, 3, 4]
    name = "generated_predictions.txt"
    assert (two / name).read_text() == (one / name).read_text()
    for run in (one, two):
        average_checkpoints([run / "checkpoint-2", run / "checkpoint-4"], run / "averaged")
    expected = weights(one / "averaged")
    for name, tensor in weights(two / "averaged").items():
        # Softmax does not see a bias of all keys: Adam scales up the rounding errors of its gradient.
        if not name.endswith("k_proj.bias"):
            torch.testing.assert_close(tensor, expected[name], rtol=1e-4, atol=1e-5)
