# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The plots of training runs."""

import json

import plot_training
import pytest
from matplotlib.figure import Figure


@pytest.fixture
def runs(tmp_path):
    """Two runs: of the first only the losses were logged."""
    logs = {
        "plain": [{"step": 10, "loss": 5.0, "grad_norm": 1.5}, {"step": 20, "loss": 4.0, "grad_norm": 0.5}],
        "gate": [
            {"step": 10, "loss": 4.5, "grad_norm": 1.0},
            {"step": 15, "eval_perplexity": 90.0, "eval_coefficient_encoder_0_stage_1": 0.7},
            {"step": 30, "eval_perplexity": 50.0, "eval_coefficient_encoder_0_stage_1": 0.9},
        ],
    }
    for name, history in logs.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    return [tmp_path / name for name in logs]


def test_plots_show_what_was_logged(runs, tmp_path, monkeypatch):
    shown = {}

    def savefig(figure, path, **kwargs):
        lines = [line for axes in figure.axes for line in axes.get_lines()]
        shown[path.name] = {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in lines}

    monkeypatch.setattr(Figure, "savefig", savefig)
    plot_training.main([*map(str, runs), "--output_dir", str(tmp_path / "plots")])
    assert shown == {
        "loss.png": {"plain": ([10, 20], [5, 4]), "gate": ([10], [4.5])},
        "gradient_norm.png": {"plain": ([10, 20], [1.5, 0.5]), "gate": ([10], [1])},
        "perplexity.png": {"gate": ([15, 30], [90, 50])},
        "coefficients.png": {"encoder 1, stage 1": ([15, 30], [0.7, 0.9])},
    }


def test_files_of_collected_runs_are_plotted(runs, tmp_path):
    """They give the curves that the runs' folders give, by the names in the file."""
    logs = {run.name: json.loads((run / "trainer_state.json").read_text()) for run in runs}
    (tmp_path / "runs.json").write_text(json.dumps(logs))
    collected = plot_training.read_runs(tmp_path / "runs.json")
    assert list(collected) == ["plain", "gate"]
    assert collected == plot_training.read_runs(runs[0]) | plot_training.read_runs(runs[1])

    arguments = [str(tmp_path / "runs.json"), "--output_dir", str(tmp_path / "plots"), "--only"]
    files = plot_training.main([*arguments, "plain"])
    # The other one had the perplexity and the coefficients.
    assert {file.stem for file in files} == {"loss", "gradient_norm"}
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)
    with pytest.raises(SystemExit):
        plot_training.main([*arguments, "plain", "gates"])


def test_bad_input_is_named(runs, tmp_path, capsys):
    with pytest.raises(FileNotFoundError, match=r"trainer_state\.json"):
        plot_training.main([str(tmp_path)])
    for other in ("[]", "{}", '{"run": {"loss": 1}}'):
        (tmp_path / "other.json").write_text(other)
        with pytest.raises(ValueError, match=r"other\.json has no log_history"):
            plot_training.main([str(tmp_path / "other.json")])
    with pytest.raises(SystemExit):
        plot_training.main([*map(str, runs), "--names", "same", "same"])
    assert "2 runs need the same number of different names" in capsys.readouterr().err


def test_perplexities_are_shown_over_what_they_cost(tmp_path, monkeypatch):
    """A run of half the speed and twice the evaluations; of one that is neither finished nor collected, nothing."""
    evaluated = [{"step": step, "eval_perplexity": 100.0 / step} for step in (10, 20)]
    records = {
        "residual": {"model": {"function_evaluations": {"encoder": [1, 1], "decoder": [1, 1]}}},
        "RK2": {"model": {"function_evaluations": {"encoder": [2, 2], "decoder": [2, 2]}}},
        "begun": {},
    }
    for (name, record), speed in zip(records.items(), (4.0, 2.0, None)):
        record["log_history"] = evaluated + [{"step": 20, "train_steps_per_second": speed}] * (name != "begun")
    (tmp_path / "runs.json").write_text(json.dumps(records))
    shown = {}

    def savefig(figure, path, **kwargs):
        (axes,) = figure.axes
        shown[path.stem] = {line.get_label(): list(line.get_xdata()) for line in axes.get_lines()}, axes.get_xlabel()

    monkeypatch.setattr(Figure, "savefig", savefig)
    plot_training.main([str(tmp_path / "runs.json"), "--output_dir", str(tmp_path)])
    assert shown == {
        "perplexity": ({"residual": [10, 20], "RK2": [10, 20], "begun": [10, 20]}, "updates"),
        "perplexity_by_seconds": ({"residual": [2.5, 5], "RK2": [5, 10]}, "seconds"),
        "perplexity_by_evaluations": ({"residual": [40, 80], "RK2": [80, 160]}, "evaluations of F"),
    }
