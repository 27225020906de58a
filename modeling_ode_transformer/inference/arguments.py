# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The options of `ode-transformer generate` and `ode-transformer serve`; needs no torch."""

from dataclasses import dataclass
from typing import Any

from ..options import check_ranges, declarations, option


DTYPES = {"auto": "auto", "fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
# Groups of `--help`.
SERVER, SOURCES, SEARCH, SPEED = "server", "sources", "search", "device and speed"
HUB = "models of the Hub, and own code"


@dataclass
class SearchArguments:
    """Models, and how they search.

    Raises:
        ValueError: no model is given, or a value is invalid.
    """

    model_name_or_path: list[str] = option(
        "model folder or Hub name; with several, their probabilities are averaged (an ensemble); required here or in "
        "the recipe",
        default_factory=list,
    )
    batch_size: int | None = option(
        "number of sources per batch; default: up to 32 sources with up to 4096 tokens", least=1, group=SOURCES
    )
    max_tokens_per_batch: int | None = option(
        "maximum number of source tokens per batch, padding included; replaces --batch_size", least=1, group=SOURCES
    )
    max_source_length: int | None = option(
        "maximum length of a source in tokens, end mark included; longer ones are cut, with a warning; default: the "
        "model's limit, or 1024 if it has none",
        least=1,
        group=SOURCES,
    )
    split_sentences: bool = option("split longer sources into sentences and join the outputs", False, group=SOURCES)
    src_lang: str | None = option(
        "language of the sources, as named by a multilingual tokenizer: en (M2M100), eng_Latn (NLLB), en_XX (mBART); "
        "default: as saved with the tokenizer",
        group=SOURCES,
    )
    tgt_lang: str | None = option(
        "language of the outputs, named like --src_lang; default: as saved with the tokenizer", group=SOURCES
    )
    num_beams: int | None = option("number of beams; default: as saved with the (first) model", least=1, group=SEARCH)
    length_penalty: float | None = option(
        "exponent p of the score of a finished beam, log probability / length ** p; default: as saved with the model",
        group=SEARCH,
    )
    max_len_a: float | None = option(
        "limits an output to max_len_a * source tokens + max_len_b tokens (a saved max_length still applies); if only "
        "one is given, the other is 0; default: 0 and 200 if no limit is set or saved",
        group=SEARCH,
    )
    max_len_b: float | None = option("see --max_len_a", group=SEARCH)
    generation_options: str | None = option(
        "more options of generate(), such as no_repeat_ngram_size=3,do_sample=true, or a JSON object; with "
        "cache_implementation=static a beam search is compiled, which takes minutes at first; default: none",
        group=SEARCH,
    )
    num_return_sequences: int = option("number of outputs per source", 1, least=1, group=SEARCH)
    scores: bool = option(
        "write the score of each output; outside the beam search of this package's models, this takes 4 bytes * "
        "vocabulary * beams * sources * output length of memory",
        False,
        group=SEARCH,
    )
    seed: int = option("random seed for sampling", 42, group=SEARCH)
    device: str | None = option(
        "device, such as cpu, cuda or cuda:1; default: cuda if there is a GPU, else cpu", group=SPEED
    )
    dtype: str = option("precision of the models; default: auto (as saved)", "auto", choices=list(DTYPES), group=SPEED)
    optimize_for_cpu: bool = option("on a CPU, use faster kernels than PyTorch's defaults", True, group=SPEED)
    packed: bool = option(
        "on a CPU, store the weights in the layout its matrix products need; the tokens stay the same",
        False,
        group=SPEED,
    )
    int8: bool = option(
        "on a CPU, round the packed weights to 8 bits; this is faster, but tokens may change", False, group=SPEED
    )
    model_revision: str = option("branch, tag or commit of a Hub model", "main", group=HUB)
    trust_remote_code: bool = option("run modeling code stored with the model", False, group=HUB)

    def __post_init__(self):
        if not self.model_name_or_path:
            raise ValueError("There is no model to run: give --model_name_or_path.")
        check_ranges(vars(self), declarations(type(self)))
        if self.batch_size is not None and self.max_tokens_per_batch is not None:
            raise ValueError("Give --batch_size or --max_tokens_per_batch, not both.")
        if self.split_sentences and (self.scores or self.num_return_sequences > 1):
            raise ValueError(
                "--split_sentences joins the outputs of a source's parts: leave out --scores and "
                "--num_return_sequences."
            )

    @property
    def weights(self) -> str:
        """The value for `optimize_for_cpu`."""
        return "int8" if self.int8 else "packed" if self.packed else "keep"

    @property
    def hub_options(self) -> dict[str, Any]:
        """Options for `from_pretrained`."""
        return {"revision": self.model_revision, "trust_remote_code": self.trust_remote_code}


@dataclass
class GenerateArguments(SearchArguments):
    """The options of `ode-transformer generate`: models, texts and search.

    Raises:
        ValueError: no model is given, or a value is invalid.
    """

    input: str = option("file of sources, one per line (.gz accepted), or - for standard input", "-", affects="call")
    target_prefix: str | None = option(
        "file of texts, one per line, with which the outputs of the sources begin; an empty line leaves them free",
        affects="call",
    )
    jsonl: bool = option(
        'read and write JSON objects, one per line: {"source": ..., "target_prefix": ...}, where the prefix may be '
        'left out, become {"source": ..., "outputs": [...], "scores": [...]}; without --scores, these are null',
        False,
    )
    output: str = option("file to write (.gz accepted), or - for standard output", "-", affects="call")
    overwrite: bool = option(
        "replace an existing --output, or the partial output of a call that was stopped", False, affects="call"
    )
    mbr: str | None = option(
        "write one of the --num_return_sequences outputs, the one most like all of them by chrf or bleu (minimum "
        "Bayes risk; meant for --generation_options do_sample=true)",
        choices=["chrf", "bleu"],
        group=SEARCH,
    )
    rerank: str | None = option(
        "another model, which orders the --num_return_sequences outputs by their log-probability per token",
        group=SEARCH,
    )
    interactive: bool = option(
        "ask for one source at a time, until an empty line, end of file or Ctrl-C", False, affects="call"
    )

    def __post_init__(self):
        super().__post_init__()
        if self.interactive and (self.input, self.output, self.target_prefix, self.jsonl) != ("-", "-", None, False):
            raise ValueError(
                "--interactive reads and writes the terminal: leave out --input and --output, --target_prefix and "
                "--jsonl."
            )
        if self.jsonl and self.target_prefix is not None:
            raise ValueError("With --jsonl, the prefixes are in --input: leave out --target_prefix.")
        if self.mbr and self.rerank:
            raise ValueError("--mbr and --rerank both choose among the outputs: leave out one of them.")
        if (self.mbr or self.rerank) and self.num_return_sequences == 1:
            raise ValueError(
                f"--{'mbr' if self.mbr else 'rerank'} chooses among outputs: give --num_return_sequences N."
            )


@dataclass
class ServeArguments(SearchArguments):
    """The options of `ode-transformer serve`: models, search, where the server listens and what it accepts.

    Raises:
        ValueError: no model is given, or a value is invalid.
    """

    host: str = option("address to listen on, or 0.0.0.0 for all", "127.0.0.1", group=SERVER)
    port: int = option("port to listen on, or 0 for any free one", 8000, least=0, below=2**16, group=SERVER)
    max_texts: int = option("maximum number of texts in a request", 64, least=1, group=SERVER)
    max_characters: int = option("maximum length of a text in characters", 20_000, least=1, group=SERVER)
    max_waiting: int = option(
        "maximum number of waiting texts; a request beyond it gets status 503", 256, least=1, group=SERVER
    )
    max_beams: int | None = option(
        "maximum number of beams, and of outputs per text, that a request may ask for; default: those of the server",
        least=1,
        group=SERVER,
    )
    max_length_penalty: float = option("maximum length penalty that a request may ask for", 2.0, least=0, group=SERVER)
    cors: str | None = option(
        "web page that may call the server, such as https://example.org, or * for all", group=SERVER
    )
    timeout: float = option("seconds after which a request gets status 503", 60.0, above=0, group=SERVER)

    def __post_init__(self):
        super().__post_init__()
        # A request of more would never be accepted.
        self.max_texts = min(self.max_texts, self.max_waiting)
