"""Checkpoints of sessions on this node's disk: one safetensors file a label, in a folder a peer.

A file is written beside its place, flushed and renamed, so that a crash leaves the old one or the new one. The
stack's facts travel in the file's metadata and are compared by the stack when it is loaded. Peers choose labels
from a small alphabet; the folder's name is a hash of the peer's, so no name of a peer's choosing becomes a path.
Never pickle.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from splitwire.errors import HandshakeError, LimitError, SettingsError, StateError
from splitwire.settings import canonical_json
from ucn.handshake import check_label
from ucn.stacks.base import StackState

_FORMAT = "splitwire-checkpoint-1"
"""Key of the stack's facts in the file's metadata."""
_SUFFIX = ".safetensors"


@dataclass(frozen=True)
class SavedState:
    """Tensors and facts of a checkpoint, and the SHA-256 hex of its file, as `save` gave it."""

    tensors: Mapping[str, torch.Tensor]
    facts: Mapping[str, Any]
    digest: str


class CheckpointStore:
    """The folder of checkpoints; None refuses all of them."""

    def __init__(self, folder: Path | None, max_per_peer: int) -> None:
        if folder is not None:
            _make_writable(folder)
        self._folder = folder
        self._max_per_peer = max_per_peer

    def save(self, owner: str, label: str, state: StackState) -> str:
        """Writes a checkpoint in place of one with the same label; SHA-256 hex of the file."""
        path = self._path(owner, label)
        if not path.exists() and sum(1 for _ in path.parent.glob(f"*{_SUFFIX}")) >= self._max_per_peer:
            raise LimitError(
                f"{self._max_per_peer} checkpoints are kept, the limit",
                remedy="use one of their labels again, or raise limits.max_checkpoints_per_peer",
            )
        metadata = {_FORMAT: canonical_json(state.facts).decode("utf-8")}
        partial = path.with_suffix(".partial")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            save_file(state.tensors, partial, metadata)
            return _publish(partial, path)
        except (OSError, SafetensorError):
            with contextlib.suppress(OSError):
                partial.unlink()
            raise LimitError(
                f"checkpoint {label} cannot be written on the untrusted node", remedy="have its disk checked there"
            ) from None

    def drop(self, owner: str, label: str) -> None:
        """Removes a checkpoint; one that is not there is none the less gone."""
        path = self._path(owner, label)
        try:
            path.unlink(missing_ok=True)
        except OSError:
            raise LimitError(
                f"checkpoint {label} cannot be removed on the untrusted node", remedy="have its disk checked there"
            ) from None

    def load(self, owner: str, label: str) -> SavedState:
        """What a checkpoint holds; HandshakeError when there is none or it is not readable."""
        path = self._path(owner, label)
        try:
            with path.open("rb") as content:
                digest = hashlib.file_digest(content, "sha256").hexdigest()
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
            return SavedState(tensors, json.loads(metadata[_FORMAT]), digest)
        except FileNotFoundError:
            raise HandshakeError(
                f"there is no checkpoint {label} of this peer", remedy="write it first, or start without one"
            ) from None
        except (OSError, SafetensorError, KeyError, ValueError):
            raise HandshakeError(
                f"checkpoint {label} is not readable on the untrusted node", remedy="resume from another one"
            ) from None

    def _path(self, owner: str, label: str) -> Path:
        if self._folder is None:
            raise StateError("this node keeps no checkpoints", remedy="set checkpoint_dir on the untrusted node")
        check_label(label)
        return self._folder / hashlib.sha256(owner.encode()).hexdigest()[:16] / f"{label}{_SUFFIX}"


def _make_writable(folder: Path) -> None:
    """At the start, so that no peer learns after its training that nothing can be kept."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise SettingsError(
            f"checkpoint_dir {folder} cannot be written: {error.strerror}",
            remedy="name a folder of this user, or leave it out to keep no checkpoints",
        ) from None


def _publish(partial: Path, path: Path) -> str:
    with partial.open("rb") as file:
        os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    partial.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return digest
