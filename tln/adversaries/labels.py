"""What the heads are asked about a token: its class, and whether it is rare in the training text. TLN only.

Classes are the most frequent next tokens of the training text; every other token shares one last class. A token is rare
when it occurs no more often than the token of the median row, so about half of the rows carry a rare one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tln.context import NO_LABEL


@dataclass(frozen=True)
class TokenTable:
    """`classes` and `rare` are int64 [vocabulary]; classes are 0 to num_classes - 1, the last one for all the rest."""

    classes: torch.Tensor
    rare: torch.Tensor
    num_classes: int


def token_table(labels: torch.Tensor, vocabulary_size: int, most: int) -> TokenTable:
    """The table of the next tokens `labels` (any shape); `most` classes beside the last, 0 for all that occur."""
    known = labels[labels != NO_LABEL].flatten()
    counts = torch.bincount(known, minlength=vocabulary_size)
    order = counts.argsort(descending=True, stable=True)
    kept = order[: min(most or vocabulary_size, int((counts > 0).sum()))]
    classes = torch.full((vocabulary_size,), len(kept))
    classes[kept] = torch.arange(len(kept))
    middle = counts[known].median() if len(known) else torch.tensor(0)
    return TokenTable(classes, (counts <= middle).long(), len(kept) + 1)
