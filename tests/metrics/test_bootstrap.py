# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Paired bootstrap resampling, against all resamples of a small set and sacreBLEU's own."""

import itertools
import json
import random
from statistics import NormalDist

import numpy as np
import pytest
import sacrebleu
from sacrebleu.significance import PairedTest

from modeling_ode_transformer import cli
from modeling_ode_transformer.metrics import m2
from modeling_ode_transformer.metrics.bleu import bleu
from modeling_ode_transformer.metrics.bootstrap import METRICS, compare, paired_bootstrap


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
    for wins, share in (
        (result.wins_a, (differences < 0).mean()),
        (result.wins_b, (differences > 0).mean()),
        (result.ties, (differences == 0).mean()),
    ):
        assert wins / 20000 == pytest.approx(share, abs=4 * (share * (1 - share) / 20000) ** 0.5)
    assert (result.score_a, result.score_b, result.difference) == (2.25, 2.75, 0.5)
    assert result.p_value == (result.wins_a + result.ties + 1) / 20001
    assert result.confidence_interval == np.quantile(differences, [0.025, 0.975]).tolist()


def test_systems_can_change_places():
    result, other = paired_bootstrap(A, B, mean), paired_bootstrap(B, A, mean)
    assert (result.wins_a, result.wins_b, result.p_value) == (other.wins_b, other.wins_a, other.p_value)
    assert result.confidence_interval == [-bound for bound in reversed(other.confidence_interval)]
    assert result == paired_bootstrap(A, B, mean)
    assert result.wins_a != paired_bootstrap(A, B, mean, seed=2).wins_a


def test_a_system_is_no_better_than_itself():
    result = paired_bootstrap(A, A, mean)
    assert (result.p_value, result.ties, result.confidence_interval) == (1, 1000, [0, 0])


def test_statistics_may_be_any_objects():
    """F0.5 from (matches, proposed, expected) of each sentence as tuples, and as rows of an array."""
    systems = [[(RNG.randint(0, 2), RNG.randint(2, 4), RNG.randint(2, 3)) for _ in range(30)] for _ in range(2)]

    def f_half(sentences):
        matches, proposed, expected = (sum(column) for column in zip(*sentences))
        return 1.25 * matches / (proposed + 0.25 * expected)

    assert paired_bootstrap(*systems, f_half) == paired_bootstrap(*map(np.array, systems), f_half)


def test_resamples_of_bleu_are_those_of_sacrebleu():
    metric = sacrebleu.BLEU()
    _, theirs = PairedTest([("a", SYSTEM_A), ("b", SYSTEM_B)], {"BLEU": metric}, [REFERENCES], "bs", n_samples=300)()
    (a, b), score, signature = METRICS["bleu"].statistics((SYSTEM_A, SYSTEM_B), REFERENCES)
    result = paired_bootstrap(a, b, score, num_samples=300)
    assert signature == str(metric.get_signature())
    ours = ((result.score_a, result.samples_a), (result.score_b, result.samples_b))
    for expected, (total, samples) in zip(theirs["BLEU"], ours):
        ordered = np.sort(samples)
        assert expected.score == pytest.approx(total, abs=1e-9)
        # sacreBLEU sums in float32.
        assert expected.mean == pytest.approx(samples.mean(), abs=1e-4)
        assert expected.ci == pytest.approx((ordered[-8] - ordered[7]) / 2, abs=1e-4)
    # Its p-value is defined otherwise, from the same resamples.
    distances = abs(result.samples_b - result.samples_a)
    larger = (distances - distances.mean() > abs(result.difference)).sum()
    assert theirs["BLEU"][1].p_value == (larger + 1) / 301


@pytest.mark.parametrize(
    ("metric", "name"),
    [("bleu", "sacrebleu"), ("tokenized_bleu", "tokenized_bleu"), ("compound_split_bleu", "compound_split_bleu")],
)
def test_each_bleu_is_compared_by_its_own_scores(metric, name):
    result = compare(SYSTEM_A, SYSTEM_B, REFERENCES, metric, num_samples=20, lowercase=True)
    for system, texts in (("a", SYSTEM_A), ("b", SYSTEM_B)):
        expected = bleu(texts, REFERENCES, lowercase=True)
        assert result[f"score_{system}"] == pytest.approx(expected[name], abs=1e-9)
    assert (result["metric"], result["signature"]) == (metric, expected[f"{name}_signature"])
    assert result["wins_a"] + result["wins_b"] + result["ties"] == result["num_samples"] == 20


def test_outputs_of_several_seeds_are_drawn_and_scored_together(tmp_path, capsys):
    """As a corpus in which each drawn sentence stands with all of its translations."""
    seeds_a, seeds_b = [SYSTEM_A, SYSTEM_B, SYSTEM_A], [SYSTEM_B, SYSTEM_B[:30] + SYSTEM_A[30:]]
    result = compare(seeds_a, seeds_b, REFERENCES, num_samples=20, seed=5, sentences_only=True)
    generator, differences = np.random.default_rng(5), []
    for _ in range(20):
        drawn = generator.choice(60, size=60)
        a, b = (
            bleu([texts[i] for texts in seeds for i in drawn], [REFERENCES[i] for _ in seeds for i in drawn])
            for seeds in (seeds_a, seeds_b)
        )
        differences.append(b["sacrebleu"] - a["sacrebleu"])
    assert 0 < result["wins_b"] == sum(difference > 0 for difference in differences) < 20
    assert result["confidence_interval"] == pytest.approx(np.quantile(differences, [0.025, 0.975]).tolist())
    together = bleu([*SYSTEM_A, *SYSTEM_B, *SYSTEM_A], REFERENCES * 3)
    assert result["score_a"] == pytest.approx(together["sacrebleu"], abs=1e-9)

    one = compare(SYSTEM_A, SYSTEM_B, REFERENCES, num_samples=20)
    assert one == compare(np.array(SYSTEM_A), [SYSTEM_B], REFERENCES, num_samples=20)

    for number, texts in enumerate([*seeds_a, *seeds_b, REFERENCES]):
        (tmp_path / str(number)).write_text("".join(f"{line}\n" for line in texts))
    files = [str(tmp_path / str(number)) for number in range(6)]
    command = ["--system_a", *files[:3], "--system_b", *files[3:5], "--references", files[5], "--num_samples", "20"]
    cli.run(["score", "bootstrap", *command, "--seed", "5", "--sentences_only", "--json"])
    assert json.loads(capsys.readouterr().out) == result
    cli.run(["score", "bootstrap", *command, "--seed", "5", "--json"])
    assert json.loads(capsys.readouterr().out) == compare(seeds_a, seeds_b, REFERENCES, num_samples=20, seed=5)


def draw_systems(generator, number, sentences=100, spread=0.5):
    """Scores of sentences (sentences, seeds) of two systems without a difference but in their seeds' luck."""
    difficulty = generator.normal(0, 3, (sentences, 1))
    return [
        difficulty + generator.normal(0, spread, number) + generator.normal(0, 2, (sentences, number))
        for _ in range(2)
    ]


def test_the_standard_error_counts_sentences_and_seeds():
    """Of means of independent scores it is known: the sum of the variances of both kinds, each by its number."""
    a, b = (each + [[0.0, 1.0, 3.0]] for each in draw_systems(np.random.default_rng(0), 3, spread=0))
    drawn = np.var((b - a).mean(axis=1)) / len(a)
    only = paired_bootstrap(a, b, np.mean, num_samples=4000)
    assert only.standard_error**2 == pytest.approx(drawn, rel=0.1) and not only.counts_seeds
    result = paired_bootstrap(a, b, np.mean, num_samples=4000, counts_seeds=True)
    of_seeds = sum(np.var(each.mean(axis=0), ddof=1) / 3 for each in (a, b))
    # What is left after the means of sentences and outputs is drawn with both.
    rest = [each - each.mean(axis=0) - each.mean(axis=1, keepdims=True) + each.mean() for each in (a, b)]
    of_rest = sum(np.mean(each**2) / (len(a) * 2) for each in rest)
    assert result.standard_error**2 == pytest.approx(drawn + of_seeds + of_rest, rel=0.1)
    # The share of the resamples around a difference of this size that lie above 1.96 standard errors.
    power = 1 - NormalDist().cdf(1.96 - result.detectable_difference / result.standard_error)
    assert power == pytest.approx(0.8, abs=1e-3)


def test_luck_of_three_seeds_is_not_called_a_difference():
    """Sentences alone say so in a third of all cases, in place of one in twenty."""
    generator = np.random.default_rng(0)
    false = np.zeros(2)
    for _ in range(120):
        systems = draw_systems(generator, 3)
        for i in range(2):
            false[i] += paired_bootstrap(*systems, np.mean, num_samples=100, counts_seeds=bool(i)).differs
    sentences_only, with_seeds = false / 120
    assert sentences_only > 0.2 and with_seeds < 0.1


def test_outputs_that_are_the_same_add_no_chance():
    one = compare(SYSTEM_A, SYSTEM_B, REFERENCES, num_samples=20)
    three = compare([SYSTEM_A] * 3, [SYSTEM_B] * 3, REFERENCES, num_samples=20)
    assert three["counts_seeds"] and not one["counts_seeds"]
    for name in ("difference", "confidence_interval", "standard_error", "p_value"):
        assert three[name] == pytest.approx(one[name])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: compare([["a"], ["a", "b"]], ["a"], ["a"]), r"1 predictions_a\[0\], 2 predictions_a\[1\]"),
        (lambda: paired_bootstrap(A, B[:3], mean), "4 statistics_a, 3 statistics_b"),
        (lambda: paired_bootstrap([], [], mean), "no statistics_a"),
        (
            lambda: paired_bootstrap(A[:, None], B[:, None], mean, counts_seeds=True),
            "statistics_a has one output, .* need several: give more",
        ),
        (lambda: paired_bootstrap(A, B, mean, num_samples=0), "num_samples 0 must be at least 1"),
        (lambda: compare(["a"], ["a", "b"], ["a", "b"]), "1 predictions_a, 2 predictions_b, 2 references"),
        (lambda: compare(["a"], ["a"], ["a"], metric="chrf"), "metric 'chrf' must be one of bleu, tokenized_bleu"),
        (lambda: compare(["a"], ["a"], ["a"], beta=2), "metric 'bleu' has no option beta, only tokenize, lowercase"),
    ],
)
def test_what_cannot_be_compared_is_said(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_command_compares_files(tmp_path, capsys):
    for name, lines in (("a", SYSTEM_A), ("b", SYSTEM_B), ("reference", REFERENCES), ("short", REFERENCES[1:])):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    systems = ["--system_a", str(tmp_path / "a"), "--system_b", str(tmp_path / "b")]
    options = ["--metric", "tokenized_bleu", "--num_samples", "50", "--seed", "3", "--lowercase", "--json"]
    cli.run(["score", "bootstrap", *systems, "--references", str(tmp_path / "reference"), *options])
    expected = compare(SYSTEM_A, SYSTEM_B, REFERENCES, "tokenized_bleu", 50, 3, lowercase=True)
    assert json.loads(capsys.readouterr().out) == expected

    with pytest.raises(ValueError, match=r"a has 60 lines, but .*short has 59 sentences"):
        cli.run(["score", "bootstrap", *systems, "--references", str(tmp_path / "short")])


def test_f_half_of_m2_files(tmp_path, capsys):
    """F0.5 of each resample is that of the M2 score of its sentences."""
    edit, unchanged = "A 1 2|||T|||b|||REQUIRED|||-NONE-|||{}", "A -1 -1|||noop|||-NONE-|||REQUIRED|||-NONE-|||{}"
    annotations = [[edit], [edit, unchanged], [unchanged, edit], [unchanged]] * 5
    paragraphs = ["\n".join(["S a x c", *(line.format(i) for i, line in enumerate(a))]) for a in annotations]
    (tmp_path / "gold.m2").write_text("\n\n".join(paragraphs) + "\n")
    systems = [RNG.choices(["a b c", "a x c", "b x c"], k=20) for _ in range(2)]
    for name, lines in zip("ab", systems):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))

    files = ["--system_a", str(tmp_path / "a"), "--system_b", str(tmp_path / "b")]
    command = ["--metric", "m2", *files, "--references", str(tmp_path / "gold.m2")]
    cli.run(["score", "bootstrap", *command, "--num_samples", "30", "--json"])
    result = json.loads(capsys.readouterr().out)
    sentences = m2.read_m2(tmp_path / "gold.m2")
    assert result == compare(*systems, sentences, "m2", num_samples=30)
    assert result == compare(*systems, [str(sentence) for sentence in sentences], "m2", num_samples=30)
    expected = [m2.m2_score(texts, sentences)["f0.5"] for texts in systems]
    assert [result["score_a"], result["score_b"]] == pytest.approx(expected)
    rng = np.random.default_rng(12345)
    samples = [rng.choice(20, size=20) for _ in range(30)]
    scores = [
        [m2.m2_score([texts[i] for i in sample], [sentences[i] for i in sample])["f0.5"] for texts in systems]
        for sample in samples
    ]
    assert result["wins_b"] == sum(b > a for a, b in scores)

    with pytest.raises(ValueError, match=r"The metric 'm2' has no option lowercase"):
        cli.run(["score", "bootstrap", *command, "--lowercase"])
    with pytest.raises(ValueError, match=r"One M2 file holds all annotators, but 2 files are given"):
        cli.run(["score", "bootstrap", *command, str(tmp_path / "gold.m2")])
    (tmp_path / "gold.m2").write_text("\n\n".join(paragraphs[1:]) + "\n")
    with pytest.raises(ValueError, match=r"a has 20 lines, but .*gold\.m2 has 19 sentences"):
        cli.run(["score", "bootstrap", *command])


def test_perplexities_of_language_models(tmp_path, capsys):
    """Files of log-likelihoods are compared as `paired_bootstrap` compares them by a plain formula, and the lower
    perplexity wins. With several seeds, the perplexity is that of all their words."""
    words = np.array([len(text.split()) + 1 for text in REFERENCES])
    seeds = np.random.default_rng(0).uniform(3, 4, (4, len(words))) * words
    seeds[2:] *= 0.97
    (tmp_path / "text").write_text("".join(f"{text}\n" for text in REFERENCES))
    for number, nll in enumerate(seeds):
        (tmp_path / str(number)).write_text("".join(f"{value}\n" for value in nll.tolist()))
    files = [str(tmp_path / str(number)) for number in range(4)]
    options = ["--metric", "perplexity", "--references", str(tmp_path / "text"), "--num_samples", "200", "--json"]
    cli.run(["score", "bootstrap", "--system_a", files[0], "--system_b", files[2], *options])
    result = json.loads(capsys.readouterr().out)
    rows = [np.stack([nll, words], axis=1) for nll in (seeds[0], seeds[2])]
    expected = paired_bootstrap(*rows, lambda rows: np.exp(rows[:, 0].sum() / rows[:, 1].sum()), 200)
    assert result["difference"] == pytest.approx(expected.difference) and result["difference"] < 0
    assert result["confidence_interval"] == pytest.approx(expected.confidence_interval)
    assert (result["wins_b"], result["wins_a"]) == (expected.wins_a, expected.wins_b)
    assert result["wins_b"] > result["wins_a"]

    cli.run(["score", "bootstrap", "--system_a", *files[:2], "--system_b", *files[2:], *options])
    result = json.loads(capsys.readouterr().out)
    assert result["counts_seeds"]
    assert result["score_a"] == pytest.approx(np.exp(seeds[:2].sum() / words.sum() / 2))
    both = ["--references", str(tmp_path / "text"), str(tmp_path / "text")]
    with pytest.raises(ValueError, match="is one file of references, but 2 are given"):
        cli.run(["score", "bootstrap", "--system_a", files[0], "--system_b", files[2], *options, *both])
    with pytest.raises(ValueError, match=r"Line 1 of a system is '.*', not a number: give files of"):
        cli.run(["score", "bootstrap", "--system_a", files[0], "--system_b", str(tmp_path / "text"), *options])


def test_evaluate_loads_it_without_network(load_metric):
    comparison = load_metric("bootstrap")
    result = comparison.compute(
        predictions1=SYSTEM_A, predictions2=SYSTEM_B, references=REFERENCES, metric="tokenized_bleu", num_samples=50
    )
    assert result == compare(SYSTEM_A, SYSTEM_B, REFERENCES, "tokenized_bleu", 50)
