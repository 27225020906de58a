# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Checkpoints of FSDP2: a training of two processes, resumed and averaged."""

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


KINDS = ("SHARDED_STATE_DICT", "FULL_STATE_DICT")
FIELDS = dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.0)
OPTIONS = {"config_overrides": json.dumps(MODEL | FIELDS), "max_tokens_per_batch": 300, "do_predict": True}
OPTIONS |= {"train_sampling_strategy": None, "per_device_train_batch_size": None}
OPTIONS |= {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}


def run_two(kind, corpus, out, **values):
    """Trains in two processes, with checkpoints of a kind; returns what they print."""
    launcher = [kind if word in KINDS else word for word in LAUNCHERS["FSDP"]]
    return train_in_two_processes(arguments(corpus, out, **OPTIONS | values), out.parent, launcher)


def weights(folder):
    return AutoModelForSeq2SeqLM.from_pretrained(folder).state_dict()


def test_sharded_checkpoints_are_resumed_from_and_averaged(corpus, tmp_path):
    """Two processes, stopped after the first of two checkpoints, have losses, tokens and averages of one process. The
    average at the end of the training is the model."""
    one, two = tmp_path / "one", tmp_path / "two"
    run_translation.main(arguments(corpus, one, **OPTIONS, average_last_checkpoints=2, gradient_accumulation_steps=2))
    for _ in range(2):
        printed = run_two("SHARDED_STATE_DICT", corpus, two, average_last_checkpoints=2)
        assert len(list((two / "checkpoint-4" / "pytorch_model_fsdp_0").glob("*.distcp"))) == 2
        assert not (two / "checkpoint-4" / "model.safetensors").exists()
        if "Resuming from" not in printed:
            (two / "checkpoint-4" / "pytorch_model_fsdp_0" / ".metadata").unlink()
            assert "pytorch_model_fsdp_0/.metadata is missing" in incomplete_reason(two / "checkpoint-4")
            shutil.rmtree(two / "checkpoint-4")
    assert "checkpoint-2" in printed and "Mean of checkpoint-2, checkpoint-4" in printed
    assert losses(two) == pytest.approx(losses(one), rel=1e-5)
    assert sorted(losses(two)) == [1, 2, 3, 4]
    name = "generated_predictions.txt"
    assert (two / name).read_text() == (one / name).read_text()
    average_checkpoints([two / "checkpoint-2", two / "checkpoint-4"], two / "averaged")
    averaged, of_one = weights(two / "averaged"), weights(one)
    for name, tensor in weights(two).items():
        assert torch.equal(tensor, averaged[name])
        # Softmax does not see a bias of all keys: Adam scales up the rounding errors of its gradient.
        if not name.endswith("k_proj.bias"):
            torch.testing.assert_close(tensor, of_one[name], rtol=1e-4, atol=1e-5)


def test_the_better_of_mean_and_best_checkpoint_is_kept_of_a_sharded_model(corpus, tmp_path):
    """The loss falls to the end: the last checkpoint is better than its mean with the one before."""
    values = {"eval_strategy": "steps", "eval_steps": 2, "do_eval": True, "load_best_model_at_end": True}
    values |= {"metric_for_best_model": "loss", "average_last_checkpoints": 2}
    printed = run_two("FULL_STATE_DICT", corpus, tmp_path / "out", **values)
    assert "kept the best checkpoint" in printed
    last = weights(tmp_path / "out" / "checkpoint-4")
    assert all(torch.equal(tensor, last[name]) for name, tensor in weights(tmp_path / "out").items())
