# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The integrators alone: against closed forms, hand-written steps and numpy."""

import dataclasses
import math
import subprocess
import sys

import numpy as np
import pytest
import torch

from modeling_ode_transformer.integration_ode_transformer import (
    COEFFICIENTS,
    TABLEAUS,
    ButcherTableau,
    integrate,
    resolve_tableau,
)

from .conftest import SOLVERS


ORDERS = {"euler": 1, "rk2": 2, "midpoint": 2, "ralston": 2, "rk3": 3, "rk4": 4, "rk4_38": 4}


def test_schemes_are_those_of_the_specification():
    assert tuple(TABLEAUS) == SOLVERS


@pytest.mark.parametrize("name", SOLVERS)
def test_error_shrinks_with_the_order_of_the_scheme(name):
    """For y' = y cos(t), y(0) = 1, the solution is exp(sin t); t is a second component, t' = 1."""

    def field(z, evaluation):
        return torch.stack([z[0] * torch.cos(z[1]), torch.ones_like(z[1])])

    steps = np.array([16, 32, 64, 128])
    errors = []
    for number in steps:
        y = integrate(field, torch.tensor([1.0, 0.0], dtype=torch.float64), TABLEAUS[name], None, 2 / number, number)
        errors.append(abs(y[0].item() - math.exp(math.sin(2))))
    slope = -np.polyfit(np.log(steps), np.log(errors), 1)[0]
    assert abs(slope - ORDERS[name]) < 0.2


def F(z):
    return torch.tanh(z) + 0.3 * z**2


# One step of size h, written out by hand from the equations of the paper.
def by_hand(name, y, h):
    f1 = h * F(y)
    if name == "euler":
        return y + f1
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


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("h", [1.0, 0.25])
def test_a_step_is_the_equation_of_its_scheme(name, h):
    y = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    actual = integrate(lambda z, _: F(z), y, TABLEAUS[name], step_size=h)
    torch.testing.assert_close(actual, by_hand(name, y, h), rtol=1e-13, atol=1e-13)


def test_evaluations_are_numbered_over_all_stages_of_all_steps():
    numbers = []

    def field(z, evaluation):
        numbers.append(evaluation)
        return z

    integrate(field, torch.ones(1), TABLEAUS["rk3"], num_steps=2)
    assert numbers == [0, 1, 2, 3, 4, 5]


def test_two_euler_steps_are_weight_sharing():
    y = torch.randn(4, dtype=torch.float64)
    once = y + F(y)
    actual = integrate(lambda z, _: F(z), y, TABLEAUS["euler"], num_steps=2)
    torch.testing.assert_close(actual, once + F(once), rtol=0, atol=1e-14)


def test_the_gradient_of_a_block_is_that_of_finite_differences():
    y = torch.randn(4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z: integrate(lambda x, _: F(x), z, TABLEAUS["rk4"]), y)


@pytest.mark.parametrize(
    "a, b, message",
    [
        ([[0, 1], [1, 0]], [0.5, 0.5], "Row 0 is"),
        ([[0, 0], [1, 1]], [0.5, 0.5], "Row 1 is"),
        ([[], []], [0.5, 0.5], "Row 1 is"),
        ([[]], [0.5, 0.5], "1 rows and `b` has 2"),
        ([], [], "at least one stage"),
        ([[]], [float("nan")], "nan"),
        ([[]], [float("inf")], "inf"),
        ([[]], ["1"], "'1'"),
    ],
)
def test_an_invalid_tableau_is_refused_and_the_value_named(a, b, message):
    with pytest.raises(ValueError, match=message):
        ButcherTableau(a=a, b=b)


def test_a_tableau_is_frozen_and_comes_back_from_its_dictionary():
    tableau = TABLEAUS["rk4"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        tableau.b = (1.0,)
    assert resolve_tableau(tableau.to_dict()) == tableau
    square = {"a": [[0, 0], [2 / 3, 0]], "b": [1 / 4, 3 / 4]}
    assert resolve_tableau(square) == TABLEAUS["ralston"]


@pytest.mark.parametrize("solver", ["heun", {"a": [[]]}, {"a": [[]], "b": [1], "c": [0]}, 4])
def test_an_unknown_solver_is_refused_with_the_choices(solver):
    with pytest.raises(ValueError, match="choose one of euler, rk2, midpoint"):
        resolve_tableau(solver)


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
        alpha = parameters["alpha"][0]
        return [alpha * (1 - alpha) ** (n - i) for i in range(1, n + 1)]
    scores = np.concatenate(stages, -1) @ parameters["gate.weight"].T + parameters["gate.bias"]
    if mode == "gate":
        return [sigmoid(scores), 1 - sigmoid(scores)]
    activated = {"sigmoid": sigmoid, "tanh": np.tanh}[mode](scores)
    return [activated[..., i : i + 1] for i in range(n)]


# The gate weighs two stages; the configuration refuses others.
@pytest.mark.parametrize(
    "name, mode", [(name, mode) for name in ("rk2", "rk4") for mode in COEFFICIENTS if (name, mode) != ("rk4", "gate")]
)
def test_coefficients_are_their_formulas(name, mode):
    torch.manual_seed(0)
    tableau = TABLEAUS[name]
    module = COEFFICIENTS[mode](tableau, 6).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    stages = [torch.randn(2, 3, 6, dtype=torch.float64) for _ in tableau.b]
    actual = module(stages)
    assert len(actual) == len(stages)
    for weight, expected in zip(actual, expected_weights(mode, module, stages)):
        np.testing.assert_allclose(
            torch.as_tensor(weight, dtype=torch.float64).detach().numpy(), expected, rtol=0, atol=1e-12
        )


@pytest.mark.parametrize(
    "mode, start", [("learned", [1.0, 1.0]), ("ema", [0.25, 0.5]), ("fixed", [0.5, 0.5]), ("ones", [1.0, 1.0])]
)
def test_coefficients_start_where_the_papers_say(mode, start):
    module = COEFFICIENTS[mode](TABLEAUS["rk2"], 6)
    assert [float(weight) for weight in module([torch.ones(1, 6)] * 2)] == start


def test_the_mathematics_needs_no_transformers():
    program = (
        "import sys, importlib.util as u; sys.modules['transformers'] = None\n"
        f"spec = u.spec_from_file_location('m', {sys.modules[integrate.__module__].__file__!r})\n"
        "m = u.module_from_spec(spec); sys.modules['m'] = m; spec.loader.exec_module(m)\n"
        "import torch; print(float(m.integrate(lambda z, _: z, torch.ones(1), m.TABLEAUS['rk2'])))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.stdout.strip() == "2.5", result.stderr
