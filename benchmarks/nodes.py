"""Real programs for a benchmark: an untrusted node and, where asked, a tap before it, with mutual TLS on loopback."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from deploy.demo.processes import Processes, free_port
from splitwire.backbone import ModelSettings
from splitwire.pki import init_pki
from splitwire.tls import TlsFiles
from tln.connection import ConnectionSettings
from tln.settings import TlnSettings


@dataclass(frozen=True)
class Nodes:
    """Where the processes listen. `tapped` settings lead through the tap, `direct` ones do not."""

    model: ModelSettings
    tls: TlsFiles
    ucn_port: int
    tap_port: int
    ucn_process: int = 0

    @property
    def direct(self) -> TlnSettings:
        """Settings of a trusted node without defence, connected to the untrusted node."""
        return self._settings(self.ucn_port)

    @property
    def tapped(self) -> TlnSettings:
        """The same, through the tap."""
        return self._settings(self.tap_port)

    def _settings(self, port: int) -> TlnSettings:
        connection = ConnectionSettings(address=f"127.0.0.1:{port}", tls=self.tls, connect_timeout_seconds=60)
        return replace(TlnSettings(), model=self.model, connection=connection)


@contextlib.contextmanager
def running_gram(folder: Path, model: ModelSettings) -> Iterator[Nodes]:
    """Starts an untrusted node for the gram stack alone, which loads no layers of the model; stops it afterwards."""
    files = init_pki(folder / "pki", loopback=True)
    nodes = Nodes(model, files["tln"], free_port(), tap_port=0)
    only_gram = ["--set", 'stacks=["gram"]', "--set", f"gram_device={model.device}"]
    with Processes(folder) as processes:
        process = processes.start("ucn-gram", [*_ucn(nodes, files["ucn"]), *only_gram], nodes.ucn_port)
        yield replace(nodes, ucn_process=process)


@contextlib.contextmanager
def running(folder: Path, model: ModelSettings) -> Iterator[Nodes]:
    """Starts both programs and stops them afterwards."""
    files = init_pki(folder / "pki", loopback=True)
    nodes = Nodes(model, files["tln"], free_port(), free_port())
    with Processes(folder) as processes:
        processes.start("ucn", _ucn(nodes, files["ucn"]), nodes.ucn_port)
        processes.start("tap", _tap(nodes, folder), nodes.tap_port)
        yield nodes


def _ucn(nodes: Nodes, tls: TlsFiles) -> list[str]:
    model = nodes.model
    pairs = {
        "listen": f"127.0.0.1:{nodes.ucn_port}",
        "tls.ca": tls.ca,
        "tls.certificate": tls.certificate,
        "tls.key": tls.key,
        "model.source": model.source,
        "model.first_layer": model.first_layer,
        "model.last_layer": model.last_layer,
        "model.dtype": model.dtype,
        "model.device": model.device,
    }
    return ["ucn", "serve", *(word for key, value in pairs.items() for word in ("--set", f"{key}={value}"))]


def _tap(nodes: Nodes, folder: Path) -> list[str]:
    addresses = ["--listen", f"127.0.0.1:{nodes.tap_port}", "--upstream", f"127.0.0.1:{nodes.ucn_port}"]
    return ["auditor", "tap", *addresses, "--tls", str(folder / "pki" / "tap"), "--out", str(folder / "tapped")]
