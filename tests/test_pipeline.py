# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Pipelines: against the tokenizers and generate() on one text at a time."""

import copy
import json
import random
import shutil

import datasets
import pytest
import torch
from number_names import english, german
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    GenerationConfig,
    M2M100Config,
    M2M100ForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    pipeline,
)
from transformers.pipelines.pt_utils import KeyDataset

import modeling_ode_transformer as ode
from modeling_ode_transformer.pipeline_ode_transformer import CUSTOM_PIPELINES, add_pipeline
from modeling_ode_transformer.texts_ode_transformer import LINE_BREAKS, TARGET_TOKENIZER, TextGenerator

from .conftest import TINY, build, randomize, tiny_config
from .processes import run_python


VOCABULARY = 80
TEXTS = [english(number) for number in (7, 421_735, 100_001, 12)]


@pytest.fixture(scope="module")
def tokenizers():
    """English, German, and a second German one with other pieces."""
    return [
        ode.OdeTransformerTokenizer.train(
            [name(n) for n in range(0, end, 7)], VOCABULARY, byte_fallback=False, hard_vocab_limit=False
        )
        for name, end in ((english, 9000), (german, 9000), (german, 700))
    ]


def make_model(source, target=None, **config):
    sizes = {"vocab_size": len(source), "tie_word_embeddings": False}
    if target is not None:
        sizes |= {"decoder_vocab_size": len(target), "share_encoder_decoder_embeddings": False}
    torch.manual_seed(0)
    model = randomize(ode.OdeTransformerForConditionalGeneration(tiny_config(**sizes, **config)))
    torch.nn.init.normal_(model.lm_head.weight)  # a sharp distribution, in which the start token is not repeated
    model.generation_config.update(num_beams=3, length_penalty=0.6, early_stopping=True, max_length=20)
    model.generation_config.max_len_a, model.generation_config.max_len_b = 0.5, 2
    return model


@pytest.fixture(scope="module")
def translator(tokenizers):
    english_tokenizer, german_tokenizer, _ = tokenizers
    model = make_model(english_tokenizer, german_tokenizer)
    return ode.TranslationPipeline(model, english_tokenizer, target_tokenizer=german_tokenizer)


def by_hand(model, tokenizer, target_tokenizer, texts, **options):
    """For each text, alone: the outputs and, in beam search, their scores."""
    results = []
    for text in texts:
        options |= {"return_dict_in_generate": True, "output_scores": True}
        outputs = model.generate(**tokenizer(text, return_tensors="pt"), **options)
        decoded = target_tokenizer.batch_decode(outputs.sequences, skip_special_tokens=True)
        results.append(list(zip(decoded, outputs.sequences_scores.tolist())))
    return results


WITHOUT_PACKAGE = """
import json, os, sys
sys.modules["modeling_ode_transformer"] = None
from transformers import pipeline
folders, texts = json.loads(sys.argv[1])
results = {}
for task in ("translation", "summarization", "text-correction"):
    pipe = pipeline(task, model=folders[task], trust_remote_code=True)
    assert type(pipe).__module__.startswith("transformers_modules."), type(pipe)
    results[task] = pipe(texts)
    assert pipe(texts, batch_size=3) == results[task]
    if task == "translation":
        results["n-best"] = pipe(texts, num_return_sequences=3, return_scores=True, batch_size=3)
        pipe.save_pretrained(folders["saved again"])
        again = pipeline(model=folders["saved again"], trust_remote_code=True, batch_size=2)
        assert again.task == "translation"
        results["saved again"] = again(texts)
for revision in (None, "other"):
    pipe = pipeline("translation", model="me/numbers.en-de", revision=revision, trust_remote_code=True)
    results[f"revision {revision}"] = pipe(texts)
print(json.dumps(results))
"""


def test_a_published_model_brings_its_pipeline(tokenizers, translator, tmp_path, monkeypatch):
    english_tokenizer, german_tokenizer, other = tokenizers
    folders = {task: str(tmp_path / task) for task in (*CUSTOM_PIPELINES, "saved again")}
    translator.save_pretrained(folders["translation"])
    joint = make_model(english_tokenizer)
    for task in ("summarization", "text-correction"):
        add_pipeline(joint.config, task)
        joint.save_pretrained(folders[task])
        english_tokenizer.save_pretrained(folders[task])

    # What the cache holds of a model on the Hub, of which another revision has another target tokenizer.
    hub = tmp_path / "hub" / "models--me--numbers.en-de"
    (hub / "refs").mkdir(parents=True)
    for revision, commit, tokenizer in (("main", "a" * 40, german_tokenizer), ("other", "b" * 40, other)):
        shutil.copytree(folders["translation"], hub / "snapshots" / commit)
        tokenizer.save_pretrained(hub / "snapshots" / commit / TARGET_TOKENIZER)
        (hub / "refs" / revision).write_text(commit)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))

    printed = run_python(WITHOUT_PACKAGE, tmp_path, json.dumps([folders, TEXTS]))
    results = json.loads(next(line for line in printed.splitlines() if line.startswith("{")))

    model = translator.model
    expected = by_hand(model, english_tokenizer, german_tokenizer, TEXTS, num_return_sequences=3)
    assert len({text for outputs in expected for text, _ in outputs}) > len(TEXTS)
    translations = [{"translation_text": outputs[0][0]} for outputs in expected]
    assert results["translation"] == results["saved again"] == results["revision None"] == translations
    for found, outputs in zip(results["n-best"], expected, strict=True):
        assert [output["translation_text"] for output in found] == [text for text, _ in outputs]
        assert [output["score"] for output in found] == pytest.approx([score for _, score in outputs], abs=1e-5)
    others = [text for ((text, _),) in by_hand(model, english_tokenizer, other, TEXTS)]
    assert results["revision other"] == [{"translation_text": text} for text in others] != translations
    joint_texts = [text for ((text, _),) in by_hand(joint, english_tokenizer, english_tokenizer, TEXTS)]
    assert results["summarization"] == [{"summary_text": text} for text in joint_texts]
    assert results["text-correction"] == [{"corrected_text": text} for text in joint_texts]


def test_inputs_may_come_in_many_ways(translator):
    single = [translator(text) for text in TEXTS]
    flat = [output for (output,) in single]
    expected = by_hand(translator.model, translator.tokenizer, translator.target_tokenizer, TEXTS)
    assert flat == [{"translation_text": text} for ((text, _),) in expected]
    dataset = datasets.Dataset.from_dict({"text": TEXTS})
    for texts in (TEXTS, tuple(TEXTS), dataset["text"]):
        assert translator(texts, batch_size=3) == flat
    for texts in ((text for text in TEXTS), KeyDataset(dataset, "text")):
        results = translator(texts, batch_size=3)
        assert not isinstance(results, list)
        assert list(results) == single
    assert translator([]) == translator(()) == list(translator(text for text in [])) == []
    for wrong in (None, 7, b"seven", dataset, ["seven", None], (text for text in [None])):
        with pytest.raises(TypeError, match="must be a string"):
            list(translator(wrong))


def test_a_blank_text_has_an_empty_output(translator):
    empty = {"translation_text": ""}
    assert translator(["", TEXTS[0], " \n"], batch_size=3) == [empty, *translator(TEXTS[:1]), empty]
    assert translator("", num_return_sequences=2, return_scores=True) == [{"translation_text": "", "score": 0.0}]


def test_no_output_of_a_text_comes_twice(translator, monkeypatch):
    generated = [[("eins", -1.0), ("zwei", -2.0), ("eins", -3.0)], [("drei", -1.0)] * 3]
    monkeypatch.setattr(TextGenerator, "generate", lambda self, inputs: copy.deepcopy(generated))
    results = translator([TEXTS[1], TEXTS[0]], num_return_sequences=3, return_scores=True, batch_size=2)
    found = [[(output["translation_text"], output["score"]) for output in outputs] for outputs in results]
    assert found == [[("eins", -1.0), ("zwei", -2.0)], [("drei", -1.0)]]


def test_outputs_begin_with_target_prefixes(translator):
    prefixes, expected = ["sieben", "", "eins", "sieben"], []
    parts = translator.model, translator.tokenizer, translator.target_tokenizer
    for text, prefix in zip(TEXTS, prefixes):
        ids = [*translator.target_tokenizer(prefix)["input_ids"][:-1]]
        given = {"decoder_input_ids": torch.tensor([ids])} if ids else {}
        (output, _), *_ = by_hand(*parts, [text], **given)[0]
        expected.append({"translation_text": output})
    assert translator(TEXTS, target_prefix=prefixes, batch_size=4) == expected != translator(TEXTS)
    assert all(output["translation_text"].startswith(prefix) for output, prefix in zip(expected, prefixes))
    assert translator(TEXTS[0], target_prefix="sieben") == expected[:1]
    assert list(translator((text for text in TEXTS[:1]), target_prefix="sieben")) == [expected[:1]]
    assert translator(TEXTS[:1], target_prefix="sieben") == expected[:1]
    with pytest.raises(ValueError, match="There are 4 texts, but 1 prefixes"):
        translator(TEXTS, target_prefix=["sieben"])


def test_lines_are_texts_of_their_own_if_asked(translator):
    first, second = (output["translation_text"] for output in translator(TEXTS[:2]))
    text = f"\n{TEXTS[0]}\r\n\n  {TEXTS[1]}\n{TEXTS[0]}\n"
    results = translator([text, TEXTS[1], ""], split_lines=True, batch_size=2)
    assert [result["translation_text"] for result in results] == [f"{first}\r\n\n  {second}\n{first}", second, ""]
    assert translator(text)[0]["translation_text"] != results[0]["translation_text"]
    for options in ({"return_scores": True}, {"num_return_sequences": 2}):
        with pytest.raises(ValueError, match="join the outputs of several parts into one text"):
            translator(text, split_lines=True, **options)


def test_lines_are_found_in_one_pass():
    """As by trimming the lines; also in long runs of white space, where a search from every place takes minutes."""
    generator = random.Random(0)
    for _ in range(200):
        text = "".join(generator.choices("ab \t\n\r", k=30)).strip()
        pieces = LINE_BREAKS.split(text)
        assert "".join(pieces) == text
        assert pieces[::2] == [line for each in text.split("\n") if (line := each.strip())] or not text
    assert LINE_BREAKS.split("a" + " " * 500_000 + "b\nc")[1:] == ["\n", "c"]


def test_generate_takes_its_options_from_call_constructor_and_configuration(translator):
    model, tokenizer, target_tokenizer = translator.model, translator.tokenizer, translator.target_tokenizer
    for options in (
        {"num_beams": 5, "max_new_tokens": 4},
        {"max_length": 6, "length_penalty": 2.0},
        {"max_len_a": 0.2, "max_len_b": 3},
        {"generation_config": GenerationConfig(num_beams=2, num_return_sequences=2, max_length=9)},
    ):
        found = by_hand(model, tokenizer, target_tokenizer, TEXTS, **options)
        expected = [[text for text, _ in outputs] for outputs in found]
        constructed = ode.TranslationPipeline(model, tokenizer, target_tokenizer, **options)
        data = KeyDataset([{"a": text} for text in TEXTS], "a")
        for results in (constructed(data), (translator(text, **options) for text in TEXTS)):
            assert [[output["translation_text"] for output in outputs] for outputs in results] == expected
    with pytest.raises(ValueError, match="beam_number"):
        translator(TEXTS, beam_number=2)


@pytest.fixture
def warned(caplog, monkeypatch):
    """The messages so far, those that are to come once as often as they come, without those of unknown characters."""
    logger = ode.texts_ode_transformer.logger
    monkeypatch.setattr(logger, "warning_once", logger.warning)
    own = lambda: (record.getMessage() for record in caplog.records if record.name == logger.name)  # noqa: E731
    return lambda: [message for message in own() if "no piece" not in message]


def test_a_long_text_is_not_lost_in_silence(tokenizers, warned):
    tokenizer = tokenizers[0]
    model = make_model(tokenizer, position_embedding_type="learned", max_position_embeddings=12)
    pipe = ode.TextCorrectionPipeline(model, tokenizer)
    text = " ".join(TEXTS)
    ids = tokenizer(text)["input_ids"]
    assert len(ids) > 12
    expected = model.generate(torch.tensor([[*ids[:11], ids[-1]]]))
    expected = [{"corrected_text": tokenizer.batch_decode(expected, skip_special_tokens=True)[0]}]
    assert pipe(text, truncation=True) == expected
    assert warned() == []
    assert pipe([text, "One", text]) == [*expected, *pipe(["One"]), *expected]
    assert pipe(text) == expected
    (message,) = warned()  # of the first call only
    said = f"have more tokens than the model takes, 12, and are cut, the first with {len(ids)} tokens: 'seven"
    assert said in message and "split the texts" in message
    with pytest.raises(ValueError, match=f"takes at most 12 tokens, but a text has {len(ids)} tokens: 'seven"):
        pipe(text, truncation=False)

    # Positions that are computed for any length have no limit, unless the tokenizer sets one.
    pipe = ode.TextCorrectionPipeline(make_model(tokenizer, max_position_embeddings=12), tokenizer)
    assert pipe(text, truncation=False) != expected
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.model_max_length = 12
    for config in ({}, {"position_embedding_type": "learned", "max_position_embeddings": 40}):
        pipe = ode.TextCorrectionPipeline(make_model(tokenizer, **config), tokenizer)
        with pytest.raises(ValueError, match=f"takes at most 12 tokens, but a text has {len(ids)} tokens"):
            pipe(text, truncation=False)


def test_a_text_over_the_trained_length_is_warned_of_and_split_if_asked(tokenizers, warned):
    model = make_model(tokenizers[0])
    sentences = ["One two three.", "Four five six seven."]
    text = " ".join(sentences)
    expected = ode.TextCorrectionPipeline(model, tokenizers[0])(text)
    assert warned() == []
    model.config.trained_source_length = len(tokenizers[0](text)["input_ids"]) - 1
    pipe = ode.TextCorrectionPipeline(model, tokenizers[0])
    assert pipe(text) == expected
    (message,) = warned()
    assert "1 of 1 texts are longer than the longest in training (" in message and "the first with" in message
    first, second = (output["corrected_text"] for output in pipe(sentences))
    assert pipe(text, split_sentences=True) == [{"corrected_text": f"{first} {second}"}] != expected
    assert pipe(sentences[0], split_sentences=True) == [{"corrected_text": first}]


def test_an_output_that_is_cut_gives_a_warning(tokenizers, warned):
    model = make_model(tokenizers[0])
    pipe = ode.TranslationPipeline(model, tokenizers[0])
    pipe(TEXTS[0])  # max_len_a and max_len_b end outputs with the end-of-sequence token
    assert warned() == []
    model.generation_config.max_len_a = model.generation_config.max_len_b = None
    pipe(TEXTS[0], max_length=3)
    assert "no end-of-sequence token" in warned()[0]


def test_the_package_opens_any_encoder_decoder(translator, tokenizers, tmp_path):
    expected = translator(TEXTS)
    translator.save_pretrained(tmp_path / "published")
    for folder in ("published", "trained"):
        if folder == "trained":  # as a training script leaves it
            shutil.copytree(tmp_path / "published", tmp_path / folder, ignore=shutil.ignore_patterns("*.py"))
            config = json.loads((tmp_path / folder / "config.json").read_text())
            del config["custom_pipelines"]
            (tmp_path / folder / "config.json").write_text(json.dumps(config))
        pipe = ode.TranslationPipeline.from_pretrained(tmp_path / folder)
        assert pipe(TEXTS) == expected
        assert len(pipe.target_tokenizer) == len(translator.target_tokenizer)
        model, tokenizer = (auto.from_pretrained(tmp_path / folder) for auto in (AutoModelForSeq2SeqLM, AutoTokenizer))
        assert ode.TranslationPipeline(model, tokenizer)(TEXTS) == expected
        for other in (tokenizer, tmp_path / folder):
            assert ode.TranslationPipeline(model, tokenizer, target_tokenizer=other)(TEXTS) != expected
    name = str(tmp_path / "published")
    assert pipeline("translation", model=name, pipeline_class=ode.TranslationPipeline)(TEXTS) == expected
    assert pipeline("translation", model=name, trust_remote_code=True)(TEXTS) == expected
    half = ode.TranslationPipeline.from_pretrained(name, dtype="bfloat16", device="cpu", num_beams=2)
    assert half.model.dtype == torch.bfloat16 and half.device.type == "cpu"
    assert set(half(TEXTS[0])[0]) == {"translation_text"}

    tokenizer = tokenizers[0]
    sizes = {name: value for name, value in TINY.items() if name != "vocab_size"}
    config = M2M100Config(**sizes, vocab_size=len(tokenizer), bos_token_id=0, eos_token_id=2, decoder_start_token_id=2)
    torch.manual_seed(0)
    model = M2M100ForConditionalGeneration(config).eval()
    for path in (tmp_path / "m2m", tmp_path / "m2m_saved"):
        ode.SummarizationPipeline(model, tokenizer, max_new_tokens=5).save_pretrained(path)
        pipe = ode.SummarizationPipeline.from_pretrained(path, max_new_tokens=5)
        (((text, _),),) = by_hand(model, tokenizer, tokenizer, TEXTS[:1], max_new_tokens=5, num_beams=2)
        assert pipe(TEXTS[0], num_beams=2) == [{"summary_text": text}]


def test_a_missing_target_tokenizer_is_an_error(translator, tokenizers, tmp_path):
    translator.save_pretrained(tmp_path)
    shutil.rmtree(tmp_path / TARGET_TOKENIZER)
    message = f"{tmp_path} has its own vocabulary for the target, but no folder {TARGET_TOKENIZER}"
    with pytest.raises(ValueError, match=message):
        ode.TranslationPipeline.from_pretrained(tmp_path)
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    model.name_or_path = "me/unreachable"
    with pytest.raises((OSError, ValueError), match="me/unreachable"):
        ode.TranslationPipeline(model, tokenizers[0])
    # A model with one vocabulary needs no other tokenizer, and so no connection.
    model = make_model(tokenizers[0])
    model.name_or_path = "me/unreachable"
    assert ode.TranslationPipeline(model, tokenizers[0]).target_tokenizer is tokenizers[0]
    # Nor does Marian's, whose configuration gives the size of the common vocabulary twice.
    sizes = {"d_model": 16, "vocab_size": len(tokenizers[0]), "pad_token_id": 1, "decoder_start_token_id": 1}
    model = MarianMTModel(MarianConfig(**sizes, encoder_layers=1, decoder_layers=1, eos_token_id=2))
    assert model.config.decoder_vocab_size == model.config.vocab_size
    assert ode.TranslationPipeline(model, tokenizers[0]).target_tokenizer is tokenizers[0]
    # Or two vocabularies, both of which its tokenizer knows.
    model.config.share_encoder_decoder_embeddings = False
    with pytest.raises(ValueError, match="has its own vocabulary for the target"):
        ode.TranslationPipeline(model, tokenizers[0])
    both = copy.deepcopy(tokenizers[0])
    both.separate_vocabs = True
    assert ode.TranslationPipeline(model, both).target_tokenizer is both


def test_what_cannot_work_is_refused(translator, tokenizers, tmp_path):
    language_model = build(ode.OdeTransformerForCausalLM)
    with pytest.raises(ValueError, match="needs an encoder-decoder, not OdeTransformerForCausalLM"):
        ode.TranslationPipeline(language_model, tokenizers[0])
    with pytest.raises(ValueError, match="needs the tokenizer"):
        ode.TranslationPipeline(translator.model)
    with pytest.raises(ValueError, match="method push_to_hub"):
        translator.save_pretrained(tmp_path, push_to_hub=True)
    with pytest.raises(ValueError, match="task 'ner': choose one of translation, summarization, text-correction"):
        add_pipeline(tiny_config(), "ner")
