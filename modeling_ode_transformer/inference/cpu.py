# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Faster CPU kernels than PyTorch's defaults, put into a model from outside: `optimize_for_cpu`.

A module is replaced by changing its class to a subclass of its own: parameters, their names, hooks and tied weights
stay the same. If a kernel does not apply, the classes here fall back to the original: on other devices, in other
dtypes, traced, compiled or differentiated by `torch.func`. Only packed weights need new modules.
"""

import itertools
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.loss.loss_utils import ForCausalLMLoss
from transformers.utils import logging

from ..layers_ode_transformer import are_operations_recorded


logger = logging.get_logger(__name__)


HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
ONEDNN_PRODUCT = torch.ops.mkldnn._linear_pointwise.default if HAS_ONEDNN else None
IS_X86 = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
WEIGHTS = ("keep", "packed", "int8")
MOST_KEYS = 128  # of `attention_in_float32`


# Entry points


def optimize_for_cpu(model: nn.Module, weights: str = "keep") -> nn.Module:
    """Replaces modules of a model, in place, by faster ones for CPUs.

    With `weights="keep"` the model trains, generates, saves and loads as before, with the same parameters and names.
    On another device or in another dtype, it runs as if it had not been optimized. In float32, outputs and gradients
    are the same up to rounding; dropout draws other random numbers. For compiled beam searches
    (`cache_implementation="static"`), this package's models keep packed copies of their weights, which take as much
    memory again.

    In any model, three things are replaced: linear layers (on x86, without gradients, oneDNN multiplies few rows),
    dropout (16 random bits per entry), and the loss of language models (computed for some of the tokens at a time).
    In this package's models, so is attention with few queries.

    Packed weights are for inference with this package's models, in float32 or bfloat16. Each weight is rearranged for
    oneDNN. Projections of the same input become one product, and a ReLU becomes part of the product before it. The
    model is put into evaluation mode, without gradients. It can no longer be saved (`RuntimeError`), copied or moved.
    Weights of adapters and quantizers stay the same. If a model's weights cannot be packed, it keeps them and a
    warning says why.

    Args:
        model: any `nn.Module` on the CPU, such as a model of transformers or of PEFT. On another device nothing is
            replaced, and a warning says so.
        weights: `"keep"`; `"packed"`; or `"int8"`, packed as 8-bit integers with a scale for each output. With
            `"int8"`, inputs also become 8-bit integers, with a scale for each call, and outputs change. The model must
            be in float32.

    Returns:
        The model itself.

    Raises:
        ValueError: `weights` is something else.
    """
    if weights not in WEIGHTS:
        raise ValueError(f"weights={weights!r} must be one of {', '.join(map(repr, WEIGHTS))}.")
    devices = {parameter.device.type for parameter in model.parameters()}
    if devices - {"cpu"}:
        logger.warning(f"The model is not optimized for CPUs: it is on {', '.join(sorted(devices))}.")
        return model
    for module in model.modules():
        if (replacement := replacement_of(module)) is not None:
            module.__class__ = replaced(type(module), replacement)
        if isinstance(module, PreTrainedModel) and loss_of(module) is ForCausalLMLoss:
            module.loss_function = language_model_loss
    return model if weights == "keep" else pack_weights(model, int8=weights == "int8")


# Kernels


def runs_on_cpu(x: torch.Tensor) -> bool:
    """Whether operations on `x` run immediately on the CPU, and are not recorded."""
    return not are_operations_recorded() and type(x) is torch.Tensor and x.device.type == "cpu"


def is_compiled_for_inference() -> bool:
    """Whether the code is being compiled without gradients, and not exported."""
    # Not `is_exporting()`, which in torch 2.11 is always true where Dynamo traces it.
    return torch.compiler.is_compiling() and not torch.compiler._is_exporting_flag and not torch.is_grad_enabled()


def dropout(x: torch.Tensor, p: float, training: bool) -> torch.Tensor:
    """Like `nn.functional.dropout`, which on a CPU draws a random number per entry on one core. Here 16 random bits
    decide, so `p` is rounded to a multiple of 2**-16. The mask kept for the gradient has one byte per entry."""
    if not training or p == 0:
        return x
    dropped = round(p * 2**16)
    if not 0 < dropped < 2**16 or not runs_on_cpu(x):
        return nn.functional.dropout(x, p, training)
    bits = torch.empty((x.numel() + 3) // 4, dtype=torch.int64, device=x.device).random_(-(2**63), None)
    bits = bits.view(torch.int16)
    is_kept = (bits[: x.numel()] >= dropped - 2**15).view(x.shape)
    return (x * is_kept).mul_(1 / (1 - dropped / 2**16))


@contextmanager
def attention_in_float32() -> Iterator[None]:
    """Within this context, `scaled_dot_product_attention` to at most `MOST_KEYS` keys is computed in float32 under
    autocast. In bfloat16 the gradient of PyTorch's fused kernel for CPUs takes several times as long for so few."""
    attend = nn.functional.scaled_dot_product_attention

    def attend_in_float32(query, key, *args, **kwargs):
        if not key.is_cpu or key.shape[-2] > MOST_KEYS or not torch.is_autocast_enabled("cpu"):
            return attend(query, key, *args, **kwargs)
        args, kwargs = map(widened, args), {name: widened(value) for name, value in kwargs.items()}
        with torch.autocast("cpu", enabled=False):
            return attend(widened(query), widened(key), *args, **kwargs)

    # Not a mode of torch functions, which would not last through a backward pass with checkpoints.
    nn.functional.scaled_dot_product_attention = attend_in_float32
    try:
        yield
    finally:
        nn.functional.scaled_dot_product_attention = attend


def widened(value: Any) -> Any:
    """Numbers of 16 bits as float32; anything else as it is."""
    is_narrow = isinstance(value, torch.Tensor) and value.dtype in (torch.bfloat16, torch.float16)
    return value.float() if is_narrow else value


def tokens_in_cache(logits: torch.Tensor) -> int:
    """The number of tokens whose logits (tokens, vocabulary) fit into the cache of a CPU; elsewhere all, and at least
    one. What does not fit takes several times as long."""
    return max(1, 2**19 // logits.shape[-1] if runs_on_cpu(logits) else len(logits))


def cross_entropy(
    logits: torch.Tensor, labels: torch.Tensor, label_smoothing: float = 0.0, ignore_index: int = -100
) -> torch.Tensor:
    """Cross entropy of each token, in nats, computed for `tokens_in_cache` at a time.

    Args:
        logits: (tokens, vocabulary), of any floating-point dtype.
        labels: (tokens,), int64.
        label_smoothing: as in `nn.functional.cross_entropy`.
        ignore_index: the label of tokens without a loss.

    Returns:
        (tokens,), float32, 0 for tokens without a loss.

    Raises:
        ValueError: the numbers of labels and logits differ.
    """
    if logits.shape[:1] != labels.shape:
        raise ValueError(f"Logits of {logits.shape[0]} tokens need as many labels, not {tuple(labels.shape)}.")
    tokens = tokens_in_cache(logits)
    losses = [
        nn.functional.cross_entropy(
            part.float(), targets, label_smoothing=label_smoothing, ignore_index=ignore_index, reduction="none"
        )
        for part, targets in zip(logits.split(tokens), labels.split(tokens))
    ]
    return torch.cat(losses)


def language_model_loss(
    logits: torch.Tensor,
    labels: torch.Tensor | None,
    vocab_size: int,
    num_items_in_batch: torch.Tensor | int | None = None,
    ignore_index: int = -100,
    shift_labels: torch.Tensor | None = None,
    **kwargs,
) -> torch.Tensor:
    """transformers' `ForCausalLMLoss`, computed with `cross_entropy`: the mean over the tokens, or the sum divided by
    `num_items_in_batch`, as a float32 scalar.

    Args:
        logits: (batch, length, vocab_size), of any floating-point dtype.
        labels: (batch, length), int64, the same tokens as the input; they are shifted here, unless `shift_labels` is
            given.
        ignore_index: the label of tokens without a loss.

    Raises:
        ValueError: the numbers of labels and logits differ.
    """
    if shift_labels is None:
        shift_labels = nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    shift_labels = shift_labels.flatten().to(logits.device)
    losses = cross_entropy(logits.view(-1, vocab_size), shift_labels, ignore_index=ignore_index)
    number: Any = (shift_labels != ignore_index).sum() if num_items_in_batch is None else num_items_in_batch
    return losses.sum() / (number.to(losses.device) if torch.is_tensor(number) else number)


def loss_of(model: PreTrainedModel) -> Any:
    """The model's loss function; None if transformers has none for its class and would warn."""
    has_own = "_loss_function" in vars(model)
    return model.loss_function if has_own or getattr(model, "loss_type", None) is not None else None


def onednn_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: str = "none"
) -> torch.Tensor:
    """A product by oneDNN. It compiles code for each number of rows and keeps it, half a megabyte each. Rows of zeros
    are therefore added, so that only a few numbers of rows occur."""
    rows = x.numel() // x.shape[-1]
    missing = padded_rows(rows) - rows
    if missing == 0:
        return ONEDNN_PRODUCT(x, weight, bias, activation, [], "")
    padded = nn.functional.pad(x.reshape(rows, -1), (0, 0, 0, missing))
    return ONEDNN_PRODUCT(padded, weight, bias, activation, [], "")[:rows].view(*x.shape[:-1], -1)


def padded_rows(rows: int) -> int:
    """The number of rows that oneDNN multiplies for `rows`: the same up to 8, then a multiple of 4, and from 65 on a
    multiple of a quarter of the power of two below."""
    if rows <= 8:
        return rows
    step = 4 if rows <= 64 else 2 ** ((rows - 1).bit_length() - 3)
    return -(-rows // step) * step


def fast_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """A product by oneDNN if this thread has a packed copy of the weight, or if it has few rows in float32, as in a
    step of generation. With many rows PyTorch's default, MKL, is as fast and keeps nothing."""
    packed = COPIES.of_weights.get(place(weight))
    if packed is None and (x.dtype is not torch.float32 or x.numel() > 64 * x.shape[-1]):
        return nn.functional.linear(x, weight, bias)
    return onednn_linear(x, weight if packed is None else packed, bias)


# Inductor accepts oneDNN's products only if their weights are constants; it calls other operators unchanged.
OPERATORS = torch.library.Library("ode_transformer", "FRAGMENT")
OPERATORS.define("fast_linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor")
OPERATORS.define("packed_linear(Tensor x, int key) -> Tensor")
OPERATORS.impl("fast_linear", fast_linear, "CPU")
OPERATORS.impl("packed_linear", lambda x, key: PACKED[key].product(x), "CPU")


@torch.library.register_fake("ode_transformer::fast_linear", lib=OPERATORS)
def fake_fast_linear(x, weight, bias):
    return x.new_empty(*x.shape[:-1], weight.shape[0])


@torch.library.register_fake("ode_transformer::packed_linear", lib=OPERATORS)
def fake_packed_linear(x, key):
    return x.new_empty(*x.shape[:-1], PACKED[key].out_features, dtype=PACKED[key].dtype)


def few_queries_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    position_bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Computes what "sdpa" does, without gradients and dropout; uncompiled in 16 bits what "eager" does, whose softmax
    rounds. On CPUs, batched matrix products are faster here than a fused kernel per head.

    Args:
        query, key, value: (batch, heads, queries or keys, head_dim).
        attention_mask: (1 or batch, 1 or heads, 1 or queries, keys), bool, or added to the scores.
        position_bias: also added to the scores, (batch, heads, queries, keys).

    Returns:
        (batch, queries, heads, head_dim).
    """
    if key.dtype != torch.float32 and not torch.compiler.is_compiling():
        key = key.contiguous()  # in 16 bits oneDNN multiplies, which is slower for a part of a cache
    scores = batched_product(query * scaling, key.transpose(2, 3))
    if position_bias is not None:
        scores += position_bias
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        scores.masked_fill_(~attention_mask, torch.finfo(scores.dtype).min)
    elif attention_mask is not None:
        scores += attention_mask
    return batched_product(scores.softmax(dim=-1), value).to(value.dtype).transpose(1, 2)


def batched_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The products of matrices (batch, heads, n, k) and (batch, heads, k, m). Compiled code sums few rows itself, in
    float32: to call a library takes longer than so little arithmetic."""
    if torch.compiler.is_compiling() and a.shape[2] <= 16:
        return (a.float().unsqueeze(4) * b.float().unsqueeze(2)).sum(3)
    return torch.bmm(a.flatten(0, 1), b.flatten(0, 1)).unflatten(0, a.shape[:2])


# Replacements that keep the weights


class Replacement:
    """A class placed before the class `original` of a module; it computes the same. What it computes once is stored in
    the module as `kept`, which is neither saved nor copied."""

    original: type[nn.Module]

    def __getstate__(self):
        return {name: value for name, value in vars(self).items() if name != "kept"}


@cache
def replaced(original: Any, replacement: Any) -> Any:
    names = {"original": original, "__module__": __name__, "__doc__": replacement.__doc__}
    return type(f"Cpu{original.__name__}", (replacement, original), names)


class FastLinear(Replacement):
    """A linear layer. Without gradients, oneDNN multiplies few rows in float32 instead of PyTorch's slower default,
    MKL, and all where `packed_copies` are used. On other devices and with other dtypes and weights it is `nn.Linear`:
    under autocast, with quantized or tensor-parallel weights, and in exported models."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if (
            x.is_cpu
            and x.dtype in PACKED_DTYPES
            and not torch.is_grad_enabled()
            and type(self.weight) is nn.Parameter
            and self.weight.dtype is x.dtype
            and self.weight.is_cpu
            and x.shape[-1:] == self.weight.shape[1:]
            and not torch.is_autocast_enabled("cpu")
            and (runs_on_cpu(x) or is_compiled_for_inference())
            and x.numel()
        ):
            product = torch.ops.ode_transformer.fast_linear if torch.compiler.is_compiling() else fast_linear
            return product(x, self.weight, self.bias)
        return super().forward(x)

    def packed_copy(self) -> torch.Tensor:
        """The weight, packed for oneDNN. It is packed anew if the weight has changed since the last call by the count
        that autograd has of changes, which are those not made through `.data`."""
        weight = self.weight.detach()
        state = place(weight), None if self.weight.is_inference() else self.weight._version
        if vars(self).get("kept", (None,))[0] != state:
            self.kept = state, torch.ops.mkldnn._reorder_linear_weight(weight, OneDnnLinear.rows)
        return self.kept[1]


def place(weight: torch.Tensor) -> tuple:
    return weight.data_ptr(), weight.shape, weight.stride()


class FastDropout(Replacement):
    """Dropout with 16 random bits per entry."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) if self.inplace else dropout(x, self.p, self.training)


class FewQueriesAttention(Replacement):
    """Attention of this package's models, faster if a source has few queries, such as the beams of a search."""

    def attend(self, query, key, value, attention_mask, **kwargs):
        if not self.has_few_queries(query, key, attention_mask):
            return super().attend(query, key, value, attention_mask, **kwargs)
        bias = kwargs.get("position_bias")
        return few_queries_attention(query, key, value, attention_mask, self.scaling, bias), None

    def has_few_queries(self, query, key, attention_mask) -> bool:
        """Whether `few_queries_attention` applies and is faster: for many sources and heads, each with several queries
        and few keys. In the compiled step of a search, made for all sizes, it is used for any number."""
        return (
            1 < query.shape[2]
            and not torch.is_grad_enabled()
            and self.config._attn_implementation == "sdpa"
            and not (self.training and self.dropout)
            and not (attention_mask is None and self.is_causal)
            and (
                (query.is_cpu and is_compiled_for_inference() and (self.is_causal or self.is_cross_attention))
                or (
                    query.shape[2] * key.shape[2] <= 512
                    and query.shape[0] * query.shape[1] >= 32
                    and runs_on_cpu(query)
                )
            )
        )


def replacement_of(module: nn.Module) -> type[Replacement] | None:
    """The replacement for a module; None for most modules."""
    if isinstance(module, Replacement):
        return None
    if type(module) is nn.Dropout:
        return FastDropout
    if is_linear(module):
        return FastLinear if HAS_ONEDNN and IS_X86 else None
    # By the name of the class or a base class: code from a repository brings its own classes.
    is_attention = any(cls.__name__ == "OdeTransformerAttention" for cls in type(module).__mro__)
    return FewQueriesAttention if is_attention else None


def is_linear(module: nn.Module) -> bool:
    """Whether it is `nn.Linear`, or a class of this package that differs only in name; replaced or not."""
    cls = module.original if isinstance(module, Replacement) else type(module)
    is_own = issubclass(cls, nn.Linear) and cls.__name__.startswith("OdeTransformer")
    return cls is nn.Linear or (is_own and cls.forward is nn.Linear.forward)


# Packed copies of weights


PACKED_DTYPES = (torch.float32, torch.bfloat16)


class Copies(threading.local):
    """The packed copies that products of this thread use, by the place of the weight."""

    def __init__(self):
        self.of_weights: dict[tuple, torch.Tensor] = {}


COPIES = Copies()


@contextmanager
def packed_copies(model: nn.Module) -> Iterator[None]:
    """While this lasts, the linear layers of an optimized model multiply by packed copies of their weights in this
    thread, without gradients. The layers keep the copies, which take as much memory as the weights. Nothing is done if
    the weights cannot be packed."""
    layers = [module for module in model.modules() if isinstance(module, FastLinear) and can_be_packed(module)]
    copies = {}
    if layers and packed_class(model, int8=False)[0] is OneDnnLinear:
        for layer in layers:
            if layer.weight.is_cpu and layer.weight.is_contiguous() and place(layer.weight) not in copies:
                copies[place(layer.weight)] = layer.packed_copy()
    others, COPIES.of_weights = COPIES.of_weights, copies
    try:
        yield
    finally:
        COPIES.of_weights = others


# Packed weights


# All existing packed layers, by number: compiled code has no tensors of an unknown layout.
PACKED: "WeakValueDictionary[int, PackedLinear]" = WeakValueDictionary()
KEYS = itertools.count()


class PackedLinear(nn.Module):
    """A linear layer, or several side by side with the same input, whose weights are packed once. It is for inference:
    it has no parameters, and cannot be trained, saved or moved.

    Args:
        linears: the layers; their outputs are concatenated.
        rectify: whether negative outputs become 0, as with a ReLU after the layer.

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
        self.key = next(KEYS)
        PACKED[self.key] = self

    def pack(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        raise NotImplementedError

    def product(self, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.ode_transformer.packed_linear(x, self.key) if is_compiled_for_inference() else self.product(x)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"

    def _save_to_state_dict(self, *args, **kwargs):
        raise RuntimeError("A packed model has no weights to save: save it before optimize_for_cpu().")


class OneDnnLinear(PackedLinear):
    """A packed layer in float32 or bfloat16, by oneDNN. Outputs equal those of `nn.Linear` up to rounding."""

    # The number of rows that oneDNN chooses the layout for, not 1. Any number can be multiplied.
    rows = 64

    def pack(self, weight, bias):
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), self.rows)
        self.bias = bias

    def product(self, x):
        x = x if x.dtype is self.dtype else x.to(self.dtype)  # a call of `to` for each product would slow a search
        return onednn_linear(x, self.weight, self.bias, "relu" if self.rectify else "none")


class Int8Linear(PackedLinear):
    """A packed layer whose weights are 8-bit integers, scaled for each output. Inputs become 8-bit integers, scaled
    for each call; sums and outputs are in float32."""

    # From this number on, as for a vocabulary, oneDNN is faster than PyTorch's first choice, FBGEMM.
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
        # Without VNNI, sums of two 8-bit products would saturate: inputs then have 7 bits.
        self.reduce_range = not torch.cpu._is_vnni_supported()

    def product(self, x):
        ops = torch.ops.quantized
        linear = ops.linear_relu_dynamic.default if self.rectify else ops.linear_dynamic.default
        return linear(x.to(self.dtype), self.weight, self.reduce_range)


class PackedAttention(FewQueriesAttention):
    """Attention with one product for all projections of an input: "qkv", or "kv" in cross-attention."""

    def project(self, hidden_states, names):
        if names not in self.joint_projections:
            return super().project(hidden_states, names)
        projected = self.joint_projections[names](hidden_states).chunk(len(names), dim=-1)
        return [each.view(*each.shape[:-1], -1, self.head_dim).transpose(1, 2) for each in projected]


def can_be_packed(module: nn.Module) -> bool:
    """Whether it is a linear layer with ordinary weights: not an adapter's, not quantized, not packed."""
    return is_linear(module) and type(module.weight) is nn.Parameter and module.weight.is_floating_point()


def pack_weights(model: nn.Module, int8: bool) -> nn.Module:
    """Packs the linear layers of an optimized model in place; see `optimize_for_cpu`."""
    packed, reason = packed_class(model, int8)
    if packed is None:
        logger.warning(f"The model's weights are not packed: {reason}.")
        return model
    model.eval().requires_grad_(False)
    modules = list(model.modules())
    adapters = set()  # PEFT puts them beside the layer that they adapt
    for module in modules:
        if hasattr(module, "base_layer"):
            adapters.update(
                part for child in module.children() if child is not module.base_layer for part in child.modules()
            )
    for module in (module for module in modules if module not in adapters):
        if isinstance(module, FewQueriesAttention):
            join_projections(module, packed)
        if any(cls.__name__ == "OdeTransformerLayer" for cls in type(module).__mro__):
            rectify_first_products(module, packed)
        for name, child in list(module.named_children()):
            if can_be_packed(child):
                setattr(module, name, packed([child]))
    return model


def join_projections(attention: nn.Module, packed: type[PackedLinear]) -> None:
    """Replaces the projections of one input by one packed layer."""
    names = "kv" if attention.is_cross_attention else "qkv"
    linears = [getattr(attention, f"{name}_proj", None) for name in names]
    if all(can_be_packed(linear) for linear in linears):
        attention.joint_projections = nn.ModuleDict({names: packed(linears)})
        attention.__class__ = replaced(attention.original, PackedAttention)
        for name in names:
            delattr(attention, f"{name}_proj")


def rectify_first_products(layer: nn.Module, packed: type[PackedLinear]) -> None:
    """Makes the activation of feed-forward sublayers part of their first products, if it is a ReLU."""
    names = [name for name in ("fc1", "macaron_fc1") if hasattr(layer, name)]
    if isinstance(layer.activation_fn, nn.ReLU) and all(can_be_packed(getattr(layer, name)) for name in names):
        for name in names:
            setattr(layer, name, packed([getattr(layer, name)], rectify=True))
        layer.activation_fn = nn.Identity()


def packed_class(model: nn.Module, int8: bool) -> tuple[type[PackedLinear] | None, str]:
    """The class of the model's packed layers, or None and the reason."""
    dtypes = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    if int8:
        if dtypes != {torch.float32}:
            return None, f"it is in {', '.join(sorted(map(str, dtypes)))}, and weights='int8' takes a model in float32"
        return Int8Linear, ""
    if len(dtypes) > 1 or not dtypes <= {torch.float32, torch.bfloat16}:
        return None, f"it is in {', '.join(sorted(map(str, dtypes)))}, and not in float32 or in bfloat16"
    if not HAS_ONEDNN:
        return None, "this PyTorch has no oneDNN"
    if dtypes == {torch.bfloat16} and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return None, "this CPU has no bfloat16 products"
    return OneDnnLinear, ""
