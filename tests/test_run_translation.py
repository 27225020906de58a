# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The example scripts: training from pairs to a saved model, and what they refuse."""

import dataclasses
import gzip
import json
import os
import shutil
import signal
from types import SimpleNamespace

import datasets
import pytest
import run_translation
import sacrebleu
import torch
import train_tokenizer
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer

from modeling_ode_transformer.hub.model_card import run_record
from modeling_ode_transformer.text_files import read_aligned_lines, read_lines
from modeling_ode_transformer.training.arguments import parse_overrides
from modeling_ode_transformer.training.checkpoints import LOCK, locked_folder
from modeling_ode_transformer.training.models import word_level_tokenizer
from modeling_ode_transformer.training.run import parse_arguments
from modeling_ode_transformer.training.run import run as run_task
from modeling_ode_transformer.training.same_training import changed_data, data_note, different_training
from modeling_ode_transformer.training.samplers import LengthGroupedSampler
from modeling_ode_transformer.training.smoke import number_names
from modeling_ode_transformer.training.tasks import seq2seq_texts, translation
from modeling_ode_transformer.training.tasks.seq2seq import print_samples
from modeling_ode_transformer.training.tasks.seq2seq_arguments import Seq2SeqModelArguments

from .conftest import EXAMPLES


MODEL = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
}
SIZES = {"train": 60, "validation": 12, "test": 11}


def arguments(corpus, out, **values):
    """Arguments of a short run on the files of a corpus folder; None leaves an argument out."""
    defaults = {
        "output_dir": out,
        "config_overrides": json.dumps(MODEL),
        "vocab_size": 330,
        "max_steps": 4,
        "per_device_train_batch_size": 20,
        "per_device_eval_batch_size": 4,
        "train_sampling_strategy": "group_by_length",
        "learning_rate": 0.01,
        "max_target_length": 40,
        "num_beams": 3,
        "length_penalty": 0.6,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "do_train": True,
        "predict_with_generate": True,
    }
    for split in SIZES:
        defaults[f"{split}_source_file"] = corpus / f"{split}.en"
        defaults[f"{split}_target_file"] = corpus / f"{split}.de"
    merged = (defaults | values).items()
    return [item for name, value in merged if value is not None for item in (f"--{name}", str(value))]


def losses(output_dir):
    history = json.loads((output_dir / "trainer_state.json").read_text())["log_history"]
    return {entry["step"]: entry["loss"] for entry in history if "loss" in entry}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    number_names.write_corpus(folder, SIZES)
    return folder


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory):
    """Output folder and metrics of a run that trains, evaluates and predicts."""
    output_dir = tmp_path_factory.mktemp("run") / "output"
    options = {"do_eval": True, "do_predict": True, "max_steps": 100, "bleu_tokenize": "char"}
    metrics = run_translation.main(arguments(corpus, output_dir, **options))
    return output_dir, metrics


def test_writes_metrics_and_predictions(run, corpus):
    output_dir, metrics = run
    saved = json.loads((output_dir / "all_results.json").read_text())
    for name in ("train_loss", "eval_bleu", "eval_perplexity", "predict_bleu", "predict_chrf", "predict_nll_loss"):
        assert saved[name] == metrics[name]
    assert len(read_lines(output_dir / "validation_predictions.txt")) == SIZES["validation"]
    predictions = read_lines(output_dir / "generated_predictions.txt")
    references = read_lines(corpus / "test.de")
    assert metrics["predict_bleu"] == sacrebleu.corpus_bleu(predictions, [references], tokenize="char").score > 10
    assert metrics["predict_chrf"] == sacrebleu.corpus_chrf(predictions, [references]).score > 10
    assert metrics["predict_bleu_signature"].startswith("nrefs:1|case:mixed|eff:no|tok:char|smooth:exp|version:")


def test_saved_model_translates_as_predicted(run, corpus):
    """generate() without arguments uses the beam search asked for, and predictions are in the order of their file."""
    output_dir, _ = run
    tokenizer = AutoTokenizer.from_pretrained(output_dir)
    model = AutoModelForSeq2SeqLM.from_pretrained(output_dir)
    settings = model.generation_config
    assert (settings.num_beams, settings.length_penalty, settings.early_stopping) == (3, 0.6, True)
    assert settings.max_length == 41  # with the start mark
    predictions = read_lines(output_dir / "generated_predictions.txt")
    for source, prediction in zip(read_lines(corpus / "test.en"), predictions, strict=True):
        output = model.generate(**tokenizer(source, return_tensors="pt"))
        assert tokenizer.decode(output[0], skip_special_tokens=True).strip() == prediction


def test_evaluation_loss_is_a_mean_over_tokens(run, corpus):
    output_dir, metrics = run
    tokenizer = AutoTokenizer.from_pretrained(output_dir)
    model = AutoModelForSeq2SeqLM.from_pretrained(output_dir).eval()
    nll, tokens = 0.0, 0
    for source, target in zip(*read_aligned_lines([corpus / "test.en", corpus / "test.de"])):
        labels = tokenizer(text_target=target, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            logits = model(**tokenizer(source, return_tensors="pt"), labels=labels).logits
        nll -= logits.log_softmax(-1).gather(-1, labels.unsqueeze(-1)).sum().item()
        tokens += labels.numel()
    assert metrics["predict_nll_loss"] == pytest.approx(nll / tokens, rel=1e-5)
    assert metrics["predict_perplexity"] == pytest.approx(torch.tensor(nll / tokens).exp().item(), rel=1e-5)


def test_label_smoothing_under_accumulation_equals_the_full_batch(run, corpus, tmp_path):
    """Loss and gradient of three accumulated batches of unequal length are those of plain PyTorch on all pairs."""
    start = tmp_path / "start"
    tokenizer = AutoTokenizer.from_pretrained(run[0])
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(run[0], dropout=0.0, attention_dropout=0.0, activation_dropout=0.0)
    AutoModelForSeq2SeqLM.from_config(config).save_pretrained(start)
    options = {"model_name_or_path": start, "tokenizer_name": run[0], "config_overrides": None}
    options |= {"label_smoothing_factor": 0.1, "max_train_samples": 12, "max_steps": 1, "max_grad_norm": 1e9}
    options |= {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 3}
    run_translation.main(arguments(corpus, tmp_path / "out", **options))
    logged = json.loads((tmp_path / "out" / "trainer_state.json").read_text())["log_history"][0]

    pairs = list(zip(*read_aligned_lines([corpus / "train.en", corpus / "train.de"])))[:12]
    model = AutoModelForSeq2SeqLM.from_pretrained(start)
    total, tokens = 0.0, 0
    for source, target in pairs:
        labels = tokenizer(text_target=target, return_tensors="pt")["input_ids"]
        log_probs = model(**tokenizer(source, return_tensors="pt"), labels=labels).logits.log_softmax(-1)
        nll = -log_probs.gather(-1, labels.unsqueeze(-1)).sum()
        total = total + 0.9 * nll - 0.1 * log_probs.mean(-1).sum()
        tokens += labels.numel()
    loss = total / tokens
    loss.backward()
    norm = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()
    assert logged["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert logged["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)


def test_resuming_in_the_middle_of_an_epoch_gives_the_same_model(corpus, tmp_path):
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    options = {"max_steps": 11, "save_strategy": "steps", "save_steps": 6}
    run_translation.main(arguments(corpus, whole, **options))
    resumed.mkdir()
    shutil.copytree(whole / "checkpoint-6", resumed / "checkpoint-6")
    run_translation.main(arguments(corpus, resumed, **options))
    assert len(losses(whole)) == 11
    assert losses(resumed) == losses(whole)
    expected = AutoModelForSeq2SeqLM.from_pretrained(whole).state_dict()
    for name, tensor in AutoModelForSeq2SeqLM.from_pretrained(resumed).state_dict().items():
        assert torch.equal(tensor, expected[name]), name


def test_best_checkpoint_is_the_one_saved(run, corpus, tmp_path):
    """Too large a learning rate spoils a trained model, so that the best checkpoint is an early one."""
    options = {"model_name_or_path": run[0], "config_overrides": None, "learning_rate": 0.1, "warmup_steps": 4}
    options |= {"do_eval": True, "eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
    options |= {"load_best_model_at_end": True, "metric_for_best_model": "chrf", "generation_num_beams": 1}
    metrics = run_translation.main(arguments(corpus, tmp_path, num_beams=1, **options))
    history = json.loads((tmp_path / "trainer_state.json").read_text())["log_history"]
    scores = [entry["eval_chrf"] for entry in history if "eval_chrf" in entry]
    assert len(scores) == 4
    assert metrics["eval_chrf"] == pytest.approx(max(scores))
    assert max(scores) > scores[-1]


def test_final_model_is_the_mean_of_the_last_checkpoints(corpus, tmp_path):
    """Its weights are the mean of the checkpoints' tensors, and it is what is evaluated and predicts."""
    options = {"max_steps": 6, "save_strategy": "steps", "save_steps": 2, "do_eval": True, "do_predict": True}
    options |= {"average_last_checkpoints": 2}
    metrics = run_translation.main(arguments(corpus, tmp_path / "run", **options))
    states = [load_file(tmp_path / "run" / f"checkpoint-{number}" / "model.safetensors") for number in (4, 6)]
    averaged = load_file(tmp_path / "run" / "model.safetensors")
    assert set(averaged) == set(states[0])
    for name, tensor in averaged.items():
        torch.testing.assert_close(tensor, (states[0][name] + states[1][name]) / 2, rtol=1e-6, atol=1e-7)
    assert any(not torch.equal(tensor, states[1][name]) for name, tensor in averaged.items())
    # A folder of the command that averages is left alone, and the finished run gives the same model again.
    (tmp_path / "run" / "averaged_last_2").mkdir()
    run_translation.main(arguments(corpus, tmp_path / "run", **options))
    assert [path.name for path in (tmp_path / "run").glob("*averaged*")] == ["averaged_last_2"]
    again = load_file(tmp_path / "run" / "model.safetensors")
    assert all(torch.equal(again[name], averaged[name]) for name in averaged)

    options = {"model_name_or_path": tmp_path / "run", "config_overrides": None, "do_train": None, "do_eval": True}
    again = run_translation.main(arguments(corpus, tmp_path / "again", **options | {"do_predict": True}))
    for name in ("eval_nll_loss", "predict_nll_loss", "predict_chrf"):
        assert again[name] == pytest.approx(metrics[name], rel=1e-6)
    predictions = [(tmp_path / run / "generated_predictions.txt").read_text() for run in ("run", "again")]
    assert predictions[0] == predictions[1]


def test_a_restored_backup_does_not_change_which_checkpoints_are_averaged(corpus, tmp_path):
    options = {"max_steps": 6, "save_strategy": "steps", "save_steps": 2, "save_total_limit": 2}
    run_translation.main(arguments(corpus, tmp_path, **options))
    os.utime(tmp_path / "checkpoint-4", (3e9, 3e9))
    # What a kill leaves of an average.
    (tmp_path / "_temporary_average" / ".model.averaging" / "model").mkdir(parents=True)
    options |= {"max_steps": 8, "average_last_checkpoints": 2}
    run_translation.main(arguments(corpus, tmp_path, **options))
    assert sorted(path.name for path in tmp_path.glob("[._c]*-*")) == ["checkpoint-6", "checkpoint-8"]
    assert not list(tmp_path.glob("_*"))
    states = [load_file(tmp_path / f"checkpoint-{number}" / "model.safetensors") for number in (6, 8)]
    for name, tensor in load_file(tmp_path / "model.safetensors").items():
        torch.testing.assert_close(tensor, (states[0][name] + states[1][name]) / 2, rtol=1e-6, atol=1e-7)


def test_a_run_folder_holds_only_metrics_of_its_model_and_says_of_which_data(corpus, tmp_path):
    """Model cards are made from it."""
    folder = tmp_path / "run"

    def saved(file):
        return json.loads((folder / file).read_text())

    run_translation.main(arguments(corpus, folder, max_steps=2, do_predict=True))
    other = {"model_name_or_path": folder, "config_overrides": None, "do_train": None, "do_predict": True}
    other |= {"test_source_file": corpus / "validation.en", "test_target_file": corpus / "validation.de"}
    first = run_record(folder)
    results = saved("all_results.json") | {"predict_gleu": 99.0}
    (folder / "all_results.json").write_text(json.dumps(results))
    metrics = run_translation.main(arguments(corpus, folder, **other | {"num_beams": 1}))
    assert saved("all_results.json")["predict_chrf"] == metrics["predict_chrf"]
    second = run_record(folder)
    assert "gleu" not in second["metrics"]["test"], "what this evaluation did not measure is another one's"
    assert first["data"]["train"] == second["data"]["train"]
    assert (first["data"]["test"]["source"], second["data"]["test"]["source"]) == (
        ["test.en", "test.de"],
        ["validation.en", "validation.de"],
    )
    assert first["generation"] == {"test": "num_beams 3, length_penalty 0.6, max_length 41"}
    assert second["generation"] == {"test": "num_beams 1, max_length 41"}

    shutil.copytree(folder, tmp_path / "other")
    with pytest.raises(ValueError, match="holds another trained model and its metrics"):
        run_translation.main(arguments(corpus, folder, **other | {"model_name_or_path": tmp_path / "other"}))

    # A folder of an evaluation alone is of one model, too.
    evaluated = tmp_path / "evaluated"
    run_translation.main(arguments(corpus, evaluated, **other, do_eval=True))
    results = json.loads((evaluated / "all_results.json").read_text())
    run_translation.main(arguments(corpus, evaluated, **other | {"num_beams": 1}))
    again = json.loads((evaluated / "all_results.json").read_text())
    assert again["eval_nll_loss"] == results["eval_nll_loss"]
    assert again["predict_generation"] != results["predict_generation"]
    noted = json.loads((evaluated / "evaluation.json").read_text())
    assert noted["model"]["folder"] == str(folder) and set(noted["evaluated"]) == {"validation", "test"}
    # Nor of two states of one.
    os.utime(folder / "model.safetensors", (0, 0))
    with pytest.raises(ValueError, match=rf"evaluated holds the metrics of {folder}, {noted['model']['saved']}, not"):
        run_translation.main(arguments(corpus, evaluated, **other))
    other["model_name_or_path"] = tmp_path / "other"
    with pytest.raises(ValueError, match=rf"evaluated holds the metrics of {folder}, .*, not of .*other: choose"):
        run_translation.main(arguments(corpus, evaluated, **other))
    assert json.loads((evaluated / "all_results.json").read_text()) == again
    run_translation.main(arguments(corpus, evaluated, **other, overwrite_output_dir=True))
    assert not [name for name in json.loads((evaluated / "all_results.json").read_text()) if name.startswith("eval_")]
    assert set(json.loads((evaluated / "evaluation.json").read_text())["evaluated"]) == {"test"}

    run_translation.main(arguments(corpus, folder, max_steps=3, overwrite_output_dir=True))
    assert not [name for name in saved("all_results.json") if name.startswith("predict_")]
    assert not [*folder.glob("predict_results.json"), *folder.glob("generated_predictions.txt")]
    assert saved("arguments.json")["training"]["max_steps"] == 3


def test_a_failed_start_leaves_an_earlier_run_as_it_was(corpus, tmp_path):
    run_translation.main(arguments(corpus, tmp_path / "run", max_steps=2, save_strategy="steps", save_steps=1))
    files = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    shutil.copytree(tmp_path / "run", tmp_path / "other", ignore=shutil.ignore_patterns("checkpoint-*"))
    other = {"model_name_or_path": tmp_path / "other", "config_overrides": None, "vocab_size": None}
    for wrong, message in (
        ({"train_source_file": "no.en"}, r"no\.en"),
        ({"config_overrides": "d_modl=4"}, "d_modl"),
        (
            {
                "config_overrides": "max_position_embeddings=50,position_embedding_type=learned",
                "max_source_length": 60,
            },
            "--max_source_length 60 exc",
        ),
        (other | {"src_lang": "en", "tgt_lang": "de"}, "does not mark languages"),
        (other | {"model_name_or_path": tmp_path / "run" / "checkpoint-1"}, "deletes what --model_name_or_path"),
        (other | {"tokenizer_name": tmp_path / "run"}, "deletes what --tokenizer_name"),
    ):
        with pytest.raises((FileNotFoundError, ValueError), match=message):
            run_translation.main(arguments(corpus, tmp_path / "run", **wrong, overwrite_output_dir=True))
        assert files == {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}


def test_another_training_in_the_folder_of_one_is_refused(corpus, tmp_path, caplog):
    """Else the weights of the first would be saved, and scored, as those of the second."""
    options = {"max_steps": 3, "save_strategy": "steps", "save_steps": 1}
    run_translation.main(arguments(corpus, tmp_path, **options))
    rk4 = json.dumps(MODEL | {"encoder_solver": "rk4", "solver_coefficients": "fixed"})
    with pytest.raises(ValueError, match=r"another training; .* config_overrides=.*rk4.*; learning_rate=5\.0 in pl"):
        run_translation.main(arguments(corpus, tmp_path, **options, learning_rate=5) + ["--config_overrides", rk4])
    with pytest.raises(ValueError, match=r"this one has max_source_length=7 in place of 256\."):
        run_translation.main(arguments(corpus, tmp_path, **options, max_source_length=7))
    run_translation.main(arguments(corpus, tmp_path, **options, do_predict=True, num_beams=1, max_predict_samples=2))
    last = tmp_path / "checkpoint-3"
    with pytest.raises(ValueError, match=r"is of another training; .* config_overrides=.* Leave out --resume_from"):
        run_translation.main(
            [*arguments(corpus, tmp_path, **options, resume_from_checkpoint=last), "--config_overrides", rk4]
        )
    (tmp_path / "arguments.json").rename(tmp_path / "noted.json")
    with pytest.raises(ValueError, match=r"Cannot resume from .*: its model has .*encoder_solver 'rk2', not 'rk4'"):
        run_translation.main(
            [*arguments(corpus, tmp_path, **options, resume_from_checkpoint=last), "--config_overrides", rk4]
        )
    (tmp_path / "noted.json").replace(tmp_path / "arguments.json")
    # A longer training is the same one; another learning rate is the caller's decision.
    run_translation.main(arguments(corpus, tmp_path, **options | {"max_steps": 4}))
    options |= {"resume_from_checkpoint": tmp_path / "checkpoint-4", "max_steps": 5, "learning_rate": 0.1}
    caplog.clear()
    run_translation.main(arguments(corpus, tmp_path, **options))
    assert "with other arguments: learning_rate=0.1 in place of" in caplog.text
    assert len(losses(tmp_path)) == 5


def test_training_data_that_changed_are_refused_by_name(corpus, tmp_path, caplog):
    """Lines that were added, or changed into others of as many bytes; not those of an evaluation."""
    data, out = shutil.copytree(corpus, tmp_path / "data"), tmp_path / "out"
    options = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    run_translation.main(arguments(data, out, **options, do_eval=True))
    noted = json.loads((out / "arguments.json").read_text())["files"]
    text = (data / "train.de").read_text()
    assert [file["name"] for file in noted["train"]] == ["train.en", "train.de"] and "test" not in noted
    assert [file["size"] for file in noted["validation"]] == [
        os.path.getsize(data / f"validation.{language}") for language in ("en", "de")
    ]

    options |= {"max_steps": 3}
    for changed in (text + text[:1] + "\n", text.replace("e", "a", 1)):
        (data / "train.de").write_text(changed)
        with pytest.raises(ValueError, match=r"checkpoint-2 is of another training; .*another content of train\.de"):
            run_translation.main(arguments(data, out, **options))
    assert len(losses(out)) == 2

    # As it was, wherever it lies and whenever it was written; with other data to evaluate on.
    moved = data.rename(tmp_path / "moved")
    (moved / "train.de").write_text(text)
    (moved / "validation.en").write_text((moved / "validation.en").read_text().upper())
    run_translation.main(arguments(moved, out, **options, do_eval=True))
    assert len(losses(out)) == 3

    # The caller may want it, and a run of before files were noted says nothing about them.
    (moved / "train.de").write_text(changed)
    options |= {"max_steps": 4}
    asked = options | {"resume_from_checkpoint": out / "checkpoint-3"}
    shutil.copytree(out, tmp_path / "older")
    run_translation.main(arguments(moved, out, **asked))
    assert "with other arguments: another content of train.de" in caplog.text
    noted = json.loads((tmp_path / "older" / "arguments.json").read_text())
    del noted["files"]
    (tmp_path / "older" / "arguments.json").write_text(json.dumps(noted))
    run_translation.main(arguments(moved, tmp_path / "older", **options))
    assert len(losses(tmp_path / "older")) == 4


def test_changed_data_are_noticed_in_folders_and_on_the_hub(tmp_path, monkeypatch):
    folder = tmp_path / "dataset"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "train.jsonl").write_text('{"en": "one", "de": "eins"}\n')
    training = SimpleNamespace(do_train=True, do_eval=False, do_predict=False, output_dir=str(folder / "out"))

    def note(name):
        return {"files": data_note(translation.DataArguments(dataset_name=str(name)), training)}

    before = note(folder)
    os.utime(folder / "data" / "train.jsonl", (1, 1))
    assert changed_data(before, note(shutil.copytree(folder, tmp_path / "copied"))) == []
    # What the training itself writes does not count.
    (folder / "out").mkdir()
    (folder / "out" / "arguments.json").write_text("{}")
    assert changed_data(before, note(folder)) == []
    (folder / "data" / "train.jsonl").write_text('{"en": "two", "de": "zwei"}\n')
    assert changed_data(before, note(folder)) == ["another content of data/train.jsonl (28 bytes in place of 28)"]
    (folder / "data" / "more.jsonl").write_text('{"en": "two", "de": "zwei"}\n')
    assert changed_data(before, note(folder)) == ["other files of train data (data/more.jsonl)"]

    texts = ["one"]
    monkeypatch.setattr(datasets, "load_dataset", lambda *_: {"train": datasets.Dataset.from_dict({"en": texts})})
    before = note("me/data")
    assert changed_data(before, note("me/data")) == []
    texts.append("two")
    assert changed_data(before, note("me/data")) == ["another content of me/data (by its fingerprint)"]


def test_a_validation_file_of_which_a_part_is_trained_on_is_training_data():
    old, new = ([{"name": "dev.m2", "size": 1, "blake2b": text}] for text in ("aa", "bb"))
    for share, changed in ((None, []), (0.5, ["another content of dev.m2 (1 bytes in place of 1)"])):
        asked = {"data": {"validation_share": share}, "files": {"validation": new}}
        assert changed_data({"files": {"validation": old}}, asked) == changed


def test_a_second_training_in_a_folder_is_refused_while_the_first_one_lives(corpus, tmp_path):
    """That of a process that was killed is over, and its lock file counts for nothing."""
    out = tmp_path / "out"
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        with locked_folder(out):
            os.write(theirs, b"x")
            signal.pause()
    assert os.read(ours, 1) == b"x"
    try:
        with pytest.raises(ValueError, match=f"Another training is writing to {out}: wait .*--output_dir"):
            run_translation.main(arguments(corpus, out))
        assert [path.name for path in out.iterdir()] == [LOCK]
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    run_translation.main(arguments(corpus, out, max_steps=1, save_strategy="steps"))
    assert len(losses(out)) == 1 and not (out / LOCK).exists()


def test_a_failed_start_leaves_no_folder(corpus, tmp_path):
    with pytest.raises(FileNotFoundError):
        run_translation.main(arguments(corpus, tmp_path / "new" / "out", train_source_file="no.en"))
    assert not (tmp_path / "new").exists()


def test_the_same_batches_may_come_from_other_numbers_of_processes():
    def different(processes, accumulated):
        asked = {"training": {"gradient_accumulation_steps": accumulated}, "processes": processes}
        noted = {"training": {"gradient_accumulation_steps": 2}, "processes": 4}
        return different_training(noted, asked)["training"]

    assert different(4, 2) == different(8, 1) == different(2, 4) == []
    assert different(2, 2) == ["processes x gradient_accumulation_steps=4 in place of 8"]


@pytest.mark.parametrize(
    "name, noted, asked",
    [
        ("max_tokens_per_batch", 4096, 2048),
        ("per_device_train_batch_size", 8, 16),
        ("learning_rate", 0.001, 0.002),
        ("lr_scheduler_type", "inverse_sqrt", "linear"),
        ("learning_rate_ratio", 0.1, 0.2),
        ("warmup_steps", 10, 20),
        ("optim", "adamw_torch", "adafactor"),
        ("adam_beta1", 0.9, 0.8),
        ("adam_beta2", 0.98, 0.997),
        ("weight_decay", 0.0, 0.1),
        ("max_grad_norm", 0.0, 1.0),
        ("label_smoothing_factor", 0.0, 0.1),
        ("bf16", False, True),
        ("fp16", False, True),
        ("metric_for_best_model", "bleu", "perplexity"),
        ("seed", 1, 2),
        ("train_sampling_strategy", "random", "group_by_length"),
        ("data_seed", 1, 2),
        ("lr_scheduler_kwargs", None, {"num_cycles": 2}),
        ("adam_epsilon", 1e-8, 1e-6),
    ],
)
def test_another_value_of_what_decides_the_updates_makes_another_training(name, noted, asked):
    def different(*values):
        return different_training(*({"training": {"per_device_train_batch_size": 8, name: each}} for each in values))

    (found,) = different(noted, asked)["training"]
    assert found.startswith(f"{name}={asked!r} in place of ")
    assert different(asked, asked)["training"] == []


def test_a_target_tokenizer_of_an_earlier_start_is_not_used(corpus, tmp_path):
    """Of a run with two tokenizers that was stopped before its first checkpoint."""
    pairs = list(zip(*(read_lines(corpus / f"train.{language}") for language in ("en", "de"))))
    for joint in (False, True):
        args = Seq2SeqModelArguments(vocab_size=300, joint_tokenizer=joint)
        seq2seq_texts.train_tokenizers(pairs, args, tmp_path)
        source, target = seq2seq_texts.load_tokenizers(tmp_path)
        assert (source is target) == joint


def test_checkpoints_of_two_branches_are_not_mixed(corpus, tmp_path):
    options = {"max_steps": 3, "save_strategy": "steps", "save_steps": 1}
    run_translation.main(arguments(corpus, tmp_path / "run", **options))
    options |= {"resume_from_checkpoint": tmp_path / "run" / "checkpoint-1"}
    with pytest.raises(ValueError, match=r"holds newer checkpoints \(checkpoint-2, checkpoint-3\)"):
        run_translation.main(arguments(corpus, tmp_path / "run", **options))
    run_translation.main(arguments(corpus, tmp_path / "branch", **options))
    assert losses(tmp_path / "branch") == losses(tmp_path / "run")
    with pytest.raises(
        ValueError, match=r"branch holds other checkpoints \(checkpoint-2, checkpoint-3\), .* Leave it out"
    ):
        run_translation.main(arguments(corpus, tmp_path / "branch", **options))


def test_weights_alone_are_not_resumed_from(corpus, tmp_path):
    options = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1, "save_only_model": True}
    run_translation.main(arguments(corpus, tmp_path, **options))
    noted = {name: (tmp_path / name).read_bytes() for name in ("arguments.json", "all_results.json")}
    with pytest.raises(ValueError, match=r"checkpoint-2: it holds weights alone \(--save_only_model\)"):
        run_translation.main(arguments(corpus, tmp_path, **options | {"max_steps": 3}))
    assert noted == {name: (tmp_path / name).read_bytes() for name in noted}


def test_losses_and_seconds_are_those_of_all_calls(corpus, tmp_path):
    options = {"max_steps": 6, "save_strategy": "steps", "save_steps": 2, "logging_steps": 4}
    whole = run_translation.main(arguments(corpus, tmp_path / "whole", **options))
    (tmp_path / "resumed").mkdir()
    for folder in ("checkpoint-4", "checkpoint-6"):
        shutil.rmtree(tmp_path / "resumed", ignore_errors=True)
        shutil.copytree(tmp_path / "whole" / folder, tmp_path / "resumed" / folder)
        resumed = run_translation.main(arguments(corpus, tmp_path / "resumed", **options))
        assert resumed["train_loss"] == pytest.approx(whole["train_loss"], rel=1e-6)
        seconds = json.loads((tmp_path / "whole" / folder / "loss_state_0.json").read_text())["seconds"]
        assert resumed["train_runtime"] >= seconds > 0
        assert resumed["train_steps_per_second"] == pytest.approx(6 / resumed["train_runtime"], rel=1e-6)
        # With --max_steps, transformers counts every batch as a full one.
        examples = 6 * whole["train_samples_per_second"] / whole["train_steps_per_second"]
        assert resumed["train_samples_per_second"] * resumed["train_runtime"] == pytest.approx(examples, rel=1e-2)


def test_the_best_checkpoint_is_found_in_a_folder_that_was_moved(corpus, tmp_path):
    options = {"do_eval": True, "eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
    options |= {"load_best_model_at_end": True, "metric_for_best_model": "perplexity", "max_steps": 4}
    # Learns, and is spoiled.
    options |= {"learning_rate": 0.9, "warmup_steps": 3, "lr_scheduler_type": "inverse_sqrt"}
    metrics = run_translation.main(arguments(corpus, tmp_path / "run", **options))
    (tmp_path / "run").rename(tmp_path / "moved")
    # Another training where the first one was.
    run_translation.main(arguments(corpus, tmp_path / "run", **options, seed=7))
    moved = run_translation.main(arguments(corpus, tmp_path / "moved", **options))
    assert moved["eval_perplexity"] == metrics["eval_perplexity"]
    state = json.loads((tmp_path / "moved" / "trainer_state.json").read_text())
    perplexities = [entry["eval_perplexity"] for entry in state["log_history"] if "eval_perplexity" in entry]
    assert metrics["eval_perplexity"] == pytest.approx(min(perplexities), rel=1e-6)
    assert min(perplexities) < perplexities[-1]
    shutil.rmtree(tmp_path / "moved" / f"checkpoint-{state['best_global_step']}")
    with pytest.raises(FileNotFoundError, match=f"of update {state['best_global_step']}, is not in"):
        run_translation.main(arguments(corpus, tmp_path / "moved", **options))


def test_a_saved_search_is_used_where_none_is_asked_for(run, corpus, tmp_path):
    shutil.copytree(run[0], tmp_path / "model", ignore=shutil.ignore_patterns("checkpoint-*"))
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model")
    model.generation_config.update(num_beams=2, length_penalty=0.3, min_length=6, no_repeat_ngram_size=3, max_length=9)
    model.generation_config.save_pretrained(tmp_path / "model")
    options = {"model_name_or_path": tmp_path / "model", "config_overrides": None, "do_train": None}
    options |= {"do_predict": True, "num_beams": None, "length_penalty": None}
    metrics = run_translation.main(arguments(corpus, tmp_path / "out", **options))
    assert metrics["predict_generation"] == (
        "num_beams 2, length_penalty 0.3, max_length 9, min_length 6, no_repeat_ngram_size 3"
    )
    outputs = read_lines(tmp_path / "out" / "generated_predictions.txt")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    source = tokenizer(read_lines(corpus / "test.en")[0], return_tensors="pt")
    settings = {"num_beams": 2, "length_penalty": 0.3, "min_length": 6, "no_repeat_ngram_size": 3, "max_length": 9}
    output = AutoModelForSeq2SeqLM.from_pretrained(run[0]).generate(**source, **settings)
    assert outputs[0] == tokenizer.decode(output[0], skip_special_tokens=True).strip()


def test_samples_are_printed_without_dropout(run, capsys):
    tokenizer = AutoTokenizer.from_pretrained(run[0])
    model = AutoModelForSeq2SeqLM.from_pretrained(run[0], dropout=0.9)
    source = "forty-two"
    expected = tokenizer.decode(model.generate(**tokenizer(source, return_tensors="pt"))[0], skip_special_tokens=True)
    for _ in range(2):
        print_samples(model.train(), [source], tokenizer, tokenizer, 40)
        assert capsys.readouterr().out == f"source: {source}\noutput: {expected.strip()}\n"


def test_targets_are_encoded_as_targets():
    """By a tokenizer of two sides, as Marian's."""

    class TwoSides:
        def __call__(self, text=None, text_target=None, verbose=True):
            return {"input_ids": [[len(each), 1 if text else 2] for each in text or text_target]}

    args, tokenizer = translation.DataArguments(), TwoSides()
    dataset = seq2seq_texts.encode_split([("a", "bbb")], "train", tokenizer, tokenizer, args)
    assert (dataset["input_ids"][0], dataset["labels"][0]) == ([1, 1], [3, 2])
    dataset = seq2seq_texts.encode_split([("a", "bbb")], "train", tokenizer, TwoSides(), args)
    assert dataset["labels"][0] == [3, 1]


def test_bleu_of_tokenised_text_by_name():
    """Worked by hand: one of eight tokens is wrong, and one of twelve once words are split at hyphens."""
    args = translation.DataArguments(bleu_moses_language="de")
    reference = "Er öffnet die rich-text-Datei, sagt sie."
    dataset = datasets.Dataset.from_dict({"target": [reference]})
    scores = translation.score(["Er öffnet die rich-text-Akte, sagt sie."], dataset, args, "test")
    # Er öffnet die rich-text-Datei , sagt sie . : 7 of 8, 5 of 7, 3 of 6, 1 of 5
    assert scores["tokenized_bleu"] == pytest.approx(100 * (7 / 8 * 5 / 7 * 3 / 6 * 1 / 5) ** 0.25)
    # Er öffnet die rich ##AT##-##AT## text ##AT##-##AT## Datei , sagt sie . : 11 of 12, 9 of 11, 7 of 10, 5 of 9
    assert scores["compound_split_bleu"] == pytest.approx(100 * (11 / 12 * 9 / 11 * 7 / 10 * 5 / 9) ** 0.25)
    assert "tok:moses.de" in scores["tokenized_bleu_signature"]
    assert "compounds:split" in scores["compound_split_bleu_signature"]
    plain = translation.score([reference], dataset, translation.DataArguments(), "test")
    assert set(plain) == {"bleu", "chrf", "length_ratio", "bleu_signature", "chrf_signature"}


def test_outputs_are_written_before_they_are_scored(run, corpus, tmp_path):
    """Since a search takes long, and scoring may fail."""

    def fails(texts, dataset, args, split):
        raise OSError("no ERRANT")

    task = dataclasses.replace(translation.TRANSLATION, score=fails)
    options = {"model_name_or_path": run[0], "config_overrides": None, "do_train": None, "do_predict": True}
    with pytest.raises(OSError, match="no ERRANT"):
        run_task(task, arguments(corpus, tmp_path, **options))
    written = (tmp_path / "generated_predictions.txt").read_text(encoding="utf-8")
    assert written == (run[0] / "generated_predictions.txt").read_text(encoding="utf-8")


def test_tokenizer_per_language(corpus, tmp_path):
    options = {"joint_tokenizer": False, "target_vocab_size": 320, "do_predict": True}
    trained = run_translation.main(arguments(corpus, tmp_path / "run", **options))
    config = AutoConfig.from_pretrained(tmp_path / "run")
    assert (config.vocab_size, config.decoder_vocab_size) == (330, 320)
    assert not config.share_encoder_decoder_embeddings
    assert len(AutoTokenizer.from_pretrained(tmp_path / "run")) == 330
    assert len(AutoTokenizer.from_pretrained(tmp_path / "run" / "target_tokenizer")) == 320

    options = {"model_name_or_path": tmp_path / "run", "config_overrides": None, "do_train": None, "do_predict": True}
    reloaded = run_translation.main(arguments(corpus, tmp_path / "again", **options))
    assert reloaded["predict_bleu"] == trained["predict_bleu"]
    assert reloaded["predict_nll_loss"] == pytest.approx(trained["predict_nll_loss"], rel=1e-5)
    for folder in ("run", "again"):
        assert (tmp_path / folder / "generated_predictions.txt").exists()
    shutil.copytree(tmp_path / "run", tmp_path / "lost", ignore=shutil.ignore_patterns("target_tokenizer"))
    with pytest.raises(ValueError, match="lost has a vocabulary of its own for the target, but no folder target_tok"):
        run_translation.main(
            arguments(corpus, tmp_path / "other", **options | {"model_name_or_path": tmp_path / "lost"})
        )


def test_recipe_gives_defaults_to_the_command_line(corpus, tmp_path):
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps({"learning_rate": 0.5, "config_overrides": MODEL, "num_beams": 2, "do_train": True}))
    argv = [str(recipe), "--output_dir", str(tmp_path), "--num_beams", "5"]
    model_args, data_args, args = parse_arguments(translation.TRANSLATION, argv)
    assert (args.learning_rate, data_args.num_beams, args.do_train) == (0.5, 5, True)
    assert parse_overrides(model_args.config_overrides) == MODEL


@pytest.mark.parametrize(
    ("asked", "changed"),
    [
        ([], {}),
        (
            ["--test_source_file", "x.en", "--test_target_file", "x.de"],
            {"test_source_file": "x.en", "test_target_file": "x.de"},
        ),
        (["--test_target_file", "x.de"], {"test_target_file": "x.de"}),
        (["--train_file", "x.tsv"], {"train_file": "x.tsv", "train_source_file": None, "train_target_file": None}),
        (
            ["--dataset_name", "a/b"],
            {"dataset_name": "a/b"}
            | {
                f"{split}_{side}_file": None
                for split in ("train", "validation", "test")
                for side in ("source", "target")
            },
        ),
    ],
)
def test_data_of_the_command_line_take_the_place_of_a_recipes(asked, changed):
    """A dataset that of all files, a table that of the two files of its split."""
    recipe = EXAMPLES / "recipes" / "multi30k_en_de.json"
    _, data_args, _ = parse_arguments(translation.TRANSLATION, [str(recipe), *asked])
    noted = json.loads(recipe.read_text())
    names = translation.DataArguments.SOURCES
    assert {name: getattr(data_args, name) for name in names} == {name: noted.get(name) for name in names} | changed


def test_another_dataset_is_not_read_in_the_recipes_configuration(tmp_path):
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps({"dataset_name": "wmt/wmt14", "dataset_config_name": "de-en"}))
    for asked, expected in (
        ([], ("wmt/wmt14", "de-en")),
        (["--dataset_name", "a/b"], ("a/b", None)),
        (["--dataset_name", "wmt/wmt14"], ("wmt/wmt14", "de-en")),
        (["--dataset_config_name", "fr-en"], ("wmt/wmt14", "fr-en")),
    ):
        _, data_args, _ = parse_arguments(translation.TRANSLATION, [str(recipe), *asked])
        assert (data_args.dataset_name, data_args.dataset_config_name) == expected


def test_all_formats_read_alike(corpus, tmp_path, monkeypatch):
    sources, targets = (read_lines(corpus / f"test.{language}") for language in ("en", "de"))
    # Other characters that Python takes for line ends are text, and so is a lone carriage return.
    sources[0] += " a\u2028b\x85c\rd"
    pairs = list(zip(sources, targets))
    nested = [json.dumps({"translation": {"en": source, "de": target}}) for source, target in pairs]
    flat = [json.dumps({"en": source, "de": target}, ensure_ascii=False) for source, target in pairs]
    tables = {
        "t.tsv": [f"{source}\t{target}" for source, target in pairs],
        "t.json": nested,
        "t.jsonl": flat,
        "t.en": sources,
        "t.de": targets,
    }
    for name, lines in tables.items():
        data = "".join(f"{line}\n" for line in lines).encode()
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n"))
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(data))
    languages = {"source_lang": "en", "target_lang": "de"}
    for name in ("t.tsv", "t.tsv.gz", "t.json", "t.json.gz", "t.jsonl", "t.jsonl.gz"):
        args = translation.DataArguments(test_file=str(tmp_path / name), **languages)
        assert translation.read_split(args, "test") == pairs, name
    for ending in ("", ".gz"):
        args = translation.DataArguments()
        args.test_source_file, args.test_target_file = (str(tmp_path / f"t.{lang}{ending}") for lang in ("en", "de"))
        assert translation.read_split(args, "test") == pairs

    hub = tmp_path / "hub"
    hub.mkdir()
    (hub / "test.jsonl").write_text("\n".join(nested))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    args = translation.DataArguments(dataset_name=str(hub), **languages)
    assert translation.read_split(args, "test") == pairs
    with pytest.raises(ValueError, match="no split 'train', only test"):
        translation.read_split(args, "train")


def test_pairs_with_an_empty_side(tmp_path, caplog):
    (tmp_path / "a.tsv").write_text("one\teins\n\tzwei\nthree\t \nfour\tvier\n")
    args = translation.DataArguments(train_file=str(tmp_path / "a.tsv"), test_file=str(tmp_path / "a.tsv"))
    assert translation.read_split(args, "train") == [("one", "eins"), ("four", "vier")]
    assert "dropped 2 of 4 pairs with an empty side" in caplog.text
    assert len(translation.read_split(args, "test")) == 4
    assert "2 of 4 pairs have an empty side; kept" in caplog.text


def test_long_sentences_are_cut_and_counted(run, caplog):
    tokenizer = AutoTokenizer.from_pretrained(run[0])
    pairs = [("one", "eins"), ("one " * 50, "eins"), ("two", "zwei " * 50)]
    args = translation.DataArguments(max_source_length=30, max_target_length=20)
    encoded = seq2seq_texts.encode_split(pairs, "train", tokenizer, tokenizer, args)
    assert [len(ids) for ids in encoded["input_ids"]][1] == 30
    assert [len(ids) for ids in encoded["labels"]][2] == 20
    assert encoded["input_ids"][1][-1] == encoded["labels"][2][-1] == tokenizer.eos_token_id
    assert "1 of 3 sources cut to 30 tokens (--max_source_length)" in caplog.text
    assert "1 of 3 targets cut to 20 tokens (--max_target_length)" in caplog.text


BAD_FILES = {
    "short.de": "eins\n",
    "empty.tsv": "",
    "blank.tsv": " \t \n",
    "columns.tsv": "one\teins\ntwo\n",
    "broken.jsonl": '{"en": "one", "de": "eins"}\n{"en": \n',
    "list.jsonl": '[["one", "eins"]]\n',
    "french.jsonl": '{"en": "one", "fr": "un"}\n',
    "table.csv": "one,eins\n",
    "recipe.json": '{"learning_rat": 0.1}',
}
FILES = {"train_source_file": None, "train_target_file": None}
LANGUAGES = {"source_lang": "en", "target_lang": "de"}
SAVING = {"average_last_checkpoints": 2, "save_strategy": "steps", "save_steps": 2}
BEST = {"load_best_model_at_end": True, "do_eval": True, "eval_strategy": "steps", "eval_steps": 2}


@pytest.mark.parametrize(
    "values, error, message",
    [
        ({"train_source_file": "{bad}/none.en"}, FileNotFoundError, r"No file .*none\.en"),
        ({"train_target_file": "{bad}/short.de"}, ValueError, r"train\.en has 60 lines, but .*short\.de has 1"),
        ({"train_target_file": None}, ValueError, "--train_source_file and --train_target_file go together"),
        ({"train_file": "{bad}/empty.tsv"}, ValueError, "not both"),
        (FILES, ValueError, "No train data: give --train_file"),
        (FILES | {"train_file": "{bad}/empty.tsv"}, ValueError, r"empty\.tsv holds no pair .*0 lines read"),
        (FILES | {"train_file": "{bad}/blank.tsv"}, ValueError, r"blank\.tsv holds no pair .*1 lines read"),
        (FILES | {"train_file": "{bad}/columns.tsv"}, ValueError, r"columns\.tsv, line 2: 1 columns"),
        (FILES | LANGUAGES | {"train_file": "{bad}/broken.jsonl"}, ValueError, r"broken\.jsonl, line 2: not a JSON"),
        (
            FILES | LANGUAGES | {"train_file": "{bad}/french.jsonl"},
            ValueError,
            r"french\.jsonl, line 1: no text under en and de \(--source_lang and --target_lang\); its keys are en, fr",
        ),
        (FILES | LANGUAGES | {"train_file": "{bad}/list.jsonl"}, ValueError, "line 1: not an object with en and de"),
        (FILES | {"train_file": "{bad}/french.jsonl"}, ValueError, "needs --source_lang and --target_lang"),
        (FILES | {"train_file": "{bad}/table.csv"}, ValueError, r"must be \.tsv, \.json or \.jsonl .*'\.csv'"),
        ({"train_source_file": "{bad}/latin1.en"}, ValueError, r"latin1\.en is not UTF-8"),
        ({"train_source_file": "{bad}/plain.en.gz"}, ValueError, r"plain\.en\.gz is not a whole gzip file"),
        ({"train_source_file": "{bad}/cut.en.gz"}, ValueError, r"cut\.en\.gz is not a whole gzip file"),
        ({"config_overrides": "d_modl=4"}, ValueError, "have no d_modl. They have: .*d_model"),
        ({"config_overrides": "d_model"}, ValueError, "write name=value"),
        ({"config_overrides": "{{d_model: 4}}"}, ValueError, r"Cannot read '\{d_model: 4\}': it is not a JSON object"),
        ({"early_stopping_patience": 0}, ValueError, "--early_stopping_patience 0 must be at least 1"),
        (
            {"early_stopping_patience": 2},
            ValueError,
            "--early_stopping_patience 2 needs --metric_for_best_model and --eval_strategy steps or epoch",
        ),
        ({"max_train_samples": -1}, ValueError, "--max_train_samples -1 must be at least 1; leave it out to use all"),
        ({"max_predict_samples": 0}, ValueError, "--max_predict_samples 0 must be at least 1"),
        (
            {"metric_for_best_model": "eval_bleu", "predict_with_generate": None},
            ValueError,
            "--metric_for_best_model bleu is measured of outputs: give --predict_with_generate",
        ),
        ({"model_name_or_path": "somewhere"}, ValueError, "brings its own configuration"),
        (
            {"max_source_length": 2000, "config_overrides": "position_embedding_type=learned"},
            ValueError,
            "--max_source_length 2000 exceeds .*max_position_embeddings, 1024",
        ),
        (
            {"generation_max_length": 1026, "config_overrides": "position_embedding_type=learned"},
            ValueError,
            "--generation_max_length 1026 exceeds .*max_position_embeddings, 1024",
        ),
        ({"num_beams": 0}, ValueError, "--num_beams 0 must be at least 1"),
        ({"generation_num_beams": 0}, ValueError, "--generation_num_beams 0 must be at least 1"),
        ({"min_target_length": 40}, ValueError, "--min_target_length 40 must be .* less than the longest output, 40"),
        ({"do_train": None}, ValueError, "Nothing to do"),
        ({"do_train": None, "do_eval": True}, ValueError, "give --model_name_or_path"),
        ({"do_predict": True, "predict_with_generate": None}, ValueError, "give --predict_with_generate"),
        ({"output_dir": "{bad}"}, ValueError, "is not empty and holds no checkpoint"),
        ({"bleu_moses_language": "xx"}, ValueError, "Moses' tokenizer knows no language 'xx', only .*de"),
        ({"average_last_checkpoints": -1}, ValueError, "--average_last_checkpoints -1 must be at least 0"),
        ({"average_last_checkpoints": 2}, ValueError, "--average_last_checkpoints 2 needs checkpoints"),
        (SAVING | {"save_total_limit": 1}, ValueError, "2 needs --save_total_limit 2 or more, not 1"),
        (
            SAVING | {"save_total_limit": 2, "metric_for_best_model": "bleu"},
            ValueError,
            "2 needs --save_total_limit 3 or more, not 2",
        ),
        (SAVING | {"fsdp": "full_shard"}, ValueError, "no process holds a whole model to average"),
        (SAVING | BEST, ValueError, "2 and --load_best_model_at_end are two choices"),
        (SAVING | {"save_steps": 3, "max_steps": 3}, ValueError, "2: .*out holds 1 complete checkpoints"),
        ({"resume_from_checkpoint": "true"}, FileNotFoundError, "no checkpoint in"),
        ({"resume_from_checkpoint": "{bad}/none"}, FileNotFoundError, "no folder .*none"),
        ({"resume_from_checkpoint": "true", "overwrite_output_dir": True}, ValueError, "_output_dir deletes"),
    ],
)
def test_errors_name_the_value_and_the_fix(values, error, message, corpus, tmp_path):
    bad = tmp_path / "bad"
    bad.mkdir()
    for name, text in BAD_FILES.items():
        (bad / name).write_text(text)
    (bad / "latin1.en").write_bytes("fünf\n".encode("latin-1") * SIZES["train"])
    (bad / "plain.en.gz").write_text("five\n")
    (bad / "cut.en.gz").write_bytes(gzip.compress(b"five\n" * 100)[:-12])
    values = {name: value.format(bad=bad) if isinstance(value, str) else value for name, value in values.items()}
    with pytest.raises(error, match=message):
        run_translation.main(arguments(corpus, tmp_path / "out", **values))
    with pytest.raises(ValueError, match="unknown arguments: learning_rat"):
        run_translation.main([str(bad / "recipe.json")])


def test_tokenizer_larger_than_the_model_is_refused(run, corpus, tmp_path):
    train_tokenizer.main(
        ["--files", *(str(corpus / f"train.{language}") for language in ("en", "de"))]
        + ["--vocab_size", "400", "--output_dir", str(tmp_path / "large")]
    )
    options = {"model_name_or_path": run[0], "tokenizer_name": tmp_path / "large", "config_overrides": None}
    with pytest.raises(ValueError, match="source tokenizer has 400 tokens, but the model only embeds 330"):
        run_translation.main(arguments(corpus, tmp_path / "out", **options))


def test_train_tokenizer_for_each_language(corpus, tmp_path, capsys):
    output_dir = tmp_path / "tokenizers"
    argv = ["--files", str(corpus / "train.en"), "--target_files", str(corpus / "train.de"), "--model_type", "unigram"]
    argv += ["--vocab_size", "310", "--target_vocab_size", "300", "--output_dir", str(output_dir)]
    train_tokenizer.main(argv + ["--options", "split_digits=true"])
    source, target = seq2seq_texts.load_tokenizers(str(output_dir))
    assert (len(source), len(target)) == (310, 300)
    assert "310 pieces (unigram) from 60 lines" in capsys.readouterr().out
    with pytest.raises(ValueError, match="is not empty"):
        train_tokenizer.main(argv)
    with pytest.raises(ValueError, match="--target_vocab_size 300 is of --target_files: give these, too"):
        train_tokenizer.main([*argv[:2], "--target_vocab_size", "300", "--output_dir", str(tmp_path / "one")])
    with pytest.raises(ValueError, match="vocab_size=0 must be a positive integer"):
        train_tokenizer.main([*argv[:-4], "--target_vocab_size", "0", "--output_dir", str(tmp_path / "one")])
    with pytest.raises(ValueError, match="--options vocab_size=9: give --vocab_size in its place"):
        train_tokenizer.main([*argv, "--output_dir", str(tmp_path / "one"), "--options", "vocab_size=9"])
    with pytest.raises(FileNotFoundError, match="No file"):
        train_tokenizer.main([*argv, "--output_dir", str(tmp_path / "one"), "--target_files", "nowhere.de"])
    assert not (tmp_path / "one").exists()


def test_overrides():
    expected = {"d_model": 256, "dropout": 0.2, "tie_word_embeddings": False, "layer_history": "none"}
    text = "d_model=256,dropout=0.2,tie_word_embeddings=False,layer_history=none"
    assert parse_overrides(text) == expected
    assert parse_overrides(json.dumps(expected)) == expected
    assert parse_overrides(None) == {}
    assert parse_overrides("recurrence_steps=None") == {"recurrence_steps": None}
    assert parse_overrides('stop_strings="End",name=AbC,x=NaN') == {
        "stop_strings": "End",
        "name": "AbC",
        "x": "NaN",
    }


def test_another_start_of_the_same_last_name_makes_another_training():
    noted = {"model": {"model_name_or_path": "me/base", "model_revision": "main"}}
    for start, revision in (("you/base", "main"), ("me/base", "v2")):
        asked = {"model": {"model_name_or_path": start, "model_revision": revision}}
        assert different_training(noted, asked)["model"]
    assert not different_training(noted, noted)["model"]
    moved = {"model": {"model_name_or_path": "../me/base", "model_revision": "main"}}
    assert not different_training(noted, moved)["model"]


def test_words_are_counted_in_the_case_that_they_are_encoded_in():
    """Unicode has several lower cases of a sigma, and `str.lower` chooses by its place."""
    tokenizer = word_level_tokenizer(["ΟΔΟΣ Straße"], {"unk_token": "<unk>"}, lowercase=True)
    assert 0 not in tokenizer.encode("ΟΔΟΣ Straße").ids


def test_length_grouped_sampler():
    lengths = torch.randint(1, 50, (103,)).tolist()
    sampler = LengthGroupedSampler(lengths, batch_size=10, seed=1)
    first = list(sampler)
    assert sorted(first) == list(range(103))
    assert first == list(sampler)
    batches = torch.tensor(lengths)[torch.tensor(first)].split(10)
    assert sum(batch.max() - batch.min() for batch in batches) <= max(lengths)
    sampler.set_epoch(1)
    assert list(sampler) != first
    # Of other seeds, all epochs are others.
    assert list(sampler) != list(LengthGroupedSampler(lengths, batch_size=10, seed=2))


@pytest.mark.parametrize(
    "number, english, german",
    [
        (0, "zero", "null"),
        (1, "one", "eins"),
        (12, "twelve", "zwölf"),
        (16, "sixteen", "sechzehn"),
        (17, "seventeen", "siebzehn"),
        (21, "twenty-one", "einundzwanzig"),
        (30, "thirty", "dreißig"),
        (76, "seventy-six", "sechsundsiebzig"),
        (100, "one hundred", "einhundert"),
        (101, "one hundred one", "einhunderteins"),
        (666, "six hundred sixty-six", "sechshundertsechsundsechzig"),
        (1000, "one thousand", "eintausend"),
        (1001, "one thousand one", "eintausendeins"),
        (1100, "one thousand one hundred", "eintausendeinhundert"),
        (21_000, "twenty-one thousand", "einundzwanzigtausend"),
        (101_001, "one hundred one thousand one", "einhunderteintausendeins"),
        (
            421_735,
            "four hundred twenty-one thousand seven hundred thirty-five",
            "vierhunderteinundzwanzigtausendsiebenhundertfünfunddreißig",
        ),
        (
            999_999,
            "nine hundred ninety-nine thousand nine hundred ninety-nine",
            "neunhundertneunundneunzigtausendneunhundertneunundneunzig",
        ),
    ],
)
def test_number_names(number, english, german):
    assert number_names.english(number) == english
    assert number_names.german(number) == german


def test_numbers_without_a_name():
    for number in (-1, 1_000_000):
        with pytest.raises(ValueError, match=f"not {number}"):
            number_names.german(number)


def test_corpus_splits_do_not_overlap(corpus):
    lines = [line for split in SIZES for line in read_lines(corpus / f"{split}.en")]
    assert len(set(lines)) == len(lines) == sum(SIZES.values())
