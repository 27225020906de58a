# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The commands of the documents: bash expands every block, and the parser and the checks of each command take it.

Nothing is trained here; the tests of the commands do that.
"""

import gzip
import os
import re
import runpy
import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path

import pytest

from modeling_ode_transformer import cli
from modeling_ode_transformer.training import TASKS, find_task
from modeling_ode_transformer.training.run import parse_arguments

from .conftest import EXAMPLES


ROOT = EXAMPLES.parent
PAGES = sorted(path for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")] if "```bash" in path.read_text())
# Notes its name and arguments, which end with control characters that no command has.
STUB = """#!/bin/sh
{ printf '%s\\037' "${0##*/}" "$@"; printf '\\036'; } >> "$COMMANDS"
"""
PROGRAMS = ("ode-transformer", "python", "python3", "torchrun", "accelerate")
# Not of this project, or with a test of their own (make).
OTHERS = tuple("pip git make curl zcat apt-get hf nohup kill wget tar source sudo lm_eval docker".split())
SCRIPTS = {
    "run_translation.py": "translation",
    "run_summarization.py": "summarization",
    "run_gec.py": "correction",
    "run_language_modeling.py": "language-model",
    "run_classification.py": "classification",
}
EXAMPLE = {
    "classification": "label\tone two three\n",
    "language-model": "one two three\n",
    "summarization": '{"article": "one two three", "highlights": "one"}\n',
}


class Parsed(Exception):
    """A script has parsed its arguments."""


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """A function that gives the commands of a page, as lists of words."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in PROGRAMS + OTHERS:
        (programs / name).write_text(STUB if name in PROGRAMS else "#!/bin/sh\n")
        (programs / name).chmod(0o755)
    work = tmp_path / "work"
    work.mkdir()
    (work / "examples").symlink_to(EXAMPLES)
    (work / "RECIPE.json").symlink_to(EXAMPLES / "recipes" / "wmt14_en_de_base.json")
    monkeypatch.chdir(work)
    environment = {"PATH": f"{programs}{os.pathsep}/usr/bin{os.pathsep}/bin", "COMMANDS": str(tmp_path / "commands")}

    def found(page):
        for block in re.findall(r"```bash\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            checked = subprocess.run(["bash", "-n"], input=block, text=True, capture_output=True)
            assert not checked.returncode, checked.stderr
            subprocess.run(["bash"], input=block, text=True, env=environment, capture_output=True)
        noted = (tmp_path / "commands").read_text() if (tmp_path / "commands").exists() else ""
        return [words.split("\037")[:-1] for words in noted.split("\036")[:-1]]

    return found


def normalized(words):
    """A command without what starts it: a script of `examples`, or "ode-transformer", and its arguments."""
    script = next((i for i, word in enumerate(words) if word.endswith(".py") and word.startswith("examples/")), None)
    if script is not None:
        return words[script:]
    if words[0] == "ode-transformer" or words[1:3] == ["-m", "modeling_ode_transformer"]:
        return ["ode-transformer", *words[1 if words[0] == "ode-transformer" else 3 :]]
    return None


def make_files(words, task):
    """Writes three examples into each file that options of a training name and that is not there."""
    option = ""
    for word in words:
        option, path = (word, Path()) if word.startswith("--") else (option, Path(word))
        if re.fullmatch(r"--(train|validation|test)(_\w*files?)?", option) and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            is_side = re.search(r"_(source|target)_file", option)
            text = 3 * ("one two\n" if is_side else EXAMPLE.get(task, "one two\teins zwei\n"))
            path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


def check_training(name, argv):
    make_files(argv, name)
    # A training for a GPU is checked where there is none.
    argv = re.sub(r"\0--(tf32\0True|use_cpu\0False)(?=\0|$)", "", "\0".join(["", *argv])).split("\0")[1:]
    task = find_task(name)
    task.check_arguments(*parse_arguments(task, argv))


def check_command(words):
    program, *argv = words
    if program == "ode-transformer" and argv[:1] in (["train"], ["prepare"]) and argv[1] in TASKS:
        extra = ["--do_train"] if argv[0] == "prepare" else []
        return check_training(argv[1], [*argv[2:], *extra])
    if program == "ode-transformer":
        return cli.make_parser().parse_args(argv)
    if (name := Path(program).name) in SCRIPTS:
        return check_training(SCRIPTS[name], argv)
    sys.argv = words
    with pytest.raises(Parsed):
        runpy.run_path(str(ROOT / program), run_name="__main__")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_is_accepted(page, commands, monkeypatch):
    parse = ArgumentParser.parse_known_args

    def parsed(self, args=None, namespace=None):
        found = parse(self, args, namespace)
        if args in (None, sys.argv[1:]):
            raise Parsed
        return found

    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", [str(EXAMPLES / "benchmarks"), *sys.path])
    failed = []
    for words in filter(None, map(normalized, commands(page))):
        with monkeypatch.context() as patch:
            if words[0].startswith("examples/") and Path(words[0]).name not in SCRIPTS:
                patch.setattr(ArgumentParser, "parse_known_args", parsed)
            try:
                check_command(words)
            except OSError as error:
                # The model of an earlier command, or the scheme of the page, which has a test, is opened next.
                opens = {"--model_name_or_path", "--teacher"}.intersection(words)
                is_next = "--import" in words or (opens and "huggingface.co" in str(error))
                if not is_next:
                    failed.append(f"{' '.join(words)}: {error}")
            except (Exception, SystemExit) as error:
                failed.append(f"{' '.join(words)}: {type(error).__name__}: {error}")
    assert not failed, "\n".join(failed)
