# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""What one more evaluation of a layer is worth, in layers: phi of each scheme, from the records of its trainings.

    python examples/results/verdict.py examples/results/queue/verdict_linux_doc.json --output_file verdict.json

The loss of residual models is fitted by `L(N) = E + A N^-alpha`, where N counts the parameters of the stack that is
repeated (as in "How Much Is One Recurrence Worth?", arXiv 2604.21106). A model of N parameters that is evaluated r
times and reaches the loss L is worth a residual model of N_eq parameters, `L(N_eq) = L`, and

    phi = log(N_eq / N) / log r

is 0 if the further evaluations are worth nothing, and 1 if each is worth as much as layers of its own. Intervals come
from a bootstrap over the seeds of all models, fitted anew each time. Runs are named SCHEME_SIZE_SEED.

Beside phi are differences of loss from the residual fit: at equal parameters, at equal arithmetic (the residual model
with r times the parameters in its stack) and at equal seconds of training on one machine.
"""

import json
import math
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


RESIDUAL = "residual"
ALPHAS = np.geomspace(0.02, 2, 400)
SAMPLES = 1000


class Point(NamedTuple):
    """A training: its scheme, size, seed, parameters of the repeated stack, evaluations of each of its layers, loss in
    nats for each token and seconds."""

    scheme: str
    size: str
    seed: str
    parameters: float
    evaluations: float
    loss: float
    seconds: float


class Curve(NamedTuple):
    """L(x) = floor + scale x^-exponent."""

    floor: float
    scale: float
    exponent: float

    def at(self, x: float) -> float:
        return self.floor + self.scale * x**-self.exponent

    def inverse(self, loss: float) -> float:
        """The x of a loss; infinite below the floor."""
        return math.inf if loss <= self.floor else ((loss - self.floor) / self.scale) ** (-1 / self.exponent)


def fit(x: Sequence[float], loss: Sequence[float]) -> Curve:
    """The falling curve of least squares: for each exponent the linear best one, and of these the best.

    Raises:
        ValueError: there are fewer than three different x, or the loss does not fall.
    """
    x, loss = np.asarray(x, dtype=np.float64), np.asarray(loss, dtype=np.float64)
    if len(set(x.tolist())) < 3:
        raise ValueError(f"A curve needs residual models of at least three sizes, not of {sorted(set(x.tolist()))}.")
    unit = np.exp(np.log(x).mean())
    powers = (x / unit) ** -ALPHAS[:, None]  # (exponents, models)
    centered = powers - powers.mean(axis=1, keepdims=True)
    scales = centered @ (loss - loss.mean()) / np.square(centered).sum(axis=1)
    floors = loss.mean() - scales * powers.mean(axis=1)
    errors = np.square(floors[:, None] + scales[:, None] * powers - loss).sum(axis=1)
    falls = (scales > 0) & (floors >= 0)
    if not falls.any():
        raise ValueError("The loss of the residual models does not fall with their size.")
    i = np.where(falls, errors, np.inf).argmin()
    return Curve(float(floors[i]), float(scales[i] * unit ** ALPHAS[i]), float(ALPHAS[i]))


def point_of(name: str, run: Mapping[str, Any]) -> Point:
    """The point of a run of `collect_runs.py`."""
    scheme, size, seed = name.rsplit("_", 2)
    model = run["model"]
    config, evaluations = model["config"], model["function_evaluations"]
    stack = next(iter(evaluations))
    counts = evaluations[stack]
    width, inner = config["d_model"], config[f"{stack}_ffn_dim"]
    # Four projections of the attention, two of the feed-forward sublayer, two norms, and the keys of distances.
    block = 4 * width * (width + 1) + 2 * width * inner + inner + width + 4 * width
    if distance := config["max_relative_position"]:
        block += (2 * distance + 1) * width // config[f"{stack}_attention_heads"]
    parameters = len(counts) * block
    metrics = run["metrics"]["validation"]
    return Point(
        *(scheme, size, seed, parameters, sum(counts) / len(counts)),
        *(math.log(metrics["perplexity"]), run["training_seconds"]),
    )


def means(points: Sequence[Point]) -> dict[tuple[str, str], Point]:
    """By scheme and size, the means over seeds."""
    groups = defaultdict(list)
    for point in points:
        groups[point.scheme, point.size].append(point)
    return {
        key: group[0]._replace(
            loss=float(np.mean([point.loss for point in group])),
            seconds=float(np.mean([point.seconds for point in group])),
        )
        for key, group in groups.items()
    }


def compare(points: Sequence[Point]) -> dict[tuple[str, str], dict[str, float]]:
    """phi and differences of loss of each scheme and size, from the fit of the residual models."""
    by_model = means(points)
    residual = [point for point in by_model.values() if point.scheme == RESIDUAL]
    of_size = fit([point.parameters for point in residual], [point.loss for point in residual])
    of_time = fit([point.seconds for point in residual], [point.loss for point in residual])
    found = {}
    for key, point in by_model.items():
        if point.scheme == RESIDUAL:
            continue
        times = of_size.inverse(point.loss) / point.parameters
        found[key] = {
            "phi": math.log(times) / math.log(point.evaluations),
            "equivalent_size": times,
            "at_equal_parameters": point.loss - of_size.at(point.parameters),
            "at_equal_arithmetic": point.loss - of_size.at(point.evaluations * point.parameters),
            "at_equal_seconds": point.loss - of_time.at(point.seconds),
        }
    # A scheme's phi is the mean over its sizes.
    for scheme in dict.fromkeys(scheme for scheme, _ in found):
        own = [values for (name, _), values in found.items() if name == scheme]
        found[scheme, "mean"] = {name: float(np.mean([values[name] for values in own])) for name in own[0]}
    return found


def bootstrap(points: Sequence[Point], samples: int = SAMPLES, seed: int = 0) -> dict[tuple[str, str], list[float]]:
    """phi of samples of the seeds of each model, by scheme and size; samples without a falling curve are left out. The
    losses of n seeds vary as those of n - 1 others would: their distances from the mean grow by sqrt(n / (n - 1))."""
    groups = defaultdict(list)
    for point in points:
        groups[point.scheme, point.size].append(point)
    for key, group in groups.items():
        mean, factor = np.mean([point.loss for point in group]), math.sqrt(len(group) / max(len(group) - 1, 1))
        groups[key] = [point._replace(loss=float(mean + factor * (point.loss - mean))) for point in group]
    generator, drawn = np.random.default_rng(seed), defaultdict(list)
    for _ in range(samples):
        sample = [
            group[i] for group in groups.values() for i in generator.integers(len(group), size=len(group)).tolist()
        ]
        try:
            found = compare(sample)
        except ValueError:
            continue
        for key, values in found.items():
            drawn[key].append(values["phi"])
    return drawn


def verdict(runs: Mapping[str, Mapping[str, Any]], samples: int = SAMPLES) -> dict[str, Any]:
    """The fit and, by scheme and size, what `compare` finds, with the interval of phi (95%) where each model has
    several seeds.

    Raises:
        ValueError: there are no residual models of three sizes, or no other models.
    """
    points = [point_of(name, run) for name, run in runs.items()]
    found = compare(points)
    if not found:
        raise ValueError(f"There are only residual models: {', '.join(runs)}.")
    has_seeds = min(sum(point[:2] == key for point in points) for key in means(points)) > 1
    drawn = bootstrap(points, samples) if has_seeds else {}
    residual = [point for point in means(points).values() if point.scheme == RESIDUAL]
    schemes: dict[str, Any] = defaultdict(dict)
    for (scheme, size), values in found.items():
        interval = (
            {"interval": np.percentile(drawn[scheme, size], [2.5, 97.5], method="inverted_cdf").tolist()}
            if drawn
            else {}
        )
        schemes[scheme][size] = values | interval
    return {
        "runs": len(points),
        "fit": fit([point.parameters for point in residual], [point.loss for point in residual])._asdict(),
        "points": [point._asdict() for point in points],
        "schemes": schemes,
    }


def finite(value: Any) -> Any:
    """A result with None for numbers that are infinite, as phi is of a loss that no residual model reaches."""
    if isinstance(value, Mapping):
        return {name: finite(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def table(result: Mapping[str, Any]) -> str:
    """The result as a table of Markdown."""
    titles = ["", "size", "phi", "95%", "worth a stack times", "loss at equal parameters", "arithmetic", "seconds"]
    rows = [titles, ["---"] * len(titles)]
    for scheme, sizes in result["schemes"].items():
        for size, values in sizes.items():
            interval = " to ".join(f"{end:.2f}" for end in values.get("interval", []))
            numbers = [values[f"at_equal_{name}"] for name in ("parameters", "arithmetic", "seconds")]
            row = [scheme, size, f"{values['phi']:.2f}", interval, f"{values['equivalent_size']:.2f}"]
            rows.append([*row, *(f"{number:+.4f}" for number in numbers)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main(argv: list[str] | None = None) -> None:
    """Runs the script with the given arguments (default: the command line's)."""
    parser = ArgumentParser(description=__doc__.splitlines()[0], formatter_class=ArgumentDefaultsHelpFormatter)
    parser.add_argument("record", type=Path, help="record of the queue, as collect_runs.py writes it")
    parser.add_argument("--output_file", type=Path, help="file for the result as JSON")
    args = parser.parse_args(argv)
    try:
        result = verdict(json.loads(args.record.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        parser.error(str(error))
    print(table(result))
    if args.output_file:
        args.output_file.write_text(json.dumps(finite(result), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
