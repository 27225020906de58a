# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""examples/results/compare_runs.py, on outputs of its own."""

import gzip
import json
import random
import runpy

from modeling_ode_transformer.metrics.bootstrap import compare

from .conftest import EXAMPLES


SCRIPT = EXAMPLES / "results" / "compare_runs.py"
RNG = random.Random(0)
REFERENCES = [" ".join(RNG.choices("abcdef", k=7)) for _ in range(30)]


def noisy(share):
    return [" ".join(RNG.choice("abcdef") if RNG.random() < share else word for word in text) for text in REFERENCES]


def write_outputs(folder, models):
    folder.mkdir(parents=True)
    for name, seeds in models.items():
        for seed, texts in enumerate(seeds, 1):
            path = folder / f"{name if len(seeds) == 1 else f'{name}_{seed}'}.txt.gz"
            path.write_bytes(gzip.compress("".join(f"{text}\n" for text in texts).encode()))


def test_models_are_compared_with_the_baselines_before_them(tmp_path, capsys):
    """By all seeds, with references of one column; models without outputs are left out."""
    script = runpy.run_path(str(SCRIPT))
    outputs = {"residual": [noisy(0.3), noisy(0.3)], "residual6": [noisy(0.2)], "rk4": [noisy(0.1), noisy(0.1)]}
    write_outputs(tmp_path / "records" / "pairs", outputs | {"new": [noisy(0.2)]})
    (tmp_path / "pairs.tsv").write_text("".join(f"source\t{text}\n" for text in REFERENCES))
    part = script["Part"]("pairs.tsv", column=1)
    script["main"].__globals__.update(RESULTS=tmp_path / "results", QUEUE={"pairs": part, "none": part})
    script["main"](["--data_dir", str(tmp_path), "--record_dir", str(tmp_path / "records")])

    records = {path.name: json.loads(path.read_text()) for path in (tmp_path / "records").glob("*.json")}
    others = ["RK4", "new"]
    pairs = {"residual": ["residual, 6 layers", *others], "residual, 6 layers": others}
    assert {
        file: {metric: {first: list(others) for first, others in each.items()} for metric, each in record.items()}
        for file, record in records.items()
    } == {"pairs_bootstrap.json": {"bleu": pairs, "chrf": pairs}}
    result = records["pairs_bootstrap.json"]["chrf"]["residual"]["RK4"]
    assert result == compare(outputs["residual"], outputs["rk4"], REFERENCES, "chrf") and result["counts_seeds"]
    assert f"pairs, chrf: RK4 - residual = {result['difference']:.2f} (" in capsys.readouterr().out


def test_what_is_compared_is_what_is_recorded():
    """Of the repository: each part with outputs has a record, and each record a part."""
    parts = runpy.run_path(str(SCRIPT))["all_parts"](EXAMPLES / "results" / "queue")
    found = {record for folder, record, part in parts if part.files(folder)}
    assert found == set((EXAMPLES / "results").rglob("*bootstrap.json")) and len(found) >= 8
