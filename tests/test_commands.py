# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The commands of the package end with a message, not with a traceback, where a file is missing."""

import runpy
import sys
import warnings

import pytest

from modeling_ode_transformer.commands import run_command


COMMANDS = {
    "average_checkpoints": "{missing}",
    "conversion.fairseq": "{missing} --source_dict {missing} --target_dict {missing} --output_dir {out}",
    "metrics.bleu": "--hypotheses {missing} --references {missing}",
    "metrics.bootstrap": "--references {missing} --system_a {missing} --system_b {missing}",
    "metrics.errant": "compare {missing} {missing}",
    "metrics.gleu": "--hypotheses {missing} --references {missing} --sources {missing}",
    "metrics.m2": "{missing} {missing}",
    "metrics.perplexity": "--model {missing} --texts {missing}",
    "metrics.rouge": "--hypotheses {missing} --references {missing}",
    "hub.model_card": "{missing}.json",
    "hub.publish": "{missing} --repo_id me/model --dry_run",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_missing_file_is_named(name, tmp_path, monkeypatch, capsys):
    arguments = COMMANDS[name].format(missing=tmp_path / "missing", out=tmp_path / "out").split()
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    with pytest.raises(SystemExit) as exit, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the module was imported before
        runpy.run_module(f"modeling_ode_transformer.{name}", run_name="__main__")
    last = capsys.readouterr().err.splitlines()[-1]
    assert exit.value.code == 2 and last.startswith("error: ") and "missing" in last


def test_defects_keep_their_tracebacks():
    def main():
        raise TypeError("a defect")

    with pytest.raises(TypeError, match="a defect"):
        run_command(main)
