"""Tensors to wire messages and back.

A frame is a header and little-endian chunks (see `Frame` in proto/splitwire/v1/stack.proto). The encoder yields
serialized messages ready to send; the assembler takes parsed frame messages in order and gives a tensor when the last
chunk is in. The payload is appended to each message by hand (tag, length, bytes) so that it is copied once.

Refused, with FrameError or LimitError: a declared size that does not match dtype and shape, sizes over the limits
(before anything is allocated), chunks out of order, missing or too long, and NaN or Inf. Values are never part of a
message.

Shapes: B sequences or frames, T rows or positions, D width; a wire row is one vector of D values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from splitwire.errors import FrameError, LimitError
from splitwire.v1 import channels_pb2, stack_pb2
from splitwire.wire import CHUNK_BYTES

_TORCH_DTYPES = {
    stack_pb2.WIRE_DTYPE_FP32: torch.float32,
    stack_pb2.WIRE_DTYPE_BF16: torch.bfloat16,
    stack_pb2.WIRE_DTYPE_FP16: torch.float16,
    stack_pb2.WIRE_DTYPE_INT8_ROW: torch.int8,
}
_DTYPE_NAMES = {
    "fp32": stack_pb2.WIRE_DTYPE_FP32,
    "bf16": stack_pb2.WIRE_DTYPE_BF16,
    "fp16": stack_pb2.WIRE_DTYPE_FP16,
    "int8": stack_pb2.WIRE_DTYPE_INT8_ROW,
}
_WRAPPER_TAG = b"\x12"  # field 2 (frame), length-delimited, in ExchangeRequest and ExchangeResponse alike
_DATA_TAG = b"\x1a"  # field 3 (data), length-delimited, in Frame
INT8_MAX = 127
"""Largest byte of an int8 row; -128 is not used."""

_MAX_DIMENSIONS = 4


@dataclass(frozen=True)
class FrameLimits:
    """What a receiver accepts. Checked on the header, before any allocation."""

    max_frame_bytes: int = 1 << 30
    max_rows: int = 1 << 20
    max_width: int = 1 << 16


@dataclass(frozen=True)
class TensorFrame:
    """One tensor as it crossed, in the dtype of the wire (float32 for int8)."""

    header: stack_pb2.FrameHeader
    tensor: torch.Tensor


def wire_dtype(name: str) -> stack_pb2.WireDtype:
    """The enum value of a settings name: fp32, bf16, fp16 or int8."""
    try:
        return _DTYPE_NAMES[name]
    except KeyError:
        raise FrameError(f"wire dtype {name!r} is unknown", remedy=f"use one of {', '.join(_DTYPE_NAMES)}") from None


def wire_dtype_name(dtype: stack_pb2.WireDtype) -> str:
    """The settings name of an enum value; 'unspecified' when it has none."""
    return next((name for name, value in _DTYPE_NAMES.items() if value == dtype), "unspecified")


def torch_dtype(dtype: stack_pb2.WireDtype) -> torch.dtype:
    """The torch dtype that computes in this wire dtype (int8 computes nothing: FrameError)."""
    if dtype not in _TORCH_DTYPES or dtype == stack_pb2.WIRE_DTYPE_INT8_ROW:
        raise FrameError(f"dtype {wire_dtype_name(dtype)} cannot compute", remedy="use fp32, bf16 or fp16")
    return _TORCH_DTYPES[dtype]


def payload_bytes(dtype: stack_pb2.WireDtype, shape: Sequence[int]) -> int:
    """Bytes of a payload of this dtype and shape, scales included."""
    count = math.prod(shape)
    if dtype == stack_pb2.WIRE_DTYPE_INT8_ROW:
        return count + 4 * (count // shape[-1] if count else 0)
    return count * _TORCH_DTYPES[dtype].itemsize


def quantise_rows(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """int8 values [..., D] and fp32 scales [...] with value = scale * byte; an all-zero row has scale 0."""
    rows = rows.to(torch.float32)
    scales = rows.abs().amax(dim=-1) / INT8_MAX
    safe = torch.where(scales > 0, scales, torch.ones_like(scales))
    return (rows / safe.unsqueeze(-1)).round().clamp(-INT8_MAX, INT8_MAX).to(torch.int8), scales


def grid_rows(rows: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """int8 values [..., D] and equal fp32 scales [...] of rows that are on the grid of multiples of `scale`.

    FrameError, without a value, for rows that the grid does not hold exactly: nothing is rounded or clamped unseen.
    """
    rows = rows.to(torch.float32)
    values = (rows / scale).round()
    if bool((values.abs() > INT8_MAX).any()) or not torch.equal(values * scale, rows):
        raise FrameError("rows are not on the fixed grid of the wire", remedy="add 'fixed_grid' to frame.mechanisms")
    return values.to(torch.int8), torch.full(rows.shape[:-1], scale, dtype=torch.float32)


def encode_frame(
    header: stack_pb2.FrameHeader,
    tensor: torch.Tensor,
    *,
    chunk_bytes: int = CHUNK_BYTES,
    grid_scale: float = 0.0,
) -> Iterator[bytes]:
    """Serialized ExchangeRequest or ExchangeResponse messages that carry `tensor` [..., D].

    `header` gives hop, step, dtype and what else the hop needs; shape and total_bytes are filled in here. Both
    directions serialize alike because `frame` is field 2 of both messages. An int8 tensor has a scale a row, or
    `grid_scale` for every row when that is above 0. FrameError when the tensor has NaN or Inf.
    """
    tensor = tensor.detach()
    check_shape(tensor.shape)
    check_finite(tensor, header)
    payload = encode_payload(header.dtype, tensor, grid_scale)
    first = stack_pb2.Frame(header=header)
    first.header.shape[:] = tensor.shape
    first.header.total_bytes = len(payload)
    return _messages(first, payload, chunk_bytes)


def check_shape(shape: Sequence[int]) -> None:
    """FrameError unless the shape has 1 to 4 dimensions, none of them zero."""
    if not 1 <= len(shape) <= _MAX_DIMENSIONS or any(size < 1 for size in shape):
        raise FrameError(f"shape {list(shape)} is not acceptable", remedy="send 1 to 4 dimensions, each at least 1")


def check_finite(tensor: torch.Tensor, header: stack_pb2.FrameHeader) -> None:
    """FrameError naming hop and step, never a value, when the tensor has NaN or Inf."""
    # NaN and Inf survive a sum, so a finite sum clears the tensor in one pass without temporaries. Only a sum that is
    # not finite, which large values reach by overflow too, needs a look at each value.
    if not math.isfinite(tensor.sum(dtype=torch.float32)) and not torch.isfinite(tensor).all():
        hop = channels_pb2.Hop.Name(header.hop).removeprefix("HOP_")
        raise FrameError(
            f"{hop} rows of step {header.step} contain NaN or Inf",
            remedy="lower the learning rate or the noise, or compute in fp32",
        )


def encode_payload(dtype: stack_pb2.WireDtype, tensor: torch.Tensor, grid_scale: float = 0.0) -> memoryview:
    """The payload of a tensor [..., D] in this dtype; `grid_scale` as in `encode_frame`."""
    if dtype not in _TORCH_DTYPES:
        raise FrameError(f"wire dtype {dtype} is unknown", remedy="use fp32, bf16, fp16 or int8")
    if dtype == stack_pb2.WIRE_DTYPE_INT8_ROW:
        rows = tensor.cpu()
        values, scales = grid_rows(rows, grid_scale) if grid_scale else quantise_rows(rows)
        return memoryview(_raw_bytes(scales).tobytes() + _raw_bytes(values).tobytes())
    return memoryview(_raw_bytes(tensor.to("cpu", _TORCH_DTYPES[dtype])))


def _raw_bytes(tensor: torch.Tensor) -> memoryview:
    return memoryview(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)


def _messages(first: stack_pb2.Frame, payload: memoryview, chunk_bytes: int) -> Iterator[bytes]:
    for index, start in enumerate(range(0, len(payload), chunk_bytes)):
        piece = payload[start : start + chunk_bytes]
        prefix = (stack_pb2.Frame(chunk_index=index) if index else first).SerializeToString()
        data_prefix = _DATA_TAG + _varint(len(piece))
        length = len(prefix) + len(data_prefix) + len(piece)
        yield b"".join((_WRAPPER_TAG, _varint(length), prefix, data_prefix, piece))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


@dataclass
class FrameAssembler:
    """Puts the chunks of one direction of a stream together. One frame at a time; state is dropped after an error."""

    limits: FrameLimits = field(default_factory=FrameLimits)
    _header: stack_pb2.FrameHeader | None = None
    _buffer: bytearray = field(default_factory=bytearray)
    _filled: int = 0
    _next_index: int = 0

    @property
    def pending(self) -> bool:
        """Whether a frame has begun and not ended."""
        return self._header is not None

    def feed(self, message: stack_pb2.Frame) -> TensorFrame | None:
        """Takes the next message; returns the tensor when it completes the frame, else None.

        Raises FrameError (malformed, truncated, reordered, not finite) or LimitError (too large).
        """
        try:
            return self._feed(message)
        except (FrameError, LimitError):
            self._reset()
            raise

    def _feed(self, message: stack_pb2.Frame) -> TensorFrame | None:
        if message.HasField("header"):
            self._begin(message.header)
        header = self._header
        if header is None:
            raise FrameError("a chunk came without a frame header", remedy="send the header with chunk 0")
        if message.chunk_index != self._next_index:
            raise FrameError(
                f"chunk {message.chunk_index} of step {header.step} came where chunk {self._next_index} was due",
                remedy="send the chunks of a frame in order, none left out",
            )
        end = self._filled + len(message.data)
        if not message.data or end > header.total_bytes:
            raise FrameError(
                f"chunk {message.chunk_index} of step {header.step} ends at byte {end}, {header.total_bytes} declared",
                remedy="send non-empty chunks that add up to total_bytes",
            )
        self._buffer[self._filled : end] = message.data
        self._filled, self._next_index = end, self._next_index + 1
        return self._finish(header) if end == header.total_bytes else None

    def _begin(self, header: stack_pb2.FrameHeader) -> None:
        if self._header is not None:
            raise FrameError(
                f"step {header.step} began before step {self._header.step} was complete",
                remedy="send all chunks of a frame before the next one",
            )
        check_header(header, self.limits)
        self._header = header
        self._buffer = bytearray(header.total_bytes)
        self._filled = self._next_index = 0

    def _finish(self, header: stack_pb2.FrameHeader) -> TensorFrame:
        buffer = self._buffer
        self._reset()
        tensor = decode_payload(header.dtype, header.shape, buffer)
        check_finite(tensor, header)
        return TensorFrame(header, tensor)

    def _reset(self) -> None:
        self._header, self._buffer = None, bytearray()


def check_header(header: stack_pb2.FrameHeader, limits: FrameLimits) -> None:
    """Checks hop, dtype, shape and sizes of a peer's header before anything is allocated."""
    if header.hop in (channels_pb2.HOP_UNSPECIFIED, channels_pb2.HOP_CONTROL) or header.step < 1:
        raise FrameError(
            f"hop {header.hop} with step {header.step} is not a tensor's",
            remedy="name a tensor hop and a step from 1",
        )
    if header.dtype not in _TORCH_DTYPES:
        raise FrameError(f"wire dtype {header.dtype} is unknown", remedy="use fp32, bf16, fp16 or int8")
    check_shape(header.shape)
    width, rows = header.shape[-1], math.prod(header.shape[:-1])
    if width > limits.max_width or rows > limits.max_rows:
        raise LimitError(
            f"{rows} rows of width {width} exceed the limit of {limits.max_rows} rows of width {limits.max_width}",
            remedy="send smaller batches or raise the receiver's limit",
        )
    needed = payload_bytes(header.dtype, header.shape)
    if header.total_bytes != needed:
        raise FrameError(
            f"total_bytes {header.total_bytes} does not match shape {list(header.shape)} in "
            f"{wire_dtype_name(header.dtype)}, which takes {needed}",
            remedy="declare the exact payload size",
        )
    if needed > limits.max_frame_bytes:
        raise LimitError(
            f"a frame of {needed} bytes exceeds the limit of {limits.max_frame_bytes}",
            remedy="send smaller batches or raise the receiver's max_frame_bytes",
        )


def decode_payload(dtype: stack_pb2.WireDtype, shape: Sequence[int], payload: bytearray) -> torch.Tensor:
    """The tensor of a complete payload; shares its memory except for int8, which becomes float32."""
    if dtype == stack_pb2.WIRE_DTYPE_INT8_ROW:
        split = len(payload) - math.prod(shape)
        scales = torch.frombuffer(payload, dtype=torch.float32, count=split // 4)
        values = torch.frombuffer(payload, dtype=torch.int8, offset=split)
        return (values.reshape(-1, shape[-1]).to(torch.float32) * scales.unsqueeze(-1)).reshape(*shape)
    return torch.frombuffer(payload, dtype=_TORCH_DTYPES[dtype]).reshape(*shape)
