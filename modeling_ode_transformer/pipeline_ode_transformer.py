# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Text-to-text pipelines, which transformers 5 no longer has: translation, summarization and text correction.

A repository with this file and a configuration that went through `add_pipeline` has its own pipeline:

```python
translator = pipeline("translation", model=NAME, trust_remote_code=True)
translator("Two dogs run.")  # [{"translation_text": "Zwei Hunde laufen."}]
```
"""

import copy
import math
import os
import re
from collections.abc import Sequence, Sized
from dataclasses import replace
from typing import Any

from transformers import (
    AutoConfig,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    pipeline,
)
from transformers.dynamic_module_utils import custom_object_save
from transformers.pipelines.base import Pipeline

from .generation_ode_transformer import option, position_limit
from .texts_ode_transformer import (
    TARGET_TOKENIZER,
    TRAINED_LENGTH,
    TextGenerator,
    check_target_tokenizer,
    load_target_tokenizer,
    without_truncation,
)


try:
    from modeling_ode_transformer.inference.cpu import optimize_for_cpu as make_faster
except ImportError:  # where the package is not installed, its CPU kernels are missing
    make_faster = None

# The arguments of pipeline() that say what to load from the Hub.
HUB_OPTIONS = ("revision", "token", "trust_remote_code", "local_files_only", "code_revision")
# The name of a module loaded from the Hub ends in the commit and the file.
COMMIT = re.compile(r"transformers_modules\..*\.([0-9a-f]{40})\.\w+")

# The options of a call that are the text generator's; the others are those of `generate()`.
OF_GENERATOR = ("split_lines", "split_sentences", "truncation", "return_scores")


class TextToTextPipeline(Pipeline):
    """
    Generates texts from texts with an encoder-decoder of transformers.

    Call it with a text, or with a list, a generator or a `KeyDataset` of texts. Results are as in transformers 4:

    - a text gives the list of its outputs, dictionaries with the key `translation_text`, `summary_text` or
      `corrected_text`;
    - a list of texts gives a list of these lists; with one output for each text, a list of the dictionaries;
    - a generator or a dataset gives an iterator over the lists of outputs.

    A text without a word has the output "", with the score 0. Of several equal outputs of a text, the best is given.
    The options from `batch_size` on can be given to a call or, as defaults for all calls, to the constructor.

    Args:
        model: an encoder-decoder. Its generation configuration holds the defaults of the search.
        tokenizer: the source tokenizer; also that of the target if there is no other.
        target_tokenizer: the target tokenizer, or its folder or name. None: the one in the subfolder
            `target_tokenizer` of the model's folder or repository, if any; in the revision of this code if it comes
            from the Hub.
        optimize_for_cpu (`bool`, *optional*, defaults to `True`): Whether a model on a CPU gets the faster kernels of
            `modeling_ode_transformer.inference.cpu`, where the package is installed.
        batch_size (`int`, *optional*, defaults to 1): number of texts (with `split_lines`, lines) generated together.
        split_lines, split_sentences, truncation, return_scores (`bool`, *optional*): as in
            `modeling_ode_transformer.texts_ode_transformer.TextGenerator`, whose `limit` is the model's positions or
            the tokenizer's `model_max_length`.
        target_prefix (`str`, *optional*): what outputs begin with; for a list of texts, also a list, with one for each
            text ("": anything). Scores are those of the rest.
        Any option of `generate()`: `num_beams`, `num_return_sequences`, `max_new_tokens`, `max_len_a`,
            `generation_config`, ...

    Raises:
        TypeError: an input is not a string.
        ValueError: the model is not an encoder-decoder; its tokenizer (or its target vocabulary's) is missing; a text
            is too long and must not be cut; scores or several outputs are requested for a text that is split.
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
            target_tokenizer = self._find_target_tokenizer()
        elif isinstance(target_tokenizer, (str, os.PathLike)):
            target_tokenizer = AutoTokenizer.from_pretrained(target_tokenizer)
        limit = min(tokenizer.model_max_length, position_limit(model.config) or tokenizer.model_max_length)
        trained_length = getattr(model.config, TRAINED_LENGTH, None) or math.inf
        self.generator = TextGenerator(self.model, tokenizer, target_tokenizer, limit, trained_length)

    @property
    def target_tokenizer(self) -> PreTrainedTokenizerBase:
        return self.generator.target_tokenizer

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
        if "target_tokenizer" not in kwargs:
            kwargs["target_tokenizer"] = load_target_tokenizer(name, config=config, **hub_options)
        return pipeline(cls.default_task, model=name, config=config, pipeline_class=cls, **kwargs)

    def _find_target_tokenizer(self) -> PreTrainedTokenizerBase:
        config, target_tokenizer = self.model.config, None
        is_remote = type(self).__module__.startswith("transformers_modules.")
        commit = COMMIT.fullmatch(type(self).__module__)
        options = {"revision": commit[1]} if commit else {}
        try:
            if self.model.name_or_path:
                options |= {"config": config, "trust_remote_code": is_remote}
                target_tokenizer = load_target_tokenizer(self.model.name_or_path, **options)
        except OSError:
            # A model with one vocabulary needs no connection.
            if not getattr(config, "share_encoder_decoder_embeddings", True):
                raise
        target_tokenizer = target_tokenizer or self.tokenizer
        check_target_tokenizer(self.model, self.tokenizer, target_tokenizer)
        return target_tokenizer

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

    def _sanitize_parameters(self, target_prefix: str | list[str] | None = None, **options: Any):
        before = {} if target_prefix is None else {"target_prefix": target_prefix}
        return before, options, {name: options[name] for name in ("return_scores",) if name in options}

    def __call__(self, inputs: Any, **kwargs: Any):
        if isinstance(inputs, Sequence) and not isinstance(inputs, (str, bytes)):
            inputs = list(inputs)  # also a dataset's column
        if isinstance(inputs, Sized) and not isinstance(inputs, (str, bytes)) and not len(inputs):
            return []
        if isinstance(inputs, list) and isinstance(kwargs.get("target_prefix"), Sequence):
            prefixes = kwargs.pop("target_prefix")
            prefixes = [prefixes] * len(inputs) if isinstance(prefixes, str) else prefixes
            if len(prefixes) != len(inputs):
                raise ValueError(f"There are {len(inputs)} texts, but {len(prefixes)} prefixes: give one for each.")
            inputs = [{"texts": text, "target_prefixes": prefix} for text, prefix in zip(inputs, prefixes)]
        parts_together = kwargs.get("batch_size") or self._batch_size or 1
        results = super().__call__(inputs, parts_together=parts_together, **kwargs)
        given = self._prepare_generate_kwargs(self._forward_params | kwargs)
        number = option(self.model, "num_return_sequences", given.get("generation_config"), given) or 1
        if isinstance(inputs, list) and number == 1:
            return [output for (output,) in results]
        return results

    def preprocess(self, inputs: str | dict[str, str], target_prefix: str = "") -> dict[str, str]:
        given = inputs if isinstance(inputs, dict) else {"texts": inputs, "target_prefixes": target_prefix}
        for name, each in given.items():
            if not isinstance(each, str):
                what = "A text" if name == "texts" else "A target_prefix"
                raise TypeError(
                    f"{what} must be a string, not {each!r} ({type(each).__name__}): give a string, or a list, a "
                    "generator or a KeyDataset of strings; a list of texts may have a list of target prefixes."
                )
        return given

    def _forward(self, inputs: dict[str, Any], parts_together: int = 1, **options: Any) -> dict[str, Any]:
        own = {name: options.pop(name) for name in OF_GENERATOR if name in options}
        options = self._prepare_generate_kwargs(options, return_dict_in_generate=False)
        if self.assistant_model is not None:
            options["assistant_model"] = self.assistant_model
        if self.assistant_tokenizer is not None:
            options["assistant_tokenizer"] = self.assistant_tokenizer
        generator = replace(self.generator, batch_size=parts_together, generate_options=options, **own)
        is_batch = isinstance(inputs["texts"], list)
        texts = [inputs[name] if is_batch else [inputs[name]] for name in ("texts", "target_prefixes")]
        outputs = generator(*texts)
        return {"outputs": outputs if is_batch else outputs[0]}

    def postprocess(self, model_outputs: dict[str, Any], return_scores: bool = False) -> list[dict[str, Any]]:
        return [
            {f"{self.return_name}_text": text} | ({"score": score} if return_scores else {})
            for text, score in model_outputs["outputs"]
        ]


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
    """Puts this file and those that it imports, `generation_ode_transformer.py` and `texts_ode_transformer.py`, into a
    saved model's folder, if its configuration names a pipeline of this file. Configurations of other packages do not
    do so themselves."""
    named = [entry["impl"] for entry in (getattr(config, "custom_pipelines", None) or {}).values()]
    if any(entry["impl"] in named for entry in CUSTOM_PIPELINES.values()):
        custom_object_save(TextToTextPipeline, folder)
