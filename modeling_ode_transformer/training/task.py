# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""What the run loop takes and keeps: a task, which is data and functions, and the run of one model."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import datasets
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Trainer, TrainingArguments

from .arguments import BaseDataArguments, BaseModelArguments


@dataclass
class Run:
    """One model to train, to evaluate or to test: what is asked for, and what the loop has made of it so far.

    Args:
        task: What is trained.
        model_args, data_args, args: The arguments of the model and the data, of the task's classes, and of `Trainer`.
        fold: The fold to test on in a cross-validation.
        arguments: What the run is, by `run_arguments`.
        finished: The metrics of an earlier call that finished it.
        checkpoint: The checkpoint to resume from.
        given: The examples as they were read, by split.
        examples: Those of this model, by the splits that the call works on.
        tokenizers: One, or those of sources and targets.
        model: The model.
        splits: The encoded examples.
        trainer: The trainer.
    """

    task: "Task"
    model_args: Any
    data_args: Any
    args: TrainingArguments
    fold: int | None = None
    arguments: dict = field(default_factory=dict)
    finished: dict | None = None
    checkpoint: str | None = None
    given: dict[str, Any] = field(default_factory=dict)
    examples: dict[str, Any] = field(default_factory=dict)
    tokenizers: tuple[PreTrainedTokenizerBase, ...] = ()
    model: PreTrainedModel | None = None
    splits: dict[str, datasets.Dataset] = field(default_factory=dict)
    trainer: Trainer | None = None

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The only tokenizer, or that of the sources."""
        return self.tokenizers[0]

    @property
    def target_tokenizer(self) -> PreTrainedTokenizerBase:
        """The only tokenizer, or that of the targets."""
        return self.tokenizers[-1]


@dataclass(frozen=True)
class Task:
    """What is special about a task, in the order in which the loop needs it.

    Args:
        name: The Hub's name of the task.
        model_arguments, data_arguments, training_arguments: Classes of the arguments on the command line.
        check_arguments: Takes the three; raises a ValueError before anything is written.
        read_split: Takes data arguments and "train", "validation" or "test"; returns examples in the order of their
            file, or by name those of several files, each with metrics of its own.
        choose_examples: Takes a run; returns the examples of each split, where they are not as they were read.
        make_tokenizers: Takes a run; makes tokenizers of the training examples.
        load_tokenizers: Takes a run and the name of a tokenizer.
        load_model: Takes a run; opens the model's checkpoint or makes a new model, and logs its size.
        encode: Takes a run and a split; returns the dataset that `Trainer` works on.
        make_trainer: Takes a run.
        evaluate: Takes a run, a split (or one of its sets, "validation_NAME") and the prefix of its metrics; writes
            outputs, if there are any, and returns the metrics. Not by `Trainer.evaluate`, whose callbacks look for the
            metric of the best model in every split.
        score: Of tasks that generate. Takes output texts, the dataset that they are outputs for, the data arguments
            and the split; returns metrics by name.
        has_results: Whether a call writes the metrics of its models, of several seeds and folds, and their summary, to
            `records.RUNS` and returns these, not the metrics of its only model.
        presets: Which presets it has, a key of `presets.PRESETS`.
        preset_values: What it has in each of them beside their values.
    """

    name: str
    model_arguments: type[BaseModelArguments]
    data_arguments: type[BaseDataArguments]
    training_arguments: type[TrainingArguments]
    check_arguments: Callable[[Any, Any, Any], None]
    read_split: Callable[[Any, str], Any]
    make_tokenizers: Callable[[Run], tuple[PreTrainedTokenizerBase, ...]]
    load_tokenizers: Callable[[Run, str], tuple[PreTrainedTokenizerBase, ...]]
    load_model: Callable[[Run], PreTrainedModel]
    encode: Callable[[Run, str], datasets.Dataset]
    make_trainer: Callable[[Run], Trainer]
    evaluate: Callable[[Run, str, str], dict]
    choose_examples: Callable[[Run], dict[str, Any]] = lambda run: run.given
    score: Callable[[list[str], datasets.Dataset, Any, str], dict[str, float | str]] | None = None
    has_results: bool = False
    presets: str = "seq2seq"
    preset_values: dict[str, Any] = field(default_factory=dict)
