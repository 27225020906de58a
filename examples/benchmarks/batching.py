# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""How much faster training is with token-budget batches: real tokens per second against batches of sentences.

    python examples/benchmarks/batching.py --source_file data/multi30k/train.en.gz \\
        --target_file data/multi30k/train.de.gz --output_file batching.json

trains one model on batches of three kinds, side by side. A round has a few updates of each kind, and the medians over
all rounds are compared. On average, all kinds have the same number of pairs per update, and so the same number of
updates per epoch. Tokens are counted without padding.
"""

import platform
import statistics
import time
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from contenders import write_results
from transformers import DataCollatorForSeq2Seq, set_seed

from modeling_ode_transformer import (
    OdeTransformerConfig,
    OdeTransformerForConditionalGeneration,
    OdeTransformerTokenizer,
)
from modeling_ode_transformer.text_files import read_lines
from modeling_ode_transformer.training.samplers import LengthGroupedSampler, TokenBudgetBatchSampler


def kinds_of_batches(lengths: np.ndarray, max_tokens: int, seed: int) -> dict[str, list[list[int]]]:
    """The batches of an epoch of every kind: indices of pairs."""
    budget = list(TokenBudgetBatchSampler(lengths, max_tokens, seed))
    size = round(len(lengths) / len(budget))
    shuffled = np.random.default_rng(seed).permutation(len(lengths)).tolist()
    grouped = list(LengthGroupedSampler(lengths.sum(axis=1), size, seed))
    sentences = {"sentences, shuffled": shuffled, "sentences, grouped by length": grouped}
    cut = {kind: [order[i : i + size] for i in range(0, len(order), size)] for kind, order in sentences.items()}
    return cut | {"token budget": budget}


def padding(batches: list[list[int]], lengths: np.ndarray) -> float:
    """The share of padding in the padded tokens of both sides."""
    return 1 - lengths.sum() / sum(len(batch) * lengths[batch].max(axis=0).sum() for batch in batches)


def main(argv: list[str] | None = None) -> dict:
    """Runs the benchmark with the given arguments (default: the command line's) and returns its results."""
    parser = ArgumentParser(description=__doc__.splitlines()[0], formatter_class=ArgumentDefaultsHelpFormatter)
    parser.add_argument("--source_file", required=True, help="file of sources, one per line (.gz accepted)")
    parser.add_argument("--target_file", required=True, help="file of targets, in the same order")
    parser.add_argument("--output_file", type=Path, help="JSON file to write")
    parser.add_argument("--vocab_size", type=int, default=8000, help="number of BPE pieces of the joint tokenizer")
    parser.add_argument("--max_tokens", type=int, default=2700, help="maximum number of tokens per batch on each side")
    parser.add_argument("--updates", type=int, default=6, help="updates of each kind of batch per round")
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds, after one more to warm up")
    parser.add_argument(
        "--d_model", type=int, default=256, help="width of the model; feed-forward layers are four times as wide"
    )
    parser.add_argument("--layers", type=int, default=3, help="number of encoder layers and of decoder layers")
    parser.add_argument("--device", default="cpu", help="where the model runs")
    parser.add_argument("--seed", type=int, default=1, help="random seed")
    args = parser.parse_args(argv)
    set_seed(args.seed)

    texts = [read_lines(name) for name in (args.source_file, args.target_file)]
    if len(texts[0]) != len(texts[1]):
        parser.error(f"{args.source_file} has {len(texts[0])} lines, but {args.target_file} has {len(texts[1])}")
    tokenizer = OdeTransformerTokenizer.train(texts[0] + texts[1], args.vocab_size, model_type="bpe")
    sources, targets = (tokenizer(side)["input_ids"] for side in texts)
    lengths = np.array([(len(source), len(target)) for source, target in zip(sources, targets)])

    config = OdeTransformerConfig(
        vocab_size=len(tokenizer),
        d_model=args.d_model,
        encoder_layers=args.layers,
        decoder_layers=args.layers,
        encoder_attention_heads=args.d_model // 64,
        decoder_attention_heads=args.d_model // 64,
        encoder_ffn_dim=4 * args.d_model,
        decoder_ffn_dim=4 * args.d_model,
        encoder_solver="rk2",
    )
    model = OdeTransformerForConditionalGeneration(config).to(args.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    collator = DataCollatorForSeq2Seq(tokenizer, model=model)

    def update(batch):
        pairs = [{"input_ids": sources[i], "labels": targets[i]} for i in batch]
        with torch.autocast(torch.device(args.device).type, dtype=torch.bfloat16):
            loss = model(**collator(pairs).to(args.device)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    kinds = kinds_of_batches(lengths, args.max_tokens, args.seed)
    needed, shortest = (args.rounds + 1) * args.updates, min(map(len, kinds.values()))
    if shortest < needed:
        parser.error(
            f"--rounds {args.rounds} and --updates {args.updates} need {needed} batches (with a warm-up), but an "
            f"epoch of these pairs has {shortest}: give lower numbers, or more pairs."
        )
    batches = {kind: iter(order) for kind, order in kinds.items()}
    rates = {kind: [] for kind in kinds}
    for _ in range(args.rounds + 1):
        for kind, order in batches.items():
            taken = list(islice(order, args.updates))
            start = time.perf_counter()
            for batch in taken:
                update(batch)
            if torch.device(args.device).type == "cuda":
                torch.cuda.synchronize()
            rates[kind].append(sum(lengths[batch].sum() for batch in taken) / (time.perf_counter() - start))

    medians = {kind: statistics.median(values[1:]) for kind, values in rates.items()}
    results = {
        "machine": f"{args.device}, {torch.get_num_threads()} threads, {platform.machine()}",
        "torch": torch.__version__,
        "arguments": {name: str(value) for name, value in vars(args).items()},
        "kinds": {
            kind: {
                "updates_per_epoch": len(order),
                "padding": round(padding(order, lengths), 4),
                "tokens_per_second": round(medians[kind], 1),
                "ratio": round(medians[kind] / medians["sentences, shuffled"], 3),
            }
            for kind, order in kinds.items()
        },
    }
    print("| batches | updates an epoch | padding | tokens a second | ratio |\n| --- | --- | --- | --- | --- |")
    for kind, row in results["kinds"].items():
        shown = f"{row['padding']:.1%} | {row['tokens_per_second']:.0f} | {row['ratio']:.2f}"
        print(f"| {kind} | {row['updates_per_epoch']} | {shown} |")
    write_results(results, args.output_file)
    return results


if __name__ == "__main__":
    main()
