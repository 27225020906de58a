# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Blocks that correct their steps, beside recorded runs of the code released with PCformer and IIET.

The layers of a run are stubs, `z + tanh(z A_i)`: here they are the blocks of this package's encoder and decoder with
`tanh(z A_i)` as their only sublayer.

A file has the tensors `x`, `layer_matrices`, `outputs` (the input of the next layer, after each layer), `history.*`,
`stage_norms.*`, `alpha` and `gate.*`; its metadata says `kind` ("pc" or "iiet"), `evaluations` (of the predictor for
"pc", of the corrector for "iiet"), `coefficients` and `stage_norms`.
"""

from pathlib import Path

import torch
from safetensors import safe_open

from modeling_ode_transformer import OdeTransformerConfig
from modeling_ode_transformer.configuration_ode_transformer import Part
from modeling_ode_transformer.modeling_ode_transformer import OdeTransformerDecoder, OdeTransformerEncoder


PREDICTORS = {"1": "euler", "2": "rk2", "3": "rk3", "4": "rk4"}
COEFFICIENTS = {"ema": "ema", "gated": "gate", "gate": "gate", "fixed": "fixed"}
STACKS = {"encoder": OdeTransformerEncoder, "decoder": OdeTransformerDecoder}
# Parameters of a stack, by the beginning of their names in the files.
NAMES = {
    "history.weight_c": "history.weight",
    "history.weight": "corrector.weight",
    "history.layer_norms": "history.layer_norms",
    "history.rouge_predictions_norm": "corrector.layer_norms",
    "stage_norms": "stage_norms",
    "gate": "solver_coefficients.gate",
    "alpha": "solver_coefficients.weight",
}


def read(path: Path) -> tuple[dict[str, str], dict[str, torch.Tensor]]:
    """The metadata and, in float64, the tensors of a run."""
    with safe_open(path, "pt") as file:
        return file.metadata() or {}, {name: file.get_tensor(name).double() for name in file.keys()}


def fields_of(metadata: dict[str, str]) -> dict:
    """The solver, its coefficients and the norms of a run, as fields of a configuration."""
    evaluations = metadata["evaluations"]
    if metadata["kind"] == "iiet":
        return {"solver": {"predictor": "euler", "corrector_iterations": int(evaluations)}}
    if metadata["kind"] != "pc":
        raise ValueError(f"kind={metadata['kind']!r} must be pc or iiet.")
    return {
        "stage_values": "output",
        "solver": {"predictor": PREDICTORS[evaluations], "corrector_iterations": 1},
        "coefficients": COEFFICIENTS[metadata["coefficients"]],
        "normalize_stages": "released" if metadata["stage_norms"] == "True" else False,
    }


def stack_of(name: str, metadata: dict[str, str], tensors: dict[str, torch.Tensor]):
    """A stack with the parameters of a run and its stub layers, in float64."""
    num_layers, width = tensors["layer_matrices"].shape[:2]
    fields = fields_of(metadata)
    fields |= {f"{name}_{field}": fields.pop(field) for field in ("solver", "coefficients") if field in fields}
    sizes = {f"{stack}_{field}": size for stack in STACKS for field, size in (("attention_heads", 1), ("ffn_dim", 4))}
    config = OdeTransformerConfig(**fields, **sizes, **{f"{name}_layers": num_layers}, d_model=width, vocab_size=5)
    stack = STACKS[name](config).double().eval()
    own = stack.state_dict()
    for old, tensor in tensors.items():
        prefix = next((prefix for prefix in NAMES if old == prefix or old.startswith(f"{prefix}.")), None)
        new = prefix and NAMES[prefix] + old.removeprefix(prefix)
        if new in own:
            own[new] = tensor
    own["history.weight"][0, 0] = 1.0  # the released code gives the first layer the embedding itself
    stack.load_state_dict(own)
    for layer, matrix in zip(stack.layers, tensors["layer_matrices"]):
        layer.parts = layer.parts_without_source = (Part(("stub",), True),)
        layer.stub = lambda inputs, z, evaluation, matrix=matrix: torch.tanh(z @ matrix)
    return stack


def difference(path: Path, name: str) -> float:
    """The largest difference of a run from the stack of that name."""
    metadata, tensors = read(path)
    stack, inputs = stack_of(name, metadata, tensors), []
    for layer in stack.layers:
        layer.register_forward_pre_hook(lambda layer, arguments: inputs.append(arguments[0]))
    stack.layer_norm.register_forward_pre_hook(lambda layer, arguments: inputs.append(arguments[0]))
    with torch.no_grad():
        stack.run_layers(tensors["x"])
    assert len(inputs) == len(tensors["outputs"]) + 1
    return max((actual - run).abs().max().item() for actual, run in zip(inputs, [tensors["x"], *tensors["outputs"]]))
