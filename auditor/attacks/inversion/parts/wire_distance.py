"""How far a row of the model is from a row that crossed, beyond what the wire itself did to it.

An integer or half-precision wire rounds, so an entry counts only by what it differs beyond half a step of its grid.
Entries that crossed as zero were dropped by a defence or rounded away, and are not compared. What is left is noise:
zero on a clean wire, sigma where someone added it.

Shapes: T positions, H hidden width, ... leading dimensions that broadcast.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from splitwire.frames import INT8_MAX, quantise_rows

_HALF_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_SLACK = 1.001  # of half a step: two computations in float32 may round to different sides
_RELATIVE_FLOOR = 1e-5  # of a row's root mean square: what float32 leaves open between batch shapes


@dataclass(frozen=True, eq=False)
class WireRows:
    """Rows [T, H] of one text as they crossed, with what is known of each entry."""

    rows: torch.Tensor
    half_steps: torch.Tensor
    """Half the distance of neighbouring values of the wire's grid at each entry."""
    known: torch.Tensor
    """1 where an entry is compared, 0 where it crossed as zero."""

    @classmethod
    def read(cls, rows_TH: torch.Tensor, wire_dtype: str) -> WireRows:
        """Decoded rows of a wire of this dtype: fp32, bf16, fp16 or int8."""
        rows_TH = rows_TH.float()
        return cls(rows_TH, _half_steps(rows_TH, wire_dtype), (rows_TH != 0).float())

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def num_known(self) -> torch.Tensor:
        """How many entries of each row are compared, at least 1; [T]."""
        return self.known.sum(-1).clamp(min=1)

    @property
    def floor(self) -> torch.Tensor:
        """Mean square that float32 alone leaves at each row, [T]."""
        return (_RELATIVE_FLOOR * self.rows).square().mean(-1)

    def mean_squares(self, positions: slice, rows: torch.Tensor) -> torch.Tensor:
        """Mean squares [n, K] of what K rows of the model [n, K, H] differ, at n positions."""
        part = WireRows(*(each[positions].unsqueeze(1) for each in (self.rows, self.half_steps, self.known)))
        return part.residuals(rows).square().sum(-1) / part.num_known

    def residuals(self, rows: torch.Tensor) -> torch.Tensor:
        """What rows of the model [T, H] differ beyond the grid; 0 where an entry is not compared."""
        return ((rows - self.rows).abs() - self.half_steps).clamp(min=0) * self.known


def crossed(rows_NH: torch.Tensor, wire_dtype: str, share_known: float) -> torch.Tensor:
    """Rows of the model as such a wire would carry them, with only this share of largest magnitudes kept."""
    dropped = rows_NH.shape[-1] - round(share_known * rows_NH.shape[-1])
    if dropped > 0:
        limit_N1 = rows_NH.abs().kthvalue(dropped, dim=-1, keepdim=True).values
        rows_NH = torch.where(rows_NH.abs() > limit_N1, rows_NH, 0.0)
    if wire_dtype == "int8":
        values, scales = quantise_rows(rows_NH)
        return values.float() * scales.unsqueeze(-1)
    return rows_NH.to(_HALF_DTYPES.get(wire_dtype, torch.float32)).float()


def _half_steps(rows_TH: torch.Tensor, wire_dtype: str) -> torch.Tensor:
    if wire_dtype == "int8":
        scale_T1 = rows_TH.abs().amax(-1, keepdim=True) / INT8_MAX
        return (_SLACK * scale_T1 / 2).expand_as(rows_TH)
    if wire_dtype in _HALF_DTYPES:
        relative = torch.finfo(_HALF_DTYPES[wire_dtype]).eps
        _, exponents = torch.frexp(rows_TH)
        return _SLACK * torch.ldexp(torch.full_like(rows_TH, relative / 4), exponents)
    return torch.zeros_like(rows_TH)
