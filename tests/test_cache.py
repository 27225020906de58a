# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Beam search with a cache that is never reordered: against the search without a cache, and rows copied by hand."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from transformers import (
    DynamicCache,
    EncoderDecoderCache,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.cache_utils import Cache
from transformers.generation import GenerationMode

from modeling_ode_transformer import OdeTransformerForCausalLM, OdeTransformerForConditionalGeneration
from modeling_ode_transformer.cache_ode_transformer import (
    BeamSearchCache,
    BeamSearchEncoderDecoderCache,
)
from modeling_ode_transformer.generation_ode_transformer import BeamSearch, top_k

from .conftest import assert_close, tiny_config


CONFIGS = {
    "default": {},
    "rk2": {"decoder_solver": "rk2", "coefficients": "fixed"},
    "no relative positions": {"max_relative_position": 0},
    "learned positions": {"position_embedding_type": "learned"},
    "sublayers": {"vector_field": "sublayers", "decoder_solver": "rk4", "steps_per_layer": 2, "decoder_layers": 1},
}
OPTIONS = {
    "4 beams": {"num_beams": 4},
    "3 of 3 beams": {"num_beams": 3, "num_return_sequences": 3, "length_penalty": 0.6},
    "prompt": {"num_beams": 5, "decoder_input_ids": torch.arange(10, 34).view(6, 4)},
    "beam sampling": {"num_beams": 3, "do_sample": True},
    "early stopping": {"num_beams": 4, "early_stopping": True},
    "never stopping": {"num_beams": 4, "early_stopping": "never", "length_penalty": 2.0},
    "max_len": {"num_beams": 3, "max_len_a": 0.5, "max_len_b": 3, "max_new_tokens": None},
    "no repetition": {"num_beams": 3, "no_repeat_ngram_size": 2, "repetition_penalty": 1.3},
    "forced": {"num_beams": 3, "forced_bos_token_id": 9, "min_new_tokens": 3},
}


def lively(model_class=OdeTransformerForConditionalGeneration, seed=0, **fields):
    """A model whose beams change places, and whose sources end at different steps."""
    torch.manual_seed(seed)
    config = tiny_config(vocab_size=60, encoder_layers=2, tie_word_embeddings=False, **fields)
    model = model_class(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
        model.lm_head.weight.normal_(std=0.3)
    model.generation_config.update(do_sample=False, max_length=None, max_new_tokens=16, eos_token_id=[2, 5, 7, 8])
    return model


@pytest.fixture
def source():
    """Six sources of 9 tokens, every other one padded on the right."""
    ids = torch.randint(9, 60, (6, 9), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[::2, 6:] = 0
    return {"input_ids": ids.masked_fill(mask == 0, 1), "attention_mask": mask}


@pytest.fixture
def watched(monkeypatch):
    """What the caches of beam search were asked for: how often beams changed places, how often sources left."""
    calls = SimpleNamespace(used=0, moves=0, leaves=0)
    reorder, select = BeamSearchCache.reorder_cache, BeamSearchCache.batch_select_indices

    def reorder_cache(self, beam_idx):
        calls.used += 1
        # All beams of a source follow its first one after the prompt: these are no moves.
        calls.moves += self.visibility is not None and not torch.equal(beam_idx, torch.arange(len(beam_idx)).int())
        reorder(self, beam_idx)

    def batch_select_indices(self, indices):
        calls.leaves += 1
        select(self, indices)

    monkeypatch.setattr(BeamSearchCache, "reorder_cache", reorder_cache)
    monkeypatch.setattr(BeamSearchCache, "batch_select_indices", batch_select_indices)
    return calls


def generate(model, source, **options):
    torch.manual_seed(0)
    return model.generate(**source, **options)


def new_cache(model):
    return EncoderDecoderCache(*(DynamicCache(config=model.config) for _ in range(2)))


# The tokens are those of the search without a cache


@pytest.mark.parametrize("name", CONFIGS)
def test_beam_search_has_the_tokens_of_the_search_without_a_cache(name, source, watched):
    model = lively(**CONFIGS[name])
    for options in OPTIONS.values():
        before = watched.moves
        tokens = generate(model, source, **options)
        assert watched.moves > before
        used = watched.used
        assert torch.equal(tokens, generate(model, source, use_cache=False, **options)), options
        assert watched.used == used
    assert watched.leaves > 2


@pytest.mark.parametrize("name", CONFIGS)
def test_beam_search_has_the_tokens_of_the_search_with_ordinary_caches(name, source, watched):
    model = lively(**CONFIGS[name], attn_implementation="sdpa")
    options = {"num_beams": 4, "num_return_sequences": 2, "early_stopping": True}
    sequences = generate(model, source, **options)
    assert watched.moves and watched.leaves
    used = watched.used
    assert used
    given = new_cache(model)
    ordinary = generate(model, source, past_key_values=given, return_dict_in_generate=True, **options)
    assert ordinary.past_key_values is given
    static = generate(model, source, cache_implementation="static", disable_compile=True, **options)
    returned = generate(model, source, return_dict_in_generate=True, **options)
    assert isinstance(returned.past_key_values.self_attention_cache, DynamicCache)
    assert watched.used == used
    for others in (ordinary.sequences, static, returned.sequences):
        assert torch.equal(sequences, others)


@pytest.mark.parametrize("name", CONFIGS)
def test_eager_attention_searches_as_sdpa_does(name, source, watched):
    options = {"num_beams": 4, "early_stopping": True}
    expected = generate(lively(**CONFIGS[name]), source, use_cache=False, **options)
    model = lively(**CONFIGS[name])
    model.set_attn_implementation("eager")
    assert torch.equal(generate(model, source, **options), expected)
    assert watched.moves and watched.leaves


def test_a_left_padded_prompt_of_the_decoder_is_searched_on_as_alone(source, watched):
    model = lively(decoder_solver="rk2", coefficients="fixed")
    prompts = [[10, 11, 12, 13], [14, 15], [16, 17, 18, 19]]
    padded = torch.tensor([[1] * (4 - len(prompt)) + prompt for prompt in prompts])
    three = {name: tensor[:3] for name, tensor in source.items()}
    mask = (padded != 1).long()
    # Padding that is generated would be none where the mask is given.
    options = {"num_beams": 3, "min_new_tokens": 8, "max_new_tokens": 8, "suppress_tokens": [1]}
    together = generate(model, three, decoder_input_ids=padded, decoder_attention_mask=mask, **options)
    assert watched.moves
    for i, prompt in enumerate(prompts):
        one = {name: tensor[i : i + 1] for name, tensor in source.items()}
        alone = generate(model, one, decoder_input_ids=torch.tensor([prompt]), use_cache=False, **options)
        assert together[i, 4:].tolist() == alone[0, len(prompt) :].tolist()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes_are_searched_in_too(dtype, source, watched):
    """The likelihood of what is found, by one pass in float64 without a cache, is about that of the search in
    float64; in that dtype the tokens are the same."""
    reference = lively().double()
    model = lively().to(dtype)
    sequences = generate(model, source, num_beams=4, min_new_tokens=8, max_new_tokens=8)
    assert watched.moves
    expected = generate(reference, source, num_beams=4, min_new_tokens=8, max_new_tokens=8, use_cache=False)
    if dtype == torch.float64:
        assert torch.equal(sequences, expected)

    def likelihood(sequences):
        logits = reference(**source, decoder_input_ids=sequences[:, :-1]).logits.log_softmax(-1)
        return logits.gather(2, sequences[:, 1:, None]).sum(dim=(1, 2))

    assert (likelihood(sequences) - likelihood(expected)).mean().abs() < 0.5


# Where the ordinary cache is kept

NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
FALLBACKS = {
    "scores": {"output_scores": True},
    "logits": {"output_logits": True},
    "attentions": {"output_attentions": True},
    "hidden states": {"output_hidden_states": True},
    "static": {"cache_implementation": "static", "disable_compile": True},
    "prefill_chunk_size": {"prefill_chunk_size": 2, "decoder_input_ids": torch.arange(10, 34).view(6, 4)},
}


@pytest.mark.parametrize("name", FALLBACKS)
def test_an_ordinary_cache_where_more_is_asked_for(name, source, watched):
    model = lively(decoder_solver="rk2", coefficients="fixed", attn_implementation="eager")
    options = {"num_beams": 4, "return_dict_in_generate": True, **FALLBACKS[name]}
    if name == "prefill_chunk_size":
        with pytest.raises(ValueError, match="prefill_chunk_size=2: transformers cuts the mask of padded sources"):
            generate(model, source, **options)
        source["attention_mask"][:] = 1
    outputs = generate(model, source, **options)
    assert type(outputs.past_key_values) is EncoderDecoderCache and not watched.used
    plain = {key: value for key, value in options.items() if key not in ("cache_implementation", "prefill_chunk_size")}
    expected = generate(model, source, use_cache=False, **plain)
    assert torch.equal(outputs.sequences, expected.sequences)
    # The encoder's keys are there once for each source, and those of a pass over the sources alone.
    once = model(**source, decoder_input_ids=torch.full((6, 1), 2)).past_key_values.cross_attention_cache
    for layer, other in zip(outputs.past_key_values.cross_attention_cache.layers, once.layers, strict=True):
        assert_close(layer.keys[:, :, :9], other.keys)
        assert_close(layer.values[:, :, :9], other.values)
    for record in ("scores", "logits"):
        if record not in name:
            continue
        for step, other in zip(getattr(outputs, record), getattr(expected, record), strict=True):
            torch.testing.assert_close(step, other, rtol=0, atol=1e-4)
    if name == "scores":
        torch.testing.assert_close(outputs.sequences_scores, expected.sequences_scores, rtol=0, atol=1e-5)


@pytest.mark.parametrize("stages", [False, True])
@pytest.mark.parametrize("num_beams", [1, 3])
def test_what_is_recomputed_in_training_generates_without_a_cache(num_beams, stages, source):
    """In the mode of training, with the outputs that the model has without recomputing."""
    for model_class in (OdeTransformerForConditionalGeneration, OdeTransformerForCausalLM):
        model = lively(model_class, decoder_solver="rk2", coefficients="fixed", **NO_DROPOUT)
        inputs = source if model.config.is_encoder_decoder else {"input_ids": torch.arange(4, 16).view(3, 4)}
        expected = generate(model, inputs, num_beams=num_beams)
        model.activation_checkpointing_enable({"stages": stages})
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


@pytest.mark.parametrize(
    "attention, cache_class",
    [
        ("sdpa", BeamSearchEncoderDecoderCache),
        ("eager", BeamSearchEncoderDecoderCache),
        ("flex_attention", EncoderDecoderCache),
    ],
)
def test_attention_that_takes_no_added_mask_has_an_ordinary_cache(attention, cache_class):
    """Only what generate() prepares: flex attention would be compiled for a minute."""
    model = lively(attn_implementation=attention)
    model_kwargs = {"use_cache": True}
    config = GenerationConfig(num_beams=3, use_cache=True, max_length=9)
    model._prepare_cache_for_generation(config, model_kwargs, GenerationMode.BEAM_SEARCH, 2, 9)
    assert type(model_kwargs["past_key_values"]) is cache_class


@pytest.mark.parametrize(
    "options",
    [{"num_beams": 4}, {"num_beams": 4, "output_scores": True}, {"do_sample": True, "num_return_sequences": 4}],
    ids=str,
)
def test_the_keys_of_the_encoder_are_neither_copied_nor_reordered(options, source, monkeypatch):
    reordered = []
    reorder = Cache.reorder_cache
    monkeypatch.setattr(Cache, "reorder_cache", lambda self, idx: reordered.append(self) or reorder(self, idx))
    model = lively()
    projected = []
    for layer in model.model.decoder.layers:
        layer.encoder_attn.k_proj.register_forward_hook(lambda _, args, output: projected.append(len(output)))
    options = options | {"min_new_tokens": 6, "max_new_tokens": 6, "return_dict_in_generate": True}
    cache = generate(model, source, **options).past_key_values.cross_attention_cache
    assert projected == [6, 6]
    assert [len(layer.keys) for layer in cache.layers] == [6, 6]
    assert not any(each is cache for each in reordered)
    expected = model(**source, decoder_input_ids=torch.full((6, 1), 2)).past_key_values.cross_attention_cache
    for layer, other in zip(cache.layers, expected.layers, strict=True):
        assert_close(layer.keys, other.keys, scale=100)
        assert_close(layer.values, other.values, scale=100)


# Several targets of one source in the forward pass


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", CONFIGS)
def test_targets_of_one_source_attend_as_to_copies_of_it(name, attention, source):
    model = lively(**CONFIGS[name], attn_implementation=attention).double()
    targets = torch.randint(9, 60, (18, 5), generator=torch.Generator().manual_seed(3))
    once = model.get_encoder()(**source)
    copies = type(once)(last_hidden_state=once.last_hidden_state.repeat_interleave(3, 0))
    options = {"decoder_input_ids": targets, "output_attentions": attention == "eager"}
    outputs = model(encoder_outputs=once, attention_mask=source["attention_mask"], **options)
    copied_mask = source["attention_mask"].repeat_interleave(3, 0)
    expected = model(encoder_outputs=copies, attention_mask=copied_mask, **options)
    assert_close(outputs.logits, expected.logits, scale=100)
    if attention == "eager":
        for weights, others in zip(outputs.cross_attentions, expected.cross_attentions, strict=True):
            assert weights.shape == (18, 2, 5, 9)
            assert_close(weights, others)
            assert_close(weights.sum(-1), torch.ones(18, 2, 5, dtype=torch.float64), scale=1e6)


def test_each_beam_has_its_cross_attention(source):
    model = lively(attn_implementation="eager")
    options = {"num_beams": 4, "output_attentions": True, "return_dict_in_generate": True}
    outputs = generate(model, source, **options)
    expected = generate(model, source, use_cache=False, **options)
    # Without a cache, each step attends from all positions: the last one is that of the step.
    for step, others in zip(outputs.cross_attentions, expected.cross_attentions, strict=True):
        for weights, other in zip(step, others, strict=True):
            assert weights.shape == (24, 2, 1, 9)
            assert_close(weights, other[:, :, -1:], scale=10)
            assert_close(weights.sum(-1), torch.ones(24, 2, 1))
            assert weights[:4, :, :, 6:].abs().max() == 0


def test_targets_that_cannot_be_shared_out_are_refused(source):
    with pytest.raises(ValueError, match="6 sources cannot have 9 targets"):
        lively()(**source, decoder_input_ids=torch.full((9, 2), 2))


# Finished sources leave


@pytest.mark.parametrize("early_stopping", [True, False])
def test_finished_sources_are_computed_no_further(early_stopping, source, monkeypatch):
    model = lively()
    rows = []
    model.model.decoder.register_forward_pre_hook(
        lambda module, args, kwargs: rows.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    options = {"num_beams": 4, "early_stopping": early_stopping}
    tokens = generate(model, source, **options)
    assert rows[0] == 24 and rows == sorted(rows, reverse=True) and 0 < rows[-1] < 24
    assert all(number % 4 == 0 for number in rows)
    fewer = sum(rows)
    rows.clear()
    with monkeypatch.context() as patch:
        patch.setattr(BeamSearchEncoderDecoderCache, "keep_sources", lambda self, is_open: None)
        assert torch.equal(generate(model, source, **options), tokens)
    assert set(rows) == {24} and fewer < sum(rows)


def test_two_searches_at_the_same_time_have_their_own_results(source):
    """Two threads with one model, in lockstep as long as both search."""
    model = lively()
    sources = [source, {name: tensor.flip(0)[:5] for name, tensor in source.items()}]
    expected = [model.generate(**each, num_beams=4) for each in sources]
    barrier = threading.Barrier(2)
    steps = []

    class Lockstep(LogitsProcessor):
        def __call__(self, input_ids, scores):
            try:
                barrier.wait(timeout=60)
                steps.append(len(input_ids))
            except threading.BrokenBarrierError:
                pass
            return scores

    def search(each):
        try:
            return model.generate(**each, num_beams=4, logits_processor=LogitsProcessorList([Lockstep()]))
        finally:
            barrier.abort()

    with ThreadPoolExecutor(2) as executor:
        found = list(executor.map(search, sources))
    assert len(steps) > 8 and set(steps) == {24, 20}
    assert [tokens.tolist() for tokens in found] == [tokens.tolist() for tokens in expected]


# The cache by itself


def attend(query, keys, values, mask=0.0):
    return (query @ keys.transpose(-1, -2) + mask).softmax(-1) @ values


@pytest.mark.parametrize("num_beams, prompt_length", [(2, 1), (3, 4), (5, 2)])
@pytest.mark.parametrize("is_padded", [False, True])
def test_attention_to_pooled_entries_is_that_to_reordered_copies(num_beams, prompt_length, is_padded):
    """Twelve steps in float64 with two layers; two of four sources leave after the sixth."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=generator)  # noqa: E731
    heads, size, sources = 2, 3, 4
    cache = BeamSearchCache(num_beams)
    assert cache.get_seq_length() == 0
    padding = torch.ones(sources * num_beams, prompt_length + 12)
    if is_padded:
        padding[:num_beams, : prompt_length - 1] = 0
        padding[-num_beams:, : prompt_length // 2] = 0

    copies = []
    for layer in range(2):
        prompt = [draw(sources, heads, prompt_length, size).repeat_interleave(num_beams, 0) for _ in range(2)]
        returned = cache.update(*prompt, layer)
        assert all(one is other for one, other in zip(returned, prompt))
        copies.append(prompt)

    kept = torch.arange(sources)
    first_rows = torch.arange(sources).repeat_interleave(num_beams) * num_beams
    for step in range(12):
        beam_idx = first_rows + torch.randint(num_beams, first_rows.shape, generator=generator)
        cache.reorder_cache(beam_idx)
        copies = [[states[beam_idx] for states in layer] for layer in copies]
        if step in (6, 8):
            # Of the sources 0 to 3 the source 1 leaves; then, of 0, 2 and 3, the first.
            indices = torch.tensor([0, 2, 3] if step == 6 else [1, 2])
            cache.batch_select_indices(indices)
            kept = kept[indices]
        rows = (kept[:, None] * num_beams + torch.arange(num_beams)).flatten()
        length = prompt_length + step
        assert cache.get_seq_length() == length and cache.get_mask_sizes(1) == (length + 1, 0)
        step_padding = padding[:, : length + 1]
        embeddings = draw(len(rows), 1, 4)
        mask = cache.attention_mask(embeddings, step_padding[rows] if is_padded else None)
        positions = cache.key_positions(embeddings.device)
        for layer, (keys, values) in enumerate(copies):
            query, new_keys, new_values = (draw(sources * num_beams, heads, 1, size) for _ in range(3))
            copies[layer] = keys, values = torch.cat([keys, new_keys], 2), torch.cat([values, new_values], 2)
            bias = torch.zeros_like(step_padding).double().masked_fill(step_padding == 0, float("-inf"))
            expected = attend(query, keys, values, bias[:, None, None])[rows]
            pooled = cache.update(new_keys[rows], new_values[rows], layer)
            assert mask.shape == (len(kept), 1, num_beams, pooled[0].shape[2]) and mask.dtype == torch.float64
            together = query[rows].view(len(kept), num_beams, heads, size).transpose(1, 2)
            actual = attend(together, *pooled, mask)
            assert_close(actual.transpose(1, 2).reshape(len(rows), heads, 1, size), expected)
            # The entries that a beam sees are one of each position, in their order.
            if not is_padded:
                seen = [positions[row == 0].tolist() for row in mask.flatten(0, 2)]
                assert seen == [list(range(length + 1))] * len(rows)

    everything = draw(sources * num_beams, 7)
    assert torch.equal(cache.select(everything), everything[rows])
    restored = cache.restore(everything[rows])
    assert torch.equal(restored[rows], everything[rows])
    assert restored.count_nonzero() == everything[rows].numel() < restored.numel()
    cache.reset()
    assert cache.get_seq_length() == 0 and cache.visibility is None
    assert cache.select(everything) is everything and cache.restore(everything) is everything
    prompt = draw(num_beams, heads, 5, size)
    assert cache.update(prompt, prompt, 0)[0] is prompt and cache.get_seq_length() == 5


def test_rows_are_all_there_until_a_source_leaves():
    cache = BeamSearchCache(2)
    rows = torch.arange(6)
    assert cache.select(rows) is rows and cache.restore(rows) is rows


def test_several_positions_after_the_prompt_are_refused():
    cache = BeamSearchCache(2)
    cache.update(torch.zeros(4, 1, 3, 2), torch.zeros(4, 1, 3, 2), 0)
    with pytest.raises(ValueError, match="one position at a time, not 2"):
        cache.update(torch.zeros(4, 1, 2, 2), torch.zeros(4, 1, 2, 2), 0)


@pytest.mark.parametrize("leaving, kept", [(0, 16), (1, 16), (2, 14), (15, 1), (16, 16)])
def test_sources_leave_once_they_are_an_eighth(leaving, kept):
    cache = BeamSearchEncoderDecoderCache(2, DynamicCache())
    states = torch.arange(32.0).view(32, 1, 1, 1)
    cache.self_attention_cache.update(states, states, 0)
    cache.cross_attention_cache.update(states[::2], states[::2], 0)
    is_open = torch.arange(16) >= leaving
    cache.keep_sources(is_open)
    expected = states[::2][-kept:]
    for each in (cache.self_attention_cache, cache.cross_attention_cache):
        assert torch.equal(each.layers[0].keys[:, :, :1], expected)


# The greatest of many


@pytest.mark.parametrize("columns", [1, 7, 32, 61, 64, 65, 640, 1001, 32003])
def test_the_greatest_are_those_of_torch(columns):
    generator = torch.Generator().manual_seed(columns)
    scores = torch.randn(6, columns, generator=generator)
    scores[1, ::3] = float("-inf")
    scores[2] = float("-inf")
    scores[3, columns // 2 :] = scores[3, : columns - columns // 2].clone()
    scores[4] = torch.arange(columns)
    scores[5] = -torch.arange(columns)
    for k in range(2, min(columns, 20) + 1):
        values, indices = top_k(scores, k)
        assert torch.equal(values, scores.topk(k).values)
        assert torch.equal(values, scores.gather(1, indices))
        assert all(len(set(row)) == k for row in indices.tolist())


@pytest.mark.parametrize("columns", [20, 1001])
def test_the_narrow_vocabulary_keeps_the_log_probabilities(columns):
    """Of flat and of peaked distributions; what is left over has the probability of all other tokens."""
    logits = torch.randn(6, 3, columns, generator=torch.Generator().manual_seed(0))
    logits[1] *= 10
    logits[2, -1, 3] = 60
    logits[3, -1, 5:] = float("-inf")
    search = BeamSearch(cache=None, num_candidates=8)
    narrow = search.narrow(logits).squeeze(1).log_softmax(-1)
    exact = logits[:, -1].double().log_softmax(-1)
    greatest = exact.topk(8).values
    assert narrow.shape == search.tokens.shape == (6, 9)
    torch.testing.assert_close(narrow[:, :8].double(), greatest, rtol=1e-6, atol=2e-6)
    torch.testing.assert_close(exact.gather(1, search.tokens[:, :8]), greatest, rtol=0, atol=1e-6)
    others = 1 - greatest.exp().sum(1)
    torch.testing.assert_close(narrow[:, 8].exp().double(), others, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["logits processor", "stopping criterion"])
def test_a_generation_inside_of_a_search_is_none_of_it(kind, source):
    outer, inner = lively(), lively(seed=1)
    alone = outer.generate(**source, num_beams=4, early_stopping=True)
    expected, found = inner.generate(source["input_ids"]), []

    class Nested(LogitsProcessor, StoppingCriteria):
        def __call__(self, input_ids, scores):
            found.append(inner.generate(source["input_ids"]))
            return scores if kind == "logits processor" else torch.zeros(len(input_ids), dtype=torch.bool)

    nested = {"logits_processor": LogitsProcessorList([Nested()])}
    if kind == "stopping criterion":
        nested = {"stopping_criteria": StoppingCriteriaList([Nested()])}
    assert torch.equal(outer.generate(**source, num_beams=4, early_stopping=True, **nested), alone)
    assert found and all(torch.equal(each, expected) for each in found)
