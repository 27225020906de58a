# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The table of training runs."""

import json
import shutil
from pathlib import Path

import collect_runs
import number_names
import numpy as np
import pytest
import run_language_modeling


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A residual and an RK2 model of one layer, each trained for two updates with an evaluation after each."""
    folder = tmp_path_factory.mktemp("runs")
    overrides = {"residual": "decoder_solver=euler,decoder_coefficients=fixed", "rk2": "decoder_solver=rk2"}
    return [train(folder / name, given) for name, given in overrides.items()]


def train(folder, overrides, *options, seed=1):
    sizes = "d_model=32,decoder_layers=1,decoder_attention_heads=2,decoder_ffn_dim=64"
    common = "--max_steps 2 --save_strategy steps --save_steps 1 --eval_strategy steps --eval_steps 1 --use_cpu"
    arguments = [*common.split(), "--output_dir", str(folder), "--config_overrides", f"{sizes},{overrides}"]
    for split in ("train", "validation", "test"):
        folder.parent.mkdir(exist_ok=True)
        text = "".join(f"{number_names.english(number)}\n" for number in range(len(split), 300, 7))
        (folder.parent / f"{split}.txt").write_text(text)
        arguments += [f"--{split}_file", str(folder.parent / f"{split}.txt")]
    arguments += ["--seed", str(seed), "--block_size", "16", "--per_device_train_batch_size", "4"]
    run_language_modeling.main(["--recipe", "ptb", *arguments, *options])
    return str(folder)


def test_runs_are_put_side_by_side(runs, tmp_path, capsys):
    collect_runs.main([*runs, "--names", "residual", "RK2", "--output_file", str(tmp_path / "runs.json")])
    header, _, *rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()]
    written = json.loads((tmp_path / "runs.json").read_text())
    assert header[:4] == ["run", "overrides", "parameters", "updates"] and "test perplexity" in header
    assert [row[:2] for row in rows] == [
        ["residual", "`decoder_solver=euler,decoder_coefficients=fixed`"],
        ["RK2", "`decoder_solver=rk2,decoder_coefficients=gate`"],
    ]
    for folder, name, row in zip(runs, written, rows):
        results = json.loads(Path(folder, "all_results.json").read_text())
        assert row[header.index("test perplexity")] == f"{results['predict_perplexity']:.2f}"
        state = json.loads(Path(folder, "trainer_state.json").read_text())
        assert written[name]["log_history"] == state["log_history"]
        evaluations = [entry for entry in state["log_history"] if "eval_perplexity" in entry]
        assert [entry["step"] for entry in evaluations] == [1, 2]
        best = min(evaluations, key=lambda entry: entry["eval_perplexity"])
        assert best["step"] == state["best_global_step"] == int(row[header.index("updates")])
        assert written[name]["metrics"]["test"]["perplexity"] == results["predict_perplexity"]
        assert written[name]["training_seconds"] == results["train_runtime"]
        given = written[name]["arguments"]
        assert given["data"]["block_size"] > 0 and "/" not in str(given)


def test_runs_come_together_in_a_file(runs, tmp_path, capsys):
    """Other names stay, the same name is replaced, and the table shows all of them."""
    both, one_by_one = tmp_path / "both.json", tmp_path / "one_by_one.json"
    collect_runs.main([*runs, "--names", "residual", "RK2", "--output_file", str(both)])
    table = capsys.readouterr().out
    collect_runs.main([runs[1], "--names", "residual", "--output_file", str(one_by_one)])
    collect_runs.main([runs[0], "--names", "residual", "--output_file", str(one_by_one)])
    capsys.readouterr()
    collect_runs.main([runs[1], "--names", "RK2", "--output_file", str(one_by_one)])
    assert capsys.readouterr().out == table
    assert one_by_one.read_text() == both.read_text()


def test_runs_of_several_seeds_have_a_mean(runs, tmp_path, capsys):
    """Of the two that differ in nothing else, with the standard deviation of a sample."""
    other_seed = train(tmp_path / "rk2_seed_2", "decoder_solver=rk2", seed=2)
    longer = train(tmp_path / "longer", "decoder_solver=rk2", "--max_steps", "3", seed=3)
    capsys.readouterr()
    written = collect_runs.main([*runs, other_seed, longer, "--output_file", str(tmp_path / "runs.json")])
    header, _, *rows = [line.strip("|").split("|") for line in capsys.readouterr().out.splitlines()]
    perplexities = [written[name]["metrics"]["test"]["perplexity"] for name in ("rk2", "rk2_seed_2")]
    assert perplexities[0] != perplexities[1]
    assert [row[0].strip() for row in rows] == ["residual", "rk2", "rk2_seed_2", "longer", "mean of rk2, rk2_seed_2"]
    conventions = {"test": {"perplexity_convention": "of a line"}}
    otherwise = [{"generation": {"test": "num_beams 5"}}, {"metrics": conventions}]
    # Which records and their numbers need not show.
    otherwise += [{"arguments": {"model": {"vocab_size": 9}, "data": written["rk2"]["arguments"]["data"]}}]
    for measured_otherwise in otherwise:
        pair = {name: written[name] for name in ("rk2", "rk2_seed_2")}
        assert collect_runs.groups_of_seeds(pair) == [["rk2", "rk2_seed_2"]]
        assert not collect_runs.groups_of_seeds(pair | {"rk2": written["rk2"] | measured_otherwise})
    expected = f"{np.mean(perplexities):.2f} ± {np.std(perplexities, ddof=1):.2f}"
    assert rows[-1][header.index(" test perplexity ")].strip() == expected


@pytest.mark.parametrize("content", ['[{"step": 1}]', '{"log_history": []}', '{"residual": {"curve": []}}'])
def test_a_file_of_something_else_is_not_written_to(content, runs, tmp_path):
    file = tmp_path / "other.json"
    file.write_text(content)
    with pytest.raises(ValueError, match=r"other\.json (is not a file of runs|holds a list)"):
        collect_runs.main([*runs, "--output_file", str(file)])
    assert file.read_text() == content


def test_unfinished_runs_and_doubled_names_are_refused(runs, tmp_path, capsys):
    stopped = tmp_path / "stopped"
    shutil.copytree(runs[0], stopped)
    results = json.loads((stopped / "all_results.json").read_text())
    trained = {name: value for name, value in results.items() if not name.startswith("predict_")}
    (stopped / "all_results.json").write_text(json.dumps(trained))
    with pytest.raises(
        ValueError, match=r"all_results\.json lacks the results of --do_predict: repeat the command of the run"
    ):
        collect_runs.main([str(stopped)])
    with pytest.raises(FileNotFoundError, match=r"There is no file .*arguments\.json, which a run writes at its end"):
        collect_runs.main([str(tmp_path)])
    with pytest.raises(SystemExit):
        collect_runs.main([*runs, "--names", "same", "same"])
    assert "2 runs need the same number of different names, not same, same" in capsys.readouterr().err
