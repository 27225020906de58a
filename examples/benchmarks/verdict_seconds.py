# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Seconds of a training update of each model of the verdict, for `verdict.py --seconds`.

    python examples/benchmarks/verdict_seconds.py --output_file verdict_seconds_sentences.json
    python examples/benchmarks/verdict_seconds.py --only "verdict_wide/*_1" --output_file verdict_seconds_wide.json
    python examples/benchmarks/verdict_seconds.py --recipe multi30k_en_de_fast --output_file verdict_seconds.json

An update is that of the recipe on a CPU: forward, backward, clipping and a step of Muon, on one thread, with as many
random tokens as the recipe's batches have: blocks of 128 or sentences of 11 tokens of a language model, pairs of 20
tokens a side of a translation. Losses are those of `--loss_chunk_size 0`, as in the runs that are recorded. In a round
each model has one turn, so that drift of the machine hits all alike. Results are medians over the rounds. The machine
should have nothing else to do.
"""

import statistics
import sys
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

import torch
from contenders import Effort, in_turns, machine, write_results

from modeling_ode_transformer import (
    OdeTransformerConfig,
    OdeTransformerDecoderConfig,
    OdeTransformerForCausalLM,
    OdeTransformerForConditionalGeneration,
)
from modeling_ode_transformer.inference.cpu import optimize_for_cpu
from modeling_ode_transformer.text_files import parse_overrides, read_json
from modeling_ode_transformer.training.arguments import has_fast_bf16
from modeling_ode_transformer.training.muon import Muon, muon_groups
from modeling_ode_transformer.training.recipe_files import recipe_file
from modeling_ode_transformer.training.trainer import losses_by_row


sys.path.append(str(Path(__file__).resolve().parent.parent / "results"))
from run_queue import Run, verdict_runs


LENGTH, SENTENCE = 20, 11  # of the sentences of a translation and of a language model, in tokens


def update_of(run: Run, recipe: dict, is_tiny: bool) -> Callable[[], None]:
    """An update of a new model of a run, with a batch of its recipe."""
    fields = recipe["config_overrides"] | parse_overrides(run.overrides)
    options = dict(zip(run.arguments[::2], run.arguments[1::2]))
    size = int(options.get("--vocab_size", recipe["vocab_size"]))
    if run.is_of_language_model:
        model = OdeTransformerForCausalLM(OdeTransformerDecoderConfig(vocab_size=size, **fields)).train()
        shape = (recipe["per_device_train_batch_size"], recipe["block_size"] or SENTENCE)
    else:
        model = OdeTransformerForConditionalGeneration(OdeTransformerConfig(vocab_size=size, **fields)).train()
        shape = (recipe["max_tokens_per_batch"] // LENGTH, LENGTH)
    ids, labels = torch.randint(4, size, (2, *((2, 8) if is_tiny else shape)))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False}
    if not run.is_of_language_model:
        inputs["decoder_input_ids"] = labels
    optimize_for_cpu(model)
    is_fast = has_fast_bf16()
    optimizer = Muon(
        muon_groups(model, recipe["muon_learning_rate"], 0.0, ()),
        dtype=torch.bfloat16 if is_fast else torch.float32,
        lr=recipe["learning_rate"],
        betas=(recipe["adam_beta1"], recipe["adam_beta2"]),
    )

    def update() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=is_fast):
            logits = model(**inputs).logits
        (losses_by_row(logits, labels).sum() / labels.numel()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return update


def main(argv: list[str] | None = None) -> dict:
    """Runs the benchmark with the given arguments (default: the command line's) and returns its results."""
    parser = ArgumentParser(description=__doc__.splitlines()[0], formatter_class=ArgumentDefaultsHelpFormatter)
    parser.add_argument("--output_file", type=Path, help="JSON file to write")
    parser.add_argument("--rounds", type=int, default=7, help="number of rounds, after one more to warm up")
    parser.add_argument("--only", default="verdict/*_1", metavar="PATTERN", help="pattern of the names of runs")
    parser.add_argument("--recipe", default="tatoeba_sentences", help="recipe of the runs")
    parser.add_argument("--tiny", action="store_true", help="try it in seconds: 2 rows of 8 tokens")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    torch.manual_seed(1)
    recipe = read_json(recipe_file(args.recipe))
    runs = [run for run in verdict_runs() if run.recipe == args.recipe and fnmatch(run.name, args.only)]
    updates = {run.title.rpartition("_")[0]: update_of(run, recipe, args.tiny) for run in runs}
    seconds = in_turns(updates, Effort(args.rounds))
    results = {
        "machine": machine(),
        "dtype": "bfloat16" if has_fast_bf16() else "float32",
        "rounds": args.rounds,
        "seconds_per_update": {name: statistics.median(each) for name, each in seconds.items()},
    }
    for name, median in results["seconds_per_update"].items():
        print(f"{name:16} {median:8.4f} s")
    write_results(results, args.output_file)
    return results


if __name__ == "__main__":
    main()
