# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""examples/results/verdict.py: made-up losses of a known law give its numbers back."""

import gzip
import importlib.util
import json
import math
import statistics
import sys
import types
from collections import defaultdict

import numpy as np
import pytest
import scipy.stats
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from modeling_ode_transformer import OdeTransformerDecoderConfig, OdeTransformerForCausalLM, depth
from modeling_ode_transformer.hub.model_card import integrated_facts

from .conftest import EXAMPLES


LAW = (1.5, 40.0, 0.35)  # E, A, alpha
SIZES = {"a": (64, 2), "b": (96, 3), "c": (160, 4), "d": (224, 6), "e": (288, 9)}
LANGUAGE = "tatoeba_sentences"
NUMBERS = {4: "four", 8: "eight"}
PHI = {"euler2": (2, 0.4), "rk4": (4, 0.7), "worse": (2, -0.2)}


@pytest.fixture(scope="module")
def module():
    return imported(EXAMPLES / "results" / "verdict.py")


def parameters_of(width, layers):
    return layers * (4 * width * (width + 1) + 8 * width * width + 9 * width + 17 * 32)


def made_up(noise=0.0, seeds=(1, 2, 3), experiment=0):
    """Records of runs whose loss follows the law at `r^phi N`, with normal noise."""
    generator, runs = np.random.default_rng(experiment), {}
    for scheme, (evaluations, phi) in {"residual": (1, 0), **PHI}.items():
        for size, (width, layers) in SIZES.items():
            count = parameters_of(width, layers)
            loss = LAW[0] + LAW[1] * (evaluations**phi * count) ** -LAW[2]
            config = {"d_model": width, "decoder_ffn_dim": 4 * width, "decoder_attention_heads": width // 32}
            config["max_relative_position"] = 8
            for seed in seeds:
                runs[f"{scheme}_{size}_{seed}"] = {
                    "model": {"config": config, "function_evaluations": {"decoder": [evaluations] * layers}},
                    "metrics": {"validation": {"perplexity": math.exp(loss + noise * generator.normal())}},
                    "training": {"updates": 200},
                }
    return runs


def seconds_of(runs):
    """Of an update, by scheme and size: as long as its arithmetic."""
    seconds = {}
    for name, run in runs.items():
        layers = run["model"]["function_evaluations"]["decoder"]
        seconds[name.rpartition("_")[0]] = 1e-8 * sum(layers) * parameters_of(run["model"]["config"]["d_model"], 1)
    return seconds


def test_phi_of_a_known_law(module):
    runs = made_up()
    result = module.verdict(runs, samples=20, seconds=seconds_of(runs))
    assert [result["fit"][name] for name in ("floor", "exponent")] == pytest.approx([LAW[0], LAW[2]], rel=0.02)
    for scheme, (evaluations, phi) in PHI.items():
        for size, (width, layers) in SIZES.items():
            found, count = result["schemes"][scheme][size], parameters_of(width, layers)
            assert found["phi"] == pytest.approx(phi, abs=0.01)
            assert found["equivalent_size"] == pytest.approx(evaluations**phi, rel=0.01)

            def difference(parameters, loss=LAW[0] + LAW[1] * (evaluations**phi * count) ** -LAW[2]):
                return loss - LAW[0] - LAW[1] * parameters ** -LAW[2]

            assert found["at_equal_parameters"] == pytest.approx(difference(count), abs=2e-3)
            # The time of these runs is that of their arithmetic.
            for name in ("arithmetic", "seconds"):
                assert found[f"at_equal_{name}"] == pytest.approx(difference(evaluations * count), abs=2e-3)
        assert result["schemes"][scheme]["mean"]["phi"] == pytest.approx(phi, abs=0.01)


@pytest.mark.parametrize("seeds", [2, 5])
def test_intervals_hold_the_truth_about_as_often_as_they_say(seeds, module):
    """Of 30 experiments, whose noise is that of seeds."""
    covered, number = 0, 0
    for experiment in range(30):
        schemes = module.verdict(made_up(0.003, range(seeds), experiment), samples=100)["schemes"]
        for scheme, (_, phi) in PHI.items():
            low, high = schemes[scheme]["mean"]["interval"]
            covered, number = covered + (low < phi < high), number + 1
    assert 0.85 < covered / number <= 1


def test_the_residual_models_may_have_another_name(module):
    """Then those of one evaluation and the usual name, which have no phi, are left out."""
    runs = made_up()
    renamed = {name.replace("residual", "residual_step2"): run for name, run in runs.items()}
    again = module.verdict(renamed | {"residual_a_1": runs["residual_a_1"]}, samples=20, residual="residual_step2")
    expected = module.verdict(runs, samples=20)
    assert again["schemes"] == expected["schemes"] and again["fit"] == expected["fit"]


def test_the_intervals_of_one_seed_come_from_the_seeds_of_the_others(module):
    """They are wider by sqrt(2) than with two, since the residual models' fit is nearly certain."""
    runs = made_up(0.003, (1, 2))
    for size in SIZES:  # the second seed of residual models counts 20 times
        runs |= {f"residual_{size}_{seed}": runs[f"residual_{size}_{seed % 2 + 1}"] for seed in range(3, 41)}
    few = {name: run for name, run in runs.items() if not (name.startswith("rk4") and name.endswith("_2"))}
    widths = []
    for each in (runs, few):
        low, high = module.verdict(each, samples=2000)["schemes"]["rk4"]["e"]["interval"]
        widths.append(high - low)
    assert widths[1] / widths[0] == pytest.approx(2**0.5, rel=0.1)


def test_one_seed_has_no_interval_and_a_table(module, tmp_path, capsys):
    record = tmp_path / "record.json"
    record.write_text(json.dumps(made_up(seeds=(1,))))
    module.main([str(record)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("| euler2 | a | 0.40 |  | 1.32 | -") and len(lines) == 2 + 3 * 6


def test_the_seconds_of_every_model_are_needed(module, tmp_path, capsys):
    """Without any, all but the comparison at equal seconds is the same."""
    runs = made_up(seeds=(1,))
    (tmp_path / "record.json").write_text(json.dumps(runs))
    (tmp_path / "seconds.json").write_text(json.dumps({"seconds_per_update": {}}))
    with pytest.raises(SystemExit):
        module.main([str(tmp_path / "record.json"), "--seconds", str(tmp_path / "seconds.json")])
    assert "The seconds of residual_a are missing, which verdict_seconds.py measures" in capsys.readouterr().err
    timed, untimed = (module.verdict(runs, seconds=each)["schemes"] for each in (seconds_of(runs), None))
    for scheme, sizes in timed.items():
        for size, values in sizes.items():
            values.pop("at_equal_seconds")
            assert untimed[scheme][size] == values


@pytest.mark.parametrize("kept, message", [("residual", "only residual models"), ("rk4", "of at least three sizes")])
def test_too_few_runs_are_refused(kept, message, module):
    with pytest.raises(ValueError, match=message):
        module.verdict({name: run for name, run in made_up().items() if name.startswith(kept)})


def test_the_parameters_are_those_of_the_blocks(module):
    fields = {"decoder_ffn_dim": 256, "decoder_attention_heads": 2, "max_relative_position": 8}
    model = OdeTransformerForCausalLM(OdeTransformerDecoderConfig(d_model=64, decoder_layers=2, **fields))
    run = made_up(seeds=(1,))["residual_a_1"]
    count = sum(parameter.numel() for parameter in model.model.layers.parameters())
    assert module.point_of("residual_a_1", run).parameters == count


def test_the_parameters_of_a_llama_are_those_of_its_layers(module):
    """The record of a run holds the fields of its card."""
    sizes = {"hidden_size": 24, "intermediate_size": 40, "num_attention_heads": 2, "num_key_value_heads": 2}
    config = LlamaConfig(**sizes, num_hidden_layers=3, vocab_size=9)
    model = AutoModelForCausalLM.from_config(depth.config(config, solver="rk2", coefficients="fixed"))
    count = sum(parameter.numel() for parameter in model.model.layers.parameters())
    assert module.stack_of(integrated_facts(model)) == (count, 2)


def test_the_page_has_the_phi_of_the_records(module):
    page, schemes = words_of_pages(), module.verdict(read_runs("verdict_step1_linux_doc"))["schemes"]
    phi = {scheme: f"{sizes['mean']['phi']:.2f}" for scheme, sizes in schemes.items()}
    assert "phi of {euler2} for Euler twice, {rk2} for RK2 and {rk2_learned} for RK2".format(**phi) in page


@pytest.fixture(scope="module")
def tables():
    return imported(EXAMPLES.parent / "docs" / "verdict_tables.py")


def test_the_tables_of_the_pages_are_those_of_the_records(tables, tmp_path):
    """A cell that is not becomes so."""
    pages = {name: (tables.DOCS / name).read_text(encoding="utf-8") for name in (tables.MAIN, tables.SMALL)}
    for name, text in pages.items():
        assert "| RK2 | 2 | " in text
        (tmp_path / name).write_text(text.replace("| RK2 | 2 | ", "| RK2 | 2 | 9"), encoding="utf-8")
    tables.main(tmp_path)
    assert {name: (tmp_path / name).read_text(encoding="utf-8") for name in pages} == pages


def test_tables_of_made_up_records(tables, module, monkeypatch):
    """Their cells are known: phi of a law, means of two numbers, rates as their names have them."""

    def run(perplexity, bleu=10.0):
        scores = {"bleu": bleu, "chrf": 2 * bleu}
        return {"metrics": {"validation": {"perplexity": perplexity} | scores, "test": scores}}

    two = {"rk2_2_1": run(4.0), "rk2_2_2": run(5.0, 11.0), "residual_10_1": run(3.0), "residual_2_1": run(6.0)}
    assert tables.table_of_means(two)[1:] == [
        ["residual", "2", "1", "6.00", "", "10.00", "10.00", "20.00"],
        ["residual", "10", "1", "3.00", "", "10.00", "10.00", "20.00"],
        ["RK2", "2", "2", "4.50", "4.00 to 5.00", "10.50", "10.50", "21.00"],
    ]
    layers = {"a": 2, "b": 3, "c": 4}
    law = {tuple(name.split("_")): each for name, each in made_up().items() if not name.startswith("worse")}
    law = {f"{name}_{layers[size]}_{seed}": each for (name, size, seed), each in law.items() if size in layers}
    records = {"law": law, "own": two, "trials": {"rk2_2_0.1": run(7.0), "euler2_2_0.1": run(8.0)}}
    monkeypatch.setattr(tables, "runs_of", records.__getitem__)
    rows = tables.table_of_phi(tables.Setting("page", "heading", "law").phi())
    assert [row[:3] for row in rows[1:]] == [
        *(["Euler twice", size, "0.40"] for size in "234"),
        *(["RK4", size, "0.70"] for size in "234"),
    ]
    assert [row[4] for row in rows[1:4]] == [f"{size * 2**0.4:.1f}" for size in (2, 3, 4)]
    rates = tables.table_of_rates({"": "trials", "0.02": "own"})
    assert rates == [["rate of Muon", "RK2, 2 layers"], ["0.02", "4.00"], ["0.1", "7.00"]]
    with pytest.raises(ValueError, match="no table below a line that begins with 'phi here'"):
        tables.with_table("phi there\n\n| a |\n", "phi here", [["a"]])


def test_the_page_says_in_words_what_the_records_say(module, tables):
    text, results = words_of_pages(), {}
    parts = {"dlcl": "", "plain": "plain_", "dry": "plain_no_dropout_", "damp": "plain_dropout0_"}
    parts["best"] = "plain_no_dropout_0.012_"
    for surroundings, name in parts.items():
        results[surroundings] = module.verdict(read_runs(f"verdict_{name}multi30k_en_de_fast"))
    perplexities = defaultdict(list)
    for surroundings, result in results.items():
        for point in result["points"]:
            name = f"{surroundings}_{point['scheme']}_{point['size']}"
            perplexities[name].append(math.exp(point["loss"]))
    perplexity = {name: sum(values) / len(values) for name, values in perplexities.items()}
    found = {
        f"{rate}_{scheme}": results[rate]["schemes"][scheme]["2"]
        for rate in ("dry", "best")
        for scheme in ("rk2", "euler2")
    }
    phi = {name: tables.phi_and_interval(each) for name, each in found.items()}
    assert all(found[f"best_{scheme}"]["interval"][0] < 0 for scheme in ("rk2", "euler2"))
    shares = [
        f"{(residual - twice) / (residual - gained):.0%}"
        for residual, twice, gained in zip(
            *(perplexities[f"plain_{each}_2"] for each in ("residual", "residual_twice", "rk2"))
        )
    ]
    of_averages, of_rk2 = (
        perplexity["plain_residual_2"] - perplexity[f"plain_{name}_2"] for name in ("residual_twice", "rk2")
    )
    of_length = perplexity["dry_residual_2"] - perplexity["dry_residual_step2_2"]
    loss = {name: sum(map(math.log, values)) / len(values) for name, values in perplexities.items()}
    eight, squares, freedom = loss["best_residual_2"] - loss["best_residual_8"], 0.0, 0
    for name, values in perplexities.items():
        if name.startswith("best_"):
            squares += sum((math.log(value) - loss[name]) ** 2 for value in values)
            freedom += len(values) - 1
    deviation = (squares / freedom) ** 0.5
    for says in (
        "In small encoders phi of RK2 is {} ({}) and".format(*phi["best_rk2"]),
        "that of Euler twice {} ({}).".format(*phi["best_euler2"]),
        f"Eight residual layers are only {eight:.3f} nats better than two at 0.012, where",
        f"the deviation from seed to seed is {deviation:.3f}.",
        "a residual step of 2 has {dry_residual_step2_2:.2f}, one of RK2 {dry_rk2_step2_2:.2f} (one seed)",
        "RK2 have {plain_rk2_2:.2f}, less than eight residual layers ({plain_residual_8:.2f});",
        "two residual layers have {plain_residual_2:.2f}.",
        f"the encoder has {{plain_residual_twice_2:.2f}}, {of_averages / of_rk2:.0%} of RK2's gain",
        "({} and {} with the two seeds)".format(*shares),
    ):
        assert says.format(**perplexity) in text
    assert perplexity["plain_rk2_2"] < perplexity["plain_residual_8"]
    names = ("residual_8", "euler2_2", "residual_step2_2", "rk2_2", "residual_2")
    order = [perplexity[f"dry_{name}"] for name in names]
    assert order == sorted(order)
    assert abs(loss["best_residual_2"] - loss["best_residual_step2_2"]) < deviation < of_length
    assert perplexity["best_residual_step2_2"] < perplexity["best_euler2_2"]
    assert perplexity["damp_residual_2"] < min(perplexity[f"{each}_residual_2"] for each in ("dlcl", "plain", "dry"))
    titles, *rows = tables.table_of_rates(next(each.rates for each in tables.SETTINGS if each.record == tables.BEST))
    rates = {row[0]: dict(zip(titles, row)) for row in rows}
    for rate, position in (("0.003", 0), ("0.006", 0), ("0.012", 2)):
        order = sorted(
            ("RK2", "residual", "Euler twice"), key=lambda scheme: float(rates[rate][f"{scheme}, 2 layers"])
        )
        assert order.index("Euler twice") == position
    trials = read_runs("verdict_rates_multi30k_en_de_fast")
    low, high = (trials[f"residual_2_{rate}"]["metrics"]["validation"]["perplexity"] for rate in ("0.003", "0.012"))
    first = perplexities["dlcl_residual_2"][0]
    assert f"its perplexity is {low:.2f}, {first:.2f} and {high:.2f} at 0.003, 0.006 and 0.012." in text
    # A history, dropout and half the rate each cost more than any scheme of two layers gains.
    costs = (
        perplexity[f"{one}_residual_2"] - perplexity[f"{other}_residual_2"]
        for one, other in (("dlcl", "plain"), ("plain", "dry"), ("dry", "best"))
    )
    gains = (
        perplexity[f"{surroundings}_residual_2"] - perplexity[name]
        for surroundings in results
        for name in perplexity
        if name.startswith(f"{surroundings}_") and name.endswith("_2")
    )
    assert min(costs) > max(gains)


def test_the_page_says_of_tatoeba_what_the_records_say(module):
    text = words_of("docs/verdict.md")
    result = module.verdict(read_runs("verdict_tatoeba_en_de_small_fast"))
    loss, found = means(result), defaultdict(list)
    for point in result["points"]:
        found[f"{point['scheme']}_{point['size']}"].append(point["loss"])
    bleu, chrf = (read_runs("verdict_tatoeba_en_de_small_fast_bootstrap")[metric] for metric in ("bleu", "chrf"))
    lead = chrf["residual_3"]["rk2_3"]
    lead = "{:.2f}, {:.2f} to {:.2f}".format(lead["difference"], *lead["confidence_interval"])
    (gain, low, high), (more, low_of_six, high_of_six) = (
        (f"{pair['difference']:.2f}", *(f"{end:.2f}" for end in pair["confidence_interval"]))
        for pair in (bleu["residual_3"]["rk2_3"], bleu["residual_6"]["rk2_3"])
    )
    assert abs(float(more)) < 0.05 and result["schemes"]["rk2"]["3"]["phi"] == math.inf
    trials = read_runs("verdict_rates_tatoeba_en_de_small_fast")
    three_at_twice, rk2_at_twice = (
        math.log(trials[f"{name}_3_0.006"]["metrics"]["validation"]["perplexity"]) for name in ("residual", "rk2")
    )
    first = found["residual_3"][0] - found["rk2_3"][0]
    seeds = max(found["residual_3"]) - min(found["residual_3"])
    runs = read_runs("verdict_tatoeba_en_de_small_fast")
    scores = [runs[f"residual_3_{seed}"]["metrics"]["test"]["bleu"] for seed in (1, 2, 3)]
    assert not bleu["residual_3"]["rk2_3"]["differs"] and max(scores) == scores[2]
    one, three, six = (loss[f"residual_{layers}"] for layers in (1, 3, 6))
    for says in (
        f"three layers of RK2 have {gain} BLEU more than three residual layers ({low} to {high}, three seeds of "
        "each), which is not established",
        f"RK2's lead is {three_at_twice - rk2_at_twice:.3f} nats at 0.006 and {first:.3f} at 0.003.",
        f"From one layer to three the loss falls by {one - three:.3f} nats, from three to six by {three - six:.3f}, "
        f"and the three seeds of three layers differ by {seeds:.3f}.",
        f"RK2 has {gain} BLEU more than three residual layers ({low} to {high}, over three seeds of each and "
        f"the sentences), and {more} more than six ({low_of_six} to {high_of_six}, over the sentences only",
        f"In chrF no lead over three layers is established either ({lead}).",
        f"seeds of three residual layers differ by {max(scores) - min(scores):.2f} BLEU; the third one is the best",
    ):
        assert says in text


def test_the_page_says_of_language_models_what_the_records_say(module, tables):
    text = words_of("docs/verdict.md")
    narrow, wide = (module.verdict(read_runs(f"verdict_{name}tatoeba_sentences")) for name in ("", "wide_"))
    loss, schemes = means(narrow), narrow["schemes"]
    phi = {
        f"{width}_{name}": "{} ({})".format(*tables.phi_and_interval(sizes["mean"]))
        for width, result in (("narrow", narrow), ("wide", wide))
        for name, sizes in result["schemes"].items()
    }
    with_dropout = defaultdict(list)
    for name, run in read_runs("verdict_dropout_tatoeba_sentences").items():
        with_dropout[name[:-2]].append(math.log(run["metrics"]["validation"]["perplexity"]))
    residual, rk2, twice = (
        sum(with_dropout[name]) / len(with_dropout[name]) for name in ("residual_2", "rk2_2", "residual_twice_2")
    )
    side = "above" if rk2 > residual else "below"

    def of(scheme, layers, losses=loss):
        gain = losses[f"{scheme}_{layers}"] - losses[f"residual_{layers}"]
        return f"{abs(gain):.3f} {'above' if gain > 0 else 'below'}"

    squares, freedom = 0.0, 0
    for name, mean in loss.items():
        own = [point["loss"] for point in narrow["points"] if f"{point['scheme']}_{point['size']}" == name]
        squares, freedom = squares + sum((each - mean) ** 2 for each in own), freedom + len(own) - 1
    deviation, depth = (squares / freedom) ** 0.5, loss["residual_2"] - loss["residual_8"]
    losses = means(wide)
    seconds = EXAMPLES / "results" / "verdict_seconds_sentences.json"
    seconds = json.loads(seconds.read_text(encoding="utf-8"))["seconds_per_update"]
    for says in (
        "An update of RK2 takes {:.1f} times the seconds".format(seconds["rk2_2"] / seconds["residual_2"]),
        "phi is {narrow_rk2} for RK2 and {narrow_euler2} for two Euler steps for each layer,".format(**phi),
        "and {narrow_looped} for a looped stack of two,".format(**phi),
        "two layers have {wide_rk2}, {wide_euler2} and {wide_looped}.".format(**phi),
        f"the loss of RK2 is {of('rk2', 1)} with one layer, {of('rk2', 2)} with two and {of('rk2', 4)} with four; "
        f"Euler twice is {of('euler2', 1)}, {of('euler2', 2)} and {of('euler2', 4)}; the looped stack is "
        f"{of('looped', 2)} with two; a residual step of 2, which costs nothing, is "
        f"{of('residual_step2', 2)} with two and {of('residual_step2', 4)} with four.",
        f"RK2 is {of('rk2_learned', 2)} with two.",
        f"has the history that it needs, is {of('iiet', 2)} with two (one seed).",
        f"close to the {math.exp(loss['residual_4']):.2f} of four residual layers",
        f"The deviation of the loss from seed to seed is {deviation:.3f} nats, and from two residual layers to eight "
        f"it falls by {depth:.3f}.",
        f"The loss of RK2 with two layers is {of('rk2', 2, losses)} that of residual models, Euler twice is "
        f"{of('euler2', 2, losses)} and the looped stack {of('looped', 2, losses)}.",
        f"to eight it falls by {losses['residual_2'] - losses['residual_8']:.3f}.",
        f"only average two draws of dropout, lower the loss by {residual - twice:.3f} nats.",
        f"The two seeds of RK2 differ by {max(with_dropout['rk2_2']) - min(with_dropout['rk2_2']):.3f} nats.",
        f"RK2's loss is {abs(rk2 - residual):.3f} {side} that of the residual model.",
        f"average two draws of dropout and do nothing else, are {residual - twice:.3f} below it.",
    ):
        assert says in text
    # "No scheme has an established gain", and RK2 a loss.
    assert all(found["interval"][0] < 0 for result in (narrow, wide) for found in means_over_sizes(result))
    assert schemes["rk2"]["mean"]["interval"][1] < 0
    assert loss["residual_4"] < min(mean for name, mean in loss.items() if name.endswith("_2")) - 10 * deviation
    for page in ("README.md", "docs/faq.md"):
        assert f"two evaluations at the same state lower the loss by {residual - twice:.3f} nats" in words_of(page)


def test_the_page_says_of_llama_decoders_what_the_records_say(module, tables):
    result, text = module.verdict(tables.runs_of(f"llama_{LANGUAGE}")), words_of("docs/verdict.md")
    loss, own = means(result), means(module.verdict(tables.runs_of(LANGUAGE)))
    phi = {name: "{} ({})".format(*tables.phi_and_interval(found["2"])) for name, found in result["schemes"].items()}

    def of(scheme):
        gain = loss[scheme] - loss["residual_2"]
        return f"{abs(gain):.3f} {'above' if gain > 0 else 'below'}"

    for says in (
        f"The loss of RK2 is {of('rk2_2')} that of two residual layers, and that of Euler twice {of('euler2_2')}.",
        "phi is {rk2} for RK2 and {euler2} for Euler twice: no gain and no loss is established.".format(**phi),
        f"Two more layers lower the loss by {loss['residual_2'] - loss['residual_4']:.3f}.",
    ):
        assert says in text
    assert all(found["2"]["interval"][0] < 0 < found["2"]["interval"][1] for found in result["schemes"].values())
    assert all(loss[name] < own[name] for name in loss)


class Leads:
    """Losses of parts of the queue beside those of two residual layers."""

    def __init__(self, runs):
        self.losses, self.trained = defaultdict(list), defaultdict(list)
        for part, models in runs.items():
            for name, run in models.items():
                for split, metrics in run["metrics"].items():
                    self.losses[split, part, name[:-2]].append(math.log(metrics["perplexity"]))
                before = run["training_length"]["num_train_epochs"] - 1
                last_epoch = [
                    entry["loss"] for entry in run["log_history"] if entry["epoch"] > before and "loss" in entry
                ]
                self.trained[part, name[:-2]].append(sum(last_epoch) / len(last_epoch))

    def lead(self, weights, of="rk2_2", split="validation", beside="residual_2"):
        """The loss less that of another model, a weighted sum over parts, and its interval: by one deviation of all
        models."""
        own = {model: each for model, each in self.losses.items() if model[0] == split}
        mean = {model: statistics.mean(each) for model, each in own.items()}
        freedom = sum(len(each) - 1 for each in own.values())
        squares = sum((each - mean[model]) ** 2 for model, values in own.items() for each in values)
        terms = {
            (split, part, name): sign * weight
            for part, weight in weights.items()
            for name, sign in ((of, 1), (beside, -1))
        }
        value = sum(weight * mean[model] for model, weight in terms.items())
        half = sum(weight**2 / len(own[model]) for model, weight in terms.items()) ** 0.5
        half *= scipy.stats.t.ppf(0.975, freedom) * (squares / freedom) ** 0.5
        return value, value - half, value + half

    def fitted(self, part, of):
        return statistics.mean(self.trained[part, of]) - statistics.mean(self.trained[part, "residual_2"])


def test_the_page_says_of_longer_trainings_what_the_records_say(module, tables):
    text = words_of("docs/verdict.md")
    leads = Leads(
        {epochs: tables.runs_of(f"epochs{epochs}_{LANGUAGE}" if epochs > 1 else LANGUAGE) for epochs in (1, 2, 4, 8)}
    )
    lead, fitted = leads.lead, leads.fitted

    def side(epochs, of="rk2_2"):
        value = lead({epochs: 1}, of)[0]
        return f"{abs(value):.3f} {'above' if value > 0 else 'below'}"

    def below(epochs, **of):
        value, low, high = (f"{-each:.3f}" for each in lead({epochs: 1}, **of))
        return f"{value} below after {NUMBERS[epochs]} ({high} to {low})"

    assert lead({4: 1})[2] < 0 and lead({8: 1})[2] < 0 < lead({1: 1, 8: -1})[1]
    assert lead({4: 1}, "euler2_2")[2] < 0 < lead({4: 1}, "looped_2")[2]
    phi = {
        f"{name}_{epochs}": "{} ({})".format(*tables.phi_and_interval(sizes["mean"]))
        for epochs in (4, 8)
        for name, sizes in module.verdict(tables.runs_of(f"epochs{epochs}_{LANGUAGE}"))["schemes"].items()
    }

    gains = {epochs: -lead({epochs: 1}, "residual_4")[0] for epochs in (4, 8)}
    assert gains[8] == pytest.approx(-fitted(8, "residual_4") / 2, rel=0.05)  # "half of their gain"
    trend = f"{side(1)} {{}} after one epoch, {side(2)} after two, "
    for says in (
        f"the loss of two layers of RK2 is {trend.format('that of the residual model')}{side(4)} after four and "
        f"{side(8)} after eight",
        f"its loss is {trend.format('that of the residual model')}{below(4)} and {below(8)}.",
        "The change from one epoch to eight is {:.3f} ({:.3f} to {:.3f})".format(*lead({1: 1, 8: -1})),
        f"On the test set RK2 is {below(4, split='test')} and {below(8, split='test')}.",
        f"Euler twice is {below(4, of='euler2_2')} and {below(8, of='euler2_2')}; the change from one epoch to eight "
        "is {:.3f} ({:.3f} to {:.3f})".format(*lead({1: 1, 8: -1}, "euler2_2")),
        f"The looped stack is {side(4, 'looped_2')} after four (not established).",
        f"lower the loss by {gains[4]:.3f} after four epochs and by {gains[8]:.3f} after eight.",
        f"the training loss of four layers is {-fitted(8, 'residual_4'):.3f} below that of two",
        f"RK2's training loss is {fitted(4, 'rk2_2'):.3f} above the residual model's after four epochs and "
        f"{-fitted(8, 'rk2_2'):.3f} below after eight, and that of Euler twice {-fitted(8, 'euler2_2'):.3f} below",
        "phi is {rk2_4} for RK2, {euler2_4} for Euler twice and {looped_4} for the looped stack after four epochs, "
        "and {rk2_8} for RK2 and {euler2_8} for Euler twice after eight".format(**phi),
        "after eight epochs phi is {rk2_8} for RK2 and {euler2_8} for two Euler steps".format(**phi),
    ):
        assert says in text
    perplexity = {epochs: math.expm1(lead({epochs: 1})[0]) for epochs in (1, 4, 8)}
    assert (
        f"two layers of RK2 have {perplexity[1]:.1%} more perplexity than two residual ones after one epoch, "
        f"{-perplexity[4]:.1%} less after four and {-perplexity[8]:.1%} less after eight; four residual layers have "
        f"{-math.expm1(lead({8: 1}, 'residual_4')[0]):.1%} less after eight."
    ) in words_of("README.md")


def test_the_page_says_of_passes_what_the_records_say(module, tables):
    """Models that read an eighth of the text eight times, without and with dropout."""
    text, parts = words_of("docs/verdict.md"), ("eighth", "eighth_dropout")
    leads = Leads({part: tables.runs_of(f"{part}_{LANGUAGE}") for part in parts})
    longer = {1: LANGUAGE, 8: f"epochs8_{LANGUAGE}", "dropout": f"dropout_epochs8_{LANGUAGE}"}
    others, fitted = Leads({part: tables.runs_of(record) for part, record in longer.items()}), leads.fitted

    def below(of, part="eighth", who=" ", **others):
        """How far below who, with its interval."""
        value, low, high = (f"{-each:.3f}" for each in leads.lead({part: 1}, of, **others))
        return f"{value}{who}({high} to {low})"

    def side(value):
        return f"{abs(value):.3f} {'above' if value > 0 else 'below'}"

    def mean(part, name):
        return statistics.mean(leads.losses["validation", part, name])

    schemes = ("rk2_2", "euler2_2", "looped_2")
    two, four = (mean("eighth", name) - mean("eighth_dropout", name) for name in ("residual_2", "residual_4"))
    deeper, of_test = (leads.lead({"eighth": 1}, "residual_4", split) for split in ("validation", "test"))
    deeper_dropout = -leads.lead({"eighth_dropout": 1}, "residual_4")[0]
    rk2, beside_four = (-leads.lead({"eighth": 1}, beside=each)[0] for each in ("residual_2", "residual_4"))
    rk2_dropout, euler2 = leads.lead({"eighth_dropout": 1}), -leads.lead({"eighth_dropout": 1}, "euler2_2")[0]
    setting = next(each for each in tables.SETTINGS if each.record == f"eighth_{LANGUAGE}")
    titles, *rows = tables.table_of_rates(setting.rates)
    loss = {(row[0], name): math.log(float(cell)) for row in rows for name, cell in zip(titles[1:], row[1:]) if cell}
    rates = [row[0] for row in rows]
    of_two, of_four, of_rk2 = "residual, 2 layers", "residual, 4 layers", "RK2, 2 layers"
    of_rate = loss["0.006", of_two] - loss["0.024", of_two]
    leads_at = [loss[rate, of_two] - loss[rate, of_rk2] for rate in ("0.003", "0.006", "0.012")]
    behind = loss["0.024", of_rk2] - loss["0.024", of_two]
    gap = mean("eighth", "residual_2") - statistics.mean(leads.trained["eighth", "residual_2"])
    found = {part: module.verdict(tables.runs_of(f"{part}_{LANGUAGE}"))["schemes"] for part in parts}
    phi = {name: "{} ({})".format(*tables.phi_and_interval(sizes["2"])) for name, sizes in found[parts[1]].items()}
    below_model, below_them = " below the residual model ", " below them "
    for says in (
        f"Then RK2 is {below('rk2_2', who=below_model)}, Euler twice {below('euler2_2')} and the looped stack "
        f"{below('looped_2')};",
        "sentences they are {}, {} and {}.".format(*(side(others.lead({1: 1}, name)[0]) for name in schemes)),
        "On the test set they are {}, {} and {} below.".format(*(below(name, split="test") for name in schemes)),
        f"the training loss of two residual layers in the last pass is {gap:.2f} below their validation loss.",
        f"better than two, by {-fitted('eighth', 'residual_4'):.3f}, and new text no better: their validation loss is "
        "{:.3f} above ({:.3f} to {:.3f}; on the test set {:.3f}, {:.3f} to {:.3f}).".format(*deeper, *of_test),
        f"So RK2, {below('rk2_2', who=below_them, beside='residual_4')}, and Euler twice, "
        f"{below('euler2_2', who=below_them, beside='residual_4')}, win",
        f"less well than two residual layers, by {fitted('eighth', 'rk2_2'):.3f} and "
        f"{fitted('eighth', 'euler2_2'):.3f}.",
        f"It lowers the loss of two residual layers by {two:.3f}, three times as much as RK2 does, and that of four "
        f"by {four:.3f}, so that four are {deeper_dropout:.3f} below two.",
        f"RK2 is then {below('rk2_2', parts[1], below_model)}, and on the test set "
        f"{below('rk2_2', parts[1], split='test')}.",
        f"which only average draws of dropout, are {below('residual_twice_2', parts[1], ' below it ')}.",
        f"Euler twice, which averages no draws, is {below('euler2_2', parts[1], ' below it ')}.",
        "phi is {rk2} for RK2, {euler2} for Euler twice and {residual_twice} for the two at one state.".format(**phi),
        "RK2 is {:.3f} below two residual layers at 0.003, {:.3f} at 0.006 and {:.3f} at 0.012, where".format(
            *leads_at
        ),
        f"it is level with four, and {behind:.3f} above at 0.024.",
        f"are level, and {of_rate:.3f} below the residual model at 0.006.",
        f"RK2 is {rk2:.3f} below two residual layers and {beside_four:.3f} below four, which overfit.",
        f"with it four layers are {deeper_dropout:.3f} below two, Euler twice {euler2:.3f}, and RK2 "
        f"{-rk2_dropout[0]:.3f} (not established).",
        f"After eight epochs RK2 is {-others.lead({'dropout': 1})[0]:.3f} below the residual model (one seed of each;",
    ):
        assert says in text
    assert two == pytest.approx(3 * rk2, rel=0.2)
    assert all(sizes["2"]["phi"] == math.inf for sizes in found["eighth"].values())
    for of in ("rk2_2", "euler2_2"):
        assert leads.lead({"eighth": 1}, of, beside="residual_4")[2] < 0 > leads.lead({"eighth": 1}, of)[2]
    assert min(loss[rate, of_rk2] for rate in rates) == loss["0.012", of_rk2]
    assert min(loss[rate, of_two] for rate in rates) == loss["0.024", of_two]
    assert loss["0.012", of_rk2] == pytest.approx(loss["0.024", of_two], abs=0.002)
    assert loss["0.012", of_rk2] == pytest.approx(loss["0.012", of_four], abs=0.002)
    assert rk2_dropout[1] < 0 < rk2_dropout[2] and euler2 < deeper_dropout
    # "Dropout costs more than it gains" after eight epochs, where RK2 fits the text no worse.
    dropped = [each for model, each in others.losses.items() if model[:2] == ("validation", "dropout")]
    assert min(map(min, dropped)) > max(others.losses["validation", 8, "residual_2"])
    assert others.fitted(8, "rk2_2") < 0
    less = [-math.expm1(leads.lead({"eighth": 1}, beside=beside)[0]) for beside in ("residual_2", "residual_4")]
    assert "RK2 has {:.1%} less than two residual layers and {:.1%} less than four".format(*less) in words_of(
        "README.md"
    )


def test_the_corpus_has_each_sentence_once_and_no_held_out_one_in_training(tmp_path):
    sentences = imported(EXAMPLES / "results" / "tatoeba_sentences.py")
    pairs = {
        "train": "Go.\tGeh.\nGo.\tLos.\nStop!\tHalt!\nOne\u2028line.\tLos.\n",
        "valid": "Run.\tHalt!\n",
        "test": "Stay.\tBleib.\nWait.\tHalt!\n",
    }
    for split, text in pairs.items():
        (tmp_path / f"{split}.tsv.gz").write_bytes(gzip.compress(text.encode()))
    sentences.main([str(tmp_path), "--output_dir", str(tmp_path / "out")])
    made = {
        split: gzip.decompress((tmp_path / "out" / f"{split}.txt.gz").read_bytes())
        .decode()
        .removesuffix("\n")
        .split("\n")
        for split in pairs
    }
    assert {split: sorted(lines) for split, lines in made.items()} == {
        "train": ["Geh.", "Go.", "Los.", "One\u2028line.", "Stop!"],
        "valid": ["Halt!", "Run."],
        "test": ["Bleib.", "Stay.", "Wait."],
    }


def means(result):
    """The mean losses of a result, by model."""
    losses = defaultdict(list)
    for point in result["points"]:
        losses[f"{point['scheme']}_{point['size']}"].append(point["loss"])
    return {name: sum(each) / len(each) for name, each in losses.items()}


def read_runs(record):
    return json.loads((EXAMPLES / "results" / "queue" / f"{record}.json").read_text(encoding="utf-8"))


def imported(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def means_over_sizes(result):
    return [sizes["mean"] for sizes in result["schemes"].values()]


def words_of(page):
    """Without line breaks."""
    return " ".join((EXAMPLES.parent / page).read_text(encoding="utf-8").split())


def words_of_pages():
    """Of the verdict and its page of small models."""
    return f"{words_of('docs/verdict.md')} {words_of('docs/verdict_small.md')}"


def test_the_gain_of_copying_is_that_of_looking_up_what_followed():
    """A model that knows nothing gains nothing; one that gives e times the odds to what followed a token before gains
    what that makes of its loss."""
    copying = imported(EXAMPLES / "analysis" / "measure_copying.py")

    def model_of(strength):
        def model(input_ids, attention_mask):
            logits = torch.zeros(*input_ids.shape, 1000)
            for row, ids in enumerate(input_ids.tolist()):
                followers = {}
                for i, token in enumerate(ids):
                    if token in followers:
                        logits[row, i, followers[token]] = strength
                    if i + 1 < len(ids):
                        followers.setdefault(token, ids[i + 1])
            return types.SimpleNamespace(logits=logits)

        model.config = types.SimpleNamespace(vocab_size=1000)
        return model

    assert copying.copying_gain(model_of(0.0), length=20, sequences=8) == pytest.approx(0, abs=1e-6)
    gain = copying.copying_gain(model_of(3.0), length=20, sequences=8)
    assert gain == pytest.approx(3 - math.log((999 + math.exp(3)) / 1000), abs=0.15)  # tokens may repeat by chance
