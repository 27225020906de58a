# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The loss that is computed for a part of the tokens at a time."""

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, TrainerCallback

import modeling_ode_transformer as ode
from modeling_ode_transformer.training import losses, trainer
from modeling_ode_transformer.training.losses import has_chunkable_loss, states_as_logits, summed_cross_entropy
from modeling_ode_transformer.training.tasks.language_model import LanguageModelTrainer
from modeling_ode_transformer.training.trainer import TokenSeq2SeqTrainer

from ..conftest import WITHOUT_DROPOUT, build
from ..operators import CountOperators


@pytest.mark.parametrize(
    "smoothing, has_bias, chunk_size, in_cache",
    [(0.0, True, 1, 64), (0.1, True, 4, 64), (0.1, False, 64, 64), (0.1, True, 5, 2)],
)
def test_loss_and_gradients_are_those_of_torch(smoothing, has_bias, chunk_size, in_cache, monkeypatch):
    monkeypatch.setattr(losses, "tokens_in_cache", lambda logits: in_cache)
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(11, 8, generator=generator, requires_grad=True)
    weight = torch.randn(13, 8, generator=generator, requires_grad=True)
    bias = torch.randn(13, generator=generator, requires_grad=True) if has_bias else None
    labels = torch.randint(13, (11,), generator=generator)
    labels[[0, 5]] = -100
    inputs = [each for each in (states, weight, bias) if each is not None]
    logits = nn.functional.linear(states, weight, bias)
    expected = nn.functional.cross_entropy(logits, labels, label_smoothing=smoothing, reduction="sum")
    loss = summed_cross_entropy(states, weight, bias, labels, smoothing, chunk_size)
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
    for actual, each in zip(torch.autograd.grad(loss / 7, inputs), torch.autograd.grad(expected / 7, inputs)):
        torch.testing.assert_close(actual, each, rtol=1e-6, atol=1e-6)


def test_a_head_of_its_own_is_not_chunked_where_processes_replicate_the_model():
    """DDP would take parameters that only the losses use for unused."""
    for fields, is_shared in (({}, True), ({"lm_head_bias": True}, False), ({"tie_word_embeddings": False}, False)):
        model = build(**fields)
        assert has_chunkable_loss(model) and has_chunkable_loss(model, is_replicated=True) == is_shared
    assert has_chunkable_loss(build(ode.OdeTransformerForCausalLM), is_replicated=True)
    assert not has_chunkable_loss(build(ode.OdeTransformerModel))


@pytest.mark.parametrize(
    "kind, is_chunked", [("llama", True), ("ode_llama", True), ("gemma2", False), ("t5", True), ("bart", False)]
)
def test_other_models_are_chunked_if_nothing_follows_their_head(kind, is_chunked, tmp_path, monkeypatch):
    """Gemma 2 caps its logits, BART adds a bias. Gradients and losses are those of all logits at once."""
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"num_key_value_heads": 2, "vocab_size": 64, "pad_token_id": 1, "decoder_start_token_id": 2}
    if is_translation := kind in ("t5", "bart"):
        sizes |= {"d_model": 16, "d_kv": 8, "d_ff": 24, "decoder_layers": 2, "encoder_attention_heads": 2}
        sizes |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "num_heads": 2}
        sizes |= {"num_layers": 2, "num_decoder_layers": 2}
    rates = ("attention_dropout", "dropout", "dropout_rate")
    config = AutoConfig.for_model(kind.removeprefix("ode_"), **sizes, **dict.fromkeys(rates, 0.0))
    if kind.startswith("ode_"):
        config = ode.depth.config(config, solver="rk2")
    monkeypatch.setattr(trainer, "MIN_LOSS_CHUNK_SIZE", 4)
    values, found = {"max_grad_norm": 0, "optim": "sgd", "eval_strategy": "no"}, []
    for size in (None, 0):
        torch.manual_seed(0)
        model = (AutoModelForSeq2SeqLM if is_translation else AutoModelForCausalLM).from_config(config)
        with CountOperators() as counted:
            trainer_class = TokenSeq2SeqTrainer if is_translation else LanguageModelTrainer
            found.append(train(tmp_path, model, trainer_class, **values, loss_chunk_size=size))
        shapes = [shape for name, shape in counted.calls if name == "_log_softmax"]
        assert (max(shape[0] for shape in shapes) <= 4) == (is_chunked and size is None)
    (gradients, log), (others, other_log) = found
    for own, other in zip(gradients, others, strict=True):
        for name, gradient in own.items():
            torch.testing.assert_close(gradient, other[name], rtol=0, atol=1e-6 * other[name].abs().max().clamp(1))
    for own, other in zip(log[:2], other_log, strict=False):
        assert own["loss"] == pytest.approx(other["loss"], rel=1e-6)


class Gradients(TrainerCallback):
    """Those of each update."""

    def __init__(self):
        self.updates = []

    def on_pre_optimizer_step(self, args, state, control, model, **kwargs):
        self.updates.append({name: parameter.grad.clone() for name, parameter in model.named_parameters()})


def train(folder, model, trainer_class=TokenSeq2SeqTrainer, **values):
    """Trains on pairs of several lengths, a language model on their sources; returns the gradients of the updates, and
    the logs."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda length: torch.randint(4, 61, (length,), generator=generator)  # noqa: E731
    pairs = [{"input_ids": draw(3 + number % 4), "labels": draw(2 + number % 5)} for number in range(12)]

    def collate(pairs):
        pad = nn.utils.rnn.pad_sequence
        ids = pad([pair["input_ids"] for pair in pairs], batch_first=True, padding_value=1)
        labels = pad([pair["labels"] for pair in pairs], batch_first=True, padding_value=-100)
        labels = torch.where(ids == 1, -100, ids) if trainer_class is LanguageModelTrainer else labels
        return {"input_ids": ids, "attention_mask": (ids != 1).long(), "labels": labels}

    options = {"max_steps": 2, "per_device_train_batch_size": 3, "gradient_accumulation_steps": 2, "logging_steps": 1}
    options |= {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "no", "report_to": "none"}
    options |= {"label_smoothing_factor": 0.1, "use_cpu": True, "learning_rate": 1e-2}
    arguments = trainer_class.arguments_class(str(folder), **options | values)
    gradients, data = Gradients(), {"train_dataset": pairs, "eval_dataset": pairs[:5]}
    trainer = trainer_class(model=model, args=arguments, data_collator=collate, callbacks=[gradients], **data)
    trainer.train()
    return gradients.updates, trainer.state.log_history


@pytest.mark.parametrize(
    "fields, optimize_for_cpu", [({}, True), ({"lm_head_bias": True, "tie_word_embeddings": False}, False)]
)
def test_a_trainer_has_the_same_gradients_and_losses(fields, optimize_for_cpu, tmp_path, monkeypatch):
    """Over accumulated batches of several lengths, smoothed, divided by the target tokens of the update; no tensor has
    the logits of all tokens. Evaluation is as it was."""
    values = {"max_grad_norm": 0, "optim": "sgd", "optimize_for_cpu": optimize_for_cpu}
    expected = train(tmp_path, build(**fields, **WITHOUT_DROPOUT), **values, loss_chunk_size=0)
    model = build(**fields, **WITHOUT_DROPOUT)
    with monkeypatch.context() as patched, CountOperators() as counted:
        patched.setattr(trainer, "MIN_LOSS_CHUNK_SIZE", 4)
        actual = train(tmp_path, model, **values, eval_strategy="no")
    chunks = {shape[0] for name, shape in counted.calls if name == "_log_softmax"}
    assert chunks and chunks <= {1, 2, 3, 4}
    monkeypatch.setattr(losses, "tokens_in_cache", lambda logits: 2)
    with CountOperators() as counted:
        train(tmp_path, build(**fields, **WITHOUT_DROPOUT), **values, loss_chunk_size=4, eval_strategy="no")
    assert {shape[0] for name, shape in counted.calls if name == "_log_softmax"} == {1, 2}
    assert "forward" not in vars(model.lm_head)
    actual = train(tmp_path, build(**fields, **WITHOUT_DROPOUT), **values, loss_chunk_size=4)
    for own, others in zip(actual[0], expected[0], strict=True):
        for name, gradient in own.items():
            torch.testing.assert_close(gradient, others[name], rtol=0, atol=1e-6 * others[name].abs().max().clamp(1))
    for own, others in zip(actual[1], expected[1], strict=True):
        for name in {"loss", "grad_norm", "eval_loss", "eval_nll_loss", "eval_perplexity"} & own.keys():
            assert own[name] == pytest.approx(others[name], rel=1e-6)


def test_under_autocast_products_are_in_its_dtype():
    """The loss is that of logits in bfloat16; gradients are as near to those in float64 as by autograd."""
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(40, 16, generator=generator, requires_grad=True)
    weight = torch.randn(23, 16, generator=generator, requires_grad=True)
    labels = torch.randint(23, (40,), generator=generator)
    with torch.autocast("cpu", torch.bfloat16):
        loss = summed_cross_entropy(states, weight, None, labels, 0.1, 16)
        logits = nn.functional.linear(states, weight)
    assert logits.dtype == torch.bfloat16
    expected = nn.functional.cross_entropy(logits.float(), labels, label_smoothing=0.1, reduction="sum")
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
    logits = nn.functional.linear(states.double(), weight.double())
    exact = nn.functional.cross_entropy(logits, labels, label_smoothing=0.1, reduction="sum")
    inputs = (states, weight)
    for actual, rounded, each in zip(*(torch.autograd.grad(value, inputs) for value in (loss, expected, exact))):
        assert actual.dtype == torch.float32
        assert 0 < (actual - each).norm() < 1.1 * (rounded - each).norm() < 1e-2 * each.norm()


def test_a_step_at_base_width_needs_less_memory():
    """Peaks in MiB of a step of 256 pairs of 14 tokens in bfloat16, on tensors without data, to be noticed."""
    config = ode.OdeTransformerConfig(vocab_size=34040, encoder_solver="euler", encoder_layers=1, decoder_layers=1)

    def loss_of(model, ids, size):
        if not size:
            return model(input_ids=ids, labels=ids).loss
        with states_as_logits(model.lm_head):
            states = model(input_ids=ids, decoder_input_ids=ids).logits.flatten(0, 1)
        return summed_cross_entropy(states, model.lm_head.weight, None, ids.flatten(), 0.1, size)

    peaks = {}
    for size in (0, 512):
        with FakeTensorMode(allow_non_fake_inputs=True):
            model = ode.OdeTransformerForConditionalGeneration(config).train()
            tracker = MemTracker()
            tracker.track_external(model)
            with tracker, torch.autocast("cpu", torch.bfloat16):
                loss_of(model, torch.full((256, 14), 5), size).backward()
        peaks[size] = round(tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"] / 2**20)
    assert peaks == {0: 1865, 512: 712}
