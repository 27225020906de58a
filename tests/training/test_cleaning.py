# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Rules that take pairs out of training data."""

from collections import Counter
from types import SimpleNamespace

import pytest

from modeling_ode_transformer.training.cleaning import Cleaning
from modeling_ode_transformer.training.tasks.seq2seq_texts import kept_pairs


PAIRS = [
    ("a b c", "x y z"),
    ("a", "\u3000"),
    ("a b c d", "x"),
    ("one two", "eins zwei drei"),
    ("one", "eins zwei"),
    ("same thing", "same thing"),
    ("word " * 9, "Wort " * 9),
]


@pytest.mark.parametrize(
    "rules, dropped",
    [
        ({}, {}),
        ({"max_length_ratio": 1.5}, {2: "max_length_ratio 1.5", 4: "max_length_ratio 1.5"}),
        ({"max_words": 8}, {6: "max_words 8"}),
        ({"min_words": 2}, {2: "min_words 2", 4: "min_words 2"}),
        ({"drop_copies": True}, {5: "drop_copies"}),
        ({"min_words": 2, "max_length_ratio": 1.4}, {2: "min_words 2", 3: "max_length_ratio 1.4", 4: "min_words 2"}),
    ],
)
def test_a_rule_takes_what_breaks_it_and_says_so(rules, dropped):
    dropped = {1: "empty side"} | dropped
    removed = Counter()
    corpora = SimpleNamespace(reads=[PAIRS[:4].__iter__, PAIRS[4:].__iter__])
    kept = list(kept_pairs(corpora, Cleaning(**rules), removed))
    assert kept == [(i // 4, i, *pair) for i, pair in enumerate(PAIRS) if i not in dropped]
    assert removed == Counter(dropped.values())


def test_characters_are_counted_of_sides_without_spaces():
    """Four words of English, six characters of Chinese."""
    pair = "four words are here", "四个 词在这里"

    def rule(sides, **limits):
        return Cleaning(**limits, count_characters=sides).broken_rule(*pair)

    assert rule((), max_length_ratio=1.5) == "max_length_ratio 1.5"
    assert rule(["target"], max_length_ratio=1.5, max_words=6, min_words=4) is None
    assert rule(["target"], max_length_ratio=1.4) == "max_length_ratio 1.4"
    assert rule(["target"], max_words=5) == "max_words 5"
    assert rule(["source", "target"], min_words=7, max_words=16) == "min_words 7"
    assert rule(["source", "target"], max_words=15) == "max_words 15"
