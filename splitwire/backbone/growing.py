"""A key-value cache layer that grows in place: a decode step writes one position and copies nothing that is stored.

transformers' own layer joins all stored positions with the new one at every step, which on a CPU takes as long as
attention itself. Here room is kept in blocks of `BLOCK` positions, so the stored ones are copied once a block. What
is stored, its crops and its reorders are transformers' own. Where gradients are wanted through the cache, the layer
joins tensors as transformers does, because autograd forbids writing in place.

B sequences, T positions, D head width.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from transformers.cache_utils import DynamicLayer

BLOCK = 64


def room_for(num_positions: int) -> int:
    """Positions that a layer keeps room for when it stores so many."""
    return -(-num_positions // BLOCK) * BLOCK


class GrowingLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """`keys` and `values` [B, heads, T, D] are the filled beginnings of two longer tensors."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call]
        self._key_room: torch.Tensor = torch.empty(0)
        self._value_room: torch.Tensor = torch.empty(0)

    @property
    def room(self) -> int:
        """Positions that fit without a copy; 0 before the first, and after a reorder."""
        return self._key_room.shape[2] if self._key_room.numel() else 0

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *arguments: Any, **options: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Appends [B, heads, t, D] each; everything that is stored."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        keys, values = cast("torch.Tensor", self.keys), cast("torch.Tensor", self.values)
        if torch.is_grad_enabled() and (key_states.requires_grad or keys.requires_grad):
            self._drop_room()
            joined: tuple[torch.Tensor, torch.Tensor] = super().update(key_states, value_states, *arguments, **options)
            return joined
        past = self.get_seq_length()
        keys, self._key_room = _extended(keys, past, self._key_room, key_states)
        values, self._value_room = _extended(values, past, self._value_room, value_states)
        self.keys, self.values = keys, values
        return keys, values

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Sequence i becomes old sequence beam_idx[i]."""
        super().reorder_cache(beam_idx)
        self._drop_room()

    def reset(self) -> None:
        """Forgets all positions."""
        super().reset()
        self._drop_room()

    def _drop_room(self) -> None:
        self._key_room = self._value_room = torch.empty(0)


def _extended(
    stored: torch.Tensor, past: int, room: torch.Tensor, new: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Stored positions followed by the new ones, and the tensor that both lie in."""
    total = past + new.shape[2]
    if not _lies_in(stored, past, room) or total > room.shape[2]:
        room = new.new_empty(*new.shape[:2], room_for(total), new.shape[3])
        if past:
            room[:, :, :past] = stored
    room[:, :, past:total] = new
    return room[:, :, :total], room


def _lies_in(stored: torch.Tensor, past: int, room: torch.Tensor) -> bool:
    """Whether `room` begins with what is stored, and may be written to here."""
    if not past or room.ndim != stored.ndim or room.shape[0] != stored.shape[0]:
        return False
    may_write = not room.is_inference() or torch.is_inference_mode_enabled()
    return may_write and room.data_ptr() == stored.data_ptr() and room.stride() == stored.stride()
