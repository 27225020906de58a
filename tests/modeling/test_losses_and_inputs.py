# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Losses, labels, masks and other inputs of the models."""

import json

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM, Trainer, TrainingArguments

from modeling_ode_transformer import (
    OdeTransformerDecoderConfig,
    OdeTransformerForCausalLM,
    OdeTransformerForConditionalGeneration,
    OdeTransformerModel,
)

from ..conftest import assert_close, build, tiny_config


def test_the_loss_is_the_cross_entropy_of_unshifted_labels(batch):
    model = build()
    labels = torch.randint(4, 61, (3, 6))
    labels[1, 4:] = -100
    shifted = torch.cat([torch.full((3, 1), 2), labels[:, :-1].masked_fill(labels[:, :-1] == -100, 1)], 1)
    arguments = {**batch, "decoder_input_ids": shifted}
    expected = nn.functional.cross_entropy(model(**arguments).logits.flatten(0, 1), labels.flatten())
    batch.pop("decoder_input_ids")
    assert model(**batch, labels=labels).loss.item() == pytest.approx(expected.item(), rel=1e-6)
    loss = model(**batch, labels=labels, num_items_in_batch=7).loss
    assert loss.item() == pytest.approx(expected.item() * 16 / 7, rel=1e-5)


def test_shift_labels_take_the_place_of_labels(batch):
    model = build()
    labels = torch.randint(4, 61, (3, 6))
    expected = nn.functional.cross_entropy(model(**batch).logits.flatten(0, 1), labels.flatten())
    loss = model(**batch, labels=batch["decoder_input_ids"], shift_labels=labels).loss
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)


def test_a_loss_of_the_callers_own_is_used(batch):
    model = build()
    model.loss_function = lambda logits, labels, vocab_size, shift_labels, **kwargs: logits.square().mean()
    outputs = model(**batch, labels=batch["decoder_input_ids"])
    assert outputs.loss.item() == pytest.approx(outputs.logits.square().mean().item())
    assert build()(**batch, labels=batch["decoder_input_ids"]).loss != outputs.loss


def test_fields_that_are_set_after_construction_are_checked(tmp_path):
    build().save_pretrained(tmp_path)
    for fields, message in (
        ({"stage_values": "outputs"}, "stage_values='outputs'"),
        ({"dropout": 1.5}, "dropout"),
        ({"layer_history": "Dense"}, "layer_history='Dense'"),
    ):
        with pytest.raises(Exception, match=message):
            OdeTransformerForConditionalGeneration.from_pretrained(tmp_path, **fields)


def test_pairs_and_language_models_are_not_taken_for_each_other(tmp_path):
    """Neither would take the other's weights; their configurations name no classes that cannot open them."""
    for model_class in (OdeTransformerForConditionalGeneration, OdeTransformerModel):
        build(model_class).save_pretrained(tmp_path / "pair")
        with pytest.raises(ValueError, match=r"Unrecognized configuration class .*OdeTransformerConfig"):
            AutoModelForCausalLM.from_pretrained(tmp_path / "pair")
        with pytest.raises(Exception, match=r"is_encoder_decoder=True: OdeTransformerDecoderConfig is not for such"):
            OdeTransformerForCausalLM.from_pretrained(tmp_path / "pair")
    assert {"AutoModel", "AutoModelForSeq2SeqLM"} <= set(AutoConfig.from_pretrained(tmp_path / "pair").auto_map)
    model = build(OdeTransformerForCausalLM)
    model.save_pretrained(tmp_path / "alone")
    for opened_by in (AutoModel, AutoModelForSeq2SeqLM):
        with pytest.raises(ValueError, match=r"Unrecognized configuration class .*OdeTransformerDecoderConfig"):
            opened_by.from_pretrained(tmp_path / "alone")
    saved = json.loads((tmp_path / "alone" / "config.json").read_text())
    assert saved["model_type"] == "ode_transformer_decoder" and model.num_function_evaluations() == 2
    assert set(saved["auto_map"]) == {"AutoConfig", "AutoModelForCausalLM"}
    assert not [name for name in saved if name.startswith("encoder_")]
    for make, fields, message in (
        (tiny_config, {"is_encoder_decoder": False}, r"is_encoder_decoder=False: .* use OdeTransformerDecoderConfig"),
        (OdeTransformerDecoderConfig, {"is_encoder_decoder": True}, "is_encoder_decoder=True: .* use OdeTransformerC"),
        (OdeTransformerDecoderConfig, {"encoder_layers": 3}, "encoder_layers=3 .* did you mean decoder_layers"),
    ):
        with pytest.raises(Exception, match=message):
            make(**fields)


def test_continuous_batching_is_refused():
    with pytest.raises(NotImplementedError, match="call `generate`"):
        build(OdeTransformerForCausalLM).generate_batch(inputs=[[5, 6]])


def test_a_mask_of_the_callers_own_places_tokens_by_their_positions():
    """Two continuations of one prefix, packed into one row with a 4D mask, are those of two rows."""
    model = build(OdeTransformerForCausalLM, decoder_solver="rk2").double()
    prefix, ends = torch.tensor([[5, 9, 11]]), torch.tensor([[7, 8], [12, 13]])
    expected = model(torch.cat([prefix.expand(2, -1), ends], 1)).logits[:, 3:]
    mask = torch.tril(torch.ones(7, 7, dtype=torch.bool))
    mask[5:, 3:5] = False
    packed = torch.cat([prefix, ends.view(1, 4)], 1)
    positions = torch.tensor([[0, 1, 2, 3, 4, 3, 4]])
    actual = model(packed, attention_mask=mask[None, None], position_ids=positions).logits[:, 3:]
    assert_close(actual.view(2, 2, -1), expected)
    # The same where the prefix is in a cache, behind padding too.
    for padding in (0, 2):
        length = 3 + padding
        padded = torch.cat([torch.ones(1, padding, dtype=torch.long), prefix], 1)
        seen = torch.ones(1, 4, length, dtype=torch.bool)
        seen[:, :, :padding] = False
        cache = model(padded, attention_mask=seen[:, 0].long(), use_cache=True).past_key_values
        own = torch.cat([seen, mask[None, 3:, 3:]], 2)[:, None]
        options = {"position_ids": positions[:, 3:], "past_key_values": cache}
        actual = model(ends.view(1, 4), attention_mask=own, **options).logits
        assert_close(actual.view(2, 2, -1), expected)


@pytest.mark.parametrize("embedding", ["sinusoidal", "learned"])
@pytest.mark.parametrize("old, new", [(1, 0), (1, 7), (None, 2)])
def test_positions_stay_where_the_padding_token_changes(embedding, old, new, tmp_path):
    """As in transformers' Trainer, which takes the tokenizer's, and where users of language models set it."""
    ids = torch.randint(8, 61, (2, 6))
    for model_class in (OdeTransformerForCausalLM, OdeTransformerForConditionalGeneration):
        model = build(model_class, pad_token_id=old, position_embedding_type=embedding)
        inputs = {"input_ids": ids} | ({"decoder_input_ids": ids} if model.config.is_encoder_decoder else {})
        expected = model(**inputs).logits
        model.config.pad_token_id = new
        assert torch.equal(model(**inputs).logits, expected)
        model.save_pretrained(tmp_path)
        assert torch.equal(model_class.from_pretrained(tmp_path)(**inputs).logits, expected)


def test_the_language_model_predicts_the_next_token():
    model = build(OdeTransformerForCausalLM, decoder_solver="rk2")
    ids = torch.randint(4, 61, (2, 8))
    outputs = model(ids, labels=ids)
    expected = nn.functional.cross_entropy(outputs.logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    assert outputs.loss.item() == pytest.approx(expected.item(), rel=1e-6)
    assert model.model.layers[0].encoder_attn is None
    changed = torch.cat([ids[:, :5], torch.randint(4, 61, (2, 3))], 1)
    assert_close(model(changed).logits[:, :5], outputs.logits[:, :5])


def test_trainers_label_smoothing_is_of_the_next_token(tmp_path):
    """transformers' Trainer shifts labels of the classes that it knows for language models."""
    model = build(OdeTransformerForCausalLM, decoder_solver="rk2").eval()
    ids = torch.randint(4, 61, (3, 8))
    logits = model(ids).logits[:, :-1].flatten(0, 1)
    for smoothing in (0.0, 0.1):
        arguments = TrainingArguments(tmp_path, label_smoothing_factor=smoothing, use_cpu=True, report_to="none")
        actual = Trainer(model, arguments).compute_loss(model, {"input_ids": ids, "labels": ids.clone()})
        expected = nn.functional.cross_entropy(logits, ids[:, 1:].flatten(), label_smoothing=smoothing)
        assert actual.item() == pytest.approx(expected.item(), rel=1e-6)


def test_encoder_outputs_may_be_any_that_have_the_states(batch):
    model = build().eval()
    outputs = model.get_encoder()(batch["input_ids"], batch["attention_mask"])
    arguments = {name: batch[name] for name in ("attention_mask", "decoder_input_ids")}
    expected = model(**arguments, encoder_outputs=outputs).logits
    more = {**outputs, "pooler_output": outputs.last_hidden_state[:, 0]}
    assert torch.equal(model(**arguments, encoder_outputs=more).logits, expected)


@pytest.mark.parametrize("length", [2, 5])
def test_a_mask_of_a_source_has_its_length(length):
    with pytest.raises(ValueError, match=rf"attention_mask has the shape \(1, {length}\), but a source has 3 tokens"):
        build()(torch.full((1, 3), 7), attention_mask=torch.ones(1, length), labels=torch.full((1, 3), 7))


def test_positions_that_are_not_learned_are_refused_however_short_the_input():
    model = build(OdeTransformerForCausalLM, position_embedding_type="learned", max_position_embeddings=8)
    ids = torch.full((1, 3), 7)
    assert model(ids, position_ids=torch.tensor([[5, 6, 7]])).logits.isfinite().all()
    for counting in ("mask", "absolute"):
        model.model.config.position_counting = counting
        with pytest.raises(ValueError, match=r"position_ids up to 9 .* max_position_embeddings=8"):
            model(ids, position_ids=torch.tensor([[7, 8, 9]]))


def test_labels_without_a_start_token_are_refused():
    model = build()
    model.config.decoder_start_token_id = None
    with pytest.raises(ValueError, match=r"config\.decoder_start_token_id=None"):
        model(torch.ones(1, 2, dtype=torch.long), labels=torch.ones(1, 2, dtype=torch.long))
