# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""An ensemble of encoder-decoders of transformers: `generate()` averages their probabilities at every step."""

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput
from transformers.utils import ModelOutput

from ..generation_ode_transformer import CACHE_NAME, OdeTransformerGenerationMixin, one_cache


class EnsembleCache(Cache):
    """The caches of an ensemble's members, in the members' order."""

    # Whether or not the members' caches allow it.
    is_compileable = False
    is_croppable = False
    is_linear = (False,)

    def __init__(self, caches: Sequence[Cache]):
        self.caches = list(caches)

    def __len__(self) -> int:
        return len(self.caches)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.caches[0].get_seq_length(layer_idx)

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        for cache in self.caches:
            cache.reorder_cache(beam_idx)


class EnsembleForConditionalGeneration(OdeTransformerGenerationMixin, PreTrainedModel):
    """An ensemble of encoder-decoders of transformers. Its `generate()` averages the members' probabilities at every
    step and searches or samples with the logarithm of the mean, like fairseq's ensembles. Each member has its own
    encoder and cache. Architectures may differ; vocabularies may not, of which only sizes and special tokens are
    checked.

    It uses the first member's generation configuration, and takes `max_len_a` and `max_len_b`. A temperature changes
    the mean, not the members' probabilities. It searches greedily or by beams, or samples. An ensemble cannot be
    trained or saved: train, save and load its members.

    Args:
        models: the members, on one device. They are set to evaluation mode; their dtypes may differ.

    Raises:
        ValueError: there are no models; one is not an encoder-decoder or is on another device; or its vocabulary sizes
            or its start, end or pad token ids differ from those of the first.

    Example:

    ```python
    models = [AutoModelForSeq2SeqLM.from_pretrained(folder) for folder in ("first", "second")]
    ensemble = EnsembleForConditionalGeneration(models)
    ensemble.generate(**tokenizer(["Two dogs run."], return_tensors="pt"), num_beams=4)
    ```
    """

    has_package_search = False

    def __init__(self, models: Sequence[PreTrainedModel]):
        if not (models := list(models)):
            raise ValueError("An ensemble needs at least one model.")
        properties = [describe(model, number) for number, model in enumerate(models, 1)]
        for other in properties[1:]:
            for name, value in properties[0].items():
                if name != "model" and other[name] != value:
                    raise ValueError(
                        f"{other['model']} cannot join {properties[0]['model']} in an ensemble: its {name} is "
                        f"{other[name]}, not {value}."
                    )
        config = PreTrainedConfig(is_encoder_decoder=True, vocab_size=properties[0]["target vocabulary size"])
        limits = [getattr(model.config, "max_position_embeddings", None) for model in models]
        if limits := [limit for limit in limits if limit is not None]:
            config.max_position_embeddings = min(limits)
        super().__init__(config)
        self.members = nn.ModuleList(models)
        self.generation_config = copy.deepcopy(models[0].generation_config)
        self.eval()

    def encode(self, input_ids: torch.LongTensor, attention_mask: torch.Tensor | None = None) -> ModelOutput:
        """Returns the encoders' output tensors as member_0_last_hidden_state (batch, length, d), ..."""
        outputs = [
            member.get_encoder()(input_ids=input_ids, attention_mask=attention_mask, return_dict=True)
            for member in self.members
        ]
        return ModelOutput(
            {
                f"member_{i}_{name}": value
                for i, output in enumerate(outputs)
                for name, value in output.items()
                if isinstance(value, torch.Tensor)
            }
        )

    @staticmethod
    def encoder_outputs_of_member(encoder_outputs: ModelOutput, i: int) -> BaseModelOutput:
        """Extracts the encoder output of member `i` from the output of `encode`."""
        prefix = f"member_{i}_"
        output = BaseModelOutput()
        for name, value in encoder_outputs.items():
            if name.startswith(prefix):
                output[name.removeprefix(prefix)] = value
        return output

    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.LongTensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: ModelOutput | None = None,
        cache: EnsembleCache | None = None,
        use_cache: bool | None = None,
        return_dict: bool = True,
        past_key_values: EnsembleCache | None = None,
    ) -> Seq2SeqLMOutput:
        """Returns the logarithms of the mean probabilities as logits, (batch, target length, vocabulary) in float32.

        Args:
            input_ids: the sources, (batch, length); not needed with `encoder_outputs`.
            attention_mask: 1 for tokens of the sources, 0 for padding, (batch, length).
            decoder_input_ids: the targets so far, (batch, target length); with a cache, only the new tokens.
            decoder_attention_mask: 1 for tokens of the targets, 0 for padding.
            encoder_outputs: the output of `encode`.
            cache: the caches from an earlier call.
            use_cache: whether to return caches.
            past_key_values: the same as `cache`, its name before transformers 5.24.
        """
        cache = one_cache(cache, past_key_values)
        if encoder_outputs is None:
            encoder_outputs = self.encode(input_ids, attention_mask)
        outputs = [
            member(
                attention_mask=attention_mask,
                decoder_input_ids=decoder_input_ids,
                decoder_attention_mask=decoder_attention_mask,
                encoder_outputs=self.encoder_outputs_of_member(encoder_outputs, i),
                use_cache=use_cache,
                return_dict=True,
                **{CACHE_NAME: None if cache is None else cache.caches[i]},
            )
            for i, member in enumerate(self.members)
        ]
        log_probabilities = torch.stack([output.logits.float().log_softmax(-1) for output in outputs])
        caches = EnsembleCache([output[CACHE_NAME] for output in outputs]) if use_cache else None
        return Seq2SeqLMOutput(logits=log_probabilities.logsumexp(0) - math.log(len(outputs)), **{CACHE_NAME: caches})

    def _prepare_text_encoder_decoder_kwargs_for_generation(
        self, inputs_tensor: torch.Tensor, model_kwargs: dict[str, Any], *args, **kwargs
    ) -> dict[str, Any]:
        return model_kwargs | {"encoder_outputs": self.encode(inputs_tensor, model_kwargs.get("attention_mask"))}

    def _prepare_cache_for_generation(self, generation_config, model_kwargs: dict[str, Any], *args, **kwargs) -> None:
        if model_kwargs.get(CACHE_NAME) is not None or generation_config.use_cache is False:
            return
        caches = []
        for i, member in enumerate(self.members):
            member_kwargs = {"encoder_outputs": self.encoder_outputs_of_member(model_kwargs["encoder_outputs"], i)}
            member._prepare_cache_for_generation(generation_config, member_kwargs, *args, **kwargs)
            caches.append(member_kwargs[CACHE_NAME])
        model_kwargs[CACHE_NAME] = EnsembleCache(caches)

    def save_pretrained(self, *args, **kwargs):
        raise NotImplementedError("An ensemble has no weights of its own: save each member in its own folder.")


def describe(model: PreTrainedModel, number: int) -> dict[str, Any]:
    """The properties that members must share, by their names in error messages. "model" names the member there."""
    name = f"model {number} ({model.name_or_path or type(model).__name__})"
    if not model.config.is_encoder_decoder or not model.can_generate():
        raise ValueError(f"{name} is not an encoder-decoder that generates: ensembles accept only those.")
    generation_config = model.generation_config
    return {
        "model": name,
        "source vocabulary size": model.get_input_embeddings().weight.shape[0],
        "target vocabulary size": model.get_output_embeddings().out_features,
        "decoder_start_token_id": generation_config.decoder_start_token_id,
        "eos_token_id": generation_config.eos_token_id,
        "pad_token_id": generation_config.pad_token_id,
        "device": model.device,
    }
