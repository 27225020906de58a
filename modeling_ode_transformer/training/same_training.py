# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""What a run is, and whether two runs are the same training.

A run notes in its output folder what it is (`run_arguments`). `different_training` compares a noted run with one that
is asked for. What counts as different depends on the question; a table of views says it for each:

- `TRAINING`: may one continue from a checkpoint of the other?
- `RESULT`: are the metrics of the other those that the one would get?
- `HELD_OUT`: did the other hold out the same examples?
- `measurement(split)`: is a split of the one measured as that of the other was?
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from datetime import date
from functools import cache, lru_cache, partial
from pathlib import Path

from accelerate import PartialState
from accelerate.utils import gather_object
from transformers import TrainingArguments

from ..options import declarations
from ..text_files import parse_overrides
from ..versions import versions
from .arguments import AFFECTED_BY_TRAINER, MERGED, BaseDataArguments, BaseModelArguments, needed_splits
from .data import read_dataset
from .records import held_out, split_sources, without_idle


# The key, in a note of the data, of training files that are also validation files: each part is used for one of them.
SHARED = "training and validation"

# What is compared of the noted run and of the one asked for.
Views = Mapping[str, Callable[[dict, dict], tuple[dict, ...]]]


@lru_cache
def file_hash(path: Path, *state) -> str:
    """A hash of what is in a file, whose `state` says whether it is still the same."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def state_of(path: Path) -> tuple[int, int]:
    """A file's size in bytes and its modification time, which tell whether it has changed."""
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns


def data_note(data_args: BaseDataArguments, args: TrainingArguments) -> dict[str, list[dict]]:
    """What the data of a training are, by split: of each file its name, size and hash, of a dataset of the Hub its
    fingerprint. A pipe can be read only once, and is left out. Where a part of the validation data is trained on,
    SHARED has the training files that are validation files, too."""
    note = {}
    for split, needed in needed_splits(args).items():
        if not (needed and args.do_train):
            continue
        files = {path: path.name for path in data_args.files(split)}
        if not files and data_args.dataset_name and not held_out(vars(data_args), split):
            folder = Path(data_args.dataset_name)
            if not folder.is_dir():
                fingerprint = read_dataset(data_args, split)._fingerprint
                note[split] = [{"name": data_args.dataset_name, "fingerprint": fingerprint}]
                continue
            # The fingerprint of a folder is of when its files were changed.
            output_dir = Path(args.output_dir).resolve()
            found = [path for path in sorted(folder.rglob("*")) if not path.resolve().is_relative_to(output_dir)]
            files = {path: str(path.relative_to(folder)) for path in found}
        note[split] = file_notes(files)
    if args.do_train and getattr(data_args, "validation_share", None):
        validation = {path.resolve() for path in data_args.files("validation")}
        shared = [path for path in data_args.files("train") if path.resolve() in validation]
        note[SHARED] = file_notes({path: path.name for path in shared})
    return note


def file_notes(names: dict[Path, str]) -> list[dict]:
    """Name, size and hash of each regular file.

    Args:
        names: What the files are called in the note.
    """
    states = {path: state_of(path) for path in names if path.is_file()}
    return [
        {"name": names[path], "size": state[0], "blake2b": file_hash(path, *state)} for path, state in states.items()
    ]


def teacher_note(name: str) -> str:
    """The name of a model and, if it is a folder, a hash of each file of its weights."""
    hashes = [file_hash(path, *state_of(path)) for path in sorted(Path(name).glob("*.safetensors"))]
    return f"{Path(name).name} ({', '.join(hashes)})" if hashes else name


def shared_data_note(data_args: BaseDataArguments, args: TrainingArguments) -> dict[str, list[dict]]:
    """`data_note` of one process, or, where nodes have files of their own, of each node's first one: files are read
    once, not by each process."""
    state, is_local = PartialState(), getattr(data_args, "local_data", False)
    reads = state.is_local_main_process if is_local else state.is_main_process
    notes = gather_object([data_note(data_args, args) if reads else None])
    return notes[state.process_index - state.local_process_index if is_local else 0]


def run_arguments(
    task: str, model_args: BaseModelArguments, data_args: BaseDataArguments, args: TrainingArguments
) -> dict:
    """What a run is: its task, arguments, data, number of processes, versions and date, as JSON has them. `folders`
    are the names of models and datasets that are folders of the machine, which cards do not show whole."""
    imported = [Path(path) for path in model_args.import_schemes or []]
    teacher = getattr(model_args, "teacher", None)
    names = [model_args.model_name_or_path, data_args.dataset_name, teacher]
    known = args.__dataclass_fields__
    arguments = {
        "task": task,
        "model": vars(model_args),
        "data": vars(data_args),
        "files": shared_data_note(data_args, args),
        "folders": [name for name in names if name and Path(name).is_dir()],
        "imports": [f"{path.name} ({file_hash(path, *state_of(path))})" for path in imported],
        "teacher": teacher and teacher_note(teacher),
        # Beside its fields, it has numbers that follow from them.
        "training": {name: value for name, value in args.to_sanitized_dict().items() if name in known},
        "processes": args.world_size,
        "versions": versions(),
        "date": date.today().isoformat(),
    }
    return json.loads(json.dumps(arguments, default=str))


@cache
def declared(kind: str) -> dict[str, str]:
    """What the arguments of a kind ("model", "data" or "training") affect, by name, as all tasks declare them."""
    from .help import TASKS, find_task

    found = {}
    for task in map(find_task, TASKS):
        own = declarations(getattr(task, f"{kind}_arguments"))
        found |= {name: metadata["affects"] for name, metadata in own.items() if "affects" in metadata}
    return found


def affected_by(kind: str, name: str) -> str:
    """What an argument affects, one of `options.AFFECTS`; a training, if nothing says what."""
    patterns = AFFECTED_BY_TRAINER if kind == "training" else {}
    of_trainer = (affected for affected, pattern in patterns.items() if re.fullmatch(pattern, name))
    return declared(kind).get(name) or next(of_trainer, "training")


def arguments_for(kind: str, values: dict, *affected: str) -> dict:
    """Those of the arguments of a kind that affect one of these, by name."""
    return {name: value for name, value in values.items() if affected_by(kind, name) in affected}


def training_data(data: dict) -> dict:
    """The data arguments that a training depends on; of files, only the names. Where a part of the validation data is
    trained on, that is training data, too."""
    values = arguments_for("data", data, "training", "examples")
    files = split_sources(data, "train") + (split_sources(data, "validation") if data.get("validation_share") else [])
    return values | {"held out": held_out(data, "validation") | held_out(data, "test"), "training data": files}


def training_model(model: dict) -> dict:
    """The model arguments that a training depends on; of files and folders, only the names."""
    values = arguments_for("model", model, "training")
    for name in MERGED:
        values[name] = parse_overrides(values.get(name))
    if values.get("joint_tokenizer"):
        values.pop("target_vocab_size", None)
    return {name: Path(value).name if isinstance(value, str) else value for name, value in values.items()}


def is_of_the_hub(name: str | None) -> bool:
    """Whether it is OWNER/NAME, and no folder."""
    return bool(name and re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name)) and not Path(name).exists()


def training_models(noted: dict, asked: dict) -> tuple[dict, ...]:
    """What trainings depend on of the models of two runs."""
    old, new = (training_model(run.get("model", {})) for run in (noted, asked))
    starts = [run.get("model", {}).get("model_name_or_path") for run in (noted, asked)]
    if all(map(is_of_the_hub, starts)):
        old["model_name_or_path"], new["model_name_or_path"] = starts
    return with_schemes(noted, asked, old, new)


def with_schemes(noted: dict, asked: dict, old: dict, new: dict) -> tuple[dict, ...]:
    """The model arguments of two runs, with the files of schemes and the teacher by name and content."""
    return tuple(
        values | {"import_schemes": run.get("imports"), "teacher": run.get("teacher")}
        for values, run in ((old, noted), (new, asked))
    )


def training_datasets(noted: dict, asked: dict) -> tuple[dict, ...]:
    """What trainings depend on of the data arguments that both runs have."""
    old, new = (training_data(run.get("data", {})) for run in (noted, asked))
    return {name: old[name] for name in old.keys() & new.keys()}, {name: new[name] for name in old.keys() & new.keys()}


def trainer_arguments(noted: dict, asked: dict) -> tuple[dict, ...]:
    """What trainings depend on of the arguments for `Trainer` that both runs have."""
    both = noted.get("training", {}).keys() & asked.get("training", {}).keys()
    runs = [{name: run["training"][name] for name in both} for run in (noted, asked)] if both else [{}, {}]
    old, new = (arguments_for("training", without_idle(values), "training") for values in runs)
    for values, run in ((old, noted), (new, asked)):
        # As many batches to an update may come from other numbers of processes.
        accumulated = values.pop("gradient_accumulation_steps", 1)
        values["processes x gradient_accumulation_steps"] = run.get("processes", 1) * accumulated
    return old, new


def result_arguments(kind: str, noted: dict, asked: dict) -> tuple[dict, ...]:
    """The arguments of a kind, as the run asked for has them, that a result depends on."""
    names = [name for name in asked[kind] if affected_by(kind, name) != "call"]
    return tuple({name: run[kind].get(name) for name in names} for run in (noted, asked))


def result_models(noted: dict, asked: dict) -> tuple[dict, ...]:
    """The model arguments that a result depends on."""
    return with_schemes(noted, asked, *result_arguments("model", noted, asked))


def held_out_examples(noted: dict, asked: dict) -> tuple[dict, ...]:
    """What decides which examples two runs hold out."""
    old, new = (training_data(run["data"]) for run in (noted, asked))
    names = ["training data", "held out", *arguments_for("data", new, "examples")]
    return tuple({name: values.get(name) for name in names} for values in (old, new))


def measured_data(split: str, noted: dict, asked: dict) -> tuple[dict, ...]:
    """The data arguments that the metrics of a split depend on; of files, only the names."""
    names = arguments_for("data", asked["data"], "training", split)
    return tuple(
        {name: run["data"].get(name) for name in names}
        | {f"{split} data": split_sources(run["data"], split), "held out": held_out(run["data"], split)}
        for run in (noted, asked)
    )


TRAINING: Views = {"model": training_models, "data": training_datasets, "training": trainer_arguments}
RESULT: Views = {kind: partial(result_arguments, kind) for kind in ("data", "training")} | {"model": result_models}
HELD_OUT: Views = {"data": held_out_examples}


def measurement(split: str) -> Views:
    """The views by which the metrics of "validation" or "test" are compared."""
    return {"data": partial(measured_data, split)}


def different_training(noted: dict, asked: dict, views: Views = TRAINING) -> dict[str, list[str]]:
    """What makes a run another one than the noted one, in words, by kind: arguments of its model, of its data and for
    `Trainer`, as far as the views show them, and the content of its data.

    Args:
        noted: What the output folder notes of a run, as `run_arguments` returns it.
        asked: The run that is asked for.
        views: What counts, by kind.
    """
    found = {}
    for kind, view in views.items():
        old, new = view(noted, asked)
        found[kind] = [
            f"{name}={new.get(name)!r} in place of {old.get(name)!r}"
            for name in sorted(old.keys() | new.keys())
            if new.get(name) != old.get(name)
        ]
    found["data"] += changed_data(noted, asked)
    return found


def changed_data(noted: dict, asked: dict) -> list[str]:
    """The files, in words, that a training would read with another content than the noted one had."""
    found = []
    splits = ("train", *(["validation", SHARED] if asked.get("data", {}).get("validation_share") else []))
    for split in splits:
        old, new = (each.get("files", {}).get(split) for each in (noted, asked))
        if old is None or new is None:
            continue
        names = [[each["name"] for each in files] for files in (old, new)]
        if names[0] != names[1]:
            changed = sorted(set(names[0]) ^ set(names[1])) or names[1]
            found.append(f"other files of {split} data ({', '.join(changed)})")
            continue
        for before, now in zip(old, new):
            if before != now:
                sizes = f"{now['size']} bytes in place of {before['size']}" if "size" in now else "by its fingerprint"
                found.append(f"another content of {now['name']} ({sizes})")
    return found
