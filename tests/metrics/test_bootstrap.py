# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Paired bootstrap resampling, against all resamples of a small set and sacreBLEU's own."""

import itertools
import random

import numpy as np
import pytest
import sacrebleu
import scipy.stats
from sacrebleu.significance import PairedTest

from modeling_ode_transformer.metrics import m2
from modeling_ode_transformer.metrics.bleu import bleu
from modeling_ode_transformer.metrics.bootstrap import compare, metric_statistics, paired_bootstrap


RNG = random.Random(0)
REFERENCES = [" ".join(RNG.choice("abcdef") for _ in range(RNG.randint(4, 12))) for _ in range(60)]
SYSTEM_A, SYSTEM_B = (
    [" ".join(word if RNG.random() > noise else "x-y" for word in text.split()) for text in REFERENCES]
    for noise in (0.25, 0.22)
)
A, B = np.array([1.0, 4, 2, 2]), np.array([2.0, 3, 1, 5])


def mean(items):
    return sum(items) / len(items)


def test_shares_of_wins_are_those_of_all_resamples():
    """Four sentences have 256 equally likely resamples; 20000 draws come within four standard deviations."""
    every = [list(indices) for indices in itertools.product(range(4), repeat=4)]
    differences = np.array([mean(B[indices]) - mean(A[indices]) for indices in every])
    result = paired_bootstrap(A, B, mean, num_samples=20000, seed=1)
    shares = [kind.mean() for kind in (differences < 0, differences > 0, differences == 0)]
    for wins, share in zip((result.wins_a, result.wins_b, result.ties), shares):
        assert wins / 20000 == pytest.approx(share, abs=4 * (share * (1 - share) / 20000) ** 0.5)
    assert (result.score_a, result.score_b, result.difference) == (2.25, 2.75, 0.5)
    assert result.standard_error == pytest.approx(differences.std(), rel=0.03)
    interval = scipy.stats.norm.interval(0.95, 0.5, result.standard_error)
    assert result.confidence_interval == pytest.approx(interval)
    assert result.p_value == pytest.approx(2 * scipy.stats.norm.sf(0.5 / result.standard_error))
    assert result.degrees_of_freedom is None


def test_a_system_is_no_better_than_itself():
    result = paired_bootstrap(A, A, mean)
    assert (result.p_value, result.ties, result.confidence_interval) == (1, 1000, [0, 0])


def test_resamples_of_bleu_are_those_of_sacrebleu():
    metric = sacrebleu.BLEU()
    _, theirs = PairedTest([("a", SYSTEM_A), ("b", SYSTEM_B)], {"BLEU": metric}, [REFERENCES], "bs", n_samples=300)()
    (a, b), score, signature = metric_statistics("bleu", (SYSTEM_A, SYSTEM_B), REFERENCES)
    result = paired_bootstrap(a, b, score, num_samples=300)
    assert signature == str(metric.get_signature())
    ours = ((result.score_a, result.samples_a), (result.score_b, result.samples_b))
    for expected, (total, samples) in zip(theirs["BLEU"], ours):
        ordered = np.sort(samples)
        assert expected.score == pytest.approx(total, abs=1e-9)
        # sacreBLEU sums in float32.
        assert expected.mean == pytest.approx(samples.mean(), abs=1e-4)
        assert expected.ci == pytest.approx((ordered[-8] - ordered[7]) / 2, abs=1e-4)
    assert result.standard_error == pytest.approx((result.samples_b - result.samples_a).std())
    # Its p-value is defined otherwise, from the same resamples.
    distances = abs(result.samples_b - result.samples_a)
    larger = (distances - distances.mean() > abs(result.difference)).sum()
    assert theirs["BLEU"][1].p_value == (larger + 1) / 301


@pytest.mark.parametrize("metric", ["bleu", "tokenized_bleu", "compound_split_bleu"])
def test_each_bleu_is_compared_by_its_own_scores(metric):
    name = {"bleu": "sacrebleu"}.get(metric, metric)
    result = compare(SYSTEM_A, SYSTEM_B, REFERENCES, metric, num_samples=20, lowercase=True)
    for system, texts in (("a", SYSTEM_A), ("b", SYSTEM_B)):
        expected = bleu(texts, REFERENCES, lowercase=True)
        assert result[f"score_{system}"] == pytest.approx(expected[name], abs=1e-9)
    assert (result["metric"], result["signature"]) == (metric, expected[f"{name}_signature"])
    assert result["wins_a"] + result["wins_b"] + result["ties"] == result["num_samples"] == 20


def test_outputs_of_several_seeds_are_drawn_and_scored_together(write, printed):
    """As a corpus in which each drawn sentence stands with all of its translations."""
    seeds_a, seeds_b = [SYSTEM_A, SYSTEM_B, SYSTEM_A], [SYSTEM_B]
    result = compare(seeds_a, seeds_b, REFERENCES, num_samples=20, seed=5)
    generator, differences = np.random.default_rng(5), []
    for _ in range(20):
        drawn = generator.choice(60, size=60)
        a, b = (
            bleu([texts[i] for texts in seeds for i in drawn], [REFERENCES[i] for _ in seeds for i in drawn])
            for seeds in (seeds_a, seeds_b)
        )
        differences.append(b["sacrebleu"] - a["sacrebleu"])
    assert 0 < result["wins_b"] == sum(difference > 0 for difference in differences) < 20
    assert result["standard_error"] == pytest.approx(np.std(differences)) and not result["counts_seeds"]
    together = bleu([*SYSTEM_A, *SYSTEM_B, *SYSTEM_A], REFERENCES * 3)
    assert result["score_a"] == pytest.approx(together["sacrebleu"], abs=1e-9)

    one = compare(SYSTEM_A, SYSTEM_B, REFERENCES, num_samples=20)
    assert one == compare(np.array(SYSTEM_A), [SYSTEM_B], REFERENCES, num_samples=20)

    seeds_b = [SYSTEM_B, SYSTEM_B[:30] + SYSTEM_A[30:]]
    write(dict(zip("abcdef", [*seeds_a, *seeds_b, REFERENCES])))
    systems = "--system_a a b c --system_b d e --references f"
    found = printed(f"score bootstrap {systems} --num_samples 20 --seed 5 --json")
    assert found == compare(seeds_a, seeds_b, REFERENCES, num_samples=20, seed=5) and found["counts_seeds"]


def draw_systems(generator, numbers=(3, 3), sentences=100, of_seeds=0.0, of_both=2.0):
    """Scores of sentences (sentences, seeds) of two systems that differ only by chance: that of the sentences, of the
    seeds (standard deviation `of_seeds`), and of each sentence with each seed (`of_both`)."""
    difficulty = generator.normal(0, 3, (sentences, 1))
    return [
        difficulty
        + generator.normal(0, 1, (sentences, 1))
        + generator.normal(0, 1, number) * of_seeds
        + generator.normal(0, of_both, (sentences, number))
        for number in numbers
    ]


def test_the_standard_error_counts_each_kind_of_chance_once():
    """Of means it is known: the variance of the seeds' means, and that of the sentences', less what is in both, which
    is what is left after the means of seeds and sentences."""
    systems = draw_systems(np.random.default_rng(0), (3, 2), of_seeds=1)
    sentences = np.var(systems[1].mean(axis=1) - systems[0].mean(axis=1)) / 100
    only = paired_bootstrap(*systems, np.mean, num_samples=4000)
    assert only.standard_error**2 == pytest.approx(sentences, rel=0.1) and not only.counts_seeds
    result = paired_bootstrap(*systems, np.mean, num_samples=4000, counts_seeds=True)
    of_seeds = [np.var(each.mean(axis=0), ddof=1) / each.shape[1] for each in systems]
    left = [each - each.mean(axis=0) - each.mean(axis=1, keepdims=True) + each.mean() for each in systems]
    in_both = sum((each**2).sum() / (100 * 100 * each.shape[1] * (each.shape[1] - 1)) for each in left)
    variance = sentences + sum(of_seeds) - in_both
    assert variance > 1.5 * sentences and in_both > 0.1 * sentences
    assert result.standard_error**2 == pytest.approx(variance, rel=0.05)
    degrees = result.standard_error**4 / (of_seeds[0] ** 2 / 2 + of_seeds[1] ** 2 / 1)
    assert result.degrees_of_freedom == pytest.approx(degrees)

    t = scipy.stats.t(degrees)
    half = t.isf(0.025) * result.standard_error
    assert result.confidence_interval == pytest.approx([result.difference - half, result.difference + half])
    assert result.p_value == pytest.approx(2 * t.sf(abs(result.difference) / result.standard_error))
    assert result.detectable_difference == pytest.approx(half + t.isf(0.2) * result.standard_error)


def test_where_seeds_are_all_chance_it_is_welchs_test():
    """Sentences that are all alike leave the seeds' scores, compared as scipy compares two small samples."""
    a, b = np.array([1.0, 1.4, 0.9]), np.array([2.0, 1.8])
    result = paired_bootstrap(np.tile(a, (50, 1)), np.tile(b, (50, 1)), np.mean, counts_seeds=True)
    expected = scipy.stats.ttest_ind(b, a, equal_var=False)
    assert (result.p_value, result.degrees_of_freedom) == pytest.approx((expected.pvalue, expected.df))
    assert result.confidence_interval == pytest.approx(list(expected.confidence_interval()))


@pytest.mark.parametrize(
    ("numbers", "of_seeds", "of_both"),
    [((3, 3), 0.0, 1.0), ((3, 3), 1.0, 1.0), ((3, 2), 1.0, 1.0), ((3, 3), 0.2, 1.0)],
)
def test_chance_is_called_a_difference_in_one_case_of_twenty(numbers, of_seeds, of_both):
    """Whichever kind of chance is the larger. 400 cases: their share has a standard deviation of 0.011."""
    generator, false = np.random.default_rng(0), np.zeros(2)
    for _ in range(400):
        systems = draw_systems(generator, numbers, of_seeds=of_seeds, of_both=of_both)
        for i in range(2):
            compared = paired_bootstrap(*systems, np.mean, num_samples=60, counts_seeds=bool(i))
            false[i] += compared.differs
            assert compared.differs == (compared.p_value < 0.05)
    sentences_only, with_seeds = false / 400
    assert 0.02 < with_seeds < 0.09
    assert of_seeds < 1 or sentences_only > 0.3


def test_chrf_is_that_of_sacrebleu():
    references = [[text, text[::-1]] if i % 3 else [text] for i, text in enumerate(REFERENCES)]
    (a, b), score, signature = metric_statistics("chrf", (SYSTEM_A, SYSTEM_B), references)
    first, second = (list(texts) for texts in itertools.zip_longest(*references))
    chrf = sacrebleu.CHRF()
    rows = np.random.default_rng(0).choice(60, size=60)
    for system, statistics in ((SYSTEM_A, a), (SYSTEM_B, b)):
        drawn = [[texts[i] for i in rows] for texts in (system, first, second)]
        assert score(statistics[rows]) == pytest.approx(chrf.corpus_score(drawn[0], drawn[1:]).score)
    chrf.corpus_score(SYSTEM_A, [first, second])
    assert signature == str(chrf.get_signature()) and "nrefs:var" in signature


def test_f_half_of_m2_files(write, printed):
    """F0.5 of each resample is that of the M2 score of its sentences."""
    edit, unchanged = "A 1 2|||T|||b|||REQUIRED|||-NONE-|||{}", "A -1 -1|||noop|||-NONE-|||REQUIRED|||-NONE-|||{}"
    annotations = [[edit], [edit, unchanged], [unchanged, edit], [unchanged]] * 5
    paragraphs = ["\n".join(["S a x c", *(line.format(i) for i, line in enumerate(a))]) for a in annotations]
    systems = [RNG.choices(["a b c", "a x c", "b x c"], k=20) for _ in range(2)]
    write({"gold.m2": ["\n\n".join(paragraphs)], "fewer.m2": ["\n\n".join(paragraphs[1:])]} | dict(zip("ab", systems)))
    command = "score bootstrap --metric m2 --system_a a --system_b b --num_samples 30 --json --references"
    result, sentences = printed(f"{command} gold.m2"), m2.read_m2("gold.m2")
    assert result == compare(*systems, sentences, "m2", num_samples=30)
    expected = [m2.m2_score(texts, sentences)["f0.5"] for texts in systems]
    assert [result["score_a"], result["score_b"]] == pytest.approx(expected)
    rng = np.random.default_rng(12345)
    samples = [rng.choice(20, size=20) for _ in range(30)]
    drawn = [[[each[i] for i in sample] for each in (*systems, sentences)] for sample in samples]
    wins = [m2.m2_score(b, gold)["f0.5"] > m2.m2_score(a, gold)["f0.5"] for a, b, gold in drawn]
    assert result["wins_b"] == sum(wins)

    with pytest.raises(ValueError, match=r"The metric 'm2' has no options, but lowercase is given"):
        printed(f"{command} gold.m2 --lowercase")
    with pytest.raises(ValueError, match=r"One M2 file holds all annotators, but 2 files are given"):
        printed(f"{command} gold.m2 gold.m2")
    with pytest.raises(ValueError, match="20 predictions_b, 19 references"):
        printed(f"{command} fewer.m2")


def test_perplexities_of_language_models(write, printed):
    """Files of log-likelihoods are compared as `paired_bootstrap` compares them by a plain formula, and the lower
    perplexity wins. With several seeds, the perplexity is that of all their words."""
    words = np.array([len(text.split()) + 1 for text in REFERENCES])
    seeds = np.random.default_rng(0).uniform(3, 4, (4, len(words))) * words
    seeds[2:] *= 0.97
    write({"text": REFERENCES} | dict(zip("abcd", seeds.tolist())))
    command = "score bootstrap --metric perplexity --references text --num_samples 200 --json"
    result = printed(f"{command} --system_a a --system_b c")
    rows = [np.stack([nll, words], axis=1) for nll in (seeds[0], seeds[2])]
    expected = paired_bootstrap(*rows, lambda rows: np.exp(rows[:, 0].sum() / rows[:, 1].sum()), 200)
    assert result["difference"] == pytest.approx(expected.difference) and result["difference"] < 0
    assert result["confidence_interval"] == pytest.approx(expected.confidence_interval)
    assert (result["wins_b"], result["wins_a"]) == (expected.wins_a, expected.wins_b)
    assert result["wins_b"] > result["wins_a"]

    result = printed(f"{command} --system_a a b --system_b c d")
    assert result["counts_seeds"]
    assert result["score_a"] == pytest.approx(np.exp(seeds[:2].sum() / words.sum() / 2))
