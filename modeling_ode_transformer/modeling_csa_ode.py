# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""CSAODE: continuous self-attention models with neural ODE networks, for one sentence or two.

A forward pass embeds the words, and an n-gram convolution makes the local representation `H_L`. From there the
self-attention block `F` is integrated, `dG/dt = F(G + P)`, up to the global representation `H_G`. Euclidean attention
from the global to the local vectors and a gate of two scalars fuse them. The sentence's vector has the largest entries
over all words, and a linear layer classifies it. Padding is masked everywhere. Equation numbers are the paper's.
"""

from dataclasses import dataclass

import torch
from torch import nn
from transformers import initialization as init
from transformers.modeling_outputs import ModelOutput
from transformers.modeling_utils import PreTrainedModel
from transformers.utils import auto_docstring, can_return_tuple

from .configuration_csa_ode import NO_SOLVER, CsaOdeConfig
from .solvers_csa_ode import solve


@dataclass
@auto_docstring(custom_intro="What `CsaOdeModel` returns.")
class CsaOdeModelOutput(ModelOutput):
    r"""
    last_hidden_state (`torch.FloatTensor` of shape `(batch, length, hidden_size)`):
        H_O, the fused representation (eq. 13), zero for padding.
    pooler_output (`torch.FloatTensor` of shape `(batch, hidden_size)`):
        Its largest entries over the words of each sentence.
    num_function_evaluations (`torch.LongTensor` of shape `(batch,)`):
        How often the self-attention block was evaluated for each sentence.
    hidden_states (`tuple` of two `torch.FloatTensor` of shape `(batch, length, hidden_size)`, *optional*):
        The local and the global representation, H_L and H_G; with `output_hidden_states=True`.
    attentions (`tuple` of `torch.FloatTensor` of shape `(batch, 1, length, length)`, *optional*):
        The self-attention of each evaluation, in order; with `output_attentions=True`, like what follows.
    evaluation_times (`torch.FloatTensor` of shape `(evaluations, batch)`, *optional*):
        The integration time of each evaluation; for stacked blocks the number of the block, from 0.
    euclidean_attention (`torch.FloatTensor` of shape `(batch, length, length)`, *optional*):
        E of eq. 11: the rows are the global vectors, the columns the local ones.
    """

    last_hidden_state: torch.FloatTensor | None = None
    pooler_output: torch.FloatTensor | None = None
    num_function_evaluations: torch.LongTensor | None = None
    hidden_states: tuple[torch.FloatTensor, ...] | None = None
    attentions: tuple[torch.FloatTensor, ...] | None = None
    evaluation_times: torch.FloatTensor | None = None
    euclidean_attention: torch.FloatTensor | None = None


@dataclass
@auto_docstring(custom_intro="What `CsaOdeForSequenceClassification` returns.")
class CsaOdeSequenceClassifierOutput(ModelOutput):
    r"""
    loss (`torch.FloatTensor` of shape `()`, *optional*):
        The loss, if there are labels.
    logits (`torch.FloatTensor` of shape `(batch, num_labels)`):
        The scores of the classes, before a softmax; or the values of a regression.
    num_function_evaluations (`torch.LongTensor` of shape `(batch,)`):
        How often the self-attention block was evaluated for each example; for a pair, the sum over both sentences.
    hidden_states, attentions, evaluation_times, euclidean_attention:
        As in `CsaOdeModelOutput`; a batch of n pairs counts as 2n sentences: the n first ones, then the n second ones.
    """

    loss: torch.FloatTensor | None = None
    logits: torch.FloatTensor | None = None
    num_function_evaluations: torch.LongTensor | None = None
    hidden_states: tuple[torch.FloatTensor, ...] | None = None
    attentions: tuple[torch.FloatTensor, ...] | None = None
    evaluation_times: torch.FloatTensor | None = None
    euclidean_attention: torch.FloatTensor | None = None


def position_encoding(positions: torch.Tensor, size: int, constant: float) -> torch.Tensor:
    """Returns P of eq. 3 for `positions` (batch, length), counted from 1: (batch, length, size), in float64 if the
    device has it. Dimensions count from 1 too: the first is a cosine of frequency 1."""
    dtype = torch.float32 if positions.device.type == "mps" else torch.float64
    dimensions = torch.arange(1, size + 1, device=positions.device)
    is_even = dimensions % 2 == 0
    frequencies = constant ** (torch.where(is_even, dimensions, dimensions - 1).to(dtype) / size)
    angles = positions.unsqueeze(-1) * frequencies
    return torch.where(is_even, angles.sin(), angles.cos())


class CsaOdeNgramConvolution(nn.Module):
    """The local representation of each n-gram (eq. 2), followed by zero vectors after the last one. A sentence with
    fewer than n words is one n-gram that ends in zero vectors."""

    def __init__(self, config: CsaOdeConfig):
        super().__init__()
        self.ngram_size = config.ngram_size
        self.linear = nn.Linear(config.ngram_size * config.embedding_size, config.hidden_size)

    def forward(self, embeddings: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Takes embeddings (batch, length, embedding_size), zero where the bool mask (batch, length) is False. Returns
        (batch, length, hidden_size)."""
        rest, length = self.ngram_size - 1, embeddings.shape[1]
        embeddings = nn.functional.pad(embeddings, (0, 0, 0, rest))
        ngrams = torch.cat([embeddings[:, i : i + length] for i in range(self.ngram_size)], dim=-1)
        later = nn.functional.pad(mask, (0, rest))
        is_whole = torch.stack([later[:, i : i + length] for i in range(self.ngram_size)]).all(dim=0)
        is_short = mask.sum(dim=1, keepdim=True) < self.ngram_size
        is_first = mask & (mask.cumsum(dim=1) == 1)
        return self.linear(ngrams).relu() * (is_whole | (is_short & is_first)).unsqueeze(-1)


class CsaOdeBlock(nn.Module):
    """The self-attention block F: encoding with position (eq. 4) and self-attention (eq. 5)."""

    def __init__(self, config: CsaOdeConfig):
        super().__init__()
        size = config.hidden_size
        self.position_proj = nn.Linear(size, size)
        self.position_norm = nn.LayerNorm(size, eps=config.layer_norm_eps)
        self.q_proj = nn.Linear(size, size, bias=False)
        self.k_proj = nn.Linear(size, size, bias=False)
        self.v_proj = nn.Linear(size, size, bias=False)
        self.out_proj = nn.Linear(size, size, bias=False) if config.attention_output_projection else nn.Identity()
        self.norm = nn.LayerNorm(size, eps=config.layer_norm_eps)

    def forward(
        self, hidden_states: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Args:
            hidden_states, positions: the state and its position encoding, (batch, length, hidden_size).
            mask: bool (batch, length), False for padding.

        Returns:
            F, zero for padding, of the state's shape, and the attention (batch, length, length), with the attending
            words as rows.
        """
        x = (hidden_states + positions).to(self.position_proj.weight.dtype)
        x = self.position_norm(self.position_proj(x)).relu()
        scores = torch.matmul(self.q_proj(x), self.k_proj(x).transpose(1, 2))
        scores = scores.masked_fill(~mask.unsqueeze(1), torch.finfo(scores.dtype).min)
        attention = scores.softmax(dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(x.dtype)
        output = self.norm(self.out_proj(torch.matmul(attention, self.v_proj(x)))).relu()
        return output * mask.unsqueeze(-1), attention


class CsaOdeFusion(nn.Module):
    """Euclidean attention and gate (eqs. 11-13). The gate's two scalars start at 1/2 and count relative to
    the sum of their magnitudes, as in figure 6."""

    def __init__(self, config: CsaOdeConfig):
        super().__init__()
        self.distance_epsilon = config.distance_epsilon
        self.gate = nn.Parameter(self.initial_gate())
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def initial_gate(self) -> torch.Tensor:
        return torch.full((2,), 0.5)

    def forward(
        self, local_states: torch.Tensor, global_states: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Args:
            local_states, global_states: H_L and H_G, (batch, length, hidden_size).
            mask: bool (batch, length), False for padding.

        Returns:
            H_O, of the same shape, and E (batch, length, length), zero where the local vector is padding.
        """
        # Computed from differences: products would lose small distances. There is no half-precision version.
        distances = torch.cdist(
            global_states.to(torch.promote_types(global_states.dtype, torch.float32)),
            local_states.to(torch.promote_types(local_states.dtype, torch.float32)),
            compute_mode="donot_use_mm_for_euclid_dist",
        )
        attention = distances.clamp(min=self.distance_epsilon).reciprocal() * mask.unsqueeze(1)
        attended = torch.matmul(attention.to(local_states.dtype), local_states)
        local_weight, global_weight = (self.gate / self.gate.abs().sum()).unbind()
        return self.norm(local_weight * local_states + global_weight * attended), attention


@auto_docstring
class CsaOdePreTrainedModel(PreTrainedModel):
    config: CsaOdeConfig
    config_class = CsaOdeConfig
    base_model_prefix = "model"
    _no_split_modules = ["CsaOdeBlock", "CsaOdeFusion", "CsaOdeNgramConvolution"]

    def __init__(self, config: CsaOdeConfig, *args, **kwargs):
        # Fields may have changed since construction, as in `from_pretrained(folder, field=value)`.
        config.validate()
        super().__init__(config, *args, **kwargs)

    def _init_weights(self, module):
        if isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            init.normal_(module.weight, mean=0.0, std=self.config.initializer_range)
            if module.padding_idx is not None and not getattr(module.weight, "_is_hf_initialized", False):
                init.zeros_(module.weight[module.padding_idx])
        elif isinstance(module, CsaOdeFusion):
            init.copy_(module.gate, module.initial_gate())
        else:
            super()._init_weights(module)

    def save_pretrained(self, save_directory, *args, **kwargs):
        """Saves as in transformers; the configuration also names the code for each Auto class that opens the model."""
        if self.is_remote_code():
            classes = {
                "AutoConfig": type(self.config),
                "AutoModel": CsaOdeModel,
                "AutoModelForSequenceClassification": CsaOdeForSequenceClassification,
            }
            names = {key: f"{each.__module__.split('.')[-1]}.{each.__name__}" for key, each in classes.items()}
            self.config.auto_map = (getattr(self.config, "auto_map", None) or {}) | names
        return super().save_pretrained(save_directory, *args, **kwargs)


@auto_docstring(custom_intro="CSAODE without a classifier: sentences to vectors.")
class CsaOdeModel(CsaOdePreTrainedModel):
    def __init__(self, config: CsaOdeConfig):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.embedding_size, config.pad_token_id)
        self.dropout = nn.Dropout(config.dropout)
        self.convolution = CsaOdeNgramConvolution(config) if config.ngram_size else None
        self.blocks = nn.ModuleList(CsaOdeBlock(config) for _ in range(config.num_blocks))
        self.fusion = CsaOdeFusion(config)
        self.post_init()

    @can_return_tuple
    @auto_docstring
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> CsaOdeModelOutput:
        r"""
        attention_mask (`torch.Tensor` of shape `(batch, length)`, *optional*):
            0 for padding; by default, the ids say what is padding. A sentence with only padding counts as one padding
            word.
        """
        given = input_ids if inputs_embeds is None else inputs_embeds
        if attention_mask is not None:
            mask = attention_mask.bool()
        elif input_ids is not None and self.config.pad_token_id is not None:
            mask = input_ids != self.config.pad_token_id
        else:
            mask = torch.ones(given.shape[:2], dtype=torch.bool, device=given.device)
        first = torch.arange(mask.shape[1], device=mask.device) == 0
        mask = mask | (first & ~mask.any(dim=1, keepdim=True))

        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)
        mask = mask.to(inputs_embeds.device)
        embeddings = self.dropout(inputs_embeds) * mask.unsqueeze(-1)
        local_states = embeddings if self.convolution is None else self.convolution(embeddings, mask)
        recorded = [] if self._option(output_attentions, "output_attentions") else None
        global_states, evaluations = self._integrate(local_states, mask, recorded)
        fused, euclidean_attention = self.fusion(local_states, global_states, mask)
        is_padding = ~mask.unsqueeze(-1).to(fused.device)
        outputs = CsaOdeModelOutput(
            last_hidden_state=fused.masked_fill(is_padding, 0.0),
            pooler_output=fused.masked_fill(is_padding, torch.finfo(fused.dtype).min).amax(dim=1),
            num_function_evaluations=evaluations,
        )
        if self._option(output_hidden_states, "output_hidden_states"):
            outputs.hidden_states = (local_states, global_states)
        if recorded is not None:
            outputs.attentions = tuple(attention.unsqueeze(1) for attention, _ in recorded)
            times = [torch.as_tensor(time, dtype=torch.float32, device=mask.device) for _, time in recorded]
            outputs.evaluation_times = torch.stack([time.expand(mask.shape[0]) for time in times])
            outputs.euclidean_attention = euclidean_attention
        return outputs

    def attention(self, states: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """The (first) block's self-attention for `states` (batch, length, hidden_size), (batch, length, length). The
        mask (batch, length) is 0 for padding. For states between evaluations, such as the last one."""
        mask = attention_mask.bool()
        return self.blocks[0](states, self._positions(mask).to(states.dtype), mask)[1]

    def _option(self, value: bool | None, name: str) -> bool:
        return getattr(self.config, name) if value is None else value

    def _positions(self, mask: torch.Tensor) -> torch.Tensor:
        return position_encoding(mask.cumsum(dim=1), self.config.hidden_size, self.config.position_constant)

    def _integrate(
        self, local_states: torch.Tensor, mask: torch.Tensor, recorded: list | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Integrates from H_L to H_G; returns it and the number of evaluations. `recorded` collects the attention and
        time of each."""
        dtype = local_states.dtype
        # Small steps and tolerances need more digits than half precision offers.
        states = local_states.to(torch.promote_types(dtype, torch.float32))
        positions = self._positions(mask).to(states.dtype)

        def evaluate(block, states, time):
            output, attention = block(states, positions, mask)
            if recorded is not None:
                recorded.append((attention, time))
            return output.to(states)

        if self.config.solver == NO_SOLVER:
            first, *others = self.blocks
            states = evaluate(first, states, 0.0)
            for number, block in enumerate(others, 1):
                states = states + evaluate(block, states, float(number))
            return states.to(dtype), mask.new_full((mask.shape[0],), len(self.blocks), dtype=torch.int64)
        block = self.blocks[0]
        parameters = None
        if self.config.gradient == "adjoint":
            parameters = [parameter for parameter in block.parameters() if parameter.requires_grad]
        states, evaluations = solve(
            self.config.solver,
            lambda states, time: evaluate(block, states, time),
            states,
            self.config.solver_options,
            mask,
            parameters,
        )
        return states.to(dtype), evaluations


@auto_docstring(
    custom_intro="""
    CSAODE with a linear classifier (eq. 14) of a sentence's vector, or of the vectors u and v of two sentences, as
    `[u, v, |u - v|, u * v]` (Conneau et al., 2017; the paper does not say).
    """
)
class CsaOdeForSequenceClassification(CsaOdePreTrainedModel):
    # Losses for regression and for several labels ignore the number of examples in an update.
    accepts_loss_kwargs = False

    def __init__(self, config: CsaOdeConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = CsaOdeModel(config)
        self.dropout = nn.Dropout(config.dropout)
        vectors = 1 if config.num_sentences == 1 else 4
        self.classifier = nn.Linear(vectors * config.hidden_size, config.num_labels)
        self.post_init()

    @can_return_tuple
    @auto_docstring
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> CsaOdeSequenceClassifierOutput:
        r"""
        attention_mask (`torch.Tensor` of shape `(batch, length)`, *optional*):
            0 for padding; by default, the ids say what is padding.
        token_type_ids (`torch.LongTensor` of shape `(batch, length)`, *optional*):
            For pairs, 0 for the words of the first sentence and 1 for those of the second.
        labels (`torch.Tensor` of shape `(batch,)` or `(batch, num_labels)`, *optional*):
            Classes, several labels, or values, according to `config.problem_type`.
        """
        if self.config.num_sentences == 2:
            input_ids, attention_mask, inputs_embeds = self._split_pairs(
                input_ids, attention_mask, token_type_ids, inputs_embeds
            )
        elif token_type_ids is not None and token_type_ids.any():
            raise ValueError("The model has num_sentences=1, but token_type_ids mark a second sentence.")
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            inputs_embeds=inputs_embeds,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
        )
        vector, evaluations = outputs.pooler_output, outputs.num_function_evaluations
        if self.config.num_sentences == 2:
            first, second = vector.chunk(2)
            vector = torch.cat([first, second, (first - second).abs(), first * second], dim=-1)
            evaluations = evaluations.view(2, -1).sum(dim=0)
        logits = self.classifier(self.dropout(vector))
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
        return CsaOdeSequenceClassifierOutput(
            loss=loss,
            logits=logits,
            num_function_evaluations=evaluations,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            evaluation_times=outputs.evaluation_times,
            euclidean_attention=outputs.euclidean_attention,
        )

    def _split_pairs(
        self,
        input_ids: torch.Tensor | None,
        attention_mask: torch.Tensor | None,
        token_type_ids: torch.Tensor | None,
        inputs_embeds: torch.Tensor | None,
    ) -> tuple[torch.Tensor | None, torch.Tensor, torch.Tensor | None]:
        """Returns ids, mask and embeddings of n pairs as 2n rows: the n first sentences, then the n second ones."""
        if token_type_ids is None:
            raise ValueError("The model has num_sentences=2 and needs token_type_ids: 0 and 1 for the two sentences.")
        if attention_mask is None and input_ids is not None and self.config.pad_token_id is not None:
            attention_mask = input_ids != self.config.pad_token_id
        elif attention_mask is None:
            attention_mask = torch.ones_like(token_type_ids)
        is_second = token_type_ids.bool()
        masks = torch.cat([attention_mask.bool() & ~is_second, attention_mask.bool() & is_second])
        if not masks.any(dim=1).all():
            raise ValueError("The model has num_sentences=2, but token_type_ids give a pair with an empty sentence.")
        # The words of each sentence come first, in order.
        order = (~masks).to(torch.uint8).argsort(dim=1, stable=True)[:, : int(masks.sum(dim=1).max())]
        ids, embeddings = (
            None if each is None else torch.cat([each, each])[torch.arange(order.shape[0])[:, None], order]
            for each in (input_ids, inputs_embeds)
        )
        return ids, masks.gather(1, order), embeddings


__all__ = ["CsaOdeForSequenceClassification", "CsaOdeModel", "CsaOdePreTrainedModel"]
