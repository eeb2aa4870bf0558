"""Bytes of key-value cache on this node: who holds how many, and who waits for room.

A cache that grows is booked or refused at once, so no session that decodes ever waits, neither for another that grows
nor for one that starts. A cache that starts takes room only up to a share of the budget, and of what its peer may hold;
the rest stays for those that grow. Without room it waits in line, and is refused when none came in time or the line is
full. Those who wait hold nothing that another waits for, so there is no deadlock. The line is first come, first served,
except that a peer that has used up its own share does not hold the others up.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field

from splitwire.errors import LimitError
from ucn.settings import AdmissionSettings

_MIB = 1 << 20
_REMEDY = "try again later, release caches, or raise limits.max_total_cache_bytes of the untrusted node"


@dataclass(frozen=True, eq=False)
class _Waiting:
    owner: str
    num_bytes: int
    granted: asyncio.Future[None] = field(repr=False)


class CacheBudget:
    """Books bytes for peers. Belongs to one event loop once somebody waits."""

    def __init__(self, max_bytes: int, max_bytes_per_peer: int = 0, admission: AdmissionSettings | None = None) -> None:
        self._max_bytes = max_bytes
        self._max_bytes_per_peer = max_bytes_per_peer or max_bytes
        self._admission = admission or AdmissionSettings()
        self._line: list[_Waiting] = []
        self._by_peer: Counter[str] = Counter()
        self.used_bytes = 0

    @property
    def num_waiting(self) -> int:
        """Caches that wait for room to start."""
        return len(self._line)

    def grow(self, owner: str, num_bytes: int) -> None:
        """Books more bytes for a cache that is there; LimitError when there is no room."""
        after = self.used_bytes + num_bytes
        if after > self._max_bytes:
            raise LimitError(f"the caches of this node would take {self._of_total(after)}", remedy=_REMEDY)
        self._check_peer(self._by_peer[owner] + num_bytes)
        self.book(owner, num_bytes)

    def book(self, owner: str, difference: int) -> None:
        """Books without asking: fewer bytes, or what was booked before."""
        self.used_bytes += difference
        self._by_peer[owner] += difference
        if difference < 0:
            self._by_peer += Counter()  # drops peers that hold nothing
            self._admit()

    async def start(self, owner: str, num_bytes: int) -> None:
        """Books bytes for a new cache, after waiting for room if there is none. LimitError as the module says."""
        if num_bytes > self._max_bytes:
            raise LimitError(f"one cache would take {self._of_total(num_bytes)}", remedy=_REMEDY)
        self._check_peer(num_bytes)
        if not self._line and self._has_room(num_bytes) and self._peer_has_room(owner, num_bytes):
            self.book(owner, num_bytes)
            return
        self._check_line(owner)
        await self._wait(_Waiting(owner, num_bytes, asyncio.get_running_loop().create_future()))

    async def _wait(self, waiting: _Waiting) -> None:
        seconds = self._admission.wait_seconds
        timer = asyncio.get_running_loop().call_later(seconds, self._refuse, waiting)
        self._line.append(waiting)
        self._admit()  # who is held up by its own peer's share may stand before this one
        try:
            await waiting.granted
        except asyncio.CancelledError:
            if waiting.granted.cancelled():
                self._leave(waiting)
            else:
                self.book(waiting.owner, -waiting.num_bytes)
            raise
        finally:
            timer.cancel()

    def _refuse(self, waiting: _Waiting) -> None:
        if waiting.granted.done():
            return
        held = self._of_total(self.used_bytes)
        seconds = self._admission.wait_seconds
        waiting.granted.set_exception(
            LimitError(f"caches hold {held} and no room for a new one came in {seconds:g} s", remedy=_REMEDY)
        )
        self._leave(waiting)

    def _leave(self, waiting: _Waiting) -> None:
        """Out of the line without a grant; the next ones may now have their turn."""
        if waiting in self._line:
            self._line.remove(waiting)
            self._admit()

    def _admit(self) -> None:
        """Grants from the front for as long as there is room."""
        for waiting in tuple(self._line):
            if waiting.granted.done() or not self._peer_has_room(waiting.owner, waiting.num_bytes):
                continue
            if not self._has_room(waiting.num_bytes):
                return
            self._line.remove(waiting)
            self.book(waiting.owner, waiting.num_bytes)
            waiting.granted.set_result(None)

    def _has_room(self, num_bytes: int) -> bool:
        most = self._max_bytes * self._admission.start_fraction if self.used_bytes else self._max_bytes
        return self.used_bytes + num_bytes <= most

    def _peer_has_room(self, owner: str, num_bytes: int) -> bool:
        held = self._by_peer[owner]
        most = self._max_bytes_per_peer * self._admission.start_fraction if held else self._max_bytes_per_peer
        return held + num_bytes <= most

    def _check_peer(self, num_bytes: int) -> None:
        if num_bytes > self._max_bytes_per_peer:
            raise LimitError(
                f"the caches of this peer would take {num_bytes / _MIB:.1f} MiB of "
                f"{self._max_bytes_per_peer / _MIB:.1f} MiB",
                remedy="release caches, or raise limits.max_cache_bytes_per_peer of the untrusted node",
            )

    def _check_line(self, owner: str) -> None:
        own = sum(waiting.owner == owner for waiting in self._line)
        for name, count, most in (
            ("max_waiting", len(self._line), self._admission.max_waiting),
            ("max_waiting_per_peer", own, self._admission.max_waiting_per_peer),
        ):
            if count >= most:
                raise LimitError(
                    f"caches hold {self._of_total(self.used_bytes)}, {count} others wait for room, and "
                    f"admission.{name} is {most}",
                    remedy=_REMEDY,
                )

    def _of_total(self, num_bytes: int) -> str:
        return f"{num_bytes / _MIB:.1f} MiB of {self._max_bytes / _MIB:.1f} MiB"
