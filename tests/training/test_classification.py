# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The classification script: from labeled lines to saved models, their accuracy, and what it refuses."""

import csv
import gzip
import json
import random
import shutil
import statistics
from pathlib import Path
from types import SimpleNamespace

import datasets
import pytest
import run_classification
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer, pipeline

from modeling_ode_transformer.training import run as run_loop
from modeling_ode_transformer.training.checkpoints import check_resumable
from modeling_ode_transformer.training.recipe_files import RECIPES
from modeling_ode_transformer.training.tasks import classification, classification_examples

from .runs import SHORT, SIZES, flags, losses


MODEL = {"embedding_size": 8, "hidden_size": 8, "solver": "rk", "step_size": 0.5}
WORDS = "who what where is was the a of ?".split()


def arguments(train, out, **values):
    """Arguments of a short run; None leaves an argument out, a list repeats its values."""
    defaults = SHORT | {"train_file": train, "output_dir": out, "config_overrides": json.dumps(MODEL)}
    defaults |= {"per_device_train_batch_size": 8, "per_device_eval_batch_size": 7}
    defaults |= {"disable_tqdm": True, "do_predict": True}
    return flags(defaults | values)


def write_lines(path, number, seed):
    rng = random.Random(seed)
    lines = [f"{rng.randint(0, 2)} {' '.join(rng.choices(WORDS, k=rng.randint(1, 8)))}\n" for _ in range(number)]
    path.write_bytes(gzip.compress("".join(lines).encode()) if path.suffix == ".gz" else "".join(lines).encode())
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    return write_lines(folder / "train.txt.gz", 60, 0), write_lines(folder / "test.txt", 23, 1)


@pytest.fixture(scope="module")
def run(files, tmp_path_factory):
    """Output folder and results of two seeds."""
    output_dir = tmp_path_factory.mktemp("run") / "output"
    options = {"test_file": files[1], "seeds": [3, 4], "class_names": ["zero", "one", "two"]}
    return output_dir, run_classification.main(arguments(files[0], output_dir, **options))


def test_accuracy_is_that_of_the_saved_models(run, files):
    """One sentence after the other, with no code of the script; several seeds have a mean and a deviation."""
    output_dir, results = run
    accuracies, weights = [], []
    for seed, metrics in zip((3, 4), results["runs"]):
        model = AutoModelForSequenceClassification.from_pretrained(output_dir / f"seed_{seed}").eval()
        weights.append(model.classifier.weight)
        tokenizer = AutoTokenizer.from_pretrained(output_dir / f"seed_{seed}")
        rows = [line.split(" ", 1) for line in files[1].read_text().splitlines()]
        guesses = [model(**tokenizer(text, return_tensors="pt")).logits.argmax().item() for _, text in rows]
        hits = [guess == int(label) for guess, (label, _) in zip(guesses, rows)]
        accuracies.append(100 * sum(hits) / len(hits))
        assert metrics["predict_accuracy"] == pytest.approx(accuracies[-1]) and metrics["seed"] == seed
        assert metrics["predict_samples"] == 23 and metrics["train_samples"] == 60
        assert metrics["predict_function_evaluations"] == model.config.num_function_evaluations == 8
        assert model.config.id2label == {0: "zero", 1: "one", 2: "two"}
    assert not torch.equal(*weights)
    summary = results["summary"]["predict_accuracy"]
    assert summary["mean"] == pytest.approx(statistics.fmean(accuracies))
    assert summary["standard_deviation"] == pytest.approx(statistics.stdev(accuracies))
    assert json.loads((output_dir / "runs.json").read_text()) == results


def test_models_that_are_finished_are_not_trained_again(files, tmp_path, monkeypatch):
    """A call that was stopped in its second model goes on with that one; other arguments are refused."""
    calls, run_model = [], run_loop.run_model

    def stopped(model):
        calls.append(model.args.seed)
        if calls == [1, 2]:
            raise KeyboardInterrupt
        return run_model(model)

    monkeypatch.setattr(run_loop, "run_model", stopped)
    data = shutil.copy(files[0], tmp_path)
    asked = arguments(data, tmp_path / "a", test_file=files[1], seeds=[1, 2, 3])
    with pytest.raises(KeyboardInterrupt):
        run_classification.main(asked)
    results = run_classification.main([*asked, "--resume_from_checkpoint", "true", "--save_total_limit", "2"])
    assert calls == [1, 2, 2, 3]
    uninterrupted = run_classification.main(arguments(*files[:1], tmp_path / "b", test_file=files[1], seeds=[1, 2, 3]))
    for one, other in zip(results["runs"], uninterrupted["runs"], strict=True):
        assert all(one[name] == other[name] for name in ("seed", "predict_accuracy", "train_loss"))
    with pytest.raises(ValueError, match=r"seed_1 was trained or .*: this call has max_steps=5 in place of 4\."):
        run_classification.main([*asked, "--max_steps", "5"])
    run_classification.main([*asked, "--max_steps", "5", "--overwrite_output_dir"])
    assert calls[-3:] == [1, 2, 3]
    write_lines(Path(data), 50, seed=7)
    with pytest.raises(ValueError, match=r"seed_1 was trained or .*: this call has train file 1='train.txt"):
        run_classification.main([*asked, "--max_steps", "5"])
    assert calls[-3:] == [1, 2, 3]


def test_metrics_of_another_test_set_are_not_taken_for_a_seeds(files, tmp_path, monkeypatch):
    """An evaluation in the folder of a model leaves the metrics of its training, and summarizes nothing."""
    options = {"test_file": files[1], "max_steps": 1}
    first = run_classification.main(arguments(files[0], tmp_path, **options, seeds=[1]))
    evaluation = {"model_name_or_path": tmp_path / "seed_1", "config_overrides": None, "do_train": None}
    names = ("predict_samples", "predict_accuracy", "train_loss")
    with pytest.raises(ValueError, match=r"seed_1 was trained or evaluated .*: this call has test file 1='train"):
        run_classification.main(arguments(files[0], tmp_path, **options | {"test_file": files[0]}, seeds=[1]))
    for test_file, samples in ((files[0], 60), (files[1], 23)):
        run_classification.main(arguments(None, tmp_path / "seed_1", **evaluation, test_file=test_file))
        found = json.loads((tmp_path / "seed_1" / "all_results.json").read_text())
        assert (found["predict_samples"], found["train_loss"]) == (samples, first["runs"][0]["train_loss"])
        if samples == 60:
            with pytest.raises(
                ValueError, match=r"seed_1 was trained or evaluated .*: this call has test file 1='test"
            ):
                run_classification.main(arguments(files[0], tmp_path, **options, seeds=[1, 2]))
    assert not (tmp_path / "seed_1" / "runs.json").exists()
    again = run_classification.main(arguments(files[0], tmp_path, **options, seeds=[1, 2]))["runs"]
    assert [again[0][name] for name in names] == [first["runs"][0][name] for name in names]
    monkeypatch.setattr(run_loop, "run_model", None)
    assert run_classification.main(arguments(files[0], tmp_path, **options, seeds=[2]))["runs"] == again[1:]


def test_what_a_model_was_trained_on_is_not_held_out_for_a_test(files, tmp_path):
    """Neither when a finished run is started again with another split, nor in an evaluation in its folder."""
    options = {"test_size": 0.2, "save_strategy": "steps", "save_steps": 4}
    run_classification.main(arguments(files[0], tmp_path, **options))
    with pytest.raises(ValueError, match="belongs to another training: this one has split_seed=7 in place of 42"):
        run_classification.main(arguments(files[0], tmp_path, **options, split_seed=7))
    options |= {"model_name_or_path": tmp_path, "config_overrides": None, "do_train": None}
    run_classification.main(arguments(files[0], tmp_path, **options))
    for other in ({"split_seed": 7}, {"test_size": 0.3}, {"max_train_samples": 50}):
        with pytest.raises(ValueError, match=r"examples that this call holds out: this call has .* in place of "):
            run_classification.main(arguments(files[0], tmp_path, **options | other))


@pytest.mark.parametrize("strategy, update", [("random", 8), ("group_by_length", 9)])
def test_a_classifier_that_is_resumed_goes_on_bitwise(files, tmp_path, strategy, update):
    """From the end of an epoch, whose evaluation is not left out, and in the middle of the next, with dropout."""
    options = {"config_overrides": json.dumps(MODEL | {"dropout": 0.5}), "train_sampling_strategy": strategy}
    options |= {"max_steps": 14, "save_strategy": "steps", "save_steps": update, "eval_strategy": "epoch"}
    options |= {"validation_size": 0.25, "do_predict": None, "do_eval": True}
    options |= {"per_device_train_batch_size": 12 if update == 8 else 8}  # epochs of 4 and of 6 updates
    asked = arguments(files[0], tmp_path, **options)
    run_classification.main(asked)

    def outcome():
        state = json.loads((tmp_path / "trainer_state.json").read_text())
        timed = ("runtime", "per_second", "flos")
        log = [{name: each[name] for name in each if not name.endswith(timed)} for each in state["log_history"]]
        return log, AutoModelForSequenceClassification.from_pretrained(tmp_path).state_dict()

    log, weights = outcome()
    for name in ("trainer_state.json", "model.safetensors", "all_results.json", "runs.json"):
        (tmp_path / name).unlink()
    shutil.rmtree(tmp_path / "checkpoint-14")
    run_classification.main([*asked, "--resume_from_checkpoint", str(tmp_path / f"checkpoint-{update}")])
    resumed_log, resumed_weights = outcome()
    assert resumed_log == log
    assert all(torch.equal(resumed_weights[name], weight) for name, weight in weights.items())


def test_a_classifier_whose_kind_of_problem_its_loss_found_out_is_resumed(files, tmp_path):
    """transformers' loss sets `problem_type` where there is none, so that checkpoints have one."""
    run_classification.main(arguments(files[0], tmp_path, test_file=files[1], save_strategy="steps", save_steps=4))
    config = AutoModelForSequenceClassification.from_pretrained(tmp_path).config
    config.problem_type = None
    check_resumable(tmp_path / "checkpoint-4", config)
    config.problem_type = "regression"
    with pytest.raises(ValueError, match="problem_type 'single_label_classification', not 'regression'"):
        check_resumable(tmp_path / "checkpoint-4", config)


def test_a_finished_model_stays_as_it_is(files, tmp_path):
    """Its updates, metrics and seconds, too; as does one that early stopping has ended, unless it may wait longer."""
    options = {"test_file": files[1], "save_strategy": "steps", "save_steps": 1}
    first = run_classification.main(arguments(files[0], tmp_path / "a", **options))["runs"][0]
    for _ in range(2):
        again = run_classification.main(arguments(files[0], tmp_path / "a", **options))["runs"][0]
        assert again["predict_accuracy"] == first["predict_accuracy"]
        assert again["train_loss"] == pytest.approx(first["train_loss"])
        state = json.loads((tmp_path / "a" / "checkpoint-4" / "progress.json").read_text())
        assert again["train_runtime"] >= state["seconds"] > 0
    assert sorted(path.name for path in (tmp_path / "a").glob("checkpoint-*"))[-1] == "checkpoint-4"

    options |= {"do_eval": True, "validation_file": files[1], "eval_strategy": "steps", "eval_steps": 1}
    options |= {"metric_for_best_model": "accuracy", "load_best_model_at_end": True, "max_steps": 8}
    options |= {"learning_rate": 1e-30}
    for patience, updates in ((1, 2), (1, 2), (3, 4)):
        run_classification.main(arguments(files[0], tmp_path / "b", **options, early_stopping_patience=patience))
        state = json.loads((tmp_path / "b" / "trainer_state.json").read_text())
        assert state["global_step"] == updates


def test_names_of_classes_go_by_the_order_of_numbers():
    """Of which the alphabet has another; it is that of other labels."""
    for labels in ([str(number) for number in range(-1, 12)], ["10", "9", "a", "b"]):
        examples = classification_examples.Examples(labels[::-1], None, labels[::-1])
        assert classification_examples.find_labels({"train": examples, "test": None}) == labels


def test_datasets_need_only_the_splits_that_are_asked_for(tmp_path):
    """As TREC and AG News, which have no validation set."""
    for split, number in (("train", 30), ("test", 10)):
        rows = [{"text": f"{' '.join(WORDS[: i % 5 + 1])}", "label": i % 3} for i in range(number)]
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data" / f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    options = {"dataset_name": tmp_path / "data", "max_steps": 1}
    results = run_classification.main(arguments(None, tmp_path / "out", **options))
    assert results["runs"][0]["predict_samples"] == 10
    with pytest.raises(ValueError, match=r"data has no split 'validation', only train, test"):
        run_classification.main(arguments(None, tmp_path / "other", **options, do_eval=True))
    options |= {"do_eval": True, "validation_size": 0.2}
    held_out = run_classification.main(arguments(None, tmp_path / "held_out", **options))
    assert held_out["runs"][0]["eval_samples"] == 6


def test_evaluation_of_a_saved_model(run, files, tmp_path):
    """With the labels or the names of its classes in the data, and where not all of them are; others are refused."""
    names = ["zero", "one", "two"]
    options = {"model_name_or_path": run[0] / "seed_3", "config_overrides": None, "do_train": None}
    lines = files[1].read_text().splitlines(keepends=True)
    (tmp_path / "two.txt").write_text("".join(line for line in lines if line[0] != "0"))
    (tmp_path / "names.txt").write_text("".join(names[int(line[0])] + line[1:] for line in lines))
    (tmp_path / "other.txt").write_text("".join(f"{int(line[0]) + 1}{line[1:]}" for line in lines))

    def accuracy(out, **values):
        return run_classification.main(arguments(None, tmp_path / out, **options, **values))["runs"][0]

    expected = run[1]["runs"][0]["predict_accuracy"]
    assert accuracy("told", test_file=files[1], class_names=names)["predict_accuracy"] == pytest.approx(expected)
    assert accuracy("saved", test_file=files[1])["predict_accuracy"] == pytest.approx(expected)
    assert accuracy("names", test_file=tmp_path / "names.txt")["predict_accuracy"] == pytest.approx(expected)

    model = AutoModelForSequenceClassification.from_pretrained(run[0] / "seed_3").eval()
    tokenizer = AutoTokenizer.from_pretrained(run[0] / "seed_3")
    two = [line.split(maxsplit=1) for line in (tmp_path / "two.txt").read_text().splitlines()]
    right = [model(**tokenizer(text, return_tensors="pt")).logits.argmax().item() == int(label) for label, text in two]
    for out, values in (("two", {}), ("two_told", {"class_names": names})):
        measured = accuracy(out, test_file=tmp_path / "two.txt", **values)
        assert measured["predict_accuracy"] == pytest.approx(100 * sum(right) / len(right))
    with pytest.raises(ValueError, match=r"--class_names a b c: the classes of .* are zero one two"):
        accuracy("swapped", test_file=files[1], class_names=["a", "b", "c"])
    with pytest.raises(ValueError, match=r"seed_3 does not know the labels 3, only zero, one, two, 0, 1, 2\."):
        accuracy("other", test_file=tmp_path / "other.txt")


def test_labels_are_those_of_the_splits_that_are_used(tmp_path):
    """As in GLUE, whose test sets have no labels."""
    (tmp_path / "data").mkdir()
    for split, labels in (("train", (0, 1)), ("validation", (0, 1, 2)), ("test", (-1,))):
        rows = [{"text": WORDS[i % 5], "label": labels[i % len(labels)]} for i in range(12)]
        (tmp_path / "data" / f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    options = {"dataset_name": tmp_path / "data", "max_steps": 1, "do_predict": None}
    for out, values, expected in (
        ("train", {}, ["0", "1"]),
        ("ignored", {"ignored_labels": ["-1"]}, ["0", "1"]),
        ("validated", {"do_eval": True}, ["0", "1", "2"]),
    ):
        run_classification.main(arguments(None, tmp_path / out, **options, **values))
        config = AutoConfig.from_pretrained(tmp_path / out)
        assert list(config.id2label.values()) == config.dataset_labels == expected


def test_cross_validation_tests_every_example_once(files, tmp_path):
    data = classification_examples.DataArguments(train_file=str(files[0]), cross_validation=7, split_seed=5)
    given = {"train": classification_examples.read_split(data, "train"), "validation": None, "test": None}
    given["train"] = classification_examples.Examples([f"{i}" for i in range(60)], None, given["train"].labels)
    data.validation_size = 0.1
    needed = dict.fromkeys(("train", "validation", "test"), True)
    tested = []
    for fold in range(7):
        splits = classification_examples.make_splits(given, data, needed, fold)
        texts = {split: set(examples.texts) for split, examples in splits.items()}
        assert len(splits["test"].labels) in (8, 9) and len(splits["validation"].labels) == 6
        assert set.union(*texts.values()) == set(given["train"].texts)
        assert sum(map(len, texts.values())) == 60
        tested += splits["test"].texts
        again = classification_examples.make_splits(given, data, needed, fold)
        assert again == splits
    assert sorted(tested) == sorted(given["train"].texts)

    results = run_classification.main(arguments(files[0], tmp_path, cross_validation=3, max_steps=1))
    assert [run["fold"] for run in results["runs"]] == [0, 1, 2]
    mean = statistics.fmean(run["predict_accuracy"] for run in results["runs"])
    assert results["summary"]["predict_accuracy"] == {"mean": pytest.approx(mean), "standard_deviation": None}
    assert (tmp_path / "fold_2" / "model.safetensors").is_file()


def test_held_out_parts_are_disjoint_and_labels_stay_with_their_texts(tmp_path):
    texts = [f"text{i}" for i in range(50)]
    whole = classification_examples.Examples(texts, texts[::-1], [str(i) for i in range(50)])
    data = classification_examples.DataArguments(train_file="x", validation_size=0.1, test_size=0.2)
    needed = dict.fromkeys(("train", "validation", "test"), True)
    splits = classification_examples.make_splits({"train": whole}, data, needed, None)
    assert [len(splits[split].labels) for split in ("train", "validation", "test")] == [35, 5, 10]
    assert sorted(text for each in splits.values() for text in each.texts) == sorted(texts)
    for each in splits.values():
        for text, pair, label in zip(*each):
            assert text == f"text{label}" and pair == f"text{49 - int(label)}"
    data.split_seed = 1
    assert classification_examples.make_splits({"train": whole}, data, needed, None)["test"] != splits["test"]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_pairs(tmp_path, suffix):
    """Premises and hypotheses of a table; examples without an agreed label are left out."""
    rng = random.Random(0)
    rows = [
        {
            "premise": " ".join(rng.choices(WORDS, k=4)),
            "hypothesis": " ".join(rng.choices(WORDS, k=2)),
            "gold_label": rng.choice(["entailment", "neutral", "-"]),
        }
        for _ in range(40)
    ]
    path = tmp_path / f"pairs{suffix}"
    with path.open("w", newline="") as file:
        if suffix == ".csv":
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        else:
            file.writelines(f"{json.dumps(row)}\n" for row in rows)
    options = {"text_column": "premise", "text_pair_column": "hypothesis", "label_column": "gold_label"}
    options["ignored_labels"] = ["-", "-1"]
    results = run_classification.main(arguments(path, tmp_path / "out", test_size=0.25, **options))
    kept = sum(row["gold_label"] != "-" for row in rows)
    assert results["runs"][0]["predict_samples"] == round(0.25 * kept)
    assert results["runs"][0]["predict_function_evaluations"] == 16
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    assert model.config.num_sentences == 2 and model.config.id2label == {0: "entailment", 1: "neutral"}
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    encoded = tokenizer("who is", "the ?")
    assert encoded["token_type_ids"] == [0, 0, 1, 1]
    classify = pipeline("text-classification", model=str(tmp_path / "out"))
    assert classify({"text": "who is", "text_pair": "the ?"})["label"] in ("entailment", "neutral")


def test_the_learning_rate_rises_linearly_and_falls_exponentially(files, tmp_path):
    options = {"max_steps": 10, "warmup_steps": 4, "learning_rate": 0.01, "learning_rate_ratio": 0.01}
    run_classification.main(arguments(files[0], tmp_path, do_predict=None, **options))
    history = json.loads((tmp_path / "trainer_state.json").read_text())["log_history"]
    rates = [entry["learning_rate"] for entry in history if "learning_rate" in entry]
    # Of the first update the rate is 0; what is logged is that of each update.
    expected = [0.01 * step / 4 for step in range(4)] + [0.01 * 0.01 ** (step / 6) for step in range(6)]
    assert rates == pytest.approx(expected)


def test_the_optimizer_is_adam_with_l2_regularization(tmp_path):
    """Not AdamW, which is Trainer's own: the decay joins the gradient, but for biases."""
    model = torch.nn.Linear(3, 2)
    model.config = SimpleNamespace(keys_to_ignore_at_inference=None)
    values = {"weight_decay": 0.5, "learning_rate": 0.1, "adam_beta1": 0.7, "adam_beta2": 0.8, "adam_epsilon": 0.3}
    args = classification.ClassificationTrainingArguments(str(tmp_path), use_cpu=True, report_to="none", **values)
    data = datasets.Dataset.from_dict({"x": [1]})
    trainer = classification.ClassificationTrainer(args=args, model=model, train_dataset=data)
    optimizer = trainer.create_optimizer()
    assert type(optimizer) is torch.optim.Adam and not optimizer.defaults["decoupled_weight_decay"]
    decays = [(group["params"], group["weight_decay"]) for group in optimizer.param_groups]
    assert decays == [([model.weight], 0.5), ([model.bias], 0.0)]
    for group in optimizer.param_groups:
        assert (group["lr"], group["betas"], group["eps"]) == (0.1, (0.7, 0.8), 0.3)


def test_vocabulary():
    examples = classification_examples.Examples(["b a B", "c a <pad>"], None, ["0", "1"])
    build, args = classification.build_tokenizer, classification.ModelArguments
    assert build(examples, args()).get_vocab() == {"<pad>": 0, "<unk>": 1, "a": 2, "B": 3, "b": 4, "c": 5}
    frequent = build(examples, args(lowercase=True, min_frequency=2)).get_vocab()
    assert frequent == {"<pad>": 0, "<unk>": 1, "a": 2, "b": 3}
    tokenizer = build(examples, args(lowercase=True))
    assert tokenizer("A zebra B").input_ids == [2, 1, 3]


def test_pre_trained_vectors_start_the_embeddings(files, tmp_path, caplog):
    (tmp_path / "vectors.txt").write_text(f"who {' '.join(['0.5'] * 8)}\nzebra {' '.join(['1'] * 8)}\n")
    options = {"word_vectors": tmp_path / "vectors.txt", "learning_rate": 1e-30, "do_predict": None, "max_steps": 1}
    run_classification.main(arguments(files[0], tmp_path / "out", **options))
    embeddings = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").get_input_embeddings().weight
    row = AutoTokenizer.from_pretrained(tmp_path / "out").get_vocab()["who"]
    torch.testing.assert_close(embeddings[row], torch.full((8,), 0.5))
    assert "vectors.txt has no vector for 9 of 11 words" in caplog.text


def test_the_recipe_learns(corpus, tmp_path):
    """Whether a number's name is long, with small sizes; its solver is the recipe's."""
    options = {"config_overrides": "embedding_size=16,hidden_size=16", "max_steps": 40, "learning_rate": 0.01}
    options |= {"warmup_steps": 4, "per_device_train_batch_size": 32, "logging_steps": 4, "save_strategy": "no"}
    options |= {"output_dir": tmp_path / "out", "use_cpu": True, "class_names": ["short", "long"]}
    for split in SIZES:
        names = (corpus / f"{split}.en").read_text().splitlines()
        lines = [f"{int(len(name.split()) > 6)} {name}\n" for name in names]
        (tmp_path / f"{split}.txt").write_text("".join(lines))
        options[f"{split}_file"] = tmp_path / f"{split}.txt"
    results = run_classification.main([str(RECIPES / "trec.json"), *flags(options)])
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    assert (model.config.solver, model.config.hidden_size) == ("ark", 16)
    found = list(losses(tmp_path / "out").values())
    assert found[-1] < 0.8 * found[0] and results["runs"][0]["predict_samples"] == SIZES["test"]


def test_recipe_holds_the_numbers_of_the_paper(tmp_path):
    """Those that it gives: rates within its range, 48 batches and 10 epochs of TREC, L2, steps, dropout."""
    recipe = str(RECIPES / "trec.json")
    model_args, _, args = run_loop.parse_arguments(classification.CLASSIFICATION, [recipe])
    assert 1e-4 <= args.learning_rate <= 3e-3 and -(-5452 // args.per_device_train_batch_size) == 48
    assert (args.weight_decay, args.num_train_epochs) == (1e-5, 10)
    assert model_args.config_overrides == {"solver": "ark", "step_size": 0.2, "dropout": 0.1}
