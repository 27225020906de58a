# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""What generate() lacks: outputs whose greatest length depends on their source, and n-best lists with scores."""

import copy
import math
from collections.abc import Mapping
from typing import Any

import torch
from transformers import PreTrainedConfig
from transformers.generation import GenerationConfig, GenerationMixin, LogitsProcessor, LogitsProcessorList


MAX_LEN_OPTIONS = ("max_len_a", "max_len_b")


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


class SourceLengthGenerationMixin(GenerationMixin):
    """For an encoder-decoder: `generate()` takes `max_len_a` and `max_len_b`, as arguments or from the generation
    configuration, which saves and loads them; see `SourceLengthLogitsProcessor`. One that is missing is 0.

    `min_length` and `min_new_tokens` hold for short sources too. A `max_length` or `max_new_tokens` that is set limits
    all outputs; else the decoder's `max_position_embeddings` do. Set a `max_length` for the evaluations of
    `Seq2SeqTrainer`, which else sets it to 20."""

    def save_pretrained(self, *args, **kwargs):
        # A generation configuration that is marked as made from the model's loses other options when it is loaded.
        self.generation_config._from_model_config = False
        return super().save_pretrained(*args, **kwargs)

    def _prepare_generation_config(self, generation_config: GenerationConfig | None, **kwargs: Any):
        given = {name: kwargs.pop(name) for name in MAX_LEN_OPTIONS if name in kwargs}
        generation_config, model_kwargs = super()._prepare_generation_config(generation_config, **kwargs)
        for name, value in given.items():
            setattr(generation_config, name, value)
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
        return super()._get_logits_processor(
            generation_config,
            input_ids_seq_length,
            encoder_input_ids,
            *args,
            logits_processor=logits_processor,
            model_kwargs=model_kwargs,
            **kwargs,
        )


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
    log_probabilities = torch.cat(
        [logits.log_softmax(-1).gather(1, tokens[:, i : i + 1]) for i, logits in enumerate(outputs.logits)], dim=1
    )
    return outputs.sequences, log_probabilities.where(counts, 0).sum(1) / counts.sum(1)


def n_best(model, tokenizer, inputs: Mapping[str, torch.Tensor], **options) -> list[list[tuple[str, float]]]:
    """Generates, and returns for each source its `num_return_sequences` outputs as (text, score), the best first.

    `tokenizer` is the target's; for the score, the memory and the other arguments see `generate_with_scores`.
    """
    sequences, scores = generate_with_scores(model, inputs, **options)
    texts = tokenizer.batch_decode(sequences, skip_special_tokens=True)
    hypotheses = list(zip((text.strip() for text in texts), scores.tolist()))
    number = len(hypotheses) // len(inputs["input_ids"])
    groups = [hypotheses[start : start + number] for start in range(0, len(hypotheses), number)]
    return [sorted(group, key=lambda hypothesis: -hypothesis[1]) for group in groups]
