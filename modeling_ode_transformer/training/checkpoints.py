# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The folders of a training run: locking them, writing records, and listing, checking and removing checkpoints."""

import json
import logging
import re
import shutil
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from transformers import PreTrainedConfig
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from transformers.utils import CONFIG_NAME

from ..model_folders import shard_names
from ..text_files import lock_file, read_json, reading
from ..texts_ode_transformer import TARGET_TOKENIZER, TRAINED_LENGTH
from .records import GENERATED


logger = logging.getLogger(__name__)

TRAINER_STATE = "trainer_state.json"
# The checksums of a complete checkpoint's files, by their paths in it.
CHECKSUMS = "checksums.json"
# Patterns of files beside the weights: a checkpoint has all of them or, with `save_only_model`, none.
TRAINING_STATE = ("optimizer*", "scheduler.pt", "rng_state*.pth")
# Patterns of the folders into which all processes of a sharded training write.
SHARDED = ("pytorch_model_fsdp_*", "optimizer_*")
SHARDS_METADATA = ".metadata"
# The values that resuming needs, by patterns of JSON files.
LOSS_STATE = ("loss_since_last_log", "mean_loss_since_last_log", "last_logged_update")
NEEDED_VALUES: dict[str, dict[str, Any]] = {
    TRAINER_STATE: {"global_step": int, "log_history": list},
    "loss_state_*.json": dict.fromkeys(LOSS_STATE, (int, float)),
}
READ_FILES = (
    *NEEDED_VALUES,
    CHECKSUMS,
    CONFIG_NAME,
    "generation_config.json",
    "tokenizer*.json",
    f"{TARGET_TOKENIZER}/*.json",
)
# Fields of a configuration that may change for the same model: Trainer sets special tokens, a dtype, a cache, and
# data their longest source.
NOT_OF_THE_MODEL = {"transformers_version", "_name_or_path", "architectures", "auto_map", "dtype", "use_cache"}
NOT_OF_THE_MODEL |= {TRAINED_LENGTH}
# Patterns of metrics and outputs, which a run writes about its model.
OUTPUTS = ("*_results.json", "*predictions.txt", GENERATED)
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
    """Writes a JSON file, with options of `json.dumps`. A kill or a full disk leaves what was there. A link is
    followed; a device or a pipe is written to directly."""
    text, file = json.dumps(values, indent=indent, **options) + "\n", file.resolve()
    unfinished = file if file.exists() and not file.is_file() else file.with_name(f"{TEMPORARY}{file.name}")
    unfinished.write_text(text, encoding="utf-8")
    if unfinished != file:
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
    backup changes them. Checkpoints of more updates than the current one are left over from a training that was
    continued elsewhere, and are removed first.
    """
    remove_leftovers(output_dir)
    if not save_total_limit or save_total_limit < 0:
        return
    checkpoints, current = numbered_checkpoints(output_dir), Path(current)
    kept = {path.resolve() for path in (current, Path(best_model_checkpoint or current))}
    checkpoints.sort(key=lambda path: update_number(path) <= update_number(current))
    removable = [path for path in checkpoints if path.resolve() not in kept]
    for path in removable[: max(len(checkpoints) - save_total_limit, 0)]:
        remove_checkpoint(path)


def incomplete_reason(checkpoint: str | Path) -> str | None:
    """Returns why a checkpoint folder of Trainer is unusable, for example after a kill; None if it is usable.

    Trainer writes `trainer_state.json` last. JSON files are read, others only opened.
    """
    checkpoint = Path(checkpoint)
    if not (checkpoint / TRAINER_STATE).is_file():
        return f"{TRAINER_STATE}, which is written last, is missing"
    for path in checkpoint.rglob("*"):
        if path.is_symlink() and not path.exists():
            return f"{path.relative_to(checkpoint)} is a broken link"
    for path in (path for pattern in READ_FILES for path in checkpoint.glob(pattern)):
        try:
            values = read_json(path)
        except ValueError as error:
            return f"{path.relative_to(checkpoint)} is cut off or damaged ({error})"
        needed: dict[str, Any] = next((names for pattern, names in NEEDED_VALUES.items() if path.match(pattern)), {})
        if wrong := [name for name, kinds in needed.items() if not isinstance(values.get(name), kinds)]:
            return f"{path.name} is damaged: it has no valid {wrong[0]}"
    for index in checkpoint.glob("*.index.json"):
        try:
            missing = [name for name in shard_names(index) if not (checkpoint / name).is_file()]
        except ValueError as error:
            return str(error)
        if missing:
            return f"{missing[0]} is missing"
    weights = list(checkpoint.glob("*.safetensors"))
    if not weights and not any(checkpoint.glob("pytorch_model_fsdp*")) and not any(checkpoint.glob("global_step*")):
        return "it holds no weights"
    for folder in (path for pattern in SHARDED for path in checkpoint.glob(pattern) if path.is_dir()):
        if not (folder / SHARDS_METADATA).is_file():
            return f"{folder.name} is cut off: {SHARDS_METADATA}, which is written last, is missing"
    missing = [pattern for pattern in TRAINING_STATE if not any(checkpoint.glob(pattern))]
    if 0 < len(missing) < len(TRAINING_STATE) and not any(checkpoint.glob("global_step*")):
        return f"{' and '.join(missing)} is missing"
    for path in weights:
        try:
            with safe_open(path, framework="pt"):
                pass
        except SafetensorError as error:
            return f"{path.name} is cut off or damaged ({error})"
    for path in [path for pattern in ("*.pt", "*.pth", "*.bin") for path in checkpoint.glob(pattern)]:
        if not zipfile.is_zipfile(path):
            return f"{path.name} is cut off or damaged"
    return None


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


def unusable_reason(checkpoint: str | Path) -> str | None:
    """Returns why a checkpoint is unusable: `incomplete_reason`, or a file that is missing or not as it was saved, if
    the checksums were noted. It reads all files."""
    checkpoint = Path(checkpoint)
    if reason := incomplete_reason(checkpoint):
        return reason
    noted = read_json(checkpoint / CHECKSUMS) if (checkpoint / CHECKSUMS).is_file() else {}
    for name, value in noted.items():
        if not (checkpoint / name).is_file():
            return f"{name} is missing"
        if checksum(checkpoint / name) != value:
            return f"{name} is damaged: it is not as it was saved, by its checksum in {CHECKSUMS}"
    return None


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
    if not any(any(checkpoint.glob(pattern)) for pattern in (TRAINING_STATE[0], "global_step*")):
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
    """Returns the usable `checkpoint-*` of a training run, newest first. Warns of unusable ones, and of files and
    broken links with such names."""
    for path in sorted(Path(output_dir).glob("*"), key=lambda path: path.name):
        if CHECKPOINT.fullmatch(path.name) and not path.is_dir():
            logger.warning("%s is left out: it is a file or a broken link, not a folder", path)
    for path in reversed(numbered_checkpoints(output_dir)):
        if (reason := unusable_reason(path)) is None:
            yield path
        else:
            logger.warning("%s is left out: %s", path, reason)


def last_complete_checkpoint(output_dir: str | Path) -> Path | None:
    """Returns the newest usable `checkpoint-*` of a training run, if any. Warns of newer, unusable ones."""
    return next(complete_checkpoints(output_dir), None)
