# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""What the original's training has and `Trainer` lacks: token-budget batches, losses per token, exact resumption.

`TokenSeq2SeqTrainer` takes any sequence-to-sequence model of transformers:

    arguments = TokenSeq2SeqTrainingArguments("out", max_tokens_per_batch=4096, lr_scheduler_type="inverse_sqrt", ...)
    TokenSeq2SeqTrainer(model=model, args=arguments, train_dataset=dataset, data_collator=collator, ...).train()
"""

import copy
import json
import logging
import math
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import datasets
import numpy as np
import torch
from accelerate import DistributedType, FullyShardedDataParallelPlugin
from accelerate.data_loader import BatchSamplerShard, prepare_data_loader
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import parse_flag_from_env, reduce
from torch.distributed.fsdp import FSDPModule
from torch.utils.data import DataLoader, Sampler, SequentialSampler
from transformers import (
    EarlyStoppingCallback,
    GenerationConfig,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
    TrainingArguments,
)
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, has_length

from .checkpoints import (
    TRAINER_STATE,
    check_resumable,
    incomplete_reason,
    last_complete_checkpoint,
    numbered_checkpoints,
)
from .cpu_ode_transformer import cross_entropy
from .integration_ode_transformer import StageCoefficients
from .modeling_ode_transformer import OdeTransformerStack, shift_tokens_right
from .pipeline_ode_transformer import TARGET_TOKENIZER
from .text_files import read_json


logger = logging.getLogger(__name__)

# fairseq gives up here as well: gradients that overflow at such a scale are not a matter of scaling.
MIN_LOSS_SCALE = 1e-4


class TokenBudgetBatchSampler(Sampler[list[int]]):
    """Batches of pairs of similar length that fill a budget of tokens, as fairseq's `--max-tokens`.

    A batch of n pairs is padded to n times its longest source and n times its longest target; neither exceeds
    `max_tokens`. Pairs are sorted by their lengths, those of equal lengths in another order in every epoch, and cut
    into batches where the budget is full; the batches then come in random order. Sizes of batches are the same in
    every epoch, so that their number is known. It is a multiple of `num_replicas * accumulation_steps`: the largest
    batches are halved until it is, no pair is dropped or repeated, and every process has as many updates. Only where
    all batches are down to one pair, the first ones of an epoch come again at its end.

    Process `rank` takes the batches `rank`, `rank + num_replicas`, ... of an epoch, and one process that accumulates
    `num_replicas` batches sees those of an update of `num_replicas` processes.

    Args:
        lengths: (pairs, 2), tokens of each source and target.
        max_tokens: Most padded tokens of a batch's sources, and of its targets.
        seed: Of the order; epoch e is drawn from both.
        num_replicas: Number of processes.
        rank: This process.
        accumulation_steps: Batches of a process to an update.
        pad_to_multiple_of: What the collator rounds lengths up to.

    Raises:
        ValueError: a pair is longer than the budget; there are no pairs, or fewer than batches of one update.
    """

    def __init__(
        self,
        lengths: Sequence[Sequence[int]],
        max_tokens: int,
        seed: int = 0,
        num_replicas: int = 1,
        rank: int = 0,
        accumulation_steps: int = 1,
        pad_to_multiple_of: int | None = None,
    ):
        self.lengths = np.asarray(lengths, dtype=np.int64).reshape(-1, 2)
        self.max_tokens = max_tokens
        self.seed = seed
        self.num_replicas = num_replicas
        self.rank = rank
        self.accumulation_steps = accumulation_steps
        self.epoch = 0

        per_update = num_replicas * accumulation_steps
        if len(self.lengths) < per_update:
            raise ValueError(
                f"{len(self.lengths)} pairs cannot fill the {per_update} batches of one update ({num_replicas} "
                f"processes, {accumulation_steps} accumulation steps each)."
            )
        multiple = pad_to_multiple_of or 1
        self.padded_lengths = -(-self.lengths // multiple) * multiple
        # A pair without any token fills a place of a batch as well.
        widths = self.padded_lengths.max(axis=1).clip(min=1)
        if widths.max() > max_tokens:
            longest = int(widths.argmax())
            raise ValueError(
                f"Pair {longest} has {self.lengths[longest][0]} source and {self.lengths[longest][1]} target tokens "
                f"(padded to {widths.max()}), more than a batch may hold: raise max_tokens_per_batch={max_tokens}, or "
                "cut the pairs to fewer tokens."
            )
        self.batch_sizes = self._divisible(self._fill(np.sort(widths)), per_update)
        self.batches_per_epoch = math.ceil(len(self.batch_sizes) / per_update) * per_update

    def _fill(self, widths: np.ndarray) -> list[int]:
        """Numbers of pairs, of ascending widths, that fill one batch after the other."""
        sizes, start = [], 0
        while start < len(widths):
            # The widest of the first k pairs is the k-th.
            candidates = widths[start : start + self.max_tokens // widths[start]]
            size = int(np.searchsorted(candidates * np.arange(1, len(candidates) + 1), self.max_tokens, side="right"))
            sizes.append(size)
            start += size
        return sizes

    def _divisible(self, sizes: list[int], per_update: int) -> list[int]:
        """Halves the largest batches until every update has as many, or all have one pair."""
        while len(sizes) % per_update and max(sizes) > 1:
            largest = max(range(len(sizes)), key=sizes.__getitem__)
            sizes[largest : largest + 1] = [sizes[largest] - sizes[largest] // 2, sizes[largest] // 2]
        return sizes

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        """Batches of this process in an epoch."""
        return self.batches_per_epoch // self.num_replicas

    def batches(self) -> list[np.ndarray]:
        """All processes' batches of the current epoch in their order: indices of pairs."""
        generator = np.random.default_rng((self.seed, self.epoch))
        shuffled = generator.permutation(len(self.lengths))
        sources, targets = self.lengths[shuffled].T
        # By the width last: it is the first key. The two others make batches of fewer shapes, and less padding.
        order = np.lexsort((targets, sources, self.padded_lengths[shuffled].max(axis=1)))
        batches = np.split(shuffled[order], np.cumsum(self.batch_sizes)[:-1])
        return [batches[i] for i in np.resize(generator.permutation(len(batches)), self.batches_per_epoch)]

    def __iter__(self):
        return (batch.tolist() for batch in self.batches()[self.rank :: self.num_replicas])

    def report(self) -> dict[str, float]:
        """Updates of an epoch, what an update holds on average over all processes, and the share of padding."""
        updates = len(self) // self.accumulation_steps
        batches = self.batches()
        padded = sum(len(batch) * self.padded_lengths[batch].max(axis=0).sum() for batch in batches)
        sources, targets = sum(self.lengths[batch].sum(axis=0) for batch in batches)
        return {
            "updates_per_epoch": updates,
            "pairs_per_update": sum(map(len, batches)) / updates,
            "source_tokens_per_update": float(sources / updates),
            "target_tokens_per_update": float(targets / updates),
            "padding": float(1 - (sources + targets) / padded),
        }


class LengthGroupedSampler(Sampler[int]):
    """Batches of examples of similar length, in random order, the same for the same seed and epoch.

    Trainer's own sampler of that name goes from long to short again and again, and after a resumption in the middle
    of an epoch it draws another order.
    """

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int):
        self.lengths = torch.as_tensor(lengths)
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self):
        generator = np.random.default_rng((self.seed, self.epoch))
        shuffled = torch.from_numpy(generator.permutation(len(self)))
        # Sorting whole epochs would make the same batches again and again; a hundred batches keep padding low.
        groups = [group[self.lengths[group].argsort(stable=True)] for group in shuffled.split(100 * self.batch_size)]
        batches = list(torch.cat(groups).split(self.batch_size))
        # A short last batch stays last, as DataLoader cuts this sequence into batches from its start.
        short = [batches.pop()] if len(batches[-1]) < self.batch_size else []
        return iter(torch.cat([batches[i] for i in generator.permutation(len(batches))] + short).tolist())


def losses_by_row(logits: torch.Tensor, labels: torch.Tensor, label_smoothing: float = 0.0) -> torch.Tensor:
    """Cross entropy in nats, in float32, summed over the tokens of each row: (batch,).

    Args:
        logits: (batch, length, vocabulary), aligned with the labels.
        labels: (batch, length), -100 to skip.
        label_smoothing: Share of the target spread evenly over the vocabulary.
    """
    losses = cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing)
    return losses.view_as(labels).sum(-1)


@contextmanager
def one_group_for_tied_embeddings(model: torch.nn.Module):
    """Lets FSDP2 keep embeddings that a model uses in more than two places together with what is not in a layer.

    Accelerate groups input and output embeddings, does not know of those of an encoder beside a decoder, and fails
    where all are one parameter.
    """
    model.get_input_embeddings = model.get_output_embeddings = lambda: None
    try:
        yield
    finally:
        del model.get_input_embeddings, model.get_output_embeddings


@contextmanager
def class_before_sharding(model: torch.nn.Module):
    """Gives a model that FSDP2 shards its own class back: what is saved names the class and carries its code."""
    sharded = type(model)
    if isinstance(model, FSDPModule):
        model.__class__ = next(base for base in sharded.__mro__[1:] if not issubclass(base, FSDPModule))
    try:
        yield
    finally:
        model.__class__ = sharded


@contextmanager
def mean_coefficients(model: torch.nn.Module, is_left_out: Callable[[], bool] = lambda: False):
    """Within the context, the weights that the model's blocks give to their stages are summed up; what is yielded then
    returns their means by stack, layer and stage, {"encoder_0_stage_1": 0.97, ...}, over all steps of a block and all
    tokens of all processes, padding included. Empty for a model whose coefficients are fixed. What is computed while
    `is_left_out()` does not count."""
    sums, names, hooks = {}, [], []

    def enter(layer, args, name):
        names.append(name)

    def leave(layer, args, output):
        names.pop()

    def record(coefficients, args, weights):
        if is_left_out():
            return
        for stage, weight in enumerate(weights, start=1):
            total, count = sums.get(name := f"{names[-1]}_stage_{stage}", (0, 0))
            sums[name] = total + weight.detach().float().sum(), count + weight.numel()

    for module in model.modules():
        if isinstance(module, OdeTransformerStack):
            for layer in module.layers:
                name = f"{module.stack}_{layer.layer_idx}"
                hooks.append(layer.register_forward_pre_hook(partial(enter, name=name)))
                hooks.append(layer.register_forward_hook(leave, always_call=True))
        elif isinstance(module, StageCoefficients) and any(True for _ in module.parameters()):
            hooks.append(module.register_forward_hook(record))

    def means():
        reduced = {
            name: reduce(torch.stack([total, total.new_tensor(count)])) for name, (total, count) in sums.items()
        }
        return {name: float(total / count) for name, (total, count) in reduced.items()}

    try:
        yield means
    finally:
        for hook in hooks:
            hook.remove()


class SaveAfterEpoch(TrainerCallback):
    """Puts off a checkpoint that is due with the last update of an epoch until the log and evaluation of its end.

    A run that is resumed from it would skip them.
    """

    def __init__(self):
        self.due = False

    def on_step_end(self, args, state, control, **kwargs):
        if state.epoch.is_integer() or control.should_training_stop:
            self.due, control.should_save = control.should_save, False

    def on_epoch_end(self, args, state, control, **kwargs):
        control.should_save |= self.due
        self.due = False


class ResumableTrainerMixin:
    """For a Trainer: a training that was cut off goes on as one training.

    - `train(resume_from_checkpoint=True)` takes the last complete checkpoint. A checkpoint counts as complete only
      when every process has written its part; one that holds weights alone, or another model, is refused. With
      `save_total_limit`, half-written checkpoints are deleted when the next one is saved.
    - A run that had come to its end, by its updates or by early stopping, is not trained any further.
    - Losses and seconds that are logged are those of the whole training: the sum of the losses since the last log is
      kept, and `train_loss` and `train_runtime` at the end are over all calls.
    - The best checkpoint is found again where the output folder was moved, and early stopping has the patience that is
      asked for now.
    - The order of an epoch and the seeds of its workers come from the seed and the epoch, evaluation does not draw
      from the random numbers of training, and a checkpoint that is due with the last update of an epoch waits for its
      evaluation: a resumed run has the losses of one that was never stopped, bitwise where torch is deterministic.

    `train_sampling_strategy="group_by_length"` takes the lengths from the column `length_column_name` where there is
    one, and else counts input_ids and labels; evaluation keeps the order of its data.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.add_callback(SaveAfterEpoch())

    def train(self, resume_from_checkpoint: str | bool | None = None, *args, **kwargs):
        """Trains, from a checkpoint if one is named, or from the last complete one in `output_dir` for True.

        Raises:
            ValueError: the tokenizer pads with a token that the model has not, so that no checkpoint could be opened.
            ValueError: the checkpoint cannot be resumed from (`check_resumable`); for True, there is none.
            FileNotFoundError: the best checkpoint of the training before is not there, and is to be loaded at the end.
        """
        pad_token_id = getattr(self.processing_class, "pad_token_id", None)
        for name in ("vocab_size", "decoder_vocab_size"):
            size = getattr(self.model.config, name, None)
            if None not in (size, pad_token_id) and pad_token_id >= size:
                raise ValueError(
                    f"The tokenizer pads with the token {pad_token_id}, and the model has {name}={size}: resize its "
                    "embeddings to the tokenizer."
                )
        if resume_from_checkpoint is True:
            resume_from_checkpoint = last_complete_checkpoint(self.args.output_dir)
            if resume_from_checkpoint is None:
                raise ValueError(f"There is no complete checkpoint in {self.args.output_dir} to resume from.")
        if resume_from_checkpoint:
            check_resumable(resume_from_checkpoint, self.model.config)
        self._resumed_from = Path(resume_from_checkpoint) if resume_from_checkpoint else None
        state = self._loss_state(resume_from_checkpoint) if resume_from_checkpoint else {}
        self._start = None
        self._earlier = {name: state.get(name, 0.0) for name in ("loss", "seconds")}
        return super().train(str(resume_from_checkpoint) if resume_from_checkpoint else None, *args, **kwargs)

    def _load_callback_state(self):
        asked = {
            type(each): (each.early_stopping_patience, each.early_stopping_threshold)
            for each in self.callback_handler.callbacks
            if isinstance(each, EarlyStoppingCallback)
        }
        super()._load_callback_state()
        for each in self.callback_handler.callbacks:
            if type(each) in asked:
                each.early_stopping_patience, each.early_stopping_threshold = asked[type(each)]
        if best := self.state.best_global_step:
            # What the state names may by now be a checkpoint of another training, in the place of one that was moved.
            folders = [Path(self.args.output_dir), *([self._resumed_from.parent] if self._resumed_from else [])]
            found = [folder / f"{PREFIX_CHECKPOINT_DIR}-{best}" for folder in folders]
            found = [str(folder) for folder in found if folder.is_dir()]
            self.state.best_model_checkpoint = found[0] if found else None
            if not found and self.args.load_best_model_at_end:
                raise FileNotFoundError(
                    f"The best checkpoint so far, of update {best}, is not in {self.args.output_dir}: bring it there, "
                    "or give --load_best_model_at_end False."
                )

    def _run_epoch(self, *, epoch, train_dataloader, resume_from_checkpoint, **kwargs):
        self._start = self._start or time.monotonic()
        stoppers = [each for each in self.callback_handler.callbacks if isinstance(each, EarlyStoppingCallback)]
        if resume_from_checkpoint and (
            self.state.global_step >= self.state.max_steps
            or any(each.early_stopping_patience_counter >= each.early_stopping_patience for each in stoppers)
        ):
            # Trainer would see that the run is at its end only after one more update.
            self.control.should_training_stop = True
            return
        # Every new iterator draws a seed for its workers: not from the random numbers of training, since with
        # persistent workers a resumed run makes another number of them.
        train_dataloader.base_dataloader.generator = torch.Generator().manual_seed(self.data_seed + epoch)
        super()._run_epoch(
            epoch=epoch,
            train_dataloader=train_dataloader,
            resume_from_checkpoint=resume_from_checkpoint,
            **kwargs,
        )

    @property
    def data_seed(self) -> int:
        return self.args.seed if self.args.data_seed is None else self.args.data_seed

    def _get_train_sampler(self, train_dataset=None):
        if self.args.train_sampling_strategy != "group_by_length":
            return super()._get_train_sampler(train_dataset)
        batch_size = self.args.train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size
        column = self.args.length_column_name
        if column in (getattr(self.train_dataset, "column_names", None) or []):
            lengths = self.train_dataset[column][:]
        else:
            lengths = pair_lengths(self.train_dataset).sum(axis=1)
        return LengthGroupedSampler(lengths, batch_size, self.data_seed)

    def get_train_dataloader(self):
        dataloader = super().get_train_dataloader()
        if isinstance(batches := dataloader.batch_sampler, BatchSamplerShard):
            # `set_epoch` of a data loader that skips batches looks for the sampler here.
            batches.sampler = batches.batch_sampler.sampler
        return dataloader

    def _get_eval_sampler(self, eval_dataset):
        # Trainer would reorder evaluation too when grouping by length, and predictions would lose their references.
        return SequentialSampler(eval_dataset)

    def evaluation_loop(self, *args, **kwargs):
        devices = [self.args.device] if self.args.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            return super().evaluation_loop(*args, **kwargs)

    def _evaluate(self, trial, ignore_keys_for_eval, skip_scheduler=False):
        if skip_scheduler and self.state.global_step > 0:
            # The evaluation of `eval_on_start` is behind a resumed run, and is in its log.
            return {}
        return super()._evaluate(trial, ignore_keys_for_eval, skip_scheduler)

    def _issue_warnings_after_load(self, load_result):
        # Tied weights are saved once.
        tied = set(getattr(self.model, "all_tied_weights_keys", ()))
        load_result.missing_keys[:] = [name for name in load_result.missing_keys if name not in tied]
        super()._issue_warnings_after_load(load_result)

    def _save_checkpoint(self, model, trial):
        folder = Path(self._get_output_dir(trial))
        current = folder / f"checkpoint-{self.state.global_step}"
        if self.args.should_save:
            # An earlier run's half-written folder is written again: until the end it counts as half-written.
            (current / TRAINER_STATE).unlink(missing_ok=True)
            if self.args.save_total_limit is not None:
                # What a kill left behind would count as one of the checkpoints to keep.
                for path in numbered_checkpoints(folder):
                    if path != current and (reason := incomplete_reason(path)):
                        logger.warning("Deleting %s: %s", path, reason)
                        shutil.rmtree(path)
        self.accelerator.wait_for_everyone()
        super()._save_checkpoint(model, trial)

    def _loss_state_file(self, checkpoint: str) -> Path:
        return Path(checkpoint) / f"loss_state_{self.args.process_index}.json"

    def _loss_state(self, checkpoint: str) -> dict:
        file = self._loss_state_file(checkpoint)
        return read_json(file) if file.is_file() else {}

    def _save_rng_state(self, output_dir):
        super()._save_rng_state(output_dir)
        mean = self.accelerator.gather(self._tr_loss).mean().item()
        state = {
            "loss_since_last_log": self._tr_loss.item(),
            "mean_loss_since_last_log": mean,
            "last_logged_update": self._globalstep_last_logged,
            "loss": self._earlier["loss"] + self._total_loss_scalar + mean,
            "seconds": self._earlier["seconds"] + time.monotonic() - self._start,
        }
        self._loss_state_file(output_dir).write_text(json.dumps(state), encoding="utf-8")
        # trainer_state.json, which one process writes next, has to mean that all have come so far.
        self.accelerator.wait_for_everyone()

    def _load_rng_state(self, checkpoint):
        super()._load_rng_state(checkpoint)
        if checkpoint is not None and (state := self._loss_state(checkpoint)):
            self._tr_loss += state["loss_since_last_log"]
            self._globalstep_last_logged = state["last_logged_update"]
            # The mean over processes, which the next log adds, is a part of the earlier losses.
            self._total_loss_scalar -= state["mean_loss_since_last_log"]

    def _finalize_training(self, trial, num_train_samples, *args, **kwargs):
        self._planned_samples = num_train_samples
        return super()._finalize_training(trial, num_train_samples, *args, **kwargs)

    def log(self, logs, *args, **kwargs):
        if "train_runtime" in logs and self._earlier["seconds"]:
            updates = self.state.global_step
            logs["train_loss"] = (self._earlier["loss"] + self._total_loss_scalar) / updates
            logs["train_runtime"] += self._earlier["seconds"]
            logs["train_steps_per_second"] = updates / logs["train_runtime"]
            samples = self._planned_samples * updates / self.state.max_steps
            logs["train_samples_per_second"] = samples / logs["train_runtime"]
        super().log(logs, *args, **kwargs)


class TokenTrainerMixin(ResumableTrainerMixin):
    """For a Trainer: losses are means over target tokens, a resumed run repeats the uninterrupted one, NaN stops it.

    - **Losses** are divided by the target tokens of the whole update, over accumulated batches and processes. Labels
      have to be aligned with the logits, and `prediction_step` has to pass both to `add_losses`. Evaluation then adds
      loss, nll_loss (without label smoothing) and perplexity to the metrics.
    - **Resuming** is that of `ResumableTrainerMixin`.
    - **A loss or gradient that is not finite** raises FloatingPointError with the update, the examples (their numbers
      in the column "index" of the training data) and the parameters. Under a loss scale (fp16), overflowing gradients
      only lower the scale, down to `MIN_LOSS_SCALE`.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, compute_loss_func=self.mean_loss, **kwargs)
        self._batch_index = None
        self._update_index = []
        self._generates = False

    def create_accelerator_and_postprocess(self):
        super().create_accelerator_and_postprocess()
        state = self.accelerator.state
        asked = self.args.fsdp or parse_flag_from_env("ACCELERATE_USE_FSDP")
        if asked and state.distributed_type == DistributedType.MULTI_CPU:
            # Accelerate shards over GPUs only: over CPUs it would replicate the model without a word.
            for shared in (PartialState, AcceleratorState):
                shared._shared_state["distributed_type"] = DistributedType.FSDP
            state.fsdp_plugin = FullyShardedDataParallelPlugin(**(self.args.fsdp_plugin_args or {}))
            if state.mixed_precision != "no":
                state.fsdp_plugin.set_mixed_precision(state.mixed_precision)
            self.is_fsdp_enabled = True

    def _prepare_for_training(self, *args, **kwargs):
        with one_group_for_tied_embeddings(self.model) if self.accelerator.is_fsdp2 else nullcontext():
            return super()._prepare_for_training(*args, **kwargs)

    def mean_loss(self, outputs, labels, num_items_in_batch):
        loss = losses_by_row(outputs.logits, labels, self.args.label_smoothing_factor).sum() / num_items_in_batch
        # Under DataParallel, Trainer takes this for the loss of one device and multiplies it by their number.
        return loss / max(self.args.n_gpu, 1)

    def add_losses(self, logits: torch.Tensor, labels: torch.Tensor) -> None:
        nll, smoothing = losses_by_row(logits, labels), self.args.label_smoothing_factor
        losses = losses_by_row(logits, labels, smoothing) if smoothing else nll
        rows = torch.stack([losses, nll, (labels != -100).sum(-1)], dim=-1)
        # Leaves out the examples that several processes repeat to fill their last batch.
        self.loss_sums += self.accelerator.gather_for_metrics(rows).sum(0)

    def evaluation_loop(self, *args, metric_key_prefix="eval", **kwargs):
        self.loss_sums = torch.zeros(3, device=self.args.device)
        recording = nullcontext(dict)
        if self.args.log_coefficients:
            recording = mean_coefficients(self.model, is_left_out=lambda: self._generates)
        with recording as coefficients:
            output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        output.metrics.update(
            {f"{metric_key_prefix}_coefficient_{name}": mean for name, mean in coefficients().items()}
        )
        loss, nll, tokens = self.loss_sums.tolist()
        if tokens:
            output.metrics[f"{metric_key_prefix}_loss"] = loss / tokens
            output.metrics[f"{metric_key_prefix}_nll_loss"] = nll / tokens
            output.metrics[f"{metric_key_prefix}_perplexity"] = float(np.exp(nll / tokens))
        return output

    def _set_signature_columns_if_needed(self):
        super()._set_signature_columns_if_needed()
        if "index" not in self._signature_columns:
            self._signature_columns.append("index")

    def _prepare_inputs(self, inputs):
        inputs = super()._prepare_inputs(inputs)
        self._batch_index = inputs.pop("index", None)
        return inputs

    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        self._update_index += [] if self._batch_index is None else self._batch_index.tolist()
        if not loss.isfinite():
            self._stop("loss", loss)
        return loss

    def _get_grad_norm(self, *args, **kwargs):
        norm = super()._get_grad_norm(*args, **kwargs)
        scaler = self.accelerator.scaler
        # DeepSpeed does not always compute a norm.
        if norm is not None and not math.isfinite(norm) and (scaler is None or scaler.get_scale() < MIN_LOSS_SCALE):
            self._stop("gradient norm", norm)
        self._update_index = []
        return norm

    def _stop(self, what: str, value: torch.Tensor | float) -> None:
        parameters = list(self.model.named_parameters())
        weights = [name for name, parameter in parameters if not parameter.isfinite().all()]
        gradients = [name for name, p in parameters if p.grad is not None and not p.grad.isfinite().all()]
        found = [
            f"{kind} of {len(names)} of {len(parameters)} parameters ({', '.join(names[:5])}, ...)"
            for kind, names in (("weights", weights), ("gradients", gradients))
            if names
        ]
        raise FloatingPointError(
            f"The {what} of update {self.state.global_step + 1} is {float(value)}. "
            f"Examples of the update (column 'index' of the training data): {self._update_index or 'not known'}"
            f"{f', on process {self.args.process_index}' * (self.args.world_size > 1)}. "
            f"Not finite: {'; '.join(found) or 'no weight and no gradient'}. "
            "Look at these examples; lower the learning rate, warm up longer, clip gradients (--max_grad_norm), or "
            "train in float32 or bf16 instead of fp16."
        )

    def _save(self, output_dir=None, state_dict=None):
        with class_before_sharding(self.model):
            super()._save(output_dir, state_dict)


@dataclass
class ResumableTrainingArguments(TrainingArguments):
    """TrainingArguments by which a resumed run gets back the states of its callbacks."""

    restore_callback_states_from_checkpoint: bool = field(
        default=True, metadata={"help": "Restore the states of callbacks, as how long early stopping has waited."}
    )


@dataclass
class TokenTrainingArguments(ResumableTrainingArguments):
    """TrainingArguments for which a low perplexity is best; a resumed run gets back the states of its callbacks."""

    log_coefficients: bool = field(
        default=False,
        metadata={"help": "Add to the metrics of evaluations how much each stage of each layer counts on average."},
    )

    def __post_init__(self):
        if str(self.metric_for_best_model).endswith("perplexity"):
            if self.greater_is_better:
                raise ValueError(
                    f"--metric_for_best_model {self.metric_for_best_model} is best when low: leave out "
                    "--greater_is_better True."
                )
            # Trainer takes only losses for what is best when low.
            self.greater_is_better = False
        super().__post_init__()


@dataclass
class TokenSeq2SeqTrainingArguments(TokenTrainingArguments, Seq2SeqTrainingArguments):
    """Seq2SeqTrainingArguments with token-budget batches; a resumed run also gets back the states of its callbacks."""

    max_tokens_per_batch: int | None = field(
        default=None,
        metadata={
            "help": "Batches of pairs of similar length whose padded sources and padded targets have at most so many "
            "tokens each, on every device and accumulation step; --per_device_train_batch_size is then not used."
        },
    )

    def __post_init__(self):
        super().__post_init__()
        if self.max_tokens_per_batch is None:
            return
        if self.max_tokens_per_batch < 1:
            raise ValueError(f"--max_tokens_per_batch {self.max_tokens_per_batch}: give a number of at least 1.")
        if self.train_sampling_strategy == "group_by_length":
            raise ValueError(
                f"--max_tokens_per_batch {self.max_tokens_per_batch} already groups pairs by length: leave out "
                "--train_sampling_strategy group_by_length."
            )


class TokenSeq2SeqTrainer(TokenTrainerMixin, Seq2SeqTrainer):
    """Seq2SeqTrainer for sequence-to-sequence models: token-budget batches, losses per token, exact resumption.

    Its datasets hold input_ids and labels; the columns source_length and target_length, where present, save counting
    them. See `TokenTrainerMixin` for what it does about losses, resumption and values that are not finite.

    Args:
        eval_generation_config: The search of `evaluate` and `predict`, which their own options (`num_beams=5`) change;
            None: as with Seq2SeqTrainer the model's generation configuration, changed by `generation_num_beams` and
            `generation_max_length` of the arguments.
        target_tokenizer: Tokenizer of the target side; if it is not `processing_class`, it is saved in every
            checkpoint as well, in the folder `target_tokenizer`.

    Raises:
        ValueError: `compute_metrics` without `predict_with_generate`, whose outputs it gets, or with the losses of
            batches (`include_for_metrics`), since losses are sums over tokens; token-budget batches of a dataset that
            has no length.
    """

    def __init__(self, *args, eval_generation_config: GenerationConfig | None = None, target_tokenizer=None, **kwargs):
        self.eval_generation_config = eval_generation_config
        self.target_tokenizer = target_tokenizer
        self._asked_of_generate = {}
        super().__init__(*args, **kwargs)
        if self.compute_metrics is not None and not self.args.predict_with_generate:
            raise ValueError(
                "compute_metrics gets generated tokens: give predict_with_generate=True, or leave it out."
            )
        if self.compute_metrics is not None and "loss" in self.args.include_for_metrics:
            raise ValueError(
                "include_for_metrics has 'loss', but losses are summed over tokens, not kept for each batch: leave it "
                "out. The metrics of an evaluation have them."
            )
        if self.args.max_tokens_per_batch and self.train_dataset is not None and not has_length(self.train_dataset):
            raise ValueError(
                f"max_tokens_per_batch={self.args.max_tokens_per_batch} needs a training dataset with a length, not "
                f"{type(self.train_dataset).__name__}: leave it out, and give per_device_train_batch_size."
            )

    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix="eval", **gen_kwargs):
        self._asked_of_generate = gen_kwargs
        return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix, **gen_kwargs)

    def predict(self, test_dataset, ignore_keys=None, metric_key_prefix="test", **gen_kwargs):
        self._asked_of_generate = gen_kwargs
        return super().predict(test_dataset, ignore_keys, metric_key_prefix, **gen_kwargs)

    def _prepare_inputs(self, inputs):
        inputs = super()._prepare_inputs(inputs)
        if inputs.get("labels") is not None and "decoder_input_ids" not in inputs:
            # The losses are taken outside of the model, which then cannot shift the labels by itself.
            shift = getattr(self.model, "prepare_decoder_input_ids_from_labels", None)
            config = self.model.config
            inputs["decoder_input_ids"] = (
                shift(labels=inputs["labels"])
                if shift
                else shift_tokens_right(inputs["labels"], config.pad_token_id, config.decoder_start_token_id)
            )
        return inputs

    def get_train_dataloader(self):
        if self.args.max_tokens_per_batch is None:
            return super().get_train_dataloader()
        dataset, collator = self.train_dataset, self.data_collator
        sampler = TokenBudgetBatchSampler(
            pair_lengths(dataset),
            self.args.max_tokens_per_batch,
            seed=self.data_seed,
            num_replicas=self.args.world_size,
            rank=self.args.process_index,
            accumulation_steps=self.args.gradient_accumulation_steps,
            pad_to_multiple_of=getattr(collator, "pad_to_multiple_of", None),
        )
        report = sampler.report()
        self._pairs_per_update = report["pairs_per_update"]
        logger.info(
            "Batches of at most %d tokens a side: %d updates an epoch, of %.1f pairs, %.0f source and %.0f target "
            "tokens on average; %.1f%% padding",
            self.args.max_tokens_per_batch,
            *[value * (100 if name == "padding" else 1) for name, value in report.items()],
        )
        if isinstance(dataset, datasets.Dataset):
            dataset = self._remove_unused_columns(dataset, description="training")
        else:
            collator = self._get_collator_with_removed_columns(collator, description="training")
        dataloader = DataLoader(
            dataset,
            batch_sampler=sampler,
            collate_fn=collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
            persistent_workers=self.args.dataloader_persistent_workers,
            prefetch_factor=self.args.dataloader_prefetch_factor,
        )
        # The sampler has already picked this process' batches.
        return prepare_data_loader(
            dataloader, self.accelerator.device, num_processes=1, process_index=0, put_on_device=True
        )

    def get_total_train_batch_size(self, args):
        if args.max_tokens_per_batch is None:
            return super().get_total_train_batch_size(args)
        return round(self._pairs_per_update)

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        inputs = self._prepare_inputs(inputs)
        labels = inputs.pop("labels", None)
        predictions = None
        if self.args.predict_with_generate and not prediction_loss_only:
            sources = {name: inputs[name] for name in ("input_ids", "attention_mask") if name in inputs}
            options = {}
            if self.eval_generation_config:
                search = copy.deepcopy(self.eval_generation_config)
                asked = {name: value for name, value in self._asked_of_generate.items() if value is not None}
                options = search.update(**asked) | {"generation_config": search}
            # Seq2SeqTrainer fills it with defaults (max_length=20), which would count as set in the next batch.
            fields = vars(self.model.generation_config)
            saved = copy.deepcopy(fields)
            self._generates = True
            try:
                _, predictions, _ = super().prediction_step(model, sources, prediction_loss_only, **options)
            finally:
                self._generates = False
                fields.clear()
                fields.update(saved)
        if labels is not None:
            with torch.no_grad(), self.compute_loss_context_manager():
                logits = model(**inputs).logits
            self.add_losses(logits, labels)
        return None, predictions, labels

    def save_model(self, output_dir=None, _internal_call=False):
        super().save_model(output_dir, _internal_call)
        if self.args.should_save and self.target_tokenizer not in (None, self.processing_class):
            self.target_tokenizer.save_pretrained(Path(output_dir or self.args.output_dir) / TARGET_TOKENIZER)


def pair_lengths(dataset) -> np.ndarray:
    """(pairs, 2): numbers of source and target tokens, or of labels; of a class 1."""
    columns = getattr(dataset, "column_names", [])
    if {"source_length", "target_length"} <= set(columns):
        return np.stack([dataset["source_length"][:], dataset["target_length"][:]], axis=1)
    return np.array([(len(pair["input_ids"]), np.size(pair.get("labels", 0))) for pair in dataset])
