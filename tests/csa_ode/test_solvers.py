# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""CSAODE's solvers: against closed forms and other libraries."""

import math
import sys
from itertools import pairwise

import accelerated_runge_kutta
import pytest
import scipy.integrate
import torch
import torchdiffeq

from modeling_ode_transformer import CsaOdeConfig
from modeling_ode_transformer.analysis import order_of
from modeling_ode_transformer.integration_ode_transformer import ButcherTableau
from modeling_ode_transformer.solvers_csa_ode import ARK4, RKF45, SOLVERS, SolverOptions, solve

from .conftest import tiny_model


def nonlinear(y, time=None):
    """The pendulum and Lotka and Volterra's equations, as states (batch, 1, 4)."""
    angle, speed, prey, hunters = y.unbind(-1)
    return torch.stack([speed, -3 * angle.sin(), prey * (1 - hunters), hunters * (prey - 1)], dim=-1)


START = torch.tensor([[[1.0, 0.5, 1.5, 0.8]], [[-0.4, 1.0, 0.7, 1.2]]], dtype=torch.float64)


def in_numpy(time, y):
    return nonlinear(torch.from_numpy(y)).numpy()


def reference(y, end=1.0):
    """By scipy's DOP853, to 13 digits."""
    rows = []
    for row in y.reshape(-1, 4):
        solution = scipy.integrate.solve_ivp(in_numpy, (0, end), row.numpy(), "DOP853", rtol=1e-13, atol=1e-14)
        rows.append(torch.from_numpy(solution.y[:, -1]))
    return torch.stack(rows).view_as(y)


@pytest.mark.parametrize("name", ["rk", "ark"])
def test_fixed_steps_are_of_fourth_order(name):
    """Twice as many steps make a 16th of the error, on a nonlinear problem."""
    expected = reference(START)
    errors = [
        (solve(name, nonlinear, START, SolverOptions(1 / steps))[0] - expected).abs().max().item()
        for steps in (20, 40, 80, 160)
    ]
    assert [math.log2(one / other) for one, other in pairwise(errors)] == pytest.approx([4] * 3, abs=0.15)


def test_the_derivation_gives_the_coefficients():
    """The script's, and the conditions in closed form, by exact fractions."""
    from sympy import Rational

    names = vars(accelerated_runge_kutta)
    chosen = accelerated_runge_kutta.method(a_2=Rational(1, 2), c_back_0=Rational(0))
    assert ARK4.a == (0, float(chosen[names["a_2"]]), float(chosen[names["a_3"]]))
    assert chosen[names["c_back_0"]] == 0
    assert ARK4.weights == tuple(float(chosen[names[name]]) for name in ("c_1", "c_2", "c_3"))
    assert ARK4.previous_weights == tuple(float(chosen[names[name]]) for name in ("c_back_1", "c_2", "c_3"))
    assert ARK4.start[2] == tuple(float(weight) for weight in accelerated_runge_kutta.start(chosen))
    # By hand, with c_-0 = 0
    (_, a_2, a_3), (_, c_2, c_3) = ARK4.a, ARK4.weights
    sums = (c_2 * a_2 + c_3 * a_3, c_2 * a_2**2 + c_3 * a_3**2, c_3 * a_3 * a_2)
    assert sums == pytest.approx((5 / 12, 1 / 3, 1 / 6))


def test_the_accelerated_method_reuses_all_stages_of_the_last_step():
    for steps in (2, 5, 10):
        states = []

        def field(y, time, states=states):
            states.append(time)
            return nonlinear(y)

        _, evaluations = solve("ark", field, START, SolverOptions(1 / steps))
        assert len(states) == 4 + 3 * (steps - 1) == evaluations[0] == evaluations[1]
        r = 1 / steps
        expected = [0, r / 2, r / 2, r, *((i + a) * r for i in range(1, steps) for a in (0, 1 / 2, 7 / 8))]
        assert states == pytest.approx(expected)


@pytest.mark.parametrize("step_size, steps", [(0.2, 5), (0.1, 10), (0.3, 4), (0.6, 2), (1 / 3, 3), (1e-2, 100)])
def test_where_steps_end(step_size, steps):
    """T = ceil(1 / r) steps of size r: the end is T r, where y' = 1 shows it."""
    options = SolverOptions(step_size)
    assert options.num_steps == steps
    for name in ("rk", "ark"):
        y, evaluations = solve(name, lambda y, time: torch.ones_like(y), START, options)
        torch.testing.assert_close(y, START + steps * step_size)
        assert CsaOdeConfig(solver=name, step_size=step_size).num_function_evaluations == evaluations[0]
    y, _ = solve("rkf", lambda y, time: torch.ones_like(y), START, options)
    torch.testing.assert_close(y, START + 1)


def test_fehlberg_has_the_orders_5_and_4():
    assert order_of(RKF45.tableau) == 5
    assert order_of(ButcherTableau(RKF45.tableau.a, RKF45.lower)) == RKF45.order == 4


@pytest.mark.parametrize("tolerance", [1e-3, 1e-6, 1e-9])
def test_adaptive_steps_reach_the_tolerance(tolerance):
    options = SolverOptions(0.5, tolerance, tolerance)
    y, evaluations = solve("rkf", nonlinear, START, options)
    assert (y - reference(START)).abs().max() < 5 * tolerance
    # scipy's method of the same orders needs about as many.
    solution = scipy.integrate.solve_ivp(in_numpy, (0, 1), START[0, 0].numpy(), rtol=tolerance, atol=tolerance)
    assert 12 <= evaluations[0] <= 2 * solution.nfev + 12 and (evaluations % 6 == 0).all()


def test_adaptive_steps_of_a_sentence_are_its_own():
    """A slow one beside a fast one makes the steps that it makes alone, also with padding of huge errors."""

    def field(y, time):
        return torch.stack([y[0], 40 * (time[1] * 40).cos().expand_as(y[1])])[: len(y)] if len(y) == 2 else y

    y = torch.ones(2, 3, 2, dtype=torch.float64)
    options = SolverOptions(0.2, 1e-6, 1e-8)
    together, evaluations = solve("rkf", field, y, options)
    alone, expected = solve("rkf", field, y[:1], options)
    torch.testing.assert_close(together[:1], alone, rtol=0, atol=0)
    torch.testing.assert_close(alone, y[:1] * math.e, rtol=1e-6, atol=0)
    assert evaluations[0] == expected[0] < evaluations[1]

    mask = torch.tensor([[True, True, False]])
    wild = torch.tensor([[[0.0], [0.0], [30.0]]], dtype=torch.float64)
    padded, masked_evaluations = solve("rkf", lambda y, t: y + wild * (30 * t).cos(), y[:1], options, mask)
    assert masked_evaluations[0] == expected[0]
    torch.testing.assert_close(padded[:, :2], alone[:, :2], rtol=0, atol=0)


def test_adaptive_steps_that_lead_nowhere_end():
    """Those of too many steps: in test_models.py."""
    with pytest.raises(RuntimeError, match="not finite"):
        solve("rkf", lambda y, time: y * math.nan, START, SolverOptions(0.2, 1e-12, 1e-12, max_steps=5))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = torch.nn.Parameter(torch.randn(4, 4, generator=generator, dtype=torch.float64))

    def forward(self, time, y):
        return torch.tanh(y @ self.weight)


@pytest.mark.parametrize("name, step_size, tolerance", [("rk", 0.01, 1e-7), ("ark", 0.01, 1e-7), ("rkf", 0.1, 1e-7)])
def test_adjoint_gradients_are_the_direct_ones(name, step_size, tolerance):
    """And those of torchdiffeq's own adjoint method."""
    net, options = Net(), SolverOptions(step_size, 1e-10, 1e-10)

    def gradients(integrate):
        start = START.clone().requires_grad_()
        loss = integrate(start).square().sum()
        return torch.autograd.grad(loss, (start, net.weight))

    direct = gradients(lambda y: solve(name, lambda z, t: net(t, z), y, options)[0])
    adjoint = gradients(lambda y: solve(name, lambda z, t: net(t, z), y, options, adjoint_parameters=[net.weight])[0])
    times = torch.tensor([0.0, 1.0], dtype=torch.float64)
    expected = gradients(lambda y: torchdiffeq.odeint_adjoint(net, y, times, rtol=1e-11, atol=1e-11)[-1])
    for first, second, third in zip(direct, adjoint, expected):
        torch.testing.assert_close(first, second, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(second, third, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", list(SOLVERS))
def test_adjoint_gradients_are_in_proportion_to_the_loss(name):
    """Those of an adaptive solver too, whose steps depend on what it solves. A factor of 2^-40 rounds nothing."""
    net, start = Net(), START.clone().requires_grad_()
    options = SolverOptions(0.1, 1e-5, 1e-5)

    def gradients(factor):
        parameters = list(net.parameters())
        y, _ = solve(name, lambda z, t: net(t, z), start, options, adjoint_parameters=parameters)
        return torch.autograd.grad(factor * y.square().sum(), (start, *parameters))

    for found, small, nothing in zip(gradients(1.0), gradients(2.0**-40), gradients(0.0)):
        assert found.abs().max() > 0.1
        torch.testing.assert_close(2.0**40 * small, found, rtol=1e-12, atol=0)
        assert not nothing.any()


@pytest.mark.parametrize("solver, factor", list(zip(SOLVERS, (math.inf, math.nan, math.inf))))
def test_gradients_that_are_not_finite_reach_a_gradient_scaler(solver, factor, batch):
    """Which skips the update, whatever the gradient is computed by."""
    for gradient in ("direct", "adjoint"):
        model = tiny_model(solver=solver, gradient=gradient)
        before = {name: parameter.clone() for name, parameter in model.named_parameters()}
        optimizer, scaler = torch.optim.SGD(model.parameters(), lr=1.0), torch.amp.GradScaler("cpu")
        scaler.scale(factor * model(**batch).logits.sum()).backward()
        assert not model.get_parameter("model.blocks.0.q_proj.weight").grad.isfinite().any()
        scaler.step(optimizer)
        assert all(parameter.equal(before[name]) for name, parameter in model.named_parameters())


@pytest.mark.parametrize("solver", list(SOLVERS))
def test_adjoint_changes_no_output_and_approaches_the_direct_gradients(solver, batch):
    """All parameters of a whole model, in float64."""
    model = tiny_model(solver=solver, step_size=0.02, rtol=1e-8, atol=1e-8)
    labels = torch.tensor([0, 1, 2, 0])
    found = {}
    for gradient in ("direct", "adjoint"):
        model.config.gradient = gradient
        output = model(**batch, labels=labels)
        found[gradient] = output.logits, torch.autograd.grad(output.loss, list(model.parameters()))
    torch.testing.assert_close(found["adjoint"][0], found["direct"][0], rtol=0, atol=0)
    for first, second in zip(found["adjoint"][1], found["direct"][1]):
        torch.testing.assert_close(first, second, rtol=1e-2, atol=1e-2 * second.abs().max().item())


def test_the_adjoint_says_that_it_needs_torchdiffeq(monkeypatch, batch):
    monkeypatch.setitem(sys.modules, "torchdiffeq", None)
    model = tiny_model(gradient="adjoint")
    with pytest.raises(ImportError, match="pip install torchdiffeq"):
        model(**batch)
    with torch.no_grad():
        model(**batch)
