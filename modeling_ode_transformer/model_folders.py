# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Opening model folders, which may come from elsewhere."""

from pathlib import Path
from typing import Any

from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.utils import CONFIG_NAME

from .text_files import read_json, reading


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
