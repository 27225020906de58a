# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Errors that a user can fix end a command with one line instead of a traceback."""

import errno
import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, requires
from typing import Any


logger = logging.getLogger(__name__)

# A full disk, a quota that is used up, a file that may not grow: by number, and in the words of Rust and torch.
FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FULL_DISK_TEXTS = (
    *(text for number in FULL_DISK for text in (os.strerror(number), f"os error {number}")),
    *("unexpected pos", "iostream error", "file write failed"),
)
# Packages whose names differ from their modules'.
MODULES_OF = {"google": "protobuf"}


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Within the context, errors in arguments and files end the process with one line and exit code 2, and Ctrl-C with
    exit code 130. The traceback is logged for debugging (`--log_level debug` of the training scripts)."""
    try:
        yield
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        if (message := message_of(error)) is None:
            raise
        logger.debug("Traceback of the error", exc_info=True)
        print(f"error: {message}", file=sys.stderr)
        sys.exit(2)


def message_of(error: Exception) -> str | None:
    """Returns the message for an error in arguments or files; None if the error is a defect."""
    chain: list[Any] = [error]
    while (before := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(before)
    for each in chain:
        if getattr(each, "errno", None) in FULL_DISK or any(text in str(each) for text in FULL_DISK_TEXTS):
            path = getattr(each, "filename2", None) or getattr(each, "filename", None)
            return (
                f"The disk or its quota is full{f' ({path})' if path else ''}: make room and repeat the command. "
                "train and generate continue where they stopped; for others, first remove what they have begun to "
                "write."
            )
    for each in chain:
        if isinstance(each, ModuleNotFoundError) and (extra := extra_of(each.name or "")):
            return f'{each.name.partition(".")[0]} is not installed: pip install "modeling-ode-transformer[{extra}]"'
    if any(cls.__name__ == "StrictDataclassError" for cls in type(error).__mro__):
        return str(error.__cause__ or error)
    return str(error) if isinstance(error, (ValueError, OSError, ImportError)) else None


def extra_of(module: str) -> str | None:
    """Returns the extra that installs a module, from the package's metadata; None if none does."""
    name = MODULES_OF.get(module.partition(".")[0], module.partition(".")[0]).replace("_", "-")
    try:
        requirements = requires("modeling-ode-transformer") or []
    except PackageNotFoundError:
        return None
    for requirement in requirements:
        package, _, marker = requirement.partition(";")
        if re.match(r"[\w.-]*", package)[0] == name and (extra := re.search(r"extra == .(\w+)", marker)):
            return extra[1]
    return None
