# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The parts of an ODE Transformer's blocks: embeddings and positions, attention with relative keys, and functions that
make them from the configuration."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.autograd import forward_ad
from transformers.cache_utils import Cache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, is_torchdynamo_compiling
from transformers.utils.import_utils import is_tracing

from .configuration_ode_transformer import OdeTransformerConfig
from .integration_ode_transformer import COEFFICIENTS, StageCoefficients


class OdeTransformerScaledWordEmbedding(nn.Embedding):
    """An embedding times a constant."""

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None, embed_scale: float = 1.0):
        super().__init__(num_embeddings, embedding_dim, padding_idx)
        self.embed_scale = embed_scale

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return super().forward(input_ids) * self.embed_scale


class OdeTransformerSinusoidalPositionalEmbedding(nn.Module):
    """Sines in the first half and cosines in the second, computed for the positions at hand: any length works. The
    padding position, if there is one, has the zero vector."""

    def __init__(self, embedding_dim: int, padding_position: int | None):
        super().__init__()
        self.embedding_dim = embedding_dim
        self.padding_position = padding_position

    def angles(self, positions: torch.Tensor) -> torch.Tensor:
        half = self.embedding_dim // 2
        exponents = torch.arange(half, device=positions.device, dtype=torch.int64).float()
        frequencies = torch.exp(exponents * -(math.log(10000) / (half - 1)))
        return positions.unsqueeze(-1).float() * frequencies  # (batch, length, half)

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        """Returns float32 vectors (batch, length, d) of positions (batch, length)."""
        angles = self.angles(positions)
        embeddings = torch.cat([torch.sin(angles), torch.cos(angles)], dim=-1).float()
        # With an odd dimension, one column is missing or one too many.
        embeddings = nn.functional.pad(embeddings, (0, self.embedding_dim - embeddings.shape[-1]))
        if self.padding_position is None:
            return embeddings
        return embeddings * (positions != self.padding_position).unsqueeze(-1)


class OdeTransformerVaswaniPositionalEmbedding(OdeTransformerSinusoidalPositionalEmbedding):
    """Sinusoids with the frequencies of Vaswani et al. (2017). Pegasus computes its table in float64."""

    def angles(self, positions):
        dtype = torch.float32 if positions.device.type == "mps" else torch.float64  # mps has no float64
        exponents = torch.arange(0, self.embedding_dim, 2, device=positions.device).to(dtype) / self.embedding_dim
        return positions.unsqueeze(-1).to(dtype) * 10000**-exponents


SINUSOIDS = {
    "sinusoidal": OdeTransformerSinusoidalPositionalEmbedding,
    "sinusoidal_vaswani": OdeTransformerVaswaniPositionalEmbedding,
}


class OdeTransformerLearnedPositionalEmbedding(nn.Embedding):
    """A vector for each of `num_positions` positions, which begin after the padding position if there is one."""

    def __init__(self, num_positions: int, embedding_dim: int, padding_position: int | None):
        first = 0 if padding_position is None else padding_position + 1
        super().__init__(first + num_positions, embedding_dim, padding_idx=padding_position)
        self.num_positions = num_positions

    def resize(self, num_positions: int):
        """Cuts vectors at the end, or adds vectors initialized as in a new model."""
        new_length = self.num_embeddings - self.num_positions + num_positions
        weight = self.weight.new_empty(new_length, self.embedding_dim).normal_(std=self.embedding_dim**-0.5)
        kept = min(self.num_embeddings, new_length)
        weight[:kept] = self.weight.detach()[:kept]
        self.weight = nn.Parameter(weight, requires_grad=self.weight.requires_grad)
        self.num_embeddings, self.num_positions = new_length, num_positions


def make_word_embedding(config: OdeTransformerConfig, vocab_size: int) -> OdeTransformerScaledWordEmbedding:
    scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
    return OdeTransformerScaledWordEmbedding(vocab_size, config.d_model, config.pad_token_id, scale)


def make_position_embedding(config: OdeTransformerConfig) -> nn.Module | None:
    padding_position = None if config.position_counting == "absolute" else config.padding_position
    if config.position_embedding_type in SINUSOIDS:
        return SINUSOIDS[config.position_embedding_type](config.d_model, padding_position)
    if config.position_embedding_type == "learned":
        return OdeTransformerLearnedPositionalEmbedding(
            config.max_position_embeddings, config.d_model, padding_position
        )
    return None


def count_positions(
    config: OdeTransformerConfig,
    inputs_embeds: torch.Tensor,
    input_ids: torch.Tensor | None = None,
    attention_mask: torch.Tensor | None = None,
    position_ids: torch.Tensor | None = None,
    past_length: int | torch.Tensor | None = 0,
    counts_padding: bool = False,
) -> torch.Tensor:
    """Returns the indices (1 or batch, length) of the position vectors for embeddings (batch, length, d).

    They follow `position_ids`, counted from 0, if given; otherwise `config.position_counting`. With "mask" they count
    the tokens that are not padding, by the mask (batch, past + length) or, without one, by the ids. A decoder without
    a mask counts every token (`counts_padding`), so that cached and uncached results agree. With "ids", as in M2M100,
    they do not: cached padding counts. The largest of `position_ids` is checked only if `past_length` is 0: a
    search, whose positions are in order, need not wait for the device. It gives None.

    Raises:
        ValueError: a position is not among the learned ones.
    """
    length, device = inputs_embeds.shape[1], inputs_embeds.device
    first = 0 if config.position_counting == "absolute" else config.padding_position + 1
    # A ready `BlockMask` of flex attention has a shape, too, of four dimensions.
    is_mask = attention_mask is not None and len(attention_mask.shape) == 2 and attention_mask.shape[1] >= length
    if position_ids is not None:
        positions = position_ids + first
    elif config.position_counting == "absolute":
        positions = torch.arange(length, device=device).unsqueeze(0) + past_length
    elif is_mask and config.position_counting == "mask":
        is_token = attention_mask != 0
        positions = (is_token.cumsum(dim=1) * is_token)[:, -length:] + config.padding_position
    else:
        is_token = torch.ones(inputs_embeds.shape[:2], dtype=torch.bool, device=device)
        if input_ids is not None and config.pad_token_id is not None:
            is_token = input_ids != config.pad_token_id
        counted = torch.ones_like(is_token) if counts_padding else is_token
        positions = (counted.cumsum(dim=1) + past_length) * is_token + config.padding_position
    if config.position_embedding_type != "learned" or is_tracing(positions) or positions.is_meta:
        return positions
    limit, is_told = config.max_position_embeddings, isinstance(past_length, int)
    is_long = is_told and past_length + length > limit
    is_given = is_told and past_length == 0 and position_ids is not None
    # Positions may be fewer than tokens: padding has none, and packed sequences share theirs.
    if (is_long or is_given) and (used := int(positions.max()) + 1 - first) > limit:
        what = f"A sequence of {used} tokens is" if is_long else f"position_ids up to {used - 1} are"
        raise ValueError(
            f"{what} longer than max_position_embeddings={limit}: cut it, or use a model with sinusoidal positions."
        )
    return positions


def attended_positions(
    inputs_embeds: torch.Tensor,
    attention_mask: torch.Tensor | None,
    position_ids: torch.Tensor | None,
    past_length: int | torch.Tensor,
    cache: Cache | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the positions of queries and keys, (1 or batch, length) each, for relative distances: a cache that keeps
    them in another order has a method of this name."""
    if hasattr(cache, "attended_positions"):
        return cache.attended_positions()
    length, device = inputs_embeds.shape[1], inputs_embeds.device
    if cache is None:
        key_length, key_positions = length, torch.arange(length, device=device).unsqueeze(0)
        query_positions = key_positions
    else:
        key_length = cache.get_mask_sizes(length, 0)[0]
        key_positions = torch.arange(key_length, device=device).unsqueeze(0)
        query_positions = torch.arange(length, device=device).unsqueeze(0) + past_length
    has_own_mask = attention_mask is not None and len(attention_mask.shape) == 4
    has_places = isinstance(past_length, int) and key_length == past_length + length
    if position_ids is not None and has_own_mask and has_places:
        # Only such a mask allows positions in another order than the tokens, as in a tree with a common prefix. The
        # first token follows the cache, which is in order, whatever its padding.
        query_positions = position_ids - position_ids[:, :1] + past_length
        past = key_positions[:, :past_length].expand(len(position_ids), -1)
        key_positions = torch.cat([past, query_positions], dim=1)
    return query_positions, key_positions


def mask_and_distances(
    config: OdeTransformerConfig,
    is_causal: bool,
    mask: torch.Tensor | None,
    positions: tuple[torch.Tensor, torch.Tensor] | None,
    like: torch.Tensor,
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Returns what a stack's attentions add to their scores, and the distances of their relative positions.

    A mask of booleans (1 or batch, 1 or heads, queries, keys) becomes numbers: 0, and half of the smallest number for
    hidden keys, in the dtype that `like`, the embeddings, are computed in. "sdpa" also accepts booleans if there are
    no distances; with them, tokens in order get a mask even if there is none. Other masks are returned unchanged.

    The distances are key positions minus query positions, clipped and counted from 0: (1 or batch, 1, queries, keys),
    from `positions` (1 or batch, length) each. If both are the same tensor (1, length), tokens are in order, and the
    distances are (length, length). None without `positions` or `config.max_relative_position`.
    """
    limit, distances = config.max_relative_position, None
    if limit and positions is not None:
        queries, keys = positions
        distances = (keys[:, None, None] - queries[:, None, :, None]).clamp(-limit, limit) + limit
        distances = distances[0, 0] if queries is keys else distances
    if config._attn_implementation == "sdpa":
        if distances is None:
            return mask, None
        if mask is None and is_causal and distances.ndim == 2:
            mask = (distances <= limit)[None, None]
    if isinstance(mask, torch.Tensor) and mask.ndim == 4 and mask.dtype == torch.bool:
        dtype = autocast_dtype(like)
        mask = (~mask).to(dtype) * (torch.finfo(dtype).min / 2)
    return mask, distances


class OdeTransformerRelativeKeys(nn.Module):
    """Relative positions of Shaw et al. (2018, eq. 4) for the keys only: one vector per distance, shared by heads."""

    def __init__(self, max_distance: int, head_dim: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(2 * max_distance + 1, head_dim))

    def forward(self, query: torch.Tensor, distances: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Returns what is added to the scaled scores, (batch, heads, queries, keys), including a mask of numbers.

        The queries are (batch, heads, queries, head_dim). The clipped distances, counted from 0, are (1 or batch, 1, 1
        or queries, keys), or (length, length) for tokens in order."""
        scores = nn.functional.linear(query.transpose(1, 2), self.weight).transpose(1, 2)  # of every distance
        scores, scaling = scores.gather(-1, distances.expand(*scores.shape[:3], -1)), query.shape[-1] ** -0.5
        return scaling * scores if mask is None else torch.add(mask, scores, alpha=scaling)


def eager_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    position_bias: torch.Tensor | None = None,
    **kwargs: Unpack[TransformersKwargs],
) -> tuple[torch.Tensor, torch.Tensor]:
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling
    if position_bias is not None:
        scores = scores + position_bias
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = nn.functional.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    weights = nn.functional.dropout(weights, p=dropout, training=module.training)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


class OdeTransformerAttentionProjection(nn.Linear):
    """A query, key or value projection. In the original it is a part of one matrix (3d, d), and it is initialized as
    such."""


class OdeTransformerAttention(nn.Module):
    """Multi-head attention, with relative positions on the keys if `max_relative_position` is not 0."""

    def __init__(
        self,
        config: OdeTransformerConfig,
        num_heads: int,
        is_causal: bool = False,
        max_relative_position: int = 0,
        is_cross_attention: bool = False,
    ):
        super().__init__()
        self.config = config
        self.head_dim = config.d_model // num_heads
        self.scaling = self.head_dim**-0.5
        self.dropout = config.attention_dropout
        self.is_causal = is_causal
        self.is_cross_attention = is_cross_attention

        self.k_proj = OdeTransformerAttentionProjection(config.d_model, config.d_model)
        self.v_proj = OdeTransformerAttentionProjection(config.d_model, config.d_model)
        self.q_proj = OdeTransformerAttentionProjection(config.d_model, config.d_model)
        self.out_proj = nn.Linear(config.d_model, config.d_model)
        self.relative_keys = (
            OdeTransformerRelativeKeys(max_relative_position, self.head_dim) if max_relative_position else None
        )

    def project(self, hidden_states: torch.Tensor, names: str) -> list[torch.Tensor]:
        """Returns the queries, keys and values of `hidden_states` (batch, length, d), those that `names` has of "qkv":
        (batch, heads, length, head_dim) each."""
        projected = []
        for name in names:
            states = getattr(self, f"{name}_proj")(hidden_states)
            projected.append(states.view(*states.shape[:-1], -1, self.head_dim).transpose(1, 2))
        return projected

    def forward(
        self,
        hidden_states: torch.Tensor,
        keys_and_values: tuple[torch.Tensor, torch.Tensor] | None = None,
        attention_mask: torch.Tensor | None = None,
        relative_distances: torch.Tensor | None = None,
        cache: Cache | None = None,
        cache_idx: int = 0,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attends from `hidden_states` (batch, length, d) to `keys_and_values`; to itself and to what the entry
        `cache_idx` of the cache has seen, if there are none. Returns states (batch, length, d) and the weights (batch,
        heads, length, keys), None where the attention implementation does not give them."""
        if keys_and_values is not None:
            (query,) = self.project(hidden_states, "q")
        else:
            hidden_states = hidden_states.to(autocast_dtype(hidden_states))  # once for all
            query, *keys_and_values = self.project(hidden_states, "qkv")
            if cache is not None:
                keys_and_values = cache.update(*keys_and_values, cache_idx)
        key, value = keys_and_values
        if self.relative_keys is not None:
            is_added = isinstance(attention_mask, torch.Tensor) and attention_mask.dtype.is_floating_point
            if is_added and self.config._attn_implementation != "flex_attention":  # whose heads share one mask
                attention_mask = self.relative_keys(query, relative_distances, attention_mask)
            else:
                kwargs["position_bias"] = self.relative_keys(query, relative_distances)
        output, weights = self.attend(query, key, value, attention_mask, **kwargs)
        return self.out_proj(output.reshape(*hidden_states.shape[:-1], -1)), weights

    def attend(self, query, key, value, attention_mask, **kwargs):
        """Runs the configured attention. Returns states (batch, length, heads, head_dim), and the weights or None."""
        attention_interface: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        if self.is_cross_attention and getattr(attention_mask, "ndim", None) == 2:
            # Flash attention would read a mask of the keys as one of as many queries.
            attention_interface, attention_mask = sdpa_attention_forward, attention_mask[:, None, None].bool()
        dropout = self.dropout if self.training else 0.0
        return attention_interface(
            self, query, key, value, attention_mask, dropout=dropout, scaling=self.scaling, **kwargs
        )


@dataclass
class BlockInputs:
    """What the sublayers of a block read beside the state in one forward pass; and the first stage's attention weights
    ("self", "cross")."""

    attention_mask: torch.Tensor | None
    relative_distances: torch.Tensor | None
    position_ids: torch.Tensor | None
    cache: Cache | None
    first_cache_idx: int
    source: tuple | None
    source_mask: torch.Tensor | None
    options: dict[str, Any]
    weights: dict[str, torch.Tensor] = field(default_factory=dict)


def make_coefficients(config: OdeTransformerConfig, stack: str) -> StageCoefficients | None:
    """Makes the stage weights of a stack's blocks; None for blocks of one stage, which need none."""
    tableau = config.scheme(stack).tableau
    if tableau.num_stages == 1:
        return None
    coefficients = COEFFICIENTS[getattr(config, f"{stack}_coefficients")]
    per_channel = config.coefficient_sharing == "channel" and coefficients.can_be_per_channel
    return coefficients(tableau, config.d_model, per_channel=per_channel, start=config.coefficient_start)


def make_stage_norms(config: OdeTransformerConfig, stack: str) -> nn.ModuleList | None:
    """Makes a layer norm for each stage of a stack's blocks (PCformer), or None. A stage that never counts gets no
    norm: its parameters would have no gradient."""
    tableau = config.scheme(stack).tableau
    if not config.normalize_stages or tableau.num_stages == 1:
        return None
    counts = [getattr(config, f"{stack}_coefficients") != "fixed" or weight != 0.0 for weight in tableau.b]
    if config.normalize_stages == "released":  # later stages start from it
        for later, row in reversed(list(enumerate(tableau.a))):
            counts = [each or (counts[later] and weight != 0.0) for each, weight in zip(counts, row)] + counts[later:]
    return nn.ModuleList(
        nn.LayerNorm(config.d_model, eps=config.layer_norm_eps) if each else nn.Identity() for each in counts
    )


def autocast_dtype(x: torch.Tensor) -> torch.dtype:
    """The dtype in which linear layers compute products of `x`, which autocast may change."""
    device = x.device.type
    # torch.compile of torch 2.11 does not trace the question; what it compiles for has autocast.
    has_autocast = is_torchdynamo_compiling() or torch.amp.is_autocast_available(device)
    if not has_autocast or x.dtype == torch.float64:
        return x.dtype
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def are_operations_recorded() -> bool:
    """Whether operations are traced, compiled, or transformed by `torch.func` or forward-mode differentiation."""
    return (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
    )


def one_cache(cache: Any, past_key_values: Any) -> Any:
    """The cache, from arguments with its two names. Raises a TypeError if two are given."""
    if cache is not None and past_key_values is not None:
        raise TypeError("cache and past_key_values are two names of one argument: give one of them.")
    return past_key_values if cache is None else cache
