# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Draws the figures of the documents, as SVG, from the package and from the records in `examples/results`.

    python docs/figures/make.py [NAME ...]

`tests/test_figures.py` draws them again and compares. It needs matplotlib (`.[docs]`).
"""

import ast
import json
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from math import exp, inf, isfinite, log
from pathlib import Path
from xml.sax.saxutils import escape

import matplotlib


matplotlib.use("svg")
import matplotlib.pyplot as plt
import torch
from matplotlib.ticker import NullFormatter

from modeling_ode_transformer.analysis import order_of
from modeling_ode_transformer.integration_ode_transformer import (
    SCHEMES,
    ButcherTableau,
    integrate,
    integrate_multistep,
)


HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PACKAGE = ROOT / "modeling_ode_transformer"
RESULTS = ROOT / "examples" / "results"
sys.path.insert(0, str(RESULTS))
from verdict import NAMES as SCHEMES_OF_VERDICT  # noqa: E402
from verdict import verdict as verdict_of  # noqa: E402


STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "figures",
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "figure.facecolor": "white",
    "axes.spines.top": False,
    "axes.spines.right": False,
}
BLUE, ORANGE, GREY, LIGHT = "#2b6cb0", "#dd6b20", "#4a5568", "#cbd5e0"


def read_runs(file: str) -> dict[str, dict]:
    return json.loads((RESULTS / file).read_text(encoding="utf-8"))


# Blocks, drawn by hand


class Drawing:
    """Boxes, circles, arrows and texts of an SVG file."""

    def __init__(self, width: int, height: int):
        self.size = width, height
        self.parts: list[str] = []

    def box(self, x: float, y: float, text: str, width: float = 52, height: float = 34) -> None:
        place = f'x="{x - width / 2}" y="{y - height / 2}" width="{width}" height="{height}" rx="6"'
        self.parts.append(f'<rect {place} fill="#ebf4ff" stroke="{BLUE}" stroke-width="1.6"/>')
        self.text(x, y + 5, text)

    def plus(self, x: float, y: float) -> None:
        self.parts.append(f'<circle cx="{x}" cy="{y}" r="11" fill="white" stroke="{GREY}" stroke-width="1.6"/>')
        self.text(x, y + 5, "+")

    def text(
        self, x: float, y: float, text: str, size: int = 14, color: str = "#1a202c", anchor: str = "middle"
    ) -> None:
        style = f'font-size="{size}" fill="{color}" text-anchor="{anchor}"'
        self.parts.append(f'<text x="{x}" y="{y}" {style}>{escape(text)}</text>')

    def path(self, *points: tuple[float, float], color: str = GREY, head: bool = True) -> None:
        line = " L ".join(f"{x} {y}" for x, y in points)
        end = ' marker-end="url(#head)"' if head else ""
        self.parts.append(f'<path d="M {line}" fill="none" stroke="{color}" stroke-width="1.6"{end}/>')

    def save(self, path: Path) -> None:
        width, height = self.size
        head = '<path d="M 0 0 L 8 4 L 0 8 z" fill="#4a5568"/>'
        marker = 'id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"'
        text = "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
                f' height="{height}" font-family="DejaVu Sans, Helvetica, Arial, sans-serif">',
                f"<defs><marker {marker}>{head}</marker></defs>",
                f'<rect width="{width}" height="{height}" fill="white"/>',
                *self.parts,
                "</svg>\n",
            ]
        )
        path.write_text(text, encoding="utf-8")


def draw_block(drawing: Drawing, top: float, title: str, formula: str, solver: str) -> None:
    """A block of `solver` from left to right: its stages, what each starts from, and the weighted sum."""
    tableau = SCHEMES[solver]
    line, first, step = top + 92, 250, 128
    end = first + step * (tableau.num_stages - 1) + 100
    drawing.text(16, top + 24, title, 16, anchor="start")
    drawing.text(16, top + 44, formula, 12, GREY, "start")
    drawing.text(178, line + 5, "y")
    drawing.path((188, line), (first - 27, line))
    drawing.path((202, line), (202, line + 46), (end, line + 46), (end, line + 12))
    for i, weight in enumerate(tableau.b):
        x = first + step * i
        if i:
            before = tableau.a[i][i - 1]
            drawing.text(x - 63, line - 6, "y + F" if before == 1 else "y + F / 2", 10, GREY)
            drawing.path((x - step + 27, line), (x - 27, line))
        drawing.box(x, line, "F")
        parts = {1: "", 1 / 2: "1/2", 1 / 3: "1/3", 1 / 6: "1/6"}
        drawing.path((x, line - 18), (x, line - 34), head=False)
        drawing.text(x + 14, line - 22, parts[weight], 10, ORANGE)
    drawing.path((first, line - 34), (end, line - 34), (end, line - 12))
    drawing.plus(end, line)
    drawing.path((end + 12, line), (end + 44, line))
    drawing.text(end + 58, line + 5, "y'")


def blocks(path: Path) -> None:
    drawing = Drawing(860, 470)
    draw_block(drawing, 0, "Residual block", "one Euler step", "euler")
    draw_block(drawing, 150, "RK2 block", "order 2", "rk2")
    draw_block(drawing, 300, "RK4 block", "order 4", "rk4")
    drawing.text(16, 456, "All boxes F of a block are one layer, with one set of parameters.", 12, GREY, "start")
    drawing.save(path)


# Charts


def figure(width: float = 6.4, height: float = 3.8, **options):
    return plt.subplots(figsize=(width, height), layout="constrained", **options)


def save(chart, path: Path) -> None:
    chart.savefig(path, metadata={"Date": None, "Creator": None})
    plt.close(chart)


def errors(solver: str, numbers: Sequence[int]) -> list[float]:
    """Of the logistic equation y' = y (1 - y), y(0) = 1/4, at t = 2, after each number of steps, in float64."""

    def field(y: torch.Tensor, evaluation: int) -> torch.Tensor:
        return y * (1 - y)

    found = []
    for number in numbers:
        y, h = torch.tensor(0.25, dtype=torch.float64), 2 / number
        if isinstance(SCHEMES[solver], ButcherTableau):
            y = integrate(field, y, SCHEMES[solver], step_size=h, num_steps=number)
        else:
            scheme = SCHEMES[solver](number).double()
            y, _ = integrate_multistep(field, y, scheme, step_size=h, num_steps=number)
        found.append(abs(y.item() - exp(2) / (3 + exp(2))))
    return found


def convergence(path: Path) -> None:
    """Multistep schemes with learned weights are Euler's at first, and PolyNet's order holds for linear fields."""
    chart, axis = figure(6.8, 4.6)
    numbers = [4, 8, 16, 32, 64, 128]
    sizes = [2 / number for number in numbers]
    with torch.no_grad():
        for solver in ("euler", "midpoint", "ralston", "rk2", "leapfrog", "rk3", "rk4", "rk4_38"):
            found = errors(solver, numbers)
            order = 2 if not isinstance(SCHEMES[solver], ButcherTableau) else order_of(SCHEMES[solver])
            slope = log(found[-2] / found[-1]) / log(2)
            dash = {"leapfrog": "--", "rk4_38": "--", "ralston": ":", "midpoint": "-."}.get(solver, "-")
            label = f"{solver}: order {order}, slope {slope:.2f}"
            axis.loglog(sizes, found, dash, marker="o", markersize=3, label=label)
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set(xlabel="step size h", ylabel="error at t = 2", title="y' = y (1 - y), float64")
    axis.legend(fontsize=8, frameon=False)
    save(chart, path)


def paper_perplexities(page: Path = ROOT / "docs" / "results.md") -> dict[str, float]:
    """Of one layer, from the table of the results page."""
    lines = page.read_text(encoding="utf-8").partition("## Language model: Penn Treebank")[2].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    column = rows[0].index("the paper's")
    return {row[0]: float(row[column]) for row in rows[2:8] if row[column]}


def ptb(path: Path) -> None:
    runs, paper = read_runs("ptb/layers_1.json"), paper_perplexities()
    chart, axes = figure(7.6, 3.6, ncols=2)
    ours = {name: run["metrics"]["test"]["perplexity"] for name, run in runs.items()}
    for axis, title, values in ((axes[0], "here", ours), (axes[1], "the paper (other data)", paper)):
        colors = [LIGHT if name == "residual" else BLUE for name in values]
        bars = axis.barh(list(values), list(values.values()), color=colors)
        axis.bar_label(bars, [f"{value:.1f}" for value in values.values()], padding=3, fontsize=9)
        axis.set(title=title, xlabel="test perplexity, one layer", xlim=(0, max(values.values()) * 1.18))
        axis.invert_yaxis()
    save(chart, path)


def multi30k(path: Path) -> None:
    runs = read_runs("multi30k/runs.json")
    models: dict[str, list[float]] = {}
    for name, run in runs.items():
        models.setdefault(name.partition(", seed")[0], []).append(run["metrics"]["test"]["bleu"])
    chart, axis = figure(6.8, 3.8)
    for row, (name, scores) in enumerate(models.items()):
        color = GREY if name.startswith("residual") else BLUE
        mean = statistics.mean(scores)
        axis.errorbar(mean, row, xerr=statistics.stdev(scores), color=color, capsize=4, marker="|", markersize=14)
        axis.scatter(scores, [row] * len(scores), s=18, color=color)
    axis.axvline(statistics.mean(models["residual"]), color=LIGHT, zorder=0)
    axis.set_yticks(range(len(models)), list(models))
    axis.invert_yaxis()
    axis.set(xlabel="test BLEU of each seed, mean and standard deviation", title="Multi30k en-de: no difference seen")
    save(chart, path)


def cost(path: Path) -> None:
    """Quality against the evaluations of F of a forward pass, of a token in the stack whose scheme differs."""
    chart, axes = figure(8.4, 3.8, ncols=2)
    for layers, color in ((1, BLUE), (2, ORANGE)):
        for name, run in read_runs(f"ptb/layers_{layers}.json").items():
            if name in ("residual", "RK2", "RK2 (gate)", "RK4"):
                point = sum(run["model"]["function_evaluations"]["decoder"]), run["metrics"]["test"]["perplexity"]
                axes[0].scatter(*point, color=color)
                below = (name, layers) in (("RK2", 1), ("RK2 (gate)", 2))
                shift = (6, -10 if below else 4)
                axes[0].annotate(f"{name}, {layers}", point, shift, textcoords="offset points", fontsize=8)
    axes[0].set(
        xlabel="evaluations of F", ylabel="test perplexity", title="Penn Treebank, 1 and 2 layers", xlim=(0, 9.5)
    )
    models: dict[str, list[dict]] = {}
    for name, run in read_runs("multi30k/runs.json").items():
        models.setdefault(name.partition(", seed")[0], []).append(run)
    shifts = {"RK2 (gate)": (6, 2), "RK2 (learned)": (6, -6), "RK2 (EMA)": (6, -9)}
    for name, seeds in models.items():
        evaluations = sum(seeds[0]["model"]["function_evaluations"]["encoder"])
        point = evaluations, statistics.mean(run["metrics"]["test"]["bleu"] for run in seeds)
        axes[1].scatter(*point, color=GREY if name.startswith("residual") else BLUE)
        axes[1].annotate(name, point, shifts.get(name, (6, 4)), textcoords="offset points", fontsize=8)
    axes[1].set(
        xlabel="evaluations of F in the encoder",
        ylabel="test BLEU, mean of seeds",
        title="Multi30k en-de",
        xlim=(2, 16),
    )
    axes[1].margins(y=0.25)
    save(chart, path)


def time_to_quality(path: Path) -> None:
    """Validation perplexity of RK2 over updates, with the paper's schedule and by the fast recipe; with Adam, too,
    where it has the recipe's dropout and history."""
    record = read_runs("time_to_quality.json")
    curves = {
        "the paper's schedule": ("paper", "rk2", GREY),
        "fast": ("fast", "rk2", BLUE),
        "fast, Adam": ("rates", "adam_0.002", ORANGE),
    }
    chart, axes = figure(8.4, 3.4, ncols=len(record), squeeze=False)
    for axis, (task, recipes) in zip(axes[0], record.items()):
        for label, (recipe, name, color) in curves.items():
            model = recipes[recipe].get(name)
            if model and (task, recipe) != ("multi30k_en_de", "rates"):
                points, seeds = model["validation"], model["seeds"]
                label = f"{label}, {seeds} seed{'s' * (seeds > 1)}"
                axis.plot(
                    points["updates"], points["eval_perplexity"], color=color, marker="o", markersize=3, label=label
                )
        axis.set(title=task, xlabel="updates", ylim=(90, 250) if task == "ptb" else (3, 15))
        axis.legend(fontsize=8, frameon=False)
    axes[0][0].set_ylabel("validation perplexity, RK2")
    save(chart, path)


def copying(path: Path) -> None:
    """Bits per byte of the verdict's language models of two layers over the gain of their copying, by scheme."""
    gains = read_runs("copying.json")
    runs = read_runs("queue/verdict_rates_linux_doc.json") | read_runs("queue/verdict_linux_doc.json")
    chart, axis = figure(6.4, 3.6)
    for scheme, label, color in (
        ("residual", "residual", GREY),
        ("euler2", "Euler twice", "#38a169"),
        ("rk2", "RK2", BLUE),
        ("rk2_learned", "RK2, learned weights", ORANGE),
    ):
        points = [
            (gains[name], run["metrics"]["validation"]["bits_per_byte"])
            for name, run in runs.items()
            if name in gains and re.match(rf"{scheme}_[\d.sM]", name) and run["model"]["config"]["decoder_layers"] == 2
        ]
        axis.scatter(*zip(*points), color=color, s=22, label=label)
    axis.set(xlabel="gain of a second reading, nats per random token", ylabel="validation bits per byte")
    axis.legend(fontsize=8, frameon=False)
    save(chart, path)


def verdict(path: Path) -> None:
    """Validation loss over the parameters of the layers, of several language models and of encoders on Tatoeba and
    Multi30k: the means of the residual models with their fit, and the schemes, each with a line to the residual
    model that reaches the same loss."""
    chart, axes = figure(11.5, 10.5, nrows=3, ncols=3)
    titles = {
        "tatoeba_sentences": "language models, width 128",
        "epochs4_tatoeba_sentences": "language models, four epochs",
        "epochs8_tatoeba_sentences": "language models, eight epochs",
        "eighth_dropout_tatoeba_sentences": "an eighth eight times, with dropout",
        "wide_tatoeba_sentences": "language models, width 256",
        "llama_tatoeba_sentences": "Llama decoders",
    }
    titles |= {"tatoeba_en_de_small_fast": "Tatoeba, best rate"}
    titles |= {"plain_no_dropout_0.012_multi30k_en_de_fast": "Multi30k, best rate"}
    for axis, (record, title) in zip(axes.flat, titles.items()):
        result = verdict_of(read_runs(f"queue/verdict_{record}.json"), samples=0)
        draw_verdict(axis, result["fit"], result["points"], result["schemes"])
        axis.set(xscale="log", title=title)
        ticks = sorted({point["parameters"] for point in result["points"] if point["scheme"] == "residual"})
        axis.set_xticks(ticks, [f"{x / 1e6:.1f}M" for x in ticks], minor=False)
        axis.xaxis.set_minor_formatter(NullFormatter())
    *drawn, legend = axes.flat
    for axis in drawn[-2:]:
        axis.set(xlabel="parameters of the layers")
    for axis in axes[:, 0]:
        axis.set(ylabel="validation loss, nats per token")
    labelled = {label: handle for axis in drawn for handle, label in zip(*axis.get_legend_handles_labels())}
    legend.legend(labelled.values(), labelled.keys(), loc="center", frameon=False)
    legend.axis("off")
    save(chart, path)


def draw_verdict(axis, fit: dict, points: list[dict], schemes: dict) -> None:
    """One panel of `verdict`, from a result of `verdict.py`."""
    losses = defaultdict(list)
    for point in points:
        losses[point["scheme"], point["size"], point["parameters"]].append(point["loss"])
    ends = [parameters for *_, parameters in losses]
    line = [min(ends) * (max(ends) / min(ends)) ** (i / 100) for i in range(101)]
    fitted = [fit["floor"] + fit["scale"] * x ** -fit["exponent"] for x in line]
    axis.plot(line, fitted, color=LIGHT, zorder=0, label="fit of the residual models")
    marks = {
        "residual": (GREY, "o"),
        "residual_twice": (GREY, "1"),
        "residual_step2": (GREY, "x"),
        "residual_step4": (GREY, "+"),
        "euler2": ("#38a169", "s"),
        "looped": ("#38a169", "<"),
        "rk2": (BLUE, "D"),
        "rk2_step2": (BLUE, "d"),
        "rk2_learned": (ORANGE, "^"),
        "rk2_gate": ("#805ad5", "v"),
        "midpoint": ("#319795", "p"),
        "rk4": ("#c53030", "P"),
        "pcformer": ("#97266d", "h"),
        "iiet": ("#b7791f", "*"),
    }
    for scheme, label in SCHEMES_OF_VERDICT.items():
        color, marker = marks[scheme]
        for size, x, each in ((size, x, each) for (name, size, x), each in losses.items() if name == scheme):
            loss = statistics.mean(each)
            axis.scatter(x, loss, color=color, marker=marker, s=28, label=label)
            label = None
            if isfinite(worth := schemes.get(scheme, {}).get(size, {}).get("equivalent_size", inf)):
                axis.plot([x, x * worth], [loss, loss], ":", color=color, linewidth=0.8)


def gates(path: Path) -> None:
    """The weight g of the first stage after each epoch, mean over the tokens of the validation set."""
    chart, axes = figure(8.4, 3.4, ncols=2, sharey=True)
    untied = {"1 layer": ("ptb/layers_1.json", "decoder_0"), "2 layers, lower": ("ptb/layers_2.json", "decoder_0")}
    untied |= {
        "2 layers, upper": ("ptb/layers_2.json", "decoder_1"),
        "tied, 1 layer": ("ptb_tied/runs.json", "decoder_0"),
    }
    for label, (file, layer) in untied.items():
        axes[0].plot(*gate_of(read_runs(file)["RK2 (gate)"], layer), marker="o", markersize=3, label=label)
    runs = read_runs("multi30k/runs.json")
    for layer in range(3):
        for seed in (1, 2, 3):
            line = gate_of(runs[f"RK2 (gate), seed {seed}"], f"encoder_{layer}")
            label = f"layer {layer + 1}" if seed == 1 else None
            axes[1].plot(*line, color=(BLUE, ORANGE, GREY)[layer], linewidth=1, label=label)
    axes[0].set(title="Penn Treebank", ylabel="weight g of F1", ylim=(-0.03, 1.03))
    axes[1].set(title="Multi30k en-de, encoder, three seeds")
    for axis in axes:
        axis.set_xlabel("epoch")
        axis.legend(fontsize=8, frameon=False)
    save(chart, path)


def gate_of(run: dict, layer: str) -> tuple[list[float], list[float]]:
    key = f"eval_coefficient_{layer}_stage_1"
    points = [(entry["epoch"], entry[key]) for entry in run["log_history"] if key in entry]
    return [epoch for epoch, _ in points], [weight for _, weight in points]


# The groups of modules and where the map has them: the command and training above, the model below.
GROUPS = {
    "cli": (0.5, 3),
    "hub": (0.09, 2),
    "training": (0.32, 2),
    "inference": (0.55, 2),
    "conversion": (0.75, 2),
    "metrics": (0.93, 2),
    "models": (0.55, 1),
    "relatives": (0.25, 1),
    "depth": (0.06, 1),
    "tokenizers": (0.86, 1),
    "integration": (0.4, 0),
    "analysis": (0.75, 0),
}
FILES = {
    "models": (
        "configuration_ode",
        "layers_ode",
        "modeling_ode",
        "generation_ode",
        "texts_ode",
        "pipeline_ode",
    ),
    "relatives": ("csa_ode", "recurrence_ode"),
    "depth": ("depth",),
    "tokenizers": ("tokenization",),
    "integration": ("integration_ode", "schemes_ode"),
    "analysis": ("analysis",),
    "cli": ("cli",),
}


def group_of(module: str) -> str | None:
    """`training.trainer` is of the group "training", `modeling_csa_ode` of "relatives"; others are of none."""
    first = module.partition(".")[0]
    if first in GROUPS and first not in FILES:
        return first
    for group in ("relatives", *FILES):
        if any(part in first for part in FILES[group]):
            return group
    return None


def imports() -> dict[str, set[str]]:
    """Which groups each group's modules import, anywhere in their code."""
    found: dict[str, set[str]] = {group: set() for group in GROUPS}
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = file.relative_to(PACKAGE).with_suffix("").parts
        group = group_of(".".join(parts))
        if group is None:
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level:
                base = parts[: len(parts) - node.level]
                names = [node.module] if node.module else [alias.name for alias in node.names]
                found[group] |= {group_of(".".join([*base, *name.split(".")])) for name in names} - {None, group}
    return found


def modules(path: Path) -> None:
    chart, axis = figure(8.4, 4.4)
    for group, targets in imports().items():
        for target in sorted(targets):
            (x, y), (to_x, to_y) = GROUPS[group], GROUPS[target]
            bend = 0.25 if y == to_y else 0.04
            arrow = {"arrowstyle": "-|>", "color": GREY, "alpha": 0.55, "shrinkA": 17, "shrinkB": 17}
            arrow["connectionstyle"] = f"arc3,rad={bend}"
            axis.annotate("", (to_x, to_y), (x, y), arrowprops=arrow)
    for group, (x, y) in GROUPS.items():
        box = {"boxstyle": "round,pad=0.5", "facecolor": "#ebf4ff", "edgecolor": BLUE}
        axis.text(x, y, group, ha="center", va="center", bbox=box)
    axis.set(xlim=(0, 1), ylim=(-0.4, 3.4), title="An arrow goes from what imports to what is imported")
    axis.axis("off")
    save(chart, path)


FIGURES: dict[str, Callable[[Path], None]] = {
    draw.__name__: draw
    for draw in (blocks, convergence, ptb, multi30k, cost, time_to_quality, copying, verdict, gates, modules)
}


def main(names: Sequence[str], folder: Path = HERE) -> None:
    """Draws the figures of these names, or all, into `folder`."""
    with matplotlib.rc_context(STYLE):
        for name in names or FIGURES:
            FIGURES[name](folder / f"{name}.svg")


if __name__ == "__main__":
    main(sys.argv[1:])
