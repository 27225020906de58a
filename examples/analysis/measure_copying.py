# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""How much better a language model predicts random tokens when it reads them a second time.

    python examples/analysis/measure_copying.py runs/verdict/linux_doc/* --output_file copying.json

Sequences of random tokens are given twice in a row. A model that has learned to look up what followed a token before
(induction heads, Olsson et al., 2022) predicts the second half better; others cannot. The gain is the difference of
the mean losses of the two halves, in nats for each token.
"""

import json
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

import modeling_ode_transformer  # noqa: F401  registers the classes


@torch.no_grad()
def copying_gain(model, length: int = 60, sequences: int = 64, seed: int = 0) -> float:
    """The gain of a causal language model in nats, for sequences of `length` random tokens."""
    generator = torch.Generator().manual_seed(seed)
    once = torch.randint(4, model.config.vocab_size, (sequences, length), generator=generator)  # no special tokens
    twice = torch.cat([once, once], dim=1)
    log_probabilities = model(input_ids=twice, attention_mask=torch.ones_like(twice)).logits.log_softmax(dim=-1)
    nll = -log_probabilities[:, :-1].gather(-1, twice[:, 1:, None]).squeeze(-1)
    # The first token of the second half is as new as any.
    return float(nll[:, : length - 1].mean() - nll[:, length:].mean())


def main(argv: list[str] | None = None) -> dict[str, float]:
    """Runs the script with the given arguments (default: the command line's) and returns the gain of each model."""
    parser = ArgumentParser(description=__doc__.splitlines()[0], formatter_class=ArgumentDefaultsHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path, help="folders of language models")
    parser.add_argument("--output_file", type=Path, help="JSON file to write")
    args = parser.parse_args(argv)
    gains = {}
    for folder in args.models:
        gains[folder.name] = copying_gain(AutoModelForCausalLM.from_pretrained(folder).eval())
        print(f"{folder.name:40} {gains[folder.name]:7.3f}", flush=True)
    if args.output_file:
        args.output_file.write_text(json.dumps(gains, indent=1) + "\n", encoding="utf-8")
    return gains


if __name__ == "__main__":
    main()
