# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The initial value problem of CSAODE: `dG/dt = F(G, t)` from `G(0)` to about `t = 1`, and its gradient.

Nothing here needs transformers. Equation numbers are those of the CSAODE paper. A state has the shape (batch, length,
d). A field is called as `field(state, time)`, where time is a float or a tensor (batch,), and returns a state.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.autograd.function import once_differentiable

from .integration_ode_transformer import ButcherTableau, integrate, resolve_scheme, weighted_sum


Field = Callable[[torch.Tensor, float | torch.Tensor], torch.Tensor]

RK4 = resolve_scheme("rk4").tableau


class AcceleratedTableau(NamedTuple):
    """A two-step scheme that evaluates its stages once and uses them twice (Udwadia and Farahani, 2008; eq. 9).

    With the stages `Z_i = r F(G + a_i Z_{i-1})` of this step and `Z_-i` of the previous one,
    `G(t + r) = G(t) + sum_i (weights_i Z_i - previous_weights_i Z_-i)`. These are the members of eq. 9 with
    `c_-0 = 0`, which do not need the previous state.

    Args:
        a: how far each stage moves along the one before it; 0 for the first.
        weights, previous_weights: one per stage; in eq. 9 the two differ only for the first stage.
        start: for each stage, weights of the stages of a first step by the classical RK4. The sum equals the stage to
            O(r^4), so the second step needs no further evaluation.
    """

    a: tuple[float, ...]
    weights: tuple[float, ...]
    previous_weights: tuple[float, ...]
    start: tuple[tuple[float, ...], ...]


# The method of fourth order with a_2 = 1/2: examples/analysis/accelerated_runge_kutta.py.
ARK4 = AcceleratedTableau(
    a=(0, 1 / 2, 7 / 8),
    weights=(20 / 21, 1 / 6, 8 / 21),
    previous_weights=(-1 / 21, 1 / 6, 8 / 21),
    start=((1, 0, 0, 0), (0, 1, 0, 0), (-3 / 32, 0, 14 / 32, 21 / 32)),
)


class EmbeddedTableau(NamedTuple):
    """A Runge-Kutta scheme, and the weights of a second one with the same stages, one order lower. The difference of
    the two estimates the error of a step. `order` is the second scheme's."""

    tableau: ButcherTableau
    lower: tuple[float, ...]
    order: int


# Fehlberg (1969), of orders 5 and 4.
RKF45 = EmbeddedTableau(
    ButcherTableau(
        a=(
            (),
            (1 / 4,),
            (3 / 32, 9 / 32),
            (1932 / 2197, -7200 / 2197, 7296 / 2197),
            (439 / 216, -8, 3680 / 513, -845 / 4104),
            (-8 / 27, 2, -3544 / 2565, 1859 / 4104, -11 / 40),
        ),
        b=(16 / 135, 0, 6656 / 12825, 28561 / 56430, -9 / 50, 2 / 55),
    ),
    lower=(25 / 216, 0, 1408 / 2565, 2197 / 4104, -1 / 5, 0),
    order=4,
)


@dataclass(frozen=True)
class SolverOptions:
    """How far and how accurately to solve a problem.

    Args:
        step_size: r, the size of the steps; if they are adaptive, that of the first one.
        rtol, atol: relative and absolute tolerance of adaptive steps.
        max_steps: the most adaptive steps, repeated ones included.
    """

    step_size: float = 0.2
    rtol: float = 1e-3
    atol: float = 1e-4
    max_steps: int = 1000

    @property
    def num_steps(self) -> int:
        """T = ceil(1 / r) (eq. 8), the number of steps if they are not adaptive. All have the size r: if 1 / r is not
        an integer, the last one ends beyond 1."""
        return math.ceil(1 / self.step_size - 1e-9)


def stage_times(tableau_nodes: Sequence[float], step_size: float, num_steps: int) -> list[float]:
    """The time of each evaluation."""
    return [(step + node) * step_size for step in range(num_steps) for node in tableau_nodes]


def solve_runge_kutta(
    field: Field, y: torch.Tensor, options: SolverOptions, mask: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """CSARK (eq. 8): `num_steps` steps of the classical RK4.

    Args:
        field, y: the problem.
        options: only `step_size` is used.
        mask: not used.

    Returns:
        The state at `num_steps * step_size`, and the number of evaluations of each sentence, int64 (batch,).
    """
    times = stage_times([sum(row) for row in RK4.a], options.step_size, options.num_steps)
    y = integrate(lambda z, i: field(z, times[i]), y, RK4, None, options.step_size, options.num_steps)
    return y, counts(y, len(times))


def solve_accelerated(
    field: Field, y: torch.Tensor, options: SolverOptions, mask: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """CSAARK (eqs. 9-10): a first step of RK4, then steps of `ARK4`, each with three evaluations.

    Arguments and results are the same as for `solve_runge_kutta`.
    """
    r, scheme = options.step_size, ARK4
    first_stages = []

    def first_field(z, i):
        first_stages.append(field(z, r * sum(RK4.a[i])))
        return first_stages[-1]

    y = integrate(first_field, y, RK4, None, r)
    first_stages = [r * stage for stage in first_stages]
    stages = [weighted_sum(torch.zeros_like(y), weights, first_stages) for weights in scheme.start]
    evaluations = len(first_stages)
    for step in range(1, options.num_steps):
        previous_stages, stages = stages, []
        for a in scheme.a:
            z = torch.add(y, stages[-1], alpha=a) if stages else y
            stages.append(r * field(z, (step + a) * r))
        evaluations += len(stages)
        y = weighted_sum(y, scheme.weights, stages)
        y = weighted_sum(y, [-weight for weight in scheme.previous_weights], previous_stages)
    return y, counts(y, evaluations)


def solve_adaptive(
    field: Field, y: torch.Tensor, options: SolverOptions, mask: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """CSARKF: adaptive steps of Fehlberg's scheme `RKF45` up to exactly 1, continued with the fifth order.

    Every sentence has its own steps. Its error is the root mean square, over its own tokens, of the estimate over
    `atol + rtol max(|y|, |y'|)`. Padding and the other sentences of a batch have no influence.

    Args:
        field, y: the problem.
        options: `step_size` is the first step tried.
        mask: bool (batch, length), False for padding; None: there is none.

    Returns:
        The state at 1, and the number of evaluations of each sentence, int64 (batch,). A finished sentence waits for
        the others; evaluations while it waits do not count for it.

    Raises:
        RuntimeError: the tolerances are not reached within `max_steps` steps, or the state is not finite.
    """
    tableau = RKF45.tableau
    nodes = [sum(row) for row in tableau.a]
    error_weights = [weight - lower for weight, lower in zip(tableau.b, RKF45.lower)]
    mask = y.new_ones(y.shape[:2]) if mask is None else mask.to(y.dtype)
    share = (mask / (mask.sum(dim=1, keepdim=True) * y.shape[-1])).unsqueeze(-1)
    time = y.new_zeros(y.shape[0])
    step_size = torch.full_like(time, min(options.step_size, 1.0))
    evaluations = counts(y, 0)
    for _ in range(options.max_steps):
        remaining = 1 - time
        arrives = step_size >= remaining
        step_size = torch.minimum(step_size, remaining)
        column = step_size.view(-1, 1, 1)
        stages = []
        for row, node in zip(tableau.a, nodes):
            stages.append(column * field(weighted_sum(y, row, stages), time + node * step_size))
        following = weighted_sum(y, tableau.b, stages)
        with torch.no_grad():
            error = weighted_sum(torch.zeros_like(y), error_weights, stages)
            scale = options.atol + options.rtol * torch.maximum(y.abs(), following.abs())
            norm = ((error / scale).square() * share).sum(dim=(1, 2)).sqrt()
            if not norm.isfinite().all():
                raise RuntimeError("The state of an adaptive solver is not finite: check the weights of the model.")
            accepted = norm <= 1
            evaluations += len(stages) * (remaining > 0)
            time = torch.where(accepted, torch.where(arrives, 1, time + step_size), time)
            factor = 0.9 * norm.clamp(min=1e-10) ** (-1 / (RKF45.order + 1))
            step_size = step_size * factor.clamp(0.2, 5)
        y = torch.where(accepted.view(-1, 1, 1), following, y)
        if (time >= 1).all():
            return y, evaluations
    raise RuntimeError(
        f"rtol={options.rtol} and atol={options.atol} are not reached within max_solver_steps={options.max_steps} "
        "steps: raise one of the three."
    )


def counts(y: torch.Tensor, number: int) -> torch.Tensor:
    return torch.full((y.shape[0],), number, dtype=torch.int64, device=y.device)


class Solver(NamedTuple):
    """A way to solve the problem.

    Args:
        solve: the function that solves it.
        adjoint_method: torchdiffeq's name for the solver of the adjoint problem, of the same order.
        evaluations: gives the number of evaluations for a number of steps; None if that depends on the problem.
    """

    solve: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    adjoint_method: str
    evaluations: Callable[[int], int] | None

    @property
    def is_adaptive(self) -> bool:
        return self.evaluations is None


SOLVERS: dict[str, Solver] = {
    "rk": Solver(solve_runge_kutta, "rk4", lambda steps: 4 * steps),
    "rkf": Solver(solve_adaptive, "dopri5", None),
    "ark": Solver(solve_accelerated, "rk4", lambda steps: 4 + 3 * (steps - 1)),
}


class AdjointSolution(torch.autograd.Function):
    """A solution whose gradient comes from solving the adjoint problem backwards in time (Chen et al., 2018, algorithm
    1). The steps are not kept, so memory does not depend on their number."""

    @staticmethod
    def forward(ctx, solver, field, options, mask, y, *parameters):
        y, evaluations = solver.solve(field, y, options, mask)
        ctx.solver, ctx.field, ctx.options = solver, field, options
        ctx.save_for_backward(y, *parameters)
        ctx.mark_non_differentiable(evaluations)
        return y, evaluations

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient, _):
        y, *parameters = ctx.saved_tensors

        def adjoint_field(time, state):
            y, adjoint = state[0].detach().requires_grad_(), state[1]
            with torch.enable_grad():
                derivative = ctx.field(y, time)
                gradients = torch.autograd.grad(
                    derivative, (y, *parameters), -adjoint, allow_unused=True, materialize_grads=True
                )
            return derivative.detach(), *gradients

        options = ctx.options
        if ctx.solver.is_adaptive:
            end, arguments = 1.0, {"rtol": options.rtol, "atol": options.atol}
        else:
            end = options.num_steps * options.step_size
            arguments = {"options": {"step_size": options.step_size}}
        # The problem is linear in the adjoint. With the largest gradient as its unit, tolerances mean the same for all
        # losses.
        scale = gradient.abs().max()
        if not scale.isfinite():  # which a `GradScaler` answers by skipping the update; there is nothing to solve
            return None, None, None, None, *(torch.full_like(each, math.nan) for each in (y, *parameters))
        scale = scale.where(scale > 0, torch.ones_like(scale))
        state = (y, gradient / scale, *map(torch.zeros_like, parameters))
        times = torch.tensor([end, 0.0], dtype=y.dtype, device=y.device)
        solution = import_odeint()(adjoint_field, state, times, method=ctx.solver.adjoint_method, **arguments)
        return None, None, None, None, *(values[-1] * scale for values in solution[1:])


def import_odeint() -> Callable:
    """Imports torchdiffeq's solver only when needed: it imports SciPy, which is slow."""
    try:
        from torchdiffeq import odeint
    except ImportError as error:
        raise ImportError(
            "gradient='adjoint' needs torchdiffeq: pip install torchdiffeq, or set gradient='direct' in the "
            "configuration."
        ) from error
    return odeint


def solve(
    name: str,
    field: Field,
    y: torch.Tensor,
    options: SolverOptions,
    mask: torch.Tensor | None = None,
    adjoint_parameters: Sequence[torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Solves a problem with one of `SOLVERS`.

    Args:
        name: a key of `SOLVERS`.
        field, y: the problem; the dtype is float32 or float64.
        options: how far and how accurately.
        mask: bool (batch, length), False for padding; None: there is none.
        adjoint_parameters: None: gradients go through all evaluations. Otherwise the adjoint method computes them, and
            these are all tensors with gradients that the field depends on, beside the state. The solution is the
            same; torchdiffeq solves the adjoint problem.

    Returns:
        The final state and the number of evaluations of each sentence, int64 (batch,).

    Raises:
        ImportError: the adjoint method needs torchdiffeq.
        RuntimeError: see `solve_adaptive`.
    """
    solver = SOLVERS[name]
    if adjoint_parameters is None or not torch.is_grad_enabled():
        return solver.solve(field, y, options, mask)
    import_odeint()
    return AdjointSolution.apply(solver, field, options, mask, y, *adjoint_parameters)
