# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Generated examples."""

import pytest

from modeling_ode_transformer.metrics.m2 import read_m2
from modeling_ode_transformer.text_files import read_lines
from modeling_ode_transformer.training.smoke import number_names
from modeling_ode_transformer.training.smoke.sentences import VERBS, write_corrections

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


def test_corpus_splits_do_not_overlap(corpus):
    lines = [line for split in SIZES for line in read_lines(corpus / f"{split}.en")]
    assert len(set(lines)) == len(lines) == sum(SIZES.values())


def test_generated_sentences(tmp_path):
    """The annotators' edits give the right sentences back; where the article is missing, the second has another."""
    write_corrections(tmp_path, {"one": 200, "two": 200}, {"two": 2})
    (tmp_path / "again").mkdir()
    write_corrections(tmp_path / "again", {"one": 200}, {})
    assert (tmp_path / "one.m2").read_text() == (tmp_path / "again" / "one.m2").read_text()
    sentences = read_m2(tmp_path / "two.m2")
    for sentence in sentences:
        first, second = map(sentence.corrected, (0, 1))
        assert first[1] in VERBS and first[2] == "the" and len(first) == 7
        assert second[2] == ("a" if "the" not in sentence.tokens else "the") and second[3:] == first[3:]
    assert {edit.type for sentence in sentences for edit in sentence.edits[0]} == {"R:VERB:SVA", "M:DET"}
    assert all(list(sentence.edits) == [0] for sentence in read_m2(tmp_path / "one.m2"))
