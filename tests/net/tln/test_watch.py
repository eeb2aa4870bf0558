"""`auditor watch` beside a real run through the tap: it finds raw gradients at once, acts once, and can end the run."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from auditor.tap import Tap, TapSettings
from auditor.watch import Watcher, WatchSettings
from splitwire.bundles import open_bundle
from splitwire.sealing import write_audit_keys
from splitwire.tls import TlsFiles
from splitwire.v1 import channels_pb2
from tln.cli import app

WAIT_SECONDS = 100
PROGRAMS = Path(sys.executable).parent
UNSAFE = ("--set", "gradient.policy=open", "--set", "gradient.unsafe=true")
CONFIG = """
model = {{ source = "{source}", first_layer = 2, last_layer = 4 }}
stack = {{ kind = "gram" }}
train = {{ steps = 3, frames_per_step = 3, max_evaluation_blocks = 4 }}
record = {{ folder = "{truth}", wire = false, audit_key = "{key}" }}
[connection]
address = "{address}"
server_name = "tap.splitwire"
tls = {{ ca = "{tls.ca}", certificate = "{tls.certificate}", key = "{tls.key}" }}
[frame]
mechanisms = ["bottleneck", "clip_noise", "decoys", "permutation", "rotation"]
bottleneck = {{ width = 8 }}
decoys = {{ count = 6, pool_size = 60 }}
[corpus]
path = "{texts}"
public_path = "{public}"
block_tokens = 8
"""


@pytest.fixture(autouse=True)
def no_logging(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command sets up the log of its process; here the process is the test's."""
    monkeypatch.setattr("splitwire.logging.configure", lambda _program: None)


@pytest.fixture
def tap(
    loop: asyncio.AbstractEventLoop, pki: dict[str, TlsFiles], start_node: Callable[..., Any], tmp_path: Path
) -> Iterator[Tap]:
    """A tap in front of a node."""
    node = start_node()
    settings = TapSettings(
        listen="127.0.0.1:0", upstream=node.settings.listen, out=tmp_path / "bundle", tls=pki["tap"], drain_seconds=0.1
    )
    running = asyncio.run_coroutine_threadsafe(Tap.start(settings), loop).result(WAIT_SECONDS)
    (tmp_path / "source").write_text(node.settings.model.source)
    yield running
    if not running.stopping.is_set():
        _complete(loop, running)


def _complete(loop: asyncio.AbstractEventLoop, tap: Tap) -> None:
    asyncio.run_coroutine_threadsafe(tap.stop(), loop).result(WAIT_SECONDS)


@pytest.fixture
def config(tap: Tap, pki: dict[str, TlsFiles], tmp_path: Path) -> Path:
    """Settings of a run through the tap that records its truth."""
    for name in ("private", "public"):
        (tmp_path / name).mkdir()
        for index in range(6):
            (tmp_path / name / f"{index}.txt").write_text(f"{name} text {index} for a test of what is watched. " * 3)
    write_audit_keys(tmp_path / "keys")
    file = tmp_path / "tln.toml"
    file.write_text(
        CONFIG.format(
            source=(tmp_path / "source").read_text(),
            truth=tmp_path / "truth",
            key=tmp_path / "keys" / "audit.pub",
            address=tap.address,
            tls=pki["tln"],
            texts=tmp_path / "private",
            public=tmp_path / "public",
        )
    )
    return file


@pytest.fixture
def watch() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """watch(*arguments) -> a running `auditor watch`."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: object) -> subprocess.Popen[str]:
        command = [str(PROGRAMS / "auditor"), "watch", *map(str, arguments), "--set", "metrics.listen=''"]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_raw_gradients_are_found_at_the_first_backward_frame_and_acted_on_once(
    tap: Tap, config: Path, watch: Callable[..., Any], loop: asyncio.AbstractEventLoop, tmp_path: Path
) -> None:
    """The watch runs from before the recording exists to its end; its truth grows beside it."""
    program = 'import os; print(os.environ["SPLITWIRE_LEAK_DETECTOR"], file=open("%s", "a"))'
    told, truth = tmp_path / "told", tmp_path / "truth" / "truth.sealed"
    key = tmp_path / "keys" / "audit.key"
    on_leak = f"{sys.executable} -c '{program % told}'"
    watching = watch(tmp_path / "bundle", "--truth", truth, "--key", key, "--on-leak", on_leak)
    for command in ("prepare", "train"):
        options = ("--out", str(tmp_path / "run"), *UNSAFE) if command == "train" else ()
        done = CliRunner().invoke(app, [command, "--config", str(config), *options], catch_exceptions=False)
        assert done.exit_code == 0, done.output
    _complete(loop, tap)
    out, errors = watching.communicate(timeout=WAIT_SECONDS)
    assert watching.returncode == 1, errors
    assert "LEAK support: " in errors
    assert "whose zero gradients are exactly the decoys" in errors
    assert told.read_text().splitlines().count("support") == 1
    assert "bundle closed" in out
    assert "SKIPPED" not in out
    assert "3 backward" in out
    _found_at_the_first_backward_frame(WatchSettings(bundle=tmp_path / "bundle", truth=truth, key=key))


def _found_at_the_first_backward_frame(settings: WatchSettings) -> None:
    watcher = Watcher(settings)
    for record in open_bundle(settings.bundle).messages():
        assert not watcher.found_leak
        watcher._take(record)
        if record.hop == channels_pb2.HOP_BACKWARD:
            break
    assert watcher.found_leak
    assert watcher.state().num_frames["BACKWARD"] == 1


def test_a_leak_ends_the_run_that_leaks(tap: Tap, config: Path, watch: Callable[..., Any], tmp_path: Path) -> None:
    """Without the truth: the trusted node is sent SIGTERM and ends as it does for a user."""
    CliRunner().invoke(app, ["prepare", "--config", str(config)], catch_exceptions=False)
    train = [str(PROGRAMS / "tln"), "train", "--config", str(config), "--out", str(tmp_path / "run"), *UNSAFE]
    options = ("--set", "train.steps=100000")
    with subprocess.Popen([*train, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        watching = watch(tmp_path / "bundle", "--stop-on-leak", running.pid, "--set", "actions.stop_again_seconds=80")
        try:
            _, errors = running.communicate(timeout=WAIT_SECONDS)
        finally:
            running.kill()
        assert running.returncode == 128 + signal.SIGTERM, errors
    watching.terminate()
    _, errors = watching.communicate(timeout=WAIT_SECONDS)
    assert watching.returncode == 1
    assert "LEAK support" in errors
