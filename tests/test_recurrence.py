# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The recurrence encoder: its equations in plain PyTorch, one sentence at a time, and what is done with a model."""

import itertools

import pytest
import torch
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForSeq2SeqLM,
    DynamicCache,
    EncoderDecoderCache,
    Trainer,
    TrainingArguments,
)
from transformers.modeling_outputs import BaseModelOutput

from modeling_ode_transformer import (
    EnsembleForConditionalGeneration,
    OdeTransformerConfig,
    OdeTransformerForCausalLM,
    OdeTransformerForConditionalGeneration,
    OdeTransformerModel,
)
from modeling_ode_transformer.cache_ode_transformer import BeamSearchCache
from modeling_ode_transformer.conversion.residual import from_residual, to_residual
from modeling_ode_transformer.recurrence_ode_transformer import OdeTransformerRecurrenceEncoder

from .conftest import SOLVERS, assert_close, randomize, tiny_config
from .test_cache import generate, lively, source, watched  # noqa: F401


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
BLOCKS = [
    *({"encoder_solver": solver, "decoder_solver": solver} for solver in SOLVERS),
    {"encoder_solver": "leapfrog", "decoder_solver": "dlcl", "vector_field": "sublayers", "steps_per_layer": 2},
    {"decoder_solver": "multistep", "layer_history": "none"},
    *({"decoder_solver": "rk2", "vector_field": field} for field in ("attention", "ffn", "sublayers", "macaron")),
    {"decoder_solver": "rk4", "stage_values": "output"},
    {"decoder_solver": "rk2", "predictor_corrector": True, "normalize_stages": True},
    {"decoder_solver": "rk2", "max_relative_position": 0, "position_embedding_type": "learned"},
]
EVERY_FORM = pytest.mark.parametrize("form", FORMS, ids=lambda form: " ".join(map(str, form.values())))
# One form of each kind, each integration and each place at least once.
SOME_FORMS = pytest.mark.parametrize("form", [FORMS[0], FORMS[6], FORMS[7], FORMS[9]], ids=str)
# Each block in the decoder with one form, the forms taking turns.
EVERY_BLOCK = pytest.mark.parametrize(
    "form", [{**FORMS[5 * i % len(FORMS)], **block} for i, block in enumerate(BLOCKS)], ids=str
)
WITHOUT_DROPOUT = dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.0)


def build(model_class=OdeTransformerForConditionalGeneration, **fields):
    """No parameter at its start: the new sublayer counts."""
    torch.manual_seed(0)
    return randomize(model_class(tiny_config(**fields)))


def lively_with(**fields):
    """As `lively`, with a new sublayer that counts as much as the others, and more tokens that end an output."""
    model = lively(**fields)
    model.generation_config.eos_token_id = [2, 5, 7, 8, 11, 13, 17]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("recurrence_attn.out_proj.weight"):
                parameter.normal_(std=0.5)
    return model


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
    config = tiny_config(**KINDS[kind], recurrence_layers=layers, **WITHOUT_DROPOUT)
    encoder = build(OdeTransformerModel, **config.to_diff_dict()).encoder.recurrence.double().train()
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
    losses = [
        sum((each * w[: len(each)]).sum() for each, w in zip(sentences, weights)) for sentences in (seen, expected)
    ]
    for ours, theirs in zip(*(torch.autograd.grad(loss, parameters) for loss in losses)):
        assert theirs.abs().max() > 1e-3
        assert_close(ours, theirs, scale=10)


def test_only_a_recurrent_network_knows_the_order_of_words():
    embeddings = torch.randn(2, 7, 32, generator=torch.Generator().manual_seed(0))
    for kind in ("birnn", "biarn"):
        encoder = build(OdeTransformerModel, **KINDS[kind]).encoder.recurrence
        difference = (encoder(embeddings) - encoder(embeddings.flip(1))).abs().max()
        assert (difference < 1e-5) == (kind == "biarn")


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


# Independence of the neighbours, and of the way


@EVERY_FORM
def test_padding_changes_nothing(form, batch):
    check_padding(form, batch)


@EVERY_BLOCK
def test_padding_changes_nothing_with_other_blocks(form, batch):
    check_padding(form, batch)


def check_padding(form, batch):
    model = build(**form).double()
    expected = model(**batch).logits
    for i, length in enumerate((9, 7, 4)):
        ids = batch["input_ids"][i : i + 1, :length]
        targets = batch["decoder_input_ids"][i : i + 1]
        assert_close(model(ids, decoder_input_ids=targets).logits[0], expected[i])
        left = torch.cat([torch.ones(1, 3, dtype=torch.long), ids], 1)
        assert_close(model(left, (left != 1).long(), targets).logits[0], expected[i])
        assert not torch.isnan(model(left, torch.zeros_like(left), targets).logits).any()


@EVERY_FORM
def test_cached_and_uncached_logits_agree(form, batch):
    check_cache(form, batch)


@EVERY_BLOCK
def test_cached_and_uncached_logits_agree_with_other_blocks(form, batch):
    check_cache(form, batch)


def check_cache(form, batch):
    model = build(**form).double()
    ids = batch["decoder_input_ids"]
    encoder_outputs = model.get_encoder()(batch["input_ids"], batch["attention_mask"])
    expected = model(**batch).logits
    arguments = {"attention_mask": batch["attention_mask"], "encoder_outputs": encoder_outputs}
    outputs = model(**arguments, decoder_input_ids=ids[:, :2])
    logits = [outputs.logits]
    projected = []
    for layer in model.model.decoder.layers:
        for attention in (layer.encoder_attn, layer.recurrence_attn):
            if attention is not None:
                attention.k_proj.register_forward_hook(lambda *args: projected.append(args))
    for position in range(2, 6):
        outputs = model(
            **arguments,
            decoder_input_ids=ids[:, position : position + 1],
            past_key_values=outputs.past_key_values,
        )
        logits.append(outputs.logits)
    assert_close(torch.cat(logits, 1), expected)
    assert not projected
    plain = build(**{**form, "recurrence_encoder": "none"}).double()
    assert (plain(**batch).logits - expected).abs().max() > 1e-3


SEARCHES = {
    "greedy": {},
    "4 beams": {"num_beams": 4, "early_stopping": True},
    "3 of 3 beams": {"num_beams": 3, "num_return_sequences": 3, "length_penalty": 0.6},
    "prompt": {"num_beams": 5, "decoder_input_ids": torch.arange(10, 34).view(6, 4)},
    "beam sampling": {"num_beams": 3, "do_sample": True},
    "sampling": {"do_sample": True, "num_return_sequences": 3},
}


@SOME_FORMS
def test_every_search_finds_what_it_finds_without_a_cache(form, source, watched):  # noqa: F811
    model = lively_with(**form, decoder_solver="rk2", solver_coefficients="fixed")
    states = model.get_encoder()(**source)
    for name, options in SEARCHES.items():
        used = watched.searches
        tokens = generate(model, source, **options)
        assert (watched.searches > used) == ("num_beams" in options), name
        assert torch.equal(tokens, generate(model, source, use_cache=False, **options)), name
        given = {"encoder_outputs": states, "attention_mask": source["attention_mask"]}
        assert torch.equal(tokens, generate(model, given, **options)), name
    assert watched.moves and watched.leaves
    options = SEARCHES["4 beams"]
    expected = generate(model, source, **options)
    used = watched.searches
    own = EncoderDecoderCache(*(DynamicCache(config=model.config) for _ in range(2)))
    others = [
        generate(model, source, past_key_values=own, **options),
        generate(model, source, cache_implementation="static", disable_compile=True, **options),
        generate(model, source, return_dict_in_generate=True, **options).sequences,
    ]
    assert watched.searches == used
    assert all(torch.equal(other, expected) for other in others)
    without = lively(**{**form, "recurrence_encoder": "none"}, decoder_solver="rk2", solver_coefficients="fixed")
    assert not torch.equal(generate(without, source, **options), expected)


@SOME_FORMS
def test_assisted_decoding_is_greedy_search(form, source):  # noqa: F811
    model = lively_with(**form, decoder_solver="rk2", solver_coefficients="fixed")
    one = source["input_ids"][:1]
    expected = model.generate(one, num_beams=1).tolist()
    for assistant in (lively(), lively_with(**form), model):
        assert model.generate(one, num_beams=1, assistant_model=assistant).tolist() == expected
    assert model.generate(one, num_beams=1, prompt_lookup_num_tokens=2).tolist() == expected


@pytest.mark.parametrize("kind", KINDS)
def test_beam_search_keeps_one_copy_for_each_source(kind, source, monkeypatch):  # noqa: F811
    model = lively_with(**KINDS[kind], recurrence_decoder_layers="all")
    rows, projected = [], []
    model.model.decoder.register_forward_pre_hook(
        lambda module, args, kwargs: rows.append(
            (len(kwargs["input_ids"]) // 4, len(kwargs["recurrence_hidden_states"]))
        ),
        with_kwargs=True,
    )
    for layer in model.model.decoder.layers:
        layer.recurrence_attn.k_proj.register_forward_hook(lambda _, args, output: projected.append(len(output)))
    caches = []
    select = BeamSearchCache.batch_select_indices
    monkeypatch.setattr(
        BeamSearchCache, "batch_select_indices", lambda self, kept: caches.append(len(kept)) or select(self, kept)
    )
    generate(model, source, num_beams=4, early_stopping=True)
    assert projected == [6, 6]
    assert caches and min(caches) < 6
    assert all(targets == states for targets, states in rows) and rows[-1][0] == caches[-1]


@SOME_FORMS
def test_packed_and_joined_projections_compute_the_same(form, source):  # noqa: F811
    model = lively_with(**form)
    expected = generate(model, source, num_beams=3)
    logits = model(**source, decoder_input_ids=source["input_ids"]).logits
    packed = model.pack_for_inference()
    assert_close(packed(**source, decoder_input_ids=source["input_ids"]).logits, logits, scale=100)
    assert torch.equal(generate(packed, source, num_beams=3), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_an_ensemble_of_one_searches_as_its_member(kind, source):  # noqa: F811
    model = lively_with(**KINDS[kind])
    other = lively_with(seed=1)
    for options in ({"num_beams": 4}, {}, {"num_beams": 3, "cache_implementation": "static", "disable_compile": True}):
        alone = EnsembleForConditionalGeneration([model]).generate(**source, **options)
        assert torch.equal(alone, model.generate(**source, **options))
    both = EnsembleForConditionalGeneration([model, other]).generate(**source, num_beams=3)
    assert torch.equal(both, EnsembleForConditionalGeneration([other, model]).generate(**source, num_beams=3))


# Outputs of the encoder


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


def test_outputs_are_those_of_the_layers_without_the_recurrence(batch):
    for form in FORMS:
        model = build(**form)
        sdpa = model(**batch).logits
        model.set_attn_implementation("eager")
        outputs = model(**batch, output_attentions=True, output_hidden_states=True)
        assert_close(outputs.logits, sdpa)
        assert [len(x) for x in (outputs.encoder_hidden_states, outputs.decoder_hidden_states)] == [4, 3]
        assert [tuple(x.shape) for x in outputs.encoder_attentions] == [(3, 4, 9, 9)] * 3
        assert [tuple(x.shape) for x in outputs.cross_attentions] == [(3, 2, 6, 9)] * 2


def test_encoder_outputs_without_the_recurrence_are_refused(batch):
    model = build(**KINDS["biarn"])
    arguments = {name: batch[name] for name in ("attention_mask", "decoder_input_ids")}
    states = model.get_encoder()(batch["input_ids"]).last_hidden_state
    for given in (BaseModelOutput(last_hidden_state=states), (states,), {"last_hidden_state": states}):
        with pytest.raises(ValueError, match=r"recurrence_encoder='biarn'.*recurrence_last_hidden_state.*its encoder"):
            model(**arguments, encoder_outputs=given)
    with pytest.raises(ValueError, match=r"shape \(3, 1, 9, 9\).*takes one of shape \(3, 9\)"):
        model(batch["input_ids"], torch.ones(3, 1, 9, 9), batch["decoder_input_ids"])


def test_a_dropped_word_is_dropped_for_both_encoders(batch):
    model = build(**KINDS["biarn"], **WITHOUT_DROPOUT, word_dropout=1 - 1e-7).model.train()
    zeros = torch.zeros(3, 9, 32)
    states = model.encoder(batch["input_ids"], batch["attention_mask"]).recurrence_last_hidden_state
    assert_close(states, model.encoder.recurrence(zeros, batch["attention_mask"]))


# Starting from a trained model without it


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layers", ["top", "all"])
def test_a_trained_model_starts_with_its_own_outputs(kind, layers, tmp_path, batch):
    for number, fields in enumerate(({}, {"decoder_solver": "rk4", "vector_field": "sublayers"})):
        trained = build(**fields)
        trained.save_pretrained(tmp_path / str(number))
        model, report = OdeTransformerForConditionalGeneration.from_pretrained(
            tmp_path / str(number), **KINDS[kind], recurrence_decoder_layers=layers, output_loading_info=True
        )
        assert report["missing_keys"] and all("recurrence" in name for name in report["missing_keys"])
        assert not report["unexpected_keys"] and not report["mismatched_keys"]
        assert torch.equal(model(**batch).logits, trained(**batch).logits)
        # One update, and it is put to use.
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(**batch, labels=batch["decoder_input_ids"]).loss.backward()
        optimizer.step()
        new = model.model.decoder.layers[-1].recurrence_attn.out_proj.weight
        assert new.abs().max() > 1e-4
        model.zero_grad()
        model(**batch, labels=batch["decoder_input_ids"]).loss.backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None and (parameter.grad.abs().max() > 0 or "k_proj.bias" in name), name


def test_a_gated_sum_starts_with_other_outputs(tmp_path, batch):
    trained = build()
    trained.save_pretrained(tmp_path)
    model = OdeTransformerForConditionalGeneration.from_pretrained(
        tmp_path, **KINDS["biarn"], recurrence_integration="gated_sum"
    )
    assert (model(**batch).logits - trained(**batch).logits).abs().max() > 1e-3


def test_new_parameters_have_their_initial_values(tmp_path):
    """Xavier's bounds of the matrices as they are stored, biases 0, the new sublayer's output 0 where no gate weighs
    it; of a new model and of one that is loaded without them."""
    fields = {"d_model": 256, "encoder_ffn_dim": 512}
    OdeTransformerForConditionalGeneration(tiny_config(**fields)).save_pretrained(tmp_path)
    for kind in (*KINDS.values(), {**KINDS["birnn"], "recurrence_integration": "gated_sum"}):
        torch.manual_seed(0)
        new = OdeTransformerForConditionalGeneration(tiny_config(**fields, **kind))
        loaded = OdeTransformerForConditionalGeneration.from_pretrained(tmp_path, **kind)
        for model in (new, loaded):
            parameters = dict(model.model.encoder.recurrence.named_parameters())
            top = model.model.decoder.layers[-1]
            if top.recurrence_gate is not None:
                parameters |= top.recurrence_gate.named_parameters(prefix="gate")
            else:
                output = top.recurrence_attn.out_proj
                assert output.weight.abs().max() == output.bias.abs().max() == 0
            assert ("gate.weight" in parameters) == ("recurrence_integration" in kind)
            for name, parameter in parameters.items():
                if "norm" in name:
                    assert (parameter == (1 if "weight" in name else 0)).all()
                elif "bias" in name:
                    assert (parameter == 0).all(), name
                else:
                    bound = (6 / sum(parameter.shape[-2:])) ** 0.5
                    assert 0.99 * bound < parameter.abs().max().item() <= bound, name


# Sizes


def count(**fields):
    with torch.device("meta"):
        model = OdeTransformerForConditionalGeneration(OdeTransformerConfig(**fields))
    return sum(parameter.numel() for parameter in model.parameters())


def test_parameters_are_those_of_the_closed_form():
    """Of base size; the paper counts 9.4M for one BiARN layer, stack, top."""
    d, ffn = 512, 2048
    linear = lambda inputs, outputs: inputs * outputs + outputs  # noqa: E731
    norm, attention = 2 * d, 4 * linear(d, d)
    gru = linear(d, 3 * d) + linear(d, 3 * d)
    rest = linear(2 * d, d) + linear(d, ffn) + linear(ffn, d) + 2 * norm
    recurrent = {"birnn": 2 * gru + rest, "biarn": 2 * (attention + gru) + rest}
    added = {"stack": attention + norm, "gated_sum": attention + norm + 2 * d + 1}
    base = count()
    for kind, layers, (integration, where) in itertools.product(recurrent, (1, 3), INTEGRATIONS):
        form = {"recurrence_encoder": kind, "recurrence_layers": layers, "recurrence_integration": integration}
        expected = layers * recurrent[kind] + (6 if where == "all" else 1) * added[integration]
        assert count(**form, recurrence_decoder_layers=where) - base == expected
    assert recurrent["biarn"] + added["stack"] == 8_931_328


# Training


@SOME_FORMS
@pytest.mark.parametrize("arguments", [{}, {"use_reentrant": True}, {"stages": True}], ids=str)
def test_checkpointing_changes_no_gradient(form, arguments, batch):
    gradients = []
    for checkpointing in (False, True):
        model = build(**form, **WITHOUT_DROPOUT, decoder_solver="rk2").double().train()
        if checkpointing:
            model.activation_checkpointing_enable(dict(arguments))
            model.enable_input_require_grads()
            layers = model.model.encoder.recurrence.layers
            assert all(layer.gradient_checkpointing == ("stages" not in arguments) for layer in layers)
        model(**batch, labels=batch["decoder_input_ids"], use_cache=False).loss.backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    for name, gradient in gradients[0].items():
        assert gradient is not None, name
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("form", [FORMS[0], FORMS[4], FORMS[7], FORMS[8]], ids=str)
def test_the_trainer_lowers_the_loss(form, tmp_path, batch):
    torch.manual_seed(0)
    model = OdeTransformerForConditionalGeneration(tiny_config(**form))
    labels = batch.pop("decoder_input_ids")
    examples = [{name: tensor[i] for name, tensor in {**batch, "labels": labels}.items()} for i in range(3)]
    options = {"max_steps": 8, "per_device_train_batch_size": 3, "learning_rate": 3e-3, "logging_steps": 1}
    arguments = TrainingArguments(tmp_path, report_to=[], use_cpu=True, save_strategy="no", **options)
    trainer = Trainer(model, arguments, train_dataset=examples)
    before = model.model.encoder.recurrence.layers[0].fc1.weight.clone()
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0] - 0.5
    assert not torch.equal(model.model.encoder.recurrence.layers[0].fc1.weight, before)


@EVERY_FORM
def test_autocast_has_nearly_the_gradients_of_float32(form, batch):
    model = build(**form, **WITHOUT_DROPOUT).train()
    gradients = []
    for enabled in (False, True):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            loss = model(**batch, labels=batch["decoder_input_ids"]).loss
        loss.backward()
        gradients.append([parameter.grad for parameter in model.model.encoder.recurrence.parameters()])
    for exact, rounded in zip(*gradients):
        assert rounded.dtype == torch.float32
        assert (exact - rounded).norm() < 0.2 * exact.norm() + 1e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@EVERY_FORM
def test_half_precision_is_close_and_finite(dtype, form, batch):
    model = build(**form)
    expected = model(**batch).logits
    actual = model.to(dtype)(**batch).logits
    assert actual.dtype == dtype
    assert_close(actual, expected.to(dtype), scale=3)


# Compiled, exported, saved, converted


@pytest.mark.parametrize("form", [FORMS[7], FORMS[8]], ids=str)
def test_the_forward_pass_compiles_into_one_graph(form, batch):
    model = build(**form)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert_close(compiled(**batch, use_cache=False).logits, model(**batch).logits)


@pytest.mark.parametrize("form", [FORMS[0], FORMS[4], FORMS[7], FORMS[8]], ids=str)
def test_the_forward_pass_exports(form, batch):
    model = build(**form)
    exported = torch.export.export(model, (), {**batch, "use_cache": False}, strict=False)
    with torch.no_grad():
        assert_close(exported.module()(**batch, use_cache=False).logits, model(**batch).logits)


@SOME_FORMS
def test_saved_models_come_back_through_the_auto_classes(form, tmp_path, batch):
    model = build(**form)
    model.save_pretrained(tmp_path)
    for auto_class in (AutoModelForSeq2SeqLM, AutoModel):
        loaded, report = auto_class.from_pretrained(tmp_path, output_loading_info=True)
        assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
        expected = model.state_dict() if auto_class is AutoModelForSeq2SeqLM else model.model.state_dict()
        assert loaded.state_dict().keys() == expected.keys()
        assert all(torch.equal(loaded.state_dict()[name], tensor) for name, tensor in expected.items())
    assert loaded.config.to_diff_dict() == model.config.to_diff_dict()


@pytest.mark.parametrize("kind", KINDS)
def test_weights_on_disk_are_read_when_needed(kind, tmp_path, batch):
    model = build(**KINDS[kind])
    model.save_pretrained(tmp_path / "model")
    loaded = OdeTransformerForConditionalGeneration.from_pretrained(
        tmp_path / "model", device_map={"": "disk"}, offload_folder=tmp_path / "offload"
    )
    with torch.no_grad():
        assert_close(loaded(**batch).logits, model(**batch).logits)


def test_a_configuration_of_before_has_no_recurrence_encoder(tmp_path):
    fields = tiny_config().to_dict()
    old = {name: value for name, value in fields.items() if not name.startswith("recurrence_")}
    assert OdeTransformerConfig.from_dict(old).to_dict() == fields
    assert OdeTransformerModel(tiny_config()).encoder.recurrence is None


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"recurrence_encoder": "lstm"}, "recurrence_encoder='lstm' is unknown: choose one of none, birnn, biarn"),
        ({"recurrence_integration": "sum"}, "choose one of stack, gated_sum"),
        ({"recurrence_decoder_layers": "bottom"}, "choose one of top, all"),
        ({"recurrence_layers": 0}, "recurrence_layers=0 must be at least 1"),
        ({"recurrence_steps": 0}, "recurrence_steps=0 must be at least 1, or None"),
        ({"recurrence_steps": "8"}, "recurrence_steps"),
    ],
)
def test_what_is_no_recurrence_encoder_is_refused(fields, message):
    with pytest.raises(Exception, match=message):
        tiny_config(**{"recurrence_encoder": "biarn", **fields})


def test_fields_without_effect_are_named(monkeypatch):
    messages = []
    module = "modeling_ode_transformer.configuration_ode_transformer.logger.warning_once"
    monkeypatch.setattr(module, messages.append)
    tiny_config(recurrence_layers=2, recurrence_integration="gated_sum")
    tiny_config(recurrence_encoder="birnn", recurrence_steps=4)
    for form in FORMS:
        tiny_config(**form)
    assert [message.split(" has no effect: ") for message in messages] == [
        ["recurrence_layers=2, recurrence_integration='gated_sum'", "recurrence_encoder='none'."],
        ["recurrence_steps=4", "recurrence_encoder='birnn'."],
    ]


def test_a_language_model_has_no_second_encoder_either():
    with pytest.raises(ValueError, match="recurrence_encoder='biarn' is a second encoder"):
        OdeTransformerForCausalLM(tiny_config(**KINDS["biarn"]))


def test_no_residual_model_has_a_recurrence_encoder():
    plain = {"encoder_solver": "euler", "layer_history": "none", "max_relative_position": 0}
    model = build(**KINDS["biarn"], **plain)
    with pytest.raises(ValueError, match="recurrence_encoder='biarn' would have to be 'none'"):
        to_residual(model)
    residual = to_residual(build(**plain, recurrence_layers=2))
    with pytest.raises(ValueError, match=r"recurrence_encoder='birnn' has parameters.*give it to from_pretrained"):
        from_residual(residual, recurrence_encoder="birnn")


def test_every_mask_is_one_of_words():
    encoder = OdeTransformerRecurrenceEncoder(tiny_config(**KINDS["biarn"]))
    with pytest.raises(ValueError, match=r"shape \(2, 1\).*takes one of shape \(2, 3\)"):
        encoder(torch.zeros(2, 3, 32), torch.ones(2, 1))


@pytest.mark.parametrize("kind", ["none", "biarn"])
def test_modules_not_to_be_split_are_in_the_model(kind):
    """FSDP refuses the name of a class that the model does not have."""
    model = OdeTransformerForConditionalGeneration(tiny_config(recurrence_encoder=kind))
    assert model._no_split_modules <= {type(module).__name__ for module in model.modules()}
    assert ("OdeTransformerRecurrenceLayer" in model._no_split_modules) == (kind != "none")
