# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Data that are prepared once, in shards."""

import json
import logging
import os
import random

import datasets
import pyarrow.parquet
import pytest
import run_translation

from modeling_ode_transformer import OdeTransformerTokenizer, cli
from modeling_ode_transformer.text_files import read_lines
from modeling_ode_transformer.training import preparation
from modeling_ode_transformer.training.cleaning import Cleaning
from modeling_ode_transformer.training.encoding import PairEncoder, TextEncoder, tokenizer_hash
from modeling_ode_transformer.training.preparation import (
    open_pairs,
    prepare_pairs,
    prepared_folder,
    sample_pairs,
    save_once,
)
from modeling_ode_transformer.training.smoke import articles, learner_sentences
from modeling_ode_transformer.training.smoke.number_names import write_corpus
from modeling_ode_transformer.training.tasks import translation
from modeling_ode_transformer.training.tasks.seq2seq_texts import encode_split

from .runs import arguments, losses


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """20,000 pairs, a tenth of them twice and some with an empty side, and their file."""
    folder = tmp_path_factory.mktemp("texts")
    write_corpus(folder, {"train": 300})
    known = list(zip(*(read_lines(folder / f"train.{language}") for language in ("en", "de"))))
    generator = random.Random(1)
    pairs = [tuple(map(" and ".join, zip(*generator.choices(known, k=3)))) for _ in range(20_000)]
    for i in range(0, 20_000, 1000):
        pairs[i] = (pairs[i][0], " ")
    pairs[10_000:12_000] = pairs[2000:4000]
    path = folder / "pairs.tsv"
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    return pairs, str(path)


@pytest.fixture(scope="module")
def tokenizer(texts):
    return OdeTransformerTokenizer.train([text for pair in texts[0][:300] for text in pair], 330)


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr(preparation, "SHARD_PAIRS", 3000)


def training_pairs(path, **values):
    return translation.read_split(translation.DataArguments(train_file=path, **values), "train")


def rows(dataset):
    return dataset.to_dict()


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("drop_duplicates", [False, True])
def test_shards_hold_what_one_process_encodes_in_memory(
    num_workers, drop_duplicates, texts, tokenizer, small_shards, tmp_path, caplog
):
    caplog.set_level(logging.INFO)
    pairs, path = texts
    encoder = PairEncoder(tokenizer, tokenizer, 256, 20)
    cleaning = Cleaning(drop_duplicates=drop_duplicates)
    counts = prepare_pairs(training_pairs(path), tmp_path / "out", {}, encoder, cleaning, num_workers)
    dataset = open_pairs(tmp_path / "out")
    seen = set()
    places = [i for i, pair in enumerate(pairs) if pair[1].strip() and not (pair in seen or seen.add(pair))]
    if not drop_duplicates:
        places = [i for i, pair in enumerate(pairs) if pair[1].strip()]
    assert len(list((tmp_path / "out").glob("*.arrow"))) == 7
    assert "dropped 20 of 20000 pairs with an empty side" in caplog.text
    if num_workers == 2 and drop_duplicates:
        assert "| drop_duplicates | " in caplog.text
    args = translation.DataArguments(max_source_length=256, max_target_length=20)
    expected = encode_split([pairs[i] for i in places], "validation", tokenizer, tokenizer, args).sort("index")
    found = rows(dataset)
    assert found.pop("index") == places
    assert found == {name: expected[name][:] for name in found}
    assert set(found) == {"input_ids", "labels", "source_length", "target_length", "length"}  # no texts
    assert counts["pairs"] == len(places) and counts["target_tokens"] == sum(expected["target_length"])
    assert counts["targets_cut"] > 0 and counts["sources_cut"] == 0
    assert dataset.features["input_ids"].feature.dtype == "uint16"


def test_a_killed_preparation_goes_on_with_the_shards_that_are_done(
    texts, tokenizer, small_shards, tmp_path, monkeypatch
):
    """Killed in the middle of the fourth shard; duplicates of pairs in shards that are done are found."""
    encoder, folder = PairEncoder(tokenizer, tokenizer, 256, 256), tmp_path / "out"
    cleaning = Cleaning(drop_duplicates=True)
    prepare_pairs(training_pairs(texts[1]), tmp_path / "whole", {}, encoder, cleaning, 1)
    written = []
    original = preparation.Worker.write

    def write(self, chunk, path):
        if len(written) == 3:
            path.with_name(path.name + preparation.UNFINISHED).write_bytes(b"half")
            raise KeyboardInterrupt
        written.append(path.name)
        return original(self, chunk, path)

    monkeypatch.setattr(preparation.Worker, "write", write)
    with pytest.raises(KeyboardInterrupt):
        prepare_pairs(training_pairs(texts[1]), folder, {}, encoder, cleaning, 1)
    assert not (folder / preparation.PREPARED).exists()
    times = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.arrow")}
    assert len(times) == 3
    written[:] = [None] * 4
    counts = prepare_pairs(training_pairs(texts[1]), folder, {}, encoder, cleaning, 1)
    assert len(written) == 4 + 4 and times.keys().isdisjoint(written)
    assert all((folder / name).stat().st_mtime_ns == time for name, time in times.items())
    assert rows(open_pairs(folder)) == rows(open_pairs(tmp_path / "whole"))
    assert counts == json.loads((tmp_path / "whole" / preparation.PREPARED).read_text())["counts"]
    assert not list(folder.glob(f"*{preparation.UNFINISHED}"))
    # Complete: nothing is read.
    counts_again = prepare_pairs(training_pairs("/no/such.tsv"), folder, {}, encoder, cleaning, 1)
    assert counts_again == counts


def test_a_sample_of_pairs_is_a_random_one_and_the_same_one(texts, small_shards):
    pairs = training_pairs(texts[1])
    sample = sample_pairs(pairs, Cleaning(), 1000, 1)
    assert len(sample) == 1000 and sample == sample_pairs(pairs, Cleaning(), 1000, 1)
    full = [pair for pair in texts[0] if pair[1].strip()]
    assert set(sample) <= set(full)
    places = sorted(map(full.index, sample))
    assert 0.4 < sum(place > len(full) / 2 for place in places) / len(places) < 0.55  # a tenth are found earlier
    assert sample_pairs(pairs, Cleaning(), 10**6, 1) == full


ODD = ["", " a", "a ", "a  b", "<s> a", "x</s>y", "▁a b", "é", "e\u0301 ", "\u00a0x", "a\u3000b", "\t a", "日本語"]
ODD += ["<0x41>", "a\nb", "😀 ok", "½ x", "\ufeffx y", "ﬁne"]


@pytest.mark.parametrize(
    "model_type, options, is_by_words",
    [
        ("bpe", {}, True),
        ("bpe", {"normalization_rule_name": "nmt_nfkc", "remove_extra_whitespaces": True}, True),
        ("bpe", {"byte_fallback": False}, True),
        ("bpe", {"add_dummy_prefix": False}, False),
        ("bpe", {"split_by_whitespace": False}, False),
        ("unigram", {}, False),
    ],
)
def test_ids_by_words_are_those_of_the_tokenizer(model_type, options, is_by_words, texts):
    sentences = [text for pair in texts[0][:200] for text in pair]
    tokenizer = OdeTransformerTokenizer.train([*sentences, *ODD], 400, model_type, **options)
    encoder, generator = TextEncoder(tokenizer, 12), random.Random(0)
    assert (encoder.words is not None) == is_by_words
    parts = ["a", "one", " ", "  ", "<s>", "é", "ﬁ", "\u0301", "▁", "\u00a0", "½", "한"]
    lines = sentences[:50] + ODD + ["".join(generator.choices(parts, k=9)) for _ in range(300)]
    for _ in range(2):  # new words, then known ones
        ids, cut = encoder(lines)
        assert ids == tokenizer(lines, truncation=True, max_length=12)["input_ids"]
        assert cut == sum(len(row) > 12 for row in tokenizer(lines)["input_ids"])


def test_the_hash_of_a_tokenizer_is_of_what_it_does(texts, tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    again = OdeTransformerTokenizer.from_pretrained(tmp_path)
    again(["a"], truncation=True, max_length=4, padding=True)
    assert tokenizer_hash(again) == tokenizer_hash(tokenizer)
    other = OdeTransformerTokenizer.train([text for pair in texts[0][:300] for text in pair], 331)
    assert tokenizer_hash(other) != tokenizer_hash(tokenizer)


def test_parquet_and_tsv_are_read_alike(texts, tmp_path):
    sources, targets = zip(*texts[0][:50])
    pyarrow.parquet.write_table(pyarrow.table({"en": sources, "de": targets}), tmp_path / "a.parquet")
    found = training_pairs(str(tmp_path / "a.parquet"), source_lang="en", target_lang="de")
    assert list(found) == texts[0][:50]
    (tmp_path / "b.parquet").write_text("PAR1")
    with pytest.raises(ValueError, match=r"b\.parquet is not a complete parquet file"):
        list(training_pairs(str(tmp_path / "b.parquet"), source_lang="en", target_lang="de"))
    with pytest.raises(FileNotFoundError, match=r"c\.parquet"):
        list(training_pairs(str(tmp_path / "c.parquet"), source_lang="en", target_lang="de"))


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
    """Another training of the same data, too; not one with another rule or other texts. Their losses are those of
    data that were prepared anew."""
    options = {"prepared_dir": tmp_path / "data", "max_tokens_per_batch": 300, "max_steps": 3, "do_eval": True}
    options |= {"train_sampling_strategy": None, "per_device_train_batch_size": None}
    run_translation.main(arguments(corpus, tmp_path / "first", **options))
    names = {path.name for path in (tmp_path / "data").iterdir() if path.is_dir()}
    assert sorted(name.split("-")[0] for name in names) == ["tokenizer", "train", "validation"]
    monkeypatch.setattr(preparation, "write_chunk", None)
    monkeypatch.setattr(OdeTransformerTokenizer, "train", None)
    run_translation.main(arguments(corpus, tmp_path / "second", **options | {"num_workers": 2}))
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
    monkeypatch.setattr(preparation, "write_chunk", None)
    options["prepared_dir"] = tmp_path / "data-bin"
    run_translation.main(arguments(corpus, tmp_path / "fourth", **options))
    assert losses(tmp_path / "fourth") == losses(tmp_path / "first")


def test_articles_and_corrections_are_prepared_too(tmp_path, capsys):
    """By recipes, from jsonl and M2 files; what is wrong with a file ends the command with one line."""
    for name in ("articles", "m2"):
        (tmp_path / name).mkdir()
    articles.write_corpus(tmp_path / "articles", {"train": 12})
    learner_sentences.write_corpus(tmp_path / "m2", sizes={"train": 40}, annotators={})
    calls = {
        "summarization": ["--recipe", "cnn_dailymail_base", "--train", str(tmp_path / "articles" / "train.jsonl")],
        "correction": ["--recipe", "bea2019_gec_base", "--train", str(tmp_path / "m2" / "train.m2")],
    }
    for task, argv in calls.items():
        out = tmp_path / task
        options = ["--vocab_size", "350", "--output_dir", str(out), "--bf16", "False", "--use_cpu", "True"]
        options += ["--do_eval", "False", "--do_predict", "False", "--predict_with_generate", "False"]
        options += ["--validation_share", "0.5"] if task == "correction" else ["--validation_file", argv[-1]]
        options += ["--test_file", argv[-1]]
        if task == "correction":
            options += ["--validation_file", argv[-1]]
        cli.main(["prepare", task, *argv, *options])
        (folder,) = out.glob("train-*/")
        dataset = open_pairs(folder)
        assert len(dataset) == 12 if task == "summarization" else 0 < len(dataset) < 40
        assert "source" not in dataset.column_names
        (evaluated,) = out.glob("validation-*/")
        assert "source" in datasets.load_from_disk(str(evaluated / "dataset")).column_names
    with pytest.raises(SystemExit):
        cli.main(["prepare", "translation", "--train", "no.tsv", "--output_dir", str(tmp_path / "x")])
    assert "no.tsv" in capsys.readouterr().err


def test_other_processes_map_the_shards(texts, tokenizer, tmp_path):
    """Nothing of the columns is in the memory of a process that opens them."""
    encoder = PairEncoder(tokenizer, tokenizer, 256, 256)
    prepare_pairs(training_pairs(texts[1]), tmp_path / "out", {}, encoder, Cleaning(), 1)
    dataset = open_pairs(tmp_path / "out")
    assert isinstance(dataset.data, datasets.table.MemoryMappedTable)
    folder = prepared_folder(tmp_path, "train", {"a": 1})
    assert folder == prepared_folder(tmp_path, "train", {"a": 1}) != prepared_folder(tmp_path, "train", {"a": 2})


def test_each_side_keeps_its_own_limit(texts, tokenizer):
    """A source that is cut comes before words and texts that the tokenizer itself reads: a long word, two spaces."""
    source, target = (" ".join(texts[0][i][side] for i in range(9)) for i, side in ((0, 0), (0, 1)))
    encoder = PairEncoder(tokenizer, tokenizer, 10, 4000)
    for text in (target.replace(" ", ""), target.replace(" ", "  ")):
        columns, cut = encoder([source], [text])
        assert cut == {"source": 1, "target": 0} and len(columns["input_ids"][0]) == 10
        assert columns["labels"].to_pylist() == [tokenizer(text_target=text)["input_ids"]]
        assert len(columns["labels"][0]) > 10


def test_data_whose_note_was_not_written_are_saved_again(tmp_path):
    """As after a kill between the two."""
    for values in ([1, 2], [3]):
        found = save_once(tmp_path / "data", {}, lambda: datasets.Dataset.from_dict({"a": values}))  # noqa: B023
        assert found["a"][:] == values
        (tmp_path / "data" / preparation.PREPARED).unlink()


def test_rules_that_leave_no_pair_are_named(texts):
    with pytest.raises(ValueError, match=r"no pair to train on \(20000 lines read, .*\d+ removed by max_words 0"):
        sample_pairs(training_pairs(texts[1]), Cleaning(max_words=0), 10, 1)
