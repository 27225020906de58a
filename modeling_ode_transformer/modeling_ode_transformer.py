# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The ODE Transformer (Li et al., ACL 2022): a pre-norm Transformer whose blocks are Runge-Kutta steps.

A forward pass embeds the ids (scaled, word dropout, positions, dropout). Each layer computes `y = history(states)` and
`y' = integrate(F, y)`, and `y'` joins the history. A last combination and a layer norm follow. The decoder adds
cross-attention and a cache; the heads only project. The equations are in `OdeTransformerLayer` (residual block and F,
1-7), `integrate` and `SCHEMES` (Runge-Kutta steps, 8-19, 23), `GateCoefficients` (25-26),
`LearnedDenseLayerHistory` (DLCL) and `OdeTransformerRelativeKeys` (Shaw).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, EncoderDecoderCache
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    CausalLMOutputWithCrossAttentions,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
)
from transformers.modeling_utils import PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, auto_docstring, can_return_tuple, logging
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .configuration_ode_transformer import VECTOR_FIELDS, OdeTransformerConfig, OdeTransformerDecoderConfig, Part
from .generation_ode_transformer import CACHE_NAME, OdeTransformerGenerationMixin
from .integration_ode_transformer import (
    HISTORIES,
    StageCoefficients,
    StageGate,
    clamp_half,
    integrate,
    integrate_multistep,
    normalized,
)
from .layers_ode_transformer import (
    BlockInputs,
    OdeTransformerAttention,
    OdeTransformerAttentionProjection,
    OdeTransformerLearnedPositionalEmbedding,
    OdeTransformerRelativeKeys,
    attended_positions,
    autocast_dtype,
    count_positions,
    make_coefficients,
    make_position_embedding,
    make_stage_norms,
    make_word_embedding,
    mask_and_distances,
    one_cache,
)
from .schemes_ode_transformer import CorrectorHistory


logger = logging.get_logger(__name__)


@auto_docstring
class OdeTransformerPreTrainedModel(PreTrainedModel):
    config: OdeTransformerConfig
    config_class = OdeTransformerConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["OdeTransformerEncoderLayer", "OdeTransformerDecoderLayer"]
    _skip_keys_device_placement = ["cache", "past_key_values"]
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _can_compile_fullgraph = True

    def __init__(self, config: OdeTransformerConfig, *args, **kwargs):
        # Fields may have changed since construction, as in `from_pretrained(folder, field=value)`.
        config.validate()
        super().__init__(config, *args, **kwargs)

    def _init_weights(self, module):
        if module is getattr(self, "lm_head", None):
            init.normal_(module.weight, mean=0.0, std=self.config.d_model**-0.5)  # like the embeddings, tied or not
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, StageGate) and module.initial_bias is not None:
            init.zeros_(module.weight)
            init.copy_(module.bias, torch.tensor(module.initial_bias))
        elif isinstance(module, (nn.Linear, StageGate)):
            is_part = isinstance(module, OdeTransformerAttentionProjection)
            init.xavier_uniform_(module.weight, gain=2**-0.5 if is_part else 1)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            init.normal_(module.weight, mean=0.0, std=self.config.d_model**-0.5)
            if module.padding_idx is not None and not getattr(module.weight, "_is_hf_initialized", False):
                init.zeros_(module.weight[module.padding_idx])
        elif isinstance(module, OdeTransformerRelativeKeys):
            init.xavier_uniform_(module.weight)
        elif hasattr(module, "initial_weight") and module.weight is not None:
            init.copy_(module.weight, module.initial_weight())
        else:
            super()._init_weights(module)

    def save_pretrained(self, *args, **kwargs):
        # PEFT sets the field to False when it merges an adapter of tied embeddings.
        base, head = self.base_model, self.get_output_embeddings()
        source = getattr(base, "shared", None) or getattr(base, "decoder", base).embed_tokens
        if head is not None and head.weight is source.weight:
            self.config.tie_word_embeddings = True
        return super().save_pretrained(*args, **kwargs)

    def _set_gradient_checkpointing(self, enable=True, gradient_checkpointing_func=None, **kwargs):
        """As in transformers, but `use_reentrant` is False unless it is given.

        Raises:
            ValueError: `use_reentrant=True` for a multistep scheme or a corrector, whose blocks share states.
        """
        function = gradient_checkpointing_func or partial(checkpoint)
        options = {"use_reentrant": False} | function.keywords
        if options["use_reentrant"] and any(stack.multistep or stack.corrector for stack in self.stacks()):
            raise ValueError(
                "use_reentrant=True loses the gradients of states that blocks share in a multistep scheme or a "
                "corrector: give use_reentrant=False, the default."
            )
        super()._set_gradient_checkpointing(enable, partial(function.func, **options), **kwargs)

    def stacks(self) -> list[nn.Module]:
        """The model's stacks: encoder, decoder, or both."""
        return [module for module in self.modules() if isinstance(module, OdeTransformerStack)]

    def num_function_evaluations(self, per_layer: bool = False) -> int | dict[str, list[int]]:
        """How often one forward pass evaluates the layers' vector fields, for comparisons at equal cost.

        A Runge-Kutta block evaluates its field once for each stage of each step, a corrector once more per iteration,
        and a repeated stack as often again. If only a part of a block is integrated (`vector_field`), that part
        counts.

        Args:
            per_layer: whether to return the counts of each layer, by stack.

        Returns:
            The sum over all layers of all stacks; or `{"encoder": [2, 2, ...], "decoder": [1, 1, ...]}`.
        """
        config = self.config
        counts = {
            stack.stack: [config.stack_repeats * config.evaluations(stack.stack)] * len(stack.layers)
            for stack in self.stacks()
        }
        return counts if per_layer else sum(sum(layers) for layers in counts.values())

    def resize_position_embeddings(self, new_num_position_embeddings: int):
        """Sets the number of positions, `max_position_embeddings`. Learned positions are cut at the end, or extended
        by vectors initialized as in a new model. Sinusoidal positions are computed for any length."""
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

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict:
        # transformers ties nothing if `tie_word_embeddings` is False; here it is about the output projection only.
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


class OdeTransformerLayer(GradientCheckpointingLayer):
    """A block: a step of any Runge-Kutta scheme (eqs. 8-11). A residual block maps y to `y + F(y)` (eq. 1): one Euler
    step of `y' = F(y)` (eqs. 6-7). Other schemes evaluate F once for each stage, with one set of parameters. F
    is the increment of the whole layer or of the sublayers that `config.vector_field` names (figure 4).

    Args:
        config: the model's configuration.
        stack: "encoder" or "decoder".
        layer_idx: the index of the layer in its stack.
        has_cross_attention: whether the layer attends to an encoder.
    """

    def __init__(self, config: OdeTransformerConfig, stack: str, layer_idx: int, has_cross_attention: bool = False):
        super().__init__()
        num_heads, ffn_dim = getattr(config, f"{stack}_attention_heads"), getattr(config, f"{stack}_ffn_dim")
        self.parts = VECTOR_FIELDS[config.vector_field]
        own = [[name for name in part.sublayers if name != "cross_attention"] for part in self.parts]
        self.parts_without_source = tuple(
            Part(tuple(names), part.is_integrated) for names, part in zip(own, self.parts) if names
        )
        if not has_cross_attention:
            self.parts = self.parts_without_source
        self.num_cache_entries = config.attention_evaluations(stack)
        self.first_cache_idx = layer_idx * self.num_cache_entries
        self.num_stack_entries = getattr(config, f"{stack}_layers") * self.num_cache_entries
        scheme = config.scheme(stack)
        has_stages = len(scheme.tableau.b) > 1
        is_plain = not has_stages and scheme.multistep is None
        self.is_residual = is_plain and config.step_size == config.steps_per_layer == 1
        self.stages_are_outputs = has_stages and config.stage_values == "output"
        # The evaluations that correct a step use the last entries.
        iterations = scheme.corrector_iterations
        self.corrections = range(self.num_cache_entries - iterations, self.num_cache_entries)

        self.self_attn = OdeTransformerAttention(
            config, num_heads, is_causal=stack == "decoder", max_relative_position=config.max_relative_position
        )
        self.self_attn_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.encoder_attn = None
        if has_cross_attention:
            self.encoder_attn = OdeTransformerAttention(config, num_heads, is_cross_attention=True)
            self.encoder_attn_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.activation_fn = ACT2FN[config.activation_function]
        self.dropout = nn.Dropout(config.dropout)
        self.activation_dropout = nn.Dropout(config.activation_dropout)
        self.fc1 = nn.Linear(config.d_model, ffn_dim)
        self.fc2 = nn.Linear(ffn_dim, config.d_model)
        self.final_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        if any("macaron_feed_forward" in part.sublayers for part in self.parts):
            self.macaron_fc1 = nn.Linear(config.d_model, ffn_dim)
            self.macaron_fc2 = nn.Linear(ffn_dim, config.d_model)
            self.macaron_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.solver_coefficients = make_coefficients(config, stack) if config.coefficient_sharing == "layer" else None

    def forward(
        self,
        hidden_states: torch.Tensor,
        step: Callable,
        encoder_hidden_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        relative_distances: torch.Tensor | None = None,
        steps: tuple[tuple[torch.Tensor, torch.Tensor], ...] = (),
        correct: Callable | None = None,
        cache: Cache | None = None,
        repeat: int = 0,
        position_ids: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, tuple]:
        """Returns the new state (batch, length, d), the first stage's weights of the self-attention and of the
        cross-attention (None if the attention implementation has none), and the steps made so far of a multistep
        scheme. `step(F, y, steps)` makes the scheme's step from y, and `correct(evaluate, y, prediction)` corrects it.
        `repeat` counts earlier runs of the stack. Flash attention separates packed sequences by the `position_ids`."""
        cache = past_key_values if cache is None else cache
        cache_idx = self.first_cache_idx + repeat * self.num_stack_entries
        source = None
        if self.encoder_attn is not None and encoder_hidden_states is not None:
            source = self.read_source(encoder_hidden_states, cache, cache_idx)
        inputs = BlockInputs(
            attention_mask=attention_mask,
            relative_distances=relative_distances,
            position_ids=position_ids,
            cache=cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache,
            first_cache_idx=cache_idx,
            source=source,
            source_mask=encoder_attention_mask,
            options=kwargs,
        )
        y, parts = hidden_states, self.parts_without_source if source is None else self.parts
        for sublayers, is_integrated in parts:
            if is_integrated and not self.is_residual:
                F = self.output if self.stages_are_outputs else self.increment
                y, steps = step(partial(F, sublayers, inputs), y, steps)
            else:  # y + F(y), one sublayer after the other (eq. 1)
                for name in sublayers:
                    y = y + self.dropout(getattr(self, name)(inputs, y, 0))
            y = clamp_half(y)
        if correct is not None:  # y is a prediction (PCformer, IIET)
            output = partial(self.output, [name for part in parts for name in part.sublayers], inputs)
            y = clamp_half(correct(output, hidden_states, y))
        return y, inputs.weights.get("self"), inputs.weights.get("cross"), steps

    def increment(self, sublayers: Sequence[str], inputs: BlockInputs, z: torch.Tensor, evaluation: int):
        """F(z), what consecutive sublayers add to z: A(z) + B(z + A(z)) for two."""
        z = clamp_half(z)
        first, *others = sublayers
        total = self.dropout(getattr(self, first)(inputs, z, evaluation))
        for name in others:
            total = total + self.dropout(getattr(self, name)(inputs, z + total, evaluation))
        return total

    def output(self, sublayers: Sequence[str], inputs: BlockInputs, z: torch.Tensor, evaluation: int):
        """z + F(z), one sublayer after the other."""
        z = clamp_half(z)
        for name in sublayers:
            z = z + self.dropout(getattr(self, name)(inputs, z, evaluation))
        return z

    def self_attention(self, inputs, z, evaluation):
        output, weights = self.self_attn(
            self.self_attn_layer_norm(z),
            attention_mask=inputs.attention_mask,
            relative_distances=inputs.relative_distances,
            cache=inputs.cache,
            cache_idx=inputs.first_cache_idx + evaluation,
            position_ids=inputs.position_ids,
            **inputs.options,
        )
        if weights is not None:  # nothing changes where there are none, so that compilers can recompute
            inputs.weights.setdefault("self", weights)
        return output

    def cross_attention(self, inputs, z, evaluation):
        output, weights = self.encoder_attn(
            self.encoder_attn_layer_norm(z), inputs.source, inputs.source_mask, **inputs.options
        )
        if weights is not None:
            inputs.weights.setdefault("cross", weights)
        return output

    def feed_forward(self, inputs, z, evaluation):
        return self.fc2(self.activation_dropout(self.activation_fn(self.fc1(self.final_layer_norm(z)))))

    def half_feed_forward(self, inputs, z, evaluation):
        return 0.5 * self.feed_forward(inputs, z, evaluation)

    def macaron_feed_forward(self, inputs, z, evaluation):
        z = self.activation_fn(self.macaron_fc1(self.macaron_layer_norm(z)))
        return 0.5 * self.macaron_fc2(self.activation_dropout(z))

    def read_source(self, encoder_hidden_states, cache, cache_idx):
        """The keys and values of the cross-attention, shared by all evaluations and cached if there is a cache."""
        cache = cache if isinstance(cache, EncoderDecoderCache) else None
        if cache is not None and cache.is_updated.get(cache_idx):
            entry = cache.cross_attention_cache.layers[cache_idx]
            return entry.keys, entry.values
        keys_and_values = self.project_source(encoder_hidden_states)
        if cache is not None:
            # transformers gives both caches the same number of entries; those of a layer are the same here.
            entries = cache.cross_attention_cache.layers
            for idx in range(cache_idx, cache_idx + self.num_cache_entries):
                cache.is_updated[idx] = True
                cached = cache.cross_attention_cache.update(*keys_and_values, idx)
                if type(entries[idx]) is DynamicLayer:  # it has copied them
                    entries[idx].keys, entries[idx].values = entries[cache_idx].keys, entries[cache_idx].values
            keys_and_values = cached
        return keys_and_values

    def project_source(self, encoder_hidden_states):
        return self.encoder_attn.project(encoder_hidden_states, "kv")


class OdeTransformerEncoderLayer(OdeTransformerLayer):
    """A block of the encoder."""


class OdeTransformerDecoderLayer(OdeTransformerLayer):
    """A block of the decoder."""


class OdeTransformerStack(OdeTransformerPreTrainedModel):
    """The common part of encoder and decoder: embedding, positions, layers and their history."""

    stack: str
    layer_class: type[OdeTransformerLayer]

    def __init__(self, config: OdeTransformerConfig, vocab_size: int, **layer_kwargs):
        super().__init__(config)
        self.scheme, num_layers = config.scheme(self.stack), getattr(config, f"{self.stack}_layers")
        self.embed_tokens = make_word_embedding(config, vocab_size)
        self.embed_positions = make_position_embedding(config)
        self.layernorm_embedding = None
        if config.embedding_layer_norm:
            self.layernorm_embedding = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.dropout)
        self.solver_coefficients = None
        if config.coefficient_sharing != "layer":
            self.solver_coefficients = make_coefficients(config, self.stack)
        self.layers = nn.ModuleList(
            self.layer_class(config, self.stack, layer_idx, **layer_kwargs) for layer_idx in range(num_layers)
        )
        of_history = num_layers, config.d_model, config.layer_norm_eps
        self.history = HISTORIES[config.layer_history](*of_history)
        self.stage_norms = make_stage_norms(config, self.stack)
        self.multistep = self.corrector = None
        if self.scheme.multistep is not None:
            self.multistep = self.scheme.multistep(
                sum(len(layer.parts) for layer in self.layers) * config.steps_per_layer
            )
        if self.scheme.corrector_iterations:
            self.corrector = CorrectorHistory(*of_history)
        self.layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.gradient_checkpointing = False
        self.post_init()

    def embed_words(self, input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None) -> torch.Tensor:
        """The scaled embeddings (batch, length, d) of words, or those given. In training, word dropout zeroes whole
        embeddings.

        Raises:
            ValueError: both are given, or neither.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError(f"The {self.stack} takes either ids or embeddings: give exactly one of them.")
        y = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if not self.training or self.config.word_dropout == 0:
            return y
        return y * (torch.rand(y.shape[:2], device=y.device) >= self.config.word_dropout).unsqueeze(-1)

    def embed(self, inputs_embeds, input_ids=None, attention_mask=None, position_ids=None, past_length=0):
        """The first state (batch, length, d): scaled word embeddings of that shape with positions (`count_positions`)
        and dropout."""
        y, config = inputs_embeds, self.config
        if self.embed_positions is not None:
            counts_padding = self.stack == "decoder" and config.position_counting != "ids"
            positions = count_positions(
                config, inputs_embeds, input_ids, attention_mask, position_ids, past_length, counts_padding
            )
            y = y + self.embed_positions(positions).to(y)
        if self.layernorm_embedding is not None:
            y = self.layernorm_embedding(y)
        return clamp_half(self.dropout(y))

    def run_layers(self, hidden_states: torch.Tensor, *args, **kwargs) -> torch.Tensor:
        """Runs the layers, each on its combination of the history, `stack_repeats` times, then the final norm. The
        arguments go to the layers."""
        for repeat in range(self.config.stack_repeats):
            states, steps = [hidden_states], ()
            for layer in self.layers:
                coefficients = layer.solver_coefficients or self.solver_coefficients
                if self.corrector is not None:
                    kwargs["correct"] = partial(self.corrector.correct, layer.corrections, self.history, states)
                y = self.history(states)
                step = partial(self.step, coefficients)
                output, _, _, steps = layer(y, step, *args, steps=steps, repeat=repeat, **kwargs)
                states = self.history.extend(states, y, output)
            hidden_states = self.history(states)
        return self.layer_norm(hidden_states)

    def step(self, coefficients: StageCoefficients | None, vector_field: Callable, y: torch.Tensor, steps: tuple):
        """A block's step from y. Returns the next state, and the steps made so far by a multistep scheme. A method on
        purpose: accelerate moves modules among a layer's arguments to the layer's device; here they stay."""
        norms, of_config = self.stage_norms, (self.config.step_size, self.config.steps_per_layer)
        if self.multistep is not None:
            return integrate_multistep(vector_field, y, self.multistep, steps, *of_config)
        if norms is not None and self.config.normalize_stages == "released":
            vector_field, norms = normalized(vector_field, norms), None
        return integrate(vector_field, y, self.scheme.tableau, coefficients, *of_config, norms), steps


def hidden_states_recorder(layer_class: type[OdeTransformerLayer], num_layers_key: str) -> OutputRecorder:
    recorder = OutputRecorder(layer_class)
    recorder.num_hidden_layers_key = num_layers_key  # not an argument before transformers 5.23
    return recorder


class OdeTransformerEncoder(OdeTransformerStack):
    stack = "encoder"
    layer_class = OdeTransformerEncoderLayer
    output_class = BaseModelOutput
    _can_record_outputs = {
        "hidden_states": hidden_states_recorder(OdeTransformerEncoderLayer, "encoder_layer_calls"),
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
        inputs_embeds = self.embed_words(input_ids, inputs_embeds)
        others = self.read_words(inputs_embeds, attention_mask)
        length = inputs_embeds.shape[1]
        if attention_mask is not None and len(attention_mask.shape) == 2 and attention_mask.shape[1] != length:
            raise ValueError(
                f"attention_mask has the shape {tuple(attention_mask.shape)}, but a source has {length} tokens: give "
                "an entry for each."
            )
        mask = create_bidirectional_mask(self.config, inputs_embeds, attention_mask)
        positions = torch.arange(length, device=inputs_embeds.device).unsqueeze(0)
        mask, distances = mask_and_distances(self.config, False, mask, (positions, positions), inputs_embeds)
        hidden_states = self.embed(inputs_embeds, input_ids, attention_mask)
        hidden_states = self.run_layers(hidden_states, attention_mask=mask, relative_distances=distances, **kwargs)
        return self.output_class(last_hidden_state=hidden_states, **others)

    def read_words(self, inputs_embeds: torch.Tensor, attention_mask: torch.Tensor | None) -> dict[str, torch.Tensor]:
        """What the output has beside the states of the stack: that of a second encoder, in a subclass."""
        return {}


class OdeTransformerDecoder(OdeTransformerStack):
    stack = "decoder"
    layer_class = OdeTransformerDecoderLayer
    _can_record_outputs = {
        "hidden_states": hidden_states_recorder(OdeTransformerDecoderLayer, "decoder_layer_calls"),
        "attentions": OutputRecorder(OdeTransformerDecoderLayer, index=1),
        "cross_attentions": OutputRecorder(OdeTransformerDecoderLayer, index=2),
    }

    def __init__(self, config: OdeTransformerConfig):
        super().__init__(config, config.target_vocab_size, has_cross_attention=config.is_encoder_decoder)

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
        cache: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        r"""
        cache (`Cache`, *optional*):
            Keys and values of earlier calls, which new ones are added to.
        past_key_values (`Cache`, *optional*):
            The same by its name before transformers 5.24.
        """
        inputs_embeds = self.embed_words(input_ids, inputs_embeds)
        if past_key_values is not None:
            cache = one_cache(cache, past_key_values)
        if use_cache and cache is None:
            cache = DynamicCache()
            if self.config.is_encoder_decoder:
                cache = EncoderDecoderCache(cache, DynamicCache())
        self_cache = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
        past_length = 0 if self_cache is None else self_cache.get_seq_length()
        attended = attended_positions(inputs_embeds, attention_mask, position_ids, past_length, self_cache)
        hidden_states = self.embed(inputs_embeds, input_ids, attention_mask, position_ids, past_length)
        # Beside a cache, transformers does not separate packed sequences by their positions.
        is_new = type(self_cache) is DynamicCache and past_length == 0
        causal_mask = create_causal_mask(
            self.config,
            inputs_embeds,
            attention_mask,
            None if is_new and attention_mask is None else self_cache,
            position_ids=position_ids,
        )
        is_causal = getattr(self.config, "is_causal", True)  # set for a pass by the argument `is_causal`
        mask, distances = mask_and_distances(self.config, is_causal, causal_mask, attended, inputs_embeds)
        if encoder_hidden_states is not None:
            encoder_attention_mask = self.source_mask(inputs_embeds, encoder_hidden_states, encoder_attention_mask)
            encoder_hidden_states = encoder_hidden_states.to(autocast_dtype(encoder_hidden_states))  # once for all
        hidden_states = self.run_layers(
            hidden_states,
            encoder_hidden_states,
            attention_mask=mask,
            encoder_attention_mask=encoder_attention_mask,
            relative_distances=distances,
            position_ids=position_ids,
            **{CACHE_NAME: cache},
            **kwargs,
        )
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=hidden_states, **{CACHE_NAME: cache})

    def source_mask(self, inputs_embeds, encoder_hidden_states, encoder_attention_mask):
        """The mask for the cross-attention of the layers."""
        mask = create_bidirectional_mask(
            self.config, inputs_embeds, encoder_attention_mask, encoder_hidden_states=encoder_hidden_states
        )
        return mask_and_distances(self.config, False, mask, None, inputs_embeds)[0]


class OdeTransformerEncoderDecoderPreTrainedModel(OdeTransformerPreTrainedModel):
    """Gets, sets and resizes the embeddings of an encoder and a decoder, shared or not."""

    def get_input_embeddings(self) -> nn.Embedding:
        """The encoder's embeddings; the decoder may share their weight."""
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
        embeddings = self.get_input_embeddings()
        self.set_input_embeddings(
            self._get_resized_embeddings(embeddings, new_num_tokens, pad_to_multiple_of, mean_resizing)
        )
        return self.get_input_embeddings()


def shift_tokens_right(labels: torch.Tensor, pad_token_id: int | None, decoder_start_token_id: int | None):
    """Returns the decoder's input for `labels` (batch, length): the start token, then all labels but the last. Labels
    of -100 become pad tokens.

    Raises:
        ValueError: one of the two token ids is None.
    """
    for name, token_id in (("pad_token_id", pad_token_id), ("decoder_start_token_id", decoder_start_token_id)):
        if token_id is None:
            raise ValueError(f"config.{name}=None, but making the decoder's input from labels needs it: set it.")
    shifted = labels.new_zeros(labels.shape)
    shifted[:, 1:] = labels[:, :-1]
    shifted[:, 0] = decoder_start_token_id
    return shifted.masked_fill_(shifted == -100, pad_token_id)


@auto_docstring
class OdeTransformerModel(OdeTransformerEncoderDecoderPreTrainedModel):
    encoder_class, decoder_class = OdeTransformerEncoder, OdeTransformerDecoder
    encoder_values: tuple[str, ...] = ("last_hidden_state", "hidden_states", "attentions")
    _tp_plan = {"shared": "embedding_rowwise"}

    def __init__(self, config: OdeTransformerConfig):
        super().__init__(config)
        if config.share_encoder_decoder_embeddings:
            self.shared = make_word_embedding(config, config.vocab_size)
            names = (f"{stack}.embed_tokens.weight" for stack in ("encoder", "decoder"))
            self._tied_weights_keys = dict.fromkeys(names, "shared.weight")
        self.encoder = self.encoder_class(config)
        self.decoder = self.decoder_class(config)
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
        cache: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqModelOutput:
        r"""
        cache (`Cache`, *optional*):
            Keys and values of earlier calls, which new ones are added to.
        past_key_values (`Cache`, *optional*):
            The same by its name before transformers 5.24.
        """
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **kwargs
            )
        elif not isinstance(encoder_outputs, BaseModelOutput):
            encoder_outputs = self.as_encoder_output(encoder_outputs)
        if use_cache is None and self.training:
            use_cache = False  # in training only on request
        decoder_outputs = self.decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            encoder_hidden_states=self.source_states(encoder_outputs),
            encoder_attention_mask=attention_mask,
            cache=cache,
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            past_key_values=past_key_values,
            **kwargs,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=decoder_outputs.last_hidden_state,
            decoder_hidden_states=decoder_outputs.hidden_states,
            decoder_attentions=decoder_outputs.attentions,
            cross_attentions=decoder_outputs.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
            **{CACHE_NAME: decoder_outputs.get(CACHE_NAME)},
        )

    def as_encoder_output(self, encoder_outputs: Any) -> BaseModelOutput:
        """The encoder's output of a mapping, or of a tuple of its values."""
        names, values = self.encoder_values, encoder_outputs
        values = values if isinstance(values, Mapping) else dict(zip(names, values))
        return self.encoder_class.output_class(**{name: values[name] for name in names if name in values})

    def source_states(self, encoder_outputs: BaseModelOutput) -> torch.Tensor:
        """The states that the decoder attends to, (sources, states, d)."""
        return encoder_outputs.last_hidden_state


@auto_docstring(
    custom_intro="The ODE Transformer with a language modeling head, for translation, summarization and correction."
)
class OdeTransformerForConditionalGeneration(
    OdeTransformerGenerationMixin, OdeTransformerEncoderDecoderPreTrainedModel
):
    model_class = OdeTransformerModel
    _tp_plan = {"lm_head": "colwise_gather_output"}

    def __init__(self, config: OdeTransformerConfig):
        super().__init__(config)
        self.model = self.model_class(config)
        vocab_size = config.target_vocab_size
        self.lm_head = nn.Linear(config.d_model, vocab_size, bias=config.lm_head_bias)
        if config.tie_word_embeddings:
            source = "shared" if config.share_encoder_decoder_embeddings else "decoder.embed_tokens"
            self._tied_weights_keys = {"lm_head.weight": f"model.{source}.weight"}
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
        cache: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        labels: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        past_key_values: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqLMOutput:
        r"""
        decoder_input_ids (`torch.LongTensor` of shape `(batch_size, target_sequence_length)`, *optional*):
            Ids of the decoder's input, starting with `decoder_start_token_id` (`</s>`). Without ids, `labels` shifted
            to the right.
        labels (`torch.LongTensor` of shape `(batch_size, target_sequence_length)`, *optional*):
            The target, ending with `eos_token_id`; -100 where no loss is computed. The loss is the mean cross entropy
            of the other tokens, or their sum divided by `num_items_in_batch`.
        cache (`Cache`, *optional*):
            Keys and values of earlier calls, which new ones are added to.
        past_key_values (`Cache`, *optional*):
            The same by its name before transformers 5.24.
        """
        shift_labels = kwargs.pop("shift_labels", labels)  # labels are already aligned with the decoder's input
        if labels is not None and decoder_input_ids is None and decoder_inputs_embeds is None:
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            cache=cache,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            past_key_values=past_key_values,
            **kwargs,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(outputs.last_hidden_state[:, kept])
        loss = None
        if labels is not None:
            loss = self.loss_function(
                logits=logits, labels=None, shift_labels=shift_labels, vocab_size=logits.shape[-1], **kwargs
            )
        states = dict(outputs)
        del states["last_hidden_state"]
        return Seq2SeqLMOutput(loss=loss, logits=logits, **states)

    def prepare_decoder_input_ids_from_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """The decoder's input for `labels` (batch, length); see `shift_tokens_right`. With `decoder_start_from_labels`
        it starts with the last token that is neither padding nor -100 instead of the start token."""
        pad = self.config.pad_token_id
        if not self.config.decoder_start_from_labels:
            return shift_tokens_right(labels, pad, self.config.decoder_start_token_id)
        shifted = shift_tokens_right(labels, pad, pad)
        lengths = ((labels != -100) & (labels != pad)).sum(dim=1, keepdim=True)
        last = labels.gather(1, (lengths - 1).clamp(min=0)).squeeze(1)
        shifted[:, 0] = last.masked_fill(last == -100, pad)
        return shifted


@auto_docstring(
    custom_intro="A decoder-only ODE Transformer for language modeling: the decoder's stack, without cross-attention. "
    "Without an attention mask, every `pad_token_id` gets the position of padding: give a mask if the text contains "
    "that token, for example as its end."
)
class OdeTransformerForCausalLM(OdeTransformerGenerationMixin, OdeTransformerPreTrainedModel):
    config: OdeTransformerDecoderConfig
    config_class = OdeTransformerDecoderConfig
    _tp_plan = {"lm_head": "colwise_gather_output"}
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: OdeTransformerDecoderConfig):
        # Trainer's label smoothing shifts labels for the classes listed here.
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.setdefault(config.model_type, "OdeTransformerForCausalLM")
        super().__init__(config)
        if not config.tie_word_embeddings:
            self._tied_weights_keys = None
        self.model = OdeTransformerDecoder(config)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=config.lm_head_bias)
        self.post_init()

    @can_return_tuple
    @auto_docstring
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        past_key_values: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> CausalLMOutputWithCrossAttentions:
        r"""
        labels (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
            The input itself, which `forward` shifts; -100 where no loss is computed.
        cache (`Cache`, *optional*):
            Keys and values of earlier calls, which new ones are added to.
        past_key_values (`Cache`, *optional*):
            The same by its name before transformers 5.24.
        """
        if use_cache is None and self.training:
            use_cache = False  # in training only on request
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            cache=cache,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            past_key_values=past_key_values,
            **kwargs,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(outputs.last_hidden_state[:, kept])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=logits.shape[-1], **kwargs)
        states = dict(outputs)
        del states["last_hidden_state"]
        return CausalLMOutputWithCrossAttentions(loss=loss, logits=logits, **states)


__all__ = [
    "OdeTransformerForCausalLM",
    "OdeTransformerForConditionalGeneration",
    "OdeTransformerModel",
    "OdeTransformerPreTrainedModel",
]
