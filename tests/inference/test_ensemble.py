# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Ensembles: against their one member, and against searches in plain Python over averaged probabilities."""

import numpy as np
import pytest
import torch
from transformers import M2M100Config, M2M100ForConditionalGeneration

import modeling_ode_transformer as ode
from modeling_ode_transformer.generation_ode_transformer import CACHE_NAME
from modeling_ode_transformer.inference.cpu import optimize_for_cpu

from ..conftest import TINY, assert_close, build, randomize, tiny_config


EOS = 2
SEARCHES = {
    "greedy": {},
    "beam": {"num_beams": 4, "num_return_sequences": 4, "length_penalty": 0.6, "early_stopping": True},
    "sampling": {"do_sample": True, "num_return_sequences": 3, "temperature": 0.8, "top_k": 20},
    "beam sampling": {"do_sample": True, "num_beams": 3},
}


def sharpen(model, seed):
    """A distribution without near ties."""
    model = randomize(model, seed)
    generator = torch.Generator().manual_seed(seed)
    weight = 4 * torch.randn(model.lm_head.weight.shape, generator=generator) / 32**0.5
    model.lm_head.weight = torch.nn.Parameter(weight)
    model.generation_config.update(max_length=None, max_new_tokens=12)
    return model


def ode_transformer(seed=0, **fields):
    torch.manual_seed(seed)
    fields = {"encoder_solver": "rk2", "decoder_solver": "rk2", **fields}
    return sharpen(ode.OdeTransformerForConditionalGeneration(tiny_config(**fields)), seed)


def m2m100(seed=0, **fields):
    torch.manual_seed(seed)
    fields = {**TINY, "pad_token_id": 1, "eos_token_id": EOS, "decoder_start_token_id": EOS, **fields}
    return sharpen(M2M100ForConditionalGeneration(M2M100Config(**fields)), seed)


def test_members_may_be_packed(source):
    """Before or after the ensemble is made; packed ones find what they found before."""
    for kind in ("packed", "int8"):
        members = [ode_transformer(seed) for seed in (0, 1)]
        before = ode.EnsembleForConditionalGeneration(members)
        expected = before.generate(**source, num_beams=3)
        optimize_for_cpu(members[1], kind)
        after = ode.EnsembleForConditionalGeneration(members)
        found = after.generate(**source, num_beams=3)
        assert torch.equal(found, before.generate(**source, num_beams=3))
        assert torch.equal(found, expected) or kind == "int8"


@pytest.fixture
def source(batch):
    return {name: batch[name] for name in ("input_ids", "attention_mask")}


def mean_log_probabilities(models, source, prefix: list[int]) -> np.ndarray:
    """Of the next token after a prefix of one sequence, without padding and without a cache: (vocabulary,)."""
    decoder_input_ids = torch.tensor([prefix])
    with torch.no_grad():
        outputs = [model(**source, decoder_input_ids=decoder_input_ids, use_cache=False) for model in models]
    logits = np.stack([output.logits[0, -1].double().numpy() for output in outputs])
    exponentials = np.exp(logits - logits.max(1, keepdims=True))
    return np.log((exponentials / exponentials.sum(1, keepdims=True)).mean(0))


def plain_beam_search(models, source, beams, limit, length_penalty):
    """The finished hypotheses of one source, best first, as (tokens with their end, score). Of the 2 * beams best
    continuations, those that end are finished if they are among the `beams` best; the others go on. After `limit`
    tokens only the end follows; it ends with `beams` finished hypotheses."""
    running, finished = [([EOS], 0.0)], []
    while len(finished) < beams:
        candidates = []
        for prefix, total in running:
            log_probabilities = mean_log_probabilities(models, source, prefix)
            allowed = range(len(log_probabilities)) if len(prefix) - 1 < limit else [EOS]
            candidates += [(prefix + [token], total + log_probabilities[token]) for token in allowed]
        candidates = sorted(candidates, key=lambda candidate: -candidate[1])[: 2 * beams]
        for tokens, total in candidates[:beams]:
            if tokens[-1] == EOS:
                finished.append((tokens, total / (len(tokens) - 1) ** length_penalty))
        running = [candidate for candidate in candidates if candidate[0][-1] != EOS][:beams]
    return sorted(finished, key=lambda hypothesis: -hypothesis[1])[:beams]


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("build", [ode_transformer, m2m100])
def test_an_ensemble_of_a_model_with_itself_is_the_model(build, search, source):
    model = build()
    options = {**SEARCHES[search], "return_dict_in_generate": True, "output_scores": True}
    outputs = []
    for each in (model, ode.EnsembleForConditionalGeneration([model, model])):
        torch.manual_seed(3)
        outputs.append(each.generate(**source, **options))
    assert torch.equal(outputs[0].sequences, outputs[1].sequences)
    if search == "beam":
        assert torch.equal(outputs[0].beam_indices, outputs[1].beam_indices)
        assert_close(outputs[1].sequences_scores, outputs[0].sequences_scores)


@pytest.mark.parametrize("length_penalty", [0.6, 1.0])
def test_beam_search_of_two_architectures_is_a_plain_one_over_mean_probabilities(length_penalty, source):
    models = [ode_transformer(0), m2m100(1)]
    with torch.no_grad():
        for model in models:
            model.lm_head.weight[EOS] *= 3  # hypotheses end by themselves, too
    ensemble = ode.EnsembleForConditionalGeneration(models)
    options = {"num_beams": 3, "num_return_sequences": 3, "length_penalty": length_penalty, "early_stopping": True}
    options |= {"max_len_b": 8, "max_new_tokens": None, "return_dict_in_generate": True, "output_scores": True}
    outputs = ensemble.generate(**source, **options)
    lengths = set()
    for i, (ids, mask) in enumerate(zip(source["input_ids"], source["attention_mask"])):
        alone = {"input_ids": ids[mask == 1][None]}
        expected = plain_beam_search(models, alone, 3, 8, length_penalty)
        rows = slice(3 * i, 3 * i + 3)
        for row, (tokens, _) in zip(outputs.sequences[rows].tolist(), expected, strict=True):
            assert row[: len(tokens)] == tokens and tokens[-1] == EOS
        assert_close(outputs.sequences_scores[rows], torch.tensor([score for _, score in expected]).float(), scale=10)
        lengths |= {len(tokens) for tokens, _ in expected}
    assert min(lengths) < 5 and max(lengths) == 10  # some hypotheses end by themselves, others at the limit


def test_logits_are_the_logarithms_of_mean_probabilities(batch):
    models = [ode_transformer(0), m2m100(1).to(torch.bfloat16)]
    logits = ode.EnsembleForConditionalGeneration(models)(**batch).logits
    assert logits.dtype == torch.float32
    expected = sum(model(**batch).logits.double().softmax(-1) for model in models) / 2
    assert_close(logits.double().exp().float(), expected.float())


@pytest.mark.parametrize("search", ["greedy", "beam"])
@pytest.mark.parametrize("options", [{"use_cache": False}, {"cache_implementation": "static"}])
def test_caches_change_nothing(search, options, source):
    ensemble = ode.EnsembleForConditionalGeneration([ode_transformer(0), m2m100(1)])
    expected = ensemble.generate(**source, **SEARCHES[search])
    assert torch.equal(ensemble.generate(**source, **SEARCHES[search], **options), expected)


def test_a_cache_continues_an_ensemble_by_both_names(batch):
    ensemble = ode.EnsembleForConditionalGeneration([ode_transformer(0), m2m100(1)])
    expected = ensemble(**batch).logits[:, 4:]
    prompt, rest = batch["decoder_input_ids"].split([4, 2], dim=1)
    for name in ("cache", "past_key_values"):
        outputs = ensemble(**batch | {"decoder_input_ids": prompt}, use_cache=True)
        later = batch | {"decoder_input_ids": rest, name: outputs[CACHE_NAME]}
        assert_close(ensemble(**later).logits, expected, scale=10)


def test_the_member_with_the_fewest_positions_limits_an_ensemble():
    members = [ode_transformer(position_embedding_type="learned", max_position_embeddings=size) for size in (40, 30)]
    assert ode.EnsembleForConditionalGeneration(members).config.max_position_embeddings == 30


def test_the_ensemble_goes_by_the_first_generation_configuration():
    models = [ode_transformer(0), m2m100(1)]
    models[0].generation_config.update(num_beams=3, length_penalty=0.6)
    ensemble = ode.EnsembleForConditionalGeneration(models)
    assert (ensemble.generation_config.num_beams, ensemble.generation_config.length_penalty) == (3, 0.6)
    ensemble.generation_config.num_beams = 5
    assert models[0].generation_config.num_beams == 3


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"vocab_size": 62}, r"model 2 \(M2M.*\) cannot join model 1 \(Ode.*\).* vocabulary size is 62, not 61"),
        ({"eos_token_id": 3}, "its eos_token_id is 3, not 2"),
        ({"decoder_start_token_id": 0}, "its decoder_start_token_id is 0, not 2"),
    ],
)
def test_members_that_do_not_fit_are_refused_by_name(fields, message):
    with pytest.raises(ValueError, match=message):
        ode.EnsembleForConditionalGeneration([ode_transformer(), m2m100(**fields)])


def test_another_target_vocabulary_is_refused():
    separate = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 50}
    ensemble = ode.EnsembleForConditionalGeneration([ode_transformer(0, **separate), ode_transformer(1, **separate)])
    assert ensemble.generate(torch.tensor([[5, 6, 2]]), num_beams=2).max() < 50
    with pytest.raises(ValueError, match="its target vocabulary size is 61, not 50"):
        ode.EnsembleForConditionalGeneration([ode_transformer(0, **separate), ode_transformer()])


def test_what_an_ensemble_cannot_do_is_refused(source, tmp_path):
    with pytest.raises(ValueError, match="needs at least one model"):
        ode.EnsembleForConditionalGeneration([])
    language_model = build(ode.OdeTransformerForCausalLM, decoder_solver="rk2")
    with pytest.raises(ValueError, match=r"model 2 \(OdeTransformerForCausalLM\) is not an encoder-decoder"):
        ode.EnsembleForConditionalGeneration([ode_transformer(), language_model])
    ensemble = ode.EnsembleForConditionalGeneration([ode_transformer()])
    with pytest.raises(TypeError, match="unexpected keyword argument 'output_attentions'"):
        ensemble.generate(**source, return_dict_in_generate=True, output_attentions=True)
    with pytest.raises(ValueError, match=r"not used by the model: .'num_beam'"):
        ensemble.generate(**source, num_beam=2)
    with pytest.raises(NotImplementedError, match="save each member in its own folder"):
        ensemble.save_pretrained(tmp_path)
