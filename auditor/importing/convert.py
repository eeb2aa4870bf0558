"""Writes the tensors of another system as a wire bundle with sealed truth, a step at a time.

Every name, shape and limit is checked before anything is written. What fails later (a value that is not finite, a full
disk) removes what was written: there is no half bundle. Times of an imported bundle are step numbers, and it says so in
its settings: it can tell nothing about timing.

Shapes: S steps, N sequences or frames of a step, R rows, D width.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping as AbstractMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from auditor.importing.mapping import HOP_SECTIONS, TRUTH_SECTIONS, Mapping, TensorMapping
from auditor.importing.tensors import TensorFile, open_tensors
from auditor.progress import Progress, silent
from splitwire.bundles import TRUTH_FILE, BundleWriter, TruthRecord, TruthWriter, WireRecord, frame_digest
from splitwire.bundles.manifest import hash_file
from splitwire.bundles.records import Direction
from splitwire.errors import FrameError, SettingsError
from splitwire.frames import FrameLimits, encode_frame
from splitwire.settings import to_tree
from splitwire.v1 import channels_pb2, stack_pb2

RECORDER = "import"
_HOPS: dict[str, tuple[channels_pb2.Hop, Direction, str]] = {
    "forward": (channels_pb2.HOP_FORWARD, "request", "ExchangeRequest"),
    "returned": (channels_pb2.HOP_RETURN, "response", "ExchangeResponse"),
    "backward": (channels_pb2.HOP_BACKWARD, "request", "ExchangeRequest"),
    "input_gradient": (channels_pb2.HOP_INPUT_GRADIENT, "response", "ExchangeResponse"),
}
_DTYPES = {
    torch.float64: stack_pb2.WIRE_DTYPE_FP32,
    torch.float32: stack_pb2.WIRE_DTYPE_FP32,
    torch.float16: stack_pb2.WIRE_DTYPE_FP16,
    torch.bfloat16: stack_pb2.WIRE_DTYPE_BF16,
}
_STACKS = {"gram": stack_pb2.STACK_KIND_GRAM, "transformer": stack_pb2.STACK_KIND_TRANSFORMER}
_MODES = {"train": stack_pb2.COMPUTE_MODE_TRAIN, "evaluate": stack_pb2.COMPUTE_MODE_EVALUATE}
_ABSENT = {"real": 1, "token": -1, "label": -100}
_LOWEST = {"real": 0, "token": -1, "label": -100, "document": -1}
_MOST_IDS = 1 << 20
"""Different tokens, and documents. Attacks keep a number for each: a larger id is a mistake, or fills the memory."""
_HIGHEST = {"real": 1, "token": _MOST_IDS - 1, "label": _MOST_IDS - 1, "document": _MOST_IDS - 1}
_ORDER = ("sequence", "row", "width")
_INT32 = np.iinfo(np.int32)


@dataclass(frozen=True)
class Imported:
    """What was written."""

    num_steps: int
    num_documents: int
    hops: tuple[str, ...]


def import_tensors(
    source: Path,
    mapping: Mapping,
    out: Path,
    *,
    audit_key: Path,
    signing_key: Ed25519PrivateKey | None = None,
    progress: Progress = silent,
) -> Imported:
    """Writes the bundle `out` with its truth.sealed. SettingsError or FrameError name file, key and shape."""
    with open_tensors(source) as tensors:
        reader = _Reader(source, tensors, mapping)
        settings = {"program": RECORDER, "source": source.name, "times": "none", "mapping": to_tree(mapping)}
        writer = BundleWriter(out, recorder=RECORDER, settings=settings, signing_key=signing_key)
        try:
            with writer, TruthWriter(out / TRUTH_FILE, audit_key) as truth:
                truth.add_documents(reader.documents())
                _write(reader, writer, truth, hash_file(source).sha256[:16], progress)
        except BaseException:
            shutil.rmtree(out, ignore_errors=True)
            raise
    return Imported(reader.num_steps, len(reader.documents()), tuple(reader.hops))


def _write(reader: _Reader, writer: BundleWriter, truth: TruthWriter, session: str, progress: Progress) -> None:
    mapping = reader.mapping
    opening = stack_pb2.OpenSessionRequest(protocol_version=1, stack_kind=_STACKS[mapping.stack]).SerializeToString()
    writer.write(WireRecord(channels_pb2.HOP_CONTROL, "request", session, opening, 0, 0, "OpenSessionRequest"))
    for number in range(reader.num_steps):
        progress("importing steps", number, reader.num_steps)
        step = number + 1
        for name in reader.hops:
            messages = reader.messages(name, number)
            if name == "forward":
                record = TruthRecord(session, step, frame_digest(messages), mapping.mode, **reader.truth(number))
                truth.add(record)
            hop, direction, kind = _HOPS[name]
            for message in messages:
                writer.write(WireRecord(hop, direction, session, message, step, step, kind))


class _Reader:
    """The source under its mapping, with sizes that fit one another."""

    def __init__(self, source: Path, tensors: TensorFile, mapping: Mapping) -> None:
        self.mapping = mapping
        self._source, self._tensors = source, tensors
        self.hops = [name for name in HOP_SECTIONS if getattr(mapping, name).tensor]
        forward = self._sizes("forward")
        self.num_steps = forward.get("step", 1)
        self._shape = (forward.get("sequence", 1), forward["row"])
        for name in (*self.hops, *TRUTH_SECTIONS):
            self._check_sizes(name, forward)
        if not self.num_steps:
            raise self._error(mapping.forward, "has no step", "give at least one")
        self._documents = self._read_documents()

    def documents(self) -> list[dict[str, Any]]:
        """The documents table of the truth."""
        return self._documents

    def messages(self, name: str, number: int) -> list[bytes]:
        """The wire messages of one step of a hop."""
        mapped: TensorMapping = getattr(self.mapping, name)
        rows_NRD = self._step(mapped, number, _ORDER)
        if rows_NRD.dtype not in _DTYPES:
            raise self._error(mapped, f"has dtype {rows_NRD.dtype}", "give float32, float16, bfloat16 or float64")
        header = stack_pb2.FrameHeader(hop=_HOPS[name][0], step=number + 1, dtype=_DTYPES[rows_NRD.dtype])
        if name == "forward":
            header.compute_mode = _MODES[self.mapping.mode]
        if rows_NRD.dtype == torch.float64:
            rows_NRD = rows_NRD.float()
        try:
            return list(encode_frame(header, rows_NRD))
        except FrameError as error:
            raise self._error(mapped, f"step {number}: {error.message}", "remove that step, or correct it") from None

    def truth(self, number: int) -> AbstractMapping[str, Any]:
        """The truth arrays [N, R] of one step."""
        values = {name: self._truth_of(name, number) for name in TRUTH_SECTIONS}
        for name, array in values.items():
            if array.min() < _LOWEST[name] or array.max() > _HIGHEST[name]:
                text = f"step {number} has numbers from {array.min()} to {array.max()}"
                remedy = f"{name} is at least {_LOWEST[name]} and at most {_HIGHEST[name]}"
                raise self._error(getattr(self.mapping, name), text, remedy)
        documents = values["document"]
        if documents.max() >= len(self._documents):
            text = f"step {number} names document {documents.max()} of {len(self._documents)}"
            raise self._error(self.mapping.document, text, "number documents from 0, and name every one")
        order = np.broadcast_to(np.arange(self._shape[1], dtype=np.int32), self._shape)
        return {**values, "real": values["real"] != 0, "order": np.ascontiguousarray(order)}

    def _truth_of(self, name: str, number: int) -> NDArray[np.int32]:
        mapped: TensorMapping = getattr(self.mapping, name)
        if not mapped.tensor:
            return np.full(self._shape, _ABSENT[name], np.int32)
        values = self._step(mapped, number, _ORDER[:-1])
        return self._integers(mapped, values).reshape(values.shape)

    def _integers(self, mapped: TensorMapping, values: torch.Tensor) -> NDArray[np.int32]:
        if values.dtype.is_floating_point or values.dtype.is_complex:
            raise self._error(mapped, f"has dtype {values.dtype}", "give whole numbers or bool")
        array = values.numpy().astype(np.int64)
        if array.size and not _INT32.min <= array.min() <= array.max() <= _INT32.max:
            raise self._error(mapped, "has numbers beyond 32 bits", "give token ids and document numbers")
        return np.ascontiguousarray(array, dtype=np.int32)

    def _step(self, mapped: TensorMapping, number: int, order: tuple[str, ...]) -> torch.Tensor:
        """One step of a tensor with its axes in this order; an axis that it lacks is as long as the frame's."""
        index = tuple(slice(number, number + 1) if axis == "step" else slice(None) for axis in mapped.axes)
        found = self._tensors.read(mapped.tensor, index)
        axes = [axis for axis in mapped.axes if axis != "step"]
        if "step" in mapped.axes:
            found = found.squeeze(mapped.axes.index("step"))
        found = found.permute([axes.index(axis) for axis in order if axis in axes])
        for place, axis in enumerate(order):
            if axis not in axes:
                found = found.unsqueeze(place)
        width = found.shape[-1:] if "width" in order else ()
        return found.expand(*self._shape, *width).contiguous()

    def _sizes(self, name: str) -> dict[str, int]:
        """Size of every axis of a mapped tensor."""
        mapped: TensorMapping = getattr(self.mapping, name)
        shape = self._shape_of(mapped.tensor)
        if len(shape) != len(mapped.axes):
            text = f"has shape {list(shape)}, and {name}.axes names {len(mapped.axes)} axes: {', '.join(mapped.axes)}"
            raise self._error(mapped, text, "name every dimension")
        return dict(zip(mapped.axes, shape, strict=True))

    def _shape_of(self, name: str) -> tuple[int, ...]:
        try:
            return self._tensors.shape(name)
        except KeyError:
            known = ", ".join(self._tensors.names()[:20]) or "no tensor"
            raise SettingsError(f"{self._source} has no tensor {name!r}", remedy=f"it has {known}") from None

    def _check_sizes(self, name: str, forward: AbstractMapping[str, int]) -> None:
        mapped: TensorMapping = getattr(self.mapping, name)
        if not mapped.tensor:
            return
        sizes = self._sizes(name)
        for axis, size in sizes.items():
            if axis != "width" and size != forward.get(axis, 1):
                text = f"has {size} of axis {axis}, and the forward tensor has {forward.get(axis, 1)}"
                raise self._error(mapped, text, "give tensors of the same steps, sequences and rows")
        if name in HOP_SECTIONS:
            self._check_limits(mapped, sizes)

    def _check_limits(self, mapped: TensorMapping, sizes: AbstractMapping[str, int]) -> None:
        limits, rows = FrameLimits(), math.prod(self._shape)
        too_large = rows > limits.max_rows or sizes["width"] > limits.max_width
        if too_large or 4 * rows * sizes["width"] > limits.max_frame_bytes or not rows * sizes["width"]:
            text = f"has frames of {rows} rows of width {sizes['width']}"
            most = f"{limits.max_rows} rows, width {limits.max_width} and {limits.max_frame_bytes} bytes"
            raise self._error(mapped, text, f"a frame has at least one value and at most {most}: name a step axis")

    def _read_documents(self) -> list[dict[str, Any]]:
        mapped = self.mapping.document
        index = tuple(slice(None) for _ in mapped.axes)
        numbers = self._integers(mapped, self._tensors.read(mapped.tensor, index))
        count = int(numbers.max()) + 1 if numbers.size else 0
        if count > _MOST_IDS:
            text = f"names document {count - 1}"
            raise self._error(mapped, text, f"number documents from 0, at most {_MOST_IDS} of them")
        ids = self.mapping.document_ids or tuple(f"document-{number}" for number in range(count))
        if count > len(ids) or len(set(ids)) < len(ids):
            text = f"names {count} documents, and document_ids has {len(ids)}, {len(set(ids))} of them different"
            raise self._error(mapped, text, "give one id for every document")
        members = np.ones(len(ids), np.int32)
        if self.mapping.members:
            member_map = TensorMapping(self.mapping.members, ("step",))
            if self._shape_of(self.mapping.members) != (len(ids),):
                text = f"has shape {list(self._shape_of(self.mapping.members))}, expected [{len(ids)}]"
                raise self._error(member_map, text, "give one value a document")
            members = self._integers(member_map, self._tensors.read(self.mapping.members, (slice(None),)))
        return [{"id": name, "member": bool(member)} for name, member in zip(ids, members, strict=True)]

    def _error(self, mapped: TensorMapping, what: str, remedy: str) -> SettingsError:
        return SettingsError(f"{self._source}: tensor {mapped.tensor!r} {what}", remedy=remedy)
