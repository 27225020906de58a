# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""What the package is to others: the Auto classes, import, and saved models with their code."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM

import modeling_ode_transformer
from modeling_ode_transformer import (
    OdeTransformerConfig,
    OdeTransformerForCausalLM,
    OdeTransformerForConditionalGeneration,
    OdeTransformerModel,
)

from .conftest import randomize, tiny_config


PACKAGE = Path(modeling_ode_transformer.__file__).parent
PUBLISHED = (
    "configuration_ode_transformer",
    "convert_residual",
    "generation_ode_transformer",
    "integration_ode_transformer",
    "modeling_ode_transformer",
)


def run_python(program: str, tmp_path: Path, *arguments: str) -> str:
    """Runs a program in a new process, with an empty cache of remote code, and returns what it prints."""
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules"), "HF_HUB_OFFLINE": "1"}
    # transformers imports torchao where it is installed, and that prints.
    program = f"import sys; sys.modules['torchao'] = None\n{program}"
    command = [sys.executable, "-W", "error::DeprecationWarning:modeling_ode_transformer", "-c", program, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert result.returncode == 0, result.stderr
    return result.stdout + result.stderr


def test_importing_prints_nothing_and_stays_cheap(tmp_path):
    program = (
        f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r}); import modeling_ode_transformer\n"
        "heavy = {'datasets', 'evaluate', 'sacrebleu', 'pandas', 'sklearn', 'matplotlib', 'tensorboard'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    assert run_python(program, tmp_path) == ""


@pytest.mark.parametrize(
    "auto_class, model_class",
    [
        (AutoModel, OdeTransformerModel),
        (AutoModelForSeq2SeqLM, OdeTransformerForConditionalGeneration),
        (AutoModelForCausalLM, OdeTransformerForCausalLM),
    ],
)
def test_auto_classes_know_the_package(auto_class, model_class, tmp_path):
    assert isinstance(AutoConfig.for_model("ode_transformer"), OdeTransformerConfig)
    model = auto_class.from_config(tiny_config())
    assert type(model) is model_class
    model.save_pretrained(tmp_path)
    assert type(auto_class.from_pretrained(tmp_path)) is model_class


def test_published_files_import_only_from_their_neighbours():
    """transformers copies `from .module import name` only; any other form is lost or breaks."""
    for name in PUBLISHED:
        tree = ast.parse((PACKAGE / f"{name}.py").read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.level:
                assert node.level == 1 and node.module in PUBLISHED
            elif isinstance(node, ast.ImportFrom):
                assert node.module != "__future__" and not node.module.startswith("modeling_ode_transformer")
            elif isinstance(node, ast.Import):
                assert not any(alias.name.startswith("modeling_ode_transformer") for alias in node.names)


WITHOUT_PACKAGE = """
import sys, torch
sys.modules["modeling_ode_transformer"] = None
from transformers import AutoModelForSeq2SeqLM
first, second = sys.argv[1:]
for source, target in ((first, second), (second, None)):
    model = AutoModelForSeq2SeqLM.from_pretrained(source, trust_remote_code=True).eval()
    assert type(model).__module__.startswith("transformers_modules."), type(model)
    if target:
        model.save_pretrained(target)
    assert model.generate(torch.arange(4, 9)[None], min_new_tokens=3).shape == (1, 5)  # start, 3 tokens, end
    print(model(torch.arange(4, 9)[None], decoder_input_ids=torch.arange(4, 9)[None]).logits.double().sum().item())
"""


def test_a_saved_model_loads_without_the_package_and_keeps_its_code(tmp_path):
    torch.manual_seed(0)
    model = randomize(OdeTransformerForConditionalGeneration(tiny_config(solver_coefficients="learned")))
    model.generation_config.max_len_a, model.generation_config.max_len_b = 0.2, 2
    folders = [tmp_path / name for name in ("first", "second", "third")]
    model.save_pretrained(folders[0])
    # The package opens it and saves it again ...
    AutoModelForSeq2SeqLM.from_pretrained(folders[0]).save_pretrained(folders[1])
    # ... and so does a process that only has the files.
    printed = run_python(WITHOUT_PACKAGE, tmp_path, str(folders[1]), str(folders[2])).split()
    numbers = [float(word) for word in printed if word.replace(".", "").replace("-", "").isdigit()]
    ids = torch.arange(4, 9)[None]
    expected = model(ids, decoder_input_ids=ids).logits.double().sum().item()
    assert numbers == pytest.approx([expected] * 2, abs=1e-3)
    for folder in folders:
        files = {path.name for path in folder.glob("*.py")}
        assert {f"{name}.py" for name in PUBLISHED} <= files
        auto_map = json.loads((folder / "config.json").read_text())["auto_map"]
        assert auto_map["AutoModelForSeq2SeqLM"].endswith("OdeTransformerForConditionalGeneration")
        assert auto_map["AutoConfig"].endswith("OdeTransformerConfig")
