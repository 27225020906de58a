# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""What several processes do with the data of one training: what one does for all, and what is left after a kill."""

import hashlib
import json
import os
import signal
from multiprocessing import get_all_start_methods, get_context

import pytest
import torch
from accelerate import PartialState
from filelock import FileLock
from transformers import TrainingArguments

from modeling_ode_transformer import OdeTransformerTokenizer
from modeling_ode_transformer.training import preparation
from modeling_ode_transformer.training.preparation import prepare_once
from modeling_ode_transformer.training.run import prepare
from modeling_ode_transformer.training.same_training import data_note, shared_data_note
from modeling_ode_transformer.training.tasks.translation import TRANSLATION, DataArguments

from .runs import arguments
from .test_resumption import environment_of_processes


pytestmark = pytest.mark.skipif("fork" not in get_all_start_methods(), reason="processes are forked")
# Seconds after which a process that ought to go on has not.
PATIENCE = 120


@pytest.fixture
def start():
    """Starts a function in a process of its own, which is killed at the end of the test."""
    processes = []

    def run(function, *args):
        torch.set_num_threads(1)
        processes.append(get_context("fork").Process(target=function, args=args))
        processes[-1].start()
        return processes[-1]

    yield run
    for process in processes:
        process.kill()
        process.join()


def join_group(rank, processes, folder):
    """Makes this process one of a group, with two on each node."""
    PartialState._reset_state()
    os.environ |= environment_of_processes() | {"RANK": str(rank), "LOCAL_RANK": str(rank % 2)}
    os.environ |= {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}
    torch.distributed.init_process_group("gloo", f"file://{folder}/group", rank=rank, world_size=processes)


def note_and_count(rank, processes, folder, data_args, files_read):
    join_group(rank, processes, folder)
    args = TrainingArguments(str(folder / "out"), do_train=True, use_cpu=True)
    digest = hashlib.file_digest

    def count(*args):
        with files_read.get_lock():
            files_read[rank] += 1
        return digest(*args)

    hashlib.file_digest = count
    (folder / f"{rank}.json").write_text(json.dumps(shared_data_note(data_args, args)))
    PartialState().wait_for_everyone()


def test_one_process_hashes_the_files_for_all(start, tmp_path):
    """Four processes on two nodes."""
    path = tmp_path / "train.tsv"
    path.write_text("a\tb\n")
    data_args = DataArguments(train_file=str(path))
    files_read = get_context("fork").Array("i", 4)
    group = [start(note_and_count, rank, 4, tmp_path, data_args, files_read) for rank in range(4)]
    for process in group:
        process.join(PATIENCE)
        assert process.exitcode == 0
    assert list(files_read) == [1, 0, 0, 0]
    expected = data_note(data_args, TrainingArguments(str(tmp_path), do_train=True, use_cpu=True))
    assert expected["train"][0]["blake2b"]
    assert [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)] == [expected] * 4


def test_a_training_that_waits_for_a_killed_one_prepares_itself(corpus, start, tmp_path, monkeypatch):
    """The one is killed while it trains the tokenizer; the other waits for its lock."""
    argv = arguments(corpus, tmp_path / "data", max_steps=None, do_train=None, predict_with_generate=None)
    reached, asked = (get_context("fork").Event() for _ in range(2))
    train = OdeTransformerTokenizer.train

    def never_end(*args, **kwargs):
        reached.set()
        signal.pause()

    class Noticed(FileLock):
        def acquire(self, *args, **kwargs):
            asked.set()
            return super().acquire(*args, **kwargs)

    monkeypatch.setattr(OdeTransformerTokenizer, "train", never_end)
    first = start(prepare, TRANSLATION, argv)
    assert reached.wait(PATIENCE)
    monkeypatch.setattr(OdeTransformerTokenizer, "train", train)
    monkeypatch.setattr(preparation, "FileLock", Noticed)
    second = start(prepare, TRANSLATION, argv)
    assert asked.wait(PATIENCE)
    first.kill()
    second.join(PATIENCE)
    assert second.exitcode == 0
    assert len(list((tmp_path / "data").glob(f"*/{preparation.PREPARED}"))) == 4  # the tokenizer and three splits


def test_processes_of_one_training_end_when_the_one_that_prepares_is_killed(start, tmp_path):
    """They wait for it at a barrier, which fails; none waits for ever."""
    reached = get_context("fork").Event()

    def never_end(folder):
        reached.set()
        signal.pause()

    def wait(rank):
        join_group(rank, 2, tmp_path)
        args = TrainingArguments(str(tmp_path / "out"), use_cpu=True)
        with args.main_process_first():
            prepare_once(tmp_path / "data", {}, never_end)

    group = [start(wait, rank) for rank in (0, 1)]
    assert reached.wait(PATIENCE)
    group[0].kill()
    group[1].join(PATIENCE)
    assert group[1].exitcode == 1
