"""Checkpoints over the wire: written, found again by their peer, refused to others."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch

from splitwire.errors import SettingsError
from splitwire.v1 import stack_pb2
from ucn.settings import LimitSettings

TRAIN = stack_pb2.COMPUTE_MODE_TRAIN


def _train(stream: Any, kit: Any, first_step: int, num_updates: int) -> None:
    for update in range(num_updates):
        step = first_step + 3 * update
        returned = stream.forward(step, kit.rows(1, 4), compute_mode=TRAIN)
        stream.backward(step, returned - 1)
        rate = stack_pb2.OptimizerStep(learning_rate=0.05, gradient_scale=1.0)
        stream.control(step + 1, optimizer_step=rate)
        stream.control(step + 2, zero_grad=stack_pb2.ZeroGrad())


def test_training_resumed_from_a_checkpoint_goes_on_bit_for_bit(
    start_server: Any, connect: Any, kit: Any, tmp_path: Path
) -> None:
    """Parameters and optimizer state come back, on another server over the same folder."""
    client = connect(start_server(checkpoint_dir=tmp_path))
    stream = client.stream(client.open(kit.gram_request()).session_id)
    _train(stream, kit, 1, 3)
    digest = stream.control(100, checkpoint=stack_pb2.Checkpoint(label="after-3")).checkpoint_digest
    _train(stream, kit, 101, 2)
    expected = stream.forward(200, kit.rows(1, 4))
    (file,) = tmp_path.glob("*/after-3.safetensors")
    assert hashlib.sha256(file.read_bytes()).hexdigest() == digest

    client = connect(start_server(checkpoint_dir=tmp_path))
    grant = client.open(kit.gram_request(resume_checkpoint="after-3"))
    assert grant.resumed_digest == digest
    stream = client.stream(grant.session_id)
    _train(stream, kit, 1, 2)
    assert torch.equal(stream.forward(200, kit.rows(1, 4)), expected)


def test_a_folder_that_cannot_be_written_stops_the_node_at_its_start(start_server: Any, tmp_path: Path) -> None:
    """Not its peers, after their training."""
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/checkpoints")):
        with pytest.raises(SettingsError, match=f"checkpoint_dir {folder} cannot be written"):
            start_server(checkpoint_dir=folder)


def test_a_checkpoint_belongs_to_its_peer(start_server: Any, connect: Any, kit: Any, tmp_path: Path) -> None:
    """Another allowed peer does not find it."""
    running = start_server(checkpoint_dir=tmp_path)
    client = connect(running)
    stream = client.stream(client.open(kit.gram_request()).session_id)
    stream.control(1, checkpoint=stack_pb2.Checkpoint(label="mine"))
    with pytest.raises(kit.refusal, match="no checkpoint mine") as refusal:
        connect(running, "tap").open(kit.gram_request(resume_checkpoint="mine"))
    assert (refusal.value.code, refusal.value.error) == ("FAILED_PRECONDITION", "HandshakeError")


def test_a_checkpoint_of_another_shape_is_refused(start_server: Any, connect: Any, kit: Any, tmp_path: Path) -> None:
    """The stack compares what the checkpoint says of itself; no session is left behind."""
    running = start_server(checkpoint_dir=tmp_path)
    client = connect(running)
    stream = client.stream(client.open(kit.gram_request()).session_id)
    stream.control(1, checkpoint=stack_pb2.Checkpoint(label="small"))
    stream.cancel()
    other = stack_pb2.GramSettings(width=kit.width, num_experts=3, num_layers=1)
    with pytest.raises(kit.refusal) as refusal:
        client.open(kit.gram_request(gram=other, resume_checkpoint="small"))
    assert refusal.value.error == "HandshakeError"
    assert len(running.server.table) == 1


def test_a_damaged_checkpoint_is_refused(start_server: Any, connect: Any, kit: Any, tmp_path: Path) -> None:
    """A file that does not parse is reported without its path."""
    client = connect(start_server(checkpoint_dir=tmp_path))
    stream = client.stream(client.open(kit.gram_request()).session_id)
    stream.control(1, checkpoint=stack_pb2.Checkpoint(label="torn"))
    (file,) = tmp_path.glob("*/torn.safetensors")
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(kit.refusal, match="not readable") as refusal:
        client.open(kit.gram_request(resume_checkpoint="torn"))
    assert str(tmp_path) not in refusal.value.details


@pytest.mark.parametrize("label", ["", "../up", "a/b", "x" * 65, ".hidden"])
def test_a_label_that_could_be_a_path_is_refused(
    start_server: Any, connect: Any, kit: Any, tmp_path: Path, label: str
) -> None:
    """Only letters, digits, '-' and '_' name a checkpoint."""
    client = connect(start_server(checkpoint_dir=tmp_path / "checkpoints"))
    stream = client.stream(client.open(kit.gram_request()).session_id)
    with pytest.raises(kit.refusal, match="checkpoint label"):
        stream.control(1, checkpoint=stack_pb2.Checkpoint(label=label))
    assert list(tmp_path.rglob("*.safetensors")) == []


def test_checkpoints_are_limited_and_may_be_replaced(start_server: Any, connect: Any, kit: Any, tmp_path: Path) -> None:
    """A peer cannot fill the disk with labels; a label that exists may be written again."""
    client = connect(start_server(checkpoint_dir=tmp_path, limits=LimitSettings(max_checkpoints_per_peer=1)))
    session_id = client.open(kit.gram_request()).session_id
    stream = client.stream(session_id)
    for step in (1, 2):
        stream.control(step, checkpoint=stack_pb2.Checkpoint(label="one"))
    with pytest.raises(kit.refusal, match="checkpoints are kept") as refusal:
        stream.control(3, checkpoint=stack_pb2.Checkpoint(label="two"))
    assert refusal.value.code == "RESOURCE_EXHAUSTED"
    client.stream(session_id).control(3, checkpoint=stack_pb2.Checkpoint(label="one"))


def test_a_dropped_checkpoint_makes_room(start_server: Any, connect: Any, kit: Any, tmp_path: Path) -> None:
    """A peer that saves on and on drops what it needs no more; dropping twice is no error, others keep theirs."""
    running = start_server(checkpoint_dir=tmp_path, limits=LimitSettings(max_checkpoints_per_peer=1))
    other = connect(running, "tap")
    other.stream(other.open(kit.gram_request()).session_id).control(1, checkpoint=stack_pb2.Checkpoint(label="one"))
    client = connect(running)
    stream = client.stream(client.open(kit.gram_request()).session_id)
    stream.control(1, checkpoint=stack_pb2.Checkpoint(label="one"))
    for step in (2, 3):
        stream.control(step, drop_checkpoint=stack_pb2.DropCheckpoint(label="one"))
    stream.control(4, checkpoint=stack_pb2.Checkpoint(label="two"))
    assert sorted(file.name for file in tmp_path.glob("*/*")) == ["one.safetensors", "two.safetensors"]


def test_a_node_without_a_folder_keeps_none(start_server: Any, connect: Any, kit: Any) -> None:
    """The refusal says what the operator must set."""
    client = connect(start_server())
    stream = client.stream(client.open(kit.gram_request()).session_id)
    with pytest.raises(kit.refusal, match="checkpoint_dir") as refusal:
        stream.control(1, checkpoint=stack_pb2.Checkpoint(label="one"))
    assert refusal.value.error == "StateError"


def test_a_folder_that_cannot_be_written_is_reported_without_its_path(
    start_server: Any, connect: Any, kit: Any, tmp_path: Path
) -> None:
    """A disk that fails is the node's limit; the session goes on."""
    blocked = tmp_path / "file"
    client = connect(start_server(checkpoint_dir=blocked))
    blocked.rmdir()
    blocked.write_text("not a folder")
    session_id = client.open(kit.gram_request()).session_id
    with pytest.raises(kit.refusal, match="cannot be written") as refusal:
        client.stream(session_id).control(1, checkpoint=stack_pb2.Checkpoint(label="one"))
    assert str(tmp_path) not in refusal.value.details
    client.stream(session_id).forward(1, kit.rows())
