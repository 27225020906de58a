# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The ODE Transformer (Li et al., ACL 2022): a pre-norm Transformer whose blocks are Runge-Kutta steps.

One forward pass, as the data sees it: ids are embedded (scaled, word dropout, positions, dropout); for each layer
`y = history(states)`, `y' = integrate(vector field of the layer, y)`, and `y'` joins the history; a last combination
and a layer norm close the stack. The decoder is the same with cross-attention and cache; beside a recurrence encoder,
it attends to that too. The heads only project.
"""

import math
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    CausalLMOutputWithCrossAttentions,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.processing_utils import Unpack
from transformers.utils import (
    TransformersKwargs,
    auto_docstring,
    can_return_tuple,
    is_torchdynamo_compiling,
    logging,
)
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .configuration_ode_transformer import VECTOR_FIELDS, OdeTransformerConfig, Part
from .cpu_ode_transformer import (
    OdeTransformerLinear,
    check_not_packed,
    cross_entropy,
    dropout,
    pack_linear_layers,
    runs_on_processor,
)
from .generation_ode_transformer import BeamSearchGenerationMixin
from .integration_ode_transformer import (
    COEFFICIENTS,
    MultistepScheme,
    StageCoefficients,
    StageGate,
    integrate,
    integrate_multistep,
    resolve_multistep,
    weighted_sum,
)
from .lengths_ode_transformer import RecomputedGenerationMixin
from .recurrence_ode_transformer import (
    OdeTransformerBidirectionalLinear,
    OdeTransformerRecurrenceEncoder,
)


logger = logging.get_logger(__name__)

PIPELINES_FILE = "pipeline_ode_transformer.py"


def shift_tokens_right(labels: torch.Tensor, pad_token_id: int | None, decoder_start_token_id: int | None):
    """Returns the decoder's input for `labels` (batch, length): the start token, then the labels but the last, with
    pad tokens where labels are -100.

    Raises:
        ValueError: one of the two token ids is None.
    """
    for name, token_id in (("pad_token_id", pad_token_id), ("decoder_start_token_id", decoder_start_token_id)):
        if token_id is None:
            raise ValueError(f"config.{name} is None, and the decoder's input cannot be made from labels: set it.")
    shifted = labels.new_zeros(labels.shape)
    shifted[:, 1:] = labels[:, :-1]
    shifted[:, 0] = decoder_start_token_id
    return shifted.masked_fill_(shifted == -100, pad_token_id)


def last_tokens(labels: torch.Tensor, pad_token_id: int) -> torch.Tensor:
    """The last token, neither padding nor -100, of each row of right-padded `labels` (batch, length): (batch,)."""
    lengths = ((labels != -100) & (labels != pad_token_id)).sum(dim=1, keepdim=True)
    tokens = labels.gather(1, (lengths - 1).clamp(min=0)).squeeze(1)
    return tokens.masked_fill(tokens == -100, pad_token_id)


class OdeTransformerScaledWordEmbedding(nn.Embedding):
    """An embedding times a constant."""

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None, embed_scale: float = 1.0):
        super().__init__(num_embeddings, embedding_dim, padding_idx)
        self.embed_scale = embed_scale

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return super().forward(input_ids) * self.embed_scale


class OdeTransformerSinusoidalPositionalEmbedding(nn.Module):
    """Sines in the first half and cosines in the second, computed for the positions at hand, so that there is no
    limit to the length; the padding position, if there is one, has the zero vector. On a processor, vectors that have
    been computed are kept."""

    most_known = 2**14

    def __init__(self, embedding_dim: int, padding_position: int | None):
        super().__init__()
        self.embedding_dim = embedding_dim
        self.padding_position = padding_position
        self.known = ()

    def angles(self, positions: torch.Tensor) -> torch.Tensor:
        half = self.embedding_dim // 2
        exponents = torch.arange(half, device=positions.device, dtype=torch.int64).float()
        frequencies = torch.exp(exponents * -(math.log(10000) / (half - 1)))
        return positions.unsqueeze(-1).float() * frequencies  # (batch, length, half)

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        if not runs_on_processor(positions) or positions.numel() == 0:
            return self.embeddings(positions)
        first, last = (int(position) for position in positions.aminmax())
        if first < 0 or last >= self.most_known:
            return self.embeddings(positions)
        known = self.known
        if last >= len(known):
            known = self.embeddings(torch.arange(max(last + 1, 2 * len(known)), device=positions.device))
            self.known = max(known, self.known, key=len)
        return known[positions]

    def embeddings(self, positions: torch.Tensor) -> torch.Tensor:
        angles = self.angles(positions)
        embeddings = torch.cat([torch.sin(angles), torch.cos(angles)], dim=-1).float()
        # An odd dimension lacks a number or has one too many.
        embeddings = nn.functional.pad(embeddings, (0, self.embedding_dim - embeddings.shape[-1]))
        if self.padding_position is None:
            return embeddings
        return embeddings * (positions != self.padding_position).unsqueeze(-1)


class OdeTransformerVaswaniPositionalEmbedding(OdeTransformerSinusoidalPositionalEmbedding):
    """The same with the frequencies of Vaswani et al. (2017). Pegasus computes its table in float64."""

    def angles(self, positions):
        dtype = torch.float32 if positions.device.type == "mps" else torch.float64  # mps has no float64
        exponents = torch.arange(0, self.embedding_dim, 2, device=positions.device).to(dtype) / self.embedding_dim
        return positions.unsqueeze(-1).to(dtype) * 10000**-exponents


SINUSOIDS = {
    "sinusoidal": OdeTransformerSinusoidalPositionalEmbedding,
    "sinusoidal_vaswani": OdeTransformerVaswaniPositionalEmbedding,
}


class OdeTransformerLearnedPositionalEmbedding(nn.Embedding):
    """One vector for each of `num_positions` positions, which begin after the padding position if there is one."""

    def __init__(self, num_positions: int, embedding_dim: int, padding_position: int | None):
        first = 0 if padding_position is None else padding_position + 1
        super().__init__(first + num_positions, embedding_dim, padding_idx=padding_position)
        self.num_positions = num_positions

    def resize(self, num_positions: int):
        """Cuts vectors at the end, or adds some that are initialised as in a new model."""
        new_length = self.num_embeddings - self.num_positions + num_positions
        weight = self.weight.new_empty(new_length, self.embedding_dim).normal_(std=self.embedding_dim**-0.5)
        kept = min(self.num_embeddings, new_length)
        weight[:kept] = self.weight.detach()[:kept]
        self.weight = nn.Parameter(weight, requires_grad=self.weight.requires_grad)
        self.num_embeddings, self.num_positions = new_length, num_positions


class OdeTransformerRelativeKeys(nn.Module):
    """Relative positions of Shaw et al. (2018), on the keys only: a vector for each distance, shared by the heads."""

    def __init__(self, max_distance: int, head_dim: int):
        super().__init__()
        self.scaling = head_dim**-0.5
        self.weight = nn.Parameter(torch.empty(2 * max_distance + 1, head_dim))

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, distances: torch.Tensor, shift: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Returns keys and what is to be added to the scaled scores, (batch, heads, queries, keys), from the queries
        and the keys, of shape (batch, heads, queries or keys, head_dim), and the clipped, shifted distances (1 or
        batch, 1, queries, keys). With `shift`, the vectors are added to the keys, and None to the scores: for queries
        that are all at one position, whose distances are (1 or batch, 1, 1, keys)."""
        if shift:
            return key + self.weight[distances.squeeze(2)], None
        scores = torch.matmul(query, (self.scaling * self.weight).t())  # (batch, heads, queries, 2m+1)
        return key, scores.gather(-1, distances.expand(*scores.shape[:3], -1))


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


def few_queries_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    position_bias: torch.Tensor | None = None,
    **kwargs: Unpack[TransformersKwargs],
) -> tuple[torch.Tensor, None]:
    """The numbers of "sdpa" (in 16 bits those of "eager", whose softmax rounds) for the few queries of a step of
    generation, without gradients and dropout: on a processor, products of whole batches are sooner done than a fused
    kernel for each source and head."""
    if key.dtype != torch.float32:
        key = key.contiguous()  # oneDNN, which multiplies in 16 bits, takes longer for a part of a cache
    scores = torch.bmm(query.flatten(0, 1) * scaling, key.flatten(0, 1).transpose(1, 2)).unflatten(0, query.shape[:2])
    if position_bias is not None:
        scores += position_bias
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        scores.masked_fill_(~attention_mask, torch.finfo(scores.dtype).min)
    elif attention_mask is not None:
        scores += attention_mask
    output = torch.bmm(scores.softmax(dim=-1).flatten(0, 1), value.flatten(0, 1))
    return output.unflatten(0, query.shape[:2]).transpose(1, 2), None


def are_few_queries(query: torch.Tensor, key: torch.Tensor) -> bool:
    """Whether `few_queries_attention_forward` is sooner done: many sources and heads, few queries and keys in each."""
    is_small = query.shape[2] <= 32 and key.shape[2] <= 256 and query.shape[0] * query.shape[1] >= 32
    return is_small and runs_on_processor(query) and not torch.is_grad_enabled()


def join_rows(query: torch.Tensor, sources: int) -> torch.Tensor:
    """Queries of rows that attend to the same keys, as the beams of a source do, become queries of one row: (rows,
    heads, length, ...) becomes (sources, heads, rows / sources * length, ...)."""
    query = query.transpose(1, 2)
    return query.reshape(sources, -1, *query.shape[2:]).transpose(1, 2)


def mask_of_sources(mask: torch.Tensor, sources: int, rows: int) -> torch.Tensor:
    """The mask (sources, length) of one that has as many rows, or a row for each of the `rows` targets.

    Raises:
        ValueError: it has another number of rows, or differs among the targets of a source.
    """
    if mask.shape[0] == sources:
        return mask
    if mask.shape[0] == rows:
        masks = mask.unflatten(0, (sources, -1))
        if bool((masks == masks[:, :1]).all()):
            return masks[:, 0]
    raise ValueError(
        f"An attention mask of {len(mask)} rows does not fit {sources} sources with {rows} targets: give a row for "
        "each source."
    )


def split_rows(weights: torch.Tensor, rows: int) -> torch.Tensor:
    """The reverse of `join_rows`."""
    return weights.unflatten(2, (rows // len(weights), -1)).transpose(1, 2).flatten(0, 1)


class OdeTransformerFusedProjection(OdeTransformerLinear):
    """A query, key or value projection: a part of one matrix (3d, d) in the original, and initialised so."""


def clamp_half(x: torch.Tensor) -> torch.Tensor:
    """Keeps float16 values finite, with room for an increment: the sums of a Runge-Kutta step are large."""
    if x.dtype != torch.float16:
        return x
    limit = torch.finfo(torch.float16).max - 1000
    return x.clamp(min=-limit, max=limit)


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

        self.joint_projections = nn.ModuleDict()
        self.k_proj = OdeTransformerFusedProjection(config.d_model, config.d_model)
        self.v_proj = OdeTransformerFusedProjection(config.d_model, config.d_model)
        self.q_proj = OdeTransformerFusedProjection(config.d_model, config.d_model)
        self.out_proj = OdeTransformerLinear(config.d_model, config.d_model)
        self.relative_keys = (
            OdeTransformerRelativeKeys(max_relative_position, self.head_dim) if max_relative_position else None
        )

    def project(self, hidden_states: torch.Tensor, names: str) -> tuple[torch.Tensor, ...]:
        """Returns the queries, keys and values of `hidden_states` (batch, length, d), those that `names` has of "qkv":
        (batch, heads, length, head_dim) each."""
        if names in self.joint_projections:
            projected = self.joint_projections[names](hidden_states).chunk(len(names), dim=-1)
        else:
            projected = (getattr(self, f"{name}_proj")(hidden_states) for name in names)
        return tuple(map(self._split_heads, projected))

    def join_projections(self, can_be_joined: Callable[[nn.Module], bool], join: Callable[[list], nn.Module]):
        """Puts one module, made by `join` of the layers, in the place of the projections of one input: of "qkv", in a
        cross-attention of "kv"."""
        names = "kv" if self.is_cross_attention else "qkv"
        if names in self.joint_projections:
            return
        linears = [getattr(self, f"{name}_proj") for name in names]
        if all(map(can_be_joined, linears)):
            self.joint_projections[names] = join(linears)
            for name in names:
                delattr(self, f"{name}_proj")

    def _split_heads(self, projected: torch.Tensor) -> torch.Tensor:
        return projected.view(*projected.shape[:-1], -1, self.head_dim).transpose(1, 2)

    def forward(
        self,
        hidden_states: torch.Tensor,
        keys_and_values: tuple[torch.Tensor, torch.Tensor] | None = None,
        attention_mask: torch.Tensor | None = None,
        relative_distances: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        cache_idx: int = 0,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attends from `hidden_states` (batch, length, d) to `keys_and_values`; to itself, and to what the entry
        `cache_idx` of the cache has seen, if there are none. Keys and values of fewer rows each serve as many
        successive rows; mask and distances are then those of all queries of a row of keys, one after the other."""
        if keys_and_values is not None:
            (query,) = self.project(hidden_states, "q")
        else:
            query, *keys_and_values = self.project(hidden_states, "qkv")
            if past_key_values is not None:
                keys_and_values = past_key_values.update(*keys_and_values, cache_idx)
        key, value = keys_and_values
        rows, sources = query.shape[0], key.shape[0]
        few = kwargs.pop("few", False)
        if rows != sources:
            query = join_rows(query, sources)

        if self.relative_keys is not None:
            shift = few or (rows != sources and relative_distances.shape[2] == 1)
            key, kwargs["position_bias"] = self.relative_keys(query, key, relative_distances, shift)

        attention_interface: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        if self.is_cross_attention and getattr(attention_mask, "ndim", None) == 2:
            # Flash attention takes a mask of the keys for one of as many queries.
            attention_interface, attention_mask = sdpa_attention_forward, attention_mask[:, None, None].bool()
        dropout = self.dropout if self.training else 0.0
        shares_keys = (few or rows != sources) and attention_interface is sdpa_attention_forward
        if shares_keys and not dropout and are_few_queries(query, key):
            attention_interface = few_queries_attention_forward
        output, weights = attention_interface(
            self,
            query,
            key,
            value,
            attention_mask,
            dropout=dropout,
            scaling=self.scaling,
            **kwargs,
        )
        if rows != sources and weights is not None:
            weights = split_rows(weights, rows)
        return self.out_proj(output.reshape(*hidden_states.shape[:-1], -1)), weights


class OdeTransformerSilentProjection(OdeTransformerLinear):
    """The output projection of a residual sublayer that starts at zero: the model computes what it would without the
    sublayer, and training it puts the sublayer to use."""


@dataclass
class OdeTransformerEncoderOutput(BaseModelOutput):
    """
    What the encoder of a model with a recurrence encoder returns; as a tuple (`return_dict=False`) in the order
    `last_hidden_state`, `recurrence_last_hidden_state`, `hidden_states`, `attentions`, without those that are None.

    Args:
        recurrence_last_hidden_state (`torch.FloatTensor` of shape `(batch_size, states, hidden_size)`, *optional*):
            The states of the recurrence encoder: `recurrence_steps`, or one for each word, of which those of padding
            are not to be used.
    """

    recurrence_last_hidden_state: torch.FloatTensor | None = None


def as_encoder_output(values: Mapping | tuple | list, has_recurrence: bool) -> OdeTransformerEncoderOutput:
    """What an encoder returned, from a mapping (of which other entries are left out), or from a tuple in its order.

    Raises:
        TypeError: it is a tensor.
        ValueError: a mapping lacks the last states.
    """
    names = ["last_hidden_state", *["recurrence_last_hidden_state"] * has_recurrence, "hidden_states", "attentions"]
    if isinstance(values, torch.Tensor):
        raise TypeError(
            f"encoder_outputs is a tensor {tuple(values.shape)}: give what the encoder returns, or its states in a "
            "tuple."
        )
    if not isinstance(values, Mapping):
        values = dict(zip(names, values))
    if "last_hidden_state" not in values:
        raise ValueError(f"encoder_outputs has no last_hidden_state, only {', '.join(map(str, values))}.")
    return OdeTransformerEncoderOutput(**{name: values[name] for name in names if name in values})


@dataclass
class SharedModules:
    """What the layers of a stack share. It is an argument of each: accelerate moves a layer's tensors and modules to
    the layer's device, which would tear modules from where their weights are, and leaves objects of other kinds."""

    coefficients: StageCoefficients | None
    stage_norms: nn.ModuleList | None
    multistep: MultistepScheme | None
    corrector: "LearnedDenseLayerHistory | None"


@dataclass
class LayerInputs:
    """What the sublayers of a layer get beside the state in one forward pass, and the attention weights ("self",
    "cross") of the first stage."""

    self_attention: dict[str, Any]
    cross_attention: dict[str, Any]
    recurrence_attention: dict[str, Any]
    attention_options: dict[str, Any]
    weights: dict[str, torch.Tensor | None] = field(default_factory=dict)


def parts_without(absent: Collection[str], parts: Iterable[Part]) -> list[Part]:
    """Parts of a vector field without the sublayers of these names; those that have no other are left out."""
    kept = (
        part._replace(sublayers={name: weight for name, weight in part.sublayers.items() if name not in absent})
        for part in parts
    )
    return [part for part in kept if part.sublayers]


class OdeTransformerLayer(GradientCheckpointingLayer):
    """A block: sublayers, grouped by the configuration's vector field, and a Runge-Kutta step for each group.

    Args:
        config: the model's configuration.
        stack: "encoder" or "decoder".
        layer_idx: the number of the layer in its stack.
        has_cross_attention: whether the layer attends to an encoder.
    """

    def __init__(self, config: OdeTransformerConfig, stack: str, layer_idx: int, has_cross_attention: bool = False):
        super().__init__()
        num_heads, ffn_dim = getattr(config, f"{stack}_attention_heads"), getattr(config, f"{stack}_ffn_dim")
        self.layer_idx = layer_idx
        self.num_cache_entries = config.decoder_attention_evaluations
        self.first_cache_idx = layer_idx * self.num_cache_entries
        self.dropout = config.dropout
        self.activation_dropout = config.activation_dropout
        self.activation_fn = ACT2FN[config.activation_function]
        self.tableau = getattr(config, f"{stack}_tableau")
        is_top = layer_idx == getattr(config, f"{stack}_layers") - 1
        has_recurrence_attention = (
            has_cross_attention
            and config.recurrence_encoder != "none"
            and (is_top or config.recurrence_decoder_layers == "all")
        )
        is_gated_sum = config.recurrence_integration == "gated_sum"
        missing = set()
        if not has_cross_attention:
            missing.add("cross_attention")
        if not has_recurrence_attention or is_gated_sum:  # a gated sum is a part of the cross-attention
            missing.add("recurrence_attention")
        self.parts = parts_without(missing, VECTOR_FIELDS[config.vector_field])
        self.parts_without_encoder = parts_without({"cross_attention", "recurrence_attention"}, self.parts)
        self.step_size = config.step_size
        self.num_steps = config.steps_per_layer
        # A block of one stage is the residual one: the two forms differ in blocks of several.
        self.is_residual = self.tableau.num_stages == 1 and self.step_size == 1
        self.corrects = config.predictor_corrector and stack == "encoder"
        self.field_is_output = config.stage_values == "output" and self.tableau.num_stages > 1
        self.recomputes_stages = False

        self.self_attn = OdeTransformerAttention(
            config, num_heads, is_causal=stack == "decoder", max_relative_position=config.max_relative_position
        )
        self.self_attn_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.encoder_attn = None
        if has_cross_attention:
            self.encoder_attn = OdeTransformerAttention(config, num_heads, is_cross_attention=True)
            self.encoder_attn_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.recurrence_attn = self.recurrence_gate = None
        if has_recurrence_attention:
            self.recurrence_attn = OdeTransformerAttention(config, num_heads, is_cross_attention=True)
            self.recurrence_attn_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
            if is_gated_sum:
                self.recurrence_gate = StageGate(2 * config.d_model, 1)
            else:
                self.recurrence_attn.out_proj = OdeTransformerSilentProjection(config.d_model, config.d_model)
        self.fc1 = OdeTransformerLinear(config.d_model, ffn_dim)
        self.fc2 = OdeTransformerLinear(ffn_dim, config.d_model)
        self.final_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        if any("macaron_feed_forward" in part.sublayers for part in self.parts):
            self.macaron_fc1 = OdeTransformerLinear(config.d_model, ffn_dim)
            self.macaron_fc2 = OdeTransformerLinear(ffn_dim, config.d_model)
            self.macaron_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.solver_coefficients = None
        if config.coefficient_sharing == "layer":
            self.solver_coefficients = make_coefficients(config, stack)

    @property
    def num_function_evaluations(self) -> int:
        """How often one forward pass evaluates the integrated vector field."""
        return self.tableau.num_stages * self.num_steps + self.corrects

    def forward(
        self,
        hidden_states: torch.Tensor,
        shared: SharedModules,
        encoder_hidden_states: torch.Tensor | None = None,
        recurrence_hidden_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        recurrence_attention_mask: torch.Tensor | None = None,
        relative_distances: torch.Tensor | None = None,
        steps: tuple[tuple[torch.Tensor, torch.Tensor], ...] = (),
        states: list[torch.Tensor] | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, tuple]:
        """Returns the new state (batch, length, d), the weights of the self-attention and of the cross-attention in
        the first stage (None where the attention does not give them), and the steps made so far, where the scheme is a
        multistep one. With a corrector, `states` are those of the layer history."""
        recompute = self._gradient_checkpointing_func if self.recomputes_stages and self.training else None
        if recompute is not None and past_key_values is not None:
            logger.warning_once("Stages that are recomputed cannot fill a cache: past_key_values stays empty.")
            past_key_values = None
        self_cache, cross_cache = past_key_values, None
        if isinstance(past_key_values, EncoderDecoderCache):
            self_cache, cross_cache = past_key_values.self_attention_cache, past_key_values
        encoder_keys_and_values = recurrence_keys_and_values = None
        if self.encoder_attn is not None and encoder_hidden_states is not None:
            encoder_keys_and_values, recurrence_keys_and_values = self._encoder_keys_and_values(
                encoder_hidden_states, recurrence_hidden_states, cross_cache
            )
        inputs = LayerInputs(
            self_attention={
                "attention_mask": attention_mask,
                "relative_distances": relative_distances,
                "past_key_values": self_cache,
            },
            cross_attention={"keys_and_values": encoder_keys_and_values, "attention_mask": encoder_attention_mask},
            recurrence_attention={
                "keys_and_values": recurrence_keys_and_values,
                "attention_mask": recurrence_attention_mask,
            },
            attention_options=kwargs,
        )
        parts = self.parts if encoder_keys_and_values is not None else self.parts_without_encoder
        coefficients = shared.coefficients if self.solver_coefficients is None else self.solver_coefficients
        for sublayers, is_integrated in parts:
            if is_integrated and shared.multistep is not None:
                hidden_states, steps = integrate_multistep(
                    partial(self._increment, sublayers, inputs),
                    hidden_states,
                    shared.multistep,
                    steps,
                    self.step_size,
                    self.num_steps,
                )
            elif is_integrated and not self.is_residual:
                vector_field = partial(self._output if self.field_is_output else self._increment, sublayers, inputs)
                hidden_states = integrate(
                    vector_field,
                    hidden_states,
                    self.tableau,
                    coefficients,
                    self.step_size,
                    self.num_steps,
                    shared.stage_norms,
                    recompute,
                )
            else:
                for evaluation in range(self.num_steps if is_integrated else 1):
                    hidden_states = self._output(sublayers, inputs, hidden_states, evaluation)

        if (corrector := shared.corrector) is not None:
            hidden_states = corrector(corrector.extend(states, clamp_half(hidden_states)))
            for sublayers, _ in parts:
                hidden_states = self._output(sublayers, inputs, hidden_states, 0)
        return clamp_half(hidden_states), inputs.weights.get("self"), inputs.weights.get("cross"), steps

    def _output(
        self, sublayers: dict[str, float], inputs: LayerInputs, z: torch.Tensor, evaluation: int
    ) -> torch.Tensor:
        """z after the sublayers, each of which adds to the output of the one before."""
        z = clamp_half(z)
        for name, weight in sublayers.items():
            z = z + self._sublayer(name, weight, inputs, z, evaluation)
        return z

    def _increment(
        self, sublayers: dict[str, float], inputs: LayerInputs, z: torch.Tensor, evaluation: int
    ) -> torch.Tensor:
        """What `_output` adds to z."""
        z = clamp_half(z)
        (name, weight), *others = sublayers.items()
        total = self._sublayer(name, weight, inputs, z, evaluation)
        for name, weight in others:
            total = total + self._sublayer(name, weight, inputs, z + total, evaluation)
        return total

    def _sublayer(
        self, name: str, weight: float, inputs: LayerInputs, z: torch.Tensor, evaluation: int
    ) -> torch.Tensor:
        increment = dropout(getattr(self, f"_{name}")(inputs, z, evaluation), self.dropout, self.training)
        return increment if weight == 1.0 else weight * increment

    def _self_attention(self, inputs, z, evaluation):
        output, weights = self.self_attn(
            self.self_attn_layer_norm(z),
            cache_idx=self.first_cache_idx + evaluation,
            **inputs.self_attention,
            **inputs.attention_options,
        )
        inputs.weights.setdefault("self", weights)
        return output

    def _cross_attention(self, inputs, z, evaluation):
        output, weights = self.encoder_attn(
            self.encoder_attn_layer_norm(z), **inputs.cross_attention, **inputs.attention_options
        )
        inputs.weights.setdefault("cross", weights)
        if self.recurrence_gate is None:
            return output
        recurrent = self._recurrence_attention(inputs, z, evaluation)
        gate = torch.sigmoid(self.recurrence_gate(torch.cat([z + output, z + recurrent], dim=-1)))
        return gate * output + (1 - gate) * recurrent

    def _recurrence_attention(self, inputs, z, evaluation):
        output, _ = self.recurrence_attn(
            self.recurrence_attn_layer_norm(z), **inputs.recurrence_attention, **inputs.attention_options
        )
        return output

    def _feed_forward(self, inputs, z, evaluation):
        return self._two_products(z, self.final_layer_norm, self.fc1, self.fc2)

    def _macaron_feed_forward(self, inputs, z, evaluation):
        return self._two_products(z, self.macaron_layer_norm, self.macaron_fc1, self.macaron_fc2)

    def _two_products(self, z, layer_norm, fc1, fc2):
        z = self.activation_fn(fc1(layer_norm(z)))
        return fc2(dropout(z, self.activation_dropout, self.training))

    def rectify_first_products(self, can_be_joined: Callable[[nn.Module], bool], join: Callable[[list], nn.Module]):
        """Puts one module, made by `join` of it, in the place of the first layer of each feed-forward sublayer and of
        the ReLU after it, if it is one."""
        names = [name for name in ("fc1", "macaron_fc1") if hasattr(self, name)]
        if isinstance(self.activation_fn, nn.ReLU) and all(can_be_joined(getattr(self, name)) for name in names):
            for name in names:
                setattr(self, name, join([getattr(self, name)]))
            self.activation_fn = nn.Identity()

    def _encoder_keys_and_values(self, encoder_hidden_states, recurrence_hidden_states, cache):
        """The keys and values of the cross-attention, and of the attention to the recurrence encoder (None without
        it), which all stages share: from the cache once it has them. There the two lie in one entry, one after the
        other: whatever becomes of an entry in a search becomes of both."""
        if cache is not None and cache.is_updated.get(self.first_cache_idx):
            entry = cache.cross_attention_cache.layers[self.first_cache_idx]
            keys_and_values = entry.keys, entry.values
        else:
            keys_and_values, others = self.encoder_attn.project(encoder_hidden_states, "kv"), None
            if self.recurrence_attn is not None:
                others = self.recurrence_attn.project(recurrence_hidden_states, "kv")
            if cache is None:
                return keys_and_values, others
            if others is not None:
                keys_and_values = [torch.cat(pair, dim=2) for pair in zip(keys_and_values, others)]
            # transformers makes both caches with as many entries; those of a layer hold the same here.
            for idx in range(self.first_cache_idx, self.first_cache_idx + self.num_cache_entries):
                cache.is_updated[idx] = True
                cached = cache.cross_attention_cache.update(*keys_and_values, idx)
            keys_and_values = cached
        length = encoder_hidden_states.shape[1]
        of_encoder = [states[:, :, :length] for states in keys_and_values]
        if self.recurrence_attn is None:
            return of_encoder, None
        # A static cache may be longer.
        end = length + recurrence_hidden_states.shape[1]
        return of_encoder, [states[:, :, length:end] for states in keys_and_values]


class OdeTransformerEncoderLayer(OdeTransformerLayer):
    """A block of the encoder."""


class OdeTransformerDecoderLayer(OdeTransformerLayer):
    """A block of the decoder."""


def make_coefficients(config: OdeTransformerConfig, stack: str) -> StageCoefficients | None:
    """The weights of the stages of a stack's blocks; None for blocks of one stage, which have nothing to weigh."""
    tableau = getattr(config, f"{stack}_tableau")
    if tableau.num_stages == 1:
        return None
    per_channel = config.coefficient_sharing == "channel"
    coefficients = COEFFICIENTS[config.solver_coefficients]
    return coefficients(tableau, config.d_model, per_channel=per_channel, start=config.coefficient_start)


class LayerHistory(nn.Module):
    """What a block sees of those below: here, of the last only."""

    def __init__(self, config: OdeTransformerConfig, num_layers: int):
        super().__init__()

    def forward(self, states: list[torch.Tensor]) -> torch.Tensor:
        """The input of the next block, from the embedding and what `extend` made of the blocks' outputs."""
        return states[-1]

    def extend(self, states: list[torch.Tensor], output: torch.Tensor) -> list[torch.Tensor]:
        return [output]


class DenseLayerHistory(LayerHistory):
    """Dense connections: the mean of the embedding and the normalised outputs of all blocks below (Wang et al.,
    2019)."""

    def __init__(self, config: OdeTransformerConfig, num_layers: int):
        super().__init__(config, num_layers)
        self.layer_norms = nn.ModuleList(
            nn.LayerNorm(config.d_model, eps=config.layer_norm_eps) for _ in range(num_layers)
        )

    def weights(self, count: int) -> list[float] | tuple[torch.Tensor, ...]:
        return [1 / count] * count

    def forward(self, states):
        first, *others = self.weights(len(states))
        return weighted_sum(first * states[0], others, states[1:])

    def extend(self, states, output):
        return [*states, self.layer_norms[len(states) - 1](output)]


class LearnedDenseLayerHistory(DenseLayerHistory):
    """DLCL: the mean of `DenseLayerHistory` is where learned weights start, a row for each block and one for the
    end."""

    def __init__(self, config: OdeTransformerConfig, num_layers: int):
        super().__init__(config, num_layers)
        self.weight = nn.Parameter(self.initial_weight())

    def initial_weight(self) -> torch.Tensor:
        size = len(self.layer_norms) + 1
        return torch.tril(torch.ones(size, size)) / torch.arange(1, size + 1).unsqueeze(1)

    def weights(self, count):
        return self.weight[count - 1, :count].unbind()


HISTORIES = {"learned_dense": LearnedDenseLayerHistory, "dense": DenseLayerHistory, "none": LayerHistory}


def language_model_loss(
    logits: torch.Tensor,
    labels: torch.Tensor | None,
    vocab_size: int,
    num_items_in_batch: torch.Tensor | int | None = None,
    ignore_index: int = -100,
    shift_labels: torch.Tensor | None = None,
    **kwargs,
) -> torch.Tensor:
    """transformers' `ForCausalLMLoss`, which takes a processor longer: the mean cross entropy in nats, or the sum over
    `num_items_in_batch`.

    Args:
        logits: (batch, length, vocab_size).
        labels: (batch, length), the input itself; they are shifted here, unless `shift_labels` are given.
        ignore_index: What labels are where there is no loss.
    """
    if shift_labels is None:
        shift_labels = nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    shift_labels = shift_labels.flatten().to(logits.device)
    losses = cross_entropy(logits.view(-1, vocab_size), shift_labels, ignore_index=ignore_index)
    number = (shift_labels != ignore_index).sum() if num_items_in_batch is None else num_items_in_batch
    return losses.sum() / (number.to(losses.device) if torch.is_tensor(number) else number)


@auto_docstring
class OdeTransformerPreTrainedModel(PreTrainedModel):
    config: OdeTransformerConfig
    config_class = OdeTransformerConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["OdeTransformerEncoderLayer", "OdeTransformerDecoderLayer"]
    _skip_keys_device_placement = ["past_key_values"]
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _can_compile_fullgraph = True
    _loss_function = staticmethod(language_model_loss)  # what `loss_function` gives, unless another is set

    def __init__(self, config: OdeTransformerConfig, *args, **kwargs):
        # Fields may have been set since it was made, as `from_pretrained(folder, field=value)` does.
        config.validate()
        super().__init__(config, *args, **kwargs)

    def _init_weights(self, module):
        if isinstance(module, OdeTransformerSilentProjection):
            init.zeros_(module.weight)
            init.zeros_(module.bias)
        elif isinstance(module, OdeTransformerBidirectionalLinear):
            bound = math.sqrt(6 / (module.in_features + module.out_features))  # Xavier's, for each direction
            init.uniform_(module.weight, -bound, bound)
            init.zeros_(module.bias)
        elif isinstance(module, nn.GRU):
            for name, parameter in module.named_parameters():
                init.zeros_(parameter) if name.startswith("bias") else init.xavier_uniform_(parameter)
        elif module is getattr(self, "lm_head", None):
            init.normal_(module.weight, mean=0.0, std=self.config.d_model**-0.5)  # as the embeddings, tied or not
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, (nn.Linear, StageGate)):
            is_part = isinstance(module, OdeTransformerFusedProjection)
            init.xavier_uniform_(module.weight, gain=2**-0.5 if is_part else 1)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            init.normal_(module.weight, mean=0.0, std=self.config.d_model**-0.5)
            if module.padding_idx is not None and not getattr(module.weight, "_is_hf_initialized", False):
                init.zeros_(module.weight[module.padding_idx])
        elif isinstance(module, OdeTransformerRelativeKeys):
            init.xavier_uniform_(module.weight)
        elif isinstance(module, (LearnedDenseLayerHistory, StageCoefficients, MultistepScheme)) and hasattr(
            module, "initial_weight"
        ):
            init.copy_(module.weight, module.initial_weight())
        elif isinstance(module, StageCoefficients):
            module.reset_parameters()
        else:
            super()._init_weights(module)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *args, use_safetensors: bool | None = True, **kwargs):
        """As in transformers, but only from safetensors unless `use_safetensors=False` asks for files of `torch.save`,
        of which `weights_only=True` lets nothing run. `None`, transformers' own default, asks for nothing.

        Raises:
            OSError: there are no safetensors files.
        """
        use_safetensors = use_safetensors is not False
        try:
            return super().from_pretrained(
                pretrained_model_name_or_path, *args, use_safetensors=use_safetensors, **kwargs
            )
        except OSError as error:
            if use_safetensors and "safetensors" in str(error):
                raise OSError(f"{error} Older files (.bin) are only read with use_safetensors=False.") from error
            raise

    def save_pretrained(self, save_directory, *args, **kwargs):
        """As in transformers; and the configuration names the code for every Auto class that can open the model.

        The code of this package's pipelines, where the configuration names them, is saved along. If it is not at hand,
        since a process has only what it needed of a repository's code, they are no longer named.
        """
        base = self.base_model
        source = getattr(base, "shared", None) or getattr(base, "decoder", base).embed_tokens
        if (head := self.get_output_embeddings()) is not None and head.weight is source.weight:
            # PEFT, which compares the output projection with the encoder's embeddings, says otherwise when it merges.
            self.config.tie_word_embeddings = True
        if self.is_remote_code():
            self._name_code()
        self._save_pipelines(Path(save_directory))
        return super().save_pretrained(save_directory, *args, **kwargs)

    def _name_code(self):
        """Notes the classes for the Auto classes in the configuration."""
        # A decoder alone is no OdeTransformerModel, which has an encoder.
        models = {"AutoModelForCausalLM": OdeTransformerForCausalLM}
        if self.config.is_encoder_decoder:
            models = {
                "AutoModel": OdeTransformerModel,
                "AutoModelForSeq2SeqLM": OdeTransformerForConditionalGeneration,
            }
        classes = {"AutoConfig": type(self.config)} | models
        names = {key: f"{each.__module__.split('.')[-1]}.{each.__name__}" for key, each in classes.items()}
        known = getattr(self.config, "auto_map", None) or {}
        # A configuration may be that of another model of this file.
        others = {key: name for key, name in known.items() if f"{Path(__file__).stem}." not in str(name)}
        self.config.auto_map = others | names

    def _save_pipelines(self, folder: Path):
        """Saves the code of the pipelines that the configuration names, or takes their names out of it."""
        pipelines = getattr(self.config, "custom_pipelines", None) or {}
        module = PIPELINES_FILE.removesuffix(".py")
        others = {task: entry for task, entry in pipelines.items() if module not in entry["impl"]}
        if len(others) == len(pipelines):
            return
        if (code := Path(__file__).with_name(PIPELINES_FILE)).is_file():
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(code, folder)
        elif others:
            self.config.custom_pipelines = others
        else:
            del self.config.custom_pipelines

    def _get_files_timestamps(self, working_dir):
        """Those of the files before saving, which `push_to_hub=True` does not upload where they are as they were. The
        pipelines' code is there already, and new."""
        timestamps = super()._get_files_timestamps(working_dir)
        timestamps.pop(PIPELINES_FILE, None)
        return timestamps

    def _get_resized_lm_head(self, old_lm_head, new_num_tokens=None, transposed=False, mean_resizing=True):
        """As in transformers, but a layer of the old one's class, whose new rows start as an output projection's."""
        new = super()._get_resized_lm_head(old_lm_head, new_num_tokens, transposed, mean_resizing)
        if type(new) is nn.Linear and type(old_lm_head) is OdeTransformerLinear:
            new.__class__ = OdeTransformerLinear
            if not mean_resizing:
                with torch.no_grad():
                    new.weight[old_lm_head.out_features :].normal_(std=self.config.d_model**-0.5)
        return new

    def activation_checkpointing_enable(self, activation_checkpointing_kwargs: dict | None = None, **kwargs):
        """As in transformers; `use_reentrant` is False where it is not given, also beside other arguments.

        One argument more, `{"stages": True}`, recomputes the stages of Runge-Kutta blocks in the place of whole
        blocks: all but the last of a block, whose activations are kept as a residual block's are. It needs about the
        memory of the residual model, and less time than recomputing blocks.

        Raises:
            ValueError: `use_reentrant=True` with `stages`, or for a multistep scheme or a corrector, whose blocks
                share states.
        """
        activation_checkpointing_kwargs = {"use_reentrant": False} | (activation_checkpointing_kwargs or {})
        recomputes_stages = activation_checkpointing_kwargs.pop("stages", False)
        if recomputes_stages and activation_checkpointing_kwargs["use_reentrant"]:
            raise ValueError(
                "use_reentrant=True loses the gradients of what stages share, as the keys and values of the encoder's "
                "output: give use_reentrant=False, the default."
            )
        stacks = [stack for stack in self.modules() if isinstance(stack, OdeTransformerStack)]
        shares_states = any(stack.multistep is not None or stack.corrector is not None for stack in stacks)
        if shares_states and activation_checkpointing_kwargs["use_reentrant"]:
            raise ValueError(
                "use_reentrant=True loses the gradients of states that blocks share in a multistep scheme or a "
                "corrector: give use_reentrant=False, the default."
            )
        super().activation_checkpointing_enable(activation_checkpointing_kwargs, **kwargs)
        for layer in (layer for stack in stacks for layer in stack.layers):
            layer.recomputes_stages = recomputes_stages and layer.gradient_checkpointing
        for layer in (module for module in self.modules() if isinstance(module, GradientCheckpointingLayer)):
            layer.gradient_checkpointing &= not recomputes_stages

    def activation_checkpointing_disable(self):
        super().activation_checkpointing_disable()
        for stack in (stack for stack in self.modules() if isinstance(stack, OdeTransformerStack)):
            for layer in stack.layers:
                layer.recomputes_stages = False

    def _apply(self, *args, **kwargs):
        check_not_packed(self)
        return super()._apply(*args, **kwargs)

    def pack_for_inference(self, int8: bool = False) -> "OdeTransformerPreTrainedModel":
        """Packs the weights of all linear layers, once and in place, into the layout of the processor's fastest matrix
        products, and joins projections of the same input. Nothing else changes: the model generates as before, and
        sooner. What it is packed in follows from its dtype: float32 (the same numbers to rounding) or bfloat16.

        The model is for inference then: in evaluation mode, without gradients, and it cannot be saved, moved or
        converted (a `RuntimeError` says so). Weights that are not the model's own, as an adapter's or a quantizer's,
        stay. On an accelerator, in float16, or with a PyTorch that lacks oneDNN, all stay, with a warning.

        Args:
            int8: whether to make the weights of a model in float32 8-bit integers, with a scale for each output, and
                inputs 8-bit integers when they come, with a scale for each call. Outputs are no longer the same.

        Returns:
            The model itself.
        """
        return pack_linear_layers(self, int8)

    def num_function_evaluations(self, per_layer: bool = False) -> int | dict[str, list[int]]:
        """How often one forward pass evaluates the layers' vector fields, for comparisons at equal cost.

        A Runge-Kutta block evaluates its field once for each stage of each step, a corrector once more. Where only a
        part of a block is integrated (`vector_field`), that part is counted.

        Args:
            per_layer: whether to return the counts of each layer, by stack.

        Returns:
            The sum over all layers of all stacks; or `{"encoder": [2, 2, ...], "decoder": [1, 1, ...]}`.
        """
        counts = {
            stack.stack: [layer.num_function_evaluations for layer in stack.layers]
            for stack in self.modules()
            if isinstance(stack, OdeTransformerStack)
        }
        return counts if per_layer else sum(sum(layers) for layers in counts.values())

    def get_position_embeddings(self) -> nn.Module | tuple[nn.Module, ...] | None:
        """The positions of a stack, None if it has none; of a model with two stacks, those of the encoder and the
        decoder."""
        positions = tuple(stack.embed_positions for stack in self.modules() if isinstance(stack, OdeTransformerStack))
        return positions[0] if len(positions) == 1 else positions

    def resize_position_embeddings(self, new_num_position_embeddings: int):
        """Sets the number of positions, `max_position_embeddings`: learned ones are cut at the end, or get new
        vectors there, which are initialised as in a new model. Sinusoidal ones are computed for any length.

        Raises:
            ValueError: the number is less than 1.
        """
        if new_num_position_embeddings < 1:
            raise ValueError(f"new_num_position_embeddings={new_num_position_embeddings} must be at least 1.")
        self.config.max_position_embeddings = new_num_position_embeddings
        for module in self.modules():
            if isinstance(module, OdeTransformerLearnedPositionalEmbedding):
                module.resize(new_num_position_embeddings)

    def init_parallel_plans(self):
        super().init_parallel_plans()
        names = {re.sub(r"\.\d+(?=\.|$)", ".*", name) for name, _ in self.named_modules()}
        for plan in (self._tp_plan, self._fsdp_plan):
            for pattern in [pattern for pattern in plan if pattern not in names]:
                del plan[pattern]

    def init_continuous_batching(self, *args, **kwargs):
        raise NotImplementedError(
            "Continuous batching (`generate_batch`) has no place for the keys of every evaluation of a block, nor for "
            "relative positions: call `generate` with batches."
        )

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict:
        # transformers ties nothing if `tie_word_embeddings` is False; here that is about the output projection only.
        if all_submodels:
            return super().get_expanded_tied_weights_keys(all_submodels=True)
        return dict(self._tied_weights_keys or {})

    def _check_and_adjust_attn_implementation(self, attn_implementation, *args, **kwargs):
        if self.config.max_relative_position and "flash" in str(attn_implementation):
            raise ValueError(
                f"attn_implementation={attn_implementation!r} cannot add the scores of relative positions "
                f"(max_relative_position={self.config.max_relative_position}): choose 'sdpa', 'eager' or "
                "'flex_attention', or a model with max_relative_position=0."
            )
        return super()._check_and_adjust_attn_implementation(attn_implementation, *args, **kwargs)


class OdeTransformerStack(OdeTransformerPreTrainedModel):
    """What encoder and decoder have in common: embedding, positions, layers and their history."""

    stack: str
    layer_class: type[OdeTransformerLayer]

    def __init__(self, config: OdeTransformerConfig, vocab_size: int, **layer_kwargs):
        super().__init__(config)
        num_layers = getattr(config, f"{self.stack}_layers")
        self.padding_position = None if config.position_counting == "absolute" else config.padding_position
        self.max_distance = config.max_relative_position
        self.embed_tokens = make_word_embedding(config, vocab_size)
        self.embed_positions = None
        if config.position_embedding_type in SINUSOIDS:
            self.embed_positions = SINUSOIDS[config.position_embedding_type](config.d_model, self.padding_position)
        elif config.position_embedding_type == "learned":
            self.embed_positions = OdeTransformerLearnedPositionalEmbedding(
                config.max_position_embeddings, config.d_model, self.padding_position
            )
        self.layernorm_embedding = None
        if config.embedding_layer_norm:
            self.layernorm_embedding = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.solver_coefficients = None
        if config.coefficient_sharing != "layer":
            self.solver_coefficients = make_coefficients(config, self.stack)
        self.layers = nn.ModuleList(
            self.layer_class(config, self.stack, layer_idx, **layer_kwargs) for layer_idx in range(num_layers)
        )
        self.history = HISTORIES[config.layer_history](config, num_layers)
        tableau = getattr(config, f"{self.stack}_tableau")
        self.stage_norms = None
        if config.normalize_stages and tableau.num_stages > 1:
            # A stage that never counts has no norm: its parameters would have no gradient.
            self.stage_norms = nn.ModuleList(
                nn.Identity()
                if config.solver_coefficients == "fixed" and weight == 0.0
                else nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
                for weight in tableau.b
            )
        self.multistep = None
        if (scheme := resolve_multistep(getattr(config, f"{self.stack}_solver"))) is not None:
            self.multistep = scheme(sum(len(layer.parts) for layer in self.layers) * config.steps_per_layer)
        # PCformer, encoder side: the layer history with the prediction, which the corrector starts from.
        self.corrector = None
        if config.predictor_corrector and self.stack == "encoder":
            self.corrector = LearnedDenseLayerHistory(config, num_layers)
        self.recurrence = None
        if config.recurrence_encoder != "none" and self.stack == "encoder":
            self.recurrence = OdeTransformerRecurrenceEncoder(config)
        self.layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.gradient_checkpointing = False
        self.post_init()

    def drop_words(self, inputs_embeds: torch.Tensor) -> torch.Tensor:
        """Word dropout: zeroes the whole embeddings (batch, length, d) of some words, in training."""
        if not self.training or self.config.word_dropout == 0:
            return inputs_embeds
        keep = torch.rand(inputs_embeds.shape[:2], device=inputs_embeds.device) >= self.config.word_dropout
        return inputs_embeds * keep.unsqueeze(-1)

    def embed(
        self,
        inputs_embeds: torch.Tensor,
        input_ids: torch.Tensor | None = None,
        padding_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_length: int | torch.Tensor = 0,
    ) -> torch.Tensor:
        """Adds positions to scaled word embeddings (batch, length, d), with dropout after.

        Positions are counted from 0 by `position_ids`; else as the configuration's `position_counting` says. With
        "mask", they count the tokens that are not padding, by the mask (batch, past + length), else by the ids.
        Without a mask a decoder counts every token, padding too: what it makes of a token does not depend on whether
        those before come from the cache. With "ids" it does, as in M2M100: padding counts if it is in the cache.
        """
        hidden_states = inputs_embeds
        if self.embed_positions is not None:
            positions = self._positions(inputs_embeds, input_ids, padding_mask, position_ids, past_length)
            hidden_states = hidden_states + self.embed_positions(positions).to(hidden_states)
        if self.layernorm_embedding is not None:
            hidden_states = self.layernorm_embedding(hidden_states)
        return dropout(hidden_states, self.config.dropout, self.training)

    def _positions(self, inputs_embeds, input_ids, padding_mask, position_ids, past_length):
        length = inputs_embeds.shape[1]
        if self.config.position_embedding_type == "learned" and not is_torchdynamo_compiling():
            limit = self.embed_positions.num_positions
            if position_ids is None and isinstance(past_length, int) and past_length + length > limit:
                raise ValueError(
                    f"A sequence of {past_length + length} tokens is longer than max_position_embeddings={limit}: "
                    "cut it, or use a model with sinusoidal positions."
                )
        if self.config.position_counting == "absolute":
            every = torch.arange(length, device=inputs_embeds.device).unsqueeze(0) + past_length
            return every if position_ids is None else position_ids
        if position_ids is not None:
            return position_ids + self.padding_position + 1
        is_mask = padding_mask is not None and padding_mask.ndim == 2 and padding_mask.shape[1] >= length
        if is_mask and self.config.position_counting == "mask":
            mask = padding_mask != 0
            counts = mask.cumsum(dim=1)[:, -length:]
            mask = mask[:, -length:]
        else:
            mask = torch.ones(inputs_embeds.shape[:2], dtype=torch.bool, device=inputs_embeds.device)
            counts = mask.cumsum(dim=1) + past_length
            if input_ids is not None and self.config.pad_token_id is not None:
                mask = input_ids != self.config.pad_token_id
                if self.stack == "encoder" or self.config.position_counting == "ids":
                    counts = mask.cumsum(dim=1) + past_length
        return counts * mask + self.padding_position

    def relative_distances(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor | None:
        """Position of the key minus that of the query, clipped and counted from 0: (1 or batch, 1, queries, keys),
        from the positions of the queries and the keys, (1 or batch, length) each."""
        if not self.max_distance:
            return None
        distances = keys.unsqueeze(-2) - queries.unsqueeze(-1)
        return (distances.clamp(-self.max_distance, self.max_distance) + self.max_distance).unsqueeze(1)

    def run_layers(self, hidden_states: torch.Tensor, *args, **kwargs) -> torch.Tensor:
        """The layers, each on its combination of the history, and the final norm. Arguments are those of the
        layers."""
        states, steps = [hidden_states], ()
        shared = SharedModules(self.solver_coefficients, self.stage_norms, self.multistep, self.corrector)
        for layer in self.layers:
            output, _, _, steps = layer(self.history(states), shared, *args, steps=steps, states=states, **kwargs)
            states = self.history.extend(states, output)
        return self.layer_norm(self.history(states))


def make_word_embedding(config: OdeTransformerConfig, vocab_size: int) -> OdeTransformerScaledWordEmbedding:
    scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
    return OdeTransformerScaledWordEmbedding(vocab_size, config.d_model, config.pad_token_id, scale)


class OdeTransformerEncoder(OdeTransformerStack):
    stack = "encoder"
    layer_class = OdeTransformerEncoderLayer
    _can_record_outputs = {
        "hidden_states": OutputRecorder(OdeTransformerEncoderLayer, index=0),
        "attentions": OutputRecorder(OdeTransformerEncoderLayer, index=1),
    }

    def __init__(self, config: OdeTransformerConfig):
        super().__init__(config, config.vocab_size)

    @merge_with_config_defaults
    @capture_outputs
    @auto_docstring
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutput:
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("The encoder takes either input_ids or inputs_embeds: give exactly one of them.")
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)

        inputs_embeds = self.drop_words(inputs_embeds)
        output_class = BaseModelOutput
        if self.recurrence is not None:
            recurrence_states = self.recurrence(inputs_embeds, attention_mask)
            output_class = partial(OdeTransformerEncoderOutput, recurrence_last_hidden_state=recurrence_states)
        hidden_states = self.embed(inputs_embeds, input_ids, attention_mask)
        positions = torch.arange(inputs_embeds.shape[1], device=inputs_embeds.device).unsqueeze(0)
        hidden_states = self.run_layers(
            hidden_states,
            attention_mask=create_bidirectional_mask(self.config, inputs_embeds, attention_mask),
            relative_distances=self.relative_distances(positions, positions),
            **kwargs,
        )
        return output_class(last_hidden_state=hidden_states)


class OdeTransformerDecoder(OdeTransformerStack):
    stack = "decoder"
    layer_class = OdeTransformerDecoderLayer
    _can_record_outputs = {
        "hidden_states": OutputRecorder(OdeTransformerDecoderLayer, index=0, num_hidden_layers_key="decoder_layers"),
        "attentions": OutputRecorder(OdeTransformerDecoderLayer, index=1),
        "cross_attentions": OutputRecorder(OdeTransformerDecoderLayer, index=2),
    }

    def __init__(self, config: OdeTransformerConfig):
        super().__init__(
            config, config.decoder_vocab_size or config.vocab_size, has_cross_attention=config.is_encoder_decoder
        )

    @merge_with_config_defaults
    @capture_outputs
    @auto_docstring
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        recurrence_hidden_states: torch.Tensor | None = None,
        attention_positions: tuple[torch.Tensor, torch.Tensor] | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        r"""
        recurrence_hidden_states (`torch.FloatTensor` of shape `(batch_size, states, hidden_size)`, *optional*):
            The states of the recurrence encoder, which a model with one needs beside `encoder_hidden_states`.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError(
                "The decoder takes either (decoder_)input_ids or (decoder_)inputs_embeds: give exactly one of them."
            )
        has_recurrence = self.config.is_encoder_decoder and self.config.recurrence_encoder != "none"
        if has_recurrence and (encoder_hidden_states is None) != (recurrence_hidden_states is None):
            raise ValueError(
                f"A model with recurrence_encoder={self.config.recurrence_encoder!r} attends to two states of the "
                "source, last_hidden_state and recurrence_last_hidden_state, but one is missing: give as "
                "encoder_outputs what its encoder returns."
            )
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
            if self.config.is_encoder_decoder:
                past_key_values = EncoderDecoderCache(past_key_values, DynamicCache(config=self.config))

        self_cache = past_key_values
        if isinstance(past_key_values, EncoderDecoderCache):
            self_cache = past_key_values.self_attention_cache
        past_length = 0
        if self_cache is not None:
            if attention_positions is None and not hasattr(self_cache, "num_beams"):
                self._check_entries(self_cache)
            past_length = self_cache.get_seq_length() if attention_positions is None else 0
        positions = attention_positions
        if positions is None:
            positions = self._attended_positions(inputs_embeds, attention_mask, position_ids, past_length, self_cache)
        else:
            positions = (positions[0][:, :1], positions[1])
            kwargs["few"] = True
        inputs_embeds = self.drop_words(inputs_embeds)
        hidden_states = self.embed(inputs_embeds, input_ids, attention_mask, position_ids, past_length)
        attention_mask = create_causal_mask(
            self.config, inputs_embeds, attention_mask, past_key_values=self_cache, position_ids=position_ids
        )
        if encoder_hidden_states is not None:
            encoder_hidden_states, encoder_attention_mask = self._attended_sources(
                inputs_embeds, encoder_hidden_states, encoder_attention_mask, past_key_values
            )
        hidden_states = self.run_layers(
            hidden_states,
            encoder_hidden_states,
            recurrence_hidden_states,
            attention_mask=attention_mask,
            encoder_attention_mask=encoder_attention_mask,
            recurrence_attention_mask=encoder_attention_mask if self.config.recurrence_has_words else None,
            relative_distances=self.relative_distances(*positions),
            past_key_values=past_key_values,
            **kwargs,
        )
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=hidden_states, past_key_values=past_key_values
        )

    def _attended_positions(self, inputs_embeds, attention_mask, position_ids, past_length, cache):
        """The positions of the queries and of the keys, (1 or batch, length) each, between which relative positions
        are counted."""
        query_length, device = inputs_embeds.shape[1], inputs_embeds.device
        query_positions = torch.arange(query_length, device=device).unsqueeze(0) + past_length
        key_length = query_length if cache is None else cache.get_mask_sizes(query_length, 0)[0]
        key_positions = torch.arange(key_length, device=device).unsqueeze(0)
        has_own_mask = attention_mask is not None and attention_mask.ndim == 4
        has_places = isinstance(past_length, int) and key_length == past_length + query_length
        if position_ids is not None and has_own_mask and has_places:
            # Only such a mask can order positions otherwise than the tokens, as in a tree with a common prefix. The
            # first token follows the cache, which is in its order, whatever its padding.
            query_positions = position_ids - position_ids[:, :1] + past_length
            key_positions = torch.cat(
                [key_positions[:, :past_length].expand(len(position_ids), -1), query_positions], 1
            )
        return query_positions, key_positions

    def _attended_sources(self, inputs_embeds, encoder_hidden_states, encoder_attention_mask, past_key_values):
        """The encoder's states, repeated where the cache was, and the mask of the cross-attention to them; they may be
        fewer than the targets."""
        if isinstance(past_key_values, EncoderDecoderCache) and past_key_values.is_updated.get(0):
            # A cache may have been repeated since.
            cached = past_key_values.cross_attention_cache.layers[0].keys.shape[0]
            repeats = cached // encoder_hidden_states.shape[0]
            if repeats > 1:
                encoder_hidden_states = encoder_hidden_states.repeat_interleave(repeats, dim=0)
                if encoder_attention_mask is not None and len(encoder_attention_mask) < cached:
                    encoder_attention_mask = encoder_attention_mask.repeat_interleave(repeats, dim=0)
        queries, sources = inputs_embeds, encoder_hidden_states.shape[0]
        if (rows := inputs_embeds.shape[0]) != sources:
            if rows % sources:
                raise ValueError(
                    f"{sources} sources cannot have {rows} targets: give as many of these to each source, one "
                    "after the other."
                )
            queries = inputs_embeds.reshape(sources, -1, inputs_embeds.shape[-1])
            if encoder_attention_mask is not None and encoder_attention_mask.ndim == 2:
                encoder_attention_mask = mask_of_sources(encoder_attention_mask, sources, rows)
        encoder_attention_mask = create_bidirectional_mask(
            self.config, queries, encoder_attention_mask, encoder_hidden_states=encoder_hidden_states
        )
        return encoder_hidden_states, encoder_attention_mask

    def _check_entries(self, cache: Cache) -> None:
        """Raises a ValueError if the cache has entries, and fewer than evaluations of the layers' attention."""
        needed = self.config.decoder_layers * self.config.decoder_attention_evaluations
        if getattr(cache, "layer_class_to_replicate", None) is None and len(cache.layers) < needed:
            raise ValueError(
                f"past_key_values has {len(cache.layers)} entries, but this decoder needs {needed}, one for each "
                "evaluation of a block's attention: make it by the configuration, DynamicCache(config=model.config). "
                "PEFT's prefix tuning makes one for each layer: it takes models whose decoder has one stage."
            )


class EncoderDecoderEmbeddingsMixin:
    """The embeddings of an encoder and a decoder, shared or not: getting, setting and resizing them."""

    def get_input_embeddings(self) -> nn.Embedding:
        """The encoder's, whose weight the decoder's may share."""
        return self.base_model.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding):
        model = self.base_model
        model.encoder.embed_tokens = value
        if self.config.share_encoder_decoder_embeddings:
            model.shared = model.decoder.embed_tokens = value

    def _resize_token_embeddings(self, new_num_tokens, pad_to_multiple_of=None, mean_resizing=True):
        if self.config.decoder_vocab_size is None:
            embeddings = super()._resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
            if not self.config.share_encoder_decoder_embeddings:
                decoder = self.base_model.decoder
                decoder.embed_tokens = self._get_resized_embeddings(
                    decoder.embed_tokens, embeddings.num_embeddings, mean_resizing=mean_resizing
                )
            return embeddings
        self.set_input_embeddings(
            self._get_resized_embeddings(
                self.get_input_embeddings(), new_num_tokens, pad_to_multiple_of, mean_resizing
            )
        )
        return self.get_input_embeddings()

    def resize_decoder_token_embeddings(
        self, new_num_tokens: int, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """Resizes the embeddings of a decoder with a vocabulary of its own, and the output projection.

        Raises:
            ValueError: encoder and decoder have one vocabulary.
        """
        if self.config.decoder_vocab_size is None:
            raise ValueError(
                "Encoder and decoder have one vocabulary (decoder_vocab_size=None): use resize_token_embeddings."
            )
        decoder = self.base_model.decoder
        decoder.embed_tokens = self._get_resized_embeddings(
            decoder.embed_tokens, new_num_tokens, pad_to_multiple_of, mean_resizing
        )
        new_num_tokens = decoder.embed_tokens.num_embeddings
        if self.get_output_embeddings() is not None:
            self.set_output_embeddings(
                self._get_resized_lm_head(self.get_output_embeddings(), new_num_tokens, mean_resizing=mean_resizing)
            )
        self.config.decoder_vocab_size = new_num_tokens
        self.tie_weights()
        return decoder.embed_tokens


@auto_docstring
class OdeTransformerModel(EncoderDecoderEmbeddingsMixin, OdeTransformerPreTrainedModel):
    _tp_plan = {"shared": "embedding_rowwise"}

    def __init__(self, config: OdeTransformerConfig):
        if not config.is_encoder_decoder:
            raise ValueError(
                "This configuration is that of a decoder alone (is_encoder_decoder=False): make or open it as "
                "OdeTransformerForCausalLM (AutoModelForCausalLM)."
            )
        super().__init__(config)
        if config.share_encoder_decoder_embeddings:
            self.shared = make_word_embedding(config, config.vocab_size)
            self._tied_weights_keys = {
                "encoder.embed_tokens.weight": "shared.weight",
                "decoder.embed_tokens.weight": "shared.weight",
            }
        self.encoder = OdeTransformerEncoder(config)
        self.decoder = OdeTransformerDecoder(config)
        self.post_init()

    @can_return_tuple
    @auto_docstring
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.LongTensor | None = None,
        decoder_attention_mask: torch.LongTensor | None = None,
        encoder_outputs: tuple[tuple[torch.Tensor]] | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqModelOutput:
        r"""
        decoder_input_ids (`torch.LongTensor` of shape `(batch_size, target_sequence_length)`, *optional*):
            Ids of the decoder's input, which starts with `decoder_start_token_id` (`</s>`).
        decoder_attention_mask (`torch.LongTensor` of shape `(batch_size, target_sequence_length)`, *optional*):
            1 for tokens of the decoder's input that are attended to, 0 for padding. The causal mask comes on top.
        """
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **kwargs
            )
        elif not isinstance(encoder_outputs, BaseModelOutput):
            encoder_outputs = as_encoder_output(encoder_outputs, self.encoder.recurrence is not None)

        decoder_outputs = self.decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            encoder_hidden_states=encoder_outputs.last_hidden_state,
            recurrence_hidden_states=encoder_outputs.get("recurrence_last_hidden_state"),
            encoder_attention_mask=attention_mask,
            past_key_values=past_key_values,
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=decoder_outputs.last_hidden_state,
            past_key_values=decoder_outputs.past_key_values,
            decoder_hidden_states=decoder_outputs.hidden_states,
            decoder_attentions=decoder_outputs.attentions,
            cross_attentions=decoder_outputs.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
        )


@auto_docstring(
    custom_intro="The ODE Transformer with a language modeling head, for translation, summarization and correction."
)
class OdeTransformerForConditionalGeneration(
    EncoderDecoderEmbeddingsMixin, BeamSearchGenerationMixin, OdeTransformerPreTrainedModel
):
    _tp_plan = {"lm_head": "colwise_gather_output"}

    def __init__(self, config: OdeTransformerConfig):
        super().__init__(config)
        self.model = OdeTransformerModel(config)
        vocab_size = config.decoder_vocab_size or config.vocab_size
        self.lm_head = OdeTransformerLinear(config.d_model, vocab_size, bias=config.lm_head_bias)
        if config.tie_word_embeddings:
            shared = config.share_encoder_decoder_embeddings
            source = "model.shared.weight" if shared else "model.decoder.embed_tokens.weight"
            self._tied_weights_keys = {"lm_head.weight": source}
        self.post_init()

    @can_return_tuple
    @auto_docstring
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.LongTensor | None = None,
        decoder_attention_mask: torch.LongTensor | None = None,
        encoder_outputs: tuple[tuple[torch.Tensor]] | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        labels: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqLMOutput:
        r"""
        decoder_input_ids (`torch.LongTensor` of shape `(batch_size, target_sequence_length)`, *optional*):
            Ids of the decoder's input, which starts with `decoder_start_token_id` (`</s>`). If there are `labels` and
            no ids, they are the labels shifted to the right.
        decoder_attention_mask (`torch.LongTensor` of shape `(batch_size, target_sequence_length)`, *optional*):
            1 for tokens of the decoder's input that are attended to, 0 for padding. The causal mask comes on top.
        labels (`torch.LongTensor` of shape `(batch_size, target_sequence_length)`, *optional*):
            The target, which ends with `eos_token_id`; -100 where there is no loss. The loss is the mean cross
            entropy of the other tokens, or their sum divided by `num_items_in_batch`.
        """
        shift_labels = kwargs.pop("shift_labels", labels)  # labels are aligned with the decoder's input already
        if labels is not None and decoder_input_ids is None and decoder_inputs_embeds is None:
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        logits = self.lm_head(select_positions(outputs.last_hidden_state, logits_to_keep))
        loss = None
        if labels is not None:
            loss = self.loss_function(
                logits=logits, labels=None, shift_labels=shift_labels, vocab_size=logits.shape[-1], **kwargs
            )
        return Seq2SeqLMOutput(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            decoder_hidden_states=outputs.decoder_hidden_states,
            decoder_attentions=outputs.decoder_attentions,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=outputs.encoder_last_hidden_state,
            encoder_hidden_states=outputs.encoder_hidden_states,
            encoder_attentions=outputs.encoder_attentions,
        )

    def prepare_decoder_input_ids_from_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """The decoder's input for `labels` (batch, length); see `shift_tokens_right`. If the configuration says
        `decoder_start_from_labels`, it starts with the last token of the labels in place of the start token."""
        pad_token_id, start = self.config.pad_token_id, self.config.decoder_start_token_id
        if self.config.decoder_start_from_labels:
            start = pad_token_id
        decoder_input_ids = shift_tokens_right(labels, pad_token_id, start)
        if self.config.decoder_start_from_labels:
            decoder_input_ids[:, 0] = last_tokens(labels, pad_token_id)
        return decoder_input_ids

    @classmethod
    def from_residual(
        cls,
        model_or_path: PreTrainedModel | str,
        encoder_solver: str | dict = "rk2",
        solver_coefficients: str = "learned",
        **kwargs,
    ) -> "OdeTransformerForConditionalGeneration":
        """Makes an ODE Transformer with the weights of a pre-norm encoder-decoder of transformers: M2M100 and NLLB,
        mBART and mBART-50, Pegasus, Blenderbot.

        Learned coefficients start at Euler's (1, 0, ...): the model computes the function of the original, to the
        rounding of its dtype, and training it puts the later stages to use. With other coefficients it starts
        elsewhere, which is logged as a warning. The ids of the tokens stay, so that the original's tokenizer is the
        model's: save it beside the model.

        Args:
            model_or_path: the model, whose parameters are copied; or its folder or name on the Hub, from which
                `AutoModelForSeq2SeqLM` loads it.
            encoder_solver: the scheme of the encoder, as in the configuration.
            solver_coefficients: the weights of the stages, as in the configuration; without effect if all schemes have
                one stage.
            kwargs: other fields of the configuration that do not come with the weights: `decoder_solver` (defaults to
                `"euler"`), `coefficient_sharing`, `vector_field`, `dropout`, ...

        Returns:
            The model in evaluation mode, with the dtype, device, attention implementation and generation configuration
            of the original. Two things are not the original's: layers are not dropped in training (a warning says so
            if they were), and a decoder without input makes none from the encoder's, as mBART's does. Embeddings
            given in place of ids are scaled already, in Pegasus's decoder too.

        Raises:
            ValueError: the family is post-norm or otherwise no stack of Euler steps, which is found before weights are
                loaded; the model has no language modeling head, or parameters that its family has not; or a field
                comes with the weights and cannot be chosen. It is named.
            TypeError: a keyword is no field of the configuration, or `model_or_path` is neither.
        """
        from .convert_residual import from_residual

        return from_residual(cls, model_or_path, encoder_solver, solver_coefficients, **kwargs)

    def to_residual(self) -> PreTrainedModel:
        """Makes the residual model of transformers that computes the same function as this one, a copy in evaluation
        mode: the reverse of `from_residual`.

        The blocks have to be Euler steps of size 1, or steps of several stages whose learned coefficients are exactly
        (1, 0, ...); without layer history and relative positions. Sinusoidal positions make an
        `M2M100ForConditionalGeneration`, which counts tokens by the ids: where the mask does too, logits are equal.
        What `from_residual` made of another family becomes that family's model.

        Raises:
            ValueError: the model has what the residual one cannot express; fields and values are named.
        """
        from .convert_residual import to_residual

        return to_residual(self)


def select_positions(hidden_states: torch.Tensor, logits_to_keep: int | torch.Tensor) -> torch.Tensor:
    """The last `logits_to_keep` positions (0: all), or those that a tensor of indices names, of (batch, length, d)."""
    positions = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
    return hidden_states[:, positions, :]


@auto_docstring(
    custom_intro="A decoder-only ODE Transformer for language modeling: the decoder's stack, without cross-attention. "
    "Without an attention mask, tokens that are `pad_token_id` have the position of padding: give one where that is a "
    "token of the text, as its end, too."
)
class OdeTransformerForCausalLM(OdeTransformerPreTrainedModel, RecomputedGenerationMixin):
    _tp_plan = {"lm_head": "colwise_gather_output"}
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: OdeTransformerConfig):
        config = config.for_decoder_alone()
        super().__init__(config)
        if not config.tie_word_embeddings:
            self._tied_weights_keys = None
        self.model = OdeTransformerDecoder(config)
        self.lm_head = OdeTransformerLinear(config.d_model, config.vocab_size, bias=config.lm_head_bias)
        self.post_init()

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *args, output_loading_info: bool = False, **kwargs):
        """As in transformers.

        Raises:
            OSError: there are no safetensors files.
            ValueError: the weights are those of an encoder-decoder, of which a language model would take none.
        """
        model, report = super().from_pretrained(
            pretrained_model_name_or_path, *args, output_loading_info=True, **kwargs
        )
        if any(re.match(r"(model\.)?encoder\.", name) for name in report["unexpected_keys"]):
            raise ValueError(
                f"{pretrained_model_name_or_path} holds an encoder-decoder: open it with AutoModelForSeq2SeqLM. (A "
                "new language model of its sizes is OdeTransformerForCausalLM(config).)"
            )
        return (model, report) if output_loading_info else model

    @can_return_tuple
    @auto_docstring
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        **kwargs: Unpack[TransformersKwargs],
    ) -> CausalLMOutputWithCrossAttentions:
        r"""
        labels (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
            The input itself, which is shifted here; -100 where there is no loss.
        """
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        logits = self.lm_head(select_positions(outputs.last_hidden_state, logits_to_keep))
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=logits.shape[-1], **kwargs)
        return CausalLMOutputWithCrossAttentions(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


# Trainer's label smoothing shifts the labels of these, and pipelines know them; the Auto class registers none.
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[OdeTransformerConfig.model_type] = OdeTransformerForCausalLM.__name__


__all__ = [
    "OdeTransformerForCausalLM",
    "OdeTransformerForConditionalGeneration",
    "OdeTransformerModel",
    "OdeTransformerPreTrainedModel",
]
