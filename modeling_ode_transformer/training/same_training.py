# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""What a run is, and whether two runs are the same.

A run notes in its output folder what it is (`run_arguments`): its options, and the content of its files. Each option
declares what it affects (`options.AFFECTS`). `differences` compares two runs in what affects the question at hand: may
one continue from a checkpoint of the other, are the metrics those of the other, did both hold out the same examples?
"""

import json
import re
from datetime import date
from functools import cache
from pathlib import Path

from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from transformers import TrainingArguments

from ..model_folders import file_note, source_note
from ..options import declarations
from ..versions import versions
from . import TASKS, find_task
from .arguments import AFFECTED_BY_TRAINER, BaseDataArguments, BaseModelArguments, needed_splits
from .data import read_dataset
from .records import held_out, split_sources, without_idle


# The key, in a note of the data, of training files that are also validation files: each part is used for one of them.
SHARED = "training and validation"
# The arguments that name a model or a tokenizer, and those that name other files of which a model is made. Runs are
# compared by what is in them.
MODELS = ("model_name_or_path", "config_name", "tokenizer_name", "target_tokenizer_name", "teacher")
SOURCES = (*MODELS, "import_schemes", "word_vectors")


def data_note(data_args: BaseDataArguments, args: TrainingArguments) -> dict[str, list[dict]]:
    """What the data of a run are, by split: a `file_note` of each file, or the fingerprint of a dataset of the Hub.
    Where a part of the validation data is trained on, SHARED has the training files that are validation files, too."""
    note = {}
    needed = {split for split, is_needed in needed_splits(args).items() if is_needed}
    holds_out = {split for split in needed if held_out(vars(data_args), split)}
    for split in needed - holds_out | ({"train"} if holds_out else set()):
        note[split] = [file_note(path) for path in data_args.files(split)]
        if note[split] or not (dataset := data_args.dataset_name):
            continue
        config = f" ({data_args.dataset_config_name})" if data_args.dataset_config_name else ""
        if Path(dataset).is_dir():
            # The fingerprint of a folder is of when its files were changed.
            found, output_dir = sorted(Path(dataset).rglob("*")), Path(args.output_dir).resolve()
            found = [path for path in found if path.is_file() and not path.resolve().is_relative_to(output_dir)]
            note[split] = [file_note(path, f"{path.relative_to(dataset)}{config}") for path in found]
        else:
            note[split] = [{"name": dataset + config, "fingerprint": read_dataset(data_args, split)._fingerprint}]
    if args.do_train and getattr(data_args, "validation_share", None):
        validation = {path.resolve() for path in data_args.files("validation")}
        note[SHARED] = [file_note(path) for path in data_args.files("train") if path.resolve() in validation]
    return note


def shared_data_note(data_args: BaseDataArguments, args: TrainingArguments) -> dict[str, list[dict]]:
    """`data_note` of the first process: files are read once, not by each process."""
    return broadcast_object_list([data_note(data_args, args) if PartialState().is_main_process else None])[0]


def run_arguments(
    task: str, model_args: BaseModelArguments, data_args: BaseDataArguments, args: TrainingArguments
) -> dict:
    """What a run is, as JSON has it: its task, arguments, number of processes, versions and date. `files` and
    `sources` say what is in the files that the arguments name. `folders` are the names of models and datasets that are
    folders of the machine, which cards do not show whole."""
    given = {name: value for name in SOURCES if (value := getattr(model_args, name, None))}
    names = [*(given.get(name) for name in ("model_name_or_path", "teacher")), data_args.dataset_name]
    known = args.__dataclass_fields__
    arguments = {
        "task": task,
        "model": vars(model_args),
        "data": vars(data_args),
        "files": shared_data_note(data_args, args),
        "sources": {
            name: [source_note(each) for each in value] if isinstance(value, list) else source_note(value)
            for name, value in given.items()
        },
        "folders": [name for name in names if name and Path(name).is_dir()],
        # Beside its fields, it has numbers that follow from them.
        "training": {name: value for name, value in args.to_sanitized_dict().items() if name in known},
        "processes": args.world_size,
        "versions": versions(),
        "date": date.today().isoformat(),
    }
    return json.loads(json.dumps(arguments, default=str))


@cache
def declared() -> dict[str, str]:
    """What the options of all tasks affect, by name, where they declare it."""
    found = {}
    for task in map(find_task, TASKS):
        for owner in (task.model_arguments, task.data_arguments, task.training_arguments):
            found |= {name: each["affects"] for name, each in declarations(owner).items() if "affects" in each}
    return found


def affected_by(name: str) -> str:
    """What an option affects, one of `options.AFFECTS`; a training, if nothing says what."""
    of_trainer = (affected for affected, pattern in AFFECTED_BY_TRAINER.items() if re.fullmatch(pattern, name))
    return declared().get(name) or next(of_trainer, "training")


def training_data(data: dict) -> dict:
    """The data arguments that a training depends on; of files, only the names. Where a part of the validation data is
    trained on, that is training data, too."""
    values = {name: value for name, value in data.items() if affected_by(name) in ("training", "examples")}
    files = split_sources(data, "train") + (split_sources(data, "validation") if data.get("validation_share") else [])
    return values | {"held out": held_out(data, "validation") | held_out(data, "test"), "training data": files}


def differences(noted: dict, asked: dict, *affected: str) -> list[str]:
    """What makes a run another one than the noted one, in words: options that both have, and the content of files.

    Args:
        noted: What an output folder notes of a run, as `run_arguments` returns it, or a part of it.
        asked: The run that is asked for.
        affected: What counts, of `options.AFFECTS`. "examples", "validation" and "test" stand for the files of their
            splits as well.
    """
    runs, (old, new) = (noted, asked), ({}, {})
    for kind in ("model", "data", "training"):
        both = noted.get(kind, {}).keys() & asked.get(kind, {}).keys()
        for values, run in zip((old, new), runs):
            given = run.get(kind, {}) | run.get("sources", {})
            values |= {name: given[name] for name in both if affected_by(name) in affected}
    old, new = without_idle(old), without_idle(new)
    splits = {"train": "examples", "validation": "validation", "test": "test"}
    if asked.get("data", {}).get("validation_share"):
        splits |= {"validation": "examples", SHARED: "examples"}
    both = noted.get("files", {}).keys() & asked.get("files", {}).keys()
    for values, run in zip((old, new), runs):
        if accumulated := values.pop("gradient_accumulation_steps", None):
            # As many batches to an update may come from other numbers of processes.
            values["processes x gradient_accumulation_steps"] = run["processes"] * accumulated
        for split in (split for split in splits if split in both and splits[split] in affected):
            files = enumerate(run["files"][split], 1)
            values |= {f"{split} file {number}": ", ".join(map(str, file.values())) for number, file in files}
    return [
        f"{name}={new.get(name)!r} in place of {old.get(name)!r}"
        for name in sorted(old.keys() | new.keys())
        if new.get(name) != old.get(name)
    ]


def model_differences(noted: dict, asked: dict) -> list[str]:
    """`differences` of the models of two runs."""
    return differences({name: noted.get(name, {}) for name in ("model", "sources")}, asked, "training")
