# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""`python -m modeling_ode_transformer` is the command `ode-transformer`."""

from .cli import main


if __name__ == "__main__":
    main()
