# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Time and memory to prepare, order and load data of WMT's size, with generated pairs.

    python examples/benchmarks/wmt_data.py --source_files train.en.gz --target_files train.de.gz \
        --pair_files tatoeba.tsv.gz --pairs 100000 --lengths 40000000 --output_file wmt_data.json

Each pair joins one or two pairs of the files, in random order. A hundred thousand show what millions take: they are
read and written as a stream.
"""

import csv
import json
import multiprocessing
import os
import platform
import random
import resource
import tempfile
import time
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser
from datetime import date
from itertools import islice
from pathlib import Path

import datasets
import numpy as np
from contenders import write_results
from torch.utils.data import DataLoader
from transformers import DataCollatorForSeq2Seq

from modeling_ode_transformer import OdeTransformerTokenizer
from modeling_ode_transformer.text_files import read_lines
from modeling_ode_transformer.training.preparation import ROWS, open_rows
from modeling_ode_transformer.training.samplers import TokenBudgetBatchSampler, pair_lengths
from modeling_ode_transformer.training.tasks.seq2seq_texts import features, write_training_pairs
from modeling_ode_transformer.training.tasks.translation import DataArguments, read_split


def peak_mb() -> int:
    """The largest memory of this process so far (Linux)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000


def write_pairs(pairs: list[tuple[str, str]], count: int, path: Path, seed: int) -> None:
    """Writes a TSV file of `count` pairs, each made of one or two of the given ones."""
    generator = random.Random(seed)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(count):
            chosen = generator.choices(pairs, k=generator.randrange(1, 3))
            file.write("\t".join(" ".join(texts) for texts in zip(*chosen)) + "\n")


def measure_preparation(path: Path, folder: Path, tokenizer) -> dict:
    """Seconds and memory to read, encode and write all pairs."""
    args = DataArguments(train_file=str(path))
    folder.mkdir()
    start, cpu = time.perf_counter(), time.process_time()
    noted = write_training_pairs(read_split(args, "train"), args.cleaning, (tokenizer, tokenizer), args, folder)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    (pairs,) = noted["pairs"]
    return {
        "pairs": pairs,
        "target_tokens": int(pair_lengths(open_rows(folder))[:, 1].sum()),
        "seconds": round(seconds, 3),
        "pairs_per_cpu_second": round(pairs / cpu),
        "peak_mb": peak_mb(),
        "mb_on_disk": round((folder / ROWS).stat().st_size / 1e6),
        "mb_of_text": round(path.stat().st_size / 1e6),
    }


def measure_map(path: Path, folder: Path, tokenizer, processes: int) -> float:
    """Seconds that `load_dataset` and `map` of datasets need for the same columns."""

    def encode(batch: dict[str, list[str]], places: list[int]) -> dict[str, list]:
        ids, labels = (tokenizer(batch[side])["input_ids"] for side in ("source", "target"))
        lengths = {"source_length": list(map(len, ids)), "target_length": list(map(len, labels))}
        lengths["length"] = list(map(sum, zip(*lengths.values())))
        return {"input_ids": ids, "labels": labels, "index": places, **lengths}

    start = time.perf_counter()
    table = {"delimiter": "\t", "column_names": ["source", "target"], "quoting": csv.QUOTE_NONE}
    rows = datasets.load_dataset("csv", data_files=str(path), split="train", cache_dir=str(folder), **table)
    options = {"num_proc": processes if processes > 1 else None, "remove_columns": ["source", "target"]}
    rows.map(encode, batched=True, with_indices=True, features=features(tokenizer, tokenizer), **options)
    return round(time.perf_counter() - start, 3)


def measure_sampler(count: int, max_tokens: int) -> dict:
    """Seconds and memory of the batches of `count` pairs, and of the order of an epoch."""
    generator = np.random.default_rng(0)
    sources = (1 + generator.gamma(3, 10, count)).clip(1, 250)
    lengths = np.stack([sources, sources * generator.uniform(0.7, 1.5, count)], axis=1).clip(1, 250).astype(np.int32)
    del sources
    start = time.perf_counter()
    sampler = TokenBudgetBatchSampler(lengths, max_tokens, num_replicas=8)
    made = time.perf_counter()
    next(iter(sampler))
    return {
        "pairs": count,
        "batches": sampler.batches_per_epoch,
        "padding": round(sampler.report()["padding"], 4),
        "seconds": round(made - start, 3),
        "seconds_of_an_epoch": round(time.perf_counter() - made, 3),
        "peak_mb": peak_mb(),
    }


def measure_loader(folder: Path, tokenizer, max_tokens: int, batches: int) -> dict:
    """Target tokens per second, and milliseconds per batch, of batches loaded in this process."""
    dataset = open_rows(folder)
    sampler = TokenBudgetBatchSampler(pair_lengths(dataset), max_tokens)
    rows = dataset.select_columns(["input_ids", "labels", "index"])
    loader = iter(DataLoader(rows, batch_sampler=sampler, collate_fn=DataCollatorForSeq2Seq(tokenizer)))
    next(loader)
    start, tokens, count = time.perf_counter(), 0, 0
    for batch in islice(loader, batches):
        tokens, count = tokens + int((batch["labels"] != -100).sum()), count + 1
    seconds = time.perf_counter() - start
    return {"target_tokens_per_second": round(tokens / seconds), "ms_per_batch": round(1000 * seconds / count, 1)}


def shown(value):
    """An argument; files are reduced to their names."""
    return [Path(each).name if isinstance(each, str) else each for each in value] if isinstance(value, list) else value


def main(argv: list[str] | None = None) -> dict:
    """Runs the benchmark with the given arguments (default: the command line's) and returns its results."""
    parser = ArgumentParser(description=__doc__.splitlines()[0], formatter_class=ArgumentDefaultsHelpFormatter)
    parser.add_argument(
        "--source_files", nargs="+", required=True, help="files of sources, one per line (.gz accepted)"
    )
    parser.add_argument("--target_files", nargs="+", required=True, help="files of targets, in the same order")
    parser.add_argument(
        "--pair_files", nargs="*", default=[], help="files of more pairs, SOURCE<TAB>TARGET per line (.gz accepted)"
    )
    parser.add_argument("--pairs", type=int, default=100_000, help="number of pairs to generate")
    parser.add_argument("--lengths", type=int, default=40_000_000, help="number of pairs to order into batches")
    parser.add_argument("--vocab_size", type=int, default=8000, help="number of BPE pieces of the joint tokenizer")
    parser.add_argument("--max_tokens", type=int, default=4096, help="maximum number of tokens per batch on each side")
    parser.add_argument("--batches", type=int, default=300, help="number of batches to load")
    parser.add_argument("--output_file", type=Path, help="JSON file to write")
    parser.add_argument("--seed", type=int, default=1, help="random seed")
    args = parser.parse_args(argv)

    sides = [
        [" ".join(line.split()) for name in names for line in read_lines(name)]
        for names in (args.source_files, args.target_files)
    ]
    if len(sides[0]) != len(sides[1]):
        parser.error(f"the sources have {len(sides[0])} lines, but the targets have {len(sides[1])}")
    for pair in (line.split("\t") for name in args.pair_files for line in read_lines(name)):
        for side, text in zip(sides, pair, strict=True):
            side.append(" ".join(text.split()))
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    results = {
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "date": date.today().isoformat(),
        "arguments": {name: shown(value) for name, value in vars(args).items() if name != "output_file"},
    }
    sample = [side[:20_000] for side in sides]
    tokenizer = OdeTransformerTokenizer.train(sample[0] + sample[1], args.vocab_size)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_pairs(list(zip(*sides)), args.pairs, folder / "pairs.tsv", args.seed)
        results["preparation"] = measure_preparation(folder / "pairs.tsv", folder / "data", tokenizer)
        os.environ["TOKENIZERS_PARALLELISM"] = "true"
        results["all_cores"] = measure_preparation(folder / "pairs.tsv", folder / "again", tokenizer)
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        results["map_seconds"] = {
            str(number): measure_map(folder / "pairs.tsv", folder / f"map{number}", tokenizer, number)
            for number in sorted({1, os.cpu_count()})
        }
        results["loader"] = measure_loader(folder / "data", tokenizer, args.max_tokens, args.batches)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        results["sampler"] = pool.apply(measure_sampler, (args.lengths, args.max_tokens))
    print(json.dumps(results, indent=1))
    write_results(results, args.output_file)
    return results


if __name__ == "__main__":
    main()
