# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Arguments of runs: recipes, overrides, and what is refused."""

import json
from types import SimpleNamespace

import pytest

from modeling_ode_transformer.inference.generate import GenerateArguments
from modeling_ode_transformer.options import declarations
from modeling_ode_transformer.text_files import parse_overrides
from modeling_ode_transformer.training.models import word_level_tokenizer
from modeling_ode_transformer.training.recipe_files import RECIPES
from modeling_ode_transformer.training.run import parse_arguments
from modeling_ode_transformer.training.tasks import translation
from modeling_ode_transformer.training.tasks.seq2seq_arguments import Seq2SeqModelArguments, check_average


NAMES = [f"{split}_{side}_file" for split in ("train", "validation", "test") for side in ("source", "target")]


@pytest.mark.parametrize(
    ("asked", "changed"),
    [
        ([], {}),
        (["--test_target_file", "x.de"], {"test_target_file": ["x.de"]}),
        (["--train_file", "x.tsv"], {"train_file": ["x.tsv"], "train_source_file": None, "train_target_file": None}),
        (["--dataset_name", "a/b"], {"dataset_name": "a/b"} | dict.fromkeys(NAMES)),
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
    assert parse_overrides('stop_strings="End",name=AbC,x=NaN') == {"stop_strings": "End", "name": "AbC", "x": "NaN"}


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
