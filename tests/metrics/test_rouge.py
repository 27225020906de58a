# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""ROUGE of summaries, against rouge-score itself."""

import pytest
from rouge_score.rouge_scorer import RougeScorer

from modeling_ode_transformer.metrics.rouge import rouge


PREDICTIONS = [
    "Dogs were running through deep snow. A man waited.\nHe was cold.",
    "The minister resigned on Monday.\nHer party elects another one.",
    "",
]
REFERENCES = [
    ["A man waits . Two dogs run through the snow .", "Nobody waited.\nThe dogs ran."],
    ["On Monday the minister resigned. It elects.", "Her party elects another one.\nThe minister resigned on Monday."],
    ["Nothing happened."],
]
FIRST_REFERENCES = [texts[0] for texts in REFERENCES]
NAMES = ["rouge1", "rouge2", "rougeLsum", "rougeL_whole_text"]


def test_the_stemmer_is_on_unless_switched_off():
    assert rouge(["dogs running"], ["dog runs"])["rouge1"] == pytest.approx(100)
    assert rouge(["dogs running"], ["dog runs"], stemmer=False)["rouge1"] == 0
    assert "|stemmer:porter|" in rouge(["a"], ["a"])["convention"]
    assert "|stemmer:none|" in rouge(["a"], ["a"], stemmer=False)["convention"]


@pytest.mark.parametrize("stemmer", [True, False])
def test_scores_are_means_of_rouge_score(stemmer):
    result = rouge(PREDICTIONS, REFERENCES, stemmer=stemmer)
    scorer = RougeScorer(["rouge1", "rouge2", "rougeLsum", "rougeL"], use_stemmer=stemmer)
    best = [
        [max(scorer.score(text, prediction)[name].fmeasure for text in texts) for name in scorer.rouge_types]
        for prediction, texts in zip(PREDICTIONS, REFERENCES)
    ]
    expected = [100 * sum(column) / 3 for column in zip(*best)]
    assert [result[name] for name in NAMES] == pytest.approx(expected, abs=1e-12)


def test_sentences_can_end_at_periods_as_in_the_originals_script():
    split = [[".\n".join(text.split(". ")) for text in texts] for texts in (PREDICTIONS, FIRST_REFERENCES)]
    result, expected = rouge(PREDICTIONS, FIRST_REFERENCES, sentences="period"), rouge(*split)
    assert [result[name] for name in NAMES] == [expected[name] for name in NAMES]
    assert result["rougeLsum"] > rouge(PREDICTIONS, FIRST_REFERENCES)["rougeLsum"]
    assert "|sentences:period|" in result["convention"]
    assert "|sentences:newline|" in expected["convention"]


def test_ends_of_sentences_on_one_side_only_are_warned_of(caplog):
    rouge(["a b. c"], ["a b.\nc"], sentences="period")
    assert not caplog.text
    rouge(["a b. c"], ["a b.\nc"])
    assert "Only one side has texts with several sentences (sentences='newline')" in caplog.text


def test_the_command_splits_lines_at_periods(write, printed):
    predictions = [text.replace("\n", " ") for text in PREDICTIONS]
    write({"output": predictions, "target": FIRST_REFERENCES})
    command = "score rouge --hypotheses output --references target"
    expected = rouge(predictions, FIRST_REFERENCES, sentences="period")
    lines = [f"{name} = {expected[name]:.4f}" for name in NAMES]
    assert printed(command).splitlines() == [*lines, f"convention = {expected['convention']}"]
    scores = printed(f"{command} --sentences newline --no_stemmer --json")
    assert scores == rouge(predictions, FIRST_REFERENCES, stemmer=False)
