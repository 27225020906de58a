# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Writes the tables of the verdict's pages from the records of the queue. The words around them are written by hand.

    python docs/verdict_tables.py

A table is that below the line of a page that begins with its heading, up to a punctuation mark or the line's end.
`tests/test_verdict.py` writes them again and compares.
"""

import json
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple


DOCS = Path(__file__).resolve().parent
RESULTS = DOCS.parent / "examples" / "results"
sys.path.insert(0, str(RESULTS))
from verdict import NAMES, phi_and_interval, verdict  # noqa: E402


MAIN, SMALL = "verdict.md", "verdict_small.md"
MULTI30K, TATOEBA = "multi30k_en_de_fast", "tatoeba_en_de_small_fast"
PLAIN, BEST = f"plain_no_dropout_{MULTI30K}", f"plain_no_dropout_0.012_{MULTI30K}"


class Setting(NamedTuple):
    """What models of a record have in common.

    Attributes:
        page, heading: Where its tables are: below "phi HEADING", "Means HEADING" and "Rates HEADING", if it has rates.
        record: Of the queue, without "verdict_".
        summary: Its first cells in the table of all settings: data, dropout, rate; none if it has no row there.
        size: The number of layers in that table.
        rates: The records of `table_of_rates`.
        residual: The scheme that phi is measured from.
        seconds: A file of `verdict_seconds.py`.
    """

    page: str
    heading: str
    record: str
    summary: tuple[str, str, str] | None = None
    size: str = "2"
    rates: Mapping[str, str] = {}
    residual: str = "residual"
    seconds: str | None = None

    def phi(self) -> dict[str, dict[str, dict[str, Any]]]:
        seconds = read(self.seconds)["seconds_per_update"] if self.seconds else None
        return verdict(runs_of(self.record), seconds=seconds, residual=self.residual)["schemes"]


LANGUAGE, WIDER = "tatoeba_sentences", "wide_tatoeba_sentences"
SETTINGS = [
    Setting(
        page=MAIN,
        heading="of language models",
        record=LANGUAGE,
        summary=("language models", "none", "0.006"),
        rates={"": f"rates_{LANGUAGE}", "0.006": LANGUAGE},
        seconds="verdict_seconds_sentences.json",
    ),
    Setting(
        page=MAIN,
        heading="after four epochs",
        record=f"epochs4_{LANGUAGE}",
        summary=("language models, four epochs", "none", "0.006"),
        rates={"": f"rates_epochs4_{LANGUAGE}", "0.006": f"epochs4_{LANGUAGE}"},
        seconds="verdict_seconds_sentences.json",
    ),
    Setting(
        page=MAIN,
        heading="after eight epochs",
        record=f"epochs8_{LANGUAGE}",
        summary=("language models, eight epochs", "none", "0.006"),
    ),
    Setting(
        page=MAIN,
        heading="of an eighth of the text",
        record=f"eighth_{LANGUAGE}",
        summary=("language models, an eighth of the text eight times", "none", "0.006"),
        rates={"": f"rates_eighth_{LANGUAGE}", "0.006": f"eighth_{LANGUAGE}"},
    ),
    Setting(
        page=MAIN,
        heading="of an eighth of the text with a dropout of 0.1",
        record=f"eighth_dropout_{LANGUAGE}",
        summary=("language models, an eighth of the text eight times", "0.1 everywhere", "0.006"),
    ),
    Setting(
        page=MAIN,
        heading="of wider language models",
        record=WIDER,
        summary=("language models, wider", "none", "0.006"),
        rates={"": f"rates_{WIDER}", "0.006": WIDER},
        seconds="verdict_seconds_wide.json",
    ),
    Setting(
        page=MAIN,
        heading="of Llama decoders",
        record=f"llama_{LANGUAGE}",
        summary=("Llama decoders", "none", "0.006"),
    ),
    Setting(
        page=MAIN,
        heading="on Tatoeba",
        record=TATOEBA,
        summary=("Tatoeba", "none", "0.003"),
        size="3",
        rates={"": f"rates_{TATOEBA}", "0.003": TATOEBA},
    ),
    Setting(
        page=MAIN,
        heading="at 0.012, without dropout",
        record=BEST,
        summary=("Multi30k", "none", "0.012"),
        rates={"": f"rates_{PLAIN}", "0.006": PLAIN, "0.012": BEST},
    ),
    Setting(SMALL, "at 0.006, without dropout", PLAIN, ("Multi30k", "none", "0.006")),
    Setting(SMALL, "at 0.006, from residual models with a step of 2", PLAIN, residual="residual_step2"),
    Setting(
        page=SMALL,
        heading="with dropout of attention and activations",
        record=f"plain_dropout0_{MULTI30K}",
        summary=("Multi30k", "0.1 in attention and activations", "0.006"),
    ),
    Setting(SMALL, "without a history", f"plain_{MULTI30K}", ("Multi30k", "0.1 everywhere", "0.006")),
    Setting(
        page=SMALL,
        heading="with a history",
        record=MULTI30K,
        summary=("Multi30k", "0.1 everywhere, and a history", "0.006"),
        seconds="verdict_seconds.json",
    ),
]
SUMMARIZED = ("rk2", "euler2", "residual_step2", "residual_twice")
Rows = list[list[str]]


def read(file: str) -> dict[str, Any]:
    return json.loads((RESULTS / file).read_text(encoding="utf-8"))


def runs_of(record: str) -> dict[str, Any]:
    return read(f"queue/verdict_{record}.json")


def by_model(runs: Mapping[str, Any]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """The metrics of the seeds of each model, by scheme and size, in the order of names and sizes."""
    models = defaultdict(list)
    for name in sorted(runs):
        scheme, size, _ = name.rsplit("_", 2)
        models[scheme, size].append(runs[name]["metrics"])
    return {model: models[model] for model in sorted(models, key=place)}


def place(model: tuple[str, str]) -> tuple[int, int]:
    return list(NAMES).index(model[0]), int(model[1])


def table_of_phi(schemes: Mapping[str, Mapping[str, Any]]) -> Rows:
    found = {
        (scheme, size): values for scheme, sizes in schemes.items() for size, values in sizes.items() if size != "mean"
    }
    differences = [name for name in next(iter(found.values())) if name.startswith("at_equal")]
    titles = ["model", "layers", "phi", "95%", "worth, in layers"]
    rows = [[*titles, *(f"loss {each.replace('_', ' ')}" for each in differences)]]
    for scheme, size in sorted(found, key=place):
        values = found[scheme, size]
        worth = int(size) * values["equivalent_size"]
        row = [NAMES[scheme], size, *phi_and_interval(values), f"{worth:.1f}" if isfinite(worth) else "∞"]
        rows.append(row + [f"{values[each]:+.4f}" for each in differences])
    return rows


def table_of_means(runs: Mapping[str, Any]) -> Rows:
    """Perplexities and the first of the other scores are of the validation set."""
    models = by_model(runs)
    scores = {"BLEU": ("validation", "bleu"), "test BLEU": ("test", "bleu"), "test chrF": ("test", "chrf")}
    digits = 2
    if "bits_per_byte" in next(iter(models.values()))[0]["validation"]:
        scores = {"bits per byte": ("validation", "bits_per_byte"), "test bits per byte": ("test", "bits_per_byte")}
        digits = 4
    rows = [["model", "layers", "seeds", "perplexity", "of the seeds", *scores]]
    for (scheme, size), seeds in models.items():
        perplexities = [each["validation"]["perplexity"] for each in seeds]
        row = [NAMES[scheme], size, str(len(seeds)), f"{statistics.mean(perplexities):.2f}"]
        row.append(f"{min(perplexities):.2f} to {max(perplexities):.2f}" if len(seeds) > 1 else "")
        means = (statistics.mean(each[split][metric] for each in seeds) for split, metric in scores.values())
        rows.append(row + [f"{mean:.{digits}f}" for mean in means])
    return rows


def table_of_rates(records: Mapping[str, str]) -> Rows:
    """Perplexities of the first seed, of models that were tried with several rates.

    Args:
        records: Those of models of a rate, by this rate; and of trials, whose names end in their rate, by "".
    """
    cells: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for rate, record in records.items():
        for name, run in runs_of(record).items():
            scheme, size, last = name.rsplit("_", 2)
            if not rate or last == "1":
                cells[scheme, size][rate or last] = f"{run['metrics']['validation']['perplexity']:.2f}"
    columns = [model for model in sorted(cells, key=place) if len(cells[model]) > 1]
    rates = sorted({rate for model in columns for rate in cells[model]}, key=float)
    titles = (f"{NAMES[scheme]}, {size} layer{'s' * (size != '1')}" for scheme, size in columns)
    return [["rate of Muon", *titles], *([rate, *(cells[model].get(rate, "") for model in columns)] for rate in rates)]


def table_of_settings(phi: Sequence[Mapping[str, Mapping[str, Any]]]) -> Rows:
    """phi of all settings, which is given in their order."""
    rows = [["data", "dropout", "rate of Muon", "residual, perplexity", *(NAMES[scheme] for scheme in SUMMARIZED)]]
    for setting, schemes in zip(SETTINGS, phi):
        if setting.summary:
            seeds = by_model(runs_of(setting.record))["residual", setting.size]
            row = [*setting.summary, f"{statistics.mean(each['validation']['perplexity'] for each in seeds):.2f}"]
            for scheme in SUMMARIZED:
                found = schemes.get(scheme, {}).get(setting.size)
                row.append("{} ({})".format(*phi_and_interval(found)) if found else "")
            rows.append(row)
    return rows


def table_of_captions() -> Rows:
    """Scores of models of Tatoeba on other texts, from the comparisons of `compare_runs.py`."""
    scores = defaultdict(dict)
    for year in (2016, 2017):
        for metric, title in (("bleu", "BLEU"), ("chrf", "chrF")):
            for first, others in runs_of(f"tatoeba_multi30k_{year}_bootstrap")[metric].items():
                for name, found in others.items():
                    scores[first][f"{title}, {year}"] = f"{found['score_a']:.2f}"
                    scores[name][f"{title}, {year}"] = f"{found['score_b']:.2f}"
    models = {tuple(name.rsplit("_", 1)): cells for name, cells in scores.items()}
    titles = list(next(iter(models.values())))
    rows = [[NAMES[model[0]], model[1], *models[model].values()] for model in sorted(models, key=place)]
    return [["model", "layers", *titles], *rows]


def table_of_epochs() -> Rows:
    """Perplexities of language models that were trained for longer, means over the seeds, whose number follows."""
    records = {epochs: f"epochs{epochs}_{LANGUAGE}" for epochs in (2, 4, 8)}
    found = {epochs: by_model(runs_of(record)) for epochs, record in ({1: LANGUAGE} | records).items()}
    rows = [["model", "layers", *(f"{epochs} epoch{'s' * (epochs > 1)}" for epochs in found)]]
    for scheme, size in sorted(found[4], key=place):
        seeds = [
            [each["validation"]["perplexity"] for each in models.get((scheme, size), ())] for models in found.values()
        ]
        cells = (f"{statistics.mean(each):.2f} ({len(each)})" if each else "" for each in seeds)
        rows.append([NAMES[scheme], size, *cells])
    return rows


def tables() -> dict[tuple[str, str], Rows]:
    """All tables, by page and heading."""
    phi = [setting.phi() for setting in SETTINGS]
    made = {(MAIN, "phi with its 95% interval"): table_of_settings(phi)}
    for setting, schemes in zip(SETTINGS, phi):
        made[setting.page, f"phi {setting.heading}"] = table_of_phi(schemes)
        if setting.residual == "residual":
            made[setting.page, f"Means {setting.heading}"] = table_of_means(runs_of(setting.record))
        if setting.rates:
            made[setting.page, f"Rates {setting.heading}"] = table_of_rates(setting.rates)
    made[MAIN, "Language models with a dropout of 0.1"] = table_of_means(runs_of(f"dropout_{LANGUAGE}"))
    made[MAIN, "Means after eight epochs with a dropout of 0.1"] = table_of_means(
        runs_of(f"dropout_epochs8_{LANGUAGE}")
    )
    made[MAIN, "Perplexity of longer trainings"] = table_of_epochs()
    made[MAIN, "On captions"] = table_of_captions()
    # Steps of both stacks, beside the residual model.
    parts = {"residual": MULTI30K, "euler2": f"both_{MULTI30K}"}
    parts |= {f"residual_step{length}": f"step{length}_{MULTI30K}" for length in (2, 4)}
    both = {
        f"{scheme}_2_{name[-1]}": run
        for scheme, record in parts.items()
        for name, run in runs_of(record).items()
        if name.startswith("residual_2_")
    }
    made[SMALL, "## Both stacks"] = table_of_means(both)
    return made


def with_table(text: str, heading: str, rows: Sequence[Sequence[str]]) -> str:
    """A page whose first table below a heading has other rows.

    Raises:
        ValueError: no line begins with the heading, or no table follows.
    """
    found = re.search(rf"^{re.escape(heading)}(?=[,:;\n])", text, re.MULTILINE)
    before, after = (text[: found.end()], text[found.end() :]) if found else (text, "")
    lines = after.split("\n")
    is_row = [line.startswith("|") for line in lines]
    if not found or True not in is_row:
        raise ValueError(f"There is no table below a line that begins with '{heading}'.")
    start = is_row.index(True)
    end = is_row.index(False, start)
    table = [f"| {' | '.join(row)} |" for row in (rows[0], ["---"] * len(rows[0]), *rows[1:])]
    return before + "\n".join([*lines[:start], *table, *lines[end:]])


def main(folder: Path = DOCS) -> None:
    """Replaces the tables of the pages in a folder."""
    pages = {name: (folder / name).read_text(encoding="utf-8") for name in (MAIN, SMALL)}
    for (name, heading), rows in tables().items():
        pages[name] = with_table(pages[name], heading, rows)
    for name, text in pages.items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
