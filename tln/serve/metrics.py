"""Prometheus metrics of `tln serve`, in the registry of the run. Labels are endpoints, outcomes and kinds alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from splitwire import metrics
from tln.metrics import TlnMetrics


class ServeMetrics:
    """Metrics of one server."""

    def __init__(self, run: TlnMetrics) -> None:
        registry = run.registry
        self.run = run
        self._answers = metrics.counter(metrics.SERVE_ANSWERS, registry)
        self._texts = metrics.counter(metrics.SERVE_TEXTS, registry)
        self._tokens = metrics.counter(metrics.SERVE_TOKENS, registry)
        self._near_ties = metrics.counter(metrics.SERVE_NEAR_TIES, registry)
        self._batch = metrics.gauge(metrics.SERVE_BATCH, registry)
        self._running = metrics.gauge(metrics.SERVE_RUNNING, registry)
        self._waiting = metrics.gauge(metrics.SERVE_WAITING, registry)
        self._sessions = metrics.gauge(metrics.SERVE_SESSIONS, registry)
        self._ready = metrics.gauge(metrics.SERVE_READY, registry)
        self._first_token = metrics.histogram(metrics.SERVE_FIRST_TOKEN, registry)

    def watch(self, running: Callable[[], float], waiting: Callable[[], float], sessions: Callable[[], float]) -> None:
        """Shows these numbers as they are when somebody asks."""
        self._running.set_function(running)
        self._waiting.set_function(waiting)
        self._sessions.set_function(sessions)

    def watch_readiness(self, ready: Callable[[], bool]) -> None:
        """Shows whether a text could begin, as it is when somebody asks."""
        self._ready.set_function(lambda: float(ready()))

    def count_answer(self, endpoint: str, status: int) -> None:
        """Adds one HTTP answer."""
        self._answers.labels(endpoint, str(status)).inc()

    def count_choice(self, *, is_near_tie: bool, seconds_since_arrival: float | None) -> None:
        """Adds one token; the first of a text tells how long it took."""
        self._tokens.labels("completion").inc()
        if is_near_tie:
            self._near_ties.inc()
        if seconds_since_arrival is not None:
            self._first_token.observe(seconds_since_arrival)

    def count_text(self, outcome: str, num_prompt: int) -> None:
        """Adds one text that is over."""
        self._texts.labels(outcome).inc()
        self._tokens.labels("prompt").inc(num_prompt)

    @contextmanager
    def timed(self, phase: str, num_texts: int) -> Iterator[None]:
        """Times a part of a step, and shows for how many texts it is."""
        began = time.perf_counter()
        yield
        self.run.time_phase(phase, time.perf_counter() - began)
        self._batch.set(num_texts)
