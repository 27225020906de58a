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
from pathlib import Path
from typing import Any, NamedTuple


DOCS = Path(__file__).resolve().parent
RESULTS = DOCS.parent / "examples" / "results"
sys.path.insert(0, str(RESULTS))
from verdict import (  # noqa: E402
    NAMES,
    by_model,
    difference,
    losses_of,
    markdown,
    phi_of,
    place,
    table,
    verdict,
    with_interval,
)


MAIN, SMALL = "verdict.md", "verdict_small.md"
MULTI30K, TATOEBA = "multi30k_en_de_fast", "tatoeba_en_de_small_fast"
PLAIN, BEST = f"plain_no_dropout_{MULTI30K}", f"plain_no_dropout_0.012_{MULTI30K}"


class Setting(NamedTuple):
    """What models of a record have in common.

    Attributes:
        page, heading: Where its tables are: below "HEADING" and, if it has rates, "Rates of HEADING".
        record: Of the queue, without "verdict_".
        summary: Its first cells in the table of all settings: data, dropout, rate; none if it has no row there,
            and residual models of too few sizes for phi, or whose loss does not fall with their size.
        size: The number of layers in that table.
        rates: The records of `table_of_rates`.
        seconds: A file of `verdict_seconds.py`.
    """

    page: str
    heading: str
    record: str
    summary: tuple[str, str, str] | None = None
    size: str = "2"
    rates: Mapping[str, str] = {}
    seconds: str | None = None

    def phi(self) -> dict[str, dict[str, dict[str, Any]]] | None:
        seconds = read(self.seconds)["seconds_per_update"] if self.seconds else None
        return verdict(runs_of(self.record), seconds=seconds)["schemes"] if self.summary else None


LANGUAGE, WIDER = "tatoeba_sentences", "wide_tatoeba_sentences"
SETTINGS = [
    Setting(
        page=MAIN,
        heading="Language models of width 128",
        record=LANGUAGE,
        summary=("language models", "none", "0.006"),
        rates={"": f"rates_{LANGUAGE}", "0.006": LANGUAGE},
        seconds="verdict_seconds_sentences.json",
    ),
    Setting(
        page=MAIN,
        heading="Models after four epochs",
        record=f"epochs4_{LANGUAGE}",
        summary=("language models, four epochs", "none", "0.006"),
        rates={"": f"rates_epochs4_{LANGUAGE}", "0.006": f"epochs4_{LANGUAGE}"},
        seconds="verdict_seconds_sentences.json",
    ),
    Setting(
        page=MAIN,
        heading="Models after eight epochs",
        record=f"epochs8_{LANGUAGE}",
        summary=("language models, eight epochs", "none", "0.006"),
        rates={"": f"rates_epochs8_{LANGUAGE}", "0.006": f"epochs8_{LANGUAGE}"},
    ),
    Setting(
        page=MAIN,
        heading="Models of an eighth of the text",
        record=f"eighth_{LANGUAGE}",
        rates={"": f"rates_eighth_{LANGUAGE}", "0.006": f"eighth_{LANGUAGE}"},
    ),
    Setting(
        page=MAIN,
        heading="Models of an eighth of the text with a dropout of 0.1",
        record=f"eighth_dropout_{LANGUAGE}",
        summary=("language models, an eighth of the text eight times", "0.1 everywhere", "0.006"),
        rates={"": f"rates_eighth_dropout_{LANGUAGE}", "0.006": f"eighth_dropout_{LANGUAGE}"},
    ),
    Setting(MAIN, "Models with a dropout of 0.1", f"dropout_{LANGUAGE}"),
    Setting(MAIN, "Models after eight epochs with a dropout of 0.1", f"dropout_epochs8_{LANGUAGE}"),
    Setting(
        page=MAIN,
        heading="Language models of width 256",
        record=WIDER,
        summary=("language models, wider", "none", "0.006"),
        rates={"": f"rates_{WIDER}", "0.006": WIDER},
        seconds="verdict_seconds_wide.json",
    ),
    Setting(
        page=MAIN,
        heading="Llama decoders",
        record=f"llama_{LANGUAGE}",
        summary=("Llama decoders", "none", "0.006"),
    ),
    Setting(
        page=MAIN,
        heading="Models on Tatoeba",
        record=TATOEBA,
        summary=("Tatoeba", "none", "0.003"),
        size="3",
        rates={"": f"rates_{TATOEBA}", "0.003": TATOEBA},
    ),
    Setting(
        page=MAIN,
        heading="Small encoders without dropout",
        record=BEST,
        summary=("Multi30k", "none", "0.012"),
        rates={"": f"rates_{PLAIN}", "0.006": PLAIN, "0.012": BEST},
    ),
    Setting(SMALL, "Small encoders without dropout", PLAIN, ("Multi30k", "none", "0.006")),
    Setting(
        page=SMALL,
        heading="Small encoders with dropout of attention and activations",
        record=f"plain_dropout0_{MULTI30K}",
        summary=("Multi30k", "0.1 in attention and activations", "0.006"),
    ),
    Setting(SMALL, "Small encoders without a history", f"plain_{MULTI30K}", ("Multi30k", "0.1 everywhere", "0.006")),
    Setting(
        page=SMALL,
        heading="Small encoders with a history",
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


def table_of_settings(phi: Sequence[Mapping[str, Mapping[str, Any]] | None]) -> Rows:
    """phi of all settings, which is given in their order."""
    rows = [["data", "dropout", "rate of Muon", "residual, perplexity", *(NAMES[scheme] for scheme in SUMMARIZED)]]
    for setting, schemes in zip(SETTINGS, phi):
        if setting.summary:
            seeds = by_model(runs_of(setting.record))["residual", setting.size]
            row = [*setting.summary, f"{statistics.mean(each['validation']['perplexity'] for each in seeds):.2f}"]
            found = (schemes.get(scheme, {}).get(setting.size) for scheme in SUMMARIZED)
            rows.append([*row, *(phi_of(each) if each else "" for each in found)])
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
    """Losses of language models beside that of two residual layers, after several epochs."""
    records = {1: LANGUAGE} | {epochs: f"epochs{epochs}_{LANGUAGE}" for epochs in (2, 4, 8)}
    losses = {epochs: losses_of(by_model(runs_of(record)), "validation") for epochs, record in records.items()}
    residual, rows = ("residual", "2"), [["model", "layers", *(f"{n} epoch{'s' * (n > 1)}" for n in records)]]
    for model in sorted(set(losses[4]) - {residual}, key=place):
        cells = (
            with_interval(difference(each, model, residual), 3) if model in each else "" for each in losses.values()
        )
        rows.append([NAMES[model[0]], model[1], *cells])
    return rows


def tables() -> dict[tuple[str, str], Rows]:
    """All tables, by page and heading."""
    phi = [setting.phi() for setting in SETTINGS]
    made = {(MAIN, "phi with its 95% interval"): table_of_settings(phi)}
    for setting, schemes in zip(SETTINGS, phi):
        made[setting.page, setting.heading] = table(runs_of(setting.record), schemes)
        if setting.rates:
            made[setting.page, f"Rates of {setting.heading[0].lower()}{setting.heading[1:]}"] = table_of_rates(
                setting.rates
            )
    made[MAIN, "Longer trainings"] = table_of_epochs()
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
    made[SMALL, "## Both stacks"] = table(both)
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
    return before + "\n".join([*lines[:start], markdown(rows), *lines[end:]])


def main(folder: Path = DOCS) -> None:
    """Replaces the tables of the pages in a folder."""
    pages = {name: (folder / name).read_text(encoding="utf-8") for name in (MAIN, SMALL)}
    for (name, heading), rows in tables().items():
        pages[name] = with_table(pages[name], heading, rows)
    for name, text in pages.items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
