# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Rules that take pairs out of training data, as the scripts of the papers do, and a table of what they took.

Words are what white space separates. A pair is taken by the first rule of `RULES` that it breaks.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
from sacremoses import MosesPunctNormalizer


# Pairs of each rule that are shown.
SAMPLE = 5
# What a rule that changes pairs, and takes none, is called in the table.
CHANGED = "normalize_punctuation (changed)"


@dataclass(frozen=True)
class Cleaning:
    """Which rules are on; None and False: off. Pairs with an empty side are always taken.

    Args:
        normalize_punctuation: Whether to normalise punctuation as Moses' `normalize-punctuation.perl`, before all.
        languages: Of the sources and targets, whose punctuation that is.
        min_words, max_words: Fewest and most words of a side.
        max_length_ratio: Most words of the longer side for each of the shorter one.
        drop_without_letters: Whether to take pairs of which a side has no letter.
        drop_copies: Whether to take pairs whose target is their source.
        drop_duplicates: Whether to take pairs that came before.
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
        """Of the rules that are on, whether a pair breaks them, by name. That of duplicates is not among them."""
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
        """The rules that arguments of these names ask for."""
        names = [each.name for each in fields(cls) if each.name != "languages"]
        return cls(**{name: getattr(values, name) for name in names}, languages=languages)


class Chunk(NamedTuple):
    """Pairs in the order of the data, with their places in it."""

    places: np.ndarray
    sources: list[str]
    targets: list[str]

    def select(self, kept: Sequence[int] | np.ndarray) -> "Chunk":
        return Chunk(self.places[kept], [self.sources[i] for i in kept], [self.targets[i] for i in kept])


@dataclass
class Taken:
    """How many pairs were read, how many each rule took, and the first ones of them.

    Args:
        read: All pairs.
        counts: By rule.
        sample: (place in the data, source, target) by rule.
    """

    read: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    sample: dict[str, list[tuple[int, str, str]]] = field(default_factory=dict)

    def add(self, rule: str, chunk: Chunk, i: int) -> None:
        self.counts[rule] += 1
        shown = self.sample.setdefault(rule, [])
        if len(shown) < SAMPLE:
            shown.append((int(chunk.places[i]), chunk.sources[i], chunk.targets[i]))

    def update(self, other: "Taken") -> None:
        """Adds what was taken of the pairs that come next."""
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
    """Applies the rules to chunks of pairs; all but that of duplicates, for which it computes their hashes."""

    def __init__(self, cleaning: Cleaning):
        self.cleaning = cleaning
        self.rules = cleaning.rules()
        self.normalizers = (
            [MosesPunctNormalizer(lang=language) for language in cleaning.languages]
            if cleaning.normalize_punctuation
            else []
        )

    def __call__(self, chunk: Chunk) -> tuple[Chunk, Taken, np.ndarray | None]:
        """The pairs that are left, what was taken, and a hash of each pair that is left, (pairs,) of 64 bits, if
        duplicates are to be found."""
        taken = Taken(read=len(chunk.places))
        if self.normalizers:
            sides = [
                [normalizer.normalize(text) for text in texts]
                for normalizer, texts in zip(self.normalizers, (chunk.sources, chunk.targets))
            ]
            for i, pair in enumerate(zip(*sides)):
                if pair != (chunk.sources[i], chunk.targets[i]):
                    taken.add(CHANGED, chunk, i)
            chunk = Chunk(chunk.places, *sides)
        kept = []
        for i, pair in enumerate(zip(chunk.sources, chunk.targets)):
            broken = next((rule for rule, breaks in self.rules.items() if breaks(*pair)), None)
            if broken is None:
                kept.append(i)
            else:
                taken.add(broken, chunk, i)
        if len(kept) < len(chunk.places):
            chunk = chunk.select(kept)
        hashes = None
        if self.cleaning.drop_duplicates:
            digests = [
                blake2b(f"{source}\0{target}".encode(), digest_size=8).digest()
                for source, target in zip(chunk.sources, chunk.targets)
            ]
            hashes = np.frombuffer(b"".join(digests), dtype=np.uint64)
        return chunk, taken, hashes


class SeenHashes:
    """A set of hashes of 8 bytes each, in sorted arrays of which each is at least twice as long as the next."""

    def __init__(self):
        self.arrays: list[np.ndarray] = []

    def add(self, hashes: np.ndarray) -> np.ndarray:
        """Adds hashes; returns the places, in ascending order, of those that were not there, the first of each."""
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


def drop_duplicates(chunk: Chunk, hashes: np.ndarray, seen: SeenHashes, taken: Taken) -> Chunk:
    """The pairs of a chunk that no chunk had before; the others are added to what was taken."""
    kept = seen.add(hashes)
    if len(kept) == len(chunk.places):
        return chunk
    for i in np.setdiff1d(np.arange(len(chunk.places)), kept):
        taken.add("drop_duplicates", chunk, i)
    return chunk.select(kept)
