# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""What the training scripts beside it share: arguments and recipes, texts, checkpoints."""

import gc
import json
import logging
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import date, datetime
from pathlib import Path
from typing import ClassVar

import datasets
import torch
import transformers
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import (
    AutoConfig,
    EarlyStoppingCallback,
    HfArgumentParser,
    PreTrainedConfig,
    PreTrainedModel,
    TrainerCallback,
    TrainingArguments,
)

import modeling_ode_transformer  # makes AutoConfig and the AutoModel classes know it
from modeling_ode_transformer.checkpoints import (
    OUTPUTS,
    TARGET_TOKENIZER,
    check_resumable,
    incomplete_reason,
    last_complete_checkpoint,
    numbered_checkpoints,
)
from modeling_ode_transformer.generation_ode_transformer import position_limit  # noqa: F401  (taken from here)
from modeling_ode_transformer.metrics.perplexity import split_words
from modeling_ode_transformer.model_card import (
    ARGUMENTS,
    PREFIXES,
    RESULTS,
    held_out,
    split_sources,
    training_arguments,
    versions,
)
from modeling_ode_transformer.text_files import read_json, read_lines


logger = logging.getLogger(__name__)

# What an evaluation in a folder of its own leaves there: of which model, and on what.
EVALUATION = "evaluation.json"
# What --smoke lays over every recipe.
SMOKE_VALUES = Path(__file__).parent / "smoke.json"


@dataclass
class BaseModelArguments:
    """The model: a checkpoint, or a configuration to start from."""

    model_name_or_path: str | None = field(
        default=None, metadata={"help": "Checkpoint to start from (folder or Hub name); none: a new model."}
    )
    config_name: str | None = field(
        default=None, metadata={"help": "Configuration of a new model: folder, JSON file or Hub name."}
    )
    model_type: str = field(
        default="ode_transformer", metadata={"help": "Architecture of a new model where --config_name does not say."}
    )
    config_overrides: str | None = field(
        default=None,
        metadata={
            "help": "Fields of a new model, as 'd_model=256,encoder_solver=rk4' or as a JSON object; on the command "
            "line they change and add to a recipe's, and '' drops those."
        },
    )
    model_revision: str = field(default="main", metadata={"help": "Branch, tag or commit of a Hub checkpoint."})
    trust_remote_code: bool = field(default=False, metadata={"help": "Run modelling code stored in the checkpoint."})
    tokenizer_name: str | None = field(
        default=None, metadata={"help": "Tokenizer (folder or Hub name); none: the checkpoint's, or a new one."}
    )

    @property
    def hub_options(self) -> dict:
        """Of what `from_pretrained` opens."""
        return {"revision": self.model_revision, "trust_remote_code": self.trust_remote_code}

    def __post_init__(self):
        if self.model_name_or_path and (self.config_name or self.config_overrides):
            raise ValueError(
                f"--model_name_or_path {self.model_name_or_path} brings its own configuration: leave out "
                "--config_name and --config_overrides (drop a recipe's with --config_overrides ''), or leave out "
                "--model_name_or_path to start from a new model."
            )


@dataclass
class BaseDataArguments:
    """Where examples come from, how many are used, and what happens to the output folder."""

    dataset_name: str | None = field(default=None, metadata={"help": "Name of a dataset of the datasets library."})
    dataset_config_name: str | None = field(default=None, metadata={"help": "Configuration name of that dataset."})
    max_train_samples: int | None = field(default=None, metadata={"help": "Use only so many first training texts."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Use only so many first validation texts."})
    max_predict_samples: int | None = field(default=None, metadata={"help": "Use only so many first test texts."})
    early_stopping_patience: int | None = field(
        default=None, metadata={"help": "Stop after so many evaluations without a new best (--metric_for_best_model)."}
    )
    overwrite_output_dir: bool = field(
        default=False, metadata={"help": "Start anew in an output_dir that is not empty; old checkpoints are deleted."}
    )
    smoke: bool = field(
        default=False,
        metadata={
            "help": f"Try the whole run in a minute on CPU cores: the values of {SMOKE_VALUES.name} in place of the "
            "recipe's, and generated examples where the command line names no data."
        },
    )

    # Arguments that say where examples come from. The smoke variant of a recipe lacks its own.
    SOURCES: ClassVar[tuple[str, ...]] = ("dataset_name", "dataset_config_name")
    # Pairs of groups of them: one given on the command line takes the place of a recipe's other group.
    ALTERNATIVES: ClassVar[tuple[tuple[set[str], set[str]], ...]] = ()
    SMOKE_VALUES: ClassVar[Path] = SMOKE_VALUES

    def __post_init__(self):
        for name in ("max_train_samples", "max_eval_samples", "max_predict_samples"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"--{name} {getattr(self, name)} must be at least 1; leave it out to use all.")
        if self.early_stopping_patience is not None and self.early_stopping_patience < 1:
            raise ValueError(
                f"--early_stopping_patience {self.early_stopping_patience} must be at least 1; leave it out to train "
                "to the end."
            )

    def check_early_stopping(self, args: TrainingArguments) -> None:
        """Raises a ValueError if a training is to stop early, but nothing says by what, or when that is measured."""
        needed = {"--metric_for_best_model": args.metric_for_best_model is None}
        needed["--eval_strategy steps or epoch"] = args.eval_strategy == "no"
        if self.early_stopping_patience is not None and args.do_train and any(needed.values()):
            missing = " and ".join(name for name, is_missing in needed.items() if is_missing)
            raise ValueError(f"--early_stopping_patience {self.early_stopping_patience} needs {missing}.")

    def callbacks(self) -> list[TrainerCallback]:
        """Those of `Trainer` that the arguments ask for."""
        patience = self.early_stopping_patience
        return [] if patience is None else [EarlyStoppingCallback(patience)]

    def max_samples(self, split: str) -> int | None:
        """How many texts of "train", "validation" or "test" to use; None: all."""
        limits = {
            "train": self.max_train_samples,
            "validation": self.max_eval_samples,
            "test": self.max_predict_samples,
        }
        return limits[split]


def parse_with_recipe(dataclass_types: tuple[type, ...], argv: list[str]) -> tuple:
    """Arguments from the command line; a first argument that ends in `.json` is a file of defaults for them.

    The command line wins. Only its `config_overrides` are merged over the recipe's, field by field; a dataset that it
    names takes the place of the recipe's files, and sources that of their `ALTERNATIVES` there. With `--smoke` the
    recipe is its `smoke_variant`.
    """
    parser = HfArgumentParser(dataclass_types)
    known = {known.name for arguments in dataclass_types for known in fields(arguments)}
    recipe = {}
    if argv and argv[0].endswith(".json"):
        recipe = read_json(argv[0])
        unknown = sorted(set(recipe) - known)
        if unknown:
            raise ValueError(f"{argv[0]} holds unknown arguments: {', '.join(unknown)} (--help lists the known ones).")
        argv = argv[1:]
    sources = {name for arguments in dataclass_types for name in getattr(arguments, "SOURCES", ())}
    alternatives = [pair for arguments in dataclass_types for pair in getattr(arguments, "ALTERNATIVES", ())]
    absent = object()
    parser.set_defaults(**recipe | dict.fromkeys(sources, absent))
    asked = vars(parser.parse_known_args(argv)[0])
    given = {name: asked[name] for name in sources if asked[name] is not absent}
    recipe = without_superseded_sources(recipe, given, alternatives)
    parser.set_defaults(**dict.fromkeys(sources) | recipe)
    if asked.get("smoke"):
        (smoke_values,) = {each.SMOKE_VALUES for each in dataclass_types if hasattr(each, "SMOKE_VALUES")}
        recipe = smoke_variant(recipe, known, sources, smoke_values)
        parser.set_defaults(**recipe)
    parsed = parser.parse_args_into_dataclasses(args=argv)
    for arguments in parsed:
        given = getattr(arguments, "config_overrides", None)
        if given:
            arguments.config_overrides = parse_overrides(recipe.get("config_overrides")) | parse_overrides(given)
    return parsed


def without_superseded_sources(recipe: dict, given: dict, alternatives: list[tuple[set[str], set[str]]]) -> dict:
    """A recipe without the sources of examples in whose place the command line gives others."""
    superseded = set()
    if "dataset_name" in given:
        superseded |= {name for name in recipe if DATA_FILES.fullmatch(name)}
        if given["dataset_name"] != recipe.get("dataset_name"):
            superseded.add("dataset_config_name")
    for one, other in alternatives:
        superseded |= (other if one & given.keys() else set()) | (one if other & given.keys() else set())
    return {name: value for name, value in recipe.items() if name not in superseded - given.keys()}


def smoke_variant(recipe: dict, known: set[str], sources: set[str], smoke_values: Path = SMOKE_VALUES) -> dict:
    """A recipe with the sizes of a smoke run, without its data, and with another output folder.

    Of its model it keeps everything but the sizes: solver, history, positions, dropout.

    Args:
        recipe: Arguments by name.
        known: The arguments that the script has; those of a smoke run that it lacks are left out.
        sources: The arguments that say where examples come from.
        smoke_values: The file that holds the sizes.
    """
    values = {name: value for name, value in read_json(smoke_values).items() if name in known}
    values["config_overrides"] = parse_overrides(recipe.get("config_overrides")) | values["config_overrides"]
    if "output_dir" in recipe:
        values["output_dir"] = f"{recipe['output_dir']}_smoke"
    return recipe | dict.fromkeys(sources) | values


def write_smoke_data(data_args: BaseDataArguments, args: TrainingArguments, write: Callable[[Path], dict]) -> None:
    """In a smoke run that names no data, has examples written and points the arguments to them.

    `write` takes a folder, writes files into it and returns the arguments that read them, by name.
    """
    if not data_args.smoke or any(getattr(data_args, name) for name in data_args.SOURCES):
        return
    folder = Path(args.output_dir) / "smoke_data"
    values = [None]
    if PartialState().is_main_process:
        folder.mkdir(parents=True, exist_ok=True)
        values = [write(folder)]
    for name, value in broadcast_object_list(values)[0].items():
        setattr(data_args, name, value)


def parse_overrides(text: str | dict | None) -> dict:
    """`{"d_model": 256, "encoder_solver": "rk4"}` from that mapping, its JSON, or "d_model=256,encoder_solver=rk4"."""
    if not text or isinstance(text, dict):
        return dict(text or {})
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"Cannot read {text!r}: it is not a JSON object ({error}).") from error
    overrides = {}
    for item in text.split(","):
        name, equals, value = item.partition("=")
        if not equals:
            raise ValueError(f"Cannot read {item!r} in {text!r}: write name=value,name=value or a JSON object.")
        try:
            overrides[name.strip()] = json.loads(value, parse_constant=str)
        except json.JSONDecodeError:
            value = value.strip()
            words = {"None": None, "True": True, "False": False, "TRUE": True, "FALSE": False}
            overrides[name.strip()] = words.get(value, value)
    return overrides


def config_with_overrides(args: BaseModelArguments, values_of_tokenizer: dict) -> PreTrainedConfig:
    """Configuration of a new model: `config_name`, then sizes and ids of the tokenizer, then `config_overrides`."""
    values = {"model_type": args.model_type}
    if args.config_name:
        values |= PreTrainedConfig.get_config_dict(args.config_name)[0]
    overrides = parse_overrides(args.config_overrides)
    known = AutoConfig.for_model(values["model_type"])
    unknown = sorted(name for name in overrides if not hasattr(known, name))
    if unknown:
        raise ValueError(
            f"--config_overrides: configurations of type {values['model_type']} have no {', '.join(unknown)}. "
            f"They have: {', '.join(sorted(known.to_dict()))}."
        )
    return AutoConfig.for_model(**(values | values_of_tokenizer | overrides))


def check_model(args: BaseModelArguments, **values) -> PreTrainedConfig:
    """Opens the configuration of the checkpoint, or makes that of the new model, with `values`, and returns it:
    mistakes come to light before anything is written."""
    if args.model_name_or_path:
        return AutoConfig.from_pretrained(args.model_name_or_path, **args.hub_options)
    return config_with_overrides(args, values)


def load_checkpoint(auto_class: type, args: BaseModelArguments) -> PreTrainedModel:
    """The checkpoint's model in float32: in training, the half precision of saved weights would lose small updates
    (--bf16 and --fp16 autocast)."""
    return auto_class.from_pretrained(args.model_name_or_path, dtype=torch.float32, **args.hub_options)


def check_run(
    model_args: BaseModelArguments, data_args: BaseDataArguments, args: TrainingArguments, **others: bool
) -> None:
    """ValueError if there is nothing to do, `others` being what a script can do besides, by argument; if it takes a
    model and there is none; or if a training is to stop early and nothing says by what."""
    work = {"do_train": args.do_train, "do_eval": args.do_eval, "do_predict": args.do_predict} | others
    if not any(work.values()):
        *names, last = (f"--{name}" for name in work)
        raise ValueError(f"Nothing to do: give {', '.join(names)} or {last}.")
    if not args.do_train and not model_args.model_name_or_path:
        raise ValueError("Without --do_train there must be a model to run: give --model_name_or_path.")
    data_args.check_early_stopping(args)


def word_level_tokenizer(
    lines: Iterable[str],
    special_tokens: Mapping[str, str],
    vocab_size: int | None = None,
    min_frequency: int = 1,
    lowercase: bool = False,
) -> Tokenizer:
    """A tokenizer of whole words, separated by white space: the special tokens in their order, then the words of the
    lines, the most frequent first, of equally frequent ones the alphabet's first.

    Args:
        lines: Texts.
        special_tokens: By the names that transformers has for them; `unk_token` is among them.
        vocab_size: Most words, special ones included; None: all.
        min_frequency: How often a word has to occur.
        lowercase: Whether words are spelled in lower case.

    Raises:
        ValueError: `vocab_size` has no room for a word.
    """
    special = list(special_tokens.values())
    if vocab_size is not None and vocab_size <= len(special):
        raise ValueError(f"--vocab_size {vocab_size} leaves no room for words beside {', '.join(special)}.")
    normalizer = Lowercase() if lowercase else None
    texts = map(normalizer.normalize_str, lines) if normalizer else lines
    counts = Counter(word for text in texts for word in split_words(text))
    counts = {word: count for word, count in counts.items() if count >= min_frequency and word not in special}
    words = sorted(counts, key=lambda word: (-counts[word], word))
    vocab = {word: i for i, word in enumerate([*special, *words][:vocab_size])}
    tokenizer = Tokenizer(WordLevel(vocab, unk_token=special_tokens["unk_token"]))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    if normalizer:
        tokenizer.normalizer = normalizer
    return tokenizer


def read_json_lines(path: str) -> list:
    """What a file has in its lines, JSON each.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a line is not JSON.
    """
    records = []
    for number, line in enumerate(read_lines(path), 1):
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {number}: not a JSON object ({error}).") from error
    return records


def read_dataset(args: BaseDataArguments, split: str, needed: bool = True) -> datasets.Dataset | None:
    """Split "train", "validation" or "test" of `dataset_name`; if there is no such split, a ValueError where it is
    needed, else None."""
    splits = datasets.load_dataset(args.dataset_name, args.dataset_config_name)
    if split not in splits:
        if not needed:
            return None
        raise ValueError(f"{args.dataset_name} has no split {split!r}, only {', '.join(splits)}.")
    return splits[split]


def run_process(main: Callable[[], object]) -> None:
    """Runs a script's `main` as a process of its own, which leaves its process group, if any, before it exits.

    The group's threads end with its last user, a model in a cycle of references. If that were the interpreter's own
    end, a thread that needed the interpreter then would abort the process.
    """
    main()
    gc.collect()
    PartialState().destroy_process_group()


def set_up_logging(args: TrainingArguments, *script_loggers: logging.Logger) -> None:
    """Logs to standard output, at the level of `--log_level` (by default: information)."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stdout)
    for each in (logger, *script_loggers, logging.getLogger(modeling_ode_transformer.__name__)):
        each.setLevel(logging.INFO if args.log_level == "passive" else args.get_process_log_level())
    transformers.utils.logging.set_verbosity(args.get_process_log_level())


# Data arguments of all scripts that no training depends on: of evaluations, of outputs, and of the call.
NOT_OF_A_TRAINING = {
    *("max_eval_samples", "max_predict_samples", "early_stopping_patience", "overwrite_output_dir", "seeds"),
    *("pad_to_multiple_of", "average_last_checkpoints", "num_beams", "length_penalty", "min_target_length"),
    *("no_repeat_ngram_size", "samples", "bleu_tokenize", "bleu_moses_language", "errant"),
    *("prompt", "prompt_file", "max_new_tokens", "do_sample", "temperature"),
}
# What cards do not show of a training, and makes another one.
ORDER_AND_OPTIMIZER = ("train_sampling_strategy", "data_seed", "lr_scheduler_kwargs", "adam_epsilon")
DATA_FILES = re.compile(r"(train|validation|test)_(\w+_)?files?")
# What decides which examples are held out.
SPLIT_ARGUMENTS = {
    "training data",
    "held out",
    "max_train_samples",
    "split_seed",
    "validation_size",
    "test_size",
    "cross_validation",
}


def different_arguments(noted: dict, asked: dict, names: Iterable[str]) -> list[str]:
    """The arguments that have another value than the noted one, in words."""
    return [
        f"{name}={asked.get(name)!r} in place of {noted.get(name)!r}"
        for name in names
        if asked.get(name) != noted.get(name)
    ]


def training_data(data: dict) -> dict:
    """The data arguments that a training depends on; of files, only the names. Where a part of the validation data is
    trained on, that is training data, too."""
    values = {name: value for name, value in data.items() if name not in NOT_OF_A_TRAINING}
    values = {name: value for name, value in values.items() if not DATA_FILES.fullmatch(name)}
    files = split_sources(data, "train") + (split_sources(data, "validation") if data.get("validation_share") else [])
    return values | {"held out": held_out(data, "validation") | held_out(data, "test"), "training data": files}


def training_model(model: dict) -> dict:
    """The model arguments that a training depends on; of files and folders, only the names."""
    values = {name: value for name, value in model.items() if name != "trust_remote_code"}
    values["config_overrides"] = parse_overrides(values.get("config_overrides"))
    return {name: Path(value).name if isinstance(value, str) else value for name, value in values.items()}


def is_of_the_hub(name: str | None) -> bool:
    """Whether it is OWNER/NAME, and no folder."""
    return bool(name and re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name)) and not Path(name).exists()


def different_training(noted: dict, asked: dict) -> dict[str, list[str]]:
    """The arguments, in words, that make a training another one than the noted one, by their kind: those of its model,
    of its data, without their folders, and those for `Trainer` that cards show."""
    found = {}
    for kind, values in (("model", training_model), ("data", training_data), ("training", training_arguments)):
        old, new = (values(each.get(kind, {})) for each in (noted, asked))
        if kind == "model":
            starts = [each.get(kind, {}).get("model_name_or_path") for each in (noted, asked)]
            if all(map(is_of_the_hub, starts)):
                old["model_name_or_path"], new["model_name_or_path"] = starts
        if kind == "training":
            known = [name for name in ORDER_AND_OPTIMIZER if all(name in run.get(kind, {}) for run in (noted, asked))]
            for each, run in ((old, noted), (new, asked)):
                each |= {name: run[kind][name] for name in known}
                # As many batches to an update may come from other numbers of processes.
                accumulated = each.pop("gradient_accumulation_steps", 1)
                each["processes x gradient_accumulation_steps"] = run.get("processes", 1) * accumulated
        names = old.keys() & new.keys() if kind == "data" else old.keys() | new.keys()
        found[kind] = different_arguments(old, new, sorted(names))
    return found


def run_arguments(
    task: str, model_args: BaseModelArguments, data_args: BaseDataArguments, args: TrainingArguments
) -> dict:
    """What a run is: its task, arguments, number of processes, versions and date, as JSON has them."""
    arguments = {
        "task": task,
        "model": vars(model_args),
        "data": vars(data_args),
        "training": args.to_sanitized_dict(),
        "processes": args.world_size,
        "versions": versions(),
        "date": date.today().isoformat(),
    }
    return json.loads(json.dumps(arguments, default=str))


def evaluated_model(arguments: dict) -> dict[str, str]:
    """The model of an evaluation: folder and when its weights were written, or name and revision of the Hub."""
    name, revision = (arguments["model"][key] for key in ("model_name_or_path", "model_revision"))
    folder = Path(name)
    if not folder.is_dir():
        return {"name": name, "revision": revision}
    weights = [*folder.glob("*.safetensors"), *folder.glob("pytorch_model*.bin")]
    saved = max((file.stat().st_mtime for file in weights), default=0)
    return {"folder": str(folder.resolve()), "saved": datetime.fromtimestamp(saved).isoformat()}


def find_checkpoint(arguments: dict, args: TrainingArguments) -> str | None:
    """The checkpoint to resume a training from: the one asked for, or the last complete one in the output folder, or
    none. Nothing is written. A run that was stopped before its first checkpoint starts again from the beginning.

    Args:
        arguments: Those of `run_arguments`.
        args: The training's.

    Raises:
        FileNotFoundError: the checkpoint that is asked for is not there.
        ValueError: it cannot be resumed from; the output folder holds something else, checkpoints of another training,
            newer checkpoints than the one asked for, or the metrics of another model than the one to evaluate; what
            is asked for would be deleted; examples would be tested on that the model was trained on.
    """
    folder = Path(args.output_dir)
    asked, checkpoint = args.resume_from_checkpoint, None
    arguments_file = folder / ARGUMENTS
    if not args.do_train:
        model, evaluation_file = arguments["model"]["model_name_or_path"], folder / EVALUATION
        is_own = Path(model).resolve() == folder.resolve()
        if arguments_file.is_file() and not is_own:
            raise ValueError(
                f"--output_dir {folder} holds another trained model and its metrics, not {model}: choose another "
                "folder."
            )
        measures = args.do_eval or args.do_predict
        if measures and (folder / RESULTS).is_file() and not (is_own or arguments["data"]["overwrite_output_dir"]):
            noted = read_json(evaluation_file)["model"] if evaluation_file.is_file() else {"name": "an unknown model"}
            if noted != evaluated_model(arguments):
                raise ValueError(
                    f"--output_dir {folder} holds the metrics of {', '.join(noted.values())}, not of {model}: choose "
                    "another folder, or give --overwrite_output_dir to replace them."
                )
        if arguments_file.is_file() and any(held_out(arguments["data"], split) for split in PREFIXES):
            old, new = (training_data(each["data"]) for each in (read_json(arguments_file), arguments))
            if different := different_arguments(old, new, sorted(SPLIT_ARGUMENTS & new.keys())):
                raise ValueError(
                    f"{folder} was trained on examples that this call holds out, which has {'; '.join(different)}."
                )
    elif arguments["data"]["overwrite_output_dir"]:
        inputs = {"resume_from_checkpoint": asked}
        for name in ("model_name_or_path", "config_name", "tokenizer_name", "target_tokenizer_name"):
            path = Path(arguments["model"].get(name) or "")
            if path.name and path.exists() and path.resolve().is_relative_to(folder.resolve()):
                inputs[name] = path
        if deleted := [f"--{name} {value}" for name, value in inputs.items() if value]:
            raise ValueError(f"--overwrite_output_dir deletes what {' and '.join(deleted)} asks for.")
    elif asked and str(asked).lower() != "true":
        checkpoint = asked
        if not Path(asked).is_dir():
            raise FileNotFoundError(f"--resume_from_checkpoint: no folder {asked}.")
        kept = [path.resolve() for path in numbered_checkpoints(folder)]
        known = Path(asked).resolve() in kept
        others = kept[kept.index(Path(asked).resolve()) + 1 :] if known else kept
        if others := [path.name for path in others if incomplete_reason(path) is None]:
            raise ValueError(
                f"--resume_from_checkpoint {asked}: {folder} holds {'newer' if known else 'other'} checkpoints "
                f"({', '.join(others)}), which those of the resumed training would mix with. Leave it out to go on "
                "from them, or give another --output_dir."
            )
    elif last := last_complete_checkpoint(folder):
        logger.warning("Resuming from %s; --overwrite_output_dir starts anew", last)
        checkpoint = str(last)
    elif asked:
        raise FileNotFoundError(f"--resume_from_checkpoint: no checkpoint in {folder}.")
    elif folder.is_dir() and any(folder.iterdir()):
        if not arguments_file.is_file() or (folder / "config.json").is_file():
            raise ValueError(
                f"--output_dir {folder} is not empty and holds no checkpoint to resume from: choose another folder, "
                "or give --overwrite_output_dir to write into it."
            )
        logger.warning("The run in %s was stopped before its first checkpoint: starting from the beginning", folder)
    if checkpoint:
        check_resumable(checkpoint)
    noted = Path(checkpoint or "").parent / ARGUMENTS
    if checkpoint and noted.is_file():
        by_kind = different_training(read_json(noted), arguments)
        different = [each for kind in by_kind.values() for each in kind]
        if different and checkpoint == asked and not by_kind["model"]:
            logger.warning("Resuming from %s with other arguments: %s", checkpoint, "; ".join(different))
        elif different:
            can_go_on = "" if by_kind["model"] else f", or go on with it by --resume_from_checkpoint {checkpoint}"
            advice = f"Choose another --output_dir, or start anew with --overwrite_output_dir{can_go_on}."
            if checkpoint == asked:
                advice = "Leave out --resume_from_checkpoint to train this one."
            raise ValueError(f"{checkpoint} is of another training; this one has {'; '.join(different)}. {advice}")
    # No process may see what another one writes before it has looked for itself.
    PartialState().wait_for_everyone()
    return checkpoint


def note_run(arguments: dict, args: TrainingArguments) -> None:
    """Notes in the output folder what the run is, just before it writes anything else: model cards are made from that.

    Of an evaluation in the folder of the trained model, only what is evaluated, and on what; in another folder also
    which model. Metrics that the run will replace are deleted, all those of a training or of another model, since they
    are those of other weights; so are, where that is asked for, checkpoints, target tokenizers, metrics and outputs of
    an earlier training.

    Args:
        arguments: Those of `run_arguments`.
        args: The training's.
    """
    folder = Path(args.output_dir)
    noted_file, results_file = folder / ARGUMENTS, folder / RESULTS
    if not args.should_save or not (args.do_train or args.do_eval or args.do_predict):
        return
    if args.do_train:
        if arguments["data"]["overwrite_output_dir"]:
            for stale in [*numbered_checkpoints(folder), *folder.glob(TARGET_TOKENIZER)]:
                shutil.rmtree(stale)
            for stale in (path for pattern in OUTPUTS for path in folder.glob(pattern)):
                stale.unlink()
        folder.mkdir(parents=True, exist_ok=True)
        results_file.unlink(missing_ok=True)
    else:
        asked, data = {"validation": args.do_eval, "test": args.do_predict}, arguments["data"]
        if noted_file.is_file():
            arguments = read_json(noted_file)
        else:
            noted_file, model = folder / EVALUATION, evaluated_model(arguments)
            noted = read_json(noted_file) if noted_file.is_file() else {}
            if model != noted.get("model"):
                noted = {}
                if model.get("folder") != str(folder.resolve()):
                    results_file.unlink(missing_ok=True)
            folder.mkdir(parents=True, exist_ok=True)
            arguments = noted | {name: arguments[name] for name in ("task", "versions", "date")} | {"model": model}
        evaluated = [split for split in PREFIXES if asked[split]]
        arguments["evaluated"] = arguments.get("evaluated", {}) | dict.fromkeys(evaluated, data)
        if results_file.is_file():
            old = tuple(f"{PREFIXES[split]}_" for split in evaluated)
            results = {name: value for name, value in read_json(results_file).items() if not name.startswith(old)}
            results_file.write_text(json.dumps(results, indent=4, sort_keys=True), encoding="utf-8")
    noted_file.write_text(json.dumps(arguments, indent=1), encoding="utf-8")
