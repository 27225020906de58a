# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""An HTTP server for an encoder-decoder or an ensemble.

    ode-transformer serve FOLDER --port 8000
    curl http://127.0.0.1:8000/generate --json '{"texts": ["Two dogs run."]}'

A request may have `target_prefixes`, `num_beams`, `num_return_sequences` and `length_penalty`, within the bounds of
`--max_beams` and `--max_length_penalty`. Requests that arrive while the model is busy wait. Those with the same
options are then generated together.

Errors are JSON, `{"error": "..."}`: status 422 for a request that is malformed or has too many or too long texts, 400
for one that is not UTF-8 or nested too deeply, 413 for one of more bytes than any allowed texts have, 408 for one that
is not sent within ten seconds, 503 if too many texts are waiting, a text waited too long or the server is stopping,
500 if the server fails. Most tokenizers take special tokens spelled in a text, such as `</s>`, for these.
`/health` gives the number of waiting texts, `/metrics` numbers for Prometheus. `/docs` and `/openapi.json` document
the API.
"""

import asyncio
import copy
import logging
import math
import socket
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

from transformers import GenerationConfig, set_seed

from ..texts_ode_transformer import Outputs, TextTooLong
from .arguments import ServeArguments
from .generate import BATCH_SIZE, open_generator, pack


try:
    import uvicorn
    from fastapi import FastAPI, HTTPException
    from fastapi.exceptions import RequestValidationError
    from fastapi.middleware.cors import CORSMiddleware
    from fastapi.responses import JSONResponse, PlainTextResponse
    from pydantic import BaseModel, ConfigDict, Field, model_validator
    from starlette.exceptions import HTTPException as StarletteHTTPException
except ImportError as error:
    raise ImportError(
        f'ode-transformer serve needs FastAPI and uvicorn ({error}): pip install "modeling-ode-transformer[serve]".'
    ) from error


logger = logging.getLogger(__name__)

# A client has so many seconds to send the body of a request.
SECONDS_TO_SEND = 10.0
# With so many connections, requests are answered by 503. Systems often allow a process 1,024 open files.
MAX_CONNECTIONS = 512


class Output(BaseModel):
    """An output. The score is its log-probability divided by its length (in a beam search, by the length to the power
    of the length penalty); null if the server computes no scores."""

    text: str
    score: float | None


class Answer(BaseModel):
    outputs: Annotated[list[list[Output]], Field(description="For each text, its outputs, best first.")]


class Health(BaseModel):
    status: str
    models: list[str]
    waiting: Annotated[int, Field(description="Number of texts that wait for the model.")]


class Error(BaseModel):
    error: str


class Refused(Exception):
    """No text is taken now; the message says why."""


@dataclass
class Waiting:
    """A request: its texts, what their outputs begin with, its options of `generate()`, and its answer to come."""

    texts: list[str]
    prefixes: list[str]
    options: dict[str, Any]
    answer: asyncio.Future


class Guard:
    """Middleware that ends requests which nobody completes or waits for.

    It answers by 413 once more than `limit` bytes of a body have come, and by 408 if a body is not there after
    `SECONDS_TO_SEND`. A request whose client is gone is canceled.
    """

    def __init__(self, app: Any, limit: int):
        self.app, self.limit = app, limit

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        loop, size, is_sent = asyncio.get_running_loop(), 0, asyncio.Event()
        deadline = loop.time() + SECONDS_TO_SEND

        async def guarded() -> Any:
            nonlocal size
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, f"The request was not sent within {SECONDS_TO_SEND:g} seconds.") from None
            size += len(message.get("body", b""))
            if size > self.limit:
                raise HTTPException(413, f"The request has over {self.limit} bytes: send fewer or shorter texts.")
            if not message.get("more_body", False):
                is_sent.set()
            return message

        async def client_leaves() -> None:
            await is_sent.wait()
            while (await receive())["type"] != "http.disconnect":
                pass

        answer = asyncio.create_task(self.app(scope, guarded, send))
        departure = asyncio.create_task(client_leaves())
        try:
            await asyncio.wait({answer, departure}, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                await answer
        finally:
            for task in (answer, departure):
                task.cancel()


class Batcher:
    """Generates outputs in one thread, for several requests at a time: all with the same options that arrived while it
    was busy.

    Args:
        generate: Takes texts, their target prefixes and options of `generate()`; returns the outputs of each text. An
            error it raises answers the request.
        max_batch: A batch with this many texts takes no further requests.
        max_waiting: Largest number of waiting texts.
    """

    def __init__(self, generate: Callable[..., list[Outputs]], max_batch: int, max_waiting: int):
        self.generate, self.max_batch, self.max_waiting = generate, max_batch, max_waiting
        self.requests: deque[Waiting] = deque()
        # The number of requests without an answer; and whether no further ones are taken.
        self.unanswered, self.is_closed = 0, False
        self.has_requests = asyncio.Event()
        self.thread = ThreadPoolExecutor(1)
        self.totals = {"batches": 0, "texts": 0, "seconds": 0.0}  # of what was generated

    @property
    def waiting(self) -> int:
        """The number of waiting texts. Nobody is waiting for a canceled request."""
        return sum(len(request.texts) for request in self.requests if not request.answer.done())

    async def submit(
        self,
        texts: list[str],
        timeout: float,
        prefixes: list[str] | None = None,
        options: dict[str, Any] | None = None,
    ) -> list[Outputs]:
        """Returns the outputs of each text.

        Raises:
            Refused: too many texts are waiting, or the server is stopping.
            TimeoutError: the outputs took longer than `timeout` seconds.
            Exception: an error from `generate`.
        """
        if self.is_closed:
            raise Refused("The server is stopping: try again later.")
        if self.waiting + len(texts) > self.max_waiting:
            raise Refused(f"Too many texts are waiting (limit: {self.max_waiting}): try again later.")
        answer = asyncio.get_running_loop().create_future()
        self.requests.append(Waiting(texts, prefixes or [""] * len(texts), options or {}, answer))
        self.has_requests.set()
        self.unanswered += 1
        try:
            return await asyncio.wait_for(answer, timeout)
        finally:
            self.unanswered -= 1

    async def run(self) -> None:
        """Answers requests until it is canceled."""
        while True:
            await self.has_requests.wait()
            batch: list[Waiting] = []
            others: list[Waiting] = []
            while self.requests and sum(len(request.texts) for request in batch) < self.max_batch:
                request = self.requests.popleft()
                if not request.answer.done():
                    (batch if not batch or request.options == batch[0].options else others).append(request)
            self.requests.extendleft(reversed(others))
            if not self.requests:
                self.has_requests.clear()
            if batch:
                await self.answer(batch)

    async def answer(self, batch: list[Waiting]) -> None:
        """Answers requests together; if that fails, one by one, so that none fails because of another."""
        together = [text for request in batch for text in request.texts]
        prefixes, begin = [prefix for request in batch for prefix in request.prefixes], time.monotonic()
        generate = partial(self.generate, together, prefixes, batch[0].options)
        try:
            outputs = await asyncio.get_running_loop().run_in_executor(self.thread, generate)
        except Exception as error:
            if len(batch) > 1:
                for request in batch:
                    if not request.answer.done():
                        await self.answer([request])
            elif not batch[0].answer.done():
                batch[0].answer.set_exception(error)
            return
        for name, number in (("batches", 1), ("texts", len(together)), ("seconds", time.monotonic() - begin)):
            self.totals[name] += number
        remaining = iter(outputs)
        for request in batch:
            own = [next(remaining) for _ in request.texts]
            if not request.answer.done():
                request.answer.set_result(own)


class DrainingServer(uvicorn.Server):
    """After a signal to stop, it answers the requests that it has, and others by 503 meanwhile. A second Ctrl-C ends
    it at once."""

    async def on_tick(self, counter: int) -> bool:
        app: Any = self.config.app
        ends = app.state.batcher.is_closed = await super().on_tick(counter)
        return ends and (self.force_exit or not app.state.batcher.unanswered)


def make_app(
    generate: Callable[..., list[Outputs]], args: ServeArguments, defaults: GenerationConfig | None = None
) -> FastAPI:
    """Makes the web application.

    Args:
        generate: Takes texts, their target prefixes and options of `generate()`; returns the outputs of each text as
            (text, score). It raises `TextTooLong` for texts that it does not accept; other errors are the server's.
        args: The application's limits, and what answers hold.
        defaults: The model's options of `generate()`.
    """
    defaults = defaults or GenerationConfig()
    Text = Annotated[str, Field(max_length=args.max_characters)]
    most = args.max_beams or max(defaults.num_beams or 1, defaults.num_return_sequences or 1)
    Number = Annotated[int, Field(ge=1, le=most)]

    class Options(BaseModel):
        num_beams: Number | None = None
        num_return_sequences: Number | None = None
        length_penalty: Annotated[float, Field(ge=0, le=args.max_length_penalty)] | None = None

    class Request(Options):
        model_config = ConfigDict(extra="forbid")
        texts: Annotated[list[Text], Field(min_length=1, max_length=args.max_texts, examples=[["Two dogs run."]])]
        target_prefixes: Annotated[
            list[Text] | None, Field(description="What the output of each text begins with; an empty one: anything.")
        ] = None

        @property
        def options(self) -> dict[str, Any]:
            return self.model_dump(include=set(Options.model_fields), exclude_none=True)

        @model_validator(mode="after")
        def check(self):
            if self.target_prefixes is not None and len(self.target_prefixes) != len(self.texts):
                raise ValueError("give a target prefix for each text, which may be empty")
            copy.deepcopy(defaults).update(**self.options)  # raises where options do not go together
            return self

    @asynccontextmanager
    async def lifespan(app: FastAPI):
        app.state.batcher = Batcher(generate, args.batch_size or BATCH_SIZE, args.max_waiting)
        worker = asyncio.create_task(app.state.batcher.run())
        yield
        worker.cancel()

    app = FastAPI(title="ode-transformer serve", description=__doc__.split("\n\n", 2)[2], lifespan=lifespan)

    # JSON may spell a character as two escapes, in 12 bytes. Each text may have a prefix.
    app.add_middleware(Guard, limit=1024 + 2 * args.max_texts * (12 * args.max_characters + 16))

    if args.cors:
        app.add_middleware(CORSMiddleware, allow_origins=[args.cors], allow_methods=["*"], allow_headers=["*"])

    @app.post("/generate", responses={status: {"model": Error} for status in (400, 408, 413, 422, 500, 503)})
    async def generate_outputs(request: Request) -> Answer:
        """Translates, summarizes or corrects texts."""
        try:
            found = await app.state.batcher.submit(
                request.texts, args.timeout, request.target_prefixes, request.options
            )
        except Refused as error:
            raise HTTPException(503, str(error), {"Retry-After": "1"}) from None
        except TimeoutError:
            raise HTTPException(503, f"No output after {args.timeout:g} seconds: try again.") from None
        except TextTooLong as error:
            raise HTTPException(422, str(error)) from error
        outputs = [[{"text": text, "score": score if args.scores else None} for text, score in each] for each in found]
        return Answer.model_validate({"outputs": outputs})

    @app.get("/health")
    async def health() -> Health:
        """Whether the server takes requests (503 while it stops), and how many texts are waiting."""
        if app.state.batcher.is_closed:
            raise HTTPException(503, "The server is stopping.")
        return Health(status="ok", models=args.model_name_or_path, waiting=app.state.batcher.waiting)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> str:
        """Waiting texts, and the batches, texts and seconds of all that was generated, in the format of Prometheus."""
        batcher = app.state.batcher
        lines = ["# TYPE ode_transformer_waiting_texts gauge", f"ode_transformer_waiting_texts {batcher.waiting}"]
        for name, total in batcher.totals.items():
            lines += [f"# TYPE ode_transformer_{name}_total counter", f"ode_transformer_{name}_total {total}"]
        return "\n".join(lines) + "\n"

    def error_response(status: int, message: str, headers: Any = None) -> JSONResponse:
        return JSONResponse({"error": message}, status, headers)

    @app.exception_handler(StarletteHTTPException)
    async def on_http_error(request, error):
        return error_response(error.status_code, str(error.detail), error.headers)

    @app.exception_handler(RequestValidationError)
    async def on_malformed(request, error):
        problems = [f"{'.'.join(map(str, each['loc'][1:])) or 'request'}: {each['msg']}" for each in error.errors()]
        return error_response(422, "; ".join(problems[:5]))

    @app.exception_handler(Exception)
    async def on_defect(request, error):
        return error_response(500, "The server failed; its log says why.")

    return app


def serve(args: ServeArguments) -> None:
    """Runs the server until it is interrupted; see `DrainingServer`.

    Raises:
        OSError: the host is unknown, the port is taken, or a model is missing.
        ValueError: the models do not fit together, or an option does not fit them.
    """
    try:  # from now on the port is taken
        family = socket.AF_INET6 if ":" in args.host else socket.AF_INET
        listener = socket.create_server((args.host, args.port), family=family)
    except OSError as error:
        message = f"--host {args.host} --port {args.port}: {error.strerror}. Give another --host or --port."
        raise OSError(message) from error
    with listener:
        set_seed(args.seed)
        generator = open_generator(args)
        pack(generator, args)
        generator.truncation = False

        def generate(texts: list[str], prefixes: list[str], options: dict[str, Any]) -> list[Outputs]:
            number = options.get("num_return_sequences", args.num_return_sequences)
            own: dict[str, Any] = {"generate_options": options, "split_lines": not args.scores and number == 1}
            return replace(generator, **own)(texts, prefixes)

        generate(["."], [""], {})  # shows errors now rather than at the first request
        generator.warned.clear()
        app = make_app(generate, args, generator.model.generation_config)
        host, port = listener.getsockname()[:2]
        host = f"[{host}]" if ":" in host else host
        names = ", ".join(args.model_name_or_path)
        logger.warning("Serving %s at http://%s:%d/generate, documented at /docs", names, host, port)
        limits: dict[str, Any] = {"timeout_graceful_shutdown": math.ceil(args.timeout)}
        config = uvicorn.Config(app, limit_concurrency=MAX_CONNECTIONS, log_level="warning", **limits)
        DrainingServer(config).run(sockets=[listener])
