"""A fresh secret order of the rows of every frame.

Refused on the transformer stack, whose attention and position embeddings need the rows in order.
"""

from __future__ import annotations

import torch

from tln.context import RowTruth
from tln.mechanisms.base import Mechanism, MechanismInputs, MechanismSpec, Stage, map_truth
from tln.mechanisms.gauge import Gauge


class Permutation(Gauge):
    """Uniform over all orders, independent for every frame."""

    name = "permutation"
    stage = Stage.ARRANGE

    def draw(self, step: int, rows: torch.Tensor) -> torch.Tensor:
        """Orders [N, R]: row r of a frame becomes old row order[r]."""
        num, size = rows.shape[:2]
        return torch.from_numpy(self._keys.stream(step, self.name).permutations(num, size))

    def act(self, rows: torch.Tensor, secret: torch.Tensor) -> torch.Tensor:
        """The rows in the secret order."""
        return take_rows(rows, secret)

    def undo(self, rows: torch.Tensor, secret: torch.Tensor) -> torch.Tensor:
        """The rows in their first order."""
        return take_rows(rows, secret.argsort(dim=1))

    def move_truth(self, truth: RowTruth | None, secret: torch.Tensor) -> RowTruth | None:
        """The truth in the same order."""
        return map_truth(truth, lambda values: values.gather(1, secret))


def take_rows(rows: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Rows [N, R, D] at indices [N, K]: result [N, K, D]."""
    num, size, width = rows.shape
    first = torch.arange(num, device=rows.device).unsqueeze(1) * size
    places = (first + indices.to(rows.device)).flatten()
    # whole rows: a gather of single values costs three times as much, most of it in its gradient
    return rows.flatten(0, 1).index_select(0, places).view(num, -1, width)


def _build(settings: None, inputs: MechanismInputs) -> list[Mechanism]:  # noqa: ARG001 - it has no settings
    return [Permutation(inputs.keys)]


SPEC = MechanismSpec(
    name=Permutation.name,
    build=_build,
    refusals={"transformer": "its attention and its positions need the rows in order"},
)
