"""Documents into train, select and test. Attacks learn on train, choices are made on select, numbers come from test.

The order is that of a seeded hash of the document's id, so it does not depend on which other documents a bundle
holds. A row belongs to a split only when its own document and the document of its frame are both in it: a decoy of a
training document inside a test frame is neither trained on nor scored.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from auditor.arrays import Integers
from auditor.evidence.capture import Capture
from auditor.plan import SplitSettings

TRAIN, SELECT, TEST, UNUSED = 0, 1, 2, -1
SPLIT_NAMES = ("train", "select", "test")


@dataclass(frozen=True, eq=False)
class Splits:
    """Split of every document, item and row; `row_document` falls back to the document of the item."""

    by_document: Integers
    by_item: Integers
    by_row: Integers
    row_document: Integers

    def count_documents(self) -> dict[str, int]:
        """Documents in each split."""
        return {name: int((self.by_document == number).sum()) for number, name in enumerate(SPLIT_NAMES)}


def split_capture(capture: Capture, settings: SplitSettings) -> Splits:
    """Assigns the documents that occur in the capture."""
    item_document = capture.items.document
    own = capture.rows.document
    row_document = np.where(own >= 0, own, item_document[capture.rows.item])
    by_document = np.full(len(capture.documents), UNUSED, dtype=np.int64)
    present = np.unique(item_document[item_document >= 0])
    by_document[present] = split_documents([capture.documents[d] for d in present], settings)
    by_item = _look_up(by_document, item_document)
    frame_split = by_item[capture.rows.item]
    by_row = np.where(_look_up(by_document, row_document) == frame_split, frame_split, UNUSED)
    return Splits(by_document, by_item, by_row, row_document)


def split_documents(ids: list[str], settings: SplitSettings) -> Integers:
    """Split of each document. Every split gets at least one document when there are three or more."""
    order = sorted(range(len(ids)), key=lambda d: _rank(ids[d], settings.seed))
    num_train = max(1, round(settings.train_ratio * len(ids)))
    num_select = max(1, round(settings.select_ratio * len(ids)))
    num_train = max(0, min(num_train, len(ids) - num_select - 1))
    splits = np.full(len(ids), TEST, dtype=np.int64)
    splits[order[:num_train]] = TRAIN
    splits[order[num_train : num_train + num_select]] = SELECT
    return splits


def _rank(document: str, seed: int) -> bytes:
    return hashlib.sha256(f"split|{seed}|{document}".encode()).digest()


def _look_up(table: Integers, index: NDArray[np.int64]) -> Integers:
    if not len(table):
        return np.full(index.shape, UNUSED, dtype=np.int64)
    return np.where(index >= 0, table[np.maximum(index, 0)], UNUSED)
