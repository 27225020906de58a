# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Schemes, coefficients and layer histories from a user's file, `--import my_scheme.py`, which saved models bring
along."""

import ast
import re
import sys
from importlib.util import module_from_spec, spec_from_loader
from itertools import accumulate
from pathlib import Path
from types import ModuleType

from .integration_ode_transformer import OWN_CODE, TABLES


# The file's import of the package's module, here and beside a saved model.
HOME, NEIGHBOUR = "modeling_ode_transformer.integration_ode_transformer", ".integration_ode_transformer"
# Packages that exist wherever a saved model opens, beside the standard library.
PACKAGES = {"torch", "transformers", "numpy"}


def import_schemes(path: str | Path) -> ModuleType:
    """Runs a file that adds entries to `TABLEAUS`, `CORRECTORS`, `MULTISTEPS`, `COEFFICIENTS` or `HISTORIES`.
    Configurations know their names from then on. A model saved with one of them has a copy of the file beside it,
    which imports the package's module from there.

    Args:
        path: The file. It may import the standard library, torch, transformers, NumPy and, by `from ... import`,
            `modeling_ode_transformer.integration_ode_transformer`: a saved model opens without the package.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: its name or imports do not let it travel with a model; it adds no entry, or replaces one; or it
            fails.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"--import {path}: no such file.")
    name, taken = path.stem, {file.stem for file in Path(__file__).parent.glob("*.py")}
    if path.suffix != ".py" or not name.isidentifier() or name in sys.stdlib_module_names | taken | PACKAGES:
        raise ValueError(
            f"--import {path}: the file is saved with models, so it needs its own module name, such as my_scheme.py."
        )
    try:
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
    except (SyntaxError, UnicodeDecodeError) as error:
        raise ValueError(f"--import {path} is not Python: {error}.") from error
    check_imports(tree, path)
    travelling = importing_from(NEIGHBOUR, source, tree)
    # Not the file's name: a package of that name stays within reach.
    module_name = f"{__name__}.{name}"
    if name in OWN_CODE:
        if OWN_CODE[name][1] == travelling:
            return sys.modules[module_name]
        raise ValueError(f"--import {path}: another file with this name is already imported: rename one of them.")

    before = {table: dict(entries) for table, entries in TABLES.items()}
    module = module_from_spec(spec_from_loader(module_name, loader=None, origin=str(path)))
    module.__file__ = str(path)
    sys.modules[module_name] = module
    try:
        exec(compile(importing_from(HOME, source, tree), path, "exec"), module.__dict__)
        added = check_entries(before, path)
    except BaseException as error:
        del sys.modules[module_name]
        for table, entries in before.items():
            TABLES[table].clear()
            TABLES[table].update(entries)
        if not isinstance(error, Exception) or isinstance(error, ValueError):
            raise
        raise ValueError(f"--import {path} fails: {type(error).__name__}: {error}") from error
    OWN_CODE[name] = added, travelling
    return module


def is_home(node: ast.ImportFrom) -> bool:
    """Whether a statement imports from the package's module."""
    return "." * node.level + (node.module or "") in (HOME, NEIGHBOUR)


def importing_from(module: str, source: str, tree: ast.Module) -> str:
    """Returns the source with the imports from the package's module made from `module`."""
    code = source.encode()  # columns count bytes
    lines = [0, *accumulate(map(len, code.splitlines(keepends=True)))]
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and is_home(node)]
    for start in sorted((lines[node.lineno - 1] + node.col_offset for node in nodes), reverse=True):
        statement = re.sub(rb"\Afrom\b.*?\bimport\b", f"from {module} import".encode(), code[start:], flags=re.DOTALL)
        code = code[:start] + statement
    return code.decode()


def check_imports(tree: ast.Module, path: Path) -> None:
    """Raises a ValueError if the code imports a package that may be missing where a saved model opens."""
    known = sys.stdlib_module_names | PACKAGES
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            wrong = [alias.name for alias in node.names if alias.name.partition(".")[0] not in known]
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            wrong = [] if is_home(node) or module.partition(".")[0] in known else [module]
        else:
            continue
        if wrong:
            raise ValueError(
                f"--import {path}, line {node.lineno}: {wrong[0]} may be missing where a saved model is opened. "
                f"Import only the standard library, {', '.join(sorted(PACKAGES))} and, with `from ... import`, {HOME}."
            )


def check_entries(before: dict[str, dict], path: Path) -> frozenset[str]:
    """Returns the names added to the tables; ValueError if there are none, or an entry was replaced."""
    for table, entries in before.items():
        if changed := [name for name, value in entries.items() if TABLES[table].get(name) is not value]:
            raise ValueError(f"--import {path} changes {table}[{changed[0]!r}]: choose another name.")
    added = frozenset(name for table, entries in TABLES.items() for name in entries.keys() - before[table].keys())
    if not added:
        raise ValueError(f"--import {path} adds no entry to {', '.join(TABLES)}.")
    return added
