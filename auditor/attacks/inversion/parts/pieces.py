"""Public text in pieces of one length, as an attacker would feed it to the public model.

Shapes: N pieces, T positions, H hidden width.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from auditor.arrays import Integers
from auditor.attacks.inversion.parts.completion import public_tail
from auditor.public_model import PublicModel
from auditor.views.base import NotMeasurableError

_BATCH_TOKENS = 2048


def pieces_of(texts: Sequence[Integers], length: int, most: int, seed: int) -> torch.Tensor:
    """At most `most` pieces [N, T] of `length` tokens, drawn without repetition; NotMeasurableError without any.

    The length shrinks to that of the longest text where all are shorter.
    """
    length = min(length, max((len(text) for text in texts), default=0))
    cut = [text[start : start + length] for text in texts for start in range(0, len(text) - length + 1, max(1, length))]
    if not cut or length < 2:
        raise NotMeasurableError("there is no public text to learn from: name some in the plan as inversion.auxiliary")
    order = np.random.default_rng([seed, 11]).permutation(len(cut))[:most]
    return torch.from_numpy(np.stack([cut[number] for number in order]))


@torch.no_grad()
def returned_by_public(model: PublicModel, pieces_NT: torch.Tensor, device: str) -> torch.Tensor:
    """Rows [N, T, H] that the public delegated layers return for these pieces."""
    head, middle = model.head.to(device), model.middle.to(device)
    chunks = torch.split(pieces_NT.to(device), max(1, _BATCH_TOKENS // pieces_NT.shape[1]))
    return torch.cat([middle(head(chunk)).float() for chunk in chunks])


@torch.no_grad()
def completions_by_public(model: PublicModel, pieces_NT: torch.Tensor, device: str) -> torch.Tensor:
    """Normed last hidden states [N, T, H] of the whole public model on these pieces."""
    tail = public_tail(model, device)
    rows_NTH = returned_by_public(model, pieces_NT, device).to(tail.dtype)
    chunks = torch.split(rows_NTH, max(1, _BATCH_TOKENS // pieces_NT.shape[1]))
    return torch.cat([tail(chunk) for chunk in chunks])
