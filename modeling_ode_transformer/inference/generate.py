# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Translate, summarize or correct text with a trained encoder-decoder, or with an ensemble of several.

    ode-transformer generate --model_name_or_path FOLDER --input source.txt --output output.txt
    ode-transformer generate --model_name_or_path FOLDER1 FOLDER2 --num_beams 8 < source.txt > output.txt
    ode-transformer generate --model_name_or_path FOLDER --interactive
    torchrun --nproc_per_node 2 -m modeling_ode_transformer generate --model_name_or_path FOLDER --input source.txt

Each line is a source (`.gz` accepted). The output has one line per source in the same order: its text, or
`score<TAB>text` with `--scores`. With `--num_return_sequences N` it has up to N lines per source, the best first and
no text twice. Each of these starts with the source's line number: `number<TAB>text` or `number<TAB>score<TAB>text`. A
score is a log-probability divided by the output's length; in a beam search, by the length to the power of
`--length_penalty`. An empty line has an empty output, with score 0.

With `--jsonl` lines are JSON objects: `{"source": ..., "target_prefix": ...}`, with or without a prefix, become
`{"source": ..., "target_prefix": ..., "outputs": [...], "scores": [...]}`. Without `--scores`, scores are null. Other
fields stay as they are.

Outputs are written to `NAME.partial` until all are finished, by one call at a time. If it is interrupted, the same
command continues and gives the same outputs as an uninterrupted run; `NAME.partial.json` records the options. With
`--overwrite`, or if outputs are sampled, it starts anew.
"""

import gzip
import hashlib
import json
import logging
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch
from torch import distributed
from tqdm import tqdm
from transformers import AutoModelForSeq2SeqLM, GenerationConfig, PreTrainedModel, set_seed

from ..generation_ode_transformer import MAX_LEN_OPTIONS, OdeTransformerGenerationMixin, position_limit
from ..model_folders import open_config, open_model, source_note
from ..options import declarations
from ..own_schemes import IMPORTED
from ..text_files import iterate_aligned_lines, lock_file, parse_json, parse_overrides, read_lines
from ..texts_ode_transformer import TRAINED_LENGTH, Encoded, Outputs, TextGenerator, check_target_tokenizer
from ..versions import versions
from .arguments import DTYPES, GenerateArguments, SearchArguments
from .cpu import optimize_for_cpu
from .ensemble import EnsembleForConditionalGeneration
from .tokenizers import begin_with_language, load_tokenizers, marks_languages


logger = logging.getLogger(__name__)

# Defaults without --batch_size and --max_tokens_per_batch; and without --max_source_length if positions are unlimited.
BATCH_SIZE, MAX_TOKENS, MAX_SOURCE_LENGTH = 32, 4096, 1024


def device_of(args: SearchArguments) -> torch.device:
    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:  # no such device, or PyTorch is not made for it
        raise ValueError(f"--device {device} cannot be used ({str(error).splitlines()[0]}).") from error


def load_models(args: SearchArguments) -> list[PreTrainedModel]:
    """Opens the encoder-decoders in evaluation mode on their device. Raises ValueError if one is a language model."""
    device = device_of(args)
    models = []
    for name in args.model_name_or_path:
        config = open_config(name, **args.hub_options)
        if not config.is_encoder_decoder:
            raise ValueError(
                f"{name} is a language model ({config.model_type}), but generate needs an encoder-decoder. To "
                'continue texts, use pipeline("text-generation") of transformers.'
            )
        model = open_model(AutoModelForSeq2SeqLM, name, dtype=DTYPES[args.dtype], **args.hub_options)
        models.append(model.to(device))
        if args.weights != "keep" or (args.optimize_for_cpu and device.type == "cpu"):
            optimize_for_cpu(model, args.weights)
    return models


def load_common_tokenizers(args: SearchArguments):
    """Opens the models' source and target tokenizers. Raises ValueError if the models' vocabularies differ."""
    options = args.hub_options | {"src_lang": args.src_lang, "tgt_lang": args.tgt_lang}
    first, *others = (load_tokenizers(name, **options) for name in args.model_name_or_path)
    for name, other in zip(args.model_name_or_path[1:], others):
        for side, one, another in zip(("source", "target"), first, other):
            if one.get_vocab() != another.get_vocab():
                raise ValueError(
                    f"{name} has another {side} vocabulary than {args.model_name_or_path[0]}: an ensemble needs the "
                    "same."
                )
    return first


def source_limit(models: list[PreTrainedModel], asked: int | None) -> int:
    """The most tokens in a source: `asked`, else the positions that all models have, else a default."""
    limit = min((limit for model in models if (limit := position_limit(model.config)) is not None), default=None)
    if asked is not None and limit is not None and asked > limit:
        raise ValueError(f"--max_source_length {asked} exceeds the model's max_position_embeddings, {limit}.")
    return asked or limit or MAX_SOURCE_LENGTH


def set_generation_options(config: GenerationConfig, args: SearchArguments) -> None:
    """Overrides a model's generation configuration with the arguments."""
    options = parse_overrides(args.generation_options)
    if doubled := sorted(options.keys() & vars(args).keys()):
        raise ValueError(f"--generation_options: give --{' and --'.join(doubled)} outside of them.")
    if unknown := sorted(options.keys() - vars(GenerationConfig()).keys() - set(MAX_LEN_OPTIONS)):
        raise ValueError(f"--generation_options: generate() has no option {', '.join(unknown)}.")
    for name in ("num_beams", "length_penalty", "num_return_sequences", *MAX_LEN_OPTIONS):
        if getattr(args, name) is not None:
            options[name] = getattr(args, name)
    try:
        config.update(**options, allow_custom_entries=True)
    except TypeError as error:
        given = json.dumps(parse_overrides(args.generation_options), default=str)
        raise ValueError(f"--generation_options {given}: a value has a wrong type ({error}).") from error
    limits = ("max_length", "max_new_tokens", *MAX_LEN_OPTIONS)
    if all(getattr(config, name, None) is None for name in limits):
        config.max_len_a, config.max_len_b = 0, 200  # fairseq's


def open_generator(args: SearchArguments) -> TextGenerator:
    """The model or the ensemble, with its tokenizers.

    Raises:
        OSError: a model is missing.
        ValueError: the models do not fit together, or an option does not fit them.
    """
    models = load_models(args)
    tokenizer, target_tokenizer = load_common_tokenizers(args)
    for each in models:
        check_target_tokenizer(each, tokenizer, target_tokenizer)
    model: Any = models[0]
    # An ensemble of one model adds max_len_a and max_len_b.
    if len(models) > 1 or not isinstance(model, OdeTransformerGenerationMixin):
        model = EnsembleForConditionalGeneration(models)
    if marks_languages(tokenizer) and tokenizer.tgt_lang is not None:
        begin_with_language(model, tokenizer)
    set_generation_options(model.generation_config, args)
    starts_plainly = model.generation_config.decoder_start_token_id in (None, tokenizer.eos_token_id)
    if marks_languages(tokenizer) and model.generation_config.forced_bos_token_id is None and starts_plainly:
        raise ValueError(
            f"{type(tokenizer).__name__} ({tokenizer.name_or_path}) marks every text with its language, but none is "
            "saved with it: give --src_lang and --tgt_lang."
        )
    size, tokens = args.batch_size, args.max_tokens_per_batch
    size, tokens = (BATCH_SIZE, MAX_TOKENS) if size is None and tokens is None else (size, tokens)
    return TextGenerator(
        model,
        tokenizer,
        target_tokenizer,
        limit=source_limit(models, args.max_source_length),
        trained_length=min(getattr(each.config, TRAINED_LENGTH, None) or math.inf for each in models),
        split_sentences=args.split_sentences,
        batch_size=size or math.inf,
        max_tokens=tokens or math.inf,
        return_scores=args.scores,
    )


def note_of(generator: TextGenerator, args: SearchArguments, records: list[dict], encoded: Encoded) -> dict[str, Any]:
    """Everything that outputs depend on: options, versions and imported schemes, hashes of the sources and of how they
    are encoded, and of the files of the models."""
    declared, sources = declarations(type(args)), hashlib.blake2b(digest_size=16)
    for each in zip(records, encoded):
        sources.update(repr(each).encode())
    options = {f"--{name}": value for name, value in vars(args).items() if declared[name]["affects"] != "call"}
    models = [generator.model.generation_config.to_json_string(), *map(source_note, args.model_name_or_path)]
    of_run = {
        "device": str(generator.model.device),
        "schemes": IMPORTED,
        "input": sources.hexdigest(),
        "models": models,
    }
    return options | of_run | versions()


def choose(args: GenerateArguments) -> Callable[[str, Outputs], Outputs]:
    """What a source's outputs become. `--mbr` leaves the output that is most like all of them, with its mean
    similarity as the score; `--rerank` orders them by another model's log-probability per token, and gives that as the
    score."""
    if args.mbr:
        from ..metrics.minimum_bayes_risk import expected_utilities

        return lambda source, outputs: list(expected_utilities([text for text, _ in outputs], args.mbr).items())[:1]
    if args.rerank:
        from ..metrics.likelihood import target_likelihoods

        options = {"src_lang": args.src_lang, "tgt_lang": args.tgt_lang} | args.hub_options
        tokenizer, target_tokenizer = load_tokenizers(args.rerank, **options)
        model = open_model(AutoModelForSeq2SeqLM, args.rerank, **args.hub_options).to(device_of(args))

        def rerank(source: str, outputs: Outputs) -> Outputs:
            texts = [text for text, _ in outputs]
            scored = target_likelihoods(model, tokenizer, [source] * len(texts), texts, target_tokenizer)
            found = [(text, float(scores.mean())) for text, (_, scores) in zip(texts, scored)]
            return sorted(found, key=lambda output: -output[1])

        return rerank
    return lambda source, outputs: outputs


def format_outputs(record: dict, outputs: Outputs, args: GenerateArguments, number: int | None = None) -> str:
    """The lines of a source's outputs, each starting with the source's number if given."""
    if args.jsonl:
        texts, scores = map(list, zip(*outputs))
        found = {"outputs": texts, "scores": scores if args.scores else None}
        return json.dumps(record | found, ensure_ascii=False) + "\n"
    start = "" if number is None else f"{number}\t"
    lines = [(" ".join(text.split("\n")), score) for text, score in outputs]
    return "".join(f"{start}{score:.4f}\t{text}\n" if args.scores else f"{start}{text}\n" for text, score in lines)


def read_records(args: GenerateArguments) -> list[dict]:
    """The `source` and, if given, the `target_prefix` of each line of the --input.

    Raises:
        OSError: a file is missing.
        ValueError: a line is not such an object, or there are not as many prefixes as sources.
    """
    if args.target_prefix is not None:
        lines = iterate_aligned_lines([args.input, args.target_prefix])
        return [{"source": line, "target_prefix": prefix} for line, prefix in lines]
    lines = read_lines(args.input)
    if not args.jsonl:
        return [{"source": line} for line in lines]
    records = [parse_json(line, f"--input {args.input}, line {number},") for number, line in enumerate(lines, 1)]
    for number, record in enumerate(records, 1):
        texts = [record.get("source"), record.get("target_prefix", "")] if isinstance(record, dict) else [None]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError(
                f"--input {args.input}, line {number}: expected an object with the text `source` and, if wanted, the "
                f"text `target_prefix`, not {json.dumps(record)[:80]}."
            )
    return records


class PartialOutput:
    """An unfinished output: `NAME.partial` holds the first sources' outputs. The first line of `NAME.partial.json`
    says what they depend on; each further one, after a window, how many sources and bytes are written.

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(self, path: Path):
        self.path = path.resolve()  # a link stays one
        self.partial, self.note_file = Path(f"{self.path}.partial"), Path(f"{self.path}.partial.json")
        with self.partial.open("ab"):
            pass

    def remove(self) -> None:
        for file in (self.partial, self.note_file):
            file.unlink(missing_ok=True)

    def begin(self, note: dict, continues: bool) -> int:
        """Returns the number of sources that the file has outputs of. Cuts the rest off, or starts anew if not
        `continues`.

        Raises:
            ValueError: these outputs depend on something else.
        """
        is_begun = self.partial.stat().st_size > 0
        if is_begun and not continues:
            logger.warning("%s: starting from scratch, as --overwrite and sampled outputs do", self.partial)
            self.remove()  # before there is another note
        if not (is_begun and continues):
            self.note_file.write_text(f"{json.dumps(note)}\n", encoding="utf-8")
            return 0
        first, *marks = self.note_file.read_text("utf-8").split("\n")[:-1] if self.note_file.is_file() else ["{}"]
        noted = parse_json(first, str(self.note_file))
        different = sorted(name for name in note.keys() | noted.keys() if noted.get(name) != note.get(name))
        if different:
            raise ValueError(
                f"{self.partial} holds outputs of another call ({', '.join(different) if noted else 'unknown'} "
                "differ): repeat that call, give --overwrite to start from scratch, or choose another --output."
            )
        start, size = map(int, marks[-1].split()) if marks else (0, 0)
        with self.partial.open("ab") as file:
            file.truncate(size)
        if start:
            logger.warning("%s: continuing after %d sources", self.partial, start)
        return start

    def write(self, text: str, number: int) -> None:
        """Adds outputs, after which those of `number` sources are there."""
        with self.partial.open("ab") as file:
            file.write(text.encode("utf-8"))
            size = file.tell()
        with self.note_file.open("a", encoding="utf-8") as file:
            file.write(f"{number} {size}\n")

    def finish(self) -> None:
        """Moves the finished output to its final name."""
        if self.path.suffix == ".gz":
            packed = Path(f"{self.partial}.gz")
            with self.partial.open("rb") as file, packed.open("wb") as target:
                with gzip.GzipFile("", "wb", fileobj=target, mtime=0) as packer:
                    shutil.copyfileobj(file, packer)
            packed.replace(self.path)
        else:
            self.partial.replace(self.path)
        self.remove()


@contextmanager
def opened_output(args: GenerateArguments) -> Iterator[PartialOutput | None]:
    """Within the context, the --output, which may be partly written; None for standard output. No other call can write
    to it. The lock ends with the process, however that ends.

    Raises:
        OSError: the output cannot be written, or already exists.
        ValueError: the output is not a file, or another call is writing to it.
    """
    path = Path(args.output)
    if args.output == "-":
        yield None
        return
    if path.exists() and not path.is_file():
        raise ValueError(f"--output {path} is a folder or a device: give a file.")
    if path.exists() and Path(args.input).exists() and path.samefile(args.input):
        raise ValueError(f"--output {path} is the source file: choose another file.")
    refusal = f"Another call is writing to --output {path}: wait until it ends, or choose another file."
    with lock_file(f"{path.resolve()}.partial.lock", refusal):
        # Checked under the lock: a call that has just ended may have written the output.
        if path.exists() and not args.overwrite:
            raise FileExistsError(f"--output {path} exists: choose another file, or give --overwrite.")
        output = PartialOutput(path)
        try:
            yield output
        finally:
            if output.partial.is_file() and not output.partial.stat().st_size:
                output.remove()


def write_outputs(
    generator: TextGenerator, args: GenerateArguments, records: list[dict], output: PartialOutput | None
) -> None:
    """Writes outputs window by window, by default to standard output. Outputs from an earlier call are kept. Of
    several processes the first one writes."""
    start, empty, written, is_first = 0, 0, 0, generator.rank == 0
    is_numbered = args.num_return_sequences > 1 and not args.mbr and not args.jsonl
    chosen = choose(args) if is_first else None
    encoded = generator.encode(
        [record["source"] for record in records], [record.get("target_prefix", "") for record in records]
    )
    if output is not None:
        continues = not args.overwrite and not generator.model.generation_config.do_sample
        start = output.begin(note_of(generator, args, records, encoded), continues)
    elif is_first:
        cast(Any, sys.stdout).reconfigure(encoding="utf-8", newline="\n")
    start = of_the_first(start)
    counts = [len(parts) for parts, *_ in encoded]
    with tqdm(total=sum(counts), initial=sum(counts[:start]), unit="line", disable=not is_first) as bar:
        for window in generator.windows(encoded, start, bar.update):
            if chosen is None:
                continue
            window = [
                chosen(record["source"], outputs) if count else outputs
                for record, outputs, count in zip(records[start:], window, counts[start:])
            ]
            lines = [
                format_outputs(record, outputs, args, i if is_numbered else None)
                for i, (record, outputs) in enumerate(zip(records[start:], window), start + 1)
            ]
            if output is None:
                print("".join(lines), end="", flush=True)
            else:
                output.write("".join(lines), start + len(window))
            # A blank source has no parts, and has to have an empty output.
            found = [outputs[0][0] for count, outputs in zip(counts[start:], window) if count]
            empty += sum(not text.strip() for text in found)
            start, written = start + len(window), written + len(found)
    if output is not None:
        output.finish()
    if 2 * empty > written:
        logger.warning(
            "%d of %d outputs are empty: the model ends them at once. Train it longer, or forbid empty outputs with "
            "--generation_options min_new_tokens=1",
            *(empty, written),
        )


def interact(generator: TextGenerator, args: GenerateArguments) -> None:
    """Asks for sources and prints outputs until an empty line, the end of the input or Ctrl-C."""
    chosen = choose(args)
    try:
        while (source := input("> ")).strip():
            print(format_outputs({}, chosen(source, generator([source])[0]), args), end="", flush=True)
    except (EOFError, KeyboardInterrupt):
        print()


@contextmanager
def joined_processes(on_gpus: bool) -> Iterator[tuple[int, int]]:
    """Within the context, the processes that torchrun has started exchange objects, each on a GPU of its own if
    `on_gpus`; gives the process's rank and their number, 0 and 1 without torchrun. Only the first one warns."""
    number = int(os.environ.get("WORLD_SIZE", 1))
    if number == 1:
        yield 0, 1
        return
    if torch.cuda.is_available() and on_gpus:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    # torchrun ends all processes if one fails.
    distributed.init_process_group("gloo", timeout=timedelta(days=7))
    try:
        rank = distributed.get_rank()
        logging.disable(logging.WARNING if rank else logging.NOTSET)
        yield rank, number
    finally:
        distributed.destroy_process_group()


def of_the_first(value: Any) -> Any:
    """The value that the first of several processes has."""
    values = [value]
    if distributed.is_initialized():
        distributed.broadcast_object_list(values)
    return values[0]


def run(args: GenerateArguments) -> None:
    """Runs `ode-transformer generate` with these arguments; with torchrun, in several processes.

    Raises:
        OSError: a file or a model is missing, or the output cannot be written.
        ValueError: the models do not fit together, or an option does not fit them.
    """
    joined = joined_processes(device_of(args).type == "cuda")
    with joined as (rank, number), nullcontext() if rank else opened_output(args) as output:
        if args.interactive and number > 1:
            raise ValueError(f"--interactive is for one process, not for {number}.")
        set_seed(args.seed + rank)
        records = of_the_first([] if args.interactive or rank else read_records(args))
        generator = open_generator(args)
        generator.keep_repeats = args.mbr is not None
        generator.rank, generator.num_processes = rank, number
        if args.interactive:
            interact(generator, args)
        else:
            write_outputs(generator, args, records, output)
