"""Sizes and times of the steps, to tell a private property of what they carried (timing_metadata).

Properties are halves of what varies in the truth: a step is positive when its number is above the median.

    real_rows         real rows of the step
    document_length   tokens of the document, as far as they crossed
    token_rarity      mean surprise of the step's tokens under their frequency in the whole run: a class of text

A step belongs to the document of its rows, and to that document's split. Where most steps mix documents (many frames a
step), steps are clustered and split in blocks of consecutive ones instead.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from auditor.arrays import Flags, Integers
from auditor.evidence.capture import Capture
from auditor.evidence.splits import TRAIN, Splits, split_documents
from auditor.plan import SplitSettings
from auditor.views.base import FloatArray, NotMeasurableError
from auditor.views.timeline import Timeline
from auditor.views.units import UnitKey

PROPERTIES = ("real_rows", "document_length", "token_rarity")
BLOCK_STEPS = 8
"""Steps in a row that count as one unit of uncertainty where a step has text of many documents."""
_SINGLE_RATIO = 0.9
"""Share of steps with text of one document from which the document is the unit of uncertainty."""
_MOST_MISSING_RATIO = 0.5
"""A column that more steps lack is left out."""
_FEWEST_RATIO = 0.05
"""A property that fewer steps have, or lack, does not vary enough to be told."""
_SIGNATURE_ROWS = 8
"""First tokens by which a block is known again in another epoch."""


@dataclass(frozen=True, eq=False)
class MetadataView:
    """Columns [S, K] of S steps in order of crossing and the session of each [S]. Train steps come with the answer."""

    family: str
    names: Sequence[str]
    is_time: Flags
    values: FloatArray
    session: Integers
    train_units: Integers
    train_positive: Flags

    def with_values(self, values: FloatArray) -> MetadataView:
        """The same steps with other sizes and times: a planted leak."""
        return replace(self, values=values)

    def with_answers(self, positive: Flags) -> MetadataView:
        """The same steps with other answers [S]: the shuffled twin."""
        return replace(self, train_positive=positive[self.train_units])


@dataclass(frozen=True, eq=False)
class Steps:
    """The steps that joined the timeline, and their truth; for the scorer."""

    rows: Integers
    """Row of each step in the timeline."""
    session: Integers
    cluster: Integers
    split: Integers
    by_document: bool
    numbers: dict[str, FloatArray]
    """The number behind each property [S]; NaN where it is not known."""


def joined_steps(capture: Capture, splits: Splits, lines: Timeline, settings: SplitSettings) -> Steps:
    """The training steps of the capture, or all of them where none is one."""
    places = {key: row for row, key in enumerate(lines.keys)}
    wanted = capture.trains if capture.trains.any() else np.ones(len(capture.steps), bool)
    steps = np.array([n for n, key in enumerate(capture.steps) if wanted[n] and key in places], dtype=np.int64)
    if not len(steps):
        raise NotMeasurableError("no step with truth: give the bundles together with the truth of their run")
    sessions = {name: n for n, name in enumerate(dict.fromkeys(capture.steps[n][0] for n in steps))}
    document, is_single = _documents(capture)
    by_document = bool(is_single[steps].mean() >= _SINGLE_RATIO)
    if by_document:
        steps = steps[is_single[steps] & (document[steps] >= 0)]
        cluster = document[steps]
        split = splits.by_document[cluster]
    else:
        cluster = np.arange(len(steps)) // BLOCK_STEPS
        split = split_documents([f"steps {n}" for n in range(int(cluster.max()) + 1)], settings)[cluster]
    return Steps(
        np.array([places[capture.steps[n]] for n in steps], dtype=np.int64),
        np.array([sessions[capture.steps[n][0]] for n in steps], dtype=np.int64),
        cluster,
        split,
        by_document,
        {name: values[steps] for name, values in _numbers(capture, document).items()},
    )


def varying(steps: Steps) -> Iterator[tuple[str, Flags]]:
    """The properties that differ between steps, and which steps are positive [S]."""
    for name in PROPERTIES:
        numbers = steps.numbers[name]
        positive = numbers > np.nanmedian(numbers) if np.isfinite(numbers).any() else np.zeros(len(numbers), bool)
        if min(positive.mean(), 1 - positive.mean()) < _FEWEST_RATIO and len(np.unique(numbers)) > 1:
            positive = numbers > np.nanmin(numbers)
        if min(positive.mean(), 1 - positive.mean()) >= _FEWEST_RATIO:
            yield name, positive


def metadata_view(lines: Timeline, steps: Steps, positive: Flags, family: str) -> tuple[MetadataView, UnitKey]:
    """The view of one property; columns that most steps lack are left out."""
    values = lines.values[steps.rows]
    kept = np.flatnonzero(np.isnan(values).mean(0) <= _MOST_MISSING_RATIO)
    train = np.flatnonzero(steps.split == TRAIN)
    view = MetadataView(
        family,
        [lines.names[int(k)] for k in kept],
        np.array(lines.is_time, dtype=bool)[kept],
        values[:, kept],
        steps.session,
        train,
        positive[train],
    )
    return view, UnitKey(positive, steps.split, steps.cluster)


def _documents(capture: Capture) -> tuple[Integers, Flags]:
    """Document of each step, and whether all of its items that have one have the same."""
    num_steps, step = len(capture.steps), capture.step_of_items()
    known = capture.items.document >= 0
    lowest, highest = np.full(num_steps, np.iinfo(np.int64).max), np.full(num_steps, -1)
    np.minimum.at(lowest, step[known], capture.items.document[known])
    np.maximum.at(highest, step[known], capture.items.document[known])
    return highest, lowest == highest


def _numbers(capture: Capture, document: Integers) -> dict[str, FloatArray]:
    """The number behind each property, for every step of the capture."""
    rows, num_steps = capture.rows, len(capture.steps)
    step = capture.step_of_items()[rows.item]
    real = rows.real & (rows.token >= 0)
    count = np.bincount(step, weights=rows.real, minlength=num_steps)
    frequency = np.unique(rows.token[real], return_inverse=True, return_counts=True)
    surprise = -np.log(frequency[2] / max(1, int(real.sum())))[frequency[1].reshape(-1)]
    rarity = np.bincount(step[real], weights=surprise, minlength=num_steps)
    tokens = np.bincount(step[real], minlength=num_steps)
    length = _document_lengths(capture)
    return {
        "real_rows": count.astype(np.float64),
        "document_length": np.where(document >= 0, length[np.maximum(document, 0)], np.nan),
        "token_rarity": np.where(tokens > 0, rarity / np.maximum(tokens, 1), np.nan),
    }


def _document_lengths(capture: Capture) -> FloatArray:
    """Tokens of every document over its different blocks; a block is known by its first tokens."""
    rows = capture.rows
    longest: dict[tuple[int, bytes], int] = {}
    used = np.flatnonzero(rows.real & (rows.document >= 0))
    used = used[np.lexsort((rows.order[used], rows.document[used], rows.item[used]))]
    edges = np.flatnonzero((np.diff(rows.item[used]) != 0) | (np.diff(rows.document[used]) != 0)) + 1
    for block in np.split(used, edges):
        if len(block):
            key = int(rows.document[block[0]]), _signature(rows.token[block[:_SIGNATURE_ROWS]])
            longest[key] = max(longest.get(key, 0), len(block))
    lengths = np.zeros(max(1, len(capture.documents)))
    for (document, _), count in longest.items():
        lengths[document] += count
    return lengths


def _signature(tokens: NDArray[np.int64]) -> bytes:
    return hashlib.sha256(tokens.tobytes()).digest()
