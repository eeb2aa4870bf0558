"""A sealed file that grows record by record, survives a crash, and shows when its end is missing.

    magic, u32 length, content key sealed by HPKE to the auditor
    records: u8 kind (0 data, 1 final), u32 length, ChaCha20-Poly1305 ciphertext
    the final record holds the number of data records

The content key is random and used for one file. The nonce of a record is its kind and its number, so records cannot be
changed, moved, repeated or taken out of the middle (SealError); the header is bound as associated data. A file without
its final record reads up to the last whole record and is incomplete. Numbers are little-endian.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from splitwire.endings import ClosesOrAbandons
from splitwire.errors import RecordingError, SealError
from splitwire.sealing import open_sealed, seal

MAX_RECORD_BYTES = 1 << 30

_MAGIC = b"SWSTRM1\n"
_LENGTH = struct.Struct("<I")
_PREFIX = struct.Struct("<BI")
_COUNT = struct.Struct("<Q")
_DATA, _FINAL = 0, 1
_KEY_BYTES = 32
_TAG_BYTES = 16
_MAX_SEALED_KEY_BYTES = 1024


class SealedStreamWriter(ClosesOrAbandons):
    """Appends records to a new file; each is handed to the operating system before `write` returns.

    RecordingError when the file exists or cannot be written. Not thread-safe.
    """

    def __init__(self, path: Path, recipient: X25519PublicKey, purpose: str) -> None:
        key = secrets.token_bytes(_KEY_BYTES)
        sealed_key = seal(key, recipient, purpose)
        header = _MAGIC + _LENGTH.pack(len(sealed_key)) + sealed_key
        self._path = path
        self._cipher = ChaCha20Poly1305(key)
        self._binding = hashlib.sha256(header).digest()
        self._num_records = 0
        self._file: BinaryIO | None = None
        self._file = self._open()
        self._append(header)

    def write(self, plaintext: bytes) -> None:
        """Appends one record."""
        if len(plaintext) > MAX_RECORD_BYTES:
            raise RecordingError(f"a record of {len(plaintext)} bytes is too long", remedy="use smaller batches")
        self._append(self._record(_DATA, self._num_records, plaintext))
        self._num_records += 1

    def close(self) -> None:
        """Writes the final record and syncs; does nothing when closed already."""
        if self._file is None:
            return
        self._append(self._record(_FINAL, self._num_records, _COUNT.pack(self._num_records)))
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._failure(error) from None
        self.abandon()

    def abandon(self) -> None:
        """Closes the file without its final record: it stays readable and incomplete."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # on a full disk; the failure to write was told by then
                self._file.close()
            self._file = None

    def _open(self) -> BinaryIO:
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise self._failure(error) from None
        return os.fdopen(descriptor, "wb")

    def _record(self, kind: int, number: int, plaintext: bytes) -> bytes:
        ciphertext = self._cipher.encrypt(_nonce(kind, number), plaintext, self._binding)
        return _PREFIX.pack(kind, len(ciphertext)) + ciphertext

    def _append(self, data: bytes) -> None:
        if self._file is None:
            raise RecordingError(f"{self._path} is closed", remedy="write before closing")
        try:
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            raise self._failure(error) from None

    def _failure(self, error: OSError) -> RecordingError:
        return RecordingError(
            f"{self._path} cannot be written: {error.strerror}", remedy="free space or choose a new folder"
        )


@dataclass(frozen=True)
class SealedRecord:
    """One opened record, and where it lies (for `SealedStream.read`)."""

    number: int
    offset: int
    plaintext: bytes

    @property
    def end(self) -> int:
        """Where the next record begins."""
        return self.offset + _PREFIX.size + len(self.plaintext) + _TAG_BYTES


class SealedStream:
    """Reads a sealed file. `is_complete` is known once `records` has run to its end."""

    def __init__(self, path: Path, key: X25519PrivateKey, purpose: str) -> None:
        self._path = path
        self.is_complete = False
        with self._open() as file:
            header = _read_header(file, path)
            self._start = file.tell()
        sealed_key = header[len(_MAGIC) + _LENGTH.size :]
        self._cipher = ChaCha20Poly1305(open_sealed(sealed_key, key, purpose))
        self._binding = hashlib.sha256(header).digest()

    def records(self, after: SealedRecord | None = None) -> Iterator[SealedRecord]:
        """All whole records in order, or those that follow one. SealError when one was changed or something follows
        the final one.
        """
        with self._open() as file:
            file.seek(self._start if after is None else after.end)
            number = 0 if after is None else after.number + 1
            while (found := self._next(file, number)) is not None:
                kind, record = found
                if kind == _FINAL:
                    self._check_end(file, record, number)
                    self.is_complete = True
                    return
                yield record
                number += 1

    def read(self, number: int, offset: int) -> bytes:
        """The plaintext of a record that `records` gave, read again from the file."""
        with self._open() as file:
            file.seek(offset)
            found = self._next(file, number)
        if found is None:
            raise SealError(f"{self._path} became shorter while it was read", remedy="restore the file")
        return found[1].plaintext

    def _next(self, file: BinaryIO, number: int) -> tuple[int, SealedRecord] | None:
        offset = file.tell()
        prefix = file.read(_PREFIX.size)
        if len(prefix) < _PREFIX.size:
            return None
        kind, length = _PREFIX.unpack(prefix)
        if kind not in (_DATA, _FINAL) or length > MAX_RECORD_BYTES + _TAG_BYTES:
            raise self._changed(number)
        ciphertext = file.read(length)
        if len(ciphertext) < length:
            return None
        try:
            plaintext = self._cipher.decrypt(_nonce(kind, number), ciphertext, self._binding)
        except InvalidTag:
            raise self._changed(number) from None
        return kind, SealedRecord(number, offset, plaintext)

    def _check_end(self, file: BinaryIO, record: SealedRecord, number: int) -> None:
        if record.plaintext != _COUNT.pack(number) or file.read(1):
            raise self._changed(number)

    def _changed(self, number: int) -> SealError:
        return SealError(f"record {number} of {self._path} was changed", remedy="restore the file from its writer")

    def _open(self) -> BinaryIO:
        try:
            return self._path.open("rb")
        except OSError as error:
            raise SealError(f"{self._path} cannot be read: {error.strerror}", remedy="check the path") from None


def _read_header(file: BinaryIO, path: Path) -> bytes:
    start = file.read(len(_MAGIC) + _LENGTH.size)
    if len(start) < len(_MAGIC) + _LENGTH.size or not start.startswith(_MAGIC):
        raise SealError(f"{path} is not a sealed file", remedy="give the truth.sealed of the trusted node")
    (length,) = _LENGTH.unpack(start[len(_MAGIC) :])
    sealed_key = file.read(min(length, _MAX_SEALED_KEY_BYTES))
    if len(sealed_key) != length:
        raise SealError(f"{path} ends within its header", remedy="restore the file from its writer")
    return start + sealed_key


def _nonce(kind: int, number: int) -> bytes:
    return struct.pack("<IQ", kind, number)
