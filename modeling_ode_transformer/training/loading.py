# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Batches of encoded pairs, padded from Arrow's memory without a Python object for each token."""

from collections.abc import Sequence

import datasets
import numpy as np
import pyarrow
import torch
from torch.utils.data import Dataset
from transformers import DataCollatorForSeq2Seq


# The columns that `PadPairs` reads.
COLUMNS = {"input_ids", "labels", "index"}


class PairRows(Dataset):
    """Rows of a dataset; a batch is an Arrow table."""

    def __init__(self, dataset: datasets.Dataset):
        self.dataset = dataset.with_format("arrow")

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, indices: Sequence[int]) -> pyarrow.Table:
        return self.dataset[indices]


def pad(rows: pyarrow.ChunkedArray, value: int, multiple: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns lists of integers as an int64 tensor (rows, longest, rounded up to a multiple), padded on the right, and
    a boolean tensor of that shape that marks the integers."""
    rows = rows.combine_chunks()
    lengths = rows.value_lengths().to_numpy()
    width = -(-int(lengths.max(initial=0)) // multiple) * multiple
    is_token = np.arange(width) < lengths[:, None]
    padded = np.full(is_token.shape, value, dtype=np.int64)
    padded[is_token] = rows.flatten().to_numpy()
    return torch.from_numpy(padded), torch.from_numpy(is_token)


class PadPairs:
    """Collates a table of pairs as `DataCollatorForSeq2Seq` does."""

    def __init__(self, collator: DataCollatorForSeq2Seq):
        self.pad_token_id = collator.tokenizer.pad_token_id
        self.label_pad_token_id = collator.label_pad_token_id
        self.multiple = collator.pad_to_multiple_of or 1

    def __call__(self, table: pyarrow.Table) -> dict[str, torch.Tensor]:
        sources, is_token = pad(table.column("input_ids"), self.pad_token_id, self.multiple)
        labels, _ = pad(table.column("labels"), self.label_pad_token_id, self.multiple)
        batch = {"input_ids": sources, "attention_mask": is_token.long(), "labels": labels}
        if "index" in table.column_names:
            batch["index"] = torch.tensor(table.column("index").to_numpy())
        return batch


def is_padded_from_arrow(dataset, collator) -> bool:
    """Whether `PadPairs` gives the same batches as a collator for the rows of a dataset."""
    if not isinstance(dataset, datasets.Dataset) or type(collator) is not DataCollatorForSeq2Seq:
        return False
    tokenizer, columns = collator.tokenizer, set(dataset.column_names)
    return (
        dataset.format["type"] is None
        and {"input_ids", "labels"} <= columns <= COLUMNS
        and all(isinstance(dataset.features[name], datasets.List) for name in ("input_ids", "labels"))
        and (collator.padding, collator.return_tensors) == (True, "pt")
        and collator.model is None
        and tokenizer.padding_side == "right"
        and "attention_mask" in tokenizer.model_input_names
    )
