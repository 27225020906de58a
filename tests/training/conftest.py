# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Generated pairs, and a translation model trained on them."""

import number_names
import pytest
import run_translation

from .runs import SIZES, arguments


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    number_names.write_corpus(folder, SIZES)
    return folder


@pytest.fixture(scope="session")
def run(corpus, tmp_path_factory):
    """Output folder and metrics of a run that trains, evaluates and predicts."""
    output_dir = tmp_path_factory.mktemp("run") / "output"
    options = {"do_eval": True, "do_predict": True, "max_steps": 100, "bleu_tokenize": "char"}
    metrics = run_translation.main(arguments(corpus, output_dir, **options))
    return output_dir, metrics
