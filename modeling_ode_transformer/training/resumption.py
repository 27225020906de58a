# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Exact resumption: a training with `Trainer` that was interrupted continues as if it never stopped."""

import logging
import signal
import sys
import time
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from accelerate.data_loader import BatchSamplerShard
from accelerate.utils import gather_object
from transformers import EarlyStoppingCallback, TrainerCallback, TrainingArguments
from transformers.trainer_jit_checkpoint import JITCheckpointCallback
from transformers.utils.hub import hf_api

from ..options import option
from ..text_files import read_json
from ..texts_ode_transformer import without_truncation
from .checkpoints import (
    CHECKSUMS,
    PROGRESS,
    TRAINER_STATE,
    check_resumable,
    last_complete_checkpoint,
    locked_folder,
    note_checksums,
    remove_leftovers,
    rotate_checkpoints,
    update_number,
    write_json,
)
from .samplers import LengthGroupedSampler, pair_lengths


logger = logging.getLogger(__name__)

STEPS = ("logging_steps", "eval_steps", "save_steps")


class Progress(TrainerCallback):
    """What a resumed run needs beside what Trainer saves, in the file PROGRESS of each checkpoint: the losses since
    the last log, the parts of a batch, and of all calls the sum of losses and the seconds. The checksums of a
    checkpoint's files, noted last, show damage later."""

    def __init__(self, trainer: "ResumableTrainerMixin"):
        self.trainer = trainer
        # The checkpoint that is resumed from and the state in its PROGRESS; the checkpoint that is being written.
        self.resumed_from: Path | None = None
        self.noted: dict = {}
        self.current: Path | None = None
        # Of earlier calls: the sum of the losses of their updates, and their seconds.
        self.loss = self.seconds = self.start = 0.0

    @property
    def stoppers(self) -> list[EarlyStoppingCallback]:
        return [each for each in self.trainer.callback_handler.callbacks if isinstance(each, EarlyStoppingCallback)]

    def prepare(self, checkpoint: Path | None) -> dict:
        """Reads what a checkpoint, if any, holds for the training that begins; `ResumableTrainerMixin.train` describes
        the errors. Returns those arguments by name that Trainer is to see with other values."""
        trainer, args = self.trainer, self.trainer.args
        self.resumed_from, self.noted, self.best = checkpoint, {}, None
        self.loss, self.seconds, self.start = 0.0, 0.0, time.monotonic()
        self.limit, self.steps = args.save_total_limit, {name: getattr(args, name) for name in STEPS}
        self.patience = {
            type(each): (each.early_stopping_patience, each.early_stopping_threshold) for each in self.stoppers
        }
        if checkpoint is None:
            return {"save_total_limit": None}
        check_resumable(checkpoint, trainer.model.config)
        state = read_json(checkpoint / TRAINER_STATE)
        if (checkpoint / PROGRESS).is_file():
            self.noted = read_json(checkpoint / PROGRESS)
        if self.noted and len(self.noted["by_process"]) != args.world_size:
            logger.warning(
                "%s was written by %d processes, and %d continue it: random numbers, such as those of dropout, differ "
                "from those of an uninterrupted run",
                *(checkpoint, len(self.noted["by_process"]), args.world_size),
            )
        # It need not be that of the best evaluation, whose update may not have been saved. The state may name a folder
        # that another training has written since.
        if (best := state.get("best_model_checkpoint")) is not None:
            places = [Path(folder) / Path(best).name for folder in (args.output_dir, checkpoint.parent)]
            self.best = next((str(place) for place in places if place.is_dir()), None)
            if self.best is None and args.load_best_model_at_end:
                raise FileNotFoundError(
                    f"The best checkpoint so far, of update {update_number(Path(best))}, is not in "
                    f"{args.output_dir}: move it there, or give --load_best_model_at_end False."
                )
        # The evaluation of `eval_on_start` was done. Trainer would warn of other steps than the checkpoint's.
        steps = {name: state[name] for name in STEPS if name in state}
        return {"save_total_limit": None, "eval_on_start": False} | steps

    def state_dict(self) -> dict:
        """The state for JSON. All processes call this together."""
        trainer = self.trainer
        by_process = gather_object([{"loss_since_last_log": trainer._tr_loss.item()}])
        return {
            "by_process": by_process,
            "last_logged_update": trainer._globalstep_last_logged,
            "parts": trainer.parts,
            "loss": self.loss + trainer._total_loss_scalar + mean_loss(by_process),
            "seconds": self.seconds + time.monotonic() - self.start,
        }

    def load_state_dict(self, state: dict) -> None:
        """Continues from a state; from that of other numbers of processes with the mean of their losses."""
        trainer, by_process = self.trainer, state["by_process"]
        mean = mean_loss(by_process)
        is_same = len(by_process) == trainer.args.world_size
        trainer._tr_loss += by_process[trainer.args.process_index]["loss_since_last_log"] if is_same else mean
        trainer._globalstep_last_logged = state["last_logged_update"]
        trainer.parts = state.get("parts", 1)
        # The mean over processes, which the next log adds, is part of the earlier losses.
        trainer._total_loss_scalar -= mean
        self.loss, self.seconds = state["loss"], state["seconds"]

    def on_train_begin(self, args, state, control, **kwargs):
        self.start = time.monotonic()
        if self.resumed_from is None:
            return
        if self.noted:
            self.load_state_dict(self.noted)
        # Trainer has the steps and the patience of the checkpoint.
        vars(args).update(self.steps)
        state.compute_steps(args, state.max_steps)
        state.best_model_checkpoint = self.best
        for each in self.stoppers:
            each.early_stopping_patience, each.early_stopping_threshold = self.patience[type(each)]

    def begin_checkpoint(self, folder: Path) -> None:
        """Writes PROGRESS, the first file of a checkpoint. All processes call this together."""
        self.current, state = folder, self.state_dict()
        if self.trainer.args.should_save:
            # The folder may be half-written by an earlier run; it counts as such until the end.
            for name in (CHECKSUMS, TRAINER_STATE):
                (folder / name).unlink(missing_ok=True)
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / PROGRESS, state)
        self.trainer.accelerator.wait_for_everyone()

    def on_save(self, args, state, control, **kwargs):
        self.trainer.accelerator.wait_for_everyone()
        if not args.should_save:
            return
        note_checksums(self.current)
        rotate_checkpoints(self.current.parent, self.limit, state.best_model_checkpoint, self.current)


def mean_loss(by_process: list[dict]) -> float:
    """The mean over processes of their losses since the last log, rounded as in Trainer's log."""
    return torch.tensor([each["loss_since_last_log"] for each in by_process]).mean().item()


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
      its part. A checkpoint of weights alone, or of another model, is refused. With `save_total_limit`,
      half-written checkpoints are deleted first, then those of the fewest updates; the last one and the best one stay.
    - A run that had ended, by its updates or by early stopping, is not trained any further.
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
        ValueError: `bf16_full_eval` or `fp16_full_eval` is asked for.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        for name in ("fp16_full_eval", "bf16_full_eval"):
            if getattr(self.args, name):
                raise ValueError(
                    f"--{name} casts the model for good, and its weights are saved later: leave it out. --bf16 "
                    "evaluates in half precision, too."
                )
        # In how many parts each batch is computed.
        self.parts = 1
        self.progress = Progress(self)
        self.add_callback(self.progress)
        self._stop_at_sigterm: StopAtSigterm | None = None
        if self.args.enable_jit_checkpoint:
            replaced = self.pop_callback(JITCheckpointCallback)
            signal.signal(signal.SIGTERM, replaced.jit_manager._original_sigterm_handler)
            self._stop_at_sigterm = StopAtSigterm(self.accelerator)
            self.add_callback(self._stop_at_sigterm)
        self.add_callback(SaveAfterEpoch())
        self._hand_over_token()
        # Trainer would warn of a checkpoint that lacks tied weights, which are saved once.
        if tied := set(getattr(self.model, "all_tied_weights_keys", ())):
            self.model._keys_to_ignore_on_save = tied

    def _hand_over_token(self):
        if self.args.hub_token is not None:
            hf_api().token, self.args.hub_token = self.args.hub_token, None

    @property
    def data_seed(self) -> int:
        return self.args.seed if self.args.data_seed is None else self.args.data_seed

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
        output_dir = self.args.output_dir
        if resume_from_checkpoint is True:
            resume_from_checkpoint = last_complete_checkpoint(output_dir)
            if resume_from_checkpoint is None:
                raise ValueError(f"There is no complete checkpoint in {output_dir} to resume from.")
        checkpoint = Path(resume_from_checkpoint) if resume_from_checkpoint else None
        changed = self.progress.prepare(checkpoint)
        lock = locked_folder(output_dir) if self.is_world_process_zero() else nullcontext()
        handling = self._stop_at_sigterm.handling() if self._stop_at_sigterm else nullcontext()
        with lock, handling, self._with_arguments(**changed):
            if self.args.should_save:
                remove_leftovers(output_dir)
            return super().train(str(checkpoint) if checkpoint else None, *args, **kwargs)

    def _run_epoch(self, *, epoch, train_dataloader, resume_from_checkpoint, **kwargs):
        stoppers = self.progress.stoppers
        is_patient = all(each.early_stopping_patience_counter < each.early_stopping_patience for each in stoppers)
        if resume_from_checkpoint and (self.state.global_step >= self.state.max_steps or not is_patient):
            # Trainer would notice the end of the run only after one more update.
            logger.info("The training ended with update %d: it is not continued", self.state.global_step)
            self.control.should_training_stop = True
            return
        # Every new iterator draws a seed for its workers. It must not come from training's random numbers: with
        # persistent workers, a resumed run makes another number of iterators.
        train_dataloader.base_dataloader.generator = torch.Generator().manual_seed(self.data_seed + epoch)
        super()._run_epoch(
            epoch=epoch,
            train_dataloader=train_dataloader,
            resume_from_checkpoint=resume_from_checkpoint,
            **kwargs,
        )

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
        with torch.random.fork_rng(devices=devices):
            return super().evaluation_loop(*args, **kwargs)

    def save_model(self, output_dir=None, _internal_call=False):
        """Saves the model. A checkpoint, which Trainer begins with it, has PROGRESS first."""
        self._hand_over_token()
        without_truncation(self.processing_class)
        if _internal_call and output_dir is not None:
            self.progress.begin_checkpoint(Path(output_dir))
        super().save_model(output_dir, _internal_call)

    def log(self, logs, *args, **kwargs):
        if "train_runtime" in logs and self.progress.seconds:
            updates = self.state.global_step
            logs["train_loss"] = (self.progress.loss + self._total_loss_scalar) / updates
            logs["train_runtime"] += self.progress.seconds
            logs["train_steps_per_second"] = updates / logs["train_runtime"]
            if "train_samples_per_second" in logs:
                samples = updates * self.get_total_train_batch_size(self.args)
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
