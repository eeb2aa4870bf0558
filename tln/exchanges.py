"""What an exchange with the untrusted node is to those who make, read, time and watch one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from splitwire.bundles import WireRecord
from splitwire.v1 import channels_pb2, stack_pb2

T = TypeVar("T")
Reader = Callable[[stack_pb2.ExchangeResponse], T | None]
"""Takes the responses of one exchange in order and gives the result with the last one, else None."""

WireObserver = Callable[[WireRecord], object]
"""Is told of every message as it crosses, on the crossing's thread; a Recorder's `offer` is one. It must be quick."""


class Transport(Protocol):
    """What the crossing needs of a connection."""

    observers: list[WireObserver]

    @property
    def session_hash(self) -> str:
        """The hash by which logs and bundles name the session; "" before `open`."""

    def open(self, request: stack_pb2.OpenSessionRequest) -> stack_pb2.OpenSessionResponse:
        """Asks for the session; PeerError when it is refused."""

    def exchange(self, messages: Sequence[bytes], route: Route, new_reader: Callable[[], Reader[T]]) -> T:
        """Sends serialized ExchangeRequests and reads responses until the reader has its result."""

    def close(self) -> None:
        """Frees the session and the connection. Does not raise when the peer is gone."""


@dataclass(frozen=True)
class Route:
    """Which step and hops an exchange belongs to, for observers and error texts."""

    step: int
    hop: channels_pb2.Hop
    reply_hop: channels_pb2.Hop

    def __str__(self) -> str:
        return f"{channels_pb2.Hop.Name(self.hop).removeprefix('HOP_')} of step {self.step}"


class Meter(Protocol):
    """Is told how long exchanges take and which are sent again; the metrics of a run are one."""

    def time_phase(self, phase: str, seconds: float, /) -> None:
        """One exchange, by the hop that it answers: exchange_forward, exchange_backward or exchange_control."""

    def count_retry(self) -> None:
        """One exchange is sent again."""
