# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""From the original's fairseq 0.6.2 checkpoints to a model of this package, which computes the same numbers.

    ode-transformer convert-fairseq checkpoint_best.pt --source_dict dict.en.txt \\
        --target_dict dict.de.txt --bpe_codes codes --output_dir converted

writes a folder that `from_pretrained` opens: the model, its tokenizer and a generation configuration. If the target
has another dictionary, its tokenizer is in the subfolder `target_tokenizer`. `ode-transformer average` takes the mean
of several such folders.
"""

import re
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from transformers.utils import logging

from ..configuration_ode_transformer import OdeTransformerConfig
from ..modeling_ode_transformer import OdeTransformerForConditionalGeneration
from ..text_files import check_empty_folder
from ..texts_ode_transformer import TARGET_TOKENIZER
from .fairseq_tokenizer import make_tokenizer, pad_dictionary, read_bpe_codes, read_dictionary


logger = logging.get_logger(__name__)


class Meter:
    """Holds what a statistic of the training held; nothing of it is used."""


# What a checkpoint holds besides tensors and plain data. Unpickling them runs no code.
SAFE_GLOBALS = [
    Namespace,
    *((Meter, f"fairseq.meters.{name}") for name in ("AverageMeter", "StopwatchMeter", "TimeMeter")),
]

# The solver and the coefficients of an `ode_transformer`, by (enc_calculate_num, rk_type).
RK_TYPES = {
    (2, "standard"): ("rk2", "fixed"),
    (2, "initialization"): ("rk2", "learned"),
    (2, "learnable"): ("rk2", "gate"),
    # Its third stage is at y + k2, unlike Kutta's.
    (3, "standard"): ({"a": [[], [1 / 2], [0, 1]], "b": [1 / 6, 4 / 6, 1 / 6]}, "fixed"),
    (4, "standard"): ("rk4", "fixed"),
}
# The original's first public version has it in every model, and uses it wherever there are two evaluations; three and
# four are standard ones, whatever rk_type says.
GATE = re.compile(r"encoder\.gate_linear\.(weight|bias)")
HISTORY_TYPES = {None: "none", "learnable_dense": "learned_dense"}

# What stands before "transformer" in the architectures that can be expressed.
ARCHITECTURE_PREFIXES = {"ode", "dense", "relative", "macaron", "polynomial"}

# (pattern, replacement) of parameter names; a name that none matches is refused. The q, k and v of an attention are
# one matrix in the original.
PARAMETERS = (
    (r"(encoder|decoder)\.embed_(tokens|positions)\.weight", r"model.\1.embed_\2.weight"),
    (r"decoder\.embed_out", r"lm_head.weight"),
    (GATE.pattern, r"model.encoder.solver_coefficients.gate.\1"),
    (r"encoder\.alpha", r"model.encoder.solver_coefficients.weight"),
    (r"(encoder|decoder)\.layer_norm\.(weight|bias)", r"model.\1.layer_norm.\2"),
    (r"(encoder|decoder)\.history\.(weight|layer_norms\.\d+\.(?:weight|bias))", r"model.\1.history.\2"),
    (r"encoder\.layers\.(\d+)\.layer_norms\.0\.(.+)", r"model.encoder.layers.\1.self_attn_layer_norm.\2"),
    (r"encoder\.layers\.(\d+)\.layer_norms\.1\.(.+)", r"model.encoder.layers.\1.final_layer_norm.\2"),
    (r"encoder\.layers\.(\d+)\.layer_norms\.2\.(.+)", r"model.encoder.layers.\1.macaron_layer_norm.\2"),
    (r"((?:encoder|decoder)\.layers\.\d+\.self_attn)\.relative_position_keys", r"model.\1.relative_keys.weight"),
    (
        r"((?:encoder|decoder)\.layers\.\d+\.(?:self_attn\.out_proj|encoder_attn\.out_proj|fc1|fc2|macaron_fc1"
        r"|macaron_fc2|self_attn_layer_norm|encoder_attn_layer_norm|final_layer_norm|macaron_layer_norm)"
        r"\.(?:weight|bias))",
        r"model.\1",
    ),
)
FUSED_PROJECTION = re.compile(r"((?:encoder|decoder)\.layers\.\d+\.(?:self|encoder)_attn)\.in_proj_(weight|bias)")
WITHOUT_NUMBERS = re.compile(r"(encoder|decoder)\.(version|embed_positions\._float_tensor)")


def load_fairseq_checkpoint(
    path: str | Path, trust_file: bool = False
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The parameters and the architecture's arguments of a checkpoint, on the CPU.

    Args:
        path: the file.
        trust_file: unpickle whatever the file holds, **which can run any code**. Otherwise only tensors, plain data,
            `argparse.Namespace` and fairseq's meters are read.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is not a checkpoint, or holds something else; it is named.
    """
    try:
        with torch.serialization.safe_globals(SAFE_GLOBALS):
            checkpoint = torch.load(path, map_location="cpu", weights_only=not trust_file)
    except UnpicklingError as error:
        found = re.search(r"GLOBAL (\S+)", str(error))
        raise ValueError(
            f"{path} {f'holds {found[1]}' if found else 'is damaged'}. It was not loaded, since that could run any "
            "code. If you trust the file, give --trust_file."
        ) from error
    if not (isinstance(checkpoint, Mapping) and isinstance(checkpoint.get("args"), Namespace)):
        raise ValueError(f"{path} is not a checkpoint of fairseq 0.6.2, which holds its arguments as 'args'.")
    return checkpoint["model"], dict(vars(checkpoint["args"]))


def convert_fairseq_state_dict(
    state_dict: Mapping[str, torch.Tensor], args: Any
) -> OdeTransformerForConditionalGeneration:
    """Makes a model that computes the same numbers as the original with these parameters.

    Args:
        state_dict: the parameters by their names in the original (the entry "model" of a checkpoint).
        args: the architecture's arguments (the entry "args" of a checkpoint), as a mapping or a namespace.

    Returns:
        The model, in float32 and in evaluation mode. Its configuration has `stage_values="output"` for the Runge-Kutta
        architectures, whose released code adds a block's input to each stage, and `vector_field="macaron_released"`
        for Macaron, whose released code halves the first feed-forward sublayer only. Its generation configuration has
        what the original's generator always does: no empty output, no pad token.

    The first public version of the original's code gives every model a gate, uses it with two evaluations, and takes
    the standard scheme with three and four, whatever `rk_type` says; so does the model. A gate that `rk_type` does not
    ask for is logged as a warning; an idle one is left out.

    Raises:
        ValueError: the architecture, an option or a parameter cannot be expressed; it is named.
    """
    args = dict(args) if isinstance(args, Mapping) else vars(args)
    config = make_configuration(state_dict, args)
    if config.encoder_coefficients != "gate":
        state_dict = {name: tensor for name, tensor in state_dict.items() if not GATE.fullmatch(name)}
    model = OdeTransformerForConditionalGeneration(config)
    converted = {name: tensor.float() for name, tensor in rename_parameters(state_dict).items()}
    if "model.shared.weight" in model.state_dict():
        converted["model.shared.weight"] = converted["model.encoder.embed_tokens.weight"]
    if "lm_head.weight" in model.all_tied_weights_keys:
        converted["lm_head.weight"] = converted["model.decoder.embed_tokens.weight"]
    try:
        model.load_state_dict(converted)
    except RuntimeError as error:
        raise ValueError(f"The parameters do not fit the arguments: {' '.join(str(error).split())}") from error
    # The original's generator never ends before the first token, and never chooses the pad token.
    model.generation_config.min_new_tokens = 1
    model.generation_config.suppress_tokens = [model.config.pad_token_id]
    return model.eval()


def architecture_of(args: Mapping[str, Any]) -> str:
    """What `arch` has before "transformer", such as `"relative_ode_"`; a ValueError names what cannot be expressed."""
    architecture = args.get("arch")
    prefix, found, suffix = str(architecture).partition("transformer")
    if suffix.startswith("_lm"):
        raise ValueError(f"arch={architecture!r} is a language model: only encoder-decoder models can be converted.")
    if suffix.startswith("_ode"):  # transformer_ode_...: how the original's scripts call ode_transformer_...
        prefix += "ode"
    if not found or not set(prefix.split("_")) - {""} <= ARCHITECTURE_PREFIXES:
        raise ValueError(
            f"The architecture arch={architecture!r} cannot be expressed: it must be a residual, dense, relative, "
            "ode, macaron or polynomial transformer."
        )
    # What the names and shapes of parameters do not show.
    for option, expressible in (
        ("encoder_normalize_before", True),
        ("decoder_normalize_before", True),
        ("dec_calculate_num", 1),
        ("k_only", True),
    ):
        if args.get(option, expressible) != expressible:
            raise ValueError(f"{option}={args[option]!r} cannot be expressed: it must be {expressible!r}.")
    return prefix


def scheme_of(state_dict: Mapping[str, torch.Tensor], args: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """The fields of the encoder's scheme; `prefix` is that of the architecture."""
    num_stages, solver, coefficients = args.get("enc_calculate_num", 1), "euler", "fixed"
    if num_stages != 1:
        rk_type, has_gate = args.get("rk_type"), any(map(GATE.fullmatch, state_dict))
        if has_gate and "encoder.alpha" not in state_dict:
            if num_stages == 2 and rk_type != "learnable":
                logger.warning(
                    f"rk_type={rk_type!r}, but the checkpoint has encoder.gate_linear. The first public version of "
                    "the original code computes RK2 with this gate, and so does the model. If the code that trained "
                    "it did not, remove encoder.gate_linear from the parameters and convert them again."
                )
            rk_type = "learnable" if num_stages == 2 else "standard"
        key = (num_stages, rk_type)
        if "ode" not in prefix or key not in RK_TYPES:
            known = ", ".join(f"{number} with {kind!r}" for number, kind in RK_TYPES)
            raise ValueError(
                f"arch={args['arch']!r} with enc_calculate_num={num_stages} and rk_type={key[1]!r} cannot be "
                f"expressed: an ode transformer must have one of {known}."
            )
        solver, coefficients = RK_TYPES[key]
    vector_field, stage_values = "layer", "increment" if num_stages == 1 else "output"
    if "macaron" in prefix:
        vector_field = "macaron_released"
    if "polynomial" in prefix:
        # F + F(F) + ... on each sublayer of the encoder.
        terms = args["enc_step"]
        solver = {"a": [[0.0] * (i - 1) + [1.0] * (i > 0) for i in range(terms)], "b": [1.0] * terms}
        solver["y"] = [1.0] + [0.0] * (terms - 1)
        vector_field = "sublayers"
    return {
        "encoder_solver": solver,
        "encoder_coefficients": coefficients,
        "stage_values": stage_values,
        "vector_field": vector_field,
    }


def history_of(args: Mapping[str, Any]) -> str:
    encoder, decoder = (args.get(f"{stack}_history_type") for stack in ("encoder", "decoder"))
    if encoder != decoder or encoder not in HISTORY_TYPES:
        raise ValueError(
            f"encoder_history_type={encoder!r} with decoder_history_type={decoder!r} cannot be expressed: both must "
            f"be one of {', '.join(map(repr, HISTORY_TYPES))}."
        )
    return HISTORY_TYPES[encoder]


def make_configuration(state_dict: Mapping[str, torch.Tensor], args: Mapping[str, Any]) -> OdeTransformerConfig:
    """The configuration of the original's architecture; see `convert_fairseq_state_dict`."""
    scheme, history = scheme_of(state_dict, args, architecture_of(args)), history_of(args)
    encoder_size, decoder_size = (len(state_dict[f"{stack}.embed_tokens.weight"]) for stack in ("encoder", "decoder"))
    share_all = bool(args.get("share_all_embeddings"))
    position_embedding_type = "learned" if args.get("encoder_learned_pos") else "sinusoidal"
    return OdeTransformerConfig(
        vocab_size=encoder_size,
        decoder_vocab_size=None if decoder_size == encoder_size else decoder_size,
        share_encoder_decoder_embeddings=share_all,
        tie_word_embeddings=share_all or bool(args.get("share_decoder_input_output_embed")),
        d_model=args["encoder_embed_dim"],
        encoder_layers=args["encoder_layers"],
        decoder_layers=args["decoder_layers"],
        encoder_attention_heads=args["encoder_attention_heads"],
        decoder_attention_heads=args["decoder_attention_heads"],
        encoder_ffn_dim=args["encoder_ffn_embed_dim"],
        decoder_ffn_dim=args["decoder_ffn_embed_dim"],
        dropout=args.get("dropout", 0.1),
        attention_dropout=args.get("attention_dropout", 0.0),
        activation_dropout=args.get("relu_dropout", 0.0),
        word_dropout=1 - args.get("word_dropout", 0.8) if args.get("use_word_dropout") else 0.0,
        max_position_embeddings=max(args.get("max_source_positions", 1024), args.get("max_target_positions", 1024)),
        position_embedding_type="none" if args.get("no_token_positional_embeddings") else position_embedding_type,
        max_relative_position=max(args.get("max_relative_length", -1), 0),
        layer_history=history,
        **scheme,
    )


def rename_parameters(state_dict: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The parameters by the names of this package, with the fused projections split.

    Raises:
        ValueError: a name that the architectures do not have.
    """
    renamed = {}
    for name, tensor in state_dict.items():
        if WITHOUT_NUMBERS.fullmatch(name):
            continue
        if fused := FUSED_PROJECTION.fullmatch(name):
            for projection, part in zip("qkv", tensor.chunk(3)):
                renamed[f"model.{fused[1]}.{projection}_proj.{fused[2]}"] = part
            continue
        for pattern, replacement in PARAMETERS:
            new_name, count = re.subn(f"^{pattern}$", replacement, name)
            if count:
                renamed[new_name] = tensor
                break
        else:
            raise ValueError(f"Parameter {name!r} does not belong to an architecture that can be expressed.")
    return renamed


def convert_fairseq_checkpoint(
    checkpoint: str | Path,
    source_dict: str | Path,
    target_dict: str | Path,
    output_dir: str | Path,
    bpe_codes: str | Path | None = None,
    target_bpe_codes: str | Path | None = None,
    trust_file: bool = False,
) -> None:
    """Writes a folder that `from_pretrained` opens, and prints what is in it. The generation configuration is the
    original's: 4 beams, length penalty 0.6, up to 256 tokens.

    Args:
        checkpoint: the file.
        source_dict: fairseq's dictionary of the source.
        target_dict: fairseq's dictionary of the target.
        output_dir: folder to write; it must be empty.
        bpe_codes: codes of subword-nmt or fastBPE; None: the tokenizer takes texts that are split into pieces already.
        target_bpe_codes: codes of the target; None: `bpe_codes`.
        trust_file: see `load_fairseq_checkpoint`.

    Raises:
        FileNotFoundError: a file does not exist.
        ValueError: `output_dir` is not empty, or the files do not fit together or cannot be converted; see
            `convert_fairseq_state_dict`.
    """
    output_dir = Path(output_dir)
    check_empty_folder(output_dir)
    dictionaries = [read_dictionary(path) for path in (source_dict, target_dict)]
    codes = [read_bpe_codes(path) if path else None for path in (bpe_codes, target_bpe_codes or bpe_codes)]
    model = convert_fairseq_state_dict(*load_fairseq_checkpoint(checkpoint, trust_file))
    limit = model.config.max_position_embeddings
    sizes = [embedding.weight.shape[0] for embedding in (model.get_input_embeddings(), model.get_output_embeddings())]
    tokenizers = [
        make_tokenizer(pad_dictionary(tokens, size, path), merges, model_max_length=limit)
        for tokens, size, path, merges in zip(dictionaries, sizes, (source_dict, target_dict), codes)
    ]
    beams = {"num_beams": 4, "early_stopping": True, "length_penalty": 0.6}
    model.generation_config.update(max_length=min(256, limit), **beams)

    model.save_pretrained(output_dir)
    tokenizers[0].save_pretrained(output_dir)
    print(f"{output_dir}: {model.num_parameters():,} parameters, {len(tokenizers[0])} tokens")
    if dictionaries[0] != dictionaries[1] or codes[0] != codes[1]:
        tokenizers[1].save_pretrained(output_dir / TARGET_TOKENIZER)
        print(f"{output_dir / TARGET_TOKENIZER}: {len(tokenizers[1])} tokens")
