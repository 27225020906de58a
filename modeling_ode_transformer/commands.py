# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""What the commands of this package, `python -m modeling_ode_transformer...`, have in common."""

import sys
from collections.abc import Callable


def run_command(main: Callable[[], object], *errors: type[Exception]) -> None:
    """Runs a command. What is wrong with its arguments and files, which its `main` raises as ValueError, OSError,
    ImportError or one of `errors`, is printed without a traceback; the process then ends with argparse's status, 2."""
    try:
        main()
    except (ValueError, OSError, ImportError, *errors) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
