# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Generated sentences: with learners' errors, or in articles that have summaries. They are always the same ones."""

import json
import random
from pathlib import Path

from modeling_ode_transformer.metrics.m2 import Edit, M2Sentence, write_m2


NAMES = "Adams Baker Carter Davis Evans Foster Green Harris".split()
PLACES = "Athens Berlin Cairo Dublin Florence Geneva Hanoi Istanbul".split()
VERBS = "builds buys finds likes needs opens sees sells".split()
NOUNS = "bridge garden house library museum school station theatre".split()
ERROR_RATE = 0.35


def draw_words(draw: random.Random) -> list[str]:
    return [draw.choice(NAMES), draw.choice(VERBS), "the", draw.choice(NOUNS), "in", draw.choice(PLACES), "."]


def draw_errors(draw: random.Random, annotators: int) -> M2Sentence:
    """A sentence that may lack the end of its verb and its article, with the edits of annotators 0, and 1 with "a"."""
    (name, verb, article, *rest), edits = draw_words(draw), []
    tokens = [name, verb]
    if draw.random() < ERROR_RATE:
        tokens = [name, verb[:-1]]
        edits.append([Edit(1, 2, verb, "R:VERB:SVA")] * 2)
    if draw.random() < ERROR_RATE:
        edits.append([Edit(2, 2, correction, "M:DET") for correction in (article, "a")])
    else:
        tokens.append(article)
    return M2Sentence((*tokens, *rest), {i: [each[i] for each in edits] for i in range(annotators)})


def write_corrections(folder: Path, sizes: dict[str, int], annotators: dict[str, int]) -> None:
    """Writes `{name}.m2` of so many sentences, none of them twice in a file; by default, of one annotator."""
    draw = random.Random(0)
    for name, size in sizes.items():
        sentences: dict[tuple[str, ...], M2Sentence] = {}
        while len(sentences) < size:
            sentence = draw_errors(draw, annotators.get(name, 1))
            sentences.setdefault(sentence.tokens, sentence)
        write_m2(folder / f"{name}.m2", list(sentences.values()))


def write_articles(folder: Path, sizes: dict[str, int]) -> None:
    """Writes `{split}.jsonl`: articles of five sentences, of which the summaries repeat the first three."""
    draw = random.Random(0)
    for split, size in sizes.items():
        records = []
        for _ in range(size):
            first, *others = (" ".join(draw_words(draw)) for _ in range(3))
            facts = [first, f"It cost {draw.randrange(2, 100)} million dollars .", "It began last year ."]
            records.append({"article": " ".join(facts + others), "highlights": "\n".join(facts)})
        (folder / f"{split}.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in records), encoding="utf-8")
