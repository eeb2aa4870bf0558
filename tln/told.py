"""What the trusted node knows about the rows of one pass, for the sealed truth and for mechanisms. Never for the wire.

Shapes: B sequences, T new positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tln.context import NO_LABEL, StepContext
from tln.prefill import Part


@dataclass(frozen=True)
class PassTruth:
    """Tokens, labels (the token after each position) and places in the text [B, T], and documents [B] of a pass."""

    tokens: torch.Tensor
    labels: torch.Tensor
    positions: torch.Tensor
    documents: torch.Tensor | None

    def tell(self, context: StepContext, part: Part) -> None:
        """Puts what is known about the rows of a part into its context."""
        rows = slice(part.start, part.end)
        context.tokens, context.labels = self.tokens[:, rows], self.labels[:, rows]
        context.positions, context.documents = self.positions[:, rows], self.documents


def pass_truth(
    input_ids: torch.Tensor,
    mask: torch.Tensor | None,
    past: int,
    labels: torch.Tensor | None = None,
    documents: torch.Tensor | None = None,
) -> PassTruth:
    """Of token ids [B, T] after `past` cached positions, with a mask [B, past + T]; labels as transformers has them."""
    following = next_tokens(input_ids if labels is None else labels, mask)
    return PassTruth(input_ids, following, text_positions(input_ids, mask, past), documents)


def text_positions(input_ids: torch.Tensor, mask: torch.Tensor | None, past: int) -> torch.Tensor:
    """The place of each row within its text [B, T], padding not counted; -1 for padding."""
    num, length = input_ids.shape
    if mask is None or mask.shape != (num, past + length):
        return torch.arange(past, past + length, device=input_ids.device).expand(num, length)
    real = mask != 0
    return (real.long().cumsum(-1) - 1).masked_fill(~real, -1)[:, past:]


def next_tokens(labels_BT: torch.Tensor, mask_BT: torch.Tensor | None) -> torch.Tensor:
    """The token after each position [B, T]; NO_LABEL at the end of a row and where the next position is padding."""
    following = torch.full_like(labels_BT, NO_LABEL)
    following[:, :-1] = labels_BT[:, 1:]
    if mask_BT is not None and mask_BT.shape == labels_BT.shape:
        following[:, :-1][mask_BT[:, 1:] == 0] = NO_LABEL
    return following
