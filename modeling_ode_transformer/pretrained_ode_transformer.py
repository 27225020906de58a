# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The common base of all models: initial values, loading, activation checkpointing, resizing, and plans for parallel
training."""

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput
from transformers.modeling_utils import PreTrainedModel
from transformers.utils import auto_docstring

from .configuration_ode_transformer import OdeTransformerConfig
from .integration_ode_transformer import StageGate
from .layers_ode_transformer import (
    OdeTransformerAttentionProjection,
    OdeTransformerLearnedPositionalEmbedding,
    OdeTransformerRelativeKeys,
    StackEmbeddingMixin,
)


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
        elif hasattr(module, "initial_weight"):
            init.copy_(module.weight, module.initial_weight())
        else:
            super()._init_weights(module)

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path,
        *args,
        use_safetensors: bool | None = True,
        output_loading_info: bool = False,
        **kwargs,
    ):
        """As in transformers, but reads only safetensors unless `use_safetensors=False` allows files of `torch.save`
        (with `weights_only=True`, so that no code runs). `None`, transformers' default, counts as True.

        Raises:
            OSError: there are no safetensors files.
            ValueError: the model has another type, or is an encoder-decoder and the class a language model.
        """
        name, use_safetensors = pretrained_model_name_or_path, use_safetensors is not False
        try:
            model, report = super().from_pretrained(
                name, *args, use_safetensors=use_safetensors, output_loading_info=True, **kwargs
            )
        except OSError as error:
            if use_safetensors and "safetensors" in str(error):
                raise OSError(f"{error} Older files (.bin) are only read with use_safetensors=False.") from error
            raise
        has_encoder = any(re.match(r"(model\.)?encoder\.", key) for key in report["unexpected_keys"])
        if model.config.model_type != cls.config_class.model_type:
            raise ValueError(
                f"{name} is a model of the type {model.config.model_type!r}, not a {cls.__name__}: open it with an "
                "Auto class."
            )
        if has_encoder and not model.config.is_encoder_decoder:
            raise ValueError(
                f"{name} holds an encoder-decoder: open it with AutoModelForSeq2SeqLM. (To make a new language "
                "model of its sizes: OdeTransformerForCausalLM(config).)"
            )
        return (model, report) if output_loading_info else model

    def save_pretrained(self, *args, **kwargs):
        # PEFT sets the field to False when it merges an adapter of tied embeddings.
        base, head = self.base_model, self.get_output_embeddings()
        source = getattr(base, "shared", None) or getattr(base, "decoder", base).embed_tokens
        if head is not None and head.weight is source.weight:
            self.config.tie_word_embeddings = True
        return super().save_pretrained(*args, **kwargs)

    def _get_resized_lm_head(self, old_lm_head, new_num_tokens=None, transposed=False, mean_resizing=True):
        """As in transformers, but new rows are initialized like an output projection."""
        new = super()._get_resized_lm_head(old_lm_head, new_num_tokens, transposed, mean_resizing)
        if type(new) is nn.Linear and not mean_resizing:
            with torch.no_grad():
                new.weight[old_lm_head.out_features :].normal_(std=self.config.d_model**-0.5)
        return new

    def _set_gradient_checkpointing(self, enable=True, gradient_checkpointing_func=None, **kwargs):
        """Serves `activation_checkpointing_enable`, whose `use_reentrant` is False here unless it is given.

        One more option, `{"stages": True}`, recomputes the stages of Runge-Kutta blocks instead of whole blocks: all
        but the last stage of a block, whose activations are kept as in a residual block. It needs about the memory of
        the residual model, and less time than recomputing blocks.

        Raises:
            ValueError: `use_reentrant=True` with `stages`, or for a multistep scheme or a corrector, whose blocks
                share states.
        """
        function = gradient_checkpointing_func or partial(checkpoint)
        options = {"use_reentrant": False} | function.keywords
        recomputes_stages = options.pop("stages", False)
        if recomputes_stages and options["use_reentrant"]:
            raise ValueError(
                "use_reentrant=True loses the gradients of what stages share, such as the keys and values of the "
                "encoder's output: give use_reentrant=False, the default."
            )
        stacks = self.stacks()
        shares_states = any(stack.multistep is not None or stack.corrector is not None for stack in stacks)
        if shares_states and options["use_reentrant"]:
            raise ValueError(
                "use_reentrant=True loses the gradients of states that blocks share in a multistep scheme or a "
                "corrector: give use_reentrant=False, the default."
            )
        super()._set_gradient_checkpointing(enable, partial(function.func, **options), **kwargs)
        for layer in (layer for stack in stacks for layer in stack.layers):
            layer.recomputes_stages = recomputes_stages and layer.gradient_checkpointing
        for layer in (module for module in self.modules() if isinstance(module, GradientCheckpointingLayer)):
            layer.gradient_checkpointing &= not recomputes_stages

    def stacks(self) -> list[nn.Module]:
        """The model's stacks: encoder, decoder, or both."""
        return [module for module in self.modules() if isinstance(module, StackEmbeddingMixin)]

    def wants_cache(self, use_cache: bool | None, cache: Any) -> bool | None:
        """The decoder's `use_cache`: in training it makes a cache only on request."""
        is_asked = use_cache is not None or cache is not None
        return use_cache if is_asked or not self.training else False

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

    def get_position_embeddings(self) -> nn.Module | tuple[nn.Module, ...] | None:
        """The position embeddings of a stack, or None if it has none; a pair for an encoder-decoder."""
        positions = tuple(stack.embed_positions for stack in self.stacks())
        return positions[0] if len(positions) == 1 else positions

    def resize_position_embeddings(self, new_num_position_embeddings: int):
        """Sets the number of positions, `max_position_embeddings`. Learned positions are cut at the end, or extended
        by vectors initialized as in a new model. Sinusoidal positions are computed for any length.

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


class EncoderDecoderEmbeddingsMixin:
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

    def resize_decoder_token_embeddings(
        self, new_num_tokens: int, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """Resizes the embeddings of a decoder with its own vocabulary, and the output projection.

        Raises:
            ValueError: encoder and decoder share one vocabulary.
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


def as_encoder_output(
    encoder_outputs: Any,
    output_class: type[BaseModelOutput] = BaseModelOutput,
    names: tuple[str, ...] = ("last_hidden_state", "hidden_states", "attentions"),
) -> BaseModelOutput:
    """Converts a mapping, or a tuple in the order of `names`, to an encoder's output; returns such an output as it is.

    Raises:
        TypeError: `encoder_outputs` is a tensor.
        ValueError: there is no `last_hidden_state`.
    """
    if isinstance(encoder_outputs, BaseModelOutput):
        return encoder_outputs
    if isinstance(encoder_outputs, torch.Tensor):
        raise TypeError(
            f"encoder_outputs is a tensor {tuple(encoder_outputs.shape)}: give the encoder's output, or a tuple of "
            "its states."
        )
    values = encoder_outputs if isinstance(encoder_outputs, Mapping) else dict(zip(names, encoder_outputs))
    if "last_hidden_state" not in values:
        raise ValueError(f"encoder_outputs has no last_hidden_state, only {', '.join(map(str, values))}.")
    return output_class(**{name: values[name] for name in names if name in values})


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


def last_tokens(labels: torch.Tensor, pad_token_id: int) -> torch.Tensor:
    """The last token that is neither padding nor -100, (batch,), of right-padded `labels` (batch, length)."""
    lengths = ((labels != -100) & (labels != pad_token_id)).sum(dim=1, keepdim=True)
    tokens = labels.gather(1, (lengths - 1).clamp(min=0)).squeeze(1)
    return tokens.masked_fill(tokens == -100, pad_token_id)


def decoder_inputs_from_labels(labels: torch.Tensor, config: OdeTransformerConfig) -> torch.Tensor:
    """The decoder's input for `labels` (batch, length); see `shift_tokens_right`. With `decoder_start_from_labels` it
    starts with the last token of the labels instead of the start token."""
    if not config.decoder_start_from_labels:
        return shift_tokens_right(labels, config.pad_token_id, config.decoder_start_token_id)
    shifted = shift_tokens_right(labels, config.pad_token_id, config.pad_token_id)
    shifted[:, 0] = last_tokens(labels, config.pad_token_id)
    return shifted


def select_positions(hidden_states: torch.Tensor, logits_to_keep: int | torch.Tensor) -> torch.Tensor:
    """Selects positions of (batch, length, d): the last `logits_to_keep` (0: all), or those of an index tensor."""
    positions = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
    return hidden_states[:, positions, :]
