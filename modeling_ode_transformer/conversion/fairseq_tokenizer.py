# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""From fairseq's dictionaries and the codes of subword-nmt or fastBPE to tokenizers with the same ids."""

from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers, processors
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerBase, TokenizersBackend

from ..text_files import read_lines
from ..tokenization_fairseq_ode_transformer import FairseqTokenizer


# Id 0 is not a beginning of sequence in fairseq 0.6.2, but it stands where later versions have one.
SPECIAL_TOKENS: dict[str, Any] = {
    "bos_token": "<Lua heritage>",
    "pad_token": "<pad>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
}
# fairseq pads its dictionaries to a multiple of this.
PADDING_FACTOR = 8


def read_dictionary(path: str | Path) -> list[str]:
    """The tokens of a fairseq dictionary (`dict.en.txt`: a token and its count a line) in the order of their ids.

    The special tokens `<Lua heritage>`, `<pad>`, `</s>` and `<unk>`, which the file does not hold, come first.

    Raises:
        ValueError: a line is not a token with a count, or its token was there before; the file and the line are named.
    """
    numbers = dict.fromkeys(SPECIAL_TOKENS.values())
    for number, line in enumerate(read_lines(path), 1):
        token, _, count = line.rpartition(" ")
        if not token or not count.isdecimal():
            raise ValueError(f"{path}, line {number}: {line!r} is not a token, a space and a count.")
        if token in numbers:
            before = "a special token" if numbers[token] is None else f"already on line {numbers[token]}"
            raise ValueError(f"{path}, line {number}: the token {token!r} is {before}.")
        numbers[token] = number
    return list(numbers)


def pad_dictionary(tokens: list[str], size: int, path: str | Path) -> list[str]:
    """The tokens with those that fairseq adds to reach a multiple of 8, if that is the size of the embedding.

    Raises:
        ValueError: the dictionary, padded or not, has another size than the embedding; both are named.
    """
    padded = len(tokens) + -len(tokens) % PADDING_FACTOR
    if size not in (len(tokens), padded):
        raise ValueError(
            f"{path} has {len(tokens)} tokens with the {len(SPECIAL_TOKENS)} special ones, {padded} if padded to a "
            f"multiple of {PADDING_FACTOR}, but the model embeds {size}: give the dictionary it was trained with."
        )
    known, padded_tokens, i = set(tokens), list(tokens), 0
    while len(padded_tokens) < size:
        token = f"madeupword{i:04d}"
        if token not in known:
            padded_tokens.append(token)
        i += 1
    return padded_tokens


def read_bpe_codes(path: str | Path) -> list[tuple[str, str]]:
    """The merges of subword-nmt (first line `#version: 0.2`) or fastBPE (a third column with counts), best first.

    Raises:
        ValueError: codes of subword-nmt 0.1, which ends words in another way, or a malformed line; the line is named.
    """
    lines = [line.strip(" ") for line in read_lines(path)]
    first = int(lines[:1] == ["#version: 0.2"])
    columns = 2 if first else 3
    merges: dict[tuple[str, str], None] = {}
    for number, line in enumerate(lines[first:], first + 1):
        if len(fields := line.split(" ")) != columns or not all(fields):
            raise ValueError(
                f"{path}, line {number}: {line!r} is not {'a pair' if first else 'a pair and its count'}, separated "
                "by single spaces. BPE codes of subword-nmt 0.2, whose first line is '#version: 0.2', and of fastBPE "
                "can be read."
            )
        merges.setdefault((fields[0], fields[1]))  # a pair that comes twice has its first rank
    return list(merges)


def check_bpe_codes(tokens: list[str], merges: list[tuple[str, str]], path: str | Path) -> None:
    """ValueError if codes are not those of a dictionary: less than half of the pieces that they make are in it,
    and they make less than half of its longer pieces."""
    ends = "</w>"
    made = {piece.removesuffix(ends) if piece.endswith(ends) else f"{piece}@@" for piece in map("".join, merges)}
    longer = {token for token in tokens[len(SPECIAL_TOKENS) :] if len(token.removesuffix("@@")) > 1}
    common = len(made & longer)
    if 2 * common < min(len(made), len(longer)):
        raise ValueError(
            f"{path} does not fit the dictionary, which holds {common} of the {len(made)} pieces that these BPE codes "
            "make. Give the codes that split the training data."
        )


def make_tokenizer(
    tokens: list[str], merges: list[tuple[str, str]] | None = None, **kwargs: Any
) -> PreTrainedTokenizerBase:
    """A tokenizer that gives the ids of fairseq and appends `</s>`; decoding joins pieces that end in `@@`.

    Args:
        tokens: the dictionary, as `read_dictionary` gives it.
        merges: the byte pair encoding, as `read_bpe_codes` gives it. Without it, texts must be split already
            ("a low@@ er house"): their words are looked up.
        kwargs: further arguments of the tokenizer.

    Returns:
        A `FairseqTokenizer` with merges; without them a plain `tokenizer.json`, which needs no package.
    """
    vocab = {token: i for i, token in enumerate(tokens)}
    if merges is not None:
        return FairseqTokenizer(vocab=vocab, merges=merges, **SPECIAL_TOKENS, **kwargs)
    eos = SPECIAL_TOKENS["eos_token"]
    backend = Tokenizer(WordLevel(vocab, unk_token=SPECIAL_TOKENS["unk_token"]))
    # The white space of Python's str.split.
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\x1c-\x1f]+"), "removed")
    backend.post_processor = processors.TemplateProcessing(
        single=f"$A {eos}", pair=f"$A {eos} $B {eos}", special_tokens=[(eos, vocab[eos])]
    )
    steps = [decoders.Replace(Regex(r"\z"), " "), decoders.Fuse(), decoders.Replace("@@ ", "")]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 0, 1)])
    return TokenizersBackend(tokenizer_object=backend, **SPECIAL_TOKENS, split_special_tokens=True, **kwargs)
