"""What a detector gets: the units of one frame among which real ones hide, joined with the truth where there is one.

As in an audit (evidence/capture.py): a unit is a row of a gram frame or a sequence of a transformer batch, an item is a
frame or a sequence, and a group holds the units that crossed together. Documents are dealt out by a hash of their id:
half of them teach (train), the others are scored (test), and a decoy counts only in a frame of its own half.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from auditor.arrays import Flags, Integers, Rows
from auditor.evidence.frames import asks_by_row, primary_document, real_positions, row_norms
from auditor.evidence.splits import TEST, TRAIN, UNUSED
from auditor.views.base import FloatArray
from splitwire.bundles.records import RecordedFrame, WireRecord
from splitwire.bundles.truth import TruthRecord
from splitwire.bundles.truth_tail import TruthTail
from splitwire.v1 import channels_pb2, stack_pb2

_MAX_WAITING_STEPS = 256
_TRAIN_RATIO = 0.5


@dataclass(frozen=True, eq=False)
class GroupTruth:
    """For the scores of a detector. `labels` holds next tokens of real rows by item, -1 elsewhere."""

    real: Flags
    split: Integers
    item_split: Integers
    labels: list[Integers]


@dataclass(frozen=True, eq=False)
class Group:
    """Units [U] with their norms, and the rows [R, D] of every item."""

    hop: int
    by_row: bool
    dtype: int
    items: list[Rows]
    norm: FloatArray
    truth: GroupTruth | None


@dataclass(frozen=True, eq=False)
class _Step:
    """What a BACKWARD frame needs of its FORWARD frame."""

    keep: Flags
    by_row: bool
    truths: list[GroupTruth | None]


class Joiner:
    """Frames to groups. Keeps what the BACKWARD frame of a step will need, for the newest steps."""

    def __init__(self, truth: TruthTail | None, split_seed: int) -> None:
        self.num_unmatched = 0
        """Frames that could not be joined: no truth, another digest, another shape, or a FORWARD frame not seen."""
        self._truth = truth
        self._seed = split_seed
        self._kinds: dict[str, int] = {}
        self._steps: OrderedDict[tuple[str, int], _Step] = OrderedDict()
        self._splits: dict[str, int] = {}

    def control(self, record: WireRecord) -> None:
        """Learns the stack of a session that opens. DecodeError when the message is not of the contract."""
        if record.kind == "OpenSessionRequest" and record.session_hash:
            self._kinds[record.session_hash] = stack_pb2.OpenSessionRequest.FromString(record.message).stack_kind

    def groups(self, frame: RecordedFrame) -> list[Group]:
        """The groups of a FORWARD or BACKWARD frame; none where it cannot be joined, or belongs to generation."""
        if frame.tensor.ndim != 3:
            self.num_unmatched += 1
            return []
        if frame.hop == channels_pb2.HOP_FORWARD:
            return self._forward(frame)
        return self._backward(frame)

    def _forward(self, frame: RecordedFrame) -> list[Group]:
        header = frame.header
        if header.compute_mode not in (stack_pb2.COMPUTE_MODE_TRAIN, stack_pb2.COMPUTE_MODE_EVALUATE):
            return []
        record = self._record(frame)
        keep = real_positions(header, tuple(frame.tensor.shape[:2]))
        kind = self._kinds.get(frame.session_hash)
        if record is None:
            # Where the stack is not known, sequences are the coarser reading: it claims less.
            by_row = kind == stack_pb2.STACK_KIND_GRAM
            truths: list[GroupTruth | None] = [None] * (len(keep) if by_row else 1)
        else:
            by_row = asks_by_row(kind, record.real, keep)
            truths = list(self._truths(record, keep, by_row=by_row))
        if header.compute_mode == stack_pb2.COMPUTE_MODE_TRAIN:
            self._remember((frame.session_hash, int(header.step)), _Step(keep, by_row, truths))
        return _groups(frame, keep, truths, by_row=by_row)

    def _backward(self, frame: RecordedFrame) -> list[Group]:
        step = self._steps.pop((frame.session_hash, int(frame.header.step)), None)
        if step is None or step.keep.shape != tuple(frame.tensor.shape[:2]):
            self.num_unmatched += 1
            return []
        return _groups(frame, step.keep, step.truths, by_row=step.by_row)

    def _remember(self, key: tuple[str, int], step: _Step) -> None:
        self._steps[key] = step
        while len(self._steps) > _MAX_WAITING_STEPS:
            self._steps.popitem(last=False)

    def _record(self, frame: RecordedFrame) -> TruthRecord | None:
        if self._truth is None:
            return None
        record = self._truth.find(frame.session_hash, int(frame.header.step))
        shape = tuple(frame.tensor.shape[:2])
        if record is not None and record.forward_digest == frame.message_digest and record.real.shape == shape:
            return record
        self.num_unmatched += 1
        return None

    def _truths(self, record: TruthRecord, keep: Flags, *, by_row: bool) -> Iterator[GroupTruth]:
        items = [self._item_truth(record, keep, n) for n in range(len(keep))]
        if by_row:
            for real, split, own_split, labels in items:
                yield GroupTruth(real, own_split, np.array([split]), [labels])
            return
        yield GroupTruth(
            np.array([bool(real.any()) for real, _, _, _ in items]),
            np.array([split for _, split, _, _ in items]),
            np.array([split for _, split, _, _ in items]),
            [labels for _, _, _, labels in items],
        )

    def _item_truth(self, record: TruthRecord, keep: Flags, n: int) -> tuple[Flags, int, Integers, Integers]:
        """Real rows, split of the item, splits of its rows and labels of its real rows."""
        real, document = record.real[n][keep[n]], record.document[n][keep[n]].astype(np.int64)
        split = self._split(primary_document({"real": real, "document": document}))
        known = np.array([split if d < 0 else self._split(int(d)) for d in document], dtype=np.int64)
        labels = np.where(real, record.label[n][keep[n]], -1).astype(np.int64)
        return real, split, np.where(known == split, split, UNUSED), labels

    def _split(self, document: int) -> int:
        documents = [] if self._truth is None else self._truth.documents
        if not 0 <= document < len(documents):
            return UNUSED
        name = documents[document]["id"]
        if name not in self._splits:
            rank = hashlib.sha256(f"split|{self._seed}|{name}".encode()).digest()
            self._splits[name] = TRAIN if int.from_bytes(rank[:8], "big") < _TRAIN_RATIO * 2**64 else TEST
        return self._splits[name]


def _groups(frame: RecordedFrame, keep: Flags, truths: list[GroupTruth | None], *, by_row: bool) -> list[Group]:
    rows_NRD: NDArray[Any] = frame.tensor.float().numpy()
    items = [rows_NRD[n][keep[n]] for n in range(len(keep))]
    hop, dtype = int(frame.hop), int(frame.header.dtype)
    if by_row:
        return [
            Group(hop, by_row, dtype, [item], row_norms(item), truth) for item, truth in zip(items, truths, strict=True)
        ]
    norm = np.array([np.sqrt((row_norms(item) ** 2).sum()) for item in items])
    return [Group(hop, by_row, dtype, items, norm, truths[0])]
