# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Speed and memory by depth and scheme, as in table 6 of the paper: beam search and training steps, on a GPU.

    python examples/benchmarks/table6.py --translation_file data/multi30k/test_2016_flickr.en.gz \\
        --output_file table6.json

The models are the paper's, base and big, with random weights, and M2M100 of the same sizes. Each measure has a row for
each model: sentences or target tokens per second, and the ratio to the residual model with six encoder layers. On a
GPU, the row also has the tensors' peak memory, weights and Adam's states included. The contenders take turns; a ratio
is the median of the rounds' ratios.
"""

import gc
import statistics
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from contenders import (
    DTYPES,
    Effort,
    base_preset,
    batches_by_length,
    in_turns,
    m2m100,
    machine,
    ratio,
    read_lengths,
    synchronized,
    training_step,
    write_results,
)
from transformers.utils import logging

from modeling_ode_transformer.configuration_ode_transformer import PRESETS


FIRST = "residual 6"


def models(size: str) -> dict[str, Callable]:
    """Functions that make each model of "base" or "big"."""
    fields = PRESETS[size]
    d_model = fields.get("d_model", 512)
    return {
        FIRST: partial(base_preset, "euler", **fields),
        "residual 12": partial(base_preset, "euler", encoder_layers=12, **fields),
        "residual 24": partial(base_preset, "euler", encoder_layers=24, **fields),
        "RK2 6": partial(base_preset, "rk2", **fields),
        "RK4 6": partial(base_preset, "rk4", **fields),
        "M2M100 6": partial(m2m100, 6, d_model),
        "M2M100 12": partial(m2m100, 12, d_model),
    }


def search(model, batches: list[dict[str, torch.Tensor]]) -> None:
    """Beam search for all batches; outputs are as long as the batch's longest source."""
    for batch in batches:
        length = batch["input_ids"].shape[1]
        model.generate(**batch, num_beams=4, min_new_tokens=length, max_new_tokens=length)


def measure(makers: dict[str, Callable], task: Callable, things: int, device: torch.device, effort: Effort) -> list:
    """A row for each model: its name, `things` per second (median round), the speed relative to `FIRST` (median of the
    rounds' ratios), MiB (2**20 bytes) of memory on a GPU or else None, and the seconds of each round.

    Args:
        makers: A function for each model that makes it.
        task: Takes a model and returns the function to time.
        things: The number of sentences or tokens that this function processes.
    """
    gc.collect()  # the previous measure's models
    memory, runs = {}, {}
    for name, make in makers.items():
        others = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
        with torch.device(device):
            model = make()
        runs[name] = synchronized(task(model), device)
        if device.type == "cuda":
            runs[name]()  # allocates lasting memory: optimizer states, workspaces
            torch.cuda.reset_peak_memory_stats(device)
            runs[name]()
            memory[name] = (torch.cuda.max_memory_allocated(device) - others) / 2**20
    seconds = in_turns(runs, effort, pause=0)
    return [
        {
            "model": name,
            "a second": things / statistics.median(each),
            "ratio": ratio(seconds[FIRST], each),
            "MiB": memory.get(name),
            "seconds": each,
        }
        for name, each in seconds.items()
    ]


def report(title: str, rows: list[dict]) -> None:
    """Prints the rows of a measure as a table in Markdown."""
    print(f"\n{title}\n\n| model | a second | ratio | MiB |\n| --- | --- | --- | --- |")
    for row in rows:
        memory = "" if row["MiB"] is None else f"{row['MiB']:.0f}"
        print(f"| {row['model']} | {row['a second']:.4g} | {row['ratio']:.3f} | {memory} |", flush=True)


def main(argv: list[str] | None = None) -> dict:
    """Runs the benchmark with the given arguments (default: the command line's) and returns its results."""
    parser = ArgumentParser(description=__doc__.splitlines()[0], formatter_class=ArgumentDefaultsHelpFormatter)
    parser.add_argument(
        "--translation_file", type=Path, required=True, help="file of sentences, one per line (.gz accepted)"
    )
    parser.add_argument("--output_file", type=Path, help="JSON file to write")
    parser.add_argument("--device", type=torch.device, default="cuda", help="where the models run")
    parser.add_argument(
        "--sizes", nargs="+", default=["base", "big"], choices=["base", "big"], help="sizes of the models"
    )
    parser.add_argument(
        "--dtypes", nargs="+", default=list(DTYPES), choices=list(DTYPES), help="precisions of search and training"
    )
    parser.add_argument("--batch_sizes", nargs="+", type=int, default=[1, 64], help="sentences per search")
    parser.add_argument("--training_sentences", type=int, default=256, help="pairs per training step")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each contender")
    args = parser.parse_args(argv)
    if args.device.type == "cuda" and not torch.cuda.is_available():
        parser.error("No GPU was found: give --device cpu.")
    lengths, effort = read_lengths(args.translation_file), Effort(args.rounds)
    if len(lengths) < (most := max(*args.batch_sizes, args.training_sentences)):
        parser.error(f"{args.translation_file} has {len(lengths)} sentences, too few for a batch of {most}.")
    logging.set_verbosity_error()

    def on_device(batch):
        return {name: values.to(args.device) for name, values in batch.items()}

    results = {"machine": machine(args.device), "arguments": {name: str(value) for name, value in vars(args).items()}}
    print(results["machine"])
    for size in args.sizes:
        for dtype in args.dtypes:
            for batch_size in args.batch_sizes:
                batches = [on_device(batch) for batch in batches_by_length(lengths, batch_size, 2)]
                makers = {
                    name: lambda make=make, dtype=dtype: make().to(DTYPES[dtype])
                    for name, make in models(size).items()
                }
                title = f"{size}, beam 4, batch {batch_size}, {dtype}: sentences"
                task = partial(lambda batches, model: partial(search, model, batches), batches)
                results[title] = measure(makers, task, len(batches) * batch_size, args.device, effort)
                report(title, results[title])
                write_results(results, args.output_file)
            (batch,) = batches_by_length(lengths, args.training_sentences, 1)
            batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
            title = f"{size}, training step of {args.training_sentences} pairs, {dtype}: target tokens"
            task = partial(training_step, batch=on_device(batch), dtype=dtype)
            results[title] = measure(models(size), task, int(batch["attention_mask"].sum()), args.device, effort)
            report(title, results[title])
            write_results(results, args.output_file)
    return results


if __name__ == "__main__":
    main()
