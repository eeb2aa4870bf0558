"""What every test against real servers needs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

_STOP_SECONDS = 20


@pytest.fixture(scope="session")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """One event loop in a thread, for all servers of the session."""
    running = asyncio.new_event_loop()
    thread = threading.Thread(target=running.run_forever, name="servers")
    thread.start()
    yield running
    running.call_soon_threadsafe(running.stop)
    thread.join(_STOP_SECONDS)
    running.close()
