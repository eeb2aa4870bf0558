"""Key-value caches of one session: which positions are real, how large they are, and how they are rolled back.

Each cache is transformers' own, beside a mask of real positions [B, total] on the CPU, which is None while all are
real: a cache without padding then costs a decode step neither a mask nor a look at one. Sliding layers keep no more
than their window, so a cache that has grown past a window cannot be cropped: StateError. A cache whose forward pass
failed half-way is lost, and using it again is refused rather than started afresh.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from transformers import DynamicCache

from splitwire.backbone import MiddleModel
from splitwire.backbone.growing import room_for
from splitwire.errors import FrameError, LimitError, StateError
from ucn.stacks.base import ForwardCall, StackLimits


@dataclass
class CacheEntry:
    """One cache of B sequences by `num_positions` positions, padding included; `mask` as the module says."""

    cache: DynamicCache
    num_sequences: int
    num_positions: int = 0
    mask: torch.Tensor | None = None

    def mask_with(self, new: torch.Tensor | None, num_new: int) -> torch.Tensor | None:
        """The mask of the cached positions and `num_new` more, which `new` [B, num_new] masks."""
        if self.mask is None and new is None:
            return None
        old = _all_real(self.num_sequences, self.num_positions) if self.mask is None else self.mask
        new = _all_real(self.num_sequences, num_new) if new is None else new
        return torch.cat([old, new], dim=1)

    @property
    def rooms(self) -> list[int]:
        """Positions that each layer has room for; 0 for a sliding one, which has room for what it stores."""
        layers: list[Any] = self.cache.layers
        return [0 if layer.is_sliding else layer.room for layer in layers]

    @property
    def num_bytes(self) -> int:
        """Bytes that the cache's tensors hold."""
        layers: list[Any] = self.cache.layers
        stored = [tensor for layer in layers for tensor in (layer.keys, layer.values) if tensor is not None]
        return sum(tensor.untyped_storage().nbytes() for tensor in stored)


class CacheTable:
    """All caches of a session by id."""

    def __init__(self, base: MiddleModel, limits: StackLimits, dtype: torch.dtype) -> None:
        self._base = base
        self._limits = limits
        self._bytes_per_position = _bytes_per_position(base, dtype)
        self._windows = _windows(base)
        self._entries: dict[int, CacheEntry] = {}
        self._lost: set[int] = set()

    def open(self, call: ForwardCall, shape: Sequence[int]) -> CacheEntry:
        """The cache that a CACHED frame of `shape` continues, or a new one; LimitError before anything grows."""
        num_sequences, num_new = int(shape[0]), int(shape[1])
        self._check_usable(call.cache_id)
        entry = self._entries.get(call.cache_id)
        past = entry.num_positions if entry else 0
        if num_sequences > self._limits.max_cache_sequences or past + num_new > self._limits.max_cache_positions:
            raise LimitError(
                f"step {call.step}: cache of {num_sequences} sequences by {past + num_new} positions exceeds "
                f"{self._limits.max_cache_sequences} by {self._limits.max_cache_positions}",
                remedy="open the session with larger max_cache_sequences and max_cache_positions",
            )
        if entry is None:
            return CacheEntry(self._base.new_cache(), num_sequences)
        if entry.num_sequences != num_sequences:
            raise FrameError(
                f"step {call.step}: {num_sequences} sequences, but cache {call.cache_id} has {entry.num_sequences}",
                remedy="reorder the cache first, or use another cache_id",
            )
        return entry

    def check_mask(self, call: ForwardCall, mask: torch.Tensor | None) -> None:
        """FrameError for padding after a real position where a layer slides: it would take room in the window."""
        if mask is None or all(window is None for window in self._windows):
            return
        if bool((mask[:, :-1] & ~mask[:, 1:]).any()):
            raise FrameError(
                f"step {call.step}: padding after real positions in a cache with a sliding window",
                remedy="pad on the left, in the first frame of the cache only",
            )

    def keep(self, cache_id: int, entry: CacheEntry, mask: torch.Tensor | None, num_new: int) -> None:
        """Records that `entry` now holds `num_new` more positions, and `mask` covers all."""
        entry.mask = mask
        entry.num_positions += num_new
        self._entries[cache_id] = entry

    def lose(self, cache_id: int) -> None:
        """Forgets a cache whose forward pass failed; its id stays refused until it is released."""
        self._entries.pop(cache_id, None)
        self._lost.add(cache_id)

    def bytes_after(self, call: ForwardCall, shape: Sequence[int]) -> int:
        """Bytes of all caches once `call` has run; no allocation."""
        own = call.cache_id if call.mode == "cached" else None
        others = sum(entry.num_bytes for cache_id, entry in self._entries.items() if cache_id != own)
        if own is None:
            return others
        entry = self._entries.get(own)
        past, num_new = entry.num_positions if entry else 0, int(shape[1])
        rooms = entry.rooms if entry else [0] * len(self._windows)
        held = sum(
            max(room, room_for(past + num_new)) if window is None else min(past, window - 1) + num_new
            for window, room in zip(self._windows, rooms, strict=True)
        )
        return others + int(shape[0]) * self._bytes_per_position * held

    def reorder(self, cache_id: int, indices: Sequence[int]) -> None:
        """Sequence i becomes old sequence indices[i]."""
        entry = self._entry(cache_id)
        count = entry.num_sequences
        if not indices or any(not 0 <= index < count for index in indices):
            raise FrameError(
                f"cache {cache_id}: reorder needs indices from 0 to {count - 1}",
                remedy="send one for each new sequence",
            )
        if len(indices) > self._limits.max_cache_sequences:
            raise LimitError(
                f"cache {cache_id}: {len(indices)} sequences exceed {self._limits.max_cache_sequences}",
                remedy="open the session with larger max_cache_sequences",
            )
        order = torch.tensor(list(indices), dtype=torch.long, device=self._base.device)
        entry.cache.reorder_cache(cast("torch.LongTensor", order))
        entry.num_sequences = len(indices)
        if entry.mask is not None:
            entry.mask = none_if_full(entry.mask.index_select(0, order.cpu()))

    def crop(self, cache_id: int, num_positions: int) -> None:
        """Keeps the first `num_positions` positions."""
        entry = self._entry(cache_id)
        total = entry.num_positions
        if not 0 <= num_positions <= total:
            raise FrameError(
                f"cache {cache_id}: num_positions is {num_positions}", remedy=f"send a number from 0 to {total}"
            )
        if num_positions == 0:
            del self._entries[cache_id]
        elif num_positions < total:
            smallest = min((window for window in self._windows if window is not None), default=None)
            if smallest is not None and total >= smallest:
                raise StateError(
                    f"cache {cache_id} grew past a sliding window of {smallest} positions and cannot be cropped",
                    remedy="release it and send the kept positions again",
                )
            entry.cache.crop(num_positions - total)
            entry.num_positions = num_positions
            if entry.mask is not None:
                entry.mask = none_if_full(entry.mask[:, :num_positions])

    def release(self, cache_id: int) -> None:
        """Frees a cache; its id may be used again."""
        if cache_id in self._lost:
            self._lost.discard(cache_id)
        else:
            self._entry(cache_id)
            del self._entries[cache_id]

    def clear(self) -> None:
        """Frees all caches."""
        self._entries.clear()
        self._lost.clear()

    def _entry(self, cache_id: int) -> CacheEntry:
        self._check_usable(cache_id)
        if cache_id not in self._entries:
            raise StateError(f"cache {cache_id} does not exist", remedy="send a CACHED frame with this id first")
        return self._entries[cache_id]

    def _check_usable(self, cache_id: int) -> None:
        if cache_id in self._lost:
            raise StateError(
                f"cache {cache_id} was lost when a forward pass failed",
                remedy="release it and send the positions again",
            )


def none_if_full(mask: torch.Tensor) -> torch.Tensor | None:
    """A mask [B, T], or None when all of it is real."""
    return None if bool(mask.all()) else mask


def _all_real(num_sequences: int, num_positions: int) -> torch.Tensor:
    return torch.ones(num_sequences, num_positions, dtype=torch.bool)


def _windows(base: MiddleModel) -> list[int | None]:
    """The sliding window of each layer; None for a layer that sees everything."""
    layers: list[Any] = base.new_cache().layers
    return [layer.sliding_window if layer.is_sliding else None for layer in layers]


def _bytes_per_position(base: MiddleModel, dtype: torch.dtype) -> int:
    """Keys and values of one position of one sequence in one layer."""
    config = base.config
    num_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * int(num_heads) * int(head_width) * dtype.itemsize
