# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The mean of checkpoints, against numpy's mean of the same files; and what is not averaged."""

import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    M2M100Config,
    Trainer,
    TrainingArguments,
)

from modeling_ode_transformer import OdeTransformerForConditionalGeneration, OdeTransformerTokenizer, cli
from modeling_ode_transformer.model_folders import open_model
from modeling_ode_transformer.training.average import average_checkpoints, last_checkpoints

from ..conftest import TINY, randomize, tiny_config
from .runs import cut


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The output folder of a training run: checkpoint-2, checkpoint-4, ..., checkpoint-10."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    torch.manual_seed(0)
    model = OdeTransformerForConditionalGeneration(tiny_config(encoder_layers=1, decoder_layers=1))
    model.generation_config.update(num_beams=3, max_length=17)
    example = {"input_ids": [5, 6, 7, 2], "labels": [9, 8, 2]}
    tokenizer = OdeTransformerTokenizer.train(["one two three four"], 280)
    trainer = Trainer(
        model,
        TrainingArguments(folder, max_steps=10, save_steps=2, learning_rate=0.1, report_to="none", use_cpu=True),
        train_dataset=[example] * 80,
        processing_class=tokenizer,
    )
    trainer.train()
    for checkpoint in folder.glob("checkpoint-*"):
        tokenizer.save_pretrained(checkpoint / "target_tokenizer")
    return folder


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


def save_random_model(folder: Path, seed: int, dtype=torch.float32, **options) -> Path:
    config = M2M100Config(**TINY, pad_token_id=1, eos_token_id=2, decoder_start_token_id=2)
    model = randomize(AutoModelForSeq2SeqLM.from_config(config), seed).to(dtype)
    model.save_pretrained(folder, **options)
    return folder


def saved_tensors(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}


def mean(folders: list[Path]) -> dict[str, np.ndarray]:
    parts = [saved_tensors(folder) for folder in folders]
    return {name: np.mean([part[name].double().numpy() for part in parts], axis=0) for name in parts[0]}


def test_the_newest_checkpoints_of_a_run_are_averaged(run, capsys):
    cli.run(["average", str(run), "--last", "3"])
    output = run / "averaged_last_3"
    newest = [run / f"checkpoint-{number}" for number in (6, 8, 10)]  # by number: 10 is after 8
    expected = mean(newest)
    averaged = load_file(output / "model.safetensors")
    assert averaged.keys() == expected.keys()
    for name, tensor in averaged.items():
        assert tensor.dtype == torch.float32
        assert np.array_equal(tensor.numpy(), expected[name].astype(np.float32)), name
    assert "the mean of checkpoint-6, checkpoint-8, checkpoint-10" in capsys.readouterr().out

    # The checkpoints do differ, and the logits are those of the mean, whose weights are tied as before.
    model = AutoModelForSeq2SeqLM.from_pretrained(output).eval()
    assert model.lm_head.weight is model.get_input_embeddings().weight
    by_hand = OdeTransformerForConditionalGeneration.from_pretrained(newest[0]).eval()
    batch = {"input_ids": torch.tensor([[5, 6, 7, 2]]), "decoder_input_ids": torch.tensor([[2, 9]])}
    assert not torch.allclose(model(**batch).logits, by_hand(**batch).logits, atol=1e-2)
    by_hand.load_state_dict({name: torch.from_numpy(value) for name, value in expected.items()}, strict=False)
    assert torch.equal(model(**batch).logits, by_hand(**batch).logits)
    assert model.generation_config.num_beams == 3


def test_everything_but_the_state_of_the_training_is_copied(run, tmp_path):
    # Of final models, what is known of one is not of the average.
    of_one = ("arguments.json", "evaluation.json", "all_results.json", "generated_predictions.txt", "README.md")
    of_one += ("progress.json", "checksums.json", "latest", "zero_to_fp32.py", "runs.json", "_training.lock")
    for name in of_one:
        (run / "checkpoint-10" / name).write_text("{}")
    cli.run(["average", str(run), "--last", "2", "--output_dir", str(tmp_path / "out" / "averaged")])
    for name in of_one:
        (run / "checkpoint-10" / name).unlink()
    output, newest = tmp_path / "out" / "averaged", run / "checkpoint-10"
    names = {str(path.relative_to(newest)) for path in newest.rglob("*") if path.is_file()}
    state = {"optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin", "trainer_state.json"}
    assert state < names
    assert {"config.json", "generation_config.json", "tokenizer.json", "target_tokenizer/tokenizer.json"} < names
    assert any(name.endswith("modeling_ode_transformer.py") for name in names)
    assert {str(path.relative_to(output)) for path in output.rglob("*") if path.is_file()} == names - state
    assert len(AutoTokenizer.from_pretrained(output, subfolder="target_tokenizer")) == 280
    assert [path.name for path in output.parent.iterdir()] == ["averaged"]  # nothing is left of the writing


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_any_model_of_transformers_in_shards(dtype, tmp_path):
    """The shards of the last folder are kept; the others may be in other shards or in one file."""
    sizes = ("10MB", "30KB", "60KB")
    folders = [save_random_model(tmp_path / size, i, dtype, max_shard_size=size) for i, size in enumerate(sizes)]
    assert [(folder / "model.safetensors").exists() for folder in folders] == [True, False, False]
    average_checkpoints(folders, tmp_path / "out")
    names = {path.name for path in folders[-1].iterdir()}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names and len(names) > 4
    expected = mean(folders)
    for name, tensor in saved_tensors(tmp_path / "out").items():
        assert torch.equal(tensor, torch.from_numpy(expected[name]).to(dtype)), name
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out", dtype="auto")
    assert model.dtype == dtype
    weight = torch.from_numpy(expected["model.shared.weight"]).to(dtype)
    assert torch.equal(model.lm_head.weight, weight) and torch.equal(model.get_encoder().embed_tokens.weight, weight)


def add_tensors(folder: Path, **tensors) -> Path:
    save_file(saved_tensors(folder) | tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_integers_are_kept_and_must_agree(tmp_path):
    folders = [save_random_model(tmp_path / str(i), i) for i in range(2)]
    for folder in folders:
        add_tensors(folder, counts=torch.tensor([2**60 + 1, -3]), flags=torch.tensor([True, False]))
    average_checkpoints(folders, tmp_path / "out")
    averaged = saved_tensors(tmp_path / "out")
    assert averaged["counts"].tolist() == [2**60 + 1, -3] and averaged["flags"].tolist() == [True, False]
    add_tensors(folders[1], counts=torch.tensor([2**60, -3]), flags=torch.tensor([True, False]))
    with pytest.raises(ValueError, match=r"0 and .*1 cannot be averaged: their integers differ in counts"):
        average_checkpoints(folders, tmp_path / "other")
    assert not list((tmp_path / "other").glob("*"))


def index_weights(folder: Path, name: str) -> None:
    """Says in an index that a file of this name has the weights."""
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"weight": name}}))


NAN = {"model.decoder.layer_norm.bias": torch.full((32,), torch.nan)}


@pytest.mark.parametrize(
    "spoil, message",
    [
        (lambda newest: (newest / "trainer_state.json").unlink(), r"checkpoint-10 is half-written .*trainer_state"),
        (lambda newest: cut(newest / "model.safetensors"), "checkpoint-10 is half-written .*safetensors: "),
        (lambda newest: index_weights(newest, "model-00002"), "checkpoint-10 is half-written .*model-00002"),
        (lambda newest: (newest / "model.safetensors").unlink(), "checkpoint-10 holds neither model.safetensors nor"),
        (lambda newest: (newest / "config.json").unlink(), "checkpoint-10 is not a model folder: it holds no config"),
        (lambda newest: AutoConfig.from_pretrained(newest, dropout=0.5).save_pretrained(newest), r"dropout \(0.1 "),
        (lambda newest: add_tensors(newest, extra=torch.zeros(2)), r"they differ in extra \(None and 'a parameter'\)"),
        (lambda newest: add_tensors(newest, **NAN), "cannot be averaged: model.decoder.layer_norm.bias holds NaN"),
    ],
)
def test_what_cannot_be_averaged_is_named_and_nothing_is_written(spoil, message, run, tmp_path):
    spoil(run / "checkpoint-10")
    with pytest.raises(ValueError, match=message):
        cli.run(["average", str(run), "--last", "2", "--output_dir", str(tmp_path / "out")])
    assert not list((tmp_path / "out").glob("*"))
    cli.run(["average", str(run / "checkpoint-6"), str(run / "checkpoint-8"), "--output_dir", str(tmp_path / "out")])
    assert saved_tensors(tmp_path / "out").keys() == saved_tensors(run / "checkpoint-8").keys()


@pytest.mark.parametrize("name", ["{outside}", "../outside.safetensors"])
def test_an_index_that_names_files_outside_its_folder_is_refused(name, tmp_path):
    """They would be read, and the mean written over them."""
    outside = tmp_path / "outside.safetensors"
    save_file({"weight": torch.ones(2)}, outside)
    kept, name = outside.read_bytes(), name.format(outside=outside)
    folder = save_random_model(tmp_path / "checkpoint-3", 0)
    (folder / "trainer_state.json").write_text('{"global_step": 3, "log_history": []}')
    index_weights(folder, name)
    for call in (lambda: average_checkpoints([folder], tmp_path / "out"), lambda: open_model(AutoModel, folder)):
        with pytest.raises(ValueError, match=f"index.json names the weights '{re.escape(name)}'"):
            call()
    assert outside.read_bytes() == kept and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        (["{run}", "--last", "6"], ValueError, "holds 5 checkpoints, not the 6 to average: checkpoint-2, .*-10"),
        (["{run}", "--last", "0"], ValueError, "--last 0 must be at least 1"),
        (["{run}/checkpoint-2"], ValueError, "holds 0 checkpoints, not the 5 to average: none"),
        (["{run}/checkpoint-2", "{run}/checkpoint-3", "--output_dir", "{run}/out"], FileNotFoundError, "checkpoint-3"),
        (["{run}/checkpoint-2", "{run}/checkpoint-4"], ValueError, "2 folders are given: add --output_dir"),
        (["{run}/checkpoint-2", "{run}/checkpoint-2", "--output_dir", "{run}/out"], ValueError, "given twice"),
        (["{run}", "--output_dir", "{full}"], ValueError, "full is not empty: choose another, or give --overwrite"),
        (["{run}", "--output_dir", "{run}", "--overwrite"], ValueError, "is or holds .*checkpoint-10, which --over"),
        (["{run}", "--output_dir", "{other}", "--overwrite"], ValueError, "other is or holds .*checkpoint-3, .* cho"),
    ],
)
def test_errors_name_the_value_and_the_fix(arguments, error, message, run, tmp_path):
    full = tmp_path / "full"
    full.mkdir()
    (full / "file").write_text("kept")
    (other := tmp_path / "other" / "checkpoint-3").mkdir(parents=True)
    with pytest.raises(error, match=message):
        cli.run(["average", *(argument.format(run=run, full=full, other=other.parent) for argument in arguments)])
    assert (full / "file").read_text() == "kept" and other.is_dir()
    assert len(last_checkpoints(run, 5)) == 5


def test_overwriting_replaces_the_whole_folder_once_there_is_another(run, tmp_path):
    output = tmp_path / "out"
    output.mkdir()
    (output / "model-00001-of-00002.safetensors").write_text("stale")
    cli.run(["average", str(run), "--output_dir", str(output), "--overwrite"])
    assert not (output / "model-00001-of-00002.safetensors").exists()
    AutoModelForSeq2SeqLM.from_pretrained(output)
    (file,) = (broken := save_random_model(tmp_path / "broken", 0)).glob("*.safetensors")
    save_file({name: tensor * math.nan for name, tensor in load_file(file).items()}, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match="NaN"):
        average_checkpoints([broken], output, overwrite=True)
    AutoModelForSeq2SeqLM.from_pretrained(output)
    assert {path.name for path in tmp_path.iterdir()} == {"run", "out", "broken"}
