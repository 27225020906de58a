# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Generated examples."""

from itertools import pairwise

import pytest

from modeling_ode_transformer.metrics.m2 import read_m2
from modeling_ode_transformer.text_files import read_lines
from modeling_ode_transformer.training.smoke import learner_sentences, number_names

from .runs import SIZES


@pytest.mark.parametrize(
    "number, english, german",
    [
        (0, "zero", "null"),
        (1, "one", "eins"),
        (12, "twelve", "zwölf"),
        (16, "sixteen", "sechzehn"),
        (17, "seventeen", "siebzehn"),
        (21, "twenty-one", "einundzwanzig"),
        (30, "thirty", "dreißig"),
        (76, "seventy-six", "sechsundsiebzig"),
        (100, "one hundred", "einhundert"),
        (101, "one hundred one", "einhunderteins"),
        (666, "six hundred sixty-six", "sechshundertsechsundsechzig"),
        (1000, "one thousand", "eintausend"),
        (1001, "one thousand one", "eintausendeins"),
        (1100, "one thousand one hundred", "eintausendeinhundert"),
        (21_000, "twenty-one thousand", "einundzwanzigtausend"),
        (101_001, "one hundred one thousand one", "einhunderteintausendeins"),
        (
            421_735,
            "four hundred twenty-one thousand seven hundred thirty-five",
            "vierhunderteinundzwanzigtausendsiebenhundertfünfunddreißig",
        ),
        (
            999_999,
            "nine hundred ninety-nine thousand nine hundred ninety-nine",
            "neunhundertneunundneunzigtausendneunhundertneunundneunzig",
        ),
    ],
)
def test_number_names(number, english, german):
    assert number_names.english(number) == english
    assert number_names.german(number) == german


def test_numbers_without_a_name():
    for number in (-1, 1_000_000):
        with pytest.raises(ValueError, match=f"not {number}"):
            number_names.german(number)


def test_corpus_splits_do_not_overlap(corpus):
    lines = [line for split in SIZES for line in read_lines(corpus / f"{split}.en")]
    assert len(set(lines)) == len(lines) == sum(SIZES.values())


def test_generated_sentences(tmp_path):
    """The annotators' edits give well-formed English back; the second has "the" wherever an article was wrong."""
    learner_sentences.write_corpus(tmp_path, {"one": 200, "two": 200}, {"two": 2})
    learner_sentences.write_corpus(tmp_path / "again", {"one": 200}, {})
    assert (tmp_path / "one.m2").read_text() == (tmp_path / "again" / "one.m2").read_text()
    types = set()
    for sentence in read_m2(tmp_path / "two.m2"):
        words = sentence.corrected(0)
        nouns = {noun.split()[0] for noun in learner_sentences.NOUNS}
        article, noun = next((a, b) for a, b in pairwise(words) if a in ("a", "an", "the") and b in nouns)
        assert article in ("the", "an" if noun[0] in "aeiou" else "a")
        for first, second in zip(*sentence.edits.values(), strict=True):
            types.add(first.type)
            assert second.correction == ("the" if first.type.endswith("DET") else first.correction)
            assert sentence.tokens[first.start : first.end] != tuple(first.correction.split())
    assert types == {"R:VERB:SVA", "R:PREP", "M:PREP", "R:DET", "M:DET"}
    assert all(list(sentence.edits) == [0] for sentence in read_m2(tmp_path / "one.m2"))
