"""Metric names follow the conventions, labels carry nothing private, and the server keeps to its address."""

from __future__ import annotations

import socket
import urllib.request

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from splitwire import metrics
from splitwire.errors import SettingsError

PRIVATE = {"session", "user", "token", "step", "document", "peer", "text"}


@pytest.mark.parametrize("metric", metrics.ALL, ids=lambda metric: metric.name)
def test_a_metric_can_be_made_under_its_name_and_has_no_private_label(metric: metrics.Metric) -> None:
    registry = CollectorRegistry()
    make = {"counter": metrics.counter, "gauge": metrics.gauge, "histogram": metrics.histogram}[metric.kind]
    made = make(metric, registry)
    if metric.labels:
        made = made.labels(*["x" for _ in metric.labels])
    assert f"# TYPE {metric.name} {metric.kind}" in generate_latest(registry).decode()
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert not PRIVATE & set(metric.labels)


def test_names_are_used_once() -> None:
    names = [metric.name for metric in metrics.ALL]
    assert len(set(names)) == len(names)


def test_the_server_shows_the_registry_until_it_is_stopped() -> None:
    registry = CollectorRegistry()
    metrics.counter(metrics.WIRE_BYTES, registry).labels("FORWARD", "request").inc(5)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    stop = metrics.serve(f"127.0.0.1:{port}", registry)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as response:
            assert b'splitwire_wire_bytes_total{direction="request",hop="FORWARD"} 5.0' in response.read()
    finally:
        stop()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5)


def test_an_address_in_use_is_told() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(SettingsError, match="cannot be used"):
            metrics.serve(f"127.0.0.1:{taken.getsockname()[1]}", CollectorRegistry())
