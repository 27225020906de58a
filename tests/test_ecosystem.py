# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The models in other tools: PEFT, accelerate, torch.compile, quantizers, and what example scripts do."""

import copy

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from torch import nn
from transformers import AutoModelForSeq2SeqLM, PreTrainedTokenizerFast, TorchAoConfig
from transformers.generation import CompileConfig

from modeling_ode_transformer import OdeTransformerForCausalLM, OdeTransformerForConditionalGeneration
from modeling_ode_transformer.training.checkpoints import last_complete_checkpoint
from modeling_ode_transformer.training.trainer import TokenSeq2SeqTrainer, TokenSeq2SeqTrainingArguments

from .conftest import WITHOUT_DROPOUT, assert_close, build
from .processes import run_python


SMALL = {"encoder_layers": 1, "decoder_layers": 1}
SEPARATE = {"share_encoder_decoder_embeddings": False}


def sources(*lengths):
    """Right-padded sources of the lengths."""
    generator = torch.Generator().manual_seed(sum(lengths))
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    ids = torch.randint(4, 61, mask.shape, generator=generator)
    return {"input_ids": ids.masked_fill(~mask, 1), "attention_mask": mask.long()}


@pytest.fixture
def peft():
    return pytest.importorskip("peft")


LORA = {"task_type": "SEQ_2_SEQ_LM", "target_modules": "all-linear", "r": 4}
STAGES = pytest.mark.parametrize(
    "form",
    [
        {"decoder_solver": "euler"},
        {"encoder_solver": "rk4", "decoder_solver": "rk4", "coefficients": "learned"},
        {"decoder_solver": "dlcl", "layer_history": "none", "vector_field": "sublayers"},
        {"decoder_solver": "rk2", "encoder_solver": "pcformer", "normalize_stages": True},
    ],
    ids=str,
)


@STAGES
@pytest.mark.parametrize("checkpointing", [None, {}, {"use_reentrant": True}], ids=str)
def test_gradients_of_lora_are_those_of_the_merged_weights(peft, form, checkpointing, batch):
    """W + s B A is used in every stage: A and B have the gradients s B' G and s G A', with G that of the merged W. So
    they have with activations that are computed again; where blocks share states, by a pass that is not reentrant."""
    model = build(**form, **WITHOUT_DROPOUT).double()
    merged = copy.deepcopy(model)
    if checkpointing and (form.get("encoder_solver") == "pcformer" or "layer_history" in form):
        checkpointing = {}
    if checkpointing is not None:
        model.activation_checkpointing_enable(checkpointing)
        model.enable_input_require_grads()
    adapted = peft.get_peft_model(model, peft.LoraConfig(**LORA, init_lora_weights=False)).train()
    adapted(**batch, labels=batch["decoder_input_ids"], use_cache=False).loss.backward()
    merged.load_state_dict(copy.deepcopy(adapted).merge_and_unload().state_dict())
    merged(**batch, labels=batch["decoder_input_ids"]).loss.backward()
    layers = {name: each for name, each in adapted.model.named_modules() if isinstance(each, peft.tuners.lora.Linear)}
    linear = {name for name, layer in merged.named_modules() if isinstance(layer, nn.Linear)}
    assert layers.keys() == linear - {"lm_head"}
    for name, layer in layers.items():
        A, B, scaling = layer.lora_A.default.weight, layer.lora_B.default.weight, layer.scaling["default"]
        G = merged.get_submodule(name).weight.grad
        assert_close(A.grad, scaling * B.T @ G)
        assert_close(B.grad, scaling * G @ A.T)


def pairs(count):
    """A task to be learnt: the target is the source, with an end token."""
    ids = torch.randint(4, 12, (count, 5), generator=torch.Generator().manual_seed(0))
    rows = torch.cat([ids, torch.full((count, 1), 2)], 1)
    return [{"input_ids": row, "labels": row} for row in rows]


def test_lora_trains_the_adapter_only_which_opens_with_its_base_model(peft, tmp_path, batch):
    build(coefficients="gate").save_pretrained(tmp_path / "base")

    def base():
        return AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "base")

    # Coefficients are trained whole beside the adapter; a run from the start and one from a checkpoint are one run.
    config = peft.LoraConfig(**LORA, modules_to_save=["solver_coefficients"])
    values = {"max_steps": 15, "learning_rate": 0.04, "lr_scheduler_type": "constant"}
    values |= {"logging_steps": 5, "save_steps": 10, "report_to": "none", "use_cpu": True}
    histories = []
    for checkpoint in (None, str(tmp_path / "run" / "checkpoint-10")):
        torch.manual_seed(0)
        adapted = peft.get_peft_model(base(), config)
        arguments = TokenSeq2SeqTrainingArguments(str(tmp_path / "run"), **values)
        trainer = TokenSeq2SeqTrainer(model=adapted, args=arguments, train_dataset=pairs(64))
        trainer.train(resume_from_checkpoint=checkpoint)
        histories.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert histories[0][2] < 0.9 * histories[0][0]
    assert histories[1] == pytest.approx(histories[0], rel=1e-6)
    assert last_complete_checkpoint(tmp_path / "run").name == "checkpoint-15"

    frozen = {
        name.replace("base_layer.", "").replace("original_module.", ""): tensor
        for name, tensor in adapted.get_base_model().state_dict().items()
        if "lora_" not in name and "modules_to_save" not in name
    }
    assert frozen.keys() == base().state_dict().keys()
    for name, tensor in base().state_dict().items():
        assert torch.equal(frozen[name], tensor), name

    adapted.eval()
    with torch.no_grad():
        expected = adapted(**batch).logits
        assert (expected - base()(**batch).logits).abs().max() > 0.1
        tokens = adapted.generate(input_ids=batch["input_ids"], num_beams=2, max_new_tokens=6)
        trainer.save_model(tmp_path / "adapter")
        merged = adapted.merge_and_unload()
        merged.save_pretrained(tmp_path / "merged")
        opened = [AutoModelForSeq2SeqLM.from_pretrained(tmp_path / name) for name in ("adapter", "merged")]
        for model in (merged, *opened):
            model.eval()
            assert_close(model(**batch).logits, expected, scale=10)
            generated = model.generate(input_ids=batch["input_ids"], num_beams=2, max_new_tokens=6)
            assert torch.equal(generated, tokens)
    assert type(merged) is OdeTransformerForConditionalGeneration
    assert merged.lm_head.weight is merged.model.decoder.embed_tokens.weight


@pytest.mark.parametrize(
    "form, options",
    [
        ({"share_encoder_decoder_embeddings": False}, {}),
        ({"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 50}, {}),
        ({}, {"modules_to_save": ["embed_tokens"]}),
    ],
    ids=str,
)
def test_a_merged_model_is_saved_with_its_output_projection(peft, form, options, batch, tmp_path):
    """Tied to other embeddings than the encoder's, which PEFT compares it with."""
    adapted = peft.get_peft_model(build(**form), peft.LoraConfig(**LORA, **options, init_lora_weights=False))
    merged = adapted.merge_and_unload().eval()
    merged.save_pretrained(tmp_path)
    loaded, report = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"] and loaded.config.tie_word_embeddings
    ids = {name: values.clamp(max=49) for name, values in batch.items()}
    assert_close(loaded(**ids).logits, merged(**ids).logits)


@pytest.mark.parametrize(
    "form",
    [
        {"coefficients": "learned", "decoder_solver": "rk2", "layer_history": "attention"},
        {"encoder_solver": "pcformer", "normalize_stages": True, "decoder_solver": "dlcl"},
        {**SEPARATE, "decoder_vocab_size": 40, "position_embedding_type": "learned"},
    ],
    ids=str,
)
def test_big_model_loading_changes_nothing(form, tmp_path, batch):
    """A sharded checkpoint, in memory and on disk."""
    model = build(**form)
    batch["decoder_input_ids"] %= 40
    model.save_pretrained(tmp_path / "model", max_shard_size="40KB")
    assert len(list((tmp_path / "model").glob("*.safetensors"))) > 3

    def loaded(device_map, **kwargs):
        kwargs |= {"device_map": device_map, "offload_folder": tmp_path / "loaded"}
        return AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model", **kwargs)

    models = [loaded("auto", max_memory={"cpu": "80KB"}), loaded({"": "cpu"}), loaded({"": "disk"})]
    assert set(models[0].hf_device_map.values()) == {"cpu", "disk"}
    assert not any("layers." in name and name.count(".") > 3 for name in models[0].hf_device_map)
    with torch.no_grad():
        expected = model(**batch).logits
        tokens = model.generate(**sources(9, 7, 4), num_beams=2, max_new_tokens=5)
        for placed in models:
            assert_close(placed.eval()(**batch).logits, expected)
            assert torch.equal(placed.generate(**sources(9, 7, 4), num_beams=2, max_new_tokens=5), tokens)


def graphs_compiled():
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


@pytest.fixture
def fresh_compiler():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def test_two_graphs_are_enough_for_all_shapes(fresh_compiler):
    """One of the first shape, and one with dynamic sizes as soon as there is a second shape."""
    model = build(**SMALL, decoder_solver="rk2")
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    for lengths, number in (((9, 7, 4), 1), ((9, 2, 3), 1), ((6, 3), 2), ((20,) * 5, 2)):
        inputs = sources(*lengths)
        inputs["decoder_input_ids"] = sources(*[1 + length // 2 for length in lengths])["input_ids"]
        with torch.no_grad():
            assert_close(compiled(**inputs, use_cache=False).logits, model(**inputs, use_cache=False).logits)
        assert graphs_compiled() == number, lengths


def test_generation_with_a_static_cache_compiles_one_step(fresh_compiler):
    """transformers compiles the step after the first where it finds a GPU, and on a CPU if told to."""
    model = build(OdeTransformerForCausalLM, **SMALL, decoder_solver="rk2", coefficients="fixed")
    model.generation_config.update(eos_token_id=None, pad_token_id=1, max_new_tokens=6)
    compiling = CompileConfig(backend="aot_eager", mode=None, fullgraph=True)
    compiling._compile_all_devices = True
    inputs = sources(8, 8, 8)
    expected = model.generate(**inputs)
    for _ in range(2):
        actual = model.generate(**inputs, cache_implementation="static", compile_config=compiling)
        assert torch.equal(actual, expected)
        assert graphs_compiled() == 1


@pytest.mark.parametrize("form, activations", [({"coefficients": "sigmoid"}, False), (SEPARATE, True)], ids=str)
def test_eight_bits_hold_the_linear_layers_and_nothing_else(form, activations, tmp_path, batch):
    """Weights are rounded to the next of 255 steps of their row. A model of plain layers with these weights has the
    same logits; they are off by less than a tenth of the standard deviation of the logits, with activations rounded
    too. Coefficients, embeddings, relative positions and histories keep their precision."""
    torchao = pytest.importorskip("torchao.quantization")
    model = build(**form)
    model.save_pretrained(tmp_path / "model")
    name = "Int8DynamicActivationInt8WeightConfig" if activations else "Int8WeightOnlyConfig"
    config = TorchAoConfig(getattr(torchao, name)())
    quantized = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model", quantization_config=config)
    linear = {f"{name}.weight" for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    rounded = copy.deepcopy(model)
    for name, parameter in quantized.named_parameters():
        weight = model.get_parameter(name).data
        if name not in linear - {"lm_head.weight"}:
            assert type(parameter.data) is torch.Tensor and torch.equal(parameter, weight), name
            continue
        actual = parameter.dequantize()
        steps = weight.abs().amax(1, keepdim=True) / 127
        assert ((actual - weight).abs() <= 0.51 * steps).all() and not torch.equal(actual, weight), name
        rounded.get_parameter(name).data = actual
    assert quantized.lm_head.weight is quantized.model.decoder.embed_tokens.weight

    with torch.no_grad():
        expected, logits = model(**batch).logits, quantized(**batch).logits
        assert (logits - expected).abs().max() < 0.1 * expected.std()
        if not activations:
            assert_close(logits, rounded(**batch).logits)
        tokens = quantized.generate(**sources(9, 7, 4), num_beams=2, max_new_tokens=6)
        quantized.save_pretrained(tmp_path / "quantized")
        size, smaller = ((tmp_path / name / "model.safetensors").stat().st_size for name in ("model", "quantized"))
        assert smaller < 0.7 * size
        again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "quantized")
        assert torch.equal(again(**batch).logits, logits)
        assert torch.equal(again.generate(**sources(9, 7, 4), num_beams=2, max_new_tokens=6), tokens)


def test_an_adapter_is_trained_on_a_model_of_eight_bits(peft, tmp_path):
    torchao = pytest.importorskip("torchao.quantization")
    build(encoder_solver="pcformer", normalize_stages=True).save_pretrained(tmp_path)
    config = TorchAoConfig(torchao.Int8WeightOnlyConfig())
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, quantization_config=config)
    adapted = peft.get_peft_model(peft.prepare_model_for_kbit_training(model), peft.LoraConfig(**LORA)).train()
    data = torch.utils.data.default_collate(pairs(16))
    optimizer = torch.optim.Adam([p for p in adapted.parameters() if p.requires_grad], lr=0.02)
    losses = []
    for _ in range(15):
        losses.append(adapted(**data).loss)
        losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < 0.9 * losses[0]


# What run_translation.py and run_summarization.py do with a folder, in a process without the package.
EXAMPLE_SCRIPT = """
import json, sys
folder, output = sys.argv[1:]
sys.modules["modeling_ode_transformer"] = None
import datasets, numpy, torch
from transformers import (
    AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer, DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments
)

options = {"trust_remote_code": True, "cache_dir": None, "revision": "main", "token": None}
config = AutoConfig.from_pretrained(folder, **options)
tokenizer = AutoTokenizer.from_pretrained(folder, use_fast=True, **options)
model = AutoModelForSeq2SeqLM.from_pretrained(folder, config=config, **options)
assert type(model).__module__.startswith("transformers_modules.")
assert len(tokenizer) > model.get_input_embeddings().weight.shape[0]
model.resize_token_embeddings(len(tokenizer))
assert model.config.decoder_start_token_id is not None
assert model.config.max_position_embeddings < 64
model.resize_position_embeddings(64)

def preprocess(examples):
    inputs = tokenizer(examples["text"], max_length=64, padding=False, truncation=True)
    labels = tokenizer(text_target=examples["summary"], max_length=8, padding=False, truncation=True)
    return {**inputs, "labels": labels["input_ids"]}

texts = [" ".join(f"w{(i * j) % 60}" for j in range(1, 50 + i % 3)) for i in range(16)]
data = datasets.Dataset.from_list([{"text": text, "summary": text[:9]} for text in texts])
data = data.map(preprocess, batched=True, remove_columns=data.column_names)
collator = DataCollatorForSeq2Seq(tokenizer, model=model, label_pad_token_id=-100, pad_to_multiple_of=8)

def metrics(predictions_and_labels):
    predictions, labels = (numpy.where(a != -100, a, tokenizer.pad_token_id) for a in predictions_and_labels)
    decoded = [tokenizer.batch_decode(a, skip_special_tokens=True) for a in (predictions, labels)]
    return {"exact": float(numpy.mean([a == b for a, b in zip(*decoded)]))}

arguments = Seq2SeqTrainingArguments(
    output, do_train=True, do_eval=True, max_steps=3, per_device_train_batch_size=4, per_device_eval_batch_size=8,
    predict_with_generate=True, label_smoothing_factor=0.1, logging_steps=1, save_steps=3, report_to="none",
    use_cpu=True,
)
trainer = Seq2SeqTrainer(
    model=model, args=arguments, train_dataset=data, eval_dataset=data, processing_class=tokenizer,
    data_collator=collator, compute_metrics=metrics,
)
result = trainer.train()
trainer.save_model()
trainer.save_metrics("train", result.metrics)
trainer.save_state()
evaluation = trainer.evaluate(max_length=8, num_beams=2, metric_key_prefix="eval")
trainer.save_metrics("eval", evaluation)
predicted = trainer.predict(data, metric_key_prefix="predict", max_length=8, num_beams=2)
trainer.create_model_card(finetuned_from=folder, tasks="summarization")
assert 0 < (predicted.predictions != tokenizer.pad_token_id).sum(1).max() <= 8
loaded = AutoModelForSeq2SeqLM.from_pretrained(output, **options).eval()
ids = torch.tensor([data[0]["input_ids"]])
difference = loaded(ids, decoder_input_ids=ids).logits - model.eval()(ids, decoder_input_ids=ids).logits
assert difference.abs().max() < 1e-5, difference.abs().max()
"""


def test_a_saved_folder_is_all_that_the_example_scripts_need(tmp_path):
    """Embeddings and positions are resized, an ordinary Seq2SeqTrainer smooths labels and searches by beams."""
    model = build(**SMALL, position_embedding_type="learned")
    model.save_pretrained(tmp_path / "model")
    vocabulary = {token: i for i, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", *(f"w{i}" for i in range(60))])}
    backend = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = WhitespaceSplit()
    backend.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    names = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=backend, **names).save_pretrained(tmp_path / "model")
    run_python(EXAMPLE_SCRIPT, tmp_path, str(tmp_path / "model"), str(tmp_path / "output"))
    assert (tmp_path / "output" / "modeling_ode_transformer.py").is_file()
    trained = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "output")
    assert (trained.config.vocab_size, trained.config.max_position_embeddings) == (64, 64)
    assert trained.model.shared.weight.shape == (64, 32)
    assert trained.lm_head.weight is trained.model.shared.weight
    assert trained.model.decoder.embed_positions.weight.shape == (2 + 64, 32)


@pytest.mark.parametrize("model_class", [OdeTransformerForConditionalGeneration, OdeTransformerForCausalLM])
@pytest.mark.parametrize("counting", ["mask", "absolute"])
def test_resized_learned_positions_keep_their_vectors(model_class, counting, tmp_path):
    model = build(model_class, position_embedding_type="learned", position_counting=counting)
    inputs = {name: torch.randint(4, 61, (2, 12)) for name in ("input_ids", "decoder_input_ids")}
    if model_class is OdeTransformerForCausalLM:
        del inputs["decoder_input_ids"]
    with torch.no_grad():
        expected = model(**inputs).logits
        for number in (100, 12):
            model.resize_position_embeddings(number)
            assert torch.equal(model(**inputs).logits, expected)
            longest = {name: torch.randint(4, 61, (1, number)) for name in inputs}
            model.save_pretrained(tmp_path)
            assert_close(model_class.from_pretrained(tmp_path)(**longest).logits, model(**longest).logits)
    with pytest.raises(ValueError, match="13 tokens is longer than max_position_embeddings=12"):
        model(**{name: torch.full((1, 13), 4) for name in inputs})


def test_new_learned_positions_are_initialized_and_sinusoidal_ones_need_nothing():
    model = build(position_embedding_type="learned", d_model=512, position_counting="absolute")
    model.resize_position_embeddings(1000)
    assert model.model.encoder.embed_positions.weight[40:].std().item() == pytest.approx(512**-0.5, rel=0.02)
    model = build()
    ids = torch.randint(4, 61, (1, 50))
    expected = model(ids, decoder_input_ids=ids).logits
    model.resize_position_embeddings(50)
    assert model.config.max_position_embeddings == 50
    assert torch.equal(model(ids, decoder_input_ids=ids).logits, expected)
