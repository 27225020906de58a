# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Language models that learn from a teacher: the loss, what it leaves alone, resuming, and what is refused."""

import json
import shutil

import pytest
import run_language_modeling
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from modeling_ode_transformer.hub.model_card import model_card, run_record
from modeling_ode_transformer.training.losses import summed_divergence

from .runs import assert_logged, losses
from .test_language_model import MODEL, arguments, corpus, log_history  # noqa: F401 (a fixture)


# Without dropout, so that losses have a closed form; the teacher has it.
DROPOUT = {"dropout": 0.5, "attention_dropout": 0.5, "activation_dropout": 0.5}
STUDENT = MODEL | {"decoder_solver": "euler", "decoder_coefficients": "fixed"} | dict.fromkeys(DROPOUT, 0.0)


@pytest.fixture(scope="module")
def teacher(corpus, tmp_path_factory):  # noqa: F811
    """The folder of a trained RK2 model with dropout."""
    folder = tmp_path_factory.mktemp("teacher") / "rk2"
    options = {"config_overrides": json.dumps(MODEL | DROPOUT), "max_steps": 12}
    run_language_modeling.main(arguments(corpus, folder, **options))
    return folder


def student(**options):
    return {"config_overrides": json.dumps(STUDENT)} | options


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_the_divergence_is_that_of_a_plain_formula(temperature):
    """In float64, with its gradient; tokens without a label do not count, whatever their logits are."""
    generator = torch.Generator().manual_seed(0)
    logits, of_teacher = (torch.randn(2, 3, 11, generator=generator, dtype=torch.float64) for _ in range(2))
    labels = torch.tensor([[4, 0, 10], [3, -100, -100]])
    expected, plain = 0.0, logits.clone().requires_grad_()
    for row, place in ((0, 0), (0, 1), (0, 2), (1, 0)):
        p = (of_teacher[row, place] / temperature).softmax(-1)
        q = (plain[row, place] / temperature).softmax(-1)
        expected = expected + temperature**2 * (p * (p / q).log()).sum()
    expected.backward()
    of_teacher[1, 1:] = torch.inf
    single = logits.float().requires_grad_()
    found = summed_divergence(single, of_teacher.float(), labels, temperature)
    found.backward()
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    torch.testing.assert_close(single.grad.double(), plain.grad, rtol=1e-4, atol=1e-6)
    assert summed_divergence(single, single, labels, temperature).item() == pytest.approx(0, abs=1e-6)


def test_loss_and_gradient_of_an_update_are_those_of_plain_pytorch(corpus, teacher, tmp_path):  # noqa: F811
    """Of accumulated, padded batches: means over all words of the update. The teacher draws no dropout."""
    temperature, weight, start = 2.0, 0.7, tmp_path / "start"
    run_language_modeling.main(arguments(corpus, start, **student(max_steps=1)))
    options = {"model_name_or_path": start, "config_overrides": None, "block_size": 0, "max_train_samples": 12}
    options |= {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 3, "max_steps": 1}
    options |= {"teacher": teacher, "teacher_temperature": temperature, "teacher_weight": weight, "max_grad_norm": 1e9}
    run_language_modeling.main(arguments(corpus, tmp_path / "out", **options))
    (logged,) = [entry for entry in log_history(tmp_path / "out") if "loss" in entry]

    tokenizer = AutoTokenizer.from_pretrained(start)
    model, other = (AutoModelForCausalLM.from_pretrained(each, dtype=torch.float64) for each in (start, teacher))
    total, words = 0.0, 0
    for line in (corpus / "train.txt").read_text().splitlines()[:12]:
        ids = torch.tensor([[*tokenizer(line).input_ids, tokenizer.eos_token_id]])
        logits, of_teacher = model(ids[:, :-1]).logits[0], other.eval()(ids[:, :-1]).logits[0].detach()
        total = total - logits.log_softmax(-1).gather(-1, ids[0, 1:, None]).sum()
        p, q = (of_teacher / temperature).softmax(-1), (logits / temperature).softmax(-1)
        total = total + weight * temperature**2 * (p * (p / q).log()).sum()
        words += ids.shape[1] - 1
    loss = total / words
    assert_logged(logged, loss, model)


def test_evaluations_and_the_saved_model_are_without_the_teacher(corpus, teacher, tmp_path):  # noqa: F811
    before = (teacher / "model.safetensors").read_bytes()
    metrics = run_language_modeling.main(arguments(corpus, tmp_path / "a", **student(teacher=teacher, do_eval=True)))
    assert (teacher / "model.safetensors").read_bytes() == before
    options = {"model_name_or_path": tmp_path / "a", "config_overrides": None, "do_train": None, "do_eval": True}
    again = run_language_modeling.main(arguments(corpus, tmp_path / "b", **options))
    assert again["eval_loss"] == metrics["eval_loss"] == metrics["eval_nll_loss"]
    run_language_modeling.main(arguments(corpus, tmp_path / "c", **student()))
    assert "| teacher | rk2 |" in model_card(run_record(tmp_path / "a") | {"card": {"repo_id": "me/student"}}).content
    distilled, plain = (AutoModelForCausalLM.from_pretrained(tmp_path / name).state_dict() for name in "ac")
    assert distilled.keys() == plain.keys()
    assert not any(torch.equal(distilled[name], plain[name]) for name in plain if name.endswith("fc1.weight"))


def test_a_resumed_run_has_the_same_teacher(corpus, teacher, tmp_path):  # noqa: F811
    """It then repeats the uninterrupted one. Another temperature is refused, and so are other weights of that name."""
    options = student(teacher=teacher, max_steps=6, save_strategy="steps", save_steps=3)
    run_language_modeling.main(arguments(corpus, tmp_path / "whole", **options))
    (tmp_path / "out").mkdir()
    shutil.copytree(tmp_path / "whole" / "checkpoint-3", tmp_path / "out" / "checkpoint-3")
    shutil.copy(tmp_path / "whole" / "arguments.json", tmp_path / "out")
    with pytest.raises(ValueError, match=r"another training: .*teacher_temperature=3.0 in place of 1.0"):
        run_language_modeling.main(arguments(corpus, tmp_path / "out", **options, teacher_temperature=3))
    other, model = tmp_path / "other" / "rk2", json.dumps(MODEL | DROPOUT)
    run_language_modeling.main(arguments(corpus, other, config_overrides=model, max_steps=1))
    with pytest.raises(ValueError, match=r"another training: .*teacher='rk2 \(\w+\)' in place of 'rk2 \(\w+\)'"):
        run_language_modeling.main(arguments(corpus, tmp_path / "out", **options | {"teacher": other}))
    run_language_modeling.main(arguments(corpus, tmp_path / "out", **options))
    assert losses(tmp_path / "out") == losses(tmp_path / "whole")


def test_a_teacher_of_other_words_is_refused(corpus, teacher, tmp_path):  # noqa: F811
    message = rf"--teacher {teacher} has another tokenizer \(18 tokens\) than the training model \(10 tokens, of .*"
    with pytest.raises(ValueError, match=message + f"give --tokenizer_name {teacher}"):
        run_language_modeling.main(arguments(corpus, tmp_path / "out", **student(teacher=teacher, vocab_size=10)))
    assert not (tmp_path / "out" / "trainer_state.json").exists()
