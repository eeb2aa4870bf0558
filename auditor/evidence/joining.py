"""Joins the frames of bundles with the truth.

FORWARD frames join by (session hash, step) and must carry the digest of the truth; BACKWARD and RETURN frames join by
(session hash, step), and RETURN frames are read only when they are asked for. Whatever does not join is counted in
`problems`, and nothing is guessed. Padding rows are dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from auditor.arrays import Flags, Integers, Rows
from auditor.evidence.capture import STEP_BITS, Capture, Items, RowTable
from auditor.evidence.columns import Column
from auditor.evidence.frames import NO_DOCUMENT, asks_by_row, primary_document, real_positions, row_norms
from auditor.evidence.rows import RowStore
from auditor.evidence.sources import TruthSource
from splitwire.v1 import stack_pb2

_FIRST, _GRADIENT_FIRST, _RETURNED_FIRST, _NUM_COLUMNS = 1, 3, 6, 7  # of an item while it is built
_COLUMNS: dict[str, type] = {
    "real": np.bool_,
    "label": np.int64,
    "token": np.int64,
    "order": np.int64,
    "document": np.int64,
    "forward_norm": np.float64,
}


class CaptureBuilder:
    """Collects frames. Step keys are (session hash, step)."""

    def __init__(self, truths: Sequence[TruthSource], modes: Sequence[int], folder: Path) -> None:
        self._truths = truths
        self._modes = frozenset(modes)
        self._documents, self._tables_of_documents = _document_table(truths)
        self._forward = RowStore(folder / "forward.f32")
        self._gradient = RowStore(folder / "gradient.f32")
        self._returned = RowStore(folder / "returned.f32")
        self._digests: dict[tuple[str, int], str] = {}
        self._steps: dict[tuple[str, int], list[int]] = {}
        self._keep: dict[tuple[str, int], Flags] = {}
        self._backward: dict[tuple[str, int], str] = {}
        self._answers: dict[tuple[str, int], str] = {}
        self._items: list[list[int]] = []
        self._columns = {name: Column(folder / name, dtype) for name, dtype in _COLUMNS.items()}
        self._gradient_norm = np.zeros(0)
        self._train_steps: set[tuple[str, int]] = set()
        self._problems: Counter[str] = Counter()
        self._skipped: Counter[int] = Counter()

    @property
    def num_train_steps(self) -> int:
        """Steps that should have a BACKWARD frame."""
        return len(self._train_steps)

    @property
    def num_steps(self) -> int:
        """Steps whose FORWARD frame joined the truth."""
        return len(self._steps)

    def add_forward(self, frame: Any, kind: int | None) -> None:
        """Rows of a FORWARD frame of the wanted modes, where the truth knows its bytes; `kind` is the stack."""
        key = (frame.session_hash, int(frame.header.step))
        if key in self._digests:
            if self._digests[key] != frame.message_digest:
                self._problems["FORWARD steps that crossed twice with different bytes"] += 1
            return
        self._digests[key] = frame.message_digest
        if frame.header.compute_mode not in self._modes:
            self._skipped[frame.header.compute_mode] += 1
            return
        if frame.header.compute_mode == stack_pb2.COMPUTE_MODE_TRAIN:
            self._train_steps.add(key)
        self._join(key, frame, kind)

    def _join(self, key: tuple[str, int], frame: Any, kind: int | None) -> None:
        found = next(((t, n) for n, t in enumerate(self._truths) if key in t.records), None)
        if found is None:
            self._problems["FORWARD frames without truth"] += 1
            return
        record = found[0].records[key]
        if record.forward_digest != frame.message_digest:
            self._problems["FORWARD frames whose bytes are not those of the truth"] += 1
            return
        if frame.tensor.ndim != 3 or tuple(frame.tensor.shape[:2]) != record.real.shape:
            self._problems["FORWARD frames whose shape is not that of the truth"] += 1
            return
        document = _renumber(record.document, self._tables_of_documents[found[1]])
        keep = real_positions(frame.header, record.real.shape)
        self._keep[key] = keep
        by_row = asks_by_row(kind, record.real, keep)
        rows_NRD = frame.tensor.float().numpy()
        truth = {"real": record.real, "label": record.label, "token": record.token, "order": record.order}
        truth["document"] = document
        step, items = len(self._steps), []
        for n in range(len(keep)):
            items.append(len(self._items))
            kept = {name: values[n][keep[n]] for name, values in truth.items()}
            self._add_item(rows_NRD[n][keep[n]], kept, (step, n), by_row=by_row)
        self._steps[key] = items

    def _add_item(self, rows: Rows, truth: dict[str, NDArray[Any]], place: tuple[int, int], *, by_row: bool) -> None:
        step, number = place
        document = primary_document(truth)
        # Units of a gram frame hide within the frame, those of a transformer batch within the batch.
        group = (step << STEP_BITS) + number if by_row else step << STEP_BITS
        first = self._forward.append(rows)
        self._items.append([group, first, len(rows), -1, document, by_row, -1])
        for name, values in {**truth, "forward_norm": row_norms(rows)}.items():
            self._columns[name].append(values)

    def add_backward(self, frame: Any) -> None:
        """Gradient rows of a step whose FORWARD frame joined."""
        for item, rows in self._rows_of_step(frame, "BACKWARD", self._backward):
            if not len(self._gradient_norm):
                self._gradient_norm = np.full(self._forward.num_rows, np.nan)
            first = self._items[item][_FIRST]
            self._items[item][_GRADIENT_FIRST] = self._gradient.append(rows)
            self._gradient_norm[first : first + len(rows)] = row_norms(rows)

    def add_returned(self, frame: Any) -> None:
        """Returned rows of a step whose FORWARD frame joined."""
        for item, rows in self._rows_of_step(frame, "RETURN", self._answers):
            self._items[item][_RETURNED_FIRST] = self._returned.append(rows)

    def _rows_of_step(self, frame: Any, hop: str, digests: dict[tuple[str, int], str]) -> Iterator[tuple[int, Rows]]:
        """Number and rows of every item of a frame's step, once a step; nothing where its FORWARD did not join."""
        key = (frame.session_hash, int(frame.header.step))
        if key not in self._steps:
            return
        if key in digests:
            if digests[key] != frame.message_digest:
                self._problems[f"{hop} steps that crossed twice with different bytes"] += 1
            return
        digests[key] = frame.message_digest
        keep = self._keep[key]
        if frame.tensor.ndim != 3 or tuple(frame.tensor.shape[:2]) != keep.shape:
            self._problems[f"{hop} frames whose shape is not that of their FORWARD frame"] += 1
            return
        rows_NRD = frame.tensor.float().numpy()
        for n, item in enumerate(self._steps[key]):
            yield item, rows_NRD[n][keep[n]]

    def abandon(self) -> None:
        """Lets go of the files on disk."""
        for store in (self._forward, self._gradient, self._returned):
            store.close()
        for column in self._columns.values():
            column.close()

    def finish(self, source_problems: list[str]) -> Capture:
        """Everything that joined, and what did not, by number; nothing may be added afterwards."""
        self._forward.freeze()
        self._gradient.freeze()
        self._returned.freeze()
        group, first, num_rows, gradient, document, by_row, returned = (
            np.array(self._items, dtype=np.int64).reshape(-1, _NUM_COLUMNS).T
        )
        items = Items(group, first, num_rows, gradient, document, by_row.astype(bool), returned)
        return Capture(
            items,
            self._row_table(items),
            self._forward,
            self._gradient,
            self._returned,
            self._documents,
            [*source_problems, *self._problem_lines()],
            [f"{self._skipped.total()} FORWARD frames of other compute modes: inversion attacks alone read them"]
            if self._skipped
            else [],
            len(self._train_steps),
            len(self._backward),
            list(self._steps),
            np.array([key in self._train_steps for key in self._steps], dtype=bool),
            dict(self._skipped),
        )

    def _row_table(self, items: Items) -> RowTable:
        columns = {name: column.mapped() for name, column in self._columns.items()}
        missing = not len(self._gradient_norm)
        gradient_norm = np.full(self._forward.num_rows, np.nan) if missing else self._gradient_norm
        return RowTable(item=np.repeat(np.arange(len(items)), items.num_rows), gradient_norm=gradient_norm, **columns)

    def _problem_lines(self) -> list[str]:
        lines = [f"{count} {what}" for what, count in self._problems.items()]
        if any(not truth.is_complete for truth in self._truths):
            lines.append("a truth file ends early: its writer was killed")
        unseen = sum(1 for truth in self._truths for key in truth.records if key not in self._digests)
        if unseen:
            lines.append(f"{unseen} steps of the truth are in no bundle: give every bundle of the run")
        lost = len(self._train_steps & set(self._steps)) - len(self._backward)
        if lost > 0 and self._backward:
            lines.append(f"{lost} TRAIN steps have no BACKWARD frame")
        unanswered = len(self._steps) - len(self._answers)
        if unanswered and self._answers:
            lines.append(f"{unanswered} steps have no RETURN frame")
        return lines


def _document_table(truths: Sequence[TruthSource]) -> tuple[list[str], list[Integers]]:
    """Ids of all documents, and the number there of each document of each truth. An id is one document in all runs."""
    numbers: dict[str, int] = {}
    tables = [
        np.array([numbers.setdefault(str(entry["id"]), len(numbers)) for entry in truth.documents], dtype=np.int64)
        for truth in truths
    ]
    return list(numbers), tables


def _renumber(documents: NDArray[np.int32], table: Integers) -> Integers:
    """Documents of one truth in the numbers of the capture; -1 stays, and so becomes what its table does not list."""
    known = (documents >= 0) & (documents < len(table))
    if not len(table):
        return np.full(documents.shape, NO_DOCUMENT, dtype=np.int64)
    return np.where(known, table[np.where(known, documents, 0)], NO_DOCUMENT)
