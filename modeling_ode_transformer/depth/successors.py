# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The language models of PCformer (Li et al., NeurIPS 2024) and IIET (EMNLP 2025): folders of their released code as
Llama with integrated layers."""

import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from ..text_files import read_json
from . import config as depth_config


# The original's names of parameters, and ours.
NAMES = (
    (r"^model\.history\.rouge_predictions_norm\.", "model.layers_depth.corrector.layer_norms."),
    (r"^model\.history\.weight_c$", "model.layers_depth.history.weight"),
    (r"^model\.history\.weight$", "model.layers_depth.corrector.weight"),
    (r"^model\.history\.layer_norms\.", "model.layers_depth.history.layer_norms."),
    (r"^model\.RK_norm\.", "model.layers_depth.stage_norms."),
    (r"^model\.alpha$", "model.layers_depth.coefficients.weight"),
    (r"^model\.gate_linear\.", "model.layers_depth.coefficients.gate."),
)
NOT_OF_LLAMA = ("architectures", "auto_map", "changed_constants", "dtype", "kind", "model_type", "torch_dtype")


def own_name(name: str) -> str:
    """Our name of a parameter of the original."""
    for pattern, replacement in NAMES:
        name = re.sub(pattern, replacement, name)
    return name


def successor_options(names: set[str], corrector_iterations: int | None = None) -> dict[str, Any]:
    """The options of a model with these parameters. The equations are PCformer's and IIET's: predictions with normed
    outputs as stages, or plain ones, and corrections over the layer history.

    Raises:
        ValueError: PCformer with a number of stages other than 2 and 4.
    """
    stages = sum(bool(re.fullmatch(r"model\.RK_norm\.\d+\.weight", name)) for name in names)
    iterations = (1 if stages else 3) if corrector_iterations is None else corrector_iterations
    if stages == 0:
        return {"solver": {"predictor": "euler", "corrector_iterations": iterations}}
    if stages not in (2, 4):
        raise ValueError(f"The model has {stages} norms of stages: PCformer has 2 (RK2) or 4 (RK4).")
    gated = "model.gate_linear.weight" in names and stages == 2  # with RK4 the original does not read its gate
    return {
        "solver": {"predictor": f"rk{stages}", "corrector_iterations": iterations},
        "coefficients": "ema" if "model.alpha" in names else "gate" if gated else "fixed",
        "coefficient_sharing": "stack",
        "stage_values": "output",
        "normalize_stages": "released",
    }


def convert_successor(folder: str | Path, corrector_iterations: int | None = None) -> PreTrainedModel:
    """Opens a folder of the released code.

    Args:
        folder: has `config.json` and `model.safetensors` (or `pytorch_model.bin`).
        corrector_iterations: a constant of the original's code, which no file holds; None: 3 for IIET and 1 for
            PCformer, as released.

    Returns:
        An `OdeLlamaForCausalLM`; plain Llama if the weights are those of plain Llama. With a cache it computes what
        it does without; the released code does not.

    Raises:
        OSError: a file is missing.
        ValueError: weights are missing or unknown.
    """
    folder = Path(folder)
    fields = read_json(folder / "config.json")
    config = LlamaConfig(**{name: value for name, value in fields.items() if name not in NOT_OF_LLAMA})
    if (folder / "model.safetensors").is_file():
        weights = load_file(folder / "model.safetensors")
    else:
        weights = torch.load(folder / "pytorch_model.bin", weights_only=True)
    if any(name.startswith("model.history.") for name in weights):
        config = depth_config(config, **successor_options(set(weights), corrector_iterations))
    model = AutoModelForCausalLM.from_config(config)
    missing, unknown = model.load_state_dict({own_name(name): value for name, value in weights.items()}, strict=False)
    if config.tie_word_embeddings:
        missing = [name for name in missing if name != "lm_head.weight"]
    unknown = [name for name in unknown if "gate_linear" not in name and not name.endswith("rotary_emb.inv_freq")]
    if missing or unknown:
        raise ValueError(
            f"{folder} is no model of PCformer or IIET: it lacks {', '.join(missing[:5]) or 'nothing'}; unknown: "
            f"{', '.join(unknown[:5]) or 'nothing'}."
        )
    return model
