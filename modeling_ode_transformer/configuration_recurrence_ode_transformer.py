# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The configuration of an ODE Transformer with a recurrence encoder: an ODE Transformer's fields, and five more."""

from typing import Any

from huggingface_hub.dataclasses import strict

from .configuration_ode_transformer import OdeTransformerConfig


RECURRENCE_CHOICES: dict[str, tuple[str, ...]] = {
    "recurrence_encoder": ("birnn", "biarn"),
    "recurrence_integration": ("stack", "gated_sum"),
    "recurrence_decoder_layers": ("top", "all"),
}


@strict
class OdeTransformerRecurrenceConfig(OdeTransformerConfig):
    r"""
    The configuration of an ODE Transformer with a second encoder over the word embeddings: the recurrence encoder of
    Hao et al., "Modeling Recurrence for Transformer" (NAACL 2019). The decoder attends to it too.

    Args:
        recurrence_encoder (`str`, defaults to `"biarn"`): `"birnn"`, a bidirectional GRU, or `"biarn"`, the attentive
            recurrent network.
        recurrence_layers (`int`, defaults to 1): Its layers.
        recurrence_steps (`int`, *optional*, defaults to 8): Recurrent steps of `"biarn"`, each of which gives the
            decoder a state; `None`: one for each word of the source, as always with `"birnn"`.
        recurrence_integration (`str`, defaults to `"stack"`): How the decoder attends to it: in a residual sublayer
            of its own after the cross-attention (`"stack"`), or beside the cross-attention, the two weighed by a gate
            for each token (`"gated_sum"`).
        recurrence_decoder_layers (`str`, defaults to `"top"`): The decoder's layers that attend to it: `"top"` or
            `"all"`.
        kwargs: the fields of `OdeTransformerConfig`.

    Raises:
        As `OdeTransformerConfig`.

    Example:

    ```python
    >>> from modeling_ode_transformer import (
    ...     OdeTransformerRecurrenceConfig,
    ...     OdeTransformerRecurrenceForConditionalGeneration,
    ... )

    >>> configuration = OdeTransformerRecurrenceConfig(recurrence_encoder="birnn", d_model=256)
    >>> model = OdeTransformerRecurrenceForConditionalGeneration(configuration)
    ```"""

    model_type = "ode_transformer_recurrence"
    model_classes = {
        "AutoConfig": "configuration_recurrence_ode_transformer.OdeTransformerRecurrenceConfig",
        "AutoModel": "modeling_recurrence_ode_transformer.OdeTransformerRecurrenceModel",
        "AutoModelForSeq2SeqLM": (
            "modeling_recurrence_ode_transformer.OdeTransformerRecurrenceForConditionalGeneration"
        ),
    }
    base_model_tp_plan = {
        **OdeTransformerConfig.base_model_tp_plan,
        "layers.*.recurrence_attn.q_proj": "colwise",
        "layers.*.recurrence_attn.k_proj": "colwise",
        "layers.*.recurrence_attn.v_proj": "colwise",
        "layers.*.recurrence_attn.out_proj": "rowwise",
    }

    recurrence_encoder: str = "biarn"
    recurrence_layers: int = 1
    recurrence_steps: int | None = 8
    recurrence_integration: str = "stack"
    recurrence_decoder_layers: str = "top"

    @classmethod
    def get_config_dict(cls, *args, **kwargs) -> tuple[dict[str, Any], dict[str, Any]]:
        """As in transformers. The configuration of an `OdeTransformerForConditionalGeneration` becomes that of a model
        with an added recurrence encoder."""
        config_dict, kwargs = super().get_config_dict(*args, **kwargs)
        if config_dict.get("model_type") == OdeTransformerConfig.model_type:
            config_dict = {**config_dict, "model_type": cls.model_type}
        return config_dict, kwargs

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs) -> "OdeTransformerRecurrenceConfig":
        config_dict = {name: value for name, value in config_dict.items() if name != "model_type"}
        return super().from_dict(config_dict, **kwargs)

    @property
    def recurrence_has_words(self) -> bool:
        """Whether the recurrence encoder has a state for each word of the source rather than a fixed number."""
        return self.recurrence_encoder == "birnn" or self.recurrence_steps is None

    def source_length(self, num_states: int) -> int:
        """The padded length of sources, from the total number of states of both encoders."""
        return num_states // 2 if self.recurrence_has_words else num_states - self.recurrence_steps

    def validate_architecture(self):
        """Part of the validation at construction and on save, as in the base class."""
        for field, allowed in RECURRENCE_CHOICES.items():
            if getattr(self, field) not in allowed:
                raise ValueError(f"{field}={getattr(self, field)!r} is unknown: choose one of {', '.join(allowed)}.")
        if self.recurrence_layers < 1:
            raise ValueError(f"recurrence_layers={self.recurrence_layers} must be at least 1.")
        if self.recurrence_steps is not None and self.recurrence_steps < 1:
            raise ValueError(
                f"recurrence_steps={self.recurrence_steps} must be at least 1, or None for one per word of the source."
            )
        super().validate_architecture()


__all__ = ["OdeTransformerRecurrenceConfig"]
