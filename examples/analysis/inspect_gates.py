# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Shows whether the gates of a model can still learn: what they see, what they say, and their gradients.

    python examples/analysis/inspect_gates.py ptb_rk2_gate --text_file data/ptb/ptb.valid.txt.gz
    python examples/analysis/inspect_gates.py multi30k_en_de --text_file val.en --target_file val.de --picture g.png

prints the numbers of each gate of a language model or of an encoder-decoder, and draws how the first stage counts in
each step. A gate's logit is W [F1; F2] + b, and the first stage counts sigmoid(logit) (eqs. 25-26). Far below or above
0 the sigmoid is flat. A weight whose gradient is below Adam's epsilon, 1e-8 unless told otherwise, hardly moves any
more: the gate is stuck.
"""

import sys
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

import modeling_ode_transformer  # noqa: F401  (makes the Auto classes know it)
from modeling_ode_transformer.inference.tokenizers import load_tokenizers
from modeling_ode_transformer.integration_ode_transformer import GateCoefficients
from modeling_ode_transformer.metrics.perplexity import shift_blocks
from modeling_ode_transformer.text_files import read_aligned_lines, read_json, read_lines
from modeling_ode_transformer.training.checkpoints import write_json


SHUT = 0.05
COLUMNS = {
    "logit": "logit, mean over tokens",
    "spread": "its standard deviation",
    "of_mean": "logit of the mean stages",
    "stage_1": "first stage, root mean square",
    "stage_2": "second stage",
    "weight_1": "weight of the first stage, mean",
    "shut": f"share of the tokens for which a stage counts less than {SHUT}",
    "gradient": "largest gradient of the loss for a weight of the gate",
}


def root_mean_square(x: torch.Tensor) -> float:
    return x.square().mean().sqrt().item()


Batches = Sequence[tuple[dict[str, torch.Tensor], torch.Tensor]]


def inspect_gates(model, batches: Batches) -> tuple[dict[str, dict[str, float]], dict[str, list[torch.Tensor]]]:
    """What the gates of a model do on some texts, in evaluation mode.

    Args:
        model: a language model or an encoder-decoder.
        batches: pairs of the model's inputs, (batch, length) each, and the labels, which are aligned with the logits
            and may be -100. There is no padding. The loss is the mean cross entropy of all labels, in nats.

    Returns:
        The numbers of `COLUMNS` for each gate by its name; and the weights of the first stage for each gate, a list
        over the steps that it weighs, in the order of the layers, of the weights of all tokens.

    Raises:
        ValueError: the model has no gate.
    """
    gates = {name: module.gate for name, module in model.named_modules() if isinstance(module, GateCoefficients)}
    if not gates:
        raise ValueError(
            "The model has no gate: give one with encoder_coefficients='gate' or decoder_coefficients='gate'."
        )
    seen = {name: [] for name in gates}

    def record(gate, args, logits, name):
        seen[name][-1].append((args[0].detach().flatten(0, -2), logits.detach().flatten()))

    parameters = [parameter for gate in gates.values() for parameter in gate.parameters()]
    gradients = [torch.zeros_like(parameter) for parameter in parameters]
    number = sum((labels != -100).sum().item() for _, labels in batches)
    hooks = [gate.register_forward_hook(partial(record, name=name)) for name, gate in gates.items()]
    model.eval()
    try:
        for inputs, labels in batches:
            for calls in seen.values():
                calls.append([])
            loss = cross_entropy(model(**inputs).logits.flatten(0, 1), labels.flatten(), reduction="sum") / number
            for total, gradient in zip(gradients, torch.autograd.grad(loss, parameters)):
                total += gradient
    finally:
        for hook in hooks:
            hook.remove()

    rows, weights, largest = {}, {}, dict(zip(parameters, (gradient.abs().max().item() for gradient in gradients)))
    for name, gate in gates.items():
        steps = [[torch.cat(parts) for parts in zip(*step)] for step in zip(*seen[name])]
        weights[name] = [logits.sigmoid() for _, logits in steps]
        stages, logits = (torch.cat(parts) for parts in zip(*steps))
        first, second = stages.chunk(2, dim=-1)
        g = logits.sigmoid()
        with torch.no_grad():
            of_mean = gate(stages.mean(0)).item()
        values = (
            *(logits.mean().item(), logits.std().item(), of_mean, root_mean_square(first), root_mean_square(second)),
            *(g.mean().item(), ((g - 0.5).abs() > 0.5 - SHUT).double().mean().item()),
            max(largest[parameter] for parameter in gate.parameters()),
        )
        rows[name] = dict(zip(COLUMNS, values, strict=True))
    return rows, weights


def draw(weights: dict[str, list[torch.Tensor]], path: Path) -> None:
    """Draws the weights of the first stage: for each step of the encoder and of the decoder their distribution over
    the tokens, as a box of the middle half and whiskers from 5% to 95%."""
    from matplotlib.figure import Figure

    stacks: dict[str, list[torch.Tensor]] = {}
    for name, steps in weights.items():
        stacks.setdefault("encoder" if ".encoder." in name else "decoder", []).extend(steps)
    figure = Figure(
        figsize=(1.5 + sum(max(len(steps), 3) for steps in stacks.values()) * 0.5, 3), layout="constrained"
    )
    shares = [max(len(steps), 3) for steps in stacks.values()]
    axes = figure.subplots(1, len(stacks), squeeze=False, sharey=True, width_ratios=shares)[0]
    for axis, (stack, steps) in zip(axes, stacks.items()):
        axis.boxplot([step.numpy() for step in steps], whis=(5, 95), showfliers=False)  # codespell:ignore
        axis.set(title=stack, xlabel="step, in the order of the layers", ylim=(0, 1))
    axes[0].set_ylabel("weight g of the first stage")
    figure.savefig(path)


def blocks_of(args, tokenizer) -> Batches:
    """The first whole blocks of a text, in one batch."""
    encoded = tokenizer(read_lines(args.text_file), add_special_tokens=False)["input_ids"]
    sides = shift_blocks(encoded, args.block_size, tokenizer.eos_token_id)
    sides = [[block for block in side if len(block) == args.block_size][: args.num_blocks] for side in sides]
    if not sides[0]:
        raise ValueError(f"{args.text_file} has no block of {args.block_size} words: give a smaller --block_size.")
    blocks, labels = map(torch.tensor, sides)
    return [({"input_ids": blocks}, labels)]


def pairs_of(args, model, tokenizer, target_tokenizer) -> Batches:
    """The first pairs of two files, each a batch of its own."""
    batches = []
    for source, target in list(zip(*read_aligned_lines([args.text_file, args.target_file])))[: args.num_blocks]:
        labels = target_tokenizer(text_target=target, return_tensors="pt")["input_ids"]
        decoder_input_ids = model.prepare_decoder_input_ids_from_labels(labels)
        input_ids = tokenizer(source, return_tensors="pt")["input_ids"]
        batches.append(({"input_ids": input_ids, "decoder_input_ids": decoder_input_ids}, labels))
    return batches


def main(argv: list[str] | None = None) -> dict[str, dict[str, float]]:
    """Runs the script with the given arguments (default: the command line's) and returns what it prints."""
    parser = ArgumentParser(description=__doc__.splitlines()[0], formatter_class=ArgumentDefaultsHelpFormatter)
    parser.add_argument("model_name_or_path", help="folder or Hub name of a model with its tokenizer")
    parser.add_argument(
        "--text_file",
        type=Path,
        required=True,
        help="file of text or, for an encoder-decoder, sources, one per line (.gz accepted)",
    )
    parser.add_argument(
        "--target_file", type=Path, help="for an encoder-decoder: file of the targets, in the same order"
    )
    parser.add_argument("--block_size", type=int, default=128, help="for a language model: words per block")
    parser.add_argument(
        "--num_blocks", type=int, default=8, help="number of whole blocks, or pairs, to read from the start"
    )
    parser.add_argument("--picture", type=Path, help="file for a plot of the weights (.png, .svg, .pdf)")
    parser.add_argument(
        "--output_file",
        type=Path,
        help="JSON file to which the numbers are added, under the name of the model's folder",
    )
    args = parser.parse_args(sys.argv[1:] if argv is None else argv)

    name = args.model_name_or_path
    is_encoder_decoder = AutoConfig.from_pretrained(name).is_encoder_decoder
    if is_encoder_decoder != (args.target_file is not None):
        raise ValueError(f"{name}: --target_file is needed for an encoder-decoder, and only for one.")
    if is_encoder_decoder:
        model = AutoModelForSeq2SeqLM.from_pretrained(name, dtype=torch.float32)
        batches = pairs_of(args, model, *load_tokenizers(name))
    else:
        model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32)
        batches = blocks_of(args, AutoTokenizer.from_pretrained(name))
    rows, weights = inspect_gates(model, batches)
    for gate, row in rows.items():
        print(gate)
        for column, value in row.items():
            print(f"  {COLUMNS[column]}: {value:.3g}")
    if args.picture is not None:
        draw(weights, args.picture)
    if args.output_file is not None:
        inspected = read_json(args.output_file) if args.output_file.is_file() else {}
        args.output_file.parent.mkdir(parents=True, exist_ok=True)
        write_json(args.output_file, inspected | {Path(name).name: rows})
    return rows


if __name__ == "__main__":
    main()
