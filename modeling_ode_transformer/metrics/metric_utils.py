# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Checks of what is given to the metrics."""

import logging
import re
import unicodedata
from collections.abc import Iterable, Sequence, Sized


logger = logging.getLogger(__name__)


def check_lists(**lists: Sized) -> None:
    """Raises a ValueError with the counts unless all lists have the same number of items, at least one; a TypeError if
    one is a text, whose items are characters."""
    if texts := [name for name, items in lists.items() if isinstance(items, str)]:
        raise TypeError(f"{texts[0]} is a text: give a list of texts.")
    counts = {name: len(items) for name, items in lists.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{count} {name}" for name, count in counts.items())
        raise ValueError(f"Got {listed}: there must be one of each for every text.")
    if not any(counts.values()):
        raise ValueError(f"Got no {' and no '.join(counts)}: there is nothing to score.")


def reference_lists(predictions: Sequence[str], references: Sequence[str | Sequence[str]]) -> list[list[str]]:
    """The references of each prediction as a list, whether one text or several are given.

    Raises:
        ValueError: there are no predictions, or not as many references.
    """
    check_lists(predictions=predictions, references=references)
    return [[texts] if isinstance(texts, str) else list(texts) for texts in references]


# Scripts without spaces between words, as Unicode's names of their letters begin.
WITHOUT_SPACES = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")


def share_of_letters(texts: Iterable[str], scripts: Sequence[str]) -> float:
    """The share of the letters of texts that are of some scripts, by the beginning of their Unicode names; 0 without
    letters."""
    letters = [letter for text in texts for letter in text if letter.isalpha()]
    own = sum(unicodedata.name(letter, "").startswith(tuple(scripts)) for letter in letters)
    return own / len(letters) if letters else 0.0


# Punctuation at the end of a word, and between spaces.
JOINED, ALONE = re.compile(r"\w[.,;:!?]+(?!\S)"), re.compile(r"(?<!\S)[.,;:!?]+(?!\S)")


def warn_of_untokenized(**lists: Sequence[str]) -> None:
    """Warns of lists of texts in which punctuation is mostly a part of the word before it, at least in every second
    text. Metrics of corrections take what stands between spaces for a token."""
    for name, texts in lists.items():
        joined, alone = ([text for text in texts for _ in mark.findall(text)] for mark in (JOINED, ALONE))
        if len(joined) > max(len(alone), len(texts) / 2):
            logger.warning(
                "The %s do not seem to be tokenized, as in %r. Corrections are compared token by token: sources, "
                "outputs and references must be tokenized alike, with spaces around punctuation, or the result means "
                "little",
                *(name, joined[0][:80]),
            )
