# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The configuration of CSAODE: its fields and their validation."""

from difflib import get_close_matches

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from .solvers_csa_ode import SOLVERS, SolverOptions


NO_SOLVER = "none"


@strict
class CsaOdeConfig(PreTrainedConfig):
    r"""
    The configuration of CSAODE, a continuous self-attention model of texts and of pairs of texts. The defaults are
    the paper's CSAARK: 300 wide, 0.63M parameters without the embeddings. Two things differ from
    the paper's text. `dropout` drops a tenth of the entries; the text keeps a tenth. There is no weight normalization;
    the text does not say which weights it normalizes.

    Args:
        vocab_size (`int`, defaults to 10000): Size of the vocabulary.
        embedding_size (`int`, defaults to 300): Width of the word embeddings.
        hidden_size (`int`, defaults to 300): Width of the model, the paper's `d`.
        ngram_size (`int`, defaults to 2): Words of a filter of the convolution (eq. 2); 0: no convolution, the
            embeddings are the local representation.
        solver (`str`, defaults to `"ark"`): How the self-attention block is integrated: `"rk"` (CSARK: classical RK4),
            `"rkf"` (CSARKF: adaptive Runge-Kutta-Fehlberg), `"ark"` (CSAARK: accelerated Runge-Kutta), or `"none"`:
            `num_blocks` blocks one after the other, each with its own parameters, all but the first added to its
            input (table 2's rows without ODE).
        step_size (`float`, defaults to 0.2): r, the size of a step: more than 0 and at most 1, less than 1 for
            `"ark"`. There are `ceil(1 / r)` steps of this size, which end beyond time 1 where `1 / r` is not whole.
            For `"rkf"` it is the size of the first step tried, and the end is 1.
        rtol, atol (`float`, defaults to 1e-3 and 1e-4): Tolerances of `"rkf"`.
        max_solver_steps (`int`, defaults to 1000): Most steps of `"rkf"`.
        num_blocks (`int`, defaults to 1): Number of blocks; more than one without a solver only.
        gradient (`str`, defaults to `"direct"`): Whether gradients go through all evaluations (`"direct"`), or are
            found by the `"adjoint"` method, which needs torchdiffeq, more time, and memory that does not grow with the
            number of steps. They differ by the error of the solvers, and are the same in the limit of small steps.
        attention_output_projection (`bool`, defaults to `True`): Whether the attention's output is multiplied by one
            more (d, d) matrix before it is normalized. Equation 5 has none, but the paper's numbers of parameters, at
            all sizes of tables 2 and 3, have one more such matrix than its equations.
        position_constant (`float`, defaults to 1e-4): c of the position encoding (eq. 3).
        distance_epsilon (`float`, defaults to 1e-3): Least distance of the Euclidean attention, which is 1 over the
            distance (eq. 11); nearer vectors count as this far apart.
        num_sentences (`int`, defaults to 1): 1, or 2 for pairs of sentences; `token_type_ids` say to which sentence
            each word belongs.
        dropout (`float`, defaults to 0.1): Probability of dropping entries of the word embeddings and of the
            classifier's input.
        layer_norm_eps (`float`, defaults to 1e-5): Epsilon of the layer norms.
        initializer_range (`float`, defaults to 0.1): Standard deviation of new word embeddings. Matrices start by
            Xavier's rule.
        pad_token_id (`int`, defaults to 0): The padding token, whose embedding is zero.

    Raises:
        `StrictDataclassFieldValidationError`: a value has the wrong type.
        `StrictDataclassClassValidationError` or `ValueError`: a name is unknown, a number is out of range, or values
            contradict each other. The message names the value and the choices.

    Example:

    ```python
    >>> from modeling_ode_transformer import CsaOdeConfig, CsaOdeForSequenceClassification

    >>> configuration = CsaOdeConfig(solver="rk", step_size=0.1, num_labels=6)
    >>> model = CsaOdeForSequenceClassification(configuration)
    ```"""

    model_type = "csa_ode"
    keys_to_ignore_at_inference = [
        "num_function_evaluations",
        "hidden_states",
        "attentions",
        "evaluation_times",
        "euclidean_attention",
    ]
    attribute_map = {"num_hidden_layers": "num_blocks"}

    vocab_size: int = 10000
    embedding_size: int = 300
    hidden_size: int = 300
    ngram_size: int = 2
    solver: str = "ark"
    step_size: float | int = 0.2
    rtol: float | int = 1e-3
    atol: float | int = 1e-4
    max_solver_steps: int = 1000
    num_blocks: int = 1
    gradient: str = "direct"
    attention_output_projection: bool = True
    position_constant: float | int = 1e-4
    distance_epsilon: float | int = 1e-3
    num_sentences: int = 1
    dropout: float | int = 0.1
    layer_norm_eps: float | int = 1e-5
    initializer_range: float | int = 0.1
    pad_token_id: int | None = 0

    def __new__(cls, *args, **kwargs):
        # A saved configuration may hold any name, and names its version.
        for name in () if "transformers_version" in kwargs else kwargs:
            if not hasattr(cls, name) and (field := get_close_matches(name, cls.__dataclass_fields__, 1, 0.85)):
                raise ValueError(f"{name}={kwargs[name]!r} is not a field: did you mean {field[0]}?")
        return super().__new__(cls)

    def __post_init__(self, **kwargs):
        super().__post_init__(**kwargs)
        # Not checked on saving: `Trainer` sets it to the tokenizer's.
        if self.pad_token_id is not None and not 0 <= self.pad_token_id < self.vocab_size:
            raise ValueError(
                f"pad_token_id={self.pad_token_id} is not an id below vocab_size={self.vocab_size}: give the "
                "tokenizer's pad_token_id, or None."
            )

    @property
    def solver_options(self) -> SolverOptions:
        return SolverOptions(self.step_size, self.rtol, self.atol, self.max_solver_steps)

    @property
    def solver_fields(self) -> tuple[str, ...]:
        """The fields that the solver uses."""
        if self.solver == NO_SOLVER:
            return ("num_blocks",)
        tolerances = ("rtol", "atol", "max_solver_steps") if SOLVERS[self.solver].is_adaptive else ()
        return ("step_size", *tolerances, "gradient")

    @property
    def num_function_evaluations(self) -> int | None:
        """How often the forward pass of a sentence evaluates a self-attention block; None if an adaptive solver
        decides."""
        if self.solver == NO_SOLVER:
            return self.num_blocks
        solver = SOLVERS[self.solver]
        return None if solver.is_adaptive else solver.evaluations(self.solver_options.num_steps)

    def validate_architecture(self):
        """Part of the validation at construction and on save: names, ranges, and combinations of fields."""
        choices = {
            "solver": (*SOLVERS, NO_SOLVER),
            "gradient": ("direct", "adjoint"),
            "num_sentences": (1, 2),
        }
        for field, allowed in choices.items():
            if getattr(self, field) not in allowed:
                raise ValueError(
                    f"{field}={getattr(self, field)!r} is unknown: choose one of {', '.join(map(str, allowed))}."
                )
        for field in ("vocab_size", "embedding_size", "hidden_size", "max_solver_steps", "num_blocks"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field}={getattr(self, field)} must be at least 1.")
        if self.ngram_size < 0:
            raise ValueError(f"ngram_size={self.ngram_size} must not be negative; 0 means no convolution.")
        positive = ("step_size", "rtol", "atol", "position_constant", "distance_epsilon", "layer_norm_eps")
        for field in (*positive, "initializer_range"):
            value = getattr(self, field)
            if not 0 < value < 1e9:
                raise ValueError(f"{field}={value} must be a positive number.")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout={self.dropout} must be a probability, at least 0 and less than 1.")
        if self.step_size > 1 or (self.step_size == 1 and self.solver == "ark"):
            most = "less than 1 for solver='ark', whose first step is RK4's" if self.solver == "ark" else "at most 1"
            raise ValueError(f"step_size={self.step_size} must be {most}.")
        if self.num_blocks > 1 and self.solver != NO_SOLVER:
            raise ValueError(
                f"num_blocks={self.num_blocks}, but solver={self.solver!r} integrates one block: set num_blocks=1, or "
                f"solver={NO_SOLVER!r} to stack blocks."
            )
        if self.gradient == "adjoint" and self.solver == NO_SOLVER:
            raise ValueError(
                f"gradient='adjoint' needs an ODE solver, not solver={NO_SOLVER!r}: set gradient='direct'."
            )
        if self.ngram_size == 0 and self.embedding_size != self.hidden_size:
            raise ValueError(
                f"Without a convolution (ngram_size=0) embeddings are not projected: embedding_size="
                f"{self.embedding_size} must equal hidden_size={self.hidden_size}."
            )
        super().validate_architecture()


__all__ = ["CsaOdeConfig"]
