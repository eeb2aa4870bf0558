"""How far rows of a guess lie from the rows that crossed.

Entries that are exactly zero were dropped by a sparsifying defence, so they say nothing and are left out of both
distances (ActInv, section 6, chose the cosine for it). A wire of int8 rounds small entries
to zero, and there they count.

Shapes: B texts of one length, T positions, H hidden width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

Distance = Literal["cosine", "mse"]
_TINY = 1e-12


@dataclass(frozen=True, eq=False)
class Target:
    """Rows [T, H] that crossed and which of their entries [T, H] are told."""

    rows: torch.Tensor
    told: torch.Tensor

    def between(self, start: int, stop: int) -> Target:
        """Positions [start, stop) alone."""
        return Target(self.rows[start:stop], self.told[start:stop])

    def distance(self, rows_BTH: torch.Tensor, kind: Distance) -> torch.Tensor:
        """Distance [B, T] of rows [B, T, H]: 1 - cosine, or the mean squared difference of the told entries."""
        told_TH = self.told
        if kind == "mse":
            difference_BTH = (rows_BTH - self.rows) * told_TH
            squared_BT: torch.Tensor = difference_BTH.square().sum(-1)
            return squared_BT / told_TH.sum(-1).clamp_min(1)
        guess_BTH = rows_BTH * told_TH
        product_BT = (guess_BTH * self.rows).sum(-1)
        norms_BT = guess_BTH.norm(dim=-1) * self.rows.norm(dim=-1)
        cosine_BT: torch.Tensor = product_BT / norms_BT.clamp_min(_TINY)
        return 1 - cosine_BT


def target_of(rows_TH: torch.Tensor, wire_dtype: str, device: torch.device) -> Target:
    """The target for rows [T, H] as they crossed."""
    rows_TH = rows_TH.to(device, torch.float32)
    told_TH = torch.ones_like(rows_TH) if wire_dtype == "int8" else (rows_TH != 0).float()
    return Target(rows_TH, told_TH)
