# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Models split over two CPU processes by their tensor-parallel plans."""

import os

import pytest
import torch
from torch import distributed
from torch.multiprocessing import start_processes
from transformers.distributed import DistributedConfig

import modeling_ode_transformer as ode

from .conftest import TINY, WITHOUT_DROPOUT, assert_close, build


FORMS = {
    "tied": (ode.OdeTransformerForConditionalGeneration, {}, {"distributed_config": DistributedConfig(tp_size=2)}),
    "untied": (ode.OdeTransformerForConditionalGeneration, {"tie_word_embeddings": False}, {"tp_plan": "auto"}),
    "language model": (ode.OdeTransformerForCausalLM, {}, {"tp_plan": "auto"}),
    "recurrence": (ode.OdeTransformerRecurrenceForConditionalGeneration, {}, {"tp_plan": "auto"}),
}
SEARCHES = {
    "greedy": {"num_beams": 1},
    "beam": {"num_beams": 4, "length_penalty": 0.6},
    "sampling": {"do_sample": True},
    "static cache": {"num_beams": 3, "cache_implementation": "static", "disable_compile": True},
}


def results(model, batch):
    """Logits, the loss, gradients by name and the tokens of each search."""
    if not model.config.is_encoder_decoder:
        batch = {"input_ids": batch["input_ids"]}
    sources = {name: batch[name] for name in ("input_ids", "attention_mask") if name in batch}
    found = {}
    for name, options in SEARCHES.items():
        torch.manual_seed(0)
        found[name] = model.generate(**sources, min_new_tokens=6, max_new_tokens=10, no_repeat_ngram_size=2, **options)
    with torch.no_grad():
        found["logits"] = model(**batch).logits
    loss = model(**batch, labels=batch.get("decoder_input_ids", batch["input_ids"])).loss
    loss.backward()
    found["loss"] = loss.detach()
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        found[f"gradient of {name}"] = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
    return found


def run_process(rank, folder, batch):
    """One of two processes: writes the results of each form and the share that it holds of split parameters."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    distributed.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=2)
    written = {}
    for form, (model_class, _, options) in FORMS.items():
        model = model_class.from_pretrained(folder / form, **options).eval()
        split = {name: parameter for name, parameter in model.named_parameters() if hasattr(parameter, "to_local")}
        shares = {name: parameter.to_local().numel() / parameter.numel() for name, parameter in split.items()}
        written[form] = results(model, batch), shares
    torch.save(written, folder / f"{rank}.pt")
    distributed.destroy_process_group()


@pytest.mark.skipif(not os.path.exists("/sys/class/net/lo"), reason="processes talk over Linux's loopback")
def test_two_processes_compute_and_generate_as_one(batch, tmp_path):
    """Logits, losses, gradients, and tokens of every search; each process holds half of the split weights."""
    models = {
        form: build(model_class, **WITHOUT_DROPOUT, **fields) for form, (model_class, fields, _) in FORMS.items()
    }
    for form, model in models.items():
        model.save_pretrained(tmp_path / form)
    start_processes(run_process, (tmp_path, batch), nprocs=2, start_method="fork")
    written = [torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1)]
    for form, model in models.items():
        expected = results(model, batch)
        assert all(len(expected[name].unique()) > 8 for name in SEARCHES)
        layers = TINY["decoder_layers"] + TINY["encoder_layers"] * model.config.is_encoder_decoder
        for found, shares in (each[form] for each in written):
            assert found.keys() == expected.keys()
            for name, value in expected.items():
                assert found[name].shape == value.shape
                assert_close(found[name].float(), value.float(), scale=4)
            for kind in ("self_attn.q_proj", "self_attn.out_proj", "fc1", "fc2"):
                assert sum(share == 0.5 for name, share in shares.items() if f"{kind}.weight" in name) == layers
