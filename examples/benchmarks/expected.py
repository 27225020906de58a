# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The expected time and memory of recipes on one GPU, counted on a machine without one.

    python examples/benchmarks/expected.py --output_file expected.json

A step of a recipe's model runs on tensors without data, in bfloat16, with losses in chunks as in
`TokenSeq2SeqTrainer`. Its peak memory includes weights, gradients and Adam's states. The attention is a CPU's, which
keeps more memory and has more operators than a GPU's. The batch is a whole update, halved until a tenth of the memory
is free; the recipe accumulates the rest of the update.

Time is an estimate, not a measurement. An eager step takes the longer of two times: its operators at 27 microseconds
each, the time that an H100 waits for one, or its matrix products at `--share` of the peak. Examples have the lengths
in `LENGTHS`.
"""

import json
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser
from collections.abc import Sequence
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from modeling_ode_transformer import OdeTransformerConfig, OdeTransformerForConditionalGeneration
from modeling_ode_transformer.text_files import read_json
from modeling_ode_transformer.training.losses import states_as_logits, summed_cross_entropy
from modeling_ode_transformer.training.recipe_files import recipe_file
from modeling_ode_transformer.training.trainer import LOSS_CHUNK_SHARE, MIN_LOSS_CHUNK_SIZE


# Tokens of a source and a target, close to the means of these data (articles are cut at 500), and the recipe's GPUs.
LENGTHS = {
    "wmt14_en_de_base": (30, 30, 8),
    "wmt14_en_de_deep": (30, 30, 8),
    "wmt14_en_de_big": (30, 30, 8),
    "cnn_dailymail_base": (500, 70, 8),
    "iwslt14_de_en": (25, 25, 1),
    "tatoeba_en_de": (11, 11, 1),
}
# Numbers of pairs, for recipes that count epochs.
PAIRS = {"tatoeba_en_de": 163_551}
SECONDS_PER_OPERATOR = 27e-6


class CountCalls(TorchDispatchMode):
    """Counts the calls of ATen operators within the context, forward and backward, in `calls`."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls += 1
        return func(*args, **(kwargs or {}))


def step(model: OdeTransformerForConditionalGeneration, pairs: int, lengths: Sequence[int]) -> None:
    sources, targets = (torch.full((pairs, length), 5) for length in lengths)
    size = max(MIN_LOSS_CHUNK_SIZE, int(LOSS_CHUNK_SHARE * targets.numel()))
    with torch.autocast("cpu", torch.bfloat16):
        with states_as_logits(model.lm_head):
            states = model(input_ids=sources, decoder_input_ids=targets).logits.flatten(0, 1)
        summed_cross_entropy(states, model.lm_head.weight, None, targets.flatten(), 0.1, size).backward()


def count(config: OdeTransformerConfig, tokens: int, lengths: Sequence[int]) -> dict[str, float]:
    """Peak GiB, operators and floating-point operations of a step of `tokens` padded tokens of the longer side."""
    pairs = tokens // max(lengths)
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = OdeTransformerForConditionalGeneration(config).train()
        tracker = MemTracker()
        tracker.track_external(model)
        with tracker:
            step(model, pairs, lengths)
        with FlopCounterMode(display=False) as flops:
            step(model, pairs, lengths)
    # The number of operators is the same for tiny tensors, except for the chunks of the loss.
    heads = config.encoder_attention_heads
    tiny = {"d_model": 2 * heads, "encoder_ffn_dim": 2, "decoder_ffn_dim": 2, "vocab_size": 8}
    tiny = OdeTransformerConfig.from_dict(config.to_dict() | tiny)
    with CountCalls() as counted:
        step(OdeTransformerForConditionalGeneration(tiny).train(), 2, (8, 8))
    adam = 2 * sum(parameter.numel() for parameter in model.parameters()) * 4
    peak = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"] + adam
    return {"tokens": tokens, "GiB": peak / 2**30, "operators": counted.calls, "flops": flops.get_total_flops()}


def expect(name: str, args) -> dict[str, float | str]:
    """A row of the table: a recipe's largest batch, its memory and time, and the hours of the training."""
    recipe, (*lengths, gpus) = read_json(recipe_file(name)), LENGTHS[name]
    config = OdeTransformerConfig(vocab_size=recipe["vocab_size"], **recipe["config_overrides"])
    accumulation = recipe.get("gradient_accumulation_steps", 1)
    update = recipe["max_tokens_per_batch"] * accumulation * gpus
    tokens, found = update, None
    while found is None or found["GiB"] > 0.9 * args.gib:
        found = count(config, tokens, lengths)
        tokens //= 2
    updates = recipe.get("max_steps") or recipe["num_train_epochs"] * PAIRS[name] * max(lengths) / update
    compute = found["flops"] / (args.share * args.peak)
    seconds = max(SECONDS_PER_OPERATOR * found["operators"], compute)
    found |= {"accumulation": update // found["tokens"], "updates": round(updates), "seconds": seconds}
    return {"recipe": name} | found | {"hours": updates * found["accumulation"] * seconds / 3600}


def main(argv: list[str] | None = None) -> list[dict]:
    """Runs the script with the given arguments (default: the command line's) and returns the rows."""
    parser = ArgumentParser(description=__doc__.splitlines()[0], formatter_class=ArgumentDefaultsHelpFormatter)
    parser.add_argument("--recipes", nargs="+", choices=list(LENGTHS), default=list(LENGTHS), help="recipes")
    parser.add_argument("--gib", type=float, default=80, help="memory of the GPU in GiB; the default is an H100's")
    parser.add_argument(
        "--peak",
        type=float,
        default=989e12,
        help="bfloat16 operations per second of the GPU; the default is an H100's",
    )
    parser.add_argument("--share", type=float, default=0.3, help="share of the peak that matrix products reach")
    parser.add_argument("--output_file", type=Path, help="JSON file for the rows")
    args = parser.parse_args(argv)
    print(
        "| recipe | tokens x accumulation | GiB | updates | ms a step | hours |\n| --- | --- | --- | --- | --- | --- |"
    )
    rows = []
    for name in args.recipes:
        rows.append(row := expect(name, args))
        batch = f"{row['tokens']:,} x {row['accumulation']}"
        values = f"{row['GiB']:.0f} | {row['updates']:,} | {1000 * row['seconds']:.0f} | {row['hours']:.1f}"
        print(f"| `{name}` | {batch} | {values} |", flush=True)
    if args.output_file:
        args.output_file.parent.mkdir(parents=True, exist_ok=True)
        args.output_file.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return rows


if __name__ == "__main__":
    main()
