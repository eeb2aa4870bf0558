"""What the gauges have in common: a secret change of every frame that the untrusted node's computation commutes with.

A gauge is drawn from the frame keys by (session, step, name) and nothing else, so that who holds the run key can draw
it again and undo it on recorded rows (`tln.replay`). FORWARD and RETURN rows carry the gauge itself; gradient rows
carry its inverse transpose, which is the same for a rotation and a permutation and the reciprocal for a scale.

Shapes: N frames, R rows, D width.
"""

from __future__ import annotations

import torch

from tln.context import ProtectedFrame, RowTruth, StepContext
from tln.keys import FrameKeys
from tln.mechanisms.base import Mechanism


class Gauge(Mechanism):
    """A mechanism that is all gauge. Subclasses say how it is drawn, applied and undone."""

    def __init__(self, keys: FrameKeys) -> None:
        super().__init__()
        self._keys = keys

    def draw(self, step: int, rows: torch.Tensor) -> torch.Tensor:
        """The secret of a step for rows [N, R, D], on their device. TLN and auditor only."""
        raise NotImplementedError

    def act(self, rows: torch.Tensor, secret: torch.Tensor) -> torch.Tensor:
        """Rows [N, R, D] under the gauge; `secret` is what `draw` gave."""
        raise NotImplementedError

    def undo(self, rows: torch.Tensor, secret: torch.Tensor) -> torch.Tensor:
        """FORWARD or RETURN rows [N, R, D] without it."""
        raise NotImplementedError

    def undo_gradient(self, rows: torch.Tensor, secret: torch.Tensor) -> torch.Tensor:
        """BACKWARD or INPUT_GRADIENT rows [N, R, D] without it."""
        return self.undo(rows, secret)

    def move_truth(self, truth: RowTruth | None, secret: torch.Tensor) -> RowTruth | None:  # noqa: ARG002 - default
        """The truth about the rows after `act`."""
        return truth

    def protect(self, frame: ProtectedFrame, context: StepContext) -> ProtectedFrame:
        """Draws the gauge of the step and applies it."""
        secret = self.draw(context.step, frame.rows)
        context.stash[self.name] = secret
        return ProtectedFrame(self.act(frame.rows, secret), self.move_truth(frame.truth, secret))

    def restore(self, rows: torch.Tensor, context: StepContext) -> torch.Tensor:
        """Undoes the gauge of the step on returned rows [N, R, D]."""
        return self.undo(rows, context.stash.pop(self.name))
