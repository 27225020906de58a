# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The command that converts fairseq's checkpoints: files as fairseq writes them, read or refused."""

import os
import sys
from argparse import Namespace
from collections import OrderedDict
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, GenerationConfig

from modeling_ode_transformer import FairseqTokenizer, cli, convert_fairseq_state_dict

from ..conftest import assert_close
from .test_fairseq import load, run


SHARED, SEPARATE = "rk2_learnable_iii_rpr8_dlcl", "extra_rk2_learnable_iii_noShare"
CODES = "#version: 0.2\nl o\nlo w\nlo w</w>\ne r</w>\nn e\nne w</w>\n"
PIECES = ["low@@", "low", "er", "new", "a", "l@@", "o@@", "w@@"]
# The golden models embed 60 tokens, 4 of them special.
TOKENS = [*PIECES, *(f"word{i}" for i in range(56 - len(PIECES)))]


@pytest.fixture
def meters(monkeypatch):
    """What fairseq's trainer saves of its statistics, in classes that are only there while the file is written."""
    module = ModuleType("fairseq.meters")
    for name in ("AverageMeter", "StopwatchMeter", "TimeMeter"):
        setattr(module, name, type(name, (), {"__module__": module.__name__}))
    values = OrderedDict((name, getattr(module, name)()) for name in ("AverageMeter", "StopwatchMeter", "TimeMeter"))
    for value in values.values():
        vars(value).update(avg=torch.tensor(2.5), sum=5, start=None)
    monkeypatch.setitem(sys.modules, "fairseq", ModuleType("fairseq"))
    monkeypatch.setitem(sys.modules, "fairseq.meters", module)
    return values


def write_checkpoint(path: Path, state_dict, args, zipped=True, **entries) -> Path:
    """A file with what fairseq 0.6.2 saves, and further entries."""
    checkpoint = {
        "args": Namespace(**args),
        "model": state_dict,
        "optimizer_history": [{"optimizer_name": "FairseqAdam", "lr_scheduler_state": {"best": None}}],
        "extra_state": {"train_iterator": {"epoch": 3, "iterations_in_epoch": 0}, "val_loss": 4.5, **entries},
        "last_optimizer_state": {"state": {0: {"step": 7, "exp_avg": torch.ones(2)}}, "param_groups": [{"lr": 0.1}]},
    }
    torch.save(checkpoint, path, _use_new_zipfile_serialization=zipped)
    return path


@pytest.fixture
def files(tmp_path):
    """Arguments of the command for the golden models, and a function that writes a checkpoint of one of them."""
    (tmp_path / "dict.txt").write_text("".join(f"{token} {99 - i}\n" for i, token in enumerate(TOKENS)))
    (tmp_path / "dict.de.txt").write_text("".join(f"{token} 1\n" for token in reversed(TOKENS)))
    (tmp_path / "codes").write_text(CODES)

    class Files:
        dictionary, other_dictionary, codes = (tmp_path / name for name in ("dict.txt", "dict.de.txt", "codes"))
        output = tmp_path / "out"

        def checkpoint(self, name=SHARED, file="checkpoint_best.pt", change=None, changed_args=None, **options):
            weights, _, reference = load(name)
            weights = OrderedDict((key, change(tensor) if change else tensor) for key, tensor in weights.items())
            return write_checkpoint(tmp_path / file, weights, {**reference["args"], **(changed_args or {})}, **options)

        def run(self, checkpoint, target=None, options=()):
            dictionaries = ["--source_dict", self.dictionary, "--target_dict", target or self.dictionary]
            words = ["convert-fairseq", checkpoint, *dictionaries, "--output_dir", self.output, *options]
            cli.run([str(word) for word in words])
            return AutoModelForSeq2SeqLM.from_pretrained(self.output)

    return Files()


@pytest.mark.parametrize(
    "name, zipped", [(SHARED, True), (SEPARATE, False), ("residual_i_plain", True), ("rk4_standard_i_plain", False)]
)
def test_the_folder_computes_what_the_original_computes(name, zipped, files, meters, monkeypatch):
    checkpoint = files.checkpoint(name, zipped=zipped, train_meters=meters, best=4.25)
    monkeypatch.delitem(sys.modules, "fairseq.meters")
    monkeypatch.delitem(sys.modules, "fairseq")
    model = files.run(checkpoint)
    assert_close(run(model, load(name)[1])[0].logits, load(name)[1]["logits"])
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert not list(files.output.glob("*.bin")) and (files.output / "model.safetensors").is_file()


def test_parameters_in_half_precision_are_read_exactly(files):
    model = files.run(files.checkpoint(change=torch.Tensor.half))
    weights, io, reference = load(SHARED)
    rounded = {name: tensor.half().float() for name, tensor in weights.items()}
    expected = convert_fairseq_state_dict(rounded, reference["args"])
    assert torch.equal(run(model, io)[0].logits, run(expected, io)[0].logits)


class Malicious:
    """Creates a file when it is unpickled."""

    def __init__(self, command: str):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("zipped", [True, False])
def test_code_in_a_checkpoint_does_not_run(zipped, files):
    created = files.dictionary.parent / "created"
    checkpoint = files.checkpoint(zipped=zipped, meters=Malicious(f"touch '{created}'"))
    message = rf"checkpoint_best.pt holds {os.system.__module__}.system\. It was not loaded, .*--trust_file"
    with pytest.raises(ValueError, match=message):
        files.run(checkpoint)
    assert not created.exists() and not files.output.exists()


def test_other_objects_are_read_only_when_told_to_trust_the_file(files):
    checkpoint = files.checkpoint(value=np.float64(3), folder=Path("data"))
    message = r"checkpoint_best.pt holds \S*(numpy|pathlib)\S*\. It was not loaded, .*--trust_file"
    with pytest.raises(ValueError, match=message):
        files.run(checkpoint)
    model = files.run(checkpoint, options=["--trust_file"])
    assert_close(run(model, load(SHARED)[1])[0].logits, load(SHARED)[1]["logits"])


def test_files_of_others_are_refused(files):
    path = files.dictionary.parent / "other.pt"
    for content in ({"cfg": {}, "args": None, "model": {}}, [torch.ones(1)]):
        torch.save(content, path)
        with pytest.raises(ValueError, match=r"other\.pt is not a checkpoint of fairseq 0\.6\.2"):
            files.run(path)


def test_one_dictionary_gives_one_tokenizer(files):
    files.run(files.checkpoint(SEPARATE), options=["--bpe_codes", files.codes])
    tokenizer = AutoTokenizer.from_pretrained(files.output)
    assert type(tokenizer) is FairseqTokenizer
    assert tokenizer("a new lower low 🙂").input_ids == [8, 7, 4, 6, 5, 3, 2]
    assert tokenizer.decode([8, 7, 4, 6, 2], skip_special_tokens=True) == "a new lower"
    assert len(tokenizer) == 60 and tokenizer.model_max_length == 1024
    assert not (files.output / "target_tokenizer").exists()


@pytest.mark.parametrize("with_codes", [True, False])
def test_another_target_dictionary_gives_a_target_tokenizer(with_codes, files):
    options = ["--bpe_codes", files.codes] if with_codes else []
    files.run(files.checkpoint(SEPARATE), target=files.other_dictionary, options=options)
    text = "a lower" if with_codes else "a low@@ er"
    # The other dictionary has the same tokens from the last to the first.
    for folder, expected in (("", [8, 4, 6, 2]), ("target_tokenizer", [55, 59, 57, 2])):
        tokenizer = AutoTokenizer.from_pretrained(files.output, subfolder=folder)
        assert tokenizer(text).input_ids == expected
        assert tokenizer.decode(expected, skip_special_tokens=True) == "a lower"


def test_other_target_codes_give_a_target_tokenizer(files):
    codes = files.dictionary.parent / "codes.de"
    codes.write_text("#version: 0.2\ne r</w>\n")
    files.run(files.checkpoint(), options=["--bpe_codes", files.codes, "--target_bpe_codes", codes])
    for folder, expected in (("", [4, 6, 2]), ("target_tokenizer", [9, 10, 11, 6, 2])):
        assert AutoTokenizer.from_pretrained(files.output, subfolder=folder)("lower").input_ids == expected


def test_dictionaries_of_another_size_are_refused_with_the_sizes(files):
    for lines, message in ((TOKENS[1:], "has 59 tokens"), ([*TOKENS, "more"], "has 61 tokens")):
        files.other_dictionary.write_text("".join(f"{token} 1\n" for token in lines))
        with pytest.raises(ValueError, match=rf"dict.de.txt {message} .* the model embeds 60"):
            files.run(files.checkpoint(SEPARATE), target=files.other_dictionary)
    assert not files.output.exists()


def test_a_padded_embedding_gets_a_padded_dictionary(files):
    def pad(tensor):
        return torch.cat([tensor, torch.zeros(4, tensor.shape[1])]) if len(tensor) == 60 else tensor

    model = files.run(files.checkpoint(change=pad))
    tokenizer = AutoTokenizer.from_pretrained(files.output)
    assert len(tokenizer) == model.config.vocab_size == 64
    assert tokenizer.convert_ids_to_tokens([59, 60, 63]) == [TOKENS[-1], "madeupword0000", "madeupword0003"]


def test_the_search_is_the_original_s_by_default(files):
    files.run(files.checkpoint())
    saved = GenerationConfig.from_pretrained(files.output)
    assert (saved.num_beams, saved.length_penalty, saved.max_length, saved.early_stopping) == (4, 0.6, 256, True)
    assert (saved.min_new_tokens, saved.suppress_tokens, saved.decoder_start_token_id) == (1, [1], 2)


def test_nothing_is_overwritten(files):
    checkpoint = files.checkpoint()
    files.output.mkdir()
    files.run(checkpoint)
    before = {path: path.read_bytes() for path in files.output.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=r"--output_dir .*out is not an empty folder"):
        files.run(checkpoint)
    assert before == {path: path.read_bytes() for path in files.output.rglob("*") if path.is_file()}
