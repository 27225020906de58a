# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""What the training scripts beside it share: arguments and recipes, texts, checkpoints, losses per token."""

import gzip
import json
import logging
import shutil
import sys
from dataclasses import dataclass, field, fields
from pathlib import Path

import datasets
import numpy as np
import torch
import torch.nn.functional as F
import transformers
from torch.utils.data import Sampler, SequentialSampler
from transformers import AutoConfig, HfArgumentParser, PreTrainedConfig, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

import modeling_ode_transformer  # noqa: F401  (makes AutoConfig and the AutoModel classes know it)


logger = logging.getLogger(__name__)

TARGET_TOKENIZER = "target_tokenizer"


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

    The command line wins. Only its `config_overrides` are merged over the recipe's, field by field.
    """
    parser = HfArgumentParser(dataclass_types)
    recipe = {}
    if argv and argv[0].endswith(".json"):
        with open_text(argv[0]) as file:
            recipe = json.load(file)
        known = {known.name for arguments in parser.dataclass_types for known in fields(arguments)}
        unknown = sorted(set(recipe) - known)
        if unknown:
            raise ValueError(f"{argv[0]} holds unknown arguments: {', '.join(unknown)} (--help lists the known ones).")
        parser.set_defaults(**recipe)
        argv = argv[1:]
    parsed = parser.parse_args_into_dataclasses(args=argv)
    for arguments in parsed:
        given = getattr(arguments, "config_overrides", None)
        if given:
            arguments.config_overrides = parse_overrides(recipe.get("config_overrides")) | parse_overrides(given)
    return parsed


def parse_overrides(text: str | dict | None) -> dict:
    """`{"d_model": 256, "encoder_solver": "rk4"}` from that mapping, its JSON, or "d_model=256,encoder_solver=rk4"."""
    if not text or isinstance(text, dict):
        return dict(text or {})
    if text.lstrip().startswith("{"):
        return json.loads(text)
    overrides = {}
    for item in text.split(","):
        name, equals, value = item.partition("=")
        if not equals:
            raise ValueError(f"Cannot read {item!r} in {text!r}: write name=value,name=value or a JSON object.")
        try:
            overrides[name.strip()] = json.loads(value.lower())
        except json.JSONDecodeError:
            overrides[name.strip()] = value.strip()
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


def open_text(path: str | Path):
    """Opens a UTF-8 file, gzipped if its name ends in `.gz`; only "\\n" ends a line. FileNotFoundError if missing."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"No file {path} (looked in {path.parent.resolve()}).")
    # utf-8-sig drops a byte order mark.
    return (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8-sig", newline="\n")


def read_lines(path: str | Path) -> list[str]:
    """The lines of a text file without their ends; ValueError if it is not UTF-8."""
    try:
        with open_text(path) as file:
            return [line.rstrip("\r\n") for line in file]
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error}): convert it first.") from error


def read_dataset(args: BaseDataArguments, split: str) -> datasets.Dataset:
    """Split "train", "validation" or "test" of `dataset_name`; ValueError if there is no such split."""
    splits = datasets.load_dataset(args.dataset_name, args.dataset_config_name)
    if split not in splits:
        raise ValueError(f"{args.dataset_name} has no split {split!r}, only {', '.join(splits)}.")
    return splits[split]


def set_up_logging(args: TrainingArguments, script_logger: logging.Logger) -> None:
    """Logs to standard output, at the level of `--log_level` (by default: information)."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stdout)
    for each in (logger, script_logger):
        each.setLevel(logging.INFO if args.log_level == "passive" else args.get_process_log_level())
    transformers.utils.logging.set_verbosity(args.get_process_log_level())


def find_checkpoint(data_args: BaseDataArguments, args: TrainingArguments) -> str | None:
    """The checkpoint to resume from: the one asked for, or the last one in the output folder, or none."""
    folder = Path(args.output_dir)
    asked = args.resume_from_checkpoint
    if data_args.overwrite_output_dir:
        if asked:
            raise ValueError(f"--overwrite_output_dir deletes what --resume_from_checkpoint {asked} asks for.")
        if args.should_save:
            for stale in [*folder.glob("checkpoint-*"), *folder.glob(TARGET_TOKENIZER)]:
                shutil.rmtree(stale)
        return None
    if asked and str(asked).lower() != "true":
        if not Path(asked).is_dir():
            raise FileNotFoundError(f"--resume_from_checkpoint: no folder {asked}.")
        return asked
    last = get_last_checkpoint(folder) if folder.is_dir() else None
    if last is None and asked:
        raise FileNotFoundError(f"--resume_from_checkpoint: no checkpoint in {folder}.")
    if last is None and folder.is_dir() and any(folder.iterdir()):
        raise ValueError(
            f"--output_dir {folder} is not empty and holds no checkpoint to resume from: choose another folder, or "
            "give --overwrite_output_dir to write into it."
        )
    if last is not None:
        logger.warning("Resuming from %s; --overwrite_output_dir starts anew", last)
    return last


class LengthGroupedSampler(Sampler):
    """Batches of examples of similar length, in random order, the same for the same seed and epoch.

    Trainer's own sampler of that name goes from long to short again and again, and after a resumption in the middle
    of an epoch it draws another order.
    """

    def __init__(self, lengths: list[int], batch_size: int, seed: int):
        self.lengths = torch.tensor(lengths)
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int):
        self.epoch = epoch

    def __len__(self):
        return len(self.lengths)

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        shuffled = torch.randperm(len(self), generator=generator)
        # Sorting whole epochs would make the same batches again and again; a hundred batches keep padding low.
        groups = [group[self.lengths[group].argsort(stable=True)] for group in shuffled.split(100 * self.batch_size)]
        batches = list(torch.cat(groups).split(self.batch_size))
        # A short last batch stays last, as DataLoader cuts this sequence into batches from its start.
        short = [batches.pop()] if len(batches[-1]) < self.batch_size else []
        order = torch.randperm(len(batches), generator=generator).tolist()
        return iter(torch.cat([batches[i] for i in order] + short).tolist())


def losses_by_row(logits: torch.Tensor, labels: torch.Tensor, label_smoothing: float = 0.0) -> torch.Tensor:
    """Cross entropy in nats, in float32, summed over the tokens of each row: (batch,).

    Args:
        logits: (batch, length, vocabulary), aligned with the labels.
        labels: (batch, length), -100 to skip.
        label_smoothing: Share of the target spread evenly over the vocabulary.
    """
    losses = F.cross_entropy(
        logits.flatten(0, 1).float(), labels.flatten(), label_smoothing=label_smoothing, reduction="none"
    )
    return losses.view_as(labels).sum(-1)


class TokenMeanMixin:
    """For a Trainer: losses are means over target tokens, in training, under accumulation and in evaluation.

    Labels have to be aligned with the logits, and `prediction_step` has to pass both to `add_losses`. Evaluation then
    adds loss, nll_loss (without label smoothing) and perplexity to the metrics. The training data need a column
    "length" for `train_sampling_strategy="group_by_length"`; evaluation keeps the order of its data.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, compute_loss_func=self.mean_loss, **kwargs)

    def mean_loss(self, outputs, labels, num_items_in_batch):
        return losses_by_row(outputs.logits, labels, self.args.label_smoothing_factor).sum() / num_items_in_batch

    def add_losses(self, logits: torch.Tensor, labels: torch.Tensor) -> None:
        losses = [losses_by_row(logits, labels, smoothing) for smoothing in (self.args.label_smoothing_factor, 0.0)]
        rows = torch.stack([*losses, (labels != -100).sum(-1)], dim=-1)
        # Leaves out the examples that several processes repeat to fill their last batch.
        self.loss_sums += self.accelerator.gather_for_metrics(rows).sum(0)

    def evaluation_loop(self, *args, metric_key_prefix="eval", **kwargs):
        self.loss_sums = torch.zeros(3, device=self.args.device)
        output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        loss, nll, tokens = self.loss_sums.tolist()
        output.metrics[f"{metric_key_prefix}_loss"] = loss / tokens
        output.metrics[f"{metric_key_prefix}_nll_loss"] = nll / tokens
        output.metrics[f"{metric_key_prefix}_perplexity"] = float(np.exp(nll / tokens))
        return output

    def _get_train_sampler(self, train_dataset=None):
        if self.args.train_sampling_strategy != "group_by_length":
            return super()._get_train_sampler(train_dataset)
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        batch_size = self.args.train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size
        return LengthGroupedSampler(self.train_dataset["length"][:], batch_size, seed)

    def _get_eval_sampler(self, eval_dataset):
        # Trainer would reorder evaluation too when grouping by length, and predictions would lose their references.
        return SequentialSampler(eval_dataset)


def position_limit(config: PreTrainedConfig) -> int | None:
    """The most tokens of a sequence; None where positions are computed for any length."""
    if getattr(config, "position_embedding_type", "learned") in ("learned", "absolute"):
        return getattr(config, "max_position_embeddings", None)
    return None
