# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Whatever can be combined: models against themselves computed in another way."""

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, create_mask
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from modeling_ode_transformer import (
    OdeTransformerForCausalLM,
    OdeTransformerForConditionalGeneration,
    OdeTransformerRecurrenceForConditionalGeneration,
)
from modeling_ode_transformer.layers_ode_transformer import eager_attention_forward

from ..conftest import assert_close, build, tiny_config


RECURRENCE = {"model_class": OdeTransformerRecurrenceForConditionalGeneration, "recurrence_encoder": "birnn"}


@pytest.mark.parametrize("form", [{"encoder_solver": "leapfrog"}, {"encoder_solver": "pcformer"}])
def test_reentrant_checkpointing_is_refused_where_blocks_share_states(form):
    with pytest.raises(ValueError, match="use_reentrant=False"):
        build(**form).activation_checkpointing_enable({"use_reentrant": True})
    build().activation_checkpointing_enable({"use_reentrant": True})


def test_attentions_of_a_block_are_those_of_its_first_stage(batch):
    """Which in the first block is that of Euler's step."""
    outputs = []
    for solver in ("euler", "rk2"):
        fields = {"encoder_solver": "euler", "decoder_solver": solver, "coefficients": "fixed"}
        outputs.append(build(**fields, attn_implementation="eager")(**batch, output_attentions=True))
    for name in ("decoder_attentions", "cross_attentions"):
        (expected, later), (actual, other) = (output[name] for output in outputs)
        assert_close(actual, expected)
        assert (later - other).abs().max() > 1e-3


@pytest.mark.parametrize("form", [{"decoder_solver": "rk4"}, RECURRENCE], ids=str)
def test_float16_is_close_and_finite(form, batch):
    """bfloat16: in test_random_configurations.py."""
    model = build(**form)
    expected = model(**batch).logits
    actual = model.half()(**batch).logits
    assert actual.dtype == torch.float16
    assert_close(actual, expected.half(), scale=3)


def test_large_half_precision_states_are_clamped(batch):
    model = build(layer_history="none", stage_values="output", encoder_layers=12).half()
    model.model.shared.weight.data *= 3000
    assert torch.isfinite(model.model.encoder(batch["input_ids"]).last_hidden_state).all()


def test_inner_states_of_a_step_are_clamped_with_room_for_increments():
    """Near the largest number of half precision, 65504, each sublayer adds about 400."""
    fields = {"encoder_solver": "rk2", "coefficients": "ones", "layer_history": "none"}
    encoder = build(**fields).half().model.encoder
    with torch.no_grad():
        for layer in encoder.layers:
            layer.self_attn.out_proj.bias += 400
            layer.fc2.bias += 400
    outputs = encoder(inputs_embeds=torch.full((1, 5, 32), 64000.0).half(), output_hidden_states=True)
    assert all(state.isfinite().all() for state in outputs.hidden_states)
    assert outputs.hidden_states[-2].max() > 64000


def test_flex_attention_adds_the_relative_positions(batch):
    encoder = build(d_model=64, encoder_attention_heads=2, decoder_attention_heads=2).model.encoder
    arguments = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    real = batch["attention_mask"].bool()
    expected = encoder(**arguments).last_hidden_state[real]
    encoder.set_attn_implementation("flex_attention")
    with torch.no_grad():
        assert_close(encoder(**arguments).last_hidden_state[real], expected)


def mask_of_the_first_head(module, query, key, value, attention_mask, position_bias=None, **kwargs):
    """What transformers' function for flex attention does with a tensor: it adds the rows of one head to all scores.
    (PyTorch's own kernel does not run with such a mask on CPUs.)"""
    assert attention_mask.is_floating_point()
    mask = attention_mask[:, :1]
    return eager_attention_forward(module, query, key, value, mask, position_bias=position_bias, **kwargs)


@pytest.mark.parametrize("max_relative_position", [0, 4])
def test_masks_of_booleans_are_those_of_numbers_with_every_attention(max_relative_position, batch, monkeypatch):
    """Masks of the caller's own: of a decoder, whose later tokens do not see the first; and of words of sources."""
    sizes = {"d_model": 64, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    sizes["max_relative_position"] = max_relative_position
    model = build(OdeTransformerForCausalLM, **sizes).eval()
    pair = build(**sizes).eval()
    ids = torch.arange(4, 12).view(1, 8)
    visible = torch.ones(8, 8, dtype=torch.bool).tril()
    visible[4:, 0] = False
    numbers = torch.zeros(8, 8).masked_fill(~visible, torch.finfo(torch.float32).min)[None, None]
    words = {**batch, "attention_mask": batch["attention_mask"][:, None, None].bool()}
    with torch.no_grad():
        expected = model(ids, attention_mask=numbers).logits
        assert_close(expected[:, :4], model(ids[:, :4]).logits)
        assert (expected - model(ids).logits)[:, 4:].abs().max() > 1e-2
        of_words = pair(**batch).logits
        monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "flex_attention", mask_of_the_first_head)
        for implementation in ("sdpa", "eager", "flex_attention"):
            model.set_attn_implementation(implementation)
            assert_close(model(ids, attention_mask=visible[None, None]).logits, expected)
            assert_close(model(ids, attention_mask=numbers).logits, expected)
        for implementation in ("sdpa", "eager"):  # flex attention needs a row for each query
            pair.set_attn_implementation(implementation)
            assert_close(pair(**words).logits, of_words)


def test_flex_attention_takes_a_ready_mask(monkeypatch):
    """With plain products in the place of the kernel, which would be compiled."""

    def kernel(module, query, key, value, attention_mask, **kwargs):
        visible = create_mask(attention_mask.mask_mod, 1, None, query.shape[2], key.shape[2], device="cpu")
        mask = torch.zeros(visible.shape).masked_fill(~visible, -1e9)
        return eager_attention_forward(module, query, key, value, mask, **kwargs)

    model = build(OdeTransformerForCausalLM, decoder_solver="rk2").eval()
    ids = torch.arange(4, 10).view(1, 6)
    mask = create_block_mask(lambda batch, head, query, key: query >= key, 1, None, 6, 6, device="cpu")
    expected = model(ids).logits
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "flex_attention", kernel)
    model.set_attn_implementation("flex_attention")
    for options in ({}, {"position_ids": torch.arange(6)[None]}, {"use_cache": False}):
        assert_close(model(ids, attention_mask=mask, **options).logits, expected)


@pytest.mark.parametrize("max_relative_position", [0, 4])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_every_token_of_a_decoder_sees_all_if_it_is_not_causal(implementation, max_relative_position):
    """By the argument of a pass or by the configuration: as with a mask that hides nothing."""
    model = build(OdeTransformerForCausalLM, decoder_solver="rk2", max_relative_position=max_relative_position).eval()
    model.set_attn_implementation(implementation)
    ids = torch.arange(4, 12).view(2, 4)
    expected = model(ids, attention_mask=torch.zeros(1, 1, 4, 4)).logits
    assert (expected - model(ids).logits).abs().max() > 1e-2
    for use_cache in (False, True):
        assert_close(model(ids, is_causal=False, use_cache=use_cache).logits, expected)
    model.config.is_causal = False
    assert_close(model(ids).logits, expected)


def separating_kernel(module, query, key, value, attention_mask, position_ids=None, **kwargs):
    """In the place of flash attention: it has no mask, and sequences packed into one row begin where positions do."""
    assert attention_mask is None
    if position_ids is not None:
        assert not module.is_cross_attention and len(position_ids) == len(query) == 1
        numbers = (position_ids.diff(prepend=position_ids[:, :1] - 1) != 1).cumsum(-1)
        attention_mask = (numbers[:, :, None] == numbers[:, None])[:, None].tril()
    return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("implementation, max_relative_position", [("sdpa", 0), ("sdpa", 4), ("flash_attention_2", 0)])
def test_packed_sequences_are_as_alone(implementation, max_relative_position, is_training, monkeypatch):
    """They are told apart by their positions, with and without a cache."""
    fields = dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.0)
    fields |= {"decoder_solver": "rk2", "max_relative_position": max_relative_position}
    model = build(OdeTransformerForCausalLM, **fields).train(is_training)
    rows = torch.arange(4, 9)[None], torch.arange(9, 12)[None]
    expected = torch.cat([model(row).logits for row in rows], 1)
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "flash_attention_2", separating_kernel)
    model.config._attn_implementation_internal = implementation
    positions = torch.cat([torch.arange(row.shape[1]) for row in rows])[None]
    assert_close(model(torch.cat(rows, 1), position_ids=positions).logits, expected)


def test_positions_of_targets_do_not_reach_the_cross_attention(monkeypatch):
    model = build(max_relative_position=0)
    ids = torch.arange(4, 9)[None]
    expected = model(ids, decoder_input_ids=ids).logits
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "flash_attention_2", separating_kernel)
    model.config._attn_implementation_internal = "flash_attention_2"
    states = model.model.encoder(ids).last_hidden_state
    outputs = model.model.decoder(ids, encoder_hidden_states=states, position_ids=torch.arange(5)[None])
    assert_close(model.lm_head(outputs.last_hidden_state), expected)


def test_flash_attention_is_refused_where_it_would_drop_the_relative_positions():
    model = build()
    for name in ("flash_attention_2", "flash_attention_3", "kernels-community/flash-attn"):
        with pytest.raises(ValueError, match=rf"{name}.*max_relative_position=8.*choose 'sdpa'"):
            model.set_attn_implementation(name)
    with pytest.raises(ValueError, match=r"max_relative_position=8"):
        OdeTransformerForConditionalGeneration._from_config(tiny_config(), attn_implementation="flash_attention_2")
    with pytest.raises(ImportError, match="FlashAttention2"):
        build(max_relative_position=0).set_attn_implementation("flash_attention_2")


@pytest.mark.parametrize("form", [{}, RECURRENCE], ids=["core", "recurrence"])
def test_cross_attention_under_flash_attention_knows_the_padding_of_sources(form, batch, monkeypatch):
    """Flash kernels take a mask (sources, keys) as one of the queries, where these are of another number. In their
    place: a function that has only self-attentions, in the encoder with such a mask, in the decoder without."""

    def kernel(module, query, key, value, attention_mask, **kwargs):
        assert not module.is_cross_attention or attention_mask is None
        if attention_mask is not None:
            attention_mask = attention_mask[:, None, None].bool()
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)

    model = build(max_relative_position=0, eos_token_id=None, **form)
    options = {"num_beams": 3, "max_new_tokens": 5, "do_sample": False}
    source = {name: batch[name] for name in ("input_ids", "attention_mask")}
    expected = model(**batch).logits, model.generate(**source, **options)
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "flash_attention_2", kernel)
    model.config._attn_implementation_internal = "flash_attention_2"
    assert_close(model(**batch).logits, expected[0])
    assert torch.equal(model.generate(**source, **options), expected[1])


def test_the_forward_pass_compiles_into_one_graph_and_exports(batch):
    """In test_ecosystem.py with a Runge-Kutta scheme."""
    model = build(decoder_solver="dlcl", encoder_solver="pcformer", normalize_stages=True)
    with torch.no_grad():
        expected = model(**batch).logits
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        exported = torch.export.export(model, (), {**batch, "use_cache": False}, strict=False).module()
        for each in (compiled, exported):
            assert_close(each(**batch, use_cache=False).logits, expected)
