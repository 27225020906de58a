# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Whatever a script is given that it cannot work with: one line that names it, before anything is written."""

import re

import pytest

from modeling_ode_transformer.errors import one_line_errors
from modeling_ode_transformer.training.run import run, run_process
from modeling_ode_transformer.training.tasks.classification import CLASSIFICATION
from modeling_ode_transformer.training.tasks.correction import CORRECTION
from modeling_ode_transformer.training.tasks.translation import TRANSLATION

from .runs import arguments


# File names in braces are of `files`.
TRANSLATIONS = [
    ({"gradient_accumulation_steps": 0}, "--gradient_accumulation_steps 0 must be at least 1"),
    ({"pad_to_multiple_of": -8}, "--pad_to_multiple_of -8 must be at least 1"),
    ({"pad_to_multiple_of": 0}, "--pad_to_multiple_of 0 must be at least 1"),
    ({"max_steps": None, "num_train_epochs": 0}, r"--num_train_epochs 0.0 must be above 0"),
    ({"max_steps": None, "num_train_epochs": -1}, r"--num_train_epochs -1.0 must be above 0"),
    ({"eval_steps": 0}, "--eval_steps 0.0 must be above 0"),
    ({"save_steps": 0}, "--save_steps 0.0 must be above 0"),
    (
        dict.fromkeys(["train_source_file", "train_target_file"])
        | {"train_file": "{deep.jsonl}", "source_lang": "en", "target_lang": "de"},
        r"deep\.jsonl, line 2, is not JSON \(maximum recursion depth",
    ),
    (
        dict.fromkeys(["train_source_file", "train_target_file"])
        | {"train_file": "{digits.jsonl}", "source_lang": "en", "target_lang": "de"},
        r"digits\.jsonl, line 1, is not JSON \(Exceeds the limit \(4300 digits\)",
    ),
    ({"label_smoothing_factor": -1}, "--label_smoothing_factor -1.0 must be at least 0"),
    ({"label_smoothing_factor": 1}, "--label_smoothing_factor 1.0 must be less than 1"),
    ({"label_smoothing_factor": "nan"}, "--label_smoothing_factor nan must be at least 0"),
    (
        {"train_sampling_strategy": "sequential", "max_tokens_per_batch": 200},
        "--max_tokens_per_batch 200 .* leave out --train_sampling_strategy sequential",
    ),
    ({"config_overrides": "encoder_solver=none.json"}, "--config_overrides encoder_solver=none.json: no such file"),
    ({"normalization": "nfkd"}, "Unknown normalization 'nfkd': give nfc, nfkc or moses_LANGUAGE"),
    ({"normalization": "nfc", "tokenizer_name": "{file}"}, "--normalization nfc is of a new tokenizer, but one is"),
    ({"config_overrides": "d_model=31"}, "error: d_model=31 is not a multiple of encoder_attention_heads"),
    ({"config_overrides": "d_model=wide"}, "d_model"),
]
CLASSIFICATIONS = [
    ({"max_length": -1}, "--max_length -1 must be at least 1"),
    (
        {"cross_validation": 10, "do_predict": True},
        "--cross_validation 10 needs at least as many examples, but there are 3",
    ),
    ({"train_file": "{one.txt}"}, "All examples have the label 1: there is nothing to tell apart"),
    ({"test_size": 0.6, "validation_size": 0.5}, "--validation_size 0.5 and --test_size 0.6 leave nothing"),
]


@pytest.fixture
def files(tmp_path):
    contents = {
        "file": "",
        "list.json": "[1]",
        "deep.jsonl": '{"en": "one", "de": "eins"}\n' + "[" * 100_000 + "]" * 100_000,
        "digits.jsonl": f'{{"en": "one", "de": "eins", "id": {"1" * 5000}}}\n',
        "three.txt": "0 one\n1 two\n0 three\n",
        "one.txt": "1 two\n1 three\n",
    }
    for name, text in contents.items():
        (tmp_path / name).write_text(text)
    return {name: str(tmp_path / name) for name in contents}


def refusal(task, argv, capsys) -> str:
    """What the script says last; there is no traceback."""
    with pytest.raises(SystemExit) as exit:
        run_process(lambda: run(task, argv))
    error = capsys.readouterr().err
    assert exit.value.code == 2 and "Traceback" not in error
    return error.splitlines()[-1]


@pytest.mark.parametrize("values, message", TRANSLATIONS, ids=lambda value: str(value)[:40])
def test_a_translation_script_refuses(values, message, corpus, files, tmp_path, capsys):
    values = {name: files.get(str(value).strip("{}"), value) for name, value in values.items()}
    line = refusal(TRANSLATION, arguments(corpus, **{"out": tmp_path / "out"} | values), capsys)
    assert line.startswith("error: ") and re.search(message, line)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("values, message", CLASSIFICATIONS, ids=lambda value: str(value)[:40])
def test_a_classification_script_refuses(values, message, files, tmp_path, capsys):
    values = {"train_file": "{three.txt}", "output_dir": tmp_path / "out", "do_train": True} | values
    values = {name: files.get(str(value).strip("{}"), value) for name, value in values.items()}
    line = refusal(
        CLASSIFICATION, [str(item) for name, value in values.items() for item in (f"--{name}", value)], capsys
    )
    assert line.startswith("error: ") and re.search(message, line)


def test_a_recipe_that_is_a_list_and_a_missing_file_are_named(files, tmp_path, capsys):
    line = refusal(TRANSLATION, [files["list.json"], "--output_dir", str(tmp_path / "out")], capsys)
    assert re.search(r"list\.json holds a list, not a JSON object", line)
    argv = ["--train_file", str(tmp_path / "nucle.m2"), "--output_dir", str(tmp_path / "out"), "--do_train"]
    line = refusal(CORRECTION, argv, capsys)
    assert re.search(r"No file .*nucle\.m2", line)


def test_an_error_in_between_is_not_hidden():
    with pytest.raises(RuntimeError, match="a defect"), one_line_errors():
        raise RuntimeError("a defect")
