# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Plots what training runs logged, side by side: losses, perplexities, gradient norms and stage weights.

Losses and perplexities are as in figure 5 of the paper, gradient norms as in figure 6. Stage weights, which say how
much each stage of each layer counts, need runs with `--log_coefficients`.

    python examples/analysis/plot_training.py ptb_residual ptb_rk2_gate --names residual gate --output_dir plots

A run is the output folder of a script, or its `trainer_state.json`; a file of `collect_runs.py` gives all its runs.
Writes `loss.png`, `perplexity.png`, `gradient_norm.png` and `coefficients.png` over updates, if a run has such values.
`perplexity_by_seconds.png` is over the time of finished trainings, evaluations included.
`perplexity_by_evaluations.png` is over the evaluations of the layers' functions F, which only collected runs name. So
models can be compared at equal parameters and at equal cost.
"""

import json
import re
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure


matplotlib.use("Agg")

QUANTITIES = {
    "loss": ("loss", "training loss"),
    "perplexity": ("eval_perplexity", "validation perplexity"),
    "gradient_norm": ("grad_norm", "gradient norm"),
}
COSTS = {"seconds": "seconds", "evaluations": "evaluations of F"}
COEFFICIENT = re.compile(r"eval_coefficient_(?P<stack>.+)_(?P<layer>\d+)_stage_(?P<stage>\d+)")

Curve = tuple[list[float], list[float]]  # updates, or their cost; values


def read_runs(path: Path) -> dict[str, dict]:
    """Runs with the log of `Trainer` ("log_history"), by name: the run of a folder, or all runs in a file of
    `collect_runs.py`.

    Raises:
        FileNotFoundError: there is no log.
        ValueError: the file is not a log of `Trainer`.
    """
    file = path / "trainer_state.json" if path.is_dir() else path
    if not file.is_file():
        raise FileNotFoundError(
            f"There is no file {file}, which a run writes at its end and in its checkpoints: give a run or a "
            "checkpoint."
        )
    content = json.loads(file.read_text(encoding="utf-8"))
    several = isinstance(content, dict) and "log_history" not in content
    runs = content if several else {file.resolve().parent.name: content}
    if not runs or not all(isinstance(run, dict) and "log_history" in run for run in runs.values()):
        raise ValueError(
            f"{file} has no log_history: give the trainer_state.json of a run, or a file of collect_runs.py."
        )
    return runs


def costs(run: dict) -> dict[str, float]:
    """The cost of an update of a run, as far as it is known: "seconds", and "evaluations" of functions F."""
    found = {}
    for entry in run["log_history"]:
        if speed := entry.get("train_steps_per_second"):
            found["seconds"] = 1 / speed
    if per_layer := run.get("model", {}).get("function_evaluations"):
        found["evaluations"] = sum(map(sum, per_layer.values()))
    return found


def read_curves(log: list[dict]) -> dict[str, Curve]:
    """All logged curves of a run, by their names in the log."""
    curves = {}
    for entry in log:
        for name, value in entry.items():
            updates, values = curves.setdefault(name, ([], []))
            updates.append(entry["step"])
            values.append(value)
    return curves


def plot_quantity(
    axes: Axes, runs: dict[str, dict[str, Curve]], name: str, label: str, abscissa: str = "updates"
) -> None:
    for i, (run, curves) in enumerate(runs.items()):
        if name in curves:
            # A line with a single point is invisible without a marker; there are only ten colors.
            style = {"marker": "." if len(curves[name][0]) < 50 else None, "linestyle": ("-", "--", ":")[i // 10 % 3]}
            axes.plot(*curves[name], label=run, linewidth=1, color=f"C{i % 10}", **style)
    axes.set_yscale("log")
    axes.set(xlabel=abscissa, ylabel=label)
    axes.legend()


def plot_coefficients(axes: Axes, curves: dict[str, Curve], run: str) -> None:
    """A color for each layer, a style for each stage."""
    found = {name: match for name in curves if (match := COEFFICIENT.fullmatch(name))}
    layers = list(dict.fromkeys((match["stack"], match["layer"]) for match in found.values()))
    for name, match in found.items():
        style = ["-", "--", ":", "-."][(int(match["stage"]) - 1) % 4]
        color = f"C{layers.index((match['stack'], match['layer'])) % 10}"
        label = f"{match['stack']} {int(match['layer']) + 1}, stage {match['stage']}"
        axes.plot(*curves[name], style, marker=".", color=color, label=label, linewidth=1)
    axes.set(xlabel="updates", ylabel="mean coefficient", title=run)
    axes.legend(fontsize="x-small")


def main(argv: list[str] | None = None) -> list[Path]:
    """Runs the script with the given arguments (default: the command line's) and returns the files it wrote."""
    parser = ArgumentParser(description=__doc__.splitlines()[0], formatter_class=ArgumentDefaultsHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="output folders, or files with logs")
    parser.add_argument("--only", nargs="+", help="names of runs in a file to plot, in this order; None: all")
    parser.add_argument("--names", nargs="+", help="names of the runs; None: those of their folders")
    parser.add_argument("--output_dir", type=Path, default=Path("plots"), help="folder for the pictures")
    args = parser.parse_args(argv)
    records = [run for path in args.runs for run in read_runs(path).items()]
    if args.only:
        found = [name for name, _ in records]
        if missing := [name for name in args.only if name not in found]:
            parser.error(f"--only {', '.join(missing)}: not among the runs {', '.join(found)}.")
        records = [(name, run) for asked in args.only for name, run in records if name == asked]
    names = args.names or [name for name, _ in records]
    if not len(set(names)) == len(names) == len(records):
        parser.error(
            f"{len(records)} runs need the same number of different names, not {', '.join(names)}: give --names."
        )

    runs = {name: read_curves(run["log_history"]) for name, (_, run) in zip(names, records)}
    figures = {}
    for file, (name, label) in QUANTITIES.items():
        if any(name in curves for curves in runs.values()):
            figures[file] = Figure(figsize=(6, 4), layout="constrained")
            plot_quantity(figures[file].subplots(), runs, name, label)
    name, label = QUANTITIES["perplexity"]
    for cost, abscissa in COSTS.items():
        scaled = {}
        for run, (_, record) in zip(names, records):
            scale = costs(record).get(cost)
            if scale is not None and name in runs[run]:
                updates, values = runs[run][name]
                scaled[run] = {name: ([scale * update for update in updates], values)}
        if scaled:
            figures[f"perplexity_by_{cost}"] = Figure(figsize=(6, 4), layout="constrained")
            plot_quantity(figures[f"perplexity_by_{cost}"].subplots(), scaled, name, label, abscissa)
    learned = {run: curves for run, curves in runs.items() if any(map(COEFFICIENT.fullmatch, curves))}
    if learned:
        figures["coefficients"] = Figure(figsize=(5 * len(learned), 4), layout="constrained")
        panels = figures["coefficients"].subplots(1, len(learned), squeeze=False)[0]
        for axes, (run, curves) in zip(panels, learned.items()):
            plot_coefficients(axes, curves, run)
    args.output_dir.mkdir(parents=True, exist_ok=True)
    files = []
    for name, figure in figures.items():
        files.append(args.output_dir / f"{name}.png")
        figure.savefig(files[-1], dpi=150)
        print(files[-1])
    return files


if __name__ == "__main__":
    main()
