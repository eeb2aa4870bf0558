"""What the answers of the node's health service mean to whoever asks /healthz."""

from __future__ import annotations

from typing import Any

import pytest

from tln.serve.readiness import Readiness


class Parts:
    """Engine and links in one: what they say, and whether a session was asked for."""

    is_refusing = False
    is_connected = True
    said = "SERVING"
    num_reconnections = 0

    def ask_health(self, _timeout_seconds: float) -> str:
        return self.said

    def reconnect(self) -> None:
        self.num_reconnections += 1


def _looking(parts: Any) -> Readiness:
    return Readiness(parts, parts, 60.0, 1.0)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("SERVING", ""),
        ("UNIMPLEMENTED", ""),
        ("PERMISSION_DENIED", ""),
        ("NOT_SERVING", "the untrusted node says that it does not serve"),
        ("UNAVAILABLE", "the untrusted node cannot be reached"),
        ("DEADLINE_EXCEEDED", "the untrusted node does not answer"),
    ],
)
def test_every_answer_but_that_it_does_not_serve_is_a_sign_of_life(said: str, reason: str) -> None:
    parts = Parts()
    readiness = _looking(parts)
    parts.said = said
    readiness._look()
    assert readiness.standing().reason == reason


@pytest.mark.parametrize("said", ["CANCELLED", ""])
def test_a_question_that_was_cut_off_changes_nothing(said: str) -> None:
    """A session that is closed takes the question along; whether the node answers is not known from that."""
    parts = Parts()
    readiness = _looking(parts)
    parts.said = "DEADLINE_EXCEEDED"
    readiness._look()
    before = readiness.standing()
    parts.said = said
    readiness._look()
    assert readiness.standing() == before


def test_what_is_worse_is_told_and_a_lost_session_is_asked_for() -> None:
    """Stopping before no session before a node that hangs; the trouble of a lost session is not that of the next."""
    parts = Parts()
    readiness = _looking(parts)
    parts.said = "DEADLINE_EXCEEDED"
    readiness._look()
    parts.is_connected = False
    assert readiness.standing().reason == "no session with the untrusted node is up"
    readiness._look()
    assert parts.num_reconnections == 1
    parts.is_connected = True
    assert readiness.standing().reason == ""
    parts.is_refusing = True
    assert readiness.standing().reason == "this server is stopping"
