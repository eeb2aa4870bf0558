"""Synthetic bundles with known leaks, written by the same writers as real ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from auditor.calibration.files import Calibration, read_calibration, write_calibration
from auditor.calibration.run import run_calibration
from auditor.plan import Plan
from splitwire.bundles import BundleWriter, TruthRecord, TruthWriter, WireRecord, frame_digest
from splitwire.frames import encode_frame
from splitwire.sealing import load_signing_key, write_audit_keys
from splitwire.v1 import channels_pb2, stack_pb2

SESSION = "5e55107a5e55107a"


@dataclass(frozen=True)
class Recipe:
    """What a synthetic run does. `leak` is how far a row points to its label's code; 0 leaks nothing."""

    frames: int = 120
    rows: int = 16
    real: int = 6
    width: int = 8
    documents: int = 60
    vocabulary: int = 12
    gradient: str = "clip_noise"
    """open: decoys exactly zero; clip_noise: clipped, noised; hidden: real rows and decoys alike; none: no BACKWARD."""
    leak: float = 0.0
    transformer: bool = False
    padding: bool = False
    seed: int = 1
    dropped: int = 0
    session: str = SESSION
    mode: Any = stack_pb2.COMPUTE_MODE_TRAIN
    opening: bytes | None = None
    """In place of the request that opens the session."""
    settings: dict[str, Any] = field(default_factory=lambda: {"program": "synthetic"})


@dataclass(frozen=True)
class Run:
    """Paths of one synthetic run."""

    bundle: Path
    keys: Path

    @property
    def key(self) -> Path:
        return self.keys / "audit.key"

    @property
    def trust(self) -> Path:
        return self.keys / "trust.json"


def _rows(recipe: Recipe, labels: np.ndarray, codes: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    noise = generator.normal(size=(*labels.shape, recipe.width)) / np.sqrt(recipe.width)
    return recipe.leak * codes[labels] + noise


def _gradient(recipe: Recipe, real: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    rows = generator.normal(size=(*real.shape, recipe.width))
    if recipe.gradient == "hidden":
        return rows
    length = 0.005 * np.exp(0.9 * generator.normal(size=real.shape)) * real
    rows *= (length / np.linalg.norm(rows, axis=-1))[..., None]
    if recipe.gradient == "open":
        return rows
    clipped = rows * np.minimum(1, 0.01 / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-12))
    return clipped + 0.0035 * generator.normal(size=rows.shape)


def _header(recipe: Recipe, hop: Any, step: int, lengths: list[int]) -> stack_pb2.FrameHeader:
    header = stack_pb2.FrameHeader(hop=hop, step=step, dtype=stack_pb2.WIRE_DTYPE_FP32)
    if hop == channels_pb2.HOP_FORWARD:
        header.compute_mode = recipe.mode
        if recipe.padding:
            header.row_lengths[:] = lengths
            header.padding_side = stack_pb2.PADDING_SIDE_RIGHT
    return header


def _write(recipe: Recipe, writer: BundleWriter, header: stack_pb2.FrameHeader, rows: np.ndarray, step: int) -> str:
    messages = list(encode_frame(header, torch.from_numpy(rows.astype(np.float32))))
    for message in messages:
        writer.write(WireRecord(header.hop, "request", recipe.session, message, step, step, "ExchangeRequest"))
    return frame_digest(messages)


def _open_session(writer: BundleWriter, recipe: Recipe) -> None:
    kind = stack_pb2.STACK_KIND_TRANSFORMER if recipe.transformer else stack_pb2.STACK_KIND_GRAM
    message = recipe.opening
    if message is None:
        message = stack_pb2.OpenSessionRequest(protocol_version=1, stack_kind=kind).SerializeToString()
    writer.write(WireRecord(channels_pb2.HOP_CONTROL, "request", recipe.session, message, 0, 0, "OpenSessionRequest"))


@dataclass
class _Maker:
    """Draws gram frames [1, rows] with real rows at random places, or batches of whole real and decoy sequences."""

    recipe: Recipe

    def __post_init__(self) -> None:
        self.generator = np.random.default_rng(self.recipe.seed)
        shape = (self.recipe.vocabulary, self.recipe.width)
        codes = np.random.default_rng(99).normal(size=shape)
        self.codes = codes / np.linalg.norm(codes, axis=1, keepdims=True)
        weights = 1 / np.arange(1, self.recipe.vocabulary + 1)
        self.weights = weights / weights.sum()

    def frame(self, step: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Labels, real, document and rows of one step."""
        recipe, generator = self.recipe, self.generator
        shape = (4, recipe.rows) if recipe.transformer else (1, recipe.rows)
        labels = generator.choice(recipe.vocabulary, size=shape, p=self.weights).astype(np.int32)
        document = np.full(shape, step % recipe.documents, dtype=np.int32)
        if recipe.transformer:
            real = np.zeros(shape, dtype=bool)
            real[generator.permutation(4)[:2]] = True
            document += np.arange(4, dtype=np.int32)[:, None] * 7
            document %= recipe.documents
        else:
            real = (generator.permutation(recipe.rows) < recipe.real)[None]
            document[~real] = generator.integers(0, recipe.documents, int((~real).sum()))
        return labels, real, document, _rows(recipe, labels, self.codes, generator)


@pytest.fixture(scope="session")
def make_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """make_run(frames=..., gradient=...) -> a signed bundle with sealed truth and the keys that open it."""
    keys = tmp_path_factory.mktemp("keys") / "audit-keys"
    write_audit_keys(keys)

    def make(*, complete: bool = True, truth_gap: int = 0, with_truth: bool = True, **changes: Any) -> Run:
        recipe = Recipe(**changes)
        folder = tmp_path_factory.mktemp("run") / "bundle"
        signing = load_signing_key(keys / "tln-recorder.key")
        writer = BundleWriter(folder, recorder="tln", settings=recipe.settings, signing_key=signing)
        truth_path = folder / "truth.sealed" if with_truth else folder.parent / "elsewhere.sealed"
        with TruthWriter(truth_path, keys / "audit.pub") as truth:
            truth.add_documents([{"id": f"doc-{i}", "member": i % 5 != 0} for i in range(recipe.documents)])
            _open_session(writer, recipe)
            _write_steps(recipe, writer, truth, truth_gap)
        if complete:
            writer.close(num_dropped=recipe.dropped)
        else:
            writer.abandon()
        return Run(folder, keys)

    return make


@pytest.fixture
def calibration_of(tmp_path: Path) -> Callable[[Run, Plan], Calibration]:
    """calibration_of(run, plan) -> the calibration that `auditor calibrate` writes for it."""

    def make(run: Run, plan: Plan) -> Calibration:
        tree = run_calibration([run.bundle], key=run.key, plan=plan)
        return read_calibration(write_calibration(tree, tmp_path / "calibration")[0])

    return make


def _write_steps(recipe: Recipe, writer: BundleWriter, truth: TruthWriter, truth_gap: int) -> None:
    maker = _Maker(recipe)
    for step in range(1, recipe.frames + 1):
        labels, real, document, rows = maker.frame(step)
        lengths = [recipe.rows - 3] * len(labels)
        digest = _write(recipe, writer, _header(recipe, channels_pb2.HOP_FORWARD, step, lengths), rows, step)
        if recipe.gradient != "none":
            gradient = _gradient(recipe, real, maker.generator)
            _write(recipe, writer, _header(recipe, channels_pb2.HOP_BACKWARD, step, lengths), gradient, step)
        if step > truth_gap:
            order = np.zeros_like(labels)
            truth.add(TruthRecord(recipe.session, step, digest, "train", real, order, labels, labels, document))
