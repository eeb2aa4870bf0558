"""Metrics of the trusted node: the defence in force, bytes and step times, and no label that tells more."""

from __future__ import annotations

import socket
import urllib.request

from prometheus_client import generate_latest

from splitwire.bundles import WireRecord
from splitwire.v1 import channels_pb2
from tln.metrics import MetricsSettings, TlnMetrics, served

DEFENCE = {"frame": {"clip": {"clip_norm": 1.0}, "noise": {"sigma": 0.35}}, "gradient": {"policy": "open"}}
SESSION = "0123456789abcdef"


def _record() -> WireRecord:
    return WireRecord(channels_pb2.HOP_FORWARD, "request", SESSION, b"x" * 70, 1, 1, "ExchangeRequest")


def test_the_effective_defence_is_exported_by_name() -> None:
    """One series a mechanism and one for the gradient policy; a frame without any says none."""
    shown = generate_latest(TlnMetrics(DEFENCE).registry).decode()
    for name in ("clip", "noise", "gradient_open"):
        assert f'splitwire_defence_info{{defence="{name}"}} 1.0' in shown
    assert 'defence="none"' in generate_latest(TlnMetrics({"frame": {}, "gradient": {}}).registry).decode()


def test_bytes_and_seconds_are_counted_without_the_session() -> None:
    """Labels are hop, direction and phase only."""
    metrics = TlnMetrics(DEFENCE)
    metrics.count(_record())
    metrics.count(_record())
    metrics.time_step(0.5)
    shown = generate_latest(metrics.registry).decode()
    assert 'splitwire_wire_bytes_total{direction="request",hop="FORWARD"} 140.0' in shown.replace("forward", "FORWARD")
    assert 'splitwire_step_seconds_sum{phase="train"} 0.5' in shown
    assert SESSION not in shown


def test_metrics_are_shown_while_the_block_runs_and_not_after() -> None:
    """Off by default; at an address only while the run lasts."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    with served(MetricsSettings(address), DEFENCE), urllib.request.urlopen(f"http://{address}/metrics") as page:
        assert b"splitwire_defence_info" in page.read()
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", int(address.rpartition(":")[2])))
