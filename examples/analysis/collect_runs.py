# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Puts training runs side by side: prints a table, and writes everything known about them as JSON.

    python examples/analysis/collect_runs.py ptb_residual ptb_rk2_gate --names residual gate --output_file ptb.json

A run is the output folder of a finished run of one of the scripts. For each run, the file has the record behind its
model card (model, data, arguments, versions, date, metrics) and the overrides of its configuration. It also has the
non-empty arguments of its model and data, and its log for `plot_training.py`. Runs with other names stay in the file,
so runs from several machines can be combined. The table shows all runs. For runs that differ only in their seed, it
adds mean and standard deviation.
"""

import json
import statistics
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser
from pathlib import Path

from modeling_ode_transformer.hub.model_card import METRICS, run_record
from modeling_ode_transformer.text_files import read_json
from modeling_ode_transformer.training.checkpoints import TRAINER_STATE, write_json
from modeling_ode_transformer.training.records import ARGUMENTS, RESULTS
from modeling_ode_transformer.training.same_training import affected_by, training_data


def overrides(values: dict) -> str:
    """Overrides of a configuration, in the form of the command line."""
    return ",".join(f"{name}={value}" for name, value in values.items())


def read_collected(file: Path) -> dict[str, dict]:
    """The runs in a file of this script, by name; none if there is no file.

    Raises:
        ValueError: the file was not written by this script.
    """
    runs = read_json(file) if file.is_file() else {}
    if not isinstance(runs, dict) or not all(isinstance(run, dict) and "log_history" in run for run in runs.values()):
        raise ValueError(f"{file} is not a file of runs with logs, so runs cannot be added: give another file.")
    return runs


def read_run(folder: Path) -> dict:
    """Everything known about a run.

    Raises:
        FileNotFoundError: the run is not finished, or is not a run of this package.
        ValueError: its evaluations are not finished.
    """
    for name in (ARGUMENTS, RESULTS, TRAINER_STATE):
        if not (folder / name).is_file():
            raise FileNotFoundError(
                f"There is no file {folder / name}, which a run writes at its end: give the output folder of a "
                "finished run."
            )
    arguments, results, state = (read_json(folder / name) for name in (ARGUMENTS, RESULTS, TRAINER_STATE))
    asked = arguments["training"]
    for name, prefix in (("do_eval", "eval"), ("do_predict", "predict")):
        if asked.get(name) and f"{prefix}_samples" not in results:
            raise ValueError(f"{folder / RESULTS} lacks the results of --{name}: repeat the command of the run.")
    model = {name: value for name, value in arguments["model"].items() if affected_by(name) == "training"}
    model = {name: Path(value).name if isinstance(value, str) else value for name, value in model.items()}
    config_overrides = model.pop("config_overrides") or {}
    given = {
        kind: {name: value for name, value in values.items() if value not in (None, False, "", [], {})}
        for kind, values in (("model", model), ("data", training_data(arguments["data"])))
    }
    return {
        "config_overrides": config_overrides,
        "arguments": given,
        "training_seconds": results.get("train_runtime"),
        "training_length": {name: asked.get(name) for name in ("num_train_epochs", "max_steps")},
        **run_record(folder),
        "log_history": state["log_history"],
    }


def score_of(run: dict, split: str, metric: str) -> float | None:
    return run.get("metrics", {}).get(split, {}).get(metric)


def groups_of_seeds(runs: dict[str, dict]) -> list[list[str]]:
    """Groups of two or more names of runs that differ only in their seed."""
    groups = {}
    for name, run in runs.items():
        reached = ("arguments", "updates", "weights_of_update", "epochs")
        training = {fact: value for fact, value in run["training"].items() if fact not in reached}
        arguments = dict(run["training"]["arguments"])
        seed = arguments.pop("seed", None)
        conventions = [
            {name: value for name, value in values.items() if isinstance(value, str)}
            for values in run.get("metrics", {}).values()
        ]
        same = (run["config_overrides"], run["model"], run["data"], run.get("training_length"), training, arguments)
        same += (run.get("generation"), run.get("arguments"), conventions)
        groups.setdefault(json.dumps(same, sort_keys=True), {}).setdefault(seed, name)
    return [list(by_seed.values()) for by_seed in groups.values() if len(by_seed) > 1]


def table(runs: dict[str, dict]) -> str:
    """The runs as rows in Markdown: differing overrides, parameters, update of the weights, metrics. For each group of
    seeds, the mean and the sample standard deviation of the metrics follow."""
    metrics = dict.fromkeys(
        (split, name)
        for run in runs.values()
        for split, values in run.get("metrics", {}).items()
        for name, value in values.items()
        if isinstance(value, float)
    )
    all_overrides = [run["config_overrides"] for run in runs.values()]
    header = ["run", "overrides", "parameters", "updates", *(f"{split} {name}" for split, name in metrics)]
    rows = [header, ["---"] * len(header)]
    for title, run in runs.items():
        own = {
            name: value
            for name, value in run["config_overrides"].items()
            if any(name not in other or other[name] != value for other in all_overrides)
        }
        scores = [(score_of(run, *metric), METRICS[metric[1]].digits) for metric in metrics]
        training = run["training"]
        rows.append(
            [
                title,
                f"`{overrides(own)}`" if own else "",
                f"{run['model']['parameters']:,}",
                f"{training.get('weights_of_update') or training['updates']:,}",
                *("" if score is None else f"{score:.{digits}f}" for score, digits in scores),
            ]
        )
    for names in groups_of_seeds(runs):
        row = [f"mean of {', '.join(names)}", "", "", ""]
        for metric in metrics:
            scores, digits = [score_of(runs[name], *metric) for name in names], METRICS[metric[1]].digits
            spread = () if None in scores else (statistics.fmean(scores), statistics.stdev(scores))
            row.append(" ± ".join(f"{value:.{digits}f}" for value in spread))
        rows.append(row)
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main(argv: list[str] | None = None) -> dict[str, dict]:
    """Runs the script with the given arguments (default: the command line's) and returns what it wrote."""
    parser = ArgumentParser(description=__doc__.splitlines()[0], formatter_class=ArgumentDefaultsHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="output folders of runs")
    parser.add_argument("--names", nargs="+", help="names of the runs; None: those of their folders")
    parser.add_argument(
        "--output_file",
        type=Path,
        default=Path("runs.json"),
        help="JSON file to write or extend; runs with the same names are replaced",
    )
    args = parser.parse_args(argv)
    names = args.names or [run.resolve().name for run in args.runs]
    if not len(set(names)) == len(names) == len(args.runs):
        parser.error(
            f"{len(args.runs)} runs need the same number of different names, not {', '.join(names)}: give --names."
        )
    runs = read_collected(args.output_file) | {name: read_run(run) for name, run in zip(names, args.runs)}
    args.output_file.parent.mkdir(parents=True, exist_ok=True)
    write_json(args.output_file, runs)
    print(table(runs))
    return runs


if __name__ == "__main__":
    main()
