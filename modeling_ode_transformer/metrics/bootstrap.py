# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Paired bootstrap resampling (Koehn, 2004): is system B better than system A on a test set, or was it the sentences?

    ode-transformer score bootstrap --metric bleu --references test.de --system_a a.txt --system_b b.txt

Resamples of the test set's size are drawn from its sentences with replacement, and both systems are scored on each.
The resamples and scores equal those of `sacrebleu --paired-bs` with its default seed. Their differences give the
standard error. The 95% interval and the p-value follow from it by Student's t, so that the interval leaves out 0 just
where p < 0.05. The p-value is two-sided. sacreBLEU's differs: it calls a system significantly different from itself.

A system may have several outputs, from trainings with different seeds: `--system_a a1.txt a2.txt a3.txt`. They are
scored together. If both systems have several, the standard error counts the differences between seeds as well as
between sentences. The scores of n outputs have the variance s^2 / n in their mean. A part of it is the sentences'
chance, which is in the resamples already. It is estimated by how differently the outputs' scores move in a resample,
and taken out. (Drawing outputs and sentences together would count this part three times: Owen, The pigeonhole
bootstrap, 2007.) A few seeds say little about their own spread: the degrees of freedom are Satterthwaite's (1946).

Two language models are compared by the files that `score perplexity --nll_file` writes, one for each seed:

    ode-transformer score bootstrap --metric perplexity --references test.txt --system_a a.nll --system_b b.nll
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from scipy import special

from .bleu import OTHERS, Scorer, bleu_scorers
from .m2 import m2_score_statistics, m2_statistics
from .metric_utils import check_lists


BLEU = {"bleu": "sacrebleu", "tokenized_bleu": "tokenized_bleu", "compound_split_bleu": "compound_split_bleu"}
Score = Callable[[np.ndarray], float]


@dataclass(frozen=True)
class PairedBootstrap:
    """Two systems on one test set.

    Attributes:
        score_a, score_b: Scores on the test set.
        difference: score_b - score_a.
        standard_error: Of the difference; see the module's docstring.
        degrees_of_freedom: Of Student's t; None for the normal distribution, if seeds do not count or differ.
        confidence_interval: 95%, two-sided.
        differs: Whether the interval leaves out 0.
        p_value: Two-sided: how probable a difference of at least this size is between systems that do not differ.
        detectable_difference: The power of the comparison: at this true difference, the interval leaves out 0 with a
            probability of about 80%.
        counts_seeds: Whether the standard error counts the differences between seeds.
        wins_a, wins_b, ties: Number of resamples in which A, B or neither has the better score.
        num_samples, seed: Number of resamples, and their seed.
        samples_a, samples_b: Scores on the resamples, (num_samples,).
    """

    score_a: float
    score_b: float
    difference: float
    standard_error: float
    degrees_of_freedom: float | None
    confidence_interval: list[float]
    differs: bool
    p_value: float
    detectable_difference: float
    counts_seeds: bool
    wins_a: int
    wins_b: int
    ties: int
    num_samples: int
    seed: int
    samples_a: np.ndarray = field(repr=False, compare=False)
    samples_b: np.ndarray = field(repr=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Returns all fields except the scores on the resamples."""
        return {name: value for name, value in asdict(self).items() if not name.startswith("samples_")}


def paired_bootstrap(
    statistics_a: np.ndarray,
    statistics_b: np.ndarray,
    score: Score,
    num_samples: int = 1000,
    seed: int = 12345,
    counts_seeds: bool = False,
    lower_is_better: bool = False,
) -> PairedBootstrap:
    """Compares two systems by a score computed from statistics of sentences.

    Args:
        statistics_a: A row for each sentence.
        statistics_b: The same for the other system, with the sentences in the same order.
        score: Scores a selection of the rows, some of them repeated.
        num_samples: Number of resamples.
        seed: Seed of the resamples: the same seed and number of sentences give the same resamples.
        counts_seeds: Whether to count the differences between outputs; statistics are then (sentences, outputs, ...)
            with at least two outputs each.
        lower_is_better: Whether the system with the lower score wins.

    Raises:
        ValueError: the systems have different numbers of sentences, or none.
    """
    check_lists(statistics_a=statistics_a, statistics_b=statistics_b)
    systems = statistics_a, statistics_b
    everything, generator = np.arange(len(statistics_a)), np.random.default_rng(seed)
    rows = [everything, *(generator.choice(everything.size, size=everything.size) for _ in range(num_samples))]
    scores_a, scores_b = (np.array([score(each[drawn]) for drawn in rows], float) for each in systems)
    difference, *differences = scores_b - scores_a
    variance, degrees = float(np.var(differences)), math.inf
    if counts_seeds:
        variance, degrees = add_seeds(variance, systems, score, rows)
    error = math.sqrt(variance)
    bound, power = (float(special.stdtrit(degrees, share)) for share in (0.975, 0.8))
    # 0 / 0: no sentence tells the systems apart.
    distance = abs(difference) / error if error else math.inf if difference else 0.0
    higher_a, higher_b = int(np.less(differences, 0).sum()), int(np.greater(differences, 0).sum())
    return PairedBootstrap(
        score_a=float(scores_a[0]),
        score_b=float(scores_b[0]),
        difference=float(difference),
        standard_error=error,
        degrees_of_freedom=None if math.isinf(degrees) else degrees,
        confidence_interval=[float(difference - bound * error), float(difference + bound * error)],
        differs=bool(distance > bound),
        p_value=float(2 * special.stdtr(degrees, -distance)),
        detectable_difference=(bound + power) * error,
        counts_seeds=counts_seeds,
        wins_a=higher_b if lower_is_better else higher_a,
        wins_b=higher_a if lower_is_better else higher_b,
        ties=num_samples - higher_a - higher_b,
        num_samples=num_samples,
        seed=seed,
        samples_a=scores_a[1:],
        samples_b=scores_b[1:],
    )


def add_seeds(
    variance: float, systems: Sequence[np.ndarray], score: Score, rows: Sequence[np.ndarray]
) -> tuple[float, float]:
    """Adds to the variance over sentences what seeds add to it, if anything. Returns the sum and Satterthwaite's
    degrees of freedom, infinite if no seeds differ.

    Seeds add the variance of the mean score of a system's outputs, less what sentences add to that by moving each
    output's score its own way. `rows` are the sentences of the test set, then those of each resample.
    """
    added = uncertain = 0.0
    for statistics in systems:
        number = statistics.shape[1]
        scores = np.array([[score(statistics[drawn, i : i + 1]) for i in range(number)] for drawn in rows])
        moves = scores[1:] - scores[0]
        of_outputs = scores[0].var(ddof=1) / number
        added += of_outputs - moves.var(axis=1, ddof=1).mean() / number
        uncertain += of_outputs**2 / (number - 1)
    variance += max(0.0, added)
    return float(variance), float(variance**2 / uncertain) if uncertain else math.inf


def metric_statistics(
    metric: str, outputs: Sequence[Sequence[str]], references: Sequence, **options
) -> tuple[list[np.ndarray], Score, str]:
    """The statistics of each output, the score function and its signature; see `compare`."""
    if metric == "m2":
        statistics = [m2_statistics(texts, references) for texts in outputs]
        return statistics, lambda rows: m2_score_statistics(rows)["f0.5"], "M2 F0.5"
    if metric == "perplexity":
        from .perplexity import CONVENTION, count_words, word_perplexity

        words = count_words([line if isinstance(line, str) else line[0] for line in references])
        statistics = [np.stack([np.array(texts, float), words], axis=1) for texts in outputs]
        return statistics, lambda rows: word_perplexity(rows[:, 0], rows[:, 1]), f"perplexity {CONVENTION}"
    scorer = Scorer(OTHERS[metric]()) if metric in OTHERS else bleu_scorers(**options)[BLEU[metric]]
    statistics = [scorer.statistics(texts, references) for texts in outputs]
    return statistics, scorer.score_statistics, scorer.signature()


def outputs_of(predictions: Any) -> Sequence[Sequence[str]]:
    """Returns a list of texts for each output; a system with one output may be given as its texts."""
    return [predictions] if isinstance(predictions[0], str) else predictions


def compare(
    predictions_a: Sequence[str] | Sequence[Sequence[str]],
    predictions_b: Sequence[str] | Sequence[Sequence[str]],
    references: Sequence,
    metric: str = "bleu",
    num_samples: int = 1000,
    seed: int = 12345,
    **options,
) -> dict[str, Any]:
    """Applies `paired_bootstrap` to the texts of two systems.

    Args:
        predictions_a: A text for each sentence; or several such lists, from trainings with different seeds, which are
            scored together.
        predictions_b: The same for the other system.
        references: The reference of each sentence, or a list of references; for "m2" the sentences of `m2.read_m2`.
        metric: "bleu" (sacreBLEU), "tokenized_bleu", "compound_split_bleu", "chrf" or "ter" (sacreBLEU's), "m2": F0.5
            of the M2 score, or "perplexity": predictions are then the references' negative log-likelihoods in nats, as
            text.
        num_samples: Number of resamples.
        seed: Seed of the resamples.
        options: Those of `bleu.bleu_scorers`, for the three kinds of BLEU.

    Returns:
        metric, its signature, and the fields of `PairedBootstrap` without the scores on the resamples.

    Raises:
        ValueError: the numbers of texts differ, or the metric has no such option.
    """
    if options and metric not in BLEU:
        raise ValueError(f"The metric {metric!r} has no options, but {', '.join(options)} is given.")
    systems = {"predictions_a": outputs_of(predictions_a), "predictions_b": outputs_of(predictions_b)}
    outputs = {
        name if len(system) == 1 else f"{name}[{number}]": texts
        for name, system in systems.items()
        for number, texts in enumerate(system)
    }
    check_lists(**outputs, references=references)
    statistics, score, signature = metric_statistics(metric, list(outputs.values()), references, **options)
    number = len(systems["predictions_a"])
    # (sentences, outputs, ...): all outputs for a sentence are drawn together.
    pooled = [np.stack(of_system, axis=1) for of_system in (statistics[:number], statistics[number:])]
    counts_seeds = min(map(len, systems.values())) > 1

    def score_together(rows: np.ndarray) -> float:
        return score(rows.reshape(-1, *rows.shape[2:]))

    lower_is_better = metric in ("perplexity", "ter")
    result = paired_bootstrap(pooled[0], pooled[1], score_together, num_samples, seed, counts_seeds, lower_is_better)
    return {"metric": metric, "signature": signature} | result.to_dict()


def compare_all(
    systems: Mapping[str, Sequence[str]], references: Sequence, metric: str, **options
) -> tuple[list[dict[str, Any]], str]:
    """Several systems on one test set, each compared with the first.

    Args:
        systems: The texts of each system by its name.
        references, metric, options: As in `compare`.

    Returns:
        For each system its `name` and `score`, and for all but the first also the `difference` from it, the
        `confidence_interval` of that and its `p_value`; and the metric's signature.
    """
    (first, texts), *others = systems.items()
    found = {name: compare(texts, other, references, metric, **options) for name, other in others}
    rows = [
        {"name": name, "score": each["score_b"]}
        | {key: each[key] for key in ("difference", "confidence_interval", "p_value")}
        for name, each in found.items()
    ]
    one = next(iter(found.values()))
    return [{"name": first, "score": one["score_a"]}, *rows], one["signature"]
