# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Methods and attributes of transformers that the package replaces though they are internal: a version that renames
one would pass ours by without an error."""

import inspect
import re

import pytest
from transformers import AutoModelForCausalLM, LlamaConfig, Trainer

from modeling_ode_transformer import (
    CsaOdeForSequenceClassification,
    OdeTransformerForCausalLM,
    OdeTransformerForConditionalGeneration,
    OdeTransformerRecurrenceForConditionalGeneration,
    OdeTransformerTokenizer,
    depth,
)
from modeling_ode_transformer.inference.ensemble import EnsembleForConditionalGeneration
from modeling_ode_transformer.training.trainer import TokenSeq2SeqTrainer


# Internal, though their names are without an underscore.
INTERNAL = {"init_parallel_plans", "get_expanded_tied_weights_keys"}
# The methods, each with the reason why no public one would do.
MODEL = {
    "_check_and_adjust_attn_implementation": "flash attention cannot add the scores of relative positions: refused",
    "_init_weights": "transformers' own way to initialize parameters",
    "_set_gradient_checkpointing": "not reentrant by default; its callers changed their names in 5.23",
    "get_expanded_tied_weights_keys": "ties embeddings whatever is said about the output projection",
    "init_parallel_plans": "drops the names of modules that the model lacks",
}
TINY = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 8}
HOOKS = {
    OdeTransformerForCausalLM: MODEL,
    type(AutoModelForCausalLM.from_config(depth.config(LlamaConfig(**TINY), solver="rk2"))): {
        "_get_name": "Trainer and modules that are printed know the model by its own name",
    },
    CsaOdeForSequenceClassification: {"_init_weights": MODEL["_init_weights"]},
    OdeTransformerTokenizer: {"_save_pretrained": "the class that is named opens it without the package"},
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
    private = {name for name in private if name in INTERNAL or (name.startswith("_") and not name.startswith("__"))}
    assert {name for name in private if any(name in vars(base) for base in theirs)} == set(HOOKS[cls])
    for name in HOOKS[cls]:
        original = next(vars(base)[name] for base in theirs if name in vars(base))
        expected, _ = parameters_of(getattr(original, "__func__", original))
        for override in (vars(base)[name] for base in ours if name in vars(base)):
            named, takes_others = parameters_of(getattr(override, "__func__", override))
            assert takes_others or set(expected) <= set(named), name
            assert set(named) <= set(expected), name


def test_attributes_that_are_set_are_those_of_trainer():
    assert {"_loss_shifts_labels", "_created_lr_scheduler"} <= set(
        re.findall(r"self\.(\w+)", inspect.getsource(Trainer))
    )
