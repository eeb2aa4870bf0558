"""Whatever bytes a peer sends, reading the hop never fails, and agrees with the parser where that accepts them."""

from __future__ import annotations

from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from auditor.tap.hops import HopReader
from splitwire.v1 import channels_pb2, stack_pb2

HOPS = st.sampled_from([channels_pb2.HOP_FORWARD, channels_pb2.HOP_RETURN, channels_pb2.HOP_BACKWARD])


@given(st.binary(max_size=64))
def test_any_bytes_have_a_hop(message: bytes) -> None:
    assert HopReader().read(message) in channels_pb2.Hop.values()


@given(hop=HOPS, step=st.integers(1, 1 << 63), lengths=st.lists(st.integers(0, 1 << 31), max_size=5), data=st.binary())
def test_a_serialized_frame_has_the_hop_of_its_header(
    hop: channels_pb2.Hop, step: int, lengths: list[int], data: bytes
) -> None:
    header = stack_pb2.FrameHeader(hop=hop, step=step, row_lengths=lengths, shape=lengths)
    message = stack_pb2.ExchangeRequest(frame=stack_pb2.Frame(header=header, data=data))
    assert HopReader().read(message.SerializeToString()) == hop


@given(prefix=st.binary(max_size=8), hop=HOPS)
def test_bytes_before_a_frame_do_not_hide_a_hop_that_the_parser_sees(prefix: bytes, hop: channels_pb2.Hop) -> None:
    frame = stack_pb2.ExchangeRequest(frame=stack_pb2.Frame(header=stack_pb2.FrameHeader(hop=hop, step=1)))
    message = prefix + frame.SerializeToString()
    try:
        parsed = stack_pb2.ExchangeRequest.FromString(message)
    except DecodeError:
        return
    if parsed.frame.header.hop == hop:
        assert HopReader().read(message) == hop
