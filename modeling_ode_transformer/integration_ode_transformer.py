# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The mathematics of the ODE Transformer: the Runge-Kutta loop, Butcher tableaus, stage weights, and what a block
reads from the blocks below.

Nothing here needs transformers. Equation and table numbers refer to Li et al., "ODE Transformer: An Ordinary
Differential Equation-Inspired Model for Sequence Generation" (ACL 2022).

To add a scheme, add an entry to `SCHEMES`: a tableau, a class of multistep schemes, or a predictor with corrections.
A kind of stage weights is a class in `COEFFICIENTS`, and a layer history a class in `HISTORIES`. The configuration
reads their names. `schemes_ode_transformer.py` adds those that are not the paper's method.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn


def integrate(
    vector_field: Callable[[torch.Tensor, int], torch.Tensor],
    y: torch.Tensor,
    tableau: "ButcherTableau",
    coefficients: Callable[[Sequence[torch.Tensor]], Sequence[float | torch.Tensor]] | None = None,
    step_size: float = 1.0,
    num_steps: int = 1,
    stage_norms: Sequence[Callable[[torch.Tensor], torch.Tensor]] | None = None,
) -> torch.Tensor:
    """Makes `num_steps` explicit steps of size h (eqs. 8-11): `F_i = h F(y + sum_j a_ij F_j)`,
    `y <- y + sum_i gamma_i F_i`.

    Args:
        vector_field: `F(z, evaluation)`, where z has y's shape and `evaluation` counts the calls from 0, over all
            stages of all steps. Returns a tensor of y's shape.
        y: the state, of any shape and floating dtype.
        tableau: the scheme.
        coefficients: returns the weights of the stages it is given; None: the tableau's own.
        step_size: h.
        num_steps: the number of steps.
        stage_norms: for each stage, what normalizes it before it is weighted; None: no norms.

    Returns:
        The state after the steps, of y's shape.
    """
    for step in range(num_steps):
        stages = []
        for i, (start, row) in enumerate(zip(tableau.y, tableau.a)):
            z = weighted_sum(y if start == 1.0 else start * y, row, stages)
            stage = vector_field(z, step * tableau.num_stages + i)
            stages.append(stage if step_size == 1.0 else step_size * stage)
        if stage_norms is not None:
            stages = [norm(stage) for norm, stage in zip(stage_norms, stages, strict=True)]
        y = weighted_sum(y, tableau.b if coefficients is None else coefficients(stages), stages)
    return y


def weighted_sum(
    y: torch.Tensor, weights: Sequence[float | torch.Tensor], terms: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Returns `y + sum_i weights[i] * terms[i]`. Terms of float weight 0 are skipped. Terms may be on other devices:
    layers and what they share may be placed apart."""
    for weight, term in zip(weights, terms, strict=True):
        term = term.to(y.device)
        if isinstance(weight, torch.Tensor):
            y = y + weight.to(term.device) * term
        elif weight != 0.0:
            y = torch.add(y, term, alpha=weight)
    return y


def clamp_half(x: torch.Tensor) -> torch.Tensor:
    """Keeps float16 values finite and leaves room for an increment: sums in a Runge-Kutta step are large."""
    if x.dtype != torch.float16:
        return x
    limit = torch.finfo(torch.float16).max - 1000
    return x.clamp(min=-limit, max=limit)


# For sums of coefficients: users write 0.333333, and up to ten rounding errors of 5e-7 add up.
TOLERANCE = 5e-6
# For tableau entries and step sizes: half precision overflows soon after.
LARGEST = 2**15


@dataclass(frozen=True)
class ButcherTableau:
    """An explicit one-step scheme as data for `integrate`.

    Stage `i` is evaluated at `y + sum_j a[i][j] F_j`, and the step is `y + sum_i b[i] F_i` (eqs. 8-11, which call
    `a` beta and `b` gamma).

    Args:
        a: one row of floats per stage, strictly lower triangular. Row `i` may be longer than `i` if the rest is zero.
        b: one weight per stage. With fixed coefficients, a model needs them to sum to 1.
        y: the share of the state that each stage starts from; None: all of it, as in every Runge-Kutta scheme.

    Raises:
        ValueError: `a` is not strictly lower triangular, the lengths of `a`, `b` and `y` differ, there is no stage,
            or an entry is not a number within ±32768.
    """

    a: tuple[tuple[float, ...], ...]
    b: tuple[float, ...]
    y: tuple[float, ...] | None = None

    def __post_init__(self):
        rows, weights = [tuple(map(float, row)) for row in self.a], tuple(map(float, self.b))
        starts = (1.0,) * len(weights) if self.y is None else tuple(map(float, self.y))
        if not all(abs(number) <= LARGEST for row in (*rows, weights, starts) for number in row):
            raise ValueError(f"A Butcher tableau has numbers within ±{LARGEST}, unlike {self}.")
        if not weights:
            raise ValueError("A Butcher tableau needs at least one stage, but `b` is empty.")
        if not len(rows) == len(weights) == len(starts):
            raise ValueError(
                f"A Butcher tableau has one row of `a` for each weight of `b`, but `a` has {len(rows)} rows and `b` "
                f"has {len(weights)} weights (and `y`, if given, {len(starts)} entries): {self}."
            )
        for i, row in enumerate(rows):
            if len(row) < i or any(row[i:]):
                raise ValueError(
                    f"Row {i} of `a` is {list(row)}, but an explicit Runge-Kutta scheme has a strictly lower "
                    "triangular `a`: give row i its i numbers, and only zeros after them."
                )
        object.__setattr__(self, "a", tuple(row[:i] for i, row in enumerate(rows)))
        object.__setattr__(self, "b", weights)
        object.__setattr__(self, "y", starts)

    @property
    def num_stages(self) -> int:
        """The number of evaluations of the vector field in one step."""
        return len(self.b)

    @property
    def is_runge_kutta(self) -> bool:
        """Whether every stage starts from the whole state."""
        return set(self.y) == {1.0}

    @property
    def total_weight(self) -> float:
        """The sum of the weights of the stages that start from the whole state: 1 if the scheme has order 1."""
        return sum(weight for weight, start in zip(self.b, self.y) if start == 1.0)

    @property
    def is_consistent(self) -> bool:
        """Whether `total_weight` is 1 within `TOLERANCE`."""
        return abs(self.total_weight - 1.0) < TOLERANCE

    def to_dict(self) -> dict[str, list]:
        """The tableau in JSON types, as configurations store it."""
        tableau: dict[str, list] = {"a": [list(row) for row in self.a], "b": list(self.b)}
        return tableau if self.is_runge_kutta else tableau | {"y": list(self.y)}

    @classmethod
    def from_json_file(cls, path: str | Path) -> "ButcherTableau":
        """Reads `{"a": [[], [0.5]], "b": [0, 1]}`.

        Raises:
            OSError: the file does not exist or cannot be read.
            TypeError: the file holds something else.
            ValueError: the file is not JSON, or the tableau is invalid.
        """
        return cls(**json.loads(Path(path).read_text(encoding="utf-8")))


EULER = ButcherTableau(a=((),), b=(1,))


class Scheme(NamedTuple):
    """What a solver of a configuration means.

    Args:
        tableau: the one-step scheme; Euler's for a multistep scheme.
        multistep: the class of a multistep scheme, or None.
        corrector_iterations: further evaluations. They correct a step, then only a prediction, over the layer history
            (PCformer, IIET).
    """

    tableau: ButcherTableau
    multistep: "type[MultistepScheme] | None" = None
    corrector_iterations: int = 0


SCHEMES: "dict[str, ButcherTableau | type[MultistepScheme] | dict[str, Any]]" = {
    "euler": EULER,
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
    # PolyNet (Zhang et al., 2017; table 7): y + F(y) + F(F(y)), the first terms of a backward Euler step
    "polynet": ButcherTableau(a=((), (1,)), b=(1, 1), y=(1, 0)),
    # PCformer (Li et al., NeurIPS 2024)
    "pcformer": {"predictor": "rk2", "corrector_iterations": 1},
    # IIET (EMNLP 2025)
    "iiet": {"predictor": "euler", "corrector_iterations": 3},
}
# The schemes that travel as names.
NAMED = frozenset(SCHEMES)


def resolve_scheme(solver: Any) -> Scheme:
    """The scheme of a solver: a name in `SCHEMES` or one of its entries, a mapping with the entries `a`, `b` and
    optionally `y` of a tableau, or one with `predictor`, a solver, and `corrector_iterations`.

    Raises:
        ValueError: an unknown name, a mapping with other keys, an invalid tableau, a number of iterations below 1, or
            a predictor that corrects its steps itself.
    """
    entry = SCHEMES.get(solver) if isinstance(solver, str) else solver
    if isinstance(entry, Mapping) and {"a", "b"} <= set(entry) <= {"a", "b", "y"}:
        entry = ButcherTableau(**entry)
    if isinstance(entry, ButcherTableau):
        return Scheme(entry)
    if isinstance(entry, type) and issubclass(entry, MultistepScheme):
        return Scheme(EULER, multistep=entry)
    if not isinstance(entry, Mapping) or set(entry) != {"predictor", "corrector_iterations"}:
        raise ValueError(
            f"Unknown solver {solver!r}: choose one of {', '.join(SCHEMES)}, or give a tableau "
            '{"a": [[], ...], "b": [...]} (from a file: ButcherTableau.from_json_file), or a corrected scheme '
            '{"predictor": ..., "corrector_iterations": 1}.'
        )
    predictor, number = entry["predictor"], entry["corrector_iterations"]
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise ValueError(f"corrector_iterations={number!r} must be an integer of at least 1.")
    scheme = resolve_scheme(predictor)
    if scheme.corrector_iterations:
        raise ValueError(f"predictor={predictor!r} corrects its steps itself: give another scheme.")
    return scheme._replace(corrector_iterations=number)


def as_data(solver: Any) -> Any:
    """A solver in JSON types, as configurations store it; what users have added to `SCHEMES` as data is so, too."""
    entry = SCHEMES.get(solver, solver) if isinstance(solver, str) and solver not in NAMED else solver
    if isinstance(entry, ButcherTableau):
        return entry.to_dict()
    if isinstance(entry, Mapping) and "predictor" in entry:
        return {**entry, "predictor": as_data(entry["predictor"])}
    return solver


class StageCoefficients(nn.Module):
    """The weights of a step's stages: gamma in eq. 8.

    Args:
        tableau: the scheme whose stages are weighted.
        hidden_size: the size `d` of the stages' last dimension.
        per_channel: whether each of the `d` channels has its own weights (only if `can_be_per_channel`).
        start: where free weights begin, one of the class's `starts`; by default, and in place of others, the first.

    `forward` takes the `n` stages, each of shape (..., d), and returns `n` weights: floats, scalars, or tensors of
    shape (..., 1) or (d,). A class with `initial_weight()` has a parameter `weight` that starts there.
    """

    can_be_per_channel = False
    starts: tuple[str, ...] = ()
    num_stages: int | None = None  # that a scheme must have; None: any

    def __init__(self, tableau: ButcherTableau, hidden_size: int, per_channel: bool = False, start: str | None = None):
        super().__init__()
        self.tableau = tableau
        self.start = start if start in self.starts else next(iter(self.starts), None)
        self.channels = (hidden_size,) if per_channel else ()
        if hasattr(self, "initial_weight"):
            self.weight = nn.Parameter(self.initial_weight())

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


# Where learned weights start: at 1 (the paper, section 3.2), at the tableau's weights, at a residual block, or equal
# with sum 1. Gates start there with weights of zero, or with random ones ("random").
STARTS: dict[str, Callable[[ButcherTableau], Sequence[float]]] = {
    "ones": lambda tableau: (1.0,) * tableau.num_stages,
    "tableau": lambda tableau: tableau.b,
    "euler": lambda tableau: (1.0,) + (0.0,) * (tableau.num_stages - 1),
    "even": lambda tableau: (1 / tableau.num_stages,) * tableau.num_stages,
}


class LearnedCoefficients(StageCoefficients):
    """Free weights, one for each stage: scalars, or vectors (d,) if per channel."""

    can_be_per_channel = True
    starts = tuple(STARTS)

    def initial_weight(self) -> torch.Tensor:
        weights = torch.tensor(STARTS[self.start](self.tableau))
        return weights.view(-1, *[1] * len(self.channels)).repeat(1, *self.channels)

    def forward(self, stages):
        return self.weight.unbind()


class StageGate(nn.Module):
    """A linear layer that computes stage weights. It is not an `nn.Linear`, so that quantizers leave it alone:
    coefficients keep their precision. With a `bias`, biases start there and weights at zero."""

    def __init__(self, in_features: int, out_features: int, bias: tuple[float, ...] | None = None):
        super().__init__()
        self.initial_bias = bias
        linear = nn.Linear(in_features, out_features)
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight, self.bias)


class GateCoefficients(StageCoefficients):
    """For two stages: `g = sigmoid([F1; F2] W + b)`, one scalar per token; the weights are g and 1 - g (eqs. 25-26).
    With `start="even"`, W and b start at zero, so that g is 1/2."""

    starts = ("random", "even")
    num_stages = 2

    def __init__(self, tableau, hidden_size, per_channel=False, start=None):
        super().__init__(tableau, hidden_size, start=start)
        bias = (0.0,) if self.start == "even" else None
        self.gate = StageGate(2 * hidden_size, 1, bias)

    def forward(self, stages):
        g = torch.sigmoid(self.gate(torch.cat(list(stages), dim=-1)))
        return g, 1 - g


class SigmoidCoefficients(StageCoefficients):
    """One gate for each stage, computed from all stages: `gamma_i = sigmoid([F1; ...; Fn] W_i + b_i)` (table 10). With
    `start="even"`, W starts at zero, and every weight at 1/n."""

    starts = ("random", "even")
    activation = staticmethod(torch.sigmoid)
    inverse: Callable[[float], float] = staticmethod(lambda weight: math.log(weight / (1 - weight)))

    def __init__(self, tableau, hidden_size, per_channel=False, start=None):
        super().__init__(tableau, hidden_size, start=start)
        bias = tuple(map(self.inverse, STARTS[self.start](tableau))) if self.start in STARTS else None
        self.gate = StageGate(tableau.num_stages * hidden_size, tableau.num_stages, bias)

    def forward(self, stages):
        return self.activation(self.gate(torch.cat(list(stages), dim=-1))).split(1, dim=-1)


class TanhCoefficients(SigmoidCoefficients):
    """As `SigmoidCoefficients`, with tanh (table 10)."""

    activation = staticmethod(torch.tanh)
    inverse = staticmethod(math.atanh)


COEFFICIENTS: dict[str, type[StageCoefficients]] = {
    "fixed": FixedCoefficients,
    "ones": OnesCoefficients,
    "learned": LearnedCoefficients,
    "gate": GateCoefficients,
    "sigmoid": SigmoidCoefficients,
    "tanh": TanhCoefficients,
}


class MultistepScheme(nn.Module):
    """A scheme that computes `y_{t+1}` from `y_0 ... y_t` and `F(y_0) ... F(y_t)` (table 7).

    Args:
        num_steps: the number of steps of the whole integration, for schemes with parameters for each step.

    `forward` takes the steps made so far, `t + 1` pairs of a state and its `increment`, and returns the next state.
    The first step is Euler's. A class with `initial_weight()` has a parameter `weight` that starts there.
    """

    def __init__(self, num_steps: int):
        super().__init__()
        self.num_steps = num_steps
        if hasattr(self, "initial_weight"):
            self.weight = nn.Parameter(self.initial_weight())

    def increment(
        self,
        vector_field: Callable[[torch.Tensor], torch.Tensor],
        y: torch.Tensor,
        steps: Sequence[tuple[torch.Tensor, torch.Tensor]],
    ) -> torch.Tensor:
        """What the step from `y` stores beside `y`: the field at `y`, unless a scheme evaluates it elsewhere."""
        return vector_field(y)

    def forward(self, steps: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        raise NotImplementedError


def integrate_multistep(
    vector_field: Callable[[torch.Tensor, int], torch.Tensor],
    y: torch.Tensor,
    scheme: MultistepScheme,
    steps: tuple[tuple[torch.Tensor, torch.Tensor], ...] = (),
    step_size: float = 1.0,
    num_steps: int = 1,
) -> tuple[torch.Tensor, tuple[tuple[torch.Tensor, torch.Tensor], ...]]:
    """Makes `num_steps` steps of a multistep scheme, each with one evaluation of the field.

    Args:
        vector_field: as in `integrate`.
        y: the state, of any shape and floating dtype.
        scheme: the scheme.
        steps: the steps made so far, pairs of a state and its increment.
        step_size: h.
        num_steps: the number of steps.

    Returns:
        The state after the steps, and all steps made so far.
    """
    for step in range(num_steps):

        def field(z: torch.Tensor, step: int = step) -> torch.Tensor:
            increment = vector_field(z, step)
            return increment if step_size == 1.0 else step_size * increment

        steps = (*steps, (y, scheme.increment(field, y, steps)))
        y = scheme(steps)
    return y, steps


def normalized(vector_field: Callable, norms: nn.ModuleList) -> Callable:
    """A vector field that normalizes each stage by its norm at once: later stages start from normalized ones."""
    return lambda z, evaluation: norms[evaluation % len(norms)](vector_field(z, evaluation)).to(z.device)


class LayerHistory(nn.Module):
    """What a block reads from the blocks below: in this class, the last output only.

    Args:
        num_layers: the number of blocks.
        hidden_size: the size of the states' last dimension.
        eps: that of layer norms.

    A class with `initial_weight()` has a parameter `weight` that starts there.
    """

    def __init__(self, num_layers: int, hidden_size: int, eps: float):
        super().__init__()
        self.num_layers = num_layers
        if hasattr(self, "initial_weight"):
            self.weight = nn.Parameter(self.initial_weight())

    def forward(self, states: list[torch.Tensor]) -> torch.Tensor:
        """Returns the next block's input, from the embedding and the outputs that `extend` added."""
        return states[-1]

    def extend(self, states: list[torch.Tensor], y: torch.Tensor, output: torch.Tensor) -> list[torch.Tensor]:
        """Returns the states extended by what is kept of a block that maps `y` to `output`."""
        return [output]


class DenseLayerHistory(LayerHistory):
    """Dense connections (Wang et al., 2019): the mean of the embedding and all normalized outputs of blocks below."""

    def __init__(self, num_layers, hidden_size, eps):
        super().__init__(num_layers, hidden_size, eps)
        self.layer_norms = nn.ModuleList(nn.LayerNorm(hidden_size, eps=eps) for _ in range(num_layers))

    def forward(self, states):
        first, *others = states[-1].new_full((len(states),), 1 / len(states)).unbind()
        return weighted_sum(first * states[0], others, states[1:])

    def extend(self, states, y, output):
        return [*states, self.layer_norms[len(states) - 1](output)]


class LearnedDenseLayerHistory(DenseLayerHistory):
    """DLCL (Wang et al., 2019): learned weights, a row for each block and one for the end. They start at the mean of
    `DenseLayerHistory`."""

    def initial_weight(self) -> torch.Tensor:
        size = self.num_layers + 1
        return torch.tril(torch.ones(size, size)) / torch.arange(1, size + 1).unsqueeze(1)

    def forward(self, states):
        first, *others = self.weight[len(states) - 1, : len(states)].to(states[0].device).unbind()
        y = first * states[0]
        for weight, state in zip(others, states[1:], strict=True):
            y = y + weight * state.to(y.device)
        return y


HISTORIES: dict[str, type[LayerHistory]] = {
    "learned_dense": LearnedDenseLayerHistory,
    "dense": DenseLayerHistory,
    "none": LayerHistory,
}
