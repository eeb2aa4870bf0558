"""Candidate documents, of which some were trained on and some held out at random (membership_property).

The game: the attacker holds snapshots of the node's own weights from the first to the last, and candidates. On the
transformer stack a candidate is a text, since the layers before the cut are public. On the gram stack a private encoder
makes the rows, so a candidate is the evaluation frames in which its document crossed; members and non-members must have
crossed alike, after training and mixed (`train.membership_blocks`), or the frames would tell when they crossed and not
whether they were trained on. Which candidates of the train split are members is given.

Shapes: C candidates, F frames or texts, R rows, D width, T positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from auditor.arrays import Flags, Integers, Rows
from auditor.evidence.capture import Capture
from auditor.evidence.material import Material
from auditor.evidence.rows import StoredFrames
from auditor.evidence.splits import TRAIN
from auditor.plan import Plan
from auditor.public_model import PublicModel, find_public_model
from auditor.views.base import NotMeasurableError
from auditor.views.snapshots import snapshot_bundles
from auditor.views.units import UnitKey
from splitwire.bundles import SnapshotBundle

MAX_TEXTS = 2
"""Texts or frames of one candidate that are read."""
State = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class MembershipView:
    """Candidates and the node's first and last state. `owner` [F] is the candidate of a frame or text.

    `frames` [R, D] each on the gram stack; `texts` of token ids [T + 1] and the public `model` on the transformer.
    """

    family: str
    num_candidates: int
    owner: Integers
    frames: Sequence[Rows]
    texts: Sequence[Integers]
    model: PublicModel | None
    facts: dict[str, Any]
    start: State
    end: State
    known: Integers
    known_member: Flags


@dataclass(frozen=True, eq=False)
class MembershipKey:
    """For the scorer: member, split and document of every candidate, and which are canaries [C]."""

    units: UnitKey
    canary: Flags


def membership_view(material: Material, family: str, plan: Plan) -> tuple[MembershipView, MembershipKey]:
    """The candidates of the one snapshotted session."""
    bundle = _snapshots(material)
    facts = {} if bundle.head is None else bundle.head.stack
    is_gram = facts.get("stack") == "gram"
    member = members_of(material)
    ours = np.array([session == bundle.session_hash for session, _ in material.capture.steps], dtype=bool)
    chosen = evaluation_frames(material.capture, member, ours) if is_gram else _texts(material.capture, ours)
    model = None
    if not is_gram:
        model, why = find_public_model(material, plan.response)
        if model is None:
            raise NotMeasurableError(f"candidates cannot be run through the public model: {why}")
    documents = np.array(sorted(d for d in chosen if member[d] >= 0 and material.splits.by_document[d] >= 0))
    if len(documents) == 0 or len(np.unique(member[documents])) < 2:
        raise NotMeasurableError(
            "no held-out documents crossed beside those trained on: "
            + ("set train.membership_blocks" if is_gram else "let train.max_evaluation_blocks reach more of them")
        )
    items = [item for document in documents for item in chosen[document]]
    owner = np.repeat(np.arange(len(documents)), [len(chosen[document]) for document in documents])
    split = material.splits.by_document[documents]
    is_member = member[documents] == 1
    canary = canaries_of(material, documents)
    known = np.flatnonzero((split == TRAIN) & ~canary)
    if len(np.unique(is_member[known])) < 2:
        raise NotMeasurableError("the train documents are all members or all held out: use more documents")
    view = MembershipView(
        family,
        len(documents),
        owner,
        frames_of(material.capture, items) if is_gram else [],
        [] if is_gram else [_text(material.capture, item) for item in items],
        model,
        facts,
        bundle.tensors(bundle.entries[0]),
        bundle.tensors(bundle.entries[-1]),
        known,
        is_member[known],
    )
    return view, MembershipKey(UnitKey(is_member, split, documents), canary)


def _snapshots(material: Material) -> SnapshotBundle:
    """The session's snapshots; two of them at least."""
    usable = [bundle for bundle in snapshot_bundles(material) if len(bundle.entries) > 1]
    if not usable:
        raise NotMeasurableError("there is one snapshot only: lower --snapshot-every or train for more steps")
    return max(usable, key=lambda bundle: bundle.entries[-1].optimizer_step)


def members_of(material: Material) -> Integers:
    """1 for a member, 0 for a held-out document, -1 where the truths do not say or disagree [documents]."""
    numbers = {name: number for number, name in enumerate(material.capture.documents)}
    found = np.full(len(numbers), -1, dtype=np.int64)
    for truth in material.truths:
        for entry in truth.documents:
            number, member = numbers[str(entry["id"])], int(bool(entry["member"]))
            found[number] = member if found[number] in (-1, member) else -2
    return np.maximum(found, -1)


def canaries_of(material: Material, documents: Integers) -> Flags:
    """Documents that the trusted node says it repeated on purpose."""
    named = [getattr(truth, "facts", {}).get("canary_prefix") for truth in material.truths]
    prefixes = tuple(prefix for prefix in named if isinstance(prefix, str) and prefix)
    return np.array(
        [material.capture.documents[d].startswith(prefixes) if prefixes else False for d in documents], bool
    )


def evaluation_frames(capture: Capture, member: Integers, ours: Flags) -> dict[int, list[int]]:
    """Whole evaluation frames of each document in these steps, from the first one on that holds a member: those before
    are the utility gate's, of held-out documents alone.
    """
    items, step = capture.items, capture.step_of_items()
    usable = ours[step] & ~capture.trains[step] & (items.document >= 0) if len(step) else np.zeros(0, bool)
    holds_member = usable & (member[np.maximum(items.document, 0)] == 1)
    if not holds_member.any():
        raise NotMeasurableError(
            "members and held-out documents did not cross alike: set train.membership_blocks, which sends blocks of "
            "both as evaluation frames, mixed, once training has ended"
        )
    usable &= step >= step[holds_member].min()
    return _by_document(items.document, np.flatnonzero(usable))


def _texts(capture: Capture, ours: Flags) -> dict[int, list[int]]:
    """Sequences with different texts of each document."""
    items = capture.items
    real = np.bincount(capture.rows.item, weights=capture.rows.real, minlength=len(items)) > 0
    ours_of_item = ours[capture.step_of_items()] if len(items) else np.zeros(0, dtype=bool)
    usable = np.flatnonzero(ours_of_item & real & (items.document >= 0)).tolist()
    seen: set[tuple[int, bytes]] = set()
    kept = []
    for item in usable:
        text = (int(items.document[item]), _text(capture, item).tobytes())
        if text not in seen:
            seen.add(text)
            kept.append(item)
    return _by_document(items.document, np.array(kept, dtype=np.int64))


def _by_document(document: Integers, chosen: Integers) -> dict[int, list[int]]:
    """The first few of the chosen items of each document."""
    found: dict[int, list[int]] = {}
    for item in chosen:
        mine = found.setdefault(int(document[item]), [])
        if len(mine) < MAX_TEXTS:
            mine.append(int(item))
    return found


def _rows(capture: Capture, item: int) -> Integers:
    first = int(capture.items.first[item])
    return np.arange(first, first + int(capture.items.num_rows[item]))


def frames_of(capture: Capture, items: Sequence[int]) -> StoredFrames:
    """The forward rows of these items."""
    numbers = np.array(items, dtype=np.int64)
    return StoredFrames(capture.forward, capture.items.first[numbers], capture.items.num_rows[numbers])


def _text(capture: Capture, item: int) -> Integers:
    """Token ids of the real rows in order, and the label of the last one where it has one."""
    rows = _rows(capture, item)
    rows = rows[capture.rows.real[rows]]
    rows = rows[np.argsort(capture.rows.order[rows], kind="stable")]
    last = capture.rows.label[rows[-1:]]
    return np.concatenate([capture.rows.token[rows], last[last >= 0]])
