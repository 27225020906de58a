# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Data that are prepared once: tokenizers, and encoded texts in an Arrow file, which every process of every training
maps into memory.

The folder's name is a hash of all inputs. The file PREPARED is written last: a folder without it is filled anew.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

import datasets
from datasets.arrow_writer import ArrowWriter
from filelock import FileLock

from ..text_files import read_json
from .checkpoints import write_json
from .same_training import SHARED, training_data
from .task import Run


# Marks a complete folder; holds its inputs and counts.
PREPARED = "prepared.json"
# Holds the encoded texts.
ROWS = "rows.arrow"
# Raised when the format of the files changes, or what is written into them.
VERSION = 4
# Rows that are encoded and written together.
BATCH_ROWS = 1000
# Data arguments that change a training, but not its texts.
NOT_OF_TEXTS = {"train_weights", "max_source_length", "max_target_length", "tokenizer_samples", "block_size"}


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


def tokenizer_hash(tokenizer) -> str:
    """A hash of what decides the ids that a tokenizer gives."""
    known = {name: getattr(tokenizer, name, None) for name in ("src_lang", "tgt_lang")}
    known["class"] = type(tokenizer).__name__
    if tokenizer.is_fast:
        # These two are of its last call.
        known["backend"] = json.loads(tokenizer.backend_tokenizer.to_str()) | {"truncation": None, "padding": None}
    else:
        known["vocabulary"] = tokenizer.get_vocab()
        known["options"] = {name: str(value) for name, value in sorted(tokenizer.init_kwargs.items())}
        known["options"].pop("name_or_path", None)
    return hashlib.blake2b(json.dumps(known, sort_keys=True, default=str).encode(), digest_size=16).hexdigest()


def texts_of(run: Run, split: str) -> dict:
    """What the texts of a split of a run depend on. Those to train on: the content of their files, what is done to
    them, and which of the files validate with a part of their sentences."""
    examples, noted = run.examples[split], run.arguments
    if split != "train":
        return {"texts": texts_hash(examples)}
    data = {name: value for name, value in training_data(noted["data"]).items() if name not in NOT_OF_TEXTS}
    files = [each.get("blake2b") or each for each in noted["files"]["train"]]
    if not (files and examples.is_of_files):
        return {"task": noted["task"], "data": data, "files": texts_hash(examples)}
    shared = {SHARED: found} if (found := noted["files"].get(SHARED)) is not None else {}
    return {"task": noted["task"], "data": data, "files": files} | shared


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


def prepare_data(run: Run, split: str, kind: str, key: dict, write: Callable[[Path], dict]) -> tuple[Path, dict]:
    """Prepares what the texts of a split and `key` determine, for all processes of a run. Returns the folder and what
    `prepare_once` returns."""
    data, key = run.data_args, key | texts_of(run, split)
    folder = prepared_folder(data.prepared_dir, kind, key)
    with run.args.main_process_first(desc=f"preparing the {kind} data"):
        return folder, prepare_once(folder, key, write)


def in_batches(items: Iterable) -> Iterator[list]:
    """Yields `BATCH_ROWS` items at a time."""
    remaining = iter(items)
    while batch := list(islice(remaining, BATCH_ROWS)):
        yield batch


def write_rows(batches: Iterable[dict], features: datasets.Features, folder: Path) -> None:
    """Writes batches of rows, each a mapping of columns, into a folder."""
    with ArrowWriter(features=features, path=str(folder / ROWS)) as writer:
        for batch in batches:
            writer.write_batch(batch)
        writer.finalize()


def open_rows(folder: Path) -> datasets.Dataset:
    """What `write_rows` wrote, mapped into memory."""
    return datasets.Dataset.from_file(str(folder / ROWS))
