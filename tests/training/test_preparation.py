# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Data that are prepared once."""

import os
import random
from collections import Counter

import datasets
import pytest
import run_translation
from number_names import write_corpus

from modeling_ode_transformer import OdeTransformerTokenizer, cli
from modeling_ode_transformer.text_files import read_lines
from modeling_ode_transformer.training import preparation
from modeling_ode_transformer.training.cleaning import Cleaning
from modeling_ode_transformer.training.preparation import open_rows, prepare_once, tokenizer_hash
from modeling_ode_transformer.training.tasks import seq2seq_texts, translation
from modeling_ode_transformer.training.tasks.seq2seq_texts import (
    encode_split,
    kept_pairs,
    sample_pairs,
    write_training_pairs,
)

from .runs import arguments, flags, losses
from .sentences import write_articles, write_corrections


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """4,000 pairs, a tenth of them twice and some with an empty side, and their file."""
    folder = tmp_path_factory.mktemp("texts")
    write_corpus(folder, {"train": 300})
    known = list(zip(*(read_lines(folder / f"train.{language}") for language in ("en", "de"))))
    generator = random.Random(1)
    pairs = [tuple(map(" and ".join, zip(*generator.choices(known, k=3)))) for _ in range(4000)]
    for i in range(0, 4000, 200):
        pairs[i] = (pairs[i][0], " ")
    pairs[2000:2400] = pairs[400:800]
    path = folder / "pairs.tsv"
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    return pairs, str(path)


@pytest.fixture(scope="module")
def tokenizer(texts):
    return OdeTransformerTokenizer.train([text for pair in texts[0][:300] for text in pair], 330)


def training_pairs(path, **values):
    return translation.read_split(translation.DataArguments(train_file=path, **values), "train")


def test_a_folder_holds_what_is_encoded_in_memory(texts, tokenizer, tmp_path):
    """All pairs but those with an empty side, mapped into memory, without their texts."""
    pairs, path = texts
    args = translation.DataArguments(max_source_length=256, max_target_length=20)
    counts = write_training_pairs(training_pairs(path), Cleaning(), (tokenizer, tokenizer), args, tmp_path)
    dataset = open_rows(tmp_path)
    places = [i for i, pair in enumerate(pairs) if pair[1].strip()]
    expected = encode_split([pairs[i] for i in places], "validation", tokenizer, tokenizer, args).sort("index")
    found = dataset.to_dict()
    assert found.pop("index") == places
    assert found == {name: expected[name][:] for name in found}
    assert set(found) == {"input_ids", "labels", "source_length", "target_length", "length"}
    shown = tokenizer([pairs[i][1] for i in places[:20]], truncation=True, max_length=20)
    assert found["labels"][:20] == shown["input_ids"]
    cut = sum(len(ids) > 20 for ids in tokenizer([pairs[i][1] for i in places])["input_ids"])
    assert counts == {"pairs": [len(places)], "removed": {"empty side": 20}, "cut": {"source": 0, "target": cut}}
    assert dataset.features["input_ids"].feature.dtype == "uint16"
    assert isinstance(dataset.data, datasets.table.MemoryMappedTable)


def test_a_killed_preparation_starts_over(texts, tokenizer, tmp_path):
    """Killed in the middle, or before its note is written; a complete one is only opened."""
    args = translation.DataArguments()

    def write(folder):
        return write_training_pairs(training_pairs(texts[1]), Cleaning(), (tokenizer, tokenizer), args, folder)

    def write_half(folder):
        examples = training_pairs(texts[1])
        examples.reads = [lambda: (pair if i < 1500 else pytest.exit() for i, pair in enumerate(texts[0]))]
        write_training_pairs(examples, Cleaning(), (tokenizer, tokenizer), args, folder)

    folder = tmp_path / "data"
    with pytest.raises(pytest.exit.Exception):
        prepare_once(folder, {}, write_half)
    assert (folder / preparation.ROWS).exists() and not (folder / preparation.PREPARED).exists()
    prepare_once(folder, {}, write)
    whole = open_rows(folder).to_dict()
    (folder / preparation.PREPARED).unlink()
    noted = prepare_once(folder, {"of": 1}, write)
    assert noted["made from"] == {"of": 1} and noted["pairs"] == [len(whole["index"])] == [3980]
    assert open_rows(folder).to_dict() == whole
    assert prepare_once(folder, {}, None) == noted


def test_a_sample_of_pairs_is_a_random_one_and_the_same_one(texts):
    def sample(size, **rules):
        return sample_pairs(kept_pairs(training_pairs(texts[1]), Cleaning(**rules), Counter()), size)

    found, full = sample(1000), [pair for pair in texts[0] if pair[1].strip()]
    assert len(found) == 1000 and found == sample(1000) and set(found) <= set(full)
    places = sorted(map(full.index, found))
    assert 0.35 < sum(place > len(full) / 2 for place in places) / len(places) < 0.55  # a tenth are found earlier
    assert sample(10**6) == full
    with pytest.raises(ValueError, match=r"train on \(4000 lines read, .*: 20 by empty side, \d+ by max_w"):
        sample(10, max_words=0)


def test_the_hash_of_a_tokenizer_is_of_what_it_does(texts, tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    again = OdeTransformerTokenizer.from_pretrained(tmp_path)
    again(["a"], truncation=True, max_length=4, padding=True)
    assert tokenizer_hash(again) == tokenizer_hash(tokenizer)
    other = OdeTransformerTokenizer.train([text for pair in texts[0][:300] for text in pair], 331)
    assert tokenizer_hash(other) != tokenizer_hash(tokenizer)


@pytest.mark.skipif(not os.path.exists("/dev/fd"), reason="the names of pipes are those of Unix")
def test_a_pipe_is_read_once_and_can_be_iterated_over_again(tmp_path):
    (tmp_path / "targets").write_text("b\nd\n")
    end, start = os.pipe()
    os.write(start, b"a\nc\n")
    os.close(start)
    args = translation.DataArguments(train_source_file=f"/dev/fd/{end}", train_target_file=str(tmp_path / "targets"))
    pairs = translation.read_split(args, "train")
    os.close(end)
    assert not pairs.is_of_files and list(pairs) == list(pairs) == [("a", "b"), ("c", "d")]


def test_a_second_start_finds_what_the_first_one_prepared(corpus, tmp_path, monkeypatch):
    """Another training of the same data, too; not one with another rule. Losses are those of data made anew."""
    options = {"prepared_dir": tmp_path / "data", "max_tokens_per_batch": 300, "max_steps": 3, "do_eval": True}
    options |= {"train_sampling_strategy": None, "per_device_train_batch_size": None}
    run_translation.main(arguments(corpus, tmp_path / "first", **options))
    names = {path.name for path in (tmp_path / "data").iterdir() if path.is_dir()}
    assert sorted(name.split("-")[0] for name in names) == ["tokenizer", "train", "validation"]
    monkeypatch.setattr(seq2seq_texts, "write_rows", None)
    monkeypatch.setattr(OdeTransformerTokenizer, "train", None)
    run_translation.main(arguments(corpus, tmp_path / "second", **options))
    assert {path.name for path in (tmp_path / "data").iterdir() if path.is_dir()} == names
    assert losses(tmp_path / "second") == losses(tmp_path / "first")
    for change in ({"max_words": 5}, {"max_target_length": 39}, {"max_train_samples": 59}, {"vocab_size": 331}):
        with pytest.raises(TypeError, match="callable"):
            run_translation.main(arguments(corpus, tmp_path / "other", **options | change))
    monkeypatch.undo()
    options["prepared_dir"] = tmp_path / "anew"
    run_translation.main(arguments(corpus, tmp_path / "third", **options))
    assert losses(tmp_path / "third") == losses(tmp_path / "first")
    assert {path.name for path in (tmp_path / "anew").iterdir() if path.is_dir()} == names
    # The command prepares the same.
    argv = arguments(corpus, tmp_path / "data-bin", max_steps=None, do_train=None, predict_with_generate=None)
    cli.main(["prepare", "translation", *argv])
    assert names < {path.name for path in (tmp_path / "data-bin").iterdir() if path.is_dir()}  # and the test data
    monkeypatch.setattr(seq2seq_texts, "write_rows", None)
    options["prepared_dir"] = tmp_path / "data-bin"
    run_translation.main(arguments(corpus, tmp_path / "fourth", **options))
    assert losses(tmp_path / "fourth") == losses(tmp_path / "first")


def test_articles_and_corrections_are_prepared_too(tmp_path):
    """By recipes, from jsonl and M2 files."""
    for name in ("articles", "m2"):
        (tmp_path / name).mkdir()
    write_articles(tmp_path / "articles", {"train": 12})
    write_corrections(tmp_path / "m2", sizes={"train": 40}, annotators={})
    for task, recipe, file, share in (
        ("summarization", "cnn_dailymail_base", "articles/train.jsonl", None),
        ("correction", "bea2019_gec_base", "m2/train.m2", 0.5),
    ):
        out = tmp_path / task
        options = {"recipe": recipe, "vocab_size": 350, "output_dir": out, "bf16": False, "use_cpu": True}
        options |= dict.fromkeys(("train_file", "validation_file", "test_file"), tmp_path / file)
        options |= dict.fromkeys(("do_eval", "do_predict", "predict_with_generate"), False)
        cli.main(["prepare", task, *flags(options | {"validation_share": share})])
        (folder,) = out.glob("train-*/")
        dataset = open_rows(folder)
        assert len(dataset) == 12 if task == "summarization" else 0 < len(dataset) < 40
        assert "source" not in dataset.column_names
        (evaluated,) = out.glob("validation-*/")
        assert "source" in open_rows(evaluated).column_names
