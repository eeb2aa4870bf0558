"""The table of sessions: who may open how many, who may attach, and when a session is freed.

A session belongs to the peer that opened it. It lives while a stream is attached, and for the lease after that. A
new stream of the owner takes the session over from an old one, because the owner may know that the old one is dead
before this node does. Refused: more sessions than the limits, sessions of others, sessions that are gone,
everything new while draining.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from splitwire.errors import AuthError, LimitError, PeerError, StateError, UnavailableError
from splitwire.logging import get_logger
from ucn.session import Session
from ucn.streams import StreamHandle

_log = get_logger("ucn")


@dataclass
class _Entry:
    session: Session
    stream: StreamHandle | None = None
    lease: asyncio.TimerHandle | None = field(default=None, repr=False)


class SessionTable:
    """All sessions of the node."""

    def __init__(self, *, max_sessions: int, max_sessions_per_peer: int, lease_seconds: float) -> None:
        self._max_sessions = max_sessions
        self._max_sessions_per_peer = max_sessions_per_peer
        self._lease_seconds = lease_seconds
        self._entries: dict[str, _Entry] = {}
        self._opening: list[str] = []
        self._closing: set[asyncio.Task[None]] = set()
        self._is_draining = False
        self._is_ending = False
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._entries) + len(self._opening)

    async def open(self, owner: str, build: Callable[[str], Awaitable[Session]]) -> Session:
        """Makes room, builds a session under a fresh random id, and starts its lease."""
        self._check_room(owner)
        session_id = secrets.token_hex(16)
        self._opening.append(owner)
        try:
            session = await build(session_id)
        finally:
            self._opening.remove(owner)
            self._changed.set()
        entry = self._entries[session_id] = _Entry(session)
        self._start_lease(entry)
        _log.info("session_opened", session=session.hash, peer=owner, num_sessions=len(self))
        return session

    def find(self, session_id: str, owner: str) -> Session:
        """The session, if it is there and belongs to `owner`."""
        return self._entry(session_id, owner).session

    def attach(self, session_id: str, owner: str, stream: StreamHandle) -> Session:
        """Binds a stream to its session, in place of an older stream."""
        entry = self._entry(session_id, owner)
        if self._is_ending:
            raise _draining()
        if entry.stream is not None:
            entry.stream.end(StateError("another stream attached to the session", remedy="use one stream a session"))
        entry.stream = stream
        self._stop_lease(entry)
        return entry.session

    def detach(self, session: Session, stream: StreamHandle) -> None:
        """Starts the lease when the stream that ends is the session's own."""
        entry = self._entries.get(session.session_id)
        if entry is not None and entry.stream is stream:
            entry.stream = None
            self._start_lease(entry)

    async def close(self, session: Session, reason: str) -> None:
        """Ends the session and its stream and frees what it holds."""
        entry = self._entries.pop(session.session_id, None)
        if entry is None:
            return
        self._stop_lease(entry)
        if entry.stream is not None:
            entry.stream.end(None)
        await session.close()
        self._changed.set()
        _log.info("session_closed", session=session.hash, peer=session.owner, reason=reason, num_sessions=len(self))

    async def emptied(self) -> None:
        """Returns once no session is left."""
        while len(self):
            self._changed.clear()
            await self._changed.wait()

    def start_draining(self) -> None:
        """From now on no session is opened; those that are open go on."""
        self._is_draining = True

    def end_streams(self) -> None:
        """Ends every stream once the request that it waits for is answered, and lets no other attach."""
        self._is_ending = True
        for entry in self._entries.values():
            if entry.stream is not None:
                entry.stream.end_when_idle(_draining())

    async def close_all(self) -> None:
        """Ends every session."""
        for entry in tuple(self._entries.values()):
            await self.close(entry.session, "shutdown")
        if self._closing:
            await asyncio.gather(*self._closing)

    def _entry(self, session_id: str, owner: str) -> _Entry:
        entry = self._entries.get(session_id)
        if entry is None:
            raise StateError(
                "the session is unknown: it was closed, its lease ended, or this node was restarted",
                remedy="open a new session, from a checkpoint if there is one",
            )
        if entry.session.owner != owner:
            raise AuthError(
                f"session {entry.session.hash} belongs to another peer",
                remedy="attach with the certificate that opened it",
                authenticated=True,
            )
        return entry

    def _check_room(self, owner: str) -> None:
        if self._is_draining:
            raise _draining()
        owned = sum(entry.session.owner == owner for entry in self._entries.values()) + self._opening.count(owner)
        for count, limit, what in (
            (len(self), self._max_sessions, "max_sessions"),
            (owned, self._max_sessions_per_peer, "max_sessions_per_peer"),
        ):
            if count >= limit:
                raise LimitError(
                    f"{count} sessions are open, and limits.{what} is {limit}",
                    remedy=f"close a session, or try again in {self._lease_seconds:g} s, when abandoned ones are freed",
                )

    def _start_lease(self, entry: _Entry) -> None:
        self._stop_lease(entry)
        entry.lease = asyncio.get_running_loop().call_later(self._lease_seconds, self._expire, entry)

    @staticmethod
    def _stop_lease(entry: _Entry) -> None:
        if entry.lease is not None:
            entry.lease.cancel()
            entry.lease = None

    def _expire(self, entry: _Entry) -> None:
        task = asyncio.get_running_loop().create_task(self.close(entry.session, "lease"))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def _draining() -> PeerError:
    return UnavailableError("this node is shutting down", remedy="try again later, from a checkpoint if there is one")
