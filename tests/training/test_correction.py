# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Grammatical error correction: which pairs come from which files, what is scored, and what is refused."""

import gzip
import json
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import run_gec
from transformers import AutoTokenizer, pipeline

from modeling_ode_transformer.metrics.gleu import gleu
from modeling_ode_transformer.metrics.m2 import m2_score, read_m2
from modeling_ode_transformer.options import declarations
from modeling_ode_transformer.text_files import read_lines
from modeling_ode_transformer.training.recipe_files import RECIPES
from modeling_ode_transformer.training.run import parse_arguments, prepare
from modeling_ode_transformer.training.same_training import data_note, differences
from modeling_ode_transformer.training.tasks import correction, seq2seq_texts

from .runs import SMALL, flags, training_pairs
from .sentences import write_corrections


RECIPE = str(RECIPES / "bea2019_gec_base.json")
ARTICLE = """S I have cat .
A 2 2|||M:DET|||a|||REQUIRED|||-NONE-|||0
"""
AGREEMENT = """S She walk home .
A 1 2|||R:VERB:SVA|||walks|||REQUIRED|||-NONE-|||0
"""
CORRECT = """S It rains .
A -1 -1|||noop|||-NONE-|||REQUIRED|||-NONE-|||0
"""
TENSE = """S We go there yesterday .
A 1 2|||R:VERB:TENSE|||went|||REQUIRED|||-NONE-|||0
"""
PAIRS = {
    ARTICLE: ("I have cat .", "I have a cat ."),
    AGREEMENT: ("She walk home .", "She walks home ."),
    CORRECT: ("It rains .", "It rains ."),
    TENSE: ("We go there yesterday .", "We went there yesterday ."),
}
# Annotators 0 and 1 differ; 1 found nothing; nobody annotated; only 1 did.
SEVERAL = """S He like cats
A 1 2|||R:VERB:SVA|||likes|||REQUIRED|||-NONE-|||0
A 1 2|||R:VERB:TENSE|||liked|||REQUIRED|||-NONE-|||1
A 3 3|||M:PUNCT|||.|||REQUIRED|||-NONE-|||1

S She like dogs
A 1 2|||R:VERB:SVA|||likes|||REQUIRED|||-NONE-|||0
A -1 -1|||noop|||-NONE-|||REQUIRED|||-NONE-|||1

S They like birds

S We likes fish
A 1 2|||R:VERB:SVA|||like|||REQUIRED|||-NONE-|||1
"""


def write(path, *sentences):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{sentence}\n" for sentence in sentences)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return str(path)


def read(split="train", **values):
    args = correction.DataArguments(**values)
    pairs = correction.read_split(args, split)
    return training_pairs(pairs, args.cleaning) if split == "train" else pairs


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder of generated M2 files, with two annotators of the test file."""
    folder = tmp_path_factory.mktemp("data")
    write_corrections(folder, sizes={"train": 600, "test": 20}, annotators={"test": 2})
    return folder


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    """Output folder and metrics of a small run of the recipe that learns to write sentences: without dropout."""
    output_dir = tmp_path_factory.mktemp("run") / "output"
    model = json.loads(SMALL["config_overrides"]) | {"dropout": 0, "word_dropout": 0}
    options = SMALL | {"config_overrides": json.dumps(model)}
    options |= {"max_steps": 120, "save_steps": 20, "eval_steps": 60, "max_train_samples": 300, "max_eval_samples": 20}
    options |= {"train_file": data / "train.m2", "validation_file": data / "train.m2", "validation_share": 0.1}
    options |= {"test_file": data / "test.m2", "output_dir": output_dir}
    return output_dir, run_gec.main([RECIPE, *flags(options)])


def predict(run, output_dir, **values):
    """Metrics and outputs of a run that only predicts, with the model of the run."""
    options = {"model_name_or_path": run[0], "output_dir": output_dir, "do_predict": True, "use_cpu": True}
    options |= {"predict_with_generate": True, "num_beams": 2, "length_penalty": 0.6, "max_target_length": 64}
    argv = flags(options | {"report_to": "none", "disable_tqdm": True} | values)
    return run_gec.main(argv), read_lines(output_dir / "generated_predictions.txt")


def test_files_of_the_command_line_are_added_to_those_of_a_recipe():
    """Only a file of the same name takes a file's place."""
    noted = json.loads(Path(RECIPE).read_text())
    asked = {"train_source_file": "more.txt", "train_reference_files": ["more.cor"], "test_reference_files": ["r"]}
    argv = "--train_source_file more.txt --train_reference_files more.cor --test_reference_files r --use_cpu True"
    _, data_args, _ = parse_arguments(correction.CORRECTION, [RECIPE, *argv.split()])
    names = [name for name, each in declarations(correction.DataArguments).items() if each.get("affects") == "files"]
    assert {name: getattr(data_args, name) for name in names} == {name: noted.get(name) for name in names} | asked


def test_annotators(tmp_path, caplog):
    path = write(tmp_path / "several.m2", SEVERAL)
    birds, fish = ("They like birds", "They like birds"), ("We likes fish", "We like fish")
    of_0 = [("He like cats", "He likes cats"), ("She like dogs", "She likes dogs"), birds, (fish[0], fish[0])]
    of_1 = [("He like cats", "He liked cats ."), ("She like dogs", "She like dogs"), birds, fish]
    with caplog.at_level("INFO", "modeling_ode_transformer"):
        assert read(train_file=[path]) == of_0
    assert "unchanged by annotator 0, but not by others: 1 sentences" in caplog.text
    assert read(train_file=[path], drop_copies=True) == of_0[:2]
    assert read(train_file=[path], annotator="1") == of_1
    assert read(train_file=[path], annotator="all") == [of_0[0], of_1[0], of_0[1], of_1[1], birds, fish]
    assert read("test", test_file=[path]) == of_0
    # What is evaluated may have other annotators.
    assert read("test", test_file=[path], annotator="2") == [*of_0[:3], fish]
    with pytest.raises(ValueError, match=r"several\.m2 is not annotated by --annotator 2, only by 0, 1"):
        read(train_file=[path], annotator="2")


def test_training_pairs_are_filtered(tmp_path):
    """Both sides have to be of the length asked for; nothing that is evaluated is left out."""
    grows = "S a a a\nA 3 3|||M:OTHER|||b b|||REQUIRED|||-NONE-|||0\n"
    shrinks = "S a a a\nA 0 2|||U:OTHER||||||REQUIRED|||-NONE-|||0\n"
    vanishes = "S a\nA 0 1|||U:OTHER||||||REQUIRED|||-NONE-|||0\n"
    path = write(tmp_path / "a.m2", grows, shrinks, CORRECT, vanishes)
    everything = [("a a a", "a a a b b"), ("a a a", "a"), PAIRS[CORRECT], ("a", "")]
    assert read("test", test_file=[path], max_words=2, drop_copies=True) == everything
    assert correction.DataArguments().max_words == 80
    assert read(train_file=[path]) == everything[:3]
    assert read(train_file=[path], max_words=5, drop_copies=True) == everything[:2]
    assert read(train_file=[path], max_words=4, drop_copies=True) == everything[1:2]


def test_other_files_of_pairs(tmp_path):
    """Parallel text, TSV and jsonl give the pairs of M2, whatever the white space; each correction gives a pair."""
    pairs = [PAIRS[ARTICLE], PAIRS[AGREEMENT]]
    sources, targets = zip(*pairs)
    m2 = write(tmp_path / "a.m2", ARTICLE, AGREEMENT)
    source_file = write(tmp_path / "a.src", *(f"{source} " for source in sources))
    reference_files = [write(tmp_path / "a.ref0", *targets), write(tmp_path / "a.ref1.gz", *sources)]
    table = write(tmp_path / "a.tsv", *(f" {source}\t{target.replace(' ', '  ')}" for source, target in pairs))
    records = write(tmp_path / "a.jsonl", *(json.dumps({"source": a, "target": f"{b}\n"}) for a, b in pairs))
    text = {"train_source_file": source_file, "train_reference_files": reference_files[:1]}
    assert read(train_file=[m2]) == read(train_file=[table]) == read(train_file=[records]) == read(**text) == pairs
    for name in (table, records):
        assert read("test", test_file=[name]) == pairs
    renamed = write(tmp_path / "b.jsonl", *(json.dumps({"before": a, "after": b, "source": "x"}) for a, b in pairs))
    assert read(train_file=[renamed], source_column="before", target_column="after") == pairs
    assert read("test", test_file=[source_file]) == [(source, None) for source in sources]
    assert read("validation", validation_file=[source_file], validation_reference_files=reference_files) == pairs

    # A recipe may give one file as text.
    assert read(train_file=m2) == read("validation", validation_file=m2) == read("test", test_file=m2) == pairs
    assert read(**text | {"train_reference_files": reference_files[0]}) == pairs
    of_validation = {"validation_file": source_file, "validation_reference_files": reference_files[0]}
    assert read("validation", **of_validation) == pairs
    with pytest.raises(ValueError, match=r"a\.m2 is both a training file and a validation file"):
        read(train_file=m2, validation_file=m2)

    text["train_reference_files"] = reference_files
    unchanged = [(source, source) for source in sources]
    assert read(train_file=[m2, table], **text) == [*pairs, *pairs, *pairs, *unchanged]
    assert read(train_file=[table], drop_copies=True, **text) == [*pairs, *pairs]


def test_a_share_of_a_training_file_validates(tmp_path):
    """A quarter of the sentences with edits, as the paper holds out of NUCLE, and no other; the rest is trained on."""
    (folder := tmp_path / "corpus").mkdir()
    write_corrections(folder, {"nucle.train": 101}, {})
    nucle = str(folder / "nucle.train.m2")
    whole = read(train_file=[nucle])
    edited = [pair for pair in whole if pair[0] != pair[1]]
    values = {"train_file": [nucle], "validation_file": [nucle], "validation_share": 0.25}
    validation, training = read("validation", **values), read(**values)
    assert len(validation) == len(edited) // 4 and set(validation) < set(edited)
    assert set(validation).isdisjoint(training) and len(training) + len(validation) == 101
    places = [edited.index(pair) for pair in validation]
    assert {after - before for before, after in pairwise(places)} == {4}
    assert read("validation", **values) == validation
    values["train_file"] = [write(tmp_path / "other.m2", ARTICLE)]
    assert read(**values) == [PAIRS[ARTICLE]]
    values |= {"train_file": [nucle], "validation_share": None}
    with pytest.raises(ValueError, match=r"nucle\.train\.m2 is both a training file and a validation file"):
        read(**values)


def test_sentences_held_out_of_a_training_file_are_not_in_what_another_validation_file_prepared(tmp_path):
    """A file of the same name validates first, then the training file itself: the pairs that are trained on are not
    the same, and the second training does not go on with the first one."""
    for name, sentences in (("a", 60), ("b", 40)):
        (tmp_path / name).mkdir()
        write_corrections(tmp_path / name, {"nucle": sentences}, {})
    counts, notes = [], []
    for name in ("b", "a"):
        files = {"train_file": [str(tmp_path / "a" / "nucle.m2")], "validation_share": 0.25}
        files["validation_file"] = [str(tmp_path / name / "nucle.m2")]
        argv = [f"--train {files['train_file'][0]} --validation {files['validation_file'][0]}"]
        argv += ["--validation_share 0.25 --vocab_size 350 --use_cpu True --do_train --preset none"]
        argv += [f"--output_dir {tmp_path / 'data-bin'}"]
        counts.append(prepare(correction.CORRECTION, " ".join(argv).split())["train"])
        assert counts[-1] == len(read(**files))
        training = SimpleNamespace(do_train=True, do_eval=True, do_predict=False, output_dir=str(tmp_path))
        notes.append({"data": files, "files": data_note(correction.DataArguments(**files), training)})
    assert counts[0] == 60 > counts[1]
    assert any(each.startswith("training and validation file 1=") for each in differences(*notes, "examples"))


@pytest.mark.parametrize(
    "split, values, message",
    [
        ("train", {}, "No train data: give --train_file, or --train_source_file and"),
        ("test", {}, "No test data: give --test_file"),
        ("train", {"train_file": ["broken.m2"]}, r"broken\.m2, line 5: "),
        ("train", {"train_file": ["a.src"]}, r"a\.src: its name must end in \.m2, \.tsv, .* plain"),
        ("train", {"train_source_file": "a.src"}, "go together"),
        ("train", {"train_source_file": "a.src", "train_reference_files": ["two.ref"]}, r"lines, but two\.ref has 2"),
        ("train", {"annotator": "first"}, "--annotator first: give the number of an annotator"),
        ("train", {"dataset_name": "jfleg"}, "--dataset_name jfleg: sentences come from files"),
        ("validation", {"validation_file": ["a.src"]}, "give --validation_reference_files"),
        (
            "validation",
            {"validation_file": ["a.src"], "validation_share": 0.5},
            r"--validation_share 0.5 needs an M2 file, but --validation_file a\.src",
        ),
        ("test", {"test_file": ["a.src", "right.m2"]}, r"one kind, not \.m2 and plain text"),
        ("test", {"test_file": ["a.src"], "test_reference_files": ["two.ref"]}, r"but --test_file a\.src has 1"),
    ],
)
def test_errors_name_the_value_and_the_fix(split, values, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.src", "A line .")
    write(tmp_path / "two.ref", "A line .", "Another line .")
    write(tmp_path / "right.m2", CORRECT)
    write(tmp_path / "broken.m2", ARTICLE, AGREEMENT.replace("1 2", "1 two"))
    with pytest.raises(ValueError, match=message):
        read(split, **values)


def test_scores_are_those_of_the_written_predictions(run, data):
    """In the order of the file, one line for each sentence, whatever their lengths; against both annotators."""
    output_dir, metrics = run
    predictions = read_lines(output_dir / "generated_predictions.txt")
    sentences = read_m2(data / "test.m2")
    assert len(predictions) == len(sentences) == metrics["predict_samples"] == 20
    assert {tuple(sentence.edits) for sentence in sentences} == {(0, 1)}
    expected = m2_score(predictions, sentences)
    assert {name: metrics[f"predict_m2_{name}"] for name in expected} == expected
    assert expected["correct"] > 0
    backwards = m2_score(predictions[::-1], sentences)
    assert backwards != expected

    train_file = str(data / "train.m2")
    args = correction.DataArguments(validation_file=[train_file], validation_share=0.1)
    validation = correction.read_evaluated(args, "validation").annotations[:20]
    predictions = read_lines(output_dir / "validation_predictions.txt")
    expected = m2_score(predictions, validation)
    assert {name: metrics[f"eval_m2_{name}"] for name in expected} == expected
    history = json.loads((output_dir / "trainer_state.json").read_text())["log_history"]
    assert len([entry for entry in history if "eval_m2_f0.5" in entry]) == 2


def test_the_folder_opens_as_a_pipeline(run, data):
    output_dir, _ = run
    sources = [" ".join(sentence.tokens) for sentence in read_m2(data / "test.m2")][:3]
    outputs = pipeline("text-correction", model=str(output_dir), trust_remote_code=True)(sources)
    predictions = read_lines(output_dir / "generated_predictions.txt")
    assert [output["corrected_text"] for output in outputs] == predictions[:3]


def test_plain_text(run, data, tmp_path, caplog):
    """It is corrected as the same sentences in an M2 file are; without references it has no score and no loss."""
    test_file = data / "test.m2"
    sentences = read_m2(test_file)
    sources = [" ".join(sentence.tokens) for sentence in sentences]
    references = [[" ".join(sentence.corrected(i)) for sentence in sentences] for i in (0, 1)]
    named = zip(("src", "ref0", "ref1"), (sources, *references))
    text, *reference_files = (write(tmp_path / f"test.{name}", *lines) for name, lines in named)
    metrics, outputs = predict(run, tmp_path / "text", test_file=[text])
    assert {"predict_samples", "predict_runtime"} <= set(metrics)
    assert not [name for name in metrics if "loss" in name or "perplexity" in name or "m2" in name or "gleu" in name]
    assert outputs == read_lines(run[0] / "generated_predictions.txt")

    values = {"test_file": [text], "test_reference_files": reference_files, "errant": True}
    metrics, outputs = predict(run, tmp_path / "scored", **values)
    expected = gleu(outputs, [list(texts) for texts in zip(*references)], sources)
    assert {name: metrics[f"predict_{name}"] for name in expected} == expected and expected["gleu"] > 0
    assert "predict_loss" in metrics and "predict_m2_f0.5" not in metrics
    assert "the test sentences are not scored with it" in caplog.text

    values = {"test_file": [test_file], "test_reference_files": reference_files, "max_predict_samples": 5}
    metrics, outputs = predict(run, tmp_path / "both", **values)
    assert metrics["predict_m2_f0.5"] == m2_score(outputs, sentences[:5])["f0.5"]
    expected = gleu(outputs, [list(texts) for texts in zip(*references)][:5], sources[:5])
    assert metrics["predict_gleu"] == expected["gleu"]


def test_errant(run, data, tmp_path, monkeypatch):
    """Edits of the outputs are compared with the M2 file's. What it lacks stops a run before its training."""
    test_file = data / "test.m2"
    gold = read_m2(test_file)
    monkeypatch.setattr(correction, "load_annotator", lambda: None)
    monkeypatch.setattr(correction, "annotate", lambda sources, texts: gold[: len(texts)])
    metrics, _ = predict(run, tmp_path / "out", test_file=[test_file], errant=True, max_predict_samples=6)
    assert metrics["predict_errant_f0.5"] == 1 and metrics["predict_errant_false_negatives"] == 0
    assert metrics["predict_errant_true_positives"] == sum(len(sentence.edits[0]) for sentence in gold[:6])
    monkeypatch.setattr(correction, "load_annotator", mock.Mock(side_effect=OSError("spaCy has no model")))
    with pytest.raises(OSError, match="spaCy has no model"):
        options = {f"{split}_file": test_file for split in ("train", "validation", "test")} | {"errant": True}
        run_gec.main([RECIPE, *flags(SMALL | options | {"output_dir": tmp_path / "train"})])
    assert not list((tmp_path / "train").glob("checkpoint-*"))


def test_tokenized_text_survives_the_tokenizer(run):
    """A sentence that a model repeats comes back as it was, with characters that no training text has."""
    tokenizer = AutoTokenizer.from_pretrained(run[0])
    sentences = [
        "What 's more , it is obvioualy .",
        "It costs 8 ~ 9 £ , he said : “ naïve 東京 🙂 ” …",
        "`` Do n't ! '' ( no <b> )",
    ]
    assert all("東" not in piece for piece in tokenizer.get_vocab())
    ids = tokenizer(sentences, padding="longest")["input_ids"]
    assert seq2seq_texts.decode(np.array(ids), tokenizer) == sentences
