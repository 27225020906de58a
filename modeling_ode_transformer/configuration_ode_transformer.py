# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""What an ODE Transformer is: its fields, their validation and the paper's sizes."""

import copy
import math
from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig
from transformers.activations import ACT2FN
from transformers.utils import logging

from .integration_ode_transformer import COEFFICIENTS, ButcherTableau, resolve_tableau


logger = logging.get_logger(__name__)

# What the scheme integrates (figure 4): the sublayers of each part of a block, in order, and whether steps of the
# scheme are made over them; a part that is not integrated is residual. An encoder's block has no cross-attention.
VECTOR_FIELDS: dict[str, tuple[tuple[tuple[str, ...], bool], ...]] = {
    "layer": ((("self_attention", "cross_attention", "feed_forward"), True),),
    "attention": ((("self_attention",), True), (("cross_attention",), False), (("feed_forward",), False)),
    "ffn": ((("self_attention",), False), (("cross_attention",), False), (("feed_forward",), True)),
    "sublayers": ((("self_attention",), True), (("cross_attention",), True), (("feed_forward",), True)),
}

# Sizes of the paper (section 4.2 and table 2), by the names used there; parameter counts are with 34040 shared pieces.
PRESETS: dict[str, dict[str, int]] = {
    "base": {},  # 61M
    "deep": {"encoder_layers": 24},  # 118M
    "big": {  # 211M
        "d_model": 1024,
        "encoder_ffn_dim": 4096,
        "decoder_ffn_dim": 4096,
        "encoder_attention_heads": 16,
        "decoder_attention_heads": 16,
    },
    "small-18": {  # 29M: H=256, L=18
        "d_model": 256,
        "encoder_ffn_dim": 1024,
        "decoder_ffn_dim": 1024,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_layers": 18,
    },
}
PRESETS["small-28"] = {**PRESETS["small-18"], "encoder_layers": 28}  # 37M: H=256, L=28


@strict
class OdeTransformerConfig(PreTrainedConfig):
    r"""
    The configuration of an ODE Transformer (Li et al., ACL 2022). The defaults are the paper's base model with RK2
    blocks and gated coefficients in the encoder: 61M parameters.

    Args:
        vocab_size (`int`, defaults to 34040): Size of the vocabulary; of the encoder's, where the decoder has its own.
        decoder_vocab_size (`int`, *optional*): Size of the decoder's vocabulary; `None`: encoder and decoder have one.
        share_encoder_decoder_embeddings (`bool`, defaults to `True`): Whether encoder and decoder embed with one
            matrix.
        tie_word_embeddings (`bool`, defaults to `True`): Whether the output projection is the decoder's embedding
            matrix.
        d_model (`int`, defaults to 512): Width of the model.
        encoder_layers, decoder_layers (`int`, defaults to 6): Number of blocks in each stack.
        encoder_attention_heads, decoder_attention_heads (`int`, defaults to 8): Attention heads; divisors of
            `d_model`.
        encoder_ffn_dim, decoder_ffn_dim (`int`, defaults to 2048): Inner width of the feed-forward sublayers.
        activation_function (`str`, defaults to `"relu"`): Activation of the feed-forward sublayers, a key of `ACT2FN`.
        layer_norm_eps (`float`, defaults to 1e-5): Epsilon of the layer norms.
        dropout, attention_dropout, activation_dropout (`float`, defaults to 0.1): Probabilities of dropping: of
            embeddings and sublayer outputs, of attention weights, and after the activation function.
        word_dropout (`float`, defaults to 0.0): Probability of zeroing the whole embedding of a token, before
            positions are added and without rescaling.
        max_position_embeddings (`int`, defaults to 1024): Number of learned positions. Sinusoidal ones have no limit.
        position_embedding_type (`str`, defaults to `"sinusoidal"`): `"sinusoidal"` (frequencies
            `10000^(-k/(d/2 - 1))`, as fairseq's and M2M100's), `"sinusoidal_vaswani"` (`10000^(-2k/d)`, of Vaswani et
            al., 2017, as Pegasus's), `"learned"` or `"none"`.
        position_counting (`str`, defaults to `"mask"`): What counts as a position: the tokens of the attention
            `"mask"`, else of the ids; the `"ids"` that are not padding, whatever the mask (as M2M100); or every place,
            padding too (`"absolute"`, as mBART and Pegasus). The first two begin after the padding position,
            `pad_token_id`; the last begins at 0 and has no padding position.
        scale_embedding (`bool`, defaults to `True`): Whether embeddings are multiplied by the square root of
            `d_model`.
        embedding_layer_norm (`bool`, defaults to `False`): Whether a layer norm follows the addition of positions, as
            in mBART.
        lm_head_bias (`bool`, defaults to `False`): Whether the output projection has a bias.
        max_relative_position (`int`, defaults to 8): Clipping distance of the relative positions of both
            self-attentions (Shaw et al., 2018; keys only); 0: none.
        encoder_solver (`str` or `dict`, defaults to `"rk2"`), decoder_solver (`str` or `dict`, defaults to `"euler"`):
            The Runge-Kutta scheme of a stack's blocks: `"euler"`, `"rk2"`, `"midpoint"`, `"ralston"`, `"rk3"`,
            `"rk4"`, `"rk4_38"`, or an explicit tableau `{"a": [[], [1.0]], "b": [0.5, 0.5]}`.
        solver_coefficients (`str`, *optional*): The weights of the stages: `"fixed"` (the tableau's), `"ones"`,
            `"learned"`, `"gate"`, `"sigmoid"`, `"tanh"` or `"ema"`. `None` becomes `"gate"` if all stacks of several
            stages have two, else `"fixed"`. A stack of one stage is always the plain residual one, whatever this says.
        coefficient_sharing (`str`, defaults to `"stack"`): Whether a `"stack"` or each `"layer"` has its coefficients.
        stage_values (`str`, defaults to `"increment"`): `"increment"`: F is the block's increment, as in the paper;
            `"output"`: F is the block's output, input included, as in the code released with it.
        vector_field (`str`, defaults to `"layer"`): What the scheme integrates (figure 4): the whole `"layer"`, only
            the self-`"attention"`, only the `"ffn"`, or each of its `"sublayers"`. What it does not integrate is
            residual.
        steps_per_layer (`int`, defaults to 1): Steps of the scheme in each block.
        step_size (`float`, defaults to 1.0): Size of a step.
        layer_history (`str`, defaults to `"learned_dense"`): What a block sees of the blocks below: a learned
            combination of all (`"learned_dense"`, DLCL of Wang et al., 2019), their mean (`"dense"`), or the last
            (`"none"`).
        use_cache (`bool`, defaults to `True`): Whether the decoder returns its cache of keys and values.
        bos_token_id, pad_token_id, eos_token_id, decoder_start_token_id (`int`, defaults to 0, 1, 2, 2): Special
            tokens.
        decoder_start_from_labels (`bool`, defaults to `False`): Whether the decoder's input made from labels starts
            with their last token, the language of mBART, in place of `decoder_start_token_id`.

    Raises:
        `StrictDataclassFieldValidationError`: a value of the wrong type.
        `StrictDataclassClassValidationError` or `ValueError`: an unknown name, a number out of range, or a combination
            that is not a model. The message names the value and the choices.

    Example:

    ```python
    >>> from modeling_ode_transformer import OdeTransformerConfig, OdeTransformerForConditionalGeneration

    >>> configuration = OdeTransformerConfig(encoder_solver="rk4", d_model=256, encoder_layers=12)
    >>> model = OdeTransformerForConditionalGeneration(configuration)
    ```"""

    model_type = "ode_transformer"
    keys_to_ignore_at_inference = ["past_key_values"]
    attribute_map = {
        "hidden_size": "d_model",
        "num_attention_heads": "encoder_attention_heads",
        "num_hidden_layers": "encoder_layers",
    }
    # Names inside a stack; a model keeps those that it has.
    base_model_tp_plan = {
        "layers.*.self_attn.q_proj": "colwise",
        "layers.*.self_attn.k_proj": "colwise",
        "layers.*.self_attn.v_proj": "colwise",
        "layers.*.self_attn.out_proj": "rowwise",
        "layers.*.encoder_attn.q_proj": "colwise",
        "layers.*.encoder_attn.k_proj": "colwise",
        "layers.*.encoder_attn.v_proj": "colwise",
        "layers.*.encoder_attn.out_proj": "rowwise",
        "layers.*.self_attn.relative_keys": "replicated_with_grad_allreduce",
        "layers.*.fc1": "colwise",
        "layers.*.fc2": "rowwise",
    }
    base_model_fsdp_plan = {
        "embed_tokens": "free_full_weight",
        "layers.*": "free_full_weight",
        "layernorm_embedding": "keep_full_weight",
        "layer_norm": "keep_full_weight",
    }

    vocab_size: int = 34040
    decoder_vocab_size: int | None = None
    share_encoder_decoder_embeddings: bool = True
    tie_word_embeddings: bool = True
    d_model: int = 512
    encoder_layers: int = 6
    decoder_layers: int = 6
    encoder_attention_heads: int = 8
    decoder_attention_heads: int = 8
    encoder_ffn_dim: int = 2048
    decoder_ffn_dim: int = 2048
    activation_function: str = "relu"
    layer_norm_eps: float | int = 1e-5
    dropout: float | int = 0.1
    attention_dropout: float | int = 0.1
    activation_dropout: float | int = 0.1
    word_dropout: float | int = 0.0
    max_position_embeddings: int = 1024
    position_embedding_type: str = "sinusoidal"
    position_counting: str = "mask"
    scale_embedding: bool = True
    embedding_layer_norm: bool = False
    lm_head_bias: bool = False
    max_relative_position: int = 8
    encoder_solver: str | dict[str, Any] = "rk2"
    decoder_solver: str | dict[str, Any] = "euler"
    solver_coefficients: str | None = None
    coefficient_sharing: str = "stack"
    stage_values: str = "increment"
    vector_field: str = "layer"
    steps_per_layer: int = 1
    step_size: float | int = 1.0
    layer_history: str = "learned_dense"
    is_encoder_decoder: bool = True
    use_cache: bool = True
    bos_token_id: int | None = 0
    pad_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    decoder_start_token_id: int | None = 2
    decoder_start_from_labels: bool = False

    def __post_init__(self, **kwargs):
        if self.decoder_vocab_size == self.vocab_size and self.share_encoder_decoder_embeddings:
            self.decoder_vocab_size = None
        if self.solver_coefficients is None:
            stages = self._stages_to_weigh().values()
            self.solver_coefficients = "gate" if stages and set(stages) == {2} else "fixed"
        super().__post_init__(**kwargs)

    @classmethod
    def from_preset(cls, name: str, **kwargs) -> "OdeTransformerConfig":
        """The configuration of one of the paper's sizes (a key of `PRESETS`), with `kwargs` in place of its values.

        Raises:
            ValueError: there is no preset of that name.
        """
        if name not in PRESETS:
            raise ValueError(f"Unknown preset {name!r}: choose one of {', '.join(PRESETS)}.")
        return cls(**{**PRESETS[name], **kwargs})

    @property
    def encoder_tableau(self) -> ButcherTableau:
        return resolve_tableau(self.encoder_solver)

    @property
    def decoder_tableau(self) -> ButcherTableau:
        return resolve_tableau(self.decoder_solver)

    @property
    def decoder_attention_evaluations(self) -> int:
        """How often a block of the decoder evaluates its self-attention, each time with other keys and values."""
        parts = VECTOR_FIELDS[self.vector_field]
        is_integrated = next(integrated for names, integrated in parts if "self_attention" in names)
        return self.decoder_tableau.num_stages * self.steps_per_layer if is_integrated else 1

    def _stages_to_weigh(self) -> dict[str, int]:
        """The number of stages of each solver that has more than one, by the solver's field."""
        tableaus = {"encoder_solver": self.encoder_tableau, "decoder_solver": self.decoder_tableau}
        return {field: tableau.num_stages for field, tableau in tableaus.items() if tableau.num_stages > 1}

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> "OdeTransformerConfig":
        """The configuration itself, or for `decoder=True` a copy whose generic names describe the decoder: caches are
        sized from it, and hold an entry for each evaluation of a self-attention."""
        if not decoder or encoder:
            return self
        config = copy.deepcopy(self)
        config.num_hidden_layers = self.decoder_layers * self.decoder_attention_evaluations
        config.num_attention_heads = self.decoder_attention_heads
        config.vocab_size = self.decoder_vocab_size or self.vocab_size
        return config

    def validate_architecture(self):
        """Part of the validation at construction and on save: names, ranges, and what has to fit together."""
        choices = {
            "activation_function": tuple(ACT2FN),
            "position_embedding_type": ("sinusoidal", "sinusoidal_vaswani", "learned", "none"),
            "position_counting": ("mask", "ids", "absolute"),
            "solver_coefficients": tuple(COEFFICIENTS),
            "coefficient_sharing": ("stack", "layer"),
            "stage_values": ("increment", "output"),
            "vector_field": tuple(VECTOR_FIELDS),
            "layer_history": ("learned_dense", "dense", "none"),
        }
        for field, allowed in choices.items():
            if getattr(self, field) not in allowed:
                raise ValueError(f"{field}={getattr(self, field)!r} is unknown: choose one of {', '.join(allowed)}.")

        positive = ("vocab_size", "d_model", "max_position_embeddings", "steps_per_layer")
        positive += tuple(
            f"{stack}_{size}" for stack in ("encoder", "decoder") for size in ("layers", "attention_heads", "ffn_dim")
        )
        for field in positive:
            if getattr(self, field) < 1:
                raise ValueError(f"{field}={getattr(self, field)} must be at least 1.")
        if self.max_relative_position < 0:
            raise ValueError(
                f"max_relative_position={self.max_relative_position} must not be negative; 0 means no such positions."
            )
        for field in ("step_size", "layer_norm_eps"):
            value = getattr(self, field)
            if not math.isfinite(value) or value <= 0:
                raise ValueError(f"{field}={value} must be a positive number.")
        for field in ("dropout", "attention_dropout", "activation_dropout", "word_dropout"):
            if not 0 <= getattr(self, field) < 1:
                raise ValueError(f"{field}={getattr(self, field)} must be a probability, at least 0 and less than 1.")

        for field in ("encoder_attention_heads", "decoder_attention_heads"):
            if self.d_model % getattr(self, field):
                raise ValueError(
                    f"d_model={self.d_model} is not a multiple of {field}={getattr(self, field)}: change one of them."
                )
        if self.decoder_vocab_size is not None:
            if self.decoder_vocab_size < 1:
                raise ValueError(f"decoder_vocab_size={self.decoder_vocab_size} must be at least 1, or None.")
            if self.share_encoder_decoder_embeddings and self.decoder_vocab_size != self.vocab_size:
                raise ValueError(
                    f"decoder_vocab_size={self.decoder_vocab_size} differs from vocab_size={self.vocab_size}, so that "
                    "the embeddings cannot be shared: set share_encoder_decoder_embeddings=False."
                )
        if self.position_embedding_type == "sinusoidal" and self.d_model < 4:
            raise ValueError(f"d_model={self.d_model} is too small for sinusoidal positions, which need at least 4.")

        self._validate_coefficients()
        super().validate_architecture()

    def _validate_coefficients(self):
        stages = self._stages_to_weigh()
        if self.solver_coefficients == "gate":
            for field in stages or ("encoder_solver", "decoder_solver"):
                if stages.get(field, 1) != 2:
                    raise ValueError(
                        f"solver_coefficients='gate' weighs two stages with g and 1 - g, but {field}="
                        f"{getattr(self, field)!r} has {stages.get(field, 1)}: choose a solver of two stages (rk2, "
                        "midpoint, ralston), or other coefficients (fixed, ones, learned, sigmoid, tanh, ema)."
                    )
        elif self.solver_coefficients not in ("fixed", "ones") and not stages:
            logger.warning(
                f"solver_coefficients={self.solver_coefficients!r} has no effect: "
                f"encoder_solver={self.encoder_solver!r} and decoder_solver={self.decoder_solver!r} have one stage."
            )
        for field, tableau in (("encoder_solver", self.encoder_tableau), ("decoder_solver", self.decoder_tableau)):
            if (self.solver_coefficients == "fixed" or tableau.num_stages == 1) and not tableau.is_consistent:
                raise ValueError(
                    f"The weights of {field}={getattr(self, field)!r} sum to {sum(tableau.b):g}, and fixed "
                    "coefficients have to sum to 1: correct `b`, or choose other solver_coefficients, as 'learned'."
                )


__all__ = ["OdeTransformerConfig"]
