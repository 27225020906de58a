# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Token-budget batches of a stream of encoded pairs; only a buffer of it is in memory."""

import copy
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import datasets
import numpy as np
from accelerate.utils import gather_object
from datasets.distributed import split_dataset_by_node
from datasets.iterable_dataset import BufferShuffledExamplesIterable
from torch.utils.data import IterableDataset

from .samplers import TokenBudgetBatchSampler


# The start of a stream. `stream` is the state of the datasets library before the buffer (None at the beginning),
# `is_over` marks a buffer that is repeated, and `batches` counts those of the earlier buffers.
BEGINNING: dict[str, Any] = {"epoch": 0, "buffer": 0, "batches": 0, "stream": None, "is_over": False, "skipped": 0}


def shuffle_buffer(stream: datasets.IterableDataset) -> int:
    """The size of the largest buffer in which the datasets library shuffles the examples of a stream; 0 if there is
    none that holds more than one example."""
    found, largest = [stream._ex_iterable], 0
    while found:
        part = found.pop()
        if isinstance(part, BufferShuffledExamplesIterable) and part.buffer_size > 1:
            largest = max(largest, part.buffer_size)
        found += [*getattr(part, "ex_iterables", []), *([part.ex_iterable] if hasattr(part, "ex_iterable") else [])]
    return largest


class TokenBudgetStream(IterableDataset):
    """Batches without end, with a budget of tokens, of a stream of encoded pairs; each is a list of pairs.

    `TokenBudgetBatchSampler` cuts `buffer_size` pairs at a time into batches of similar length in random order, while
    a thread reads the next pairs. Each process reads its part of the stream. All processes make equally many batches
    of a buffer, a multiple of `accumulation_steps`: those with fewer halve their largest ones. A process that reaches
    the end of its part repeats its last buffer until all processes have reached theirs.

    Args:
        stream: Mappings with `input_ids` and `labels`. Its epoch is set before each pass. If it is not yet split by
            node, it is split here.
        max_tokens: The largest number of padded tokens of a batch's sources, and of its targets.
        buffer_size: Pairs in a buffer; a process has up to three buffers in memory.
        seed: Seed of the order, together with the number of the buffer.
        num_replicas, rank: Number of processes, and of this one.
        accumulation_steps: Batches per update and process.
        pad_to_multiple_of: The multiple to which the collator pads lengths.

    Raises:
        ValueError: the stream has a shuffle buffer; or, on iteration, a process has no pair, or a pair is longer than
            the budget.
    """

    def __init__(
        self,
        stream: datasets.IterableDataset,
        max_tokens: int,
        buffer_size: int = 20_000,
        seed: int = 0,
        num_replicas: int = 1,
        rank: int = 0,
        accumulation_steps: int = 1,
        pad_to_multiple_of: int | None = None,
    ):
        if buffer := shuffle_buffer(stream):
            raise ValueError(
                f"The stream has .shuffle(buffer_size={buffer}), and what is in that buffer would be lost when a "
                "training is resumed: leave it out, since the pairs are shuffled here (stream_buffer_size), or give "
                "buffer_size=1, which shuffles the files."
            )
        if num_replicas > 1 and getattr(stream, "_distributed", None) is None:
            stream = split_dataset_by_node(stream, rank, num_replicas)
        self.stream = stream
        self.first_state = copy.deepcopy(stream.state_dict())
        self.max_tokens = max_tokens
        self.buffer_size = buffer_size
        self.seed = seed
        self.num_replicas = num_replicas
        self.accumulation_steps = accumulation_steps
        self.pad_to_multiple_of = pad_to_multiple_of
        self.start = dict(BEGINNING)
        # The states at which the last buffers began.
        self.known: deque[dict] = deque(maxlen=4)

    def state_dict(self, batches: int) -> dict:
        """The JSON state with which `load_state_dict` continues after `batches`, recent ones, of this process."""
        state = next(state for state in reversed(self.known) if state["batches"] <= batches)
        return state | {"skipped": batches - state["batches"]}

    def load_state_dict(self, state: dict) -> None:
        """Continues from the state; of the past, only the buffer is read again."""
        self.start = dict(state)

    def _read(self, epoch: int, state: dict | None) -> Iterator[tuple[dict, list[dict]]]:
        """Yields the buffers of this process's part of an epoch, each with the state before it."""
        self.stream.set_epoch(epoch)
        # Otherwise it would begin where it was loaded last.
        self.stream.load_state_dict(self.first_state | {"epoch": epoch} if state is None else state)
        pairs = iter(self.stream)
        while True:
            state = self.stream.state_dict()
            if not (buffer := list(islice(pairs, self.buffer_size))):
                return
            yield state, buffer

    def _buffers(self) -> Iterator[tuple[dict, list[dict]]]:
        """Yields the start of each buffer of this process, and its pairs. All processes have equally many buffers."""
        place = dict(self.start)
        with ThreadPoolExecutor(1) as executor:
            while True:
                read = self._read(place["epoch"], place["stream"])
                following = executor.submit(next, read, None)
                last = following.result() if place["is_over"] else None
                if place["is_over"]:
                    following = executor.submit(lambda: None)
                while True:
                    found = following.result()
                    is_over = found is None
                    are_over = self._gather(is_over)
                    if is_over and last is None:
                        raise ValueError(
                            "A process got no pair from the stream: give a stream with at least as many shards or "
                            "pairs as there are processes."
                        )
                    if all(are_over):
                        break
                    if not is_over:
                        last = found
                        following = executor.submit(next, read, None)
                    place |= {"stream": last[0], "is_over": is_over}
                    yield place, last[1]
                    place["buffer"] += 1
                place |= {"epoch": place["epoch"] + 1, "stream": None, "is_over": False}

    def _gather(self, value) -> list:
        """The values of all processes."""
        return gather_object([value]) if self.num_replicas > 1 else [value]

    def _cut(self, buffer: list[dict], number: int) -> list[np.ndarray]:
        """Returns the batches of a buffer in order, as indices into it."""
        lengths = np.array([(len(pair["input_ids"]), len(pair["labels"])) for pair in buffer], dtype=np.int32)

        def sampler(multiple: int) -> TokenBudgetBatchSampler:
            # With fewer pairs than batches, pairs are repeated.
            repeated = np.resize(lengths, (max(len(lengths), multiple), 2))
            return TokenBudgetBatchSampler(
                repeated,
                self.max_tokens,
                seed=self.seed,
                accumulation_steps=multiple,
                pad_to_multiple_of=self.pad_to_multiple_of,
            )

        own = sampler(self.accumulation_steps)
        most = max(self._gather(own.batches_per_epoch))
        if own.batches_per_epoch < most:
            own = sampler(most)
        return [places % len(buffer) for places in own.batches_of(number)]

    def __iter__(self) -> Iterator[list[dict]]:
        self.known.clear()
        skipped = self.start["skipped"]
        for place, buffer in self._buffers():
            self.known.append(place | {"skipped": 0})
            batches = self._cut(buffer, place["buffer"])
            for places in batches[skipped:]:
                yield [buffer[i] for i in places]
            skipped = 0
            place["batches"] += len(batches)
