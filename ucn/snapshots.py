"""Snapshots of what sessions train, for an auditor: the untrusted node writes down what it could know anyway.

Off by default. A session is snapshotted when it opens and after every so many of its optimizer steps. Its state is
copied on the device's thread and written on another one. Snapshots never hold training up and never end it: when the
disk is too slow they are dropped and counted, and when it fails the session's bundle stays incomplete.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from splitwire.bundles import SnapshotWriter
from splitwire.errors import SplitwireError
from splitwire.logging import get_logger
from splitwire.private_files import make_private_folder
from splitwire.sealing import load_signing_key
from splitwire.v1 import stack_pb2
from ucn.settings import SnapshotSettings
from ucn.stacks.base import Stack, StackState

_log = get_logger("ucn")


class SnapshotStore:
    """All snapshot bundles of the node, written by one thread."""

    def __init__(self, settings: SnapshotSettings, model: Mapping[str, Any]) -> None:
        """`model` is what the manifests tell of how the node loads its model. PkiError for a key that does not load."""
        self._settings = settings
        self._model = dict(model)
        self._key = None if settings.signing_key is None else load_signing_key(settings.signing_key)
        self._pool = ThreadPoolExecutor(1, "snapshots") if settings.every_steps else None
        if settings.folder is not None:
            make_private_folder(settings.folder)

    def open(self, session_hash: str, request: stack_pb2.OpenSessionRequest, stack: Stack) -> SessionSnapshots | None:
        """Snapshots of a session that trains, the first one taken now; None for others. Runs on the device's thread."""
        folder = self._settings.folder
        if self._pool is None or folder is None or not stack.num_trainable_parameters:
            return None
        snapshots = SessionSnapshots(self._settings, self._pool, session_hash)
        snapshots.begin(folder / session_hash, stack, _optimizer(request), {"ucn": {"model": self._model}}, self._key)
        return snapshots

    def shutdown(self) -> None:
        """Waits for what is being written."""
        if self._pool is not None:
            self._pool.shutdown()


class SessionSnapshots:
    """Snapshots of one session. `take` runs on the device's thread, `close` on any."""

    def __init__(self, settings: SnapshotSettings, pool: ThreadPoolExecutor, session_hash: str) -> None:
        self._settings = settings
        self._pool = pool
        self._hash = session_hash
        self._lock = threading.Lock()
        self._pending_bytes = 0
        self._num_steps = 0
        self._num_dropped = 0
        self._writer: SnapshotWriter | None = None

    def begin(
        self,
        folder: Path,
        stack: Stack,
        optimizer: Mapping[str, float],
        settings: Mapping[str, Any],
        key: Ed25519PrivateKey | None,
    ) -> None:
        """Makes the bundle and snapshots the start."""
        try:
            state = stack.state()
            self._writer = SnapshotWriter(
                folder,
                session_hash=self._hash,
                every_steps=self._settings.every_steps,
                stack=state.facts,
                optimizer=optimizer,
                settings=settings,
                signing_key=key,
            )
            self._offer(state, 0)
        except Exception as error:  # noqa: BLE001 - whatever it is, training goes on
            self._give_up(error)

    def take(self, stack: Stack, last_step: int) -> None:
        """Counts an optimizer step of the wire step `last_step`, and snapshots the stack when it is due."""
        self._num_steps += 1
        if self._writer is None or self._num_steps % self._settings.every_steps:
            return
        try:
            self._offer(stack.state(), last_step)
        except Exception as error:  # noqa: BLE001 - whatever it is, training goes on
            self._give_up(error)

    def close(self) -> None:
        """Waits until everything is on disk and completes the bundle. Does nothing after a failure."""
        self._pool.submit(self._finish).result()

    def _offer(self, state: StackState, last_step: int) -> None:
        num_bytes = sum(tensor.nbytes for tensor in state.tensors.values())
        with self._lock:
            if self._pending_bytes and self._pending_bytes + num_bytes > self._settings.max_pending_bytes:
                self._num_dropped += 1
                return
            self._pending_bytes += num_bytes
        self._pool.submit(self._write, state, self._num_steps, last_step, num_bytes)

    def _write(self, state: StackState, optimizer_step: int, last_step: int, num_bytes: int) -> None:
        try:
            if self._writer is not None:
                arrays = {name: tensor.numpy() for name, tensor in state.tensors.items()}
                self._writer.write(arrays, optimizer_step=optimizer_step, last_step=last_step)
        except Exception as error:  # noqa: BLE001 - whatever it is, training goes on
            self._give_up(error)
        finally:
            with self._lock:
                self._pending_bytes -= num_bytes

    def _finish(self) -> None:
        try:
            if self._writer is not None:
                self._writer.close(self._num_dropped)
        except Exception as error:  # noqa: BLE001 - the session is gone either way
            self._give_up(error)
        self._writer = None

    def _give_up(self, error: Exception) -> None:
        self._writer = None
        text = str(error) if isinstance(error, SplitwireError) else type(error).__name__
        _log.error("snapshots_failed", session=self._hash, error=text)


def _optimizer(request: stack_pb2.OpenSessionRequest) -> dict[str, float]:
    names = ("beta1", "beta2", "epsilon", "weight_decay")
    return {name: float(getattr(request.optimizer, name)) for name in names}
