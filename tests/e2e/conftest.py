"""A serving untrusted node of the real small model, as a process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from splitwire.backbone import ModelSettings
from splitwire.pki import init_pki
from splitwire.tls import TlsFiles

BIN = Path(sys.executable).parent
WAIT_SECONDS = 120


@dataclass(frozen=True)
class Node:
    """Where `ucn serve` listens, the trusted node's certificate, the model's cut, and the node's log."""

    address: str
    tln: TlsFiles
    model: ModelSettings
    log: Path

    def options(self) -> list[str]:
        """Command-line options of a trusted node for this node."""
        return [*model_options(self.model), *connection_options(self.address, self.tln)]


def set_options(**settings: object) -> list[str]:
    """--set options; a double underscore is a dot."""
    return [part for key, value in settings.items() for part in ("--set", f"{key.replace('__', '.')}={value}")]


def model_options(model: ModelSettings) -> list[str]:
    """Options for the model and its cut."""
    return set_options(
        model__source=model.source, model__first_layer=model.first_layer, model__last_layer=model.last_layer
    )


def connection_options(address: str, files: TlsFiles) -> list[str]:
    """Options for the connection of a trusted node."""
    return [
        *set_options(connection__address=address, connection__connect_timeout_seconds=WAIT_SECONDS),
        *tls_options("connection__tls__", files),
    ]


def tls_options(prefix: str, files: TlsFiles) -> list[str]:
    """Options for a certificate."""
    names = {"ca": files.ca, "certificate": files.certificate, "key": files.key}
    return set_options(**{f"{prefix}{name}": path for name, path in names.items()})


@pytest.fixture
def node(smollm2: Path, tmp_path: Path) -> Iterator[Node]:
    """Layers 5 to 25 in a process of their own, which must stop with code 0."""
    files = init_pki(tmp_path / "pki", loopback=True)
    model = ModelSettings(source=str(smollm2), first_layer=5, last_layer=25)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    log = tmp_path / "ucn.log"
    options = [
        *set_options(listen=address, drain_seconds=1),
        *model_options(model),
        *tls_options("tls__", files["ucn"]),
    ]
    with log.open("w") as stream:
        process = subprocess.Popen(
            [BIN / "ucn", "serve", *options],
            stdout=subprocess.DEVNULL,
            stderr=stream,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        try:
            yield Node(address, files["tln"], model, log)
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(WAIT_SECONDS) == 0, log.read_text()
