# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Whatever a script is given that it cannot work with: one line that names it, before anything is written."""

import re

import pytest

from modeling_ode_transformer.errors import one_line_errors
from modeling_ode_transformer.training.run import run, run_process
from modeling_ode_transformer.training.tasks.classification import CLASSIFICATION
from modeling_ode_transformer.training.tasks.language_model import LANGUAGE_MODEL
from modeling_ode_transformer.training.tasks.translation import TRANSLATION

from .runs import SIZES, arguments, flags


# By name; values in braces, in the tables below, are their paths.
FILES = {
    "bad.jsonl": "{\n",
    "blank.txt": " \n\n",
    "columns.csv": "text,class\na,1\n",
    "deep.jsonl": '{"en": "one", "de": "eins"}\n' + "[" * 100_000 + "]" * 100_000,
    "cut.parquet": "PAR1",
    "digits.jsonl": f'{{"en": "one", "de": "eins", "id": {"1" * 5000}}}\n',
    "empty.tsv": "",
    "file": "",
    "french.jsonl": '{"en": "one", "fr": "un"}\n',
    "list.json": "[1]",
    "list.jsonl": '[["one", "eins"]]\n',
    "long.txt": "a b c\n" * 300,
    "no_text.txt": "1 a b\n0\n",
    "one.txt": "1 two\n1 three\n",
    "open.csv": 'text,label\n"who is it,1\nwhat,0\n',
    "plain.en.gz": "five\n",
    "recipe.json": '{"learning_rat": 0.1}',
    "reserved.txt": "a b\nc </s> d\n",
    "short.de": "eins\n",
    "tab.tsv": "one\teins\ntwo\tzwei\tdrei\n",
    "table.csv": "one,eins\n",
    "table.tsv": "who is it ?\t1\n",
    "three.txt": "0 one\n1 two\n0 three\n",
}
# Pairs in one file.
TABLE = dict.fromkeys(["train_source_file", "train_target_file"])
RECORDS = TABLE | {"source_lang": "en", "target_lang": "de"}
SAVING = {"average_last_checkpoints": 2, "save_strategy": "steps", "save_steps": 2}
LEARNED = {"config_overrides": "position_embedding_type=learned"}

TRANSLATIONS = [
    ({"gradient_accumulation_steps": 0}, "--gradient_accumulation_steps 0 must be at least 1"),
    ({"pad_to_multiple_of": 0}, "--pad_to_multiple_of 0 must be at least 1"),
    ({"max_train_samples": -1}, "--max_train_samples -1 must be at least 1, or left out"),
    ({"max_steps": None, "num_train_epochs": 0}, r"--num_train_epochs 0.0 must be above 0"),
    ({"eval_steps": 0}, "--eval_steps 0.0 must be above 0"),
    ({"label_smoothing_factor": -1}, "--label_smoothing_factor -1.0 must be at least 0"),
    ({"label_smoothing_factor": 1}, "--label_smoothing_factor 1.0 must be less than 1"),
    ({"label_smoothing_factor": "nan"}, "--label_smoothing_factor nan must be at least 0"),
    ({"max_tokens_per_batch": 200}, "_per_batch 200 .* leave out --train_sampling_strategy group_by_length"),
    ({"train_source_file": "none.en"}, r"No file none\.en"),
    ({"train_target_file": "{short.de}"}, r"train\.en has 60 lines, but .*short\.de has 1"),
    ({"train_target_file": None}, "--train_source_file and --train_target_file go together"),
    ({"train_file": "{empty.tsv}"}, "not both"),
    (TABLE, "No train data: give --train_file"),
    (TABLE | {"train_file": "{empty.tsv}"}, r"empty\.tsv holds no pair .*0 lines read"),
    (TABLE | {"train_file": "{table.csv}"}, r"table\.csv: pairs in one file must be \.tsv"),
    (
        TABLE | {"train_file": "{tab.tsv}"},
        r"tab\.tsv, line 2: 3 columns, expected source<TAB>target.* in \.jsonl, or in one file per side \(--train_so",
    ),
    (RECORDS | {"train_file": "{bad.jsonl}"}, r"bad\.jsonl, line 1, is not JSON"),
    (RECORDS | {"train_file": "none.parquet"}, r"none\.parquet"),
    (RECORDS | {"train_file": "{cut.parquet}"}, r"cut\.parquet is not a complete parquet file"),
    (RECORDS | {"train_file": "{deep.jsonl}"}, r"deep\.jsonl, line 2, is not JSON \(maximum recursion depth"),
    (RECORDS | {"train_file": "{digits.jsonl}"}, r"digits\.jsonl, line 1, is not JSON \(Exceeds the limit \(4300 dig"),
    (RECORDS | {"train_file": "{list.jsonl}"}, r"list\.jsonl, line 1 is not an object with en and de"),
    (
        RECORDS | {"train_file": "{french.jsonl}"},
        r"french\.jsonl, line 1: no text under en and de \(--source_lang and --target_lang\); its keys are en, fr",
    ),
    ({"train_source_file": "{latin1.en}"}, r"latin1\.en is not UTF-8"),
    ({"train_source_file": "{plain.en.gz}"}, r"plain\.en\.gz is not a complete gzip file"),
    ({"config_overrides": "d_modl=4"}, "have no d_modl. Known fields: .*d_model"),
    ({"config_overrides": "d_model"}, "write name=value"),
    ({"config_overrides": "d_model=31"}, "error: d_model=31 is not a multiple of encoder_attention_heads"),
    ({"config_overrides": "d_model=wide"}, "d_model"),
    ({"config_overrides": "encoder_solver=none.json"}, "--config_overrides encoder_solver=none.json: no such file"),
    ({"model_name_or_path": "somewhere"}, "brings its own configuration"),
    (
        {"metric_for_best_model": "eval_bleu", "predict_with_generate": None},
        "--metric_for_best_model bleu is measured on outputs: give --predict_with_generate",
    ),
    (LEARNED | {"max_source_length": 2000}, "--max_source_length 2000 exceeds .*max_position_embeddings, 1024"),
    ({"do_train": None}, "Nothing to do"),
    ({"output_dir": "{folder}"}, "is not empty and holds no checkpoint"),
    ({"bleu_moses_language": "xx"}, "Moses' tokenizer does not know the language 'xx', only .*de"),
    ({"average_last_checkpoints": -1}, "--average_last_checkpoints -1 must be at least 0"),
    ({"average_last_checkpoints": 2}, "--average_last_checkpoints 2 needs checkpoints"),
    (SAVING | {"save_total_limit": 1}, "2 needs --save_total_limit 2 or more, not 1"),
    ({"resume_from_checkpoint": "true"}, "no checkpoint in"),
    ({"resume_from_checkpoint": "true", "overwrite_output_dir": True}, "_output_dir would delete"),
    ({"normalization": "nfkd"}, "Unknown normalization 'nfkd': give nfc, nfkc or moses_LANGUAGE"),
    ({"normalization": "nfc", "tokenizer_name": "{file}"}, "--normalization nfc is of a new tokenizer, but one is"),
]
LANGUAGE_MODELS = [
    ({"train_file": None}, "No train data: give --train_file or --dataset_name"),
    ({"train_file": "{blank.txt}"}, r"blank\.txt holds no text \(2 lines"),
    ({"train_file": "{reserved.txt}"}, "train, line 2: '</s>' is a special token"),
    ({"vocab_size": 4}, "--vocab_size 4 leaves no room"),
    (LEARNED | {"block_size": 1025}, "example has 1025 tokens, but the model's .*is 1024: give"),
    ({"metric_for_best_model": "perplexity", "greater_is_better": True}, "leave out --greater_is_better True"),
    ({"tokenizer_model_type": "bpe"}, r"Vocabulary size too high \(8000\)\. Please set it"),
    ({"model_name_or_path": "somewhere", "wrap": "solver=rk2"}, "--wrap solver=rk2 is for new models: leave it out"),
    ({"wrap": "solvr=rk2", "config_name": "llama"}, "--wrap solvr=rk2: .*solvr"),
]
CLASSIFICATIONS = [
    ({"max_length": -1}, "--max_length -1 must be at least 1"),
    ({"cross_validation": 10, "do_predict": True}, "--cross_validation 10 needs at least as many examples, but .* 3"),
    ({"cross_validation": 3, "test_size": 0.1, "do_predict": True}, "but neither --test_file nor --test_size"),
    ({"test_size": 0.6, "validation_size": 0.5}, "--validation_size 0.5 and --test_size 0.6 leave nothing"),
    ({"test_size": 1.0}, r"--test_size 1\.0 must be less than 1"),
    ({"do_predict": True}, "No test examples: give --test_file or --dataset_name, or --test_size"),
    ({"seeds": [1, 1]}, "--seeds 1 1 repeats a seed"),
    ({"class_names": ["a"]}, "--class_names gives 1 names, but there are 2 labels"),
    ({"train_file": "{one.txt}"}, "All examples have the label 1: there is nothing to tell apart"),
    ({"train_file": "{no_text.txt}"}, r"no_text\.txt, record 2 has no text or no label"),
    ({"train_file": "{columns.csv}"}, r"columns\.csv, record 1 lacks one of text, label"),
    ({"train_file": "{open.csv}"}, r"open\.csv: unexpected end of data. Quotes are closed"),
    ({"train_file": "{table.tsv}"}, r"table\.tsv: examples are in a \.txt .*, not '\.tsv'"),
    ({"text_pair_column": "b"}, r"has no columns: --text_pair_column b needs a \.csv or \.jsonl"),
    ({"optim": "sgd"}, "--optim sgd: classifiers are trained by Adam"),
    ({"lr_scheduler_type": "constant"}, "--lr_scheduler_type constant: .* leave it out"),
]
CASES = [(TRANSLATION, *case) for case in TRANSLATIONS]
CASES += [(LANGUAGE_MODEL, {"train_file": "{long.txt}"} | values, message) for values, message in LANGUAGE_MODELS]
CASES += [(CLASSIFICATION, {"train_file": "{three.txt}"} | values, message) for values, message in CLASSIFICATIONS]


@pytest.fixture
def files(tmp_path):
    folder = tmp_path / "files"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    (folder / "latin1.en").write_bytes("fünf\n".encode("latin-1") * SIZES["train"])
    return {f"{{{path.name}}}": str(path) for path in folder.iterdir()} | {"{folder}": str(folder)}


def refusal(task, argv, capsys) -> str:
    """What the script says last; there is no traceback."""
    with pytest.raises(SystemExit) as exit:
        run_process(lambda: run(task, argv))
    error = capsys.readouterr().err
    assert exit.value.code == 2 and "Traceback" not in error
    return error.splitlines()[-1]


@pytest.mark.parametrize("task, values, message", CASES, ids=lambda value: str(value)[:40])
def test_a_script_refuses(task, values, message, corpus, files, tmp_path, capsys):
    values = {name: files.get(str(value), value) for name, value in values.items()}
    if task is TRANSLATION:
        argv = arguments(corpus, tmp_path / "out", **values)
    else:
        argv = flags({"output_dir": tmp_path / "out", "do_train": True, "preset": "none", "use_cpu": True} | values)
    line = refusal(task, argv, capsys)
    assert line.startswith("error: ") and re.search(message, line)
    assert not (tmp_path / "out").exists()


def test_recipes_that_are_none_are_named(files, tmp_path, capsys):
    for name, message in (("list.json", "a list, not a JSON object"), ("recipe.json", "arguments: learning_rat ")):
        line = refusal(TRANSLATION, [files[f"{{{name}}}"], "--output_dir", str(tmp_path / "out")], capsys)
        assert f"{name} holds" in line and message in line


def test_an_error_in_between_is_not_hidden():
    with pytest.raises(RuntimeError, match="a defect"), one_line_errors():
        raise RuntimeError("a defect")
