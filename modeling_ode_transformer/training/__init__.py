# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Training: one run loop for all tasks (`run`, `tasks`), trainers with batches by tokens, resumption and averages."""

from importlib import import_module
from typing import Any


# What `ode-transformer train` trains, by the names of the modules in `tasks`.
TASKS = {
    "translation": "a translation model on pairs of sentences",
    "summarization": "a summarization model on articles and their summaries",
    "correction": "a model that corrects grammatical errors, on sentences and their corrections",
    "language-model": "a word-level language model on running text",
    "classification": "a classifier of sentences or of pairs of sentences",
}


def find_task(name: str) -> Any:
    """The task of a name in `TASKS`: TRANSLATION of the module `tasks.translation`, say."""
    module = name.replace("-", "_")
    return getattr(import_module(f".tasks.{module}", __package__), module.upper())
