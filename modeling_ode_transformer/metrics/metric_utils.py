# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""What the metrics beside it share: checks of their inputs, and the frame of their commands."""

import json
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import datasets

from modeling_ode_transformer.text_files import read_aligned_lines


def check_counts(**lists: Sequence) -> None:
    """ValueError, which names the counts, unless all lists have the same number of items, at least one."""
    counts = {name: len(items) for name, items in lists.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{count} {name}" for name, count in counts.items())
        raise ValueError(f"Got {listed}: there must be one of each for every text.")
    if not any(counts.values()):
        raise ValueError(f"Got no {' and no '.join(counts)}: there is nothing to score.")


def check_lists(**lists: Sequence) -> None:
    """`check_counts`, and a TypeError if one of them is a string or None in place of a list."""
    for name, items in lists.items():
        if items is None or isinstance(items, str):
            given = "None" if items is None else f"the text {items[:40]!r}"
            raise TypeError(f"{name} must be a list of texts, but is {given}.")
    check_counts(**lists)


def reference_lists(predictions: Sequence[str], references: Sequence[str | Sequence[str]]) -> list[list[str]]:
    """The references of each prediction as a list, from one text or several for each.

    Raises:
        ValueError: there are no predictions, not as many references, or a prediction without a reference.
        TypeError: one string is given in place of a list of them, or something else in place of a text.
    """
    check_lists(predictions=predictions, references=references)
    lists = [
        list(texts) if isinstance(texts, Iterable) and not isinstance(texts, str) else [texts] for texts in references
    ]
    for index, (prediction, texts) in enumerate(zip(predictions, lists)):
        if not texts:
            raise ValueError(f"The prediction of index {index} has no reference: give each at least one.")
        for name, text in (("prediction", prediction), *(("reference", text) for text in texts)):
            if not isinstance(text, str):
                raise TypeError(f"The {name} of index {index} must be a text, but is {text!r}.")
    return lists


class CheckedLists:
    """Goes before the class of `evaluate` in a metric's bases. `evaluate` takes a string for a list of its characters,
    and fails without saying why where a list is empty or missing; here `check_lists` says it."""

    def add_batch(self, **lists: Sequence) -> None:
        """Adds texts, a list under each name; `compute` does so too."""  # evaluate appends to it
        check_lists(**lists)
        super().add_batch(**lists)


def text_features(*names: str) -> list[datasets.Features]:
    """What `evaluate` lets in: texts under each of the names, and as `references` a list of texts for each, or one."""
    text = datasets.Value("string")
    texts = dict.fromkeys(names, text)
    return [datasets.Features(texts | {"references": references}) for references in (datasets.List(text), text)]


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
