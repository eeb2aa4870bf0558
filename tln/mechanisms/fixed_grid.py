"""int8 on one fixed grid: every value becomes the nearest of 255 multiples of limit / 127, straight-through.

An int8 wire with a scale a row sends the largest value of each row beside it, which tells about the row's size, and
rows of every size get the same relative precision, which takes the secret out of a scale gauge. Here the grid is the
same for every row of every frame, so a scale on the wire tells nothing that the settings do not. Values beyond the
limit are clamped: choose it over the range that gauges and noise reach (clip_norm * (1 + 4 noise_multiplier), times
frame.scale_sign.largest where that gauge is on).

It acts last, after the gauges, on what would cross: the rows that the rest of the step sees are the rows that the
other node decodes, bit for bit. Backwards it is the identity, and zero for a value that was clamped. It is compression,
not a defence: rounding is no noise. Needs stack.request_dtype = "int8" (checked in tln.settings). Gradient rows are not
on the grid: they cross as int8 with a scale a row.

Source: Privacy Failure in Split-LLM Training, wire quantisation over the gauge clamp range.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from splitwire.errors import SettingsError
from splitwire.frames import INT8_MAX
from tln.context import ProtectedFrame, StepContext
from tln.mechanisms.base import Description, Mechanism, MechanismInputs, MechanismSpec, StackName, Stage


@dataclass(frozen=True)
class FixedGridSettings:
    """The range of the grid."""

    limit: float = 2.5
    """Largest absolute value on the grid; what is beyond is clamped. The grid step is limit / 127."""


class FixedGrid(Mechanism):
    """Rounds rows to multiples of `scale`."""

    name = "fixed_grid"
    stage = Stage.QUANTISE

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.limit = limit

    @property
    def scale(self) -> float:
        """The grid step, as the float32 that crosses."""
        return torch.tensor(self.limit / INT8_MAX, dtype=torch.float32).item()

    def protect(self, frame: ProtectedFrame, context: StepContext) -> ProtectedFrame:  # noqa: ARG002 - the seam
        """Rows [N, R, D] on the grid, float32."""
        clamped = frame.rows.float().clamp(-self.limit, self.limit)
        on_grid = (clamped.detach() / self.scale).round().clamp(-INT8_MAX, INT8_MAX) * self.scale
        return ProtectedFrame(_StraightThrough.apply(clamped, on_grid), frame.truth)  # type: ignore[no-untyped-call]

    def describe(self) -> Description:
        """Range and step."""
        return {"limit": self.limit, "step": self.scale}


class _StraightThrough(torch.autograd.Function):
    """Gives the second tensor, and its gradient to the first: adding and subtracting would leave the grid."""

    @staticmethod
    def forward(ctx: object, rows: torch.Tensor, on_grid: torch.Tensor) -> torch.Tensor:  # noqa: ARG004 - torch's
        return on_grid.view_as(on_grid)

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # noqa: ARG004 - torch's
        return gradient, None


def _check(settings: FixedGridSettings, stack: StackName) -> None:  # noqa: ARG001 - the registry's signature
    if not (math.isfinite(settings.limit) and settings.limit > 0):
        raise SettingsError(f"frame.fixed_grid.limit is {settings.limit}", remedy="use a finite number above 0")


def _build(settings: FixedGridSettings, inputs: MechanismInputs) -> list[Mechanism]:  # noqa: ARG001 - as above
    return [FixedGrid(settings.limit)]


SPEC = MechanismSpec(name=FixedGrid.name, build=_build, check=_check, needs=("clip_noise",))
