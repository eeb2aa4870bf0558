"""A stream that others may end: a newer stream of the same session, the end of the session, the end of the node.

Ending cancels the task that serves the stream; the task then tells this from a cancellation by the peer by asking
the handle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from splitwire.errors import PeerError

T = TypeVar("T")


class StreamHandle:
    """The serving task of one stream, and why it was ended."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task = task
        self._is_ended = False
        self._is_busy = False
        self._when_idle: PeerError | None = None
        self._reason: PeerError | None = None

    def end(self, reason: PeerError | None) -> None:
        """Ends the stream now: with this error, or as completed when there is none."""
        if not self._is_ended:
            self._is_ended = True
            self._reason = reason
            self._task.cancel()

    def end_when_idle(self, reason: PeerError) -> None:
        """Ends the stream with this error, after the answer that is under way."""
        if self._is_busy:
            self._when_idle = reason
        else:
            self.end(reason)

    def begin_answer(self) -> None:
        """A request has come in."""
        self._is_busy = True

    def finish_answer(self) -> None:
        """Its answer is sent; raises what was to end the stream after it."""
        self._is_busy = False
        if self._when_idle is not None:
            raise self._when_idle

    async def guard(self, serving: Awaitable[T]) -> T | None:
        """Runs the serving of the stream; a cancellation through `end` becomes its reason, any other passes."""
        try:
            return await serving
        except asyncio.CancelledError:
            if not self._is_ended:
                raise
            self._task.uncancel()
            if self._reason is not None:
                raise self._reason from None
            return None
