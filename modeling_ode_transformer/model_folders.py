# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Opening model folders, which may come from elsewhere, and notes of what is in files."""

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.utils import CONFIG_NAME

from .text_files import read_json, reading


# The files of a model's folder that count in a note of it.
MODEL_FILES = ("config.json", "*.safetensors", "pytorch_model*.bin", "tokenizer*", "*.model", "target_tokenizer/*")


def shard_names(index: Path) -> list[str]:
    """The files beside an index of weights (`model.safetensors.index.json`) that it names.

    Raises:
        ValueError: it is not an index, or names something else than files of its folder.
    """
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict):
        raise ValueError(f"{index.name} is damaged: it has no valid weight_map")
    for name in names.values():
        if not isinstance(name, str) or Path(name).name != name:
            raise ValueError(f"{index} names the weights {name!r}, but only files of its own folder are read.")
    return sorted(set(names.values()))


def check_finished(name: str | Path) -> None:
    """Raises a ValueError if a folder holds only checkpoints: its training has not ended."""
    checkpoints = [path for path in Path(name).glob("checkpoint-*") if path.name.partition("-")[2].isdigit()]
    if checkpoints and not (Path(name) / CONFIG_NAME).exists():
        last = max(checkpoints, key=lambda path: int(path.name.partition("-")[2]))
        raise ValueError(f"The training in {name} has not ended: continue it, or give its last checkpoint, {last}.")


def open_config(name: str | Path, **options) -> PreTrainedConfig:
    """A model's configuration, as `AutoConfig.from_pretrained(name, **options)` opens it.

    Raises:
        OSError: the model does not exist.
        ValueError: the configuration is damaged, or the folder is that of an unfinished training.
    """
    check_finished(name)
    with reading(name):
        return AutoConfig.from_pretrained(name, **options)


def open_model(auto_class: Any, name: str | Path, may_lack_weights: bool = False, **options) -> PreTrainedModel:
    """Opens a model in evaluation mode, as `auto_class.from_pretrained(name, **options)` does, with all its weights.

    Args:
        auto_class: An Auto class, or a class of models.
        name: A folder, or a name on the Hub.
        may_lack_weights: Whether weights may be missing, as for a training: they are new, and transformers warns.
        options: Those of `from_pretrained`.

    Raises:
        OSError: the model does not exist.
        ValueError: weights are outside the folder, missing or not finite, or the folder is that of an unfinished
            training.
    """
    check_finished(name)
    for index in Path(name).glob("*.index.json"):
        shard_names(index)
    with reading(name):
        model, report = auto_class.from_pretrained(name, output_loading_info=True, **options)
    if (missing := sorted(report["missing_keys"])) and not may_lack_weights:
        raise ValueError(
            f"{name} lacks the weights {', '.join(missing[:3])}{', ...' if missing[3:] else ''} of "
            f"{type(model).__name__}: give a complete model of this class."
        )
    for parameter_name, parameter in model.named_parameters():
        if parameter.is_floating_point() and not parameter.isfinite().all():
            raise ValueError(
                f"{name}: the weights {parameter_name} ({parameter.dtype}) are not finite: give another checkpoint, "
                "or another precision if they are too large for this one."
            )
    return model


@lru_cache
def file_hash(path: Path, *state) -> str:
    """A hash of what is in a file, whose `state` says whether it is still the same."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def file_note(path: Path, name: str | None = None) -> dict:
    """Name, size in bytes and hash of a file; only the name of a pipe, which can be read only once."""
    note = {"name": name or path.name}
    if not path.is_file():
        return note
    stat = path.stat()
    return note | {"size": stat.st_size, "blake2b": file_hash(path, stat.st_size, stat.st_mtime_ns)}


def source_note(name: str) -> str:
    """A name of the Hub as it is; of a file, or of a folder of a model, its name and a hash of what is in it."""
    path = Path(name)
    files = [path] if path.is_file() else sorted({each for pattern in MODEL_FILES for each in path.glob(pattern)})
    notes = [file_note(each) for each in files if each.is_file()]
    if not notes:
        return name
    return f"{path.name} ({hashlib.blake2b(json.dumps(notes).encode(), digest_size=8).hexdigest()})"
