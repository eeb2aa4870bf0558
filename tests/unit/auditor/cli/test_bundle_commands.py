"""keygen, verify and inspect, as a user runs them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from auditor.cli import app
from splitwire.bundles import BundleWriter, WireRecord
from splitwire.errors import SettingsError
from splitwire.frames import encode_frame
from splitwire.sealing import load_signing_key
from splitwire.v1 import channels_pb2, stack_pb2

SESSION = "0123456789abcdef"
HIDDEN_VALUE = 0.123456


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    assert invoke("keygen", tmp_path / "keys").exit_code == 0
    return tmp_path / "keys"


@pytest.fixture
def bundle(tmp_path: Path, keys: Path) -> Path:
    header = stack_pb2.FrameHeader(hop=channels_pb2.HOP_FORWARD, step=1, dtype=stack_pb2.WIRE_DTYPE_FP32)
    key = load_signing_key(keys / "tap-recorder.key")
    with BundleWriter(tmp_path / "b", recorder="tap", settings={"frame": {"rows": 4}}, signing_key=key) as writer:
        for message in encode_frame(header, torch.full((2, 3, 8), HIDDEN_VALUE)):
            writer.write(WireRecord(channels_pb2.HOP_FORWARD, "request", SESSION, message, 1, 2, "ExchangeRequest"))
    return tmp_path / "b"


def test_keygen_names_what_each_file_is_for(tmp_path: Path) -> None:
    output = invoke("keygen", tmp_path / "keys").output
    for name in ("audit.pub", "audit.key", "tln-recorder.key", "tap-recorder.key", "trust.json"):
        assert str(tmp_path / "keys" / name) in output
        assert (tmp_path / "keys" / name).exists()


def test_a_bundle_of_an_active_tap_says_so_wherever_it_is_shown(tmp_path: Path) -> None:
    perturb = {"mode": "sign", "amplitude": 0.5, "every": 2, "seed": 7, "hops": ["return"]}
    header = stack_pb2.FrameHeader(hop=channels_pb2.HOP_FORWARD, step=1, dtype=stack_pb2.WIRE_DTYPE_FP32)
    with BundleWriter(tmp_path / "b", recorder="active-tap", settings={"perturb": perturb}) as writer:
        for message in encode_frame(header, torch.zeros(1, 2, 4)):
            writer.write(WireRecord(channels_pb2.HOP_FORWARD, "request", SESSION, message, 1, 2, "ExchangeRequest"))
    for command in ("inspect", "verify"):
        output = invoke(command, tmp_path / "b").output
        assert "ACTIVE tap" in output
        assert "mode sign on return, amplitude 0.5, every 2, seed 7" in output


def test_the_tap_is_passive_unless_it_is_told_how_to_be_active() -> None:
    where = ("tap", "--listen", "127.0.0.1:0", "--upstream", "127.0.0.1:1", "--out", "x", "--print-settings")
    assert 'perturb.mode = "none"' in invoke(*where).output
    active = invoke(*where, "--perturb", "direction", "--perturb-amplitude", "0.5", "--perturb-seed", "3").output
    for line in ('perturb.mode = "direction"', "perturb.amplitude = 0.5", "perturb.seed = 3", "perturb.every = 2"):
        assert line in active
    with pytest.raises(SettingsError, match=r"perturb\.amplitude"):
        invoke(*where, "--perturb", "sign", "--perturb-amplitude", "-1")


def test_verify_names_the_pinned_signer(bundle: Path, keys: Path) -> None:
    result = invoke("verify", bundle, "--trust", keys / "trust.json")
    assert result.exit_code == 0
    assert "complete: yes" in result.output
    assert "signed: by tap-recorder" in result.output
    assert "forward: 1 messages" in result.output


def test_verify_says_what_it_did_not_check(bundle: Path) -> None:
    result = invoke("verify", bundle)
    assert result.exit_code == 0
    assert "signed: by a key that is not pinned" in result.output
    assert "note: the signer is not checked" in result.output


def test_verify_ends_with_the_exit_code_of_a_bundle_when_something_is_wrong(bundle: Path, keys: Path) -> None:
    (bundle / "manifest.json").unlink()
    result = invoke("verify", bundle, "--trust", keys / "trust.json")
    assert result.exit_code == 4
    assert "complete: no" in result.output
    assert "dropped: unknown" in result.output
    assert "problem: manifest.json is missing" in result.output


def test_inspect_shows_shapes_and_settings_and_no_value(bundle: Path) -> None:
    output = invoke("inspect", bundle, "--frames", "--settings").output
    assert "complete, recorded by tap" in output
    (row,) = [line.split() for line in output.splitlines() if line.startswith(SESSION) and " forward " in line]
    assert row[:4] == [SESSION, "forward", "1", "1"]
    assert "forward: 1 frames of 2x3x8 fp32" in output
    assert "step 1 forward fp32 2x3x8 192 bytes" in output
    assert "setting frame.rows = 4" in output
    assert "0.12" not in output


def test_inspect_reads_a_bundle_that_was_cut_off(bundle: Path) -> None:
    (bundle / "manifest.json").unlink()
    result = invoke("inspect", bundle)
    assert result.exit_code == 0
    assert "incomplete" in result.output


def test_no_bundle_is_one_line_with_its_exit_code(tmp_path: Path) -> None:
    program = [sys.executable, "-c", "from auditor.cli import main; main()", "inspect", str(tmp_path)]
    result = subprocess.run(program, capture_output=True, text=True, check=False)
    assert result.returncode == 4
    (line,) = result.stderr.splitlines()
    assert line.startswith("auditor: error: ")
    assert "give a folder that a recorder wrote" in line


def test_help_loads_no_torch() -> None:
    program = "import sys, auditor.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
