# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Models whose modules are placed on two devices: fake tensors, and hooks that move a module's arguments to its
device, as accelerate's do."""

import pytest
import torch
from accelerate.utils import send_to_device
from accelerate.utils.modeling import clean_device_map
from torch import nn
from torch._subclasses import FakeTensorMode

import modeling_ode_transformer as ode

from .conftest import build


DEVICES = [torch.device("cpu", 0), torch.device("cpu", 1)]
# Modules that accelerate does not cut.
SHARED = ("history", "corrector", "multistep", "solver_coefficients", "stage_norms", "recurrence")


PAIR, LANGUAGE_MODEL = ode.OdeTransformerForConditionalGeneration, ode.OdeTransformerForCausalLM
MODELS = {
    "residual and RK2": (PAIR, {}),
    "RK4": (PAIR, {"encoder_solver": "rk4", "decoder_solver": "rk2", "layer_history": "depth_weighted"}),
    "stage norms": (PAIR, {"normalize_stages": True}),
    "stage norms at once": (LANGUAGE_MODEL, {"decoder_solver": "rk2", "normalize_stages": "released"}),
    "PCformer": (PAIR, {"encoder_solver": "pcformer", "encoder_coefficients": "ema"}),
    "IIET": (LANGUAGE_MODEL, {"decoder_solver": "iiet"}),
    "attention": (PAIR, {"layer_history": "attention"}),
    "nesterov": (LANGUAGE_MODEL, {"decoder_solver": "nesterov", "layer_history": "none"}),
    "multistep": (LANGUAGE_MODEL, {"decoder_solver": "multistep", "layer_history": "none"}),
    "BiARN": (ode.OdeTransformerRecurrenceForConditionalGeneration, {}),
    "CSAODE": (ode.CsaOdeForSequenceClassification, {}),
    "CSAODE, adaptive": (ode.CsaOdeForSequenceClassification, {"solver": "rk"}),
    "CSAODE, blocks": (ode.CsaOdeForSequenceClassification, {"solver": "none", "num_blocks": 3}),
}


def make(kind):
    model_class, fields = MODELS[kind]
    if model_class is ode.CsaOdeForSequenceClassification:
        return model_class(ode.CsaOdeConfig(vocab_size=61, embedding_size=8, hidden_size=8, **fields)).eval()
    return build(model_class, **({"decoder_layers": 3} if model_class is LANGUAGE_MODEL else {}), **fields)


def names_of_parts(model, module, name=""):
    """The modules, by name and in order, that a device map places as wholes."""
    is_whole = type(module).__name__ in model._no_split_modules or name.rpartition(".")[2] in SHARED
    children = [(child, each) for child, each in module.named_children() if len(each.state_dict())]
    if is_whole or not children:
        return [name]
    return [part for child, each in children for part in names_of_parts(model, each, f"{name}.{child}".lstrip("."))]


def place(model, device_map):
    """Gives each module its parameters, fake ones, on its device, and moves its arguments there."""

    def device_of(name):
        found = [part for part in device_map if part == "" or f"{name}.".startswith(f"{part}.")]
        return device_map[max(found, key=len)] if found else None

    tensors = {}  # tied parameters on one device stay one
    for name, module in model.named_modules():
        device = device_of(name)
        for key, parameter in list(module._parameters.items()):
            if parameter is not None:
                fake = tensors.setdefault((parameter, device), torch.empty(parameter.shape, device=device))
                module._parameters[key] = nn.Parameter(fake, requires_grad=False)
        for key, buffer in module._buffers.items():
            module._buffers[key] = torch.empty(buffer.shape, dtype=buffer.dtype, device=device or DEVICES[0])
        if name and device is not None and len(module.state_dict()):
            move = lambda _, args, kwargs, device=device: send_to_device((args, kwargs), device)  # noqa: E731
            module.register_forward_pre_hook(move, with_kwargs=True)


@pytest.mark.parametrize("number, kind", list(enumerate(MODELS)))
def test_a_model_may_be_cut_between_its_parts(number, kind):
    """Every model in every third place, beginning with another one."""
    model = make(kind)
    parts = names_of_parts(model, model)
    assert len(parts) > 4
    for cut in range(1 + number % 3, len(parts), 3):
        model = make(kind)
        device_map = {part: DEVICES[i >= cut] for i, part in enumerate(parts)}
        if "lm_head" in device_map:  # with the embeddings, to which it is tied
            device_map["lm_head"] = next(device_map[part] for part in parts if "embed_tokens" in part)
        clean_device_map(device_map)
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            place(model, device_map)
            inputs = {"input_ids": torch.randint(4, 61, (2, 6)), "attention_mask": torch.ones(2, 6, dtype=torch.long)}
            if model.config.is_encoder_decoder:
                inputs["decoder_input_ids"] = inputs["input_ids"]
            if "CSAODE" not in kind:
                inputs["use_cache"] = False
            assert model(**send_to_device(inputs, DEVICES[0])).logits.shape[0] == 2, (cut, device_map)
