# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""BLEU by its three conventions, against its definition, Moses' script and sacreBLEU itself."""

import math
import os
import random
from collections import Counter

import pytest
import sacrebleu

from modeling_ode_transformer.metrics.bleu import bleu, bleu_scorers, split_compounds


PREDICTIONS = [
    "Zwei Hunde rennen durch den Schnee .",
    "Ein Mann in einem T-Shirt steht an der U-Bahn .",
    "die Frau sagt , es ist kalt .",
    "Ja",
    "Die Kinder spielen im Park in der Sonne .",
]
REFERENCES = [
    ["Zwei Hunde laufen durch den Schnee .", "Zwei Hunde rennen durch den tiefen Schnee ."],
    ["Ein Mann im T-Shirt steht an der U-Bahn-Station .", "Ein Mann im T-Shirt wartet an der U-Bahn-Station ."],
    ["Die Frau sagt , es sei kalt .", "Der Frau ist kalt ."],
    ["Ja", "Jawohl !"],
    ["Kinder spielen im Park , und die Sonne scheint .", "Im Park spielen Kinder in der Sonne ."],
]
FIRST = [texts[0] for texts in REFERENCES]
LOWER = {"lowercase": True}
SHORT = [" ".join(text.split()[:3]) for text in PREDICTIONS]


def score(name, predictions, references, **options):
    return bleu_scorers(**options)[name].score(predictions, references)


def bleu_by_definition(predictions, references):
    """Papineni et al. (2002) over words between spaces; of two closest references the shorter gives the length."""
    matches, totals, length, reference_length = [0] * 4, [0] * 4, 0, 0
    for text, alternatives in zip(predictions, references):
        words, others = text.split(" "), [reference.split(" ") for reference in alternatives]
        length += len(words)
        reference_length += min((abs(len(other) - len(words)), len(other)) for other in others)[1]
        for n in range(4):
            ngrams, *maxima = (
                Counter(tuple(sentence[i : i + n + 1]) for i in range(len(sentence) - n))
                for sentence in (words, *others)
            )
            totals[n] += sum(ngrams.values())
            matches[n] += sum(min(count, max(other[ngram] for other in maxima)) for ngram, count in ngrams.items())
    if 0 in matches:
        return 0.0
    brevity = min(0, 1 - reference_length / length)
    return 100 * math.exp(brevity + sum(math.log(m / t) for m, t in zip(matches, totals)) / 4)


# What multi-bleu.perl of Moses prints for these texts, after `perl -ple 's{(\S)-(\S)}{$1 ##AT##-##AT## $2}g'` in the
# last two.
@pytest.mark.parametrize(
    ("name", "predictions", "references", "options", "printed"),
    [
        ("tokenized_bleu", PREDICTIONS, FIRST, {}, "37.97, 74.3/50.0/30.8/18.2 (BP=1.000, ratio=1.000)"),
        ("tokenized_bleu", PREDICTIONS, REFERENCES, {}, "56.62, 85.7/70.0/53.8/31.8 (BP=1.000, ratio=1.061)"),
        ("tokenized_bleu", PREDICTIONS, REFERENCES, LOWER, "61.24, 91.4/73.3/57.7/36.4 (BP=1.000, ratio=1.061)"),
        ("tokenized_bleu", SHORT, FIRST, {}, "0.00, 69.2/50.0/0.0/0.0 (BP=0.184, ratio=0.371)"),
        ("compound_split_bleu", PREDICTIONS, FIRST, {}, "48.89, 79.5/58.8/43.3/34.6 (BP=0.950, ratio=0.951)"),
        ("compound_split_bleu", PREDICTIONS, REFERENCES, {}, "66.92, 89.7/76.5/63.3/46.2 (BP=1.000, ratio=1.000)"),
    ],
)
def test_tokenized_bleu_is_that_of_multi_bleu(name, predictions, references, options, printed):
    result = score(name, predictions, references, **options)
    precisions = "/".join(f"{precision:.1f}" for precision in result["precisions"])
    lengths = f"(BP={result['brevity_penalty']:.3f}, ratio={result['length_ratio']:.3f})"
    assert f"{result['score']:.2f}, {precisions} {lengths}" == printed


@pytest.mark.parametrize("seed", range(20))
def test_tokenized_bleu_is_its_definition(seed):
    rng = random.Random(seed)
    # To Perl, which reads bytes, a no-break space is part of a word.
    vocabulary = ["a", "b", "c", "d", "A", "ä", "e\u00a0f", "g\u3000h", "-"][: rng.randint(3, 9)]
    draw = lambda: " ".join(rng.choice(vocabulary) for _ in range(rng.choice((1, 5, 9))))  # noqa: E731
    references = [[draw() for _ in range(rng.randint(1, 3))] for _ in range(rng.randint(2, 9))]
    predictions = [rng.choice(texts) if rng.random() < 0.5 else draw() for texts in references]
    expected = bleu_by_definition(predictions, references)
    assert score("tokenized_bleu", predictions, references)["score"] == pytest.approx(expected, abs=1e-9)


def test_lowercase_is_of_ascii_letters_only_as_in_multi_bleu():
    assert score("tokenized_bleu", ["A B C D"], ["a b c d"], lowercase=True)["score"] == pytest.approx(100)
    assert score("tokenized_bleu", ["A B C Ä"], ["a b c ä"], lowercase=True)["score"] == 0


@pytest.mark.parametrize(
    ("text", "split"),
    [
        ("a rich-text file", "a rich ##AT##-##AT## text file"),
        ("ab-cd-ef", "ab ##AT##-##AT## cd ##AT##-##AT## ef"),
        ("x-y-z", "x ##AT##-##AT## y-z"),
        # two bytes: Perl sees one on each side
        ("e-ß-f", "e ##AT##-##AT## ß ##AT##-##AT## f"),
        ("a--b", "a ##AT##-##AT## -b"),
        ("a - b -c d-", "a - b -c d-"),
        ("a-\u00a0b", "a ##AT##-##AT## \u00a0b"),
    ],
)
def test_compounds_are_split_as_perl_does(text, split):
    """The right sides are what Perl 5.36 printed."""
    assert split_compounds(text) == split


@pytest.mark.parametrize("tokenize", ["13a", "intl", "char", "none"])
@pytest.mark.parametrize("lowercase", [False, True])
def test_sacrebleu_is_sacrebleu(tokenize, lowercase):
    metric = sacrebleu.BLEU(tokenize=tokenize, lowercase=lowercase)
    expected = metric.corpus_score(PREDICTIONS, list(zip(*REFERENCES)))
    result = score("sacrebleu", PREDICTIONS, REFERENCES, tokenize=tokenize, lowercase=lowercase)
    assert result["score"] == expected.score
    assert result["precisions"] == expected.precisions
    assert result["brevity_penalty"] == expected.bp
    assert result["length_ratio"] == expected.sys_len / expected.ref_len
    assert result["signature"] == str(metric.get_signature())


def test_plain_text_is_tokenized_by_moses_on_request():
    """By Moses' rules for German: "z.B." is an abbreviation, quotation marks are escaped."""
    predictions, references = ['Er sagte: "Ja, z.B. heute."'], ['Sie sagte: "Ja, z.B. heute."']
    tokens = ["Er sagte : &quot; Ja , z.B. heute . &quot;"], ["Sie sagte : &quot; Ja , z.B. heute . &quot;"]
    expected = score("tokenized_bleu", *tokens)
    result = score("tokenized_bleu", predictions, references, moses_language="de")
    assert 0 < result["score"] == expected["score"]
    assert result["precisions"] == expected["precisions"]
    assert score("tokenized_bleu", predictions, references)["score"] != result["score"]


def test_a_signature_names_what_was_done():
    signatures = {
        name.removesuffix("_signature"): value.partition("|version:")[0]
        for name, value in bleu(PREDICTIONS, REFERENCES, lowercase=True, moses_language="de").items()
        if name.endswith("_signature")
    }
    assert signatures == {
        "sacrebleu": "nrefs:2|case:lc|eff:no|tok:13a|smooth:exp",
        "tokenized_bleu": "nrefs:2|case:lc.ascii|eff:no|tok:moses.de|smooth:none",
        "compound_split_bleu": "nrefs:2|case:lc.ascii|eff:no|tok:moses.de|smooth:none|compounds:split",
    }
    result = score("tokenized_bleu", PREDICTIONS, [*REFERENCES[:-1], FIRST[-1]])
    assert result["signature"].startswith("nrefs:var|case:mixed|eff:no|tok:none|smooth:none|")


def test_the_command_prints_the_scores_of_files(write, printed):
    first, second = zip(*REFERENCES)
    write({"output.de": PREDICTIONS, "0.de.gz": first, "1.de.gz": second, "short.de": PREDICTIONS[:3]})
    files = "--hypotheses output.de --references 0.de.gz 1.de.gz"
    lines = printed(f"score bleu --tokenized {files}").splitlines()
    assert "tokenized_bleu = 56.6233" in lines
    assert "tokenized_bleu_precisions = 85.7143 / 70.0000 / 53.8462 / 31.8182" in lines
    assert f"sacrebleu_signature = {bleu(PREDICTIONS, REFERENCES)['sacrebleu_signature']}" in lines
    expected = bleu(PREDICTIONS, REFERENCES, tokenize="intl", lowercase=True, moses_language="de")
    assert printed(f"score bleu {files} --tokenize intl --lowercase --moses_language de --json") == expected
    with pytest.raises(ValueError, match=r"output\.de has 5 lines, but short\.de has 3"):
        printed(f"score bleu {files} short.de")


def test_a_pipe_is_read_as_a_file(write, printed):
    """As /dev/stdin, or <(a command) in a shell."""
    write({"0.de": FIRST})
    reading, writing = os.pipe()
    with os.fdopen(writing, "w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in PREDICTIONS)
    scores = printed(f"score bleu --json --hypotheses /dev/fd/{reading} --references 0.de")
    os.close(reading)
    assert scores["sacrebleu"] == bleu(PREDICTIONS, FIRST)["sacrebleu"]
    with pytest.raises(FileNotFoundError, match=r"No file \. "):
        printed("score bleu --hypotheses . --references 0.de")


@pytest.mark.parametrize(
    ("line", "options", "number"),
    [("Two dogs run .", "", 1), ("Two dogs run .", "--tokenized", 3), ("Zwei Hunde.", "--moses_language de", 3)],
)
def test_the_command_prints_scores_of_tokenized_text_where_asked_to(line, options, number, write, printed):
    write({"text": [line]})
    scores = printed(f"score bleu --json --hypotheses text --references text {options}")
    assert [name for name in scores if "_signature" in name] == [
        f"{name}_signature" for name in ("sacrebleu", "tokenized_bleu", "compound_split_bleu")[:number]
    ]
