# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Word perplexity of a causal language model, as in the tables of PTB, and bits per byte.

    ode-transformer score perplexity --model ptb_rk2 --texts ptb.test.txt.gz --block_size 128

It is exp(summed negative log-likelihood of all tokens / number of words). Words are separated by white space. The end
of each line counts as one more word, `</s>`, on an empty line too. For a subword model, the sum is divided by the same
number of words. It is therefore comparable with a word model that knows all words. A word model with a smaller
vocabulary predicts `<unk>` in place of rare words, which is easier.

Bits per byte are summed negative log-likelihood / ln 2 / number of bytes of the text as it is in the file, in UTF-8.
Each line's end counts as one byte ("\\n"), also the last one's, as each is predicted. They are comparable over
tokenizers that lose nothing of the text: not over those that have an `<unk>` for some words.

Texts are cut as in examples/run_language_modeling.py, which gives the same numbers.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ..inference.cpu import cross_entropy
from ..model_folders import open_model
from .metric_utils import check_lists


CONVENTION = "of a word, ends of lines included"


def split_words(line: str) -> list[str]:
    """The words of a line, separated by white space."""
    return [word for word, _ in WhitespaceSplit().pre_tokenize_str(line)]


def word_perplexity(nll: float | Sequence[float] | np.ndarray, words: int | Sequence[int] | np.ndarray) -> float:
    """exp(sum of nll / sum of words).

    Args:
        nll: Negative log-likelihood in nats, in total or for each text, summed over tokens.
        words: Number of words, in total or for each text, ends of lines included.
    """
    return float(np.exp(np.sum(nll, dtype=np.float64) / np.sum(words)))


def bits_per_byte(nll: float, number: int) -> float:
    """nll / ln 2 / number.

    Args:
        nll: Negative log-likelihood in nats of a whole text, ends of lines included.
        number: Bytes of the text in UTF-8, one for each end of a line included (`count_bytes`).
    """
    return nll / math.log(2) / number


def iterate_blocks(
    lines: Iterable[Sequence[int]], block_size: int, eos_token_id: int
) -> Iterator[tuple[list[int], list[int]]]:
    """Yields the blocks of `shift_blocks`, inputs and labels, one at a time."""
    before, block = eos_token_id, []
    for ids in lines:
        block += [*ids, eos_token_id]
        size = block_size or len(block)
        while len(block) >= size > 0:
            labels, block = block[:size], block[size:]
            yield [before, *labels[:-1]], labels
            before = labels[-1]
    if block:
        yield [before, *block[:-1]], block


def shift_blocks(
    lines: Sequence[Sequence[int]], block_size: int, eos_token_id: int
) -> tuple[list[list[int]], list[list[int]]]:
    """Inputs and labels of a language model: `labels[i][j]` follows `inputs[i][j]`.

    Args:
        lines: Token ids of each line, without the end of the sentence.
        block_size: The tokens of all lines are joined and cut into blocks of this size; the last one may be shorter.
            The first label of a block is predicted from the last token of the block before. 0: a block is a line.
        eos_token_id: Ends each line. It also precedes the first token of the text, or of each line.

    Returns:
        Blocks of input ids and blocks of labels. Every token and every end of a line is a label exactly once.
    """
    blocks = list(iterate_blocks(lines, block_size, eos_token_id))
    return [inputs for inputs, _ in blocks], [labels for _, labels in blocks]


def check_end_of_sentence(tokenizer: PreTrainedTokenizerBase) -> None:
    """ValueError if a tokenizer has no token that ends a line."""
    if tokenizer.eos_token_id is None:
        raise ValueError(f"The tokenizer of {tokenizer.name_or_path} has no end-of-sentence token: set its eos_token.")


@torch.no_grad()
def block_nll(
    model: PreTrainedModel, inputs: Sequence[Sequence[int]], labels: Sequence[Sequence[int]], batch_size: int = 8
) -> list[np.ndarray]:
    """Negative log-likelihood in nats of each label of each block, in float32 from the logits on.

    Args:
        model: A causal language model, in evaluation mode.
        inputs: Token ids of each block.
        labels: The token after each input token.
        batch_size: Blocks per forward pass, padded on the right.
    """
    losses = {}
    order = sorted(range(len(inputs)), key=lambda i: -len(inputs[i]))
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        ids = pad_sequence([torch.tensor(inputs[i]) for i in batch], batch_first=True).to(model.device)
        targets = pad_sequence([torch.tensor(labels[i]) for i in batch], batch_first=True, padding_value=-100)
        targets = targets.to(model.device)
        logits = model(input_ids=ids, attention_mask=(targets != -100).long()).logits
        of_tokens = cross_entropy(logits.flatten(0, 1), targets.flatten()).view_as(targets).cpu().numpy()
        losses |= {i: row[: len(labels[i])] for i, row in zip(batch, of_tokens)}
    return [losses[i] for i in range(len(inputs))]


def score_lines(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    lines: Sequence[str],
    block_size: int = 0,
    batch_size: int = 8,
) -> dict[str, np.ndarray]:
    """What `model_perplexity` sums, with the same arguments and errors: `nll` (float64, in nats), `words`, `tokens`,
    `unknown_tokens` and `bytes` of each line, its end included, (lines,) each."""
    check_lists(lines=lines)
    check_end_of_sentence(tokenizer)
    encoded = tokenizer(list(lines), add_special_tokens=False, split_special_tokens=True, verbose=False)["input_ids"]
    inputs, labels = shift_blocks(encoded, block_size, tokenizer.eos_token_id)
    of_tokens = np.concatenate(block_nll(model, inputs, labels, batch_size))
    tokens = np.array([len(ids) + 1 for ids in encoded])
    return {
        "nll": np.add.reduceat(of_tokens, tokens.cumsum() - tokens, dtype=np.float64),
        "words": count_words(lines),
        "tokens": tokens,
        "unknown_tokens": np.array([ids.count(tokenizer.unk_token_id) for ids in encoded]),
        "bytes": count_bytes(lines),
    }


def token_likelihoods(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, lines: Sequence[str], batch_size: int = 8
) -> list[tuple[list[str], np.ndarray]]:
    """For each line, by itself, its tokens, the end of the sentence included, and their log-probabilities in nats,
    (tokens,)."""
    check_lists(lines=lines)
    check_end_of_sentence(tokenizer)
    encoded = tokenizer(list(lines), add_special_tokens=False, split_special_tokens=True, verbose=False)["input_ids"]
    inputs, labels = shift_blocks(encoded, 0, tokenizer.eos_token_id)
    of_lines = block_nll(model, inputs, labels, batch_size)
    return [(tokenizer.convert_ids_to_tokens(ids), -nll) for ids, nll in zip(labels, of_lines)]


def count_words(lines: Sequence[str]) -> np.ndarray:
    """The number of words of each line, its end included, (lines,)."""
    return np.array([len(split_words(line)) + 1 for line in lines])


def count_bytes(lines: Iterable[str]) -> np.ndarray:
    """The number of bytes of each line in UTF-8, and one for its end, (lines,)."""
    return np.array([len(line.encode()) + 1 for line in lines])


def sum_lines(of_lines: dict[str, np.ndarray]) -> dict[str, float | int | str]:
    """The result of `model_perplexity`, from that of `score_lines`."""
    sums = {name: values.sum().item() for name, values in of_lines.items()}
    scores: dict[str, float | int | str] = {
        "perplexity": word_perplexity(of_lines["nll"], of_lines["words"]),
        "perplexity_convention": CONVENTION,
        "bits_per_byte": bits_per_byte(sums["nll"], sums["bytes"]),
    }
    return scores | sums


def model_perplexity(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    lines: Sequence[str],
    block_size: int = 0,
    batch_size: int = 8,
) -> dict[str, float | int | str]:
    """Word perplexity of a causal language model on lines of text.

    Args:
        model: The model, in evaluation mode.
        tokenizer: Its tokenizer, of words or subwords, with an end-of-sentence token. It adds no special tokens here.
        lines: Texts, one sentence each.
        block_size: Tokens per block of running text; 0: each line by itself (`shift_blocks`).
        batch_size: Blocks per forward pass.

    Returns:
        perplexity, its convention in words, bits_per_byte, nll (summed, in nats), words, tokens, unknown_tokens and
        bytes (ends of lines included).

    Raises:
        ValueError: there are no lines, or the tokenizer has no end-of-sentence token.
    """
    return sum_lines(score_lines(model, tokenizer, lines, block_size, batch_size))


def load_model(name: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The causal language model from a folder or the Hub in float32, and its tokenizer."""
    return open_model(AutoModelForCausalLM, name, dtype=torch.float32), AutoTokenizer.from_pretrained(name)
