# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Methods of transformers that the package overrides though they are private: a version that renames one would pass
ours by without an error."""

import inspect

import pytest

from modeling_ode_transformer import (
    OdeTransformerForCausalLM,
    OdeTransformerForConditionalGeneration,
    OdeTransformerRecurrenceForConditionalGeneration,
)
from modeling_ode_transformer.inference.ensemble import EnsembleForConditionalGeneration
from modeling_ode_transformer.training.trainer import TokenSeq2SeqTrainer


# The methods, each with the reason why no public one would do.
MODEL = {
    "_check_and_adjust_attn_implementation": "flash attention cannot add the scores of relative positions: refused",
    "_init_weights": "transformers' own way to initialize parameters",
    "_set_gradient_checkpointing": "not reentrant by default; its callers changed their names in 5.23",
}
HOOKS = {
    OdeTransformerForCausalLM: MODEL,
    OdeTransformerForConditionalGeneration: {
        **MODEL,
        "_resize_token_embeddings": "reaches the decoder's embeddings too, where they are its own",
    },
    OdeTransformerRecurrenceForConditionalGeneration: {
        **MODEL,
        "_resize_token_embeddings": "reaches the decoder's embeddings too, where they are its own",
        "_prepare_static_cache": "the entries of the cross-attention hold the states of two encoders",
    },
    EnsembleForConditionalGeneration: {
        "_prepare_cache_for_generation": "each member has a cache",
        "_prepare_text_encoder_decoder_kwargs_for_generation": "each member has an encoder",
    },
    TokenSeq2SeqTrainer: {
        "_get_grad_norm": "stops at a gradient that is not finite, and names the examples",
        "_get_train_sampler": "the order of examples follows from seed and epoch",
        "_run_epoch": "a run that has ended is not trained further; workers have seeds of their epoch",
    },
}


def is_ours(cls):
    return cls.__module__.startswith("modeling_ode_transformer")


def parameters_of(function):
    """The names of the parameters but `self`, and whether there may be others."""
    parameters = [each for each in inspect.signature(function).parameters.values() if each.name != "self"]
    named = [each.name for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    return named, len(named) < len(parameters)


@pytest.mark.parametrize("cls", HOOKS)
def test_what_is_overridden_is_there_and_takes_the_same_arguments(cls):
    theirs = [base for base in cls.__mro__ if not is_ours(base) and base is not object]
    ours = [base for base in cls.__mro__ if is_ours(base)]
    private = {name for base in ours for name, value in vars(base).items() if inspect.isroutine(value)}
    private = {name for name in private if name.startswith("_") and not name.startswith("__")}
    assert {name for name in private if any(name in vars(base) for base in theirs)} == set(HOOKS[cls])
    for name in HOOKS[cls]:
        original = next(vars(base)[name] for base in theirs if name in vars(base))
        expected, _ = parameters_of(getattr(original, "__func__", original))
        for override in (vars(base)[name] for base in ours if name in vars(base)):
            named, takes_others = parameters_of(getattr(override, "__func__", override))
            assert takes_others or set(expected) <= set(named), name
            assert set(named) <= set(expected), name
