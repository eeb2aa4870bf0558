"""`auditor tap` as a process: signals complete the bundle, mistakes end in one line and the right exit code."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from splitwire.bundles import open_bundle, verify_bundle
from splitwire.tls import TlsFiles

from .conftest import ATTACH, Script, control

AUDITOR = Path(sys.executable).parent / "auditor"
WAIT_SECONDS = 60


@pytest.fixture
def start(pki: dict[str, TlsFiles], upstream: Any, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """start(*arguments) -> a running `auditor tap`."""
    processes: list[subprocess.Popen[str]] = []

    def run(*arguments: str) -> subprocess.Popen[str]:
        command = [AUDITOR, "tap", "--listen", "127.0.0.1:0", "--upstream", upstream.address]
        command += ["--tls", str(pki["tap"].key.parent), "--out", str(tmp_path / "bundle"), *arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        processes.append(process)
        return process

    yield run
    for process in processes:
        process.kill()
        process.communicate()


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("tap listens on ")
    return line.split()[-1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_completes_the_bundle(
    start: Callable[..., Any], connect: Any, stream: Callable[..., Any], tmp_path: Path, number: signal.Signals
) -> None:
    process = start()
    exchange = stream(connect(_address(process)))
    exchange.ask(ATTACH)
    exchange.half_close()
    list(exchange.call)
    process.send_signal(number)
    _, log = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 0
    assert verify_bundle(tmp_path / "bundle").problems == []
    assert [record.message for record in open_bundle(tmp_path / "bundle").messages()] == [ATTACH, ATTACH]
    assert '"event": "call"' in log


def test_a_second_signal_ends_running_calls_and_completes_the_bundle(
    start: Callable[..., Any], connect: Any, stream: Callable[..., Any], tmp_path: Path
) -> None:
    process = start("--set", "drain_seconds=50")
    exchange = stream(connect(_address(process)))
    exchange.ask(ATTACH)
    process.terminate()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)
    assert exchange.ask(control(Script.ECHO))
    process.terminate()
    process.communicate(timeout=WAIT_SECONDS)
    with pytest.raises(grpc.RpcError):
        exchange.receive()
    assert process.returncode == 0
    assert verify_bundle(tmp_path / "bundle").problems == []


def test_a_killed_tap_leaves_a_bundle_that_says_it_is_incomplete(
    start: Callable[..., Any], connect: Any, stream: Callable[..., Any], tmp_path: Path
) -> None:
    process = start()
    stream(connect(_address(process))).ask(ATTACH)
    process.kill()
    process.wait()
    bundle = open_bundle(tmp_path / "bundle")
    assert not bundle.is_complete
    assert bundle.settings["listen"] == "127.0.0.1:0"


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--upstream", "nowhere"], 2, "host:port"),
        (["--set", "queue=1"], 2, "unknown key queue"),
        (["--set", "max_queue_bytes=0"], 2, "max_queue_bytes"),
        (["--set", "drain"], 2, "key=value"),
        (["--insecure-loopback"], 2, "both set"),
        (["--tls", "/nowhere"], 2, "/nowhere"),
        (["--signing-key", "/nowhere"], 2, "/nowhere"),
    ],
)
def test_a_mistake_ends_in_one_line_and_leaves_no_folder(
    start: Callable[..., Any], tmp_path: Path, arguments: list[str], code: int, text: str
) -> None:
    process = start(*arguments)
    _, log = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == code
    assert text in log
    assert len(log.strip().splitlines()) == 1
    assert not (tmp_path / "bundle").exists()


def test_a_taken_port_and_a_used_folder_are_named(start: Callable[..., Any], tmp_path: Path) -> None:
    address = _address(start())
    process = start("--listen", address, "--out", str(tmp_path / "other"))
    _, log = process.communicate(timeout=WAIT_SECONDS)
    assert (process.returncode, address in log) == (2, True)
    assert not (tmp_path / "other").exists()
    process = start()
    _, log = process.communicate(timeout=WAIT_SECONDS)
    assert (process.returncode, "not empty" in log) == (4, True)


def test_the_effective_settings_can_be_shown(start: Callable[..., Any], tmp_path: Path) -> None:
    process = start("--print-settings", "--set", "when_full=wait")
    text, _ = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 0
    assert 'when_full = "wait"' in text
    assert "# settings hash" in text
    assert not (tmp_path / "bundle").exists()
