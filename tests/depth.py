# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Whether language models of PCformer and IIET compute here what their released code computes.

    python -m tests.depth tests/golden/language_models

Opens each folder's `model.safetensors`, with the original's names, and prints the largest differences to its recorded
logits, hidden states and, relative to each, norms of gradients. The exit status is 1 if one is too large, or a folder
cannot be read. A folder's `config.json` says in `changed_constants` how often the original's code corrects.
"""

import argparse
import json
import re
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

from modeling_ode_transformer.depth.successors import convert_successor, own_name


TOLERANCES = {"logits": 2e-6, "hidden states": 2e-6, "gradient norms": 1e-4}


def corrector_iterations(folder: Path) -> int | None:
    """IIET's number of corrections, where a folder changes that of the released code."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    changed = " ".join(config.get("changed_constants", {}).values())
    found = re.search(r"calculate_num = (\d+)", changed)
    return int(found[1]) if found and "iiet" in config["kind"] else None


def open_original(folder: Path) -> torch.nn.Module:
    model = convert_successor(folder, corrector_iterations(folder))
    model.set_attn_implementation("eager")  # as recorded
    return model


def differences(folder: Path) -> dict[str, float]:
    """The largest differences to the recorded numbers, of tokens without and with padding on the left."""
    expected, recorded = load_file(folder / "golden.safetensors"), json.loads((folder / "golden.json").read_text())
    model = open_original(folder).train()
    outputs = model(expected["input_ids"], labels=expected["labels"], output_hidden_states=True, use_cache=False)
    outputs.loss.backward()
    norms = {name: parameter.grad.norm().item() for name, parameter in model.named_parameters()}
    mask = expected["padded_attention_mask"]
    with torch.no_grad():
        padded = model(expected["padded_input_ids"], attention_mask=mask, use_cache=False).logits
    logits = (outputs.logits - expected["logits"], (padded - expected["padded_logits"])[mask.bool()])
    return {
        "logits": max(each.abs().max().item() for each in logits),
        "hidden states": (torch.stack(outputs.hidden_states) - expected["hidden_states"]).abs().max().item(),
        "gradient norms": max(
            abs(norms[own_name(name)] / norm - 1) for name, norm in recorded["gradient_norms"].items() if norm
        ),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder of folders with recorded runs")
    status, folders = 0, sorted(path.parent for path in parser.parse_args().folder.glob("*/config.json"))
    if not folders:
        parser.error("the folder has no recorded runs")
    for folder in folders:
        try:
            found = differences(folder)
        except Exception as error:
            print(f"{folder.name}: {type(error).__name__}: {error}")
            status = 1
            continue
        print(f"{folder.name}: {', '.join(f'{name} {value:.1e}' for name, value in found.items())}")
        if any(value > TOLERANCES[name] for name, value in found.items()):
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
