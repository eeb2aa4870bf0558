"""The mapping of errors to gRPC statuses, which is also the table of docs/errors.md."""

from __future__ import annotations

import re
from pathlib import Path

import grpc
import pytest

from splitwire import errors
from ucn.status import INTERNAL_TEXT, TruncatedFrameError, peer_status

DOCUMENT = Path(__file__).parents[3] / "docs" / "errors.md"
PEER_ERRORS = [
    (errors.FrameError("x"), "INVALID_ARGUMENT", "FrameError"),
    (TruncatedFrameError("x"), "DATA_LOSS", "FrameError"),
    (errors.HandshakeError("x"), "FAILED_PRECONDITION", "HandshakeError"),
    (errors.StateError("x"), "FAILED_PRECONDITION", "StateError"),
    (errors.ReplayError("x"), "ABORTED", "ReplayError"),
    (errors.LimitError("x"), "RESOURCE_EXHAUSTED", "LimitError"),
    (errors.AuthError("x"), "UNAUTHENTICATED", "AuthError"),
    (errors.AuthError("x", authenticated=True), "PERMISSION_DENIED", "AuthError"),
    (errors.UnavailableError("x"), "UNAVAILABLE", "UnavailableError"),
    (errors.PeerError("x"), "UNKNOWN", "PeerError"),
]


@pytest.mark.parametrize(("error", "code", "name"), PEER_ERRORS)
def test_a_peers_error_keeps_its_class_text_and_remedy(error: errors.PeerError, code: str, name: str) -> None:
    """The client can rebuild the error from code and trailing metadata."""
    error.remedy = "do that"
    status = peer_status(error)
    assert status.code is grpc.StatusCode[code]
    assert status.details == "x. do that"
    assert status.trailing_metadata == (("splitwire-error", name), ("splitwire-remedy", "do that"))


@pytest.mark.parametrize(
    "error",
    [ValueError("secret"), errors.ModelError("secret"), errors.SettingsError("secret"), errors.InternalError("secret")],
)
def test_everything_else_has_a_fixed_text(error: Exception) -> None:
    """Bugs and the operator's own trouble are none of the peer's business."""
    status = peer_status(error)
    assert (status.code, status.details) == (grpc.StatusCode.INTERNAL, INTERNAL_TEXT)
    assert status.trailing_metadata == (("splitwire-error", "InternalError"),)


def test_text_for_peers_is_bounded_printable_ascii() -> None:
    """gRPC metadata takes nothing else."""
    status = peer_status(errors.StateError("\u00fc\r\n\x00" * 1000, remedy="\u2028" * 5000))
    for text in (status.details, status.remedy):
        assert len(text) <= 1000
        assert re.fullmatch(r"[ -~]*", text)


@pytest.mark.parametrize(("error", "code", "name"), [row for row in PEER_ERRORS if row[2] != "PeerError"])
def test_the_document_lists_the_mapping(error: errors.PeerError, code: str, name: str) -> None:
    """docs/errors.md has a row with this class, status and exit code."""
    row = rf"^\| `{name}` \| {code} \| {error.exit_code} \|"
    assert re.search(row, DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)


def test_the_document_lists_every_class_of_the_tree() -> None:
    """Nothing of splitwire.errors is left out, with its exit code."""
    text = DOCUMENT.read_text(encoding="utf-8")
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, errors.SplitwireError):
            assert re.search(rf"^\| `{name}` \| [A-Z_ -]+ \| {kind.exit_code} \|", text, re.MULTILINE), name
