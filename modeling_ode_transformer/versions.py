# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The versions that numbers depend on."""

import platform

import tokenizers
import torch
import transformers

import modeling_ode_transformer


PACKAGES = (torch, transformers, tokenizers, modeling_ode_transformer)


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that a model's numbers depend on."""
    return {"Python": platform.python_version()} | {package.__name__: str(package.__version__) for package in PACKAGES}
