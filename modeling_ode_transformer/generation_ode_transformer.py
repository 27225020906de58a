# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""What generate() lacks: outputs whose greatest length depends on their source, and n-best lists with scores."""

import copy
import math
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.generation import (
    GenerationConfig,
    GenerationMixin,
    GenerationMode,
    LogitsProcessor,
    LogitsProcessorList,
)

from .cache_ode_transformer import BeamSearchEncoderDecoderCache


MAX_LEN_OPTIONS = ("max_len_a", "max_len_b")
# Options about tokens of the source, with the values that do nothing.
OPTIONS_OF_SOURCES = {"encoder_repetition_penalty": (None, 1.0), "encoder_no_repeat_ngram_size": (None, 0)}


def check_max_len(max_len_a: float, max_len_b: float) -> None:
    """Raises a ValueError unless both are finite numbers of at least 0 and one of them is more."""
    for name, value in zip(MAX_LEN_OPTIONS, (max_len_a, max_len_b)):
        if not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
            raise ValueError(f"{name}={value!r} must be a number of at least 0.")
    if max_len_a == max_len_b == 0:
        raise ValueError("max_len_a=0 and max_len_b=0 allow no output: set one of them.")


class SourceLengthLogitsProcessor(LogitsProcessor):
    """Ends each output after `int(max_len_a * source length + max_len_b)` tokens: then only the end-of-sequence token,
    which is not one of them, can follow, and its log-probability counts (`--max-len-a` and `--max-len-b` of fairseq's
    sequence generator). The length is each source's own, padding excluded, so that an output does not depend on the
    other sources of its batch (but for `early_stopping="never"`, which looks at the longest limit).

    `OdeTransformerForConditionalGeneration` and ensembles make one themselves from `max_len_a` and `max_len_b`, given
    to `generate()` or in the generation configuration. For any other encoder-decoder of transformers:

    ```python
    limit = SourceLengthLogitsProcessor(inputs["attention_mask"].sum(1), 1.2, 10, model.generation_config.eos_token_id)
    model.generate(**inputs, logits_processor=LogitsProcessorList([limit]), max_new_tokens=limit.max_new_tokens)
    ```

    Args:
        source_lengths: tokens of each source, its end token included: integers of shape (sources,).
        max_len_a, max_len_b: numbers of at least 0.
        eos_token_id: the end-of-sequence token, or several.
        prompt_length: tokens that the decoder starts with.
        min_new_tokens: what the limit is at least.
        max_new_tokens: what an output with its end-of-sequence token has at most; None: any number.

    Raises:
        ValueError: `max_len_a` or `max_len_b` is negative or not a number, or there is no end-of-sequence token.
    """

    def __init__(
        self,
        source_lengths: torch.Tensor,
        max_len_a: float,
        max_len_b: float,
        eos_token_id: int | list[int] | None,
        prompt_length: int = 1,
        min_new_tokens: int = 0,
        max_new_tokens: int | None = None,
    ):
        check_max_len(max_len_a, max_len_b)
        if eos_token_id is None:
            raise ValueError("max_len_a and max_len_b end outputs with the end-of-sequence token: set eos_token_id.")
        self.eos_token_ids = [eos_token_id] if isinstance(eos_token_id, int) else list(eos_token_id)
        self.prompt_length = prompt_length
        limits = (max_len_a * source_lengths.double() + max_len_b).long().clamp(min=min_new_tokens)
        self.limits = limits if max_new_tokens is None else limits.clamp(max=max_new_tokens - 1)
        self.shortest = int(self.limits.min())

    @property
    def max_new_tokens(self) -> int:
        """The length of the longest output possible, its end-of-sequence token included."""
        return int(self.limits.max()) + 1

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        length = input_ids.shape[1] - self.prompt_length
        if length < self.shortest:
            return scores
        # A source has several rows, one after the other: its beams, or the sequences drawn for it.
        ends = (self.limits <= length).repeat_interleave(len(scores) // len(self.limits)).to(scores.device)
        ending = torch.full_like(scores, -math.inf)
        ending[:, self.eos_token_ids] = scores[:, self.eos_token_ids]
        return torch.where(ends.unsqueeze(1), ending, scores)


class RecomputedGenerationMixin(GenerationMixin):
    """`generate()` goes without a cache where blocks are recomputed in training (gradient checkpointing), since these
    fill none."""

    def _prepare_generation_config(self, generation_config: GenerationConfig | None, **kwargs: Any):
        generation_config, model_kwargs = super()._prepare_generation_config(generation_config, **kwargs)
        flags = ("gradient_checkpointing", "recomputes_stages")
        if self.training and any(getattr(module, flag, False) for module in self.modules() for flag in flags):
            generation_config.use_cache = False
        return generation_config, model_kwargs


class SourceLengthGenerationMixin(RecomputedGenerationMixin):
    """For an encoder-decoder: `generate()` takes `max_len_a` and `max_len_b`, as arguments or from the generation
    configuration, which saves and loads them; see `SourceLengthLogitsProcessor`. One that is missing is 0.

    `min_length` and `min_new_tokens` hold for short sources too. A `max_length` or `max_new_tokens` that is set limits
    all outputs; else the decoder's `max_position_embeddings` do, as in fairseq also where positions are computed. Set
    a `max_length` for the evaluations of `Seq2SeqTrainer`, which else sets it to 20."""

    def save_pretrained(self, *args, **kwargs):
        # A generation configuration that is marked as made from the model's loses other options when it is loaded.
        self.generation_config._from_model_config = False
        return super().save_pretrained(*args, **kwargs)

    def _prepare_generation_config(self, generation_config: GenerationConfig | None, **kwargs: Any):
        given = {name: kwargs.pop(name) for name in MAX_LEN_OPTIONS if name in kwargs}
        generation_config, model_kwargs = super()._prepare_generation_config(generation_config, **kwargs)
        for name, value in given.items():
            setattr(generation_config, name, value)
        asked = [name for name, idle in OPTIONS_OF_SOURCES.items() if getattr(generation_config, name) not in idle]
        if asked and getattr(self.config, "decoder_vocab_size", None) is not None:
            raise ValueError(
                f"{' and '.join(asked)}: targets have other tokens than sources (decoder_vocab_size). Leave it out."
            )
        if limit := self._max_len(generation_config):
            check_max_len(*limit)
        return generation_config, model_kwargs

    @staticmethod
    def _max_len(generation_config: GenerationConfig) -> tuple[float, float] | None:
        values = [getattr(generation_config, name, None) for name in MAX_LEN_OPTIONS]
        return None if values == [None, None] else tuple(value or 0 for value in values)

    def _prepare_generated_length(
        self, generation_config, has_default_max_length, *args, input_ids_length, inputs_tensor, **kwargs
    ):
        limit = self._max_len(generation_config)
        if limit and has_default_max_length and generation_config.max_new_tokens is None:
            longest = int(limit[0] * inputs_tensor.shape[1] + limit[1])
            if (positions := getattr(self.config, "max_position_embeddings", None)) is not None:
                longest = min(longest, positions - input_ids_length)
            shortest = max(generation_config.min_new_tokens or 0, generation_config.min_length - input_ids_length)
            generation_config.max_new_tokens = max(longest, shortest) + 1
        return super()._prepare_generated_length(
            generation_config,
            has_default_max_length,
            *args,
            input_ids_length=input_ids_length,
            inputs_tensor=inputs_tensor,
            **kwargs,
        )

    def prepare_inputs_for_generation(self, *args, tokenizer=None, **kwargs):
        # generate() passes on the tokenizer that finds `stop_strings`, which is nothing to the model.
        return super().prepare_inputs_for_generation(*args, **kwargs)

    def _with_target_vocabulary(self) -> "SourceLengthGenerationMixin":
        """The model, where `config.get_text_config().vocab_size`, as generation reads it, is that of the targets."""
        if getattr(self.config, "decoder_vocab_size", None) is None:
            return self
        model = copy.copy(self)
        model.config = self.config.get_text_config(decoder=True)
        return model

    def compute_transition_scores(self, *args, **kwargs):
        model = self._with_target_vocabulary()
        return super(SourceLengthGenerationMixin, model).compute_transition_scores(*args, **kwargs)

    def _get_candidate_generator(self, generation_config, *args, **kwargs):
        model = self if generation_config.prompt_lookup_num_tokens is None else self._with_target_vocabulary()
        return super(SourceLengthGenerationMixin, model)._get_candidate_generator(generation_config, *args, **kwargs)

    def _get_logits_processor(
        self,
        generation_config,
        input_ids_seq_length=None,
        encoder_input_ids=None,
        *args,
        logits_processor=None,
        model_kwargs=None,
        **kwargs,
    ):
        if limit := self._max_len(generation_config):
            mask = model_kwargs.get("attention_mask")
            if mask is None:
                mask = torch.ones(encoder_input_ids.shape[:2], device=encoder_input_ids.device)
                if encoder_input_ids.ndim == 2 and generation_config.pad_token_id is not None:
                    mask = encoder_input_ids != generation_config.pad_token_id
            processor = SourceLengthLogitsProcessor(
                mask.sum(1),
                *limit,
                eos_token_id=generation_config.eos_token_id,
                prompt_length=input_ids_seq_length,
                min_new_tokens=max(generation_config.min_length - input_ids_seq_length, 0),
                max_new_tokens=generation_config.max_length - input_ids_seq_length,
            )
            logits_processor = LogitsProcessorList([*(logits_processor or []), processor])
        return super(SourceLengthGenerationMixin, self._with_target_vocabulary())._get_logits_processor(
            generation_config,
            input_ids_seq_length,
            encoder_input_ids,
            *args,
            logits_processor=logits_processor,
            model_kwargs=model_kwargs,
            **kwargs,
        )


def top_k(scores: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`scores.topk(k)` of a matrix, sooner on a processor: the k greatest are in the k of many small groups that have
    the greatest maxima."""
    group_size = 32
    num_groups = scores.shape[1] // group_size
    if num_groups < k or scores.device.type != "cpu":
        return scores.topk(k)
    # Group i has the columns i, i + num_groups, ...; what is left at the end is a candidate anyway.
    groups = scores[:, : group_size * num_groups].view(-1, group_size, num_groups).amax(dim=1).topk(k).indices
    offsets = torch.arange(group_size, device=scores.device) * num_groups
    rest = torch.arange(group_size * num_groups, scores.shape[1], device=scores.device)
    columns = (groups.unsqueeze(2) + offsets).flatten(1)
    columns = torch.cat([columns, rest.expand(len(scores), -1)], dim=1)
    greatest, candidates = scores.gather(1, columns).topk(k)
    return greatest, columns.gather(1, candidates)


@dataclass
class BeamSearch:
    """A beam search that a thread is in.

    Args:
        cache: its cache.
        num_candidates: how many tokens of each row matter; None: all, since a logits processor wants to see them.
        tokens: those of this step, (rows, num_candidates + 1), the last column being no token.
    """

    cache: BeamSearchEncoderDecoderCache
    num_candidates: int | None
    tokens: torch.Tensor | None = None

    def narrow(self, logits: torch.Tensor) -> torch.Tensor:
        """The logits of a vocabulary that `generate()` handles sooner: the most probable tokens of each row, and one
        that has the probability of all others, and is never chosen. Log-probabilities and choices stay the same.

        `logits` are (rows, length, vocabulary); returns (rows, 1, num_candidates + 1)."""
        # A few rows at a time stay in a processor's cache, in memory that is allocated once.
        parts = logits[:, -1].split(16 if logits.device.type == "cpu" else len(logits))
        buffer = torch.empty_like(parts[0], dtype=torch.float32)
        best = [
            top_k(torch.log_softmax(part.float(), dim=-1, out=buffer[: len(part)]), self.num_candidates)
            for part in parts
        ]
        greatest, self.tokens = (torch.cat(each) for each in zip(*best))
        others = torch.log1p(-greatest.exp().sum(dim=1, keepdim=True).clamp(max=1))
        self.tokens = nn.functional.pad(self.tokens, (0, 1))
        return torch.cat([greatest, others], dim=1).unsqueeze(1)


searching: ContextVar[BeamSearch | None] = ContextVar("searching", default=None)


class BeamSearchGenerationMixin(SourceLengthGenerationMixin):
    """For an encoder-decoder whose attention takes fewer rows of keys than of queries: `generate()` keeps one copy of
    what the beams or the samples of a source attend to; beam search never reorders a cache, goes on without the
    sources that are finished, and handles no more tokens than it may choose.

    A beam search has a `BeamSearchCache` where nothing else is asked for (`past_key_values`, `cache_implementation`,
    `prefill_chunk_size`, `return_dict_in_generate`, `synced_gpus`, `use_cache=False`) and the attention is "sdpa" or
    "eager"; else the ordinary cache."""

    def _expand_inputs_for_generation(self, expand_size=1, is_encoder_decoder=False, input_ids=None, **model_kwargs):
        of_sources = {name: model_kwargs.pop(name, None) for name in ("encoder_outputs", "attention_mask")}
        input_ids, model_kwargs = super()._expand_inputs_for_generation(
            expand_size=expand_size, input_ids=input_ids, **model_kwargs
        )
        return input_ids, model_kwargs | of_sources

    def _prepare_cache_for_generation(self, generation_config, model_kwargs, generation_mode, *args, **kwargs):
        mask = model_kwargs.get("attention_mask")
        if generation_config.prefill_chunk_size is not None and mask is not None and not mask.all():
            raise ValueError(
                f"prefill_chunk_size={generation_config.prefill_chunk_size}: transformers cuts the mask of padded "
                "sources into chunks of the decoder's prompt. Leave it out, or give sources of one length."
            )
        takes_any = (
            model_kwargs.get("past_key_values") is None
            and generation_config.use_cache
            and generation_config.cache_implementation is None
            and generation_config.prefill_chunk_size is None
            and not generation_config.return_dict_in_generate
        )
        super()._prepare_cache_for_generation(generation_config, model_kwargs, generation_mode, *args, **kwargs)
        is_beam_search = generation_mode in (GenerationMode.BEAM_SEARCH, GenerationMode.BEAM_SAMPLE)
        if takes_any and is_beam_search and self.config._attn_implementation in ("sdpa", "eager"):
            model_kwargs["past_key_values"] = BeamSearchEncoderDecoderCache(
                generation_config.num_beams, model_kwargs["past_key_values"].cross_attention_cache
            )

    def _prepare_static_cache(self, *args, model_kwargs, **kwargs):
        # The entries of the cross-attention hold the keys and values of a recurrence encoder too.
        encoder_outputs = model_kwargs["encoder_outputs"]
        if (states := getattr(encoder_outputs, "recurrence_last_hidden_state", None)) is not None:
            both = torch.cat([encoder_outputs.last_hidden_state, states], dim=1)
            model_kwargs = {**model_kwargs, "encoder_outputs": (both,)}
        return super()._prepare_static_cache(*args, model_kwargs=model_kwargs, **kwargs)

    def _beam_search(self, input_ids, logits_processor, stopping_criteria, generation_config, *args, **kwargs):
        search, cache = None, kwargs.get("past_key_values")
        if isinstance(cache, BeamSearchEncoderDecoderCache) and kwargs.get("synced_gpus"):
            # A process that is finished goes on, without reordering, until the others are.
            own = DynamicCache(config=self.config.get_text_config(decoder=True))
            kwargs["past_key_values"] = EncoderDecoderCache(own, cache.cross_attention_cache)
        elif isinstance(cache, BeamSearchEncoderDecoderCache):
            search = BeamSearch(cache, num_candidates=None)
            ends = generation_config._eos_token_tensor
            candidates = max(2, 1 + (0 if ends is None else len(ends))) * generation_config.num_beams
            vocab_size = self.config.decoder_vocab_size or self.config.vocab_size
            if not logits_processor and not generation_config.do_sample and candidates < vocab_size:
                search.num_candidates = candidates
        token = searching.set(search)
        try:
            return super()._beam_search(
                input_ids, logits_processor, stopping_criteria, generation_config, *args, **kwargs
            )
        finally:
            searching.reset(token)

    def prepare_inputs_for_generation(self, input_ids, *args, **kwargs):
        search = searching.get()
        is_searched = search is not None and kwargs.get("past_key_values") is search.cache
        if is_searched and (left := search.cache.self_attention_cache).sources is not None:
            input_ids = left.select(input_ids)
            # Their keys and values are in the cache: only the number of sources still matters.
            encoder_outputs = kwargs["encoder_outputs"]
            states = {name: each for name, each in encoder_outputs.items() if isinstance(each, torch.Tensor)}
            kwargs["encoder_outputs"] = type(encoder_outputs)(
                **{name: each[: len(left.sources)] for name, each in states.items()}
            )
            if (mask := kwargs.get("attention_mask")) is not None:
                kwargs["attention_mask"] = mask[left.sources]
            if (mask := kwargs.get("decoder_attention_mask")) is not None:
                kwargs["decoder_attention_mask"] = left.select(mask)
        inputs = super().prepare_inputs_for_generation(input_ids, *args, **kwargs)
        mask, made = kwargs.get("decoder_attention_mask"), inputs.get("decoder_attention_mask")
        if mask is not None and made is not None and made.ndim > mask.ndim == 2:
            # Of a static cache: padding before a prompt can no longer be told from the mask.
            if self.config.position_counting == "mask":
                positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
                inputs["position_ids"] = positions[:, -inputs["decoder_input_ids"].shape[1] :]
        return inputs

    def _update_model_kwargs_for_generation(self, outputs, *args, **kwargs):
        search = searching.get()
        if search is not None and outputs.get("past_key_values") is not search.cache:
            searching.set(None)  # PEFT's prefix tuning has put a cache of its own in the place of this one
        elif search is not None:
            restore = search.cache.self_attention_cache.restore
            if search.num_candidates is not None:
                outputs.logits = search.narrow(outputs.logits)
                search.tokens = restore(search.tokens)
            outputs.logits = restore(outputs.logits)
        return super()._update_model_kwargs_for_generation(outputs, *args, **kwargs)

    def _get_top_k_continuations(self, accumulated_log_probs, *args, cur_len, decoder_prompt_len, **kwargs):
        search = searching.get()
        is_narrow = search is not None and search.num_candidates is not None
        if is_narrow:
            accumulated_log_probs[:, search.num_candidates :: search.num_candidates + 1] = -math.inf
        log_probs, sequences, beam_indices = super()._get_top_k_continuations(
            accumulated_log_probs, *args, cur_len=cur_len, decoder_prompt_len=decoder_prompt_len, **kwargs
        )
        if is_narrow:
            rows = beam_indices[:, :, cur_len - decoder_prompt_len].long()
            sequences[:, :, cur_len] = search.tokens[rows, sequences[:, :, cur_len]]
        return log_probs, sequences, beam_indices

    def _check_early_stop_heuristic(self, *args, is_sent_finished, early_stopping, **kwargs):
        can_improve = super()._check_early_stop_heuristic(
            *args, is_sent_finished=is_sent_finished, early_stopping=early_stopping, **kwargs
        )
        if (search := searching.get()) is not None:
            # Nothing changes the finished hypotheses of the other sources any more.
            is_full = is_sent_finished.all(dim=1) & (early_stopping is True)
            search.cache.keep_sources(can_improve.squeeze(1) & ~is_full)
        return can_improve

    def _reorder_cache(self, past_key_values: Cache, beam_idx: torch.LongTensor) -> Cache:
        # The beams of a source attend to the same encoder output, whatever their order.
        past_key_values.self_attention_cache.reorder_cache(beam_idx)
        return past_key_values


def position_limit(config: PreTrainedConfig) -> int | None:
    """The most tokens of a sequence; None where positions are computed for any length."""
    if getattr(config, "position_embedding_type", "learned") in ("learned", "absolute"):
        return getattr(config, "max_position_embeddings", None)
    return None


def generate_with_scores(
    model, inputs: Mapping[str, torch.Tensor], **options
) -> tuple[torch.LongTensor, torch.FloatTensor]:
    """What `generate()` returns, token ids of shape (sources * num_return_sequences, length), and the score of each.

    The score is an output's log-probability divided by its length in tokens, the end-of-sequence token included in
    both: in beam search by `length ** length_penalty`, what the search ranks by; in greedy search and sampling, where
    the model's own probabilities count, temperature and the like excluded, by the length.

    Args:
        model: an encoder-decoder of transformers, or an ensemble.
        inputs: `input_ids` and `attention_mask` of the sources, (sources, length) each.
        options: those of `generate()`.

    `generate()` keeps the scores of all tokens at all steps: 4 * steps * sources * beams * vocabulary bytes. Give
    fewer sources at a time than without scores.
    """
    config, _ = model._prepare_generation_config(**{"generation_config": None, **options})
    if config.stop_strings is None:
        options.pop("tokenizer", None)  # generate() would pass it on to the model
    is_beam_search = (config.num_beams or 1) > 1
    asked = {
        "return_dict_in_generate": True,
        "output_scores": is_beam_search,
        "output_logits": not is_beam_search,
    }
    if options.get("generation_config") is not None:
        # generate() wants either a configuration or options.
        options["generation_config"] = copy.deepcopy(options["generation_config"])
        options["generation_config"].update(**asked)
    else:
        options |= asked
    outputs = model.generate(**inputs, **options)
    if is_beam_search:
        return outputs.sequences, outputs.sequences_scores
    tokens = outputs.sequences[:, -len(outputs.logits) :]
    ends = [] if config.eos_token_id is None else config.eos_token_id
    is_end = torch.isin(tokens, torch.tensor(ends).to(tokens))
    counts = is_end.cumsum(1) - is_end.long() == 0  # the first end token counts, what follows is padding
    may_end_otherwise = config.stop_strings is not None or options.get("stopping_criteria")
    if config.pad_token_id is not None and may_end_otherwise:
        is_padding = tokens == config.pad_token_id
        counts &= is_end | ~is_padding.flip(1).cumprod(1).flip(1).bool()
        counts[:, 0] = True
    log_probabilities = torch.cat(
        [logits.log_softmax(-1).gather(1, tokens[:, i : i + 1]) for i, logits in enumerate(outputs.logits)], dim=1
    )
    return outputs.sequences, log_probabilities.where(counts, 0).sum(1) / counts.sum(1)


def n_best(model, tokenizer, inputs: Mapping[str, torch.Tensor], **options) -> list[list[tuple[str, float]]]:
    """Generates, and returns for each source its `num_return_sequences` outputs as (text, score), the best first.

    `tokenizer` is the target's, which finds `stop_strings` too; for the score, the memory and the other arguments see
    `generate_with_scores`.
    """
    sequences, scores = generate_with_scores(model, inputs, **{"tokenizer": tokenizer, **options})
    texts = tokenizer.batch_decode(sequences, skip_special_tokens=True)
    hypotheses = list(zip((text.strip() for text in texts), scores.tolist()))
    number = len(hypotheses) // len(inputs["input_ids"])
    groups = [hypotheses[start : start + number] for start in range(0, len(hypotheses), number)]
    return [sorted(group, key=lambda hypothesis: -hypothesis[1]) for group in groups]
