# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""What a training is where nothing says: presets by the number of examples, and what wins over them."""

import json
import logging
import math
import os
import re

import pytest
from safetensors.torch import load_file
from transformers import AutoConfig

from modeling_ode_transformer import cli
from modeling_ode_transformer.text_files import read_json
from modeling_ode_transformer.training import presets, run
from modeling_ode_transformer.training.recipe_files import RECIPES
from modeling_ode_transformer.training.run import parse_arguments
from modeling_ode_transformer.training.tasks.classification import CLASSIFICATION
from modeling_ode_transformer.training.tasks.language_model import LANGUAGE_MODEL
from modeling_ode_transformer.training.tasks.translation import TRANSLATION

from .runs import MODEL


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Two examples for translation and for classification."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.tsv").write_text("one\teins\ntwo\tzwei\n")
    (tmp_path / "a.txt").write_text("1 one\n0 two\n")


TINY = presets.PRESETS["seq2seq"][0].values["config_overrides"]
DATA = "--train a.tsv --validation a.tsv --output_dir out".split()


@pytest.mark.parametrize(
    ("count", "name", "size"),
    [
        (9_999, "tiny", (128, 2000)),
        (10_000, "small", (256, 8000)),
        (99_999, "small", (256, 8000)),
        (100_000, "medium", (512, 10_000)),
        (1_000_000, "base", (512, 32_000)),
    ],
)
def test_the_preset_is_that_of_the_number_of_pairs_and_says_so(count, name, size, files, monkeypatch):
    monkeypatch.setattr(presets, "count_examples", lambda *_: count)
    notes = []
    model_args, _, args = parse_arguments(TRANSLATION, DATA, notes)
    assert (model_args.config_overrides["d_model"], model_args.vocab_size) == size
    assert notes[0].startswith(f"Preset {name} (from ")
    assert (args.do_train, args.do_eval, args.do_predict) == (True, True, False)
    told = f"d_model {size[0]}, .*encoder_solver rk2, vocab_size {size[1]}, max_tokens_per_batch .*, optim muon, muon"
    assert re.search(told, notes[0]) and len(notes[0]) < 300 and "arguments.json" in notes[1]


TASKS = {"seq2seq": TRANSLATION, "language model": LANGUAGE_MODEL, "classification": CLASSIFICATION}


@pytest.mark.parametrize("kind", TASKS)
def test_the_smallest_preset_of_each_task_makes_an_update(kind, files, caplog):
    """Of a model of its size, on too few pairs for eight batches; other tests evaluate."""
    preset, path = presets.PRESETS[kind][0], "a.tsv" if kind == "seq2seq" else "a.txt"
    caplog.set_level(logging.INFO, "modeling_ode_transformer")
    options = f"--train {path} --output_dir out --preset {preset.name} --max_steps 1 --save_strategy no"
    run.run(TASKS[kind], [*options.split(), "--disable_tqdm", "True"])
    assert f"Preset {preset.name} (from 0 training examples on)" in caplog.text
    first = read_json("out/trainer_state.json")["log_history"][0]
    config, values = read_json("out/config.json"), preset.values.get("config_overrides", {})
    assert math.isfinite(first["loss"]) and first["grad_norm"] > 0 and first["step"] == 1
    assert {name: config[name] for name in values} == values


@pytest.mark.parametrize(
    "kind, file, model_type",
    [("seq2seq", "a.tsv", "ode_transformer"), ("language model", "a.txt", "ode_transformer_decoder")],
)
def test_every_preset_is_a_model(kind, file, model_type, files):
    for preset in presets.PRESETS[kind]:
        argv = ["--train", file, "--output_dir", "out", "--preset", preset.name]
        model_args, data_args, args = parse_arguments(TASKS[kind], argv)
        TASKS[kind].check_arguments(model_args, data_args, args)
        assert model_args.config_overrides == preset.values["config_overrides"]
        AutoConfig.for_model(model_type, **model_args.config_overrides)


def test_a_pipe_is_not_read_for_its_size(files):
    os.mkfifo("pipe.tsv")
    notes = []
    parse_arguments(TRANSLATION, ["--train", "pipe.tsv", "--output_dir", "out"], notes)
    assert notes[0].startswith("Preset small ")


def test_the_small_preset_is_the_fast_recipe_of_multi30k(files, monkeypatch):
    """Apart from the number of evaluations and the best checkpoint."""
    monkeypatch.setattr(presets, "count_examples", lambda *_: 29_000)
    model_args, data_args, args = parse_arguments(TRANSLATION, DATA)
    recipe = read_json(RECIPES / "multi30k_en_de_fast.json")
    found = vars(model_args) | vars(data_args) | vars(args)
    names = "vocab_size num_train_epochs max_tokens_per_batch optim muon_learning_rate learning_rate lr_scheduler_type"
    names += " adam_beta1 adam_beta2 label_smoothing_factor generation_num_beams num_beams length_penalty"
    assert {name: found[name] for name in names.split()} == {name: recipe[name] for name in names.split()}
    assert model_args.config_overrides == recipe["config_overrides"]
    # A tenth of the recipe's 1,080 updates.
    assert args.warmup_steps == 0.1 and recipe["warmup_steps"] == 100
    assert (args.predict_with_generate, args.load_best_model_at_end) == (True, True)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--learning_rate 0.5 --vocab_size 300", {"learning_rate": 0.5, "vocab_size": 300, "num_train_epochs": 30}),
        ("--preset none --do_train", {"learning_rate": 5e-5, "max_tokens_per_batch": None, "num_beams": None}),
        ("--per_device_train_batch_size 3", {"max_tokens_per_batch": None, "per_device_train_batch_size": 3}),
        ("--save_strategy no", {"load_best_model_at_end": False, "eval_steps": 0.1}),
        ("--eval_strategy no", {"load_best_model_at_end": False, "save_steps": 0.1}),
        ("--save_steps 7 --eval_steps 7", {"load_best_model_at_end": True, "eval_strategy": "steps"}),
        ("--eval_steps 7", {"load_best_model_at_end": True, "save_steps": 7}),
        ("--save_strategy epoch", {"load_best_model_at_end": True, "eval_strategy": "epoch"}),
        ("--average_last_checkpoints 3", {"average_last_checkpoints": 3, "save_total_limit": 4}),
        ("--tokenizer_options a=1", {"tokenizer_options": {"hard_vocab_limit": False, "a": 1}}),
        ("--config_overrides dropout=0.5", {"config_overrides": TINY | {"dropout": 0.5}}),
        ("--optim adamw_torch --learning_rate 0.001", {"optim": "adamw_torch", "learning_rate": 0.001}),
        ("--model_name_or_path m", {"config_overrides": None, "learning_rate": 5e-5, "optim": "adamw_torch_fused"}),
        ("--test a.tsv", {"do_predict": True}),
        ("--do_eval --model_name_or_path m", {"do_train": False, "num_beams": None, "eval_strategy": "no"}),
    ],
)
def test_the_command_line_wins_and_what_is_left_fits(options, expected, files):
    model_args, data_args, args = parse_arguments(TRANSLATION, [*DATA, *options.split()])
    found = vars(model_args) | vars(data_args) | vars(args)
    assert {name: found[name] for name in expected} == expected


def test_without_validation_data_nothing_is_evaluated(files):
    notes = []
    args = parse_arguments(TRANSLATION, ["--train", "a.tsv", "--output_dir", "out"], notes)[2]
    assert (args.do_eval, args.eval_strategy, args.load_best_model_at_end) == (False, "no", False)
    assert "No validation data" in notes[2]


def test_a_recipe_is_complete(files):
    _, _, args = parse_arguments(TRANSLATION, ["--recipe", "iwslt14_de_en", *DATA])
    assert (args.warmup_steps, args.eval_strategy, args.load_best_model_at_end) == (4000, "epoch", False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--preset huge", "--preset huge is unknown: choose tiny, small, medium, base or none"),
        ("--preset tiny --recipe ptb", "--preset tiny and --recipe ptb"),
        ("--optim adamw_torch", "--optim adamw_torch: the preset's rates .* Give --learning_rate"),
    ],
)
def test_what_does_not_go_with_a_preset_is_refused(options, message, files):
    with pytest.raises(ValueError, match=message):
        parse_arguments(TRANSLATION, [*DATA, *options.split()])


def test_other_tasks_have_presets_too(files):
    model_args, _, args = parse_arguments(LANGUAGE_MODEL, "--train a.txt --validation a.txt --output_dir o".split())
    assert (model_args.config_overrides["d_model"], args.metric_for_best_model) == (128, "perplexity")
    argv, notes = "--train a.txt --validation_size 0.5 --output_dir o".split(), []
    _, _, args = parse_arguments(CLASSIFICATION, argv, notes)
    assert notes[0] == "Preset paper (from 0 training examples on)"
    assert (args.do_eval, args.metric_for_best_model, args.num_train_epochs) == (True, "accuracy", 10)
    _, _, args = parse_arguments(LANGUAGE_MODEL, "--model_name_or_path m --do_predict --output_dir o".split())
    assert (args.do_train, args.eval_strategy) == (False, "no")


@pytest.mark.parametrize("is_mean_better", [True, False])
def test_a_few_options_train_a_model_and_keep_the_best(is_mean_better, corpus, tmp_path, monkeypatch, caplog):
    """Of the best checkpoint and the mean of the last ones, the final model is the one with the higher BLEU."""
    for split in ("train", "validation"):
        rows = zip(*((corpus / f"{split}.{side}").read_text().splitlines() for side in ("en", "de")))
        (tmp_path / f"{split}.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in rows))
    monkeypatch.chdir(tmp_path)
    scores = {"average_bleu": 1e9 if is_mean_better else -1.0}
    predict = run.Trainer.predict
    calls = []

    def fake(self, *args, metric_key_prefix="test", **kwargs):
        output = predict(self, *args, metric_key_prefix=metric_key_prefix, **kwargs)
        calls.append(metric_key_prefix)
        output.metrics.update({name: score for name, score in scores.items() if name.startswith(metric_key_prefix)})
        return output

    monkeypatch.setattr(run.Trainer, "predict", fake)
    caplog.set_level(logging.INFO, "modeling_ode_transformer")
    sizes = {name: value for name, value in MODEL.items() if name != "encoder_layers"}
    argv = "train translation --train train.tsv --validation validation.tsv --output_dir out --max_steps 4".split()
    argv += "--average_last_checkpoints 2 --max_eval_samples 4 --generation_max_length 12 --disable_tqdm True".split()
    cli.main([*argv, "--config_overrides", json.dumps(sizes)])
    assert calls == ["average", "eval"]
    assert ("kept the mean" if is_mean_better else "kept the best checkpoint") in caplog.text
    state = read_json("out/trainer_state.json")
    assert next(entry["step"] for entry in state["log_history"] if "loss" in entry) == 1
    assert all(math.isfinite(entry["eval_bleu"]) for entry in state["log_history"] if "eval_bleu" in entry)
    final = load_file("out/model.safetensors")
    best = load_file(f"{state['best_model_checkpoint']}/model.safetensors")
    assert all(final[name].equal(best[name]) for name in best) != is_mean_better
