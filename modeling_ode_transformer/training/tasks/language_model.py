# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Language modeling: running text in blocks of words, scored by word perplexity, and continuations of prompts."""

import logging
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import datasets
import torch
from datasets.arrow_writer import ArrowWriter
from tokenizers import Regex, decoders
from tokenizers.processors import TemplateProcessing
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    PreTrainedConfig,
    PreTrainedModel,
    TokenizersBackend,
    Trainer,
    set_seed,
)

from ...configuration_ode_transformer import OdeTransformerDecoderConfig
from ...generation_ode_transformer import position_limit
from ...metrics.perplexity import iterate_blocks, split_words
from ...options import option
from ...text_files import iterate_lines, read_lines
from ..arguments import BaseModelArguments, PreparedDataArguments, check_run
from ..data import TrainingExamples, read_dataset
from ..encoding import tokenizer_hash
from ..models import check_model, check_vocabulary, config_with_overrides, load_checkpoint, word_level_tokenizer
from ..preparation import (
    BATCH_ROWS,
    open_pairs,
    prepare_once,
    prepared_folder,
    texts_of_split,
    training_texts,
)
from ..records import GENERATED
from ..smoke import LANGUAGE_MODEL_VALUES, SIZES
from ..smoke.number_names import write_corpus
from ..task import Run, Task
from ..trainer import TokenTrainerMixin, TokenTrainingArguments


logger = logging.getLogger(__name__)

# In the order of their ids.
SPECIAL_TOKENS = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}


@dataclass
class ModelArguments(BaseModelArguments):
    """The model and its vocabulary: a checkpoint, or a configuration to start from."""

    model_type: str = option(
        "Architecture of a new model, unless --config_name sets it.", OdeTransformerDecoderConfig.model_type
    )
    vocab_size: int | None = option(
        "Maximum size of a new vocabulary in words, 4 special ones included; default: all training words.", least=1
    )


@dataclass
class DataArguments(PreparedDataArguments):
    """The texts, how to cut them, and what to generate."""

    train_file: str | None = option(
        "Training text, one sentence per line (.gz accepted).", affects="files", aliases=["--train"]
    )
    validation_file: str | None = option(
        "Validation text, one sentence per line.", affects="files", aliases=["--validation"]
    )
    test_file: str | None = option("Test text, one sentence per line.", affects="files", aliases=["--test"])
    SOURCES = (*PreparedDataArguments.SOURCES, "train_file", "validation_file", "test_file")
    SMOKE_VALUES = LANGUAGE_MODEL_VALUES

    text_column: str = option("Column of --dataset_name with the text.", "text")
    block_size: int = option(
        "Words per example, cut from the running text, or 0 for one example per line.", 128, least=0
    )
    prompt: list[str] | None = option(
        "Prompts to continue; may be repeated. An empty prompt '' starts a new sentence; default: none.",
        affects="result",
        action="extend",
    )
    prompt_file: str | None = option("File of prompts to continue, one per line.", affects="result")
    max_new_tokens: int = option(
        "Maximum length of a continuation in words; it ends with the sentence at the latest.",
        40,
        affects="result",
        least=1,
    )
    num_beams: int = option("Number of beams in the search for a continuation.", 1, affects="result", least=1)
    do_sample: bool = option(
        "Sample continuations from the model's distribution, with --seed.", False, affects="result"
    )
    temperature: float = option(
        "Divisor of the logits for --do_sample; above 1, continuations vary more.", 1.0, affects="result", above=0
    )


def check_arguments(model_args: ModelArguments, data_args: DataArguments, args: TokenTrainingArguments) -> None:
    """Checks the arguments of a run.

    Raises:
        ValueError: an argument has an invalid value, contradicts another one, or names an encoder-decoder.
        OSError: the checkpoint or configuration does not exist.
    """
    prompts = {"prompt": bool(data_args.prompt), "prompt_file": bool(data_args.prompt_file)}
    check_run(model_args, data_args, args, **prompts)
    if data_args.temperature != 1 and not data_args.do_sample:
        raise ValueError(f"--temperature {data_args.temperature} needs --do_sample.")

    config = check_model(model_args)
    if config.is_encoder_decoder:
        name = model_args.model_name_or_path or model_args.config_name or model_args.model_type
        raise ValueError(
            f"{name} is an encoder-decoder ({config.model_type}), and a language model is a decoder: give another, "
            f"such as --model_type {ModelArguments.model_type}."
        )


def read_prompts(data_args: DataArguments, args: TokenTrainingArguments) -> list[str]:
    """Reads the prompts to continue. Raises a ValueError if the folder holds continuations that must not be
    replaced."""
    prompts = [*(data_args.prompt or []), *(read_lines(data_args.prompt_file) if data_args.prompt_file else [])]
    generated = Path(args.output_dir) / GENERATED
    if prompts and generated.exists() and not (args.do_train or data_args.overwrite_output_dir):
        raise ValueError(
            f"{generated} exists already: choose another --output_dir, or give --overwrite_output_dir to replace it."
        )
    return prompts


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
    """The lines in the text column of a dataset; raises a ValueError if it has no such column."""
    records = read_dataset(args, split)
    if args.text_column not in records.column_names:
        raise ValueError(
            f"{args.dataset_name} ({split}) has no column {args.text_column!r} (--text_column), only "
            f"{', '.join(records.column_names)}."
        )
    for batch in records.select_columns([args.text_column]).iter(BATCH_ROWS):
        for text in batch[args.text_column]:
            if not isinstance(text, str):
                raise ValueError(
                    f"{args.dataset_name} ({split}): {args.text_column!r} holds {text!r}, which is not a text."
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

    return TrainingExamples(read, name, args) if split == "train" else list(read())


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


def make_tokenizers(run: Run):
    """The tokenizer of the training words. One process makes it, unless it exists already; all processes load it."""
    lines, size = run.examples["train"], run.model_args.vocab_size
    key = training_texts(lines, run.arguments) | {"vocab_size": size}
    folder = prepared_folder(run.data_args.prepared_dir, "tokenizer", key)

    def write(folder: Path) -> dict:
        tokenizer = build_tokenizer(lines, size)
        tokenizer.save_pretrained(folder)
        return {"words": len(tokenizer)}

    with run.args.main_process_first(local=run.data_args.local_data, desc="making the tokenizer"):
        prepare_once(folder, key, write)
    return load_tokenizers(run, str(folder))


def load_tokenizers(run: Run, name: str):
    return (AutoTokenizer.from_pretrained(name, **run.model_args.hub_options),)


def encode_lines(lines: list[str], name: str, tokenizer, first: int = 1) -> list[list[int]]:
    """The ids of the words of each line, without `</s>`. Error messages number the lines from `first`.

    Raises:
        ValueError: the tokenizer does not give one token per word, or a line contains an end or padding token.
    """
    encoded = tokenizer(lines, add_special_tokens=False, split_special_tokens=True, verbose=False)["input_ids"]
    reserved = {tokenizer.bos_token_id, tokenizer.pad_token_id, tokenizer.eos_token_id}
    for number, (line, ids) in enumerate(zip(lines, encoded), first):
        words = split_words(line)
        if len(ids) != len(words):
            raise ValueError(
                f"{name}, line {number}: {len(words)} words became {len(ids)} tokens. This script needs a tokenizer "
                f"of whole words, but that of {tokenizer.name_or_path} splits them: leave out --tokenizer_name to "
                "make one from the training text."
            )
        if not reserved.isdisjoint(ids):
            word = next(word for word, i in zip(words, ids) if i in reserved)
            raise ValueError(
                f"{name}, line {number}: {word!r} is a special token, not a word: remove it from the text."
            )
    return encoded


def unknown_words(lines: list[str], encoded: list[list[int]], tokenizer) -> Counter[str]:
    """The words missing from the vocabulary, except `<unk>` in the text itself."""
    unk = tokenizer.unk_token_id
    return Counter(
        word
        for line, ids in zip(lines, encoded)
        if unk in ids
        for word, i in zip(split_words(line), ids)
        if i == unk and word != tokenizer.unk_token
    )


def log_unknown(name: str, number: int, different: int, examples: list[str], tokenizer) -> None:
    """Logs how many words are missing from the vocabulary."""
    if number:
        logger.warning(
            "%s: %d words (%d different ones, such as %s) are not in the vocabulary and become %s",
            *(name, number, different, ", ".join(map(repr, examples)), tokenizer.unk_token),
        )


def write_blocks(lines: Iterable[str], name: str, tokenizer, block_size: int, folder: Path) -> dict:
    """Writes the blocks of `shift_blocks` as a shard with the columns input_ids, labels, length and index. Returns how
    many words are missing from the vocabulary, with a few examples."""
    unknown, stream = Counter(), iter(lines)

    def encoded():
        first = 1
        while batch := list(islice(stream, BATCH_ROWS)):
            ids = encode_lines(batch, name, tokenizer, first)
            unknown.update(unknown_words(batch, ids, tokenizer))
            first += len(batch)
            yield from ids

    ids, number = datasets.List(datasets.Value("int32")), datasets.Value("int64")
    features = datasets.Features({"input_ids": ids, "labels": ids, "length": datasets.Value("int32"), "index": number})
    with ArrowWriter(features=features, path=str(folder / "shard-00000.arrow")) as writer:
        for index, (inputs, labels) in enumerate(iterate_blocks(encoded(), block_size, tokenizer.eos_token_id)):
            writer.write({"input_ids": inputs, "labels": labels, "length": len(labels), "index": index})
        writer.finalize()
    examples = [word for word, _ in unknown.most_common(5)]
    return {"unknown": {"number": unknown.total(), "different": len(unknown), "examples": examples}}


def new_config(args: ModelArguments, tokenizer) -> PreTrainedConfig:
    """The configuration of a new model: `config_name`, then the tokenizer's size and ids, then `config_overrides`."""
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    return config_with_overrides(args, {"vocab_size": len(tokenizer), **ids})


def load_model(run: Run) -> PreTrainedModel:
    """The checkpoint's model in float32, or a new one; raises a ValueError if the vocabulary does not fit."""
    if run.model_args.model_name_or_path:
        model = load_checkpoint(AutoModelForCausalLM, run)
    else:
        model = AutoModelForCausalLM.from_config(new_config(run.model_args, run.tokenizer))
    check_vocabulary(run.tokenizer, model.get_input_embeddings())
    words, parameters = f"{len(run.tokenizer):,}", f"{model.num_parameters():,}"
    logger.info("%s words in the vocabulary, %s parameters", words, parameters)
    model.generation_config.update(**generation_options(run.data_args))
    for prompt in run.inputs or ():
        encode_prompt(prompt, run.tokenizer, model.config)
    return model


def encode_prompt(prompt: str, tokenizer, config: PreTrainedConfig) -> tuple[list[int], int | None]:
    """The ids of a prompt, and how many more the model has positions for; None: any number.

    Raises:
        ValueError: the prompt leaves no position for another token.
    """
    (ids,) = encode_lines([prompt], "prompt", tokenizer)
    if (limit := position_limit(config)) is None:
        return ids, None
    # An end mark comes before the prompt; the last token needs no position.
    if (room := limit - len(ids)) < 1:
        raise ValueError(
            f"The prompt {prompt[:80]!r} has {len(ids)} tokens, but the model has {limit} positions, the first one "
            "for the end mark before it: shorten it."
        )
    return ids, room


def encode(run: Run, split: str) -> datasets.Dataset:
    """The blocks of a split. One process writes them, unless they exist already; all processes memory-map them."""
    lines, tokenizer, data = run.examples[split], run.tokenizer, run.data_args
    key = {"tokenizer": tokenizer_hash(tokenizer), "block_size": data.block_size}
    key |= texts_of_split(split, lines, run.arguments)
    folder = prepared_folder(data.prepared_dir, split, key)
    with run.args.main_process_first(local=data.local_data, desc=f"preparing the {split} data"):
        noted = prepare_once(
            folder, key, lambda folder: write_blocks(lines, split, tokenizer, data.block_size, folder)
        )
    log_unknown(split, **noted["unknown"], tokenizer=tokenizer)
    return open_pairs(folder)


def check_lengths(examples: datasets.Dataset, split: str, config: PreTrainedConfig) -> None:
    """Raises a ValueError if the model has too few positions for the longest example."""
    limit = position_limit(config)
    longest = max(examples["length"])
    if limit is not None and longest > limit:
        raise ValueError(
            f"The longest {split} example has {longest} words, but the model's max_position_embeddings is {limit}: "
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


class LanguageModelTrainer(TokenTrainerMixin, Trainer):
    """Trainer for already shifted labels. It evaluates in the precision of the weights."""

    arguments_class = TokenTrainingArguments

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        # Trainer would count one word fewer per row, because causal models drop one when they shift.
        self._loss_shifts_labels = False

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
    return LanguageModelTrainer(
        model=run.model,
        args=run.args,
        train_dataset=run.splits.get("train"),
        eval_dataset=run.splits.get("validation"),
        processing_class=run.tokenizer,
        data_collator=DataCollatorForSeq2Seq(run.tokenizer),
        callbacks=run.data_args.callbacks(),
    )


def evaluate(run: Run, split: str, prefix: str) -> dict[str, float | str]:
    """Returns the perplexity of a split, its convention, losses and counts."""
    metrics = run.trainer.predict(run.splits[split], metric_key_prefix=prefix).metrics
    metrics |= count_words(run, split, prefix)
    block_size = run.data_args.block_size
    unit = f"blocks of {block_size} words" if block_size else "lines"
    metrics[f"{prefix}_perplexity_convention"] = f"of a word, ends of lines included; in {unit}"
    return metrics


def count_words(run: Run, split: str, prefix: str) -> dict[str, int]:
    """Counts the words and unknown words of a split; line ends count as words."""
    words, unknown = 0, 0
    for batch in run.splits[split].select_columns(["labels"]).with_format("arrow").iter(BATCH_ROWS):
        labels = batch["labels"].combine_chunks().flatten().to_numpy()
        words += len(labels)
        unknown += int((labels == run.tokenizer.unk_token_id).sum())
    return {f"{prefix}_words": words, f"{prefix}_unk_words": unknown}


def generation_options(args: DataArguments) -> dict:
    """Returns the arguments for generation as fields of a generation configuration."""
    return {
        "num_beams": args.num_beams,
        "do_sample": args.do_sample,
        "temperature": args.temperature if args.do_sample else None,
        # By default, generate would sample only from the 50 most likely words.
        "top_k": 0 if args.do_sample else None,
        "max_length": None,
        "max_new_tokens": args.max_new_tokens,
    }


def continue_text(model: PreTrainedModel, tokenizer, prompt: str) -> str:
    """The prompt with a continuation, up to the end of the sentence, by the model's generation configuration."""
    eos = tokenizer.eos_token_id
    ids, room = encode_prompt(prompt, tokenizer, model.config)
    unknown = unknown_words([prompt], [ids], tokenizer)
    log_unknown(f"prompt {prompt!r}", unknown.total(), len(unknown), list(unknown)[:5], tokenizer)
    inputs = torch.tensor([[eos, *ids]], device=model.device)
    most = min(model.generation_config.max_new_tokens, math.inf if room is None else room)
    output = model.generate(inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=most)
    output = output[0, inputs.shape[1] :].tolist()
    words = output[: output.index(eos)] if eos in output else output
    # Not `decode`, which also removes <unk> when it skips special tokens.
    return " ".join([*split_words(prompt), *tokenizer.convert_ids_to_tokens(words)])


def write_continuations(run: Run) -> None:
    """Prints continuations of the prompts, if any, and writes them into the output folder."""
    if not run.inputs:
        return
    # This runs on all processes: each may hold a part of the model.
    set_seed(run.args.seed)
    run.model.eval()
    with without_autocast(run.model):
        texts = [continue_text(run.model, run.tokenizer, prompt) for prompt in run.inputs]
    if run.trainer.is_world_process_zero():
        print("\n".join(texts))
        run.output_dir.mkdir(parents=True, exist_ok=True)
        text = "".join(f"{text}\n" for text in texts)
        (run.output_dir / GENERATED).write_text(text, encoding="utf-8", newline="\n")


def write_smoke_data(folder: Path) -> dict[str, str]:
    """Writes English number names; returns the arguments that read them."""
    write_corpus(folder, SIZES)
    return {f"{split}_file": str(folder / f"{split}.en") for split in SIZES}


LANGUAGE_MODEL = Task(
    "text-generation",
    ModelArguments,
    DataArguments,
    TokenTrainingArguments,
    check_arguments=check_arguments,
    read_inputs=read_prompts,
    write_smoke_data=write_smoke_data,
    read_split=read_split,
    make_tokenizers=make_tokenizers,
    load_tokenizers=load_tokenizers,
    load_model=load_model,
    encode=encode,
    make_trainer=make_trainer,
    measure_training=lambda run, metrics: count_words(run, "train", "train"),
    evaluate=evaluate,
    finish=write_continuations,
    presets="language model",
)
