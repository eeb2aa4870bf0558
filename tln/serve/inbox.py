"""What the engine's thread is told by others, and how long it listens before it takes the next step.

Between two steps the engine hears of new texts, cancelled ones, and answers of the untrusted node. It listens as long
as the pace says, so that texts that belong to one step stay together.
"""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable

News = Callable[[], None]
"""Something for the engine's thread to do."""


class Inbox:
    """News in the order in which they came. Any thread may put; one takes."""

    def __init__(self) -> None:
        self._news: queue.SimpleQueue[News] = queue.SimpleQueue()

    def put(self, news: News) -> None:
        """Adds one."""
        self._news.put(news)

    def take(self, *, blocks: bool, patience_seconds: float, is_worth_waiting: Callable[[], bool]) -> None:
        """Does all there is; with `blocks` waits for the first.

        While `is_worth_waiting`, goes on for at most `patience_seconds` after the first.
        """
        if blocks:
            self._news.get()()
        deadline = time.monotonic() + patience_seconds
        while True:
            with contextlib.suppress(queue.Empty):
                while True:
                    self._news.get_nowait()()
            left = deadline - time.monotonic()
            if left <= 0 or not is_worth_waiting():
                return
            with contextlib.suppress(queue.Empty):
                self._news.get(timeout=left)()
