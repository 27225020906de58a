# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Tiny CSAODE models."""

import pytest
import torch

from modeling_ode_transformer import CsaOdeConfig, CsaOdeForSequenceClassification

from ..conftest import randomize


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
