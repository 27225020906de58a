# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The models: against transformers' M2M100, hand-written steps, and themselves computed in another way."""

import itertools
import logging
import math
import re
import weakref
from functools import partial

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    DynamicCache,
    EncoderDecoderCache,
    M2M100Config,
    M2M100ForConditionalGeneration,
    PreTrainedModel,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    Trainer,
    TrainingArguments,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.trainer_pt_utils import LabelSmoother

from modeling_ode_transformer import (
    OdeTransformerForCausalLM,
    OdeTransformerForConditionalGeneration,
    OdeTransformerModel,
)
from modeling_ode_transformer import modeling_ode_transformer as modeling
from modeling_ode_transformer.configuration_ode_transformer import VECTOR_FIELDS
from modeling_ode_transformer.integration_ode_transformer import COEFFICIENTS, MULTISTEPS

from .conftest import SOLVERS, TINY, assert_close, build, randomize, tiny_config


PLAIN = {"layer_history": "none", "max_relative_position": 0}
FIGURE_4 = ("layer", "attention", "ffn", "sublayers")


def m2m100(dtype=torch.float64):
    """transformers' pre-norm model at the tiny size, with random weights."""
    names = {name: value for name, value in TINY.items() if name != "max_position_embeddings"}
    config = M2M100Config(**names, encoder_layerdrop=0.0, decoder_layerdrop=0.0)
    torch.manual_seed(0)
    return randomize(M2M100ForConditionalGeneration(config)).to(dtype)


def with_weights_of(other, **kwargs):
    model = OdeTransformerForConditionalGeneration(tiny_config(**{**PLAIN, **kwargs})).to(other.dtype).eval()
    missing, unexpected = model.load_state_dict(other.state_dict(), strict=False)
    assert not unexpected and not [name for name in missing if "coefficients" not in name]
    return model


def reference_encoder(model, batch, step):
    """The encoder of M2M100 with `step(layer, y)` in place of its layers; the mask is that of no padding."""
    encoder = model.model.encoder
    y = encoder.embed_tokens(batch["input_ids"])
    y = y + encoder.embed_positions(batch["input_ids"])
    for layer in encoder.layers:
        y = step(layer, y)
    return encoder.layer_norm(y)


@pytest.fixture
def full_batch(batch):
    """The batch without padding."""
    ids = torch.randint(4, 61, (3, 9), generator=torch.Generator().manual_seed(2))
    return {**batch, "input_ids": ids, "attention_mask": torch.ones_like(ids)}


# The blocks


def test_euler_is_the_plain_pre_norm_model_exactly(batch):
    reference = m2m100(torch.float32)
    model = with_weights_of(reference, encoder_solver="euler")
    for implementation in ("eager", "sdpa"):
        model.set_attn_implementation(implementation)
        reference.set_attn_implementation(implementation)
        actual, expected = model(**batch), reference(**batch)
        real = batch["attention_mask"].bool()
        assert_close(actual.encoder_last_hidden_state[real], expected.encoder_last_hidden_state[real], scale=0.2)
        assert_close(actual.logits, expected.logits, scale=0.2)


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
    expected = reference_encoder(reference, full_batch, step)
    assert_close(model.model.encoder(full_batch["input_ids"]).last_hidden_state, expected)


def released_rk2(F, y):
    k1 = y + F(y)
    k2 = (y + k1) + F(y + k1)
    return y + (k1 + k2) / 2


@pytest.mark.parametrize(
    "fields, by_hand",
    [
        ({"encoder_solver": "rk2", "coefficients": "ones"}, lambda F, y: y + F(y) + F(y + F(y))),
        (
            {"encoder_solver": {"a": [[], [0.5]], "b": [0.25, 0.75]}, "coefficients": "fixed"},
            lambda F, y: y + F(y) / 4 + 3 * F(y + F(y) / 2) / 4,
        ),
        ({"encoder_solver": "rk2", "coefficients": "fixed", "stage_values": "output"}, released_rk2),
        ({"encoder_solver": "euler", "step_size": 0.5}, lambda F, y: y + F(y) / 2),
        ({"encoder_solver": "polynet"}, lambda F, y: y + F(y) + F(F(y))),
    ],
)
def test_other_blocks_are_their_equations(fields, by_hand, full_batch):
    reference = m2m100()
    model = with_weights_of(reference, **fields)
    expected = reference_encoder(reference, full_batch, lambda layer, y: by_hand(f(layer), y))
    assert_close(model.model.encoder(full_batch["input_ids"]).last_hidden_state, expected)


def test_the_gate_weighs_each_token(full_batch):
    reference = m2m100()
    model = with_weights_of(reference, encoder_solver="rk2", coefficients="gate")
    gate = model.model.encoder.solver_coefficients.gate

    def step(layer, y):
        f1 = f(layer)(y)
        f2 = f(layer)(y + f1)
        g = torch.sigmoid(torch.cat([f1, f2], -1) @ gate.weight.T + gate.bias)
        assert g.shape == (3, 9, 1)
        return y + g * f1 + (1 - g) * f2

    expected = reference_encoder(reference, full_batch, step)
    assert_close(model.model.encoder(full_batch["input_ids"]).last_hidden_state, expected)


def test_two_steps_in_a_block_are_two_blocks_with_the_same_weights(full_batch):
    reference = m2m100()
    model = with_weights_of(reference, encoder_solver="euler", steps_per_layer=2)
    expected = reference_encoder(reference, full_batch, lambda layer, y: layer(layer(y, None), None))
    assert_close(model.model.encoder(full_batch["input_ids"]).last_hidden_state, expected)


@pytest.mark.parametrize("field", FIGURE_4)
def test_the_decoders_blocks_are_runge_kutta_steps_too(field, full_batch):
    reference = m2m100()
    reference.set_attn_implementation("eager")
    model = with_weights_of(
        reference, encoder_solver="euler", decoder_solver="rk2", coefficients="fixed", vector_field=field
    )
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


def states_of(reference, batch, next_state):
    """The encoder of M2M100 whose states follow from all before: `next_state(layers, states)`."""
    encoder = reference.model.encoder
    states = [encoder.embed_tokens(batch["input_ids"]) + encoder.embed_positions(batch["input_ids"])]
    for t in range(len(encoder.layers)):
        states.append(next_state([f(layer) for layer in encoder.layers[: t + 1]], states))
    return encoder.layer_norm(states[-1])


@pytest.mark.parametrize("solver", MULTISTEPS)
def test_multistep_schemes_of_table_7_step_over_the_layers(solver, full_batch):
    reference = m2m100()
    model = OdeTransformerForConditionalGeneration(tiny_config(**PLAIN, encoder_solver=solver)).double().eval()
    model.load_state_dict(reference.state_dict(), strict=False)
    scheme = randomize(model.model.encoder.multistep)

    def next_state(fields, states):
        t, increment = len(states) - 1, fields[-1](states[-1])
        if solver == "dlcl":
            return states[0] + sum(scheme.weight[t, i] * F(y) for i, (F, y) in enumerate(zip(fields, states)))
        if t == 0:
            return states[0] + increment
        if solver == "leapfrog":
            return states[-2] + 2 * increment
        return scheme.weight[t] * states[-1] + (1 - scheme.weight[t]) * states[-2] + increment

    expected = states_of(reference, full_batch, next_state)
    assert_close(model.model.encoder(full_batch["input_ids"]).last_hidden_state, expected)


def test_a_multistep_scheme_over_sublayers_steps_over_each(full_batch):
    reference = m2m100()
    fields = {"encoder_solver": "leapfrog", "vector_field": "sublayers"}
    model = OdeTransformerForConditionalGeneration(tiny_config(**PLAIN, **fields)).double().eval()
    model.load_state_dict(reference.state_dict(), strict=False)
    states = []

    def step(layer, y):
        for F in (A(layer), B(layer)):
            states.append(y)
            y = y + F(y) if len(states) == 1 else states[-2] + 2 * F(y)
        return y

    expected = reference_encoder(reference, full_batch, step)
    assert_close(model.model.encoder(full_batch["input_ids"]).last_hidden_state, expected)


@pytest.mark.parametrize("field, last", [("macaron", 0.5), ("macaron_released", 1.0)])
def test_macaron_is_a_split_step(field, last, full_batch):
    reference = m2m100()
    model = OdeTransformerForConditionalGeneration(tiny_config(**PLAIN, encoder_solver="euler", vector_field=field))
    randomize(model).double().load_state_dict(reference.state_dict(), strict=False)
    blocks = iter(model.model.encoder.layers)

    def step(layer, y):
        block = next(blocks)
        y = y + block.macaron_fc2(torch.relu(block.macaron_fc1(block.macaron_layer_norm(y)))) / 2
        y = y + A(layer)(y)
        return y + last * B(layer)(y)

    expected = reference_encoder(reference, full_batch, step)
    assert_close(model.model.encoder(full_batch["input_ids"]).last_hidden_state, expected)


def test_the_predictor_corrector_block_is_that_of_pcformer(full_batch):
    """P = y + sum_i alpha (1 - alpha)^(n - i) LN_i(F_i), corrected by one evaluation at a sum over the history."""
    reference = m2m100()
    fields = {"encoder_solver": "rk2", "coefficients": "ema", "predictor_corrector": True}
    config = tiny_config(max_relative_position=0, normalize_stages=True, **fields)
    model = randomize(OdeTransformerForConditionalGeneration(config)).double()
    model.load_state_dict(reference.state_dict(), strict=False)
    encoder = model.model.encoder
    alpha, (norm_1, norm_2) = encoder.solver_coefficients.weight, encoder.stage_norms
    predicting, correcting = encoder.corrector, encoder.history
    ids = full_batch["input_ids"]
    history = [reference.model.encoder.embed_tokens(ids) + reference.model.encoder.embed_positions(ids)]
    y = correcting.weight[0, 0] * history[0]
    for t, layer in enumerate(reference.model.encoder.layers):
        F1 = f(layer)(y)
        F2 = f(layer)(y + F1)
        P = y + alpha * (1 - alpha) * norm_1(F1) + alpha * norm_2(F2)
        newest = [*history, predicting.layer_norms[t](P)]
        x = sum(w * h for w, h in zip(predicting.weight[t + 1], newest))
        history.append(correcting.layer_norms[t](layer(x, None)))
        y = sum(w * h for w, h in zip(correcting.weight[t + 1], history))
    expected = reference.model.encoder.layer_norm(y)
    assert_close(encoder(ids).last_hidden_state, expected)


def test_a_stage_of_weight_0_in_the_tableau_is_normalised_where_weights_are_learned(full_batch):
    """y + sum_i gamma_i LN_i(F_i) with the stages of the midpoint scheme, whose own weights are 0 and 1."""
    reference = m2m100()
    fields = {"encoder_solver": "midpoint", "coefficients": "learned", "normalize_stages": True}
    model = randomize(OdeTransformerForConditionalGeneration(tiny_config(**PLAIN, **fields))).double()
    model.load_state_dict(reference.state_dict(), strict=False)
    encoder = model.model.encoder
    (gamma_1, gamma_2), norms = encoder.solver_coefficients.weight, encoder.stage_norms

    def step(layer, y):
        stages = [f(layer)(y)]
        stages.append(f(layer)(y + stages[0] / 2))
        F1, F2 = (nn.functional.layer_norm(F, (32,), norm.weight, norm.bias) for F, norm in zip(stages, norms))
        return y + gamma_1 * F1 + gamma_2 * F2

    expected = reference_encoder(reference, full_batch, step)
    assert_close(encoder(full_batch["input_ids"]).last_hidden_state, expected)


def test_dense_history_is_the_start_of_the_learned_one(batch):
    learned = OdeTransformerModel(tiny_config(layer_history="learned_dense")).eval()
    dense = OdeTransformerModel(tiny_config(layer_history="dense")).eval()
    dense.load_state_dict({k: v for k, v in learned.state_dict().items() if not k.endswith("history.weight")})
    assert_close(dense(**batch).last_hidden_state, learned(**batch).last_hidden_state)
    assert learned.encoder.history.weight[2].tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0])


# Embeddings, initialisation, dropout


def test_positions_are_the_originals(batch):
    """Concatenated sines and cosines, divisor half - 1; the first token has position 2, padding the zero vector."""
    encoder = OdeTransformerModel(tiny_config()).encoder.eval()
    for ids in (batch["input_ids"], batch["input_ids"].flip(1)):
        embedded = encoder.embed(torch.zeros(3, 9, 32), ids)
        for row, tokens in zip(embedded, ids.tolist()):
            position = 1
            for vector, token in zip(row, tokens):
                position += token != 1
                angles = [position / 10000 ** (i / 15) for i in range(16)]
                expected = [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
                assert vector.tolist() == pytest.approx(expected if token != 1 else [0.0] * 32, abs=1e-5)


def test_learned_positions_have_a_limit_that_is_named():
    model = OdeTransformerModel(tiny_config(position_embedding_type="learned")).eval()
    assert model.encoder.embed_positions.weight.shape == (40 + 2, 32)
    ids = torch.randint(4, 61, (1, 41))
    model.encoder(ids[:, :40])
    with pytest.raises(ValueError, match="41 tokens is longer than max_position_embeddings=40"):
        model.encoder(ids)
    cache = model.decoder(ids[:, :40], use_cache=True).past_key_values
    with pytest.raises(ValueError, match="41 tokens is longer than max_position_embeddings=40"):
        model.decoder(ids[:, 40:], past_key_values=cache)


def test_without_positions_the_encoder_is_equivariant():
    torch.manual_seed(0)
    model = randomize(OdeTransformerModel(tiny_config(position_embedding_type="none", max_relative_position=0)))
    ids, order = torch.randint(4, 61, (1, 7)), torch.randperm(7)
    expected = model.encoder(ids).last_hidden_state[:, order]
    assert_close(model.encoder(ids[:, order]).last_hidden_state, expected)


def test_initialisation_is_the_originals():
    torch.manual_seed(0)
    model = OdeTransformerForConditionalGeneration(
        tiny_config(vocab_size=4000, d_model=256, encoder_ffn_dim=512, coefficients="learned")
    )
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


def test_an_untied_head_starts_as_the_embeddings():
    """As the original's `embed_out`, not as a linear layer; a bias at 0."""
    torch.manual_seed(0)
    config = tiny_config(vocab_size=4000, d_model=256, tie_word_embeddings=False, lm_head_bias=True)
    for model_class in (OdeTransformerForConditionalGeneration, OdeTransformerForCausalLM):
        head = model_class(config).lm_head
        assert head.weight.std().item() == pytest.approx(256**-0.5, rel=0.01)
        assert head.bias.shape == (4000,) and head.bias.abs().max() == 0


def test_word_dropout_zeroes_whole_embeddings_without_rescaling():
    torch.manual_seed(0)
    encoder = OdeTransformerModel(tiny_config(word_dropout=0.2)).encoder
    embedded = encoder.train().embed_words(None, torch.full((50, 40, 32), 3.0))
    assert set(embedded.unique().tolist()) == {0.0, 3.0}
    assert (embedded == embedded[..., :1]).all()
    assert (embedded == 0).float().mean().item() == pytest.approx(0.2, abs=0.03)
    assert (encoder.eval().embed_words(None, torch.full((2, 4, 32), 3.0)) == 3).all()


@pytest.mark.parametrize("name", ["encoder", "decoder"])
def test_word_dropout_is_of_both_stacks(name):
    """With nearly all words dropped, what is left is that of zero vectors at the same positions."""
    stack = getattr(build(OdeTransformerModel, word_dropout=1 - 1e-7, **dict.fromkeys(DROPOUTS, 0.0)), name).train()
    expected = stack(inputs_embeds=torch.zeros(2, 7, 32)).last_hidden_state
    assert_close(stack(torch.randint(4, 61, (2, 7))).last_hidden_state, expected)


# Everything that can be combined


def all_forms():
    """One configuration for each choice, in encoder and decoder."""
    for solver in SOLVERS:
        yield {"encoder_solver": solver, "decoder_solver": solver}
    for coefficients in COEFFICIENTS:
        yield {"decoder_solver": "rk2", "coefficients": coefficients, "coefficient_sharing": "layer"}
        yield {"decoder_solver": "rk2", "coefficients": coefficients}
    for solver in (*MULTISTEPS, "polynet"):
        yield {"encoder_solver": solver, "decoder_solver": solver}
    yield {"encoder_solver": "leapfrog", "decoder_solver": "dlcl", "vector_field": "sublayers", "steps_per_layer": 2}
    for coefficients in ("learned", "ema"):
        yield {"decoder_solver": "rk2", "coefficients": coefficients, "coefficient_sharing": "channel"}
    yield {"predictor_corrector": True, "coefficients": "ema", "normalize_stages": True}
    yield {"decoder_solver": "midpoint", "coefficients": "fixed", "normalize_stages": True}
    for field, history in itertools.product(VECTOR_FIELDS, ("learned_dense", "dense", "none")):
        yield {"decoder_solver": "rk2", "vector_field": field, "layer_history": history}
    yield {"decoder_solver": "rk4", "stage_values": "output"}
    yield {"decoder_solver": "rk2", "steps_per_layer": 2, "step_size": 0.5}
    yield {"decoder_solver": "rk2", "max_relative_position": 0, "position_embedding_type": "learned"}
    yield {"decoder_solver": "rk2", "position_embedding_type": "none", "scale_embedding": False}
    yield {"decoder_solver": {"a": [[], [0.3]], "b": [0.2, 0.8]}, "coefficients": "fixed"}


FORMS = pytest.mark.parametrize("form", list(all_forms()), ids=str)


@FORMS
def test_cached_and_uncached_logits_agree(form, batch):
    """Step by step with the cache, from a prefix of two, and all at once; in both kinds of model."""
    model = build(**form).double()
    ids = batch["decoder_input_ids"]
    arguments = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    expected = model(**batch).logits
    outputs = model(**arguments, decoder_input_ids=ids[:, :2])
    logits = [outputs.logits]
    for position in range(2, 6):
        outputs = model(
            **arguments,
            decoder_input_ids=ids[:, position : position + 1],
            past_key_values=outputs.past_key_values,
        )
        logits.append(outputs.logits)
    assert_close(torch.cat(logits, 1), expected)

    # A causal language model has no encoder, whose blocks a corrector could correct.
    language_model = build(OdeTransformerForCausalLM, **form | {"predictor_corrector": False}).double()
    expected = language_model(ids).logits
    first = language_model(ids[:, :3])
    second = language_model(ids[:, 3:], past_key_values=first.past_key_values)
    assert_close(torch.cat([first.logits, second.logits], 1), expected)


@FORMS
def test_padding_changes_nothing(form, batch):
    model = build(**form).double()
    expected = model(**batch).logits
    for i, length in enumerate((9, 7, 4)):
        ids = batch["input_ids"][i : i + 1, :length]
        alone = model(ids, decoder_input_ids=batch["decoder_input_ids"][i : i + 1]).logits
        assert_close(alone[0], expected[i])
        left = torch.cat([torch.ones(1, 3, dtype=torch.long), ids], 1)
        padded = model(left, (left != 1).long(), batch["decoder_input_ids"][i : i + 1]).logits
        assert_close(padded[0], expected[i])


@FORMS
def test_gradient_checkpointing_changes_no_gradient(form, batch):
    gradients = []
    for checkpointing in (False, True):
        model = build(**form, dropout=0.0, attention_dropout=0.0, activation_dropout=0.0).double().train()
        if checkpointing:
            model.activation_checkpointing_enable()
        model(**batch, labels=batch["decoder_input_ids"], use_cache=False).loss.backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    for name, gradient in gradients[0].items():
        assert gradient is not None, name
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("form", [{"encoder_solver": "leapfrog"}, {"predictor_corrector": True}])
def test_reentrant_checkpointing_is_refused_where_blocks_share_states(form):
    with pytest.raises(ValueError, match="use_reentrant=False"):
        build(**form).activation_checkpointing_enable({"use_reentrant": True})
    build().activation_checkpointing_enable({"use_reentrant": True})


@FORMS
def test_outputs_come_once_for_each_layer_and_eager_is_sdpa(form, batch):
    model = build(**form)
    sdpa = model(**batch).logits
    model.set_attn_implementation("eager")
    outputs = model(**batch, output_attentions=True, output_hidden_states=True)
    assert_close(outputs.logits, sdpa)
    assert [len(x) for x in (outputs.encoder_hidden_states, outputs.decoder_hidden_states)] == [4, 3]
    assert [tuple(x.shape) for x in outputs.encoder_attentions] == [(3, 4, 9, 9)] * 3
    assert [tuple(x.shape) for x in outputs.decoder_attentions] == [(3, 2, 6, 6)] * 2
    assert [tuple(x.shape) for x in outputs.cross_attentions] == [(3, 2, 6, 9)] * 2
    assert_close(outputs.decoder_attentions[0].sum(-1), torch.ones(3, 2, 6))
    assert outputs.decoder_attentions[0].triu(1).abs().max() == 0


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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("decoder_solver", ["euler", "rk4"])
def test_half_precision_is_close_and_finite(dtype, decoder_solver, batch):
    model = build(decoder_solver=decoder_solver, coefficients="fixed")
    expected = model(**batch).logits
    actual = model.to(dtype)(**batch).logits
    assert actual.dtype == dtype
    assert_close(actual, expected.to(dtype), scale=3)


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


def test_flash_attention_is_refused_where_it_would_drop_the_relative_positions():
    model = build()
    for name in ("flash_attention_2", "flash_attention_3", "kernels-community/flash-attn"):
        with pytest.raises(ValueError, match=rf"{name}.*max_relative_position=8.*choose 'sdpa'"):
            model.set_attn_implementation(name)
    with pytest.raises(ValueError, match=r"max_relative_position=8"):
        OdeTransformerForConditionalGeneration._from_config(tiny_config(), attn_implementation="flash_attention_2")
    with pytest.raises(ImportError, match="FlashAttention2"):
        build(max_relative_position=0).set_attn_implementation("flash_attention_2")


@pytest.mark.parametrize("recurrence", ["none", "birnn"])
def test_cross_attention_under_flash_attention_knows_the_padding_of_sources(recurrence, batch, monkeypatch):
    """Flash kernels take a mask (sources, keys) as one of the queries, where these are of another number. In their
    place: a function that has only self-attentions, in the encoder with such a mask, in the decoder without."""

    def kernel(module, query, key, value, attention_mask, **kwargs):
        assert not module.is_cross_attention or attention_mask is None
        if attention_mask is not None:
            attention_mask = attention_mask[:, None, None].bool()
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)

    model = build(max_relative_position=0, recurrence_encoder=recurrence, eos_token_id=None)
    options = {"num_beams": 3, "max_new_tokens": 5, "do_sample": False}
    source = {name: batch[name] for name in ("input_ids", "attention_mask")}
    expected = model(**batch).logits, model.generate(**source, **options)
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "flash_attention_2", kernel)
    model.config._attn_implementation_internal = "flash_attention_2"
    assert_close(model(**batch).logits, expected[0])
    assert torch.equal(model.generate(**source, **options), expected[1])


TRACED = pytest.mark.parametrize(
    "form",
    [
        {"decoder_solver": "euler"},
        {"decoder_solver": "rk2"},
        {"decoder_solver": "dlcl", "predictor_corrector": True, "normalize_stages": True},
    ],
    ids=str,
)


@TRACED
def test_the_forward_pass_compiles_into_one_graph(form, batch):
    model = build(**form)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert_close(compiled(**batch, use_cache=False).logits, model(**batch).logits)


@TRACED
def test_the_forward_pass_exports(form, batch):
    model = build(**form)
    exported = torch.export.export(model, (), {**batch, "use_cache": False}, strict=False)
    with torch.no_grad():
        assert_close(exported.module()(**batch, use_cache=False).logits, model(**batch).logits)


# Loss


def test_the_loss_is_the_cross_entropy_of_unshifted_labels(batch):
    model = build()
    labels = torch.randint(4, 61, (3, 6))
    labels[1, 4:] = -100
    shifted = torch.cat([torch.full((3, 1), 2), labels[:, :-1].masked_fill(labels[:, :-1] == -100, 1)], 1)
    arguments = {**batch, "decoder_input_ids": shifted}
    expected = nn.functional.cross_entropy(model(**arguments).logits.flatten(0, 1), labels.flatten())
    batch.pop("decoder_input_ids")
    assert model(**batch, labels=labels).loss.item() == pytest.approx(expected.item(), rel=1e-6)
    assert model(**batch, labels=labels, num_items_in_batch=7).loss.item() == pytest.approx(
        expected.item() * 16 / 7, rel=1e-5
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_losses_of_micro_batches_add_up_to_that_of_the_batch(smoothing, batch):
    """As Trainer computes them: by the model, or by its label smoother from the model's decoder input."""
    model = build()
    labels = batch["decoder_input_ids"].clone()
    labels[0, 2:] = -100
    number = (labels != -100).sum()
    expected = nn.functional.cross_entropy(
        model(
            batch["input_ids"], batch["attention_mask"], model.prepare_decoder_input_ids_from_labels(labels)
        ).logits.flatten(0, 1),
        labels.flatten(),
        label_smoothing=smoothing,
    )
    total = 0.0
    for i in range(3):
        arguments = {"input_ids": batch["input_ids"][i : i + 1], "attention_mask": batch["attention_mask"][i : i + 1]}
        if smoothing:
            decoder_input_ids = model.prepare_decoder_input_ids_from_labels(labels[i : i + 1])
            outputs = model(**arguments, decoder_input_ids=decoder_input_ids, num_items_in_batch=number)
            total += LabelSmoother(smoothing)(outputs, labels[i : i + 1], num_items_in_batch=number).item()
        else:
            total += model(**arguments, labels=labels[i : i + 1], num_items_in_batch=number).loss.item()
    assert total == pytest.approx(expected.item(), rel=1e-6)


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
        ({"recurrence_encoder": "lstm"}, "recurrence_encoder='lstm'"),
    ):
        with pytest.raises(Exception, match=message):
            OdeTransformerForConditionalGeneration.from_pretrained(tmp_path, **fields)


def test_a_decoder_alone_is_no_encoder_decoder(tmp_path):
    config = tiny_config(is_encoder_decoder=False)
    for model_class in (OdeTransformerModel, OdeTransformerForConditionalGeneration):
        with pytest.raises(ValueError, match=r"a decoder alone .* open it as OdeTransformerForCausalLM"):
            model_class(config)
    OdeTransformerForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="AutoModelForCausalLM"):
        AutoModel.from_pretrained(tmp_path)


def test_the_mask_may_have_a_row_for_each_target(batch):
    """Of two targets for each source, by a mask of the sources or of the targets."""
    model = build()
    encoder_outputs = model.get_encoder()(batch["input_ids"], attention_mask=batch["attention_mask"])
    targets = torch.randint(4, 61, (2 * len(batch["input_ids"]), 4))
    mask = batch["attention_mask"]
    expected = model(encoder_outputs=encoder_outputs, attention_mask=mask, decoder_input_ids=targets).logits
    rows = mask.repeat_interleave(2, dim=0)
    actual = model(encoder_outputs=encoder_outputs, attention_mask=rows, decoder_input_ids=targets).logits
    assert mask.min() == 0 and torch.equal(actual, expected)
    rows[0, 0] = 1 - rows[0, 0]
    for bad in (rows, rows[1:]):
        with pytest.raises(ValueError, match=f"of {len(bad)} rows does not fit 3 sources with 6 targets"):
            model(encoder_outputs=encoder_outputs, attention_mask=bad, decoder_input_ids=targets)


@pytest.mark.parametrize("form", [{"recurrence_encoder": "biarn"}, {"encoder_solver": "rk2"}], ids=str)
def test_tensor_parallel_plans_name_what_any_layer_has(form):
    """With recurrence_decoder_layers="top", only the last layer attends to the recurrence."""
    model = build(decoder_layers=2, **form)
    names = {re.sub(r"\.\d+\.", ".*.", name) for name, _ in model.named_modules()}
    attentions = {name for name in names if re.fullmatch(r"model\.decoder\.layers\.\*\.\w+_attn\.\w_proj", name)}
    assert len(attentions) == 3 * (3 if "recurrence_encoder" in form else 2)
    assert attentions <= set(model.tp_plan) and set(model.tp_plan) <= names


def test_continuous_batching_is_refused():
    with pytest.raises(NotImplementedError, match="call `generate`"):
        build(OdeTransformerForCausalLM).generate_batch(inputs=[[5, 6]])


@pytest.mark.parametrize("form", [{}, {"recurrence_encoder": "biarn"}], ids=str)
def test_forward_mode_derivatives_are_those_of_backpropagation(form, batch):
    model = build(attn_implementation="eager", **form)
    x = torch.randn(3, 5, model.config.d_model, requires_grad=True)
    mask = torch.ones(3, 5, dtype=torch.long)
    logits = model(inputs_embeds=x, attention_mask=mask, decoder_input_ids=batch["decoder_input_ids"]).logits
    direction, weights = torch.randn_like(x), torch.randn_like(logits)
    expected = (torch.autograd.grad(logits, x, weights)[0] * direction).sum().item()
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients), forward_ad.dual_level():
            dual = forward_ad.make_dual(x.detach(), direction)
            outputs = model(inputs_embeds=dual, attention_mask=mask, decoder_input_ids=batch["decoder_input_ids"])
            tangent = forward_ad.unpack_dual(outputs.logits).tangent
        assert (tangent * weights).sum().item() == pytest.approx(expected, rel=1e-4)


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


def test_a_repeated_cache_serves_as_many_targets(batch):
    """Each source of a padded batch four times, as contrastive search repeats what it has computed."""
    model = build(decoder_solver="rk2").double()
    source = {name: batch[name] for name in ("input_ids", "attention_mask")}
    encoded = model.get_encoder()(**source)
    cache = model(**source, decoder_input_ids=batch["decoder_input_ids"][:, :3], use_cache=True).past_key_values
    cache.batch_repeat_interleave(4)
    tokens = torch.randint(4, 61, (12, 1))
    mask = source["attention_mask"]
    inputs = {"encoder_outputs": encoded, "attention_mask": mask, "past_key_values": cache}
    actual = model(**inputs, decoder_input_ids=tokens).logits
    prompts = torch.cat([batch["decoder_input_ids"][:, :3].repeat_interleave(4, 0), tokens], 1)
    repeated = {name: value.repeat_interleave(4, 0) for name, value in source.items()}
    assert_close(actual, model(**repeated, decoder_input_ids=prompts).logits[:, -1:])


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


def test_a_language_model_is_not_made_of_an_encoder_decoder(tmp_path):
    """Of which it would take no weights; its configuration does not name classes that cannot open it."""
    for model_class in (OdeTransformerForConditionalGeneration, OdeTransformerModel):
        model_class(tiny_config()).save_pretrained(tmp_path / "pair")
        for opened_by in (AutoModelForCausalLM, OdeTransformerForCausalLM):
            with pytest.raises(ValueError, match="pair holds an encoder-decoder: open it with AutoModelForSeq2SeqLM"):
                opened_by.from_pretrained(tmp_path / "pair")
    config = AutoConfig.from_pretrained(tmp_path / "pair")
    assert {"AutoModel", "AutoModelForSeq2SeqLM"} <= set(config.auto_map)
    OdeTransformerForCausalLM(config).save_pretrained(tmp_path / "alone")
    alone, report = OdeTransformerForCausalLM.from_pretrained(tmp_path / "alone", output_loading_info=True)
    assert set(alone.config.auto_map) == {"AutoConfig", "AutoModelForCausalLM"} and not report["missing_keys"]


@pytest.mark.parametrize("form", [{}, {"recurrence_encoder": "birnn"}])
def test_encoder_outputs_may_be_any_that_have_the_states(form, batch):
    model = build(**form).eval()
    outputs = model.get_encoder()(batch["input_ids"], batch["attention_mask"])
    arguments = {name: batch[name] for name in ("attention_mask", "decoder_input_ids")}
    expected = model(**arguments, encoder_outputs=outputs).logits
    more = {**outputs, "pooler_output": outputs.last_hidden_state[:, 0]}
    assert torch.equal(model(**arguments, encoder_outputs=more).logits, expected)
    with pytest.raises(TypeError, match=r"encoder_outputs is a tensor \(3, 9, 32\)"):
        model(**arguments, encoder_outputs=outputs.last_hidden_state)
    with pytest.raises(ValueError, match="encoder_outputs has no last_hidden_state, only pooler_output"):
        model(**arguments, encoder_outputs={"pooler_output": more["pooler_output"]})
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        model(**arguments, encoder_outputs=(torch.zeros(3, 9, 8), torch.zeros(3, 9, 8)))


def test_a_field_without_effect_is_named_once_for_all_stacks(monkeypatch):
    messages = []
    logger = logging.getLogger("modeling_ode_transformer.configuration_ode_transformer")
    monkeypatch.setattr(logger, "warning", messages.append)
    # A solver that no other test has, since a process says the same only once.
    solver = {"a": [[]], "b": [1.0]}
    OdeTransformerForConditionalGeneration(tiny_config(encoder_solver=solver, normalize_stages=True))
    assert len(messages) == 1 and "normalize_stages=True has no effect" in messages[0]


def test_the_configuration_of_a_language_model_says_nothing_of_an_encoder(tmp_path, monkeypatch):
    model = OdeTransformerForCausalLM(tiny_config(encoder_solver="rk2", decoder_solver="euler"))
    assert (model.config.encoder_solver, model.config.solver_coefficients) == ("euler", "fixed")
    assert (model.config.encoder_layers, model.num_function_evaluations()) == (2, 2)
    model.save_pretrained(tmp_path)
    assert OdeTransformerForCausalLM.from_pretrained(tmp_path).config.encoder_solver == "euler"
    decoder_config = partial(tiny_config, encoder_layers=2, encoder_attention_heads=2, encoder_ffn_dim=40)
    messages = []
    monkeypatch.setattr(
        logging.getLogger("modeling_ode_transformer.configuration_ode_transformer"), "warning", messages.append
    )
    OdeTransformerForCausalLM(decoder_config(encoder_solver="rk4"))
    assert len(messages) == 1 and messages[0].startswith(
        "encoder_solver='rk4' (beside decoder_solver='euler') has no effect"
    )
    # The default, an encoder of RK2 blocks with a gate, makes a plain residual language model.
    OdeTransformerForCausalLM(decoder_config())
    assert len(messages) == 2 and "solver_coefficients='gate' has no effect" in messages[1]
    OdeTransformerForCausalLM(decoder_config(decoder_solver="euler", coefficients="fixed"))
    OdeTransformerForCausalLM(decoder_config(decoder_solver="rk2"))
    OdeTransformerForCausalLM.from_pretrained(tmp_path)
    # Nothing here is residual, or was asked for of an encoder.
    OdeTransformerForCausalLM(decoder_config(decoder_solver="leapfrog", layer_history="none"))
    OdeTransformerForCausalLM.from_pretrained(tmp_path, decoder_solver="rk2")
    assert len(messages) == 2
    # The names that transformers has for all models are the encoder's here.
    fields = {"num_hidden_layers": 3, "encoder_attention_heads": 1}
    OdeTransformerForCausalLM(decoder_config(**fields, decoder_solver="rk2"))
    OdeTransformerForCausalLM(decoder_config(**fields, decoder_solver="rk2", is_encoder_decoder=False))
    assert messages[2].startswith("encoder_layers=3 (beside decoder_layers=2), encoder_attention_heads=1 (")
    assert messages[3:] == messages[2:3]
    with pytest.raises(ValueError, match="a causal language model has none"):
        OdeTransformerForCausalLM(tiny_config(predictor_corrector=True))


@pytest.mark.parametrize("sharing", ["stack", "channel"])
def test_a_residual_language_model_has_no_choices_of_coefficients(sharing):
    """Those of an encoder's learned ones, which fixed ones would refuse."""
    learned = {"coefficients": "learned", "coefficient_start": "euler", "coefficient_sharing": sharing}
    model = OdeTransformerForCausalLM(tiny_config(encoder_solver="rk2", decoder_solver="euler", **learned))
    fields = ("solver_coefficients", "coefficient_start", "coefficient_sharing")
    assert [getattr(model.config, field) for field in fields] == ["fixed", "ones", "stack"]


def test_labels_without_a_start_token_are_refused():
    model = build()
    model.config.decoder_start_token_id = None
    with pytest.raises(ValueError, match=r"config\.decoder_start_token_id is None"):
        model(torch.ones(1, 2, dtype=torch.long), labels=torch.ones(1, 2, dtype=torch.long))


def test_inputs_are_given_once():
    model = build()
    ids = torch.full((1, 3), 4)
    with pytest.raises(ValueError, match="exactly one"):
        model.model.encoder(input_ids=ids, inputs_embeds=torch.zeros(1, 3, 32))
    with pytest.raises(ValueError, match="exactly one"):
        model(input_ids=ids)


# Embeddings


def test_resizing_reaches_every_embedding():
    shared = build()
    shared.resize_token_embeddings(70)
    separate_matrices = build(share_encoder_decoder_embeddings=False, tie_word_embeddings=False)
    separate_matrices.resize_token_embeddings(70)
    for model in (shared, separate_matrices):
        assert model.config.vocab_size == 70 and model.config.decoder_vocab_size is None
        for matrix in (model.model.encoder.embed_tokens, model.model.decoder.embed_tokens, model.lm_head):
            assert matrix.weight.shape == (70, 32)
        assert model(torch.full((1, 3), 69), decoder_input_ids=torch.full((1, 3), 69)).logits.shape == (1, 3, 70)
    assert shared.lm_head.weight is shared.model.encoder.embed_tokens.weight
    assert shared.model.encoder.embed_tokens.embed_scale == pytest.approx(math.sqrt(32))


@pytest.mark.parametrize("model_class", [OdeTransformerForConditionalGeneration, OdeTransformerForCausalLM])
def test_a_resized_output_projection_is_what_it_was(model_class):
    """Its class, its old rows, and how new ones start: as those of a new model."""
    model = build(model_class, tie_word_embeddings=False)
    old = model.lm_head.weight.clone()
    model.resize_token_embeddings(1061, mean_resizing=False)
    assert type(model.lm_head) is nn.Linear
    assert torch.equal(model.lm_head.weight[:61], old) and model.lm_head.weight.requires_grad
    assert model.lm_head.weight[61:].std().item() == pytest.approx(32**-0.5, rel=0.05)
    model.resize_token_embeddings(40)
    assert type(model.lm_head) is nn.Linear and torch.equal(model.lm_head.weight, old[:40])
    # Nothing takes it for a layer that has not been initialized.
    model.init_weights()
    assert torch.equal(model.lm_head.weight, old[:40])


@pytest.mark.parametrize("name", ["encoder", "decoder"])
def test_new_embeddings_of_either_stack_start_as_those_of_a_new_model(name):
    model = build(share_encoder_decoder_embeddings=False)
    embeddings = getattr(model.model, name).embed_tokens.weight.clone()
    model.resize_token_embeddings(1061, mean_resizing=False)
    resized = getattr(model.model, name).embed_tokens.weight
    assert torch.equal(resized[:61], embeddings)
    assert resized[61:].std().item() == pytest.approx(32**-0.5, rel=0.05)


def test_old_rows_stay_where_a_process_holds_none_of_them(monkeypatch):
    """As DeepSpeed's ZeRO-3 does, whose weights are empty but where they are gathered."""
    model = build(tie_word_embeddings=False)
    old, head = model.lm_head.weight.clone(), model.lm_head

    def resize(self, old_lm_head, new_num_tokens=None, *args):
        new = torch.nn.Linear(32, new_num_tokens, bias=False)
        new.weight.data[:61] = old
        return new

    monkeypatch.setattr(PreTrainedModel, "_get_resized_lm_head", resize)
    head.weight.data = torch.empty(0)
    new = model._get_resized_lm_head(head, 1061, mean_resizing=False)
    assert torch.equal(new.weight[:61], old)
    assert new.weight[61:].std().item() == pytest.approx(32**-0.5, rel=0.05)


@pytest.mark.parametrize("field", ["dropout", "activation_dropout"])
def test_each_dropout_is_where_it_belongs(field):
    """With nearly all dropped: embeddings and what sublayers add (`dropout`), or what the activation gives."""
    fields = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0, field: 0.999}
    encoder = build(OdeTransformerModel, encoder_solver="euler", coefficients="fixed", **fields).encoder.train()
    layer, x = encoder.layers[0], torch.randn(3, 40, 32)
    hooked = {}
    layer.register_forward_pre_hook(lambda module, inputs: hooked.update(layer=inputs[0]))
    layer.fc2.register_forward_pre_hook(lambda module, inputs: hooked.update(fc2=inputs[0]))
    output = encoder(inputs_embeds=x).last_hidden_state
    assert output.shape == x.shape
    zeros = {name: (tensor == 0).float().mean().item() for name, tensor in hooked.items()}
    if field == "dropout":
        assert zeros["layer"] > 0.99 and zeros["fc2"] < 0.9
        states = encoder(inputs_embeds=x, output_hidden_states=True).hidden_states
        assert ((states[1] - states[0]) == 0).float().mean() > 0.99
    else:
        assert zeros["layer"] < 0.01 and zeros["fc2"] > 0.99


def test_dropout_of_attention_does_not_need_gradients():
    """Sampling with dropout on: two passes of a model in training mode differ, whatever the number of targets."""
    model = build(dropout=0.0, attention_dropout=0.5, activation_dropout=0.0).train()
    # Only the attention of the decoder to the encoder's output is left to have dropout.
    for module in model.modules():
        module.train(isinstance(module, modeling.OdeTransformerAttention) or module is model)
    for layer in (*model.model.encoder.layers, *model.model.decoder.layers):
        layer.self_attn.eval()
    ids = torch.randint(4, 61, (20, 7))
    states = model.model.encoder(input_ids=ids).last_hidden_state
    for targets in (1, 2):
        options = {"encoder_outputs": (states,), "decoder_input_ids": torch.full((20 * targets, 1), 2)}
        with torch.no_grad():
            first, second = (model(**options).logits for _ in range(2))
        assert not torch.equal(first, second), targets


def test_two_vocabularies_are_resized_one_by_one():
    model = build(share_encoder_decoder_embeddings=False, decoder_vocab_size=40)
    model.resize_token_embeddings(70)
    assert model.config.vocab_size == 70 and model.lm_head.weight.shape == (40, 32)
    model.resize_decoder_token_embeddings(45)
    assert model.config.decoder_vocab_size == 45 and model.lm_head.weight.shape == (45, 32)
    assert model.lm_head.weight is model.model.decoder.embed_tokens.weight
    assert model(torch.full((1, 3), 69), decoder_input_ids=torch.full((1, 3), 44)).logits.shape == (1, 3, 45)
    with pytest.raises(ValueError, match="use resize_token_embeddings"):
        build().resize_decoder_token_embeddings(70)


@pytest.mark.parametrize("shared, tied", [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("model_class", [OdeTransformerForConditionalGeneration, OdeTransformerForCausalLM])
def test_saved_models_come_back(model_class, shared, tied, tmp_path, batch):
    fields = {
        "share_encoder_decoder_embeddings": shared,
        "tie_word_embeddings": tied,
        "coefficients": "learned",
    }
    model = build(model_class, decoder_solver="rk4", **fields)
    model.save_pretrained(tmp_path)
    loaded, information = model_class.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(information[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert loaded.state_dict().keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
    if model_class is OdeTransformerForConditionalGeneration:
        matrices = {id(m.weight) for m in (loaded.model.encoder.embed_tokens, loaded.model.decoder.embed_tokens)}
        assert len(matrices) == (1 if shared else 2)
        assert (loaded.lm_head.weight is loaded.model.decoder.embed_tokens.weight) == tied
    half = model_class.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in half.parameters()} == {torch.bfloat16}


def test_weights_on_disk_are_read_when_needed(tmp_path, batch):
    model = build(coefficients="learned")
    model.save_pretrained(tmp_path / "model")
    loaded = OdeTransformerForConditionalGeneration.from_pretrained(
        tmp_path / "model", device_map={"": "disk"}, offload_folder=tmp_path / "offload"
    )
    with torch.no_grad():
        assert_close(loaded(**batch).logits, model(**batch).logits)


def test_missing_parameters_are_initialised_not_garbage(tmp_path):
    build().save_pretrained(tmp_path)
    fields = {"coefficients": "learned", "max_relative_position": 4, "layer_history": "learned_dense"}
    model = OdeTransformerForConditionalGeneration.from_pretrained(
        tmp_path, **fields, encoder_solver="rk4", ignore_mismatched_sizes=True
    )
    assert model.model.encoder.solver_coefficients.weight.tolist() == [1.0] * 4
    # 2 * 4 + 1 vectors of 8 numbers
    keys, bound = model.model.encoder.layers[0].self_attn.relative_keys.weight, math.sqrt(6 / (9 + 8))
    assert keys.shape == (9, 8) and 0.9 * bound < keys.abs().max().item() <= bound
    fields = {"coefficients": "ema", "coefficient_sharing": "channel", "predictor_corrector": True}
    model = OdeTransformerForConditionalGeneration.from_pretrained(
        tmp_path, **fields, encoder_solver="rk2", decoder_solver="multistep", normalize_stages=True
    )
    assert model.model.encoder.solver_coefficients.weight.tolist() == [0.5] * 32
    assert model.model.encoder.corrector.weight[1].tolist() == [0.5, 0.5, 0, 0]
    assert model.model.encoder.stage_norms[1].weight.tolist() == [1] * 32
    assert model.model.decoder.multistep.weight.tolist() == [1, 1]


# Stages that are recomputed


STAGES = [
    {"encoder_solver": "rk2"},
    {"encoder_solver": "rk4", "coefficients": "learned"},
    {"encoder_solver": "rk2", "coefficients": "gate", "decoder_solver": "rk2"},
    {"encoder_solver": "rk4", "vector_field": "sublayers", "decoder_solver": "rk2", "steps_per_layer": 2},
    {"encoder_solver": "rk2", "vector_field": "macaron", "normalize_stages": True},
    {"encoder_solver": "leapfrog", "decoder_solver": "rk3"},
    {"predictor_corrector": True, "encoder_solver": "rk2"},
]
DROPOUTS = {"dropout": 0.2, "attention_dropout": 0.1, "activation_dropout": 0.3}


@pytest.mark.parametrize("form", STAGES, ids=str)
def test_recomputed_stages_change_no_loss_and_no_gradient(form, batch):
    """With dropout, whose masks have to come again."""
    results = []
    for kwargs in (None, {"stages": True}):
        model = build(**form, **DROPOUTS).double().train()
        if kwargs:
            model.activation_checkpointing_enable(kwargs)
            assert kwargs == {"stages": True}
        torch.manual_seed(5)
        loss = model(**batch, labels=batch["decoder_input_ids"], use_cache=False).loss
        loss.backward()
        # What is drawn afterwards is the same too.
        results.append((loss, torch.rand(3), {name: p.grad for name, p in model.named_parameters()}))
    (loss, drawn, gradients), (actual_loss, actually_drawn, actual) = results
    assert loss.item() == pytest.approx(actual_loss.item(), rel=1e-12) and torch.equal(drawn, actually_drawn)
    for name, gradient in gradients.items():
        assert gradient is not None, name
        torch.testing.assert_close(actual[name], gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("solver, stages", [("euler", 1), ("rk2", 2), ("rk4", 4)])
@pytest.mark.parametrize("num_steps", [1, 2])
def test_all_stages_but_the_last_are_evaluated_again_for_the_gradient(solver, stages, num_steps, batch):
    model = build(encoder_solver=solver, steps_per_layer=num_steps).train()
    calls = []
    model.model.encoder.layers[1].fc1.register_forward_hook(lambda *args: calls.append(args))
    evaluations = num_steps * stages

    def evaluated():
        calls.clear()
        loss = model(**batch, labels=batch["decoder_input_ids"], use_cache=False).loss
        assert len(calls) == evaluations
        loss.backward()
        return len(calls) - evaluations

    assert evaluated() == 0
    model.activation_checkpointing_enable({"stages": True})
    assert model.is_gradient_checkpointing
    # A residual block of one stage is kept whole.
    assert evaluated() == (evaluations - 1 if stages > 1 else 0)
    model.activation_checkpointing_enable()
    assert evaluated() == evaluations
    model.activation_checkpointing_enable({"stages": True})
    model.activation_checkpointing_disable()
    assert not model.is_gradient_checkpointing
    assert evaluated() == 0
    model.activation_checkpointing_enable({"stages": True})
    model.eval()
    assert evaluated() == 0


class LiveMemory(TorchDispatchMode):
    """Counts the bytes of all tensors made under it that still live."""

    def __init__(self):
        super().__init__()
        self.storages = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        output = function(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(output):
            if isinstance(tensor, torch.Tensor):
                self.storages.append(weakref.ref(tensor.untyped_storage()))
        return output

    @property
    def num_bytes(self):
        storages = [storage for storage in (each() for each in self.storages) if storage is not None]
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def kept_bytes(kwargs, **form):
    """What a forward pass of the encoder keeps for the gradient, without the coefficients, which are fixed."""
    sizes = {"encoder_ffn_dim": 128, "encoder_layers": 3, "coefficients": "fixed"}
    encoder = build(**sizes, **form).train().model.encoder
    if kwargs is not None:
        encoder.activation_checkpointing_enable(kwargs)
    ids = torch.randint(4, 61, (8, 33), generator=torch.Generator().manual_seed(1))
    encoder(ids)
    with LiveMemory() as live:
        state = encoder(ids).last_hidden_state
    assert state.requires_grad
    return live.num_bytes


@pytest.mark.parametrize("form", [{}, {"max_relative_position": 0, **DROPOUTS}], ids=["relative", "dropout"])
def test_recomputed_stages_need_about_the_memory_of_the_residual_model(form):
    residual = kept_bytes(None, encoder_solver="euler", **form)
    whole = {solver: kept_bytes(None, encoder_solver=solver, **form) for solver in ("rk2", "rk4")}
    stages = {solver: kept_bytes({"stages": True}, encoder_solver=solver, **form) for solver in ("rk2", "rk4")}
    blocks = kept_bytes({}, encoder_solver="rk4", **form)
    assert whole["rk2"] > 1.6 * residual and whole["rk4"] > 3 * residual
    assert stages["rk2"] < 1.15 * residual and stages["rk4"] < 1.25 * residual
    assert blocks < stages["rk4"] < 0.4 * whole["rk4"]


def test_reentrant_checkpointing_of_stages_is_refused():
    model = build(encoder_solver="rk2")
    with pytest.raises(ValueError, match="use_reentrant=False"):
        model.activation_checkpointing_enable({"stages": True, "use_reentrant": True})
    assert not model.is_gradient_checkpointing
    model.activation_checkpointing_enable({"stages": True, "use_reentrant": False})
    assert model.model.encoder.layers[0].recomputes_stages


def test_stages_that_are_recomputed_fill_no_cache(batch, monkeypatch):
    messages = []
    monkeypatch.setattr(modeling.logger, "warning_once", messages.append)
    model = build(encoder_solver="rk2", decoder_solver="rk2", **dict.fromkeys(DROPOUTS, 0.0)).double().train()
    expected = model(**batch, use_cache=False).logits
    model.activation_checkpointing_enable({"stages": True})
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    assert_close(model(**batch, past_key_values=cache).logits, expected)
    assert any("cannot fill a cache" in message for message in messages)
    assert cache.get_seq_length() == 0 and not cache.cross_attention_cache.layers
    # In evaluation nothing is recomputed, and there is a cache.
    assert model.eval()(**batch, use_cache=True).past_key_values.get_seq_length() == 6


@pytest.mark.parametrize("name", ["gradient_checkpointing", "activation_checkpointing"])
def test_the_trainers_option_recomputes_stages(name, tmp_path):
    """One update with dropout; the weights are those of an update without."""
    data = [{"input_ids": torch.arange(4 + i, 11 + i), "labels": torch.arange(20 + i, 26 + i)} for i in range(4)]
    results = []
    for options in ({}, {name: True, f"{name}_kwargs": {"stages": True}}):
        model = build(encoder_solver="rk4", decoder_solver="rk2", **DROPOUTS)
        calls = []
        model.model.encoder.layers[0].fc1.register_forward_hook(lambda *args, calls=calls: calls.append(args))
        arguments = Seq2SeqTrainingArguments(
            str(tmp_path),
            max_steps=1,
            per_device_train_batch_size=4,
            learning_rate=0.01,
            optim="sgd",
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            **options,
        )
        Seq2SeqTrainer(model=model, args=arguments, train_dataset=data).train()
        results.append(({name: p.detach() for name, p in model.named_parameters()}, len(calls)))
    (expected, plain_calls), (actual, calls) = results
    assert (plain_calls, calls) == (4, 7)
    before = build(encoder_solver="rk4", decoder_solver="rk2").get_parameter("model.shared.weight")
    assert not torch.equal(expected["model.shared.weight"], before)
    for name, parameter in expected.items():
        assert_close(actual[name], parameter)


def test_a_model_runs_on_fake_tensors(batch):
    model = OdeTransformerForConditionalGeneration(tiny_config()).train()
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert isinstance(model(**batch).logits, FakeTensor)
