"""A fresh secret order of the rows of every frame.

Refused on the transformer stack, whose attention and position embeddings need the rows in order.
"""

from __future__ import annotations

import torch

from tln.context import ProtectedFrame, StepContext
from tln.keys import FrameKeys
from tln.mechanisms.base import Mechanism, MechanismInputs, MechanismSpec, Stage, map_truth


class Permutation(Mechanism):
    """Uniform over all orders, independent for every frame."""

    name = "permutation"
    stage = Stage.ARRANGE

    def __init__(self, keys: FrameKeys) -> None:
        super().__init__()
        self._keys = keys

    def protect(self, frame: ProtectedFrame, context: StepContext) -> ProtectedFrame:
        """Row r of the frame becomes old row order[r]."""
        num, size = frame.rows.shape[:2]
        order = torch.from_numpy(self._keys.stream(context.step, self.name).permutations(num, size))
        context.stash[self.name] = order.argsort(dim=1)
        truth = map_truth(frame.truth, lambda values: values.gather(1, order))
        return ProtectedFrame(take_rows(frame.rows, order), truth)

    def restore(self, rows: torch.Tensor, context: StepContext) -> torch.Tensor:
        """The rows in their first order."""
        return take_rows(rows, context.stash.pop(self.name))


def take_rows(rows: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Rows [N, R, D] at indices [N, K]: result [N, K, D]."""
    return rows.gather(1, indices.to(rows.device).unsqueeze(-1).expand(-1, -1, rows.shape[-1]))


def _build(settings: None, inputs: MechanismInputs) -> list[Mechanism]:  # noqa: ARG001 - it has no settings
    return [Permutation(inputs.keys)]


SPEC = MechanismSpec(
    name=Permutation.name,
    build=_build,
    refusals={"transformer": "its attention and its positions need the rows in order"},
)
