# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""BLEU by the three conventions of the papers' tables. They differ by points, so each has its own name.

    ode-transformer score bleu --references test.de --hypotheses output.de --moses_language de

- `sacrebleu`: sacreBLEU (Post, 2018) of plain text: tokenizer 13a, mixed case. Its signature is part of the result.
- `tokenized_bleu`: BLEU of tokenized text as in Moses' multi-bleu.perl: words are separated by white space. Without
  smoothing, the score is 0 if no n-gram of some order matches. The reference length is the closest one; of two equally
  close ones, the shorter.
- `compound_split_bleu`: the same after `rich-text` has become `rich ##AT##-##AT## text` on both sides, as in
  tensor2tensor's get_ende_bleu.sh and fairseq's compound_split_bleu.sh. Customary for WMT'14 English-German.

The last two use tokenized text unchanged, without subword marks. If `moses_language` is given, plain text is tokenized
first by sacremoses' port of Moses' tokenizer.perl (its defaults: escaping, no splitting at hyphens). Scores are
percentages.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import sacrebleu

from modeling_ode_transformer.metrics.metric_utils import (
    CheckedLists,
    metric_of_evaluate,
    reference_lists,
    text_features,
)


CONVENTIONS = ("sacrebleu", "tokenized_bleu", "compound_split_bleu")
# Punctuation that plain text attaches to the preceding word: at the end of a word, or standing alone.
MARKS = re.compile(r"(\S?)[,;:!?](?=\s|$)|(\S?)\.$", re.MULTILINE)


@dataclass(frozen=True)
class BleuScorer:
    """One convention: texts are prepared, and sacreBLEU computes BLEU from the results.

    `signature` holds the entries that the preparation changes in sacreBLEU's signature or adds to it.
    """

    metric: sacrebleu.BLEU
    prepare: Callable[[str], str] = str
    signature: dict[str, str] = field(default_factory=dict)

    def _streams(self, predictions, references):
        """Returns prepared predictions, and lists of first references, second ones (or None), ..., for sacreBLEU."""
        lists = [[self.prepare(text) for text in texts] for texts in reference_lists(predictions, references)]
        return [self.prepare(text) for text in predictions], list(map(list, itertools.zip_longest(*lists)))

    def score(self, predictions: Sequence[str], references: Sequence[str | Sequence[str]]) -> dict:
        """BLEU of all texts together.

        Args:
            predictions: A text for each sentence.
            references: The reference of each sentence, or a list of references.

        Returns:
            score, precisions (of 1- to 4-grams), brevity_penalty, length_ratio (predictions to references) and
            signature.

        Raises:
            ValueError: there are not as many references as predictions, or none.
        """
        bleu = self.metric.corpus_score(*self._streams(predictions, references))
        signature = self.metric.get_signature()
        for name, value in self.signature.items():
            signature.update(name, value)
        return {
            "score": bleu.score,
            "precisions": bleu.precisions,
            "brevity_penalty": bleu.bp,
            "length_ratio": float(bleu.ratio),
            "signature": str(signature),
        }

    def statistics(self, predictions: Sequence[str], references: Sequence[str | Sequence[str]]) -> np.ndarray:
        """Returns the statistics behind the score, to be summed over sentences: int64 (sentences, 10).

        Columns: length, length of the closest reference, matches of 1- to 4-grams, numbers of 1- to 4-grams.
        """
        texts, streams = self._streams(predictions, references)
        rows = []
        for text, *alternatives in zip(texts, *streams):
            bleu = self.metric.corpus_score([text], [[alternative] for alternative in alternatives])
            rows.append([bleu.sys_len, bleu.ref_len, *bleu.counts, *bleu.totals])
        return np.array(rows, dtype=np.int64)

    def score_statistics(self, rows: np.ndarray) -> float:
        """Computes BLEU from the statistics of sentences."""
        length, reference_length, *counts = rows.sum(0).tolist()
        return self.metric.compute_bleu(
            correct=counts[:4],
            total=counts[4:],
            sys_len=length,
            ref_len=reference_length,
            smooth_method=self.metric.smooth_method,
        ).score


def split_compounds(text: str) -> str:
    """Splits words at their hyphens: "a rich-text file" becomes "a rich ##AT##-##AT## text file".

    Works like Perl's `s{(\\S)-(\\S)}{$1 ##AT##-##AT## $2}g` on the bytes of a file: matches do not overlap, so the
    second hyphen of "x-y-z" stays.
    """
    return re.sub(rb"(\S)-(\S)", rb"\1 ##AT##-##AT## \2", text.encode()).decode()


def is_tokenized(texts: Iterable[str]) -> bool:
    """Whether texts look tokenized: 9 of 10 punctuation marks stand alone between white space. The marks are commas,
    colons, semicolons, question and exclamation marks, and full stops at the end. False if there are none."""
    marks = [before or end for text in texts for before, end in MARKS.findall(text)]
    alone = sum(not before.strip() for before in marks)
    return bool(marks) and alone >= 0.9 * len(marks)


def moses_tokenizer(language: str) -> Callable[[str], str]:
    """Returns a function that tokenizes like Moses' tokenizer.perl; raises a ValueError for an unknown language."""
    import sacremoses  # takes a while
    from sacremoses.corpus import NonbreakingPrefixes

    known = sorted(set(NonbreakingPrefixes().available_langs.values()))
    if language not in known:
        raise ValueError(f"Moses' tokenizer does not know the language {language!r}, only {', '.join(known)}.")
    tokenizer = sacremoses.MosesTokenizer(language)
    return lambda text: tokenizer.tokenize(text, return_str=True)


def sacrebleu_scorer(tokenize: str = "13a", lowercase: bool = False) -> BleuScorer:
    """The scorer of `sacre_bleu`."""
    if tokenize not in sacrebleu.BLEU.TOKENIZERS:
        raise ValueError(f"sacreBLEU has no tokenizer {tokenize!r}, only {', '.join(sacrebleu.BLEU.TOKENIZERS)}.")
    return BleuScorer(sacrebleu.BLEU(tokenize=tokenize, lowercase=lowercase))


def tokenized_scorer(lowercase: bool = False, moses_language: str | None = None, split: bool = False) -> BleuScorer:
    """The scorer of `tokenized_bleu`, and with `split` of `compound_split_bleu`."""
    tokenizer = moses_tokenizer(moses_language) if moses_language else str

    def prepare(text: str) -> str:
        text = tokenizer(text)
        words = (split_compounds(text) if split else text).encode()
        # Perl reads bytes: it splits words at ASCII white space and lower-cases ASCII only. sacreBLEU would also split
        # at no-break spaces; hexadecimal digits hide them.
        return " ".join(word.hex() for word in (words.lower() if lowercase else words).split())

    signature = {}
    if lowercase:
        signature["case"] = "lc.ascii"
    if moses_language:
        signature["tok"] = f"moses.{moses_language}"
    if split:
        signature["compounds"] = "split"
    return BleuScorer(sacrebleu.BLEU(tokenize="none", smooth_method="none", force=True), prepare, signature)


def sacre_bleu(
    predictions: Sequence[str],
    references: Sequence[str | Sequence[str]],
    tokenize: str = "13a",
    lowercase: bool = False,
) -> dict:
    """sacreBLEU of plain text, as `BleuScorer.score` returns it; `tokenize` is one of sacreBLEU's tokenizers."""
    return sacrebleu_scorer(tokenize, lowercase).score(predictions, references)


def tokenized_bleu(
    predictions: Sequence[str],
    references: Sequence[str | Sequence[str]],
    lowercase: bool = False,
    moses_language: str | None = None,
) -> dict:
    """BLEU as in multi-bleu.perl, in the form that `BleuScorer.score` returns.

    Args:
        predictions: A text for each sentence.
        references: The reference of each sentence, or a list of references.
        lowercase: Like `multi-bleu.perl -lc`, which lower-cases ASCII letters only.
        moses_language: Language ("de") of plain text, which is tokenized first. None: texts are already tokenized.
    """
    return tokenized_scorer(lowercase, moses_language).score(predictions, references)


def compound_split_bleu(
    predictions: Sequence[str],
    references: Sequence[str | Sequence[str]],
    lowercase: bool = False,
    moses_language: str | None = None,
) -> dict:
    """`tokenized_bleu` with compounds split at hyphens on both sides (`split_compounds`)."""
    return tokenized_scorer(lowercase, moses_language, split=True).score(predictions, references)


def bleu_scorers(
    tokenize: str = "13a", lowercase: bool = False, moses_language: str | None = None
) -> dict[str, BleuScorer]:
    """The scorers of the three conventions by name."""
    return {
        "sacrebleu": sacrebleu_scorer(tokenize, lowercase),
        "tokenized_bleu": tokenized_scorer(lowercase, moses_language),
        "compound_split_bleu": tokenized_scorer(lowercase, moses_language, split=True),
    }


def bleu(
    predictions: Sequence[str],
    references: Sequence[str | Sequence[str]],
    tokenize: str = "13a",
    lowercase: bool = False,
    moses_language: str | None = None,
    conventions: Sequence[str] = CONVENTIONS,
) -> dict:
    """Returns the scores with their details by name: `sacrebleu`, `sacrebleu_signature`, ...

    The arguments are those of `sacre_bleu` and `tokenized_bleu`, plus the names of the scores.

    Raises:
        TypeError, ValueError: as in `sacre_bleu` and `tokenized_bleu`; or a name is not in `CONVENTIONS`.
    """
    names = [conventions] if isinstance(conventions, str) else list(conventions)
    if isinstance(conventions, str) or not set(names) <= set(CONVENTIONS):
        given = repr(conventions) if isinstance(conventions, str) else names
        raise ValueError(f"conventions={given} must be a list of some of {', '.join(CONVENTIONS)}.")
    scores = {}
    scorers = bleu_scorers(tokenize, lowercase, moses_language)
    for name in names:
        scorer = scorers[name]
        details = scorer.score(predictions, references)
        scores[name] = details.pop("score")
        scores |= {f"{name}_{detail}": value for detail, value in details.items()}
    return scores


class BleuModule(CheckedLists):
    """`bleu` for `evaluate`."""

    def _info(self):
        import evaluate

        return evaluate.MetricInfo(
            description=__doc__,
            citation="Papineni et al., ACL 2002; Post, WMT 2018",
            inputs_description=bleu.__doc__,
            features=text_features("predictions"),
        )

    def _compute(self, predictions, references, **options):
        return bleu(predictions, references, **options)


__getattr__ = metric_of_evaluate(globals(), "Bleu", BleuModule)
