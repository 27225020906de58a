# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The mean of the weights of checkpoints, of this package or of any model of transformers, as a model folder.

    ode-transformer average DIR --last 5 --output_dir averaged

averages the newest five `checkpoint-*` folders of a training run. Given several folders, it averages those. Only
safetensors files are read, one tensor at a time; nothing is unpickled.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch.distributed.checkpoint import FileSystemReader, load
from transformers.utils import CONFIG_NAME, SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from ..model_folders import shard_names
from ..text_files import read_json
from ..texts_ode_transformer import TARGET_TOKENIZER
from .checkpoints import (
    CHECKPOINT,
    CHECKSUMS,
    LOCK,
    OUTPUTS,
    PROGRESS,
    TRAINER_STATE,
    numbered_checkpoints,
    unusable_reason,
)
from .records import ARGUMENTS, EVALUATION, RUNS


# Files that are not copied: weights, training state, and results that hold for these weights only.
NOT_COPIED = ("*.safetensors", "*.bin", "*.bin.*.json", "*.pt", "*.pth", TRAINER_STATE)
NOT_COPIED += (PROGRESS, CHECKSUMS, LOCK, "latest", "zero_to_fp32.py")
NOT_COPIED += (ARGUMENTS, EVALUATION, RUNS, "README.md", *OUTPUTS)
# The folder in which accelerate writes the weights of a model that FSDP2 shards, with this before their names.
SHARDED_WEIGHTS, PREFIX = "pytorch_model_fsdp_0", "model."
# Fields of a configuration that do not describe the model.
PROVENANCE = {"transformers_version", "_name_or_path"}


class SavedModel:
    """A model folder: its configuration, the names of the tensors in each safetensors file, and a function for each
    tensor that reads it. A sharded checkpoint of FSDP2 is one file.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: it holds no configuration or no such weights, or it is a half-written checkpoint.
    """

    def __init__(self, folder: Path):
        if not folder.is_dir():
            raise FileNotFoundError(f"No folder {folder}.")
        self.folder = folder
        if CHECKPOINT.fullmatch(folder.name) and (reason := unusable_reason(folder)):
            raise self.half_written(reason)
        if not (folder / CONFIG_NAME).is_file():
            raise ValueError(f"{folder} is not a model folder: it holds no {CONFIG_NAME}.")
        config = read_json(folder / CONFIG_NAME)
        self.config = {name: value for name, value in config.items() if name not in PROVENANCE}
        self.files: dict[str, list[str]] = {}
        self.read: dict[str, Callable[[], torch.Tensor]] = {}
        if (folder / SAFE_WEIGHTS_NAME).is_file():
            self.open_files([SAFE_WEIGHTS_NAME])
        elif (folder / SHARDED_WEIGHTS).is_dir():
            self.open_shards(folder / SHARDED_WEIGHTS)
        elif (folder / SAFE_WEIGHTS_INDEX_NAME).is_file():
            self.open_files(shard_names(folder / SAFE_WEIGHTS_INDEX_NAME))
        else:
            raise ValueError(
                f"{folder} holds neither {SAFE_WEIGHTS_NAME} nor {SAFE_WEIGHTS_INDEX_NAME}; other formats cannot be "
                "read. Open the model with transformers and save it again."
            )

    def half_written(self, problem: str) -> ValueError:
        return ValueError(
            f"{self.folder} is half-written or damaged ({problem}): remove it, or give only the other checkpoints."
        )

    def open_files(self, filenames: Sequence[str]) -> None:
        for filename in filenames:
            try:
                file = safe_open(self.folder / filename, framework="pt")
            except (FileNotFoundError, SafetensorError) as error:
                raise self.half_written(f"{filename}: {error}") from error
            self.files[filename] = list(file.keys())
            self.read |= {name: partial(file.get_tensor, name) for name in file.keys()}

    def open_shards(self, folder: Path) -> None:
        entries = FileSystemReader(folder).read_metadata().state_dict_metadata

        def read(key: str) -> torch.Tensor:
            tensors = {key: torch.empty(entries[key].size, dtype=entries[key].properties.dtype)}
            load(tensors, storage_reader=FileSystemReader(folder), no_dist=True)
            return tensors[key]

        self.read = {key.removeprefix(PREFIX): partial(read, key) for key in sorted(entries)}
        self.files[SAFE_WEIGHTS_NAME] = list(self.read)

    def copy_files(self, folder: Path) -> None:
        """Copies everything but weights and training state: configurations, tokenizers, code."""
        for path in self.folder.iterdir():
            if path.is_file() and not any(fnmatch(path.name, pattern) for pattern in NOT_COPIED):
                shutil.copy2(path, folder)
        if (self.folder / TARGET_TOKENIZER).is_dir():
            shutil.copytree(self.folder / TARGET_TOKENIZER, folder / TARGET_TOKENIZER)


def last_checkpoints(folder: str | Path, last: int) -> list[Path]:
    """The `last` newest `checkpoint-*` folders of a training run by their update numbers, the newest one last.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: it holds fewer of them.
    """
    folder = Path(folder)
    if last < 1:
        raise ValueError(f"--last {last} must be at least 1.")
    if not folder.is_dir():
        raise FileNotFoundError(f"No folder {folder}.")
    found = numbered_checkpoints(folder)
    if len(found) < last:
        names = ", ".join(path.name for path in found) or "none"
        raise ValueError(f"{folder} holds {len(found)} checkpoints, not the {last} to average: {names}.")
    return found[-last:]


def check_same(models: Sequence[SavedModel], values: Sequence[Mapping[str, Any]]) -> None:
    """Raises a ValueError that names the folders and the keys if the values of a model differ from the first one's."""
    first = values[0]
    for model, other in zip(models, values):
        if differing := sorted(name for name in first.keys() | other if first.get(name) != other.get(name)):
            words = ", ".join(f"{name} ({first.get(name)!r} and {other.get(name)!r})" for name in differing[:8])
            raise ValueError(f"{models[0].folder} and {model.folder} cannot be averaged: they differ in {words}.")


def mean_of(models: Sequence[SavedModel], name: str) -> torch.Tensor:
    """The mean of a tensor, summed in float64, in the dtype of the last model; integers, which must agree, stay.

    Raises:
        ValueError: shapes or integers differ, or a value is not a number.
    """
    total: Any = None
    for model in models:
        tensor = model.read[name]()
        is_real = tensor.is_floating_point()
        if is_real and tensor.isnan().any():
            raise ValueError(f"{model.folder} cannot be averaged: {name} holds NaN values.")
        if total is None:
            total = tensor.to(torch.float64, copy=True) if is_real else tensor
            continue
        check_same([models[0], model], [{name: tuple(each.shape)} for each in (total, tensor)])
        if is_real:
            total += tensor
        elif not torch.equal(tensor, total):
            raise ValueError(
                f"{models[0].folder} and {model.folder} cannot be averaged: their integers differ in {name}."
            )
    return (total / len(models)).to(tensor.dtype) if is_real else total


def average_checkpoints(checkpoints: Sequence[str | Path], output_dir: str | Path, overwrite: bool = False) -> None:
    """Writes a model folder whose weights are the mean of those of `checkpoints`, for models of any architecture.

    Every tensor is summed in float64 and written in the dtype of the last checkpoint; integers must agree. The
    configurations, tokenizers and code are those of the last checkpoint; the state of its training is left behind. The
    folder appears when it is whole.

    Args:
        checkpoints: model folders with safetensors files, sharded or not.
        output_dir: the folder to write.
        overwrite: delete an `output_dir` that is not empty, with everything in it.

    Raises:
        FileNotFoundError: a checkpoint does not exist.
        ValueError: a checkpoint is half-written or no model folder; names, shapes, integers or configurations differ;
            a value is not a number; or `output_dir` is not empty, or is or holds a checkpoint.
    """
    paths, output_dir = [Path(path) for path in checkpoints], Path(output_dir).resolve()
    places = [path.resolve() for path in paths]
    if repeated := [str(path) for path in paths if places.count(path.resolve()) > 1]:
        raise ValueError(f"{repeated[-1]} is given twice: give each checkpoint once.")
    if output_dir.is_dir() and any(output_dir.iterdir()) and not overwrite:
        raise ValueError(f"The output folder {output_dir} is not empty: choose another, or give --overwrite.")
    held = [path for path in paths if path.resolve().is_relative_to(output_dir)] or numbered_checkpoints(output_dir)
    if held:
        raise ValueError(
            f"The output folder {output_dir} is or holds {held[-1]}, which --overwrite would delete: choose another."
        )
    models = [SavedModel(path) for path in paths]
    check_same(models, [model.config for model in models])
    check_same(models, [dict.fromkeys(model.read, "a parameter") for model in models])
    output_dir.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=output_dir.parent) as made:
        folder = Path(made, output_dir.name)
        folder.mkdir()
        for filename, names in models[-1].files.items():
            save_file({name: mean_of(models, name) for name in names}, folder / filename, metadata={"format": "pt"})
        models[-1].copy_files(folder)
        if output_dir.is_dir():  # only now is there something to take its place
            shutil.rmtree(output_dir)
        folder.rename(output_dir)
