# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Errors that a user can fix end a command with one line instead of a traceback."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager


logger = logging.getLogger(__name__)


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
    if isinstance(error, ModuleNotFoundError):
        return f'{error}: install the extra that has it, such as "modeling-ode-transformer[train]", [gec] or [serve]'
    if any(cls.__name__ == "StrictDataclassError" for cls in type(error).__mro__):
        return str(error.__cause__ or error)
    # The last two, by name, are of a damaged file of weights and of the network.
    names = {cls.__name__ for cls in type(error).__mro__} & {"SafetensorError", "HTTPError"}
    return str(error) if names or isinstance(error, (ValueError, OSError, ImportError)) else None
