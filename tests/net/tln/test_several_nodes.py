"""`tln train` as a process against several untrusted nodes: to the end, and interrupted."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from splitwire.tls import TlsFiles
from tln.cli import app

WAIT_SECONDS = 500
NUM_NODES = 3

pytestmark = pytest.mark.timeout(700)


@pytest.fixture
def nodes(start_node: Callable[..., Any]) -> list[Any]:
    """Three untrusted nodes."""
    return [start_node() for _ in range(NUM_NODES)]


@pytest.fixture
def config(nodes: list[Any], pki: dict[str, TlsFiles], tmp_path: Path) -> Path:
    """A trusted node's settings for the nodes as replicas, and its text."""
    for name in ("private", "public"):
        (tmp_path / name).mkdir()
        for index in range(8):
            (tmp_path / name / f"{index}.txt").write_text(f"{name} text {index} about three nodes that agree. " * 3)
    first, *others = (node.settings.listen for node in nodes)
    tls = pki["tln"]
    file = tmp_path / "tln.toml"
    file.write_text(
        f"""
model = {{ source = "{nodes[0].settings.model.source}", first_layer = 2, last_layer = 4 }}
topology = {{ kind = "replicas", addresses = {json.dumps(others)} }}
stack.kind = "gram"
gradient.clip_multiple = 2.0
corpus = {{ path = "{tmp_path / "private"}", public_path = "{tmp_path / "public"}", block_tokens = 8 }}
train = {{ steps = 6, frames_per_step = 3, max_evaluation_blocks = 4 }}
[connection]
address = "{first}"
tls = {{ ca = "{tls.ca}", certificate = "{tls.certificate}", key = "{tls.key}" }}
[frame]
mechanisms = ["bottleneck", "clip_noise", "decoys", "permutation", "rotation"]
bottleneck.width = 8
decoys = {{ count = 6, pool_size = 60 }}
"""
    )
    return file


def test_three_replicas_train_and_an_interrupt_leaves_nothing_behind(
    nodes: list[Any], config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole run, in which nobody deviates; then Ctrl-C in the middle of a long one: 130, no results, no session."""
    with monkeypatch.context() as patch:
        patch.setattr("splitwire.logging.configure", lambda _program: None)
        for command in (["prepare"], ["train", "--out", str(tmp_path / "whole")]):
            CliRunner().invoke(app, [*command, "--config", str(config)], catch_exceptions=False)
    report = json.loads((tmp_path / "whole" / "report.json").read_text())
    assert report["deviating_answers"] == {}
    assert len(report["loss_by_step"]) == 6

    log = tmp_path / "train.log"
    returned = _interrupted(config, log, "--out", str(tmp_path / "cut"), "--set", "train.steps=100000")
    assert returned == 130, log.read_text()
    assert log.read_text().splitlines()[-1] == "tln: error: interrupted"
    assert "Traceback" not in log.read_text()
    assert not (tmp_path / "cut").exists()
    _wait_for(lambda: not any(len(node.server.table) for node in nodes))


def _interrupted(config: Path, log: Path, *options: str) -> int:
    """Exit code of `tln train` after Ctrl-C in its training steps."""
    command = [Path(sys.executable).parent / "tln", "train", "--config", config, *options]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # what starts where it is ignored ignores it
    try:
        with log.open("ab") as stream:
            process = subprocess.Popen(command, stdout=stream, stderr=stream)
    finally:
        signal.signal(signal.SIGINT, before)
    try:
        _wait_for(lambda: "training: 100000 begins" in log.read_text() or process.poll() is not None)
        process.send_signal(signal.SIGINT)
        return process.wait(WAIT_SECONDS)
    finally:
        process.kill()
        process.wait(WAIT_SECONDS)


def _wait_for(is_done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not is_done():
        assert time.monotonic() < deadline
        time.sleep(0.05)
