# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Converters: fairseq checkpoints of the original, and residual models of transformers in both directions."""

from pathlib import Path


def check_empty_folder(path: str | Path) -> None:
    """Raises a ValueError unless the folder to write is empty or does not exist."""
    path = Path(path)
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise ValueError(f"--output_dir {path} is not an empty folder: choose another one.")
