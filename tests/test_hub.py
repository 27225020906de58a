# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""What the package is to others: the Auto classes, import, and saved models with their code."""

import json
import random
import re
import subprocess
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM

import modeling_ode_transformer
from modeling_ode_transformer import (
    OdeTransformerForCausalLM,
    OdeTransformerForConditionalGeneration,
    OdeTransformerModel,
)
from modeling_ode_transformer.inference.beam_search import searches_beams
from modeling_ode_transformer.pipeline_ode_transformer import add_pipeline

from .conftest import randomize, tiny_config
from .processes import run_python
from .test_beam_search import CONFIGS, draw_options, draw_source, lively


PACKAGE = Path(modeling_ode_transformer.__file__).parent
PUBLISHED = (
    "configuration_ode_transformer",
    "layers_ode_transformer",
    "generation_ode_transformer",
    "integration_ode_transformer",
    "modeling_ode_transformer",
    "schemes_ode_transformer",
)
PUBLISHED_CSA_ODE = (
    "configuration_csa_ode",
    "integration_ode_transformer",
    "modeling_csa_ode",
    "solvers_csa_ode",
)


def test_importing_prints_nothing_and_stays_cheap(tmp_path):
    program = (
        # What transformers prints, as of optional packages that it finds, is its own.
        "import contextlib, io\nwith contextlib.redirect_stderr(io.StringIO()): import transformers.modeling_utils\n"
        f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r}); import modeling_ode_transformer\n"
        "heavy = {'datasets', 'evaluate', 'sacrebleu', 'pandas', 'sklearn', 'matplotlib', 'tensorboard'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    assert run_python(program, tmp_path, run=subprocess.run) == ""


@pytest.mark.parametrize(
    "auto_class, model_class",
    [
        (AutoModel, OdeTransformerModel),
        (AutoModelForSeq2SeqLM, OdeTransformerForConditionalGeneration),
        (AutoModelForCausalLM, OdeTransformerForCausalLM),
    ],
)
def test_auto_classes_know_the_package(auto_class, model_class, tmp_path):
    config = tiny_config(config_class=model_class.config_class)
    assert type(AutoConfig.for_model(config.model_type)) is model_class.config_class
    model = auto_class.from_config(config)
    assert type(model) is model_class
    model.save_pretrained(tmp_path)
    assert type(auto_class.from_pretrained(tmp_path)) is model_class


WITHOUT_PACKAGE = """
import sys, torch
sys.modules["modeling_ode_transformer"] = None
from transformers import AutoModelForSeq2SeqLM
firsts, seconds = sys.argv[1::2], sys.argv[2::2]
for source, target in (*zip(firsts, seconds), *((second, None) for second in seconds)):
    model = AutoModelForSeq2SeqLM.from_pretrained(source, trust_remote_code=True).eval()
    assert type(model).__module__.startswith("transformers_modules."), type(model)
    if target:
        model.save_pretrained(target)
    assert model.generate(torch.arange(4, 9)[None], min_new_tokens=3).shape == (1, 5)  # start, 3 tokens, end
    # Searches with a cache, by whatever name the installed transformers has for it, find what those without find.
    options = {"min_new_tokens": 8, "max_new_tokens": 8, "max_len_a": None, "max_len_b": None, "output_logits": True}
    for options["num_beams"] in (1, 3):
        found = [
            model.generate(torch.arange(4, 9)[None], use_cache=cached, return_dict_in_generate=True, **options)
            for cached in (True, False)
        ]
        torch.testing.assert_close(*(torch.stack(each.logits) for each in found), atol=1e-4, rtol=0)
        assert model.generate(torch.arange(4, 9)[None], **options).equal(found[0].sequences)
    output = model(torch.arange(4, 9)[None], decoder_input_ids=torch.arange(4, 9)[None])
    print("sum", output.logits.double().sum().item())
"""


SEARCHES = """
import sys, torch
sys.modules["modeling_ode_transformer"] = None
from transformers import AutoModelForSeq2SeqLM
for noted in torch.load(sys.argv[1] + "/searches.pt"):
    model = AutoModelForSeq2SeqLM.from_pretrained(noted["folder"], trust_remote_code=True).eval()
    assert type(model).__module__.startswith("transformers_modules."), type(model)
    for sources, options, expected in noted["searches"]:
        found = model.generate(**sources, **options)
        assert found.equal(expected), (options, found, expected)
        print("equal")
"""


def test_a_saved_model_finds_the_same_without_the_package(tmp_path):
    """Over fifty searches: the package's here, and transformers' there."""
    rng, generator, noted = random.Random(0), torch.Generator().manual_seed(0), []
    for number, name in enumerate(CONFIGS):
        model, searches = lively(**CONFIGS[name]), []
        model.save_pretrained(tmp_path / str(number))
        for _ in range(5):
            sources, options = draw_source(rng, generator), draw_options(rng) | {"num_return_sequences": 1}
            assert searches_beams(model, **sources, **options)
            searches.append((sources, options, model.generate(**sources, **options)))
        noted.append({"folder": str(tmp_path / str(number)), "searches": searches})
    torch.save(noted, tmp_path / "searches.pt")
    assert run_python(SEARCHES, tmp_path, str(tmp_path)).splitlines().count("equal") >= 50


def test_a_saved_model_loads_without_the_package_and_keeps_its_code(tmp_path):
    torch.manual_seed(0)
    model = randomize(OdeTransformerForConditionalGeneration(tiny_config(coefficients="learned")))
    model.generation_config.max_len_a, model.generation_config.max_len_b = 0.2, 2
    folders = [tmp_path / name for name in ("first", "second", "third")]
    model.save_pretrained(folders[0])
    # The package opens it and saves it again ...
    AutoModelForSeq2SeqLM.from_pretrained(folders[0]).save_pretrained(folders[1])
    # ... and so does a process that only has the files.
    printed = run_python(WITHOUT_PACKAGE, tmp_path, str(folders[1]), str(folders[2]))
    numbers = [float(number) for number in re.findall(r"^sum (\S+)$", printed, re.MULTILINE)]
    ids = torch.arange(4, 9)[None]
    expected = model(ids, decoder_input_ids=ids).logits.double().sum().item()
    assert numbers == pytest.approx([expected] * 2, abs=1e-3)
    for folder in folders:
        files = {path.name for path in folder.glob("*.py")}
        assert {f"{name}.py" for name in PUBLISHED} == files and len(files) == 6
        auto_map = json.loads((folder / "config.json").read_text())["auto_map"]
        assert auto_map == {
            "AutoConfig": "configuration_ode_transformer.OdeTransformerConfig",
            "AutoModel": "modeling_ode_transformer.OdeTransformerModel",
            "AutoModelForSeq2SeqLM": "modeling_ode_transformer.OdeTransformerForConditionalGeneration",
        }


@pytest.mark.parametrize("environment", [".venv", ".venv-oldest", ".venv-newest"])
def test_saved_code_runs_with_every_version_that_is_installed(environment, tmp_path):
    """By the environments of the Makefile, whichever of them saves the model."""
    python = PACKAGE.parent / environment / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no {environment}")
    torch.manual_seed(0)
    model = randomize(OdeTransformerForConditionalGeneration(tiny_config(decoder_solver="rk2")))
    model.generation_config.max_len_a, model.generation_config.max_len_b = 0.2, 2
    model.save_pretrained(tmp_path / "model")

    def run(command, **options):
        return subprocess.run([python, *command[1:]], **options)

    run_python(WITHOUT_PACKAGE, tmp_path, str(tmp_path / "model"), str(tmp_path / "again"), run=run)


def test_pipelines_that_a_configuration_names_are_saved_with_it(tmp_path):
    """The package copies their code."""
    model = OdeTransformerForConditionalGeneration(tiny_config())
    add_pipeline(model.config, "translation")
    model.generation_config.max_len_a, model.generation_config.max_len_b = 0.2, 2
    model.config.custom_pipelines["mine"] = {"impl": "mine.Pipeline", "pt": ["AutoModelForSeq2SeqLM"]}
    for name in ("first", "second"):
        model.save_pretrained(tmp_path / name)
        assert (tmp_path / name / "pipeline_ode_transformer.py").is_file()
        model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / name)
        named = json.loads((tmp_path / name / "config.json").read_text())["custom_pipelines"]
        assert sorted(named) == ["mine", "translation"] and named["mine"]["impl"].endswith("mine.Pipeline")
