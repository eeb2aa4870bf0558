"""Frames, for any shape, dtype and chunk size."""

from __future__ import annotations

import hypothesis
import torch
from hypothesis import strategies as st

from splitwire import frames
from splitwire.errors import PeerError
from splitwire.v1 import channels_pb2, stack_pb2

SHAPES = st.lists(st.integers(1, 6), min_size=1, max_size=4)


@hypothesis.given(SHAPES, st.sampled_from(["fp32", "bf16", "fp16"]), st.integers(1, 64), st.integers(0, 2**32))
def test_any_tensor_round_trips_in_any_chunking(shape: list[int], dtype: str, chunk_bytes: int, seed: int) -> None:
    wire = frames.wire_dtype(dtype)
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(frames.torch_dtype(wire))
    header = stack_pb2.FrameHeader(hop=channels_pb2.HOP_RETURN, step=3, dtype=wire)
    assembler, result = frames.FrameAssembler(), None
    for message in frames.encode_frame(header, tensor, chunk_bytes=chunk_bytes):
        assert result is None
        result = assembler.feed(stack_pb2.ExchangeResponse.FromString(message).frame)
    assert result is not None
    assert torch.equal(result.tensor, tensor)


@hypothesis.given(
    st.lists(
        st.builds(
            stack_pb2.Frame,
            header=st.none()
            | st.builds(
                stack_pb2.FrameHeader,
                hop=st.integers(0, 6),
                step=st.integers(0, 3),
                dtype=st.integers(0, 6),
                shape=st.lists(st.integers(0, 2**32 - 1), max_size=6),
                total_bytes=st.integers(0, 2**64 - 1),
            ),
            chunk_index=st.integers(0, 3),
            data=st.binary(max_size=32),
        ),
        max_size=6,
    )
)
def test_any_hostile_stream_ends_in_a_peer_error_or_a_frame(messages: list[stack_pb2.Frame]) -> None:
    assembler = frames.FrameAssembler(frames.FrameLimits(max_frame_bytes=1 << 12, max_rows=64, max_width=64))
    for message in messages:
        try:
            assembler.feed(message)
        except PeerError:
            assert not assembler.pending
