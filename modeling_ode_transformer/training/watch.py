# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Warnings about trainings that will achieve little, and a note of idle stages: once, with numbers and advice."""

import logging
import math
from collections.abc import Sequence

from transformers import TrainerCallback, TrainerState, TrainingArguments

from .checkpoints import numbered_checkpoints, update_number


logger = logging.getLogger(__name__)

# A stage with a smaller share of its block counts as unused.
LEAST_SHARE = 0.01


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
        held = planned_checkpoints(args, state)
        if self.average and held is not None and held < self.average:
            raise ValueError(
                f"--average_last_checkpoints {self.average}: the run of {state.max_steps} updates will save {held} "
                f"(--save_strategy {args.save_strategy.value}, --save_steps {args.save_steps:g}). Save more often, "
                f"train longer, or give --average_last_checkpoints {held}."
            )


def planned_checkpoints(args: TrainingArguments, state: TrainerState) -> int | None:
    """Returns the number of checkpoints that a training has in the end, among them those in its folder if it is
    resumed; None if it depends on metrics."""
    done = [path for path in numbered_checkpoints(args.output_dir) if update_number(path) <= state.global_step]
    if args.save_strategy == "epoch":
        return len(done) + state.num_train_epochs - math.floor(state.epoch or 0)
    if args.save_strategy == "steps":
        # Trainer saves the last update, too.
        return len(done) + math.ceil(state.max_steps / state.save_steps) - state.global_step // state.save_steps
    return None


class CoefficientWatch:
    """Logs once which stages count less than `LEAST_SHARE` of their block in every evaluation of an epoch."""

    def __init__(self):
        self.small_since: dict[str, float] = {}
        self.is_done = False

    def look(self, means: dict[str, float], epoch: float) -> None:
        """Reads the mean weights of an evaluation, `{"encoder_0_stage_1": 0.97, ...}`, and its epoch."""
        blocks: dict[str, float] = {}
        for name, mean in means.items():
            block = name.rpartition("_stage_")[0]
            blocks[block] = blocks.get(block, 0.0) + abs(mean)
        shares = {name: abs(mean) / (blocks[name.rpartition("_stage_")[0]] or 1.0) for name, mean in means.items()}
        small = {name: share for name, share in shares.items() if share < LEAST_SHARE}
        self.small_since = {name: self.small_since.get(name, epoch) for name in small}
        lasting = {name: small[name] for name, since in self.small_since.items() if epoch - since >= 1}
        if lasting and not self.is_done:
            self.is_done = True
            listed = ", ".join(f"{name} {100 * share:.2g}%" for name, share in list(lasting.items())[:5])
            logger.info(
                "%d of %d stages have counted less than %g%% of their block for an epoch (%s%s): such a block acts "
                "like a residual one. Gates often end up like this; --config_overrides "
                "%s_coefficients=scaled_gate keeps them open",
                *(len(lasting), len(means), 100 * LEAST_SHARE, listed, ", ..." * (len(lasting) > 5)),
                next(iter(lasting)).partition("_")[0],
            )


def warn_of_empty(texts: Sequence[str], split: str) -> bool:
    """Warns if more than half of the outputs are empty. Returns whether it did."""
    empty = sum(not text.strip() for text in texts)
    if 2 * empty <= len(texts):
        return False
    logger.warning(
        "%d of %d outputs for the %s data are empty: the model ends them at once. Train longer, lower "
        "--learning_rate, or lengthen the warm-up; --min_target_length 1 forbids empty outputs",
        *(empty, len(texts), split),
    )
    return True
