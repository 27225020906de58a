# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The tokenizer against sentencepiece itself: ids, round trips, training, saving, and what it refuses."""

import io
import json
import random
import re
import subprocess
import unicodedata

import pytest
import sentencepiece
from sacremoses import MosesPunctNormalizer
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from modeling_ode_transformer.tokenization_ode_transformer import OdeTransformerTokenizer, text_normalizer

from .processes import run_python


MODEL_TYPES = ("bpe", "unigram")
WORDS = (
    "the a man woman is are was walking running in on with without street house old young red green two three dogs "
    "der die das ein eine Mann Frau läuft geht über die Straße zwei grüne Häuser und schöne Füße größer weiß "
    "le la un une homme femme marche dans rue deux chiens très élégant garçon où être naïve cœur l'été "
    "он она идёт по улице два дома большой красный η γυναίκα περπατάει στον δρόμο 世界 你好 生活 東京 これは です"
).split()
HARD_TEXTS = [
    "",
    " ",
    "   ",
    " leading",
    "trailing ",
    "two  spaces,   three",
    "\ttab\tand\nnew\r\nlines\n\n",
    "nul \0 and controls \x01\x1b\x7f\x9f",
    "emoji 😀👩‍👩‍👧‍👦🏳️‍🌈",
    "NFC é ü ñ Å, NFD e\u0301 u\u0308 n\u0303 A\u030a, stacked a\u0302\u0323\u0307",
    "生活的真谛是。日本語です",
    "ᚠᛇᚻ ⠃⠗⠁⠊⠇⠇⠑ የኢትዮጵያ ปีเด ird   ด",
    "שָׁלוֹם مَرْحَبًا",
    "\ufeffbom \u00a0nbsp \u200bzero \u3000wide \u2028line",
    "\U0010ffff \ufffd \ufffe \ue000 \u2585",
    "<0x41> <0x4 <0xE2><0x96><0x81> 0x41>",
    "</ s> <S> < <unk",
]


def sentences(seed: int, number: int) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(3, 12))) + rng.choice([".", "!", " ?"]) for _ in range(number)]


def random_unicode(seed: int, number: int) -> list[str]:
    """Texts of characters from every plane, and many spaces; without U+2581, which has its own test."""
    rng = random.Random(seed)
    ranges = [(0x20, 0x7F), (0, 0x250), (0x300, 0x3000), (0x3000, 0xD800), (0xE000, 0x110000), (0x20, 0x21)]
    texts = ("".join(chr(rng.randrange(*rng.choice(ranges))) for _ in range(40)) for _ in range(number))
    return [text.replace("\u2581", "") for text in texts]


def train_sentencepiece(texts: list[str], **options) -> bytes:
    """A sentencepiece model with the ids of this package, made without its help."""
    model = io.BytesIO()
    defaults = {"bos_id": 0, "pad_id": 1, "eos_id": 2, "unk_id": 3, "vocab_size": 600, "hard_vocab_limit": False}
    defaults |= {"byte_fallback": True, "normalization_rule_name": "identity", "remove_extra_whitespaces": False}
    defaults |= {"character_coverage": 1.0, "minloglevel": 2}
    options = {"sentence_iterator": iter(texts), "model_writer": model, **defaults, **options}
    sentencepiece.SentencePieceTrainer.train(**options)
    return model.getvalue()


def processor(model: bytes) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_proto=model)


def assert_same_ids(tokenizer, reference: sentencepiece.SentencePieceProcessor, texts: list[str]) -> None:
    """sentencepiece does not read special tokens in a text, hence `split_special_tokens`."""
    for text, ids in zip(texts, tokenizer(texts, split_special_tokens=True).input_ids, strict=True):
        assert ids == reference.encode(text) + [2], f"{text!r}: {reference.encode(text, out_type=str)}"


@pytest.fixture(scope="module", params=MODEL_TYPES)
def model(request) -> bytes:
    return train_sentencepiece(sentences(0, 500), model_type=request.param)


@pytest.fixture(scope="module")
def reference(model) -> sentencepiece.SentencePieceProcessor:
    return processor(model)


@pytest.fixture(scope="module")
def tokenizer(model) -> OdeTransformerTokenizer:
    return OdeTransformerTokenizer.from_sentencepiece(model)


def test_vocabulary_is_that_of_sentencepiece(tokenizer, reference):
    pieces = [reference.id_to_piece(i) for i in range(reference.get_piece_size())]
    assert tokenizer.convert_ids_to_tokens(list(range(len(tokenizer)))) == pieces
    assert pieces[:4] == ["<s>", "<pad>", "</s>", "<unk>"]
    ids = (tokenizer.bos_token_id, tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id)
    assert ids == (0, 1, 2, 3)


def test_eos_ends_every_text_of_a_pair(tokenizer, reference):
    first, second = "two dogs", " der Mann"
    assert tokenizer(first, second).input_ids == reference.encode(first) + [2] + reference.encode(second) + [2]
    assert tokenizer(first, add_special_tokens=False).input_ids == reference.encode(first)


@pytest.mark.parametrize(
    "texts", [sentences(1, 500), random_unicode(2, 500), HARD_TEXTS], ids=["sentences", "random_unicode", "hard_texts"]
)
def test_ids_are_those_of_sentencepiece(tokenizer, reference, texts):
    assert_same_ids(tokenizer, reference, texts)


@pytest.mark.parametrize(
    "options",
    [
        {"add_dummy_prefix": False},
        {"byte_fallback": False},
        {"character_coverage": 0.98},
        {"split_by_whitespace": False},
        {"allow_whitespace_only_pieces": True},
        {"remove_extra_whitespaces": True},
        {"normalization_rule_name": "nmt_nfkc", "remove_extra_whitespaces": True},
    ],
    ids=lambda options: ",".join(options),
)
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_ids_are_those_of_sentencepiece_with_options(model_type, options):
    rng = random.Random(3)
    parts = [" ", "  ", "\t", "\n", "\u3000", "\u200b", "man", "Ａ", "ﬁ"]
    spaced = ["".join(rng.sample(parts, k=6)) for _ in range(200)]
    model = train_sentencepiece(sentences(0, 300) + spaced, model_type=model_type, **options)
    tokenizer = OdeTransformerTokenizer.from_sentencepiece(model)
    assert_same_ids(tokenizer, processor(model), [*sentences(1, 200), *spaced, "", " ", "  a ", "the 猫犬 man"])


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_spelled_out_special_and_byte_pieces_are_plain_text(model_type):
    rng = random.Random(4)
    parts = ["<s>", "</s>", "<pad>", "<unk>", "<0x41>", "<0x0A>", "<", "0x", "41>", "s>", "/s", "<span>", " ", "man"]
    texts = ["".join(rng.sample(parts, k=6)) for _ in range(300)]
    plain = train_sentencepiece(sentences(0, 300), model_type=model_type)
    markup = train_sentencepiece(
        [f"<s> </s> <p pad> <0x4 1> <0x41> {text}" for text in texts],
        model_type=model_type,
        split_by_unicode_script=False,
        split_by_number=False,
    )
    pieces = processor(markup)
    assert {"</s", "s>", "1>"} <= {pieces.id_to_piece(i) for i in range(pieces.get_piece_size())}
    for model in (plain, markup):
        tokenizer = OdeTransformerTokenizer.from_sentencepiece(model)
        assert_same_ids(tokenizer, processor(model), texts)
        ids = tokenizer(texts, split_special_tokens=True).input_ids
        assert tokenizer.batch_decode(ids, skip_special_tokens=True) == texts


def test_where_unigram_ids_differ_the_two_segmentations_are_equally_good():
    texts = ["a" * n + "b" * m for n in range(1, 40) for m in range(1, 10)]
    model = train_sentencepiece(texts, model_type="unigram")
    tokenizer, reference = OdeTransformerTokenizer.from_sentencepiece(model), processor(model)
    for text in texts:
        ids, expected = tokenizer(text, add_special_tokens=False).input_ids, reference.encode(text)
        scores = [sum(map(reference.get_score, pieces)) for pieces in (ids, expected)]
        assert scores[0] == pytest.approx(scores[1], rel=1e-6)
        assert tokenizer.decode(ids) == text


def test_texts_come_back(tokenizer):
    texts = HARD_TEXTS + random_unicode(5, 500) + sentences(6, 100)
    assert tokenizer.batch_decode(tokenizer(texts, padding=True).input_ids, skip_special_tokens=True) == texts


def test_round_trip_without_a_space_in_the_training_texts():
    tokenizer = OdeTransformerTokenizer.train(["你好世界"] * 9, 270, hard_vocab_limit=False, add_dummy_prefix=False)
    assert "▁" not in tokenizer.get_vocab()
    assert tokenizer.decode(tokenizer("你 好 ").input_ids, skip_special_tokens=True) == "你 好 "


def test_the_space_mark_itself_comes_back_as_a_space_as_in_sentencepiece(tokenizer, reference):
    text = "two\u2581dogs"
    assert_same_ids(tokenizer, reference, [text])
    decoded = tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True)
    assert decoded == reference.decode(reference.encode(text)) == "two dogs"


@pytest.mark.parametrize("text", ["<s>the man", "the</s>man", " <pad> the  man</s> ", "<unk>"])
def test_special_tokens_in_a_text_are_read_as_such_and_decode_exactly(tokenizer, text):
    ids = tokenizer(text, add_special_tokens=False).input_ids
    assert sum(i <= 3 for i in ids) == text.count("<")
    assert tokenizer.decode(ids) == text
    plain = tokenizer(text, split_special_tokens=True, add_special_tokens=False).input_ids
    assert min(plain) > 3
    assert tokenizer.decode(plain, skip_special_tokens=True) == text


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_train_is_sentencepiece_training_with_lossless_defaults(model_type):
    texts = sentences(7, 300)
    tokenizer = OdeTransformerTokenizer.train(iter(texts), vocab_size=400, model_type=model_type)
    model = train_sentencepiece(texts, vocab_size=400, hard_vocab_limit=True, model_type=model_type)
    assert len(tokenizer) == 400
    expected = OdeTransformerTokenizer.from_sentencepiece(model)
    assert tokenizer.backend_tokenizer.to_str() == expected.backend_tokenizer.to_str()


def test_training_twice_gives_the_same_tokenizer_and_prints_nothing(capfd):
    train_sentencepiece(sentences(8, 200), minloglevel=0)  # the level stays until the next training sets another
    assert "Starts training" in capfd.readouterr().err
    first, second = (OdeTransformerTokenizer.train(sentences(8, 200), 400, "unigram") for _ in range(2))
    assert first.backend_tokenizer.to_str() == second.backend_tokenizer.to_str()
    assert capfd.readouterr() == ("", "")


def test_train_passes_options_on():
    options = {"control_symbols": ["<2de>", "<2fr>"], "add_dummy_prefix": False, "split_digits": True}
    tokenizer = OdeTransformerTokenizer.train(sentences(0, 100), 400, **options)
    assert tokenizer.extra_special_tokens == ["<2de>", "<2fr>"]
    assert tokenizer.convert_tokens_to_ids(["<2de>", "<2fr>"]) == [4, 5]
    assert tokenizer("<2de> man").input_ids[0] == 4
    assert not tokenizer.tokenize("man")[0].startswith("▁")


@pytest.mark.parametrize("language", ["en", "de", "cs"])
def test_punctuation_is_normalized_as_by_moses(language):
    normalizer, rng = text_normalizer(f"moses_{language}"), random.Random(0)
    moses = MosesPunctNormalizer(language, norm_quote_commas=False)
    marks = "ab12 \u00a0\u00ab\u00bb\u201c\u201d\u201e\u2018\u2019\u00b4`''().,:;!?%\u2026\u2013\u2014\u00baCcmn\"\r"
    for text in [*HARD_TEXTS, *sentences(1, 50), *("".join(rng.choices(marks, k=25)) for _ in range(3000))]:
        assert normalizer.normalize_str(text) == moses.normalize(text)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_texts_are_encoded_as_they_are_normalized_in_training(model_type, tmp_path):
    """Also by a saved tokenizer, without this package."""
    texts = [unicodedata.normalize("NFD", text).replace(" ", "\u00a0") for text in sentences(3, 200)]
    normalized = [unicodedata.normalize("NFKC", text) for text in texts]
    OdeTransformerTokenizer.train(texts, 400, model_type, normalization="nfkc").save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    plain = OdeTransformerTokenizer.train(normalized, 400, model_type)
    assert tokenizer.get_vocab() == plain.get_vocab()
    assert tokenizer(texts)["input_ids"] == plain(normalized)["input_ids"] != plain(texts)["input_ids"]
    assert tokenizer.batch_decode(tokenizer(texts)["input_ids"], skip_special_tokens=True) == normalized


def test_train_leaves_no_text_out_for_its_length():
    tokenizer = OdeTransformerTokenizer.train(["the man " * 2000 + "ж"], 300, hard_vocab_limit=False)
    assert tokenizer.convert_tokens_to_ids("ж") != tokenizer.unk_token_id


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"vocab_size": 10**6}, r"1000000.* <= \d+"), ({"texts": ["\ud800"]}, "surrogates")]
    + [({"colour": "red"}, "colour"), ({"pad_id": 5}, "special ids")],
    ids=str,
)
def test_train_says_what_is_wrong(arguments, message):
    with pytest.raises(ValueError, match=message):
        OdeTransformerTokenizer.train(**{"texts": sentences(0, 50), "vocab_size": 400, **arguments})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bos_id": 1, "pad_id": 0}, "special ids .*'bos': 1, 'pad': 0.* must have .*'bos': 0"),
        ({"model_type": "char"}, "type 'char', but must have one of"),
        ({"user_defined_symbols": ["<x>"]}, "user_defined_symbols"),
    ],
    ids=str,
)
def test_from_sentencepiece_refuses_what_it_cannot_reproduce(options, message):
    model = train_sentencepiece(sentences(0, 50), **options)
    with pytest.raises(ValueError, match=message):
        OdeTransformerTokenizer.from_sentencepiece(model)


def test_from_sentencepiece_reads_a_file(tmp_path, model, reference):
    (tmp_path / "tokenizer.model").write_bytes(model)
    tokenizer = OdeTransformerTokenizer.from_sentencepiece(tmp_path / "tokenizer.model")
    assert_same_ids(tokenizer, reference, sentences(9, 20))


def test_from_pretrained_of_a_folder_without_tokenizer_fails(tmp_path):
    with pytest.raises(OSError, match=r"holds no tokenizer\.json"):
        OdeTransformerTokenizer.from_pretrained(tmp_path)


def test_saved_tokenizer_is_unchanged_when_loaded(tmp_path, tokenizer):
    """And without the truncation of its last call."""
    tokenizer(["a text"], truncation=True, max_length=3, padding=True)
    tokenizer.save_pretrained(tmp_path)
    assert len(Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode("a much longer text").ids) > 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tokenizer.json", "tokenizer_config.json"]
    config = json.loads((tmp_path / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert config["tokenizer_class"] == "TokenizersBackend"
    assert "auto_map" not in config
    loaded = OdeTransformerTokenizer.from_pretrained(tmp_path)
    assert loaded.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()
    assert (loaded.add_bos_token, loaded.add_eos_token) == (False, True)


def test_saved_settings_hold_and_can_be_changed_when_loading(tmp_path, tokenizer, reference):
    ids = reference.encode("the man")
    plain = OdeTransformerTokenizer(tokenizer_object=tokenizer.backend_tokenizer, add_eos_token=False)
    plain.save_pretrained(tmp_path)
    assert OdeTransformerTokenizer.from_pretrained(tmp_path)("the man").input_ids == ids
    changed = OdeTransformerTokenizer.from_pretrained(tmp_path, add_bos_token=True, add_eos_token=True)
    assert changed("the man").input_ids == [0, *ids, 2]
    # What continues a prompt has its space, for transformers' own class too; whole texts have none in front.
    assert AutoTokenizer.from_pretrained(tmp_path).decode(ids) == " the man"
    assert changed.decode(ids) == tokenizer.decode(ids) == "the man"


def test_auto_tokenizer_loads_it_without_this_package_and_without_remote_code(tmp_path):
    texts = [*HARD_TEXTS, *sentences(10, 20)]
    expected = {}
    for model_type in MODEL_TYPES:
        tokenizer = OdeTransformerTokenizer.train(sentences(0, 200), 400, model_type)
        tokenizer.save_pretrained(tmp_path / model_type)
        expected[model_type] = tokenizer(texts).input_ids
        # The config of a published model: a type that transformers does not know, and remote code.
        remote = {"AutoConfig": "configuration_x.XConfig", "AutoModelForSeq2SeqLM": "modeling_x.XModel"}
        config = {"model_type": "ode_transformer", "auto_map": remote}
        (tmp_path / model_type / "config.json").write_text(json.dumps(config), encoding="utf-8")
    script = """
import json, sys
sys.modules["modeling_ode_transformer"] = sys.modules["sentencepiece"] = None
from transformers import AutoTokenizer
folder, model_types, texts = json.loads(sys.argv[1])
result = {}
for model_type in model_types:
    tokenizer = AutoTokenizer.from_pretrained(f"{folder}/{model_type}", trust_remote_code=False, local_files_only=True)
    ids = tokenizer(texts).input_ids
    assert tokenizer.batch_decode(ids, skip_special_tokens=True) == texts
    result[model_type] = ids
print("RESULT", json.dumps(result))
"""
    arguments = json.dumps([str(tmp_path), MODEL_TYPES, texts])
    printed = run_python(script, tmp_path, arguments, run=subprocess.run)  # transformers imports sentencepiece
    (result,) = re.findall("^RESULT (.*)$", printed, re.MULTILINE)
    assert json.loads(result) == expected


def test_tokens_point_at_their_characters(tokenizer):
    text = "  the man läuft 世界"
    offsets = tokenizer(text, return_offsets_mapping=True, add_special_tokens=False).offset_mapping
    assert offsets[-1][1] == len(text)
    for token, (start, end) in zip(tokenizer.tokenize(text), offsets, strict=True):
        if not token.startswith("<0x"):
            assert token.replace("▁", "").strip() == text[start:end].strip()
