# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Several corpora to train on, several validation sets, and test sources without references."""

import json
import logging
import re
from collections import Counter
from itertools import chain

import pytest
import run_translation
from transformers import AutoTokenizer, TrainingArguments

from modeling_ode_transformer.hub.model_card import run_record
from modeling_ode_transformer.text_files import read_lines
from modeling_ode_transformer.training.subword_dropout import SubwordDropout
from modeling_ode_transformer.training.task import Run
from modeling_ode_transformer.training.tasks import correction, seq2seq, translation

from .runs import SIZES, arguments, losses


PLAIN = dict.fromkeys(f"{split}_{side}_file" for split in SIZES for side in ("source", "target"))
TAG = "<bt>"


def pairs_of(file):
    return [tuple(line.split("\t")) for line in read_lines(file)]


@pytest.fixture(scope="module")
def files(corpus, tmp_path_factory):
    """A corpus of 40 pairs, one of 20, two validation sets, and the sources of the test set."""
    folder = tmp_path_factory.mktemp("files")
    for name, split, part in (
        ("genuine", "train", slice(40)),
        ("back", "train", slice(40, 60)),
        ("dev", "validation", slice(7)),
        ("dev_news", "validation", slice(7, 12)),
    ):
        lines = zip(*(read_lines(corpus / f"{split}.{language}")[part] for language in ("en", "de")))
        (folder / f"{name}.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in lines))
    (folder / "sources.txt").write_bytes((corpus / "test.en").read_bytes())
    return folder


def argv_of(files, out, **values):
    defaults = PLAIN | {"do_eval": True, "do_predict": True, "max_steps": 6, "bleu_tokenize": "char"}
    defaults |= {"eval_strategy": "steps", "eval_steps": 3, "save_strategy": "steps", "save_steps": 3}
    defaults |= {"load_best_model_at_end": True, "metric_for_best_model": "dev_news_loss", "min_target_length": 3}
    defaults |= {"max_tokens_per_batch": 400, "train_sampling_strategy": None, "per_device_train_batch_size": None}
    defaults |= {"lr_scheduler_type": "constant"}
    return [
        *arguments(files, out, **defaults | values),
        *("--train", str(files / "genuine.tsv"), str(files / "back.tsv"), "--train_weights", "1", "2"),
        *("--train_tags", "", TAG, "--validation", str(files / "dev.tsv"), str(files / "dev_news.tsv")),
        *("--test", str(files / "sources.txt"), "--max_words", "200", "--count_characters", "source", "target"),
    ]


@pytest.fixture(scope="module")
def trained(files, tmp_path_factory):
    out = tmp_path_factory.mktemp("trained") / "out"
    return out, run_translation.main(argv_of(files, out))


def test_an_epoch_has_each_pair_as_often_as_its_weight_says_behind_its_tag(files, trained, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(trained[0])
    tag = tokenizer.convert_tokens_to_ids(TAG)
    assert len(tokenizer) == 330 and tag < 330 and tag != tokenizer.unk_token_id
    encoded = lambda text: tuple(tokenizer(text)["input_ids"])  # noqa: E731
    expected = Counter((encoded(source), encoded(target)) for source, target in pairs_of(files / "genuine.tsv"))
    for source, target in pairs_of(files / "back.tsv"):
        expected[(tag, *encoded(source)), encoded(target)] += 2

    data = translation.DataArguments(
        train_file=[str(files / f"{name}.tsv") for name in ("genuine", "back")],
        train_weights=[1, 2],
        train_tags=["", TAG],
        prepared_dir=str(tmp_path),
    )
    noted = {"task": "translation", "data": vars(data), "files": {"train": []}}
    run = Run(translation.TRANSLATION, None, data, TrainingArguments(str(tmp_path), use_cpu=True), arguments=noted)
    run.tokenizers, run.examples = (tokenizer, tokenizer), {"train": translation.read_split(data, "train")}
    rows = seq2seq.encode(run, "train")
    assert Counter((tuple(row["input_ids"]), tuple(row["labels"])) for row in rows) == expected
    assert rows["index"][:] == [*range(60), *range(40, 60)] and trained[1]["train_samples"] == 80
    # Prepared once: other weights need no other data.
    data.train_weights = [3, 1]
    noted["data"] = vars(data)
    assert len(seq2seq.encode(run, "train")) == 140 and len(list(tmp_path.glob("train-*.lock"))) == 1
    assert SubwordDropout(tokenizer, 0.5)([tag, 2], None) == [tag, 2]


def test_each_validation_set_has_the_metrics_of_its_own_and_one_chooses_the_checkpoint(files, trained, tmp_path):
    out, metrics = trained
    state = json.loads((out / "trainer_state.json").read_text())
    name = "eval_dev_news_loss"
    by_update = {each["step"]: each[name] for each in state["log_history"] if name in each}
    assert list(by_update) == [3, 6] and state["best_metric"] == min(by_update.values())
    alone = {"model_name_or_path": out, "config_overrides": None, "do_train": None, "eval_strategy": "no"}
    alone |= {"load_best_model_at_end": None, "metric_for_best_model": None, "do_predict": None}
    for name in ("dev", "dev_news"):
        argv = [*argv_of(files, tmp_path / name, **alone), "--validation", str(files / f"{name}.tsv")]
        own = run_translation.main(argv)
        for metric in ("chrf", "loss", "samples"):
            assert own[f"eval_{metric}"] == pytest.approx(metrics[f"eval_{name}_{metric}"], rel=1e-5), name
        outputs = read_lines(tmp_path / name / "validation_predictions.txt")
        assert outputs == read_lines(out / f"validation_{name}_predictions.txt")
        best, chrf = state["best_global_step"], f"eval_{name}_chrf"
        (during,) = (each[chrf] for each in state["log_history"] if each["step"] == best and chrf in each)
        assert during == pytest.approx(metrics[chrf]) and during > 0
    assert not {"eval_bleu", "eval_loss"} & metrics.keys()
    record = run_record(out)
    assert record["metrics"]["validation_dev"]["chrf"] == metrics["eval_dev_chrf"]
    assert record["data"]["validation_dev_news"] == {"source": ["dev_news.tsv"], "examples": 5}
    assert record["training"]["train_tags"] == ["", TAG]


def test_an_average_is_compared_on_the_set_that_chooses_the_checkpoint(files, tmp_path, caplog):
    """A mean of the same weights has the best checkpoint's score."""
    options = {"max_steps": 2, "eval_steps": 2, "save_steps": 2, "average_last_checkpoints": 1, "do_predict": None}
    with caplog.at_level(logging.INFO, "modeling_ode_transformer"):
        metrics = run_translation.main(argv_of(files, tmp_path, **options))
    (line,) = (each.getMessage() for each in caplog.records if each.getMessage().startswith("Validation "))
    assert line.startswith("Validation dev_news_loss: ") and line.endswith("; kept the best checkpoint")
    scores = re.findall(r"[\d.]+(?= for (?:the mean|the best checkpoint))", line)
    assert [*map(float, scores)] == pytest.approx([metrics["eval_dev_news_loss"]] * 2, rel=1e-6)


def test_sources_without_references_are_only_predicted(corpus, files, trained, tmp_path, caplog):
    out, metrics = trained
    assert metrics["predict_samples"] == 11
    assert not any(name.startswith("predict") and name.endswith(("bleu", "loss", "perplexity")) for name in metrics)
    options = {"model_name_or_path": out, "config_overrides": None, "do_train": None, "do_predict": True}
    with caplog.at_level(logging.INFO, "modeling_ode_transformer"):
        run_translation.main(arguments(corpus, tmp_path / "pairs", **options))
        assert "no references" not in caplog.text
        run_translation.main(arguments(corpus, tmp_path / "lines", **options | {"test_target_file": None}))
    assert "test: there are no references: outputs are written, but not scored" in caplog.text
    folders = (out, tmp_path / "pairs", tmp_path / "lines")
    texts = [(folder / "generated_predictions.txt").read_text() for folder in folders]
    assert texts[0] == texts[1] == texts[2]


def test_a_stopped_training_of_several_corpora_goes_on_as_if_it_never_stopped(files, trained, tmp_path):
    options = {"do_eval": None, "do_predict": None, "eval_strategy": "no", "load_best_model_at_end": None}
    run_translation.main(argv_of(files, tmp_path, max_steps=3, **options))
    run_translation.main(argv_of(files, tmp_path, max_steps=6, **options))
    assert losses(tmp_path) == losses(trained[0]) and len(losses(tmp_path)) == 6
    for change, text in (
        (["--train_weights", "1", "3"], r"train_weights=\[1, 3\] in place of \[1, 2\]"),
        (["--train_tags", "", "<other>"], "train_tags="),
        (["--train", str(files / "back.tsv"), str(files / "genuine.tsv")], r"train file 1=.*train file 2="),
    ):
        with pytest.raises(ValueError, match=f"belongs to another training: .*{text}"):
            run_translation.main([*argv_of(files, tmp_path, max_steps=8, **options), *change])


def test_what_does_not_fit_is_refused(files, trained, tmp_path):
    both = [str(files / "genuine.tsv"), str(files / "back.tsv")]
    for values, message in (
        ({"train_weights": [1, 2, 3]}, r"--train_weights 1 2 3: 3 for 2 corpora \(.*genuine.tsv, .*back.tsv\): g"),
        ({"train_tags": [TAG]}, "--train_tags '<bt>': 1 for 2 corpora"),
    ):
        with pytest.raises(ValueError, match=message):
            translation.read_split(translation.DataArguments(train_file=both, **values), "train")
    with pytest.raises(ValueError, match="--train_weights 0 1: each is how many times an epoch reads a corpus"):
        translation.DataArguments(train_file=both, train_weights=[0, 1])
    (tmp_path / "dev.tsv").write_text("a\tb\n")
    same = [str(files / "dev.tsv"), str(tmp_path / "dev.tsv")]
    with pytest.raises(ValueError, match="two have the same name, without folders and ending"):
        translation.read_split(translation.DataArguments(validation_file=same), "validation")
    (tmp_path / "empty.tsv").write_text("")
    argv = argv_of(files, tmp_path / "none", tokenizer_name=trained[0])
    with pytest.raises(ValueError, match=r"empty\.tsv has no pairs to train on: leave it out"):
        run_translation.main([*argv, "--train", str(files / "genuine.tsv"), str(tmp_path / "empty.tsv")])
    for tag in ("news", "</s>"):
        with pytest.raises(ValueError, match=f"--train_tags {tag}: a tag is one piece wherever it stands in a text"):
            run_translation.main([*argv_of(files, tmp_path / "out"), "--train_tags", "", tag])
    argv = [*argv_of(files, tmp_path / "out", tokenizer_name=trained[0]), "--train_tags", "", "<other>"]
    with pytest.raises(ValueError, match=r"--train_tags <other>: not a piece of the vocabulary of .*out: add it"):
        run_translation.main(argv)


def test_files_of_corrections_are_corpora_too(tmp_path):
    (tmp_path / "a.tsv").write_text("a  b\tA b\n")
    for name in ("lines", "first", "second"):
        (tmp_path / name).write_text(f"{name}\n")
    args = correction.DataArguments(
        train_file=[str(tmp_path / "a.tsv")],
        train_source_file=str(tmp_path / "lines"),
        train_reference_files=[str(tmp_path / name) for name in ("first", "second")],
        train_weights=[1, 2],
    )
    corpora = [list(read()) for read in correction.read_split(args, "train").reads]
    assert corpora == [[("a b", "A b")], [("lines", "first"), ("lines", "second")]]
    assert list(correction.read_split(args, "train")) == list(chain(*corpora))
