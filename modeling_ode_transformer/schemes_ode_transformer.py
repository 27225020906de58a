# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Schemes, coefficients and layer histories that are not the paper's method: those it compares with, and successors.

Importing this module adds them to the tables of `integration_ode_transformer.py`.
"""

from collections.abc import Callable

import torch
from torch import nn

from .integration_ode_transformer import (
    COEFFICIENTS,
    HISTORIES,
    SCHEMES,
    GateCoefficients,
    LayerHistory,
    LearnedDenseLayerHistory,
    MultistepScheme,
    StageCoefficients,
    StageGate,
    clamp_half,
    weighted_sum,
)


class ScaledGateCoefficients(GateCoefficients):
    """The gate `g = sigmoid(([F1; F2] W + b) / sqrt(2d))`. Its temperature, like attention's, lets updates of W change
    the gate less."""

    def forward(self, stages):
        stages = torch.cat(list(stages), dim=-1)
        g = torch.sigmoid(stages.shape[-1] ** -0.5 * self.gate(stages))
        return g, 1 - g


class EmaCoefficients(StageCoefficients):
    """`gamma_i = alpha (1 - alpha)^(n - i)` (PCformer, NeurIPS 2024). The learned alpha, the parameter `weight`, is a
    scalar or has one entry per channel, and starts at 1/2."""

    can_be_per_channel = True

    def initial_weight(self) -> torch.Tensor:
        return torch.full(self.channels or (1,), 0.5)

    def forward(self, stages):
        return [self.weight * (1 - self.weight) ** (len(stages) - i) for i in range(1, len(stages) + 1)]


class LeapfrogScheme(MultistepScheme):
    """`y_{t+1} = y_{t-1} + 2 F(y_t)` (He et al., 2019), of order 2."""

    def forward(self, steps):
        state, increment = steps[-1]
        if len(steps) == 1:
            return state + increment
        return torch.add(steps[-2][0], increment, alpha=2)


class LearnedMultistepScheme(MultistepScheme):
    """`y_{t+1} = k_t y_t + (1 - k_t) y_{t-1} + F(y_t)` (Lu et al., 2018) with a learned `k` for each step. All start
    at 1, which is Euler's scheme. In the first step `y_{-1}` is `y_0`, so that its `k` has no effect."""

    def initial_weight(self) -> torch.Tensor:
        return torch.ones(self.num_steps)

    def forward(self, steps):
        state, increment = steps[-1]
        previous = steps[-2][0] if len(steps) > 1 else state
        k = self.weight[len(steps) - 1].to(state.device)
        return k * state + (1 - k) * previous + increment


class DynamicLinearCombinationScheme(MultistepScheme):
    """DLCL as a scheme: `y_{t+1} = y_0 + sum_{l <= t} W_l F(y_l)` (Wang et al., 2019) with a learned row W for each
    step. All start at 1, which is Euler's scheme."""

    def initial_weight(self) -> torch.Tensor:
        return torch.tril(torch.ones(self.num_steps, self.num_steps))

    def forward(self, steps):
        weights = self.weight[len(steps) - 1, : len(steps)].unbind()
        return weighted_sum(steps[0][0], weights, [increment for _, increment in steps])


class NesterovScheme(MultistepScheme):
    """Nesterov's acceleration (YuriiFormer, Zimin et al., 2026): `V_{t+1} = beta_t V_t + gamma_t F(y_t + mu_t V_t)`
    and `y_{t+1} = y_t + V_{t+1}`, `V_0 = 0`. The rows of `weight` are mu, beta and gamma, one scalar for each step.
    They start at 0, 0 and 1, which is Euler's scheme. The stored increment is V."""

    def initial_weight(self) -> torch.Tensor:
        return torch.tensor([[0.0], [0.0], [1.0]]).repeat(1, self.num_steps)

    def increment(self, vector_field, y, steps):
        mu, beta, gamma = self(steps, at=y)  # by a call, which loads offloaded weights
        if not steps:
            return gamma * vector_field(y)
        velocity = steps[-1][1]
        return beta * velocity + gamma * vector_field(y + mu * velocity)

    def forward(self, steps, at=None):
        """The next state, or the numbers of the step `at` a state."""
        if at is not None:
            return self.weight[:, len(steps)].to(at.device).unbind()
        state, velocity = steps[-1]
        return state + velocity


class DepthWeightedLayerHistory(LayerHistory):
    """DenseFormer (Pagliardini et al., 2024): after block i the state is `sum_j a_ij X_j` over the embedding X_0 and
    the blocks' outputs X_j so far, without norms. The learned `a` starts at the identity: the last output."""

    def initial_weight(self) -> torch.Tensor:
        return torch.eye(self.num_layers + 1)[1:]

    def forward(self, states):
        if len(states) == 1:
            return states[0]
        first, *others = self.weight[len(states) - 2, : len(states)].to(states[0].device).unbind()
        return clamp_half(weighted_sum(first * states[0], others, states[1:]))

    def extend(self, states, y, output):
        return [*states, output]


class DynamicDenseLayerHistory(LayerHistory):
    """Dynamic dense connections (MUDDFormer, Xiao et al., 2025): after block i the state of each token is `sum_j a_j
    X_j`, `a = W GELU(V RMSNorm(X_i) + b) + c`, with V, b, W and c of the block. They start at the last output: W is 0.
    The paper also makes queries, keys and values of combinations of their own; a stage of a scheme has one state."""

    def __init__(self, num_layers, hidden_size, eps):
        super().__init__(num_layers, hidden_size, eps)
        self.eps = eps
        self.hidden = nn.ModuleList(StageGate(hidden_size, i + 1) for i in range(1, num_layers + 1))
        self.gates = nn.ModuleList(StageGate(i + 1, i + 1, (0.0,) * i + (1.0,)) for i in range(1, num_layers + 1))

    def forward(self, states):
        if len(states) == 1:
            return states[0]
        i = len(states) - 2
        last = root_mean_square_norm(states[-1], self.eps)
        weights = self.gates[i](nn.functional.gelu(self.hidden[i](last))).split(1, dim=-1)
        return clamp_half(weighted_sum(weights[0] * states[0], weights[1:], states[1:]))

    def extend(self, states, y, output):
        return [*states, output]


def in_full_precision(state: torch.Tensor) -> torch.Tensor:
    """A state in float32 or float64: squares are large in half precision."""
    return state if state.dtype == torch.float64 else state.float()


def root_mean_square_norm(state: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm without a scale, computed in full precision."""
    x = in_full_precision(state)
    return (x * (x.square().mean(dim=-1, keepdim=True) + eps).rsqrt()).to(state.dtype)


class AttentionLayerHistory(LayerHistory):
    """Attention Residuals (Kimi, 2026): block l reads `sum_i softmax_i(q_l . RMSNorm(v_i)) v_i` for each token, over
    the embedding v_0 and the increments v_i of the blocks below; so does the end of the stack. The learned queries
    start at zero: the mean. (A scale in the norm would only be another factor of the query.)"""

    attends_at_end = True

    def __init__(self, num_layers, hidden_size, eps):
        self.shape, self.eps = (num_layers - (not self.attends_at_end), hidden_size), eps
        super().__init__(num_layers, hidden_size, eps)

    def initial_weight(self) -> torch.Tensor:
        return torch.zeros(self.shape)

    def forward(self, states):
        return states[0] if len(states) == 1 else self.attend(states)

    def attend(self, values: list[torch.Tensor]) -> torch.Tensor:
        query = self.weight[len(values) - 2].to(values[0].device)
        scores = torch.stack(
            [self.score(query, in_full_precision(value)) for value in values]
        )  # (values, batch, length)
        first, *others = scores.softmax(dim=0).to(values[0].dtype).unsqueeze(-1).unbind()
        return weighted_sum(first * values[0], others, values[1:])

    def score(self, query: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return (value * query).sum(dim=-1) * (value.square().mean(dim=-1) + self.eps).rsqrt()

    def extend(self, states, y, output):
        return [*states, clamp_half(output - y.to(output.device))]


class DeltaAttentionLayerHistory(AttentionLayerHistory):
    """Delta Attention Residuals (Luo et al., 2026), by block: the state x stays, and block l reads `x_l + sum_i
    softmax_i(q_l . RMSNorm(v_i)) v_i` with the values of `AttentionLayerHistory`, the first block only x_0. The end of
    the stack reads x."""

    attends_at_end = False

    def __init__(self, num_layers, hidden_size, eps):
        super().__init__(num_layers, hidden_size, eps)
        if num_layers == 1:
            self.weight = None  # nothing attends: DDP waits for the gradient of every parameter

    def forward(self, states):
        x, *values = states
        return x if len(values) in (0, self.num_layers + 1) else clamp_half(x + self.attend(values))

    def extend(self, states, y, output):
        x, *values = states
        *values, increment = super().extend(values or [x], y, output)
        return [clamp_half(x + increment), *values, increment]


class HyperConnectionLayerHistory(LayerHistory):
    """Manifold-constrained hyper-connections (Xie et al., 2025) around blocks. Each token has four streams X, all the
    embedding at first. A block reads `p . X`; with its increment F the streams become `q F + C^T X`. Of a linear layer
    of the normalized streams, [m_p; m_q; m_C], `p = sigmoid(m_p)`, `q = 2 sigmoid(m_q)`, and C is the matrix that
    Sinkhorn's iterations make of `exp(m_C)`: its rows and columns sum to 1. The end of the stack reads `p . X`. The
    equations are those of DeepSeek V4 in transformers, where attention and feed-forward are blocks of their own."""

    num_streams, iterations, epsilon = 4, 20, 1e-6

    def __init__(self, num_layers, hidden_size, eps):
        super().__init__(num_layers, hidden_size, eps)
        n, self.eps = self.num_streams, eps
        self.mixers = nn.ModuleList(StageGate(n * hidden_size, (2 + n) * n) for _ in range(num_layers))
        self.head = StageGate(n * hidden_size, n)

    def forward(self, states):
        streams, i = self.streams(states), len(states) - 1
        mixed = self.mix(self.mixers[i] if i < self.num_layers else self.head, streams)
        p = torch.sigmoid(mixed[..., : self.num_streams]) + self.epsilon
        return clamp_half((p.to(streams.dtype).unsqueeze(-1) * streams).sum(dim=-2))

    def extend(self, states, y, output):
        streams, n = self.streams(states), self.num_streams
        mixed = self.mix(self.mixers[len(states) - 1], streams)
        q, C = 2 * torch.sigmoid(mixed[..., n : 2 * n]), mixed[..., 2 * n :].unflatten(-1, (n, n)).softmax(dim=-1)
        C = C + self.epsilon
        for i in range(2 * self.iterations - 1):
            C = C / (C.sum(dim=-2 if i % 2 == 0 else -1, keepdim=True) + self.epsilon)
        q, C = q.to(streams.dtype), C.to(streams.dtype)
        streams = q.unsqueeze(-1) * (output - y).to(streams.device).unsqueeze(-2) + C.mT @ streams
        return [clamp_half(streams)] * (len(states) + 1)  # as many as blocks have run, and one

    def streams(self, states: list[torch.Tensor]) -> torch.Tensor:
        """The streams (batch, length, streams, d): copies of the embedding, or what `extend` made."""
        x = states[-1]
        return x if len(states) > 1 else x.unsqueeze(-2).repeat_interleave(self.num_streams, dim=-2)

    def mix(self, linear: StageGate, streams: torch.Tensor) -> torch.Tensor:
        """A linear layer of the normalized streams, in full precision: (batch, length, numbers)."""
        return in_full_precision(linear(root_mean_square_norm(streams.flatten(-2), self.eps))).to(streams.device)


class CorrectorHistory(LearnedDenseLayerHistory):
    """The corrector of PCformer (Li et al., NeurIPS 2024) and IIET (EMNLP 2025). It reads the layer history H with a
    prediction as its newest entry, under its own weights `w` and norms `P`. The layer history has the weights `v`,
    which make the next block's input, and the norms `C`."""

    def correct(
        self,
        evaluations: range,
        history: LearnedDenseLayerHistory,
        states: list[torch.Tensor],
        evaluate: Callable[[torch.Tensor, int], torch.Tensor],
        y: torch.Tensor,
        prediction: torch.Tensor,
    ) -> torch.Tensor:
        """Returns what joins the history instead of a block's prediction: `h = layer(sum_l w_l H_l)`, first with
        `P(prediction)` as the newest entry, then with `C(h)`.

        Args:
            evaluations: the numbers of the evaluations, one for each iteration.
            history: the layer history, which made `y` from `states`.
            states: the entries of the history.
            evaluate: maps a state (batch, length, d) and an evaluation's number to the block's output, input included.
            y: the block's input, (batch, length, d).
            prediction: the block's output for `y`.
        """
        newest = self.extend(states, y, clamp_half(prediction))
        for evaluation in evaluations:
            output = clamp_half(evaluate(self(newest).to(prediction.device), evaluation))
            if evaluation != evaluations[-1]:
                newest = history.extend(states, y, output)
        return output


COEFFICIENTS |= {"scaled_gate": ScaledGateCoefficients, "ema": EmaCoefficients}
SCHEMES |= {
    "leapfrog": LeapfrogScheme,
    "multistep": LearnedMultistepScheme,
    "dlcl": DynamicLinearCombinationScheme,
    "nesterov": NesterovScheme,
}
HISTORIES |= {
    "depth_weighted": DepthWeightedLayerHistory,
    "dynamic_dense": DynamicDenseLayerHistory,
    "attention": AttentionLayerHistory,
    "delta_attention": DeltaAttentionLayerHistory,
    "hyper_connections": HyperConnectionLayerHistory,
}
