# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Word perplexity and bits per byte, against closed forms, a plain loop and the language modeling script."""

import math
import random

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from modeling_ode_transformer import OdeTransformerDecoderConfig, OdeTransformerForCausalLM, OdeTransformerTokenizer
from modeling_ode_transformer.metrics.perplexity import bits_per_byte, count_bytes, model_perplexity, word_perplexity
from modeling_ode_transformer.text_files import read_lines
from modeling_ode_transformer.training.tasks import language_model


RNG = random.Random(0)
KNOWN = "the a bank market fell rose quickly of".split()
LINES = [" ".join(RNG.choices(KNOWN, k=RNG.randint(1, 9))) for _ in range(11)]
# An empty line, spaces around words, and words that the vocabulary lacks.
LINES += ["", "  the novel  market ", "unheard"]
WORDS = sum(len(line.split()) + 1 for line in LINES)


def causal_lm(tokenizer, **kwargs):
    torch.manual_seed(0)
    options = {"d_model": 16, "decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 16}
    options |= {"vocab_size": len(tokenizer), "layer_history": "none", "dropout": 0.5}
    return OdeTransformerForCausalLM(OdeTransformerDecoderConfig(**options, **kwargs)).eval()


def gpt2(tokenizer, **kwargs):
    torch.manual_seed(0)
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = GPT2Config(vocab_size=len(tokenizer), n_embd=16, n_layer=1, n_head=2, **ids, **kwargs)
    return GPT2LMHeadModel(config).eval()


@pytest.fixture(scope="module")
def tokenizer():
    return language_model.build_tokenizer(LINES[:11])


@pytest.fixture(scope="module")
def subword_tokenizer():
    return OdeTransformerTokenizer.train(LINES * 20, vocab_size=300)


@pytest.fixture(scope="module")
def folder(tokenizer, tmp_path_factory):
    """A saved model of words."""
    folder = tmp_path_factory.mktemp("model")
    causal_lm(tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def nll_by_a_plain_loop(model, tokenizer, lines):
    """Each line after the end of a sentence, one token at a time from the logits of its prefix."""
    total, eos = 0.0, tokenizer.eos_token_id
    for line in lines:
        ids = [eos, *tokenizer(line, add_special_tokens=False)["input_ids"], eos]
        for i in range(1, len(ids)):
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([ids[:i]])).logits[0, -1]
            total -= logits.double().log_softmax(-1)[ids[i]].item()
    return total


def test_the_perplexity_of_equally_likely_words_is_their_number():
    # 7 words of probability 1/50 each
    assert word_perplexity(7 * math.log(50), 7) == pytest.approx(50)
    assert word_perplexity([2 * math.log(50), 5 * math.log(50)], [2, 5]) == pytest.approx(50)
    # the mean is over words, not over texts
    assert word_perplexity([math.log(8), 0.0], [1, 2]) == pytest.approx(2)


@pytest.mark.parametrize("batch_size", [1, 3, 50])
def test_a_models_perplexity_equals_a_plain_loop(tokenizer, batch_size):
    model = causal_lm(tokenizer)
    result = model_perplexity(model, tokenizer, LINES, batch_size=batch_size)
    nll = nll_by_a_plain_loop(model, tokenizer, LINES)
    assert result == {
        "perplexity": pytest.approx(math.exp(nll / WORDS), rel=1e-6),
        "perplexity_convention": "of a word, ends of lines included",
        "bits_per_byte": pytest.approx(nll / math.log(2) / len("".join(f"{line}\n" for line in LINES)), rel=1e-6),
        "nll": pytest.approx(nll, rel=1e-6),
        "words": WORDS,
        "tokens": WORDS,
        "unknown_tokens": 2,
        "bytes": len("".join(f"{line}\n" for line in LINES)),
    }


def test_subwords_are_normalized_by_words_and_by_bytes(subword_tokenizer):
    """Whatever the model: GPT-2 of transformers, and a uniform one, whose numbers have closed forms."""
    assert count_bytes(["fünf 😀", "", " a "]).tolist() == [len("fünf 😀\n".encode()), 1, 4]
    # 6 bytes of probability 1/256 each are 8 bits each.
    assert bits_per_byte(6 * math.log(256), 6) == pytest.approx(8)
    model = gpt2(subword_tokenizer, n_positions=40)
    result = model_perplexity(model, subword_tokenizer, LINES)
    nll = nll_by_a_plain_loop(model, subword_tokenizer, LINES)
    assert result["words"] == WORDS < result["tokens"]
    assert result["perplexity"] == pytest.approx(math.exp(nll / WORDS), rel=1e-6)

    torch.nn.init.zeros_(model.lm_head.weight)
    result = model_perplexity(model, subword_tokenizer, LINES)
    expected = len(subword_tokenizer) ** (result["tokens"] / WORDS)
    assert result["perplexity"] == pytest.approx(expected, rel=1e-5)
    expected = result["tokens"] * math.log2(len(subword_tokenizer)) / len("".join(f"{line}\n" for line in LINES))
    assert result["bits_per_byte"] == pytest.approx(expected, rel=1e-6)


def test_the_spelling_of_a_special_token_is_text(subword_tokenizer):
    """It is spelled in pieces, the three marks as bytes: no sentence ends there."""
    pieces = ["▁the", "▁", "<0x3C>", "<0x2F>", "s", "<0x3E>", "▁bank", "</s>"]
    line = "the </s> bank"
    model = gpt2(subword_tokenizer, n_positions=40)
    ids = torch.tensor([subword_tokenizer.convert_tokens_to_ids(["</s>", *pieces])])
    with torch.no_grad():
        nll = 8 * model(ids, labels=ids).loss.item()
    result = model_perplexity(model, subword_tokenizer, [line])
    assert (result["words"], result["tokens"]) == (4, 8)
    assert result["nll"] == pytest.approx(nll, rel=1e-5)


def test_a_tokenizer_without_an_end_of_sentence_is_refused(tokenizer):
    other = language_model.build_tokenizer(LINES)
    other.eos_token = None
    with pytest.raises(ValueError, match="has no end-of-sentence token: set its eos_token"):
        model_perplexity(causal_lm(tokenizer), other, LINES)


def test_the_command_scores_a_file_and_writes_the_log_likelihood_of_each_line(folder, tokenizer, write, printed):
    """Each is that of a plain loop over the line; in blocks, their sum is the text's. No file is replaced."""
    write({"text.gz": LINES})
    command = f"score perplexity --model {folder} --texts text.gz --json --nll_file"
    printed(f"{command} lines")
    expected = [nll_by_a_plain_loop(causal_lm(tokenizer), tokenizer, [line]) for line in LINES]
    assert [float(line) for line in read_lines("lines")] == pytest.approx(expected, rel=1e-5)
    scores = printed(f"{command} blocks --block_size 5 --batch_size 2")
    assert scores == model_perplexity(causal_lm(tokenizer), tokenizer, LINES, 5, 2)
    found = [float(line) for line in read_lines("blocks")]
    assert len(found) == len(LINES) and sum(found) == pytest.approx(scores["nll"])
    # The same words in another context.
    assert abs(scores["nll"] - sum(expected)) > 1e-3 and scores["words"] == WORDS
    with pytest.raises(FileExistsError, match=r"--nll_file lines exists: choose another one"):
        printed(f"{command} lines")


def test_a_model_that_is_saved_in_half_precision_is_scored_in_float32(tokenizer, write, printed):
    write({"text": LINES})
    model = causal_lm(tokenizer).to(torch.bfloat16)
    model.save_pretrained("model")
    tokenizer.save_pretrained("model")
    nll = printed("score perplexity --model model --texts text --json")["nll"]
    assert nll == pytest.approx(nll_by_a_plain_loop(model.float(), tokenizer, LINES), rel=1e-6)
