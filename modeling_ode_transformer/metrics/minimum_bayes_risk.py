# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Minimum Bayes risk decoding (Kumar and Byrne, 2004; Eikema and Aziz, 2020): of many outputs, the one that is most
like the others."""

from collections import Counter
from collections.abc import Callable, Sequence

from sacrebleu.metrics import BLEU, CHRF


# The similarities by name; those of a sentence, in percent.
UTILITIES: dict[str, Callable[[], BLEU | CHRF]] = {"chrf": CHRF, "bleu": lambda: BLEU(effective_order=True)}


def expected_utilities(outputs: Sequence[str], utility: str = "chrf") -> dict[str, float]:
    """The mean similarity of each output to all outputs, as if they were references.

    Args:
        outputs: Outputs for one source. Of samples, those that were drawn several times count as often.
        utility: A name in `UTILITIES`.

    Returns:
        The mean of each text, in percent, by text; the best first, and of equal ones the one drawn first.
    """
    metric, counts = UTILITIES[utility](), Counter(outputs)
    means = {
        text: sum(metric.sentence_score(text, [other]).score * count for other, count in counts.items()) / len(outputs)
        for text in counts
    }
    return dict(sorted(means.items(), key=lambda item: -item[1]))
