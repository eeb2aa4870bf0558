"""Frames: what is encoded comes back, costs little more than its payload, and nothing malformed is accepted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from splitwire import frames
from splitwire.errors import FrameError, LimitError
from splitwire.v1 import channels_pb2, stack_pb2

DTYPES = ["fp32", "bf16", "fp16", "int8"]


def header(dtype: str = "fp32", step: int = 1) -> stack_pb2.FrameHeader:
    return stack_pb2.FrameHeader(hop=channels_pb2.HOP_FORWARD, step=step, dtype=frames.wire_dtype(dtype))


def parsed(messages: Iterator[bytes]) -> list[stack_pb2.Frame]:
    return [stack_pb2.ExchangeRequest.FromString(message).frame for message in messages]


def assemble(messages: list[stack_pb2.Frame], limits: frames.FrameLimits | None = None) -> frames.TensorFrame | None:
    assembler = frames.FrameAssembler(limits or frames.FrameLimits())
    result = None
    for message in messages:
        result = assembler.feed(message)
    return result


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("shape", [(1,), (1, 1), (3, 5, 7), (2, 2, 2, 2)])
def test_float_rows_come_back_bit_for_bit(dtype: str, shape: tuple[int, ...]) -> None:
    tensor = torch.randn(shape).to(frames.torch_dtype(frames.wire_dtype(dtype)))
    result = assemble(parsed(frames.encode_frame(header(dtype), tensor, chunk_bytes=16)))
    assert result is not None
    assert torch.equal(result.tensor, tensor)
    assert list(result.header.shape) == list(shape)


def test_int8_error_stays_within_half_a_quantum_of_each_row() -> None:
    rows = torch.randn(50, 64) * torch.logspace(-3, 3, 50).unsqueeze(-1)
    result = assemble(parsed(frames.encode_frame(header("int8"), rows)))
    assert result is not None
    quantum = rows.abs().amax(-1, keepdim=True) / 127
    assert ((result.tensor - rows).abs() <= quantum * 0.5001).all()


def test_a_zero_row_survives_int8() -> None:
    result = assemble(parsed(frames.encode_frame(header("int8"), torch.zeros(2, 4))))
    assert result is not None
    assert torch.equal(result.tensor, torch.zeros(2, 4))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [300, 5000])
def test_wire_bytes_are_within_one_percent_of_the_payload(dtype: str, rows: int) -> None:
    tensor = torch.randn(rows, 576)
    payload = frames.payload_bytes(frames.wire_dtype(dtype), tensor.shape)
    assert payload > 64 << 10
    sent = sum(len(message) for message in frames.encode_frame(header(dtype), tensor))
    assert payload < sent <= payload * 1.01


def test_a_tensor_over_512_mib_crosses_in_chunks() -> None:
    tensor = torch.ones(1100, 128, 1024, dtype=torch.float32)
    assert tensor.nbytes > 512 << 20
    assembler = frames.FrameAssembler(frames.FrameLimits())
    result, largest = None, 0
    for message in frames.encode_frame(header(), tensor):
        largest = max(largest, len(message))
        result = assembler.feed(stack_pb2.ExchangeRequest.FromString(message).frame)
    assert result is not None
    assert torch.equal(result.tensor, tensor)
    assert largest < (1 << 20) + 1024


def test_requests_and_responses_serialize_alike() -> None:
    message = next(frames.encode_frame(header(), torch.ones(2, 2)))
    as_request = stack_pb2.ExchangeRequest.FromString(message)
    as_response = stack_pb2.ExchangeResponse.FromString(message)
    assert as_request.frame == as_response.frame
    assert as_request.SerializeToString() == message


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_not_finite_is_refused_by_the_sender_and_the_receiver_without_its_value(value: float) -> None:
    tensor = torch.tensor([[1.5, value]])
    with pytest.raises(FrameError, match=r"FORWARD rows of step 7 contain NaN or Inf"):
        frames.encode_frame(header(step=7), tensor)
    whole = header(step=7)
    whole.shape[:] = [1, 2]
    whole.total_bytes = 8
    forged = stack_pb2.Frame(header=whole, data=tensor.numpy().tobytes())
    with pytest.raises(FrameError, match="NaN or Inf") as caught:
        frames.FrameAssembler().feed(forged)
    assert "1.5" not in str(caught.value)


def test_reordered_missing_repeated_and_headless_chunks_are_refused() -> None:
    first, second, third = parsed(frames.encode_frame(header(), torch.randn(12), chunk_bytes=16))
    for wrong in ([first, third], [first, first], [second], [first, second, second]):
        with pytest.raises(FrameError):
            assemble(wrong)


def test_a_truncated_frame_stays_pending_and_blocks_the_next_header() -> None:
    first, *_ = parsed(frames.encode_frame(header(), torch.randn(12), chunk_bytes=16))
    assembler = frames.FrameAssembler()
    assert assembler.feed(first) is None
    assert assembler.pending
    with pytest.raises(FrameError, match="before step 1 was complete"):
        assembler.feed(first)
    assert not assembler.pending


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"total_bytes": 9}, FrameError),
        ({"shape": [0, 2]}, FrameError),
        ({"shape": [1, 1, 1, 1, 2]}, FrameError),
        ({"shape": []}, FrameError),
        ({"dtype": 99}, FrameError),
        ({"hop": channels_pb2.HOP_CONTROL}, FrameError),
        ({"step": 0}, FrameError),
        ({"shape": [1 << 21, 1], "total_bytes": 4 << 21}, LimitError),
        ({"shape": [1, 1 << 17], "total_bytes": 4 << 17}, LimitError),
        ({"shape": [1 << 15, 1 << 15], "total_bytes": 4 << 30}, LimitError),
    ],
)
def test_a_header_that_lies_or_is_too_large_is_refused_before_allocation(change: dict, error: type) -> None:
    fields = {"hop": channels_pb2.HOP_FORWARD, "step": 1, "dtype": stack_pb2.WIRE_DTYPE_FP32}
    fields |= {"shape": [1, 2], "total_bytes": 8} | change
    assembler = frames.FrameAssembler()
    with pytest.raises(error):
        assembler.feed(stack_pb2.Frame(header=stack_pb2.FrameHeader(**fields), data=b"12345678"))
    assert not assembler.pending


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_finite_values_pass_however_large_their_sum(dtype: torch.dtype) -> None:
    """The sum of a tensor overflows long before one of its values does."""
    largest = torch.full((2, 8), torch.finfo(dtype).max, dtype=dtype)
    frames.check_finite(largest, header())
    frames.check_finite(-largest, header())
    for bad in (float("nan"), float("inf"), -float("inf")):
        largest[1, 3] = bad
        with pytest.raises(FrameError):
            frames.check_finite(largest, header())


def test_infinities_that_cancel_are_found() -> None:
    """Of both signs, their sum is NaN."""
    with pytest.raises(FrameError):
        frames.check_finite(torch.tensor([float("inf"), 1.0, -float("inf")]), header())
