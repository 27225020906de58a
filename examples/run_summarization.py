# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Train, evaluate and run a sequence-to-sequence model on articles and their summaries with `Seq2SeqTrainer`.

    python run_summarization.py recipes/cnn_dailymail_base.json --output_dir out --seed 1

A recipe is a JSON file of arguments; what follows it on the command line wins. Without a checkpoint
(`--model_name_or_path`) the model starts from a configuration, by default an ODE Transformer; without a tokenizer
(`--tokenizer_name`, or the checkpoint's) one is trained on articles and summaries. They come from

    --train_file a.jsonl                                 {"article": ..., "highlights": ...} a line (or .gz)
    --dataset_name abisee/cnn_dailymail --dataset_config_name 3.0.0

and likewise for validation and test; `--article_column` and `--summary_column` name other keys. Articles are cut after
`--max_source_length` tokens. A run that is started again with the same `--output_dir` continues from its last
checkpoint. `output_dir` ends up with the model, the tokenizer, a generation configuration with the beam search asked
for, the metrics (`all_results.json`) and the predictions, one summary a line. With `--smoke` the whole run takes
seconds, on tiny sizes.

**Sentences.** Line ends in articles and summaries become spaces: models and tokenizers see one line, and write one.
ROUGE-L of summaries (`rougeLsum`) has to know where sentences end; it is computed as in the papers, by splitting
outputs and references at each ". ". A reference of which a line ends otherwise ("!", a quotation mark) has that line
and the next as one sentence, and so has an output: the same text gets 100. `rouge_convention` says how the scores were
computed.
"""

import json
import random
import re
from dataclasses import dataclass, field
from pathlib import Path

import datasets
from script_utils import read_dataset, run_process
from seq2seq_utils import Seq2SeqDataArguments, Task, check_pairs, pairs_from_records, read_jsonl, run

from modeling_ode_transformer.metrics.rouge import rouge


@dataclass
class DataArguments(Seq2SeqDataArguments):
    """The articles and their summaries."""

    article_column: str = field(default="article", metadata={"help": "Key of the article in files and datasets."})
    summary_column: str = field(default="highlights", metadata={"help": "Key of the summary in files and datasets."})
    train_file: str | None = field(default=None, metadata={"help": "Training pairs, jsonl (.gz accepted)."})
    validation_file: str | None = field(default=None, metadata={"help": "Validation pairs, jsonl."})
    test_file: str | None = field(default=None, metadata={"help": "Test pairs, jsonl."})
    max_source_length: int = field(
        default=500, metadata={"help": "Longest article in tokens, end mark included; longer ones are cut."}
    )

    SOURCES = (*Seq2SeqDataArguments.SOURCES, "train_file", "validation_file", "test_file")


def one_line(text: str) -> str:
    """A text with its line ends, and the white space around them, as single spaces."""
    return re.sub(r"\s*\n\s*", " ", text).strip()


def read_split(args: DataArguments, split: str) -> list[tuple[str, str]]:
    """(article, summary) pairs of "train", "validation" or "test", each text on one line."""
    columns = {"article_column": args.article_column, "summary_column": args.summary_column}
    path = getattr(args, f"{split}_file")
    if path:
        name, pairs = path, read_jsonl(path, columns)
    elif args.dataset_name:
        name = f"{args.dataset_name} ({split})"
        pairs = pairs_from_records(read_dataset(args, split), columns, name)
    else:
        raise ValueError(f"No {split} data: give --{split}_file or --dataset_name.")
    return check_pairs([(one_line(article), one_line(summary)) for article, summary in pairs], name, split, args)


def score(texts: list[str], dataset: datasets.Dataset, args: DataArguments, split: str) -> dict[str, float | str]:
    """ROUGE F1 of summaries whose sentences end at ". ", and the convention; see the metrics module `rouge`."""
    scores = rouge(texts, dataset["target"][:], sentences="period")
    return scores | {"rouge_convention": scores.pop("convention")}


NAMES = "Adams Baker Carter Davis Evans Foster Green Harris".split()
PLACES = "Athens Berlin Cairo Dublin Florence Geneva Hanoi Istanbul".split()
EVENTS = "a bridge, a library, a museum, a school, a station, a theatre".split(", ")
FILLERS = (
    "The weather was fine on that day and many people came to see it .",
    "A band played for an hour before the first guests left the place .",
    "Reporters were told that more news would follow in the next week .",
    "Some of the neighbours said that they had never heard of the plan .",
)


def write_smoke_data(folder: Path) -> dict[str, str]:
    """Generated articles, of which the summaries repeat three facts; the arguments that read them."""
    draw = random.Random(0)
    sizes = {"train": 300, "validation": 20, "test": 20}
    for split, size in sizes.items():
        lines = []
        for _ in range(size):
            name, place, event = draw.choice(NAMES), draw.choice(PLACES), draw.choice(EVENTS)
            cost, year = draw.randrange(2, 100), draw.randrange(1990, 2030)
            facts = [f"{name} opened {event} in {place} ."]
            facts += [f"It cost {cost} million dollars .", f"It began in {year} ."]
            article = [facts[0], *draw.sample(FILLERS, 2), facts[1], *draw.sample(FILLERS, 2), facts[2]]
            lines.append(json.dumps({"article": " ".join(article), "highlights": "\n".join(facts)}))
        (folder / f"{split}.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    files = {f"{split}_file": str(folder / f"{split}.jsonl") for split in sizes}
    return files | {"article_column": "article", "summary_column": "highlights"}


SUMMARIZATION = Task("summarization", DataArguments, read_split, score, write_smoke_data)


def main(argv: list[str] | None = None) -> dict[str, float | str]:
    """Runs the script with the given arguments (default: the command line's) and returns all metrics by name."""
    return run(SUMMARIZATION, argv)


if __name__ == "__main__":
    run_process(main)
