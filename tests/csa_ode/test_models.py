# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""CSAODE: its equations by plain loops, its place in transformers."""

import json
import math

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

from modeling_ode_transformer import CsaOdeConfig, CsaOdeForSequenceClassification, CsaOdeModel
from modeling_ode_transformer.solvers_csa_ode import SOLVERS

from ..conftest import assert_close
from ..processes import run_python
from .conftest import tiny_model


def loop_positions(length, size, c):
    """Equation 3, as printed."""
    table = np.zeros((length, size))
    for i in range(1, length + 1):
        for j in range(1, size + 1):
            table[i - 1, j - 1] = math.sin(i * c ** (j / size)) if j % 2 == 0 else math.cos(i * c ** ((j - 1) / size))
    return table


def loop_norm(rows, norm, eps):
    weight, bias = norm.weight.detach().numpy(), norm.bias.detach().numpy()
    return np.stack([(row - row.mean()) / math.sqrt(row.var() + eps) * weight + bias for row in rows])


def loop_block(block, rows, positions, eps):
    """Equations 4 and 5."""
    matrices = {name: weight.detach().numpy() for name, weight in block.named_parameters()}
    projected = (rows + positions) @ matrices["position_proj.weight"].T + matrices["position_proj.bias"]
    x = np.maximum(loop_norm(projected, block.position_norm, eps), 0)
    scores = (x @ matrices["q_proj.weight"].T) @ (x @ matrices["k_proj.weight"].T).T
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    output = weights @ (x @ matrices["v_proj.weight"].T)
    if "out_proj.weight" in matrices:
        output = output @ matrices["out_proj.weight"].T
    return np.maximum(loop_norm(output, block.norm, eps), 0), weights


def loop_model(model, ids):
    """Logits of a sentence by equations 1-14 with Kutta's scheme; the attention of the first evaluation; and E."""
    base, config = model.model, model.config
    embeddings = base.embed_tokens.weight.detach().numpy()[ids]
    length, n, eps = len(ids), config.ngram_size, config.layer_norm_eps
    local = np.zeros((length, config.hidden_size))
    if n == 0:
        local = embeddings
    else:
        weight, bias = (p.detach().numpy() for p in base.convolution.linear.parameters())
        padded = np.concatenate([embeddings, np.zeros((max(n - length, 0), config.embedding_size))])
        for j in range(max(length - n + 1, 1)):
            local[j] = np.maximum(weight @ padded[j : j + n].reshape(-1) + bias, 0)
    positions = loop_positions(length, config.hidden_size, config.position_constant)
    first_attention = loop_block(base.blocks[0], local, positions, eps)[1]
    state = local
    if config.solver == "none":
        state = loop_block(base.blocks[0], state, positions, eps)[0]
        for block in base.blocks[1:]:
            state = state + loop_block(block, state, positions, eps)[0]
    else:
        for _ in range(math.ceil(1 / config.step_size)):
            z = []
            for a in (0, 0.5, 0.5, 1):
                inner = state + a * config.step_size * z[-1] if z else state
                z.append(loop_block(base.blocks[0], inner, positions, eps)[0])
            state = state + config.step_size * (z[0] + 2 * z[1] + 2 * z[2] + z[3]) / 6
    least = config.distance_epsilon
    euclidean = np.array([[1 / max(math.dist(row, column), least) for column in local] for row in state])
    w_1, w_2 = base.fusion.gate.detach().numpy()
    total = abs(w_1) + abs(w_2)
    fused = loop_norm(w_1 / total * local + w_2 / total * (euclidean @ local), base.fusion.norm, eps)
    weight, bias = (p.detach().numpy() for p in model.classifier.parameters())
    return weight @ fused.max(axis=0) + bias, first_attention, euclidean


@pytest.mark.parametrize(
    "values, gate",
    [
        ({"solver": "rk", "step_size": 0.3, "attention_output_projection": False, "ngram_size": 3}, (0.6, 0.3)),
        ({"solver": "rk", "ngram_size": 0, "embedding_size": 6}, (0.4, -0.6)),
        ({"solver": "none", "num_blocks": 5, "ngram_size": 1}, (0.6, 0.3)),
        ({"solver": "rk", "layer_norm_eps": 0.05, "position_constant": 0.01, "distance_epsilon": 0.5}, (0.4, -0.6)),
    ],
)
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


@pytest.mark.parametrize("ngram_size, solver", list(enumerate([*SOLVERS, "none"])))
def test_a_sentence_does_not_depend_on_its_neighbors(solver, ngram_size, batch):
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


def test_adaptive_steps_are_limited_by_the_configuration(batch):
    model = tiny_model(solver="rkf", max_solver_steps=2, rtol=1e-12, atol=1e-12)
    with pytest.raises(RuntimeError, match="rtol=1e-12 and atol=1e-12 are not reached within max_solver_steps=2"):
        model(**batch)


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
    """Without embeddings: convolution; W_P, W_Q, W_K, W_V, W_O, b_P and two norms a block; gate, norm; classifier."""
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
    parts = [[row[kinds == i][None] for i in (0, 1)] for row, kinds in zip(ids, types)]
    expected = [sum(single(part).num_function_evaluations.item() for part in both) for both in parts]
    evaluations = pair(ids, token_type_ids=types).num_function_evaluations.tolist()
    assert evaluations == expected
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
        ({"stepsize": 0.1}, r"stepsize=0.1 is not a field: did you mean step_size\?"),
        ({"solver": "euler"}, "solver='euler' is unknown: choose one of rk, rkf, ark, none"),
        ({"solver": "ark", "step_size": 1}, "step_size=1 must be less than 1 for solver='ark'"),
        ({"solver": "rk", "step_size": 1.5}, "step_size=1.5 must be at most 1"),
        ({"rtol": -1.0}, "rtol=-1.0 must be a positive number"),
        ({"distance_epsilon": math.nan}, "distance_epsilon=nan must be a positive number"),
        ({"pad_token_id": 10000}, "pad_token_id=10000 is not an id below vocab_size=10000"),
        ({"ngram_size": 0, "embedding_size": 200}, "embedding_size=200 must equal hidden_size=300"),
        ({"num_blocks": 5}, "num_blocks=5, but solver='ark' integrates one block"),
        ({"solver": "none", "gradient": "adjoint"}, "gradient='adjoint' needs an ODE solver"),
    ],
)
def test_errors_of_the_configuration(values, message):
    with pytest.raises(Exception, match=message):
        CsaOdeConfig(**values)


def test_a_sentence_of_padding_only_is_one_padding_word():
    assert tiny_model()(torch.zeros(2, 3, dtype=torch.long)).logits.isfinite().all()


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


@pytest.mark.parametrize("solver", ["ark", "none"])
def test_an_exported_model_takes_any_number_and_length_of_sentences(solver, batch):
    model = tiny_model(solver=solver).eval()
    sizes = {name: dict.fromkeys((0, 1), torch.export.Dim.DYNAMIC) for name in batch}
    exported = torch.export.export(model, (), batch, dynamic_shapes=sizes, strict=False).module()
    for shape in ((1, 9), (5, 4)):
        ids = torch.randint(2, 50, shape)
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        assert_close(exported(**inputs).logits, model(**inputs).logits)


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
