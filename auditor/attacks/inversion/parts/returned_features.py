"""What inverters of the return wire read at each position: what the public tail makes of the returned row.

Shapes: .. any leading shape, T positions, H hidden width, V vocabulary, F features.
"""

from __future__ import annotations

import torch

from splitwire.backbone import TailModel

_CHUNK_SCORES = 1 << 25


class LogitFeatures:
    """Log-probabilities of the next token, through one fixed random projection [V, F] that keeps what they tell apart.

    The log-probabilities of a model of width H span H + 1 dimensions, so a projection to about as many loses little.
    """

    def __init__(self, tail: TailModel, width: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        num_tokens = len(tail.lm_head.weight)
        self._projection_VF = (torch.randn(num_tokens, width, generator=generator) / num_tokens**0.5).to(tail.device)
        self._tail = tail

    @torch.no_grad()
    def __call__(self, normed: torch.Tensor) -> torch.Tensor:
        """Features [.., F] of normed last hidden states [.., H]."""
        chunks = torch.split(normed.flatten(0, -2), max(1, _CHUNK_SCORES // len(self._projection_VF)))
        features = [self._tail.logits(chunk).float().log_softmax(-1) @ self._projection_VF for chunk in chunks]
        return torch.cat(features).view(*normed.shape[:-1], -1)


class OutputFeatures:
    """The lm_head's row of the likeliest next token: the text that comes out, without its probabilities."""

    def __init__(self, tail: TailModel) -> None:
        self._tail = tail

    @torch.no_grad()
    def __call__(self, normed: torch.Tensor) -> torch.Tensor:
        """Features [.., H] of normed last hidden states [.., H]."""
        chunks = torch.split(normed.flatten(0, -2), max(1, _CHUNK_SCORES // len(self._tail.lm_head.weight)))
        named = torch.cat([self._tail.logits(chunk).argmax(-1) for chunk in chunks])
        features: torch.Tensor = self._tail.lm_head.weight[named].float()
        return features.view(*normed.shape[:-1], -1)
