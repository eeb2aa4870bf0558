"""The one place that turns errors into gRPC status codes, and decides what a peer may read of them.

A SplitwireError of the peer's making goes out with its message and remedy; its class name and remedy travel in
trailing metadata. Anything else, a bug or the operator's own trouble, goes out as INTERNAL with a fixed text: the
text of an unknown exception may hold content, so it never leaves the process and is never logged.
"""

from __future__ import annotations

from dataclasses import dataclass

import grpc

from splitwire.errors import (
    AuthError,
    FrameError,
    HandshakeError,
    InternalError,
    LimitError,
    PeerError,
    ReplayError,
    StateError,
    UnavailableError,
)
from splitwire.wire import ERROR_KEY, REMEDY_KEY

INTERNAL_TEXT = "the untrusted node failed; its operator's log names the place"
_MAX_TEXT = 1000

_CODES: tuple[tuple[type[PeerError], grpc.StatusCode], ...] = (
    (FrameError, grpc.StatusCode.INVALID_ARGUMENT),
    (HandshakeError, grpc.StatusCode.FAILED_PRECONDITION),
    (StateError, grpc.StatusCode.FAILED_PRECONDITION),
    (ReplayError, grpc.StatusCode.ABORTED),
    (LimitError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (UnavailableError, grpc.StatusCode.UNAVAILABLE),
)


class TruncatedFrameError(FrameError):
    """A stream ended, or went silent, inside a frame. Peers see the name of its base class."""


@dataclass(frozen=True)
class PeerStatus:
    """What leaves the process about a failure."""

    code: grpc.StatusCode
    details: str
    error: str
    remedy: str

    @property
    def trailing_metadata(self) -> tuple[tuple[str, str], ...]:
        """Class name and remedy, for the client to rebuild the error."""
        pairs = ((ERROR_KEY, self.error), (REMEDY_KEY, self.remedy))
        return tuple((key, value) for key, value in pairs if value)


def peer_status(error: BaseException) -> PeerStatus:
    """The status of an exception that a handler raised."""
    if not isinstance(error, PeerError):
        return PeerStatus(grpc.StatusCode.INTERNAL, INTERNAL_TEXT, InternalError.__name__, "")
    return PeerStatus(_code(error), _header_text(str(error)), _public_name(error), _header_text(error.remedy))


def _code(error: PeerError) -> grpc.StatusCode:
    if isinstance(error, AuthError):
        return grpc.StatusCode.PERMISSION_DENIED if error.authenticated else grpc.StatusCode.UNAUTHENTICATED
    if isinstance(error, TruncatedFrameError):
        return grpc.StatusCode.DATA_LOSS
    return next((code for kind, code in _CODES if isinstance(error, kind)), grpc.StatusCode.UNKNOWN)


def _public_name(error: PeerError) -> str:
    known = (*(kind for kind, _ in _CODES), AuthError)
    return next((kind.__name__ for kind in known if isinstance(error, kind)), PeerError.__name__)


def _header_text(text: str) -> str:
    """Printable ASCII of bounded length: metadata takes nothing else, and parts of a message may echo the peer."""
    return "".join(letter if " " <= letter <= "~" else "?" for letter in text)[:_MAX_TEXT]
