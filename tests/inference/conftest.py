# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""What the tests of optimized models share."""

import pytest

from modeling_ode_transformer import OdeTransformerForConditionalGeneration
from modeling_ode_transformer.inference import cpu
from modeling_ode_transformer.inference.cpu import optimize_for_cpu

from ..conftest import build


def optimized(model_class=OdeTransformerForConditionalGeneration, **fields):
    return optimize_for_cpu(build(model_class, **fields))


@pytest.fixture
def warned(monkeypatch):
    messages = []
    monkeypatch.setattr(cpu.logger, "warning", messages.append)
    return messages


@pytest.fixture
def onednn_calls(monkeypatch):
    """The products that are left to oneDNN, as they are called; on a machine that would leave it none, too."""
    calls = []
    product = cpu.onednn_linear
    monkeypatch.setattr(cpu, "HAS_ONEDNN", True)
    monkeypatch.setattr(cpu, "IS_X86", True)
    monkeypatch.setattr(cpu, "onednn_linear", lambda *args: calls.append(args) or product(*args))
    return calls
