# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Features of the original's training that `Trainer` lacks: token-budget batches, losses per token, exact resumption.

`TokenSeq2SeqTrainer` takes any sequence-to-sequence model of transformers:

    arguments = TokenSeq2SeqTrainingArguments("out", max_tokens_per_batch=4096, lr_scheduler_type="inverse_sqrt", ...)
    TokenSeq2SeqTrainer(model=model, args=arguments, train_dataset=dataset, data_collator=collator, ...).train()
"""

import copy
import logging
import math
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import datasets
import numpy as np
import torch
from accelerate.data_loader import prepare_data_loader
from accelerate.utils import reduce
from accelerate.utils.memory import clear_device_cache, should_reduce_batch_size
from torch.distributed.fsdp import FSDPModule, StateDictType
from torch.utils.data import DataLoader
from transformers import (
    GenerationConfig,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_utils import SchedulerType, has_length

from ..inference.cpu import attention_in_float32, cross_entropy, optimize_for_cpu
from ..integration_ode_transformer import StageCoefficients
from ..modeling_ode_transformer import OdeTransformerPreTrainedModel, OdeTransformerStack, shift_tokens_right
from ..options import check_ranges, declarations, option
from ..pipeline_ode_transformer import save_pipeline_code
from ..texts_ode_transformer import TARGET_TOKENIZER, without_truncation
from .arguments import has_fast_bf16
from .checkpoints import update_number
from .losses import has_chunkable_loss, returns_outputs_of_head, states_as_logits, summed_cross_entropy
from .muon import Muon, muon_groups
from .resumption import ResumableTrainerMixin, ResumableTrainingArguments
from .samplers import TokenBudgetBatchSampler, pair_lengths
from .subword_dropout import RecutPairs, SubwordDropout
from .weight_ema import WeightEma, load_weight_ema


logger = logging.getLogger(__name__)

MUON = "muon"
# fairseq gives up here as well: if gradients overflow even at this scale, scaling is not the problem.
MIN_LOSS_SCALE = 1e-4
# The share of the updates in which the learning rate of `warmup_stable_decay` falls.
DECAY_SHARE = 0.2
# Logits are computed for this many tokens at a time in training, or for this share of a batch if that is more.
MIN_LOSS_CHUNK_SIZE, LOSS_CHUNK_SHARE = 1024, 1 / 16


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
def class_before_sharding(model: torch.nn.Module):
    """Gives a model that FSDP2 shards its own class back for saving: files then name the class and carry its code."""
    sharded = type(model)
    if isinstance(model, FSDPModule):
        model.__class__ = next(base for base in sharded.__mro__[1:] if not issubclass(base, FSDPModule))
    try:
        yield
    finally:
        model.__class__ = sharded


@contextmanager
def mean_coefficients(model: torch.nn.Module, is_left_out: Callable[[], bool] = lambda: False):
    """Within the context, sums up the weights that the model's blocks give to their stages. Yields a function that
    returns their means by stack, layer and stage, {"encoder_0_stage_1": 0.97, ...}: over all steps of a block and all
    tokens of all processes, padding included. Coefficients in models of other types are named by their place in the
    model. They are empty if the coefficients are fixed. Forward passes during
    which `is_left_out()` is true do not count."""
    sums, current, hooks = {}, {}, []

    def enter(layer, args, name):
        current["layer"] = name

    def record(coefficients, args, weights, path):
        if is_left_out():
            return
        layer = current.get("layer", path)
        for stage, weight in enumerate(weights, start=1):
            total, count = sums.get(name := f"{layer}_stage_{stage}", (0, 0))
            sums[name] = total + weight.detach().float().sum(), count + weight.numel()

    for path, module in model.named_modules():
        if isinstance(module, OdeTransformerStack):
            for number, layer in enumerate(module.layers):
                hooks.append(layer.register_forward_pre_hook(partial(enter, name=f"{module.stack}_{number}")))
        elif isinstance(module, StageCoefficients) and any(True for _ in module.parameters()):
            hooks.append(module.register_forward_hook(partial(record, path=path.replace(".", "_"))))

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


def score_of_kept(state: TrainerState, name: str) -> float | None:
    """The value of a metric for the model with which a training ended: for the best checkpoint, or for the last update
    if none was saved as the best one. None if it was not evaluated then. The best evaluation may be of another update,
    which was not saved."""
    update = update_number(Path(state.best_model_checkpoint)) if state.best_model_checkpoint else state.global_step
    found = [entry[name] for entry in state.log_history if entry["step"] == update and name in entry]
    return found[-1] if found else None


class TokenTrainerMixin(ResumableTrainerMixin):
    """For a Trainer: losses are means over target tokens, a resumed run repeats the uninterrupted one, NaN stops it.

    - **Losses** are divided by the target tokens of the whole update, over accumulated batches and processes. Labels
      must be aligned with the logits, and `prediction_step` must pass both to `add_losses`. Evaluation then adds loss,
      nll_loss (without label smoothing) and perplexity to the metrics.
    - **The schedule** `warmup_stable_decay` lowers the learning rate in the last fifth of the updates, unless
      `lr_scheduler_kwargs` say otherwise.
    - **Resuming** works as in `ResumableTrainerMixin`.
    - **A batch that does not fit into memory** is computed in parts with `auto_find_batch_size`. Updates stay the
      same.
    - **A loss or gradient that is not finite** raises FloatingPointError. The message names the update, the examples
      (by the column "index" of the training data) and the parameters. Under a loss scale (fp16), overflowing
      gradients only lower the scale, down to `MIN_LOSS_SCALE`.
    """

    arguments_class: type[TrainingArguments]

    def __init__(self, *args, **kwargs):
        given, name = kwargs.get("args", args[1] if len(args) > 1 else None), type(self).__name__
        if not isinstance(given, self.arguments_class):
            raise TypeError(f"{name} needs {self.arguments_class.__name__} as args, not {type(given).__name__}.")
        super().__init__(*args, **kwargs)
        if self.compute_loss_func is not None:
            raise ValueError(f"{name} computes the loss, a mean over target tokens: leave out compute_loss_func.")
        self.compute_loss_func = self.mean_loss
        self._is_optimized = self.args.optimize_for_cpu and self.args.device.type == "cpu"
        if self._is_optimized:
            optimize_for_cpu(self.model)
        self._set_signature_columns_if_needed()
        self._signature_columns.append("index")
        self._update_index = []
        self._finds_parts = False
        self._logits_are_last: bool | None = None
        self._update, self._update_batches = -1, []
        self._generates = False
        if self.args.weight_ema:
            if self.is_deepspeed_enabled:
                raise ValueError(f"--weight_ema {self.args.weight_ema} cannot be used with DeepSpeed: leave it out.")
            self.add_callback(WeightEma(self.args.weight_ema))

    def train(self, *args, **kwargs):
        """As `ResumableTrainerMixin.train`; ends with the averages of the weights if `weight_ema` asks for them.

        Raises:
            ValueError: `auto_find_batch_size` is asked for with several processes.
        """
        self._finds_parts = self.args.auto_find_batch_size
        if self._finds_parts and self.args.world_size > 1:
            raise ValueError(
                "--auto_find_batch_size is for one process, since the others would wait for the one that is out of "
                "memory: find the batch size with one, and give it."
            )
        # Trainer would begin anew with smaller batches and other updates.
        with self._with_arguments(auto_find_batch_size=False):
            result = super().train(*args, **kwargs)
        if self.args.weight_ema:
            self.take_if_better("the moving average", lambda: load_weight_ema(self.optimizer))
        return result

    def take_if_better(self, name: str, load: Callable[[], None]) -> None:
        """Lets `load` replace the weights with which a training ended. With `load_best_model_at_end`, keeps these if
        they are as good on the validation data."""
        if not self.args.load_best_model_at_end:
            load()
            return
        weights = {key: tensor.clone() for key, tensor in self.model.state_dict().items()}
        load()
        metric = self.args.metric_for_best_model.removeprefix("eval_")
        dataset, prefix = self.eval_dataset, "average"
        if isinstance(dataset, dict):
            chosen = max((each for each in dataset if metric.startswith(f"{each}_")), key=len)
            dataset, prefix = dataset[chosen], f"average_{chosen}"
        score = self.predict(dataset, metric_key_prefix=prefix).metrics[f"average_{metric}"]
        best_score = score_of_kept(self.state, f"eval_{metric}")
        is_better = best_score is None or (score > best_score if self.args.greater_is_better else score < best_score)
        if not is_better:
            self.model.load_state_dict(weights)
        kept = name if is_better else "the best checkpoint"
        logger.info(
            "Validation %s: %s for %s, %s for the best checkpoint; kept %s", metric, score, name, best_score, kept
        )

    def evaluate(self, *args, **kwargs):
        """As Trainer's; but of checkpoints with the same score the latest is the best, as in fairseq. BLEU is 0 at
        first."""
        metrics, best = super().evaluate(*args, **kwargs), self.args.metric_for_best_model
        if self.is_in_train and best and metrics.get(f"eval_{best.removeprefix('eval_')}") == self.state.best_metric:
            self.state.best_metric = None
        return metrics

    def create_optimizer(self, model=None):
        if self.optimizer is None and self.args.optim == MUON:
            args, model = self.args, self.model if model is None else model
            groups = muon_groups(
                model, args.muon_learning_rate, args.weight_decay, self.get_decay_parameter_names(model)
            )
            is_fast = args.device.type != "cpu" or has_fast_bf16()
            self.optimizer = Muon(
                groups,
                dtype=torch.bfloat16 if is_fast else torch.float32,
                lr=args.learning_rate,
                betas=(args.adam_beta1, args.adam_beta2),
                eps=args.adam_epsilon,
            )
        if self.accelerator.is_fsdp2:
            # Accelerate groups input and output embeddings, but overlooks a second stack's, and fails if all are one
            # parameter. While it shards the model, it sees none: all are grouped with the modules outside layers.
            self.model.get_input_embeddings = self.model.get_output_embeddings = lambda: None
        return super().create_optimizer(model)

    def create_scheduler(self, num_training_steps, optimizer=None):
        for name in ("get_input_embeddings", "get_output_embeddings"):
            vars(self.model).pop(name, None)
        args = self.args
        if args.lr_scheduler_type == SchedulerType.WARMUP_STABLE_DECAY:
            decay = {"num_decay_steps": math.ceil(DECAY_SHARE * num_training_steps)}
            args.lr_scheduler_kwargs = decay | (args.lr_scheduler_kwargs or {})
        return super().create_scheduler(num_training_steps, optimizer)

    def compute_loss(self, model, inputs, *args, **kwargs):
        head = self.head_of_chunks(model, inputs)
        if head is None:
            return super().compute_loss(model, inputs, *args, **kwargs)
        self.compute_loss_func = partial(self.mean_loss, head=head)
        try:
            with states_as_logits(head):
                return super().compute_loss(model, inputs, *args, **kwargs)
        finally:
            self.compute_loss_func = self.mean_loss

    def head_of_chunks(self, model: torch.nn.Module, inputs: dict) -> torch.nn.Linear | None:
        """The output projection, if losses are computed in chunks of tokens; None otherwise."""
        base = self.accelerator.unwrap_model(model, keep_torch_compile=False)
        is_split = self.is_fsdp_enabled or self.is_deepspeed_enabled or self.args.n_gpu > 1
        if self.args.loss_chunk_size == 0 or is_split or not has_chunkable_loss(base, self.args.world_size > 1):
            return None
        if self._logits_are_last is None:
            is_own = isinstance(base, OdeTransformerPreTrainedModel)
            self._logits_are_last = is_own or returns_outputs_of_head(base, inputs)
        return base.lm_head if self._logits_are_last else None

    def loss_chunk_size(self, tokens: int) -> int:
        """The number of a batch's tokens whose logits are in memory at a time in training."""
        return self.args.loss_chunk_size or max(MIN_LOSS_CHUNK_SIZE, math.ceil(LOSS_CHUNK_SHARE * tokens))

    def mean_loss(self, outputs, labels, num_items_in_batch, head: torch.nn.Linear | None = None):
        """The loss of an update. With a head, `outputs.logits` are states; logits are computed in chunks."""
        smoothing = self.args.label_smoothing_factor
        if head is None:
            loss = losses_by_row(outputs.logits, labels, smoothing).sum()
        else:
            states, labels = outputs.logits.flatten(0, 1), labels.flatten()
            with self.accelerator.autocast():
                size = self.loss_chunk_size(len(labels))
                loss = summed_cross_entropy(states, head.weight, head.bias, labels, smoothing, size)
        # Under DataParallel, Trainer multiplies the loss by the number of devices.
        return loss / num_items_in_batch / max(self.args.n_gpu, 1)

    def add_losses(self, logits: torch.Tensor, labels: torch.Tensor) -> None:
        nll, smoothing = losses_by_row(logits, labels), self.args.label_smoothing_factor
        losses = losses_by_row(logits, labels, smoothing) if smoothing else nll
        rows = torch.stack([losses, nll, (labels != -100).sum(-1)], dim=-1)
        # Drops the examples that processes repeat to fill their last batch.
        self.loss_sums.append(self.accelerator.gather_for_metrics(rows).sum(0))

    def evaluation_loop(self, *args, metric_key_prefix="eval", **kwargs):
        self.loss_sums: list[torch.Tensor] = []
        self.evaluated_prefix = metric_key_prefix
        is_recorded = self.args.log_coefficients
        with mean_coefficients(self.model, lambda: self._generates) if is_recorded else nullcontext(dict) as means:
            output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        output.metrics.update({f"{metric_key_prefix}_coefficient_{name}": mean for name, mean in means().items()})
        sums = torch.stack(self.loss_sums or [torch.zeros(3)]).cpu().double().sum(0)
        loss, nll, tokens = sums.tolist()
        if tokens:
            output.metrics[f"{metric_key_prefix}_loss"] = loss / tokens
            output.metrics[f"{metric_key_prefix}_nll_loss"] = nll / tokens
            output.metrics[f"{metric_key_prefix}_perplexity"] = float(np.exp(nll / tokens))
        return output

    def training_step(self, model, inputs, *args, **kwargs):
        inputs = dict(inputs)
        index = inputs.pop("index", None)
        step = super().training_step
        compute = partial(self.step_in_parts, step) if self._finds_parts else step
        with attention_in_float32() if self._is_optimized and not self.args.torch_compile else nullcontext():
            loss = compute(model, inputs, *args, **kwargs)
        self._update_index += [] if index is None else index.tolist()
        if not loss.isfinite():
            self._stop("loss", loss)
        return loss

    def step_in_parts(
        self, step: Callable[..., torch.Tensor], model: torch.nn.Module, inputs: dict, *args, **kwargs
    ) -> torch.Tensor:
        """The loss of a batch, whose gradient is added up over as many parts of its rows as memory needs. Where more
        parts are needed than before, the gradient of the update is computed once more from its beginning."""
        if self._update != self.state.global_step:
            self._update, self._update_batches = self.state.global_step, []
        self._update_batches.append(inputs)
        batches = [inputs]
        while True:
            try:
                for batch in batches:
                    parts = zip(*(tensor.chunk(self.parts) for tensor in batch.values()), strict=True)
                    losses = [step(model, dict(zip(batch, part)), *args, **kwargs) for part in parts]
                return torch.stack(losses).sum()
            except RuntimeError as error:
                rows = max(len(batch["labels"]) for batch in self._update_batches)
                if self.parts >= rows or not should_reduce_batch_size(error):
                    raise
            batches, self.parts = self._update_batches, 2 * self.parts
            model.zero_grad()
            clear_device_cache(garbage_collection=True)
            logger.warning(
                "Out of memory in update %d: from here on each batch is computed in %d parts, whose gradients are "
                "added up; the updates stay the same",
                *(self.state.global_step + 1, self.parts),
            )

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

    def save_model(self, output_dir=None, _internal_call=False):
        plugin = self.accelerator.state.fsdp_plugin if self.is_fsdp_enabled else None
        is_sharded = plugin is not None and plugin.state_dict_type == StateDictType.SHARDED_STATE_DICT
        is_checkpoint = _internal_call and output_dir is not None
        with class_before_sharding(self.model):
            if is_sharded and not is_checkpoint:
                # The final model must open with `from_pretrained`. `push_to_hub` saves it once more.
                self._save(output_dir, state_dict=self.accelerator.get_state_dict(self.model))
            super().save_model(output_dir, _internal_call)
            if is_sharded and is_checkpoint and self.args.should_save:
                # The weights of a checkpoint are written with the optimizer's state, by all processes.
                self.model.config.architectures = [type(self.model).__name__]
                self.model.config.save_pretrained(output_dir)
                if self.model.can_generate():
                    self.model.generation_config.save_pretrained(output_dir)
                if self.processing_class is not None:
                    self.processing_class.save_pretrained(output_dir)


@dataclass
class TokenTrainingArguments(ResumableTrainingArguments):
    """TrainingArguments for which the lowest perplexity is best; resumed runs restore the states of callbacks.

    Raises:
        ValueError: the highest perplexity is to be the best (`greater_is_better`), or a value is out of its range.
    """

    optimize_for_cpu: bool = option(
        "On a CPU, train with faster kernels than PyTorch's defaults.", True, affects="call"
    )
    loss_chunk_size: int | None = option(
        "Compute the logits and gradients of the training loss for this many tokens at a time, which saves memory; "
        "0 takes all at once, as do models that change the logits of their head or are split by FSDP or DeepSpeed; "
        "default: a sixteenth of a batch, at least 1024.",
        affects="call",
        least=0,
    )
    auto_find_batch_size: bool = option(
        "When a batch does not fit into memory, compute it and those after it in two parts, then four and so on, and "
        "add up their gradients: the updates stay the same.",
        False,
        affects="result",
    )
    log_coefficients: bool = option(
        "Add the mean weight of each stage of each layer to the metrics of evaluations.", False, affects="result"
    )
    optim: str = option(
        "muon, or an optimizer of transformers, such as adamw_torch_fused or adafactor.",
        str(TrainingArguments.__dataclass_fields__["optim"].default),
    )
    muon_learning_rate: float = option(
        "Peak learning rate of the matrices of attention and feed-forward with --optim muon; all other "
        "parameters have --learning_rate.",
        0.006,
    )
    weight_ema: float = option(
        "End with an exponential moving average of the weights, with this decay after each update, such "
        "as 0.999; with --load_best_model_at_end, only if it is better than the best checkpoint; default: none.",
        0.0,
        least=0,
        below=1,
    )

    def __post_init__(self):
        check_ranges(vars(self), declarations(type(self)))
        if str(self.metric_for_best_model).endswith("perplexity"):
            if self.greater_is_better:
                raise ValueError(
                    f"--metric_for_best_model {self.metric_for_best_model} is better when lower: leave out "
                    "--greater_is_better True."
                )
            # Trainer takes only losses for what is best when low.
            self.greater_is_better = False
        # Trainer knows no optimizer of this name.
        uses_muon = self.optim == MUON
        if uses_muon:
            self.optim = type(self).optim
        super().__post_init__()
        if uses_muon:
            self.optim = MUON


@dataclass
class TokenSeq2SeqTrainingArguments(TokenTrainingArguments, Seq2SeqTrainingArguments):
    """Seq2SeqTrainingArguments with token-budget batches; a resumed run restores the states of its callbacks.

    Args:
        max_tokens_per_batch: The most source tokens and the most target tokens of a batch, padding included. None:
            batches of `per_device_train_batch_size` pairs.
        subword_dropout: How randomly the words of training pairs are cut; `SubwordDropout` describes it. 0: as always.
        optimize_for_cpu: On a CPU, train with faster kernels than PyTorch's defaults.
        muon_learning_rate: Peak learning rate of the matrices with `optim="muon"`.
        weight_ema: Decay of an average of the weights, with which the training ends. 0: none.
        loss_chunk_size: Tokens whose logits are computed at a time. 0: all; None: a sixteenth of them, at least 1024.
        log_coefficients: Add the mean stage weights to the metrics of evaluations.

    Raises:
        ValueError: a value is out of its range, or `max_tokens_per_batch` meets another sampling strategy.
    """

    max_tokens_per_batch: int | None = option(
        "Maximum number of source tokens and of target tokens per batch, padding included, on each device "
        "and accumulation step. Pairs of similar length share a batch; --per_device_train_batch_size is ignored; "
        "default: batches of --per_device_train_batch_size pairs.",
        least=1,
    )

    subword_dropout: float = option(
        "Cut the words of training pairs into other pieces in each epoch: the probability with which BPE "
        "skips a merge, or the exponent of a unigram model's probabilities, such as 0.1; default: none.",
        0.0,
        least=0,
        below=1,
    )

    def __post_init__(self):
        super().__post_init__()
        if self.subword_dropout and self.max_tokens_per_batch is None:
            raise ValueError(f"--subword_dropout {self.subword_dropout} needs --max_tokens_per_batch.")
        if self.max_tokens_per_batch is not None and self.train_sampling_strategy != "random":
            raise ValueError(
                f"--max_tokens_per_batch {self.max_tokens_per_batch} already groups pairs by length and draws batches "
                f"at random: leave out --train_sampling_strategy {self.train_sampling_strategy}."
            )


class TokenSeq2SeqTrainer(TokenTrainerMixin, Seq2SeqTrainer):
    """Seq2SeqTrainer for sequence-to-sequence models: token-budget batches, losses per token, exact resumption.

    Its datasets hold input_ids and labels; the optional columns source_length and target_length save counting tokens.
    `TokenTrainerMixin` describes losses, resumption and values that are not finite.

    Args:
        eval_generation_config: The search of `evaluate` and `predict`; their own options (`num_beams=5`) override it.
            None: as with Seq2SeqTrainer, the model's generation configuration, changed by the arguments
            `generation_num_beams` and `generation_max_length`.
        target_tokenizer: Tokenizer of the target side. If it is not `processing_class`, every checkpoint also holds
            it, in the folder `target_tokenizer`.

    Raises:
        ValueError: `compute_metrics` is given without `predict_with_generate`; a `compute_loss_func` is given;
            or token-budget batches are asked of a dataset without a length.
        TypeError: `args` are not `TokenSeq2SeqTrainingArguments`.
    """

    arguments_class = TokenSeq2SeqTrainingArguments

    def __init__(self, *args, eval_generation_config: GenerationConfig | None = None, target_tokenizer=None, **kwargs):
        self.eval_generation_config = eval_generation_config
        self.target_tokenizer = target_tokenizer
        self._asked_of_generate = {}
        super().__init__(*args, **kwargs)
        if self.compute_metrics is not None and not self.args.predict_with_generate:
            raise ValueError(
                "compute_metrics needs generated tokens: give predict_with_generate=True, or leave it out."
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

    def with_decoder_inputs(self, inputs: dict) -> dict:
        """The inputs of a model with the decoder's: losses are computed outside the model, so the labels are shifted
        here."""
        if inputs.get("labels") is None or "decoder_input_ids" in inputs:
            return inputs
        labels, config = inputs["labels"], self.model.config
        if shift := getattr(self.model, "prepare_decoder_input_ids_from_labels", None):
            return {**inputs, "decoder_input_ids": shift(labels=labels)}
        shifted = shift_tokens_right(labels, config.pad_token_id, config.decoder_start_token_id)
        return {**inputs, "decoder_input_ids": shifted}

    def compute_loss(self, model, inputs, *args, **kwargs):
        return super().compute_loss(model, self.with_decoder_inputs(inputs), *args, **kwargs)

    def get_train_dataloader(self):
        if self.args.max_tokens_per_batch is None:
            return super().get_train_dataloader()
        dataset, collator = self.train_dataset, self.data_collator
        lengths = pair_lengths(dataset)
        sampler = TokenBudgetBatchSampler(
            lengths,
            self.args.max_tokens_per_batch,
            seed=self.data_seed,
            num_replicas=self.args.world_size,
            rank=self.args.process_index,
            accumulation_steps=self.args.gradient_accumulation_steps,
            pad_to_multiple_of=getattr(collator, "pad_to_multiple_of", None),
            marks_epochs=bool(self.args.subword_dropout),
        )
        report = sampler.report()
        self._pairs_per_update = report["pairs_per_update"]
        logger.info(
            "Batches of at most %d tokens per side: %d updates per epoch, with %.1f pairs, %.0f source and %.0f "
            "target tokens on average; %.1f%% padding",
            self.args.max_tokens_per_batch,
            *[value * (100 if name == "padding" else 1) for name, value in report.items()],
        )
        if isinstance(dataset, datasets.Dataset):
            dataset = self._remove_unused_columns(dataset, description="training")
        else:
            collator = self._get_collator_with_removed_columns(collator, description="training")
        if strength := self.args.subword_dropout:
            tokenizers = (self.processing_class, self.target_tokenizer or self.processing_class)
            dropouts = [SubwordDropout(tokenizer, strength) for tokenizer in tokenizers]
            dataset = RecutPairs(dataset, dropouts, lengths.max(axis=0).tolist(), self.data_seed)
        dataloader = DataLoader(
            dataset,
            batch_sampler=sampler,
            collate_fn=collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
            persistent_workers=self.args.dataloader_persistent_workers,
            prefetch_factor=self.args.dataloader_prefetch_factor,
        )
        # The sampler already picked this process's batches.
        return prepare_data_loader(
            dataloader, self.accelerator.device, num_processes=1, process_index=0, put_on_device=True
        )

    def get_total_train_batch_size(self, args):
        if args.max_tokens_per_batch is None:
            return super().get_total_train_batch_size(args)
        return round(self._pairs_per_update)

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        inputs = self.with_decoder_inputs(self._prepare_inputs(inputs))
        labels = inputs.pop("labels", None)
        inputs.pop("index", None)
        predictions = None
        if self.args.predict_with_generate and not prediction_loss_only:
            sources = {name: inputs[name] for name in ("input_ids", "attention_mask") if name in inputs}
            options = {}
            if self.eval_generation_config:
                search = copy.deepcopy(self.eval_generation_config)
                asked = {name: value for name, value in self._asked_of_generate.items() if value is not None}
                options = search.update(**asked) | {"generation_config": search}
            # Seq2SeqTrainer fills it with defaults (max_length=20), which the next batch would take as given.
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
        if not self.args.should_save:
            return
        folder = Path(output_dir or self.args.output_dir)
        save_pipeline_code(self.model.config, folder)
        if self.target_tokenizer not in (None, self.processing_class):
            without_truncation(self.target_tokenizer).save_pretrained(folder / TARGET_TOKENIZER)
