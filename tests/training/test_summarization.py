# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Summarization: sentences through tokenization, scores of what is written, the search, and what is refused."""

import json

import datasets
import pytest
import run_summarization
from rouge_score.rouge_scorer import RougeScorer
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

from modeling_ode_transformer.metrics.rouge import rouge
from modeling_ode_transformer.text_files import read_lines
from modeling_ode_transformer.training.recipe_files import RECIPES
from modeling_ode_transformer.training.tasks import seq2seq_texts, summarization

from .runs import SMALL, flags
from .sentences import write_articles


RECIPE = str(RECIPES / "cnn_dailymail_base.json")
SHORTEST, LONGEST = 20, 30


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_articles(folder, {"train": 300, "validation": 4, "test": 20})
    return folder


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    """Output folder and metrics of a small run of the recipe with outputs of 20 to 30 tokens."""
    output_dir = tmp_path_factory.mktemp("run") / "output"
    # A start and an end mark besides.
    options = SMALL | {"max_steps": 40, "output_dir": output_dir}
    options |= {"min_target_length": SHORTEST, "generation_max_length": LONGEST + 2}
    options |= {f"{split}_file": data / f"{split}.jsonl" for split in ("train", "validation", "test")}
    return output_dir, run_summarization.main([RECIPE, *flags(options)])


def read_test_file(data):
    return [json.loads(line) for line in read_lines(data / "test.jsonl")]


def test_scores_are_those_of_the_written_predictions(run, data):
    """Computed by rouge-score itself, from files alone, over sentences split at ". ", with stemming."""
    output_dir, metrics = run
    predictions = read_lines(output_dir / "generated_predictions.txt")
    records = read_test_file(data)
    assert len(predictions) == len(records) == 20 and all(predictions)
    scorer = RougeScorer(["rouge1", "rouge2", "rougeLsum"], use_stemmer=True)
    results = [
        scorer.score(record["highlights"].replace("\n", " ").replace(". ", ".\n"), text.replace(". ", ".\n"))
        for record, text in zip(records, predictions)
    ]
    for name in ("rouge1", "rouge2", "rougeLsum"):
        expected = 100 * sum(result[name].fmeasure for result in results) / len(results)
        assert metrics[f"predict_{name}"] == pytest.approx(expected, abs=1e-9) and expected > 1
    assert "sentences:period" in metrics["predict_rouge_convention"]


def test_the_folder_opens_as_a_pipeline(run, data):
    output_dir, _ = run
    article = " ".join(read_test_file(data)[0]["article"].split())
    (output,) = pipeline("summarization", model=str(output_dir), trust_remote_code=True)(article)
    assert output["summary_text"] == read_lines(output_dir / "generated_predictions.txt")[0]


def test_sentences_survive_the_tokenizer(run, data):
    """A summary that went through the tokenizer as an output does has a full score, and in another order of its
    sentences too: ROUGE-L of summaries goes by sentences. Without the split at ". " it would not."""
    output_dir, _ = run
    tokenizer = AutoTokenizer.from_pretrained(output_dir)
    args = summarization.DataArguments(test_file=str(data / "test.jsonl"))
    pairs = summarization.read_split(args, "test")
    dataset = seq2seq_texts.encode_split(pairs, "test", tokenizer, tokenizer, args)
    texts = tokenizer.batch_decode(dataset["labels"][:], skip_special_tokens=True)
    assert summarization.score(texts, dataset, args, "test")["rougeLsum"] == pytest.approx(100)
    reordered = [" ".join(f"{each} ." for each in text.removesuffix(" .").split(" . ")[::-1]) for text in texts]
    assert reordered != texts
    assert summarization.score(reordered, dataset, args, "test")["rougeLsum"] == pytest.approx(100)
    assert rouge(reordered, dataset["target"][:], sentences="newline")["rougeLsum"] < 99


def test_search_is_that_of_the_recipe(run, data):
    """Saved for generate(): beams, lengths, no repeated trigram; and the outputs keep to it."""
    output_dir, _ = run
    tokenizer = AutoTokenizer.from_pretrained(output_dir)
    model = AutoModelForSeq2SeqLM.from_pretrained(output_dir)
    settings = model.generation_config
    assert (settings.length_penalty, settings.no_repeat_ngram_size, settings.early_stopping) == (2.0, 3, True)
    predictions = read_lines(output_dir / "generated_predictions.txt")
    for record, prediction in list(zip(read_test_file(data), predictions))[:8]:
        inputs = tokenizer(record["article"], return_tensors="pt", truncation=True, max_length=500)
        ids = model.generate(**inputs)[0].tolist()
        assert tokenizer.decode(ids, skip_special_tokens=True).strip() == prediction
        assert ids[0] == model.config.decoder_start_token_id
        tokens = ids[1 : ids.index(tokenizer.eos_token_id, 1)] if tokenizer.eos_token_id in ids[1:] else ids[1:]
        assert SHORTEST <= len(tokens) <= LONGEST + 1
        trigrams = list(zip(tokens, tokens[1:], tokens[2:]))
        assert len(set(trigrams)) == len(trigrams)


def test_formats_read_alike(tmp_path, monkeypatch):
    """Line ends become spaces; other characters that Python takes for line ends stay."""
    records = [
        {"id": 1, "article": "One .\nTwo  three .\r\n\nFour\u2028five .", "highlights": "One .\nFour ."},
        {"id": 2, "article": " Six .", "highlights": "Six !\nSeven .\n"},
    ]
    expected = [("One . Two  three . Four\u2028five .", "One . Four ."), ("Six .", "Six ! Seven .")]
    text = "".join(f"{json.dumps(record, ensure_ascii=False)}\n" for record in records)
    (tmp_path / "test.jsonl").write_text(text, encoding="utf-8")
    args = summarization.DataArguments(test_file=str(tmp_path / "test.jsonl"))
    assert summarization.read_split(args, "test") == expected

    renamed = text.replace('"article"', '"document"').replace('"highlights"', '"summary"')
    (tmp_path / "renamed.jsonl").write_text(renamed, encoding="utf-8")
    columns = {"article_column": "document", "summary_column": "summary"}
    args = summarization.DataArguments(test_file=str(tmp_path / "renamed.jsonl"), **columns)
    assert summarization.read_split(args, "test") == expected

    hub = tmp_path / "hub"
    hub.mkdir()
    (hub / "test.jsonl").write_text(text, encoding="utf-8")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    args = summarization.DataArguments(dataset_name=str(hub))
    assert summarization.read_split(args, "test") == expected


def test_files_without_articles_are_named_with_their_line(tmp_path):
    with pytest.raises(ValueError, match="No train data: give --train_file or"):
        summarization.read_split(summarization.DataArguments(), "train")
    (tmp_path / "bad.jsonl").write_text('{"article": "a", "summary": "b"}\n')
    message = r"bad\.jsonl, line 1: no text under article and highlights .* its keys are article, summary"
    with pytest.raises(ValueError, match=message):
        list(summarization.read_split(summarization.DataArguments(train_file=str(tmp_path / "bad.jsonl")), "train"))
