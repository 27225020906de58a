# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Publishing: the repository that comes out, what stops it, and the whole way over HTTP and back."""

import json
import os
import shutil
import sys
import types
from pathlib import Path

import huggingface_hub
import number_names
import pytest
import run_classification
import run_translation
import torch
import transformers
from safetensors.torch import load_file, save_file

import modeling_ode_transformer as ode
from modeling_ode_transformer import cli
from modeling_ode_transformer.hub import publish as publish_module
from modeling_ode_transformer.hub.publish import check_repository, prepare_repository, publish, upload_repository
from modeling_ode_transformer.pipeline_ode_transformer import add_pipeline
from modeling_ode_transformer.text_files import read_json
from modeling_ode_transformer.training.checkpoints import LOCK, TEMPORARY
from modeling_ode_transformer.training.resumption import ResumableTrainerMixin
from modeling_ode_transformer.training.trainer import TokenSeq2SeqTrainer, TokenSeq2SeqTrainingArguments

from ..conftest import build, ids_of, randomize, tiny_config
from ..processes import run_clean, run_python
from ..test_hub import PUBLISHED, PUBLISHED_CSA_ODE
from ..training.runs import arguments
from .hub_server import TOKEN, HubServer, Repository


CARD = {"repo_id": "me/model", "language": ["en", "de"]}
CODE = {f"{name}.py" for name in (*PUBLISHED, "pipeline_ode_transformer", "texts_ode_transformer")}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    number_names.write_corpus(folder, {"train": 200})
    lines = (folder / "train.en").read_text().splitlines() + (folder / "train.de").read_text().splitlines()
    return ode.OdeTransformerTokenizer.train([*lines, "Two dogs are running through the snow."], 400)


@pytest.fixture(scope="module")
def run(tmp_path_factory, tokenizer):
    """A folder as run_translation.py leaves it, with a tokenizer for each side."""
    folder = tmp_path_factory.mktemp("run") / "output"
    model = build(vocab_size=len(tokenizer), **ids_of(tokenizer))
    model.generation_config.update(num_beams=2, length_penalty=0.6, max_length=20)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    tokenizer.save_pretrained(folder / "target_tokenizer")
    (folder / "all_results.json").write_text(json.dumps({"predict_samples": 11, "predict_bleu": 1.234}))
    arguments = {"task": "translation", "data": {"test_file": "/home/me/t.tsv"}}
    (folder / "arguments.json").write_text(json.dumps(arguments))
    # What a repository must not hold.
    torch.save({"lr": 1}, folder / "training_args.bin")
    (folder / "generated_predictions.txt").write_text("secret\n")
    return folder


@pytest.fixture(scope="module")
def repository(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("repository") / "folder"
    prepare_repository(run, folder, CARD)
    return folder


@pytest.fixture(autouse=True)
def process_of_the_check(monkeypatch):
    """Repositories are tried by `run_clean`, but where a test says otherwise."""
    monkeypatch.setattr(publish_module, "subprocess", types.SimpleNamespace(run=run_clean))


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def hub(monkeypatch):
    """A Hub of the test's own, which the client in this process is told to use, logged in."""
    with HubServer() as server:
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", server.url)
        # Each of the two libraries makes its client once, and keeps the address.
        monkeypatch.setattr(huggingface_hub.hf_api.api, "endpoint", server.url)
        monkeypatch.setattr(transformers.utils.hub, "_hf_api", None, raising=False)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        # The client waits longer and longer before it tries again.
        monkeypatch.setattr(huggingface_hub.utils._http, "time", types.SimpleNamespace(sleep=lambda seconds: None))
        yield server


def test_a_repository_is_complete(run, repository):
    tokenizer_files = {"tokenizer.json", "tokenizer_config.json"}
    assert set(files_of(repository)) == {
        *("config.json", "generation_config.json", "model.safetensors", "README.md"),
        *CODE,
        *tokenizer_files,
        *(f"target_tokenizer/{name}" for name in tokenizer_files),
    }
    config = json.loads((repository / "config.json").read_text())
    assert set(config["auto_map"]) == {"AutoConfig", "AutoModel", "AutoModelForSeq2SeqLM"}
    assert list(config["custom_pipelines"]) == ["translation"]
    generation = json.loads((repository / "generation_config.json").read_text())
    assert (generation["num_beams"], generation["length_penalty"]) == (2, 0.6)
    card = (repository / "README.md").read_text()
    assert "| BLEU | 1.23 |" in card and "t.tsv" in card and "/home" not in card
    for name, tensor in load_file(run / "model.safetensors").items():
        assert torch.equal(tensor, load_file(repository / "model.safetensors")[name])
    check_repository(repository, run, "translation")


def test_a_language_model_and_sizes_of_weights_are_kept(tokenizer, tmp_path):
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    model = build(ode.OdeTransformerForCausalLM, vocab_size=len(tokenizer), decoder_solver="rk2", **ids)
    model.bfloat16().save_pretrained(tmp_path / "run")
    tokenizer.save_pretrained(tmp_path / "run")
    publish(tmp_path / "run", CARD, task="text-generation", folder=tmp_path / "folder", dry_run=True)
    config = read_json(tmp_path / "folder" / "config.json")
    assert set(config["auto_map"]) == {"AutoConfig", "AutoModelForCausalLM"}
    assert {each.dtype for each in load_file(tmp_path / "folder" / "model.safetensors").values()} == {torch.bfloat16}


SIZES = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24}
SIZES |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
LLAMA = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2}
INTEGRATED = {
    "text-generation": transformers.LlamaConfig(**LLAMA),
    "translation": transformers.M2M100Config(**SIZES),
}


@pytest.mark.parametrize("task", INTEGRATED)
def test_a_model_with_integrated_layers(task, tokenizer, tmp_path):
    """Its files, what its card says, and the example of the card without the package."""
    config = INTEGRATED[task]
    config.update(ids_of(tokenizer) | {"vocab_size": len(tokenizer)})
    config = ode.depth.config(config, solver="rk4", layers="1:")
    torch.manual_seed(0)
    auto_class = transformers.AutoModelForCausalLM if task == "text-generation" else transformers.AutoModelForSeq2SeqLM
    model = randomize(auto_class.from_config(config))
    model.save_pretrained(tmp_path / "run")
    tokenizer.save_pretrained(tmp_path / "run")
    folder = tmp_path / "me" / "model"
    publish(tmp_path / "run", CARD, task=task, folder=folder, dry_run=True)
    card = (folder / "README.md").read_text()
    evaluations = 1 + 2 * 4 if task == "text-generation" else 2 * (1 + 4)
    assert f"\n{type(model).__name__.removeprefix('Ode')} with integrated layers for " in card
    assert f"| evaluations of layers in a forward pass | {evaluations} |" in card
    assert "| solver | rk4 |" in card and "| layers | 1: |" in card
    example = card.partition("```python\n")[2].partition("```")[0]
    assert run_python(f"sys.modules['modeling_ode_transformer'] = None\n{example}", tmp_path)


def test_the_check_does_not_depend_on_how_a_model_generates(tokenizer, tmp_path):
    """Several outputs, drawn at random, of a model with fewer positions than the check's sample has tokens."""
    positions = {"position_embedding_type": "learned", "max_position_embeddings": 10}
    model = build(vocab_size=len(tokenizer), **positions, **ids_of(tokenizer))
    model.generation_config.update(do_sample=True, num_return_sequences=2, max_length=10)
    model.save_pretrained(tmp_path / "run")
    tokenizer.save_pretrained(tmp_path / "run")
    publish(tmp_path / "run", CARD, task="summarization", dry_run=True)


PAIRS = [
    {"text": f"{first} dogs are running", "text_pair": f"{second} animals", "label": str(first == second)}
    for first in ("two", "three", "four")
    for second in ("two", "three", "four")
]


@pytest.mark.parametrize("solver, is_pair", [("ark", False), ("rkf", True)])
def test_a_classifier_from_its_training_to_the_example_of_its_card(solver, is_pair, tmp_path):
    """Of sentences or of pairs: the files, the check, which sees another label, and the card's code without the
    package."""
    (tmp_path / "pairs.jsonl").write_text("".join(f"{json.dumps(pair)}\n" for pair in PAIRS))
    arguments = "--do_train --do_predict --max_steps 1 --test_size 0.4 --use_cpu --preset none".split()
    arguments += ["--train_file", str(tmp_path / "pairs.jsonl"), "--output_dir", str(tmp_path / "run")]
    arguments += ["--config_overrides", f"embedding_size=16,hidden_size=16,solver={solver}", "--report_to", "none"]
    arguments += ["--text_pair_column", "text_pair"] if is_pair else []
    run_classification.main(arguments)
    folder = tmp_path / "me" / "model"
    publish(tmp_path / "run", CARD, folder=folder, dry_run=True)
    assert set(files_of(folder)) == {
        *("config.json", "model.safetensors", "README.md", "tokenizer.json", "tokenizer_config.json"),
        *(f"{name}.py" for name in PUBLISHED_CSA_ODE),
    }
    card = (folder / "README.md").read_text()
    assert "| lr_scheduler_type | exponential |" in card and "| optim | Adam with L2 regularization |" in card
    assert "| accuracy, percent |" in card and "| train | pairs.jsonl | 5 |\n| test | pairs.jsonl | 4 |" in card
    example = card.partition("```python\n")[2].partition("```")[0]
    printed = run_python(f"sys.modules['modeling_ode_transformer'] = None\n{example}", tmp_path)
    assert {"True", "False"} & set(printed.split())

    config = json.loads((folder / "config.json").read_text())
    swapped = config | {"id2label": {"0": "yes", "1": "no"}, "label2id": {"yes": 0, "no": 1}}
    (folder / "config.json").write_text(json.dumps(swapped))
    with pytest.raises(ValueError, match=r"the pipeline gives .*'label': '(yes|no)'"):
        check_repository(folder, tmp_path / "run", "text-classification")


def test_what_cannot_be_published_is_said(run, tmp_path):
    def fails(folder, message, out="out", **options):
        with pytest.raises((OSError, ValueError), match=message):
            prepare_repository(folder, tmp_path / out, CARD, **options)
        assert not (tmp_path / "out").exists()

    fails(tmp_path / "nothing", "nothing")
    fails(run, " is chess: give one of translation", task="chess")
    broken = shutil.copytree(run, tmp_path / "broken")
    (broken / "tokenizer.json").unlink()
    (broken / "tokenizer_config.json").unlink()
    fails(broken, "tokenizer")
    (broken / "model.safetensors").unlink()
    fails(broken, "model.safetensors")
    (broken / "config.json").write_text('{"model_type": "m2m_100"}')
    fails(broken, "'m2m_100' is not one of this package: publish it with model.push_to_hub")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    fails(run, "full is not an empty folder", out="full")


def other_numbers(code: str) -> str:
    return code + (
        "forward = OdeTransformerModel.forward\n"
        "def other(self, *args, **kwargs):\n"
        "    output = forward(self, *args, **kwargs)\n"
        "    output.last_hidden_state = output.last_hidden_state + 0.001\n"
        "    return output\n"
        "OdeTransformerModel.forward = other\n"
    )


IMPORT = "import modeling_ode_transformer.integration_ode_transformer"


def without_end_mark(text: str) -> str:
    return json.dumps(json.loads(text) | {"post_processor": None})


@pytest.mark.parametrize(
    "file, damage, message",
    [
        ("modeling_ode_transformer.py", other_numbers, "the model gives other numbers"),
        ("integration_ode_transformer.py", lambda code: f"{IMPORT}\n{code}", "modeling_ode_transformer"),
        ("pipeline_ode_transformer.py", lambda code: "", "TranslationPipeline"),
        ("target_tokenizer/tokenizer.json", without_end_mark, "target tokenizer gives other"),
    ],
)
def test_a_repository_that_does_not_work_alone_is_not_uploaded(file, damage, message, run, tmp_path, monkeypatch, hub):
    """Other numbers, code that needs the package, other ids: as a process sees it that has only the files."""

    def prepare(*args):
        record = prepare_repository(*args)
        path = Path(args[1]) / file
        text = path.read_text(encoding="utf-8")
        assert damage(text) != text
        path.write_text(damage(text), encoding="utf-8")
        return record

    monkeypatch.setattr(publish_module, "prepare_repository", prepare)
    with pytest.raises(ValueError, match=f"(?s)so nothing was uploaded.*{message}"):
        publish(run, CARD)
    assert all(method == "GET" for method, *_ in hub.requests) and hub.repositories == {}


@pytest.fixture
def small(tmp_path):
    """A folder that uploads quickly: a file of weights, one of text."""
    folder = tmp_path / "small"
    folder.mkdir()
    save_file({"weight": torch.arange(8.0)}, folder / "model.safetensors")
    (folder / "README.md").write_text("---\ntags: [x]\n---\n# New\n")
    return folder


def held(**files: str) -> Repository:
    repository = Repository()
    repository.commit("main", {name.replace("__", "."): text.encode() for name, text in files.items()})
    return repository


@pytest.mark.parametrize(
    "asked, default, is_private", [(False, "public", False), (False, "private", True), (True, "public", True)]
)
def test_an_upload_is_one_commit_to_a_new_repository(asked, default, is_private, small, hub):
    """Which is public only if its owner lets it be."""
    hub.default_visibility = default
    commit = upload_repository(small, "model", private=asked)
    repository = hub.repositories["me/model"]
    assert repository.private == is_private and len(repository.commits) == 2
    assert commit.oid == repository.branches["main"]
    assert {name: data for name, data in repository.files().items() if name != ".gitattributes"} == files_of(small)


def test_saving_to_the_hub_uploads_the_code_of_the_pipelines(run, hub, tmp_path):
    """A second time, too, when it is there already."""
    model = ode.OdeTransformerForConditionalGeneration.from_pretrained(run)
    add_pipeline(model.config, "translation")
    for name in ("first", "second"):
        model.save_pretrained(tmp_path / "saved", push_to_hub=True, repo_id=f"me/{name}", token=TOKEN)
        files = hub.repositories[f"me/{name}"].files()
        assert "pipeline_ode_transformer.py" in files and b"custom_pipelines" in files["config.json"]


def test_saving_a_configuration_to_the_hub_uploads_all_that_is_in_the_folder(hub, tmp_path):
    config = ode.OdeTransformerConfig(encoder_solver="leapfrog", layer_history="none")
    config.save_pretrained(tmp_path / "saved", push_to_hub=True, repo_id="me/leapfrog", token=TOKEN)
    files = hub.repositories["me/leapfrog"].files()
    assert files_of(tmp_path / "saved").items() <= files.items() and "schemes_ode_transformer.py" in files


@pytest.mark.parametrize(
    "name, options, token, message",
    [
        ("me/new", {}, "hf_" + "b" * 34, "401"),
        ("other/new", {}, TOKEN, "403"),
        ("me/held", {}, TOKEN, "me/held already holds 2 files: give --update"),
        ("me/held", {"update": True, "private": True}, TOKEN, "me/held is public"),
    ],
)
def test_uploads_that_are_refused_leave_the_hub_as_it_was(name, options, token, message, small, hub, monkeypatch):
    hub.repositories["me/held"] = held(README__md="old", model__safetensors="old")
    before = dict(hub.repositories["me/held"].branches)
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises((OSError, ValueError), match=message):
        upload_repository(small, name, **options)
    assert list(hub.repositories) == ["me/held"]
    assert hub.repositories["me/held"].branches == before and len(hub.repositories["me/held"].commits) == 1


def test_an_update_replaces_all_that_is_loaded_and_keeps_what_is_not_its_own(small, hub):
    """A tokenizer or an adapter of the former model would be taken for one of the new."""
    stale = ("model-2.safetensors", "target_tokenizer/tokenizer.json", "vocab.json", "adapter_config.json")
    kept = ("picture.png", "adapters/de/adapter_model.safetensors", "onnx/tokenizer.json", "int8/model.safetensors")
    hub.repositories["me/model"] = held(README__md="old", **dict.fromkeys(stale, "old"), **dict.fromkeys(kept, "mine"))
    upload_repository(small, "me/model", update=True)
    assert hub.repositories["me/model"].files() == files_of(small) | dict.fromkeys(kept, b"mine")


def test_somebody_elses_commit_in_between_is_not_overwritten(small, hub):
    hub.repositories["me/model"] = held(README__md="old")

    def commit_first(method, path):
        if "/preupload/" in path:
            hub.repositories["me/model"].commit("main", {"README.md": b"theirs"})

    hub.before_answering = commit_first
    with pytest.raises(OSError, match="Precondition Failed"):
        upload_repository(small, "me/model", update=True)
    assert hub.repositories["me/model"].files() == {"README.md": b"theirs"}


class ResumableTrainer(ResumableTrainerMixin, transformers.Trainer):
    pass


def check_no_token(folder: Path, hub: HubServer) -> None:
    """Of what a training wrote and the Hub received, no bytes are the token, and the arguments are among them."""
    written, *received = files_of(folder), hub.objects, *hub.repositories["me/trained"].commits.values()
    assert "training_args.bin" in written.keys() & received[-1].keys()
    for files in (written, *received):
        assert not [path for path, data in files.items() if TOKEN.encode() in data]


@pytest.mark.parametrize("is_of_the_package", [False, True])
def test_no_file_of_a_training_and_of_its_uploads_holds_the_token(is_of_the_package, hub, tmp_path, monkeypatch):
    """With transformers' own arguments, and where the token is set behind the back of those of the package."""
    monkeypatch.delenv("HF_TOKEN")
    values = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1, "report_to": "none", "use_cpu": True}
    folder = tmp_path / "trained"
    if is_of_the_package:
        trainer_class, args = TokenSeq2SeqTrainer, TokenSeq2SeqTrainingArguments(folder, **values)
    else:
        trainer_class, args = ResumableTrainer, transformers.TrainingArguments(folder, **values)
    args.set_push_to_hub("me/trained", strategy="all_checkpoints", token=TOKEN, always_push=True)
    model = ode.OdeTransformerForConditionalGeneration(tiny_config())
    trainer = trainer_class(model=model, args=args, train_dataset=[{"input_ids": [5, 6, 2], "labels": [9, 8, 2]}] * 16)
    trainer.train()
    args.hub_token = TOKEN
    trainer.push_to_hub()
    files = hub.repositories["me/trained"].files()
    assert {"checkpoint-1/training_args.bin", "checkpoint-2/training_args.bin"} < set(files)
    check_no_token(folder, hub)
    assert torch.load(folder / "training_args.bin", weights_only=False).max_steps == 2


def test_a_script_uploads_with_the_token_of_the_login_and_notes_it_nowhere(hub, tmp_path, monkeypatch):
    """Nor does it upload what is only for the time of a training: its lock, a checkpoint that is being removed."""
    number_names.write_corpus(tmp_path, {"train": 60, "validation": 12, "test": 11})
    listed = []

    def push(trainer, *args, **kwargs):
        (tmp_path / "run" / f"{TEMPORARY}checkpoint-1").mkdir(exist_ok=True)
        (tmp_path / "run" / f"{TEMPORARY}checkpoint-1" / "model.safetensors").write_text("half")
        listed.extend(path.name for path in (tmp_path / "run").iterdir())
        return transformers.Trainer.push_to_hub(trainer, *args, **kwargs)

    monkeypatch.setattr(TokenSeq2SeqTrainer, "push_to_hub", push)
    options = {"push_to_hub": True, "hub_model_id": "me/trained", "save_strategy": "steps", "save_steps": 2}
    run_translation.main(arguments(tmp_path, tmp_path / "run", **options))
    assert {LOCK, f"{TEMPORARY}checkpoint-1"} < set(listed)
    files = hub.repositories["me/trained"].files()
    assert "model.safetensors" in files and not [path for path in files if path.startswith("_")]
    shutil.rmtree(tmp_path / "run" / f"{TEMPORARY}checkpoint-1")
    check_no_token(tmp_path / "run", hub)


def test_a_token_is_no_argument_of_a_training(tmp_path):
    argv = ["--output_dir", str(tmp_path / "run"), "--do_train", "--hub_token", TOKEN]
    with pytest.raises(ValueError, match=r"--hub_token .*`hf auth login`, .*HF_TOKEN") as error:
        run_translation.main(argv)
    assert TOKEN not in str(error.value) and not (tmp_path / "run").exists()


LOAD = """
import os, sys
sys.modules["modeling_ode_transformer"] = None
import huggingface_hub
from huggingface_hub import constants
constants.HF_HUB_OFFLINE, constants.HF_HUB_DISABLE_XET = False, True
url = constants.ENDPOINT = huggingface_hub.hf_api.api.endpoint = os.environ["HF_ENDPOINT"]
constants.HUGGINGFACE_CO_URL_TEMPLATE = url + "/{repo_id}/resolve/{revision}/{filename}"
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer, pipeline
for name in sys.argv[1:]:
    assert AutoConfig.from_pretrained(name, trust_remote_code=True).encoder_solver == "rk2"
    model = AutoModelForSeq2SeqLM.from_pretrained(name, trust_remote_code=True).eval()
    assert type(model).__module__.startswith("transformers_modules."), type(model)
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    for key, value in AutoModel.from_pretrained(name, trust_remote_code=True).state_dict().items():
        assert value.equal(weights[f"model.{key}"]), key
    save_file(weights, name.replace("/", "-") + ".safetensors")
translate = pipeline("translation", model=sys.argv[1], trust_remote_code=True)
print(translate("two", max_new_tokens=5)[0]["translation_text"])
AutoTokenizer.from_pretrained(sys.argv[1], trust_remote_code=True)
try:
    AutoModel.from_pretrained(sys.argv[1], revision="nope", trust_remote_code=True)
except OSError as error:
    print("REFUSED", error)
"""


def test_the_whole_way_to_the_hub_and_back(run, tokenizer, hub, tmp_path, capsys):
    """`publish`, `model.push_to_hub` and `Trainer.push_to_hub`; a process without the package gets equal weights."""
    command = ["publish", str(run), "--repo_id", "model", "--language", "en", "de"]
    cli.main([*command, "--dry_run"])
    dry = capsys.readouterr().out
    assert "Nothing was uploaded (--dry_run)." in dry and "model.safetensors" in dry
    assert hub.requests == []
    cli.main([*command, "--private"])
    assert f"Uploaded: {hub.url}/me/model/commit/" in capsys.readouterr().out
    assert hub.repositories["me/model"].private
    # The example of the card opens the repository, whose owner is the token's.
    card = hub.repositories["me/model"].files()["README.md"].decode()
    assert 'model="me/model"' in card and '"model"' not in card
    with pytest.raises(SystemExit) as exit:
        cli.main(command)
    assert exit.value.code == 2
    assert "me/model already holds 16 files: give --update" in capsys.readouterr().err
    assert len(hub.repositories["me/model"].commits) == 2

    model = ode.OdeTransformerForConditionalGeneration.from_pretrained(run)
    model.push_to_hub("me/pushed")
    options = {"hub_model_id": "me/trained", "report_to": "none", "use_cpu": True}
    arguments = transformers.TrainingArguments(tmp_path / "trained", **options)
    transformers.Trainer(model=model, args=arguments, processing_class=tokenizer).push_to_hub()
    of_pipelines = {"pipeline_ode_transformer.py", "texts_ode_transformer.py"}
    assert CODE - of_pipelines <= set(hub.repositories["me/pushed"].files())
    assert "tokenizer.json" in hub.repositories["me/trained"].files()

    environment = os.environ | {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN}
    environment |= {name: str(tmp_path / name) for name in ("HF_HUB_CACHE", "HF_MODULES_CACHE")}
    names = [f"me/{name}" for name in ("model", "pushed", "trained")]
    loaded = run_clean([sys.executable, "-c", LOAD, *names], cwd=tmp_path, env=environment)
    assert loaded.returncode == 0, loaded.stderr
    expected = model.state_dict()
    for name in ("model", "pushed", "trained"):
        weights = load_file(tmp_path / f"me-{name}.safetensors")
        assert weights.keys() == expected.keys()
        assert all(weights[key].equal(value) for key, value in expected.items())
    ids = model.generate(tokenizer("two", return_tensors="pt")["input_ids"], max_new_tokens=5)[0]
    output, _, refused = loaded.stdout.partition("REFUSED")
    assert output.rstrip("\n") == tokenizer.decode(ids, skip_special_tokens=True)
    assert "nope is not a valid git identifier" in refused


def test_weights_in_half_precision_take_half_the_space(run, tmp_path):
    """They are the run's, rounded, and the check passes."""
    publish(run, CARD, folder=tmp_path / "half", dry_run=True, dtype="bfloat16")
    weights, rounded = (load_file(folder / "model.safetensors") for folder in (run, tmp_path / "half"))
    assert weights.keys() == rounded.keys() and read_json(tmp_path / "half" / "config.json")["dtype"] == "bfloat16"
    assert all(torch.equal(tensor.to(torch.bfloat16), rounded[name]) for name, tensor in weights.items())
