"""Accepted tokens and the caches of what they computed, so that one more position costs one position.

Shapes: C candidate tokens for the next position, H hidden width, V vocabulary.
"""

from __future__ import annotations

import copy

import torch

from auditor.public_model import PublicModel
from splitwire.backbone import HeadModel


class AcceptedTokens:
    """The head's cache over the tokens that were accepted so far."""

    def __init__(self, head: HeadModel) -> None:
        self._head = head
        self._cache = head.new_cache()
        self._is_empty = True

    @torch.no_grad()
    def rows(self, candidates_C: torch.Tensor) -> torch.Tensor:
        """Rows [C, H] at the cut, were each candidate the next token."""
        cache = copy.deepcopy(self._cache)
        if not self._is_empty:
            cache.batch_repeat_interleave(len(candidates_C))
        rows_CH: torch.Tensor = self._head(candidates_C[:, None], cache=cache)[:, -1]
        return rows_CH

    @torch.no_grad()
    def accept(self, token: int) -> torch.Tensor:
        """Adds a token and gives its row [H]."""
        tokens_11 = torch.tensor([[token]], device=self._head.device)
        row_H: torch.Tensor = self._head(tokens_11, cache=self._cache)[0, -1]
        self._is_empty = False
        return row_H


class NextToken:
    """What the public model expects after the rows at the cut that it was shown so far."""

    def __init__(self, model: PublicModel, device: torch.device) -> None:
        self._middle, self._tail = model.middle.to(device), model.tail.to(device)
        self._caches = self._middle.new_cache(), self._tail.new_cache()

    @torch.no_grad()
    def scores(self, row_H: torch.Tensor) -> torch.Tensor:
        """Logits [V] of the token that follows the position with this row."""
        middle_cache, tail_cache = self._caches
        hidden_11H = self._middle(row_H[None, None], cache=middle_cache)
        return self._tail.logits(self._tail(hidden_11H, cache=tail_cache)[0, -1]).float()
