# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Tables of results in the documents hold what the runs noted."""

import json
from pathlib import Path

import pytest


ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "examples" / "results"


def table_below(document: Path, heading: str) -> list[dict[str, str]]:
    """The rows of the first table below a heading, by the names of its columns."""
    lines = document.read_text(encoding="utf-8").partition(f"\n{heading}\n")[2].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("|"))
    end = next(i for i in range(start, len(lines)) if not lines[i].startswith("|"))
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start:end]]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


def read_runs(folder: str) -> dict[str, dict]:
    return json.loads((RESULTS / folder / "runs.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("folder", "heading", "columns"),
    [
        (
            "ptb",
            "## Language model: Penn Treebank",
            {"validation": ("validation", "perplexity", 1), "test": ("test", "perplexity", 1)},
        ),
        (
            "multi30k",
            "## Translation: Multi30k",
            {
                f"{split} {title}": (split, metric, 2)
                for split in ("validation", "test")
                for title, metric in (("BLEU", "bleu"), ("chrF", "chrf"), ("perplexity", "perplexity"))
            },
        ),
    ],
)
def test_the_page_has_all_runs_and_their_scores(folder, heading, columns):
    rows, runs = table_below(RESULTS / "README.md", heading), read_runs(folder)
    assert [row[""] for row in rows] == list(runs)
    for row, run in zip(rows, runs.values()):
        for column, (split, metric, digits) in columns.items():
            assert row[column] == f"{run['metrics'][split][metric]:.{digits}f}", (row[""], column)


def test_the_epochs_of_the_language_models_are_those_of_their_logs():
    """In the main page, with the parameters and the perplexity of the test set."""
    runs = read_runs("ptb")
    for row in table_below(ROOT / "README.md", "## Language model"):
        name, parameters, *cells, test = row.values()
        run = runs[name]
        evaluated = [entry["eval_perplexity"] for entry in run["log_history"] if "eval_perplexity" in entry]
        assert set(cells[len(evaluated) :]) <= {"-"}
        for cell, perplexity in zip(cells, evaluated, strict=False):
            assert cell == f"{perplexity:.{len(cell.partition('.')[2])}f}"
        assert parameters == f"{run['model']['parameters']:,}"
        assert test == f"{run['metrics']['test']['perplexity']:.1f}"
