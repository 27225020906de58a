# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The package's metrics for the library `evaluate`, by their names:

from modeling_ode_transformer.metrics import evaluate_metrics

metric = evaluate.load(evaluate_metrics.__file__, "gleu")
metric.compute(predictions=corrections, references=references, sources=sources)
"""

import datasets
import evaluate

from modeling_ode_transformer.metrics.bleu import bleu
from modeling_ode_transformer.metrics.gleu import gleu
from modeling_ode_transformer.metrics.rouge import rouge


FUNCTIONS = {"bleu": bleu, "rouge": rouge, "gleu": gleu}


class TextMetric(evaluate.Metric):
    """One of `FUNCTIONS`. `compute` takes predictions, references (a text or a list of texts for each), sources for
    GLEU, and the function's options."""

    def _info(self):
        text = datasets.Value("string")
        further = {"sources": text} if self.config_name == "gleu" else {}
        features = [
            datasets.Features({"predictions": text, "references": references} | further)
            for references in (text, datasets.Sequence(text))
        ]
        return evaluate.MetricInfo(
            description=FUNCTIONS[self.config_name].__doc__,
            citation="",
            inputs_description=type(self).__doc__,
            features=features,
        )

    def _compute(self, predictions, references, **options):
        return FUNCTIONS[self.config_name](predictions, references, **options)
