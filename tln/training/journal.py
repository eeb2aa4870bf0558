"""What a run has sent since its last checkpoint: (step, hop, SHA-256 of the messages), durable before each is sent.

A run that goes on from a checkpoint takes the steps after it again, with the same streams of random numbers. That is
harmless while the bytes are the same, and a leak when they are not: two frames of different content under one noise
differ by the content alone. So a frame whose bytes are not the ones of the first time is refused before it is sent.
They differ when the untrusted node answers otherwise than before, by intent too, or on another build or thread count.

Invariants: an entry has reached the disk before its frame leaves; a line that a crash cut off belongs to a frame that
was not sent. The file tells nothing that the untrusted node does not know; mode 0600 all the same.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from splitwire.errors import RecordingError, StateError
from splitwire.private_files import replace_private_file, sync_folder
from splitwire.v1 import channels_pb2
from tln.exchanges import Route

_FIELDS = 3
_DIGEST_DIGITS = 64

Key = tuple[int, int]
"""(step, hop)."""


class Journal:
    """The journal of one run. `guard` is for Crossing.guards."""

    def __init__(self, path: Path, *, is_void: bool = False) -> None:
        """`is_void`: what was sent before does not count, because all streams are new; `forget` then empties it."""
        self._path = path
        self._sent = {} if is_void else _read(path)
        if not path.exists():
            replace_private_file(path, b"")
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)

    def __len__(self) -> int:
        return len(self._sent)

    def guard(self, route: Route, messages: Sequence[bytes]) -> None:
        """Notes a frame that is about to be sent. StateError when other bytes of its name were sent before."""
        key, digest = (route.step, int(route.hop)), _digest(messages)
        known = self._sent.get(key)
        if known is None:
            self._append(f"{key[0]} {key[1]} {digest}\n")
            self._sent[key] = digest
        elif known != digest:
            raise StateError(
                f"{route} was sent before this run was resumed, and now has other bytes under the same noise",
                remedy="resume on the same build and thread count with the untrusted node's own checkpoint, "
                "or go on with tln train --resume --fresh-noise",
            )

    def forget(self) -> None:
        """Empties the journal: the steps in it will not be taken again, or not with the same streams."""
        os.ftruncate(self._descriptor, 0)
        os.fsync(self._descriptor)
        self._sent.clear()

    def close(self) -> None:
        """Lets go of the file."""
        os.close(self._descriptor)

    def remove(self) -> None:
        """Removes the file of a closed journal."""
        self._path.unlink(missing_ok=True)
        sync_folder(self._path.parent)

    def _append(self, line: str) -> None:
        try:
            os.write(self._descriptor, line.encode("ascii"))
            os.fsync(self._descriptor)
        except OSError as error:
            raise RecordingError(
                f"{self._path} cannot be written: {error.strerror}", remedy="free the disk and use --resume"
            ) from None


def _digest(messages: Sequence[bytes]) -> str:
    digest = hashlib.sha256()
    for message in messages:
        digest.update(len(message).to_bytes(8, "big"))
        digest.update(message)
    return digest.hexdigest()


def _read(path: Path) -> dict[Key, str]:
    """The entries; a line that was cut off is cut away, so that the next one starts afresh."""
    if not path.exists():
        return {}
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        replace_private_file(path, whole)
    return dict(_entry(line, path) for line in whole.decode("ascii", "replace").splitlines())


def _entry(line: str, path: Path) -> tuple[Key, str]:
    fields = line.split(" ")
    numbers = [field for field in fields[:2] if field.isdecimal()]
    if len(fields) != _FIELDS or len(numbers) != 2 or len(fields[2]) != _DIGEST_DIGITS:
        raise RecordingError(f"{path} is damaged", remedy="go on with tln train --resume --fresh-noise")
    hop = int(fields[1])
    if hop not in channels_pb2.Hop.values():
        raise RecordingError(f"{path} is damaged", remedy="go on with tln train --resume --fresh-noise")
    return (int(fields[0]), hop), fields[2]
