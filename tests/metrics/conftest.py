# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""What the tests of metrics share: files of lines in a folder of their own, and what the command prints."""

import gzip
import json

import pytest

from modeling_ode_transformer import cli


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes files of lines by their names into a folder, which is the working directory."""
    monkeypatch.chdir(tmp_path)

    def write(files):
        for name, lines in files.items():
            with (gzip.open if name.endswith(".gz") else open)(name, "wt", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in lines)

    return write


@pytest.fixture
def printed(capsys):
    """Runs `ode-transformer` and returns what it prints: the object that --json asks for, else the text."""

    def printed(command):
        capsys.readouterr()
        cli.run(command.split())
        text = capsys.readouterr().out
        return json.loads(text) if "--json" in command else text

    return printed
