# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Several models of one call: a seed or a fold each, what is finished already, and the summary of their metrics."""

import copy
import logging
import statistics
from itertools import product
from pathlib import Path
from typing import Any

from transformers import TrainingArguments

from ..text_files import read_json
from .arguments import BaseDataArguments, needed_splits
from .checkpoints import write_json
from .records import ARGUMENTS, RESULTS, RUNS
from .same_training import differences


logger = logging.getLogger(__name__)


def plan_models(data_args: BaseDataArguments, args: TrainingArguments) -> list[tuple[int | None, TrainingArguments]]:
    """Fold and training arguments, the seed among them, of each model; several have folders and, if they are uploaded,
    repositories of their own."""
    plan: list[tuple[int | None, TrainingArguments]] = []
    folds = range(data_args.cross_validation) if data_args.cross_validation else [None]
    for seed, fold in product(data_args.seeds or [args.seed], folds):
        own, names = copy.copy(args), []
        if data_args.seeds:
            names.append(f"seed_{seed}")
        if fold is not None:
            names.append(f"fold_{fold}")
        own.seed, own.output_dir = seed, str(Path(args.output_dir, *names))
        if names:
            # Each continues from its own checkpoints, if it has any.
            own.resume_from_checkpoint = None
        if names and args.push_to_hub:
            # By default they would have the names of their own folders, such as fold_0.
            own.hub_model_id = "_".join([args.hub_model_id or Path(args.output_dir).resolve().name, *names])
        plan.append((fold, own))
    return plan


def finished_metrics(arguments: dict, args: TrainingArguments) -> dict[str, float] | None:
    """The metrics of one of several models that an earlier call finished; None if it did not.

    Args:
        arguments: Those of `run_arguments`.
        args: The training's.

    Raises:
        ValueError: it was another call, whose results are not those of this one.
    """
    folder = Path(args.output_dir)
    needed = {"train_loss": args.do_train, "eval_accuracy": args.do_eval, "predict_accuracy": args.do_predict}
    if arguments["data"]["overwrite_output_dir"] or not all(
        (folder / name).is_file() for name in (ARGUMENTS, RESULTS)
    ):
        return None
    metrics, noted = read_json(folder / RESULTS), read_json(folder / ARGUMENTS)
    if any(need and name not in metrics for name, need in needed.items()):
        return None
    different = differences(noted, arguments, "training", "examples", "validation", "test", "result")
    for split, data in noted.get("evaluated", {}).items():
        if needed_splits(args)[split]:
            different += differences({"data": data, "files": data["files"]}, arguments, "training", split)
    if different:
        raise ValueError(
            f"{folder} was trained or evaluated differently: this call has {'; '.join(different)}. Choose another "
            "--output_dir, or give --overwrite_output_dir. If only an evaluation differs, evaluate on this call's "
            f"data again (--model_name_or_path {folder} --output_dir {folder})."
        )
    logger.info("%s is already trained: its results are reused", folder)
    return metrics


def summarize(runs: list[dict]) -> dict:
    """Mean and standard deviation (None for one seed) over seeds of what the runs measured, the mean over the folds of
    a seed first.

    Args:
        runs: Their metrics, with the keys `seed` and `fold`.
    """
    summary = {}
    seeds = list(dict.fromkeys(run["seed"] for run in runs))
    for name in runs[0]:
        if name not in ("seed", "fold") and all(isinstance(run.get(name), (int, float)) for run in runs):
            values = [statistics.fmean(run[name] for run in runs if run["seed"] == seed) for seed in seeds]
            deviation = statistics.stdev(values) if len(values) > 1 else None
            summary[name] = {"mean": statistics.fmean(values), "standard_deviation": deviation}
    return summary


def write_results(runs: list[dict], args: TrainingArguments) -> dict:
    """Puts the metrics of trained models and their summary into RUNS, logs the accuracies, and returns both."""
    results: dict[str, Any] = {"runs": runs, "summary": summarize(runs)}
    if args.should_save and args.do_train:
        write_json(Path(args.output_dir) / RUNS, results)
    for name in ("eval_accuracy", "predict_accuracy"):
        if name in results["summary"]:
            values = results["summary"][name]
            deviation = values["standard_deviation"]
            logger.info("%s: %.2f%s", name, values["mean"], "" if deviation is None else f" ± {deviation:.2f}")
    return results
