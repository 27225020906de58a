# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""What processors do sooner than by PyTorch's choice: matrix products, by oneDNN with weights as they are or packed
for inference, dropout, and cross entropy."""

import math
import warnings
from collections.abc import Iterable
from functools import partial

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.utils.flop_counter import flop_registry, register_flop_formula
from transformers.utils import logging


logger = logging.get_logger(__name__)


HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
IS_X86 = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


if HAS_ONEDNN and torch.ops.mkldnn._linear_pointwise not in flop_registry:

    @register_flop_formula(torch.ops.mkldnn._linear_pointwise)
    def linear_pointwise_flop(x_shape, weight_shape, *args, out_shape=None, **kwargs) -> int:
        """Floating-point operations of oneDNN's product, which `FlopCounterMode` would not count."""
        return 2 * math.prod(x_shape[:-1]) * math.prod(weight_shape)


def are_operations_recorded() -> bool:
    """Whether operations are traced, compiled, or transformed by `torch.func` or forward-mode differentiation."""
    return (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
    )


def runs_on_processor(x: torch.Tensor) -> bool:
    """Whether operations on `x` are carried out here and now, neither recorded nor sent to an accelerator."""
    return type(x) is torch.Tensor and x.device.type == "cpu" and not are_operations_recorded()


def dropout(x: torch.Tensor, p: float, training: bool) -> torch.Tensor:
    """`nn.functional.dropout`, faster on a processor, where that draws a random number for each entry
    on one core: here 16 random bits decide, so that `p` is rounded to a multiple of 2**-16. The mask that is kept for
    the gradient has one byte for each entry."""
    if not training or p == 0:
        return x
    dropped = round(p * 2**16)
    if not 0 < dropped < 2**16 or not runs_on_processor(x):
        return nn.functional.dropout(x, p, training)
    bits = torch.empty((x.numel() + 3) // 4, dtype=torch.int64, device=x.device).random_(-(2**63), None)
    bits = bits.view(torch.int16)
    is_kept = (bits[: x.numel()] >= dropped - 2**15).view(x.shape)
    return (x * is_kept).mul_(1 / (1 - dropped / 2**16))


def cross_entropy(
    logits: torch.Tensor, labels: torch.Tensor, label_smoothing: float = 0.0, ignore_index: int = -100
) -> torch.Tensor:
    """Cross entropy in nats, in float32, of each of `logits` (tokens, vocabulary): (tokens,), 0 where `labels` are
    `ignore_index`. A processor takes several times as long for a tensor that does not fit its cache, so that it has a
    part of the tokens at a time.

    Raises:
        ValueError: there are not as many labels as logits.
    """
    if logits.shape[:1] != labels.shape:
        raise ValueError(f"Logits of {logits.shape[0]} tokens need as many labels, not {tuple(labels.shape)}.")
    tokens = max(1, 2**19 // logits.shape[-1]) if runs_on_processor(logits) else max(1, len(labels))
    losses = [
        nn.functional.cross_entropy(
            part.float(), targets, label_smoothing=label_smoothing, ignore_index=ignore_index, reduction="none"
        )
        for part, targets in zip(logits.split(tokens), labels.split(tokens))
    ]
    return torch.cat(losses)


def onednn_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: str = "none"
) -> torch.Tensor:
    return torch.ops.mkldnn._linear_pointwise.default(x, weight, bias, activation, [], "")


class OneDnnProduct(torch.autograd.Function):
    """`onednn_linear` of a matrix, with gradients: the input's by oneDNN too, the weight's and gradients of gradients
    by PyTorch's choice. (What it returns may be changed in place, which PyTorch forbids if it is a view made in
    `forward`, as oneDNN's result of a tensor that is no matrix.)"""

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return onednn_linear(x, weight, bias)

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        product = nn.functional.linear if torch.is_grad_enabled() else onednn_linear
        of_x, of_weight, of_bias = ctx.needs_input_grad
        return (
            product(gradient, weight.t(), None) if of_x else None,
            # oneDNN would need a copy of the transposed gradient.
            gradient.t() @ x if of_weight else None,
            gradient.sum(dim=0) if of_bias else None,
        )


class OdeTransformerLinear(nn.Linear):
    """A linear layer. In float32 on an x86 processor oneDNN multiplies in the place of PyTorch's choice, MKL, which
    some processors take longer for, most of all with the few rows of a step of generation. Numbers, those of gradients
    too, are the same to rounding. With other dtypes, devices and weights (autocast, a quantizer's, a tensor
    parallel's, exported and compiled models) it is `nn.Linear`."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if (
            x.is_cpu
            and x.dtype is torch.float32
            and HAS_ONEDNN
            and IS_X86
            and type(self.weight) is nn.Parameter
            and self.weight.dtype is torch.float32
            and self.weight.is_cpu
            and x.shape[-1:] == self.weight.shape[1:]
            and not torch.is_autocast_enabled("cpu")
            and runs_on_processor(x)
            and x.numel()
        ):
            if not torch.is_grad_enabled():
                return onednn_linear(x, self.weight, self.bias)
            product = OneDnnProduct.apply(torch.atleast_2d(x).flatten(0, -2), self.weight, self.bias)
            return product.view(*x.shape[:-1], self.out_features)
        return super().forward(x)


class PackedLinear(nn.Module):
    """A linear layer, or several of the same input side by side, whose weights are packed once. It is for inference:
    it has no parameters, and can be neither trained nor saved nor moved.

    Args:
        linears: the layers; their outputs are concatenated.
        rectify: whether negative outputs become 0, as by a ReLU that follows.

    `forward` takes a tensor of shape (..., in_features), and returns one in the layers' dtype.
    """

    def __init__(self, linears: Iterable[nn.Linear], rectify: bool = False):
        super().__init__()
        linears = list(linears)
        self.rectify = rectify
        self.in_features = linears[0].in_features
        self.out_features = sum(linear.out_features for linear in linears)
        weight = torch.cat([linear.weight.detach() for linear in linears])
        self.dtype = weight.dtype
        biases = [linear.bias for linear in linears]
        bias = None if biases[0] is None else torch.cat([each.detach() for each in biases])
        self.pack(weight, bias)

    def pack(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        raise NotImplementedError

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"

    def __reduce_ex__(self, protocol):
        raise RuntimeError("A packed model cannot be copied or pickled: do it before pack_for_inference().")

    def _save_to_state_dict(self, *args, **kwargs):
        raise RuntimeError("A packed model has no weights to save: save it before pack_for_inference().")


class OneDnnLinear(PackedLinear):
    """In float32 or bfloat16, by oneDNN. Products are those of `nn.Linear` to rounding."""

    # What oneDNN chooses the layout for: a number of rows other than 1. It computes any number.
    rows = 64

    def pack(self, weight, bias):
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), self.rows)
        self.bias = bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return onednn_linear(x.to(self.dtype), self.weight, self.bias, "relu" if self.rectify else "none")


class Int8Linear(PackedLinear):
    """With weights as 8-bit integers, scaled for each output, and inputs as 8-bit integers, scaled for each call; sums
    and outputs in float32."""

    # From here on, as for a vocabulary, oneDNN is sooner done than PyTorch's first choice, FBGEMM.
    many_outputs = 8192

    def pack(self, weight, bias):
        limit = weight.abs().amax(dim=1).clamp(min=torch.finfo(torch.float32).tiny)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch's plan to replace quantized tensors
            zeros = torch.zeros_like(limit, dtype=torch.int64)
            weight = torch.quantize_per_channel(weight, limit.double() / 127, zeros, 0, torch.qint8)
            engine = torch.backends.quantized.engine
            if self.out_features >= self.many_outputs and "onednn" in torch.backends.quantized.supported_engines:
                torch.backends.quantized.engine = "onednn"
            self.weight = torch.ops.quantized.linear_prepack(weight, bias)
            torch.backends.quantized.engine = engine
        # Without VNNI, sums of two products of 8 bits would saturate: then inputs have 7.
        self.reduce_range = not torch.cpu._is_vnni_supported()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ops = torch.ops.quantized
        linear = ops.linear_relu_dynamic.default if self.rectify else ops.linear_dynamic.default
        return linear(x.to(self.dtype), self.weight, self.reduce_range)


def is_plain(module: nn.Module) -> bool:
    """Whether it is a linear layer of the model's own: not an adapter's, not quantized, not packed."""
    is_own = isinstance(module, OdeTransformerLinear)
    return is_own and type(module.weight) is nn.Parameter and module.weight.is_floating_point()


def check_not_packed(model: nn.Module) -> None:
    """Raises a RuntimeError if the model's layers are packed, before anything is moved or converted."""
    if any(isinstance(module, PackedLinear) for module in model.modules()):
        raise RuntimeError("A packed model stays on its device and in its dtype: move it before pack_for_inference().")


def packed_class(model: nn.Module, int8: bool) -> tuple[type[PackedLinear] | None, str]:
    """The class of the model's packed layers; or None and why there is none."""
    devices = {parameter.device.type for parameter in model.parameters()}
    dtypes = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    if devices != {"cpu"}:
        return None, f"it is on {', '.join(sorted(devices))}, and only processors want packed weights"
    if int8:
        if dtypes != {torch.float32}:
            return None, f"it is in {', '.join(sorted(map(str, dtypes)))}, and int8=True takes a model in float32"
        if not hasattr(torch.ops.quantized, "linear_dynamic"):
            return None, "this PyTorch has no dynamically quantized products"
        return Int8Linear, ""
    if len(dtypes) > 1 or not dtypes <= {torch.float32, torch.bfloat16}:
        return None, f"it is in {', '.join(sorted(map(str, dtypes)))}, and not in float32 or in bfloat16"
    if not HAS_ONEDNN:
        return None, "this PyTorch has no oneDNN"
    if dtypes == {torch.bfloat16} and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return None, "this processor has no bfloat16 products"
    return OneDnnLinear, ""


def pack_linear_layers(model: nn.Module, int8: bool = False) -> nn.Module:
    """Packs the linear layers of a model of this package in place; see `pack_for_inference` of the models."""
    packed, reason = packed_class(model, int8)
    if packed is None:
        logger.warning(f"The model's weights are not packed: {reason}.")
        return model
    model.eval().requires_grad_(False)
    for module in list(model.modules()):
        if hasattr(module, "join_projections"):
            module.join_projections(is_plain, packed)
        if hasattr(module, "rectify_first_products"):
            module.rectify_first_products(is_plain, partial(packed, rectify=True))
        for name, child in list(module.named_children()):
            if is_plain(child):
                setattr(module, name, packed([child]))
    return model
