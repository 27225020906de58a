# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Grammatical error correction: sentences and their corrections, scored by M2, ERRANT and GLEU."""

import logging
from argparse import SUPPRESS
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, compress
from pathlib import Path
from typing import NamedTuple

import datasets

from ...metrics.errant import annotate, errant_score, load_annotator
from ...metrics.gleu import gleu
from ...metrics.m2 import M2Sentence, m2_score, read_m2
from ...options import option
from ...text_files import iterate_aligned_lines, read_aligned_lines, read_lines
from ..data import Corpora, Pair, TrainingExamples, check_pairs, read_table
from .seq2seq import seq2seq_task
from .seq2seq_arguments import Seq2SeqDataArguments


logger = logging.getLogger(__name__)

# Suffixes of files that hold sentences with their corrections; other files are plain text.
M2, TABLES = ".m2", (".tsv", ".json", ".jsonl")


@dataclass
class DataArguments(Seq2SeqDataArguments):
    """The annotated sentences, which of them are trained on, and how corrections are scored."""

    train_file: list[str] | None = option(
        "Training data: M2 files, or TSV or jsonl files of pairs.",
        affects="files",
        aliases=["--train"],
    )
    validation_file: list[str] | None = option(
        "Validation data in the same formats, or plain text with references.",
        affects="files",
        aliases=["--validation"],
    )
    test_file: list[str] | None = option(
        "Test data in the same formats, or plain text with or without references.",
        affects="files",
        aliases=["--test"],
    )
    train_source_file: str | None = option("Additional training sentences, one per line.", affects="files")
    train_reference_files: list[str] | None = option(
        "Corrections of the sentences of --train_source_file, line by line.", affects="files"
    )
    validation_reference_files: list[str] | None = option(
        "Corrections of the validation sentences, line by line, for GLEU.", affects="files"
    )
    test_reference_files: list[str] | None = option(
        "Corrections of the test sentences, line by line, for GLEU.", affects="files"
    )
    # Refused: sentences come from files.
    dataset_name: str | None = option(SUPPRESS, affects="files")
    dataset_config_name: str | None = option(SUPPRESS, affects="files")

    source_column: str = option("Key of the source sentence in jsonl files.", "source")
    target_column: str = option("Key of the correction in jsonl files.", "target")
    validation_share: float | None = option(
        "Validate on this share (0 to 1) of the validation sentences that have edits, spread evenly over "
        "each file. If the file is also a training file, train on its other sentences; default: all.",
        above=0,
        most=1,
    )
    annotator: str = option(
        "Annotator in M2 files whose corrections to train on; all: one pair for each annotator.", "0"
    )
    max_words: int | None = option(
        "Maximum number of words on each side of a training pair; default: 80.", 80, least=1
    )
    errant: bool = option(
        "Also score outputs for M2 files with ERRANT (needs errant and its spaCy model).", False, affects="result"
    )

    def __post_init__(self):
        super().__post_init__()
        if self.dataset_name:
            raise ValueError(f"--dataset_name {self.dataset_name}: sentences come from files (--train_file, ...).")
        if self.annotator != "all" and not self.annotator.isdecimal():
            raise ValueError(f"--annotator {self.annotator}: give the number of an annotator in the M2 file, or all.")

    @property
    def columns(self) -> dict[str, str]:
        return {"source_column": self.source_column, "target_column": self.target_column}


class Evaluated(NamedTuple):
    """The sentences of a validation or test split, in the order of their files.

    `annotations` come from M2 files and are empty for other files. `references` holds each sentence's corrections
    given as text; it is empty if there are none.
    """

    sources: list[str]
    annotations: list[M2Sentence]
    references: list[list[str]]


def kind(path: str | Path) -> str:
    """The kind of a file, by its suffix before `.gz`: M2, one of TABLES, or "plain text"."""
    suffix = Path(str(path).removesuffix(".gz")).suffix
    return suffix if suffix in (M2, *TABLES) else "plain text"


def drawn_for_validation(sentences: Sequence[M2Sentence], share: float) -> list[bool]:
    """Which sentences to validate on: this share of the sentences with edits, evenly spread."""
    drawn, edited = [], 0
    for sentence in sentences:
        is_edited = any(sentence.edits.values())
        drawn.append(is_edited and int((edited + 1) * share) > int(edited * share))
        edited += is_edited
    return drawn


def corrections(sentence: M2Sentence, annotator: str) -> list[str]:
    """The sentence as this annotator corrects it, or as each one does ("all"); unchanged if the file names no edits of
    theirs, as JFLEG's does where an annotator found nothing."""
    found = [" ".join(sentence.corrected(each)) for each in sentence.edits if annotator in ("all", str(each))]
    return found or [" ".join(sentence.tokens)]


def one_space(text: str) -> str:
    """Tokens separated by single spaces, as in M2 files."""
    return " ".join(text.split())


def one_spaced(read: Callable[[], Iterable[Pair]]) -> Iterator[Pair]:
    """The pairs that `read` opens, by `one_space`."""
    return ((one_space(source), one_space(target)) for source, target in read())


def read_training_m2(path: Path, validation_files: set[Path], args: DataArguments) -> list[tuple[str, str]]:
    """Pairs from an M2 file, without the sentences to validate on.

    Raises:
        ValueError: the file is malformed; all of it is validation data too; the annotator did not annotate it.
    """
    sentences = read_m2(path)
    logger.info("%s: %d sentences", path, len(sentences))
    if path.resolve() in validation_files:
        if args.validation_share is None:
            raise ValueError(
                f"{path} is both a training file and a validation file: leave it out of one, or give "
                "--validation_share to validate on a part of it and train on the rest."
            )
        drawn = drawn_for_validation(sentences, args.validation_share)
        sentences = [sentence for sentence, is_drawn in zip(sentences, drawn) if not is_drawn]
        logger.info("%s: %d sentences are kept for validation", path, sum(drawn))
    annotators = sorted({number for sentence in sentences for number in sentence.edits})
    if annotators and args.annotator != "all" and int(args.annotator) not in annotators:
        raise ValueError(
            f"{path} is not annotated by --annotator {args.annotator}, only by {', '.join(map(str, annotators))}."
        )
    annotator = args.annotator
    others = sum(annotator not in ("all", *map(str, sentence.edits)) for sentence in sentences if sentence.edits)
    if others:
        logger.warning("%s: unchanged by annotator %s, but not by others: %d sentences", path, annotator, others)
    return [(" ".join(sentence.tokens), text) for sentence in sentences for text in corrections(sentence, annotator)]


def training_corpora(args: DataArguments) -> Corpora:
    """The pairs of each training file, without the pairs to validate on; those of --train_source_file are the last.

    Raises:
        ValueError: no file is named, or only one that needs another.
    """
    if not (args.train_file or args.train_source_file):
        raise ValueError("No train data: give --train_file, or --train_source_file and --train_reference_files.")
    if (args.train_source_file is None) != (args.train_reference_files is None):
        raise ValueError("--train_source_file and --train_reference_files go together; only one is given.")
    validation_files = {Path(name).resolve() for name in args.named("validation_file")}

    def read(path: Path) -> Iterable[Pair]:
        if kind(path) == M2:
            return read_training_m2(path, validation_files, args)
        if kind(path) in TABLES:
            return read_table(str(path), args.columns)
        raise ValueError(
            f"--train_file {path}: its name must end in {', '.join([M2, *TABLES])} (or these with .gz); for plain "
            "text give --train_source_file and --train_reference_files."
        )

    def read_lines_with_references() -> Iterator[Pair]:
        files = ([args.train_source_file, path] for path in args.named("train_reference_files"))
        return chain.from_iterable(map(iterate_aligned_lines, files))

    corpora: list = [(name, partial(read, Path(name))) for name in args.named("train_file")]
    if args.train_source_file:
        corpora.append((args.train_source_file, read_lines_with_references))
    return [(name, partial(one_spaced, read)) for name, read in corpora]


def read_evaluated(args: DataArguments, split: str) -> Evaluated:
    """The sentences of "validation" or "test", with the annotations and references to score against.

    Raises:
        ValueError: no file is named, or files of several kinds; one is malformed; the number of references differs.
    """
    names = args.named(f"{split}_file")
    if not names:
        raise ValueError(f"No {split} data: give --{split}_file.")
    references_of = args.named(f"{split}_reference_files")
    kinds = sorted({kind(name) for name in names})
    if len(kinds) > 1:
        raise ValueError(f"--{split}_file {' '.join(names)}: give files of one kind, not {' and '.join(kinds)}.")
    share = args.validation_share if split == "validation" else None
    if share is not None and kinds != [M2]:
        raise ValueError(
            f"--validation_share {share} needs an M2 file, but --validation_file {' '.join(names)} is not one."
        )

    sources, annotations, references = [], [], []
    for path in names:
        if kinds == [M2]:
            sentences = read_m2(path)
            if share is not None:
                sentences = list(compress(sentences, drawn_for_validation(sentences, share)))
            annotations += sentences
            texts = [" ".join(sentence.tokens) for sentence in sentences]
        elif kinds == ["plain text"]:
            texts = map(one_space, read_lines(path))
        else:
            pairs = list(read_table(path, args.columns))
            texts = [one_space(source) for source, _ in pairs]
            references += [[one_space(target)] for _, target in pairs]
        sources += texts

    if references_of:
        lines = [list(map(one_space, lines)) for lines in zip(*read_aligned_lines(references_of))]
        if len(lines) != len(sources):
            raise ValueError(
                f"{references_of[0]} has {len(lines)} lines, but --{split}_file {' '.join(names)} has "
                f"{len(sources)} sentences."
            )
        references = [own + others for own, others in zip(references or [[]] * len(sources), lines)]
    return Evaluated(sources, annotations, references)


def read_split(args: DataArguments, split: str) -> list[Pair] | TrainingExamples:
    """(sentence, correction) pairs of "train", "validation" or "test".

    In validation and test data, the correction is used for the loss. In M2 files it is the annotator's, or the first
    one's if they have none of the annotator's; in other files it is the first reference, or None.
    """
    if split == "train":
        return TrainingExamples(training_corpora(args), args)
    sources, annotations, references = read_evaluated(args, split)
    if args.errant and annotations:
        # If something is missing, this raises now, not after hours.
        load_annotator()
    elif args.errant:
        logger.warning("--errant needs M2 files: the %s sentences are not scored with it", split)
    if annotations:
        annotators = {str(number) for each in annotations for number in each.edits}
        annotator = args.annotator if args.annotator in annotators else "all"
        targets = [corrections(each, annotator)[0] for each in annotations]
    elif references:
        targets = [texts[0] for texts in references]
    elif split == "test":
        targets = [None] * len(sources)
    else:
        raise ValueError("Validation needs corrections: give --validation_reference_files, or an M2 file.")
    return check_pairs(lambda: zip(sources, targets), f"The {split} data", split, args)


def score(texts: list[str], dataset: datasets.Dataset, args: DataArguments, split: str) -> dict[str, float | str]:
    """M2 precision, recall and F0.5 (0 to 1) for M2 files, and ERRANT's if requested; GLEU (0 to 100) for references.

    Plain text without references has no score.
    """
    texts = [text for _, text in sorted(zip(dataset["index"], texts))]
    evaluated = read_evaluated(args, split)
    sources, annotations = evaluated.sources[: len(texts)], evaluated.annotations[: len(texts)]
    references = evaluated.references[: len(texts)]
    scores: dict[str, float | str] = {}
    if annotations:
        scores |= {f"m2_{name}": value for name, value in m2_score(texts, annotations).items()}
    if args.errant and annotations:
        errant = errant_score(annotate(sources, texts), annotations)
        scores |= {f"errant_{name}": value for name, value in errant.items() if name != "types"}
    if references:
        scores |= gleu(texts, references, sources)
    return scores


CORRECTION = seq2seq_task("text-correction", DataArguments, read_split, score, "perplexity")
