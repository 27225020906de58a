# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Train, evaluate and run a sequence-to-sequence model on translation pairs with `Seq2SeqTrainer`.

    python run_translation.py recipes/multi30k_en_de.json --output_dir out --seed 1

A recipe is a JSON file of arguments; what follows it on the command line wins. Without a checkpoint
(`--model_name_or_path`) the model starts from a configuration, by default an ODE Transformer; without a tokenizer
(`--tokenizer_name`, or the checkpoint's) one is trained on the training pairs. Pairs come from

    --train_source_file a.en --train_target_file a.de    one sentence a line in two files
    --train_file a.tsv                                   source<TAB>target a line
    --train_file a.jsonl                                 {"en": ..., "de": ...} a line, or that under "translation"
    --dataset_name wmt/wmt14 --dataset_config_name de-en

and likewise for validation and test; every file may be gzipped (`.gz`). A run that is started again with the same
`--output_dir` continues from its last checkpoint. `output_dir` ends up with the model, the tokenizer, a generation
configuration with the beam search asked for, the metrics (`all_results.json`) and the predictions.
"""

import json
import logging
import sys
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import datasets
import numpy as np
import sacrebleu
import torch
from script_utils import (
    TARGET_TOKENIZER,
    BaseDataArguments,
    BaseModelArguments,
    TokenMeanMixin,
    config_with_overrides,
    find_checkpoint,
    parse_with_recipe,
    position_limit,
    read_dataset,
    read_lines,
    set_up_logging,
)
from script_utils import parse_overrides as parse_overrides
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    EarlyStoppingCallback,
    GenerationConfig,
    PreTrainedConfig,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    set_seed,
)
from transformers.utils import cached_file

from modeling_ode_transformer import OdeTransformerTokenizer
from modeling_ode_transformer.modeling_ode_transformer import shift_tokens_right


logger = logging.getLogger(__name__)


@dataclass
class ModelArguments(BaseModelArguments):
    """The model and its tokenizers: a checkpoint, or a configuration to start from."""

    target_tokenizer_name: str | None = field(
        default=None,
        metadata={"help": f"Tokenizer of the target side; none: folder {TARGET_TOKENIZER} of the tokenizer, if any."},
    )
    joint_tokenizer: bool = field(
        default=True, metadata={"help": "Train one tokenizer on both languages, or (False) one for each."}
    )
    vocab_size: int = field(default=8000, metadata={"help": "Pieces of a new tokenizer."})
    target_vocab_size: int | None = field(
        default=None, metadata={"help": "Pieces of a new target tokenizer; none: --vocab_size."}
    )
    tokenizer_model_type: str = field(
        default="bpe", metadata={"help": "SentencePiece model of a new tokenizer.", "choices": ["bpe", "unigram"]}
    )


@dataclass
class DataArguments(BaseDataArguments):
    """The translation pairs, their lengths, and how translations are searched and scored."""

    source_lang: str | None = field(default=None, metadata={"help": "Key of the source in jsonl files and datasets."})
    target_lang: str | None = field(default=None, metadata={"help": "Key of the target in jsonl files and datasets."})
    train_file: str | None = field(default=None, metadata={"help": "Training pairs, TSV or jsonl (.gz accepted)."})
    validation_file: str | None = field(default=None, metadata={"help": "Validation pairs, TSV or jsonl."})
    test_file: str | None = field(default=None, metadata={"help": "Test pairs, TSV or jsonl."})
    train_source_file: str | None = field(default=None, metadata={"help": "Training sources, one a line."})
    train_target_file: str | None = field(default=None, metadata={"help": "Training targets, line by line."})
    validation_source_file: str | None = field(default=None, metadata={"help": "Validation sources, one a line."})
    validation_target_file: str | None = field(default=None, metadata={"help": "Validation targets, line by line."})
    test_source_file: str | None = field(default=None, metadata={"help": "Test sources, one a line."})
    test_target_file: str | None = field(default=None, metadata={"help": "Test targets, line by line."})
    max_source_length: int = field(
        default=256, metadata={"help": "Longest source in tokens, end mark included; longer ones are cut."}
    )
    max_target_length: int = field(
        default=256, metadata={"help": "Longest target in tokens, end mark included; longer ones are cut."}
    )
    pad_to_multiple_of: int | None = field(
        default=None,
        metadata={"help": "Pad batches to a multiple of this; none: 8 in half precision on GPUs, else 1."},
    )
    num_beams: int = field(
        default=4,
        metadata={
            "help": "Beams of the final evaluation and prediction and of the saved generation configuration; "
            "--generation_num_beams is for the evaluations during training."
        },
    )
    length_penalty: float = field(
        default=1.0, metadata={"help": "Finished beams score sum of log-probabilities / length ** this."}
    )
    bleu_tokenize: str = field(
        default="13a", metadata={"help": "sacreBLEU's tokenizer: 13a, intl, zh, ja-mecab, char, ..."}
    )


def parse_arguments(argv: list[str]) -> tuple[ModelArguments, DataArguments, Seq2SeqTrainingArguments]:
    """Arguments from the command line; a first argument that ends in `.json` is a file of defaults for them."""
    return parse_with_recipe((ModelArguments, DataArguments, Seq2SeqTrainingArguments), argv)


def read_parallel(source_file: str, target_file: str) -> list[tuple[str, str]]:
    """Pairs from two files of equally many lines."""
    sources, targets = read_lines(source_file), read_lines(target_file)
    if len(sources) != len(targets):
        raise ValueError(
            f"{source_file} has {len(sources)} lines but {target_file} has {len(targets)}: "
            "line n of one must be the translation of line n of the other."
        )
    return list(zip(sources, targets))


def read_table(path: str, source_lang: str | None, target_lang: str | None) -> list[tuple[str, str]]:
    """Pairs from a TSV file or, by its name, a jsonl file."""
    suffix = Path(path.removesuffix(".gz")).suffix
    if suffix == ".tsv":
        rows = [line.split("\t") for line in read_lines(path)]
        for number, row in enumerate(rows, 1):
            if len(row) != 2:
                raise ValueError(f"{path}, line {number}: {len(row)} columns, expected source<TAB>target.")
        return [(source, target) for source, target in rows]
    if suffix in (".json", ".jsonl"):
        records = []
        for number, line in enumerate(read_lines(path), 1):
            try:
                records.append(json.loads(line))
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}, line {number}: not a JSON object ({error}).") from error
        return pairs_from_records(records, source_lang, target_lang, path)
    raise ValueError(f"{path}: pairs in one file must be .tsv, .json or .jsonl (or these with .gz), not {suffix!r}.")


def pairs_from_records(records, source_lang: str | None, target_lang: str | None, name: str) -> list[tuple[str, str]]:
    """Pairs from mappings such as `{"translation": {"en": ..., "de": ...}}` or `{"en": ..., "de": ...}`."""
    if source_lang is None or target_lang is None:
        raise ValueError(f"{name} needs --source_lang and --target_lang: the keys of its source and target.")
    pairs = []
    for number, record in enumerate(records, 1):
        if isinstance(record, dict):
            record = record.get("translation", record)
        if not isinstance(record, dict):
            raise ValueError(f"{name}, record {number}: not an object with {source_lang} and {target_lang}.")
        source, target = record.get(source_lang), record.get(target_lang)
        if not isinstance(source, str) or not isinstance(target, str):
            raise ValueError(
                f"{name}, record {number}: no text under {source_lang} (--source_lang) and {target_lang} "
                f"(--target_lang), only {record}."
            )
        pairs.append((source, target))
    return pairs


def read_split(args: DataArguments, split: str) -> list[tuple[str, str]]:
    """(source, target) pairs of "train", "validation" or "test" from wherever the arguments say."""
    table = getattr(args, f"{split}_file")
    source_file, target_file = getattr(args, f"{split}_source_file"), getattr(args, f"{split}_target_file")
    if (source_file is None) != (target_file is None):
        raise ValueError(f"--{split}_source_file and --{split}_target_file go together; only one is given.")
    if table and source_file:
        raise ValueError(f"Give --{split}_file or --{split}_source_file with --{split}_target_file, not both.")
    if table:
        name, pairs = table, read_table(table, args.source_lang, args.target_lang)
    elif source_file:
        name, pairs = source_file, read_parallel(source_file, target_file)
    elif args.dataset_name:
        name = f"{args.dataset_name} ({split})"
        pairs = pairs_from_records(read_dataset(args, split), args.source_lang, args.target_lang, name)
    else:
        raise ValueError(
            f"No {split} data: give --{split}_file, or --{split}_source_file and --{split}_target_file, "
            "or --dataset_name."
        )

    pairs = pairs[: args.max_samples(split)]
    full = [(source, target) for source, target in pairs if source.strip() and target.strip()]
    if not full:
        raise ValueError(f"{name} holds no pair with text on both sides ({len(pairs)} lines read).")
    if len(full) < len(pairs) and split == "train":
        logger.warning("%s: dropped %d of %d pairs with an empty side", name, len(pairs) - len(full), len(pairs))
        pairs = full
    elif len(full) < len(pairs):
        logger.warning("%s: %d of %d pairs have an empty side; kept", name, len(pairs) - len(full), len(pairs))
    logger.info("%s: %d pairs", name, len(pairs))
    return pairs


def encode_split(pairs, split: str, tokenizer, target_tokenizer, args: DataArguments) -> datasets.Dataset:
    """Token ids of (source, target) pairs.

    Returns a dataset with the columns input_ids, labels, length (of both), source, target (the texts) and index (the
    pair's place in its file). Pairs for evaluation are sorted by length, longest first, to save padding.
    """
    truncated = {"source": 0, "target": 0}

    def encode(texts, side, tokenizer, max_length):
        encoded = tokenizer(texts, verbose=False)["input_ids"]
        for i, ids in enumerate(encoded):
            if len(ids) > max_length:
                truncated[side] += 1
                encoded[i] = tokenizer(texts[i], truncation=True, max_length=max_length)["input_ids"]
        return encoded

    def encode_batch(batch):
        sources = encode(batch["source"], "source", tokenizer, args.max_source_length)
        targets = encode(batch["target"], "target", target_tokenizer, args.max_target_length)
        lengths = [len(source) + len(target) for source, target in zip(sources, targets)]
        return {"input_ids": sources, "labels": targets, "length": lengths}

    sources, targets = zip(*pairs)
    dataset = datasets.Dataset.from_dict({"source": sources, "target": targets, "index": range(len(pairs))})
    dataset = dataset.map(encode_batch, batched=True, desc=f"Encoding the {split} pairs")
    for side, limit in (("source", args.max_source_length), ("target", args.max_target_length)):
        if truncated[side]:
            logger.warning(
                "%s: %d of %d %ss cut to %d tokens (--max_%s_length)",
                *(split, truncated[side], len(pairs), side, limit, side),
            )
    if split == "train":
        return dataset
    lengths = dataset["length"][:]
    return dataset.select(sorted(range(len(dataset)), key=lambda i: -lengths[i]))


def load_tokenizers(name: str, target_name: str | None = None, **hub_options):
    """The tokenizer in a folder or on the Hub, and that of its target side: another one if there is one, or itself."""
    tokenizer = AutoTokenizer.from_pretrained(name, **hub_options)
    if target_name is not None:
        return tokenizer, AutoTokenizer.from_pretrained(target_name, **hub_options)
    try:
        cached_file(name, f"{TARGET_TOKENIZER}/tokenizer_config.json", revision=hub_options.get("revision"))
    except OSError:
        return tokenizer, tokenizer
    return tokenizer, AutoTokenizer.from_pretrained(name, subfolder=TARGET_TOKENIZER, **hub_options)


def train_tokenizers(pairs: list[tuple[str, str]], args: ModelArguments, folder: Path) -> None:
    """Trains a joint tokenizer, or one for each language, on pairs, and saves it in a folder."""
    sources, targets = zip(*pairs)
    train = partial(OdeTransformerTokenizer.train, model_type=args.tokenizer_model_type)
    if args.joint_tokenizer:
        train(sources + targets, args.vocab_size).save_pretrained(folder)
    else:
        train(sources, args.vocab_size).save_pretrained(folder)
        train(targets, args.target_vocab_size or args.vocab_size).save_pretrained(folder / TARGET_TOKENIZER)


def new_config(args: ModelArguments, tokenizer, target_tokenizer) -> PreTrainedConfig:
    """Configuration of a new model: `config_name`, then sizes and ids of the tokenizers, then `config_overrides`."""
    values = {
        "vocab_size": len(tokenizer),
        "bos_token_id": target_tokenizer.bos_token_id,
        "eos_token_id": target_tokenizer.eos_token_id,
        "pad_token_id": target_tokenizer.pad_token_id,
        "decoder_start_token_id": target_tokenizer.eos_token_id,
    }
    if target_tokenizer is not tokenizer:
        values |= {"decoder_vocab_size": len(target_tokenizer), "share_encoder_decoder_embeddings": False}
    return config_with_overrides(args, values)


def load_model(args: ModelArguments, tokenizer, target_tokenizer):
    """The checkpoint's model in float32, or a new one; ValueError if the vocabularies do not fit."""
    if args.model_name_or_path:
        # Training in the half precision of the saved weights would lose small updates: --bf16 and --fp16 autocast.
        model = AutoModelForSeq2SeqLM.from_pretrained(
            args.model_name_or_path,
            revision=args.model_revision,
            trust_remote_code=args.trust_remote_code,
            dtype=torch.float32,
        )
    else:
        model = AutoModelForSeq2SeqLM.from_config(new_config(args, tokenizer, target_tokenizer))
    embeddings = {"source": model.get_input_embeddings(), "target": model.get_output_embeddings()}
    for side, pieces in (("source", tokenizer), ("target", target_tokenizer)):
        if len(pieces) > embeddings[side].weight.shape[0]:
            raise ValueError(
                f"The {side} tokenizer has {len(pieces)} pieces, but the model only embeds "
                f"{embeddings[side].weight.shape[0]}: give the model's own tokenizer."
            )
    if not hasattr(model, "prepare_decoder_input_ids_from_labels"):
        # M2M100 shifts labels only in its own loss, and the collator asks the model for this.
        model.prepare_decoder_input_ids_from_labels = partial(
            shift_tokens_right,
            pad_token_id=model.config.pad_token_id,
            decoder_start_token_id=model.config.decoder_start_token_id,
        )
    return model


def check_lengths(config: PreTrainedConfig, args: DataArguments) -> None:
    limit = position_limit(config)
    for side in ("source", "target"):
        length = getattr(args, f"max_{side}_length")
        if limit is not None and length > limit:
            raise ValueError(f"--max_{side}_length {length} exceeds the model's max_position_embeddings, {limit}.")


class TranslationTrainer(TokenMeanMixin, Seq2SeqTrainer):
    """Seq2SeqTrainer whose losses are means over target tokens.

    `eval_generation_config` is the search of the evaluations. A `target_tokenizer` other than the source's is saved in
    every checkpoint as well. Evaluation adds nll_loss (without label smoothing) and perplexity to the metrics.
    """

    def __init__(self, *args, eval_generation_config: GenerationConfig, target_tokenizer, **kwargs):
        self.eval_generation_config = eval_generation_config
        self.target_tokenizer = target_tokenizer
        super().__init__(*args, **kwargs)

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        inputs = self._prepare_inputs(inputs)
        labels = inputs.pop("labels")
        predictions = None
        if self.args.predict_with_generate and not prediction_loss_only:
            sources = {name: inputs[name] for name in ("input_ids", "attention_mask")}
            _, predictions, _ = super().prediction_step(
                model, sources, prediction_loss_only, generation_config=self.eval_generation_config
            )
        with torch.no_grad(), self.compute_loss_context_manager():
            logits = model(**inputs).logits
        self.add_losses(logits, labels)
        return None, predictions, labels

    def save_model(self, output_dir=None, _internal_call=False):
        super().save_model(output_dir, _internal_call)
        if self.args.should_save and self.target_tokenizer is not self.processing_class:
            self.target_tokenizer.save_pretrained(Path(output_dir or self.args.output_dir) / TARGET_TOKENIZER)


def decode(predictions: np.ndarray, tokenizer) -> list[str]:
    """Texts of generated ids, (sentences, length) with -100 or padding where there is none; one line each."""
    predictions = np.where(predictions == -100, tokenizer.pad_token_id, predictions)
    texts = tokenizer.batch_decode(predictions, skip_special_tokens=True)
    return [" ".join(text.split("\n")).strip() for text in texts]


def score(texts: list[str], references: list[str], bleu_tokenize: str = "13a") -> dict[str, float | str]:
    """sacreBLEU's BLEU and chrF of detokenised texts, their length over that of the references, BLEU's signature."""
    metric = sacrebleu.BLEU(tokenize=bleu_tokenize)
    bleu = metric.corpus_score(texts, [references])
    return {
        "bleu": bleu.score,
        "chrf": sacrebleu.CHRF().corpus_score(texts, [references]).score,
        "length_ratio": bleu.sys_len / bleu.ref_len,
        "bleu_signature": str(metric.get_signature()),
    }


def predict_split(trainer: TranslationTrainer, dataset, prefix: str, bleu_tokenize: str, filename: str) -> dict:
    """Translates and scores a dataset; metrics and predictions, in the order of its file, go to the output folder."""
    # Scored below, from the very texts that are written.
    trainer.compute_metrics = None
    output = trainer.predict(dataset, metric_key_prefix=prefix)
    metrics = output.metrics | {f"{prefix}_samples": len(dataset)}
    if trainer.args.predict_with_generate:
        # Several processes may repeat the first pairs at the end to fill their last batch.
        texts = decode(output.predictions[: len(dataset)], trainer.target_tokenizer)
        scores = score(texts, dataset["target"][:], bleu_tokenize)
        metrics |= {f"{prefix}_{name}": value for name, value in scores.items()}
        if trainer.is_world_process_zero():
            lines = [text for _, text in sorted(zip(dataset["index"], texts))]
            path = Path(trainer.args.output_dir) / filename
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
    trainer.log_metrics(prefix, metrics)
    trainer.save_metrics(prefix, metrics)
    return metrics


def main(argv: list[str] | None = None) -> dict[str, float | str]:
    """Runs the script with the given arguments (default: the command line's) and returns all metrics by name."""
    model_args, data_args, args = parse_arguments(sys.argv[1:] if argv is None else argv)
    set_up_logging(args, logger)

    if not (args.do_train or args.do_eval or args.do_predict):
        raise ValueError("Nothing to do: give --do_train, --do_eval or --do_predict.")
    if args.do_predict and not args.predict_with_generate:
        raise ValueError("--do_predict writes translations: give --predict_with_generate too.")
    if not args.do_train and not model_args.model_name_or_path:
        raise ValueError("Without --do_train there must be a model to run: give --model_name_or_path.")
    checkpoint = find_checkpoint(data_args, args) if args.do_train else None
    set_seed(args.seed)

    needed = {"train": args.do_train, "validation": args.do_eval, "test": args.do_predict}
    pairs = {split: read_split(data_args, split) for split, need in needed.items() if need}

    hub_options = {"revision": model_args.model_revision, "trust_remote_code": model_args.trust_remote_code}
    tokenizer_name = checkpoint or model_args.tokenizer_name or model_args.model_name_or_path
    if tokenizer_name is None:
        tokenizer_name = args.output_dir
        with args.main_process_first(desc="training the tokenizer"):
            if args.should_save:
                train_tokenizers(pairs["train"], model_args, Path(args.output_dir))
    tokenizer, target_tokenizer = load_tokenizers(tokenizer_name, model_args.target_tokenizer_name, **hub_options)

    model = load_model(model_args, tokenizer, target_tokenizer)
    check_lengths(model.config, data_args)
    logger.info("%s parameters", f"{model.num_parameters():,}")
    model.generation_config.update(
        num_beams=data_args.num_beams,
        length_penalty=data_args.length_penalty if data_args.num_beams > 1 else None,
        early_stopping=True if data_args.num_beams > 1 else None,
        max_length=args.generation_max_length or data_args.max_target_length,
        max_new_tokens=None,
    )
    eval_generation_config = deepcopy(model.generation_config)
    if args.generation_num_beams is not None:
        eval_generation_config.num_beams = args.generation_num_beams
        if args.generation_num_beams == 1:
            eval_generation_config.update(early_stopping=None, length_penalty=None)

    splits = {name: encode_split(pairs[name], name, tokenizer, target_tokenizer, data_args) for name in pairs}

    def compute_metrics(evaluation):
        references = splits["validation"]["target"][:]
        texts = decode(evaluation.predictions[: len(references)], target_tokenizer)
        scores = score(texts, references, data_args.bleu_tokenize)
        # Trainer's logs take only numbers; predict_split reports the signature.
        return {name: value for name, value in scores.items() if name != "bleu_signature"}

    tensor_cores = args.device.type == "cuda" and (args.fp16 or args.bf16)
    trainer = TranslationTrainer(
        model=model,
        args=args,
        train_dataset=splits.get("train"),
        eval_dataset=splits.get("validation"),
        processing_class=tokenizer,
        target_tokenizer=target_tokenizer,
        eval_generation_config=eval_generation_config,
        data_collator=DataCollatorForSeq2Seq(
            tokenizer, model=model, pad_to_multiple_of=data_args.pad_to_multiple_of or (8 if tensor_cores else None)
        ),
        compute_metrics=compute_metrics if args.predict_with_generate else None,
        callbacks=[EarlyStoppingCallback(data_args.early_stopping_patience)]
        if data_args.early_stopping_patience
        else None,
    )

    metrics = {}
    if args.do_train:
        result = trainer.train(resume_from_checkpoint=checkpoint)
        trainer.save_model()
        metrics |= result.metrics | {"train_samples": len(splits["train"])}
        trainer.log_metrics("train", metrics)
        trainer.save_metrics("train", metrics)
        trainer.save_state()

    trainer.eval_generation_config = model.generation_config
    if args.do_eval:
        filename = "validation_predictions.txt"
        metrics |= predict_split(trainer, splits["validation"], "eval", data_args.bleu_tokenize, filename)
    if args.do_predict:
        filename = "generated_predictions.txt"
        metrics |= predict_split(trainer, splits["test"], "predict", data_args.bleu_tokenize, filename)
    if args.push_to_hub:
        trainer.push_to_hub()
    return metrics


if __name__ == "__main__":
    main()
