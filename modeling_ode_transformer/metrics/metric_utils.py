# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""What the metrics beside it share: checks of their inputs, and the frame of their commands."""

import json
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser
from collections.abc import Mapping, Sequence
from typing import Any

from modeling_ode_transformer.text_files import read_aligned_lines


def check_counts(**lists: Sequence) -> None:
    """ValueError, which names the counts, unless all lists have the same number of items, at least one."""
    counts = {name: len(items) for name, items in lists.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{count} {name}" for name, count in counts.items())
        raise ValueError(f"Got {listed}: there must be one of each for every text.")
    if not any(counts.values()):
        raise ValueError(f"Got no {' and no '.join(counts)}: there is nothing to score.")


def reference_lists(predictions: Sequence[str], references: Sequence[str | Sequence[str]]) -> list[list[str]]:
    """The references of each prediction as a list, from one text or several for each.

    Raises:
        ValueError: there are no predictions, not as many references, or a prediction without a reference.
        TypeError: one string is given in place of a list of them.
    """
    for name, texts in (("predictions", predictions), ("references", references)):
        if isinstance(texts, str):
            raise TypeError(f"{name} must be a list of texts, but is the text {texts[:40]!r}.")
    check_counts(predictions=predictions, references=references)
    lists = [[texts] if isinstance(texts, str) else list(texts) for texts in references]
    if [] in lists:
        raise ValueError(f"The prediction of index {lists.index([])} has no reference: give each at least one.")
    return lists


def metric_parser(name: str, description: str) -> ArgumentParser:
    """A parser of arguments for the command of the module of that name, with `--json`."""
    parser = ArgumentParser(
        prog=f"python -m modeling_ode_transformer.metrics.{name}",
        description=description,
        formatter_class=ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, with all digits")
    return parser


def add_text_arguments(parser: ArgumentParser) -> None:
    """Adds `--hypotheses` and `--references`, which `read_texts` reads."""
    parser.add_argument("--hypotheses", required=True, help="file of one text a line, UTF-8 (or .gz)")
    parser.add_argument(
        "--references", required=True, nargs="+", help="one or more such files of as many lines: a reference from each"
    )


def read_texts(hypotheses: str, references: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """The lines of a file of hypotheses, and for each its references, a line from each other file."""
    predictions, *others = read_aligned_lines([hypotheses, *references])
    return predictions, [list(lines) for lines in zip(*others)]


def print_scores(scores: Mapping[str, Any], as_json: bool) -> None:
    """Prints a line for each score, with four decimals, or one JSON object."""
    if as_json:
        print(json.dumps(scores, ensure_ascii=False, indent=2))
        return
    for name, value in scores.items():
        print(f"{name} = {format_value(value)}")


def format_value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, list):
        return " / ".join(map(format_value, value))
    return str(value)
