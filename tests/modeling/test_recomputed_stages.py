# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Stages that are recomputed for the gradient."""

import weakref

import pytest
import torch
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    DynamicCache,
    EncoderDecoderCache,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

from modeling_ode_transformer import (
    OdeTransformerForConditionalGeneration,
)
from modeling_ode_transformer import modeling_ode_transformer as modeling

from ..conftest import assert_close, build, tiny_config


# Stages that are recomputed


STAGES = [
    {"encoder_solver": "rk2"},
    {"encoder_solver": "rk4", "coefficients": "learned"},
    {"encoder_solver": "rk2", "coefficients": "gate", "decoder_solver": "rk2"},
    {"encoder_solver": "rk4", "vector_field": "sublayers", "decoder_solver": "rk2", "steps_per_layer": 2},
    {"encoder_solver": "rk2", "vector_field": "macaron", "normalize_stages": True},
    {"encoder_solver": "leapfrog", "decoder_solver": "rk3"},
    {"encoder_solver": "pcformer", "decoder_solver": "iiet"},
]
DROPOUTS = {"dropout": 0.2, "attention_dropout": 0.1, "activation_dropout": 0.3}


@pytest.mark.parametrize("form", STAGES, ids=str)
def test_recomputed_stages_change_no_loss_and_no_gradient(form, batch):
    """With dropout, whose masks have to come again."""
    results = []
    for kwargs in (None, {"stages": True}):
        model = build(**form, **DROPOUTS).double().train()
        if kwargs:
            model.activation_checkpointing_enable(kwargs)
            assert kwargs == {"stages": True}
        torch.manual_seed(5)
        loss = model(**batch, labels=batch["decoder_input_ids"], use_cache=False).loss
        loss.backward()
        # What is drawn afterwards is the same too.
        results.append((loss, torch.rand(3), {name: p.grad for name, p in model.named_parameters()}))
    (loss, drawn, gradients), (actual_loss, actually_drawn, actual) = results
    assert loss.item() == pytest.approx(actual_loss.item(), rel=1e-12) and torch.equal(drawn, actually_drawn)
    for name, gradient in gradients.items():
        assert gradient is not None, name
        torch.testing.assert_close(actual[name], gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("solver, stages", [("euler", 1), ("rk2", 2), ("rk4", 4)])
@pytest.mark.parametrize("num_steps", [1, 2])
def test_all_stages_but_the_last_are_evaluated_again_for_the_gradient(solver, stages, num_steps, batch):
    model = build(encoder_solver=solver, steps_per_layer=num_steps).train()
    calls = []
    model.model.encoder.layers[1].fc1.register_forward_hook(lambda *args: calls.append(args))
    evaluations = num_steps * stages

    def evaluated():
        calls.clear()
        loss = model(**batch, labels=batch["decoder_input_ids"], use_cache=False).loss
        assert len(calls) == evaluations
        loss.backward()
        return len(calls) - evaluations

    assert evaluated() == 0
    model.activation_checkpointing_enable({"stages": True})
    assert model.is_activation_checkpointing
    assert evaluated() == evaluations - 1
    model.activation_checkpointing_enable()
    assert evaluated() == evaluations
    model.activation_checkpointing_enable({"stages": True})
    model.activation_checkpointing_disable()
    assert not model.is_activation_checkpointing
    assert evaluated() == 0
    model.activation_checkpointing_enable({"stages": True})
    model.eval()
    assert evaluated() == 0


class LiveMemory(TorchDispatchMode):
    """Counts the bytes of all tensors made under it that still live."""

    def __init__(self):
        super().__init__()
        self.storages = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        output = function(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(output):
            if isinstance(tensor, torch.Tensor):
                self.storages.append(weakref.ref(tensor.untyped_storage()))
        return output

    @property
    def num_bytes(self):
        storages = [storage for storage in (each() for each in self.storages) if storage is not None]
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def kept_bytes(kwargs, **form):
    """What a forward pass of the encoder keeps for the gradient, without the coefficients, which are fixed."""
    sizes = {"encoder_ffn_dim": 128, "encoder_layers": 3, "coefficients": "fixed"}
    encoder = build(**sizes, **form).train().model.encoder
    if kwargs is not None:
        encoder.activation_checkpointing_enable(kwargs)
    ids = torch.randint(4, 61, (8, 33), generator=torch.Generator().manual_seed(1))
    encoder(ids)
    with LiveMemory() as live:
        state = encoder(ids).last_hidden_state
    assert state.requires_grad
    return live.num_bytes


@pytest.mark.parametrize("form", [{}, {"max_relative_position": 0, **DROPOUTS}], ids=["relative", "dropout"])
def test_recomputed_stages_need_about_the_memory_of_the_residual_model(form):
    residual = kept_bytes(None, encoder_solver="euler", **form)
    whole = {solver: kept_bytes(None, encoder_solver=solver, **form) for solver in ("rk2", "rk4")}
    stages = {solver: kept_bytes({"stages": True}, encoder_solver=solver, **form) for solver in ("rk2", "rk4")}
    blocks = kept_bytes({}, encoder_solver="rk4", **form)
    assert whole["rk2"] > 1.6 * residual and whole["rk4"] > 3 * residual
    assert stages["rk2"] < 1.15 * residual and stages["rk4"] < 1.25 * residual
    assert blocks < stages["rk4"] < 0.4 * whole["rk4"]


def test_reentrant_checkpointing_of_stages_is_refused():
    model = build(encoder_solver="rk2")
    with pytest.raises(ValueError, match="use_reentrant=False"):
        model.activation_checkpointing_enable({"stages": True, "use_reentrant": True})
    assert not model.is_activation_checkpointing
    model.activation_checkpointing_enable({"stages": True, "use_reentrant": False})
    assert model.model.encoder.layers[0].recomputes_stages


def test_stages_that_are_recomputed_fill_no_cache(batch, monkeypatch):
    messages = []
    monkeypatch.setattr(modeling.logger, "warning_once", messages.append)
    model = build(encoder_solver="rk2", decoder_solver="rk2", **dict.fromkeys(DROPOUTS, 0.0)).double().train()
    expected = model(**batch, use_cache=False).logits
    model.activation_checkpointing_enable({"stages": True})
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    assert_close(model(**batch, past_key_values=cache).logits, expected)
    assert any("cannot fill a cache" in message for message in messages)
    assert cache.get_seq_length() == 0 and not cache.cross_attention_cache.layers
    # In evaluation nothing is recomputed, and there is a cache.
    assert model.eval()(**batch, use_cache=True).past_key_values.get_seq_length() == 6


@pytest.mark.parametrize("name", ["gradient_checkpointing", "activation_checkpointing"])
def test_the_trainers_option_recomputes_stages(name, tmp_path):
    """One update with dropout; the weights are those of an update without."""
    data = [{"input_ids": torch.arange(4 + i, 11 + i), "labels": torch.arange(20 + i, 26 + i)} for i in range(4)]
    results = []
    for options in ({}, {name: True, f"{name}_kwargs": {"stages": True}}):
        model = build(encoder_solver="rk4", decoder_solver="rk2", **DROPOUTS)
        calls = []
        model.model.encoder.layers[0].fc1.register_forward_hook(lambda *args, calls=calls: calls.append(args))
        arguments = Seq2SeqTrainingArguments(
            str(tmp_path),
            max_steps=1,
            per_device_train_batch_size=4,
            learning_rate=0.01,
            optim="sgd",
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            **options,
        )
        Seq2SeqTrainer(model=model, args=arguments, train_dataset=data).train()
        results.append(({name: p.detach() for name, p in model.named_parameters()}, len(calls)))
    (expected, plain_calls), (actual, calls) = results
    assert (plain_calls, calls) == (4, 7)
    before = build(encoder_solver="rk4", decoder_solver="rk2").get_parameter("model.shared.weight")
    assert not torch.equal(expected["model.shared.weight"], before)
    for name, parameter in expected.items():
        assert_close(actual[name], parameter)


def test_a_model_runs_on_fake_tensors(batch):
    model = OdeTransformerForConditionalGeneration(tiny_config()).train()
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert isinstance(model(**batch).logits, FakeTensor)
