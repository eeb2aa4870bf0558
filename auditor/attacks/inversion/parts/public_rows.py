"""Rows that the public head makes of public text, and what standardises rows like these.

Shapes: N pieces, T positions of a piece, H hidden width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from auditor.attacks.inversion.parts.public_head import PublicHead

_BATCH_POSITIONS = 2048
_SMALLEST_SPREAD = 1e-6


def rows_of_pieces(head: PublicHead, pieces_NT: torch.Tensor) -> torch.Tensor:
    """Rows [N, T, H] at the cut."""
    batches = torch.split(pieces_NT, max(1, _BATCH_POSITIONS // pieces_NT.shape[1]))
    return torch.cat([head.rows_of_tokens(batch_BT) for batch_BT in batches])


@dataclass(frozen=True, eq=False)
class Standard:
    """Mean and spread [H] of public rows: a few huge channels would hide all others."""

    mean: torch.Tensor
    spread: torch.Tensor

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows [.., H] with mean 0 and spread 1 on public text."""
        return (rows - self.mean) / self.spread


def standard_of(rows_NTH: torch.Tensor) -> Standard:
    """What standardises rows like these."""
    rows_XH = rows_NTH.flatten(0, 1)
    return Standard(rows_XH.mean(0), rows_XH.std(0).clamp_min(_SMALLEST_SPREAD))
