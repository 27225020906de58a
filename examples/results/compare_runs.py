# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Compares the models of the results page by what their runs wrote, and replaces the records of the comparisons.

    python examples/results/compare_runs.py --data_dir data

Outputs are beside this file: `NAME_SEED.txt.gz` with translations, `NAME_SEED.nll.gz` with the log-likelihoods of
lines. The records have the results of `ode-transformer score bootstrap` by metric, first and second model.
"""

import json
from argparse import ArgumentParser
from dataclasses import dataclass
from pathlib import Path

from modeling_ode_transformer.metrics.bootstrap import compare
from modeling_ode_transformer.text_files import read_lines


RESULTS = Path(__file__).resolve().parent
BASELINES = {"residual": "residual", "residual6": "residual, 6 layers"}
MODELS = BASELINES | {
    "rk2": "RK2",
    "rk2_learned": "RK2 (learned)",
    "rk2_gate": "RK2 (gate)",
    "rk2_ema": "RK2 (EMA)",
    "rk2_gate_output": "RK2 (gate), output form",
    "rk2_learned_output": "RK2 (learned), output form",
    "rk4": "RK4",
    "pc": "predictor-corrector",
}


@dataclass(frozen=True)
class Part:
    """Models that were trained and tested on the same data.

    Attributes:
        outputs: Folder of the models' outputs.
        record: File for the comparisons.
        references: File of the test set, in the folder of the data.
        baselines: Models that all later ones are compared with.
        column: Column of the references in a file of pairs.
        metrics: The metrics, and the ending of the outputs' names.
    """

    outputs: str
    record: str
    references: str
    baselines: tuple[str, ...] = tuple(BASELINES)
    column: int | None = None
    metrics: tuple[str, ...] = ("bleu", "chrf")
    ending: str = ".txt.gz"

    def read_outputs(self) -> dict[str, list[list[str]]]:
        """The outputs of each model that has any, one of each seed."""
        folder = RESULTS / self.outputs
        files = {
            name: [*folder.glob(f"{name}{self.ending}"), *folder.glob(f"{name}_?{self.ending}")] for name in MODELS
        }
        return {name: [read_lines(path) for path in sorted(paths)] for name, paths in files.items() if paths}

    def compare(self, data_dir: Path) -> dict[str, dict[str, dict[str, dict]]]:
        """The comparisons by metric, first and second model."""
        references = read_lines(data_dir / self.references)
        if self.column is not None:
            references = [line.split("\t")[self.column] for line in references]
        outputs = self.read_outputs()
        names = list(outputs)
        return {
            metric: {
                MODELS[first]: {
                    MODELS[name]: compare(outputs[first], outputs[name], references, metric)
                    for name in names[names.index(first) + 1 :]
                }
                for first in self.baselines
                if first in names[:-1]
            }
            for metric in self.metrics
        }


PARTS = (
    Part("multi30k/translations", "multi30k/bootstrap.json", "multi30k/test_2016_flickr.de.gz"),
    Part("multi30k_en_fr/translations", "multi30k_en_fr/bootstrap.json", "multi30k/test_2016_flickr.fr.gz"),
    Part("queue/tatoeba_en_de_small", "queue/tatoeba_bootstrap.json", "tatoeba_en_de/test.tsv.gz", column=1),
    Part(
        "queue/ptb",
        "queue/ptb_bootstrap.json",
        "ptb/ptb.test.txt.gz",
        baselines=("residual", "rk2"),
        metrics=("perplexity",),
        ending=".nll.gz",
    ),
)


def main(argv: list[str] | None = None) -> None:
    """Runs the script with the given arguments (default: the command line's)."""
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data_dir", type=Path, default=Path("data"), help="folder with multi30k, ptb and tatoeba_en_de"
    )
    args = parser.parse_args(argv)
    for part in PARTS:
        if compared := {metric: models for metric, models in part.compare(args.data_dir).items() if models}:
            (RESULTS / part.record).write_text(f"{json.dumps(compared, indent=1)}\n", encoding="utf-8")
            for metric, models in compared.items():
                for first, others in models.items():
                    for name, result in others.items():
                        low, high = result["confidence_interval"]
                        print(
                            f"{part.outputs}, {metric}: {name} - {first} = {result['difference']:.2f} "
                            f"({low:.2f} to {high:.2f}), p = {result['p_value']:.3f}"
                        )


if __name__ == "__main__":
    main()
