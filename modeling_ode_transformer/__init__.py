# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""ODE Transformer (ACL 2022) for Hugging Face Transformers. Importing the package makes the Auto classes know it."""

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

from .configuration_ode_transformer import OdeTransformerConfig
from .ensemble import EnsembleForConditionalGeneration
from .generation_ode_transformer import SourceLengthLogitsProcessor, n_best
from .integration_ode_transformer import ButcherTableau
from .modeling_ode_transformer import (
    OdeTransformerForCausalLM,
    OdeTransformerForConditionalGeneration,
    OdeTransformerModel,
    OdeTransformerPreTrainedModel,
)
from .pipeline_ode_transformer import SummarizationPipeline, TextCorrectionPipeline, TranslationPipeline
from .tokenization_fairseq_ode_transformer import FairseqTokenizer
from .tokenization_ode_transformer import OdeTransformerTokenizer


__version__ = "0.1.0.dev0"

AutoConfig.register(OdeTransformerConfig.model_type, OdeTransformerConfig, exist_ok=True)
OdeTransformerConfig.register_for_auto_class()
for auto_class, model_class in (
    (AutoModel, OdeTransformerModel),
    (AutoModelForSeq2SeqLM, OdeTransformerForConditionalGeneration),
    (AutoModelForCausalLM, OdeTransformerForCausalLM),
):
    auto_class.register(OdeTransformerConfig, model_class, exist_ok=True)
    model_class.register_for_auto_class(auto_class.__name__)
# The last one is the default. A saved `OdeTransformerTokenizer` needs no code of this package.
for tokenizer_class in (FairseqTokenizer, OdeTransformerTokenizer):
    AutoTokenizer.register(OdeTransformerConfig, tokenizer_class=tokenizer_class, exist_ok=True)
FairseqTokenizer.register_for_auto_class()


def __getattr__(name: str):
    # Imported here, the command `python -m modeling_ode_transformer.convert_fairseq_checkpoint` would be run twice.
    if name == "convert_fairseq_state_dict":
        from .convert_fairseq_checkpoint import convert_fairseq_state_dict

        return convert_fairseq_state_dict
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "ButcherTableau",
    "EnsembleForConditionalGeneration",
    "FairseqTokenizer",
    "OdeTransformerConfig",
    "OdeTransformerForCausalLM",
    "OdeTransformerForConditionalGeneration",
    "OdeTransformerModel",
    "OdeTransformerPreTrainedModel",
    "OdeTransformerTokenizer",
    "SourceLengthLogitsProcessor",
    "SummarizationPipeline",
    "TextCorrectionPipeline",
    "TranslationPipeline",
    "convert_fairseq_state_dict",
    "n_best",
]
