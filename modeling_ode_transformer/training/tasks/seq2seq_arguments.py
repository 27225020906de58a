# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The arguments of sequence-to-sequence tasks, and their checks before anything is written."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from accelerate.utils import parse_flag_from_env
from transformers import PreTrainedConfig

from ...generation_ode_transformer import position_limit
from ...options import option
from ...texts_ode_transformer import TARGET_TOKENIZER
from ...tokenization_ode_transformer import text_normalizer
from ..arguments import BaseModelArguments, PreparedDataArguments, check_run
from ..cleaning import Cleaning
from ..models import check_model
from ..trainer import TokenSeq2SeqTrainingArguments


# The metrics of an evaluation without generation.
METRICS_OF_LABELS = ("loss", "nll_loss", "perplexity")


@dataclass
class Seq2SeqModelArguments(BaseModelArguments):
    """The model and its tokenizers: a checkpoint, or a configuration to start from."""

    target_tokenizer_name: str | None = option(
        f"Tokenizer of the target; default: folder {TARGET_TOKENIZER} of the tokenizer, if there is one."
    )
    src_lang: str | None = option(
        "Language of the sources, as named by a multilingual tokenizer: en (M2M100), eng_Latn (NLLB), "
        "en_XX (mBART). The tokenizer marks texts with it; default: as saved with the tokenizer."
    )
    tgt_lang: str | None = option(
        "Language of the targets, named like --src_lang. Outputs begin with its mark; default: as saved "
        "with the tokenizer."
    )
    joint_tokenizer: bool = option("Train one tokenizer on both languages; if false, train one for each.", True)
    vocab_size: int = option("Number of pieces of a new tokenizer.", 8000, least=1)
    target_vocab_size: int | None = option(
        "Number of pieces of a new target tokenizer, with --joint_tokenizer false; default: --vocab_size."
    )
    tokenizer_model_type: str = option(
        "Type of SentencePiece model for a new tokenizer.", "bpe", choices=["bpe", "unigram"]
    )
    normalization: str | None = option(
        "Normalization of all texts, saved with a new tokenizer, so that generate, pipelines and the server apply it: "
        "nfc, nfkc, or moses_LANGUAGE (punctuation and spaces, such as moses_en); several with commas; default: none."
    )
    tokenizer_options: str | None = option(
        "SentencePiece options for a new tokenizer, such as split_digits=true,character_coverage=0.99. "
        "On the command line they are merged into a recipe's or preset's; default: none."
    )

    def __post_init__(self):
        super().__post_init__()
        if self.normalization and (self.tokenizer_name or self.model_name_or_path):
            raise ValueError(
                f"--normalization {self.normalization} is of a new tokenizer, but one is given: leave it out."
            )


@dataclass
class Seq2SeqDataArguments(PreparedDataArguments):
    """How long texts may be, which checkpoints become the final model, and how outputs are searched."""

    max_source_length: int = option(
        "Maximum length of a source in tokens, end mark included; longer ones are cut.", 256, least=1
    )
    max_target_length: int = option(
        "Maximum length of a target in tokens, end mark included; longer ones are cut.", 256, least=1
    )
    train_weights: list[int] | None = option(
        "How many times an epoch reads each training file, in the same order; default: once."
    )
    train_tags: list[str] | None = option(
        "A tag before each source of a corpus, in the same order, such as '' '<bt>' for back-translations; it is a "
        "piece of the vocabulary; default: none."
    )
    pad_to_multiple_of: int | None = option(
        "Pad batches to a multiple of this many tokens; default: 8 in half precision on GPUs, else 1.", least=1
    )
    tokenizer_samples: int = option(
        "Maximum number of training pairs, drawn at random, to train new tokenizers on.", 5_000_000, least=1
    )
    min_words: int | None = option(
        "Minimum number of words on each side of a training pair; default: any number above 0.", least=0
    )
    max_words: int | None = option(
        "Maximum number of words on each side of a training pair; default: no limit.", least=1
    )
    max_length_ratio: float | None = option(
        "Maximum ratio of the longer to the shorter side of a training pair, in words; default: no limit.", least=1
    )
    drop_copies: bool = option("Leave out training pairs whose target equals their source.", False)
    count_characters: list[str] | None = option(
        "Sides of which these rules count characters instead of words, for scripts without spaces; default: none.",
        choices=["source", "target"],
    )
    average_last_checkpoints: int = option(
        "Number of last checkpoints whose mean becomes the final model; 0 means no averaging. With "
        "--load_best_model_at_end, the mean is kept only if it is better than the best checkpoint.",
        0,
        affects="result",
        least=0,
    )
    metrics: list[str] | None = option(
        "More metrics of the outputs: files or names that evaluate.load opens, and whose code runs; "
        "--metric_for_best_model may name their numbers, METRIC_NUMBER.",
        affects="result",
        nargs="+",
    )
    num_beams: int | None = option(
        "Number of beams for the final evaluation and prediction, saved in the generation configuration. "
        "For evaluations during training, see --generation_num_beams; default: as saved with the model, or 4.",
        affects="result",
        least=1,
    )
    length_penalty: float | None = option(
        "Exponent p of the score of a finished beam, log-probability / length ** p; default: as saved with the model.",
        affects="result",
    )
    min_target_length: int | None = option(
        "Minimum number of tokens in an output before its end mark; default: as saved with the model.",
        affects="result",
        least=0,
    )
    no_repeat_ngram_size: int | None = option(
        "Do not let an output repeat a sequence of this many tokens; 0 turns this off; default: as saved "
        "with the model.",
        affects="result",
    )

    def __post_init__(self):
        super().__post_init__()
        if any(weight < 1 for weight in self.train_weights or []):
            raise ValueError(
                f"--train_weights {' '.join(map(str, self.train_weights))}: each is how many times an epoch reads a "
                "corpus, at least 1; to leave a corpus out, do not name it."
            )

    @property
    def tags(self) -> list[str]:
        """The tags of sources, each once."""
        return sorted({*(self.train_tags or [])} - {""})

    @property
    def cleaning(self) -> Cleaning:
        """The rules for training pairs."""
        counted = self.count_characters or ()
        return Cleaning(self.min_words, self.max_words, self.max_length_ratio, self.drop_copies, counted)


def check_arguments(
    model_args: Seq2SeqModelArguments, data_args: Seq2SeqDataArguments, args: TokenSeq2SeqTrainingArguments
) -> None:
    """Checks the arguments of a run, including the model arguments that need an opened configuration.

    Raises:
        ValueError: an argument has an invalid value or contradicts another one.
        OSError: the checkpoint or configuration does not exist.
    """
    check_run(model_args, args)
    if model_args.normalization:
        text_normalizer(model_args.normalization)
    if args.do_predict and not args.predict_with_generate:
        raise ValueError("--do_predict writes outputs: give --predict_with_generate too.")
    best = (args.metric_for_best_model or "loss").removeprefix("eval_")
    if args.do_train and not best.endswith(METRICS_OF_LABELS) and not args.predict_with_generate:
        raise ValueError(f"--metric_for_best_model {best} is measured on outputs: give --predict_with_generate too.")
    if (model_args.src_lang is None) != (model_args.tgt_lang is None):
        raise ValueError("--src_lang and --tgt_lang go together; only one is given.")
    check_lengths(check_model(model_args), data_args, args.generation_max_length)
    check_average(data_args, args)
    for tag in data_args.tags:
        if not re.fullmatch(r"<[^<>\s]+>", tag) or tag in ("<s>", "</s>", "<pad>", "<unk>"):
            raise ValueError(
                f"--train_tags {tag}: a tag is one piece wherever it stands in a text. Give one like '<bt>', which no "
                "text has."
            )
    load_metrics(tuple(data_args.metrics or ()))  # what is missing raises now, not after hours


@cache
def load_metrics(names: tuple[str, ...]) -> dict[str, Any]:
    """The metrics of `evaluate`, opened, by the last part of their names.

    Raises:
        OSError, ImportError: a metric is unknown, or lacks a package.
        ValueError: two have the same name.
    """
    if not names:
        return {}
    import evaluate  # takes a while

    if len({Path(name).stem for name in names}) < len(names):
        raise ValueError(f"--metrics {' '.join(names)}: two have the same name; rename a file.")
    return {Path(name).stem: evaluate.load(name) for name in names}


def check_average(data_args: Seq2SeqDataArguments, args: TokenSeq2SeqTrainingArguments) -> None:
    """Raises a ValueError if the run will not keep the checkpoints to average."""
    asked = f"--average_last_checkpoints {data_args.average_last_checkpoints}"
    if data_args.average_last_checkpoints and args.do_train:
        if args.weight_ema:
            raise ValueError(f"{asked} and --weight_ema {args.weight_ema} are two averages: give one.")
        if args.deepspeed or parse_flag_from_env("ACCELERATE_USE_DEEPSPEED"):
            raise ValueError(
                f"{asked} cannot average the shards of DeepSpeed's checkpoints: give --average_last_checkpoints 0."
            )
        if args.save_strategy == "no":
            raise ValueError(f"{asked} needs checkpoints: give --save_strategy steps or epoch.")
        # The best checkpoint is kept beside the last ones.
        needed = data_args.average_last_checkpoints + (args.metric_for_best_model is not None)
        if args.save_total_limit is not None and args.save_total_limit < needed:
            raise ValueError(f"{asked} needs --save_total_limit {needed} or more, not {args.save_total_limit}.")


def check_lengths(
    config: PreTrainedConfig, data_args: Seq2SeqDataArguments, generation_max_length: int | None
) -> None:
    """Raises a ValueError if a length exceeds the positions of the model."""
    limit = position_limit(config)
    lengths = {f"max_{side}_length": getattr(data_args, f"max_{side}_length") for side in ("source", "target")}
    # The last token of an output needs no position.
    lengths["generation_max_length"] = (generation_max_length or 1) - 1
    for name, length in lengths.items():
        if limit is not None and length > limit:
            raise ValueError(
                f"--{name} {length + (name == 'generation_max_length')} exceeds the model's max_position_embeddings, "
                f"{limit}."
            )
