# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Log-probabilities of given outputs: against a plain loop."""

import pytest
import torch
from transformers import M2M100Config, M2M100ForConditionalGeneration

from modeling_ode_transformer import OdeTransformerForConditionalGeneration, OdeTransformerTokenizer
from modeling_ode_transformer.metrics.likelihood import target_likelihoods

from ..conftest import build, ids_of, randomize


SOURCES = ["two dogs run", "a man sleeps in the snow", "snow", "the dog"]
TARGETS = ["zwei hunde", "ein mann im schnee schläft", "", "der hund rennt"]


@pytest.fixture(scope="module")
def tokenizer():
    return OdeTransformerTokenizer.train([*SOURCES, *TARGETS], vocab_size=330, hard_vocab_limit=False)


@pytest.fixture(scope="module")
def target_tokenizer():
    return OdeTransformerTokenizer.train(TARGETS, vocab_size=310, hard_vocab_limit=False)


def ours(tokenizer, target_tokenizer):
    fields = ids_of(tokenizer) | {"vocab_size": len(tokenizer), "encoder_solver": "rk2"}
    if target_tokenizer is not None:
        fields |= {"decoder_vocab_size": len(target_tokenizer), "share_encoder_decoder_embeddings": False}
    return build(OdeTransformerForConditionalGeneration, **fields)


def m2m100(tokenizer, target_tokenizer):
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "vocab_size": len(tokenizer)}
    torch.manual_seed(0)
    return randomize(M2M100ForConditionalGeneration(M2M100Config(**sizes, **heads, **ids_of(tokenizer))))


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("make, has_two", [(ours, False), (ours, True), (m2m100, False)])
def test_each_token_has_its_log_probability(make, has_two, batch_size, tokenizer, target_tokenizer):
    """Against one token after the other, without padding and a batch."""
    other = target_tokenizer if has_two else None
    model = make(tokenizer, other).eval()
    found = target_likelihoods(model, tokenizer, SOURCES, TARGETS, other, batch_size)
    for source, target, (tokens, scores) in zip(SOURCES, TARGETS, found):
        ids = (other or tokenizer)(target)["input_ids"]
        assert tokens == (other or tokenizer).convert_ids_to_tokens(ids) and len(scores) == len(ids)
        before = [model.config.decoder_start_token_id]
        for token, score in zip(ids, scores):
            inputs = tokenizer(source, return_tensors="pt")
            with torch.no_grad():
                logits = model(**inputs, decoder_input_ids=torch.tensor([before])).logits[0, -1]
            assert score == pytest.approx(logits.double().log_softmax(-1)[token].item(), abs=1e-4)
            before.append(token)


def test_sources_are_cut_to_the_positions_of_the_model(tokenizer):
    fields = {"position_embedding_type": "learned", "max_position_embeddings": 6}
    model = build(OdeTransformerForConditionalGeneration, vocab_size=len(tokenizer), **ids_of(tokenizer), **fields)
    long, cut = " ".join(SOURCES), tokenizer(" ".join(SOURCES), truncation=True, max_length=6)["input_ids"]
    ((_, scores),) = target_likelihoods(model.eval(), tokenizer, [long], ["hund"])
    labels = tokenizer("hund", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        loss = model(input_ids=torch.tensor([cut]), labels=labels).loss
    assert scores.mean() == pytest.approx(-loss.item(), abs=1e-4)


def test_lists_of_different_lengths_are_refused(tokenizer):
    with pytest.raises(TypeError, match="targets is a text"):
        target_likelihoods(ours(tokenizer, None), tokenizer, SOURCES, "abcd")
    with pytest.raises(ValueError, match="4 sources, 2 targets"):
        target_likelihoods(ours(tokenizer, None), tokenizer, SOURCES, TARGETS[:2])
