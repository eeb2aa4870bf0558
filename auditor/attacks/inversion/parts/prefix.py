"""One prefix that grows token by token: rows of candidates at the cut, and what the public model expects next.

Shapes: C candidates, H hidden width, V vocabulary.
"""

from __future__ import annotations

import torch

from auditor.attacks.inversion.parts.cached_prefix import Prefix
from auditor.attacks.inversion.parts.language_prefix import LanguagePrefix
from auditor.public_model import PublicModel
from splitwire.backbone import HeadModel


class HeadPrefix:
    """The tokens accepted so far, with the head's keys and values."""

    def __init__(self, head: HeadModel) -> None:
        self._prefix = Prefix(head)

    def rows(self, candidates_C: torch.Tensor) -> torch.Tensor:
        """Rows [C, H] at the cut of each candidate as the next token."""
        return self._prefix.candidates(candidates_C[None])[0]

    def accept(self, token: int) -> torch.Tensor:
        """Appends a token; its row [H] at the cut."""
        rows_BTH, self._prefix = self._prefix.extend(torch.tensor([[token]], device=self._prefix.part.device))
        return rows_BTH[0, 0]


class NextToken:
    """The public middle and tail over the rows of one growing prefix."""

    def __init__(self, model: PublicModel, device: torch.device | str) -> None:
        self._language = LanguagePrefix.of(model, str(device))

    def scores(self, row_H: torch.Tensor) -> torch.Tensor:
        """Logits [V] of the token after the next row of the prefix."""
        logits_BV, self._language = self._language.extend(row_H[None, None])
        return logits_BV[0]
