"""Whether a text could begin now, as /healthz and the metrics say it, and the thread that finds it out.

The stream of an idle session looks whole for as long as nobody hears otherwise, so a node that is frozen would go
unnoticed until the first exchange with it is late. So the thread asks the node's gRPC health service every
`check_seconds`, on the connection of a session that is up, with a deadline of its own: no text waits for it. Any answer
but that it does not serve will do, also one of a node that knows no such service. Where no session is up, the thread
has one opened.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import UTC, datetime

from splitwire.logging import get_logger
from tln.serve.engine import Engine
from tln.serve.links import LinkPool

_log = get_logger(__name__)
_STOPPING = "this server is stopping"
_NO_SESSION = "no session with the untrusted node is up"
_TROUBLE = {
    "DEADLINE_EXCEEDED": "the untrusted node does not answer",
    "UNAVAILABLE": "the untrusted node cannot be reached",
    "NOT_SERVING": "the untrusted node says that it does not serve",
}
_UNKNOWN = frozenset({"", "CANCELLED"})  # the session went while the question was under way


@dataclass(frozen=True)
class Standing:
    """Why no text could begin, "" when one could, and since when that is so."""

    reason: str
    since: datetime


class Readiness:
    """Watches from `start` to `end`."""

    def __init__(self, engine: Engine, links: LinkPool, check_seconds: float, timeout_seconds: float) -> None:
        self._engine = engine
        self._links = links
        self._check_seconds = check_seconds
        self._timeout_seconds = timeout_seconds
        self._trouble = ""
        self._standing = Standing("", datetime.now(UTC))
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="readiness", daemon=True)

    def start(self) -> None:
        """Begins to ask."""
        self._thread.start()

    def end(self) -> None:
        """Asks no more. A question that is under way is waited for: close the links before."""
        self._ended.set()
        self._thread.join()

    def standing(self) -> Standing:
        """How it is now. Any thread may ask."""
        with self._lock:
            reason = self._reason()
            if reason != self._standing.reason:
                self._standing = Standing(reason, datetime.now(UTC))
                _log.info("readiness", reason=reason or "ready")
            return self._standing

    def _reason(self) -> str:
        if self._engine.is_refusing:
            return _STOPPING
        return self._trouble if self._engine.is_connected else _NO_SESSION

    def _run(self) -> None:
        while not self._ended.wait(self._check_seconds):
            self._look()
            self.standing()

    def _look(self) -> None:
        if not self._engine.is_connected:
            self._trouble = ""  # the session that is opened next is an answer
            self._engine.reconnect()
            return
        said = self._links.ask_health(self._timeout_seconds)
        if said not in _UNKNOWN:
            self._trouble = _TROUBLE.get(said, "")
