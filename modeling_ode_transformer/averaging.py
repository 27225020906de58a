# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The mean of the tensors of checkpoints, and checks that they are of one model."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch


def check_distinct(paths: Sequence[str | Path]) -> None:
    """Raises a ValueError with the paths that are given twice, however they are written."""
    files = [Path(path).resolve() for path in paths]
    if repeated := [str(path) for i, path in enumerate(paths) if files[i] in files[:i]]:
        raise ValueError(f"{', '.join(repeated)} is given twice: give each checkpoint once.")


def check_same(first_path: Any, first: Mapping[str, Any], path: Any, other: Mapping[str, Any]) -> None:
    """Raises a ValueError that names both paths and the keys if two mappings differ."""
    if differing := sorted(name for name in first.keys() | other if first.get(name) != other.get(name)):
        values = ", ".join(f"{name} ({first.get(name)!r} and {other.get(name)!r})" for name in differing[:8])
        raise ValueError(f"{first_path} and {path} cannot be averaged: they differ in {values}.")


class TensorMean:
    """The mean of tensors by name, summed in float64. Integer tensors are not averaged: they must agree."""

    def __init__(self):
        self.paths = []
        self.totals: dict[str, torch.Tensor] = {}

    def add(self, path: Any, tensors: Mapping[str, torch.Tensor]) -> None:
        """Adds the tensors of one checkpoint, which errors call by its `path`.

        Raises:
            ValueError: names or shapes differ from those of the first checkpoint, integers differ, or a value is not
                a number.
        """
        if self.paths:
            shapes = [{name: tuple(value.shape) for name, value in each.items()} for each in (self.totals, tensors)]
            check_same(self.paths[0], shapes[0], path, shapes[1])
        for name, tensor in tensors.items():
            if tensor.is_floating_point():
                tensor = tensor.to(torch.float64, copy=True)
                if tensor.isnan().any():
                    raise ValueError(f"{path} cannot be averaged: {name} holds NaN values.")
            if not self.paths:
                self.totals[name] = tensor
            elif tensor.is_floating_point():
                self.totals[name] += tensor
            elif not torch.equal(tensor, self.totals[name]):
                raise ValueError(f"{self.paths[0]} and {path} cannot be averaged: their integers differ in {name}.")
        self.paths.append(path)

    def means(self) -> dict[str, torch.Tensor]:
        """The means, in float64, and the integers as they are."""
        return {
            name: total / len(self.paths) if total.is_floating_point() else total
            for name, total in self.totals.items()
        }
