# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Warnings about trainings that will achieve little, with numbers and advice."""

import logging
import math
from collections.abc import Sequence

from transformers import TrainerCallback, TrainerState, TrainingArguments


logger = logging.getLogger(__name__)


class PlanCheck(TrainerCallback):
    """Checks the schedule and the checkpoints of a training before its first update.

    Args:
        average: The number of checkpoints to average at the end.

    Raises:
        ValueError: the training will save fewer.
    """

    def __init__(self, average: int = 0):
        self.average = average

    def on_train_begin(self, args, state, control, **kwargs):
        warmup = args.get_warmup_steps(state.max_steps)
        if warmup >= state.max_steps > 0:
            logger.warning(
                "The warm-up of %d updates is not shorter than the run of %d: the learning rate rises until the end. "
                "Give --warmup_steps 0.1, a tenth of the run, or train longer",
                *(warmup, state.max_steps),
            )
        # One that is resumed may have some.
        held = planned_checkpoints(args, state) if self.average and not state.global_step else None
        if held is not None and held < self.average:
            raise ValueError(
                f"--average_last_checkpoints {self.average}: the run of {state.max_steps} updates will save {held} "
                f"(--save_strategy {args.save_strategy.value}, --save_steps {args.save_steps:g}). Save more often, "
                f"train longer, or give --average_last_checkpoints {held}."
            )


def planned_checkpoints(args: TrainingArguments, state: TrainerState) -> int | None:
    """Returns the number of checkpoints that a training saves from its beginning; None if it depends on metrics."""
    if args.save_strategy == "epoch":
        return state.num_train_epochs
    # Trainer saves the last update, too.
    return math.ceil(state.max_steps / state.save_steps) if args.save_strategy == "steps" else None


def warn_of_empty(texts: Sequence[str], split: str) -> None:
    """Warns if more than half of the outputs are empty."""
    empty = sum(not text.strip() for text in texts)
    if 2 * empty > len(texts):
        logger.warning(
            "%d of %d outputs for the %s data are empty: the model ends them at once. Train longer, lower "
            "--learning_rate, or lengthen the warm-up; --min_target_length 1 forbids empty outputs",
            *(empty, len(texts), split),
        )
