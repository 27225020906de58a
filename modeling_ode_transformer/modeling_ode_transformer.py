# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The ODE Transformer (Li et al., ACL 2022): a pre-norm Transformer whose blocks are Runge-Kutta steps.

A forward pass embeds the ids (scaled, word dropout, positions, dropout). Each layer computes `y = history(states)` and
`y' = integrate(F, y)`, and `y'` joins the history. A last combination and a layer norm follow. The decoder adds
cross-attention and a cache; the heads only project. The equations are in `OdeTransformerLayer` (residual block and F,
1-7), `integrate` and `SCHEMES` (Runge-Kutta steps, 8-19, 23), `GateCoefficients` (25-26),
`LearnedDenseLayerHistory` (DLCL) and `OdeTransformerRelativeKeys` (Shaw).
"""

if not __package__:
    raise ImportError(f"Start Python in another folder, or with -P: here it takes {__file__} for the package.")

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
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
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, auto_docstring, can_return_tuple, logging
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .configuration_ode_transformer import VECTOR_FIELDS, OdeTransformerConfig
from .generation_ode_transformer import CACHE_NAME, BeamSearchGenerationMixin, RecomputedGenerationMixin, one_cache
from .integration_ode_transformer import HISTORIES, Integrator, clamp_half
from .layers_ode_transformer import (
    BlockInputs,
    OdeTransformerAttention,
    StackEmbeddingMixin,
    added_mask,
    attended_positions,
    autocast_dtype,
    check_cache_entries,
    check_options,
    make_coefficients,
    make_position_embedding,
    make_stage_norms,
    make_word_embedding,
    mask_and_distances,
    parts_without,
)
from .pretrained_ode_transformer import (
    EncoderDecoderEmbeddingsMixin,
    OdeTransformerPreTrainedModel,
    as_encoder_output,
    decoder_inputs_from_labels,
    select_positions,
)
from .schemes_ode_transformer import CorrectorHistory


logger = logging.get_logger(__name__)


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

    inputs_class = BlockInputs

    def __init__(self, config: OdeTransformerConfig, stack: str, layer_idx: int, has_cross_attention: bool = False):
        super().__init__()
        num_heads, ffn_dim = getattr(config, f"{stack}_attention_heads"), getattr(config, f"{stack}_ffn_dim")
        self.parts_without_source = parts_without("cross_attention", VECTOR_FIELDS[config.vector_field])
        self.parts = VECTOR_FIELDS[config.vector_field] if has_cross_attention else self.parts_without_source
        self.num_cache_entries = config.attention_evaluations(stack)
        self.first_cache_idx = layer_idx * self.num_cache_entries
        self.num_stack_entries = getattr(config, f"{stack}_layers") * self.num_cache_entries
        self.recomputes_stages = False
        # The evaluations that correct a step use the last entries.
        iterations = config.scheme(stack).corrector_iterations
        self.corrections = range(self.num_cache_entries - iterations, self.num_cache_entries)
        self.last_evaluation = self.corrections[-1] if iterations else config.evaluations(stack) - 1

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
        integrator: Integrator,
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
        scheme. `correct(evaluate, y, prediction)` corrects the state. `repeat` counts earlier runs of the stack.
        Flash attention separates packed sequences by the `position_ids`."""
        masks, places = (attention_mask, encoder_attention_mask), (relative_distances, position_ids)
        inputs = self.read(encoder_hidden_states, *masks, one_cache(cache, past_key_values), kwargs, repeat, *places)
        parts, y = self.parts_without_source if inputs.source is None else self.parts, hidden_states
        for sublayers, is_integrated in parts:
            increment = self.recomputed(partial(self.increment, sublayers, inputs))  # F
            output = self.recomputed(partial(self.output, sublayers, inputs))  # y + F(y)
            if is_integrated:
                y, steps = integrator.step(increment, output, y, steps)
            else:
                y = self.output(sublayers, inputs, y)
        if correct is not None:  # y is a prediction (PCformer, IIET)
            y = correct(self.recomputed(partial(self.correction, parts, inputs)), hidden_states, y)
        return clamp_half(y), inputs.weights.get("self"), inputs.weights.get("cross"), steps

    def recomputed(self, vector_field: Callable) -> Callable:
        """F. If stages are recomputed in training, evaluations keep no activations, except for the block's last one,
        which the gradient needs first."""
        if not (self.recomputes_stages and self.training):
            return vector_field

        def evaluate(z: torch.Tensor, evaluation: int) -> torch.Tensor:
            if evaluation == self.last_evaluation:
                return vector_field(z, evaluation)
            return self._gradient_checkpointing_func(vector_field, z, evaluation)

        return evaluate

    def correction(self, parts, inputs: BlockInputs, z: torch.Tensor, evaluation: int) -> torch.Tensor:
        """z + F(z) of the whole block, in an evaluation after those of the predictor."""
        for sublayers, _ in parts:
            z = self.output(sublayers, inputs, z, evaluation)
        return z

    def output(
        self, sublayers: dict[str, float], inputs: BlockInputs, z: torch.Tensor, evaluation: int = 0
    ) -> torch.Tensor:
        """z + F(z): each sublayer adds to the output of the previous one."""
        z = clamp_half(z)
        for name, weight in sublayers.items():
            z = z + self.sublayer(name, weight, inputs, z, evaluation)
        return z

    def increment(
        self, sublayers: dict[str, float], inputs: BlockInputs, z: torch.Tensor, evaluation: int = 0
    ) -> torch.Tensor:
        """F(z), what `output` adds to z: A(z) + B(z + A(z)) for two sublayers."""
        z = clamp_half(z)
        (name, weight), *others = sublayers.items()
        total = self.sublayer(name, weight, inputs, z, evaluation)
        for name, weight in others:
            total = total + self.sublayer(name, weight, inputs, z + total, evaluation)
        return total

    def sublayer(
        self, name: str, weight: float, inputs: BlockInputs, z: torch.Tensor, evaluation: int
    ) -> torch.Tensor:
        increment = self.dropout(getattr(self, name)(inputs, z, evaluation))
        return increment if weight == 1.0 else weight * increment

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
        inputs.keep_weights("self", weights)
        return output

    def cross_attention(self, inputs, z, evaluation):
        output, weights = self.encoder_attn(
            self.encoder_attn_layer_norm(z), inputs.source, inputs.source_mask, **inputs.options
        )
        inputs.keep_weights("cross", weights)
        return output

    def feed_forward(self, inputs, z, evaluation):
        return self.fc2(self.activation_dropout(self.activation_fn(self.fc1(self.final_layer_norm(z)))))

    def macaron_feed_forward(self, inputs, z, evaluation):
        z = self.activation_fn(self.macaron_fc1(self.macaron_layer_norm(z)))
        return self.macaron_fc2(self.activation_dropout(z))

    def read(
        self,
        encoder_hidden_states,
        attention_mask,
        encoder_attention_mask,
        cache,
        options,
        repeat,
        relative_distances,
        position_ids,
    ):
        """Makes the sublayers' inputs from the arguments of `forward`."""
        if self.recomputes_stages and self.training and cache is not None:
            logger.warning_once("Recomputed stages cannot fill a cache: it stays empty.")
            cache = None
        has_two = isinstance(cache, EncoderDecoderCache)
        first_idx = self.first_cache_idx + repeat * self.num_stack_entries
        return self.inputs_class(
            attention_mask=attention_mask,
            cache=cache.self_attention_cache if has_two else cache,
            source=self.read_source(encoder_hidden_states, cache if has_two else None, first_idx),
            source_mask=encoder_attention_mask,
            options=options,
            first_cache_idx=first_idx,
            relative_distances=relative_distances,
            position_ids=position_ids,
        )

    def read_source(self, encoder_hidden_states, cache, first_idx):
        """The keys and values of the cross-attention, shared by all evaluations and cached if there is a cache."""
        if self.encoder_attn is None or encoder_hidden_states is None:
            return None
        if cache is not None and cache.is_updated.get(first_idx):
            entry = cache.cross_attention_cache.layers[first_idx]
            return entry.keys, entry.values
        keys_and_values = self.project_source(encoder_hidden_states)
        if cache is not None:
            # transformers gives both caches the same number of entries; those of a layer are the same here.
            entries = cache.cross_attention_cache.layers
            for idx in range(first_idx, first_idx + self.num_cache_entries):
                cache.is_updated[idx] = True
                cached = cache.cross_attention_cache.update(*keys_and_values, idx)
                if type(entries[idx]) is DynamicLayer:  # it has copied them
                    entries[idx].keys, entries[idx].values = entries[first_idx].keys, entries[first_idx].values
            keys_and_values = cached
        return keys_and_values

    def project_source(self, encoder_hidden_states):
        return self.encoder_attn.project(encoder_hidden_states, "kv")


class OdeTransformerEncoderLayer(OdeTransformerLayer):
    """A block of the encoder."""


class OdeTransformerDecoderLayer(OdeTransformerLayer):
    """A block of the decoder."""


class OdeTransformerStack(StackEmbeddingMixin, OdeTransformerPreTrainedModel):
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

    def run_layers(self, hidden_states: torch.Tensor, *args, **kwargs) -> torch.Tensor:
        """Runs the layers, each on its combination of the history, `stack_repeats` times, then the final norm. The
        arguments go to the layers."""
        integrator = self.integrator()
        for repeat in range(self.config.stack_repeats):
            states, steps = [hidden_states], ()
            for layer in self.layers:
                if layer.solver_coefficients is not None:
                    integrator = replace(integrator, coefficients=layer.solver_coefficients)
                if self.corrector is not None:
                    kwargs["correct"] = partial(self.corrector.correct, layer.corrections, self.history, states)
                y = self.history(states)
                output, _, _, steps = layer(y, integrator, *args, steps=steps, repeat=repeat, **kwargs)
                states = self.history.extend(states, y, output)
            hidden_states = self.history(states)
        return self.layer_norm(hidden_states)

    def integrator(self) -> Integrator:
        """The stack's scheme with the modules that its blocks share."""
        return Integrator(
            self.scheme,
            self.solver_coefficients,
            self.stage_norms,
            self.multistep,
            self.config.step_size,
            self.config.steps_per_layer,
            stages_are_outputs=self.config.stage_values == "output" and self.scheme.tableau.num_stages > 1,
            normalizes_at_once=self.config.normalize_stages == "released",
        )


def hidden_states_recorder(layer_class: type[OdeTransformerLayer], num_layers_key: str) -> OutputRecorder:
    recorder = OutputRecorder(layer_class)
    recorder.num_hidden_layers_key = num_layers_key  # not an argument before transformers 5.23
    return recorder


class OdeTransformerEncoder(OdeTransformerStack):
    stack = "encoder"
    layer_class = OdeTransformerEncoderLayer
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
        check_options(kwargs)
        return self.encode(self.embed_words(input_ids, inputs_embeds), input_ids, attention_mask, **kwargs)

    def encode(self, inputs_embeds, input_ids, attention_mask, **kwargs) -> BaseModelOutput:
        """Encodes scaled word embeddings (batch, length, d), given with the tokens' ids and mask. A ValueError names a
        mask (batch, length) of another length."""
        length = inputs_embeds.shape[1]
        if attention_mask is not None and len(attention_mask.shape) == 2 and attention_mask.shape[1] != length:
            raise ValueError(
                f"attention_mask has the shape {tuple(attention_mask.shape)}, but a source has {length} tokens: give "
                "an entry for each."
            )
        positions = torch.arange(inputs_embeds.shape[1], device=inputs_embeds.device).unsqueeze(0)
        mask = create_bidirectional_mask(self.config, inputs_embeds, attention_mask)
        mask, distances = mask_and_distances(self.config, False, mask, (positions, positions), inputs_embeds)
        hidden_states = self.embed(inputs_embeds, input_ids, attention_mask)
        hidden_states = self.run_layers(hidden_states, attention_mask=mask, relative_distances=distances, **kwargs)
        return BaseModelOutput(last_hidden_state=hidden_states)


class OdeTransformerDecoder(OdeTransformerStack):
    stack = "decoder"
    layer_class = OdeTransformerDecoderLayer
    _can_record_outputs = {
        "hidden_states": hidden_states_recorder(OdeTransformerDecoderLayer, "decoder_layer_calls"),
        "attentions": OutputRecorder(OdeTransformerDecoderLayer, index=1),
        "cross_attentions": OutputRecorder(OdeTransformerDecoderLayer, index=2),
    }

    def __init__(self, config: OdeTransformerConfig):
        super().__init__(
            config, config.decoder_vocab_size or config.vocab_size, has_cross_attention=config.is_encoder_decoder
        )
        self.num_cache_entries = config.decoder_layer_calls * config.attention_evaluations("decoder")

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
        check_options(kwargs)
        inputs_embeds = self.embed_words(input_ids, inputs_embeds)
        cache = one_cache(cache, past_key_values)
        if use_cache and cache is None:
            cache = DynamicCache()
            if self.config.is_encoder_decoder:
                cache = EncoderDecoderCache(cache, DynamicCache())

        self_cache = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
        past_length = 0
        if self_cache is not None:
            check_cache_entries(self_cache, self.num_cache_entries)
            past_length = self_cache.get_seq_length()
        attended = attended_positions(inputs_embeds, attention_mask, position_ids, past_length, self_cache)
        hidden_states = self.embed(inputs_embeds, input_ids, attention_mask, position_ids, past_length)
        # Beside a cache, transformers does not separate packed sequences by their positions.
        is_new = type(self_cache) is DynamicCache and self_cache.get_seq_length() == 0
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
        return added_mask(self.config, mask, False, inputs_embeds)


@auto_docstring
class OdeTransformerModel(EncoderDecoderEmbeddingsMixin, OdeTransformerPreTrainedModel):
    encoder_class, decoder_class = OdeTransformerEncoder, OdeTransformerDecoder
    _tp_plan = {"shared": "embedding_rowwise"}

    def __init__(self, config: OdeTransformerConfig):
        if not config.is_encoder_decoder:
            raise ValueError(
                "The configuration has is_encoder_decoder=False, a decoder only: use OdeTransformerForCausalLM "
                "(AutoModelForCausalLM)."
            )
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
        encoder_outputs = self.as_encoder_output(encoder_outputs)
        cache = one_cache(cache, past_key_values)
        decoder_outputs = self.decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            encoder_hidden_states=self.source_states(encoder_outputs),
            encoder_attention_mask=attention_mask,
            cache=cache,
            inputs_embeds=decoder_inputs_embeds,
            use_cache=self.wants_cache(use_cache, cache),
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
        """Converts `encoder_outputs` given by a caller to the encoder's output class."""
        return as_encoder_output(encoder_outputs)

    def source_states(self, encoder_outputs: BaseModelOutput) -> torch.Tensor:
        """The states that the decoder attends to, (sources, states, d)."""
        return encoder_outputs.last_hidden_state


@auto_docstring(
    custom_intro="The ODE Transformer with a language modeling head, for translation, summarization and correction."
)
class OdeTransformerForConditionalGeneration(
    EncoderDecoderEmbeddingsMixin, BeamSearchGenerationMixin, OdeTransformerPreTrainedModel
):
    model_class = OdeTransformerModel
    _tp_plan = {"lm_head": "colwise_gather_output"}

    def __init__(self, config: OdeTransformerConfig):
        super().__init__(config)
        self.model = self.model_class(config)
        vocab_size = config.decoder_vocab_size or config.vocab_size
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
            cache=one_cache(cache, past_key_values),
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
        states = {name: value for name, value in outputs.items() if name != "last_hidden_state"}
        return Seq2SeqLMOutput(loss=loss, logits=logits, **states)

    def prepare_decoder_input_ids_from_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """The decoder's input for `labels` (batch, length); see `decoder_inputs_from_labels`."""
        return decoder_inputs_from_labels(labels, self.config)


@auto_docstring(
    custom_intro="A decoder-only ODE Transformer for language modeling: the decoder's stack, without cross-attention. "
    "Without an attention mask, every `pad_token_id` gets the position of padding: give a mask if the text contains "
    "that token, for example as its end."
)
class OdeTransformerForCausalLM(OdeTransformerPreTrainedModel, RecomputedGenerationMixin):
    _tp_plan = {"lm_head": "colwise_gather_output"}
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: OdeTransformerConfig):
        config = config.for_decoder_alone()
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
        cache = one_cache(cache, past_key_values)
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            cache=cache,
            inputs_embeds=inputs_embeds,
            use_cache=self.wants_cache(use_cache, cache),
            **kwargs,
        )
        logits = self.lm_head(select_positions(outputs.last_hidden_state, logits_to_keep))
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=logits.shape[-1], **kwargs)
        states = {name: value for name, value in outputs.items() if name != "last_hidden_state"}
        return CausalLMOutputWithCrossAttentions(loss=loss, logits=logits, **states)


__all__ = [
    "OdeTransformerForCausalLM",
    "OdeTransformerForConditionalGeneration",
    "OdeTransformerModel",
    "OdeTransformerPreTrainedModel",
]
