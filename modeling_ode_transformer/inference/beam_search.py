# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Beam search as one function over tensors, in the place of transformers' own, whose outputs it finds.

`generate()` of this package's encoder-decoders prepares inputs as in transformers and calls `beam_search`. Everything
else, such as sampling, is left to transformers.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.generation import (
    EosTokenCriteria,
    GenerationConfig,
    GenerationMixin,
    LogitsProcessor,
    LogitsProcessorList,
    MaxLengthCriteria,
    PrefixConstrainedLogitsProcessor,
    StoppingCriteriaList,
)
from transformers.integrations import is_deepspeed_zero3_enabled
from transformers.integrations.fsdp import is_fsdp_managed_module

from ..generation_ode_transformer import (
    CACHE_NAME,
    MAX_LEN_OPTIONS,
    SourceLengthLogitsProcessor,
    option,
    position_limit,
    with_option,
)


# Arguments that `beam_search` reads beside the generation configuration, and options that it does not support.
SEARCH_INPUTS = {"input_ids", "attention_mask", "inputs_embeds", "encoder_outputs", "decoder_input_ids"}
SEARCH_INPUTS |= {"decoder_attention_mask", "logits_processor", "prefix_allowed_tokens_fn", "tokenizer"}
UNSUPPORTED_OPTIONS = (
    *("do_sample", "return_dict_in_generate", "output_attentions", "output_hidden_states"),
    *("stop_strings", "max_time", "token_healing", "constraints", "force_words_ids", "dola_layers", "low_memory"),
    *("is_assistant", "guidance_scale", "prompt_lookup_num_tokens", "assistant_early_exit", "use_mtp"),
)
# Steps between the host's checks whether a search has ended, by type of device; 4 on others.
STEPS_BETWEEN_LOOKS = {"cpu": 1}
# Added to the score of a hidden entry (float16 can represent it), and to that of an impossible hypothesis (as in
# transformers).
HIDDEN = torch.finfo(torch.float16).min
IMPOSSIBLE = -1e9


def padding_bias(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The term that a mask (rows, keys), 0 for padding, adds to attention scores: (rows, 1, 1, keys)."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(mask == 0, HIDDEN)[:, None, None]


class BeamCache(Cache):
    """The decoder's own keys and values in a beam search. Beams change places with every token, entries do not. All
    beams of a source attend to all its entries, and a mask hides the entries that are not a beam's own.

    The keys and the values of each evaluation of a self-attention are (sources, heads, entries, head_dim): first the
    prompt, which a source's beams share, then an entry per beam for each position. They are written in place;
    `resize` makes room for them.

    Args:
        padding_mask: 0 for padding in the prompt, 1 for tokens, (sources, prompt_length).
        num_beams: beams of each source.
        dtype: the mask's dtype.
    """

    def __init__(self, padding_mask: torch.Tensor, num_beams: int, dtype: torch.dtype):
        super().__init__(layers=[])
        self.num_beams, self.prompt_length, device = num_beams, padding_mask.shape[1], padding_mask.device
        self.keys, self.values = [], []
        # The terms added to each beam's scores, and the positions of the entries.
        self.mask = padding_bias(padding_mask, dtype).repeat(1, 1, num_beams, 1)
        self.positions = torch.arange(self.prompt_length, device=device).unsqueeze(0)
        self.entries = torch.arange(self.prompt_length, device=device)
        # Where the next position is written.
        self.slots = torch.arange(num_beams, device=device) + self.prompt_length
        self.num_entries = self.prompt_length

    def __len__(self) -> int:
        return len(self.keys)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """The length of the prompt; 0 before its keys are stored."""
        return self.prompt_length if len(self.keys) > layer_idx else 0

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return self.get_seq_length(layer_idx) + query_length, 0

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args, **kwargs
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Takes keys and values (sources, heads, length, head_dim). The first call stores those of the prompt and
        returns them. Later calls write those of the beams at `slots` and return the first `num_entries`."""
        if layer_idx == len(self.keys):
            self.keys.append(key_states)
            self.values.append(value_states)
            return key_states, value_states
        keys, values = self.keys[layer_idx], self.values[layer_idx]
        slots = self.slots.to(keys.device)
        keys.index_copy_(2, slots, key_states)
        values.index_copy_(2, slots, value_states)
        return keys[:, :, : self.num_entries], values[:, :, : self.num_entries]

    def resize(self, num_positions: int, move: Callable) -> None:
        """Makes room for `num_positions` positions after the prompt; `move(tensor, fill, dim, size)` returns a tensor
        of another size, for the remaining sources."""
        size = self.prompt_length + num_positions * self.num_beams
        self.entries = torch.arange(size, device=self.mask.device)
        positions = (self.entries - self.prompt_length).unsqueeze(0)
        self.positions = self.prompt_length + torch.where(positions < 0, positions, positions // self.num_beams)
        self.mask = move(self.mask, HIDDEN, 3, size)
        self.keys, self.values = ([move(each, 0, 2, size) for each in kind] for kind in (self.keys, self.values))

    def show_positions(self, num_positions: int) -> None:
        """Shows attention the entries of the prompt and of `num_positions` positions after it."""
        self.num_entries = self.prompt_length + num_positions * self.num_beams

    def show_own(self) -> torch.Tensor:
        """Shows each beam its own entry at `slots`. Returns the mask, (sources, 1, beams, num_entries)."""
        mask = self.mask[..., : self.num_entries]
        # Not `index_copy_`: followed by `reorder`, torch 2.13 compiles it to something else.
        return mask.masked_fill_(self.entries[: self.num_entries] == self.slots.unsqueeze(1), 0)

    def attended_positions(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The positions of the queries, the prompt's or one for all beams, and of the keys, (1, length) each."""
        if not self.keys:
            return self.positions, self.positions
        return self.positions[:, self.slots[:1]], self.positions[:, : self.num_entries]

    def reorder(self, rows: torch.LongTensor) -> None:
        """Each beam continues from the beam of its source that `rows` (sources * beams,) names."""
        mask = self.mask[..., : self.num_entries]
        mask.copy_(mask.flatten(0, 2).index_select(0, rows).view_as(mask))


def top_log_probs(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k largest log-probabilities, in float32, of each row of `logits` (rows, vocabulary), and their tokens."""
    # On CPUs, a few rows at a time stay in the cache.
    parts = logits.split(16) if logits.device.type == "cpu" else [logits]
    best = [part.float().log_softmax(-1).topk(k) for part in parts]
    return tuple(torch.cat(each) for each in zip(*best))


class EagerSteps:
    """Runs the steps of a search operator by operator, with no more room than a step needs. Compiled steps with the
    same methods are in `compiled_search`."""

    # The fewest positions to have room for; whether a step computes with all of them, and always with a mask.
    least_positions = 16
    keeps_shapes = False
    top_log_probs = staticmethod(top_log_probs)

    def first_step(self, search: "BeamSearch") -> None:
        search.first_step()

    def step(self, search: "BeamSearch") -> None:
        search.step()

    def num_sources(self, search: "BeamSearch", number: int) -> int:
        """The number of sources that tensors have room for, to search with `number` sources."""
        return number

    def hold(self, search: "BeamSearch") -> None:
        """Called when the tensors of a search have been replaced."""


def is_of_the_caller(processor: LogitsProcessor) -> bool:
    """Whether a logits processor is the caller's own: such a one may look at all rows."""
    kind = type(processor)
    is_known = kind is SourceLengthLogitsProcessor or kind.__module__ == LogitsProcessor.__module__
    return not is_known or kind is PrefixConstrainedLogitsProcessor


class BeamSearch:
    """The state of a beam search: tensors that are written in place, so that a `step` is a function of tensors. A
    finished source no longer changes: steps after the end of a search do nothing.

    Args:
        model: an encoder-decoder of this package.
        prompt: token ids that the outputs start with, (sources, prompt_length).
        config: the generation configuration, with `max_length` for prompt and output together.
        logits_processor: changes the log-probabilities (sources * beams, vocabulary) of all tokens.
        encoder_outputs: the encoder's outputs for the sources.
        cross_attention_cache: an empty cache for the keys and values of the encoder outputs.
        attention_mask: the sources' mask, (sources, length), or None.
        decoder_attention_mask: the prompt's mask, (sources, prompt_length), or None.
        steps: runs the steps; None: `EagerSteps`.
    """

    # The tensors with a row for each source, and what their unused rows hold.
    OF_SOURCES: ClassVar[dict[str, Any]] = {
        **{"sources": 0, "running": -1, "running_scores": IMPOSSIBLE, "finished": -1, "finished_scores": IMPOSSIBLE},
        **{"finished_lengths": 0, "is_finished": False, "is_open": False, "position_offset": 0},
        "attention_mask": 0.0,
    }

    def __init__(
        self,
        model: GenerationMixin,
        prompt: torch.LongTensor,
        config: GenerationConfig,
        logits_processor: LogitsProcessorList,
        encoder_outputs: Mapping[str, torch.Tensor],
        cross_attention_cache: Cache,
        attention_mask: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        steps: Any = None,
    ):
        self.model, self.config, self.logits_processor = model, config, logits_processor
        # transformers' search shows the caller's code only hypotheses that have not ended, and so does this one.
        self.drops_sources = not any(map(is_of_the_caller, logits_processor))
        prompt = prompt.long()
        self.steps = steps = EagerSteps() if steps is None else steps
        self.top_log_probs = steps.top_log_probs
        self.encoder_outputs, self.attention_mask = encoder_outputs, None
        if attention_mask is None and steps.keeps_shapes:
            attention_mask = torch.ones(encoder_outputs["last_hidden_state"].shape[:2], device=prompt.device)
        if attention_mask is not None and (steps.keeps_shapes or not attention_mask.all()):
            # Made once: transformers' mask functions look for padding on the device each time.
            self.attention_mask = padding_bias(attention_mask, model.dtype)
        self.prompt, self.prompt_mask = prompt, decoder_attention_mask
        device, (num_sources, self.prompt_length), num_beams = prompt.device, prompt.shape, config.num_beams
        self.num_beams = num_beams
        ends = [] if config.eos_token_id is None else torch.as_tensor(config.eos_token_id).view(-1).tolist()
        self.ends = torch.tensor(ends, dtype=torch.long, device=device)
        self.num_candidates = max(2, 1 + len(ends)) * num_beams
        self.is_best = torch.arange(self.num_candidates, device=device) < num_beams
        self.beams = torch.arange(num_beams, device=device)
        self.last_penalty = self.penalties_of([config.max_length - self.prompt_length])

        # On the device, the tokens so far and at most; on the host, the tokens, positions with room, and sources.
        self.length = torch.full((1,), self.prompt_length, device=device)
        self.max_length = torch.full((1,), config.max_length, device=device)
        self.num_tokens, self.num_positions, self.num_kept = self.prompt_length, 0, num_sources
        self.sources = torch.arange(num_sources, device=device)
        fill = (config.pad_token_id or ends[0]) if ends else -1  # as in transformers
        self.fills = self.OF_SOURCES | {"running": max(fill, 0), "finished": fill}
        shape = (num_sources, num_beams)
        self.running = prompt.unsqueeze(1).repeat(1, num_beams, 1)
        self.finished = self.running
        self.running_scores = torch.full(shape, IMPOSSIBLE, device=device)
        self.running_scores[:, 0] = 0  # the beams are still equal: only one counts
        self.finished_scores = torch.full(shape, IMPOSSIBLE, device=device)
        self.finished_lengths = torch.full(shape, self.prompt_length, device=device)
        self.is_finished = torch.zeros(shape, dtype=torch.bool, device=device)
        self.is_open = torch.ones((num_sources, 1), dtype=torch.bool, device=device)
        results = torch.full((*shape, config.max_length), fill, device=device)
        self.results = results, self.finished_scores.clone(), self.finished_lengths.clone()

        # Positions count the prompt's padding or skip it; generated padding has no position.
        counting = getattr(model.config, "position_counting", "absolute")
        mask = torch.ones_like(prompt) if decoder_attention_mask is None else decoder_attention_mask
        self.position_offset = torch.zeros_like(prompt[:, :1])
        if counting == "mask":
            self.position_offset += (mask != 0).sum(dim=1, keepdim=True) - self.prompt_length
        skips_padding = counting == "ids" or (counting == "mask" and decoder_attention_mask is None)
        self.padding_id = model.config.pad_token_id if skips_padding else None
        self.cache = EncoderDecoderCache(BeamCache(mask, num_beams, model.dtype), cross_attention_cache)
        self.resize(0)

    def pass_prompt(self) -> torch.Tensor:
        """Passes the prompt through the decoder, once per source. Returns the logits (sources, 1, vocabulary)."""
        return self._decode(self.prompt, self.prompt_mask, logits_to_keep=1)

    def pass_last_tokens(self) -> torch.Tensor:
        """Passes the beams' last tokens through the decoder. Returns the logits (sources, beams, vocabulary)."""
        own, last = self.cache.self_attention_cache, self.length - 1
        tokens = self.running.index_select(2, last).squeeze(2)
        positions = (self.position_offset + last).expand_as(tokens)
        if self.padding_id is not None:
            positions = positions.masked_fill(tokens == self.padding_id, -1)
        logits = self._decode(tokens, own.show_own(), position_ids=positions)
        own.slots += self.num_beams
        return logits

    def _decode(self, tokens: torch.LongTensor, mask: torch.Tensor | None, **kwargs: Any) -> torch.Tensor:
        sources = {"encoder_outputs": self.encoder_outputs, "attention_mask": self.attention_mask}
        targets = {"decoder_input_ids": tokens, "decoder_attention_mask": mask, "cache": self.cache}
        return self.model(**sources, **targets, use_cache=True, return_dict=True, **kwargs).logits

    def advance(self, log_probs: torch.Tensor, tokens: torch.LongTensor) -> None:
        """Chooses the next tokens from the best ones of each beam, (sources, beams, number), and finishes hypotheses,
        with the arithmetic of transformers' search."""
        num_beams = self.num_beams
        totals = (log_probs + self.running_scores.unsqueeze(2)).flatten(1)
        totals, candidates = totals.topk(self.num_candidates)
        tokens = tokens.flatten(1).gather(1, candidates)
        first_rows = torch.arange(0, len(tokens) * num_beams, num_beams, device=tokens.device)
        rows = candidates // log_probs.shape[2] + first_rows.unsqueeze(1)
        running, finished = self.running[:, :, : self.width], self.finished[:, :, : self.width]
        continued = running.flatten(0, 1).index_select(0, rows.flatten()).unflatten(0, rows.shape)
        continued.index_copy_(2, self.length, tokens.unsqueeze(2))
        self.length += 1
        is_end = (tokens.unsqueeze(2) == self.ends).any(2) | (self.length >= self.max_length)
        penalty = self.penalties.index_select(0, self.length - self.prompt_length)

        is_new = is_end & self.is_best
        scores = torch.cat([self.finished_scores, totals / penalty + IMPOSSIBLE * ~is_new], dim=1)
        order = torch.where(self.is_open, scores.topk(num_beams).indices, self.beams)
        finished.copy_(take(torch.cat([finished, continued], dim=1), order))
        self.finished_scores.copy_(scores.gather(1, order))
        lengths = torch.cat([self.finished_lengths, self.length.expand_as(tokens)], dim=1)
        self.finished_lengths.copy_(lengths.gather(1, order))
        self.is_finished.copy_(torch.cat([self.is_finished, is_new], dim=1).gather(1, order))

        totals = totals + IMPOSSIBLE * is_end
        order = totals.topk(num_beams).indices
        running.copy_(take(continued, order))
        self.running_scores.copy_(totals.gather(1, order))
        self.cache.self_attention_cache.reorder(rows.gather(1, order).flatten())

        if self.config.early_stopping == "never" and self.config.length_penalty > 0:
            penalty = self.last_penalty
        worst = torch.where(self.is_finished, self.finished_scores.amin(1, keepdim=True), IMPOSSIBLE)
        self.is_open &= (self.running_scores[:, :1] / penalty > worst).any(1, keepdim=True)
        if self.config.early_stopping is True:
            self.is_open &= ~self.is_finished.all(1, keepdim=True)

    def best_tokens(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The best log-probabilities of each beam, and their tokens: (sources, beams, number) each."""
        k = min(self.num_candidates, logits.shape[2])
        if self.logits_processor:
            return self.processed(logits.expand(-1, self.num_beams, -1)).topk(k)
        best = self.top_log_probs(logits.flatten(0, 1), k)
        return tuple(each.view(len(logits), -1, k).expand(-1, self.num_beams, -1) for each in best)

    def processed(self, logits: torch.Tensor) -> torch.Tensor:
        """The log-probabilities of all tokens after the logits processors, (sources, beams, vocabulary). Processors
        see the rows of all sources, including those no longer searched."""
        log_probs, tokens = logits.float().log_softmax(-1), self.running[:, :, : self.num_tokens]
        if len(tokens) == len(self.results[0]):
            return self.logits_processor(tokens.flatten(0, 1), log_probs.flatten(0, 1)).view_as(log_probs)
        kept, number = self.sources[: self.num_kept], len(self.results[0])
        all_tokens = self.results[0][:, :, : self.num_tokens].index_copy(0, kept, tokens[: self.num_kept])
        all_log_probs = log_probs.new_zeros(number, *log_probs.shape[1:])
        all_log_probs.index_copy_(0, kept, log_probs[: self.num_kept])
        all_log_probs = self.logits_processor(all_tokens.flatten(0, 1), all_log_probs.flatten(0, 1))
        return all_log_probs.view(number, *log_probs.shape[1:])[self.sources]

    def penalties_of(self, lengths: Sequence[int]) -> torch.Tensor:
        """The divisors of the scores of hypotheses of these lengths."""
        powers = [max(length, 1) ** self.config.length_penalty for length in lengths]
        return torch.tensor(powers, dtype=torch.float32, device=self.prompt.device)

    def make_room(self) -> None:
        """Prepares one more step, on the host."""
        self.num_tokens += 1
        positions = self.num_tokens - self.prompt_length
        if positions > self.num_positions:
            room = max(self.steps.least_positions, 2 ** (positions - 1).bit_length())
            self.resize(room, num_sources=self.steps.num_sources(self, self.num_kept))
        shown = self.num_positions if self.steps.keeps_shapes else positions
        self.width = self.prompt_length + shown + 1
        self.cache.self_attention_cache.show_positions(shown)

    def resize(self, num_positions: int, kept: torch.LongTensor | None = None, num_sources: int | None = None) -> None:
        """Moves the state to tensors with room for `num_positions` positions after the prompt and `num_sources`
        sources. If `kept` is given, only these sources remain, as the first rows. The other rows are closed."""
        self.num_positions = num_positions
        num_sources = num_sources or (len(self.running) if kept is None else len(kept))
        num_tokens = num_positions + 1  # the most that hypotheses can have after the prompt
        self.width = self.prompt_length + num_tokens

        def move(tensor: torch.Tensor, fill: Any = 0, dim: int = 0, size: int = 0) -> torch.Tensor:
            if kept is not None:
                tensor = tensor.index_select(0, kept.to(tensor.device))
            sizes = dict(enumerate(tensor.shape)) | {dim: size} | {0: num_sources}
            shape = tuple(sizes.values())
            if shape == tensor.shape:
                return tensor
            new = tensor.new_full(shape, fill)
            new[tuple(map(slice, tensor.shape))] = tensor
            return new

        for name, fill in self.fills.items():
            if (tensor := getattr(self, name)) is not None:
                setattr(self, name, move(tensor, fill, *((2, self.width) if name in ("running", "finished") else ())))
        self.penalties = self.penalties_of(range(num_tokens + 1))
        self.encoder_outputs = type(self.encoder_outputs)(
            **{name: move(each) for name, each in self.encoder_outputs.items()}
        )
        self.cache.self_attention_cache.resize(num_positions, move)
        layers = [layer for layer in self.cache.cross_attention_cache.layers if layer.is_initialized]
        # The entries of one layer of the model share their tensors.
        shared = {id(tensor): tensor for layer in layers for tensor in (layer.keys, layer.values)}
        moved = {key: move(tensor) for key, tensor in shared.items()}
        for layer in layers:
            layer.keys, layer.values = moved[id(layer.keys)], moved[id(layer.values)]
        if num_positions > 0:
            self.steps.hold(self)

    def first_step(self) -> None:
        """The step that chooses the first tokens."""
        self.advance(*self.best_tokens(self.pass_prompt()))

    def step(self) -> None:
        """A later step, the forward pass included: the tensors change in place, and nothing else."""
        self.advance(*self.best_tokens(self.pass_last_tokens()))

    def run_to_the_end(self) -> None:
        """Runs steps until all sources are finished, and stores the results."""
        self.steps.first_step(self)
        limit = position_limit(self.model.config) or math.inf
        interval = STEPS_BETWEEN_LOOKS.get(self.prompt.device.type, 4)
        for steps in range(1, self.config.max_length - self.prompt_length):
            exceeds = self.num_tokens >= limit
            if (exceeds or steps % interval == 0) and not self.drop_finished():
                break
            if exceeds:
                raise ValueError(
                    f"A sequence of {self.num_tokens + 1} tokens is longer than max_position_embeddings={limit}: "
                    "allow fewer new tokens, or use a model with sinusoidal positions."
                )
            self.make_room()
            self.steps.step(self)
        self.store()

    def drop_finished(self) -> bool:
        """Looks at the device, and drops finished sources if at least an eighth of the rows become free and no code of
        the caller looks at them. Returns whether any sources are left."""
        is_open = self.is_open[: self.num_kept].view(-1).tolist()
        kept = [i for i, each in enumerate(is_open) if each]
        num_sources = self.steps.num_sources(self, len(kept))
        if kept and self.drops_sources and num_sources <= len(self.running) * 7 / 8:
            self.store()
            self.num_kept = len(kept)
            self.resize(self.num_positions, torch.tensor(kept, device=self.sources.device), num_sources)
        return any(is_open)

    def store(self) -> None:
        for results, finished in zip(self.results, (self.finished, self.finished_scores, self.finished_lengths)):
            sizes = tuple(slice(min(sizes)) for sizes in zip(results.shape[2:], finished.shape[2:]))
            kept = self.sources[: self.num_kept]
            results[(slice(None), slice(None), *sizes)].index_copy_(
                0, kept, finished[(slice(self.num_kept), slice(None), *sizes)]
            )


def take(tensor: torch.Tensor, indices: torch.LongTensor) -> torch.Tensor:
    """For each source, the rows `indices` (sources, number) of `tensor` (sources, rows, length)."""
    return tensor.gather(1, indices.unsqueeze(2).expand(-1, -1, tensor.shape[2]))


def beam_search(
    model: GenerationMixin,
    input_ids: torch.LongTensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    return_scores: bool = False,
    steps: Any = None,
    **model_kwargs: Any,
) -> torch.LongTensor | tuple[torch.LongTensor, torch.FloatTensor]:
    """A decoding function for `generate(custom_generate=beam_search)`: beam search with the results of transformers'
    own. This package's encoder-decoders use it by default where it applies.

    Args:
        model, input_ids, logits_processor, stopping_criteria, generation_config, model_kwargs: as
            `generate()` prepares them, with a row for each beam.
        return_scores: whether to return scores too; `generate()` passes it on.
        steps: as for `BeamSearch`.

    Returns:
        Token ids, the prompt included, of shape (sources * num_return_sequences, length), the best first. With
            `return_scores`, a tuple of these and their scores in float32, (sources * num_return_sequences,).

    Raises:
        ValueError: something other than the end-of-sequence token and the maximum length ends outputs; or an output
            has more tokens than the model has positions.
    """
    if others := [each for each in stopping_criteria if not isinstance(each, (EosTokenCriteria, MaxLengthCriteria))]:
        raise ValueError(f"beam_search ends outputs by their tokens and lengths only, not by {others}.")
    num_beams, encoder_outputs = generation_config.num_beams, model_kwargs["encoder_outputs"]
    states = {name: each[::num_beams] for name, each in encoder_outputs.items() if torch.is_tensor(each)}
    names = ("attention_mask", "decoder_attention_mask")
    masks = [None if model_kwargs.get(name) is None else model_kwargs[name][::num_beams] for name in names]
    search = BeamSearch(
        model,
        input_ids[::num_beams],
        generation_config,
        logits_processor,
        type(encoder_outputs)(**states),
        model_kwargs[CACHE_NAME].cross_attention_cache,
        masks[0],
        masks[1],
        steps,
    )
    search.run_to_the_end()
    number = generation_config.num_return_sequences
    tokens, scores, lengths = (each[:, :number].flatten(0, 1) for each in search.results)
    tokens = tokens[:, : int(lengths.max())]
    return (tokens, scores) if return_scores else tokens


@contextmanager
def searching(
    model: GenerationMixin, inputs: torch.Tensor | None, generation_config: GenerationConfig | None, options: dict
) -> Iterator[tuple]:
    """A context for a call of `generate()`; gives its configuration and options by name, with which it calls
    `beam_search` where that applies. Searches with `cache_implementation="static"` have compiled parts."""
    if searches_beams(model, generation_config, **options):
        options = options | {"custom_generate": beam_search}
    if options.get("custom_generate") is not beam_search:
        yield generation_config, options
        return
    cache = option(model, "cache_implementation", generation_config, options)
    # transformers would make a static cache for the cross-attention of each beam.
    generation_config, options = with_option("cache_implementation", "dynamic", generation_config, options)
    if cache != "static":
        yield generation_config, options
        return
    from .compiled_search import with_compiled_steps  # it takes a second to import

    with with_compiled_steps(model, inputs, options, generation_config) as options:
        yield generation_config, options


def searches_beams(model: GenerationMixin, generation_config: GenerationConfig | None = None, **options: Any) -> bool:
    """Whether `generate()` calls `beam_search` for these arguments: for a beam search that returns only sequences,
    with the package's own cache, compiled or not, and its attention ("sdpa" or "eager")."""

    def value(name):
        return option(model, name, generation_config, options)

    given = {name for name, each in options.items() if torch.is_tensor(each) or each}
    given = {name for name in given if not hasattr(model.generation_config, name)}
    prepare = getattr(model.prepare_inputs_for_generation, "__func__", None)
    is_sharded = torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1
    is_sharded = is_sharded and (is_deepspeed_zero3_enabled() or is_fsdp_managed_module(model))
    cache = value("cache_implementation")
    return (
        (value("num_beams") or 1) > 1
        and (value("num_beam_groups") or 1) == 1
        and not any(value(name) for name in UNSUPPORTED_OPTIONS)
        and (cache is None or (cache == "static" and not value("disable_compile")))
        and value("use_cache") is not False
        and given <= {*SEARCH_INPUTS, *MAX_LEN_OPTIONS}
        and model.config._attn_implementation in ("sdpa", "eager")
        and prepare is type(model).prepare_inputs_for_generation  # PEFT's prefix tuning replaces it
        and not is_sharded
        and not model.recomputes()
    )
