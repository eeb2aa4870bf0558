"""Turns the messages of one call into wire records.

Keeps the order of each direction. The request that opens a session is held back until the answer names the session, so
that everything of a session lies under its hash; it is one small message. Calls that carry nothing of a session, those
of the health service, are not recorded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from google.protobuf.message import DecodeError

from auditor.tap.hops import HopReader
from splitwire import wire
from splitwire.bundles import WireRecord
from splitwire.bundles.records import Direction
from splitwire.v1 import channels_pb2, stack_pb2

_KINDS = {
    wire.OPEN_SESSION: ("OpenSessionRequest", "OpenSessionResponse"),
    wire.CLOSE_SESSION: ("CloseSessionRequest", "CloseSessionResponse"),
    wire.EXCHANGE: ("ExchangeRequest", "ExchangeResponse"),
}


@dataclass(frozen=True)
class Seen:
    """One message as the tap saw it: when it came from its sender, and when it had been handed on to its receiver."""

    message: bytes
    sent_ns: int
    received_ns: int


class Sink(Protocol):
    """Where records go. Called on the event loop after the message was forwarded."""

    async def take(self, record: WireRecord) -> None:
        """Keeps one record."""


@dataclass
class CallObserver:
    """Follows one call of the contract."""

    method: str
    sink: Sink
    session: str = ""
    """Hash of the session, once known."""
    num_bytes: int = 0
    _request_hops: HopReader = field(default_factory=HopReader)
    _response_hops: HopReader = field(default_factory=HopReader)
    _held: list[Seen] = field(default_factory=list)

    async def request(self, seen: Seen) -> None:
        """Takes the next message of the trusted node."""
        self.num_bytes += len(seen.message)
        if self.method == wire.OPEN_SESSION:
            await self._release()  # a second request breaks the contract; never hold more than one
            self._held.append(seen)
            return
        hop = channels_pb2.HOP_CONTROL
        if self.method == wire.EXCHANGE:
            hop = self._request_hops.read(seen.message)
            self.session = _hash(self._request_hops.session_id) or self.session
        elif self.method == wire.CLOSE_SESSION:
            self.session = _hash(_session_id(stack_pb2.CloseSessionRequest(), seen.message))
        await self._keep("request", hop, seen)

    async def response(self, seen: Seen) -> None:
        """Takes the next message of the untrusted node."""
        self.num_bytes += len(seen.message)
        hop = channels_pb2.HOP_CONTROL
        if self.method == wire.OPEN_SESSION:
            self.session = _hash(_session_id(stack_pb2.OpenSessionResponse(), seen.message))
            await self._release()
        elif self.method == wire.EXCHANGE:
            hop = self._response_hops.read(seen.message)
        await self._keep("response", hop, seen)

    async def close(self) -> None:
        """Lets go of a request that was never answered."""
        await self._release()

    async def _release(self) -> None:
        held, self._held = self._held, []
        for seen in held:
            await self._keep("request", channels_pb2.HOP_CONTROL, seen)

    async def _keep(self, direction: Direction, hop: channels_pb2.Hop, seen: Seen) -> None:
        kinds = _KINDS.get(self.method)
        if kinds is None:
            return
        await self.sink.take(
            WireRecord(
                hop=hop,
                direction=direction,
                session_hash=self.session,
                message=seen.message,
                sent_ns=seen.sent_ns,
                received_ns=seen.received_ns,
                kind=kinds[direction == "response"],
            )
        )


def _session_id(
    parsed: stack_pb2.CloseSessionRequest | stack_pb2.OpenSessionResponse,
    message: bytes,
) -> str:
    try:
        parsed.ParseFromString(message)
    except DecodeError:
        return ""
    return parsed.session_id


def _hash(session_id: str) -> str:
    return wire.session_hash(session_id) if session_id.isascii() and session_id else ""
