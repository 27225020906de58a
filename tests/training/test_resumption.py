# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Runs that are killed, resumed and spread over processes."""

import functools
import itertools
import json
import os
import shutil
import signal
import socket

import number_names
import pytest
import run_translation
import torch
import torch.distributed.run
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import get_free_port, prepare_multi_gpu_env
from transformers import AutoModelForSeq2SeqLM

from modeling_ode_transformer.training import trainer as trainer_module
from modeling_ode_transformer.training.checkpoints import last_complete_checkpoint
from modeling_ode_transformer.training.trainer import TokenSeq2SeqTrainer

from ..conftest import EXAMPLES
from ..processes import fork, wait
from .runs import MODEL, arguments, cut, losses, shard_over_cpus


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    number_names.write_corpus(folder, {"train": 120, "validation": 12, "test": 11})
    return folder


def options(**values):
    """Token budgets, accumulated, in 4 updates an epoch; logs and checkpoints that do not coincide."""
    defaults = {"max_tokens_per_batch": 300, "train_sampling_strategy": None, "per_device_train_batch_size": None}
    defaults |= {"gradient_accumulation_steps": 2, "label_smoothing_factor": 0.1, "max_steps": 11, "logging_steps": 3}
    defaults |= {"save_strategy": "steps", "save_steps": 4, "do_eval": True, "eval_strategy": "steps", "eval_steps": 5}
    return defaults | values


@pytest.fixture(scope="module")
def whole(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "output"
    run_translation.main(arguments(corpus, folder, **options()))
    return folder


def run_and_kill(method, call, argv, folder):
    """Runs a training in a process that is killed just before a trainer's method is called for the given time."""

    def run():
        calls, original = itertools.count(1), getattr(TokenSeq2SeqTrainer, method)

        def killed(*args, **kwargs):
            if next(calls) == call:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*args, **kwargs)

        setattr(TokenSeq2SeqTrainer, method, killed)
        run_translation.main(argv)

    result = wait(fork(run, folder, folder / "output", dict(os.environ)), folder / "output")
    assert result.returncode == -signal.SIGKILL, result.stderr


def test_a_killed_run_goes_on_with_the_same_losses(whole, corpus, tmp_path, tmp_path_factory, caplog):
    """Killed before its first checkpoint, in the middle of an epoch, and while it writes a checkpoint."""
    argv, processes = arguments(corpus, tmp_path, **options()), tmp_path_factory.mktemp("killed")
    run_and_kill("training_step", 6, argv, processes)
    assert not list(tmp_path.glob("checkpoint-*"))
    run_and_kill("_save_rng_state", 2, argv, processes)
    assert (tmp_path / "checkpoint-8" / "model.safetensors").is_file()
    run_translation.main(argv)
    assert "checkpoint-8 is left out: trainer_state.json, which is written last, is missing" in caplog.text
    assert "Resuming from" in caplog.text and "checkpoint-4" in caplog.text
    assert losses(tmp_path) == losses(whole)
    assert sorted(losses(whole)) == [3, 6, 9]
    expected = AutoModelForSeq2SeqLM.from_pretrained(whole).state_dict()
    for name, tensor in AutoModelForSeq2SeqLM.from_pretrained(tmp_path).state_dict().items():
        assert torch.equal(tensor, expected[name]), name


def test_a_run_that_was_asked_to_stop_leaves_no_final_model(corpus, tmp_path, monkeypatch):
    step = TokenSeq2SeqTrainer.training_step

    def terminated_step(self, *args, **kwargs):
        os.kill(os.getpid(), signal.SIGTERM)
        return step(self, *args, **kwargs)

    monkeypatch.setattr(TokenSeq2SeqTrainer, "training_step", terminated_step)
    with pytest.raises(SystemExit) as exit:
        run_translation.main(arguments(corpus, tmp_path, **options(enable_jit_checkpoint=True)))
    assert exit.value.code == 143 and not (tmp_path / "model.safetensors").exists()
    assert last_complete_checkpoint(tmp_path).name == "checkpoint-1"


def test_evaluation_does_not_change_the_training(whole, corpus, tmp_path):
    run_translation.main(arguments(corpus, tmp_path / "out", **options(eval_strategy="no")))
    assert losses(tmp_path / "out") == losses(whole)


def test_a_run_that_was_killed_after_its_last_update_is_not_trained_further(whole, corpus, tmp_path):
    """The last update is in the middle of an epoch; predictions and the final model were not written yet."""
    for number in (4, 8, 11):
        shutil.copytree(whole / f"checkpoint-{number}", tmp_path / f"checkpoint-{number}")
    run_translation.main(arguments(corpus, tmp_path, **options()))
    assert json.loads((tmp_path / "trainer_state.json").read_text())["global_step"] == 11
    assert not (tmp_path / "checkpoint-12").exists()
    expected = AutoModelForSeq2SeqLM.from_pretrained(whole).state_dict()
    for name, tensor in AutoModelForSeq2SeqLM.from_pretrained(tmp_path).state_dict().items():
        assert torch.equal(tensor, expected[name]), name


def emptied(name):
    return lambda folder: (folder / name).write_text("{}")


def halved(name):
    return lambda folder: cut(folder / name)


def removed(name):
    return lambda folder: (folder / name).unlink()


def flipped(folder):
    """Flips the bits of a byte."""
    contents = bytearray((folder / "optimizer.pt").read_bytes())
    contents[len(contents) // 2] ^= 255
    (folder / "optimizer.pt").write_bytes(contents)


def with_zeros_at_the_end(folder):
    """As a power failure leaves a file whose last blocks were not written."""
    contents = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(contents[:-500] + bytes(500))


def linked_to_nothing(folder):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("blobs")


DAMAGES = {"trainer_state.json, which is written last, is missing": removed("trainer_state.json")}
DAMAGES |= {f"{name} is missing": removed(name) for name in ("config.json", "optimizer.pt", "progress.json")}
DAMAGES |= {f"{name} is damaged:": halved(name) for name in ("trainer_state.json", "rng_state.pth", "config.json")}
DAMAGES |= {
    "checksums.json is damaged (": halved("checksums.json"),
    "tokenizer.json is damaged": emptied("tokenizer.json"),
    "optimizer.pt is damaged": flipped,
    "model.safetensors is damaged": with_zeros_at_the_end,
    "model.safetensors is missing": linked_to_nothing,
}


@pytest.mark.parametrize("reason", DAMAGES)
def test_half_written_checkpoints_are_recognised(reason, whole, tmp_path, caplog):
    for number in (4, 8):
        shutil.copytree(whole / f"checkpoint-{number}", tmp_path / f"checkpoint-{number}")
    assert last_complete_checkpoint(tmp_path).name == "checkpoint-8"
    DAMAGES[reason](tmp_path / "checkpoint-8")
    assert last_complete_checkpoint(tmp_path).name == "checkpoint-4"
    assert f"checkpoint-8 is left out: {reason}" in caplog.text


def test_a_checkpoint_without_checksums_is_one_if_all_processes_have_written(whole, tmp_path, caplog):
    """Killed before its checksums, uploaded during a training, or of Trainer alone: it is not thrown away."""
    for number in (4, 8):
        shutil.copytree(whole / f"checkpoint-{number}", tmp_path / f"checkpoint-{number}")
    last = tmp_path / "checkpoint-8"
    (last / "checksums.json").unlink()
    assert last_complete_checkpoint(tmp_path) == last
    state = json.loads((last / "trainer_state.json").read_text())
    (last / "trainer_state.json").write_text(json.dumps(state)[:-9])
    assert last_complete_checkpoint(tmp_path).name == "checkpoint-4"
    (last / "trainer_state.json").write_text(json.dumps(state))
    progress = json.loads((last / "progress.json").read_text())
    progress["by_process"] *= 2
    (last / "progress.json").write_text(json.dumps(progress))
    (last / "rng_state.pth").rename(last / "rng_state_0.pth")
    assert last_complete_checkpoint(tmp_path).name == "checkpoint-4"
    assert "checkpoint-8 is left out: rng_state_1.pth is missing" in caplog.text
    (last / "progress.json").unlink()
    assert last_complete_checkpoint(tmp_path) == last


def test_a_half_written_checkpoint_is_not_resumed_from(whole, corpus, tmp_path):
    shutil.copytree(whole / "checkpoint-8", tmp_path / "checkpoint-8")
    cut(tmp_path / "checkpoint-8" / "scheduler.pt")
    values = options(resume_from_checkpoint=tmp_path / "checkpoint-8")
    with pytest.raises(ValueError, match=r"checkpoint-8: scheduler\.pt is damaged.* Choose an earlier checkpoint"):
        run_translation.main(arguments(corpus, tmp_path / "out", **values))


def test_the_patience_of_early_stopping_survives_a_resumption(corpus, tmp_path):
    """A learning rate of nearly 0 never makes a new best: with patience 3, the fourth evaluation ends the run."""
    values = options(eval_steps=1, save_steps=1, max_steps=9, learning_rate=1e-30, early_stopping_patience=3)
    values |= {"load_best_model_at_end": True, "metric_for_best_model": "nll_loss", "predict_with_generate": None}
    run_translation.main(arguments(corpus, tmp_path / "whole", **values))
    # Stopped before the end, and after early stopping had ended it.
    for last in (2, 4):
        for number in range(1, last + 1):
            shutil.copytree(tmp_path / "whole" / f"checkpoint-{number}", tmp_path / f"{last}" / f"checkpoint-{number}")
        run_translation.main(arguments(corpus, tmp_path / f"{last}", **values))
    for folder in ("whole", "2", "4"):
        assert json.loads((tmp_path / folder / "trainer_state.json").read_text())["global_step"] == 4


LAUNCHERS = {
    "DDP": ["torch.distributed.run", "--standalone", "--nproc_per_node", "2"],
    # Accelerate starts several processes of one machine only if it is told of GPUs; the script says --use_cpu.
    "FSDP": ["accelerate.commands.launch", "--use_fsdp", "--fsdp_version", "2", "--fsdp_auto_wrap_policy"]
    + ["TRANSFORMER_BASED_WRAP", "--fsdp_state_dict_type", "FULL_STATE_DICT", "--num_processes", "2"]
    + ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"],
}


def environment_of_processes():
    """That of several processes of this machine; they need not find out by its name how to reach each other."""
    loopback = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    interface = {"GLOO_SOCKET_IFNAME": loopback[0]} if loopback else {}
    return os.environ | interface | {"PYTHONPATH": str(EXAMPLES.parent), "OMP_NUM_THREADS": "1"}


def train_in_two_processes(argv, folder, launcher=()):
    """Forks two processes that train with the environment that a launcher's options (default: torchrun's) give them.
    Returns what the first one prints."""
    environment = environment_of_processes() | {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(get_free_port())}
    if launcher:
        args = launch_command_parser().parse_args([*launcher[1:], "run_translation.py"])
        args, *_ = _validate_launch_command(args)
        environment = prepare_multi_gpu_env(args) | environment

    def train():
        if launcher:
            shard_over_cpus()
        run_translation.main(argv)

    children = []
    for rank in ("0", "1"):
        own = environment | {"RANK": rank, "LOCAL_RANK": rank}
        children.append(fork(train, folder, folder / f"process_{rank}", own))
    results = [wait(child, folder / f"process_{rank}") for rank, child in enumerate(children)]
    for result in results:
        assert result.returncode == 0, result.stderr[-3000:]
    return results[0].stdout


def launch(kind, argv, folder):
    """Trains in two processes of a launcher. torchrun can start scripts in forks of its own process, so it is a fork
    of this one, and none of the three imports anything anew; accelerate's have its environment."""
    if kind == "FSDP":
        train_in_two_processes(argv, folder, LAUNCHERS[kind])
        return
    script = str(EXAMPLES / "run_translation.py")
    command = [*LAUNCHERS[kind][1:], "--start_method", "fork", "--run_path", script, *argv]
    call = functools.partial(torch.distributed.run.main, command)
    result = wait(fork(call, folder, folder / kind, environment_of_processes()), folder / kind)
    assert result.returncode == 0, result.stderr[-3000:]


@pytest.mark.parametrize("kind", LAUNCHERS)
def test_two_processes_train_as_one_that_accumulates(kind, corpus, tmp_path, monkeypatch):
    """Losses, gradient norms, weights and predictions with the same batches to an update. Muon computes in
    float32 on all machines: bfloat16 would make the rounding of the gradients' sums larger."""
    monkeypatch.setattr(trainer_module, "has_fast_bf16", lambda: False)
    values = options(max_steps=4, logging_steps=1, save_steps=3, eval_strategy="no", do_predict=True)
    fields = dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.0)
    model = json.dumps(MODEL | fields | {"encoder_coefficients": "gate"})
    values |= {"config_overrides": model, "gradient_accumulation_steps": 1, "log_coefficients": True}
    values |= {"per_device_eval_batch_size": 6}  # of the 12 pairs, so that none is evaluated twice
    values |= {"optim": "muon"} if kind == "FSDP" else {}  # which needs whole matrices
    one, two = tmp_path / "one", tmp_path / "two"
    run_translation.main(arguments(corpus, one, **values | {"gradient_accumulation_steps": 2}))
    launch(kind, arguments(corpus, two, **values), tmp_path)
    # FSDP's checkpoints hold the weights in a file of its own, DDP's do not.
    assert (two / "checkpoint-3" / "pytorch_model_fsdp.bin").is_file() == (kind == "FSDP")

    history = [json.loads((folder / "trainer_state.json").read_text())["log_history"] for folder in (one, two)]
    for expected, entry in zip(*history, strict=True):
        for name in ("loss", "grad_norm"):
            if name in expected:
                assert entry[name] == pytest.approx(expected[name], rel=1e-5)
    results = [json.loads((folder / "all_results.json").read_text()) for folder in (one, two)]
    assert results[1]["eval_nll_loss"] == pytest.approx(results[0]["eval_nll_loss"], rel=1e-5)
    coefficients = [name for name in results[0] if name.startswith("eval_coefficient_")]
    assert coefficients
    for name in coefficients:
        assert results[1][name] == pytest.approx(results[0][name], rel=1e-4)
    for name in ("generated_predictions.txt", "config.json"):
        assert (two / name).read_text() == (one / name).read_text()
    assert {path.name for path in two.glob("*.py")} == {path.name for path in one.glob("*.py")}
    assert last_complete_checkpoint(two).name == "checkpoint-4"
    expected = AutoModelForSeq2SeqLM.from_pretrained(one).state_dict()
    for name, tensor in AutoModelForSeq2SeqLM.from_pretrained(two).state_dict().items():
        # Softmax does not see a bias of all keys: Adam scales up the rounding errors of its gradient.
        if not name.endswith("k_proj.bias"):
            torch.testing.assert_close(tensor, expected[name], rtol=1e-4, atol=1e-5)


def test_two_processes_that_group_by_length_resume_in_a_later_epoch(corpus, tmp_path):
    """Three updates an epoch; resumed after the fourth, which no log has seen, the run has the losses of the
    uninterrupted one, those of both processes."""
    values = options(max_steps=6, logging_steps=3, eval_strategy="no", do_eval=None, max_tokens_per_batch=None)
    values |= {"per_device_train_batch_size": 20, "gradient_accumulation_steps": 1}
    values |= {"train_sampling_strategy": "group_by_length"}
    for folder in (tmp_path / "whole", tmp_path / "resumed"):
        train_in_two_processes(arguments(corpus, folder, **values), tmp_path)
        if folder.name == "whole":
            shutil.copytree(folder / "checkpoint-4", tmp_path / "resumed" / "checkpoint-4")
    assert losses(tmp_path / "resumed") == losses(tmp_path / "whole")
    assert sorted(losses(tmp_path / "whole")) == [3, 6]
    kept = json.loads((tmp_path / "whole" / "checkpoint-4" / "progress.json").read_text())["by_process"]
    assert kept[0]["loss_since_last_log"] != kept[1]["loss_since_last_log"]
    results = [json.loads((tmp_path / name / "all_results.json").read_text()) for name in ("whole", "resumed")]
    assert results[1]["train_loss"] == pytest.approx(results[0]["train_loss"], rel=1e-6)
