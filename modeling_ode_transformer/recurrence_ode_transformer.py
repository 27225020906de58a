# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The recurrence encoder of Hao et al., "Modeling Recurrence for Transformer" (NAACL 2019): a second encoder over the
source's word embeddings. The decoder attends to it beside the first encoder. Equation numbers are the paper's.

Where the paper is silent:

- Each direction has the model's width, so that the mean of the input can be its initial state. A linear layer projects
  the two, concatenated (eq. 9), back to that width.
- Attention has heads and projections like the model's other attentions, as many heads as the encoder's, and separate
  parameters for each direction.
- Dropout is the Transformer's: on embeddings, outputs of sublayers, attention weights, and after the activation
  function.
"""

import torch
from torch import nn
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer

from .configuration_recurrence_ode_transformer import OdeTransformerRecurrenceConfig


class OdeTransformerBidirectionalLinear(nn.Module):
    """Two linear layers of a recurrence, one for each direction."""

    def __init__(self, in_features: int, out_features: int):
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = nn.Parameter(torch.empty(2, out_features, in_features))
        self.bias = nn.Parameter(torch.empty(2, 1, out_features))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Takes (2, rows, in) and returns (2, rows, out)."""
        return torch.baddbmm(self.bias, x, self.weight.transpose(1, 2))


def mean_of_words(hidden_states: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """The mean (batch, d) of the states (batch, length, d) of the words in the mask (batch, length)."""
    if mask is None:
        return hidden_states.mean(dim=1)
    weights = mask.unsqueeze(-1).to(hidden_states.dtype)
    return (hidden_states * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)


def orders_of_words(hidden_states: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """The positions (2, batch, length) in the reading order of each direction: the words forwards and backwards, then
    padding."""
    length = hidden_states.shape[1]
    positions = torch.arange(length, device=hidden_states.device).expand(hidden_states.shape[:2])
    if mask is None:
        return torch.stack([positions, positions.flip(1)])
    return torch.stack([key.masked_fill(~mask, length).argsort(dim=1, stable=True) for key in (positions, -positions)])


def to_words(states: torch.Tensor, orders: torch.Tensor) -> torch.Tensor:
    """Returns the states of both directions side by side, (batch, length, 2d), each at the word where it was read.
    `states` (2, batch, length, d) are in the order of reading, which `orders` (2, batch, length) gives."""
    places = orders.unsqueeze(-1).expand(states.shape)
    return torch.cat(torch.zeros_like(states).scatter(2, places, states).unbind(), dim=-1)


class OdeTransformerBiRnn(nn.Module):
    """A bidirectional GRU (eqs. 9-11). It reads only words, wherever padding is, and starts from the mean of the
    input."""

    def __init__(self, config: OdeTransformerRecurrenceConfig):
        super().__init__()
        self.directions = nn.ModuleList(nn.GRU(config.d_model, config.d_model, batch_first=True) for _ in range(2))
        self.merge = nn.Linear(2 * config.d_model, config.d_model)

    def forward(self, hidden_states: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Takes states (batch, length, d) of the words in `mask` (batch, length), and returns a state for each."""
        start = mean_of_words(hidden_states, mask).unsqueeze(0)
        orders = orders_of_words(hidden_states, mask)
        states = [
            gru(hidden_states.gather(1, order.unsqueeze(-1).expand_as(hidden_states)), start)[0]
            for gru, order in zip(self.directions, orders)
        ]
        return self.merge(to_words(torch.stack(states), orders))


class OdeTransformerBiArn(nn.Module):
    """The bidirectional attentive recurrent network (eqs. 12-13): `c_t = ATT(h_{t-1}, H)`, `h_t = GRU(h_{t-1}, c_t)`,
    starting from the mean of H. The directions are two networks side by side; the second counts its steps from the end
    (eqs. 9 and 11). Neither knows the order of the words."""

    def __init__(self, config: OdeTransformerRecurrenceConfig):
        super().__init__()
        d = config.d_model
        self.num_steps = config.recurrence_steps
        self.head_dim = d // config.encoder_attention_heads
        self.attention_dropout = nn.Dropout(config.attention_dropout)
        self.kv_proj = nn.Linear(d, 4 * d)  # the keys and the values of both directions
        # From the previous state: the query, and the reset, update and new gates.
        self.state_proj = OdeTransformerBidirectionalLinear(d, 4 * d)
        self.out_proj = OdeTransformerBidirectionalLinear(d, d)
        self.context_proj = OdeTransformerBidirectionalLinear(d, 3 * d)
        self.merge = nn.Linear(2 * d, d)

    def forward(self, hidden_states: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Attends to the states (batch, length, d) in `mask` (batch, length). Returns (batch, steps, d); if there is a
        step for each word, (batch, length, d), at the places of the words."""
        batch_size, length, d = hidden_states.shape
        num_steps = self.num_steps or length
        # (keys or values, directions * batch * heads, length, head_dim)
        keys_and_values = self.kv_proj(hidden_states).view(batch_size, length, 4, -1, self.head_dim)
        keys, values = keys_and_values.permute(2, 0, 3, 1, 4).reshape(2, -1, length, self.head_dim)
        hidden = keys.new_zeros(1, 1, length).expand(len(keys), -1, -1)
        if mask is not None:
            # A row without words would have no weights.
            visible = mask | ~mask.any(dim=1, keepdim=True)
            hidden = torch.zeros_like(visible, dtype=keys.dtype).masked_fill(~visible, torch.finfo(keys.dtype).min)
            hidden = hidden.view(1, batch_size, 1, length).expand(2, -1, d // self.head_dim, -1)
            hidden = hidden.reshape(-1, 1, length)

        def step(state: torch.Tensor) -> torch.Tensor:
            query, state_gates, state_new = self.state_proj(state).split((d, 2 * d, d), dim=-1)
            query = query.reshape(len(keys), 1, self.head_dim) * self.head_dim**-0.5
            weights = torch.baddbmm(hidden, query, keys.transpose(1, 2)).softmax(dim=-1)
            context = torch.bmm(self.attention_dropout(weights), values).reshape(2, batch_size, d)
            context = self.context_proj(self.out_proj(context))
            context_gates, context_new = context.split((2 * d, d), dim=-1)
            reset, update = torch.sigmoid(context_gates + state_gates).chunk(2, dim=-1)
            new = torch.tanh(context_new + reset * state_new)
            return new + update * (state - new)

        state = mean_of_words(hidden_states, mask).expand(2, -1, -1)
        states = []
        for _ in range(num_steps):
            state = step(state)
            states.append(state)
        # As slices of `stack(states, dim=2)`, states would have strides that inductor fixes in the backward pass.
        states = torch.stack(states).permute(1, 2, 0, 3)  # (directions, batch, steps, d)
        if self.num_steps is None:
            return self.merge(to_words(states, orders_of_words(hidden_states, mask)))
        forward, backward = states
        return self.merge(torch.cat([forward, backward.flip(1)], dim=-1))


RECURRENCES: dict[str, type[nn.Module]] = {"birnn": OdeTransformerBiRnn, "biarn": OdeTransformerBiArn}


class OdeTransformerRecurrenceLayer(GradientCheckpointingLayer):
    """`C = LN(REC(H) + H)`, `H = LN(FFN(C) + C)` (eqs. 7-8). The bottom layer has no residual connection around REC,
    because its output may have another length."""

    def __init__(self, config: OdeTransformerRecurrenceConfig, is_bottom: bool):
        super().__init__()
        self.is_bottom = is_bottom
        self.dropout, self.activation_dropout = nn.Dropout(config.dropout), nn.Dropout(config.activation_dropout)
        self.recurrence = RECURRENCES[config.recurrence_encoder](config)
        self.recurrence_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.activation_fn = ACT2FN[config.activation_function]
        self.fc1 = nn.Linear(config.d_model, config.encoder_ffn_dim)
        self.fc2 = nn.Linear(config.encoder_ffn_dim, config.d_model)
        self.final_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)

    def forward(self, hidden_states: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        c = self.dropout(self.recurrence(hidden_states, mask))
        c = self.recurrence_layer_norm(c if self.is_bottom else c + hidden_states)
        h = self.activation_dropout(self.activation_fn(self.fc1(c)))
        return self.final_layer_norm(c + self.dropout(self.fc2(h)))


class OdeTransformerRecurrentNetwork(nn.Module):
    """The recurrence encoder (section 3.1): layers over the scaled word embeddings, without positions."""

    def __init__(self, config: OdeTransformerRecurrenceConfig):
        super().__init__()
        self.dropout = nn.Dropout(config.dropout)
        self.has_words = config.recurrence_has_words
        self.layers = nn.ModuleList(
            OdeTransformerRecurrenceLayer(config, is_bottom=number == 0) for number in range(config.recurrence_layers)
        )

    def forward(self, inputs_embeds: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        """Encodes the embeddings (batch, length, d) of words, which are not 0 in `attention_mask` (batch, length);
        None: all are words. Returns (batch, recurrence_steps, d), or (batch, length, d) if there is a state for each
        word; do not use the states of padding."""
        mask = None if attention_mask is None else attention_mask != 0
        hidden_states = self.dropout(inputs_embeds)
        for layer in self.layers:
            hidden_states = layer(hidden_states, mask)
            if not self.has_words:
                mask = None
        return hidden_states
