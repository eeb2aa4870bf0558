"""What an operator of the containers gets wrong ends a program with one line that says what to do, and code above 0."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from splitwire.pki import init_pki
from splitwire.sealing import write_audit_keys
from splitwire.tls import TlsFiles

BIN = Path(sys.executable).parent
ROOT = Path(__file__).parents[2]
START = ROOT / "deploy" / "compose" / "start"
UCN = [
    "serve",
    "--config",
    str(ROOT / "deploy/compose/ucn.toml"),
    "--set",
    'stacks=["gram"]',
    "--set",
    "checkpoint_dir=",
]
NO_ANSWER_SECONDS = 100


def _line(*command: str | Path, **environment: str) -> tuple[int, str]:
    """Exit code and the one line that a program said beside its log; it must not have shown a traceback."""
    program: str | Path = BIN / command[0] if "/" not in str(command[0]) else command[0]
    done = _run(program, *command[1:], **environment)
    lines = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert len(lines) == 1, done.stderr
    return done.returncode, lines[0]


def _run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command,
        env=_environment(environment),
        capture_output=True,
        text=True,
        check=False,
        timeout=NO_ANSWER_SECONDS,
    )
    assert "Traceback" not in done.stderr
    return done


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    return {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1", **more}


def _tls(folder: Path) -> list[str]:
    files = TlsFiles.in_folder(folder)
    pairs = (f"tls.ca={files.ca}", f"tls.certificate={files.certificate}", f"tls.key={files.key}")
    return [word for pair in pairs for word in ("--set", pair)]


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mistakes")
    init_pki(folder / "pki", loopback=True)
    write_audit_keys(folder / "audit")
    return folder / "pki"


@pytest.fixture
def another_version(pki: Path, tmp_path: Path) -> Iterator[str]:
    """Address of an untrusted node that speaks version 2 of the protocol."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    start = "import ucn.handshake as h; h.PROTOCOL_VERSION = 2; from ucn.cli import main; main()"
    command: list[str | Path] = [sys.executable, "-c", start, *UCN, *_tls(pki / "ucn"), "--set", f"listen={address}"]
    with (tmp_path / "ucn.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--set", "metrics.listen=", "--set", "health_listen="], env=_environment({}), stderr=log
        )
    try:
        yield address
    finally:
        process.terminate()
        process.wait(NO_ANSWER_SECONDS)


@pytest.fixture
def small_volume(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB and 16 names."""
    folder = tmp_path / "volume"
    folder.mkdir()
    options: list[str | Path] = ["mount", "-t", "tmpfs", "-o", "size=64k,nr_inodes=16,mode=1777", "tmpfs", folder]
    if (
        os.geteuid() != 0
        or shutil.which("mount") is None
        or subprocess.run(options, check=False, capture_output=True).returncode
    ):
        pytest.skip("mounting a small file system needs root")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_certificate_that_has_not_come_back() -> None:
    code, line = _line("ucn", *UCN)
    assert code == 2
    assert "authority certificate /keys/ca.pem cannot be read: No such file or directory" in line
    assert "splitwire pki init" in line


def test_an_address_that_env_does_not_name(pki: Path, tmp_path: Path) -> None:
    code, line = _line("auditor", "tap", "--out", tmp_path / "b", "--tls", pki / "tap", "--upstream", "")
    assert code == 2
    assert "upstream is not set. give host:port with --upstream" in line


def test_a_port_in_use(pki: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, line = _line("ucn", *UCN, *_tls(pki / "ucn"), "--set", f"listen={address}", "--set", "metrics.listen=")
    assert code == 2
    assert f"listen {address} cannot be bound. choose a free port" in line


def test_a_gpu_that_is_not_there(pki: Path) -> None:
    """The variables are those of deploy/gpu.yml."""
    code, line = _line("ucn", *UCN, *_tls(pki / "ucn"), SPLITWIRE_UCN__GRAM_DEVICE="cuda", CUDA_VISIBLE_DEVICES="")
    assert code == 2
    assert "device 'cuda' is not available here. use cpu, or install a CUDA build of torch" in line


def test_an_untrusted_node_of_another_version(
    pki: Path, tiny_model: Callable[[str], Path], another_version: str
) -> None:
    """What a user of the trusted host reads names both versions and the remedy."""
    model = [f"model.source={tiny_model('llama')}", "model.first_layer=2", "model.last_layer=4"]
    files = TlsFiles.in_folder(pki / "tln")
    own = [f"connection.tls.ca={files.ca}", f"connection.tls.certificate={files.certificate}"]
    own += [f"connection.tls.key={files.key}", f"connection.address={another_version}"]
    words = [word for pair in (*model, *own) for word in ("--set", pair)]
    done = _run(BIN / "tln", "generate", "--prompt", "a", "--max-new-tokens", "2", *words)
    assert done.returncode == 6, done.stderr
    assert done.stdout == ""
    (line,) = [line for line in done.stderr.splitlines() if "error" in line]
    assert "protocol_version is 1 on the trusted node and 2 on the untrusted node" in line
    assert "run the same release of splitwire on both sides" in line


def test_a_volume_that_is_full_before_the_tap_begins(pki: Path, small_volume: Path) -> None:
    """The start script says so, since it is the first to write; the program would, too."""
    _fill(small_volume)
    signing = pki.parent / "audit" / "tap-recorder.key"
    options = ["--listen=127.0.0.1:0", "--upstream=127.0.0.1:1", f"--signing-key={signing}"]
    code, line = _line(START / "tap", *options, BUNDLES=str(small_volume), KEYS=str(pki / "tap"))
    assert code == 5
    assert str(small_volume) in line
    assert "pace" in line


def _fill(folder: Path) -> None:
    """Until neither a byte nor a name fits."""
    with pytest.raises(OSError, match="No space left"):
        (folder / "filler").write_bytes(bytes(1 << 20))
    while True:
        try:
            (folder / f"name-{len(list(folder.iterdir()))}").touch()
        except OSError:
            return
