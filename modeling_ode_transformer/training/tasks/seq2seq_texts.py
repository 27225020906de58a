# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Tokenizers of sources and targets, and what they make of texts."""

import logging
import shutil
from functools import partial
from pathlib import Path

import datasets
import numpy as np
from transformers import AutoTokenizer

from ...pipeline_ode_transformer import TARGET_TOKENIZER, load_target_tokenizer
from ...tokenization_ode_transformer import OdeTransformerTokenizer
from ..arguments import parse_overrides
from .seq2seq_arguments import Seq2SeqDataArguments, Seq2SeqModelArguments


logger = logging.getLogger(__name__)


def train_tokenizers(pairs: list[tuple[str, str]], args: Seq2SeqModelArguments, folder: Path) -> None:
    """Trains a joint tokenizer, or one for each language, on pairs, and saves it in a folder."""
    sources, targets = zip(*pairs)
    options = parse_overrides(args.tokenizer_options)
    train = partial(OdeTransformerTokenizer.train, model_type=args.tokenizer_model_type, **options)
    if args.joint_tokenizer:
        # Of a run with two tokenizers that was stopped before its first checkpoint.
        shutil.rmtree(folder / TARGET_TOKENIZER, ignore_errors=True)
        train(sources + targets, args.vocab_size).save_pretrained(folder)
    else:
        train(sources, args.vocab_size).save_pretrained(folder)
        train(targets, args.target_vocab_size or args.vocab_size).save_pretrained(folder / TARGET_TOKENIZER)


def load_tokenizers(
    name: str,
    target_name: str | None = None,
    src_lang: str | None = None,
    tgt_lang: str | None = None,
    **hub_options,
):
    """The tokenizer in a folder or on the Hub, and that of its target side: another one if there is one, or itself.

    Args:
        name: Folder or name of the tokenizer.
        target_name: Of that of the target side; None: folder `TARGET_TOKENIZER` of the first, if any.
        src_lang, tgt_lang: The languages of a multilingual tokenizer; None: as saved with it.
        hub_options: Those of `AutoTokenizer.from_pretrained`.

    Raises:
        ValueError: the tokenizer does not know a language, or marks none; a multilingual tokenizer is one of two.
    """
    tokenizer = AutoTokenizer.from_pretrained(name, **hub_options)
    if target_name is not None:
        target_tokenizer = AutoTokenizer.from_pretrained(target_name, **hub_options)
    else:
        try:
            target_tokenizer = load_target_tokenizer(name, **hub_options)
        except OSError:
            target_tokenizer = None
    if target_tokenizer is None:
        target_tokenizer = tokenizer
    elif marks_languages(tokenizer) or marks_languages(target_tokenizer):
        raise ValueError(f"{name}: a multilingual tokenizer is that of both sides, and the target has another one.")
    for argument, language in (("src_lang", src_lang), ("tgt_lang", tgt_lang)):
        if language is not None:
            set_language(tokenizer, argument, language)
    return tokenizer, target_tokenizer


def marks_languages(tokenizer) -> bool:
    """Whether a tokenizer adds a mark of their language to texts, as M2M100's, NLLB's and mBART's."""
    return hasattr(tokenizer, "set_tgt_lang_special_tokens")


def set_language(tokenizer, argument: str, language: str) -> None:
    """Sets the `src_lang` or the `tgt_lang` of a multilingual tokenizer, which is saved with it."""
    kind = f"{type(tokenizer).__name__} ({tokenizer.name_or_path})"
    if not marks_languages(tokenizer):
        raise ValueError(f"--{argument} {language}: {kind} does not mark languages. Leave it out.")
    known = getattr(tokenizer, "lang_code_to_id", None) or tokenizer.extra_special_tokens
    if language not in map(str, known):
        raise ValueError(f"--{argument} {language}: {kind} knows {', '.join(map(str, known))}.")
    setattr(tokenizer, argument, language)


def begin_with_language(model, tokenizer) -> None:
    """Has a model's outputs begin with the mark of the targets' language: after the start token or, where the mark
    comes at the end of targets (mBART), as start token."""
    marks = tokenizer(text_target="")["input_ids"]
    if len(marks) != 2:
        raise ValueError(
            f"{type(tokenizer).__name__} adds {tokenizer.convert_ids_to_tokens(marks)} to a target: expected a mark "
            "of its language and an end mark."
        )
    if marks[1] == tokenizer.eos_token_id:
        model.generation_config.forced_bos_token_id = marks[0]
    else:
        model.config.decoder_start_token_id = model.generation_config.decoder_start_token_id = marks[1]


def encode_texts(
    texts: list[str], tokenizer, max_length: int | None, side: str = "text"
) -> tuple[list[list[int]], int]:
    """Token ids of texts, cut to `max_length` tokens with their end mark (None: whole), and how many were cut.

    `side` is what the tokenizer calls them: `text`, or, for one of two sides, `text_target`.
    """
    encoded = tokenizer(**{side: texts}, verbose=False)["input_ids"]
    too_long = [i for i, ids in enumerate(encoded) if max_length is not None and len(ids) > max_length]
    for i in too_long:
        encoded[i] = tokenizer(**{side: texts[i]}, truncation=True, max_length=max_length)["input_ids"]
    return encoded, len(too_long)


def encode_split(pairs, split: str, tokenizer, target_tokenizer, args: Seq2SeqDataArguments) -> datasets.Dataset:
    """Token ids of (source, target) pairs.

    Returns a dataset with the columns input_ids, labels, source_length, target_length, length (of both), source,
    target (the texts) and index (the pair's place in `pairs`). Pairs for evaluation are sorted by length, longest
    first, to save padding.
    """
    truncated = {"source": 0, "target": 0}
    # A tokenizer alone may have two sides, as Marian's; one of the targets alone is used as it is.
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
    text = datasets.Value("large_string")  # others end at 2 GiB, less than WMT'14 en-fr
    dataset = datasets.Dataset.from_dict(
        {"source": sources, "target": targets, "index": range(len(pairs))},
        features=datasets.Features({"source": text, "target": text, "index": datasets.Value("int64")}),
    )
    dataset = dataset.map(encode_batch, batched=True, desc=f"Encoding the {split} pairs")
    for side, limit in (("source", args.max_source_length), ("target", args.max_target_length)):
        if truncated[side]:
            logger.warning(
                "%s: %d of %d %ss cut to %d tokens (--max_%s_length)",
                *(split, truncated[side], len(pairs), side, limit, side),
            )
    if split == "train":
        return dataset
    lengths = dataset["length"][:]
    return dataset.select(sorted(range(len(dataset)), key=lambda i: -lengths[i]))


def decode(predictions: np.ndarray, tokenizer) -> list[str]:
    """Texts of generated ids, (sentences, length) with -100 or padding where there is none; one line each."""
    predictions = np.where(predictions == -100, tokenizer.pad_token_id, predictions)
    texts = tokenizer.batch_decode(predictions, skip_special_tokens=True)
    return [" ".join(text.split("\n")).strip() for text in texts]
