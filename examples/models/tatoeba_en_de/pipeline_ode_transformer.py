# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Text-to-text pipelines, which transformers 5 no longer has: translation, summarization and text correction.

A repository with this file and a configuration that went through `add_pipeline` has its own pipeline:

```python
translator = pipeline("translation", model=NAME, trust_remote_code=True)
translator("Two dogs run.")  # [{"translation_text": "Zwei Hunde laufen."}]
```
"""

import copy
import os
import re
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    pipeline,
)
from transformers.dynamic_module_utils import custom_object_save
from transformers.pipelines.base import ChunkPipeline
from transformers.utils import cached_file, logging

from .generation_ode_transformer import position_limit
from .scores_ode_transformer import generate_with_scores


try:
    from modeling_ode_transformer.inference.cpu import optimize_for_cpu as make_faster
except ImportError:  # where the package is not installed, its CPU kernels are missing
    make_faster = None

logger = logging.get_logger(__name__)

# Subfolder of a model's folder for the target tokenizer, if it differs from the source's.
TARGET_TOKENIZER = "target_tokenizer"
# The arguments of pipeline() that say what to load from the Hub.
HUB_OPTIONS = ("revision", "token", "trust_remote_code", "local_files_only", "code_revision")
# Looked for only where white space begins: in a long run of it, from every place would be quadratic.
LINE_BREAKS = re.compile(r"((?<!\s)\s*\n\s*)")
# Marks that close a quotation, a title or a parenthesis.
CLOSING = r"""”’」』）》】〉〕»"')\]"""
# The white space between two sentences; nothing after the stops of Chinese and Japanese.
SENTENCE_BREAKS = re.compile(
    rf"((?<=[.!?…。！？])\s+|(?<=[.!?…。！？][{CLOSING}])\s+|(?<=[。！？])(?=[^\s。！？…～\[{CLOSING}]))"
)
# The end of a sentence that the next one follows without white space.
UNSPACED = re.compile(rf"[。！？][{CLOSING}]*\Z")
# Configuration field: the length in tokens of the longest source in training.
TRAINED_LENGTH = "trained_source_length"
# The name of a module loaded from the Hub ends in the commit and the file.
COMMIT = re.compile(r"transformers_modules\..*\.([0-9a-f]{40})\.\w+")


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


def needs_target_tokenizer(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether a model's outputs have their own vocabulary, which the tokenizer does not know."""
    # Marian's configurations give a common vocabulary twice; its tokenizers may know two vocabularies.
    is_shared = getattr(config, "share_encoder_decoder_embeddings", True)
    knows_both = getattr(tokenizer, "separate_vocabs", False)
    return getattr(config, "decoder_vocab_size", None) is not None and not is_shared and not knows_both


def without_truncation(tokenizer: Any) -> Any:
    """The same tokenizer without the truncation and padding of its last call, which `tokenizer.json` would keep."""
    if (backend := getattr(tokenizer, "_tokenizer", None)) is not None:
        backend.no_truncation()
        backend.no_padding()
    return tokenizer


def join_sentences(sentences: Sequence[str], gaps: Iterable[str]) -> str:
    """Joins sentences to a text. A gap with a line break stays; otherwise a space follows a sentence, or nothing if it
    ends as in Chinese and Japanese."""
    spaces = (gap if "\n" in gap else "" if UNSPACED.search(text) else " " for text, gap in zip(sentences, gaps))
    return "".join(map("".join, zip(sentences, (*spaces, ""))))


class TextToTextPipeline(ChunkPipeline):
    """
    Generates texts from texts with an encoder-decoder of transformers.

    Call it with a text, or with a list, a generator or a `KeyDataset` of texts. Results are as in transformers 4:

    - a text gives the list of its outputs, dictionaries with the key `translation_text`, `summary_text` or
      `corrected_text`;
    - a list of texts gives a list of these lists; if each has one output, a list of the dictionaries;
    - a generator or a dataset gives an iterator over the lists of outputs.

    A text without a word has the output "", with the score 0. The options from `batch_size` on can be given to a call
    or, as defaults for all calls, to the constructor.

    Args:
        model: an encoder-decoder. Its generation configuration holds the defaults of the search.
        tokenizer: the source tokenizer; also that of the target if there is no other.
        target_tokenizer: the target tokenizer, or its folder or name. None: the one in the subfolder
            `target_tokenizer` of the model's folder or repository, if any.
        hub_options (`dict`, *optional*): `revision`, `token`, ... for finding `target_tokenizer` on the Hub.
            `from_pretrained` sets them, but `pipeline()` does not. By default the revision is this code's if it comes
            from the Hub, otherwise the main one, and the token is the stored one.
        optimize_for_cpu (`bool`, *optional*, defaults to `True`): Whether a model on a CPU gets the faster kernels of
            `modeling_ode_transformer.inference.cpu`, where the package is installed.
        batch_size (`int`, *optional*, defaults to 1): number of texts (with `split_lines`, lines) generated together.
        truncation (`bool`, *optional*): What happens to a text with more tokens than the model's positions or the
            tokenizer's `model_max_length`. None: it is cut, and a warning says so once, with the number of such texts
            in the first call. True: it is cut. False: a ValueError.
        split_lines (`bool`, *optional*, defaults to `False`): Whether the model processes each line of a text on its
            own. The output keeps the line breaks between them.
        split_sentences (`bool`, *optional*, defaults to `False`): Whether the model processes each sentence on its
            own, if a text (or line) is longer than the model allows or was trained on.
        return_scores (`bool`, *optional*, defaults to `False`): Whether an output has its `score`, as defined by
            `modeling_ode_transformer.n_best`; the best output comes first.
        return_tensors (`bool`, *optional*, defaults to `False`): Whether an output has its token ids instead of its
            text: a tensor of shape (length,) without padding, under `translation_token_ids` etc.
        Any option of `generate()`: `num_beams`, `num_return_sequences`, `max_new_tokens`, `max_len_a`,
            `generation_config`, ...

    Raises:
        TypeError: an input is not a string.
        ValueError: the model is not an encoder-decoder; its tokenizer (or its target vocabulary's) is missing; a text
            is too long and must not be cut; scores, token ids or several outputs are requested for a text that is
            split into several lines or sentences.
    """

    _load_processor = False
    _load_image_processor = False
    _load_video_processor = False
    _load_feature_extractor = False
    _load_tokenizer = True
    _pipeline_calls_generate = True

    default_task: str
    return_name: str

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None = None,
        target_tokenizer: PreTrainedTokenizerBase | str | os.PathLike | None = None,
        hub_options: dict[str, Any] | None = None,
        task: str = "",
        optimize_for_cpu: bool = True,
        **kwargs: Any,
    ):
        if not model.config.is_encoder_decoder:
            raise ValueError(f"{type(self).__name__} needs an encoder-decoder, not {type(model).__name__}.")
        if tokenizer is None:
            raise ValueError(f"{type(self).__name__} needs the tokenizer of its model: give tokenizer=.")
        super().__init__(model, tokenizer, task=task or self.default_task, **kwargs)
        if optimize_for_cpu and make_faster is not None and self.device.type == "cpu":
            make_faster(self.model)
        if target_tokenizer is None:
            target_tokenizer = self._find_target_tokenizer(hub_options or {})
        elif isinstance(target_tokenizer, (str, os.PathLike)):
            target_tokenizer = AutoTokenizer.from_pretrained(target_tokenizer)
        self.target_tokenizer: Any = target_tokenizer
        self.counts_long_texts = False
        self.long_texts: dict[str, list[str]] = {}
        self.problems_said: set[str] = set()
        self.source_limit = min(tokenizer.model_max_length, position_limit(model.config) or tokenizer.model_max_length)
        self.trained_length = getattr(model.config, TRAINED_LENGTH, None) or self.source_limit

    @classmethod
    def from_pretrained(cls, name: str | os.PathLike, **kwargs: Any) -> "TextToTextPipeline":
        """The pipeline of any encoder-decoder of transformers, even if its repository names no pipeline. Pipeline code
        in the repository is not run.

        Args:
            name: a folder, or the name of a model on the Hub.
            kwargs: those of `transformers.pipeline` (`device`, `dtype`, `revision`, `token`, ...) and of this class.
        """
        name = str(name)
        hub_options = {option: kwargs[option] for option in HUB_OPTIONS if option in kwargs}
        config = AutoConfig.from_pretrained(name, **hub_options)
        add_pipeline(config, cls.default_task)
        kwargs = {"hub_options": hub_options, **kwargs}
        return pipeline(cls.default_task, model=name, config=config, pipeline_class=cls, **kwargs)

    def _find_target_tokenizer(self, hub_options: dict[str, Any]) -> PreTrainedTokenizerBase:
        name, config = self.model.name_or_path, self.model.config
        module = type(self).__module__
        if module.startswith("transformers_modules."):
            hub_options = {"trust_remote_code": True, **hub_options}
        if commit := COMMIT.fullmatch(module):
            hub_options = {"revision": commit[1], **hub_options}
        target_tokenizer, error = None, None
        try:
            if name:
                target_tokenizer = load_target_tokenizer(name, config=config, **hub_options)
        except OSError as caught:
            error = caught
        may_have_one = not getattr(config, "share_encoder_decoder_embeddings", True)
        if target_tokenizer is None and (needs_target_tokenizer(config, self.tokenizer) or (error and may_have_one)):
            raise ValueError(
                f"The target has its own vocabulary, but no folder {TARGET_TOKENIZER} was found in {name!r}"
                f"{f' ({error})' if error else ''}: give target_tokenizer=, or hub_options= with the revision and the "
                "token of the repository."
            ) from error
        return self.tokenizer if target_tokenizer is None else target_tokenizer

    def save_pretrained(self, save_directory: str | os.PathLike, push_to_hub: bool = False, **kwargs: Any) -> None:
        """Saves the model, its tokenizers and the pipeline's code: `pipeline(task, folder, trust_remote_code=True)`.

        Raises:
            ValueError: `push_to_hub=True`, which would upload only some of the files.
        """
        if push_to_hub:
            raise ValueError("push_to_hub=True is not supported: call the pipeline's method push_to_hub(repo_id).")
        without_truncation(self.tokenizer)
        super().save_pretrained(save_directory, **kwargs)
        custom_object_save(self, save_directory)
        add_pipeline(self.model.config, self.default_task)
        self.model.config.save_pretrained(save_directory)
        if self.target_tokenizer is not self.tokenizer:
            without_truncation(self.target_tokenizer).save_pretrained(os.path.join(save_directory, TARGET_TOKENIZER))

    def _sanitize_parameters(
        self,
        truncation: bool | None = None,
        split_lines: bool | None = None,
        split_sentences: bool | None = None,
        return_scores: bool | None = None,
        return_tensors: bool | None = None,
        **generate_options: Any,
    ):
        if truncation not in (None, True, False):
            raise ValueError(f"truncation={truncation!r} must be True, False or None.")

        def given(**options):
            return {name: value for name, value in options.items() if value is not None}

        return (
            given(truncation=truncation, split_lines=split_lines, split_sentences=split_sentences),
            given(return_scores=return_scores) | generate_options,
            given(return_scores=return_scores, return_tensors=return_tensors),
        )

    def __call__(self, inputs: Any, **kwargs: Any):
        if isinstance(inputs, Sequence) and not isinstance(inputs, (str, bytes)):
            inputs = list(inputs)  # also a dataset's column
        if isinstance(inputs, Sized) and not isinstance(inputs, (str, bytes)) and not len(inputs):
            return []
        in_workers = kwargs.get("num_workers", self._num_workers)
        self.counts_long_texts, self.long_texts = isinstance(inputs, (str, list)) and not in_workers, {}
        results = super().__call__(inputs, **kwargs)
        for problem, texts in self.long_texts.items():
            self._warn_of_long_texts(problem, f"{len(texts)} here, {texts[0]}")
        if isinstance(inputs, list) and all(len(outputs) == 1 for outputs in results):
            return [output for (output,) in results]
        return results

    def preprocess(
        self,
        inputs: str,
        truncation: bool | None = None,
        split_lines: bool = False,
        split_sentences: bool = False,
    ) -> Iterator[dict[str, Any]]:
        if not isinstance(inputs, str):
            raise TypeError(
                f"A text must be a string, not {inputs!r} ({type(inputs).__name__}): give a string, or a list, a "
                "generator or a KeyDataset of strings."
            )
        pieces = LINE_BREAKS.split(inputs.strip()) if split_lines else [inputs]
        if split_sentences:
            longest = min(self.source_limit, self.trained_length)
            is_long = [len(self.tokenizer(piece, verbose=False)["input_ids"]) > longest for piece in pieces]
            pieces = [
                part
                for piece, splits in zip(pieces, is_long)
                for part in (SENTENCE_BREAKS.split(piece.strip()) if splits else [piece])
            ]
        for i in range(0, len(pieces), 2):
            yield {
                **self._encode(pieces[i], truncation),
                "is_blank": not pieces[i].strip(),
                "line_break": "".join(pieces[i + 1 : i + 2]),
                "is_last": i + 1 == len(pieces),
            }

    def _encode(self, text: str, truncation: bool | None):
        encoded = self.tokenizer(text, return_tensors="pt", verbose=False)
        length = encoded["input_ids"].shape[1]
        if length <= self.source_limit:
            if self.trained_length < length and truncation is None:
                problem = (
                    f"Texts longer than the longest source in training ({self.trained_length} tokens) may lose parts"
                )
                self._note_long_text(problem, text, length)
            return encoded
        if truncation is False:
            problem = f"A text of {length} tokens is longer than the model's {self.source_limit}"
            raise ValueError(f"{problem}: {text[:80]!r}... Split it, or allow truncation.")
        if truncation is None:
            self._note_long_text(f"Texts of more than the model's {self.source_limit} tokens are cut", text, length)
        return self.tokenizer(text, truncation=True, max_length=self.source_limit, return_tensors="pt")

    def _note_long_text(self, problem: str, text: str, length: int) -> None:
        """Notes a warning for the end of the call; warns at once if that end is not seen, as with a generator."""
        noted = f"the first of {length} tokens: {text[:80]!r}..."
        if self.counts_long_texts:
            self.long_texts.setdefault(problem, []).append(noted)
        else:
            self._warn_of_long_texts(problem, noted)

    def _warn_of_long_texts(self, problem: str, noted: str) -> None:
        """Warns once for each problem and pipeline."""
        if problem not in self.problems_said:
            self.problems_said.add(problem)
            advice = "Split them, for example with split_sentences=True, or set truncation=True to silence this."
            logger.warning(f"{problem} ({noted}). {advice}")

    def _forward(self, inputs: dict[str, Any], return_scores: bool = False, **options: Any) -> dict[str, Any]:
        kept = {name: inputs.pop(name) for name in ("is_blank", "line_break", "is_last")}
        options = self._prepare_generate_kwargs(options, return_dict_in_generate=False)
        options = {"tokenizer": self.target_tokenizer, **options}
        if self.assistant_model is not None:
            options["assistant_model"] = self.assistant_model
        if self.assistant_tokenizer is not None:
            options["assistant_tokenizer"] = self.assistant_tokenizer
        sequences, scores = generate_with_scores(self.model, inputs, return_scores, **options)
        number = len(sequences) // len(inputs["input_ids"])
        return {
            "output_ids": sequences.unflatten(0, (-1, number)),
            "scores": scores.unflatten(0, (-1, number)),
            "is_cut": self._is_cut(sequences, options).unflatten(0, (-1, number)),
            **kept,
        }

    def _is_cut(self, sequences: torch.LongTensor, options: dict[str, Any]) -> torch.BoolTensor:
        ends = self._get_set_generation_params(options).get("eos_token_id")
        if ends is None:
            return torch.zeros(len(sequences), dtype=torch.bool)
        # The decoder's start token may be the end-of-sequence token.
        return ~torch.isin(sequences[:, 1:], torch.tensor(ends).to(sequences)).any(1)

    def postprocess(
        self, model_outputs: list[dict[str, Any]], return_scores: bool = False, return_tensors: bool = False
    ) -> list[dict[str, Any]]:
        lines = [self._hypotheses(line) for line in model_outputs]
        if len(lines) > 1:
            if return_scores or return_tensors or len(lines[0]) > 1:
                raise ValueError(
                    "split_lines=True and split_sentences=True join the outputs of several parts into one text. Leave "
                    f"out return_scores and return_tensors, and generate one output per part, not {len(lines[0])}."
                )
            text = join_sentences(
                [text for ((text, _, _),) in lines], [each["line_break"] for each in model_outputs[:-1]]
            )
            return [{f"{self.return_name}_text": text}]
        results = []
        for text, ids, score in lines[0]:
            result = {f"{self.return_name}_token_ids": ids} if return_tensors else {f"{self.return_name}_text": text}
            results.append(result | ({"score": score} if return_scores else {}))
        return results

    def _hypotheses(self, line: dict[str, Any]) -> list[tuple[str, torch.LongTensor, float]]:
        """A line's outputs as (text, token ids without padding, score), the best first."""
        output_ids, scores = line["output_ids"][0], line["scores"][0]
        if line["is_blank"]:
            return [("", output_ids[0, :0], 0.0)] * len(output_ids)
        if line["is_cut"].any():
            logger.warning_once(
                "An output has no end-of-sequence token: it stopped early, for example at max_length or "
                "max_new_tokens. Allow more tokens or, for a text of several lines, set split_lines=True."
            )
        order = scores.argsort(descending=True, stable=True)
        pad = self.model.generation_config.pad_token_id
        lengths = (output_ids != (-1 if pad is None else pad)).cumsum(1).argmax(1) + 1
        ids = [output_ids[i, : lengths[i]] for i in order]
        texts = self.target_tokenizer.batch_decode(ids, skip_special_tokens=True)
        return list(zip((text.strip() for text in texts), ids, scores[order].tolist()))


class TranslationPipeline(TextToTextPipeline):
    __doc__ = TextToTextPipeline.__doc__
    default_task = "translation"
    return_name = "translation"


class SummarizationPipeline(TextToTextPipeline):
    __doc__ = TextToTextPipeline.__doc__
    default_task = "summarization"
    return_name = "summary"


class TextCorrectionPipeline(TextToTextPipeline):
    __doc__ = TextToTextPipeline.__doc__
    # Not only grammar: the corpora of this task also correct spelling, punctuation and word choice.
    default_task = "text-correction"
    return_name = "corrected"


# The entries of `config.custom_pipelines`, by task.
CUSTOM_PIPELINES = {
    pipeline_class.default_task: {
        "impl": f"pipeline_ode_transformer.{pipeline_class.__name__}",
        "pt": ["AutoModelForSeq2SeqLM"],
        "type": "text",
    }
    for pipeline_class in (TranslationPipeline, SummarizationPipeline, TextCorrectionPipeline)
}


def add_pipeline(config: PreTrainedConfig, task: str) -> None:
    """Makes a model's configuration name this file's pipeline for the task, replacing any others.

    A folder or repository with that configuration needs this file beside it, where `save_pipeline_code` puts it.

    Raises:
        ValueError: there is no such pipeline.
    """
    if task not in CUSTOM_PIPELINES:
        raise ValueError(f"There is no pipeline for the task {task!r}: choose one of {', '.join(CUSTOM_PIPELINES)}.")
    # A copy, because pipeline() changes the configuration's entry.
    config.custom_pipelines = {task: copy.deepcopy(CUSTOM_PIPELINES[task])}


def save_pipeline_code(config: PreTrainedConfig, folder: str | os.PathLike) -> None:
    """Puts this file and those that it imports, `generation_ode_transformer.py` and `scores_ode_transformer.py`, into
    a saved model's folder, if its configuration names a pipeline of this file. Configurations of other packages do not
    do so themselves."""
    named = [entry["impl"] for entry in (getattr(config, "custom_pipelines", None) or {}).values()]
    if any(entry["impl"] in named for entry in CUSTOM_PIPELINES.values()):
        custom_object_save(TextToTextPipeline, folder)
