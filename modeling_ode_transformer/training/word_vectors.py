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
    A first line of two whole numbers, as word2vec and fastText write it, is skipped. Of several vectors of a word the
    first counts. Words are looked up as they are spelled. Rows of words that the file lacks, and the padding row, stay
    as they are.

    Args:
        path: The file, UTF-8, gzipped if its name ends in `.gz`.
        vocabulary: The row of each word, as a tokenizer's `get_vocab()`.
        embedding: Its weight, of any floating dtype, is changed in place.

    Returns:
        The words of the vocabulary, the padding apart, that have no vector in the file.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: What follows a word of the vocabulary is not as many finite numbers as the embedding is wide; or no
            word of the vocabulary is in the file, as where its vectors are of another size.
    """
    width = embedding.embedding_dim
    wanted = {word: row for word, row in vocabulary.items() if row != embedding.padding_idx}
    rows: dict[int, torch.Tensor] = {}
    with open_text(path) as file:
        for number, line in enumerate(file, 1):
            fields = line.rstrip("\r\n ").split(" ")
            if number == 1 and len(fields) == 2:
                continue
            word = " ".join(fields[:-width])
            if word not in wanted or wanted[word] in rows:
                continue
            vector = torch.tensor([float(field) for field in fields[-width:]])
            if not vector.isfinite().all():
                raise ValueError(f"{path}, line {number}: the vector of {word!r} is not finite.")
            rows[wanted[word]] = vector
    if not rows:
        raise ValueError(
            f"{path} has no word of the vocabulary with {width} numbers, the size of the embedding: check its format, "
            "case and size (embedding_size)."
        )
    with torch.no_grad():
        embedding.weight[list(rows)] = torch.stack(list(rows.values())).to(embedding.weight)
    return [word for word, row in wanted.items() if row not in rows]
