# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Cross entropy of a language modeling head, computed for a part of the tokens at a time: of their logits, by far the
largest tensors of a training step, only a part is there at any time."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import nn

from ..layers_ode_transformer import autocast_dtype
from ..modeling_ode_transformer import OdeTransformerPreTrainedModel


class SummedCrossEntropy(torch.autograd.Function):
    """See `summed_cross_entropy`. The gradients are computed with the loss, so that no logits are computed twice."""

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
                part, is_kept = part.to(dtype), (targets != -100).unsqueeze(1)
                targets = targets.clamp(min=0).unsqueeze(1)
                log_probs = nn.functional.linear(part, cast_weight, cast_bias).float().log_softmax(dim=-1)
                losses = (label_smoothing - 1) * log_probs.gather(1, targets)
                if label_smoothing:
                    losses = losses - label_smoothing * log_probs.mean(dim=1, keepdim=True)
                loss = loss + (losses * is_kept).sum()
                if not any((of_states, of_weight, of_bias)):
                    continue
                gradient = log_probs.exp_().sub_(label_smoothing / weight.shape[0])
                gradient = gradient.scatter_add_(1, targets, torch.full_like(losses, label_smoothing - 1))
                gradient = gradient.mul_(is_kept).to(dtype)
                del log_probs
                if of_states:
                    state_gradients.append(torch.mm(gradient, cast_weight).to(states.dtype))
                if of_weight:
                    weight_gradient += torch.mm(gradient.t(), part)
                if of_bias:
                    bias_gradient += gradient.sum(dim=0, dtype=torch.float32)
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
    """The cross entropy in nats of all tokens, summed: a float32 scalar, without gradients of gradients. Under
    autocast, products are computed in its dtype.

    Args:
        states: (tokens, d), from which the logits `states @ weight.T + bias` are computed.
        weight: (vocabulary, d).
        bias: (vocabulary,), or None.
        labels: (tokens,), int64, -100 where there is no loss.
        label_smoothing: as in `nn.functional.cross_entropy`.
        chunk_size: the number of tokens whose logits are there at a time.
    """
    return SummedCrossEntropy.apply(states, weight, bias, labels, label_smoothing, chunk_size)


def identity(states: torch.Tensor) -> torch.Tensor:
    return states


def loss_of_states(
    head: nn.Linear,
    label_smoothing: float,
    chunk_size: int,
    logits: torch.Tensor,
    labels: torch.Tensor | None = None,
    shift_labels: torch.Tensor | None = None,
    num_items_in_batch: torch.Tensor | int = 1,
    **kwargs,
) -> torch.Tensor:
    """A model's loss function, for labels that are aligned with the states (batch, length, d) in the logits' place."""
    labels = labels if shift_labels is None else shift_labels
    loss = summed_cross_entropy(
        logits.flatten(0, 1), head.weight, head.bias, labels.flatten(), label_smoothing, chunk_size
    )
    return loss / num_items_in_batch


def has_chunkable_loss(model: nn.Module) -> bool:
    """Whether it is a model of this package with a language modeling head that is a linear layer as it comes."""
    head = getattr(model, "lm_head", None)
    is_plain = isinstance(head, nn.Linear) and type(head.weight) is nn.Parameter and not hasattr(head, "base_layer")
    return isinstance(model, OdeTransformerPreTrainedModel) and is_plain


@contextmanager
def chunked_loss(model: nn.Module, label_smoothing: float, chunk_size: int) -> Iterator[None]:
    """Within the context, the loss of a model (`has_chunkable_loss`) is the summed cross entropy divided by
    `num_items_in_batch`, and its logits are the states that they are computed from."""
    head, saved = model.lm_head, vars(model).get("_loss_function")
    saved_forward = vars(head).get("forward")
    head.forward = identity
    model.loss_function = partial(loss_of_states, head, label_smoothing, chunk_size)
    try:
        yield
    finally:
        if saved_forward is None:
            del head.forward
        else:
            head.forward = saved_forward
        if saved is None:
            del model._loss_function
        else:
            model.loss_function = saved
