# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""How fast CSAODE trains with its solvers, and how much memory its two gradient methods need.

    python examples/benchmarks/csa_ode.py --train_file data/classification/trec.train.txt.gz --output_file csa_ode.json

`epochs`: for each step size, the solvers train in turns on the same batches of sentences of similar length. The time
of an epoch is the mean time of these batches times the number of all batches. The arithmetic beside it is the ratio of
the numbers of evaluations. `memory`: for several numbers of steps, the bytes that autograd keeps between the forward
and backward pass of a batch, without parameters, and the peak memory of such a step, from PyTorch's profiler.
"""

from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser
from pathlib import Path

import torch
from contenders import Effort, in_turns, machine, peak_memory, ratio, training_step, write_results
from torch.autograd.graph import saved_tensors_hooks
from transformers.utils import logging

from modeling_ode_transformer import CsaOdeConfig, CsaOdeForSequenceClassification
from modeling_ode_transformer.text_files import read_lines


LABELS, WORDS = 6, 1000


def batches_of(lengths: list[int], batch_size: int) -> list[dict[str, torch.Tensor]]:
    """Random words in batches of similar length, the shortest first."""
    generator = torch.Generator().manual_seed(0)
    batches = []
    for chunk in torch.tensor(sorted(lengths)).split(batch_size):
        mask = torch.arange(int(chunk.max())) < chunk[:, None]
        ids = torch.randint(1, WORDS, mask.shape, generator=generator).masked_fill(~mask, 0)
        labels = torch.randint(LABELS, (len(chunk),), generator=generator)
        batches.append({"input_ids": ids, "attention_mask": mask.long(), "labels": labels})
    return batches


def model_of(solver: str, step_size: float, gradient: str = "direct") -> CsaOdeForSequenceClassification:
    torch.manual_seed(0)
    config = CsaOdeConfig(
        vocab_size=WORDS, solver=solver, step_size=step_size, gradient=gradient, num_labels=LABELS, dropout=0.0
    )
    return CsaOdeForSequenceClassification(config).train()


def measure_epochs(batches, step_sizes: list[float], number: int, rounds: int, dtype: str) -> list[dict]:
    """Seconds per epoch of CSARK and CSAARK for each step size, extrapolated from evenly spaced batches."""
    chosen = [batches[(2 * i + 1) * len(batches) // (2 * number)] for i in range(number)]
    rows = []
    for step_size in step_sizes:
        models = {solver: model_of(solver, step_size) for solver in ("rk", "ark")}
        seconds = dict.fromkeys(models, 0.0)
        ratios = []
        for batch in chosen:
            steps = {solver: training_step(model, batch, dtype) for solver, model in models.items()}
            timed = in_turns(steps, Effort(rounds), pause=0.0)
            for solver, each in timed.items():
                seconds[solver] += min(each) * len(batches) / len(chosen)
            ratios.append(ratio(timed["ark"], timed["rk"]))
        evaluations = {solver: model.config.num_function_evaluations for solver, model in models.items()}
        rows.append(
            {
                "step_size": step_size,
                "seconds_per_epoch": seconds,
                "ratio": seconds["ark"] / seconds["rk"],
                "ratios_of_batches": ratios,
                "evaluations": evaluations,
                "arithmetic": evaluations["ark"] / evaluations["rk"],
            }
        )
        print(
            f"| {step_size} | {seconds['rk']:.1f} | {seconds['ark']:.1f} | {rows[-1]['ratio']:.3f} | "
            f"{evaluations['ark']} / {evaluations['rk']} = {rows[-1]['arithmetic']:.3f} |",
            flush=True,
        )
    return rows


def kept_bytes(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> int:
    """The bytes that autograd keeps between forward and backward pass, without parameters."""
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            # Keep the tensor, so that no other one gets its address.
            kept[storage.data_ptr()] = storage.nbytes(), tensor
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        model(**batch)
    return sum(size for size, _ in kept.values())


def measure_memory(batch, numbers_of_steps: list[int]) -> list[dict]:
    """Kept bytes and peak memory of a training step, by solver, gradient and number of steps."""
    rows = []
    for solver in ("rk", "ark"):
        for gradient in ("direct", "adjoint"):
            for steps in numbers_of_steps:
                model = model_of(solver, 1 / steps, gradient)

                def step(model=model):
                    model(**batch).loss.backward()
                    model.zero_grad()

                step()
                row = {"solver": solver, "gradient": gradient, "steps": steps, "kept": kept_bytes(model, batch)}
                rows.append(row | {"peak": peak_memory(step)})
                print(f"| {solver} | {gradient} | {steps} | {row['kept']:,} | {rows[-1]['peak']:,} |", flush=True)
    return rows


def main(argv: list[str] | None = None) -> dict:
    """Runs the benchmark with the given arguments (default: the command line's) and returns its results."""
    parser = ArgumentParser(description=__doc__.splitlines()[0], formatter_class=ArgumentDefaultsHelpFormatter)
    parser.add_argument(
        "--train_file", required=True, help="file of examples, `label words ...` per line; only the lengths matter"
    )
    parser.add_argument("--output_file", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--batch_size", type=int, default=114, help="sentences per batch")
    parser.add_argument("--batches", type=int, default=8, help="number of batches to time")
    parser.add_argument(
        "--rounds", type=int, default=2, help="runs of each solver per batch, after one more to warm up"
    )
    parser.add_argument(
        "--dtype", choices=["float32", "bfloat16"], default="float32", help="precision; bfloat16 means autocast"
    )
    parser.add_argument(
        "--step_sizes",
        type=float,
        nargs="+",
        default=[0.2],
        help="step sizes r; figure 5 of the paper has 0.1 0.2 0.4 0.6 0.8",
    )
    parser.add_argument(
        "--memory_batch_size", type=int, default=16, help="sentences per batch in the memory measurement"
    )
    parser.add_argument(
        "--steps", type=int, nargs="+", default=[2, 5, 10, 20, 40], help="numbers of steps in the memory measurement"
    )
    args = parser.parse_args(argv)
    logging.set_verbosity_error()

    lengths = [len(line.split()) - 1 for line in read_lines(args.train_file)]
    batches = batches_of(lengths, args.batch_size)
    memory_batch = {name: values[: args.memory_batch_size] for name, values in batches[len(batches) // 2].items()}
    results = {
        "machine": machine(),
        "arguments": {name: str(value) for name, value in vars(args).items()},
        "batches": len(batches),
        "epochs": measure_epochs(batches, args.step_sizes, min(args.batches, len(batches)), args.rounds, args.dtype),
        "memory": measure_memory(memory_batch, args.steps),
    }
    write_results(results, args.output_file)
    return results


if __name__ == "__main__":
    main()
