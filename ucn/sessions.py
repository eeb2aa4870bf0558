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
from ucn.settings import LimitSettings
from ucn.streams import StreamHandle

_log = get_logger("ucn")


@dataclass
class _Entry:
    session: Session
    trains_copy: bool
    stream: StreamHandle | None = None
    lease: asyncio.TimerHandle | None = field(default=None, repr=False)


class SessionTable:
    """All sessions of the node."""

    def __init__(self, limits: LimitSettings, lease_seconds: float) -> None:
        self._limits = limits
        self._lease_seconds = lease_seconds
        self._entries: dict[str, _Entry] = {}
        self._opening: list[tuple[str, bool]] = []
        self._closing: set[asyncio.Task[None]] = set()
        self._is_draining = False
        self._is_ending = False
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._entries) + len(self._opening)

    async def open(
        self, owner: str, build: Callable[[str], Awaitable[Session]], *, trains_copy: bool = False
    ) -> Session:
        """Builds a session under a fresh random id, if there is room, and starts its lease.

        `trains_copy` tells that the session will hold a copy of the layers with its gradients and moments.
        """
        self._check_room(owner, trains_copy)
        session_id = secrets.token_hex(16)
        self._opening.append((owner, trains_copy))
        try:
            session = await build(session_id)
        finally:
            self._opening.remove((owner, trains_copy))
            self._changed.set()
        entry = self._entries[session_id] = _Entry(session, trains_copy)
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
            self._changed.set()
            self._start_lease(entry)

    async def close(self, session: Session, reason: str) -> None:
        """Ends the session and its stream and frees what it holds, also when the caller does not wait for it."""
        await asyncio.shield(self._start_closing(session, reason))

    def _start_closing(self, session: Session, reason: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._close(session, reason))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        return task

    async def _close(self, session: Session, reason: str) -> None:
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

    async def end_streams(self) -> None:
        """Ends every stream once the request that it waits for is answered, and lets no other attach."""
        self._is_ending = True
        for entry in self._entries.values():
            if entry.stream is not None:
                entry.stream.end_when_idle(_draining())
        while any(entry.stream for entry in self._entries.values()):
            self._changed.clear()
            await self._changed.wait()

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

    def _check_room(self, owner: str, trains_copy: bool) -> None:
        if self._is_draining:
            raise _draining()
        held = [(entry.session.owner, entry.trains_copy) for entry in self._entries.values()] + self._opening
        counts = {
            "max_sessions": len(held),
            "max_sessions_per_peer": sum(peer == owner for peer, _ in held),
            "max_full_training_sessions": sum(copies for _, copies in held) if trains_copy else -1,
        }
        for name, count in counts.items():
            if count >= getattr(self._limits, name):
                raise LimitError(
                    f"{count} sessions are open, and limits.{name} is {getattr(self._limits, name)}",
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
        self._start_closing(entry.session, "lease")


def _draining() -> PeerError:
    return UnavailableError("this node is shutting down", remedy="try again later, from a checkpoint if there is one")
