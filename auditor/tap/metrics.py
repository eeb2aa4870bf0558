"""Prometheus metrics of the tap: how much crossed, how calls ended, and what the bundle lost.

Labels are hop, direction, method and status code; never a session, a peer or a step.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from splitwire import metrics as names
from splitwire.bundles import WireRecord
from splitwire.v1 import channels_pb2

_HOP_LABELS = {value: name.removeprefix("HOP_").lower() for name, value in channels_pb2.Hop.items()}


class TapMetrics:
    """Metrics of one tap in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.wire_bytes = Counter(
            names.WIRE_BYTES, "Serialized message bytes that crossed", ["hop", "direction"], registry=self.registry
        )
        self.dropped = Counter(names.TAP_DROPPED, "Records lost to a full queue", registry=self.registry)
        self.handled = Counter(
            names.GRPC_HANDLED, "Calls by how they ended", ["method", "code"], registry=self.registry
        )
        self.active = Gauge("auditor_tap_calls_active", "Calls that are running", registry=self.registry)
        self.failed = Gauge(
            "auditor_tap_recording_failed", "1 when the bundle cannot be completed", registry=self.registry
        )

    def observe(self, record: WireRecord) -> None:
        """Counts one message that crossed, kept or not."""
        hop = _HOP_LABELS.get(record.hop, "unspecified")
        self.wire_bytes.labels(hop=hop, direction=record.direction).inc(len(record.message))
