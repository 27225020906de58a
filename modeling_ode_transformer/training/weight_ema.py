# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""An exponential moving average of the weights (Polyak and Juditsky, 1992), kept during training."""

from collections.abc import Iterator

import torch
from transformers import TrainerCallback


NAME = "weight_ema"


class WeightEma(TrainerCallback):
    """After each update moves the averages of the trained weights towards them.

    They are in the optimizer's state, which is saved, sharded and resumed with them. The decay of update t is
    min(decay, (1 + t) / (10 + t)), so that the first weights are soon forgotten.
    """

    def __init__(self, decay: float):
        self.decay = decay

    @torch.no_grad()
    def on_optimizer_step(self, args, state, control, optimizer, **kwargs):
        if optimizer.step_was_skipped:  # by a loss scale: weights of a first update have no state yet
            return
        update = state.global_step + 1
        decay = min(self.decay, (1 + update) / (10 + update))
        for weight in weights_of(optimizer):
            # An optimizer takes a weight for new while it has no state.
            if NAME in optimizer.state[weight]:
                optimizer.state[weight][NAME].lerp_(weight, 1 - decay)
            elif weight.grad is not None:
                optimizer.state[weight][NAME] = weight.detach().clone()


def weights_of(optimizer) -> Iterator[torch.nn.Parameter]:
    return (weight for group in optimizer.param_groups for weight in group["params"])


@torch.no_grad()
def load_weight_ema(optimizer) -> None:
    """Replaces the weights by their averages.

    Raises:
        ValueError: there are none: the checkpoint that is resumed was trained without `weight_ema`.
    """
    averaged = [weight for weight in weights_of(optimizer) if NAME in optimizer.state[weight]]
    if not averaged:
        raise ValueError("The optimizer holds no averages of the weights: they were trained without weight_ema.")
    for weight in averaged:
        weight.copy_(optimizer.state[weight][NAME])
