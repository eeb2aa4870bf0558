"""What Prometheus may see of the untrusted node. Labels come from fixed sets: never a session, a peer or a step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from prometheus_client import CollectorRegistry, ProcessCollector

from splitwire.metrics import (
    RPC_HANDLED,
    STEP_SECONDS,
    UCN_BATCH_SIZE,
    UCN_CACHE_BYTES,
    UCN_CACHE_WAITING,
    UCN_DEVICE_MEMORY,
    UCN_QUEUE_DEPTH,
    UCN_SESSIONS_ACTIVE,
    WIRE_BYTES,
    counter,
    follow_certificate,
    gauge,
    histogram,
)
from splitwire.tls import TlsFiles
from splitwire.wire import CLOSE_SESSION, EXCHANGE, OPEN_SESSION, SERVICE

Direction = Literal["request", "response"]
_MEMORY: dict[str, Callable[[], float]] = {
    "allocated": lambda: _over_gpus(torch.cuda.memory_allocated),
    "reserved": lambda: _over_gpus(torch.cuda.memory_reserved),
}
_METHODS = (OPEN_SESSION, EXCHANGE, CLOSE_SESSION)


class UcnMetrics:
    """The node's collectors, in a registry of their own."""

    def __init__(self, tls: TlsFiles | None = None) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._wire_bytes = counter(WIRE_BYTES, self.registry)
        self._step_seconds = histogram(STEP_SECONDS, self.registry)
        self._handled = counter(RPC_HANDLED, self.registry)
        self._sessions = gauge(UCN_SESSIONS_ACTIVE, self.registry)
        self._queue = gauge(UCN_QUEUE_DEPTH, self.registry)
        self._batch_size = histogram(UCN_BATCH_SIZE, self.registry)
        self._cache_bytes = gauge(UCN_CACHE_BYTES, self.registry)
        self._cache_waiting = gauge(UCN_CACHE_WAITING, self.registry)
        memory = gauge(UCN_DEVICE_MEMORY, self.registry)
        for kind, read in _MEMORY.items():
            memory.labels(kind).set_function(read)
        follow_certificate(tls, self.registry)

    def watch(
        self,
        sessions: Callable[[], float],
        queue: Callable[[], float],
        cache_bytes: Callable[[], float],
        cache_waiting: Callable[[], float],
    ) -> None:
        """Where the gauges read their values, at each pull."""
        self._cache_waiting.set_function(cache_waiting)
        self._cache_bytes.set_function(cache_bytes)
        self._sessions.set_function(sessions)
        self._queue.set_function(queue)

    def count_batch(self, num_frames: int) -> None:
        """Adds one pass over frames of so many sessions."""
        self._batch_size.observe(num_frames)

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


def _over_gpus(read: Callable[[int], int]) -> float:
    """The sum over this machine's GPUs; 0 where torch has not touched one, so that a pull never wakes a device."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return 0.0
    return float(sum(map(read, range(torch.cuda.device_count()))))
