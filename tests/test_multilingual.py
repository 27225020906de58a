# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Scripts with the tokenizers of M2M100, NLLB, mBART and mBART-50, which mark texts with their language."""

import io
import json
import shutil

import pytest
import run_translation
import sentencepiece
import torch
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    M2M100Tokenizer,
    MBart50Tokenizer,
    MBartTokenizer,
    NllbTokenizer,
)
from transformers.models.m2m_100.tokenization_m2m_100 import FAIRSEQ_LANGUAGE_CODES as M2M100_CODES
from transformers.models.mbart.tokenization_mbart import FAIRSEQ_LANGUAGE_CODES as MBART_CODES

from modeling_ode_transformer import TranslationPipeline, cli
from modeling_ode_transformer.conversion.residual import from_residual
from modeling_ode_transformer.inference.tokenizers import load_tokenizers
from modeling_ode_transformer.metrics.likelihood import target_likelihoods
from modeling_ode_transformer.text_files import read_lines
from modeling_ode_transformer.training.tasks import seq2seq_texts, translation

from .conftest import TINY, randomize
from .training.conftest import corpus  # noqa: F401
from .training.runs import arguments, losses


# Languages as the tokenizer calls them, the family of the model, and where targets have the mark of theirs.
FAMILIES = {
    "m2m_100": (("en", "de"), "m2m_100", "start"),
    "nllb": (("eng_Latn", "deu_Latn"), "m2m_100", "start"),
    "mbart50": (("en_XX", "de_DE"), "mbart", "start"),
    "mbart": (("en_XX", "de_DE"), "mbart", "end"),
}


def make_tokenizer(family, texts, folder):
    model = io.BytesIO()
    options = {"vocab_size": 60, "hard_vocab_limit": False, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(texts), model_writer=model, **options)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    pieces = [(processor.id_to_piece(i), processor.get_score(i)) for i in range(3, len(processor))]
    vocabulary = [(token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>")] + pieces
    ids = {token: i for i, (token, _) in enumerate(vocabulary)}
    if family == "mbart":
        return MBartTokenizer(vocab=vocabulary + [(code, 0.0) for code in MBART_CODES] + [("<mask>", 0.0)])
    if family == "mbart50":
        return MBart50Tokenizer(vocab=[("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0)] + pieces)
    if family == "nllb":
        return NllbTokenizer(vocab=ids, merges=[])
    (folder / "vocab.json").write_text(json.dumps(ids))
    (folder / "spm.model").write_bytes(model.getvalue())
    # As in the tokenizers on the Hub; without it, marks would be parts of texts.
    special = [f"__{language}__" for language in M2M100_CODES["m2m100"]]
    return M2M100Tokenizer(folder / "vocab.json", folder / "spm.model", additional_special_tokens=special)


def find_language(tokenizer, language):
    """The id of a language, as the documentation of its tokenizer has it."""
    return getattr(tokenizer, "get_lang_id", tokenizer.convert_tokens_to_ids)(language)


def arguments_of_a_pair(corpus, folder, out, languages, **values):  # noqa: F811
    """Arguments of a run from the model `start` with its tokenizer, both in a folder."""
    options = {"model_name_or_path": folder / "start", "tokenizer_name": folder / "tokenizer"}
    options |= {"config_overrides": None, "vocab_size": None, "max_source_length": 60}
    return arguments(corpus, out, **options, **dict(zip(("src_lang", "tgt_lang"), languages)), **values)


@pytest.fixture(scope="module", params=FAMILIES)
def trained(request, corpus, tmp_path_factory):  # noqa: F811
    """A converted model, as it is after a run of run_translation.py that leaves its weights as they are: the folder
    with `output`, `tokenizer`, the original model, its languages and where targets have their mark."""
    folder = tmp_path_factory.mktemp(request.param)
    languages, model_type, place = FAMILIES[request.param]
    texts = [line for name in ("train.en", "train.de") for line in read_lines(corpus / name)]
    tokenizer = make_tokenizer(request.param, texts, folder)
    tokenizer.save_pretrained(folder / "tokenizer")
    torch.manual_seed(0)
    sizes = TINY | {"vocab_size": len(tokenizer) + 100, "max_position_embeddings": 100, "tie_word_embeddings": False}
    sizes |= {"decoder_start_token_id": 2}
    reference = randomize(AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model(model_type, **sizes)))
    torch.nn.init.normal_(reference.lm_head.weight)
    with torch.no_grad():
        # Outputs are texts, not marks.
        reference.lm_head.weight[min(i for i in tokenizer.all_special_ids if i > 3) :] = 0
    from_residual(reference).save_pretrained(folder / "start")
    options = {"learning_rate": 0, "max_steps": 1, "do_predict": True}
    run_translation.main(arguments_of_a_pair(corpus, folder, folder / "output", languages, **options))
    return folder, reference, languages, place


@pytest.mark.parametrize("trained", ["mbart"], indirect=True)
def test_a_resumed_training_ends_with_the_same_model_and_outputs(trained, corpus, tmp_path):  # noqa: F811
    folder, _, languages, _ = trained
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    options = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "do_predict": True}
    run_translation.main(arguments_of_a_pair(corpus, folder, whole, languages, **options))
    resumed.mkdir()
    shutil.copytree(whole / "checkpoint-2", resumed / "checkpoint-2")
    run_translation.main(arguments_of_a_pair(corpus, folder, resumed, languages, **options))
    assert losses(resumed) == losses(whole)
    expected = AutoModelForSeq2SeqLM.from_pretrained(whole)
    start = AutoModelForSeq2SeqLM.from_pretrained(folder / "start")
    assert not torch.equal(expected.lm_head.weight, start.lm_head.weight)
    model = AutoModelForSeq2SeqLM.from_pretrained(resumed)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, expected.state_dict()[name]), name
    assert model.generation_config.to_dict() == expected.generation_config.to_dict()
    outputs = (read_lines(output_dir / "generated_predictions.txt") for output_dir in (whole, resumed))
    assert next(outputs) == next(outputs)


def test_outputs_are_those_of_the_original_as_its_documentation_has_them(trained, corpus):  # noqa: F811
    folder, reference, languages, place = trained
    tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer", **dict(zip(("src_lang", "tgt_lang"), languages)))
    mark = find_language(tokenizer, languages[1])
    sources = read_lines(corpus / "test.en")
    inputs = tokenizer(sources, return_tensors="pt", padding=True)
    search = {"num_beams": 3, "length_penalty": 0.6, "early_stopping": True, "max_length": 41, "do_sample": False}
    begin = {"decoder_start_token_id": mark} if place == "end" else {"forced_bos_token_id": mark}
    expected = tokenizer.batch_decode(reference.generate(**inputs, **search, **begin), skip_special_tokens=True)
    expected = [" ".join(text.split("\n")).strip() for text in expected]
    assert len(set(expected)) > 1
    assert read_lines(folder / "output" / "generated_predictions.txt") == expected

    # The saved model and its tokenizer need not be told again.
    files = f"--input {corpus / 'test.en'} --output {folder / 'out.txt'}"
    cli.run(f"generate --model_name_or_path {folder / 'output'} {files}".split())
    assert read_lines(folder / "out.txt") == expected
    translate = TranslationPipeline.from_pretrained(folder / "output")
    assert [output["translation_text"].strip() for output in translate(sources)] == expected


def test_a_trained_pair_has_the_marks_of_its_languages(trained):
    folder, _, languages, place = trained
    tokenizer, _ = load_tokenizers(folder / "tokenizer", None, *languages)
    args = translation.DataArguments()
    pair = seq2seq_texts.encode_split([("one", "eins")], "test", tokenizer, tokenizer, args)[0]
    for ids, language in zip((pair["input_ids"], pair["labels"]), languages):
        tokens = tokenizer.convert_ids_to_tokens(ids)
        mark, end = tokens[0 if place == "start" else -1], tokens[-1 if place == "start" else -2]
        assert mark.strip("_") == language and end == "</s>"


def test_likelihoods_are_those_of_the_text_after_the_mark(trained):
    """The mark begins the decoder's input in any case, so that it is not scored."""
    folder, _, languages, place = trained
    tokenizer, _ = load_tokenizers(folder / "tokenizer", None, *languages)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder / "output").eval()
    ((tokens, scores),) = target_likelihoods(model, tokenizer, ["one"], ["eins"])
    ids, mark = tokenizer.convert_tokens_to_ids(tokens), find_language(tokenizer, languages[1])
    assert tokens[-1] == "</s>" and mark not in ids
    before = [mark] if place == "end" else [model.config.decoder_start_token_id, mark]
    inputs = tokenizer("one", return_tensors="pt")
    with torch.no_grad():
        logits = model(**inputs, decoder_input_ids=torch.tensor([[*before, *ids[:-1]]])).logits[0, len(before) - 1 :]
    expected = logits.log_softmax(-1).gather(1, torch.tensor(ids).unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(torch.from_numpy(scores), expected, atol=1e-4, rtol=0)


def test_a_target_prefix_follows_the_mark(trained):
    folder, _, languages, place = trained
    tokenizer, _ = load_tokenizers(folder / "tokenizer", None, *languages)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder / "output").eval()
    mark = find_language(tokenizer, languages[1])
    start = [mark] if place == "end" else [model.generation_config.decoder_start_token_id, mark]
    pieces = tokenizer("zwei", add_special_tokens=False)["input_ids"]
    given = {"decoder_input_ids": torch.tensor([[*start, *pieces]])}
    expected = tokenizer.batch_decode(model.generate(**tokenizer("one", return_tensors="pt"), **given), True)
    translate = TranslationPipeline.from_pretrained(folder / "output")
    (found,) = translate("one", target_prefix="zwei")
    assert found["translation_text"] == expected[0].strip() != translate("one")[0]["translation_text"]
    assert found["translation_text"].startswith("zwei")


def test_generate_takes_other_languages(trained, corpus):  # noqa: F811
    """A model and a tokenizer that know of no language yet; other languages give other outputs."""
    folder, _, (source, target), _ = trained
    tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer")
    tokenizer.save_pretrained(folder / "start")
    search = "--num_beams 3 --length_penalty 0.6 --generation_options early_stopping=true,max_length=41"
    outputs = []
    for languages in ((source, target), (source, source), (target, target)):
        out = folder / "told.txt"
        files = f"--model_name_or_path {folder / 'start'} --input {corpus / 'test.en'} --output {out} --overwrite"
        cli.run(["generate", *files.split(), *search.split(), "--src_lang", languages[0], "--tgt_lang", languages[1]])
        outputs.append(read_lines(out))
    assert outputs[0] == read_lines(folder / "output" / "generated_predictions.txt")
    assert outputs[0] != outputs[1] and outputs[0] != outputs[2]


@pytest.mark.parametrize("trained", ["m2m_100"], indirect=True)
def test_languages_that_are_missing_or_unknown_are_named(trained, corpus, tmp_path):  # noqa: F811
    """Else outputs would be in any language."""
    folder, _, (source, target), _ = trained
    for given, message in (
        ([], "marks every text with its language: give --src_lang and --tgt_lang"),
        ([source], "--src_lang and --tgt_lang go together"),
        ([source, "xx"], rf"--tgt_lang xx: \w+ .* knows .*\b{target}\b"),
    ):
        with pytest.raises(ValueError, match=message):
            run_translation.main(arguments_of_a_pair(corpus, folder, tmp_path / str(len(given)), given))
    with pytest.raises(ValueError, match="is for both sides"):
        load_tokenizers(folder / "tokenizer", folder / "tokenizer", source, target)
    with pytest.raises(ValueError, match=r"--src_lang en: \w+ \(.*\) does not mark languages"):
        run_translation.main(arguments(corpus, tmp_path, src_lang="en", tgt_lang="de", max_steps=1))
    AutoTokenizer.from_pretrained(folder / "tokenizer").save_pretrained(folder / "start")
    files = f"--input {corpus / 'test.en'} --output {tmp_path / 'out.txt'}"
    with pytest.raises(ValueError, match="none is saved with it: give --src_lang and --tgt_lang"):
        cli.run(f"generate --model_name_or_path {folder / 'start'} {files}".split())
