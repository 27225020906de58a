# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""How soon trainings become good: a fast recipe beside the one after the papers, and beside other rates and Adam.

    python examples/benchmarks/time_to_quality.py --output_file time_to_quality.json

Takes the records of trainings that `examples/results/run_queue.py` wrote, and those of earlier ones; trains nothing.
Writes the validation loss and BLEU of each recipe and model after each evaluation, over updates, seconds and
evaluations of the layers' functions F, as means over seeds. Also writes how many updates a fast recipe makes, as a
share of those after which the paper's is as good. Seconds are a training's, evaluations included, in proportion to
updates: recipes that ran on different machines can be compared by updates and evaluations of F only.
"""

import json
import re
import statistics
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser
from pathlib import Path


RESULTS = Path(__file__).resolve().parent.parent / "results"
# Of each task: the record of the recipe after the papers, and the fast recipe, whose records are the queue's.
TASKS = {
    "multi30k_en_de": ("multi30k/runs.json", "multi30k_en_de_fast"),
    "tatoeba_en_de_small": ("queue/tatoeba_en_de_small.json", "tatoeba_en_de_small_fast"),
    "ptb": ("queue/ptb.json", "ptb_fast"),
}
# What earlier records call the models of the queue.
NAMES = {"RK2": "rk2", "RK2 (gate)": "rk2_gate", "RK4": "rk4"}
SEED = re.compile(r"(?:, seed |_)\d+$")


def read_models(file: Path) -> dict[str, list[dict]]:
    """The runs of a record by model, in the order of their seeds; empty if the file does not exist."""
    models: dict[str, list[dict]] = {}
    for title, run in json.loads(file.read_text(encoding="utf-8")).items() if file.is_file() else ():
        name = SEED.sub("", title)
        models.setdefault(NAMES.get(name, name), []).append(run)
    return models


def curve(runs: list[dict]) -> dict:
    """Means over the seeds of a model at the updates that all evaluated, and the scores of the models that its
    trainings kept: of the best epoch, or of the last update."""
    logs = [{entry["step"]: entry for entry in run["log_history"] if "eval_loss" in entry} for run in runs]
    updates = sorted(set.intersection(*map(set, logs)))
    last = [run["log_history"][-1]["step"] for run in runs]
    seconds = statistics.mean(run["training_seconds"] / end for run, end in zip(runs, last))
    evaluations = sum(map(sum, runs[0]["model"]["function_evaluations"].values()))
    points = {
        "updates": updates,
        "seconds": [round(seconds * update) for update in updates],
        "evaluations of F": [evaluations * update for update in updates],
    }
    for name in ("eval_loss", "eval_perplexity", "eval_bleu"):
        if all(name in log[update] for log in logs for update in updates):
            points[name] = [round(statistics.mean(log[update][name] for log in logs), 4) for update in updates]
    kept = {
        split: {
            name: [round(run["metrics"][split][name], 4) for run in runs]
            for name in ("bleu", "perplexity")
            if all(name in run["metrics"][split] for run in runs)
        }
        for split in ("validation", "test")
    }
    return {
        "seeds": len(runs),
        "optimizer": runs[0]["training"]["arguments"].get("optim"),
        "validation": points,
        "kept": kept,
    }


def share_of_updates(fast: dict, paper: dict) -> float | None:
    """The updates after which a fast training has its lowest validation perplexity, as a share of those after which
    the paper's is first evaluated with one as low; None if it never is."""
    fast, paper = fast["validation"], paper["validation"]
    lowest, update = min(zip(fast["eval_perplexity"], fast["updates"]))
    as_low = [each for each, value in zip(paper["updates"], paper["eval_perplexity"]) if value <= lowest]
    return round(update / as_low[0], 3) if as_low else None


def measure(results: Path) -> dict[str, dict]:
    """Curves by task, recipe and model. Runs of a fast recipe at other rates are named by optimizer and rates."""
    measured = {}
    for task, (paper_file, recipe) in TASKS.items():
        files = (paper_file, f"queue/{recipe}.json", f"queue/rates_{recipe}.json")
        paper, fast, rates = (read_models(results / file) for file in files)
        if not fast:
            continue
        recipes = {"paper": {name: paper[name] for name in fast if name in paper}, "fast": fast, "rates": rates}
        measured[task] = {
            recipe: {name: curve(runs) for name, runs in models.items()} for recipe, models in recipes.items()
        }
        for name, model in measured[task]["fast"].items():
            if name in measured[task]["paper"]:
                model["share of the paper's updates for its perplexity"] = share_of_updates(
                    model, measured[task]["paper"][name]
                )
    return measured


def main(argv: list[str] | None = None) -> dict:
    """Runs the script with the given arguments (default: the command line's)."""
    parser = ArgumentParser(description=__doc__.splitlines()[0], formatter_class=ArgumentDefaultsHelpFormatter)
    parser.add_argument("--results_dir", type=Path, default=RESULTS, help="folder with the records of trainings")
    parser.add_argument("--output_file", type=Path, default=Path("time_to_quality.json"), help="the record")
    args = parser.parse_args(argv)
    measured = measure(args.results_dir)
    if not measured:
        parser.error(f"--results_dir {args.results_dir}: no fast recipe has a record there. run_queue.py writes them.")
    args.output_file.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    print("| data | recipe | model | seeds | updates | evaluations of F | validation perplexity | test |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for task, recipes in measured.items():
        for recipe, models in recipes.items():
            for name, model in models.items():
                points, kept = model["validation"], model["kept"]
                kind, values = next(iter(kept["test"].items()))
                cells = [task, recipe, name, model["seeds"], points["updates"][-1], points["evaluations of F"][-1]]
                cells.append(f"{statistics.mean(kept['validation']['perplexity']):.2f}")
                cells.append(f"{kind} {statistics.mean(values):.2f}")
                print(f"| {' | '.join(map(str, cells))} |")
    return measured


if __name__ == "__main__":
    main()
