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
    """
    return [*SPECIAL_TOKENS.values(), *(line.rpartition(" ")[0] for line in read_lines(path))]


def pad_dictionary(tokens: list[str], size: int, path: str | Path) -> list[str]:
    """The tokens with those that fairseq adds to reach a multiple of 8, if that is the size of the embedding.

    Raises:
        ValueError: the dictionary, padded or not, has another size than the embedding; both are named.
    """
    if size not in (len(tokens), len(tokens) + -len(tokens) % PADDING_FACTOR):
        raise ValueError(
            f"{path} has {len(tokens)} tokens with the {len(SPECIAL_TOKENS)} special ones, but the model embeds "
            f"{size}: give the dictionary it was trained with."
        )
    return tokens + [f"madeupword{i:04d}" for i in range(size - len(tokens))]


def read_bpe_codes(path: str | Path) -> list[tuple[str, str]]:
    """The merges of subword-nmt (first line `#version: 0.2`) or fastBPE (a third column with counts), best first.

    Raises:
        ValueError: the file holds neither, as codes of subword-nmt 0.1, which ends words in another way.
    """
    lines = [line.strip(" ").split(" ") for line in read_lines(path)]
    columns = 3
    if lines[:1] == [["#version:", "0.2"]]:
        columns, lines = 2, lines[1:]
    if any(len(line) != columns for line in lines):
        raise ValueError(f"{path} holds neither BPE codes of subword-nmt 0.2 (its first line says so) nor of fastBPE.")
    # A pair that comes twice has its first rank.
    return list(dict.fromkeys((line[0], line[1]) for line in lines))


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
