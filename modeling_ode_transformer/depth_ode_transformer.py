# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Any pre-norm model of transformers as a Runge-Kutta model: the classes, which travel with a saved model.

A layer of transformers maps a state y to `layer(y)`, so that `F(z) = layer(z) - z` is its increment, whatever is
inside (eq. 1). A subclass of the layer's class evaluates it once for each stage. Names of parameters stay as they are.

The classes are made when they are asked for: `OdeLlamaConfig` and `OdeLlamaForCausalLM` of this module are subclasses
of `LlamaConfig` and `LlamaForCausalLM`, and `LlamaDecoderLayer` of this module is one of the layer's class.
"""

import copy
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import torch
import transformers
from torch import nn
from torch.utils._pytree import tree_map
from transformers import PreTrainedConfig, PreTrainedModel
from transformers import initialization as init
from transformers.cache_utils import Cache, CacheLayerMixin, EncoderDecoderCache
from transformers.conversion_mapping import get_checkpoint_conversion_mapping, register_checkpoint_conversion_mapping
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import logging

from .integration_ode_transformer import (
    COEFFICIENTS,
    LayerHistory,
    LearnedDenseLayerHistory,
    Scheme,
    StageCoefficients,
    StageGate,
    as_data,
    clamp_half,
    resolve_scheme,
    weighted_sum,
)
from .schemes_ode_transformer import CorrectorHistory


logger = logging.get_logger(__name__)

# A plain class reads a folder of another model type with no more than a warning, and would compute Euler steps. This
# text in the place of the kind of attention makes it fail with the text.
PLAIN_MESSAGE = (
    "the layers of this model are Runge-Kutta steps: import modeling_ode_transformer, or give "
    "trust_remote_code=True, and open it with an Auto class"
)
# The names under which layers get a cache or a recurrent state.
CACHE_NAMES = ("cache", "cache_params", "layer_past", "past_key_value", "past_key_values", "shared_kv_states", "state")
LAYERS = re.compile(r"(-?\d+)?:(-?\d+)?(?::(-?\d+))?")


@dataclass
class DepthOptions:
    """How the layers of a model are integrated; a saved configuration has them in its field `ode`.

    Args:
        solver: the scheme: a name such as "rk2", "rk4", "euler", "pcformer" or "iiet", a tableau, or another one-step
            scheme that `resolve_scheme` knows.
        coefficients: the weights of the stages: "fixed", "ones", "learned", "gate", "sigmoid", "tanh", "ema", ...
        start: where free weights start: "euler", at the original layer (once for each step); "tableau", "ones", "even"
            or "random". None: "tableau", and for gates and "ema" their own start.
        coefficient_sharing: whether each "layer" has its weights, or a "stack" has one set.
        stage_values: whether a stage is the "increment" `F(z)` or the "output" `z + F(z)` (PCformer).
        normalize_stages: False, or "released": stages have layer norms, which the layers of a stack share, and later
            stages start from normalized ones, as in PCformer's released code.
        steps_per_layer: how many steps each layer makes.
        layers: the layers to integrate, as in a slice ("1:-1"), or their indices.
        stack: the stacks of layers to integrate, by the end of their names, such as "encoder.layers"; None: all.

    Raises:
        ValueError: an unknown or contradictory value.
    """

    solver: Any = "rk2"
    coefficients: str = "learned"
    start: str | None = None
    coefficient_sharing: str = "layer"
    stage_values: str = "increment"
    normalize_stages: bool | str = False
    steps_per_layer: int = 1
    layers: Any = ":"
    stack: Any = None

    def __post_init__(self):
        self.solver, layers = as_data(self.solver), self.layers
        if isinstance(layers, slice):
            ends = (layers.start, layers.stop, layers.step)
            self.layers = ":".join("" if end is None else str(end) for end in ends).removesuffix(":")
        elif not isinstance(layers, str):
            self.layers = list(layers) if isinstance(layers, Sequence) else [layers]
        is_slice = isinstance(self.layers, str) and LAYERS.fullmatch(self.layers)
        if not is_slice and (isinstance(layers, str) or not all(isinstance(layer, int) for layer in self.layers)):
            raise ValueError(f"layers={layers!r}: give a slice such as '1:-1', or a list of indices.")
        if self.stack is not None:
            self.stack = [self.stack] if isinstance(self.stack, str) else list(self.stack)
        choices = {
            "coefficients": COEFFICIENTS,
            "coefficient_sharing": ("layer", "stack"),
            "stage_values": ("increment", "output"),
            "normalize_stages": (False, "released"),
        }
        for name, values in choices.items():
            if getattr(self, name) not in values:
                raise ValueError(f"{name}={getattr(self, name)!r}: choose one of {', '.join(map(str, values))}.")
        if not isinstance(self.steps_per_layer, int) or self.steps_per_layer < 1:
            raise ValueError(f"steps_per_layer={self.steps_per_layer!r} must be an integer of at least 1.")
        weights = COEFFICIENTS[self.coefficients]
        if self.start is not None and self.start not in weights.starts:
            known = ", ".join(weights.starts) or "none, since nothing is free"
            raise ValueError(f"start={self.start!r} is not a start of {self.coefficients!r} coefficients ({known}).")
        tableau = self.scheme.tableau
        defaults = {field.name: field.default for field in fields(self)}
        if weights.num_stages not in (None, tableau.num_stages):
            raise ValueError(
                f"coefficients={self.coefficients!r} needs a scheme of {weights.num_stages} stages, not "
                f"{tableau.num_stages} (solver={self.solver!r})."
            )
        names = ("coefficients", "coefficient_sharing", "start", "stage_values", "normalize_stages")
        idle = [name for name in names if getattr(self, name) not in (defaults[name], "fixed")]
        if tableau.num_stages == 1 and idle:
            raise ValueError(f"solver={self.solver!r} has one stage: {' and '.join(idle)} would do nothing.")
        if self.start == "euler" and (self.stage_values == "output" or self.normalize_stages):
            raise ValueError("start='euler' needs stages that are increments without norms: leave start out.")
        if self.scheme.multistep is not None:
            raise ValueError(f"solver={self.solver!r} needs the steps before: choose a Runge-Kutta scheme.")
        if self.scheme.corrector_iterations and (self.layers != ":" or self.steps_per_layer > 1):
            raise ValueError(
                f"solver={self.solver!r} corrects over all layers of a stack: leave layers and steps_per_layer out."
            )

    @cached_property
    def scheme(self) -> Scheme:
        return resolve_scheme(self.solver)

    @property
    def evaluations(self) -> int:
        """How often a layer is evaluated."""
        return self.scheme.tableau.num_stages * self.steps_per_layer + self.scheme.corrector_iterations

    def indices(self, num_layers: int) -> list[int]:
        """The layers to integrate.

        Raises:
            ValueError: there are none, or no such ones.
        """
        if isinstance(self.layers, str):
            numbers = [int(number) if number else None for number in self.layers.split(":")]
            found = list(range(num_layers))[slice(*numbers)]
        else:
            found = sorted({layer + num_layers if layer < 0 else layer for layer in self.layers})
        if not found or not 0 <= found[0] <= found[-1] < num_layers:
            raise ValueError(f"layers={self.layers!r} of a stack of {num_layers} layers: name some that it has.")
        return found

    def make_coefficients(self, hidden_size: int) -> StageCoefficients:
        start = self.start or ("tableau" if "tableau" in COEFFICIENTS[self.coefficients].starts else None)
        return COEFFICIENTS[self.coefficients](self.scheme.tableau, hidden_size, start=start)


class DepthStack(nn.Module):
    """What the layers of a stack share: coefficients, norms of the stages, and a corrector with its history.

    Args:
        options: the options.
        num_layers: the number of layers of the stack.
        hidden_size: the size of the states' last dimension.

    `states` are the history's entries while the model runs. A cache has a slot for each layer, then those of the
    further evaluations, which belong to the layers `extra_slots`.
    """

    def __init__(self, options: DepthOptions, num_layers: int, hidden_size: int):
        super().__init__()
        self.options, self.num_layers = options, num_layers
        self.extra_slots = [idx for idx in options.indices(num_layers) for _ in range(options.evaluations - 1)]
        self.states: tuple[torch.Tensor, ...] = ()
        eps, scheme = 1e-5, options.scheme
        if options.coefficient_sharing == "stack" and scheme.tableau.num_stages > 1:
            self.coefficients = options.make_coefficients(hidden_size)
        if options.normalize_stages:
            norms = (nn.LayerNorm(hidden_size, eps=eps) for _ in range(scheme.tableau.num_stages))
            self.stage_norms = nn.ModuleList(norms)
        if scheme.corrector_iterations:
            self.history = LearnedDenseLayerHistory(num_layers, hidden_size, eps)
            self.corrector = CorrectorHistory(num_layers, hidden_size, eps)

    def slots(self, layer_idx: int) -> list[int]:
        """The slots of a layer's evaluations."""
        return [layer_idx, *(self.num_layers + i for i, idx in enumerate(self.extra_slots) if idx == layer_idx)]

    def reserve(self, cache: Cache, layer_idx: int) -> None:
        """Gives a cache the slots of all evaluations.

        Raises:
            ValueError: the cache is offloaded, or has states of this layer already, but not of these evaluations.
        """
        layers, total = cache.layers, self.num_layers + len(self.extra_slots)
        if len(layers) >= total:
            return
        if cache.offloading:
            raise ValueError("An offloaded cache has no room for the stages of a layer: choose another one.")
        own = layers[layer_idx] if layer_idx < len(layers) else None
        if isinstance(own, CacheLayerMixin) and own.get_seq_length() > 0:
            raise ValueError(
                f"The cache holds the states of {len(layers)} layers, but this model's evaluations need {total}: "
                "another model has filled it, or prefix tuning. Start with a new one."
            )
        if cache.layer_class_to_replicate is not None:
            layers.extend(cache.layer_class_to_replicate() for _ in range(total - len(layers)))
        else:
            layers.extend(copy_of_empty(layers[idx]) for idx in self.extra_slots)


def copy_of_empty(layer: Any) -> Any:
    """Copies a layer of a cache that has no states yet. (Compilers cannot trace `copy.deepcopy`.)"""
    copied = object.__new__(type(layer))
    for name, value in layer.__dict__.items():
        is_tensor = isinstance(value, torch.Tensor)
        setattr(copied, name, value.clone() if is_tensor else dict(value) if isinstance(value, dict) else value)
    return copied


@dataclass
class DepthStates:
    """The history's entries before and after a layer. Not a tuple: accelerate copies tuples among the arguments."""

    before: tuple[torch.Tensor, ...]
    after: tuple[torch.Tensor, ...] = ()


class DepthLayer(nn.Module):
    """A layer whose step is that of a scheme. It comes before the layer's own class."""

    state_name: str  # the name of the first argument
    depth_stack: DepthStack
    depth_idx: int  # the layer's index in its stack
    depth_slots: list[int]  # of its evaluations in a cache
    coefficients: StageCoefficients  # of the layer, if the stack has none

    def __call__(self, *args, **kwargs):
        stack, idx = self.depth_stack, self.depth_idx
        if not stack.options.scheme.corrector_iterations:
            return super().__call__(*args, **kwargs)
        # The history is an argument, so that a layer that is recomputed reads what it read before.
        y = args[0] if args else kwargs[self.state_name]
        states = DepthStates((y,) if idx == 0 else stack.states)
        stack.states = ()  # nothing stays if the layer fails
        if len(states.before) != idx + 1:
            raise RuntimeError(
                f"Layer {idx} finds {len(states.before)} states of the layers below: a corrector needs all "
                "layers (no layer drop), one forward pass at a time (no threads, no DataParallel)."
            )
        result = super().__call__(*args, **kwargs, states=states)
        stack.states = states.after if idx < stack.num_layers - 1 else ()
        return result

    def forward(self, *args, states: DepthStates | None = None, **kwargs):
        layer, slots, name = super().forward, self.depth_slots, self.state_name
        y = args[0] if args else kwargs[name]
        cache_layers, rest = self.cache_layers(args[1:], kwargs), None

        def output(z: torch.Tensor, evaluation: int) -> torch.Tensor:
            """z + F(z). The slot of the evaluation takes the place of the layer's while it runs."""
            nonlocal rest
            here, there = slots[0], slots[evaluation]
            try:
                if cache_layers is not None:
                    cache_layers[here], cache_layers[there] = cache_layers[there], cache_layers[here]
                result = layer(z, *args[1:], **kwargs) if args else layer(**{**kwargs, name: z})
            finally:
                if cache_layers is not None:
                    cache_layers[here], cache_layers[there] = cache_layers[there], cache_layers[here]
            state, *others = (result,) if isinstance(result, torch.Tensor) else result
            if evaluation == 0:
                rest = None if isinstance(result, torch.Tensor) else others
                if state.shape != y.shape:
                    raise ValueError(
                        f"{type(self).__name__} maps states {tuple(y.shape)} to {tuple(state.shape)}: name a stack "
                        "whose layers keep it by stack=, such as 'blocks' of Swin."
                    )
            return state

        next_y = self.integrate(output, y)
        if states is not None:
            next_y = self.correct(output, y, next_y, states)
        return next_y if rest is None else (next_y, *rest)

    def cache_layers(self, args: tuple, kwargs: dict[str, Any]) -> list | None:
        """The layers of the cache among a layer's arguments; None if there is no cache."""
        for name in CACHE_NAMES:
            if kwargs.get(name) is not None and not isinstance(kwargs[name], Cache):
                raise TypeError(
                    f"{type(self).__name__} keeps its state in {name}, a {type(kwargs[name]).__name__}, which has no "
                    "room for the stages of a step: only layers with a Cache can be integrated."
                )
        for value in (*args, *kwargs.values()):
            if isinstance(value, Cache):
                cache = value.self_attention_cache if isinstance(value, EncoderDecoderCache) else value
                self.depth_stack.reserve(cache, self.depth_idx)
                return cache.layers
        return None

    def integrate(self, output: Callable[[torch.Tensor, int], torch.Tensor], y: torch.Tensor) -> torch.Tensor:
        """The steps of the scheme. `y + sum_i b_i F_i` is computed as `layer(y) + (b_1 - 1) F_1 + sum_{i > 1} b_i
        F_i`: with Euler's weights it is the original layer's output, to the bit."""
        options, stack = self.depth_stack.options, self.depth_stack
        tableau, norms = options.scheme.tableau, getattr(stack, "stage_norms", None)
        coefficients = None
        if tableau.num_stages > 1:
            coefficients = stack.coefficients if options.coefficient_sharing == "stack" else self.coefficients
        starts_from_output = options.stage_values == "increment" and norms is None
        for step in range(options.steps_per_layer):
            stages: list[torch.Tensor] = []
            for i, (share, row) in enumerate(zip(tableau.y, tableau.a)):
                z = clamp_half(weighted_sum(y if share == 1.0 else share * y, row, stages).to(y.dtype))
                state = output(z, step * tableau.num_stages + i)
                stage = state if options.stage_values == "output" else state - z
                stages.append(stage if norms is None else norms[i](stage))
                if i == 0:
                    first = state
            weights = tableau.b if coefficients is None else coefficients(stages)
            if starts_from_output:
                y, weights = first, (weights[0] - 1, *weights[1:])
            y = weighted_sum(y, weights, stages).to(first.dtype)
        return clamp_half(y)

    def correct(
        self, output: Callable, y: torch.Tensor, prediction: torch.Tensor, states: DepthStates
    ) -> torch.Tensor:
        """The next layer's input, after the corrections of PCformer and IIET."""
        stack, number, before = self.depth_stack, len(self.depth_slots), list(states.before)
        evaluations = range(number - stack.options.scheme.corrector_iterations, number)
        corrected = stack.corrector.correct(evaluations, stack.history, before, output, y, prediction)
        states.after = tuple(stack.history.extend(before, y, corrected))
        return stack.history(list(states.after)).to(y.device)


class DepthConfig:
    """A configuration with the field `ode`, the arguments of `DepthOptions`. It comes before the plain class."""

    # The Auto classes of its models, and the names of these.
    auto_classes: dict[str, str] = {}

    @classmethod
    def from_dict(cls, config_dict, **kwargs):
        fields = {name: value for name, value in config_dict.items() if value != PLAIN_MESSAGE}
        return super().from_dict(fields, **kwargs)

    def to_diff_dict(self):
        fields = super().to_diff_dict()
        auto_map = {**self.auto_classes, **fields.get("auto_map", {})}
        return {**fields, "auto_map": auto_map, "attn_implementation": PLAIN_MESSAGE}


class DepthModel:
    """A model whose layers are integrated. It comes before the plain class."""

    def __init__(self, config, *args, **kwargs):
        super().__init__(config, *args, **kwargs)
        # Heads such as those for classification open their backbone by an Auto class.
        if not any(isinstance(module, DepthLayer) for module in self.modules()):
            integrate_layers(self, DepthOptions(**(config.ode or {})))

    @classmethod
    def from_pretrained(cls, *args, **kwargs):
        """As in transformers. Raises a ValueError if the layers are post-norm."""
        result = super().from_pretrained(*args, **kwargs)
        check_pre_norm(result[0] if isinstance(result, tuple) else result)
        return result

    def init_continuous_batching(self, *args, **kwargs):
        raise NotImplementedError(
            "Continuous batching (`generate_batch`) has no place for the keys of every evaluation of a layer: call "
            "`generate` with batches."
        )

    @classmethod
    def is_custom_code(cls):
        return False  # it is initialized as transformers' own

    def _get_name(self):
        return type(self).__name__.removeprefix("Ode")  # by which Trainer knows that labels are shifted

    def initialize_weights(self):
        """As in transformers; what this module adds starts as in a new model."""
        super().initialize_weights()
        for module in self.modules():
            if isinstance(module, (StageCoefficients, LayerHistory)) and hasattr(module, "initial_weight"):
                init.copy_(module.weight, module.initial_weight())
            elif isinstance(module, StageGate) and module.initial_bias is not None:
                init.zeros_(module.weight)
                init.copy_(module.bias, torch.tensor(module.initial_bias))
            elif isinstance(module, StageGate):
                init.xavier_uniform_(module.weight)
                init.zeros_(module.bias)


def integrate_layers(model: PreTrainedModel, options: DepthOptions) -> None:
    """Gives a model's layers a scheme: their class, their coefficients, and what they share.

    Raises:
        TypeError: the layers are of a class that is not one of transformers' own.
        ValueError: there is no such stack; or its layers are post-norm (`check_pre_norm`), or integrated already.
    """
    stacks = find_stacks(model, options.stack)
    for name, layers in stacks:
        options.indices(len(layers))
        if any(isinstance(layer, DepthLayer) for layer in layers):
            raise ValueError(f"The layers of {name} are integrated already: start from the original model.")
    check_pre_norm(model, options)
    for name, layers in stacks:
        like = next(parameter for parameter in layers.parameters() if parameter.is_floating_point())
        # The width of the innermost model around the stack.
        around = (each for key, each in model.named_modules() if not key or name.startswith(f"{key}."))
        owner = [each for each in around if isinstance(each, PreTrainedModel)][-1]
        hidden_size = owner.config.get_text_config().hidden_size
        stack = DepthStack(options, len(layers), hidden_size)
        if list(stack.parameters()):
            parent, _, last = name.rpartition(".")
            model.get_submodule(parent).add_module(f"{last}_depth", place(stack, like))
        for idx in options.indices(len(layers)):
            layer = layers[idx]
            layer.__class__ = made(type(layer))
            object.__setattr__(layer, "depth_stack", stack)  # whose parameters are not the layer's
            layer.depth_idx, layer.depth_slots = idx, stack.slots(idx)
            if options.coefficient_sharing == "layer" and options.scheme.tableau.num_stages > 1:
                layer.coefficients = place(options.make_coefficients(hidden_size), like)


def place(module: nn.Module, like: torch.Tensor) -> nn.Module:
    """Moves a module to a tensor's device and dtype; numbers of a scheme stay in float32."""
    module = module.to(like.dtype)
    if not any(parameter.is_meta for parameter in module.parameters()):
        module = module.to(like.device)
    for part in module.modules():
        if isinstance(part, StageCoefficients) and hasattr(part, "weight"):
            part.weight.data = part.weight.data.float()
    return module


def find_stacks(model: PreTrainedModel, names: Sequence[str] | None) -> list[tuple[str, nn.ModuleList]]:
    """The lists of layers whose names end with one of `names`; None: all but those within layers.

    Raises:
        ValueError: there are none.
    """
    lists = {name: module for name, module in model.named_modules() if isinstance(module, nn.ModuleList)}
    stacks = {
        name: layers
        for name, layers in lists.items()
        if len(layers) and all(isinstance(layer, GradientCheckpointingLayer) for layer in layers)
    }
    if names is None:
        chosen = {name: stacks[name] for name in stacks if not any(name.startswith(f"{outer}.") for outer in stacks)}
    else:
        # Within a larger model a list has a longer name, within its base model a shorter one.
        asked = [f".{name.lstrip('.')}" for name in names]
        chosen = {
            name: layers
            for name, layers in lists.items()
            if any(f".{name}".endswith(end) or end.endswith(f".{name}") for end in asked)
        }
    if not chosen:
        raise ValueError(
            f"{type(model).__name__} has no stack of layers{'' if names is None else f' named {names}'} that could be "
            f"integrated: {', '.join(stacks) or 'none of its layers is a GradientCheckpointingLayer'}."
        )
    return list(chosen.items())


class LayerReached(Exception):
    """Ends a forward pass in front of a layer."""


def check_pre_norm(model: PreTrainedModel, options: DepthOptions | None = None) -> None:
    """Measures whether the increments of a stack's middle layer depend on the size of its input. Those of a pre-norm
    layer do not; a post-norm layer maps y to `norm(y + F(y))`, which is no Euler step. What cannot be measured passes:
    a model without weights or of unknown inputs, and layers that the inputs do not reach.

    Raises:
        ValueError: the layers are post-norm.
    """
    options, inputs = options or DepthOptions(**(model.config.ode or {})), probe_inputs(model)
    if inputs is None or any(parameter.is_meta for parameter in model.parameters()):
        return
    for name, layers in find_stacks(model, options.stack):
        indices, change = options.indices(len(layers)), 0.0
        try:
            change = change_of_increment(model, layers[indices[len(indices) // 2]], inputs)
        except Exception as error:
            logger.info("The layers of %s could not be measured: %s", name, error)
        if change > 0.1:
            raise ValueError(
                f"The layers of {name} in {type(model).__name__} are post-norm: their increments depend on the size "
                "of the states. They are not Euler steps, so there is no Runge-Kutta step to make of them. Choose a "
                "model whose layers normalize what they read."
            )


def change_of_increment(model: PreTrainedModel, layer: nn.Module, inputs: dict[str, torch.Tensor]) -> float:
    """How much a layer's increment changes, relative to its size, if its input becomes ten times as large."""
    arguments: list[Any] = []

    def stop(module, args, kwargs):
        arguments.extend((args, kwargs))
        raise LayerReached

    hook, was_training = layer.register_forward_pre_hook(stop, with_kwargs=True), model.training
    try:
        with torch.no_grad():
            model.eval().base_model(**inputs)
    except LayerReached:
        pass
    finally:
        hook.remove()
        model.train(was_training)
    args, kwargs = tree_map(
        lambda x: None if isinstance(x, Cache) else x.double() if torch.is_tensor(x) and x.is_floating_point() else x,
        tuple(arguments),
        is_leaf=lambda x: isinstance(x, Cache),
    )
    kwargs.pop("states", None)
    probe = copy.deepcopy(layer).double().eval()
    if isinstance(probe, DepthLayer):
        probe.__class__ = type(probe).__mro__[2]  # the original layer
    name = state_name(type(probe))
    shape = (args[0] if args else kwargs.pop(name)).shape
    z = torch.randn(shape, dtype=torch.double, generator=torch.Generator().manual_seed(0)).to(model.device)

    def increment(z: torch.Tensor) -> torch.Tensor:
        result = probe(z, *args[1:], **kwargs) if args else probe(**{**kwargs, name: z})
        return (result if isinstance(result, torch.Tensor) else result[0]) - z

    # Where the sublayers' increments are small beside the states: the second one reads those of the first.
    with torch.no_grad():
        small, large = increment(1e3 * z), increment(1e4 * z)
    return ((large - small).norm() / max(large.norm(), small.norm())).item()


def probe_inputs(model: PreTrainedModel) -> dict[str, torch.Tensor] | None:
    """Small inputs of a model by the name of its first one; None if this module knows none."""
    config, device = model.config, model.device
    if model.main_input_name == "input_ids":
        ids = torch.arange(4, device=device).unsqueeze(0) % config.get_text_config().vocab_size
        decoder = {"decoder_input_ids": ids} if config.is_encoder_decoder else {}
        return {"input_ids": ids, **decoder}
    if model.main_input_name == "pixel_values" and hasattr(config, "image_size"):
        size = config.image_size
        sizes = size if isinstance(size, Sequence) else (size, size)
        return {"pixel_values": torch.zeros(1, config.num_channels, *sizes, device=device, dtype=model.dtype)}
    return None


def state_name(layer_class: type[nn.Module]) -> str:
    """The name of the first argument of a layer's `forward`: its input."""
    return list(inspect.signature(layer_class.forward).parameters)[1]


# The classes made so far, by name.
CLASSES: dict[str, type] = {}


def made(base: Any, kind: type = object) -> Any:
    """The class of this module for one of transformers: a configuration, a model or a layer.

    Raises:
        TypeError: the class is not one of transformers' own, or not of the kind.
    """
    if not (base.__module__.startswith("transformers.") and issubclass(base, kind)):
        raise TypeError(
            f"{base.__name__} of {base.__module__} is no {kind.__name__} of transformers: take the original, as "
            "transformers opens it, before its layers are integrated, and before `get_peft_model` and `torch.compile`."
        )
    if issubclass(base, PreTrainedConfig):
        name, mixin = f"Ode{base.__name__}", DepthConfig
        fields = {
            "model_type": f"ode_{base.model_type}",
            "__annotations__": {"ode": dict[str, Any] | None},
            "ode": None,
        }
    elif issubclass(base, PreTrainedModel):
        name, mixin, kept = f"Ode{base.__name__}", DepthModel, base._keep_in_fp32_modules_strict or ()
        fields = {
            "config_class": made(base.config_class, PreTrainedConfig),
            # numbers of a scheme; not gates
            "_keep_in_fp32_modules_strict": {*kept, r"coefficients\.weight"},
        }
    else:
        # The same name, which plans of devices and processes hold.
        name, mixin, fields = base.__name__, DepthLayer, {"state_name": state_name(base)}
    if name not in CLASSES or base not in CLASSES[name].__mro__:
        CLASSES[name] = type(name, (mixin, base), {"__module__": __name__, "__doc__": mixin.__doc__, **fields})
        for plain, own in ((base.__name__, name), (getattr(base, "model_type", ""), fields.get("model_type", ""))):
            if plain != own and (mapping := get_checkpoint_conversion_mapping(plain)):
                register_checkpoint_conversion_mapping(own, mapping, overwrite=True)
    return CLASSES[name]


def __getattr__(name: str) -> Any:
    """The class of this name, as unpickling and `trust_remote_code` ask for it."""
    if name in CLASSES:
        return CLASSES[name]
    plain = name.removeprefix("Ode")
    if plain != name and isinstance(getattr(transformers, plain, None), type):
        return made(getattr(transformers, plain))
    for key, module in list(sys.modules.items()):
        if key.startswith("transformers.models.") and isinstance(vars(module).get(plain), type):
            return made(vars(module)[plain])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
