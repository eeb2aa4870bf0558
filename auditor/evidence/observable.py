"""Which channel families the evidence lets an untrusted node attack, and what shows it.

A verdict cannot pass over a family that is in here: leaving it out of a plan does not take it from the node. What
counts, family by family:

    forward_only             FORWARD frames
    gradient_only            BACKWARD frames
    joint_forward_gradient   both
    response_side            RETURN frames
    accumulated_history      two FORWARD frames or more: a node keeps what it saw, so a second frame is a history,
                             whether or not text comes again
    timing_metadata          any message: sizes, counts and order are seen by whoever receives it
    stateful_remote_state    snapshots of the node's own state
    membership_property      a truth that knows documents of both kinds, trained on and held out
    active_perturbation      a bundle of the active tap
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from google.protobuf.message import DecodeError

from auditor.channels import (
    ACCUMULATED_HISTORY,
    ACTIVE_PERTURBATION,
    FORWARD_ONLY,
    GRADIENT_ONLY,
    JOINT,
    MEMBERSHIP_PROPERTY,
    RESPONSE_SIDE,
    STATEFUL_REMOTE_STATE,
    TIMING_METADATA,
)
from auditor.evidence.sources import FrameSource, TruthSource
from auditor.perturbation import perturbation_of
from splitwire.bundles import SnapshotBundle, WireRecord, hop_name
from splitwire.v1 import stack_pb2

_HISTORY_FRAMES = 2
_HOPS = ("FORWARD", "RETURN", "BACKWARD")


def observable(sources: Sequence[FrameSource], truths: Sequence[TruthSource]) -> dict[str, str]:
    """Families that the evidence shows, in words of what shows each."""
    seen = _count(sources)
    shown = {
        FORWARD_ONLY: _some(seen, "FORWARD"),
        GRADIENT_ONLY: _some(seen, "BACKWARD"),
        JOINT: _some(seen, "FORWARD") and _some(seen, "BACKWARD") and "the same steps have both hops",
        ACCUMULATED_HISTORY: seen["FORWARD"] >= _HISTORY_FRAMES and "more than one forward frame crossed",
        STATEFUL_REMOTE_STATE: any(map(has_snapshots, sources)) and "the node's own state was recorded",
        TIMING_METADATA: bool(seen) and "whoever receives a message sees its size, order and time",
        MEMBERSHIP_PROPERTY: _holds_out(truths) and "some documents were trained on and some held out",
        RESPONSE_SIDE: _some(seen, "RETURN"),
        ACTIVE_PERTURBATION: any(map(is_perturbed, sources)) and "a bundle of the active tap is given",
    }
    return {name: what for name, what in shown.items() if what}


def has_snapshots(source: FrameSource) -> bool:
    """Whether a bundle holds snapshots of the untrusted node's state."""
    return isinstance(source, SnapshotBundle)


def is_perturbed(source: FrameSource) -> bool:
    """Whether a bundle was recorded by the active tap."""
    return perturbation_of(getattr(source, "settings", {})).is_active


def _count(sources: Sequence[FrameSource]) -> Counter[str]:
    """Frames begun by hop, control messages too, up to where more of them would tell nothing new."""
    seen: Counter[str] = Counter()
    for source in sources:
        for record in source.messages():
            seen[hop_name(record.hop)] += _begins_frame(record)
            if all(seen[name] for name in _HOPS) and seen["FORWARD"] >= _HISTORY_FRAMES:
                return seen
    return seen


def _begins_frame(record: WireRecord) -> bool:
    """Whether a message is the first of a frame; control messages count as they are."""
    if record.kind not in ("ExchangeRequest", "ExchangeResponse") or hop_name(record.hop) == "CONTROL":
        return True
    try:
        # `frame` is the same field of both messages.
        return stack_pb2.ExchangeRequest.FromString(record.message).frame.HasField("header")
    except DecodeError:
        return False


def _some(seen: Counter[str], hop: str) -> str:
    return f"{hop} frames crossed" if seen[hop] else ""


def _holds_out(truths: Sequence[TruthSource]) -> bool:
    members = {bool(document.get("member")) for truth in truths for document in truth.documents}
    return len(members) == 2
