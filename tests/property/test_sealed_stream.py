"""Whatever is done to a sealed file, it gives a true prefix of its records or an error, never anything else."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from splitwire.errors import SealError
from splitwire.sealed_stream import SealedStream, SealedStreamWriter

KEY = X25519PrivateKey.generate()
RECORDS = st.lists(st.binary(max_size=64), max_size=6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sealed")


def write(folder: Path, records: list[bytes]) -> bytes:
    path = folder / "written"
    path.unlink(missing_ok=True)
    with SealedStreamWriter(path, KEY.public_key(), "test") as stream:
        for record in records:
            stream.write(record)
    return path.read_bytes()


def read(folder: Path, content: bytes) -> tuple[list[bytes], bool]:
    (folder / "read").write_bytes(content)
    stream = SealedStream(folder / "read", KEY, "test")
    return [record.plaintext for record in stream.records()], stream.is_complete


@settings(max_examples=60, deadline=None)
@given(RECORDS)
def test_everything_written_is_read(folder: Path, records: list[bytes]) -> None:
    assert read(folder, write(folder, records)) == (records, True)


@settings(max_examples=100, deadline=None)
@given(RECORDS, st.data())
def test_a_cut_off_file_is_incomplete_and_gives_a_prefix(
    folder: Path, records: list[bytes], data: st.DataObject
) -> None:
    content = write(folder, records)
    end = data.draw(st.integers(0, len(content) - 1))
    try:
        found, complete = read(folder, content[:end])
    except SealError:
        return  # cut off within the header
    assert not complete
    assert found == records[: len(found)]


@settings(max_examples=100, deadline=None)
@given(RECORDS, st.data())
def test_a_flipped_bit_is_an_error_or_an_incomplete_prefix(
    folder: Path, records: list[bytes], data: st.DataObject
) -> None:
    content = bytearray(write(folder, records))
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= 1 << data.draw(st.integers(0, 7))
    try:
        found, complete = read(folder, bytes(content))
    except SealError:
        return
    assert not complete
    assert found == records[: len(found)]
