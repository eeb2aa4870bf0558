"""What `auditor inspect` counts: frames by their headers, rates and gaps by the recorder's clock."""

from __future__ import annotations

import pytest
import torch

from auditor.evidence.traffic import summarise
from splitwire.bundles import WireRecord
from splitwire.frames import encode_frame
from splitwire.v1 import channels_pb2, stack_pb2

SECOND = 1_000_000_000


def record(hop: int, message: bytes, at_seconds: float) -> WireRecord:
    at = int(at_seconds * SECOND)
    return WireRecord(hop, "request", "ab" * 8, message, at, at, "ExchangeRequest")


def test_a_frame_of_many_messages_is_one_frame_and_gaps_are_between_frames() -> None:
    records = []
    for step, at in ((1, 10.0), (2, 11.0), (3, 15.0)):
        header = stack_pb2.FrameHeader(hop=channels_pb2.HOP_FORWARD, step=step, dtype=stack_pb2.WIRE_DTYPE_FP32)
        messages = encode_frame(header, torch.ones(4, 8), chunk_bytes=64)
        records += [record(channels_pb2.HOP_FORWARD, message, at) for message in messages]
    control = stack_pb2.ExchangeRequest(control=stack_pb2.Control(step=4)).SerializeToString()
    records.append(record(channels_pb2.HOP_CONTROL, control, 16.0))
    forward, last = summarise(records)
    assert (forward.hop, forward.num_frames, forward.num_messages) == ("FORWARD", 3, 6)
    assert forward.num_bytes == sum(len(entry.message) for entry in records[:6])
    assert forward.gaps_seconds == (2.5, 4.0)
    assert forward.seconds == 5.0
    assert forward.per_second(forward.num_frames) == pytest.approx(0.6)
    assert forward.shapes == {(stack_pb2.WIRE_DTYPE_FP32, (4, 8)): 3}
    assert (last.hop, last.num_frames, last.gaps_seconds, last.per_second(1)) == ("CONTROL", 0, None, None)
