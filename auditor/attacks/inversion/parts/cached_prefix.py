"""A part of the model with the keys and values of prefixes kept, so that a candidate costs one token.

Nothing is changed in place: to extend, cut, repeat or pick gives another prefix, and the old one still stands. All
layers keep every position, sliding windows too (the model masks them), so that any prefix can be cut.

Shapes: B prefixes of one length, K candidates, T positions, H hidden width.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import DynamicCache

from splitwire.backbone import BackbonePart

_KEPT_POSITIONS = 1 << 14  # most positions of repeated prefixes that are held at once


@dataclass
class Work:
    """What was spent: tokens that went through the part."""

    tokens: int = 0


@dataclass(frozen=True, eq=False)
class Prefix:
    """B prefixes of `length` positions of one part: head, middle or tail."""

    part: BackbonePart
    past: tuple[tuple[torch.Tensor, torch.Tensor], ...] = ()
    length: int = 0
    work: Work = field(default_factory=Work)

    @torch.no_grad()
    def extend(self, inputs: torch.Tensor) -> tuple[torch.Tensor, Prefix]:
        """Rows [B, T, H] of further inputs (tokens [B, T], or hidden [B, T, H]), and the prefix that ends with them."""
        cache: Any = DynamicCache(self.past) if self.past else DynamicCache()
        rows = self.part(inputs, cache=cache)
        past = tuple((layer.keys, layer.values) for layer in cache.layers)
        self.work.tokens += inputs.shape[0] * inputs.shape[1]
        return rows, Prefix(self.part, past, self.length + inputs.shape[1], self.work)

    def first(self, length: int) -> Prefix:
        """The first positions of these prefixes."""
        past = tuple((keys[..., :length, :], values[..., :length, :]) for keys, values in self.past)
        return Prefix(self.part, past if length else (), length, self.work)

    def pick(self, chosen_B: torch.Tensor) -> Prefix:
        """These prefixes of the batch, in this order, with repetition."""
        return Prefix(
            self.part, tuple((keys[chosen_B], values[chosen_B]) for keys, values in self.past), self.length, self.work
        )

    def candidates(self, tokens_BK: torch.Tensor) -> torch.Tensor:
        """Rows [B, K, H] of each candidate as the next token of its prefix."""
        at_once = max(1, _KEPT_POSITIONS // (max(self.length, 1) * len(tokens_BK)))
        rows = []
        for part_BK in torch.split(tokens_BK, at_once, dim=1):
            owners = torch.arange(len(part_BK), device=part_BK.device).repeat_interleave(part_BK.shape[1])
            new, _ = self.pick(owners).extend(part_BK.reshape(-1, 1))
            rows.append(new.reshape(*part_BK.shape, -1))
        return torch.cat(rows, dim=1)
