"""The commands of splitwire do what they say and end a mistake in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import splitwire
from splitwire.cli import app
from splitwire.errors import PkiError
from splitwire.tls import TlsFiles, read_files


def invoke(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_one_command_makes_all_for_a_loopback_demo(tmp_path: Path) -> None:
    output = invoke("pki", "init", tmp_path / "pki", "--loopback")
    for name in ("tln", "tap", "ucn"):
        assert str(tmp_path / "pki" / name) in output
        read_files(TlsFiles.in_folder(tmp_path / "pki" / name))


def test_a_node_asks_and_the_trusted_host_signs(tmp_path: Path) -> None:
    invoke("pki", "init", tmp_path / "pki")
    assert "gpu.example.org, localhost, 127.0.0.1" in invoke(
        "pki", "request", tmp_path / "node", "--name", "gpu.example.org", "--loopback"
    )
    arguments = ["pki", "sign", tmp_path / "pki", tmp_path / "node" / "request.pem", "--out", tmp_path / "signed"]
    with pytest.raises(PkiError, match=r"expected other\.example\.org"):
        invoke(*arguments, "--name", "other.example.org")
    assert "signed for gpu.example.org" in invoke(*arguments)
    signed = tmp_path / "signed"
    read_files(TlsFiles(signed / "ca.pem", signed / "cert.pem", tmp_path / "node" / "key.pem"))


def test_renewal_tells_when_the_new_certificate_ends(tmp_path: Path) -> None:
    invoke("pki", "init", tmp_path / "pki")
    assert "is valid until 2" in invoke("pki", "renew", tmp_path / "pki", "tap", "--days", "2")


def test_the_version_is_shown() -> None:
    assert invoke("--version") == f"splitwire {splitwire.__version__}\n"


def test_a_mistake_is_one_line_on_stderr_with_its_exit_code(tmp_path: Path) -> None:
    program = [sys.executable, "-c", "from splitwire.cli import main; main()", "pki", "renew", str(tmp_path), "tln"]
    result = subprocess.run(program, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("splitwire: error: ")
    assert line.endswith("does not exist. name a node of this folder, such as tln or tap")


def test_help_loads_no_torch() -> None:
    program = "import sys, splitwire.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
