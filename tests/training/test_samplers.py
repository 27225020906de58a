# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Batches with a budget of tokens."""

import numpy as np
import pytest

from modeling_ode_transformer.training.samplers import TokenBudgetBatchSampler


@pytest.fixture
def lengths():
    """Correlated lengths of sources and targets with a long tail, as those of sentences."""
    generator = np.random.default_rng(0)
    sources = 1 + generator.gamma(3, 6, size=2000).astype(int)
    return np.stack([sources, np.maximum(1, sources + generator.integers(-4, 5, size=2000))], axis=1)


def padded(batch, lengths, multiple=1):
    return len(batch) * (-(-lengths[batch] // multiple) * multiple).max(axis=0)


@pytest.mark.parametrize("multiple", [1, 8])
def test_batches_fill_the_budget_on_both_sides(lengths, multiple):
    sampler = TokenBudgetBatchSampler(lengths, 1000, pad_to_multiple_of=multiple)
    batches = list(sampler)
    assert len(batches) == len(sampler)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    fill = [padded(batch, lengths, multiple).max() for batch in batches]
    assert max(fill) <= 1000
    assert np.mean(fill) > 950
    report = sampler.report()
    total = sum(padded(batch, lengths, multiple).sum() for batch in batches)
    assert report["padding"] == pytest.approx(1 - lengths.sum() / total)
    assert report["updates_per_epoch"] == len(batches)
    assert report["source_tokens_per_update"] == pytest.approx(lengths[:, 0].sum() / len(batches))
    sentences = np.random.default_rng(1).permutation(len(lengths)).reshape(-1, 40)
    assert report["padding"] < 0.4 * (1 - lengths.sum() / sum(padded(batch, lengths).sum() for batch in sentences))


def test_epochs_are_shuffled_from_the_seed(lengths):
    def epoch(number, seed=3):
        sampler = TokenBudgetBatchSampler(lengths, 1000, seed)
        sampler.set_epoch(number)
        return list(sampler)

    assert epoch(1) == epoch(1)
    first, second, other = epoch(0), epoch(1), epoch(0, seed=4)
    assert len(first) == len(second) == len(other)
    for batches in (second, other):
        assert batches != first
        # Other mixtures, not only another order of the same batches.
        assert {frozenset(batch) for batch in batches} != {frozenset(batch) for batch in first}
    widths = [lengths[batch].max() for batch in first]
    assert abs(np.corrcoef(widths, range(len(widths)))[0, 1]) < 0.3


@pytest.mark.parametrize("replicas, steps", [(2, 1), (3, 2), (8, 4)])
def test_processes_have_as_many_updates_and_see_what_one_process_accumulates(lengths, replicas, steps):
    one = TokenBudgetBatchSampler(lengths, 900, accumulation_steps=replicas * steps)
    options = {"num_replicas": replicas, "accumulation_steps": steps}
    parts = [TokenBudgetBatchSampler(lengths, 900, rank=rank, **options) for rank in range(replicas)]
    assert {len(part) for part in parts} == {len(one) // replicas}
    assert len(parts[0]) % steps == 0
    assert [batch for together in zip(*parts) for batch in together] == list(one)
    assert max(padded(batch, lengths).max() for batch in one) <= 900


def test_a_budget_that_cannot_be_kept_is_refused(lengths):
    with pytest.raises(ValueError, match=r"Pair \d+ has \d+ source and \d+ target tokens .* raise max_tokens_per_bat"):
        TokenBudgetBatchSampler(lengths, int(lengths.max()) - 1)
    assert TokenBudgetBatchSampler(lengths, int(lengths.max()))
    with pytest.raises(ValueError, match=r"3 pairs cannot fill the 4 batches of one update \(2 processes, 2"):
        TokenBudgetBatchSampler([[1, 2]] * 3, 100, num_replicas=2, accumulation_steps=2)
    assert len(TokenBudgetBatchSampler([[1, 2]] * 4, 100, num_replicas=2, accumulation_steps=2)) == 2
    with pytest.raises(ValueError, match="0 pairs cannot fill the 1 batches"):
        TokenBudgetBatchSampler([], 100)


def test_batches_of_one_pair_come_again_where_they_do_not_fill_the_last_update():
    """Five pairs, each as long as the budget, in updates of four batches."""
    sampler = TokenBudgetBatchSampler([[10, 7]] * 5, 10, accumulation_steps=4)
    batches = list(sampler)
    assert len(batches) == len(sampler) == 8 and batches[5:] == batches[:3]
    assert sorted(batches[:5]) == [[0], [1], [2], [3], [4]]
    expected = {"updates_per_epoch": 2, "pairs_per_update": 4, "padding": 0}
    expected |= {"source_tokens_per_update": 40, "target_tokens_per_update": 28}
    assert sampler.report() == expected


def test_pairs_without_tokens_are_batched_too():
    assert sorted(next(iter(TokenBudgetBatchSampler([[0, 0], [1, 2], [0, 0]], 10)))) == [0, 1, 2]


def sorted_in_one_go(lengths, max_tokens, seed, epoch, multiple):
    """The batches as the first versions made them: by the widths, sources and targets of shuffled pairs."""
    generator = np.random.default_rng((seed, epoch))
    shuffled = generator.permutation(len(lengths))
    widths = (-(-lengths // multiple) * multiple).max(axis=1)
    sources, targets = lengths[shuffled].T
    ordered = shuffled[np.lexsort((targets, sources, widths[shuffled]))].tolist()
    batches = [[]]
    for pair in ordered:
        if (len(batches[-1]) + 1) * widths[pair] > max_tokens:
            batches.append([])
        batches[-1].append(pair)
    return [batches[i] for i in generator.permutation(len(batches))]


def test_batches_of_a_seed_stay_what_they_were(lengths):
    for multiple in (1, 8):
        sampler = TokenBudgetBatchSampler(lengths, 1000, seed=7, pad_to_multiple_of=multiple)
        for epoch in (0, 3):
            sampler.set_epoch(epoch)
            assert list(sampler) == sorted_in_one_go(lengths, 1000, 7, epoch, multiple)
