# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""ODE Transformer (ACL 2022) for Hugging Face Transformers. Importing the package makes the Auto classes know it."""

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING


__version__ = "0.1.0"

# Everywhere but in a process of the command `ode-transformer`, importing the package imports the models and registers
# them. The command must show its help without torch, so there `cli` does so, once the arguments are read. While Python
# looks for the module of `python -m`, `sys.argv[0]` is "-m".
is_command = Path(*sys.argv[:1]).stem == "ode-transformer" or (sys.argv[:1] == ["-m"] and __name__ in sys.orig_argv)
if TYPE_CHECKING or not is_command:
    from .registration import *  # noqa: F403
    from .registration import __all__ as __all__


def __getattr__(name: str):
    """The public names, in a process of the command."""
    if is_command and name in (registration := import_module(".registration", __name__)).__all__:
        return getattr(registration, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
