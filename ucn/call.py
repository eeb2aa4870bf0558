"""What is known about the call that runs: who calls, which session, how many bytes. Read by the log line at its end."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass
class CallFacts:
    """Filled in while a call runs. Nothing here is content; `session` is the hash of a session's id."""

    method: str
    peer: str = ""
    session: str = ""
    num_bytes_in: int = 0
    num_bytes_out: int = 0
    num_requests: int = 0


_current: ContextVar[CallFacts] = ContextVar("ucn_call")


def begin(method: str) -> CallFacts:
    """Starts the facts of a call in this task."""
    facts = CallFacts(method)
    _current.set(facts)
    return facts


def current() -> CallFacts:
    """The facts of the call that this task serves."""
    return _current.get()


def current_session() -> str:
    """Hash of the session of the call that this task serves; empty outside a call."""
    facts = _current.get(None)
    return facts.session if facts else ""
