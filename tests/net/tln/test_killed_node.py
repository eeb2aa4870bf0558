"""kill -9 of the untrusted node in a generation, with another one started in its place, must change nothing."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from splitwire.backbone import ModelSettings, load_whole
from splitwire.errors import UnavailableError
from splitwire.tls import TlsFiles
from splitwire.v1 import channels_pb2
from tln.connect import connect
from tln.connection import ConnectionSettings
from tln.settings import TlnSettings

OPTIONS: dict[str, Any] = {"max_new_tokens": 12, "min_new_tokens": 12, "pad_token_id": 258}


class NodeProcess:
    """`ucn serve` as a process on one address; `start` again after `kill`."""

    def __init__(self, model: ModelSettings, tls: TlsFiles, cache: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        pairs = {
            "listen": self.address,
            "threads": 1,
            "stacks": '["transformer"]',
            "model.source": model.source,
            "model.first_layer": model.first_layer,
            "model.last_layer": model.last_layer,
            "tls.ca": tls.ca,
            "tls.certificate": tls.certificate,
            "tls.key": tls.key,
        }
        options = [part for key, value in pairs.items() for part in ("--set", f"{key}={value}")]
        self._command = [sys.executable, "-c", "from ucn.cli import main; main()", "serve", *options]
        self._environment = {**os.environ, "OMP_NUM_THREADS": "1", "SPLITWIRE_CACHE": str(cache)}
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stderr=subprocess.PIPE, text=True, env=self._environment)
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if json.loads(line)["event"] == "serving":
                return
        raise AssertionError("ucn serve ended before it served")

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stderr is not None
            self._process.stderr.close()
            self._process = None


@pytest.fixture
def node(tiny_model: Callable[[str], Path], pki: dict[str, TlsFiles], cache_folder: Path) -> Iterator[NodeProcess]:
    """A node over layers 2 and 3 of the tiny llama."""
    model = ModelSettings(source=str(tiny_model("llama")), first_layer=2, last_layer=4)
    process = NodeProcess(model, pki["ucn"], cache_folder)
    process.start()
    yield process
    process.kill()


def killing(split: Any, frame: int, then: Callable[[], None]) -> None:
    """Runs `then` before the FORWARD frame of this number."""
    seen = 0

    def guard(route: Any, _messages: Any) -> None:
        nonlocal seen
        seen += route.hop == channels_pb2.HOP_FORWARD
        if route.hop == channels_pb2.HOP_FORWARD and seen == frame:
            then()

    split.model.crossing.guards.append(guard)


@pytest.mark.timeout(300)  # starts three processes, one after the other
def test_the_answer_is_that_of_the_uninterrupted_model(
    node: NodeProcess, tiny_model: Callable[[str], Path], pki: dict[str, TlsFiles], batch: torch.Tensor
) -> None:
    """Greedy and sampled; and when no node comes back, the tries are bounded and the cause is told."""
    model = ModelSettings(source=str(tiny_model("llama")), first_layer=2, last_layer=4)
    connection = ConnectionSettings(address=node.address, tls=pki["tln"], retry_attempts=3)
    whole = load_whole(model)

    def restart() -> None:
        node.kill()
        node.start()

    with connect(TlnSettings(model=model, connection=connection)) as split:
        sessions = {split.model.crossing.session_hash}
        killing(split, 5, restart)
        killing(split, 12 + 1 + 7, restart)  # the frame that was lost and the replay are frames too
        for options in ({"do_sample": False}, {"do_sample": True, "temperature": 0.8}):
            torch.manual_seed(11)
            expected = whole.generate(batch, **OPTIONS, **options)
            torch.manual_seed(11)
            assert torch.equal(split.model.generate(batch, **OPTIONS, **options), expected)
            sessions.add(split.model.crossing.session_hash)
        assert len(sessions) == 3
        killing(split, 3, node.kill)
        with pytest.raises(UnavailableError, match=r"FORWARD of step \d+: no untrusted node answers.*4 tries in"):
            split.model.generate(batch, **OPTIONS)
