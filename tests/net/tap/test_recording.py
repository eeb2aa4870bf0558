"""The bundle of the tap holds what crossed, byte for byte; what is lost or cannot be written is never hidden."""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch

from auditor.tap.settings import MetricsSettings
from splitwire import bundles, wire
from splitwire.bundles import BundleWriter, open_bundle, verify_bundle
from splitwire.errors import BundleError, RecordingError
from splitwire.frames import encode_frame
from splitwire.sealing import write_audit_keys
from splitwire.tls import TlsFiles
from splitwire.v1 import channels_pb2, stack_pb2

from .conftest import ATTACH, SESSION, Script, control

HASH = wire.session_hash(SESSION)


def _frame(hop: channels_pb2.Hop, step: int) -> list[bytes]:
    header = stack_pb2.FrameHeader(hop=hop, step=step, dtype=stack_pb2.WIRE_DTYPE_FP32)
    rows = torch.randn(2, 8, 16, generator=torch.Generator().manual_seed(step))
    return list(encode_frame(header, rows, chunk_bytes=300))


def _train(channel: grpc.Channel, stream: Callable[..., Any]) -> Any:
    """A session of three steps; the upstream echoes, so RETURN carries the bytes of FORWARD."""
    opened = channel.unary_unary(wire.OPEN_SESSION)(b"\x08\x01", timeout=10)
    exchange = stream(channel)
    exchange.ask(ATTACH)
    for step in (1, 2, 3):
        for hop in (channels_pb2.HOP_FORWARD, channels_pb2.HOP_BACKWARD):
            for message in _frame(hop, step):
                exchange.ask(message)
    exchange.half_close()
    list(exchange.call)
    channel.unary_unary(wire.CLOSE_SESSION)(
        stack_pb2.CloseSessionRequest(session_id=SESSION).SerializeToString(), timeout=10
    )
    exchange.opened = opened
    return exchange


def test_the_bundle_holds_what_the_trusted_node_sent_and_received(
    tap: Any, client: Any, stream: Callable[..., Any]
) -> None:
    exchange = _train(client, stream)
    tap.stop()
    bundle = open_bundle(tap.settings.out)
    assert bundle.is_complete
    assert bundle.sessions() == [HASH]
    sent = {hop: [m for step in (1, 2, 3) for m in _frame(hop, step)] for hop in (1, 3)}
    for hop in (channels_pb2.HOP_FORWARD, channels_pb2.HOP_BACKWARD):
        requests = [r.message for r in bundle.messages(hop, HASH) if r.direction == "request"]
        assert requests == sent[hop]
    responses = [r.message for r in bundle.messages() if r.kind == "ExchangeResponse"]
    assert sorted(responses) == sorted(exchange.received)
    requests = [r.message for r in bundle.messages() if r.kind == "ExchangeRequest"]
    assert sorted(requests) == sorted(exchange.sent)
    opening = [r.message for r in bundle.messages() if r.kind.startswith("OpenSession")]
    assert opening == [b"\x08\x01", exchange.opened]


def test_times_are_those_of_taking_and_of_handing_on(tap: Any, client: Any, stream: Callable[..., Any]) -> None:
    before = time.time_ns()
    _train(client, stream)
    tap.stop()
    for record in open_bundle(tap.settings.out).messages():
        assert before <= record.sent_ns <= record.received_ns <= time.time_ns()


def test_a_recorder_inside_the_trusted_node_writes_the_same_payloads(
    tap: Any, client: Any, stream: Callable[..., Any], tmp_path: Path
) -> None:
    exchange = _train(client, stream)
    tap.stop()
    inner = tmp_path / "inner"
    with BundleWriter(inner, recorder="tln", settings={}) as writer:
        hop = channels_pb2.HOP_CONTROL
        for message in exchange.sent:
            parsed = stack_pb2.ExchangeRequest.FromString(message)
            if parsed.WhichOneof("payload") == "frame" and parsed.frame.HasField("header"):
                hop = parsed.frame.header.hop
            writer.write(bundles.WireRecord(hop, "request", HASH, message, 0, 0, "ExchangeRequest"))
    for hop in (channels_pb2.HOP_CONTROL, channels_pb2.HOP_FORWARD, channels_pb2.HOP_BACKWARD):
        ours, theirs = (
            [r.message for r in open_bundle(folder).messages(hop) if r.kind == "ExchangeRequest"]
            for folder in (tap.settings.out, inner)
        )
        assert ours == theirs != []


def test_the_manifest_is_signed_and_carries_the_settings(
    upstream: Any, start_tap: Any, connect: Any, stream: Callable[..., Any], tmp_path: Path
) -> None:
    trust = write_audit_keys(tmp_path / "audit")
    trust = trust if trust.is_file() else trust / "trust.json"
    tap = start_tap(upstream, signing_key=tmp_path / "audit" / "tap-recorder.key")
    _train(connect(tap.address), stream)
    tap.stop()
    report = verify_bundle(tap.settings.out, trust)
    assert report.problems == []
    assert report.signer
    assert open_bundle(tap.settings.out).settings["upstream"] == upstream.address


def test_garbage_of_a_peer_is_recorded_and_does_not_stop_the_recording(
    tap: Any, client: Any, stream: Callable[..., Any]
) -> None:
    exchange = stream(client)
    exchange.ask(ATTACH)
    exchange.ask(b"\xff\xff\xff")
    for message in _frame(channels_pb2.HOP_FORWARD, 1):
        exchange.ask(message)
    tap.stop()
    bundle = open_bundle(tap.settings.out)
    assert [r.message for r in bundle.messages(channels_pb2.HOP_CONTROL) if r.direction == "request"][-1] == b"\xff" * 3
    assert len([r for r in bundle.messages(channels_pb2.HOP_FORWARD) if r.direction == "request"]) > 1


def test_a_call_that_fails_leaves_its_request_in_the_bundle(tap: Any, client: Any, stream: Callable[..., Any]) -> None:
    exchange = stream(client)
    exchange.ask(ATTACH)
    exchange.send(control(Script.ABORT))
    with pytest.raises(grpc.RpcError):
        exchange.receive()
    tap.stop()
    requests = [r.message for r in open_bundle(tap.settings.out).messages() if r.direction == "request"]
    assert requests == [ATTACH, control(Script.ABORT)]


def test_health_checks_are_not_part_of_the_bundle(tap: Any, client: Any) -> None:
    client.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=10)
    tap.stop()
    assert list(open_bundle(tap.settings.out).messages()) == []


class _SlowDisk:
    """Holds writing up until it is released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.released = threading.Event()
        write = BundleWriter.write

        def slow(writer: BundleWriter, record: bundles.WireRecord) -> None:
            self.released.wait(20)
            write(writer, record)

        monkeypatch.setattr(BundleWriter, "write", slow)


def test_drops_are_counted_in_the_metrics_and_in_the_manifest(
    upstream: Any, start_tap: Any, connect: Any, stream: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = _SlowDisk(monkeypatch)
    tap = start_tap(upstream, max_queue_bytes=2000)
    exchange = _train(connect(tap.address), stream)
    disk.released.set()
    tap.stop()
    dropped = open_bundle(tap.settings.out).num_dropped
    assert dropped
    num_written = len(list(open_bundle(tap.settings.out).messages()))
    assert dropped + num_written == len(exchange.sent) + len(exchange.received) + 4
    assert any("dropped" in problem for problem in verify_bundle(tap.settings.out).problems)
    assert tap.tap.metrics.registry.get_sample_value("auditor_tap_dropped_total") == dropped


def test_waiting_for_the_disk_slows_the_wire_and_loses_nothing(
    upstream: Any, start_tap: Any, connect: Any, stream: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = _SlowDisk(monkeypatch)
    tap = start_tap(upstream, max_queue_bytes=2000, when_full="wait")
    threading.Timer(1.0, disk.released.set).start()
    _train(connect(tap.address), stream)
    assert disk.released.is_set()
    tap.stop()
    assert verify_bundle(tap.settings.out).problems == []


def _fail_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise RecordingError("no space left on device", remedy="free some space")

    monkeypatch.setattr(BundleWriter, "write", full)


def test_a_tap_that_cannot_record_stops(
    upstream: Any, start_tap: Any, connect: Any, stream: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    tap = start_tap(upstream)
    exchange = stream(connect(tap.address))
    exchange.ask(ATTACH)
    _fail_to_write(monkeypatch)
    while not tap.tap.stopping.is_set():
        with suppress(grpc.RpcError):
            exchange.ask(control(Script.ECHO))
    with pytest.raises(grpc.RpcError) as caught:
        exchange.receive()
    assert caught.value.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
    with pytest.raises(RecordingError, match="no space left"):
        tap.wait()
    assert not open_bundle(tap.settings.out).is_complete


def test_a_tap_that_cannot_record_goes_on_forwarding_where_it_is_told_to(
    upstream: Any, start_tap: Any, connect: Any, stream: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    tap = start_tap(upstream, when_failed="forward")
    exchange = stream(connect(tap.address))
    exchange.ask(ATTACH)
    _fail_to_write(monkeypatch)
    for _ in range(20):
        assert exchange.ask(control(Script.ECHO))
    assert tap.tap.metrics.registry.get_sample_value("auditor_tap_recording_failed") == 1
    with pytest.raises(RecordingError):
        tap.stop()
    assert not open_bundle(tap.settings.out).is_complete


def test_a_folder_that_was_used_is_refused(upstream: Any, start_tap: Any, tmp_path: Path) -> None:
    (tmp_path / "bundle0").mkdir()
    (tmp_path / "bundle0" / "wire.mcap").touch()
    with pytest.raises(BundleError, match="not empty"):
        start_tap(upstream)


def test_metrics_tell_bytes_by_hop_and_nothing_of_a_session(
    upstream: Any, start_tap: Any, connect: Any, stream: Callable[..., Any], free_port: int
) -> None:
    tap = start_tap(upstream, metrics=MetricsSettings(listen=f"127.0.0.1:{free_port}"))
    exchange = _train(connect(tap.address), stream)
    with urllib.request.urlopen(f"http://127.0.0.1:{free_port}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    forward = sum(len(m) for step in (1, 2, 3) for m in _frame(channels_pb2.HOP_FORWARD, step))
    assert f'splitwire_wire_bytes_total{{direction="request",hop="FORWARD"}} {forward}.0' in text
    assert "auditor_tap_dropped_total 0.0" in text
    assert SESSION not in text
    assert HASH not in text
    assert exchange.opened


def test_draining_ends_running_calls_as_unavailable_and_completes_the_bundle(
    tap: Any, client: Any, stream: Callable[..., Any], pki: dict[str, TlsFiles]
) -> None:
    exchange = stream(client)
    exchange.ask(ATTACH)
    tap.begin_stop()
    with pytest.raises(grpc.RpcError) as caught:
        exchange.receive()
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    assert "draining" in caught.value.details()
    tap.wait()
    assert verify_bundle(tap.settings.out).problems == []


def test_while_it_drains_health_says_not_serving_and_new_sessions_are_refused(
    upstream: Any, start_tap: Any, connect: Any, stream: Callable[..., Any]
) -> None:
    tap = start_tap(upstream, drain_seconds=20.0)
    channel = connect(tap.address)
    running = stream(channel)
    running.ask(ATTACH)
    tap.begin_stop()
    deadline = time.monotonic() + 10
    while channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=5) != b"\x08\x02":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(wire.OPEN_SESSION)(b"", timeout=5)
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    assert running.ask(control(Script.ECHO))
    tap.cut()
    tap.wait()
    assert verify_bundle(tap.settings.out).problems == []


def test_a_peer_that_does_not_read_cannot_hold_the_end_up(
    upstream: Any, start_tap: Any, connect: Any, stream: Callable[..., Any]
) -> None:
    tap = start_tap(upstream)
    exchange = stream(connect(tap.address))
    exchange.ask(ATTACH)
    exchange.send(control(Script.FLOOD))
    time.sleep(1)
    started = time.monotonic()
    tap.stop()
    assert time.monotonic() - started < 15
    assert verify_bundle(tap.settings.out).problems == []
