# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""ERRANT's scores of M2 files and its edits of texts, against its own commands."""

import sys

import pytest
import spacy
from errant.commands import compare_m2, parallel_to_m2

from modeling_ode_transformer.metrics.errant import CRITERIA, annotate, errant_score, load_annotator
from modeling_ode_transformer.metrics.m2 import M2Sentence, parse_m2, read_m2, write_m2


SYSTEM = """\
S This are a sentences .
A 1 2|||R:VERB:SVA|||is|||REQUIRED|||-NONE-|||0
A 2 4|||R:NOUN|||a phrase|||REQUIRED|||-NONE-|||0
A 4 4|||M:ADV|||here|||REQUIRED|||-NONE-|||0

S He go to to school .
A 1 2|||R:VERB:TENSE|||goes|||REQUIRED|||-NONE-|||0
A 3 4|||U:PREP||||||REQUIRED|||-NONE-|||0

S All is well .
A -1 -1|||noop|||-NONE-|||REQUIRED|||-NONE-|||0

S I like cat .
A 2 3|||R:NOUN:NUM|||cats|||REQUIRED|||-NONE-|||0

"""
REFERENCE = """\
S This are a sentences .
A 1 2|||R:VERB:SVA|||is|||REQUIRED|||-NONE-|||0
A 3 4|||R:NOUN:NUM|||sentence|||REQUIRED|||-NONE-|||0
A 0 1|||R:DET|||These|||REQUIRED|||-NONE-|||1
A 2 3|||U:DET||||||REQUIRED|||-NONE-|||1

S He go to to school .
A 1 2|||R:VERB:SVA|||goes|||REQUIRED|||-NONE-|||0
A 3 4|||U:PREP||||||REQUIRED|||-NONE-|||0
A 4 5|||UNK|||school|||REQUIRED|||-NONE-|||0

S All is well .
A 3 3|||M:PUNCT|||!|||REQUIRED|||-NONE-|||0
A -1 -1|||noop|||-NONE-|||REQUIRED|||-NONE-|||1

S I like cat .
A 1 1|||M:VERB|||would|||REQUIRED|||-NONE-|||0
A 2 3|||R:NOUN:NUM|||cats|||REQUIRED|||-NONE-|||0

"""


@pytest.fixture
def files(write):
    write({"system.m2": SYSTEM.split("\n"), "reference.m2": REFERENCE.split("\n")})
    return ["system.m2", "reference.m2"]


def run(main, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["command", *arguments])
    main()


def printed_by_errant(text):
    """The rows of numbers that `errant_compare -cat` prints: for each type, and last (key None) for all."""
    rows = {}
    for line in text.splitlines():
        cells = line.split()
        if len(cells) in (6, 7) and cells[-1].replace(".", "").isdigit():
            name = cells.pop(0) if len(cells) == 7 else None
            rows[name] = [float(cell) for cell in cells]
    return rows


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("types", ["operation", "main", "all"])
def test_scores_are_those_that_errant_prints(files, monkeypatch, capsys, criterion, types):
    system, reference = files
    level = {"operation": "1", "main": "2", "all": "3"}[types]
    run(compare_m2.main, monkeypatch, "-hyp", system, "-ref", reference, f"-{criterion}", "-cat", level, "-b", "0.7")
    expected = printed_by_errant(capsys.readouterr().out)

    result = errant_score(read_m2(system), read_m2(reference), beta=0.7, criterion=criterion, types=types)
    names = "true_positives", "false_positives", "false_negatives", "precision", "recall", "f0.7"
    ours = {name: [row[each] for each in names] for name, row in [*result.pop("types").items(), (None, result)]}
    assert ours == expected
    assert len(ours) > 2


# Of two edits the first annotator has one, the second both and two more: 1/2 and 1, 1 and 1/2.
CHOICE = (
    """\
S a b c d
A 0 1|||R:X|||e|||REQUIRED|||-NONE-|||0
A 1 2|||R:X|||f|||REQUIRED|||-NONE-|||0

""",
    """\
S a b c d
A 0 1|||R:X|||e|||REQUIRED|||-NONE-|||0
A 0 1|||R:X|||e|||REQUIRED|||-NONE-|||1
A 1 2|||R:X|||f|||REQUIRED|||-NONE-|||1
A 2 3|||R:X|||g|||REQUIRED|||-NONE-|||1
A 3 4|||R:X|||h|||REQUIRED|||-NONE-|||1

""",
)


@pytest.mark.parametrize("beta, counts", [(0.5, [2, 0, 2]), (2, [1, 1, 0])])
def test_beta_chooses_the_annotator_as_in_errant(write, monkeypatch, capsys, beta, counts):
    system, reference = "system.m2", "reference.m2"
    write({name: text.split("\n") for name, text in zip((system, reference), CHOICE)})
    run(compare_m2.main, monkeypatch, "-hyp", system, "-ref", reference, "-b", str(beta))
    expected = printed_by_errant(capsys.readouterr().out)[None]
    result = errant_score(read_m2(system), read_m2(reference), beta=beta)
    names = "true_positives", "false_positives", "false_negatives", "precision", "recall", f"f{beta:g}"
    assert [result[name] for name in names] == expected
    assert expected[:3] == counts


def test_scores_by_hand():
    """Without UNK; `goes` is right whatever its type; the second annotator finds nothing wrong with the third."""
    sentences = [parse_m2(text.split("\n"), "test.m2")[:4] for text in (SYSTEM, REFERENCE)]
    result = errant_score(*sentences)
    assert [result[name] for name in ("true_positives", "false_positives", "false_negatives")] == [4, 2, 2]
    assert (result["precision"], result["recall"], result["f0.5"]) == (0.6667, 0.6667, 0.6667)
    expected = {"true_positives": 2, "false_positives": 0, "false_negatives": 0}
    assert result["types"]["R:VERB:SVA"] == dict.fromkeys(("precision", "recall", "f0.5"), 1) | expected
    assert errant_score(*sentences, criterion="cse")["true_positives"] == 3


def test_a_deletion_may_be_written_as_none():
    """The one way of ERRANT's files, the other of the official scorer's."""
    empty, none = (f"S a b c\nA 1 2|||U:X|||{text}|||REQUIRED|||-NONE-|||0" for text in ("", "-NONE-"))
    for sentences in ((empty, none), (none, empty), (none, none)):
        result = errant_score(*(parse_m2(text.split("\n"), "test.m2") for text in sentences))
        assert [result[name] for name in ("true_positives", "false_positives", "false_negatives")] == [1, 0, 0]


def test_what_cannot_be_compared_is_said(files):
    system, reference = map(read_m2, files)
    with pytest.raises(ValueError, match="4 predictions, 3 references"):
        errant_score(system, reference[:3])
    with pytest.raises(
        ValueError, match=r"index 1 has the sentence 'He go to to school \.', but the reference has 'All is"
    ):
        errant_score(system[:2], [reference[0], reference[2]])


def test_the_command_prints_the_table_of_types(files, write, printed):
    command = "score errant --hypotheses system.m2 --references reference.m2"
    assert printed(f"{command} --types operation") == (
        "precision = 0.6667\nrecall = 0.6667\nf0.5 = 0.6667\n"
        "true_positives = 4\nfalse_positives = 2\nfalse_negatives = 2\n"
        "| types | precision | recall | f0.5 | true_positives | false_positives | false_negatives |\n"
        "| --- | --- | --- | --- | --- | --- | --- |\n"
        "| M | 0.0000 | 0.0000 | 0.0000 | 0 | 1 | 1 |\n"
        "| R | 0.7500 | 0.7500 | 0.7500 | 3 | 1 | 1 |\n"
        "| U | 1.0000 | 1.0000 | 1.0000 | 1 | 0 | 0 |\n"
    )
    write({"correct.m2": ["S It is .", "A -1 -1|||noop|||-NONE-|||REQUIRED|||-NONE-|||0"]})
    assert "false_negatives = 0" in printed("score errant --hypotheses correct.m2 --references correct.m2")
    scores = errant_score(*map(read_m2, files), beta=1, criterion="ds")
    assert printed(f"{command} --beta 1 --criterion ds --json") == scores


# With their tags, parts of speech and lemmas.
WORDS = "cat NN NOUN cat, cats NNS NOUN cat, the DT DET the, sat VBD VERB sit, sits VBZ VERB sit, on IN ADP on"
WORDS += ", mat NN NOUN mat, . . PUNCT ."


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A folder with a model of spaCy that knows the words of the test below, in place of the one to be downloaded."""
    nlp = spacy.blank("en")
    ruler = nlp.add_pipe("attribute_ruler")
    for word, tag, pos, lemma in map(str.split, WORDS.split(", ")):
        ruler.add([[{"LOWER": word}]], {"TAG": tag, "POS": pos, "LEMMA": lemma})
    folder = tmp_path_factory.mktemp("spacy") / "model"
    nlp.to_disk(folder)
    return str(folder)


TEXTS = {
    "sources": ["the cats sat on mat .", "The cat sat .", "The cat on mat"],
    "first": ["The cat sits on the mat .", "The cat sat .", "The cat on the mat ."],
    "second": ["the cats sat on the mat .", "The cat sits .", ""],
}


def test_edits_are_those_of_errants_command(model, monkeypatch, write, printed):
    write(TEXTS)
    annotator = load_annotator(model)
    monkeypatch.setattr(parallel_to_m2.errant, "load", lambda language, nlp=None: annotator)
    run(parallel_to_m2.main, monkeypatch, *"-orig sources -cor first second -out theirs.m2".split())

    command = f"annotate --sources sources --output ours.m2 --spacy_model {model} --corrections first second"
    printed(command)
    ours = read_m2("ours.m2")
    assert ours == read_m2("theirs.m2") and ours[1].edits[0] == []
    assert [edit.type for edit in ours[0].edits[0]] == ["R:ORTH", "R:NOUN:NUM", "R:VERB:TENSE", "M:DET"]
    assert [" ".join(sentence.corrected(0)) for sentence in ours] == TEXTS["first"]

    with pytest.raises(FileExistsError, match=r"ours\.m2 exists"):
        printed(command)


def test_one_correction_or_several_of_each_sentence(model, tmp_path):
    annotator = load_annotator(model)
    one = annotate(TEXTS["sources"], TEXTS["first"], annotator)
    both = annotate(TEXTS["sources"], list(zip(TEXTS["first"], TEXTS["second"])), annotator)
    assert [sentence.edits[0] for sentence in both] == [sentence.edits[0] for sentence in one]
    assert [list(sentence.edits) for sentence in both] == [[0, 1]] * 3
    empty = annotate(["", ""], ["", "the cat"], annotator)
    assert empty[0] == M2Sentence((), {0: []})
    assert empty[1].corrected() == ["the", "cat"]
    write_m2(tmp_path / "empty.m2", empty)
    assert read_m2(tmp_path / "empty.m2") == empty
    with pytest.raises(ValueError, match="3 predictions, 1 references"):
        annotate(TEXTS["sources"], ["a"], annotator)
