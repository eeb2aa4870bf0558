"""Text that stands on both sides of the split under two document ids: an attack would be scored on what it was taught.

A *block* is what one document has in one item. Its content is the set of its (token, label) pairs with their counts,
without order, for a frame is permuted. Blocks under 8 real rows say too little and are left out. A document is repeated
when at least half of its different blocks also stand in a document of another split.
"""

from __future__ import annotations

import hashlib

import numpy as np

from auditor.evidence.capture import Capture
from auditor.evidence.splits import Splits

MIN_BLOCK_ROWS = 8
"""A shorter block may be the same in two documents by chance."""
_REPEATED_RATIO = 0.5
"""Share of its blocks in another split from which a document counts as repeated there."""


def repeated_documents(capture: Capture, splits: Splits) -> int:
    """Documents most of whose text is also in a document of another split."""
    blocks = _blocks(capture)
    where: dict[bytes, set[int]] = {}
    for document, contents in blocks.items():
        for content in contents:
            where.setdefault(content, set()).add(document)
    return sum(_is_repeated(document, contents, where, splits) for document, contents in blocks.items())


def duplicate_problems(capture: Capture, splits: Splits) -> list[str]:
    """The finding as a line for the verdict; none when there is none."""
    found = repeated_documents(capture, splits)
    if not found:
        return []
    what = f"{found} documents stand in two splits under different ids, with the same tokens"
    return [f"{what}: give equal text one id, and record again"]


def _is_repeated(document: int, contents: set[bytes], where: dict[bytes, set[int]], splits: Splits) -> bool:
    own = splits.by_document[document]
    elsewhere = sum(any(splits.by_document[other] != own for other in where[content]) for content in contents)
    return elsewhere >= _REPEATED_RATIO * len(contents)


def _blocks(capture: Capture) -> dict[int, set[bytes]]:
    """Contents of the blocks of every document that has any."""
    rows = capture.rows
    used = np.flatnonzero(rows.real & (rows.document >= 0))
    columns = (rows.label[used], rows.token[used], rows.document[used], rows.item[used])
    order = np.lexsort(columns)
    label, token, document, item = (column[order] for column in columns)
    edges = np.flatnonzero((np.diff(item) != 0) | (np.diff(document) != 0)) + 1
    found: dict[int, set[bytes]] = {}
    for start, end in zip(np.r_[0, edges], np.r_[edges, len(order)], strict=True):
        if end - start >= MIN_BLOCK_ROWS:
            content = np.stack([token[start:end], label[start:end]]).tobytes()
            found.setdefault(int(document[start]), set()).add(hashlib.sha256(content).digest())
    return found
