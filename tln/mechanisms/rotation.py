"""A fresh secret rotation of every frame: all rows of a frame times one Haar matrix of O(D).

It hides coordinates and keeps every norm and every inner product between rows of a frame; what it keeps stays readable.
Refused on the transformer stack, whose weights and rotary positions live in fixed coordinates.
"""

from __future__ import annotations

import torch

from tln.context import ProtectedFrame, StepContext
from tln.keys import FrameKeys
from tln.mechanisms.base import Mechanism, MechanismInputs, MechanismSpec, Stage


class Rotation(Mechanism):
    """Haar-distributed, independent for every frame."""

    name = "rotation"
    stage = Stage.GAUGE

    def __init__(self, keys: FrameKeys) -> None:
        super().__init__()
        self._keys = keys

    def protect(self, frame: ProtectedFrame, context: StepContext) -> ProtectedFrame:
        """rows [N, R, D] @ Q [N, D, D]."""
        num, _, width = frame.rows.shape
        rotation = self._keys.stream(context.step, self.name).rotations(num, width)
        rotation = rotation.to(frame.rows.device, frame.rows.dtype)
        context.stash[self.name] = rotation
        return ProtectedFrame(frame.rows @ rotation, frame.truth)

    def restore(self, rows: torch.Tensor, context: StepContext) -> torch.Tensor:
        """rows @ Q transposed."""
        rotation: torch.Tensor = context.stash.pop(self.name)
        return rows @ rotation.transpose(1, 2)


def _build(settings: None, inputs: MechanismInputs) -> list[Mechanism]:  # noqa: ARG001 - it has no settings
    return [Rotation(inputs.keys)]


SPEC = MechanismSpec(
    name=Rotation.name,
    build=_build,
    refusals={"transformer": "its weights and rotary positions live in fixed coordinates"},
)
