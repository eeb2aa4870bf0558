"""Shows what the last audit found beside what the watch sees: reads the file of `auditor audit --metrics-file`.

It is read at each pull. A file that is missing or half there shows nothing; what no audit writes is passed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from prometheus_client import Gauge, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from splitwire import metrics

_SHOWN = frozenset(
    metric.name
    for metric in (
        metrics.AUDITOR_LAST_RUN,
        metrics.AUDITOR_VERDICT,
        metrics.AUDITOR_CHECKS,
        metrics.AUDITOR_PARTITION_AUC,
        metrics.AUDITOR_LINKAGE_AUC,
    )
)


class AuditFile(Collector):
    """Register it before `shared`: the watch's own gauges by name, which get the audit's series too."""

    def __init__(self, file: Path, shared: Mapping[str, Gauge]) -> None:
        self._file = file
        self._shared = shared
        self._labels: set[tuple[str, tuple[str, ...]]] = set()

    def collect(self) -> Iterable[Metric]:
        """The families of the file that are not shared; shared ones are set on the way."""
        families = self._read()
        now = {
            (family.name, _values(sample.labels)): sample.value
            for family in families
            if family.name in self._shared
            for sample in family.samples
        }
        for name, labels in self._labels - now.keys():
            self._shared[name].remove(*labels)
        for (name, labels), value in now.items():
            self._shared[name].labels(*labels).set(value)
        self._labels = set(now)
        return [family for family in families if family.name in _SHOWN]

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that registering reads no file."""
        return []

    def _read(self) -> list[Metric]:
        try:
            return list(text_string_to_metric_families(self._file.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError):
            return []


def _values(labels: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(labels.get(label, "") for label in metrics.AUDITOR_GATE.labels)
