# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Schemes, coefficients and layer histories from a user's file: `--import my_scheme.py`."""

import sys
from hashlib import blake2b
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from .integration_ode_transformer import OWN_ENTRIES, TABLES


# Hashes of the code of imported files, by their names.
IMPORTED: dict[str, str] = {}


def import_schemes(path: str | Path) -> ModuleType:
    """Runs a file that adds entries to `SCHEMES`, `COEFFICIENTS` or `HISTORIES`. Configurations know their names from
    then on. A model saved with one of them names the file: opening the model needs it.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: it fails, adds no entry or replaces one, or another file of its name is imported.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"--import {path}: no such file.")
    # Not the file's own name: a package of that name stays within reach.
    name, code = f"{__name__}.{path.stem}", blake2b(path.read_bytes(), digest_size=16).hexdigest()
    if path.name in IMPORTED:
        if IMPORTED[path.name] == code:
            return sys.modules[name]
        raise ValueError(f"--import {path}: another file with this name is already imported: rename one of them.")
    before = {table: dict(entries) for table, entries in TABLES.items()}
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"--import {path}: name a Python file, such as my_scheme.py.")
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        added = added_entries(before, path)
    except Exception as error:
        del sys.modules[name]
        for table, entries in before.items():
            TABLES[table].clear()
            TABLES[table].update(entries)
        raise ValueError(f"--import {path} fails: {type(error).__name__}: {error}") from error
    IMPORTED[path.name] = code
    OWN_ENTRIES.update(dict.fromkeys(added, path.name))
    return module


def added_entries(before: dict[str, dict], path: Path) -> set[str]:
    """Returns the names added to the tables; ValueError if there are none, or an entry was replaced."""
    for table, entries in before.items():
        if changed := [name for name, value in entries.items() if TABLES[table].get(name) is not value]:
            raise ValueError(f"it changes {table}[{changed[0]!r}]: choose another name.")
    added = {name for table, entries in TABLES.items() for name in entries.keys() - before[table].keys()}
    if not added:
        raise ValueError(f"it adds no entry to {', '.join(TABLES)}.")
    return added
