"""Writes a bundle: wire.mcap while messages come, the signed manifest at the end.

Invariants: the folder is new or empty at the start, so that no bundle is ever reused with other settings; settings and
versions are the first thing in the file, so that a killed bundle still tells them; message bytes are stored as they
crossed; a bundle has a manifest only when everything before it reached the disk. Any failure to write is a
RecordingError, after which the bundle can only be abandoned.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, TypeVar, cast

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from google.protobuf import descriptor_pb2
from mcap.writer import CompressionType, Writer

from splitwire.bundles.manifest import (
    WIRE_FILE,
    FileEntry,
    HopCount,
    Manifest,
    hash_files,
    settings_digest,
    software_versions,
    utc_now,
    write_manifest,
)
from splitwire.bundles.records import ChannelKey, WireRecord, hop_name
from splitwire.endings import ClosesOrAbandons
from splitwire.errors import BundleError, RecordingError
from splitwire.settings import canonical_json
from splitwire.v1 import channels_pb2, stack_pb2

PROFILE = "splitwire"
SETTINGS_METADATA = "splitwire.bundle"
CHUNK_BYTES = 1 << 20
FLUSH_SECONDS = 1.0

_MAX_CHANNELS = (1 << 16) - 1
T = TypeVar("T")


class BundleWriter(ClosesOrAbandons):
    """One bundle being written. Not thread-safe: `Recorder` gives it a thread of its own."""

    def __init__(
        self,
        folder: Path,
        *,
        recorder: str,
        settings: Mapping[str, Any],
        signing_key: Ed25519PrivateKey | None = None,
    ) -> None:
        self.folder = folder
        self._recorder = recorder
        self._settings = dict(settings)
        self._signing_key = signing_key
        self._created = utc_now()
        self._versions = software_versions()
        self._channels: dict[ChannelKey, int] = {}
        self._schemas: dict[str, int] = {}
        self._num_messages: Counter[str] = Counter()
        self._num_bytes: Counter[str] = Counter()
        self._flushed_at = time.monotonic()
        self._failed = False
        head = self._head()
        make_empty_folder(folder)
        self._file = self._guard(lambda: _HashedFile(folder / WIRE_FILE))
        self._mcap = Writer(
            cast("IO[bytes]", self._file), chunk_size=CHUNK_BYTES, compression=CompressionType.NONE, use_statistics=True
        )
        self._guard(lambda: self._start(head))

    def write(self, record: WireRecord) -> None:
        """Appends one message. RecordingError when it cannot be written; BundleError when the record is not valid."""
        self._check_open()
        channel = self._channel(record)
        self._guard(
            lambda: self._mcap.add_message(
                channel, log_time=record.received_ns, data=record.message, publish_time=record.sent_ns
            )
        )
        name = hop_name(record.hop)
        self._num_messages[name] += 1
        self._num_bytes[name] += len(record.message)
        if time.monotonic() - self._flushed_at > FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Hands everything so far to the operating system, so that a kill does not lose it."""
        self._check_open()
        self._guard(self._mcap.flush)
        self._flushed_at = time.monotonic()

    def close(self, num_dropped: int = 0) -> None:
        """Ends wire.mcap, hashes all files of the folder, and writes the manifest. Does nothing when closed already."""
        if self._file.closed:
            return
        self._check_open()
        self._guard(self._mcap.finish)
        self._guard(self._file.sync_and_close)
        self._guard(lambda: write_manifest(self.folder, self._manifest(num_dropped), self._signing_key))

    def abandon(self) -> None:
        """Closes the file without a manifest: the bundle stays incomplete and readable up to its last whole chunk."""
        if not self._failed and not self._file.closed:
            with contextlib.suppress(RecordingError):
                self.flush()
        self._failed = True
        self._file.close()

    def _head(self) -> dict[str, str]:
        try:
            settings = canonical_json(self._settings).decode("utf-8")
        except ValueError as error:
            raise BundleError(f"settings have no canonical form: {error}", remedy="give plain finite values") from None
        return {
            "settings": settings,
            "versions": canonical_json(self._versions).decode("utf-8"),
            "recorder": self._recorder,
            "created": self._created,
        }

    def _start(self, head: dict[str, str]) -> None:
        self._mcap.start(profile=PROFILE)
        self._mcap.add_metadata(SETTINGS_METADATA, head)

    def _channel(self, record: WireRecord) -> int:
        key = ChannelKey.of(record)
        if key in self._channels:
            return self._channels[key]
        try:
            key.check()
        except ValueError as error:
            raise BundleError(
                f"a record is not valid: {error}", remedy="name hop, direction and message kind"
            ) from None
        if len(self._channels) >= _MAX_CHANNELS:
            self._failed = True
            raise RecordingError("wire.mcap cannot hold more sessions", remedy="start a new bundle")
        self._channels[key] = self._guard(lambda: self._register(key))
        return self._channels[key]

    def _register(self, key: ChannelKey) -> int:
        if key.kind not in self._schemas:
            self._schemas[key.kind] = self._mcap.register_schema(
                name=f"splitwire.v1.{key.kind}", encoding="protobuf", data=_descriptors()
            )
        channel: int = self._mcap.register_channel(
            topic=key.topic(), message_encoding="protobuf", schema_id=self._schemas[key.kind], metadata=key.metadata()
        )
        return channel

    def _manifest(self, num_dropped: int) -> Manifest:
        return Manifest(
            recorder=self._recorder,
            created=self._created,
            closed=utc_now(),
            settings=self._settings,
            settings_hash=settings_digest(self._settings),
            versions=self._versions,
            counts={name: HopCount(count, self._num_bytes[name]) for name, count in self._num_messages.items()},
            num_messages=self._num_messages.total(),
            num_bytes=self._num_bytes.total(),
            num_sessions=len({key.session_hash for key in self._channels if key.session_hash}),
            num_dropped=num_dropped,
            files={WIRE_FILE: self._file.entry(), **hash_files(self.folder, skip=frozenset({WIRE_FILE}))},
        )

    def _check_open(self) -> None:
        if self._failed or self._file.closed:
            raise RecordingError(f"bundle {self.folder} is closed or failed before", remedy="start a new bundle")

    def _guard(self, action: Callable[[], T]) -> T:
        try:
            return action()
        except OSError as error:
            self._failed = True
            raise RecordingError(
                f"bundle {self.folder} cannot be written: {error.strerror or type(error).__name__}",
                remedy="free space or choose another disk, then start a new bundle",
            ) from None
        except Exception:
            self._failed = True  # what was half built must not reach the file
            raise


def make_empty_folder(folder: Path) -> None:
    """Makes the folder 0700, or takes an empty one; BundleError when it holds anything."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        used = any(folder.iterdir())
    except OSError as error:
        raise BundleError(f"folder {folder} cannot be made: {error.strerror}", remedy="choose another folder") from None
    if used:
        raise BundleError(f"folder {folder} is not empty", remedy="give a new folder; a bundle is never written over")


def _descriptors() -> bytes:
    """The contract as a FileDescriptorSet: what any MCAP reader needs to decode the messages."""
    files = descriptor_pb2.FileDescriptorSet()
    for module in (channels_pb2, stack_pb2):
        module.DESCRIPTOR.CopyToProto(files.file.add())
    return files.SerializeToString()


class _HashedFile:
    """A new file that is written through, unbuffered, and hashed on the way, so that closing needs no second pass."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._digest = hashlib.sha256()
        self._size = 0
        self.closed = False

    def write(self, data: bytes) -> int:
        rest = memoryview(data)
        while rest:
            written = os.write(self._descriptor, rest)
            self._digest.update(rest[:written])
            self._size += written
            rest = rest[written:]
        return len(data)

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        """Nothing is held back."""

    def sync_and_close(self) -> None:
        os.fsync(self._descriptor)
        self.close()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            os.close(self._descriptor)

    def entry(self) -> FileEntry:
        return FileEntry(self._digest.hexdigest(), self._size)
