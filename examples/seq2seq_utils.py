# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""What the sequence-to-sequence scripts share: from pairs of texts to a trained, scored and saved model.

A script says what is special about its task (`Task`): where pairs come from, and how outputs are scored.
"""

import logging
import shutil
import sys
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path

import datasets
import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import parse_flag_from_env
from run_folder import find_checkpoint, locked_run, note_run, run_arguments
from script_utils import (
    BaseDataArguments,
    BaseModelArguments,
    check_model,
    check_run,
    check_vocabulary,
    config_with_overrides,
    load_checkpoint,
    needed_splits,
    parse_overrides,
    parse_with_recipe,
    read_json_lines,
    report,
    set_up_logging,
    write_smoke_data,
)
from transformers import (
    AutoModelForSeq2SeqLM,
    DataCollatorForSeq2Seq,
    GenerationConfig,
    PreTrainedConfig,
    set_seed,
)

from modeling_ode_transformer import OdeTransformerTokenizer
from modeling_ode_transformer.hub.model_card import generation_text
from modeling_ode_transformer.inference.tokenizers import (
    begin_with_language,
    check_target_tokenizer,
    encode_texts,
    load_tokenizers,
    marks_languages,
)
from modeling_ode_transformer.lengths_ode_transformer import MAX_LEN_OPTIONS, position_limit
from modeling_ode_transformer.pipeline_ode_transformer import TARGET_TOKENIZER
from modeling_ode_transformer.training.average import average_checkpoints
from modeling_ode_transformer.training.checkpoints import TEMPORARY, complete_checkpoints
from modeling_ode_transformer.training.trainer import TokenSeq2SeqTrainer, TokenSeq2SeqTrainingArguments


logger = logging.getLogger(__name__)


@dataclass
class Seq2SeqModelArguments(BaseModelArguments):
    """The model and its tokenizers: a checkpoint, or a configuration to start from."""

    target_tokenizer_name: str | None = field(
        default=None,
        metadata={"help": f"Tokenizer of the target side; none: folder {TARGET_TOKENIZER} of the tokenizer, if any."},
    )
    src_lang: str | None = field(
        default=None,
        metadata={
            "help": "Language of the sources, as a multilingual tokenizer calls it: en (M2M100), eng_Latn (NLLB), "
            "en_XX (mBART). It marks texts with it. None: as saved with the tokenizer."
        },
    )
    tgt_lang: str | None = field(
        default=None, metadata={"help": "Language of the targets, likewise; outputs begin with its mark."}
    )
    joint_tokenizer: bool = field(
        default=True, metadata={"help": "Train one tokenizer on both languages, or (False) one for each."}
    )
    vocab_size: int = field(default=8000, metadata={"help": "Pieces of a new tokenizer."})
    target_vocab_size: int | None = field(
        default=None, metadata={"help": "Pieces of a new target tokenizer; none: --vocab_size."}
    )
    tokenizer_model_type: str = field(
        default="bpe", metadata={"help": "SentencePiece model of a new tokenizer.", "choices": ["bpe", "unigram"]}
    )
    tokenizer_options: str | None = field(
        default=None,
        metadata={"help": "SentencePiece options of a new tokenizer, e.g. split_digits=true,character_coverage=0.99"},
    )


@dataclass
class Seq2SeqDataArguments(BaseDataArguments):
    """How long texts may be, which checkpoints become the final model, and how its outputs are searched."""

    max_source_length: int = field(
        default=256, metadata={"help": "Longest source in tokens, end mark included; longer ones are cut."}
    )
    max_target_length: int = field(
        default=256, metadata={"help": "Longest target in tokens, end mark included; longer ones are cut."}
    )
    pad_to_multiple_of: int | None = field(
        default=None,
        metadata={"help": "Pad batches to a multiple of this; none: 8 in half precision on GPUs, else 1."},
    )
    average_last_checkpoints: int = field(
        default=0, metadata={"help": "The final model is the mean of so many last checkpoints; 0: one state of it."}
    )
    num_beams: int | None = field(
        default=None,
        metadata={
            "help": "Beams of the final evaluation and prediction and of the saved generation configuration "
            "(--generation_num_beams is for the evaluations during training); none, as for the options below: as "
            "saved with the model, or 4."
        },
    )
    length_penalty: float | None = field(
        default=None,
        metadata={"help": "Finished beams score sum of log-probabilities / length ** this."},
    )
    min_target_length: int | None = field(
        default=None, metadata={"help": "Fewest tokens of an output before its end mark."}
    )
    no_repeat_ngram_size: int | None = field(
        default=None,
        metadata={"help": "Outputs do not repeat a sequence of so many tokens; 0: they may."},
    )
    samples: list[str] | None = field(
        default=None, metadata={"help": "Sources whose outputs are printed at the end of the run."}
    )


@dataclass(frozen=True)
class Task:
    """What is special about a task.

    Args:
        name: The Hub's name of the task.
        data_arguments: Class of its data arguments.
        read_split: Takes these and "train", "validation" or "test"; returns (source, target) pairs of texts. All
            pairs of a split that is scored, in the order of its file. Where nothing is known of what to expect, the
            targets of "test" are None, and no loss is reported.
        score: Takes output texts, the dataset of `encode_split` that they are outputs for (columns source, target and
            index, the place in the file), the data arguments and the split; returns metrics by name.
        write_smoke_data: Takes a folder and writes a few hundred generated examples into it, always the same ones;
            returns the data arguments that read them, by name.
    """

    name: str
    data_arguments: type[Seq2SeqDataArguments]
    read_split: Callable[[Seq2SeqDataArguments, str], list[tuple[str, str | None]]]
    score: Callable[[list[str], datasets.Dataset, Seq2SeqDataArguments, str], dict[str, float | str]]
    write_smoke_data: Callable[[Path], dict]


def parse_arguments(
    task: Task, argv: list[str]
) -> tuple[Seq2SeqModelArguments, Seq2SeqDataArguments, TokenSeq2SeqTrainingArguments]:
    """Arguments from the command line; a first argument that ends in `.json` is a file of defaults for them."""
    return parse_with_recipe((Seq2SeqModelArguments, task.data_arguments, TokenSeq2SeqTrainingArguments), argv)


def read_jsonl(path: str, columns: dict[str, str | None]) -> list[tuple[str, str]]:
    """Pairs from a file of one JSON object a line; see `pairs_from_records`."""
    return pairs_from_records(read_json_lines(path), columns, path, "line")


def pairs_from_records(
    records: Iterable, columns: dict[str, str | None], name: str, unit: str = "record"
) -> list[tuple[str, str]]:
    """Pairs from mappings such as `{"en": ..., "de": ...}`, or `{"translation": {"en": ..., "de": ...}}`.

    Args:
        records: The mappings, which may have other keys too.
        columns: The keys of source and target, in this order, by the names of the arguments that they come from.
        name: Of the file or dataset, for errors.
        unit: What one of its mappings is, for errors.

    Raises:
        ValueError: a key is not given; a record is no mapping, or holds no text under one of the keys.
    """
    options = " and ".join(f"--{option}" for option in columns)
    if None in columns.values():
        raise ValueError(f"{name} needs {options}: the keys of its source and target.")
    pairs = []
    for number, record in enumerate(records, 1):
        if isinstance(record, dict) and isinstance(record.get("translation"), dict):
            record = record["translation"]
        if not isinstance(record, dict):
            raise ValueError(f"{name}, {unit} {number}: not an object with {' and '.join(columns.values())}.")
        pair = tuple(record.get(column) for column in columns.values())
        if not all(isinstance(text, str) for text in pair):
            raise ValueError(
                f"{name}, {unit} {number}: no text under {' and '.join(columns.values())} ({options}); its keys are "
                f"{', '.join(record)}."
            )
        pairs.append(pair)
    return pairs


def check_pairs(
    pairs: list[tuple[str, str | None]], name: str, split: str, args: BaseDataArguments
) -> list[tuple[str, str | None]]:
    """The pairs to use: as many as asked for, in training without those that have an empty side.

    Raises:
        ValueError: no pair has text on both sides.
    """
    pairs = pairs[: args.max_samples(split)]
    full = [pair for pair in pairs if all(text is None or text.strip() for text in pair)]
    if not full:
        raise ValueError(f"{name} holds no pair with text on both sides ({len(pairs)} lines read).")
    if len(full) < len(pairs) and split == "train":
        logger.warning("%s: dropped %d of %d pairs with an empty side", name, len(pairs) - len(full), len(pairs))
        pairs = full
    elif len(full) < len(pairs):
        logger.warning("%s: %d of %d pairs have an empty side; kept", name, len(pairs) - len(full), len(pairs))
    logger.info("%s: %d pairs", name, len(pairs))
    return pairs


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


def new_config(args: Seq2SeqModelArguments, tokenizer, target_tokenizer) -> PreTrainedConfig:
    """Configuration of a new model: `config_name`, then sizes and ids of the tokenizers, then `config_overrides`."""
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


def load_model(args: Seq2SeqModelArguments, tokenizer, target_tokenizer):
    """The checkpoint's model in float32, or a new one; ValueError if the vocabularies do not fit."""
    if args.model_name_or_path:
        model = load_checkpoint(AutoModelForSeq2SeqLM, args)
        check_target_tokenizer(model, tokenizer, target_tokenizer)
    else:
        model = AutoModelForSeq2SeqLM.from_config(new_config(args, tokenizer, target_tokenizer))
    embeddings = {"source": model.get_input_embeddings(), "target": model.get_output_embeddings()}
    for side, pieces in (("source", tokenizer), ("target", target_tokenizer)):
        check_vocabulary(pieces, embeddings[side], side)
    return model


# What an evaluation measures without generating.
METRICS_OF_LABELS = ("loss", "nll_loss", "perplexity")


def check_arguments(
    model_args: Seq2SeqModelArguments, data_args: Seq2SeqDataArguments, args: TokenSeq2SeqTrainingArguments
) -> None:
    check_run(model_args, data_args, args)
    if args.do_predict and not args.predict_with_generate:
        raise ValueError("--do_predict writes outputs: give --predict_with_generate too.")
    best = (args.metric_for_best_model or "loss").removeprefix("eval_")
    if args.do_train and best not in METRICS_OF_LABELS and not args.predict_with_generate:
        raise ValueError(f"--metric_for_best_model {best} is measured of outputs: give --predict_with_generate too.")
    if (model_args.src_lang is None) != (model_args.tgt_lang is None):
        raise ValueError("--src_lang and --tgt_lang go together; only one is given.")
    for name in ("num_beams", "max_source_length", "max_target_length"):
        if getattr(data_args, name) is not None and getattr(data_args, name) < 1:
            raise ValueError(f"--{name} {getattr(data_args, name)} must be at least 1.")
    if args.generation_num_beams is not None and args.generation_num_beams < 1:
        raise ValueError(f"--generation_num_beams {args.generation_num_beams} must be at least 1.")
    longest = args.generation_max_length - 1 if args.generation_max_length else data_args.max_target_length
    if data_args.min_target_length and not 0 <= data_args.min_target_length < longest:
        raise ValueError(
            f"--min_target_length {data_args.min_target_length} must be at least 0 and less than the longest output, "
            f"{longest} tokens with its end mark (--max_target_length, --generation_max_length)."
        )
    check_lengths(check_model(model_args), data_args, args.generation_max_length)
    asked = f"--average_last_checkpoints {data_args.average_last_checkpoints}"
    if data_args.average_last_checkpoints < 0:
        raise ValueError(f"{asked} must be at least 0, which means none.")
    if data_args.average_last_checkpoints and args.do_train:
        if args.load_best_model_at_end:
            raise ValueError(f"{asked} and --load_best_model_at_end are two choices of the final model: give one.")
        launched = any(map(parse_flag_from_env, ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED")))
        if launched or args.fsdp or args.deepspeed:
            raise ValueError(
                "Under FSDP and DeepSpeed, no process holds a whole model to average: give --average_last_checkpoints "
                "0, then run ode-transformer average, and evaluate the average "
                "(--model_name_or_path) in a run of its own."
            )
        if args.save_strategy == "no":
            raise ValueError(f"{asked} needs checkpoints: give --save_strategy steps or epoch.")
        # The best one is kept beside the last ones.
        needed = data_args.average_last_checkpoints + (args.metric_for_best_model is not None)
        if args.save_total_limit is not None and args.save_total_limit < needed:
            raise ValueError(f"{asked} needs --save_total_limit {needed} or more, not {args.save_total_limit}.")


def load_average(model, args: TokenSeq2SeqTrainingArguments, count: int) -> None:
    """Gives the model the mean of the weights of the last `count` complete checkpoints of its training.

    Raises:
        ValueError: there are fewer.
    """
    # One process writes the last checkpoint to its end.
    PartialState().wait_for_everyone()
    checkpoints = list(islice(complete_checkpoints(args.output_dir), count))[::-1]
    if len(checkpoints) < count:
        raise ValueError(
            f"--average_last_checkpoints {count}: {args.output_dir} holds {len(checkpoints)} complete checkpoints. "
            "The training is finished: start the same command again with a smaller number."
        )
    folder = Path(args.output_dir) / f"{TEMPORARY}average" / "model"
    with args.main_process_first(desc="averaging checkpoints"):
        if args.should_save:
            average_checkpoints(checkpoints, folder, overwrite=True)
    model.load_state_dict(type(model).from_pretrained(folder, dtype=torch.float32).state_dict())
    PartialState().wait_for_everyone()
    if args.should_save:
        shutil.rmtree(folder.parent)
    logger.info("The final model is the mean of %s", ", ".join(path.name for path in checkpoints))


def check_lengths(
    config: PreTrainedConfig, data_args: Seq2SeqDataArguments, generation_max_length: int | None
) -> None:
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


def decode(predictions: np.ndarray, tokenizer) -> list[str]:
    """Texts of generated ids, (sentences, length) with -100 or padding where there is none; one line each."""
    predictions = np.where(predictions == -100, tokenizer.pad_token_id, predictions)
    texts = tokenizer.batch_decode(predictions, skip_special_tokens=True)
    return [" ".join(text.split("\n")).strip() for text in texts]


def predict_split(trainer: TokenSeq2SeqTrainer, dataset, prefix: str, score: Callable, path: Path) -> dict:
    """Runs the model on a dataset and scores it; metrics and outputs, in the order of its file, are written.

    `score` takes the output texts and the dataset.
    """
    # Scored below, from the very texts that are written.
    trainer.compute_metrics = None
    output = trainer.predict(dataset, metric_key_prefix=prefix)
    metrics = output.metrics | {f"{prefix}_samples": len(dataset)}
    if None in dataset["target"]:
        for name in METRICS_OF_LABELS:
            del metrics[f"{prefix}_{name}"]
    else:
        metrics[f"{prefix}_perplexity_convention"] = "of a target token"
    if trainer.args.predict_with_generate:
        # Several processes may repeat the first pairs at the end to fill their last batch.
        texts = decode(output.predictions[: len(dataset)], trainer.target_tokenizer)
        if trainer.is_world_process_zero():
            lines = [text for _, text in sorted(zip(dataset["index"], texts))]
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
        metrics |= {f"{prefix}_{name}": value for name, value in score(texts, dataset).items()}
        metrics[f"{prefix}_generation"] = generation_text(trainer.eval_generation_config)
    return report(trainer, prefix, metrics)


def set_generation_options(
    config: GenerationConfig, data_args: Seq2SeqDataArguments, args: TokenSeq2SeqTrainingArguments
) -> None:
    """Puts the arguments into the generation configuration of a model, and defaults where it has no values."""
    shortest = data_args.min_target_length
    asked = {
        "num_beams": data_args.num_beams if data_args.num_beams or config.num_beams else 4,
        "length_penalty": data_args.length_penalty,
        # generate counts the start mark too, which stands before the tokens of a target.
        "min_length": shortest and shortest + 1,
        "no_repeat_ngram_size": data_args.no_repeat_ngram_size,
    }
    config.update(**{name: value for name, value in asked.items() if value is not None})
    if config.num_beams == 1:
        config.update(length_penalty=None, early_stopping=None)
    elif asked["num_beams"] is not None:
        config.early_stopping = True
    saved = [getattr(config, name, None) for name in ("max_length", "max_new_tokens", *MAX_LEN_OPTIONS)]
    if args.generation_max_length or args.do_train or saved == [None] * len(saved):
        config.update(max_length=args.generation_max_length or data_args.max_target_length + 1, max_new_tokens=None)


def print_samples(model, sources: list[str], tokenizer, target_tokenizer, max_length: int) -> None:
    """Prints the outputs of a model for texts, which are cut to a number of tokens; all processes have to call it, and
    one of them prints."""
    model.eval()
    limits = {"truncation": True, "max_length": max_length}
    inputs = tokenizer(sources, return_tensors="pt", padding=True, **limits).to(model.device)
    outputs = decode(model.generate(**inputs).cpu().numpy(), target_tokenizer)
    if PartialState().is_main_process:
        print("".join(f"source: {source}\noutput: {output}\n" for source, output in zip(sources, outputs)), end="")


def run(task: Task, argv: list[str] | None = None) -> dict[str, float | str]:
    """Trains, evaluates and predicts as the arguments say (default: the command line's); all metrics by name."""
    model_args, data_args, args = parse_arguments(task, sys.argv[1:] if argv is None else argv)
    set_up_logging(args, logger, logging.getLogger(task.data_arguments.__module__))
    check_arguments(model_args, data_args, args)
    with locked_run(args):
        return run_checked(task, model_args, data_args, args)


def run_checked(
    task: Task,
    model_args: Seq2SeqModelArguments,
    data_args: Seq2SeqDataArguments,
    args: TokenSeq2SeqTrainingArguments,
) -> dict[str, float | str]:
    """`run` with arguments that are checked, in a folder that is locked."""
    arguments = run_arguments(task.name, model_args, data_args, args)
    checkpoint = find_checkpoint(arguments, args)
    write_smoke_data(data_args, args, task.write_smoke_data)
    set_seed(args.seed)

    needed = needed_splits(args)
    pairs = {split: task.read_split(data_args, split) for split, need in needed.items() if need}

    tokenizer_name = checkpoint or model_args.tokenizer_name or model_args.model_name_or_path
    makes_tokenizer = tokenizer_name is None
    if makes_tokenizer:
        note_run(arguments, args)
        tokenizer_name = args.output_dir
        with args.main_process_first(desc="training the tokenizer"):
            if args.should_save:
                train_tokenizers(pairs["train"], model_args, Path(args.output_dir))
    languages = {"src_lang": model_args.src_lang, "tgt_lang": model_args.tgt_lang}
    tokenizer, target_tokenizer = load_tokenizers(
        tokenizer_name, model_args.target_tokenizer_name, **languages, **model_args.hub_options
    )
    if marks_languages(tokenizer) and tokenizer.tgt_lang is None:
        raise ValueError(
            f"{type(tokenizer).__name__} ({tokenizer.name_or_path}) marks every text with its language: give "
            "--src_lang and --tgt_lang."
        )
    model = load_model(model_args, tokenizer, target_tokenizer)
    if marks_languages(tokenizer):
        begin_with_language(model, tokenizer)
    logger.info("%s parameters", f"{model.num_parameters():,}")
    set_generation_options(model.generation_config, data_args, args)
    eval_generation_config = deepcopy(model.generation_config)
    if args.generation_num_beams is not None:
        eval_generation_config.num_beams = args.generation_num_beams
        if args.generation_num_beams == 1:
            eval_generation_config.update(early_stopping=None, length_penalty=None)

    splits = {name: encode_split(pairs[name], name, tokenizer, target_tokenizer, data_args) for name in pairs}

    def compute_metrics(evaluation):
        dataset = splits["validation"]
        texts = decode(evaluation.predictions[: len(dataset)], target_tokenizer)
        scores = task.score(texts, dataset, data_args, "validation")
        # Trainer's logs take only numbers; predict_split reports the rest.
        return {name: value for name, value in scores.items() if not isinstance(value, str)}

    tensor_cores = args.device.type == "cuda" and (args.fp16 or args.bf16)
    trainer = TokenSeq2SeqTrainer(
        model=model,
        args=args,
        train_dataset=splits.get("train"),
        eval_dataset=splits.get("validation"),
        processing_class=tokenizer,
        target_tokenizer=target_tokenizer,
        eval_generation_config=eval_generation_config,
        data_collator=DataCollatorForSeq2Seq(
            tokenizer, pad_to_multiple_of=data_args.pad_to_multiple_of or (8 if tensor_cores else None)
        ),
        compute_metrics=compute_metrics if args.predict_with_generate else None,
        callbacks=data_args.callbacks(),
    )

    if not makes_tokenizer:
        note_run(arguments, args)
    metrics = {}
    if args.do_train:
        result = trainer.train(resume_from_checkpoint=checkpoint)
        if data_args.average_last_checkpoints:
            load_average(model, args, data_args.average_last_checkpoints)
        trainer.save_model()
        metrics |= report(trainer, "train", result.metrics | {"train_samples": len(splits["train"])})
        trainer.save_state()

    trainer.eval_generation_config = model.generation_config
    outputs = {"validation": ("eval", "validation_predictions.txt"), "test": ("predict", "generated_predictions.txt")}
    for split, (prefix, filename) in outputs.items():
        if needed[split]:
            score = partial(task.score, args=data_args, split=split)
            metrics |= predict_split(trainer, splits[split], prefix, score, Path(args.output_dir) / filename)
    if data_args.samples:
        print_samples(model, data_args.samples, tokenizer, target_tokenizer, data_args.max_source_length)
    if args.push_to_hub:
        trainer.push_to_hub()
    return metrics
