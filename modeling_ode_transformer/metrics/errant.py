# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""ERRANT (Bryant et al., 2017): edits of corrections by type of error, and their precision, recall and F0.5.

    ode-transformer annotate --sources test.src --corrections output.txt --output output.m2
    ode-transformer score errant --hypotheses output.m2 --references test.m2 --types all

The first makes an M2 file from a text and its correction. It needs spaCy's model `en_core_web_sm`, which is not on
PyPI: `python -m spacy download en_core_web_sm`. The second compares two M2 files of the same sentences and prints the
table of error types (figure 7 of the ODE Transformer paper). It needs no model. Both agree with the package `errant`,
with three exceptions. A deletion may be written `-NONE-`, as in other M2 files; ERRANT takes it for a correction.
Edits beyond the end of their sentence are skipped with a warning, as in the M2 scorer; ERRANT counts them. An
annotator's duplicate edits count once; ERRANT counts each.

An edit is correct if the reference corrects the same tokens in the same way. With several annotators, each sentence
uses the annotator who gives the highest F over all sentences so far. Edits of type UNK correct nothing and do not
count. Numbers are rounded to four decimals, as in ERRANT.
"""

from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import chain
from typing import Any

from .m2 import Edit, M2Sentence
from .metric_utils import check_lists, reference_lists, warn_of_untokenized


# The criteria for a correct edit, by ERRANT's names: the same tokens and correction; these and the type; the same
# tokens; the same token, each by itself.
CRITERIA = ("cs", "cse", "ds", "dt")

# The granularity of types, by ERRANT's numbers.
TYPES = {"operation": 1, "main": 2, "all": 3}


@cache
def load_annotator(model: str = "en_core_web_sm") -> Any:
    """ERRANT's annotator for English, loaded once.

    Args:
        model: Name of the package or folder of spaCy's model.

    Raises:
        ImportError: `errant` is not installed.
        OSError: the model is not installed.
    """
    import errant
    import spacy

    nlp = spacy.load(model, disable=["ner"])
    return errant.load("en", nlp)


def annotate(
    sources: Sequence[str], corrections: Sequence[str | Sequence[str]], annotator: Any = None
) -> list[M2Sentence]:
    """Finds the edits that turn sentences into their corrections, with types, like ERRANT's `errant_parallel`.

    Args:
        sources: Sentences, tokens separated by white space.
        corrections: The correction of each sentence, or a list with one from each annotator.
        annotator: A result of `load_annotator`. None: calls `load_annotator`.

    Raises:
        ImportError, OSError: as in `load_annotator`.
        ValueError: there are not as many corrections as sources, or none.
    """
    lists = reference_lists(sources, corrections)
    warn_of_untokenized(sources=sources, corrections=list(chain.from_iterable(lists)))
    annotator = annotator or load_annotator()
    sentences = []
    for source, texts in zip(sources, lists):
        original = annotator.parse(source)
        edits = {}
        for number, text in enumerate(texts):
            found = annotator.annotate(original, annotator.parse(text)) if text.split() != source.split() else []
            edits[number] = [
                Edit(edit.o_start, edit.o_end, " ".join(token.text for token in edit.c_toks), edit.type)
                for edit in found
            ]
        sentences.append(M2Sentence(tuple(source.split()), edits))
    return sentences


def errant_score(
    predictions: Sequence[M2Sentence],
    references: Sequence[M2Sentence],
    beta: float = 0.5,
    criterion: str = "cs",
    types: str = "all",
) -> dict[str, Any]:
    """Scores edits like ERRANT's `errant_compare`.

    Args:
        predictions: Sentences with the edits of a system, from `m2.read_m2` or `annotate`.
        references: The same sentences with the edits of annotators.
        beta: Weight of recall; 0.5 counts precision twice as much.
        criterion: Which edits are correct, one of `CRITERIA`; "ds" and "dt" count edits of type UNK too.
        types: How fine the table of types is: "operation" (M: missing, U: unnecessary, R: to be replaced), "main"
            (NOUN, VERB:TENSE, ...) or "all" (R:NOUN).

    Returns:
        precision, recall, f0.5 (or f1, f2, ... depending on `beta`), from 0 to 1; true_positives, false_positives,
        false_negatives; and types: the same for each type. A correct edit counts under its type in the reference.

    Raises:
        ImportError: `errant` is not installed.
        ValueError: there are not as many references as predictions, or none; or their sentences differ.
    """
    check_lists(predictions=predictions, references=references)
    from errant.commands import compare_m2 as theirs

    options = Namespace(
        beta=beta, single=False, multi=False, filt=[], verbose=False, **{name: name == criterion for name in CRITERIA}
    )
    totals, by_type = Counter(tp=0, fp=0, fn=0), {}
    for i, (prediction, reference) in enumerate(zip(predictions, references)):
        if prediction.tokens != reference.tokens:
            raise ValueError(
                f"The prediction of index {i} has the sentence {' '.join(prediction.tokens)!r}, but the reference has "
                f"{' '.join(reference.tokens)!r}: both M2 files must have the same source."
            )
        edits = [
            theirs.process_edits(theirs.simplify_edits(str(sentence)), options) for sentence in (prediction, reference)
        ]
        counts, types_of_sentence = theirs.evaluate_edits(*edits, totals, i, " ".join(prediction.tokens), options)
        totals.update(counts)
        by_type = theirs.merge_dict(by_type, types_of_sentence)

    def scores(counts: Sequence[int]) -> dict[str, float | int]:
        names = "precision", "recall", f"f{beta:g}", "true_positives", "false_positives", "false_negatives"
        return dict(zip(names, [*theirs.computeFScore(*counts, beta), *counts]))

    table = theirs.processCategories(by_type, TYPES[types])
    return scores(list(totals.values())) | {"types": {name: scores(table[name]) for name in sorted(table)}}
