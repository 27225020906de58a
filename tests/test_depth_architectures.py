# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Models of transformers with integrated layers: each architecture of the table in docs/depth.md, each of its columns.

The reference is the original model, or the integrated model without a cache, without compilation, ...
"""

import copy
import re
from functools import cache
from pathlib import Path

import pytest
import torch
import transformers
from accelerate.utils import send_to_device
from accelerate.utils.modeling import clean_device_map
from peft import LoraConfig, get_peft_model
from torch._subclasses import FakeTensorMode

import modeling_ode_transformer as ode

from .test_device_maps import DEVICES, names_of_parts, place


TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
ENCODER = {
    **TOKENS,
    **{"vocab_size": 99, "hidden_size": 32, "intermediate_size": 64, "max_position_embeddings": 64},
    **{"num_hidden_layers": 2, "num_attention_heads": 4},
}
DECODER = {**ENCODER, "num_key_value_heads": 2}
LAYERS = ["sliding_attention", "full_attention"]
EXPERTS = {"moe_intermediate_size": 16, "num_experts_per_tok": 2}
DEEPSEEK = {"n_routed_experts": 4, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "q_lora_rank": 16}
DEEPSEEK |= {"kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, **ENCODER, **EXPERTS}
T5 = {"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
T5 |= {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 2}
PAIR = {
    **TOKENS,
    **{"vocab_size": 99, "d_model": 32, "max_position_embeddings": 64, "decoder_start_token_id": 2},
    **{"encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 64},
    **{"decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 64},
}
IMAGES = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "image_size": 16, "patch_size": 8}
# Names in the table, kinds, names of configurations without "Config", and fields.
ARCHITECTURES = {
    "Llama": ("decoder", "Llama", DECODER),
    "Mistral": ("decoder", "Mistral", {**DECODER, "sliding_window": 6}),
    "Qwen2": ("decoder", "Qwen2", DECODER),
    "Qwen3": ("decoder", "Qwen3", {**DECODER, "head_dim": 8}),
    "Gemma 3": ("decoder", "Gemma3Text", {**DECODER, "head_dim": 8, "sliding_window": 6, "layer_types": LAYERS}),
    "Phi 3": ("decoder", "Phi3", DECODER),
    "SmolLM3": ("decoder", "SmolLM3", DECODER),
    "OLMo 2": ("decoder", "Olmo2", DECODER),
    "GPT-2": ("decoder", "GPT2", {**TOKENS, "vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4}),
    "GPT-NeoX": ("decoder", "GPTNeoX", ENCODER),
    "OPT": ("decoder", "OPT", {**ENCODER, "ffn_dim": 64, "word_embed_proj_dim": 32}),
    "Mixtral": ("decoder", "Mixtral", {**DECODER, "num_local_experts": 4}),
    "Qwen3-MoE": ("decoder", "Qwen3Moe", {**DECODER, **EXPERTS, "head_dim": 8, "num_experts": 4}),
    "DeepSeek V3": ("decoder", "DeepseekV3", DEEPSEEK),
    "T5": ("encoder-decoder", "T5", T5),
    "M2M100": ("encoder-decoder", "M2M100", PAIR),
    "mBART": ("encoder-decoder", "MBart", PAIR),
    "Pegasus": ("encoder-decoder", "Pegasus", PAIR),
    "RoBERTa-PreLayerNorm": ("encoder", "RobertaPreLayerNorm", ENCODER),
    "ModernBERT": ("encoder", "ModernBert", {**ENCODER, "cls_token_id": 1, "sep_token_id": 2}),
    "ViT": ("images", "ViT", {**IMAGES, "intermediate_size": 64}),
    "DINOv2": ("images", "Dinov2", {**IMAGES, "mlp_ratio": 2}),
}
AUTO_CLASSES = {
    "decoder": transformers.AutoModelForCausalLM,
    "encoder-decoder": transformers.AutoModelForSeq2SeqLM,
    "encoder": transformers.AutoModelForMaskedLM,
    "images": transformers.AutoModelForImageClassification,
}
LENGTH = {"min_new_tokens": 5, "max_new_tokens": 5}


@cache
def original(name):
    """A model in evaluation mode; its parameters are not those of a new model, where much is zero."""
    kind, config, fields = ARCHITECTURES[name]
    torch.manual_seed(0)
    model = AUTO_CLASSES[kind].from_config(getattr(transformers, f"{config}Config")(**fields)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def set_weights(model):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("coefficients.weight"):
                parameter.copy_(torch.tensor([0.3, 0.7]))
    return model


def integrated(name):
    """The model with RK2 layers whose weights are not Euler's."""
    return set_weights(ode.depth.wrap(copy.deepcopy(original(name))))


def inputs(name):
    torch.manual_seed(1)
    kind = ARCHITECTURES[name][0]
    if kind == "images":
        return {"pixel_values": torch.randn(2, 3, 16, 16)}
    ids = torch.randint(3, 99, (2, 10))
    mask = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return mask | ({"decoder_input_ids": torch.randint(3, 99, (2, 9))} if kind == "encoder-decoder" else {})


def prompt(name):
    return {key: value for key, value in inputs(name).items() if key != "decoder_input_ids"}


def without_dropout(model):
    """Training mode, without chance."""
    for module in model.train().modules():
        for field in ("p", "dropout", "attention_dropout", "activation_dropout", "layerdrop"):
            if isinstance(getattr(module, field, None), float):
                setattr(module, field, 0.0)
    return model


def gradients(model, name):
    model.zero_grad()
    model(**inputs(name)).logits.square().mean().backward()
    return {key: value.grad for key, value in model.named_parameters() if value.grad is not None}


def check_same_start(name, tmp_path):
    model = ode.depth.wrap(copy.deepcopy(original(name)))
    assert type(model).__name__ == f"Ode{type(original(name)).__name__}"
    assert torch.equal(model(**inputs(name)).logits, original(name)(**inputs(name)).logits)
    assert not torch.equal(integrated(name)(**inputs(name)).logits, original(name)(**inputs(name)).logits)


def check_save_and_load(name, tmp_path):
    model = integrated(name)
    model.save_pretrained(tmp_path)
    loaded = AUTO_CLASSES[ARCHITECTURES[name][0]].from_pretrained(tmp_path)
    assert type(loaded) is type(model) and not loaded.training
    assert torch.equal(loaded(**inputs(name)).logits, model(**inputs(name)).logits)


def check_plain_checkpoint(name, tmp_path):
    original(name).save_pretrained(tmp_path)
    config = ode.depth.config(original(name).config, start="euler")
    loaded = AUTO_CLASSES[ARCHITECTURES[name][0]].from_pretrained(tmp_path, config=config)
    assert type(loaded).__name__.startswith("Ode")
    assert torch.equal(loaded(**inputs(name)).logits, original(name)(**inputs(name)).logits)


def check_cache(name, tmp_path):
    """Token by token, as at once."""
    model, given = integrated(name), inputs(name)
    model.set_experts_implementation("eager")  # the faster ones have no float64
    model.double()
    ids = "decoder_input_ids" if model.config.is_encoder_decoder else "input_ids"
    whole, steps, states = model(**given, use_cache=False).logits, [], {}
    for length in range(given[ids].shape[1]):
        step = {**given, ids: given[ids][:, length : length + 1]}
        if ids == "input_ids":
            step["attention_mask"] = given["attention_mask"][:, : length + 1]
        outputs = model(**step, **states, use_cache=True)
        states = {key: outputs[key] for key in ("cache", "past_key_values") if key in outputs.keys()}
        if model.config.is_encoder_decoder:
            states["encoder_outputs"] = (outputs.encoder_last_hidden_state,)
        steps.append(outputs.logits)
    torch.testing.assert_close(torch.cat(steps, dim=1), whole, rtol=0, atol=1e-6)  # some compute parts in float32


def check_search(name, tmp_path):
    """Greedy search with either cache, and beams, as without one."""
    model, given = integrated(name), {**prompt(name), **LENGTH, "do_sample": False}
    static = {"cache_implementation": "static", "disable_compile": True}
    for num_beams, caches in ((1, ({}, static)), (3, ({},))):
        expected = model.generate(**given, num_beams=num_beams, use_cache=False)
        for kind in caches:
            assert torch.equal(model.generate(**given, num_beams=num_beams, **kind), expected)


def check_left_padding(name, tmp_path):
    """A padded row of a batch continues as the row alone."""
    model, given = integrated(name), prompt(name)
    given["input_ids"][0, :3], given["attention_mask"][0, :3] = 0, 0
    alone = {key: value[:1, 3:] for key, value in given.items()}
    together = model.generate(**given, **LENGTH, do_sample=False)[:1, -5:]
    assert torch.equal(together, model.generate(**alone, **LENGTH, do_sample=False)[:, -5:])


def check_gradient_checkpointing(name, tmp_path):
    model = without_dropout(integrated(name))
    expected = gradients(model, name)
    model.activation_checkpointing_enable()
    recomputed = gradients(model, name)
    assert recomputed.keys() == expected.keys()
    largest = max(gradient.abs().max() for gradient in expected.values())
    for key, gradient in expected.items():
        torch.testing.assert_close(recomputed[key], gradient, rtol=1e-5, atol=1e-6 * largest.item(), msg=key)
    assert any(key.endswith("coefficients.weight") for key in expected)


def check_lora(name, tmp_path):
    """Adapters are trained with the stages' weights, and merged."""
    model = without_dropout(integrated(name))
    config = LoraConfig(r=2, target_modules="all-linear", modules_to_save=["coefficients"], lora_dropout=0.0)
    adapted = get_peft_model(model, config)
    optimizer = torch.optim.SGD([each for each in adapted.parameters() if each.requires_grad], lr=0.05)
    for _ in range(2):
        adapted.zero_grad()
        adapted(**inputs(name)).logits.square().mean().backward()
        optimizer.step()
    with torch.no_grad():
        expected = adapted(**inputs(name)).logits
        merged = adapted.merge_and_unload()
        torch.testing.assert_close(merged(**inputs(name)).logits, expected, rtol=1e-4, atol=1e-4)
    weights = [value for key, value in merged.named_parameters() if key.endswith("coefficients.weight")]
    assert weights and all(not torch.equal(weight, torch.tensor([0.3, 0.7])) for weight in weights)


def check_full_graph(name, tmp_path):
    model = integrated(name)
    expected = model(**inputs(name)).logits
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(**inputs(name)).logits, expected, rtol=1e-5, atol=1e-5)


def check_two_devices(name, tmp_path):
    """Layers from the second on are on another device."""
    model = integrated(name)
    model.set_experts_implementation("batched_mm")  # of fake tensors
    parts = names_of_parts(model, model)
    cut = next(i for i, part in enumerate(parts) if re.search(r"\.1(\.|$)", part))
    device_map = {part: DEVICES[i >= cut] for i, part in enumerate(parts)}
    for part in device_map:
        # tied, or added to the embeddings
        if part.endswith(("lm_head", "shared", "embed_tokens", "embed_out", "decoder", "embed_positions")):
            device_map[part] = DEVICES[0]
    clean_device_map(device_map)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        place(model, device_map)
        given = {"use_cache": False} if ARCHITECTURES[name][0] in ("decoder", "encoder-decoder") else {}
        outputs = model(**send_to_device(inputs(name), DEVICES[0]), **given)
        assert outputs.logits.shape[0] == 2


def check_half_precision(name, tmp_path):
    """In bfloat16 the scheme's numbers stay float32, and the error is like the original's."""
    given = {key: value.bfloat16() if value.is_floating_point() else value for key, value in inputs(name).items()}
    expected = integrated(name)(**inputs(name)).logits
    integrated(name).save_pretrained(tmp_path)
    loaded = AUTO_CLASSES[ARCHITECTURES[name][0]].from_pretrained(tmp_path, dtype=torch.bfloat16)
    wrapped = set_weights(ode.depth.wrap(copy.deepcopy(original(name)).bfloat16()))
    for model in (loaded, wrapped):
        types = {key.endswith("coefficients.weight"): value.dtype for key, value in model.named_parameters()}
        assert types == {True: torch.float32, False: torch.bfloat16}
        logits = model(**given).logits
        assert logits.dtype == torch.bfloat16
        assert (logits.float() - expected).norm() < 0.1 * expected.norm()  # experts may be others


CHECKS = {"same start": check_same_start, "save, load": check_save_and_load}
CHECKS |= {"plain checkpoint": check_plain_checkpoint, "cache": check_cache, "search": check_search}
CHECKS |= {"left padding": check_left_padding, "gradient checkpointing": check_gradient_checkpointing}
CHECKS |= {"LoRA": check_lora, "full graph": check_full_graph}
CHECKS |= {"two devices": check_two_devices, "bfloat16": check_half_precision}
GENERATION = ("cache", "search", "left padding")


def is_checked(name, check):
    """Encoders have no cache; encoder-decoders of absolute positions read padding on the right only."""
    kind = ARCHITECTURES[name][0]
    if kind == "encoder-decoder":
        return check != "left padding"
    return kind == "decoder" or check not in GENERATION


@pytest.mark.parametrize(
    ("name", "check"), [(name, check) for name in ARCHITECTURES for check in CHECKS if is_checked(name, check)]
)
def test_an_architecture(name, check, tmp_path):
    training = check in ("gradient checkpointing", "LoRA")
    with torch.set_grad_enabled(training):
        CHECKS[check](name, tmp_path)


def test_the_page_shows_what_is_checked():
    page = (Path(__file__).parent.parent / "docs" / "depth.md").read_text(encoding="utf-8")
    lines = [line.strip("| \n").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    header = lines.index(["architecture", *CHECKS])
    rows = {name: cells for name, *cells in lines[header + 2 : header + 2 + len(ARCHITECTURES)]}
    assert rows == {name: ["yes" if is_checked(name, check) else "-" for check in CHECKS] for name in ARCHITECTURES}
