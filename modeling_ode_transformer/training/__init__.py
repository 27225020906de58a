# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Training: one run loop for all tasks (`run`, `tasks`), trainers with batches by tokens, resumption and averages."""
