# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""`ode-transformer train`: the scripts' code, recipes by name, and the device that a recipe takes."""

import re

import pytest
import run_translation
import torch

from modeling_ode_transformer import cli
from modeling_ode_transformer.text_files import read_json
from modeling_ode_transformer.training import arguments as arguments_module
from modeling_ode_transformer.training.recipe_files import RECIPES, recipe_file, recipe_names
from modeling_ode_transformer.training.run import parse_arguments
from modeling_ode_transformer.training.tasks.translation import TRANSLATION

from .runs import arguments, losses


def test_the_command_trains_what_the_script_trains(corpus, tmp_path):
    """With --train and --validation too: the same losses, the same files."""
    run_translation.main(arguments(corpus, tmp_path / "script"))
    rows = zip(*((corpus / f"train.{side}").read_text().splitlines() for side in ("en", "de")))
    (tmp_path / "train.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in rows))
    files = {f"{split}_{side}_file": None for split in ("train", "validation") for side in ("source", "target")}
    options = arguments(corpus, tmp_path / "command", **files) + ["--train", str(tmp_path / "train.tsv")]
    cli.main(["train", "translation", *options])
    assert losses(tmp_path / "command") == losses(tmp_path / "script") != {}
    names = [{path.name for path in (tmp_path / each).iterdir()} for each in ("command", "script")]
    assert names[0] == names[1] and "model.safetensors" in names[0]


@pytest.mark.parametrize("argv", [["--recipe", "multi30k_en_de"], [str(RECIPES / "multi30k_en_de.json")]])
def test_a_recipe_is_named_or_a_path(argv, tmp_path):
    model_args, data_args, args = parse_arguments(TRANSLATION, [*argv, "--num_beams", "7", "--validation", "x.tsv"])
    recipe = read_json(RECIPES / "multi30k_en_de.json")
    assert (args.learning_rate, data_args.train_source_file) == (0.002, recipe["train_source_file"])
    assert data_args.num_beams == 7 != recipe["num_beams"]
    assert (data_args.validation_file, data_args.validation_source_file) == (["x.tsv"], None)
    assert model_args.config_overrides == recipe["config_overrides"]


def test_an_unknown_recipe_lists_the_known_ones(capsys):
    """At once in the command, before torch is imported, and in the scripts."""
    assert "multi30k_en_de" in recipe_names() and recipe_file("ptb").is_file()
    message = "There is no recipe multi30k, only bea2019_gec_base, .*, wmt16_en_ro_base. The name of a recipe file"
    with pytest.raises(SystemExit) as exit:
        cli.main(["train", "translation", "--recipe", "multi30k"])
    assert exit.value.code == 2 and re.match(f"error: {message}", capsys.readouterr().err)
    with pytest.raises(ValueError, match=message):
        parse_arguments(TRANSLATION, ["--recipe", "multi30k"])
    with pytest.raises(ValueError, match=r"More than one recipe is given \(a\.json and ptb\): give one"):
        parse_arguments(TRANSLATION, ["a.json", "--recipe", "ptb"])


@pytest.fixture
def device(monkeypatch):
    """Makes the machine one with or without a GPU, of a compute capability, and with or without bfloat16 on CPUs."""

    def make(capability, cpu_bf16=False):
        has_gpu = capability is not None
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: has_gpu)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda emulated: capability >= (8, 0))
        monkeypatch.setattr(arguments_module, "has_fast_bf16", lambda: cpu_bf16)

    return make


@pytest.mark.parametrize(
    ("machine", "given", "left_out", "note"),
    [
        (((9, 0),), {}, set(), None),
        (((7, 5),), {}, {"bf16", "tf32"}, "Training on the GPU without bf16 and tf32"),
        ((None,), {}, {"bf16", "tf32"}, "Training on the CPU without bf16 and tf32"),
        ((None, True), {}, {"tf32"}, "Training on the CPU without tf32"),
        # The command line's precision takes the place of the recipe's.
        (((9, 0),), {"fp16": True}, {"bf16"}, "Training on the GPU without bf16"),
        (((9, 0),), {"use_cpu": True}, {"bf16", "tf32"}, "Training on the CPU without bf16 and tf32"),
        ((None,), {"bf16": True}, {"tf32"}, "Training on the CPU without tf32"),
        ((None,), {"bf16": False, "tf32": False}, set(), None),
    ],
)
def test_a_recipe_takes_what_the_device_can(machine, given, left_out, note, device):
    recipe, notes = {"bf16": True, "tf32": True, "seed": 1}, []
    device(*machine)
    fitted = arguments_module.fit_device(recipe, given, notes)
    cpu = {} if machine[0] else {"use_cpu": True}
    assert fitted == cpu | {name: value for name, value in recipe.items() if name not in left_out}
    assert len(notes) == bool(note) and all(re.match(note, line) for line in notes), notes


@pytest.mark.parametrize(("machine", "given"), [(None, {}), ((9, 0), {"use_cpu": True})])
def test_fp16_on_a_cpu_is_refused(machine, given, device):
    """Accelerate would train in float32 without a word."""
    device(machine)
    with pytest.raises(ValueError, match=r"^--fp16 needs a GPU: leave it out, or give --bf16\.$"):
        arguments_module.fit_device({}, given | {"fp16": True}, [])


@pytest.mark.parametrize(
    ("capabilities", "is_fast"),
    [
        ({"avx512_bf16": False, "amx_bf16": False, "cpu_name": "Intel Core"}, False),
        ({"avx512_bf16": True, "amx_bf16": False, "cpu_name": "Intel Xeon"}, False),
        ({"avx512_bf16": True, "amx_bf16": True, "cpu_name": "Intel Xeon"}, True),
        ({"avx512_bf16": True, "amx_bf16": False, "cpu_name": "AMD EPYC 9R14"}, True),
        ({"avx512_bf16": True, "amx_bf16": False}, True),  # torch 2.11
        ({"bf16": True, "cpu_name": "Neoverse V1"}, False),  # ARM: not measured
    ],
)
def test_bfloat16_is_fast_by_amx_or_on_amd(capabilities, is_fast, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert arguments_module.has_fast_bf16() is is_fast
