"""What is sealed opens for its recipient and purpose alone; keys are kept apart and never overwritten."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from splitwire import sealing
from splitwire.errors import PkiError, SealError
from splitwire.sealed_stream import SealedStream, SealedStreamWriter


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    sealing.write_audit_keys(tmp_path / "keys")
    return tmp_path / "keys"


@pytest.fixture
def private(keys: Path) -> X25519PrivateKey:
    return sealing.load_sealing_private_key(keys / "audit.key")


def write_stream(path: Path, key: X25519PrivateKey, records: list[bytes]) -> bytes:
    with SealedStreamWriter(path, key.public_key(), "test") as stream:
        for record in records:
            stream.write(record)
    return path.read_bytes()


def test_keys_are_private_and_fit_each_other(keys: Path) -> None:
    names = {path.name for path in keys.iterdir()}
    assert names == {f"{n}.{e}" for n in ("audit", "tln-recorder", "tap-recorder") for e in ("key", "pub")} | {
        "trust.json"
    }
    assert {stat.S_IMODE(path.stat().st_mode) for path in keys.iterdir()} == {0o600}
    private, public = (
        sealing.load_sealing_private_key(keys / "audit.key"),
        sealing.load_sealing_public_key(keys / "audit.pub"),
    )
    assert private.public_key() == public
    trust = sealing.load_trust(keys / "trust.json")
    assert trust == {name: sealing.load_signing_key(keys / f"{name}.key").public_key() for name in sealing.RECORDERS}


def test_keys_are_never_overwritten(keys: Path) -> None:
    before = (keys / "audit.key").read_bytes()
    with pytest.raises(PkiError, match="not overwritten"):
        sealing.write_audit_keys(keys)
    (keys / "trust.json").unlink()
    with pytest.raises(PkiError, match="not overwritten"):
        sealing.write_audit_keys(keys)
    assert (keys / "audit.key").read_bytes() == before


@pytest.mark.parametrize(
    ("load", "name"),
    [
        (sealing.load_sealing_private_key, "tap-recorder.key"),
        (sealing.load_sealing_private_key, "audit.pub"),
        (sealing.load_sealing_public_key, "audit.key"),
        (sealing.load_sealing_public_key, "tap-recorder.pub"),
        (sealing.load_signing_key, "audit.key"),
        (sealing.load_signing_key, "trust.json"),
    ],
)
def test_another_kind_of_key_is_refused(keys: Path, load: Callable[[Path], object], name: str) -> None:
    with pytest.raises(PkiError, match="is not the key that is needed here"):
        load(keys / name)


def test_a_missing_key_is_told_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(PkiError, match=r"none\.key cannot be read"):
        sealing.load_signing_key(tmp_path / "none.key")


@pytest.mark.parametrize("signers", [[{"name": "x", "public_key": "zz"}], [{"name": "x", "public_key": "00"}], [1], 1])
def test_a_trust_file_of_another_shape_is_refused(tmp_path: Path, signers: object) -> None:
    (tmp_path / "t.json").write_text(json.dumps({"signers": signers}))
    with pytest.raises(PkiError, match="not a trust file"):
        sealing.load_trust(tmp_path / "t.json")


def test_sealing_the_same_twice_gives_different_bytes_that_open_alike(private: X25519PrivateKey) -> None:
    sealed = [sealing.seal(b"run key", private.public_key(), "run-key") for _ in range(2)]
    assert sealed[0] != sealed[1]
    assert b"run key" not in sealed[0]
    assert [sealing.open_sealed(one, private, "run-key") for one in sealed] == [b"run key"] * 2


def test_another_key_purpose_or_byte_does_not_open(private: X25519PrivateKey) -> None:
    sealed = sealing.seal(b"run key", private.public_key(), "run-key")
    changed = sealed[:-1] + bytes([sealed[-1] ^ 1])
    for data, key, purpose in (
        (sealed, X25519PrivateKey.generate(), "run-key"),
        (sealed, private, "truth"),
        (changed, private, "run-key"),
        (sealed[:20], private, "run-key"),
        (b"plain", private, "run-key"),
    ):
        with pytest.raises(SealError):
            sealing.open_sealed(data, key, purpose)


def test_records_of_a_stream_come_back_in_order_and_again_one_by_one(tmp_path: Path, private: X25519PrivateKey) -> None:
    records = [b"", b"one", bytes(100_000)]
    write_stream(tmp_path / "s", private, records)
    stream = SealedStream(tmp_path / "s", private, "test")
    assert not stream.is_complete
    found = list(stream.records())
    assert [record.plaintext for record in found] == records
    assert stream.is_complete
    assert [stream.read(record.number, record.offset) for record in reversed(found)] == records[::-1]


def test_a_record_moved_or_repeated_is_found(tmp_path: Path, private: X25519PrivateKey) -> None:
    write_stream(tmp_path / "s", private, [b"aa", b"bb"])
    content = (tmp_path / "s").read_bytes()
    stream = SealedStream(tmp_path / "s", private, "test")
    first, second = (record.offset for record in stream.records())
    length = second - first
    one, two, rest = content[first:second], content[second : second + length], content[second + length :]
    for changed in (two + one + rest, one + one + rest, two + rest, one + rest, one + two + rest + rest):
        (tmp_path / "s").write_bytes(content[:first] + changed)
        with pytest.raises(SealError, match="was changed"):
            list(SealedStream(tmp_path / "s", private, "test").records())


def test_streams_of_one_key_do_not_mix(tmp_path: Path, private: X25519PrivateKey) -> None:
    write_stream(tmp_path / "a", private, [b"aa"])
    write_stream(tmp_path / "b", private, [b"bb"])
    (start,) = (record.offset for record in SealedStream(tmp_path / "a", private, "test").records())
    a, b = (tmp_path / "a").read_bytes(), (tmp_path / "b").read_bytes()
    (tmp_path / "a").write_bytes(a[:start] + b[start:])
    with pytest.raises(SealError, match="was changed"):
        list(SealedStream(tmp_path / "a", private, "test").records())


@pytest.mark.parametrize(
    "content", [b"", b"SWSTRM1\n", b"SWSTRM1\n\xff\xff\xff\xff", b"SWSTRM1\n\x02\x00\x00\x00xx", b"x" * 99]
)
def test_what_is_no_sealed_file_is_told_as_such(tmp_path: Path, private: X25519PrivateKey, content: bytes) -> None:
    (tmp_path / "s").write_bytes(content)
    with pytest.raises(SealError):
        SealedStream(tmp_path / "s", private, "test")
