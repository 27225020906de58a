# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Subword regularization: each time that a pair is drawn, its words are cut into other pieces.

A BPE tokenizer skips merges at random (BPE-dropout: Provilkov et al., ACL 2020, algorithm 1); one of a unigram model
draws a segmentation by its probability (Kudo, ACL 2018, section 3.2, without a limit to the best ones). Words are read
from the ids of prepared data, and random numbers come from the seed, the epoch and the pair. So prepared data, workers
and resumed trainings need nothing else.
"""

import itertools
import json
import math
import random
from collections.abc import Callable, Sequence

import datasets
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from ..tokenization_ode_transformer import SPACE


def reads_word_by_word(backend) -> bool:
    """Whether a tokenizer cuts texts at each space, as those of this package do whose pieces hold no space inside, and
    makes the same of a word wherever it is."""
    steps = (json.loads(backend.to_str())["pre_tokenizer"] or {}).get("pretokenizers") or [{}]
    if not all(step.get("type") == "Metaspace" for step in steps) or not steps[-1].get("split"):
        return False
    return backend.pre_tokenizer.pre_tokenize_str("a b") == [(f"{SPACE}a", (0, 1)), (f"{SPACE}b", (1, 3))]


class SubwordDropout:
    """Other token ids of a text, of which the tokenizer makes the same words.

    Args:
        tokenizer: A BPE or unigram tokenizer whose pieces are words or parts of them, such as those of this package.
        strength: The probability with which BPE skips a merge, or the exponent of a unigram model's probabilities
            (alpha), which is the more random the smaller it is. The papers' best are 0.1 for both.

    Raises:
        ValueError: the tokenizer is another one.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, strength: float):
        backend = tokenizer.backend_tokenizer if tokenizer.is_fast else None
        model = json.loads(backend.to_str())["model"] if backend is not None else {"type": None}
        is_unigram = model["type"] == "Unigram" and not any(SPACE in piece[1:] for piece, _ in model["vocab"])
        if not is_unigram and not (model["type"] == "BPE" and reads_word_by_word(backend)):
            raise ValueError(
                f"--subword_dropout {strength} needs a BPE or unigram tokenizer whose pieces are parts of words, such "
                f"as those of this package, not {type(tokenizer).__name__}: leave it out."
            )
        self.strength = strength
        self.pieces = backend.get_vocab(with_added_tokens=False)
        self.names = {i: piece for piece, i in self.pieces.items()}
        # Special tokens and byte pieces are not parts of words.
        kept = {*backend.get_added_tokens_decoder(), *(self.pieces.get(f"<0x{byte:02X}>") for byte in range(256))}
        self.names = {i: piece for i, piece in self.names.items() if i not in kept}
        self.cut: Callable[[str, random.Random], list[str]]
        if not is_unigram:
            self.cut, self.ranks = self.skip_merges, {tuple(pair): i for i, pair in enumerate(model["merges"])}
        else:
            self.cut, self.scores = self.draw, {piece: strength * score for piece, score in model["vocab"]}
            self.longest = max(map(len, self.scores))

    def __call__(self, ids: Sequence[int], generator: random.Random) -> list[int]:
        result: list[int] = []
        word = ""
        for i in (*ids, None):
            piece = self.names.get(i)
            if word and (piece is None or piece.startswith(SPACE)):
                result += [self.pieces[part] for part in self.cut(word, generator)]
                word = ""
            if piece is not None:
                word += piece
            elif i is not None:
                result.append(i)
        return result

    def skip_merges(self, word: str, generator: random.Random) -> list[str]:
        parts = list(word)
        while True:
            possible = [
                (rank, place)
                for place, pair in enumerate(itertools.pairwise(parts))
                if (rank := self.ranks.get(pair)) is not None and generator.random() >= self.strength
            ]
            if not possible:
                return parts
            place = min(possible)[1]
            parts[place : place + 2] = ["".join(parts[place : place + 2])]

    def draw(self, word: str, generator: random.Random) -> list[str]:
        """Filters forward and samples backward."""
        # Of the first n letters: the log of the sum over all segmentations, and weights of the last piece's begins.
        sums: list[float] = [0.0]
        last: list[dict[int, float]] = [{}]
        for end in range(1, len(word) + 1):
            begins = range(max(0, end - self.longest), end)
            scores = {begin: sums[begin] + self.scores.get(word[begin:end], -math.inf) for begin in begins}
            most = max(scores.values())
            # Every letter is a piece, so that there is a way to each of them.
            last.append({begin: math.exp(score - most) for begin, score in scores.items()})
            sums.append(most + math.log(sum(last[-1].values())))
        parts, end = [], len(word)
        while end:
            (begin,) = generator.choices(list(last[end]), list(last[end].values()))
            parts.append(word[begin:end])
            end = begin
        return parts[::-1]


class RecutPairs(Dataset):
    """Rows of a dataset whose words are cut anew in each epoch. Row i in epoch e has the index e * rows + i.

    A text that would be longer than all of its side in the dataset keeps its pieces.

    Args:
        dataset: With the columns input_ids and labels.
        dropouts: Of the sources and of the targets.
        limits: The longest source and target.
        seed: Of the training data.
    """

    def __init__(
        self, dataset: datasets.Dataset, dropouts: Sequence[SubwordDropout], limits: Sequence[int], seed: int
    ):
        self.dataset = dataset
        self.dropouts = dropouts
        self.limits = limits
        self.seed = seed

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> dict:
        epoch, place = divmod(index, len(self))
        row, generator = self.dataset[place], random.Random(f"{self.seed} {epoch} {place}")
        for name, dropout, limit in zip(("input_ids", "labels"), self.dropouts, self.limits):
            recut = dropout(row[name], generator)
            if len(recut) <= limit:
                row[name] = recut
        return row
