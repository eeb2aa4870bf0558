"""Snapshots of real sessions: complete, of every stack that trains, and never in the way."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from splitwire.backbone import identity
from splitwire.bundles import open_snapshots, verify_bundle
from splitwire.errors import SettingsError
from splitwire.v1 import stack_pb2
from splitwire.wire import session_hash
from ucn.cli import app
from ucn.settings import SnapshotSettings

TRAIN = stack_pb2.COMPUTE_MODE_TRAIN
STACKS = ("gram", "full", "lora")


def _request(kit: Any, stack: str, tiny_settings: dict[str, Any]) -> stack_pb2.OpenSessionRequest:
    if stack == "gram":
        return kit.gram_request()
    scope = {"full": stack_pb2.TRAINABLE_SCOPE_FULL, "lora": stack_pb2.TRAINABLE_SCOPE_LORA}[stack]
    lora = {"lora": stack_pb2.LoraSettings(rank=2, alpha=4, target_modules=["q_proj"])} if stack == "lora" else {}
    return kit.request(
        model=identity(tiny_settings["model"]),
        trainable_scope=scope,
        max_cache_positions=0,
        max_cache_sequences=0,
        optimizer=stack_pb2.OptimizerSettings(beta1=0.9, beta2=0.99, epsilon=1e-8),
        **lora,
    )


def _train(stream: Any, rows: torch.Tensor, num_updates: int) -> torch.Tensor:
    for step in range(1, 3 * num_updates, 3):
        returned = stream.forward(step, rows, compute_mode=TRAIN)
        stream.backward(step, returned - 1)
        stream.control(step + 1, optimizer_step=stack_pb2.OptimizerStep(learning_rate=0.05, gradient_scale=1.0))
        stream.control(step + 2, zero_grad=stack_pb2.ZeroGrad())
    return stream.forward(1000, rows)


@pytest.mark.parametrize("stack", STACKS)
def test_a_session_is_snapshotted_every_few_steps(
    start_server: Any, connect: Any, kit: Any, tiny_settings: dict[str, Any], tmp_path: Path, stack: str
) -> None:
    """From its start on; the bundle is complete once the session has ended, and training gives what it gave without."""
    rows = kit.rows(1, 4) if stack == "gram" else torch.randn(1, 4, 48, generator=torch.Generator().manual_seed(1))
    request = _request(kit, stack, tiny_settings)
    request.common_start = True
    outputs = []
    for snapshots in (SnapshotSettings(), SnapshotSettings(every_steps=2, folder=tmp_path / "snapshots")):
        running = start_server(**tiny_settings, snapshots=snapshots)
        client = connect(running)
        session = client.open(request).session_id
        outputs.append(_train(client.stream(session), rows, 5))
        client.close_session(session)
        running.stop()
    assert torch.equal(*outputs)
    (folder,) = (tmp_path / "snapshots").iterdir()
    assert verify_bundle(folder).problems == []
    bundle = open_snapshots(folder)
    assert folder.name == bundle.session_hash == session_hash(session)
    assert [(entry.optimizer_step, entry.last_step) for entry in bundle.entries] == [(0, 0), (2, 5), (4, 11)]
    first, last = (bundle.tensors(bundle.entries[n]) for n in (0, -1))
    assert {name for name in first if name.startswith("parameter.")} <= set(last)
    assert any((first[name] != last[name]).any() for name in first)
    assert any(name.startswith("optimizer.exp_avg.") for name in last)
    assert bundle.head is not None
    assert bundle.head.stack["stack"] == ("gram" if stack == "gram" else "transformer")
    assert bundle.head.optimizer["beta1"] == pytest.approx(0.9)


def test_sessions_that_train_nothing_leave_nothing(
    start_server: Any, connect: Any, kit: Any, tiny_settings: dict[str, Any], tmp_path: Path
) -> None:
    """No folder for a session whose weights are the public ones."""
    running = start_server(**tiny_settings, snapshots=SnapshotSettings(every_steps=1, folder=tmp_path / "s"))
    client = connect(running)
    client.close_session(client.open(kit.request(model=identity(tiny_settings["model"]))).session_id)
    assert list((tmp_path / "s").iterdir()) == []


def test_a_disk_that_fails_or_is_slow_does_not_end_training(
    start_server: Any, connect: Any, kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed bundle stays incomplete, so an audit knows; the session goes on."""

    def fail(*_arguments: object, **_options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.numpy.save_file", fail)
    running = start_server(snapshots=SnapshotSettings(every_steps=1, folder=tmp_path / "s"))
    client = connect(running)
    session = client.open(kit.gram_request()).session_id
    assert _train(client.stream(session), kit.rows(1, 4), 3).shape == (1, 4, kit.width)
    client.close_session(session)
    (folder,) = (tmp_path / "s").iterdir()
    assert list(folder.iterdir()) == []


def test_snapshots_that_the_disk_cannot_take_are_counted(
    start_server: Any, connect: Any, kit: Any, tmp_path: Path
) -> None:
    """A bundle with gaps says so."""
    settings = SnapshotSettings(every_steps=1, folder=tmp_path / "s", max_pending_bytes=1)
    running = start_server(snapshots=settings)
    held = running.server._servicer._snapshots._pool.submit(time.sleep, 0.5)
    client = connect(running)
    session = client.open(kit.gram_request()).session_id
    _train(client.stream(session), kit.rows(1, 4), 3)
    client.close_session(session)
    held.result()
    (folder,) = (tmp_path / "s").iterdir()
    assert "the node dropped" in " ".join(verify_bundle(folder).problems)


@pytest.mark.parametrize("settings", [SnapshotSettings(every_steps=1), SnapshotSettings(folder=Path("somewhere"))])
def test_half_a_setting_is_refused(start_server: Any, settings: SnapshotSettings) -> None:
    """Before anything is served."""
    with pytest.raises(SettingsError, match="snapshots"):
        start_server(snapshots=settings)


def test_the_command_line_says_how_often_and_where(tmp_path: Path) -> None:
    """Its options are the settings of the file."""
    arguments = ["serve", "--snapshot-every", "5", "--snapshot-folder", str(tmp_path / "s"), "--print-settings"]
    shown = CliRunner().invoke(app, arguments, catch_exceptions=False).output
    assert "every_steps = 5" in shown
    assert str(tmp_path / "s") in shown
