# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""A run's output folder: permission to write there, the checkpoint to resume from, and the record of the run."""

import logging
import shutil
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from accelerate import PartialState
from transformers import TrainingArguments
from transformers.utils import CONFIG_NAME

from ..text_files import read_json
from ..texts_ode_transformer import TARGET_TOKENIZER
from .arguments import needed_splits
from .checkpoints import (
    LOCK,
    OUTPUTS,
    TEMPORARY,
    TRAINER_STATE,
    check_resumable,
    incomplete_reason,
    last_complete_checkpoint,
    locked_folder,
    numbered_checkpoints,
    remove_checkpoint,
    remove_leftovers,
    write_json,
)
from .records import ARGUMENTS, EVALUATION, PREFIXES, RESULTS, held_out
from .same_training import MODELS, differences, model_differences


logger = logging.getLogger(__name__)

# Patterns of what else stands for a model, which a new training would belie until its end.
MODEL = (CONFIG_NAME, "generation_config.json", "model*.safetensors*", "pytorch_model*.bin*", "training_args.bin")
MODEL += (TRAINER_STATE, EVALUATION)


def locked_run(args: TrainingArguments) -> AbstractContextManager:
    """Within the context, no other training can write to the output folder; ValueError if one does."""
    is_locking = args.do_train and args.process_index == 0
    return locked_folder(args.output_dir) if is_locking else nullcontext()


def checkpoint_for_run(arguments: dict, args: TrainingArguments) -> str | None:
    """Returns the checkpoint to resume a training from: the named one, the last complete one in the output folder, or
    none. Writes nothing.

    Args:
        arguments: The result of `run_arguments`.
        args: The training arguments.

    Raises:
        FileNotFoundError: the named checkpoint does not exist.
        ValueError: the checkpoint cannot be resumed; the output folder holds something else, another training, newer
            checkpoints than the named one, or metrics of another model; named files would be deleted; or the model
            was trained on examples to be tested on.
    """
    folder, asked, checkpoint = Path(args.output_dir), args.resume_from_checkpoint, None
    if not args.do_train:
        check_evaluation(folder, arguments)
    elif arguments["data"]["overwrite_output_dir"]:
        check_deletion(folder, arguments["model"], asked)
    elif checkpoint := checkpoint_to_resume(folder, asked):
        check_resumable(checkpoint)
        check_same_training(checkpoint, arguments, is_asked=checkpoint == asked)
    # Every process must look before another one writes.
    PartialState().wait_for_everyone()
    return checkpoint


def noted_run(folder: Path) -> dict:
    """What is noted of the training in a folder, or of the evaluation alone."""
    found = [folder / name for name in (ARGUMENTS, EVALUATION) if (folder / name).is_file()]
    return read_json(found[0]) if found else {}


def is_own_folder(folder: Path, arguments: dict) -> bool:
    """Whether a run evaluates the model in the folder."""
    return Path(arguments["model"]["model_name_or_path"]).resolve() == folder.resolve()


def check_evaluation(folder: Path, arguments: dict) -> None:
    """Raises a ValueError if the folder has another trained model than that of `arguments`, or if its model was
    trained on examples that they hold out."""
    noted, model = noted_run(folder), arguments["model"]["model_name_or_path"]
    if not is_own_folder(folder, arguments):
        if (folder / ARGUMENTS).is_file():
            raise ValueError(
                f"--output_dir {folder} holds another trained model and its metrics, not {model}: choose another."
            )
    elif any(held_out(arguments["data"], split) for split in PREFIXES):
        if different := differences(noted, arguments, "examples"):
            raise ValueError(
                f"{folder} was trained on examples that this call holds out: this call has {'; '.join(different)}. "
                "Give that training's options, or another --output_dir."
            )


def check_deletion(folder: Path, model: dict, checkpoint: str | bool | None) -> None:
    """Raises a ValueError if a training would start from a checkpoint or files in the folder that it replaces."""
    paths = {name: Path(model[name]) for name in MODELS if model.get(name)}
    needed = {name: path for name, path in paths.items() if path.resolve().is_relative_to(folder.resolve())}
    needed = {name: path for name, path in needed.items() if path.exists()} | {"resume_from_checkpoint": checkpoint}
    if deleted := [f"--{name} {value}" for name, value in needed.items() if value]:
        raise ValueError(
            f"--overwrite_output_dir would delete what {' and '.join(deleted)} needs: leave one of them out."
        )


def checkpoint_to_resume(folder: Path, asked: str | bool | None) -> str | None:
    """Returns the named checkpoint, otherwise the last complete one of the folder. None if the training starts anew,
    also after a stop before its first checkpoint.

    Raises:
        FileNotFoundError: the named checkpoint does not exist.
        ValueError: the folder has newer checkpoints, those of another training, or something else.
    """
    if asked and str(asked).lower() != "true":
        asked = str(asked)
        if not Path(asked).is_dir():
            raise FileNotFoundError(f"--resume_from_checkpoint: no folder {asked}.")
        kept = [path.resolve() for path in numbered_checkpoints(folder)]
        known = Path(asked).resolve() in kept
        others = kept[kept.index(Path(asked).resolve()) + 1 :] if known else kept
        if others := [path.name for path in others if incomplete_reason(path) is None]:
            raise ValueError(
                f"--resume_from_checkpoint {asked}: {folder} holds {'newer' if known else 'other'} checkpoints "
                f"({', '.join(others)}). The resumed training would mix its own with them. Leave it out to continue "
                "from them, or give another --output_dir."
            )
        return asked
    if last := last_complete_checkpoint(folder):
        logger.warning("Resuming from %s; --overwrite_output_dir starts from scratch", last)
        return str(last)
    if asked:
        raise FileNotFoundError(f"--resume_from_checkpoint: no checkpoint in {folder}.")
    if folder.is_dir() and any(not path.name.startswith((LOCK, TEMPORARY)) for path in folder.iterdir()):
        if not (folder / ARGUMENTS).is_file() or (folder / "config.json").is_file():
            raise ValueError(
                f"--output_dir {folder} is not empty and holds no checkpoint to resume from: choose another folder, "
                "or give --overwrite_output_dir to write into it."
            )
        logger.warning("The run in %s was stopped before its first checkpoint: starting from the beginning", folder)
    return None


def check_same_training(checkpoint: str, arguments: dict, is_asked: bool) -> None:
    """Raises a ValueError if the checkpoint is another training's; only warns if it was named and the model agrees."""
    file = Path(checkpoint).parent / ARGUMENTS
    noted = read_json(file) if file.is_file() else {}
    if not (different := "; ".join(differences(noted, arguments, "training", "examples"))):
        return
    is_other_model = bool(model_differences(noted, arguments))
    if is_asked and not is_other_model:
        logger.warning("Resuming from %s with other arguments: %s", checkpoint, different)
        return
    can_go_on = "" if is_other_model else f", or continue it with --resume_from_checkpoint {checkpoint}"
    advice = f"Choose another --output_dir, or start from scratch with --overwrite_output_dir{can_go_on}."
    if is_asked:
        advice = "Leave out --resume_from_checkpoint to train this one."
    raise ValueError(f"{checkpoint} belongs to another training: this one has {different}. {advice}")


def note_run(arguments: dict, args: TrainingArguments) -> None:
    """Records the run in the output folder before it writes anything else; model cards are made from the record.

    An evaluation is added to the record of its model's training, or in another folder to that of earlier evaluations
    of the model. Metrics that the run will replace are deleted; a training or another model replaces all of them. If
    asked for, the model of an earlier training, its checkpoints, target tokenizers, metrics and outputs are deleted
    too.

    Args:
        arguments: The result of `run_arguments`.
        args: The training arguments.
    """
    folder = Path(args.output_dir)
    noted_file, results_file = folder / ARGUMENTS, folder / RESULTS
    splits = [split for split, is_needed in needed_splits(args).items() if is_needed]
    if not args.should_save or not splits:
        return
    if args.do_train:
        if arguments["data"]["overwrite_output_dir"]:
            for stale in numbered_checkpoints(folder):
                remove_checkpoint(stale)
            for stale in folder.glob(TARGET_TOKENIZER):
                shutil.rmtree(stale)
            for stale in {path for pattern in (*OUTPUTS, *MODEL) for path in folder.glob(pattern)}:
                stale.unlink()
        remove_leftovers(folder)
        folder.mkdir(parents=True, exist_ok=True)
        results_file.unlink(missing_ok=True)
    else:
        noted, data = noted_run(folder), arguments["data"] | {name: arguments[name] for name in ("files", "folders")}
        if not noted_file.is_file():
            noted_file = folder / EVALUATION
            if not is_own_folder(folder, arguments) and (not noted or model_differences(noted, arguments)):
                noted = {}
                results_file.unlink(missing_ok=True)
            folder.mkdir(parents=True, exist_ok=True)
            noted |= {name: arguments[name] for name in ("task", "versions", "date", "model", "sources")}
        arguments = noted | {"evaluated": noted.get("evaluated", {}) | dict.fromkeys(splits, data)}
        if results_file.is_file():
            old = tuple(f"{PREFIXES[split]}_" for split in splits)
            results = {name: value for name, value in read_json(results_file).items() if not name.startswith(old)}
            write_json(results_file, results, indent=4, sort_keys=True)
    write_json(noted_file, arguments)


def note_metrics(folder: Path, split: str, metrics: dict) -> None:
    """Writes the metrics of a split, and adds them to those of the others."""
    results = read_json(folder / RESULTS) if (folder / RESULTS).is_file() else {}
    for name, values in ((f"{split}_results.json", metrics), (RESULTS, results | metrics)):
        write_json(folder / name, values, indent=4, sort_keys=True)
