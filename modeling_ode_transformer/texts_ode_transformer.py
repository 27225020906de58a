# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Texts from texts, with this package's models, other encoder-decoders of transformers, and ensembles: `TextGenerator`
for pipelines, `ode-transformer generate` and its server; scores and n-best lists; target tokenizers."""

import copy
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Any

import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils import cached_file, logging

from .generation_ode_transformer import OdeTransformerGenerationMixin, option, package_search, position_limit


logger = logging.get_logger(__name__)

# Subfolder of a model's folder for the target tokenizer, if it differs from the source's.
TARGET_TOKENIZER = "target_tokenizer"
# Configuration field: the length in tokens of the longest source in training.
TRAINED_LENGTH = "trained_source_length"
# The outputs of a text, each with its score, the best first.
Outputs = list[tuple[str, float]]
# For each text, the token ids of its parts, the white space between the parts, and the token ids of its target prefix.
Encoded = list[tuple[list[list[int]], list[str], list[int]]]
# Texts are sorted by length within a window of this many batches.
WINDOW = 64
# Looked for only where white space begins: in a long run of it, from every place would be quadratic.
LINE_BREAKS = re.compile(r"((?<!\s)\s*\n\s*)")
# Marks that close a quotation, a title or a parenthesis.
CLOSING = r"""”’」』）》】〉〕»"')\]"""
# The white space between two sentences; nothing after the stops of Chinese and Japanese.
SENTENCE_BREAKS = re.compile(
    rf"((?<=[.!?…。！？])\s+|(?<=[.!?…。！？][{CLOSING}])\s+|(?<=[。！？])(?=[^\s。！？…～\[{CLOSING}]))"
)
# What ends in a full stop, but no sentence: titles and initials, and before a number or a month what belongs to it.
# English and German; a language of yours may need more.
TITLE = re.compile(r"(?<!\w)(Dr|Mr|Mrs|Ms|Prof|St|Hr|Fr|Mt|vs|bzw|ca|vgl|evtl|inkl|[A-Za-z])\.\Z")
BEFORE_NUMBER = re.compile(
    r"(?<!\w)(No|Nr|Art|Bd|Fig|Abb|S|p|pp|Jan|Feb|Mär|Mar|Apr|Jun|Jul|Aug|Sept?|Okt|Oct|Nov|Dez|Dec)\.\Z"
)
DAY = re.compile(r"(?<!\w)[0-3]?\d\.\Z")
MONTH = re.compile(
    "(Jan|Feb|Mär|Mar|Apr|Mai|May|Jun|Jul|Aug|Sep|Okt|Oct|Nov|Dez|Dec)"  # the beginning of their names
)
# The end of a sentence that the next one follows without white space.
UNSPACED = re.compile(rf"[。！？][{CLOSING}]*\Z")


# Tokenizers


def load_target_tokenizer(name: str, **options: Any) -> PreTrainedTokenizerBase | None:
    """The target tokenizer in a model's folder or repository. None if it has none of its own, or if there is no
    connection and none is cached.

    Args:
        name: a folder, or the name of a model on the Hub.
        options: those of `AutoTokenizer.from_pretrained`: `revision`, `token`, ... Give the model's `config`;
            otherwise it is looked for beside the tokenizer.

    Raises:
        OSError: the repository or the revision does not exist, or the token gives no access.
    """
    found = cached_file(
        name,
        f"{TARGET_TOKENIZER}/tokenizer_config.json",
        revision=options.get("revision"),
        token=options.get("token"),
        local_files_only=options.get("local_files_only", False),
        _raise_exceptions_for_missing_entries=False,
    )
    return None if found is None else AutoTokenizer.from_pretrained(name, subfolder=TARGET_TOKENIZER, **options)


def check_target_tokenizer(model: Any, tokenizer: Any, target_tokenizer: Any) -> None:
    """Raises a ValueError if a saved model has its own target vocabulary, but only a source tokenizer."""
    # Marian's configurations give a common vocabulary twice; its tokenizers may know two vocabularies.
    is_shared = getattr(model.config, "share_encoder_decoder_embeddings", True)
    knows_both = is_shared or getattr(tokenizer, "separate_vocabs", False)
    has_own = getattr(model.config, "decoder_vocab_size", None) is not None
    if has_own and target_tokenizer is tokenizer and not knows_both:
        raise ValueError(
            f"{model.name_or_path} has its own vocabulary for the target, but no folder {TARGET_TOKENIZER}: save the "
            "target's tokenizer there."
        )


def without_truncation(tokenizer: Any) -> Any:
    """The same tokenizer without the truncation and padding of its last call, which `tokenizer.json` would keep."""
    if (backend := getattr(tokenizer, "_tokenizer", None)) is not None:
        backend.no_truncation()
        backend.no_padding()
    return tokenizer


# Scores


def generate_with_scores(
    model, inputs: Mapping[str, torch.Tensor], return_scores: bool = True, **options
) -> tuple[torch.LongTensor, torch.FloatTensor]:
    """Returns the token ids from `generate()`, (sources * num_return_sequences, length), and the score of each output.

    The score is an output's log-probability divided by its length in tokens, both including the end-of-sequence token.
    Beam search divides by `length ** length_penalty`, by which it ranks. Greedy search and sampling divide by the
    length; they count the model's own probabilities, without temperature and the like.

    Args:
        model: an encoder-decoder of transformers, or an ensemble.
        inputs: `input_ids` and `attention_mask` of the sources, (sources, length) each.
        return_scores: whether to compute scores; False: they are 0 and cost nothing.
        options: options of `generate()`. A `tokenizer` that nothing needs is ignored.

    Except in a beam search of this package's models, `generate()` keeps the scores of all tokens at all steps: 4 *
    steps * sources * beams * vocabulary bytes. Give fewer sources at a time than without scores.
    """
    given = options.get("generation_config")

    def value(name):
        return option(model, name, given, options)

    if not (value("stop_strings") or value("token_healing") or options.get("assistant_tokenizer")):
        options.pop("tokenizer", None)  # generate() would pass it on to the model
    if not return_scores:
        sequences = model.generate(**inputs, **options)
        return sequences, torch.zeros(len(sequences), device=sequences.device)
    is_ours = isinstance(model, OdeTransformerGenerationMixin) and model.has_package_search
    search = package_search() if is_ours else None
    if search is not None and search.searches_beams(model, **inputs, **options):
        return model.generate(**inputs, **options, custom_generate=search.beam_search, return_scores=True)
    is_beam_search = (value("num_beams") or 1) > 1
    asked = {"return_dict_in_generate": True, "output_scores": is_beam_search, "output_logits": not is_beam_search}
    if given is not None:
        # generate() takes either a configuration or options.
        options["generation_config"] = copy.deepcopy(given)
        options["generation_config"].update(**asked)
    else:
        options |= asked
    outputs = model.generate(**inputs, **options)
    if is_beam_search:
        return outputs.sequences, outputs.sequences_scores
    tokens = outputs.sequences[:, -len(outputs.logits) :]
    ends = [] if value("eos_token_id") is None else value("eos_token_id")
    is_end = torch.isin(tokens, torch.tensor(ends).to(tokens))
    counts = is_end.cumsum(1) - is_end.long() == 0  # the first end token counts, later ones are padding
    may_end_otherwise = value("stop_strings") is not None or options.get("stopping_criteria")
    if value("pad_token_id") is not None and may_end_otherwise:
        is_padding = tokens == value("pad_token_id")
        counts &= is_end | ~is_padding.flip(1).cumprod(1).flip(1).bool()
        counts[:, 0] = True
    log_probabilities = torch.cat(
        [logits.log_softmax(-1).gather(1, tokens[:, i : i + 1]) for i, logits in enumerate(outputs.logits)], dim=1
    )
    return outputs.sequences, log_probabilities.where(counts, 0).sum(1) / counts.sum(1)


def n_best(
    model, tokenizer, inputs: Mapping[str, torch.Tensor], return_scores: bool = True, **options
) -> list[Outputs]:
    """Generates, and returns for each source its `num_return_sequences` outputs as (text, score), the best first.

    `tokenizer` is the target's; it also finds `stop_strings`. A beam search's scores are those of transformers.
    `modeling_ode_transformer.texts_ode_transformer.generate_with_scores` describes scores, memory and the other
    arguments.
    """
    sequences, scores = generate_with_scores(model, inputs, return_scores, **{"tokenizer": tokenizer, **options})
    ends = option(model, "eos_token_id", options.get("generation_config"), options)
    # The decoder's start token may be the end-of-sequence token.
    if ends is not None and not torch.isin(sequences[:, 1:], torch.tensor(ends).to(sequences)).any(1).all():
        logger.warning_once(
            "An output has no end-of-sequence token: it stopped early, for example at max_length or max_new_tokens. "
            "Allow more tokens, or split the text."
        )
    texts = tokenizer.batch_decode(sequences, skip_special_tokens=True)
    hypotheses = list(zip((text.strip() for text in texts), scores.tolist()))
    number = len(hypotheses) // len(inputs["input_ids"])
    groups = [hypotheses[start : start + number] for start in range(0, len(hypotheses), number)]
    return [sorted(group, key=lambda hypothesis: -hypothesis[1]) for group in groups]


def without_repeats(outputs: Outputs) -> Outputs:
    """Outputs without those whose text comes before."""
    found: dict[str, float] = {}
    for text, score in outputs:
        found.setdefault(text, score)
    return list(found.items())


# Texts


class TextTooLong(ValueError):
    """A text or its prefix has more tokens than the model takes, or too many for what is asked for."""


def split_sentences(text: str) -> list[str]:
    """The sentences of a text and, between these, their white space."""
    first, *rest = SENTENCE_BREAKS.split(text)
    pieces = [first]
    for gap, sentence in zip(rest[::2], rest[1::2]):
        before = pieces[-1]
        goes_on = (
            TITLE.search(before)
            or (BEFORE_NUMBER.search(before) and sentence[:1].isdigit())
            or (DAY.search(before) and MONTH.match(sentence))
        )
        pieces[-1:] = [f"{before}{gap}{sentence}"] if goes_on else [before, gap, sentence]
    return pieces


def join_sentences(sentences: Sequence[str], gaps: Iterable[str]) -> str:
    """Joins sentences to a text. A gap with a line break stays; otherwise a space follows a sentence, or nothing if it
    ends as in Chinese and Japanese."""
    spaces = (gap if "\n" in gap else "" if UNSPACED.search(text) else " " for text, gap in zip(sentences, gaps))
    return "".join(map("".join, zip(sentences, (*spaces, ""))))


def cut_texts(
    encoded: list[list[int]], texts: list[str], tokenizer: Any, max_length: int | None, side: str = "text"
) -> tuple[list[list[int]], int]:
    """The token ids of texts, `encoded`, cut to `max_length` tokens with the end mark (None: not cut), and the number
    cut.

    `side` is the tokenizer's argument for the texts: `text`, or `text_target` for the target side.
    """
    too_long = [i for i, ids in enumerate(encoded) if max_length is not None and len(ids) > max_length]
    for i in too_long:
        encoded[i] = tokenizer(**{side: texts[i]}, truncation=True, max_length=max_length)["input_ids"]
    return encoded, len(too_long)


def make_windows(costs: Iterable[float]) -> Iterator[int]:
    """The ends of windows that fill `WINDOW` batches each; `costs` are the texts' shares of a batch."""
    begin, end, total = 0, 0, 0.0
    for end, cost in enumerate(costs, 1):
        total += cost
        if total >= WINDOW:
            yield end
            begin, total = end, 0.0
    if end > begin:
        yield end


def make_batches(
    lengths: list[int], batch_size: float, max_tokens: float, prefix_lengths: Sequence[int] | None = None
) -> list[list[int]]:
    """Returns batches of indices, of similar length, the longest first, and with target prefixes of equal length. A
    part with more than `max_tokens` tokens gets its own batch."""
    batches, prefixes = [], prefix_lengths or [0] * len(lengths)
    for index in sorted(range(len(lengths)), key=lambda i: (-prefixes[i], -lengths[i])):
        size = len(batches[-1]) + 1 if batches and prefixes[batches[-1][0]] == prefixes[index] else 0
        if size and size <= batch_size and size * lengths[batches[-1][0]] <= max_tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


@dataclass
class TextGenerator:
    """An encoder-decoder or an ensemble that makes texts of texts. It splits long texts into parts, encodes these,
    batches them by length, generates, joins the outputs of a text's parts, and warns, once of each problem.

    Args:
        model: an encoder-decoder of transformers, or an ensemble.
        tokenizer, target_tokenizer: those of the texts and of the outputs.
        limit: the most tokens in a part.
        trained_length: the length in tokens of the longest source in training.
        split_lines: whether each line of a text is a part. The output keeps the line breaks between them.
        split_sentences: whether a text (or line) that is longer than `limit` or `trained_length` is split into parts
            of as many sentences as these lengths allow. Longer sentences are split at words.
        truncation: what happens to a part of more than `limit` tokens. None: it is cut, with a warning. True: it is
            cut. False: a `TextTooLong` error.
        batch_size, max_tokens: the most parts in a batch, and the most tokens, padding included.
        return_scores: whether to compute scores; otherwise they are 0.
        keep_repeats: whether a text is given as often as it was generated, rather than once.
        generate_options: options of `generate()`.
        rank, num_processes: this process and the number of processes of the default group of `torch.distributed` that
            share the batches of the same texts; each has all outputs.
        warned: the problems of which a warning was given.

    Raises:
        TextTooLong: a part is too long, with `truncation=False`, or a target prefix; or scores or several outputs are
            asked for of a text with several parts.
    """

    model: Any
    tokenizer: Any
    target_tokenizer: Any
    limit: int
    trained_length: float = math.inf
    split_lines: bool = False
    split_sentences: bool = False
    truncation: bool | None = None
    batch_size: float = math.inf
    max_tokens: float = math.inf
    return_scores: bool = False
    keep_repeats: bool = False
    generate_options: dict[str, Any] = field(default_factory=dict)
    rank: int = 0
    num_processes: int = 1
    warned: set[str] = field(default_factory=set)

    def __call__(self, texts: Sequence[str], target_prefixes: Sequence[str] | None = None) -> list[Outputs]:
        """The outputs of each text as (text, score), the best first, and none twice. Those of a blank text are empty.

        Args:
            texts: the texts.
            target_prefixes: what the output of each text begins with; "": anything. Scores are those of the rest.
        """
        return [outputs for window in self.windows(self.encode(texts, target_prefixes)) for outputs in window]

    def encode(self, texts: Sequence[str], target_prefixes: Sequence[str] | None = None) -> Encoded:
        """The token ids of each text's parts, none if it is blank, the white space between the parts, and the token
        ids of its target prefix."""
        split = [self.split(text) for text in texts]
        number = self.value("num_return_sequences") or 1
        if (self.return_scores or number > 1) and any(len(each) > 1 for each, _ in split):
            raise TextTooLong(
                "split_lines and split_sentences join the outputs of several parts into one text: leave out scores, "
                f"and generate one output per part, not {number}."
            )
        parts = [part for each, _ in split for part in each]
        encoded = self.tokenizer(parts, verbose=False)["input_ids"] if parts else []
        self.check_lengths(parts, list(map(len, encoded)))
        self.check_characters(parts, encoded)
        remaining = iter(cut_texts(encoded, parts, self.tokenizer, self.limit)[0])
        prefixes = self.encode_prefixes([""] * len(texts) if target_prefixes is None else target_prefixes)
        if len(prefixes) != len(texts):
            raise ValueError(f"There are {len(texts)} texts, but {len(prefixes)} target prefixes: give one for each.")
        return [(list(islice(remaining, len(each))), gaps, ids) for (each, gaps), ids in zip(split, prefixes)]

    def encode_prefixes(self, prefixes: Sequence[str]) -> list[list[int]]:
        """The token ids of target prefixes, with the mark of a language before them, without the end mark."""
        if not any(prefixes):
            return [[] for _ in prefixes]
        side = "text_target" if self.target_tokenizer is self.tokenizer else "text"
        encoded = self.target_tokenizer(**{side: list(prefixes)}, verbose=False)["input_ids"]
        end = self.target_tokenizer.eos_token_id
        found = [list(takewhile(lambda id: id != end, ids)) if text else [] for text, ids in zip(prefixes, encoded)]
        longest = max(found, key=len)
        most = None if self.value("max_new_tokens") else self.value("max_length")
        if len(longest) + 1 >= min(most or math.inf, position_limit(self.model.config) or math.inf):
            raise TextTooLong(
                f"A target prefix has {len(longest)} tokens, which leaves no room for an output: "
                f"{prefixes[found.index(longest)][:80]!r}... Shorten it, or allow longer outputs."
            )
        return found

    def value(self, name: str) -> Any:
        """An option of `generate()`."""
        return option(self.model, name, self.generate_options.get("generation_config"), self.generate_options)

    def check_lengths(self, parts: list[str], lengths: list[int]) -> None:
        """Warns of parts that are too long, or refuses them."""
        for problem, most in (
            (f"have more tokens than the model takes, {self.limit}, and are cut", self.limit),
            (f"are longer than the longest in training ({self.trained_length} tokens)", self.trained_length),
        ):
            long = [i for i, length in enumerate(lengths) if length > most]
            if not long or self.truncation:
                continue
            first = f"{lengths[long[0]]} tokens: {parts[long[0]][:80]!r}..."
            if self.truncation is False and most == self.limit:
                raise TextTooLong(f"The model takes at most {self.limit} tokens, but a text has {first} Split it.")
            if problem not in self.warned:
                self.warned.add(problem)
                advice = "Outputs may lack something: split the texts."
                logger.warning(f"{len(long)} of {len(parts)} texts {problem}, the first with {first} {advice}")

    def check_characters(self, parts: list[str], encoded: list[list[int]]) -> None:
        """Warns of characters that the tokenizer has no pieces for: the model has hardly ever seen them."""
        if "characters" in self.warned:
            return
        bytes_and_unknown = {self.tokenizer.convert_tokens_to_ids(f"<0x{byte:02X}>") for byte in range(256)}
        bytes_and_unknown.add(self.tokenizer.unk_token_id)
        found = [part for part, ids in zip(parts, encoded) if not bytes_and_unknown.isdisjoint(ids)]
        if not found:
            return
        self.warned.add("characters")
        counts = Counter(character for part in found for character in set(part))
        characters = sorted(counts, key=lambda each: (-counts[each], each))
        alone = self.tokenizer(characters, verbose=False)["input_ids"]
        rare = (each for each, ids in zip(characters, alone) if not bytes_and_unknown.isdisjoint(ids))
        examples = ", ".join(f"{each!r} (U+{ord(each):04X})" for each in islice(rare, 5)) or repr(found[0][:80])
        logger.warning(
            f"{len(found)} of {len(parts)} texts have characters for which the tokenizer has no piece, such as "
            f"{examples}: the model knows little of them. Replace them, or train with --normalization."
        )

    def split(self, text: str) -> tuple[list[str], list[str]]:
        """The parts of a text, and the white space between them."""
        if not text.strip():
            return [], []
        pieces = LINE_BREAKS.split(text.strip()) if self.split_lines else [text]
        parts, gaps = [], []
        for line, gap in zip(pieces[::2], [*pieces[1::2], ""]):
            packed = self.pack(line) if self.split_sentences and self.is_long(line) else [line]
            parts += packed
            gaps += [*[" "] * (len(packed) - 1), gap]
        return parts, gaps[:-1]

    def pack(self, text: str) -> list[str]:
        """Parts of a text, of as many sentences as possible."""
        longest, room, parts = min(self.limit, self.trained_length), 0.0, []
        pieces = split_sentences(text.strip())
        for sentence, gap in zip(pieces[::2], ["", *pieces[1::2]]):
            units = sentence.split() if self.is_long(sentence) else [sentence]
            for i, unit in enumerate(units):
                length = self.count(unit)
                if length <= room:
                    parts[-1] += (" " if i or gap else "") + unit
                    room -= length
                else:
                    parts.append(unit)
                    room = longest - length
        return parts

    def is_long(self, text: str) -> bool:
        return self.count(text) > min(self.limit, self.trained_length)

    def count(self, text: str) -> int:
        """The number of a text's tokens, its end mark included."""
        return len(self.tokenizer(text, verbose=False)["input_ids"])

    def windows(
        self,
        encoded: Encoded,
        start: int = 0,
        report: Callable[[int], Any] = lambda number: None,
    ) -> Iterator[list[Outputs]]:
        """Yields windows of encoded texts, from the one that begins at the text `start`: the outputs of each text, as
        `__call__` returns them. `report` gets the number of parts of each batch that is done."""
        costs = (sum(max(1 / self.batch_size, len(ids) / self.max_tokens) for ids in parts) for parts, *_ in encoded)
        for end in make_windows(costs):
            if end <= start:
                continue
            parts = [ids for each, *_ in encoded[start:end] for ids in each]
            # The output of the first part begins with the prefix.
            prefixes = [[] if i else ids for each, _, ids in encoded[start:end] for i in range(len(each))]
            found: list = [None] * len(parts)
            lengths = list(map(len, parts))
            batches = make_batches(lengths, self.batch_size, self.max_tokens, list(map(len, prefixes)))
            for batch in batches[self.rank :: self.num_processes]:
                inputs = self.tokenizer.pad({"input_ids": [parts[i] for i in batch]}, return_tensors="pt")
                if prefixes[batch[0]]:
                    inputs["decoder_input_ids"] = torch.tensor([prefixes[i] for i in batch])
                for i, outputs in zip(batch, self.generate(inputs.to(self.model.device)), strict=True):
                    found[i] = outputs
                report(len(batch))
            if self.num_processes > 1:
                shares: list = [None] * self.num_processes
                torch.distributed.all_gather_object(shares, found)
                report(found.count(None))
                found = [next(filter(None, share)) for share in zip(*shares)]
            remaining = iter(found)
            yield [self.join(list(islice(remaining, len(each))), gaps) for each, gaps, _ in encoded[start:end]]
            start = end

    def generate(self, inputs: Mapping[str, torch.Tensor]) -> list[Outputs]:
        """The outputs of each part of a batch."""
        return n_best(self.model, self.target_tokenizer, inputs, self.return_scores, **self.generate_options)

    def join(self, outputs: list[Outputs], gaps: list[str]) -> Outputs:
        """The outputs of a text, from those of its parts."""
        if not outputs:
            return [("", 0.0)]
        if len(outputs) == 1:
            return outputs[0] if self.keep_repeats else without_repeats(outputs[0])
        return [(join_sentences([text for ((text, _),) in outputs], gaps), 0.0)]
