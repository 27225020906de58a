# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""What `export-onnx` writes beside the graphs, and what it refuses; test_pages.py runs the graphs."""

import json

import pytest
import quickstart
from transformers import AutoTokenizer, exporters

from modeling_ode_transformer import OdeTransformerForCausalLM, OdeTransformerTokenizer, cli

from ..conftest import build


class Recorder:
    """In the place of `OnnxExporter`: it notes what is exported."""

    calls = []

    def export(self, model, examples, config):
        self.calls.append((model, examples))
        return self

    export_for_generation = lambda self, model, examples, config, **options: self.export(model, examples, config)  # noqa: E731

    def save_pretrained(self, folder):
        folder.mkdir(parents=True)


@pytest.mark.parametrize(
    "saved, max_length",
    [
        ({"num_beams": 4, "max_length": 30}, 30),
        ({"max_new_tokens": 9, "max_length": 30}, 10),
        ({"min_new_tokens": 1}, 256),
    ],
)
def test_tokenizers_and_a_greedy_configuration_are_beside_the_graphs(saved, max_length, tmp_path, monkeypatch):
    monkeypatch.setattr(exporters, "OnnxExporter", Recorder)
    monkeypatch.setattr(Recorder, "calls", [])
    tokenizer = OdeTransformerTokenizer.train(map(quickstart.english, range(0, 9000, 7)), 300)
    german = OdeTransformerTokenizer.train(map(quickstart.german, range(0, 9000, 7)), 290)
    separate = dict.fromkeys(("share_encoder_decoder_embeddings", "tie_word_embeddings"), False)
    model = build(vocab_size=300, decoder_vocab_size=290, **separate)
    model.generation_config.update(**saved, allow_custom_entries=True)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    german.save_pretrained(tmp_path / "model" / "target_tokenizer")
    cli.run(["export-onnx", str(tmp_path / "model"), "--output_dir", str(tmp_path / "onnx")])
    folders = {path.name for path in (tmp_path / "onnx").iterdir() if path.is_dir()}
    assert folders == {"decoder", "encoder", "target_tokenizer"}
    assert AutoTokenizer.from_pretrained(tmp_path / "onnx").get_vocab() == tokenizer.get_vocab()
    assert AutoTokenizer.from_pretrained(tmp_path / "onnx" / "target_tokenizer").get_vocab() == german.get_vocab()
    options = json.loads((tmp_path / "onnx" / "generation_config.json").read_text())
    assert (options["max_length"], options["decoder_start_token_id"], options["eos_token_id"]) == (max_length, 2, 2)
    assert options["pad_token_id"] == 1 and options.get("num_beams", 1) == 1 and "max_new_tokens" not in options
    (encoder, examples), (decoder, _) = Recorder.calls
    assert encoder is decoder.get_encoder() and examples["attention_mask"].sum(1).diff() != 0

    with pytest.raises(ValueError, match="onnx is not an empty folder"):
        cli.run(["export-onnx", str(tmp_path / "model"), "--output_dir", str(tmp_path / "onnx")])


def test_a_language_model_is_refused(tmp_path):
    build(OdeTransformerForCausalLM).save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match="is a language model"):
        cli.run(["export-onnx", str(tmp_path / "model"), "--output_dir", str(tmp_path / "onnx")])
    assert not (tmp_path / "onnx").exists()
