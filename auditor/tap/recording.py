"""The tap's side of the recorder: hands records over, counts what was lost, and says once when recording has failed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from auditor.tap.metrics import TapMetrics
from splitwire.bundles import Recorder, WireRecord
from splitwire.errors import RecordingError
from splitwire.logging import get_logger

_log = get_logger(__name__)


class Recording:
    """Feeds one recorder. `on_failure` is called once, on the event loop, when the bundle cannot be completed."""

    def __init__(self, recorder: Recorder, metrics: TapMetrics, *, wait: bool) -> None:
        self._recorder = recorder
        self._metrics = metrics
        self._wait = wait
        self.on_failure: Callable[[], None] = lambda: None
        self.failure: RecordingError | None = None

    @property
    def num_dropped(self) -> int:
        """Records that found the queue full."""
        return self._recorder.num_dropped

    async def take(self, record: WireRecord) -> None:
        """Hands one record to the recorder's thread. Waits for room only where the settings say so."""
        self._metrics.count_message(record)
        if self.failure is not None:
            return
        if self._wait:
            kept = await asyncio.to_thread(self._recorder.offer, record)
        else:
            kept = self._recorder.offer(record)
        if not kept:
            self._metrics.dropped.inc()
        self.check()

    def check(self) -> None:
        """Notices a recorder that has failed in its thread."""
        if self.failure is not None:
            return
        try:
            self._recorder.raise_if_failed()
        except RecordingError as error:
            self.failure = error
            self._metrics.failed.set(1)
            _log.error("recording failed", error=str(error))
            self.on_failure()

    def close(self) -> None:
        """Writes what is queued and completes the bundle; RecordingError when it cannot be completed."""
        self._recorder.close()
