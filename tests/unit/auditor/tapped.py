"""Synthetic bundles of the tap, passive and active, with times and reactions that are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from auditor.perturbation import Schedule, perturbation_of
from splitwire.bundles import BundleWriter, TruthRecord, TruthWriter, WireRecord, frame_digest
from splitwire.frames import encode_frame
from splitwire.sealing import load_signing_key, write_audit_keys
from splitwire.v1 import channels_pb2, stack_pb2

SESSION = "7a9b07a9b07a9b07"
HOPS = (
    (channels_pb2.HOP_FORWARD, "request"),
    (channels_pb2.HOP_RETURN, "response"),
    (channels_pb2.HOP_BACKWARD, "request"),
    (channels_pb2.HOP_INPUT_GRADIENT, "response"),
)
Delay = Callable[[int, int], float]


@dataclass(frozen=True)
class Tapped:
    """What a synthetic run does. Times are in microseconds."""

    frames: int = 360
    documents: int = 90
    rows: int = 10
    width: int = 6
    recorder: str = "tap"
    settings: dict[str, Any] = field(default_factory=dict)
    loss_delay: Delay = lambda _document, _real: 0.0
    """Added to the time between RETURN and BACKWARD, by document and number of real rows."""
    header_tells: bool = False
    """Row lengths in the header are the number of real rows (transformer batches)."""
    reaction: float = 0.0
    """How far the gradient of a real row leans along what was added, in deviations of its noise."""
    decoys_zero: bool = False
    has_decoys: bool = True
    hops: tuple[tuple[Any, str], ...] = HOPS
    """What is in the bundle."""
    model: stack_pb2.ModelIdentity | None = None
    """What the opening of the session says of the model."""
    vocabulary: int = 12
    leak: float = 0.0
    """How far the rows of every hop but the last lean to the code of their token, in deviations of their noise."""
    seed: int = 3


def write_tapped(folder: Path, run: Tapped) -> tuple[Path, Path]:
    """Writes the bundle with its truth; the bundle and the audit key."""
    write_audit_keys(folder / "keys")
    return write_bundle(folder / "bundle", run, folder / "keys"), folder / "keys" / "audit.key"


def write_bundle(bundle: Path, run: Tapped, keys: Path) -> Path:
    """The bundle with its truth, signed by the tap and sealed for keys that are there."""
    signing_key = load_signing_key(keys / "tap-recorder.key")
    writer = BundleWriter(bundle, recorder=run.recorder, settings=run.settings, signing_key=signing_key)
    with TruthWriter(bundle / "truth.sealed", keys / "audit.pub") as truth:
        truth.add_documents([{"id": f"doc-{n}", "member": True} for n in range(run.documents)])
        _write(run, writer, truth)
    writer.close()
    return bundle


def _write(run: Tapped, writer: BundleWriter, truth: TruthWriter) -> None:
    generator = np.random.default_rng(run.seed)
    kind = stack_pb2.STACK_KIND_TRANSFORMER if run.header_tells else stack_pb2.STACK_KIND_GRAM
    opening = stack_pb2.OpenSessionRequest(protocol_version=1, stack_kind=kind, model=run.model).SerializeToString()
    writer.write(WireRecord(channels_pb2.HOP_CONTROL, "request", SESSION, opening, 0, 0, "OpenSessionRequest"))
    schedule, clock = Schedule(perturbation_of(run.settings)), 1e6
    for step in range(1, run.frames + 1):
        document, num_real = step % run.documents, int(generator.integers(3, run.rows - 1))
        num_real = num_real if run.has_decoys else run.rows
        places = np.arange(run.rows) if run.header_tells else generator.permutation(run.rows)
        real = (places < num_real)[None]
        tokens = generator.integers(0, run.vocabulary, (1, run.rows)).astype(np.int32)
        tensors = _tensors(run, schedule, step, real, tokens, generator)
        for (hop, direction), rows in zip(HOPS, tensors, strict=True):
            if (hop, direction) not in run.hops:
                continue
            clock += 800 * np.exp(0.2 * generator.normal())
            if hop == channels_pb2.HOP_BACKWARD:
                clock += run.loss_delay(document, num_real)
            header = stack_pb2.FrameHeader(hop=hop, step=step, dtype=stack_pb2.WIRE_DTYPE_FP32)
            if hop == channels_pb2.HOP_FORWARD:
                header.compute_mode = stack_pb2.COMPUTE_MODE_TRAIN
                if run.header_tells:
                    header.row_lengths[:] = [num_real]
                    header.padding_side = stack_pb2.PADDING_SIDE_RIGHT
            messages = list(encode_frame(header, torch.from_numpy(rows.astype(np.float32))))
            kind_name = "ExchangeRequest" if direction == "request" else "ExchangeResponse"
            for message in messages:
                sent, clock = round(clock * 1e3), clock + 20 * np.exp(0.2 * generator.normal())
                writer.write(WireRecord(hop, direction, SESSION, message, sent, round(clock * 1e3), kind_name))
            if hop == channels_pb2.HOP_FORWARD:
                owner, order = np.full(real.shape, document, np.int32), np.arange(run.rows, dtype=np.int32)[None]
                digest = frame_digest(messages)
                truth.add(TruthRecord(SESSION, step, digest, "train", real, order, tokens, tokens, owner))


def _tensors(
    run: Tapped,
    schedule: Schedule,
    step: int,
    real: np.ndarray,
    tokens: np.ndarray,
    generator: np.random.Generator,
) -> list[np.ndarray]:
    shape = (*real.shape, run.width)
    rows, returned, gradient, after = (generator.normal(size=shape) for _ in range(4))
    amplitude = schedule.amplitude(SESSION, step, channels_pb2.HOP_RETURN)
    directions = schedule.directions(SESSION, step, channels_pb2.HOP_RETURN, shape)
    if run.decoys_zero:
        gradient *= real[..., None]
    gradient += run.reaction * (amplitude > 0) * directions * real[..., None]
    code = run.leak * np.random.default_rng(99).normal(size=(run.vocabulary, run.width))[tokens]
    return [rows + code, returned + code, gradient + code, after]
