# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""`generate()` with length limits that depend on the source: `max_len_a` and `max_len_b`, which transformers lacks."""

import copy
import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from types import ModuleType
from typing import Any

import torch
from transformers import PreTrainedConfig
from transformers.generation import GenerationConfig, GenerationMixin, LogitsProcessor, LogitsProcessorList
from transformers.modeling_outputs import Seq2SeqLMOutput

from .layers_ode_transformer import one_cache


# What the installed transformers calls the cache, in outputs, in `generate()` and in its layers: "cache" since 5.24.
CACHE_NAMES = ("cache", "past_key_values")
CACHE_NAME = next(name for name in CACHE_NAMES if name in Seq2SeqLMOutput.__dataclass_fields__)
MAX_LEN_OPTIONS = ("max_len_a", "max_len_b")


def position_limit(config: PreTrainedConfig) -> int | None:
    """The most tokens in a sequence; None if positions are computed for any length."""
    if getattr(config, "position_embedding_type", "learned") in ("learned", "absolute"):
        return getattr(config, "max_position_embeddings", None)
    return None


def option(model: GenerationMixin, name: str, generation_config: GenerationConfig | None, given: Mapping) -> Any:
    """An option of `generate()`: from the arguments, else this configuration, else the model's own."""
    if name in given:
        return given[name]
    value = getattr(generation_config, name, None)
    return getattr(model.generation_config, name, None) if value is None else value


def with_option(name: str, value: Any, generation_config: GenerationConfig | None, given: dict) -> tuple:
    """Copies of the configuration and the arguments with another value of an option."""
    if generation_config is None:
        return None, given | {name: value}
    generation_config = copy.deepcopy(generation_config)
    setattr(generation_config, name, value)
    return generation_config, {other: each for other, each in given.items() if other != name}


class SourceLengthLogitsProcessor(LogitsProcessor):
    """Ends each output after `int(max_len_a * source length + max_len_b)` tokens, like `--max-len-a` and `--max-len-b`
    of fairseq's sequence generator. Only the end-of-sequence token can follow: it is not one of these tokens, but its
    log-probability counts. Padding does not count as source, so an output does not depend on the other sources of its
    batch (except with `early_stopping="never"`, which looks at the longest limit).

    `OdeTransformerForConditionalGeneration` and ensembles create one from `max_len_a` and `max_len_b`, given to
    `generate()` or in the generation configuration. With any other encoder-decoder of transformers:

    ```python
    limit = SourceLengthLogitsProcessor(inputs["attention_mask"].sum(1), 1.2, 10, model.generation_config.eos_token_id)
    model.generate(**inputs, logits_processor=LogitsProcessorList([limit]), max_new_tokens=limit.max_new_tokens)
    ```

    Args:
        source_lengths: the tokens in each source, its end token included: integers of shape (sources,).
        max_len_a, max_len_b: numbers of at least 0. With two zeros, outputs are empty.
        eos_token_id: the end-of-sequence token, or several.
        prompt_length: number of tokens that the decoder starts with.
        min_new_tokens: the smallest limit.
        max_new_tokens: the most tokens in an output, its end-of-sequence token included; None: any number.

    Raises:
        ValueError: there is no end-of-sequence token.
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
        if eos_token_id is None or eos_token_id == []:
            raise ValueError("max_len_a and max_len_b end outputs with the end-of-sequence token: set eos_token_id.")
        self.eos_token_ids = torch.as_tensor(eos_token_id).view(-1).tolist()
        self.prompt_length = prompt_length
        limits = (max_len_a * source_lengths.double() + max_len_b).long().clamp(min=min_new_tokens)
        self.limits = limits if max_new_tokens is None else limits.clamp(max=max_new_tokens - 1)
        self.shortest = int(self.limits.min())

    @property
    def max_new_tokens(self) -> int:
        """The length of the longest possible output, its end-of-sequence token included."""
        return int(self.limits.max()) + 1

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        length = input_ids.shape[1] - self.prompt_length
        if length < self.shortest:
            return scores
        # Each source has several rows in succession: its beams, or its samples.
        ends = (self.limits <= length).repeat_interleave(len(scores) // len(self.limits)).to(scores.device)
        ending = torch.full_like(scores, -math.inf)
        ending[:, self.eos_token_ids] = scores[:, self.eos_token_ids]
        return torch.where(ends.unsqueeze(1), ending, scores)


def mask_of_sources(inputs: torch.Tensor | None, given: Mapping, pad_token_id: int | None) -> torch.Tensor:
    """1 for tokens of the sources, 0 for padding, (sources, length), from the arguments of `generate()`."""
    if given.get("attention_mask") is not None:
        return given["attention_mask"]
    ids = given.get("input_ids") if inputs is None else inputs
    if ids is not None and ids.ndim == 2 and pad_token_id is not None:
        return ids != pad_token_id
    states = [each for each in (ids, given.get("inputs_embeds")) if each is not None]
    states = states or [(given.get("encoder_outputs") or [None])[0]]
    return torch.ones(states[0].shape[:2], device=states[0].device)


def prepared_prompt_length(value: Callable[[str], Any], prompt: torch.LongTensor | None) -> int:
    """The number of tokens the decoder starts with: the start token, then the prompt (sources, length), if any."""
    if prompt is None:
        return 1
    start = value("bos_token_id") if value("decoder_start_token_id") is None else value("decoder_start_token_id")
    return prompt.shape[1] + int((prompt[:, 0] != torch.as_tensor(start, device=prompt.device)).all())


def with_source_limits(
    model: GenerationMixin, inputs: torch.Tensor | None, generation_config: GenerationConfig | None, given: dict
) -> tuple[GenerationConfig | None, dict]:
    """The configuration and the other arguments of `generate()` with `max_len_a` and `max_len_b`, if any, as a
    `SourceLengthLogitsProcessor` and, if nothing else limits outputs, `max_new_tokens`."""

    def value(name):
        return option(model, name, generation_config, given)

    limits = [value(name) for name in MAX_LEN_OPTIONS]
    given = {name: each for name, each in given.items() if name not in MAX_LEN_OPTIONS}
    if limits == [None, None]:
        return generation_config, given
    limits = [limit or 0 for limit in limits]
    sources = mask_of_sources(inputs, given, value("pad_token_id"))
    prompt_length = prepared_prompt_length(value, given.get("decoder_input_ids"))
    shortest = value("min_new_tokens")
    shortest = max((value("min_length") or 0) - prompt_length, 0) if shortest is None else shortest
    longest = value("max_new_tokens")
    if longest is None and value("max_length") is not None:
        longest = value("max_length") - prompt_length
    elif longest is None:
        longest = int(limits[0] * sources.shape[1] + limits[1])
        positions = getattr(model.config, "max_position_embeddings", None) or math.inf
        longest = max(min(longest, positions - prompt_length), shortest) + 1
        generation_config, given = with_option("max_new_tokens", longest, generation_config, given)
    lengths, ends = sources.sum(1), value("eos_token_id")
    processor = SourceLengthLogitsProcessor(lengths, *limits, ends, prompt_length, shortest, longest)
    processors = LogitsProcessorList([*(given.get("logits_processor") or []), processor])
    return generation_config, given | {"logits_processor": processors}


def package_search() -> ModuleType | None:
    """The package's beam search, which finds what transformers' does in less time; None where the package is not
    installed."""
    try:
        from modeling_ode_transformer.inference import beam_search
    except ImportError:
        return None
    return beam_search


class OdeTransformerGenerationMixin(GenerationMixin):
    """`generate()` of this package's models and of ensembles.

    - That of encoder-decoders takes `max_len_a` and `max_len_b`, as arguments or from the generation configuration,
      which saves and loads them; see `SourceLengthLogitsProcessor`. A missing one is 0. `min_length` and
      `min_new_tokens` also apply to short sources. If `max_length` or `max_new_tokens` is set, it limits all outputs.
      Otherwise the decoder's `max_position_embeddings` does, as in fairseq, even if positions are computed. Set
      `max_length` for evaluations by `Seq2SeqTrainer`, which otherwise sets it to 20.
    - Where the package is installed and `has_package_search`, it searches beams. With
      `cache_implementation="static"` its steps are compiled, with the options of `compile_config` if given.
    - It takes the cache by both names, and uses none while blocks are recomputed in training (gradient checkpointing):
      these fill none.
    """

    has_package_search = True

    def generate(self, inputs=None, generation_config=None, logits_processor=None, stopping_criteria=None, **kwargs):
        given = {"logits_processor": logits_processor, "stopping_criteria": stopping_criteria}
        given = {name: each for name, each in given.items() if each is not None} | kwargs
        if (cache := one_cache(*(given.pop(name, None) for name in CACHE_NAMES))) is not None:
            given[CACHE_NAME] = cache
        if self.recomputes():
            generation_config, given = with_option("use_cache", False, generation_config, given)
        if not self.config.is_encoder_decoder:
            return super().generate(inputs, generation_config, **given)
        if given.get("encoder_outputs") is not None:
            # transformers repeats the states for beams in place.
            given["encoder_outputs"] = copy.copy(given["encoder_outputs"])
        if isinstance(assistant := given.get("assistant_model"), OdeTransformerGenerationMixin):
            given["assistant_model"] = assistant._with_target_vocabulary()
        search = package_search() if self.has_package_search else None
        call = generation_config, given
        with search.searching(self, inputs, *call) if search else nullcontext(call) as (generation_config, given):
            generation_config, given = with_source_limits(self, inputs, generation_config, given)
            model = self._with_target_vocabulary()
            return super(OdeTransformerGenerationMixin, model).generate(inputs, generation_config, **given)

    def init_continuous_batching(self, *args, **kwargs):
        raise NotImplementedError(
            "Continuous batching (`generate_batch`) has no place for the keys of every evaluation of a block, nor for "
            "relative positions: call `generate` with batches."
        )

    def recomputes(self) -> bool:
        """Whether blocks are recomputed in the model's current mode."""
        return self.training and any(getattr(module, "gradient_checkpointing", False) for module in self.modules())

    def save_pretrained(self, *args, **kwargs):
        # Marked as derived from the model's configuration, it would lose its other options when loaded.
        self.generation_config._from_model_config = False
        return super().save_pretrained(*args, **kwargs)

    def prepare_inputs_for_generation(self, *args, inputs_embeds=None, tokenizer=None, **kwargs):
        # generate() looks for the first name, and passes on the tokenizer for `stop_strings`, which the model does not
        # take.
        inputs = super().prepare_inputs_for_generation(*args, inputs_embeds=inputs_embeds, **kwargs)
        mask, made = kwargs.get("decoder_attention_mask"), inputs.get("decoder_attention_mask")
        if mask is not None and made is not None and made.ndim > mask.ndim == 2:
            # A static cache's mask no longer shows the padding before a prompt.
            if getattr(self.config, "position_counting", None) == "mask":
                positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
                inputs["position_ids"] = positions[:, -inputs["decoder_input_ids"].shape[1] :]
        return inputs

    def _with_target_vocabulary(self) -> "OdeTransformerGenerationMixin":
        """The model, with the targets' vocabulary size where generation reads it: `config.get_text_config()`."""
        if getattr(self.config, "decoder_vocab_size", None) is None:
            return self
        model = copy.copy(self)
        model.config = self.config.get_text_config(decoder=True)
        return model

    def compute_transition_scores(self, *args, **kwargs):
        model = self._with_target_vocabulary()
        return super(OdeTransformerGenerationMixin, model).compute_transition_scores(*args, **kwargs)
