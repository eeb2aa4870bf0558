"""How many bytes of key-value cache a session holds: booked before the stack allocates any.

The stack says what its caches will take; the ledger remembers each cache's share, so that a release gives back
exactly that. Sequences and positions of a cache are the stack's own check.
"""

from __future__ import annotations

from dataclasses import dataclass

from splitwire.errors import LimitError
from ucn.admission import CacheBudget

_MIB = 1 << 20


@dataclass(frozen=True)
class CacheUse:
    """What one cache holds."""

    num_sequences: int
    num_bytes: int


class SessionCaches:
    """The caches of one session of the peer `owner`."""

    def __init__(self, budget: CacheBudget, max_bytes: int, owner: str = "") -> None:
        self._budget = budget
        self._owner = owner
        self._max_bytes = max_bytes
        self._caches: dict[int, CacheUse] = {}

    @property
    def num_bytes(self) -> int:
        """Bytes booked by the session."""
        return sum(use.num_bytes for use in self._caches.values())

    def holds(self, cache_id: int) -> bool:
        """Whether the cache has been started."""
        return cache_id in self._caches

    async def start(self, cache_id: int, num_sequences: int, total_bytes: int) -> None:
        """Books a new cache, after which the session's caches hold `total_bytes`, if need be after a wait for room."""
        use = CacheUse(num_sequences, max(total_bytes - self.num_bytes, 0))
        self._check_own(use.num_bytes)
        await self._budget.start(self._owner, use.num_bytes)
        self._caches[cache_id] = use

    def extend(self, cache_id: int, num_sequences: int, total_bytes: int) -> CacheUse | None:
        """Books a cache's growth, at once or not at all; returns what it held before."""
        others = self.num_bytes - self._bytes_of(cache_id)
        return self._book(cache_id, CacheUse(num_sequences, max(total_bytes - others, 0)))

    def reorder(self, cache_id: int, num_sequences: int) -> CacheUse | None:
        """Books the selection of `num_sequences` from a cache; returns what it held before."""
        use = self._caches.get(cache_id)
        if use is None:
            return None  # the stack will refuse
        return self._book(cache_id, CacheUse(num_sequences, -(-use.num_bytes * num_sequences // use.num_sequences)))

    def restore(self, cache_id: int, before: CacheUse | None) -> None:
        """Takes a booking back: the stack refused and nothing changed."""
        now = self._bytes_of(cache_id)
        self._caches.pop(cache_id, None)
        if before is not None:
            self._caches[cache_id] = before
        self._budget.book(self._owner, self._bytes_of(cache_id) - now)

    def release(self, cache_id: int) -> None:
        """Gives a cache's bytes back."""
        self.restore(cache_id, None)

    def release_all(self) -> None:
        """Gives every cache's bytes back: the session ends."""
        for cache_id in tuple(self._caches):
            self.release(cache_id)

    def _book(self, cache_id: int, use: CacheUse) -> CacheUse | None:
        before = self._caches.get(cache_id)
        difference = use.num_bytes - self._bytes_of(cache_id)
        if difference > 0:
            self._check_own(difference)
            self._budget.grow(self._owner, difference)
        else:
            self._budget.book(self._owner, difference)
        self._caches[cache_id] = use
        return before

    def _check_own(self, num_more: int) -> None:
        after = self.num_bytes + num_more
        if after > self._max_bytes:
            raise LimitError(
                f"the caches of the session would take {after / _MIB:.1f} MiB of {self._max_bytes / _MIB:.1f} MiB",
                remedy="release caches, use fewer or shorter sequences, or raise the node's limits.max_cache_bytes",
            )

    def _bytes_of(self, cache_id: int) -> int:
        use = self._caches.get(cache_id)
        return use.num_bytes if use else 0
