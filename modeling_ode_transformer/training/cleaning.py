# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Rules that remove pairs from training data, as the papers' scripts do. Words are separated by white space."""

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class Cleaning:
    """The active rules; None and False: off. Pairs with an empty side are always removed.

    Args:
        min_words, max_words: Fewest and most words of a side.
        max_length_ratio: Most words of the longer side for each word of the shorter one.
        drop_copies: Whether to remove pairs whose target equals the source.
        count_characters: The sides, "source" or "target", of which characters other than white space count as words.
    """

    min_words: int | None = None
    max_words: int | None = None
    max_length_ratio: float | None = None
    drop_copies: bool = False
    count_characters: Collection[str] = ()

    def broken_rule(self, source: str, target: str) -> str | None:
        """The name of the first rule that a pair breaks; None if it is kept."""
        words = {"source": source.split(), "target": target.split()}
        fewest, most = sorted(
            sum(map(len, each)) if side in self.count_characters else len(each) for side, each in words.items()
        )
        if not fewest:
            return "empty side"
        if self.min_words is not None and fewest < self.min_words:
            return f"min_words {self.min_words}"
        if self.max_words is not None and most > self.max_words:
            return f"max_words {self.max_words}"
        if self.max_length_ratio is not None and most > self.max_length_ratio * fewest:
            return f"max_length_ratio {self.max_length_ratio}"
        return "drop_copies" if self.drop_copies and source == target else None
