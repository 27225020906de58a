# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Configurations of older versions of this package. Importing the package makes `from_dict` read them with their
meaning. Models saved by an older version have its code beside them, so that this file need not travel."""

from typing import Any

from .configuration_ode_transformer import READERS, OdeTransformerConfig
from .integration_ode_transformer import resolve_tableau


# Fields of earlier versions, and what replaces them.
FORMER_FIELDS = {
    "solver_coefficients": "set encoder_coefficients and decoder_coefficients",
    "predictor_corrector": "a corrected scheme is encoder_solver='pcformer', or {'predictor': ..., "
    "'corrector_iterations': 1}",
    **dict.fromkeys(
        [f"recurrence_{name}" for name in ("encoder", "layers", "steps", "integration", "decoder_layers")],
        "a model with a recurrence encoder is an OdeTransformerRecurrenceForConditionalGeneration",
    ),
}


def upgraded(config_dict: dict[str, Any], config_class: type) -> dict[str, Any]:
    """Translates the fields of an earlier version to those of `config_class`."""
    former = [name for name in FORMER_FIELDS if not hasattr(config_class, name)]
    fields = {name: value for name, value in config_dict.items() if name not in former}
    if config_dict.get("predictor_corrector"):
        fields["encoder_solver"] = {"predictor": fields.get("encoder_solver", "rk2"), "corrector_iterations": 1}
    if (coefficients := config_dict.get("solver_coefficients")) is None:
        return fields
    for stack, default in (("encoder", "rk2"), ("decoder", "euler")):
        has_stages = resolve_tableau(fields.get(f"{stack}_solver", default)).num_stages > 1
        fields.setdefault(f"{stack}_coefficients", coefficients if has_stages else "fixed")
    if not fields.get("is_encoder_decoder", True):
        fields["encoder_coefficients"] = fields["decoder_coefficients"]
    if fields.get("padding_position") is None:
        fields["padding_position"] = 1 if fields.get("pad_token_id", 1) is None else fields.get("pad_token_id", 1)
    return fields


OdeTransformerConfig.former_fields |= FORMER_FIELDS
READERS.append(upgraded)
