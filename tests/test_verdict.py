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

            # The time of these runs is that of their arithmetic.
            for name in ("arithmetic", "seconds"):
                assert found[f"at_equal_{name}"] == pytest.approx(difference(evaluations * count), abs=2e-3)


@pytest.mark.parametrize("seeds", [2, 5])
def test_intervals_hold_the_truth_about_as_often_as_they_say(seeds, module):
    """Of 30 experiments, whose noise is that of seeds."""
    covered, number = 0, 0
    for experiment in range(30):
        schemes = module.verdict(made_up(0.003, range(seeds), experiment), samples=100)["schemes"]
        for scheme, (_, phi) in PHI.items():
            for found in schemes[scheme].values():
                low, high = found["interval"]
                covered, number = covered + (low < phi < high), number + 1
    assert 0.85 < covered / number <= 1


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
    """Whose columns are those of the splits that were scored."""
    record, runs = tmp_path / "record.json", made_up(seeds=(1,))
    record.write_text(json.dumps(runs))
    module.main([str(record)])
    titles, _, *lines = (line.split(" | ") for line in capsys.readouterr().out.splitlines())
    assert len(lines) == len(runs) and titles[-3:] == ["loss beside residual", "phi", "loss at equal arithmetic |"]
    euler2 = next(line for line in lines if line[:2] == ["| Euler twice", "a"])
    assert euler2[2] == "1" and float(euler2[4]) < 0 and euler2[5] == "0.40"


def test_differences_have_students_interval(module):
    """Of two models it is that of scipy's test of two samples with equal variances; a third model with the same
    spread narrows it as a larger sample does."""
    generator = np.random.default_rng(0)
    first, second = generator.normal(3.0, 0.1, size=3), generator.normal(3.2, 0.1, size=4)
    losses = {("rk2", "2"): first.tolist(), ("residual", "2"): second.tolist()}
    interval = scipy.stats.ttest_ind(first, second).confidence_interval()
    found = module.difference(losses, ("rk2", "2"), ("residual", "2"))
    assert found == pytest.approx((first.mean() - second.mean(), interval.low, interval.high))
    deviation = (((first - first.mean()) ** 2).sum() + ((second - second.mean()) ** 2).sum()) / 5
    third = [1 - deviation**0.5 / 2**0.5, 1 + deviation**0.5 / 2**0.5]
    half = (interval.high - interval.low) / 2
    half *= scipy.stats.t.ppf(0.975, 6) / scipy.stats.t.ppf(0.975, 5)
    found = module.difference(losses | {("rk4", "2"): third}, ("rk2", "2"), ("residual", "2"))
    assert found[2] - found[0] == pytest.approx(half) == found[0] - found[1]
    assert module.difference({("rk2", "2"): [3.0], ("residual", "2"): [3.5]}, ("rk2", "2"), ("residual", "2")) == (
        -0.5,
    )


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
    """Their cells are known: phi of a law, means and differences of two numbers, rates as their names have them."""

    def run(perplexity, bleu=10.0):
        scores = {"bleu": bleu, "chrf": 2 * bleu}
        return {"metrics": {split: {"perplexity": perplexity} | scores for split in ("validation", "test")}}

    two = {"rk2_2_1": run(4.0), "rk2_2_2": run(4.0, 11.0), "residual_10_1": run(3.0), "residual_2_1": run(4 * math.e)}
    equal = "-1.000 (-1.000 to -1.000)"
    assert module.table(two)[1:] == [
        ["residual", "2", "1", "10.87", "", "", "10.00", "20.00"],
        ["residual", "10", "1", "3.00", "", "", "10.00", "20.00"],
        ["RK2", "2", "2", "4.00", equal, equal, "10.50", "21.00"],
    ]
    records = {"own": two, "trials": {"rk2_2_0.1": run(7.0), "euler2_2_0.1": run(8.0)}}
    monkeypatch.setattr(tables, "runs_of", records.__getitem__)
    rates = tables.table_of_rates({"": "trials", "0.02": "own"})
    assert rates == [["rate of Muon", "RK2, 2 layers"], ["0.02", "4.00"], ["0.1", "7.00"]]
    with pytest.raises(ValueError, match="no table below a line that begins with 'Models here'"):
        tables.with_table("Models there\n\n| a |\n", "Models here", [["a"]])


# The models whose loss is established to be below or above that of the residual model of as many layers, by record, on
# the validation and on the test set. The pages' words say so; if a new run changes this, read them again.
NONE = ([], [])
ESTABLISHED = {
    "tatoeba_sentences": (([], ["rk2_2", "iiet_2"]), (["euler2_1"], ["rk2_2", "iiet_2"])),
    "epochs4_tatoeba_sentences": ((["euler2_2"], []),) * 2,
    "epochs8_tatoeba_sentences": ((["euler2_2", "rk2_2"], []),) * 2,
    "eighth_tatoeba_sentences": ((["euler2_2", "rk2_2"], []),) * 2,
    "eighth_dropout_tatoeba_sentences": ((["residual_twice_2", "euler2_2", "rk2_2"], []),) * 2,
    "dropout_tatoeba_sentences": ((["residual_twice_2"], []),) * 2,
    "dropout_epochs8_tatoeba_sentences": (NONE, NONE),
    "wide_tatoeba_sentences": (NONE, NONE),
    "llama_tatoeba_sentences": (NONE, NONE),
    "tatoeba_en_de_small_fast": (NONE, (["rk2_3", "midpoint_3", "rk4_3"], [])),
    "plain_no_dropout_0.012_multi30k_en_de_fast": (NONE, NONE),
    "plain_no_dropout_multi30k_en_de_fast": (
        (["residual_step2_2", "euler2_2", "rk2_step2_2"], []),
        (["euler2_2", "rk2_step2_2"], []),
    ),
    "plain_dropout0_multi30k_en_de_fast": ((["euler2_2", "rk2_2"], []), (["euler2_2"], [])),
    "plain_multi30k_en_de_fast": (
        (["residual_twice_2", "rk2_2"], []),
        (["residual_twice_2", "euler2_2", "rk2_2"], []),
    ),
    "multi30k_en_de_fast": ((["residual_step2_2", "residual_step4_2", "rk4_2"], []),) * 2,
}


def test_the_pages_say_what_is_established(tables):
    found = {
        setting.record: tuple(established(tables, setting.record, split) for split in ("validation", "test"))
        for setting in tables.SETTINGS
    }
    assert found == ESTABLISHED


def established(tables, record, split):
    """The models of a record whose loss differs from that of the residual model of as many layers."""
    found, below, above = losses(tables, record, split), [], []
    for scheme, size in found:
        if scheme != "residual" and ("residual", size) in found:
            _, low, high = (*tables.difference(found, (scheme, size), ("residual", size)), -math.inf, math.inf)[:3]
            below += [f"{scheme}_{size}"] if high < 0 else []
            above += [f"{scheme}_{size}"] if low > 0 else []
    return below, above


def losses(tables, record, split="validation"):
    return tables.losses_of(tables.by_model(tables.runs_of(record)), split)


def mean_loss(tables, record, model):
    scheme, _, size = model.rpartition("_")
    return statistics.mean(losses(tables, record)[scheme, size])


def test_the_page_says_in_words_what_the_records_say(module, tables):
    text, epochs8, eighth = words_of("docs/verdict.md"), f"epochs8_{LANGUAGE}", f"eighth_{LANGUAGE}"
    phi = {
        scheme: module.phi_of(sizes["2"])
        for scheme, sizes in tables.verdict(tables.runs_of(epochs8))["schemes"].items()
    }
    trained = {record: training_losses(tables, record) for record in (epochs8, eighth)}
    gain, fitted = (
        mean_loss(tables, epochs8, "residual_2") - mean_loss(tables, epochs8, "residual_4"),
        trained[epochs8]["residual_2"] - trained[epochs8]["residual_4"],
    )
    assert gain == pytest.approx(fitted / 2, rel=0.1)  # "half of their gain does not reach new text"
    for name in ("rk2_2", "euler2_2"):  # "without fitting the training text much better"
        assert trained[epochs8]["residual_2"] - trained[epochs8][name] < 0.01
    # Four layers overfit an eighth of the text: better on it, and no better on new text.
    assert trained[eighth]["residual_4"] < trained[eighth]["residual_2"] - 0.2
    assert mean_loss(tables, eighth, "residual_4") > mean_loss(tables, eighth, "residual_2")
    # "All Llamas are better than the models above with as many layers", which four residual layers are far from.
    for name, llama in losses(tables, f"llama_{LANGUAGE}").items():
        assert statistics.mean(llama) < statistics.mean(losses(tables, LANGUAGE)[name])
    two = [statistics.mean(each) for (_, size), each in losses(tables, LANGUAGE).items() if size == "2"]
    assert mean_loss(tables, LANGUAGE, "residual_4") < min(two) - 0.05
    # "Both intervals exclude that": 0.46 of a looped stack.
    for record in (LANGUAGE, f"wide_{LANGUAGE}"):
        assert tables.verdict(tables.runs_of(record))["schemes"]["looped"]["2"]["interval"][1] < 0.46
    # Dropout costs more than it gains, in one epoch and in eight.
    for record, dry in ((f"dropout_{LANGUAGE}", LANGUAGE), (f"dropout_{epochs8}", epochs8)):
        assert min(map(min, losses(tables, record).values())) > mean_loss(tables, dry, "residual_2")
    # "After four epochs 0.006 is as good as 0.012", and 0.012 is as good as 0.006 after one.
    # So it is after eight, where RK2 leads at both.
    for record in (LANGUAGE, f"epochs4_{LANGUAGE}", epochs8):
        rates = best_rates(tables, record, by_rate=True)
        assert abs(rates["residual, 2 layers"]["0.006"] - rates["residual, 2 layers"]["0.012"]) < 0.003
    for rate in ("0.006", "0.012"):
        assert rates["RK2, 2 layers"][rate] < rates["residual, 2 layers"][rate] - 0.015
    # At the best rate of each, with an eighth of the text.
    dry, damp = (best_rates(tables, record) for record in (eighth, f"eighth_dropout_{LANGUAGE}"))
    two, four, twice, euler2, rk2 = (
        f"{model} layers"
        for model in ("residual, 2", "residual, 4", "residual, twice at one state, 2", "Euler twice, 2", "RK2, 2")
    )
    assert [dry[name][0] for name in (two, four, euler2, rk2)] == ["0.024", "0.024", "0.024", "0.012"]
    assert dry[four][1] < dry[euler2][1] < dry[two][1] - 0.01 and abs(dry[rk2][1] - dry[two][1]) < 0.002
    assert damp[four][1] < damp[twice][1] < damp[euler2][1] < damp[two][1] - 0.02 and damp[two][1] < dry[two][1]
    assert damp[euler2][1] - damp[twice][1] < 0.01 and abs(damp[rk2][1] - damp[two][1]) < 0.006
    assert damp[four][1] < dry[four][1] - 0.03
    for scheme in ("rk2_2", "euler2_2"):
        assert mean_loss(tables, eighth, scheme) < mean_loss(tables, eighth, "residual_4") - 0.03
    seconds = tables.read("verdict_seconds_sentences.json")["seconds_per_update"]
    for says in (
        f"after eight epochs phi is {phi['rk2']} for RK2 and {phi['euler2']} for Euler twice",
        f"An update of RK2 takes {seconds['rk2_2'] / seconds['residual_2']:.1f} times the seconds",
    ):
        assert says in text
    dropout = mean_loss(tables, f"dropout_{LANGUAGE}", "residual_2") - mean_loss(
        tables, f"dropout_{LANGUAGE}", "residual_twice_2"
    )
    less = {
        f"{record}_{name}": -math.expm1(mean_loss(tables, record, name) - mean_loss(tables, record, "residual_2"))
        for record, name in ((LANGUAGE, "rk2_2"), (epochs8, "rk2_2"), (epochs8, "residual_4"))
    }
    assert (
        "two layers of RK2 have {:.1%} more perplexity than two residual ones after one epoch and {:.1%} less after "
        "eight, four residual layers {:.1%} less after eight".format(-less.pop(f"{LANGUAGE}_rk2_2"), *less.values())
    ) in words_of("README.md")
    for page in ("README.md", "docs/faq.md"):
        assert f"two evaluations at the same state lower the loss by {dropout:.3f} nats" in words_of(page)


def best_rates(tables, record, by_rate=False):
    """The best rate of each model and its loss, or the losses at all rates, with the first seed."""
    titles, *rows = tables.table_of_rates(next(each.rates for each in tables.SETTINGS if each.record == record))
    found = {title: {row[0]: math.log(float(row[i])) for row in rows if row[i]} for i, title in enumerate(titles) if i}
    return found if by_rate else {title: min(each.items(), key=lambda item: item[1]) for title, each in found.items()}


def training_losses(tables, record):
    """Of the last epoch, means over the seeds, by model."""
    found = defaultdict(list)
    for name, run in tables.runs_of(record).items():
        begin = run["training_length"]["num_train_epochs"] - 1
        logged = [entry["loss"] for entry in run["log_history"] if entry["epoch"] > begin and "loss" in entry]
        found[name[:-2]].append(statistics.mean(logged))
    return {name: statistics.mean(each) for name, each in found.items()}


def test_the_pages_say_of_small_encoders_what_the_records_say(tables):
    text = f"{words_of('docs/verdict.md')} {words_of('docs/verdict_small.md')}"
    recipe = "multi30k_en_de_fast"
    history, plain, dry, best, damp = (
        {f"{scheme}_{size}": each for (scheme, size), each in losses(tables, f"{part}{recipe}").items()}
        for part in ("", "plain_", "plain_no_dropout_", "plain_no_dropout_0.012_", "plain_dropout0_")
    )
    mean = {
        (part, name): statistics.mean(each)
        for part, models in enumerate((history, plain, dry, best, damp))
        for name, each in models.items()
    }
    perplexities = {name: [math.exp(x) for x in each] for name, each in plain.items()}

    def spread(seeds):
        assert len(seeds) == 5
        return math.exp(min(seeds)), math.exp(max(seeds))

    residual, twice, rk2 = (perplexities[f"{name}_2"] for name in ("residual", "residual_twice", "rk2"))
    shares = [f"{(a - b) / (a - c):.0%}" for a, b, c in zip(residual, twice, rk2)]
    share = (statistics.mean(residual) - statistics.mean(twice)) / (statistics.mean(residual) - statistics.mean(rk2))
    trials = tables.runs_of(f"rates_{recipe}")
    low, high = (trials[f"residual_2_{rate}"]["metrics"]["validation"]["perplexity"] for rate in ("0.003", "0.012"))
    for says in (
        f"eight residual layers are only {mean[3, 'residual_2'] - mean[3, 'residual_8']:.3f} nats better than two",
        "five of two layers have perplexities from {:.2f} to {:.2f}".format(*spread(best["residual_2"])),
        "and five of RK2 from {:.2f} to {:.2f}".format(*spread(best["rk2_2"])),
        "the encoder has {:.0%} of RK2's gain ({} and {} with the two seeds)".format(share, *shares),
        f"its perplexity is {low:.2f}, {math.exp(history['residual_2'][0]):.2f} and {high:.2f} at 0.003, 0.006 and "
        "0.012.",
    ):
        assert says in text
    assert f"In small encoders with dropout such a control has {share:.0%} of RK2's gain." in words_of("docs/faq.md")
    assert mean[4, "residual_2"] < min(mean[part, "residual_2"] for part in range(3))
    assert abs(mean[2, "residual_step2_2"] - mean[2, "rk2_step2_2"]) < 0.002
    rates = best_rates(tables, tables.BEST, by_rate=True)
    for rate, position in (("0.003", 0), ("0.006", 0), ("0.012", 2)):  # of Euler twice
        of = {scheme: rates[f"{scheme}, 2 layers"][rate] for scheme in ("RK2", "residual", "Euler twice")}
        assert sorted(of, key=of.get).index("Euler twice") == position
    assert min((name for name in dry if name.endswith("_2")), key=lambda name: mean[2, name]) == "euler2_2"
    assert (
        0 < rates["residual, 2 layers"]["0.012"] - rates["residual, step of 2, 2 layers"]["0.012"] < 0.003
    )  # "hardly"
    assert abs(mean[1, "rk2_2"] - mean[1, "residual_8"]) < 0.01  # "as good as eight residual ones"
    # A history, dropout and half the rate each cost more than any scheme of two layers gains.
    costs = [mean[part, "residual_2"] - mean[part + 1, "residual_2"] for part in range(3)]
    gains = [mean[part, "residual_2"] - each for (part, name), each in mean.items() if name.endswith("_2")]
    assert min(costs) > max(gains)


def test_the_page_says_of_tatoeba_what_the_records_say(tables):
    text, record = words_of("docs/verdict.md"), "tatoeba_en_de_small_fast"
    bleu, chrf = (tables.runs_of(f"{record}_bootstrap")[metric]["residual_3"]["rk2_3"] for metric in ("bleu", "chrf"))
    of_six = tables.runs_of(f"{record}_bootstrap")["bleu"]["residual_6"]["rk2_3"]
    runs = tables.runs_of(record)
    scores = [runs[f"residual_3_{seed}"]["metrics"]["test"]["bleu"] for seed in (1, 2, 3)]
    assert not bleu["differs"] and not chrf["differs"] and max(scores) == scores[2]
    seeds = losses(tables, record)["residual", "3"]
    assert mean_loss(tables, record, "residual_3") - mean_loss(tables, record, "residual_6") < max(seeds) - min(seeds)
    gain, more, of_chrf = (
        "{:.2f} {}({:.2f} to {:.2f}".format(pair["difference"], words, *pair["confidence_interval"])
        for pair, words in (
            (bleu, "BLEU more than three residual layers "),
            (of_six, "more than six "),
            (chrf, ""),
        )
    )
    for says in (
        f"RK2 has {gain}, over three seeds of each and the sentences), and {more}, over the sentences only",
        f"In chrF no lead over three layers is established either ({of_chrf.replace('(', '').replace(' ', ', ', 1)}).",
        f"seeds of three residual layers differ by {max(scores) - min(scores):.2f} BLEU; the third one is the best",
    ):
        assert says in text


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


def imported(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def words_of(page):
    """Without line breaks."""
    return " ".join((EXAMPLES.parent / page).read_text(encoding="utf-8").split())


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
