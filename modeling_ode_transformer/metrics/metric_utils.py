# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Shared helpers of the metrics: checks of their inputs, and their `evaluate` modules."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any


def check_counts(**lists: Sequence) -> None:
    """Raises a ValueError with the counts unless all lists have the same number of items, at least one."""
    counts = {name: len(items) for name, items in lists.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{count} {name}" for name, count in counts.items())
        raise ValueError(f"Got {listed}: there must be one of each for every text.")
    if not any(counts.values()):
        raise ValueError(f"Got no {' and no '.join(counts)}: there is nothing to score.")


def check_lists(**lists: Sequence) -> None:
    """Like `check_counts`; also raises a TypeError for a string or None in place of a list."""
    for name, items in lists.items():
        if items is None or isinstance(items, str):
            given = "None" if items is None else f"the text {items[:40]!r}"
            raise TypeError(f"{name} must be a list of texts, but is {given}.")
    check_counts(**lists)


def check_texts(name: str, texts: Sequence[str]) -> None:
    """Raises a TypeError with the index of what is not a text."""
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"The {name} of index {index} must be a text, but is {text!r}.")


def reference_lists(predictions: Sequence[str], references: Sequence[str | Sequence[str]]) -> list[list[str]]:
    """The references of each prediction as a list, whether one text or several are given.

    Raises:
        ValueError: there are no predictions, not as many references, or a prediction without a reference.
        TypeError: one string is given in place of a list, or something else in place of a text.
    """
    check_lists(predictions=predictions, references=references)
    lists = [
        list(texts) if isinstance(texts, Iterable) and not isinstance(texts, str) else [texts] for texts in references
    ]
    for index, (prediction, texts) in enumerate(zip(predictions, lists)):
        if not texts:
            raise ValueError(f"The prediction of index {index} has no reference: give at least one for each.")
        for name, text in (("prediction", prediction), *(("reference", text) for text in texts)):
            if not isinstance(text, str):
                raise TypeError(f"The {name} of index {index} must be a text, but is {text!r}.")
    return lists


class CheckedLists:
    """Goes before the class of `evaluate` in a metric's bases. `evaluate` treats a string as a list of its characters,
    and fails without a reason if a list is empty or missing; here `check_lists` gives the reason."""

    def add_batch(self, **lists: Sequence) -> None:
        """Adds texts, a list under each name; `compute` does so too."""  # evaluate appends to this docstring
        check_lists(**lists)
        super().add_batch(**lists)


def text_features(*names: str) -> list:
    """The inputs that `evaluate` accepts: a text under each name, and one text or a list of texts as `references`."""
    import datasets

    text = datasets.Value("string")
    texts = dict.fromkeys(names, text)
    return [datasets.Features(texts | {"references": references}) for references in (datasets.List(text), text)]


def plain_features(*names: str):
    """The inputs that `evaluate` accepts: a text under each name."""
    import datasets

    return datasets.Features(dict.fromkeys(names, datasets.Value("string")))


def metric_of_evaluate(namespace: dict, name: str, methods: type, base: str = "Metric") -> Callable[[str], Any]:
    """A module's `__getattr__` that makes its class for `evaluate` on first access. The reason: `evaluate` imports
    torch, which functions and commands do not need. In the copy of the file that `evaluate.load` imports, the class
    exists at once.

    Args:
        namespace: The module's namespace.
        name: Name of the class.
        methods: A class with its own methods.
        base: The base class in `evaluate`.
    """

    def get(asked: str) -> type:
        if asked != name:
            raise AttributeError(f"module {namespace['__name__']!r} has no attribute {asked!r}")
        import evaluate

        own = {"__module__": namespace["__name__"], "__doc__": methods.__doc__}
        namespace[name] = type(name, (methods, getattr(evaluate, base)), own)
        return namespace[name]

    if namespace["__name__"].partition(".")[0] != __name__.partition(".")[0]:
        get(name)
    return get
