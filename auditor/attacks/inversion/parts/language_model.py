"""The public model as a language model: how likely whole texts are.

Shapes: B texts of one length, T positions.
"""

from __future__ import annotations

import torch

from auditor.attacks.inversion.parts.completion import public_tail
from auditor.public_model import PublicModel

_BATCH_TOKENS = 2048


@torch.no_grad()
def mean_surprise(model: PublicModel, tokens_BT: torch.Tensor, device: str) -> torch.Tensor:
    """Mean negative log-likelihood [B] in nats of every token after the first; the logarithm of the perplexity."""
    head, middle, tail = model.head.to(device), model.middle.to(device), public_tail(model, device)
    surprises = []
    for chunk_BT in torch.split(tokens_BT.to(device), max(1, _BATCH_TOKENS // tokens_BT.shape[1])):
        logits_BTV = tail.logits(tail(middle(head(chunk_BT[:, :-1])))).float()
        nats = torch.nn.functional.cross_entropy(logits_BTV.transpose(1, 2), chunk_BT[:, 1:], reduction="none")
        surprises.append(nats.mean(-1))
    return torch.cat(surprises)
