# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Rules that remove pairs from training data, as the papers' scripts do. Words are separated by white space."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Cleaning:
    """The active rules; None and False: off. Pairs with an empty side are always removed.

    Args:
        min_words, max_words: Fewest and most words of a side.
        max_length_ratio: Most words of the longer side for each word of the shorter one.
        drop_copies: Whether to remove pairs whose target equals the source.
    """

    min_words: int | None = None
    max_words: int | None = None
    max_length_ratio: float | None = None
    drop_copies: bool = False

    def broken_rule(self, source: str, target: str) -> str | None:
        """The name of the first rule that a pair breaks; None if it is kept."""
        fewest, most = sorted((len(source.split()), len(target.split())))
        if not fewest:
            return "empty side"
        if self.min_words is not None and fewest < self.min_words:
            return f"min_words {self.min_words}"
        if self.max_words is not None and most > self.max_words:
            return f"max_words {self.max_words}"
        if self.max_length_ratio is not None and most > self.max_length_ratio * fewest:
            return f"max_length_ratio {self.max_length_ratio}"
        return "drop_copies" if self.drop_copies and source == target else None

    def kept(self, pairs: Iterable[tuple[str, str]], removed: Counter[str]) -> Iterator[tuple[int, str, str]]:
        """Yields the pairs that break no rule, with their places in the data; `removed` counts the others by rule."""
        for place, (source, target) in enumerate(pairs):
            if rule := self.broken_rule(source, target):
                removed[rule] += 1
            else:
                yield place, source, target
