"""A fresh secret rotation of every frame: all rows of a frame times one Haar matrix of O(D).

It hides coordinates and keeps every norm and every inner product between rows of a frame; what it keeps stays readable.
Refused on the transformer stack, whose weights and rotary positions live in fixed coordinates.
"""

from __future__ import annotations

import torch

from tln.keys import FrameKeys
from tln.mechanisms.base import Mechanism, MechanismInputs, MechanismSpec, Stage
from tln.mechanisms.gauge import Gauge


class Rotation(Gauge):
    """Haar-distributed, independent for every frame."""

    name = "rotation"
    stage = Stage.GAUGE

    def __init__(self, keys: FrameKeys, num_views: int = 1) -> None:
        """With several views each share of the width has a rotation of its own: nothing mixes between the shares."""
        super().__init__(keys)
        self._num_views = num_views

    def draw(self, step: int, rows: torch.Tensor) -> torch.Tensor:
        """Matrices Q [N, D, D] in the dtype of the rows; block-diagonal with several views."""
        num, _, width = rows.shape
        views = self._num_views
        blocks = self._keys.stream(step, self.name).rotations(num * views, width // views)
        if views > 1:
            blocks = block_diagonal(blocks.reshape(num, views, *blocks.shape[1:]))
        return blocks.to(rows.device, rows.dtype)

    def act(self, rows: torch.Tensor, secret: torch.Tensor) -> torch.Tensor:
        """rows @ Q."""
        return rows @ secret

    def undo(self, rows: torch.Tensor, secret: torch.Tensor) -> torch.Tensor:
        """rows @ Q transposed."""
        return rows @ secret.transpose(1, 2)


def block_diagonal(blocks: torch.Tensor) -> torch.Tensor:
    """Matrices [N, K d, K d] with blocks [N, K, d, d] on the diagonal and 0 elsewhere."""
    num, views, width, _ = blocks.shape
    full = blocks.new_zeros(num, views * width, views * width)
    for view in range(views):
        share = slice(view * width, (view + 1) * width)
        full[:, share, share] = blocks[:, view]
    return full


def _build(settings: None, inputs: MechanismInputs) -> list[Mechanism]:  # noqa: ARG001 - it has no settings
    return [Rotation(inputs.keys, inputs.num_views)]


SPEC = MechanismSpec(
    name=Rotation.name,
    build=_build,
    refusals={"transformer": "its weights and rotary positions live in fixed coordinates"},
)
