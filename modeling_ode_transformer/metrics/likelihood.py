# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Log-probabilities of given outputs, by an encoder-decoder from their sources or by a language model.

    ode-transformer score likelihood --model multi30k_en_de --sources test.en --targets test.de

They rerank the outputs of other models, and filter noisy pairs. For pairs, the dual conditional cross-entropy of
Junczys-Dowmunt (2018) takes two models, one for each direction.
"""

import json
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForSeq2SeqLM, PreTrainedModel, PreTrainedTokenizerBase

from ..generation_ode_transformer import position_limit
from ..inference.cpu import cross_entropy
from ..inference.tokenizers import encode_texts, load_tokenizers, marks_languages
from ..model_folders import open_config, open_model
from ..text_files import read_lines
from .metric_utils import check_lists
from .perplexity import load_model, token_likelihoods


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
        sources, targets: Texts, as many of each. Sources are cut to the model's positions.
        target_tokenizer: That of the targets; None or `tokenizer` itself if they share it.
        batch_size: Pairs per forward pass.

    Returns:
        For each pair the tokens of its target, the end mark included, and their log-probabilities in nats, float32
        (tokens,). The mark of a language, with which outputs begin, is left out.

    Raises:
        ValueError: the lists are empty, or sources and targets differ in number.
    """
    check_lists(sources=sources, targets=targets)
    # A tokenizer alone may have two sides, as Marian's.
    is_shared = target_tokenizer is None or target_tokenizer is tokenizer
    sides = (tokenizer, "text_target") if is_shared else (target_tokenizer, "text")
    encoded, _ = encode_texts(list(sources), tokenizer, position_limit(model.config))
    labels = [sides[0](**{sides[1]: text}, verbose=False)["input_ids"] for text in targets]
    found: dict[int, np.ndarray] = {}
    order = sorted(range(len(sources)), key=lambda i: -len(encoded[i]) - len(labels[i]))
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        inputs = tokenizer.pad({"input_ids": [encoded[i] for i in batch]}, return_tensors="pt").to(model.device)
        padded = pad_sequence([torch.tensor(labels[i]) for i in batch], batch_first=True, padding_value=-100)
        padded = padded.to(model.device)
        logits = model(**inputs, labels=padded).logits
        scores = -cross_entropy(logits.flatten(0, 1), padded.flatten()).view_as(padded).cpu().numpy()
        found |= {i: row[: len(labels[i])] for i, row in zip(batch, scores)}
    kept = slice(None)
    if marks_languages(sides[0]):
        first, _ = sides[0](text_target="")["input_ids"]
        kept = slice(0, -1) if first == sides[0].eos_token_id else slice(1, None)
    return [(sides[0].convert_ids_to_tokens(ids[kept]), found[i][kept]) for i, ids in enumerate(labels)]


def score_files(
    model: str,
    targets: str,
    sources: str | None = None,
    n_best: bool = False,
    tokens: bool = False,
    src_lang: str | None = None,
    tgt_lang: str | None = None,
    batch_size: int = 32,
) -> Iterator[str]:
    """The lines that `ode-transformer score likelihood` prints: the log-probability of each output, or, with `tokens`,
    a JSON object with its `tokens` and their `log_probabilities`.

    Raises:
        OSError: a file or the model is missing.
        ValueError: an encoder-decoder without sources, or a language model with them; the files do not fit together.
    """
    is_pair = open_config(model).is_encoder_decoder
    if is_pair != (sources is not None):
        raise ValueError(
            f"{model} is {'an encoder-decoder: give' if is_pair else 'a language model: leave out'} --sources."
        )
    numbers, texts = read_n_best(targets) if n_best else ([], read_lines(targets))
    if sources is None:
        scored = token_likelihoods(*load_model(model), texts, batch_size)
    else:
        lines = read_lines(sources)
        tokenizer, target_tokenizer = load_tokenizers(model, src_lang=src_lang, tgt_lang=tgt_lang)
        opened = open_model(AutoModelForSeq2SeqLM, model, dtype=torch.float32)
        of_sources = sources_of(numbers, lines, targets) if n_best else lines
        scored = target_likelihoods(opened, tokenizer, of_sources, texts, target_tokenizer, batch_size)
    for pieces, scores in scored:
        if tokens:
            values = {"tokens": pieces, "log_probabilities": scores.tolist()}
            yield json.dumps(values, ensure_ascii=False)
        else:
            yield f"{scores.sum(dtype=np.float64):.6f}"


def sources_of(numbers: list[int], lines: list[str], path: str) -> list[str]:
    """The source of each output of an n-best list; a ValueError if there is none of a number."""
    numbered = dict(enumerate(lines, 1))
    if unknown := [number for number in numbers if number not in numbered]:
        raise ValueError(f"{path} has outputs of source {unknown[0]}, but --sources has the lines 1 to {len(lines)}.")
    return [numbered[number] for number in numbers]


def read_n_best(path: str) -> tuple[list[int], list[str]]:
    """The numbers of the sources and the outputs of an n-best list, whose lines are `number<TAB>text` or
    `number<TAB>score<TAB>text`."""
    fields = [line.split("\t") for line in read_lines(path)]
    if not all(len(line) > 1 and line[0].isdigit() for line in fields):
        raise ValueError(f"{path} is not an n-best list, whose lines are number<TAB>text.")
    return [int(line[0]) for line in fields], [line[-1] for line in fields]
