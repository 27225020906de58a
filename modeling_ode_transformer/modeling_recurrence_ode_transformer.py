# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The ODE Transformer with a recurrence encoder (Hao et al., "Modeling Recurrence for Transformer", NAACL 2019).

Beside the encoder, a recurrent network reads the source's word embeddings, and the decoder attends to the states of
both. This file adds that to the ODE Transformer; the network is in `recurrence_ode_transformer.py`. Equation numbers
are the paper's.

The decoder has one source: the states of both encoders, one after the other. Caches are alike: an entry holds the keys
and values of both, so a search always treats the two together.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import nn
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import auto_docstring

from .configuration_ode_transformer import Part
from .configuration_recurrence_ode_transformer import OdeTransformerRecurrenceConfig
from .integration_ode_transformer import StageGate
from .layers_ode_transformer import OdeTransformerAttention
from .modeling_ode_transformer import (
    OdeTransformerDecoder,
    OdeTransformerDecoderLayer,
    OdeTransformerEncoder,
    OdeTransformerForConditionalGeneration,
    OdeTransformerModel,
    OdeTransformerPreTrainedModel,
)
from .recurrence_ode_transformer import OdeTransformerBidirectionalLinear, OdeTransformerRecurrentNetwork


class OdeTransformerSilentProjection(nn.Linear):
    """The output projection of a residual sublayer, which starts at zero: at first the model computes what it would
    without the sublayer, and training brings it into use."""


class OdeTransformerRecurrenceDecoderLayer(OdeTransformerDecoderLayer):
    """A decoder block, with attention to the recurrence encoder in the layers that have it. D is the output of the
    cross-attention, R that of the attention to the recurrence encoder.

    "stack" (eq. 18): a sublayer after the cross-attention, R of D.
    "gated_sum" (eqs. 14, 15 and 17): g * D + (1 - g) * R, where g is the sigmoid of a linear layer of [D, R].
    """

    def __init__(
        self, config: OdeTransformerRecurrenceConfig, stack: str, layer_idx: int, has_cross_attention: bool = True
    ):
        super().__init__(config, stack, layer_idx, has_cross_attention)
        self.config = config
        self.recurrence_attn = self.recurrence_gate = None
        is_top = layer_idx == config.decoder_layers - 1
        if not (is_top or config.recurrence_decoder_layers == "all"):
            return
        # Modules are in the order of computation; initial values and optimizer states follow it.
        names = [name for name, _ in self.named_children()]
        later = {name: getattr(self, name) for name in names[names.index("encoder_attn_layer_norm") + 1 :]}
        for name in later:
            delattr(self, name)
        self.recurrence_attn = OdeTransformerAttention(config, config.decoder_attention_heads, is_cross_attention=True)
        self.recurrence_attn_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        if config.recurrence_integration == "gated_sum":
            self.recurrence_gate = StageGate(2 * config.d_model, 1)
        else:
            self.recurrence_attn.out_proj = OdeTransformerSilentProjection(config.d_model, config.d_model)
            self.parts = tuple(with_recurrence(self.parts))
        for name, module in later.items():
            setattr(self, name, module)

    def project_source(self, encoder_hidden_states):
        length = self.config.source_length(encoder_hidden_states.shape[1])
        keys_and_values = super().project_source(encoder_hidden_states[:, :length])
        if self.recurrence_attn is None:
            return keys_and_values
        others = self.recurrence_attn.project(encoder_hidden_states[:, length:], "kv")
        return tuple(torch.cat(pair, dim=2) for pair in zip(keys_and_values, others))

    def read_source(self, encoder_hidden_states, *args):
        """The keys and values of the states of each encoder."""
        source = super().read_source(encoder_hidden_states, *args)
        end = encoder_hidden_states.shape[1]  # a static cache may be longer
        length = self.config.source_length(end)
        return [states[:, :, :length] for states in source], [states[:, :, length:end] for states in source]

    def cross_attention(self, inputs, z, evaluation):
        (source, _), (mask, _) = inputs.source, inputs.source_mask
        output = super().cross_attention(replace(inputs, source=source, source_mask=mask), z, evaluation)
        if self.recurrence_gate is None:
            return output
        other = self.recurrence_attention(inputs, z, evaluation)
        gate = torch.sigmoid(self.recurrence_gate(torch.cat([z + output, z + other], dim=-1)))
        return gate * output + (1 - gate) * other

    def recurrence_attention(self, inputs, z, evaluation):
        (_, source), (_, mask) = inputs.source, inputs.source_mask
        output, _ = self.recurrence_attn(self.recurrence_attn_layer_norm(z), source, mask, **inputs.options)
        return output


def with_recurrence(parts: Iterable[Part]) -> Iterable[Part]:
    """Adds attention to the recurrence encoder after the cross-attention to the parts of a vector field: in the same
    part, or in its own part if each sublayer has one."""
    for part in parts:
        if part.sublayers == ("cross_attention",):
            yield part
            yield part._replace(sublayers=("recurrence_attention",))
        else:
            sublayers: list[str] = []
            for name in part.sublayers:
                sublayers += [name, "recurrence_attention"] if name == "cross_attention" else [name]
            yield part._replace(sublayers=tuple(sublayers))


@auto_docstring
class OdeTransformerRecurrencePreTrainedModel(OdeTransformerPreTrainedModel):
    config: OdeTransformerRecurrenceConfig
    config_class = OdeTransformerRecurrenceConfig
    _no_split_modules = [
        "OdeTransformerEncoderLayer",
        "OdeTransformerRecurrenceLayer",
        "OdeTransformerRecurrenceDecoderLayer",
    ]

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
        else:
            super()._init_weights(module)


@dataclass
class OdeTransformerRecurrenceEncoderOutput(BaseModelOutput):
    """
    The output of the encoder in a model with a recurrence encoder. As a tuple (`return_dict=False`), the order is
    `last_hidden_state`, `recurrence_last_hidden_state`, `hidden_states`, `attentions`, leaving out any that are None.

    Args:
        recurrence_last_hidden_state (`torch.FloatTensor` of shape `(batch_size, states, hidden_size)`, *optional*):
            The states of the recurrence encoder: `recurrence_steps` of them, or one per word. Do not use the states of
            padding.
    """

    recurrence_last_hidden_state: torch.FloatTensor | None = None


class OdeTransformerRecurrenceEncoder(OdeTransformerRecurrencePreTrainedModel, OdeTransformerEncoder):
    output_class = OdeTransformerRecurrenceEncoderOutput

    def post_init(self):
        layer_norm = self.layer_norm  # as in the blocks: modules are in the order of computation
        del self.layer_norm
        self.recurrence = OdeTransformerRecurrentNetwork(self.config)
        self.layer_norm = layer_norm
        super().post_init()

    def read_words(self, inputs_embeds, attention_mask):
        return {"recurrence_last_hidden_state": self.recurrence(inputs_embeds, attention_mask)}


class OdeTransformerRecurrenceDecoder(OdeTransformerRecurrencePreTrainedModel, OdeTransformerDecoder):
    layer_class = OdeTransformerRecurrenceDecoderLayer

    def source_mask(self, inputs_embeds, encoder_hidden_states, encoder_attention_mask):
        """The masks for attention to the two encoders."""
        length = self.config.source_length(encoder_hidden_states.shape[1])
        mask = super().source_mask(inputs_embeds, encoder_hidden_states[:, :length], encoder_attention_mask)
        return mask, mask if self.config.recurrence_has_words else None


@auto_docstring
class OdeTransformerRecurrenceModel(OdeTransformerRecurrencePreTrainedModel, OdeTransformerModel):
    encoder_class = OdeTransformerRecurrenceEncoder
    decoder_class = OdeTransformerRecurrenceDecoder
    encoder_values = ("last_hidden_state", "recurrence_last_hidden_state", "hidden_states", "attentions")

    def source_states(self, encoder_outputs: BaseModelOutput) -> torch.Tensor:
        """The states of both encoders, one after the other: (sources, length + recurrence states, d)."""
        states, others = encoder_outputs.last_hidden_state, encoder_outputs["recurrence_last_hidden_state"]
        return torch.cat([states, others.to(states.device)], dim=1)


@auto_docstring(custom_intro="The ODE Transformer with a recurrence encoder and a language modeling head.")
class OdeTransformerRecurrenceForConditionalGeneration(
    OdeTransformerRecurrencePreTrainedModel, OdeTransformerForConditionalGeneration
):
    model_class = OdeTransformerRecurrenceModel

    def _prepare_static_cache(self, *args, model_kwargs, **kwargs):
        # Its size is the number of states that the decoder attends to.
        outputs = model_kwargs["encoder_outputs"]
        if not isinstance(outputs, BaseModelOutput):
            outputs = self.model.as_encoder_output(outputs)
        states = self.model.source_states(outputs)
        model_kwargs = {**model_kwargs, "encoder_outputs": (states,)}
        return super()._prepare_static_cache(*args, model_kwargs=model_kwargs, **kwargs)


__all__ = [
    "OdeTransformerRecurrenceForConditionalGeneration",
    "OdeTransformerRecurrenceModel",
    "OdeTransformerRecurrencePreTrainedModel",
]
