# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The folders that a training run writes: which checkpoints there are, and whether they were written to their end."""

import json
import logging
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError, safe_open
from transformers import PreTrainedConfig
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from transformers.utils import CONFIG_NAME

from ..text_files import read_json


logger = logging.getLogger(__name__)

TRAINER_STATE = "trainer_state.json"
# Patterns of what a checkpoint holds beside weights, all of it or, with `save_only_model`, nothing.
TRAINING_STATE = ("optimizer*", "scheduler.pt", "rng_state*.pth")
# Fields of a configuration that change without the model: Trainer itself sets special tokens, a dtype, a cache.
NOT_OF_THE_MODEL = {"transformers_version", "_name_or_path", "architectures", "auto_map", "dtype", "use_cache"}
# Patterns of what a run writes about its model: metrics and outputs.
OUTPUTS = ("*_results.json", "*predictions.txt", "generated.txt")
CHECKPOINT = re.compile(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)")


def numbered_checkpoints(output_dir: str | Path) -> list[Path]:
    """The `checkpoint-*` folders of a training run by their updates, the oldest first."""
    folders = [path for path in Path(output_dir).glob("*") if path.is_dir() and CHECKPOINT.fullmatch(path.name)]
    return sorted(folders, key=lambda path: int(CHECKPOINT.fullmatch(path.name)[1]))


def incomplete_reason(checkpoint: str | Path) -> str | None:
    """Why a checkpoint folder of Trainer cannot be used, as after a kill while it was written; None if it can.

    Trainer writes `trainer_state.json` last; the other files are opened, not read.
    """
    checkpoint = Path(checkpoint)
    state = checkpoint / TRAINER_STATE
    if not state.is_file():
        return f"{state.name}, which is written last, is missing"
    for path in (state, *checkpoint.glob("*.index.json")):
        try:
            values = read_json(path)
        except ValueError:
            return f"{path.name} is cut off"
        for shard in set(values.get("weight_map", {}).values()):
            if not (checkpoint / shard).is_file():
                return f"{shard} is missing"
    weights = list(checkpoint.glob("*.safetensors"))
    if not weights and not any(checkpoint.glob("pytorch_model_fsdp*")) and not any(checkpoint.glob("global_step*")):
        return "it holds no weights"
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


def check_resumable(checkpoint: str | Path, config: PreTrainedConfig | None = None) -> None:
    """Checks that a training, of a model with this configuration if one is given, can go on from a checkpoint.

    Raises:
        ValueError: the checkpoint was not written to its end; it holds weights without the state of the optimizer;
            its model has another configuration.
    """
    checkpoint = Path(checkpoint)
    start = f"Cannot resume from {checkpoint}: "
    if reason := incomplete_reason(checkpoint):
        raise ValueError(f"{start}{reason}. Choose an earlier checkpoint.")
    if not any(any(checkpoint.glob(pattern)) for pattern in (TRAINING_STATE[0], "global_step*")):
        raise ValueError(
            f"{start}it holds weights alone (--save_only_model), so that optimizer and schedule would begin anew. "
            "Start a training of its own from it: give it as --model_name_or_path, and another --output_dir."
        )
    if config is not None and (checkpoint / CONFIG_NAME).is_file():
        both = (type(config).from_pretrained(checkpoint), config)
        # Of older versions, which did not note them.
        left_open = {"padding_position", "dataset_labels"} - read_json(checkpoint / CONFIG_NAME).keys()
        saved, asked = (json.loads(each.to_json_string(use_diff=False)) for each in both)
        different = [
            f"{name} {saved.get(name)!r}, not {value!r}"
            for name, value in asked.items()
            if saved.get(name) != value
            and name not in NOT_OF_THE_MODEL | left_open
            and not name.endswith("_token_id")
            and not (name == "problem_type" and value is None)  # the first loss of a classifier finds it out
        ]
        if different:
            raise ValueError(
                f"{start}its model has {', '.join(different)}. Give another --output_dir to train this one."
            )


def complete_checkpoints(output_dir: str | Path) -> Iterator[Path]:
    """The usable `checkpoint-*` of a training run, the newest first; warns of those not written to their end."""
    for path in reversed(numbered_checkpoints(output_dir)):
        if (reason := incomplete_reason(path)) is None:
            yield path
        else:
            logger.warning("%s is left out: %s", path, reason)


def last_complete_checkpoint(output_dir: str | Path) -> Path | None:
    """The newest usable `checkpoint-*` of a training run, if any; warns of newer ones not written to their end."""
    return next(complete_checkpoints(output_dir), None)
