"""Reads wire.mcap front to back, one chunk in memory at a time, whole or cut off.

A file that ends within a record was cut off by a crash: what comes before reads as usual. A whole chunk whose checksum
does not hold was changed: BundleError. Reading never needs the summary at the end of the file.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from mcap.data_stream import ReadDataStream
from mcap.exceptions import McapError
from mcap.opcode import Opcode
from mcap.reader import make_reader
from mcap.records import Channel, Chunk, McapRecord, Message, Metadata
from mcap.stream_reader import breakup_chunk
from mcap.writer import MCAP0_MAGIC

from splitwire.errors import BundleError

_PREFIX = struct.Struct("<BQ")
_MAX_RECORD_BYTES = 1 << 30
Record = tuple[int, bytes]
"""Opcode and body."""
# What mcap raises on bytes that are not a record: its own errors, ValueError (checksums, text), sizes and short reads.
_BROKEN = (McapError, ValueError, OverflowError, struct.error)
T = TypeVar("T")
Summary = Any  # mcap publishes no types


class WireFile:
    """One wire.mcap. Every method opens it anew, so iterators do not disturb one another."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def metadata(self, name: str) -> dict[str, str] | None:
        """The metadata record of that name that comes before any message; None when there is none."""
        for opcode, body in self._records():
            if opcode == Opcode.METADATA:
                found = parse(_metadata, body, self.path)
                if found.name == name:
                    return dict(found.metadata)
            if opcode in (Opcode.CHUNK, Opcode.DATA_END):
                return None
        return None

    def messages(self) -> Iterator[tuple[Channel, Message]]:
        """Every message with its channel, in the order of writing."""
        channels: dict[int, Channel] = {}
        for record in self._chunk_records():
            if isinstance(record, Channel):
                channels[record.id] = record
            elif isinstance(record, Message):
                if record.channel_id not in channels:
                    raise broken(self.path)
                yield channels[record.channel_id], record

    def channels(self) -> list[Channel]:
        """Every channel, in the order of its first message; read from the summary when the file has one."""
        summary = self._summary() if self.ends_whole() else None
        if summary is not None:
            return [summary.channels[key] for key in sorted(summary.channels)]
        return [record for record in self._chunk_records() if isinstance(record, Channel)]

    def ends_whole(self) -> bool:
        """Whether the file has its closing magic."""
        with self._open() as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - len(MCAP0_MAGIC)))
            return size >= 2 * len(MCAP0_MAGIC) and file.read() == MCAP0_MAGIC

    def _summary(self) -> Summary | None:
        with self._open() as file:
            try:
                return make_reader(file).get_summary()
            except _BROKEN:
                raise broken(self.path) from None

    def _chunk_records(self) -> Iterator[McapRecord]:
        for opcode, body in self._records():
            if opcode == Opcode.DATA_END:
                return
            if opcode == Opcode.CHUNK:
                yield from parse(chunk_content, body, self.path)

    def _records(self) -> Iterator[Record]:
        with self._open() as file:
            if file.read(len(MCAP0_MAGIC)) != MCAP0_MAGIC:
                raise not_a_container(self.path)
            while (record := next_record(file, self.path)) is not None:
                yield record

    def _open(self) -> BinaryIO:
        return open_wire(self.path)


def open_wire(path: Path) -> BinaryIO:
    """The file for reading; BundleError when there is none."""
    try:
        return path.open("rb")
    except OSError as error:
        raise BundleError(
            f"{path} cannot be read: {error.strerror}", remedy="give a folder that a recorder wrote"
        ) from None


def next_record(file: BinaryIO, path: Path) -> Record | None:
    """The record at the file's position; None where the file ends within it or before it."""
    prefix = file.read(_PREFIX.size)
    if len(prefix) < _PREFIX.size:
        return None
    opcode, length = _PREFIX.unpack(prefix)
    if length > _MAX_RECORD_BYTES:
        raise broken(path)
    body = file.read(length)
    return (opcode, body) if len(body) == length else None


def parse(parser: Callable[[bytes], T], body: bytes, path: Path) -> T:
    """What the parser makes of a record; BundleError when it is damaged."""
    try:
        return parser(body)
    except _BROKEN:
        raise broken(path) from None


def chunk_content(body: bytes) -> list[McapRecord]:
    """Records within a chunk whose checksum holds. ValueError for a compressed one: no recorder writes it, and it may
    claim any size.
    """
    chunk = Chunk.read(ReadDataStream(BytesIO(body)))
    if chunk.compression:
        raise ValueError("the chunk is compressed")
    return breakup_chunk(chunk, validate_crc=True)


def broken(path: Path) -> BundleError:
    """What is said of a file whose bytes are not those that its recorder wrote."""
    return BundleError(f"{path} was changed or damaged", remedy="restore it from its recorder, or record again")


def not_a_container(path: Path) -> BundleError:
    """What is said of a file of another kind."""
    return BundleError(f"{path} is not an MCAP file", remedy="give a folder that a recorder wrote")


def _metadata(body: bytes) -> Metadata:
    record: Metadata = Metadata.read(ReadDataStream(BytesIO(body)))
    return record
