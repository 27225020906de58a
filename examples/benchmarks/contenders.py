# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The contenders of the benchmarks and their timing: models of the same sizes and weights, timed in turns."""

import contextlib
import copy
import datetime
import gzip
import json
import multiprocessing
import platform
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode
from transformers import M2M100Config, M2M100ForConditionalGeneration

from modeling_ode_transformer import (
    OdeTransformerForConditionalGeneration,
    OdeTransformerRecurrenceForConditionalGeneration,
)
from modeling_ode_transformer.conversion.residual import from_residual
from modeling_ode_transformer.inference.cpu import optimize_for_cpu


VOCAB_SIZE = 34040
PAD, END, FIRST_WORD = 1, 2, 4
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def m2m100(encoder_layers: int = 6, d_model: int = 512, decoder_layers: int = 6) -> M2M100ForConditionalGeneration:
    """A pre-norm Transformer of the base size, or of another width or depth, with random weights. The layers' weights
    are scaled up and the embeddings down; otherwise the model would repeat one word."""
    torch.manual_seed(0)
    sizes = {
        f"{stack}_{field}": value
        for stack in ("encoder", "decoder")
        for field, value in (("attention_heads", d_model // 64), ("ffn_dim", 4 * d_model), ("layerdrop", 0.0))
    }
    config = M2M100Config(
        vocab_size=VOCAB_SIZE,
        d_model=d_model,
        encoder_layers=encoder_layers,
        decoder_layers=decoder_layers,
        dropout=0.1,
        attention_dropout=0.1,
        activation_dropout=0.1,
        **sizes,
    )
    model = M2M100ForConditionalGeneration(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".layers." in name and parameter.ndim == 2:
                parameter.mul_(3)
        model.model.shared.weight.mul_(0.1)
    model.generation_config.update(max_length=None)
    return model.eval()


def ode_transformer(
    solver: str, residual: M2M100ForConditionalGeneration | None = None
) -> OdeTransformerForConditionalGeneration:
    """An ODE Transformer with the weights of a residual model. Its learned coefficients are Euler's: it evaluates all
    stages, but computes the same function as the residual model."""
    return optimize_for_cpu(from_residual(residual or m2m100(), solver))


def base_preset(solver: str, **fields) -> OdeTransformerForConditionalGeneration:
    """The paper's base model, with relative positions and a learned combination of the layers; RK2 has a gate. Other
    `fields` belong to the configuration, also to that of a model with a recurrence encoder."""
    torch.manual_seed(0)
    model_class = OdeTransformerForConditionalGeneration
    if "recurrence_encoder" in fields:
        model_class = OdeTransformerRecurrenceForConditionalGeneration
    scheme = {"encoder_solver": solver, "encoder_coefficients": "gate" if solver == "rk2" else "fixed"}
    return optimize_for_cpu(model_class(model_class.config_class.from_preset("base", **scheme, **fields)).eval())


def prepared(model, dtype: str = "float32", packing: str | None = None):
    """A copy in the given dtype, with packed weights if `packing` is "packed" or "int8"."""
    model = copy.deepcopy(model).to(DTYPES[dtype])
    return model if packing is None else optimize_for_cpu(model, packing)


def translate(connection, folder: str, compute_type: str, threads: int) -> None:
    """Answers requests from `CTranslate2`, (sentences, beams, length), with hypotheses until there are no more."""
    import ctranslate2

    translator = ctranslate2.Translator(folder, device="cpu", compute_type=compute_type, intra_threads=threads)
    connection.send(translator.compute_type)
    with contextlib.suppress(EOFError):  # the benchmark has ended
        answer(connection, translator)


def answer(connection, translator) -> None:
    while (request := connection.recv()) is not None:
        sentences, num_beams, length = request
        limits = {"min_decoding_length": length, "max_decoding_length": length, "max_batch_size": 0}
        results = translator.translate_batch(sentences, beam_size=num_beams, **limits)
        connection.send([result.hypotheses[0] for result in results])


class CTranslate2:
    """A residual model in CTranslate2, in its own process, since its threads and PyTorch's disturb each other."""

    def __init__(self, model: M2M100ForConditionalGeneration, compute_type: str):
        from ctranslate2.converters.transformers import M2M100Loader

        words = ["<s>", "<pad>", "</s>", "<unk>", *(f"word{i}" for i in range(FIRST_WORD, VOCAB_SIZE))]

        class Loader(M2M100Loader):
            def get_vocabulary(self, model, tokenizer):
                return words

        spec = Loader().get_model_spec(model)
        spec.register_source_vocabulary(words)
        spec.register_target_vocabulary(words)
        spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = "<s>", "</s>", "<unk>"
        spec.config.decoder_start_token = words[model.config.decoder_start_token_id]
        spec.validate()
        self.words, self.ids = words, {word: i for i, word in enumerate(words)}
        context = multiprocessing.get_context("spawn")
        self.connection, other = context.Pipe()
        with tempfile.TemporaryDirectory() as folder:
            spec.save(folder)
            arguments = (other, folder, compute_type, torch.get_num_threads())
            self.process = context.Process(target=translate, args=arguments, daemon=True)
            self.process.start()
            self.compute_type = self.connection.recv()

    def generate(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, num_beams: int, max_new_tokens: int
    ) -> torch.Tensor:
        """Like a model's `generate()`. No output is shorter than `max_new_tokens`."""
        rows = zip(input_ids.tolist(), attention_mask.sum(1).tolist())
        sentences = [[self.words[i] for i in row[:length]] for row, length in rows]
        self.connection.send((sentences, num_beams, max_new_tokens))
        return torch.tensor([[END, *(self.ids[word] for word in each)] for each in self.connection.recv()])


def read_lengths(file: Path, field: str | None = None) -> list[int]:
    """The number of words and punctuation marks in each line, or in a field of each JSON line, plus one for the end of
    the sentence."""
    with gzip.open(file, "rt", encoding="utf-8") if file.suffix == ".gz" else file.open(encoding="utf-8") as lines:
        texts = [line if field is None else json.loads(line)[field] for line in lines]
    return [len(re.findall(r"\w+|[^\w\s]", text)) + 1 for text in texts]


def sources(lengths: Sequence[int], seed: int = 0) -> dict[str, torch.Tensor]:
    """A padded batch of sources of random words with these lengths."""
    generator = torch.Generator().manual_seed(seed)
    input_ids = torch.randint(FIRST_WORD, VOCAB_SIZE, (len(lengths), max(lengths)), generator=generator)
    attention_mask = (torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)).long()
    input_ids[torch.arange(len(lengths)), torch.tensor(lengths) - 1] = END
    return {"input_ids": input_ids.where(attention_mask == 1, PAD), "attention_mask": attention_mask}


def batches_by_length(lengths: Sequence[int], batch_size: int, number: int) -> list[dict[str, torch.Tensor]]:
    """Sorts the lengths into batches and returns `number` evenly spaced ones."""
    ordered = sorted(lengths)
    starts = [round((i + 0.5) / number * (len(ordered) - batch_size)) for i in range(number)]
    return [sources(ordered[start : start + batch_size], seed) for seed, start in enumerate(starts)]


@dataclass
class Effort:
    """How long to measure: at least this many `rounds` and at least this many `seconds`."""

    rounds: int
    seconds: float = 0


def in_turns(
    contenders: dict[str, Callable[[], object]], effort: Effort, pause: float = 0.3
) -> dict[str, list[float]]:
    """Seconds of each contender in each round. In a round, each contender has one turn; a warm-up round comes first.
    The pause before a turn lets the previous contender's threads go to sleep."""
    rounds, first = [], time.perf_counter()
    while len(rounds) <= effort.rounds or time.perf_counter() - first < effort.seconds:
        rounds.append({})
        for name, run in contenders.items():
            time.sleep(pause)
            start = time.perf_counter()
            run()
            rounds[-1][name] = time.perf_counter() - start
    return {name: [each[name] for each in rounds[1:]] for name in contenders}


def synchronized(run: Callable[[], object], device: torch.device) -> Callable[[], None]:
    """A function that calls `run` and waits until the device has finished."""

    def wait():
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return wait


def ratio(seconds: Sequence[float], others: Sequence[float]) -> float:
    """The median of the rounds' ratios."""
    return statistics.median(each / other for each, other in zip(seconds, others))


def peak_memory(run: Callable[[], object]) -> int:
    """The peak size in bytes of the tensors made in `run`."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    live = peak = 0
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


def training_step(model, batch: dict[str, torch.Tensor], dtype: str) -> Callable[[], None]:
    """One Adam update, in float32 or with autocast to bfloat16."""
    optimizer = torch.optim.Adam(model.train().parameters(), lr=1e-5, fused=True)

    def step():
        with torch.autocast(batch["input_ids"].device.type, dtype=torch.bfloat16, enabled=dtype == "bfloat16"):
            loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def step_operations(model, batch: dict[str, torch.Tensor]) -> int:
    """Floating-point operations of the matrix products of a training step."""
    with FlopCounterMode(display=False) as counter:
        model.train()(**batch).loss.backward()
    return counter.get_total_flops()


def write_results(results: dict, file: Path | None) -> None:
    """Writes a benchmark's results as JSON, if there is a file for them."""
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(results, indent=1), encoding="utf-8")


def machine(device: torch.device | None = None) -> dict[str, object]:
    """What the numbers depend on besides the code; includes the GPU's name if `device` is one."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    gpu = {"gpu": torch.cuda.get_device_name(device)} if device is not None and device.type == "cuda" else {}
    return gpu | {
        "processor": names[0] if names else platform.processor(),
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "date": datetime.date.today().isoformat(),
    }
