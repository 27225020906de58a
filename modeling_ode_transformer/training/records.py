# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""What a run writes about itself into its folder: the names of the files, and how what they hold is shown."""

import re
from collections.abc import Collection
from pathlib import Path

from transformers import GenerationConfig


# Arguments, at the start; metrics, at the end; the arguments of a later evaluation; the metrics of several models.
ARGUMENTS, RESULTS, EVALUATION, RUNS = "arguments.json", "all_results.json", "evaluation.json", "runs.json"
# The beginnings of the names of a split's metrics.
PREFIXES = {"validation": "eval", "test": "predict"}

TRAINING_FIELDS = (
    *("max_tokens_per_batch", "per_device_train_batch_size", "gradient_accumulation_steps", "learning_rate"),
    *("lr_scheduler_type", "learning_rate_ratio", "warmup_steps", "optim", "muon_learning_rate"),
    *("adam_beta1", "adam_beta2", "weight_decay", "max_grad_norm", "label_smoothing_factor", "bf16", "fp16"),
    *("weight_ema", "subword_dropout", "metric_for_best_model", "seed"),
)
# Options with the value that has no effect.
GENERATION_FIELDS = {
    **{"num_beams": None, "length_penalty": 1.0, "max_length": None, "max_len_a": None, "max_len_b": None},
    **{"min_length": 0, "no_repeat_ngram_size": 0},
}
# A model or dataset of the Hub.
HUB_NAME = re.compile(r"\w[\w.-]*(?:/[\w.-]+)?")


def held_out(data: dict, split: str) -> dict:
    """The arguments, if any, that split off training examples."""
    names = (f"{split}_size", *(["cross_validation"] if split == "test" else []))
    return {} if data.get(f"{split}_file") else {name: data[name] for name in names if data.get(name)}


def shown_name(name: str, folders: Collection[str] | None = None) -> str:
    """The name of a model or dataset: of the Hub's, the whole; of a folder, without its place.

    Args:
        name: As an argument of a run gives it.
        folders: The names that were folders in the run; None for older runs, which noted none: those that are here.
    """
    is_folder = Path(name).is_dir() if folders is None else name in folders
    if HUB_NAME.fullmatch(name) and ".." not in name and not is_folder:
        return name
    return next((part for part in reversed(Path(name).parts) if part.strip("./\\")), "a folder")


def set_name(file: str) -> str:
    """What the metrics of one of several files of a split are named by: its name without folders and ending."""
    return Path(file.removesuffix(".gz")).stem


def split_sources(data: dict, split: str) -> list[str]:
    """The names of a split's files or dataset, without their places; for data["folders"], if any, see `shown_name`."""
    if held_out(data, split):
        return split_sources(data, "train")
    files = [value for name, value in data.items() if re.fullmatch(rf"{split}_(\w+_)?files?", name) and value]
    if data.get("dataset_name") and not files:
        config = data.get("dataset_config_name")
        return [shown_name(data["dataset_name"], data.get("folders")) + (f" ({config})" if config else "")]
    return [Path(path).name for value in files for path in ([value] if isinstance(value, str) else value)]


def without_idle(values: dict) -> dict:
    """Training arguments, sanitized, without those that are off or that others make idle."""
    idle = {name for name in ("weight_ema", "subword_dropout") if not values.get(name)}
    if isinstance(values.get("max_tokens_per_batch"), int):
        idle.add("per_device_train_batch_size")
    if values.get("optim") != "muon":
        idle.add("muon_learning_rate")
    # Sanitized arguments write None as text.
    is_off = lambda value: value is False or value in (None, "None")  # noqa: E731
    return {name: value for name, value in values.items() if name not in idle and not is_off(value)}


def training_arguments(values: dict) -> dict:
    """The training arguments, sanitized, that cards show."""
    values = without_idle(values)
    return {name: values[name] for name in TRAINING_FIELDS if name in values}


def generation_text(config: GenerationConfig) -> str:
    """The options of a search that cards show."""
    values = {name: getattr(config, name, None) for name in GENERATION_FIELDS}
    return ", ".join(
        f"{name} {value}" for name, value in values.items() if value not in (None, GENERATION_FIELDS[name])
    )
