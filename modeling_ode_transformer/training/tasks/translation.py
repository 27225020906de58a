# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Translation: pairs of sentences, scored by BLEU and chrF."""

from dataclasses import dataclass
from functools import partial

import datasets
import sacrebleu

from ...metrics.bleu import bleu_scorers, check_script
from ...options import option
from ...text_files import iterate_aligned_lines
from ..data import (
    Corpora,
    Pair,
    TrainingExamples,
    pairs_from_records,
    pairs_of,
    read_records,
    read_sources,
    read_table,
)
from .seq2seq import seq2seq_task
from .seq2seq_arguments import Seq2SeqDataArguments


@dataclass
class DataArguments(Seq2SeqDataArguments):
    """The translation pairs, and how translations are scored."""

    source_lang: str | None = option("Key of the source in jsonl and parquet files and datasets, such as en.")
    target_lang: str | None = option("Key of the target in jsonl and parquet files and datasets, such as de.")
    train_file: list[str] | None = option(
        "Training pairs: TSV, jsonl (.gz accepted for both) or parquet; several files are several corpora.",
        affects="files",
        aliases=["--train"],
    )
    validation_file: list[str] | None = option(
        "Validation pairs, in the same formats; each of several files has metrics of its own, eval_NAME_bleu.",
        affects="files",
        aliases=["--validation"],
    )
    test_file: list[str] | None = option(
        "Test pairs, in the same formats, or sources alone, one per line (.txt); each of several files has metrics of "
        "its own, predict_NAME_bleu.",
        affects="files",
        aliases=["--test"],
    )
    train_source_file: list[str] | None = option("Training sources, one per line.", affects="files")
    train_target_file: list[str] | None = option("Training targets, in the same order.", affects="files")
    validation_source_file: list[str] | None = option("Validation sources, one per line.", affects="files")
    validation_target_file: list[str] | None = option("Validation targets, in the same order.", affects="files")
    test_source_file: list[str] | None = option("Test sources, one per line.", affects="files")
    test_target_file: list[str] | None = option(
        "Test targets, in the same order; without them, outputs are written, but not scored.", affects="files"
    )
    ALTERNATIVES = tuple(
        ({f"{split}_file"}, {f"{split}_source_file", f"{split}_target_file"})
        for split in ("train", "validation", "test")
    )

    bleu_tokenize: str = option("sacreBLEU's tokenizer: 13a, intl, zh, ja-mecab, char, ...", "13a", affects="result")
    bleu_moses_language: str | None = option(
        "Language code, such as de, for the Moses tokenizer. With it, outputs and references are also "
        "scored as tokenized_bleu (like multi-bleu.perl) and compound_split_bleu (common for German); default: "
        "none.",
        affects="result",
    )

    def __post_init__(self):
        super().__post_init__()
        # An unknown name raises now, not after hours.
        bleu_scorers(self.bleu_tokenize, moses_language=self.bleu_moses_language)


def read_split(args: DataArguments, split: str) -> list[Pair] | dict[str, list[Pair]] | TrainingExamples:
    """(source, target) pairs of "train", "validation" or "test" from wherever the arguments say; see `pairs_of`.

    Raises:
        FileNotFoundError: a file does not exist.
        ValueError: no source of pairs is named, or two arguments name one; a line is not a pair; no pair has text.
    """
    columns = {"source_lang": args.source_lang, "target_lang": args.target_lang}
    tables, sources, targets = (args.named(f"{split}{side}_file") for side in ("", "_source", "_target"))
    if len(sources) != len(targets) and (targets or split != "test"):
        raise ValueError(
            f"--{split}_source_file and --{split}_target_file go together; {len(sources)} and {len(targets)} files "
            "are given."
        )
    if tables and sources:
        raise ValueError(f"Give --{split}_file or --{split}_source_file with --{split}_target_file, not both.")
    corpora: Corpora
    if tables:
        has_sources = lambda path: split == "test" and path.endswith((".txt", ".txt.gz"))  # noqa: E731
        corpora = [
            (path, partial(read_sources, path) if has_sources(path) else partial(read_table, path, columns))
            for path in tables
        ]
    elif targets:
        corpora = [(pair[0], partial(iterate_aligned_lines, pair)) for pair in zip(sources, targets)]
    elif sources:
        corpora = [(path, partial(read_sources, path)) for path in sources]
    elif args.dataset_name:
        name = f"{args.dataset_name} ({split})"
        corpora = [(name, lambda: pairs_from_records(read_records(args, split), columns, name))]
    else:
        raise ValueError(
            f"No {split} data: give --{split}_file, or --{split}_source_file and --{split}_target_file, "
            "or --dataset_name."
        )
    return pairs_of(corpora, split, args)


def score(texts: list[str], dataset: datasets.Dataset, args: DataArguments, split: str) -> dict[str, float | str]:
    """sacreBLEU's BLEU and chrF of detokenized texts, with their signatures, and the length ratio to the references.

    With `bleu_moses_language`, also tokenized and compound-split BLEU with their signatures. Moses' tokenizer splits
    the texts for these two; published scores with another tokenization are not comparable.
    """
    references = dataset["target"][:]
    check_script(references, args.bleu_tokenize)
    scorers = bleu_scorers(args.bleu_tokenize, moses_language=args.bleu_moses_language)
    bleu, chrf = scorers["sacrebleu"].score(texts, references), sacrebleu.CHRF()
    scores = {
        "bleu": bleu["score"],
        "chrf": chrf.corpus_score(texts, [references]).score,
        "length_ratio": bleu["length_ratio"],
        "bleu_signature": bleu["signature"],
        "chrf_signature": str(chrf.get_signature()),
    }
    if args.bleu_moses_language:
        for name in ("tokenized_bleu", "compound_split_bleu"):
            details = scorers[name].score(texts, references)
            scores |= {name: details["score"], f"{name}_signature": details["signature"]}
    return scores


TRANSLATION = seq2seq_task("translation", DataArguments, read_split, score, "bleu")
