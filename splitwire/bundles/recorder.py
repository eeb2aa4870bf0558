"""Records what crosses without standing in its way: a bounded queue and a thread that writes the bundle.

`offer` takes a message from any thread. With when_full="drop" it never blocks: what does not fit the queue is dropped
and counted, and a bundle with drops cannot pass an audit. With when_full="wait" it waits for room. After a failure to
write, everything is dropped, the failure is kept for `raise_if_failed`, and the bundle never becomes complete.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Literal

from splitwire.bundles.records import WireRecord
from splitwire.bundles.writer import FLUSH_SECONDS, BundleWriter
from splitwire.endings import ClosesOrAbandons
from splitwire.errors import RecordingError, SplitwireError

MAX_QUEUE_BYTES = 256 << 20
_RECORD_OVERHEAD_BYTES = 512


class Recorder(ClosesOrAbandons):
    """Owns a `BundleWriter` and the thread that uses it."""

    def __init__(
        self,
        writer: BundleWriter,
        *,
        max_queue_bytes: int = MAX_QUEUE_BYTES,
        when_full: Literal["drop", "wait"] = "drop",
    ) -> None:
        self._writer = writer
        self._max_queue_bytes = max_queue_bytes
        self._waits = when_full == "wait"
        self._queue: deque[WireRecord] = deque()
        self._queue_bytes = 0
        self._num_dropped = 0
        self._closing = False
        self._failure: SplitwireError | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="bundle-recorder", daemon=True)
        self._thread.start()

    @property
    def num_dropped(self) -> int:
        """Messages that were offered and will not be in the bundle."""
        return self._num_dropped

    @property
    def queue_bytes(self) -> int:
        """Bytes that wait to be written, an allowance for each message included."""
        return self._queue_bytes

    def offer(self, record: WireRecord) -> bool:
        """Queues one message; False when it was dropped."""
        size = _size(record)
        with self._changed:
            if self._waits:
                self._changed.wait_for(lambda: self._fits(size) or self._refuses)
            if self._refuses or not self._fits(size):
                self._num_dropped += 1
                return False
            self._queue.append(record)
            self._queue_bytes += size
            self._changed.notify_all()
            return True

    def raise_if_failed(self) -> None:
        """RecordingError when the bundle could not be written."""
        if self._failure is not None:
            raise RecordingError(self._failure.message, remedy=self._failure.remedy)

    def close(self) -> None:
        """Writes what is queued and closes the bundle with the count of drops. RecordingError when that failed."""
        with self._changed:
            already, self._closing = self._closing, True
            self._changed.notify_all()
        self._thread.join()
        if not already and self._failure is None:
            try:
                self._writer.close(num_dropped=self._num_dropped)
            except SplitwireError as error:
                self._failure = error
        self.raise_if_failed()

    def abandon(self) -> None:
        """Ends without completing the bundle; what is queued is still written."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        self._writer.abandon()

    @property
    def _refuses(self) -> bool:
        return self._closing or self._failure is not None

    def _fits(self, size: int) -> bool:
        # A message larger than the whole queue is taken when nothing else waits; else it could never be recorded.
        return not self._queue or self._queue_bytes + size <= self._max_queue_bytes

    def _run(self) -> None:
        try:
            while (record := self._take()) is not None:
                self._writer.write(record)
        except SplitwireError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - a thread that dies in silence would lose what is offered from then on
            self._fail(RecordingError(f"recording failed ({type(error).__name__})", remedy="start a new bundle"))

    def _take(self) -> WireRecord | None:
        """The next message; None when the recorder closes and nothing is left. Flushes when the wire is quiet."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closing, timeout=FLUSH_SECONDS)
                if self._queue:
                    record = self._queue.popleft()
                    self._queue_bytes -= _size(record)
                    self._changed.notify_all()
                    return record
                if self._closing:
                    return None
            self._writer.flush()

    def _fail(self, error: SplitwireError) -> None:
        with self._changed:
            self._failure = error
            self._num_dropped += len(self._queue) + 1  # the one that failed
            self._queue.clear()
            self._queue_bytes = 0
            self._changed.notify_all()
        self._writer.abandon()


def _size(record: WireRecord) -> int:
    return len(record.message) + _RECORD_OVERHEAD_BYTES
