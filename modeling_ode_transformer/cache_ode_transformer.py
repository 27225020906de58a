# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""A cache for beam search that is never reordered."""

from functools import partial

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, EncoderDecoderCache


# Added to the score of an entry that must not be seen; float16 has it too.
HIDDEN = torch.finfo(torch.float16).min


class BeamSearchLayer(CacheLayerMixin):
    """Keys and values of one attention, all beams of a source in one row: (sources, heads, entries, head_dim).

    The first entries are the prompt, which the beams of a source have in common; then each position has an entry for
    each beam. Memory grows by a half of what is used, so that an entry is rarely copied.

    Args:
        num_beams: how many rows in a row of the model's batch belong to one source.
    """

    is_sliding = False

    def __init__(self, num_beams: int):
        super().__init__()
        self.num_beams = num_beams
        self.prompt_length = self.num_positions = 0

    @property
    def num_entries(self) -> int:
        return self.prompt_length + (self.num_positions - self.prompt_length) * self.num_beams

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys = key_states.new_empty(0)
        self.values = value_states.new_empty(0)
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Adds keys and values of shape (rows, heads, length, head_dim): the prompt, which is returned as it came;
        then one position, after which everything so far is returned, in one row for each source.

        Raises:
            ValueError: more than one position after the prompt.
        """
        length = key_states.shape[2]
        is_prompt = self.num_positions == 0
        if is_prompt:
            self.lazy_initialization(key_states, value_states)
            new = [states[:: self.num_beams] for states in (key_states, value_states)]
            self.prompt_length = length
        elif length == 1:
            new = [
                states.reshape(-1, self.num_beams, states.shape[1], states.shape[3]).transpose(1, 2)
                for states in (key_states, value_states)
            ]
        else:
            raise ValueError(f"After the prompt, a BeamSearchCache takes one position at a time, not {length}.")
        start = self.num_entries if not is_prompt else 0
        self.num_positions += length
        end = self.num_entries
        self.keys, self.values = (self._append(*each, start, end) for each in zip((self.keys, self.values), new))
        if is_prompt:
            return key_states, value_states
        return self.keys[:, :, :end], self.values[:, :, :end]

    def _append(self, buffer: torch.Tensor, new: torch.Tensor, start: int, end: int) -> torch.Tensor:
        if buffer.ndim == 1 or end > buffer.shape[2]:
            room = max(end + end // 2, end + 8 * self.num_beams)
            larger = new.new_empty(*new.shape[:2], room, new.shape[3])
            if start:
                larger[:, :, :start] = buffer[:, :, :start]
            buffer = larger
        buffer[:, :, start:end] = new
        return buffer

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.num_positions + query_length, 0

    def get_seq_length(self) -> int:
        return self.num_positions

    def get_max_length(self) -> int:
        return -1

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Only keeps the sources `indices`."""
        indices = indices.to(self.keys.device)
        self.keys, self.values = self.keys[indices], self.values[indices]

    def reset(self) -> None:
        self.__init__(self.num_beams)


class BeamSearchCache(Cache):
    """The decoder's own keys and values in a beam search. Beams change places with every token, and an ordinary cache
    copies all of its rows with them. Here entries stay where they are, and each beam knows which of its source's are
    its own: all beams of a source attend to all entries of the source at once, those of other beams masked.

    `generate()` makes one for an encoder-decoder by itself (`BeamSearchGenerationMixin`).

    Args:
        num_beams: beams of each source, which are successive rows of the model's batch.
    """

    def __init__(self, num_beams: int):
        super().__init__(layer_class_to_replicate=partial(BeamSearchLayer, num_beams))
        self.num_beams = num_beams
        self.visibility = None
        self.sources = None

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.layers[layer_idx].get_seq_length() if len(self.layers) > layer_idx else 0

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return self.get_seq_length(layer_idx) + query_length, 0

    def key_positions(self, device: torch.device) -> torch.Tensor:
        """The position of each entry that the next token sees, its own included: (entries,)."""
        first = self.layers[0]
        positions = torch.arange(first.num_positions + 1, device=device)
        prompt, generated = positions[: first.prompt_length], positions[first.prompt_length :]
        return torch.cat([prompt, generated.repeat_interleave(self.num_beams)])

    def attention_mask(self, inputs_embeds: torch.Tensor, padding_mask: torch.Tensor | None = None) -> torch.Tensor:
        """What is added to the scores of the next token of each beam: 0 for the entries that are its own, a large
        negative number for others and for those that are 0 in `padding_mask` (rows, positions). Shape (sources, 1,
        beams, entries), in the dtype of `inputs_embeds`."""
        beams = torch.arange(inputs_embeds.shape[0], device=inputs_embeds.device) % self.num_beams
        mask = self._extended(self.visibility, beams)
        if padding_mask is not None:
            mask = mask.masked_fill(padding_mask[:, self.key_positions(mask.device)] == 0, HIDDEN)
        return mask.view(-1, 1, self.num_beams, mask.shape[1]).to(inputs_embeds.dtype)

    def _extended(self, visibility: torch.Tensor | None, beams: torch.Tensor) -> torch.Tensor:
        """The `visibility` of all entries so far, (rows, entries), and of one more position, of which the row sees the
        entry of the beam in `beams` (rows,)."""
        if visibility is None:
            visibility = torch.zeros(len(beams), self.layers[0].prompt_length, device=beams.device)
        own = torch.full((self.num_beams, self.num_beams), HIDDEN, device=beams.device).fill_diagonal_(0)
        return torch.cat([visibility, own[beams]], dim=1)

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Each row goes on where the row `beam_idx` (rows,) of the same source was."""
        first = self.layers[0]
        if first.num_positions == first.prompt_length:
            return
        beams = self.select(beam_idx) % self.num_beams
        visibility = self.visibility
        if visibility is not None:
            first_rows = torch.arange(0, len(beams), self.num_beams, device=beams.device)
            visibility = visibility[first_rows.repeat_interleave(self.num_beams) + beams]
        self.visibility = self._extended(visibility, beams)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Goes on with the sources `indices` of those that are left."""
        if self.sources is None:
            self.num_sources = len(self.layers[0].keys)
            self.sources = torch.arange(self.num_sources, device=indices.device)
        self.sources = self.sources[indices]
        for layer in self.layers:
            layer.batch_select_indices(indices)
        if self.visibility is not None:
            self.visibility = self.visibility.unflatten(0, (-1, self.num_beams))[indices].flatten(0, 1)

    def select(self, rows: torch.Tensor) -> torch.Tensor:
        """The rows of those sources that are left, from the rows of all, (rows, ...)."""
        if self.sources is None:
            return rows
        return rows.unflatten(0, (-1, self.num_beams))[self.sources].flatten(0, 1)

    def restore(self, rows: torch.Tensor) -> torch.Tensor:
        """The reverse of `select`, with zeros for the sources that are not left."""
        if self.sources is None:
            return rows
        restored = rows.new_zeros(self.num_sources, self.num_beams, *rows.shape[1:])
        restored[self.sources] = rows.unflatten(0, (-1, self.num_beams))
        return restored.flatten(0, 1)

    def reset(self) -> None:
        super().reset()
        self.visibility = self.sources = None


class BeamSearchEncoderDecoderCache(EncoderDecoderCache):
    """The caches of a beam search: a `BeamSearchCache`, and the keys and values of the encoder's output, which all
    beams of a source share.

    Args:
        num_beams: as in `BeamSearchCache`.
        cross_attention_cache: an empty cache.
    """

    def __init__(self, num_beams: int, cross_attention_cache: Cache):
        super().__init__(BeamSearchCache(num_beams), cross_attention_cache)

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        self.self_attention_cache.reorder_cache(beam_idx)

    def keep_sources(self, is_open: torch.Tensor) -> None:
        """Goes on without the sources of the batch for which `is_open` (sources,) is False, if these are an eighth of
        those that are left."""
        cache = self.self_attention_cache
        is_kept = is_open if cache.sources is None else is_open[cache.sources]
        kept = is_kept.nonzero().squeeze(1)
        if 0 < len(kept) <= len(is_kept) * 7 / 8:
            cache.batch_select_indices(kept)
            for layer in self.cross_attention_cache.layers:
                layer.batch_select_indices(kept.to(layer.keys.device))
