# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Beam search and training on a GPU, eager, compiled and in CUDA graphs, beside M2M100, in under 20 minutes.

    python examples/benchmarks/gpu.py --output_file gpu.json
    # in two runs, where a command may take 10 minutes
    python examples/benchmarks/gpu.py --sizes base --tasks search training --budget_seconds 540 --output_file base.json
    python examples/benchmarks/gpu.py --sizes big --budget_seconds 540 --output_file big.json
    # all tasks with two tiny models on a CPU, to try the script
    python examples/benchmarks/gpu.py --device cpu --tiny --output_file tiny.json

The models have random weights: the residual model, RK2 with a gate and RK4 of this package, and M2M100 of the same
sizes. Searches run in bfloat16, with 4 beams and outputs of a fixed length. A training step is an Adam update with
autocast to bfloat16. The modes of search:

- eager: the default
- static: `cache_implementation="static"` of transformers, which compiles nothing for beams (M2M100 only)
- graphs: `cache_implementation="static"` of this package with its defaults, which are CUDA graphs on a GPU
- compiled: the same without CUDA graphs

The modes of training: eager; compiled (`dynamic=True`, one compilation for all batches); graphs
(`mode="reduce-overhead"` and a fixed shape, a separate task since it compiles once more).

Each row has two speed ratios: to M2M100 in the same mode (for a compiled search: static), and to eager M2M100. The
contenders of a batch take turns; a ratio is the median of the rounds' ratios. "Of the peak" is the share of the GPU's
dense bfloat16 peak that the matrix products reach. `FlopCounterMode` counts them in an eager run of the same model.
MiB are the tensors' peak memory in the second step, weights and Adam's states included.

An exception becomes a row with its message. A contender that no longer fits into `--budget_seconds` becomes a row that
says so. The most important measures come first. For each size: search with batches of 64 and 1, then training with 256
pairs, 32K and 16K target tokens. Training steps in CUDA graphs come last. For each batch, eager models come first.
JSON is written after each row.
"""

import gc
import json
import math
import platform
import statistics
import time
import traceback
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser, Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from contenders import Effort, base_preset, in_turns, m2m100, machine, ratio, sources, synchronized, training_step
from torch._dynamo.utils import counters
from torch.utils.flop_counter import FlopCounterMode
from transformers import CompileConfig
from transformers.utils import logging

from modeling_ode_transformer import __version__
from modeling_ode_transformer.configuration_ode_transformer import PRESETS


THEIRS = "M2M100"
SOLVERS = {"residual": "euler", "RK2": "rk2", "RK4": "rk4"}
MODELS = ["residual", THEIRS, "RK2", "RK4"]
# Modes by task, in order of importance, each with the M2M100 mode used for comparison.
MODES = {
    "search": {"eager": "eager", "static": "static", "graphs": "static", "compiled": "static"},
    "training": {"eager": "eager", "compiled": "compiled"},
    "training_graphs": {"graphs": "graphs"},
}
SIZES = {
    "base": PRESETS["base"],
    "big": PRESETS["big"],
    "tiny": {
        "d_model": 64,
        "encoder_ffn_dim": 256,
        "decoder_ffn_dim": 256,
        "encoder_attention_heads": 1,
        "decoder_attention_heads": 1,
        "encoder_layers": 1,
        "decoder_layers": 1,
    },
}
TINY = {
    "sizes": ["tiny"],
    "models": ["residual", THEIRS],
    "batch_sizes": [4],
    "new_tokens": 4,
    "pairs": 4,
    "tokens": [112, 56],
    "lengths": [7, 14],
    "rounds": 1,
    "backend": "eager",  # traces as others do, and compiles nothing
}
# Dense bfloat16 operations per second; the first key contained in the GPU's name counts.
PEAKS = {"H100 PCIe": 756e12, "H100": 989e12, "H200": 989e12, "A100": 312e12}
# Expected seconds of a contender's first call, until one of the same mode has been timed.
EXPECTED = {"eager": 5, "static": 5, "graphs": 90, "compiled": 90}
COLUMNS = {
    "contender": "{}",
    "sequences a second": "{:.4g}",
    "target tokens a second": "{:.4g}",
    "ratio": "{:.3f}",
    "ratio to eager": "{:.3f}",
    "MiB": "{:.0f}",
    "of the peak": "{:.1%}",
    "first call, s": "{:.1f}",
    "graphs": "{}",
}


def makers(size: str) -> dict[str, Callable]:
    """Functions that make each model of a size."""
    fields = SIZES[size]
    layers = {name: fields[name] for name in ("encoder_layers", "decoder_layers") if name in fields}
    ours = {name: partial(base_preset, solver, **fields) for name, solver in SOLVERS.items()}
    return ours | {THEIRS: partial(m2m100, d_model=fields.get("d_model", 512), **layers)}


def contenders_of(task: str, models: list[str]) -> list[tuple[str, str]]:
    """Models and modes of a task. This package's models compile searches; M2M100 uses transformers' static cache."""
    lacking = {"static": set(SOLVERS), "graphs": {THEIRS}, "compiled": {THEIRS}} if task == "search" else {}
    return [(name, mode) for mode in MODES[task] for name in models if name not in lacking.get(mode, ())]


def pairs_of(number: int, length: int) -> dict[str, torch.Tensor]:
    """Pairs with equal source and label lengths, evenly spread around `length`."""
    spread = length // 7
    batch = sources([length - spread + i % (2 * spread + 1) for i in range(number)])
    return batch | {"labels": batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)}


def peak_of(device: torch.device) -> float | None:
    """The GPU's peak of dense bfloat16 operations per second, if its name is known."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return next((peak for part, peak in PEAKS.items() if part in name), None)


def described(error: Exception) -> str:
    traceback.print_exc()
    return f"{type(error).__name__}: {error}"


def repeated(run: Callable[[], object], calls: int) -> Callable[[], None]:
    def several():
        for _ in range(calls):
            run()

    return several


def operations(run: Callable[[], object]) -> int | None:
    """Floating-point operations in the matrix products of a run."""
    try:
        with FlopCounterMode(display=False) as counter:
            run()
    except Exception as error:
        print(f"Operations were not counted: {described(error)}")
        return None
    return counter.get_total_flops()


class Models:
    """The models of a size for a task, made when first needed. Batches share them and their compiled forms."""

    def __init__(self, task: str, size: str, args: Namespace):
        self.task, self.makers, self.args = task, makers(size), args
        self.made, self.compiled = {}, {}

    def model(self, name: str):
        if name not in self.made:
            with torch.device(self.args.device):
                model = self.makers[name]()
            if self.task == "search":
                model = model.to(torch.bfloat16)
                model.generation_config.eos_token_id = None  # all outputs have the same length
            self.made[name] = model
        return self.made[name]

    def run(self, name: str, mode: str, batch: dict[str, torch.Tensor]) -> Callable[[], None]:
        """The function to time."""
        return (self.search if self.task == "search" else self.training)(name, mode, batch)

    def search(self, name: str, mode: str, batch: dict[str, torch.Tensor]) -> Callable[[], None]:
        model, inputs = self.model(name), {key: batch[key] for key in ("input_ids", "attention_mask")}
        options = {"num_beams": 4, "max_new_tokens": self.args.new_tokens}
        number = len(inputs["input_ids"])
        if mode == "compiled" or (mode == "graphs" and self.args.backend != "inductor"):
            options["compile_config"] = CompileConfig(
                fullgraph=True, dynamic=True, mode="default", backend=self.args.backend
            )
        if mode != "eager":
            options["cache_implementation"] = "static"

        def search():
            shape = tuple(model.generate(**inputs, **options).shape)
            if shape != (number, 1 + self.args.new_tokens):
                raise RuntimeError(f"The outputs have the shape {shape}: they should have one length.")

        return search

    def training(self, name: str, mode: str, batch: dict[str, torch.Tensor]) -> Callable[[], None]:
        model = self.model(name)
        if mode != "eager":
            if (name, mode) not in self.compiled:
                options = {"dynamic": mode == "compiled", "backend": self.args.backend}
                if mode == "graphs" and self.args.backend == "inductor":
                    options["mode"] = "reduce-overhead"
                self.compiled[name, mode] = torch.compile(model, **options)
            model = self.compiled[name, mode]
        step = training_step(model, batch, "bfloat16")

        def training():
            torch.compiler.cudagraph_mark_step_begin()
            step()

        return training


class Report:
    """The rows of the table, printed and written to the file one by one."""

    def __init__(self, results: dict, file: Path | None):
        self.results, self.file = results | {"rows": []}, file
        print(self.results["machine"], flush=True)

    def head(self, title: str) -> None:
        print(f"\n{title}\n\n| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}", flush=True)

    def add(self, row: dict) -> None:
        self.results["rows"].append(row)
        if row["error"] is None:
            values = [row.get(name) for name in COLUMNS]
            values[0] = f"{row['model']}, {row['mode']}"
            cells = ["" if value is None else form.format(value) for value, form in zip(values, COLUMNS.values())]
        else:
            cells = [f"{row['model']}, {row['mode']}", row["error"].splitlines()[0][:150]]
        print(f"| {' | '.join(cells)} |", flush=True)
        if self.file:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self.file.write_text(json.dumps(self.results, indent=1), encoding="utf-8")


class Budget:
    """The remaining time. A contender is expected to take as long as the last one of its mode, task and size."""

    def __init__(self, seconds: float):
        self.end, self.expected = time.perf_counter() + seconds, {}

    def fits(self, mode: str, *of: str) -> bool:
        return time.perf_counter() + self.expected.get((mode, *of), EXPECTED[mode]) < self.end


def prepare(models: Models, row: dict, batch: dict[str, torch.Tensor], budget: Budget) -> tuple[Callable, int]:
    """Makes and calls a contender, and records the cost in its row. Returns the function to time and its number of
    calls."""
    name, mode, device = row["model"], row["mode"], models.args.device
    model = models.model(name)
    start, graphs = time.perf_counter(), counters["stats"]["unique_graphs"]
    run = models.run(name, mode, batch)
    once = synchronized(run, device)
    once()
    row["first call, s"] = budget.expected[mode, row["task"], row["size"]] = time.perf_counter() - start
    row["parameters"] = model.num_parameters()
    if mode in ("compiled", "graphs"):
        row["graphs"] = counters["stats"]["unique_graphs"] - graphs
    measures_memory = device.type == "cuda" and models.task != "search"
    if measures_memory:
        others = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
    once()
    if measures_memory:
        # Other contenders' memory does not count; this one's weights and Adam states do.
        own = 3 * sum(each.nbytes for each in model.parameters())
        row["MiB"] = (torch.cuda.max_memory_allocated(device) - others + own) / 2**20
    start = time.perf_counter()
    once()
    calls = min(10, math.ceil(0.1 / (time.perf_counter() - start)))
    return synchronized(repeated(run, calls), device), calls


def measure(models: Models, size: str, batch: dict[str, torch.Tensor], title: str, budget: Budget, report: Report):
    """A row for each contender of a batch."""
    args, number, tokens = models.args, len(batch["input_ids"]), int((batch["labels"] != -100).sum())
    if models.task == "search":
        tokens = number * args.new_tokens
    report.head(f"{size}, {title}")
    rows, runs, calls, counted = {}, {}, {}, {}

    def guarded(key: tuple[str, str], run: Callable[[], None]) -> None:
        if rows[key]["error"] is None:
            try:
                run()
            except Exception as error:
                rows[key]["error"] = described(error)

    for name, mode in contenders_of(models.task, args.models):
        row = {"task": models.task, "size": size, "batch": title, "model": name, "mode": mode, "error": None}
        rows[name, mode] = row
        if not budget.fits(mode, models.task, size):
            row["error"] = "not run: --budget_seconds"
            continue
        try:
            run, calls[name, mode] = prepare(models, row, batch, budget)
            if name not in counted:
                counted[name] = operations(models.run(name, "eager", batch))
        except Exception as error:
            row["error"] = described(error)
            gc.collect()
        else:
            runs[name, mode] = partial(guarded, (name, mode), run)
    seconds = in_turns(runs, Effort(args.rounds), pause=0)
    done = {key: [each / calls[key] for each in seconds[key]] for key in runs if rows[key]["error"] is None}
    for (name, mode), row in rows.items():
        if (name, mode) in done:
            each, peak = done[name, mode], peak_of(args.device)
            median = statistics.median(each)
            row |= {"sequences a second": number / median, "target tokens a second": tokens / median}
            others = {"ratio": (THEIRS, MODES[models.task][mode]), "ratio to eager": (THEIRS, "eager")}
            row |= {column: ratio(done[other], each) for column, other in others.items() if other in done}
            row |= {"operations": counted[name], "calls": calls[name, mode], "seconds": each}
            if peak and counted[name]:
                row["of the peak"] = counted[name] / median / peak
        report.add(row)


def batches_of(task: str, args: Namespace) -> dict[str, dict[str, torch.Tensor]]:
    """The batches of a task by title, in order of importance."""
    short, long = args.lengths
    if task == "search":
        return {f"search, 4 beams, batch {number}": pairs_of(number, short) for number in args.batch_sizes}
    batches = {f"training, {args.pairs} pairs": pairs_of(args.pairs, short)}
    if task == "training":
        batches |= {f"training, {tokens} target tokens": pairs_of(tokens // long, long) for tokens in args.tokens}
    return batches


def main(argv: list[str] | None = None) -> dict:
    """Runs the benchmark with the given arguments (default: the command line's) and returns its results."""
    parser = ArgumentParser(description=__doc__.splitlines()[0], formatter_class=ArgumentDefaultsHelpFormatter)
    parser.add_argument("--output_file", type=Path, help="JSON file to write")
    parser.add_argument("--device", type=torch.device, default="cuda", help="where the models run")
    parser.add_argument("--tasks", nargs="+", default=list(MODES), choices=list(MODES), help="what to measure")
    parser.add_argument("--sizes", nargs="+", default=["base", "big"], choices=list(SIZES), help="sizes of the models")
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS, help="models to compare")
    parser.add_argument("--batch_sizes", nargs="+", type=int, default=[64, 1], help="sources per search")
    parser.add_argument("--new_tokens", type=int, default=24, help="tokens per output")
    parser.add_argument("--pairs", type=int, default=256, help="number of short pairs per training step")
    parser.add_argument(
        "--tokens", nargs="*", type=int, default=[32768, 16384], help="tokens per training step with longer pairs"
    )
    parser.add_argument("--lengths", nargs=2, type=int, default=[14, 28], help="tokens per short and per longer pair")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each contender")
    parser.add_argument(
        "--backend", default="inductor", help="backend of torch.compile; only inductor records CUDA graphs"
    )
    parser.add_argument(
        "--budget_seconds", type=float, default=1100, help="time limit in seconds; what does not fit is skipped"
    )
    parser.add_argument("--tiny", action="store_true", help="use tiny models and batches instead of the defaults")
    args = parser.parse_args(argv)
    if args.tiny:
        parser.set_defaults(**TINY)
        args = parser.parse_args(argv)
    if args.device.type == "cuda" and not torch.cuda.is_available():
        parser.error("No GPU was found: give --device cpu.")
    logging.set_verbosity_error()

    versions = {"package": __version__, "python": platform.python_version(), "cuda": torch.version.cuda}
    results = {
        "machine": machine(args.device) | versions | {"bf16 peak": peak_of(args.device)},
        "arguments": {name: str(value) for name, value in vars(args).items()},
    }
    report, budget = Report(results, args.output_file), Budget(args.budget_seconds)
    order = [(task, size) for size in args.sizes for task in ("search", "training")]
    order += [("training_graphs", size) for size in args.sizes]
    for task, size in order:
        if task not in args.tasks:
            continue
        models = Models(task, size, args)
        # All models compile the same functions, and each needs graphs of its own.
        with torch._dynamo.config.patch(recompile_limit=64):
            for title, batch in batches_of(task, args).items():
                batch = {name: values.to(args.device) for name, values in batch.items()}
                measure(models, size, batch, title, budget, report)
        del models
        torch.compiler.reset()
        gc.collect()
        if args.device.type == "cuda":
            torch.cuda.empty_cache()
    return report.results


if __name__ == "__main__":
    main()
