# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Beam search over static shapes: against transformers' own search, with and without its cache."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
import transformers

from modeling_ode_transformer import OdeTransformerForCausalLM, OdeTransformerForConditionalGeneration
from modeling_ode_transformer.inference import beam_search as search_module
from modeling_ode_transformer.inference.beam_search import BeamCache, BeamSearch, beam_search, searches_beams
from modeling_ode_transformer.texts_ode_transformer import generate_with_scores

from .conftest import WITHOUT_DROPOUT, assert_close, tiny_config


RK2 = {"decoder_solver": "rk2", "coefficients": "fixed"}
CONFIGS = {
    "default": {},
    "rk2": RK2,
    "rk4": {"decoder_solver": "rk4", "coefficients": "fixed", "layer_history": "none"},
    "no relative positions": {"max_relative_position": 0},
    "short relative positions": {"max_relative_position": 3},
    "learned positions": {"position_embedding_type": "learned"},
    "absolute positions": {"position_embedding_type": "learned", "position_counting": "absolute"},
    "positions by ids": {"position_counting": "ids"},
    "sublayers": {"vector_field": "sublayers", "decoder_solver": "rk4", "steps_per_layer": 2, "decoder_layers": 1},
    "iiet repeated": {"decoder_solver": "iiet", "stack_repeats": 2, "decoder_layers": 1},
    "attention over depth": {"decoder_solver": "rk2", "layer_history": "attention"},
}
ENDS = [2, [2, 11], [2, 5, 7, 8], [2, 3, 4, 5, 6, 7, 8, 9], None]


def lively(model_class=OdeTransformerForConditionalGeneration, seed=0, **fields):
    """A model whose beams change places, and whose sources end at different steps."""
    torch.manual_seed(seed)
    fields = {"vocab_size": 60, "encoder_layers": 2, "tie_word_embeddings": False, **fields}
    model = model_class(tiny_config(config_class=model_class.config_class, **fields)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
        model.lm_head.weight.normal_(std=0.3)
    model.generation_config.update(do_sample=False, max_length=None, max_new_tokens=16, eos_token_id=[2, 5, 7, 8])
    return model


@pytest.fixture
def watched(monkeypatch):
    """How many searches of our own there were, and how often beams changed places in them."""
    calls = SimpleNamespace(searches=0, moves=0)
    start, reorder = BeamSearch.__init__, BeamCache.reorder

    def __init__(self, *args, **kwargs):
        calls.searches += 1
        start(self, *args, **kwargs)

    def counted_reorder(self, rows):
        # All beams of a source follow its first one after the prompt: these are not moves.
        is_first = self.num_entries == self.prompt_length
        calls.moves += not is_first and not torch.equal(rows, torch.arange(len(rows)))
        reorder(self, rows)

    monkeypatch.setattr(BeamSearch, "__init__", __init__)
    monkeypatch.setattr(BeamCache, "reorder", counted_reorder)
    return calls


def generate(model, source, **options):
    torch.manual_seed(0)
    return model.generate(**source, **options)


def search_of_transformers(model, source, **options):
    """The output of transformers' search, with `max_len_a` and `max_len_b`."""
    options = {"return_dict_in_generate": True, "output_scores": True, **options}
    model.has_package_search = False
    try:
        return model.generate(**source, **options)
    finally:
        del model.has_package_search


def assert_search_is_that_of_transformers(model, source, **options):
    """Tokens, and scores of what is a hypothesis: with more beams than continuations some are not."""
    expected = search_of_transformers(model, source, **options)
    tokens, scores = model.generate(**source, **options, custom_generate=beam_search, return_scores=True)
    is_real = expected.sequences_scores > -1e6
    assert torch.equal(is_real, scores > -1e6)
    assert tokens.shape == expected.sequences.shape
    assert torch.equal(tokens[is_real], expected.sequences[is_real])
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores[is_real], expected.sequences_scores[is_real], rtol=1e-5, atol=1e-5)
    return tokens


def draw_source(rng, generator):
    """Some sources of some length, padded or not, and a prompt for the decoder, padded or not."""
    sources, length = rng.choice([1, 2, 3, 7]), rng.randrange(2, 10)
    ids = torch.randint(9, 60, (sources, length), generator=generator)
    source = {"input_ids": ids}
    if rng.random() < 0.6:
        mask = torch.arange(length) < torch.tensor([[rng.randrange(1, length + 1)] for _ in range(sources)])
        source = {"input_ids": ids.masked_fill(~mask, 1), "attention_mask": mask.long()}
    if rng.random() < 0.3:
        size = rng.randrange(1, 5)
        prompt = torch.randint(9, 60, (sources, size), generator=generator)
        source["decoder_input_ids"] = prompt
        if rng.random() < 0.5:
            mask = torch.arange(size) >= torch.tensor([[rng.randrange(size)] for _ in range(sources)])
            source["decoder_input_ids"] = prompt.masked_fill(~mask, 1)
            source["decoder_attention_mask"] = mask.long()
    return source


def draw_options(rng):
    num_beams = rng.choice([2, 3, 4, 5, 8])
    options = {
        "num_beams": num_beams,
        "num_return_sequences": rng.randrange(1, num_beams + 1),
        "early_stopping": rng.choice([True, False, "never"]),
        "length_penalty": rng.choice([1.0, 0.6, 0.0, -1.0, 2.0, -0.3, 5.0]),
        "eos_token_id": rng.choice(ENDS),
    }
    kinds = [{"max_new_tokens": number} for number in (1, 2, 5, 16, 30)]
    kinds += [{"max_length": number, "max_new_tokens": None} for number in (6, 17, 30)]
    if options["eos_token_id"] is not None:
        limits = [{"max_len_a": a, "max_len_b": b} for a in (0, 0.5, 1.2) for b in (1, 3, 8)]
        kinds += [{"max_new_tokens": None, **limit} for limit in limits]
    options |= rng.choice(kinds)
    for chance, name, value in (
        (0.3, "min_new_tokens", rng.choice([1, 3, 6])),
        (0.2, "no_repeat_ngram_size", 2),
        (0.2, "repetition_penalty", 1.3),
        (0.1, "forced_bos_token_id", 9),
        (0.1, "forced_eos_token_id", 2),
        (0.1, "bad_words_ids", [[12], [13, 14]]),
        (0.5, "suppress_tokens", [1]),
    ):
        if rng.random() < chance:
            options[name] = value
    return options


@pytest.mark.filterwarnings("ignore:Unfeasible length constraints")
@pytest.mark.parametrize("name", CONFIGS)
def test_tokens_and_scores_are_those_of_transformers_search(name):
    """Ten searches with options, sources and prompts drawn at random."""
    for seed in range(10):
        rng, generator = random.Random(f"{name} {seed}"), torch.Generator().manual_seed(seed)
        model = lively(seed=seed % 4, encoder_layers=1, **CONFIGS[name])
        if seed % 5 == 0:
            model.set_attn_implementation("eager")
        source, options = draw_source(rng, generator), draw_options(rng)
        assert searches_beams(model, **source, **options)
        if name == "attention over depth":  # it magnifies roundings: scores in float64, tokens in float32 too
            expected = search_of_transformers(model, source, **options)
            is_real = expected.sequences_scores > -1e6
            assert torch.equal(model.generate(**source, **options)[is_real], expected.sequences[is_real])
            model.double()
        tokens = assert_search_is_that_of_transformers(model, source, **options)
        assert torch.equal(model.generate(**source, **options), tokens)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes_are_searched_in_too(dtype, source, watched):
    """What is found is about as likely, by one pass in float64, as what float64 finds, which is the same tokens."""
    reference = lively().double()
    model = lively().to(dtype)
    options = {"num_beams": 4, "min_new_tokens": 8, "max_new_tokens": 8}
    sequences = generate(model, source, **options)
    assert watched.moves
    expected = generate(reference, source, use_cache=False, **options)
    if dtype == torch.float64:
        assert torch.equal(sequences, expected)

    def likelihood(sequences):
        logits = reference(**source, decoder_input_ids=sequences[:, :-1]).logits.log_softmax(-1)
        return logits.gather(2, sequences[:, 1:, None]).sum(dim=(1, 2))

    assert (likelihood(sequences) - likelihood(expected)).mean().abs() < 0.5


def test_scores_come_without_those_of_all_tokens(source, watched):
    model = lively()
    options = {"num_beams": 4, "num_return_sequences": 2, "length_penalty": 0.6}
    sequences, scores = generate_with_scores(model, source, **options)
    assert watched.searches == 1
    expected = search_of_transformers(model, source, **options)
    assert torch.equal(sequences, expected.sequences)
    assert_close(scores, expected.sequences_scores, scale=10)
    config = transformers.GenerationConfig(**options)
    assert torch.equal(generate_with_scores(model, source, generation_config=config)[0], sequences)
    assert watched.searches == 2
    model.set_attn_implementation("eager")
    sequences, scores = generate_with_scores(model, source, max_time=60.0, **options)
    assert watched.searches == 2 and torch.equal(sequences, expected.sequences)
    assert_close(scores, expected.sequences_scores, scale=10)


def test_positions_that_are_used_up_are_refused_only_if_an_output_needs_them(source):
    model = lively(position_embedding_type="learned", max_position_embeddings=14)
    options = {"num_beams": 3, "max_new_tokens": 30}
    with pytest.raises(ValueError, match="15 tokens is longer than max_position_embeddings=14"):
        model.generate(**source, eos_token_id=None, **options)
    early = {"eos_token_id": list(range(2, 40)), "early_stopping": True}
    assert model.generate(**source, **early, **options).shape[1] < 14


FALLBACKS = {
    "scores": {"return_dict_in_generate": True, "output_scores": True},
    "attentions": {"return_dict_in_generate": True, "output_attentions": True},
    "hidden states": {"return_dict_in_generate": True, "output_hidden_states": True},
    "static": {"cache_implementation": "static", "disable_compile": True},
    "no cache": {"use_cache": False},
    "time": {"max_time": 600.0},
    "criteria": {"stopping_criteria": transformers.StoppingCriteriaList([transformers.MaxTimeCriteria(1e6)])},
    "sampling": {"do_sample": True},
    "configuration": {"generation_config": transformers.GenerationConfig(num_beams=4, use_cache=False)},
    "other arguments": {"output_attentions": True},
}


@pytest.mark.parametrize("name", FALLBACKS)
def test_transformers_searches_where_more_is_asked_for(name, source, watched):
    model = lively(**RK2, attn_implementation="eager")
    options = {**({} if name == "configuration" else {"num_beams": 4}), **FALLBACKS[name]}
    outputs = generate(model, source, **options)
    assert not watched.searches
    if name != "sampling":
        sequences = getattr(outputs, "sequences", outputs)
        assert torch.equal(sequences, generate(model, source, num_beams=4)) and watched.searches == 1
    if name == "attentions":
        assert {tuple(each[0].shape) for each in outputs.cross_attentions} == {(24, 2, 1, 9)}


def test_a_given_cache_is_filled_and_returned(source, watched):
    model = lively()
    given = transformers.EncoderDecoderCache(*(transformers.DynamicCache(config=model.config) for _ in range(2)))
    outputs = generate(model, source, num_beams=4, past_key_values=given, return_dict_in_generate=True)
    assert outputs.past_key_values is given and not watched.searches
    assert {len(layer.keys) for layer in given.cross_attention_cache.layers} == {24}
    assert torch.equal(outputs.sequences, generate(model, source, num_beams=4))


def test_encoder_outputs_that_are_given_stay_as_they_are(source):
    model = lively()
    encoder_outputs = model.get_encoder()(**source)
    given = {"encoder_outputs": encoder_outputs, "attention_mask": source["attention_mask"]}
    expected = generate(model, source, num_beams=4)
    for options in ({}, {"use_cache": False}, {}):
        assert torch.equal(generate(model, given, num_beams=4, **options), expected)
        assert len(encoder_outputs.last_hidden_state) == 6


def test_a_replaced_method_is_called(source, watched):
    """As PEFT's prefix tuning replaces it on the instance; it leaves the method itself there afterwards."""
    model, calls = lively(), []
    expected = generate(model, source, num_beams=3)
    prepare = model.prepare_inputs_for_generation
    model.prepare_inputs_for_generation = lambda *args, **kwargs: calls.append(1) or prepare(*args, **kwargs)
    assert torch.equal(generate(model, source, num_beams=3), expected)
    assert calls and watched.searches == 1
    model.prepare_inputs_for_generation = prepare
    assert torch.equal(generate(model, source, num_beams=3), expected) and watched.searches == 2


def test_a_criterion_of_another_kind_is_refused_by_the_search_itself(source):
    class Stop(transformers.StoppingCriteria):
        def __call__(self, input_ids, scores, **kwargs):
            return torch.zeros(len(input_ids), dtype=torch.bool)

    criteria = transformers.StoppingCriteriaList([Stop()])
    with pytest.raises(ValueError, match="ends outputs by their tokens and lengths only"):
        lively().generate(**source, num_beams=3, stopping_criteria=criteria, custom_generate=beam_search)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_what_is_recomputed_in_training_generates_without_a_cache(num_beams, source):
    """In the mode of training, with the outputs that the model has without recomputing."""
    for model_class in (OdeTransformerForConditionalGeneration, OdeTransformerForCausalLM):
        model = lively(model_class, **RK2, **WITHOUT_DROPOUT)
        inputs = source if model.config.is_encoder_decoder else {"input_ids": torch.arange(4, 16).view(3, 4)}
        expected = generate(model, inputs, num_beams=num_beams)
        model.activation_checkpointing_enable()
        assert torch.equal(generate(model.train(), inputs, num_beams=num_beams), expected)


def test_a_beam_search_goes_on_while_others_are_searching(source, monkeypatch):
    """As under FSDP and ZeRO-3, where a finished process has to take part in the passes of the others."""
    model = lively()
    options = {"num_beams": 3, "max_new_tokens": 8}
    expected = generate(model, source, **options)
    steps = []

    def others_need_three_more(self, this_peer_finished, synced_gpus, device):
        assert synced_gpus
        steps.append(this_peer_finished)
        return sum(steps) <= 3

    monkeypatch.setattr(type(model), "_has_unfinished_sequences", others_need_three_more)
    assert torch.equal(generate(model, source, synced_gpus=True, **options), expected)
    assert sum(steps) == 4 and len(steps) > 4


def test_attention_that_takes_no_added_mask_is_left_to_transformers():
    """Only the decision: flex attention would be compiled for a minute."""
    for attention, ours in (("sdpa", True), ("eager", True), ("flex_attention", False)):
        assert searches_beams(lively(attn_implementation=attention), num_beams=3) is ours


def test_the_encoder_output_is_projected_once_for_each_source(source):
    model = lively()
    projected, queries = [], []
    for layer in model.model.decoder.layers:
        layer.encoder_attn.k_proj.register_forward_hook(lambda _, args, output: projected.append(len(output)))
        layer.encoder_attn.q_proj.register_forward_hook(lambda _, args, output: queries.append(output.shape[:2]))
    generate(model, source, num_beams=4, min_new_tokens=6, max_new_tokens=6)
    assert projected == [6, 6]
    assert queries == [(6, 1)] * 2 + [(6, 4)] * 10


@pytest.mark.parametrize("early_stopping", [True, False])
def test_finished_sources_are_computed_no_further(early_stopping, source, monkeypatch):
    model = lively()
    rows = []
    note = lambda _, args, kwargs: rows.append(len(kwargs["input_ids"]))  # noqa: E731
    model.model.decoder.register_forward_pre_hook(note, with_kwargs=True)
    options = {"num_beams": 4, "early_stopping": early_stopping}
    tokens = generate(model, source, **options)
    assert rows[0] == 6 and rows == sorted(rows, reverse=True) and 0 < rows[-1] < 6
    fewer = sum(rows)
    rows.clear()
    with monkeypatch.context() as patch:
        patch.setattr(BeamSearch, "drop_finished", lambda self: bool(self.is_open.any()))
        assert torch.equal(generate(model, source, **options), tokens)
    assert set(rows) == {6} and fewer < sum(rows)


@pytest.mark.parametrize("early_stopping", [True, False, "never"])
def test_steps_after_the_end_change_nothing(early_stopping, source, monkeypatch):
    """However seldom the host looks whether the search has ended."""
    model = lively()
    options = {"num_beams": 4, "num_return_sequences": 4, "early_stopping": early_stopping, "max_new_tokens": 24}
    expected, scores = generate_with_scores(model, source, **options)
    for interval in (2, 4, 7, 100):
        monkeypatch.setitem(search_module.STEPS_BETWEEN_LOOKS, "cpu", interval)
        tokens, others = generate_with_scores(model, source, **options)
        assert torch.equal(tokens, expected)
        assert_close(others, scores, scale=10)


def test_two_searches_at_the_same_time_have_their_own_results(source):
    """Two threads with one model, in lockstep as long as both search."""
    model = lively()
    sources = [source, {name: tensor.flip(0)[:5] for name, tensor in source.items()}]
    expected = [model.generate(**each, num_beams=4) for each in sources]
    barrier = threading.Barrier(2)
    steps = []

    class Lockstep(transformers.LogitsProcessor):
        def __call__(self, input_ids, scores):
            try:
                barrier.wait(timeout=60)
                steps.append(len(input_ids))
            except threading.BrokenBarrierError:
                pass
            return scores

    def search(each):
        try:
            return model.generate(**each, num_beams=4, logits_processor=transformers.LogitsProcessorList([Lockstep()]))
        finally:
            barrier.abort()

    with ThreadPoolExecutor(2) as executor:
        found = list(executor.map(search, sources))
    assert len(steps) > 8 and set(steps) == {24, 20}
    assert [tokens.tolist() for tokens in found] == [tokens.tolist() for tokens in expected]


@pytest.mark.parametrize("early_stopping", [True, False, "never"])
def test_code_of_the_caller_sees_what_transformers_search_shows_it(early_stopping, source):
    """Of every source, the same hypotheses in the same steps. The function allows no token after an end, which is an
    error in either search if it ever sees one."""
    model, seen = lively(), []

    def allowed(i, tokens):
        seen.append((i, tokens.tolist()))
        return [] if set(tokens.tolist()[1:]) & {2, 5, 7, 8} else range(2, 50)

    class Recorder(transformers.LogitsProcessor):
        def __call__(self, input_ids, scores):
            seen.append(input_ids.tolist())
            return scores

    recorder = transformers.LogitsProcessorList([Recorder()])
    for option in ({"prefix_allowed_tokens_fn": allowed}, {"logits_processor": recorder}):
        options = {"num_beams": 4, "early_stopping": early_stopping, **option}
        expected = search_of_transformers(model, source, **options).sequences
        shown = seen.copy()
        seen.clear()
        assert searches_beams(model, **source, **options)
        assert torch.equal(model.generate(**source, **options), expected)
        assert seen == shown
        seen.clear()
