# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Tokenizers of converted models against subword-nmt and a look-up as fairseq does it."""

import io
import random
import re
from collections import Counter
from pathlib import Path

import pytest
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe
from transformers import AutoTokenizer, TokenizersBackend

from modeling_ode_transformer import FairseqTokenizer, OdeTransformerConfig
from modeling_ode_transformer.conversion.fairseq_tokenizer import (
    make_tokenizer,
    pad_dictionary,
    read_bpe_codes,
    read_dictionary,
)

from .processes import run_python


SPECIAL = ["<Lua heritage>", "<pad>", "</s>", "<unk>"]
# Spellings of special tokens, separators and ends of words, white space that only fairseq splits at, marks that
# combine, characters outside the dictionary and the first plane, words that were never seen.
DIFFICULT = [
    "",
    "   ",
    "a",
    "</s> <pad> <unk> <Lua heritage> <s>",
    "x</s>y a</w> </w> @@ @@@ a@@ @@a a@@b",
    "na\u00a0no me\u2028ri \u3000 to\tka \x85 to\x1fka",
    "e\u0301te \u00e9te 🙂 na🙂no 漢字 ﬁ İ ß",
    "nananananananano lololololo aaaa aaaaa aaaaaaaa",
    "  two  spaces , &amp; &apos;s @-@  ",
    "zzqqxx jjvvww NANO Nano",
]


def sentences(count: int, seed: int) -> list[str]:
    """Lines of words that share syllables, some of them rare."""
    rng = random.Random(seed)
    syllables = [consonant + vowel for consonant in "bdklmnrst" for vowel in "aeiou"] + ["sch", "ñe", "ß", "-", "."]
    words = ["".join(rng.choices(syllables, k=rng.choice([1, 1, 2, 2, 3, 5]))) for _ in range(400)]
    weights = [1 / (rank + 1) for rank in range(len(words))]
    return [" ".join(rng.choices(words, weights, k=rng.randint(1, 12))) for _ in range(count)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Codes that subword-nmt learned, the same as fastBPE writes them, and a dictionary without the rare pieces."""
    folder = tmp_path_factory.mktemp("fairseq")
    lines = sentences(600, seed=0)
    codes = io.StringIO()
    learn_bpe(io.StringIO("\n".join(lines)), codes, 150)
    (folder / "codes").write_text(codes.getvalue(), encoding="utf-8")
    pairs = codes.getvalue().splitlines()[1:]
    counted = "".join(f"{pair} {1000 - i}\n" for i, pair in enumerate(pairs))
    (folder / "codes.fast").write_text(counted, encoding="utf-8")

    segmented = [subword_nmt(folder / "codes").process_line(line) for line in lines]
    counts = Counter(piece for line in segmented for piece in line.split())
    entries = [f"{piece} {count}\n" for piece, count in counts.most_common() if count > 8]
    (folder / "dict.txt").write_text("".join(entries), encoding="utf-8")
    return folder


def subword_nmt(path: Path) -> BPE:
    return BPE(io.StringIO(path.read_text(encoding="utf-8")))


def look_up(dictionary: Path, line: str) -> list[int]:
    """The ids of a segmented line as fairseq's dictionary gives them."""
    indices = {token: i for i, token in enumerate(SPECIAL)}
    for entry in dictionary.read_text(encoding="utf-8").splitlines():
        indices[entry[: entry.rindex(" ")]] = len(indices)
    return [indices.get(word, 3) for word in re.sub(r"\s+", " ", line).strip().split()] + [2]


def save_and_open(tokenizer, folder: Path):
    """The tokenizer as AutoTokenizer opens it from a model's folder."""
    OdeTransformerConfig().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("codes", ["codes", "codes.fast"])
def test_ids_are_those_of_subword_nmt_and_the_dictionary(corpus, tmp_path, codes):
    tokens, merges = read_dictionary(corpus / "dict.txt"), read_bpe_codes(corpus / codes)
    # The trap: merges whose result is not a token of the dictionary.
    made = [first + second for first, second in merges]
    made = {piece.removesuffix("</w>") if piece.endswith("</w>") else f"{piece}@@" for piece in made}
    missing, met = made - set(tokens), set()

    original = make_tokenizer(tokens, merges, model_max_length=99)
    reference = subword_nmt(corpus / "codes")
    for tokenizer in (original, save_and_open(original, tmp_path)):
        assert type(tokenizer) is FairseqTokenizer
        assert len(tokenizer) == len(tokens) and tokenizer.model_max_length == 99
        for line in DIFFICULT + sentences(200, seed=0) + sentences(200, seed=1):
            segmented = reference.process_line(line)
            assert tokenizer(line).input_ids == look_up(corpus / "dict.txt", segmented), line
            met |= missing.intersection(segmented.split())
    assert met


def test_ids_of_split_text_are_those_of_the_dictionary(corpus, tmp_path):
    tokens = read_dictionary(corpus / "dict.txt")
    reference = subword_nmt(corpus / "codes")
    original = make_tokenizer(tokens, model_max_length=99)
    for tokenizer in (original, save_and_open(original, tmp_path)):
        assert type(tokenizer) is TokenizersBackend
        assert len(tokenizer) == len(tokens) and tokenizer.model_max_length == 99
        for line in DIFFICULT + [reference.process_line(line) for line in sentences(200, seed=0)]:
            assert tokenizer(line).input_ids == look_up(corpus / "dict.txt", line), line


@pytest.mark.parametrize("split", [False, True])
def test_decoding_gives_the_text_back(corpus, split):
    reference = subword_nmt(corpus / "codes")
    tokens = read_dictionary(corpus / "dict.txt")
    tokenizer = make_tokenizer(tokens, None if split else read_bpe_codes(corpus / "codes"))
    compared = 0
    for line in sentences(300, seed=0):
        ids = tokenizer(reference.process_line(line) if split else line).input_ids
        if 3 not in ids:
            assert tokenizer.decode(ids, skip_special_tokens=True) == line
            compared += 1
    assert compared > 100
    # A word whose end is missing, as fairseq's --remove-bpe has it.
    pieces = [next(i for i, token in enumerate(tokens) if token.endswith("@@")), tokens.index("na")]
    opened = tokens[pieces[0]].removesuffix("@@")
    assert tokenizer.decode([pieces[1], *pieces]) == f"na {opened}na"
    assert tokenizer.decode([pieces[1], pieces[0]]) == f"na {opened}"


@pytest.mark.parametrize("codes", [None, "codes"])
def test_batches_pairs_and_special_tokens(corpus, codes):
    tokenizer = make_tokenizer(read_dictionary(corpus / "dict.txt"), codes and read_bpe_codes(corpus / codes))
    special = [tokenizer.bos_token_id, tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id]
    assert special == [0, 1, 2, 3]
    na = tokenizer.convert_tokens_to_ids("na")
    batch = tokenizer(["na na", "na"], padding=True, return_tensors="pt")
    assert batch.input_ids.tolist() == [[na, na, 2], [na, 2, 1]]
    assert batch.attention_mask.tolist() == [[1, 1, 1], [1, 1, 0]]
    assert set(batch) == {"input_ids", "attention_mask"}
    assert tokenizer("na", "na").input_ids == [na, 2, na, 2]
    assert tokenizer("na na na na\n", truncation=True, max_length=3).input_ids == [na, na, 2]
    assert tokenizer("na\nna").input_ids == [na, na, 2]
    assert tokenizer(text_target="na").input_ids == [na, 2]


WITHOUT_PACKAGE = """
sys.modules["modeling_ode_transformer"] = None
from transformers import AutoTokenizer
for subfolder in ("", "target_tokenizer"):
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], subfolder=subfolder, trust_remote_code=True)
    assert type(tokenizer).__module__.startswith("transformers_modules."), type(tokenizer)
    print(tokenizer(sys.argv[2]).input_ids)
"""


def test_a_saved_tokenizer_opens_without_the_package(corpus, tmp_path):
    folder = tmp_path / "model"
    tokens, merges = read_dictionary(corpus / "dict.txt"), read_bpe_codes(corpus / "codes")
    text = sentences(1, seed=3)[0]
    tokenizers = make_tokenizer(tokens, merges), make_tokenizer(tokens[:4] + tokens[:3:-1], merges)
    tokenizers[0].save_pretrained(folder)
    tokenizers[1].save_pretrained(folder / "target_tokenizer")
    # The package opens it and saves it again.
    AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
    printed = run_python(WITHOUT_PACKAGE, tmp_path, str(folder), text)
    assert printed.splitlines() == [str(tokenizer(text).input_ids) for tokenizer in tokenizers]
    assert tokenizers[0](text).input_ids != tokenizers[1](text).input_ids


def test_dictionaries_are_padded_as_fairseq_pads_them_and_no_further():
    tokens = [*SPECIAL, "a", "b"]
    assert pad_dictionary(tokens, 6, "dict.txt") == tokens
    assert pad_dictionary(tokens, 8, "dict.txt") == [*tokens, "madeupword0000", "madeupword0001"]
    for size in (5, 7, 16):
        with pytest.raises(ValueError, match=rf"dict.txt has 6 tokens .* embeds {size}"):
            pad_dictionary(tokens, size, "dict.txt")


@pytest.mark.parametrize(
    "content", ["l o\nlo w</w>\n", "#version: 0.1\nl o\n", "#version: 0.2\nl o\nlo w</w> 3\n", "l o 30\nlo w</w>\n"]
)
def test_other_codes_are_refused(content, tmp_path):
    path = tmp_path / "codes"
    path.write_text(content)
    with pytest.raises(ValueError, match="codes holds neither BPE codes of subword-nmt"):
        read_bpe_codes(path)


def test_a_pair_that_comes_twice_has_its_first_rank(tmp_path):
    path = tmp_path / "codes"
    path.write_text("#version: 0.2\na b\nb c</w>\na b\n")
    assert read_bpe_codes(path) == [("a", "b"), ("b", "c</w>")]
    assert make_tokenizer([*SPECIAL, "ab@@", "c"], read_bpe_codes(path)).tokenize("abc") == ["ab@@", "c"]
    assert subword_nmt(path).process_line("abc") == "ab@@ c"
