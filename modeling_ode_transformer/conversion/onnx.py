# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Exports an encoder-decoder to ONNX, with all that a program without PyTorch needs to translate by greedy search.

    ode-transformer export-onnx multi30k_en_de --output_dir onnx

The folder holds `encoder/model.onnx`, `decoder/prefill.onnx` (the first step) and `decoder/decode.onnx` (all others),
the tokenizer or tokenizers, and `generation_config.json` with the token ids and the longest output. Its other options
that change the tokens of a greedy search, such as `min_new_tokens`, are not in the graphs: the program applies them.
"""

from pathlib import Path

import torch
from transformers import AutoModelForSeq2SeqLM

from ..generation_ode_transformer import position_limit
from ..inference.tokenizers import load_tokenizers
from ..model_folders import open_config, open_model
from ..text_files import check_empty_folder
from ..texts_ode_transformer import TARGET_TOKENIZER, without_truncation


# The longest output of a model without a limit, the start token included.
MAX_LENGTH = 256


def export_onnx(name: str | Path, output_dir: str | Path, **hub_options) -> None:
    """Writes the graphs, tokenizers and generation configuration of an encoder-decoder, in float32.

    Any number and length of sources can be given to the graphs. The outputs of one step are the inputs of the next
    one, under names that begin with "input." in the place of "output." or nothing.

    Args:
        name: Folder of a model with its tokenizer, or its name on the Hub.
        output_dir: Folder to write; it must be empty or new.
        hub_options: Those of `from_pretrained`.

    Raises:
        ImportError: onnx or onnxscript is not installed, or transformers is older than 5.23.
        ValueError: the model is not an encoder-decoder, or the folder is not empty.
        OSError: the model does not exist.
    """
    folder = Path(output_dir)
    check_empty_folder(folder)
    config = open_config(name, **hub_options)
    if not config.is_encoder_decoder:
        raise ValueError(f"{name} is a language model, but only encoder-decoders can be exported.")
    from transformers.exporters import OnnxConfig, OnnxExporter

    model = open_model(AutoModelForSeq2SeqLM, name, dtype=torch.float32, **hub_options)
    tokenizer, target_tokenizer = load_tokenizers(str(name), **hub_options)
    config = model.generation_config
    limit = (config.max_new_tokens and config.max_new_tokens + 1) or config.max_length or MAX_LENGTH
    config.update(
        **{"num_beams": 1, "length_penalty": None, "early_stopping": None, "max_new_tokens": None},
        max_length=min(limit, position_limit(model.config) or limit),
        decoder_start_token_id=config.decoder_start_token_id or model.config.decoder_start_token_id,
    )
    model.config.custom_pipelines = {}
    # Two texts of different lengths: what differs between them is free in the graphs.
    examples = tokenizer(["one two three", "one"], padding=True, return_tensors="pt")
    examples = {key: examples[key] for key in ("input_ids", "attention_mask")}
    dynamic = OnnxConfig(dynamic=True)
    OnnxExporter().export(model.get_encoder(), examples, dynamic).save_pretrained(folder / "encoder")
    decoder = OnnxExporter().export_for_generation(model, examples, dynamic, multi_token_decode=True)
    decoder.save_pretrained(folder / "decoder")
    config.save_pretrained(folder)
    without_truncation(tokenizer).save_pretrained(folder)
    if target_tokenizer is not tokenizer:
        without_truncation(target_tokenizer).save_pretrained(folder / TARGET_TOKENIZER)
