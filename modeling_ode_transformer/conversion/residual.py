# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Converts pre-norm encoder-decoders of transformers to ODE Transformers that compute the same function, and Euler
models to M2M100.

A family is an entry of `FAMILIES`. All name their parameters like M2M100; `Family` holds their differences.
"""

import copy
import os
from dataclasses import dataclass
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    M2M100Config,
    M2M100ForConditionalGeneration,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.utils import logging

from ..configuration_ode_transformer import OdeTransformerConfig, OdeTransformerDecoderConfig
from ..integration_ode_transformer import MultistepScheme, StageCoefficients, resolve_scheme
from ..modeling_ode_transformer import OdeTransformerForConditionalGeneration


logger = logging.get_logger(__name__)


@dataclass(frozen=True)
class Family:
    """The differences between families of pre-norm models.

    Args:
        fields: the configuration values that all models of the family share.
        unused_positions: the number of vectors before that of the first position in a table of learned positions.
        has_position_table: whether positions are parameters, learned or not.
        has_logits_bias: whether there is a `final_logits_bias`.
    """

    fields: dict[str, Any]
    unused_positions: int = 0
    has_position_table: bool = True
    has_logits_bias: bool = True


# What most families share.
COMMON = {"position_counting": "absolute", "embedding_layer_norm": False, "decoder_start_from_labels": False}
FAMILIES: dict[str, Family] = {
    "m2m_100": Family(  # NLLB too
        COMMON | {"position_embedding_type": "sinusoidal", "position_counting": "ids"},
        has_position_table=False,
        has_logits_bias=False,
    ),
    "mbart": Family(  # mBART-50 too
        {"position_embedding_type": "learned", "position_counting": "absolute"}
        | {"embedding_layer_norm": True, "decoder_start_from_labels": True},
        unused_positions=2,
    ),
    "pegasus": Family(COMMON | {"position_embedding_type": "sinusoidal_vaswani"}),
    "blenderbot": Family(COMMON | {"position_embedding_type": "learned"}),
}

# Fields with the same name and meaning in all families and here.
SAME_FIELDS = (
    "vocab_size",
    "d_model",
    "encoder_layers",
    "decoder_layers",
    "encoder_attention_heads",
    "decoder_attention_heads",
    "encoder_ffn_dim",
    "decoder_ffn_dim",
    "max_position_embeddings",
    "activation_function",
    "scale_embedding",
    "bos_token_id",
    "pad_token_id",
    "eos_token_id",
    "decoder_start_token_id",
)
# The same, but changeable: they do not affect what a trained model computes.
FREE_FIELDS = ("dropout", "attention_dropout", "activation_dropout", "use_cache")
# Values that all families share.
PLAIN_FIELDS = {
    "is_encoder_decoder": True,
    "decoder_vocab_size": None,
    "layer_norm_eps": 1e-5,
    "max_relative_position": 0,
    "layer_history": "none",
}
# Fields that do not change the function of a converted model at its start.
HARMLESS_FIELDS = {*FREE_FIELDS, "decoder_solver", "coefficient_sharing", "vector_field", "word_dropout"}
# Fields that do not change the function of an Euler model.
IDLE_FIELDS = {"encoder_coefficients", "decoder_coefficients", "coefficient_sharing", "coefficient_start"}
IDLE_FIELDS |= {"stage_values", "normalize_stages", "vector_field", "word_dropout", "decoder_start_from_labels"}


def from_residual(
    model_or_path: PreTrainedModel | str,
    encoder_solver: str | dict[str, Any] = "rk2",
    coefficients: str = "learned",
    **kwargs,
) -> OdeTransformerForConditionalGeneration:
    """Makes an ODE Transformer with the weights of a pre-norm encoder-decoder of transformers: M2M100 and NLLB, mBART
    and mBART-50, Pegasus, Blenderbot.

    Learned coefficients start at Euler's (1, 0, ...): the model computes the original's function, up to rounding in
    its dtype. Training then puts the later stages to use. With other coefficients it starts at another function, which
    a warning says. Token ids stay the same, so the model takes the original's tokenizer: save it beside the model.

    Args:
        model_or_path: the model, whose parameters are copied; or its folder or name on the Hub, from which
            `AutoModelForSeq2SeqLM` loads it.
        encoder_solver: the scheme of the encoder, as in the configuration.
        coefficients: the kind of stage weights, by the configuration's names, for every stack with several stages.
        kwargs: other fields of the configuration: `decoder_solver` (defaults to `"euler"`), `coefficient_sharing`,
            `vector_field`, `dropout`, ... Not those that come with the weights.

    Returns:
        The model in evaluation mode, with the dtype, device, attention implementation and generation configuration of
        the original. Two things differ from the original: layers are not dropped in training, and a decoder without
        input makes none from the encoder's, as mBART's does. Embeddings given in place of ids must be scaled already,
        in Pegasus's decoder too.

    Raises:
        ValueError: the family is post-norm or otherwise not a stack of Euler steps, which is found before weights are
            loaded; the model has parameters that its family does not have; or a keyword is not a field of the
            configuration. The message names it.
    """
    source: Any = model_or_path
    is_path = isinstance(source, (str, os.PathLike))
    source_config = AutoConfig.from_pretrained(source) if is_path else source.config
    family = find_family(source_config)
    model = AutoModelForSeq2SeqLM.from_pretrained(source) if is_path else source
    changes = {field: value for field, value in kwargs.items() if field not in HARMLESS_FIELDS}
    if changes := changes | ({} if coefficients == "learned" else {"coefficients": coefficients}):
        logger.warning(
            f"With {', '.join(f'{field}={value!r}' for field, value in changes.items())} the converted model may "
            "compute another function than the original: train it before use."
        )
    state, fields = read_weights(model, family)
    fields |= {field: getattr(source_config, field, None) for field in (*SAME_FIELDS, *FREE_FIELDS)}
    fields |= PLAIN_FIELDS | {"decoder_solver": "euler", "encoder_solver": encoder_solver} | kwargs
    return build(OdeTransformerForConditionalGeneration, make_configuration(fields, coefficients), state, model)


def find_family(config: PreTrainedConfig) -> Family:
    """Returns the entry of a configuration's family.

    Raises:
        ValueError: the family is unknown, or its models are not pre-norm encoder-decoders.
    """
    if config.model_type not in FAMILIES:
        raise ValueError(
            f"A model of the type {config.model_type!r} cannot become an ODE Transformer: its layers must be Euler "
            "steps y + F(y), with layer norms in F (pre-norm), full attention and one feed-forward network. The "
            f"families that can are {', '.join(FAMILIES)}."
        )
    return FAMILIES[config.model_type]


def read_weights(model: PreTrainedModel, family: Family) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Returns a model's parameters by their names here, and the fields that they and the family determine."""
    state = dict(model.state_dict())
    fields = dict(family.fields)

    encoder, decoder, head = model.model.encoder.embed_tokens, model.model.decoder.embed_tokens, model.lm_head
    fields["share_encoder_decoder_embeddings"] = encoder.weight is decoder.weight
    fields["tie_word_embeddings"] = head.weight is decoder.weight
    if not fields["share_encoder_decoder_embeddings"]:
        del state["model.shared.weight"]  # which nothing in the model reads

    bias = state.pop("final_logits_bias") if family.has_logits_bias else torch.zeros(1)
    fields["lm_head_bias"] = bool(bias.any())
    if fields["lm_head_bias"]:
        state["lm_head.bias"] = bias.squeeze(0)

    if family.has_position_table:
        for name in (f"model.{stack}.embed_positions.weight" for stack in ("encoder", "decoder")):
            table = state.pop(name)
            if fields["position_embedding_type"] == "learned":
                state[name] = table[family.unused_positions :]
    return state, fields


def make_configuration(fields: dict[str, Any], coefficients: str) -> OdeTransformerConfig:
    """The configuration with these coefficients for each stack of several stages, unless `fields` has others. Learned
    ones start at Euler's by default."""
    schemes = {stack: resolve_scheme(fields[f"{stack}_solver"]) for stack in ("encoder", "decoder")}
    stacks = [stack for stack, scheme in schemes.items() if scheme.tableau.num_stages > 1]
    fields = {f"{stack}_coefficients": coefficients for stack in stacks} | fields
    if "learned" in (fields[f"{stack}_coefficients"] for stack in stacks):
        fields = {"coefficient_start": "euler"} | fields
    pad = fields["pad_token_id"]
    return OdeTransformerConfig(**{"padding_position": 1 if pad is None else pad} | fields)


def build(
    model_class: type[PreTrainedModel],
    config: PreTrainedConfig,
    state: dict[str, torch.Tensor],
    source: PreTrainedModel,
) -> PreTrainedModel:
    """Makes a model with these parameters in evaluation mode. Dtype, device, attention and generation configuration
    are those of `source`.

    Raises:
        ValueError: the model lacks a parameter, or `state` has one that the model does not have.
    """
    model: Any = model_class._from_config(
        config, dtype=source.dtype, attn_implementation=source.config._attn_implementation
    )
    missing, unexpected = model.load_state_dict(state, strict=False)
    # The solvers' own parameters start as in a new model.
    new = [name for name, module in model.named_modules() if isinstance(module, (StageCoefficients, MultistepScheme))]
    new = tuple(f"{name}." for name in [*new, "model.encoder.stage_norms", "model.decoder.stage_norms"])
    missing = {name for name in missing if not name.startswith(new) and name not in model.all_tied_weights_keys}
    for problem, names in (("lacks", missing), ("has what its family does not have,", unexpected)):
        if names:
            raise ValueError(f"The {type(source).__name__} {problem} {', '.join(sorted(names))}.")
    model.generation_config = copy.deepcopy(source.generation_config)
    return model.to(source.device).eval()


def to_residual(model: OdeTransformerForConditionalGeneration) -> M2M100ForConditionalGeneration:
    """Makes the M2M100 that computes the same function as a model of Euler steps, a copy in evaluation mode.

    M2M100 counts tokens by the ids: logits are equal if the mask agrees with them.

    Raises:
        ValueError: a residual model cannot express some fields; the message names them, their values, and those that
            it can express.
    """
    config = model.config
    if config.model_type != OdeTransformerConfig.model_type:
        raise ValueError(f"A model of the type {config.model_type!r} has parts that a residual model does not have.")
    same = {field: getattr(config, field) for field in (*SAME_FIELDS, *FREE_FIELDS, "tie_word_embeddings")}
    required = {"encoder_solver": "euler", "decoder_solver": "euler", "padding_position": config.pad_token_id}
    required |= FAMILIES["m2m_100"].fields | PLAIN_FIELDS
    required |= {"share_encoder_decoder_embeddings": config.tie_word_embeddings}
    if config.position_counting == "mask":
        required["position_counting"] = "mask"
    names = {*OdeTransformerDecoderConfig.__annotations__, *OdeTransformerConfig.__annotations__} - {"stacks"}
    problems = []
    for field in sorted(names - same.keys() - IDLE_FIELDS):
        value, expected = getattr(config, field), required.get(field, getattr(OdeTransformerConfig, field))
        if value != expected:
            problems.append(f"{field}={value!r} would have to be {expected!r}")
    if config.vector_field.startswith("macaron"):
        problems.append(f"vector_field={config.vector_field!r} would have to be 'layer'")
    if problems:
        raise ValueError(f"The model cannot be written as a residual one (M2M100): {'; '.join(problems)}.")
    state = {name: tensor for name, tensor in model.state_dict().items() if ".stage_norms." not in name}
    if not config.share_encoder_decoder_embeddings:
        state["model.shared.weight"] = state["model.encoder.embed_tokens.weight"]  # which nothing reads
    target = M2M100Config(**same, encoder_layerdrop=0.0, decoder_layerdrop=0.0)
    return build(M2M100ForConditionalGeneration, target, state, model)
