# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Classification of sentences and pairs of sentences, scored by accuracy."""

import logging
from argparse import SUPPRESS
from dataclasses import dataclass

import datasets
import torch
from tokenizers.processors import TemplateProcessing
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    EvalPrediction,
    PreTrainedModel,
    TokenizersBackend,
    Trainer,
    TrainingArguments,
)

from ...options import option
from ..arguments import BaseModelArguments, check_run, needed_splits
from ..models import check_model, check_vocabulary, config_with_overrides, load_checkpoint, word_level_tokenizer
from ..resumption import ResumableTrainerMixin, ResumableTrainingArguments
from ..task import Run, Task
from ..word_vectors import load_word_vectors
from .classification_examples import (
    DataArguments,
    Examples,
    find_labels,
    make_splits,
    read_split,
)


logger = logging.getLogger(__name__)

OPTIMIZER = str(TrainingArguments.__dataclass_fields__["optim"].default)
# In the order of their ids.
SPECIAL_TOKENS = {"pad_token": "<pad>", "unk_token": "<unk>"}


@dataclass
class ModelArguments(BaseModelArguments):
    """The model and its vocabulary: a checkpoint, or a configuration to start from."""

    model_type: str = option("Architecture of a new model, unless --config_name sets it.", "csa_ode")
    class_names: list[str] | None = option(
        "Class names to save in the model, in the order of the labels: numbers in increasing order, "
        "others alphabetically; default: the labels.",
    )
    vocab_size: int | None = option(
        "Maximum size of a new vocabulary in words, 2 special ones included; default: no limit.", least=1
    )
    min_frequency: int = option(
        "Minimum number of occurrences of a word in a new vocabulary; rarer words become <unk>.", 1
    )
    lowercase: bool = option("Convert the words of a new vocabulary to lower case.", False)
    word_vectors: str | None = option(
        "Pre-trained vectors for the embeddings of a new model, in GloVe's text format (.gz accepted)."
    )


@dataclass
class ClassificationTrainingArguments(ResumableTrainingArguments):
    """Trainer's arguments, with the paper's values where it gives them: learning rates from 0.0001 to 0.003, batches
    of 80 to 256, 10 epochs and an L2 factor of 1e-5. Batches of 114 give the 48 batches per epoch that figure 6 shows
    for TREC. The paper gives no numbers for warm-up and decay."""

    learning_rate: float = option("Highest learning rate.", 1e-3)
    per_device_train_batch_size: int = option("Examples per training batch.", 114)
    per_device_eval_batch_size: int = option("Examples per evaluation batch.", 256, affects="result")
    num_train_epochs: float = option("Number of training epochs.", 10.0, affects="result")
    weight_decay: float = option("Factor of the L2 regularization.", 1e-5)
    warmup_steps: float = option("Updates of warm-up, or below 1 their share of all updates.", 0.1)
    learning_rate_ratio: float = option(
        "Last learning rate divided by the highest; the decay between them is exponential.", 0.1, above=0, most=1
    )

    # Refused: the optimizer is Adam, and the decay is exponential.
    optim: str = option(SUPPRESS, OPTIMIZER)
    lr_scheduler_type: str = option(SUPPRESS, "linear")

    def __post_init__(self):
        for name, default in {"optim": OPTIMIZER, "lr_scheduler_type": "linear"}.items():
            value = getattr(self, name)
            if value != default:
                raise ValueError(
                    f"--{name} {getattr(value, 'value', value)}: classifiers are trained by Adam, with L2 "
                    "regularization and an exponentially falling learning rate (--learning_rate_ratio): leave it out."
                )
        super().__post_init__()

    def to_sanitized_dict(self) -> dict:
        """The recorded arguments, with the optimizer and schedule of `ClassificationTrainer`."""
        own = {"optim": "Adam with L2 regularization", "lr_scheduler_type": "exponential"}
        return super().to_sanitized_dict() | own


def check_arguments(model_args: ModelArguments, data_args: DataArguments, args: TrainingArguments) -> None:
    """Checks the arguments of a run.

    Raises:
        ValueError: an argument has an invalid value or contradicts another one.
        OSError: the checkpoint or configuration does not exist.
    """
    check_run(model_args, args)
    if model_args.word_vectors and model_args.model_name_or_path:
        raise ValueError("--word_vectors needs a new model: leave out --model_name_or_path.")
    if data_args.validation_size + data_args.test_size >= 1:
        raise ValueError(
            f"--validation_size {data_args.validation_size} and --test_size {data_args.test_size} leave nothing to "
            "train on: their sum must be less than 1."
        )
    folds = data_args.cross_validation
    if folds and (data_args.test_file or data_args.test_size or not (args.do_train and args.do_predict)):
        raise ValueError(
            f"--cross_validation {folds} tests on the training examples. Give --do_train and --do_predict, but "
            "neither --test_file nor --test_size."
        )
    if args.load_best_model_at_end and not args.do_eval:
        raise ValueError("--load_best_model_at_end needs --do_eval.")
    if data_args.seeds and len(set(data_args.seeds)) < len(data_args.seeds):
        raise ValueError(f"--seeds {' '.join(map(str, data_args.seeds))} repeats a seed: give each one once.")
    asked = args.resume_from_checkpoint
    if asked and str(asked).lower() != "true" and (data_args.seeds or folds):
        raise ValueError(
            f"--resume_from_checkpoint {asked} is for one model. Leave it out: each of several models resumes by "
            "itself."
        )
    check_model(model_args)


def choose_examples(run: Run) -> dict[str, Examples]:
    return make_splits(run.given, run.data_args, needed_splits(run.args), run.fold)


def build_tokenizer(examples: Examples, args: ModelArguments) -> TokenizersBackend:
    """A tokenizer of the examples' whole words, the most frequent first; `<pad>` is 0 and `<unk>` is 1.

    The second sentence of a pair follows the first; `token_type_ids` tells them apart.

    Raises:
        ValueError: `--vocab_size` has no room for a word.
    """
    lines = [*examples.texts, *(examples.pairs or [])]
    backend = word_level_tokenizer(lines, SPECIAL_TOKENS, args.vocab_size, args.min_frequency, args.lowercase)
    backend.post_processor = TemplateProcessing(single="$A", pair="$A:0 $B:1", special_tokens=[])
    inputs = ["input_ids", "attention_mask", *(["token_type_ids"] if examples.pairs else [])]
    return TokenizersBackend(tokenizer_object=backend, model_input_names=inputs, **SPECIAL_TOKENS)


def make_tokenizers(run: Run):
    return (build_tokenizer(run.examples["train"], run.model_args),)


def load_tokenizers(run: Run, name: str):
    return (AutoTokenizer.from_pretrained(name, **run.model_args.hub_options),)


def check_class_names(names: list[str], labels: list[str]) -> None:
    """Raises a ValueError if there are not as many names as labels."""
    if len(names) != len(labels):
        raise ValueError(
            f"--class_names gives {len(names)} names, but there are {len(labels)} labels: {', '.join(labels)}."
        )


def label_ids(model: PreTrainedModel, labels: list[str], class_names: list[str] | None) -> dict[str, int]:
    """The model's ids of the labels. Its configuration may store labels as in the training data (`dataset_labels`) or
    by class name.

    Raises:
        ValueError: the model has other labels.
    """
    config, names = model.config, dict(zip(labels, labels))
    noted = {label: i for i, label in enumerate(getattr(config, "dataset_labels", None) or [])}
    if class_names and not noted:
        check_class_names(class_names, labels)
        names = dict(zip(labels, class_names))
    elif class_names and class_names != (own := [config.id2label[i] for i in noted.values()]):
        raise ValueError(
            f"--class_names {' '.join(class_names)}: the classes of {config.name_or_path} are {' '.join(own)}. Leave "
            "it out."
        )
    known = config.label2id | noted
    if unknown := [name for name in names.values() if name not in known]:
        labels = dict.fromkeys([*config.id2label.values(), *noted])
        raise ValueError(
            f"{config.name_or_path} does not know the labels {', '.join(unknown)}, only {', '.join(labels)}."
        )
    return {label: known[name] for label, name in names.items()}


def load_model(run: Run) -> PreTrainedModel:
    """The checkpoint's model in float32, or a new one for the labels, with pre-trained word vectors if requested.

    Raises:
        ValueError: the vocabulary or labels differ from the checkpoint's, or there are not as many names as labels.
    """
    labels = find_labels(run.given)
    if run.model_args.model_name_or_path:
        model = load_checkpoint(AutoModelForSequenceClassification, run)
    else:
        model = new_model(run, labels)
    check_vocabulary(run.tokenizer, model.get_input_embeddings())
    label_ids(model, labels, run.model_args.class_names)
    number = model.num_parameters()
    without = number - model.get_input_embeddings().weight.numel()
    logger.info(
        "%s words in the vocabulary, %s parameters, %s without embeddings, classes: %s",
        *(f"{each:,}" for each in (len(run.tokenizer), number, without)),
        ", ".join(model.config.label2id),
    )
    return model


def new_model(run: Run, labels: list[str]) -> PreTrainedModel:
    """A new model for the labels, with pre-trained word vectors if requested."""
    args, names = run.model_args, run.model_args.class_names or labels
    if len(labels) < 2:
        raise ValueError(f"All examples have the label {labels[0]}: there is nothing to tell apart.")
    check_class_names(names, labels)
    values = {"vocab_size": len(run.tokenizer), "pad_token_id": run.tokenizer.pad_token_id}
    values |= {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}
    values |= {"dataset_labels": labels, "problem_type": "single_label_classification"}
    if args.model_type == "csa_ode":
        values["num_sentences"] = 2 if run.data_args.text_pair_column is not None else 1
    model = AutoModelForSequenceClassification.from_config(config_with_overrides(args, values))
    if args.word_vectors:
        missing = load_word_vectors(args.word_vectors, run.tokenizer.get_vocab(), model.get_input_embeddings())
        logger.info("%s has no vector for %d of %d words", args.word_vectors, len(missing), len(run.tokenizer))
    return model


def encode(run: Run, split: str) -> datasets.Dataset:
    """Ids, masks and labels of the examples of a split."""
    examples, limit = run.examples[split], run.data_args.max_length
    encoded = run.tokenizer(examples.texts, examples.pairs, truncation=limit is not None, max_length=limit)
    ids = label_ids(run.model, find_labels(run.given), run.model_args.class_names)
    return datasets.Dataset.from_dict({**encoded, "labels": [ids[label] for label in examples.labels]})


class ClassificationTrainer(ResumableTrainerMixin, Trainer):
    """Trainer with Adam, an exponentially falling learning rate, and classification metrics."""

    def __init__(self, *, args: ClassificationTrainingArguments, **kwargs):
        adam = {"lr": args.learning_rate, "betas": (args.adam_beta1, args.adam_beta2), "eps": args.adam_epsilon}
        kwargs |= {"compute_metrics": compute_metrics, "optimizer_cls_and_kwargs": (torch.optim.Adam, adam)}
        super().__init__(args=args, **kwargs)
        # Predictions need the numbers of evaluations too, not only the logits.
        ignored = set(getattr(self.model.config, "keys_to_ignore_at_inference", None) or ())
        self.ignored_keys = sorted(ignored - {"num_function_evaluations"})

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None):
        if self.lr_scheduler is None:
            warmup = self.args.get_warmup_steps(num_training_steps)
            decay = max(num_training_steps - warmup, 1)

            def factor(step: int) -> float:
                if step < warmup:
                    return step / warmup
                return self.args.learning_rate_ratio ** min((step - warmup) / decay, 1.0)

            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer or self.optimizer, factor)
            # Trainer makes another one for another number of updates.
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys=self.ignored_keys)


def compute_metrics(prediction: EvalPrediction) -> dict[str, float]:
    """Accuracy in percent, and the mean number of function evaluations if the model counts them."""
    outputs = prediction.predictions
    logits, *others = outputs if isinstance(outputs, tuple) else (outputs,)
    metrics = {"accuracy": 100 * float((logits.argmax(axis=-1) == prediction.label_ids).mean())}
    if others:
        metrics["function_evaluations"] = float(others[0].mean())
    return metrics


def make_trainer(run: Run) -> ClassificationTrainer:
    return ClassificationTrainer(
        model=run.model,
        args=run.args,
        train_dataset=run.splits.get("train"),
        eval_dataset=run.splits.get("validation"),
        processing_class=run.tokenizer,
        data_collator=DataCollatorWithPadding(run.tokenizer),
        callbacks=run.data_args.callbacks(),
    )


def evaluate(run: Run, split: str, prefix: str) -> dict[str, float]:
    return run.trainer.predict(run.splits[split], metric_key_prefix=prefix).metrics


CLASSIFICATION = Task(
    "text-classification",
    ModelArguments,
    DataArguments,
    ClassificationTrainingArguments,
    check_arguments=check_arguments,
    read_split=read_split,
    choose_examples=choose_examples,
    make_tokenizers=make_tokenizers,
    load_tokenizers=load_tokenizers,
    load_model=load_model,
    encode=encode,
    make_trainer=make_trainer,
    evaluate=evaluate,
    has_results=True,
    presets="classification",
)
