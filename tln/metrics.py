"""Prometheus metrics of the trusted node: bytes that crossed, time a training step takes, and the defence in force.

Labels are hop, direction, phase and the names of mechanisms; never a session, a step, a document or a count of real
rows. Off unless an address is given, which belongs on loopback or on a private network of the trusted host.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry

from splitwire import metrics
from splitwire.bundles import WireRecord, hop_name
from splitwire.errors import SettingsError
from splitwire.tls import TlsFiles

if TYPE_CHECKING:  # it needs the settings, which hold these
    from tln.training.utility import Utility

_LARGEST_NATS = 700.0
"""Of which the exponential is still a number."""
_OUTCOMES = ("passes", "fails", "inconclusive")
_LONGEST_LINGER = 3600.0
NO_DEFENCE_LABEL = "none"


@dataclass(frozen=True)
class MetricsSettings:
    """Where Prometheus may pull."""

    listen: str = ""
    """host:port on loopback or on a private network of the trusted host; empty is off."""
    linger_seconds: float = 0.0
    """How long the metrics of a run that has ended well stay, so that Prometheus pulls its outcome; needs `listen`."""

    def __post_init__(self) -> None:
        if not 0 <= self.linger_seconds <= _LONGEST_LINGER:
            raise SettingsError(
                f"metrics.linger_seconds is {self.linger_seconds}", remedy=f"use 0 to {_LONGEST_LINGER:.0f} seconds"
            )


class TlnMetrics:
    """Metrics of one run in a registry of its own. `defence` is what `Connected.defence` says."""

    def __init__(self, defence: Mapping[str, Any], tls: TlsFiles | None = None) -> None:
        self.registry = CollectorRegistry()
        self._wire_bytes = metrics.counter(metrics.WIRE_BYTES, self.registry)
        self._step_seconds = metrics.histogram(metrics.STEP_SECONDS, self.registry)
        self._loss = metrics.gauge(metrics.TLN_LOSS, self.registry)
        self._batch_delta = metrics.gauge(metrics.TLN_BATCH_DELTA, self.registry)
        self._delta = metrics.gauge(metrics.TLN_HELD_OUT_DELTA, self.registry)
        self._ceiling = metrics.gauge(metrics.TLN_HELD_OUT_CEILING, self.registry)
        self._perplexity = metrics.gauge(metrics.TLN_PERPLEXITY, self.registry)
        self._gate = metrics.gauge(metrics.TLN_UTILITY_GATE, self.registry)
        self._retries = metrics.counter(metrics.RETRIES, self.registry)
        metrics.follow_certificate(tls, self.registry)
        effective = metrics.gauge(metrics.DEFENCE_INFO, self.registry)
        for name in defence_names(defence):
            effective.labels(name).set(1)

    def count(self, record: WireRecord) -> None:
        """Adds one message that crossed."""
        self._wire_bytes.labels(hop_name(record.hop), record.direction).inc(len(record.message))

    def time_step(self, seconds: float) -> None:
        """Adds one training step."""
        self.time_phase("train", seconds)

    def time_phase(self, phase: str, seconds: float) -> None:
        """Adds a step, or the part of one that an exchange took."""
        self._step_seconds.labels(phase).observe(seconds)

    def count_retry(self) -> None:
        """Adds one exchange that is sent again."""
        self._retries.inc()

    def show_loss(self, nats: float, batch_delta_nats: float | None) -> None:
        """The loss of the last step, and how far its cross-entropy is above the unsplit model's, where known."""
        self._loss.set(nats)
        if batch_delta_nats is not None:
            self._batch_delta.set(batch_delta_nats)

    def show_utility(self, utility: Utility) -> None:
        """What the utility gate says of held-out text."""
        bounds = {"value": utility.delta_nats, "lower": utility.delta_lower_nats, "upper": utility.delta_upper_nats}
        for bound, nats in bounds.items():
            self._delta.labels(bound).set(nats)
        self._ceiling.set(utility.ceiling_nats)
        for model, nats in (("split", utility.split_nats), ("unsplit", utility.unsplit_nats)):
            self._perplexity.labels(model).set(math.exp(min(nats, _LARGEST_NATS)))
        for outcome in _OUTCOMES:
            self._gate.labels(outcome).set(utility.outcome == outcome)


def defence_names(defence: Mapping[str, Any]) -> list[str]:
    """The mechanisms of the frame and the gradient policy by name; 'none' when the frame has none."""
    policy = defence["gradient"].get("policy")
    return [*(defence["frame"] or (NO_DEFENCE_LABEL,)), *([f"gradient_{policy}"] if policy else [])]


@contextmanager
def served(settings: MetricsSettings, defence: Mapping[str, Any], tls: TlsFiles | None = None) -> Iterator[TlnMetrics]:
    """Metrics of the block, shown at the address that the settings name, if any."""
    run = TlnMetrics(defence, tls)
    stop: Callable[[], None] = metrics.serve(settings.listen, run.registry) if settings.listen else lambda: None
    try:
        yield run
        if settings.listen:
            time.sleep(settings.linger_seconds)
    finally:
        stop()
