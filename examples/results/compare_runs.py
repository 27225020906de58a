# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Compares the models of the results page by what their runs wrote, and replaces the records of the comparisons.

    python examples/results/compare_runs.py --data_dir data
    python examples/results/compare_runs.py --data_dir data --record_dir three_seeds

Outputs are in folders beside the records of `run_queue.py`: `NAME_SEED.txt.gz` with translations, `NAME_SEED.nll.gz`
with the log-likelihoods of lines. Those of earlier runs, which were not the queue's, are beside this file. The records
of the comparisons have the results of `ode-transformer score bootstrap`, which compares the outputs of other runs too,
by metric, first and second model.
"""

import re
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from modeling_ode_transformer.metrics.bootstrap import compare
from modeling_ode_transformer.text_files import read_lines
from modeling_ode_transformer.training.checkpoints import write_json


RESULTS = Path(__file__).resolve().parent
# In this order; other models follow, by name. Those of a part that are its baselines are compared with all later ones.
MODELS = {
    "residual": "residual",
    "residual6": "residual, 6 layers",
    "rk2": "RK2",
    "rk2_learned": "RK2 (learned)",
    "rk2_gate": "RK2 (gate)",
    "rk2_ema": "RK2 (EMA)",
    "rk4": "RK4",
    "pc": "predictor-corrector",
}


@dataclass(frozen=True)
class Part:
    """Models that were trained and tested on the same data.

    Attributes:
        references: File of the test set, in the folder of the data.
        column: Column of the references in a file of pairs.
        baselines: Models that all later ones are compared with.
        metrics: The metrics.
        ending: The ending of the outputs' names.
    """

    references: str
    column: int | None = None
    baselines: tuple[str, ...] = ("residual", "residual6")
    metrics: tuple[str, ...] = ("bleu", "chrf")
    ending: str = ".txt.gz"

    def files(self, folder: Path) -> dict[str, list[Path]]:
        """The files of outputs of each model, one of each seed."""
        found: dict[str, list[Path]] = {}
        for path in sorted(folder.glob(f"*{self.ending}")):
            found.setdefault(re.sub(r"_\d$", "", path.name.removesuffix(self.ending)), []).append(path)
        order = [*MODELS, *sorted(found.keys() - MODELS.keys())]
        return {name: found[name] for name in order if name in found}

    def compare(self, folder: Path, data_dir: Path) -> dict[str, dict[str, dict[str, dict]]]:
        """The comparisons of the outputs in a folder, by metric, first and second model."""
        references = read_lines(data_dir / self.references)
        if self.column is not None:
            references = [line.split("\t")[self.column] for line in references]
        outputs = {name: [read_lines(path) for path in paths] for name, paths in self.files(folder).items()}
        names = list(outputs)
        return {
            metric: {
                MODELS.get(first, first): {
                    MODELS.get(name, name): compare(outputs[first], outputs[name], references, metric)
                    for name in names[names.index(first) + 1 :]
                }
                for first in names[:-1]
                if first in self.baselines
            }
            for metric in self.metrics
        }


TATOEBA = Part("tatoeba_en_de/test.tsv.gz", column=1)
MULTI30K, MULTI30K_FRENCH = (Part(f"multi30k/test_2016_flickr.{language}.gz") for language in ("de", "fr"))
PTB = Part("ptb/ptb.test.txt.gz", baselines=("residual", "rk2"), metrics=("perplexity",), ending=".nll.gz")
# What pages quote, by the names of the folders of outputs, which are beside the queue's records.
QUEUE = {
    "tatoeba_en_de_small": TATOEBA,
    "tatoeba_en_de_small_fast": TATOEBA,
    "ptb": PTB,
    "ptb_fast": replace(PTB, baselines=("residual", "residual_tied", "rk2")),
    "verdict_tatoeba_en_de_small_fast": replace(TATOEBA, baselines=("residual_3", "residual_6")),
    **{
        f"verdict_tatoeba_multi30k_{year}": replace(
            MULTI30K,
            references=f"multi30k/test_{year}_flickr.de.gz",
            baselines=("euler2_3", "residual_1", "residual_3"),
        )
        for year in (2016, 2017)
    },
}
# By the names of the folders that have `translations`, beside this file.
EARLIER = {"multi30k": MULTI30K, "multi30k_en_fr": MULTI30K_FRENCH}


def all_parts(record_dir: Path) -> Iterator[tuple[Path, Path, Part]]:
    """The folder of outputs, the record of the comparisons and the part of all that is in a folder of the queue's
    records and, if it is this project's, of the earlier runs."""
    for name, part in QUEUE.items():
        yield record_dir / name, record_dir / f"{name}_bootstrap.json", part
    if record_dir.resolve() == RESULTS / "queue":
        for name, part in EARLIER.items():
            yield RESULTS / name / "translations", RESULTS / name / "bootstrap.json", part


def main(argv: list[str] | None = None) -> None:
    """Runs the script with the given arguments (default: the command line's)."""
    parser = ArgumentParser(description=__doc__.splitlines()[0], formatter_class=ArgumentDefaultsHelpFormatter)
    parser.add_argument(
        "--data_dir", type=Path, default=Path("data"), help="folder with multi30k, ptb and tatoeba_en_de"
    )
    parser.add_argument(
        "--record_dir", type=Path, default=RESULTS / "queue", help="folder with the records of run_queue.py"
    )
    args = parser.parse_args(argv)
    for folder, record, part in all_parts(args.record_dir):
        compared = part.compare(folder, args.data_dir) if part.files(folder) else {}
        if not any(compared.values()):
            continue
        write_json(record, compared)
        for metric, models in compared.items():
            for first, others in models.items():
                for name, result in others.items():
                    low, high = result["confidence_interval"]
                    print(
                        f"{folder.parent.name}/{folder.name}, {metric}: {name} - {first} = {result['difference']:.2f} "
                        f"({low:.2f} to {high:.2f}), p = {result['p_value']:.3f}"
                    )


if __name__ == "__main__":
    main()
