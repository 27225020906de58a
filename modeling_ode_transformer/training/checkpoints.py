# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The folders of a training run: locking them, writing records, and listing, checking and removing checkpoints."""

import json
import logging
import re
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from transformers import PreTrainedConfig
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from transformers.utils import CONFIG_NAME

from ..text_files import lock_file, read_json, reading
from ..texts_ode_transformer import TRAINED_LENGTH


logger = logging.getLogger(__name__)

TRAINER_STATE = "trainer_state.json"
# The state of `resumption.Progress`, which is written first.
PROGRESS = "progress.json"
# The checksums of a checkpoint's files by their paths in it, which are noted last.
CHECKSUMS = "checksums.json"
# Patterns of the states of optimizers, which a checkpoint of weights alone lacks.
OPTIMIZERS = ("optimizer*", "global_step*")
# Fields of a configuration that may change for the same model: Trainer sets special tokens, a dtype, a cache, and
# data their longest source.
NOT_OF_THE_MODEL = {"transformers_version", "_name_or_path", "architectures", "auto_map", "dtype", "use_cache"}
NOT_OF_THE_MODEL |= {TRAINED_LENGTH}
# Patterns of metrics and outputs, which a run writes about its model.
OUTPUTS = ("*_results.json", "*predictions.txt")
CHECKPOINT = re.compile(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)")
# A killed run may leave folders and files whose names begin so. No reader takes them for checkpoints, and Trainer's
# uploads skip names that begin with an underscore.
TEMPORARY = "_temporary_"
# The file that locks an output folder, named so for the same reason.
LOCK = "_training.lock"
# The folders that this process has locked.
LOCKED: set[Path] = set()


@contextmanager
def locked_folder(folder: str | Path):
    """Within the context, no other process can lock the folder, which is made if it does not exist. Contexts may nest.

    The lock ends with the process, however that ends. A new folder that stays empty is removed again.

    Raises:
        ValueError: another process has locked it.
    """
    folder = Path(folder).resolve()
    if folder in LOCKED:
        yield
        return
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    refusal = f"Another training is writing to {folder}: wait until it ends, or choose another --output_dir."
    try:
        with lock_file(folder / LOCK, refusal):
            LOCKED.add(folder)
            yield
    finally:
        LOCKED.discard(folder)
        with suppress(OSError):
            for path in made:
                path.rmdir()


def numbered_checkpoints(output_dir: str | Path) -> list[Path]:
    """Returns the `checkpoint-*` folders of a training run by their updates, oldest first."""
    folders = [path for path in Path(output_dir).glob("*") if path.is_dir() and CHECKPOINT.fullmatch(path.name)]
    return sorted(folders, key=update_number)


def update_number(checkpoint: Path) -> int:
    """The number of updates in the name of a `checkpoint-*` folder."""
    return int(CHECKPOINT.fullmatch(checkpoint.name)[1])


def delete(path: Path) -> None:
    """Deletes a file or a folder; of a link to one, the link."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def write_json(file: Path, values: dict, indent: int = 1, **options) -> None:
    """Writes a JSON file, with options of `json.dumps`. A kill or a full disk leaves what was there."""
    unfinished = file.with_name(f"{TEMPORARY}{file.name}")
    unfinished.write_text(json.dumps(values, indent=indent, **options) + "\n", encoding="utf-8")
    unfinished.replace(file)


def remove_checkpoint(checkpoint: Path) -> None:
    """Deletes a checkpoint folder. It is renamed first, so that a kill leaves no checkpoint that lacks files."""
    removed = checkpoint.with_name(f"{TEMPORARY}{checkpoint.name}")
    if removed.is_dir() or removed.is_symlink():
        delete(removed)
    checkpoint.rename(removed)
    delete(removed)


def remove_leftovers(output_dir: str | Path) -> None:
    """Deletes the temporary folders and files that a killed training left in its output folder."""
    for path in Path(output_dir).glob(f"{TEMPORARY}*"):
        delete(path)


def rotate_checkpoints(
    output_dir: str | Path, save_total_limit: int | None, best_model_checkpoint: str | None, current: str | Path
) -> None:
    """Removes the oldest checkpoints until `save_total_limit` are left, but never the current and the best one.

    The oldest are those of the fewest updates. Trainer goes by modification times, but copying a folder or restoring a
    backup changes them. Half-written checkpoints are removed first. Then come those of more updates than the current
    one, which are left over from a training that was continued elsewhere.
    """
    remove_leftovers(output_dir)
    if not save_total_limit or save_total_limit < 0:
        return
    checkpoints, current = numbered_checkpoints(output_dir), Path(current)
    kept = {path.resolve() for path in (current, Path(best_model_checkpoint or current))}
    last = update_number(current)
    checkpoints.sort(key=lambda path: (incomplete_reason(path) is None, update_number(path) <= last))
    removable = [path for path in checkpoints if path.resolve() not in kept]
    for path in removable[: max(len(checkpoints) - save_total_limit, 0)]:
        remove_checkpoint(path)


def checksum(file: Path) -> int:
    """The CRC-32 of a file, at more than 1 GB a second."""
    value = 0
    with file.open("rb") as opened:
        while part := opened.read(1 << 20):
            value = zlib.crc32(part, value)
    return value


def note_checksums(checkpoint: Path) -> None:
    """Writes the checksums of a checkpoint's files, when all are there."""
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file() and path.name != CHECKSUMS)
    write_json(checkpoint / CHECKSUMS, {path.relative_to(checkpoint).as_posix(): checksum(path) for path in files})


def incomplete_reason(checkpoint: str | Path) -> str | None:
    """Returns why a checkpoint folder is half-written, for example after a kill; None if all processes have written
    their parts, and no file is missing. One without checksums was killed before these, uploaded during a training, or
    is of Trainer alone: the state is written when a process has written all else."""
    checkpoint = Path(checkpoint)
    if not (checkpoint / TRAINER_STATE).is_file():
        return f"{TRAINER_STATE}, which is written last, is missing"
    if (checkpoint / CHECKSUMS).is_file():
        return missing_file(checkpoint)
    try:
        read_json(checkpoint / TRAINER_STATE)
        noted = read_json(checkpoint / PROGRESS) if (checkpoint / PROGRESS).is_file() else {}
    except ValueError as error:
        return str(error)
    number = len(noted.get("by_process", []))
    parts = [f"rng_state_{i}.pth" for i in range(number)] if number > 1 else []
    missing = [name for name in parts if not (checkpoint / name).is_file()]
    return f"{missing[0]} is missing" if missing else None


def missing_file(checkpoint: str | Path, is_read: bool = False) -> str | None:
    """Returns which file of a checkpoint is missing or, if they are read, not as it was saved, by the checksums."""
    try:
        noted = read_json(Path(checkpoint) / CHECKSUMS)
    except ValueError as error:
        return f"{CHECKSUMS} is damaged ({error})"
    for name, value in noted.items():
        if not (Path(checkpoint) / name).is_file():
            return f"{name} is missing"
        if is_read and checksum(Path(checkpoint) / name) != value:
            return f"{name} is damaged: it is not as it was saved, by its checksum in {CHECKSUMS}"
    return None


def unusable_reason(checkpoint: str | Path) -> str | None:
    """Returns why a checkpoint cannot be used: it is half-written, or a file is missing or damaged. It reads all files
    that have checksums; a checkpoint of Trainer alone, or one that was uploaded during a training, has none."""
    if reason := incomplete_reason(checkpoint):
        return reason
    return missing_file(checkpoint, is_read=True) if (Path(checkpoint) / CHECKSUMS).is_file() else None


def check_resumable(checkpoint: str | Path, config: PreTrainedConfig | None = None) -> None:
    """Checks that a training (of a model with this configuration, if given) can continue from a checkpoint.

    Raises:
        FileNotFoundError: the folder does not exist.
        ValueError: the checkpoint is incomplete, holds weights without the state of the optimizer, or has a model of
            another configuration.
    """
    checkpoint = Path(checkpoint)
    if not checkpoint.is_dir():
        raise FileNotFoundError(f"The checkpoint {checkpoint} does not exist: give the path of its folder.")
    start = f"Cannot resume from {checkpoint}: "
    if reason := unusable_reason(checkpoint):
        raise ValueError(f"{start}{reason}. Choose an earlier checkpoint.")
    if not any(path for pattern in OPTIMIZERS for path in checkpoint.glob(pattern)):
        raise ValueError(
            f"{start}it holds only weights (--save_only_model), not the state of optimizer and schedule. "
            "To start a new training from it, give it as --model_name_or_path, with another --output_dir."
        )
    if config is not None and (checkpoint / CONFIG_NAME).is_file():
        with reading(checkpoint / CONFIG_NAME):
            both = (type(config).from_pretrained(checkpoint), config)
        saved, asked = (json.loads(each.to_json_string(use_diff=False)) for each in both)
        different = [
            f"{name} {saved.get(name)!r}, not {value!r}"
            for name, value in asked.items()
            if saved.get(name) != value
            and name not in NOT_OF_THE_MODEL
            and not name.endswith("_token_id")
            and not (name == "problem_type" and value is None)  # the first loss of a classifier sets it
        ]
        if different:
            raise ValueError(
                f"{start}its model has {', '.join(different)}. Give another --output_dir to train this one."
            )


def complete_checkpoints(output_dir: str | Path) -> Iterator[Path]:
    """Returns the usable `checkpoint-*` of a training run, newest first. Warns of unusable ones."""
    for path in reversed(numbered_checkpoints(output_dir)):
        if (reason := unusable_reason(path)) is None:
            yield path
        else:
            logger.warning("%s is left out: %s", path, reason)


def last_complete_checkpoint(output_dir: str | Path) -> Path | None:
    """Returns the newest usable `checkpoint-*` of a training run, if any. Warns of newer, unusable ones."""
    return next(complete_checkpoints(output_dir), None)
