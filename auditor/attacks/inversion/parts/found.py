"""What a search through the public head found of one text.

Shapes: T positions of one text.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, eq=False)
class Found:
    """Tokens [T], how sure the search is of each [T] in 0 to 1, and the mean square [T] that their rows differ by."""

    tokens: torch.Tensor
    certainty: torch.Tensor
    mean_squares: torch.Tensor
