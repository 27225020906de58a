# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The arguments that all tasks share, and how they are parsed: recipes and `--config_overrides`."""

from argparse import SUPPRESS
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from transformers import EarlyStoppingCallback, HfArgumentParser, TrainerCallback, TrainingArguments

from ..options import check_ranges, declarations, option
from ..own_schemes import import_schemes
from ..text_files import parse_overrides
from .recipe_files import read_recipe, recipe_file, recipe_of


# What options that Trainer declares affect (`options.AFFECTS`), by patterns of their names; all others: the training.
AFFECTED_BY_TRAINER = {
    "call": r"output_dir|resume_from_checkpoint|run_name|project|report_to|"
    r"trackio_\w+|disable_tqdm|log_\w+|logging_\w+|save_total_limit|save_on_each_node|enable_jit_checkpoint|"
    r"dataloader_(num_workers|pin_memory|persistent_workers|prefetch_factor|multiprocessing_context)|"
    r"debug|skip_memory_metrics|local_rank|torch_empty_cache_steps",
    # Its length, its machine and how it is watched: a checkpoint may be continued with other values.
    "result": r"num_train_epochs|max_steps|do_\w+|use_\w+|tf32|\w+_full_eval|full_determinism|torch_compile\w*|"
    r"(gradient|activation)_checkpointing\w*|liger_\w+|ddp_\w+|fsdp\w*|deepspeed|push_to_hub|hub_\w+|"
    r"parallelism_config|eval_\w+|per_device_eval_batch_size|prediction_loss_only|batch_eval_metrics|include_\w+|"
    r"predict_with_generate|generation_\w+|save_\w+|load_best_model_at_end|greater_is_better|ignore_data_skip",
}
# The ranges of Trainer's options.
RANGES = {
    **{f"per_device_{split}_batch_size": {"least": 1} for split in ("train", "eval")},
    **{name: {"least": 1} for name in ("gradient_accumulation_steps", "generation_num_beams")},
    **{name: {"least": 0} for name in ("learning_rate", "weight_decay", "warmup_steps")},
    "label_smoothing_factor": {"least": 0, "below": 1},
    **{name: {"above": 0} for name in ("num_train_epochs", "eval_steps", "save_steps", "logging_steps")},
}


@dataclass
class BaseModelArguments:
    """The model: a checkpoint, or a configuration to start from."""

    model_name_or_path: str | None = option("Checkpoint to start from (folder or Hub name); default: a new model.")
    config_name: str | None = option(
        "Configuration of a new model: folder, JSON file, Hub name, or a model type of transformers, such as llama."
    )
    model_type: str = option("Architecture of a new model, unless --config_name sets it.", "ode_transformer")
    config_overrides: str | None = option(
        "Configuration fields of a new model, such as 'd_model=256,dropout=0.2', or a JSON object. "
        "On the command line they are merged into a recipe's, unless --config_name names another model; '' drops the "
        "recipe's."
    )
    import_schemes: list[str] | None = option(
        "Python files that define your own coefficients and schemes, for use in --config_overrides. "
        "Opening the model needs them, too.",
        aliases=["--import"],
    )
    model_revision: str = option("Branch, tag or commit of a Hub checkpoint.", "main")
    trust_remote_code: bool = option("Run modeling code stored in the checkpoint.", False, affects="call")
    tokenizer_name: str | None = option("Tokenizer (folder or Hub name); default: the checkpoint's, or a new one.")

    @property
    def hub_options(self) -> dict:
        """Of what `from_pretrained` opens."""
        return {"revision": self.model_revision, "trust_remote_code": self.trust_remote_code}

    def __post_init__(self):
        for path in self.import_schemes or []:
            import_schemes(path)
        if self.model_name_or_path and (self.config_name or self.config_overrides):
            raise ValueError(
                f"--model_name_or_path {self.model_name_or_path} brings its own configuration: leave out "
                "--config_name and --config_overrides. To start from a new model, leave out --model_name_or_path."
            )


@dataclass
class BaseDataArguments:
    """Where examples come from, how many are used, and what happens to the output folder."""

    dataset_name: str | None = option("Name of a dataset for the datasets library.", affects="files")
    dataset_config_name: str | None = option("Configuration name of that dataset.", affects="files")
    max_train_samples: int | None = option(
        "Use only the first N training texts of each file; default: all.", affects="examples", least=1
    )
    max_eval_samples: int | None = option(
        "Use only the first N validation texts; default: all.", affects="validation", least=1
    )
    max_predict_samples: int | None = option("Use only the first N test texts; default: all.", affects="test", least=1)
    early_stopping_patience: int | None = option(
        "Stop after this many evaluations in which --metric_for_best_model did not improve; default: "
        "train to the end.",
        affects="result",
        least=1,
    )
    overwrite_output_dir: bool = option(
        "Start from scratch in an output_dir that is not empty; old checkpoints are deleted.", False, affects="call"
    )

    # Pairs of groups of them: one given on the command line takes the place of a recipe's other group.
    ALTERNATIVES: ClassVar[tuple[tuple[set[str], set[str]], ...]] = ()
    # Some tasks have these as arguments; for others they are as here. Annotated, they would come first in --help.
    seeds = cross_validation = cast(Any, None)
    average_last_checkpoints = 0

    def __post_init__(self):
        check_ranges(vars(self), declarations(type(self)))

    def callbacks(self) -> list[TrainerCallback]:
        """Those of `Trainer` that the arguments ask for."""
        patience = self.early_stopping_patience
        return [] if patience is None else [EarlyStoppingCallback(patience)]

    def files(self, split: str) -> list[Path]:
        """The files that "train", "validation" or "test" is read from, in the order of the arguments."""
        declared = declarations(type(self))
        names = [
            each for each in declared if each.startswith(f"{split}_") and declared[each].get("affects") == "files"
        ]
        return [Path(path) for name in names for path in self.named(name)]

    def named(self, option: str) -> list[str]:
        """The files that an option names; a recipe may give a single one as text."""
        value = getattr(self, option) or []
        return [value] if isinstance(value, str) else value

    def max_samples(self, split: str) -> int | None:
        """How many texts of "train", "validation" or "test" to use; None: all."""
        names = {"train": "max_train_samples", "validation": "max_eval_samples", "test": "max_predict_samples"}
        return getattr(self, names[split])


@dataclass
class PreparedDataArguments(BaseDataArguments):
    """Of tasks whose data are prepared once."""

    prepared_dir: str | None = option(
        "Folder for prepared data, which later runs reuse: tokenizers and encoded texts. Each is in a "
        "folder named by a hash of its inputs; default: in the cache of the datasets library.",
        affects="call",
    )


# The arguments that hold fields by name. Those of the command line are merged into a recipe's or a preset's.
MERGED = ("config_overrides", "tokenizer_options", "wrap")
# What a call can be told to do.
WORKS = ("do_train", "do_eval", "do_predict")


def parse_with_recipe(
    dataclass_types: tuple[type, ...],
    argv: list[str],
    notes: list[str] | None = None,
    preset: Callable[[dict], tuple[dict, list[str]]] | None = None,
) -> tuple:
    """Arguments from the command line, over those of a recipe: `--recipe NAME`, or a first argument that ends in
    `.json`.

    The command line wins. Only its values of `MERGED` are merged over the recipe's, field by field; a model, files or
    a dataset that it names take the place of the recipe's (`without_replaced`). What the machine cannot do of a
    recipe's precision is left out.

    Args:
        dataclass_types: The classes of the arguments.
        argv: The command line.
        notes: Gets what is to be logged once logging is set up.
        preset: Takes the arguments that the command line gives; returns those that take the place of a recipe where
            there is none, and lines for the log.

    Raises:
        ValueError: the recipe is not JSON, holds unknown arguments or gives one that runs code; there is no recipe of
            that name; an argument has a value that it cannot have.
        FileNotFoundError: there is no such file.
    """
    notes = [] if notes is None else notes
    declared = declarations(*dataclass_types)
    name, argv = recipe_of(argv)
    given, recipe = given_arguments(dataclass_types, argv), {}
    if name is not None:
        recipe = read_recipe(recipe_file(name), declared.keys())
        alternatives = [pair for each in dataclass_types for pair in getattr(each, "ALTERNATIVES", ())]
        recipe = without_replaced(recipe, given, declared, alternatives)
    check_ranges(recipe | given, {name: RANGES.get(name, {}) | own for name, own in declared.items()})
    if name is None and preset:
        recipe, lines = preset(given)
        notes += lines
    recipe = fit_device(recipe, given, notes)
    parser = HfArgumentParser(dataclass_types, add_help=False)
    parser.set_defaults(**recipe)
    parsed = parser.parse_args_into_dataclasses(args=argv)
    for arguments, name in product(parsed, MERGED):
        if overrides := getattr(arguments, name, None):
            setattr(arguments, name, parse_overrides(recipe.get(name)) | parse_overrides(overrides))
    return parsed


def given_arguments(dataclass_types: tuple[type, ...], argv: list[str]) -> dict[str, Any]:
    """The arguments that the command line itself gives, by name."""
    parser = HfArgumentParser(dataclass_types, add_help=False)
    for action in parser._actions:
        action.default = SUPPRESS
    return vars(parser.parse_known_args(argv)[0])


def replaced_by_model(recipe: dict, given: dict) -> set[str]:
    """The arguments of a recipe or preset that describe another model than the one that the command line names."""
    if given.get("model_name_or_path"):
        return {"config_name", "config_overrides", "wrap"}
    is_another = given.get("config_name") not in (None, recipe.get("config_name"))
    return {"model_name_or_path", "config_overrides"} if is_another else set()


def without_replaced(
    recipe: dict, given: dict, declared: Mapping[str, Mapping], alternatives: list[tuple[set[str], set[str]]]
) -> dict:
    """A recipe without the model, the files or the configuration of its dataset, in whose place the command line names
    others: another dataset replaces all files, and files those of their `ALTERNATIVES`."""
    replaced = replaced_by_model(recipe, given)
    if given.get("dataset_name") not in (None, recipe.get("dataset_name")):
        replaced |= {name for name, each in declared.items() if each.get("affects") == "files"}
    for pair in alternatives:
        for one, other in (pair, pair[::-1]):
            replaced |= other if one & given.keys() else set()
    return {name: value for name, value in recipe.items() if name not in replaced}


def fit_device(recipe: dict, given: dict, notes: list[str]) -> dict:
    """A recipe, or a preset, with only that precision which the machine computes fast: bf16, fp16 and TF32 of a GPU,
    bf16 of some CPUs (`has_fast_bf16`).

    Args:
        recipe: Arguments by name.
        given: Those of the command line, which are not touched; its fp16 takes the place of a recipe's bf16.
        notes: Gets a line about what is left out.

    Raises:
        ValueError: the command line asks for fp16 on a CPU, where accelerate would train in float32.
    """
    has_gpu = torch.accelerator.is_available()
    uses_gpu = has_gpu and not given.get("use_cpu", recipe.get("use_cpu"))
    if given.get("fp16") and not uses_gpu:
        raise ValueError("--fp16 needs a GPU: leave it out, or give --bf16.")
    is_cuda = uses_gpu and torch.cuda.is_available()
    has_bf16 = torch.cuda.is_bf16_supported(False) if is_cuda else uses_gpu or has_fast_bf16()
    can = {
        "bf16": has_bf16 and not given.get("fp16"),
        "fp16": uses_gpu,
        "tf32": is_cuda and torch.cuda.get_device_capability() >= (8, 0),
    }
    left_out = [name for name, value in can.items() if recipe.get(name) and not value and name not in given]
    if left_out:
        notes.append(f"Training on the {'GPU' if uses_gpu else 'CPU'} without {' and '.join(left_out)}")
    # Trainer takes bf16 on a CPU only if it is told of the CPU.
    cpu = {} if has_gpu else {"use_cpu": True}
    return cpu | {name: value for name, value in recipe.items() if name not in left_out}


def has_fast_bf16() -> bool:
    """Whether the CPU multiplies bfloat16 faster than float32: by AMX, or by AVX512_BF16 if it is not Intel's.

    Intel's AVX512_BF16 is slower than float32: there, AMX is the fast one, which some virtual machines hide.
    """
    can = torch.cpu.get_capabilities()
    # The name is missing in torch 2.11: there, AVX512_BF16 counts as fast.
    return can.get("amx_bf16", False) or (can.get("avx512_bf16", False) and "Intel" not in can.get("cpu_name", ""))


def check_run(model_args: BaseModelArguments, args: TrainingArguments) -> None:
    """Raises a ValueError if a call is to do nothing, or needs a model and there is none."""
    if not (args.do_train or args.do_eval or args.do_predict):
        *names, last = (f"--{name}" for name in WORKS)
        raise ValueError(f"Nothing to do: give {', '.join(names)} or {last}.")
    if not args.do_train and not model_args.model_name_or_path:
        raise ValueError("Without --do_train there is no model to run: give --model_name_or_path.")


def needed_splits(args: TrainingArguments) -> dict[str, bool]:
    """Which of "train", "validation" and "test" a call works on."""
    return {"train": args.do_train, "validation": args.do_eval, "test": args.do_predict}
