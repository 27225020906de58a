# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Tokenizers of sources and targets, and the encoding and decoding of texts."""

import logging
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import numpy as np

from ...inference.tokenizers import encode_texts
from ...text_files import parse_overrides
from ...texts_ode_transformer import TARGET_TOKENIZER
from ...tokenization_ode_transformer import OdeTransformerTokenizer
from .seq2seq_arguments import Seq2SeqDataArguments, Seq2SeqModelArguments


logger = logging.getLogger(__name__)


def train_tokenizers(pairs: list[tuple[str, str]], args: Seq2SeqModelArguments, folder: Path) -> None:
    """Trains a joint tokenizer on pairs, or one for each language, and saves the result in a folder."""
    sources, targets = zip(*pairs)
    options = parse_overrides(args.tokenizer_options)
    train: Any = partial(OdeTransformerTokenizer.train, model_type=args.tokenizer_model_type, **options)
    if args.joint_tokenizer:
        train(sources + targets, vocab_size=args.vocab_size).save_pretrained(folder)
    else:
        train(sources, vocab_size=args.vocab_size).save_pretrained(folder)
        train(targets, vocab_size=args.target_vocab_size or args.vocab_size).save_pretrained(folder / TARGET_TOKENIZER)


def warn_of_cut(split: str, cut: dict[str, int], count: int, args: Seq2SeqDataArguments) -> None:
    """Logs how many of `count` texts on each side were too long."""
    for side, limit in (("source", args.max_source_length), ("target", args.max_target_length)):
        if cut[side]:
            logger.warning(
                "%s: %d of %d %ss were cut to %d tokens (--max_%s_length)",
                *(split, cut[side], count, side, limit, side),
            )


def encode_split(pairs, split: str, tokenizer, target_tokenizer, args: Seq2SeqDataArguments) -> datasets.Dataset:
    """Token ids of (source, target) pairs to evaluate on.

    Returns a dataset with the columns input_ids, labels, source_length, target_length, length (of both), source,
    target (the texts) and index (the pair's place in `pairs`). It is sorted by length, longest first, to save padding.
    """
    truncated = {"source": 0, "target": 0}
    # A single tokenizer may have two sides, like Marian's; a separate target tokenizer has one.
    side = "text_target" if target_tokenizer is tokenizer else "text"

    def encode_batch(batch):
        sources, sources_cut = encode_texts(batch["source"], tokenizer, args.max_source_length)
        targets = [target or "" for target in batch["target"]]
        targets, targets_cut = encode_texts(targets, target_tokenizer, args.max_target_length, side)
        truncated["source"] += sources_cut
        truncated["target"] += targets_cut
        lengths = {"source_length": list(map(len, sources)), "target_length": list(map(len, targets))}
        lengths["length"] = list(map(sum, zip(*lengths.values())))
        return {"input_ids": sources, "labels": targets} | lengths

    sources, targets = zip(*pairs)
    text = datasets.Value("large_string")  # "string" is limited to 2 GiB, less than WMT'14 en-fr
    dataset = datasets.Dataset.from_dict(
        {"source": sources, "target": targets, "index": range(len(pairs))},
        features=datasets.Features({"source": text, "target": text, "index": datasets.Value("int64")}),
    )
    dataset = dataset.map(encode_batch, batched=True, desc=f"Encoding the {split} pairs")
    warn_of_cut(split, truncated, len(pairs), args)
    lengths = dataset["length"][:]
    return dataset.select(sorted(range(len(dataset)), key=lambda i: -lengths[i]))


def decode(predictions: np.ndarray, tokenizer) -> list[str]:
    """Texts of generated ids, one line each. Ids are (sentences, length), with -100 or padding where there is no
    token."""
    predictions = np.where(predictions == -100, tokenizer.pad_token_id, predictions)
    texts = tokenizer.batch_decode(predictions, skip_special_tokens=True)
    return [" ".join(text.split("\n")).strip() for text in texts]
