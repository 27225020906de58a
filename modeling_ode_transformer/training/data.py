# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Examples from files and datasets: records, and pairs of texts."""

import json
import logging
from collections.abc import Iterable
from pathlib import Path

import datasets

from ..text_files import read_lines
from .arguments import BaseDataArguments


logger = logging.getLogger(__name__)


def read_json_lines(path: str) -> list:
    """What a file has in its lines, JSON each.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a line is not JSON, or not text.
    """
    records = []
    for number, line in enumerate(read_lines(path), 1):
        try:
            records.append(json.loads(line))
            if "\\ud" in line.lower():
                json.dumps(records[-1], ensure_ascii=False).encode()
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {number}: not a JSON object ({error}).") from error
        except UnicodeEncodeError as error:
            raise ValueError(f"{path}, line {number}: half of a surrogate pair, which is no character.") from error
    return records


def read_dataset(args: BaseDataArguments, split: str) -> datasets.Dataset:
    """Split "train", "validation" or "test" of `dataset_name`; ValueError if it has none."""
    splits = datasets.load_dataset(args.dataset_name, args.dataset_config_name)
    if split not in splits:
        raise ValueError(f"{args.dataset_name} has no split {split!r}, only {', '.join(splits)}.")
    return splits[split]


def read_jsonl(path: str, columns: dict[str, str | None]) -> list[tuple[str, str]]:
    """Pairs from a file of one JSON object a line; see `pairs_from_records`."""
    return pairs_from_records(read_json_lines(path), columns, path, "line")


def read_table(path: str, columns: dict[str, str | None]) -> list[tuple[str, str]]:
    """Pairs from a TSV file or, by its name, a jsonl file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is in another format, or a line is not a pair.
    """
    suffix = Path(path.removesuffix(".gz")).suffix
    if suffix == ".tsv":
        rows = [line.split("\t") for line in read_lines(path)]
        for number, row in enumerate(rows, 1):
            if len(row) != 2:
                raise ValueError(f"{path}, line {number}: {len(row)} columns, expected source<TAB>target.")
        return [(source, target) for source, target in rows]
    if suffix in (".json", ".jsonl"):
        return read_jsonl(path, columns)
    raise ValueError(f"{path}: pairs in one file must be .tsv, .json or .jsonl (or these with .gz), not {suffix!r}.")


def pairs_from_records(
    records: Iterable, columns: dict[str, str | None], name: str, unit: str = "record"
) -> list[tuple[str, str]]:
    """Pairs from mappings such as `{"en": ..., "de": ...}`, or `{"translation": {"en": ..., "de": ...}}`.

    Args:
        records: The mappings, which may have other keys too.
        columns: The keys of source and target, in this order, by the names of the arguments that they come from.
        name: Of the file or dataset, for errors.
        unit: What one of its mappings is, for errors.

    Raises:
        ValueError: a key is not given; a record is not a mapping, or holds no text under one of the keys.
    """
    options = " and ".join(f"--{option}" for option in columns)
    if None in columns.values():
        raise ValueError(f"{name} needs {options}: the keys of its source and target.")
    pairs = []
    for number, record in enumerate(records, 1):
        if isinstance(record, dict) and isinstance(record.get("translation"), dict):
            record = record["translation"]
        if not isinstance(record, dict):
            raise ValueError(f"{name}, {unit} {number}: not an object with {' and '.join(columns.values())}.")
        pair = tuple(record.get(column) for column in columns.values())
        if not all(isinstance(text, str) for text in pair):
            raise ValueError(
                f"{name}, {unit} {number}: no text under {' and '.join(columns.values())} ({options}); its keys are "
                f"{', '.join(record)}."
            )
        pairs.append(pair)
    return pairs


def check_pairs(
    pairs: list[tuple[str, str | None]], name: str, split: str, args: BaseDataArguments
) -> list[tuple[str, str | None]]:
    """The pairs to use: as many as asked for, in training without those that have an empty side.

    Raises:
        ValueError: no pair has text on both sides.
    """
    pairs = pairs[: args.max_samples(split)]
    full = [pair for pair in pairs if all(text is None or text.strip() for text in pair)]
    if not full:
        raise ValueError(f"{name} holds no pair with text on both sides ({len(pairs)} lines read).")
    if len(full) < len(pairs) and split == "train":
        logger.warning("%s: dropped %d of %d pairs with an empty side", name, len(pairs) - len(full), len(pairs))
        pairs = full
    elif len(full) < len(pairs):
        logger.warning("%s: %d of %d pairs have an empty side; kept", name, len(pairs) - len(full), len(pairs))
    logger.info("%s: %d pairs", name, len(pairs))
    return pairs
