# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Rules that remove pairs from training data, as the papers' scripts do, and a table of the removed pairs.

Words are separated by white space. The first rule of `RULES` that a pair breaks removes it.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np


# The number of removed pairs shown for each rule.
SAMPLE = 5
# The table's name for a rule that changes pairs but removes none.
CHANGED = "normalize_punctuation (changed)"


@dataclass(frozen=True)
class Cleaning:
    """The active rules; None and False: off. Pairs with an empty side are always removed.

    Args:
        normalize_punctuation: Whether to normalize punctuation first, like Moses' `normalize-punctuation.perl`.
        languages: Languages of the sources and targets, which determine the punctuation.
        min_words, max_words: Fewest and most words of a side.
        max_length_ratio: Most words of the longer side for each word of the shorter one.
        drop_without_letters: Whether to remove pairs with a side without letters.
        drop_copies: Whether to remove pairs whose target equals the source.
        drop_duplicates: Whether to remove pairs that occurred before.
    """

    normalize_punctuation: bool = False
    languages: tuple[str, str] = ("en", "en")
    min_words: int | None = None
    max_words: int | None = None
    max_length_ratio: float | None = None
    drop_without_letters: bool = False
    drop_copies: bool = False
    drop_duplicates: bool = False

    def rules(self) -> dict[str, Callable[[str, str], bool]]:
        """Functions, by name, that say whether a pair breaks an active rule; all rules but the one for duplicates."""
        low, high, ratio = self.min_words, self.max_words, self.max_length_ratio

        def lengths(*pair):
            return [len(text.split()) for text in pair]

        def has_letter(text):
            return any(map(str.isalpha, text))

        rules: dict[str, tuple[bool, Callable[..., bool]]] = {
            "empty side": (True, lambda *pair: not all(map(str.strip, pair))),
            f"min_words {low}": (low is not None, lambda *pair: min(lengths(*pair)) < low),
            f"max_words {high}": (high is not None, lambda *pair: max(lengths(*pair)) > high),
            f"max_length_ratio {ratio}": (
                ratio is not None,
                lambda *pair: max(words := lengths(*pair)) > ratio * min(words),
            ),
            "drop_without_letters": (self.drop_without_letters, lambda *pair: not all(map(has_letter, pair))),
            "drop_copies": (self.drop_copies, lambda source, target: source == target),
        }
        return {name: breaks for name, (is_on, breaks) in rules.items() if is_on}

    @classmethod
    def of(cls, values: Any, languages: tuple[str, str]) -> "Cleaning":
        """Makes the rules from arguments of the same names."""
        names = [each.name for each in fields(cls) if each.name != "languages"]
        return cls(**{name: getattr(values, name) for name in names}, languages=languages)


class Chunk(NamedTuple):
    """Pairs in the order of the data, with their positions in it."""

    places: np.ndarray
    sources: list[str]
    targets: list[str]

    def select(self, kept: Sequence[int] | np.ndarray) -> "Chunk":
        return Chunk(self.places[kept], [self.sources[i] for i in kept], [self.targets[i] for i in kept])


@dataclass
class Removed:
    """Counts of the pairs read and of those that each rule removed, with the first ones of each.

    Args:
        read: The number of pairs read.
        counts: Numbers of removed pairs by rule.
        sample: Lists of (position in the data, source, target) by rule.
    """

    read: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    sample: dict[str, list[tuple[int, str, str]]] = field(default_factory=dict)

    def add(self, rule: str, chunk: Chunk, i: int) -> None:
        self.counts[rule] += 1
        shown = self.sample.setdefault(rule, [])
        if len(shown) < SAMPLE:
            shown.append((int(chunk.places[i]), chunk.sources[i], chunk.targets[i]))

    def update(self, other: "Removed") -> None:
        """Adds the counts of the next pairs."""
        self.read += other.read
        self.counts.update(other.counts)
        for rule, pairs in other.sample.items():
            self.sample[rule] = (self.sample.get(rule, []) + pairs)[:SAMPLE]

    @property
    def kept(self) -> int:
        return self.read - sum(count for rule, count in self.counts.items() if rule != CHANGED)

    def table(self) -> str:
        """Markdown: the counts, then the sample."""
        rows = [*self.counts.items(), ("kept", self.kept), ("read", self.read)]
        lines = ["| rule | pairs | share |", "| --- | --- | --- |"]
        lines += [f"| {rule} | {count:,} | {count / max(self.read, 1):.2%} |" for rule, count in rows]
        for rule, pairs in self.sample.items():
            lines += ["", f"{rule}:", ""]
            lines += [f"- pair {number}: {source!r} / {target!r}" for number, source, target in pairs]
        return "\n".join(lines) + "\n"


class Cleaner:
    """Applies the rules to chunks of pairs. For the rule for duplicates it only computes hashes."""

    def __init__(self, cleaning: Cleaning):
        self.cleaning = cleaning
        self.rules = cleaning.rules()
        self.normalizers = []
        if cleaning.normalize_punctuation:
            from sacremoses import MosesPunctNormalizer  # takes a while

            self.normalizers = [MosesPunctNormalizer(lang=language) for language in cleaning.languages]

    def __call__(self, chunk: Chunk) -> tuple[Chunk, Removed, np.ndarray | None]:
        """Returns the remaining pairs, the counts of removed ones, and, if duplicates are to be found, a 64-bit hash
        of each remaining pair, (pairs,)."""
        removed = Removed(read=len(chunk.places))
        if self.normalizers:
            sides = [
                [normalizer.normalize(text) for text in texts]
                for normalizer, texts in zip(self.normalizers, (chunk.sources, chunk.targets))
            ]
            for i, pair in enumerate(zip(*sides)):
                if pair != (chunk.sources[i], chunk.targets[i]):
                    removed.add(CHANGED, chunk, i)
            chunk = Chunk(chunk.places, *sides)
        kept = []
        for i, pair in enumerate(zip(chunk.sources, chunk.targets)):
            broken = next((rule for rule, breaks in self.rules.items() if breaks(*pair)), None)
            if broken is None:
                kept.append(i)
            else:
                removed.add(broken, chunk, i)
        if len(kept) < len(chunk.places):
            chunk = chunk.select(kept)
        hashes = None
        if self.cleaning.drop_duplicates:
            digests = [
                blake2b(f"{source}\0{target}".encode(), digest_size=8).digest()
                for source, target in zip(chunk.sources, chunk.targets)
            ]
            hashes = np.frombuffer(b"".join(digests), dtype=np.uint64)
        return chunk, removed, hashes


class SeenHashes:
    """A set of 8-byte hashes in sorted arrays, each at least twice as long as the next."""

    def __init__(self):
        self.arrays: list[np.ndarray] = []

    def add(self, hashes: np.ndarray) -> np.ndarray:
        """Adds hashes. Returns the ascending positions of new ones, the first of each."""
        unique, places = np.unique(hashes, return_index=True)
        is_new = np.ones(len(unique), dtype=bool)
        for array in self.arrays:
            found = np.searchsorted(array, unique).clip(max=len(array) - 1)
            is_new &= array[found] != unique
        if is_new.any():
            self.arrays.append(unique[is_new])
        while len(self.arrays) > 1 and len(self.arrays[-2]) < 2 * len(self.arrays[-1]):
            merged = np.concatenate([self.arrays.pop(), self.arrays.pop()])
            merged.sort(kind="stable")
            self.arrays.append(merged)
        return np.sort(places[is_new])


def drop_duplicates(chunk: Chunk, hashes: np.ndarray, seen: SeenHashes, removed: Removed) -> Chunk:
    """Returns the pairs of a chunk that no earlier chunk had; the others are added to the counts."""
    kept = seen.add(hashes)
    if len(kept) == len(chunk.places):
        return chunk
    for i in np.setdiff1d(np.arange(len(chunk.places)), kept):
        removed.add("drop_duplicates", chunk, i)
    return chunk.select(kept)
