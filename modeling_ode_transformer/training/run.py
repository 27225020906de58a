# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The run loop: from a command line to a trained, measured and saved model, for every `Task`.

run(TRANSLATION, ["recipe.json", "--output_dir", "out"])
"""

import gc
import logging
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import transformers
from accelerate import PartialState
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from transformers import PreTrainedModel, Trainer, TrainingArguments, set_seed

# Makes the Auto classes know the models.
from .. import registration  # noqa: F401
from ..errors import one_line_errors
from .arguments import BaseDataArguments, BaseModelArguments, needed_splits, parse_with_recipe
from .average import average_checkpoints
from .checkpoints import TEMPORARY, complete_checkpoints
from .help import help_text
from .presets import preset_of, preset_values
from .recipe_files import recipe_of
from .records import PREFIXES, held_out
from .run_folder import checkpoint_for_run, locked_run, note_metrics, note_run
from .same_training import run_arguments
from .seeds import finished_metrics, plan_models, write_results
from .task import Run, Task
from .trainer import class_before_sharding
from .watch import PlanCheck


logger = logging.getLogger(__name__)


def run(task: Task, argv: list[str] | None = None) -> dict:
    """Trains, evaluates and predicts as the arguments say (default: the command line's).

    Returns:
        All metrics by name. For a task with results, the metrics of all models and their summary.

    Raises:
        ValueError: arguments contradict each other or the output folder, or the examples are malformed.
        FileNotFoundError: a file or checkpoint does not exist.
    """
    argv = sys.argv[1:] if argv is None else argv
    print_help(task, argv)
    notes: list[str] = []
    model_args, data_args, args = parse_arguments(task, argv, notes)
    set_up_logging(args)
    for note in notes:
        logger.info(note)
    task.check_arguments(model_args, data_args, args)
    with locked_run(args):
        return run_checked(task, model_args, data_args, args)


def print_help(task: Task, argv: list[str]) -> None:
    """Prints the help and ends the process if the command line asks for help."""
    if not {"-h", "--help", "--help_all"}.isdisjoint(argv):
        print(help_text(task, None) if "--help_all" in argv else help_text(task), end="")
        sys.exit(0)


def prepare(task: Task, argv: list[str]) -> dict[str, int]:
    """Prepares the data of a training, if the task supports it. It makes the tokenizer, unless one is named, and the
    training pairs. It also prepares the evaluations that have files or that the arguments ask for. Everything is
    written to `--prepared_dir` or, by default, to `--output_dir`.

    Returns:
        The number of pairs by split.

    Raises:
        ValueError: examples are malformed.
        FileNotFoundError: a file does not exist.
    """
    data_args: Any
    model_args, data_args, args = parse_arguments(task, argv)
    set_up_logging(args)
    args.do_train = True
    args.do_eval |= bool(data_args.files("validation"))
    args.do_predict |= bool(data_args.files("test"))
    data_args.prepared_dir = data_args.prepared_dir or args.output_dir
    run = Run(task, model_args, data_args, args)
    run.arguments = run_arguments(task.name, model_args, data_args, args)
    run.given = read_examples(task, data_args, needed_splits(args))
    make_tokenizers(run)
    return {split: len(task.encode(run, split)) for split in run.examples}


def parse_arguments(
    task: Task, argv: list[str], notes: list[str] | None = None
) -> tuple[BaseModelArguments, BaseDataArguments, TrainingArguments]:
    """Arguments from the command line. They override a recipe, or a preset if there is no recipe; see
    `parse_with_recipe` and `preset_values`."""
    name, argv = preset_of(argv)
    if name is not None and (recipe := recipe_of(argv)[0]) is not None:
        raise ValueError(f"--preset {name} and --recipe {recipe} cannot be combined: give one.")
    types = (task.model_arguments, task.data_arguments, task.training_arguments)
    return parse_with_recipe(types, argv, notes, partial(preset_values, task, name))


def set_up_logging(args: TrainingArguments) -> None:
    """Logs to standard output at `--log_level` (default: info)."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stdout)
    level = logging.INFO if args.log_level == "passive" else args.get_process_log_level()
    logging.getLogger(__package__.partition(".")[0]).setLevel(level)
    transformers.utils.logging.set_verbosity(args.get_process_log_level())


def run_checked(
    task: Task, model_args: BaseModelArguments, data_args: BaseDataArguments, args: TrainingArguments
) -> dict:
    """`run` with checked arguments, in a locked folder."""
    runs = plan_runs(task, model_args, data_args, args)
    given = read_examples(task, data_args, needed_splits(args))
    # Each run is copied, so that its model is freed before the next one is trained.
    measured = [run_model(replace(run, given=given)) if run.finished is None else run.finished for run in runs]
    if not task.has_results:
        return measured[0]
    results = [{"seed": run.args.seed, "fold": run.fold} | metrics for run, metrics in zip(runs, measured)]
    return write_results(results, args)


def plan_runs(
    task: Task, model_args: BaseModelArguments, data_args: BaseDataArguments, args: TrainingArguments
) -> list[Run]:
    """The runs of a call, each with the metrics of an earlier call that finished it, or the checkpoint to resume from.

    Raises:
        ValueError: an output folder holds files that the call must not replace, or another training.
        FileNotFoundError: the requested checkpoint does not exist.
    """
    runs = [Run(task, model_args, data_args, own, fold) for fold, own in plan_models(data_args, args)]
    for run in runs:
        run.arguments = run_arguments(task.name, model_args, data_args, run.args)
    for run in runs if data_args.seeds or data_args.cross_validation else []:
        run.finished = finished_metrics(run.arguments, run.args)
    for run in runs:
        if run.finished is None:
            run.checkpoint = checkpoint_for_run(run.arguments, run.args)
    return runs


def read_examples(task: Task, data_args: BaseDataArguments, needed: dict[str, bool]) -> dict:
    """The examples of the needed splits, and the training examples from which other splits are taken; those of several
    files by the split and the file, validation_NAME."""
    splits = [split for split, need in needed.items() if need]
    if any(held_out(vars(data_args), split) for split in splits):
        splits = ["train", *(split for split in splits if split != "train")]
    examples: dict[str, Any] = {}
    for split in splits:
        found = task.read_split(data_args, split)
        sets = {f"{split}_{name}": each for name, each in found.items()} if isinstance(found, dict) else {split: found}
        examples |= sets
    return examples


def run_model(run: Run) -> dict[str, float | str]:
    """Trains and measures one model in its output folder; returns its metrics by name."""
    set_seed(run.args.seed)
    make(run)
    note_run(run.arguments, run.args)
    metrics = train(run) if run.args.do_train else {}
    for split, prefix in PREFIXES.items():
        for name in run.splits if needed_splits(run.args)[split] else []:
            if name == split or name.startswith(f"{split}_"):
                own = name.replace(split, prefix, 1)
                scores = run.task.evaluate(run, name, own)
                metrics |= report(run.trainer, own, scores | {f"{own}_samples": len(run.splits[name])})
    if run.args.push_to_hub:
        run.trainer.push_to_hub()
    return metrics


def make(run: Run) -> None:
    """Makes the tokenizers, model, encoded examples and trainer of a run."""
    task = run.task
    make_tokenizers(run)
    run.model = task.load_model(run)
    run.splits = {split: task.encode(run, split) for split in run.examples}
    run.trainer = task.make_trainer(run)
    run.trainer.add_callback(PlanCheck(run.data_args.average_last_checkpoints))


def make_tokenizers(run: Run) -> None:
    """Chooses the examples of a run, then trains tokenizers on them or loads the named ones."""
    run.examples = run.task.choose_examples(run)
    tokenizer = run.checkpoint or run.model_args.tokenizer_name or run.model_args.model_name_or_path
    run.tokenizers = run.task.load_tokenizers(run, tokenizer) if tokenizer else run.task.make_tokenizers(run)


def train(run: Run) -> dict:
    """Trains and saves the model of a run, and reports the training metrics."""
    result = run.trainer.train(resume_from_checkpoint=run.checkpoint)
    if run.data_args.average_last_checkpoints:
        has_stopped_early = run.trainer.state.global_step < run.trainer.state.max_steps
        count = run.data_args.average_last_checkpoints
        run.trainer.take_if_better("the mean", lambda: load_average(run.model, run.args, count, has_stopped_early))
    run.trainer.save_model()
    metrics = result.metrics | {"train_samples": len(run.splits["train"])}
    report(run.trainer, "train", metrics)
    run.trainer.save_state()
    return metrics


def load_average(model: PreTrainedModel, args: TrainingArguments, count: int, has_stopped_early: bool = False) -> None:
    """Loads the mean weights of the last `count` complete checkpoints into the model. If the training stopped early,
    fewer checkpoints are enough.

    Raises:
        ValueError: there are none, or fewer although the training did not stop early.
    """
    # One process may still be writing the last checkpoint.
    PartialState().wait_for_everyone()
    checkpoints = list(islice(complete_checkpoints(args.output_dir), count))[::-1]
    if len(checkpoints) < count and not (has_stopped_early and checkpoints):
        raise ValueError(
            f"--average_last_checkpoints {count}: {args.output_dir} holds {len(checkpoints)} complete checkpoints. "
            "The training is finished: repeat the command with a smaller number."
        )
    folder = Path(args.output_dir) / f"{TEMPORARY}average" / "model"
    with args.main_process_first(desc="averaging checkpoints"):
        if args.should_save:
            average_checkpoints(checkpoints, folder, overwrite=True)
    # If the model is sharded, one process loads all weights and each process takes its part.
    mean, is_main = {}, PartialState().is_main_process
    if is_main:
        with class_before_sharding(model):
            mean = type(model).from_pretrained(folder, dtype=torch.float32).state_dict()
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=PartialState().num_processes > 1)
    set_model_state_dict(model, mean, options=options)
    PartialState().wait_for_everyone()
    if args.should_save:
        shutil.rmtree(folder.parent)
    logger.info("Mean of %s", ", ".join(path.name for path in checkpoints))


def report(trainer: Trainer, split: str, metrics: dict) -> dict:
    """Logs the metrics of a training or an evaluation, saves them in the output folder and returns them."""
    trainer.log_metrics(split, metrics)
    if trainer.is_world_process_zero():
        note_metrics(Path(trainer.args.output_dir), split, metrics)
    return metrics


def run_process(main: Callable[[], object]) -> None:
    """Runs a script's `main` as the whole process, and leaves the process group, if any, before exit. Errors that a
    user can fix end it with one line.

    The group's threads end with its last user, a model in a reference cycle. At interpreter shutdown that would be too
    late: a thread that then needs the interpreter aborts the process.
    """
    gc.freeze()  # what is imported stays: full collections need not go through it
    with one_line_errors():
        main()
    gc.collect()
    PartialState().destroy_process_group()
