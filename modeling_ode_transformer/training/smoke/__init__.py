# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""What a run with `--smoke` takes: tiny sizes, and generated examples where the command line names no data."""

from pathlib import Path


# The values that --smoke lays over a recipe.
SMOKE_VALUES = Path(__file__).with_name("smoke.json")
LANGUAGE_MODEL_VALUES = Path(__file__).with_name("smoke_language_model.json")
CLASSIFICATION_VALUES = Path(__file__).with_name("smoke_classification.json")
# How many examples are generated.
SIZES = {"train": 300, "validation": 20, "test": 20}
