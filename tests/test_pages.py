# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The README and the pages of docs: their examples run as they stand, and their links lead somewhere."""

import functools
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import modeling_ode_transformer as ode
from modeling_ode_transformer import cli
from modeling_ode_transformer.integration_ode_transformer import SCHEMES, integrate_multistep

from .conftest import randomize, tiny_config


ROOT = Path(__file__).parent.parent
PACKAGE = "modeling_ode_transformer/"
FENCE = r"```(\w*)\n(.*?)```"


def read(page):
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page, heading):
    """The (language, text) of the code blocks of a section."""
    section = re.split(r"\n#+ ", read(page).partition(f"# {heading}\n")[2])[0]
    return re.findall(FENCE, section, re.DOTALL)


def test_the_readme_is_short():
    """A visitor reads it to the end: the issue asks for 150 lines of 120 characters, and 12 lines of code."""
    lines = read("README.md").splitlines()
    assert len(lines) <= 150 and max(map(len, lines)) <= 120
    ((_, code),) = blocks("README.md", "Build a model and train a step")
    assert sum(bool(line) for line in code.splitlines()) <= 12


def test_the_readme_builds_and_trains():
    ((_, code),) = blocks("README.md", "Build a model and train a step")
    assert 'encoder_solver="rk2")' in code
    names = {}
    exec(code.replace('encoder_solver="rk2"', 'encoder_solver="rk2", d_model=64'), names)
    assert all(parameter.grad is not None for parameter in names["model"].parameters())


EXCERPTS = re.findall(r"<!-- (\S+) -->\n```python\n(.*?)```", read("docs/method.md"), re.DOTALL)


def test_excerpts_of_the_method_are_in_the_source():
    """Each equation stands beside the code that computes it, as it is today."""
    assert len(EXCERPTS) >= 5
    for file, code in EXCERPTS:
        source, excerpt = (re.sub("^ +", "", text, flags=re.MULTILINE) for text in (read(PACKAGE + file), code))
        assert excerpt in source, code


def test_the_scheme_table_has_every_solver():
    for name in SCHEMES:
        assert f"\n| `{name}` |" in read("docs/schemes.md"), name


def test_a_scheme_of_ones_own_works_as_shown(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (_, from_data), (_, printed), (_, new_class) = blocks("docs/schemes.md", "Your own scheme")
    names = {}
    exec(from_data, names)
    assert capsys.readouterr().out == printed
    assert names["config"].scheme("encoder").tableau == names["heun3"]

    exec(new_class, names)
    try:
        model = ode.OdeTransformerModel(tiny_config(encoder_solver="adams_bashforth", layer_history="none")).eval()
        assert type(model.encoder.multistep).__name__ == "AdamsBashforthScheme"
        model(input_ids=torch.tensor([[5, 6]]), decoder_input_ids=torch.tensor([[2]]))
        # of order 2: y' = -y in 100 and 200 steps
        errors = []
        for number in (100, 200):
            y = torch.ones((), dtype=torch.float64)
            scheme = SCHEMES["adams_bashforth"](number)
            y, _ = integrate_multistep(lambda z, _: -z, y, scheme, step_size=1 / number, num_steps=number)
            errors.append(abs(y.item() - 0.36787944117144233))
        assert errors[0] / errors[1] == pytest.approx(4, rel=0.05)
    finally:
        del SCHEMES["adams_bashforth"]


@pytest.mark.parametrize("trainer", ["TokenSeq2SeqTrainer", "Seq2SeqTrainer"])
def test_training_in_python_leaves_a_model_and_its_tokenizer(trainer, tmp_path, monkeypatch):
    """As shown, for two updates, and with transformers' own trainer; `"` is not a quote in the pairs."""
    monkeypatch.chdir(tmp_path)
    words = [f"w{number * 7919 % 9000:x}" for number in range(9000)]
    rows = [f'{" ".join(words[start : start + 9])}\t"{words[start]}' for start in range(0, 9000, 9)]
    rows += ["None\tKeine\tCC-BY", "NA\tnull\tCC-BY"]  # and a third column in some
    rows[0] += "\tCC-BY"
    (tmp_path / "pairs.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    ((_, code),) = blocks("docs/getting_started.md", "Your own pairs, in Python")
    tested = {"vocab_size=8000": "vocab_size=1000", "num_train_epochs=6": "max_steps=2"}
    if trainer == "Seq2SeqTrainer":
        plain = {"modeling_ode_transformer.training.trainer": "transformers", "TokenSeq2Seq": "Seq2Seq"}
        tested |= plain | {"max_tokens_per_batch=2700,": "", 'optim="muon",': "", "muon_learning_rate=0.006,": ""}
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


def test_metrics_print_what_is_shown(evaluate_modules, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (_, commands), (_, printed), (_, python), (_, python_printed) = blocks("docs/metrics.md", "Metrics")
    *files, command = commands.splitlines()
    subprocess.run(["bash", "-c", "\n".join(files)], check=True)
    program, *arguments = shlex.split(command)
    assert program == "ode-transformer"
    cli.run(arguments)
    assert capsys.readouterr().out == printed

    exec(python, {})
    assert capsys.readouterr().out == python_printed


@pytest.mark.filterwarnings("ignore:.*torch.ao.quantization is deprecated")
def test_other_tools_take_a_trained_folder_as_shown(tmp_path, monkeypatch, capsys):
    """All code of the page, in its order; what each tool gives is tested in test_ecosystem.py. ONNX Runtime gives the
    translations that greedy search finds, and dynamic quantization leaves out the projections of subclasses. Graphs
    are not compiled to machine code, which needs a compiler."""
    for tool in ("peft", "torchao", "onnxscript", "onnxruntime"):
        pytest.importorskip(tool)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    texts = ["Two dogs are running through the snow.", "A man sleeps."]
    tokenizer = ode.OdeTransformerTokenizer.train(texts, vocab_size=400, hard_vocab_limit=False)
    tokenizer.save_pretrained("multi30k_en_de")
    torch.manual_seed(0)
    fields = {"vocab_size": len(tokenizer), "encoder_layers": 1, "decoder_layers": 1, "tie_word_embeddings": False}
    fields["decoder_solver"] = "rk2"
    trained = randomize(ode.OdeTransformerForConditionalGeneration(tiny_config(**fields)))
    nn.init.normal_(trained.lm_head.weight)  # outputs of many tokens
    trained.generation_config.update(num_beams=4, max_new_tokens=40)
    trained.save_pretrained("multi30k_en_de")

    names = {}
    for language, code in re.findall(FENCE, read("docs/tools.md"), re.DOTALL):
        assert language == "python"
        capsys.readouterr()
        exec(code, names)
        if "onnxruntime" in code:
            inputs = tokenizer(texts, padding=True, return_tensors="pt")
            greedy = trained.generate(**inputs, num_beams=1)
            assert greedy.shape[1] > 3
            shown = repr(tokenizer.batch_decode(greedy, skip_special_tokens=True))
            assert capsys.readouterr().out.endswith(shown + "\n")
            long = " ".join(texts)
            expected = trained.generate(**tokenizer(long, return_tensors="pt"), num_beams=1)
            assert names["translate"]([long]) == tokenizer.batch_decode(expected, skip_special_tokens=True)
            assert AutoTokenizer.from_pretrained("onnx").get_vocab() == tokenizer.get_vocab()
    assert names["quantized"].dtype == torch.float32 and Path("multi30k_en_de_int8/model.safetensors").exists()
    assert names["features"].shape == (*names["inputs"]["input_ids"].shape, 32)
    quantized = torch.ao.quantization.quantize_dynamic(trained, {nn.Linear})
    forward = nn.Linear.forward
    linears = {name.split(".")[-1] for name, each in quantized.named_modules() if type(each).forward is forward}
    assert linears == {"q_proj", "k_proj", "v_proj"}


PAGES = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md"))]


def without_code(file):
    return re.sub(FENCE, "", file.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize("page", PAGES)
def test_links_to_files_and_headings_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(ROOT / page)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", without_code(file), re.MULTILINE)
            anchors = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
            assert anchor in anchors, target


def test_documents_name_the_versions_that_the_package_accepts():
    major, minor = map(int, re.search(r"transformers>=.*,<(\d+)\.(\d+)", read("setup.cfg")).groups())
    newest = f"{major}.{minor - 1}"
    assert f"transformers to {newest}" in read("README.md")
    assert f"transformers is tested up to {newest}" in read("docs/getting_started.md")
    assert f"\ntransformers=={newest}." in read("constraints.txt")
    oldest = dict(re.findall(r"^    (torch|transformers)>=([\d.]+)", read("setup.cfg"), re.MULTILINE))
    for page in ("README.md", "docs/getting_started.md"):
        assert f"torch {oldest['torch']} and transformers {oldest['transformers']}, or newer" in read(page), page
    template = read("modeling_ode_transformer/hub/model_card_template.md")
    assert f"`transformers>={oldest['transformers']}`" in template
    assert f"torch=={oldest['torch']}.*" in read(".github/workflows/ci.yml")
