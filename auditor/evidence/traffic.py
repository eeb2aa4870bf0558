"""How much crossed, when, and in which shapes: what `auditor inspect` shows of a bundle. Never a tensor's value.

A frame's time is that of its first message. A gap is the time between two frames of one hop and session (control: two
messages); the largest one shows a pause, the median the rhythm. Rates are over the time from first to last message.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from auditor.evidence.frames import frame_header
from splitwire.bundles import WireRecord, hop_name
from splitwire.v1 import stack_pb2

_NANOSECONDS = 1e9


@dataclass
class HopTraffic:
    """One hop of one session. `shapes` counts frames by dtype number and shape; times are in nanoseconds."""

    session_hash: str
    hop: str
    num_messages: int = 0
    num_bytes: int = 0
    first_ns: int = 0
    last_ns: int = 0
    begins_ns: list[int] = field(default_factory=list)
    shapes: Counter[tuple[stack_pb2.WireDtype, tuple[int, ...]]] = field(default_factory=Counter)

    @property
    def num_frames(self) -> int:
        """Tensors whose first message was seen; 0 for control."""
        return self.shapes.total()

    @property
    def seconds(self) -> float:
        """From the first message to the last."""
        return (self.last_ns - self.first_ns) / _NANOSECONDS

    @property
    def gaps_seconds(self) -> tuple[float, float] | None:
        """Median and largest gap; None when nothing came twice."""
        gaps = [after - before for before, after in zip(self.begins_ns, self.begins_ns[1:], strict=False)]
        if not gaps:
            return None
        return statistics.median(gaps) / _NANOSECONDS, max(gaps) / _NANOSECONDS

    def per_second(self, count: int) -> float | None:
        """A count as a rate; None when the hop took no time."""
        return count / self.seconds if self.seconds > 0 else None

    def add(self, record: WireRecord) -> None:
        """Takes the next message of this hop."""
        self.first_ns = self.first_ns or record.received_ns
        self.last_ns = record.received_ns
        self.num_messages += 1
        self.num_bytes += len(record.message)
        header = frame_header(record)
        if header is not None:
            self.shapes[header.dtype, tuple(header.shape)] += 1
        if header is not None or self.hop == "CONTROL":
            self.begins_ns.append(record.received_ns)


def summarise(records: Iterable[WireRecord]) -> list[HopTraffic]:
    """One entry a (session, hop), in the order of their first messages."""
    found: dict[tuple[str, str], HopTraffic] = {}
    for record in records:
        key = (record.session_hash, hop_name(record.hop))
        if key not in found:
            found[key] = HopTraffic(*key)
        found[key].add(record)
    return list(found.values())
