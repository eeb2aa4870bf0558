"""Follows a wire.mcap while its recorder writes it, one whole chunk at a time.

What is not whole yet is left for the next call, so a file that a crash cut off simply never goes on. A file that was
replaced, made shorter or removed is no longer the recording that was followed: BundleError. Nothing is ever written,
and one chunk is in memory.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from mcap.opcode import Opcode
from mcap.records import Channel, Message
from mcap.writer import MCAP0_MAGIC

from splitwire.bundles.container import broken, chunk_content, next_record, not_a_container, open_wire, parse
from splitwire.bundles.manifest import WIRE_FILE
from splitwire.bundles.records import ChannelKey, WireRecord
from splitwire.errors import BundleError


class WireTail:
    """A place in a growing wire.mcap. `is_closed` is known once the recorder's last record was reached."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / WIRE_FILE
        self.is_closed = False
        self.num_bytes = 0
        """Bytes read so far."""
        self._file: BinaryIO | None = None
        self._keys: dict[int, ChannelKey] = {}

    @property
    def exists(self) -> bool:
        """Whether a recorder has begun."""
        return self._file is not None or self.path.exists()

    @property
    def backlog_bytes(self) -> int:
        """Bytes that lie behind this place."""
        return max(0, self._check() - self.num_bytes) if self.exists else 0

    def next_chunk(self) -> list[WireRecord] | None:
        """The messages of the next whole chunk, in order; None where there is none yet, or none any more."""
        if self.is_closed or not self.exists:
            return None
        self._check()
        file = self._open()
        if file is None:
            return None
        while (record := self._next(file)) is not None:
            opcode, body = record
            if opcode == Opcode.DATA_END:
                self.is_closed = True
                return None
            if opcode == Opcode.CHUNK:
                return self._messages(body)
        return None

    def close(self) -> None:
        """Lets go of the file."""
        if self._file is not None:
            self._file.close()

    def _open(self) -> BinaryIO | None:
        """The file behind its magic; None while not even that was written."""
        file = self._file = self._file or open_wire(self.path)
        if not self.num_bytes:
            file.seek(0)
            magic = file.read(len(MCAP0_MAGIC))
            if not MCAP0_MAGIC.startswith(magic):
                raise not_a_container(self.path)
            if len(magic) < len(MCAP0_MAGIC):
                return None
            self.num_bytes = len(magic)
        return file

    def _next(self, file: BinaryIO) -> tuple[int, bytes] | None:
        file.seek(self.num_bytes)
        record = next_record(file, self.path)
        if record is not None:
            self.num_bytes = file.tell()
        return record

    def _messages(self, body: bytes) -> list[WireRecord]:
        found = []
        for record in parse(chunk_content, body, self.path):
            if isinstance(record, Channel):
                self._keys[record.id] = ChannelKey.from_metadata(record.metadata)
            elif isinstance(record, Message):
                if record.channel_id not in self._keys:
                    raise broken(self.path)
                key = self._keys[record.channel_id]
                times = record.publish_time, record.log_time
                found.append(WireRecord(key.hop, key.direction, key.session_hash, record.data, *times, key.kind))
        return found

    def _check(self) -> int:
        """Size of the file; BundleError when it is another one than before."""
        try:
            now = self.path.stat()
        except OSError:
            raise self._lost("was removed") from None
        if self._file is not None:
            before = os.fstat(self._file.fileno())
            if (now.st_dev, now.st_ino) != (before.st_dev, before.st_ino):
                raise self._lost("was replaced by another file")
        if now.st_size < self.num_bytes:
            raise self._lost("became shorter")
        return now.st_size

    def _lost(self, what: str) -> BundleError:
        return BundleError(f"{self.path} {what} while it was followed", remedy="follow the new bundle in a new run")
