# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Repositories of the Hub made of training runs, and their model cards."""
