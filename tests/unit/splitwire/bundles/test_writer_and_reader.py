"""What is recorded must be read back byte for byte, streamed, whatever the state of the bundle."""

from __future__ import annotations

import json
import stat
import struct
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import rfc8785
import torch
from mcap.opcode import Opcode
from mcap.reader import make_reader

from splitwire.bundles import BundleWriter, WireRecord, frame_digest, open_bundle
from splitwire.errors import BundleError, RecordingError
from splitwire.frames import FrameLimits
from splitwire.v1 import channels_pb2, stack_pb2

FORWARD, RETURN, BACKWARD = channels_pb2.HOP_FORWARD, channels_pb2.HOP_RETURN, channels_pb2.HOP_BACKWARD
CONTROL = channels_pb2.HOP_CONTROL
OpenWriter = Callable[..., BundleWriter]


def control_record(session: str = "") -> WireRecord:
    message = stack_pb2.OpenSessionRequest(protocol_version=1).SerializeToString()
    return WireRecord(CONTROL, "request", session, message, 1, 2, "OpenSessionRequest")


def test_every_message_comes_back_byte_for_byte_in_order(open_writer: OpenWriter, wire: Any) -> None:
    records = [
        control_record(),
        *wire.frame(torch.randn(2, 3, 8)),
        *wire.frame(torch.randn(2, 3, 8), hop=RETURN),
        *wire.frame(torch.randn(2, 3, 8), step=2),
    ]
    with open_writer() as writer:
        for record in records:
            writer.write(record)
    assert list(open_bundle(writer.folder).messages()) == records


def test_messages_are_picked_by_hop_and_session(open_writer: OpenWriter, wire: Any) -> None:
    forward = wire.frame(torch.randn(1, 4))
    returned = wire.frame(torch.randn(1, 4), hop=RETURN)
    other = [replace(record, session_hash="f" * 16) for record in forward]
    with open_writer() as writer:
        for record in [*forward, *returned, *other]:
            writer.write(record)
    bundle = open_bundle(writer.folder)
    assert bundle.sessions() == [wire.session, "f" * 16]
    assert list(bundle.messages(RETURN)) == returned
    assert list(bundle.messages(FORWARD, "f" * 16)) == other
    assert list(bundle.messages(session=wire.session)) == [*forward, *returned]


def test_frames_come_back_with_the_digest_of_their_messages(open_writer: OpenWriter, wire: Any) -> None:
    tensor = torch.randn(2, 5, 8)
    messages = wire.messages(tensor, step=7)
    assert len(messages) > 2
    with open_writer() as writer:
        for record in wire.records(messages):
            writer.write(record)
    (frame,) = open_bundle(writer.folder).frames(FORWARD)
    assert torch.equal(frame.tensor, tensor)
    assert frame.message_digest == frame_digest(messages)
    assert (frame.header.step, frame.session_hash, frame.hop) == (7, wire.session, FORWARD)
    assert (frame.first_ns, frame.last_ns) == (10, 20 + len(messages) - 1)


def test_frames_of_sessions_that_speak_in_turns_do_not_mix(open_writer: OpenWriter, wire: Any) -> None:
    first, second = torch.randn(1, 6, 8), torch.randn(1, 6, 8)
    others = [replace(record, session_hash="f" * 16) for record in wire.frame(second)]
    with open_writer() as writer:
        for mine, other in zip(wire.frame(first), others, strict=True):
            writer.write(mine)
            writer.write(other)
    frames = {frame.session_hash: frame.tensor for frame in open_bundle(writer.folder).frames(FORWARD)}
    assert torch.equal(frames[wire.session], first)
    assert torch.equal(frames["f" * 16], second)


def test_a_frame_sent_again_after_a_broken_stream_is_given_once(open_writer: OpenWriter, wire: Any) -> None:
    records = wire.frame(torch.randn(1, 6, 8))
    with open_writer() as writer:
        for record in [*records[:2], *records, *records]:
            writer.write(record)
    bundle = open_bundle(writer.folder)
    assert len(list(bundle.frames(FORWARD))) == 1
    assert bundle.problems == []


def test_a_step_sent_again_with_other_bytes_is_given_twice(open_writer: OpenWriter, wire: Any) -> None:
    with open_writer() as writer:
        for record in [*wire.frame(torch.zeros(1, 8)), *wire.frame(torch.ones(1, 8))]:
            writer.write(record)
    assert len(list(open_bundle(writer.folder).frames(FORWARD))) == 2


def test_what_breaks_the_contract_is_left_out_and_told(open_writer: OpenWriter, wire: Any) -> None:
    good = wire.frame(torch.randn(1, 6, 8), step=2)
    broken = wire.frame(torch.randn(1, 6, 8), step=1)
    garbage = replace(good[0], message=b"\xff\xff\xff")
    with open_writer() as writer:
        for record in [broken[0], *broken[2:], garbage, *good, good[0]]:
            writer.write(record)
    bundle = open_bundle(writer.folder)
    assert [frame.header.step for frame in bundle.frames(FORWARD)] == [2]
    told = "\n".join(bundle.problems)
    assert "chunk 2 of step 1 came where chunk 1 was due" in told
    assert "not of the contract" in told
    assert "the last frame is not whole" in told


def test_a_peer_cannot_put_a_frame_into_the_other_sides_hop(open_writer: OpenWriter, wire: Any) -> None:
    genuine = wire.frame(torch.zeros(1, 8), step=1)
    forged = wire.frame(torch.ones(1, 8), step=2)
    answered = [replace(record, direction="response", kind="ExchangeResponse") for record in forged]
    mislabelled = wire.records(wire.messages(torch.ones(1, 8), hop=RETURN, step=3))
    with open_writer() as writer:
        for record in [*answered, *mislabelled, *genuine]:
            writer.write(record)
    bundle = open_bundle(writer.folder)
    assert [frame.header.step for frame in bundle.frames(FORWARD)] == [1]
    assert len(bundle.problems) == 2
    assert "from the wrong side" in bundle.problems[0]
    assert "another hop than its header names" in bundle.problems[1]


def test_a_frame_over_the_readers_limit_is_not_allocated(open_writer: OpenWriter, wire: Any) -> None:
    with open_writer() as writer:
        for record in wire.frame(torch.randn(4, 6, 8)):
            writer.write(record)
    bundle = open_bundle(writer.folder)
    assert list(bundle.frames(FORWARD, limits=FrameLimits(max_frame_bytes=100))) == []
    assert "exceeds the limit of 100" in bundle.problems[0]


def test_the_manifest_is_canonical_and_counts_each_hop(open_writer: OpenWriter, wire: Any) -> None:
    forward = wire.frame(torch.randn(2, 3, 8))
    with open_writer() as writer:
        for record in [control_record(), *forward]:
            writer.write(record)
    manifest = open_bundle(writer.folder).manifest
    assert manifest is not None
    assert rfc8785.dumps(manifest) == (writer.folder / "manifest.json").read_bytes()
    assert manifest["counts"]["FORWARD"] == {
        "messages": len(forward),
        "bytes": sum(len(record.message) for record in forward),
    }
    assert manifest["counts"]["CONTROL"]["messages"] == 1
    assert (manifest["num_sessions"], manifest["num_dropped"], manifest["recorder"]) == (1, 0, "tln")
    assert set(manifest["files"]) == {"wire.mcap"}


def test_any_mcap_reader_can_decode_the_messages(open_writer: OpenWriter, wire: Any) -> None:
    with open_writer() as writer:
        for record in wire.frame(torch.randn(1, 8)):
            writer.write(record)
    with (writer.folder / "wire.mcap").open("rb") as file:
        ((schema, channel, message),) = make_reader(file, validate_crcs=True).iter_messages()
    assert schema is not None
    assert (schema.name, schema.encoding) == ("splitwire.v1.ExchangeRequest", "protobuf")
    assert b"splitwire/v1/stack.proto" in schema.data
    assert channel.message_encoding == "protobuf"
    assert stack_pb2.ExchangeRequest.FromString(message.data).frame.header.step == 1


def test_files_beside_the_wire_are_in_the_manifest(open_writer: OpenWriter) -> None:
    with open_writer() as writer:
        (writer.folder / "truth.sealed").write_bytes(b"sealed")
    manifest = open_bundle(writer.folder).manifest
    assert manifest is not None
    assert manifest["files"]["truth.sealed"]["bytes"] == 6


def test_settings_and_versions_stand_at_the_start_of_the_file(open_writer: OpenWriter) -> None:
    writer = open_writer()
    bundle = open_bundle(writer.folder)  # nothing was written or closed yet
    assert bundle.settings == {"frame": {"rows": 4}}
    assert bundle.recorder == "tln"
    assert bundle.versions["splitwire"]
    assert bundle.manifest is None
    assert not bundle.is_complete
    writer.abandon()


def test_a_bundle_is_never_written_over(open_writer: OpenWriter, tmp_path: Path) -> None:
    open_writer().close()
    with pytest.raises(BundleError, match="is not empty"):
        open_writer()
    (tmp_path / "file").write_text("x")
    with pytest.raises(BundleError, match="cannot be made"):
        open_writer("file")


def test_settings_that_have_no_canonical_form_are_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="canonical"):
        BundleWriter(tmp_path / "b", recorder="tln", settings={"x": float("nan")})
    assert not (tmp_path / "b").exists()


def test_only_the_owner_may_read_a_bundle(open_writer: OpenWriter) -> None:
    with open_writer() as writer:
        pass
    assert stat.S_IMODE(writer.folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in writer.folder.iterdir()} == {0o600}


@pytest.mark.parametrize(
    "change",
    [{"hop": 0}, {"hop": 99}, {"direction": "sideways"}, {"kind": "Unknown"}],
    ids=["no hop", "unknown hop", "direction", "kind"],
)
def test_a_record_outside_the_contract_is_refused(open_writer: OpenWriter, change: dict[str, Any]) -> None:
    with open_writer() as writer, pytest.raises(BundleError, match="not valid"):
        writer.write(replace(control_record(), **change))


def test_a_closed_writer_takes_nothing_more_and_closes_once(open_writer: OpenWriter) -> None:
    writer = open_writer()
    writer.close()
    before = (writer.folder / "manifest.json").read_bytes()
    writer.close()
    assert (writer.folder / "manifest.json").read_bytes() == before
    with pytest.raises(RecordingError, match="closed"):
        writer.write(control_record())


def test_an_error_inside_leaves_the_bundle_incomplete(open_writer: OpenWriter) -> None:
    def fail() -> None:
        with open_writer() as writer:
            writer.write(control_record())
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    writer_folder = open_writer("second").folder.parent / "bundle"
    assert not (writer_folder / "manifest.json").exists()
    assert not open_bundle(writer_folder).is_complete


def test_a_file_cut_off_anywhere_reads_up_to_its_last_whole_chunk(open_writer: OpenWriter, wire: Any) -> None:
    records = wire.frame(torch.randn(1, 40, 8))
    writer = open_writer()
    for record in records:
        writer.write(record)
        writer.flush()
    writer.close()
    path = writer.folder / "wire.mcap"
    whole = path.read_bytes()
    lengths = set()
    for end in range(len(whole) - 1, 2000, -211):
        path.write_bytes(whole[:end])
        bundle = open_bundle(writer.folder)
        found = list(bundle.messages())
        assert found == records[: len(found)]
        assert not bundle.is_complete
        assert bundle.sessions() == ([wire.session] if found else [])
        lengths.add(len(found))
    assert {0, len(records)} <= lengths
    assert len(lengths) > len(records) // 2


def test_a_changed_chunk_is_an_error_not_a_shorter_bundle(open_writer: OpenWriter, wire: Any) -> None:
    with open_writer() as writer:
        for record in wire.frame(torch.randn(1, 40, 8)):
            writer.write(record)
    path = writer.folder / "wire.mcap"
    content = bytearray(path.read_bytes())
    place = content.index(stack_pb2.ExchangeRequest.DESCRIPTOR.full_name.encode()) + 6000
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(BundleError, match="changed or damaged"):
        list(open_bundle(writer.folder).messages())


@pytest.mark.parametrize("compression", [b"", b"zstd", b"lz4"])
def test_a_chunk_that_is_compressed_or_claims_any_size_is_damaged(open_writer: OpenWriter, compression: bytes) -> None:
    """In a recording without a manifest, whose bytes nothing else vouches for."""
    writer = open_writer()
    writer.write(control_record())
    writer.flush()
    writer.abandon()
    length = 2**63 if not compression else 4
    body = struct.pack("<QQQII", 0, 0, 1 << 40, 0, len(compression)) + compression + struct.pack("<Q", length) + b"none"
    with (writer.folder / "wire.mcap").open("ab") as file:
        file.write(struct.pack("<BQ", Opcode.CHUNK, len(body)) + body)
    with pytest.raises(BundleError, match="changed or damaged"):
        list(open_bundle(writer.folder).messages())


@pytest.mark.parametrize(
    "content", [b"", b"not mcap at all", b"\x89MCAP0\r\n", b"\x89MCAP0\r\n\x01\xff\xff\xff\xff\xff\xff\xff\xff"]
)
def test_what_is_no_bundle_is_told_as_such(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "wire.mcap").write_bytes(content)
    with pytest.raises(BundleError):
        open_bundle(tmp_path)


def test_a_missing_folder_is_told_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="No such file"):
        open_bundle(tmp_path / "none")


@pytest.mark.parametrize("change", [{"format_version": 2}, {"num_dropped": "many"}, {"extra": 1}, {"files": None}])
def test_a_manifest_of_another_shape_or_version_is_refused(open_writer: OpenWriter, change: dict[str, Any]) -> None:
    with open_writer() as writer:
        pass
    path = writer.folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(BundleError, match=r"manifest\.json is"):
        open_bundle(writer.folder)


def test_reading_holds_one_chunk_in_memory_not_the_bundle(open_writer: OpenWriter) -> None:
    record = replace(control_record(), message=bytes(1 << 20), kind="ExchangeRequest")
    with open_writer() as writer:
        for _ in range(48):
            writer.write(record)
    tracemalloc.start()
    try:
        assert sum(1 for _ in open_bundle(writer.folder).messages()) == 48
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16 << 20
