# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The metrics of the papers' tables, each as functions and for `ode-transformer score`.

ode-transformer score bleu --references test.de --hypotheses output.de
"""
