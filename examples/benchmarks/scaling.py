# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""How the time of a beam search grows with source length, beams, batch, depth and stages, beside M2M100.

    python examples/benchmarks/scaling.py --output_dir scaling

writes scaling.json and scaling.png. Sources are random words of one length; outputs have 16 words. The contenders take
turns; a point is the shortest time of the rounds.
"""

import json
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser
from functools import cache
from pathlib import Path

import matplotlib
from contenders import Effort, in_turns, m2m100, machine, ode_transformer, prepared, sources
from transformers.utils import logging


matplotlib.use("Agg")
from matplotlib import pyplot


NEW_WORDS = 16
SETTING = {"source length": 16, "beams": 4, "batch size": 16, "encoder layers": 6, "stages": 2}
SWEEPS = {
    "source length": (64, 128, 256, 512, 1024, 2048),
    "beams": (1, 2, 4, 8, 16),
    "batch size": (1, 2, 4, 8, 16, 32, 64),
    "encoder layers": (6, 12, 24, 48),
    "stages": (1, 2, 3, 4),
}
# Batches of 16 long sources would not fit into the memory of a small machine.
SMALLER_BATCHES = {"source length": 4}
SOLVERS = {1: "euler", 2: "rk2", 3: "rk3", 4: "rk4"}


@cache
def contenders(encoder_layers: int, stages: int, d_model: int) -> dict:
    """The models of a depth: M2M100 and an ODE Transformer with packed weights, in float32."""
    residual = m2m100(encoder_layers, d_model)
    ours = prepared(ode_transformer(SOLVERS[stages], residual), packing="packed")
    return {"M2M100": residual, "ODE Transformer, packed": ours}


def measure(setting: dict[str, int], d_model: int, rounds: int) -> dict[str, float]:
    """Seconds of each contender."""
    batch = sources([setting["source length"]] * setting["batch size"])
    options = {"num_beams": setting["beams"], "max_new_tokens": NEW_WORDS}
    models = contenders(setting["encoder layers"], setting["stages"], d_model)
    runs = {name: lambda model=model: model.generate(**batch, **options) for name, model in models.items()}
    return {name: min(seconds) for name, seconds in in_turns(runs, Effort(rounds)).items()}


def plot(points: dict[str, list[dict]], file: Path) -> None:
    """A panel for each sweep, with seconds against the swept value."""
    figure, panels = pyplot.subplots(1, len(points), figsize=(3.2 * len(points), 3.2), layout="constrained")
    for panel, (name, rows) in zip(panels, points.items()):
        for contender in rows[0]["seconds"]:
            values = [row[name] for row in rows]
            panel.plot(values, [row["seconds"][contender] for row in rows], "o-", label=contender)
        panel.set(xlabel=name, ylim=(0, None))
        if name != "stages":
            panel.set_xscale("log", base=2)
        panel.set_xticks([row[name] for row in rows], [str(row[name]) for row in rows], rotation=45, minor=False)
    panels[0].set_ylabel("seconds")
    panels[0].legend()
    figure.savefig(file, dpi=110)


def main(argv: list[str] | None = None) -> dict:
    """Runs the benchmark with the given arguments (default: the command line's) and returns its results."""
    parser = ArgumentParser(description=__doc__.splitlines()[0], formatter_class=ArgumentDefaultsHelpFormatter)
    parser.add_argument("--output_dir", type=Path, required=True, help="folder for scaling.json and scaling.png")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each contender, after one more to warm up")
    parser.add_argument("--d_model", type=int, default=512, help="width of the models")
    args = parser.parse_args(argv)
    logging.set_verbosity_error()

    points = {}
    for name, values in SWEEPS.items():
        points[name] = []
        for value in values:
            setting = SETTING | {"batch size": SMALLER_BATCHES.get(name, SETTING["batch size"])} | {name: value}
            points[name].append(setting | {"seconds": measure(setting, args.d_model, args.rounds)})
            seconds = " | ".join(f"{each:.3f}" for each in points[name][-1]["seconds"].values())
            print(f"| {name} {value} | {seconds} |", flush=True)
        contenders.cache_clear()
    results = {
        "machine": machine(),
        "arguments": {name: str(value) for name, value in vars(args).items()},
        "points": points,
    }
    args.output_dir.mkdir(parents=True, exist_ok=True)
    (args.output_dir / "scaling.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
    plot(points, args.output_dir / "scaling.png")
    return results


if __name__ == "__main__":
    main()
