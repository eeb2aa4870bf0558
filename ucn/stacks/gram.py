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

NOT causal: row t reads row t + 1. So there is no inference session, no KV cache and no generation, and a score that
must not see the future has to be taken on prefixes.

N frames, R rows, D width, E experts. Computes in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from splitwire.errors import FrameError, LimitError, StateError
from splitwire.v1 import stack_pb2
from ucn.stacks.base import ForwardCall, StackLimits, start_seed
from ucn.stacks.training import TrainingStack

_NUM_FEATURES = 3
_EPSILON = 1e-6
_MIN_ROWS = 2
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


class GramStack(TrainingStack):
    """Implements `Stack` over a GramNetwork of the session's own."""

    def __init__(
        self,
        request: stack_pb2.OpenSessionRequest,
        device: torch.device,
        limits: StackLimits,
        generator: torch.Generator | None = None,
    ) -> None:
        self._width = request.gram.width
        self._device = device
        self._max_pairs = limits.max_pairs
        start = generator or own_generator(common=request.common_start)
        self._network = GramNetwork(request.gram, start).to(device)
        parameters = dict(self._network.named_parameters())
        super().__init__(parameters, request.optimizer, limits.max_kept_steps, _facts(request.gram))

    def forward(self, rows: torch.Tensor, call: ForwardCall) -> torch.Tensor:
        """Rows [N, R, D] through the surrogate, float32."""
        self._check(rows, call)
        rows = rows.to(device=self._device, dtype=torch.float32)
        if call.mode == "evaluate":
            with torch.no_grad():
                output: torch.Tensor = self._network(rows)
            return output
        return self._forward_kept(call.step, rows, self._network)

    def cache_bytes_for(self, call: ForwardCall, shape: Sequence[int]) -> int:  # noqa: ARG002 - one signature for all
        """0: there is no cache."""
        return 0

    def cache_reorder(self, cache_id: int, indices: Sequence[int]) -> None:  # noqa: ARG002 - one signature for all
        """Refused."""
        raise _no_cache(cache_id)

    def cache_crop(self, cache_id: int, num_positions: int) -> None:  # noqa: ARG002 - one signature for all
        """Refused."""
        raise _no_cache(cache_id)

    def cache_release(self, cache_id: int) -> None:
        """Refused."""
        raise _no_cache(cache_id)

    def _check(self, rows: torch.Tensor, call: ForwardCall) -> None:
        if call.mode == "cached":
            raise StateError(
                f"step {call.step}: the gram stack has no KV cache, since it is not causal",
                remedy="generate with a transformer stack",
            )
        if rows.ndim != 3 or rows.shape[-1] != self._width or rows.shape[1] < _MIN_ROWS:
            raise FrameError(
                f"step {call.step}: rows have shape {tuple(rows.shape)}",
                remedy=f"send [frames, at least {_MIN_ROWS} rows, {self._width}] to this surrogate",
            )
        if call.row_lengths:
            raise FrameError(f"step {call.step}: row_lengths with a gram stack", remedy="send full frames only")
        num_pairs = rows.shape[0] * rows.shape[1] ** 2
        if num_pairs > self._max_pairs:
            raise LimitError(
                f"step {call.step}: {num_pairs} pairs of rows exceed {self._max_pairs}", remedy="send fewer frames"
            )


def row_features(gram_NRR: torch.Tensor, itself_RR: torch.Tensor) -> torch.Tensor:
    """Mean, standard deviation and maximum [N, R, 3] of g^2 over each row's other rows."""
    squared_NRR = gram_NRR.square().masked_fill(itself_RR, 0.0)
    count = gram_NRR.shape[-1] - 1
    mean_NR1 = squared_NRR.sum(dim=-1, keepdim=True) / count
    deviation_NRR = (squared_NRR - mean_NR1).masked_fill(itself_RR, 0.0)
    # the epsilon keeps the gradient finite where all other rows are equally near
    spread_NR1 = (deviation_NRR.square().sum(dim=-1, keepdim=True) / count + _EPSILON).sqrt()
    return torch.cat([mean_NR1, spread_NR1, squared_NRR.amax(dim=-1, keepdim=True)], dim=-1)


def own_generator(*, common: bool = False) -> torch.Generator:
    """The generator of the first weights; see `start_seed`."""
    return torch.Generator().manual_seed(start_seed(common=common))


def _no_cache(cache_id: int) -> StateError:
    return StateError(f"cache {cache_id} cannot exist in a gram stack", remedy="use caches with a transformer stack")


def _facts(settings: stack_pb2.GramSettings) -> dict[str, Any]:
    return {
        "stack": "gram",
        "width": settings.width,
        "num_experts": settings.num_experts,
        "num_layers": settings.num_layers,
        "radial": settings.radial,
        "sign_invariant": settings.sign_invariant,
    }
