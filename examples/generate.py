# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The command `ode-transformer generate` as a script."""

import sys

from modeling_ode_transformer.cli import main


if __name__ == "__main__":
    main(["generate", *sys.argv[1:]])
