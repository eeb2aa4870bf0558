"""When and how large the messages of each step were: what is seen without opening a tensor.

Columns are of one step (a FORWARD frame and what belongs to it). Sizes hold of any recorder's bundle. Times are
differences between what the tap saw, in microseconds; the recorder inside the trusted node sees one side of a message
only, so its bundles give none.

    *_bytes, *_messages       of the four tensor hops, framing included
    header_*                  row lengths, padding and shape as the FORWARD header says them
    control_messages          between the previous step and this one
    session_*                 of the request that opened the session
    trusted_before_us         from the last byte to the trusted node until the first of FORWARD: its own work before
    trusted_loss_us           from the last byte of RETURN until the first of BACKWARD: tail, loss and defence
    trusted_after_us          from the last byte of INPUT_GRADIENT until the next request: its own work after
    untrusted_*_us            the untrusted node's own work, forward and backward
    *_span_us                 from the first byte of a frame to its last

Left out, since a bundle does not hold them: status texts and trailers, which the untrusted node makes itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from auditor.evidence.frames import frame_header
from auditor.evidence.sources import FrameSource
from auditor.views.base import FloatArray
from splitwire.bundles import WireRecord, hop_name
from splitwire.v1 import stack_pb2

HOPS = ("FORWARD", "RETURN", "BACKWARD", "INPUT_GRADIENT")
TIMED_RECORDER = "tap"
"""The recorder that sees both sides of a message."""

_NANOSECONDS = 1e-3  # in a microsecond


@dataclass
class HopEvent:
    """One frame of one hop: its size, and when it was taken from its sender and handed on to its receiver."""

    num_bytes: int = 0
    num_messages: int = 0
    first_sent_ns: int = 0
    last_received_ns: int = 0


@dataclass
class StepEvent:
    """Everything that crossed of one step."""

    header: stack_pb2.FrameHeader
    num_controls: int
    free_ns: int
    """When the last byte before it had been handed to the trusted node."""
    next_ns: int = 0
    """When the trusted node sent the first byte after it."""
    hops: dict[str, HopEvent] = field(default_factory=dict)


@dataclass(frozen=True)
class Timeline:
    """Columns of the steps of all sessions: `values` [S, K] (NaN where a step has none), in the order of `keys`."""

    keys: Sequence[tuple[str, int]]
    names: Sequence[str]
    values: FloatArray
    timed_steps: int
    """Steps whose times are known."""

    @property
    def is_time(self) -> Sequence[bool]:
        """Which columns are times."""
        return [name.endswith("_us") for name in self.names]


def timeline(sources: Sequence[FrameSource]) -> Timeline:
    """The steps of every session, from the tap's bundle where there is one."""
    found: dict[tuple[str, int], dict[str, float]] = {}
    timed = 0
    for source in sorted(sources, key=lambda source: not _is_timed(source)):
        for key, columns in _steps(source.messages(), is_timed=_is_timed(source)):
            if key not in found:
                found[key] = columns
                timed += _is_timed(source)
    names = list(dict.fromkeys(name for columns in found.values() for name in columns))
    values = np.array([[columns.get(name, np.nan) for name in names] for columns in found.values()], dtype=np.float64)
    return Timeline(list(found), names, values.reshape(len(found), len(names)), timed)


def _is_timed(source: FrameSource) -> bool:
    return getattr(source, "recorder", "") == TIMED_RECORDER


def _steps(records: Iterable[WireRecord], *, is_timed: bool) -> Iterator[tuple[tuple[str, int], dict[str, float]]]:
    sessions: dict[str, _Session] = defaultdict(_Session)
    for record in records:
        if record.session_hash:
            sessions[record.session_hash].add(record)
    for name, session in sessions.items():
        for step, event in session.steps.items():
            yield (name, step), _sizes(event, session.open_bytes) | (_times(event) if is_timed else {})


class _Session:
    """Follows the messages of one session in the order in which they were recorded."""

    def __init__(self) -> None:
        self.steps: dict[int, StepEvent] = {}
        self.open_bytes = 0
        self._running: dict[str, HopEvent] = {}
        self._latest: StepEvent | None = None
        self._num_controls = 0
        self._free_ns = 0

    def add(self, record: WireRecord) -> None:
        """Takes the next message."""
        is_request = record.direction == "request"
        if record.kind == "OpenSessionRequest":
            self.open_bytes = len(record.message)
        header = frame_header(record)
        if is_request and self._latest is not None and not self._latest.next_ns and self._ends(record, header):
            self._latest.next_ns = record.sent_ns
        if header is not None:
            self._begin(record, header)
        elif hop_name(record.hop) == "CONTROL":
            self._num_controls += is_request
        if hop_name(record.hop) in HOPS and record.direction in self._running:
            event = self._running[record.direction]
            event.num_bytes += len(record.message)
            event.num_messages += 1
            event.last_received_ns = record.received_ns
        if not is_request:
            self._free_ns = record.received_ns

    def _ends(self, record: WireRecord, header: stack_pb2.FrameHeader | None) -> bool:
        """Whether a request is the first one after the latest step."""
        if self._latest is None or "INPUT_GRADIENT" not in self._latest.hops:
            return False
        return hop_name(record.hop) == "CONTROL" or (header is not None and hop_name(record.hop) == "FORWARD")

    def _begin(self, record: WireRecord, header: stack_pb2.FrameHeader) -> None:
        name, step = hop_name(record.hop), int(header.step)
        if name == "FORWARD" and step not in self.steps:
            kept = stack_pb2.FrameHeader()
            kept.CopyFrom(header)
            self._latest = self.steps[step] = StepEvent(kept, self._num_controls, self._free_ns)
            self._num_controls = 0
        self._running[record.direction] = HopEvent(first_sent_ns=record.sent_ns)
        if step in self.steps:
            self._running[record.direction] = self.steps[step].hops.setdefault(name, self._running[record.direction])


def _sizes(event: StepEvent, open_bytes: int) -> dict[str, float]:
    header, lengths = event.header, list(event.header.row_lengths)
    columns: dict[str, float] = {
        "header_row_lengths_sum": float(sum(lengths)),
        "header_row_lengths_max": float(max(lengths, default=0)),
        "header_row_lengths_min": float(min(lengths, default=0)),
        "header_padding_side": float(header.padding_side),
        "header_rows": float(np.prod(list(header.shape)[:-1])),
        "control_messages": float(event.num_controls),
        "session_open_bytes": float(open_bytes),
    }
    for name, hop in event.hops.items():
        columns[f"{name.lower()}_bytes"] = float(hop.num_bytes)
        columns[f"{name.lower()}_messages"] = float(hop.num_messages)
    return columns


def _times(event: StepEvent) -> dict[str, float]:
    hops = event.hops
    columns = {f"{name.lower()}_span_us": (hop.last_received_ns - hop.first_sent_ns) for name, hop in hops.items()}
    for name, before, after in (
        ("untrusted_forward_us", "FORWARD", "RETURN"),
        ("trusted_loss_us", "RETURN", "BACKWARD"),
        ("untrusted_backward_us", "BACKWARD", "INPUT_GRADIENT"),
    ):
        if before in hops and after in hops:
            columns[name] = hops[after].first_sent_ns - hops[before].last_received_ns
    if event.free_ns:
        columns["trusted_before_us"] = hops["FORWARD"].first_sent_ns - event.free_ns
    if event.next_ns:
        columns["trusted_after_us"] = event.next_ns - hops["INPUT_GRADIENT"].last_received_ns
    return {name: nanoseconds * _NANOSECONDS for name, nanoseconds in columns.items()}
