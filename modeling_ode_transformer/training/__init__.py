# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Training of sequence-to-sequence models: batches by tokens, exact resumption, averages of checkpoints."""
