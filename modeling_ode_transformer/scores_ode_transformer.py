# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Outputs of `generate()` with or without scores, and n-best lists: for this package's models, other encoder-decoders
of transformers, and ensembles."""

import copy
from collections.abc import Mapping

import torch

from .generation_ode_transformer import OdeTransformerGenerationMixin, option, package_search


def generate_with_scores(
    model, inputs: Mapping[str, torch.Tensor], return_scores: bool = True, **options
) -> tuple[torch.LongTensor, torch.FloatTensor]:
    """Returns the token ids from `generate()`, (sources * num_return_sequences, length), and the score of each output.

    The score is an output's log-probability divided by its length in tokens, both including the end-of-sequence token.
    Beam search divides by `length ** length_penalty`, by which it ranks. Greedy search and sampling divide by the
    length; they count the model's own probabilities, without temperature and the like.

    Args:
        model: an encoder-decoder of transformers, or an ensemble.
        inputs: `input_ids` and `attention_mask` of the sources, (sources, length) each.
        return_scores: whether to compute scores; False: they are 0 and cost nothing.
        options: options of `generate()`. A `tokenizer` that nothing needs is ignored.

    Except in a beam search of this package's models, `generate()` keeps the scores of all tokens at all steps: 4 *
    steps * sources * beams * vocabulary bytes. Give fewer sources at a time than without scores.
    """
    given = options.get("generation_config")

    def value(name):
        return option(model, name, given, options)

    if not (value("stop_strings") or value("token_healing") or options.get("assistant_tokenizer")):
        options.pop("tokenizer", None)  # generate() would pass it on to the model
    if not return_scores:
        sequences = model.generate(**inputs, **options)
        return sequences, torch.zeros(len(sequences), device=sequences.device)
    is_ours = isinstance(model, OdeTransformerGenerationMixin) and model.has_package_search
    search = package_search() if is_ours else None
    if search is not None and search.searches_beams(model, **inputs, **options):
        return model.generate(**inputs, **options, custom_generate=search.beam_search, return_scores=True)
    is_beam_search = (value("num_beams") or 1) > 1
    asked = {"return_dict_in_generate": True, "output_scores": is_beam_search, "output_logits": not is_beam_search}
    if given is not None:
        # generate() takes either a configuration or options.
        options["generation_config"] = copy.deepcopy(given)
        options["generation_config"].update(**asked)
    else:
        options |= asked
    outputs = model.generate(**inputs, **options)
    if is_beam_search:
        return outputs.sequences, outputs.sequences_scores
    tokens = outputs.sequences[:, -len(outputs.logits) :]
    ends = [] if value("eos_token_id") is None else value("eos_token_id")
    is_end = torch.isin(tokens, torch.tensor(ends).to(tokens))
    counts = is_end.cumsum(1) - is_end.long() == 0  # the first end token counts, later ones are padding
    may_end_otherwise = value("stop_strings") is not None or options.get("stopping_criteria")
    if value("pad_token_id") is not None and may_end_otherwise:
        is_padding = tokens == value("pad_token_id")
        counts &= is_end | ~is_padding.flip(1).cumprod(1).flip(1).bool()
        counts[:, 0] = True
    log_probabilities = torch.cat(
        [logits.log_softmax(-1).gather(1, tokens[:, i : i + 1]) for i, logits in enumerate(outputs.logits)], dim=1
    )
    return outputs.sequences, log_probabilities.where(counts, 0).sum(1) / counts.sum(1)


def n_best(
    model, tokenizer, inputs: Mapping[str, torch.Tensor], return_scores: bool = True, **options
) -> list[list[tuple[str, float]]]:
    """Generates, and returns for each source its `num_return_sequences` outputs as (text, score), the best first.

    `tokenizer` is the target's; it also finds `stop_strings`. A beam search's scores are those of transformers.
    `modeling_ode_transformer.scores_ode_transformer.generate_with_scores` describes scores, memory and the other
    arguments.
    """
    sequences, scores = generate_with_scores(model, inputs, return_scores, **{"tokenizer": tokenizer, **options})
    texts = tokenizer.batch_decode(sequences, skip_special_tokens=True)
    hypotheses = list(zip((text.strip() for text in texts), scores.tolist()))
    number = len(hypotheses) // len(inputs["input_ids"])
    groups = [hypotheses[start : start + number] for start in range(0, len(hypotheses), number)]
    return [sorted(group, key=lambda hypothesis: -hypothesis[1]) for group in groups]
