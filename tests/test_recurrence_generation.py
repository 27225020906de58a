# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Every way of generating with a recurrence encoder."""

import itertools

import pytest
import torch
from transformers import CompileConfig, DynamicCache, EncoderDecoderCache

from modeling_ode_transformer import EnsembleForConditionalGeneration, OdeTransformerRecurrenceForConditionalGeneration

from .test_beam_search import generate, lively
from .test_recurrence import FORMS, KINDS, SOME_FORMS, without_recurrence


def lively_with(**fields):
    """A model whose new sublayer counts as much as the others."""
    model = lively(OdeTransformerRecurrenceForConditionalGeneration, **fields)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("recurrence_attn.out_proj.weight"):
                parameter.normal_(std=0.5)
    return model


SEARCHES = {
    "greedy": {},
    "4 beams": {"num_beams": 4, "early_stopping": True},
    "3 of 3 beams": {"num_beams": 3, "num_return_sequences": 3, "length_penalty": 0.6},
    "prompt": {"num_beams": 5, "decoder_input_ids": torch.arange(10, 34).view(6, 4)},
    "beam sampling": {"num_beams": 3, "do_sample": True},
    "sampling": {"do_sample": True, "num_return_sequences": 3},
}


@pytest.mark.parametrize("name, form", list(zip(SEARCHES, itertools.cycle(FORMS[i] for i in (0, 6, 7, 9)))), ids=str)
def test_every_search_finds_what_it_finds_without_a_cache(form, name, source):
    model, options = lively_with(**form, decoder_solver="rk2"), SEARCHES[name]
    tokens = generate(model, source, **options)
    assert torch.equal(tokens, generate(model, source, use_cache=False, **options))
    states = model.get_encoder()(**source)
    given = {"encoder_outputs": states, "attention_mask": source["attention_mask"]}
    assert torch.equal(tokens, generate(model, given, **options))
    plain = without_recurrence(model)
    targets = {**source, "decoder_input_ids": source["input_ids"]}
    assert (plain(**targets).logits - model(**targets).logits).abs().max() > 0.1


@pytest.mark.parametrize("name, form", [("greedy", FORMS[6]), ("4 beams", FORMS[9])], ids=str)
def test_every_cache_has_the_same_tokens(form, name, source):
    model, options = lively_with(**form, decoder_solver="rk2"), SEARCHES[name]
    expected = generate(model, source, **options)
    own = EncoderDecoderCache(*(DynamicCache(config=model.config.get_text_config(decoder=True)) for _ in range(2)))
    states = {"encoder_outputs": model.get_encoder()(**source), "attention_mask": source["attention_mask"]}
    static = {"cache_implementation": "static", "disable_compile": True}
    others = [
        generate(model, source, past_key_values=own, **options),
        *(generate(model, given, **static, **options) for given in (source, states)),
        generate(model, source, return_dict_in_generate=True, **options).sequences,
    ]
    assert all(torch.equal(other, expected) for other in others)


@SOME_FORMS
def test_assisted_decoding_is_greedy_search(form, source):
    model = lively_with(**form, decoder_solver="rk2")
    one = source["input_ids"][:1]
    expected = model.generate(one, num_beams=1).tolist()
    for assistant in (lively(), lively_with(**form), model):
        assert model.generate(one, num_beams=1, assistant_model=assistant).tolist() == expected
    assert model.generate(one, num_beams=1, prompt_lookup_num_tokens=2).tolist() == expected


@pytest.mark.parametrize("kind", KINDS)
def test_an_ensemble_of_one_searches_as_its_member(kind, source):
    model = lively_with(**KINDS[kind])
    other = lively(seed=1)
    for options in ({"num_beams": 4}, {}, {"num_beams": 3, "cache_implementation": "static", "disable_compile": True}):
        alone = EnsembleForConditionalGeneration([model]).generate(**source, **options)
        assert torch.equal(alone, model.generate(**source, **options))
    both = EnsembleForConditionalGeneration([model, other]).generate(**source, num_beams=3)
    assert torch.equal(both, EnsembleForConditionalGeneration([other, model]).generate(**source, num_beams=3))


def test_a_compiled_search_finds_what_others_find(source):
    """Its graphs run as they are, in PyTorch."""
    torch.compiler.reset()
    model = lively_with(**FORMS[7])
    compile_config = CompileConfig(fullgraph=True, dynamic=True, backend="eager", mode="default")
    expected = generate(model, source, num_beams=4)
    options = {"cache_implementation": "static", "compile_config": compile_config}
    assert torch.equal(generate(model, source, num_beams=4, **options), expected)
    assert vars(model)["compiled_steps"].steps
