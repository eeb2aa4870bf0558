"""What kind of rows a set of bundles holds: a calibration or a control is only used where it speaks of the same.

Two sets are comparable when they were cut from the same model at the same layers, for the same kind of stack, and have
rows of the same width. What protects them does not count: a control is another system on purpose.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from auditor.evidence.capture import Capture
from auditor.evidence.frames import opening
from auditor.evidence.sources import FrameSource
from splitwire.v1 import channels_pb2, stack_pb2

Representation = dict[str, Any]


def representation(sources: Sequence[FrameSource], capture: Capture) -> Representation:
    """Width of the rows, and every distinct stack that a session was opened for; both are public."""
    stacks = {_stack(message) for source in sources for message in _openings(source)}
    return {"forward_width": capture.forward.width, "stacks": [dict(stack) for stack in sorted(stacks)]}


def difference(expected: Representation, found: Representation) -> str:
    """In words, the first thing in which two representations differ; empty when they do not."""
    if expected["forward_width"] != found["forward_width"]:
        return f"rows are {found['forward_width']} wide, not {expected['forward_width']}"
    for wanted, given in zip(expected["stacks"], found["stacks"], strict=False):
        for name in wanted:
            if wanted[name] != given[name]:
                return f"{name} is {given[name]!r}, not {wanted[name]!r}"
    if len(expected["stacks"]) != len(found["stacks"]):
        return f"{len(found['stacks'])} kinds of sessions, not {len(expected['stacks'])}"
    return ""


def _openings(source: FrameSource) -> list[stack_pb2.OpenSessionRequest]:
    requests = (opening(record) for record in source.messages(channels_pb2.HOP_CONTROL))
    return [request for request in requests if request is not None]


def _stack(request: stack_pb2.OpenSessionRequest) -> tuple[tuple[str, Any], ...]:
    model, kind = request.model, request.stack_kind
    return (
        ("stack_kind", stack_pb2.StackKind.Name(kind) if kind in stack_pb2.StackKind.values() else f"unknown ({kind})"),
        ("family", model.family),
        ("first_layer", model.first_layer),
        ("last_layer", model.last_layer),
        ("hidden_width", model.hidden_width),
        ("fingerprint", model.fingerprint),
        ("gram_width", request.gram.width),
    )
