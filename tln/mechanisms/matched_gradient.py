"""Gradient rows for decoys, drawn from the distribution of real ones: the gradient policy `matched`.

Decoys bear no loss, so their gradient is zero. On its way to the wire each zero row is replaced by an earlier real
gradient row, as it was before clip and noise, in the frame's own coordinates before its gauges. The earlier row is
scaled by the ratio of the typical norms of the two frames, since gradient norms rise and fall by frame. Clip and fresh
noise of the gradient policy come afterwards, so no gradient row is ever re-sent as it was released.

What it does not do: a decoy's gradient row has nothing to do with its forward row, so an attack that reads both
together may tell them apart; the untrusted node also trains on what decoys bear. Both are for the audit to measure.

Invariants: rows come from earlier steps only, never from the frame they are put into, and no row twice in a frame.
Nothing crosses before the pool is full; it is filled with gradients computed on this node alone.

Unit of the pool: a row [D] on the gram stack, a whole sequence [T * H] on the transformer stack, where the norms along
a sequence belong together. Shapes: G frames (1 on the transformer stack), U units a frame, W values a unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from tln.context import StepContext
from tln.keys import FrameKeys
from tln.mechanisms.base import Description, Mechanism, StackName, Stage
from tln.mechanisms.pool import DecoyPool


class MatchedGradient(Mechanism):
    """Fills zero gradient units on the way back; forward it does nothing."""

    name = "matched_gradient"
    stage = Stage.BEAR

    def __init__(self, pool_size: int, stack: StackName, keys: FrameKeys) -> None:
        super().__init__()
        self.pool = DecoyPool(pool_size)
        self.is_latent = stack == "gram"
        self._keys = keys

    @property
    def is_ready(self) -> bool:
        """Whether the pool is full."""
        return self.pool.is_full

    @property
    def needs_gradients(self) -> bool:
        """As long as the pool is not full."""
        return not self.pool.is_full

    def absorb_gradient(self, gradient: torch.Tensor) -> None:
        """Puts every unit of [N, R, D] that bears loss into the pool, scaled to a frame of typical norm 1."""
        units = self._units(gradient)
        bearing = units.any(dim=-1)
        scaled = units / _typical_norm(units, bearing)[:, None, None]
        self.pool.add(scaled[bearing], None)

    def restore(self, rows: torch.Tensor, context: StepContext) -> torch.Tensor:
        """The rows as they are; their gradient is filled."""
        if context.mode != "train":
            return rows
        filled: torch.Tensor = _Fill.apply(rows, self, context.step)  # type: ignore[no-untyped-call]
        return filled

    def fill(self, gradient: torch.Tensor, step: int) -> torch.Tensor:
        """The gradient [N, R, D] with its zero units drawn from earlier real ones; real units then enter the pool."""
        units = self._units(gradient)
        bearing = units.any(dim=-1)
        num, size = bearing.shape
        chosen = self._keys.stream(step, self.name).subsets(num, self.pool.capacity, size)
        drawn, _ = self.pool.take(torch.from_numpy(chosen))
        drawn = drawn.to(units) * _typical_norm(units, bearing)[:, None, None]
        filled = torch.where(bearing.unsqueeze(-1), units, drawn)
        self.absorb_gradient(gradient)
        return filled.view(gradient.shape)

    def state(self) -> dict[str, torch.Tensor]:
        """The pool, for a checkpoint. TLN only."""
        return self.pool.state()

    def load_state(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """The pool of a checkpoint."""
        self.pool.load_state(tensors)

    def describe(self) -> Description:
        """Pool size."""
        return {"pool_size": self.pool.capacity}

    def _units(self, gradient: torch.Tensor) -> torch.Tensor:
        """[G, U, W]."""
        return gradient if self.is_latent else gradient.flatten(1).unsqueeze(0)


class _Fill(torch.autograd.Function):
    """Identity whose gradient is filled."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, matched: MatchedGradient, step: int) -> torch.Tensor:
        ctx.matched, ctx.step = matched, step
        return rows.view_as(rows)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return ctx.matched.fill(gradient, ctx.step), None, None


def _typical_norm(units: torch.Tensor, bearing: torch.Tensor) -> torch.Tensor:
    """Geometric mean [G] of the norms of the units that bear loss; of all frames where a frame has none, else 1."""
    logs = torch.linalg.vector_norm(units, dim=-1).clamp_min(np.finfo(np.float32).tiny).log()
    counts = bearing.sum(dim=1)
    means = torch.where(bearing, logs, 0.0).sum(dim=1) / counts.clamp_min(1)
    overall = means[counts > 0].mean() if bool((counts > 0).any()) else means.new_zeros(())
    return torch.where(counts > 0, means, overall).exp()
