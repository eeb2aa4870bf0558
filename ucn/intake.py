"""Reads a session's stream: raw messages in, whole requests out.

A request is a tensor that is complete, or one control message, with the SHA-256 of its messages exactly as
received. Work on large frames (parsing, hashing, checking for NaN) runs off the event loop. The next message is
read only after the last request was answered, so a peer that sends faster than this node computes fills its own
flow-control window and no more.

Refused: bytes that are not ExchangeRequest, a first message that is not Attach or comes late, a later Attach, a
message without payload, a control message inside a frame, a stream that ends or falls silent inside a frame.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from splitwire.errors import FrameError, StateError
from splitwire.frames import FrameAssembler, FrameLimits, TensorFrame
from splitwire.v1 import channels_pb2, stack_pb2
from ucn.replies import Key
from ucn.status import TruncatedFrameError

_INLINE_BYTES = 128 << 10
"""Frames up to this size are taken on the event loop: handing them to a thread would cost more than taking them."""

M = TypeVar("M", bound=Message)


@dataclass(frozen=True)
class TensorRequest:
    """A complete FORWARD or BACKWARD frame."""

    frame: TensorFrame
    digest: str

    @property
    def key(self) -> Key:
        """What the request is called in its session."""
        return self.frame.header.hop, self.frame.header.step

    @property
    def hop_name(self) -> str:
        """The hop as metrics call it."""
        return hop_name(self.frame.header.hop)


@dataclass(frozen=True)
class ControlRequest:
    """A control message."""

    control: stack_pb2.Control
    digest: str

    @property
    def key(self) -> Key:
        """What the request is called in its session."""
        return channels_pb2.HOP_CONTROL, self.control.step

    @property
    def hop_name(self) -> str:
        """The hop as metrics call it."""
        return hop_name(channels_pb2.HOP_CONTROL)


Request = TensorRequest | ControlRequest


def hop_name(hop: int) -> str:
    """A hop as metrics call it, such as FORWARD."""
    return channels_pb2.Hop.Name(hop).removeprefix("HOP_")


def parse(kind: type[M], raw: bytes) -> M:
    """The message; FrameError when the bytes are not one."""
    try:
        return kind.FromString(raw)
    except DecodeError:
        raise FrameError(
            f"{len(raw)} bytes are not a {kind.DESCRIPTOR.name}", remedy="speak splitwire.v1 of the same release"
        ) from None


class Intake:
    """The reading side of one stream. `count` is told (hop name, bytes) for every message."""

    def __init__(
        self,
        context: Any,
        limits: FrameLimits,
        *,
        attach_timeout_seconds: float,
        frame_timeout_seconds: float,
        count: Callable[[str, int], None],
    ) -> None:
        self._context = context
        self._assembler = FrameAssembler(limits)
        self._attach_timeout_seconds = attach_timeout_seconds
        self._frame_timeout_seconds = frame_timeout_seconds
        self._count = count
        self._digest = hashlib.sha256()
        self._hop = ""

    async def attach(self) -> stack_pb2.Attach:
        """The first message of the stream."""
        try:
            async with asyncio.timeout(self._attach_timeout_seconds):
                raw = await self._context.read()
        except TimeoutError:
            raise StateError(
                f"no Attach came within {self._attach_timeout_seconds:g} s", remedy="send Attach first"
            ) from None
        if raw is grpc.aio.EOF:
            raise StateError("the stream ended before Attach", remedy="send Attach first")
        message = parse(stack_pb2.ExchangeRequest, raw)
        self._count("CONTROL", len(raw))
        if message.WhichOneof("payload") != "attach":
            raise StateError("the first message of the stream is not Attach", remedy="send Attach first")
        return message.attach

    async def next(self) -> Request | None:
        """The next whole request; None when the peer has finished sending."""
        while True:
            raw = await self._read()
            if raw is None:
                return None
            request = await self._take(raw)
            if request is not None:
                return request

    async def _read(self) -> bytes | None:
        if not self._assembler.pending:
            raw = await self._context.read()
            return None if raw is grpc.aio.EOF else raw
        try:
            async with asyncio.timeout(self._frame_timeout_seconds):
                raw = await self._context.read()
        except TimeoutError:
            raise TruncatedFrameError(
                f"nothing came inside a frame for {self._frame_timeout_seconds:g} s", remedy="send the frame again"
            ) from None
        if raw is grpc.aio.EOF:
            raise TruncatedFrameError("the stream ended inside a frame", remedy="attach again and send the whole frame")
        return bytes(raw)

    async def _take(self, raw: bytes) -> Request | None:
        message = parse(stack_pb2.ExchangeRequest, raw)
        kind = message.WhichOneof("payload")
        if kind == "frame":
            return await self._take_frame(raw, message.frame)
        if kind == "control" and not self._assembler.pending:
            self._count("CONTROL", len(raw))
            return self._control(raw, message.control)
        where = "inside a frame" if self._assembler.pending else "here"
        raise StateError(f"a message with payload {kind} is not due {where}", remedy="send whole frames and controls")

    async def _take_frame(self, raw: bytes, frame: stack_pb2.Frame) -> TensorRequest | None:
        if frame.HasField("header"):
            _check_hop(frame.header)
            self._digest = hashlib.sha256()
            self._hop = hop_name(frame.header.hop)
        self._count(self._hop or "UNSPECIFIED", len(raw))
        large = frame.header.total_bytes > _INLINE_BYTES or frame.chunk_index > 0
        done = await asyncio.to_thread(self._feed, raw, frame) if large else self._feed(raw, frame)
        return None if done is None else TensorRequest(done, self._digest.hexdigest())

    def _feed(self, raw: bytes, frame: stack_pb2.Frame) -> TensorFrame | None:
        self._digest.update(raw)
        return self._assembler.feed(frame)

    @staticmethod
    def _control(raw: bytes, control: stack_pb2.Control) -> ControlRequest:
        if control.step < 1 or control.WhichOneof("action") is None:
            raise FrameError("a control message has no step or no action", remedy="give a step from 1 and an action")
        return ControlRequest(control, hashlib.sha256(raw).hexdigest())


def _check_hop(header: stack_pb2.FrameHeader) -> None:
    if header.hop not in (channels_pb2.HOP_FORWARD, channels_pb2.HOP_BACKWARD):
        raise FrameError(
            f"hop {int(header.hop)} does not come from a trusted node", remedy="send FORWARD and BACKWARD frames"
        )
