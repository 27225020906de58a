# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Residual models as ODE Transformers and back: against the models of transformers themselves."""

import logging

import pytest
import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM, M2M100ForConditionalGeneration
from transformers.models.m2m_100.modeling_m2m_100 import shift_tokens_right
from transformers.models.mbart.modeling_mbart import shift_tokens_right as wrap_tokens_right
from transformers.models.pegasus.modeling_pegasus import PegasusSinusoidalPositionalEmbedding

import modeling_ode_transformer as ode
from modeling_ode_transformer.conversion.residual import from_residual, to_residual
from modeling_ode_transformer.layers_ode_transformer import OdeTransformerVaswaniPositionalEmbedding

from ..conftest import TINY, assert_close, build, randomize, tiny_config


FAMILIES = ("m2m_100", "mbart", "pegasus", "blenderbot")
EVERY_FAMILY = pytest.mark.parametrize("family", FAMILIES)
PLAIN = {"layer_history": "none", "max_relative_position": 0, "encoder_solver": "euler"}
SOURCE, TARGET = 9, 6


def original(family, dtype=torch.float32, **fields):
    """A tiny model of a family with random parameters and final bias; the sinusoids of Pegasus stay."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **{**TINY, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0, **fields})
    model = AutoModelForSeq2SeqLM.from_config(config)
    positions = {name: p.clone() for name, p in model.named_parameters() if not p.requires_grad}
    randomize(model)
    model.load_state_dict(positions, strict=False)
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.normal_()
    # Pegasus has no such id in its configuration, and mBART leaves it to its user.
    model.generation_config.decoder_start_token_id = model.generation_config.decoder_start_token_id or 2
    model.generation_config.update(do_sample=False, max_length=None, max_new_tokens=10)
    return model.to(dtype)


def padding_masks():
    lengths, places = torch.tensor([[SOURCE], [7], [4]]), torch.arange(SOURCE)
    return {"right": places < lengths, "left": places >= SOURCE - lengths}


def batches(model):
    """Inputs of all kinds. Ids are any, padding too, wherever there is no mask."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 61, (3, SOURCE), generator=generator)
    embeddings = torch.randn(3, SOURCE, 32, generator=generator).to(model.dtype)
    decoder = {"decoder_input_ids": torch.randint(0, 61, (3, TARGET), generator=generator)}
    yield {"input_ids": ids, **decoder}
    yield {"input_ids": ids, "attention_mask": torch.ones_like(ids), **decoder}
    yield {"inputs_embeds": embeddings, **decoder}
    for mask in padding_masks().values():
        padded = ids.masked_fill(~mask, model.config.pad_token_id)
        yield {"input_ids": padded, **decoder}
        for inputs in ({"input_ids": padded}, {"inputs_embeds": embeddings}):
            yield {**inputs, "attention_mask": mask.long(), **decoder}


def capture_warnings(monkeypatch):
    messages = []
    monkeypatch.setattr(logging.getLogger("modeling_ode_transformer.conversion.residual"), "warning", messages.append)
    return messages


@EVERY_FAMILY
@pytest.mark.parametrize(
    "fields, dtype",
    [
        ({"encoder_solver": "rk4", "decoder_solver": "rk2", "coefficient_sharing": "layer"}, torch.float32),
        ({"encoder_solver": "euler"}, torch.float64),
        ({"decoder_solver": {"a": [[], [0.3]], "b": [0.1, 0.2]}, "vector_field": "sublayers"}, torch.float64),
        ({"coefficient_sharing": "channel", "encoder_solver": "polynet", "decoder_solver": "dlcl"}, torch.float32),
    ],
)
def test_logits_are_those_of_the_original(family, dtype, fields, monkeypatch):
    messages = capture_warnings(monkeypatch)
    reference = original(family, dtype)
    model = from_residual(reference, **fields)
    assert not model.training and model.dtype == dtype and not messages
    # The eager attention here has its softmax in float32.
    for implementation in ("eager", "sdpa") if dtype == torch.float32 else ("sdpa",):
        model.set_attn_implementation(implementation)
        reference.set_attn_implementation(implementation)
        for batch in batches(reference):
            actual, expected = model(**batch), reference(**batch)
            assert_close(actual.logits, expected.logits, scale=0.5)


@EVERY_FAMILY
def test_scaled_and_separate_embeddings_and_other_ids_are_kept(family):
    """Of the two flags, each family has the other default for one at least; without tying, three matrices differ."""
    ids = {"pad_token_id": 3, "bos_token_id": 4, "eos_token_id": 5, "decoder_start_token_id": 6}
    fields = {"tie_word_embeddings": False, "activation_function": "silu", **ids}
    reference = original(family, scale_embedding=not AutoConfig.for_model(family).scale_embedding, **fields)
    model = from_residual(reference)
    assert {field: getattr(model.config, field) for field in fields} == fields
    for batch in batches(reference):
        assert_close(model(**batch).logits, reference(**batch).logits)


def test_sinusoids_of_pegasus_are_those_of_its_table_at_all_positions():
    for dimension in (32, 33):
        table = PegasusSinusoidalPositionalEmbedding(1024, dimension)
        actual = OdeTransformerVaswaniPositionalEmbedding(dimension, None)(torch.arange(1024))
        assert_close(actual, table.create_weight(), scale=0.05)


def test_a_bias_of_zeros_is_left_out():
    reference = original("mbart")
    reference.final_logits_bias.zero_()
    model = from_residual(reference)
    assert model.lm_head.bias is None
    batch = next(batches(reference))
    assert_close(model(**batch).logits, reference(**batch).logits)


@pytest.mark.parametrize(
    "family, arguments",
    [
        *((family, {}) for family in FAMILIES),
        *(("m2m_100", {"forced_bos_token_id": 11}), ("mbart", {"use_cache": False}), ("pegasus", {"num_beams": 1})),
    ],
)
def test_beams_are_those_of_the_original(family, arguments):
    reference = original(family)
    with torch.no_grad():
        reference.lm_head.weight.mul_(3)
    model = from_residual(reference)
    assert model.generation_config.to_dict() == reference.generation_config.to_dict()
    for mask in padding_masks().values():
        ids = torch.randint(7, 61, (3, SOURCE), generator=torch.Generator().manual_seed(3))
        inputs = {"input_ids": ids.masked_fill(~mask, reference.config.pad_token_id), "attention_mask": mask.long()}
        inputs |= {"num_beams": 4, "num_return_sequences": 1, "return_dict_in_generate": True, "output_scores": True}
        actual, expected = (m.generate(**{**inputs, **arguments}) for m in (model, reference))
        assert actual.sequences.tolist() == expected.sequences.tolist()
        if inputs["num_beams"] == arguments.get("num_beams", 4):
            assert_close(actual.sequences_scores, expected.sequences_scores)


@EVERY_FAMILY
def test_training_starts_with_the_loss_and_the_gradients_of_the_original_and_reaches_the_second_stage(family):
    reference = original(family)
    model = from_residual(reference, decoder_solver="rk2")
    pad = reference.config.pad_token_id
    labels = torch.randint(7, 61, (3, TARGET), generator=torch.Generator().manual_seed(4))
    labels[1, 4:], labels[2, 2:] = -100, pad
    shifted = wrap_tokens_right(labels, pad) if family == "mbart" else None
    if shifted is None:
        shifted = shift_tokens_right(labels, pad, reference.config.decoder_start_token_id)
    assert model.prepare_decoder_input_ids_from_labels(labels).tolist() == shifted.tolist()

    ids = torch.randint(7, 61, (3, SOURCE), generator=torch.Generator().manual_seed(5))
    losses = [m(input_ids=ids, labels=labels).loss for m in (model, reference)]
    assert_close(*losses)
    for loss in losses:
        loss.backward()
    expected = {name: p.grad for name, p in reference.named_parameters() if p.grad is not None}
    for name, parameter in model.named_parameters():
        if "coefficients" in name:
            assert parameter.grad[1].abs() > 1e-4
        elif name.endswith("embed_positions.weight"):
            assert_close(parameter.grad, expected[name][-40:])
        elif name != "lm_head.bias":  # a buffer in the original
            assert_close(parameter.grad, expected[name])


def test_the_parameters_and_the_generation_configuration_are_copies():
    reference = original("m2m_100")
    model = from_residual(reference)
    models = (reference, model, to_residual(from_residual(reference, "euler")))
    before = [tensor.clone() for tensor in reference.state_dict().values()]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    assert all(torch.equal(a, b) for a, b in zip(before, reference.state_dict().values()))
    for number, each in enumerate(models, start=7):
        each.generation_config.num_beams = number
    assert [each.generation_config.num_beams for each in models] == [7, 8, 9]


def test_embeddings_and_their_bias_are_resized_together():
    reference = original("mbart")
    models = (from_residual(reference), reference)
    for model in models:
        model.resize_token_embeddings(66, mean_resizing=False)
    batch = next(batches(reference))
    actual, expected = (model(**batch).logits for model in models)
    assert actual.shape == expected.shape and models[0].lm_head.bias.shape == (66,)
    assert_close(actual[..., :61], expected[..., :61])


@pytest.mark.parametrize(
    "arguments, field",
    [
        ({"coefficients": "gate"}, "coefficients='gate'"),
        ({"steps_per_layer": 2, "step_size": 0.5}, "step_size=0.5"),
        ({"normalize_stages": True}, "normalize_stages=True"),
    ],
)
def test_another_function_is_reported(arguments, field, monkeypatch):
    messages = capture_warnings(monkeypatch)
    reference = original("m2m_100")
    model = from_residual(reference, **arguments)
    assert len(messages) == 1 and field in messages[0] and "train it before use" in messages[0]
    batch = next(batches(reference))
    logits = model(**batch).logits
    assert logits.isfinite().all() and (logits - reference(**batch).logits).abs().max() > 1e-3


@pytest.mark.parametrize("model_type", ["bart", "nllb-moe", "t5", "ode_transformer"])
def test_another_family_is_refused_before_its_weights_are_read(model_type, tmp_path):
    AutoConfig.for_model(model_type).save_pretrained(tmp_path)  # no weights
    with pytest.raises(ValueError, match=f"'{model_type}' cannot become an ODE Transformer: .*m2m_100, mbart"):
        from_residual(tmp_path)


@pytest.mark.parametrize(
    "fields, message",
    [({"solver": "rk2"}, "solver='rk2' is not a field"), ({"vector_field": "macaron"}, "lacks model.*macaron")],
)
def test_fields_that_cannot_be_chosen_are_refused_by_name(fields, message):
    with pytest.raises(ValueError, match=message):
        from_residual(original("m2m_100"), **fields)


def test_models_with_more_than_their_family_are_refused():
    reference = original("m2m_100")
    reference.model.encoder.layers[1].adapter = torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"what its family does not have, model\.encoder\.layers\.1\.adapter\.bias"):
        from_residual(reference)


@EVERY_FAMILY
def test_a_folder_is_converted_saved_and_opened_again(family, tmp_path):
    reference = original(family, torch.bfloat16, dropout=0.3)
    reference.save_pretrained(tmp_path / "original")
    model = from_residual(str(tmp_path / "original"), "rk2", "learned", attention_dropout=0.2)
    assert model.dtype == torch.bfloat16
    assert (model.config.dropout, model.config.attention_dropout) == (0.3, 0.2)
    model.save_pretrained(tmp_path / "converted")
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "converted")
    assert loaded.config.to_diff_dict() == model.config.to_diff_dict()
    assert loaded.generation_config.decoder_start_token_id == reference.generation_config.decoder_start_token_id
    for batch in batches(reference):
        torch.testing.assert_close(loaded(**batch).logits, model(**batch).logits, rtol=0, atol=0)
        assert_close(loaded(**batch).logits, reference(**batch).logits, scale=2)


@pytest.mark.parametrize("tie", [True, False])
def test_what_was_converted_becomes_the_original_again(tie):
    reference = original("m2m_100", tie_word_embeddings=tie)
    back = to_residual(from_residual(reference, "euler"))
    assert type(back) is type(reference) and not back.training
    assert back.generation_config.to_dict() == reference.generation_config.to_dict()
    fields = AutoConfig.for_model("m2m_100", **TINY).to_dict().keys()
    fields -= {"architectures", "dtype", "transformers_version"}
    assert {f: getattr(back.config, f) for f in fields} == {f: getattr(reference.config, f) for f in fields}
    for name, tensor in back.state_dict().items():
        # No part of the model reads `shared` where embeddings are separate.
        if tie or name != "model.shared.weight":
            torch.testing.assert_close(tensor, reference.state_dict()[name], rtol=0, atol=0)
    for batch in batches(reference):
        torch.testing.assert_close(back(**batch).logits, reference(**batch).logits, rtol=0, atol=0)


def test_an_euler_model_becomes_an_m2m100(batch, tmp_path):
    torch.manual_seed(0)
    model = randomize(ode.OdeTransformerForConditionalGeneration(tiny_config(**PLAIN, vector_field="ffn")))
    model.generation_config.update(num_beams=3, max_new_tokens=8, max_length=None)
    residual = to_residual(model)
    assert type(residual) is M2M100ForConditionalGeneration
    residual.save_pretrained(tmp_path)
    residual = M2M100ForConditionalGeneration.from_pretrained(tmp_path)
    assert_close(residual(**batch).logits, model(**batch).logits)
    source = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    assert residual.generate(**source).tolist() == model.generate(**source).tolist()
    with torch.no_grad():
        model.model.encoder.layers[0].fc1.weight.zero_()
    assert residual.model.encoder.layers[0].fc1.weight.any()


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"max_relative_position": 8}, "max_relative_position=8 would have to be 0"),
        ({"encoder_solver": "rk2"}, "encoder_solver='rk2' would have to be 'euler'"),
        ({"position_embedding_type": "learned"}, "position_embedding_type='learned' would have to be 'sinusoidal'"),
        ({"tie_word_embeddings": False}, "share_encoder_decoder_embeddings=True would have to be False"),
        ({"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 50}, "decoder_vocab_size=50 would have to"),
        ({"layer_history": "dense", "step_size": 0.5}, "layer_history='dense' would .*; step_size=0.5 would"),
        ({"encoder_solver": "dlcl"}, "encoder_solver='dlcl' would have to be 'euler'"),
    ],
)
def test_what_a_residual_model_cannot_express_is_refused_by_field_and_value(fields, message):
    model = ode.OdeTransformerForConditionalGeneration(tiny_config(**{**PLAIN, **fields}))
    with pytest.raises(ValueError, match=message):
        to_residual(model)


def test_a_model_with_a_second_encoder_cannot_be_written_as_a_residual_one():
    model = build(ode.OdeTransformerRecurrenceForConditionalGeneration)
    with pytest.raises(ValueError, match="'ode_transformer_recurrence' has parts"):
        to_residual(model)
