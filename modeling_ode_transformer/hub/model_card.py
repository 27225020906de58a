# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Model cards made from the folders of training runs.

    ode-transformer card OUTPUT_DIR --repo_id me/model --record record.json > README.md
    ode-transformer card record.json > README.md

A record is a card's content as JSON: `run_record` collects it, `model_card` renders it. A card omits what a run did
not produce.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
import transformers
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel

from ..configuration_csa_ode import CsaOdeConfig
from ..configuration_ode_transformer import OdeTransformerDecoderConfig
from ..depth import num_function_evaluations
from ..depth_ode_transformer import DepthConfig
from ..integration_ode_transformer import resolve_scheme
from ..model_folders import open_config
from ..pipeline_ode_transformer import SummarizationPipeline, TextCorrectionPipeline, TranslationPipeline
from ..text_files import read_json
from ..training.checkpoints import TRAINER_STATE
from ..training.records import (
    ARGUMENTS,
    PREFIXES,
    RESULTS,
    generation_text,
    held_out,
    set_name,
    shown_name,
    split_sources,
    training_arguments,
)


TEMPLATE = Path(__file__).with_name("model_card_template.md")


class Task(NamedTuple):
    """A task on a card: its name, the Auto class of its models, the Hub's name for it, or None, and the key of its
    pipeline's output, or None without a pipeline."""

    name: str
    auto_class: str
    pipeline_tag: str | None
    output_key: str | None = None


SEQ2SEQ, CAUSAL, CLASSIFIER = "AutoModelForSeq2SeqLM", "AutoModelForCausalLM", "AutoModelForSequenceClassification"
TASKS = {
    "translation": Task("translation", SEQ2SEQ, "translation", f"{TranslationPipeline.return_name}_text"),
    "summarization": Task("summarization", SEQ2SEQ, "summarization", f"{SummarizationPipeline.return_name}_text"),
    "text-correction": Task(
        "grammatical error correction", SEQ2SEQ, None, f"{TextCorrectionPipeline.return_name}_text"
    ),
    "text-generation": Task("language modeling", CAUSAL, "text-generation"),
    "text-classification": Task("text classification", CLASSIFIER, "text-classification", "label"),
}


class Metric(NamedTuple):
    """A metric on a card: its name, the Hub's identifier (None: not in the metadata), decimals, and the value of a run
    that names its convention."""

    name: str
    identifier: str | None
    digits: int = 2
    convention: str | None = None


# By their names in `all_results.json`, without the prefix of the split.
METRICS = {
    "bleu": Metric("BLEU", "sacrebleu", convention="bleu_signature"),
    "tokenized_bleu": Metric("BLEU, tokenized", "bleu", convention="tokenized_bleu_signature"),
    "compound_split_bleu": Metric("BLEU, compounds split", "bleu", convention="compound_split_bleu_signature"),
    "chrf": Metric("chrF", "chrf", convention="chrf_signature"),
    "rouge1": Metric("ROUGE-1", "rouge", convention="rouge_convention"),
    "rouge2": Metric("ROUGE-2", "rouge", convention="rouge_convention"),
    "rougeLsum": Metric("ROUGE-L", "rouge", convention="rouge_convention"),
    "m2_precision": Metric("M2 precision", "m2", 4),
    "m2_recall": Metric("M2 recall", "m2", 4),
    "m2_f0.5": Metric("M2 F0.5", "m2", 4),
    "errant_precision": Metric("ERRANT precision", "errant", 4),
    "errant_recall": Metric("ERRANT recall", "errant", 4),
    "errant_f0.5": Metric("ERRANT F0.5", "errant", 4),
    "gleu": Metric("GLEU", "gleu"),
    "perplexity": Metric("perplexity", "perplexity", convention="perplexity_convention"),
    "bits_per_byte": Metric("bits per byte", None, 4, convention="bits_per_byte_convention"),
    "accuracy": Metric("accuracy, percent", "accuracy"),
    "function_evaluations": Metric("function evaluations, mean of the examples", None, 1),
}

CONFIG_FIELDS = (
    *(
        f"{stack}_{field}"
        for stack in ("encoder", "decoder")
        for field in ("solver", "coefficients", "layers", "attention_heads", "ffn_dim")
    ),
    *("d_model", "coefficient_sharing", "vector_field", "stage_values", "steps_per_layer", "stack_repeats"),
    *("layer_history", "max_relative_position", "normalize_stages", "vocab_size"),
    "tie_word_embeddings",
    *("recurrence_encoder", "recurrence_layers", "recurrence_steps", "recurrence_integration"),
    "recurrence_decoder_layers",
    *("decoder_vocab_size", "dropout", "attention_dropout", "activation_dropout", "word_dropout"),
)
CSA_ODE_CONFIG_FIELDS = (
    *("num_sentences", "embedding_size", "hidden_size", "ngram_size", "attention_output_projection"),
    *("vocab_size", "dropout"),
)
INTEGRATED_CONFIG_FIELDS = (
    *("hidden_size", "d_model", "intermediate_size", "num_hidden_layers", "encoder_layers", "decoder_layers"),
    *("num_attention_heads", "num_key_value_heads", "vocab_size", "tie_word_embeddings"),
)
# The options of data that a card shows.
DATA_FIELDS = ("max_source_length", "max_target_length", "max_length", "train_weights", "train_tags")
# A dataset of the Hub, and its configuration.
HUB_DATASET = re.compile(r"([\w.-]+/[\w.-]+)(?: \(([\w.-]+)\))?")


class Kind(NamedTuple):
    """A kind of models on cards: the class of their configurations, a tag, and a function from a model to the record's
    entries about it. The template has its text, in macros of the kind's name."""

    config_class: type
    tag: str
    facts: Callable[[PreTrainedModel], dict]


def config_values(config: PreTrainedConfig, fields: tuple[str, ...]) -> dict:
    values = config.to_dict()
    return {name: values[name] for name in fields if values.get(name) is not None}


def ode_transformer_facts(model: PreTrainedModel) -> dict:
    return {
        "function_evaluations": model.num_function_evaluations(per_layer=True),
        "config": config_values(model.config, CONFIG_FIELDS),
    }


def csa_ode_facts(model: PreTrainedModel) -> dict:
    config = model.config
    fields = ("solver", *config.solver_fields, *CSA_ODE_CONFIG_FIELDS)
    return {
        "parameters_without_embeddings": model.num_parameters() - model.get_input_embeddings().weight.numel(),
        "function_evaluations": config.num_function_evaluations,
        "labels": list(config.id2label.values()),
        "config": config_values(config, fields),
    }


def integrated_facts(model: PreTrainedModel) -> dict:
    return {
        "function_evaluations": num_function_evaluations(model),
        "backbone": type(model).__name__.removeprefix("Ode"),
        "config": model.config.ode | config_values(model.config, INTEGRATED_CONFIG_FIELDS),
    }


KINDS = {
    "ode_transformer": Kind(OdeTransformerDecoderConfig, "ode-transformer", ode_transformer_facts),
    "csa_ode": Kind(CsaOdeConfig, "csaode", csa_ode_facts),
    "integrated": Kind(DepthConfig, "ode-transformer", integrated_facts),
}


def kind_of(config: PreTrainedConfig) -> str:
    """The name in `KINDS` of models with a configuration.

    Raises:
        ValueError: they are not models of this package.
    """
    for name, kind in KINDS.items():
        if isinstance(config, kind.config_class):
            return name
    raise ValueError(
        f"A model of type {config.model_type!r} is not one of this package: publish it with model.push_to_hub."
    )


def run_record(output_dir: str | Path, task: str | None = None) -> dict:
    """Collects everything that a model card says about the run in a folder.

    Args:
        output_dir: Folder of a saved model, with the scripts' `arguments.json`, `all_results.json` and
            `trainer_state.json`, if they exist.
        task: One of `TASKS`; None: the task in `arguments.json`.

    Returns:
        A mapping of plain values: task, model (parameters; evaluations of F, by layer or for a sentence; the
        configuration), data and metrics by split, training, generation, versions and date.

    Raises:
        OSError: the folder has no configuration.
        ValueError: the task is neither given nor recorded, is unknown, or does not suit the model; or the model is
            not one of this package's.
    """
    folder = Path(output_dir)
    config = open_config(folder)
    arguments, results, state = (
        read_json(folder / name) if (folder / name).is_file() else {} for name in (ARGUMENTS, RESULTS, TRAINER_STATE)
    )
    task = task or arguments.get("task")
    if task not in TASKS:
        raise ValueError(f"The task of {folder} is {task or 'unknown'}: give one of {', '.join(TASKS)} (--task).")
    kind, auto_class = kind_of(config), getattr(transformers, TASKS[task].auto_class)
    with torch.device("meta"):
        model = auto_class.from_config(config)
    if config.architectures != [type(model).__name__]:
        raise ValueError(f"{folder} holds {config.architectures}, whose task cannot be {task!r} (--task).")
    told, data, training = (arguments.get(name, {}) for name in ("model", "data", "training"))
    folders, evaluated = arguments.get("folders"), arguments.get("evaluated", {})
    # A split may be evaluated later.
    data_of = {split: evaluated.get(split, data | {"folders": folders}) for split in ("train", *PREFIXES)}
    start, teacher = told.get("model_name_or_path"), told.get("teacher")
    takes_best = training.get("load_best_model_at_end") and not data.get("average_last_checkpoints")
    parts = held_out(data_of["validation"], "validation") | held_out(data_of["test"], "test")
    record = {
        "task": task,
        "model": {
            "class": type(model).__name__,
            "kind": kind,
            "parameters": model.num_parameters(),
            **KINDS[kind].facts(model),
        },
        "data": {},
        "training": {
            "started_from": start and shown_name(start, folders),
            "teacher": teacher and shown_name(teacher, folders),
            # Unknown if the model started from another one.
            "pretrained_word_vectors": Path(told["word_vectors"] or "none").name
            if "word_vectors" in told and not start
            else None,
            **parts,
            "split_seed": data.get("split_seed") if parts else None,
            "validation_share": data.get("validation_share"),
            **{name: data.get(name) for name in DATA_FIELDS},
            "updates": state.get("global_step"),
            "weights_of_update": state.get("best_global_step") if takes_best else None,
            "epochs": round(state["epoch"], 2) if state.get("epoch") else None,
            "processes": arguments.get("processes"),
            "averaged_checkpoints": data.get("average_last_checkpoints") or None,
            "arguments": training_arguments(training),
        },
        "metrics": {},
        "versions": arguments.get("versions"),
        "date": arguments.get("date"),
    }
    prefixes = {"train": "train"} | PREFIXES
    for split, prefix in PREFIXES.items():
        # Those of the sets of a split, eval_NAME.
        sets = (re.fullmatch(rf"{prefix}_(.+)_samples", name) for name in results)
        prefixes |= {f"{split}_{each[1]}": f"{prefix}_{each[1]}" for each in sets if each}
    for split, prefix in prefixes.items():
        whole, _, name = split.partition("_")
        if f"{prefix}_samples" in results:
            sources = split_sources(data_of[whole], whole)
            sources = [each for each in sources if not name or set_name(each) == name]
            record["data"][split] = {"source": sources, "examples": results[f"{prefix}_samples"]}
        shown = {name for metric in METRICS for name in (metric, METRICS[metric].convention)}
        found = {name: value for name in shown if (value := results.get(f"{prefix}_{name}")) is not None}
        if whole in PREFIXES and found:
            record["metrics"][split] = dict(sorted(found.items()))
    if TASKS[task].output_key and (folder / "generation_config.json").is_file():
        saved = generation_text(GenerationConfig.from_pretrained(folder))
        record["generation"] = {
            split: results.get(f"{prefixes[split]}_generation", saved) for split in record["metrics"]
        }
    record["training"] = {name: value for name, value in record["training"].items() if value not in (None, {})}
    return {name: value for name, value in record.items() if value not in (None, {})}


def dataset_name(record: dict, split: str) -> str:
    """The source of a run's split: as given for the card, otherwise the names of its files or dataset."""
    return record["card"].get("dataset") or ", ".join(record.get("data", {}).get(split, {}).get("source", []))


def dataset_type(name: str) -> str:
    """The Hub's identifier of a dataset, or one made from its name."""
    found = HUB_DATASET.fullmatch(name)
    return found[1] if found else re.sub(r"\W+", "_", name.lower()).strip("_")


def eval_results(record: dict) -> list[EvalResult]:
    """The metrics of a record in the form of the Hub's model-index."""
    task = TASKS[record["task"]]
    datasets = {split: dataset_name(record, split) or "unknown" for split in record["metrics"]}
    return [
        EvalResult(
            task_type=task.pipeline_tag or record["task"],
            task_name=task.name,
            dataset_type=dataset_type(datasets[split]),
            dataset_name=datasets[split],
            dataset_config=found[2] if (found := HUB_DATASET.fullmatch(datasets[split])) else None,
            dataset_split=split,
            metric_type=metric.identifier,
            metric_name=metric.name,
            metric_value=round(values[name], metric.digits),
            metric_args={"convention": values[metric.convention]} if values.get(metric.convention) else None,
        )
        for split, values in record["metrics"].items()
        for name, metric in METRICS.items()
        if name in values and metric.identifier
    ]


def cell(value: object) -> str:
    """A value as the text of a table cell; bars are escaped by a backslash, also within code."""
    return " ".join(str(value).split()).replace("|", "\\|")


def model_card(record: dict) -> ModelCard:
    """The card of a model.

    Args:
        record: The result of `run_record`, with `card`, which holds what the run cannot know: repo_id, the name of the
            repository, and optionally any of `cli.CARD_VALUES` (language is a list).

    Returns:
        The card; `card.content` is the text of README.md, `card.data` its metadata.

    Raises:
        KeyError: the record lacks something that every card needs.
    """
    card, task = record["card"], TASKS[record["task"]]
    kind, config = record["model"]["kind"], record["model"]["config"]
    fields = [field for field in ("encoder_solver", "decoder_solver") if field in config]
    schemes = [resolve_scheme(config[field]) for field in fields]
    dataset = dataset_name(record, "train")
    splits = list(record.get("metrics", {}).values())
    identifiers = {METRICS[name].identifier for values in splits for name in values if name in METRICS} - {None}
    metadata = ModelCardData(
        model_name=card["repo_id"].split("/")[-1] if record.get("metrics") else None,
        language=card.get("language"),
        license=card.get("license"),
        library_name="transformers",
        pipeline_tag=task.pipeline_tag,
        tags=[KINDS[kind].tag, task.name.replace(" ", "-")],
        datasets=[dataset_type(dataset)] if HUB_DATASET.fullmatch(dataset) else None,
        metrics=sorted(identifiers) or None,
        eval_results=eval_results(record) if record.get("metrics") else None,
    )
    rows = []
    for name, metric in METRICS.items():
        if any(name in values for values in splits):
            conventions = {f"`{cell(values[metric.convention])}`" for values in splits if metric.convention in values}
            scores = [f"{values[name]:.{metric.digits}f}" if name in values else "" for values in splits]
            rows.append([metric.name, *scores, ", ".join(sorted(conventions))])
    return ModelCard.from_template(
        metadata,
        template_path=TEMPLATE,
        record=record,
        card=card,
        task=task,
        kind=kind,
        dataset=dataset,
        metric_rows=rows,
        cell=cell,
        is_multistep=any(scheme.multistep is not None for scheme in schemes),
        is_runge_kutta=any(tableau.is_runge_kutta and tableau.num_stages > 1 for tableau, *_ in schemes),
    )
