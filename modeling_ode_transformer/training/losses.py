# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Cross entropy of a language modeling head in chunks of tokens: the logits, by far the largest tensors of a training
step, are never in memory as a whole."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn

from ..inference.cpu import tokens_in_cache
from ..layers_ode_transformer import autocast_dtype


class SummedCrossEntropy(torch.autograd.Function):
    """See `summed_cross_entropy`. Computing the gradients with the loss saves computing logits twice."""

    @staticmethod
    def forward(ctx, states, weight, bias, labels, label_smoothing, chunk_size):
        dtype = autocast_dtype(states)
        cast_weight = weight.to(dtype)
        cast_bias = None if bias is None else bias.to(dtype)
        of_states, of_weight, of_bias = ctx.needs_input_grad[:3]
        state_gradients = []
        weight_gradient = torch.zeros_like(weight) if of_weight else None
        bias_gradient = torch.zeros_like(bias) if of_bias else None
        loss = torch.zeros((), dtype=torch.float32, device=states.device)
        with torch.autocast(states.device.type, enabled=False):
            for part, targets in zip(states.split(chunk_size), labels.split(chunk_size)):
                part = part.to(dtype)
                logits = nn.functional.linear(part, cast_weight, cast_bias)
                size = tokens_in_cache(logits)
                for rows, own in zip(logits.split(size), targets.unsqueeze(1).split(size)):
                    is_kept, own = own != -100, own.clamp(min=0)
                    log_probs = rows.float().log_softmax(dim=-1)
                    losses = (label_smoothing - 1) * log_probs.gather(1, own)
                    if label_smoothing:
                        losses = losses - label_smoothing * log_probs.mean(dim=1, keepdim=True)
                    loss = loss + (losses * is_kept).sum()
                    # The gradient replaces the logits.
                    gradient = log_probs.exp_().sub_(label_smoothing / weight.shape[0])
                    gradient = gradient.scatter_add_(1, own, torch.full_like(losses, label_smoothing - 1))
                    rows.copy_(gradient.mul_(is_kept))
                    del log_probs, gradient
                if of_states:
                    state_gradients.append(torch.mm(logits, cast_weight).to(states.dtype))
                if of_weight:
                    weight_gradient += torch.mm(logits.t(), part)
                if of_bias:
                    bias_gradient += logits.sum(dim=0, dtype=torch.float32)
        ctx.save_for_backward(torch.cat(state_gradients) if of_states else None, weight_gradient, bias_gradient)
        return loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        return (
            *(None if each is None else gradient.to(each.dtype) * each for each in ctx.saved_tensors),
            None,
            None,
            None,
        )


def summed_cross_entropy(
    states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    labels: torch.Tensor,
    label_smoothing: float = 0.0,
    chunk_size: int = 1024,
) -> torch.Tensor:
    """Returns the summed cross entropy of all tokens in nats: a float32 scalar without second derivatives. Under
    autocast, products are computed in its dtype.

    Args:
        states: (tokens, d); the logits are `states @ weight.T + bias`.
        weight: (vocabulary, d).
        bias: (vocabulary,), or None.
        labels: (tokens,), int64, -100 where no loss is computed.
        label_smoothing: as in `nn.functional.cross_entropy`.
        chunk_size: the number of tokens whose logits are in memory at a time.
    """
    return SummedCrossEntropy.apply(states, weight, bias, labels, label_smoothing, chunk_size)


def summed_divergence(
    logits: torch.Tensor, teacher_logits: torch.Tensor, labels: torch.Tensor, temperature: float = 1.0
) -> torch.Tensor:
    """Returns temperature^2 * KL(teacher || student) in nats, summed over the tokens with a label: a float32 scalar.
    Both distributions are softmax(logits / temperature) (Hinton et al., 2015, https://arxiv.org/abs/1503.02531; the
    factor keeps the size of the gradients).

    Args:
        logits: (batch, length, vocabulary), of the student.
        teacher_logits: The same shape.
        labels: (batch, length), -100 where no loss is computed.
        temperature: Above 0.
    """
    counted = labels != -100
    student, teacher = ((each[counted].float() / temperature).log_softmax(-1) for each in (logits, teacher_logits))
    return temperature**2 * nn.functional.kl_div(student, teacher, reduction="sum", log_target=True)


def has_chunkable_loss(model: nn.Module, is_replicated: bool = False) -> bool:
    """Whether the language modeling head of the model is a plain linear layer. If processes replicate it (DDP), the
    head must be tied to the rest of the model: DDP would take other parameters as unused."""
    head = getattr(model, "lm_head", None)
    if not isinstance(head, nn.Linear):
        return False
    if type(head.weight) is not nn.Parameter or hasattr(head, "base_layer"):
        return False
    others = {id(each) for part in model.modules() if part is not head for each in part.parameters(recurse=False)}
    return not is_replicated or all(id(parameter) in others for parameter in head.parameters())


def returns_outputs_of_head(model: Any, inputs: Mapping[str, Any]) -> bool:
    """Whether the logits of the model are what its head computes, found with a batch. Some models change them
    afterwards: Gemma 2 caps them, BART adds a bias."""
    head, was_training, outputs = model.lm_head, model.training, []

    def without_memory(states):
        output = states.new_zeros((), dtype=torch.float32).expand(*states.shape[:-1], head.out_features)
        outputs.append(output)
        return output

    try:
        with torch.no_grad(), replaced_forward(head, without_memory):
            logits = model.eval()(**{name: value for name, value in inputs.items() if name != "labels"}).logits
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:  # the model writes into the output of its head
        return False
    finally:
        model.train(was_training)
    return len(outputs) == 1 and logits is outputs[0]


def identity(states: torch.Tensor) -> torch.Tensor:
    return states


def states_as_logits(head: nn.Linear) -> AbstractContextManager[None]:
    """Within the context, a model with this head returns states instead of logits."""
    return replaced_forward(head, identity)


@contextmanager
def replaced_forward(module: nn.Module, forward: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """Within the context, a module computes another function."""
    saved = vars(module).get("forward")
    module.forward = forward
    try:
        yield
    finally:
        if saved is None:
            del module.forward
        else:
            module.forward = saved
