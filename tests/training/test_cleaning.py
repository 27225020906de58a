# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Rules that take pairs out of training data."""

import random

import numpy as np
import pytest
from sacremoses import MosesPunctNormalizer

from modeling_ode_transformer.training.cleaning import Chunk, Cleaner, Cleaning, Removed, SeenHashes, drop_duplicates


PAIRS = [
    ("a b c", "x y z"),
    ("a", ""),
    ("a b c d", "x"),
    ("one two", "eins zwei drei"),
    ("one", "eins zwei"),
    ("same thing", "same thing"),
    ("1 2 3", "eins 2 3"),
    ("a b c", "x y z"),
    ("word " * 9, "Wort " * 9),
    ("„quoted“ …", "«zitiert»"),
]


def clean(pairs, **rules):
    """The places of what is left, the pairs, and what was removed."""
    chunk, removed, hashes = Cleaner(Cleaning(**rules))(Chunk(np.arange(len(pairs)), *map(list, zip(*pairs))))
    if hashes is not None:
        chunk = drop_duplicates(chunk, hashes, SeenHashes(), removed)
    return chunk.places.tolist(), list(zip(chunk.sources, chunk.targets)), removed


@pytest.mark.parametrize(
    "rules, dropped",
    [
        ({}, {1: "empty side"}),
        (
            {"max_length_ratio": 1.5},
            {1: "empty side", 2: "max_length_ratio 1.5", 4: "max_length_ratio 1.5", 9: "max_length_ratio 1.5"},
        ),
        ({"max_words": 8}, {1: "empty side", 8: "max_words 8"}),
        ({"min_words": 2}, {1: "empty side", 2: "min_words 2", 4: "min_words 2", 9: "min_words 2"}),
        ({"drop_without_letters": True}, {1: "empty side", 6: "drop_without_letters"}),
        ({"drop_copies": True}, {1: "empty side", 5: "drop_copies"}),
        ({"drop_duplicates": True}, {1: "empty side", 7: "drop_duplicates"}),
    ],
)
def test_a_rule_takes_what_breaks_it_and_says_so(rules, dropped):
    places, left, removed = clean(PAIRS, **rules)
    assert places == [i for i in range(len(PAIRS)) if i not in dropped]
    assert left == [PAIRS[i] for i in places]
    names = list(dropped.values())
    assert removed.counts == {name: names.count(name) for name in names}
    assert removed.sample == {name: [(i, *PAIRS[i]) for i, each in dropped.items() if each == name] for name in names}
    assert (removed.read, removed.kept) == (len(PAIRS), len(places))
    for name in names:
        assert f"| {name} | {names.count(name)} | {names.count(name) / len(PAIRS):.2%} |" in removed.table()


def test_punctuation_is_normalized_before_the_other_rules():
    """As sacremoses does, whose rules are those of the languages; what came out the same is a duplicate."""
    pairs = [("„a“ …", "«b»"), ('"a" ...', '"b"'), ("c", "d")]
    _, left, removed = clean(pairs, normalize_punctuation=True, languages=("de", "fr"), drop_duplicates=True)
    expected = [MosesPunctNormalizer("de").normalize("„a“ …"), MosesPunctNormalizer("fr").normalize("«b»")]
    assert left == [tuple(expected), ("c", "d")] and expected[0] == '"a" ...'
    assert removed.counts == {"normalize_punctuation (changed)": 1, "drop_duplicates": 1}
    assert removed.kept == 2


def test_hashes_are_found_again_over_many_chunks():
    """As a Python set finds them, in memory that grows with the hashes only."""
    generator, seen, known = random.Random(0), SeenHashes(), set()
    for _ in range(60):
        hashes = np.array([generator.randrange(3000) for _ in range(generator.randrange(1, 90))], dtype=np.uint64)
        expected = [i for i, value in enumerate(hashes) if value not in known and value not in hashes[:i]]
        assert seen.add(hashes).tolist() == expected
        known |= set(hashes.tolist())
    assert sum(map(len, seen.arrays)) == len(known)
    assert len(seen.arrays) < 10


def test_counts_of_chunks_add_up():
    whole = Removed()
    for number in range(3):
        chunk = Chunk(np.arange(4) + 4 * number, ["a"] * 4, [""] * 4)
        whole.update(Cleaner(Cleaning())(chunk)[1])
    assert (whole.read, whole.kept, whole.counts["empty side"]) == (12, 0, 12)
    assert [number for number, *_ in whole.sample["empty side"]] == [0, 1, 2, 3, 4]
