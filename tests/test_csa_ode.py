# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""CSAODE: its equations by plain loops, its solvers against closed forms and other libraries, its place in
transformers."""

import json
import math
from itertools import pairwise

import accelerated_runge_kutta
import numpy as np
import plot_attention
import pytest
import scipy.integrate
import torch
import torchdiffeq
from torch.autograd.graph import saved_tensors_hooks
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    pipeline,
)

from modeling_ode_transformer import CsaOdeConfig, CsaOdeForSequenceClassification, CsaOdeModel
from modeling_ode_transformer import solvers_csa_ode as solvers
from modeling_ode_transformer.analysis import order_of
from modeling_ode_transformer.integration_ode_transformer import ButcherTableau
from modeling_ode_transformer.solvers_csa_ode import ARK4, RKF45, SOLVERS, SolverOptions, solve
from modeling_ode_transformer.training.tasks import classification, classification_examples
from modeling_ode_transformer.training.word_vectors import load_word_vectors

from .conftest import assert_close, randomize
from .test_hub import run_python


TINY = {"vocab_size": 50, "embedding_size": 8, "hidden_size": 6, "num_labels": 3}


def tiny_model(model_class=CsaOdeForSequenceClassification, dtype=torch.float64, **kwargs):
    torch.manual_seed(0)
    return randomize(model_class(CsaOdeConfig(**(TINY | kwargs)))).to(dtype)


@pytest.fixture
def batch():
    """Sentences of 7, 4, 2 and 1 words."""
    ids = torch.randint(2, 50, (4, 7), generator=torch.Generator().manual_seed(1))
    mask = torch.arange(7) < torch.tensor([[7], [4], [2], [1]])
    return {"input_ids": ids.masked_fill(~mask, 0), "attention_mask": mask.long()}


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
        solution = scipy.integrate.solve_ivp(
            in_numpy,
            (0, end),
            row.numpy(),
            "DOP853",
            rtol=1e-13,
            atol=1e-14,
        )
        rows.append(torch.from_numpy(solution.y[:, -1]))
    return torch.stack(rows).view_as(y)


def slopes(errors):
    return [math.log2(first / second) for first, second in pairwise(errors)]


@pytest.mark.parametrize("name", ["rk", "ark"])
def test_fixed_steps_are_of_fourth_order(name):
    """Twice as many steps make a 16th of the error, on a nonlinear problem."""
    expected = reference(START)
    errors = [
        (solve(name, nonlinear, START, SolverOptions(1 / steps))[0] - expected).abs().max().item()
        for steps in (20, 40, 80, 160)
    ]
    assert slopes(errors) == pytest.approx([4] * 3, abs=0.15)


def test_a_step_of_the_accelerated_method_has_an_error_of_fifth_order():
    """From an exact history, by the formula of equation 9 written out."""
    errors = []
    for r in (0.1, 0.05, 0.025):
        current = reference(START, r)
        stages = {}
        for sign, y in (("", current), ("-", START)):
            z_1 = r * nonlinear(y)
            z_2 = r * nonlinear(y + 1 / 2 * z_1)
            z_3 = r * nonlinear(y + 7 / 8 * z_2)
            stages[sign] = z_1, z_2, z_3
        (z_1, z_2, z_3), (b_1, b_2, b_3) = stages[""], stages["-"]
        following = current + 20 / 21 * z_1 + 1 / 21 * b_1 + 1 / 6 * (z_2 - b_2) + 8 / 21 * (z_3 - b_3)
        errors.append((following - reference(START, 2 * r)).abs().max().item())
    assert slopes(errors) == pytest.approx([5] * 2, abs=0.3)


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
    # By hand: with s_k = sum over stages 2 and 3 of c_i a_i^k, and c_-0 = 0
    c_2, c_3, a_2, a_3 = Rational(1, 6), Rational(8, 21), Rational(1, 2), Rational(7, 8)
    assert (c_2 * a_2 + c_3 * a_3, c_2 * a_2**2 + c_3 * a_3**2, c_3 * a_3 * a_2) == (
        Rational(5, 12),
        Rational(1, 3),
        Rational(1, 6),
    )
    assert Rational(-1, 21) + c_2 + c_3 == Rational(1, 2) and Rational(20, 21) - Rational(-1, 21) == 1


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


@pytest.mark.parametrize(
    "step_size, steps", [(0.2, 5), (0.1, 10), (0.3, 4), (0.4, 3), (0.6, 2), (1 / 3, 3), (1e-2, 100)]
)
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
    solution = scipy.integrate.solve_ivp(
        in_numpy,
        (0, 1),
        START[0, 0].numpy(),
        rtol=tolerance,
        atol=tolerance,
    )
    assert 12 <= evaluations[0] <= 2 * solution.nfev + 12 and (evaluations % 6 == 0).all()


def test_adaptive_steps_of_a_sentence_are_its_own():
    """A slow sentence in the company of a fast one makes the steps that it makes alone; so does one with padding whose
    padding has huge errors."""

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
    options = SolverOptions(0.2, 1e-12, 1e-12, max_steps=5)
    with pytest.raises(RuntimeError, match="rtol=1e-12 and atol=1e-12 are not reached within max_solver_steps=5"):
        solve("rkf", nonlinear, START, options)
    with pytest.raises(RuntimeError, match="not finite"):
        solve("rkf", lambda y, time: y * math.nan, START, options)


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
    adjoint = gradients(
        lambda y: solve(name, lambda z, t: net(t, z), y, options, adjoint_parameters=list(net.parameters()))[0]
    )
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


def saved_bytes(model, inputs):
    """What autograd keeps between forward and backward, parameters apart."""
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        model(**inputs, labels=torch.zeros(4, dtype=torch.long))
    return sum(size for size, _ in kept.values())


@pytest.mark.parametrize("solver", ["rk", "ark"])
def test_memory_of_the_adjoint_does_not_grow_with_the_steps(solver, batch):
    kept = {
        gradient: [
            saved_bytes(tiny_model(solver=solver, step_size=1 / steps, gradient=gradient), batch) for steps in (2, 20)
        ]
        for gradient in ("direct", "adjoint")
    }
    assert kept["adjoint"][0] == kept["adjoint"][1] < kept["direct"][0]
    assert kept["direct"][1] > 5 * kept["direct"][0]


def test_the_adjoint_says_that_it_needs_torchdiffeq(monkeypatch, batch):
    monkeypatch.setattr(solvers, "odeint", None)
    model = tiny_model(gradient="adjoint")
    with pytest.raises(ImportError, match="pip install torchdiffeq"):
        model(**batch)
    with torch.no_grad():
        model(**batch)


def loop_positions(length, size, c=1e-4):
    """Equation 3, as printed."""
    table = np.zeros((length, size))
    for i in range(1, length + 1):
        for j in range(1, size + 1):
            table[i - 1, j - 1] = math.sin(i * c ** (j / size)) if j % 2 == 0 else math.cos(i * c ** ((j - 1) / size))
    return table


def loop_norm(rows, norm):
    weight, bias = norm.weight.detach().numpy(), norm.bias.detach().numpy()
    return np.stack([(row - row.mean()) / math.sqrt(row.var() + 1e-5) * weight + bias for row in rows])


def loop_block(block, rows, positions):
    """Equations 4 and 5."""
    matrices = {name: weight.detach().numpy() for name, weight in block.named_parameters()}
    x = np.maximum(
        loop_norm(
            (rows + positions) @ matrices["position_proj.weight"].T + matrices["position_proj.bias"],
            block.position_norm,
        ),
        0,
    )
    scores = (x @ matrices["q_proj.weight"].T) @ (x @ matrices["k_proj.weight"].T).T
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    output = weights @ (x @ matrices["v_proj.weight"].T)
    if "out_proj.weight" in matrices:
        output = output @ matrices["out_proj.weight"].T
    return np.maximum(loop_norm(output, block.norm), 0), weights


def loop_model(model, ids):
    """Logits of one sentence in numpy, word by word, by equations 1-14 with Kutta's classical scheme; and the
    attention of the first evaluation and E."""
    base, config = model.model, model.config
    embeddings = base.embed_tokens.weight.detach().numpy()[ids]
    length, n = len(ids), config.ngram_size
    local = np.zeros((length, config.hidden_size))
    if n == 0:
        local = embeddings
    else:
        weight, bias = (p.detach().numpy() for p in base.convolution.linear.parameters())
        padded = np.concatenate([embeddings, np.zeros((max(n - length, 0), config.embedding_size))])
        for j in range(max(length - n + 1, 1)):
            local[j] = np.maximum(weight @ padded[j : j + n].reshape(-1) + bias, 0)
    positions = loop_positions(length, config.hidden_size)
    first_attention = loop_block(base.blocks[0], local, positions)[1]
    state = local
    if config.solver == "none":
        state = loop_block(base.blocks[0], state, positions)[0]
        for block in base.blocks[1:]:
            state = state + loop_block(block, state, positions)[0]
    else:
        for _ in range(math.ceil(1 / config.step_size)):
            z = []
            for a in (0, 0.5, 0.5, 1):
                inner = state + a * config.step_size * z[-1] if z else state
                z.append(loop_block(base.blocks[0], inner, positions)[0])
            state = state + config.step_size * (z[0] + 2 * z[1] + 2 * z[2] + z[3]) / 6
    least = config.distance_epsilon
    euclidean = np.array([[1 / max(math.dist(row, column), least) for column in local] for row in state])
    w_1, w_2 = base.fusion.gate.detach().numpy()
    total = abs(w_1) + abs(w_2)
    fused = loop_norm(w_1 / total * local + w_2 / total * (euclidean @ local), base.fusion.norm)
    weight, bias = (p.detach().numpy() for p in model.classifier.parameters())
    return weight @ fused.max(axis=0) + bias, first_attention, euclidean


@pytest.mark.parametrize(
    "values",
    [
        {"solver": "rk", "step_size": 0.25},
        {"solver": "rk", "step_size": 0.3, "attention_output_projection": False, "ngram_size": 3},
        {"solver": "rk", "ngram_size": 0, "embedding_size": 6},
        {"solver": "none"},
        {"solver": "none", "num_blocks": 5, "ngram_size": 1},
    ],
)
@pytest.mark.parametrize("gate", [(0.6, 0.3), (0.4, -0.6)])
def test_the_model_is_that_of_the_equations(values, gate, batch):
    """A padded batch against single sentences in loops, of 7, 4, 2 and 1 words."""
    model = tiny_model(**values)
    model.model.fusion.gate.data.copy_(torch.tensor(gate))
    output = model(**batch, output_attentions=True)
    for i, length in enumerate((7, 4, 2, 1)):
        ids = batch["input_ids"][i, :length].numpy()
        logits, attention, euclidean = loop_model(model, ids)
        assert_close(output.logits[i], torch.from_numpy(logits))
        assert_close(output.attentions[0][i, 0, :length, :length], torch.from_numpy(attention))
        assert_close(output.euclidean_attention[i, :length, :length], torch.from_numpy(euclidean), scale=100)
        assert output.attentions[0][i, 0, :, length:].eq(0).all()


@pytest.mark.parametrize("solver", [*SOLVERS, "none"])
@pytest.mark.parametrize("ngram_size", [0, 1, 2, 3])
def test_a_sentence_does_not_depend_on_its_neighbours(solver, ngram_size, batch):
    """Nor on padding, on which side it is, or what the padding's ids are."""
    model = tiny_model(solver=solver, ngram_size=ngram_size, embedding_size=6)
    together = model(**batch)
    lengths = (7, 4, 2, 1)
    for i, length in enumerate(lengths):
        ids = batch["input_ids"][i : i + 1, :length]
        alone = model(ids)
        assert_close(together.logits[i], alone.logits[0])
        assert together.num_function_evaluations[i] == alone.num_function_evaluations[0]
        left = torch.cat([torch.full((1, 3), 9), ids], dim=1)
        mask = torch.cat([torch.zeros(1, 3), torch.ones(1, length)], dim=1)
        assert_close(model(left, attention_mask=mask).logits, alone.logits)
    other = batch["input_ids"].masked_fill(~batch["attention_mask"].bool(), 7)
    assert_close(model(other, attention_mask=batch["attention_mask"]).logits, together.logits)
    assert_close(model(batch["input_ids"]).logits, together.logits)
    embeddings = model.model.embed_tokens(other)
    inputs = {"inputs_embeds": embeddings, "attention_mask": batch["attention_mask"]}
    assert_close(model(**inputs).logits, together.logits)


def test_outputs_have_the_documented_shapes(batch):
    for solver, evaluations in (("rk", 20), ("ark", 16), ("none", 1)):
        model = tiny_model(CsaOdeModel, solver=solver)
        output = model(**batch, output_attentions=True, output_hidden_states=True)
        assert model.config.num_function_evaluations == evaluations
        assert output.num_function_evaluations.tolist() == [evaluations] * 4
        assert len(output.attentions) == evaluations and output.attentions[0].shape == (4, 1, 7, 7)
        assert output.evaluation_times.shape == (evaluations, 4)
        assert output.last_hidden_state.shape == (4, 7, 6) and output.pooler_output.shape == (4, 6)
        assert [state.shape for state in output.hidden_states] == [(4, 7, 6)] * 2
        assert output.last_hidden_state[1, 4:].abs().max() == 0
        # The first evaluation is at H_L.
        attention = model.attention(output.hidden_states[0], batch["attention_mask"])
        torch.testing.assert_close(attention, output.attentions[0][:, 0])
    assert model(**batch).attentions is None
    assert CsaOdeConfig(solver="rkf").num_function_evaluations is None


def test_stacked_blocks_are_evaluated_at_their_numbers(batch):
    output = tiny_model(CsaOdeModel, solver="none", num_blocks=5)(**batch, output_attentions=True)
    assert output.evaluation_times.tolist() == [[number] * 4 for number in range(5)]


def test_dropout_is_of_embeddings_and_of_the_vector_to_classify():
    model, zeros = tiny_model(dropout=0.999), {}
    for name, module in (("words", model.model.convolution), ("vector", model.classifier)):

        def count_zeros(module, inputs, name=name):
            zeros[name] = (inputs[0] == 0).double().mean().item()

        module.register_forward_pre_hook(count_zeros)
    ids = torch.randint(2, 50, (50, 7))
    model(ids)
    assert zeros == {"words": 0, "vector": 0}
    model.train()(ids)
    assert zeros.keys() == {"words", "vector"} and 0.99 < min(zeros.values())


def count(d, n, classes=6, embedding=300, blocks=1):
    """Parameters without embeddings: convolution; W_P, W_Q, W_K, W_V, W_O, b_P and two norms a block; gate and norm;
    classifier."""
    convolution = n * embedding * d + d if n else 0
    return convolution + blocks * (5 * d * d + 5 * d) + 2 + 2 * d + d * classes + classes


# Rows of the paper's tables 1-3: d, n and millions of parameters.
@pytest.mark.parametrize(
    "d, n, millions", [(300, 2, 0.63), (300, 0, 0.45), (50, 2, 0.043), (200, 2, 0.32), (300, 1, 0.54), (300, 3, 0.72)]
)
def test_parameters_are_those_of_the_paper(d, n, millions):
    model = CsaOdeForSequenceClassification(CsaOdeConfig(hidden_size=d, ngram_size=n, num_labels=6, vocab_size=7))
    number = model.num_parameters() - 7 * 300
    assert number == count(d, n)
    assert number / 1e6 == pytest.approx(millions, abs=0.0051)
    printed = CsaOdeConfig(hidden_size=d, ngram_size=n, num_labels=6, vocab_size=7, attention_output_projection=False)
    assert number - (CsaOdeForSequenceClassification(printed).num_parameters() - 7 * 300) == d * d


def test_parameters_of_stacked_blocks():
    config = CsaOdeConfig(solver="none", num_blocks=5, num_labels=6, vocab_size=7)
    assert CsaOdeForSequenceClassification(config).num_parameters() - 2100 == count(300, 2, blocks=5)


def test_equal_vectors_have_the_greatest_euclidean_attention():
    """And finite gradients."""
    model = tiny_model(CsaOdeModel)
    states = torch.randn(1, 3, 6, dtype=torch.float64).requires_grad_()
    fused, attention = model.fusion(states, states, torch.ones(1, 3, dtype=torch.bool))
    torch.testing.assert_close(attention[0].diagonal(), torch.full((3,), 1e3, dtype=torch.float64))
    fused.sum().backward()
    assert states.grad.isfinite().all()


def test_a_pair_is_the_vectors_of_two_sentences():
    """`[u, v, |u - v|, u * v]` of sentences that are encoded one by one, wherever their words are in the row."""
    model = tiny_model(num_sentences=2)
    first, second = torch.tensor([[5, 6, 7, 8]]), torch.tensor([[9, 10]])
    u, v = (model.model(ids).pooler_output for ids in (first, second))
    expected = model.classifier(torch.cat([u, v, (u - v).abs(), u * v], dim=-1))
    ids = torch.tensor([[5, 6, 7, 8, 9, 10, 0], [9, 10, 5, 6, 7, 8, 0]])
    types = torch.tensor([[0, 0, 0, 0, 1, 1, 0], [1, 1, 0, 0, 0, 0, 0]])
    output = model(ids, attention_mask=(ids != 0).long(), token_type_ids=types)
    assert_close(output.logits, expected.expand(2, -1))
    assert output.num_function_evaluations.tolist() == [32, 32]
    assert_close(model(ids, token_type_ids=types).logits, output.logits)
    assert model(ids, token_type_ids=types, labels=torch.tensor([0, 1])).loss.isfinite()


def test_evaluations_of_a_pair_are_those_of_its_two_sentences():
    """Of an adaptive solver, for which sentences differ."""
    options = {"solver": "rkf", "rtol": 1e-6, "atol": 1e-6}
    pair, single = tiny_model(num_sentences=2, **options), tiny_model(num_sentences=1, **options)
    single.model.load_state_dict(pair.model.state_dict())
    ids = torch.randint(2, 50, (3, 9), generator=torch.Generator().manual_seed(0))
    types = (torch.arange(9) >= torch.tensor([[1], [4], [8]])).long()
    first, second = (
        [single(row[kinds == i][None]).num_function_evaluations.item() for row, kinds in zip(ids, types)]
        for i in (0, 1)
    )
    evaluations = pair(ids, token_type_ids=types).num_function_evaluations.tolist()
    assert evaluations == [sum(both) for both in zip(first, second)]
    assert len(set(evaluations)) == 3


def test_pairs_and_single_sentences_are_not_mixed_up(batch):
    types = torch.zeros_like(batch["input_ids"])
    with pytest.raises(ValueError, match="needs token_type_ids"):
        tiny_model(num_sentences=2)(**batch)
    with pytest.raises(ValueError, match="a pair with an empty sentence"):
        tiny_model(num_sentences=2)(**batch, token_type_ids=types)
    types[:, -1] = 1
    with pytest.raises(ValueError, match="num_sentences=1, but token_type_ids"):
        tiny_model()(**batch, token_type_ids=types)


@pytest.mark.parametrize(
    "values, message",
    [
        ({"solver": "euler"}, "solver='euler' is unknown: choose one of rk, rkf, ark, none"),
        ({"gradient": "none"}, "gradient='none' is unknown: choose one of direct, adjoint"),
        ({"num_sentences": 3}, "num_sentences=3 is unknown: choose one of 1, 2"),
        ({"solver": "ark", "step_size": 1}, "step_size=1 must be less than 1 for solver='ark'"),
        ({"solver": "rk", "step_size": 1.5}, "step_size=1.5 must be at most 1"),
        ({"solver": "rk", "step_size": 0}, "step_size=0 must be a positive number"),
        ({"rtol": -1.0}, "rtol=-1.0 must be a positive number"),
        ({"distance_epsilon": math.nan}, "distance_epsilon=nan must be a positive number"),
        ({"ngram_size": -1}, "ngram_size=-1 must not be negative"),
        ({"ngram_size": 0, "embedding_size": 200}, "embedding_size=200 must be hidden_size=300"),
        ({"num_blocks": 5}, "num_blocks=5, but solver='ark' integrates one block"),
        ({"solver": "none", "gradient": "adjoint"}, "gradient='adjoint' is for an ODE"),
        ({"dropout": 1.0}, "dropout=1.0 must be a probability"),
        ({"hidden_size": 0}, "hidden_size=0 must be at least 1"),
    ],
)
def test_errors_of_the_configuration(values, message):
    with pytest.raises(Exception, match=message):
        CsaOdeConfig(**values)


def test_bad_inputs_are_refused(batch):
    model = tiny_model()
    with pytest.raises(ValueError, match="Give either input_ids or inputs_embeds"):
        model()
    with pytest.raises(ValueError, match=r"no words: the input's shape is \(2, 0\)"):
        model(torch.zeros(2, 0, dtype=torch.long))
    # A sentence of padding only is one padding word.
    assert model(torch.zeros(2, 3, dtype=torch.long)).logits.isfinite().all()


def test_auto_classes_and_files(tmp_path, batch):
    assert isinstance(AutoConfig.for_model("csa_ode"), CsaOdeConfig)
    model = tiny_model(dtype=torch.float32, solver="rkf", id2label={0: "a", 1: "b", 2: "c"})
    model.save_pretrained(tmp_path / "first")
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "first")
    assert type(loaded) is CsaOdeForSequenceClassification and loaded.config.id2label[2] == "c"
    torch.testing.assert_close(loaded(**batch).logits, model(**batch).logits)
    base = AutoModel.from_pretrained(tmp_path / "first")
    assert type(base) is CsaOdeModel
    torch.testing.assert_close(base(**batch).pooler_output, model.model(**batch).pooler_output)

    loaded.save_pretrained(tmp_path / "second")
    program = (
        "import sys, torch\nsys.modules['modeling_ode_transformer'] = None\n"
        "from transformers import AutoModel, AutoModelForSequenceClassification as Auto\n"
        "first, second = sys.argv[1:]\n"
        "Auto.from_pretrained(first, trust_remote_code=True).save_pretrained(second)\n"
        "AutoModel.from_pretrained(second, trust_remote_code=True)\n"
        "model = Auto.from_pretrained(second, trust_remote_code=True).eval()\n"
        "assert type(model).__module__.startswith('transformers_modules.')\n"
        "print('sum', model(torch.arange(2, 9)[None]).logits.double().sum().item())\n"
    )
    printed = run_python(program, tmp_path, str(tmp_path / "second"), str(tmp_path / "third"))
    expected = model(torch.arange(2, 9)[None]).logits.double().sum().item()
    assert float(printed.split("sum ")[1].split()[0]) == pytest.approx(expected, abs=1e-4)
    files = {
        *("configuration_csa_ode.py", "modeling_csa_ode.py", "solvers_csa_ode.py", "integration_ode_transformer.py"),
        *("config.json", "model.safetensors"),
    }
    auto_map = {
        "AutoConfig": "configuration_csa_ode.CsaOdeConfig",
        "AutoModel": "modeling_csa_ode.CsaOdeModel",
        "AutoModelForSequenceClassification": "modeling_csa_ode.CsaOdeForSequenceClassification",
    }
    for name in ("first", "second", "third"):
        assert {path.name for path in (tmp_path / name).iterdir()} == files
        assert json.loads((tmp_path / name / "config.json").read_text())["auto_map"] == auto_map


def test_new_models_start_as_the_paper_says():
    """Xavier's matrices, zero biases, a gate of halves, a zero padding row."""
    torch.manual_seed(0)
    model = CsaOdeForSequenceClassification(CsaOdeConfig(vocab_size=1000, initializer_range=0.2))
    block, convolution = model.model.blocks[0], model.model.convolution.linear
    for weight, inputs, outputs in ((block.q_proj.weight, 300, 300), (convolution.weight, 600, 300)):
        bound = math.sqrt(6 / (inputs + outputs))
        assert weight.abs().max() <= bound and weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.02)
    assert convolution.bias.abs().max() == 0 and model.model.fusion.gate.tolist() == [0.5, 0.5]
    embeddings = model.model.embed_tokens.weight.detach()
    assert embeddings[0].abs().max() == 0 and embeddings.std().item() == pytest.approx(0.2, rel=0.02)


@pytest.mark.parametrize("solver", ["rk", "rkf", "ark"])
def test_bfloat16(solver, batch):
    """Weights of bfloat16, and autocast, are near float32; the gradient of autocast is finite."""
    model = tiny_model(dtype=torch.float32, solver=solver)
    expected = model(**batch).logits
    with torch.autocast("cpu", torch.bfloat16):
        output = model(**batch, labels=torch.zeros(4, dtype=torch.long))
    output.loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    for logits in (output.logits, model.bfloat16()(**batch).logits):
        assert logits.isfinite().all() and (logits.float() - expected).abs().max() < 0.3 * expected.abs().max()


@pytest.mark.parametrize("fields", [{"solver": "ark", "step_size": 1.0}, {"gradient": "Adjoint"}], ids=str)
def test_fields_that_are_set_after_construction_are_checked(fields, tmp_path):
    tiny_model(solver="rk").save_pretrained(tmp_path)
    with pytest.raises(Exception, match="|".join(fields)):
        CsaOdeForSequenceClassification.from_pretrained(tmp_path, **fields)


@pytest.mark.parametrize(
    "problem_type, num_labels, labels, loss",
    [
        ("single_label_classification", 3, torch.tensor([0, 1, 2, 0]), torch.nn.functional.cross_entropy),
        ("multi_label_classification", 3, torch.eye(4, 3), torch.nn.functional.binary_cross_entropy_with_logits),
        ("regression", 1, torch.rand(4), lambda logits, labels: ((logits[:, 0] - labels) ** 2).mean()),
    ],
)
def test_problem_types(problem_type, num_labels, labels, loss, batch):
    model = tiny_model(dtype=torch.float32, num_labels=num_labels)
    output = model(**batch, labels=labels)
    assert model.config.problem_type == problem_type
    torch.testing.assert_close(output.loss, loss(output.logits, labels))


def texts_to_learn():
    return [f"{'why' if i % 2 else 'who'} {word} it ?" for i, word in enumerate("is was did has can".split() * 6)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a model that tells questions that begin with who from those with why, and its tokenizer."""
    folder = tmp_path_factory.mktemp("trained")
    texts = texts_to_learn()
    labels = [i % 2 for i in range(len(texts))]
    examples = classification_examples.Examples(texts, None, [str(label) for label in labels])
    tokenizer = classification.build_tokenizer(examples, classification.ModelArguments())
    torch.manual_seed(0)
    names = {"id2label": {0: "who", 1: "why"}, "label2id": {"who": 0, "why": 1}}
    config = CsaOdeConfig(
        vocab_size=len(tokenizer), embedding_size=16, hidden_size=16, pad_token_id=tokenizer.pad_token_id, **names
    )
    model = CsaOdeForSequenceClassification(config)
    dataset = [{**tokenizer(text), "labels": label} for text, label in zip(texts, labels)]
    arguments = TrainingArguments(
        str(folder),
        max_steps=30,
        learning_rate=0.01,
        per_device_train_batch_size=10,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="no",
        gradient_accumulation_steps=1,
    )
    Trainer(
        model=model,
        args=arguments,
        train_dataset=dataset,
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer),
    ).train()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_trainer_and_pipeline(trained):
    classify = pipeline("text-classification", model=str(trained))
    results = classify(["why is it ?", "who was it ?", "who"], batch_size=3)
    assert [result["label"] for result in results] == ["why", "who", "who"]
    tokenizer = AutoTokenizer.from_pretrained(trained)
    assert tokenizer("who unheard").input_ids[1] == tokenizer.unk_token_id == 1
    assert tokenizer.pad_token_id == 0 and "token_type_ids" not in tokenizer("who")


def test_accumulated_gradients_are_those_of_the_full_batch(tmp_path):
    """Of a regression, whose loss knows nothing of the number of examples."""
    data = [{"input_ids": [i, i + 1, i + 2], "labels": float(i)} for i in range(2, 10)]

    def weights(name, size, accumulation):
        torch.manual_seed(0)
        model = CsaOdeForSequenceClassification(CsaOdeConfig(**(TINY | {"num_labels": 1, "dropout": 0.0})))
        arguments = TrainingArguments(
            str(tmp_path / name),
            max_steps=1,
            learning_rate=1e-2,
            per_device_train_batch_size=size,
            optim="sgd",
            gradient_accumulation_steps=accumulation,
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
            save_strategy="no",
            max_grad_norm=0.0,
        )
        Trainer(model=model, args=arguments, train_dataset=data).train()
        return model.classifier.weight.detach()

    torch.testing.assert_close(weights("a", 8, 1), weights("b", 2, 4), rtol=1e-4, atol=1e-6)


def embedding_of(width=3, rows=4):
    torch.manual_seed(0)
    return torch.nn.Embedding(rows, width, padding_idx=0)


VOCABULARY = {"<pad>": 0, "a": 1, ". .": 2, "rare": 3}


@pytest.mark.parametrize("header", ["", "4 3\n"])
def test_word_vectors(tmp_path, header):
    """GloVe's lines, one of a word with a space, one twice; with word2vec's header and without."""
    path = tmp_path / "vectors.txt"
    path.write_text(f"{header}a 1 2 3\nother 4 5 6\n. . 0.5 -1e-1 0\na 7 8 9\n<pad> 1 1 1\n", encoding="utf-8")
    embedding = embedding_of()
    before = embedding.weight.clone()
    coverage = load_word_vectors(path, VOCABULARY, embedding)
    assert (coverage.found, coverage.missing, coverage.duplicates) == (2, ["rare"], 1)
    assert str(coverage).startswith("2 of 3 words (66.7%) have a pre-trained vector; not 'rare'; 1 second")
    expected = torch.stack([before[0], torch.tensor([1.0, 2, 3]), torch.tensor([0.5, -0.1, 0]), before[3]])
    assert torch.equal(embedding.weight, expected)


@pytest.mark.parametrize(
    "text, message",
    [
        ("a 1 2\n", r"line 1: 2 numbers behind 'a', but the embedding is 3 wide"),
        ("b 1 2 3\na 1 2 3 4\n", r"line 2: 4 numbers behind 'a', but the embedding is 3 wide"),
        ("5 300\na 1 2 3\n", r"has vectors of 300 numbers, but the embedding has 3"),
        ("a 1 2 x\n", "line 1: could not convert string to float: 'x'"),
        ("a 1 2 nan\n", "line 1: the vector of 'a' is not finite"),
        ("b 1 2 3\n", r"\(1 lines\) has no word of the vocabulary"),
        ("", r"\(0 lines\) has no word of the vocabulary"),
    ],
)
def test_bad_word_vectors_are_refused(tmp_path, text, message):
    (tmp_path / "vectors.txt").write_text(text, encoding="utf-8")
    embedding = embedding_of()
    before = embedding.weight.clone()
    with pytest.raises(ValueError, match=message):
        load_word_vectors(tmp_path / "vectors.txt", VOCABULARY, embedding)
    assert torch.equal(embedding.weight, before)
    with pytest.raises(FileNotFoundError, match="No file"):
        load_word_vectors(tmp_path / "none.txt", VOCABULARY, embedding)


def test_attention_is_plotted(trained, tmp_path):
    """Both figures are written, and the numbers beside them are the model's."""
    options = ["--model_name_or_path", str(trained), "--text", "why is it ?", "--output_dir", str(tmp_path / "out")]
    plot_attention.main([*options, "--pair", "why", "it"])
    with pytest.raises(ValueError, match="--pair was: 0 of the words are 'was': why is it"):
        plot_attention.main([*options, "--pair", "why", "was"])
    with pytest.raises(ValueError, match="its tokenizer makes 3 tokens of the 1 words"):
        plot_attention.main([*options[:2], "--text", "why<pad>it", *options[4:], "--pair", "why", "it"])
    for name in ("attention_over_time.png", "euclidean_attention.png"):
        assert (tmp_path / "out" / name).read_bytes().startswith(b"\x89PNG")
    numbers = json.loads((tmp_path / "out" / "attention.json").read_text())
    assert numbers["times"] == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    model = AutoModelForSequenceClassification.from_pretrained(trained)
    ids = AutoTokenizer.from_pretrained(trained)("why is it ?", return_tensors="pt")
    output = model(**ids, output_attentions=True, output_hidden_states=True)
    assert numbers["weights"][0] == pytest.approx(output.attentions[0][0, 0, 0, 2].item(), abs=1e-6)
    last = model.model.attention(output.hidden_states[1], ids["attention_mask"])[0, 0, 2].item()
    assert numbers["weights"][-1] == pytest.approx(last, abs=1e-6)
    rows = output.euclidean_attention[0]
    shares = (rows / rows.sum(dim=1, keepdim=True)).tolist()
    assert np.allclose(numbers["euclidean_attention"], shares, atol=1e-6)
