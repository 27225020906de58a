# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The mean of the weights of checkpoints, of this package or of any model of transformers, as a model folder.

    ode-transformer average DIR --last 5 --output_dir averaged

averages the newest five `checkpoint-*` folders of a training run. Given several folders, it averages those. Only
safetensors files are read, one tensor at a time; nothing is unpickled.
"""

import shutil
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch.distributed.checkpoint import FileSystemReader, load
from transformers.utils import CONFIG_NAME, SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from ..averaging import TensorMean, check_distinct, check_same_configuration, check_same_parameters
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
    locked_folder,
    numbered_checkpoints,
    unusable_reason,
)
from .records import ARGUMENTS, EVALUATION, RUNS


# Files that are not copied: weights, training state, and results that hold for these weights only.
NOT_COPIED = ("*.safetensors", "*.bin", "*.bin.*.json", "*.pt", "*.pth", TRAINER_STATE)
NOT_COPIED += (PROGRESS, CHECKSUMS, LOCK, "latest", "zero_to_fp32.py")
NOT_COPIED += (ARGUMENTS, EVALUATION, RUNS, "README.md", *OUTPUTS)
# The folder in which accelerate writes the weights of a sharded model.
SHARDED_WEIGHTS = "pytorch_model_fsdp_0"
# Fields of a configuration that do not describe the model.
PROVENANCE = {"transformers_version", "_name_or_path"}


class ShardedWeights:
    """The weights of a sharded FSDP2 checkpoint, with the interface of an open safetensors file."""

    def __init__(self, folder: Path):
        self.folder = folder
        entries = FileSystemReader(folder).read_metadata().state_dict_metadata
        # Accelerate nests them under this name.
        self.entries = {name.removeprefix("model."): (name, entry) for name, entry in entries.items()}

    def keys(self) -> list[str]:
        return sorted(self.entries)

    def metadata(self) -> dict[str, str]:
        return {"format": "pt"}

    def get_slice(self, name: str) -> SimpleNamespace:
        """The description of a tensor, without reading it."""
        entry = self.entries[name][1]
        return SimpleNamespace(get_shape=lambda: list(entry.size), get_dtype=lambda: str(entry.properties.dtype))

    def get_tensor(self, name: str) -> torch.Tensor:
        key, entry = self.entries[name]
        tensors = {key: torch.empty(entry.size, dtype=entry.properties.dtype)}
        load(tensors, storage_reader=FileSystemReader(self.folder), no_dist=True)
        return tensors[key]


class SavedModel:
    """A model folder: its configuration, and the tensors of its safetensors files or of a sharded checkpoint of FSDP2,
    which are read when asked for.

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

        self.files: dict[str, Any] = {}
        if (folder / SAFE_WEIGHTS_NAME).is_file():
            filenames = [SAFE_WEIGHTS_NAME]
        elif (folder / SHARDED_WEIGHTS).is_dir():
            filenames, self.files = [], {SAFE_WEIGHTS_NAME: ShardedWeights(folder / SHARDED_WEIGHTS)}
        elif (folder / SAFE_WEIGHTS_INDEX_NAME).is_file():
            filenames = shard_names(folder / SAFE_WEIGHTS_INDEX_NAME)
        else:
            raise ValueError(
                f"{folder} holds neither {SAFE_WEIGHTS_NAME} nor {SAFE_WEIGHTS_INDEX_NAME}; other formats cannot be "
                "read. Open the model with transformers and save it again."
            )
        for filename in filenames:
            try:
                self.files[filename] = safe_open(folder / filename, framework="pt")
            except (FileNotFoundError, SafetensorError) as error:
                raise self.half_written(f"{filename}: {error}") from error
        self.file_of = {name: file for file in self.files.values() for name in file.keys()}

    def half_written(self, problem: str) -> ValueError:
        return ValueError(
            f"{self.folder} is half-written or damaged ({problem}): remove it, or give only the other checkpoints."
        )

    def shapes(self) -> dict[str, str]:
        """Returns the shape and dtype of every tensor, in words."""
        slices = {name: file.get_slice(name) for name, file in self.file_of.items()}
        return {name: f"{tuple(each.get_shape())} {each.get_dtype()}" for name, each in slices.items()}

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


def average_checkpoints(checkpoints: Sequence[str | Path], output_dir: str | Path, overwrite: bool = False) -> None:
    """Writes a model folder whose weights are the mean of those of `checkpoints`, for models of any architecture.

    Every tensor is summed in float64 and written in its own dtype; integers must agree. The configurations,
    tokenizers and code are those of the last checkpoint; the state of its training is left behind. The folder appears
    when it is complete; after a kill, the same call cleans up and writes it.

    Args:
        checkpoints: model folders with safetensors files, sharded or not.
        output_dir: the folder to write.
        overwrite: replace an `output_dir` that is not empty, with everything in it.

    Raises:
        FileNotFoundError: a checkpoint does not exist.
        ValueError: a checkpoint is half-written or no model folder; names, shapes, dtypes, integers or configurations
            differ; a value is not a number; or `output_dir` is not empty, is or holds a checkpoint, or is that of a
            running training.
    """
    if not checkpoints:
        raise ValueError("There are no checkpoints to average: give at least one.")
    paths, output_dir = [Path(path) for path in checkpoints], Path(output_dir).resolve()
    temporary = output_dir.with_name(f".{output_dir.name}.averaging")
    folder, replaced = temporary / output_dir.name, temporary / "replaced"
    if replaced.exists() and not output_dir.exists():
        replaced.rename(output_dir)  # a kill came between the two renames below
    if temporary.exists():
        shutil.rmtree(temporary)
    check_distinct(paths)
    for path in (path.resolve() for path in paths):
        if path.is_relative_to(output_dir) or output_dir.is_relative_to(path):
            raise ValueError(
                f"The output folder {output_dir} is, holds or is in the checkpoint {path}: choose another."
            )
    if output_dir.exists() and not output_dir.is_dir():
        raise ValueError(f"The output folder {output_dir} is a file: choose another.")
    if output_dir.is_dir() and any(output_dir.iterdir()) and not overwrite:
        raise ValueError(f"The output folder {output_dir} is not empty: choose another, or give --overwrite.")
    if held := numbered_checkpoints(output_dir):
        raise ValueError(
            f"The output folder {output_dir} holds {held[-1].name} of a training, which --overwrite would delete: "
            "choose another."
        )
    if output_dir.is_dir():
        with locked_folder(output_dir):
            pass  # no training is writing there

    models = [SavedModel(path) for path in paths]
    for model in models[1:]:
        check_same_configuration(models[0].folder, models[0].config, model.folder, model.config)
        check_same_parameters(models[0].folder, models[0].shapes(), model.folder, model.shapes())

    folder.mkdir(parents=True)
    try:
        models[-1].copy_files(folder)
        for filename, file in models[-1].files.items():
            tensors = {}
            for name in file.keys():
                mean = TensorMean()
                for model in models:
                    tensor = model.file_of[name].get_tensor(name)
                    mean.add(model.folder, {name: tensor})
                tensors[name] = mean.means()[name].to(tensor.dtype)
            save_file(tensors, folder / filename, metadata=file.metadata())
        if output_dir.exists():
            output_dir.rename(replaced)
        folder.rename(output_dir)
    finally:
        if replaced.exists() and not output_dir.exists():
            replaced.rename(output_dir)
        shutil.rmtree(temporary)
