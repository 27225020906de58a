# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The command `ode-transformer`: help without torch, and a message in place of a traceback where a file is missing."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
import run_translation

from modeling_ode_transformer import cli
from modeling_ode_transformer.inference.arguments import GenerateArguments
from modeling_ode_transformer.training import TASKS, find_task
from modeling_ode_transformer.training.help import HELP_FOLDER, help_text

from .processes import run_python


COMMANDS = {
    **{f"train {task}": "--recipe {missing}.json" for task in TASKS},
    **{f"prepare {task}": "--recipe {missing}.json" for task in cli.PREPARED},
    "average": "{missing}",
    "convert-fairseq": "{missing} --source_dict {missing} --target_dict {missing} --output_dir {out}",
    "convert-successor": "{missing} --output_dir {out}",
    "export-onnx": "{missing} --output_dir {out}",
    "generate": "--model_name_or_path {missing} --input {missing}",
    "serve": "{missing} --port 0",
    "publish": "{missing} --repo_id me/model --dry_run",
    "card": "{missing}.json",
    "score bleu": "--hypotheses {missing} --references {missing}",
    "score chrf": "--hypotheses {missing} --references {missing}",
    "score ter": "--hypotheses {missing} --references {missing}",
    "score likelihood": "--model {missing} --targets {missing}",
    "score rouge": "--hypotheses {missing} --references {missing}",
    "score m2": "--hypotheses {missing} --references {missing}",
    "score gleu": "--hypotheses {missing} --references {missing} --sources {missing}",
    "score errant": "--hypotheses {missing} --references {missing}",
    "score perplexity": "--model {missing} --texts {missing}",
    "score bootstrap": "--references {missing} --system_a {missing} --system_b {missing}",
    "annotate": "--sources {missing} --corrections {missing} --output {out}",
}


def test_every_subcommand_is_tested():
    assert set(cli.COMMANDS) == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_missing_file_is_named(name, tmp_path, capsys):
    arguments = COMMANDS[name].format(missing=tmp_path / "missing", out=tmp_path / "out").split()
    with pytest.raises(SystemExit) as exit:
        cli.main([*name.split(), *arguments])
    (line,) = capsys.readouterr().err.splitlines()
    assert exit.value.code == 2 and line.startswith("error: ") and "missing" in line


MISSING = ModuleNotFoundError("No module named 'sacrebleu'", name="sacrebleu")


@pytest.mark.parametrize(
    "error, code, message",
    [
        (MISSING, 2, r"error: No module named 'sacrebleu': install .*modeling-ode-transformer\[train\]"),
        (KeyboardInterrupt(), 130, r"Interrupted\.$"),
    ],
)
def test_a_missing_package_and_an_interruption_are_one_line(error, code, message, monkeypatch, capsys):
    monkeypatch.setattr(cli, "run", mock.Mock(side_effect=error))
    with pytest.raises(SystemExit) as exit:
        cli.main([])
    (line,) = capsys.readouterr().err.splitlines()
    assert exit.value.code == code and re.match(message, line)


def test_defects_keep_their_tracebacks(monkeypatch):
    monkeypatch.setattr(cli, "run", mock.Mock(side_effect=TypeError("a defect")))
    with pytest.raises(TypeError, match="a defect"):
        cli.main([])


def test_a_command_that_imports_the_models_prints_nothing_of_torchao(tmp_path):
    pytest.importorskip("torchao")
    command = [sys.executable, "-m", "modeling_ode_transformer", "average", str(tmp_path / "none")]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert (ended.stdout, ended.stderr) == ("", f"error: No folder {tmp_path / 'none'}.\n")


HELP = """
import contextlib, io
sys.argv[0] = "/somewhere/bin/ode-transformer"
from modeling_ode_transformer.cli import main
for words in sys.argv[1:]:
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            main([*words.split(), "--help"])
    except SystemExit as exit:
        assert exit.code == 0
    printed = printed.getvalue()
    assert printed.startswith(" ".join(["usage: ode-transformer", *words.split()])), printed
    assert " object at " not in printed and "None" not in printed, printed
heavy = {"torch", "transformers", "datasets", "numpy"}
assert not heavy & set(sys.modules) - {"torchao"}, heavy & set(sys.modules)

# Nor do the metrics of texts need torch.
from pathlib import Path
Path("text").write_text("a b c d")
Path("edits.m2").write_text("S a b c d")
files = ["--hypotheses", "text", "--references", "text"]
for metric in (["bleu", *files], ["rouge", *files], ["gleu", *files, "--sources", "text"],
               ["m2", "--hypotheses", "text", "--references", "edits.m2"],
               ["bootstrap", "--system_a", "text", "--system_b", "text", "--references", "text"]):
    with contextlib.redirect_stdout(io.StringIO()):
        main(["score", *metric])
assert not (heavy - {"numpy"}) & set(sys.modules), heavy & set(sys.modules)

# What a subcommand imports finds the names of the package, and the Auto classes know its models.
from modeling_ode_transformer import OdeTransformerConfig
from transformers import AutoConfig
assert type(AutoConfig.for_model("ode_transformer")) is OdeTransformerConfig
"""


def test_help_needs_no_torch(tmp_path):
    run_python(HELP, tmp_path, "", "train", "score", *COMMANDS, run=subprocess.run)


def test_publish_passes_its_options_on(monkeypatch, capsys):
    found = {}
    monkeypatch.setattr("modeling_ode_transformer.hub.publish.publish", lambda *args, **options: found.update(options))
    command = ["publish", "run", "--repo_id", "me/model"]
    cli.run(command)
    assert found == {**{"private": False, "update": False}, "dtype": "auto"}
    cli.run([*command, "--private", "--update", "--dtype", "bfloat16"])
    assert found == {"private": True, "update": True, "dtype": "bfloat16"}


def generate_arguments(monkeypatch, *argv):
    """What `ode-transformer generate` would run with."""
    found = []
    monkeypatch.setattr("modeling_ode_transformer.inference.generate.run", found.append)
    cli.run(["generate", *map(str, argv)])
    return dataclasses.asdict(*found)


def test_the_command_line_of_generate_wins_over_its_recipe(monkeypatch, tmp_path):
    recipe = tmp_path / "recipe.json"
    options = {"model_name_or_path": "one", "num_beams": 8, "scores": True, "optimize_for_cpu": False, "seed": 7}
    recipe.write_text(json.dumps(options | {"generation_options": {"no_repeat_ngram_size": 3}}))
    expected = dataclasses.asdict(GenerateArguments(["one"], scores=True, optimize_for_cpu=False, seed=7))
    expected |= {"num_beams": 8, "generation_options": '{"no_repeat_ngram_size": 3}'}
    assert generate_arguments(monkeypatch, recipe) == expected
    changed = {"model_name_or_path": ["two"], "num_beams": 2, "scores": False, "overwrite": True}
    given = "--num_beams 2 --scores false --overwrite --model_name_or_path two".split()
    assert generate_arguments(monkeypatch, recipe, *given) == expected | changed


@pytest.mark.parametrize(
    "text, message",
    [
        ('{"num_beem": 3, "run": 1}', r"recipe.json holds unknown arguments: num_beem, run \(--help"),
        ("[]", "recipe.json holds a list, not a JSON object"),
        ('{"dtype": "fp64", "model_name_or_path": ["one"]}', "argument --dtype: invalid choice: 'fp64'"),
        ("{}", "give --model_name_or_path"),
        ('{"trust_remote_code": true}', "trust_remote_code, which runs code: .* only on the command line"),
        ('{"import_schemes": ["s.py"]}', "import_schemes, which runs code: .* only on the command line"),
        ('{"model_name_or_path": "one", "num_beams": [4, 5]}', "unrecognized arguments: 5"),
        ('{"model_name_or_path": "one", "num_beams": true}', "argument --num_beams: invalid int value: 'true'"),
        ('{"model_name_or_path": "one", "length_penalty": null}', "--length_penalty: invalid float value: 'null'"),
        ('{"model_name_or_path": "one", "scores": 1}', "argument --scores: '1' must be true or false"),
    ],
)
def test_a_wrong_recipe_is_an_error(text, message, tmp_path, capsys):
    (tmp_path / "recipe.json").write_text(text)
    with pytest.raises((ValueError, SystemExit)) as error:
        cli.run(["generate", str(tmp_path / "recipe.json")])
    assert re.search(message, f"{error.value} {capsys.readouterr().err}")


def test_the_kept_help_of_the_trainings_is_that_of_their_options():
    """`python -m modeling_ode_transformer.training.help` writes it anew."""
    for name in TASKS:
        assert (cli.HELP_TEXTS / f"{name}.txt").read_text() == help_text(find_task(name)), name
    assert HELP_FOLDER == cli.HELP_TEXTS


def test_the_scripts_of_examples_show_the_help_of_the_command(capsys):
    """And every option of Trainer if asked to, with defaults and not with places in memory."""
    with pytest.raises(SystemExit) as exit:
        run_translation.main(["--help"])
    assert exit.value.code == 0
    assert capsys.readouterr().out == (cli.HELP_TEXTS / "translation.txt").read_text()
    with pytest.raises(SystemExit):
        run_translation.main(["--help_all"])
    printed = capsys.readouterr().out
    assert "--adam_epsilon" in printed and "default: 1e-08" in printed and " object at " not in printed


def test_an_installed_package_has_all_its_files(tmp_path):
    """An editable install, as in these tests, does not need what setup.cfg lists."""
    root = Path(cli.__file__).parent
    program = f"import os, setuptools; os.chdir({str(root.parent)!r}); setuptools.setup()"
    build = [sys.executable, "-c", program, "-q", "build_py", "--build-lib", str(tmp_path)]
    subprocess.run(build, check=True, capture_output=True, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    files, installed = (
        {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"}
        for folder in (root, tmp_path / root.name)
    )
    assert installed == files
