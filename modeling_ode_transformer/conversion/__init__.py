# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Converters: fairseq checkpoints of the original, and residual models of transformers in both directions."""
