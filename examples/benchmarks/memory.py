# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Whether the memory of a process grows with the number of input shapes, on a CPU.

    python examples/benchmarks/memory.py --output_file memory.json

Every call has a new random batch, with a new number of sources, new source lengths and a new output length. Calls are
beam searches or training steps. Each contender has its own process; its resident memory is recorded after some calls.
"""

import multiprocessing
import random
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser
from pathlib import Path

import psutil
import torch
from contenders import END, FIRST_WORD, VOCAB_SIZE, m2m100, machine, ode_transformer, prepared, sources, write_results


MODELS = {
    "M2M100": lambda residual: residual,
    "RK2": lambda residual: ode_transformer("rk2", residual),
    "RK2 packed": lambda residual: prepared(ode_transformer("rk2", residual), packing="packed"),
    "RK2 int8": lambda residual: prepared(ode_transformer("rk2", residual), packing="int8"),
}
CONTENDERS = [
    ("search", "M2M100"),
    ("search", "RK2"),
    ("search", "RK2 packed"),
    ("training", "M2M100"),
    ("training", "RK2"),
    ("search", "RK2 int8"),
]


def measure(connection, task: str, contender: str, d_model: int, layers: int, most: dict[str, int], noted: list[int]):
    """Sends the resident memory in MiB after the calls whose numbers are in `noted`, counted from 1."""
    torch.set_num_threads(1)
    model = MODELS[contender](m2m100(layers, d_model, layers))
    optimizer = torch.optim.SGD(model.train(task == "training").parameters(), lr=1e-6) if task == "training" else None
    numbers = random.Random(0)
    resident = []
    for call in range(1, noted[-1] + 1):
        lengths = [numbers.randint(2, most["length"]) for _ in range(numbers.randint(1, most["sentences"]))]
        batch, new = sources(lengths, seed=call), numbers.randint(2, most["new_tokens"])
        if optimizer is None:
            model.generate(**batch, num_beams=4, min_new_tokens=new, max_new_tokens=new)
        else:
            labels = torch.randint(FIRST_WORD, VOCAB_SIZE, (len(lengths), new))
            labels[:, -1] = END
            model(**batch, labels=labels).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        if call in noted:
            resident.append(psutil.Process().memory_info().rss / 2**20)
    connection.send(resident)


def in_process(*arguments) -> list[float]:
    """The values that `measure` sends from a new process."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=measure, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()  # so that receiving ends if the process does
    resident = ours.recv()
    process.join()
    return resident


def main(argv: list[str] | None = None) -> dict:
    """Runs the benchmark with the given arguments (default: the command line's) and returns its results."""
    parser = ArgumentParser(description=__doc__.splitlines()[0], formatter_class=ArgumentDefaultsHelpFormatter)
    parser.add_argument("--output_file", type=Path, help="JSON file to write")
    parser.add_argument(
        "--calls", type=int, nargs="+", default=[1, 20, 40, 80], help="numbers of calls after which memory is measured"
    )
    parser.add_argument("--sentences", type=int, default=16, help="maximum number of sentences per batch")
    parser.add_argument("--length", type=int, default=40, help="maximum length of a source in words")
    parser.add_argument("--new_tokens", type=int, default=20, help="maximum length of an output in words")
    parser.add_argument("--d_model", type=int, default=256, help="width of the models")
    parser.add_argument("--layers", type=int, default=3, help="number of encoder layers and of decoder layers")
    args = parser.parse_args(argv)
    args.calls = sorted(set(args.calls))
    most = {"sentences": args.sentences, "length": args.length, "new_tokens": args.new_tokens}
    print(
        f"| | {' | '.join(f'call {call}' for call in args.calls)} |\n|{' --- |' * (len(args.calls) + 1)}", flush=True
    )
    rows = {}
    for task, contender in CONTENDERS:
        resident = in_process(task, contender, args.d_model, args.layers, most, args.calls)
        rows[f"{task}, {contender}"] = resident
        print(f"| {task}, {contender} | {' | '.join(f'{each:.0f} MiB' for each in resident)} |", flush=True)
    arguments = {name: str(value) for name, value in vars(args).items()}
    results = {"machine": machine(), "arguments": arguments, "calls": args.calls, "MiB": rows}
    write_results(results, args.output_file)
    return results


if __name__ == "__main__":
    main()
