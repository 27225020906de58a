# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The configuration of an ODE Transformer: its fields, their validation and the paper's sizes."""

import copy
import shutil
from collections.abc import Callable, Collection
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig
from transformers.activations import ACT2FN
from transformers.dynamic_module_utils import get_relative_import_files

from .integration_ode_transformer import (
    LARGEST,
    SCHEMES,
    STARTS,
    ButcherTableau,
    Scheme,
    as_data,
    resolve_scheme,
)
from .schemes_ode_transformer import COEFFICIENTS, HISTORIES


class Part(NamedTuple):
    """Consecutive sublayers of a block, by the names of `OdeTransformerLayer`'s methods. The scheme integrates their
    increment F if `is_integrated`; otherwise they are residual."""

    sublayers: tuple[str, ...]
    is_integrated: bool


ATTENTIONS = ("self_attention", "cross_attention")

# What the scheme integrates (figure 4). Encoder blocks skip the cross-attention.
VECTOR_FIELDS: dict[str, tuple[Part, ...]] = {
    "layer": (Part((*ATTENTIONS, "feed_forward"), True),),
    "attention": (Part(("self_attention",), True), Part(("cross_attention", "feed_forward"), False)),
    "ffn": (Part(ATTENTIONS, False), Part(("feed_forward",), True)),
    "sublayers": tuple(Part((name,), True) for name in (*ATTENTIONS, "feed_forward")),
    # MacaronNet (Lu et al., 2019): Strang's splitting, half a feed-forward step before and after the attention
    "macaron": (Part(("macaron_feed_forward", *ATTENTIONS, "half_feed_forward"), True),),
    # as in the paper's released code: the last step is a whole one
    "macaron_released": (Part(("macaron_feed_forward", *ATTENTIONS, "feed_forward"), True),),
}

CHOICES: dict[str, Collection[str | bool | None]] = {
    "activation_function": tuple(ACT2FN),
    "position_embedding_type": ("sinusoidal", "sinusoidal_vaswani", "learned", "none"),
    "position_counting": ("mask", "ids", "absolute"),
    "encoder_coefficients": COEFFICIENTS,
    "decoder_coefficients": COEFFICIENTS,
    "coefficient_sharing": ("stack", "layer", "channel"),
    "coefficient_start": (None, "random", *STARTS),
    "normalize_stages": (False, True, "released"),
    "stage_values": ("increment", "output"),
    "vector_field": tuple(VECTOR_FIELDS),
    "layer_history": HISTORIES,
}
POSITIVE_INTEGERS = (
    *("vocab_size", "d_model", "max_position_embeddings", "steps_per_layer", "stack_repeats"),
    *("encoder_layers", "encoder_attention_heads", "encoder_ffn_dim"),
    *("decoder_layers", "decoder_attention_heads", "decoder_ffn_dim"),
)
PROBABILITIES = ("dropout", "attention_dropout", "activation_dropout", "word_dropout")
# Fields, what their values must fulfil, and the same in words.
RANGES: tuple[tuple[tuple[str, ...], Callable[[Any], bool], str], ...] = (
    (POSITIVE_INTEGERS, lambda number: number >= 1, "must be at least 1"),
    (("max_relative_position", "padding_position"), lambda number: number >= 0, "must not be negative"),
    (("step_size", "layer_norm_eps"), lambda x: 0 < x <= LARGEST, f"must be a positive number of at most {LARGEST}"),
    (PROBABILITIES, lambda p: 0 <= p < 1, "must be a probability, at least 0 and less than 1"),
)

# The paper's sizes (tables 1 and 3) by its names; parameters are counted with 34040 shared pieces.
PRESETS: dict[str, dict[str, int]] = {
    "base": {},  # 61M
    "deep": {"encoder_layers": 24},  # 118M
    "big": {  # 211M
        "d_model": 1024,
        "encoder_ffn_dim": 4096,
        "decoder_ffn_dim": 4096,
        "encoder_attention_heads": 16,
        "decoder_attention_heads": 16,
    },
    "small-18": {  # 29M: H=256, L=18
        "d_model": 256,
        "encoder_ffn_dim": 1024,
        "decoder_ffn_dim": 1024,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_layers": 18,
    },
}
PRESETS["small-28"] = {**PRESETS["small-18"], "encoder_layers": 28}  # 37M: H=256, L=28


@strict
class OdeTransformerDecoderConfig(PreTrainedConfig):
    """
    The configuration of a language model: a decoder without an encoder. `decoder_layers`, `decoder_attention_heads`,
    `decoder_ffn_dim`, `decoder_solver` and `decoder_coefficients` are those of its only stack. `OdeTransformerConfig`
    describes all fields; this class lacks those of an encoder and of a second vocabulary.

    Raises:
        As `OdeTransformerConfig`.

    Example:

    ```python
    >>> from modeling_ode_transformer import OdeTransformerDecoderConfig, OdeTransformerForCausalLM

    >>> configuration = OdeTransformerDecoderConfig(decoder_solver="rk2", d_model=256, decoder_layers=2)
    >>> model = OdeTransformerForCausalLM(configuration)
    ```"""

    model_type = "ode_transformer_decoder"
    keys_to_ignore_at_inference = ["cache", "past_key_values"]  # since transformers 5.24, and before
    attribute_map = {
        "hidden_size": "d_model",
        "num_attention_heads": "decoder_attention_heads",
        "num_hidden_layers": "decoder_layers",
    }
    # The model's stacks; presets give the sizes of the first.
    stacks: ClassVar[tuple[str, ...]] = ("decoder",)
    # The classes that open a saved model.
    model_classes = {
        "AutoConfig": "configuration_ode_transformer.OdeTransformerDecoderConfig",
        "AutoModelForCausalLM": "modeling_ode_transformer.OdeTransformerForCausalLM",
    }
    # Names inside a stack; a model drops those it does not have.
    base_model_tp_plan = {
        "layers.*.self_attn.q_proj": "colwise",
        "layers.*.self_attn.k_proj": "colwise",
        "layers.*.self_attn.v_proj": "colwise",
        "layers.*.self_attn.out_proj": "rowwise",
        "layers.*.encoder_attn.q_proj": "colwise",
        "layers.*.encoder_attn.k_proj": "colwise",
        "layers.*.encoder_attn.v_proj": "colwise",
        "layers.*.encoder_attn.out_proj": "rowwise",
        "layers.*.self_attn.relative_keys": "replicated_with_grad_allreduce",
        "layers.*.fc1": "colwise",
        "layers.*.fc2": "rowwise",
        "layers.*.macaron_fc1": "colwise",
        "layers.*.macaron_fc2": "rowwise",
    }
    base_model_fsdp_plan = {
        "embed_tokens": "free_full_weight",
        "layers.*": "free_full_weight",
        "layernorm_embedding": "keep_full_weight",
        "layer_norm": "keep_full_weight",
    }

    vocab_size: int = 34040
    tie_word_embeddings: bool = True
    d_model: int = 512
    decoder_layers: int = 6
    decoder_attention_heads: int = 8
    decoder_ffn_dim: int = 2048
    activation_function: str = "relu"
    layer_norm_eps: float | int = 1e-5
    dropout: float | int = 0.1
    attention_dropout: float | int = 0.1
    activation_dropout: float | int = 0.1
    word_dropout: float | int = 0.0
    max_position_embeddings: int = 1024
    position_embedding_type: str = "sinusoidal"
    position_counting: str = "mask"
    padding_position: int = 1
    scale_embedding: bool = True
    embedding_layer_norm: bool = False
    lm_head_bias: bool = False
    max_relative_position: int = 8
    decoder_solver: str | dict[str, Any] | ButcherTableau = "euler"
    decoder_coefficients: str = "fixed"
    coefficient_sharing: str = "stack"
    coefficient_start: str | None = None
    normalize_stages: bool | str = False
    stage_values: str = "increment"
    vector_field: str = "layer"
    steps_per_layer: int = 1
    stack_repeats: int = 1
    step_size: float | int = 1.0
    layer_history: str = "learned_dense"
    use_cache: bool = True
    bos_token_id: int | None = 0
    pad_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2

    def __new__(cls, *args, **kwargs):
        # Only here can one see which names were given. A saved configuration may hold any, and names its version.
        for name in () if "transformers_version" in kwargs else kwargs:
            if hasattr(cls, name):
                continue
            of_stacks = [f"{stack}_{name}" for stack in ("encoder", "decoder") if hasattr(cls, f"{stack}_{name}")]
            if meant := of_stacks or get_close_matches(name, cls.__dataclass_fields__, 1, 0.85):
                raise ValueError(f"{name}={kwargs[name]!r} is not a field: did you mean {' or '.join(meant)}?")
        return super().__new__(cls)

    def __setattr__(self, name, value):
        super().__setattr__(name, as_data(value) if name.endswith("_solver") else value)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs) -> "OdeTransformerDecoderConfig":
        """As in transformers. Raises a ValueError if the model has schemes of a user's file that is not imported."""
        for entry, file in (config_dict.get("own_schemes") or {}).items():
            if not any(entry in table for table in (SCHEMES, COEFFICIENTS, HISTORIES)):
                raise ValueError(
                    f"The model has {entry!r} of {file}: import that file first, as a module, by --import {file} or "
                    f"by modeling_ode_transformer.own_schemes.import_schemes({file!r})."
                )
        return super().from_dict(config_dict, **kwargs)

    def save_pretrained(self, save_directory: str | Path, push_to_hub: bool = False, **kwargs):
        """As in transformers. The saved configuration names the class for each Auto class that can open the model, and
        the files of the user that define its schemes. The code of pipelines that it names is saved with it."""
        pipelines = getattr(self, "custom_pipelines", None) or {}
        for task, entry in [*pipelines.items()]:
            file = Path(__file__).with_name(f"{entry['impl'].split('.')[0]}.py")
            for path in (file, *get_relative_import_files(file)) if file.is_file() else ():
                Path(save_directory).mkdir(parents=True, exist_ok=True)
                shutil.copy(path, save_directory)
            if file.stem == "pipeline_ode_transformer" and not Path(save_directory, file.name).is_file():
                pipelines.pop(task)  # the code of a model that transformers opened may be without its pipelines'
        self.auto_map = {**(getattr(self, "auto_map", None) or {}), **self.model_classes}
        self.__dict__.pop("own_schemes", None)
        if own := self.own_entries():
            self.own_schemes = own
        super().save_pretrained(save_directory, **kwargs)
        if push_to_hub:  # transformers' own way would upload only the files that it has written
            self.push_to_hub(kwargs.pop("repo_id", Path(save_directory).name), **kwargs)

    def own_entries(self) -> dict[str, str]:
        """The model's schemes, coefficients and history that are classes of users' files, and these files' names."""
        classes = {self.layer_history: HISTORIES[self.layer_history]}
        for stack in self.stacks:
            solver, coefficients = getattr(self, f"{stack}_solver"), getattr(self, f"{stack}_coefficients")
            classes[coefficients] = COEFFICIENTS[coefficients]
            if (multistep := self.scheme(stack).multistep) is not None:
                classes[solver if isinstance(solver, str) else solver["predictor"]] = multistep
        package = __name__.rpartition(".")[0]
        modules = {name: each.__module__.rpartition(".") for name, each in classes.items()}
        return {name: f"{module}.py" for name, (parent, _, module) in modules.items() if parent != package}

    @classmethod
    def from_preset(cls, name: str, **kwargs) -> "OdeTransformerDecoderConfig":
        """The paper's best model, RK2 with a gate, in one of its sizes (a key of `PRESETS`). `kwargs` replace fields;
        an `encoder_solver` among them has fixed coefficients unless others are given too. The decoder of a language
        model is as the preset's encoder.

        Raises:
            ValueError: no preset has that name.
        """
        if name not in PRESETS:
            raise ValueError(f"Unknown preset {name!r}: choose one of {', '.join(PRESETS)}.")
        stack = cls.stacks[0]
        preset: dict[str, Any] = {field.replace("encoder_", f"{stack}_"): n for field, n in PRESETS[name].items()}
        if f"{stack}_solver" not in kwargs:
            preset |= {f"{stack}_solver": "rk2", f"{stack}_coefficients": "gate"}
        replaced = {cls.attribute_map.get(name, name) for name in kwargs}
        return cls(**{field: value for field, value in preset.items() if field not in replaced}, **kwargs)

    def scheme(self, stack: str) -> Scheme:
        """The scheme of the blocks of "encoder" or "decoder"."""
        return resolve_scheme(getattr(self, f"{stack}_solver"))

    def evaluations(self, stack: str) -> int:
        """How often an "encoder" or "decoder" block evaluates what it integrates in one run of its stack, corrections
        included."""
        scheme = self.scheme(stack)
        return scheme.tableau.num_stages * self.steps_per_layer + scheme.corrector_iterations

    def attention_evaluations(self, stack: str) -> int:
        """How often an "encoder" or "decoder" block evaluates its self-attention in one run of its stack. Each
        evaluation, to predict or to correct, has its own keys and values."""
        parts = VECTOR_FIELDS[self.vector_field]
        if any(part.is_integrated and "self_attention" in part.sublayers for part in parts):
            return self.evaluations(stack)
        return 1 + self.scheme(stack).corrector_iterations

    @property
    def decoder_layer_calls(self) -> int:
        """How often blocks of the decoder run: the number of hidden states they return."""
        return self.decoder_layers * self.stack_repeats

    @property
    def target_vocab_size(self) -> int:
        """The number of tokens that outputs can have."""
        return self.vocab_size

    def get_text_config(
        self, decoder: bool | None = None, encoder: bool | None = None
    ) -> "OdeTransformerDecoderConfig":
        """The configuration itself, or with `decoder=True` a copy whose generic names describe the decoder.
        transformers sizes caches by the copy: they need one entry for each evaluation of a self-attention."""
        if not decoder or encoder:
            return self
        config = copy.deepcopy(self)
        config.num_hidden_layers = self.decoder_layer_calls * self.attention_evaluations("decoder")
        config.num_attention_heads = self.decoder_attention_heads
        config.vocab_size = self.target_vocab_size
        return config

    def validate_architecture(self):
        """Part of the validation at construction and on save: names, ranges, and combinations of fields."""
        if self.is_encoder_decoder != ("encoder" in self.stacks):
            other = OdeTransformerDecoderConfig if "encoder" in self.stacks else OdeTransformerConfig
            raise ValueError(
                f"is_encoder_decoder={self.is_encoder_decoder}: {type(self).__name__} is not for such models; use "
                f"{other.__name__}."
            )
        own = self.__dataclass_fields__
        for field, allowed in ((field, allowed) for field, allowed in CHOICES.items() if field in own):
            if getattr(self, field) not in allowed:
                names = ", ".join(map(str, allowed))
                raise ValueError(f"{field}={getattr(self, field)!r} is unknown: choose one of {names}.")
        for fields, is_valid, words in RANGES:
            for field in (field for field in fields if field in own):
                if not is_valid(getattr(self, field)):
                    raise ValueError(f"{field}={getattr(self, field)} {words}.")
        for field in (f"{stack}_attention_heads" for stack in self.stacks):
            if self.d_model % getattr(self, field):
                raise ValueError(
                    f"d_model={self.d_model} is not a multiple of {field}={getattr(self, field)}: change one of them."
                )
        for stack in self.stacks:
            self._validate_scheme(stack)
        self._validate_coefficients()
        super().validate_architecture()

    def _validate_scheme(self, stack: str):
        solver, coefficients = getattr(self, f"{stack}_solver"), getattr(self, f"{stack}_coefficients")
        scheme, name = self.scheme(stack), f"{stack}_solver={solver!r}"
        tableau = scheme.tableau
        if COEFFICIENTS[coefficients].num_stages not in (None, tableau.num_stages):
            raise ValueError(
                f"{stack}_coefficients={coefficients!r} weighs two stages with g and 1 - g, but {name} has "
                f"{tableau.num_stages}: choose a solver of two stages (rk2, midpoint, ralston), or other coefficients "
                "(fixed, ones, learned, sigmoid, tanh, ema)."
            )
        if (coefficients == "fixed" or tableau.num_stages == 1) and not tableau.is_consistent:
            advice = f", or choose another {stack}_coefficients, as 'learned'" if tableau.num_stages > 1 else ""
            raise ValueError(
                f"The weights of {name} sum to {tableau.total_weight:g}, counting the stages that start from the "
                f"whole state, and fixed coefficients have to sum to 1: correct the tableau{advice}."
            )
        if scheme.corrector_iterations and self.layer_history != "learned_dense":
            raise ValueError(
                f"{name} corrects its steps over a history of layers, but layer_history={self.layer_history!r}: set "
                "layer_history='learned_dense'."
            )
        integrated = [field for field, parts in VECTOR_FIELDS.items() if all(part.is_integrated for part in parts)]
        if scheme.multistep is not None and self.vector_field not in integrated:
            raise ValueError(
                f"{name} steps from block to block, and vector_field={self.vector_field!r} leaves a sublayer out: "
                f"choose one of {', '.join(integrated)}."
            )

    def _validate_coefficients(self):
        """Checks the coefficients of all stacks together."""
        stages = [stack for stack in self.stacks if self.scheme(stack).tableau.num_stages > 1]
        chosen = {f"{stack}_coefficients": getattr(self, f"{stack}_coefficients") for stack in stages}
        if self.coefficient_sharing == "channel":
            choices = [name for name, coefficients in COEFFICIENTS.items() if coefficients.can_be_per_channel]
            refused = {field: name for field, name in chosen.items() if name not in (*choices, "fixed", "ones")}
            if refused or not set(chosen.values()) & set(choices):
                raise ValueError(
                    f"coefficient_sharing='channel' is for coefficients {' or '.join(choices)}, not for "
                    f"{refused or chosen or 'blocks of one stage'}: choose one of them, or share by 'stack' or "
                    "'layer'."
                )
        starting = [name for name, each in COEFFICIENTS.items() if self.coefficient_start in each.starts]
        if self.coefficient_start is not None and not set(chosen.values()) & set(starting):
            raise ValueError(
                f"coefficient_start={self.coefficient_start!r} is for {', '.join(map(repr, starting))} coefficients, "
                f"not for {chosen or 'blocks of one stage'}."
            )


@strict
class OdeTransformerConfig(OdeTransformerDecoderConfig):
    r"""
    The configuration of an ODE Transformer (Li et al., ACL 2022). The defaults are the paper's base model with RK2
    blocks in the encoder (eqs. 12-14): 61M parameters. `from_preset` has the paper's best: RK2 with a gate.

    Args:
        vocab_size (`int`, defaults to 34040): Size of the vocabulary, or of the encoder's if the decoder has its own.
        decoder_vocab_size (`int`, *optional*): Size of the decoder's own vocabulary, which needs
            `share_encoder_decoder_embeddings=False`; `None`: it has the encoder's.
        share_encoder_decoder_embeddings (`bool`, defaults to `True`): Whether encoder and decoder share one embedding
            matrix.
        tie_word_embeddings (`bool`, defaults to `True`): Whether the output projection is the decoder's embedding
            matrix.
        d_model (`int`, defaults to 512): Width of the model.
        encoder_layers, decoder_layers (`int`, defaults to 6): Number of blocks in each stack.
        encoder_attention_heads, decoder_attention_heads (`int`, defaults to 8): Attention heads; divisors of
            `d_model`.
        encoder_ffn_dim, decoder_ffn_dim (`int`, defaults to 2048): Inner width of the feed-forward sublayers.
        activation_function (`str`, defaults to `"relu"`): Activation of the feed-forward sublayers, a key of `ACT2FN`.
        layer_norm_eps (`float`, defaults to 1e-5): Epsilon of the layer norms.
        dropout, attention_dropout, activation_dropout (`float`, defaults to 0.1): Dropout probabilities of embeddings
            and sublayer outputs, of attention weights, and after the activation function.
        word_dropout (`float`, defaults to 0.0): Probability of zeroing the whole embedding of a token, before
            positions are added and without rescaling.
        max_relative_position (`int`, defaults to 8): Clipping distance of the relative positions of both
            self-attentions (Shaw et al., 2018; keys only); 0: none.
        encoder_solver (`str` or `dict`, defaults to `"rk2"`), decoder_solver (`str` or `dict`, defaults to `"euler"`):
            The scheme of a stack's blocks. Runge-Kutta: `"euler"`, `"rk2"`, `"midpoint"`, `"ralston"`, `"rk3"`,
            `"rk4"`, `"rk4_38"`, or any explicit tableau: `{"a": [[], [1.0]], "b": [0.5, 0.5]}` or a `ButcherTableau`
            (`ButcherTableau.from_json_file` reads one). From table 7: `"polynet"`, and the multistep schemes
            `"leapfrog"`, `"multistep"` and `"dlcl"`. They combine a block's increment with the states and increments
            of the blocks below; so does `"nesterov"` (YuriiFormer, Zimin et al., 2026). Corrected schemes:
            `"pcformer"` (Li et al., 2024: one iteration after RK2), `"iiet"` (2025: three after Euler), or any other,
            such as `{"predictor": "rk4", "corrector_iterations": 1}`. A corrected step starts as a prediction `P`.
            Each iteration evaluates F at a learned combination of the history with `P` as its newest entry; the
            result replaces `P`. Corrected schemes need `layer_history="learned_dense"`.
        encoder_coefficients, decoder_coefficients (`str`, defaults to `"fixed"`): The weights of a stack's stages:
            `"fixed"` (the tableau's), `"ones"`, `"learned"` (scalars), `"gate"` (the paper's best, for two stages),
            `"scaled_gate"` (the same with a temperature of `sqrt(2 * d_model)`), `"sigmoid"`, `"tanh"` (a gate for
            each stage) or `"ema"` (PCformer's `alpha * (1 - alpha)^(n - i)`). With a solver of one stage, `"gate"` and
            `"scaled_gate"` raise a `ValueError`; the others have no effect.
        coefficient_sharing (`str`, defaults to `"stack"`): Whether each `"stack"` has one set of coefficients, each
            `"layer"` has its own, or each stack has one per `"channel"` (`"learned"` and `"ema"` only).
        coefficient_start (`str`, *optional*): Where coefficients start. `"learned"` ones: at `"ones"` (their
            default), at the `"tableau"`, at `"euler"` (1, 0, ...: the residual block), or at `"even"` (1/n each).
            Gates: with `"random"` weights (their default), or at `"even"`, with weights of zero.
        normalize_stages (`bool` or `str`, defaults to `False`): Whether each stage has a layer norm, which the layers
            of a stack share (PCformer, Li et al., 2024). `True` normalizes a stage before it is weighted.
            `"released"` does so as soon as it is evaluated, as in PCformer's released code: later stages then start
            from normalized ones.
        stage_values (`str`, defaults to `"increment"`): `"increment"`: F is the block's increment, as in the paper;
            `"output"`: F is the block's output, input included, as in the paper's released code.
        vector_field (`str`, defaults to `"layer"`): What the scheme integrates (figure 4): the whole `"layer"`, only
            the self-`"attention"`, only the `"ffn"`, or each of the `"sublayers"`; the rest is residual. `"macaron"`
            (MacaronNet, Lu et al., 2019) is a layer with a second feed-forward sublayer in front, and both count
            half. In `"macaron_released"`, as in the paper's released code, only the first counts half.
        steps_per_layer (`int`, defaults to 1): Steps of the scheme in each block.
        stack_repeats (`int`, defaults to 1): How often the layers of a stack run: a looped model. Each run takes the
            output of the last one, begins a new history, and shares all parameters.
        step_size (`float`, defaults to 1.0): Size of a step.
        layer_history (`str`, defaults to `"learned_dense"`): What a block reads from the blocks below:
            `"learned_dense"`, a learned combination of their normalized outputs (DLCL, Wang et al., 2019); `"dense"`,
            their mean; `"depth_weighted"`, a learned combination without norms that starts at the last output
            (DenseFormer, Pagliardini et al., 2024); `"dynamic_dense"`, the same with weights for each token
            (MUDDFormer, Xiao et al., 2025); `"attention"`, attention to the embedding and the increments (Attention
            Residuals, Kimi, 2026); `"delta_attention"`, the state plus such an attention (Luo et al., 2026);
            `"hyper_connections"`, a mixture of four streams (mHC, Xie et al., 2025); `"none"`, the last output.
        max_position_embeddings (`int`, defaults to 1024): Number of learned positions. Sinusoidal ones have no limit.
        use_cache (`bool`, defaults to `True`): Whether the decoder returns its cache of keys and values. In training
            mode it does so only if `forward` gets `use_cache=True` or a cache.
        bos_token_id, pad_token_id, eos_token_id, decoder_start_token_id (`int`, defaults to 0, 1, 2, 2): Special
            tokens.

        Fields that only models imported from other families change:

        position_embedding_type (`str`, defaults to `"sinusoidal"`): `"sinusoidal"` (frequencies
            `10000^(-k/(d/2 - 1))`, as in fairseq and M2M100), `"sinusoidal_vaswani"` (`10000^(-2k/d)`, Vaswani et
            al., 2017, as in Pegasus), `"learned"` or `"none"`.
        position_counting (`str`, defaults to `"mask"`): What counts as a position. `"mask"`: the tokens of the
            attention mask, or without one the ids that are not padding. `"ids"`: the ids that are not padding,
            whatever the mask (M2M100). `"absolute"`: every token, padding included (mBART, Pegasus). The first two
            begin after `padding_position`, the last at 0.
        padding_position (`int`, defaults to 1): The position of padding.
        scale_embedding (`bool`, defaults to `True`): Whether embeddings are multiplied by the square root of
            `d_model`.
        embedding_layer_norm (`bool`, defaults to `False`): Whether a layer norm follows the addition of positions, as
            in mBART.
        lm_head_bias (`bool`, defaults to `False`): Whether the output projection has a bias.
        decoder_start_from_labels (`bool`, defaults to `False`): Whether decoder inputs made from labels start with the
            last label (in mBART the language) instead of `decoder_start_token_id`.

    Raises:
        `StrictDataclassFieldValidationError`: a value has the wrong type.
        `StrictDataclassClassValidationError` or `ValueError`: a name is unknown, a number is out of range, or values
            contradict each other. The message names the value and the choices.

    Example:

    ```python
    >>> from modeling_ode_transformer import OdeTransformerConfig, OdeTransformerForConditionalGeneration

    >>> configuration = OdeTransformerConfig(encoder_solver="rk4", d_model=256, encoder_layers=12)
    >>> model = OdeTransformerForConditionalGeneration(configuration)
    ```"""

    model_type = "ode_transformer"
    attribute_map = {
        "hidden_size": "d_model",
        "num_attention_heads": "encoder_attention_heads",
        "num_hidden_layers": "encoder_layers",
    }
    stacks: ClassVar[tuple[str, ...]] = ("encoder", "decoder")
    model_classes = {
        "AutoConfig": "configuration_ode_transformer.OdeTransformerConfig",
        "AutoModel": "modeling_ode_transformer.OdeTransformerModel",
        "AutoModelForSeq2SeqLM": "modeling_ode_transformer.OdeTransformerForConditionalGeneration",
    }

    decoder_vocab_size: int | None = None
    share_encoder_decoder_embeddings: bool = True
    encoder_layers: int = 6
    encoder_attention_heads: int = 8
    encoder_ffn_dim: int = 2048
    encoder_solver: str | dict[str, Any] | ButcherTableau = "rk2"
    encoder_coefficients: str = "fixed"
    is_encoder_decoder: bool = True
    decoder_start_token_id: int | None = 2
    decoder_start_from_labels: bool = False

    @property
    def encoder_layer_calls(self) -> int:
        """As `decoder_layer_calls`."""
        return self.encoder_layers * self.stack_repeats

    @property
    def target_vocab_size(self) -> int:
        return self.vocab_size if self.decoder_vocab_size is None else self.decoder_vocab_size

    def validate_architecture(self):
        """As in the base class."""
        if self.decoder_vocab_size is not None:
            if self.decoder_vocab_size < 1:
                raise ValueError(f"decoder_vocab_size={self.decoder_vocab_size} must be at least 1, or None.")
            if self.share_encoder_decoder_embeddings:
                raise ValueError(
                    f"decoder_vocab_size={self.decoder_vocab_size} is of a decoder with a vocabulary of its own: set "
                    "share_encoder_decoder_embeddings=False, or leave it out."
                )
        super().validate_architecture()


__all__ = ["OdeTransformerConfig", "OdeTransformerDecoderConfig"]
