"""A fresh secret rotation of every frame: all rows of a frame times one Haar matrix of O(D).

It hides coordinates and keeps every norm and every inner product between rows of a frame; what it keeps stays readable.
Refused on the transformer stack, whose weights and rotary positions live in fixed coordinates.
"""

from __future__ import annotations

import torch

from tln.mechanisms.base import Mechanism, MechanismInputs, MechanismSpec, Stage
from tln.mechanisms.gauge import Gauge


class Rotation(Gauge):
    """Haar-distributed, independent for every frame."""

    name = "rotation"
    stage = Stage.GAUGE

    def draw(self, step: int, rows: torch.Tensor) -> torch.Tensor:
        """Matrices Q [N, D, D] in the dtype of the rows."""
        num, _, width = rows.shape
        return self._keys.stream(step, self.name).rotations(num, width).to(rows.device, rows.dtype)

    def act(self, rows: torch.Tensor, secret: torch.Tensor) -> torch.Tensor:
        """rows @ Q."""
        return rows @ secret

    def undo(self, rows: torch.Tensor, secret: torch.Tensor) -> torch.Tensor:
        """rows @ Q transposed."""
        return rows @ secret.transpose(1, 2)


def _build(settings: None, inputs: MechanismInputs) -> list[Mechanism]:  # noqa: ARG001 - it has no settings
    return [Rotation(inputs.keys)]


SPEC = MechanismSpec(
    name=Rotation.name,
    build=_build,
    refusals={"transformer": "its weights and rotary positions live in fixed coordinates"},
)
