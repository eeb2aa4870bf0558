"""The result of an audit as Prometheus text, for a node exporter's textfile folder or for `auditor watch` to show.

An audit ends, and a gauge of a process that ended is gone; so what it found goes to a file, which keeps the time of the
audit. Labels are attack, family and state; never a document, a session or a step.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.exposition import write_to_textfile

from auditor.results import State
from splitwire import metrics
from splitwire.errors import RecordingError

_GATE, _PARTITION, _LINKAGE = "token_top1_gate", "partition_auc", "linkage_auc"


def write_metrics(report: Mapping[str, Any], file: Path) -> None:
    """Writes gates, floors, AUCs, checks and the verdict, with the time of now. The file is replaced whole."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_to_textfile(str(file), registry_of(report, time.time()))
    except OSError as error:
        raise RecordingError(
            f"the metrics cannot be written to {file}: {error.strerror}", remedy="give another file with --metrics-file"
        ) from None


def registry_of(report: Mapping[str, Any], ended_seconds: float) -> CollectorRegistry:
    """The collectors of one result; `ended_seconds` is the time of the audit, in seconds of the epoch."""
    registry = CollectorRegistry()
    metrics.gauge(metrics.AUDITOR_LAST_RUN, registry).set(ended_seconds)
    _one_of(metrics.gauge(metrics.AUDITOR_VERDICT, registry), str(report["verdict"]["state"]))
    _count(metrics.gauge(metrics.AUDITOR_CHECKS, registry), report)
    gate, floor, ceiling, partition, linkage = (
        metrics.gauge(metric, registry)
        for metric in (
            metrics.AUDITOR_GATE,
            metrics.AUDITOR_FLOOR,
            metrics.AUDITOR_GATE_CEILING,
            metrics.AUDITOR_PARTITION_AUC,
            metrics.AUDITOR_LINKAGE_AUC,
        )
    )
    for result, check in _checks(report):
        labels = (result["attack"], result["family"])
        if check["metric"] == _GATE:
            _set(gate, labels, check["value"])
            _set(floor, labels, check["floor"])
            _set(ceiling, labels, check["ceiling"])
        elif check["metric"] in (_PARTITION, _LINKAGE):
            _set(partition if check["metric"] == _PARTITION else linkage, labels, check["value"])
    return registry


def _checks(report: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    return ((result, check) for result in report["results"] for check in result["checks"])


def _set(gauge: Gauge, labels: tuple[str, str], value: float | None) -> None:
    """A value that is not known has no series."""
    if value is not None:
        gauge.labels(*labels).set(value)


def _one_of(gauge: Gauge, state: str) -> None:
    for name in get_args(State):
        gauge.labels(name).set(name == state)


def _count(gauge: Gauge, report: Mapping[str, Any]) -> None:
    states = [check["state"] for _, check in _checks(report)]
    for name in get_args(State):
        gauge.labels(name).set(states.count(name))
