# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Generation with trained models: faster kernels, ensembles, files and a server."""
