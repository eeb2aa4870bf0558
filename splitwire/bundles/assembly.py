"""Puts the tensors of a bundle together from recorded messages. The only part of reading that loads torch.

A node that sends a frame of the other node's hop does not get it into that hop: only frames of the right direction
count. One frame a (session, hop, direction) is in memory at a time. A header in the middle of a frame means that the
stream broke and the frame was sent again: the piece is forgotten without complaint, as its receiver did.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import DecodeError

from splitwire.bundles.records import ChannelKey, RecordedFrame, WireRecord, hop_name
from splitwire.errors import FrameError, LimitError
from splitwire.frames import FrameAssembler, FrameLimits
from splitwire.v1 import channels_pb2, stack_pb2

_PARSERS: dict[str, Any] = {
    "ExchangeRequest": stack_pb2.ExchangeRequest,
    "ExchangeResponse": stack_pb2.ExchangeResponse,
}
_DIRECTIONS = {
    channels_pb2.HOP_FORWARD: "request",
    channels_pb2.HOP_BACKWARD: "request",
    channels_pb2.HOP_RETURN: "response",
    channels_pb2.HOP_INPUT_GRADIENT: "response",
}


@dataclass
class _Channel:
    """One stream of frames and the frame that is being put together."""

    key: ChannelKey
    assembler: FrameAssembler
    digest: Any = field(default_factory=hashlib.sha256)
    first_ns: int = 0
    given: dict[tuple[int, str], None] = field(default_factory=dict)


def assemble(
    records: Iterable[WireRecord], note: Callable[[str], None], limits: FrameLimits | None = None
) -> Iterator[RecordedFrame]:
    """Frames in the order in which they were complete. `note` is told what is left out, without content."""
    assembly = Assembly(note, limits)
    for record in records:
        frame = assembly.feed(record)
        if frame is not None:
            yield frame
    assembly.finish()


class Assembly:
    """Puts frames together record by record. With `remember`, repeats are known among so many frames of a channel."""

    def __init__(
        self, note: Callable[[str], None], limits: FrameLimits | None = None, remember: int | None = None
    ) -> None:
        self._note = note
        self._limits = limits or FrameLimits()
        self._remember = remember
        self._channels: dict[ChannelKey, _Channel] = {}

    def feed(self, record: WireRecord) -> RecordedFrame | None:
        """The frame that this record completes."""
        if record.kind not in _PARSERS or record.hop not in _DIRECTIONS:
            return None
        key = ChannelKey.of(record)
        where = f"{hop_name(key.hop)} of session {key.session_hash}"
        if record.direction != _DIRECTIONS[record.hop]:
            self._note(f"{where}: a frame of this hop came from the wrong side")
            return None
        channel = self._channels.setdefault(key, _Channel(key, FrameAssembler(self._limits)))
        try:
            frame = _feed(channel, record)
        except (FrameError, LimitError, DecodeError) as error:
            text = error.message if isinstance(error, FrameError | LimitError) else "a message is not of the contract"
            self._note(f"{where}: {text}")
            return None
        if self._remember is not None and len(channel.given) > self._remember:
            del channel.given[next(iter(channel.given))]
        return frame

    def finish(self) -> None:
        """Notes the frames that have begun and not ended."""
        for channel in self._channels.values():
            if channel.assembler.pending:
                key = channel.key
                self._note(f"{hop_name(key.hop)} of session {key.session_hash}: the last frame is not whole")


def _feed(channel: _Channel, record: WireRecord) -> RecordedFrame | None:
    message = _PARSERS[record.kind].FromString(record.message)
    if message.WhichOneof("payload") != "frame":
        return None
    if message.frame.HasField("header"):
        if channel.assembler.pending:
            channel.assembler = FrameAssembler(channel.assembler.limits)
        channel.digest, channel.first_ns = hashlib.sha256(), record.sent_ns
    channel.digest.update(record.message)
    found = channel.assembler.feed(message.frame)
    if found is None:
        return None
    if found.header.hop != record.hop:
        raise FrameError(f"step {found.header.step} was recorded under another hop than its header names")
    digest = channel.digest.hexdigest()
    if (found.header.step, digest) in channel.given:
        return None
    channel.given[found.header.step, digest] = None
    return RecordedFrame(
        channel.key.hop,
        record.session_hash,
        found.header,
        found.tensor,
        digest,
        channel.first_ns,
        record.received_ns,
    )
