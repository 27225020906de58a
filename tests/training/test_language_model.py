# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The language modeling script: from lines of words to a saved model, its perplexity, and what it refuses."""

import json
import math
import random
import shutil

import datasets
import pytest
import run_language_modeling
import torch
from tokenizers.pre_tokenizers import Sequence, Split, WhitespaceSplit
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

from modeling_ode_transformer import cli
from modeling_ode_transformer.text_files import parse_overrides
from modeling_ode_transformer.training import data
from modeling_ode_transformer.training.preparation import open_rows
from modeling_ode_transformer.training.run import parse_arguments
from modeling_ode_transformer.training.tasks import language_model

from ..processes import run_python
from .runs import SHORT, flags, losses


MODEL = {"d_model": 32, "decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 32}
MODEL |= {"decoder_solver": "rk2", "decoder_coefficients": "gate", "layer_history": "none"}
WORDS = "the a company bank market said fell rose quickly N shares of <unk> to in".split()
SIZES = {"train": 80, "validation": 21, "test": 17}
EOS, UNK = 2, 3


def arguments(corpus, out, **values):
    """Arguments of a short run on the files of a corpus folder; None leaves an argument out."""
    defaults = SHORT | {"output_dir": out, "config_overrides": json.dumps(MODEL), "block_size": 16}
    defaults |= {"per_device_train_batch_size": 8, "per_device_eval_batch_size": 3, "learning_rate": 0.01}
    defaults |= {"disable_tqdm": True}
    defaults |= {f"{split}_file": corpus / f"{split}.txt" for split in SIZES}
    return flags(defaults | values)


def log_history(output_dir):
    return json.loads((output_dir / "trainer_state.json").read_text())["log_history"]


def nll_of_words(model, examples):
    """Negative log-likelihoods, one forward for each example of ids whose first is context only."""
    losses = []
    for ids in examples:
        with torch.no_grad():
            log_probs = model(torch.tensor([ids[:-1]])).logits[0].log_softmax(-1)
        losses += [-log_probs[i, word].item() for i, word in enumerate(ids[1:])]
    return losses


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Random sentences; those for validation and test hold words that training does not."""
    folder = tmp_path_factory.mktemp("corpus")
    rng = random.Random(0)
    for split, size in SIZES.items():
        words = WORDS if split == "train" else [*WORDS, "novel", "unheard"]
        sentences = [" ".join(rng.choices(words, k=rng.randint(1, 12))) for _ in range(size)]
        (folder / f"{split}.txt").write_text("".join(f" {sentence} \n" for sentence in sentences))
    return folder


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory):
    """Output folder and metrics of a run that trains, evaluates and tests, in bfloat16 autocast."""
    output_dir = tmp_path_factory.mktemp("run") / "output"
    options = {"do_eval": True, "do_predict": True, "max_steps": 12, "bf16": True, "label_smoothing_factor": 0.1}
    metrics = run_language_modeling.main(arguments(corpus, output_dir, **options))
    return output_dir, metrics


@pytest.fixture(scope="module")
def saved(run):
    """The tokenizer's vocabulary and the model of that run."""
    return AutoTokenizer.from_pretrained(run[0]).get_vocab(), AutoModelForCausalLM.from_pretrained(run[0]).eval()


def ids_of(words, vocab):
    return [vocab.get(word, UNK) for word in words]


def test_perplexity_in_blocks_equals_a_plain_loop(run, saved, corpus):
    """Each word is predicted once, from those of its block before it and the last one before these, in float32."""
    vocab, model = saved
    for split, prefix in (("validation", "eval"), ("test", "predict")):
        lines = (corpus / f"{split}.txt").read_text().splitlines()
        words = [word for line in lines for word in (*line.split(), "</s>")]
        ids = [EOS, *ids_of(words, vocab)]
        losses = nll_of_words(model, [ids[start : start + 17] for start in range(0, len(ids) - 1, 16)])
        mean = sum(losses) / len(losses)
        assert run[1][f"{prefix}_words"] == len(losses) == len(words)
        assert run[1][f"{prefix}_samples"] == math.ceil(len(words) / 16)
        unknown = sum(word in ("<unk>", "novel", "unheard") for word in words)
        assert run[1][f"{prefix}_unk_words"] == unknown > 0
        assert run[1][f"{prefix}_nll_loss"] == pytest.approx(mean, rel=1e-6)
        assert run[1][f"{prefix}_perplexity"] == pytest.approx(math.exp(mean), rel=1e-6)
        assert run[1][f"{prefix}_loss"] > mean


@pytest.mark.parametrize("batch_size", [1, 4, 30])
def test_perplexity_of_lines_equals_a_plain_loop(run, saved, corpus, tmp_path, batch_size, caplog):
    """A warning has the number of words that training does not."""
    vocab, model = saved
    options = {"model_name_or_path": run[0], "config_overrides": None, "do_train": None, "do_eval": True}
    options |= {"block_size": 0, "per_device_eval_batch_size": batch_size}
    metrics = run_language_modeling.main(arguments(corpus, tmp_path, **options))
    lines = [line.split() for line in (corpus / "validation.txt").read_text().splitlines()]
    losses = nll_of_words(model, [ids_of(["</s>", *words, "</s>"], vocab) for words in lines])
    assert metrics["eval_perplexity"] == pytest.approx(math.exp(sum(losses) / len(losses)), rel=1e-6)
    assert metrics["eval_samples"] == SIZES["validation"]
    unknown = sum(word in ("novel", "unheard") for words in lines for word in words)
    assert f"validation: {unknown} words are not in the vocabulary" in caplog.text


def test_examples_hold_every_word_once(tmp_path):
    tokenizer = language_model.build_tokenizer(["a b c d e"])
    lines, stream = ["a b c", "", "d e"], [4, 5, 6, 2, 2, 7, 8, 2]
    for block_size in (0, 1, 3, 4, 7, 8, 100):
        folder = tmp_path / str(block_size)
        folder.mkdir()
        language_model.write_blocks(iter(lines), "text", tokenizer, block_size, folder)
        examples = open_rows(folder)
        assert isinstance(examples.data, datasets.table.MemoryMappedTable)
        if not block_size:
            assert examples["labels"][:] == [[4, 5, 6, 2], [2], [7, 8, 2]]
            assert examples["input_ids"][:] == [[2, 4, 5, 6], [2], [2, 7, 8]]
            continue
        assert [word for block in examples["labels"] for word in block] == stream
        assert [word for block in examples["input_ids"] for word in block] == [2, *stream[:-1]]
        assert examples["length"][:-1] == [block_size] * (len(examples) - 1)
        assert examples["index"][:] == list(range(len(examples)))


def test_a_second_training_finds_the_blocks_of_the_first(corpus, tmp_path, monkeypatch):
    """Blocks and vocabulary are written once, by a training or by the command. Other blocks are made anew."""
    prepared = tmp_path / "data"
    argv = arguments(corpus, prepared, max_steps=None, do_train=None)
    cli.main(["prepare", "language-model", *argv])
    names = sorted(path.name.split("-")[0] for path in prepared.iterdir() if path.is_dir())
    assert names == ["test", "tokenizer", "train", "validation"]
    run_language_modeling.main(arguments(corpus, tmp_path / "anew", prepared_dir=tmp_path / "other", do_eval=True))
    for name in ("write_blocks", "build_tokenizer"):
        monkeypatch.setattr(language_model, name, None)
    for name in ("data", "other"):
        options = {"prepared_dir": tmp_path / name, "do_eval": True}
        run_language_modeling.main(arguments(corpus, tmp_path / f"of_{name}", **options))
        assert losses(tmp_path / f"of_{name}") == losses(tmp_path / "anew")
    with pytest.raises(TypeError, match="callable"):
        run_language_modeling.main(arguments(corpus, tmp_path / "8", **options, block_size=8))


@pytest.mark.parametrize("options", [{}, {"block_size": 0, "train_sampling_strategy": "group_by_length"}])
def test_resuming_in_the_middle_of_an_epoch_gives_the_same_model(corpus, tmp_path, options):
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    options = options | {"max_steps": 7, "save_strategy": "steps", "save_steps": 3}
    run_language_modeling.main(arguments(corpus, whole, **options))
    resumed.mkdir()
    shutil.copytree(whole / "checkpoint-3", resumed / "checkpoint-3")
    run_language_modeling.main(arguments(corpus, resumed, **options))
    assert losses(resumed) == losses(whole) and len(losses(whole)) == 7
    expected = AutoModelForCausalLM.from_pretrained(whole).state_dict()
    for name, tensor in AutoModelForCausalLM.from_pretrained(resumed).state_dict().items():
        assert torch.equal(tensor, expected[name]), name


def test_vocabulary(tmp_path):
    lines = [" b a b <unk> ", "c a</s> b <unk> <unk> <unk>", "c <s>x"]
    tokenizer = language_model.build_tokenizer(lines)
    special = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
    assert tokenizer.get_vocab() == special | {"b": 4, "c": 5, "<s>x": 6, "a": 7, "a</s>": 8}
    assert language_model.build_tokenizer(lines, 6).get_vocab() == special | {"b": 4, "c": 5}
    # The spelling of a special token in a word is text; as a word, it is <unk>, or refused.
    assert language_model.encode_lines(["a</s> <unk> a<unk> <s>x"], "text", tokenizer) == [[8, 3, 3, 6]]

    tokenizer.save_pretrained(tmp_path)
    code = (
        "from transformers import AutoTokenizer\n"
        f"tokenizer = AutoTokenizer.from_pretrained({str(tmp_path)!r})\n"
        "assert 'modeling_ode_transformer' not in sys.modules\n"
        "print(tokenizer('b  zebra <unk>').input_ids, tokenizer.decode([2, 4, 3, 5]), tokenizer.padding_side)\n"
        "print([tokenizer.bos_token_id, tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id])"
    )
    assert run_python(code, tmp_path) == "[2, 4, 3, 3]  </s> b <unk> c right\n[0, 1, 2, 3]\n"


@pytest.mark.parametrize("options", [{}, {"add_bos_token": False, "add_eos_token": False}])
def test_the_pipeline_separates_words_and_prompt(options, run):
    output_dir, _ = run
    tokenizer = AutoTokenizer.from_pretrained(output_dir, **options)
    generator = pipeline("text-generation", model=str(output_dir), tokenizer=tokenizer)
    ids = tokenizer("the company said", return_tensors="pt")
    found = generator.model.generate(**ids, min_new_tokens=5, max_new_tokens=5)[0].tolist()
    words = tokenizer.convert_ids_to_tokens(found)
    words = [word for word in words if word not in tokenizer.all_special_tokens]
    assert len(words) > 4
    assert generator("the company said", min_new_tokens=5, max_new_tokens=5) == [{"generated_text": " ".join(words)}]
    new = generator("the company said", min_new_tokens=5, max_new_tokens=5, return_full_text=False)
    assert new == [{"generated_text": " " + " ".join(words[3:])}]
    assert generator.model.generation_config.max_new_tokens == 40  # not 20, the prompt's included


def test_all_sources_read_alike(tmp_path, monkeypatch):
    """Files, and datasets whose texts may be several lines; not what else Python takes for line ends."""
    lines = ["a b", "", "c\u2028d \x85 e", "f"]
    (tmp_path / "a.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    args = language_model.DataArguments(test_file=str(tmp_path / "a.txt"))
    assert language_model.read_split(args, "test") == lines
    args.max_predict_samples = 2
    assert language_model.read_split(args, "test") == lines[:2]

    rows = datasets.Dataset.from_dict({"words": ["a b\n", "", f"{lines[2]}\nf"], "numbers": [1, 2, 3]})
    monkeypatch.setattr(data, "read_dataset", lambda args, split: rows)
    args = language_model.DataArguments(dataset_name="name", text_column="words")
    assert language_model.read_split(args, "test") == lines
    for column, message in (
        ("text", r"'text' \(--text_column\) holds None, .* columns are words, numbers"),
        ("numbers", "holds 1, which"),
    ):
        args.text_column = column
        with pytest.raises(ValueError, match=rf"name \(test\).* {message}"):
            language_model.read_split(args, "test")


def test_command_line_overrides_change_single_fields_of_a_recipe(tmp_path):
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps({"config_overrides": MODEL, "do_train": True}))
    argv = [str(recipe), "--output_dir", str(tmp_path)]
    for given, expected in (
        ([], MODEL),
        (
            ["--config_overrides", "decoder_solver=midpoint,d_model=64"],
            MODEL | {"decoder_solver": "midpoint", "d_model": 64},
        ),
        (["--config_overrides", '{"decoder_vocab_size": null}'], MODEL | {"decoder_vocab_size": None}),
        (["--config_overrides", ""], {}),
        (["--config_name", "llama", "--config_overrides", "hidden_size=64"], {"hidden_size": 64}),  # another model
        (["--model_name_or_path", "somewhere"], {}),
        (["--model_name_or_path", "somewhere", "--dataset_name", "other"], {}),
    ):
        model_args, _, _ = parse_arguments(language_model.LANGUAGE_MODEL, argv + given)
        assert parse_overrides(model_args.config_overrides) == expected
    argv += ["--model_name_or_path", "somewhere", "--config_overrides", "d_model=64"]
    with pytest.raises(ValueError, match="brings its own configuration: leave out --config_name"):
        parse_arguments(language_model.LANGUAGE_MODEL, argv)


def test_tokenizers_that_do_not_fit_are_refused(run, corpus, tmp_path):
    options = {"model_name_or_path": run[0], "tokenizer_name": tmp_path / "large", "config_overrides": None}
    language_model.build_tokenizer([" ".join(map(str, range(100)))]).save_pretrained(tmp_path / "large")
    with pytest.raises(ValueError, match="has 104 tokens, but the model embeds only 18"):
        run_language_modeling.main(arguments(corpus, tmp_path / "out", **options))

    pieces = language_model.build_tokenizer((corpus / "train.txt").read_text().splitlines())
    pieces.backend_tokenizer.pre_tokenizer = Sequence([WhitespaceSplit(), Split("o", "isolated")])
    pieces.save_pretrained(tmp_path / "pieces")
    options["tokenizer_name"] = tmp_path / "pieces"
    with pytest.raises(
        ValueError, match=r"words became \d+ tokens\. The vocabulary of .* whole words, but the tokenizer splits them"
    ):
        run_language_modeling.main(arguments(corpus, tmp_path / "out", **options))
