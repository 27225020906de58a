# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Exact resumption: a training with `Trainer` that was interrupted continues as if it never stopped."""

import json
import logging
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from accelerate.data_loader import BatchSamplerShard
from transformers import EarlyStoppingCallback, TrainerCallback, TrainerState, TrainingArguments, trainer
from transformers.trainer_jit_checkpoint import JITCheckpointCallback
from transformers.utils.hub import hf_api

from ..options import option
from ..text_files import read_json
from ..texts_ode_transformer import without_truncation
from .checkpoints import (
    CHECKSUMS,
    TRAINER_STATE,
    check_resumable,
    incomplete_reason,
    last_complete_checkpoint,
    locked_folder,
    note_checksums,
    numbered_checkpoints,
    remove_checkpoint,
    remove_leftovers,
    rotate_checkpoints,
    update_number,
)
from .samplers import LengthGroupedSampler, pair_lengths


logger = logging.getLogger(__name__)


@contextmanager
def in_place_of(name: str, function: Callable):
    """Within the context, Trainer calls `function` instead of the function of this name in its module."""
    original = getattr(trainer, name)
    setattr(trainer, name, function)
    try:
        yield
    finally:
        setattr(trainer, name, original)


@contextmanager
def values_kept(model: torch.nn.Module):
    """Gives a model the values, dtypes and devices back that it had before the context. Meanwhile they are in the
    memory of the CPU."""
    kept: deque[tuple[torch.Tensor, torch.device]] = deque()

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append((tensor.detach().cpu(), tensor.device))
        return tensor

    def give_back(tensor: torch.Tensor) -> torch.Tensor:
        value, device = kept.popleft()
        return value.to(device)

    # As `to` does: each parameter stays the same object, for those who share it and for the optimizer.
    model._apply(keep)
    try:
        yield
    finally:
        model._apply(give_back)


class StopAtSigterm(TrainerCallback):
    """After a SIGTERM, of any process, saves a checkpoint at the end of the update and ends the process.

    Trainer's own callback may save between backward pass and step. The resumed run would add up both gradients.
    """

    def __init__(self, accelerator):
        self.accelerator, self.is_stopping = accelerator, False

    @contextmanager
    def handling(self):
        """Within the context, a SIGTERM is noted."""
        before = signal.signal(signal.SIGTERM, lambda *_: self.accelerator.set_trigger())
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    def on_step_end(self, args, state, control, **kwargs):
        self.is_stopping |= self.accelerator.check_trigger()
        control.should_save |= self.is_stopping

    def on_save(self, args, state, control, **kwargs):
        if self.is_stopping:
            if state.is_world_process_zero:
                logger.warning(
                    "SIGTERM: stopped after update %d, of which checkpoint-%d was saved; the same command continues",
                    *(state.global_step, state.global_step),
                )
            self.accelerator.wait_for_everyone()  # a launcher ends the others when the first one ends
            sys.exit(128 + signal.SIGTERM)


class SaveAfterEpoch(TrainerCallback):
    """Delays a checkpoint that is due at the last update of an epoch until the epoch's log and evaluation are done.

    A run resumed from an earlier one would skip them.
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
    """For a Trainer: a training that was interrupted continues as if it never stopped.

    - `train(resume_from_checkpoint=True)` takes the last complete checkpoint: one to which every process has written
      its part. A checkpoint of weights alone, or of another model, is refused. With `save_total_limit`, each save
      first deletes half-written checkpoints, then those of the fewest updates.
    - A run that had ended, by its updates or by early stopping, is not trained any further. Where its last checkpoint
      gave way to the best one (`save_total_limit=1`), the state in the output folder says so.
    - With `enable_jit_checkpoint`, SIGTERM ends the process after the update, with a checkpoint and exit code 143.
    - The steps of logs, evaluations and checkpoints are those of this call.
    - Logged losses and seconds cover the whole training: the sum of losses since the last log is kept, and
      `train_loss` and `train_runtime` at the end are totals over all calls.
    - If the number of processes has changed, the training continues with the mean of their losses. A warning says that
      random numbers differ.
    - The best checkpoint is found even if the output folder was moved. Early stopping takes the patience of this call.
    - The order of an epoch and the seeds of its workers come from the seed and the epoch. Evaluation draws no random
      numbers of the training. A checkpoint due at the last update of an epoch waits for the evaluation. So a resumed
      run repeats the losses of an uninterrupted one, bitwise if torch is deterministic.

    The arguments' `hub_token` is blank from the start, because Trainer saves and uploads it in `training_args.bin`.
    transformers' Hub client holds the token instead, for this process.

    `train_sampling_strategy="group_by_length"` reads lengths from the column `length_column_name` if it exists, and
    otherwise counts input_ids and labels. Evaluation keeps the order of its data.

    Raises:
        ValueError: `bf16_full_eval` or `fp16_full_eval` is asked for with FSDP or DeepSpeed.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._stop_at_sigterm: StopAtSigterm | None = None
        if self.args.enable_jit_checkpoint:
            replaced = self.pop_callback(JITCheckpointCallback)
            signal.signal(signal.SIGTERM, replaced.jit_manager._original_sigterm_handler)
            self._stop_at_sigterm = StopAtSigterm(self.accelerator)
            self.add_callback(self._stop_at_sigterm)
        self.add_callback(SaveAfterEpoch())
        self._hand_over_token()
        self._resumed_from: Path | None = None
        if self._evaluates_in_half_precision and (self.is_fsdp_enabled or self.is_deepspeed_enabled):
            name = "fp16_full_eval" if self.args.fp16_full_eval else "bf16_full_eval"
            raise ValueError(
                f"--{name} casts the model, and the values of a sharded one cannot be kept meanwhile: leave it out. "
                "--bf16 evaluates in half precision, too."
            )

    @property
    def _evaluates_in_half_precision(self) -> bool:
        return self.args.fp16_full_eval or self.args.bf16_full_eval

    def _hand_over_token(self):
        if self.args.hub_token is not None:
            hf_api().token, self.args.hub_token = self.args.hub_token, None

    def _save(self, *args, **kwargs):
        self._hand_over_token()
        without_truncation(self.processing_class)
        super()._save(*args, **kwargs)

    def train(self, resume_from_checkpoint: str | bool | None = None, *args, **kwargs):
        """Trains: from a checkpoint if one is named, or with True from the last complete one in `output_dir`.

        Raises:
            ValueError: the tokenizer pads with a token that the model does not have; the checkpoint cannot be resumed
                (`check_resumable`); with True, there is none that opens; or another process trains in `output_dir`.
            FileNotFoundError: the checkpoint, or the best one so far, to be loaded at the end, is missing.
        """
        pad_token_id = getattr(self.processing_class, "pad_token_id", None)
        for name in ("vocab_size", "decoder_vocab_size"):
            size = getattr(self.model.config, name, None)
            if None not in (size, pad_token_id) and pad_token_id >= size:
                raise ValueError(
                    f"The tokenizer pads with the token {pad_token_id}, but the model has {name}={size}: resize its "
                    "embeddings to fit the tokenizer."
                )
        if resume_from_checkpoint is True:
            resume_from_checkpoint = last_complete_checkpoint(self.args.output_dir)
            if resume_from_checkpoint is None:
                raise ValueError(f"There is no complete checkpoint in {self.args.output_dir} to resume from.")
        if resume_from_checkpoint:
            check_resumable(resume_from_checkpoint, self.model.config)
        self._resumed_from = Path(resume_from_checkpoint) if resume_from_checkpoint else None
        state = self._loss_state(resume_from_checkpoint) if resume_from_checkpoint else {}
        if state and state["processes"] != self.args.world_size:
            logger.warning(
                "%s was written by %d processes, and %d continue it: random numbers, such as those of dropout, differ "
                "from those of an uninterrupted run",
                *(resume_from_checkpoint, state["processes"], self.args.world_size),
            )
        self._start = self._end = None
        self._earlier = {name: state.get(name, 0.0) for name in ("loss", "seconds")}
        checkpoint = str(resume_from_checkpoint) if resume_from_checkpoint else None
        lock = locked_folder(self.args.output_dir) if self.is_world_process_zero() else nullcontext()
        # A resumed run has already done the evaluation of `eval_on_start`; it is in the log.
        starts = self._with_arguments(eval_on_start=self.args.eval_on_start and checkpoint is None)
        with lock, starts, self._stop_at_sigterm.handling() if self._stop_at_sigterm else nullcontext():
            if self.args.should_save:
                remove_leftovers(self.args.output_dir)
            return super().train(checkpoint, *args, **kwargs)

    def _init_training_state(
        self, max_steps, num_update_steps_per_epoch, num_train_epochs, resume_from_checkpoint, trial
    ):
        # Trainer would warn of other steps than those of the checkpoint, whose state has numbers in place of shares.
        noted = read_json(self._resumed_from / TRAINER_STATE) if self._resumed_from else {}
        steps = {name: noted[name] for name in ("logging_steps", "eval_steps", "save_steps") if name in noted}
        with self._with_arguments(**steps):
            trained = super()._init_training_state(
                max_steps, num_update_steps_per_epoch, num_train_epochs, resume_from_checkpoint, trial
            )
        self.state.compute_steps(self.args, max_steps)
        if self._resumed_from is not None and (end := self._end_of_training(max_steps)) is not None:
            self._end = next(entry for entry in end.log_history if "train_runtime" in entry)
            end.log_history.remove(self._end)
            end.best_model_checkpoint = str(self._resumed_from)
            end.init_training_references(self, max_steps, num_train_epochs, trial)
            self.state = end
        # A training that goes on removes it.
        self.accelerator.wait_for_everyone()
        return trained

    def _end_of_training(self, max_steps: int) -> TrainerState | None:
        """The state with which a training of as many updates ended, if the checkpoint that is resumed from is the best
        one, for which the last one was removed."""
        folder, checkpoint = Path(self.args.output_dir), self._resumed_from
        is_own = checkpoint.parent.resolve() == folder.resolve() and (folder / TRAINER_STATE).is_file()
        if not (is_own and self.args.load_best_model_at_end and self.args.save_total_limit == 1):
            return None
        try:
            state = TrainerState.load_from_json(str(folder / TRAINER_STATE))
        except (ValueError, TypeError):  # cut off by a kill
            return None
        is_best = Path(state.best_model_checkpoint or "").name == checkpoint.name
        is_later = state.global_step > self.state.global_step and state.max_steps == max_steps
        has_ended = any("train_runtime" in entry for entry in state.log_history)
        return state if is_best and is_later and has_ended else None

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
        # Trainer forgets it if the folder was moved. It need not be that of the best evaluation, whose update may not
        # have been saved.
        if noted := read_json(self._resumed_from / TRAINER_STATE).get("best_model_checkpoint"):
            # The state may name a folder that another training has written since.
            folders = (Path(self.args.output_dir), self._resumed_from.parent)
            found = [str(folder / Path(noted).name) for folder in folders if (folder / Path(noted).name).is_dir()]
            self.state.best_model_checkpoint = found[0] if found else None
            if not found and self.args.load_best_model_at_end:
                raise FileNotFoundError(
                    f"The best checkpoint so far, of update {update_number(Path(noted))}, is not in "
                    f"{self.args.output_dir}: move it there, or give --load_best_model_at_end False."
                )

    def _run_epoch(self, *, epoch, train_dataloader, resume_from_checkpoint, **kwargs):
        is_first, self._start = self._start is None, self._start or time.monotonic()
        stoppers = [each for each in self.callback_handler.callbacks if isinstance(each, EarlyStoppingCallback)]
        if resume_from_checkpoint and (
            self._end is not None
            or self.state.global_step >= self.state.max_steps
            or any(each.early_stopping_patience_counter >= each.early_stopping_patience for each in stoppers)
        ):
            # Trainer would notice the end of the run only after one more update.
            logger.info("The training ended with update %d: it is not continued", self.state.global_step)
            self.control.should_training_stop = True
            return
        if is_first and self.args.should_save:
            (Path(self.args.output_dir) / TRAINER_STATE).unlink(missing_ok=True)  # of an earlier end
        # Every new iterator draws a seed for its workers. It must not come from training's random numbers: with
        # persistent workers, a resumed run makes another number of iterators.
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

    @contextmanager
    def _with_arguments(self, **values):
        """Within the context, other values of the arguments."""
        asked = {name: getattr(self.args, name) for name in values}
        vars(self.args).update(values)
        try:
            yield
        finally:
            vars(self.args).update(asked)

    # Trainer would reorder evaluations when grouping by length, and drop their last examples: predictions would lose
    # their references.
    def get_eval_dataloader(self, eval_dataset=None):
        with self._with_arguments(train_sampling_strategy="random", dataloader_drop_last=False):
            return super().get_eval_dataloader(eval_dataset)

    def get_test_dataloader(self, test_dataset):
        with self._with_arguments(train_sampling_strategy="random", dataloader_drop_last=False):
            return super().get_test_dataloader(test_dataset)

    def evaluation_loop(self, *args, **kwargs):
        devices = [self.args.device] if self.args.device.type == "cuda" else []
        # Then Trainer casts the model itself, which may have to be saved.
        casts = not self.is_in_train and self._evaluates_in_half_precision
        with torch.random.fork_rng(devices=devices), values_kept(self.model) if casts else nullcontext():
            return super().evaluation_loop(*args, **kwargs)

    def _issue_warnings_after_load(self, load_result):
        # Tied weights are saved once.
        tied = set(getattr(self.model, "all_tied_weights_keys", ()))
        load_result.missing_keys[:] = [name for name in load_result.missing_keys if name not in tied]
        super()._issue_warnings_after_load(load_result)

    def _save_checkpoint(self, model, trial):
        folder = Path(self._get_output_dir(trial))
        current = folder / f"checkpoint-{self.state.global_step}"
        if self.args.should_save:
            if not current.is_dir() and (current.is_file() or current.is_symlink()):
                logger.warning("Deleting %s: its name is needed for a checkpoint", current)
                current.unlink()
            # The folder may be half-written by an earlier run; it counts as such until the end.
            for name in (CHECKSUMS, TRAINER_STATE):
                (current / name).unlink(missing_ok=True)
            if self.args.save_total_limit is not None:
                # Leftovers of a killed run would count among the checkpoints to keep.
                for path in numbered_checkpoints(folder):
                    if path != current and (reason := incomplete_reason(path)):
                        logger.warning("Deleting %s: %s", path, reason)
                        remove_checkpoint(path)
        self.accelerator.wait_for_everyone()
        # It would sort them by the time of their modification.
        with in_place_of("rotate_checkpoints", lambda **options: None):
            super()._save_checkpoint(model, trial)
        if self.args.should_save:
            note_checksums(current)
            rotate_checkpoints(folder, self.args.save_total_limit, self.state.best_model_checkpoint, current)

    def _loss_state_file(self, checkpoint: str | Path) -> Path:
        return Path(checkpoint) / f"loss_state_{self.args.process_index}.json"

    def _loss_state(self, checkpoint: str | Path) -> dict:
        """The losses that this process saved or, if the number of processes has changed, the mean over all."""
        files, own = sorted(Path(checkpoint).glob("loss_state_*.json")), self._loss_state_file(checkpoint)
        if not files:
            return {}
        # Older checkpoints do not say how many processes wrote them.
        state = {"processes": len(files)} | read_json(own if own in files else files[0])
        if state["processes"] != self.args.world_size:
            state["loss_since_last_log"] = state["mean_loss_since_last_log"]
        return state

    def _save_rng_state(self, output_dir):
        super()._save_rng_state(output_dir)
        mean = self.accelerator.gather(self._tr_loss).mean().item()
        state = {
            "loss_since_last_log": self._tr_loss.item(),
            "mean_loss_since_last_log": mean,
            "last_logged_update": self._globalstep_last_logged,
            "loss": self._earlier["loss"] + self._total_loss_scalar + mean,
            "seconds": self._earlier["seconds"] + time.monotonic() - self._start,
            "processes": self.args.world_size,
        }
        self._loss_state_file(output_dir).write_text(json.dumps(state), encoding="utf-8")
        # One process writes trainer_state.json next: it must mean that all processes got here.
        self.accelerator.wait_for_everyone()

    def _load_rng_state(self, checkpoint):
        super()._load_rng_state(checkpoint)
        if checkpoint is not None and (state := self._loss_state(checkpoint)):
            self._tr_loss += state["loss_since_last_log"]
            self._globalstep_last_logged = state["last_logged_update"]
            # The mean over processes, which the next log adds, is part of the earlier losses.
            self._total_loss_scalar -= state["mean_loss_since_last_log"]

    def _finalize_training(self, trial, num_train_samples, *args, **kwargs):
        self._planned_samples = num_train_samples
        # Trainer would remove checkpoints without renaming them first, and nothing would say that the run has ended.
        limit = self.args.save_total_limit
        with self._with_arguments(save_total_limit=None if limit == 1 else limit):
            result = super()._finalize_training(trial, num_train_samples, *args, **kwargs)
        best, is_loaded = self.state.best_model_checkpoint, self.args.load_best_model_at_end
        if self.args.should_save and best is not None and is_loaded and self.args.save_total_limit == 1:
            folder = Path(self._get_output_dir(trial))
            self.state.save_to_json(str(folder / TRAINER_STATE))
            for path in numbered_checkpoints(folder):
                if path.resolve() != Path(best).resolve():
                    remove_checkpoint(path)
        return result

    def log(self, logs, *args, **kwargs):
        if "train_runtime" in logs and self._end is not None:
            logs.update({name: value for name, value in self._end.items() if name not in ("step", "epoch")})
        elif "train_runtime" in logs and self._earlier["seconds"]:
            updates = self.state.global_step
            logs["train_loss"] = (self._earlier["loss"] + self._total_loss_scalar) / updates
            logs["train_runtime"] += self._earlier["seconds"]
            logs["train_steps_per_second"] = updates / logs["train_runtime"]
            if "train_samples_per_second" in logs:
                samples = self._planned_samples * updates / self.state.max_steps
                logs["train_samples_per_second"] = samples / logs["train_runtime"]
        super().log(logs, *args, **kwargs)


@dataclass
class ResumableTrainingArguments(TrainingArguments):
    """TrainingArguments that restore the states of callbacks in a resumed run.

    Raises:
        ValueError: `hub_token` is given.
    """

    restore_callback_states_from_checkpoint: bool = option(
        "Restore the states of callbacks, such as how long early stopping has waited.", True, affects="call"
    )
    hub_token: str | None = option(
        "Not allowed, since training arguments are saved and uploaded: use hf auth login or HF_TOKEN.", affects="call"
    )

    def __post_init__(self):
        if self.hub_token is not None:
            raise ValueError(
                "--hub_token would be saved with the other training arguments (training_args.bin) and uploaded: leave "
                "it out, and log in with `hf auth login`, or set the environment variable HF_TOKEN."
            )
        super().__post_init__()
