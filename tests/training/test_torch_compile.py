# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""`--torch_compile` with batches of a token budget: the training of eager models, from few graphs."""

import json
import shutil

import pytest
import run_translation
import torch
from safetensors.torch import load_file
from torch._dynamo.utils import counters

from modeling_ode_transformer import OdeTransformerForCausalLM, OdeTransformerRecurrenceForConditionalGeneration

from ..conftest import WITHOUT_DROPOUT, build
from .runs import MODEL, arguments, losses
from .test_resumption import train_in_two_processes


# Random numbers are drawn in another order in graphs.


@pytest.fixture
def graphs():
    """Counts graphs; the backend "eager" runs their operators as they are."""
    torch.compiler.reset()
    counters.clear()
    yield lambda: counters["stats"]["unique_graphs"]
    torch.compiler.reset()


def test_a_compiled_training_is_that_of_the_eager_model_and_is_resumed(corpus, tmp_path, graphs):
    """The same losses of updates and of evaluations, and the same outputs, with recomputed blocks and chunked losses;
    12 batches of other shapes compile fewer than 6 times. One that is stopped after update 4 continues with the same
    losses, to the same weights."""
    options = {"max_tokens_per_batch": 240, "train_sampling_strategy": None, "label_smoothing_factor": 0.1}
    options |= {"loss_chunk_size": 16, "gradient_checkpointing": True, "do_eval": True, "do_predict": True}
    options |= {"gradient_checkpointing_kwargs": json.dumps({"use_reentrant": False})}
    options |= {"config_overrides": json.dumps(MODEL | WITHOUT_DROPOUT)}
    options |= {"max_steps": 12, "save_strategy": "steps", "save_steps": 4}
    eager, compiled, resumed = (tmp_path / name for name in ("eager", "compiled", "resumed"))
    expected = run_translation.main(arguments(corpus, eager, **options))
    assert graphs() == 0
    options |= {"torch_compile": True, "torch_compile_backend": "eager"}
    metrics = run_translation.main(arguments(corpus, compiled, **options))
    assert 1 <= graphs() < 6 and not counters["graph_break"]
    assert losses(compiled) == pytest.approx(losses(eager), rel=1e-5)
    assert metrics["eval_loss"] == pytest.approx(expected["eval_loss"], rel=1e-5)
    outputs = [(folder / "generated_predictions.txt").read_text() for folder in (eager, compiled)]
    assert outputs[0] == outputs[1]

    shutil.copytree(compiled / "checkpoint-4", resumed / "checkpoint-4")
    shutil.copy(compiled / "arguments.json", resumed)
    run_translation.main(arguments(corpus, resumed, **options))
    assert losses(resumed) == pytest.approx(losses(compiled), rel=1e-6)
    weights = [load_file(folder / "model.safetensors") for folder in (resumed, compiled)]
    torch.testing.assert_close(*weights, rtol=1e-5, atol=1e-6)


def test_two_compiled_processes_train_as_two_eager_ones(corpus, tmp_path):
    values = {"max_tokens_per_batch": 240, "train_sampling_strategy": None, "max_steps": 4, "logging_steps": 1}
    values |= {"config_overrides": json.dumps(MODEL | WITHOUT_DROPOUT), "label_smoothing_factor": 0.1}
    eager, compiled = tmp_path / "eager", tmp_path / "compiled"
    train_in_two_processes(arguments(corpus, eager, **values), tmp_path)
    values |= {"torch_compile": True, "torch_compile_backend": "eager"}
    train_in_two_processes(arguments(corpus, compiled, **values), tmp_path)
    assert losses(compiled) == pytest.approx(losses(eager), rel=1e-5)


def test_what_inductor_makes_has_the_gradients_of_the_eager_model(graphs):
    """For two shapes, one graph; of a language model, texts that are padded, and not all of their words counted."""
    fields = {"decoder_layers": 1, "layer_history": "none", **WITHOUT_DROPOUT}
    model = build(OdeTransformerForCausalLM, **fields).train()
    compiled = torch.compile(model, dynamic=True)
    for rows, length in ((6, 11), (5, 13)):
        ids = torch.randint(4, 20, (rows, length))
        mask = torch.arange(length) < torch.arange(length - rows, length)[:, None]
        labels = ids.masked_fill(~mask, -100)
        found = []
        for each in (model, compiled):
            loss = each(input_ids=ids, attention_mask=mask, labels=labels).loss
            found.append(torch.autograd.grad(loss, list(model.parameters())))
        torch.testing.assert_close(*found[::-1], rtol=1e-4, atol=1e-6)
    assert graphs() == 1


def test_a_compiled_recurrence_has_its_gradients(graphs):
    """For two shapes, one graph: `recurrence_steps` states, of which each is read again."""
    model = build(OdeTransformerRecurrenceForConditionalGeneration, recurrence_steps=3, **WITHOUT_DROPOUT).train()
    recurrence = model.model.encoder.recurrence.layers[0].recurrence
    compiled = torch.compile(recurrence, dynamic=True, backend="aot_eager")
    for rows, length in ((4, 7), (3, 9)):
        states = torch.randn(rows, length, 32, requires_grad=True)
        mask = torch.arange(length) < torch.arange(length - rows, length)[:, None]
        inputs = states, *recurrence.parameters()
        found = [torch.autograd.grad(each(states, mask).square().sum(), inputs) for each in (recurrence, compiled)]
        torch.testing.assert_close(*found[::-1], rtol=1e-4, atol=1e-5)
    assert graphs() == 1
