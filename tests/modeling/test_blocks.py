# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The blocks: against transformers' M2M100 and hand-written steps; initialization and dropout."""

import math

import pytest
import torch
from torch import nn
from transformers import M2M100Config, M2M100ForConditionalGeneration

import modeling_ode_transformer as ode
from modeling_ode_transformer.integration_ode_transformer import integrate_multistep

from ..conftest import MULTISTEPS, TINY, WITHOUT_DROPOUT, assert_close, build, randomize, tiny_config


PLAIN = {"layer_history": "none", "max_relative_position": 0}
RECURRENCE = ode.OdeTransformerRecurrenceForConditionalGeneration
FIGURE_4 = ("layer", "attention", "ffn", "sublayers")


def m2m100(dtype=torch.float64):
    """transformers' pre-norm model at the tiny size, with random weights."""
    names = {name: value for name, value in TINY.items() if name != "max_position_embeddings"}
    config = M2M100Config(**names, encoder_layerdrop=0.0, decoder_layerdrop=0.0)
    torch.manual_seed(0)
    return randomize(M2M100ForConditionalGeneration(config)).to(dtype)


def with_weights_of(other, **kwargs):
    model = ode.OdeTransformerForConditionalGeneration(tiny_config(**{**PLAIN, **kwargs})).to(other.dtype).eval()
    missing, unexpected = model.load_state_dict(other.state_dict(), strict=False)
    assert not unexpected and not [name for name in missing if "coefficients" not in name]
    return model


def check_encoder(model, reference, batch, step):
    """A model's encoder is that of M2M100 with `step(layer, y)` in place of its layers."""
    actual = model.model.encoder(batch["input_ids"]).last_hidden_state
    assert_close(actual, reference_encoder(reference, batch, step))


def reference_encoder(model, batch, step):
    """The encoder of M2M100 with `step(layer, y)` in place of its layers; the mask is that of no padding."""
    encoder = model.model.encoder
    y = encoder.embed_tokens(batch["input_ids"])
    y = y + encoder.embed_positions(batch["input_ids"])
    for layer in encoder.layers:
        y = step(layer, y)
    return encoder.layer_norm(y)


def f(layer):
    """The increment of a whole M2M100 layer."""
    return lambda z: layer(z, None) - z


def A(layer):
    return lambda z: layer.self_attn(layer.self_attn_layer_norm(z))[0]


def B(layer):
    return lambda z: layer.fc2(torch.relu(layer.fc1(layer.final_layer_norm(z))))


def rk2(F, y):
    return y + (F(y) + F(y + F(y))) / 2


def rk4(F, y):
    k1 = F(y)
    k2 = F(y + k1 / 2)
    k3 = F(y + k2 / 2)
    return y + (k1 + 2 * k2 + 2 * k3 + F(y + k3)) / 6


@pytest.mark.parametrize("solver, by_hand", [("rk2", rk2), ("rk4", rk4)])
@pytest.mark.parametrize("field", FIGURE_4)
def test_vector_fields_are_those_of_figure_4(solver, by_hand, field, full_batch):
    def step(layer, y):
        if field == "layer":
            return by_hand(f(layer), y)
        y = by_hand(A(layer), y) if field in ("attention", "sublayers") else y + A(layer)(y)
        return by_hand(B(layer), y) if field in ("ffn", "sublayers") else y + B(layer)(y)

    reference = m2m100()
    model = with_weights_of(reference, encoder_solver=solver, coefficients="fixed", vector_field=field)
    check_encoder(model, reference, full_batch, step)


OWN = {"a": [[], [0.5]], "b": [0.25, 0.75]}


def released_rk2(F, y):
    k1 = y + F(y)
    k2 = (y + k1) + F(y + k1)
    return y + (k1 + k2) / 2


@pytest.mark.parametrize(
    "fields, by_hand",
    [
        ({"encoder_solver": "rk2", "coefficients": "ones"}, lambda F, y: y + F(y) + F(y + F(y))),
        ({"encoder_solver": OWN, "coefficients": "fixed"}, lambda F, y: y + F(y) / 4 + 3 * F(y + F(y) / 2) / 4),
        ({"encoder_solver": "rk2", "coefficients": "fixed", "stage_values": "output"}, released_rk2),
        ({"encoder_solver": "euler", "step_size": 0.5}, lambda F, y: y + F(y) / 2),
        ({"encoder_solver": "euler", "steps_per_layer": 2}, lambda F, y: y + F(y) + F(y + F(y))),
        ({"encoder_solver": "polynet"}, lambda F, y: y + F(y) + F(F(y))),
    ],
)
def test_other_blocks_are_their_equations(fields, by_hand, full_batch):
    reference = m2m100()
    model = with_weights_of(reference, **fields)
    check_encoder(model, reference, full_batch, lambda layer, y: by_hand(f(layer), y))


@pytest.mark.parametrize("field", FIGURE_4)
def test_the_decoders_blocks_are_runge_kutta_steps_too(field, full_batch):
    reference = m2m100()
    reference.set_attn_implementation("eager")
    fields = {"encoder_solver": "euler", "decoder_solver": "rk2", "coefficients": "fixed"}
    model = with_weights_of(reference, **fields, vector_field=field)
    memory = reference.model.encoder(full_batch["input_ids"]).last_hidden_state
    ids = full_batch["decoder_input_ids"]
    causal = torch.full((6, 6), float("-inf"), dtype=torch.float64).triu(1)[None, None]
    decoder = reference.model.decoder
    y = decoder.embed_tokens(ids) + decoder.embed_positions(ids)
    for layer in decoder.layers:

        def A(z, layer=layer):
            return layer.self_attn(layer.self_attn_layer_norm(z), attention_mask=causal)[0]

        def C(z, layer=layer):
            return layer.encoder_attn(layer.encoder_attn_layer_norm(z), key_value_states=memory)[0]

        def whole(z, A=A, C=C, layer=layer):
            x = z + A(z)
            x = x + C(x)
            return x + B(layer)(x) - z

        if field == "layer":
            y = rk2(whole, y)
            continue
        y = rk2(A, y) if field in ("attention", "sublayers") else y + A(y)
        y = rk2(C, y) if field == "sublayers" else y + C(y)
        y = rk2(B(layer), y) if field in ("ffn", "sublayers") else y + B(layer)(y)
    expected = reference.lm_head(decoder.layer_norm(y))
    assert_close(model(**full_batch).logits, expected)


@pytest.mark.parametrize("field", ["layer", "sublayers"])
@pytest.mark.parametrize("solver", MULTISTEPS)
def test_multistep_schemes_step_over_layers_or_sublayers(solver, field, full_batch):
    """Their equations are in test_integration.py."""
    reference = m2m100()
    fields = {"encoder_solver": solver, "vector_field": field}
    model = ode.OdeTransformerForConditionalGeneration(tiny_config(**PLAIN, **fields)).double().eval()
    model.load_state_dict(reference.state_dict(), strict=False)
    scheme, steps = randomize(model.model.encoder.multistep), ()

    def step(layer, y):
        nonlocal steps
        for F in [f(layer)] if field == "layer" else [A(layer), B(layer)]:
            y, steps = integrate_multistep(lambda z, _, F=F: F(z), y, scheme, steps)
        return y

    check_encoder(model, reference, full_batch, step)


@pytest.mark.parametrize("field, last", [("macaron", 0.5), ("macaron_released", 1.0)])
def test_macaron_is_a_split_step(field, last, full_batch):
    reference = m2m100()
    model = ode.OdeTransformerForConditionalGeneration(
        tiny_config(**PLAIN, encoder_solver="euler", vector_field=field)
    )
    randomize(model).double().load_state_dict(reference.state_dict(), strict=False)
    blocks = iter(model.model.encoder.layers)

    def step(layer, y):
        block = next(blocks)
        y = y + block.macaron_fc2(torch.relu(block.macaron_fc1(block.macaron_layer_norm(y)))) / 2
        y = y + A(layer)(y)
        return y + last * B(layer)(y)

    check_encoder(model, reference, full_batch, step)


def test_a_stage_of_weight_0_in_the_tableau_is_normalized_where_weights_are_learned(full_batch):
    """y + sum_i gamma_i LN_i(F_i) with the stages of the midpoint scheme, whose own weights are 0 and 1."""
    reference = m2m100()
    fields = {"encoder_solver": "midpoint", "coefficients": "learned", "normalize_stages": True}
    model = randomize(ode.OdeTransformerForConditionalGeneration(tiny_config(**PLAIN, **fields))).double()
    model.load_state_dict(reference.state_dict(), strict=False)
    encoder = model.model.encoder
    (gamma_1, gamma_2), norms = encoder.solver_coefficients.weight, encoder.stage_norms

    def step(layer, y):
        stages = [f(layer)(y)]
        stages.append(f(layer)(y + stages[0] / 2))
        F1, F2 = (nn.functional.layer_norm(F, (32,), norm.weight, norm.bias) for F, norm in zip(stages, norms))
        return y + gamma_1 * F1 + gamma_2 * F2

    check_encoder(model, reference, full_batch, step)


def test_dense_history_is_the_start_of_the_learned_one(batch):
    learned = ode.OdeTransformerModel(tiny_config(layer_history="learned_dense")).eval()
    dense = ode.OdeTransformerModel(tiny_config(layer_history="dense")).eval()
    dense.load_state_dict({k: v for k, v in learned.state_dict().items() if not k.endswith("history.weight")})
    assert_close(dense(**batch).last_hidden_state, learned(**batch).last_hidden_state)
    assert learned.encoder.history.weight[2].tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0])


def test_learned_positions_are_limited_by_those_that_are_used():
    """Packed sequences count anew, and padding has no position."""
    model = build(ode.OdeTransformerForCausalLM, position_embedding_type="learned", max_position_embeddings=8)
    sequences = [torch.randint(4, 61, (1, 6)) for _ in range(3)]
    alone = [model(ids).logits for ids in sequences]
    packed = torch.cat(sequences, dim=1)
    position_ids = torch.arange(6).repeat(3)[None]
    own = torch.block_diag(*torch.ones(3, 6, 6)).tril().bool()[None, None]
    together = model(packed, position_ids=position_ids, attention_mask=own, use_cache=False).logits
    assert_close(together, torch.cat(alone, dim=1))
    padded = torch.cat([torch.ones(1, 4, dtype=torch.long), sequences[0]], dim=1)
    assert_close(model(padded, attention_mask=(padded != 1).long()).logits[:, 4:], alone[0])
    for wrong in ({}, {"position_ids": torch.arange(18)[None]}):
        with pytest.raises(ValueError, match="18 tokens is longer than max_position_embeddings=8"):
            model(packed, **wrong)


def test_without_positions_the_encoder_is_equivariant():
    torch.manual_seed(0)
    model = randomize(ode.OdeTransformerModel(tiny_config(position_embedding_type="none", max_relative_position=0)))
    ids, order = torch.randint(4, 61, (1, 7)), torch.randperm(7)
    expected = model.encoder(ids).last_hidden_state[:, order]
    assert_close(model.encoder(ids[:, order]).last_hidden_state, expected)


def test_initialization_is_the_originals():
    torch.manual_seed(0)
    config = tiny_config(vocab_size=4000, d_model=256, encoder_ffn_dim=512, coefficients="learned")
    model = ode.OdeTransformerForConditionalGeneration(config)
    shared = model.model.shared.weight
    assert shared[1].abs().max() == 0
    assert shared[2:].std().item() == pytest.approx(256**-0.5, rel=0.01)
    layer = model.model.encoder.layers[0]
    for linear, bound in (
        (layer.self_attn.q_proj, math.sqrt(6 / (256 + 3 * 256))),
        (layer.self_attn.out_proj, math.sqrt(6 / (256 + 256))),
        (layer.fc1, math.sqrt(6 / (256 + 512))),
    ):
        assert 0.99 * bound < linear.weight.abs().max().item() <= bound
        assert linear.bias.abs().max() == 0
    keys, bound = layer.self_attn.relative_keys.weight, math.sqrt(6 / (17 + 64))
    assert keys.shape == (17, 64) and 0.99 * bound < keys.abs().max().item() <= bound
    assert model.model.encoder.solver_coefficients.weight.tolist() == [1, 1]


@pytest.mark.parametrize(
    "fields",
    [
        {"normalize_stages": True, "encoder_solver": "pcformer"},
        {"vector_field": "macaron", "embedding_layer_norm": True},
        *({"layer_history": name} for name in ("none", "dense", "attention")),
        {"model_class": ode.OdeTransformerForCausalLM},
        *({"model_class": RECURRENCE, "recurrence_encoder": kind} for kind in ("birnn", "biarn")),
    ],
    ids=str,
)
def test_every_norm_has_the_epsilon_of_the_configuration(fields):
    model = build(layer_norm_eps=0.25, **fields)
    assert {module.eps for module in model.modules() if hasattr(module, "eps")} == {0.25}


def test_an_untied_head_starts_as_the_embeddings():
    """As the original's `embed_out`, not as a linear layer; a bias at 0."""
    torch.manual_seed(0)
    fields = {"vocab_size": 4000, "d_model": 256, "tie_word_embeddings": False, "lm_head_bias": True}
    for model_class in (ode.OdeTransformerForConditionalGeneration, ode.OdeTransformerForCausalLM):
        head = model_class(tiny_config(config_class=model_class.config_class, **fields)).lm_head
        assert head.weight.std().item() == pytest.approx(256**-0.5, rel=0.01)
        assert head.bias.shape == (4000,) and head.bias.abs().max() == 0


def test_word_dropout_zeroes_whole_embeddings_without_rescaling():
    torch.manual_seed(0)
    encoder = ode.OdeTransformerModel(tiny_config(word_dropout=0.2)).encoder
    embedded = encoder.train().embed_words(None, torch.full((50, 40, 32), 3.0))
    assert set(embedded.unique().tolist()) == {0.0, 3.0}
    assert (embedded == embedded[..., :1]).all()
    assert (embedded == 0).float().mean().item() == pytest.approx(0.2, abs=0.03)
    assert (encoder.eval().embed_words(None, torch.full((2, 4, 32), 3.0)) == 3).all()


@pytest.mark.parametrize("name", ["encoder", "decoder"])
def test_word_dropout_is_of_both_stacks(name):
    """With nearly all words dropped, what is left is that of zero vectors at the same positions."""
    stack = getattr(build(ode.OdeTransformerModel, word_dropout=1 - 1e-7, **WITHOUT_DROPOUT), name).train()
    expected = stack(inputs_embeds=torch.zeros(2, 7, 32)).last_hidden_state
    assert_close(stack(torch.randint(4, 61, (2, 7))).last_hidden_state, expected)
