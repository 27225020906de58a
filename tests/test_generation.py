# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""generate(): against sequences found by brute force or by another of its methods."""

import itertools

import pytest
import torch
from transformers import DynamicCache, EncoderDecoderCache, GenerationConfig, StaticCache

from modeling_ode_transformer import OdeTransformerForCausalLM, OdeTransformerForConditionalGeneration

from .conftest import assert_close, randomize, tiny_config


SOLVER = pytest.mark.parametrize("decoder_solver", ["euler", "rk2", "rk4"])


def build(model_class=OdeTransformerForConditionalGeneration, **fields):
    torch.manual_seed(0)
    model = randomize(model_class(tiny_config(**fields)))
    # A sharper distribution, so that no test hangs on a tie.
    model.lm_head.weight = torch.nn.Parameter(10 * torch.randn(model.lm_head.weight.shape) / 32**0.5)
    model.generation_config.update(do_sample=False, max_length=None, min_new_tokens=8, max_new_tokens=8)
    return model


def greedy_tokens(model, batch, length=8):
    source = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    tokens = torch.full((3, 1), 2)
    for _ in range(length):
        logits = model(**source, decoder_input_ids=tokens, use_cache=False).logits[:, -1]
        logits[:, 2] = float("-inf")
        tokens = torch.cat([tokens, logits.argmax(-1, keepdim=True)], 1)
    return tokens


@SOLVER
def test_greedy_search_with_a_cache_is_the_argmax_without(decoder_solver, batch):
    model = build(decoder_solver=decoder_solver, solver_coefficients="fixed")
    source = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    expected = greedy_tokens(model, batch)
    assert model.generate(**source).tolist() == expected.tolist()
    assert model.generate(**source, cache_implementation="static", disable_compile=True).tolist() == expected.tolist()
    assert model.generate(**source, use_cache=False).tolist() == expected.tolist()
    assert model.generate(**source, num_beams=1, do_sample=True, top_k=1).tolist() == expected.tolist()


@SOLVER
def test_a_beam_as_wide_as_the_vocabulary_finds_the_best_sequence(decoder_solver):
    """Two tokens from a vocabulary of 12: all 144 are scored."""
    model = build(decoder_solver=decoder_solver, solver_coefficients="fixed", vocab_size=12)
    source = torch.tensor([[5, 7, 4]])
    scores = {}
    for first in range(12):
        decoder_input_ids = torch.tensor([[2, first]])
        log_probabilities = model(source, decoder_input_ids=decoder_input_ids).logits[0].log_softmax(-1)
        for second in range(12):
            scores[first, second] = (log_probabilities[0, first] + log_probabilities[1, second]).item()
    allowed = {pair: score for pair, score in scores.items() if 2 not in pair}
    best = max(allowed, key=allowed.get)
    tokens = model.generate(source, num_beams=11, min_new_tokens=2, max_new_tokens=2)
    assert tuple(tokens[0, 1:].tolist()) == best


@SOLVER
def test_generation_continues_from_a_cache(decoder_solver, batch):
    model = build(decoder_solver=decoder_solver, solver_coefficients="fixed")
    source = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    expected = model.generate(**source)
    outputs = model.generate(**source, max_new_tokens=4, min_new_tokens=4, return_dict_in_generate=True)
    continued = model.generate(
        **source,
        decoder_input_ids=outputs.sequences,
        decoder_attention_mask=torch.ones_like(outputs.sequences),
        past_key_values=outputs.past_key_values,
        max_new_tokens=4,
        min_new_tokens=4,
    )
    assert continued.tolist() == expected.tolist()


@SOLVER
def test_assisted_decoding_is_greedy_search(decoder_solver, batch):
    model = build(decoder_solver=decoder_solver, solver_coefficients="fixed")
    assistant = build(decoder_solver="euler", decoder_layers=1, solver_coefficients="fixed")
    source = batch["input_ids"][:1]
    expected = model.generate(source).tolist()
    assert model.generate(source, assistant_model=assistant).tolist() == expected
    assert model.generate(source, prompt_lookup_num_tokens=2).tolist() == expected


@SOLVER
def test_a_left_padded_prompt_is_continued_as_alone(decoder_solver):
    model = build(OdeTransformerForCausalLM, decoder_solver=decoder_solver, solver_coefficients="fixed")
    prompts = [torch.tensor([[5, 9, 11, 7]]), torch.tensor([[8, 6]])]
    alone = [model.generate(prompt)[0, prompt.shape[1] :].tolist() for prompt in prompts]
    padded = torch.tensor([[5, 9, 11, 7], [1, 1, 8, 6]])
    for arguments in ({}, {"cache_implementation": "static", "disable_compile": True}):
        together = model.generate(padded, attention_mask=(padded != 1).long(), **arguments)
        assert together[:, 4:].tolist() == alone


@SOLVER
def test_the_cache_holds_an_entry_for_each_stage(decoder_solver):
    model = build(OdeTransformerForCausalLM, decoder_solver=decoder_solver, solver_coefficients="fixed")
    cache = model(torch.full((2, 5), 7)).past_key_values
    assert isinstance(cache, DynamicCache)
    assert len(cache.layers) == 2 * model.config.decoder_tableau.num_stages
    assert {tuple(layer.keys.shape) for layer in cache.layers} == {(2, 2, 5, 16)}
    keys = [layer.keys for layer in cache.layers]
    assert not any(torch.equal(a, b) for a, b in itertools.pairwise(keys))


@SOLVER
def test_the_cross_attention_cache_has_no_empty_entries(decoder_solver, batch):
    cache = build(decoder_solver=decoder_solver, solver_coefficients="fixed")(**batch).past_key_values
    entries = cache.cross_attention_cache.layers
    assert len(entries) == len(cache.self_attention_cache.layers)
    assert {tuple(entry.keys.shape) for entry in entries} == {(3, 2, 9, 16)}


def test_generation_from_embeddings_is_that_from_ids(batch):
    model = build()
    embeddings = model.get_input_embeddings()(batch["input_ids"][:1])
    assert model.generate(inputs_embeds=embeddings).tolist() == model.generate(batch["input_ids"][:1]).tolist()
    language_model = build(OdeTransformerForCausalLM, decoder_solver="rk2")
    ids = batch["input_ids"][:1]
    expected = language_model.generate(ids)[:, ids.shape[1] :]
    assert (
        language_model.generate(inputs_embeds=language_model.get_input_embeddings()(ids)).tolist() == expected.tolist()
    )


def test_generate_without_arguments_follows_the_saved_generation_configuration(tmp_path, batch):
    model = build()
    model.generation_config = GenerationConfig(
        num_beams=3, length_penalty=0.6, max_new_tokens=5, eos_token_id=2, pad_token_id=1, decoder_start_token_id=2
    )
    expected = model.generate(batch["input_ids"])
    model.save_pretrained(tmp_path)
    loaded = OdeTransformerForConditionalGeneration.from_pretrained(tmp_path)
    assert loaded.generation_config.num_beams == 3
    assert loaded.generate(batch["input_ids"]).tolist() == expected.tolist()


def test_decoding_with_a_static_cache_compiles_into_one_graph():
    for model_class in (OdeTransformerForCausalLM, OdeTransformerForConditionalGeneration):
        model = build(model_class, decoder_solver="rk2", solver_coefficients="fixed")
        ids = torch.randint(4, 61, (2, 5), generator=torch.Generator().manual_seed(0))
        cache, inputs, name = StaticCache(config=model.config, max_cache_len=10), {}, "input_ids"
        if model.config.is_encoder_decoder:
            cache = EncoderDecoderCache(cache, StaticCache(config=model.config, max_cache_len=5))
            inputs, name = {"encoder_outputs": model.get_encoder()(ids)}, "decoder_input_ids"
        step = torch.compile(model.forward, fullgraph=True, backend="aot_eager")
        with torch.no_grad():
            model(**inputs, **{name: ids[:, :3]}, past_key_values=cache)
            logits = [step(**inputs, **{name: ids[:, i : i + 1]}, past_key_values=cache).logits for i in (3, 4)]
            expected = model(**inputs, **{name: ids}).logits[:, 3:]
        assert_close(torch.cat(logits, 1), expected, scale=10)
