# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Minimum Bayes risk against a plain double loop over sacrebleu's metrics."""

import pytest
import sacrebleu

from modeling_ode_transformer.metrics.minimum_bayes_risk import expected_utilities


OUTPUTS = ["der Hund rennt", "ein Hund rennt schnell", "der Hund rennt", "die Katze schläft", "der Hund läuft"]


@pytest.mark.parametrize("utility", ["chrf", "bleu"])
def test_means_over_all_pairs(utility):
    def score(text, reference):
        if utility == "chrf":
            return sacrebleu.sentence_chrf(text, [reference]).score
        return sacrebleu.sentence_bleu(text, [reference]).score

    expected = {text: sum(score(text, other) for other in OUTPUTS) / len(OUTPUTS) for text in OUTPUTS}
    found = expected_utilities(OUTPUTS, utility)
    assert found == pytest.approx(expected) and len(found) == 4
    assert list(found) == sorted(expected, key=expected.get, reverse=True)
    assert next(iter(found)) == "der Hund rennt"
