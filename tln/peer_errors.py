"""The peer's gRPC status as an error of ours.

The class comes from the `splitwire-error` trailing metadata, else from the status code. The text is the peer's and
hence untrusted: only printable ASCII of bounded length is kept.
"""

from __future__ import annotations

import grpc

from splitwire.errors import (
    AuthError,
    FrameError,
    HandshakeError,
    LimitError,
    PeerError,
    ReplayError,
    StateError,
    UnavailableError,
)
from splitwire.wire import ERROR_KEY, REMEDY_KEY

_MAX_TEXT = 600
_UNTRUSTED_SIGNS = (
    "CERTIFICATE_VERIFY_FAILED",
    "Hostname Verification",
    "not in peer certificate",
    "WRONG_VERSION_NUMBER",
)
_NAMED: dict[str, type[PeerError]] = {
    kind.__name__: kind
    for kind in (FrameError, HandshakeError, StateError, ReplayError, LimitError, AuthError, UnavailableError)
}
_BY_CODE: dict[grpc.StatusCode, type[PeerError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: FrameError,
    grpc.StatusCode.DATA_LOSS: FrameError,
    grpc.StatusCode.UNIMPLEMENTED: HandshakeError,
    grpc.StatusCode.FAILED_PRECONDITION: StateError,
    grpc.StatusCode.NOT_FOUND: StateError,
    grpc.StatusCode.ABORTED: ReplayError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: LimitError,
    grpc.StatusCode.UNAUTHENTICATED: AuthError,
    grpc.StatusCode.PERMISSION_DENIED: AuthError,
    grpc.StatusCode.DEADLINE_EXCEEDED: UnavailableError,
}


class ConnectionLostError(UnavailableError):
    """The connection is gone or was never there: the one failure that is tried again with the same bytes."""


class SessionLostError(StateError):
    """The peer answers and does not know the session any more: it was started again, or the lease ended."""


def from_rpc(error: grpc.RpcError, what: str, *, address: str = "") -> PeerError:
    """The error of splitwire.errors that stands for a failed call; `what` names the call, `address` the peer."""
    code, text = error.code(), clean(error.details() or "")
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        at = f" at {address}" if address else ""
        if any(sign in text for sign in _UNTRUSTED_SIGNS):
            return AuthError(
                f"{what}: the TLS handshake with the untrusted node{at} failed: {text}",
                remedy="check that both certificates are of the same CA, that the untrusted node's names "
                "the host of the address (or set connection.server_name), and that TLS is spoken there",
            )
        return ConnectionLostError(
            f"{what}: no untrusted node answers{at}: {text}",
            remedy="check that it runs, the address, and that it allows this node's certificate",
        )
    if code is grpc.StatusCode.DEADLINE_EXCEEDED and not _metadata(error, ERROR_KEY):
        return UnavailableError(
            f"{what} had no answer in time",
            remedy="look at the untrusted node, or raise connection.connect_timeout_seconds",
        )
    kind = _NAMED.get(_metadata(error, ERROR_KEY)) or _BY_CODE.get(code, PeerError)
    remedy = clean(_metadata(error, REMEDY_KEY))
    reason = text.removesuffix(remedy).rstrip(" .") or "no reason given"
    message = f"{what} was refused ({code.name}): {reason}"
    if kind is AuthError:
        return AuthError(message, remedy=remedy, authenticated=code is grpc.StatusCode.PERMISSION_DENIED)
    return kind(message, remedy=remedy)


def clean(text: str) -> str:
    """Printable ASCII of bounded length: what may be shown of a peer's text."""
    shown = "".join(character if " " <= character <= "~" else "?" for character in text[: _MAX_TEXT + 1])
    return shown if len(shown) <= _MAX_TEXT else f"{shown[:_MAX_TEXT]}..."


def _metadata(error: grpc.RpcError, wanted: str) -> str:
    for key, value in error.trailing_metadata() or ():
        if key == wanted:
            return value if isinstance(value, str) else ""
    return ""
