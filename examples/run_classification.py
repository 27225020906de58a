# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Train, evaluate and test a classifier of sentences, or of pairs of sentences, with `Trainer`.

    python run_classification.py recipes/trec.json --output_dir out --config_overrides solver=rk --seeds 1 2 3
    python run_classification.py --train_file mr.txt.gz --cross_validation 10 --do_train --do_predict --output_dir out

A recipe is a JSON file of arguments; what follows it on the command line wins. Without a checkpoint
(`--model_name_or_path`) the model starts from a configuration, by default CSAODE's; without a tokenizer
(`--tokenizer_name`, or the checkpoint's) one is made of the words of the training text. Examples come from

    --train_file a.txt                                    one a line, `label words ...`, words separated by spaces
    --train_file a.jsonl --text_pair_column hypothesis --text_column premise   objects, or rows of a .csv
    --dataset_name stanfordnlp/snli --text_column premise --text_pair_column hypothesis

and likewise for validation and test; files may be gzipped (`.gz`). Where there is no such file, `--validation_size`
and `--test_size` hold out a part of the training examples, drawn by `--split_seed`; `--cross_validation 10` tests ten
models, each on a tenth that it was not trained on.

`--seeds` trains a model for each. A model is in `output_dir`, those of seeds and folds in its subfolders
`seed_S/fold_F`; their accuracies (percent), mean and standard deviation are in `output_dir/runs.json`. The same
command again takes those that are finished as they are. Adam has L2 regularization (`--weight_decay`), and the
learning rate falls exponentially after a linear warm-up, as in the paper of CSAODE. With `--smoke` the whole run takes
seconds, on tiny sizes.
"""

import copy
import csv
import json
import logging
import re
import statistics
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import datasets
import numpy as np
import torch
from number_names import write_corpus
from run_folder import changed_data, different_arguments, find_checkpoint, locked_run, note_run, run_arguments
from script_utils import (
    BaseDataArguments,
    BaseModelArguments,
    check_model,
    check_run,
    check_vocabulary,
    config_with_overrides,
    load_checkpoint,
    needed_splits,
    parse_with_recipe,
    read_dataset,
    read_json_lines,
    report,
    run_process,
    set_up_logging,
    word_level_tokenizer,
    write_smoke_data,
)
from tokenizers.processors import TemplateProcessing
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    EvalPrediction,
    PreTrainedModel,
    TokenizersBackend,
    Trainer,
    TrainingArguments,
    set_seed,
)

from modeling_ode_transformer.hub.model_card import ARGUMENTS, RESULTS, held_out, split_sources
from modeling_ode_transformer.text_files import read_json, read_lines
from modeling_ode_transformer.training.resumption import ResumableTrainerMixin, ResumableTrainingArguments
from modeling_ode_transformer.training.word_vectors import load_word_vectors


logger = logging.getLogger(__name__)

# In the order of their ids.
SPECIAL_TOKENS = {"pad_token": "<pad>", "unk_token": "<unk>"}
RUNS = "runs.json"
INTEGER = re.compile(r"[+-]?[0-9]+")
# Arguments that do not change what a model becomes, and how it is evaluated.
NOT_OF_A_RESULT = {
    *("seeds", "output_dir", "overwrite_output_dir", "resume_from_checkpoint", "run_name", "report_to"),
    *("disable_tqdm", "log_level", "log_level_replica", "logging_first_step", "logging_steps"),
    *("logging_strategy", "save_total_limit", "dataloader_num_workers", "dataloader_persistent_workers"),
}


@dataclass
class ModelArguments(BaseModelArguments):
    """The model and its vocabulary: a checkpoint, or a configuration to start from."""

    model_type: str = field(
        default="csa_ode", metadata={"help": "Architecture of a new model where --config_name does not say."}
    )
    vocab_size: int | None = field(
        default=None, metadata={"help": "Most words of a new vocabulary, the 2 special ones included; none: no limit."}
    )
    min_frequency: int = field(
        default=1, metadata={"help": "How often a word of a new vocabulary occurs in training; others are <unk>."}
    )
    lowercase: bool = field(default=False, metadata={"help": "Spell the words of a new vocabulary in lower case."})
    word_vectors: str | None = field(
        default=None,
        metadata={"help": "Pre-trained vectors in GloVe's text format (or .gz) for the embeddings of a new model."},
    )


@dataclass
class DataArguments(BaseDataArguments):
    """The examples, and how they are split."""

    train_file: str | None = field(default=None, metadata={"help": "Training examples, .txt, .csv or .jsonl."})
    validation_file: str | None = field(default=None, metadata={"help": "Validation examples."})
    test_file: str | None = field(default=None, metadata={"help": "Test examples."})
    SOURCES = (*BaseDataArguments.SOURCES, "train_file", "validation_file", "test_file")
    SMOKE_VALUES = Path(__file__).parent / "smoke_classification.json"

    text_column: str = field(default="text", metadata={"help": "Column of a dataset, .csv or .jsonl: the sentence."})
    text_pair_column: str | None = field(default=None, metadata={"help": "Column of the second sentence, if any."})
    label_column: str = field(default="label", metadata={"help": "Column of the label."})
    ignored_labels: list[str] | None = field(
        default=None, metadata={"help": "Examples with these labels are left out, as '-' of SNLI, or -1."}
    )
    class_names: list[str] | None = field(
        default=None,
        metadata={
            "help": "Names that the model keeps, in the order of the labels: of numbers by size, else the alphabet's."
        },
    )
    validation_size: float = field(
        default=0.0, metadata={"help": "Share of the training examples to validate on, where there is no file."}
    )
    test_size: float = field(
        default=0.0, metadata={"help": "Share of the training examples to test on, where there is no file."}
    )
    cross_validation: int | None = field(default=None, metadata={"help": "Number of folds to test on."})
    split_seed: int = field(default=42, metadata={"help": "Seed of the order in which examples are split."})
    max_length: int | None = field(default=None, metadata={"help": "Most words of an example; none: no limit."})
    seeds: list[int] | None = field(default=None, metadata={"help": "A model for each of these; none: --seed."})


@dataclass
class ClassificationTrainingArguments(ResumableTrainingArguments):
    """Those of Trainer, with the paper's values where it has some: a learning rate of 0.0001 to 0.003, batches of 80
    to 256 (114 make the 48 batches an epoch that TREC has in figure 6), 10 epochs, an L2 factor of 1e-5. It gives no
    numbers for warm-up and decay."""

    learning_rate: float = field(default=1e-3, metadata={"help": "Highest learning rate."})
    per_device_train_batch_size: int = field(default=114, metadata={"help": "Examples of a batch."})
    per_device_eval_batch_size: int = field(default=256, metadata={"help": "Examples of a batch of an evaluation."})
    num_train_epochs: float = field(default=10.0, metadata={"help": "Epochs."})
    weight_decay: float = field(default=1e-5, metadata={"help": "Factor of the L2 regularization."})
    warmup_steps: float = field(default=0.1, metadata={"help": "Updates of the warm-up, or a share of all of them."})
    learning_rate_ratio: float = field(
        default=0.1, metadata={"help": "The last learning rate as a part of the highest, reached exponentially."}
    )

    def to_sanitized_dict(self) -> dict:
        """What is noted: the optimizer and the schedule are those of `ClassificationTrainer`."""
        own = {"optim": "Adam with L2 regularization", "lr_scheduler_type": "exponential"}
        return super().to_sanitized_dict() | own


class Examples(NamedTuple):
    """Sentences, second sentences or None, and labels, all of one length."""

    texts: list[str]
    pairs: list[str] | None
    labels: list[str]

    def take(self, indices: Iterable[int]) -> "Examples":
        return Examples(*(each and [each[i] for i in indices] for each in self))


def parse_arguments(argv: list[str]) -> tuple[ModelArguments, DataArguments, ClassificationTrainingArguments]:
    """Arguments from the command line; a first argument that ends in `.json` is a file of defaults for them."""
    return parse_with_recipe((ModelArguments, DataArguments, ClassificationTrainingArguments), argv)


def check_arguments(model_args: ModelArguments, data_args: DataArguments, args: TrainingArguments) -> None:
    check_run(model_args, data_args, args)
    if model_args.word_vectors and model_args.model_name_or_path:
        raise ValueError("--word_vectors are for a new model: leave out --model_name_or_path.")
    for name in ("validation_size", "test_size"):
        if not 0 <= getattr(data_args, name) < 1:
            raise ValueError(f"--{name} {getattr(data_args, name)} must be a share, at least 0 and less than 1.")
    folds = data_args.cross_validation
    if folds is not None and folds < 2:
        raise ValueError(f"--cross_validation {folds} must be at least 2.")
    if folds and (data_args.test_file or data_args.test_size or not (args.do_train and args.do_predict)):
        raise ValueError(
            f"--cross_validation {folds} trains on and tests all training examples: give --do_train and --do_predict, "
            "and neither --test_file nor --test_size."
        )
    if args.load_best_model_at_end and not args.do_eval:
        raise ValueError("--load_best_model_at_end needs --do_eval.")
    if not 0 < args.learning_rate_ratio <= 1:
        raise ValueError(f"--learning_rate_ratio {args.learning_rate_ratio} must be more than 0 and at most 1.")
    if data_args.seeds and len(set(data_args.seeds)) < len(data_args.seeds):
        raise ValueError(f"--seeds {' '.join(map(str, data_args.seeds))} names one twice.")
    asked = args.resume_from_checkpoint
    if asked and str(asked).lower() != "true" and (data_args.seeds or folds):
        raise ValueError(f"--resume_from_checkpoint {asked}: several models go on from their own: leave it out.")
    check_model(model_args)


def read_examples(path: str, args: DataArguments) -> Examples:
    """The examples of a file, in the format that its name says.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: there is no such format; a line has no label or no text; or the columns are not there.
    """
    suffix = Path(path.removesuffix(".gz")).suffix
    if suffix == ".csv":
        return examples_of(csv.DictReader(f"{line}\n" for line in read_lines(path)), path, args)
    if suffix in (".json", ".jsonl"):
        return examples_of(read_json_lines(path), path, args)
    if suffix != ".txt":
        raise ValueError(
            f"{path}: examples are in a .txt (`label words ...` a line), .csv, .json or .jsonl file, or one of these "
            f"with .gz, not {suffix!r}: rename or convert it."
        )
    pairs = (line.split(maxsplit=1) for line in read_lines(path))
    records = (dict(zip((args.label_column, args.text_column), [*pair, "", ""])) for pair in pairs)
    if args.text_pair_column:
        raise ValueError(f"{path} has no columns: --text_pair_column {args.text_pair_column} needs a .csv or .jsonl.")
    return examples_of(records, path, args)


def examples_of(records: Iterable[dict], name: str, args: DataArguments) -> Examples:
    """The examples of mappings that have the columns of the arguments."""
    columns = [args.text_column, args.label_column, *([args.text_pair_column] if args.text_pair_column else [])]
    rows = []
    for number, record in enumerate(records, 1):
        if not isinstance(record, dict) or not set(columns) <= set(record):
            raise ValueError(
                f"{name}, record {number} lacks one of {', '.join(columns)} (--text_column, --label_column, "
                f"--text_pair_column): {str(record)[:200]}"
            )
        values = [str(record[column]).strip() if record[column] is not None else "" for column in columns]
        if values[1] in (args.ignored_labels or ()):
            continue
        if not all(values):
            raise ValueError(f"{name}, record {number} has no text or no label: {str(record)[:200]}")
        rows.append(values)
    if not rows:
        raise ValueError(f"{name} has no examples.")
    texts, labels, *pairs = map(list, zip(*rows))
    return Examples(texts, pairs[0] if pairs else None, labels)


def read_split(args: DataArguments, split: str) -> Examples | None:
    """The examples of "train", "validation" or "test" from wherever the arguments say; None if they do not."""
    path = getattr(args, f"{split}_file")
    if path:
        examples = read_examples(path, args)
    elif args.dataset_name and not held_out(vars(args), split):
        examples = examples_of(read_dataset(args, split), f"{args.dataset_name} ({split})", args)
    else:
        return None
    return examples.take(range(min(args.max_samples(split) or len(examples.labels), len(examples.labels))))


def read_needed_splits(args: DataArguments, needed: dict[str, bool]) -> dict[str, Examples | None]:
    """The splits that are needed, and the training examples that others are parts of."""
    splits = [split for split, need in needed.items() if need]
    if any(held_out(vars(args), split) for split in splits):
        splits = ["train", *(split for split in splits if split != "train")]
    return {split: read_split(args, split) for split in splits}


def make_splits(
    given: dict[str, Examples | None], args: DataArguments, needed: dict[str, bool], fold: int | None
) -> dict[str, Examples]:
    """The examples of each split that is needed, parts of the training examples held out where they have to be.

    Raises:
        ValueError: there are none for a split that is needed.
    """
    splits = {split: examples for split, examples in given.items() if examples is not None}
    if "train" in splits:
        order = np.random.default_rng(args.split_seed).permutation(len(splits["train"].labels))
        parts = {}
        if fold is not None:
            parts["test"] = order[fold :: args.cross_validation]
            order = np.setdiff1d(order, parts["test"], assume_unique=True)
            order = np.random.default_rng((args.split_seed, fold)).permutation(order)
        for split in ("test", "validation"):
            if split not in splits and getattr(args, f"{split}_size"):
                number = round(getattr(args, f"{split}_size") * len(splits["train"].labels))
                parts[split], order = order[:number], order[number:]
        whole = splits["train"]
        splits |= {split: whole.take(np.sort(indices)) for split, indices in parts.items()}
        if parts:
            splits["train"] = whole.take(np.sort(order))
    for split, need in needed.items():
        if need and not (split in splits and splits[split].labels):
            others = "" if split == "train" else f", or --{split}_size"
            raise ValueError(f"No {split} examples: give --{split}_file or --dataset_name{others}.")
    return {split: examples for split, examples in splits.items() if needed[split]}


def build_tokenizer(examples: Examples, args: ModelArguments) -> TokenizersBackend:
    """A tokenizer of whole words, those of the examples, the most frequent first; `<pad>` is 0 and `<unk>` is 1.

    The second sentence of a pair follows the first, told apart by `token_type_ids`.

    Raises:
        ValueError: `--vocab_size` has no room for a word.
    """
    lines = [*examples.texts, *(examples.pairs or [])]
    backend = word_level_tokenizer(lines, SPECIAL_TOKENS, args.vocab_size, args.min_frequency, args.lowercase)
    backend.post_processor = TemplateProcessing(single="$A", pair="$A:0 $B:1", special_tokens=[])
    inputs = ["input_ids", "attention_mask", *(["token_type_ids"] if examples.pairs else [])]
    return TokenizersBackend(tokenizer_object=backend, model_input_names=inputs, **SPECIAL_TOKENS)


def find_labels(given: dict[str, Examples | None]) -> list[str]:
    """The labels of the examples: numbers by size, other labels in the order of the alphabet."""
    by_split = {split: set(examples.labels) for split, examples in given.items() if examples}
    if "train" in by_split:
        for split, labels in by_split.items():
            if new := sorted(labels - by_split["train"]):
                logger.warning("No training example has the labels %s of the %s examples", ", ".join(new), split)
    labels = set().union(*by_split.values())
    return sorted(labels, key=(lambda label: (int(label), label)) if all(map(INTEGER.fullmatch, labels)) else None)


def check_class_names(names: list[str], labels: list[str]) -> None:
    if len(names) != len(labels):
        raise ValueError(
            f"--class_names gives {len(names)} names, but there are {len(labels)} labels: {', '.join(labels)}."
        )


def label_ids(model: PreTrainedModel, labels: list[str], class_names: list[str] | None) -> dict[str, int]:
    """The model's ids of the labels, which its configuration may have as they were in its training data
    (`dataset_labels`) or by the names of its classes.

    Raises:
        ValueError: the model has other labels, or classes of other names than `class_names`.
    """
    config, names = model.config, dict(zip(labels, labels))
    noted = {label: i for i, label in enumerate(getattr(config, "dataset_labels", None) or [])}
    if class_names and not noted:
        check_class_names(class_names, labels)
        names = dict(zip(labels, class_names))
    elif class_names and class_names != (own := [config.id2label[i] for i in noted.values()]):
        raise ValueError(
            f"--class_names {' '.join(class_names)}: the classes of {config.name_or_path} are {' '.join(own)}. Leave "
            "it out."
        )
    known = config.label2id | noted
    if unknown := [name for name in names.values() if name not in known]:
        labels = dict.fromkeys([*config.id2label.values(), *noted])
        raise ValueError(
            f"{config.name_or_path} does not know the labels {', '.join(unknown)}, only {', '.join(labels)}."
        )
    return {label: known[name] for label, name in names.items()}


def load_model(
    args: ModelArguments, tokenizer, labels: list[str], class_names: list[str] | None, is_pair: bool
) -> PreTrainedModel:
    """The checkpoint's model in float32, or a new one for the labels, with pre-trained word vectors if they are asked
    for.

    Raises:
        ValueError: the vocabulary is not the checkpoint's, or there are not as many names as labels.
    """
    if args.model_name_or_path:
        model = load_checkpoint(AutoModelForSequenceClassification, args)
    else:
        names = class_names or labels
        check_class_names(names, labels)
        values = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
        values |= {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}
        values |= {"dataset_labels": labels, "problem_type": "single_label_classification"}
        if args.model_type == "csa_ode":
            values["num_sentences"] = 2 if is_pair else 1
        model = AutoModelForSequenceClassification.from_config(config_with_overrides(args, values))
        if args.word_vectors:
            coverage = load_word_vectors(args.word_vectors, tokenizer.get_vocab(), model.get_input_embeddings())
            logger.info("%s: %s", args.word_vectors, coverage)
    check_vocabulary(tokenizer, model.get_input_embeddings())
    return model


def encode(examples: Examples, tokenizer, label2id: dict[str, int], max_length: int | None) -> datasets.Dataset:
    """Ids, masks and labels of the examples."""
    encoded = tokenizer(examples.texts, examples.pairs, truncation=max_length is not None, max_length=max_length)
    return datasets.Dataset.from_dict({**encoded, "labels": [label2id[label] for label in examples.labels]})


class ClassificationTrainer(ResumableTrainerMixin, Trainer):
    """Trainer with Adam, whose learning rate falls exponentially, and metrics of classification."""

    def __init__(self, *, args: ClassificationTrainingArguments, **kwargs):
        adam = {"lr": args.learning_rate, "betas": (args.adam_beta1, args.adam_beta2), "eps": args.adam_epsilon}
        kwargs |= {"compute_metrics": compute_metrics, "optimizer_cls_and_kwargs": (torch.optim.Adam, adam)}
        super().__init__(args=args, **kwargs)
        # The numbers of evaluations are wanted beside the logits.
        ignored = set(getattr(self.model.config, "keys_to_ignore_at_inference", None) or ())
        self.ignored_keys = sorted(ignored - {"num_function_evaluations"})

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None):
        if self.lr_scheduler is None:
            warmup = self.args.get_warmup_steps(num_training_steps)
            decay = max(num_training_steps - warmup, 1)

            def factor(step: int) -> float:
                if step < warmup:
                    return step / warmup
                return self.args.learning_rate_ratio ** min((step - warmup) / decay, 1.0)

            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer or self.optimizer, factor)
        return self.lr_scheduler

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys=self.ignored_keys)


def compute_metrics(prediction: EvalPrediction) -> dict[str, float]:
    """Accuracy in percent and the mean number of function evaluations, if the model counts them."""
    outputs = prediction.predictions
    logits, *others = outputs if isinstance(outputs, tuple) else (outputs,)
    metrics = {"accuracy": 100 * float((logits.argmax(axis=-1) == prediction.label_ids).mean())}
    if others:
        metrics["function_evaluations"] = float(others[0].mean())
    return metrics


def train_one(
    given: dict[str, Examples | None],
    fold: int | None,
    checkpoint: str | None,
    arguments: dict,
    model_args: ModelArguments,
    data_args: DataArguments,
    args: ClassificationTrainingArguments,
) -> dict[str, float]:
    """One model, of one seed and perhaps of one fold, in `args.output_dir`; returns its metrics by name. `arguments`
    are those of `run_arguments`."""
    set_seed(args.seed)
    examples = make_splits(given, data_args, needed_splits(args), fold)
    labels = find_labels(given)
    tokenizer_name = checkpoint or model_args.tokenizer_name or model_args.model_name_or_path
    if tokenizer_name is None:
        tokenizer = build_tokenizer(examples["train"], model_args)
    else:
        tokenizer = AutoTokenizer.from_pretrained(tokenizer_name, **model_args.hub_options)
    is_pair = data_args.text_pair_column is not None
    model = load_model(model_args, tokenizer, labels, data_args.class_names, is_pair)
    label2id = label_ids(model, labels, data_args.class_names)
    embeddings = model.get_input_embeddings().weight.numel()
    sizes = {"parameters": model.num_parameters()}
    sizes["parameters_without_embeddings"] = sizes["parameters"] - embeddings
    logger.info("%s words in the vocabulary; %s", f"{len(tokenizer):,}", sizes)

    splits = {
        split: encode(each, tokenizer, label2id, data_args.max_length) for split, each in examples.items() if each
    }
    trainer = ClassificationTrainer(
        model=model,
        args=args,
        train_dataset=splits.get("train"),
        eval_dataset=splits.get("validation"),
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer),
        callbacks=data_args.callbacks(),
    )
    note_run(arguments, args)
    metrics = dict(sizes)
    if args.do_train:
        result = trainer.train(resume_from_checkpoint=checkpoint)
        trainer.save_model()
        metrics |= result.metrics | {"train_samples": len(splits["train"])}
        if result.metrics.get("epoch"):
            metrics["train_seconds_per_epoch"] = result.metrics["train_runtime"] / result.metrics["epoch"]
        report(trainer, "train", metrics)
        trainer.save_state()
    for split, prefix in (("validation", "eval"), ("test", "predict")):
        if split in splits:
            # Not `evaluate`, whose callbacks look for the metric of the best model in every split.
            scores = trainer.predict(splits[split], metric_key_prefix=prefix).metrics
            scores[f"{prefix}_samples"] = len(splits[split])
            metrics |= report(trainer, prefix, scores)
    if args.push_to_hub:
        trainer.push_to_hub()
    return metrics


def summarize(runs: list[dict]) -> dict:
    """Mean and standard deviation (None for one seed) over seeds of what the runs measured, the mean over the folds of
    a seed first.

    Args:
        runs: Their metrics, with the keys `seed` and `fold`.
    """
    summary = {}
    seeds = list(dict.fromkeys(run["seed"] for run in runs))
    for name in runs[0]:
        if name not in ("seed", "fold") and all(isinstance(run.get(name), (int, float)) for run in runs):
            values = [statistics.fmean(run[name] for run in runs if run["seed"] == seed) for seed in seeds]
            deviation = statistics.stdev(values) if len(values) > 1 else None
            summary[name] = {"mean": statistics.fmean(values), "standard_deviation": deviation}
    return summary


def write_number_names(folder: Path) -> dict[str, str]:
    """Number names in English, which have hundreds or not, the data of a smoke run; the arguments that read them."""
    sizes = {"train": 300, "validation": 20, "test": 20}
    write_corpus(folder, sizes)
    for split in sizes:
        lines = [f"{int('hundred' in line)} {line}\n" for line in read_lines(folder / f"{split}.en")]
        (folder / f"{split}.txt").write_text("".join(lines), encoding="utf-8", newline="\n")
    return {f"{split}_file": str(folder / f"{split}.txt") for split in sizes}


def plan_runs(
    data_args: DataArguments, args: ClassificationTrainingArguments
) -> list[tuple[int, int | None, ClassificationTrainingArguments]]:
    """Seed, fold and training arguments of each model; several have folders of their own."""
    plan = []
    for seed in data_args.seeds or [args.seed]:
        for fold in range(data_args.cross_validation) if data_args.cross_validation else [None]:
            own, folder = copy.copy(args), Path(args.output_dir)
            if data_args.seeds:
                folder /= f"seed_{seed}"
            if fold is not None:
                folder /= f"fold_{fold}"
            own.seed, own.output_dir = seed, str(folder)
            plan.append((seed, fold, own))
    if len(plan) > 1:
        for *_, own in plan:
            # Each goes on from its own checkpoints, if it has any.
            own.resume_from_checkpoint = None
    return plan


def check_other_runs(
    plan: list[tuple[int, int | None, ClassificationTrainingArguments]],
    data_args: DataArguments,
    args: ClassificationTrainingArguments,
) -> None:
    """Raises a ValueError if the file of results has some that this call would not write again."""
    file = Path(args.output_dir) / RUNS
    if data_args.overwrite_output_dir or not file.is_file():
        return
    if not args.do_train:
        runs, results_file = read_json(file)["runs"], file.parent / RESULTS
        results = read_json(results_file) if results_file.is_file() else None
        # What the model in the folder has been measured at is in both files.
        is_own = results is not None and len(runs) == 1
        if not is_own or any(results.get(name, value) != value for name, value in runs[0].items()):
            raise ValueError(
                f"{file} has results of other models: choose another --output_dir, or give --overwrite_output_dir to "
                "replace them."
            )
        return
    planned = {(seed, fold) for seed, fold, _ in plan}
    others = [run for run in read_json(file)["runs"] if (run["seed"], run["fold"]) not in planned]
    if others:
        seeds = " ".join(dict.fromkeys(str(run["seed"]) for run in others))
        raise ValueError(
            f"{file} has results that this call would lose, of --seeds {seeds}: name all seeds, and the same folds "
            "(what is finished is taken as it is), choose another --output_dir, or give --overwrite_output_dir."
        )


def measured_data(data: dict, split: str) -> dict:
    """The data arguments that the metrics of a split depend on; of files, only the names."""
    limit = {"validation": "max_eval_samples", "test": "max_predict_samples"}[split]
    names = (limit, "max_length", "text_column", "text_pair_column", "label_column", "ignored_labels")
    asked = {name: data.get(name) for name in names}
    return asked | {f"{split} data": split_sources(data, split), "held out": held_out(data, split)}


def finished_metrics(arguments: dict, args: ClassificationTrainingArguments) -> dict[str, float] | None:
    """The metrics of a model of several that an earlier call came to the end with; None if there is no such.

    Args:
        arguments: Those of `run_arguments`.
        args: The training's.

    Raises:
        ValueError: it was another call, whose results are not those of this one.
    """
    folder = Path(args.output_dir)
    needed = {"train_loss": args.do_train, "eval_accuracy": args.do_eval, "predict_accuracy": args.do_predict}
    if arguments["data"]["overwrite_output_dir"] or not all(
        (folder / name).is_file() for name in (ARGUMENTS, RESULTS)
    ):
        return None
    metrics, noted = read_json(folder / RESULTS), read_json(folder / ARGUMENTS)
    if any(need and name not in metrics for name, need in needed.items()):
        return None
    for kind in ("model", "data", "training"):
        names = sorted(set(arguments[kind]) - NOT_OF_A_RESULT)
        different = different_arguments(noted[kind], arguments[kind], names)
        if different := different + (changed_data(noted, arguments) if kind == "data" else []):
            raise ValueError(
                f"{folder} was trained otherwise; this call has {'; '.join(different)}. Choose another --output_dir, "
                "or give --overwrite_output_dir."
            )
    for split, data in noted.get("evaluated", {}).items():
        old, new = measured_data(data, split), measured_data(arguments["data"], split)
        if needed_splits(args)[split] and (different := different_arguments(old, new, new)):
            raise ValueError(
                f"{folder} was evaluated anew; this call has {'; '.join(different)}. Evaluate it on this call's "
                f"{split} data (--model_name_or_path {folder} --output_dir {folder}), choose another --output_dir, or "
                "give --overwrite_output_dir."
            )
    logger.info("%s is trained already: taking its results", folder)
    return metrics


def main(argv: list[str] | None = None) -> dict:
    """Runs the script with the given arguments (default: the command line's) and returns the metrics of all runs and
    their summary, as they are in `runs.json`."""
    model_args, data_args, args = parse_arguments(sys.argv[1:] if argv is None else argv)
    set_up_logging(args, logger)
    check_arguments(model_args, data_args, args)
    with locked_run(args):
        return run_checked(model_args, data_args, args)


def run_checked(model_args: ModelArguments, data_args: DataArguments, args: ClassificationTrainingArguments) -> dict:
    """`main` with arguments that are checked, in a folder that is locked."""
    plan = plan_runs(data_args, args)
    check_other_runs(plan, data_args, args)
    arguments = [run_arguments("text-classification", model_args, data_args, own) for *_, own in plan]
    finished = [finished_metrics(each, own) if len(plan) > 1 else None for each, (*_, own) in zip(arguments, plan)]
    checkpoints = [
        find_checkpoint(each, own) if metrics is None else None
        for each, metrics, (*_, own) in zip(arguments, finished, plan)
    ]
    write_smoke_data(data_args, args, write_number_names)
    given = read_needed_splits(data_args, needed_splits(args))
    file = Path(args.output_dir) / RUNS
    measured = {}
    if not args.do_train and (noted := Path(args.output_dir) / ARGUMENTS).is_file():
        measured = {"seed": read_json(noted)["training"]["seed"]}
    if not args.do_train and file.is_file() and not data_args.overwrite_output_dir:
        measured = read_json(file)["runs"][0]
    runs = []
    for (seed, fold, own), each, checkpoint, metrics in zip(plan, arguments, checkpoints, finished):
        if metrics is None:
            metrics = train_one(given, fold, checkpoint, each, model_args, data_args, own)
        runs.append({"seed": seed, "fold": fold, **measured, **metrics})
    results = {"runs": runs, "summary": summarize(runs)}
    if args.should_save:
        file.write_text(json.dumps(results, indent=1), encoding="utf-8")
    for name in ("eval_accuracy", "predict_accuracy"):
        if name in results["summary"]:
            values = results["summary"][name]
            deviation = values["standard_deviation"]
            logger.info("%s: %.2f%s", name, values["mean"], "" if deviation is None else f" ± {deviation:.2f}")
    return results


if __name__ == "__main__":
    run_process(main)
