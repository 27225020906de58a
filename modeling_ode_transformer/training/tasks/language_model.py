# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Language modeling: running text in blocks of words or subwords, scored by perplexity and bits per byte. A new model
may learn from a teacher (distillation)."""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import torch
from tokenizers import Regex, decoders
from tokenizers.models import WordLevel
from tokenizers.processors import TemplateProcessing
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    PreTrainedConfig,
    PreTrainedModel,
    TokenizersBackend,
    Trainer,
)

from ...configuration_ode_transformer import OdeTransformerDecoderConfig
from ...generation_ode_transformer import position_limit
from ...metrics.perplexity import bits_per_byte, check_end_of_sentence, count_bytes, iterate_blocks, split_words
from ...model_folders import open_model
from ...options import option
from ...text_files import iterate_lines, parse_overrides
from ...tokenization_ode_transformer import MODEL_TYPES, OdeTransformerTokenizer
from ..arguments import BaseModelArguments, PreparedDataArguments, check_run
from ..data import TrainingExamples, read_records
from ..losses import summed_divergence
from ..models import (
    check_model,
    check_vocabulary,
    config_with_overrides,
    load_checkpoint,
    overrides_with_tableaus,
    word_level_tokenizer,
)
from ..preparation import BATCH_ROWS, in_batches, open_rows, prepare_data, tokenizer_hash, write_rows
from ..task import Run, Task
from ..trainer import TokenTrainerMixin, TokenTrainingArguments


logger = logging.getLogger(__name__)

# In the order of their ids.
SPECIAL_TOKENS = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
# The type of a tokenizer of whole words.
WORD = "word"
# The default size of a vocabulary of subwords.
SUBWORDS = 8000
# How prompts are continued unless `generate()` or the pipeline is told otherwise. By themselves, the one would stop at
# 20 tokens, the prompt's included, and the other would draw them at random.
CONTINUATION = {"num_beams": 1, "do_sample": False, "max_length": None, "max_new_tokens": 40}


@dataclass
class ModelArguments(BaseModelArguments):
    """The model and its vocabulary: a checkpoint, or a configuration to start from."""

    model_type: str = option(
        "Architecture of a new model, unless --config_name sets it.", OdeTransformerDecoderConfig.model_type
    )
    tokenizer_model_type: str = option(
        "Type of a new tokenizer: whole words, or subwords by a SentencePiece model.",
        WORD,
        choices=[WORD, *MODEL_TYPES],
    )
    vocab_size: int | None = option(
        "Size of a new vocabulary, 4 special tokens included: the most words, or the number of subwords; default: all "
        f"training words, or {SUBWORDS} subwords.",
        least=1,
    )
    tokenizer_options: str | None = option(
        "SentencePiece options for a new tokenizer of subwords, such as split_digits=true,character_coverage=0.99. "
        "On the command line they are merged into a recipe's or preset's; default: none."
    )
    wrap: str | None = option(
        "Make a new model of another type, such as llama, a Runge-Kutta model: solver=rk2, or a JSON object, with the "
        "options of modeling_ode_transformer.depth.config. On the command line they are merged into a recipe's; '' "
        "drops the recipe's."
    )
    teacher: str | None = option(
        "Trained language model (folder or Hub name) with the same tokenizer, whose predictions the training model "
        "learns beside the text; default: none."
    )
    teacher_temperature: float = option(
        "Divisor of the logits of both models in the comparison with --teacher.", 1.0, above=0
    )
    teacher_weight: float = option(
        "Weight of temperature^2 * KL(teacher || model), which is added to the cross entropy.", 1.0, above=0
    )

    def __post_init__(self):
        super().__post_init__()
        if self.model_name_or_path and self.wrap:
            raise ValueError(
                f"--wrap {self.wrap} is for new models: leave it out, or leave out --model_name_or_path "
                f"{self.model_name_or_path}."
            )


@dataclass
class DataArguments(PreparedDataArguments):
    """The texts, and how to cut them."""

    train_file: str | None = option(
        "Training text, one sentence per line (.gz accepted).", affects="files", aliases=["--train"]
    )
    validation_file: str | None = option(
        "Validation text, one sentence per line.", affects="files", aliases=["--validation"]
    )
    test_file: str | None = option("Test text, one sentence per line.", affects="files", aliases=["--test"])
    text_column: str = option("Column of --dataset_name with the text.", "text")
    block_size: int = option(
        "Tokens (words or subwords) per example, cut from the running text across its lines, or 0 for one example per "
        "line.",
        128,
        least=0,
    )


def check_arguments(model_args: ModelArguments, data_args: DataArguments, args: TokenTrainingArguments) -> None:
    """Checks the arguments of a run.

    Raises:
        ValueError: an argument has an invalid value, or contradicts another one.
        OSError: the checkpoint or configuration does not exist.
    """
    check_run(model_args, args)
    config = check_model(model_args)
    if model_args.wrap:
        wrapped(config, model_args.wrap)
    if model_args.teacher:
        AutoConfig.from_pretrained(model_args.teacher, trust_remote_code=model_args.trust_remote_code)


def with_text(lines: Iterable[str], name: str) -> Iterator[str]:
    """Yields the lines; raises a ValueError at the end if none has text."""
    number, has_text = 0, False
    for line in lines:
        number += 1
        has_text = has_text or bool(line.strip())
        yield line
    if not has_text:
        raise ValueError(f"{name} holds no text ({number} lines read).")


def read_column(args: DataArguments, split: str) -> Iterator[str]:
    """The lines in the text column of a dataset; raises a ValueError if it has no such column, or no text in it."""
    for record in read_records(args, split):
        text = record.get(args.text_column)
        if not isinstance(text, str):
            raise ValueError(
                f"{args.dataset_name} ({split}): {args.text_column!r} (--text_column) holds {text!r}, which is not a "
                f"text. Its columns are {', '.join(record)}."
            )
        yield from text.removesuffix("\n").split("\n")


def read_split(args: DataArguments, split: str) -> list[str] | TrainingExamples:
    """The lines of "train", "validation" or "test" from wherever the arguments say.

    Raises:
        FileNotFoundError: a file does not exist.
        ValueError: no source of lines is named, or there is no text. For training lines, this is raised on reading.
    """
    path = getattr(args, f"{split}_file")
    if not (path or args.dataset_name):
        raise ValueError(f"No {split} data: give --{split}_file or --dataset_name.")
    name = path or f"{args.dataset_name} ({split})"

    def read():
        lines = iterate_lines(path) if path else read_column(args, split)
        return with_text(islice(lines, args.max_samples(split)), name)

    return TrainingExamples([(name, read)], args) if split == "train" else list(read())


def build_tokenizer(lines: Iterable[str], vocab_size: int | None = None) -> TokenizersBackend:
    """A tokenizer of the lines' whole words, the most frequent first.

    Special tokens are `<s>` 0, `<pad>` 1, `</s>` 2, `<unk>` 3. Encoding puts `</s>` in front as context for the first
    word of a sentence. Decoding puts a space before every word, including the first, since a text may continue a
    prompt: `pipeline("text-generation")` decodes only the new words.

    Args:
        lines: Texts with words separated by white space.
        vocab_size: Maximum number of words, special ones included. Ties in frequency are broken alphabetically.

    Raises:
        ValueError: `vocab_size` has no room for a word.
    """
    backend = word_level_tokenizer(lines, SPECIAL_TOKENS, vocab_size)
    backend.decoder = decoders.Sequence([decoders.Replace(Regex(r"\A"), " "), decoders.Fuse()])
    eos = SPECIAL_TOKENS["eos_token"]
    backend.post_processor = TemplateProcessing(single=f"{eos} $A", special_tokens=[(eos, backend.token_to_id(eos))])
    return TokenizersBackend(tokenizer_object=backend, **SPECIAL_TOKENS)


def train_tokenizer(lines: Iterable[str], args: Any) -> TokenizersBackend:
    """A new tokenizer of words (`build_tokenizer`) or subwords; `args` has options of `ModelArguments`. That of
    subwords, too, puts `</s>` in front of a text, as its `bos_token`, and decodes the continuation of a prompt.

    Raises:
        ValueError: `vocab_size` or an option does not fit the lines.
    """
    if args.tokenizer_model_type == WORD:
        return build_tokenizer(lines, args.vocab_size)
    options = parse_overrides(args.tokenizer_options)
    trained = OdeTransformerTokenizer.train(lines, args.vocab_size or SUBWORDS, args.tokenizer_model_type, **options)
    return OdeTransformerTokenizer(
        tokenizer_object=trained.backend_tokenizer,
        bos_token=trained.eos_token,
        add_bos_token=True,
        add_eos_token=False,
    )


def has_words(tokenizer) -> bool:
    """Whether the tokens are whole words, not subwords."""
    return isinstance(getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None), WordLevel)


def make_tokenizers(run: Run):
    """The tokenizer of the training text. One process makes it, unless it exists already; all processes load it."""
    lines, args = run.examples["train"], run.model_args
    names = ("tokenizer_model_type", "vocab_size", "tokenizer_options")
    key = {name: getattr(args, name) for name in names}

    def write(folder: Path) -> dict:
        # The key is all that training sees: an option outside of it cannot change a tokenizer.
        tokenizer = train_tokenizer(lines, SimpleNamespace(**key))
        tokenizer.save_pretrained(folder)
        return {"tokens": len(tokenizer)}

    folder, _ = prepare_data(run, "train", "tokenizer", key, write)
    return load_tokenizers(run, str(folder))


def load_tokenizers(run: Run, name: str):
    """The tokenizer, which pads with its end of a line if it has no token for padding; ValueError without both."""
    tokenizer = AutoTokenizer.from_pretrained(name, **run.model_args.hub_options)
    check_end_of_sentence(tokenizer)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return (tokenizer,)


def encode_lines(lines: list[str], name: str, tokenizer, first: int = 1) -> list[list[int]]:
    """The ids of the tokens of each line, without `</s>`. Error messages number the lines from `first`.

    Raises:
        ValueError: a tokenizer of words does not give one token per word, or a line contains an end or padding token
            as a word. In subwords, its spelling is text.
    """
    encoded = tokenizer(lines, add_special_tokens=False, split_special_tokens=True, verbose=False)["input_ids"]
    if not has_words(tokenizer):
        return encoded
    reserved = {tokenizer.bos_token_id, tokenizer.pad_token_id, tokenizer.eos_token_id}
    for number, (line, ids) in enumerate(zip(lines, encoded), first):
        words = split_words(line)
        if len(ids) != len(words):
            raise ValueError(
                f"{name}, line {number}: {len(words)} words became {len(ids)} tokens. The vocabulary of "
                f"{tokenizer.name_or_path} is one of whole words, but the tokenizer splits them: leave out "
                "--tokenizer_name to make one from the training text."
            )
        if not reserved.isdisjoint(ids):
            word = next(word for word, i in zip(words, ids) if i in reserved)
            raise ValueError(
                f"{name}, line {number}: {word!r} is a special token, not a word: remove it from the text."
            )
    return encoded


def write_blocks(lines: Iterable[str], name: str, tokenizer, block_size: int, folder: Path) -> dict:
    """Writes the blocks of `shift_blocks` as rows with the columns input_ids, labels, length and index; returns their
    number."""
    ids, number = datasets.List(datasets.Value("int32")), datasets.Value("int64")
    features = datasets.Features({"input_ids": ids, "labels": ids, "length": datasets.Value("int32"), "index": number})
    encoded = (
        ids
        for i, batch in enumerate(in_batches(lines))
        for ids in encode_lines(batch, name, tokenizer, i * BATCH_ROWS + 1)
    )
    blocks = enumerate(iterate_blocks(encoded, block_size, tokenizer.eos_token_id))
    rows = ((inputs, labels, len(labels), index) for index, (inputs, labels) in blocks)
    write_rows((dict(zip(features, zip(*batch))) for batch in in_batches(rows)), features, folder)
    return {"blocks": len(open_rows(folder))}


def unit(tokenizer) -> str:
    """What a token is."""
    return "word" if has_words(tokenizer) else "token"


def new_config(args: ModelArguments, tokenizer) -> PreTrainedConfig:
    """The configuration of a new model: `config_name`, then the tokenizer's size and ids, then `config_overrides`;
    wrapped if `wrap` says so."""
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    config = config_with_overrides(args, {"vocab_size": len(tokenizer), **ids})
    # Models such as BERT's see the tokens to predict unless they are decoders.
    if getattr(config, "is_decoder", True) is False:
        config.is_decoder = True
    return wrapped(config, args.wrap) if args.wrap else config


def wrapped(config: PreTrainedConfig, options: str | dict) -> PreTrainedConfig:
    """The configuration of a Runge-Kutta model of the layers of another model.

    Raises:
        ValueError: there is no such option, or a value does not fit.
    """
    from ...depth import config as config_of_depth

    values = overrides_with_tableaus("wrap", options)
    try:
        return config_of_depth(config, **values)
    except (TypeError, ValueError) as error:
        text = ",".join(f"{name}={value}" for name, value in values.items())
        raise ValueError(f"--wrap {text}: {error}") from error


def load_model(run: Run) -> PreTrainedModel:
    """The checkpoint's model in float32, or a new one; raises a ValueError if the vocabulary does not fit."""
    if run.model_args.model_name_or_path:
        model = load_checkpoint(AutoModelForCausalLM, run)
    else:
        model = AutoModelForCausalLM.from_config(new_config(run.model_args, run.tokenizer))
    check_vocabulary(run.tokenizer, model.get_input_embeddings())
    number, parameters = f"{len(run.tokenizer):,}", f"{model.num_parameters():,}"
    logger.info("%s %ss in the vocabulary, %s parameters", number, unit(run.tokenizer), parameters)
    model.generation_config.update(**CONTINUATION)
    return model


def encode(run: Run, split: str) -> datasets.Dataset:
    """The blocks of a split. One process writes them, unless they exist already; all processes memory-map them."""
    tokenizer, block_size = run.tokenizer, run.data_args.block_size
    key = {"tokenizer": tokenizer_hash(tokenizer), "block_size": block_size}

    def write(folder: Path) -> dict:
        return write_blocks(run.examples[split], split, tokenizer, block_size, folder)

    folder, _ = prepare_data(run, split, split, key, write)
    return open_rows(folder)


def check_lengths(examples: datasets.Dataset, split: str, config: PreTrainedConfig) -> None:
    """Raises a ValueError if the model has too few positions for the longest example."""
    limit = position_limit(config)
    longest = max(examples["length"])
    if limit is not None and longest > limit:
        raise ValueError(
            f"The longest {split} example has {longest} tokens, but the model's max_position_embeddings is {limit}: "
            f"give a --block_size from 1 to {limit}, or a new model with more positions."
        )


@contextmanager
def without_autocast(model: PreTrainedModel):
    """Removes the autocast that `--bf16` and `--fp16` put around a model's forward."""
    autocast, original = model.forward, getattr(model, "_original_forward", None)
    if original is None:
        yield
        return
    model.forward = original
    try:
        yield
    finally:
        model.forward = autocast


def load_teacher(run: Run) -> PreTrainedModel:
    """The model of `--teacher` in float32 and evaluation mode, without gradients.

    Raises:
        OSError: the model does not exist.
        ValueError: its tokenizer is not the training model's.
    """
    name, options = run.model_args.teacher, {"trust_remote_code": run.model_args.trust_remote_code}
    teacher = open_model(AutoModelForCausalLM, name, dtype=torch.float32, **options)
    tokenizer = AutoTokenizer.from_pretrained(name, **options)
    if tokenizer_hash(tokenizer) != tokenizer_hash(run.tokenizer):
        raise ValueError(
            f"--teacher {name} has another tokenizer ({len(tokenizer)} tokens) than the training model "
            f"({len(run.tokenizer)} tokens, of {run.tokenizer.name_or_path}): give --tokenizer_name {name} for a new "
            "model, or another teacher."
        )
    return teacher.requires_grad_(False)


class LanguageModelTrainer(TokenTrainerMixin, Trainer):
    """Trainer for already shifted labels. It evaluates in the precision of the weights.

    Args:
        teacher: A model in evaluation mode, whose predictions are learned beside the labels: the training loss is
            cross entropy + teacher_weight * `summed_divergence` / tokens. None: no teacher.
        teacher_temperature, teacher_weight: Of that loss.
    """

    arguments_class = TokenTrainingArguments

    def __init__(
        self,
        *args,
        teacher: PreTrainedModel | None = None,
        teacher_temperature: float = 1.0,
        teacher_weight: float = 1.0,
        **kwargs,
    ):
        super().__init__(*args, **kwargs)
        # Trainer would count one word fewer per row, because causal models drop one when they shift.
        self._loss_shifts_labels = False
        self.teacher = None if teacher is None else teacher.to(self.args.device)
        self.teacher_temperature, self.teacher_weight = teacher_temperature, teacher_weight

    def head_of_chunks(self, model, inputs):
        # The divergence needs the logits.
        return None if self.teacher is not None else super().head_of_chunks(model, inputs)

    def compute_loss(self, model, inputs, *args, **kwargs):
        if self.teacher is None:
            return super().compute_loss(model, inputs, *args, **kwargs)
        given = {name: inputs[name] for name in ("input_ids", "attention_mask") if name in inputs}
        with torch.no_grad(), self.accelerator.autocast():
            logits = self.teacher(**given, use_cache=False).logits
        self.compute_loss_func = partial(self.loss_with_teacher, teacher_logits=logits)
        try:
            return super().compute_loss(model, inputs, *args, **kwargs)
        finally:
            self.compute_loss_func = self.mean_loss

    def loss_with_teacher(self, outputs, labels, num_items_in_batch, teacher_logits: torch.Tensor):
        divergence = summed_divergence(outputs.logits, teacher_logits, labels, self.teacher_temperature)
        # As in `mean_loss`.
        divergence = divergence / num_items_in_batch / max(self.args.n_gpu, 1)
        return self.mean_loss(outputs, labels, num_items_in_batch) + self.teacher_weight * divergence

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        inputs = self._prepare_inputs(inputs)
        labels = inputs.pop("labels")
        inputs.pop("index", None)
        with torch.no_grad(), without_autocast(self.accelerator.unwrap_model(model)):
            logits = model(**inputs).logits
        self.add_losses(logits, labels)
        return None, None, None


def make_trainer(run: Run) -> LanguageModelTrainer:
    """The trainer; raises a ValueError if the model has too few positions for the blocks."""
    for split, examples in run.splits.items():
        check_lengths(examples, split, run.model.config)
    args = run.model_args
    return LanguageModelTrainer(
        teacher=load_teacher(run) if args.teacher and "train" in run.splits else None,
        teacher_temperature=args.teacher_temperature,
        teacher_weight=args.teacher_weight,
        model=run.model,
        args=run.args,
        train_dataset=run.splits.get("train"),
        eval_dataset=run.splits.get("validation"),
        processing_class=run.tokenizer,
        data_collator=DataCollatorForSeq2Seq(run.tokenizer),
        callbacks=run.data_args.callbacks(),
    )


def evaluate(run: Run, split: str, prefix: str) -> dict[str, float | str]:
    """Returns the perplexity and the bits per byte of a split, their conventions, losses and counts."""
    metrics = run.trainer.predict(run.splits[split], metric_key_prefix=prefix).metrics
    counts = count_tokens(run, split, prefix)
    lines, block_size, token = run.examples[split], run.data_args.block_size, unit(run.tokenizer)
    nll = metrics[f"{prefix}_nll_loss"] * counts[f"{prefix}_{token}s"]
    number, unknown = int(count_bytes(lines).sum()), counts[f"{prefix}_unk_{token}s"]
    metrics |= counts | {f"{prefix}_bytes": number, f"{prefix}_bits_per_byte": bits_per_byte(nll, number)}
    cut = f"blocks of {block_size} {token}s" if block_size else "lines"
    metrics[f"{prefix}_perplexity_convention"] = f"of a {token}, ends of lines included; in {cut}"
    convention = f"bytes of the text in UTF-8, one for each end of a line; in {cut}"
    if unknown and has_words(run.tokenizer):
        # As words of the text, they are known.
        unknown -= sum(split_words(line).count(run.tokenizer.unk_token) for line in lines)
    if unknown:
        logger.warning("%s: %d %ss are not in the vocabulary", split, unknown, token)
        convention += f"; {unknown} unknown {token}s became {run.tokenizer.unk_token}, which is easier to predict"
    metrics[f"{prefix}_bits_per_byte_convention"] = convention
    return metrics


def count_tokens(run: Run, split: str, prefix: str) -> dict[str, int]:
    """Counts the words and unknown words of a split, or its tokens and unknown tokens; line ends count as such."""
    total, unknown, tokenizer = 0, 0, run.tokenizer
    for batch in run.splits[split].select_columns(["labels"]).with_format("arrow").iter(BATCH_ROWS):
        labels = batch["labels"].combine_chunks().flatten().to_numpy()
        total += len(labels)
        # GPT-2's also ends lines.
        if tokenizer.unk_token_id not in (None, tokenizer.eos_token_id):
            unknown += int((labels == tokenizer.unk_token_id).sum())
    return {f"{prefix}_{unit(tokenizer)}s": total, f"{prefix}_unk_{unit(tokenizer)}s": unknown}


LANGUAGE_MODEL = Task(
    "text-generation",
    ModelArguments,
    DataArguments,
    TokenTrainingArguments,
    check_arguments=check_arguments,
    read_split=read_split,
    make_tokenizers=make_tokenizers,
    load_tokenizers=load_tokenizers,
    load_model=load_model,
    encode=encode,
    make_trainer=make_trainer,
    evaluate=evaluate,
    presets="language model",
)
