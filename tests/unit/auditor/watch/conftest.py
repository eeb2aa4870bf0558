"""A recording that grows step by step, with known leaks, written by the same writers as a real one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from auditor.watch import Watcher, WatchSettings
from splitwire.bundles import BundleWriter, TruthRecord, TruthWriter, WireRecord, frame_digest
from splitwire.frames import encode_frame
from splitwire.sealing import write_audit_keys
from splitwire.v1 import channels_pb2, stack_pb2

SESSION = "5e55107a5e55107a"
DOCUMENTS = 40
VOCABULARY = 8


@dataclass
class Growing:
    """Gram frames [1, rows, width]. Real rows are at random places; all rows are fresh unless `resent`.

    gradient: open (decoys exactly zero), clip_noise (norms differ), hidden (norms alike), none.
    """

    folder: Path
    keys: Path
    gradient: str = "hidden"
    rows: int = 24
    real: int = 10
    width: int = 12
    leak: float = 0.0
    resent: float = 0.0
    real_length: float = 1.0
    dtype: int = stack_pb2.WIRE_DTYPE_FP32
    transformer: bool = False
    step: int = 0
    digest: str = ""
    generator: np.random.Generator = field(default_factory=lambda: np.random.default_rng(5))

    def __post_init__(self) -> None:
        self.writer = BundleWriter(self.folder, recorder="tap", settings={})
        self.truth_file = self.folder.parent / f"{self.folder.name}.sealed"
        self.truth = TruthWriter(self.truth_file, self.keys / "audit.pub")
        self.truth.add_documents([{"id": f"doc-{n}", "member": True} for n in range(DOCUMENTS)])
        kind = stack_pb2.STACK_KIND_TRANSFORMER if self.transformer else stack_pb2.STACK_KIND_GRAM
        message = stack_pb2.OpenSessionRequest(protocol_version=1, stack_kind=kind).SerializeToString()
        self.writer.write(WireRecord(channels_pb2.HOP_CONTROL, "request", SESSION, message, 0, 0, "OpenSessionRequest"))
        codes = np.random.default_rng(9).normal(size=(VOCABULARY, self.width))
        self.codes = codes / np.linalg.norm(codes, axis=1, keepdims=True)
        self.pool: list[np.ndarray] = []

    def steps(self, count: int) -> None:
        """Writes that many steps and hands them to the operating system."""
        for _ in range(count):
            self._one()
        self.writer.flush()

    def close(self) -> None:
        """As a recorder that is told to stop."""
        self.truth.close()
        self.writer.close()

    def abandon(self) -> None:
        """As a recorder that is killed."""
        self.truth.abandon()
        self.writer.abandon()

    def _one(self) -> None:
        self.step += 1
        generator = self.generator
        labels = generator.integers(0, VOCABULARY, (1, self.rows)).astype(np.int32)
        real = (generator.permutation(self.rows) < self.real)[None]
        document = np.where(real, self.step % DOCUMENTS, generator.integers(0, DOCUMENTS, real.shape)).astype(np.int32)
        rows = generator.normal(size=(1, self.rows, self.width)) + self.leak * self.codes[labels]
        rows[real] *= self.real_length
        self._resend(rows, real)
        digest = self._write(channels_pb2.HOP_FORWARD, rows)
        order = np.zeros_like(labels)
        self.truth.add(
            TruthRecord(SESSION, self.step, self.digest or digest, "train", real, order, labels, labels, document)
        )
        if self.gradient != "none":
            self._write(channels_pb2.HOP_BACKWARD, self._gradient(real))

    def _resend(self, rows: np.ndarray, real: np.ndarray) -> None:
        """Puts earlier rows in the place of a share of the decoys, then rotates the frame."""
        for place in np.flatnonzero(~real[0]):
            if self.pool and self.generator.random() < self.resent:
                rows[0, place] = self.pool[self.generator.integers(len(self.pool))]
        self.pool = [*self.pool, *rows[0, real[0]].copy()][-400:]
        rotation = np.linalg.qr(self.generator.normal(size=(self.width, self.width)))[0]
        if not self.leak:
            rows[0] = rows[0] @ rotation

    def _gradient(self, real: np.ndarray) -> np.ndarray:
        rows = self.generator.normal(size=(*real.shape, self.width))
        if self.gradient == "hidden":
            return rows
        signal = 3.0 * rows * real[..., None]
        return signal if self.gradient == "open" else signal + self.generator.normal(size=rows.shape)

    def _write(self, hop: Any, rows: np.ndarray) -> str:
        header = stack_pb2.FrameHeader(hop=hop, step=self.step, dtype=self.dtype)
        if hop == channels_pb2.HOP_FORWARD:
            header.compute_mode = stack_pb2.COMPUTE_MODE_TRAIN
        messages = list(encode_frame(header, torch.from_numpy(rows.astype(np.float32))))
        for message in messages:
            self.writer.write(WireRecord(hop, "request", SESSION, message, 1, 1, "ExchangeRequest"))
        return frame_digest(messages)


@pytest.fixture(scope="session")
def audit_keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keys of one auditor."""
    keys = tmp_path_factory.mktemp("keys") / "audit"
    write_audit_keys(keys)
    return keys


@pytest.fixture
def record(audit_keys: Path, tmp_path: Path) -> Iterator[Callable[..., Growing]]:
    """record(**recipe) -> a recording that has begun."""
    started: list[Growing] = []

    def begin(**recipe: Any) -> Growing:
        started.append(Growing(tmp_path / f"bundle{len(started)}", audit_keys, **recipe))
        return started[-1]

    yield begin
    for recording in started:
        recording.abandon()


@pytest.fixture
def watch() -> Iterator[Callable[..., Watcher]]:
    """watch(recording, with_truth=True, **settings) -> a watcher of it; its lines are in `lines`."""
    watchers: list[Watcher] = []

    def begin(
        recording: Growing, *, with_truth: bool = True, lines: list[str] | None = None, **settings: Any
    ) -> Watcher:
        options = {"truth": recording.truth_file, "key": recording.keys / "audit.key"} if with_truth else {}
        told = [] if lines is None else lines
        chosen = WatchSettings(bundle=recording.folder, **{"poll_seconds": 0.01} | options | settings)
        watchers.append(Watcher(chosen, lambda line, _failed: told.append(line)))
        return watchers[-1]

    yield begin
    for watcher in watchers:
        watcher.close()


def catch_up(watcher: Watcher) -> set[str]:
    """Reads all that was written; the detectors that found a leak."""
    while watcher.turn():
        pass
    return {reading.detector for reading in watcher.state().readings if reading.leak}
