# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Arguments of runs: recipes, overrides, and what is refused."""

import gzip
import json
from types import SimpleNamespace

import pytest
import run_translation

from modeling_ode_transformer.inference.generate import GenerateArguments
from modeling_ode_transformer.options import declarations
from modeling_ode_transformer.text_files import parse_overrides
from modeling_ode_transformer.training.models import word_level_tokenizer
from modeling_ode_transformer.training.recipe_files import RECIPES
from modeling_ode_transformer.training.run import parse_arguments
from modeling_ode_transformer.training.tasks import translation
from modeling_ode_transformer.training.tasks.seq2seq_arguments import Seq2SeqModelArguments, check_average

from .runs import MODEL, SIZES, arguments


BAD_FILES = {
    "short.de": "eins\n",
    "empty.tsv": "",
    "blank.tsv": " \t \n",
    "columns.tsv": "one\teins\ntwo\n",
    "tab.tsv": "one\teins\ntwo\tzwei\tdrei\n",
    "broken.jsonl": '{"en": "one", "de": "eins"}\n{"en": \n',
    "list.jsonl": '[["one", "eins"]]\n',
    "french.jsonl": '{"en": "one", "fr": "un"}\n',
    "table.csv": "one,eins\n",
    "recipe.json": '{"learning_rat": 0.1}',
}

FILES = {"train_source_file": None, "train_target_file": None}

LANGUAGES = {"source_lang": "en", "target_lang": "de"}

SAVING = {"average_last_checkpoints": 2, "save_strategy": "steps", "save_steps": 2}


def test_recipe_gives_defaults_to_the_command_line(corpus, tmp_path):
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps({"learning_rate": 0.5, "config_overrides": MODEL, "num_beams": 2, "do_train": True}))
    argv = [str(recipe), "--output_dir", str(tmp_path), "--num_beams", "5"]
    model_args, data_args, args = parse_arguments(translation.TRANSLATION, argv)
    assert (args.learning_rate, data_args.num_beams, args.do_train) == (0.5, 5, True)
    assert parse_overrides(model_args.config_overrides) == MODEL


@pytest.mark.parametrize(
    ("asked", "changed"),
    [
        ([], {}),
        (
            ["--test_source_file", "x.en", "--test_target_file", "x.de"],
            {"test_source_file": ["x.en"], "test_target_file": ["x.de"]},
        ),
        (["--test_target_file", "x.de"], {"test_target_file": ["x.de"]}),
        (["--train_file", "x.tsv"], {"train_file": ["x.tsv"], "train_source_file": None, "train_target_file": None}),
        (
            ["--dataset_name", "a/b"],
            {"dataset_name": "a/b"}
            | {
                f"{split}_{side}_file": None
                for split in ("train", "validation", "test")
                for side in ("source", "target")
            },
        ),
    ],
)
def test_data_of_the_command_line_take_the_place_of_a_recipes(asked, changed):
    """A dataset that of all files, a table that of the two files of its split."""
    recipe = RECIPES / "multi30k_en_de.json"
    _, data_args, _ = parse_arguments(translation.TRANSLATION, [str(recipe), *asked])
    noted = json.loads(recipe.read_text())
    names = [name for name, each in declarations(translation.DataArguments).items() if each.get("affects") == "files"]
    assert {name: getattr(data_args, name) for name in names} == {name: noted.get(name) for name in names} | changed


def test_another_dataset_is_not_read_in_the_recipes_configuration(tmp_path):
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps({"dataset_name": "wmt/wmt14", "dataset_config_name": "de-en"}))
    for asked, expected in (
        ([], ("wmt/wmt14", "de-en")),
        (["--dataset_name", "a/b"], ("a/b", None)),
        (["--dataset_name", "wmt/wmt14"], ("wmt/wmt14", "de-en")),
        (["--dataset_config_name", "fr-en"], ("wmt/wmt14", "fr-en")),
    ):
        _, data_args, _ = parse_arguments(translation.TRANSLATION, [str(recipe), *asked])
        assert (data_args.dataset_name, data_args.dataset_config_name) == expected


@pytest.mark.parametrize(
    "values, error, message",
    [
        ({"train_source_file": "{bad}/none.en"}, FileNotFoundError, r"No file .*none\.en"),
        ({"train_target_file": "{bad}/short.de"}, ValueError, r"train\.en has 60 lines, but .*short\.de has 1"),
        ({"train_target_file": None}, ValueError, "--train_source_file and --train_target_file go together"),
        ({"train_file": "{bad}/empty.tsv"}, ValueError, "not both"),
        (FILES, ValueError, "No train data: give --train_file"),
        (FILES | {"train_file": "{bad}/empty.tsv"}, ValueError, r"empty\.tsv holds no pair .*0 lines read"),
        (
            FILES | {"train_file": "{bad}/columns.tsv"},
            ValueError,
            r"columns\.tsv, line 2: 1 columns, expected source<TAB>target",
        ),
        (
            FILES | {"train_file": "{bad}/tab.tsv"},
            ValueError,
            r"tab\.tsv, line 2: 3 columns, .* are given in \.jsonl, or in one file per side \(--train_source",
        ),
        (FILES | LANGUAGES | {"train_file": "{bad}/broken.jsonl"}, ValueError, r"broken\.jsonl, line 2, is not JSON"),
        (
            FILES | LANGUAGES | {"train_file": "{bad}/french.jsonl"},
            ValueError,
            r"french\.jsonl, line 1: no text under en and de \(--source_lang and --target_lang\); its keys are en, fr",
        ),
        ({"train_source_file": "{bad}/latin1.en"}, ValueError, r"latin1\.en is not UTF-8"),
        ({"train_source_file": "{bad}/plain.en.gz"}, ValueError, r"plain\.en\.gz is not a complete gzip file"),
        ({"config_overrides": "d_modl=4"}, ValueError, "have no d_modl. Known fields: .*d_model"),
        ({"config_overrides": "d_model"}, ValueError, "write name=value"),
        ({"max_train_samples": -1}, ValueError, "--max_train_samples -1 must be at least 1, or left out"),
        (
            {"metric_for_best_model": "eval_bleu", "predict_with_generate": None},
            ValueError,
            "--metric_for_best_model bleu is measured on outputs: give --predict_with_generate",
        ),
        ({"model_name_or_path": "somewhere"}, ValueError, "brings its own configuration"),
        (
            {"max_source_length": 2000, "config_overrides": "position_embedding_type=learned"},
            ValueError,
            "--max_source_length 2000 exceeds .*max_position_embeddings, 1024",
        ),
        ({"num_beams": 0}, ValueError, "--num_beams 0 must be at least 1"),
        ({"do_train": None}, ValueError, "Nothing to do"),
        ({"output_dir": "{bad}"}, ValueError, "is not empty and holds no checkpoint"),
        ({"bleu_moses_language": "xx"}, ValueError, "Moses' tokenizer does not know the language 'xx', only .*de"),
        ({"average_last_checkpoints": 2}, ValueError, "--average_last_checkpoints 2 needs checkpoints"),
        (SAVING | {"save_total_limit": 1}, ValueError, "2 needs --save_total_limit 2 or more, not 1"),
        ({"resume_from_checkpoint": "true"}, FileNotFoundError, "no checkpoint in"),
        ({"resume_from_checkpoint": "true", "overwrite_output_dir": True}, ValueError, "_output_dir would delete"),
    ],
)
def test_errors_name_the_value_and_the_fix(values, error, message, corpus, tmp_path):
    bad = tmp_path / "bad"
    bad.mkdir()
    for name, text in BAD_FILES.items():
        (bad / name).write_text(text)
    (bad / "latin1.en").write_bytes("fünf\n".encode("latin-1") * SIZES["train"])
    (bad / "plain.en.gz").write_text("five\n")
    (bad / "cut.en.gz").write_bytes(gzip.compress(b"five\n" * 100)[:-12])
    values = {name: value.format(bad=bad) if isinstance(value, str) else value for name, value in values.items()}
    with pytest.raises(error, match=message):
        run_translation.main(arguments(corpus, tmp_path / "out", **values))
    with pytest.raises(ValueError, match="unknown arguments: learning_rat"):
        run_translation.main([str(bad / "recipe.json")])


@pytest.mark.parametrize("values", [{"trust_remote_code": True}, {"import_schemes": ["scheme.py"]}])
def test_a_recipe_does_not_run_code(values, tmp_path):
    """It may come from elsewhere; the command line does not."""
    (tmp_path / "scheme.py").write_text("raise SystemExit('it ran')")
    (tmp_path / "recipe.json").write_text(json.dumps(values))
    for argv in ([str(tmp_path / "recipe.json")], ["--recipe", str(tmp_path / "recipe.json")]):
        with pytest.raises(
            ValueError, match=f"recipe.json gives {next(iter(values))}, which runs code: .* only on the"
        ):
            parse_arguments(translation.TRANSLATION, argv)
    (tmp_path / "recipe.json").write_text('{"trust_remote_code": false}')
    parse_arguments(translation.TRANSLATION, argv)


def test_overrides():
    expected = {"d_model": 256, "dropout": 0.2, "tie_word_embeddings": False, "layer_history": "none"}
    text = "d_model=256,dropout=0.2,tie_word_embeddings=False,layer_history=none"
    assert parse_overrides(text) == expected
    assert parse_overrides(json.dumps(expected)) == expected
    assert parse_overrides(None) == {}
    assert parse_overrides("recurrence_steps=None") == {"recurrence_steps": None}
    assert parse_overrides('stop_strings="End",name=AbC,x=NaN') == {
        "stop_strings": "End",
        "name": "AbC",
        "x": "NaN",
    }


def test_a_revision_of_a_checkpoint_is_opened():
    """To train and to generate; `from_pretrained` gets these."""
    for made in (
        Seq2SeqModelArguments(model_revision="v1", trust_remote_code=True),
        GenerateArguments(model_name_or_path=["me/model"], model_revision="v1", trust_remote_code=True),
    ):
        assert made.hub_options == {"revision": "v1", "trust_remote_code": True}


def test_words_are_counted_in_the_case_that_they_are_encoded_in():
    """Unicode has several lower cases of a sigma, and `str.lower` chooses by its place."""
    tokenizer = word_level_tokenizer(["ΟΔΟΣ Straße"], {"unk_token": "<unk>"}, lowercase=True)
    assert 0 not in tokenizer.encode("ΟΔΟΣ Straße").ids


def test_checkpoints_of_deepspeed_are_not_averaged():
    """Its arguments cannot be made without it."""
    args = SimpleNamespace(do_train=True, deepspeed="zero3.json", weight_ema=0.0)
    with pytest.raises(
        ValueError, match="--average_last_checkpoints 2 cannot average the shards of DeepSpeed's checkpoints"
    ):
        check_average(SimpleNamespace(average_last_checkpoints=2), args)
