"""Reads which hop a message of the exchange stream belongs to, without parsing the tensor in it.

Walks protobuf fields by tag and length, so the cost does not depend on the payload. Only the first message of a frame
names its hop; the later ones belong to the frame that is running in their direction. What is not a message of the
contract, or names no hop of it, is read as HOP_CONTROL, so that it is recorded too: the tap keeps what crossed, also
when it breaks the contract.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from splitwire.v1 import channels_pb2

# Field numbers of proto/splitwire/v1/stack.proto; a test compares them with the generated descriptors.
ATTACH_FIELD = 1
FRAME_FIELD = 2
HEADER_FIELD = 1
HOP_FIELD = 1
SESSION_FIELD = 1
DATA_FIELD = 3

_TENSOR_HOPS: dict[int, channels_pb2.Hop] = {
    hop: hop
    for hop in (
        channels_pb2.HOP_FORWARD,
        channels_pb2.HOP_RETURN,
        channels_pb2.HOP_BACKWARD,
        channels_pb2.HOP_INPUT_GRADIENT,
    )
}

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}
_MAX_VARINT_BYTES = 10


@dataclass
class HopReader:
    """Follows one direction of one exchange stream."""

    session_id: str = ""
    """The session that the last Attach named; requests only."""
    _hop: channels_pb2.Hop = channels_pb2.HOP_CONTROL

    def read(self, message: bytes) -> channels_pb2.Hop:
        """The hop of the next message."""
        try:
            field, start, end = _last_submessage(message)
            if field == FRAME_FIELD:
                return self._frame(message, start, end)
            if field == ATTACH_FIELD:
                self.session_id = _text(message, start, end, SESSION_FIELD)
        except ValueError:
            pass
        return channels_pb2.HOP_CONTROL

    def _frame(self, message: bytes, start: int, end: int) -> channels_pb2.Hop:
        for field, wire_type, header_start, header_end in _fields(message, start, end):
            if field == HEADER_FIELD and wire_type == _LENGTH:
                self._hop = _TENSOR_HOPS.get(
                    _number(message, header_start, header_end, HOP_FIELD), channels_pb2.HOP_CONTROL
                )
        return self._hop


def data_extent(message: bytes) -> tuple[int, int]:
    """Where the piece of the payload lies in a message that carries part of a frame; ValueError where there is none."""
    field, start, end = _last_submessage(message)
    pieces = [
        (piece_start, piece_end)
        for number, wire_type, piece_start, piece_end in _fields(message, start, end)
        if number == DATA_FIELD and wire_type == _LENGTH
    ]
    if field != FRAME_FIELD or not pieces:
        raise ValueError("data")
    return pieces[-1]


def _last_submessage(message: bytes) -> tuple[int, int, int]:
    """Number and extent of the last submessage, since of a oneof the last one counts; field 0 when there is none."""
    last = 0, 0, 0
    for field, wire_type, start, end in _fields(message, 0, len(message)):
        if wire_type == _LENGTH:
            last = field, start, end
    return last


def _number(message: bytes, start: int, end: int, wanted: int) -> int:
    value = 0
    for field, wire_type, field_start, _ in _fields(message, start, end):
        if field == wanted and wire_type == _VARINT:
            value = _varint(message, field_start, end)[0]
    return value


def _text(message: bytes, start: int, end: int, wanted: int) -> str:
    value = b""
    for field, wire_type, field_start, field_end in _fields(message, start, end):
        if field == wanted and wire_type == _LENGTH:
            value = message[field_start:field_end]
    return value.decode("ascii")


def _fields(message: bytes, position: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Number, wire type, start and end of each field; ValueError where the bytes are no protobuf."""
    while position < end:
        tag, position = _varint(message, position, end)
        field, wire_type = tag >> 3, tag & 7
        start = position
        if wire_type == _VARINT:
            position = _varint(message, position, end)[1]
        elif wire_type == _LENGTH:
            length, start = _varint(message, position, end)
            position = start + length
        elif wire_type in _FIXED_BYTES:
            position += _FIXED_BYTES[wire_type]
        else:
            raise ValueError("wire type")
        if position > end or field == 0:
            raise ValueError("length")
        yield field, wire_type, start, position


def _varint(message: bytes, position: int, end: int) -> tuple[int, int]:
    value = 0
    for index in range(_MAX_VARINT_BYTES):
        if position >= end:
            break
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, position
    raise ValueError("varint")
