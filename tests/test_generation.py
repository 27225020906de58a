# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""generate(): against sequences found by brute force or by another of its methods."""

import copy
import itertools

import numpy as np
import pytest
import torch
import transformers

import modeling_ode_transformer as ode
from modeling_ode_transformer.generation_ode_transformer import CACHE_NAME
from modeling_ode_transformer.texts_ode_transformer import generate_with_scores

from .conftest import TINY, assert_close, randomize, tiny_config


SOLVER = pytest.mark.parametrize("decoder_solver", ["euler", "rk4"])


def build(model_class=ode.OdeTransformerForConditionalGeneration, **fields):
    torch.manual_seed(0)
    model = randomize(model_class(tiny_config(config_class=model_class.config_class, **fields)))
    # A sharper distribution, so that no test hangs on a tie.
    model.lm_head.weight = torch.nn.Parameter(10 * torch.randn(model.lm_head.weight.shape) / 32**0.5)
    model.generation_config.update(do_sample=False, max_length=None, min_new_tokens=8, max_new_tokens=8)
    return model


@SOLVER
def test_greedy_search_with_a_cache_is_the_argmax_without(decoder_solver, batch):
    model = build(decoder_solver=decoder_solver, coefficients="fixed")
    source, expected = source_of(batch), torch.full((3, 1), 2)
    for _ in range(8):
        logits = model(**source, decoder_input_ids=expected, use_cache=False).logits[:, -1]
        logits[:, 2] = float("-inf")
        expected = torch.cat([expected, logits.argmax(-1, keepdim=True)], 1)
    assert model.generate(**source).tolist() == expected.tolist()
    assert model.generate(**source, cache_implementation="static", disable_compile=True).tolist() == expected.tolist()
    assert model.generate(**source, use_cache=False).tolist() == expected.tolist()
    assert model.generate(**source, num_beams=1, do_sample=True, top_k=1).tolist() == expected.tolist()


@SOLVER
def test_generation_continues_from_a_cache(decoder_solver, batch):
    model = build(decoder_solver=decoder_solver, coefficients="fixed")
    source = source_of(batch)
    expected = model.generate(**source)
    outputs = model.generate(**source, max_new_tokens=4, min_new_tokens=4, return_dict_in_generate=True)
    given = {"decoder_input_ids": outputs.sequences, "decoder_attention_mask": torch.ones_like(outputs.sequences)}
    given["past_key_values"] = outputs.past_key_values
    continued = model.generate(**source, **given, max_new_tokens=4, min_new_tokens=4)
    assert continued.tolist() == expected.tolist()


BOTH_NAMES = {"past_key_values", "cache"}
MODELS = pytest.mark.parametrize(
    "model_class", [ode.OdeTransformerForConditionalGeneration, ode.OdeTransformerForCausalLM]
)


@MODELS
def test_the_cache_has_both_names(model_class, batch):
    """Outputs have the one of the installed transformers, and so has what `generate()` passes on."""
    model = build(model_class, decoder_solver="rk2", coefficients="fixed")
    inputs, name = {"input_ids": batch["input_ids"]}, "decoder_input_ids"
    if model_class is ode.OdeTransformerForCausalLM:
        inputs, name = {}, "input_ids"
    expected = model(**inputs, **{name: batch["decoder_input_ids"]}).logits[:, 4:]
    prompt, *rest = batch["decoder_input_ids"].split([4, 2], dim=1)
    tokens = [model.generate(**inputs, **{name: prompt}, max_new_tokens=8)]
    for either in BOTH_NAMES:
        outputs = model(**inputs, **{name: prompt})
        assert CACHE_NAME in outputs.keys() and len(BOTH_NAMES & {*outputs.keys()}) == 1
        assert_close(model(**inputs, **{name: rest[0], either: outputs[CACHE_NAME]}).logits, expected, scale=10)
        kinds = [transformers.DynamicCache(config=model.config) for _ in range(2)]
        empty = transformers.EncoderDecoderCache(*kinds) if inputs else kinds[0]
        tokens.append(model.generate(**inputs, **{name: prompt, either: empty}, max_new_tokens=8))
        assert empty.get_seq_length() == 11
    assert torch.equal(tokens[0], tokens[1]) and torch.equal(tokens[0], tokens[2])
    for call in (model, model.generate):
        with pytest.raises(TypeError, match="two names of one argument: give one of them"):
            call(**inputs, **{name: prompt}, **dict.fromkeys(BOTH_NAMES, empty))


@SOLVER
def test_assisted_decoding_is_greedy_search(decoder_solver, batch):
    model = build(decoder_solver=decoder_solver, coefficients="fixed")
    assistant = build(decoder_solver="euler", decoder_layers=1, coefficients="fixed")
    source = batch["input_ids"][:1]
    expected = model.generate(source).tolist()
    assert model.generate(source, assistant_model=assistant).tolist() == expected
    assert model.generate(source, prompt_lookup_num_tokens=2).tolist() == expected


PLACES = itertools.product(("learned", "sinusoidal_vaswani"), ("absolute", "ids"))
PLACED = [{"position_embedding_type": kind, "position_counting": counting} for kind, counting in PLACES]


@pytest.mark.parametrize("fields", [{}, {"decoder_solver": "rk4"}, *PLACED], ids=str)
def test_a_left_padded_prompt_is_continued_as_alone(fields):
    fields = {"embedding_layer_norm": True, "lm_head_bias": True, "coefficients": "fixed"} | fields
    model = build(ode.OdeTransformerForCausalLM, **{"decoder_solver": "rk2"} | fields)
    prompts = [torch.tensor([[5, 9, 11, 7]]), torch.tensor([[8, 6]])]
    alone = [model.generate(prompt)[0, prompt.shape[1] :].tolist() for prompt in prompts]
    padded = torch.tensor([[5, 9, 11, 7], [1, 1, 8, 6]])
    for arguments in ({}, {"cache_implementation": "static", "disable_compile": True}):
        together = model.generate(padded, attention_mask=(padded != 1).long(), **arguments)
        assert together[:, 4:].tolist() == alone


@SOLVER
def test_all_evaluations_of_a_block_have_one_copy_of_the_sources_keys(decoder_solver, batch):
    """Two layers, each run twice, make four copies."""
    cache = build(decoder_solver=decoder_solver, coefficients="fixed", stack_repeats=2)(**batch).past_key_values
    entries = cache.cross_attention_cache.layers
    for name in ("keys", "values"):
        places = [getattr(entry, name).data_ptr() for entry in entries]
        assert len(set(places)) == 4 and places == sorted(places, key=places.index)


def test_generation_from_embeddings_is_that_from_ids(batch):
    model = build()
    embeddings = model.get_input_embeddings()(batch["input_ids"][:1])
    assert model.generate(inputs_embeds=embeddings).tolist() == model.generate(batch["input_ids"][:1]).tolist()
    language_model = build(ode.OdeTransformerForCausalLM, decoder_solver="rk2")
    ids = batch["input_ids"][:1]
    expected = language_model.generate(ids)[:, ids.shape[1] :]
    embeddings = language_model.get_input_embeddings()(ids)
    assert language_model.generate(inputs_embeds=embeddings).tolist() == expected.tolist()


def test_a_static_cache_counts_no_padding_before_a_prompt():
    """Prompts of two lengths in one batch, each with the logits that it has alone, with any cache."""
    model = build(decoder_solver="rk2", eos_token_id=None)
    prompts = torch.tensor([[2, 10, 11, 12, 13], [1, 1, 2, 14, 15]])
    source = {"input_ids": torch.tensor([[5, 6, 7], [8, 9, 2]]), "attention_mask": torch.ones(2, 3).long()}
    options = {"max_new_tokens": 6, "num_beams": 1, "return_dict_in_generate": True, "output_logits": True}
    alone = model.generate(source["input_ids"][1:], decoder_input_ids=prompts[1:, 2:], **options)
    for cache in ({}, {"cache_implementation": "static", "disable_compile": True}):
        mask = (prompts != 1).long()
        together = model.generate(**source, decoder_input_ids=prompts, decoder_attention_mask=mask, **options, **cache)
        assert together.sequences[1, 2:].tolist() == alone.sequences[0].tolist()
        torch.testing.assert_close(torch.stack(together.logits)[:, 1], torch.stack(alone.logits)[:, 0])


def test_scores_do_not_count_what_follows_an_output():
    """Of one that a criterion ends before the others, as `stop_strings` do, too."""

    class Stop(transformers.StoppingCriteria):
        def __call__(self, input_ids, scores, **kwargs):
            return torch.isin(input_ids[:, -1], stops)

    model = build()
    sources = torch.randint(4, 61, (3, 6), generator=torch.Generator().manual_seed(1))
    options = {"num_beams": 1, "do_sample": False, "max_new_tokens": 8}
    whole = model.generate(sources, **options)
    stops = whole[:2, 3].unique()
    options["stopping_criteria"] = transformers.StoppingCriteriaList([Stop()])
    sequences, scores = generate_with_scores(model, {"input_ids": sources}, **options)
    assert (sequences == model.config.pad_token_id).any()
    for source, score in zip(sources, scores):
        _, (alone,) = generate_with_scores(model, {"input_ids": source[None]}, **options)
        assert score.item() == pytest.approx(alone.item(), abs=1e-5)


def without_length(model):
    model.generation_config.update(min_new_tokens=None, max_new_tokens=None)
    return model


def endless(**fields):
    """Nothing ends by itself: the end token has the least probability."""
    model = without_length(build(**fields))
    logits = model.lm_head.forward
    model.lm_head.forward = lambda hidden: logits(hidden).index_fill(-1, torch.tensor([2]), -100.0)
    return model


def numbers_of_tokens(sequences):
    """Tokens between the start token and the end token of each row; there has to be an end token."""
    return [row.tolist().index(2, 1) - 1 for row in sequences]


def source_of(batch):
    return {name: batch[name] for name in ("input_ids", "attention_mask")}


def test_outputs_end_at_their_own_source_length(batch):
    """Sources of 9, 7 and 4 tokens."""
    model = endless()
    for options in ({}, {"num_beams": 3}, {"do_sample": True, "num_return_sequences": 2}):
        copies = options.get("num_return_sequences", 1)
        for (a, b), limits in {
            (1.2, 1): [11, 9, 5],  # 11.8, 9.4, 5.8
            (0.5, 0): [4, 3, 2],
            (0, 6): [6, 6, 6],
        }.items():
            sequences = model.generate(**source_of(batch), max_len_a=a, max_len_b=b, **options)
            assert numbers_of_tokens(sequences) == [limit for limit in limits for _ in range(copies)]
    assert numbers_of_tokens(model.generate(**source_of(batch), max_len_a=1)) == [9, 7, 4]
    assert numbers_of_tokens(model.generate(**source_of(batch), max_len_b=0, max_len_a=0.2)) == [1, 1, 0]


def test_the_other_limits_hold_too(batch):
    model = endless(position_embedding_type="learned", max_position_embeddings=12)
    source = source_of(batch)
    assert numbers_of_tokens(model.generate(**source, max_len_a=1, max_length=9)) == [7, 7, 4]
    assert numbers_of_tokens(model.generate(**source, max_len_a=1, max_new_tokens=6)) == [5, 5, 4]
    assert numbers_of_tokens(model.generate(**source, max_len_a=1, min_new_tokens=6)) == [9, 7, 6]
    assert numbers_of_tokens(model.generate(**source, max_len_a=1, min_length=9)) == [9, 8, 8]
    assert numbers_of_tokens(model.generate(**source, max_len_b=2, min_new_tokens=6)) == [6, 6, 6]
    # all 12 positions of the decoder are used: the start token's, and one for each token but the end
    assert numbers_of_tokens(model.generate(**source, max_len_b=200)) == [11, 11, 11]
    prompt = {"decoder_input_ids": torch.full((3, 3), 2)}
    assert model.generate(**source, **prompt, max_len_a=1).eq(2).long()[:, 3:].argmax(1).tolist() == [9, 7, 4]


def test_the_length_of_a_source_is_counted_without_padding(batch):
    model = endless()
    ids, mask = batch["input_ids"], batch["attention_mask"]
    embeddings = model.get_input_embeddings()(ids)
    encoder_outputs = model.get_encoder()(ids, attention_mask=mask)
    for source in (
        {"inputs": ids, "attention_mask": mask},
        {"input_ids": ids},  # by the ids of padding
        {"inputs_embeds": embeddings, "attention_mask": mask},
        {"encoder_outputs": encoder_outputs, "attention_mask": mask},
    ):
        assert numbers_of_tokens(model.generate(**source, max_len_a=1)) == [9, 7, 4]
    assert numbers_of_tokens(model.generate(inputs_embeds=embeddings, max_len_a=1)) == [9, 9, 9]


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"num_beams": 3, "early_stopping": True}])
def test_an_output_does_not_depend_on_its_neighbors(options, batch):
    model = without_length(build())
    options |= {"max_len_a": 0.8, "max_len_b": 2, "return_dict_in_generate": True, "output_scores": True}
    together = model.generate(**source_of(batch), **options)
    for i, (ids, mask) in enumerate(zip(batch["input_ids"], batch["attention_mask"])):
        alone = model.generate(ids[mask == 1][None], **options)
        length = alone.sequences.shape[1]
        assert torch.equal(together.sequences[i, :length], alone.sequences[0])
        assert set(together.sequences[i, length:].tolist()) <= {1}
        if "num_beams" in options:
            assert_close(together.sequences_scores[i], alone.sequences_scores[0], scale=10)


@pytest.mark.parametrize("limit, solver", [(1, "euler"), (2, "euler"), (2, "rk4")])
def test_the_best_of_all_short_outputs_with_their_end_is_found(limit, solver):
    """At the limit the end token is forced and its log-probability counts: of all outputs of up to `limit` tokens from
    a vocabulary of 8, those of the best mean log-probability, their end included. The beam drops none."""
    model = without_length(build(vocab_size=8, decoder_solver=solver))
    source = torch.tensor([[5, 7, 4]])
    scores = {}
    for number in range(limit + 1):
        for tokens in itertools.product([0, 3, 4, 5, 6, 7], repeat=number):
            decoder_input_ids = torch.tensor([[2, *tokens]])
            log_probabilities = model(source, decoder_input_ids=decoder_input_ids).logits[0].log_softmax(-1)
            total = log_probabilities.gather(1, torch.tensor([*tokens, 2])[:, None]).sum().item()
            scores[tokens] = total / (number + 1)
    ranked = sorted(scores, key=scores.get, reverse=True)
    options = {"num_beams": 64, "num_return_sequences": 3, "suppress_tokens": [1], "max_len_b": limit}
    outputs = ode.n_best(model, Spelling(), {"input_ids": source}, **options)
    assert [text for text, _ in outputs[0]] == [" ".join(map(str, tokens)) for tokens in ranked[:3]]
    assert [score for _, score in outputs[0]] == pytest.approx([scores[tokens] for tokens in ranked[:3]], abs=1e-5)


def test_the_processor_limits_any_model_of_transformers(batch):
    ids = {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2, "forced_bos_token_id": 9}
    torch.manual_seed(0)
    model = randomize(transformers.M2M100ForConditionalGeneration(transformers.M2M100Config(**TINY, **ids)))
    processor = ode.SourceLengthLogitsProcessor(batch["attention_mask"].sum(1), 1.2, 1, [2, 3])
    assert processor.limits.tolist() == [11, 9, 5] and processor.max_new_tokens == 12
    assert ode.SourceLengthLogitsProcessor(torch.tensor([30, 20]), 0.1, 0, 2).limits.tolist() == [3, 2]

    processors = transformers.LogitsProcessorList([processor])
    arguments = {"logits_processor": processors, "max_new_tokens": processor.max_new_tokens}
    for options in ({}, {"num_beams": 3}, {"do_sample": True, "num_return_sequences": 2}):
        sequences = model.generate(**source_of(batch), **arguments, **options)
        limits = torch.tensor([11, 9, 5]).repeat_interleave(len(sequences) // 3)
        ends = torch.isin(sequences[:, 1:], torch.tensor([2, 3])).long().argmax(1)
        assert (ends <= limits).all() and torch.isin(sequences[:, 1:], torch.tensor([2, 3])).any(1).all()


def test_max_len_is_saved_with_the_generation_configuration(tmp_path, batch):
    model = without_length(build())
    model.generation_config.max_len_a, model.generation_config.max_len_b = 0.5, 1
    expected = model.generate(**source_of(batch))
    assert torch.equal(without_length(build()).generate(**source_of(batch), max_len_a=0.5, max_len_b=1), expected)
    config = transformers.GenerationConfig(max_len_a=0.5, max_len_b=1)
    assert torch.equal(without_length(build()).generate(**source_of(batch), generation_config=config), expected)
    model.save_pretrained(tmp_path)
    loaded = ode.OdeTransformerForConditionalGeneration.from_pretrained(tmp_path)
    assert (loaded.generation_config.max_len_a, loaded.generation_config.max_len_b) == (0.5, 1)
    assert torch.equal(loaded.generate(**source_of(batch)), expected)
    assert not torch.equal(loaded.generate(**source_of(batch), max_len_b=3), expected)


@pytest.mark.parametrize(
    ("options", "plain"),
    [
        ({"pad_token_id": 1, "max_len_b": 3}, {"max_len_b": 3}),
        ({"eos_token_id": torch.tensor(2), "max_len_b": 3}, {"max_len_b": 3}),
        ({"max_len_a": np.float32(0.5), "max_len_b": np.int64(3)}, {"max_len_a": 0.5, "max_len_b": 3}),
    ],
)
def test_limits_stand_beside_what_else_generate_takes(options, plain, batch):
    model = build()
    assert torch.equal(model.generate(batch["input_ids"], **options), model.generate(batch["input_ids"], **plain))


def test_limits_need_an_end_token(batch):
    model = build()
    model.generation_config.eos_token_id = None
    with pytest.raises(ValueError, match="set eos_token_id"):
        model.generate(batch["input_ids"], max_len_b=3)


class Spelling:
    """A tokenizer that spells ids."""

    @staticmethod
    def batch_decode(sequences, skip_special_tokens):
        return [" ".join(str(token) for token in row if token not in (1, 2)) for row in sequences.tolist()]


@pytest.mark.parametrize(
    "options, exponent",
    [
        ({}, 1),
        ({"num_beams": 4, "num_return_sequences": 3, "length_penalty": 0.6}, 0.6),
        ({"do_sample": True, "temperature": 0.5, "num_return_sequences": 4}, 1),
    ],
)
def test_n_best_scores_are_normalized_log_probabilities(options, exponent, batch):
    """Recomputed in one pass over each output, alone and without a cache."""
    model = without_length(build())
    outputs = ode.n_best(model, Spelling(), source_of(batch), max_len_a=1, max_len_b=-0.0, **options)
    assert [len(each) for each in outputs] == [options.get("num_return_sequences", 1)] * 3
    for ids, mask, each in zip(batch["input_ids"], batch["attention_mask"], outputs):
        assert [score for _, score in each] == sorted((score for _, score in each), reverse=True)
        for text, score in each:
            tokens = torch.tensor([*map(int, text.split()), 2])
            decoder_input_ids = torch.cat([torch.tensor([2]), tokens[:-1]])[None]
            logits = model(ids[mask == 1][None], decoder_input_ids=decoder_input_ids).logits[0]
            total = logits.log_softmax(-1).gather(1, tokens[:, None]).sum().item()
            assert score == pytest.approx(total / len(tokens) ** exponent, abs=1e-4)


@pytest.mark.parametrize("options", [{}, {"num_beams": 3, "num_return_sequences": 2}])
def test_n_best_goes_by_a_given_generation_configuration(options, batch):
    model = without_length(build())
    expected = ode.n_best(model, Spelling(), source_of(batch), max_new_tokens=6, **options)
    model.generation_config.num_beams = 1 if options else 3
    given = transformers.GenerationConfig(max_new_tokens=6, **{"num_beams": 1, **options})
    assert ode.n_best(model, Spelling(), source_of(batch), generation_config=given) == expected
    unscored = [[(text, 0.0) for text, _ in each] for each in expected]
    assert ode.n_best(model, Spelling(), source_of(batch), return_scores=False, generation_config=given) == unscored


@pytest.mark.parametrize("decoder_vocab_size", [45, 75])
def test_generation_goes_by_the_size_of_the_targets_vocabulary(decoder_vocab_size, batch):
    """That of the sources is 61, which transformers reads."""
    model = build(share_encoder_decoder_embeddings=False, decoder_vocab_size=decoder_vocab_size)
    model.lm_head.weight = torch.nn.Parameter(torch.randn(decoder_vocab_size, 32))
    source = source_of(batch)
    options = {"num_beams": 3, "return_dict_in_generate": True, "output_scores": True, "length_penalty": 1.0}
    output = model.generate(**source, **options, eos_token_id=None)
    scores = model.compute_transition_scores(output.sequences, output.scores, output.beam_indices)
    assert_close(scores.mean(1), output.sequences_scores)
    assert model.generate(**source, watermarking_config=transformers.WatermarkingConfig()).max() < decoder_vocab_size
    source = {name: tensor[:1] for name, tensor in source.items()}
    greedy = model.generate(**source)
    assert torch.equal(model.generate(**source, prompt_lookup_num_tokens=3), greedy)
    assert torch.equal(model.generate(**source, assistant_model=copy.deepcopy(model)), greedy)
