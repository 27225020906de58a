# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Generated learner English in M2 files: a small grammar, with errors in agreement, prepositions and articles."""

import random
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ...metrics.m2 import Edit, M2Sentence, write_m2


SINGULAR = ["My friend", "The teacher", "His sister", "Our doctor", "The old man", "A young woman", "Her son"]
PLURAL = ["My friends", "The teachers", "Some people", "Our neighbours", "The old men", "Many students", "Children"]
VERBS = ["listen to", "look at", "wait for", "talk about", "depend on", "live in", "laugh at", "search for", "walk to"]
PREPOSITIONS = sorted({verb.split()[1] for verb in VERBS})
ADVERBS = ["", "", "often", "never", "always", "sometimes"]
NOUNS = ["house", "old house", "orange", "school", "idea", "new idea", "island", "large garden", "answer", "uncle"]
TIMES = ["", "", "in the morning", "in summer", "on Sunday", "at night", "every day", "after lunch", "at the weekend"]

ERROR_RATE = 0.35


class Phrase(NamedTuple):
    """A part of a sentence: what is right, and for some parts what learners write instead and the type of error."""

    right: str
    wrong: list[str] = []
    error: str = ""


def draw_phrases(rng: random.Random) -> list[Phrase]:
    verb, preposition = rng.choice(VERBS).split()
    third_person = verb + ("es" if verb.endswith("ch") else "s")
    subject, right_verb, wrong_verb = rng.choice(
        [(rng.choice(SINGULAR), third_person, verb), (rng.choice(PLURAL), verb, third_person)]
    )
    noun = rng.choice(NOUNS)
    indefinite, misused = ("an", "a") if noun[0] in "aeiou" else ("a", "an")
    return [
        Phrase(subject),
        Phrase(rng.choice(ADVERBS)),
        Phrase(right_verb, [wrong_verb], "VERB:SVA"),
        Phrase(preposition, ["", *(other for other in PREPOSITIONS if other != preposition)], "PREP"),
        rng.choice([Phrase("the", [""], "DET"), Phrase(indefinite, ["", misused], "DET")]),
        Phrase(noun),
        Phrase(rng.choice(TIMES)),
        Phrase("."),
    ]


def draw_sentence(rng: random.Random, annotators: int) -> M2Sentence:
    """A sentence with the edits of one or two annotators. The second has "the" wherever an article was wrong."""
    tokens, edits = [], []
    for right, wrong, error in draw_phrases(rng):
        text = rng.choice(wrong) if wrong and rng.random() < ERROR_RATE else right
        span = (len(tokens), len(tokens) + len(text.split()))
        tokens += text.split()
        if text != right:
            edits.append(Edit(*span, right, f"{'R' if text else 'M'}:{error}"))
    second = [replace(edit, correction="the") if edit.type.endswith(":DET") else edit for edit in edits]
    return M2Sentence(tuple(tokens), dict(enumerate([edits, second][:annotators])))


def write_corpus(folder: Path, sizes: dict[str, int], annotators: dict[str, int]) -> None:
    """Writes `{name}.m2` of so many sentences, none of them twice in a file, always the same ones."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(0)
    for name, size in sizes.items():
        sentences = {}
        while len(sentences) < size:
            sentence = draw_sentence(rng, annotators.get(name, 1))
            sentences.setdefault(sentence.tokens, sentence)
        write_m2(folder / f"{name}.m2", list(sentences.values()))
