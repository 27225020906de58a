# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""examples/results/run_queue.py, with a stub in place of the training scripts."""

import gzip
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from modeling_ode_transformer.training.recipe_files import RECIPES
from modeling_ode_transformer.training.run import parse_arguments
from modeling_ode_transformer.training.tasks import language_model, translation

from .conftest import EXAMPLES


SCRIPT = EXAMPLES / "results" / "run_queue.py"
# Notes its arguments, and fails where the folder `broken` of the queue has a file of the run's name; a folder `slow`
# keeps it waiting for a signal, which it notes.
STUB = """
import json, signal, sys
from pathlib import Path

folder = Path(sys.argv[sys.argv.index("--output_dir") + 1])
queue = next(path for path in folder.parents if (path / "queue.pid").exists())
with (queue / "calls").open("a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\\n")
if (queue / "broken" / folder.name).exists():
    sys.exit(3)
folder.mkdir(parents=True, exist_ok=True)
if (queue / "slow").exists():
    (folder / "checkpoint-200").mkdir()
    print("ready", flush=True)
    signal.sigwait([signal.SIGTERM])
    (folder / "stopped").touch()
    sys.exit(1)
(folder / "generated_predictions.txt").write_text("translated\\n")
(folder / "all_results.json").write_text(json.dumps({"predict_samples": 2}))
"""
SCORE_STUB = "import sys; open(sys.argv[-1], 'w').write(' '.join(sys.argv[1:]))"
COLLECT_STUB = """
import json, sys
from pathlib import Path

_, folder, _, name, _, file = sys.argv
record = json.loads(Path(file).read_text()) if Path(file).exists() else {}
record[name] = json.loads((Path(folder) / "all_results.json").read_text())
Path(file).write_text(json.dumps(record))
"""


@pytest.fixture
def module(monkeypatch):
    spec = importlib.util.spec_from_file_location("run_queue", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "run_queue", module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def queue(module, tmp_path, monkeypatch):
    """The module, whose trainings are the stub."""
    for name in ("run_translation.py", "run_language_modeling.py"):
        (tmp_path / name).write_text(STUB)
    (tmp_path / "analysis").mkdir()
    (tmp_path / "analysis" / "collect_runs.py").write_text(COLLECT_STUB)
    monkeypatch.setattr(module, "EXAMPLES", tmp_path)
    monkeypatch.setattr(module, "RECORDS", tmp_path / "records")
    monkeypatch.setattr(module, "SCORE", ["-c", SCORE_STUB])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    return module


def called(runs: Path) -> list[str]:
    """The runs that were trained, in their order."""
    lines = [json.loads(line) for line in (runs / "calls").read_text().splitlines()]
    folders = [Path(arguments[arguments.index("--output_dir") + 1]) for arguments in lines]
    return [str(folder.relative_to(runs)) for folder in folders]


def test_first_seeds_come_first_and_what_is_done_is_not_repeated(queue, tmp_path):
    runs = tmp_path / "runs"
    first = "tatoeba_en_de_small/residual_1"
    (runs / first).mkdir(parents=True)
    # The scripts write metrics after training, before the test set is translated.
    (runs / first / "all_results.json").write_text(json.dumps({"train_loss": 1.0, "eval_samples": 2}))
    (runs / "broken").mkdir()
    (runs / "broken" / "rk2_1").touch()
    (runs / "broken" / "residual_2").touch()
    with pytest.raises(SystemExit) as stopped:
        queue.main(["--output_dir", str(runs), "--only", "tatoeba_en_de_small/*"])
    left = [f"tatoeba_en_de_small/{name}" for name in ("rk2_1", "residual_2")]
    assert str(stopped.value).split(": ")[1].split(", ") == left
    order = [f"{model}_{seed}" for seed in (1, 2, 3) for model in ("residual", "residual6", "rk2")]
    assert called(runs) == [f"tatoeba_en_de_small/{name}" for name in order]

    for path in (runs / "broken").iterdir():
        path.unlink()
    (runs / "calls").unlink()
    queue.main(["--output_dir", str(runs), "--only", "tatoeba_en_de_small/*"])
    assert called(runs) == left
    recorded = json.loads((tmp_path / "records" / "tatoeba_en_de_small.json").read_text())
    assert sorted(recorded) == sorted(order)
    kept = {path.name.partition(".")[0]: path for path in (tmp_path / "records" / "tatoeba_en_de_small").iterdir()}
    assert sorted(kept) == sorted(recorded)
    assert gzip.decompress(kept["rk2_1"].read_bytes()) == b"translated\n"


def test_what_is_recorded_is_done_where_its_folder_is_lost(queue, tmp_path):
    queue.main(["--output_dir", str(tmp_path / "runs"), "--only", "gates/*_1"])
    first = called(tmp_path / "runs")
    queue.main(["--output_dir", str(tmp_path / "others"), "--only", "gates/ptb/*"])
    assert called(tmp_path / "others") == [f"gates/ptb/{name}_{seed}" for seed in (2, 3) for name in queue.GATES]
    assert first == [f"gates/{recipe}/{name}_1" for recipe in ("ptb", "multi30k_en_de") for name in queue.GATES]
    records = tmp_path / "records"
    assert {path.name for path in records.glob("*.json")} == {"gates_ptb.json", "gates_multi30k_en_de.json"}
    kept = records / "gates_ptb" / "rk2_gate_2.nll.gz"
    folder, texts = tmp_path / "others" / "gates" / "ptb" / "rk2_gate_2", Path("data", "ptb", "ptb.test.txt.gz")
    given = ["--block_size", "128", "--model", str(folder), "--texts", str(texts)]
    given += ["--nll_file", str(folder / "test.nll")]
    assert gzip.decompress(kept.read_bytes()).decode().split() == given


def test_every_run_is_a_call_that_its_script_takes(queue, tmp_path):
    """Only one copy of each file and option."""
    queue.EXAMPLES = EXAMPLES
    names = [run.name for run in queue.all_runs()]
    assert len(names) == len(set(names))
    assert {run.recipe for run in queue.all_runs() if run.needs_gpu} == {"tatoeba_en_de"}
    for run in queue.all_runs():
        if run.seed > 1:  # as of the first seed
            continue
        script, *arguments = run.command(Path("data"), tmp_path, ["--bf16", "False"])
        if run.is_of_language_model:
            assert Path(script).name == "run_language_modeling.py"
            model, data, training = parse_arguments(language_model.LANGUAGE_MODEL, arguments)
        else:
            model, data, training = parse_arguments(translation.TRANSLATION, arguments)
        recipe = json.loads((RECIPES / f"{run.recipe}.json").read_text())
        files = {name: [value] for name, value in recipe.items() if name.endswith("_file")}
        assert {name: data.named(name) for name in files} == files
        assert (training.seed, training.bf16, Path(training.output_dir)) == (run.seed, False, tmp_path / run.name)
        assert model.config_overrides and model.model_name_or_path is None


def test_jobs_share_a_gpu(queue, tmp_path, monkeypatch, capsys):
    """As many trainings at a time as are asked for, and no more. All of them reach the record that they share."""
    lock, barrier, now, counts = threading.Lock(), threading.Barrier(3, timeout=60), set(), []
    run_child = queue.Queue.run_child

    def counted(self, command, log_file):
        with lock:
            now.add(log_file)
            counts.append(len(now))
        if "run_translation.py" in command[0]:
            barrier.wait()
        status = run_child(self, command, log_file)
        with lock:
            now.remove(log_file)
        return status

    monkeypatch.setattr(queue.Queue, "run_child", counted)
    queue.main(["--output_dir", "runs", "--gpu", "--jobs", "3", "--only", "tatoeba*"])
    assert max(counts) == 3
    assert sorted(called(Path("runs"))) == sorted(f"tatoeba_en_de/{name}_1" for name in queue.DEEP)
    recorded = json.loads((tmp_path / "records" / "tatoeba_en_de.json").read_text())
    assert sorted(recorded) == sorted(f"{name}_1" for name in queue.DEEP)
    with pytest.raises(SystemExit):
        queue.main(["--gpu", "--only", "ptb*"])
    capsys.readouterr()
    queue.main(["--output_dir", "runs", "--list", "--only", "gates/ptb/*_3"])
    waiting = [f"gates/ptb/{name}_3 waits" for name in queue.GATES]
    assert [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()] == waiting


def test_a_stopped_queue_stops_its_training(tmp_path):
    runs, scripts = tmp_path / "runs", tmp_path / "examples" / "results"
    (runs / "slow").mkdir(parents=True)
    scripts.mkdir(parents=True)
    (scripts.parent / "recipes").symlink_to(RECIPES)
    copy = scripts / SCRIPT.name
    copy.write_text(SCRIPT.read_text(encoding="utf-8"), encoding="utf-8")
    stub = STUB.replace("import json", "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [15])\nimport json", 1)
    (scripts.parent / "run_language_modeling.py").write_text(stub)
    command = [sys.executable, str(copy), "--output_dir", str(runs), "--only", "ptb/residual_*"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        log = runs / "ptb" / "residual_1.log"
        limit = time.monotonic() + 120
        while process.poll() is None and not (log.is_file() and "ready" in log.read_text()):
            assert time.monotonic() < limit
            os.sched_yield()
        assert int((runs / "queue.pid").read_text()) == process.pid
        second = subprocess.run(command, capture_output=True, text=True)
        assert second.returncode == 1 and "is already running in" in second.stderr
        process.terminate()
        assert process.wait(60) == 1
    assert (runs / "ptb" / "residual_1" / "stopped").is_file() and called(runs) == ["ptb/residual_1"]
