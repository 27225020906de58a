# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""A short run of a translation model, which several test files train."""

import json
from collections import Counter

import pytest
import torch
from accelerate import DistributedType, FullyShardedDataParallelPlugin
from accelerate.state import AcceleratorState, PartialState
from transformers import Trainer

from modeling_ode_transformer.training.cleaning import Cleaning
from modeling_ode_transformer.training.tasks.seq2seq_texts import kept_pairs


MODEL = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
MODEL |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
SIZES = {"train": 60, "validation": 12, "test": 11}
# Of an encoder-decoder: sizes with which any recipe is tried in seconds; what is not a size is the recipe's.
SMALL = {"config_overrides": json.dumps(MODEL | {"encoder_ffn_dim": 64, "decoder_ffn_dim": 64}), "vocab_size": 400}
SMALL |= {"max_target_length": 64, "generation_max_length": 64, "num_beams": 2, "generation_num_beams": 1}
SMALL |= {"max_tokens_per_batch": 1024, "per_device_eval_batch_size": 8, "gradient_accumulation_steps": 2}
SMALL |= {"max_steps": 20, "learning_rate": 0.01, "warmup_steps": 4, "logging_steps": 2}
SMALL |= {"eval_strategy": "steps", "eval_steps": 10, "save_strategy": "steps", "save_steps": 2}
SMALL |= {"use_cpu": True, "bf16": False, "report_to": "none", "disable_tqdm": True}
# Of any task.
SHORT = {"max_steps": 4, "logging_steps": 1, "save_strategy": "no", "report_to": "none", "use_cpu": True}
SHORT |= {"do_train": True, "preset": "none"}


def arguments(corpus, out, **values):
    """Arguments of a short run on the files of a corpus folder; None leaves an argument out."""
    defaults = SHORT | {"output_dir": out, "config_overrides": json.dumps(MODEL), "vocab_size": 330}
    defaults |= {"per_device_train_batch_size": 20, "per_device_eval_batch_size": 4, "learning_rate": 0.01}
    defaults |= {"train_sampling_strategy": "group_by_length", "max_target_length": 40}
    defaults |= {"num_beams": 3, "length_penalty": 0.6, "predict_with_generate": True}
    for split in SIZES:
        defaults[f"{split}_source_file"] = corpus / f"{split}.en"
        defaults[f"{split}_target_file"] = corpus / f"{split}.de"
    return flags(defaults | values)


def flags(values):
    """A command line of options; None leaves one out, and a list gives it several values."""
    listed = ((name, value if isinstance(value, list) else [value]) for name, value in values.items())
    return [item for name, each in listed if each != [None] for item in (f"--{name}", *map(str, each))]


def losses(output_dir):
    history = json.loads((output_dir / "trainer_state.json").read_text())["log_history"]
    return {entry["step"]: entry["loss"] for entry in history if "loss" in entry}


def training_pairs(pairs, cleaning=None):
    """Those that a training with these rules has."""
    return [(source, target) for *_, source, target in kept_pairs(pairs, cleaning or Cleaning(), Counter())]


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def assert_logged(logged: dict, loss: torch.Tensor, model: torch.nn.Module):
    """A first update's log has this loss, and the norm of its gradient."""
    loss.backward()
    norm = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()
    assert logged["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert logged["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)


def shard_over_cpus():
    """Lets FSDP shard over CPUs in this process, where accelerate replicates the model."""
    create = Trainer.create_accelerator_and_postprocess

    def create_sharding(trainer):
        create(trainer)
        state = trainer.accelerator.state
        if state.distributed_type == DistributedType.MULTI_CPU:
            for shared in (PartialState, AcceleratorState):
                shared._shared_state["distributed_type"] = DistributedType.FSDP
            state.fsdp_plugin = FullyShardedDataParallelPlugin(**(trainer.args.fsdp_plugin_args or {}))
            trainer.is_fsdp_enabled = True

    Trainer.create_accelerator_and_postprocess = create_sharding
