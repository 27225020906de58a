# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""GLEU, against its definition and the numbers of JFLEG's script under Python 2."""

import math
import random
from statistics import fmean, pstdev

import numpy as np
import pytest

from modeling_ode_transformer.metrics.gleu import draw_references, gleu, gleu_score, gleu_statistics


SOURCES = ["He go to school every days .", "The cat sat at mat .", "I am agree with you about this ."]
PREDICTIONS = ["He goes to school every days .", "The cat sat on the mat .", "I am agree with you about it ."]
REFERENCES = [
    ["He goes to school every day .", "He goes to school each day ."],
    ["The cat sat on the mat .", "A cat sat on the mat ."],
    ["I agree with you about this .", "I agree with you on this ."],
]


def gleu_by_definition(predictions, references, sources):
    """Of one reference for each sentence, counting occurrences one by one."""
    logs, length, reference_length = 0.0, 0, 0
    for n in range(1, 5):
        matches = total = 0
        for texts in zip(predictions, references, sources):
            found, expected, original = (
                [tuple(words[i : i + n]) for i in range(len(words) - n + 1)] for words in map(str.split, texts)
            )
            right = sum(min(found.count(ngram), expected.count(ngram)) for ngram in set(found))
            kept = {ngram for ngram in found if ngram in original and ngram not in expected}
            wrong = sum(min(found.count(ngram), original.count(ngram)) for ngram in kept)
            matches, total = matches + max(0, right - wrong), total + len(found)
        if not matches:
            return 0.0
        logs += math.log(matches / total) / 4
    for prediction, reference in zip(predictions, references):
        length, reference_length = length + len(prediction.split()), reference_length + len(reference.split())
    return 100 * math.exp(min(0, 1 - reference_length / length) + logs)


def test_score_with_one_reference_is_that_of_the_definition():
    for column in range(2):
        references = [texts[column] for texts in REFERENCES]
        expected = gleu_by_definition(PREDICTIONS, references, SOURCES)
        found = gleu(PREDICTIONS, references, SOURCES)
        assert found == pytest.approx({"gleu": expected, "gleu_std": 0}, abs=1e-9)
    rng = random.Random(0)
    for _ in range(30):
        texts = [[" ".join(rng.choice("abc") for _ in range(rng.randint(0, 9))) for _ in range(4)] for _ in range(3)]
        expected = gleu_by_definition(*texts)
        assert gleu(*texts, iterations=1)["gleu"] == pytest.approx(expected, abs=1e-9)


def test_score_with_several_references_is_the_mean_of_draws():
    draws = [[texts[i] for texts, i in zip(REFERENCES, drawn)] for drawn in draw_references(3, 2, 40)]
    scores = [gleu_by_definition(PREDICTIONS, references, SOURCES) for references in draws]
    result = gleu(PREDICTIONS, REFERENCES, SOURCES, iterations=40)
    assert len(set(scores)) > 5
    assert result["gleu"] == pytest.approx(fmean(scores), abs=1e-9)
    assert result["gleu_std"] == pytest.approx(pstdev(scores), abs=1e-9)


def test_draws_are_those_of_python_2():
    """Python 2.7.18: `random.seed(101 * j); [random.randint(0, 3) for _ in range(12)]` for j = 0, 1, 499."""
    draws = draw_references(12, 4, 500)
    assert draws.shape == (500, 12)
    assert draws[0].tolist() == [3, 3, 1, 1, 2, 1, 3, 1, 1, 2, 3, 2]
    assert draws[1].tolist() == [2, 0, 3, 3, 1, 2, 0, 0, 1, 2, 0, 3]
    assert draws[499].tolist() == [0, 1, 0, 2, 1, 1, 0, 1, 0, 3, 0, 3]


def test_score_is_that_of_jflegs_script():
    """eval/gleu.py of JFLEG's repository, run on these sentences under Python 2.7.18."""
    assert gleu(PREDICTIONS, REFERENCES, SOURCES)["gleu"] == pytest.approx(35.6742024408, abs=1e-9)


def test_what_is_kept_wrongly_counts_against_a_sentence():
    """Nothing is lost by a word that neither the source nor the reference has, apart from the match."""
    kept, replaced = "He go to school .", "He gone to school ."
    statistics = gleu_statistics([kept, replaced], ["He goes to school ."] * 2, ["He go to school ."] * 2)
    assert statistics[:, 0].tolist() == [[5, 5, 3, 5, 0, 4, 0, 3, 0, 2], [5, 5, 4, 5, 2, 4, 1, 3, 0, 2]]


def test_score_is_zero_where_nothing_matches_and_not_otherwise():
    assert gleu_score(np.array([[4, 4, 4, 4, 3, 3, 2, 2, 1, 1], [4, 4, 4, 4, 3, 3, 2, 2, 0, 1]])).tolist() == [1, 0]
    assert gleu_score(np.zeros(10)) == 0
    assert gleu([""], ["a"], ["a"])["gleu"] == 0
    assert gleu_score([4, 8, 4, 4, 3, 3, 2, 2, 1, 1]) == pytest.approx(math.exp(-1))


def test_the_command_prints_the_score_of_files(write, printed):
    first = [texts[0] for texts in REFERENCES]
    write({"source": SOURCES, "output": PREDICTIONS, "ref0": first, "ref1": ["x"] * 3})
    command = "score gleu --sources source --hypotheses output --references ref0"
    assert printed(command) == f"gleu = {gleu(PREDICTIONS, first, SOURCES)['gleu']:.4f}\ngleu_std = 0.0000\n"
    references = [[text, "x"] for text in first]
    assert printed(f"{command} ref1 --json") == gleu(PREDICTIONS, references, SOURCES)
