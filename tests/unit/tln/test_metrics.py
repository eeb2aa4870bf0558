"""Metrics of the trusted node: the defence in force, bytes and step times, and no label that tells more."""

from __future__ import annotations

import math
import socket
import urllib.request
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from splitwire.bundles import WireRecord
from splitwire.errors import SettingsError
from splitwire.pki import init_pki
from splitwire.tls import certificate_end
from splitwire.v1 import channels_pb2
from tln.metrics import MetricsSettings, TlnMetrics, served
from tln.training.utility import Utility

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


def test_metrics_linger_after_a_run_that_ended_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not after one that failed, and not where nobody can pull."""
    waited: list[float] = []
    monkeypatch.setattr("tln.metrics.time.sleep", waited.append)
    with served(MetricsSettings(linger_seconds=5.0), DEFENCE):
        pass
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    with pytest.raises(ValueError, match="failed"), served(MetricsSettings(address, 5.0), DEFENCE):
        raise ValueError("failed")
    assert waited == []
    with served(MetricsSettings(address, 5.0), DEFENCE):
        pass
    assert waited == [5.0]
    with pytest.raises(SettingsError, match="linger_seconds is -1"):
        MetricsSettings(linger_seconds=-1.0)


def test_what_training_costs_in_utility_is_shown() -> None:
    """The gate's outcome is one state of three, the delta has its bounds, and perplexities are those of the nats."""
    metrics = TlnMetrics(DEFENCE)
    metrics.show_loss(2.5, None)
    metrics.show_utility(Utility(2.0, 2.2, 0.2, 0.1, 0.3, 0.35, 30, 900, "passes", ""))
    shown = generate_latest(metrics.registry).decode()
    assert "tln_loss_nats 2.5" in shown
    assert 'tln_held_out_delta_nats{bound="upper"} 0.3' in shown
    assert 'tln_utility_gate{state="passes"} 1.0' in shown
    assert 'tln_utility_gate{state="fails"} 0.0' in shown
    value = metrics.registry.get_sample_value("tln_held_out_perplexity_ratio", {"model": "split"})
    assert value == pytest.approx(math.exp(2.2))


def test_exchanges_and_retries_are_counted_apart() -> None:
    """An exchange has its hop as the phase."""
    metrics = TlnMetrics(DEFENCE)
    metrics.time_phase("exchange_forward", 0.25)
    metrics.count_retry()
    shown = generate_latest(metrics.registry).decode()
    assert 'splitwire_step_seconds_count{phase="exchange_forward"} 1.0' in shown
    assert "splitwire_retries_total 1.0" in shown


def test_the_end_of_the_certificate_follows_the_file(tmp_path: Path) -> None:
    """A pull after a renewal shows the new end, and 0 says that the file is gone."""
    files = init_pki(tmp_path / "pki", days=5)["tln"]
    metrics = TlnMetrics(DEFENCE, files)
    name, labels = "splitwire_certificate_not_after_timestamp_seconds", {"certificate": "node"}
    before = certificate_end(files.certificate)
    assert metrics.registry.get_sample_value(name, labels) == before
    files.certificate.unlink()
    assert metrics.registry.get_sample_value(name, labels) == 0.0
