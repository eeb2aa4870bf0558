"""What the untrusted node's own weights and optimizer did between two snapshots (stateful_remote_state).

An interval lies between two snapshots of a session; what changed in it is sketched (views/snapshots.py).

The answer of an interval is whether the documents that trained in it have more of a private property than the median
interval. The property is computed from the documents of one split at a time: an attacker who is told it for the train
documents is asked about other documents in the same intervals.

Shapes: I intervals, S sketch columns of all tensors, T tensors, E answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from auditor.arrays import Flags, Integers
from auditor.evidence.capture import Capture
from auditor.evidence.material import Material
from auditor.evidence.splits import SELECT, TEST, TRAIN
from auditor.plan import Plan
from auditor.progress import Progress
from auditor.views.base import FloatArray, NotMeasurableError
from auditor.views.snapshots import intervals_of, snapshot_bundles
from auditor.views.units import UnitKey
from splitwire.bundles import SnapshotBundle

FEWEST_INTERVALS = 8
"""Intervals between snapshots with which a property is asked about at all; power is checked apart."""


@dataclass(frozen=True, eq=False)
class TrajectoryView:
    """Sketches [I, S] of weight changes, gradients and squared gradients, the tensor of each column [S], and the
    session of each interval [I], in order of training. `known` intervals come with the answer of their train documents.
    """

    family: str
    weights: FloatArray
    gradient: FloatArray
    squared: FloatArray
    tensor: Integers
    session: Integers
    known: Integers
    known_high: Flags

    def with_bias(self, intervals: Integers, amplitude_ratio: float, seed: int) -> TrajectoryView:
        """A copy in whose moments the gradient of these intervals has a bias: one direction, as long as this share of
        the root mean square gradient.
        """
        direction_S = np.random.default_rng([seed, 2]).standard_normal(self.gradient.shape[1])
        scale_S = np.sqrt((self.gradient**2).mean(0))
        bias_S = amplitude_ratio * direction_S * scale_S
        gradient = self.gradient.copy()
        gradient[intervals] += bias_S
        return replace(self, gradient=gradient)

    def with_noise(self, seed: int) -> TrajectoryView:
        """A copy that holds noise of the same size and nothing else."""
        generator = np.random.default_rng([seed, 3])

        def noise(values: FloatArray) -> FloatArray:
            return np.asarray(generator.standard_normal(values.shape) * values.std(0) + values.mean(0))

        weights, gradient, squared = noise(self.weights), noise(self.gradient), np.abs(noise(self.squared))
        return replace(self, weights=weights, gradient=gradient, squared=squared)


@dataclass(frozen=True, eq=False)
class TrajectoryKey:
    """For the scorer: `answers` has one entry for each split (select, test) of an interval, whose number is `interval`.

    `high` [I] is the answer over all documents, for planting.
    """

    answers: UnitKey
    interval: Integers
    high: Flags
    num_documents: int


@dataclass(frozen=True, eq=False)
class Trajectory:
    """Sketches of all sessions, and which item of the capture trained in which interval (-1: in none)."""

    view: TrajectoryView
    interval_of_item: Integers


def read_trajectory(material: Material, family: str, plan: Plan, progress: Progress) -> Trajectory:
    """Every interval of every snapshotted session, without answers."""
    parts, offset = [], 0
    intervals = np.full(len(material.capture.items), -1, dtype=np.int64)
    for number, bundle in enumerate(snapshot_bundles(material)):
        rows = list(intervals_of(bundle, plan.split.seed, progress))
        parts += [(number, *row) for row in rows]
        _place(material.capture, bundle, offset, intervals)
        offset += len(rows)
    if offset < FEWEST_INTERVALS:
        raise NotMeasurableError(
            f"{offset} intervals between snapshots, at least {FEWEST_INTERVALS} are needed: lower --snapshot-every or "
            "train for more steps"
        )
    if len({len(part[1]) for part in parts}) != 1:
        raise NotMeasurableError("the snapshots are of sessions that train different tensors: audit one at a time")
    session, weights, gradient, squared, tensor = zip(*parts, strict=True)
    nobody, nothing = np.zeros(0, np.int64), np.zeros(0, np.bool_)
    view = TrajectoryView(
        family,
        np.stack(weights),
        np.stack(gradient),
        np.stack(squared),
        tensor[0],
        np.array(session),
        nobody,
        nothing,
    )
    return Trajectory(view, intervals)


def trajectory_view(
    trajectory: Trajectory, material: Material, values: FloatArray
) -> tuple[TrajectoryView, TrajectoryKey]:
    """View and key for one property, whose value of every document [documents] is given."""
    document = material.capture.items.document
    used = (trajectory.interval_of_item >= 0) & (document >= 0)
    split = np.where(used, material.splits.by_document[np.maximum(document, 0)], -1)
    num_intervals = len(trajectory.view.session)
    known = _means(trajectory, values, document, used & (split == TRAIN), num_intervals)
    everyone = _means(trajectory, values, document, used, num_intervals)
    if not _is_mixed(known):
        raise NotMeasurableError("the train documents of all intervals have the same property")
    parts = []
    for wanted in (SELECT, TEST):
        mean = _means(trajectory, values, document, used & (split == wanted), num_intervals)
        present = np.flatnonzero(np.isfinite(mean))
        parts.append((mean[present] > np.nanmedian(mean), np.full(len(present), wanted), present))
    high, which, interval = (np.concatenate(column) for column in zip(*parts, strict=True))
    test = used & (split == TEST)
    answers = UnitKey(high, which, _clusters(trajectory, document, test, interval))
    told = np.flatnonzero(np.isfinite(known))
    view = replace(trajectory.view, known=told, known_high=known[told] > np.nanmedian(known))
    key = TrajectoryKey(answers, interval, everyone > np.nanmedian(everyone), len(np.unique(document[test])))
    return view, key


def document_properties(capture: Capture) -> Mapping[str, FloatArray]:
    """Private properties of every document [documents], from its real rows: NaN where it has none.

    `rare_tokens`: share of rows whose token is no more frequent than the median token. `length`: distinct blocks.
    """
    real = capture.rows.real & (capture.rows.document >= 0) & (capture.rows.token >= 0)
    tokens, document = capture.rows.token[real], capture.rows.document[real]
    _, index, counts = np.unique(tokens, return_inverse=True, return_counts=True)
    rare = counts[index.reshape(-1)] <= np.median(counts)
    num_documents = len(capture.documents)
    rows = np.bincount(document, minlength=num_documents).astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.bincount(document, weights=rare, minlength=num_documents) / rows
    length = np.where(rows > 0, _distinct_blocks(capture, num_documents), np.nan)
    return {"rare_tokens": share, "length": length}


def _distinct_blocks(capture: Capture, num_documents: int) -> FloatArray:
    """How many different texts of a document crossed."""
    items = capture.items
    seen: set[tuple[int, bytes]] = set()
    for first, count, document in zip(items.first, items.num_rows, items.document, strict=True):
        rows = slice(first, first + count)
        order = np.argsort(capture.rows.order[rows][capture.rows.real[rows]], kind="stable")
        seen.add((int(document), capture.rows.token[rows][capture.rows.real[rows]][order].tobytes()))
    owners = np.array([document for document, _ in seen if document >= 0], dtype=np.int64)
    return np.bincount(owners, minlength=num_documents).astype(np.float64)


def _place(capture: Capture, bundle: SnapshotBundle, offset: int, intervals: Integers) -> None:
    """Fills in the interval of every item that trained in this session."""
    ends = np.array([entry.last_step for entry in bundle.entries], dtype=np.int64)
    steps = np.full(len(capture.steps), -1, dtype=np.int64)
    for number, (session, step) in enumerate(capture.steps):
        place = int(np.searchsorted(ends, step, "left")) - 1
        if session == bundle.session_hash and capture.trains[number] and 0 <= place < len(ends) - 1:
            steps[number] = offset + place
    if len(steps):
        found = steps[capture.step_of_items()]
        intervals[found >= 0] = found[found >= 0]


def _means(trajectory: Trajectory, values: FloatArray, document: Integers, used: Flags, count: int) -> FloatArray:
    """Mean property of the used items of each interval [I]; NaN where there is none."""
    kept = used & np.isfinite(values[np.maximum(document, 0)])
    interval = trajectory.interval_of_item[kept]
    number = np.bincount(interval, minlength=count)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.bincount(interval, weights=values[document[kept]], minlength=count) / number)


def _is_mixed(means: FloatArray) -> bool:
    known = means[np.isfinite(means)]
    return bool(len(known)) and bool((known > np.median(known)).any())


def _clusters(trajectory: Trajectory, document: Integers, test: Flags, interval: Integers) -> Integers:
    """The document where every interval has one test document; else the interval. Order is random, so intervals are
    exchangeable.
    """
    pairs = np.unique(np.stack([trajectory.interval_of_item[test], document[test]], axis=1), axis=0)
    if len(pairs) and len(np.unique(pairs[:, 0])) == len(pairs):
        owner = np.full(len(trajectory.view.session), -1, dtype=np.int64)
        owner[pairs[:, 0]] = pairs[:, 1]
        return np.where(owner[interval] >= 0, owner[interval], len(owner) + interval)
    return interval
