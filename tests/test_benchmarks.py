# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The benchmarks run and count right; what they time is not tested."""

import json
import multiprocessing
import statistics
import time
from types import SimpleNamespace

import batching
import contenders
import csa_ode
import expected
import gpu
import memory
import number_names
import pytest
import scaling
import speed
import table6
import time_to_quality
import torch
import verdict_seconds
import wmt_data

from modeling_ode_transformer import OdeTransformerForConditionalGeneration

from .conftest import tiny_config


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch):
    """Between measurements there are pauses and collections of garbage, which only times depend on."""
    clock = SimpleNamespace(perf_counter=time.perf_counter, sleep=lambda seconds: None)
    monkeypatch.setattr(contenders, "time", clock)
    for benchmark in (gpu, table6):
        monkeypatch.setattr(benchmark, "gc", SimpleNamespace(collect=lambda: 0))


def test_batching(tmp_path, capsys):
    number_names.write_corpus(tmp_path, {"train": 300, "validation": 5, "test": 5})
    files = ["--source_file", str(tmp_path / "train.en"), "--target_file", str(tmp_path / "train.de")]
    sizes = ["--vocab_size", "330", "--max_tokens", "200", "--d_model", "64", "--layers", "1"]
    output = ["--output_file", str(tmp_path / "new" / "out")]
    results = batching.main([*files, *sizes, "--rounds", "1", "--updates", "1", *output])
    assert json.loads((tmp_path / "new" / "out").read_text()) == results
    rows = results["kinds"]
    assert all(row["tokens_per_second"] > 0 for row in rows.values())
    assert rows["token budget"]["padding"] < rows["sentences, shuffled"]["padding"]
    assert "| token budget |" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        batching.main([*files, *sizes, "--rounds", "2", "--updates", "100"])
    assert "--rounds 2 and --updates 100 need 300 batches" in capsys.readouterr().err


def test_data_of_wmt_size(tmp_path):
    """What the parts of the benchmark count."""
    number_names.write_corpus(tmp_path, {"train": 300})
    files = [str(tmp_path / f"train.{language}") for language in ("en", "de")]
    argv = ["--source_files", files[0], "--target_files", files[1], "--pairs", "600", "--lengths", "900"]
    results = wmt_data.main([*argv, "--vocab_size", "330", "--max_tokens", "500", "--batches", "3"])
    prepared, ordered, loaded = (results[name] for name in ("preparation", "sampler", "loader"))
    assert prepared["pairs"] == 600 < prepared["target_tokens"]
    assert ordered["pairs"] == 900 and ordered["padding"] < 0.1
    assert loaded["target_tokens_per_second"] > 0
    assert "1" in results["map_seconds"] and min(results["map_seconds"].values()) > 0


def test_memory(tmp_path, monkeypatch):
    """Each contender has a process of its own, which is forked here, without the seconds of imports."""
    started = []

    def get_context(method):
        assert method == "spawn"
        started.append(multiprocessing.get_context("fork"))
        return started[-1]

    monkeypatch.setattr(memory, "multiprocessing", SimpleNamespace(get_context=get_context))
    monkeypatch.setattr(memory, "CONTENDERS", memory.CONTENDERS[1:4])
    options = ["--calls", "1", "2", "--length", "4", "--new_tokens", "3", "--sentences", "2", "--d_model", "64"]
    results = memory.main([*options, "--layers", "1", "--output_file", str(tmp_path / "out.json")])
    assert json.loads((tmp_path / "out.json").read_text()) == results
    assert list(results["MiB"]) == ["search, RK2", "search, RK2 packed", "training, M2M100"]
    assert all(len(resident) == 2 and resident[0] > 100 for resident in results["MiB"].values())
    assert len(started) == 3


def test_csa_ode(tmp_path):
    """What the adjoint method keeps does not depend on the number of steps; the arithmetic is that of RK4's four
    evaluations a step against four, then three."""
    (tmp_path / "train.txt").write_text("".join(f"0 {'word ' * (i % 5 + 1)}\n" for i in range(20)))
    options = ["--train_file", str(tmp_path / "train.txt"), "--output_file", str(tmp_path / "out.json")]
    options += ["--batch_size", "5", "--batches", "2", "--rounds", "1", "--steps", "2", "6"]
    results = csa_ode.main(options)
    assert json.loads((tmp_path / "out.json").read_text()) == results
    (row,) = results["epochs"]
    assert row["evaluations"] == {"rk": 20, "ark": 16} and row["arithmetic"] == 0.8
    assert row["ratio"] == pytest.approx(row["seconds_per_epoch"]["ark"] / row["seconds_per_epoch"]["rk"])
    kept = {(row["solver"], row["gradient"], row["steps"]): row["kept"] for row in results["memory"]}
    for solver in ("rk", "ark"):
        assert kept[solver, "adjoint", 2] == kept[solver, "adjoint", 6] < kept[solver, "direct", 2]
        assert kept[solver, "direct", 6] > 2 * kept[solver, "direct", 2]


SMALL = ["residual_2", "euler2_2", "rk2_2", "rk2_learned_2", "rk2_gate_2", "rk4_2"]
SMALL += ["residual_step2_2", "residual_step4_2", "rk2_step2_2", "residual_twice_2"]
SENTENCES = [f"residual_{n}" for n in (1, 2, 4, 8, 16)]
SENTENCES += [
    f"{name}_{n}"
    for n in (2, 1, 4)
    for name in ("euler2", "rk2", "rk2_learned", "rk4", "iiet", "looped", "residual_step2", "rk2_step2")
    if (name, n) != ("looped", 1)
]
WIDE = ["residual_2", "rk2_2", "euler2_2", "looped_2", "residual_step2_2", "rk4_2"]
LARGE = ["residual_0.4M", "euler2_0.4M", "rk2_0.4M", "rk2_learned_0.4M"]


@pytest.mark.parametrize(
    ("recipe", "only", "models"),
    [
        *(("linux_doc", "verdict/*_0.4M_1", LARGE), ("multi30k_en_de_fast", "verdict/*_2_1", SMALL)),
        ("tatoeba_sentences", "verdict/*_1", SENTENCES),
        ("tatoeba_sentences", "verdict_wide/*_2_1", WIDE),
    ],
)
def test_seconds_of_the_verdict_are_of_every_scheme(tmp_path, recipe, only, models):
    options = ["--tiny", "--rounds", "1", "--recipe", recipe, "--only", only]
    results = verdict_seconds.main([*options, "--output_file", str(tmp_path / "out.json")])
    assert json.loads((tmp_path / "out.json").read_text()) == results
    seconds = results["seconds_per_update"]
    assert list(seconds) == models
    assert min(seconds.values()) > 0


def test_batches_have_the_given_lengths_and_lie_evenly_in_the_sorted_file(tmp_path):
    (tmp_path / "texts").write_text("\n".join("word, " * i for i in range(1, 41)))
    lengths = contenders.read_lengths(tmp_path / "texts")
    assert lengths == [2 * i + 1 for i in range(1, 41)]
    batches = contenders.batches_by_length(lengths[::-1], 4, 2)
    for batch, first in zip(batches, (9, 27)):
        assert batch["attention_mask"].sum(1).tolist() == lengths[first : first + 4]
        ends = batch["input_ids"].gather(1, batch["attention_mask"].sum(1, keepdim=True) - 1)
        assert (ends == contenders.END).all()
        assert ((batch["input_ids"] == contenders.PAD) == (batch["attention_mask"] == 0)).all()


def test_peak_memory_is_that_of_the_tensors_alive_at_once():
    def run():
        for _ in range(3):
            first = torch.zeros(1000, 1000)
            second = first + 1
            del first, second

    assert contenders.peak_memory(run) == pytest.approx(8e6, rel=0.01)


def test_all_contenders_generate_the_same_tokens():
    residual = contenders.m2m100(2, d_model=64)
    batch = contenders.sources([5, 9, 7])
    options = {"num_beams": 4, "max_new_tokens": 8}
    expected = residual.generate(**batch, **options)
    assert len(set(expected[:, 1:].flatten().tolist())) > 3
    model = contenders.ode_transformer("rk2", residual)
    for packing in (None, "packed"):
        generated = contenders.prepared(model, packing=packing).generate(**batch, **options)
        assert torch.equal(generated, expected), packing
    generated = contenders.CTranslate2(residual, "float32").generate(**batch, **options)
    assert torch.equal(generated, expected)
    runs = {"one": lambda: [expected], "other": lambda: [expected + 1]}
    with pytest.raises(AssertionError, match="other and one generate other tokens"):
        speed.check_same(runs)


def test_a_row_says_whether_its_target_is_reached(capsys):
    report = speed.Report()
    seconds = {"ours": [1.0, 2.0, 4.0], "theirs": [2.0, 4.0, 8.0]}
    report.add("speed", seconds, [("ours", "theirs")], per_second=8, reach=1.9)
    operations = {"ours": 3, "theirs": 4}
    report.add("latency", seconds, [("ours", "theirs")], reach=0.4, at_most=True, operations=operations)
    rows = [(row["ratio"], row["values"], row["reached"]) for row in report.rows]
    assert rows == [(2.0, [4.0, 2.0], True), (0.5, [2.0, 4.0], False)]
    lines = capsys.readouterr().out
    assert "| 4 a second | 2 a second | 2.000 |  | >= 1.9 | yes |" in lines
    assert "| 2 s | 4 s | 0.500 | 0.750 | <= 0.4 | no |" in lines


def test_operations_are_three_times_those_of_the_forward_pass():
    """A product of n words and an a x b matrix takes 2nab operations forward, twice as many backward; attention by
    m words over n of d features takes 4mnd."""
    model = contenders.m2m100(2, d_model=64)
    config = model.config
    batch = contenders.sources([9, 9])
    batch["labels"] = batch["input_ids"]
    encoder = 4 * 64**2 + 2 * 64 * config.encoder_ffn_dim + 2 * 9 * 64
    decoder = 8 * 64**2 + 2 * 64 * config.decoder_ffn_dim + 4 * 9 * 64
    for_a_word = 2 * encoder + config.decoder_layers * decoder + 64 * config.vocab_size
    # The backward pass computes the scores of attention once more.
    scores = (2 + 2 * config.decoder_layers) * 9 * 64
    counted = contenders.step_operations(model, batch)
    assert counted in [2 * 18 * (3 * for_a_word + again) for again in (0, scores)]


def test_scaling_writes_points_and_a_picture(tmp_path, capsys, monkeypatch):
    sweeps = {"source length": (8, 12), "beams": (1, 3), "encoder layers": (1, 2), "stages": (1, 4)}
    monkeypatch.setattr(scaling, "SWEEPS", sweeps)
    monkeypatch.setattr(scaling, "SETTING", scaling.SETTING | {"encoder layers": 1})
    monkeypatch.setattr(scaling, "NEW_WORDS", 4)
    results = scaling.main(["--output_dir", str(tmp_path), "--rounds", "1", "--d_model", "64"])
    assert json.loads((tmp_path / "scaling.json").read_text()) == results
    for name, values in sweeps.items():
        assert tuple(point[name] for point in results["points"][name]) == values
    assert {point["batch size"] for point in results["points"]["source length"]} == {4}
    assert all(min(row["seconds"].values()) > 0 for rows in results["points"].values() for row in rows)
    assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")
    assert "| beams 3 |" in capsys.readouterr().out


def test_table_6_measures_every_model_in_turns(tmp_path, monkeypatch, capsys):
    made, turns = [], []

    def model(name):
        made.append(name)
        return contenders.m2m100(1, d_model=64)

    names = [table6.FIRST, "other"]
    search = table6.search

    def noted(model, batches):
        turns.append(id(model))
        search(model, batches)

    monkeypatch.setattr(table6, "search", noted)
    monkeypatch.setattr(table6, "models", lambda size: {name: lambda name=name: model(name) for name in names})
    (tmp_path / "texts").write_text("one two three\n" * 4)
    files = ["--translation_file", str(tmp_path / "texts"), "--output_file", str(tmp_path / "new" / "out.json")]
    options = ["--device", "cpu", "--sizes", "base", "--dtypes", "float32", "--rounds", "2"]
    results = table6.main([*files, *options, "--batch_sizes", "2", "--training_sentences", "2"])
    assert json.loads((tmp_path / "new" / "out.json").read_text()) == results
    measures = {name: rows for name, rows in results.items() if isinstance(rows, list)}
    things = ("beam 4, batch 2, float32: sentences", "training step of 2 pairs, float32: target tokens")
    assert list(measures) == [f"base, {each}" for each in things]
    assert made == names * 2
    # A round that warms up, and two that count.
    assert turns == turns[:2] * 3 and turns[0] != turns[1]
    # Two searches of 2 sentences; 2 pairs of 4 tokens, ends included.
    for rows, things in zip(measures.values(), (4, 8)):
        assert [row["model"] for row in rows] == names and rows[0]["ratio"] == 1
        for row in rows:
            assert len(row["seconds"]) == 2 and row["MiB"] is None
            assert row["a second"] == pytest.approx(things / statistics.median(row["seconds"]))
    with pytest.raises(SystemExit):
        table6.main([*files, *options, "--training_sentences", "5"])
    assert "texts has 4 sentences, too few for a batch of 64." in capsys.readouterr().err


def test_gpu_measures_eager_models_beside_compiled_ones_that_fail(tmp_path, capsys):
    """A failure becomes a row with its message, and the other rows have speeds and ratios to M2M100."""
    options = ["--device", "cpu", "--tiny", "--tasks", "search", "training", "--backend", "no_such_backend"]
    results = gpu.main([*options, "--tokens", "--output_file", str(tmp_path / "new" / "out.json")])
    assert json.loads((tmp_path / "new" / "out.json").read_text()) == results
    assert {"processor", "torch", "transformers", "python", "package"} <= set(results["machine"])
    rows = {(row["batch"], row["model"], row["mode"]): row for row in results["rows"]}
    search, training = "search, 4 beams, batch 4", "training, 4 pairs"
    failed = {key for key, row in rows.items() if row["error"]}
    of_training = {(training, name, "compiled") for name in ("residual", "M2M100")}
    assert failed == {(search, "residual", mode) for mode in ("graphs", "compiled")} | of_training
    assert all("no_such_backend" in rows[key]["error"] for key in failed)
    # Outputs of 4 tokens; pairs of 6, 7, 8 and 6 tokens.
    tokens = {search: 4, training: 27 / 4}
    for key in set(rows) - failed:
        row = rows[key]
        assert row["target tokens a second"] == pytest.approx(row["sequences a second"] * tokens[key[0]])
        other = rows[key[0], "M2M100", key[2]]
        assert row["ratio"] == pytest.approx(other["seconds"][0] / row["seconds"][0])
        assert row["operations"] > 0 and "MiB" not in row and "of the peak" not in row
    assert rows[search, "M2M100", "static"]["ratio"] == 1 != rows[search, "M2M100", "static"]["ratio to eager"]
    assert "| residual, compiled | " in capsys.readouterr().out


def test_expected_memory_holds_weights_gradients_and_states_of_adam():
    """Four float32 numbers for each weight; activations and operations are those of a batch of twice the tokens."""
    config = tiny_config(encoder_solver="rk2", encoder_layers=1, decoder_layers=1, max_position_embeddings=64)
    small, large = (expected.count(config, tokens, (8, 8)) for tokens in (4096, 8192))
    weights = OdeTransformerForConditionalGeneration(config).num_parameters()
    assert small["GiB"] > 16 * weights / 2**30
    assert large["flops"] == 2 * small["flops"] and large["operators"] == small["operators"]
    of_activations = [found["GiB"] - 16 * weights / 2**30 for found in (small, large)]
    assert of_activations[1] == pytest.approx(2 * of_activations[0], rel=0.1)


def training(perplexities, bleu, updates_apart):
    """The record of one."""
    steps = [updates_apart * (i + 1) for i in range(len(perplexities))]
    log = [{"step": step, "eval_loss": 1.0, "eval_perplexity": each} for step, each in zip(steps, perplexities)]
    model = {"function_evaluations": {"encoder": [2, 2], "decoder": [1]}}
    metrics = {split: {"bleu": bleu, "perplexity": perplexities[-1]} for split in ("validation", "test")}
    record = {"log_history": log, "model": model, "metrics": metrics, "training": {"arguments": {}}}
    return record | {"training_seconds": 10.0 * steps[-1]}


def test_time_to_quality_compares_means_over_seeds(tmp_path, capsys):
    """The fast recipe has its best perplexity, 4 on average, after 40 updates, and the paper's after 200."""
    paper = {"rk2_1": training([9.0, 3.0], 30.0, 100), "rk2_2": training([9.0, 5.0], 32.0, 100)}
    fast = {"rk2_1": training([8.0, 4.5, 4.5], 33.0, 20), "rk2_2": training([8.0, 3.5, 3.5], 34.0, 20)}
    rates = {"adam_0.001_1": training([9.0], 1.0, 60), "muon_0.006_0.003_1": training([9.0], 1.0, 60)}
    (tmp_path / "queue").mkdir()
    files = ("tatoeba_en_de_small", "tatoeba_en_de_small_fast", "multi30k_en_de_fast", "rates_multi30k_en_de_fast")
    for name, runs in zip(files, (paper, fast, fast, rates)):
        (tmp_path / "queue" / f"{name}.json").write_text(json.dumps(runs))
    measured = time_to_quality.main(["--results_dir", str(tmp_path), "--output_file", str(tmp_path / "out.json")])
    assert json.loads((tmp_path / "out.json").read_text()) == measured
    model = measured["tatoeba_en_de_small"]["fast"]["rk2"]
    assert model["share of the paper's updates for its perplexity"] == 0.2 and model["seeds"] == 2
    points = {"updates": [20, 40, 60], "seconds": [200, 400, 600], "evaluations of F": [100, 200, 300]}
    points |= {"eval_loss": [1.0, 1.0, 1.0], "eval_perplexity": [8.0, 4.0, 4.0]}
    assert model["validation"] == points and model["kept"]["test"]["bleu"] == [33.0, 34.0]
    assert measured["multi30k_en_de"]["rates"].keys() == {"adam_0.001", "muon_0.006_0.003"} and "ptb" not in measured
    row = "| tatoeba_en_de_small | paper | rk2 | 2 | 200 | 1000 | 4.00 | bleu 31.00 |"
    assert row in capsys.readouterr().out
    with pytest.raises(SystemExit):
        time_to_quality.main(["--results_dir", str(tmp_path / "queue")])
    assert "no fast recipe has a record there" in capsys.readouterr().err
