# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
import itertools
import math
import random
from collections import Counter

import datasets
import pytest
import torch
from transformers import BertTokenizerFast

from modeling_ode_transformer import OdeTransformerTokenizer
from modeling_ode_transformer.training.subword_dropout import RecutPairs, SubwordDropout
from modeling_ode_transformer.training.trainer import TokenSeq2SeqTrainingArguments

from .test_trainer import loss_history, new_model, trainer_for


TEXTS = ["lower lowest newer newest wider", "the newer the lower", "low and new and wide", "we were where we were"]
STRANGE = ["lower  数 newest?", "数", "", " the lower", "low数low <s> new"]


def tokenizer(model_type: str) -> OdeTransformerTokenizer:
    size = {"bpe": 310, "unigram": 290}[model_type]
    return OdeTransformerTokenizer.train(TEXTS, size, model_type, hard_vocab_limit=False)


@pytest.mark.parametrize("model_type, strength", [("bpe", 0.0), ("unigram", 1e4)])
def test_without_chance_the_pieces_are_the_tokenizers(model_type, strength):
    """BPE that skips no merge, and a unigram model whose best segmentation has all the probability."""
    pieces = tokenizer(model_type)
    dropout = SubwordDropout(pieces, strength)
    for text in TEXTS + STRANGE:
        text_ids = pieces(text)["input_ids"]
        assert dropout(text_ids, random.Random(0)) == text_ids, text


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_other_pieces_are_of_the_same_text(model_type):
    pieces = tokenizer(model_type)
    dropout, seen = SubwordDropout(pieces, 0.3), set()
    for text, number in itertools.product(TEXTS + STRANGE, range(20)):
        ids = pieces(text)["input_ids"]
        recut = dropout(ids, random.Random(number))
        assert pieces.decode(recut) == pieces.decode(ids)
        seen.add(tuple(recut))
    assert len(seen) > 40


def test_bpe_skips_every_merge_alike():
    """A word of one merge stays whole with probability 1 - p; 4 sigma."""
    pieces = OdeTransformerTokenizer.train(["ab ab ab"], 264, hard_vocab_limit=False)
    dropout = SubwordDropout(pieces, 0.25)
    dropout.ranks = {("a", "b"): 0}
    cuts = Counter(len(dropout.skip_merges("ab", random.Random(number))) for number in range(4000))
    assert abs(cuts[1] / 4000 - 0.75) < 4 * math.sqrt(0.75 * 0.25 / 4000)


def test_a_unigram_model_draws_segmentations_by_their_probabilities():
    """All segmentations of a word, enumerated: probabilities to the power of alpha, normalized; 5 sigma."""
    alpha, word = 0.5, "lower"
    dropout = SubwordDropout(tokenizer("unigram"), alpha)
    dropout.scores = {"l": -2.0, "o": -2.5, "w": -3.0, "e": -1.0, "r": -1.5, "low": -2.0, "er": -1.2, "we": -4.0}
    dropout.scores = {piece: alpha * score for piece, score in dropout.scores.items()}
    weights = {}
    for bounds in itertools.chain.from_iterable(itertools.combinations(range(1, 5), n) for n in range(5)):
        parts = [word[begin:end] for begin, end in itertools.pairwise((0, *bounds, 5))]
        if all(part in dropout.scores for part in parts):
            weights[tuple(parts)] = math.exp(sum(dropout.scores[part] for part in parts))
    drawn = Counter(tuple(dropout.draw(word, random.Random(number))) for number in range(5000))
    assert len(weights) == 5 and set(drawn) <= set(weights)
    for parts, weight in weights.items():
        share = weight / sum(weights.values())
        assert abs(drawn[parts] / 5000 - share) < 5 * math.sqrt(share * (1 - share) / 5000), parts


def test_another_tokenizer_is_refused(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    with pytest.raises(ValueError, match=r"--subword_dropout 0.1 needs a BPE or unigram tokenizer .*, not BertTok"):
        SubwordDropout(BertTokenizerFast(str(tmp_path / "vocab.txt")), 0.1)


def pairs(pieces) -> datasets.Dataset:
    texts = [" ".join(words) for words in itertools.permutations("lower newest wider the".split(), 3)]
    rows = [{"input_ids": pieces(text)["input_ids"], "labels": pieces(text[::-1])["input_ids"]} for text in texts]
    return datasets.Dataset.from_list([row | {"index": i} for i, row in enumerate(rows)])


def test_pieces_depend_on_the_seed_the_epoch_and_the_pair():
    """Not on the batch that they are in; and no text exceeds the limit of its side."""
    pieces = tokenizer("bpe")
    data = pairs(pieces)
    dropout, longest = SubwordDropout(pieces, 0.5), max(map(len, data["input_ids"]))

    def rows(indices, seed=1, limit=100):
        found = [RecutPairs(data, (dropout, dropout), (limit, 100), seed)[index] for index in indices]
        assert [row["index"] for row in found] == [index % len(data) for index in indices]
        return [row["input_ids"] for row in found]

    one, other = rows(range(24)), rows(range(24, 48))
    assert one == rows(range(24)) and one == [rows([i])[0] for i in range(24)]
    assert one != other and one != rows(range(24), seed=2)
    assert max(map(len, one)) > longest >= max(map(len, rows(range(24), limit=longest)))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_resumed_training_draws_the_same_pieces(workers, tmp_path):
    pieces = tokenizer("bpe")

    def trainer(name):
        return trainer_for(
            tmp_path / name,
            new_model(vocab_size=len(pieces)),
            pairs(pieces),
            pieces,
            **{"max_steps": 8, "save_strategy": "steps", "save_steps": 1, "logging_steps": 1},
            **{"max_tokens_per_batch": 300, "subword_dropout": 0.3, "dataloader_num_workers": workers},
            dataloader_persistent_workers=bool(workers),
        )

    whole = trainer("whole")
    whole.train()
    resumed = trainer("resumed")
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-5"))
    assert loss_history(resumed) == loss_history(whole)
    for name, tensor in resumed.model.state_dict().items():
        assert torch.equal(tensor, whole.model.state_dict()[name]), name


def test_batches_that_are_not_of_a_budget_are_not_cut_anew(tmp_path):
    with pytest.raises(ValueError, match=r"--subword_dropout 0\.1 needs --max_tokens_per_batch"):
        TokenSeq2SeqTrainingArguments(str(tmp_path), subword_dropout=0.1)
