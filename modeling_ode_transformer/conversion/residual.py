# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Converts pre-norm encoder-decoders of transformers to ODE Transformers that compute the same function, and back.

A family is an entry of `FAMILIES`. All name their parameters like M2M100; `Family` holds their differences.
"""

import copy
import dataclasses
import os
from contextlib import contextmanager
from dataclasses import dataclass
from logging import LogRecord
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForSeq2SeqLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING
from transformers.utils import logging

from ..configuration_ode_transformer import VECTOR_FIELDS, OdeTransformerConfig, OdeTransformerDecoderConfig
from ..integration_ode_transformer import (
    LearnedCoefficients,
    MultistepScheme,
    StageCoefficients,
    resolve_scheme,
)
from ..layers_ode_transformer import SINUSOIDS
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


FAMILIES: dict[str, Family] = {
    "m2m_100": Family(  # NLLB too
        {
            "position_embedding_type": "sinusoidal",
            "position_counting": "ids",
            "embedding_layer_norm": False,
            "decoder_start_from_labels": False,
        },
        has_position_table=False,
        has_logits_bias=False,
    ),
    "mbart": Family(  # mBART-50 too
        {
            "position_embedding_type": "learned",
            "position_counting": "absolute",
            "embedding_layer_norm": True,
            "decoder_start_from_labels": True,
        },
        unused_positions=2,
    ),
    "pegasus": Family(
        {
            "position_embedding_type": "sinusoidal_vaswani",
            "position_counting": "absolute",
            "embedding_layer_norm": False,
            "decoder_start_from_labels": False,
        },
    ),
    "blenderbot": Family(
        {
            "position_embedding_type": "learned",
            "position_counting": "absolute",
            "embedding_layer_norm": False,
            "decoder_start_from_labels": False,
        },
    ),
}

POST_NORM = "its layer norms follow the residual additions (post-norm), so that a layer is not an Euler step y + F(y)"
REFUSED: dict[str, str] = {
    **dict.fromkeys(
        ("bart", "blenderbot-small", "fsmt", "led", "marian", "mvp", "plbart", "prophetnet"),
        POST_NORM,
    ),
    **dict.fromkeys(("bigbird_pegasus", "pegasus_x"), "its attention is sparse"),
    "nllb-moe": "its feed-forward sublayers are mixtures of experts",
    **dict.fromkeys(
        ("t5", "mt5", "umt5", "longt5", "switch_transformers"),
        "its norms do not subtract the mean, and its attention adds relative position biases",
    ),
    "ode_transformer": "it is an ODE Transformer already",
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
LAYERDROP_FIELDS = ("encoder_layerdrop", "decoder_layerdrop")
# Found from the weights.
SHARING_FIELDS = ("share_encoder_decoder_embeddings", "tie_word_embeddings")
DERIVED_FIELDS = {*SAME_FIELDS, *PLAIN_FIELDS, *SHARING_FIELDS, *FAMILIES["m2m_100"].fields}
DERIVED_FIELDS |= {"lm_head_bias", "padding_position"}

# Fields that only this package has. The first do not change an Euler step. The next have these values in an Euler step
# of a scheme of several stages. All others must be at their defaults.
WITHOUT_EFFECT_ON_EULER = {"coefficient_sharing", "vector_field", "word_dropout", "encoder_solver", "decoder_solver"}
# All fields of an encoder-decoder's configuration.
OWN_FIELDS = dict.fromkeys((*OdeTransformerDecoderConfig.__annotations__, *OdeTransformerConfig.__annotations__))
del OWN_FIELDS["stacks"]
EULER_STAGES = {"coefficient_start": "euler", "stage_values": "increment"}
EULER_STAGES |= {"encoder_coefficients": "learned", "decoder_coefficients": "learned"}
# The vector fields of a plain layer; MacaronNet's has more parameters.
PLAIN_VECTOR_FIELDS = [
    name
    for name, parts in VECTOR_FIELDS.items()
    if all("macaron_feed_forward" not in part.sublayers for part in parts)
]


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
        kwargs: other fields of the configuration that do not come with the weights: `decoder_solver` (defaults to
            `"euler"`), `coefficient_sharing`, `vector_field`, `dropout`, ...

    Returns:
        The model in evaluation mode, with the dtype, device, attention implementation and generation configuration of
        the original. Two things differ from the original: layers are not dropped in training (a warning says so if
        they were), and a decoder without input makes none from the encoder's, as mBART's does. Embeddings given in
        place of ids must be scaled already, in Pegasus's decoder too.

    Raises:
        ValueError: the family is post-norm or otherwise not a stack of Euler steps, which is found before weights are
            loaded; the model has no language modeling head, or parameters that its family does not have; or a field
            comes with the weights and cannot be chosen. The message names it.
        TypeError: a keyword is not a field of the configuration, or `model_or_path` is neither a model nor a path.
    """
    if isinstance(model_or_path, PreTrainedModel):
        source_config = model_or_path.config
    elif isinstance(model_or_path, (str, os.PathLike)):
        source_config = AutoConfig.from_pretrained(model_or_path)
    else:
        raise TypeError(
            f"from_residual needs a model of transformers, or its folder or Hub name, not {model_or_path!r}."
        )
    family = find_family(source_config)
    check_fields(kwargs, source_config.model_type)
    model: Any = model_or_path
    if not isinstance(model, PreTrainedModel):
        model = AutoModelForSeq2SeqLM.from_pretrained(model)
    expected_class = MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING[type(source_config)]
    if not isinstance(model, expected_class):
        raise ValueError(f"A {type(model).__name__} cannot be converted: give its {expected_class.__name__}.")
    for field in LAYERDROP_FIELDS:
        if getattr(source_config, field):
            logger.warning(
                f"{field}={getattr(source_config, field)} is left out: an ODE Transformer does not drop layers in "
                "training."
            )

    state, fields = read_weights(model, family)
    fields |= {field: getattr(source_config, field, None) for field in (*SAME_FIELDS, *FREE_FIELDS)}
    fields |= PLAIN_FIELDS | {"decoder_solver": "euler", "encoder_solver": encoder_solver} | kwargs
    config = make_configuration(fields, coefficients)
    warn_of_changes(config)
    if isinstance(model_or_path, PreTrainedModel):
        state = {name: tensor.detach().clone() for name, tensor in state.items()}
    return build(OdeTransformerForConditionalGeneration, config, state, model)


def find_family(config: PreTrainedConfig) -> Family:
    """Returns the entry of a configuration's family.

    Raises:
        ValueError: the family is unknown, or its models are not pre-norm encoder-decoders.
    """
    if config.model_type not in FAMILIES:
        reason = REFUSED.get(config.model_type, "its family is not known here")
        raise ValueError(
            f"A model of the type {config.model_type!r} cannot become an ODE Transformer: {reason}. The families that "
            f"can are {', '.join(FAMILIES)}."
        )
    return FAMILIES[config.model_type]


def check_fields(fields: dict[str, Any], model_type: str):
    """Refuses keywords that are not fields of the configuration, and fields that come with the weights."""
    known = {field.name for field in dataclasses.fields(OdeTransformerConfig)}
    known &= set(OWN_FIELDS)
    for field, value in fields.items():
        if field not in known:
            raise TypeError(f"{field}={value!r} is not a field of OdeTransformerConfig.")
        if field in DERIVED_FIELDS:
            raise ValueError(
                f"{field}={value!r} cannot be chosen: it belongs to the weights of the {model_type} model. Leave it "
                "out."
            )
    for field in ("encoder_solver", "decoder_solver"):
        if field in fields and resolve_scheme(fields[field]).corrector_iterations:
            raise ValueError(
                f"{field}={fields[field]!r} corrects its steps over a layer history, which the {model_type} model "
                "does not have: choose a scheme without a corrector."
            )
    if fields.get("vector_field", "layer") not in PLAIN_VECTOR_FIELDS:
        raise ValueError(
            f"vector_field={fields['vector_field']!r} needs parameters that the {model_type} model does not have: "
            f"choose one of {', '.join(PLAIN_VECTOR_FIELDS)}."
        )


def read_weights(model: PreTrainedModel, family: Family) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Returns a model's parameters by their names here, and the fields that they and the family determine."""
    state = dict(model.state_dict())
    for name, tensor in state.items():
        if tensor.is_meta or not tensor.is_floating_point():
            raise ValueError(
                f"{name} has no values to convert (dtype {tensor.dtype}, device {tensor.device}): load the model "
                "without quantization and without offloading."
            )
    fields = dict(family.fields)

    encoder, decoder, head = model.model.encoder.embed_tokens, model.model.decoder.embed_tokens, model.lm_head
    fields["share_encoder_decoder_embeddings"] = encoder.weight is decoder.weight
    fields["tie_word_embeddings"] = head.weight is decoder.weight
    # Without shared embeddings, nothing in the model reads `shared`.
    del state["model.shared.weight"]
    if fields["share_encoder_decoder_embeddings"]:
        state["model.shared.weight"] = state.pop("model.encoder.embed_tokens.weight")
        del state["model.decoder.embed_tokens.weight"]
    if fields["tie_word_embeddings"]:
        del state["lm_head.weight"]

    bias = state.pop("final_logits_bias") if family.has_logits_bias else torch.zeros(1)
    fields["lm_head_bias"] = bool(bias.any())
    if fields["lm_head_bias"]:
        state["lm_head.bias"] = bias.squeeze(0)

    if family.has_position_table:
        names = [f"model.{stack}.embed_positions.weight" for stack in ("encoder", "decoder")]
        tables = [state.pop(name)[family.unused_positions :] for name in names]
        sinusoids = SINUSOIDS.get(fields["position_embedding_type"])
        if sinusoids is not None and not all(is_table(sinusoids, table) for table in tables):
            logger.warning(
                "The model's position embeddings are not the sinusoids of its family. They are converted with "
                "position_embedding_type='learned'."
            )
            fields["position_embedding_type"] = "learned"
        if fields["position_embedding_type"] == "learned":
            state |= dict(zip(names, tables))
    return state, fields


def is_table(sinusoids: type[nn.Module], table: torch.Tensor) -> bool:
    """Whether a table of positions (length, d) equals a sinusoidal embedding, up to rounding in its dtype."""
    expected = sinusoids(table.shape[1], None)(torch.arange(len(table), device=table.device)).to(table.dtype)
    return torch.allclose(table, expected, rtol=0, atol=torch.finfo(table.dtype).eps)


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


def warn_of_changes(config: OdeTransformerConfig):
    """Warns of fields that make the steps differ from Euler's of size 1 from the start."""
    changes = own_fields(config)
    stacks = stacks_with_stages(config)
    idle = {f"{stack}_coefficients" for stack in ("encoder", "decoder") if stack not in stacks}
    changes |= {field: getattr(config, field) for field in EULER_STAGES if stacks and field not in idle}
    for field in ("encoder_solver", "decoder_solver"):
        solver = getattr(config, field)
        if solver == "leapfrog" or resolve_scheme(solver).tableau.y[0] != 1.0:
            changes[field] = solver
    changes = [f"{field}={value!r}" for field, value in changes.items() if value != EULER_STAGES.get(field)]
    if changes:
        logger.warning(
            f"With {', '.join(changes)} the converted model computes another function than the original: train it "
            "before use. It would start at the original's function with coefficients='learned', "
            "coefficient_start='euler', one step of size 1 and increments as stages."
        )


def stacks_with_stages(config: OdeTransformerConfig) -> list[str]:
    """The stacks whose solver has several stages."""
    return [stack for stack in config.stacks if config.scheme(stack).tableau.num_stages > 1]


def own_fields(config: OdeTransformerConfig) -> dict[str, Any]:
    """The fields, not at their defaults, that keep a model from being residual."""
    others = DERIVED_FIELDS | WITHOUT_EFFECT_ON_EULER | EULER_STAGES.keys() | set(FREE_FIELDS)
    if not stacks_with_stages(config):
        others.add("normalize_stages")
    return {
        field: getattr(config, field)
        for field in OWN_FIELDS
        if field not in others and getattr(config, field) != getattr(OdeTransformerConfig, field)
    }


@contextmanager
def quiet_loading():
    """Keeps `from_pretrained` from showing a progress bar and from reporting missing keys."""
    loading, shows_progress = logging.get_logger("transformers.modeling_utils"), logging.is_progress_bar_enabled()

    def is_error(record: LogRecord) -> bool:
        return record.levelno >= logging.ERROR

    # A filter: where this logger has a level of its own, transformers also reports which layers are not sharded.
    loading.addFilter(is_error)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        loading.removeFilter(is_error)
        if shows_progress:
            logging.enable_progress_bar()


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
    with quiet_loading():
        model, report = model_class.from_pretrained(
            None,
            config=config,
            state_dict=state,
            dtype=source.dtype,
            attn_implementation=source.config._attn_implementation,
            output_loading_info=True,
        )
    # The solvers' own parameters start as in a new model.
    new = [name for name, module in model.named_modules() if isinstance(module, (StageCoefficients, MultistepScheme))]
    new = tuple(f"{name}." for name in [*new, "model.encoder.stage_norms", "model.decoder.stage_norms"])
    missing = {name for name in report["missing_keys"] if not name.startswith(new)}
    for problem, names in (("lacks", missing), ("has what its family does not have,", report["unexpected_keys"])):
        if names:
            raise ValueError(f"The {type(source).__name__} {problem} {', '.join(sorted(names))}.")
    model.name_or_path = model.config.name_or_path = source.name_or_path
    model.generation_config = copy.deepcopy(source.generation_config)
    return model.to(source.device)


def to_residual(model: OdeTransformerForConditionalGeneration) -> PreTrainedModel:
    """Makes the residual model of transformers that computes the same function, a copy in evaluation mode: the reverse
    of `from_residual`.

    The blocks must be Euler steps of size 1, or steps of several stages whose learned coefficients are exactly
    (1, 0, ...). Layer history and relative positions must be off. A model with sinusoidal positions becomes an
    `M2M100ForConditionalGeneration`, which counts tokens by the ids: logits are equal if the mask agrees with them.
    Results of `from_residual` become models of their original family.

    Raises:
        TypeError: `model` is not an `OdeTransformerForConditionalGeneration` of this package.
        ValueError: a residual model cannot express some fields; the message names them and their values.
    """
    if not isinstance(model, OdeTransformerForConditionalGeneration):
        raise TypeError(
            f"to_residual takes an OdeTransformerForConditionalGeneration, not a {type(model).__qualname__} of the "
            f"module {type(model).__module__}."
        )
    config = model.config
    if config.model_type != OdeTransformerConfig.model_type:
        raise ValueError(f"A model of the type {config.model_type!r} has parts that a residual model does not have.")
    model_type = find_model_type(config)
    family = FAMILIES[model_type]
    check_residual(model, model_type)
    if config.word_dropout:
        logger.warning(
            f"word_dropout={config.word_dropout} is left out: {model_type} does not drop words in training."
        )

    state = {
        name: tensor.clone() for name, tensor in model.state_dict().items() if ".solver_coefficients." not in name
    }
    for name in model.all_tied_weights_keys:
        del state[name]
    if not config.share_encoder_decoder_embeddings:
        state["model.shared.weight"] = state["model.encoder.embed_tokens.weight"].clone()  # which nothing reads
    if family.has_logits_bias:
        bias = state.pop("lm_head.bias", torch.zeros(config.vocab_size))
        state["final_logits_bias"] = bias.unsqueeze(0)
    if family.has_position_table:
        for stack in ("encoder", "decoder"):
            positions = torch.arange(config.max_position_embeddings, device=model.device)
            table = getattr(model.model, stack).embed_positions(positions).detach()
            name = f"model.{stack}.embed_positions.weight"
            state[name] = nn.functional.pad(table, (0, 0, family.unused_positions, 0))

    fields = {field: getattr(config, field) for field in (*SAME_FIELDS, *FREE_FIELDS, "tie_word_embeddings")}
    target = AutoConfig.for_model(model_type, **fields, **dict.fromkeys(LAYERDROP_FIELDS, 0.0))
    return build(MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING[type(target)], target, state, model)


def embedding_fields(config: OdeTransformerConfig) -> dict[str, Any]:
    """The fields by which families differ."""
    fields = {field: getattr(config, field) for field in FAMILIES["m2m_100"].fields}
    if fields["position_counting"] == "mask":
        fields["position_counting"] = "ids"  # equal if the mask marks exactly the ids that are not padding
    return fields


def find_model_type(config: OdeTransformerConfig) -> str:
    """The family with the configuration's embeddings; if none has, M2M100, against which differences are named."""
    fields = embedding_fields(config)
    return next((model_type for model_type, family in FAMILIES.items() if family.fields == fields), "m2m_100")


def is_euler(coefficients: LearnedCoefficients) -> bool:
    """Whether the first stage has weight 1 and is evaluated at the state, and all others have weight 0."""
    first, others = coefficients.weight[0], coefficients.weight[1:]
    return bool((first == 1).all() and (others == 0).all()) and coefficients.tableau.y[0] == 1.0


def check_residual(model: PreTrainedModel, model_type: str):
    """Refuses a model that is not an Euler model of the family.

    Raises:
        ValueError: the family cannot express some fields; the message names all of them with their values.
    """
    config, family = model.config, FAMILIES[model_type]
    actual = {field: getattr(config, field) for field in OWN_FIELDS}
    actual |= embedding_fields(config)
    required = {**PLAIN_FIELDS, **family.fields, "share_encoder_decoder_embeddings": config.tie_word_embeddings}
    required |= {field: getattr(OdeTransformerConfig, field) for field in own_fields(config)}
    if not family.has_logits_bias:
        required["lm_head_bias"] = False
    problems = [
        f"{field}={getattr(config, field)!r} would have to be {value!r}"
        for field, value in required.items()
        if actual[field] != value
    ]
    if config.pad_token_id is None:
        problems.append("pad_token_id=None would have to be an id")
    elif config.position_counting != "absolute" and config.padding_position != config.pad_token_id:
        problems.append(f"padding_position={config.padding_position} would have to be {config.pad_token_id}")
    if config.vector_field not in PLAIN_VECTOR_FIELDS:
        problems.append(f"vector_field={config.vector_field!r} would have to be 'layer'")
    for stack in ("encoder", "decoder"):
        solver = getattr(config, f"{stack}_solver")
        if config.scheme(stack).multistep is not None:
            problems.append(f"{stack}_solver={solver!r} is a multistep scheme")
        all_coefficients = [m for m in getattr(model.model, stack).modules() if isinstance(m, StageCoefficients)]
        if config.scheme(stack).tableau.num_stages > 1 and config.stage_values != EULER_STAGES["stage_values"]:
            problem = f"stage_values={config.stage_values!r}"
            problems.append(f"{stack}_solver={solver!r} with {problem} is not an Euler step")
        for coefficients in all_coefficients:
            if not isinstance(coefficients, LearnedCoefficients):
                problem = f"{stack}_coefficients={getattr(config, f'{stack}_coefficients')!r}"
            elif not is_euler(coefficients):
                problem = f"the learned coefficients {coefficients.weight.tolist()}"
            else:
                continue
            problems.append(f"{stack}_solver={solver!r} with {problem} is not an Euler step")
            break
    if problems:
        raise ValueError(f"The model cannot be written as a residual one ({model_type}): {'; '.join(problems)}.")
