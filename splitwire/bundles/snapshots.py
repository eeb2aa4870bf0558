"""Snapshot bundles: what an untrusted node trained in one session, written down every few optimizer steps.

    FOLDER/step-00000010.safetensors   weights (`parameter.<name>`) and AdamW moments (`optimizer.<moment>.<name>`)
    FOLDER/manifest.json               written last; a bundle without it is incomplete
    FOLDER/manifest.sig                with a signing key

One folder a session. A file names its session, its count of optimizer steps and the step of the wire at which it was
taken, so it joins with the wire bundle of the same session hash. Files are written beside and renamed. Never pickle;
tensors are float32 numpy arrays.

The node that writes it is the untrusted one: a bundle tells what such a node could know, and proves nothing about what
it did.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pydantic
import safetensors.numpy
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from safetensors import SafetensorError, safe_open

from splitwire.bundles.manifest import (
    MANIFEST_FILE,
    WIRE_FILE,
    FileEntry,
    settings_digest,
    software_versions,
    utc_now,
    write_manifest,
)
from splitwire.bundles.writer import make_empty_folder
from splitwire.errors import BundleError, RecordingError
from splitwire.private_files import file_beside

SNAPSHOT_FORMAT = "splitwire-snapshots"
SNAPSHOT_VERSION = 1

_FILE = re.compile(r"step-\d{8}\.safetensors")
_METADATA = ("session_hash", "optimizer_step", "last_step")
_END_OF_STEPS = 1 << 63
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class SnapshotManifest:
    """What a node says of the snapshots of one session.

    `stack` holds the facts of the computation (kind, layer range, fingerprint, adapters or gram shape), `optimizer` the
    AdamW settings of the session, `settings` how the node loads its model.
    """

    session_hash: str
    created: str
    closed: str
    every_steps: int
    stack: dict[str, Any]
    optimizer: dict[str, float]
    settings: dict[str, Any]
    settings_hash: str
    versions: dict[str, str]
    num_snapshots: int
    num_dropped: int
    files: dict[str, FileEntry]
    format: str = SNAPSHOT_FORMAT
    format_version: int = SNAPSHOT_VERSION


@dataclass(frozen=True)
class SnapshotEntry:
    """One snapshot: optimizer steps of the session so far, and the wire step of the last one (0 at the start)."""

    path: Path
    optimizer_step: int
    last_step: int


class SnapshotWriter:
    """Writes the bundle of one session into a new folder. Not thread-safe. RecordingError when it cannot be written."""

    def __init__(
        self,
        folder: Path,
        *,
        session_hash: str,
        every_steps: int,
        stack: Mapping[str, Any],
        optimizer: Mapping[str, float],
        settings: Mapping[str, Any],
        signing_key: Ed25519PrivateKey | None = None,
    ) -> None:
        make_empty_folder(folder)
        self.folder = folder
        self._session_hash = session_hash
        self._head = {
            "every_steps": every_steps,
            "stack": dict(stack),
            "optimizer": dict(optimizer),
            "settings": dict(settings),
        }
        self._signing_key = signing_key
        self._created = utc_now()
        self._files: dict[str, FileEntry] = {}

    def write(self, tensors: Mapping[str, Array], *, optimizer_step: int, last_step: int) -> None:
        """Adds one snapshot, whole or not at all. Takes no memory beside the tensors."""
        metadata = {
            "session_hash": self._session_hash,
            "optimizer_step": str(optimizer_step),
            "last_step": str(last_step),
        }
        arrays = {name: np.asarray(tensor, order="C") for name, tensor in tensors.items()}
        path = self.folder / f"step-{optimizer_step:08d}.safetensors"
        try:
            with file_beside(path) as beside:
                safetensors.numpy.save_file(arrays, beside, metadata)
                beside.chmod(0o600)
                with beside.open("rb") as stream:
                    digest = hashlib.file_digest(stream, "sha256").hexdigest()
        except (OSError, SafetensorError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise RecordingError(
                f"snapshot {path.name} cannot be written to {self.folder}: {why}", remedy="free the disk"
            ) from None
        self._files[path.name] = FileEntry(digest, path.stat().st_size)

    def close(self, num_dropped: int = 0) -> None:
        """Writes the manifest; from then on the bundle is complete."""
        manifest = SnapshotManifest(
            session_hash=self._session_hash,
            created=self._created,
            closed=utc_now(),
            settings_hash=settings_digest(self._head["settings"]),  # type: ignore[arg-type]
            versions=software_versions(),
            num_snapshots=len(self._files),
            num_dropped=num_dropped,
            files=self._files,
            **self._head,  # type: ignore[arg-type]
        )
        try:
            write_manifest(self.folder, manifest, self._signing_key)
        except OSError as error:
            raise RecordingError(
                f"the manifest of {self.folder} cannot be written: {error.strerror}", remedy="free the disk"
            ) from None


@dataclass(eq=False)
class SnapshotBundle:
    """An opened snapshot bundle, complete or cut off. `entries` are in the order of training."""

    folder: Path
    session_hash: str
    entries: tuple[SnapshotEntry, ...]
    head: SnapshotManifest | None = field(repr=False)
    problems: list[str] = field(default_factory=list, repr=False)

    @property
    def is_complete(self) -> bool:
        """Whether its writer closed it."""
        return self.head is not None

    @property
    def manifest(self) -> dict[str, Any] | None:
        """The manifest as plain values, as a wire bundle gives its own."""
        return None if self.head is None else dataclasses.asdict(self.head)

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the node, and `snapshot_every`; empty of a bundle that was cut off."""
        return {} if self.head is None else {**self.head.settings, "snapshot_every": self.head.every_steps}

    @property
    def versions(self) -> dict[str, str]:
        """Software versions of the node; empty of a bundle that was cut off."""
        return {} if self.head is None else self.head.versions

    @property
    def recorder(self) -> str:
        """Who wrote it."""
        return "ucn"

    def sessions(self) -> list[str]:
        """The one session."""
        return [self.session_hash]

    def messages(self, hop: Any = None, session: str | None = None) -> Iterator[Any]:  # noqa: ARG002 - as a wire bundle
        """None: no message of the wire is in it."""
        return iter(())

    def frames(self, hop: Any, session: str | None = None) -> Iterator[Any]:  # noqa: ARG002 - as a wire bundle
        """None."""
        return iter(())

    def tensors(self, entry: SnapshotEntry) -> SnapshotTensors:
        """The tensors of one snapshot, read when they are asked for. BundleError when the file cannot be read."""
        return SnapshotTensors(entry.path)


class SnapshotTensors(Mapping[str, Array]):
    """The tensors of one file by name. Each is read when it is asked for, and none is kept: a snapshot may be larger
    than what an audit can hold. BundleError when the file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._reading():
            file: Any = safe_open(path, framework="np")
            self.shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        self._file = file

    def __getitem__(self, name: str) -> Array:
        if name not in self.shapes:
            raise KeyError(name)
        with self._reading():
            return np.asarray(self._file.get_tensor(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (OSError, SafetensorError, KeyError, ValueError):
            raise _unreadable(self._path) from None


def is_snapshot_bundle(folder: Path) -> bool:
    """Whether the folder holds snapshots of a session and no wire."""
    return folder.is_dir() and not (folder / WIRE_FILE).exists() and bool(_snapshot_files(folder))


def open_snapshots(folder: Path) -> SnapshotBundle:
    """Opens a snapshot bundle. BundleError when the folder does not hold one session's snapshots."""
    entries = []
    hashes: set[str] = set()
    for path in _snapshot_files(folder):
        session, optimizer_step, last_step = _metadata_of(path)
        hashes.add(session)
        entries.append(SnapshotEntry(path, optimizer_step, last_step))
    manifest = read_snapshot_manifest(folder)
    if manifest is not None:
        hashes.add(manifest.session_hash)
    if len(hashes) != 1:
        raise BundleError(
            f"{folder} holds snapshots of {len(hashes)} sessions", remedy="give the folder of one session's snapshots"
        )
    ordered = tuple(sorted(entries, key=lambda entry: entry.optimizer_step))
    return SnapshotBundle(folder, hashes.pop(), ordered, manifest)


def read_snapshot_manifest(folder: Path) -> SnapshotManifest | None:
    """The manifest; None when there is none. BundleError when it is not one of this version."""
    path = folder / MANIFEST_FILE
    if not path.exists():
        return None
    try:
        tree = json.loads(path.read_bytes())
        if (tree["format"], tree["format_version"]) != (SNAPSHOT_FORMAT, SNAPSHOT_VERSION):
            raise BundleError(
                f"{path} is version {tree['format_version']!r} of {tree['format']!r}",
                remedy=f"use the splitwire that wrote it; this one reads version {SNAPSHOT_VERSION}",
            )
        return pydantic.TypeAdapter(SnapshotManifest).validate_python(tree, extra="forbid")
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise BundleError(f"{path} is not the manifest of snapshots", remedy="restore it, or snapshot again") from None


def _snapshot_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("step-*.safetensors") if _FILE.fullmatch(path.name))


def _metadata_of(path: Path) -> tuple[str, int, int]:
    try:
        with safe_open(path, framework="np") as file:
            found = file.metadata() or {}
        session, *steps = (found[name] for name in _METADATA)
        optimizer_step, last_step = (int(step) for step in steps)
    except (OSError, SafetensorError, KeyError, ValueError):
        raise _unreadable(path) from None
    if not (0 <= optimizer_step < _END_OF_STEPS and 0 <= last_step < _END_OF_STEPS):
        raise _unreadable(path)
    return session, optimizer_step, last_step


def _unreadable(path: Path) -> BundleError:
    return BundleError(f"{path} is not a snapshot", remedy="restore it from the node that wrote it, or snapshot again")
