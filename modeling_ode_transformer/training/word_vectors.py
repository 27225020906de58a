# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Pre-trained word vectors in the text format of GloVe, word2vec and fastText."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from ..text_files import open_text


def load_word_vectors(path: str | Path, vocabulary: Mapping[str, int], embedding: nn.Embedding) -> list[str]:
    """Puts the vectors of a text file into the rows of an embedding.

    A line is a word and its numbers, separated by single spaces; a word may hold spaces itself, as some of GloVe's do.
    A first line of two whole numbers, the number of words and their dimension, as word2vec and fastText write it, is
    skipped. Of several vectors of a word the first counts. Words are looked up as they are spelled. Rows of words that
    the file lacks, and the padding row, stay as they are.

    Args:
        path: The file, UTF-8, gzipped if its name ends in `.gz`.
        vocabulary: The row of each word, as a tokenizer's `get_vocab()`.
        embedding: Its weight, of any floating dtype, is changed in place.

    Returns:
        The words of the vocabulary, the padding apart, that have no vector in the file.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: A line has another number of numbers than the embedding is wide, or something that is not a finite
            number; the file has no line; no word of the vocabulary is in it.
    """
    width = embedding.embedding_dim
    wanted = {word: row for word, row in vocabulary.items() if row != embedding.padding_idx}
    rows: dict[int, torch.Tensor] = {}
    number = 0
    with open_text(path) as file:
        for number, line in enumerate(file, 1):
            fields = line.rstrip("\r\n ").split(" ")
            if number == 1 and len(fields) == 2 and all(field.isdecimal() for field in fields):
                if int(fields[1]) != width:
                    raise ValueError(f"{path} has vectors of size {fields[1]}, but the embedding has {width}.")
                continue
            # Only GloVe's few words with spaces have more fields, and they are not numbers.
            is_longer = len(fields) > width + 1 and is_number(fields[-width - 1]) and is_number(fields[1])
            if len(fields) <= width or is_longer:
                raise ValueError(
                    f"{path}, line {number}: {len(fields) - 1} numbers after {fields[0]!r}, but the embedding is "
                    f"{width} wide: use vectors of size {width}, or another embedding_size."
                )
            word = " ".join(fields[:-width])
            if word not in wanted or wanted[word] in rows:
                continue
            try:
                vector = torch.tensor([float(field) for field in fields[-width:]])
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}.") from error
            if not vector.isfinite().all():
                raise ValueError(f"{path}, line {number}: the vector of {word!r} is not finite.")
            rows[wanted[word]] = vector
    if not rows:
        raise ValueError(f"{path} ({number} lines) has no word of the vocabulary: check its format and case.")
    with torch.no_grad():
        embedding.weight[list(rows)] = torch.stack(list(rows.values())).to(embedding.weight)
    return [word for word, row in wanted.items() if row not in rows]


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
