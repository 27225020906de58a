# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Training: a run loop for all tasks (`run`, `tasks`), trainers with batches by tokens, exact resumption, averages."""
