# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Shows whether the gates of a language model can still learn: what they see, what they say, and their gradients.

    python examples/analysis/inspect_gates.py ptb_rk2_gate --text_file data/ptb/ptb.valid.txt.gz

prints the numbers of each gate. A gate's logit is W [F1; F2] + b, and the first stage counts sigmoid(logit) (eqs.
25-26). Far below or above 0 the sigmoid is flat. A weight whose gradient is below Adam's epsilon, 1e-8 unless told
otherwise, hardly moves any more: the gate is stuck.
"""

import sys
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser
from functools import partial
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer

import modeling_ode_transformer  # noqa: F401  (makes the Auto classes know it)
from modeling_ode_transformer.integration_ode_transformer import GateCoefficients
from modeling_ode_transformer.metrics.perplexity import shift_blocks
from modeling_ode_transformer.text_files import read_lines


COLUMNS = {
    "logit": "logit, mean over tokens",
    "spread": "its standard deviation",
    "of_mean": "logit of the mean stages",
    "stage_1": "first stage, root mean square",
    "stage_2": "second stage",
    "weight_1": "weight of the first stage, mean",
    "gradient": "largest gradient of the loss for a weight of the gate",
}


def root_mean_square(x: torch.Tensor) -> float:
    return x.square().mean().sqrt().item()


def inspect_gates(model, blocks: torch.Tensor, labels: torch.Tensor) -> dict[str, dict[str, float]]:
    """The numbers of `COLUMNS` for each gate of a decoder-only model, by its name, in evaluation mode.

    Args:
        model: the model.
        blocks: token ids of shape (batch, length).
        labels: the tokens that follow, of the same shape. The loss is their mean cross entropy, in nats.

    Raises:
        ValueError: the model has no gate.
    """
    gates = {name: module.gate for name, module in model.named_modules() if isinstance(module, GateCoefficients)}
    if not gates:
        raise ValueError("The model has no gate: decoder_coefficients='gate' makes one.")
    seen = {name: [] for name in gates}

    def record(gate, args, logits, name):
        seen[name].append((args[0].detach().flatten(0, -2), logits.detach().flatten()))

    hooks = [gate.register_forward_hook(partial(record, name=name)) for name, gate in gates.items()]
    model.eval()
    try:
        logits = model(blocks).logits
        loss = cross_entropy(logits.flatten(0, 1), labels.flatten())
        parameters = [parameter for gate in gates.values() for parameter in gate.parameters()]
        gradients = dict(zip(parameters, torch.autograd.grad(loss, parameters)))
    finally:
        for hook in hooks:
            hook.remove()

    rows = {}
    for name, gate in gates.items():
        stages, logits = (torch.cat(parts) for parts in zip(*seen[name]))
        first, second = stages.chunk(2, dim=-1)
        with torch.no_grad():
            of_mean = gate(stages.mean(0)).item()
        values = (
            *(logits.mean().item(), logits.std().item(), of_mean, root_mean_square(first), root_mean_square(second)),
            *(logits.sigmoid().mean().item(), max(gradients[p].abs().max().item() for p in gate.parameters())),
        )
        rows[name] = dict(zip(COLUMNS, values, strict=True))
    return rows


def main(argv: list[str] | None = None) -> dict[str, dict[str, float]]:
    """Runs the script with the given arguments (default: the command line's) and returns what it prints."""
    parser = ArgumentParser(description=__doc__.splitlines()[0], formatter_class=ArgumentDefaultsHelpFormatter)
    parser.add_argument("model_name_or_path", help="language model with its tokenizer: folder or Hub name")
    parser.add_argument("--text_file", type=Path, required=True, help="lines of text, gzipped or not")
    parser.add_argument("--block_size", type=int, default=128, help="words of a block")
    parser.add_argument("--num_blocks", type=int, default=8, help="so many of the first whole blocks are read")
    args = parser.parse_args(sys.argv[1:] if argv is None else argv)

    tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path)
    model = AutoModelForCausalLM.from_pretrained(args.model_name_or_path, dtype=torch.float32)
    encoded = tokenizer(read_lines(args.text_file), add_special_tokens=False)["input_ids"]
    sides = shift_blocks(encoded, args.block_size, tokenizer.eos_token_id)
    sides = [[block for block in side if len(block) == args.block_size][: args.num_blocks] for side in sides]
    if not sides[0]:
        raise ValueError(f"{args.text_file} has no block of {args.block_size} words: give a smaller --block_size.")
    rows = inspect_gates(model, *map(torch.tensor, sides))
    for name, row in rows.items():
        print(name)
        for column, value in row.items():
            print(f"  {COLUMNS[column]}: {value:.3g}")
    return rows


if __name__ == "__main__":
    main()
