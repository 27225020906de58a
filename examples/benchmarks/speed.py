# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Speed and memory of the ODE Transformer beside the models that users might choose instead, in one run.

    python examples/benchmarks/speed.py --translation_file data/multi30k/test_2016_flickr.en.gz \\
        --summarization_file data/cnn_dailymail_sample/sample.jsonl.gz --output_file speed.json

Each M2M100 shares its weights with the ODE Transformer beside it, whose learned coefficients are Euler's. So the two
generate the same tokens, which is checked before the timing. The contenders take turns; a ratio is the median of the
rounds' ratios. Contenders whose names end in "packed" or "int8" have such weights (`optimize_for_cpu`).
"""

import contextlib
import math
import statistics
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from contenders import (
    VOCAB_SIZE,
    CTranslate2,
    Effort,
    base_preset,
    batches_by_length,
    in_turns,
    m2m100,
    machine,
    ode_transformer,
    peak_memory,
    prepared,
    ratio,
    read_lengths,
    sources,
    step_operations,
    training_step,
    write_results,
)
from transformers import LogitsProcessorList
from transformers.utils import logging

from modeling_ode_transformer.generation_ode_transformer import SourceLengthLogitsProcessor
from modeling_ode_transformer.inference.cpu import Int8Linear, OneDnnLinear


class Report:
    """The rows of the table: each measure with the contenders' results and ratios."""

    def __init__(self):
        self.rows = []

    def add(
        self,
        measure: str,
        seconds: dict[str, list[float]],
        pairs: list[tuple[str, str]],
        per_second: int | None = None,
        reach: float | None = None,
        at_most: bool = False,
        operations: dict[str, int] | None = None,
    ):
        """Each of `pairs` is a contender and its comparison, by time or, with `per_second` things, by things per
        second. `operations` of each contender give the ratio of the arithmetic."""
        for ours, theirs in pairs:
            value = ratio(seconds[ours], seconds[theirs]) if at_most else ratio(seconds[theirs], seconds[ours])
            medians = [statistics.median(seconds[name]) for name in (ours, theirs)]
            if per_second is not None:
                medians = [per_second / median for median in medians]
            unit = "s" if per_second is None else "a second"
            self.add_row(
                measure,
                ours,
                theirs,
                medians,
                unit,
                value,
                reach,
                at_most,
                seconds={ours: seconds[ours], theirs: seconds[theirs]},
                **({"arithmetic": operations[ours] / operations[theirs]} if operations else {}),
            )

    def add_row(self, measure, ours, theirs, values, unit, value, reach, at_most, **more):
        reached = None if reach is None else value <= reach if at_most else value >= reach
        self.rows.append(
            {
                "measure": measure,
                "contender": ours,
                "compared with": theirs,
                "values": values,
                "unit": unit,
                "ratio": value,
                "reach": reach,
                "at most": at_most,
                "reached": reached,
                **more,
            }
        )
        print(self.line(self.rows[-1]), flush=True)

    HEAD = "| measure | contender | compared with | | | ratio | arithmetic | reach | |\n" + "| --- " * 9 + "|"

    @staticmethod
    def line(row) -> str:
        values = " | ".join(f"{value:.3g} {row['unit']}" for value in row["values"])
        reach = "" if row["reach"] is None else f"{'<=' if row['at most'] else '>='} {row['reach']}"
        verdict = {None: "", True: "yes", False: "no"}[row["reached"]]
        names = f"{row['measure']} | {row['contender']} | {row['compared with']}"
        arithmetic = f"{row['arithmetic']:.3f}" if "arithmetic" in row else ""
        return f"| {names} | {values} | {row['ratio']:.3f} | {arithmetic} | {reach} | {verdict} |"


def generation(model, batches, **options) -> Callable[[], list[torch.Tensor]]:
    """Generates for all batches; by default, outputs are as long as the batch's longest source."""
    limits = [{"max_new_tokens": batch["input_ids"].shape[1]} | options for batch in batches]
    return lambda: [model.generate(**batch, num_beams=4, **limit) for batch, limit in zip(batches, limits)]


def check_same(runs: dict[str, Callable[[], list[torch.Tensor]]]) -> None:
    """Raises an AssertionError unless all runs generate the same tokens."""
    first, *others = ((name, run()) for name, run in runs.items())
    for name, outputs in others:
        same = all(ours.shape == theirs.shape and torch.equal(ours, theirs) for ours, theirs in zip(outputs, first[1]))
        assert same, f"{name} and {first[0]} generate other tokens."


def beam_search(report: Report, batches_of: Callable, effort: Effort) -> None:
    """Beam search against M2M100, with batches of 16 and 1, and with unsorted sources."""
    residual = m2m100()
    rk2 = ode_transformer("rk2", residual)
    for dtype in ("float32", "bfloat16"):
        models = {
            "M2M100": prepared(residual, dtype),
            "RK2": prepared(rk2, dtype),
            "RK2 packed": prepared(rk2, dtype, "packed"),
            "RK2 preset packed": prepared(base_preset("rk2"), dtype, "packed"),
        }
        pairs = [(name, "M2M100") for name in models if name != "M2M100"]
        for batch_size, number in ((16, 2), (1, 4)):
            batches = batches_of(batch_size, number)
            runs = {name: generation(model, batches) for name, model in models.items()}
            if dtype == "float32":
                check_same({name: run for name, run in runs.items() if "preset" not in name})
            seconds = in_turns(runs, effort)
            measure = f"beam 4, batch {batch_size}, {dtype}"
            if batch_size == 1:
                report.add(f"{measure}: latency", seconds, pairs, reach=0.8, at_most=True)
            else:
                report.add(measure, seconds, pairs, per_second=batch_size * number, reach=1.25)
        batches = [batches_of(1, 16)]
        lengths = [int(batch["attention_mask"].sum()) for batch in batches[0]][::-1]
        batch = sources(lengths[::2] + lengths[1::2])
        limit = SourceLengthLogitsProcessor(batch["attention_mask"].sum(1), 1, 0, 2)
        options = {"max_new_tokens": limit.max_new_tokens, "logits_processor": LogitsProcessorList([limit])}
        runs = {name: generation(model, [batch], **options) for name, model in models.items()}
        if dtype == "float32":
            check_same({name: run for name, run in runs.items() if "preset" not in name})
        report.add(f"beam 4, batch 16 of all lengths, {dtype}", in_turns(runs, effort), pairs, per_second=16)


def compiled_search(report: Report, batches_of: Callable, effort: Effort) -> None:
    """Compiled beam search (`cache_implementation="static"`) beside the same model uncompiled, M2M100 and CTranslate2,
    in float32 and bfloat16. CTranslate2 supports bfloat16 on some CPUs."""
    residual = m2m100()
    rk2 = ode_transformer("rk2", residual)
    for dtype in ("float32", "bfloat16"):
        models = {
            "M2M100": prepared(residual, dtype),
            "RK2": prepared(rk2, dtype),
            "RK2 packed": prepared(rk2, dtype, "packed"),
        }
        models |= {"RK2 compiled": models["RK2"], "RK2 packed, compiled": models["RK2 packed"]}
        with contextlib.suppress(ImportError):
            import ctranslate2

            if dtype in ctranslate2.get_supported_compute_types("cpu"):
                models["CTranslate2"] = CTranslate2(residual, dtype)
        for batch_size, number in ((1, 4), (16, 2)):
            batches = batches_of(batch_size, number)
            runs = {
                name: generation(model, batches, **({"cache_implementation": "static"} if "compiled" in name else {}))
                for name, model in models.items()
            }
            if dtype == "float32":
                check_same(runs)
            seconds = in_turns(runs, effort)
            setting = f"compiled search, batch {batch_size}, {dtype}"
            for name in list(models)[1:]:
                pairs = [(name, "M2M100")]
                if batch_size == 1:
                    reach = (0.55 if "packed" in name else 0.75) if "compiled" in name else None
                    report.add(f"{setting}: latency", seconds, pairs, reach=reach, at_most=True)
                else:
                    reach = 1.4 if name == "RK2 compiled" else None
                    report.add(setting, seconds, pairs, per_second=batch_size * number, reach=reach)


def against_ctranslate2(report: Report, batches_of: Callable, effort: Effort) -> None:
    """Beam search against CTranslate2 in each of its compute types; the target applies to the fastest type."""
    import ctranslate2

    residual = m2m100()
    rk2 = ode_transformer("rk2", residual)
    types = sorted(ctranslate2.get_supported_compute_types("cpu") & {"float32", "bfloat16", "int8", "int8_bfloat16"})
    theirs = {f"CTranslate2 {name}": CTranslate2(residual, name) for name in types}
    ours = {
        "RK2 packed": prepared(rk2, packing="packed"),
        "RK2 bfloat16 packed": prepared(rk2, "bfloat16", "packed"),
        "RK2 int8": prepared(rk2, packing="int8"),
    }
    for batch_size, number in ((16, 2), (1, 4), (64, 1)):
        batches = batches_of(batch_size, number)
        runs = {name: generation(model, batches) for name, model in (theirs | ours).items()}
        check_same({name: runs[name] for name in ("CTranslate2 float32", "RK2 packed")})
        seconds = in_turns(runs, effort)
        fastest = {
            side: min(names, key=lambda name: statistics.median(seconds[name]))
            for side, names in (("theirs", theirs), ("ours", ours))
        }
        pairs = [("RK2 packed", "CTranslate2 float32")]
        report.add(f"beam 4, batch {batch_size}, same numbers", seconds, pairs, per_second=batch_size * number)
        pairs = [(fastest["ours"], fastest["theirs"])]
        measure = f"beam 4, batch {batch_size}, fastest"
        report.add(measure, seconds, pairs, per_second=batch_size * number, reach=1.0)


def long_sources(report: Report, articles: list[int], summaries: list[int], effort: Effort) -> None:
    """Sources of 512 tokens, batches of 8, outputs of the median summary's length; also the extra memory of
    generation."""
    residual = m2m100()
    rk2 = ode_transformer("rk2", residual)
    batch = sources([min(length, 512) for length in sorted(articles)[-8:]])
    models = {"M2M100": residual, "RK2": rk2, "RK2 packed": prepared(rk2, packing="packed")}
    options = {"max_new_tokens": int(statistics.median(summaries))}
    runs = {name: generation(model, [batch], **options) for name, model in models.items()}
    check_same(runs)
    pairs = [(name, "M2M100") for name in models if name != "M2M100"]
    measure = "512 tokens, beam 4, batch 8, float32"
    report.add(measure, in_turns(runs, effort), pairs, per_second=8, reach=1.5)
    memory = {name: peak_memory(run) / 2**20 for name, run in runs.items()}
    for ours, theirs in pairs:
        value = memory[ours] / memory[theirs]
        report.add_row(
            f"{measure}: added memory", ours, theirs, [memory[ours], memory[theirs]], "MiB", value, 0.6, True
        )


def solvers(report: Report, batches_of: Callable, effort: Effort) -> None:
    """RK2 and RK4 against the residual model (table 6)."""
    residual = m2m100()
    targets = {"RK2": 0.963, "RK4": 0.848}
    for dtype, packing in (("float32", "packed"), ("bfloat16", "packed"), ("float32", "int8")):
        models = {
            name: prepared(ode_transformer(solver, residual), dtype, packing)
            for name, solver in (("residual", "euler"), ("RK2", "rk2"), ("RK4", "rk4"))
        }
        for batch_size, number in ((1, 4), (16, 2)):
            batches = batches_of(batch_size, number)
            runs = {name: generation(model, batches) for name, model in models.items()}
            if dtype == "float32" and packing != "int8":
                check_same(runs)
            seconds = in_turns(runs, effort)
            setting = f"solver, batch {batch_size}, {dtype}{f' {packing}' if packing else ''}"
            for name, target in targets.items():
                pairs = [(name, "residual")]
                report.add(setting, seconds, pairs, per_second=batch_size * number, reach=target)


def training(report: Report, lengths: list[int], effort: Effort) -> None:
    """Training steps and their memory, with the 32 pairs of the median batch."""
    (batch,) = batches_by_length(lengths, 32, 1)
    batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    residual = m2m100()
    makers = {
        "M2M100 6-6": m2m100,
        "M2M100 12-6": partial(m2m100, 12),
        "RK2": partial(ode_transformer, "rk2", residual),
        "RK2 preset": partial(base_preset, "rk2"),
    }
    operations = {name: step_operations(make(), batch) for name, make in makers.items()}
    for dtype in ("bfloat16", "float32"):
        seconds = in_turns({name: training_step(make(), batch, dtype) for name, make in makers.items()}, effort)
        for ours in ("RK2", "RK2 preset"):
            for theirs, reach in (("M2M100 12-6", 0.95), ("M2M100 6-6", 1.31)):
                measure = f"training step, {dtype}"
                report.add(measure, seconds, [(ours, theirs)], reach=reach, at_most=True, operations=operations)

    memory = {}
    for name, make in makers.items():
        model = make().train()

        def gradients(model=model):
            model(**batch).loss.backward()

        gradients()
        model.zero_grad()
        memory[name] = peak_memory(gradients) / 2**20
    for ours, theirs, reach in (
        ("RK2", "M2M100 12-6", 1.0),
        ("RK2 preset", "M2M100 12-6", 1.0),
    ):
        values = [memory[ours], memory[theirs]]
        report.add_row("training memory", ours, theirs, values, "MiB", values[0] / values[1], reach, True)


def recurrence(report: Report, lengths: list[int], batches_of: Callable, effort: Effort) -> None:
    """Training steps and searches with a one-layer recurrence encoder, against the same model without it. Table 1 of
    Hao et al. (2019) has 1.24 steps per second against 1.28, so 1.032 times the time."""
    kinds = {"": {}, " + BiARN": {"recurrence_encoder": "biarn"}, " + BiRNN": {"recurrence_encoder": "birnn"}}
    makers = {
        f"{name} preset{kind}": partial(base_preset, solver, **fields)
        for name, solver in (("residual", "euler"), ("RK2", "rk2"))
        for kind, fields in kinds.items()
    }
    pairs = [(name, name.split(" + ")[0]) for name in makers if "+" in name]
    batches = {"median batch": batches_by_length(lengths, 32, 1)[0], "longest batch": sources(sorted(lengths)[-32:])}
    for kind, batch in batches.items():
        batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        operations = {name: step_operations(make(), batch) for name, make in makers.items()}
        for dtype in ("bfloat16", "float32"):
            runs = {name: training_step(make(), batch, dtype) for name, make in makers.items()}
            seconds = in_turns(runs, effort)
            for pair in pairs:
                reach = 1.032 if "BiARN" in pair[0] else None
                measure = f"training step, {kind}, {dtype}"
                report.add(measure, seconds, [pair], reach=reach, at_most=True, operations=operations)
    models = {name: prepared(make(), packing="packed") for name, make in makers.items()}
    for model in models.values():
        model.generation_config.eos_token_id = None  # all outputs have the same length
    for batch_size, number in ((16, 2), (1, 4)):
        batches = batches_of(batch_size, number)
        seconds = in_turns({name: generation(model, batches) for name, model in models.items()}, effort)
        report.add(f"beam 4, batch {batch_size}, float32 packed", seconds, pairs, per_second=batch_size * number)


def rates(effort: Effort) -> dict[str, float]:
    """The machine's limits: memory reads in bytes per second, and operations per second of a large product with each
    form of weights."""
    numbers = torch.zeros(2**28, dtype=torch.uint8).view(torch.float32)
    measured = {"bytes": numbers.nbytes / min(in_turns({"": numbers.sum}, effort)[""])}
    layer = torch.nn.Linear(2048, 2048)
    x = torch.randn(2048, 2048)
    products = {
        "float32": (OneDnnLinear([layer]), x),
        "bfloat16": (OneDnnLinear([layer.bfloat16()]), x.bfloat16()),
        "int8": (Int8Linear([layer.float()]), x),
    }
    with torch.no_grad():
        seconds = in_turns({name: partial(run, each) for name, (run, each) in products.items()}, effort)
    return measured | {name: 2 * 2048**3 / min(each) for name, each in seconds.items()}


def lower_bounds(batches_of: Callable, effort: Effort) -> dict[str, object]:
    """Seconds of a beam search beside the minimum time of its matrix products. This minimum is the encoder's products
    plus, for each step, the longer of the arithmetic and of reading the weights once."""
    measured = rates(replace(effort, seconds=2))
    print("\n" + ", ".join(f"{name} {value / 1e9:.0f}e9/s" for name, value in measured.items()))
    residual = m2m100()
    rk2 = ode_transformer("rk2", residual)
    rows = []
    for batch_size in (1, 16):
        (batch,) = batches_of(batch_size, 1)
        length = steps = batch["input_ids"].shape[1]
        models = {
            ("M2M100", "float32", "float32"): residual,
            ("RK2 packed", "float32", "float32"): prepared(rk2, packing="packed"),
            ("M2M100", "bfloat16", "bfloat16"): prepared(residual, "bfloat16"),
            ("RK2 packed", "bfloat16", "bfloat16"): prepared(rk2, "bfloat16", "packed"),
            ("RK2 int8", "float32", "int8"): prepared(rk2, packing="int8"),
        }
        seconds = in_turns({key: generation(model, [batch]) for key, model in models.items()}, effort)
        for (name, dtype, product), each in seconds.items():
            d = 512
            block, evaluations = 12 * d * d, 6 if name == "M2M100" else 12
            copies = 4 if name == "M2M100" else 1
            encoder = batch_size * length * (evaluations * block + 6 * 2 * d * d * copies)
            weights = 6 * (block + 2 * d * d) + VOCAB_SIZE * d
            arithmetic = 2 * weights * batch_size * 4 / measured[product]
            reading = weights * {"float32": 4, "bfloat16": 2, "int8": 1}[product] / measured["bytes"]
            bound = 2 * encoder / measured[product] + steps * max(arithmetic, reading)
            median = statistics.median(each)
            rows.append(
                {
                    "contender": f"{name}, {dtype}",
                    "batch size": batch_size,
                    "seconds": median,
                    "arithmetic of a step": arithmetic,
                    "reading of a step": reading,
                    "lower bound": bound,
                    "ratio": median / bound,
                }
            )
            limit = "arithmetic" if arithmetic > reading else "memory"
            print(
                f"| {rows[-1]['contender']} | {batch_size} | {median * 1e3:.0f} ms | {bound * 1e3:.0f} ms ({limit}) "
                f"| {median / bound:.2f} |",
                flush=True,
            )
    return {"a second": measured, "searches": rows}


def operators(batches_of: Callable) -> dict[str, dict[str, float]]:
    """The share of each operator in the time of a beam search with a batch of 16."""
    residual = m2m100()
    rk2 = ode_transformer("rk2", residual)
    (batch,) = batches_of(16, 1)
    models = {
        "M2M100": residual,
        "RK2": rk2,
        "RK2 packed": prepared(rk2, packing="packed"),
        "RK2 int8": prepared(rk2, packing="int8"),
    }
    shares = {}
    for name, model in models.items():
        run = generation(model, [batch])
        run()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            run()
        events = {event.key: event.self_cpu_time_total for event in profiler.key_averages()}
        events = {key: time for key, time in events.items() if "::" in key}
        groups = {
            "products with weights": ("addmm", "mm", "linear"),
            "attention": ("scaled_dot_product", "bmm", "softmax"),
            "log-softmax, top k": ("log_softmax", "topk", "amax"),
            "copies, caches": ("copy_", "index_select", "cat", "index"),
        }
        total = sum(events.values())
        shares[name] = {
            group: sum(time for key, time in events.items() if key.split("::")[1].lstrip("_").startswith(words))
            / total
            for group, words in groups.items()
        }
        shares[name]["all else"] = 1 - sum(shares[name].values())
        shown = " | ".join(f"{share:.0%}" for share in shares[name].values())
        print(f"| {name} | {shown} |", flush=True)
    return shares


def main(argv: list[str] | None = None) -> dict:
    """Runs the benchmark with the given arguments (default: the command line's) and returns its results."""
    parser = ArgumentParser(description=__doc__.splitlines()[0], formatter_class=ArgumentDefaultsHelpFormatter)
    parser.add_argument(
        "--translation_file", type=Path, required=True, help="file of sentences, one per line (.gz accepted)"
    )
    parser.add_argument(
        "--summarization_file", type=Path, required=True, help="JSON lines with the keys article and highlights"
    )
    parser.add_argument("--output_file", type=Path, help="JSON file to write")
    parser.add_argument("--rounds", type=int, default=5, help="minimum number of runs of each contender")
    parser.add_argument(
        "--seconds", type=float, default=40, help="minimum time of the runs of each measure in seconds"
    )
    parser.add_argument(
        "--parts", nargs="*", default=["all"], help="functions of this file to run, such as beam_search"
    )
    args = parser.parse_args(argv)
    logging.set_verbosity_error()

    sentences = read_lengths(args.translation_file)
    articles, summaries = (read_lengths(args.summarization_file, field) for field in ("article", "highlights"))
    batches_of = partial(batches_by_length, sentences)
    report, effort = Report(), Effort(args.rounds, args.seconds)
    results = {"machine": machine(), "arguments": {name: str(value) for name, value in vars(args).items()}}
    print(results["machine"], "\n\n" + Report.HEAD, sep="")
    parts = {
        "beam_search": partial(beam_search, report, batches_of, effort),
        "compiled_search": partial(compiled_search, report, batches_of, effort),
        "against_ctranslate2": partial(against_ctranslate2, report, batches_of, effort),
        "long_sources": partial(long_sources, report, articles, summaries, Effort(math.ceil(args.rounds / 3))),
        "solvers": partial(solvers, report, batches_of, effort),
        "training": partial(training, report, sentences, effort),
        "recurrence": partial(recurrence, report, sentences, batches_of, effort),
        "lower_bounds": partial(lower_bounds, batches_of, effort),
        "operators": partial(operators, batches_of),
    }
    if args.parts != ["all"] and (unknown := sorted(set(args.parts) - set(parts))):
        parser.error(f"--parts {' '.join(unknown)}: unknown; give only all, or some of {', '.join(parts)}.")
    for name, part in parts.items():
        if args.parts == ["all"] or name in args.parts:
            found = part()
            results |= {"rows": report.rows} if found is None else {name: found, "rows": report.rows}
            write_results(results, args.output_file)
    return results


if __name__ == "__main__":
    main()
