# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Models with a recurrence encoder: starting from one without, training, compiling, saving, and what is refused."""

import json
import re

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM

import modeling_ode_transformer as ode

from .conftest import assert_close, randomize, tiny_config
from .processes import run_python
from .test_hub import WITHOUT_PACKAGE
from .test_recurrence import FORMS, KINDS, build, recurrence_config


def build_without(**fields):
    """A model of the core, off its start."""
    torch.manual_seed(0)
    return randomize(ode.OdeTransformerForConditionalGeneration(tiny_config(**fields)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layers", ["top", "all"])
def test_a_trained_model_starts_with_its_own_outputs(kind, layers, tmp_path, batch):
    for number, fields in enumerate(({}, {"decoder_solver": "rk4", "vector_field": "sublayers"})):
        trained = build_without(**fields)
        trained.save_pretrained(tmp_path / str(number))
        model, report = ode.OdeTransformerRecurrenceForConditionalGeneration.from_pretrained(
            tmp_path / str(number), **KINDS[kind], recurrence_decoder_layers=layers, output_loading_info=True
        )
        assert report["missing_keys"] and all("recurrence" in name for name in report["missing_keys"])
        assert not report["unexpected_keys"] and not report["mismatched_keys"]
        assert_close(model(**batch).logits, trained(**batch).logits)
        # One update, and it is put to use.
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(**batch, labels=batch["decoder_input_ids"]).loss.backward()
        optimizer.step()
        new = model.model.decoder.layers[-1].recurrence_attn.out_proj.weight
        assert new.abs().max() > 1e-4
        model.zero_grad()
        model(**batch, labels=batch["decoder_input_ids"]).loss.backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None and (parameter.grad.abs().max() > 0 or "k_proj.bias" in name), name


def test_new_parameters_have_their_initial_values(tmp_path):
    """Xavier's bounds of the matrices as they are stored, biases 0, the new sublayer's output 0 where no gate weighs
    it; of a new model and of one that is loaded without them."""
    fields = {"d_model": 256, "encoder_ffn_dim": 512}
    ode.OdeTransformerForConditionalGeneration(tiny_config(**fields)).save_pretrained(tmp_path)
    for kind in (*KINDS.values(), {**KINDS["birnn"], "recurrence_integration": "gated_sum"}):
        torch.manual_seed(0)
        new = ode.OdeTransformerRecurrenceForConditionalGeneration(recurrence_config(**fields, **kind))
        loaded = ode.OdeTransformerRecurrenceForConditionalGeneration.from_pretrained(tmp_path, **kind)
        for model in (new, loaded):
            parameters = dict(model.model.encoder.recurrence.named_parameters())
            top = model.model.decoder.layers[-1]
            if top.recurrence_gate is not None:
                parameters |= top.recurrence_gate.named_parameters(prefix="gate")
            else:
                output = top.recurrence_attn.out_proj
                assert output.weight.abs().max() == output.bias.abs().max() == 0
            assert ("gate.weight" in parameters) == ("recurrence_integration" in kind)
            for name, parameter in parameters.items():
                if "norm" in name:
                    assert (parameter == (1 if "weight" in name else 0)).all()
                elif "bias" in name:
                    assert (parameter == 0).all(), name
                else:
                    bound = (6 / sum(parameter.shape[-2:])) ** 0.5
                    assert 0.99 * bound < parameter.abs().max().item() <= bound, name


def test_the_forward_pass_exports(batch):
    model = build(**FORMS[7])
    exported = torch.export.export(model, (), {**batch, "use_cache": False}, strict=False)
    with torch.no_grad():
        assert_close(exported.module()(**batch, use_cache=False).logits, model(**batch).logits)


def test_a_saved_model_loads_without_the_package_and_keeps_its_code(tmp_path):
    """Also one that began as a model without a recurrence encoder, whose configuration names other classes."""
    build_without().save_pretrained(tmp_path / "core")
    model = ode.OdeTransformerRecurrenceForConditionalGeneration.from_pretrained(tmp_path / "core", **KINDS["biarn"])
    folders = [tmp_path / name for name in ("first", "second", "third")]
    model.generation_config.max_len_a, model.generation_config.max_len_b = 0.2, 2
    randomize(model).save_pretrained(folders[0])
    AutoModelForSeq2SeqLM.from_pretrained(folders[0]).save_pretrained(folders[1])
    printed = run_python(WITHOUT_PACKAGE, tmp_path, str(folders[1]), str(folders[2]))
    numbers = [float(number) for number in re.findall(r"^sum (\S+)$", printed, re.MULTILINE)]
    ids = torch.arange(4, 9)[None]
    expected = model(ids, decoder_input_ids=ids).logits.double().sum().item()
    assert numbers == pytest.approx([expected] * 2, abs=1e-3)
    own = ("configuration_recurrence_ode_transformer", "modeling_recurrence_ode_transformer")
    for folder in folders:
        files = {path.stem for path in folder.glob("*.py")}
        assert {*own, "recurrence_ode_transformer", "modeling_ode_transformer"} <= files
        auto_map = json.loads((folder / "config.json").read_text())["auto_map"]
        assert auto_map == {
            "AutoConfig": f"{own[0]}.OdeTransformerRecurrenceConfig",
            "AutoModel": f"{own[1]}.OdeTransformerRecurrenceModel",
            "AutoModelForSeq2SeqLM": f"{own[1]}.OdeTransformerRecurrenceForConditionalGeneration",
        }
