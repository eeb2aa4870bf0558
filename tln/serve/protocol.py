"""HTTP as uvicorn speaks it, with a bound on connections and an end to waiting for whoever is at the other end.

A connection that sends no whole head of a request in time, at its beginning or after an answer, is closed, and so is
one that leaves an answer unread. A connection that is one too many has the refusal for an answer, and less time to ask;
where there are twice as many as are served, it is closed at once. What is not HTTP is answered in the API's form too.
There is no upgrade to another protocol.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import h11
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from tln.serve.errors import bad_request

_REFUSED_SECONDS = 2.0


class HttpProtocol(H11Protocol):
    """One connection."""

    patience_seconds: float
    max_connections: int
    refusal: ASGIApp
    _waiting: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins to wait, unless there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            self.app = self.refusal
            self.patience_seconds = min(self.patience_seconds, _REFUSED_SECONDS)
        if len(self.connections) > 2 * self.max_connections:
            transport.abort()
        else:
            self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Waits no more."""
        self._stop_waiting()
        self._stop_waiting_for_reader()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Waits for the next request."""
        self._wait_for_head()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Waits for the client to read on."""
        super().pause_writing()
        self._unread = self.loop.call_later(self.patience_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """It has read."""
        self._stop_waiting_for_reader()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - the interface
        """Answers what is not HTTP, unless an answer has begun, and ends the connection."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps(bad_request("The request is not well-formed HTTP.", code="invalid_http").body()).encode()
            headers = [
                ("Content-Type", "application/json"),
                ("Content-Length", str(len(body))),
                ("Connection", "close"),
            ]
            answer: tuple[Any, ...] = (
                h11.Response(status_code=400, headers=headers, reason="Bad Request"),
                h11.Data(data=body),
                h11.EndOfMessage(),
            )
            for event in answer:
                self.transport.write(self.conn.send(event))
        self.transport.close()

    def _wait_for_head(self) -> None:
        self._stop_waiting()
        self._waiting = self.loop.call_later(self.patience_seconds, self._close_unless_asked, self.cycle)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()

    def _stop_waiting_for_reader(self) -> None:
        if self._unread is not None:
            self._unread.cancel()

    def _close_unless_asked(self, last: object) -> None:
        """`last` is the request that was answered before; another one means that a head has come."""
        if self.cycle is not last:
            return
        if self.transport.get_write_buffer_size():  # closing would wait for it to be read
            self.transport.abort()
        else:
            self.transport.close()


def http_protocol(patience_seconds: float, max_connections: int, refusal: ASGIApp) -> type[HttpProtocol]:
    """The protocol for uvicorn's settings: how long a head may take or an answer may lie unread, how many connections
    are served, and what answers those that are one too many.
    """
    bounds = {
        "patience_seconds": patience_seconds,
        "max_connections": max_connections,
        "refusal": staticmethod(refusal),
    }
    return type("HttpProtocol", (HttpProtocol,), bounds)
