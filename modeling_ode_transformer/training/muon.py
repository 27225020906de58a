# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Muon (Jordan et al., 2024, https://kellerjordan.github.io/posts/muon) for a model's matrices, AdamW for the rest.

Muon makes the momentum of a matrix orthogonal, so that all directions are learned at the same rate.
"""

import logging
from collections import defaultdict
from collections.abc import Collection
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D


logger = logging.getLogger(__name__)

# The quintic iteration of the source: after five steps singular values are between about 0.7 and 1.2.
COEFFICIENTS, STEPS = (3.4445, -4.7750, 2.0315), 5


def orthogonalized(matrices: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """The matrices nearest to the given ones whose rows (or columns, if these are fewer) are orthonormal, about.

    Args:
        matrices: (number, rows, columns).
        dtype: In which it is computed.
    """
    a, b, c = COEFFICIENTS
    x = matrices.to(dtype)
    if is_tall := x.shape[1] > x.shape[2]:
        x = x.mT
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(STEPS):
        squares = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(squares, squares, squares, beta=b, alpha=c), x, beta=a)
    return x.mT if is_tall else x


class Muon(torch.optim.AdamW):
    """Groups of parameters with "muon": True are updated by Muon, the others by AdamW.

    A step of Muon has the root mean square of one of Adam (Liu et al., 2025, arXiv 2502.16982, equation 4), so that
    learning rates of both have the same meaning. Weight decay is decoupled in both.

    Args:
        params: Groups, as of any optimizer. Those of Muon hold matrices only.
        momentum: Of Muon, with Nesterov's correction.
        dtype: In which Muon orthogonalizes. bfloat16 suffices where it is fast.
        others: Options of AdamW.
    """

    def __init__(self, params, momentum: float = 0.95, dtype: torch.dtype = torch.bfloat16, **others):
        super().__init__(params, **others)
        self.momentum, self.dtype = momentum, dtype

    @torch.no_grad()
    def step(self, closure=None):
        groups = self.param_groups
        try:
            self.param_groups = [group for group in groups if not group.get("muon")]
            loss = super().step(closure)
        finally:
            self.param_groups = groups
        for group in groups:
            if group.get("muon"):
                self.update(group)
        return loss

    def update(self, group: dict) -> None:
        """A step of Muon. Matrices of a shape are orthogonalized together; those of FSDP2 gather themselves."""
        shapes = defaultdict(list)
        for parameter in group["params"]:
            if parameter.grad is not None:
                shapes[parameter.shape].append(parameter)
        for (rows, columns), parameters in shapes.items():
            gradients = [parameter.grad for parameter in parameters]
            for parameter in parameters:
                if not self.state[parameter]:
                    # AdamW counts steps, and expects a count in every state that it loads.
                    self.state[parameter].update(step=torch.tensor(0.0), momentum=torch.zeros_like(parameter))
            means = [self.state[parameter]["momentum"] for parameter in parameters]
            torch._foreach_lerp_(means, gradients, 1 - self.momentum)
            updates = torch._foreach_lerp(gradients, means, self.momentum)
            updates = orthogonalized(torch.stack(updates), self.dtype).to(parameters[0].dtype)
            torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
            size = 0.2 * max(rows, columns) ** 0.5
            torch._foreach_add_(parameters, list(updates), alpha=-group["lr"] * size)


def layer_matrices(model: nn.Module) -> set[nn.Parameter]:
    """The weights of the linear layers of attention and feed-forward: not embeddings, output projections, and gates of
    one row."""
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    embeddings = {module.weight for module in model.modules() if isinstance(module, nn.Embedding)}
    linear = {
        module.weight for module in model.modules() if isinstance(module, (nn.Linear, Conv1D)) and module is not head
    }
    return {weight for weight in linear - embeddings if weight.requires_grad and min(weight.shape) > 1}


def muon_groups(model: nn.Module, rate: float, weight_decay: float, decayed: Collection[str]) -> list[dict]:
    """Groups of a model's parameters for `Muon`: its matrices, other weights, and what is not decayed.

    Args:
        rate: Learning rate of the matrices; the others have the optimizer's.
        weight_decay: Of the matrices and of the parameters in `decayed`.
        decayed: Names.

    Raises:
        ValueError: none is a matrix of a linear layer.
    """
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    matrices = layer_matrices(model)
    if not matrices:
        raise ValueError(f"--optim muon: {type(model).__name__} has no linear layers to train. Give another --optim.")
    kinds: dict[tuple[bool, bool], list[nn.Parameter]] = defaultdict(list)
    for name, weight in trained.items():
        kinds[weight in matrices, name in decayed].append(weight)
    logger.info(
        "Muon trains %d matrices of %d parameters, AdamW the other %d tensors of %d",
        *(len(matrices), sum(map(torch.numel, matrices)), len(trained) - len(matrices)),
        sum(map(torch.numel, trained.values())) - sum(map(torch.numel, matrices)),
    )
    groups: list[dict[str, Any]] = []
    for (is_matrix, is_decayed), weights in kinds.items():
        groups.append({"params": weights, "weight_decay": weight_decay if is_decayed else 0.0, "muon": is_matrix})
        if is_matrix:
            groups[-1]["lr"] = rate
    return groups
