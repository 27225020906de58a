# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Summarization: articles and their summaries, scored by ROUGE."""

import re
from dataclasses import dataclass
from functools import partial

import datasets

from ...metrics.rouge import rouge
from ...options import option
from ..data import Pair, TrainingExamples, pairs_from_records, pairs_of, read_jsonl, read_records, read_table
from .seq2seq import seq2seq_task
from .seq2seq_arguments import Seq2SeqDataArguments


@dataclass
class DataArguments(Seq2SeqDataArguments):
    """The articles and their summaries."""

    article_column: str = option("Key of the article in files and datasets.", "article")
    summary_column: str = option("Key of the summary in files and datasets.", "highlights")
    train_file: list[str] | None = option(
        "Training pairs: jsonl (.gz accepted) or parquet; several files are several corpora.",
        affects="files",
        aliases=["--train"],
    )
    validation_file: list[str] | None = option(
        "Validation pairs, in the same formats; each of several files has metrics of its own, eval_NAME_rouge1.",
        affects="files",
        aliases=["--validation"],
    )
    test_file: list[str] | None = option(
        "Test pairs, in the same formats; each of several files has metrics of its own, predict_NAME_rouge1.",
        affects="files",
        aliases=["--test"],
    )
    max_source_length: int = option(
        "Maximum length of an article in tokens, end mark included; longer ones are cut.", 500, least=1
    )


def one_line(text: str) -> str:
    """A text with each line end, and the white space around it, replaced by a single space."""
    return re.sub(r"\s*\n\s*", " ", text).strip()


def read_split(args: DataArguments, split: str) -> list[Pair] | dict[str, list[Pair]] | TrainingExamples:
    """(article, summary) pairs of "train", "validation" or "test", each text on one line; see `pairs_of`.

    Raises:
        FileNotFoundError: a file does not exist.
        ValueError: no source of pairs is named; a record lacks a text; no pair has text.
    """
    columns = {"article_column": args.article_column, "summary_column": args.summary_column}
    paths = args.named(f"{split}_file")
    if not (paths or args.dataset_name):
        raise ValueError(f"No {split} data: give --{split}_file or --dataset_name.")

    def read(name):
        if paths:
            found = (read_table if name.endswith(".parquet") else read_jsonl)(name, columns)
        else:
            found = pairs_from_records(read_records(args, split), columns, name)
        return ((one_line(article), one_line(summary)) for article, summary in found)

    names = paths or [f"{args.dataset_name} ({split})"]
    return pairs_of([(name, partial(read, name)) for name in names], split, args)


def score(texts: list[str], dataset: datasets.Dataset, args: DataArguments, split: str) -> dict[str, float | str]:
    """ROUGE F1 of summaries, with sentences ending at ". ", and the convention; see the metrics module `rouge`."""
    scores = rouge(texts, dataset["target"][:], sentences="period")
    return scores | {"rouge_convention": scores.pop("convention")}


SUMMARIZATION = seq2seq_task("summarization", DataArguments, read_split, score, "rougeLsum")
