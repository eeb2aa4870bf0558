"""Two hosts as two network namespaces with a link between them, which is cut and restored while they train.

The untrusted node is in one, tap and trusted node in the other; real processes, mutual TLS, the tiny model. It needs
root and iproute2, since only root may make namespaces.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from splitwire.pki import init_pki, sign_request, write_request
from splitwire.sealing import write_audit_keys
from splitwire.settings import build
from tln.settings import TlnSettings
from tln.training.checkpoints import JOURNAL_FILE
from tln.training.prepare import dependencies_of, load_texts, prepare
from tln.training.progress import NoProgress
from tln.training.results_folder import REPORT_FILE

BIN = Path(sys.executable).parent
WAIT_SECONDS = 100
CUT_SECONDS = 3.0
STEPS = 60
TRUSTED, UNTRUSTED = "10.213.77.1", "10.213.77.2"


@dataclass(frozen=True)
class Hosts:
    """Names of the two namespaces; each has one end of the link, called `wire`."""

    trusted: str
    untrusted: str

    def link(self, state: str) -> None:
        """Takes the link up or down, at the trusted end."""
        _ip("-n", self.trusted, "link", "set", "wire", state)


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the program ip (Debian package iproute2)")
    names = Hosts(f"splitwire-a-{os.getpid()}", f"splitwire-b-{os.getpid()}")
    with ExitStack() as undo:
        for name in (names.trusted, names.untrusted):
            if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode != 0:
                pytest.skip("this system makes no network namespaces")
            undo.callback(_ip, "netns", "delete", name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip(
            "-n", names.trusted, "link", "add", "wire", "type", "veth", "peer", "name", "wire", "netns", names.untrusted
        )
        for name, address in ((names.trusted, TRUSTED), (names.untrusted, UNTRUSTED)):
            _ip("-n", name, "address", "add", f"{address}/30", "dev", "wire")
            _ip("-n", name, "link", "set", "wire", "up")
        yield names


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_a_link_that_is_cut_costs_no_step(
    hosts: Hosts, tmp_path: Path, tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing crosses while it is cut; afterwards the run goes on to its end, and the tap's recording is whole."""
    monkeypatch.setenv("SPLITWIRE_CACHE", str(tmp_path / "cache"))
    keys = _make_keys(tmp_path)
    config, out = _configure(tmp_path, tiny_model("llama"), keys), tmp_path / "out"
    tap = ["auditor", "tap", "--listen", "127.0.0.1:7432", "--upstream", f"{UNTRUSTED}:7431", "--tls", keys / "tap"]
    tap += ["--out", tmp_path / "bundle", "--signing-key", tmp_path / "audit" / "tap-recorder.key"]
    with _running(hosts.untrusted, tmp_path, "ucn", _ucn(keys)), _running(hosts.trusted, tmp_path, "tap", tap):
        run = ["tln", "train", "--config", config, "--out", out]
        with _running(hosts.trusted, tmp_path, "tln", run, ends=True) as trusted:
            _until(trusted, lambda: _num_sent(out) > 0, tmp_path)
            hosts.link("down")
            time.sleep(CUT_SECONDS / 3)
            before = _num_sent(out)
            time.sleep(CUT_SECONDS)
            assert trusted.poll() is None, _logs(tmp_path)
            assert _num_sent(out) == before
            hosts.link("up")
            assert trusted.wait(WAIT_SECONDS) == 0, _logs(tmp_path)
    assert len(json.loads((out / REPORT_FILE).read_text())["loss_by_step"]) == STEPS
    verify = [BIN / "auditor", "verify", tmp_path / "bundle", "--trust", tmp_path / "audit" / "trust.json"]
    done = subprocess.run(verify, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _make_keys(folder: Path) -> Path:
    """The way of two hosts: the untrusted node makes its own key, and only its request travels."""
    init_pki(folder / "pki")
    request = write_request(folder / "pki" / "ucn", [UNTRUSTED])
    sign_request(folder / "pki", request, folder / "signed", expected_names=[UNTRUSTED])
    for name in ("ca.pem", "cert.pem"):
        shutil.copy(folder / "signed" / name, folder / "pki" / "ucn" / name)
    write_audit_keys(folder / "audit")
    return folder / "pki"


def _ucn(keys: Path) -> list[str | Path]:
    own = keys / "ucn"
    pairs = [f"listen={UNTRUSTED}:7431", 'stacks=["gram"]', "threads=1", f"tls.ca={own / 'ca.pem'}"]
    pairs += [
        f"tls.certificate={own / 'cert.pem'}",
        f"tls.key={own / 'key.pem'}",
        f"checkpoint_dir={keys.parent / 'remote'}",
    ]
    return ["ucn", "serve", *[word for pair in pairs for word in ("--set", pair)]]


def _configure(folder: Path, model: Path, keys: Path) -> Path:
    """Texts, what `tln prepare` computes of them, and the settings of the run."""
    for name in ("private", "public"):
        (folder / name).mkdir()
        for index in range(6):
            (folder / name / f"{index}.txt").write_text(f"{name} text number {index} of two hosts and one link. " * 2)
    own = keys / "tln"
    tree: dict[str, dict[str, Any]] = {
        "model": {"source": str(model), "first_layer": 2, "last_layer": 4},
        "connection": {
            "address": "127.0.0.1:7432",
            "server_name": "tap.splitwire",
            "tls": {"ca": str(own / "ca.pem"), "certificate": str(own / "cert.pem"), "key": str(own / "key.pem")},
            "connect_timeout_seconds": float(WAIT_SECONDS),
            "retry_seconds": float(WAIT_SECONDS),
            "retry_attempts": 100,
        },
        "stack": {"kind": "gram"},
        "frame": {"mechanisms": ["bottleneck", "clip_noise", "permutation", "rotation"], "bottleneck": {"width": 8}},
        "gradient": {"clip_multiple": 2.0},
        "corpus": {"path": str(folder / "private"), "public_path": str(folder / "public"), "block_tokens": 8},
        "train": {"steps": STEPS, "frames_per_step": 3, "checkpoint_every": STEPS, "max_evaluation_blocks": 2},
    }
    lines = [f"{section}.{key} = {_toml(value)}" for section, values in tree.items() for key, value in values.items()]
    (folder / "tln.toml").write_text("\n".join(lines))
    settings = build(TlnSettings, tree, str(folder))
    texts = load_texts(settings.model, settings.corpus)
    prepare(settings.model, settings.prepare, texts, NoProgress(), dependencies_of(settings.model, texts))
    return folder / "tln.toml"


def _num_sent(out: Path) -> int:
    """Lines of the journal of what was sent."""
    journal = out / JOURNAL_FILE
    return journal.read_text().count("\n") if journal.exists() else 0


@contextmanager
def _running(
    host: str, folder: Path, name: str, command: list[str | Path], *, ends: bool = False
) -> Iterator[subprocess.Popen[bytes]]:
    """A program on a host, which is asked to end when the block does, unless it `ends` by itself."""
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            ["ip", "netns", "exec", host, BIN / command[0], *command[1:]],
            stdout=log,
            stderr=log,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
    try:
        yield process
        if not ends:
            process.send_signal(signal.SIGTERM)
            assert process.wait(WAIT_SECONDS) == 0, _logs(folder)
    finally:
        process.kill()
        process.wait(WAIT_SECONDS)


def _until(process: subprocess.Popen[bytes], happened: Callable[[], bool], folder: Path) -> None:
    limit = time.monotonic() + WAIT_SECONDS
    while not happened():
        assert process.poll() is None, _logs(folder)
        assert time.monotonic() < limit, _logs(folder)
        time.sleep(0.002)


def _logs(folder: Path) -> str:
    return "\n".join(f"{path.name}:\n{path.read_text()}" for path in sorted(folder.glob("*.log")))


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {_toml(item)}" for name, item in value.items()) + " }"
    return json.dumps(value)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
