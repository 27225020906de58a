# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""CSAODE: training, word vectors, plots."""

import json

import numpy as np
import plot_attention
import pytest
import torch
import transformers

from modeling_ode_transformer import CsaOdeConfig, CsaOdeForSequenceClassification
from modeling_ode_transformer.training.tasks import classification, classification_examples
from modeling_ode_transformer.training.word_vectors import load_word_vectors

from .conftest import TINY


QUIET = {"report_to": "none", "use_cpu": True, "disable_tqdm": True, "save_strategy": "no"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a model that tells questions that begin with who from those with why, and its tokenizer."""
    folder = tmp_path_factory.mktemp("trained")
    texts = [f"{'why' if i % 2 else 'who'} {word} it ?" for i, word in enumerate("is was did has can".split() * 6)]
    labels = [i % 2 for i in range(len(texts))]
    examples = classification_examples.Examples(texts, None, [str(label) for label in labels])
    tokenizer = classification.build_tokenizer(examples, classification.ModelArguments())
    torch.manual_seed(0)
    names = {"id2label": {0: "who", 1: "why"}, "label2id": {"who": 0, "why": 1}}
    sizes = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id, "embedding_size": 16}
    model = CsaOdeForSequenceClassification(CsaOdeConfig(**sizes, hidden_size=16, **names))
    dataset = [{**tokenizer(text), "labels": label} for text, label in zip(texts, labels)]
    options = QUIET | {"max_steps": 30, "learning_rate": 0.01, "per_device_train_batch_size": 10}
    collated = {"processing_class": tokenizer, "data_collator": transformers.DataCollatorWithPadding(tokenizer)}
    arguments = transformers.TrainingArguments(str(folder), **options)
    transformers.Trainer(model, arguments, train_dataset=dataset, **collated).train()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_trainer_and_pipeline(trained):
    classify = transformers.pipeline("text-classification", model=str(trained))
    results = classify(["why is it ?", "who was it ?", "who"], batch_size=3)
    assert [result["label"] for result in results] == ["why", "who", "who"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(trained)
    assert tokenizer("who unheard").input_ids[1] == tokenizer.unk_token_id == 1
    assert tokenizer.pad_token_id == 0 and "token_type_ids" not in tokenizer("who")


def test_accumulated_gradients_are_those_of_the_full_batch(tmp_path):
    """Of a regression, whose loss knows nothing of the number of examples."""
    data = [{"input_ids": [i, i + 1, i + 2], "labels": float(i)} for i in range(2, 10)]

    def weights(name, size, accumulation):
        torch.manual_seed(0)
        model = CsaOdeForSequenceClassification(CsaOdeConfig(**(TINY | {"num_labels": 1, "dropout": 0.0})))
        steps = {"max_steps": 1, "per_device_train_batch_size": size, "gradient_accumulation_steps": accumulation}
        update = {"learning_rate": 1e-2, "optim": "sgd", "max_grad_norm": 0.0}
        arguments = transformers.TrainingArguments(str(tmp_path / name), **QUIET | steps | update)
        transformers.Trainer(model=model, args=arguments, train_dataset=data).train()
        return model.classifier.weight.detach()

    torch.testing.assert_close(weights("a", 8, 1), weights("b", 2, 4), rtol=1e-4, atol=1e-6)


def embedding_of(width=3, rows=4):
    torch.manual_seed(0)
    return torch.nn.Embedding(rows, width, padding_idx=0)


VOCABULARY = {"<pad>": 0, "a": 1, ". .": 2, "rare": 3}


@pytest.mark.parametrize("header", ["", "4 3\n"])
def test_word_vectors(tmp_path, header):
    """GloVe's lines, one of a word with a space, one twice; with word2vec's header and without."""
    path = tmp_path / "vectors.txt"
    path.write_text(f"{header}a 1 2 3\nother 4 5 6\n. . 0.5 -1e-1 0\na 7 8 9\n<pad> 1 1 1\n", encoding="utf-8")
    embedding = embedding_of()
    before = embedding.weight.clone()
    assert load_word_vectors(path, VOCABULARY, embedding) == ["rare"]
    expected = torch.stack([before[0], torch.tensor([1.0, 2, 3]), torch.tensor([0.5, -0.1, 0]), before[3]])
    assert torch.equal(embedding.weight, expected)


@pytest.mark.parametrize(
    "text, message",
    [
        ("a 1 2\n", "has no word of the vocabulary with 3 numbers"),
        ("a 1 2 3 4\n", "has no word of the vocabulary with 3 numbers"),
        ("a 1 2 x\n", "could not convert string to float: 'x'"),
        ("a 1 2 nan\n", "line 1: the vector of 'a' is not finite"),
        ("", "has no word of the vocabulary with 3 numbers"),
    ],
)
def test_bad_word_vectors_are_refused(tmp_path, text, message):
    (tmp_path / "vectors.txt").write_text(text, encoding="utf-8")
    embedding = embedding_of()
    before = embedding.weight.clone()
    with pytest.raises(ValueError, match=message):
        load_word_vectors(tmp_path / "vectors.txt", VOCABULARY, embedding)
    assert torch.equal(embedding.weight, before)
    with pytest.raises(FileNotFoundError, match="No file"):
        load_word_vectors(tmp_path / "none.txt", VOCABULARY, embedding)


def test_attention_is_plotted(trained, tmp_path):
    """Both figures are written, and the numbers beside them are the model's."""
    options = ["--model_name_or_path", str(trained), "--text", "why is it ?", "--output_dir", str(tmp_path / "out")]
    plot_attention.main([*options, "--pair", "why", "it"])
    with pytest.raises(ValueError, match="--pair was: 0 of the words are 'was': why is it"):
        plot_attention.main([*options, "--pair", "why", "was"])
    with pytest.raises(ValueError, match="its tokenizer makes 3 tokens of the 1 words"):
        plot_attention.main([*options[:2], "--text", "why<pad>it", *options[4:], "--pair", "why", "it"])
    for name in ("attention_over_time.png", "euclidean_attention.png"):
        assert (tmp_path / "out" / name).read_bytes().startswith(b"\x89PNG")
    numbers = json.loads((tmp_path / "out" / "attention.json").read_text())
    assert numbers["times"] == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    model = transformers.AutoModelForSequenceClassification.from_pretrained(trained)
    ids = transformers.AutoTokenizer.from_pretrained(trained)("why is it ?", return_tensors="pt")
    output = model(**ids, output_attentions=True, output_hidden_states=True)
    assert numbers["weights"][0] == pytest.approx(output.attentions[0][0, 0, 0, 2].item(), abs=1e-6)
    last = model.model.attention(output.hidden_states[1], ids["attention_mask"])[0, 0, 2].item()
    assert numbers["weights"][-1] == pytest.approx(last, abs=1e-6)
    rows = output.euclidean_attention[0]
    shares = (rows / rows.sum(dim=1, keepdim=True)).tolist()
    assert np.allclose(numbers["euclidean_attention"], shares, atol=1e-6)
