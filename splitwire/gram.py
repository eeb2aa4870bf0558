"""The gram surrogate: a small network over a frame's rows that commutes with the secret gauges, so it can train under
them.

Unit rows u and norms r of a frame x [R, D]; g = u u^T. In each layer a router (softmax over experts) reads mean,
standard deviation and maximum of g^2 over a row's other rows; expert e sends messages softmax(exp(log_temperature)
g^2 + w g) * g over the other rows. Then u <- normalise(u + sum over experts of route * gain * message), and, when
radial, r <- r (1 + sum over experts of route * radial_gain * sigmoid(radial_scale r + radial_bias)). Output:
output_gain * r * u.

Commutes with a permutation of the rows and a rotation in O(D). With `sign_invariant` w g becomes w |g|, and it
commutes with a sign for each row; without `radial` also with a scale for each row. With 8 experts and 2 layers it has
161 parameters, 113 without the radial part.

NOT causal: row t reads row t + 1. The architecture is public: an untrusted node runs it, an auditor runs it on that
node's weights.

N frames, R rows, D width, E experts. Computes in float32.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from splitwire.v1 import stack_pb2

_NUM_FEATURES = 3
_EPSILON = 1e-6
_INITIAL_SPREAD = 0.3


class GramLayer(nn.Module):
    """One round of messages. With 8 experts: 8 x 6 scalars (8 x 3 without the radial part), a router Linear(3, 8)."""

    def __init__(self, settings: stack_pb2.GramSettings, generator: torch.Generator) -> None:
        super().__init__()
        count = settings.num_experts

        def scalars() -> nn.Parameter:
            return nn.Parameter(torch.randn(count, generator=generator) * _INITIAL_SPREAD)

        self.sign_invariant = settings.sign_invariant
        self.radial = settings.radial
        self.log_temperature = scalars()
        self.linear_weight = scalars()
        self.message_gain = scalars()
        if settings.radial:
            self.radial_scale = scalars()
            self.radial_bias = scalars()
            self.radial_gain = scalars()
        self.router_weight = nn.Parameter(torch.randn(count, _NUM_FEATURES, generator=generator) * _INITIAL_SPREAD)
        self.router_bias = nn.Parameter(torch.zeros(count))

    def forward(self, unit_NRD: torch.Tensor, norm_NR1: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Unit rows and norms after one round."""
        gram_NRR = unit_NRD @ unit_NRD.transpose(1, 2)
        itself_RR = torch.eye(unit_NRD.shape[1], dtype=torch.bool, device=unit_NRD.device)
        route_NRE = torch.softmax(
            functional.linear(row_features(gram_NRR, itself_RR), self.router_weight, self.router_bias), dim=-1
        )
        mixed_NRR = self._messages(gram_NRR, itself_RR, route_NRE)
        if self.radial:
            response_NRE = torch.sigmoid(norm_NR1 * self.radial_scale + self.radial_bias)
            norm_NR1 = norm_NR1 * (1.0 + (route_NRE * self.radial_gain * response_NRE).sum(dim=-1, keepdim=True))
        return functional.normalize(unit_NRD + mixed_NRR @ unit_NRD, dim=-1, eps=_EPSILON), norm_NR1

    def _messages(self, gram_NRR: torch.Tensor, itself_RR: torch.Tensor, route_NRE: torch.Tensor) -> torch.Tensor:
        """Weight of row j in the sum for row i; expert by expert, so that memory is one [N, R, R] at a time."""
        squared_NRR = gram_NRR.square()
        linear_NRR = gram_NRR.abs() if self.sign_invariant else gram_NRR
        mixed_NRR = torch.zeros_like(gram_NRR)
        for expert in range(route_NRE.shape[-1]):
            temperature = self.log_temperature[expert].exp()
            score_NRR = temperature * squared_NRR + self.linear_weight[expert] * linear_NRR
            attention_NRR = torch.softmax(score_NRR.masked_fill(itself_RR, float("-inf")), dim=-1)
            gain_NR1 = route_NRE[..., expert : expert + 1] * self.message_gain[expert]
            mixed_NRR = mixed_NRR + gain_NR1 * attention_NRR * gram_NRR
        return mixed_NRR


class GramNetwork(nn.Module):
    """All layers and the output gain; [N, R, D] in, the same out."""

    def __init__(self, settings: stack_pb2.GramSettings, generator: torch.Generator) -> None:
        super().__init__()
        self.layers = nn.ModuleList([GramLayer(settings, generator) for _ in range(settings.num_layers)])
        self.output_gain = nn.Parameter(torch.ones(()))

    def forward(self, rows_NRD: torch.Tensor) -> torch.Tensor:
        """The surrogate's output rows."""
        norm_NR1 = rows_NRD.norm(dim=-1, keepdim=True)
        unit_NRD = rows_NRD / norm_NR1.clamp_min(_EPSILON)
        for layer in self.layers:
            unit_NRD, norm_NR1 = layer(unit_NRD, norm_NR1)
        output_NRD: torch.Tensor = self.output_gain * norm_NR1 * unit_NRD
        return output_NRD


def row_features(gram_NRR: torch.Tensor, itself_RR: torch.Tensor) -> torch.Tensor:
    """Mean, standard deviation and maximum [N, R, 3] of g^2 over each row's other rows."""
    squared_NRR = gram_NRR.square().masked_fill(itself_RR, 0.0)
    count = gram_NRR.shape[-1] - 1
    mean_NR1 = squared_NRR.sum(dim=-1, keepdim=True) / count
    deviation_NRR = (squared_NRR - mean_NR1).masked_fill(itself_RR, 0.0)
    # the epsilon keeps the gradient finite where all other rows are equally near
    spread_NR1 = (deviation_NRR.square().sum(dim=-1, keepdim=True) / count + _EPSILON).sqrt()
    return torch.cat([mean_NR1, spread_NR1, squared_NRR.amax(dim=-1, keepdim=True)], dim=-1)
