"""What the public model expects next after prefixes that grow side by side: its middle and tail over rows of the head.

Shapes: B prefixes, T new positions, H hidden width, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from auditor.attacks.inversion.parts.cached_prefix import Prefix
from auditor.attacks.inversion.parts.completion import public_tail
from auditor.public_model import PublicModel
from splitwire.backbone import TailModel

_ANY_TOKEN = 0.1


@dataclass(frozen=True, eq=False)
class LanguagePrefix:
    """Keys and values of the delegated layers and of the tail."""

    model: TailModel
    middle: Prefix
    tail: Prefix

    @classmethod
    def of(cls, model: PublicModel, device: str) -> LanguagePrefix:
        """Empty, on this device."""
        tail = public_tail(model, device)
        return cls(tail, Prefix(model.middle.to(device)), Prefix(tail))

    @torch.no_grad()
    def extend(self, rows_BTH: torch.Tensor) -> tuple[torch.Tensor, LanguagePrefix]:
        """Logits [B, V] after further rows at the cut, and the prefixes that end with them."""
        hidden_BTH, middle = self.middle.extend(rows_BTH)
        normed_BTH, tail = self.tail.extend(hidden_BTH)
        return self.model.logits(normed_BTH[:, -1]).float(), LanguagePrefix(self.model, middle, tail)

    def pick(self, chosen_B: torch.Tensor) -> LanguagePrefix:
        """These prefixes, in this order, with repetition."""
        return LanguagePrefix(self.model, self.middle.pick(chosen_B), self.tail.pick(chosen_B))


def with_any(log_next_BV: torch.Tensor) -> torch.Tensor:
    """Log-probabilities [B, V] of which a tenth goes to all tokens alike: private text is no average text."""
    alike = torch.tensor(_ANY_TOKEN / log_next_BV.shape[1], device=log_next_BV.device).log()
    return torch.logaddexp(log_next_BV + math.log1p(-_ANY_TOKEN), alike)
