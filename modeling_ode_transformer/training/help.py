# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The help of `ode-transformer train`. The short one is kept as text, so that it comes without torch:

python -m modeling_ode_transformer.training.help writes it anew
"""

import textwrap
from argparse import SUPPRESS, Action, ArgumentParser, HelpFormatter
from collections.abc import Collection
from functools import partial
from pathlib import Path

from transformers import HfArgumentParser

from . import TASKS, find_task
from .presets import PRESETS
from .recipe_files import recipe_names
from .task import Task


HELP_FOLDER = Path(__file__).with_name("help_texts")
# The options of Trainer that the short help lists, of each task those that it has.
COMMON = {
    *("output_dir", "do_train", "do_eval", "do_predict", "num_train_epochs", "max_steps", "max_tokens_per_batch"),
    *("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps", "learning_rate"),
    *("lr_scheduler_type", "warmup_steps", "learning_rate_ratio", "label_smoothing_factor", "weight_decay", "bf16"),
    *("tf32", "use_cpu", "optimize_for_cpu", "seed", "eval_strategy", "eval_steps", "save_strategy", "save_steps"),
    *("save_total_limit", "load_best_model_at_end", "metric_for_best_model", "predict_with_generate"),
    "auto_find_batch_size",
    *("generation_num_beams", "log_coefficients", "logging_steps", "report_to", "resume_from_checkpoint"),
}
ALIASES = ("--train", "--validation", "--test", "--import")
DESCRIPTION = """\
Trains a model and evaluates it on validation and test data. The model, its tokenizer, metrics and outputs are
written to --output_dir, which from_pretrained opens. To continue a run that was stopped, repeat the command.

  --recipe NAME         set of options, which the command line overrides: one of
                        {recipes},
                        or a JSON file whose name ends in .json
  --preset NAME         options for model and training, used without a recipe and overridden by the command line;
                        default: chosen by the number of training examples, and shown in the log:
                        {presets};
                        or none, for the defaults below
  --help                this text
  --help_all            this text with all options of transformers' TrainingArguments
"""


# What stands for the value of an option: by its type, else the last word of its name, if that says what it is.
TYPES = {"int": "N", "float": "NUMBER", "string_to_bool": "BOOL"}
WORDS = {name: name.upper() for name in ("column", "dir", "file", "lang", "name", "path", "type")}
WORDS |= {"language": "LANG", "schemes": "FILE"}


def help_text(task: Task, common: Collection[str] | None = COMMON) -> str:
    """The options of a task with their defaults; of those of `Trainer` the ones in `common`, or all (None)."""
    command = next(name for name in TASKS if find_task(name) is task)
    usage = f"ode-transformer train {command} --train FILE --validation FILE --output_dir FOLDER [OPTIONS]"
    parser = ArgumentParser(usage=usage, add_help=False, formatter_class=partial(HelpFormatter, width=110))
    groups = {
        "data": task.data_arguments,
        "model and tokenizer": task.model_arguments,
        "training": task.training_arguments,
    }
    for title, arguments in groups.items():
        group, listed = parser.add_argument_group(title), set()
        for action in HfArgumentParser(arguments, add_help=False)._actions:
            is_common = common is None or title != "training" or action.dest in common
            if action.dest not in listed and is_common and action.help != SUPPRESS:
                listed.add(action.dest)
                add_option(group, action)
    text = parser.format_help()
    recipes = textwrap.indent(textwrap.fill(", ".join(recipe_names()), 84), " " * 24).strip()
    presets = ", ".join(f"{preset.name} (from {preset.least:,})" for preset in PRESETS[task.presets])
    return text.replace("\n\n", f"\n\n{DESCRIPTION.format(recipes=recipes, presets=presets)}\n", 1)


def add_option(group, action: Action) -> None:
    """Adds an option of a parser to a group of another, without its spelling with hyphens and with its default."""
    names = [name for name in action.option_strings if name == f"--{action.dest}" or "_" not in action.dest]
    names += [name for name in action.option_strings if name in ALIASES]
    help, default = (action.help or "").strip(), getattr(action.default, "value", action.default)
    metavar = TYPES.get(getattr(action.type, "__name__", "")) or WORDS.get(action.dest.rpartition("_")[2], "VALUE")
    if action.nargs == "?":
        metavar, default = "BOOL", str(default).lower()
    elif action.choices and len(list(action.choices)) < 9:
        metavar = "{" + ",".join(map(str, action.choices)) + "}"
    if default not in (None, SUPPRESS, []):
        help = f"{help if help.endswith('..') else help.removesuffix('.')}; default: {default}"
    group.add_argument(*names, nargs=action.nargs, metavar=metavar, help=help)


if __name__ == "__main__":
    HELP_FOLDER.mkdir(exist_ok=True)
    for name in TASKS:
        (HELP_FOLDER / f"{name}.txt").write_text(help_text(find_task(name)), encoding="utf-8")
