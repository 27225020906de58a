# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""M2 files and the M2 score: against the official scorer's examples, and its algorithm without shortcuts."""

import gzip
import random
from collections import defaultdict
from dataclasses import astuple

import pytest

from modeling_ode_transformer.metrics.m2 import (
    Edit,
    M2Sentence,
    m2_score,
    m2_score_statistics,
    m2_statistics,
    parse_m2,
    read_m2,
    write_m2,
)
from modeling_ode_transformer.metrics.maxmatch import count_edits


# The example of the official scorer's README.
OFFICIAL_M2 = """\
S The cat sat at mat .
A 3 4|||Prep|||on|||REQUIRED|||-NONE-|||0
A 4 4|||ArtOrDet|||the||a|||REQUIRED|||-NONE-|||0

S The dog .
A 1 2|||NN|||dogs|||REQUIRED|||-NONE-|||0
A -1 -1|||noop|||-NONE-|||-NONE-|||-NONE-|||1

S Giant otters is an apex predator .
A 2 3|||SVA|||are|||REQUIRED|||-NONE-|||0
A 3 4|||ArtOrDet|||-NONE-|||REQUIRED|||-NONE-|||0
A 5 6|||NN|||predators|||REQUIRED|||-NONE-|||0
A 1 2|||NN|||otter|||REQUIRED|||-NONE-|||1
"""
OFFICIAL_SYSTEM = ["A cat sat on the mat .", "The dog .", "Giant otters are apex predator ."]


def sentences(text):
    return parse_m2(text.split("\n"), "test.m2")


def score(source, prediction, *annotators):
    """Correct edits, edits of the prediction and gold edits, where each annotator's edits are (start, end, text)."""
    edits = {i: [Edit(*edit, "R") for edit in each] for i, each in enumerate(annotators)}
    result = m2_score([prediction], [M2Sentence(tuple(source.split()), edits)])
    return result["correct"], result["proposed"], result["gold"]


def test_an_edit_that_an_annotator_has_twice_counts_once(caplog):
    """The official scorer counts it twice for one edit of a system: a precision of 2."""
    edit = "A 1 2|||NN|||dogs|||REQUIRED|||-NONE-|||0"
    (sentence,) = sentences("\n".join(["S The dog .", edit, edit.replace("NN", "Noun"), edit.replace("0", "1")]))
    assert [len(edits) for edits in sentence.edits.values()] == [1, 1]
    assert m2_score(["The dogs ."], [sentence])["precision"] == 1
    assert "annotator has them twice: 1, the first in line 3" in caplog.text


def test_example_of_the_official_scorer():
    result = m2_score(OFFICIAL_SYSTEM, sentences(OFFICIAL_M2))
    expected = {"precision": 0.8, "recall": 0.8, "f0.5": 0.8, "correct": 4, "proposed": 5, "gold": 5}
    assert result == pytest.approx(expected)
    first_annotator = [M2Sentence(each.tokens, {0: each.edits[0]}) for each in sentences(OFFICIAL_M2)]
    result = m2_score(OFFICIAL_SYSTEM, first_annotator, beta=1)
    expected = {"precision": 4 / 5, "recall": 4 / 6, "f1": 8 / 11, "correct": 4, "proposed": 5, "gold": 6}
    assert result == pytest.approx(expected)


def test_insertions_before_the_first_word():
    """An issue of the official scorer's (6), with the edits that are right since it is closed."""
    edits = [(0, 0, "It 's"), (3, 5, "n't it")]
    assert score("Thursday , is it not ?", "It 's Thursday , is n't it ?", edits) == (2, 2, 2)
    assert score("Thursday , is it not ?", "It 's Thursday , is n't it ?", [(0, 1, "It 's"), edits[1]])[0] == 1


@pytest.mark.parametrize(
    ("source", "prediction", "annotators", "counts"),
    [
        # What changes nothing is not an edit, and nothing has to be changed.
        ("a b c", "a b c", [[]], (0, 0, 0)),
        ("a b c", "a b c", [[(1, 2, "x")]], (0, 0, 1)),
        ("a b c", "a x c", [[]], (0, 1, 0)),
        ("", "", [[]], (0, 0, 0)),
        ("", "a b", [[(0, 0, "a b")]], (1, 1, 1)),
        ("a b", "", [[(0, 2, "")]], (1, 1, 1)),
        # An edit is what the annotator took for one: of one word, of two, or with unchanged words around.
        ("a b c d", "a x y d", [[(1, 2, "x"), (2, 3, "y")]], (2, 2, 2)),
        ("a b c d", "a x y d", [[(1, 3, "x y")]], (1, 1, 1)),
        ("a b c d", "a x y d", [[(0, 4, "a x y d")]], (1, 1, 1)),
        # But with no more than two unchanged words in it.
        ("a b c d e", "x b c d y", [[(0, 5, "x b c d y")]], (0, 2, 1)),
        # Edits that match nothing are few and long: two changes with two words between are one edit.
        ("a b c d", "x b c y", [[]], (0, 1, 0)),
        ("a b c d e", "x b c d y", [[]], (0, 2, 0)),
        # One of the alternatives is enough.
        ("a b c", "a c", [[(1, 2, "x||")]], (1, 1, 1)),
        ("a b c", "a b x c", [[(2, 2, "y||x")]], (1, 1, 1)),
        # A gold insertion counts once, and matches are in the order of the file.
        ("a b", "a x x b", [[(1, 1, "x")]], (1, 2, 1)),
        ("a b", "a x x b", [[(1, 1, "x"), (1, 1, "x")]], (2, 2, 2)),
        ("a b c", "x b y", [[(2, 3, "y"), (0, 1, "x")]], (1, 2, 2)),
        # What nobody would expect: the official algorithm's surcharges, deletions and order, as its code has them.
        ("b a", "a a a b", [[]], (0, 2, 0)),
        ("c b", "d b c", [[(0, 2, "d")]], (0, 1, 1)),
        ("a a b b a", "a a a a b", [[(3, 3, "a a"), (5, 5, "b")]], (1, 3, 2)),
        ("", "c c a", [[(0, 0, "c c a"), (0, 0, "a||c a"), (0, 0, "c c||b"), (0, 0, "a")]], (2, 2, 4)),
        ("b a b b b", "b b b b a", [[(0, 2, "b a"), (3, 5, "b b")]], (0, 2, 2)),
        # The annotator with the higher F; of two with the same F, the one with more correct edits.
        ("a b c", "x b y", [[(0, 1, "x"), (2, 3, "z")], [(0, 1, "x"), (2, 3, "y")]], (2, 2, 2)),
        ("a b c", "x b y", [[(0, 1, "q"), (2, 3, "z")], [(1, 2, "q")]], (0, 1, 1)),
    ],
)
def test_edits_that_are_counted(source, prediction, annotators, counts):
    assert score(source, prediction, *annotators) == counts
    golds = [[Edit(*edit, "R") for edit in edits] for edits in annotators]
    by_annotator = [counts_without_shortcuts(source.split(), prediction.split(), gold) for gold in golds]
    assert counts in by_annotator


def test_scores_where_there_is_nothing_to_divide_by():
    reference = M2Sentence(("a",), {0: [Edit(0, 1, "b", "R")]})
    right = M2Sentence(("a",), {})
    names = "precision", "recall", "f0.5"
    assert [m2_score(["a"], [reference])[name] for name in names] == [1, 0, 0]
    assert [m2_score(["b"], [right])[name] for name in names] == [0, 1, 0]
    assert [m2_score(["a"], [right])[name] for name in names] == [1, 1, 1]


def list_of_edges(source, hypothesis, max_unchanged_words):
    """All edges as the official scorer lists them; vertices are pairs, an edge has [steps, unchanged words]."""
    listed, found = [], {}
    for substitution in (1, 2):
        distance = {(-1, j): float("inf") for j in range(-1, len(hypothesis) + 1)}
        distance |= {(i, -1): float("inf") for i in range(len(source) + 1)}
        before = {}
        for i in range(len(source) + 1):
            for j in range(len(hypothesis) + 1):
                same = i > 0 and j > 0 and source[i - 1] == hypothesis[j - 1]
                steps = {(i - 1, j): 1, (i, j - 1): 1, (i - 1, j - 1): 0 if same else substitution}
                distance[i, j] = min((distance[v] + cost for v, cost in steps.items()), default=0) if i or j else 0
                before[i, j] = [
                    (v, int(same and v == (i - 1, j - 1)))
                    for v, cost in steps.items()
                    if min(v) >= 0 and distance[v] + cost == distance[i, j]
                ]
        waiting, seen = [(len(source), len(hypothesis))], set()
        while waiting:
            target = waiting.pop()
            if target not in seen:
                seen.add(target)
                for v, unchanged in before[target]:
                    listed.append((v, target))
                    found[v, target] = [1, unchanged]
                    waiting.append(v)
    listed.sort()
    vertices = sorted({v for edge in listed for v in edge})
    for k in vertices:
        for i in vertices:
            for j in vertices:
                if (i, k) in found and (k, j) in found:
                    steps, unchanged = (sum(pair) for pair in zip(found[i, k], found[k, j]))
                    if steps < found.get((i, j), [float("inf")])[0] and unchanged <= max_unchanged_words:
                        listed.append((i, j))
                        found[i, j] = [steps, unchanged]
    for edge in listed:
        steps, unchanged = found[edge]
        if steps == unchanged > 1:
            listed.remove(edge)
    return vertices, listed, found


def counts_without_shortcuts(source, hypothesis, gold_edits, max_unchanged_words=2):
    """`count_edits` for one annotator, by Bellman-Ford through all edges."""
    vertices, listed, found = list_of_edges(source, hypothesis, max_unchanged_words)

    def is_match(edge, gold):
        (i, j), (end, behind) = edge
        return (i, end) == (gold.start, gold.end) and " ".join(hypothesis[j:behind]) in gold.alternatives

    costs, insertions = {edge: found[edge][0] for edge in listed}, defaultdict(list)
    for edge in listed:
        if edge[0][0] == edge[1][0]:
            insertions[edge[0][0]].append(edge)
        elif any(is_match(edge, gold) for gold in gold_edits):
            costs[edge] = -len(listed)
        elif found[edge][0] > found[edge][1]:
            costs[edge] += 0.001
    for edges in insertions.values():
        edges.sort()
        golds, first, last, current = list(gold_edits), 0, len(edges) - 1, 0
        while first <= last:
            at_first = current == first
            matches = [n for n, gold in enumerate(golds) if is_match(edges[current], gold)]
            skipped = []
            if matches:
                costs[edges[current]] = -len(listed)
            else:
                costs[edges[current]] += 0.001
            if at_first:
                first += 1
                if matches:
                    golds = golds[matches[0] + 1 :]
                    while first < len(edges) and edges[first][0] != edges[current][1]:
                        skipped.append(edges[first])
                        first += 1
                current = first if matches else last
            else:
                last -= 1
                if matches:
                    golds = golds[: matches[-1]]
                    while last >= 0 and edges[last][1] != edges[current][0]:
                        skipped.append(edges[last])
                        last -= 1
                current = last if matches else first
            for edge in skipped:
                costs[edge] += 0.001

    cheapest, previous = dict.fromkeys(vertices, float("inf")) | {(0, 0): 0}, {}
    for _ in vertices:
        for v, w in listed:
            if cheapest[v] + costs[v, w] < cheapest[w]:
                cheapest[w], previous[w] = cheapest[v] + costs[v, w], v
    edits, target = [], vertices[-1] if vertices else (0, 0)
    while target in previous:
        edge = previous[target], target
        if found[edge][0] > found[edge][1]:
            edits.insert(0, edge)
        target = previous[target]
    correct = first = 0
    for edit in edits:
        for n in range(first, len(gold_edits)):
            if is_match(edit, gold_edits[n]):
                correct, first = correct + 1, n + 1
    return correct, len(edits), len(gold_edits)


def random_case(rng, length, words):
    """A source, a hypothesis that is rewritten, shuffled or unrelated, and gold edits, among them its own."""
    source = [rng.choice(words) for _ in range(rng.randint(0, length))]
    hypothesis = list(source)
    kind = rng.random()
    if kind < 0.2:
        rng.shuffle(hypothesis)
    elif kind < 0.4:
        hypothesis = [rng.choice(words) for _ in range(rng.randint(0, length))]
    else:
        for _ in range(rng.randint(0, 6)):
            at = rng.randint(0, len(hypothesis))
            hypothesis[at : at + rng.randint(0, 2)] = [rng.choice(words) for _ in range(rng.randint(0, 2))]
    gold_edits = []
    for _ in range(rng.randint(0, 5)):
        start = rng.randint(0, len(source))
        end = min(len(source), start + rng.choice((0, 0, 1, 1, 2, 3)))
        at = min(len(hypothesis), max(0, start + rng.randint(-1, 1)))
        texts = [" ".join(hypothesis[at : at + rng.randint(0, 3)]) for _ in range(rng.randint(1, 2))]
        gold_edits.append(Edit(start, end, "||".join(texts), "R"))
    if rng.random() < 0.8:
        gold_edits.sort(key=astuple)
    return source, hypothesis, gold_edits


@pytest.mark.parametrize("max_unchanged_words", [2, 0, 1, 3])
def test_counts_are_those_without_shortcuts(max_unchanged_words):
    rng = random.Random(max_unchanged_words)
    matched = 0
    for _ in range(300 if max_unchanged_words == 2 else 60):
        case = random_case(rng, rng.choice((3, 6, 9)), "abcdefghij"[: rng.choice((1, 2, 3, 10))])
        source, hypothesis, gold_edits = case
        annotations = {7: gold_edits, 2: gold_edits[::2]}  # annotators do not disturb each other
        expected = {
            annotator: counts_without_shortcuts(source, hypothesis, edits, max_unchanged_words)
            for annotator, edits in annotations.items()
        }
        assert count_edits(source, hypothesis, annotations, max_unchanged_words) == expected, case
        matched += expected[7][0]
    assert matched > 20


def test_long_sentences_without_a_common_word_and_endless_repetitions():
    """The official scorer's time is cubic in the vertices, of which the first has 26,000: one edit script is kept."""
    source, other = [f"a{i}" for i in range(160)], [f"b{i}" for i in range(160)]
    gold_edits = [Edit(0, 160, " ".join(other), "R")]
    assert count_edits(source, other, {0: gold_edits, 1: []}) == {0: (1, 1, 1), 1: (0, 1, 0)}
    repeated = source[:20] + source[17:20] * 60
    gold_edits = [Edit(20, 20, " ".join(source[17:20]), "R")]
    assert count_edits(source[:20], repeated, {0: gold_edits, 1: []}) == {0: (1, 2, 1), 1: (0, 1, 0)}


def test_annotators_are_chosen_by_the_score_so_far():
    """Alone, annotator 0 of the second sentence gives F 5/6, 1 gives 5/8. With what comes before, either can win."""
    statistics = m2_statistics(
        ["a", "x y"],
        [
            M2Sentence(("a",), {}),
            M2Sentence(("p", "q"), {0: [Edit(0, 1, "x", "R")], 3: [Edit(0, 2, "x y", "R"), Edit(1, 1, "r", "M")]}),
        ],
    )
    assert statistics.tolist() == [[[0, 0, 0], [-1, -1, -1]], [[1, 2, 1], [1, 1, 2]]]

    def chosen(rows):
        best = None
        for numbers in ([1, 2, 1], [1, 1, 2]):
            correct, proposed, gold = (a + b for a, b in zip(rows, numbers))
            f = 1.25 * correct / (0.25 * gold + proposed)
            best = max(best or (f, numbers), (f, numbers), key=lambda pair: pair[0])
        return best[1]

    for before in ([0, 0, 0], [3, 3, 10], [0, 4, 0], [9, 9, 9]):
        statistics[0, 0] = before
        result = m2_score_statistics(statistics)
        expected = [a + b for a, b in zip(before, chosen(before))]
        assert [result[name] for name in ("correct", "proposed", "gold")] == expected

    equal = statistics[1:].copy()
    equal[0] = [[0, 4, 0], [0, 3, 2]]
    assert m2_score_statistics(equal)["proposed"] == 3
    equal[0] = [[0, 3, 4], [0, 4, 0]]
    assert m2_score_statistics(equal)["gold"] == 4


def test_file_is_read(tmp_path):
    text = "\ufeff" + OFFICIAL_M2.replace("\n", "\r\n") + "\r\n\r\nS \r\nA 0 0|||M|||-NONE-||x|||REQUIRED||||||12\r\n"
    path = tmp_path / "gold.m2.gz"
    path.write_bytes(gzip.compress(text.encode()))
    first, second, third, empty = read_m2(path)
    assert first.tokens == ("The", "cat", "sat", "at", "mat", ".")
    assert first.edits == {0: [Edit(3, 4, "on", "Prep"), Edit(4, 4, "the||a", "ArtOrDet")]}
    assert first.edits[0][1].alternatives == ["the", "a"]
    assert second.edits == {0: [Edit(1, 2, "dogs", "NN")], 1: []}
    assert third.edits[0][1] == Edit(3, 4, "", "ArtOrDet")
    assert empty == M2Sentence((), {12: [Edit(0, 0, "||x", "M")]})


EDIT = "A 0 1|||R|||x|||REQUIRED|||-NONE-|||0"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"{EDIT}\n", 1),
        ("S a b\nA 0 1|||R|||x|||0\n", 2),
        (f"S a b\n{EDIT.replace('0 1', '0 one')}\n", 2),
        (f"S a b\n{EDIT[:-1]}zero\n", 2),
        ("S a b\n\n\nS c\nB c\n", 5),
    ],
)
def test_malformed_file_is_an_error_with_file_and_line(tmp_path, text, line):
    path = tmp_path / "bad.m2"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"bad\.m2, line {line}: '.*' is not an edit of a sentence"):
        read_m2(path)


def test_edits_beyond_their_sentence_are_left_out_as_officially(tmp_path, caplog):
    """The official scorer takes edits whose offsets are from 0 to the number of tokens; the annotator is still one."""
    beyond = [EDIT.replace("0 1", span)[:-1] + "1" for span in ("1 3", "3 3", "-1 1")]
    texts = [
        "\n".join(("S a b", EDIT, *edits)) for edits in (beyond, ["A -1 -1|||noop|||-NONE-|||REQUIRED|||-NONE-|||1"])
    ]
    files = [tmp_path / "beyond.m2", tmp_path / "none.m2"]
    for file, text in zip(files, texts):
        file.write_text(f"{text}\n\nS c\n{EDIT.replace('0 1', '1 1')}\n")
    found, expected = map(read_m2, files)
    assert found == expected and found[0].edits[1] == [] and len(found[1].edits[0]) == 1
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [
        "edits left out, as by the official M2 scorer, since they lie beyond their sentence: 3, the first in line 3"
    ]


def test_edits_are_applied():
    """Types as in the files of BEA-2019: what only marks an error (UNK, Um) changes nothing."""
    first, second, third = sentences(OFFICIAL_M2)
    assert " ".join(first.corrected()) == "The cat sat on the mat ."
    assert " ".join(second.corrected(1)) == "The dog ."
    assert " ".join(third.corrected()) == "Giant otters are apex predators ."
    assert " ".join(third.corrected(1)) == "Giant otter is an apex predator ."
    assert M2Sentence(("a", "b"), {}).corrected(4) == ["a", "b"]

    marked = [Edit(3, 4, "y", "UNK"), Edit(1, 2, "", "Um"), Edit(0, 1, "A", "R:ORTH"), Edit(1, 1, "x||z", "M")]
    marked.append(Edit(1, 1, "w", "M"))
    sentence = M2Sentence(("a", "b", "c", "d"), {0: marked})
    assert sentence.corrected() == ["A", "x", "w", "b", "c", "d"]


def test_edits_that_cannot_be_applied_are_errors():
    text = "S a b c\nA 0 2|||R|||x|||REQUIRED|||-NONE-|||2\nA 1 3|||R|||y|||REQUIRED|||-NONE-|||2\n"
    (sentence,) = sentences(text)
    with pytest.raises(ValueError, match="Edits of annotator 2 overlap at token 1 of 'a b c'"):
        sentence.corrected(2)
    with pytest.raises(ValueError, match="no annotator 0 for 'a b c', only 2"):
        sentence.corrected()


def test_what_is_written_is_read_again(tmp_path):
    path = tmp_path / "written.m2"
    odd = [Edit(0, 1, "|", "R"), Edit(1, 2, "x |", "R"), Edit(1, 2, "", "U"), Edit(2, 2, "||x||", "M")]
    written = [*sentences(OFFICIAL_M2), M2Sentence((), {}), M2Sentence(("ä", "|", "ß"), {3: odd, 0: []})]
    write_m2(path, written)
    assert read_m2(path) == written
    assert path.read_text(encoding="utf-8").startswith(OFFICIAL_M2[:90])
    assert "\nA -1 -1|||noop|||-NONE-|||REQUIRED|||-NONE-|||1\n\nS " in path.read_text(encoding="utf-8")


def test_the_command_prints_the_score(write, printed):
    write({"gold.m2": OFFICIAL_M2.split("\n"), "system": OFFICIAL_SYSTEM})
    command = "score m2 --hypotheses system --references gold.m2"
    expected = "precision = 0.8000\nrecall = 0.8000\nf0.5 = 0.8000\ncorrect = 4\nproposed = 5\ngold = 5\n"
    assert printed(command) == expected
    write({"gold.m2": ["S a b c", "A 0 3|||R|||x b y|||REQUIRED|||-NONE-|||0"], "system": ["x b y"]})
    scores = [printed(f"{command} --json --beta 1 {option}")["f1"] for option in ("", "--max_unchanged_words 0")]
    assert scores == [1, 0]
