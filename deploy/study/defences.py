"""What a trusted node may do to the rows of one text before they cross: noise, or zeros for the smallest entries.

    gaussian-S   noise of standard deviation S on every entry
    scaled-R     the same, R times the standard deviation of the text's own entries
    element-R    the share R of the smallest entries of the whole text becomes zero
    token-R      the same in every row on its own, so that each position keeps as many entries

Source: the study of prompt leakage in split inference, section 4.4; its levels 1 to 5 are variances of 1e-4 to 1 and
shares of .1 to .9. That paper does not say how its two granularities differ; this is how they are read here.

Shapes: T positions of one text, H hidden width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, cast, get_args

import torch

from splitwire.errors import SettingsError

Kind = Literal["none", "gaussian", "scaled", "element", "token"]


@dataclass(frozen=True)
class Defence:
    """A kind and its strength."""

    kind: Kind
    strength: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Defence:
        """Reads a name such as element-0.5; SettingsError for anything else."""
        kind, _, number = text.partition("-")
        try:
            strength = float(number or 0)
        except ValueError:
            strength = math.nan
        most = 1.0 if kind in {"element", "token"} else math.inf
        if kind not in get_args(Kind) or (kind == "none") != (number == "") or not 0.0 <= strength <= most:
            raise SettingsError(
                f"defence {text!r} is not known",
                remedy="give none, gaussian-S, scaled-R, element-R or token-R, with a share of at most 1",
            )
        return cls(cast("Kind", kind), strength)

    def apply(self, rows_TH: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """The rows [T, H] that cross."""
        if self.kind in {"gaussian", "scaled"}:
            scale = self.strength * (float(rows_TH.std()) if self.kind == "scaled" else 1.0)
            return rows_TH + scale * torch.randn(rows_TH.shape, generator=generator)
        if self.kind == "element":
            return _sparse(rows_TH.reshape(1, -1), self.strength).reshape(rows_TH.shape)
        if self.kind == "token":
            return _sparse(rows_TH, self.strength)
        return rows_TH


def _sparse(rows_NE: torch.Tensor, ratio: float) -> torch.Tensor:
    """Rows [N, E] without the share `ratio` of the smallest entries of each."""
    num_zeros = round(ratio * rows_NE.shape[1])
    smallest = rows_NE.abs().topk(num_zeros, dim=1, largest=False).indices
    return rows_NE.scatter(1, smallest, 0.0)
