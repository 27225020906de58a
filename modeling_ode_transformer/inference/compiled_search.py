# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Beam searches with compiled parts: `generate(num_beams=N, cache_implementation="static")`.

`BeamSearch` runs its steps with `CompiledSteps` from here in the place of `EagerSteps`. The encoder is compiled, too,
and on GPUs the first step.
"""

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._dynamo.exc import FailOnRecompileLimitHit
from transformers.generation import CompileConfig, GenerationConfig, GenerationMixin
from transformers.utils import ModelOutput, logging

from ..generation_ode_transformer import option, position_limit
from .beam_search import BeamSearch, EagerSteps
from .cpu import packed_copies


logger = logging.get_logger(__name__)

# Devices on which a compiled search is recorded and replayed as a whole (CUDA graphs).
RECORDING_DEVICES = {"cuda"}
# The most graphs kept of a compiled step, of all models: for one source and several, numbers of beams, and so on.
MOST_GRAPHS = 64
# Tensors of a search that its steps do not read.
OUTSIDE_OF_STEPS = ("prompt", "prompt_mask")
# The number of logits in a part whose largest is found first, and the fewest parts for which this is done.
PART, FEWEST_PARTS = 128, 32
# For what runs once in a search, with tensors that are not in one place: the modes of `torch.compile` without CUDA
# graphs.
MODES_OF_SINGLE_CALLS = {"reduce-overhead": "default", "max-autotune": "max-autotune-no-cudagraphs"}


# What is compiled: this, and steps and halves of steps of `BeamSearch`, which only change its tensors, in place


def encode(model: GenerationMixin, ids: torch.LongTensor, mask: torch.Tensor | None) -> ModelOutput:
    return model.get_encoder()(input_ids=ids, attention_mask=mask, return_dict=True)


def top_log_probs(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """As in `beam_search`, but of many logits only the largest of each part are compared at first, and
    then the logits of the best parts. A selection takes longer than the maxima, which compiled code finds in the pass
    that the softmax makes anyway."""
    size = logits.shape[1]
    if size < FEWEST_PARTS * PART or k > FEWEST_PARTS:
        return logits.float().log_softmax(-1).topk(k)
    maxima = nn.functional.pad(logits, (0, -size % PART), value=-math.inf).unflatten(1, (-1, PART)).amax(2)
    largest = maxima.amax(1, keepdim=True).float()
    log_sum = (logits.float() - largest).exp().sum(1, keepdim=True).log()
    parts = maxima.topk(k, sorted=False).indices
    tokens = (parts.unsqueeze(2) * PART + torch.arange(PART, device=logits.device)).flatten(1)
    is_missing, tokens = tokens >= size, tokens.clamp(max=size - 1)
    values, chosen = logits.gather(1, tokens).float().masked_fill(is_missing, -math.inf).topk(k)
    return values - largest - log_sum, tokens.gather(1, chosen)


class LastCall(threading.local):
    """What the compiled code of a `RememberingBackend` ran last in this thread: its function and its inputs."""

    call: tuple[Callable, tuple] | None = None


LAST = LastCall()


class RememberingBackend:
    """A backend of `torch.compile` whose compiled code remembers its last call. To repeat the call takes no time for
    Dynamo's guards. Models of one form share their graphs where their backends are equal.

    Args:
        backend, mode, options, dynamic: as for `torch.compile`.
    """

    def __init__(self, backend: str | Callable = "inductor", mode=None, options=None, dynamic=None):
        # As `torch.compile` does.
        if backend == "inductor":
            self.backend = torch._TorchCompileInductorWrapper(mode or "default", options, dynamic)
        else:
            self.backend = torch._TorchCompileWrapper(backend, mode, options, dynamic)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RememberingBackend) and self.backend == other.backend

    def __call__(self, graph: torch.fx.GraphModule, inputs: list) -> Callable:
        run = self.backend(graph, inputs)

        def remembered(*inputs):
            LAST.call = run, inputs
            return run(*inputs)

        return remembered

    def reset(self) -> None:
        self.backend.reset()


class KeptSteps:
    """What a model keeps for compiled beam searches: the compiled steps, by function and options of `torch.compile`,
    and the tensors of searches, by name and shape. CUDA graphs need these tensors to stay in place. A copy of a model
    starts anew."""

    def __init__(self):
        self.steps, self.buffers, self.lock = {}, {}, threading.Lock()

    def __deepcopy__(self, memo):
        return KeptSteps()

    def __reduce__(self):
        return KeptSteps, ()


class CompiledSteps(EagerSteps):
    """The compiled steps of one search. It has its own buffers while another search of the model uses the kept ones.
    Steps compute with all available room, so that shapes seldom change.

    `compile_config` of the generation configuration gives the options of `torch.compile`. By default one graph serves
    all shapes, and on GPUs that of a later step is recorded as CUDA graphs.
    """

    least_positions = 32
    keeps_shapes = True
    top_log_probs = staticmethod(top_log_probs)

    def __init__(self, model: GenerationMixin, compile_config: Any = None):
        self.records = model.device.type in RECORDING_DEVICES
        # Inductor's checks of sizes repeat Dynamo's guards and cost time in every step.
        self.options: dict[str, Any] = {"fullgraph": True, "dynamic": True, "options": {"size_asserts": False}}
        self.options |= {"mode": "reduce-overhead"} if self.records else {}
        if isinstance(compile_config, CompileConfig):
            self.options = compile_config.to_dict()
        self.kept = vars(model).setdefault("compiled_steps", KeptSteps())
        self.buffers: dict[tuple, torch.Tensor] = {}
        # The compiled code of a step and its inputs, repeated while the tensors stay where they are. Hooks may do more
        # than compute: they run in every step.
        self.repeated: tuple[Callable, tuple] | None = None
        self.has_hooks = any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())

    @contextmanager
    def kept_buffers(self) -> Iterator[None]:
        """Within the context, this search has the kept buffers, unless another one has them."""
        has_lock = self.kept.lock.acquire(blocking=False)
        if has_lock:
            self.buffers = self.kept.buffers
        try:
            yield
        finally:
            if has_lock:
                self.kept.lock.release()

    def num_sources(self, search: BeamSearch, number: int) -> int:
        """`number`, or a power of two if graphs are recorded. A single source has its own graph."""
        if len(search.running) == 1:
            return number
        return max(2, 2 ** (number - 1).bit_length() if self.records else number)

    def hold(self, search: BeamSearch) -> None:
        """Moves the state of a search to buffers."""
        self.repeated = None  # it has the former tensors
        own, cross = search.cache.self_attention_cache, search.cache.cross_attention_cache
        state = {"": vars(search), "encoder ": search.encoder_outputs, "own ": vars(own)}
        state |= {f"cross {i} ": vars(layer) for i, layer in enumerate(cross.layers)}
        for place, parts in state.items():
            for name, part in list(parts.items()):
                if torch.is_tensor(part) and name not in OUTSIDE_OF_STEPS:
                    parts[name] = self.buffer(place + name, part)
        own.keys = [self.buffer(f"own keys {i}", each) for i, each in enumerate(own.keys)]
        own.values = [self.buffer(f"own values {i}", each) for i, each in enumerate(own.values)]

    def buffer(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """A copy with the strides of its shape. If graphs are recorded, it is in the same place in every search."""
        if not self.records:
            return tensor.new_empty(tensor.shape).copy_(tensor)
        key = name, tensor.shape, tensor.dtype, tensor.device
        if key not in self.buffers:
            self.buffers[key] = tensor.new_empty(tensor.shape)
            torch._dynamo.mark_static_address(self.buffers[key])
        buffer = self.buffers[key]
        return buffer if buffer is tensor else buffer.copy_(tensor)

    def compiled(self, part: Callable, *args: Any) -> Any:
        key = part, str(self.options)
        if key not in self.kept.steps:
            options = self.options.copy()
            if part is encode:
                options["fullgraph"] = False  # a recurrence is not traced
            if part in (encode, BeamSearch.first_step, BeamSearch.pass_prompt):
                options["mode"] = MODES_OF_SINGLE_CALLS.get(options.get("mode"), options.get("mode"))
            of_backend = {name: options.pop(name) for name in ("backend", "mode", "options") if name in options}
            backend = RememberingBackend(**of_backend, dynamic=options.get("dynamic"))
            self.kept.steps[key] = torch.compile(part, backend=backend, **options)
        LAST.call = None
        with torch._dynamo.config.patch(recompile_limit=MOST_GRAPHS, skip_nnmodule_hook_guards=False):
            try:
                return self.kept.steps[key](*args)
            except FailOnRecompileLimitHit:  # raised before anything has run
                logger.warning_once(
                    f"Compiled search: this process has {MOST_GRAPHS} graphs of a step, for its models, numbers of "
                    "beams and options. Other searches run uncompiled. To make room, call torch.compiler.reset()."
                )
                return part(*args)

    def first_step(self, search: BeamSearch) -> None:
        if self.records:
            self.make_step(search, BeamSearch.first_step, BeamSearch.pass_prompt)
        else:
            search.first_step()  # on a CPU it takes no less time if it is compiled

    def step(self, search: BeamSearch) -> None:
        torch.compiler.cudagraph_mark_step_begin()
        if self.repeated is not None:
            function, inputs = self.repeated
            function(*inputs)
        else:
            self.make_step(search, BeamSearch.step, BeamSearch.pass_last_tokens)

    def make_step(self, search: BeamSearch, whole: Callable, first_half: Callable) -> None:
        """Makes a step as a whole, or in two halves if logits processors run between them."""
        if search.logits_processor:
            logits = self.compiled(first_half, search)
            self.compiled(BeamSearch.advance, search, *search.best_tokens(logits))
        else:
            self.compiled(whole, search)
            # Without `fullgraph` a step may be several graphs, and code between them.
            if whole is BeamSearch.step and self.options.get("fullgraph") and not self.has_hooks:
                self.repeated = LAST.call
        LAST.call = None


@contextmanager
def with_compiled_steps(
    model: GenerationMixin,
    inputs: torch.Tensor | None,
    options: dict,
    generation_config: GenerationConfig | None = None,
) -> Iterator[dict]:
    """A context for a call of `generate()` whose search has compiled parts; gives its options by name. On a CPU, an
    optimized model multiplies by packed copies of its weights in this context, and keeps them."""
    steps = CompiledSteps(model, option(model, "compile_config", generation_config, options))
    with packed_copies(model), steps.kept_buffers():
        pad_token_id = option(model, "pad_token_id", generation_config, options)
        yield encoded(model, inputs, options, steps, pad_token_id) | {"steps": steps}


def encoded(
    model: GenerationMixin, inputs: torch.Tensor | None, options: dict, steps: CompiledSteps, pad_token_id: int | None
) -> dict:
    """The options, with the encoder's outputs if `generate()` is given ids that the encoder takes; other inputs are
    left to it. If graphs are recorded, outputs and mask are padded to a multiple of 8 tokens; without a mask, only if
    no ids are padded, because then the encoder finds padding by the ids."""
    given = [each for each in (inputs, options.get("input_ids")) if each is not None]
    others = [options.get(name) for name in ("encoder_outputs", "inputs_embeds")]
    is_plain = len(given) == 1 and given[0].ndim == 2 and others == [None, None]
    if not is_plain or given[0].shape[1] > (position_limit(model.config) or math.inf):
        return options
    ids, mask = given[0], options.get("attention_mask")
    mask = None if mask is None else (mask != 0).long()
    if steps.records and (mask is not None or pad_token_id is None or not (ids == pad_token_id).any()):
        mask = torch.ones_like(ids, dtype=torch.long) if mask is None else mask
        padding = (0, -ids.shape[1] % 8)
        ids, mask = nn.functional.pad(ids, padding, value=pad_token_id or 0), nn.functional.pad(mask, padding)
        options = options | {"attention_mask": mask}
    # Copies: for views, Dynamo would guard what they are views of.
    args = (None if each is None else each.clone(memory_format=torch.contiguous_format) for each in (ids, mask))
    with torch.no_grad():
        return options | {"encoder_outputs": steps.compiled(encode, model, *args)}
