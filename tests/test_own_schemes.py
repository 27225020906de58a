# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""`--import`: schemes, coefficients and histories from a file, in training, saved as code, and elsewhere; what cannot
travel."""

import ast
import hashlib
import importlib
import json
import pickle
import sys

import evaluate
import pytest
import run_translation
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from modeling_ode_transformer import OdeTransformerConfig, OdeTransformerForConditionalGeneration, cli
from modeling_ode_transformer.integration_ode_transformer import OWN_CODE
from modeling_ode_transformer.own_schemes import TABLES, import_schemes
from modeling_ode_transformer.training.smoke import number_names

from .conftest import build, tiny_config
from .processes import run_python
from .test_hub import PUBLISHED, WITHOUT_PACKAGE
from .training.runs import MODEL, SIZES, arguments


SCHEME = '''
import torch

from modeling_ode_transformer.integration_ode_transformer import (
    COEFFICIENTS,
    TABLEAUS,
    ButcherTableau,
    StageCoefficients,
)

TABLEAUS["heun3"] = ButcherTableau(a=((), (1 / 3,), (0, 2 / 3)), b=(1 / 4, 0, 3 / 4))


class SoftmaxCoefficients(StageCoefficients):
    """Positive weights that sum to 1."""

    def initial_weight(self):
        return torch.zeros(self.tableau.num_stages)

    def forward(self, stages):
        return self.weight.softmax(0).unbind()


COEFFICIENTS["softmax"] = SoftmaxCoefficients
'''


def module_of(name):
    return f"{import_schemes.__module__}.{name}"


@pytest.fixture(autouse=True)
def tables_as_before():
    before = {table: dict(entries) for table, entries in TABLES.items()}
    yield
    for name in OWN_CODE:
        del sys.modules[module_of(name)]
    OWN_CODE.clear()
    for table, entries in before.items():
        for name in TABLES[table].keys() - entries.keys():
            del TABLES[table][name]


@pytest.fixture
def scheme(tmp_path):
    path = tmp_path / "own" / "my_scheme.py"
    path.parent.mkdir()
    path.write_text(SCHEME)
    return path


def forget():
    """As in a process that has imported nothing."""
    for names, _ in OWN_CODE.values():
        for entries in TABLES.values():
            for name in names & entries.keys():
                del entries[name]
    for name in list(OWN_CODE):
        del OWN_CODE[name], sys.modules[module_of(name)]


ELSEWHERE = """
import sys, torch
sys.modules["modeling_ode_transformer"] = None
from transformers import AutoModelForSeq2SeqLM, pipeline
first, second, text = sys.argv[1:]
translator = pipeline("translation", first, trust_remote_code=True)
print("text", translator(text)[0]["translation_text"])
translator.save_pretrained(second)
for folder in (first, second):
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True).eval()
    coefficients = model.model.encoder.solver_coefficients
    assert type(coefficients).__name__ == "SoftmaxCoefficients" and type(coefficients).__module__.endswith("my_scheme")
    ids = torch.arange(4, 9)[None]
    print("sum", model(ids, decoder_input_ids=ids).logits.double().sum().item())
"""


def test_a_trained_model_takes_its_schemes_along(scheme, tmp_path, capsys):
    number_names.write_corpus(tmp_path, SIZES)
    overrides = json.dumps(MODEL | {"encoder_solver": "heun3", "encoder_coefficients": "softmax"})
    options = {
        "import": scheme,
        "config_overrides": overrides,
        "do_predict": True,
        "save_strategy": "steps",
        "save_steps": 60,
    }
    options |= {"max_steps": 60}
    out = tmp_path / "out"
    run_translation.main(arguments(tmp_path, out, **options))
    model = AutoModelForSeq2SeqLM.from_pretrained(out).eval()
    weights = model.model.encoder.solver_coefficients.weight
    assert weights.shape == (3,) and weights.abs().sum() > 0  # trained
    (noted,) = json.loads((out / "arguments.json").read_text())["imports"]
    assert noted == f"my_scheme.py ({hashlib.blake2b(scheme.read_bytes(), digest_size=16).hexdigest()})"
    ids = torch.arange(4, 9)[None]
    expected = model(ids, decoder_input_ids=ids).logits.double().sum().item()
    source = (tmp_path / "test.en").read_text().splitlines()[0]
    prediction = (out / "generated_predictions.txt").read_text().splitlines()[0]
    (checkpoint,) = out.glob("checkpoint-*")
    for folder in (out, checkpoint):
        assert "from .integration_ode_transformer import" in (folder / "my_scheme.py").read_text()
        assert json.loads((folder / "config.json").read_text())["own_schemes"] == {"my_scheme": ["heun3", "softmax"]}

    printed = run_python(ELSEWHERE, tmp_path, str(out), str(tmp_path / "again"), source).splitlines()
    assert f"text {prediction}" in printed
    assert [float(line[4:]) for line in printed if line.startswith("sum ")] == pytest.approx([expected] * 2, abs=1e-3)

    # A process with the package has to import the file, the saved one too.
    forget()
    with pytest.raises(ValueError, match=r"has heun3, softmax of my_scheme.py, .* by --import my_scheme.py"):
        AutoModelForSeq2SeqLM.from_pretrained(out)
    (tmp_path / "source.txt").write_text(f"{source}\n")
    command = ["--model_name_or_path", str(tmp_path / "again"), "--input", str(tmp_path / "source.txt")]
    capsys.readouterr()
    cli.run(["generate", *command, "--device", "cpu", "--import", str(tmp_path / "again" / "my_scheme.py")])
    assert capsys.readouterr().out == f"{prediction}\n"
    average = [str(out), "--last", "1", "--output_dir", str(tmp_path / "averaged"), "--import", str(scheme)]
    cli.run(["average", *average])
    assert (tmp_path / "averaged" / "my_scheme.py").read_text() == (out / "my_scheme.py").read_text()
    assert AutoTokenizer.from_pretrained(tmp_path / "averaged")(source)


def test_only_models_that_need_it_take_it_along(scheme, tmp_path):
    import_schemes(scheme)
    assert import_schemes(scheme).SoftmaxCoefficients is TABLES["COEFFICIENTS"]["softmax"]
    OdeTransformerForConditionalGeneration(tiny_config()).save_pretrained(tmp_path / "plain")
    assert {path.stem for path in (tmp_path / "plain").glob("*.py")} == set(PUBLISHED)
    with pytest.raises(StrictDataclassError, match=r"choose one of fixed, .*, softmax"):
        OdeTransformerConfig(encoder_coefficients="none")


# Names that the package's module has, too: with another meaning here.
OTHERS = """
import torch; from modeling_ode_transformer.integration_ode_transformer import HISTORIES, DenseLayerHistory


def weighted_sum(values):
    return sum(values)


TOLERANCE = clamp_half = integrate = KERNELS = None


class SumHistory(DenseLayerHistory):
    def forward(self, states):
        return weighted_sum(states)


HISTORIES["sum"] = SumHistory
"""
FIELDS_OF_OWN_SCHEMES = """
import json, os
config = model.config
print("kept", json.load(open(f"{seconds[0]}/config.json"))["own_schemes"])
config.encoder_solver = "rk2"
config.save_pretrained("without")
config.layer_history = "dense"
config.save_pretrained("plain")
for folder in ("without", "plain"):
    print(folder, json.load(open(f"{folder}/config.json")).get("own_schemes"))
"""


def test_names_of_a_file_change_nothing_in_the_saved_code(scheme, tmp_path):
    """Helpers of the file have names of the package's module. A history that the file adds travels like a scheme. The
    saved code names the entries that a model has, also where the package is not."""
    scheme.write_text(SCHEME + OTHERS)
    import_schemes(scheme)
    model = build(encoder_solver="heun3", layer_history="sum", encoder_coefficients="fixed").eval()
    model.generation_config.max_len_a, model.generation_config.max_len_b = 0.2, 2
    ids = torch.arange(4, 9)[None]
    expected = model(ids, decoder_input_ids=ids).logits.double().sum().item()
    folders = [str(tmp_path / name) for name in ("first", "second")]
    model.save_pretrained(folders[0])
    printed = run_python(WITHOUT_PACKAGE + FIELDS_OF_OWN_SCHEMES, tmp_path, *folders).splitlines()
    assert [float(line[4:]) for line in printed if line.startswith("sum ")] == pytest.approx([expected] * 2, abs=1e-3)
    assert "kept {'my_scheme': ['heun3', 'sum']}" in printed
    assert "without {'my_scheme': ['sum']}" in printed and "plain None" in printed

    forget()
    with pytest.raises(ValueError, match=r"has heun3, sum of my_scheme.py, which is saved beside it: import it first"):
        AutoModelForSeq2SeqLM.from_pretrained(folders[1])
    import_schemes(tmp_path / "second" / "my_scheme.py")
    loaded = AutoModelForSeq2SeqLM.from_pretrained(folders[1]).eval()
    assert loaded(ids, decoder_input_ids=ids).logits.equal(model(ids, decoder_input_ids=ids).logits)


def test_a_model_that_no_longer_needs_a_file_does_not_name_it(scheme, tmp_path):
    """Saving leaves the configuration in memory as it is."""
    import_schemes(scheme)
    OdeTransformerConfig(encoder_solver="heun3").save_pretrained(tmp_path / "own")
    config = OdeTransformerConfig.from_pretrained(tmp_path / "own", encoder_solver="rk2")
    before = config.to_dict()
    config.save_pretrained(tmp_path / "plain")
    assert before["own_schemes"] == {"my_scheme": ["heun3"]} and config.to_dict() == before

    class Unregistered(OdeTransformerConfig):
        _auto_class = None

    Unregistered().save_pretrained(tmp_path / "alone")
    assert [path.name for path in (tmp_path / "alone").iterdir()] == ["config.json"]
    assert not (tmp_path / "plain" / "my_scheme.py").exists()
    forget()
    assert "own_schemes" not in OdeTransformerConfig.from_pretrained(tmp_path / "plain").to_dict()


@pytest.mark.parametrize(
    "form",
    [
        "import torch; from {} import {}",
        "if True: from {} \\\n    import {}",
        "ü = 'ü'; from {} import ({},\n)",
    ],
)
def test_every_form_of_import_travels(form, tmp_path):
    """The copy imports from its neighbor, as Python itself reads it; a second import changes nothing."""
    path = tmp_path / "my_scheme.py"
    code = form.format("modeling_ode_transformer.integration_ode_transformer", "TABLEAUS")
    path.write_text(f'{code}\nTABLEAUS["again"] = TABLEAUS["rk4"]\n')
    module = import_schemes(path)
    assert module.TABLEAUS is TABLES["TABLEAUS"]
    nodes = [node for node in ast.walk(ast.parse(OWN_CODE["my_scheme"][1])) if isinstance(node, ast.ImportFrom)]
    assert [(node.module, node.level) for node in nodes] == [("integration_ode_transformer", 1)]
    copied = tmp_path / "copied" / "my_scheme.py"
    copied.parent.mkdir()
    copied.write_text(OWN_CODE["my_scheme"][1])
    assert import_schemes(copied) is module


def test_a_file_takes_no_packages_place(tmp_path):
    """Whatever the file is called, an import of that name finds what it found before."""
    (tmp_path / "evaluate.py").write_text(SCHEME)
    module = import_schemes(tmp_path / "evaluate.py")
    assert module is not evaluate and importlib.import_module("evaluate") is evaluate
    assert pickle.loads(pickle.dumps(module.SoftmaxCoefficients)) is module.SoftmaxCoefficients


@pytest.mark.parametrize(
    "name, code, message",
    [
        (
            "my_scheme.py",
            "import requests\n" + SCHEME,
            "line 1: requests may be missing where a saved model is opened",
        ),
        (
            "my_scheme.py",
            "from modeling_ode_transformer import ButcherTableau",
            "line 1: modeling_ode_transformer may be missing",
        ),
        ("my_scheme.py", "from .helper import x", "line 1: .helper may be missing"),
        (
            "my_scheme.py",
            "import torch",
            "adds no entry to TABLEAUS, CORRECTORS, MULTISTEPS, COEFFICIENTS, HISTORIES",
        ),
        ("my_scheme.py", SCHEME.replace("softmax", "gate"), r"changes COEFFICIENTS\['gate'\]: choose another name"),
        ("my_scheme.py", SCHEME + "\n1 / 0", "fails: ZeroDivisionError: division by zero"),
        ("my_scheme.py", SCHEME.replace("1 / 3", "'third'"), "of a Butcher tableau has .*: give numbers within"),
        ("my_scheme.py", "def", "is not Python: "),
        ("my-scheme.py", SCHEME, "needs its own module name"),
        ("random.py", SCHEME, "needs its own module name"),
        ("modeling_ode_transformer.py", SCHEME, "needs its own module name"),
    ],
)
def test_what_cannot_travel_is_refused(name, code, message, tmp_path):
    before = {table: dict(entries) for table, entries in TABLES.items()}
    (tmp_path / name).write_text(code)
    with pytest.raises(ValueError, match=message):
        import_schemes(tmp_path / name)
    assert TABLES == before and not OWN_CODE and module_of(name.removesuffix(".py")) not in sys.modules


def test_a_missing_and_a_second_file_are_refused(scheme, tmp_path, capsys):
    with pytest.raises(FileNotFoundError, match=r"--import none.py: no such file"):
        import_schemes("none.py")
    import_schemes(scheme)
    (tmp_path / "my_scheme.py").write_text(SCHEME + "\n")
    with pytest.raises(ValueError, match="another file with this name is already imported"):
        import_schemes(tmp_path / "my_scheme.py")
    with pytest.raises(SystemExit):
        cli.main(["average", str(tmp_path), "--import", str(tmp_path / "none.py")])
    assert capsys.readouterr().err == f"error: --import {tmp_path / 'none.py'}: no such file.\n"
