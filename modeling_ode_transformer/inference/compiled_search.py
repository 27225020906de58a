# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Beam searches with compiled steps: `generate(num_beams=N, cache_implementation="static")`.

`BeamSearch` of `generation_ode_transformer` travels with published models and runs its steps with `EagerSteps`. Where
this package is installed, it can use `CompiledSteps` from here.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers.generation import GenerationMixin
from transformers.utils import logging

from ..generation_ode_transformer import BeamSearch, source_mask
from .cpu import packed_copies


logger = logging.get_logger(__name__)

# Devices on which a compiled search is recorded and replayed as a whole (CUDA graphs).
RECORDING_DEVICES = {"cuda"}
# The most graphs kept of a compiled step: for one source and several, numbers of beams, and so on.
MOST_GRAPHS = 64
# Tensors of a search that its steps do not read.
OUTSIDE_OF_STEPS = ("prompt", "prompt_mask")


def whole_step(search: BeamSearch) -> None:
    """One step of a search, the forward pass included: it only changes the search's tensors, in place."""
    search.step()


def decoding_step(search: BeamSearch) -> torch.Tensor:
    """The first half of a step, if processors change the scores between the halves."""
    return search.pass_last_tokens()


def choosing_step(search: BeamSearch, log_probs: torch.Tensor, tokens: torch.LongTensor) -> None:
    """The second half of a step."""
    search.advance(log_probs, tokens)


class KeptSteps:
    """What a model keeps for compiled beam searches: the compiled steps, by function and options of `torch.compile`,
    and the tensors of searches, by name and shape. CUDA graphs need these tensors to stay in place. A copy of a model
    starts anew."""

    def __init__(self):
        self.steps, self.buffers, self.sizes = {}, {}, set()
        self.lock = threading.Lock()

    def __deepcopy__(self, memo):
        return KeptSteps()

    def __reduce__(self):
        return KeptSteps, ()


class CompiledSteps:
    """The compiled steps of one search. It has its own buffers while another search of the model uses the kept ones.
    Steps compute with all available room, so that shapes seldom change.

    `compile_config` of the generation configuration gives the options of `torch.compile`. By default one graph serves
    all shapes, and on GPUs it is recorded as CUDA graphs.
    """

    least_positions = 32
    keeps_shapes = True

    def __init__(self, model: GenerationMixin):
        self.records = model.device.type in RECORDING_DEVICES
        self.kept = vars(model).setdefault("compiled_steps", KeptSteps())
        self.buffers: dict[tuple, torch.Tensor] = {}

    def run(self, search: BeamSearch) -> None:
        options: dict[str, Any] = {"fullgraph": True, "dynamic": True}
        options |= {"mode": "reduce-overhead"} if self.records else {}
        compile_config = search.config.compile_config
        self.options = options if compile_config is None else compile_config.to_dict()
        has_lock = self.kept.lock.acquire(blocking=False)
        if has_lock:
            self.buffers = self.kept.buffers
        try:
            if self.records:
                search.model_options["joined_projections"] = self.joined_projections(search.model)
            with torch._dynamo.config.patch(recompile_limit=MOST_GRAPHS):
                self.make_steps(search)
        finally:
            if has_lock:
                self.kept.lock.release()

    def make_steps(self, search: BeamSearch) -> None:
        search.run_to_the_end()

    def joined_projections(self, model: GenerationMixin) -> dict[int, tuple[torch.Tensor, ...]]:
        """Copies of the decoder's projection weights, joined for each self-attention: one kernel instead of
        three. Each search makes them anew, because weights may have changed."""
        joined = {}
        for layer in model.base_model.decoder.layers:
            if (projections := layer.self_attn.joined("qkv")) is not None:
                name = f"projection {layer.first_cache_idx}"
                joined[layer.first_cache_idx] = tuple(self.buffer(name, each) for each in projections)
        return joined

    def num_sources(self, search: BeamSearch, number: int) -> int:
        """`number`, or a power of two if graphs are recorded. A single source has its own graph."""
        if len(search.running) == 1:
            return number
        return max(2, 2 ** (number - 1).bit_length() if self.records else number)

    def hold(self, search: BeamSearch) -> None:
        """Moves the state of a search to buffers."""
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

    def compiled(self, step: Callable, *args: Any) -> Any:
        key = step, str(self.options)
        if key not in self.kept.steps:
            self.kept.steps[key] = torch.compile(step, **self.options)
        return self.kept.steps[key](*args)

    def step(self, search: BeamSearch) -> None:
        sizes = tuple(search.running.shape), search.num_positions, bool(search.logits_processor)
        start = time.perf_counter()
        torch.compiler.cudagraph_mark_step_begin()
        if search.logits_processor:
            logits = self.compiled(decoding_step, search)
            self.compiled(choosing_step, search, *search.best_tokens(logits))
        else:
            self.compiled(whole_step, search)
        if sizes not in self.kept.sizes:
            self.kept.sizes.add(sizes)
            logger.info(
                f"The first step of a compiled search of {sizes[0][0]} sources, {sizes[0][1]} beams and "
                f"{sizes[1]} positions took {time.perf_counter() - start:.1f} seconds."
            )


class FirstSteps(CompiledSteps):
    """Runs only one step for each number of positions that a search can have room for."""

    def make_steps(self, search):
        while search.num_positions < search.config.max_length - search.prompt_length - 1:
            search.num_tokens = search.prompt_length + search.num_positions
            search.make_room()
            self.step(search)


@contextmanager
def with_compiled_steps(model: GenerationMixin, inputs: torch.Tensor | None, options: dict) -> Iterator[tuple]:
    """A context for a call of `generate()` whose search has compiled steps; gives its inputs and its options by name.
    On a CPU, an optimized model multiplies by packed copies of its weights in this context, and keeps them."""
    with packed_copies(model):
        yield with_padding(model, inputs, {"steps": CompiledSteps(model)} | options)


def with_padding(model: GenerationMixin, inputs: torch.Tensor | None, options: dict) -> tuple:
    """The inputs and options; if graphs are recorded, sources are padded to a multiple of 8 tokens."""
    ids = options.get("input_ids") if inputs is None else inputs
    pad_token_id = model.config.pad_token_id
    if ids is None or ids.ndim != 2 or pad_token_id is None or ids.device.type not in RECORDING_DEVICES:
        return inputs, options
    padding = (0, -ids.shape[1] % 8)
    mask = source_mask(pad_token_id, ids, attention_mask=options.pop("attention_mask", None))
    options["attention_mask"] = nn.functional.pad(mask.to(torch.long), padding)
    options.pop("input_ids", None)
    return nn.functional.pad(ids, padding, value=pad_token_id), options


def warm_up(
    model: GenerationMixin, batch_sizes: Sequence[int], source_lengths: Sequence[int], options: dict[str, Any]
) -> None:
    """Compiles the steps of searches with these numbers and lengths of sources, and these options.

    Raises:
        ValueError: `generate()` makes no compiled beam search for these options.
    """
    if not model.searches_beams(cache_implementation="static", **options):
        raise ValueError(
            f"warm_up compiles beam searches that return only sequences, but {options} ask for another one: give "
            "num_beams=4, say."
        )
    device = model.get_input_embeddings().weight.device
    token = next(i for i in range(model.config.vocab_size) if i != model.config.pad_token_id)
    for number in batch_sizes:
        for length in source_lengths:
            ids = torch.full((number, length), token, device=device)
            model.generate(ids, cache_implementation="static", steps=FirstSteps(model), **options)
