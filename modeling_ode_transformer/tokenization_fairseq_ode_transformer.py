# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Tokenizer of a converted model: subword-nmt's byte pair encoding, then a look-up in fairseq's dictionary."""

import json
import os
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from transformers import PreTrainedTokenizer


def read_merges(path: str | os.PathLike) -> list[tuple[str, ...]]:
    """The merges of a saved tokenizer, best first."""
    with open(path, encoding="utf-8", newline="\n") as file:
        return [tuple(line.rstrip("\r\n").split(" ")) for line in file if not line.startswith("#version:")]


class FairseqTokenizer(PreTrainedTokenizer):
    """
    Tokenizer of a fairseq model whose texts were split by subword-nmt (or fastBPE) with the separator `@@`.

    A piece outside the dictionary becomes `<unk>`, even if subword-nmt needs it to build a longer piece. Models of
    `tokenizers` have no such pieces, so this class cannot be a `tokenizer.json`: it is Python, and saving it also
    saves its code.

    Tokenize texts as the model's training texts were before their byte pair encoding (usually by Moses).
    Encoding appends `</s>`: `A </s>`, and for a pair `A </s> B </s>`. Decoding joins the pieces of a word but does not
    undo Moses. As in fairseq, the spelling of a special token inside a text is plain text, unless
    `split_special_tokens=False`.

    Args:
        vocab_file (`str`, *optional*): JSON file of `vocab`.
        merges_file (`str`, *optional*): `merges` in subword-nmt's format, version 0.2.
        vocab (`dict[str, int]`, *optional*): Ids of the dictionary's tokens, special tokens included; instead of
            `vocab_file`.
        merges (`Sequence[tuple[str, str]]`, *optional*): Pairs to merge, best first, each once; instead of
            `merges_file`. The last symbol of a word ends in `</w>`.
        kwargs: Special tokens by name, and other arguments of `PreTrainedTokenizer`.
    """

    vocab_files_names = {"vocab_file": "vocab.json", "merges_file": "merges.txt"}
    model_input_names = ["input_ids", "attention_mask"]
    add_bpe_version_header = True

    def __init__(
        self,
        vocab_file: str | os.PathLike | None = None,
        merges_file: str | os.PathLike | None = None,
        vocab: dict[str, int] | None = None,
        merges: Sequence[tuple[str, str]] | None = None,
        **kwargs: Any,
    ):
        if vocab is None:
            with open(vocab_file, encoding="utf-8") as file:
                vocab = json.load(file)
        if merges is None:
            merges = read_merges(merges_file)
        # The base class saves them under these names.
        self.encoder = dict(vocab)
        self.bpe_ranks = {pair: rank for rank, pair in enumerate(merges)}
        self.decoder = {i: token for token, i in self.encoder.items()}
        self.segmented: dict[str, str] = {}  # the pieces of the words that it has met
        kwargs["special_tokens_pattern"] = "eos"
        super().__init__(**{"split_special_tokens": True} | kwargs)

    @property
    def vocab_size(self) -> int:
        return len(self.encoder)

    def get_vocab(self) -> dict[str, int]:
        return {**self.encoder, **self.added_tokens_encoder}

    def _segment(self, word: str) -> str:
        """The pieces of a word, separated by "@@ "."""
        symbols = [*word[:-1], word[-1] + "</w>"]
        while known := [pair for pair in pairwise(symbols) if pair in self.bpe_ranks]:
            best = min(known, key=self.bpe_ranks.__getitem__)
            merged, i = [], 0
            while i < len(symbols):
                width = 2 if tuple(symbols[i : i + 2]) == best else 1
                merged.append("".join(symbols[i : i + width]))
                i += width
            symbols = merged
        return "@@ ".join(symbols).removesuffix("</w>")

    def _tokenize(self, text: str, **kwargs: Any) -> list[str]:
        pieces = []
        for word in re.split("[ \r\n]+", text):
            if word and word not in self.segmented:
                self.segmented[word] = self._segment(word)
            pieces.append(self.segmented.get(word, ""))
        # subword-nmt separates words only at spaces, but fairseq separates pieces at any white space.
        return " ".join(pieces).split()

    def _convert_token_to_id(self, token: str) -> int:
        return self.encoder.get(token, self.encoder[self.unk_token])

    def _convert_id_to_token(self, index: int) -> str:
        return self.decoder.get(index, self.unk_token)

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return f"{' '.join(tokens)} ".replace("@@ ", "").rstrip(" ")
