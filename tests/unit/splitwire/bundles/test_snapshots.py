"""Snapshot bundles: written, verified, inspected, and every change found."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from auditor.cli import app
from splitwire.bundles import SnapshotWriter, is_snapshot_bundle, open_snapshots, verify_bundle
from splitwire.errors import BundleError, RecordingError
from splitwire.sealing import load_signing_key, write_audit_keys

SESSION = "0123456789abcdef"


def writer_of(folder: Path, keys: Path | None = None) -> SnapshotWriter:
    return SnapshotWriter(
        folder,
        session_hash=SESSION,
        every_steps=2,
        stack={"stack": "gram", "width": 8},
        optimizer={"beta1": 0.9},
        settings={"model": {"source": "tiny"}},
        signing_key=None if keys is None else load_signing_key(keys / "tap-recorder.key"),
    )


def written(folder: Path, keys: Path | None = None, *, num_dropped: int = 0) -> Path:
    writer = writer_of(folder, keys)
    for step in (0, 2, 4):
        tensors = {"parameter.gain": np.full((), float(step), np.float32), "parameter.w": np.ones((2, 3), np.float32)}
        writer.write(tensors, optimizer_step=step, last_step=3 * step)
    writer.close(num_dropped)
    return folder


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    write_audit_keys(tmp_path / "keys")
    return tmp_path / "keys"


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """Order, wire steps, facts and values."""
    bundle = open_snapshots(written(tmp_path / "s"))
    assert is_snapshot_bundle(tmp_path / "s")
    assert (bundle.session_hash, bundle.is_complete) == (SESSION, True)
    assert [(entry.optimizer_step, entry.last_step) for entry in bundle.entries] == [(0, 0), (2, 6), (4, 12)]
    assert bundle.head is not None
    assert bundle.head.stack == {"stack": "gram", "width": 8}
    tensors = bundle.tensors(bundle.entries[1])
    assert tensors["parameter.gain"].shape == ()
    assert tensors["parameter.gain"] == 2.0
    assert tensors.shapes == {"parameter.gain": (), "parameter.w": (2, 3)}
    with pytest.raises(KeyError):
        tensors["parameter.none"]
    bundle.entries[1].path.unlink()
    with pytest.raises(BundleError, match="is not a snapshot"):
        bundle.tensors(bundle.entries[1])


def test_a_signed_bundle_names_its_signer(tmp_path: Path, keys: Path) -> None:
    """And an unsigned one does not pass where signers are pinned."""
    report = verify_bundle(written(tmp_path / "s", keys), keys / "trust.json")
    assert (report.problems, report.signer) == ([], "tap-recorder")
    (problem,) = verify_bundle(written(tmp_path / "u"), keys / "trust.json").problems
    assert "snapshots.signing_key" in problem


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (lambda s: (s / "step-00000002.safetensors").write_bytes(b"x" * 300), "not a snapshot"),
        (lambda s: (s / "step-00000002.safetensors").unlink(), "step-00000002.safetensors is missing"),
        (lambda s: (s / "more.bin").write_bytes(b"1"), "more.bin is not in the manifest"),
        (lambda s: (s / "manifest.json").unlink(), "manifest.json is missing"),
        (lambda s: _flip_last_byte(s / "step-00000004.safetensors"), "was changed since"),
        (lambda s: _rewrite(s / "manifest.json", num_dropped=3), "dropped 3 snapshots"),
        (lambda s: _rewrite(s / "manifest.json", session_hash="f" * 16), "snapshots of 2 sessions"),
        (lambda s: _rewrite(s / "manifest.json", format_version=9), "is version 9"),
    ],
)
def test_a_change_is_found(tmp_path: Path, change: object, finding: str) -> None:
    """Whatever it is that was changed."""
    folder = written(tmp_path / "s")
    change(folder)  # type: ignore[operator]
    assert finding in " ".join(verify_bundle(folder).problems)


def test_a_changed_manifest_breaks_its_signature(tmp_path: Path, keys: Path) -> None:
    """Also where its content still makes sense."""
    folder = written(tmp_path / "s", keys)
    _rewrite(folder / "manifest.json", every_steps=3)
    assert "does not fit" in " ".join(verify_bundle(folder, keys / "trust.json").problems)


def test_a_manifest_that_is_nested_without_end_is_a_problem_not_a_crash(tmp_path: Path) -> None:
    """The untrusted node writes it."""
    folder = written(tmp_path / "s")
    (folder / "manifest.json").write_text("[" * 100_000)
    assert "is not the manifest of snapshots" in " ".join(verify_bundle(folder).problems)


@pytest.mark.parametrize("step", [1 << 63, -1])
def test_a_step_that_no_session_has_is_a_problem_not_a_crash(tmp_path: Path, step: int) -> None:
    """The untrusted node says it."""
    writer = writer_of(tmp_path / "s")
    writer.write({"parameter.weight": np.zeros(2, np.float32)}, optimizer_step=1, last_step=step)
    writer.close()
    assert "is not a snapshot" in " ".join(verify_bundle(writer.folder).problems)


def test_a_folder_is_used_once_and_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing half-written is left."""
    folder = written(tmp_path / "s")
    with pytest.raises(BundleError, match="not empty"):
        writer_of(folder)
    writer = writer_of(tmp_path / "t")

    def fail(*_arguments: object, **_options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("splitwire.private_files.os.fsync", fail)
    with pytest.raises(RecordingError, match="No space left"):
        writer.write({"parameter.w": np.ones(2, np.float32)}, optimizer_step=0, last_step=0)
    assert list((tmp_path / "t").iterdir()) == []


def test_the_auditor_verifies_and_inspects(tmp_path: Path, keys: Path) -> None:
    """As a user runs it; no value of a weight is shown."""
    folder = written(tmp_path / "s", keys)
    verified = CliRunner().invoke(app, ["verify", str(folder), "--trust", str(keys / "trust.json")])
    assert verified.exit_code == 0
    assert f"3 snapshots of session {SESSION}" in verified.output
    shown = CliRunner().invoke(app, ["inspect", str(folder), "--settings"]).output
    assert "optimizer step 4 at wire step 12" in shown
    assert 'stack.stack = "gram"' in shown
    assert 'model.source = "tiny"' in shown
    _flip_last_byte(folder / "step-00000004.safetensors")
    assert CliRunner().invoke(app, ["verify", str(folder)]).exit_code == 4


def _flip_last_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


def _rewrite(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
