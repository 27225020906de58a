# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Examples from files and datasets: records, and pairs of texts, which are read one after the other."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path

import datasets
import pyarrow
import pyarrow.parquet

from ..text_files import iterate_lines, parse_json
from .arguments import BaseDataArguments
from .records import set_name


logger = logging.getLogger(__name__)


# A pair of texts; the target of one to predict may not be known.
Pair = tuple[str, str | None]
# Names of files or datasets, and what opens each.
Corpora = Sequence[tuple[str, Callable[[], Iterable]]]


def read_json_lines(path: str) -> Iterator:
    """What a file has in its lines, JSON each; ValueError if a line is not JSON."""
    for number, line in enumerate(iterate_lines(path), 1):
        yield parse_json(line, f"{path}, line {number},")


def read_dataset(args: BaseDataArguments, split: str) -> datasets.Dataset:
    """Split "train", "validation" or "test" of `dataset_name`; ValueError if it has none."""
    splits = datasets.load_dataset(args.dataset_name, args.dataset_config_name)
    if split not in splits:
        raise ValueError(f"{args.dataset_name} has no split {split!r}, only {', '.join(splits)}.")
    return splits[split]


def read_records(args: BaseDataArguments, split: str) -> Iterator[dict]:
    """The records of a split of `dataset_name`, see `read_dataset`, one after the other."""
    for batch in read_dataset(args, split).with_format("arrow").iter(1000):
        yield from batch.to_pylist()


def read_jsonl(path: str, columns: dict[str, str | None]) -> Iterator[Pair]:
    """Pairs from a file of one JSON object a line; see `pairs_from_records`."""
    return pairs_from_records(read_json_lines(path), columns, path, "line")


def read_parquet(path: str) -> Iterator[dict]:
    """The rows of a parquet file; ValueError if it is another one."""
    try:
        for batch in pyarrow.parquet.ParquetFile(path).iter_batches(1000):
            yield from batch.to_pylist()
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{path} is not a complete parquet file ({error}).") from error


def read_tsv(path: str) -> Iterator[Pair]:
    for number, line in enumerate(iterate_lines(path), 1):
        row = line.split("\t")
        if len(row) != 2:
            raise ValueError(
                f"{path}, line {number}: {len(row)} columns, expected source<TAB>target. Texts with tabs are given in "
                ".jsonl, or in one file per side (--train_source_file, ...)."
            )
        yield row[0], row[1]


def read_sources(path: str) -> Iterator[Pair]:
    """The lines of a text file, whose targets are not known."""
    return ((line, None) for line in iterate_lines(path))


def read_table(path: str, columns: dict[str, str | None]) -> Iterator[Pair]:
    """Pairs from a TSV file or, by its name, a jsonl or parquet file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is in another format, or a line is not a pair.
    """
    suffix = Path(path.removesuffix(".gz")).suffix
    if suffix == ".tsv":
        return read_tsv(path)
    if suffix in (".json", ".jsonl"):
        return read_jsonl(path, columns)
    if path.endswith(".parquet"):
        return pairs_from_records(read_parquet(path), columns, path, "row")
    raise ValueError(
        f"{path}: pairs in one file must be .tsv, .json or .jsonl (or these with .gz), or .parquet, not {suffix!r}. "
        "Lines are --train_source_file and --train_target_file; of test data, sources alone are --test_source_file."
    )


def pairs_from_records(
    records: Iterable, columns: dict[str, str | None], name: str, unit: str = "record"
) -> Iterator[Pair]:
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
    for number, record in enumerate(records, 1):
        if isinstance(record, dict) and isinstance(record.get("translation"), dict):
            record = record["translation"]
        if not isinstance(record, dict):
            raise ValueError(f"{name}, {unit} {number} is not an object with {' and '.join(columns.values())}.")
        pair = tuple(record.get(column) for column in columns.values())
        if not all(isinstance(text, str) for text in pair):
            raise ValueError(
                f"{name}, {unit} {number}: no text under {' and '.join(columns.values())} ({options}); its keys are "
                f"{', '.join(record)}."
            )
        yield pair


class TrainingExamples:
    """The pairs or lines to train on, at most `max_train_samples` of each corpus, which are read anew in every
    iteration, one corpus after the other.

    Args:
        corpora: Names, for errors and logs, and what opens each corpus; called for every iteration.
        args: Data arguments. Where one of their files is a pipe, the examples stay in memory.

    Raises:
        ValueError: there are not as many weights or tags as corpora.
    """

    def __init__(self, corpora: Corpora, args: BaseDataArguments):
        self.names = [name for name, _ in corpora]
        for option in ("train_weights", "train_tags"):
            given = vars(args).get(option)
            if given and len(given) != len(corpora):
                raise ValueError(
                    f"--{option} {' '.join(map(repr, given))}: {len(given)} for {len(corpora)} corpora "
                    f"({self.name}): give one for each."
                )
        limit = args.max_samples("train")
        first = lambda read: islice(read(), limit)  # noqa: E731
        self.reads: list[Callable[[], Iterator]] = [partial(first, read) for _, read in corpora]
        # A pipe can be read only once.
        self.is_of_files = all(path.is_file() or not path.exists() for path in args.files("train"))
        if not self.is_of_files:
            self.reads = [list(read()).__iter__ for read in self.reads]

    @property
    def name(self) -> str:
        return ", ".join(self.names)

    def __iter__(self) -> Iterator:
        return chain.from_iterable(read() for read in self.reads)


def pairs_of(
    corpora: Corpora, split: str, args: BaseDataArguments
) -> list[Pair] | dict[str, list[Pair]] | TrainingExamples:
    """The pairs of all corpora to train on. For an evaluation, as many pairs as are asked for: of the only corpus, or
    of each by the name of its file, without folders and ending.

    Raises:
        ValueError: no pair of an evaluation has text on both sides, or two evaluations have the same name.
    """
    if split == "train":
        return TrainingExamples(corpora, args)
    found = {set_name(name): check_pairs(read, name, split, args) for name, read in corpora}
    if len(found) < len(corpora):
        raise ValueError(
            f"The {split} files {' '.join(name for name, _ in corpora)}: two have the same name, without folders and "
            "ending, by which metrics are named; rename a file."
        )
    return found if len(found) > 1 else found.popitem()[1]


def check_pairs(read: Callable[[], Iterable[Pair]], name: str, split: str, args: BaseDataArguments) -> list[Pair]:
    """As many pairs of an evaluation as are asked for.

    Raises:
        ValueError: no pair has text on both sides.
    """
    pairs = list(islice(read(), args.max_samples(split)))
    empty = sum(not all(text is None or text.strip() for text in pair) for pair in pairs)
    if empty == len(pairs):
        raise ValueError(f"{name} holds no pair with text on both sides ({len(pairs)} lines read).")
    if empty:
        logger.warning("%s: %d of %d pairs have an empty side; they are kept", name, empty, len(pairs))
    logger.info("%s: %d pairs", name, len(pairs))
    return pairs
