# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The benchmarks run and count right; what they time is not tested."""

import json
import sys

import numpy as np
import pytest

from .test_run_translation import EXAMPLES, number_names


sys.path.insert(0, str(EXAMPLES / "benchmarks"))

import batching


def test_batching(tmp_path, capsys):
    number_names.write_corpus(tmp_path, {"train": 300, "validation": 5, "test": 5})
    files = ["--source_file", str(tmp_path / "train.en"), "--target_file", str(tmp_path / "train.de")]
    sizes = ["--vocab_size", "330", "--max_tokens", "200", "--d_model", "64", "--layers", "1"]
    results = batching.main(
        [*files, *sizes, "--rounds", "1", "--updates", "1", "--output_file", str(tmp_path / "out")]
    )
    assert json.loads((tmp_path / "out").read_text()) == results
    rows = results["kinds"]
    assert all(row["tokens_per_second"] > 0 for row in rows.values())
    assert rows["token budget"]["padding"] < rows["sentences, shuffled"]["padding"]
    assert "| token budget |" in capsys.readouterr().out


def test_every_kind_of_batch_holds_every_pair_once():
    lengths = np.random.default_rng(0).integers(3, 30, size=(500, 2))
    for kind, batches in batching.kinds_of_batches(lengths, 200, seed=1).items():
        assert sorted(index for batch in batches for index in batch) == list(range(500)), kind
        padded = sum(len(batch) * (lengths[batch, 0].max() + lengths[batch, 1].max()) for batch in batches)
        assert batching.padding(batches, lengths) == pytest.approx(1 - lengths.sum() / padded)
