# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""A residual model in CTranslate2, converted by the code of the page: the tokens that `generate()` finds."""

import re
from pathlib import Path

import pytest
import torch

from modeling_ode_transformer import OdeTransformerTokenizer

from ..conftest import build, ids_of


ctranslate2 = pytest.importorskip("ctranslate2")

PAGE = Path(__file__).parents[2] / "docs" / "conversion.md"
WORDS = ["a", "man", "dog", "runs", "in", "the", "snow", "two"]


@pytest.fixture(scope="module")
def tokenizer():
    lines = [" ".join(WORDS[i:] + WORDS[:i]) for i in range(len(WORDS))]
    return OdeTransformerTokenizer.train(lines, vocab_size=300, hard_vocab_limit=False)


@pytest.fixture
def residual(tmp_path, monkeypatch, tokenizer):
    """A saved residual model with outputs of many tokens, beside the working directory of the page's code."""
    monkeypatch.chdir(tmp_path)
    fields = {"tie_word_embeddings": False, "share_encoder_decoder_embeddings": False}
    fields |= {"encoder_solver": "euler", "layer_history": "none", "max_relative_position": 0}
    fields |= {"decoder_attention_heads": 4}  # CTranslate2 takes the encoder's number for both
    model = build(vocab_size=len(tokenizer), **ids_of(tokenizer), **fields)
    torch.nn.init.normal_(model.lm_head.weight)
    model.save_pretrained("residual")
    tokenizer.save_pretrained("residual")
    return model


@pytest.mark.parametrize("num_beams", [1, 4])
def test_a_residual_model_gives_the_same_tokens_in_ctranslate2(residual, tokenizer, num_beams):
    section = PAGE.read_text(encoding="utf-8").partition("### To CTranslate2")[2]
    code = re.search(r"```python\n(.*?)```", section, re.DOTALL)[1]
    exec(code, {})
    translator = ctranslate2.Translator("residual_ct2", compute_type="float32", intra_threads=1)
    generator = torch.Generator().manual_seed(0)
    outputs = []
    for length in range(2, 10):
        text = " ".join(WORDS[i] for i in torch.randint(len(WORDS), (length,), generator=generator))
        inputs = tokenizer(text, return_tensors="pt")
        limits = {"min_new_tokens": 6, "max_new_tokens": 20}
        expected = residual.generate(**inputs, num_beams=num_beams, **limits)[0, 1:].tolist()
        pieces = tokenizer.convert_ids_to_tokens(inputs["input_ids"][0].tolist())
        limits = {"min_decoding_length": 6, "max_decoding_length": 20}
        (result,) = translator.translate_batch([pieces], beam_size=num_beams, **limits, return_end_token=True)
        assert tokenizer.convert_tokens_to_ids(result.hypotheses[0]) == expected
        outputs.append(expected)
    assert len(set(map(tuple, outputs))) > 4 and len({token for output in outputs for token in output}) > 8
