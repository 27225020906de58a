# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""An HTTP server for an encoder-decoder or an ensemble.

    ode-transformer serve FOLDER --port 8000
    curl http://127.0.0.1:8000/generate --json '{"texts": ["Two dogs run."]}'

A request may have `target_prefixes`, `num_beams`, `num_return_sequences` and `length_penalty`, within the bounds of
`--max_beams` and `--max_length_penalty`. Requests that arrive while the model is busy wait. Those with the same
options are then generated together.

A request that is malformed or has too many or too long texts is answered by status 422. If too many texts are waiting
or a text waited too long, the status is 503; if the server fails, 500, and its log says why. Most tokenizers take
special tokens spelled in a text, such as `</s>`, for these. `/health` gives the number of waiting texts, `/metrics`
numbers for Prometheus. `/docs` and `/openapi.json` document the API. After a signal to stop, the server answers the
requests that it has.
"""

import asyncio
import copy
import math
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
from .generate import BATCH_SIZE, open_generator


try:
    import uvicorn
    from fastapi import FastAPI, HTTPException
    from fastapi.middleware.cors import CORSMiddleware
    from fastapi.responses import PlainTextResponse
    from pydantic import BaseModel, ConfigDict, Field, model_validator
except ImportError as error:
    raise ImportError(
        f'ode-transformer serve needs FastAPI and uvicorn ({error}): pip install "modeling-ode-transformer[serve]".'
    ) from error


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


class Refused(Exception):
    """Too many texts are waiting."""


@dataclass
class Waiting:
    """A request: its texts, what their outputs begin with, its options of `generate()`, and its answer to come."""

    texts: list[str]
    prefixes: list[str]
    options: dict[str, Any]
    answer: asyncio.Future


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
            Refused: too many texts are waiting.
            TimeoutError: the outputs took longer than `timeout` seconds.
            Exception: an error from `generate`.
        """
        if self.waiting + len(texts) > self.max_waiting:
            raise Refused(f"Too many texts are waiting (limit: {self.max_waiting}): try again later.")
        answer = asyncio.get_running_loop().create_future()
        self.requests.append(Waiting(texts, prefixes or [""] * len(texts), options or {}, answer))
        self.has_requests.set()
        return await asyncio.wait_for(answer, timeout)

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

    if args.cors:
        app.add_middleware(CORSMiddleware, allow_origins=[args.cors], allow_methods=["*"], allow_headers=["*"])

    @app.post("/generate")
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
        """How many texts are waiting."""
        return Health(status="ok", models=args.model_name_or_path, waiting=app.state.batcher.waiting)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> str:
        """Waiting texts, and the batches, texts and seconds of all that was generated, in the format of Prometheus."""
        batcher = app.state.batcher
        lines = ["# TYPE ode_transformer_waiting_texts gauge", f"ode_transformer_waiting_texts {batcher.waiting}"]
        for name, total in batcher.totals.items():
            lines += [f"# TYPE ode_transformer_{name}_total counter", f"ode_transformer_{name}_total {total}"]
        return "\n".join(lines) + "\n"

    return app


def serve(args: ServeArguments) -> None:
    """Runs the server until it is interrupted.

    Raises:
        OSError: a model is missing.
        ValueError: the models do not fit together, or an option does not fit them.
    """
    set_seed(args.seed)
    generator = open_generator(args)
    generator.truncation = False

    def generate(texts: list[str], prefixes: list[str], options: dict[str, Any]) -> list[Outputs]:
        number = options.get("num_return_sequences", args.num_return_sequences)
        own: dict[str, Any] = {"generate_options": options, "split_lines": not args.scores and number == 1}
        return replace(generator, **own)(texts, prefixes)

    generate(["."], [""], {})  # shows errors now rather than at the first request
    generator.warned.clear()
    app = make_app(generate, args, generator.model.generation_config)
    seconds = math.ceil(args.timeout)
    uvicorn.run(app, host=args.host, port=args.port, access_log=False, timeout_graceful_shutdown=seconds)
