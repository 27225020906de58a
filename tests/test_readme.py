# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Examples of the README, run as they stand."""

import importlib
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from modeling_ode_transformer import OdeTransformerModel
from modeling_ode_transformer.integration_ode_transformer import MULTISTEPS, integrate_multistep

from .conftest import tiny_config


README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def blocks(heading):
    """The (language, text) of the code blocks of a section."""
    section = re.split(r"\n#+ ", README.partition(f"# {heading}\n")[2])[0]
    return re.findall(r"```(\w*)\n(.*?)```", section, re.DOTALL)


def test_a_scheme_of_ones_own_works_as_shown(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (_, from_data), (_, printed), (_, new_class) = blocks("Your own scheme")
    names = {}
    exec(from_data, names)
    assert capsys.readouterr().out == printed
    assert names["config"].encoder_tableau == names["heun3"]

    exec(new_class, names)
    try:
        model = OdeTransformerModel(tiny_config(encoder_solver="adams_bashforth", layer_history="none")).eval()
        assert type(model.encoder.multistep).__name__ == "AdamsBashforthScheme"
        model(input_ids=torch.tensor([[5, 6]]), decoder_input_ids=torch.tensor([[2]]))
        # of order 2: y' = -y in 100 and 200 steps
        errors = []
        for number in (100, 200):
            y = torch.ones((), dtype=torch.float64)
            scheme = MULTISTEPS["adams_bashforth"](number)
            y, _ = integrate_multistep(lambda z, _: -z, y, scheme, step_size=1 / number, num_steps=number)
            errors.append(abs(y.item() - 0.36787944117144233))
        assert errors[0] / errors[1] == pytest.approx(4, rel=0.05)
    finally:
        del MULTISTEPS["adams_bashforth"]


@pytest.mark.parametrize("trainer", ["TokenSeq2SeqTrainer", "Seq2SeqTrainer"])
def test_training_in_python_leaves_a_model_and_its_tokenizer(trainer, tmp_path, monkeypatch):
    """As shown, for two updates, and with transformers' own trainer; `"` is no quote in the pairs."""
    monkeypatch.chdir(tmp_path)
    words = [f"w{number * 7919 % 9000:x}" for number in range(9000)]
    rows = [f'{" ".join(words[start : start + 9])}\t"{words[start]}' for start in range(0, 9000, 9)]
    rows += ["None\tKeine\tCC-BY", "NA\tnull\tCC-BY"]  # and a third column in some
    rows[0] += "\tCC-BY"
    (tmp_path / "pairs.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    ((_, code),) = blocks("In Python, on your own pairs")
    tested = {"vocab_size=8000": "vocab_size=1000", "num_train_epochs=18": "max_steps=2"}
    if trainer == "Seq2SeqTrainer":
        plain = {"modeling_ode_transformer.training": "transformers", "TokenSeq2Seq": "Seq2Seq"}
        tested |= plain | {"max_tokens_per_batch=2700,": ""}
    for shown, instead in tested.items():
        assert shown in code
        code = code.replace(shown, instead)
    names = {}
    exec(code, names)
    assert len(names["pairs"]["train"]) + len(names["pairs"]["test"]) == len(rows)
    pairs = [(pair["source"], pair["target"]) for split in ("train", "test") for pair in names["pairs"][split]]
    assert sorted(pairs) == sorted(tuple(row.split("\t")[:2]) for row in rows)
    assert names["trainer"].state.global_step == 2 and type(names["trainer"]).__name__ == trainer
    tokenizer, model = AutoTokenizer.from_pretrained("my_model"), AutoModelForSeq2SeqLM.from_pretrained("my_model")
    assert tokenizer(rows[0]).input_ids == names["tokenizer"](rows[0]).input_ids
    torch.testing.assert_close(model.state_dict(), names["model"].state_dict(), rtol=0, atol=0)


def test_metrics_print_what_is_shown(tmp_path, monkeypatch, capsys, evaluate_modules):
    monkeypatch.chdir(tmp_path)
    (_, commands), (_, printed), (_, python), (_, python_printed) = blocks("Metrics")
    *files, command = commands.splitlines()
    subprocess.run(["bash", "-c", "\n".join(files)], check=True)
    _, _, module, *arguments = shlex.split(command)
    importlib.import_module(module).main(arguments)
    assert capsys.readouterr().out == printed

    exec(python, {})
    assert capsys.readouterr().out == python_printed
