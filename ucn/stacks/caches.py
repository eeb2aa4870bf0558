"""Key-value caches of one session: which positions are real, how large they are, and how they are rolled back.

Each cache is transformers' own, beside a mask of real positions [B, total]. Sliding layers keep no more than their
window, so a cache that has grown past a window cannot be cropped: StateError. A cache whose forward pass failed
half-way is lost, and using it again is refused rather than started afresh.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from transformers import DynamicCache

from splitwire.backbone import MiddleModel
from splitwire.errors import FrameError, LimitError, StateError
from ucn.stacks.base import ForwardCall, StackLimits


@dataclass
class CacheEntry:
    """One cache and the mask [B, total] of its real positions, True for real."""

    cache: DynamicCache
    mask: torch.Tensor

    @property
    def num_positions(self) -> int:
        """Positions so far, padding included."""
        return int(self.mask.shape[1])

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
            empty = torch.ones(num_sequences, 0, dtype=torch.bool, device=self._base.device)
            return CacheEntry(self._base.new_cache(), empty)
        if entry.mask.shape[0] != num_sequences:
            raise FrameError(
                f"step {call.step}: {num_sequences} sequences, but cache {call.cache_id} has {entry.mask.shape[0]}",
                remedy="reorder the cache first, or use another cache_id",
            )
        return entry

    def check_mask(self, call: ForwardCall, mask: torch.Tensor) -> None:
        """FrameError for padding after a real position where a layer slides: it would take room in the window."""
        has_gap = bool((mask[:, :-1] & ~mask[:, 1:]).any())
        if has_gap and any(window is not None for window in self._windows):
            raise FrameError(
                f"step {call.step}: padding after real positions in a cache with a sliding window",
                remedy="pad on the left, in the first frame of the cache only",
            )

    def keep(self, cache_id: int, entry: CacheEntry, mask: torch.Tensor) -> None:
        """Records that `entry` now covers `mask`."""
        entry.mask = mask
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
        past = entry.num_positions if entry else 0
        held = sum(past if window is None else min(past, window - 1) for window in self._windows)
        return others + int(shape[0]) * self._bytes_per_position * (held + len(self._windows) * int(shape[1]))

    def reorder(self, cache_id: int, indices: Sequence[int]) -> None:
        """Sequence i becomes old sequence indices[i]."""
        entry = self._entry(cache_id)
        count = int(entry.mask.shape[0])
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
        order = torch.tensor(list(indices), dtype=torch.long, device=entry.mask.device)
        entry.cache.reorder_cache(cast("torch.LongTensor", order))
        entry.mask = entry.mask.index_select(0, order)

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
            entry.mask = entry.mask[:, :num_positions]

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
