# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The figures of the documents are what their script draws from today's package and records."""

import importlib.util
import re
from math import isclose
from pathlib import Path

import pytest


pytest.importorskip("matplotlib")
FOLDER = Path(__file__).parent.parent / "docs" / "figures"
spec = importlib.util.spec_from_file_location("docs_figures", FOLDER / "make.py")
make = importlib.util.module_from_spec(spec)
spec.loader.exec_module(make)
NUMBER = re.compile(r"-?\d+\.?\d*(?:e-?\d+)?")


def test_every_picture_has_its_function():
    assert {path.stem for path in FOLDER.glob("*.svg")} == set(make.FIGURES)


@pytest.mark.parametrize("name", make.FIGURES)
def test_figures_are_those_of_the_records(name, tmp_path):
    """All texts and marks are the same; coordinates may differ in the last digits, as sums of other CPUs do."""
    make.main([name], tmp_path)
    drawn, kept = ((folder / f"{name}.svg").read_text(encoding="utf-8") for folder in (tmp_path, FOLDER))
    assert NUMBER.sub("0", drawn) == NUMBER.sub("0", kept)
    for new, old in zip(NUMBER.findall(drawn), NUMBER.findall(kept), strict=True):
        assert isclose(float(new), float(old), abs_tol=0.02)
