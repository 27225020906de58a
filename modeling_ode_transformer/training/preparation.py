# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Prepares training data once: reads pairs as a stream, cleans them, encodes them in several processes, and writes
Arrow files, which every process of every training maps into memory.

The folder's name is a hash of all inputs. The file PREPARED is written last: a folder without it is continued from
its finished shards.
"""

import hashlib
import json
import logging
import os
import random
import shutil
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from itertools import chain, islice
from multiprocessing import get_all_start_methods, get_context
from pathlib import Path
from threading import Thread
from typing import Any

import datasets
import numpy as np
import pyarrow
from datasets.table import MemoryMappedTable, concat_tables
from filelock import FileLock

from ..text_files import read_json
from .checkpoints import write_json
from .cleaning import Chunk, Cleaner, Cleaning, Removed, SeenHashes, drop_duplicates
from .data import TrainingExamples
from .encoding import PairEncoder
from .same_training import SHARED, training_data


logger = logging.getLogger(__name__)

# Marks a complete folder; holds its inputs and counts.
PREPARED = "prepared.json"
# The table of pairs that the cleaning rules removed.
CLEANING = "cleaning.md"
# Part of the names of unfinished files.
UNFINISHED = ".unfinished"
# Raised when the format of the files changes, or what is written into them.
VERSION = 2
# A shard holds at most this many pairs, and at most this many characters.
SHARD_PAIRS = 100_000
SHARD_CHARACTERS = 1 << 25
# Rows of an Arrow record batch.
BATCH_ROWS = 1000
# Data arguments that change a training, but not its texts.
NOT_OF_TEXTS = {"max_source_length", "max_target_length", "tokenizer_samples", "block_size"}


def prepared_folder(root: str | Path | None, kind: str, key: dict) -> Path:
    """The folder of the data made from `key`, a mapping that JSON can write, in the folder `root`; None: in one in the
    cache of the datasets library."""
    root = Path(root) if root else Path(datasets.config.HF_DATASETS_CACHE) / "ode_transformer"
    text = json.dumps({"version": VERSION} | key, sort_keys=True, default=str)
    return root / f"{kind}-{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"


def texts_hash(examples: Iterable[str | tuple[str, str | None]]) -> str:
    """A hash of texts or of pairs of them."""
    whole = hashlib.blake2b(digest_size=16)
    for example in examples:
        whole.update(json.dumps(example).encode())
    return whole.hexdigest()


def texts_of_split(split: str, examples: Any, arguments: dict) -> dict:
    """What the texts of a split depend on; `arguments` are those of the run, as `run_arguments` notes them."""
    if split == "train":
        return training_texts(examples, arguments)
    return {"texts": texts_hash(examples)}


def training_texts(examples: TrainingExamples, arguments: dict) -> dict:
    """What the texts of training examples depend on: the content of their files, what is done to them, and which of
    the files validate with a part of their sentences.

    Args:
        examples: These.
        arguments: Of the run, as `run_arguments` notes them.
    """
    data = {name: value for name, value in training_data(arguments["data"]).items() if name not in NOT_OF_TEXTS}
    files = [each.get("blake2b") or each for each in arguments["files"]["train"]]
    if not (files and examples.is_of_files):
        return {"task": arguments["task"], "data": data, "files": texts_hash(examples)}
    shared = {SHARED: found} if (found := arguments["files"].get(SHARED)) is not None else {}
    return {"task": arguments["task"], "data": data, "files": files} | shared


def prepare_once(folder: Path, key: dict, write: Callable[[Path], dict]) -> dict:
    """Returns the contents of a folder's PREPARED. If it does not exist, `write` fills the folder first, and PREPARED
    holds `key` and what `write` returns.

    Waits for another process that prepares the same folder.
    """
    if not (folder / PREPARED).is_file():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f"{folder.name}.lock")):
            if not (folder / PREPARED).is_file():
                folder.mkdir(exist_ok=True)
                noted = {"version": VERSION, "made from": key} | write(folder)
                write_json(folder / PREPARED, noted, default=str)
    return read_json(folder / PREPARED)


def chunks(pairs: Iterable[tuple[str, str]]) -> Iterator[Chunk]:
    """Yields the pairs of each shard in turn."""
    sources, targets, characters, start = [], [], 0, 0
    for source, target in pairs:
        sources.append(source)
        targets.append(target)
        characters += len(source) + len(target)
        if len(sources) == SHARD_PAIRS or characters >= SHARD_CHARACTERS:
            yield Chunk(np.arange(start, start + len(sources)), sources, targets)
            start += len(sources)
            sources, targets, characters = [], [], 0
    if sources:
        yield Chunk(np.arange(start, start + len(sources)), sources, targets)


class Worker:
    """The work of a worker process on chunks. Each process gets one of these through `fork`."""

    current: "Worker"

    def __init__(self, cleaning: Cleaning, encoder: PairEncoder | None = None):
        self.clean = Cleaner(cleaning)
        self.encoder = encoder

    def start(self) -> None:
        """Called once in each worker process."""
        Worker.current = self
        # One thread per process.
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        parent = os.getppid()

        def watch():
            while os.getppid() == parent:
                time.sleep(1)
            os._exit(1)  # the parent was killed, so its queues stay silent

        Thread(target=watch, daemon=True).start()

    def write(self, chunk: Chunk, path: Path) -> dict:
        """Writes a shard and its counts as JSON beside it; returns the counts."""
        columns, cut = self.encoder(chunk.sources, chunk.targets)
        columns["index"] = pyarrow.array(chunk.places)
        table = pyarrow.table(columns)
        unfinished = path.with_name(path.name + UNFINISHED)
        with pyarrow.OSFile(str(unfinished), "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=BATCH_ROWS)
        sides = ("source", "target")
        counts = {"pairs": len(table)} | {f"{side}s_cut": cut[side] for side in sides}
        counts |= {f"{side}_tokens": int(np.sum(columns[f"{side}_length"].to_numpy(), dtype=int)) for side in sides}
        # The counts first: a file with the name of a shard must be complete.
        path.with_suffix(".json").write_text(json.dumps(counts), encoding="utf-8")
        unfinished.rename(path)
        return counts


def clean_chunk(chunk: Chunk):
    return Worker.current.clean(chunk)


def write_chunk(chunk: Chunk, path: Path) -> dict:
    return Worker.current.write(chunk, path)


class InThisProcess(Executor):
    """An executor that runs each call at once, in this process."""

    def submit(self, function, /, *args, **kwargs) -> Future:
        future: Future = Future()
        future.set_result(function(*args, **kwargs))
        return future


@contextmanager
def executor_of(worker: Worker, num_workers: int):
    """Runs `clean_chunk` and `write_chunk` in `num_workers` processes, or in this one if that is less than two."""
    if num_workers < 2 or "fork" not in get_all_start_methods():
        Worker.current = worker
        yield InThisProcess()
        return
    with ProcessPoolExecutor(num_workers, get_context("fork"), initializer=worker.start) as executor:
        yield executor


def in_order(futures: Iterator[Future], ahead: int) -> Iterator:
    """Yields the results of futures in order; `ahead` of them are submitted before the first one is awaited."""
    waiting: deque[Future] = deque()
    for future in futures:
        waiting.append(future)
        if len(waiting) > ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


@contextmanager
def cleaned_chunks(pairs: TrainingExamples, worker: Worker, num_workers: int | None, removed: Removed):
    """Yields an iterator over cleaned chunks, an executor for further work on them, and its number of processes.

    Removed pairs are added to `removed`. The number is the one asked for, one per CPU core of this process, or 1 if a
    single chunk holds all pairs."""
    stream = chunks(pairs)
    head = deque(islice(stream, 2))
    if len(head) < 2:
        num_workers = 1
    elif num_workers is None:
        num_workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with executor_of(worker, num_workers) as executor:
        Worker.current = worker
        # Sending texts to another process takes longer than looking for empty sides only.
        is_cheap = worker.clean.cleaning == Cleaning(languages=worker.clean.cleaning.languages)
        submit = InThisProcess().submit if is_cheap else executor.submit

        def cleaned() -> Iterator[Chunk]:
            seen = SeenHashes()
            whole = chain((head.popleft() for _ in range(len(head))), stream)
            futures = (submit(clean_chunk, chunk) for chunk in whole)
            for chunk, of_chunk, hashes in in_order(futures, 0 if is_cheap else num_workers):
                removed.update(of_chunk)
                yield chunk if hashes is None else drop_duplicates(chunk, hashes, seen, removed)
            if not removed.kept:
                by_rule = "".join(f", {count} removed by {rule}" for rule, count in removed.counts.items())
                raise ValueError(f"{pairs.name} holds no pair to train on ({removed.read} lines read{by_rule}).")

        yield cleaned(), executor, num_workers


def sample_pairs(
    pairs: TrainingExamples, cleaning: Cleaning, size: int, num_workers: int | None = None
) -> list[tuple[str, str]]:
    """The pairs left by a cleaning; if there are more than `size`, a random sample, the same in each call."""
    generator, sample, number = random.Random(0), [], 0
    with cleaned_chunks(pairs, Worker(cleaning), num_workers, Removed()) as (cleaned, _, _):
        for chunk in cleaned:
            for pair in zip(chunk.sources, chunk.targets):
                if number < size:
                    sample.append(pair)
                elif (place := generator.randrange(number + 1)) < size:
                    sample[place] = pair
                number += 1
    return sample


def prepare_pairs(
    pairs: TrainingExamples,
    folder: Path,
    key: dict,
    encoder: PairEncoder,
    cleaning: Cleaning,
    num_workers: int | None = None,
) -> dict:
    """Fills a folder with shards of encoded pairs, unless it is complete; returns their counts.

    A shard holds the columns of `PairEncoder` and `index`, the pair's position in the data.

    Raises:
        ValueError: the rules leave no pair.
    """

    def write(folder: Path) -> dict:
        removed, counts, start = Removed(), Counter(), time.monotonic()
        for path in folder.glob(f"*{UNFINISHED}"):
            path.unlink()
        worker = Worker(cleaning, encoder)
        # Shards are numbered by the pairs read, so that those of a killed preparation stay valid.
        done = {path.name for path in folder.glob("shard-*.arrow")}
        if done:
            logger.info("%s: continuing after %d shards", folder, len(done))
        with cleaned_chunks(pairs, worker, num_workers, removed) as (cleaned, executor, ahead):

            def shards() -> Iterator[Future]:
                for number, chunk in enumerate(cleaned):
                    path = folder / f"shard-{number:05}.arrow"
                    if path.name in done:
                        future: Future = Future()
                        future.set_result(read_json(path.with_suffix(".json")))
                        yield future
                    else:
                        yield executor.submit(write_chunk, chunk, path)

            for number, of_shard in enumerate(in_order(shards(), ahead), 1):
                counts.update(of_shard)
                if number % 10 == 0:
                    rate = counts["pairs"] / (time.monotonic() - start)
                    logger.info("%s: %d pairs prepared, %.0f per second", pairs.name, counts["pairs"], rate)
        (folder / CLEANING).write_text(removed.table(), encoding="utf-8")
        read = {"read": removed.read, "taken": dict(removed.counts)}
        return {"counts": counts, "cleaning": read, "seconds": round(time.monotonic() - start, 1)}

    noted = prepare_once(folder, key, write)
    counts, cleaned = noted["counts"], noted["cleaning"]
    logger.info("%s: %d pairs, prepared in %s", pairs.name, counts["pairs"], folder)
    if cleaned["taken"]:
        logger.info(
            "%s: result of cleaning %d pairs\n%s", pairs.name, cleaned["read"], (folder / CLEANING).read_text("utf-8")
        )
    if empty := cleaned["taken"].get("empty side"):
        logger.warning("%s: dropped %d of %d pairs with an empty side", pairs.name, empty, cleaned["read"])
    return counts


def open_pairs(folder: Path) -> datasets.Dataset:
    """The pairs of a complete folder, mapped into memory."""
    shards = [MemoryMappedTable.from_file(str(path)) for path in sorted(folder.glob("shard-*.arrow"))]
    return datasets.Dataset(concat_tables(shards))


def save_once(folder: Path, key: dict, make: Callable[[], datasets.Dataset]) -> datasets.Dataset:
    """Opens a dataset from its folder, and writes it there first if it is missing."""

    def write(folder: Path) -> dict[str, Any]:
        unfinished = folder / f"dataset{UNFINISHED}"
        shutil.rmtree(unfinished, ignore_errors=True)
        dataset = make()
        dataset.save_to_disk(str(unfinished))
        shutil.rmtree(folder / "dataset", ignore_errors=True)  # of a call that was killed before its note
        unfinished.rename(folder / "dataset")
        return {"rows": len(dataset)}

    prepare_once(folder, key, write)
    return datasets.load_from_disk(str(folder / "dataset"))
