"""Prometheus metrics of a watch. Labels are hop and detector; never a session, a document or a step."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge

from auditor.channels import FORWARD_ONLY
from auditor.statistics.gate import GateReading
from auditor.watch.audit_file import AuditFile
from auditor.watch.base import Reading
from splitwire import metrics
from splitwire.bundles import hop_name

_HOPS = {"gradient_norm": "BACKWARD", "forward_norm": "FORWARD"}
_ATTACK = "streaming_probe"


class WatchMetrics:
    """Metrics of one watch in a registry of its own."""

    def __init__(self, audit_file: Path | None = None) -> None:
        self.registry = registry = CollectorRegistry()
        self._gate, self._floor, self._ceiling = (
            metrics.gauge(metric, None)
            for metric in (metrics.AUDITOR_GATE, metrics.AUDITOR_FLOOR, metrics.AUDITOR_GATE_CEILING)
        )
        self._show_audit(audit_file)
        self.skipped = metrics.counter(metrics.WATCH_SKIPPED, registry)
        self.unmatched = metrics.counter(metrics.WATCH_UNMATCHED, registry)
        self.backlog = metrics.gauge(metrics.WATCH_BACKLOG, registry)
        self.failures = metrics.counter(metrics.WATCH_ACTION_FAILURES, registry)
        self._frames = metrics.counter(metrics.WATCH_FRAMES, registry)
        self._auc = metrics.gauge(metrics.WATCH_PARTITION_AUC, registry)
        self._lower = metrics.gauge(metrics.WATCH_PARTITION_LOWER, registry)
        self._valley = metrics.gauge(metrics.WATCH_VALLEY, registry)
        self._linked = metrics.gauge(metrics.WATCH_LINKED, registry)
        self._support = metrics.gauge(metrics.WATCH_SUPPORT, registry)
        self._effect = metrics.gauge(metrics.WATCH_TOKEN_EFFECT, registry)
        self._evidence = metrics.gauge(metrics.WATCH_EVIDENCE, registry)
        self._leak = metrics.gauge(metrics.WATCH_LEAK, registry)

    def _show_audit(self, file: Path | None) -> None:
        """Registers what an audit and the watch both tell of the gate, after the file that sets the audit's part."""
        shared = {
            metrics.AUDITOR_GATE.name: self._gate,
            metrics.AUDITOR_FLOOR.name: self._floor,
            metrics.AUDITOR_GATE_CEILING.name: self._ceiling,
        }
        for collector in (*([] if file is None else [AuditFile(file, shared)]), *shared.values()):
            self.registry.register(collector)

    def count_frame(self, hop: int) -> None:
        """Adds one frame that the detectors took."""
        self._frames.labels(hop_name(hop)).inc()

    def show(self, readings: Iterable[Reading], gate: GateReading | None, *, calibrated: bool) -> None:
        """Sets the gauges to where the detectors stand."""
        for reading in readings:
            self._leak.labels(reading.detector).set(bool(reading.leak))
            if reading.evidence is not None and reading.evidence_needed:
                self._evidence.labels(reading.detector).set(reading.evidence / reading.evidence_needed)
            if reading.value is not None:
                self._gauge(reading, calibrated=calibrated).set(reading.value)
            if calibrated and reading.detector in _HOPS and reading.lower is not None:
                self._lower.labels(_HOPS[reading.detector]).set(reading.lower)
        if gate is not None:
            self._gate.labels(_ATTACK, FORWARD_ONLY).set(gate.gate_pp)
            self._ceiling.labels(_ATTACK, FORWARD_ONLY).set(gate.ceiling_pp)
            self._floor.labels(_ATTACK, FORWARD_ONLY).set(gate.floor_pp)

    def _gauge(self, reading: Reading, *, calibrated: bool) -> Gauge:
        if reading.detector in _HOPS:
            return (self._auc if calibrated else self._valley).labels(_HOPS[reading.detector])
        return {"support": self._support, "linkage": self._linked, "token": self._effect}[reading.detector]
