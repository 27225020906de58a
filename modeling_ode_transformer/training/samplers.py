# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Batches of pairs or texts of similar length."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch.utils.data import Sampler


class TokenBudgetBatchSampler(Sampler[list[int]]):
    """Batches of pairs of similar length that fill a budget of tokens, as fairseq's `--max-tokens`.

    A batch of n pairs is padded to n times its longest source and n times its longest target; neither exceeds
    `max_tokens`. Pairs are sorted by their lengths, those of equal lengths in another order in every epoch, and cut
    into batches where the budget is full; the batches then come in random order. Sizes of batches are the same in
    every epoch, so that their number is known. It is a multiple of `num_replicas * accumulation_steps`: the largest
    batches are halved until it is, no pair is dropped or repeated, and every process has as many updates. Only where
    all batches are down to one pair, the first ones of an epoch come again at its end.

    Process `rank` takes the batches `rank`, `rank + num_replicas`, ... of an epoch, and one process that accumulates
    `num_replicas` batches sees those of an update of `num_replicas` processes.

    Args:
        lengths: (pairs, 2), tokens of each source and target.
        max_tokens: Most padded tokens of a batch's sources, and of its targets.
        seed: Of the order; epoch e is drawn from both.
        num_replicas: Number of processes.
        rank: This process.
        accumulation_steps: Batches of a process to an update.
        pad_to_multiple_of: What the collator rounds lengths up to.

    Raises:
        ValueError: a pair is longer than the budget; there are no pairs, or fewer than batches of one update.
    """

    def __init__(
        self,
        lengths: Sequence[Sequence[int]],
        max_tokens: int,
        seed: int = 0,
        num_replicas: int = 1,
        rank: int = 0,
        accumulation_steps: int = 1,
        pad_to_multiple_of: int | None = None,
    ):
        self.lengths = np.asarray(lengths, dtype=np.int64).reshape(-1, 2)
        self.max_tokens = max_tokens
        self.seed = seed
        self.num_replicas = num_replicas
        self.rank = rank
        self.accumulation_steps = accumulation_steps
        self.epoch = 0

        per_update = num_replicas * accumulation_steps
        if len(self.lengths) < per_update:
            raise ValueError(
                f"{len(self.lengths)} pairs cannot fill the {per_update} batches of one update ({num_replicas} "
                f"processes, {accumulation_steps} accumulation steps each)."
            )
        multiple = pad_to_multiple_of or 1
        self.padded_lengths = -(-self.lengths // multiple) * multiple
        # A pair without any token fills a place of a batch as well.
        widths = self.padded_lengths.max(axis=1).clip(min=1)
        if widths.max() > max_tokens:
            longest = int(widths.argmax())
            raise ValueError(
                f"Pair {longest} has {self.lengths[longest][0]} source and {self.lengths[longest][1]} target tokens "
                f"(padded to {widths.max()}), more than a batch may hold: raise max_tokens_per_batch={max_tokens}, or "
                "cut the pairs to fewer tokens."
            )
        self.batch_sizes = self._divisible(self._fill(np.sort(widths)), per_update)
        self.batches_per_epoch = math.ceil(len(self.batch_sizes) / per_update) * per_update

    def _fill(self, widths: np.ndarray) -> list[int]:
        """Numbers of pairs, of ascending widths, that fill one batch after the other."""
        sizes, start = [], 0
        while start < len(widths):
            # The widest of the first k pairs is the k-th.
            candidates = widths[start : start + self.max_tokens // widths[start]]
            size = int(np.searchsorted(candidates * np.arange(1, len(candidates) + 1), self.max_tokens, side="right"))
            sizes.append(size)
            start += size
        return sizes

    def _divisible(self, sizes: list[int], per_update: int) -> list[int]:
        """Halves the largest batches until every update has as many, or all have one pair."""
        while len(sizes) % per_update and max(sizes) > 1:
            largest = max(range(len(sizes)), key=sizes.__getitem__)
            sizes[largest : largest + 1] = [sizes[largest] - sizes[largest] // 2, sizes[largest] // 2]
        return sizes

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        """Batches of this process in an epoch."""
        return self.batches_per_epoch // self.num_replicas

    def batches(self) -> list[np.ndarray]:
        """All processes' batches of the current epoch in their order: indices of pairs."""
        generator = np.random.default_rng((self.seed, self.epoch))
        shuffled = generator.permutation(len(self.lengths))
        sources, targets = self.lengths[shuffled].T
        # By the width last: it is the first key. The two others make batches of fewer shapes, and less padding.
        order = np.lexsort((targets, sources, self.padded_lengths[shuffled].max(axis=1)))
        batches = np.split(shuffled[order], np.cumsum(self.batch_sizes)[:-1])
        return [batches[i] for i in np.resize(generator.permutation(len(batches)), self.batches_per_epoch)]

    def __iter__(self):
        return (batch.tolist() for batch in self.batches()[self.rank :: self.num_replicas])

    def report(self) -> dict[str, float]:
        """Updates of an epoch, what an update holds on average over all processes, and the share of padding."""
        updates = len(self) // self.accumulation_steps
        batches = self.batches()
        padded = sum(len(batch) * self.padded_lengths[batch].max(axis=0).sum() for batch in batches)
        sources, targets = sum(self.lengths[batch].sum(axis=0) for batch in batches)
        return {
            "updates_per_epoch": updates,
            "pairs_per_update": sum(map(len, batches)) / updates,
            "source_tokens_per_update": float(sources / updates),
            "target_tokens_per_update": float(targets / updates),
            "padding": float(1 - (sources + targets) / padded),
        }


class LengthGroupedSampler(Sampler[int]):
    """Batches of examples of similar length, in random order, the same for the same seed and epoch.

    Trainer's own sampler of that name goes from long to short again and again, and after a resumption in the middle
    of an epoch it draws another order.
    """

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int):
        self.lengths = torch.as_tensor(lengths)
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self):
        generator = np.random.default_rng((self.seed, self.epoch))
        shuffled = torch.from_numpy(generator.permutation(len(self)))
        # Sorting whole epochs would make the same batches again and again; a hundred batches keep padding low.
        groups = [group[self.lengths[group].argsort(stable=True)] for group in shuffled.split(100 * self.batch_size)]
        batches = list(torch.cat(groups).split(self.batch_size))
        # A short last batch stays last, as DataLoader cuts this sequence into batches from its start.
        short = [batches.pop()] if len(batches[-1]) < self.batch_size else []
        return iter(torch.cat([batches[i] for i in generator.permutation(len(batches))] + short).tolist())


def pair_lengths(dataset) -> np.ndarray:
    """(pairs, 2): numbers of source and target tokens, or of labels; of a class 1."""
    columns = getattr(dataset, "column_names", [])
    if {"source_length", "target_length"} <= set(columns):
        return np.stack([dataset["source_length"][:], dataset["target_length"][:]], axis=1)
    return np.array([(len(pair["input_ids"]), np.size(pair.get("labels", 0))) for pair in dataset])
