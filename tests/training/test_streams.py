# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Token-budget batches of streams."""

import itertools
import json
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


def of_epochs(stream, count):
    """The batches of the first passes over a stream, which has no end."""
    return itertools.takewhile(lambda batch: stream.known[-1]["epoch"] < count, stream)


def numbers(batches):
    return [[pair["index"] for pair in batch] for batch in batches]


def test_batches_of_an_epoch_fill_the_budget_and_hold_every_pair(files):
    def draw(seed):
        stream = TokenBudgetStream(stream_of(files), 60, buffer_size=100, seed=seed, accumulation_steps=3)
        return list(of_epochs(stream, 2))

    batches = draw(seed=1)
    assert len(batches) % 3 == 0
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
    assert numbers(draw(seed=1)) == found != numbers(draw(seed=2))


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_stream_goes_on_exactly_from_every_batch(shuffled, files):
    """In the first and in the second epoch; the pairs of earlier buffers are not read again."""

    def new():
        stream = stream_of(files)
        if shuffled:
            stream = stream.shuffle(seed=3, buffer_size=1)  # of the files
        return TokenBudgetStream(stream, 60, buffer_size=50, accumulation_steps=2)

    whole, found, states = new(), [], []
    for number, batch in enumerate(of_epochs(whole, 2)):
        states.append(json.loads(json.dumps(whole.state_dict(number))))
        found.append(numbers([batch])[0])
    for number in (0, 1, 7, len(found) // 2, len(found) - 2):
        again = new()
        again.load_state_dict(states[number])
        assert numbers(of_epochs(again, 2)) == found[number:], number
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
    options = {"max_tokens": 60, "buffer_size": 50, "seed": 1}
    stream, states, found = TokenBudgetStream(stream_of(remote), **options), [], []
    for number, batch in enumerate(of_epochs(stream, 2)):
        states.append(json.loads(json.dumps(stream.state_dict(number))))
        found += numbers([batch])
    assert found == numbers(of_epochs(TokenBudgetStream(stream_of(files), **options), 2))
    again = TokenBudgetStream(stream_of(remote), **options)
    again.load_state_dict(states[9])
    assert numbers(of_epochs(again, 2)) == found[9:]


def processes(count, make, epochs=1):
    """The batches of processes that run as threads and agree on numbers as processes do, and the state before each."""
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
        before = stream.start["batches"] + stream.start["skipped"]
        found = [
            (numbers([batch])[0], stream.state_dict(before + number))
            for number, batch in enumerate(of_epochs(stream, epochs))
        ]
        results[rank] = tuple(map(list, zip(*found)))

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


@pytest.mark.parametrize("count", [2, 5, 3])
def test_all_processes_have_as_many_updates(count, files):
    """Five processes have a file each, two or three shares of the pairs; of unequal parts, the smaller comes again."""
    one, four = [files[0]], files[1:]
    parts = {0: one, 1: four}

    def make(rank):
        stream = stream_of(files)
        if count == 2:
            stream = split_dataset_by_node(stream_of(parts[rank]), 0, 1)
        return TokenBudgetStream(stream, 60, 20, num_replicas=count, rank=rank, accumulation_steps=2)

    found = [batches for batches, _ in processes(count, make)]
    assert len({len(batches) for batches in found}) == 1 and len(found[0]) % 2 == 0
    seen = [sorted(index for batch in batches for index in batch) for batches in found]
    if count == 2:
        assert set(seen[0]) == set(range(46)) and len(seen[0]) > 46
        assert seen[1] == list(range(46, COUNT))
    else:
        assert sorted(index for indices in seen for index in indices) == list(range(COUNT))


def test_processes_of_unequal_parts_go_on_exactly(files):
    """From the first pass, while the smaller part comes again, and from the second pass, which has all pairs."""
    parts = [files[:1], files[1:]]

    def make(rank, start=None):
        stream = split_dataset_by_node(stream_of(parts[rank]), 0, 1)
        stream = TokenBudgetStream(stream, 60, 20, num_replicas=2, rank=rank)
        if start is not None:
            stream.load_state_dict(start)
        return stream

    whole = processes(2, make, epochs=2)
    states = [states for _, states in whole]
    second = next(i for i, state in enumerate(states[0]) if state["epoch"] == 1)
    again = next(i for i, state in enumerate(states[0]) if state["is_over"]) + 1
    assert again < second
    for (batches, _), indices in zip(whole, (range(46), range(46, COUNT))):
        assert {index for batch in batches[second:] for index in batch} == set(indices)
    for number in (2, again, second + 2):
        starts = [of_process[number] for of_process in states]
        resumed = processes(2, lambda rank, starts=starts: make(rank, starts[rank]), epochs=2)
        assert [batches for batches, _ in resumed] == [batches[number:] for batches, _ in whole], number


def trainer_for(folder, files, **values):
    defaults = {"max_tokens_per_batch": 60, "stream_buffer_size": 40, "gradient_accumulation_steps": 2}
    defaults |= {"logging_steps": 1, "save_strategy": "steps", "save_steps": 3, "report_to": "none", "use_cpu": True}
    arguments = TokenSeq2SeqTrainingArguments(str(folder), **defaults | values)
    model = OdeTransformerForConditionalGeneration(tiny_config(dropout=0.0))
    collator = DataCollatorForSeq2Seq(OdeTransformerTokenizer.train(["a"], 300, hard_vocab_limit=False))
    return TokenSeq2SeqTrainer(model=model, args=arguments, data_collator=collator, train_dataset=stream_of(files))


def history(trainer):
    return {entry["step"]: entry["loss"] for entry in trainer.state.log_history if "loss" in entry}


def test_a_training_on_a_stream_is_resumed_exactly(files, tmp_path):
    """Through its second epoch, too; only with the place of each process."""
    trainer = trainer_for(tmp_path, files, max_steps=40, seed=5)
    result = trainer.train()
    assert trainer._stream.known[-1]["epoch"] == 1
    assert "train_samples_per_second" not in result.metrics or not result.metrics["train_samples_per_second"]
    for number in (6, 33):
        resumed = trainer_for(tmp_path, files, max_steps=40, seed=5)
        resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{number}"))
        assert history(resumed) == history(trainer) and len(history(trainer)) == 40
        assert not [name for name in resumed.state.log_history[-1] if "samples" in name]
    file = tmp_path / "checkpoint-6" / "progress.json"
    state = json.loads(file.read_text())
    (own,) = state["by_process"]
    for by_process in ([own, own], [{"loss_since_last_log": 0.0}]):
        file.write_text(json.dumps(state | {"by_process": by_process}))
        note_checksums(file.parent)
        with pytest.raises(ValueError, match="holds no position in the stream for 1 processes"):
            trainer_for(tmp_path, files, max_steps=40).train(str(tmp_path / "checkpoint-6"))


def test_what_a_stream_cannot_do_is_said(files, tmp_path):
    for name, value in (("dataloader_num_workers", 2), ("subword_dropout", 0.1)):
        with pytest.raises(ValueError, match=f"--{name} {value} cannot be used with a stream"):
            trainer_for(tmp_path, files, max_steps=2, **{name: value})
    with pytest.raises(ValueError, match="max_steps"):  # by Trainer
        trainer_for(tmp_path, files, num_train_epochs=3)
    with pytest.raises(ValueError, match="--stream_buffer_size 0"):
        trainer_for(tmp_path, files, max_steps=2, stream_buffer_size=0)
    with pytest.raises(ValueError, match="more than a batch may hold"):
        next(iter(TokenBudgetStream(stream_of(files), 5)))
    for others in ([], [False]):
        empty = TokenBudgetStream(stream_of(files[:1]).filter(lambda pair: False), 60, num_replicas=1 + len(others))
        empty._gather = lambda value, others=others: [value, *others]
        with pytest.raises(ValueError, match="A process got no pair from the stream"):
            next(iter(empty))
