# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Schemes, coefficients and layer histories from a user's file: `--import my_scheme.py`."""

import sys
from hashlib import blake2b
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from .integration_ode_transformer import COEFFICIENTS, HISTORIES, SCHEMES


TABLES: dict[str, dict[str, Any]] = {"SCHEMES": SCHEMES, "COEFFICIENTS": COEFFICIENTS, "HISTORIES": HISTORIES}
# Hashes of the code of imported files, by their names.
IMPORTED: dict[str, str] = {}


def import_schemes(path: str | Path) -> ModuleType:
    """Runs a file that adds entries to `SCHEMES`, `COEFFICIENTS` or `HISTORIES`. Configurations know their names from
    then on. A model saved with one of them names the file: opening the model needs it.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: it adds no entry or replaces one, or another file of its name is imported.
    """
    path = Path(path)
    # Not the file's own name: a package of that name stays within reach.
    name, code = f"{__name__}.{path.stem}", blake2b(path.read_bytes(), digest_size=16).hexdigest()
    if IMPORTED.get(path.name) == code:
        return sys.modules[name]
    if path.name in IMPORTED:
        raise ValueError(f"--import {path}: another file with this name is already imported: rename one of them.")
    before = {table: dict(entries) for table, entries in TABLES.items()}
    module = sys.modules[name] = ModuleType(name)
    module.__file__ = str(path)
    SourceFileLoader(name, str(path)).exec_module(module)
    for table, entries in before.items():
        if changed := [name for name, value in entries.items() if TABLES[table].get(name) is not value]:
            raise ValueError(f"--import {path} changes {table}[{changed[0]!r}]: choose another name.")
    if before == TABLES:
        raise ValueError(f"--import {path} adds no entry to {', '.join(TABLES)}.")
    IMPORTED[path.name] = code
    return module
