# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""What the tests share: tiny models, the table of tolerances, and no network."""

import os
import socket
from pathlib import Path


os.environ["HF_HUB_OFFLINE"] = "1"

import evaluate
import pytest
import torch

from modeling_ode_transformer import OdeTransformerConfig, OdeTransformerForConditionalGeneration
from modeling_ode_transformer.integration_ode_transformer import resolve_tableau


# Absolute tolerances of values of order 1, by dtype.
TOLERANCES = {torch.float64: 1e-12, torch.float32: 5e-6, torch.float16: 1e-2, torch.bfloat16: 8e-2}

TINY = {
    "vocab_size": 61,
    "d_model": 32,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": 40,
}
EXAMPLES = Path(__file__).parent.parent / "examples"
METRICS = Path(__file__).parent.parent / "modeling_ode_transformer" / "metrics"
SOLVERS = ("euler", "rk2", "midpoint", "ralston", "rk3", "rk4", "rk4_38")


def tiny_config(coefficients: str | None = None, **kwargs) -> OdeTransformerConfig:
    """A tiny model's configuration. `coefficients` are those of every stack of several stages; None: a gate for two
    stages of a Runge-Kutta scheme, else the scheme's own."""
    fields = {**TINY, **kwargs}
    for stack, default in (("encoder", "rk2"), ("decoder", "euler")):
        tableau = resolve_tableau(fields.get(f"{stack}_solver", default))
        own = "gate" if tableau.num_stages == 2 and tableau.is_runge_kutta else "fixed"
        if tableau.num_stages > 1:
            fields.setdefault(f"{stack}_coefficients", coefficients or own)
    return OdeTransformerConfig(**fields)


def build(model_class=OdeTransformerForConditionalGeneration, **fields):
    """A tiny model, every parameter of which is off its default."""
    torch.manual_seed(0)
    return randomize(model_class(tiny_config(**fields)))


def randomize(model: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """Moves every parameter, norms and coefficients included, off its default: none can be left out unnoticed."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator).to(parameter.dtype))
    return model.eval()


def assert_close(actual: torch.Tensor, expected: torch.Tensor, scale: float = 1.0):
    """Compares with the tolerance of the dtype, times `scale` for values of another order than 1."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=scale * TOLERANCES[expected.dtype])


@pytest.fixture
def batch() -> dict[str, torch.Tensor]:
    """Three right-padded sources of 9, 7 and 4 tokens, and decoder inputs of 6."""
    generator = torch.Generator().manual_seed(1)
    input_ids = torch.randint(4, 61, (3, 9), generator=generator)
    attention_mask = torch.arange(9) < torch.tensor([[9], [7], [4]])
    decoder_input_ids = torch.randint(4, 61, (3, 6), generator=generator)
    decoder_input_ids[:, 0] = 2
    return {
        "input_ids": input_ids.masked_fill(~attention_mask, 1),
        "attention_mask": attention_mask.long(),
        "decoder_input_ids": decoder_input_ids,
    }


@pytest.fixture(scope="session")
def evaluate_modules(tmp_path_factory):
    """A folder for what `evaluate` copies; one for the session, as Python keeps looking where it found the first."""
    folder = tmp_path_factory.mktemp("evaluate")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluate.config, "HF_MODULES_CACHE", str(folder / "modules"))
        yield folder


@pytest.fixture
def load_metric(evaluate_modules, tmp_path, monkeypatch):
    """`evaluate.load` of a metric of the package by its name, from a foreign folder, where connecting is an error."""

    def refuse(*args, **kwargs):
        raise AssertionError("A metric went to the network.")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.chdir(tmp_path)
    return lambda name, *args: evaluate.load(
        str(METRICS / f"{name}.py"), *args, cache_dir=str(evaluate_modules / "data")
    )
