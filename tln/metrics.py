"""Prometheus metrics of the trusted node: bytes that crossed, time a training step takes, and the defence in force.

Labels are hop, direction, phase and the names of mechanisms; never a session, a step, a document or a count of real
rows. Off unless an address is given, which belongs on loopback or on a private network of the trusted host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry

from splitwire import metrics
from splitwire.bundles import WireRecord, hop_name

NO_DEFENCE_LABEL = "none"


@dataclass(frozen=True)
class MetricsSettings:
    """Where Prometheus may pull."""

    listen: str = ""
    """host:port on loopback or on a private network of the trusted host; empty is off."""


class TlnMetrics:
    """Metrics of one run in a registry of its own. `defence` is what `Connected.defence` says."""

    def __init__(self, defence: Mapping[str, Any]) -> None:
        self.registry = CollectorRegistry()
        self._wire_bytes = metrics.counter(metrics.WIRE_BYTES, self.registry)
        self._step_seconds = metrics.histogram(metrics.STEP_SECONDS, self.registry)
        effective = metrics.gauge(metrics.DEFENCE_INFO, self.registry)
        for name in defence_names(defence):
            effective.labels(name).set(1)

    def count(self, record: WireRecord) -> None:
        """Adds one message that crossed."""
        self._wire_bytes.labels(hop_name(record.hop), record.direction).inc(len(record.message))

    def time_step(self, seconds: float) -> None:
        """Adds one training step."""
        self._step_seconds.labels("train").observe(seconds)


def defence_names(defence: Mapping[str, Any]) -> list[str]:
    """The mechanisms of the frame and the gradient policy by name; 'none' when the frame has none."""
    policy = defence["gradient"].get("policy")
    return [*(defence["frame"] or (NO_DEFENCE_LABEL,)), *([f"gradient_{policy}"] if policy else [])]


@contextmanager
def served(settings: MetricsSettings, defence: Mapping[str, Any]) -> Iterator[TlnMetrics]:
    """Metrics of the block, shown at the address that the settings name, if any."""
    run = TlnMetrics(defence)
    stop: Callable[[], None] = metrics.serve(settings.listen, run.registry) if settings.listen else lambda: None
    try:
        yield run
    finally:
        stop()
