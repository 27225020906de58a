# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""ROUGE-1, ROUGE-2 and ROUGE-L of summaries (Lin, 2004), F1, by the package rouge-score.

    ode-transformer score rouge --references test.target --hypotheses output.txt

The papers' ROUGE-L is `rougeLsum`. For each sentence of the reference, it takes the union of the longest common
subsequences with all sentences of the summary. So sentence ends must be marked: by newlines or, as in the original's
script for ROUGE-1.5.5, by each ". ". rouge-score's rougeL is a different and lower number, from the longest common
subsequence of the two whole texts. Here it is called `rougeL_whole_text`.

Tokens are runs of a-z and 0-9 after lower-casing. Porter's stemmer cuts words of more than three letters to their
stems, as in the original's script (pyrouge passes `-m`), unless it is switched off. Scores are means over the texts,
as percentages. With several references, the one with the highest F1 counts, separately for each score.
"""

import logging
from collections.abc import Callable, Sequence
from importlib.metadata import version

from rouge_score.rouge_scorer import RougeScorer

from .metric_utils import reference_lists, share_of_letters


logger = logging.getLogger(__name__)

# Our names for rouge-score's scores.
SCORES = {"rouge1": "rouge1", "rouge2": "rouge2", "rougeLsum": "rougeLsum", "rougeL_whole_text": "rougeL"}

# Functions that put a newline after each sentence.
SENTENCE_SPLITS: dict[str, Callable[[str], str]] = {"newline": str, "period": lambda text: text.replace(". ", ".\n")}


def rouge(
    predictions: Sequence[str],
    references: Sequence[str | Sequence[str]],
    sentences: str = "newline",
    stemmer: bool = True,
) -> dict[str, float | str]:
    """F1 of summaries.

    Args:
        predictions: A summary for each text.
        references: The reference summary of each text, or a list of references.
        sentences: "newline": sentences end at newlines. "period": at each ". " as well, as in the original's script.
        stemmer: Whether to apply Porter's stemmer.

    Returns:
        rouge1, rouge2, rougeLsum, rougeL_whole_text (0 to 100), and the convention in words.

    Raises:
        ValueError: there are not as many references as predictions, or none.
    """
    split = SENTENCE_SPLITS[sentences]
    lists = [[split(text) for text in texts] for texts in reference_lists(predictions, references)]
    if problem := script_problem([text for texts in lists for text in texts]):
        logger.warning(problem)
    predictions = [split(text) for text in predictions]
    if any("\n" in text for text in predictions) != any("\n" in text for texts in lists for text in texts):
        logger.warning(
            "Only one side has texts with several sentences (sentences=%r): rougeLsum needs marked sentence ends on "
            "both",
            sentences,
        )
    scorer = RougeScorer(list(SCORES.values()), use_stemmer=stemmer)
    results = [scorer.score_multi(texts, prediction) for prediction, texts in zip(predictions, lists)]
    means = {
        name: 100 * sum(result[theirs].fmeasure for result in results) / len(results)
        for name, theirs in SCORES.items()
    }
    convention = {
        "measure": "f1.mean",
        "sentences": sentences,
        "stemmer": "porter" if stemmer else "none",
        "tokens": "lc.a-z0-9",
        "rouge-score": version("rouge-score"),
    }
    return means | {"convention": "|".join(f"{name}:{value}" for name, value in convention.items())}


def script_problem(references: Sequence[str]) -> str | None:
    """Why ROUGE says nothing about references in another script than the Latin one; None if most letters are Latin."""
    letters = any(letter.isalpha() for text in references for letter in text)
    if not letters or (latin := share_of_letters(references, ["LATIN"])) >= 0.5:
        return None
    return (
        f"ROUGE's tokens are runs of a-z and 0-9, and {1 - latin:.0%} of the references' letters are of other "
        "scripts, which are left out. Use chrF (ode-transformer score chrf)."
    )
