# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Batches of pairs or texts of similar length."""

import math
from collections.abc import Sequence

import datasets
import numpy as np
import pyarrow.compute
import torch
from torch.utils.data import Sampler


class TokenBudgetBatchSampler(Sampler[list[int]]):
    """Batches of pairs of similar length that fill a budget of tokens, like fairseq's `--max-tokens`.

    A batch of n pairs is padded to n times its longest source and n times its longest target; neither exceeds
    `max_tokens`. Pairs are sorted by length; pairs of equal lengths are shuffled in every epoch. They are cut into
    batches where the budget is full, and the batches come in random order. Batch sizes are the same in every epoch, so
    the number of batches is known. It is a multiple of `num_replicas * accumulation_steps`: the largest batches are
    halved until it is. No pair is dropped or repeated, and all processes make equally many updates. Only if all
    batches shrink to one pair, the first ones of an epoch are repeated at its end.

    Process `rank` takes the batches `rank`, `rank + num_replicas`, ... of an epoch. A single process that accumulates
    `num_replicas` batches sees the same updates as `num_replicas` processes.

    Args:
        lengths: (pairs, 2), tokens of each source and target.
        max_tokens: The largest number of padded tokens of a batch's sources, and of its targets.
        seed: Seed of the order, together with the number of the epoch.
        num_replicas: Number of processes.
        rank: Number of this process.
        accumulation_steps: Batches per update and process.
        pad_to_multiple_of: The multiple to which the collator pads lengths.
        marks_epochs: In epoch e, pair i has the index e * pairs + i, by which a dataset tells its draws apart.

    Raises:
        ValueError: a pair is longer than the budget; there are no pairs, or too few for one update.
    """

    def __init__(
        self,
        lengths: Sequence[Sequence[int]] | np.ndarray,
        max_tokens: int,
        seed: int = 0,
        num_replicas: int = 1,
        rank: int = 0,
        accumulation_steps: int = 1,
        pad_to_multiple_of: int | None = None,
        marks_epochs: bool = False,
    ):
        lengths = np.asarray(lengths)
        lengths = lengths.reshape(-1, 2) if lengths.size else np.empty((0, 2), dtype=np.int64)
        self.max_tokens = max_tokens
        self.seed = seed
        self.num_replicas = num_replicas
        self.rank = rank
        self.accumulation_steps = accumulation_steps
        self.marks_epochs = marks_epochs
        self.epoch = 0

        per_update = num_replicas * accumulation_steps
        if len(lengths) < per_update:
            raise ValueError(
                f"{len(lengths)} pairs cannot fill the {per_update} batches of one update ({num_replicas} "
                f"processes, {accumulation_steps} accumulation steps each)."
            )
        multiple = pad_to_multiple_of or 1
        padded = -(-lengths // multiple) * multiple
        # An empty pair takes a place in a batch too.
        widths = padded.max(axis=1).clip(min=1)
        longest = int(widths.argmax())
        if widths[longest] > max_tokens:
            raise ValueError(
                f"Pair {longest} has {lengths[longest][0]} source and {lengths[longest][1]} target tokens "
                f"(padded to {widths[longest]}), more than a batch may hold: raise max_tokens_per_batch={max_tokens}, "
                "or cut the pairs to fewer tokens."
            )
        # Pairs are cut into batches by width first; the other keys give batches fewer shapes and less padding.
        size = max_tokens + 1
        self.keys = (widths.astype(np.int64) * size + lengths[:, 0]) * size + lengths[:, 1]
        # Values are sorted faster than their order is found.
        widths, lengths = np.divmod(np.sort(self.keys), size * size)
        lengths = np.stack(np.divmod(lengths, size), axis=1)
        self.sizes = self._divisible(self._fill(widths), per_update)
        self.batches_per_epoch = math.ceil(len(self.sizes) / per_update) * per_update
        # Batches have the same shapes in every epoch.
        firsts = np.cumsum(self.sizes) - self.sizes
        self.tokens = np.add.reduceat(lengths, firsts)
        padded = -(-np.maximum.reduceat(lengths, firsts) // multiple) * multiple
        self.padded_tokens = (padded * self.sizes[:, None]).sum(axis=1)

    def _fill(self, widths: np.ndarray) -> np.ndarray:
        """Returns the sizes of batches that pairs of ascending widths fill one after the other."""
        sizes: list[int] = []
        start = 0
        while start < len(widths):
            most = self.max_tokens // int(widths[start])
            if full := int(np.searchsorted(widths, widths[start], side="right") - start) // most:
                sizes += [most] * full
                start += most * full
                continue
            # The widest of the first k pairs is the k-th.
            candidates = widths[start : start + most]
            padded = candidates * np.arange(1, len(candidates) + 1)
            size = int(np.searchsorted(padded, self.max_tokens, side="right"))
            sizes.append(size)
            start += size
        return np.array(sizes)

    def _divisible(self, sizes: np.ndarray, per_update: int) -> np.ndarray:
        """Halves the largest batches until all updates have equally many, or all batches hold one pair."""
        while len(sizes) % per_update and sizes.max() > 1:
            largest = sizes.argmax()
            half = sizes[largest] // 2
            sizes[largest] -= half
            sizes = np.insert(sizes, largest + 1, half)
        return sizes

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        """The number of this process's batches in an epoch."""
        return self.batches_per_epoch // self.num_replicas

    def _draw(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the pairs of the epoch's batches in sequence, and the shuffled numbers of all processes' batches."""
        generator = np.random.default_rng((self.seed, self.epoch))
        shuffled = generator.permutation(len(self.keys))
        pairs = shuffled[self.keys[shuffled].argsort(kind="stable")]
        return pairs, np.resize(generator.permutation(len(self.sizes)), self.batches_per_epoch)

    def __iter__(self):
        first = self.epoch * len(self.keys) if self.marks_epochs else 0
        pairs, order = self._draw()
        batches = np.split(pairs, np.cumsum(self.sizes)[:-1])
        for i in order[self.rank :: self.num_replicas]:
            yield (first + batches[i]).tolist()

    def report(self) -> dict[str, float]:
        """The updates of an epoch, the mean contents of an update over all processes, and the share of padding."""
        updates = len(self) // self.accumulation_steps
        # In an epoch, the first batches may come again.
        order = self._draw()[1] if self.batches_per_epoch > len(self.sizes) else slice(None)
        sources, targets = map(float, self.tokens[order].sum(axis=0))
        return {
            "updates_per_epoch": updates,
            "pairs_per_update": float(self.sizes[order].sum()) / updates,
            "source_tokens_per_update": sources / updates,
            "target_tokens_per_update": targets / updates,
            "padding": 1 - (sources + targets) / float(self.padded_tokens[order].sum()),
        }


class LengthGroupedSampler(Sampler[int]):
    """Batches of examples of similar length in random order, which depends only on the seed and the epoch.

    Trainer's own sampler of that name repeatedly goes from long to short, and draws another order after a resumption
    in the middle of an epoch.
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
        # Sorting whole epochs would repeat the same batches; sorting a hundred batches at a time keeps padding low.
        groups = [group[self.lengths[group].argsort(stable=True)] for group in shuffled.split(100 * self.batch_size)]
        batches = list(torch.cat(groups).split(self.batch_size))
        # A short last batch stays last, because DataLoader cuts this sequence into batches from its start.
        short = [batches.pop()] if len(batches[-1]) < self.batch_size else []
        return iter(torch.cat([batches[i] for i in generator.permutation(len(batches))] + short).tolist())


def pair_lengths(dataset) -> np.ndarray:
    """Returns the numbers of source and target tokens (or labels; 1 for a class), (pairs, 2)."""
    columns = ["source_length", "target_length"]
    if isinstance(dataset, datasets.Dataset) and set(columns) <= set(dataset.column_names):
        table = dataset.select_columns(columns).with_format("arrow")[:]
        return np.stack([table.column(name).to_numpy() for name in columns], dtype=np.int32).T
    return np.array([(len(pair["input_ids"]), np.size(pair.get("labels", 0))) for pair in dataset])


def longest_source(dataset) -> int:
    """Returns the largest number of source tokens."""
    if isinstance(dataset, datasets.Dataset) and "source_length" in dataset.column_names:
        return pyarrow.compute.max(dataset.with_format("arrow")[:]["source_length"]).as_py()
    return max(len(pair["input_ids"]) for pair in dataset)
