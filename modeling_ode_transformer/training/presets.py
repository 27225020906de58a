# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Presets: defaults of a training without a recipe, chosen by its number of examples.

From 10,000 to 100,000 pairs the preset has the sizes, rates, batches and epochs of Multi30k's fast recipe, from
1,000,000 on the paper's base model. The others lie around and between them.
"""

from argparse import ArgumentParser
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

from .arguments import MERGED, WORKS, BaseDataArguments, replaced_by_model
from .data import read_dataset
from .task import Task


@dataclass(frozen=True)
class Preset:
    """Arguments for trainings with fewer examples than the next preset's `least`."""

    name: str
    least: int
    values: dict[str, Any] = field(default_factory=dict)


def seq2seq_model(width: int, layers: int, heads: int, inner: int, dropout: float) -> dict:
    """Fields of a new encoder-decoder: RK2 in the encoder."""
    sizes = {"layers": layers, "attention_heads": heads, "ffn_dim": inner}
    fields = {f"{stack}_{name}": value for stack in ("encoder", "decoder") for name, value in sizes.items()}
    scheme = {"encoder_solver": "rk2", "encoder_coefficients": "fixed"}
    return {"d_model": width, **fields, **scheme, "dropout": dropout}


def decoder_model(width: int, layers: int, heads: int, inner: int, dropout: float) -> dict:
    """Fields of a new language model: RK2."""
    sizes = {"decoder_layers": layers, "decoder_attention_heads": heads, "decoder_ffn_dim": inner}
    return {"d_model": width, **sizes, "decoder_solver": "rk2", "decoder_coefficients": "fixed", "dropout": dropout}


# Ten evaluations and checkpoints in a run, and a line in the log from the first update on.
WATCHED = {
    **{"eval_strategy": "steps", "eval_steps": 0.1, "save_strategy": "steps", "save_steps": 0.1},
    **{"save_total_limit": 1, "load_best_model_at_end": True},
    **{"logging_first_step": True, "logging_steps": 50, "report_to": "none"},
}
# The decay to zero takes the place of averaged checkpoints.
MUON = {
    **{"optim": "muon", "muon_learning_rate": 0.006, "learning_rate": 0.003, "adam_beta2": 0.98},
    **{"lr_scheduler_type": "linear", "warmup_steps": 0.1, "bf16": True, "tf32": True},
}
SEQ2SEQ = {
    **{**WATCHED, **MUON, "label_smoothing_factor": 0.1, "tokenizer_options": {"hard_vocab_limit": False}},
    **{"predict_with_generate": True, "generation_num_beams": 1, "num_beams": 4, "length_penalty": 0.6},
    "per_device_eval_batch_size": 64,
}
NO_HISTORY = {"layer_history": "none"}
WIDE = {"muon_learning_rate": 0.004, "max_tokens_per_batch": 8192, "num_train_epochs": 8}
PRESETS = {
    "seq2seq": (
        Preset(
            "tiny",
            0,
            {
                **{**SEQ2SEQ, "config_overrides": seq2seq_model(128, 2, 4, 512, 0.3), "vocab_size": 2000},
                **{"max_tokens_per_batch": 1500, "num_train_epochs": 30},
            },
        ),
        Preset(
            "small",
            10_000,
            {
                **{**SEQ2SEQ, "vocab_size": 8000, "max_tokens_per_batch": 2700, "num_train_epochs": 6},
                "config_overrides": seq2seq_model(256, 3, 4, 1024, 0.1) | NO_HISTORY,
            },
        ),
        Preset(
            "medium",
            100_000,
            {
                **{**SEQ2SEQ, **WIDE, "vocab_size": 10_000},
                "config_overrides": seq2seq_model(512, 6, 4, 1024, 0.1) | NO_HISTORY,
            },
        ),
        Preset(
            "base",
            1_000_000,
            {
                **{**SEQ2SEQ, **WIDE, "config_overrides": seq2seq_model(512, 6, 8, 2048, 0.1), "vocab_size": 32_000},
                "gradient_accumulation_steps": 8,
            },
        ),
    ),
    "language model": tuple(
        Preset(
            name,
            least,
            {
                **{**WATCHED, **MUON, "metric_for_best_model": "perplexity", "per_device_eval_batch_size": 32},
                **{"tokenizer_options": {"hard_vocab_limit": False}, "config_overrides": model},
                **{"per_device_train_batch_size": batch, "num_train_epochs": epochs},
            },
        )
        for name, least, model, batch, epochs in (
            ("tiny", 0, decoder_model(128, 2, 4, 512, 0.3), 16, 10),
            ("small", 10_000, decoder_model(512, 1, 8, 2048, 0.1), 32, 3),
            ("base", 200_000, decoder_model(512, 6, 8, 2048, 0.1), 32, 5),
        )
    ),
    # Rate, batches and epochs are CSAODE's without a preset.
    "classification": (
        Preset(
            "paper",
            0,
            {
                **{"eval_strategy": "epoch", "save_strategy": "epoch", "save_total_limit": 1, "bf16": True},
                **{"load_best_model_at_end": True, "metric_for_best_model": "accuracy", "logging_strategy": "epoch"},
                **{"tf32": True, "report_to": "none", "train_sampling_strategy": "group_by_length"},
            },
        ),
    ),
}
PAIRED = (("eval_strategy", "save_strategy"), ("eval_steps", "save_steps"))
# Values for new models only.
OF_NEW_MODELS = ("vocab_size", "tokenizer_options", "num_train_epochs", "optim", "muon_learning_rate", "learning_rate")
EVALUATION = ("eval_strategy", "eval_steps", "load_best_model_at_end", "metric_for_best_model")
# What the log tells of a preset.
TOLD = ("d_model", "encoder_layers", "decoder_layers", "encoder_solver", "decoder_solver", "vocab_size")
TOLD += ("max_tokens_per_batch", "per_device_train_batch_size", "num_train_epochs", "optim", "muon_learning_rate")
NONE = "none"
# What counts as the number of a pipe's examples.
OF_A_PIPE = 10_000


def preset_of(argv: list[str]) -> tuple[str | None, list[str]]:
    """Returns the preset that a command line names, if any, and the other arguments."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--preset")
    asked, rest = parser.parse_known_args(argv)
    return asked.preset, rest


def preset_values(task: Task, name: str | None, given: dict) -> tuple[dict, list[str]]:
    """Returns arguments that the command line leaves open, and lines about them for the log.

    Args:
        task: The task of the training.
        name: Name of the preset; "none" for no arguments; None to choose by the number of examples.
        given: The arguments of the command line.

    Raises:
        ValueError: no preset has that name, the data are malformed, or another optimizer has no learning rate.
        FileNotFoundError: a file does not exist.
    """
    presets = PRESETS[task.presets]
    names = [preset.name for preset in presets]
    if name not in (None, NONE, *names):
        raise ValueError(f"--preset {name} is unknown: choose {', '.join(names)} or {NONE}.")
    known = task.data_arguments.__dataclass_fields__
    data_args = task.data_arguments(**{each: value for each, value in given.items() if each in known})
    is_told = any(given.get(work) for work in WORKS)
    is_training = has_data(data_args, "train") and given.get("do_train", not is_told)
    if name == NONE or not is_training:
        return {}, []
    if name is None:
        count = count_examples(task, data_args, presets[-1].least)
        chosen = [each for each in presets if each.least <= count][-1]
    else:
        chosen = presets[names.index(name)]
    values = {**chosen.values, **task.preset_values}
    if "optim" in values and given.get("optim", "muon") != "muon" and "learning_rate" not in given:
        raise ValueError(
            f"--optim {given['optim']}: the preset's rates and epochs are for muon. Give --learning_rate, and perhaps "
            "--num_train_epochs, too."
        )
    has = {split: has_data(data_args, split) for split in ("validation", "test")}
    if not is_told:
        values |= {"do_train": True, "do_eval": has["validation"], "do_predict": has["test"]}
    is_evaluated = has["validation"] and given.get("do_eval") is not False
    left_out = {*given} - {*MERGED} | unfit(given, is_evaluated)
    # Evaluations and checkpoints go together: the best checkpoint is one that was evaluated.
    for one, other in chain.from_iterable((pair, pair[::-1]) for pair in PAIRED):
        if given.get(one) not in (None, "no", "best") and other not in given:
            values[other] = given[one]
    # The last ones are kept beside the best one.
    values["save_total_limit"] = given.get("average_last_checkpoints", 0) + 1
    values = {each: value for each, value in values.items() if each not in left_out}
    return values, describe(chosen, values, is_evaluated)


def unfit(given: dict, is_evaluated: bool) -> set[str]:
    """The arguments of a preset that do not go with those of the command line."""
    found = replaced_by_model({}, given)
    if given.get("model_name_or_path"):
        found |= {*OF_NEW_MODELS}
    if "per_device_train_batch_size" in given or given.get("train_sampling_strategy") == "group_by_length":
        found.add("max_tokens_per_batch")
    if not is_evaluated:
        found |= {*EVALUATION}
    elif "no" in (given.get("eval_strategy"), given.get("save_strategy")):
        found.add("load_best_model_at_end")
    return found


def count_examples(task: Task, data_args: BaseDataArguments, most: int) -> int:
    """The number of training examples, or of lines of a language model's text, counted up to `most`; for a pipe, which
    can be read only once, `OF_A_PIPE`."""
    if any(path.exists() and not (path.is_file() or path.is_dir()) for path in data_args.files("train")):
        return OF_A_PIPE
    examples = task.read_split(data_args, "train")
    return sum(1 for _ in islice(getattr(examples, "labels", examples) or (), most))


def has_data(data_args: BaseDataArguments, split: str) -> bool:
    """Whether the arguments say where the examples of "train", "validation" or "test" come from."""
    if data_args.files(split):
        return True
    if getattr(data_args, f"{split}_size", 0) or (split == "test" and data_args.cross_validation):
        return True
    if not data_args.dataset_name:
        return False
    try:
        read_dataset(data_args, split)
    except ValueError:
        return False
    return True


def describe(chosen: Preset, values: dict, is_evaluated: bool) -> list[str]:
    """Lines for the log: which preset was chosen, and what it sets."""
    known = {**values, **values.get("config_overrides", {})}
    listed = ", ".join(f"{option} {known[option]}" for option in TOLD if option in known)
    lines = [
        f"Preset {chosen.name} (from {chosen.least:,} training examples on)" + (f": {listed}" if listed else ""),
        f"Options override the preset; --preset {NONE} turns it off. All values are in arguments.json",
    ]
    if not is_evaluated:
        lines.append(
            "No validation data (--validation): there are no scores during training, and no best checkpoint is chosen"
        )
    return lines
