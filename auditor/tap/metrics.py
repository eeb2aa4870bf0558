"""Prometheus metrics of the tap: how much crossed, how calls ended, and what the bundle lost.

Labels are hop, direction, method and status code; never a session, a peer or a step.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge

from splitwire import metrics
from splitwire.bundles import WireRecord, hop_name
from splitwire.tls import TlsFiles


class TapMetrics:
    """Metrics of one tap in a registry of its own."""

    def __init__(self, tls: TlsFiles | None = None) -> None:
        self.registry = CollectorRegistry()
        self.dropped = metrics.counter(metrics.AUDITOR_TAP_DROPPED, self.registry)
        self.active = Gauge("auditor_tap_calls_active", "Calls that are running.", registry=self.registry)
        self.failed = Gauge("auditor_tap_recording_failed", "1 when the bundle is lost.", registry=self.registry)
        self.perturbed = metrics.counter(metrics.AUDITOR_TAP_PERTURBED, self.registry)
        self._wire_bytes = metrics.counter(metrics.WIRE_BYTES, self.registry)
        metrics.follow_certificate(tls, self.registry)
        self._handled = metrics.counter(metrics.RPC_HANDLED, self.registry)

    def count_message(self, record: WireRecord) -> None:
        """Adds one message that crossed, kept or not."""
        self._wire_bytes.labels(hop_name(record.hop), record.direction).inc(len(record.message))

    def count_call(self, method: str, code: str) -> None:
        """Adds one call that ended. `method` is a full path of the contract, or 'other'."""
        service, _, name = method.removeprefix("/").rpartition("/")
        self._handled.labels(service, name, code).inc()
