# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""`--import`: schemes, coefficients and histories from a file, in training and wherever a model is opened."""

import importlib
import json
import pickle
import re
import sys

import datasets
import number_names
import pytest
import run_translation
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoModelForSeq2SeqLM

from modeling_ode_transformer import OdeTransformerConfig, OdeTransformerForConditionalGeneration, cli, own_schemes
from modeling_ode_transformer.integration_ode_transformer import SCHEMES
from modeling_ode_transformer.own_schemes import IMPORTED, TABLES, import_schemes

from .conftest import build, tiny_config
from .processes import run_python
from .test_hub import PUBLISHED, WITHOUT_PACKAGE
from .training.runs import MODEL, SIZES, arguments


SCHEME = '''
import torch

from modeling_ode_transformer.integration_ode_transformer import (
    COEFFICIENTS,
    SCHEMES,
    ButcherTableau,
    StageCoefficients,
)

SCHEMES["heun3"] = ButcherTableau(a=((), (1 / 3,), (0, 2 / 3)), b=(1 / 4, 0, 3 / 4))


class SoftmaxCoefficients(StageCoefficients):
    """Positive weights that sum to 1."""

    def initial_weight(self):
        return torch.zeros(self.tableau.num_stages)

    def forward(self, stages):
        return self.weight.softmax(0).unbind()


COEFFICIENTS["softmax"] = SoftmaxCoefficients
'''


BEFORE = {table: dict(entries) for table, entries in TABLES.items()}


def forget():
    """As in a process that has imported nothing."""
    for table, entries in TABLES.items():
        entries.clear()
        entries.update(BEFORE[table])
    for name in IMPORTED:
        del sys.modules[f"{own_schemes.__name__}.{name.removesuffix('.py')}"]
    IMPORTED.clear()


@pytest.fixture(autouse=True)
def nothing_imported():
    yield
    forget()


@pytest.fixture
def scheme(tmp_path):
    path = tmp_path / "own" / "my_scheme.py"
    path.parent.mkdir()
    path.write_text(SCHEME)
    return path


def test_a_model_is_trained_and_opened_with_its_schemes(scheme, tmp_path, capsys):
    number_names.write_corpus(tmp_path, SIZES)
    overrides = json.dumps(MODEL | {"encoder_solver": "heun3", "encoder_coefficients": "softmax"})
    options = {"import": scheme, "config_overrides": overrides, "do_predict": True, "max_steps": 60}
    out = tmp_path / "out"
    run_translation.main(arguments(tmp_path, out, save_strategy="steps", save_steps=60, **options))
    weights = AutoModelForSeq2SeqLM.from_pretrained(out).model.encoder.solver_coefficients.weight
    assert weights.shape == (3,) and weights.abs().sum() > 0  # trained
    (noted,) = json.loads((out / "arguments.json").read_text())["sources"]["import_schemes"]
    assert re.fullmatch(r"my_scheme\.py \([0-9a-f]{16}\)", noted)
    source = (tmp_path / "test.en").read_text().splitlines()[0]
    prediction = (out / "generated_predictions.txt").read_text().splitlines()[0]
    config = json.loads((out / "config.json").read_text())
    assert config["own_schemes"] == {"softmax": "my_scheme.py"}
    assert config["encoder_solver"] == SCHEMES["heun3"].to_dict()

    forget()
    with pytest.raises(ValueError, match=r"has 'softmax' of my_scheme.py: import .* first, as a module, by --import"):
        AutoModelForSeq2SeqLM.from_pretrained(out)
    (tmp_path / "source.txt").write_text(f"{source}\n")
    command = ["--model_name_or_path", str(out), "--input", str(tmp_path / "source.txt"), "--device", "cpu"]
    capsys.readouterr()
    cli.run(["generate", *command, "--import", str(scheme)])
    assert capsys.readouterr().out == f"{prediction}\n"
    average = [str(out), "--last", "1", "--output_dir", str(tmp_path / "averaged"), "--import", str(scheme)]
    cli.run(["average", *average])
    assert (tmp_path / "averaged" / "model.safetensors").is_file()
    capsys.readouterr()
    cli.run(["card", str(out), "--repo_id", "me/mine", "--import", str(scheme)])
    assert "coefficients: softmax; layers" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"out has softmax of my_scheme\.py, a file without which nobody opens it"):
        cli.run(["publish", str(out), "--repo_id", "me/mine", "--dry_run"])


def test_a_tableau_of_a_file_travels_as_data(scheme, tmp_path):
    """Where neither the file nor the package is, the model computes the same."""
    import_schemes(scheme)
    model = build(encoder_solver="heun3", decoder_solver="heun3").eval()
    model.generation_config.max_len_a, model.generation_config.max_len_b = 0.2, 2
    ids = torch.arange(4, 9)[None]
    expected = model(ids, decoder_input_ids=ids).logits.double().sum().item()
    folders = [str(tmp_path / name) for name in ("first", "second")]
    model.save_pretrained(folders[0])
    assert "own_schemes" not in json.loads((tmp_path / "first" / "config.json").read_text())
    printed = run_python(WITHOUT_PACKAGE, tmp_path, *folders).splitlines()
    assert [float(line[4:]) for line in printed if line.startswith("sum ")] == pytest.approx([expected] * 2, abs=1e-3)


def test_only_models_that_need_a_file_name_it(scheme, tmp_path):
    import_schemes(scheme)
    assert import_schemes(scheme).SoftmaxCoefficients is TABLES["COEFFICIENTS"]["softmax"]
    config = tiny_config(encoder_coefficients="softmax", encoder_solver="rk2")
    config.save_pretrained(tmp_path / "own")
    config = OdeTransformerConfig.from_pretrained(tmp_path / "own", encoder_coefficients="fixed")
    OdeTransformerForConditionalGeneration(config).save_pretrained(tmp_path / "plain")
    assert {path.stem for path in (tmp_path / "plain").glob("*.py")} == set(PUBLISHED)
    assert "own_schemes" not in json.loads((tmp_path / "plain" / "config.json").read_text())
    with pytest.raises(StrictDataclassError, match=r"choose one of fixed, .*, softmax"):
        OdeTransformerConfig(encoder_coefficients="none")


def test_a_model_names_the_module_of_a_class_that_was_imported_as_usual(scheme, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(scheme.parent)
    importlib.import_module("my_scheme")
    tiny_config(encoder_coefficients="softmax", encoder_solver="heun3").save_pretrained(tmp_path)
    forget()
    with pytest.raises(ValueError, match=r"has 'softmax' of my_scheme.py: import that file first, as a module"):
        OdeTransformerConfig.from_pretrained(tmp_path)
    monkeypatch.delitem(sys.modules, "my_scheme")
    importlib.import_module("my_scheme")
    assert OdeTransformerConfig.from_pretrained(tmp_path).encoder_coefficients == "softmax"


def test_a_corrected_scheme_of_a_file_travels_as_data(monkeypatch):
    monkeypatch.setitem(SCHEMES, "mine", {"predictor": "rk2", "corrector_iterations": 2})
    solver = tiny_config(encoder_solver="mine", layer_history="learned_dense").encoder_solver
    assert solver == {"predictor": "rk2", "corrector_iterations": 2}


def test_a_file_takes_no_packages_place(tmp_path):
    """Whatever the file is called, an import of that name finds what it found before."""
    (tmp_path / "datasets.py").write_text(SCHEME)
    module = import_schemes(tmp_path / "datasets.py")
    assert module is not datasets and importlib.import_module("datasets") is datasets
    assert pickle.loads(pickle.dumps(module.SoftmaxCoefficients)) is module.SoftmaxCoefficients


@pytest.mark.parametrize(
    "code, message",
    [
        ("import torch", "adds no entry to SCHEMES, COEFFICIENTS, HISTORIES"),
        (SCHEME.replace("softmax", "gate"), r"changes COEFFICIENTS\['gate'\]: choose another name"),
        (SCHEME.replace("1 / 3", "'third'"), "could not convert string to float"),
    ],
)
def test_a_file_that_adds_nothing_or_changes_what_is_there_is_refused(code, message, tmp_path):
    (tmp_path / "my_scheme.py").write_text(code)
    with pytest.raises(ValueError, match=message):
        import_schemes(tmp_path / "my_scheme.py")


def test_a_missing_and_a_second_file_are_refused(scheme, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none.py"):
        import_schemes("none.py")
    import_schemes(scheme)
    (tmp_path / "my_scheme.py").write_text(SCHEME + "\n")
    with pytest.raises(ValueError, match="another file with this name is already imported"):
        import_schemes(tmp_path / "my_scheme.py")
