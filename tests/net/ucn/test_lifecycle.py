"""Starting, being watched, and stopping."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch
from grpc_health.v1 import health_pb2

from splitwire.errors import SettingsError
from splitwire.tls import TlsFiles
from splitwire.wire import SERVICE
from ucn.settings import MetricsSettings

HEALTH_CHECK = "/grpc.health.v1.Health/Check"


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _health(client: Any, service: str = SERVICE) -> int:
    wish = health_pb2.HealthCheckRequest(service=service).SerializeToString()
    return health_pb2.HealthCheckResponse.FromString(client.call(HEALTH_CHECK, wish)).status


def test_draining_says_so_first_and_lets_sessions_end(scripted: Any, kit: Any) -> None:
    """NOT_SERVING and no new session; the open session goes on until it is closed, and that ends the drain."""
    _, running, client = scripted
    session_id = client.open(kit.request()).session_id
    stream = client.stream(session_id)
    assert _health(client) == health_pb2.HealthCheckResponse.SERVING
    draining = asyncio.run_coroutine_threadsafe(running.server.drain(), running.loop)
    running.is_stopped = True
    while _health(client) != health_pb2.HealthCheckResponse.NOT_SERVING:
        time.sleep(0.01)
    with pytest.raises(kit.refusal, match="shutting down") as refusal:
        client.open(kit.request())
    assert (refusal.value.code, refusal.value.error) == ("UNAVAILABLE", "UnavailableError")
    assert stream.forward(1, kit.rows()).shape == kit.rows().shape
    assert not draining.done()
    stream.finish()
    client.close_session(session_id)
    draining.result(kit.wait_seconds)


def test_the_answer_under_way_is_sent_before_the_drain_ends_a_stream(start_server: Any, connect: Any, kit: Any) -> None:
    """A stream that is computing when the time is over gets its answer and then UNAVAILABLE."""
    started, may_end = threading.Event(), threading.Event()

    def slow(rows: torch.Tensor, _call: Any) -> torch.Tensor:
        started.set()
        assert may_end.wait(kit.wait_seconds)
        return rows * 2

    running = start_server(kit.node(lambda: kit.stack(slow)).build(), drain_seconds=0.2)
    client = connect(running)
    ids = [client.open(kit.request()).session_id for _ in range(2)]
    busy, idle = (client.stream(session_id) for session_id in ids)
    busy.send(*kit.frame(1, 1, kit.rows()))
    assert started.wait(kit.wait_seconds)
    draining = asyncio.run_coroutine_threadsafe(running.server.drain(), running.loop)
    running.is_stopped = True
    with pytest.raises(kit.refusal, match="shutting down"):
        idle.receive()
    may_end.set()
    torch.testing.assert_close(busy.receive_tensor(), kit.rows() * 2)
    with pytest.raises(kit.refusal, match="shutting down") as refusal:
        busy.receive()
    assert refusal.value.code == "UNAVAILABLE"
    draining.result(kit.wait_seconds)


def test_a_health_watch_does_not_hold_a_shutdown_up(start_server: Any, connect: Any, kit: Any) -> None:
    """Calls that never end by themselves are cut when the sessions are done; the watcher hears NOT_SERVING first."""
    running = start_server(kit.node().build())
    watch = connect(running).channel.unary_stream("/grpc.health.v1.Health/Watch")
    states = watch(health_pb2.HealthCheckRequest(service=SERVICE).SerializeToString(), timeout=kit.wait_seconds)
    seen = [health_pb2.HealthCheckResponse.FromString(next(states)).status]
    started = time.monotonic()
    running.is_stopped = True
    running.run(running.server.drain())
    assert time.monotonic() - started < 10
    seen.append(health_pb2.HealthCheckResponse.FromString(next(states)).status)
    assert seen == [health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING]


def test_after_a_restart_sessions_are_unknown(start_server: Any, connect: Any, kit: Any) -> None:
    """A peer that comes back learns that it must open a new session."""
    running = start_server(kit.node().build())
    client = connect(running)
    session_id = client.open(kit.request()).session_id
    address = running.address
    running.stop()
    connect(start_server(kit.node().build(), listen=address))
    deadline = time.monotonic() + kit.wait_seconds
    while time.monotonic() < deadline:
        with pytest.raises(kit.refusal) as refusal:
            client.stream(session_id)
        if refusal.value.code != "UNAVAILABLE":  # the channel is still on its way back
            break
    assert (refusal.value.code, refusal.value.error) == ("FAILED_PRECONDITION", "StateError")
    assert "restarted" in refusal.value.details


def test_an_address_in_use_is_the_operators_mistake(start_server: Any, kit: Any) -> None:
    """Two servers never share a port silently."""
    running = start_server(kit.node().build())
    with pytest.raises(SettingsError, match="cannot be bound"):
        start_server(kit.node().build(), listen=running.address)


def test_metrics_count_without_naming_anyone(start_server: Any, connect: Any, kit: Any) -> None:
    """Bytes by hop, calls by code, sessions; no session, peer or step is a label."""
    listen = f"127.0.0.1:{_free_port()}"
    running = start_server(kit.node().build(), tls=None, insecure_loopback=True, metrics=MetricsSettings(listen=listen))
    client = connect(running, files=None)
    session_id = client.open(kit.request()).session_id
    client.stream(session_id).forward(1, kit.rows())
    text = urllib.request.urlopen(f"http://{listen}/metrics", timeout=kit.wait_seconds).read().decode()
    assert "ucn_sessions_active 1.0" in text
    assert "ucn_queue_depth 0.0" in text
    assert 'splitwire_wire_bytes_total{direction="request",hop="FORWARD"}' in text
    assert 'splitwire_wire_bytes_total{direction="response",hop="RETURN"}' in text
    assert 'splitwire_step_seconds_count{phase="forward"} 1.0' in text
    assert 'grpc_code="OK",grpc_method="OpenSession"' in text
    for private in (session_id, session_id[:8], "loopback"):
        assert private not in text


def test_metrics_need_a_client_certificate_under_tls(start_server: Any, kit: Any, pki: dict[str, TlsFiles]) -> None:
    """Whoever pulls metrics of a node with TLS shows a certificate of the authority."""
    port = _free_port()
    start_server(kit.node().build(), metrics=MetricsSettings(listen=f"127.0.0.1:{port}"))
    url = f"https://localhost:{port}/metrics"
    nameless = ssl.create_default_context(cafile=str(pki["tln"].ca))
    with pytest.raises((urllib.error.URLError, ConnectionError, ssl.SSLError)):
        urllib.request.urlopen(url, context=nameless, timeout=kit.wait_seconds).read()
    known = ssl.create_default_context(cafile=str(pki["tln"].ca))
    known.load_cert_chain(pki["tln"].certificate, pki["tln"].key)
    assert b"ucn_sessions_active" in urllib.request.urlopen(url, context=known, timeout=kit.wait_seconds).read()


def test_metrics_outside_loopback_need_tls(start_server: Any, kit: Any) -> None:
    """Metrics are a channel too."""
    with pytest.raises(SettingsError, match="loopback"):
        start_server(kit.node().build(), tls=None, insecure_loopback=True, metrics=MetricsSettings(listen="0.0.0.0:0"))


@pytest.fixture
def program(tmp_path: Path) -> Any:
    """Starts `ucn serve` as a process; gives it with its first log lines read up to the address."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> tuple[subprocess.Popen[str], str]:
        command = [sys.executable, "-c", "from ucn.cli import main; main()", "serve", "--set", "listen=127.0.0.1:0"]
        process = subprocess.Popen(
            [*command, *arguments], stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        started.append(process)
        for line in process.stderr:
            entry = json.loads(line)
            if entry["event"] == "serving":
                return process, entry["address"]
        raise AssertionError("ucn serve ended before it served")

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stderr.close()


def _settings(files: TlsFiles) -> list[str]:
    pairs = {"tls.ca": files.ca, "tls.certificate": files.certificate, "tls.key": files.key}
    found = [f"{key}={value}" for key, value in pairs.items()]
    return [part for pair in ['stacks=["gram"]', *found] for part in ("--set", pair)]


def test_sigterm_drains_and_ends_with_0(program: Any, pki: dict[str, TlsFiles], kit: Any) -> None:
    """The real program over mutual TLS: a session trains, SIGTERM ends its stream, and the exit code is 0."""
    process, address = program(*_settings(pki["ucn"]), "--set", "drain_seconds=0.3")
    client = kit.client(address, pki["tln"])
    stream = client.stream(client.open(kit.gram_request()).session_id)
    assert stream.forward(1, kit.rows()).shape == kit.rows().shape
    process.send_signal(signal.SIGTERM)
    with pytest.raises(kit.refusal) as refusal:
        stream.receive()
    assert refusal.value.code == "UNAVAILABLE"
    assert process.wait(kit.wait_seconds) == 0
    client.close()
    events = [json.loads(line)["event"] for line in process.stderr]
    assert events[-1] == "stopped"


def test_a_second_sigterm_ends_at_once(program: Any, pki: dict[str, TlsFiles], kit: Any) -> None:
    """An operator who insists is not made to wait for the drain."""
    process, address = program(*_settings(pki["ucn"]), "--set", "drain_seconds=600")
    client = kit.client(address, pki["tln"])
    client.open(kit.gram_request())
    process.send_signal(signal.SIGTERM)
    while _health(client) != health_pb2.HealthCheckResponse.NOT_SERVING:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(kit.wait_seconds) == 128 + signal.SIGTERM
    client.close()


_HOSTILE_PEER = """
import sys, torch, importlib.util
spec = importlib.util.spec_from_file_location("kit", sys.argv[1])
kit = importlib.util.module_from_spec(spec)
sys.modules["kit"] = kit
spec.loader.exec_module(kit)
from pathlib import Path
from splitwire.tls import TlsFiles
client = kit.RawClient(sys.argv[2], TlsFiles.in_folder(Path(sys.argv[3])))
stream = client.stream(client.open(kit.gram_request()).session_id)
print("ready", flush=True)
step = 0
while True:
    step += 1
    stream.send(*kit.frame_messages(1, step, torch.ones(64, 64, kit.WIDTH), chunk_bytes=1000))
"""


def _is_full(client: Any, kit: Any) -> bool:
    """Whether the node has no place for another session."""
    try:
        client.close_session(client.open(kit.gram_request()).session_id)
    except kit.refusal as refusal:
        return bool(refusal.error == "LimitError")
    return False


def test_a_peer_that_dies_mid_stream_is_cleaned_up_quietly(program: Any, pki: dict[str, TlsFiles], kit: Any) -> None:
    """SIGKILL while frames flow: its session is freed after the lease, nothing is logged but the usual lines."""
    process, address = program(*_settings(pki["ucn"]), "--set", "lease_seconds=1", "--set", "limits.max_sessions=1")
    here = Path(__file__).parent / "conftest.py"
    command = [sys.executable, "-c", _HOSTILE_PEER, str(here), address, str(pki["tln"].ca.parent)]
    peer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert peer.stdout.readline() == "ready\n"
    time.sleep(0.2)
    peer.kill()
    peer.wait()
    peer.stdout.close()
    client = kit.client(address, pki["tln"])
    deadline = time.monotonic() + kit.wait_seconds
    while _is_full(client, kit) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _is_full(client, kit)
    client.close()
    process.send_signal(signal.SIGTERM)
    assert process.wait(kit.wait_seconds) == 0
    entries = [json.loads(line) for line in process.stderr]
    assert {entry["level"] for entry in entries} == {"info"}
    codes = [entry["code"] for entry in entries if entry["event"] == "call" and entry["method"].endswith("Exchange")]
    assert codes == ["CANCELLED"]
    assert [entry["reason"] for entry in entries if entry["event"] == "session_closed"] == ["lease", "closed", "closed"]
