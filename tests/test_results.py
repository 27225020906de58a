# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Tables of results in the documents hold what the runs noted."""

import json
import re
import runpy
import statistics
from pathlib import Path

import pytest
import scipy.stats
import time_to_quality


ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "examples" / "results"
PAGE = ROOT / "docs" / "results.md"


def table_below(document: Path, heading: str) -> list[dict[str, str]]:
    """The rows of the first table below a line that begins with a heading, by the names of its columns."""
    lines = document.read_text(encoding="utf-8").partition(f"\n{heading}")[2].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("|"))
    end = next(i for i in range(start, len(lines)) if not lines[i].startswith("|"))
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start:end]]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


def read_runs(file: str) -> dict[str, dict]:
    return json.loads((RESULTS / file).read_text(encoding="utf-8"))


# Splits, metrics and digits, by the names of columns; a split alone is its perplexity.
SCORES = {
    f"{split} {title}": (split, metric, 2)
    for split in ("validation", "test")
    for title, metric in (("BLEU", "bleu"), ("chrF", "chrf"), ("perplexity", "perplexity"))
}
SCORES |= {split: (split, "perplexity", 1) for split in ("validation", "test")}


def score_of(run: dict, column: str) -> float:
    split, metric, _ = SCORES[column]
    return run["metrics"][split][metric]


def shown(number: float, column: str) -> str:
    return f"{number:.{SCORES[column][2]}f}"


def interval_of(result: dict) -> str:
    return "{:.2f} to {:.2f}".format(*result["confidence_interval"])


def spread(values: list[float], digits: int) -> str:
    return f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"


def test_the_page_on_training_has_the_score_of_the_presets_record():
    (row,) = table_below(ROOT / "docs" / "training.md", "### A preset on Multi30k")
    (run,) = read_runs("preset_tiny.json").values()
    assert row["test BLEU"] == f"{run['metrics']['test']['bleu']:.2f}"
    assert row["minutes"] == f"{run['training_seconds'] / 60:.0f}"


@pytest.mark.parametrize(
    ("file", "heading", "prefix"),
    [
        ("ptb/layers_1.json", "## Language model: Penn Treebank", "one layer: "),
        ("ptb/layers_2.json", "## Language model: Penn Treebank", "two layers: "),
        ("ptb_cpu/runs.json", "### The released code's F", ""),
        ("ptb_tied/runs.json", "### Tied embeddings", ""),
        ("multi30k_cpu/runs.json", "### On a CPU", ""),
        ("multi30k_en_fr/runs.json", "### English-French", ""),
    ],
)
def test_the_page_has_all_runs_and_their_scores(file, heading, prefix):
    rows, runs = table_below(PAGE, heading), read_runs(file)
    assert [row[""] for row in rows] == list(runs)
    columns = [column for column in SCORES if prefix + column in rows[0]]
    assert len(columns) in (2, 6)
    for row, run in zip(rows, runs.values()):
        for column in columns:
            assert row[prefix + column] == shown(score_of(run, column), column), (row[""], column)


def test_means_and_deviations_are_those_of_the_seeds():
    """And the parameters and evaluations are those of the models, differences those of the bootstrap. The pages tell
    the range of differences that are detectable."""
    runs, columns = read_runs("multi30k/runs.json"), ["validation BLEU", "test BLEU", "test chrF", "test perplexity"]
    bootstrap = read_runs("multi30k/bootstrap.json")["bleu"]["residual"]
    rows = table_below(PAGE, "## Translation: Multi30k")
    assert [f"{row['']}, seed {seed}" for row in rows for seed in (1, 2, 3)] == list(runs)
    for row in rows:
        seeds = [runs[f"{row['']}, seed {seed}"] for seed in (1, 2, 3)]
        assert [run["training"]["arguments"]["seed"] for run in seeds] == [1, 2, 3]
        for column in columns:
            assert row[column] == spread([score_of(run, column) for run in seeds], 2)
        told = (row["difference of test BLEU"], row["p"], row["detectable (80% power)"])
        if compared := bootstrap.get(row[""]):
            difference = f"{compared['difference']:.2f} ({interval_of(compared)})"
            power = compared["detectable_difference"]
            assert told == (difference, f"{compared['p_value']:.2f}", f"{power:.2f}") and not compared["differs"]
            assert compared["counts_seeds"]
        else:
            assert (row[""], *told) == ("residual", "", "", "")
        model = seeds[0]["model"]
        assert row["parameters"] == f"{model['parameters']:,}"
        assert {int(row["evaluations of F in a layer"])} == set(model["function_evaluations"]["encoder"])
    detectable = [compared["detectable_difference"] for compared in bootstrap.values()]
    for page in (PAGE, ROOT / "README.md"):
        assert f"{min(detectable):.1f} to {max(detectable):.1f} BLEU are detectable" in words_of(page)


OF_TRANSLATION = {"validation": "validation BLEU", "test": "test BLEU", "test perplexity": "test perplexity"}


@pytest.mark.parametrize(
    ("part", "heading", "columns"),
    [
        ("gates_ptb", "Language model, Penn Treebank:", {"validation": "validation", "test": "test"}),
        ("gates_multi30k_en_de", "Translation, Multi30k:", OF_TRANSLATION),
    ],
)
def test_gates_are_as_open_as_was_seen(part, heading, columns):
    """Means and deviations over the seeds: of the weights and shares that were inspected, and of the scores."""
    runs, inspected = read_runs(f"queue/{part}.json"), read_runs(f"queue/{part}_inspected.json")
    rows = dict(zip(("gate", "gate_normalized", "gate_even", "scaled_gate"), table_below(PAGE, heading), strict=True))
    names = {name: [f"rk2_{name}_{seed}" for seed in (1, 2, 3)] for name in rows}
    assert sorted(runs) == sorted(inspected) == sorted(name for of_seeds in names.values() for name in of_seeds)
    for name, row in rows.items():
        gates = [gate for of_seed in names[name] for gate in inspected[of_seed].values()]
        assert row["g"] == spread([gate["weight_1"] for gate in gates], 2)
        assert row["shut"] == spread([100 * gate["shut"] for gate in gates], 0)
        for column, of_score in columns.items():
            scores = [score_of(runs[of_seed], of_score) for of_seed in names[name]]
            assert row[column] == spread(scores, SCORES[of_score][2])


def words_of(page: Path, heading: str = "# ") -> str:
    """A section of a page, of this heading up to the next of its level, with single spaces."""
    text = f"\n{page.read_text(encoding='utf-8')}".partition(f"\n{heading}")[2]
    level = heading.partition(" ")[0]
    return " ".join(text.partition(f"\n{level} ")[0].split())


def test_trainings_on_tatoeba_are_those_of_the_queue():
    """The scores of each run, by beam search; differences and intervals are those of the comparison."""
    runs, compared = read_runs("queue/tatoeba_en_de_small.json"), read_runs("queue/tatoeba_en_de_small_bootstrap.json")
    rows = {(row[""], row["seed"]): row for row in table_below(PAGE, "## Translation: Tatoeba")}
    names = {title: name for name, title in runpy.run_path(str(RESULTS / "compare_runs.py"))["MODELS"].items()}
    assert len(rows) == len(runs)
    values = {}
    for (model, seed), row in rows.items():
        run = runs[f"{names[model]}_{seed}"]
        assert all("num_beams 4" in run["generation"][split] for split in ("validation", "test"))
        for column in ("validation BLEU", "test BLEU", "test perplexity"):
            values.setdefault((model, column), []).append(score_of(run, column))
            assert row[column] == shown(score_of(run, column), column)
    bleu, chrf = (compared[metric]["residual"]["RK2"] for metric in ("bleu", "chrf"))
    assert bleu["differs"] and bleu["counts_seeds"] and chrf["differs"]
    section = words_of(PAGE, "## Translation: Tatoeba")
    deviations = []
    for model, score in (("residual", "score_a"), ("RK2", "score_b")):
        assert bleu[score] == pytest.approx(statistics.mean(values[model, "test BLEU"]), abs=0.001)
        deviations.append(f"{statistics.stdev(values[model, 'test BLEU']):.2f}")
    assert "test is {} BLEU for the residual model and {} for RK2".format(*deviations) in section
    for column in ("validation BLEU", "test perplexity"):
        means = [f"{statistics.mean(values[model, column]):.2f}" for model in ("residual", "RK2")]
        assert " and ".join(means) in section
    assert values["residual", "validation BLEU"][1] > max(values["RK2", "validation BLEU"])
    # As many evaluations, with one seed.
    deepest = values["residual, 6 layers", "test BLEU"]
    means = [statistics.mean(values[model, "test BLEU"]) for model in ("residual", "RK2")]
    assert means[0] < min(deepest) and max(deepest) < means[1]
    deeper, (score,) = "residual, 6 layers", values["residual, 6 layers", "validation BLEU"]
    more, less = compared["bleu"]["residual"][deeper], compared["bleu"][deeper]["RK2"]
    chrf_less = compared["chrf"][deeper]["RK2"]
    assert not more["counts_seeds"] and not more["differs"] and less["differs"] and not less["counts_seeds"]
    assert not chrf_less["differs"] and score > max(values["RK2", "validation BLEU"])
    parameters = [runs[name]["model"]["parameters"] / 1e6 for name in ("residual6_1", "rk2_1")]
    for says in (
        f"{more['difference']:.2f} BLEU more than three layers ({interval_of(more)})",
        f"{less['difference']:.2f} less than RK2 ({interval_of(less)})",
        f"{chrf_less['difference']:.2f}, is not detected ({interval_of(chrf_less)})",
        "{:.1f}M parameters instead of {:.1f}M".format(*parameters),
        f"{bleu['detectable_difference']:.2f} is detectable",
        f"chrF is {chrf['difference']:.2f} higher ({interval_of(chrf)})",
    ):
        assert says in section
    for page in (PAGE, ROOT / "README.md", ROOT / "docs" / "faq.md"):
        for says in (f"{bleu['difference']:.2f} BLEU more", f"95% interval {interval_of(bleu)}"):
            assert says in words_of(page)


def test_the_fast_recipe_on_tatoeba_is_that_of_the_queue():
    runs = read_runs("queue/tatoeba_en_de_small_fast.json")
    compared = read_runs("queue/tatoeba_en_de_small_fast_bootstrap.json")
    rows, names = table_below(PAGE, "### Tatoeba by the fast recipe"), {"residual": "residual", "RK2": "rk2"}
    columns = ("validation BLEU", "test BLEU", "test perplexity")
    values = {column: {name: [] for name in names} for column in columns}
    for row in rows:
        for column in columns:
            score = score_of(runs[f"{names[row['']]}_{row['seed']}"], column)
            values[column][row[""]].append(score)
            assert row[column] == shown(score, column)
    assert len(rows) == 4
    bleu, chrf = (compared[metric]["residual"]["RK2"] for metric in ("bleu", "chrf"))
    assert not bleu["differs"] and not bleu["counts_seeds"] and chrf["differs"]
    means = {column: [statistics.mean(scores) for scores in each.values()] for column, each in values.items()}
    assert bleu["difference"] == pytest.approx(means["test BLEU"][1] - means["test BLEU"][0], abs=0.001)
    before = read_runs("queue/tatoeba_en_de_small_bootstrap.json")["bleu"]["residual"]["RK2"]
    gains = [mean - before[score] for mean, score in zip(means["test BLEU"], ("score_a", "score_b"))]
    assert min(gains) > max(bleu["difference"], before["difference"])
    ahead = [score < values["validation BLEU"]["residual"][0] for score in values["validation BLEU"]["RK2"]]
    assert sum(ahead) == 2
    section = words_of(PAGE, "### Tatoeba by the fast recipe")
    for says in (
        f"{bleu['difference']:.2f} BLEU (95% interval {interval_of(bleu)},",
        f"{bleu['detectable_difference']:.2f} is detectable",
        f"chrF is {chrf['difference']:.2f} higher ({interval_of(chrf)})",
        "mean perplexity {:.0%} lower".format(1 - means["test perplexity"][1] / means["test perplexity"][0]),
        "residual model {:.2f} BLEU and RK2 {:.2f}, each".format(*gains),
    ):
        assert says in section
    assert "{:.2f} to {:.2f} BLEU, RK2 has {:.2f} more".format(*sorted(gains), bleu["difference"]) in words_of(PAGE)
    for page in (ROOT / "README.md", ROOT / "docs" / "faq.md"):
        assert f"{bleu['difference']:.2f} BLEU more" in words_of(page) and interval_of(bleu) in words_of(page)
    (rk2, residual) = table_below(ROOT / "examples" / "models" / "README.md", "Beside it, the residual model")
    for row, name in ((rk2, "rk2_1"), (residual, "residual_1")):
        assert row["Tatoeba, test"] == shown(score_of(runs[name], "test BLEU"), "test BLEU")


def test_time_to_quality_is_that_of_the_records(tmp_path, capsys):
    """The record is what the script makes of the trainings' records, and the pages have its numbers."""
    record = read_runs("time_to_quality.json")
    assert time_to_quality.main(["--output_file", str(tmp_path / "again.json")]) == record
    printed = [line for line in capsys.readouterr().out.splitlines() if re.search("rk2|adam|muon", line)]
    rows = table_below(ROOT / "docs" / "benchmarks.md", "## Time to quality")
    names = {
        "the paper's schedule": "paper | rk2",
        "fast": "fast | rk2",
        "fast, dropout 0.2": "fast | rk2_dropout0.2",
        "fast, dropout 0.3": "fast | rk2_dropout0.3",
        "fast, tied embeddings": "fast | rk2_tied",
        "fast, 5 epochs": "fast | rk2_5_epochs",
        "fast, history, dropout 0.2": "fast | rk2_dlcl_dropout0.2",
        "fast, history, dropout 0.1": "fast | rk2_dlcl_dropout0.1",
        "the same, learned weights, step of 2": "fast | rk2_learned_step2",
    }
    names |= {f"the same, Adam ({rate})": f"rates | adam_{rate}" for rate in ("0.001", "0.002", "0.003")}
    names["fast, Adam (0.002)"] = "rates | adam_0.002"
    names |= {f"the same, Muon ({rate})": f"rates | muon_{rate}_0.003" for rate in ("0.003", "0.012")}
    rows += table_below(ROOT / "docs" / "benchmarks.md", "### Time to quality of a language model")
    tests = {"test BLEU": "bleu", "test perplexity": "perplexity"}
    cells = [
        [row["data"], names[row["recipe"]], *list(row.values())[2:-1], f"{tests[column]} {row[column]}"]
        for row in rows
        for column in row.keys() & tests
    ]
    assert printed == [f"| {' | '.join(each)} |" for each in cells]
    pages = [
        words_of(ROOT / "docs" / "benchmarks.md", "## Time to quality"),
        words_of(ROOT / "docs" / "training.md", "## Faster training"),
    ]
    titles = {"tatoeba_en_de_small": "Tatoeba", "ptb": "PTB"}
    for task, recipes in record.items():
        share = recipes["fast"]["rk2"]["share of the paper's updates for its perplexity"]
        says = re.compile(rf"{titles[task]} (the slower one )?never" if share is None else re.escape(f"{share:.2f}"))
        assert all(says.search(page) for page in pages)
        for recipe, name in (("paper", "rk2"), ("fast", "rk2"), ("rates", "adam_0.002")):
            if (task, recipe) == ("multi30k_en_de", "rates"):  # with other dropout, and a history
                continue
            model = recipes[recipe][name]
            scores = next(iter(model["kept"]["test"].values()))
            assert f"{statistics.mean(scores):.2f}" in pages[1]
            assert f"{model['validation']['updates'][-1]:,}" in pages[1]
    bleu = statistics.mean(record["multi30k_en_de"]["fast"]["rk2"]["kept"]["test"]["bleu"])
    assert f"[{bleu:.1f} BLEU](docs/training.md#faster-training)" in words_of(ROOT / "README.md")
    assert f"which has [{bleu:.2f} BLEU]" in words_of(ROOT / "docs" / "training.md")


def test_deep_encoders_are_those_of_the_queue():
    rows, runs = table_below(PAGE, "### Deep encoders, 300 updates"), read_runs("queue/tatoeba_en_de.json")
    assert len(rows) == len(runs)
    for row, (name, run) in zip(rows, runs.items()):
        model, layers, _, _ = name.split("_")
        assert row["encoder"] == f"{'RK2' if model == 'rk2' else model}, {layers} layers"
        assert row["parameters"] == f"{run['model']['parameters'] / 1e6:.1f}M"
        assert row["seconds"] == f"{run['training_seconds']:.0f}"
        for column in ("validation perplexity", "test perplexity", "test BLEU"):
            assert row[column] == shown(score_of(run, column), column)
    lowest = min(runs, key=lambda name: runs[name]["metrics"]["validation"]["perplexity"])
    assert lowest == "residual_6_layers_1"


def test_the_table_of_the_gpu_is_that_of_the_records():
    rows = [row for task in ("search", "training") for row in read_runs(f"gpu/{task}.json")["rows"]]
    measured = {(row["batch"], row["mode"], row["model"]): row for row in rows if not row["error"]}
    keys = {
        "search, 64 sentences, eager: sentences a second": ("search, 4 beams, batch 64", "eager"),
        "the same, static: CUDA graphs (M2M100: static cache)": ("search, 4 beams, batch 64", "graphs"),
        "search, 1 sentence, eager": ("search, 4 beams, batch 1", "eager"),
        "training, 256 pairs, eager: target tokens a second": ("training, 256 pairs", "eager"),
        "the same, compiled": ("training, 256 pairs", "compiled"),
        "training, 32K tokens, eager": ("training, 32768 target tokens", "eager"),
    }
    table = table_below(ROOT / "docs" / "benchmarks.md", "## Compiled search and training on a GPU")
    assert [row["base size, bfloat16"] for row in table] == list(keys)
    for row, (title, (batch, mode)) in zip(table, keys.items()):
        column = "target tokens a second" if "training" in batch else "sequences a second"
        for model in ("residual", "RK2", "M2M100"):
            static = "static" if (mode, model) == ("graphs", "M2M100") else mode
            run = measured.get((batch, static, model))
            shown = float(row[model].replace(",", "")) if row[model] else None
            assert shown == (pytest.approx(run[column], rel=0.01) if run else None), (title, model)


def test_differences_in_english_french_are_those_of_the_comparison():
    compared = read_runs("multi30k_en_fr/bootstrap.json")["bleu"]["residual"]
    section = words_of(PAGE, "### English-French")
    for name, says in (("RK2 (gate)", "RK2 (gate) has {:.2f} BLEU less"), ("residual, 6 layers", "has {:.2f} less")):
        result = compared[name]
        assert not result["differs"]
        for each in (says.format(-result["difference"]), interval_of(result), f"p {result['p_value']:.2f}"):
            assert each in section


def test_language_models_of_three_seeds_differ_by_welchs_test():
    """Means and deviations of the perplexities, and scipy's interval of each difference."""
    runs = read_runs("queue/ptb.json")
    folders = {"residual": "residual", "RK2": "rk2", "RK2 (gate)": "rk2_gate"}
    rows = {row[""]: row for row in table_below(PAGE, "### Three seeds")}
    assert list(rows) == list(folders)
    tested = {}
    for name, row in rows.items():
        for column in ("validation", "test"):
            tested[name] = [score_of(runs[f"{folders[name]}_{seed}"], column) for seed in (1, 2, 3)]
            assert row[column] == spread(tested[name], 1)

    def compare(name, other):
        """Difference, interval and detectable difference of two models."""
        welch = scipy.stats.ttest_ind(tested[other], tested[name], equal_var=False)
        difference = statistics.mean(tested[other]) - statistics.mean(tested[name])
        quantiles = scipy.stats.t(welch.df).ppf([0.975, 0.8])
        return difference, *welch.confidence_interval(), sum(quantiles) * difference / welch.statistic

    for name in ("RK2", "RK2 (gate)"):
        difference, low, high, power = compare("residual", name)
        assert high < 0
        assert rows[name]["difference of test perplexity"] == f"{difference:.2f} ({low:.2f} to {high:.2f})"
        assert rows[name]["detectable (80% power)"] == f"{power:.2f}"
    mean = statistics.mean(tested["residual"])
    difference, low, high = (-100 * each / mean for each in compare("residual", "RK2")[:3])
    for page in (PAGE, ROOT / "README.md"):
        text = words_of(page)
        assert f"{difference:.1f}% less" in text and f"95% interval {high:.1f}% to {low:.1f}%" in text
    section = words_of(PAGE, "### Three seeds")
    name = "eval_coefficient_decoder_0_stage_1"
    logs = [runs[f"rk2_gate_{seed}"]["log_history"] for seed in (1, 2, 3)]
    weights = [[entry[name] for entry in log if name in entry] for log in logs]
    last = [each[-1] for each in weights]
    assert max(each[0] for each in weights) < 0.04
    assert f"and {min(last):.2f} to {max(last):.2f} after the last" in section
    difference, low, high, power = compare("RK2", "RK2 (gate)")
    assert low < 0 < high
    assert f"({difference:.2f} more test perplexity, 95% interval {low:.2f} to {high:.2f}; " in section
    assert f"{power:.2f} is detectable" in section


def test_the_fast_recipe_on_penn_treebank_is_that_of_the_queue():
    runs, compared = read_runs("queue/ptb_fast.json"), read_runs("queue/ptb_fast_bootstrap.json")["perplexity"]
    names = {"residual": "residual", "residual, twice at one state": "residual_twice", "RK2": "rk2"}
    names["residual, two layers"] = "residual_2_layers"
    names |= {f"{title}, tied": f"{names[title]}_tied" for title in ("residual", "RK2")}
    tested = {}
    for row in table_below(PAGE, "### Penn Treebank by the fast recipe"):
        own = [run for name, run in runs.items() if name.rpartition("_")[0] == names[row[""]]]
        assert row["seeds"] == str(len(own)) and own
        assert row["evaluations of F"] == str(sum(own[0]["model"]["function_evaluations"]["decoder"]))
        assert row["parameters"] == f"{own[0]['model']['parameters'] / 1e6:.1f}M"
        for split in ("validation", "test"):
            tested[row[""]] = statistics.mean(score_of(run, f"{split} perplexity") for run in own)
            assert row[f"{split} perplexity"] == f"{tested[row['']]:.2f}"
    assert list(tested) == list(names)
    section, titles = words_of(PAGE, "### Penn Treebank by the fast recipe"), {"rk2": "RK2"}

    def less(other, name):
        found = compared[titles.get(other, other)][titles.get(name, name)]
        low, high = found["confidence_interval"]
        return f"{-found['difference']:.2f}", f"{-high:.2f} to {-low:.2f}"

    gain, of_averages, tied = (
        f"{1 - tested[name] / tested[other]:.1%}"
        for name, other in (
            ("RK2", "residual"),
            ("residual, twice at one state", "residual"),
            ("RK2, tied", "residual, tied"),
        )
    )
    seeds = [score_of(runs[f"rk2_{seed}"], "test perplexity") for seed in (1, 2, 3)]
    for says in (
        f"RK2 has {gain} less test perplexity than the residual model",
        "{} (95% interval {}, a bootstrap over lines".format(*less("residual", "rk2")),
        f"lie between {min(seeds):.2f} and {max(seeds):.2f}",
        f"At twice this rate the residual model has {score_of(runs['residual_rate0.012_1'], 'test perplexity'):.2f};",
        "model has {} less ({}).".format(*less("residual", "residual_twice")),
        "evaluates F as often: {} less ({}; the two layers have one seed".format(*less("rk2", "residual_2_layers")),
        f"RK2 has {tied} less there, " + "{} ({}; one seed of each)".format(*less("residual_tied", "rk2_tied")),
    ):
        assert says in section
    verdict = words_of(ROOT / "docs" / "verdict.md")
    assert f"has {gain} less perplexity, and two evaluations at the same state only {of_averages} less" in verdict
    readme, faq = words_of(ROOT / "README.md"), words_of(ROOT / "docs" / "faq.md")
    assert f"{gain} (one seed of the residual model)" in readme and f"no established gain ({of_averages})" in readme
    assert f"it has {of_averages} less perplexity" in faq and f"RK2 [{gain}]" in faq
    assert f"RK2 has {gain} less, [little" in words_of(PAGE) and f"and {tied} less with tied" in words_of(PAGE)
    deeper = f"{1 - tested['residual, two layers'] / tested['residual']:.1%}"
    assert f"two residual layers have {deeper} less" in verdict


def test_accuracies_on_trec_are_means_of_the_runs():
    runs = read_runs("csa_ode/trec.json")["runs"]
    titles = {"one block": "one block without ODE", "five blocks": "five stacked blocks"}
    rows = table_below(PAGE, "## Classification: TREC")
    assert sorted(titles.get(row["test accuracy"], row["test accuracy"]) for row in rows) == sorted(runs)
    for row in rows:
        each = runs[titles.get(row["test accuracy"], row["test accuracy"])]["runs"]
        assert row["ours"] == spread([run["predict_accuracy"] for run in each], 1)


def test_what_continues_from_a_residual_model_has_the_scores_of_its_record():
    models = read_runs("multi30k_from_residual.json")["models"]
    columns = ("residual, 10 epochs", "residual, 4 more", "RK2 (learned), 4 more")
    rows = {row[""]: row for row in table_below(PAGE, "### From a trained residual model")}
    for column, model in zip(columns, models.values(), strict=True):
        for split, title in (("validation", "validation"), ("test_2016", "test 2016")):
            scores = f"{model[f'{split}_bleu']:.2f} / {model[f'{split}_perplexity']:.2f}"
            assert rows[f"{title} BLEU / perplexity"][column] == scores


@pytest.mark.parametrize("size", ["base", "big"])
def test_speed_and_memory_are_those_of_the_benchmark(size):
    measures = read_runs("table6.json")
    search, training = (
        {row["model"]: row for row in measures[f"{size}, {measure}"]}
        for measure in ("beam 4, batch 64, bfloat16: sentences", "training step of 256 pairs, bfloat16: target tokens")
    )
    rows = table_below(PAGE, f"### On a GPU, {size}")
    assert [row[""] for row in rows] == list(search)
    for row in rows:
        found, trained = search[row[""]], training[row[""]]
        assert row["search: sentences a second"] == f"{found['a second']:.0f}"
        assert row["search: ratio"] == f"{found['ratio']:.2f}"
        assert row["training: target tokens a second"] == f"{trained['a second']:,.0f}"
        assert row["training: ratio"] == f"{trained['ratio']:.2f}"
        assert row["training: MiB"] == f"{trained['MiB']:,.0f}"
        assert row["memory: ratio"] == f"{trained['MiB'] / training['residual 6']['MiB']:.2f}"


def test_the_epochs_of_the_language_models_are_those_of_their_logs():
    """With the parameters and the perplexity of the test set."""
    runs = read_runs("ptb/layers_1.json")
    rows = table_below(PAGE, "Validation perplexity by epoch, one layer:")
    assert [row[""] for row in rows] == list(runs)
    for row in rows:
        name, parameters, *cells, test = row.values()
        run = runs[name]
        evaluated = [entry["eval_perplexity"] for entry in run["log_history"] if "eval_perplexity" in entry]
        for cell, perplexity in zip(cells, evaluated, strict=True):
            assert cell == f"{perplexity:.{len(cell.partition('.')[2])}f}"
        assert parameters == f"{run['model']['parameters']:,}"
        assert test == f"{run['metrics']['test']['perplexity']:.1f}"


def test_the_summary_of_the_readme_is_that_of_the_records():
    """Perplexities, BLEU with its deviation over seeds, evaluations of F; the paper's numbers are the page's."""
    perplexity, paper, bleu, evaluations = table_below(ROOT / "README.md", "## Does it help?")
    runs, seeds = read_runs("ptb/layers_1.json"), read_runs("multi30k/runs.json")
    of_paper = {row[""]: row["the paper's"] for row in table_below(PAGE, "## Language model: Penn Treebank")}
    for name in ("residual", "RK2", "RK2 (gate)", "RK4"):
        assert perplexity[name] == f"{runs[name]['metrics']['test']['perplexity']:.1f}"
        assert paper[name] == of_paper[name]
        assert bleu[name] == spread([score_of(seeds[f"{name}, seed {seed}"], "test BLEU") for seed in (1, 2, 3)], 2)
        assert {int(evaluations[name])} == set(seeds[f"{name}, seed 1"]["model"]["function_evaluations"]["encoder"])


def test_what_recipes_are_expected_to_take_is_what_was_counted():
    rows, counted = table_below(ROOT / "docs" / "recipes.md", "## On one GPU"), read_runs("expected.json")
    assert [row["recipe"].strip("`") for row in rows] == [each["recipe"] for each in counted]
    for row, each in zip(rows, counted):
        assert row["tokens x accumulation"] == f"{each['tokens']:,} x {each['accumulation']}"
        assert (row["GiB"], row["updates"]) == (f"{each['GiB']:.0f}", f"{each['updates']:,}")
        assert (row["ms a batch"], row["hours"]) == (f"{1000 * each['seconds']:.0f}", f"{each['hours']:.1f}")


def test_the_table_of_large_data_is_that_of_its_record():
    """Every number of the record's that the page shows, in the page's order."""
    record = read_runs("wmt_data.json")
    made, sampler, loader = (record[name] for name in ("preparation", "sampler", "loader"))
    assert [row["value"] for row in table_below(ROOT / "docs" / "benchmarks.md", "## Data of WMT's size")] == [
        f"{made['pairs_per_cpu_second']:,}",
        f"{made['seconds']:.1f}, {record['all_cores']['seconds']:.1f}",
        ", ".join(f"{seconds:.1f}" for seconds in record["map_seconds"].values()),
        f"{made['peak_mb']:,} MB",
        f"{made['mb_of_text']:,} MB, {made['mb_on_disk']:,} MB",
        f"{sampler['seconds']:.1f}, {sampler['seconds_of_an_epoch']:.1f}",
        f"{sampler['peak_mb']:,} MB",
        f"{loader['target_tokens_per_second']:,}, {loader['ms_per_batch']}",
    ]


def test_the_tables_of_memory_are_those_of_their_records():
    """And in search, memory stays what it is once half of the calls are done."""
    page = ROOT / "docs" / "benchmarks.md"
    for heading, file in (
        ("## Memory over inputs of many shapes", "memory.json"),
        ("### Over 300 calls", "memory_300.json"),
    ):
        record = read_runs(file)
        shown = {row[""]: [row[f"call {call}"] for call in record["calls"]] for row in table_below(page, heading)}
        assert shown == {name: [f"{each:.0f}" for each in resident] for name, resident in record["MiB"].items()}
    half, end = read_runs("memory.json")["MiB"]["search, RK2"][-2:]
    assert end - half < 5


def test_the_table_of_the_compiled_search_is_that_of_its_record():
    rows = table_below(ROOT / "docs" / "benchmarks.md", "## Compiled search on a CPU")
    measured = read_runs("compiled_search.json")["rows"]
    for row, each in zip(rows, measured, strict=True):
        assert row[""] in each["measure"] and row["ratio"] == f"{each['ratio']:.2f}"
        assert row["contender"] == each["contender"]
        assert row["reached"].strip("*") == {None: "", True: "yes", False: "no"}[each["reached"]]
        unit, digits = ("s", 2) if each["unit"] == "s" else ("a second", 1)
        assert [row["its value"], row["M2M100"]] == [f"{value:.{digits}f} {unit}" for value in each["values"]]


def test_distillation_is_that_of_the_record():
    runs = read_runs("distillation.json")["runs"]
    rows = table_below(ROOT / "docs" / "language_models.md", "### Back to Euler: distillation")
    assert [list(row.values())[1:] for row in rows] == [
        [f"{runs[name]['predict_bits_per_byte']:.3f}", f"{runs[name]['predict_perplexity']:.2f}"]
        for name in ("subword_rk2", "subword_euler", "subword_student")
    ]


def test_the_verdicts_tables_are_those_of_the_queue():
    page, gains = ROOT / "docs" / "verdict_small.md", read_runs("copying.json")
    bits = {}
    for part in ("verdict", "verdict_rates"):
        runs = read_runs(f"queue/{part}_linux_doc.json")
        bits[part] = {name: run["metrics"]["validation"]["bits_per_byte"] for name, run in runs.items()}
    names = {"Euler twice": "euler2", "RK2": "rk2", "RK2, learned weights": "rk2_learned"}
    names |= {"residual": "residual", "residual, step of 4": "residual"}
    shown, seeds = {}, {}
    for heading, ending in (("### Rates", "_{}"), ("### Lengths of a step", "_step{}_0.012")):
        for row in table_below(page, heading):
            (_, value), *cells = row.items()
            suffix = ending.format(value).replace("_step1", "")
            shown |= {names[scheme] + suffix: cell for scheme, cell in cells if cell}
    for row in table_below(page, "Residual models of other depths"):
        layers = f"{row['layers']}_layer{'s' * (row['layers'] != '1')}"
        shown[f"residual_{layers}_step{row['length']}_0.012"] = row["bits per byte"]
    assert shown == {name: f"{value:.4f}" for name, value in bits["verdict_rates"].items()}
    for row in table_below(page, "### Seeds"):
        seed = row.pop("seed")
        seeds |= {f"{names[scheme]}_0.4M_{seed}": cell for scheme, cell in row.items() if cell}
    same = {value: name for name, value in bits["verdict_rates"].items()}  # first seeds are also trials
    found = {name: (value, gains[same.get(value, name)]) for name, value in bits["verdict"].items()}
    assert seeds == {name: f"{value:.4f} ({abs(gain):.2f})" for name, (value, gain) in found.items()}


def test_the_verdicts_losses_and_gains_are_those_of_the_records():
    text, gains = words_of(ROOT / "docs" / "verdict_small.md"), read_runs("copying.json")
    runs = read_runs("queue/verdict_linux_doc.json")
    logs = (runs[f"residual_0.4M_{seed}"]["log_history"] for seed in (1, 2))
    first, second = ({entry["step"]: entry["loss"] for entry in log if "loss" in entry} for log in logs)
    assert f"loss for 350 updates ({first[350]:.3f} and {second[350]:.3f})" in text
    assert f"it is {first[1350]:.3f}, the other's {second[1350]:.3f}" in text
    three, six = (gains[f"residual_{layers}_layers_step4_0.012"] for layers in (3, 6))
    assert f"three layers gain {three:.2f} nats" in text and f"six gain {six:.2f} and" in text
