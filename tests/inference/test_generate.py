# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""`ode-transformer generate`: against each model's generate() on one line at a time."""

import gzip
import io
import json
import os
import shutil
import sys
from contextlib import nullcontext
from unittest import mock

import pytest
import quickstart
import sacrebleu
import torch
from accelerate.utils.launch import get_free_port
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer, M2M100Config, M2M100ForConditionalGeneration

import modeling_ode_transformer as ode
from modeling_ode_transformer import cli
from modeling_ode_transformer.inference import generate
from modeling_ode_transformer.own_schemes import IMPORTED
from modeling_ode_transformer.texts_ode_transformer import TextGenerator

from ..conftest import TINY, build, ids_of, killed_at_each_operation, randomize, tiny_config
from ..training.test_resumption import environment_of_processes


VOCABULARY = 300
SPOILT = "model.decoder.layers.1.fc2.bias"
# Of different lengths, not in their order; line 3 and the last one are empty.
LINES = [quickstart.english(number) for number in (7, 421_735, 0, 12, 100_001, 999_999, 40)]
LINES[2], LINES[6:] = "  ", ["forty", ""]


def save(model, tokenizers, folder):
    torch.nn.init.normal_(model.lm_head.weight)  # a sharp distribution, in which the start token is not repeated
    model.generation_config.update(num_beams=3, length_penalty=0.6, early_stopping=True, max_length=30)
    model.save_pretrained(folder)
    tokenizers[0].save_pretrained(folder)
    if len(tokenizers) > 1:
        tokenizers[1].save_pretrained(folder / "target_tokenizer")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The folder with the models ode, m2m100, learned (of 12 positions), separate (two tokenizers) and language."""
    folder = tmp_path_factory.mktemp("models")
    tokenizer = ode.OdeTransformerTokenizer.train([quickstart.english(n) for n in range(0, 9000, 7)], VOCABULARY)
    german = ode.OdeTransformerTokenizer.train([quickstart.german(n) for n in range(0, 9000, 7)], VOCABULARY - 10)
    torch.manual_seed(0)
    sizes = {**TINY, "vocab_size": VOCABULARY, "tie_word_embeddings": False}
    ids = ids_of(tokenizer)

    def ode_transformer(**fields):
        return randomize(ode.OdeTransformerForConditionalGeneration(tiny_config(**{**sizes, **ids, **fields})))

    save(ode_transformer(), [tokenizer], folder / "ode")
    save(randomize(M2M100ForConditionalGeneration(M2M100Config(**sizes, **ids))), [tokenizer], folder / "m2m100")
    positions = {"position_embedding_type": "learned", "max_position_embeddings": 12}
    save(ode_transformer(**positions), [tokenizer], folder / "learned")
    vocabularies = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": VOCABULARY - 10}
    save(ode_transformer(**vocabularies), [tokenizer, german], folder / "separate")
    save(build(ode.OdeTransformerForCausalLM, **sizes, decoder_solver="rk2"), [tokenizer], folder / "language")
    return folder


@pytest.fixture
def translate(models, tmp_path):
    """Runs the command on LINES and returns the lines that it writes."""

    def translate(*names, lines=LINES, **options):
        source, output = tmp_path / "source.txt", tmp_path / "output.txt"
        source.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        options = {"device": "cpu", "input": source, "output": output, "overwrite": True} | options
        arguments = [str(item) for name, value in options.items() for item in (f"--{name}", value)]
        cli.run(["generate", "--model_name_or_path", *(str(models / name) for name in names), *arguments])
        text = output.read_text(encoding="utf-8")
        assert text.endswith("\n") and not (tmp_path / "output.txt.partial").exists()
        return text.removesuffix("\n").split("\n")

    return translate


def one_at_a_time(model, folder, lines=LINES, prefixes=None, **options):
    """The outputs of each line, all of them in one list."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    decoder = folder / "target_tokenizer" if (folder / "target_tokenizer").exists() else folder
    decoder = AutoTokenizer.from_pretrained(decoder)
    outputs = []
    start = model.generation_config.decoder_start_token_id
    for line, prefix in zip(lines, prefixes or [""] * len(lines)):
        if line.strip():
            inputs = dict(tokenizer(line, return_tensors="pt"))
            if prefix:
                inputs["decoder_input_ids"] = torch.tensor([[start, *decoder(prefix)["input_ids"][:-1]]])
            sequences = model.generate(**inputs, **options)
            outputs += [text.strip() for text in decoder.batch_decode(sequences, skip_special_tokens=True)]
        else:
            outputs += [""] * options.get("num_return_sequences", 1)
    return outputs


@pytest.mark.parametrize("batching", [{"batch_size": 1}, {"batch_size": 4}, {"max_tokens_per_batch": 40}, {}])
def test_outputs_are_in_the_order_of_the_lines_whatever_the_batches(batching, translate, models):
    model = AutoModelForSeq2SeqLM.from_pretrained(models / "ode").eval()
    expected = one_at_a_time(model, models / "ode")
    assert expected[2] == expected[-1] == "" and len(set(expected)) > 5
    assert translate("ode", **batching) == expected


@pytest.mark.parametrize("name", ["ode", "m2m100", "separate"])
def test_options_of_the_search_reach_any_model(name, translate, models):
    model = AutoModelForSeq2SeqLM.from_pretrained(models / name).eval()
    expected = one_at_a_time(model, models / name, num_beams=2, length_penalty=2.0, no_repeat_ngram_size=2)
    options = {"num_beams": 2, "length_penalty": 2.0, "generation_options": "no_repeat_ngram_size=2"}
    assert translate(name, **options) == expected != one_at_a_time(model, models / name)

    limits = {"max_len_a": 0.5, "max_len_b": 1}
    expected = one_at_a_time(ode.EnsembleForConditionalGeneration([model]), models / name, **limits)
    assert translate(name, **limits) == expected != one_at_a_time(model, models / name)


def test_outputs_end_at_stop_strings(translate, models):
    folder = models / "ode"
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    whole = translate("ode", num_beams=1)
    stop = next(character for character in sorted(set("".join(whole))) if character.isalpha())
    lines = translate("ode", num_beams=1, generation_options=f"stop_strings={stop}", scores=True)
    expected = one_at_a_time(model, folder, num_beams=1, stop_strings=stop, tokenizer=tokenizer)
    assert [line.partition("\t")[2] for line in lines] == expected != whole


def test_several_models_are_an_ensemble(translate, models):
    members = [AutoModelForSeq2SeqLM.from_pretrained(models / name) for name in ("ode", "m2m100")]
    expected = one_at_a_time(ode.EnsembleForConditionalGeneration(members), models / "ode")
    assert translate("ode", "m2m100", batch_size=3) == expected
    assert translate("m2m100") != expected != translate("ode")
    assert len(translate("ode", "m2m100", dtype="bf16")) == len(LINES)
    generator = generate.open_generator(generate.GenerateArguments([str(models / "ode")], dtype="bf16"))
    assert generator.model.dtype == torch.bfloat16


def test_n_best_with_scores(translate, models):
    model = AutoModelForSeq2SeqLM.from_pretrained(models / "ode").eval()
    found = one_at_a_time(model, models / "ode", num_return_sequences=3)
    expected = [
        (number, text)
        for number, start in enumerate(range(0, len(found), 3), 1)
        for text in dict.fromkeys(found[start : start + 3])  # no text twice
    ]
    rows = [line.split("\t") for line in translate("ode", num_return_sequences=3, scores=True, batch_size=2)]
    assert [(int(number), text) for number, _, text in rows] == expected and ("3", "0.0000", "") in map(tuple, rows)
    for line in range(1, len(LINES) + 1):
        scores = [float(score) for number, score, _ in rows if int(number) == line]
        assert scores == sorted(scores, reverse=True)
    inputs = AutoTokenizer.from_pretrained(models / "ode")(LINES[0], return_tensors="pt")
    score = model.generate(**inputs, return_dict_in_generate=True, output_scores=True).sequences_scores.item()
    assert float(rows[0][1]) == pytest.approx(score, abs=1e-4)

    assert translate("ode", num_return_sequences=3) == [f"{number}\t{text}" for number, _, text in rows]
    best = {number: "\t".join(rest) for number, *rest in reversed(rows)}
    assert translate("ode", scores=True) == [best[str(line)] for line in range(1, len(LINES) + 1)]


# Of 0 to many tokens, and of pieces of both tokenizers.
PREFIXES = ["nine", "", "n", "nine hundred thirteen", "", "nine", "fifth", ""]


@pytest.mark.parametrize(
    "names, options",
    [
        (["ode"], {"num_beams": 1}),
        (["ode"], {"num_beams": 3, "num_return_sequences": 3}),
        (["ode"], {"max_len_a": 0.5, "max_len_b": 1}),
        (["separate"], {"max_len_a": 0.5, "max_len_b": 1}),
        (["m2m100"], {"num_return_sequences": 2}),
        (["ode", "m2m100"], {"num_beams": 1}),
        (["ode", "m2m100"], {"num_return_sequences": 2}),
    ],
)
def test_json_lines_have_target_prefixes_and_scores(names, options, translate, models, tmp_path):
    """Tokens are those of generate(decoder_input_ids=...), scores those of transformers for what follows."""
    records = [{"source": line, "target_prefix": each, "id": i} for i, (line, each) in enumerate(zip(LINES, PREFIXES))]
    del records[1]["target_prefix"]
    lines = list(map(json.dumps, records))
    found = list(map(json.loads, translate(*names, lines=lines, jsonl=True, scores=True, batch_size=4, **options)))
    plain = translate(*names, lines=lines, jsonl=True, batch_size=3, **options)
    assert list(map(json.loads, plain)) == [each | {"scores": None} for each in found]
    assert [{name: each[name] for name in each.keys() - {"outputs", "scores"}} for each in found] == records
    assert all(text.startswith(each.get("target_prefix", "")) for each in found for text in each["outputs"] if text)

    opened = [AutoModelForSeq2SeqLM.from_pretrained(models / name).eval() for name in names]
    model = opened[0] if names == ["ode"] else ode.EnsembleForConditionalGeneration(opened)
    texts = one_at_a_time(model, models / names[0], prefixes=PREFIXES, **options)
    number = options.get("num_return_sequences", 1)
    expected = [list(dict.fromkeys(texts[i : i + number])) for i in range(0, len(texts), number)]
    assert [each["outputs"] for each in found] == expected
    if number == 1:
        (file := tmp_path / "prefixes.txt").write_text("".join(f"{prefix}\n" for prefix in PREFIXES))
        assert translate(*names, target_prefix=file, batch_size=4, **options) == [text for (text,) in expected]

    tokenizer = AutoTokenizer.from_pretrained(models / "ode")
    start = model.generation_config.decoder_start_token_id
    for record in (each for each in found if each["source"].strip() and names == ["ode"]):
        ids = [start, *tokenizer(record.get("target_prefix", ""))["input_ids"][:-1]]
        inputs = tokenizer(record["source"], return_tensors="pt") | {"decoder_input_ids": torch.tensor([ids])}
        outputs = model.generate(**inputs, **options, return_dict_in_generate=True, output_scores=True)
        texts = [text.strip() for text in tokenizer.batch_decode(outputs.sequences, skip_special_tokens=True)]
        scores = (
            outputs.sequences_scores
            if "sequences_scores" in outputs
            else model.compute_transition_scores(outputs.sequences, outputs.scores, normalize_logits=True).mean(1)
        )
        expected = dict(reversed(list(zip(texts, scores.tolist()))))
        assert dict(zip(record["outputs"], record["scores"])) == pytest.approx(expected, abs=1e-4)
        assert len(record["outputs"]) == len(expected)


def outputs_of(lines):
    """The texts of each source of an n-best list."""
    found = {}
    for number, *_, text in (line.split("\t") for line in lines):
        found.setdefault(int(number), []).append(text)
    return found


def test_another_model_orders_the_outputs(translate, models):
    options = {"num_return_sequences": 4, "num_beams": 4}
    found = outputs_of(translate("ode", **options))
    rows = [line.split("\t") for line in translate("ode", **options, rerank=models / "m2m100", scores=True)]
    assert outputs_of(translate("ode", **options, rerank=models / "m2m100")) != found
    model = AutoModelForSeq2SeqLM.from_pretrained(models / "m2m100").eval()
    tokenizer = AutoTokenizer.from_pretrained(models / "m2m100")
    for number, texts in found.items():
        own = [(float(score), text) for line, score, text in rows if int(line) == number]
        assert sorted(text for _, text in own) == sorted(texts) and own == sorted(own, key=lambda pair: -pair[0])
        for score, text in own if LINES[number - 1].strip() else ():
            inputs = tokenizer(LINES[number - 1], text_target=text, return_tensors="pt")
            assert score == pytest.approx(-model(**inputs).loss.item(), abs=2e-4)


def test_the_output_most_like_the_others_is_written(translate):
    """Of samples, which a seed fixes, by sacrebleu's chrF of all pairs."""
    options = {"num_return_sequences": 6, "num_beams": 1, "generation_options": "do_sample=true", "seed": 3}
    lists, chosen = translate("ode", **options), translate("ode", **options, mbr="chrf")
    assert len(chosen) == len(LINES)
    for number, texts in outputs_of(lists).items():
        if len(texts) == 6:  # all different, so that each counts once
            means = {text: sum(sacrebleu.sentence_chrf(text, [other]).score for other in texts) / 6 for text in texts}
            assert chosen[number - 1] == max(means, key=means.get)
    assert any(len(texts) == 6 for texts in outputs_of(lists).values())


def test_standard_input_to_standard_output(translate, monkeypatch, models):
    """With a byte order mark and \\r\\n; in UTF-8 in any locale; printed as it comes, so that Ctrl-C loses little."""
    expected = translate("ode", batch_size=2)
    assert not "".join(expected).isascii()
    text = b"\xef\xbb\xbf" + "".join(f"{line}\r\n" for line in LINES).encode()
    original, calls = TextGenerator.generate, []

    def counted(self, inputs):
        calls.append(inputs)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return original(self, inputs)

    monkeypatch.setattr(ode.texts_ode_transformer, "WINDOW", 1)
    monkeypatch.setattr(TextGenerator, "generate", counted)
    for interruption, number in ((None, len(LINES)), (KeyboardInterrupt, 5)):  # four with text, and an empty one
        output = io.BytesIO()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output, encoding="ascii"))
        with pytest.raises(interruption) if interruption else nullcontext():
            cli.run(f"generate --model_name_or_path {models / 'ode'} --device cpu --batch_size 2".split())
        assert output.getvalue().decode("utf-8") == "".join(f"{line}\n" for line in expected[:number])


def test_interactive(models, monkeypatch, capsys, translate):
    """Ends at an empty line, at the end of the input and at Ctrl-C."""
    expected = [line.split("\t")[1] for line in translate("ode", lines=["seven", "forty"], num_return_sequences=2)]
    for end in ("", EOFError, KeyboardInterrupt):
        monkeypatch.setattr("builtins.input", mock.Mock(side_effect=["seven", "forty", end, "never"]))
        capsys.readouterr()
        options = "--interactive --num_return_sequences 2 --device cpu"
        cli.run(f"generate --model_name_or_path {models / 'ode'} {options}".split())
        assert [line for line in capsys.readouterr().out.split("\n") if line] == expected


def test_long_sources_are_cut_and_counted(translate, models, caplog):
    model = AutoModelForSeq2SeqLM.from_pretrained(models / "learned").eval()
    tokenizer = AutoTokenizer.from_pretrained(models / "learned")
    cut = [tokenizer.decode(tokenizer(line)["input_ids"][:11], skip_special_tokens=True) for line in LINES]
    number = sum(short != line for short, line in zip(cut, LINES) if line.strip())
    assert 0 < number < 6
    lines = translate("learned", generation_options="max_length=12", num_beams=2)
    assert lines == one_at_a_time(model, models / "learned", cut, max_length=12, num_beams=2)
    assert f"{number} of 6 texts have more tokens than the model takes, 12, and are cut" in caplog.text


def test_characters_without_a_piece_are_warned_of_once(translate, caplog):
    translate("ode", lines=["one\u00a0two \u263a", "seven", "two\u00a0three", ""])
    (warned,) = (message for message in caplog.messages if "no piece" in message)
    assert warned.startswith(
        "2 of 3 texts have characters for which the tokenizer has no piece, such as '\\xa0' (U+00A0)"
    )
    assert "'\u263a' (U+263A)" in warned and "'o'" not in warned
    caplog.clear()
    translate("ode")
    assert not [message for message in caplog.messages if "no piece" in message]


def test_empty_outputs_are_warned_of(translate, monkeypatch, caplog):
    """But not those of blank lines between paragraphs, which have to be empty."""
    lines = ["one two", "", "", "", "three", ""]
    assert [not line for line in translate("ode", lines=lines)] == [not line for line in lines]
    assert "outputs are empty" not in caplog.text
    monkeypatch.setattr(TextGenerator, "generate", lambda self, inputs: [[("", 0.0)]] * len(inputs["input_ids"]))
    assert translate("ode", lines=lines) == [""] * 6 and "2 of 2 outputs are empty" in caplog.text


def test_a_long_line_neither_fills_the_memory_nor_makes_others_pay(translate, monkeypatch, caplog):
    """Without options: batches by tokens, and a limit where positions have none; the line is cut or split."""
    long, batches = "nine hundred and one. " * 700, []
    generated = TextGenerator.generate

    def noted(self, inputs):
        batches.append(tuple(inputs["input_ids"].shape))
        return generated(self, inputs)

    monkeypatch.setattr(TextGenerator, "generate", noted)
    options = {"num_beams": 1, "generation_options": "max_new_tokens=2"}
    outputs = translate("ode", lines=[long, *["nine."] * 31], **options)
    assert batches[0][0] <= 4 and batches[0][1] == 1024 and sum(rows for rows, _ in batches) == 32
    assert "1 of 32 texts have more tokens than the model takes, 1024, and are cut" in caplog.text
    lines = translate("ode", lines=[long, "nine."], split_sentences=True, max_source_length=12, **options)
    assert lines[1] == outputs[1] and len(lines[0].split()) > 700 and "takes, 12" not in caplog.text
    assert max(columns for rows, columns in batches[-22:]) <= 12


def test_packed_weights_give_the_same_outputs_and_go_on(translate, models, tmp_path):
    expected = translate("ode")
    packed = []
    with pytest.MonkeyPatch.context() as patch:
        original = generate.optimize_for_cpu
        patch.setattr(generate, "optimize_for_cpu", lambda *args: packed.append(args[1:]) or original(*args))
        assert translate("ode", packed=True) == expected
        int8 = translate("ode", int8=True)
        assert translate("ode", "m2m100", packed=True) == translate("ode", "m2m100")
    assert packed == [("packed",), ("int8",), ("packed",), ("packed",), ("keep",), ("keep",)]
    assert len(int8) == len(expected) and int8[2] == int8[-1] == "" and any(int8)


def test_sources_over_the_trained_length_are_split_if_asked(translate, models, tmp_path, caplog):
    folder = shutil.copytree(models / "ode", tmp_path / "trained")
    config = AutoConfig.from_pretrained(folder)
    config.trained_source_length = 12
    config.save_pretrained(folder)
    lines = ["One two three four. Five six seven eight nine.", "one"]
    assert translate(folder, lines=lines) == translate("ode", lines=lines)
    assert caplog.text.count("1 of 2 texts are longer than the longest in training (12 tokens)") == 1
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    parts = one_at_a_time(model, folder, [*packed(lines[0], 12, tokenizer), "one"])
    assert translate(folder, lines=lines, split_sentences=True) == [" ".join(parts[:-1]), parts[-1]]


def packed(text, limit, tokenizer):
    """The parts of a text."""
    return TextGenerator(None, tokenizer, None, limit, split_sentences=True).split(text)[0]


def words(text, verbose):
    """As a tokenizer: a token for each word, and an end mark."""
    return {"input_ids": [*text.split(), "</s>"]}


def test_texts_are_split_at_the_ends_of_sentences_or_else_between_words():
    text = 'One two. "Three four!" Five six seven eight nine ten. Dr. X'
    assert packed(text, 99, words) == [text]
    parts = ["One two.", '"Three four!"', "Five six", "seven eight", "nine ten.", "Dr. X"]
    assert packed(text, 4, words) == parts
    assert packed(text, 6, words)[0] == 'One two. "Three four!"'
    assert packed("word " * 5, 1, words) == ["word"] * 5
    generator = TextGenerator(None, words, None, 4, split_lines=True, split_sentences=True)
    parts = ["One. Two.", "Three. Four.", "Five. Six.", "Seven."], ["\n", " ", "\n\n"]
    assert generator.split("One. Two.\nThree. Four. Five. Six.\n\nSeven.") == parts


@pytest.mark.parametrize(
    "sentences",
    [
        ["Dr. Smith met Prof. J. S. Bach.", "They talked."],
        ["It opens on Jan. 3.", "No. 5 is closed."],
        ["Am 29. Juli kam er an, z. B. mit Hr. Meier.", "Es regnete."],
        ["Siehe Abb. 3.", "Das war 1990.", "Mai folgte."],
        ["He said no.", "Then he left.", "She lives in Rome."],
    ],
)
def test_full_stops_of_titles_dates_and_abbreviations_end_no_sentence(sentences):
    assert ode.texts_ode_transformer.split_sentences(" ".join(sentences))[::2] == sentences


def test_chinese_and_japanese_texts_are_split_at_their_stops():
    """Not before or after the marks that close a quotation or a title, where a sentence may go on."""
    text = "我们去公园。天气很好！！他问：“你想来吗？”「行く。」と言った。 終わり"
    sentences = ["我们去公园。", "天气很好！！", "他问：“你想来吗？”「行く。」と言った。", "終わり"]
    assert ode.texts_ode_transformer.SENTENCE_BREAKS.split(text)[::2] == sentences
    by_character = lambda text, verbose: {"input_ids": text}  # noqa: E731
    parts = ["我们去公园。天气很好！！", "他问：“你想来吗？”「行く。」と言った。 終わり"]
    assert packed(text, 26, by_character) == parts
    wholes = '《你好吗？》这本书很好 他说"好。"然后走了 【注意！】ここです 「え？」と彼は言った 你好。[1]后来'
    for whole in wholes.split():
        assert ode.texts_ode_transformer.SENTENCE_BREAKS.split(whole) == [whole]
    join = ode.texts_ode_transformer.join_sentences
    assert join(sentences, [" ", "", " "]) == text.replace(" ", "")
    assert join(["Ja.", "Er sagt: „So.“", "Nein."], ["", "\n"]) == "Ja. Er sagt: „So.“\nNein."


def test_without_any_limit_outputs_have_fairseqs(models, tmp_path):
    model = AutoModelForSeq2SeqLM.from_pretrained(models / "ode")
    model.generation_config.max_length = None
    args = generate.GenerateArguments(["x"])
    generate.set_generation_options(model.generation_config, args)
    assert (model.generation_config.max_len_a, model.generation_config.max_len_b) == (0, 200)


@pytest.fixture
def command(models, tmp_path, monkeypatch):
    """The command in windows of two batches of two lines, of which LINES has two, to an output in `tmp_path`. With
    `batches` it is killed, in a process of its own, after so many; else it returns how many it took."""
    monkeypatch.setattr(ode.texts_ode_transformer, "WINDOW", 2)
    (tmp_path / "source.txt").write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    original = TextGenerator.generate

    def command(*options, output="out.txt", name="ode", batches=None):
        taken = 0

        def counted(self, inputs):
            nonlocal taken
            outputs = original(self, inputs)
            taken += 1
            if taken == batches:
                os._exit(9)
            return outputs

        files = ["--input", str(tmp_path / "source.txt"), "--output", str(tmp_path / output)]
        argv = f"generate --model_name_or_path {models / name} --device cpu --batch_size 2".split()
        argv += [*files, *options]
        if batches is not None:
            child = os.fork()
            if child == 0:
                torch.set_num_threads(1)
                TextGenerator.generate = counted
                try:
                    cli.run(argv)
                finally:
                    os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
            return batches
        with monkeypatch.context() as patch:
            patch.setattr(TextGenerator, "generate", counted)
            cli.run(argv)
        return taken

    return command


@pytest.mark.parametrize("output, options", [("out.txt", []), ("out.gz", ["--num_return_sequences", "2", "--scores"])])
def test_a_killed_command_goes_on_and_writes_what_an_unbroken_one_writes(output, options, command, tmp_path):
    assert command(*options, output=f"whole_{output}") == 3
    whole = (tmp_path / f"whole_{output}").read_bytes()
    plain = gzip.decompress(whole) if output.endswith(".gz") else whole
    for batches, left in ((1, 3), (3, 1)):
        command(*options, output=output, batches=batches)
        partial = (tmp_path / f"{output}.partial").read_bytes()
        assert plain.startswith(partial) and bool(partial) == (batches > 2) and partial != plain
        with (tmp_path / f"{output}.partial").open("ab") as file:
            file.write(b"1\tcut" if batches > 2 else b"")  # a line of which the end is missing
        assert command(*options, output=output) == left
        assert (tmp_path / output).read_bytes() == whole
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["source.txt", output, f"whole_{output}"])
        (tmp_path / output).unlink()


def test_a_part_of_another_call_is_refused_or_replaced(command, tmp_path, models, monkeypatch, caplog):
    command(batches=3)
    part = (tmp_path / "out.txt.partial").read_bytes()
    for options, different in (
        (["--num_beams", "2"], r"\(--num_beams, models differ\)"),
        (["--batch_size", "3"], r"\(--batch_size differ\)"),
        (["--model_name_or_path", str(models / "m2m100")], r"\(--model_name_or_path, models differ\)"),
    ):
        with pytest.raises(ValueError, match=rf"out\.txt\.partial holds outputs of another call {different}.*--over"):
            command(*options)
    source = (tmp_path / "source.txt").read_text()
    (tmp_path / "source.txt").write_text(source.replace("seven", "eight", 1))
    with pytest.raises(ValueError, match=r"another call \(input differ\)"):
        command()
    (tmp_path / "source.txt").write_text(source)
    with monkeypatch.context() as patch, pytest.raises(ValueError, match=r"another call \(schemes differ\)"):
        patch.setitem(IMPORTED, "mine.py", "a hash")  # as by --import mine.py
        command()
    note = (tmp_path / "out.txt.partial.json").rename(tmp_path / "note")
    with pytest.raises(ValueError, match=r"another call \(unknown differ\)"):
        command()
    note.rename(tmp_path / "out.txt.partial.json")
    assert (tmp_path / "out.txt.partial").read_bytes() == part
    assert command("--overwrite") == 3
    assert not (tmp_path / "out.txt.partial").exists()

    # Random numbers go on from where they were.
    drawn = ["--num_beams", "1", "--generation_options", "do_sample=true"]
    assert command(*drawn, output="drawn") == 3
    command(*drawn, output="again", batches=3)
    assert command(*drawn, output="again") == 3
    assert "again.partial: starting from scratch" in caplog.text
    assert (tmp_path / "again").read_bytes() == (tmp_path / "drawn").read_bytes()


def test_a_second_call_for_the_same_output_is_refused_while_the_first_lives(command, tmp_path, monkeypatch):
    """Also with --overwrite; in a process of its own. The first is not disturbed."""
    command(output="whole.txt")
    write, statuses = generate.PartialOutput.write, []

    def second_calls():
        """The status of a process with them: 0 if they are refused."""
        child = os.fork()
        if child == 0:
            try:
                for options in ([], ["--overwrite"]):
                    with pytest.raises(ValueError, match=r"Another call is writing to --output .*out\.txt: wait"):
                        command(*options)
                os._exit(0)
            finally:
                os._exit(1)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def disturbed(self, *args):
        statuses.append(second_calls())
        write(self, *args)

    monkeypatch.setattr(generate.PartialOutput, "write", disturbed)
    command()
    assert statuses == [0, 0]
    assert (tmp_path / "out.txt").read_bytes() == (tmp_path / "whole.txt").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.txt", "source.txt", "whole.txt"]


def test_several_processes_share_the_batches_and_write_what_one_writes(command, tmp_path):
    """Also if one is killed, and a single process goes on."""
    command(output="whole.txt")

    def in_two_processes(batches=None):
        """The statuses: 10 and the number of batches taken, or 1 after an error."""
        port, children = str(get_free_port()), []
        for rank in range(2):
            children.append(os.fork())
            if children[-1] == 0:
                try:
                    torch.set_num_threads(1)
                    os.environ |= environment_of_processes() | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
                    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
                    os._exit(10 + command(batches=None if rank else batches))
                finally:
                    os._exit(1)
        return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]

    assert in_two_processes() == [12, 11]
    assert (tmp_path / "out.txt").read_bytes() == (tmp_path / "whole.txt").read_bytes()
    (tmp_path / "out.txt").unlink()
    assert in_two_processes(batches=2) == [12, 1]  # in the second window
    partial = (tmp_path / "out.txt.partial").read_bytes()
    assert partial and (tmp_path / "whole.txt").read_bytes().startswith(partial)
    assert command() == 1
    assert (tmp_path / "out.txt").read_bytes() == (tmp_path / "whole.txt").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.txt", "source.txt", "whole.txt"]


@pytest.mark.parametrize("name", ["out.txt", "out.gz"])
def test_a_kill_while_the_output_is_put_in_its_place_loses_nothing(name, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / f"{name}.partial").write_bytes(b"one\n")
    (folder / f"{name}.partial.json").write_text("{}")
    for _ in killed_at_each_operation(lambda: generate.PartialOutput(folder / name).finish(), folder):
        if not (folder / name).exists():
            generate.PartialOutput(folder / name).finish()
            assert [path.name for path in folder.iterdir()] == [name]
        with (gzip.open if name.endswith("gz") else open)(folder / name, "rb") as file:
            assert file.read() == b"one\n"


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda tensors: tensors.pop(SPOILT), f"damaged lacks the weights {SPOILT}"),
        (lambda tensors: tensors[SPOILT][:1].fill_(torch.nan), "layers.1.fc2.bias .* not finite"),
    ],
)
def test_weights_that_are_missing_or_not_numbers_are_refused(damage, message, models, translate, tmp_path):
    """Their outputs would be random, or constant."""
    folder = shutil.copytree(models / "ode", tmp_path / "damaged")
    tensors = load_file(folder / "model.safetensors")
    damage(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=message):
        translate(folder)
    with pytest.raises(ValueError, match=message):
        cli.run(["export-onnx", str(folder), "--output_dir", str(tmp_path / "onnx")])


def test_an_unfinished_training_is_named_with_its_last_checkpoint(models, translate, tmp_path):
    for number in (9, 10):
        shutil.copytree(models / "ode", tmp_path / "run" / f"checkpoint-{number}")
    with pytest.raises(ValueError, match=r"The training in .*run has not ended: .*last checkpoint, .*checkpoint-10\."):
        translate(tmp_path / "run")
    assert translate(tmp_path / "run" / "checkpoint-10") == translate("ode")


@pytest.mark.parametrize("values", [{"model_type": [3]}, {"auto_map": 3}, {"dtype": 3}], ids=str)
def test_a_configuration_with_values_of_other_types_is_named(values, models, translate, tmp_path):
    folder = shutil.copytree(models / "ode", tmp_path / "damaged")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))
    with pytest.raises(ValueError, match="damaged is damaged: a value is missing or of another type"):
        translate(folder)


def test_nothing_is_written_or_replaced_before_there_is_an_output(translate, models, tmp_path, monkeypatch):
    """And an output that is a link stays one."""
    (tmp_path / "folder").mkdir()
    target, link = tmp_path / "folder" / "target.txt", tmp_path / "output.txt"
    target.write_text("before")
    link.symlink_to(target)
    with monkeypatch.context() as patch:
        patch.setattr(TextGenerator, "generate", mock.Mock(side_effect=KeyboardInterrupt))
        for output in (link, tmp_path / "new.txt"):
            with pytest.raises(KeyboardInterrupt):
                translate("ode", output=output)
    assert target.read_text() == "before"
    expected = translate("ode")
    assert link.is_symlink() and target.read_text(encoding="utf-8").split("\n") == [*expected, ""]
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["folder", "output.txt", "source.txt", "target.txt"]
    (tmp_path / "folder" / "target.txt.partial").mkdir()
    monkeypatch.delattr(generate, "open_generator")  # the work
    with pytest.raises(OSError, match=r"target\.txt\.partial"):
        translate("ode")


LONG_PREFIX = json.dumps({"source": "one", "target_prefix": "x" * 40})


@pytest.mark.parametrize(
    "names, options, message",
    [
        (["language"], {}, "is a language model .*text-generation"),
        (["ode", "separate"], {}, "separate has another target vocabulary than .*ode"),
        (["ode"], {"output": "{tmp}/exists.txt"}, "exists.txt exists: .*--overwrite"),
        (["ode"], {"output": "{tmp}/source.txt", "overwrite": True}, "--output .*source.txt is the source file"),
        (["ode"], {"output": "{tmp}/pipe", "overwrite": True}, "pipe is a folder or a device"),
        (["ode"], {"input": "{tmp}/none.txt"}, "No file .*none.txt"),
        (["ode"], {"interactive": True}, "leave out --input and --output"),
        (["ode"], {"batch_size": 3, "max_tokens_per_batch": 100}, "not both"),
        (["ode"], {"split_sentences": True, "scores": True}, "leave out --scores"),
        (["ode"], {"generation_options": "num_beem=3"}, "has no option num_beem"),
        (["ode"], {"generation_options": "max_new_tokens=x"}, '"max_new_tokens": "x".*: a value has a wrong type'),
        (["ode"], {"generation_options": "num_return_sequences=2"}, "give --num_return_sequences outside"),
        (["ode"], {"device": "gpu"}, "--device gpu cannot be used"),
        (["learned"], {"max_source_length": 13}, "13 exceeds the model's max_position_embeddings, 12"),
        (["ode"], {"mbr": "chrf"}, "--mbr chooses among outputs: give --num_return_sequences N"),
        (["ode"], {"mbr": "chrf", "rerank": "x", "num_return_sequences": 2}, "leave out one of them"),
        # Sources, and what their outputs begin with
        (["ode"], {"jsonl": True}, "source.txt, line 1, is not JSON"),
        (["ode"], {"jsonl": True, "lines": ['["one"]']}, "line 1: expected an object with the text `source`"),
        (["ode"], {"jsonl": True, "lines": ['{"source": "a", "target_prefix": 3}']}, "line 1: expected .* not .*: 3"),
        (["ode"], {"jsonl": True, "target_prefix": "{tmp}/exists.txt"}, "are in --input: leave out --target_prefix"),
        (["ode"], {"lines": ["a", "b"], "target_prefix": "{tmp}/exists.txt"}, "source.txt has 2 lines, but .* has 1"),
        (["ode"], {"jsonl": True, "lines": [LONG_PREFIX]}, "prefix has 41 tokens, .* Shorten it, or"),
    ],
)
def test_errors_name_the_value_and_the_fix(names, options, message, translate, tmp_path):
    (tmp_path / "exists.txt").write_text("kept")
    os.mkfifo(tmp_path / "pipe")
    options = {key: value.format(tmp=tmp_path) if isinstance(value, str) else value for key, value in options.items()}
    with pytest.raises((ValueError, OSError), match=message):
        translate(*names, **{"overwrite": False, "lines": ["one"], **options})
    assert (tmp_path / "exists.txt").read_text() == "kept" and (tmp_path / "source.txt").read_text()
    assert not (tmp_path / "output.txt").exists()
