# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""New models and checkpoints by the arguments of a run, and vocabularies of whole words."""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import nn
from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from ..integration_ode_transformer import ButcherTableau
from ..metrics.perplexity import split_words
from ..model_folders import open_config, open_model
from ..text_files import parse_overrides
from .arguments import BaseModelArguments
from .task import Run


def config_with_overrides(args: BaseModelArguments, values_of_tokenizer: dict) -> PreTrainedConfig:
    """Configuration of a new model: `config_name` (or the defaults of this model type), then sizes and ids of the
    tokenizer, then `config_overrides`.

    Raises:
        ValueError: configurations of its type do not have one of the overrides.
    """
    values = {"model_type": args.model_type}
    if args.config_name in CONFIG_MAPPING:  # a folder of such a name is ./NAME
        values = {"model_type": args.config_name}
    elif args.config_name:
        values |= PreTrainedConfig.get_config_dict(args.config_name)[0]
    overrides = overrides_with_tableaus("config_overrides", args.config_overrides)
    known = AutoConfig.for_model(values["model_type"])
    unknown = sorted(name for name in overrides if not hasattr(known, name))
    if unknown:
        raise ValueError(
            f"--config_overrides: configurations of type {values['model_type']} have no {', '.join(unknown)}. "
            f"Known fields: {', '.join(sorted(known.to_dict()))}."
        )
    return type(known).from_dict(values | values_of_tokenizer | overrides)


def overrides_with_tableaus(option: str, text: str | dict | None) -> dict:
    """`parse_overrides`, in which the tableau of a solver may be the name of a `.json` file."""
    overrides = parse_overrides(text)
    for name, value in overrides.items():
        if name.endswith("solver") and isinstance(value, str) and value.endswith(".json"):
            if not Path(value).is_file():
                raise FileNotFoundError(f"--{option} {name}={value}: no such file.")
            overrides[name] = ButcherTableau.from_json_file(value)
    return overrides


def check_model(args: BaseModelArguments) -> PreTrainedConfig:
    """The configuration of the checkpoint or of the new model: mistakes come to light before anything is written."""
    if args.model_name_or_path:
        return open_config(args.model_name_or_path, **args.hub_options)
    return config_with_overrides(args, {})


def load_checkpoint(auto_class: Any, run: Run) -> PreTrainedModel:
    """The checkpoint's model in float32: in training, the half precision of saved weights would lose small updates
    (--bf16 and --fp16 autocast). Only a training may add weights, such as a classifier's, to those of the
    checkpoint."""
    args = run.model_args
    return open_model(auto_class, args.model_name_or_path, run.args.do_train, dtype=torch.float32, **args.hub_options)


def check_vocabulary(tokenizer: PreTrainedTokenizerBase, embedding: nn.Module, side: str = "") -> None:
    """ValueError if a tokenizer has tokens that the model's embeddings, or its output projection, do not have."""
    # ZeRO-3 leaves no weight where it was.
    size = getattr(embedding, "num_embeddings", None) or embedding.out_features
    if len(tokenizer) > size:
        raise ValueError(
            f"The {side and f'{side} '}tokenizer has {len(tokenizer)} tokens, but the model embeds only {size}: give "
            "the model's own tokenizer."
        )


def word_level_tokenizer(
    lines: Iterable[str],
    special_tokens: Mapping[str, str],
    vocab_size: int | None = None,
    min_frequency: int = 1,
    lowercase: bool = False,
) -> Tokenizer:
    """A tokenizer of whole words, separated by white space: the special tokens in their order, then the words of the
    lines, the most frequent first, of equally frequent ones the alphabet's first.

    Args:
        lines: Texts.
        special_tokens: By the names that transformers has for them; `unk_token` is among them.
        vocab_size: Most words, special ones included; None: all.
        min_frequency: How often a word has to occur.
        lowercase: Whether words are spelled in lower case.

    Raises:
        ValueError: `vocab_size` has no room for a word.
    """
    special = list(special_tokens.values())
    if vocab_size is not None and vocab_size <= len(special):
        raise ValueError(
            f"--vocab_size {vocab_size} leaves no room for words: it must exceed the number of special ones "
            f"({', '.join(special)})."
        )
    normalizer = Lowercase() if lowercase else None
    texts = map(normalizer.normalize_str, lines) if normalizer else lines
    counts = Counter(word for text in texts for word in split_words(text))
    counts = {word: count for word, count in counts.items() if count >= min_frequency and word not in special}
    words = sorted(counts, key=lambda word: (-counts[word], word))
    vocab = {word: i for i, word in enumerate([*special, *words][:vocab_size])}
    tokenizer = Tokenizer(WordLevel(vocab, unk_token=special_tokens["unk_token"]))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    if normalizer:
        tokenizer.normalizer = normalizer
    return tokenizer
