# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Translate, summarize or correct text with a trained encoder-decoder, or with an ensemble of several.

    ode-transformer generate --model_name_or_path FOLDER --input source.txt --output output.txt
    ode-transformer generate --model_name_or_path FOLDER1 FOLDER2 --num_beams 8 < source.txt > output.txt
    ode-transformer generate --model_name_or_path FOLDER --interactive

Each line is a source (`.gz` accepted). The output has one line per source in the same order: its text, or
`score<TAB>text` with `--scores`. With `--num_return_sequences N` it has N lines per source, the best first. Each of
these starts with the source's line number: `number<TAB>text` or `number<TAB>score<TAB>text`. A score is a
log-probability divided by the output's length; in a beam search, by the length to the power of `--length_penalty`. An
empty line has an empty output, with score 0.

Outputs are written to `NAME.partial` until all are finished, by one call at a time. If it is interrupted, the same
command continues and gives the same outputs as an uninterrupted run; `NAME.partial.json` records the options. With
`--overwrite`, or if outputs are sampled, it starts anew.
"""

import gzip
import hashlib
import json
import logging
import math
import shutil
import sys
import tempfile
from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby, islice
from pathlib import Path
from typing import Any, cast

import torch
from tqdm import tqdm
from transformers import AutoConfig, AutoModelForSeq2SeqLM, GenerationConfig, PreTrainedModel, set_seed

from ..generation_ode_transformer import MAX_LEN_OPTIONS, OdeTransformerGenerationMixin, position_limit
from ..model_folders import open_model
from ..options import declarations
from ..own_schemes import IMPORTED
from ..pipeline_ode_transformer import SENTENCE_BREAKS, TRAINED_LENGTH, join_sentences
from ..scores_ode_transformer import n_best
from ..text_files import lock_file, parse_overrides, read_json, read_lines, reading
from ..versions import versions
from .arguments import DTYPES, GenerateArguments, SearchArguments
from .cpu import optimize_for_cpu
from .ensemble import EnsembleForConditionalGeneration
from .tokenizers import begin_with_language, check_target_tokenizer, encode_texts, load_tokenizers, marks_languages


logger = logging.getLogger(__name__)

# Sources are sorted by length and written in windows of this many batches.
WINDOW = 64
# Defaults without --batch_size and --max_tokens_per_batch; and without --max_source_length if positions are unlimited.
BATCH_SIZE, MAX_TOKENS, MAX_SOURCE_LENGTH = 32, 4096, 1024
# The options of generate() that may be text.
TEXT_OPTIONS = {"cache_implementation", "early_stopping", "stop_strings", "num_assistant_tokens_schedule"}
TEXT_OPTIONS |= {"dola_layers", "speculation_type"}


def load_models(args: SearchArguments) -> list[PreTrainedModel]:
    """Opens the encoder-decoders in evaluation mode on their device. Raises ValueError if one is a language model."""
    device = args.torch_device
    models = []
    for name in args.model_name_or_path:
        with reading(name):
            config = AutoConfig.from_pretrained(name, **args.hub_options)
        if not config.is_encoder_decoder:
            raise ValueError(
                f"{name} is a language model ({config.model_type}), but generate needs an encoder-decoder. To "
                'continue texts, use pipeline("text-generation") of transformers.'
            )
        model = open_model(AutoModelForSeq2SeqLM, name, dtype=DTYPES[args.dtype], **args.hub_options)
        models.append(model.to(device))
        if args.optimize_for_cpu and device.type == "cpu":
            optimize_for_cpu(model)
    return models


def load_common_tokenizers(args: SearchArguments):
    """Opens the models' source and target tokenizers. Raises ValueError if the models' tokenizers differ."""
    options = args.hub_options | {"src_lang": args.src_lang, "tgt_lang": args.tgt_lang}
    first, *others = (load_tokenizers(name, **options) for name in args.model_name_or_path)
    for name, other in zip(args.model_name_or_path[1:], others):
        for language in ("src_lang", "tgt_lang") if marks_languages(first[0]) else ():
            one, another = (getattr(tokenizer, language, None) for tokenizer, _ in (first, other))
            if one != another:
                raise ValueError(
                    f"{name} is saved with {language} {another!r}, but {args.model_name_or_path[0]} with {one!r}: "
                    f"give --{language}."
                )
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
    if options.get("return_dict_in_generate"):
        raise ValueError("--generation_options: return_dict_in_generate does not change outputs: leave it out.")
    if unknown := sorted(options.keys() - vars(GenerationConfig()).keys() - set(MAX_LEN_OPTIONS)):
        raise ValueError(f"--generation_options: generate() has no option {', '.join(unknown)}.")
    for name, value in options.items():
        is_text = isinstance(value, str) and name not in TEXT_OPTIONS
        if is_text or (isinstance(value, float) and not math.isfinite(value)):
            raise ValueError(f"--generation_options: {name}={value} must {'not be text' if is_text else 'be finite'}.")
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


def check_token_ids(config: GenerationConfig, vocab_size: int) -> None:
    """Raises a ValueError if a token id of a generation configuration is not one of the target's vocabulary."""
    for name, value in vars(config).items():
        ids = value if isinstance(value, list) else [value]
        if name.endswith("_token_id") and not all(each is None or each in range(vocab_size) for each in ids):
            raise ValueError(
                f"{name}={value} is not in the target's vocabulary of {vocab_size} tokens, 0 to {vocab_size - 1}: "
                "give another one in --generation_options."
            )


def make_windows(costs: Sequence[float]) -> list[int]:
    """The ends of windows that fill `WINDOW` batches each; `costs` are the sources' shares of a batch."""
    ends, total = [], 0.0
    for end, cost in enumerate(costs, 1):
        total += cost
        if total >= WINDOW or end == len(costs):
            ends.append(end)
            total = 0.0
    return ends


def make_batches(lengths: list[int], batch_size: int | None, max_tokens: int | None) -> list[list[int]]:
    """Returns batches of source indices, of similar length, the longest first. A source with more than `max_tokens`
    tokens gets its own batch."""
    batches = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        size = len(batches[-1]) + 1 if batches else 0
        if size and size <= (batch_size or math.inf) and size * lengths[batches[-1][0]] <= (max_tokens or math.inf):
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


def split_text(text: str, limit: int, count: Callable[[str], int]) -> list[str]:
    """Splits a text into parts of at most `limit` tokens: at sentence ends, and within longer sentences at words.

    Args:
        text: Any number of sentences.
        limit: At least 1.
        count: Returns the number of tokens of a text, its end mark included. For several texts, the sum is assumed.
    """
    if count(text) <= limit:
        return [text]
    pieces = SENTENCE_BREAKS.split(text.strip())
    units = []
    for sentence, before in zip(pieces[::2], ["", *pieces[1::2]]):
        length = count(sentence)
        words = [(sentence, length)] if length <= limit else [(word, count(word)) for word in sentence.split()]
        units += [(*word, " " if i or before else "") for i, word in enumerate(words)]
    parts: list[str] = []
    room = 0
    for unit, length, before in units:
        if length <= room:
            parts[-1] += before + unit
            room -= length
        else:
            parts.append(unit)
            room = limit - length
    return parts


def plain_tensors(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors that hold the values of a tensor: several if it is quantized."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return [tensor]
    return [each for name in tensor.__tensor_flatten__()[0] for each in plain_tensors(getattr(tensor, name))]


class TextGenerator:
    """A model or an ensemble, with its tokenizers and the arguments of the search."""

    def __init__(self, args: SearchArguments):
        self.args = args
        self.is_packed = False
        self.models = models = load_models(args)
        self.tokenizer, self.target_tokenizer = load_common_tokenizers(args)
        for model in models:
            check_target_tokenizer(model, self.tokenizer, self.target_tokenizer)
        self.limit = source_limit(models, args.max_source_length)
        self.trained_length = min(getattr(model.config, TRAINED_LENGTH, None) or math.inf for model in models)
        self.model = models[0]
        # An ensemble of one model adds max_len_a and max_len_b.
        if len(models) > 1 or not isinstance(models[0], OdeTransformerGenerationMixin):
            self.model = EnsembleForConditionalGeneration(models)
        if marks_languages(self.tokenizer) and self.tokenizer.tgt_lang is not None:
            begin_with_language(self.model, self.tokenizer)
        config = self.model.generation_config
        set_generation_options(config, args)
        check_token_ids(config, models[0].get_output_embeddings().out_features)
        starts_plainly = config.decoder_start_token_id in (None, self.tokenizer.eos_token_id)
        if marks_languages(self.tokenizer) and config.forced_bos_token_id is None and starts_plainly:
            raise ValueError(
                f"{type(self.tokenizer).__name__} ({self.tokenizer.name_or_path}) marks every text with its language, "
                "but none is saved with it: give --src_lang and --tgt_lang."
            )

    def encode(self, sources: list[str]) -> list[list[list[int]]]:
        """Returns the token ids of each source's parts: the whole source or, with `--split_sentences`, the sentences
        of a long one. An empty source has no parts."""
        parts = [[source] if source.strip() else [] for source in sources]
        if self.args.split_sentences:
            parts = [[piece for text in texts for piece in self.split(text)] for texts in parts]
        flat = [text for texts in parts for text in texts]
        encoded, number_cut = encode_texts(flat, self.tokenizer, self.limit) if flat else ([], 0)
        if number_cut:
            advice = "" if self.args.split_sentences else " (--split_sentences keeps them whole)"
            logger.warning("%d of %d sources were cut to %d tokens%s", number_cut, len(flat), self.limit, advice)
        if number_longer := sum(len(ids) > self.trained_length for ids in encoded):
            logger.warning(
                "%d of %d sources are longer than the longest source in training (%d tokens). Their outputs may miss "
                "parts; --split_sentences splits them",
                *(number_longer, len(flat), self.trained_length),
            )
        remaining = iter(encoded)
        return [[next(remaining) for _ in texts] for texts in parts]

    def split(self, source: str) -> list[str]:
        limit = int(min(self.limit, self.trained_length))
        return split_text(source, limit, lambda text: len(self.tokenizer(text, verbose=False)["input_ids"]))

    @property
    def batching(self) -> tuple[int | None, int | None]:
        """The largest numbers of sources and of tokens in a batch; None: no limit."""
        size, tokens = self.args.batch_size, self.args.max_tokens_per_batch
        return (BATCH_SIZE, MAX_TOKENS) if size is None and tokens is None else (size, tokens)

    def window_ends(self, encoded: list[list[list[int]]]) -> list[int]:
        """The ends of the windows of encoded sources."""
        size, tokens = (each or math.inf for each in self.batching)
        return make_windows([sum(max(1 / size, len(ids) / tokens) for ids in parts) for parts in encoded])

    def windows(
        self, encoded: list[list[list[int]]], start: int = 0, progress: bool = False
    ) -> Iterator[list[list[tuple[str, float]]]]:
        """Yields windows, starting with the one that begins at the source `start`: for each source its outputs as
        (text, score), the best first. Without `--scores`, scores are 0."""
        counts = list(map(len, encoded))
        with tqdm(total=sum(counts), initial=sum(counts[:start]), unit="line", disable=not progress) as bar:
            for end in self.window_ends(encoded):
                if end <= start:
                    continue
                parts = [(i, ids) for i in range(start, end) for ids in encoded[i]]
                found: list = [None] * len(parts)
                for batch in make_batches([len(ids) for _, ids in parts], *self.batching):
                    inputs = self.tokenizer.pad({"input_ids": [parts[k][1] for k in batch]}, return_tensors="pt")
                    for k, outputs in zip(batch, self.generate(inputs.to(self.model.device)), strict=True):
                        found[k] = [(" ".join(text.split("\n")), score) for text, score in outputs]
                    bar.update(len(batch))
                results: list = [[("", 0.0)] * self.args.num_return_sequences for _ in range(start, end)]
                for i, each in groupby(zip(parts, found), key=lambda pair: pair[0][0]):
                    outputs = [output for _, output in each]
                    # The parts of one source have one output each.
                    text = join_sentences([output[0][0] for output in outputs], [" "] * (len(outputs) - 1))
                    results[i - start] = outputs[0] if len(outputs) == 1 else [(text, 0.0)]
                yield results
                start = end

    def __call__(self, sources: list[str]) -> list[list[tuple[str, float]]]:
        """Returns the outputs of each source."""
        return [outputs for window in self.windows(self.encode(sources)) for outputs in window]

    def note(self, sources: list[str]) -> dict:
        """Everything that outputs depend on; models, tokenizers, imported schemes and sources as hashes."""
        names = ("input", "models", "tokenizers", *(["schemes"] if IMPORTED else []))
        hashes = {name: hashlib.blake2b(digest_size=16) for name in names}
        for name, code in sorted(IMPORTED.items()):
            hashes["schemes"].update(f"{name}\n{code}\n".encode())
        for source in sources:
            hashes["input"].update(f"{source}\n".encode("utf-8", "surrogatepass"))
        for model in self.models:
            hashes["models"].update(model.config.to_json_string().encode())
            for name, tensor in model.state_dict().items():
                hashes["models"].update(name.encode())
                for part in plain_tensors(tensor):
                    hashes["models"].update(part.cpu().flatten().view(torch.uint8).numpy())
        hashes["models"].update(self.model.generation_config.to_json_string().encode())
        with tempfile.TemporaryDirectory() as folder:
            for side, tokenizer in (("source", self.tokenizer), ("target", self.target_tokenizer)):
                tokenizer.save_pretrained(Path(folder) / side)
            for file in sorted(path for path in Path(folder).rglob("*") if path.is_file()):
                hashes["tokenizers"].update(f"{file.relative_to(folder)}\n".encode() + file.read_bytes())
        declared = declarations(type(self.args))
        options = {name: value for name, value in vars(self.args).items() if declared[name]["affects"] != "call"}
        values = {f"--{name}": value for name, value in options.items()} | {"device": str(self.model.device)}
        return values | versions() | {name: value.hexdigest() for name, value in hashes.items()}

    def generate(self, inputs) -> list[list[tuple[str, float]]]:
        """Returns the outputs of each source in a batch as (text, score), the best first."""
        if self.args.weights != "keep" and not self.is_packed:
            # Only now: `note` cannot hash packed weights.
            for model in self.models:
                optimize_for_cpu(model, self.args.weights)
            self.is_packed = True
        return n_best(self.model, self.target_tokenizer, inputs, return_scores=self.args.scores)


def format_outputs(outputs: list[tuple[str, float]], scores: bool, number: int | None = None) -> str:
    """The lines of a source's outputs, each starting with the source's number if given."""
    start = "" if number is None else f"{number}\t"
    return "".join(f"{start}{score:.4f}\t{text}\n" if scores else f"{start}{text}\n" for text, score in outputs)


def read_sources(name: str) -> list[str]:
    """The lines of a file, or of standard input if its name is -. Raises ValueError if they are not UTF-8."""
    if name != "-":
        return read_lines(name)
    cast(Any, sys.stdin).reconfigure(encoding="utf-8-sig", newline="\n")
    try:
        return [line.rstrip("\r\n") for line in sys.stdin]
    except UnicodeDecodeError as error:
        raise ValueError(f"Standard input is not UTF-8 text ({error}): convert it first.") from error


class PartialOutput:
    """An unfinished output: `NAME.partial` holds the first sources' outputs, `NAME.partial.json` what they depend on.

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(self, path: Path):
        self.is_gzipped, self.path = path.suffix == ".gz", path.resolve()  # a link stays one
        self.partial, self.note_file = Path(f"{self.path}.partial"), Path(f"{self.path}.partial.json")
        with self.partial.open("ab"):
            pass
        if not self.partial.stat().st_size:
            self.remove()

    def remove(self) -> None:
        for file in (self.partial, self.note_file):
            file.unlink(missing_ok=True)

    def number_of_lines(self) -> int:
        if not self.partial.is_file():
            return 0
        with self.partial.open("rb") as file:
            return sum(line.endswith(b"\n") for line in file)

    def begin(self, note: dict, is_drawn: bool) -> None:
        """Records what the outputs depend on.

        Raises:
            ValueError: the existing partial file depends on something else.
        """
        if self.number_of_lines() and is_drawn:
            logger.warning("%s: sampled outputs cannot be continued. Starting from scratch", self.partial)
            self.remove()
        if self.number_of_lines():
            noted = read_json(self.note_file) if self.note_file.is_file() else {}
            different = sorted(name for name in note.keys() | noted.keys() if noted.get(name) != note.get(name))
            if different:
                raise ValueError(
                    f"{self.partial} holds outputs of another call ({', '.join(different) if noted else 'unknown'} "
                    "differ): repeat that call, give --overwrite to start from scratch, or choose another --output."
                )
        else:
            self.note_file.write_text(json.dumps(note, indent=1), encoding="utf-8")

    def cut(self, lines: int) -> None:
        """Cuts the partial file to its first `lines` lines."""
        with self.partial.open("ab+") as file:
            file.seek(0)
            file.truncate(sum(map(len, islice(file, lines))))

    def write(self, text: str) -> None:
        with self.partial.open("ab") as file:
            file.write(text.encode("utf-8"))

    def finish(self, lines: int) -> None:
        """Moves the finished output, of so many lines, to its final name.

        Raises:
            ValueError: the partial file has another number of lines.
        """
        if (found := self.number_of_lines()) != lines:
            self.note_file.unlink(missing_ok=True)  # the file is not continued
            raise ValueError(
                f"{self.partial} has {found} lines instead of {lines}: something else has changed it. Repeat the call "
                "with --overwrite to start from scratch."
            )
        if self.is_gzipped:
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
    if not path.parent.is_dir():
        raise FileNotFoundError(f"--output {path}: there is no folder {path.parent}.")
    if path.exists() and not path.is_file():
        raise ValueError(f"--output {path} is a folder or a device: give a file.")
    if path.exists() and Path(args.input).exists() and path.samefile(args.input):
        raise ValueError(f"--output {path} is the source file: choose another file.")
    refusal = f"Another call is writing to --output {path}: wait until it ends, or choose another file."
    with lock_file(f"{path.resolve()}.partial.lock", refusal):
        # Checked under the lock: a call that has just ended may have written the output.
        if path.exists() and not args.overwrite:
            raise FileExistsError(f"--output {path} exists: choose another file, or give --overwrite.")
        yield PartialOutput(path)


def write_outputs(generator: TextGenerator, sources: list[str], output: PartialOutput | None) -> None:
    """Writes outputs window by window, by default to standard output. Outputs from an earlier call are kept."""
    args, start, empty, written = cast(GenerateArguments, generator.args), 0, 0, 0
    number = args.num_return_sequences
    encoded = generator.encode(sources)
    if output is None:
        cast(Any, sys.stdout).reconfigure(encoding="utf-8", newline="\n")
    else:
        if args.overwrite:
            output.remove()
        output.begin(generator.note(sources), bool(generator.model.generation_config.do_sample))
        ends = [0, *generator.window_ends(encoded)]
        start = ends[bisect(ends, output.number_of_lines() // number) - 1]
        output.cut(start * number)
        if start:
            logger.warning("%s: continuing after %d of %d sources", output.partial, start, len(sources))
    try:
        for window in generator.windows(encoded, start, progress=True):
            lines = [
                format_outputs(outputs, args.scores, i if number > 1 else None)
                for i, outputs in enumerate(window, start + 1)
            ]
            if output is None:
                print("".join(lines), end="", flush=True)
            else:
                output.write("".join(lines))
            # An empty source has no parts, and has to have an empty output.
            sources_of_window = encoded[start : start + len(window)]
            found = [outputs[0][0] for parts, outputs in zip(sources_of_window, window) if parts]
            empty += sum(not text.strip() for text in found)
            start, written = start + len(window), written + len(found)
    except BaseException:
        if output is not None and start == 0:
            output.remove()
        raise
    if output is not None:
        output.finish(len(sources) * number)
    if 2 * empty > written:
        logger.warning(
            "%d of %d outputs are empty: the model ends them at once. Train it longer, or forbid empty outputs with "
            "--generation_options min_new_tokens=1",
            *(empty, written),
        )


def interact(generator: TextGenerator) -> None:
    """Asks for sources and prints outputs until an empty line, the end of the input or Ctrl-C."""
    try:
        while (source := input("> ")).strip():
            print(format_outputs(generator([source])[0], generator.args.scores), end="", flush=True)
    except (EOFError, KeyboardInterrupt):
        print()


def run(args: GenerateArguments) -> None:
    """Runs `ode-transformer generate` with these arguments.

    Raises:
        OSError: a file or a model is missing, or the output cannot be written.
        ValueError: the models do not fit together, or an option does not fit them.
    """
    set_seed(args.seed)
    with opened_output(args) as output:
        sources = None if args.interactive else read_sources(args.input)
        generator = TextGenerator(args)
        if sources is None:
            interact(generator)
        else:
            write_outputs(generator, sources, output)
