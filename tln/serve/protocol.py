"""HTTP as uvicorn speaks it, with an end to waiting: whoever does not finish asking is not listened to for ever.

A connection that sends no whole head of a request in time, at its beginning or after an answer, is closed. What is not
HTTP is answered in the API's form too. There is no upgrade to another protocol.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from tln.serve.errors import bad_request


class HttpProtocol(H11Protocol):
    """One connection."""

    head_seconds: float
    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins to wait."""
        super().connection_made(transport)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Waits no more."""
        self._stop_waiting()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Waits for the next request."""
        self._wait_for_head()
        super().on_response_complete()

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
        self._waiting = self.loop.call_later(self.head_seconds, self._close_unless_asked, self.cycle)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()

    def _close_unless_asked(self, last: object) -> None:
        """`last` is the request that was answered before; another one means that a head has come."""
        if self.cycle is last:
            self.transport.close()


def http_protocol(head_seconds: float) -> type[HttpProtocol]:
    """The protocol for uvicorn's settings, with the time that a head may take."""
    return type("HttpProtocol", (HttpProtocol,), {"head_seconds": head_seconds})
