# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Labelled sentences, or pairs of sentences, from files and datasets, and their held-out parts."""

import csv
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...options import option
from ...text_files import read_lines
from ..arguments import BaseDataArguments
from ..data import read_dataset, read_json_lines
from ..records import held_out


INTEGER = re.compile(r"[+-]?[0-9]+")


@dataclass
class DataArguments(BaseDataArguments):
    """The examples, and how they are split."""

    train_file: str | None = option("Training examples: .txt, .csv or .jsonl.", affects="files", aliases=["--train"])
    validation_file: str | None = option(
        "Validation examples, in the same formats.", affects="files", aliases=["--validation"]
    )
    test_file: str | None = option("Test examples, in the same formats.", affects="files", aliases=["--test"])
    text_column: str = option("Column with the sentence, in a dataset, .csv or .jsonl.", "text")
    text_pair_column: str | None = option("Column with the second sentence; default: none.")
    label_column: str = option("Column with the label.", "label")
    ignored_labels: list[str] | None = option(
        "Leave out examples with these labels, such as '-' in SNLI or -1; default: none."
    )
    validation_size: float = option(
        "Share (0 to 1) of the training examples for validation, if there is no --validation_file.",
        0.0,
        affects="examples",
        least=0,
        below=1,
    )
    test_size: float = option(
        "Share (0 to 1) of the training examples for the test, if there is no --test_file.",
        0.0,
        affects="examples",
        least=0,
        below=1,
    )
    cross_validation: int | None = option(
        "Number of cross-validation folds; each is the test set of one model; default: none.",
        affects="examples",
        least=2,
    )
    split_seed: int = option("Random seed for splitting the examples.", 42, affects="examples")
    max_length: int | None = option("Maximum length of an example in words; default: no limit.", least=1)
    seeds: list[int] | None = option("Train one model for each of these seeds; default: --seed.", affects="call")


class Examples(NamedTuple):
    """Sentences, second sentences or None, and labels, all of the same length."""

    texts: list[str]
    pairs: list[str] | None
    labels: list[str]

    def take(self, indices: Iterable[int]) -> "Examples":
        return Examples(*(each and [each[i] for i in indices] for each in self))


def read_examples(path: str, args: DataArguments) -> Examples:
    """The examples of a file; the end of its name gives the format.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: the format is unknown; a line has no label or no text; or the columns are missing.
    """
    suffix = Path(path.removesuffix(".gz")).suffix
    if suffix == ".csv":
        return examples_of(read_csv(path), path, args)
    if suffix in (".json", ".jsonl"):
        return examples_of(read_json_lines(path), path, args)
    if suffix != ".txt":
        raise ValueError(
            f"{path}: examples are in a .txt (`label words ...` a line), .csv, .json or .jsonl file, or one of these "
            f"with .gz, not {suffix!r}. Rename or convert the file."
        )
    pairs = (line.split(maxsplit=1) for line in read_lines(path))
    records = (dict(zip((args.label_column, args.text_column), [*pair, "", ""])) for pair in pairs)
    if args.text_pair_column:
        raise ValueError(
            f"{path} has no columns: --text_pair_column {args.text_pair_column} needs a .csv or .jsonl file."
        )
    return examples_of(records, path, args)


def read_csv(path: str) -> list[dict]:
    """The records of a .csv file; ValueError if a quote is not closed, or continues after its end."""
    try:
        return list(csv.DictReader((f"{line}\n" for line in read_lines(path)), strict=True))
    except csv.Error as error:
        raise ValueError(f"{path}: {error}. Quotes are closed, and those within a text are doubled.") from error


def examples_of(records: Iterable[dict], name: str, args: DataArguments) -> Examples:
    """The examples in mappings with the columns that the arguments name."""
    columns = [args.text_column, args.label_column, *([args.text_pair_column] if args.text_pair_column else [])]
    rows = []
    for number, record in enumerate(records, 1):
        if not isinstance(record, dict) or not set(columns) <= set(record):
            raise ValueError(
                f"{name}, record {number} lacks one of {', '.join(columns)} (--text_column, --label_column, "
                f"--text_pair_column): {str(record)[:200]}"
            )
        values = [str(record[column]).strip() if record[column] is not None else "" for column in columns]
        if values[1] in (args.ignored_labels or ()):
            continue
        if not all(values):
            raise ValueError(f"{name}, record {number} has no text or no label: {str(record)[:200]}")
        rows.append(values)
    if not rows:
        raise ValueError(f"{name} has no examples.")
    texts, labels, *pairs = map(list, zip(*rows))
    return Examples(texts, pairs[0] if pairs else None, labels)


def read_split(args: DataArguments, split: str) -> Examples | None:
    """The examples of "train", "validation" or "test" from wherever the arguments say; None if they do not."""
    path = getattr(args, f"{split}_file")
    if path:
        examples = read_examples(path, args)
    elif args.dataset_name and not held_out(vars(args), split):
        examples = examples_of(read_dataset(args, split), f"{args.dataset_name} ({split})", args)
    else:
        return None
    return examples.take(range(min(args.max_samples(split) or len(examples.labels), len(examples.labels))))


def make_splits(
    given: dict[str, Examples | None], args: DataArguments, needed: dict[str, bool], fold: int | None
) -> dict[str, Examples]:
    """The examples of each needed split; where there are no files, part of the training examples is held out.

    Raises:
        ValueError: a needed split has no examples.
    """
    splits = {split: examples for split, examples in given.items() if examples is not None}
    if "train" in splits:
        order = np.random.default_rng(args.split_seed).permutation(len(splits["train"].labels))
        parts = {}
        if fold is not None and args.cross_validation > len(order):
            raise ValueError(
                f"--cross_validation {args.cross_validation} needs at least as many examples, but there are "
                f"{len(order)}."
            )
        if fold is not None:
            parts["test"] = order[fold :: args.cross_validation]
            order = np.setdiff1d(order, parts["test"], assume_unique=True)
            order = np.random.default_rng((args.split_seed, fold)).permutation(order)
        for split in ("test", "validation"):
            is_of_file = getattr(args, f"{split}_file") is not None
            if split not in splits and not is_of_file and getattr(args, f"{split}_size"):
                share, count = getattr(args, f"{split}_size"), len(splits["train"].labels)
                number = round(share * count)
                if not number:
                    raise ValueError(f"--{split}_size {share} of {count} examples is none: give a larger share.")
                parts[split], order = order[:number], order[number:]
        whole = splits["train"]
        splits |= {split: whole.take(np.sort(indices)) for split, indices in parts.items()}
        if parts:
            splits["train"] = whole.take(np.sort(order))
    for split, need in needed.items():
        if need and not (split in splits and splits[split].labels):
            others = "" if split == "train" else f", or --{split}_size"
            raise ValueError(f"No {split} examples: give --{split}_file or --dataset_name{others}.")
    return {split: examples for split, examples in splits.items() if needed[split]}


def find_labels(given: dict[str, Examples | None]) -> list[str]:
    """The labels of the examples: numbers by size, other labels in alphabetical order."""
    labels = {label for examples in given.values() if examples for label in examples.labels}
    return sorted(labels, key=(lambda label: (int(label), label)) if all(map(INTEGER.fullmatch, labels)) else None)
