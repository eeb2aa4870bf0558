"""A recording is followed while it grows: whole chunks only, in order, and never a file that took its place."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from splitwire.bundles import BundleWriter, TruthRecord, TruthWriter, open_bundle
from splitwire.bundles.tail import WireTail
from splitwire.bundles.truth_tail import TruthTail
from splitwire.errors import BundleError, SealError
from splitwire.sealing import load_sealing_private_key, write_audit_keys

from .conftest import SESSION, Wire

DIGEST = "0" * 64


@pytest.fixture
def follow() -> Iterator[Callable[[Path], WireTail]]:
    """follow(folder) -> a tail that is closed at the end."""
    tails: list[WireTail] = []

    def start(folder: Path) -> WireTail:
        tails.append(WireTail(folder))
        return tails[-1]

    yield start
    for tail in tails:
        tail.close()


def _all(tail: WireTail) -> list[bytes]:
    found = []
    while (records := tail.next_chunk()) is not None:
        found += [record.message for record in records]
    return found


def test_what_was_flushed_is_read_and_nothing_twice(
    open_writer: Callable[..., BundleWriter], wire: Wire, follow: Callable[[Path], WireTail], tmp_path: Path
) -> None:
    tail = follow(tmp_path / "bundle")
    assert tail.next_chunk() is None
    assert tail.backlog_bytes == 0
    writer, seen = open_writer(), []
    for step in range(1, 4):
        for record in wire.frame(torch.randn(1, 4, 8), step=step):
            writer.write(record)
        writer.flush()
        assert tail.backlog_bytes > 0
        new = _all(tail)
        assert len(new) == len(wire.frame(torch.randn(1, 4, 8), step=step))
        assert tail.backlog_bytes == 0
        seen += new
    assert not tail.is_closed
    writer.close()
    assert _all(tail) == []
    assert tail.is_closed
    assert seen == [record.message for record in open_bundle(tmp_path / "bundle").messages()]


def test_a_file_cut_anywhere_reads_its_whole_chunks_and_goes_on_when_it_grows(
    open_writer: Callable[..., BundleWriter], wire: Wire, follow: Callable[[Path], WireTail], tmp_path: Path
) -> None:
    writer = open_writer()
    for step in range(1, 5):
        for record in wire.frame(torch.randn(1, 4, 8), step=step):
            writer.write(record)
        writer.flush()
    writer.abandon()
    content = (tmp_path / "bundle" / "wire.mcap").read_bytes()
    messages = [record.message for record in open_bundle(tmp_path / "bundle").messages()]
    folder = tmp_path / "growing"
    folder.mkdir()
    path = folder / "wire.mcap"
    path.touch()
    tail, found = follow(folder), []
    for end in [*range(0, len(content), 501), len(content)]:
        path.write_bytes(content[:end])  # in place: the same file
        found += _all(tail)
        assert found == messages[: len(found)]
    assert found == messages
    assert not tail.is_closed


@pytest.mark.parametrize("change", ["replaced", "shorter", "removed"])
def test_another_file_is_not_the_recording(
    open_writer: Callable[..., BundleWriter],
    wire: Wire,
    follow: Callable[[Path], WireTail],
    tmp_path: Path,
    change: str,
) -> None:
    writer = open_writer()
    for record in wire.frame(torch.randn(1, 4, 8)):
        writer.write(record)
    writer.flush()
    tail = follow(tmp_path / "bundle")
    _all(tail)
    path = tmp_path / "bundle" / "wire.mcap"
    if change == "replaced":
        shutil.copy(path, tmp_path / "copy")
        (tmp_path / "copy").replace(path)
    elif change == "shorter":
        path.write_bytes(path.read_bytes()[:100])
    else:
        path.unlink()
    with pytest.raises(BundleError, match="while it was followed"):
        tail.next_chunk()
    writer.abandon()


def test_a_changed_chunk_and_another_kind_of_file_are_refused(
    open_writer: Callable[..., BundleWriter], wire: Wire, follow: Callable[[Path], WireTail], tmp_path: Path
) -> None:
    writer = open_writer()
    for record in wire.frame(torch.randn(1, 4, 8)):
        writer.write(record)
    writer.abandon()
    path = tmp_path / "bundle" / "wire.mcap"
    content = bytearray(path.read_bytes())
    content[content.find(b"ExchangeRequest") + 400] ^= 1
    path.write_bytes(content)
    with pytest.raises(BundleError, match="changed or damaged"):
        _all(follow(tmp_path / "bundle"))
    path.write_bytes(b"something else entirely")
    with pytest.raises(BundleError, match="not an MCAP file"):
        follow(tmp_path / "bundle").next_chunk()


def _record(step: int, session: str = SESSION) -> TruthRecord:
    zeros = np.zeros((1, 3), np.int32)
    return TruthRecord(session, step, DIGEST, "train", zeros == 0, zeros, zeros, zeros + step, zeros)


def test_truth_is_found_beside_its_frame_while_it_grows(tmp_path: Path, keys: Path) -> None:
    path, key = tmp_path / "truth.sealed", load_sealing_private_key(keys / "audit.key")
    tail = TruthTail(path, key)
    assert tail.find(SESSION, 1) is None
    with TruthWriter(path, keys / "audit.pub") as truth:
        truth.add_documents([{"id": "first", "member": True}])
        truth.add(_record(2))
        assert tail.find(SESSION, 1) is None  # step 2 came: there is no truth of step 1
        found = tail.find(SESSION, 2)
        assert found is not None
        assert found.label.tolist() == [[2, 2, 2]]
        assert tail.find(SESSION, 2) is None  # given once
        assert [document["id"] for document in tail.documents] == ["first"]
        truth.add(_record(3))
        truth.add(_record(3, "f" * 16))
        assert tail.find("f" * 16, 3) is not None
        assert tail.num_waiting == 1
        assert tail.find(SESSION, 3) is not None
        assert tail.num_waiting == 0
    assert tail.find(SESSION, 4) is None


def test_truth_that_no_frame_asks_for_is_let_go(tmp_path: Path, keys: Path) -> None:
    path = tmp_path / "truth.sealed"
    with TruthWriter(path, keys / "audit.pub") as truth:
        for step in range(1, 30):
            truth.add(_record(step))
    tail = TruthTail(path, load_sealing_private_key(keys / "audit.key"), max_waiting=5)
    assert tail.find(SESSION, 29) is not None
    assert tail.num_waiting == 4
    assert tail.find(SESSION, 10) is None


def test_another_key_does_not_open_the_truth(tmp_path: Path, keys: Path) -> None:
    path = tmp_path / "truth.sealed"
    with TruthWriter(path, keys / "audit.pub") as truth:
        truth.add(_record(1))
    write_audit_keys(tmp_path / "other")
    with pytest.raises(SealError):
        TruthTail(path, load_sealing_private_key(tmp_path / "other" / "audit.key")).find(SESSION, 1)
