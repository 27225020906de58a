# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""`ode-transformer serve`: parallel requests over loopback against the same texts one by one, and what is refused."""

import asyncio
import json
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest
import torch
import uvicorn
from number_names import english
from transformers import GenerationConfig

from modeling_ode_transformer import OdeTransformerForConditionalGeneration, OdeTransformerTokenizer, cli
from modeling_ode_transformer.inference import serve
from modeling_ode_transformer.inference.generate import GenerateArguments, open_generator
from modeling_ode_transformer.inference.serve import Batcher, ServeArguments, make_app
from modeling_ode_transformer.texts_ode_transformer import TextTooLong

from ..conftest import EXAMPLES, TINY, randomize, tiny_config


REQUESTS = 50


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tokenizer = OdeTransformerTokenizer.train([english(number) for number in range(0, 9000, 7)], 300)
    torch.manual_seed(0)
    sizes = TINY | {"vocab_size": 300, "tie_word_embeddings": False, "position_embedding_type": "learned"}
    model = randomize(OdeTransformerForConditionalGeneration(tiny_config(**sizes)))
    torch.nn.init.normal_(model.lm_head.weight)  # a sharp distribution, in which the start token is not repeated
    model.generation_config.update(num_beams=3, max_length=20)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def logging_stays(monkeypatch):
    """uvicorn would close all handlers of the process, and its own would keep the stream of a test that has ended."""
    monkeypatch.setattr(uvicorn.Config, "configure_logging", lambda self: None)


def generator_of(folder, **options):
    generator = open_generator(GenerateArguments(model_name_or_path=[str(folder)], device="cpu", **options))
    generator.truncation = False
    return generator


class Upper:
    """In the place of a model: it spells texts in capitals, once it is let go, and notes what it got."""

    def __init__(self):
        self.calls, self.is_busy, self.may_go = [], threading.Event(), threading.Event()

    def __call__(self, texts, prefixes, options):
        self.calls.append(texts)
        self.is_busy.set()
        assert self.may_go.wait(60)
        if "defect" in texts:
            raise TypeError("a defect")
        if "long" in texts:
            raise TextTooLong("too long")
        if "value" in texts:
            raise ValueError("an output is longer than max_position_embeddings")
        return [[(text.upper(), -1.0)] for text in texts]


def with_client(app, talk):
    """What `talk`, which takes a client of the application, returns."""

    async def run():
        async with app.router.lifespan_context(app):
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
                return await asyncio.wait_for(talk(client), 120)

    return asyncio.run(run())


async def until_waiting(client, number):
    while (await client.get("/health")).json()["waiting"] < number:
        await asyncio.sleep(0)  # lets the requests go on


def ask(client, *texts, **options):
    return asyncio.create_task(client.post("/generate", json={"texts": texts, **options}))


async def answers_of(client, upper, *texts, options=None):
    """Those to requests of a text each, with its options if it has some. All but the first come while it is busy."""
    tasks = []
    for number, text in enumerate(texts):
        tasks.append(ask(client, text, **(options or {}).get(text, {})))
        await asyncio.to_thread(upper.is_busy.wait)
        await until_waiting(client, number)
    upper.may_go.set()
    return await asyncio.gather(*tasks)


def texts_of(response):
    assert response.status_code == 200, response.text
    return [output["text"] for (output,) in response.json()["outputs"]]


@contextmanager
def serving(app):
    """Serves an application on a free port of loopback; gives the address, the server and its thread."""
    started = threading.Event()

    class Server(uvicorn.Server):
        async def startup(self, sockets=None):
            await super().startup(sockets)
            started.set()

    server = Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert started.wait(60), "The server did not start."
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}", server, thread
    finally:
        server.should_exit = True
        thread.join()


def test_numbers_for_prometheus_and_pages_of_another_origin():
    upper = Upper()
    upper.may_go.set()

    async def talk(client):
        texts = {"texts": ["a", "b", "c"]}
        origins = ("https://example.org", "https://other.org")
        answers = [await client.post("/generate", json=texts, headers={"Origin": origin}) for origin in origins]
        return [answer.headers for answer in answers], (await client.get("/metrics")).text

    (own, other), metrics = with_client(make_app(upper, ServeArguments(["tiny"], cors="https://example.org")), talk)
    assert own["access-control-allow-origin"] == "https://example.org"
    assert "access-control-allow-origin" not in other
    numbers = dict(line.split() for line in metrics.splitlines() if not line.startswith("#"))
    assert numbers["ode_transformer_waiting_texts"] == "0"
    assert (numbers["ode_transformer_batches_total"], numbers["ode_transformer_texts_total"]) == ("2", "6")
    assert float(numbers["ode_transformer_seconds_total"]) > 0


def test_fifty_parallel_requests_are_generated_together(monkeypatch):
    """Over loopback, by threads that have no asyncio in common with the server."""
    upper, submitted = Upper(), []

    class CountingBatcher(Batcher):
        async def submit(self, texts, *others):
            submitted.append(texts)
            if len(submitted) == REQUESTS:
                upper.may_go.set()  # the first request keeps the model busy until all have come
            return await super().submit(texts, *others)

    monkeypatch.setattr(serve, "Batcher", CountingBatcher)
    app = make_app(upper, ServeArguments(["upper"], max_waiting=2 * REQUESTS, batch_size=32, scores=True))
    with serving(app) as (address, *_), ThreadPoolExecutor(REQUESTS) as pool:
        texts = [[english(i), english(i + REQUESTS)] for i in range(REQUESTS)]
        asked = pool.map(lambda pair: httpx.post(f"{address}/generate", json={"texts": pair}, timeout=60), texts)
        answers = [answer.json()["outputs"] for answer in asked]
        health = httpx.get(f"{address}/health").json()
    assert answers == [[[{"text": text.upper(), "score": -1.0}] for text in pair] for pair in texts]
    sizes = list(map(len, upper.calls))
    assert sum(sizes) == 2 * REQUESTS and max(sizes) == 32 and len(sizes) <= 6
    assert health == {"status": "ok", "models": ["upper"], "waiting": 0}


def test_a_full_queue_and_a_long_wait_are_answered_by_503():
    upper = Upper()

    async def talk(client):
        first = ask(client, "a")
        await asyncio.to_thread(upper.is_busy.wait)
        waiting = ask(client, "b", "c")
        await until_waiting(client, 2)
        refused = await ask(client, "d", "e")
        third = ask(client, "d")
        await until_waiting(client, 3)
        upper.may_go.set()
        return refused, *(await asyncio.gather(first, waiting, third))

    refused, *answered = with_client(make_app(upper, ServeArguments(["upper"], max_waiting=3)), talk)
    assert refused.status_code == 503 and refused.headers["retry-after"] == "1"
    assert refused.json() == {"detail": "Too many texts are waiting (limit: 3): try again later."}
    assert [texts_of(answer) for answer in answered] == [["A"], ["B", "C"], ["D"]]
    assert upper.calls == [["a"], ["b", "c", "d"]]

    upper, options = Upper(), ServeArguments(["upper"], timeout=0.2)

    async def talk(client):
        late = await ask(client, "late")
        options.timeout = 60.0
        upper.may_go.set()
        return late, await ask(client, "next")

    late, after = with_client(make_app(upper, options), talk)
    assert (late.status_code, late.json()) == (503, {"detail": "No output after 0.2 seconds: try again."})
    assert texts_of(after) == ["NEXT"]


def test_requests_that_nobody_waits_for_are_neither_counted_nor_generated():
    """Neither in the queue, nor when a batch has failed and its requests are generated one by one."""
    calls = []
    # The calls that begin, then wait until they may go on.
    held = {texts: (threading.Event(), threading.Event()) for texts in ("a", "e defect f")}

    def generate(texts, prefixes, options):
        calls.append(" ".join(texts))
        if calls[-1] in held:
            begins, may_go = held[calls[-1]]
            begins.set()
            assert may_go.wait(60)
        if "defect" in texts:
            raise TypeError("a defect")
        return [[(text.upper(), -1.0)] for text in texts]

    async def talk():
        batcher = Batcher(generate, max_batch=3, max_waiting=3)
        worker = asyncio.create_task(batcher.run())

        def ask(*texts):
            return asyncio.create_task(batcher.submit(list(texts), 60))

        async def cancel(task):
            task.cancel()
            await asyncio.wait([task])

        first = ask("a")
        await asyncio.to_thread(held["a"][0].wait)
        gone = ask("b", "c", "d")
        await asyncio.sleep(0)
        assert batcher.waiting == 3
        await cancel(gone)
        assert batcher.waiting == 0
        tasks = [ask("e"), ask("defect"), ask("f")]
        await asyncio.sleep(0)
        held["a"][1].set()
        await asyncio.to_thread(held["e defect f"][0].wait)
        await cancel(tasks[2])
        held["e defect f"][1].set()
        results = await asyncio.gather(first, *tasks, return_exceptions=True)
        await cancel(worker)
        return results

    first, e, *errors = asyncio.run(talk())
    assert (first, e) == ([[("A", -1.0)]], [[("E", -1.0)]])
    assert [type(error) for error in errors] == [TypeError, asyncio.CancelledError]
    assert calls == ["a", "e defect f", "e", "defect"]


def test_requests_are_generated_with_those_that_have_the_same_options():
    """And in the order in which they came."""
    upper, seen = Upper(), []

    def generate(texts, prefixes, options):
        seen.append((texts, prefixes, options))
        return upper(texts, prefixes, options)

    options = {"b": {"num_beams": 2}, "d": {"num_beams": 2, "target_prefixes": ["D"]}}
    app = make_app(generate, ServeArguments(["upper"], max_beams=2))
    answers = with_client(app, lambda client: answers_of(client, upper, *"abcde", options=options))
    assert [texts_of(answer) for answer in answers] == [["A"], ["B"], ["C"], ["D"], ["E"]]
    assert seen == [(["a"], [""], {}), (["b", "d"], ["", "D"], {"num_beams": 2}), (["c", "e"], ["", ""], {})]


def test_a_server_that_is_stopped_answers_what_it_has():
    upper = Upper()
    app = make_app(upper, ServeArguments(["upper"]))
    with serving(app) as (address, server, thread), ThreadPoolExecutor(2) as pool:

        def post(text):
            return texts_of(httpx.post(f"{address}/generate", json={"texts": [text]}, timeout=60))

        first = pool.submit(post, "a")
        assert upper.is_busy.wait(60)
        second = pool.submit(post, "b")
        while httpx.get(f"{address}/health").json()["waiting"] != 1:
            pass
        server.handle_exit(signal.SIGTERM, None)
        upper.may_go.set()
        assert [first.result(60), second.result(60)] == [["A"], ["B"]] and upper.calls == [["a"], ["b"]]
        thread.join(60)
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{address}/health")


def test_no_request_fails_by_anothers_fault():
    upper, texts = Upper(), ("a", "b", "defect", "value", "long", "c")
    answers = with_client(make_app(upper, ServeArguments(["upper"])), lambda client: answers_of(client, upper, *texts))
    first, b, defect, value, long, c = answers
    assert [texts_of(answer) for answer in (first, b, c)] == [["A"], ["B"], ["C"]]
    assert (long.status_code, long.json()) == (422, {"detail": "too long"})
    assert [failed.status_code for failed in (defect, value)] == [500, 500]


def test_errors_of_the_server_are_logged(caplog):
    upper = Upper()
    upper.may_go.set()
    with serving(make_app(upper, ServeArguments(["upper"]))) as (address, *_):
        assert httpx.post(f"{address}/generate", json={"texts": ["long"]}).status_code == 422
        assert not caplog.text
        assert httpx.post(f"{address}/generate", json={"texts": ["value"]}).status_code == 500
    assert "ValueError: an output is longer than max_position_embeddings" in caplog.text


@pytest.mark.parametrize(
    "request_of, message",
    [
        ({"texts": []}, "List should have at least 1 item"),
        ({"texts": ["a"] * 4}, "List should have at most 3 items"),
        ({"texts": ["a" * 9]}, "String should have at most 8 characters"),
        ({"texts": ["a"], "top_k": 8}, "Extra inputs are not"),
        ({"texts": ["a"], "num_beams": 5}, "less than or equal to 4"),
        ({"texts": ["a"], "num_return_sequences": 5}, "less than or equal to 4"),
        ({"texts": ["a"], "num_return_sequences": 3}, "smaller or equal to `num_b"),
        ({"texts": ["a"], "length_penalty": 1.6}, "less than or equal to 1.5"),
        ({"texts": ["a", "b"], "target_prefixes": ["c"]}, "a target prefix for each"),
        ({"texts": ["a"], "target_prefixes": ["c" * 9]}, "at most 8 characters"),
    ],
)
def test_requests_out_of_bounds_are_refused(request_of, message):
    upper = Upper()
    bounds = {"max_texts": 3, "max_characters": 8, "max_beams": 4, "max_length_penalty": 1.5}
    app = make_app(upper, ServeArguments(["upper"], **bounds), GenerationConfig(num_beams=2))
    response = with_client(app, lambda client: client.post("/generate", json=request_of))
    assert response.status_code == 422 and message in response.text and not upper.calls


def test_a_text_that_would_be_cut_is_refused_or_split(folder):
    text = " ".join([english(7), "."] * 20)
    for options, status in (({}, 422), ({"split_sentences": True}, 200)):
        generator = generator_of(folder, **options)
        app = make_app(lambda texts, *_, generator=generator: generator(texts), ServeArguments(["tiny"]))
        response = with_client(app, lambda client: client.post("/generate", json={"texts": ["two", text, ""]}))
        assert response.status_code == status, response.text
        refused = with_client(app, lambda client: client.post("/generate", json={"texts": ["two", "seven" * 400]}))
        assert refused.status_code == 422 and "The model takes at most" in refused.json()["detail"]
    assert texts_of(response)[2] == "" and all(texts_of(response)[:2])
    assert response.json()["outputs"][0][0]["score"] is None


def test_the_image_starts_the_server_for_all_addresses():
    root = EXAMPLES.parent
    lines = (root / "Dockerfile").read_text().splitlines()
    start, arguments = (json.loads(line.partition(" ")[2]) for line in lines if line.startswith(("ENTRYPOINT", "CMD")))
    program, *argv = start + arguments
    options = vars(cli.make_parser().parse_args(argv))
    assert program == "ode-transformer" and options["model_name_or_path"] == ["/model"]
    assert (options["host"], options["port"]) == ("0.0.0.0", 8000)
    assert set((root / ".dockerignore").read_text().split()) == {"*", "!dist/*.whl", "!constraints.txt"}


def test_the_command_starts_the_server(folder, monkeypatch):
    asked = []
    monkeypatch.setattr(uvicorn, "run", lambda app, **options: asked.append((app, options)))
    cli.run(["serve", str(folder), "--port", "0", "--max_waiting", "5", "--num_beams", "2", "--packed"])
    ((app, options),) = asked
    assert (options["host"], options["port"], options["timeout_graceful_shutdown"]) == ("127.0.0.1", 0, 60)
    response = with_client(app, lambda client: client.post("/generate", json={"texts": ["two"]}))
    assert texts_of(response) == [generator_of(folder, num_beams=2)(["two"])[0][0][0]]
    options = {"num_beams": 2, "num_return_sequences": 2, "length_penalty": 2.0, "target_prefixes": ["seven"]}
    response = with_client(app, lambda client: client.post("/generate", json={"texts": ["two"], **options}))
    generator = generator_of(folder, num_beams=2, num_return_sequences=2, length_penalty=2.0)
    expected = [text for text, _ in generator(["two"], ["seven"])[0]]
    assert [output["text"] for output in response.json()["outputs"][0]] == expected
    assert len(expected) == 2 and all(text.startswith("seven") for text in expected)
    too_long = {"texts": ["two"], "target_prefixes": ["seven " * 20]}
    assert with_client(app, lambda client: client.post("/generate", json=too_long)).status_code == 422
    for option, message in (("--timeout 0", ".0 must be above 0"), ("--port 70000", " must be less than 65536")):
        with pytest.raises(ValueError, match=f"{option}{message}"):
            cli.run(["serve", str(folder), *option.split()])
