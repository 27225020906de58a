# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""What is said about gates."""

import json
import math

import inspect_gates
import pytest
import quickstart
import torch

from modeling_ode_transformer import OdeTransformerDecoderConfig, OdeTransformerForCausalLM, OdeTransformerTokenizer
from modeling_ode_transformer.training.tasks import language_model

from .conftest import build


def make_model(**changes):
    torch.manual_seed(0)
    options = {"decoder_solver": "rk2", "decoder_coefficients": "gate", "decoder_layers": 2, **changes}
    options |= {"vocab_size": 30, "d_model": 16, "decoder_attention_heads": 2, "decoder_ffn_dim": 32}
    return OdeTransformerForCausalLM(OdeTransformerDecoderConfig(**options)).double()


def rows_of(model, blocks):
    rows, _ = inspect_gates.inspect_gates(model, [({"input_ids": blocks[0]}, blocks[1])])
    return rows


@pytest.fixture
def blocks():
    tokens = torch.randint(4, 30, (3, 9), generator=torch.Generator().manual_seed(1))
    return tokens[:, :-1], tokens[:, 1:]


def test_a_gate_that_sees_nothing_says_its_bias(blocks):
    """With W = 0 the logit is b and the first stage's weight sigmoid(b), for every token."""
    model = make_model()
    (gate,) = (module for name, module in model.named_modules() if name.endswith("solver_coefficients.gate"))
    torch.nn.init.zeros_(gate.weight)
    torch.nn.init.constant_(gate.bias, -2.0)
    ((name, row),) = rows_of(model, blocks).items()
    assert name == "model.solver_coefficients"
    assert (row["logit"], row["spread"], row["of_mean"]) == (-2, 0, -2)
    assert row["weight_1"] == pytest.approx(1 / (1 + math.exp(2))) and row["shut"] == 0
    for bias in (-math.log(19) - 1e-6, math.log(19) + 1e-6):  # 0.05 and 0.95
        torch.nn.init.constant_(gate.bias, bias)
        assert rows_of(model, blocks)["model.solver_coefficients"]["shut"] == 1


def test_stages_are_described_by_their_size(blocks):
    """What the gate is given, recorded independently: the root mean square of each half."""
    model, given = make_model(decoder_layers=1), []
    coefficients = model.model.solver_coefficients
    row = rows_of(model, blocks)["model.solver_coefficients"]
    coefficients.register_forward_pre_hook(lambda module, args: given.extend(args[0]))
    with torch.no_grad():
        model(blocks[0])
    for stage, name in zip(given, ("stage_1", "stage_2"), strict=True):
        assert row[name] == pytest.approx(stage.norm().item() / math.sqrt(stage.numel()))


def test_models_without_gates_are_refused(blocks):
    with pytest.raises(ValueError, match="no gate"):
        rows_of(make_model(decoder_coefficients="fixed"), blocks)


def test_the_command_reads_whole_blocks_of_a_text(tmp_path, capsys):
    """Its numbers are those of the blocks, cut by hand."""
    words = [f"w{i}" for i in range(26)]
    tokenizer = language_model.build_tokenizer([" ".join(words)])
    make_model().float().save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "text.txt").write_text("w1 w2 w3\nw4 w5 w6 w7\n")
    model = OdeTransformerForCausalLM.from_pretrained(tmp_path)
    argv = [str(tmp_path), "--text_file", str(tmp_path / "text.txt"), "--block_size", "4"]
    eos, ids = tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids
    stream = [eos, *ids(["w1", "w2", "w3"]), eos, *ids(["w4", "w5", "w6", "w7"]), eos]
    blocks = [torch.tensor([stream[i : i + 4] for i in (start, start + 4)]) for start in (0, 1)]
    assert inspect_gates.main(argv) == rows_of(model, blocks)
    assert "model.solver_coefficients\n  logit, mean over tokens: " in capsys.readouterr().out
    (tmp_path / "gates.json").write_text('{"other": {}}')
    rows = inspect_gates.main([*argv, "--output_file", str(tmp_path / "gates.json")])
    assert json.loads((tmp_path / "gates.json").read_text()) == {"other": {}, tmp_path.name: rows}
    with pytest.raises(ValueError, match="no block of 40 words"):
        inspect_gates.main([*argv[:-1], "40"])


def test_encoder_decoders_are_read_pair_by_pair_and_drawn(tmp_path):
    """Against the gates of the padded batch, of which padding is left out by hand, and the loss of the model."""
    texts = [quickstart.english(number) for number in range(0, 9000, 7)]
    tokenizer = OdeTransformerTokenizer.train(texts, 290, hard_vocab_limit=False)
    tokenizer.save_pretrained(tmp_path)
    gated = {"decoder_solver": "rk2", "decoder_coefficients": "gate", "tie_word_embeddings": False}
    model = build(vocab_size=len(tokenizer), dropout=0.0, **gated)
    model.save_pretrained(tmp_path)
    (tmp_path / "text.en").write_text("seven\nseven hundred and ninety\ntwo\n")
    (tmp_path / "text.de").write_text("two hundred six\nfour\nsix\n")
    argv = [str(tmp_path), "--text_file", str(tmp_path / "text.en"), "--num_blocks", "2"]
    with pytest.raises(ValueError, match="--target_file is needed for an encoder-decoder"):
        inspect_gates.main(argv)
    picture = tmp_path / "gates.svg"
    argv += ["--target_file", str(tmp_path / "text.de"), "--picture", str(picture)]
    rows = inspect_gates.main(argv)
    assert list(rows) == ["model.encoder.solver_coefficients", "model.decoder.solver_coefficients"]

    inputs = tokenizer(["seven", "seven hundred and ninety"], padding=True, return_tensors="pt")
    labels = tokenizer(["two hundred six", "four"], padding=True, return_tensors="pt")
    masks = {"encoder": inputs["attention_mask"].bool(), "decoder": labels["attention_mask"].bool()}
    labels = labels["input_ids"].masked_fill(~masks["decoder"], -100)
    given = {stack: [] for stack in masks}
    for stack, each in given.items():
        gate = getattr(model.model, stack).solver_coefficients.gate
        gate.register_forward_hook(lambda gate, args, logits, each=each: each.append(logits[..., 0].sigmoid()))
    model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], labels=labels).loss.backward()
    for (name, row), (stack, steps) in zip(rows.items(), given.items(), strict=True):
        kept = torch.cat([step[masks[stack]] for step in steps])
        assert len(steps) == {"encoder": 3, "decoder": 2}[stack]
        assert row["weight_1"] == pytest.approx(kept.mean().item(), abs=1e-5)
        gate = model.get_submodule(name).gate
        gradient = max(parameter.grad.abs().max().item() for parameter in gate.parameters())
        assert row["gradient"] == pytest.approx(gradient, rel=1e-3)
    assert picture.read_text().count('<g id="axes_') == 2
