# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The recurrence encoder: its equations in plain PyTorch, one sentence at a time; padding, caches and outputs."""

import itertools

import pytest
import torch
from torch import nn

import modeling_ode_transformer as ode

from .conftest import TINY, WITHOUT_DROPOUT, assert_close, randomize


KINDS = {
    "birnn": {"recurrence_encoder": "birnn"},
    "biarn": {"recurrence_encoder": "biarn", "recurrence_steps": 4},
    "biarn, words": {"recurrence_encoder": "biarn", "recurrence_steps": None},
}
INTEGRATIONS = list(itertools.product(("stack", "gated_sum"), ("top", "all")))
FORMS = [
    {**kind, "recurrence_integration": integration, "recurrence_decoder_layers": layers, "recurrence_layers": number}
    for kind in KINDS.values()
    for number, (integration, layers) in zip((1, 2, 2, 1), INTEGRATIONS)
]
EVERY_FORM = pytest.mark.parametrize("form", FORMS, ids=lambda form: " ".join(map(str, form.values())))
# One form of each kind, each integration and each place at least once.
SOME_FORMS = pytest.mark.parametrize("form", [FORMS[0], FORMS[6], FORMS[7], FORMS[9]], ids=str)


def recurrence_config(**fields) -> ode.OdeTransformerRecurrenceConfig:
    return ode.OdeTransformerRecurrenceConfig(**{**TINY, **fields})


def build(model_class=ode.OdeTransformerRecurrenceForConditionalGeneration, **fields):
    """No parameter at its start: the new sublayer counts."""
    torch.manual_seed(0)
    return randomize(model_class(recurrence_config(**fields)))


def without_recurrence(model: ode.OdeTransformerRecurrenceForConditionalGeneration):
    """The model of the core with the parameters that it has of another."""
    fields = {name: value for name, value in model.config.to_dict().items() if not name.startswith("recurrence_")}
    fields["model_type"] = ode.OdeTransformerConfig.model_type
    config = ode.OdeTransformerConfig.from_dict(fields)
    plain = ode.OdeTransformerForConditionalGeneration(config).to(model.dtype).eval()
    report = plain.load_state_dict(model.state_dict(), strict=False)
    assert not report.missing_keys and all("recurrence" in name for name in report.unexpected_keys)
    return plain


# The equations, for one sentence of (words, d) without padding


def attend(query, keys, values, heads):
    """softmax(q K' / sqrt(d_k)) V of each head, with queries (q, d) and keys and values (k, d)."""
    outputs = []
    for q, k, v in zip(query.chunk(heads, -1), keys.chunk(heads, -1), values.chunk(heads, -1)):
        outputs.append((q @ k.T / k.shape[-1] ** 0.5).softmax(-1) @ v)
    return torch.cat(outputs, -1)


def arn(module, words, heads, num_steps):
    d = words.shape[1]
    outputs = []
    keys_and_values = module.kv_proj(words).split(d, -1)
    for i in range(2):
        cell = nn.GRUCell(d, d).to(words)
        parameters = {
            "weight_ih": module.context_proj.weight[i],
            "bias_ih": module.context_proj.bias[i, 0],
            "weight_hh": module.state_proj.weight[i, d:],
            "bias_hh": module.state_proj.bias[i, 0, d:],
        }
        state, states = words.mean(0, keepdim=True), []
        for _ in range(num_steps):
            query = state @ module.state_proj.weight[i, :d].T + module.state_proj.bias[i, :, :d]
            attended = attend(query, keys_and_values[i], keys_and_values[2 + i], heads)
            context = attended @ module.out_proj.weight[i].T + module.out_proj.bias[i]
            state = torch.func.functional_call(cell, parameters, (context, state))
            states.append(state)
        outputs.append(torch.cat(states if i == 0 else states[::-1]))
    return module.merge(torch.cat(outputs, -1))


def rnn(module, words, heads, num_steps):
    d = words.shape[1]
    gru = nn.GRU(d, d, bidirectional=True).to(words)
    parameters = {}
    for direction, suffix in zip(module.directions, ("", "_reverse")):
        parameters |= {f"{name}{suffix}": parameter for name, parameter in direction.named_parameters()}
    start = words.mean(0).expand(2, -1)
    return module.merge(torch.func.functional_call(gru, parameters, (words, start))[0])


REFERENCES = {"birnn": rnn, "biarn": arn}


def reference(encoder, config, words):
    """Equations 7 and 8 for each layer."""
    h = words
    for number, layer in enumerate(encoder.layers):
        steps = config.recurrence_steps or len(words)
        rec = REFERENCES[config.recurrence_encoder](layer.recurrence, h, config.encoder_attention_heads, steps)
        c = layer.recurrence_layer_norm(rec if number == 0 else rec + h)
        h = layer.final_layer_norm(layer.fc2(layer.fc1(c).relu()) + c)
    return h


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_states_and_gradients_are_those_of_the_equations(kind, layers, batch):
    """In float64, of a padded batch against one sentence at a time in loops; padding at both ends and in between."""
    fields = {**KINDS[kind], "recurrence_layers": layers, **WITHOUT_DROPOUT}
    config = recurrence_config(**fields)
    encoder = build(ode.OdeTransformerRecurrenceModel, **fields).encoder.recurrence.double().train()
    mask = torch.ones(4, 9).long()
    mask[1, 6:] = mask[2, :5] = mask[3, 2] = mask[3, 5:] = 0
    torch.manual_seed(1)
    embeddings = torch.randn(4, 9, 32, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(4, 9, 32, dtype=torch.float64)
    parameters = [embeddings, *encoder.parameters()]

    states = encoder(embeddings, mask)
    expected = [reference(encoder, config, words[is_word == 1]) for words, is_word in zip(embeddings, mask)]
    if config.recurrence_has_words:
        seen = [each[is_word == 1] for each, is_word in zip(states, mask)]
    else:
        assert states.shape == (4, 4, 32)
        seen = list(states)
    for ours, theirs in zip(seen, expected, strict=True):
        assert_close(ours, theirs)
    losses = [sum((each * w[: len(each)]).sum() for each, w in zip(rows, weights)) for rows in (seen, expected)]
    for ours, theirs in zip(*(torch.autograd.grad(loss, parameters) for loss in losses)):
        assert theirs.abs().max() > 1e-3
        assert_close(ours, theirs, scale=10)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("field", WITHOUT_DROPOUT)
def test_each_dropout_is_where_it_belongs(field, kind):
    """With nearly all dropped: embeddings and sublayers (`dropout`), the activation, or the weights of attention."""
    fields = {**kind, **WITHOUT_DROPOUT, field: 0.999}
    network = build(ode.OdeTransformerRecurrenceModel, recurrence_layers=2, **fields).encoder.recurrence.train()
    x, read = torch.randn(20, 8, 32), {}

    def keep(name):
        def hook(module, inputs, output):
            read[name] = inputs[0], output

        return hook

    for name, module in network.named_modules():
        module.register_forward_hook(keep(name))
    network(x)
    dropped = {"embeddings": read["layers.0"][0], "bottom": read["layers.0.recurrence_layer_norm"][0]}
    dropped["recurrence"] = read["layers.1.recurrence_layer_norm"][0] - read["layers.1"][0]
    for i in range(2):
        after, before = read[f"layers.{i}.final_layer_norm"][0], read[f"layers.{i}.recurrence_layer_norm"][1]
        dropped[f"feed-forward {i}"] = after - before
        dropped[f"activation {i}"] = read[f"layers.{i}.fc2"][0]
        if kind["recurrence_encoder"] == "biarn":
            weights, dropped[f"weights {i}"] = read[f"layers.{i}.recurrence.attention_dropout"]
            assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
    fields = {"activation": "activation_dropout", "weights": "attention_dropout"}
    for name, states in dropped.items():
        zeros = (states == 0).float().mean()
        assert zeros > 0.98 if fields.get(name.split()[0], "dropout") == field else zeros < 0.9, name


def block(layer, x, encoded, recurrent, heads, integration):
    """A residual block of the decoder for one target (words, d), in plain PyTorch."""

    def attention(module, norm, z, states):
        z = norm(z)
        states = z if states is None else states
        return module.out_proj(attend_to(module, z, states))

    def attend_to(module, z, states):
        query, keys, values = module.q_proj(z), module.k_proj(states), module.v_proj(states)
        if states is not z:
            return attend(query, keys, values, heads)
        return torch.cat([attend(query[i : i + 1], keys[: i + 1], values[: i + 1], heads) for i in range(len(z))])

    c = x + attention(layer.self_attn, layer.self_attn_layer_norm, x, None)
    d = c + attention(layer.encoder_attn, layer.encoder_attn_layer_norm, c, encoded)
    if layer.recurrence_attn is None:
        z = d
    elif integration == "stack":  # eq. 18
        z = d + attention(layer.recurrence_attn, layer.recurrence_attn_layer_norm, d, recurrent)
    else:  # eqs. 14, 15 and 17
        r = c + attention(layer.recurrence_attn, layer.recurrence_attn_layer_norm, c, recurrent)
        gate = layer.recurrence_gate
        weight = 1 / (1 + torch.exp(-(torch.cat([d, r], -1) @ gate.weight.T + gate.bias)))
        z = weight * d + (1 - weight) * r
    return z + layer.fc2(layer.fc1(layer.final_layer_norm(z)).relu())


@EVERY_FORM
def test_the_decoder_attends_to_both_encoders_as_in_the_equations(form, batch):
    fields = {"encoder_solver": "euler", "max_relative_position": 0, "layer_history": "none"}
    model = build(**form, **fields).double().model
    encoder_outputs = model.encoder(batch["input_ids"], batch["attention_mask"])
    actual = model(**batch).last_hidden_state
    has_words = model.config.recurrence_has_words
    for i, length in enumerate((9, 7, 4)):
        x = model.decoder.embed(model.decoder.embed_tokens(batch["decoder_input_ids"][i : i + 1]))[0]
        encoded, recurrent = encoder_outputs.last_hidden_state[i], encoder_outputs.recurrence_last_hidden_state[i]
        recurrent = recurrent[:length] if has_words else recurrent
        for layer in model.decoder.layers:
            x = block(layer, x, encoded[:length], recurrent, 2, form["recurrence_integration"])
        assert_close(actual[i], model.decoder.layer_norm(x), scale=10)
    layers = [layer.recurrence_attn is not None for layer in model.decoder.layers]
    assert layers == [form["recurrence_decoder_layers"] == "all", True]


@pytest.mark.parametrize("hidden_states", [False, True])
def test_encoder_outputs_are_taken_as_they_come(hidden_states, batch):
    model = build(**KINDS["biarn"])
    expected = model(**batch).logits
    arguments = {name: batch[name] for name in ("attention_mask", "decoder_input_ids")}
    asked = {"output_hidden_states": hidden_states}
    outputs = model.get_encoder()(batch["input_ids"], batch["attention_mask"], **asked)
    assert outputs.recurrence_last_hidden_state.shape == (3, 4, 32)
    as_tuple = model.get_encoder()(batch["input_ids"], batch["attention_mask"], return_dict=False, **asked)
    assert len(as_tuple) == 2 + hidden_states
    for given in (outputs, as_tuple, outputs.to_tuple(), dict(outputs)):
        actual = model(**arguments, encoder_outputs=given, output_hidden_states=hidden_states)
        assert torch.equal(actual.logits, expected)
        if hidden_states:
            assert all(map(torch.equal, actual.encoder_hidden_states, outputs.hidden_states))
    assert torch.equal(model(**batch, return_dict=False)[0], expected)


def test_a_dropped_word_is_dropped_for_both_encoders(batch):
    model = build(**KINDS["biarn"], **WITHOUT_DROPOUT, word_dropout=1 - 1e-7).model.train()
    zeros = torch.zeros(3, 9, 32)
    states = model.encoder(batch["input_ids"], batch["attention_mask"]).recurrence_last_hidden_state
    assert_close(states, model.encoder.recurrence(zeros, batch["attention_mask"]))


def test_a_layer_adds_as_many_parameters_as_the_page_says():
    """At base size, one BiARN layer of the equations and its sublayer at the top of the decoder."""
    with torch.device("meta"):
        models = (
            ode.OdeTransformerForConditionalGeneration(ode.OdeTransformerConfig()),
            ode.OdeTransformerRecurrenceForConditionalGeneration(ode.OdeTransformerRecurrenceConfig()),
        )
    base, extended = (sum(parameter.numel() for parameter in model.parameters()) for model in models)
    assert extended - base == 8_931_328
