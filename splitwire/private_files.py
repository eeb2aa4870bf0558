"""Files that only their owner may read, written whole or not at all.

Invariants: folders are made 0700 and files 0600; `write_private_file` never overwrites; `replace_file` puts the new
content in place by rename after it has reached the disk, so that a reader sees the old or the new file, never a part.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from splitwire.errors import PkiError

_FOLDER_MODE = 0o700
_FILE_MODE = 0o600


def make_private_folder(folder: Path) -> None:
    """Makes the folder 0700; one that exists is used as it is."""
    try:
        folder.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
    except OSError as error:
        raise PkiError(f"folder {folder} cannot be made: {error.strerror}", remedy="choose another folder") from None


def write_private_file(path: Path, content: bytes) -> None:
    """Writes a new file 0600; PkiError when it exists or cannot be written."""
    try:
        create_file(path, content, mode=_FILE_MODE)
    except FileExistsError:
        raise PkiError(f"{path} exists already and is not overwritten", remedy="choose a new folder") from None
    except OSError as error:
        raise PkiError(
            f"{path} cannot be written: {error.strerror}", remedy="check the folder, its owner and the disk"
        ) from None


def create_file(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Writes a new file, and takes it away when it cannot be written whole. OSError passes through; it is a
    FileExistsError when there is one.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        _write_and_sync(descriptor, content)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def replace_private_file(path: Path, content: bytes) -> None:
    """Replaces a file atomically; the new one is 0600."""
    replace_file(path, content, mode=_FILE_MODE)


def replace_file(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Writes beside the target, syncs, renames over it, and syncs the folder. OSError passes through."""
    with file_beside(path) as beside:
        beside.touch(mode, exist_ok=False)
        beside.write_bytes(content)


@contextmanager
def file_beside(path: Path) -> Iterator[Path]:
    """A new name beside the target. The file that the block makes there is synced and renamed over the target when the
    block ends well, and removed when it does not. OSError passes through.
    """
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield beside
        _sync(beside, os.O_RDONLY)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Makes renames in the folder durable."""
    _sync(folder, os.O_RDONLY | os.O_DIRECTORY)


def read_file(path: Path) -> bytes:
    """The file's bytes; PkiError when it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise PkiError(f"{path} cannot be read: {error.strerror}", remedy="check the path") from None


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_and_sync(descriptor: int, content: bytes) -> None:
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
