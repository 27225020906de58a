# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Training with fewer operations: a GPU waits for Python at each of them. Importing the package puts these functions
into `KERNELS`, in the place of the plain ones that saved models bring along. Results are the same up to rounding.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress

import torch
from torch import nn
from transformers.utils import is_torchdynamo_compiling

from .integration_ode_transformer import KERNELS, add_terms, combine
from .layers_ode_transformer import biases


def is_traced() -> bool:
    """Whether operations are compiled or recorded, by `torch.jit.trace`, say."""
    return is_torchdynamo_compiling() or torch.jit.is_tracing()


def without_autocast(device: str) -> AbstractContextManager:
    has_autocast = torch.amp.is_autocast_available(device)
    return torch.autocast(device, enabled=False) if has_autocast else nullcontext()


class SumOfFloatMultiples(torch.autograd.Function):
    """`add_terms` with weights that are floats. In the gradient, terms of one weight share one operation, which also
    converts to their dtype."""

    generate_vmap_rule = True

    @staticmethod
    def forward(weights, y, *terms):
        return add_terms(y, weights, terms)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.weights, *tensors = inputs
        ctx.dtypes, ctx.dtype = [tensor.dtype for tensor in tensors], output.dtype

    @staticmethod
    def backward(ctx, gradient):
        keys = list(zip((1.0, *ctx.weights), ctx.dtypes))
        needed = {key for key, is_needed in zip(keys, ctx.needs_input_grad[1:]) if is_needed}
        multiples = {key: multiple(gradient, *key) for key in needed}
        return None, *map(multiples.get, keys)

    @staticmethod
    def jvp(ctx, _, of_y, *of_terms):
        weights, terms = zip(*[pair for pair in zip((1.0, *ctx.weights), (of_y, *of_terms)) if pair[1] is not None])
        return add_terms(torch.zeros_like(terms[0], dtype=ctx.dtype), weights, terms)


def multiple(x: torch.Tensor, weight: float, dtype: torch.dtype) -> torch.Tensor:
    """`weight * x` in a dtype, in one operation where there is one: with an output that needs no gradient."""
    if weight != 1.0 and dtype != x.dtype and not torch.is_grad_enabled():
        with suppress(RuntimeError):  # `vmap` has no rule for it
            return torch.mul(x, weight, out=torch.empty_like(x, dtype=dtype))
    return (x if weight == 1.0 else weight * x).to(dtype)


def add_terms_in_training(y, weights, terms):
    """`add_terms`, with a backward pass of fewer operations if weights are floats other than 1, and are equal or those
    of terms of another dtype. Compilers fuse."""
    if torch.jit.is_tracing():
        with torch.enable_grad():  # so that traces with and without gradients agree
            return add_terms(y, weights, terms)
    if is_torchdynamo_compiling() or not torch.is_grad_enabled():
        return add_terms(y, weights, terms)
    if not all(isinstance(weight, float) for weight in weights):
        return add_terms(y, weights, terms)
    used = [pair for pair in zip(weights, terms, strict=True) if pair[0] != 0.0]
    numbers = {weight for weight, _ in used}
    saves = len(numbers) < len(used) or any(term.dtype != y.dtype for _, term in used)
    if not saves or numbers == {1.0} or any(term.device != y.device for _, term in used):
        return add_terms(y, weights, terms)
    weights, terms = zip(*used)
    return SumOfFloatMultiples.apply(weights, y, *terms)


def combine_stacked(weights: torch.Tensor, terms: Sequence[torch.Tensor]) -> torch.Tensor:
    """`sum_i weights[i] * terms[i]` as one matrix-vector product, which neither autocast nor TF32 rounds."""
    with without_autocast(terms[0].device.type):
        return torch.mv(torch.stack(terms).flatten(1).t(), weights.to(terms[0].dtype)).view_as(terms[0])


class LinearCombination(torch.autograd.Function):
    """`combine_stacked` with a row of a matrix: `(matrix, row, *terms)`. The row may have more entries than there are
    terms. The backward pass stacks the terms again instead of keeping the stack."""

    generate_vmap_rule = True

    @staticmethod
    def forward(matrix, row, *terms):
        return combine_stacked(matrix[row, : len(terms)], terms)

    @staticmethod
    def setup_context(ctx, inputs, output):
        matrix, ctx.row, *terms = inputs
        ctx.save_for_backward(matrix, *terms)
        ctx.save_for_forward(matrix, *terms)

    @staticmethod
    def backward(ctx, gradient):
        matrix, *terms = ctx.saved_tensors
        of_matrix, of_terms = None, [None] * len(terms)
        if ctx.needs_input_grad[0]:
            with without_autocast(gradient.device.type):
                of_weights = torch.mv(torch.stack(terms).flatten(1), gradient.reshape(-1)).to(matrix.dtype)
            before = ctx.row * matrix.shape[1]
            after = matrix.numel() - before - len(terms)
            of_matrix = nn.functional.pad(of_weights, (before, after)).view_as(matrix)
        if any(ctx.needs_input_grad[2:]):
            weights = matrix[ctx.row, : len(terms)].to(gradient.dtype)
            of_terms = (weights.view(-1, *[1] * gradient.ndim) * gradient).unbind()
        return of_matrix, None, *of_terms

    @staticmethod
    def jvp(ctx, of_matrix, _, *of_terms):
        matrix, *terms = ctx.saved_tensors
        row = ctx.row, slice(len(terms))
        tangents = [torch.zeros_like(term) if each is None else each for term, each in zip(terms, of_terms)]
        tangent = combine_stacked(matrix[row], tangents)
        return tangent if of_matrix is None else tangent + combine_stacked(of_matrix[row], terms)


def combine_in_training(matrix, row, terms):
    """`combine`, as one product with gradients. Compilers fuse the plain loop."""
    if torch.is_grad_enabled() and not is_traced():
        return LinearCombination.apply(matrix.to(terms[0].device), row, *terms)
    return combine(matrix, row, terms)


def sums_of_ends(x: torch.Tensor, size: int) -> torch.Tensor:
    """The sum of the first and that of the last `size` entries of the last dimension: (..., 2)."""
    if is_torchdynamo_compiling():  # `unfold` would fix its sizes
        return torch.stack([x[..., :size].sum(-1), x[..., -size:].sum(-1)], dim=-1)
    return x.unfold(-1, size, x.shape[-1] - size).sum(-1)


class OrderedBiases(torch.autograd.Function):
    """`biases` for the distances (length, length) of tokens in order, and a mask without gradient. In the gradient,
    inner distances are diagonals, and both ends are sums of the diagonals beyond. Nothing is scattered, so that the
    result does not depend on the order of additions."""

    generate_vmap_rule = True

    @staticmethod
    def forward(scores, distances, mask, head_dim):
        return biases(scores, distances, mask, head_dim)

    @staticmethod
    def setup_context(ctx, inputs, output):
        scores, distances, _, ctx.head_dim = inputs
        ctx.limit = scores.shape[-1] // 2
        ctx.save_for_forward(distances)

    @staticmethod
    def backward(ctx, gradient):
        length, limit = gradient.shape[-1], ctx.limit
        width = 2 * (length + limit) + 1
        # Read in rows longer by one than the padded ones, each row starts one number later: columns are diagonals.
        padded = nn.functional.pad(gradient, (length + limit, limit, 0, 1)).view(*gradient.shape[:2], -1)
        diagonals = padded[..., : length * width].view(*gradient.shape[:2], length, width).transpose(1, 2)
        ends = sums_of_ends(diagonals, length + 1)
        inner = diagonals[..., length + 1 : length + 2 * limit]
        gradient = torch.cat([ends[..., :1], inner, ends[..., 1:]], dim=-1)
        return ctx.head_dim**-0.5 * gradient, None, None, None


class OrderedBiasesWithTangents(OrderedBiases):
    """`OrderedBiases` with forward-mode derivatives, which torch.compile does not trace."""

    @staticmethod
    def jvp(ctx, of_scores, *_):
        (distances,) = ctx.saved_tensors
        return biases(of_scores, distances, None, ctx.head_dim)


def biases_in_training(scores, distances, mask, head_dim):
    """`biases`, without a scatter in the gradient if tokens are in order."""
    is_ordered = distances.ndim == 2 and torch.is_grad_enabled() and (mask is None or not mask.requires_grad)
    if not is_ordered or torch.jit.is_tracing():
        return biases(scores, distances, mask, head_dim)
    function = OrderedBiases if torch.compiler.is_compiling() else OrderedBiasesWithTangents
    return function.apply(scores, distances, mask, head_dim)


KERNELS |= {"add_terms": add_terms_in_training, "combine": combine_in_training, "biases": biases_in_training}
