# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Model cards: what they say comes from the run, and the Hub's client reads it back."""

import json
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

import modeling_ode_transformer as ode
from modeling_ode_transformer import cli
from modeling_ode_transformer.hub.model_card import model_card, run_record
from modeling_ode_transformer.training.records import split_sources

from ..conftest import build, tiny_config


ROOT = Path(__file__).parents[2]
RECORDS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in (ROOT / "hub_cards").glob("*.json")}
SIGNATURE = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"
RESULTS = {"train_samples": 29000, "eval_samples": 1014, "predict_samples": 1000, "eval_runtime": 21.3}
RESULTS |= {"eval_bleu": 38.774, "eval_bleu_signature": SIGNATURE}
RESULTS |= {"predict_bleu": 38.3298, "predict_bleu_signature": SIGNATURE, "predict_perplexity": 5.3728}
ARGUMENTS = {
    "task": "translation",
    "data": {"train_source_file": "/home/me/train.en.gz", "train_target_file": "/home/me/train.de.gz"}
    | {"max_source_length": 128, "max_target_length": 96},
    "training": {"learning_rate": 0.002, "max_tokens_per_batch": 4096, "per_device_train_batch_size": 8, "seed": 3}
    | {"max_grad_norm": 0.0, "bf16": False, "metric_for_best_model": "None", "hub_token": "<HUB_TOKEN>"},
    "processes": 8,
    "versions": {"torch": "2.13.0"},
    "date": "2026-11-21",
}


@pytest.fixture
def run(tmp_path):
    """A folder as a training script leaves it."""
    folder = tmp_path / "run"
    ode.OdeTransformerForConditionalGeneration(tiny_config(encoder_solver="rk4")).save_pretrained(folder)
    (folder / "all_results.json").write_text(json.dumps(RESULTS))
    (folder / "arguments.json").write_text(json.dumps(ARGUMENTS))
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 3276, "epoch": 18.0}))
    return folder


def card_of(run, **values):
    return model_card(run_record(run) | {"card": {"repo_id": "me/model", **values}})


def test_a_card_says_what_the_run_did(run):
    text = card_of(run, language=["en", "de"], dataset="owner/multi30k").content
    parameters = sum(p.numel() for p in ode.OdeTransformerForConditionalGeneration.from_pretrained(run).parameters())
    for part in (
        f"| parameters | {parameters:,} |",
        "| encoder | rk4, coefficients: fixed; layers: 3, heads: 4, feed-forward: 48, evaluations of F in each layer: "
        "4 |",
        "| decoder | euler; layers: 2, heads: 2, feed-forward: 40, evaluations of F in each layer: 1 |",
        "| BLEU | 38.77 | 38.33 | `" + SIGNATURE.replace("|", "\\|") + "` |",
        "| perplexity |  | 5.37 |  |",
        "| train | train.en.gz, train.de.gz | 29,000 |",
        "| updates | 3276 |\n| epochs | 18.0 |",
        "| processes | 8 |",
        "| max_tokens_per_batch | 4096 |",
        "| max_grad_norm | 0.0 |",
        "| max_source_length | 128 |\n| max_target_length | 96 |\n",
        "| seed | 3 |",
        "Run of 2026-11-21.",
        "torch 2.13.0.",
        'pipeline("translation", model="me/model", trust_remote_code=True)',
        "@inproceedings{li-etal-2022-ode,",
    ):
        assert part in text, part
    for absent in ("home", "per_device_train_batch_size", "metric_for_best_model", "hub_token", "bf16", "runtime"):
        assert absent not in text


@pytest.mark.parametrize(
    "task, results, rows",
    [
        (
            "text-correction",
            {"m2_precision": 0.51239, "m2_recall": 0.3, "m2_f0.5": 0.41234, "gleu": 58.127}
            | {"errant_precision": 0.4, "errant_recall": 0.25004, "errant_f0.5": 0.35716},
            "| M2 precision | 0.5124 |  |\n| M2 recall | 0.3000 |  |\n| M2 F0.5 | 0.4123 |  |\n"
            "| ERRANT precision | 0.4000 |  |\n| ERRANT recall | 0.2500 |  |\n| ERRANT F0.5 | 0.3572 |  |\n"
            "| GLEU | 58.13 |  |\n",
        ),
        (
            "summarization",
            {"rouge1": 41.456, "rouge2": 19.123, "rougeLsum": 38.001, "rouge_convention": "stemmed"},
            "| ROUGE-1 | 41.46 | `stemmed` |\n| ROUGE-2 | 19.12 | `stemmed` |\n| ROUGE-L | 38.00 | `stemmed` |\n",
        ),
    ],
)
def test_scores_have_their_names_and_decimals(run, task, results, rows):
    (run / "arguments.json").write_text(json.dumps(ARGUMENTS | {"task": task}))
    (run / "all_results.json").write_text(json.dumps({f"predict_{name}": value for name, value in results.items()}))
    assert rows in card_of(run).content


def test_the_clients_own_reader_gets_the_same_metadata(run):
    card = card_of(run, language=["en", "de"], license="apache-2.0", dataset="owner/multi30k")
    read = ModelCard(card.content)
    assert read.data.to_dict() == card.data.to_dict()
    assert (read.data.library_name, read.data.pipeline_tag) == ("transformers", "translation")
    assert (read.data.language, read.data.license) == (["en", "de"], "apache-2.0")
    assert read.data.datasets == ["owner/multi30k"]
    results = {(each.dataset_split, each.metric_type): each for each in read.data.eval_results}
    assert results["test", "sacrebleu"].metric_value == 38.33
    assert results["validation", "sacrebleu"].metric_args == {"convention": SIGNATURE}
    assert {each.dataset_type for each in read.data.eval_results} == {"owner/multi30k"}


def test_a_language_model_and_a_folder_without_records(tmp_path, capsys):
    build(ode.OdeTransformerForCausalLM, decoder_solver="rk2").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=" is unknown: give one of translation, "):
        cli.run(["card", str(tmp_path), "--repo_id", "lm"])
    with pytest.raises(ValueError, match="give --repo_id NAME"):
        cli.run(["card", str(tmp_path), "--task", "text-generation"])

    record = str(tmp_path / "record.json")
    cli.run(["card", str(tmp_path), "--task", "text-generation", "--repo_id", "lm", "--record", record])
    text = capsys.readouterr().out
    assert 'AutoModelForCausalLM.from_pretrained("lm"' in text and "pipeline(" not in text
    assert "| decoder | rk2, coefficients: gate;" in text and "encoder" not in text.partition("## Use")[0]
    assert "## Results" not in text and ModelCard(text).data.eval_results is None  # without a record of them
    with pytest.raises(FileExistsError, match=r"--record .*record\.json exists: choose another one"):
        cli.run(["card", record, "--record", record])
    # The record alone makes the same card.
    cli.run(["card", record])
    assert capsys.readouterr().out == text


def test_each_split_is_named_by_its_own_data(run):
    files = {"train_file": "/a/train.tsv", "validation_file": "/a/dev|1.tsv", "test_file": "/a/test.tsv"}
    (run / "arguments.json").write_text(json.dumps(ARGUMENTS | {"data": files}))
    card = card_of(run)
    names = {(each.dataset_split, each.dataset_name) for each in card.data.eval_results}
    assert names == {("validation", "dev|1.tsv"), ("test", "test.tsv")}
    assert "texts like those of its training data (train.tsv)." in card.content
    assert r"| validation | dev\|1.tsv | 1,014 |" in card.content

    # A file has precedence over the dataset, as in the scripts.
    data = {"dataset_name": "wmt/wmt14", "dataset_config_name": "de-en", "test_file": "/a/test.tsv"}
    (run / "arguments.json").write_text(json.dumps(ARGUMENTS | {"data": data}))
    card = card_of(run)
    assert card.data.datasets == ["wmt/wmt14"]
    assert {(each.dataset_type, each.dataset_config, each.dataset_name) for each in card.data.eval_results} == {
        ("wmt/wmt14", "de-en", "wmt/wmt14 (de-en)"),
        ("test_tsv", None, "test.tsv"),
    }
    assert card_of(run, dataset="WMT14 en/de: raw").data.datasets is None


def test_a_card_says_where_the_training_began_and_which_weights_it_kept(run):
    arguments = ARGUMENTS | {"model": {"model_name_or_path": str(run / "converted")}}
    arguments["training"] = ARGUMENTS["training"] | {"load_best_model_at_end": True}
    (run / "arguments.json").write_text(json.dumps(arguments))
    (run / "trainer_state.json").write_text(json.dumps({"global_step": 900, "best_global_step": 600}))
    text = card_of(run).content
    lengths = "| max_source_length | 128 |\n| max_target_length | 96 |\n"
    assert f"| started_from | converted |\n{lengths}| updates | 900 |\n| weights_of_update | 600 |" in text
    arguments |= {"data": {"average_last_checkpoints": 2}, "model": {"model_name_or_path": "me/converted"}}
    (run / "arguments.json").write_text(json.dumps(arguments))
    text = card_of(run).content
    assert "| started_from | me/converted |" in text and "weights_of_update" not in text


@pytest.mark.parametrize(
    "config, description",
    [
        ({"encoder_solver": "euler"}, "in its residual form"),
        ({"encoder_solver": {"a": [[], [1.0]], "b": [0.5, 0.5]}}, "steps of a Runge-Kutta method"),
        ({"encoder_solver": "leapfrog", "layer_history": "none"}, "steps of a multistep method"),
        ({"encoder_solver": "iiet"}, "blocks evaluate their function F several times"),
    ],
)
def test_a_card_names_the_kind_of_its_schemes(config, description, tmp_path):
    ode.OdeTransformerForConditionalGeneration(tiny_config(**config)).save_pretrained(tmp_path)
    record = run_record(tmp_path, "translation") | {"card": {"repo_id": "m"}}
    assert description in model_card(record).content.partition("| parameters")[0]


def test_a_card_shows_no_place_of_the_machine_wherever_it_is_made(run, tmp_path, monkeypatch):
    """Folders of the run are shown without their places, even if the card is made in another working directory. Older
    runs did not note which names are folders: there, only names that the Hub allows are shown whole."""
    model = {"model_name_or_path": "../client_x/runs/base"}
    data = {"dataset_name": "corpora/secret_client"}
    monkeypatch.chdir(tmp_path)
    for folders in ({"folders": ["../client_x/runs/base", "corpora/secret_client"]}, {}):
        (run / "arguments.json").write_text(json.dumps(ARGUMENTS | {"model": model, "data": data} | folders))
        card = card_of(run)
        assert "client_x" not in str(card) and "| started_from | base |" in card.content
        assert card.data.datasets == (None if folders else ["corpora/secret_client"])
        assert ("corpora" in str(card)) != bool(folders)
    # What was none stays whole, though a folder is here of that name. A split may be evaluated elsewhere.
    (tmp_path / "wmt" / "wmt14").mkdir(parents=True)
    evaluated = {"test": {"dataset_name": "mine/pairs", "folders": ["mine/pairs"]}}
    noted = {"folders": [], "data": {"dataset_name": "wmt/wmt14"}, "evaluated": evaluated}
    (run / "arguments.json").write_text(json.dumps(ARGUMENTS | noted))
    record = run_record(run)
    assert record["data"]["train"]["source"] == ["wmt/wmt14"] and record["data"]["test"]["source"] == ["pairs"]
    for name in ("..", "../..", "a/..", "/", "a/b/c", "../a", "a/b/"):
        shown = split_sources({"dataset_name": name, "folders": []}, "train")
        assert shown in (["a"], ["b"], ["c"], ["a folder"])
    # Which names are folders was not noted: it is looked up.
    (tmp_path / "some" / "pairs").mkdir(parents=True)
    for name, shown in (("some/pairs", ["pairs"]), ("/elsewhere/some/pairs", ["pairs"]), ("wmt/wmt16", ["wmt/wmt16"])):
        assert split_sources({"dataset_name": name}, "train") == shown


CLASSIFIER_RESULTS = {"train_samples": 4907, "eval_samples": 545, "predict_samples": 500}
CLASSIFIER_RESULTS |= {"eval_accuracy": 83.4862, "predict_accuracy": 87.2}
CLASSIFIER_RESULTS |= {"eval_function_evaluations": 16.0, "predict_function_evaluations": 16.0}
CLASSIFIER_ARGUMENTS = {
    "task": "text-classification",
    "model": {"model_name_or_path": None, "word_vectors": None},
    "data": {"train_file": "/home/me/train.txt.gz", "test_file": "/home/me/test.txt.gz"}
    | {"validation_size": 0.1, "test_size": 0.0, "cross_validation": None, "split_seed": 42, "max_length": 40},
    "training": {"learning_rate_ratio": 0.1, "seed": 3},
}


def classifier_run(folder, results=CLASSIFIER_RESULTS, model=None, data=None, **config):
    """A folder as run_classification.py leaves it."""
    config = ode.CsaOdeConfig(**({"vocab_size": 50, "embedding_size": 8, "hidden_size": 6, "num_labels": 3} | config))
    ode.CsaOdeForSequenceClassification(config).save_pretrained(folder)
    arguments = {name: CLASSIFIER_ARGUMENTS[name] | (each or {}) for name, each in (("model", model), ("data", data))}
    (folder / "arguments.json").write_text(json.dumps(CLASSIFIER_ARGUMENTS | arguments))
    (folder / "all_results.json").write_text(json.dumps(results))
    return folder


def test_a_classifier(tmp_path):
    """Its size is counted by hand: embeddings 50 * 8; convolution 16 * 6 + 6; block 5 * 36 + 6 + 4 * 6; gate 2; norm
    12; classifier 6 * 3 + 3. RK4's first step needs 4 evaluations, the 4 others of the accelerated method 3 each."""
    card = card_of(classifier_run(tmp_path, id2label={0: "human", 1: "a|b", 2: "number"}))
    without_embeddings = 16 * 6 + 6 + 5 * 36 + 6 + 4 * 6 + 2 + 12 + 6 * 3 + 3
    for part in (
        "A [CSAODE](https://doi.org/10.1609/aaai.v35i16.17692) model",
        "for text classification, of single sentences: its only self-attention block is integrated",
        "(CSAARK).\n\n| | |\n",
        f"| parameters | {without_embeddings + 400:,} |",
        f"| parameters without word embeddings | {without_embeddings:,} |",
        "| function evaluations for each sentence | 16 |",
        r"| classes | human, a\|b, number |",
        "| solver | ark |\n| step_size | 0.2 |",
        "| | validation (545 examples) | test (500 examples) | convention |",
        "| accuracy, percent | 83.49 | 87.20 |  |",
        "| function evaluations, mean of the examples | 16.0 | 16.0 |  |",
        "| validation | train.txt.gz | 545 |\n| test | test.txt.gz | 500 |",
        "| pretrained_word_vectors | none |\n| validation_size | 0.1 |\n| split_seed | 42 |\n| max_length | 40 |\n",
        "| learning_rate_ratio | 0.1 |",
        'pipeline("text-classification", model="me/model", trust_remote_code=True)\nprint(model("...")[0]["label"])',
        "@inproceedings{zhang-etal-2021-continuous,",
    ):
        assert part in card.content, part
    for absent in ("ODE Transformer", "li-etal", "/home", "cross_validation", "test_size", "rtol", "num_blocks"):
        assert absent not in card.content
    read = ModelCard(card.content).data
    assert (read.pipeline_tag, read.metrics) == ("text-classification", ["accuracy"])
    assert read.tags == ["csaode", "text-classification"]
    assert {(each.dataset_split, each.metric_type, each.metric_value) for each in read.eval_results} == {
        ("validation", "accuracy", 83.49),
        ("test", "accuracy", 87.2),
    }


@pytest.mark.parametrize(
    "config, parts",
    [
        (
            {"solver": "rkf", "num_sentences": 2},
            (
                "of pairs of sentences",
                "(CSARKF).",
                "| function evaluations for each sentence | as many as the tolerances need |",
                "| rtol | 0.001 |\n| atol | 0.0001 |",
                'print(model([{"text": "...", "text_pair": "..."}])[0]["label"])',
            ),
        ),
        ({"solver": "rk", "step_size": 0.5}, ("(CSARK).", "| function evaluations for each sentence | 8 |")),
        (
            {"solver": "none", "num_blocks": 5, "ngram_size": 0, "embedding_size": 6},
            (
                "5 self-attention blocks, one after the other, without an ODE.",
                "| function evaluations for each sentence | 5 |",
                "| num_blocks | 5 |",
                "| ngram_size | 0 |",
            ),
        ),
    ],
)
def test_solvers_of_classifiers(config, parts, tmp_path):
    text = card_of(classifier_run(tmp_path, **config)).content
    for part in parts:
        assert part in text, part


def test_where_the_words_and_the_parts_of_the_data_of_a_classifier_come_from(tmp_path):
    vectors = {"word_vectors": "/home/me/glove.6B.300d.txt"}
    data = {"test_file": None, "validation_size": 0.0, "cross_validation": 10}
    text = card_of(classifier_run(tmp_path, model=vectors, data=data)).content
    assert "| pretrained_word_vectors | glove.6B.300d.txt |\n| cross_validation | 10 |\n| split_seed | 42 |" in text
    assert "| validation | - | 545 |\n| test | train.txt.gz | 500 |" in text
    # Nothing was held out.
    text = card_of(classifier_run(tmp_path, data={"validation_size": 0.0})).content
    assert "split_seed" not in text
    # Its start may have had some.
    text = card_of(classifier_run(tmp_path, model={"model_name_or_path": "me/trained"})).content
    assert "| started_from | me/trained |" in text and "word_vectors" not in text


def test_a_task_that_the_model_cannot_have_is_refused(run, tmp_path):
    build(ode.OdeTransformerForCausalLM).save_pretrained(tmp_path / "lm")
    ode.CsaOdeModel(ode.CsaOdeConfig(embedding_size=8, hidden_size=6)).save_pretrained(tmp_path / "base")
    for folder, task in (("base", "text-classification"), ("run", "text-generation")):
        with pytest.raises(ValueError, match=r"whose task cannot be|Unrecognized configuration class"):
            run_record(tmp_path / folder, task)


# Where the results of the examples have the scores of a card: a file, and the keys that lead to the scores.
SCORES = {
    "multi30k_en_de": ("multi30k_cpu/runs.json", ["RK2 (gate)", "metrics"]),
    "multi30k_en_fr": ("multi30k_en_fr/runs.json", ["RK2 (gate)", "metrics"]),
    "multi30k_from_residual": ("multi30k_from_residual.json", ["models", "RK2, continued"]),
    **{f"ptb_{name}": ("queue/ptb.json", [f"{name}_1", "metrics"]) for name in ("residual", "rk2", "rk2_gate")},
}


@pytest.mark.parametrize("name", RECORDS)
def test_cards_come_from_their_records(name):
    """The text is what the record makes, and its scores are those of the run among the results of the examples."""
    cards = {path.stem for path in (ROOT / "hub_cards").glob("*.md")} - {"template"}
    assert cards == set(RECORDS)
    text = (ROOT / "hub_cards" / f"{name}.md").read_text(encoding="utf-8")
    assert text == model_card(RECORDS[name]).content + "\n"
    # Raises where the metadata or its model-index is not valid.
    card = ModelCard(text)
    file, keys = SCORES[name]
    found = json.loads((ROOT / "examples" / "results" / file).read_text(encoding="utf-8"))
    for key in keys:
        found = found[key]
    for split in ("validation", "test"):
        results = [each for each in card.data.eval_results if each.dataset_split == split]
        of_card = {each.metric_type.replace("sacrebleu", "bleu"): each.metric_value for each in results}
        prefix = {"validation": "validation_", "test": "test_2016_"}[split]
        of_split = found.get(split) or {key.removeprefix(prefix): found[key] for key in found}
        of_run = {metric: round(of_split[metric], 2) for metric in of_card if metric in of_split}
        assert of_run and of_run == {metric: of_card[metric] for metric in of_run}, split
        assert split == "validation" or of_run.keys() == of_card.keys()
