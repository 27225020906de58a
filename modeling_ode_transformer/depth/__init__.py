# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Any pre-norm model of transformers as a Runge-Kutta model: `wrap` for trained models, `config` for new ones."""

import copy
import logging
from dataclasses import asdict
from typing import Any

from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING
from transformers.utils.output_capturing import _CAN_RECORD_REGISTRY

from ..depth_ode_transformer import DepthLayer, DepthOptions, find_stacks, integrate_layers, made
from ..integration_ode_transformer import COEFFICIENTS


__all__ = ["config", "num_function_evaluations", "wrap"]

logger = logging.getLogger(__name__)


def config(config: PreTrainedConfig, **options: Any) -> PreTrainedConfig:
    """The configuration of a new model with integrated layers.

    Args:
        config: the configuration of a model of transformers.
        options: as in `DepthOptions`: `solver`, `coefficients`, `start`, `layers`, `steps_per_layer`, ...

    Returns:
        A configuration that the Auto classes know, of the type "ode_" + `config.model_type`.

    Raises:
        TypeError: an unknown option, or the configuration is not one of transformers' own.
        ValueError: the value of an option.

    Example:

    ```python
    >>> import modeling_ode_transformer as ode
    >>> from transformers import AutoModelForCausalLM, LlamaConfig

    >>> configuration = ode.depth.config(LlamaConfig(num_hidden_layers=2, hidden_size=64), solver="rk2")
    >>> model = AutoModelForCausalLM.from_config(configuration)
    ```"""
    return integrated(copy.deepcopy(config), options)


def integrated(config: PreTrainedConfig, options: dict[str, Any]) -> PreTrainedConfig:
    """Gives a configuration the class and the field of integrated models."""
    saved, config.__class__ = saved_options(options), config_class(type(config))
    config.ode = saved
    return config


def wrap(model: PreTrainedModel, solver: Any = "rk2", **options: Any) -> PreTrainedModel:
    """Makes the layers of a model steps of a Runge-Kutta method, in place.

    By default, the weights of the stages are learned and start at Euler's, so that the model computes what it did, to
    the bit, until it is trained. With options that have no such start it computes another function, which a warning
    says. The model has no `name_or_path` any more: an adapter that noted it would be opened on the original.

    Args:
        model: a model of transformers with pre-norm layers.
        solver: as in `DepthOptions`.
        options: as in `config`; `start` is "euler" where the coefficients have that start.

    Returns:
        The model, now of the class "Ode" + the name of its class.

    Raises:
        TypeError: an unknown option, or the class is not one of transformers' own, as that of an integrated model.
        ValueError: the value of an option; there is no such stack; its layers are post-norm.
    """
    model_class, options = made(type(model), PreTrainedModel), {"solver": solver, **options}
    given = DepthOptions(**options)
    if given.scheme.tableau.num_stages > 1 and given.stage_values == "increment" and not given.normalize_stages:
        if "euler" in COEFFICIENTS[given.coefficients].starts:
            options.setdefault("start", "euler")
    if options.get("start") != "euler" or given.steps_per_layer > 1 or given.scheme.corrector_iterations:
        logger.warning("With these options the model computes another function than before: train it before use.")
    shared = model.config
    own = integrated(copy.copy(shared), options)  # other models may have it, too
    model.name_or_path = own._name_or_path = ""
    integrate_layers(model, DepthOptions(**options))
    for module in model.modules():
        if getattr(module, "config", None) is shared:
            module.config = own
    model.__class__ = model_class
    model._keep_in_fp32_modules_strict |= model_class._keep_in_fp32_modules_strict
    _CAN_RECORD_REGISTRY[model] = model._can_record_outputs
    return model


def num_function_evaluations(model: PreTrainedModel) -> int:
    """How often one forward pass evaluates the model's layers, for comparisons at equal cost."""
    return sum(len(module.depth_slots) for module in model.modules() if isinstance(module, DepthLayer)) + sum(
        not any(isinstance(module, DepthLayer) for module in layer.modules())
        for _, layers in find_stacks(model, None)
        for layer in layers
    )


def saved_options(options: dict[str, Any]) -> dict[str, Any]:
    """The options in JSON types: the solver, and what differs from the defaults."""
    given, defaults = asdict(DepthOptions(**options)), asdict(DepthOptions())
    return {name: value for name, value in given.items() if name == "solver" or value != defaults[name]}


def config_class(plain: type[PreTrainedConfig]) -> Any:
    """The configuration class for one of transformers'. The Auto classes know it and its models from then on."""
    own = made(plain, PreTrainedConfig)
    if own.model_type not in TYPES.keys():
        AutoConfig.register(own.model_type, own, exist_ok=True)
        own.register_for_auto_class()
        own.auto_classes = {}
        if plain in TOKENIZER_MAPPING:
            TOKENIZER_MAPPING.register(own, TOKENIZER_MAPPING[plain], exist_ok=True)
        for auto_class in AUTO_CLASSES:
            models = auto_class._model_mapping.get(plain, ()) if auto_class._model_mapping is not None else ()
            for model in models if isinstance(models, tuple) else (models,):
                if model.config_class is plain:
                    integrated_model = made(model)
                    auto_class.register(own, integrated_model, exist_ok=True)
                    integrated_model.register_for_auto_class(auto_class.__name__)
                    own.auto_classes[auto_class.__name__] = f"depth_ode_transformer.{integrated_model.__name__}"
    return own


class Types(dict):
    """What the Auto classes look up by model type, extended by the types of this module, such as "ode_llama". Their
    classes are made when they are looked up."""

    def __contains__(self, key):
        plain = str(key).removeprefix("ode_")
        if not super().__contains__(key) and plain != key and plain in CONFIG_MAPPING_NAMES:
            config_class(CONFIG_MAPPING[plain])
        return super().__contains__(key)


AUTO_CLASSES: list[Any] = [
    auto for auto in vars(modeling_auto).values() if isinstance(auto, type) and hasattr(auto, "_model_mapping")
]
TYPES = CONFIG_MAPPING._extra_content = Types(CONFIG_MAPPING._extra_content)
