# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Batches that are padded from Arrow's memory."""

import datasets
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from transformers import DataCollatorForSeq2Seq

from modeling_ode_transformer import OdeTransformerTokenizer
from modeling_ode_transformer.training.loading import PadPairs, PairRows, is_padded_from_arrow
from modeling_ode_transformer.training.samplers import TokenBudgetBatchSampler, pair_lengths


@pytest.fixture
def dataset():
    generator = np.random.default_rng(0)
    lengths = generator.integers(0, 9, (50, 2))
    sides = [[generator.integers(4, 60, length).tolist() for length in column] for column in lengths.T]
    values = datasets.List(datasets.Value("uint16"))
    features = datasets.Features({"input_ids": values, "labels": values, "index": datasets.Value("int64")})
    whole = {"input_ids": sides[0], "labels": sides[1], "index": range(100, 150)}
    parts = [datasets.Dataset.from_dict(whole, features).select(part) for part in (range(30), range(30, 50))]
    return datasets.concatenate_datasets(parts)


@pytest.mark.parametrize("multiple", [None, 8])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_batches_are_those_of_the_collator(multiple, num_workers, dataset):
    tokenizer = OdeTransformerTokenizer()
    collator = DataCollatorForSeq2Seq(tokenizer, pad_to_multiple_of=multiple)
    assert is_padded_from_arrow(dataset, collator)
    sampler = TokenBudgetBatchSampler(pair_lengths(dataset), 40, pad_to_multiple_of=multiple)
    loader = DataLoader(
        PairRows(dataset), batch_sampler=sampler, collate_fn=PadPairs(collator), num_workers=num_workers
    )
    batches = list(loader)
    assert len(batches) == len(sampler) > 3
    for batch, indices in zip(batches, sampler, strict=True):
        expected = collator([dataset[i] for i in indices])
        assert batch.keys() == expected.keys()
        for name, tensor in batch.items():
            assert tensor.dtype == expected[name].dtype == torch.int64
            assert torch.equal(tensor, expected[name]), name


def test_what_differs_is_left_to_the_collator(dataset):
    tokenizer = OdeTransformerTokenizer()
    collator = DataCollatorForSeq2Seq(tokenizer)
    assert not is_padded_from_arrow(dataset.with_format("torch"), collator)
    assert not is_padded_from_arrow(dataset.add_column("attention_mask", [[1]] * 50), collator)
    assert not is_padded_from_arrow(dataset.to_list(), collator)
    assert not is_padded_from_arrow(dataset, DataCollatorForSeq2Seq(tokenizer, padding="max_length", max_length=9))

    class Own(DataCollatorForSeq2Seq):
        pass

    assert not is_padded_from_arrow(dataset, Own(tokenizer))
    tokenizer.padding_side = "left"
    assert not is_padded_from_arrow(dataset, collator)
