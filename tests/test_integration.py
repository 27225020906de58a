# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The integrators alone: against closed forms, hand-written steps and numpy."""

import dataclasses
import math
import subprocess
import sys

import numpy as np
import pytest
import torch

from modeling_ode_transformer.analysis import order_conditions, order_of, report
from modeling_ode_transformer.integration_ode_transformer import (
    COEFFICIENTS,
    SCHEMES,
    ButcherTableau,
    integrate,
    integrate_multistep,
    resolve_scheme,
)

from .conftest import MULTISTEPS, SOLVERS, TABLEAUS, tiny_config


ORDERS = {"euler": 1, "rk2": 2, "midpoint": 2, "ralston": 2, "rk3": 3, "rk4": 4, "rk4_38": 4, "leapfrog": 2}


def convergence(solve, exact):
    """The slope of the error over the step size, from solutions in float64 with 16 to 128 steps."""
    steps = np.array([16, 32, 64, 128])
    errors = [abs(solve(int(number)) - exact) for number in steps]
    return -np.polyfit(np.log(steps), np.log(errors), 1)[0]


def oscillating(z, evaluation):
    """y' = y cos(t), whose solution from 1 is exp(sin t); t is a second component, t' = 1."""
    return torch.stack([z[0] * torch.cos(z[1]), torch.ones_like(z[1])])


@pytest.mark.parametrize("name", [*SOLVERS, "leapfrog"])
def test_error_shrinks_with_the_order_of_the_scheme(name):
    start = torch.tensor([1.0, 0.0], dtype=torch.float64)

    def solve(number):
        if name == "leapfrog":
            scheme = SCHEMES[name](number).double()
            return integrate_multistep(oscillating, start, scheme, (), 2 / number, number)[0][0].item()
        return integrate(oscillating, start, SCHEMES[name], None, 2 / number, number)[0].item()

    assert abs(convergence(solve, math.exp(math.sin(2))) - ORDERS[name]) < 0.2


@pytest.mark.parametrize("name", SOLVERS)
def test_the_order_conditions_give_the_order_that_the_error_shows(name):
    assert order_of(SCHEMES[name]) == ORDERS[name]


# Butcher's fifth-order scheme in six stages.
A_5 = [[], [1 / 4], [1 / 8, 1 / 8], [0, -1 / 2, 1], [3 / 16, 0, 0, 9 / 16], [-3 / 7, 2 / 7, 12 / 7, -12 / 7, 8 / 7]]
BUTCHER_5 = {"a": A_5, "b": [7 / 90, 0, 32 / 90, 12 / 90, 32 / 90, 7 / 90]}


def test_order_conditions_of_a_scheme_from_the_literature():
    assert order_of(resolve_scheme(BUTCHER_5).tableau) == 5


def test_violated_order_conditions_are_reported():
    """a = 0.3, b = (0.2, 0.8): consistent, and b2 a21 = 0.24 instead of 1/2."""
    tableau = resolve_scheme({"a": [[], [0.3]], "b": [0.2, 0.8]}).tableau
    first, second = order_conditions(tableau)
    assert first.holds and not second.holds
    assert (second.order, second.required) == (2, 0.5) and second.value == pytest.approx(0.24)
    assert order_of(tableau) == 1 and order_conditions(tableau, max_order=0) == []
    assert "order 1, 2 evaluations" in report(tableau) and "violated: 0.24" in report(tableau)
    with pytest.raises(ValueError, match=r"y=\(1.0, 0.0\)"):
        order_conditions(SCHEMES["polynet"])


@pytest.mark.parametrize(
    "a, b, order",
    [
        ([[], [0.5], [-1, 2]], [0.166667, 0.666667, 0.166667], 3),
        ([[], [0.333333], [0, 0.666667]], [0.25, 0, 0.75], 3),
        ([[], [0.5], [0.5, 0]], [0.333333, 0.333333, 0.333333], 1),
    ],
)
def test_coefficients_that_are_rounded_count_as_exact(a, b, order):
    tableau = {"a": a, "b": b}
    assert order_of(resolve_scheme(tableau).tableau) == order and resolve_scheme(tableau).tableau.is_consistent
    config = tiny_config(encoder_solver=tableau, coefficients="fixed")
    assert config.scheme("encoder").tableau.b == tuple(b)
    # Those of five digits do not.
    tableau["b"] = [0.99999 * weight for weight in b]
    assert order_of(resolve_scheme(tableau).tableau) == 0 and not resolve_scheme(tableau).tableau.is_consistent


def F(z):
    return torch.tanh(z) + 0.3 * z**2


# One step of size h, written out by hand from the equations of the paper.
def by_hand(name, y, h):
    f1 = h * F(y)
    if name == "euler":
        return y + f1
    if name == "polynet":
        return y + f1 + h * F(f1)
    if name == "rk2":
        return y + (f1 + h * F(y + f1)) / 2
    if name == "midpoint":
        return y + h * F(y + f1 / 2)
    if name == "ralston":
        return y + f1 / 4 + 3 * h * F(y + 2 * f1 / 3) / 4
    if name == "rk3":
        f2 = h * F(y + f1 / 2)
        return y + (f1 + 4 * f2 + h * F(y - f1 + 2 * f2)) / 6
    if name == "rk4":
        f2 = h * F(y + f1 / 2)
        f3 = h * F(y + f2 / 2)
        return y + (f1 + 2 * f2 + 2 * f3 + h * F(y + f3)) / 6
    f2 = h * F(y + f1 / 3)
    f3 = h * F(y - f1 / 3 + f2)
    return y + (f1 + 3 * f2 + 3 * f3 + h * F(y + f1 - f2 + f3)) / 8


@pytest.mark.parametrize("name", TABLEAUS)
@pytest.mark.parametrize("h", [1.0, 0.25])
def test_a_step_is_the_equation_of_its_scheme(name, h):
    y = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    actual = integrate(lambda z, _: F(z), y, SCHEMES[name], step_size=h)
    torch.testing.assert_close(actual, by_hand(name, y, h), rtol=1e-13, atol=1e-13)


def multistep_by_hand(name, y, weight):
    """Three steps of size 1, from table 7 and, with velocities, of Nesterov's acceleration."""
    y0, y1 = y, y + F(y)
    if name == "leapfrog":
        y2 = y0 + 2 * F(y1)
        return y1 + 2 * F(y2)
    if name == "multistep":
        y2 = weight[1] * y1 + (1 - weight[1]) * y0 + F(y1)
        return weight[2] * y2 + (1 - weight[2]) * y1 + F(y2)
    if name == "nesterov":
        mu, beta, gamma = weight
        V1 = gamma[0] * F(y0)
        y1 = y0 + V1
        V2 = beta[1] * V1 + gamma[1] * F(y1 + mu[1] * V1)
        y2 = y1 + V2
        return y2 + beta[2] * V2 + gamma[2] * F(y2 + mu[2] * V2)
    y1 = y0 + weight[0, 0] * F(y0)
    y2 = y0 + weight[1, 0] * F(y0) + weight[1, 1] * F(y1)
    return y0 + weight[2, 0] * F(y0) + weight[2, 1] * F(y1) + weight[2, 2] * F(y2)


@pytest.mark.parametrize("name", MULTISTEPS)
def test_multistep_schemes_are_their_equations_however_the_steps_are_grouped(name):
    torch.manual_seed(0)
    y, scheme = torch.randn(3, 5, dtype=torch.float64), SCHEMES[name](3).double()
    with torch.no_grad():
        for parameter in scheme.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    expected = multistep_by_hand(name, y, getattr(scheme, "weight", None))
    actual, steps = integrate_multistep(lambda z, _: F(z), y, scheme, num_steps=3)
    torch.testing.assert_close(actual, expected, rtol=1e-13, atol=1e-13)
    assert len(steps) == 3
    state, steps = integrate_multistep(lambda z, _: F(z), y, scheme)
    state, steps = integrate_multistep(lambda z, _: F(z), state, scheme, steps, num_steps=2)
    assert torch.equal(state, actual)


@pytest.mark.parametrize("name", ["multistep", "dlcl", "nesterov"])
def test_learned_multistep_schemes_start_at_the_residual_network(name):
    y = torch.randn(4, dtype=torch.float64)
    actual, _ = integrate_multistep(lambda z, _: F(z), y, SCHEMES[name](5).double(), num_steps=5)
    expected = integrate(lambda z, _: F(z), y, SCHEMES["euler"], num_steps=5)
    torch.testing.assert_close(actual, expected, rtol=1e-13, atol=1e-13)


def test_gradients_of_rk2_blocks_shrink_by_half_and_with_gamma_1_do_not():
    """Eq. 21: dE/dy_t is dE/dy_L times 1/2 per block times prod(1 + g_k); eq. 24, gamma = 1: times prod(g_k), and no
    such factor. g_k = (1 + F'(y)) (1 + F'(y + F(y))) (eq. 22); the blocks are F_k(y) = w_k sin(y), F' = w_k cos."""
    weights = torch.tensor([0.3, -0.7, 0.5, 1.1, -0.4], dtype=torch.float64)
    for gamma, block_factor in ((0.5, lambda g: (1 + g) / 2), (1.0, lambda g: g)):
        start = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
        y, product = start, 1.0
        for w in weights:
            value = y.item()
            inner = value + w.item() * math.sin(value)
            g = (1 + w.item() * math.cos(value)) * (1 + w.item() * math.cos(inner))
            product *= block_factor(g)
            y = integrate(lambda z, _, w=w: w * torch.sin(z), y, SCHEMES["rk2"], lambda stages, c=gamma: (c, c))
        (gradient,) = torch.autograd.grad(y, start)
        assert gradient.item() == pytest.approx(product, rel=1e-12)


def test_normalized_stages_are_normalized_before_they_are_weighed_only():
    y = torch.randn(2, 6, dtype=torch.float64)
    norm = torch.nn.LayerNorm(6).double()
    actual = integrate(lambda z, _: F(z), y, SCHEMES["rk2"], stage_norms=[norm, lambda stage: 2 * stage])
    torch.testing.assert_close(actual, y + norm(F(y)) / 2 + F(y + F(y)), rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    "numbers, message",
    [
        ({"a": [[0, 1], [1, 0]], "b": [0.5, 0.5]}, "Row 0 of `a` is"),
        ({"a": [[], []], "b": [0.5, 0.5]}, "Row 1 of `a` is"),
        ({"a": [[]], "b": [0.5, 0.5]}, "1 rows and `b` has 2"),
        ({"a": [[], [1]], "b": [0.5, 0.5], "y": [1]}, r"`b` has 2 weights \(and `y`, if given, 1 entries\)"),
        ({"a": [], "b": []}, "at least one stage"),
        ({"a": [[]], "b": [float("nan")]}, "nan"),
    ],
)
def test_an_invalid_tableau_is_refused_and_the_value_named(numbers, message):
    with pytest.raises(ValueError, match=message):
        ButcherTableau(**numbers)


def test_a_tableau_is_frozen_and_comes_back_from_its_dictionary():
    tableau = SCHEMES["rk4"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        tableau.b = (1.0,)
    assert resolve_scheme(tableau.to_dict()).tableau == tableau
    square = {"a": [[0, 0], [2 / 3, 0]], "b": [1 / 4, 3 / 4]}
    assert resolve_scheme(square).tableau == SCHEMES["ralston"]


@pytest.mark.parametrize("solver", ["heun", {"a": [[]]}, {"a": [[]], "b": [1], "c": [0]}, 4])
def test_an_unknown_solver_is_refused_with_the_choices(solver):
    with pytest.raises(ValueError, match="choose one of euler, rk2, midpoint"):
        resolve_scheme(solver)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def expected_weights(mode, module, stages):
    """The weights in numpy, from the formulas of the specification."""
    stages, n = [stage.numpy() for stage in stages], len(stages)
    parameters = {name: parameter.detach().numpy() for name, parameter in module.named_parameters()}
    if mode == "fixed":
        return list(module.tableau.b)
    if mode == "ones":
        return [1.0] * n
    if mode == "learned":
        return list(parameters["weight"])
    if mode == "ema":
        alpha = parameters["weight"]
        return [alpha * (1 - alpha) ** (n - i) for i in range(1, n + 1)]
    scores = np.concatenate(stages, -1) @ parameters["gate.weight"].T + parameters["gate.bias"]
    if mode in ("gate", "scaled_gate"):
        scores = scores / (1 if mode == "gate" else math.sqrt(2 * stages[0].shape[-1]))
        return [sigmoid(scores), 1 - sigmoid(scores)]
    activated = {"sigmoid": sigmoid, "tanh": np.tanh}[mode](scores)
    return [activated[..., i : i + 1] for i in range(n)]


# Two gates weigh two stages; the configuration refuses others. `learned` and `ema` may have numbers for each channel.
@pytest.mark.parametrize(
    "name, mode, options",
    [(name, mode, {}) for name in ("rk2", "rk4") for mode in COEFFICIENTS if name == "rk2" or "gate" not in mode]
    + [("rk4", mode, {"per_channel": True}) for mode in ("learned", "ema")],
)
def test_coefficients_are_their_formulas(name, mode, options):
    torch.manual_seed(0)
    tableau = SCHEMES[name]
    module = COEFFICIENTS[mode](tableau, 6, **options).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    stages = [torch.randn(2, 3, 6, dtype=torch.float64) for _ in tableau.b]
    actual = module(stages)
    assert len(actual) == len(stages)
    assert not options or {weight.shape for weight in actual} == {(6,)}
    for weight, expected in zip(actual, expected_weights(mode, module, stages)):
        found = torch.as_tensor(weight, dtype=torch.float64).detach().numpy()
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


STARTS = {"ones": [1, 1], "tableau": [0.25, 0.75], "euler": [1, 0], "even": [0.5, 0.5]}


@pytest.mark.parametrize(
    "mode, options, weights",
    [("learned", {}, [1, 1]), ("ema", {}, [0.25, 0.5]), ("fixed", {}, [0.25, 0.75]), ("ones", {}, [1, 1])]
    + [("learned", {"start": start}, weights) for start, weights in STARTS.items()],
)
def test_coefficients_start_where_the_papers_say_or_they_are_told(mode, options, weights):
    module = COEFFICIENTS[mode](SCHEMES["ralston"], 6, **options)
    assert [torch.as_tensor(weight).item() for weight in module([torch.ones(1, 6)] * 2)] == weights


def test_the_mathematics_needs_no_transformers():
    program = (
        "import sys, importlib.util as u; sys.modules['transformers'] = None\n"
        f"spec = u.spec_from_file_location('m', {sys.modules[integrate.__module__].__file__!r})\n"
        "m = u.module_from_spec(spec); sys.modules['m'] = m; spec.loader.exec_module(m)\n"
        "import torch; print(float(m.integrate(lambda z, _: z, torch.ones(1), m.SCHEMES['rk2'])))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.stdout.strip() == "2.5", result.stderr
