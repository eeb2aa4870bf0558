"""What a bundle holds: one record a message that crossed, and the tensors put together from them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

from splitwire.errors import BundleError
from splitwire.v1 import channels_pb2, stack_pb2

if TYPE_CHECKING:  # a recorder must not load torch
    import torch

Direction = Literal["request", "response"]

MESSAGE_KINDS = (
    "ExchangeRequest",
    "ExchangeResponse",
    "OpenSessionRequest",
    "OpenSessionResponse",
    "CloseSessionRequest",
    "CloseSessionResponse",
)
_HOPS = frozenset(channels_pb2.Hop.values()) - {channels_pb2.HOP_UNSPECIFIED}


@dataclass(frozen=True)
class WireRecord:
    """One serialized message exactly as it crossed.

    `session_hash` is empty for a message of no session: a request to open one has the hash of the session that it got.
    Times are nanoseconds since 1970; a recorder that sees only one side of a message gives the same time twice.
    """

    hop: channels_pb2.Hop
    direction: Direction
    session_hash: str
    message: bytes
    sent_ns: int
    received_ns: int
    kind: str


@dataclass(frozen=True)
class RecordedFrame:
    """One tensor that crossed. `message_digest` joins it with the truth; times are of its first and last message."""

    hop: channels_pb2.Hop
    session_hash: str
    header: stack_pb2.FrameHeader
    tensor: torch.Tensor
    message_digest: str
    first_ns: int
    last_ns: int


def frame_digest(messages: Iterable[bytes]) -> str:
    """SHA-256 hex over the serialized messages of one frame, put together in the order in which they were sent."""
    digest = hashlib.sha256()
    for message in messages:
        digest.update(message)
    return digest.hexdigest()


def hop_name(hop: int) -> str:
    """FORWARD, RETURN, BACKWARD, INPUT_GRADIENT or CONTROL."""
    return channels_pb2.Hop.Name(cast("channels_pb2.Hop", hop)).removeprefix("HOP_")


@dataclass(frozen=True)
class ChannelKey:
    """What all messages of one MCAP channel have in common."""

    hop: channels_pb2.Hop
    direction: Direction
    session_hash: str
    kind: str

    @classmethod
    def of(cls, record: WireRecord) -> ChannelKey:
        """The channel that this record belongs to."""
        return cls(record.hop, record.direction, record.session_hash, record.kind)

    @classmethod
    def from_metadata(cls, metadata: dict[str, str]) -> ChannelKey:
        """The reverse of `metadata`; BundleError when it is not what a recorder writes."""
        try:
            hop = cast("channels_pb2.Hop", channels_pb2.Hop.Value(f"HOP_{metadata['hop']}"))
            key = cls(hop, cast("Direction", metadata["direction"]), metadata["session"], metadata["kind"])
            key.check()
        except (KeyError, ValueError):
            raise BundleError("a channel of wire.mcap is not a recorder's", remedy="verify the bundle") from None
        return key

    def metadata(self) -> dict[str, str]:
        """What MCAP keeps of the channel, as text."""
        return {"hop": hop_name(self.hop), "direction": self.direction, "session": self.session_hash, "kind": self.kind}

    def topic(self) -> str:
        """The channel's name in MCAP: /session hash or -/hop/direction/kind."""
        return f"/{self.session_hash or '-'}/{hop_name(self.hop)}/{self.direction}/{self.kind}"

    def check(self) -> None:
        """ValueError unless hop, direction and kind are of the contract."""
        if self.hop not in _HOPS or self.direction not in ("request", "response") or self.kind not in MESSAGE_KINDS:
            raise ValueError(f"no channel for hop {self.hop}, direction {self.direction!r}, kind {self.kind!r}")
