"""A client that leaves its answer unread must not hold the connection for ever."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from tln.serve.protocol import HttpProtocol, http_protocol


async def _app(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("nothing is asked")


class Transport(asyncio.Transport):
    """Says how it ended. `unread` is what the client has not taken."""

    def __init__(self, unread: int = 0) -> None:
        super().__init__()
        self.unread = unread
        self.end = ""

    def get_write_buffer_size(self) -> int:
        return self.unread

    def close(self) -> None:
        self.end = self.end or "closed"

    def abort(self) -> None:
        self.end = self.end or "aborted"


def _connected(transport: Transport, patience_seconds: float) -> HttpProtocol:
    protocol = http_protocol(patience_seconds, 1, _app)(uvicorn.Config(_app, log_config=None), ServerState(), {})
    protocol.connection_made(transport)
    return protocol


@pytest.mark.parametrize("reads_on", [True, False])
def test_an_answer_that_is_left_unread_ends_the_connection(*, reads_on: bool) -> None:
    """Unless the client reads on in time."""

    async def run() -> str:
        transport = Transport()
        protocol = _connected(transport, 60.0)
        protocol.patience_seconds = 0.01
        protocol.pause_writing()
        if reads_on:
            protocol.resume_writing()
        await asyncio.sleep(0.1)
        end = transport.end
        protocol.connection_lost(None)
        return end

    assert asyncio.run(run()) == ("" if reads_on else "aborted")


@pytest.mark.parametrize(("unread", "end"), [(0, "closed"), (9, "aborted")])
def test_a_connection_that_is_closed_does_not_wait_for_its_reader(unread: int, end: str) -> None:
    """What is left of an answer when the time for the next request is over is thrown away."""

    async def run() -> str:
        transport = Transport(unread)
        protocol = _connected(transport, 0.01)
        await asyncio.sleep(0.1)
        protocol.connection_lost(None)
        return transport.end

    assert asyncio.run(run()) == end
