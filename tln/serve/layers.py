"""Head and tail of all texts in one pass each; every text has caches of its own length.

H hidden width, V vocabulary, t new positions of a text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import DynamicCache

from splitwire.backbone import BackbonePart, HeadModel, TailModel
from splitwire.backbone.ragged import RaggedInput, step_together, why_alone


@dataclass(frozen=True)
class LocalCaches:
    """Keys and values of one text in the head's and in the tail's layers."""

    head: DynamicCache
    tail: DynamicCache


class LocalLayers:
    """The trusted layers. Each call runs on the engine's thread."""

    def __init__(self, head: HeadModel, tail: TailModel) -> None:
        self._head = head
        self._tail = tail

    def new_caches(self) -> LocalCaches:
        """Empty caches for one text."""
        return LocalCaches(self._head.new_cache(), self._tail.new_cache())

    @torch.no_grad()
    def head(self, tokens: Sequence[Sequence[int]], caches: Sequence[LocalCaches]) -> list[torch.Tensor]:
        """Hidden rows [1, t, H] of the new tokens of each text."""
        ids = [torch.tensor([list(each)], device=self._head.device) for each in tokens]
        return _together(self._head, ids, [cache.head for cache in caches])

    @torch.no_grad()
    def tail(self, rows: Sequence[torch.Tensor], caches: Sequence[LocalCaches], wanted: Sequence[int]) -> torch.Tensor:
        """Logits [len(wanted), V] at the last position of the texts `wanted`; rows [1, t, H] of all pass through."""
        normed = _together(self._tail, rows, [cache.tail for cache in caches])
        if not wanted:
            return torch.empty(0)
        return self._tail.logits(torch.cat([normed[index][:, -1] for index in wanted]))


def _together(part: BackbonePart, rows: Sequence[torch.Tensor], caches: Sequence[DynamicCache]) -> list[torch.Tensor]:
    if len(rows) == 1 or why_alone(part):
        return [part(each, None, None, cache) for each, cache in zip(rows, caches, strict=True)]
    return step_together(part, [RaggedInput(each, cache) for each, cache in zip(rows, caches, strict=True)])
