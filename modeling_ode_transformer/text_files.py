# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Text files with one text per line, JSON files (UTF-8, gzipped or not), folders to write, locks, and options written
as text."""

import gzip
import json
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any, TextIO, cast


@contextmanager
def open_text(path: str | Path) -> Iterator[TextIO]:
    """Opens a UTF-8 file, gzipped if its name ends in `.gz`, or the standard input ("-"); only "\\n" ends a line.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: the contents are not UTF-8, or not gzipped although the name ends in `.gz`.
    """
    if str(path) != "-" and (Path(path).is_dir() or not Path(path).exists()):  # a pipe is not a regular file
        raise FileNotFoundError(f"No file {path} (looked in {Path(path).parent.resolve()}).")
    try:
        # utf-8-sig drops a byte order mark.
        if str(path) == "-":
            path = "Standard input"
            cast(Any, sys.stdin).reconfigure(encoding="utf-8-sig", newline="\n")
            yield sys.stdin
            return
        with (gzip.open if Path(path).suffix == ".gz" else open)(
            path, "rt", encoding="utf-8-sig", newline="\n"
        ) as file:
            yield file
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error}): convert it first.") from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is not a complete gzip file ({error}).") from error


def iterate_lines(path: str | Path) -> Iterator[str]:
    """Yields the lines of a text file without their ends."""
    with open_text(path) as file:
        for line in file:
            yield line.rstrip("\r\n")


def read_lines(path: str | Path) -> list[str]:
    """Returns the lines of a text file without their ends."""
    return list(iterate_lines(path))


def iterate_aligned_lines(paths: Sequence[str | Path]) -> Iterator[tuple[Any, ...]]:
    """Yields the lines of several files that belong together line by line; ValueError at the end of the shortest file
    if another has more lines."""
    files = [iterate_lines(path) for path in paths]
    for number, lines in enumerate(zip_longest(*files)):
        if None in lines:
            counts = [number + (line is not None) + sum(1 for _ in file) for file, line in zip(files, lines)]
            path, count = next((path, count) for path, count in zip(paths, counts) if count != counts[0])
            raise ValueError(
                f"{paths[0]} has {counts[0]} lines, but {path} has {count}: they must match line by line."
            )
        yield lines


def read_aligned_lines(paths: Sequence[str | Path]) -> list[list[str]]:
    """Returns the lines of several files that belong together line by line; ValueError if their numbers differ."""
    lines = list(iterate_aligned_lines(paths))
    return [list(column) for column in zip(*lines)] or [[] for _ in paths]


def check_empty_folder(path: str | Path) -> None:
    """Raises a ValueError unless the folder to write is empty or does not exist."""
    path = Path(path)
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise ValueError(f"--output_dir {path} is not an empty folder: choose another one.")


@contextmanager
def lock_file(path: str | Path, refusal: str) -> Iterator[None]:
    """Within the context, no other process can lock the same file, which need not exist before and is removed after.
    The lock ends with the process, however that ends.

    Raises:
        ValueError: another process has locked it; `refusal` is the message.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path, timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise ValueError(refusal) from error
    try:
        yield
    finally:
        # Removed while locked: a process that has it open sees that its name is gone. Windows removes it later.
        with suppress(PermissionError):
            Path(path).unlink(missing_ok=True)
        lock.release()


def parse_json(text: str, name: str, **options) -> Any:
    """The value of a JSON text, with options of `json.loads`; a ValueError that names the text if it is not JSON, or
    nested too deeply or with an integer too long for Python."""
    try:
        return json.loads(text, **options)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} is not JSON ({error}).") from error


def read_json(path: str | Path) -> dict:
    """The object in a JSON file; a ValueError names the file if it holds something else."""
    with open_text(path) as file:
        values = parse_json(file.read(), str(path))
    if not isinstance(values, dict):
        raise ValueError(f"{path} holds a {type(values).__name__}, not a JSON object.")
    return values


@contextmanager
def reading(name: str | Path) -> Iterator[None]:
    """Within the context, files of others are read: a ValueError names them if a value is missing or of another
    type."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(f"{name} is damaged: a value is missing or of another type ({error}).") from error


def parse_overrides(text: str | dict | None) -> dict:
    """`{"d_model": 256, "encoder_solver": "rk4"}` from that mapping, its JSON, or "d_model=256,encoder_solver=rk4"."""
    if not text or isinstance(text, dict):
        return dict(text or {})
    if text.lstrip().startswith("{"):
        return parse_json(text, repr(text[:80]))
    overrides = {}
    for item in text.split(","):
        name, equals, value = item.partition("=")
        if not equals:
            raise ValueError(f"Cannot read {item!r} in {text!r}: write name=value,name=value or a JSON object.")
        try:
            overrides[name.strip()] = parse_json(value, name, parse_constant=str)
        except ValueError:
            value = value.strip()
            words = {"None": None, "True": True, "False": False, "TRUE": True, "FALSE": False}
            overrides[name.strip()] = words.get(value, value)
    return overrides
