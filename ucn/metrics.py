"""What Prometheus may see of the untrusted node. Labels come from fixed sets: never a session, a peer or a step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from prometheus_client import CollectorRegistry, ProcessCollector

from splitwire.metrics import (
    RPC_HANDLED,
    STEP_SECONDS,
    UCN_QUEUE_DEPTH,
    UCN_SESSIONS_ACTIVE,
    WIRE_BYTES,
    counter,
    gauge,
    histogram,
)
from splitwire.wire import CLOSE_SESSION, EXCHANGE, OPEN_SESSION, SERVICE

Direction = Literal["request", "response"]
_METHODS = (OPEN_SESSION, EXCHANGE, CLOSE_SESSION)


class UcnMetrics:
    """The node's collectors, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._wire_bytes = counter(WIRE_BYTES, self.registry)
        self._step_seconds = histogram(STEP_SECONDS, self.registry)
        self._handled = counter(RPC_HANDLED, self.registry)
        self._sessions = gauge(UCN_SESSIONS_ACTIVE, self.registry)
        self._queue = gauge(UCN_QUEUE_DEPTH, self.registry)

    def watch(self, sessions: Callable[[], float], queue: Callable[[], float]) -> None:
        """Where the gauges read their values, at each pull."""
        self._sessions.set_function(sessions)
        self._queue.set_function(queue)

    def count_bytes(self, hop: str, direction: Direction, num_bytes: int) -> None:
        """Adds one message."""
        self._wire_bytes.labels(hop, direction).inc(num_bytes)

    def count_call(self, method: str, code: str) -> None:
        """Adds one call that ended; methods of other services count together, whatever a peer called them."""
        service, name = (SERVICE, method.rpartition("/")[2]) if method in _METHODS else ("other", "other")
        self._handled.labels(service, name, code).inc()

    @contextmanager
    def step(self, phase: str) -> Iterator[None]:
        """Times one computation."""
        started = time.monotonic()
        try:
            yield
        finally:
            self._step_seconds.labels(phase).observe(time.monotonic() - started)
