# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The models of `compare_commits`, tiny ones that together vary every field, and its searches."""

import itertools


TINY = {"vocab_size": 57, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4}
TINY |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 20, "max_position_embeddings": 40}
TINY |= {"max_relative_position": 3}
TINY_CSA = {"vocab_size": 50, "embedding_size": 8, "hidden_size": 6, "num_labels": 3}
CASES: dict[str, dict] = {}
# By the beginnings of names.
CONFIG_CLASSES = {
    **{"csa": "CsaOdeConfig", "recurrence": "OdeTransformerRecurrenceConfig"},
    **{"decoder alone": "OdeTransformerDecoderConfig", "": "OdeTransformerConfig"},
}


def case(name: str, auto: str = "Seq2SeqLM", attention: str = "sdpa", generation: dict | None = None, **fields):
    """Adds a model of `AutoModelFor...`, or of `AutoModel`, its `fields` in the place of those of `TINY`."""
    assert name not in CASES
    fields = (TINY_CSA if name.startswith("csa") else TINY) | fields
    if auto == "CausalLM":
        fields = {key: value for key, value in fields.items() if not key.startswith("encoder_")}
    CASES[name] = {
        "auto_class": f"AutoModelFor{auto}" if auto else "AutoModel",
        "config_class": next(made for kind, made in CONFIG_CLASSES.items() if name.startswith(kind)),
        "options": {} if name.startswith("csa") else {"attn_implementation": attention},
        "fields": fields,
        "generation": generation or {},
    }


def solvers(encoder: str | dict, decoder: str | dict | None = None) -> dict:
    return {"encoder_solver": encoder, "decoder_solver": encoder if decoder is None else decoder}


def coefficients(name: str) -> dict:
    return {"encoder_coefficients": name, "decoder_coefficients": name}


DECODER = {"auto": "CausalLM", "dropout": 0.2}
CORRECTED = {"corrector_iterations": 1}
HEUN3 = {"a": [[], [1 / 3], [0, 2 / 3]], "b": [1 / 4, 0, 3 / 4]}
ONE_STEP = {name: name for name in ("euler", "rk2", "midpoint", "ralston", "rk3", "rk4", "rk4_38", "polynet")}
for solver, scheme in {**ONE_STEP, "tableau": HEUN3}.items():
    case(f"solver {solver}", **solvers(scheme))
    case(f"decoder alone {solver}", **DECODER, **solvers("euler", scheme))
for solver in ("leapfrog", "multistep", "dlcl", "nesterov"):
    case(f"solver {solver}", **solvers(solver), layer_history="none", encoder_layers=3)
    case(f"decoder alone {solver}", **DECODER, **solvers("euler", solver), layer_history="none")
case("defaults")
case("defaults rk4 and rk2", **solvers("rk4", "rk2"))
case("defaults euler and rk2", **solvers("euler", "rk2"))
case("defaults rk2 and leapfrog", **solvers("rk2", "leapfrog"), layer_history="none")
case("defaults of a base model", auto="", attention="eager")
case("free tableau", **solvers("rk2", {"a": [[], [0.5]], "b": [0.3, 0.9]}), **coefficients("learned"))
for weights, sharing in itertools.product(
    ("fixed", "ones", "learned", "gate", "sigmoid", "tanh", "ema"), ("stack", "layer", "channel")
):
    if sharing != "channel" or weights in ("learned", "ema"):
        several = solvers("rk2") if weights == "gate" else solvers("rk4", "ralston")
        case(f"{weights} by {sharing}", **several, **coefficients(weights), coefficient_sharing=sharing)
scaled = {"encoder_coefficients": "scaled_gate", "decoder_coefficients": "gate", "coefficient_start": "even"}
case("scaled gate", **solvers("rk2"), **scaled)
for start in ("tableau", "euler", "even"):
    case(f"learned from {start}", **solvers("rk3"), **coefficients("learned"), coefficient_start=start)
case("output rk4", **solvers("rk4"), stage_values="output", attention="eager")
case("output rk2 gate", **solvers("rk2"), stage_values="output", **coefficients("gate"))
case("output euler and polynet", **solvers("euler", "polynet"), stage_values="output")
for vector_field in ("attention", "ffn", "sublayers", "macaron", "macaron_released"):
    case(f"integrates {vector_field}", **solvers("rk4", "rk2"), vector_field=vector_field)
case("macaron output", **solvers("rk2"), vector_field="macaron", stage_values="output", attention="eager")
case("sublayers by leapfrog", **solvers("leapfrog"), vector_field="sublayers", layer_history="none")
case("decoder alone sublayers", **DECODER, **solvers("euler", "rk2"), vector_field="sublayers")
case("two steps", **solvers("rk2", "rk4"), steps_per_layer=2, step_size=0.5)
case("two steps of euler", **solvers("euler"), steps_per_layer=2, step_size=0.5)
case("two steps of dlcl", **solvers("dlcl"), steps_per_layer=2, step_size=0.5, layer_history="none")
case("repeated", **solvers("rk2", "rk4"), stack_repeats=2)
case("decoder alone repeated", **DECODER, **solvers("euler", "rk2"), stack_repeats=2)
case("two residual blocks", **solvers("euler"), steps_per_layer=2, attention="eager")
case("dense", layer_history="dense", decoder_layers=3, decoder_ffn_dim=28, vocab_size=71, max_position_embeddings=50)
case("depth weighted", layer_history="depth_weighted", **solvers("rk2", "euler"), encoder_layers=3)
case("attention over depth", layer_history="attention", **solvers("euler", "rk2"), encoder_layers=3)
case("decoder alone attention over depth", **DECODER, layer_history="attention", **solvers("euler", "rk4"))
case("no history", layer_history="none", **solvers("rk4", "euler"))
case("corrector", **solvers(CORRECTED | {"predictor": "rk2"}, "euler"))
pcformer = {"normalize_stages": True, "encoder_coefficients": "ema", "encoder_layers": 3}
case("pcformer", **pcformer, **solvers(CORRECTED | {"predictor": "rk4"}, "euler"))
case("pcformer in both stacks", **solvers("pcformer"), normalize_stages="released", encoder_layers=3)
case("iiet", **solvers("iiet"), attention="eager")
case("decoder alone iiet", **DECODER, **solvers("euler", "iiet"))
case("decoder alone corrected rk4", **DECODER, **solvers("euler", {"predictor": "rk4", "corrector_iterations": 2}))
case("normalized", **solvers("midpoint", "rk4"), normalize_stages=True)
case("no relative positions", max_relative_position=0)
case("no relative positions eager", max_relative_position=0, attention="eager", **solvers("rk2"))
positions = itertools.product(("sinusoidal", "sinusoidal_vaswani", "learned", "none"), ("mask", "ids", "absolute"))
for kind, counting in positions:
    fields = {"position_embedding_type": kind, "position_counting": counting}
    case(f"positions {kind} {counting}", **fields, **solvers("rk2"), max_relative_position=0)
case("padding position", padding_position=4, pad_token_id=0, bos_token_id=3, decoder_start_token_id=5)
case("odd width", d_model=15, encoder_attention_heads=3, decoder_attention_heads=5, embedding_layer_norm=True)
mbart = {"position_embedding_type": "learned", "position_counting": "absolute", "embedding_layer_norm": True}
mbart |= {"lm_head_bias": True, "decoder_start_from_labels": True, "scale_embedding": False}
case("mbart", **mbart, activation_function="gelu", layer_norm_eps=1e-3, **solvers("rk2"))
case("head bias untied", lm_head_bias=True, tie_word_embeddings=False, attention="eager")
case("own embeddings", share_encoder_decoder_embeddings=False)
case("own embeddings untied", share_encoder_decoder_embeddings=False, tie_word_embeddings=False)
case("own vocabulary", share_encoder_decoder_embeddings=False, decoder_vocab_size=43, **solvers("rk2"))
case("own vocabulary untied", share_encoder_decoder_embeddings=False, decoder_vocab_size=43, tie_word_embeddings=False)
case("dropouts", dropout=0.3, attention_dropout=0.2, activation_dropout=0.0, word_dropout=0.25, **solvers("rk2"))
case("two ends", eos_token_id=[2, 7], use_cache=False, activation_function="silu")
options = {"max_len_a": 1.1, "max_len_b": 3, "num_beams": 3, "length_penalty": 0.8, "early_stopping": True}
case("saved options", generation=options, **solvers("rk2"))
for kind, fusion, layers in itertools.product(("birnn", "biarn"), ("stack", "gated_sum"), ("top", "all")):
    fields = {"recurrence_encoder": kind, "recurrence_integration": fusion, "recurrence_decoder_layers": layers}
    attention = "eager" if layers == "all" else "sdpa"
    case(f"recurrence {kind} {fusion} {layers}", attention=attention, **fields, **solvers("rk2"))
case("recurrence by words", recurrence_encoder="biarn", recurrence_steps=None, recurrence_layers=2, **solvers("rk4"))
case("recurrence of three steps", recurrence_encoder="biarn", recurrence_steps=3, vector_field="sublayers")
case("recurrence of a base model", auto="", recurrence_encoder="birnn", recurrence_layers=2)
for counting, attention in (("mask", "eager"), ("ids", "sdpa"), ("absolute", "sdpa")):
    fields = {"position_embedding_type": "learned", "position_counting": counting, "max_relative_position": 0}
    case(f"decoder alone {counting}", **DECODER, attention=attention, **fields, **solvers("euler", "rk2"))
case("decoder alone untied", **DECODER, tie_word_embeddings=False, lm_head_bias=True, embedding_layer_norm=True)
case("decoder alone gate eager", **DECODER, **solvers("euler", "rk2"), decoder_coefficients="gate", attention="eager")
for kind in ("rk", "rkf", "ark"):
    case(f"csa {kind}", "SequenceClassification", solver=kind, step_size=0.3)
case("csa blocks", "SequenceClassification", solver="none", num_blocks=3, attention_output_projection=False)
case("csa pairs", "SequenceClassification", num_sentences=2, step_size=0.5)
case("csa adjoint", "SequenceClassification", solver="rk", gradient="adjoint", step_size=0.5, dropout=0.3)
case("csa local", "SequenceClassification", ngram_size=0, hidden_size=8, solver="rk", distance_epsilon=0.1)
case("csa values", "SequenceClassification", num_labels=1, ngram_size=3, position_constant=1e-2, layer_norm_eps=1e-3)
case("csa sizes", "SequenceClassification", vocab_size=40, embedding_size=7, pad_token_id=2, initializer_range=0.2)
case("csa base", auto="", rtol=1e-4, atol=1e-5, max_solver_steps=500, solver="rkf")

SAMPLE = {"do_sample": True, "top_k": 12, "temperature": 0.8}
# Options of generate(); those that begin with "_" are of `search` in the script.
SEARCHES: dict[str, dict] = {
    "beam 4 early": {"num_beams": 4, "early_stopping": True, "length_penalty": 0.6},
    "beam 4 prompt": {"num_beams": 4, "length_penalty": 0.6, "_prompt": True},
    "beam 3 never": {"num_beams": 3, "early_stopping": "never", "length_penalty": 2.0},
    "saved": {"_as_saved": True},
    "greedy": {},
    "sample": {**SAMPLE, "num_return_sequences": 2},
    "beam 1": {"num_beams": 1, "max_len_a": 0.5, "max_len_b": 2},
    "beam 3": {"num_beams": 3},
    "beam 4 list": {"num_beams": 4, "early_stopping": False, "length_penalty": 2.0, "num_return_sequences": 4},
    "beam 4 never": {"num_beams": 4, "early_stopping": "never", "length_penalty": 1.0, "num_return_sequences": 2},
    "beam 3 early": {"num_beams": 3, "early_stopping": True, "length_penalty": 2.0, "num_return_sequences": 3},
    "beam 4 limits": {"num_beams": 4, "max_len_a": 0.7, "max_len_b": 1},
    "beam 3 limits": {"num_beams": 3, "max_len_a": 1.2, "early_stopping": "never", "length_penalty": 0.6},
    "beam 4 min": {"num_beams": 4, "min_length": 6, "max_len_b": 8},
    "beam 4 min new": {"num_beams": 4, "min_new_tokens": 5, "length_penalty": 0.6},
    "beam 3 ngram": {"num_beams": 3, "no_repeat_ngram_size": 2, "repetition_penalty": 1.2},
    "beam 3 forced": {"num_beams": 3, "forced_bos_token_id": 6, "forced_eos_token_id": 2},
    "greedy prompt": {"_prompt": True},
    "beam 4 prompt limits": {"num_beams": 4, "max_len_a": 0.5, "max_len_b": 3, "_prompt": True},
    "beam 4 one source": {"num_beams": 4, "_sources": 1},
    "beam 4 no mask": {"num_beams": 4, "_without": ["attention_mask"]},
    "beam 3 long": {"num_beams": 3, "max_new_tokens": 30, "early_stopping": True, "_sources": 7},
    "beam 3 sample": {**SAMPLE, "num_beams": 3},
    "beam 3 no cache": {"num_beams": 3, "use_cache": False},
    "beam 3 static": {"num_beams": 3, "cache_implementation": "static"},
    "lookup": {"prompt_lookup_num_tokens": 2, "_sources": 1},
    "beam 4 dict": {"num_beams": 4, "return_dict_in_generate": True, "output_scores": True},
    "beam 3 scored": {"num_beams": 3, "num_return_sequences": 2, "_scored": True},
    "greedy scored": {"_scored": True},
}
# These models make all searches; the others the first two, and three more in turn.
THOROUGH = ("defaults", "solver rk4", "solver dlcl", "own vocabulary", "two ends", "recurrence birnn stack top")
turns = itertools.cycle(list(SEARCHES)[2:])
for name, model in CASES.items():
    searches = SEARCHES if name in THOROUGH else [*list(SEARCHES)[:2], *itertools.islice(turns, 3)]
    only_decoder = model["auto_class"] == "AutoModelForCausalLM"
    model["searches"] = {
        each: SEARCHES[each]
        for each in searches
        if not only_decoder or not {"_prompt", "max_len_a", "max_len_b"} & SEARCHES[each].keys()
    }
