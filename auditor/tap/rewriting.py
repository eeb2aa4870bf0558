"""The active part of a tap: changes returned tensors on their way, by the schedule of auditor/perturbation.py.

A frame that is to be changed is held until it is whole, since a row may lie in two messages. Its payload is then
replaced byte by byte at the same places: headers, framing and lengths stay. Every other message passes as it came, at
once. So does a frame that breaks the contract, that is not finite, or that ends before it is whole.

Only training steps are changed: the requests of the stream say which they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from auditor.perturbation import PerturbSettings, Schedule
from auditor.tap.hops import HopReader, data_extent
from splitwire import wire
from splitwire.errors import FrameError, LimitError
from splitwire.v1 import channels_pb2, stack_pb2

if TYPE_CHECKING:  # a passive tap does not load torch
    import torch

_MAX_STEPS = 4096


class Rewriter(Protocol):
    """Sees every message of one exchange stream, and says what goes to the trusted node in place of each response."""

    def request(self, message: bytes) -> None:
        """The next message of the trusted node. It always passes as it is."""
        ...

    def response(self, message: bytes) -> list[bytes]:
        """What to pass on, now that the untrusted node's next message is here; empty while a frame is held."""
        ...

    def rest(self) -> list[bytes]:
        """What is still held when the stream ends."""
        ...


class PassThrough:
    """Changes nothing and holds nothing."""

    def request(self, message: bytes) -> None:
        """Needs to know nothing."""

    def response(self, message: bytes) -> list[bytes]:
        """The message itself."""
        return [message]

    def rest(self) -> list[bytes]:
        """Nothing."""
        return []


class Perturber:
    """Changes the returned tensors of the training steps that the schedule names. `count` is told of each."""

    def __init__(self, settings: PerturbSettings, count: Callable[[], None] = lambda: None) -> None:
        self._schedule = Schedule(settings)
        self._count = count
        self._requests = HopReader()
        self._train_steps: dict[int, None] = {}
        self._header: stack_pb2.FrameHeader | None = None
        self._held: list[bytes] = []
        self._held_bytes = 0

    def request(self, message: bytes) -> None:
        """Follows the session and notes training steps, the latest few thousand."""
        if self._requests.read(message) != channels_pb2.HOP_FORWARD:
            return
        header = _header(stack_pb2.ExchangeRequest, message)
        if header is not None and header.compute_mode == stack_pb2.COMPUTE_MODE_TRAIN:
            self._train_steps[header.step] = None
            if len(self._train_steps) > _MAX_STEPS:
                del self._train_steps[next(iter(self._train_steps))]

    def response(self, message: bytes) -> list[bytes]:
        """The messages that go on: none while a frame is held, all of it once it is whole."""
        header = _header(stack_pb2.ExchangeResponse, message)
        before = [] if header is None else self.rest()
        if header is not None and self._wants(header):
            self._header = header
        if self._header is None:
            return [*before, message]
        try:
            start, end = data_extent(message)
        except ValueError:
            return [*before, *self.rest(), message]
        self._held.append(message)
        self._held_bytes += end - start
        return before + self._whole(self._header)

    def rest(self) -> list[bytes]:
        """What is held, as it came."""
        held, self._held, self._held_bytes, self._header = self._held, [], 0, None
        return held

    def _wants(self, header: stack_pb2.FrameHeader) -> bool:
        """Whether the frame is to be changed, and is one of the contract."""
        from splitwire.frames import FrameLimits, check_header  # noqa: PLC0415 - loads torch

        if not self._amplitude(header):
            return False
        try:
            check_header(header, FrameLimits())
        except (FrameError, LimitError):
            return False
        return True

    def _whole(self, header: stack_pb2.FrameHeader) -> list[bytes]:
        if self._held_bytes < header.total_bytes:
            return []
        held, num_bytes = self._held, self._held_bytes
        self.rest()
        if num_bytes != header.total_bytes:
            return held
        extents = [data_extent(message) for message in held]
        pieces = [message[start:end] for message, (start, end) in zip(held, extents, strict=True)]
        directions = self._schedule.directions(self._session, header.step, header.hop, header.shape)
        payload = perturbed_payload(header, b"".join(pieces), directions, self._amplitude(header))
        if payload is None:
            return held
        self._count()
        return _with_payload(held, extents, payload)

    def _amplitude(self, header: stack_pb2.FrameHeader) -> float:
        if header.step not in self._train_steps:
            return 0.0
        return self._schedule.amplitude(self._session, header.step, header.hop)

    @property
    def _session(self) -> str:
        return wire.session_hash(self._requests.session_id)


def perturbed_payload(
    header: stack_pb2.FrameHeader, payload: bytes, directions: NDArray[np.float32], amplitude: float
) -> bytes | None:
    """The payload with every row y changed to y + amplitude * |y| * direction; None when it holds NaN or Inf.

    `directions` are unit rows of the header's shape. Rounded to the dtype of the wire; int8 rows get new scales; what
    overflows half precision becomes its largest value.
    """
    import torch  # noqa: PLC0415 - a passive tap does not load torch

    from splitwire.frames import decode_payload, encode_payload  # noqa: PLC0415

    rows = decode_payload(header.dtype, header.shape, bytearray(payload)).to(torch.float32)
    if not torch.isfinite(rows).all():
        return None
    length = rows.norm(dim=-1, keepdim=True)
    return bytes(
        encode_payload(header.dtype, _held_in(header, rows + amplitude * length * torch.from_numpy(directions)))
    )


def _held_in(header: stack_pb2.FrameHeader, rows: torch.Tensor) -> torch.Tensor:
    """The rows within what the dtype of the wire can hold."""
    import torch  # noqa: PLC0415

    if header.dtype == stack_pb2.WIRE_DTYPE_FP16:
        return rows.clamp(-torch.finfo(torch.float16).max, torch.finfo(torch.float16).max)
    return rows.nan_to_num()


def _with_payload(messages: Sequence[bytes], extents: Sequence[tuple[int, int]], payload: bytes) -> list[bytes]:
    """The messages of a frame with other bytes at the places of their payload."""
    changed, position = [], 0
    for message, (start, end) in zip(messages, extents, strict=True):
        piece = payload[position : position + end - start]
        changed.append(b"".join((message[:start], piece, message[end:])))
        position += len(piece)
    return changed


def _header(
    kind: type[stack_pb2.ExchangeRequest | stack_pb2.ExchangeResponse], message: bytes
) -> stack_pb2.FrameHeader | None:
    """The header of a frame's first message; None for any other message."""
    try:
        frame = kind.FromString(message).frame
    except DecodeError:
        return None
    return frame.header if frame.HasField("header") else None
