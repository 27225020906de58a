# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Translation, from pairs to a saved model."""

import dataclasses
import gzip
import json
import shutil
from unittest import mock

import datasets
import pyarrow.parquet
import pytest
import run_translation
import sacrebleu
import torch
import train_tokenizer
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

from modeling_ode_transformer.inference.tokenizers import load_tokenizers
from modeling_ode_transformer.text_files import read_aligned_lines, read_lines
from modeling_ode_transformer.training.run import run as run_task
from modeling_ode_transformer.training.samplers import LengthGroupedSampler
from modeling_ode_transformer.training.tasks import seq2seq_texts, translation

from .runs import MODEL, SIZES, arguments, assert_logged, training_pairs


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
    longest = max(len(tokenizer(line)["input_ids"]) for line in read_lines(corpus / "train.en"))
    assert model.config.trained_source_length == longest > 10
    settings = model.generation_config
    assert (settings.num_beams, settings.length_penalty, settings.early_stopping) == (3, 0.6, True)
    assert settings.max_length == 41  # with the start mark
    predictions = read_lines(output_dir / "generated_predictions.txt")
    for source, prediction in zip(read_lines(corpus / "test.en"), predictions, strict=True):
        output = model.generate(**tokenizer(source, return_tensors="pt"))
        assert tokenizer.decode(output[0], skip_special_tokens=True).strip() == prediction
    for task in ("translation", None):
        translator = pipeline(task, model=str(output_dir), trust_remote_code=True)
        outputs = translator(read_lines(corpus / "test.en"))
        assert [output["translation_text"] for output in outputs] == predictions
    with pytest.raises(KeyError, match="summarization has been removed"):
        pipeline("summarization", model=str(output_dir), trust_remote_code=True)


def test_a_trained_model_of_another_package_opens_as_a_pipeline(corpus, tmp_path):
    out = tmp_path / "out"
    run_translation.main(arguments(corpus, out, model_type="m2m_100", do_predict=True, num_beams=1, max_steps=1))
    outputs = pipeline("translation", model=str(out), trust_remote_code=True)(read_lines(corpus / "test.en"))
    texts = [output["translation_text"] for output in outputs]
    assert texts == read_lines(out / "generated_predictions.txt") and any(texts)


METRIC = """
import datasets
import evaluate


class Lengths(evaluate.Metric):
    def _info(self):
        text = datasets.Value("string")
        features = datasets.Features({"predictions": text, "references": text})
        return evaluate.MetricInfo(description="", citation="", features=features)

    def _compute(self, predictions, references):
        return {"characters": sum(map(len, predictions)), "of_references": sum(map(len, references))}
"""


def test_metrics_of_evaluate_choose_the_best_checkpoint(corpus, tmp_path, evaluate_modules):
    """Any file that `evaluate.load` opens; its numbers are logged, and name the best checkpoint."""
    file = tmp_path / "lengths.py"
    file.write_text(METRIC)
    options = {"metrics": file, "do_eval": True, "eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps"}
    options |= {"save_steps": 1, "load_best_model_at_end": True, "metric_for_best_model": "lengths_characters"}
    options |= {"max_steps": 3}
    run_translation.main(arguments(corpus, tmp_path / "out", **options, num_beams=1, do_predict=True))
    results = json.loads((tmp_path / "out" / "all_results.json").read_text())
    outputs = read_lines(tmp_path / "out" / "generated_predictions.txt")
    assert results["predict_lengths_characters"] == sum(map(len, outputs))
    assert results["predict_lengths_of_references"] == sum(map(len, read_lines(corpus / "test.de")))
    state = json.loads((tmp_path / "out" / "trainer_state.json").read_text())
    logged = [entry["eval_lengths_characters"] for entry in state["log_history"] if "eval_loss" in entry]
    assert len(logged) == 3 and state["best_metric"] == max(logged)
    with pytest.raises(FileNotFoundError, match="typo"):  # before the training
        run_translation.main(arguments(corpus, tmp_path / "other", metrics=tmp_path / "typo.py"))
    assert not (tmp_path / "other").exists()


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
    assert_logged(logged, loss, model)


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


def test_a_saved_search_is_used_where_none_is_asked_for(run, corpus, tmp_path):
    shutil.copytree(run[0], tmp_path / "model", ignore=shutil.ignore_patterns("checkpoint-*"))
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model")
    model.generation_config.update(num_beams=2, length_penalty=0.3, min_length=6, no_repeat_ngram_size=3, max_length=9)
    model.generation_config.save_pretrained(tmp_path / "model")
    options = {"model_name_or_path": tmp_path / "model", "config_overrides": None, "do_train": None}
    options |= {"do_predict": True, "num_beams": None, "length_penalty": None}
    metrics = run_translation.main(arguments(corpus, tmp_path / "out", **options))
    noted = "num_beams 2, length_penalty 0.3, max_length 9, min_length 6, no_repeat_ngram_size 3"
    assert metrics["predict_generation"] == noted
    outputs = read_lines(tmp_path / "out" / "generated_predictions.txt")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    source = tokenizer(read_lines(corpus / "test.en")[0], return_tensors="pt")
    settings = {"num_beams": 2, "length_penalty": 0.3, "min_length": 6, "no_repeat_ngram_size": 3, "max_length": 9}
    output = AutoModelForSeq2SeqLM.from_pretrained(run[0]).generate(**source, **settings)
    assert outputs[0] == tokenizer.decode(output[0], skip_special_tokens=True).strip()


def test_bleu_of_tokenized_text_by_name():
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
    task = dataclasses.replace(translation.TRANSLATION, score=mock.Mock(side_effect=OSError("no ERRANT")))
    options = {"model_name_or_path": run[0], "config_overrides": None, "do_train": None, "do_predict": True}
    with pytest.raises(OSError, match="no ERRANT"):
        run_task(task, arguments(corpus, tmp_path, **options))
    written = (tmp_path / "generated_predictions.txt").read_text(encoding="utf-8")
    assert written == (run[0] / "generated_predictions.txt").read_text(encoding="utf-8")


def test_a_new_model_has_the_configuration_and_the_tokenizers_asked_for(run, corpus, tmp_path):
    AutoConfig.for_model("ode_transformer", **MODEL, activation_function="gelu").save_pretrained(tmp_path / "config")
    options = {"config_overrides": None, "config_name": tmp_path / "config", "prepared_dir": tmp_path / "prepared"}
    options |= {"tokenizer_model_type": "unigram", "tokenizer_options": "hard_vocab_limit=false"}
    options |= {"normalization": "moses_en,nfkc"}
    run_translation.main(arguments(corpus, tmp_path / "one", max_steps=1, tokenizer_samples=30, **options))
    config = AutoConfig.from_pretrained(tmp_path / "one").to_dict()
    assert config["activation_function"] == "gelu" and config.items() >= MODEL.items()
    assert json.loads((tmp_path / "one" / "tokenizer.json").read_text())["model"]["type"] == "Unigram"
    ids = [AutoTokenizer.from_pretrained(tmp_path / "one")(text)["input_ids"] for text in ("one\u00a0two", "one two")]
    assert ids[0] == ids[1]
    (noted,) = (tmp_path / "prepared").glob("tokenizer-*/prepared.json")
    assert json.loads(noted.read_text())["pairs"] == 30

    options = {"tokenizer_name": tmp_path / "one", "target_tokenizer_name": run[0]}
    run_translation.main(arguments(corpus, tmp_path / "two", max_steps=1, **options))
    folders = ("one", "two", "two/target_tokenizer")
    one, source, target = (AutoTokenizer.from_pretrained(tmp_path / name).get_vocab() for name in folders)
    assert source == one != target == AutoTokenizer.from_pretrained(run[0]).get_vocab()


def test_tokenizer_per_language(corpus, tmp_path):
    options = {"joint_tokenizer": False, "target_vocab_size": 320, "do_predict": True}
    options |= {"max_source_length": 12, "max_target_length": 12}
    trained = run_translation.main(arguments(corpus, tmp_path / "run", **options))
    config = AutoConfig.from_pretrained(tmp_path / "run")
    assert (config.vocab_size, config.decoder_vocab_size) == (330, 320)
    assert not config.share_encoder_decoder_embeddings
    assert len(AutoTokenizer.from_pretrained(tmp_path / "run")) == 330
    assert len(AutoTokenizer.from_pretrained(tmp_path / "run" / "target_tokenizer")) == 320
    for file in (tmp_path / "run").rglob("tokenizer.json"):
        saved = json.loads(file.read_text())
        assert saved["truncation"] is saved["padding"] is None, "texts were cut here, not those of other users"

    options = {"model_name_or_path": tmp_path / "run", "config_overrides": None, "do_train": None, "do_predict": True}
    options |= {"max_source_length": 12, "max_target_length": 12}
    reloaded = run_translation.main(arguments(corpus, tmp_path / "again", **options))
    assert reloaded["predict_bleu"] == trained["predict_bleu"]
    assert reloaded["predict_nll_loss"] == pytest.approx(trained["predict_nll_loss"], rel=1e-5)
    for folder in ("run", "again"):
        assert (tmp_path / folder / "generated_predictions.txt").exists()
    shutil.copytree(tmp_path / "run", tmp_path / "lost", ignore=shutil.ignore_patterns("target_tokenizer"))
    with pytest.raises(ValueError, match="lost has its own vocabulary for the target, but no folder target_tok"):
        options["model_name_or_path"] = tmp_path / "lost"
        run_translation.main(arguments(corpus, tmp_path / "other", **options))


def test_all_formats_read_alike(corpus, tmp_path, monkeypatch):
    sources, targets = (read_lines(corpus / f"test.{language}") for language in ("en", "de"))
    # Other characters that Python takes for line ends are text, and so is a lone carriage return.
    sources[0] += " a\u2028b\x85c\rd"
    pairs = list(zip(sources, targets))
    nested = [json.dumps({"translation": {"en": source, "de": target}}) for source, target in pairs]
    flat = [json.dumps({"en": source, "de": target}, ensure_ascii=False) for source, target in pairs]
    tables = {"t.json": nested, "t.jsonl": flat, "t.en": sources, "t.de": targets}
    tables["t.tsv"] = [f"{source}\t{target}" for source, target in pairs]
    for name, lines in tables.items():
        data = "".join(f"{line}\n" for line in lines).encode()
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n"))
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(data))
    pyarrow.parquet.write_table(pyarrow.table({"en": sources, "de": targets}), tmp_path / "t.parquet")
    languages = {"source_lang": "en", "target_lang": "de"}
    for name in ("t.parquet", "t.tsv", "t.tsv.gz", "t.json", "t.json.gz", "t.jsonl", "t.jsonl.gz"):
        args = translation.DataArguments(test_file=str(tmp_path / name), **languages)
        assert list(translation.read_split(args, "test")) == pairs, name
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
        list(translation.read_split(args, "train"))


def test_pairs_with_an_empty_side(tmp_path, caplog):
    (tmp_path / "a.tsv").write_text("one\teins\n\tzwei\nthree\t \nfour\tvier\n")
    args = translation.DataArguments(train_file=str(tmp_path / "a.tsv"), test_file=str(tmp_path / "a.tsv"))
    assert training_pairs(translation.read_split(args, "train")) == [("one", "eins"), ("four", "vier")]
    assert len(translation.read_split(args, "test")) == 4
    assert "2 of 4 pairs have an empty side; they are kept" in caplog.text


def test_long_sentences_are_cut_and_counted(run, caplog):
    tokenizer = AutoTokenizer.from_pretrained(run[0])
    pairs = [("one", "eins"), ("one " * 50, "eins"), ("two", "zwei " * 50)]
    args = translation.DataArguments(max_source_length=30, max_target_length=20)
    encoded = seq2seq_texts.encode_split(pairs, "test", tokenizer, tokenizer, args).sort("index")
    assert [len(ids) for ids in encoded["input_ids"]][1] == 30
    assert [len(ids) for ids in encoded["labels"]][2] == 20
    assert encoded["input_ids"][1][-1] == encoded["labels"][2][-1] == tokenizer.eos_token_id
    assert "1 of 3 sources were cut to 30 tokens (--max_source_length)" in caplog.text
    assert "1 of 3 targets were cut to 20 tokens (--max_target_length)" in caplog.text


def test_tokenizer_larger_than_the_model_is_refused(run, corpus, tmp_path):
    train_tokenizer.main(
        ["--files", *(str(corpus / f"train.{language}") for language in ("en", "de"))]
        + ["--vocab_size", "400", "--output_dir", str(tmp_path / "large")]
    )
    options = {"model_name_or_path": run[0], "tokenizer_name": tmp_path / "large", "config_overrides": None}
    with pytest.raises(ValueError, match="source tokenizer has 400 tokens, but the model embeds only 330"):
        run_translation.main(arguments(corpus, tmp_path / "out", **options))


def test_train_tokenizer_for_each_language(corpus, tmp_path, capsys):
    output_dir = tmp_path / "tokenizers"
    argv = ["--files", str(corpus / "train.en"), "--target_files", str(corpus / "train.de"), "--model_type", "unigram"]
    argv += ["--vocab_size", "310", "--target_vocab_size", "300", "--output_dir", str(output_dir)]
    train_tokenizer.main(argv + ["--options", "split_digits=true"])
    source, target = load_tokenizers(str(output_dir))
    assert (len(source), len(target)) == (310, 300)
    assert "310 pieces (unigram) from 60 lines" in capsys.readouterr().out
    with pytest.raises(ValueError, match="is not empty"):
        train_tokenizer.main(argv)
    with pytest.raises(ValueError, match="--target_vocab_size 300 needs --target_files: add it"):
        train_tokenizer.main([*argv[:2], "--target_vocab_size", "300", "--output_dir", str(tmp_path / "one")])
    with pytest.raises(ValueError, match="vocab_size=0: SentencePiece cannot train on these texts"):
        train_tokenizer.main([*argv[:-4], "--target_vocab_size", "0", "--output_dir", str(tmp_path / "one")])
    with pytest.raises(ValueError, match="--options vocab_size=9: give --vocab_size instead"):
        train_tokenizer.main([*argv, "--output_dir", str(tmp_path / "one"), "--options", "vocab_size=9"])
    with pytest.raises(FileNotFoundError, match="No file"):
        train_tokenizer.main([*argv, "--output_dir", str(tmp_path / "one"), "--target_files", "nowhere.de"])
    assert not (tmp_path / "one").exists()


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
