# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The public names. Importing this module registers them with transformers' Auto classes."""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from . import depth
from .configuration_csa_ode import CsaOdeConfig
from .configuration_ode_transformer import OdeTransformerConfig, OdeTransformerDecoderConfig
from .configuration_recurrence_ode_transformer import OdeTransformerRecurrenceConfig
from .conversion.fairseq import convert_fairseq_state_dict
from .generation_ode_transformer import SourceLengthLogitsProcessor
from .inference.ensemble import EnsembleForConditionalGeneration
from .integration_ode_transformer import ButcherTableau
from .modeling_csa_ode import CsaOdeForSequenceClassification, CsaOdeModel, CsaOdePreTrainedModel
from .modeling_ode_transformer import (
    OdeTransformerForCausalLM,
    OdeTransformerForConditionalGeneration,
    OdeTransformerModel,
    OdeTransformerPreTrainedModel,
)
from .modeling_recurrence_ode_transformer import (
    OdeTransformerRecurrenceForConditionalGeneration,
    OdeTransformerRecurrenceModel,
    OdeTransformerRecurrencePreTrainedModel,
)
from .pipeline_ode_transformer import SummarizationPipeline, TextCorrectionPipeline, TranslationPipeline
from .texts_ode_transformer import n_best
from .tokenization_fairseq_ode_transformer import FairseqTokenizer
from .tokenization_ode_transformer import OdeTransformerTokenizer


__all__ = [
    "ButcherTableau",
    "CsaOdeConfig",
    "CsaOdeForSequenceClassification",
    "CsaOdeModel",
    "CsaOdePreTrainedModel",
    "EnsembleForConditionalGeneration",
    "FairseqTokenizer",
    "OdeTransformerConfig",
    "OdeTransformerDecoderConfig",
    "OdeTransformerForCausalLM",
    "OdeTransformerForConditionalGeneration",
    "OdeTransformerModel",
    "OdeTransformerPreTrainedModel",
    "OdeTransformerRecurrenceConfig",
    "OdeTransformerRecurrenceForConditionalGeneration",
    "OdeTransformerRecurrenceModel",
    "OdeTransformerRecurrencePreTrainedModel",
    "OdeTransformerTokenizer",
    "SourceLengthLogitsProcessor",
    "SummarizationPipeline",
    "TextCorrectionPipeline",
    "TranslationPipeline",
    "convert_fairseq_state_dict",
    "depth",
    "n_best",
]

for config_class in (OdeTransformerConfig, OdeTransformerDecoderConfig, OdeTransformerRecurrenceConfig, CsaOdeConfig):
    AutoConfig.register(config_class.model_type, config_class, exist_ok=True)
    config_class.register_for_auto_class()
for auto_class, model_class in (
    (AutoModel, OdeTransformerModel),
    (AutoModelForSeq2SeqLM, OdeTransformerForConditionalGeneration),
    (AutoModelForCausalLM, OdeTransformerForCausalLM),
    (AutoModel, OdeTransformerRecurrenceModel),
    (AutoModelForSeq2SeqLM, OdeTransformerRecurrenceForConditionalGeneration),
    (AutoModel, CsaOdeModel),
    (AutoModelForSequenceClassification, CsaOdeForSequenceClassification),
):
    auto_class.register(model_class.config_class, model_class, exist_ok=True)
    model_class.register_for_auto_class(auto_class.__name__)
# The last one is the default. A saved `OdeTransformerTokenizer` needs no code of this package.
for config_class in (OdeTransformerConfig, OdeTransformerDecoderConfig, OdeTransformerRecurrenceConfig):
    for tokenizer_class in (FairseqTokenizer, OdeTransformerTokenizer):
        AutoTokenizer.register(config_class, tokenizer_class=tokenizer_class, exist_ok=True)
FairseqTokenizer.register_for_auto_class()
