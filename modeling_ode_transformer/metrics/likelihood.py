# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Log-probabilities of given outputs, by an encoder-decoder from their sources or by a language model.

    ode-transformer score likelihood --model multi30k_en_de --sources test.en --targets test.de

They rerank the outputs of other models, and filter noisy pairs. For pairs, the dual conditional cross-entropy of
Junczys-Dowmunt (2018) takes two models, one for each direction.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..inference.cpu import cross_entropy
from ..inference.tokenizers import marks_languages
from .metric_utils import check_lists


@torch.no_grad()
def target_likelihoods(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sources: Sequence[str],
    targets: Sequence[str],
    target_tokenizer: PreTrainedTokenizerBase | None = None,
    batch_size: int = 32,
) -> list[tuple[list[str], np.ndarray]]:
    """The log-probabilities of targets, given their sources.

    Args:
        model: An encoder-decoder, in evaluation mode.
        tokenizer: That of the sources, and of the targets if they have no other.
        sources, targets: Texts, as many of each.
        target_tokenizer: That of the targets, if they have one of their own.
        batch_size: Pairs per forward pass.

    Returns:
        For each pair the tokens of its target, the end mark included, and their log-probabilities in nats, float32
        (tokens,). The mark of a language, with which outputs begin, is left out.

    Raises:
        ValueError: there are no pairs, not as many sources as targets, or a text is longer than the model allows.
    """
    check_lists(sources=sources, targets=targets)
    # A tokenizer alone may have two sides, as Marian's.
    sides = (tokenizer, "text_target") if target_tokenizer is None else (target_tokenizer, "text")
    encoded = [tokenizer(text, verbose=False)["input_ids"] for text in sources]
    labels = [sides[0](**{sides[1]: text}, verbose=False)["input_ids"] for text in targets]
    found: dict[int, np.ndarray] = {}
    order = sorted(range(len(sources)), key=lambda i: -len(encoded[i]) - len(labels[i]))
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        inputs = tokenizer.pad({"input_ids": [encoded[i] for i in batch]}, return_tensors="pt").to(model.device)
        padded = pad_sequence([torch.tensor(labels[i]) for i in batch], batch_first=True, padding_value=-100)
        padded = padded.to(model.device)
        try:
            logits = model(**inputs, labels=padded).logits
        except IndexError as error:
            raise ValueError(
                f"The model has no positions for {inputs['input_ids'].shape[1]} tokens of a source or "
                f"{padded.shape[1]} of a target ({error}): leave such pairs out."
            ) from error
        scores = -cross_entropy(logits.flatten(0, 1), padded.flatten()).view_as(padded).cpu().numpy()
        found |= {i: row[: len(labels[i])] for i, row in zip(batch, scores)}
    kept = slice(None)
    if marks_languages(sides[0]):
        first, _ = sides[0](text_target="")["input_ids"]
        kept = slice(0, -1) if first == sides[0].eos_token_id else slice(1, None)
    return [(sides[0].convert_ids_to_tokens(ids[kept]), found[i][kept]) for i, ids in enumerate(labels)]
