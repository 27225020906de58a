# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""M2 files (edits of annotators) and the M2 score (MaxMatch): precision, recall and F0.5 of corrections.

    ode-transformer score m2 --hypotheses output.txt --references official-2014.combined.m2

The score equals that of the official scorer (nusnlp/m2scorer) to the last edit, unless an annotator has duplicate
edits (see below). It chooses the edits of a hypothesis that match an annotator's best (Dahlmeier and Ng, 2012;
`maxmatch`). With several annotators, it goes through the sentences in order and takes the annotator who gives the
highest F over all sentences so far. Ties go to more correct edits, then to fewer edits, then to the lowest number.
Precision is 1 if the hypothesis has no edits; recall is 1 if the annotator has none. Texts are tokens separated by
white space, as in the M2 file.

In an M2 file, each sentence is a line with `S` and its tokens, then a line for each edit, then an empty line:

    S The cat sat at mat .
    A 3 4|||Prep|||on|||REQUIRED|||-NONE-|||0
    A 4 4|||ArtOrDet|||the||a|||REQUIRED|||-NONE-|||0
    A -1 -1|||noop|||-NONE-|||REQUIRED|||-NONE-|||1

The fields are the replaced tokens (start, end exclusive), the type of error, the replacement, two fields that no score
uses, and the annotator's number. The replacement may have alternatives separated by `||`; for a deletion it is empty
or `-NONE-`. `noop` says that an annotator has no edits. Edits beyond the end of their sentence, such as some in
JFLEG's `dev.ref.m2`, are left out with a warning, as in the official scorer. An annotator's duplicate edits are left
out too; the official scorer counts both as correct where a system has one.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..text_files import read_lines
from .maxmatch import Edit, count_edits
from .metric_utils import check_lists, warn_of_untokenized


logger = logging.getLogger(__name__)

# Types of edits that mark an error without correcting it; BEA-2019 does not apply them to its training data either.
UNCORRECTED_TYPES = ("UNK", "Um")


@dataclass(frozen=True, slots=True)
class M2Sentence:
    """A sentence with the edits of its annotators.

    Attributes:
        tokens: The tokens of the original sentence.
        edits: Edits by annotator number, in the order of the file; an annotator who found no error has none.
    """

    tokens: tuple[str, ...]
    edits: dict[int, list[Edit]]

    def corrected(self, annotator: int = 0) -> list[str]:
        """The tokens as an annotator corrects them, with the first of any alternatives, without `UNCORRECTED_TYPES`.

        Args:
            annotator: Number of the annotator. If nobody annotated the sentence, it is unchanged.

        Raises:
            ValueError: two edits overlap, or others but not this annotator annotated the sentence.
        """
        if self.edits and annotator not in self.edits:
            known = ", ".join(map(str, self.edits))
            raise ValueError(f"There is no annotator {annotator} for {' '.join(self.tokens)!r}, only {known}.")
        edits = [edit for edit in self.edits.get(annotator, []) if edit.type not in UNCORRECTED_TYPES]
        tokens, position = [], 0
        for edit in sorted(edits, key=lambda edit: (edit.start, edit.end)):
            if edit.start < position:
                raise ValueError(
                    f"Edits of annotator {annotator} overlap at token {edit.start} of {' '.join(self.tokens)!r}."
                )
            tokens += [*self.tokens[position : edit.start], *edit.alternatives[0].split()]
            position = edit.end
        return [*tokens, *self.tokens[position:]]

    def __str__(self) -> str:
        """The sentence's lines in an M2 file, without the empty one."""
        lines = [f"S {' '.join(self.tokens)}"]
        for annotator, edits in self.edits.items():
            for edit in edits or [Edit(-1, -1, "-NONE-", "noop")]:
                several = len(edit.alternatives) > 1
                correction = "||".join(text or "-NONE-" for text in edit.alternatives) if several else edit.correction
                fields = [f"A {edit.start} {edit.end}", edit.type, correction]
                lines.append("|||".join([*fields, "REQUIRED", "-NONE-", str(annotator)]))
        return "\n".join(lines)


def parse_edit(line: str) -> tuple[int, Edit | None]:
    """The annotator and the edit in a line of an M2 file, None for a `noop`."""
    # From the right: a correction may end in "|".
    beginning, _, _, annotator = line.removeprefix("A ").rsplit("|||", 3)
    span, error_type, correction = beginning.split("|||", 2)
    start, end = map(int, span.split())
    if error_type == "noop" or (start, end) == (-1, -1):
        return int(annotator), None
    alternatives = ["" if text == "-NONE-" else text.strip() for text in correction.split("||")]
    return int(annotator), Edit(start, end, "||".join(alternatives), error_type)


def parse_m2(lines: Iterable[str], name: str) -> list[M2Sentence]:
    """The sentences in the lines of an M2 file; error messages call it `name`.

    Raises:
        ValueError: a line is malformed; the message names it.
    """
    sentences: list[M2Sentence] = []
    beyond, repeated = [], []
    for number, line in enumerate(lines, 1):
        if line.startswith("S ") or line == "S":
            sentences.append(M2Sentence(tuple(line[2:].split()), {}))
        elif line.strip():
            try:
                annotator, edit = parse_edit(line)
                edits = sentences[-1].edits.setdefault(annotator, [])
            except (IndexError, ValueError) as error:
                raise ValueError(f"{name}, line {number}: {line[:80]!r} is not an edit of a sentence.") from error
            if edit and not 0 <= edit.start <= edit.end <= len(sentences[-1].tokens):
                beyond.append(number)
            elif edit and any(
                (edit.start, edit.end, edit.correction) == (other.start, other.end, other.correction)
                for other in edits
            ):
                repeated.append(number)
            elif edit:
                edits.append(edit)
    for numbers, reason in (
        (beyond, "as by the official M2 scorer, since they lie beyond their sentence"),
        (repeated, "since their annotator has them twice"),
    ):
        if numbers:
            logger.warning("%s: edits left out, %s: %d, the first in line %d", name, reason, len(numbers), numbers[0])
    return sentences


def read_m2(path: str | Path) -> list[M2Sentence]:
    """The sentences of an M2 file, UTF-8 or `.gz`.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: the file is not UTF-8, or a line is malformed; the message names file and line.
    """
    return parse_m2(read_lines(path), str(path))


def write_m2(path: str | Path, sentences: Iterable[M2Sentence]) -> None:
    """Writes an M2 file."""
    Path(path).write_text("".join(f"{sentence}\n\n" for sentence in sentences), encoding="utf-8", newline="\n")


def m2_statistics(
    predictions: Sequence[str], references: Sequence[M2Sentence], max_unchanged_words: int = 2
) -> np.ndarray:
    """The statistics behind the score, by sentence and annotator.

    Args:
        predictions: Corrected sentences, tokens separated by white space.
        references: The sentences with their annotators' edits.
        max_unchanged_words: Maximum number of unchanged words within an edit of a prediction.

    Returns:
        int64 (sentences, annotators, 3): numbers of correct edits, of the prediction's edits and of the annotator's
        edits. Annotators are in the order of their numbers; -1 marks one who did not annotate the sentence.

    Raises:
        ValueError: there are not as many references as predictions, or none.
    """
    check_lists(predictions=predictions, references=references)
    warn_of_untokenized(predictions=predictions)
    counts = [
        count_edits(reference.tokens, prediction.split(), reference.edits or {0: []}, max_unchanged_words)
        for prediction, reference in zip(predictions, references)
    ]
    annotators = sorted(set().union(*counts))
    return np.array([[of.get(annotator, (-1, -1, -1)) for annotator in annotators] for of in counts])


def m2_score_statistics(statistics: np.ndarray, beta: float = 0.5) -> dict[str, float | int]:
    """The score of sentences from their `m2_statistics`, in order.

    The annotator of each sentence depends on the sentences before it, so each bootstrap resample is scored anew.

    Returns:
        precision, recall, f0.5 (or f1, f2, ... depending on `beta`), all from 0 to 1, and the numbers of edits behind
        them: correct, proposed, gold.
    """
    weight = beta * beta
    correct = proposed = gold = 0

    def totals(counts: Sequence[int]) -> tuple[float, int, float]:
        matches, edits, expected = correct + counts[0], proposed + counts[1], gold + counts[2]
        cost = weight * expected + edits
        return (1 + weight) * matches / cost if cost else 1.0, matches, -(edits + weight * expected)

    for annotations in statistics.tolist():
        chosen = max((counts for counts in annotations if counts[0] >= 0), key=totals)
        correct, proposed, gold = correct + chosen[0], proposed + chosen[1], gold + chosen[2]
    precision = correct / proposed if proposed else 1.0
    recall = correct / gold if gold else 1.0
    cost = weight * precision + recall
    f_beta = (1 + weight) * precision * recall / cost if cost else 0.0
    edits = {"correct": correct, "proposed": proposed, "gold": gold}
    return {"precision": precision, "recall": recall, f"f{beta:g}": f_beta} | edits


def m2_score(
    predictions: Sequence[str],
    references: Sequence[M2Sentence],
    beta: float = 0.5,
    max_unchanged_words: int = 2,
) -> dict[str, float | int]:
    """M2 score of corrections: `m2_score_statistics` of `m2_statistics`, whose arguments and errors it has."""
    return m2_score_statistics(m2_statistics(predictions, references, max_unchanged_words), beta)
