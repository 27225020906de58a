# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""`ode-transformer score`: chrF, TER, several systems beside each other, likelihoods, scripts without spaces."""

import json
import re
from types import SimpleNamespace

import evaluate
import numpy as np
import pytest
import sacrebleu

from modeling_ode_transformer import OdeTransformerForCausalLM, OdeTransformerForConditionalGeneration
from modeling_ode_transformer.metrics import evaluate_metrics
from modeling_ode_transformer.metrics.bleu import bleu
from modeling_ode_transformer.metrics.bootstrap import compare, paired_bootstrap
from modeling_ode_transformer.metrics.errant import annotate
from modeling_ode_transformer.metrics.gleu import gleu
from modeling_ode_transformer.metrics.likelihood import target_likelihoods
from modeling_ode_transformer.metrics.m2 import Edit, M2Sentence, m2_score
from modeling_ode_transformer.metrics.perplexity import score_lines
from modeling_ode_transformer.metrics.rouge import rouge

from ..conftest import build, ids_of
from .test_likelihood import SOURCES, TARGETS, tokenizer  # noqa: F401 (a fixture)


REFERENCES = ["the cat sat on the mat .", "two dogs run in the snow", "a man waits", "it rains today"] * 3
SYSTEMS = {
    "a": ["the cat sat on a mat .", "two dogs run", "a man sleeps", "it rains today"] * 3,
    "b": ["a cat is on the mat .", "two dogs run in the snow", "a man waits", "it rained"] * 3,
}


@pytest.fixture
def files(write):
    write({**SYSTEMS, "ref": REFERENCES})


@pytest.mark.parametrize(
    "score, texts, options, message",
    [
        (bleu, (["a", "b"], ["a"]), {}, "2 predictions, 1 references"),
        (bleu, ([], []), {}, "no predictions"),
        (bleu, (["a"], ["a"]), {"tokenize": "14a"}, "no tokenizer '14a', only none, zh, 13a"),
        (bleu, (["a"], ["a"]), {"moses_language": "tlh"}, "does not know the language 'tlh', only as, bn"),
        (gleu, (["a", "b"], ["a", "b"], ["a"]), {}, "2 predictions, 1 sources"),
        (gleu, (["a", "b"], ["a"], ["a", "b"]), {}, "2 predictions, 1 references"),
        (gleu, (["a", "b"], [["a"], ["a", "b"]], ["a", "b"]), {}, "index 1 has 2 references, but the first one has 1"),
        (compare, ([["a"], ["a", "b"]], ["a"], ["a"]), {}, r"1 predictions_a\[0\], 2 predictions_a\[1\]"),
        (paired_bootstrap, (np.ones(4), np.ones(3), np.mean), {}, "4 statistics_a, 3 statistics_b"),
    ],
)
def test_what_cannot_be_scored_is_said(score, texts, options, message):
    with pytest.raises(ValueError, match=message):
        score(*texts, **options)


@pytest.mark.parametrize("metric, scorer", [("chrf", sacrebleu.CHRF()), ("ter", sacrebleu.TER())])
def test_chrf_and_ter_are_those_of_sacrebleu(metric, scorer, files, printed):
    out = printed(f"score {metric} --json --hypotheses a --references ref")
    assert out[metric] == scorer.corpus_score(SYSTEMS["a"], [REFERENCES]).score
    assert out[f"{metric}_signature"] == str(scorer.get_signature())


@pytest.mark.parametrize("metric", ["bleu", "chrf", "ter"])
def test_several_systems_are_compared_with_the_first(metric, files, printed):
    tables = printed(f"score {metric} --json --hypotheses a b a --references ref")
    rows = tables[metric]
    expected = compare(SYSTEMS["a"], SYSTEMS["b"], [[line] for line in REFERENCES], metric)
    assert [row["name"] for row in rows] == ["a", "b"]  # a system with the same name is the same
    assert (rows[0]["score"], rows[1]["score"]) == (expected["score_a"], expected["score_b"])
    for name in ("difference", "confidence_interval", "p_value"):
        assert rows[1][name] == expected[name] and name not in rows[0]
    assert tables[f"{metric}_signature"] == expected["signature"]
    table = printed(f"score {metric} --hypotheses a b --references ref").splitlines()
    assert table[2] == f"| a | {expected['score_a']:.4f} |  |  |  |"
    assert f"| {expected['difference']:.4f} | " in table[3]
    assert table[4:] == [f"{metric}_signature = {expected['signature']}"]


def test_several_systems_of_tokenized_text_have_three_tables(files, printed):
    tables = printed("score bleu --json --tokenized --hypotheses a b --references ref")
    for metric in ("bleu", "tokenized_bleu", "compound_split_bleu"):
        expected = compare(SYSTEMS["a"], SYSTEMS["b"], [[line] for line in REFERENCES], metric)
        assert tables.pop(metric)[1]["difference"] == expected["difference"]
        assert tables.pop(f"{metric}_signature") == expected["signature"]
    assert tables == {}


def test_a_lower_ter_wins(files):
    found = compare(SYSTEMS["a"], REFERENCES, [[line] for line in REFERENCES], "ter")
    assert found["score_b"] == 0 and found["wins_b"] > found["wins_a"] == 0


def test_hypotheses_may_come_from_standard_input(files, tmp_path, monkeypatch, printed):
    with (tmp_path / "a").open() as stream:
        monkeypatch.setattr("sys.stdin", stream)
        piped = printed("score chrf --hypotheses - --references ref")
    assert piped == printed("score chrf --hypotheses a --references ref")


THAI = ["สวัสดีครับ วันนี้อากาศดี", "แมวอยู่บนเสื่อ"]
CHINESE = ["今天天气很好。", "猫坐在垫子上。"]


@pytest.mark.parametrize("texts", [THAI, CHINESE])
def test_bleu_of_a_script_without_spaces_names_other_tokenizers(texts, caplog):
    bleu(texts, texts, conventions=["sacrebleu"])
    assert "zh for Chinese, ja-mecab for Japanese" in caplog.text and "char" in caplog.text
    caplog.clear()
    bleu(texts, texts, conventions=["sacrebleu"], tokenize="char")
    bleu(["Größe über alles", "café"], ["Größe über alles", "café"], conventions=["sacrebleu"])
    assert not caplog.text


def test_rouge_says_what_it_leaves_out(write, caplog, printed):
    """In a training by a warning, as a command by an error."""
    for texts in (THAI, CHINESE, ["кошка на коврике"]):
        caplog.clear()
        assert rouge(texts, texts)["rouge1"] == 0 and "100% of the references' letters" in caplog.text
        write({"texts": texts})
        with pytest.raises(ValueError, match=r"100% of the references' letters .* chrF"):
            printed("score rouge --hypotheses texts --references texts")
    caplog.clear()
    assert rouge(["Größe 10 über alles"], ["Größe 10 über alles"])["rouge1"] == 100
    assert rouge(["10 20"], ["10 20"])["rouge1"] == 100 and not caplog.text


def test_untokenized_corrections_are_named(caplog):
    """Words of the sources joined with their punctuation, in outputs, references or sources; their scores are low."""
    sources = ["He go home , and she stays .", "I like cat .", "We has a dog ; it sleeps ."] * 2
    right = ["He goes home , and she stays .", "I like cats .", "We have a dog ; it sleeps ."] * 2
    plain = [re.sub(" ([.,;])", r"\1", text) for text in right]
    edits = [(1, "goes"), (2, "cats"), (1, "have")] * 2
    edits = [{0: [Edit(place, place + 1, text, "R")]} for place, text in edits]
    gold = [M2Sentence(tuple(source.split()), each) for source, each in zip(sources, edits)]
    annotator = SimpleNamespace(parse=str.split, annotate=lambda source, correction: [])
    assert m2_score(right, gold)["precision"] == 1
    assert gleu(right, right, sources)["gleu"] == pytest.approx(100)
    annotate(sources, right, annotator)
    # Abbreviations are words with punctuation, and need no warning; texts may have none at all.
    gleu(["Mr. Lee paid 5 euros ."], ["Mr. Lee paid 5 euros ."], ["Mr. Lee pays 5 euros ."])
    gleu(["a b c d"], ["a b c d"], ["a b c d"])
    assert not caplog.text
    for run, name in (
        (lambda: m2_score(plain, gold), "predictions"),
        (lambda: gleu(plain, right, sources), "predictions"),
        (lambda: gleu(right, plain, sources), "references"),
        (lambda: annotate(plain, right, annotator), "sources"),
        (lambda: annotate(sources, plain, annotator), "corrections"),
    ):
        caplog.clear()
        run()
        assert f"The {name} do not seem to be tokenized, as in 'He goes home, and" in caplog.text
        assert len(caplog.records) == 1
    assert m2_score(plain, gold)["precision"] < 0.5


@pytest.fixture
def folders(tokenizer, write):  # noqa: F811
    """An encoder-decoder and a language model, saved with their tokenizer, beside texts."""
    write({"source": SOURCES, "target": TARGETS})
    ids = ids_of(tokenizer)
    models = {
        "pairs": build(OdeTransformerForConditionalGeneration, vocab_size=len(tokenizer), **ids),
        "language": build(
            OdeTransformerForCausalLM,
            vocab_size=len(tokenizer),
            **{name: value for name, value in ids.items() if name != "decoder_start_token_id"},
        ),
    }
    for name, model in models.items():
        model.save_pretrained(name)
        tokenizer.save_pretrained(name)
    return models


def test_likelihoods_of_lines_tokens_and_lists(folders, tokenizer, printed, write):  # noqa: F811
    expected = target_likelihoods(folders["pairs"].eval(), tokenizer, SOURCES, TARGETS)
    command = "score likelihood --model pairs --sources source --targets"
    lines = printed(f"{command} target").splitlines()
    np.testing.assert_allclose([float(line) for line in lines], [scores.sum() for _, scores in expected], atol=1e-4)
    objects = [json.loads(line) for line in printed(f"{command} target --tokens").splitlines()]
    assert [each["tokens"] for each in objects] == [tokens for tokens, _ in expected]
    for each, (_, scores) in zip(objects, expected):
        np.testing.assert_allclose(each["log_probabilities"], scores, atol=1e-4)

    write({"list": [f"2\t-0.5\t{TARGETS[1]}", f"1\t{TARGETS[0]}"], "other": ["0\ta"]})
    of_list = printed(f"{command} list --n_best").splitlines()
    np.testing.assert_allclose([float(line) for line in of_list], [float(lines[1]), float(lines[0])], atol=1e-4)
    for name, message in (
        ("target", "target is not an n-best list"),
        ("other", "outputs of source 0, but --sources has the lines 1 to 4"),
    ):
        with pytest.raises(ValueError, match=message):
            printed(f"{command} {name} --n_best")


def test_likelihoods_by_a_language_model(folders, tokenizer, printed):  # noqa: F811
    lines = printed("score likelihood --model language --targets target").splitlines()
    expected = score_lines(folders["language"], tokenizer, TARGETS)["nll"]
    np.testing.assert_allclose([float(line) for line in lines], -expected, atol=1e-4)
    with pytest.raises(ValueError, match="language is a language model: leave out --sources"):
        printed("score likelihood --model language --targets target --sources source")
    with pytest.raises(ValueError, match="pairs is an encoder-decoder: give --sources"):
        printed("score likelihood --model pairs --targets target")


@pytest.mark.parametrize("name", evaluate_metrics.FUNCTIONS)
def test_evaluate_opens_the_metrics(name, tmp_path, evaluate_modules):
    references = [[line, line.replace("cat", "dog")] for line in REFERENCES]
    metric = evaluate.load(evaluate_metrics.__file__, name, cache_dir=str(tmp_path))
    inputs = {"predictions": SYSTEMS["a"], "references": references}
    if name == "gleu":
        inputs["sources"] = SYSTEMS["b"]
        assert metric.compute(**inputs) == gleu(SYSTEMS["a"], references, SYSTEMS["b"])
    else:
        assert metric.compute(**inputs) == {"bleu": bleu, "rouge": rouge}[name](SYSTEMS["a"], references)
