"""A peer's status becomes our error, and its text cannot do harm."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

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
from tln.peer_errors import ConnectionLostError, clean, from_rpc


class Status(grpc.RpcError):
    """What a failed call carries."""

    def __init__(self, code: str, details: str = "", trailing: tuple[tuple[str, Any], ...] = ()) -> None:
        super().__init__()
        self._code, self._details, self._trailing = grpc.StatusCode[code], details, trailing

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> tuple[tuple[str, Any], ...]:
        return self._trailing


def named(name: str, remedy: str = "") -> tuple[tuple[str, Any], ...]:
    return (("splitwire-error", name), ("splitwire-remedy", remedy))


@pytest.mark.parametrize("kind", [FrameError, HandshakeError, StateError, ReplayError, LimitError, UnavailableError])
def test_the_peers_class_and_remedy_are_kept(kind: type[PeerError]) -> None:
    """The remedy is taken out of the text, where it stands too."""
    error = from_rpc(Status("FAILED_PRECONDITION", "x is 3. Use 4", named(kind.__name__, "Use 4")), "FORWARD of step 7")
    assert type(error) is kind
    assert str(error) == "FORWARD of step 7 was refused (FAILED_PRECONDITION): x is 3. Use 4"
    assert error.remedy == "Use 4"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("INVALID_ARGUMENT", FrameError),
        ("DATA_LOSS", FrameError),
        ("FAILED_PRECONDITION", StateError),
        ("NOT_FOUND", StateError),
        ("ABORTED", ReplayError),
        ("RESOURCE_EXHAUSTED", LimitError),
        ("UNIMPLEMENTED", HandshakeError),
        ("DEADLINE_EXCEEDED", UnavailableError),
        ("UNAVAILABLE", ConnectionLostError),
        ("CANCELLED", ConnectionLostError),
        ("INTERNAL", PeerError),
        ("UNKNOWN", PeerError),
    ],
)
def test_without_a_name_the_code_decides(code: str, kind: type[PeerError]) -> None:
    """Also for a name that is not one of ours, or that names one of ours which a peer may not choose."""
    for trailing in ((), named("SystemExit"), named("InternalError"), (("splitwire-error", b"\x00"),)):
        assert type(from_rpc(Status(code, "no", trailing), "x")) is kind


def test_a_peer_that_is_late_is_not_said_to_refuse() -> None:
    """The deadline is our own; what to do is said."""
    error = from_rpc(Status("DEADLINE_EXCEEDED", "Deadline Exceeded"), "OpenSession")
    assert error.message == "OpenSession had no answer in time"
    assert "connection.connect_timeout_seconds" in error.remedy


def test_authentication_and_authorisation_differ() -> None:
    """The exit code is the same, the fact is not."""
    denied, unknown = from_rpc(Status("PERMISSION_DENIED"), "x"), from_rpc(Status("UNAUTHENTICATED"), "x")
    assert isinstance(denied, AuthError)
    assert denied.authenticated
    assert isinstance(unknown, AuthError)
    assert not unknown.authenticated


def test_a_refused_certificate_is_not_an_absent_peer() -> None:
    """It is not tried again."""
    text = "failed to connect: SSL_ERROR_SSL: error:1000007d: CERTIFICATE_VERIFY_FAILED: unable to get local issuer"
    error = from_rpc(Status("UNAVAILABLE", text), "OpenSession", address="host:1")
    assert type(error) is AuthError
    assert "connection.server_name" in error.remedy


def test_a_peers_text_is_cut_and_printable() -> None:
    """No terminal control, no line breaks, no megabytes."""
    error = from_rpc(Status("INTERNAL", "\x1b[2J\n" + "a" * 5000), "x")
    assert "\x1b" not in str(error)
    assert "\n" not in str(error)
    assert len(str(error)) < 700
    assert clean("caf\u00e9") == "caf?"
