"""The gram surrogate (splitwire.gram) as a session's computation: it trains in place of the layers.

NOT causal: row t reads row t + 1. So there is no inference session, no KV cache and no generation, and a score that
must not see the future has to be taken on prefixes. Computes in float32.

N frames, R rows, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from splitwire.errors import FrameError, LimitError, StateError
from splitwire.gram import GramNetwork
from splitwire.v1 import stack_pb2
from ucn.stacks.base import ForwardCall, StackLimits, start_seed
from ucn.stacks.training import TrainingStack

_MIN_ROWS = 2


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
