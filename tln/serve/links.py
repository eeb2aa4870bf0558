"""A link is one place for a text: a session that is opened when it is needed and reused, and the thread that uses it.

All frames of all texts are under way together, each on its own link; the untrusted node batches them. A link does one
piece of work at a time. What fails closes its session, and the next text gets a new one.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

from splitwire.errors import LimitError, SplitwireError
from splitwire.logging import get_logger
from tln.serve.sessions import Session

_log = get_logger(__name__)
T = TypeVar("T")


class OpeningError(Exception):
    """There is no session to work on; `cause` says why."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(type(cause).__name__)
        self.cause = cause


class Link:
    """One session and its thread. The engine's thread sets and clears `is_busy`."""

    def __init__(self, number: int, open_session: Callable[[], Session]) -> None:
        self._open_session = open_session
        self._thread = ThreadPoolExecutor(1, f"link-{number}")
        self._session: Session | None = None
        self.is_busy = False

    @property
    def is_open(self) -> bool:
        """Whether it holds a session."""
        return self._session is not None

    @property
    def is_connected(self) -> bool:
        """Whether it holds a session whose stream is up."""
        session = self._session
        return session is not None and session.is_connected

    def ask_health(self, timeout_seconds: float) -> str:
        """What the untrusted node says of itself on the session's connection; "" without a session. Any thread."""
        session = self._session
        return "" if session is None else session.ask_health(timeout_seconds)

    def do(self, work: Callable[[Session], T], done: Callable[[Future[T]], None]) -> None:
        """Runs `work` on the link's thread, on a session that is opened first when there is none.

        `done` is called on that thread. OpeningError without a session; any failure but a refused size closes it.
        """
        self._thread.submit(self._with_session, work).add_done_callback(done)

    def open(self) -> Session:
        """Opens its session and gives it, for what can be asked of it; whatever keeps it from opening is raised."""
        try:
            opened: Session = self._thread.submit(self._with_session, _itself).result()
        except OpeningError as error:
            raise error.cause from None
        return opened

    def drop(self) -> Future[None]:
        """Closes the session once the link is idle."""
        return self._thread.submit(self._close)

    def abandon(self) -> None:
        """What waits for the untrusted node waits no longer."""
        session = self._session
        if session is not None:
            session.transport.abandon()

    def end(self) -> None:
        """Waits for the work that runs, and ends the thread."""
        self._thread.shutdown(wait=True)

    def _with_session(self, work: Callable[[Session], T]) -> T:
        if self._session is None:
            try:
                self._session = self._open_session()
            except Exception as error:
                raise OpeningError(error) from error
        try:
            return work(self._session)
        except LimitError:
            raise
        except BaseException:
            self._close()
            raise

    def _close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with contextlib.suppress(SplitwireError):
                session.crossing.close()


def _itself(session: Session) -> Session:
    return session


class LinkPool:
    """All links. After a session could not be opened, none is opened for `pause_seconds` while others are there."""

    def __init__(self, links: Sequence[Link], pause_seconds: float) -> None:
        self._links = links
        self._pause_seconds = pause_seconds
        self._open_after = 0.0

    @property
    def num_open(self) -> int:
        """Sessions that are open."""
        return sum(link.is_open for link in self._links)

    @property
    def is_connected(self) -> bool:
        """Whether any session is up."""
        return any(link.is_connected for link in self._links)

    def ask_health(self, timeout_seconds: float) -> str:
        """What the untrusted node says of itself on the connection of one session, an idle one where there is one.

        "" when none is up. Any thread may ask.
        """
        up = min((link for link in self._links if link.is_connected), key=lambda link: link.is_busy, default=None)
        return "" if up is None else up.ask_health(timeout_seconds)

    def open_first(self) -> Session:
        """Opens the first session; whatever keeps it from opening is raised."""
        return self._links[0].open()

    def has_others(self, link: Link) -> bool:
        """Whether another link has a session, or is about to."""
        return any(other.is_open or other.is_busy for other in self._links if other is not link)

    def take(self) -> Link | None:
        """A free link, marked busy, with a session where there is one; None when a text has to wait."""
        free = sorted((link for link in self._links if not link.is_busy), key=lambda link: not link.is_open)
        if not free:
            return None
        chosen = free[0]
        if not chosen.is_open and time.monotonic() < self._open_after and self.has_others(chosen):
            return None
        chosen.is_busy = True
        return chosen

    def pause_opening(self) -> None:
        """A session could not be opened."""
        self._open_after = time.monotonic() + self._pause_seconds

    def take_for_reconnection(self) -> Link | None:
        """An idle link without a session, marked busy, when no link is connected; drops sessions that are gone."""
        idle = [link for link in self._links if not link.is_busy]
        if self.is_connected or len(idle) < len(self._links) or time.monotonic() < self._open_after:
            return None
        for link in idle:
            link.drop()
        self.pause_opening()
        idle[0].is_busy = True
        return idle[0]

    def close(self, patience_seconds: float) -> None:
        """Ends all sessions and threads. Exchanges that are under way have so long to end; then they are given up."""
        dropped = [link.drop() for link in self._links]
        if wait(dropped, patience_seconds).not_done:
            _log.warning("exchanges are given up", patience_seconds=patience_seconds)
            for link in self._links:
                link.abandon()
        for link in self._links:
            link.end()
