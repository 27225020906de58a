# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Language models of subwords and of any decoder of transformers: tokenizers, blocks, bits per byte, continuations."""

import json
import math

import pytest
import run_language_modeling
import torch
import yaml
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, TokenizersBackend
from transformers.models.llama.modeling_llama import LlamaAttention

from modeling_ode_transformer.metrics.perplexity import block_nll, model_perplexity, shift_blocks
from modeling_ode_transformer.text_files import parse_overrides, read_lines
from modeling_ode_transformer.training.preparation import open_rows
from modeling_ode_transformer.training.run import parse_arguments
from modeling_ode_transformer.training.tasks import language_model

from ..conftest import EXAMPLES
from ..processes import run_python
from .runs import assert_logged
from .test_language_model import arguments, log_history, nll_of_words


TEXT = """\
the company said fünf 😀 banks fell
  two  spaces and a <unk> word

a line may hold </s> or <s> as text
the market rose quickly in tokyo
shares of the company fell in heavy trading
"""
SUBWORDS = {"tokenizer_model_type": "bpe", "vocab_size": 320, "tokenizer_options": "hard_vocab_limit=false"}
BYTES = "bytes of the text in UTF-8, one for each end of a line; in blocks of 16 words"
# Small decoders of transformers: the names of their sizes.
DECODERS = {
    "llama": "num_hidden_layers=1,hidden_size=16,intermediate_size=16,num_attention_heads=2,num_key_value_heads=2",
    "gpt2": "num_hidden_layers=1,hidden_size=16,num_attention_heads=2,resid_pdrop=0,embd_pdrop=0,attn_pdrop=0",
    "bert": "num_hidden_layers=1,hidden_size=16,intermediate_size=16,num_attention_heads=2,hidden_dropout_prob=0,"
    "attention_probs_dropout_prob=0",
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Three equal texts: with characters of several bytes, an empty line, and special tokens spelled out."""
    folder = tmp_path_factory.mktemp("corpus")
    for split in ("train", "validation", "test"):
        (folder / f"{split}.txt").write_text(TEXT * (8 if split == "train" else 1), encoding="utf-8")
    return folder


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def run(request, corpus, tmp_path_factory):
    """Output folder and metrics of a training of subwords that evaluates and tests."""
    output_dir = tmp_path_factory.mktemp(request.param) / "output"
    options = SUBWORDS | {"tokenizer_model_type": request.param, "do_eval": True, "do_predict": True, "max_steps": 12}
    return output_dir, run_language_modeling.main(arguments(corpus, output_dir, **options))


def ids_of(line, tokenizer):
    return tokenizer(line, add_special_tokens=False, split_special_tokens=True)["input_ids"]


def test_bits_per_byte_equal_a_plain_loop_over_the_bytes_of_the_file(run, corpus):
    """The text is one stream of tokens with `</s>` after each line. A token is predicted from those before it in its
    block and the last one of the block before."""
    folder, metrics = run
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder).eval()
    stream = [2, *(i for line in TEXT.splitlines() for i in [*ids_of(line, tokenizer), 2])]
    losses = nll_of_words(model, [stream[start : start + 17] for start in range(0, len(stream) - 1, 16)])
    size = (corpus / "validation.txt").stat().st_size
    for prefix in ("eval", "predict"):
        assert metrics[f"{prefix}_bytes"] == size
        assert metrics[f"{prefix}_tokens"] == len(losses) == len(stream) - 1
        assert metrics[f"{prefix}_unk_tokens"] == 0
        assert metrics[f"{prefix}_bits_per_byte"] == pytest.approx(sum(losses) / math.log(2) / size, rel=1e-6)
        assert metrics[f"{prefix}_perplexity"] == pytest.approx(math.exp(sum(losses) / len(losses)), rel=1e-6)
        assert metrics[f"{prefix}_perplexity_convention"].startswith("of a token, ends of lines included; in blocks")
    scored = model_perplexity(model, tokenizer, read_lines(corpus / "validation.txt"), 16)
    assert scored["bits_per_byte"] == pytest.approx(metrics["eval_bits_per_byte"], rel=1e-6)


def test_bits_per_byte_of_words_count_the_bytes_of_the_file_too(corpus, tmp_path):
    """White space that words lose counts as well."""
    text = TEXT.replace("</s> or <s>", "")
    (tmp_path / "test.txt").write_text(text, encoding="utf-8")
    options = {"train_file": tmp_path / "test.txt", "test_file": tmp_path / "test.txt", "do_predict": True}
    metrics = run_language_modeling.main(arguments(corpus, tmp_path / "out", **options))
    nll = metrics["predict_nll_loss"] * metrics["predict_words"]
    assert metrics["predict_bits_per_byte"] == pytest.approx(nll / math.log(2) / len(text.encode()), rel=1e-9)
    # <unk> in the text is a word of it.
    assert metrics["predict_unk_words"] == 1
    assert metrics["predict_bits_per_byte_convention"] == BYTES
    options |= {"vocab_size": 20}
    metrics = run_language_modeling.main(arguments(corpus, tmp_path / "small", **options))
    unknown = len({word for line in text.splitlines() for word in line.split()} - {"<unk>"}) - 16
    convention = f"{BYTES}; {unknown} unknown words became <unk>, which is easier to predict"
    assert metrics["predict_bits_per_byte_convention"] == convention


def test_blocks_hold_the_whole_text_across_its_lines(run, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(run[0])
    for block_size in (7, 1000):
        (folder := tmp_path / str(block_size)).mkdir()
        language_model.write_blocks(TEXT.splitlines(), "text", tokenizer, block_size, folder)
        blocks = open_rows(folder)["labels"][:]
        assert [len(block) for block in blocks[:-1]] == [block_size] * (len(blocks) - 1)
        assert block_size > 7 or any(2 in block[:-1] for block in blocks)
        lines, line = [], []
        for i in (i for block in blocks for i in block):
            lines, line = ([*lines, line], []) if i == 2 else (lines, [*line, i])
        # A tokenizer that continues a prompt puts a space before the first word.
        assert [tokenizer.decode(ids).removeprefix(" ") for ids in lines] == TEXT.splitlines()


def test_the_saved_tokenizer_begins_texts_as_the_training_did(run, tmp_path):
    """Without this package, too. Programs that put `bos_token` before a text get the token that ends a line."""
    # Beside the model of a type of this package, transformers would ask for its code.
    AutoTokenizer.from_pretrained(run[0]).save_pretrained(tmp_path / "tokenizer")
    code = (
        "from transformers import AutoTokenizer\n"
        f"tokenizer = AutoTokenizer.from_pretrained({str(tmp_path / 'tokenizer')!r})\n"
        "assert 'modeling_ode_transformer' not in sys.modules\n"
        "ids = tokenizer('the company').input_ids\n"
        "print(ids[0], ids.count(2), tokenizer.decode(ids, skip_special_tokens=True), tokenizer.bos_token_id, "
        "tokenizer.eos_token_id, tokenizer.pad_token_id)"
    )
    assert run_python(code, tmp_path) == "2 1  the company 2 2 1\n"
    config = AutoConfig.from_pretrained(run[0])
    tokenizer = AutoTokenizer.from_pretrained(run[0])
    assert (config.vocab_size, config.bos_token_id, config.eos_token_id) == (len(tokenizer), 2, 2)
    assert config.pad_token_id == 1


def byte_level_tokenizer():
    """Like GPT-2's: no token for padding, and one token that ends lines and stands for the unknown."""
    end = "<|endoftext|>"
    alphabet = [end, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    backend = Tokenizer(models.BPE({token: i for i, token in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return TokenizersBackend(tokenizer_object=backend, bos_token=end, eos_token=end, unk_token=end)


def test_other_tokenizers_pad_with_their_end_mark(corpus, tmp_path):
    byte_level_tokenizer().save_pretrained(tmp_path / "bytes")
    options = {"tokenizer_name": tmp_path / "bytes", "do_predict": True, "block_size": 0}
    metrics = run_language_modeling.main(arguments(corpus, tmp_path / "out", **options))
    # Each byte is a token, and so is each end of a line.
    assert metrics["predict_tokens"] == metrics["predict_bytes"] == len(TEXT.encode())
    assert metrics["predict_bits_per_byte"] == pytest.approx(metrics["predict_nll_loss"] / math.log(2), rel=1e-9)
    assert metrics["predict_unk_tokens"] == 0
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["pad_token_id"] == config["eos_token_id"] == 0


def test_pieces_that_a_tokenizer_lacks_are_counted_and_logged(corpus, tmp_path, caplog):
    options = SUBWORDS | {"vocab_size": 60, "tokenizer_options": "byte_fallback=false,hard_vocab_limit=false"}
    (tmp_path / "test.txt").write_text("the 一二 three\n", encoding="utf-8")
    options |= {"test_file": tmp_path / "test.txt", "do_predict": True}
    metrics = run_language_modeling.main(arguments(corpus, tmp_path / "out", **options))
    unknown = AutoTokenizer.from_pretrained(tmp_path / "out")("the 一二 three").input_ids.count(3)
    assert metrics["predict_unk_tokens"] == unknown > 0
    assert f"test: {unknown} tokens are not in the vocabulary" in caplog.text


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_of_transformers_is_trained_by_its_own_loss(name, corpus, tmp_path):
    """Loss and gradient are the model's own for unshifted tokens; it is causal, with the tokenizer's size and ids."""
    start = tmp_path / "start"
    options = SUBWORDS | {"config_name": name, "config_overrides": DECODERS[name], "max_steps": 1}
    options |= {"max_train_samples": 6, "per_device_train_batch_size": 100, "max_grad_norm": 1e9, "block_size": 16}
    run_language_modeling.main(arguments(corpus, start, **options, learning_rate=0))
    tokenizer, model = AutoTokenizer.from_pretrained(start), AutoModelForCausalLM.from_pretrained(start)
    assert model.config.model_type == name
    ids = [getattr(model.config, f"{each}_token_id") for each in ("bos", "eos", "pad")]
    assert (model.config.vocab_size, ids) == (len(tokenizer), [2, 2, 1])

    stream = [2, *(i for line in TEXT.splitlines() for i in [*ids_of(line, tokenizer), 2])]
    blocks = [torch.tensor([stream[first : first + 17]]) for first in range(0, len(stream) - 1, 16)]
    loss = sum(model(input_ids=each, labels=each).loss * (each.shape[1] - 1) for each in blocks) / (len(stream) - 1)
    (logged,) = [entry for entry in log_history(start) if "loss" in entry]
    assert_logged(logged, loss, model)

    other = blocks[0].clone()
    other[0, -1] = 5
    with torch.no_grad():
        first, second = (model.eval()(input_ids=each).logits[0, :-1] for each in (blocks[0], other))
    torch.testing.assert_close(first, second)


def test_the_name_of_a_type_leaves_out_the_model_of_the_preset(corpus, tmp_path):
    argv = ["--train", str(corpus / "train.txt"), "--output_dir", str(tmp_path), "--config_name", "llama"]
    argv += ["--config_overrides", "hidden_size=32"]
    model_args, _, args = parse_arguments(language_model.LANGUAGE_MODEL, argv)
    assert parse_overrides(model_args.config_overrides) == {"hidden_size": 32}
    assert args.learning_rate == 0.003
    tokenizer = language_model.build_tokenizer(["a"])
    assert language_model.new_config(model_args, tokenizer).hidden_size == 32
    model_args.config_overrides = "d_model=8"
    with pytest.raises(ValueError, match=r"of type llama have no d_model\. Known fields: .*hidden_size"):
        language_model.new_config(model_args, tokenizer)


def test_a_wrapped_decoder_evaluates_its_layers_once_per_stage(corpus, tmp_path):
    options = SUBWORDS | {"config_name": "llama", "config_overrides": DECODERS["llama"], "do_eval": True}
    options |= {"eval_strategy": "steps", "eval_steps": 2, "log_coefficients": True}
    heun = tmp_path / "heun.json"  # a tableau of the user's own
    heun.write_text('{"a": [[], [1.0]], "b": [0.5, 0.5]}')
    wrap = f"solver={heun},coefficients=learned"
    metrics = run_language_modeling.main(arguments(corpus, tmp_path / "run", **options, wrap=wrap))
    # The weights of both stages of the only layer, by its place in the model.
    names = [name for name in metrics if name.startswith("eval_coefficient_")]
    assert len(names) == 2 and all("layers_0_" in name for name in names)
    model, calls = AutoModelForCausalLM.from_pretrained(tmp_path / "run").eval(), []
    for module in model.modules():
        if isinstance(module, LlamaAttention):
            module.register_forward_hook(lambda *_: calls.append(1))
    scored = model_perplexity(model, AutoTokenizer.from_pretrained(tmp_path / "run"), TEXT.splitlines(), 16, 1000)
    assert len(calls) == 2
    assert scored["bits_per_byte"] == pytest.approx(metrics["eval_bits_per_byte"], rel=1e-6)


def test_what_programs_that_score_texts_ask_of_a_folder(run):
    """lm-evaluation-harness encodes a text without special tokens (add_bos_token=False), puts `bos_token` in front,
    and sums the log-probabilities of the tokens. Here these are ours, but for the end of each line."""
    tokenizer, model = AutoTokenizer.from_pretrained(run[0]), AutoModelForCausalLM.from_pretrained(run[0]).eval()
    lines = ["the company said fünf", "shares of the company fell"]
    encoded = [tokenizer.encode(line, add_special_tokens=False) for line in lines]
    ours = block_nll(model, *shift_blocks(encoded, 0, tokenizer.eos_token_id))
    for ids, nll in zip(encoded, ours):
        with torch.no_grad():
            log_probs = model(torch.tensor([[tokenizer.bos_token_id, *ids]])).logits[0].log_softmax(-1)
        theirs = sum(log_probs[i, token].item() for i, token in enumerate(ids))
        assert -theirs == pytest.approx(nll[:-1].sum(), rel=1e-5)


def test_the_task_for_lm_evaluation_harness_names_its_data():
    """From the root of the repository; its texts have the field that the task scores."""
    task = yaml.safe_load((EXAMPLES / "lm_eval" / "lines.yaml").read_text(encoding="utf-8"))
    lines = read_lines(EXAMPLES.parent / task["dataset_kwargs"]["data_files"][task["test_split"]])
    texts = [json.loads(line)[task["doc_to_target"].strip("{}")] for line in lines]
    assert all(texts) and not any("\n" in text for text in texts)


def test_a_tokenizer_without_an_end_mark_is_refused(corpus, tmp_path):
    tokenizer = byte_level_tokenizer()
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path / "bytes")
    with pytest.raises(ValueError, match="has no end-of-sentence token: set its eos_token"):
        run_language_modeling.main(arguments(corpus, tmp_path / "out", tokenizer_name=tmp_path / "bytes"))
