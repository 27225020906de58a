# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Muon: the optimizer beside torch's own, which parameters it takes, and what a Trainer makes of `--optim muon`."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from modeling_ode_transformer import OdeTransformerConfig, OdeTransformerForConditionalGeneration
from modeling_ode_transformer.inference.cpu import optimize_for_cpu
from modeling_ode_transformer.training.muon import Muon, layer_matrices, muon_groups, orthogonalized
from modeling_ode_transformer.training.trainer import TokenSeq2SeqTrainingArguments


def tiny(**fields):
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    return OdeTransformerForConditionalGeneration(OdeTransformerConfig(vocab_size=40, **sizes, **heads, **fields))


def test_weights_are_those_of_torch():
    # torch's Muon has a loop over matrices, in bfloat16. Adam's parameters are torch's AdamW's.
    torch.manual_seed(0)
    shapes = [(8, 8), (8, 8), (24, 8), (8, 24), (7,)]
    ours = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    theirs = [torch.nn.Parameter(weight.detach().clone()) for weight in ours]
    groups = [{"params": ours[:4], "muon": True, "lr": 0.02}, {"params": ours[4:]}]
    optimizer = Muon(groups, lr=0.003, weight_decay=0.1)
    muon = torch.optim.Muon(theirs[:4], lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    adam = torch.optim.AdamW(theirs[4:], lr=0.003, weight_decay=0.1)
    for _ in range(5):
        for one, other in zip(ours, theirs):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        for each in (optimizer, muon, adam):
            each.step()
    # Both round to 8 bits on the way, in another order.
    for one, other, shape in zip(ours, theirs, shapes):
        torch.testing.assert_close(one, other, atol=0 if len(shape) == 1 else 3e-3, rtol=0)


def test_singular_values_become_one():
    torch.manual_seed(0)
    for shape in ((3, 16, 64), (2, 64, 16)):
        values = torch.linalg.svdvals(orthogonalized(torch.randn(shape), torch.float32))
        assert values.min() > 0.6 and values.max() < 1.3


@pytest.mark.parametrize("optimized", [False, True])
def test_matrices_of_attention_and_feed_forward_are_taken(optimized):
    model = tiny(encoder_solver="rk2", encoder_coefficients="gate")
    if optimized:
        optimize_for_cpu(model)
    matrices = layer_matrices(model)
    taken = {name for name, weight in model.named_parameters() if weight in matrices}
    encoder = {f"model.encoder.layers.0.self_attn.{name}_proj.weight" for name in ("q", "k", "v", "out")}
    assert encoder <= taken
    assert len(taken) == 4 + 2 + 8 + 2  # an encoder's layer and a decoder's
    assert all(".layers." in name and name.endswith(("_proj.weight", "fc1.weight", "fc2.weight")) for name in taken)


def test_groups_hold_every_parameter_once():
    config = LlamaConfig(vocab_size=9, hidden_size=16, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2)
    for model in (tiny(), tiny(tie_word_embeddings=False), LlamaForCausalLM(config)):
        weights = [weight for group in muon_groups(model, 0.01, 0.1, {"nothing"}) for weight in group["params"]]
        assert len(weights) == len(set(weights)) == len(list(model.parameters()))


def test_a_model_without_matrices_is_refused():
    with pytest.raises(ValueError, match="--optim muon: Embedding has no linear layers"):
        muon_groups(torch.nn.Embedding(3, 4), 0.01, 0.0, set())


def test_arguments_keep_the_name(tmp_path):
    assert TokenSeq2SeqTrainingArguments(str(tmp_path), optim="muon").optim == "muon"
    assert TokenSeq2SeqTrainingArguments(str(tmp_path)).optim == "adamw_torch_fused"
