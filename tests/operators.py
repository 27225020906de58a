# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Counts the operators that reach a device: on a GPU, whose steps wait for Python, what a step costs."""

from collections import Counter

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class CountOperators(TorchDispatchMode):
    """Within the context, `counts` are the calls of ATen operators by their names, in the forward and in the backward
    pass, views and allocations left out; `calls` pairs of a name and the shape of the first argument."""

    left_out = ("detach", "empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "lift_fresh")

    def __init__(self):
        super().__init__()
        self.calls: list[tuple[str, tuple[int, ...]]] = []

    @property
    def counts(self) -> Counter:
        return Counter(name for name, _ in self.calls)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        is_view = func.is_view or name in ("_unsafe_view", "_reshape_alias")
        if not is_view and name not in self.left_out:
            shape = tuple(args[0].shape) if args and isinstance(args[0], torch.Tensor) else ()
            self.calls.append((name, shape))
        return func(*args, **(kwargs or {}))
