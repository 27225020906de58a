# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The mathematics of the ODE Transformer: Butcher tableaus, the weights of their stages and the one Runge-Kutta loop.

Nothing here needs transformers. Equation numbers are those of Li et al., "ODE Transformer: An Ordinary Differential
Equation-Inspired Model for Sequence Generation" (ACL 2022).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class ButcherTableau:
    """An explicit Runge-Kutta scheme: data, from which `integrate` makes a step.

    Stage `i` is evaluated at `y + sum_j a[i][j] F_j`, and the step is `y + sum_i b[i] F_i` (eqs. 8-11, where `a` is
    written beta and `b` is written gamma).

    Args:
        a: one row of floats per stage, strictly lower triangular. Row `i` may have any length; the entries from `i` on
            must be zero and are dropped.
        b: one weight per stage.

    Raises:
        ValueError: `a` is not strictly lower triangular, or the lengths of `a` and `b` differ, or there is no stage,
            or an entry is not a finite number.
    """

    a: tuple[tuple[float, ...], ...]
    b: tuple[float, ...]

    def __post_init__(self):
        rows, weights = tuple(tuple(row) for row in self.a), tuple(self.b)
        if not weights:
            raise ValueError("A Butcher tableau needs at least one stage, but `b` is empty.")
        if len(rows) != len(weights):
            raise ValueError(
                f"A Butcher tableau has one row of `a` for each weight of `b`, but `a` has {len(rows)} rows and `b` "
                f"has {len(weights)} weights: a={self.a}, b={self.b}."
            )
        for number in (*weights, *(number for row in rows for number in row)):
            if isinstance(number, bool) or not isinstance(number, (int, float)) or abs(number) == float("inf"):
                raise ValueError(f"The entries of a Butcher tableau are finite numbers, but one is {number!r}.")
            if number != number:
                raise ValueError(f"The entries of a Butcher tableau are finite numbers, but one is nan: {self}.")
        for i, row in enumerate(rows):
            if len(row) < i or any(row[i:]):
                raise ValueError(
                    "An explicit Runge-Kutta scheme has a strictly lower triangular `a`: row i holds i numbers, "
                    f"followed by zeros at most. Row {i} is {list(row)}."
                )
        object.__setattr__(self, "a", tuple(tuple(map(float, row[:i])) for i, row in enumerate(rows)))
        object.__setattr__(self, "b", tuple(map(float, weights)))

    @property
    def num_stages(self) -> int:
        """How many times the vector field is evaluated in one step."""
        return len(self.b)

    @property
    def is_consistent(self) -> bool:
        """Whether the weights sum to 1, the condition for order 1 (to 1e-6: users write 0.333333)."""
        return abs(sum(self.b) - 1.0) < 1e-6

    def to_dict(self) -> dict[str, list]:
        """The tableau as JSON types, as a configuration keeps it."""
        return {"a": [list(row) for row in self.a], "b": list(self.b)}


TABLEAUS: dict[str, ButcherTableau] = {
    "euler": ButcherTableau(a=((),), b=(1,)),
    # Heun's improved Euler, eqs. 12-14
    "rk2": ButcherTableau(a=((), (1,)), b=(1 / 2, 1 / 2)),
    "midpoint": ButcherTableau(a=((), (1 / 2,)), b=(0, 1)),
    "ralston": ButcherTableau(a=((), (2 / 3,)), b=(1 / 4, 3 / 4)),
    # Kutta's third-order scheme
    "rk3": ButcherTableau(a=((), (1 / 2,), (-1, 2)), b=(1 / 6, 4 / 6, 1 / 6)),
    # the classical scheme, eqs. 15-19
    "rk4": ButcherTableau(a=((), (1 / 2,), (0, 1 / 2), (0, 0, 1)), b=(1 / 6, 1 / 3, 1 / 3, 1 / 6)),
    # the 3/8 rule
    "rk4_38": ButcherTableau(a=((), (1 / 3,), (-1 / 3, 1), (1, -1, 1)), b=(1 / 8, 3 / 8, 3 / 8, 1 / 8)),
}


def resolve_tableau(solver: str | Mapping[str, Sequence] | ButcherTableau) -> ButcherTableau:
    """Returns the tableau of a solver given by its name, or as a mapping with the entries `a` and `b`.

    Raises:
        ValueError: an unknown name, a mapping with other keys, or an invalid tableau.
    """
    if isinstance(solver, ButcherTableau):
        return solver
    if isinstance(solver, str) and solver in TABLEAUS:
        return TABLEAUS[solver]
    if isinstance(solver, Mapping) and set(solver) == {"a", "b"}:
        return ButcherTableau(a=solver["a"], b=solver["b"])
    raise ValueError(
        f"Unknown solver {solver!r}: choose one of {', '.join(TABLEAUS)}, or give a tableau "
        '{"a": [[], ...], "b": [...]}.'
    )


class StageCoefficients(nn.Module):
    """How much each stage of a step counts: the gamma of eq. 8.

    Args:
        tableau: the scheme whose stages are weighed.
        hidden_size: the size `d` of the stages' last dimension.

    `forward` takes the `n` stages, each of shape (..., d), and returns `n` weights: floats, scalars, or tensors of
    shape (..., 1). `reset_parameters` sets the initial values.
    """

    def __init__(self, tableau: ButcherTableau, hidden_size: int):
        super().__init__()
        self.tableau = tableau

    def reset_parameters(self):
        pass

    def forward(self, stages: Sequence[torch.Tensor]) -> Sequence[float | torch.Tensor]:
        raise NotImplementedError


class FixedCoefficients(StageCoefficients):
    """The tableau's own weights."""

    def forward(self, stages):
        return self.tableau.b


class OnesCoefficients(StageCoefficients):
    """All weights 1 (eq. 23)."""

    def forward(self, stages):
        return (1.0,) * len(stages)


class LearnedCoefficients(StageCoefficients):
    """Free scalars, which start at 1 (section 3.2)."""

    def __init__(self, tableau, hidden_size):
        super().__init__(tableau, hidden_size)
        self.weight = nn.Parameter(torch.ones(tableau.num_stages))

    def reset_parameters(self):
        nn.init.ones_(self.weight)

    def forward(self, stages):
        return self.weight.unbind()


class GateCoefficients(StageCoefficients):
    """For two stages: `g = sigmoid([F1; F2] W + b)`, one scalar per token, and the weights g and 1 - g (eqs.
    25-26)."""

    def __init__(self, tableau, hidden_size):
        super().__init__(tableau, hidden_size)
        self.gate = nn.Linear(2 * hidden_size, 1)

    def reset_parameters(self):
        nn.init.xavier_uniform_(self.gate.weight)
        nn.init.zeros_(self.gate.bias)

    def forward(self, stages):
        g = torch.sigmoid(self.gate(torch.cat(list(stages), dim=-1)))
        return g, 1 - g


class SigmoidCoefficients(StageCoefficients):
    """A gate of its own for each stage, computed from all stages: `gamma_i = sigmoid([F1; ...; Fn] W_i + b_i)` (table
    10)."""

    activation = staticmethod(torch.sigmoid)

    def __init__(self, tableau, hidden_size):
        super().__init__(tableau, hidden_size)
        self.gate = nn.Linear(tableau.num_stages * hidden_size, tableau.num_stages)

    reset_parameters = GateCoefficients.reset_parameters

    def forward(self, stages):
        return self.activation(self.gate(torch.cat(list(stages), dim=-1))).split(1, dim=-1)


class TanhCoefficients(SigmoidCoefficients):
    """As `SigmoidCoefficients`, with tanh (table 10)."""

    activation = staticmethod(torch.tanh)


class EmaCoefficients(StageCoefficients):
    """`gamma_i = alpha (1 - alpha)^(n - i)` with a learned alpha that starts at 1/2 (PCformer, NeurIPS 2024)."""

    def __init__(self, tableau, hidden_size):
        super().__init__(tableau, hidden_size)
        self.alpha = nn.Parameter(torch.full((1,), 0.5))

    def reset_parameters(self):
        nn.init.constant_(self.alpha, 0.5)

    def forward(self, stages):
        return [self.alpha * (1 - self.alpha) ** (len(stages) - i) for i in range(1, len(stages) + 1)]


COEFFICIENTS: dict[str, type[StageCoefficients]] = {
    "fixed": FixedCoefficients,
    "ones": OnesCoefficients,
    "learned": LearnedCoefficients,
    "gate": GateCoefficients,
    "sigmoid": SigmoidCoefficients,
    "tanh": TanhCoefficients,
    "ema": EmaCoefficients,
}


def integrate(
    vector_field: Callable[[torch.Tensor, int], torch.Tensor],
    y: torch.Tensor,
    tableau: ButcherTableau,
    coefficients: Callable[[Sequence[torch.Tensor]], Sequence[float | torch.Tensor]] | None = None,
    step_size: float = 1.0,
    num_steps: int = 1,
) -> torch.Tensor:
    """Makes `num_steps` explicit Runge-Kutta steps of size h (eqs. 8-11): `F_i = h F(y + sum_j a_ij F_j)`,
    `y <- y + sum_i gamma_i F_i`.

    Args:
        vector_field: `F(z, evaluation)`, with z of y's shape and `evaluation` the number of the call, counted from 0
            over all stages of all steps. Returns a tensor of y's shape.
        y: the state, of any shape and floating dtype.
        tableau: the scheme.
        coefficients: given the stages, their weights; None: the tableau's own.
        step_size: h.
        num_steps: how many steps.

    Returns:
        The state after the steps, of y's shape.
    """
    for step in range(num_steps):
        stages = []
        for i, row in enumerate(tableau.a):
            z = weighted_sum(y, row, stages)
            stage = vector_field(z, step * tableau.num_stages + i)
            stages.append(stage if step_size == 1.0 else step_size * stage)
        y = weighted_sum(y, tableau.b if coefficients is None else coefficients(stages), stages)
    return y


def weighted_sum(
    y: torch.Tensor, weights: Sequence[float | torch.Tensor], terms: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Returns `y + sum_i weights[i] * terms[i]`; terms with the float weight 0 are left out, those with 1 only
    added."""
    for weight, term in zip(weights, terms, strict=True):
        if isinstance(weight, torch.Tensor):
            y = y + weight.to(term.device) * term
        elif weight != 0.0:
            y = torch.add(y, term, alpha=weight)
    return y
