"""One Exchange call of gRPC, and the watchdog that ends an exchange which takes too long.

Requests go through a queue to gRPC's sending thread; responses are read on the caller's thread, which is one thread
switch less than a reader thread would cost at every decode step. A stream has no deadline of its own, since it
lives as long as the session; the watchdog gives one to each exchange.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import grpc

from splitwire import wire
from tln.peer_errors import ConnectionLostError

_WATCH_INTERVAL_SECONDS = 0.25


class ExchangeStream:
    """Raw messages to and from the peer. Any failure ends it; grpc.RpcError carries the peer's status."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._call = channel.stream_stream(wire.EXCHANGE)(iter(self._outbox.get, None))

    def send(self, message: bytes) -> None:
        """Queues one serialized ExchangeRequest."""
        self._outbox.put(message)

    def receive(self) -> bytes:
        """The next serialized ExchangeResponse; waits for it."""
        try:
            return bytes(next(self._call))
        except StopIteration:
            raise ConnectionLostError(
                "the peer ended the stream without an answer", remedy="look at the untrusted node's log"
            ) from None

    @property
    def is_active(self) -> bool:
        """Whether the call is up, as far as this side has heard."""
        return bool(self._call.is_active())

    def cancel(self) -> None:
        """Ends the call; the peer keeps the session."""
        self._call.cancel()
        self._outbox.put(None)  # lets gRPC's sending thread go


@dataclass
class Watch:
    """The time limit of one exchange. `on_timeout` is called at most once, on the watchdog's thread."""

    deadline: float
    on_timeout: Callable[[], None] | None = None
    timed_out: bool = False


class Watchdog:
    """Ends exchanges that are late. It looks four times a second, so that an exchange pays two assignments."""

    def __init__(self) -> None:
        self._current: Watch | None = None
        self._is_expired = False
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    @contextmanager
    def watch(self, seconds: float) -> Iterator[Watch]:
        """Watches the body; whoever can be cancelled sets `on_timeout`."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="crossing-watchdog", daemon=True)
            self._thread.start()
        self._current = watch = Watch(time.monotonic() + seconds)
        try:
            yield watch
        finally:
            self._current = None

    def expire(self) -> None:
        """Ends the exchange that is under way, and all later ones, as if their time were over. Any thread may call."""
        self._is_expired = True

    def stop(self) -> None:
        """Ends the watchdog's thread."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(_WATCH_INTERVAL_SECONDS):
            watch = self._current
            if watch is None or watch.on_timeout is None or watch.timed_out:
                continue
            if time.monotonic() < watch.deadline and not self._is_expired:
                continue
            watch.timed_out = True
            watch.on_timeout()
