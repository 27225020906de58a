# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The notebooks run from their first cell to their last, with tiny sizes, and are stored without outputs."""

import json
from pathlib import Path

import pytest
from number_names import english, german


FOLDER = Path(__file__).parent.parent / "examples" / "notebooks"
MODEL = str(FOLDER.parent / "models" / "tatoeba_en_de")
# Values of the first code cell, in the place of those shown.
TINY = {
    "try_the_method": {"PAIRS": 60, "UPDATES": 2, "WIDTH": 16, "MODEL": MODEL},
    "compare_schemes": {"TEST_PAIRS": 20, "VOCABULARY": 300, "EPOCHS": 1, "SEEDS": (1, 2)},
}


def cells(name):
    return json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]


def run(name):
    """The variables at the end."""
    first, *others = ("".join(cell["source"]) for cell in cells(name) if cell["cell_type"] == "code")
    names = {}
    exec(first, names)
    assert TINY[name].keys() <= names.keys()
    names |= TINY[name]
    for code in others:
        exec(code, names)
    return names


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_are_stored_without_outputs(path):
    assert path.stem in TINY
    for cell in cells(path.stem):
        assert not cell.get("outputs") and not cell.get("execution_count")


def test_the_method_is_tried_in_five_minutes():
    names = run("try_the_method")
    assert names["scores"].keys() == {"residual", "RK2"}
    residual, rk2 = (names["models"][name] for name in ("residual", "RK2"))
    assert residual.num_parameters() == rk2.num_parameters()
    assert residual.num_function_evaluations() < rk2.num_function_evaluations()


def test_schemes_are_compared_on_ones_own_pairs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "".join(f"{english(number)}\t{german(number)}\n" for number in range(60))
    (tmp_path / "pairs.tsv").write_text(text, encoding="utf-8")
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    sizes |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    schemes = {"residual": {"encoder_solver": "euler"}, "RK2": {"encoder_solver": "rk2"}}
    monkeypatch.setitem(TINY, "compare_schemes", TINY["compare_schemes"] | {"SIZES": sizes, "SCHEMES": schemes})
    names = run("compare_schemes")
    assert [len(system) for system in names["outputs"]["RK2"]] == [20, 20]
    assert names["found"]["counts_seeds"]
