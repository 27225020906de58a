# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Time and memory to encode, prepare, order and load data of WMT's size, with generated pairs.

    python examples/benchmarks/wmt_data.py --source_files train.en.gz --target_files train.de.gz \
        --pair_files tatoeba.tsv.gz --pairs 10000000 --lengths 40000000 --processes 2 8 --output_file wmt_data.json

Each pair joins one or two pairs of the files, in random order. Memory is read from `/proc` (Linux). PSS divides pages
shared by several processes among them, so its sum counts each page once. The part of it that is not in files (`own`)
is what a process takes; the rest are mapped files, whose pages Linux drops when it needs memory.
"""

import hashlib
import inspect
import io
import json
import multiprocessing
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser
from collections.abc import Callable
from datetime import date
from itertools import islice
from pathlib import Path

import numpy as np
import psutil
import sentencepiece
from contenders import write_results
from torch.utils.data import DataLoader
from transformers import DataCollatorForSeq2Seq

from modeling_ode_transformer import OdeTransformerTokenizer
from modeling_ode_transformer.text_files import read_lines
from modeling_ode_transformer.training.cleaning import Cleaning
from modeling_ode_transformer.training.encoding import PairEncoder
from modeling_ode_transformer.training.loading import PadPairs, PairRows
from modeling_ode_transformer.training.preparation import open_pairs, prepare_pairs
from modeling_ode_transformer.training.samplers import TokenBudgetBatchSampler, pair_lengths
from modeling_ode_transformer.training.tasks.translation import DataArguments, read_split


class Memory:
    """The peaks in MB of this process' resident memory, and of the PSS of this process and its descendants."""

    def __enter__(self):
        self.peaks = {"process": 0.0, "together": 0.0}
        self.is_over = threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()
        return self

    def watch(self):
        root = psutil.Process()
        while not self.is_over.wait(0.2):
            self.peaks["process"] = max(self.peaks["process"], root.memory_info().rss / 1e6)
            total = 0
            for process in [root, *root.children(recursive=True)]:
                try:
                    total += process.memory_full_info().pss
                except (psutil.NoSuchProcess, psutil.AccessDenied):
                    pass
            self.peaks["together"] = max(self.peaks["together"], total / 1e6)

    def __exit__(self, *error):
        self.is_over.set()
        self.thread.join()
        self.peaks = {name: round(value) for name, value in self.peaks.items()}


def memory_of(process: int | str = "self") -> dict[str, int]:
    """A process' PSS in MB: of all its pages, and of those that are not of files (`own`)."""
    with open(f"/proc/{process}/smaps_rollup") as file:
        kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in file if line.startswith("Pss")}
    return {"pss": kilobytes["Pss"] // 1000, "own": (kilobytes["Pss"] - kilobytes["Pss_File"]) // 1000}


def write_pairs(pairs: list[tuple[str, str]], count: int, path: Path, seed: int) -> None:
    """Writes a TSV file of `count` pairs, each made of one or two of the given ones."""
    generator = random.Random(seed)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(count):
            chosen = generator.choices(pairs, k=generator.randrange(1, 3))
            file.write("\t".join(" ".join(texts) for texts in zip(*chosen)) + "\n")


def measure_encoding(texts: list[list[str]], vocab_size: int) -> tuple[dict, OdeTransformerTokenizer]:
    """Pairs per second of CPU time, for SentencePiece's encoder, the tokenizer and the data preparation."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts[0] + texts[1]),
        model_writer=model,
        vocab_size=vocab_size,
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        character_coverage=1.0,
        minloglevel=2,
        bos_id=0,
        pad_id=1,
        eos_id=2,
        unk_id=3,
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    tokenizer = OdeTransformerTokenizer.from_sentencepiece(model.getvalue())
    encoder = PairEncoder(tokenizer, tokenizer, 256, 256)
    ways = {
        "sentencepiece": lambda: [processor.encode(side) for side in texts],
        "tokenizer of transformers": lambda: [tokenizer(side)["input_ids"] for side in texts],
        "preparation, first time": lambda: encoder(*texts),
        "preparation, words known": lambda: encoder(*texts),
    }
    rates = {}
    for name, encode in ways.items():
        start = time.process_time()
        encode()
        rates[name] = round(len(texts[0]) / (time.process_time() - start))
    return rates, tokenizer


def measure_preparation(path: Path, folder: Path, tokenizer, num_workers: int) -> dict:
    """Seconds of a preparation, its memory (of this process and of all together), and seconds to find it again."""
    pairs = read_split(DataArguments(train_file=str(path)), "train")
    encoder = PairEncoder(tokenizer, tokenizer, 256, 256)
    seconds, before = [], os.times()
    with Memory() as memory:
        for _ in range(2):
            start = time.perf_counter()
            counts = prepare_pairs(pairs, folder, {}, encoder, Cleaning(), num_workers)
            open_pairs(folder)
            seconds.append(time.perf_counter() - start)
    # This includes the CPU time of the worker processes.
    cpu = sum(os.times()[:4]) - sum(before[:4])
    size = sum(each.stat().st_size for each in folder.glob("shard-*.arrow"))
    return {
        "pairs": counts["pairs"],
        "target_tokens": counts["target_tokens"],
        "workers": num_workers,
        "seconds": round(seconds[0], 1),
        "pairs_per_second": round(counts["pairs"] / seconds[0]),
        "pairs_per_cpu_second": round(counts["pairs"] / cpu),
        "seconds_of_finding_it": round(seconds[1], 2),
        "peak_mb": memory.peaks,
        "mb_on_disk": round(size / 1e6),
        "mb_of_text": round(path.stat().st_size / 1e6),
    }


def measure_sampler(count: int, max_tokens: int) -> dict:
    """Seconds and memory of the order and the batches of `count` pairs, and of the next epoch's order."""
    generator = np.random.default_rng(0)
    sources = (1 + generator.gamma(3, 10, count)).clip(1, 250)
    lengths = np.stack([sources, sources * generator.uniform(0.7, 1.5, count)], axis=1).clip(1, 250).astype(np.int32)
    del sources
    with Memory() as memory:
        start, cpu = time.perf_counter(), time.process_time()
        sampler = TokenBudgetBatchSampler(lengths, max_tokens, num_replicas=8)
        del lengths
        report = sampler.report()
        batches = iter(sampler)
        next(batches)
        first, cpu = time.perf_counter() - start, time.process_time() - cpu
        for _ in islice(batches, len(sampler) // 2):
            pass
        sampler._orders[1].result()
    return {
        "pairs": count,
        "batches": sampler.batches_per_epoch,
        "padding": round(report["padding"], 4),
        "seconds_to_first_batch": round(first, 1),
        "cpu_seconds_to_first_batch": round(cpu, 1),
        "seconds_to_next_epoch": round(time.perf_counter() - start, 1),
        "peak_mb": memory.peaks["process"],
    }


def measure_loader(folder: Path, tokenizer, max_tokens: int, num_workers: int, seconds: float) -> dict:
    """Target tokens per second of the workers' CPU time, and the largest memory of one worker."""
    dataset = open_pairs(folder).select_columns(["input_ids", "labels", "index"])
    sampler = TokenBudgetBatchSampler(pair_lengths(open_pairs(folder)), max_tokens)
    collator = PadPairs(DataCollatorForSeq2Seq(tokenizer))
    # Workers stay when few pairs are loaded before the time is up: they are measured at the end.
    options = {"num_workers": num_workers, "persistent_workers": True}
    batches = iter(DataLoader(PairRows(dataset), batch_sampler=sampler, collate_fn=collator, **options))
    next(batches)
    workers = [psutil.Process(worker.pid) for worker in batches._workers]
    start, before, tokens = time.perf_counter(), sum(sum(worker.cpu_times()[:2]) for worker in workers), 0
    for batch in batches:
        tokens += int((batch["labels"] != -100).sum())
        if time.perf_counter() - start > seconds:
            break
    wall = time.perf_counter() - start
    cpu = sum(sum(worker.cpu_times()[:2]) for worker in workers) - before
    memory = [memory_of(worker.pid) for worker in workers]
    return {
        "workers": num_workers,
        "target_tokens_per_second": round(tokens / wall),
        "target_tokens_per_cpu_second_of_workers": round(tokens / cpu),
        "mb_of_a_worker": {name: max(each[name] for each in memory) for name in ("pss", "own")},
    }


TRAINING = """
import json, os, sys, time
import modeling_ode_transformer.training.trainer as trainer
from modeling_ode_transformer.training.run import run, run_process
from modeling_ode_transformer.training.tasks.translation import TRANSLATION
step = trainer.TokenSeq2SeqTrainer.training_step
def timed(self, model, inputs, *args, **kwargs):
    index = inputs["index"].tolist()
    loss = step(self, model, inputs, *args, **kwargs)
    with open(os.path.join(self.args.output_dir, f"batches_{self.args.process_index}.jsonl"), "a") as file:
        print(json.dumps([time.time(), memory_of(), index]), file=file)
    return loss
trainer.TokenSeq2SeqTrainer.training_step = timed
run_process(lambda: run(TRANSLATION, sys.argv[1:]))
"""


def training(path: Path, folder: Path, out: str, vocab_size: int, processes: int, max_tokens: int) -> list[str]:
    """The command of a tiny training of two updates on the pairs of `path`, with its data and results in `folder`."""
    model = "d_model=32,encoder_layers=1,decoder_layers=1,encoder_attention_heads=2,decoder_attention_heads=2"
    values = {
        "train_file": path,
        "prepared_dir": folder / "data",
        "output_dir": folder / out,
        "config_overrides": f"{model},encoder_ffn_dim=32,decoder_ffn_dim=32",
        "vocab_size": vocab_size,
        "tokenizer_samples": 20000,
        "max_tokens_per_batch": max_tokens,
        "gradient_accumulation_steps": 8 // processes,
        "max_steps": 2,
        "preset": "none",  # as with a recipe: presets are chosen by a count of the pairs
        "do_train": True,
        "use_cpu": True,
        "save_strategy": "no",
        "report_to": "none",
    }
    script = folder / "training.py"
    script.write_text(inspect.getsource(memory_of) + TRAINING)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    argv = [item for name, value in values.items() for item in (f"--{name}", str(value))]
    return [sys.executable, *(launcher if processes > 1 else []), str(script), *argv]


def run_training(command: list[str]) -> None:
    output = subprocess.run(command, env=os.environ | {"GLOO_SOCKET_IFNAME": "lo"}, capture_output=True, text=True)
    if output.returncode:
        raise RuntimeError(output.stderr[-3000:])


def steps_of(out: Path) -> list[list[list]]:
    """What the processes of a training noted at each of their batches: the time, the memory, and the pairs."""
    return [[json.loads(line) for line in read_lines(file)] for file in sorted(out.glob("batches_*.jsonl"))]


def measure_start(path: Path, folder: Path, vocab_size: int, processes: int, max_tokens: int) -> dict:
    """Seconds to the first update of a training with this many processes, first with unprepared and then with prepared
    data, and the processes' memory. Also whether the batches of its two updates equal those of one process."""
    results = {}
    for start_name in ("anew", "prepared"):
        start, out = time.time(), f"out_{start_name}"
        run_training(training(path, folder, out, vocab_size, processes, max_tokens))
        steps = steps_of(folder / out)
        (prepared,) = (folder / "data").glob("train-*/")
        one = TokenBudgetBatchSampler(pair_lengths(open_pairs(prepared)), max_tokens, seed=42, accumulation_steps=8)
        found = [batch for together in zip(*steps) for _, _, batch in together]
        memory = [of_process[-1][1] for of_process in steps]
        results[start_name] = {
            "seconds_to_first_update": round(min(when for of_process in steps for when, *_ in of_process) - start, 1),
            "mb_of_a_process": {name: max(each[name] for each in memory) for name in ("pss", "own")},
            "mb_together": {name: sum(each[name] for each in memory) for name in ("pss", "own")},
            "batches_are_those_of_one_process": found == list(islice(one, 16)),
        }
    return results


# The phases of a start, and what a folder holds in each of them.
PHASES: dict[str, Callable[[Path], bool]] = {
    "training the tokenizer": lambda folder: any((folder / "data").glob("tokenizer-*/")),
    "writing the first shard": lambda folder: any((folder / "data").glob("train-*/*.unfinished")),
    "writing a later shard": lambda folder: any((folder / "data").glob("train-*/shard-*.arrow")),
    "training": lambda folder: any((folder / "out").glob("batches_*.jsonl")),
}


def contents(folder: Path) -> dict[str, str]:
    """A hash of each file of shards and tokenizers in a folder of prepared data."""
    files = [*folder.glob("train-*/shard-*.arrow"), *folder.glob("tokenizer-*/tokenizer.json")]
    return {str(file.relative_to(folder)): hashlib.blake2b(file.read_bytes()).hexdigest() for file in files}


def measure_kills(path: Path, folder: Path, vocab_size: int, max_tokens: int) -> dict:
    """Kills a training in each of its phases and starts it again. Seconds from the kill to the first update, and
    whether the prepared files and the batches are those of a training that was not killed."""
    expected, results = {}, {}
    for phase in (None, *PHASES):
        own = folder / (phase or "not killed").replace(" ", "_")
        own.mkdir(parents=True)
        command, start = training(path, own, "out", vocab_size, 1, max_tokens), time.time()
        if phase is not None:
            log = (own / "killed.log").open("w")
            child = subprocess.Popen(command, start_new_session=True, stdout=log, stderr=log)
            while not PHASES[phase](own):
                if child.poll() is not None:
                    raise RuntimeError(f"The training ended before it was {phase}: see {log.name}.")
                time.sleep(0.01)
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            shards = len([*(own / "data").glob("train-*/shard-*.arrow")])
            shutil.rmtree(own / "out", ignore_errors=True)
            start = time.time()
        run_training(command)
        (steps,) = steps_of(own / "out")
        found = contents(own / "data"), [batch for *_, batch in steps]
        if phase is None:
            expected, results["not killed"] = found, {"seconds_to_first_update": round(steps[0][0] - start, 1)}
        else:
            results[phase] = {
                "shards_done": shards,
                "seconds_to_first_update": round(steps[0][0] - start, 1),
                "files_and_batches_are_those_of_a_run_not_killed": found == expected,
            }
    results["shards"] = len(expected[0]) - 1
    return results


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
    parser.add_argument("--pairs", type=int, default=10_000_000, help="number of pairs to generate")
    parser.add_argument("--lengths", type=int, default=40_000_000, help="number of pairs to order into batches")
    parser.add_argument("--processes", type=int, nargs="*", default=[2, 8], help="numbers of training processes")
    parser.add_argument(
        "--kill_pairs", type=int, default=1_000_000, help="number of pairs of killed trainings; 0: none"
    )
    parser.add_argument("--num_workers", type=int, default=2, help="number of processes that prepare data")
    parser.add_argument("--vocab_size", type=int, default=8000, help="number of BPE pieces of the joint tokenizer")
    parser.add_argument("--max_tokens", type=int, default=4096, help="maximum number of tokens per batch on each side")
    parser.add_argument("--loader_seconds", type=float, default=5, help="seconds for which the loader is measured")
    parser.add_argument("--folder", type=Path, help="folder for generated files; None: a temporary one")
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
        "arguments": {
            name: shown(value) for name, value in vars(args).items() if name not in ("folder", "output_file")
        },
    }
    folder = args.folder or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "pairs.tsv"
    write_pairs(list(zip(*sides)), args.pairs, path, args.seed)
    sample = [side[:20_000] for side in sides]
    results["words_a_side"] = round(sum(len(text.split()) for side in sample for text in side) / len(sample[0]) / 2, 1)
    results["pairs_per_cpu_second"], tokenizer = measure_encoding(sample, args.vocab_size)
    results["preparation"] = measure_preparation(path, folder / "shards", tokenizer, args.num_workers)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        results["sampler"] = pool.apply(measure_sampler, (args.lengths, args.max_tokens))
    results["loader"] = [
        measure_loader(folder / "shards", tokenizer, args.max_tokens, workers, args.loader_seconds)
        for workers in (1, 4)
    ]
    for processes in args.processes:
        own = folder / f"processes_{processes}"
        own.mkdir()
        results[f"training, {processes} processes"] = measure_start(
            path, own, args.vocab_size, processes, args.max_tokens
        )
    if args.kill_pairs:
        write_pairs(list(zip(*sides)), args.kill_pairs, folder / "killed.tsv", args.seed)
        results["kills"] = {"pairs": args.kill_pairs} | measure_kills(
            folder / "killed.tsv", folder / "kills", args.vocab_size, args.max_tokens
        )
    if args.folder is None:
        shutil.rmtree(folder)
    print(json.dumps(results, indent=1))
    write_results(results, args.output_file)
    return results


if __name__ == "__main__":
    main()
