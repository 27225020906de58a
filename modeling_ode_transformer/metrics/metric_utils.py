# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Checks of what is given to the metrics."""

import unicodedata
from collections.abc import Iterable, Sequence, Sized


def check_lists(**lists: Sized) -> None:
    """Raises a ValueError with the counts unless all lists have the same number of items, at least one, and a
    TypeError for a string or None in place of a list."""
    for name, items in lists.items():
        if items is None or isinstance(items, str):
            given = "None" if items is None else f"the text {items[:40]!r}"
            raise TypeError(f"{name} must be a list of texts, but is {given}.")
    counts = {name: len(items) for name, items in lists.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{count} {name}" for name, count in counts.items())
        raise ValueError(f"Got {listed}: there must be one of each for every text.")
    if not any(counts.values()):
        raise ValueError(f"Got no {' and no '.join(counts)}: there is nothing to score.")


def reference_lists(predictions: Sequence[str], references: Sequence[str | Sequence[str]]) -> list[list[str]]:
    """The references of each prediction as a list, whether one text or several are given.

    Raises:
        ValueError: there are no predictions, not as many references, or a prediction without a reference.
        TypeError: one string is given in place of a list.
    """
    check_lists(predictions=predictions, references=references)
    lists = [[texts] if isinstance(texts, str) else list(texts) for texts in references]
    if [] in lists:
        raise ValueError(f"The prediction of index {lists.index([])} has no reference: give at least one for each.")
    return lists


# Scripts without spaces between words, as Unicode's names of their letters begin.
WITHOUT_SPACES = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")


def share_of_letters(texts: Iterable[str], scripts: Sequence[str]) -> float:
    """The share of the letters of texts that are of some scripts, by the beginning of their Unicode names; 0 without
    letters."""
    letters = [letter for text in texts for letter in text if letter.isalpha()]
    own = sum(unicodedata.name(letter, "").startswith(tuple(scripts)) for letter in letters)
    return own / len(letters) if letters else 0.0
