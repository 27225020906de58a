# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""examples/results/compare_runs.py, on outputs of its own."""

import dataclasses
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


def test_models_are_compared_with_the_baselines_before_them(tmp_path, capsys):
    """By all of their seeds, with references of one column; a model without outputs is left out."""
    script = runpy.run_path(str(SCRIPT))
    outputs = {"residual": [noisy(0.3), noisy(0.3)], "residual6": [noisy(0.2)], "rk4": [noisy(0.1), noisy(0.1)]}
    (tmp_path / "results" / "outputs").mkdir(parents=True)
    for name, seeds in outputs.items():
        for seed, texts in enumerate(seeds, 1):
            title = name if len(seeds) == 1 else f"{name}_{seed}"
            path = tmp_path / "results" / "outputs" / f"{title}.txt.gz"
            path.write_bytes(gzip.compress("".join(f"{text}\n" for text in texts).encode()))
    (tmp_path / "pairs.tsv").write_text("".join(f"source\t{text}\n" for text in REFERENCES))
    part = script["Part"]("outputs", "record.json", "pairs.tsv", column=1)
    unmade = dataclasses.replace(part, outputs="none", record="none.json")
    script["main"].__globals__.update(RESULTS=tmp_path / "results", PARTS=(unmade, part))
    script["main"](["--data_dir", str(tmp_path)])

    assert [path.name for path in (tmp_path / "results").glob("*.json")] == ["record.json"]
    record = json.loads((tmp_path / "results" / "record.json").read_text())
    pairs = {"residual": ["residual, 6 layers", "RK4"], "residual, 6 layers": ["RK4"]}
    assert {metric: {first: list(others) for first, others in each.items()} for metric, each in record.items()} == {
        "bleu": pairs,
        "chrf": pairs,
    }
    result = record["chrf"]["residual"]["RK4"]
    assert result == compare(outputs["residual"], outputs["rk4"], REFERENCES, "chrf") and result["counts_seeds"]
    assert f"outputs, chrf: RK4 - residual = {result['difference']:.2f} (" in capsys.readouterr().out


def test_every_output_of_the_repository_belongs_to_a_part():
    """None is overlooked because of its name or folder."""
    script = runpy.run_path(str(SCRIPT))
    kept = {path for ending in ("txt", "nll") for path in (EXAMPLES / "results").rglob(f"*.{ending}.gz")}
    found = 0
    for part in script["PARTS"]:
        found += sum(map(len, part.read_outputs().values()))
    assert found == len(kept) >= 32
