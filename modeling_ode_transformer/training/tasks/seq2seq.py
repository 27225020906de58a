# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Shared steps of the sequence-to-sequence tasks: from text pairs to a trainer, from a model to scored outputs."""

import logging
import re
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from itertools import accumulate, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
from transformers import (
    AutoModelForSeq2SeqLM,
    DataCollatorForSeq2Seq,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
)

from ...generation_ode_transformer import MAX_LEN_OPTIONS
from ...inference.tokenizers import begin_with_language, load_tokenizers, marks_languages
from ...pipeline_ode_transformer import add_pipeline
from ...texts_ode_transformer import TRAINED_LENGTH, check_target_tokenizer
from ..models import check_vocabulary, config_with_overrides, load_checkpoint
from ..preparation import open_rows, prepare_data, tokenizer_hash, write_rows
from ..records import generation_text
from ..samplers import longest_source
from ..task import Run, Task
from ..trainer import TokenSeq2SeqTrainer, TokenSeq2SeqTrainingArguments
from ..watch import warn_of_empty
from .seq2seq_arguments import (
    METRICS_OF_LABELS,
    Seq2SeqDataArguments,
    Seq2SeqModelArguments,
    check_arguments,
    load_metrics,
)
from .seq2seq_texts import (
    decode,
    encode_split,
    kept_pairs,
    left_out,
    sample_pairs,
    train_tokenizers,
    warn_of_cut,
    write_training_pairs,
)


logger = logging.getLogger(__name__)


def seq2seq_task(
    name: str,
    data_arguments: type[Seq2SeqDataArguments],
    read_split: Callable[[Any, str], Any],
    score: Callable[[list[str], datasets.Dataset, Any, str], dict[str, float | str]],
    best_metric: str,
) -> Task:
    """A sequence-to-sequence task; see `Task`.

    Args:
        name: The Hub's name of the task.
        data_arguments: Class of its data arguments.
        read_split: Returns (source, target) pairs of texts. A scored split returns all its pairs in file order, or
            those of several sets by name. If "test" has no references, its targets are None and only outputs are
            written.
        score: Scores output texts for a dataset of `encode_split` (columns source, target and index, the place in the
            file).
        best_metric: The default metric of the best checkpoint.
    """
    return Task(
        name,
        Seq2SeqModelArguments,
        data_arguments,
        TokenSeq2SeqTrainingArguments,
        check_arguments=check_arguments,
        read_split=read_split,
        make_tokenizers=make_tokenizers,
        load_tokenizers=load_tokenizers_of_run,
        load_model=load_model,
        encode=encode,
        make_trainer=make_trainer,
        evaluate=evaluate,
        score=score,
        preset_values={"metric_for_best_model": best_metric},
    )


def make_tokenizers(run: Run):
    """The tokenizers of the training pairs. One process trains them, unless they exist already; all processes load
    them."""
    args, data = run.model_args, run.data_args
    names = ("joint_tokenizer", "vocab_size", "target_vocab_size", "tokenizer_model_type", "tokenizer_options")
    names += ("normalization",)
    key = {name: getattr(args, name) for name in names} | {"tokenizer_samples": data.tokenizer_samples}
    known = SimpleNamespace(**key)  # all that training sees: an option outside of the key cannot change a tokenizer

    def write(folder: Path) -> dict:
        kept = kept_pairs(run.examples["train"], data.cleaning, Counter())
        pairs = sample_pairs(kept, known.tokenizer_samples)
        train_tokenizers(pairs, known, folder, data.tags)
        return {"pairs": len(pairs)}

    folder, _ = prepare_data(run, "train", "tokenizer", key, write)
    return load_tokenizers_of_run(run, str(folder))


def load_tokenizers_of_run(run: Run, name: str):
    """The source and target tokenizers.

    Raises:
        ValueError: a multilingual one has no language for the targets; their marks of an end or of padding differ; or
            a tag is not a piece of the sources'.
    """
    args = run.model_args
    languages = {"src_lang": args.src_lang, "tgt_lang": args.tgt_lang}
    tokenizers = load_tokenizers(name, args.target_tokenizer_name, **languages, **args.hub_options)
    tokenizer = tokenizers[0]
    if marks_languages(tokenizer) and tokenizer.tgt_lang is None:
        raise ValueError(
            f"{type(tokenizer).__name__} ({tokenizer.name_or_path}) marks every text with its language: give "
            "--src_lang and --tgt_lang."
        )
    for tag in run.data_args.tags:
        if tokenizer.tokenize(f"{tag} a")[:1] != [tag]:
            raise ValueError(
                f"--train_tags {tag}: not a piece of the vocabulary of {tokenizer.name_or_path}: add it in Python "
                "(tokenizer.add_special_tokens, model.resize_token_embeddings), or train a new tokenizer."
            )
    for mark in ("pad_token_id", "eos_token_id"):
        ids = [getattr(each, mark) for each in (tokenizer, tokenizers[-1])]
        if run.args.do_train and None not in ids and ids[0] != ids[1]:
            # A model has one id of each, and Trainer sets the sources'.
            raise ValueError(
                f"The tokenizers of sources and targets have {mark} {ids[0]} and {ids[1]}: give two with the same "
                "ids, such as those that a training without --tokenizer_name makes."
            )
    return tokenizers


def new_config(args: Seq2SeqModelArguments, tokenizer, target_tokenizer) -> PreTrainedConfig:
    """The configuration of a new model: `config_name`, then the tokenizers' sizes and ids, then `config_overrides`."""
    values = {
        "vocab_size": len(tokenizer),
        "bos_token_id": target_tokenizer.bos_token_id,
        "eos_token_id": target_tokenizer.eos_token_id,
        "pad_token_id": target_tokenizer.pad_token_id,
        "decoder_start_token_id": target_tokenizer.eos_token_id,
    }
    if target_tokenizer is not tokenizer:
        values |= {"decoder_vocab_size": len(target_tokenizer), "share_encoder_decoder_embeddings": False}
    return config_with_overrides(args, values)


def load_model(run: Run) -> PreTrainedModel:
    """The checkpoint's model in float32, or a new one. Its configuration names the task's pipeline, and its generation
    configuration holds the search that the arguments ask for; raises a ValueError if the vocabularies do not fit."""
    tokenizer, target_tokenizer = run.tokenizer, run.target_tokenizer
    if run.model_args.model_name_or_path:
        model = load_checkpoint(AutoModelForSeq2SeqLM, run)
        check_target_tokenizer(model, tokenizer, target_tokenizer)
    else:
        model = AutoModelForSeq2SeqLM.from_config(new_config(run.model_args, tokenizer, target_tokenizer))
    check_vocabulary(tokenizer, model.get_input_embeddings(), "source")
    check_vocabulary(target_tokenizer, model.get_output_embeddings(), "target")
    add_pipeline(model.config, run.task.name)
    if marks_languages(tokenizer):
        begin_with_language(model, tokenizer)
    logger.info("%s parameters", f"{model.num_parameters():,}")
    set_generation_options(model.generation_config, run.data_args, run.args)
    return model


def set_generation_options(
    config: GenerationConfig, data_args: Seq2SeqDataArguments, args: TokenSeq2SeqTrainingArguments
) -> None:
    """Sets the arguments in a model's generation configuration, and defaults where it has no values."""
    shortest = data_args.min_target_length
    asked = {
        "num_beams": data_args.num_beams if data_args.num_beams or config.num_beams else 4,
        "length_penalty": data_args.length_penalty,
        # generate also counts the start token before the target's tokens.
        "min_length": shortest and shortest + 1,
        "no_repeat_ngram_size": data_args.no_repeat_ngram_size,
    }
    values: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    if values.get("num_beams", config.num_beams) == 1:
        values |= {"length_penalty": None, "early_stopping": None}
    elif "num_beams" in values:
        values["early_stopping"] = True
    config.update(**values)
    saved = [getattr(config, name, None) for name in ("max_length", "max_new_tokens", *MAX_LEN_OPTIONS)]
    if args.generation_max_length or args.do_train or saved == [None] * len(saved):
        config.update(max_length=args.generation_max_length or data_args.max_target_length + 1, max_new_tokens=None)


def search_of_evaluations(config: GenerationConfig, args: TokenSeq2SeqTrainingArguments) -> GenerationConfig:
    """The search of the evaluations during training: the final one with `--generation_num_beams`."""
    config = deepcopy(config)
    if args.generation_num_beams is not None:
        config.num_beams = args.generation_num_beams
        if args.generation_num_beams == 1:
            # In place of None, generate would take the model's, and warn of them.
            config.update(early_stopping=False, length_penalty=1.0)
    return config


def encode(run: Run, split: str) -> datasets.Dataset:
    """The encoded pairs of a split; see `features` for their columns. One process prepares them, unless they exist
    already; all processes memory-map them.

    Training pairs are in the order of their data, without their texts, those of each corpus as often as its weight
    says; see `encode_split` for others.
    """
    data, pairs, tokenizers = run.data_args, run.examples[split], (run.tokenizer, run.target_tokenizer)
    limits = {"max_source_length": data.max_source_length, "max_target_length": data.max_target_length}
    key = {"tokenizers": [tokenizer_hash(each) for each in tokenizers]} | limits

    def write(folder: Path) -> dict:
        if split == "train":
            return write_training_pairs(pairs, data.cleaning, tokenizers, data, folder)
        dataset = encode_split(pairs, split, *tokenizers, data)
        write_rows([dataset.to_dict()], dataset.features, folder)
        return {"pairs": len(dataset)}

    folder, noted = prepare_data(run, split, split, key, write)
    if split == "train":
        for name, count in zip(pairs.names, noted["pairs"]):
            logger.info("%s: %d pairs, prepared in %s", name, count, folder)
            if not count:
                raise ValueError(f"{name} has no pairs to train on: leave it out, or loosen the rules of cleaning.")
        if removed := noted["removed"]:
            logger.warning("%s: %s", pairs.name, left_out(removed, sum(noted["pairs"]) + sum(removed.values())))
        warn_of_cut(split, noted["cut"], sum(noted["pairs"]), data)
    rows = open_rows(folder)
    if split == "train" and data.train_weights:
        ends = pairwise(accumulate(noted["pairs"], initial=0))
        corpora = [rows.select(range(*each)) for each in ends]
        rows = datasets.concatenate_datasets(
            [corpus for corpus, weight in zip(corpora, data.train_weights) for _ in range(weight)]
        )
    return rows


def score(run: Run, texts: list[str], dataset: datasets.Dataset, split: str) -> dict[str, float | str]:
    """The task's scores of outputs and the numbers of `--metrics`, by the metric's name and their own; none without
    references."""
    references = dataset["target"][:]
    if None in references:
        logger.info("%s: there are no references: outputs are written, but not scored", split)
        return {}
    scores = run.task.score(texts, dataset, run.data_args, split)
    for metric, opened in load_metrics(tuple(run.data_args.metrics or ())).items():
        found = opened.compute(predictions=texts, references=references)
        scores |= {name if name == metric else f"{metric}_{name}": value for name, value in found.items()}
    return scores


def make_trainer(run: Run) -> TokenSeq2SeqTrainer:
    """The trainer; on request it generates and scores outputs in evaluations. Of several validation sets, the best
    checkpoint is that of the first one, unless `metric_for_best_model` names another."""
    args, splits = run.args, run.splits
    sets = {name.removeprefix("validation_"): each for name, each in splits.items() if name.startswith("validation_")}
    best = args.metric_for_best_model
    if sets and best and not best.removeprefix("eval_").startswith(tuple(f"{name}_" for name in sets)):
        args.metric_for_best_model = f"{next(iter(sets))}_{best.removeprefix('eval_')}"

    def compute_metrics(evaluation):
        # The prefix of its metrics begins with "eval" or "average".
        split = "validation" + "".join(run.trainer.evaluated_prefix.partition("_")[1:])
        dataset = splits[split]
        texts = decode(evaluation.predictions[: len(dataset)], run.target_tokenizer)
        warn_of_empty(texts, split)
        scores = score(run, texts, dataset, split)
        # Trainer logs only numbers; the final evaluation reports the rest.
        return {name: value for name, value in scores.items() if not isinstance(value, str)}

    if "train" in splits:
        setattr(run.model.config, TRAINED_LENGTH, longest_source(splits["train"]))
    tensor_cores = args.device.type == "cuda" and (args.fp16 or args.bf16)
    return TokenSeq2SeqTrainer(
        model=run.model,
        args=args,
        train_dataset=splits.get("train"),
        eval_dataset=sets or splits.get("validation"),
        processing_class=run.tokenizer,
        target_tokenizer=run.target_tokenizer,
        eval_generation_config=search_of_evaluations(run.model.generation_config, args),
        data_collator=DataCollatorForSeq2Seq(
            run.tokenizer, pad_to_multiple_of=run.data_args.pad_to_multiple_of or (8 if tensor_cores else None)
        ),
        compute_metrics=compute_metrics if args.predict_with_generate else None,
        callbacks=run.data_args.callbacks(),
    )


def evaluate(run: Run, split: str, prefix: str) -> dict:
    """The losses and output scores of a split. Outputs are written in the order of its file."""
    trainer, dataset = run.trainer, run.splits[split]
    trainer.eval_generation_config = run.model.generation_config
    # Scored below, from exactly the texts that are written.
    trainer.compute_metrics = None
    output = trainer.predict(dataset, metric_key_prefix=prefix)
    metrics = output.metrics
    if None in dataset["target"]:
        for name in METRICS_OF_LABELS:
            del metrics[f"{prefix}_{name}"]
    else:
        metrics[f"{prefix}_perplexity_convention"] = "of a target token"
    if run.args.predict_with_generate:
        # Several processes may repeat the first pairs at the end to fill their last batch.
        texts = decode(output.predictions[: len(dataset)], run.target_tokenizer)
        if trainer.is_world_process_zero():
            warn_of_empty(texts, split)
            lines = [text for _, text in sorted(zip(dataset["index"], texts))]
            text = "".join(f"{line}\n" for line in lines)
            file = f"{re.sub('^test', 'generated', split)}_predictions.txt"
            Path(run.args.output_dir, file).write_text(text, encoding="utf-8", newline="\n")
        scores = score(run, texts, dataset, split)
        metrics |= {f"{prefix}_{name}": value for name, value in scores.items()}
        metrics[f"{prefix}_generation"] = generation_text(trainer.eval_generation_config)
    return metrics
