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

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np
import sacrebleu

from .metric_utils import WITHOUT_SPACES, reference_lists, share_of_letters


logger = logging.getLogger(__name__)

CONVENTIONS = ("sacrebleu", "tokenized_bleu", "compound_split_bleu")


@dataclass(frozen=True)
class Scorer:
    """Texts are prepared, and a metric of sacreBLEU scores the results.

    `entries` is what the preparation changes in the metric's signature or adds to it.
    """

    metric: Any
    prepare: Callable[[str], str] = str
    entries: dict[str, str] = field(default_factory=dict)

    def streams(self, predictions: Sequence[str], references: Sequence[str | Sequence[str]]) -> tuple[list, list]:
        """Prepared predictions, and lists of first references, second ones (or None), ..., for sacreBLEU."""
        lists = [[self.prepare(text) for text in texts] for texts in reference_lists(predictions, references)]
        return [self.prepare(text) for text in predictions], list(map(list, zip_longest(*lists)))

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
        bleu = self.metric.corpus_score(*self.streams(predictions, references))
        return {
            "score": bleu.score,
            "precisions": bleu.precisions,
            "brevity_penalty": bleu.bp,
            "length_ratio": float(bleu.ratio),
            "signature": self.signature(),
        }

    def signature(self) -> str:
        """How the last texts were scored."""
        signature = self.metric.get_signature()
        for name, value in self.entries.items():
            signature.update(name, value)
        return str(signature)

    def statistics(self, predictions: Sequence[str], references: Sequence[str | Sequence[str]]) -> np.ndarray:
        """The statistics behind the score, to be summed over sentences: (sentences, statistics), as in sacreBLEU's own
        bootstrap."""
        return np.array(self.metric._extract_corpus_statistics(*self.streams(predictions, references)))

    def score_statistics(self, rows: np.ndarray) -> float:
        """The score of sentences from their statistics."""
        return self.metric._compute_score_from_stats(rows.sum(0).tolist()).score


def split_compounds(text: str) -> str:
    """Splits words at their hyphens: "a rich-text file" becomes "a rich ##AT##-##AT## text file".

    Works like Perl's `s{(\\S)-(\\S)}{$1 ##AT##-##AT## $2}g` on the bytes of a file: matches do not overlap, so the
    second hyphen of "x-y-z" stays.
    """
    return re.sub(rb"(\S)-(\S)", rb"\1 ##AT##-##AT## \2", text.encode()).decode()


def moses_tokenizer(language: str) -> Callable[[str], str]:
    """Returns a function that tokenizes like Moses' tokenizer.perl; raises a ValueError for an unknown language."""
    import sacremoses  # takes a while
    from sacremoses.corpus import NonbreakingPrefixes

    known = sorted(set(NonbreakingPrefixes().available_langs.values()))
    if language not in known:
        raise ValueError(f"Moses' tokenizer does not know the language {language!r}, only {', '.join(known)}.")
    tokenizer = sacremoses.MosesTokenizer(language)
    return lambda text: tokenizer.tokenize(text, return_str=True)


def bleu_scorers(
    tokenize: str = "13a", lowercase: bool = False, moses_language: str | None = None
) -> dict[str, Scorer]:
    """The scorers of the three conventions by name.

    Args:
        tokenize: One of sacreBLEU's tokenizers, for `sacrebleu`.
        lowercase: Whether to ignore case; like `multi-bleu.perl -lc`, the other two lower-case ASCII letters only.
        moses_language: Language ("de") of plain text, which is tokenized first for the other two. None: texts are
            already tokenized.

    Raises:
        ValueError: the tokenizer or the language is unknown.
    """
    if tokenize not in sacrebleu.BLEU.TOKENIZERS:
        raise ValueError(f"sacreBLEU has no tokenizer {tokenize!r}, only {', '.join(sacrebleu.BLEU.TOKENIZERS)}.")
    tokenizer = moses_tokenizer(moses_language) if moses_language else str

    def prepare(text: str, split: Callable[[str], str] = str) -> str:
        words = split(tokenizer(text)).encode()
        # Perl reads bytes: it splits words at ASCII white space and lower-cases ASCII only. sacreBLEU would also split
        # at no-break spaces; hexadecimal digits hide them.
        return " ".join(word.hex() for word in (words.lower() if lowercase else words).split())

    entries = {"case": "lc.ascii"} if lowercase else {}
    if moses_language:
        entries["tok"] = f"moses.{moses_language}"
    plain, split = (sacrebleu.BLEU(tokenize="none", smooth_method="none", force=True) for _ in range(2))
    return {
        "sacrebleu": Scorer(sacrebleu.BLEU(tokenize=tokenize, lowercase=lowercase)),
        "tokenized_bleu": Scorer(plain, prepare, entries),
        "compound_split_bleu": Scorer(
            split, partial(prepare, split=split_compounds), entries | {"compounds": "split"}
        ),
    }


def bleu(
    predictions: Sequence[str],
    references: Sequence[str | Sequence[str]],
    conventions: Sequence[str] = CONVENTIONS,
    **options,
) -> dict:
    """The scores with their details by name: `sacrebleu`, `sacrebleu_signature`, ...

    Args:
        predictions: A text for each sentence.
        references: The reference of each sentence, or a list of references.
        conventions: Names of the scores.
        options: Those of `bleu_scorers`.

    Raises:
        ValueError: as in `Scorer.score` and `bleu_scorers`.
    """
    scores, scorers = {}, bleu_scorers(**options)
    for name in conventions:
        details = scorers[name].score(predictions, references)
        scores[name] = details.pop("score")
        scores |= {f"{name}_{detail}": value for detail, value in details.items()}
    check_script(references, options.get("tokenize", "13a"))
    return scores


def check_script(references: Sequence, tokenize: str) -> None:
    """Warns if the texts are of a script without spaces and the tokenizer splits at spaces: whole sentences are then
    words."""
    texts = [text for texts in references for text in ([texts] if isinstance(texts, str) else texts)]
    if tokenize in ("13a", "intl", "none") and share_of_letters(texts, WITHOUT_SPACES) > 0.5:
        logger.warning(
            "Tokenizer %s takes whole sentences of these texts for words, as they have no spaces: give another one "
            "(--tokenize, in training --bleu_tokenize): zh for Chinese, ja-mecab for Japanese, ko-mecab for Korean, "
            "char for any other script.",
            tokenize,
        )


# Scores of sacreBLEU beside BLEU, with their defaults.
OTHERS: dict[str, Callable[[], Any]] = {"chrf": sacrebleu.CHRF, "ter": sacrebleu.TER}


def corpus_score(
    metric: str, predictions: Sequence[str], references: Sequence[str | Sequence[str]]
) -> dict[str, float | str]:
    """chrF (Popović, 2015) or TER (Snover et al., 2006) of sacreBLEU.

    Args:
        metric: "chrf" or "ter"; a lower TER is better.
        predictions: A text for each sentence.
        references: The reference of each sentence, or a list of references.

    Returns:
        The score in percent and its signature.

    Raises:
        ValueError: there are not as many references as predictions, or none.
    """
    scorer = Scorer(OTHERS[metric]())
    score = scorer.metric.corpus_score(*scorer.streams(predictions, references)).score
    return {metric: score, f"{metric}_signature": scorer.signature()}
