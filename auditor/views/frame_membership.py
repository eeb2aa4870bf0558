"""Evaluation frames of candidate documents, and every frame that crossed in training (membership_property).

The game needs no snapshots: a node that keeps what it receives compares the frame of a candidate with the frames of the
training. Members and held-out documents have to cross alike, after training and mixed (`train.membership_blocks`); a
member's block is then a block that was seen before. Which candidates of the train split are members is given; which
training frame is of which document is not.

Shapes: C candidates, F frames, R rows, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from auditor.arrays import Flags, Integers, Rows
from auditor.evidence.material import Material
from auditor.evidence.splits import TRAIN
from auditor.plan import DoseMode, Plan
from auditor.views.base import NotMeasurableError
from auditor.views.membership import (
    MembershipKey,
    canaries_of,
    evaluation_frames,
    frames_of,
    members_of,
)
from auditor.views.units import UnitKey

MAX_TRAINED = 1024
"""Most training frames that are compared, and fewer where the plan's `probe.max_view_bytes` hold fewer: the last ones,
which the encoder made most like those of the candidates."""


@dataclass(frozen=True, eq=False)
class FrameMembershipView:
    """`owner` [F] is the candidate of each of `frames` [R, D]; `trained` [R, D] are those of the training, in order.
    `has_gauge`: a rotation and a permutation may stand between two of them; a stack of real layers allows none.
    """

    family: str
    num_candidates: int
    owner: Integers
    frames: Sequence[Rows]
    trained: Sequence[Rows]
    known: Integers
    known_member: Flags
    has_gauge: bool

    def resent(self, candidates: Integers, amplitude_ratio: float, mode: DoseMode, seed: int) -> FrameMembershipView:
        """A view whose training frames are the frames of these candidates, permuted and, in mode `invariant`, rotated:
        amplitude a leaves a share a of every row, and adds noise of length sqrt(1 - a^2) of the row's own.
        """
        chosen = np.flatnonzero(np.isin(self.owner, candidates)).tolist()
        copies = [_again(self.frames[f], amplitude_ratio, mode, np.random.default_rng([seed, 6, f])) for f in chosen]
        return replace(self, trained=copies)


def frame_membership_view(material: Material, family: str, plan: Plan) -> tuple[FrameMembershipView, MembershipKey]:
    """The candidates of all sessions that trained."""
    capture, member = material.capture, members_of(material)
    trained = _trained_items(material, plan)
    step = capture.step_of_items()
    sessions = {capture.steps[number][0] for number in np.unique(step[trained])}
    ours = np.array([session in sessions for session, _ in capture.steps], dtype=bool)
    chosen = evaluation_frames(capture, member, ours)
    documents = np.array(sorted(d for d in chosen if member[d] >= 0 and material.splits.by_document[d] >= 0), np.int64)
    if len(documents) == 0 or len(np.unique(member[documents])) < 2:
        raise NotMeasurableError("no held-out documents crossed beside those trained on: set train.membership_blocks")
    split, is_member = material.splits.by_document[documents], member[documents] == 1
    canary = canaries_of(material, documents)
    known = np.flatnonzero((split == TRAIN) & ~canary)
    if len(np.unique(is_member[known])) < 2:
        raise NotMeasurableError("the train documents are all members or all held out: use more documents")
    view = FrameMembershipView(
        family,
        len(documents),
        np.repeat(np.arange(len(documents)), [len(chosen[document]) for document in documents]),
        frames_of(capture, [item for document in documents for item in chosen[document]]),
        frames_of(capture, trained.tolist()),
        known,
        is_member[known],
        bool(capture.items.by_row[trained].any()),
    )
    return view, MembershipKey(UnitKey(is_member, split, documents), canary)


def _trained_items(material: Material, plan: Plan) -> Integers:
    """The last items that crossed in training. NotMeasurableError when there are none."""
    capture = material.capture
    step = capture.step_of_items()
    trained = np.flatnonzero(capture.trains[step]) if len(step) else np.zeros(0, np.int64)
    if not len(trained):
        raise NotMeasurableError("nothing crossed in training: give the bundles of the training as well")
    last = trained[-MAX_TRAINED:]
    num_bytes = 4 * capture.forward.width * np.cumsum(capture.items.num_rows[last[::-1]])
    return last[len(last) - max(1, int((num_bytes <= plan.probe.max_view_bytes).sum())) :]


def _again(frame_RD: Rows, amplitude_ratio: float, mode: DoseMode, generator: np.random.Generator) -> Rows:
    rows_RD = frame_RD[generator.permutation(len(frame_RD))].astype(np.float64)
    width = rows_RD.shape[1]
    noise_RD = generator.standard_normal(rows_RD.shape) * np.linalg.norm(rows_RD, axis=1, keepdims=True) / width**0.5
    rows_RD = amplitude_ratio * rows_RD + (1 - amplitude_ratio**2) ** 0.5 * noise_RD
    rotation = np.linalg.qr(generator.standard_normal((width, width)))[0] if mode == "invariant" else np.eye(width)
    return np.asarray(rows_RD @ rotation, np.float32)
