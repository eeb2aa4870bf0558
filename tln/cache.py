"""A key-value cache in three places: the head's and the tail's layers here, the middle's on the untrusted node.

To transformers it is an ordinary Cache of the local layers: generation, beam search and assisted decoding reorder
it, crop it and ask for its length without knowing that a part is elsewhere. What they do to the local layers is
done to the remote cache under the same number. The untrusted node is told indices and lengths, never tokens.

The remote cache starts with the first forward pass through it and is freed when this object is: at once by
`release`, else when the next step is reserved.

Refused: a cache that a failed step left with different lengths in its parts, and padding after the first pass.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from transformers import Cache, DynamicCache

from splitwire.errors import SettingsError, StateError
from tln.crossing import Crossing


class SplitCache(Cache):
    """The cache of one batch. `head` and `tail` hold local layers; `cache_id` names the remote ones."""

    _release: weakref.finalize[..., Any] | None

    def __init__(
        self, head: DynamicCache, tail: DynamicCache, crossing: Crossing, *, is_croppable: bool = True
    ) -> None:
        super().__init__(layers=[*head.layers, *tail.layers])
        self.head = head
        self.tail = tail
        self.has_padding = False
        self._crossing = crossing
        self._can_crop = is_croppable
        self._is_broken = False
        self._start()

    @property
    def cache_id(self) -> int:
        """The number of the remote cache."""
        return self._cache_id

    @property
    def is_croppable(self) -> bool:
        """Whether all three parts can be rolled back without a trace."""
        return self._can_crop and bool(super().is_croppable)

    def begin_pass(self) -> None:
        """Notes that a forward pass fills the parts one after the other; `end_pass` tells that all were filled."""
        if self._is_broken:
            raise StateError(
                f"cache {self._cache_id} is incomplete after a step that failed", remedy="start again with a new cache"
            )
        self._is_broken = True
        if self._release is None:
            finalizer = weakref.finalize(self, self._crossing.release_later, self._cache_id)
            finalizer.atexit = False
            self._release = finalizer

    def end_pass(self) -> None:
        """Notes that the three parts hold the same positions again."""
        self._is_broken = False

    def check_new_positions(self, mask_BT: torch.Tensor | None, num_new: int) -> None:
        """SettingsError unless `num_new` positions may follow what is cached under this mask [B, past + new].

        Padding comes with the first pass only: the untrusted node learns the lengths then and extends them by itself.
        So without padding in the first pass the whole mask is real.
        """
        if mask_BT is None:
            if self.has_padding:
                raise SettingsError(
                    "the cache holds padded sequences and no attention_mask is given",
                    remedy="pass the mask of all positions, cached ones included",
                )
            return
        total = self.get_seq_length() + num_new
        must_be_real = mask_BT[:, -num_new:] if self.has_padding else mask_BT
        if mask_BT.ndim != 2 or mask_BT.shape[1] != total or not bool(must_be_real.all()):
            raise SettingsError(
                f"attention_mask of shape {list(mask_BT.shape)} does not continue {total - num_new} cached positions "
                f"by {num_new} real ones",
                remedy="pass a mask of all positions, and pad in the first pass only",
            )

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """New sequence i is old sequence beam_idx[i]; indices may repeat."""
        indices = beam_idx.tolist()
        if self._is_empty() or indices == list(range(self._num_sequences())):
            return
        super().reorder_cache(beam_idx.long())  # type: ignore[arg-type]
        self._crossing.cache_reorder(self._cache_id, indices)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keeps the sequences `indices`."""
        self.reorder_cache(indices.nonzero().flatten() if indices.dtype == torch.bool else indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeats each sequence `repeats` times."""
        if not self._is_empty():
            self.reorder_cache(torch.arange(self._num_sequences()).repeat_interleave(repeats))

    def crop(self, tokens_to_remove: int) -> None:
        """Removes the last |tokens_to_remove| positions (a negative number or 0, as in transformers)."""
        length = self.get_seq_length()
        super().crop(tokens_to_remove)
        if tokens_to_remove and not self._is_empty(length):
            if not self._can_crop:
                raise StateError(
                    f"cache {self._cache_id} holds sliding windows and cannot be rolled back",
                    remedy="generate without an assistant model and without prompt lookup",
                )
            self._crossing.cache_crop(self._cache_id, length - abs(tokens_to_remove))

    def reset(self) -> None:
        """Empties all parts."""
        super().reset()  # type: ignore[no-untyped-call]
        self.release()
        self._start()

    def release(self) -> None:
        """Frees the remote part now. The object is of no further use except for `reset`."""
        if self._release is not None and self._release.detach() is not None:
            self._crossing.cache_release(self._cache_id)
        self._is_broken = True

    def _start(self) -> None:
        self._cache_id = self._crossing.new_cache_id()
        self._release = None
        self._is_broken = False
        self.has_padding = False

    def _is_empty(self, length: int | None = None) -> bool:
        return self._release is None or (self.get_seq_length() if length is None else length) == 0

    def _num_sequences(self) -> int:
        first: Any = self.head.layers[0]
        return int(first.keys.shape[0])
