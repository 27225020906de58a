# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Token ids of pairs of texts, fast: a tokenizer that reads word by word is asked for each word once."""

import hashlib
import json
import re
from typing import Any

import numpy as np
import pyarrow

from ..inference.tokenizers import cut_texts, encode_texts, marks_languages
from ..texts_ode_transformer import without_truncation
from ..tokenization_ode_transformer import SPACE


# Words whose ids are kept; then the memory of them begins anew.
KEPT_WORDS = 1 << 19


def fast_backend(tokenizer) -> Any:
    """The tokenizer of the tokenizers library that runs a tokenizer of transformers, or None."""
    return getattr(tokenizer, "backend_tokenizer", None) if getattr(tokenizer, "is_fast", False) else None


def reads_word_by_word(backend) -> bool:
    """Whether a tokenizer cuts texts at each space, as those of this package do whose pieces hold no space inside, and
    makes the same of a word wherever it is."""
    steps = (json.loads(backend.to_str())["pre_tokenizer"] or {}).get("pretokenizers") or [{}]
    if not all(step.get("type") == "Metaspace" for step in steps) or not steps[-1].get("split"):
        return False
    return backend.pre_tokenizer.pre_tokenize_str("a b") == [(f"{SPACE}a", (0, 1)), (f"{SPACE}b", (1, 3))]


class WordEncoder(dict):
    """Ids of texts from those of their words, which this dictionary keeps.

    Texts with more than single spaces between their words, or with the spelling of a special token, are left to the
    tokenizer itself; so are those with a word that normalizing changes a second time.
    """

    def __init__(self, backend):
        super().__init__()
        self.backend = backend
        self.normalize = backend.normalizer.normalize_str if backend.normalizer else str
        bare, whole = (backend.encode("a", add_special_tokens=with_marks).ids for with_marks in (False, True))
        first = next(i for i in range(len(whole) + 1) if whole[i : i + len(bare)] == bare)
        self.before, self.after = whole[:first], whole[first + len(bare) :]
        special = [re.escape(token.content) for token in backend.get_added_tokens_decoder().values()]
        self.is_left_out = re.compile("|".join([*special, SPACE, "  ", r"\A ", r" \Z", r"\A\Z"]))

    def __missing__(self, word: str) -> list[int] | None:
        ids = None
        if self.normalize(word) == word:
            ids = self.backend.encode(word, add_special_tokens=False).ids
        if len(self) >= KEPT_WORDS:
            self.clear()
        self[word] = ids
        return ids

    def encode(self, texts: list[str]) -> list[list[int]]:
        encoded, rest = [], []
        for text in texts:
            # Marks of special tokens are found in a text as it is given.
            plain = "" if self.is_left_out.search(text) else self.normalize(text)
            ids = list(self.before)
            if not plain or (plain is not text and self.is_left_out.search(plain)):
                ids = None
            else:
                for word in plain.split(" "):
                    if (of_word := self[word]) is None:
                        ids = None
                        break
                    ids += of_word
            if ids is None:
                rest.append(len(encoded))
            else:
                ids += self.after
            encoded.append(ids)
        for i, encoding in zip(rest, self.backend.encode_batch_fast([texts[i] for i in rest])):
            encoded[i] = encoding.ids
        return encoded


class TextEncoder:
    """Token ids of texts, those of `encode_texts`.

    Args:
        tokenizer: Of transformers.
        max_length: Most tokens; longer texts are cut as the tokenizer cuts them.
        side: What the tokenizer calls the texts: `text`, or, for one of two sides, `text_target`.
    """

    def __init__(self, tokenizer, max_length: int | None, side: str = "text"):
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.side = side
        backend = fast_backend(tokenizer)
        # One of several languages has another mark for each side.
        is_plain = backend is not None and not marks_languages(tokenizer)
        self.words = WordEncoder(backend) if is_plain and reads_word_by_word(backend) else None

    def __call__(self, texts: list[str]) -> tuple[list[list[int]], int]:
        """Their ids, and how many were cut."""
        if self.words is None:
            return encode_texts(texts, self.tokenizer, self.max_length, self.side)
        without_truncation(self.tokenizer)  # to the length of the last call, perhaps the other side's
        return cut_texts(self.words.encode(texts), texts, self.tokenizer, self.max_length, self.side)


class PairEncoder:
    """Token ids of pairs, as columns of Arrow.

    Args:
        tokenizer, target_tokenizer: Of the sources and of the targets; one for both, or two.
        max_source_length, max_target_length: Most tokens.
    """

    def __init__(self, tokenizer, target_tokenizer, max_source_length: int, max_target_length: int):
        # A tokenizer alone may have two sides, as Marian's; one of the targets alone is used as it is.
        side = "text_target" if target_tokenizer is tokenizer else "text"
        self.source = TextEncoder(tokenizer, max_source_length)
        self.target = TextEncoder(target_tokenizer, max_target_length, side)
        largest = max(len(tokenizer), len(target_tokenizer))
        self.dtype = np.dtype(np.uint16 if largest <= 1 << 16 else np.int32)

    def column(self, ids: list[list[int]], lengths: np.ndarray) -> pyarrow.ListArray:
        values = np.fromiter((i for row in ids for i in row), dtype=self.dtype, count=int(lengths.sum()))
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        return pyarrow.ListArray.from_arrays(pyarrow.array(offsets), pyarrow.array(values))

    def __call__(self, sources: list[str], targets: list[str]) -> tuple[dict[str, pyarrow.Array], dict[str, int]]:
        """The columns input_ids, labels (lists of integers of 16 bits, or of 32 for more than 65,536 tokens),
        source_length, target_length and length (of both; integers of 32 bits); how many texts of each side were
        cut."""
        (ids, sources_cut), (labels, targets_cut) = self.source(sources), self.target(targets)
        lengths = [np.fromiter(map(len, rows), dtype=np.int32, count=len(rows)) for rows in (ids, labels)]
        columns = {
            "input_ids": self.column(ids, lengths[0]),
            "labels": self.column(labels, lengths[1]),
            "source_length": pyarrow.array(lengths[0]),
            "target_length": pyarrow.array(lengths[1]),
            "length": pyarrow.array(lengths[0] + lengths[1]),
        }
        return columns, {"source": sources_cut, "target": targets_cut}


def tokenizer_hash(tokenizer) -> str:
    """A hash of what decides the ids that a tokenizer gives."""
    known = {name: getattr(tokenizer, name, None) for name in ("src_lang", "tgt_lang")}
    known["class"] = type(tokenizer).__name__
    if (backend := fast_backend(tokenizer)) is not None:
        # These two are of its last call.
        known["backend"] = json.loads(backend.to_str()) | {"truncation": None, "padding": None}
    else:
        known["vocabulary"] = tokenizer.get_vocab()
        known["options"] = {name: str(value) for name, value in sorted(tokenizer.init_kwargs.items())}
        known["options"].pop("name_or_path", None)
    return hashlib.blake2b(json.dumps(known, sort_keys=True, default=str).encode(), digest_size=16).hexdigest()
