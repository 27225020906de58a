# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Runs the trainings that the results page needs, in a fixed order; if stopped, the same command continues.

    nohup python examples/results/run_queue.py --data_dir data --output_dir runs > queue.log 2>&1 &
    python examples/results/run_queue.py --output_dir runs --list
    kill $(cat runs/queue.pid)
    python examples/results/run_queue.py --data_dir data --output_dir runs --gpu --jobs 16

A run is a folder of `--output_dir` and has its log beside it. When its metrics hold those of the test set it is done,
and joins the records of its part in `--record_dir`, which outlive the folder: what is recorded is not trained again.
Beside the record is what `ode-transformer score bootstrap` compares: translations of the test set, or log-likelihoods
of its lines.
Queues with other output folders may share the records. A run that is not done starts, or resumes from its last
checkpoint. Runs have one thread and the lowest priority. `--gpu` is for those that a CPU would train for days: a small
model leaves most of a GPU idle, so that `--jobs` share it. Arguments that are not of this script, such as
`--bf16 False`, go to every training.
"""

import fcntl
import gzip
import json
import os
import signal
import subprocess
import sys
import threading
import time
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path


EXAMPLES = Path(__file__).resolve().parent.parent
RECORDS, RECIPES = EXAMPLES / "results" / "queue", EXAMPLES / "recipes"
SEEDS = (1, 2, 3)
RESIDUAL = "encoder_solver=euler,encoder_coefficients=fixed"
TATOEBA = {
    "residual": RESIDUAL,
    "residual6": f"{RESIDUAL},encoder_layers=6",
    "rk2": "encoder_coefficients=fixed",
}
PTB = {
    "residual": "decoder_solver=euler,decoder_coefficients=fixed",
    "rk2": "decoder_coefficients=fixed",
    "rk2_gate": "decoder_coefficients=gate",
}
# For a GPU: deep encoders at base size (figure 3 of the paper).
DEEP = {
    f"{name}_{layers}_layers": f"{TATOEBA[name]},encoder_layers={layers}"
    for layers in (24, 12, 6)
    for name in ("rk2", "residual")
}
# Short trainings, evaluated at their end.
MUON = ["--optim", "muon"]
SHORT = ["--lr_scheduler_type", "linear", "--adam_beta2", "0.98", "--eval_strategy", "no", "--save_steps", "0.1"]
SHORT += ["--save_strategy", "steps", "--save_total_limit", "1", "--load_best_model_at_end", "False"]
DEEP_ARGUMENTS = [*SHORT, *MUON, "--max_steps", "300", "--warmup_steps", "50", "--max_eval_samples", "1000"]
DEEP_ARGUMENTS += ["--per_device_eval_batch_size", "1000", "--loss_chunk_size", "0"]
DEEP_ARGUMENTS += ["--muon_learning_rate", "0.004", "--learning_rate", "0.002"]
# The fast recipe of Multi30k as it was at first, and other rates than the recipe's for it.
FIRST_FAST = "layer_history=learned_dense,dropout=0.2"
RATES = {f"muon_{rate}_0.003": ["--muon_learning_rate", rate] for rate in ("0.003", "0.012")}
ADAM = ["--optim", "adamw_torch_fused", "--learning_rate"]
RATES |= {f"adam_{rate}": [*ADAM, rate] for rate in ("0.001", "0.002", "0.003")}
# The tableaus of the mean of several evaluations at the same state; with dropout each has its own.
AT_ONE_STATE = {i: {"a": [[0] * j for j in range(i)], "b": [1 / i] * i} for i in (2, 4)}
# Fast recipes: residual models and RK2 with all seeds, and with the first one what the recipes were chosen by.
FAST = {"tatoeba_en_de_small_fast": TATOEBA, "multi30k_en_de_fast": TATOEBA, "ptb_fast": PTB}
FAST_TRIALS = {
    "tatoeba_en_de_small_fast": {
        "rk2_dropout0.1": "encoder_coefficients=fixed,dropout=0.1",
        "rk2_dlcl_dropout0.1": "encoder_coefficients=fixed,layer_history=learned_dense,dropout=0.1",
    },
    "multi30k_en_de_fast": {
        "rk2_dropout0.2": "encoder_coefficients=fixed,dropout=0.2",
        "rk2_dlcl_dropout0.2": f"encoder_coefficients=fixed,{FIRST_FAST}",
        "rk2_learned_step2": f"encoder_coefficients=learned,step_size=2,{FIRST_FAST}",
    },
    "ptb_fast": {
        # RK2's two evaluations with two draws of dropout, but without its second state.
        "residual_twice": json.dumps({"decoder_solver": AT_ONE_STATE[2], "decoder_coefficients": "fixed"}),
        "rk2_dropout0.3": f"{PTB['rk2']},dropout=0.3",
        **{f"{name}_tied": f"{PTB[name]},tie_word_embeddings=true" for name in ("residual", "rk2")},
        **{f"{name}_2_layers": f"{PTB[name]},decoder_layers=2" for name in ("residual", "rk2")},
    },
}
# Gates that may stay open: on normalized stages, from 1/2 on, with a temperature; in small models and short
# trainings, since the recipe's gate shuts within an epoch. "{}" is the stack whose they are.
GATES = {
    "rk2_gate": "{}_coefficients=gate",
    "rk2_gate_normalized": "{}_coefficients=gate,normalize_stages=true",
    "rk2_gate_even": "{}_coefficients=gate,coefficient_start=even",
    "rk2_scaled_gate": "{}_coefficients=scaled_gate",
}
GATE_STUDIES = {
    "ptb": (
        "decoder",
        "tie_word_embeddings=true,d_model=256,decoder_attention_heads=4,decoder_ffn_dim=1024,",
        ["--num_train_epochs", "2", "--warmup_steps", "150"],
    ),
    "multi30k_en_de": (
        "encoder",
        "d_model=128,encoder_layers=2,decoder_layers=2,encoder_ffn_dim=512,decoder_ffn_dim=512,",
        ["--vocab_size", "2000", "--num_train_epochs", "3", "--warmup_steps", "300", "--max_eval_samples", "100"],
    ),
}
# The verdict: what one more evaluation is worth, beside residual models of other sizes (`verdict.py`).
VERDICT_DECODERS = {
    "residual": {"decoder_solver": "euler"},
    "euler2": {"decoder_solver": "euler", "steps_per_layer": 2},
    "rk2": {"decoder_solver": "rk2"},
    "rk2_learned": {"decoder_solver": "rk2", "decoder_coefficients": "learned"},
}
# Small language models of running text, whose loss depends on the seed as much as on the scheme: Muon's rates and, at
# the best one, longer steps were tried for each scheme; then all seeds, with the best step.
LINUX_SIZE = {"d_model": 64, "decoder_layers": 2, "decoder_ffn_dim": 256, "decoder_attention_heads": 2}
LINUX_RATES, LINUX_RATE, LINUX_STEPS = ("0.006", "0.012", "0.024"), "0.012", (2, 4, 8)
LINUX_BEST_STEPS = {"residual": 4, "euler2": 1, "rk2": 1, "rk2_learned": 1}
# Language models of sentences: one width, so that only the depth and the scheme differ.
SENTENCE_DECODERS = VERDICT_DECODERS | {
    "rk4": {"decoder_solver": "rk4"},
    "iiet": {"decoder_solver": "iiet", "layer_history": "learned_dense"},
    "looped": {"decoder_solver": "euler", "stack_repeats": 2},
    **{f"{name}_step2": VERDICT_DECODERS[name] | {"step_size": 2} for name in ("residual", "rk2")},
    "residual_twice": {"decoder_solver": AT_ONE_STATE[2]},
}
SENTENCES = {f"residual_{n}": VERDICT_DECODERS["residual"] | {"decoder_layers": n} for n in (1, 2, 4, 8, 16)}
SENTENCES |= {
    f"{name}_{n}": fields | {"decoder_layers": n}
    for n in (2, 1, 4)
    for name, fields in SENTENCE_DECODERS.items()
    if name != "residual_twice" and (name, n) != ("looped", 1)  # one layer that is looped is Euler twice
}
WITH_DROPOUT = [("residual", 2), ("rk2", 2), ("residual_twice", 2), ("residual", 4), ("euler2", 2), ("residual", 1)]
SENTENCE_DROPOUT = {
    f"{name}_{n}": SENTENCE_DECODERS[name]
    | {"decoder_layers": n}
    | dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.1)
    for name, n in WITH_DROPOUT
}
# Wider ones, to 10M parameters.
WIDE = {"d_model": 256, "decoder_ffn_dim": 1024, "decoder_attention_heads": 8}
WIDE_SENTENCES = {
    f"residual_{n}": WIDE | VERDICT_DECODERS["residual"] | {"decoder_layers": n} for n in (2, 8, 1, 4, 12)
}
WIDE_SENTENCES |= {
    f"{name}_{n}": WIDE | SENTENCE_DECODERS[name] | {"decoder_layers": n}
    for n in (2, 4)
    for name in ("rk2", "euler2", "looped", "residual_step2", "rk4")
}
# Their trainings: models, arguments, and which models are tried at which other rates.
SENTENCE_RATE, SENTENCE_RATES = "0.006", ("0.003", "0.012", "0.024")
FOR_LONGER = {
    name: SENTENCES[name] for name in ("residual_2", "rk2_2", "euler2_2", "looped_2", "residual_1", "residual_4")
}
EPOCHS = {epochs: ("--num_train_epochs", str(epochs)) for epochs in (2, 4, 8)}
EIGHTH = ("--max_train_samples", "35456", *EPOCHS[8])  # of the text, with as many updates as one epoch has
EIGHTH_RATES = (*SENTENCE_RATES, "0.048")
TWO_LAYERS = [name for name in SENTENCES if name.endswith("_2")]
SENTENCE_PARTS = {
    "verdict": (SENTENCES, (), [*TWO_LAYERS, "residual_8"], SENTENCE_RATES),
    "verdict_dropout": (SENTENCE_DROPOUT, (), (), ()),
    "verdict_wide": (WIDE_SENTENCES, (), ["residual_2"], SENTENCE_RATES),
    "verdict_epochs2": (FOR_LONGER, EPOCHS[2], (), ()),
    "verdict_epochs4": (FOR_LONGER, EPOCHS[4], ("residual_2", "rk2_2"), SENTENCE_RATES[:2]),
    "verdict_epochs8": (FOR_LONGER, EPOCHS[8], ("residual_2", "rk2_2"), SENTENCE_RATES[:2]),
    "verdict_dropout_epochs8": (SENTENCE_DROPOUT, EPOCHS[8], (), ()),
    "verdict_eighth": (FOR_LONGER, EIGHTH, ("residual_2", "rk2_2", "residual_4", "euler2_2"), EIGHTH_RATES),
    "verdict_eighth_dropout": (SENTENCE_DROPOUT, EIGHTH, SENTENCE_DROPOUT, EIGHTH_RATES),
}
# Decoders of today's kind, with rotated positions, gated feed-forward sublayers and RMS norms.
LLAMA = {"hidden_size": 128, "intermediate_size": 344, "num_attention_heads": 4, "num_key_value_heads": 4}
LLAMA |= {"tie_word_embeddings": True}
WRAPPED = {
    "residual": {"solver": "euler"},
    "rk2": {"solver": "rk2", "coefficients": "fixed"},
    "euler2": {"solver": "euler", "steps_per_layer": 2},
}
LLAMAS = [("residual", 2), ("rk2", 2), ("euler2", 2), ("residual", 1), ("residual", 4), ("residual", 8)]
# Small encoders of translation models, in trainings of a few minutes, which vary less with the seed than
# language models of running text.
SMALL = {"d_model": 128, "encoder_ffn_dim": 512, "decoder_ffn_dim": 512, "encoder_layers": 2, "decoder_layers": 2}
SMALL |= {"layer_history": "learned_dense", "dropout": 0.1}
SMALL_ARGUMENTS = [*SHORT, *MUON, "--vocab_size", "2000", "--muon_learning_rate", "0.006"]


SMALL_SCHEMES = {
    "residual": {"encoder_solver": "euler", "encoder_coefficients": "fixed"},
    "euler2": {"encoder_coefficients": "ones"},  # y + F(y) + F(y + F(y)): two Euler steps, of the encoder only
    "rk2": {"encoder_coefficients": "fixed"},
    "rk2_learned": {"encoder_coefficients": "learned"},
    "rk2_gate": {"encoder_coefficients": "gate"},
    "rk4": {"encoder_solver": "rk4", "encoder_coefficients": "fixed"},
    # Longer steps of the encoder only: each evaluation has a weight of 1.
    **{f"residual_step{i}": {"encoder_solver": AT_ONE_STATE[i], "encoder_coefficients": "ones"} for i in (2, 4)},
    "rk2_step2": {"encoder_solver": {"a": [[], [2]], "b": [0.5, 0.5]}, "encoder_coefficients": "ones"},
    # RK2's two evaluations with two draws of dropout, but without its second state.
    "residual_twice": {"encoder_solver": AT_ONE_STATE[2], "encoder_coefficients": "fixed"},
}
LONGER = ("residual_step2", "rk2_step2")
SMALL_ENCODERS = {f"{name}_2": scheme for name, scheme in SMALL_SCHEMES.items()}
for name, sizes in {"residual": (1, 3, 4, 6, 8), "residual_step2": (1, 8)}.items():
    SMALL_ENCODERS |= {f"{name}_{n}": SMALL_SCHEMES[name] | {"encoder_layers": n} for n in sizes}
# Some of them in other surroundings, of both stacks: with two steps, with longer ones, without a history of layers, as
# in most models, and without dropout, whose draws further evaluations average. `dropout` alone leaves that of
# attention and activations. Of the rates that are tried, the best one with a history and dropout is 0.006.
NO_HISTORY = {"layer_history": "none"}
NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
FEW = ("residual_2", "rk2_2", "euler2_2", "residual_1", "residual_8")
SMALL_ELSEWHERE = {
    "both": ({"steps_per_layer": 2}, FEW[:1]),
    "step2": ({"step_size": 2}, FEW[:1]),
    "step4": ({"step_size": 4}, FEW[:1]),
    "looped": ({"stack_repeats": 2}, FEW[:1]),
    "plain": (NO_HISTORY, SMALL_ENCODERS),
    "plain_dropout0": (NO_HISTORY | {"dropout": 0.0}, FEW),
    "plain_no_dropout": (NO_HISTORY | NO_DROPOUT, [name for name in SMALL_ENCODERS if name != "residual_twice_2"]),
    "plain_no_dropout_0.012": (
        *(NO_HISTORY | NO_DROPOUT, (*FEW, *(f"{name}_2" for name in LONGER))),
        *("--muon_learning_rate", "0.012"),
    ),
}
# Of the parts in which three seeds leave open whether RK2 leads at the best rate.
MORE_SEEDS = {"verdict_plain_no_dropout_0.012": (*SEEDS, 4, 5)}
SMALL_RATES = {
    "verdict_rates": ({}, ("residual",), ("0.003", "0.012")),
    "verdict_rates_plain_no_dropout": (NO_HISTORY | NO_DROPOUT, ("residual", "rk2", "euler2"), ("0.003", "0.024")),
}
# Larger ones on other sentences, nearly six times as many, twice each; also without history and dropout.
HISTORY = {"layer_history": "learned_dense"}  # which correctors need
VERDICT_ENCODERS = {
    **{f"{name}_3": SMALL_SCHEMES[name] for name in ("residual", "rk2", "euler2", "residual_step2")},
    **{f"residual_{n}": SMALL_SCHEMES["residual"] | {"encoder_layers": n} for n in (1, 12, 6, 2, 4, 8)},
    **{f"{name}_3": SMALL_SCHEMES[name] for name in ("rk4", "rk2_learned", "rk2_gate")},
    "midpoint_3": {"encoder_solver": "midpoint", "encoder_coefficients": "fixed"},
    "pcformer_3": {"encoder_solver": "pcformer", "encoder_coefficients": "ema"} | HISTORY,
    "iiet_3": {"encoder_solver": "iiet", "encoder_coefficients": "fixed"} | HISTORY,
    **{f"rk2_{n}": SMALL_SCHEMES["rk2"] | {"encoder_layers": n} for n in (1, 2, 6)},
}
VERDICT_ARGUMENTS = [*SHORT, "--num_train_epochs", "2", "--muon_learning_rate"]
VERDICT_RATE, OTHER_RATES = "0.003", ("0.0015", "0.006", "0.012")  # the best one, and what else is tried
# The files of a recipe, by the names of their splits and, where they are two, sides.
FILES = {
    **dict.fromkeys(
        ("tatoeba_en_de", "tatoeba_en_de_small", "tatoeba_en_de_small_fast"),
        ("tatoeba_en_de/{split}.tsv.gz", {}, ("train", "valid", "test")),
    ),
    **dict.fromkeys(
        ("multi30k_en_de", "multi30k_en_de_fast"),
        ("multi30k/{split}.{side}.gz", {"source": "en", "target": "de"}, ("train", "val", "test_2016_flickr")),
    ),
    **dict.fromkeys(("ptb", "ptb_fast"), ("ptb/ptb.{split}.txt.gz", {}, ("train", "valid", "test"))),
    **{
        name: (f"{name}/{{split}}.txt.gz", {}, ("train", "valid", "test"))
        for name in ("linux_doc", "tatoeba_sentences")
    },
}
# Writes the log-likelihood of each line of a text.
SCORE = ["-m", "modeling_ode_transformer", "score", "perplexity"]


def data_arguments(recipe: str, data_dir: Path) -> list[str]:
    """The options that name the files of a recipe in another folder of data."""
    pattern, sides, names = FILES[recipe]
    arguments = []
    for split, name in zip(("train", "validation", "test"), names):
        for side, language in sides.items() or [("", "")]:
            option = "_".join(filter(None, (split, side, "file")))
            arguments += [f"--{option}", str(data_dir / pattern.format(split=name, side=language))]
    return arguments


@dataclass(frozen=True)
class Run:
    """A training: its folder, recipe, seed and the overrides of its model."""

    name: str
    recipe: str
    seed: int
    overrides: str
    arguments: list[str] = field(default_factory=list)
    needs_gpu: bool = False

    @property
    def block_size(self) -> int | None:
        """Of a language model, as its recipe has it."""
        return json.loads((RECIPES / f"{self.recipe}.json").read_text()).get("block_size")

    @property
    def is_of_language_model(self) -> bool:
        return self.block_size is not None

    @property
    def title(self) -> str:
        """Its name among the runs of its part."""
        return self.name.rpartition("/")[2]

    def record(self, record_dir: Path) -> Path:
        """The file that has all finished runs of its part."""
        return record_dir / f"{self.name.rpartition('/')[0].replace('/', '_')}.json"

    def outputs(self, record_dir: Path) -> Path:
        """The file that has what its model made of the test set."""
        kind = "nll" if self.is_of_language_model else "txt"
        return self.record(record_dir).with_suffix("") / f"{self.title}.{kind}.gz"

    def command(self, data_dir: Path, output_dir: Path, more: list[str]) -> list[str]:
        """What is to be run, without the interpreter."""
        script = "run_language_modeling.py" if self.is_of_language_model else "run_translation.py"
        train = [str(EXAMPLES / script), "--recipe", self.recipe, "--log_coefficients"]
        train += ["--seed", str(self.seed), "--output_dir", str(output_dir / self.name), "--disable_tqdm", "True"]
        train += [*data_arguments(self.recipe, data_dir), "--config_overrides", self.overrides]
        return [*train, *self.arguments, *more]


def language_model(name: str, seed: int, fields: dict[str, object], rate: str, *more: str) -> Run:
    return Run(name, name.split("/")[1], seed, json.dumps(fields), ["--muon_learning_rate", rate, *more])


def small_run(part: str, recipe: str, name: str, seed: int, fields: dict[str, object], *more: str) -> Run:
    return Run(
        f"{part}/{recipe}/{name}", recipe, seed, json.dumps(SMALL | fields), arguments=[*SMALL_ARGUMENTS, *more]
    )


def verdict_runs() -> list[Run]:
    """Language models, small encoders and larger ones: of each what was tried, then the models with all seeds."""
    tried, runs = "verdict_rates/linux_doc", []
    for name, scheme in VERDICT_DECODERS.items():
        fields = LINUX_SIZE | scheme
        runs += [language_model(f"{tried}/{name}_{rate}", 1, fields, rate) for rate in LINUX_RATES]
        runs += [
            language_model(f"{tried}/{name}_step{step}_{LINUX_RATE}", 1, fields | {"step_size": step}, LINUX_RATE)
            for step in LINUX_STEPS
        ]
    linux = {
        name: LINUX_SIZE | VERDICT_DECODERS[name] | {"step_size": step} for name, step in LINUX_BEST_STEPS.items()
    }
    runs += [
        language_model(
            *(f"{part.replace('verdict', 'verdict_rates')}/tatoeba_sentences/{name}_{rate}", 1, models[name], rate),
            *arguments,
        )
        for part, (models, arguments, tried, rates) in SENTENCE_PARTS.items()
        for name in tried
        for rate in rates
    ]
    runs += [
        language_model(f"verdict/linux_doc/{name}_0.4M_{seed}", seed, fields, LINUX_RATE)
        for seed in SEEDS
        for name, fields in linux.items()
    ]
    runs += [
        language_model(f"{part}/tatoeba_sentences/{name}_{seed}", seed, fields, SENTENCE_RATE, *arguments)
        for part, (models, arguments, *_) in SENTENCE_PARTS.items()
        for seed in SEEDS
        for name, fields in models.items()
    ]
    runs += [
        language_model(
            *(f"verdict_llama/tatoeba_sentences/{name}_{n}_{seed}", seed, LLAMA | {"num_hidden_layers": n}),
            *(SENTENCE_RATE, "--config_name", "llama", "--wrap", json.dumps(WRAPPED[name])),
        )
        for seed in SEEDS
        for name, n in LLAMAS
    ]
    recipe = "multi30k_en_de_fast"
    runs += [
        small_run(part, recipe, f"{name}_2_{rate}", 1, fields | SMALL_SCHEMES[name], "--muon_learning_rate", rate)
        for part, (fields, names, rates) in SMALL_RATES.items()
        for name in names
        for rate in rates
    ]
    parts = {"verdict": ({}, SMALL_ENCODERS)}
    parts |= {f"verdict_{name}": surroundings for name, surroundings in SMALL_ELSEWHERE.items()}
    runs += [
        small_run(part, recipe, f"{name}_{seed}", seed, fields | SMALL_ENCODERS[name], *more)
        for part, (fields, names, *more) in parts.items()
        for seed in MORE_SEEDS.get(part, SEEDS)
        for name in names
    ]
    recipe = "tatoeba_en_de_small_fast"
    overrides = {name: json.dumps(NO_DROPOUT | fields) for name, fields in VERDICT_ENCODERS.items()}
    runs += [
        Run(
            *(f"verdict_rates/{recipe}/{name}_{rate}", recipe, 1, overrides[name]),
            arguments=[*VERDICT_ARGUMENTS, rate],
        )
        for name in ("residual_3", "rk2_3", "euler2_3")
        for rate in OTHER_RATES
    ]
    return runs + [
        Run(f"verdict/{recipe}/{name}_{seed}", recipe, seed, each, arguments=[*VERDICT_ARGUMENTS, VERDICT_RATE])
        for seed in SEEDS
        for name, each in overrides.items()
    ]


def all_runs() -> list[Run]:
    """In the order in which they are run: of each part, all models with the first seed come first."""
    parts = [("tatoeba_en_de_small", TATOEBA), ("ptb", PTB)]
    parts += [(recipe, {name: models[name] for name in ("residual", "rk2")}) for recipe, models in FAST.items()]
    runs = [
        Run(f"{recipe}/{name}_{seed}", recipe, seed, overrides)
        for recipe, models in parts
        for seed in SEEDS
        for name, overrides in models.items()
    ]
    runs += [
        Run(f"gates/{recipe}/{name}_{seed}", recipe, seed, sizes + overrides.format(stack), arguments=arguments)
        for recipe, (stack, sizes, arguments) in GATE_STUDIES.items()
        for seed in SEEDS
        for name, overrides in GATES.items()
    ]
    runs += [
        Run(f"tatoeba_en_de/{name}_1", "tatoeba_en_de", 1, overrides, arguments=DEEP_ARGUMENTS, needs_gpu=True)
        for name, overrides in DEEP.items()
    ]
    runs += [
        Run(f"{recipe}/{name}_1", recipe, 1, overrides)
        for recipe, models in FAST_TRIALS.items()
        for name, overrides in models.items()
    ]
    runs.append(Run("ptb_fast/rk2_5_epochs_1", "ptb_fast", 1, PTB["rk2"], arguments=["--num_train_epochs", "5"]))
    runs += [
        Run(f"ptb_fast/{name}_rate{rate}_1", "ptb_fast", 1, PTB[name], arguments=["--muon_learning_rate", rate])
        for rate in ("0.012", "0.003")
        for name in ("residual", "rk2")
    ]
    # Without a history other rates are better than the recipes': of small models twice, on Tatoeba half (the verdict).
    runs += [
        Run(f"{recipe}/rk2_muon_{rate}_1", recipe, 1, TATOEBA["rk2"], arguments=RATES[f"muon_{rate}_0.003"])
        for recipe, rate in (("multi30k_en_de_fast", "0.012"), ("tatoeba_en_de_small_fast", "0.003"))
    ]
    recipe = "multi30k_en_de_fast"
    runs += [Run(f"rates/{recipe}/{name}_1", recipe, 1, FIRST_FAST, arguments=rates) for name, rates in RATES.items()]
    # Muon's rates are those that were best above, and so is Adam's on other data.
    runs += [
        Run(f"rates/{recipe}/adam_0.002_1", recipe, 1, overrides, arguments=RATES["adam_0.002"])
        for recipe, overrides in (("tatoeba_en_de_small_fast", TATOEBA["rk2"]), ("ptb_fast", PTB["rk2"]))
    ]
    return runs + verdict_runs()


def is_done(folder: Path) -> bool:
    """Whether the metrics of a run hold those of its test set."""
    results = folder / "all_results.json"
    return results.is_file() and "predict_samples" in json.loads(results.read_text())


def is_recorded(run: Run, record_dir: Path) -> bool:
    record = run.record(record_dir)
    return record.is_file() and run.title in json.loads(record.read_text())


def state(run: Run, output_dir: Path, record_dir: Path) -> str:
    folder = output_dir / run.name
    if is_recorded(run, record_dir):
        return "done"
    last = max((int(path.name[11:]) for path in folder.glob("checkpoint-*") if path.name[11:].isdigit()), default=0)
    return f"begun, saved at update {last}" if last else "begun" if folder.is_dir() else "waits"


def say(text: str) -> None:
    """Prints a line as a whole, even beside other threads."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Within the context, no other process of this script changes the records in a folder; waits for one that does."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class Queue:
    """Trains runs, `jobs` at a time.

    Args:
        data_dir, output_dir, record_dir: as in `main`.
        more: Arguments for every training.
        jobs: Trainings at a time.
    """

    def __init__(self, data_dir: Path, output_dir: Path, record_dir: Path, more: list[str], jobs: int = 1):
        self.data_dir = data_dir
        self.output_dir = output_dir
        self.record_dir = record_dir
        self.more = more
        self.jobs = jobs
        self.children: set[subprocess.Popen] = set()
        self.is_stopped = threading.Event()
        # Runs of a part share their record; those of another process do, too.
        self.recording = threading.Lock()

    def work(self, runs: list[Run]) -> list[str]:
        """Trains what is not done, and returns the names of the runs that failed. What ends the queue ends its
        trainings too."""
        with ThreadPoolExecutor(self.jobs) as executor:
            begun = {run.name: executor.submit(self.train, run) for run in runs}
            try:
                return [name for name, is_done in begun.items() if not is_done.result()]
            finally:
                self.stop()

    def keep_curves(self, runs: list[Run]) -> None:
        """Writes what the last checkpoints of unfinished runs say of losses and scores into `unfinished.json`."""
        curves = {}
        for run in runs:
            states = (self.output_dir / run.name).glob("checkpoint-*/trainer_state.json")
            if not is_recorded(run, self.record_dir) and (states := list(states)):
                state = json.loads(max(states, key=lambda path: int(path.parent.name[11:])).read_text())
                curves[run.name] = {name: state[name] for name in ("global_step", "max_steps", "log_history")}
        self.record_dir.mkdir(parents=True, exist_ok=True)
        (self.record_dir / "unfinished.json").write_text(json.dumps(curves, indent=1))

    def stop(self) -> None:
        """Ends all trainings that run, and lets none begin."""
        self.is_stopped.set()
        for child in list(self.children):
            child.terminate()
        for child in list(self.children):
            try:
                child.wait(30)
            except subprocess.TimeoutExpired:
                child.kill()

    def train(self, run: Run) -> bool:
        """Trains and records a run, unless that is done; whether it is now."""
        with self.recording:
            if is_recorded(run, self.record_dir):
                return True
        if self.is_stopped.is_set():
            return False
        folder, record = self.output_dir / run.name, run.record(self.record_dir)
        begin, log_file = time.time(), self.output_dir / f"{run.name}.log"
        with self.recording:
            say(f"{time.strftime('%F %T')} {run.name}: {state(run, self.output_dir, self.record_dir)}")
        status = 0
        if not is_done(folder):
            status = self.run_child(run.command(self.data_dir, self.output_dir, self.more), log_file)
        if not status:
            collect = [str(EXAMPLES / "analysis" / "collect_runs.py"), str(folder)]
            with self.recording, locked(self.record_dir):
                if is_recorded(run, self.record_dir):  # by another queue
                    return True
                status = self.keep_outputs(run, log_file) or self.run_child(
                    [*collect, "--names", run.title, "--output_file", str(record)], log_file
                )
                status = status or int(not is_recorded(run, self.record_dir))
        if self.is_stopped.is_set():
            return False
        if status:
            say(f"{run.name} failed (exit status {status}): see {log_file}")
            return False
        say(f"{time.strftime('%F %T')} {run.name}: done, {(time.time() - begin) / 60:.0f} minutes")
        return True

    def keep_outputs(self, run: Run, log_file: Path) -> int:
        """Puts what a finished run's model makes of the test set beside the record; returns 0 if that succeeds."""
        folder, file = self.output_dir / run.name, run.outputs(self.record_dir)
        written = folder / "generated_predictions.txt"
        if run.is_of_language_model:
            written = folder / "test.nll"
            written.unlink(missing_ok=True)  # of a command that was stopped
            texts = self.data_dir / FILES[run.recipe][0].format(split="test")
            score = [*SCORE, "--block_size", str(run.block_size), "--model", str(folder), "--texts", str(texts)]
            score += ["--nll_file", str(written)]
            if status := self.run_child(score, log_file):
                return status
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(".part")
        try:
            unfinished.write_bytes(gzip.compress(written.read_bytes(), mtime=0))
        except OSError as error:
            say(f"{run.name}: its outputs cannot be kept ({error})")
            return 1
        unfinished.replace(file)
        return 0

    def run_child(self, command: list[str], log_file: Path) -> int:
        """Runs Python with one thread and the lowest priority; returns its status."""
        environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
        log_file.parent.mkdir(parents=True, exist_ok=True)
        with log_file.open("a") as log:
            child = subprocess.Popen(
                ["nice", "-n", "19", sys.executable, *command], env=environment, stdout=log, stderr=subprocess.STDOUT
            )
            self.children.add(child)
            if self.is_stopped.is_set():
                child.terminate()
            try:
                return child.wait()
            finally:
                self.children.discard(child)


def main(argv: list[str] | None = None) -> None:
    """Runs the script with the given arguments (default: the command line's)."""
    parser = ArgumentParser(description=__doc__.splitlines()[0], formatter_class=ArgumentDefaultsHelpFormatter)
    parser.add_argument(
        "--data_dir", type=Path, default=Path("data"), help="folder with multi30k, ptb and tatoeba_en_de"
    )
    parser.add_argument(
        "--output_dir", type=Path, default=Path("runs"), help="folder for the output folders of the runs"
    )
    parser.add_argument("--record_dir", type=Path, default=RECORDS, help="folder with the records of finished runs")
    parser.add_argument(
        "--only", default="*", metavar="PATTERN", help="pattern of the names of runs to start, such as 'ptb/*_1'"
    )
    parser.add_argument("--gpu", action="store_true", help="start the runs that need a GPU, and none of the others")
    parser.add_argument("--jobs", type=int, default=1, help="number of trainings at a time")
    parser.add_argument(
        "--budget_seconds",
        type=float,
        help="stop after this time; the curves of unfinished runs go to unfinished.json in --record_dir",
    )
    parser.add_argument("--list", action="store_true", help="only print the state of each run, for a GPU or not")
    args, more = parser.parse_known_args(argv)
    runs = [run for run in all_runs() if fnmatch(run.name, args.only) and (args.list or run.needs_gpu == args.gpu)]
    if not runs:
        where = "for a GPU" if args.gpu else "for a CPU"
        parser.error(f"--only {args.only}: no run {where} has such a name. --list prints all names.")
    if args.jobs < 1:
        parser.error(f"--jobs {args.jobs}: give at least 1.")
    if args.list:
        for run in runs:
            print(f"{run.name:45} {state(run, args.output_dir, args.record_dir)}")
        return
    args.output_dir.mkdir(parents=True, exist_ok=True)
    with (args.output_dir / "queue.pid").open("a+") as pid_file:
        try:
            fcntl.flock(pid_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            sys.exit(f"A queue is already running in {args.output_dir}: its process id is in queue.pid.")
        pid_file.truncate(0)
        print(os.getpid(), file=pid_file, flush=True)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
        queue = Queue(args.data_dir, args.output_dir, args.record_dir, more, args.jobs)
        if args.budget_seconds:
            timer = threading.Timer(args.budget_seconds, queue.stop)
            timer.daemon = True
            timer.start()
        failed = queue.work(runs)
        if args.budget_seconds:
            queue.keep_curves(runs)
        if failed:
            sys.exit(f"Not done: {', '.join(failed)}")


if __name__ == "__main__":
    main()
