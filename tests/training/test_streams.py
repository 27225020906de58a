# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Token-budget batches of streams."""

import dataclasses
import json
import shutil
import threading
from pathlib import Path

import datasets
import fsspec
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from datasets.distributed import split_dataset_by_node
from transformers import DataCollatorForSeq2Seq

from modeling_ode_transformer import OdeTransformerForConditionalGeneration, OdeTransformerTokenizer
from modeling_ode_transformer.training.checkpoints import note_checksums
from modeling_ode_transformer.training.streams import TokenBudgetStream
from modeling_ode_transformer.training.trainer import TokenSeq2SeqTrainer, TokenSeq2SeqTrainingArguments

from ..conftest import tiny_config


COUNT = 230


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Encoded pairs in five parquet files."""
    folder = tmp_path_factory.mktemp("parquet")
    generator = np.random.default_rng(0)
    sizes = generator.integers(1, 12, (COUNT, 2))
    draw = lambda size: generator.integers(4, 60, size).tolist()  # noqa: E731
    rows = [{"input_ids": draw(a), "labels": draw(b), "index": i} for i, (a, b) in enumerate(sizes)]
    for number in range(5):
        part = rows[number * 46 : (number + 1) * 46]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(part), folder / f"{number}.parquet")
    return sorted(map(str, folder.glob("*.parquet")))


def stream_of(files):
    return datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)


def numbers(batches):
    return [[pair["index"] for pair in batch] for batch in batches]


def test_batches_of_an_epoch_fill_the_budget_and_hold_every_pair(files):
    stream = TokenBudgetStream(stream_of(files), 60, buffer_size=100, seed=1, accumulation_steps=3, epochs=2)
    batches = list(stream)
    assert stream.count() == len(batches) and len(batches) % 3 == 0
    found = numbers(batches)
    half = next(i for i in range(len(found)) if sum(map(len, found[:i])) == COUNT)
    for epoch in (found[:half], found[half:]):
        assert sorted(index for batch in epoch for index in batch) == list(range(COUNT))
    assert found[:half] != found[half:]
    widths = [max(len(pair[name]) for pair in batch for name in ("input_ids", "labels")) for batch in batches]
    fill = [width * len(batch) for width, batch in zip(widths, batches)]
    assert max(fill) <= 60 and np.mean(fill) > 40
    # A buffer's pairs come together, and its batches in random order.
    assert {index for batch in found[:5] for index in batch} <= set(range(100))
    assert abs(np.corrcoef(widths[:half], range(half))[0, 1]) < 0.5
    assert numbers(TokenBudgetStream(stream_of(files), 60, 100, 1, accumulation_steps=3, epochs=2)) == found
    assert numbers(TokenBudgetStream(stream_of(files), 60, 100, 2, accumulation_steps=3, epochs=2)) != found


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_stream_goes_on_exactly_from_every_batch(shuffled, files):
    """In the first and in the second epoch; the pairs of earlier buffers are not read again."""

    def new():
        stream = stream_of(files)
        if shuffled:
            stream = stream.shuffle(seed=3, buffer_size=1)  # of the files
        return TokenBudgetStream(stream, 60, buffer_size=50, accumulation_steps=2, epochs=2)

    whole, found, states = new(), [], []
    for number, batch in enumerate(whole):
        states.append(json.loads(json.dumps(whole.state_dict(number))))
        found.append(numbers([batch])[0])
    for number in (0, 1, 7, len(found) // 2, len(found) - 2):
        again = new()
        again.load_state_dict(states[number])
        assert numbers(again) == found[number:], number
    place, buffer = next(again._buffers())
    assert place["buffer"] >= 8 and len(buffer) <= 50


@pytest.mark.parametrize(
    "shuffled",
    [
        lambda stream: stream.shuffle(seed=3, buffer_size=40),
        lambda stream: stream.shuffle(seed=3, buffer_size=40).map(lambda pair: pair).filter(lambda pair: True),
        lambda stream: datasets.interleave_datasets([stream, stream.shuffle(buffer_size=40)]),
        lambda stream: datasets.concatenate_datasets([stream.shuffle(buffer_size=40), stream]),
    ],
)
def test_a_shuffle_buffer_whose_pairs_a_resumption_would_lose_is_refused(shuffled, files):
    with pytest.raises(
        ValueError, match=r"\.shuffle\(buffer_size=40\).*lost.*buffer_size=1, which shuffles the files"
    ):
        TokenBudgetStream(shuffled(stream_of(files)), 60)


def test_a_stream_of_remote_files_has_the_batches_of_local_ones(files):
    """By fsspec, whose file system in memory stands for an object store; also from the middle of an epoch."""
    remote = [f"memory://bucket/{Path(file).name}" for file in files]
    for file, path in zip(files, remote):
        with fsspec.open(path, "wb") as target:
            target.write(Path(file).read_bytes())
    options = {"max_tokens": 60, "buffer_size": 50, "seed": 1, "epochs": 2}
    stream, states, found = TokenBudgetStream(stream_of(remote), **options), [], []
    for number, batch in enumerate(stream):
        states.append(json.loads(json.dumps(stream.state_dict(number))))
        found += numbers([batch])
    assert found == numbers(TokenBudgetStream(stream_of(files), **options))
    again = TokenBudgetStream(stream_of(remote), **options)
    again.load_state_dict(states[9])
    assert numbers(again) == found[9:]


def processes(count, make):
    """The batches of processes that run as threads and agree on numbers as processes do."""
    barrier, box, results = threading.Barrier(count, timeout=20), [None] * count, [None] * count

    def run(rank):
        def gather(value):
            box[rank] = value
            barrier.wait()
            values = list(box)
            barrier.wait()
            return values

        stream = make(rank)
        stream._gather = gather
        results[rank] = numbers(stream)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


@pytest.mark.parametrize("count", [2, 5, 3])
def test_all_processes_have_as_many_updates(count, files):
    """Five files for five processes are a file each; for two or three, each takes its share of the pairs. Of unequal
    parts, the smaller one comes again."""
    one, four = [files[0]], files[1:]
    parts = {0: one, 1: four}

    def make(rank):
        stream = stream_of(files)
        if count == 2:
            stream = split_dataset_by_node(stream_of(parts[rank]), 0, 1)
        return TokenBudgetStream(stream, 60, 20, num_replicas=count, rank=rank, accumulation_steps=2, epochs=1)

    found = processes(count, make)
    assert len({len(batches) for batches in found}) == 1 and len(found[0]) % 2 == 0
    seen = [sorted(index for batch in batches for index in batch) for batches in found]
    if count == 2:
        assert set(seen[0]) == set(range(46)) and len(seen[0]) > 46
        assert seen[1] == list(range(46, COUNT))
    else:
        assert sorted(index for indices in seen for index in indices) == list(range(COUNT))


def trainer_for(folder, files, **values):
    defaults = {"max_tokens_per_batch": 60, "stream_buffer_size": 40, "gradient_accumulation_steps": 2}
    defaults |= {"logging_steps": 1, "save_strategy": "steps", "save_steps": 3, "report_to": "none", "use_cpu": True}
    arguments = TokenSeq2SeqTrainingArguments(str(folder), **defaults | values)
    model = OdeTransformerForConditionalGeneration(tiny_config(dropout=0.0))
    collator = DataCollatorForSeq2Seq(OdeTransformerTokenizer.train(["a"], 300, hard_vocab_limit=False))
    return TokenSeq2SeqTrainer(model=model, args=arguments, data_collator=collator, train_dataset=stream_of(files))


def history(trainer):
    return {entry["step"]: entry["loss"] for entry in trainer.state.log_history if "loss" in entry}


def test_a_training_on_a_stream_is_resumed_exactly(files, tmp_path, monkeypatch):
    """Without counting its updates again, unless they are to be those of other epochs, or the checkpoint is older and
    does not have their number."""
    trainer = trainer_for(tmp_path, files, num_train_epochs=1, seed=5)
    result = trainer.train()
    updates = trainer.state.max_steps
    assert result.global_step == updates == trainer._stream.count() // 2 > 9
    assert "train_samples_per_second" not in result.metrics or not result.metrics["train_samples_per_second"]
    counts, count = [], TokenBudgetStream.count
    monkeypatch.setattr(TokenBudgetStream, "count", lambda stream: counts.append(count(stream)) or counts[-1])
    resumed = trainer_for(tmp_path, files, num_train_epochs=1, seed=5)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
    assert history(resumed) == history(trainer) and len(history(trainer)) == updates and not counts
    assert not [name for name in resumed.state.log_history[-1] if "samples" in name]
    file = tmp_path / "checkpoint-6" / "progress.json"
    state = json.loads(file.read_text())
    (own,) = state["by_process"]
    assert own["counted"] == {"epochs": 1, "batches": updates * 2}
    shutil.copytree(tmp_path / "checkpoint-6", tmp_path / "twice" / "checkpoint-6")
    twice = trainer_for(tmp_path / "twice", files, num_train_epochs=2, seed=5)
    twice.train(resume_from_checkpoint=str(tmp_path / "twice" / "checkpoint-6"))
    assert twice.state.max_steps == counts[0] // 2 > updates and len(counts) == 1
    file.write_text(json.dumps(state | {"by_process": [own | {"counted": None}]}))
    note_checksums(file.parent)
    resumed = trainer_for(tmp_path, files, num_train_epochs=1, seed=5)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
    assert history(resumed) == history(trainer) and counts[1:] == [updates * 2]
    longer = trainer_for(tmp_path / "longer", files, max_steps=updates + 4, save_strategy="no", seed=5)
    longer.train()
    assert longer.state.global_step == updates + 4
    # The place of a process that is not there.
    for by_process in ([own, own], [{"loss_since_last_log": 0.0}]):
        file.write_text(json.dumps(state | {"by_process": by_process}))
        note_checksums(file.parent)
        with pytest.raises(ValueError, match="holds no position in the stream for 1 processes"):
            trainer_for(tmp_path, files, num_train_epochs=1).train(str(tmp_path / "checkpoint-6"))


def test_what_a_stream_cannot_do_is_said(files, tmp_path):
    with pytest.raises(ValueError, match="--dataloader_num_workers 2 cannot be used with a stream"):
        trainer_for(tmp_path, files, max_steps=2, dataloader_num_workers=2)
    with pytest.raises(ValueError, match="max_steps"):  # by Trainer: no budget, so that no updates can be counted
        trainer_for(tmp_path, files, num_train_epochs=3, max_tokens_per_batch=None)
    with pytest.raises(ValueError, match="--stream_buffer_size 0"):
        trainer_for(tmp_path, files, max_steps=2, stream_buffer_size=0)
    with pytest.raises(ValueError, match="more than a batch may hold"):
        next(iter(TokenBudgetStream(stream_of(files), 5)))
    with pytest.raises(ValueError, match="endless stream"):
        TokenBudgetStream(stream_of(files), 60).count()
    empty = TokenBudgetStream(stream_of(files[:1]).filter(lambda pair: False), 60, num_replicas=2)
    empty._gather = lambda value: [value, False]
    with pytest.raises(ValueError, match="A process got no pair from the stream"):
        next(iter(empty))


def test_each_trainer_counts_the_updates_of_its_own_stream(files, tmp_path):
    """With the arguments of another one; half an epoch has half of the updates."""
    trainer = trainer_for(tmp_path, files[:1], num_train_epochs=1, save_strategy="no")
    trainer.train()
    counts = [trainer.state.max_steps]
    for epochs in (1, 0.5):
        arguments = dataclasses.replace(trainer.args, num_train_epochs=epochs, max_steps=-1)
        for _ in range(2):
            other = TokenSeq2SeqTrainer(
                model=trainer.model,
                args=arguments,
                data_collator=trainer.data_collator,
                train_dataset=stream_of(files),
            )
            other.train()
            assert arguments.max_steps == -1
        counts.append(other.state.max_steps)
    short, whole, half = counts
    assert short < whole == other._stream.count() // 2 and half == -(-whole // 2)
