# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Tokenizers of sources and targets, and the encoding and decoding of texts."""

import logging
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import numpy as np

from ...inference.tokenizers import encode_texts
from ...text_files import parse_overrides
from ...texts_ode_transformer import TARGET_TOKENIZER
from ...tokenization_ode_transformer import OdeTransformerTokenizer
from ..cleaning import Cleaning
from ..data import TrainingExamples
from ..preparation import in_batches, write_rows
from .seq2seq_arguments import Seq2SeqDataArguments


logger = logging.getLogger(__name__)


def kept_pairs(
    examples: TrainingExamples, cleaning: Cleaning, removed: Counter[str]
) -> Iterator[tuple[int, int, str, str]]:
    """Yields the pairs that break no rule: the number of the corpus, the place in all data, source and target.
    `removed` counts the others by rule. Raises a ValueError at the end if no pair is kept."""
    read = 0
    for corpus, pairs in enumerate(examples.reads):
        for source, target in pairs():
            if rule := cleaning.broken_rule(source, target):
                removed[rule] += 1
            else:
                yield corpus, read, source, target
            read += 1
    if removed.total() == read:
        raise ValueError(f"{examples.name} holds no pair to train on ({read} lines read, {left_out(removed, read)}).")


def left_out(removed: Counter[str] | dict[str, int], read: int) -> str:
    """How many pairs the rules removed, in words."""
    by_rule = ", ".join(f"{count} by {rule}" for rule, count in removed.items())
    return f"{sum(removed.values())} of {read} pairs are left out{by_rule and f': {by_rule}'}"


def sample_pairs(pairs: Iterable[tuple[int, int, str, str]], size: int) -> list[tuple[str, str]]:
    """The texts of all pairs; if there are more than `size`, of a random sample, the same in each call."""
    generator = random.Random(0)
    sample: list[tuple[str, str]] = []
    for number, (*_, source, target) in enumerate(pairs):
        if number < size:
            sample.append((source, target))
        elif (place := generator.randrange(number + 1)) < size:
            sample[place] = source, target
    return sample


def train_tokenizers(pairs: list[tuple[str, str]], args: Any, folder: Path, tags: Sequence[str] = ()) -> None:
    """Trains a joint tokenizer on pairs, or one for each language, and saves the result in a folder. `args` has the
    options of `Seq2SeqModelArguments` that matter. Tags are special pieces of the tokenizer for sources."""
    sources, targets = zip(*pairs)
    options = parse_overrides(args.tokenizer_options)
    options |= {"model_type": args.tokenizer_model_type, "normalization": args.normalization}
    train: Any = partial(OdeTransformerTokenizer.train, **options)
    symbols = options.get("control_symbols") or []
    symbols = [*(symbols.split(",") if isinstance(symbols, str) else symbols), *tags]
    tagged = partial(train, vocab_size=args.vocab_size, **({"control_symbols": symbols} if symbols else {}))
    if args.joint_tokenizer:
        tagged(sources + targets).save_pretrained(folder)
    else:
        tagged(sources).save_pretrained(folder)
        train(targets, vocab_size=args.target_vocab_size or args.vocab_size).save_pretrained(folder / TARGET_TOKENIZER)


def features(tokenizer, target_tokenizer, *others: str) -> datasets.Features:
    """Those of encoded pairs: input_ids, labels, source_length, target_length, length (of both), index (the pair's
    place in the data) and `others`, which are texts."""
    is_small = max(len(tokenizer), len(target_tokenizer)) <= 1 << 16
    ids = datasets.List(datasets.Value("uint16" if is_small else "int32"))
    lengths = dict.fromkeys(("source_length", "target_length", "length"), datasets.Value("int32"))
    texts = dict.fromkeys(others, datasets.Value("string"))
    return datasets.Features({"input_ids": ids, "labels": ids, **lengths, "index": datasets.Value("int64"), **texts})


def encode_pairs(
    sources: Sequence[str], targets: Sequence[str], tokenizer, target_tokenizer, args: Seq2SeqDataArguments
) -> tuple[dict[str, list], dict[str, int]]:
    """Returns the columns of `features` but for the index, and how many texts of each side were cut."""
    # A single tokenizer may have two sides, like Marian's; a separate target tokenizer has one.
    side = "text_target" if target_tokenizer is tokenizer else "text"
    ids, sources_cut = encode_texts(list(sources), tokenizer, args.max_source_length)
    labels, targets_cut = encode_texts(list(targets), target_tokenizer, args.max_target_length, side)
    lengths = {"source_length": list(map(len, ids)), "target_length": list(map(len, labels))}
    lengths["length"] = list(map(sum, zip(*lengths.values())))
    return {"input_ids": ids, "labels": labels} | lengths, {"source": sources_cut, "target": targets_cut}


def warn_of_cut(split: str, cut: dict[str, int], count: int, args: Seq2SeqDataArguments) -> None:
    """Logs how many of `count` texts on each side were too long."""
    for side, limit in (("source", args.max_source_length), ("target", args.max_target_length)):
        if cut[side]:
            logger.warning(
                "%s: %d of %d %ss were cut to %d tokens (--max_%s_length)",
                *(split, cut[side], count, side, limit, side),
            )


def write_training_pairs(
    examples: TrainingExamples, cleaning: Cleaning, tokenizers: tuple, args: Seq2SeqDataArguments, folder: Path
) -> dict[str, Any]:
    """Cleans, tags, encodes and writes training pairs as a stream, in the order of their data, without their texts.
    Returns the numbers of pairs of each corpus, of pairs that each rule removed, and of the texts of each side that
    were cut."""
    removed, cut, pairs = Counter(), Counter(), [0] * len(examples.reads)
    tags = [f"{tag} " if tag else "" for tag in args.train_tags or [""] * len(pairs)]

    def batches() -> Iterator[dict[str, Sequence]]:
        for batch in in_batches(kept_pairs(examples, cleaning, removed)):
            corpora, places, sources, targets = zip(*batch)
            sources = [tags[corpus] + source for corpus, source in zip(corpora, sources)]
            columns, of_batch = encode_pairs(sources, targets, tokenizers[0], tokenizers[1], args)
            for corpus in corpora:
                pairs[corpus] += 1
            cut.update(of_batch)
            yield columns | {"index": places}

    write_rows(batches(), features(*tokenizers), folder)
    return {"pairs": pairs, "removed": removed, "cut": cut}


def encode_split(pairs, split: str, tokenizer, target_tokenizer, args: Seq2SeqDataArguments) -> datasets.Dataset:
    """(source, target) pairs to evaluate on, with the columns of `features` and the texts, source and target; sorted
    by length, longest first, to save padding."""
    sources, targets = zip(*pairs)
    known = [target or "" for target in targets]
    columns, cut = encode_pairs(sources, known, tokenizer, target_tokenizer, args)
    warn_of_cut(split, cut, len(pairs), args)
    columns |= {"index": list(range(len(pairs))), "source": list(sources), "target": list(targets)}
    order = sorted(range(len(pairs)), key=lambda i: -columns["length"][i])
    return datasets.Dataset.from_dict(
        {name: [column[i] for i in order] for name, column in columns.items()},
        features(tokenizer, target_tokenizer, "source", "target"),
    )


def decode(predictions: np.ndarray, tokenizer) -> list[str]:
    """Texts of generated ids, one line each. Ids are (sentences, length), with -100 or padding where there is no
    token."""
    predictions = np.where(predictions == -100, tokenizer.pad_token_id, predictions)
    texts = tokenizer.batch_decode(predictions, skip_special_tokens=True)
    return [" ".join(text.split("\n")).strip() for text in texts]
