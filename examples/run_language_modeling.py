# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Train, evaluate and run a word-level language model with `Trainer`.

    python run_language_modeling.py recipes/ptb.json --output_dir out --config_overrides decoder_solver=rk4
    python run_language_modeling.py --model_name_or_path out --prompt "the company said" --output_dir generated

A recipe is a JSON file of arguments; what follows it on the command line wins. Without a checkpoint
(`--model_name_or_path`) the model starts from a configuration, by default an ODE Transformer; without a tokenizer
(`--tokenizer_name`, or the checkpoint's) one is made of the words of the training text. Texts come from

    --train_file a.txt                                   one sentence a line, words separated by spaces
    --dataset_name Salesforce/wikitext --dataset_config_name wikitext-2-v1 --text_column text

and likewise for validation and test; every file may be gzipped (`.gz`).

Every line ends with `</s>`, which counts as a word, on an empty line too. `<unk>` is a word; other words that the
vocabulary lacks become it. With `--block_size N` the words of a text, line after line, are cut into blocks of N. Each
word is predicted once, from the words before it in its block and the last word of the block before: of N words the
first sees one word and the last sees N. With `--block_size 0` a word is predicted from its own line. The first word
of a text, or of a line, is predicted from `</s>`. Training and evaluation do this alike.

Word perplexity is exp(summed negative log-likelihood / number of words), without label smoothing. Evaluation and
generation run in the precision of the weights (float32), with `--bf16` and `--fp16` too.

A run that is started again with the same `--output_dir` continues from its last checkpoint. `output_dir` ends up with
the model, the tokenizer, the metrics (`all_results.json`) and what `--prompt` and `--prompt_file` asked for
(`generated.txt`). With `--smoke` the whole run takes seconds, on tiny sizes.
"""

import logging
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import datasets
import torch
from number_names import write_corpus
from run_folder import find_checkpoint, locked_run, note_run, run_arguments
from script_utils import (
    BaseDataArguments,
    BaseModelArguments,
    check_model,
    check_run,
    check_vocabulary,
    config_with_overrides,
    load_checkpoint,
    needed_splits,
    parse_overrides,
    parse_with_recipe,
    read_dataset,
    report,
    run_process,
    set_up_logging,
    word_level_tokenizer,
    write_smoke_data,
)
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

from modeling_ode_transformer.lengths_ode_transformer import position_limit
from modeling_ode_transformer.metrics.perplexity import shift_blocks, split_words
from modeling_ode_transformer.text_files import read_json, read_lines
from modeling_ode_transformer.training.trainer import TokenTrainerMixin, TokenTrainingArguments


logger = logging.getLogger(__name__)

# In the order of their ids.
SPECIAL_TOKENS = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}


@dataclass
class ModelArguments(BaseModelArguments):
    """The model and its vocabulary: a checkpoint, or a configuration to start from."""

    vocab_size: int | None = field(
        default=None,
        metadata={"help": "Most words of a new vocabulary, the 4 special ones included; none: all training words."},
    )


@dataclass
class DataArguments(BaseDataArguments):
    """The texts, how they are cut, and what is generated."""

    train_file: str | None = field(default=None, metadata={"help": "Training text, one sentence a line (or .gz)."})
    validation_file: str | None = field(default=None, metadata={"help": "Validation text, one sentence a line."})
    test_file: str | None = field(default=None, metadata={"help": "Test text, one sentence a line."})
    SOURCES = (*BaseDataArguments.SOURCES, "train_file", "validation_file", "test_file")

    text_column: str = field(default="text", metadata={"help": "Column of --dataset_name that holds the text."})
    block_size: int = field(
        default=128, metadata={"help": "Words of an example, cut from the running text; 0: an example is a line."}
    )
    prompt: list[str] | None = field(
        default=None,
        metadata={"action": "extend", "help": "Beginnings to continue; may be repeated. '' starts a sentence."},
    )
    prompt_file: str | None = field(default=None, metadata={"help": "Beginnings to continue, one a line."})
    max_new_tokens: int = field(
        default=40, metadata={"help": "Most words of a continuation, which ends with its sentence."}
    )
    num_beams: int = field(default=1, metadata={"help": "Beams that search for a continuation."})
    do_sample: bool = field(
        default=False, metadata={"help": "Draw continuations from the model's distribution, by --seed."}
    )
    temperature: float = field(default=1.0, metadata={"help": "Divides the logits that --do_sample draws from."})


def parse_arguments(argv: list[str]) -> tuple[ModelArguments, DataArguments, TokenTrainingArguments]:
    """Arguments from the command line; a first argument that ends in `.json` is a file of defaults for them."""
    return parse_with_recipe((ModelArguments, DataArguments, TokenTrainingArguments), argv)


def check_arguments(model_args: ModelArguments, data_args: DataArguments, args: TokenTrainingArguments) -> None:
    prompts = {"prompt": bool(data_args.prompt), "prompt_file": bool(data_args.prompt_file)}
    check_run(model_args, data_args, args, **prompts)
    for name, least in (("block_size", 0), ("max_new_tokens", 1), ("num_beams", 1)):
        if getattr(data_args, name) < least:
            raise ValueError(f"--{name} {getattr(data_args, name)} must be at least {least}.")
    if data_args.temperature <= 0 or (data_args.temperature != 1 and not data_args.do_sample):
        raise ValueError(f"--temperature {data_args.temperature} must be above 0, and needs --do_sample.")

    config = check_model(model_args, is_encoder_decoder=False)
    # The sizes of a smoke run are of both stacks.
    own = read_json(data_args.SMOKE_VALUES)["config_overrides"] if data_args.smoke else {}
    for name in sorted(parse_overrides(model_args.config_overrides).keys() - own):
        field = config.attribute_map.get(name, name)
        if field.startswith("encoder_"):
            raise ValueError(
                f"--config_overrides: {name} is of an encoder, and a language model has a decoder only: set "
                f"{field.replace('encoder', 'decoder', 1)}."
            )


def read_split(args: DataArguments, split: str) -> list[str]:
    """The lines of "train", "validation" or "test" from wherever the arguments say."""
    path = getattr(args, f"{split}_file")
    if path:
        name, lines = path, read_lines(path)
    elif args.dataset_name:
        name, records = f"{args.dataset_name} ({split})", read_dataset(args, split)
        if args.text_column not in records.column_names:
            raise ValueError(
                f"{name} has no column {args.text_column!r} (--text_column), only {', '.join(records.column_names)}."
            )
        lines = [line for text in records[args.text_column] for line in text.removesuffix("\n").split("\n")]
    else:
        raise ValueError(f"No {split} data: give --{split}_file or --dataset_name.")
    lines = lines[: args.max_samples(split)]
    if not any(line.strip() for line in lines):
        raise ValueError(f"{name} holds no text ({len(lines)} lines read).")
    return lines


def build_tokenizer(lines: Iterable[str], vocab_size: int | None = None) -> TokenizersBackend:
    """A tokenizer of whole words, those of the lines, the most frequent first.

    Special tokens are `<s>` 0, `<pad>` 1, `</s>` 2, `<unk>` 3. Encoding puts `</s>` in front, the context that the
    first word of a sentence is predicted from.

    Args:
        lines: Texts whose words are separated by white space.
        vocab_size: Most words, special ones included; of equally frequent words the alphabet's first stay.

    Raises:
        ValueError: `vocab_size` has no room for a word.
    """
    backend = word_level_tokenizer(lines, SPECIAL_TOKENS, vocab_size)
    eos = SPECIAL_TOKENS["eos_token"]
    backend.post_processor = TemplateProcessing(single=f"{eos} $A", special_tokens=[(eos, backend.token_to_id(eos))])
    return TokenizersBackend(tokenizer_object=backend, **SPECIAL_TOKENS)


def encode_lines(lines: list[str], name: str, tokenizer) -> list[list[int]]:
    """The ids of the words of each line, without `</s>`.

    Raises:
        ValueError: the tokenizer does not give one token a word, or a line holds a word that marks ends or padding.
    """
    encoded = tokenizer(lines, add_special_tokens=False, split_special_tokens=True, verbose=False)["input_ids"]
    reserved = {tokenizer.bos_token_id, tokenizer.pad_token_id, tokenizer.eos_token_id}
    for number, (line, ids) in enumerate(zip(lines, encoded), 1):
        words = split_words(line)
        if len(ids) != len(words):
            raise ValueError(
                f"{name}, line {number}: {len(words)} words became {len(ids)} tokens. This script needs a tokenizer "
                f"of whole words, and that of {tokenizer.name_or_path} is none: leave out --tokenizer_name to make "
                "one of the training text."
            )
        if not reserved.isdisjoint(ids):
            word = next(word for word, i in zip(words, ids) if i in reserved)
            raise ValueError(f"{name}, line {number}: {word!r} is a special token, no word: take it out of the text.")
    return encoded


def log_unknown(lines: list[str], encoded: list[list[int]], name: str, tokenizer) -> None:
    """Says how many words the vocabulary lacks, apart from those that the text itself calls unknown."""
    unk = tokenizer.unk_token
    unknown = Counter(
        word
        for line, ids in zip(lines, encoded)
        if tokenizer.unk_token_id in ids
        for word, i in zip(split_words(line), ids)
        if i == tokenizer.unk_token_id and word != unk
    )
    if unknown:
        examples = ", ".join(repr(word) for word, _ in unknown.most_common(5))
        logger.warning(
            "%s: %d words (%d different ones, as %s) are not in the vocabulary and become %s",
            *(name, unknown.total(), len(unknown), examples, unk),
        )


def make_examples(encoded: list[list[int]], block_size: int, eos_token_id: int) -> datasets.Dataset:
    """The blocks of `shift_blocks` as a dataset with the columns input_ids, labels, length and index."""
    inputs, labels = shift_blocks(encoded, block_size, eos_token_id)
    columns = {"input_ids": inputs, "labels": labels, "length": [len(words) for words in labels]}
    return datasets.Dataset.from_dict(columns | {"index": range(len(labels))})


def new_config(args: ModelArguments, tokenizer) -> PreTrainedConfig:
    """Configuration of a new model: `config_name`, then size and ids of the tokenizer, then `config_overrides`."""
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    return config_with_overrides(args, {"vocab_size": len(tokenizer), "is_encoder_decoder": False, **ids})


def load_model(args: ModelArguments, tokenizer) -> PreTrainedModel:
    """The checkpoint's model in float32, or a new one; ValueError if the vocabulary does not fit."""
    if args.model_name_or_path:
        model = load_checkpoint(AutoModelForCausalLM, args)
    else:
        model = AutoModelForCausalLM.from_config(new_config(args, tokenizer))
    check_vocabulary(tokenizer, model.get_input_embeddings())
    return model


def check_lengths(examples: datasets.Dataset, split: str, config: PreTrainedConfig) -> None:
    limit = position_limit(config)
    longest = max(examples["length"])
    if limit is not None and longest > limit:
        raise ValueError(
            f"The longest {split} example has {longest} words, but the model's max_position_embeddings is {limit}: "
            f"give a --block_size from 1 to {limit}, or a new model with more positions."
        )


@contextmanager
def without_autocast(model: PreTrainedModel):
    """Lifts the autocast that `--bf16` and `--fp16` put around the forward of a model."""
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
    """Trainer for labels that are already shifted, which evaluates in the precision of the weights."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        # Trainer would count one word less in each row, which a causal model drops when it shifts by itself.
        self._loss_shifts_labels = False

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        inputs = self._prepare_inputs(inputs)
        labels = inputs.pop("labels")
        with torch.no_grad(), without_autocast(self.accelerator.unwrap_model(model)):
            logits = model(**inputs).logits
        self.add_losses(logits, labels)
        return None, None, None


def evaluate_split(
    trainer: Trainer, examples: datasets.Dataset, prefix: str, block_size: int
) -> dict[str, float | str]:
    """Perplexity and how it is counted, losses and counts of a split, which also go to the output folder."""
    # Not `evaluate`, whose callbacks look for the metric of the best model in every split.
    metrics = trainer.predict(examples, metric_key_prefix=prefix).metrics
    metrics |= counts(examples, prefix, trainer.processing_class)
    unit = f"blocks of {block_size} words" if block_size else "lines"
    metrics[f"{prefix}_perplexity_convention"] = f"of a word, ends of lines included; in {unit}"
    return report(trainer, prefix, metrics)


def counts(examples: datasets.Dataset, prefix: str, tokenizer) -> dict[str, int]:
    """The numbers of examples, words and unknown words, the ends of lines being words."""
    return {
        f"{prefix}_samples": len(examples),
        f"{prefix}_words": sum(examples["length"]),
        f"{prefix}_unk_words": sum(words.count(tokenizer.unk_token_id) for words in examples["labels"]),
    }


def generation_options(args: DataArguments) -> dict:
    """What the arguments say about generation, as fields of a generation configuration."""
    return {
        "num_beams": args.num_beams,
        "do_sample": args.do_sample,
        "temperature": args.temperature if args.do_sample else None,
        # The default of generate would draw from the 50 likeliest words only.
        "top_k": 0 if args.do_sample else None,
        "max_length": None,
        "max_new_tokens": args.max_new_tokens,
    }


def continue_text(model: PreTrainedModel, tokenizer, prompt: str) -> str:
    """The prompt and a continuation by the model's generation configuration, up to the end of the sentence."""
    eos = tokenizer.eos_token_id
    (ids,) = encode_lines([prompt], "prompt", tokenizer)
    log_unknown([prompt], [ids], f"prompt {prompt!r}", tokenizer)
    inputs = torch.tensor([[eos, *ids]], device=model.device)
    output = model.generate(inputs, attention_mask=torch.ones_like(inputs))[0, inputs.shape[1] :].tolist()
    words = output[: output.index(eos)] if eos in output else output
    # Not `decode`, which takes away <unk> too if told to skip special tokens.
    return " ".join([*split_words(prompt), *tokenizer.convert_ids_to_tokens(words)])


def write_number_names(folder: Path) -> dict[str, str]:
    """Number names in English, the data of a smoke run; the arguments that read them."""
    sizes = {"train": 300, "validation": 20, "test": 20}
    write_corpus(folder, sizes)
    return {f"{split}_file": str(folder / f"{split}.en") for split in sizes}


def main(argv: list[str] | None = None) -> dict[str, float | str]:
    """Runs the script with the given arguments (default: the command line's) and returns all metrics by name."""
    model_args, data_args, args = parse_arguments(sys.argv[1:] if argv is None else argv)
    set_up_logging(args, logger)
    check_arguments(model_args, data_args, args)
    with locked_run(args):
        return run_checked(model_args, data_args, args)


def run_checked(
    model_args: ModelArguments, data_args: DataArguments, args: TokenTrainingArguments
) -> dict[str, float | str]:
    """`main` with arguments that are checked, in a folder that is locked."""
    prompts = [*(data_args.prompt or []), *(read_lines(data_args.prompt_file) if data_args.prompt_file else [])]
    generated = Path(args.output_dir) / "generated.txt"
    if prompts and generated.exists() and not (args.do_train or data_args.overwrite_output_dir):
        raise ValueError(
            f"{generated} is there already: choose another --output_dir, or give --overwrite_output_dir to replace it."
        )
    arguments = run_arguments("text-generation", model_args, data_args, args)
    checkpoint = find_checkpoint(arguments, args)
    write_smoke_data(data_args, args, write_number_names)
    set_seed(args.seed)

    lines = {split: read_split(data_args, split) for split, need in needed_splits(args).items() if need}

    tokenizer_name = checkpoint or model_args.tokenizer_name or model_args.model_name_or_path
    if tokenizer_name is None:
        tokenizer = build_tokenizer(lines["train"], model_args.vocab_size)
    else:
        tokenizer = AutoTokenizer.from_pretrained(tokenizer_name, **model_args.hub_options)

    model = load_model(model_args, tokenizer)
    logger.info("%s words in the vocabulary, %s parameters", f"{len(tokenizer):,}", f"{model.num_parameters():,}")
    model.generation_config.update(**generation_options(data_args))

    splits = {}
    for split, texts in lines.items():
        encoded = encode_lines(texts, split, tokenizer)
        log_unknown(texts, encoded, split, tokenizer)
        splits[split] = make_examples(encoded, data_args.block_size, tokenizer.eos_token_id)
        check_lengths(splits[split], split, model.config)

    trainer = LanguageModelTrainer(
        model=model,
        args=args,
        train_dataset=splits.get("train"),
        eval_dataset=splits.get("validation"),
        processing_class=tokenizer,
        data_collator=DataCollatorForSeq2Seq(tokenizer),
        callbacks=data_args.callbacks(),
    )

    note_run(arguments, args)
    metrics = {}
    if args.do_train:
        result = trainer.train(resume_from_checkpoint=checkpoint)
        trainer.save_model()
        metrics |= report(trainer, "train", result.metrics | counts(splits["train"], "train", tokenizer))
        trainer.save_state()
    if args.do_eval:
        metrics |= evaluate_split(trainer, splits["validation"], "eval", data_args.block_size)
    if args.do_predict:
        metrics |= evaluate_split(trainer, splits["test"], "predict", data_args.block_size)
    if prompts:
        # On all processes, of which each may have a part of the model.
        set_seed(args.seed)
        model.eval()
        with without_autocast(model):
            texts = [continue_text(model, tokenizer, prompt) for prompt in prompts]
        if trainer.is_world_process_zero():
            print("\n".join(texts))
            generated.parent.mkdir(parents=True, exist_ok=True)
            generated.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8", newline="\n")
    if args.push_to_hub:
        trainer.push_to_hub()
    return metrics


if __name__ == "__main__":
    run_process(main)
