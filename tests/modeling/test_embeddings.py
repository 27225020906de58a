# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Embeddings that are resized, saved and loaded; dropout."""

import itertools
import math

import pytest
import torch
from torch import nn

import modeling_ode_transformer as ode

from ..conftest import build, tiny_config


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


@pytest.mark.parametrize("model_class", [ode.OdeTransformerForConditionalGeneration, ode.OdeTransformerForCausalLM])
def test_a_resized_output_projection_is_what_it_was(model_class):
    """Its class and its old rows."""
    model = build(model_class, tie_word_embeddings=False)
    old = model.lm_head.weight.clone()
    model.resize_token_embeddings(1061, mean_resizing=False)
    assert type(model.lm_head) is nn.Linear
    assert torch.equal(model.lm_head.weight[:61], old) and model.lm_head.weight.requires_grad
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


@pytest.mark.parametrize("vector_field", ["layer", "macaron"])
@pytest.mark.parametrize("field", ["dropout", "activation_dropout"])
def test_each_dropout_is_where_it_belongs(field, vector_field):
    """With nearly all dropped: embeddings and what sublayers add (`dropout`), or what the activation gives."""
    fields = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0, field: 0.999}
    fields |= {"encoder_solver": "euler", "coefficients": "fixed", "vector_field": vector_field}
    model, x, read = build(ode.OdeTransformerModel, **fields).train(), torch.randn(3, 40, 32), {}
    for stack in ("encoder", "decoder"):
        layer = getattr(model, stack).layers[0]
        for name in ("", "fc2", *(["macaron_fc2"] if vector_field == "macaron" else [])):
            layer.get_submodule(name).register_forward_pre_hook(
                lambda module, inputs, key=(stack, name): read.update({key: inputs[0]})
            )
    output = model(inputs_embeds=x, decoder_inputs_embeds=x, output_hidden_states=True)
    assert len(read) == (6 if vector_field == "macaron" else 4)
    for (stack, name), tensor in read.items():
        zeros = (tensor == 0).float().mean()
        is_dropped = (field == "activation_dropout") == bool(name)
        assert zeros > 0.99 if is_dropped else zeros < 0.9, (stack, name)
    if field == "dropout":
        for before, after, *_ in (output.encoder_hidden_states, output.decoder_hidden_states):
            assert ((after - before) == 0).float().mean() > 0.99


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("attention", ["encoder self_attn", "decoder self_attn", "decoder encoder_attn"])
@torch.no_grad()
def test_each_attention_has_dropout(attention, implementation):
    stack, name = attention.split()
    model = build(ode.OdeTransformerModel, dropout=0.0, attention_dropout=0.5, activation_dropout=0.0).eval()
    model.set_attn_implementation(implementation)
    inputs = {"input_ids": torch.randint(4, 61, (3, 7)), "decoder_input_ids": torch.randint(4, 61, (3, 7))}
    expected = model(**inputs)
    for layer in getattr(model, stack).layers:
        getattr(layer, name).train()
    first, second = (model(**inputs) for _ in range(2))
    for output in ("encoder_last_hidden_state", "last_hidden_state"):
        states = [each[output] for each in (first, second, expected)]
        is_after = stack == "encoder" or output == "last_hidden_state"
        for one, other in itertools.combinations(states, 2):
            assert torch.allclose(one, other, atol=1e-5) != is_after


def test_the_sources_vocabulary_is_resized_alone():
    model = build(share_encoder_decoder_embeddings=False, decoder_vocab_size=40)
    model.resize_token_embeddings(70)
    assert model.config.vocab_size == 70 and model.lm_head.weight.shape == (40, 32)
    assert model(torch.full((1, 3), 69), decoder_input_ids=torch.full((1, 3), 39)).logits.shape == (1, 3, 40)


@pytest.mark.parametrize("shared, tied", [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("model_class", [ode.OdeTransformerForConditionalGeneration, ode.OdeTransformerForCausalLM])
def test_saved_models_come_back(model_class, shared, tied, tmp_path, batch):
    fields = {"share_encoder_decoder_embeddings": shared, "tie_word_embeddings": tied, "coefficients": "learned"}
    model = build(model_class, decoder_solver="rk4", **fields)
    model.save_pretrained(tmp_path)
    loaded, information = model_class.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(information[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert loaded.state_dict().keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
    if model_class is ode.OdeTransformerForConditionalGeneration:
        matrices = {id(m.weight) for m in (loaded.model.encoder.embed_tokens, loaded.model.decoder.embed_tokens)}
        assert len(matrices) == (1 if shared else 2)
        assert (loaded.lm_head.weight is loaded.model.decoder.embed_tokens.weight) == tied
    half = model_class.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in half.parameters()} == {torch.bfloat16}


def test_missing_parameters_are_initialized_not_garbage(tmp_path):
    build().save_pretrained(tmp_path)
    fields = {"encoder_coefficients": "learned", "max_relative_position": 4, "layer_history": "learned_dense"}
    fields |= {"encoder_solver": "rk4", "ignore_mismatched_sizes": True}
    model = ode.OdeTransformerForConditionalGeneration.from_pretrained(tmp_path, **fields)
    assert model.model.encoder.solver_coefficients.weight.tolist() == [1.0] * 4
    # 2 * 4 + 1 vectors of 8 numbers
    keys, bound = model.model.encoder.layers[0].self_attn.relative_keys.weight, math.sqrt(6 / (9 + 8))
    assert keys.shape == (9, 8) and 0.9 * bound < keys.abs().max().item() <= bound
    fields = {"encoder_solver": "pcformer", "encoder_coefficients": "ema", "coefficient_sharing": "channel"}
    fields |= {"decoder_solver": "multistep", "normalize_stages": True}
    model = ode.OdeTransformerForConditionalGeneration.from_pretrained(tmp_path, **fields)
    assert model.model.encoder.solver_coefficients.weight.tolist() == [0.5] * 32
    assert model.model.encoder.corrector.weight[1].tolist() == [0.5, 0.5, 0, 0]
    assert model.model.encoder.stage_norms[1].weight.tolist() == [1] * 32
    assert model.model.decoder.multistep.weight.tolist() == [1, 1]


@pytest.mark.parametrize(
    "mode, solver", [("gate", "rk2"), ("scaled_gate", "midpoint"), ("sigmoid", "rk4"), ("tanh", "rk3")]
)
def test_gates_that_start_even_weigh_every_stage_of_every_token_alike(mode, solver):
    """1/n each, with weights of zero, in a new model as in one whose gates a checkpoint lacks."""
    fields = {"encoder_solver": solver, "encoder_coefficients": mode, "coefficient_start": "even"}
    coefficients = ode.OdeTransformerForConditionalGeneration(tiny_config(**fields)).model.encoder.solver_coefficients
    number = coefficients.tableau.num_stages
    assert not coefficients.gate.weight.any()
    weights = coefficients([torch.randn(2, 5, 32) for _ in range(number)])
    torch.testing.assert_close(torch.stack(list(weights)), torch.full((number, 2, 5, 1), 1 / number))
    random = ode.OdeTransformerForConditionalGeneration(tiny_config(**fields | {"coefficient_start": "random"}))
    assert random.model.encoder.solver_coefficients.gate.weight.any()


def test_gates_weigh_stages_that_are_normalized(batch):
    """With `normalize_stages` the gate reads LN_i(F_i): the size of F_2 does not matter to it."""
    model = build(encoder_solver="rk2", encoder_coefficients="gate", normalize_stages=True)
    read = []
    gate = model.model.encoder.solver_coefficients.gate
    gate.register_forward_pre_hook(lambda module, arguments: read.append(arguments[0]))
    model.model.encoder(batch["input_ids"])
    norms = model.model.encoder.stage_norms
    for stages in read:
        for stage, norm in zip(stages.chunk(2, dim=-1), norms):
            plain = (stage - norm.bias) / norm.weight
            torch.testing.assert_close(plain.mean(-1), torch.zeros(stage.shape[:2]), atol=1e-5, rtol=0)
            torch.testing.assert_close(plain.var(-1, correction=0), torch.ones(stage.shape[:2]), atol=1e-3, rtol=0)
