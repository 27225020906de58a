# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""What is said about gates."""

import math

import inspect_gates
import pytest
import torch

from modeling_ode_transformer import OdeTransformerConfig, OdeTransformerForCausalLM
from modeling_ode_transformer.training.tasks import language_model


def make_model(**changes):
    torch.manual_seed(0)
    options = {"decoder_solver": "rk2", "decoder_coefficients": "gate", "decoder_layers": 2, **changes}
    config = OdeTransformerConfig(vocab_size=30, d_model=16, decoder_attention_heads=2, decoder_ffn_dim=32, **options)
    return OdeTransformerForCausalLM(config).double()


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
    ((name, row),) = inspect_gates.inspect_gates(model, *blocks).items()
    assert name == "model.solver_coefficients"
    assert (row["logit"], row["spread"], row["of_mean"]) == (-2, 0, -2)
    assert row["weight_1"] == pytest.approx(1 / (1 + math.exp(2)))


def test_gradients_are_those_of_the_loss_and_vanish_where_the_gate_is_shut(blocks):
    """The largest gradient against differences of the loss; with a logit of about -40 it is below Adam's epsilon."""
    model = make_model()
    (gate,) = (module for name, module in model.named_modules() if name.endswith("solver_coefficients.gate"))
    largest = inspect_gates.inspect_gates(model, *blocks)["model.solver_coefficients"]["gradient"]

    def loss():
        with torch.no_grad():
            return torch.nn.functional.cross_entropy(model(blocks[0]).logits.flatten(0, 1), blocks[1].flatten())

    differences = []
    for parameter in gate.parameters():
        flat = parameter.data.view(-1)
        for i in range(flat.numel()):
            value = flat[i].item()
            flat[i] = value + 1e-5
            above = loss()
            flat[i] = value - 1e-5
            differences.append(abs((above - loss()) / 2e-5).item())
            flat[i] = value
    assert largest == pytest.approx(max(differences), rel=1e-5)

    torch.nn.init.constant_(gate.bias, -40.0)
    assert inspect_gates.inspect_gates(model, *blocks)["model.solver_coefficients"]["gradient"] < 1e-8 < largest


def test_stages_are_described_by_their_size(blocks):
    """What the gate is given, recorded independently: the root mean square of each half."""
    model, given = make_model(decoder_layers=1), []
    coefficients = model.model.solver_coefficients
    row = inspect_gates.inspect_gates(model, *blocks)["model.solver_coefficients"]
    coefficients.register_forward_pre_hook(lambda module, args: given.extend(args[0]))
    with torch.no_grad():
        model(blocks[0])
    for stage, name in zip(given, ("stage_1", "stage_2"), strict=True):
        assert row[name] == pytest.approx(stage.norm().item() / math.sqrt(stage.numel()))


def test_models_without_gates_are_refused(blocks):
    with pytest.raises(ValueError, match="no gate"):
        inspect_gates.inspect_gates(make_model(decoder_coefficients="fixed"), *blocks)


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
    assert inspect_gates.main(argv) == inspect_gates.inspect_gates(model, *blocks)
    assert "model.solver_coefficients\n  logit, mean over tokens: " in capsys.readouterr().out
    with pytest.raises(ValueError, match="no block of 40 words"):
        inspect_gates.main([*argv[:-1], "40"])
