# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""examples/app.py: its search against generate(), what it shows against the formulas, the page in a browser."""

import json
import os
import re
import shutil
import subprocess
import sys
from xml.etree import ElementTree

import app
import httpx
import number_names
import numpy as np
import pytest
import torch
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support import expected_conditions
from selenium.webdriver.support.ui import WebDriverWait
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    M2M100Config,
    M2M100ForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
)

import modeling_ode_transformer as ode

from .conftest import EXAMPLES, TINY, assert_close, build, randomize, tiny_config


VOCABULARY = 300
TEXT = number_names.english(421_735)
# A block as the equations have it: no dense connections, no relative positions.
PLAIN = {"layer_history": "none", "max_relative_position": 0}
MODELS = {
    "gate": {"encoder_solver": "rk2", "encoder_coefficients": "gate", **PLAIN},
    "gate_of_each_layer": {"coefficient_sharing": "layer", **PLAIN},
    "sigmoid": {"encoder_solver": "rk4", "encoder_coefficients": "sigmoid", "vector_field": "sublayers"},
    "channel": {"encoder_coefficients": "learned", "coefficient_sharing": "channel", "steps_per_layer": 2},
    "positions": {"encoder_solver": "euler", "position_embedding_type": "learned", "max_position_embeddings": 12},
    "separate": {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": VOCABULARY - 10},
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The folder with MODELS, an M2M100 model and a language model."""
    folder = tmp_path_factory.mktemp("models")
    tokenizer = ode.OdeTransformerTokenizer.train([number_names.english(n) for n in range(0, 9000, 7)], VOCABULARY)
    german = ode.OdeTransformerTokenizer.train([number_names.german(n) for n in range(0, 9000, 7)], VOCABULARY - 10)
    torch.manual_seed(0)
    sizes = {**TINY, "vocab_size": VOCABULARY, "tie_word_embeddings": False}
    configs = {name: tiny_config(**{**sizes, **fields}) for name, fields in MODELS.items()}
    built = {name: ode.OdeTransformerForConditionalGeneration(config) for name, config in configs.items()}
    ids = {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    built["m2m100"] = M2M100ForConditionalGeneration(M2M100Config(**sizes, **ids))
    built["language"] = build(ode.OdeTransformerForCausalLM, **sizes, decoder_solver="rk2")
    for name, model in built.items():
        randomize(model)
        torch.nn.init.normal_(model.lm_head.weight)  # a sharp distribution: outputs are of many lengths
        model.generation_config.update(num_beams=3, length_penalty=0.6, early_stopping=True, max_length=13)
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    german.save_pretrained(folder / "separate" / "target_tokenizer")
    return folder


@pytest.fixture
def load(models):
    return lambda name: app.TextModel(str(models / name))


def texts_in(svg):
    """The texts of an image, in their order."""
    return [element.text for element in ElementTree.fromstring(svg).iter() if element.tag.endswith("}text")]


@pytest.mark.parametrize(
    "name, num_beams, number, length_penalty", [("gate", 5, 4, 0.6), ("separate", 3, 1, 2.0), ("m2m100", 1, 1, 1.0)]
)
def test_outputs_and_scores_are_those_of_generate(name, num_beams, number, length_penalty, load, models):
    folder = models / name
    tokenizer = AutoTokenizer.from_pretrained(folder)
    target = AutoTokenizer.from_pretrained(folder / "target_tokenizer") if name == "separate" else tokenizer
    options = {"num_beams": num_beams, "num_return_sequences": number, "length_penalty": length_penalty}
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    (expected,) = ode.n_best(model, target, tokenizer(TEXT, return_tensors="pt"), **options, max_new_tokens=9)

    text_model = load(name)
    outputs = text_model.search(text_model.encode(TEXT), num_beams, number, length_penalty, 9)
    assert [output.text for output in outputs] == [text for text, _ in expected]
    assert [output.score for output in outputs] == pytest.approx([score for _, score in expected], abs=1e-4)


@pytest.mark.parametrize("name", ["gate", "separate", "m2m100"])
def test_attention_is_what_generate_attended_with(name, load):
    text_model = load(name)
    source_ids = text_model.encode(TEXT)
    (output,) = text_model.search(source_ids, 1, 1, 1.0, 9)
    explanation = text_model.explain(source_ids, output)
    options = {"num_beams": 1, "max_new_tokens": 9, "output_attentions": True, "return_dict_in_generate": True}
    steps = text_model.model.generate(torch.tensor([source_ids]), **options).cross_attentions
    expected = np.concatenate([torch.cat(layers).numpy() for layers in steps], axis=2)
    assert explanation.attentions.shape == (2, 2, len(output.token_ids), len(source_ids)) or name == "m2m100"
    np.testing.assert_allclose(explanation.attentions, expected, atol=1e-5)
    np.testing.assert_allclose(explanation.attentions.sum(-1), 1, atol=1e-5)
    assert (explanation.attentions.max(-1) < 0.9).any()  # not only one-hot rows

    source, target = explanation.source, explanation.target
    assert text_model.tokenizer.convert_tokens_to_string(source[:-1]).strip() == TEXT and source[-1] == "</s>"
    pieces = target[:-1] if target[-1] == "</s>" else target
    assert text_model.target_tokenizer.convert_tokens_to_string(pieces).strip() == output.text

    image = app.attention_map(explanation, layer=1, head=None)
    assert texts_in(image)[: len(source + target)] == source + target
    assert "attention of layer 2, mean over the heads" in texts_in(image)
    assert app.attention_map(explanation, layer=1, head=0) != image != app.attention_map(explanation, 0, None)


@pytest.mark.parametrize("name", ["gate", "gate_of_each_layer"])
def test_gates_are_those_of_the_blocks(name, load):
    text_model, gates = load(name), []
    source_ids = text_model.encode(TEXT)
    (output,) = text_model.search(source_ids, 1, 1, 1.0, 9)
    for part, module in text_model.model.named_modules():
        if part.endswith("solver_coefficients.gate"):
            module.register_forward_hook(lambda gate, args, logits: gates.append(logits.sigmoid()[0, :, 0]))
    explanation = text_model.explain(source_ids, output)
    assert len(gates) == TINY["encoder_layers"] and torch.stack(gates).std() > 0.05
    assert_close(torch.from_numpy(explanation.coefficients[:, 0]), torch.stack(gates))
    assert_close(torch.from_numpy(explanation.coefficients[:, 1]), 1 - torch.stack(gates))

    numbers = [f"{number:.2f}" for number in explanation.coefficients[:, 0].flatten()]
    texts = texts_in(re.search("<div.*", app.coefficient_map(explanation, 3, "gate"), re.DOTALL)[0])
    start = texts.index("layer 3") + 1
    assert texts[: start - 3] == explanation.source and texts[start - 3 : start] == ["layer 1", "layer 2", "layer 3"]
    assert texts[start : start + len(numbers)] == numbers and "gate g" in texts


def test_other_coefficients_are_shown_as_what_they_are(load):
    def explained(name, kind, text=TEXT):
        text_model = load(name)
        source_ids = text_model.encode(text)
        explanation = text_model.explain(source_ids, text_model.search(source_ids, 1, 1, 1.0, 9)[0])
        return text_model.model, explanation, app.coefficient_map(explanation, TINY["encoder_layers"], kind)

    model, explanation, html = explained("channel", "learned")
    weight = model.model.encoder.solver_coefficients.weight
    assert weight.shape == (2, TINY["d_model"])
    expected = weight.mean(1).detach().numpy()
    assert explanation.coefficients.shape == (6, 2)
    np.testing.assert_allclose(explanation.coefficients, np.tile(expected, (6, 1)), atol=1e-6)
    assert "layer 3, step 2" in html and f"{expected[1]:.2f}" in html and "same for every token" in html

    _, explanation, html = explained("sigmoid", "sigmoid")
    assert explanation.coefficients.shape == (6, 4, len(explanation.source))
    assert "weight of F4" in html and "gate g" not in html

    for name in ("positions", "m2m100"):
        _, explanation, html = explained(name, "fixed", "nine")
        assert explanation.coefficients is None and "no stage weights" in html


def test_impossible_requests_are_explained(load, models, tmp_path):
    text_model = load("positions")
    with pytest.raises(ValueError, match="no text: enter one"):
        text_model.encode(" \n")
    with pytest.raises(ValueError, match=r"has \d+ tokens, but the limit is 12"):
        text_model.encode("nine " * 12)
    with pytest.raises(ValueError, match="3 outputs need at least as many beams, not 2"):
        text_model.search(text_model.encode("nine"), 2, 3, 1.0, 9)
    # As long as there are positions.
    source_ids = text_model.encode("nine")
    for output in text_model.search(source_ids, 2, 2, 1.0, 12):
        assert text_model.explain(source_ids, output).attentions.shape[2] == len(output.token_ids) <= 12

    with pytest.raises(ValueError, match="is a language model"):
        load("language")
    pickled = shutil.copytree(models / "gate", tmp_path / "pickled")
    torch.save(text_model.model.state_dict(), pickled / "pytorch_model.bin")
    (pickled / "model.safetensors").unlink()
    with pytest.raises(OSError, match="safetensors"):
        app.TextModel(str(pickled))


def test_models_with_other_names_of_their_sizes(models, tmp_path):
    sizes = {"num_layers": 3, "num_decoder_layers": 2, "num_heads": 4, "d_model": 16, "d_kv": 4, "d_ff": 16}
    model = T5ForConditionalGeneration(T5Config(vocab_size=VOCABULARY, **sizes, decoder_start_token_id=0))
    model.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(models / "gate").save_pretrained(tmp_path)
    text_model = app.TextModel(str(tmp_path))
    assert "encoder of 3 layers; decoder of 2 layers" in app.describe(text_model.model)
    components = [component["props"] for component in app.build_page(text_model, "t5", TEXT).config["components"]]
    choices = [[label for label, _ in props["choices"]] for props in components if props.get("choices")]
    assert ["layer 1", "layer 2"] in choices and ["mean", *(f"head {i}" for i in range(1, 5))] in choices


def test_the_page_opens_with_a_text_and_its_output(load, models):
    tokenizer = AutoTokenizer.from_pretrained(models / "gate")
    sequences = AutoModelForSeq2SeqLM.from_pretrained(models / "gate").generate(**tokenizer(TEXT, return_tensors="pt"))
    components = [component["props"] for component in app.build_page(load("gate"), "gate", TEXT).config["components"]]
    values = {props.get("label") or props.get("elem_id"): props.get("value") for props in components}
    assert values["Text"] == TEXT and values["Output"] == tokenizer.decode(sequences[0], skip_special_tokens=True)
    assert (values["Beams"], values["Length penalty"], values["Longest output (tokens)"]) == (3, 0.6, 12)
    assert "attention of layer 2" in values["attention"] and "gate g" in values["coefficients"]
    with pytest.raises(ValueError, match="the limit is 12"):
        app.build_page(load("positions"), "positions", TEXT)


# What a Space runs: the file alone. Whoever looks beyond this machine is refused, and written down.
SPACE = """
import runpy, socket, sys
sys.modules["modeling_ode_transformer"] = None
getaddrinfo = socket.getaddrinfo
def local_only(host, *args, **kwargs):
    if host not in (None, "127.0.0.1", "localhost", "0.0.0.0", "::1"):
        print("Refused:", host, file=sys.stderr)
        raise OSError(host)
    return getaddrinfo(host, *args, **kwargs)
socket.getaddrinfo = local_only
runpy.run_path("app.py", run_name="__main__")
"""


@pytest.fixture(scope="module")
def page(models, tmp_path_factory):
    """The address of the page of the model "gate", run as in a Space, with the code that is stored with the model."""
    folder = tmp_path_factory.mktemp("space")
    shutil.copy(EXAMPLES / "app.py", folder)
    environment = os.environ | {"MODEL_NAME": str(models / "gate"), "HF_MODULES_CACHE": str(folder / "modules")}
    environment |= {"TRUST_REMOTE_CODE": "1", "PYTHONUNBUFFERED": "1"}
    command, options = [sys.executable, "-c", SPACE], {"cwd": folder, "env": environment, "text": True}
    log = folder / "log"
    with (
        log.open("w") as stderr,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, **options) as process,
    ):
        url = next((line.split()[-1] for line in process.stdout if "Running on local URL" in line), None)
        assert url, log.read_text()
        try:
            yield url
        finally:
            process.terminate()
    assert "Refused" not in log.read_text() and "Traceback" not in log.read_text(), log.read_text()


@pytest.fixture
def browser(tmp_path):
    """A headless Chromium with an empty profile."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (chromium and driver):
        pytest.skip("no chromium and chromedriver on the PATH (Debian: apt-get install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    options.set_capability("goog:loggingPrefs", {"performance": "ALL"})
    for argument in (
        "headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking "
        f"disable-component-update disable-sync window-size=1280,1400 user-data-dir={tmp_path / 'profile'}"
    ).split():
        options.add_argument(f"--{argument}")
    with webdriver.Chrome(options, webdriver.ChromeService(driver)) as browser:
        yield browser


def call(page, name, *values) -> tuple[str, str]:
    """The last event and its data that the page's API answers a call with, both as texts."""
    data = json.dumps({"data": values})  # ASCII, which spells half a surrogate pair
    headers = {"content-type": "application/json"}
    response = httpx.post(f"{page}/gradio_api/call/{name}", content=data, headers=headers).raise_for_status()
    address = f"{page}/gradio_api/call/{name}/{response.json()['event_id']}"
    *_, event, data = [line for line in httpx.get(address, timeout=60).text.splitlines() if line]
    return event.removeprefix("event: "), data.removeprefix("data: ")


def test_the_api_answers_possible_values(page, load):
    text_model = load("gate")
    event, data = call(page, "generate", TEXT, 3, 3, 0.6, 9, 1, -1, False)
    assert event == "complete"
    assert text_model.search(text_model.encode(TEXT), 3, 3, 0.6, 9)[0].text in json.loads(data)
    endpoints = httpx.get(f"{page}/gradio_api/info").json()["named_endpoints"]
    names = {name: " ".join(each["parameter_name"] for each in endpoints[name]["parameters"]) for name in endpoints}
    given = "text beams outputs length_penalty max_new_tokens layer head split_sentences"
    assert names == {"/generate": given, "/explain": "output layer head"}


@pytest.mark.parametrize("weights", ["packed", "int8"])
def test_the_page_takes_packed_weights_and_an_address(weights, load, models, monkeypatch):
    launched = []
    monkeypatch.setattr(app.gr.Blocks, "launch", lambda self, **options: launched.append((self, options)))
    app.main(["--model_name_or_path", str(models / "gate"), f"--{weights}", "--host", "0.0.0.0", "--text", TEXT])
    ((_, options),) = launched
    assert options["server_name"] == "0.0.0.0"
    packed, plain = app.TextModel(str(models / "gate"), weights=weights), load("gate")
    with pytest.raises(RuntimeError, match="packed"):
        packed.model.state_dict()
    (output,) = plain.search(plain.encode(TEXT), 3, 1, 0.6, 9)
    (found,) = packed.search(packed.encode(TEXT), 3, 1, 0.6, 9)
    assert weights == "int8" or found.text == output.text
    expected, explanation = plain.explain(plain.encode(TEXT), output), packed.explain(packed.encode(TEXT), output)
    tolerance = 1e-4 if weights == "packed" else 0.1
    np.testing.assert_allclose(explanation.attentions, expected.attentions, atol=tolerance)
    np.testing.assert_allclose(explanation.coefficients, expected.coefficients, atol=tolerance)


def test_another_output_layer_and_head_are_shown(load):
    functions = {function.name: function.fn for function in app.build_page(load("gate"), "gate").fns.values()}
    found, *_ = functions["on_search"](TEXT, 3, 3, 0.6, 9, 1, -1, False)
    text, attention, _ = functions["on_explain"](found, 2, 0, 1)
    assert text == found[0][2][1].text != found[0][0][1].text
    assert "attention of layer 1, head 2" in texts_in(attention)
    assert all("value" not in each for each in functions["on_explain"](found, 3, 0, 1))  # of a longer list before


def test_the_page_warns_of_a_text_over_the_trained_length_and_splits_it_if_asked(load, monkeypatch):
    text_model, warnings = load("gate"), []
    monkeypatch.setattr(app.gr, "Warning", warnings.append)
    functions = {function.name: function.fn for function in app.build_page(text_model, "gate").fns.values()}
    sentences = ["One two three.", "Four five!", "Six"]
    text = " ".join(sentences)
    options = (3, 2, 0.6, 9)

    def shown(*switches):
        (pairs, _), _, output, _, _ = functions["on_search"](text, *options, 1, -1, *switches)
        return output, [text_model.tokenizer.decode(ids, skip_special_tokens=True) for ids, _ in pairs]

    ids = text_model.encode(text)
    whole = text_model.search(ids, *options)[0].text
    text_model.model.config.trained_source_length = len(ids)
    assert shown(True) == shown(False) == (whole, [text, text]) and warnings == []
    text_model.model.config.trained_source_length = longest = len(text_model.encode(sentences[0]))
    assert shown(False) == (whole, [text, text])
    assert warnings == [f"The text has {len(ids)} tokens, but the longest one in training had {longest}."]
    best = [text_model.search(text_model.encode(sentence), *options)[0].text for sentence in sentences]
    assert shown(True) == (" ".join(best), sentences) and len(warnings) == 1


def test_the_page_in_a_browser(browser, page, load):
    """A user enters a text, and sees its output, its attention and its gates; nothing is asked of other hosts."""
    text_model, wait = load("gate"), WebDriverWait(browser, 180)
    source_ids = text_model.encode(TEXT)
    output = text_model.search(source_ids, 3, 3, 0.6, 12)[0]
    explanation = text_model.explain(source_ids, output)

    def find(xpath):
        return wait.until(expected_conditions.visibility_of_element_located((By.XPATH, xpath)), xpath)

    def area(label):
        return find(f"//label[.//*[@data-testid='block-info' and normalize-space()='{label}']]//textarea")

    def texts_of(image, title):
        script = f"return Array.from(document.querySelectorAll('#{image} svg text'), text => text.textContent)"
        return wait.until(lambda _: title in (found := browser.execute_script(script)) and found, title)

    browser.get(page)
    area("Text").send_keys(TEXT, Keys.TAB)
    find("//button[normalize-space()='Generate']").click()
    wait.until(lambda _: area("Output").get_attribute("value") == output.text)
    pieces = explanation.source + explanation.target
    assert texts_of("attention", "attention of layer 2, mean over the heads")[: len(pieces)] == pieces
    assert texts_of("coefficients", "gate g")[: len(source_ids)] == explanation.source
    assert "Traceback" not in browser.page_source
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = [each["params"]["request"]["url"] for each in messages if each["method"] == "Network.requestWillBeSent"]
    foreign = [url for url in urls if not url.startswith((page, "data:", "blob:", "chrome"))]
    assert foreign == [] and sum(url.startswith(page) for url in urls) > 10
