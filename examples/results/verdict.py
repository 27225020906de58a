# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""What one more evaluation of a layer is worth, in layers: phi of each scheme, from the records of its trainings.

    python examples/results/verdict.py examples/results/queue/verdict_tatoeba_sentences.json

`docs/verdict_tables.py` writes the tables of the verdict's pages from all records.

The loss of residual models is fitted by `L(N) = E + A N^-alpha`, where N counts the parameters of the stack that is
repeated (as in "How Much Is One Recurrence Worth?", arXiv 2604.21106). A model of N parameters that is evaluated r
times and reaches the loss L is worth a residual model of N_eq parameters, `L(N_eq) = L`, and

    phi = log(N_eq / N) / log r

is 0 if the further evaluations are worth nothing, and 1 if each is worth as much as layers of its own. Intervals come
from a bootstrap of the losses of all models, fitted anew each time. Runs are named SCHEME_SIZE_SEED.

Beside phi are differences of loss, in nats: from the residual model of as many layers, on the validation and the test
set; and from the fitted curve at equal arithmetic (r times the parameters in the stack) and, with `--seconds`, at
equal seconds of training on one machine.
"""

import json
import math
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import stats


# The schemes of the queue, by the names of its runs.
NAMES = {
    "residual": "residual",
    "residual_twice": "residual, twice at one state",
    "residual_step2": "residual, step of 2",
    "residual_step4": "residual, step of 4",
    "euler2": "Euler twice",
    "looped": "looped stack",
    "rk2": "RK2",
    "rk2_step2": "RK2, step of 2",
    "rk2_learned": "RK2, learned weights",
    "rk2_gate": "RK2, gate",
    "midpoint": "midpoint",
    "rk4": "RK4",
    "pcformer": "PCformer",
    "iiet": "IIET",
}
# Of the test set: title and digits.
SCORES = {"bits_per_byte": ("bits per byte", 4), "bleu": ("BLEU", 2), "chrf": ("chrF", 2)}
ALPHAS = np.geomspace(0.02, 2, 400)
SAMPLES = 1000


class Point(NamedTuple):
    """A training: its scheme, size, seed, parameters of the repeated stack, evaluations of each of its layers, loss in
    nats for each token and, if they are known, seconds."""

    scheme: str
    size: str
    seed: str
    parameters: float
    evaluations: float
    loss: float
    seconds: float | None


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


def stack_of(model: Mapping[str, Any]) -> tuple[int, float]:
    """The parameters of a model's repeated stack, and how often each of its layers is evaluated: of a model of this
    package or of a Llama with integrated layers."""
    config, evaluations = model["config"], model["function_evaluations"]
    if not isinstance(evaluations, Mapping):
        width, layers = config["hidden_size"], config["num_hidden_layers"]
        # Four projections of the attention, three of the feed-forward sublayer, and two norms, without biases.
        return layers * width * (4 * width + 3 * config["intermediate_size"] + 2), evaluations / layers
    stack, counts = next(iter(evaluations.items()))
    width, inner = config["d_model"], config[f"{stack}_ffn_dim"]
    # Four projections of the attention, two of the feed-forward sublayer, two norms, and the keys of distances.
    block = 4 * width * (width + 1) + 2 * width * inner + inner + width + 4 * width
    if distance := config["max_relative_position"]:
        block += (2 * distance + 1) * width // config[f"{stack}_attention_heads"]
    return len(counts) * block, sum(counts) / len(counts)


def point_of(name: str, run: Mapping[str, Any], seconds: Mapping[str, float] | None = None) -> Point:
    """The point of a run of `collect_runs.py`. `seconds` are those of an update, by SCHEME_SIZE."""
    scheme, size, seed = name.rsplit("_", 2)
    if seconds is not None and f"{scheme}_{size}" not in seconds:
        raise ValueError(f"The seconds of {scheme}_{size} are missing, which verdict_seconds.py measures.")
    spent = None if seconds is None else seconds[f"{scheme}_{size}"] * run["training"]["updates"]
    parameters, evaluations = stack_of(run["model"])
    metrics = run["metrics"]["validation"]
    return Point(
        *(scheme, size, seed, parameters, evaluations),
        *(math.log(metrics["perplexity"]), spent),
    )


def grouped(points: Sequence[Point]) -> dict[tuple[str, str], list[Point]]:
    """The seeds of each model, by scheme and size."""
    groups = defaultdict(list)
    for point in points:
        groups[point.scheme, point.size].append(point)
    return dict(groups)


def mean(points: Sequence[Point]) -> Point:
    """Of the seeds of a model: the first one with the mean loss."""
    return points[0]._replace(loss=float(np.mean([point.loss for point in points])))


def compare(points: Sequence[Point]) -> tuple[Curve, dict[tuple[str, str], dict[str, float]]]:
    """The fit of the residual models' losses over their parameters; and phi and differences of loss, from this fit, of
    each other scheme and size with further evaluations."""
    models = {key: mean(group) for key, group in grouped(points).items()}
    fitted = [point for point in models.values() if point.scheme == "residual"]
    losses = [point.loss for point in fitted]
    of_size = fit([point.parameters for point in fitted], losses)
    times = [point.seconds for point in fitted]
    of_time = None if None in times else fit(times, losses)
    found = {}
    for key, point in models.items():
        if point.scheme == "residual" or point.evaluations == 1:
            continue
        worth = of_size.inverse(point.loss) / point.parameters
        found[key] = {
            "phi": math.log(worth) / math.log(point.evaluations),
            "equivalent_size": worth,
            "at_equal_arithmetic": point.loss - of_size.at(point.evaluations * point.parameters),
        }
        if of_time is not None:
            found[key]["at_equal_seconds"] = point.loss - of_time.at(point.seconds)
    return of_size, found


def bootstrap(points: Sequence[Point], samples: int = SAMPLES, seed: int = 0) -> dict[tuple[str, str], list[float]]:
    """phi of samples of the models' mean losses, by scheme and size; samples without a falling curve are left out.

    Losses of all models vary with the seed by one standard deviation. It is estimated from all of them together, since
    two seeds say nothing of their own, and is drawn anew for each sample, as its degrees of freedom ask for. Empty if
    no model has two seeds.
    """
    models = [(mean(group), len(group)) for group in grouped(points).values()]
    freedom, drawn = len(points) - len(models), defaultdict(list)
    if not freedom:
        return drawn
    middle = {(point.scheme, point.size): point.loss for point, _ in models}
    squares = sum((point.loss - middle[point.scheme, point.size]) ** 2 for point in points)
    generator = np.random.default_rng(seed)
    deviations = np.sqrt(squares / generator.chisquare(freedom, size=samples))
    noise = [deviations * generator.normal(size=samples) / math.sqrt(number) for _, number in models]
    for row in np.transpose(noise).tolist():
        sample = [point._replace(loss=point.loss + x) for (point, _), x in zip(models, row)]
        try:
            _, found = compare(sample)
        except ValueError:
            continue
        for key, values in found.items():
            drawn[key].append(values["phi"])
    return drawn


def verdict(
    runs: Mapping[str, Mapping[str, Any]],
    samples: int = SAMPLES,
    seconds: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """The fit and, by scheme and size, what `compare` finds, with the interval of phi (95%) if any model has
    several seeds.

    Args:
        runs: Records of `collect_runs.py` by name.
        samples: Of the bootstrap.
        seconds: Of an update, by SCHEME_SIZE; without them, there is no comparison at equal seconds.

    Raises:
        ValueError: there are no residual models of three sizes, or no other models, or no seconds of a model.
    """
    points = [point_of(name, run, seconds) for name, run in runs.items()]
    curve, found = compare(points)
    if not found:
        raise ValueError(f"There are only residual models: {', '.join(runs)}.")
    schemes: dict[str, Any] = defaultdict(dict)
    for (scheme, size), values in found.items():
        schemes[scheme][size] = values
    for (scheme, size), phis in bootstrap(points, samples).items():
        interval = np.percentile(phis, [2.5, 97.5], method="inverted_cdf").tolist()
        schemes[scheme][size]["interval"] = interval
    return {
        "runs": len(points),
        "fit": curve._asdict(),
        "points": [point._asdict() for point in points],
        "schemes": schemes,
    }


def place(model: tuple[str, str]) -> tuple[int, str, int, str]:
    """Where a model is in a table, by its scheme and size."""
    (scheme, size), known = model, list(NAMES)
    return known.index(scheme) if scheme in known else len(known), scheme, len(size), size


def by_model(runs: Mapping[str, Any]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """The metrics of the seeds of each model, by scheme and size, in the order of a table."""
    models = defaultdict(list)
    for name in sorted(runs):
        scheme, size, _ = name.rsplit("_", 2)
        models[scheme, size].append(runs[name]["metrics"])
    return {model: models[model] for model in sorted(models, key=place)}


def losses_of(
    models: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]], split: str
) -> dict[tuple[str, str], list[float]]:
    """Of the seeds of each model in `by_model`, in nats."""
    return {model: [math.log(each[split]["perplexity"]) for each in seeds] for model, seeds in models.items()}


def difference(
    losses: Mapping[tuple[str, str], Sequence[float]], model: tuple[str, str], other: tuple[str, str]
) -> tuple[float, ...]:
    """The mean loss of a model less that of another; if any model has several seeds, followed by the ends of its
    interval (95%): of Student's t, with one standard deviation for all models."""
    value = float(np.mean(losses[model]) - np.mean(losses[other]))
    freedom = sum(len(seeds) - 1 for seeds in losses.values())
    if not freedom:
        return (value,)
    squares = sum(np.square(np.asarray(seeds) - np.mean(seeds)).sum() for seeds in losses.values())
    error = math.sqrt(squares / freedom * (1 / len(losses[model]) + 1 / len(losses[other])))
    half = float(stats.t.ppf(0.975, freedom)) * error
    return value, value - half, value + half


def with_interval(found: Sequence[float], digits: int) -> str:
    """A number, followed by the ends of its interval, if it has one."""
    number, *ends = found
    number = round(number, digits) + 0.0  # no "-0.00"; of an end, the sign says on which side of 0 it is
    value, *ends = (f"{x:.{digits}f}".replace("inf", "∞") for x in (number, *ends))
    return f"{value} ({' to '.join(ends)})" if ends else value


def phi_of(found: Mapping[str, Any]) -> str:
    """With its interval."""
    return with_interval([found["phi"], *found.get("interval", ())], 2)


def table(runs: Mapping[str, Any], schemes: Mapping[str, Mapping[str, Any]] | None = None) -> list[list[str]]:
    """The models of a record, below the titles of the columns.

    Args:
        runs: Records of `collect_runs.py` by name.
        schemes: What `verdict` finds of them; without it, there is no phi.
    """
    models, metrics = by_model(runs), next(iter(runs.values()))["metrics"]
    found = {(scheme, size): each for scheme, sizes in (schemes or {}).items() for size, each in sizes.items()}

    def mean_of(split: str, metric: str, digits: int, model: tuple[str, str]) -> str:
        return f"{np.mean([each[split][metric] for each in models[model]]):.{digits}f}"

    def beside(losses: Mapping[tuple[str, str], Sequence[float]], model: tuple[str, str]) -> str:
        scheme, size = model
        is_compared = scheme != "residual" and ("residual", size) in losses
        return with_interval(difference(losses, model, ("residual", size)), 3) if is_compared else ""

    def at_equal(name: str, model: tuple[str, str]) -> str:
        return f"{found[model][name]:.3f}" if model in found else ""

    columns: dict[str, Callable[[tuple[str, str]], str]] = {
        "model": lambda model: NAMES.get(model[0], model[0]),
        "layers": lambda model: model[1],
        "seeds": lambda model: str(len(models[model])),
        "perplexity": partial(mean_of, "validation", "perplexity", 2),
    }
    for split, title in (("validation", "loss beside residual"), ("test", "on the test set")):
        if split in metrics:
            columns[title] = partial(beside, losses_of(models, split))
    if found:
        columns["phi"] = lambda model: phi_of(found[model]) if model in found else ""
    for name in next(iter(found.values()), ()):
        if name.startswith("at_equal"):
            columns[f"loss {name.replace('_', ' ')}"] = partial(at_equal, name)
    for metric, (title, digits) in SCORES.items():
        if metric in metrics.get("test", ()):
            columns[f"test {title}"] = partial(mean_of, "test", metric, digits)
    return [list(columns), *([cell(model) for cell in columns.values()] for model in models)]


def markdown(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (rows[0], ["---"] * len(rows[0]), *rows[1:]))


def main(argv: list[str] | None = None) -> None:
    """Runs the script with the given arguments (default: the command line's)."""
    parser = ArgumentParser(description=__doc__.splitlines()[0], formatter_class=ArgumentDefaultsHelpFormatter)
    parser.add_argument("record", type=Path, help="record of the queue, as collect_runs.py writes it")
    parser.add_argument(
        "--seconds",
        type=Path,
        help="file of examples/benchmarks/verdict_seconds.py: seconds of an update of each model on a quiet machine",
    )
    args = parser.parse_args(argv)
    try:
        files = [json.loads(path.read_text(encoding="utf-8")) for path in (args.record, args.seconds) if path]
        seconds = files[1].get("seconds_per_update", {}) if args.seconds else None
        result = verdict(files[0], seconds=seconds)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    print(markdown(table(files[0], result["schemes"])))


if __name__ == "__main__":
    main()
