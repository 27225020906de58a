# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""What a run may do in an output folder, and whether two runs are the same training."""

import builtins
import errno
import json
import os
import shutil
import signal
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import datasets
import pytest
import run_translation
from safetensors.torch import load_file, save_file
from transformers import Seq2SeqTrainingArguments

from modeling_ode_transformer import OdeTransformerTokenizer
from modeling_ode_transformer.hub.model_card import run_record
from modeling_ode_transformer.inference import tokenizers
from modeling_ode_transformer.inference.tokenizers import load_tokenizers
from modeling_ode_transformer.options import declarations
from modeling_ode_transformer.training import TASKS, find_task
from modeling_ode_transformer.training.checkpoints import LOCK, locked_folder
from modeling_ode_transformer.training.run_folder import note_run
from modeling_ode_transformer.training.same_training import (
    affected_by,
    data_note,
    differences,
    model_differences,
    run_arguments,
)
from modeling_ode_transformer.training.task import Run
from modeling_ode_transformer.training.tasks import seq2seq, translation
from modeling_ode_transformer.training.tasks.seq2seq_arguments import Seq2SeqModelArguments
from modeling_ode_transformer.training.trainer import TokenSeq2SeqTrainer

from .runs import MODEL, arguments, losses


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
    sources = [record["data"]["test"]["source"] for record in (first, second)]
    assert sources == [["test.en", "test.de"], ["validation.en", "validation.de"]]
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
    assert noted["model"]["model_name_or_path"] == str(folder)
    assert set(noted["evaluated"]) == {"validation", "test"}
    # Nor of two states of one: the metrics of the first are replaced.
    other["model_name_or_path"] = tmp_path / "other"
    weights = load_file(tmp_path / "other" / "model.safetensors")
    weights["model.encoder.layer_norm.weight"] += 1
    save_file(weights, tmp_path / "other" / "model.safetensors", metadata={"format": "pt"})
    run_translation.main(arguments(corpus, evaluated, **other))
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
    learned = "max_position_embeddings=50,position_embedding_type=learned"
    for wrong, message in (
        ({"train_source_file": "no.en"}, r"no\.en"),
        ({"config_overrides": "d_modl=4"}, "d_modl"),
        ({"config_overrides": learned, "max_source_length": 60}, "--max_source_length 60 exc"),
        (other | {"src_lang": "en", "tgt_lang": "de"}, "does not mark languages"),
        (other | {"model_name_or_path": tmp_path / "run" / "checkpoint-1"}, "would delete what --model_name_or_path"),
        (other | {"tokenizer_name": tmp_path / "run"}, "would delete what --tokenizer_name"),
    ):
        with pytest.raises((FileNotFoundError, ValueError), match=message):
            run_translation.main(arguments(corpus, tmp_path / "run", **wrong, overwrite_output_dir=True))
        assert files == {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(FileNotFoundError):
        run_translation.main(arguments(corpus, tmp_path / "new" / "out", train_source_file="no.en"))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["arguments.json", "all_results.json"])
def test_a_disk_that_is_full_while_a_record_is_written_leaves_a_run_that_goes_on(name, corpus, tmp_path, monkeypatch):
    """Half of the new record was written; the repeated training or evaluation ends as if nothing had happened."""
    options = {"max_steps": 3, "save_strategy": "steps", "save_steps": 1}
    metrics = run_translation.main(arguments(corpus, tmp_path, **options))
    if name == "all_results.json":
        options = {"do_train": None, "do_eval": True, "model_name_or_path": tmp_path, "config_overrides": None}
    write, record = Path.open, (tmp_path / "arguments.json").read_bytes()

    def full(path, mode="r", *args, **kwargs):
        if "w" in mode and path.name.endswith(name):
            with write(path, mode, *args, **kwargs) as file:
                file.write("{")
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return write(path, mode, *args, **kwargs)

    monkeypatch.setattr(Path, "open", full)
    monkeypatch.setattr(builtins, "open", lambda path, *args, **kwargs: full(Path(path), *args, **kwargs))
    with pytest.raises(OSError, match="No space left"):
        run_translation.main(arguments(corpus, tmp_path, **options))
    monkeypatch.undo()
    again = run_translation.main(arguments(corpus, tmp_path, **options))
    assert name == "all_results.json" or (tmp_path / "arguments.json").read_bytes() == record
    noted = json.loads((tmp_path / "all_results.json").read_text())
    assert noted["train_loss"] == metrics["train_loss"] and again.items() <= noted.items()
    assert not list(tmp_path.glob("_temporary*"))


def test_a_training_that_starts_anew_leaves_nothing_of_the_model_before_it(corpus, tmp_path, monkeypatch):
    """Stopped before its first checkpoint, it is not taken for the other one's; repeated, it begins once more."""
    run_translation.main(arguments(corpus, tmp_path, max_steps=2))
    (tmp_path / "model-00001-of-00002.safetensors").touch()
    (tmp_path / "mine.txt").touch()

    monkeypatch.setattr(TokenSeq2SeqTrainer, "training_step", mock.Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run_translation.main(arguments(corpus, tmp_path, max_steps=3, overwrite_output_dir=True))
    monkeypatch.undo()
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix in (".json", ".safetensors", ".bin")) == [
        name for name in ("arguments.json", "tokenizer.json", "tokenizer_config.json") if (tmp_path / name).is_file()
    ]
    assert (tmp_path / "mine.txt").is_file()
    run_translation.main(arguments(corpus, tmp_path, max_steps=3))
    assert len(losses(tmp_path)) == 3


def test_another_training_in_the_folder_of_one_is_refused(corpus, tmp_path, caplog):
    """Else the weights of the first would be saved, and scored, as those of the second."""
    options = {"max_steps": 3, "save_strategy": "steps", "save_steps": 1}
    run_translation.main(arguments(corpus, tmp_path, **options))
    rk4 = json.dumps(MODEL | {"encoder_solver": "rk4"})
    with pytest.raises(ValueError, match=r"another training: .* config_overrides=.*rk4.*; learning_rate=5\.0 in pl"):
        run_translation.main(arguments(corpus, tmp_path, **options, learning_rate=5) + ["--config_overrides", rk4])
    with pytest.raises(ValueError, match=r"this one has max_source_length=7 in place of 256\."):
        run_translation.main(arguments(corpus, tmp_path, **options, max_source_length=7))
    with pytest.raises(ValueError, match=r"this one has pad_to_multiple_of=8 in place of None\."):
        run_translation.main(arguments(corpus, tmp_path, **options, pad_to_multiple_of=8))
    run_translation.main(arguments(corpus, tmp_path, **options, do_predict=True, num_beams=1, max_predict_samples=2))
    last = tmp_path / "checkpoint-3"
    resumed = [*arguments(corpus, tmp_path, **options, resume_from_checkpoint=last), "--config_overrides", rk4]
    with pytest.raises(
        ValueError, match=r"belongs to another training: .* config_overrides=.* Leave out --resume_from"
    ):
        run_translation.main(resumed)
    (tmp_path / "arguments.json").rename(tmp_path / "noted.json")
    with pytest.raises(ValueError, match=r"Cannot resume from .*: its model has .*encoder_solver 'rk2', not 'rk4'"):
        run_translation.main(resumed)
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
    sizes = [(data / f"validation.{language}").stat().st_size for language in ("en", "de")]
    assert [file["size"] for file in noted["validation"]] == sizes

    options |= {"max_steps": 3}
    for changed in (text + text[:1] + "\n", text.replace("e", "a", 1)):
        (data / "train.de").write_text(changed)
        with pytest.raises(
            ValueError, match=r"checkpoint-2 belongs to another training: .* train file 2='train\.de, .* in place of"
        ):
            run_translation.main(arguments(data, out, **options))
    assert len(losses(out)) == 2

    # As it was, wherever it lies and whenever it was written; with other data to evaluate on.
    moved = data.rename(tmp_path / "moved")
    (moved / "train.de").write_text(text)
    (moved / "validation.en").write_text((moved / "validation.en").read_text().upper())
    run_translation.main(arguments(moved, out, **options, do_eval=True))
    assert len(losses(out)) == 3

    # The caller may want it.
    (moved / "train.de").write_text(changed)
    sources = (moved / "train.en").read_text()
    (moved / "train.en").write_text(f"{sources.splitlines()[0]} {sources}")  # the longest source is another one
    options |= {"max_steps": 4}
    asked = options | {"resume_from_checkpoint": out / "checkpoint-3"}
    run_translation.main(arguments(moved, out, **asked))
    assert "with other arguments: train file 1='train.en" in caplog.text


def test_models_and_schemes_are_compared_by_their_content(tmp_path):
    """Wherever they lie; names of the Hub as they are."""

    def noted(**values):
        model_args = Seq2SeqModelArguments()
        vars(model_args).update(values)
        return run_arguments("translation", model_args, translation.DataArguments(), Seq2SeqTrainingArguments("out"))

    for folder, text in (("a", "1"), ("b/a", "1"), ("c/a", "2")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "config.json").write_text(text)
        (tmp_path / folder / "s.py").write_text(text)
    for name, file in (("tokenizer_name", "."), ("import_schemes", "s.py")):
        first, moved, other = (tmp_path / folder / file for folder in ("a", "b/a", "c/a"))
        first, moved, other = (
            noted(**{name: [str(path)] if file == "s.py" else str(path)}) for path in (first, moved, other)
        )
        assert differences(first, moved, "training") == model_differences(first, moved) == []
        (found,) = differences(first, other, "training")
        assert found.startswith(f"{name}=") and model_differences(first, other) == [found]
    for start, revision in (("you/base", "main"), ("me/base", "v2")):
        asked = noted(model_name_or_path=start, model_revision=revision)
        assert len(differences(noted(model_name_or_path="me/base"), asked, "training")) == 1


def test_an_error_in_opening_a_target_tokenizer_is_not_hidden(tmp_path, monkeypatch):
    """Else the tokenizer of the sources would decode the outputs."""

    OdeTransformerTokenizer.train(["a b"], 300, hard_vocab_limit=False).save_pretrained(tmp_path)
    source, target = load_tokenizers(str(tmp_path))
    assert source is target
    monkeypatch.setattr(tokenizers, "load_target_tokenizer", mock.Mock(side_effect=OSError("no connection")))
    with pytest.raises(OSError, match="no connection"):
        load_tokenizers(str(tmp_path))


def test_two_tokenizers_with_other_special_ids_are_refused_in_training(monkeypatch):
    """A model has one id of each mark, and Trainer takes those of the sources."""
    marks = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
    for changed, message in (({"eos_token_id": 62}, "eos_token_id 2 and 62"), ({"bos_token_id": None}, None)):
        both = SimpleNamespace(**marks), SimpleNamespace(**marks | changed)
        monkeypatch.setattr(seq2seq, "load_tokenizers", lambda *args, both=both, **options: both)
        for trains in (True, False):
            run = Run(None, Seq2SeqModelArguments(), translation.DataArguments(), SimpleNamespace(do_train=trains))
            refused = pytest.raises(ValueError, match=message) if message and trains else nullcontext()
            with refused:
                assert seq2seq.load_tokenizers_of_run(run, "somewhere") == both


def test_changed_data_are_noticed_in_folders_and_on_the_hub(tmp_path, monkeypatch):
    folder = tmp_path / "dataset"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "train.jsonl").write_text('{"en": "one", "de": "eins"}\n')
    training = SimpleNamespace(do_train=True, do_eval=False, do_predict=False, output_dir=str(folder / "out"))

    def note(name):
        return {"files": data_note(translation.DataArguments(dataset_name=str(name)), training)}

    def changed(noted, asked):
        return differences(noted, asked, "examples")

    before = note(folder)
    os.utime(folder / "data" / "train.jsonl", (1, 1))
    assert changed(before, note(shutil.copytree(folder, tmp_path / "copied"))) == []
    # What the training itself writes does not count.
    (folder / "out").mkdir()
    (folder / "out" / "arguments.json").write_text("{}")
    assert changed(before, note(folder)) == []
    (folder / "data" / "train.jsonl").write_text('{"en": "two", "de": "zwei"}\n')
    (found,) = changed(before, note(folder))
    assert found.startswith("train file 1='data/train.jsonl, 28, ")
    (folder / "data" / "more.jsonl").write_text('{"en": "two", "de": "zwei"}\n')
    assert "data/more.jsonl" in changed(before, note(folder))[0]

    texts = ["one"]
    monkeypatch.setattr(datasets, "load_dataset", lambda *_: {"train": datasets.Dataset.from_dict({"en": texts})})
    before = note("me/data")
    assert changed(before, note("me/data")) == []
    texts.append("two")
    assert "me/data" in changed(before, note("me/data"))[0]


def test_a_run_notes_which_of_its_names_are_folders(tmp_path, monkeypatch):
    """Cards made elsewhere cannot see it; of an evaluation, too."""
    for name in ("start", "pairs", "work"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "work")
    pairs = datasets.Dataset.from_dict({"en": ["one"]})
    monkeypatch.setattr(datasets, "load_dataset", lambda *_: {"validation": pairs})
    args = Seq2SeqTrainingArguments("out", do_train=False, do_eval=True, eval_strategy="no")
    model_args = Seq2SeqModelArguments(model_name_or_path="../start")
    for name, folders in (("me/pairs", ["../start"]), ("../pairs", ["../start", "../pairs"])):
        noted = run_arguments("translation", model_args, translation.DataArguments(dataset_name=name), args)
        assert noted["folders"] == folders
        # They follow from the others, and are idle with batches by tokens.
        assert not {"train_batch_size", "eval_batch_size"} & noted["training"].keys()
        note_run(noted, args)
        evaluated = json.loads((tmp_path / "work" / "out" / "evaluation.json").read_text())["evaluated"]
        assert evaluated["validation"]["folders"] == folders


def test_a_validation_file_of_which_a_part_is_trained_on_trains_data():
    old, new = ([{"name": "dev.m2", "size": 1, "blake2b": text}] for text in ("aa", "bb"))
    for share, changed in ((None, []), (0.5, ["validation file 1='dev.m2, 1, bb' in place of 'dev.m2, 1, aa'"])):
        asked = {"data": {"validation_share": share}, "files": {"validation": new}}
        assert differences({"files": {"validation": old}}, asked, "training", "examples") == changed


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


def test_the_same_batches_may_come_from_other_numbers_of_processes():
    def different(processes, accumulated):
        asked = {"training": {"gradient_accumulation_steps": accumulated}, "processes": processes}
        noted = {"training": {"gradient_accumulation_steps": 2}, "processes": 4}
        return differences(noted, asked, "training")

    assert different(4, 2) == different(8, 1) == different(2, 4) == []
    assert different(2, 2) == ["processes x gradient_accumulation_steps=4 in place of 8"]


AFFECTED = {
    "training": ["accelerator_config", "an option of a later transformers", "block_size", "class_names"]
    + ["max_tokens_per_batch", "learning_rate", "lr_scheduler_kwargs", "optim", "label_smoothing_factor", "bf16"]
    + ["metric_for_best_model", "data_seed"],
    "result": ["max_steps", "push_to_hub", "log_coefficients", "num_beams", "auto_find_batch_size"],
    "call": ["logging_steps"],
    "validation": ["max_eval_samples"],
    "examples": ["split_seed"],
}


def test_an_option_affects_what_it_declares_and_else_the_training():
    for affected, names in AFFECTED.items():
        assert {name: affected_by(name) for name in names} == dict.fromkeys(names, affected)


def test_all_tasks_declare_the_same_of_an_option():
    found = {}
    for task in map(find_task, TASKS):
        for owner in (task.model_arguments, task.data_arguments, task.training_arguments):
            for name, declared in declarations(owner).items():
                if "affects" in declared:
                    assert found.setdefault(name, declared["affects"]) == declared["affects"], name


def test_checkpoints_of_two_branches_are_not_mixed(corpus, tmp_path):
    options = {"max_steps": 3, "save_strategy": "steps", "save_steps": 1}
    run_translation.main(arguments(corpus, tmp_path / "run", **options))
    options |= {"resume_from_checkpoint": tmp_path / "run" / "checkpoint-1"}
    with pytest.raises(ValueError, match=r"holds newer checkpoints \(checkpoint-2, checkpoint-3\)"):
        run_translation.main(arguments(corpus, tmp_path / "run", **options))
    run_translation.main(arguments(corpus, tmp_path / "branch", **options))
    assert losses(tmp_path / "branch") == losses(tmp_path / "run")
    with pytest.raises(
        ValueError, match=r"branch holds other checkpoints \(checkpoint-2, checkpoint-3\)\. .* Leave it out"
    ):
        run_translation.main(arguments(corpus, tmp_path / "branch", **options))


def test_weights_alone_are_not_resumed_from(corpus, tmp_path):
    options = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1, "save_only_model": True}
    run_translation.main(arguments(corpus, tmp_path, **options))
    noted = {name: (tmp_path / name).read_bytes() for name in ("arguments.json", "all_results.json")}
    with pytest.raises(ValueError, match=r"checkpoint-2: it holds only weights \(--save_only_model\)"):
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
        seconds = json.loads((tmp_path / "whole" / folder / "progress.json").read_text())["seconds"]
        assert resumed["train_runtime"] >= seconds > 0
        assert resumed["train_steps_per_second"] == pytest.approx(6 / resumed["train_runtime"], rel=1e-6)
        # With --max_steps, transformers counts every batch as a full one.
        examples = 6 * whole["train_samples_per_second"] / whole["train_steps_per_second"]
        assert resumed["train_samples_per_second"] * resumed["train_runtime"] == pytest.approx(examples, rel=1e-2)


def test_a_finished_run_whose_folder_was_moved_keeps_the_model_of_its_best_checkpoint(corpus, tmp_path, monkeypatch):
    """Repeating the command trains nothing, and leaves the metrics of the training as they are."""
    options = {"do_eval": True, "eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
    options |= {"load_best_model_at_end": True, "metric_for_best_model": "perplexity", "max_steps": 4}
    # Learns, and is spoiled.
    options |= {"learning_rate": 0.9, "warmup_steps": 3, "lr_scheduler_type": "inverse_sqrt"}
    metrics = run_translation.main(arguments(corpus, tmp_path / "run", **options))
    (tmp_path / "run").rename(tmp_path / "moved")
    # Another training where the first one was.
    run_translation.main(arguments(corpus, tmp_path / "run", **options, seed=7))
    weights = (tmp_path / "moved" / "model.safetensors").read_bytes()
    monkeypatch.setattr(TokenSeq2SeqTrainer, "training_step", None)
    moved = run_translation.main(arguments(corpus, tmp_path / "moved", **options))
    assert (tmp_path / "moved" / "model.safetensors").read_bytes() == weights
    for name in ("train_loss", "train_samples", "eval_perplexity"):
        assert moved[name] == metrics[name]
    state = json.loads((tmp_path / "moved" / "trainer_state.json").read_text())
    perplexities = [entry["eval_perplexity"] for entry in state["log_history"] if "eval_perplexity" in entry]
    assert metrics["eval_perplexity"] == pytest.approx(min(perplexities), rel=1e-6)
    assert min(perplexities) < perplexities[-1]
    shutil.rmtree(tmp_path / "moved" / f"checkpoint-{state['best_global_step']}")
    with pytest.raises(FileNotFoundError, match=f"of update {state['best_global_step']}, is not in"):
        run_translation.main(arguments(corpus, tmp_path / "moved", **options))


def test_only_a_training_adds_weights_that_a_checkpoint_lacks(run, corpus, tmp_path):
    """Metrics of a model with random weights would be wrong in silence."""
    folder = shutil.copytree(run[0], tmp_path / "lacking", ignore=shutil.ignore_patterns("checkpoint-*"))
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.encoder.layer_norm.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    values = {"model_name_or_path": folder, "config_overrides": None, "max_steps": 1}
    with pytest.raises(ValueError, match=r"lacking lacks the weights model\.encoder\.layer_norm\.weight of Ode"):
        run_translation.main(arguments(corpus, tmp_path / "a", **values, do_train=None, do_eval=True))
    run_translation.main(arguments(corpus, tmp_path / "b", **values))
