"""Truth must open for the auditor alone, join by digest, and show when it is not whole."""

from __future__ import annotations

import dataclasses
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from splitwire.bundles import TruthRecord, TruthWriter, frame_digest, read_truth
from splitwire.bundles import truth as truth_module
from splitwire.errors import PkiError, RecordingError, SealError
from splitwire.sealed_stream import SealedStreamWriter
from splitwire.sealing import load_sealing_public_key, write_audit_keys

SESSION = "0123456789abcdef"
MARKER = "planted-marker-document"
_RNG = np.random.default_rng(0)


def truth_record(step: int = 1, *, session: str = SESSION, digest_of: bytes = b"", **change: Any) -> TruthRecord:
    shape = (2, 5)
    values: dict[str, Any] = {
        "session_hash": session,
        "step": step,
        "forward_digest": frame_digest([digest_of or step.to_bytes(4, "little")]),
        "phase": "train",
        "real": _RNG.integers(0, 2, shape).astype(np.bool_),
        **{name: _RNG.integers(-1, 99, shape, dtype=np.int32) for name in ("order", "token", "label", "document")},
    }
    return TruthRecord(**{**values, **change})


def same(one: TruthRecord, other: TruthRecord) -> bool:
    return all(
        np.array_equal(getattr(one, field.name), getattr(other, field.name))
        for field in dataclasses.fields(TruthRecord)
    )


def test_what_is_written_is_read_back(tmp_path: Path, keys: Path) -> None:
    records = [truth_record(1), truth_record(2, phase="evaluate"), truth_record(1, session="f" * 16, phase="generate")]
    with TruthWriter(tmp_path / "t", keys / "audit.pub", {"vocabulary_size": 257}) as writer:
        assert writer.add_documents([{"id": "a", "member": True}, {"id": "b", "member": False}]) == 0
        assert writer.add_documents([{"id": "c", "member": True}]) == 2
        writer.add_facts({"model": "tiny"})
        for record in records:
            writer.add(record)
    truth = read_truth(tmp_path / "t", keys / "audit.key")
    assert truth.is_complete
    assert truth.facts == {"vocabulary_size": 257, "model": "tiny"}
    assert [document["id"] for document in truth.documents] == ["a", "b", "c"]
    assert [document["member"] for document in truth.documents] == [True, False, True]
    assert list(truth.records) == [(record.session_hash, record.step) for record in records]
    for record in records:
        assert same(truth.records[record.session_hash, record.step], record)


def test_nothing_of_it_can_be_read_without_the_key(tmp_path: Path, keys: Path) -> None:
    with TruthWriter(tmp_path / "t", keys / "audit.pub", {"note": MARKER}) as writer:
        writer.add_documents([{"id": MARKER, "member": True}])
        writer.add(truth_record())
    content = (tmp_path / "t").read_bytes()
    for plain in (MARKER.encode(), SESSION.encode(), b"safetensors", b"token", b"member"):
        assert plain not in content
    write_audit_keys(tmp_path / "other")
    with pytest.raises(SealError, match="does not open with this key"):
        read_truth(tmp_path / "t", tmp_path / "other" / "audit.key")


def test_a_signing_key_is_not_a_sealing_key(tmp_path: Path, keys: Path) -> None:
    with pytest.raises(PkiError, match=r"give the audit\.pub"):
        TruthWriter(tmp_path / "t", keys / "tln-recorder.pub")
    assert not (tmp_path / "t").exists()


def test_truth_without_its_end_is_incomplete_and_readable(tmp_path: Path, keys: Path) -> None:
    writer = TruthWriter(tmp_path / "t", keys / "audit.pub")
    writer.add(truth_record(1))
    writer.add(truth_record(2))
    writer.abandon()
    (tmp_path / "t").write_bytes((tmp_path / "t").read_bytes()[:-5])
    truth = read_truth(tmp_path / "t", keys / "audit.key")
    assert not truth.is_complete
    assert list(truth.records) == [(SESSION, 1)]


def test_truth_is_never_written_over(tmp_path: Path, keys: Path) -> None:
    TruthWriter(tmp_path / "t", keys / "audit.pub").close()
    with pytest.raises(RecordingError, match="File exists"):
        TruthWriter(tmp_path / "t", keys / "audit.pub")


def test_a_step_protected_again_as_the_same_bytes_is_one_record(tmp_path: Path, keys: Path) -> None:
    record = truth_record(1)
    with TruthWriter(tmp_path / "t", keys / "audit.pub") as writer:
        writer.add(record)
        writer.add(record)
    assert len(read_truth(tmp_path / "t", keys / "audit.key").records) == 1


def test_two_records_of_one_step_that_differ_are_refused(tmp_path: Path, keys: Path) -> None:
    with TruthWriter(tmp_path / "t", keys / "audit.pub") as writer:
        writer.add(truth_record(1, digest_of=b"one"))
        writer.add(truth_record(1, digest_of=b"two"))
    with pytest.raises(SealError, match="two different records of step 1"):
        read_truth(tmp_path / "t", keys / "audit.key")


@pytest.mark.parametrize("plaintext", [b"", b"\xff\xff\xff\xff{}", b"\x02\x00\x00\x00[]", b"\x02\x00\x00\x00{}"])
def test_sealed_data_that_is_no_truth_is_refused(tmp_path: Path, keys: Path, plaintext: bytes) -> None:
    with SealedStreamWriter(tmp_path / "t", load_sealing_public_key(keys / "audit.pub"), "truth") as stream:
        stream.write(plaintext)
    with pytest.raises(SealError, match="no truth record"):
        read_truth(tmp_path / "t", keys / "audit.key")


def test_a_record_with_foreign_arrays_is_refused_when_it_is_opened(tmp_path: Path, keys: Path) -> None:
    head = {"session_hash": SESSION, "step": 1, "forward_digest": "0" * 64, "phase": "train"}
    with SealedStreamWriter(tmp_path / "t", load_sealing_public_key(keys / "audit.pub"), "truth") as stream:
        stream.write(truth_module._pack("record", head, b"not safetensors"))
    records = read_truth(tmp_path / "t", keys / "audit.key").records
    with pytest.raises(SealError, match="no truth record"):
        records[SESSION, 1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"phase": "test"}, "phase 'test'"),
        ({"step": 0}, "step 0"),
        ({"forward_digest": "abc"}, "digest"),
        ({"real": np.zeros((2, 5), np.int32)}, "expected bool"),
        ({"real": np.zeros(5, np.bool_)}, "expected bool"),
        ({"token": np.zeros((2, 5), np.int64)}, r"token is int64 \[2, 5\], expected int32 \[2, 5\]"),
        ({"label": np.zeros((2, 4), np.int32)}, r"label is int32 \[2, 4\]"),
    ],
)
def test_a_record_of_another_shape_or_type_cannot_be_made(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        truth_record(**change)


def test_a_full_disk_is_a_recording_error_on_the_way_out_too(tmp_path: Path) -> None:
    """Closing the file would write once more what did not fit: that must not hide the first failure."""
    write_audit_keys(tmp_path / "keys")

    def write() -> None:
        with TruthWriter(tmp_path / "truth.sealed", tmp_path / "keys" / "audit.pub") as writer:
            for step in range(1, 100):
                writer.add(truth_record(step))

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(RecordingError, match=r"truth\.sealed cannot be written: File too large\. free space"):
            write()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    truth = read_truth(tmp_path / "truth.sealed", tmp_path / "keys" / "audit.key")
    assert not truth.is_complete
    assert truth.records
