# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The model in `examples/models` does what the pages show, with the package and without it."""

import io
import json
import re
import sys
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from safetensors import safe_open

from modeling_ode_transformer import cli

from .processes import run_python
from .test_pages import blocks


ROOT = Path(__file__).parent.parent
MODEL = ROOT / "examples" / "models" / "tatoeba_en_de"
SENTENCES = ["Where can I buy a ticket?", "I have lost my keys.", "She has never been to Germany."]
TRANSLATE = """
import json, sys
if sys.argv[1] == "without": sys.modules["modeling_ode_transformer"] = None
else: import modeling_ode_transformer
from transformers import pipeline
translate = pipeline("translation", sys.argv[2], trust_remote_code=True)
print(json.dumps(translate(sys.argv[3:], return_scores=True)))
"""


@pytest.fixture
def example(monkeypatch):
    """The README's first example, and what it says that it prints."""
    monkeypatch.chdir(ROOT)
    ((_, code), (_, command)) = blocks("README.md", "Translate")
    return code, re.search(r"  # (.*)\n$", code)[1], command


def test_the_readme_translates(example, capsys):
    code, printed, _ = example
    exec(code, {})
    assert capsys.readouterr().out == f"{printed}\n"


def test_the_readme_translates_line_by_line(example, monkeypatch, capsys):
    _, printed, command = example
    monkeypatch.setattr(sys, "stdin", io.StringIO("Where can I buy a ticket?\n\n"))
    cli.run(command.split()[1:])
    assert printed in capsys.readouterr().out


def test_it_translates_alike_without_the_package(tmp_path):
    printed = (run_python(TRANSLATE, tmp_path, how, str(MODEL), *SENTENCES) for how in ("with", "without"))
    for ours, theirs in zip(*(json.loads(text.splitlines()[0]) for text in printed)):
        assert ours["translation_text"] == theirs["translation_text"]
        assert ours["score"] == pytest.approx(theirs["score"], rel=1e-4)


def test_it_is_small_and_nothing_in_it_is_unpickled():
    assert {path.suffix for path in MODEL.iterdir()} == {".json", ".md", ".py", ".safetensors"}
    with safe_open(MODEL / "model.safetensors", framework="pt") as weights:
        assert {weights.get_slice(name).get_dtype() for name in weights.keys()} == {"BF16"}
    assert sum(path.stat().st_size for path in MODEL.iterdir()) < 17e6


def test_its_card_says_where_the_data_are_from_and_what_it_reaches():
    card = ModelCard.load(MODEL / "README.md")
    assert card.data.license == "cc-by-2.0" and "tatoeba.org" in card.content
    records = json.loads((ROOT / "examples" / "results" / "queue" / "tatoeba_en_de_small_fast.json").read_text())
    results = {(each.dataset_split, each.metric_name): each.metric_value for each in card.data.eval_results}
    assert results["test", "BLEU"] == pytest.approx(records["rk2_1"]["metrics"]["test"]["bleu"], abs=0.01)
