# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""GLEU of grammatical error correction (Napoles et al., 2015), without tuning (Napoles et al., 2016), as for JFLEG.

    ode-transformer score gleu --sources test.src --references test.ref0 test.ref1 test.ref2 \\
        test.ref3 --hypotheses output.txt

GLEU is BLEU of corrections with a penalty: an n-gram kept from the source counts against them if the reference lacks
it. n goes from 1 to 4. If there are several references, one is drawn for each sentence; the score is the mean of 500
draws for all sentences. Texts are tokens separated by white space.

The draws are those of the script in JFLEG's repository (eval/gleu.py; Python 2), so the score is the same, except for
the last bits of floating point. (That script treats non-ASCII white space as part of a token; JFLEG has none.)
"""

import random
from collections import Counter
from collections.abc import Sequence
from itertools import chain

import numpy as np

from .metric_utils import check_lists, reference_lists, warn_of_untokenized


ORDER = 4


def ngrams(tokens: Sequence[str], n: int) -> Counter:
    return Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) + 1 - n))


def gleu_statistics(
    predictions: Sequence[str], references: Sequence[str | Sequence[str]], sources: Sequence[str]
) -> np.ndarray:
    """The statistics behind the score, by sentence and reference.

    Args:
        predictions: Corrected sentences.
        references: The reference of each sentence, or a list of references; all lists have the same length.
        sources: The sentences before correction.

    Returns:
        int64 (sentences, references, 10): length of the prediction, length of the reference, then for each of 1- to
        4-grams the number of matches minus the penalized n-grams, and the number of n-grams.

    Raises:
        ValueError: the numbers of predictions, references and sources differ or are 0.
    """
    check_lists(predictions=predictions, sources=sources)
    lists = reference_lists(predictions, references)
    for i, texts in enumerate(lists):
        if len(texts) != len(lists[0]):
            raise ValueError(
                f"The prediction of index {i} has {len(texts)} references, but the first one has {len(lists[0])}: "
                "GLEU needs the same number for each sentence."
            )
    warn_of_untokenized(predictions=predictions, references=list(chain.from_iterable(lists)), sources=sources)
    rows = []
    for prediction, texts, source in zip(predictions, lists, sources):
        words, source_words = prediction.split(), source.split()
        row = []
        for text in texts:
            reference_words = text.split()
            statistics = [len(words), len(reference_words)]
            for n in range(1, ORDER + 1):
                found, expected, original = (ngrams(each, n) for each in (words, reference_words, source_words))
                wrong = Counter({ngram: count for ngram, count in original.items() if ngram not in expected})
                matches = (found & expected).total() - (found & wrong).total()
                statistics += [max(matches, 0), found.total()]
            row.append(statistics)
        rows.append(row)
    return np.array(rows)


def gleu_score(totals: np.ndarray) -> np.ndarray:
    """GLEU of summed statistics, from 0 to 1.

    Args:
        totals: (..., 10), like a row of `gleu_statistics` for one reference.

    Returns:
        float64 (...). 0 if nothing matches for some n, or if there are no words.
    """
    totals = np.asarray(totals, dtype=np.float64)
    length, reference_length, matches, numbers = (
        totals[..., part] for part in (0, 1, slice(2, None, 2), slice(3, None, 2))
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        score = np.exp(np.minimum(0, 1 - reference_length / length) + np.log(matches / numbers).sum(-1) / ORDER)
    return np.where((totals > 0).all(-1), score, 0.0)


def draw_references(num_sentences: int, num_references: int, iterations: int) -> np.ndarray:
    """Indices of references, int64 (iterations, sentences), as JFLEG's script draws them in Python 2."""
    draws = []
    for iteration in range(iterations):
        generator = random.Random(101 * iteration)
        # `randint` of Python 2; it differs in Python 3.
        draws.append([int(generator.random() * num_references) for _ in range(num_sentences)])
    return np.array(draws)


def gleu(
    predictions: Sequence[str],
    references: Sequence[str | Sequence[str]],
    sources: Sequence[str],
    iterations: int = 500,
) -> dict[str, float]:
    """GLEU of all sentences together.

    Args:
        predictions: Corrected sentences, tokens separated by white space.
        references: The reference of each sentence, or a list of references; all lists have the same length.
        sources: The sentences before correction.
        iterations: How often a reference is drawn for each sentence.

    Returns:
        gleu, the mean of all draws, and gleu_std, their standard deviation; from 0 to 100.

    Raises:
        ValueError: the numbers of predictions, references and sources differ or are 0.
    """
    statistics = gleu_statistics(predictions, references, sources)
    sentences = np.arange(len(statistics))
    number, num_references = statistics.shape[:2]
    draws = draw_references(number, num_references, iterations)
    scores = 100 * gleu_score(np.stack([statistics[sentences, drawn].sum(0) for drawn in draws]))
    return {"gleu": float(scores.mean()), "gleu_std": float(scores.std())}
