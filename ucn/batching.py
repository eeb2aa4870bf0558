"""Continuous batching: pieces of work that wait for the device at the same time become one pass.

What waits when the device gets to it goes together; what comes later goes with the next pass, so sessions join and
leave between passes. A session that decodes alone never waits. When others were answered a moment ago, their next
rows are likely on their way: then the pass waits for them, for at most a fraction of the time that the last pass
took. A wait that brought nobody is followed by passes that do not wait, so sessions out of step do not slow each
other down. Orca (Yu et al., OSDI 2022, section 3) calls this iteration-level scheduling.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from ucn.executor import DeviceExecutor
from ucn.settings import BatchSettings

I = TypeVar("I")  # noqa: E741 - item
R = TypeVar("R")

_PASSES_WITHOUT_WAIT = 8
_RECENT_PASSES = 2.0
"""Somebody answered within the time of this many passes is expected back."""


@dataclass(frozen=True)
class _Waiting(Generic[I, R]):
    item: I
    caller: Hashable
    num_rows: int
    result: asyncio.Future[R]


class Batcher(Generic[I, R]):
    """Runs items of many callers through `compute`, which gives one result or exception an item, in order.

    `run` belongs to one event loop; `compute` runs on the device's thread.
    """

    def __init__(
        self,
        executor: DeviceExecutor,
        settings: BatchSettings,
        compute: Callable[[Sequence[I]], Sequence[R | Exception]],
    ) -> None:
        self._executor = executor
        self._settings = settings
        self._compute = compute
        self._arrived = threading.Condition()
        self._waiting: list[_Waiting[I, R]] = []
        self._is_scheduled = False
        self._answered: dict[Hashable, float] = {}
        self._last_seconds = 0.0
        self._passes_to_skip = 0

    def takes(self, num_rows: int) -> bool:
        """Whether so many rows may share a pass at all."""
        return num_rows <= self._settings.max_rows

    async def run(self, item: I, caller: Hashable, num_rows: int) -> R:
        """The result of `item`; raises its exception. A caller has one item here at a time."""
        loop = asyncio.get_running_loop()
        waiting = _Waiting(item, caller, num_rows, loop.create_future())
        with self._executor.counted(alone=False):
            with self._arrived:
                self._waiting.append(waiting)
                self._arrived.notify()
            self._schedule(loop)
            result: R = await waiting.result
        return result

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._arrived:
            if self._is_scheduled or not self._waiting:
                return
            self._is_scheduled = True
        try:
            running = self._executor.submit(lambda: self._pass(loop))
        except RuntimeError:  # the device's thread has ended
            self._abandon()
            return
        running.add_done_callback(self._after)

    def _after(self, done: asyncio.Future[None]) -> None:
        """On the loop: what came meanwhile, or did not fit, takes its turn behind other work."""
        with self._arrived:
            self._is_scheduled = False
        if done.cancelled():
            self._abandon()
        else:
            done.result()
            self._schedule(asyncio.get_running_loop())

    def _abandon(self) -> None:
        """After a shutdown nobody is left waiting."""
        with self._arrived:
            left, self._waiting = tuple(self._waiting), []
        for waiting in left:
            waiting.result.cancel()

    def _pass(self, loop: asyncio.AbstractEventLoop) -> None:
        self._gather()
        batch = self._take()
        began = time.monotonic()
        try:
            results = self._compute([waiting.item for waiting in batch])
        except Exception as error:  # noqa: BLE001 - whoever waits must hear of it
            results = [error] * len(batch)
        ended = time.monotonic()
        self._last_seconds = ended - began
        self._answered.update((waiting.caller, ended) for waiting in batch)
        loop.call_soon_threadsafe(_deliver, batch, results)

    def _gather(self) -> None:
        """Waits for those who are expected, as the module says."""
        now = time.monotonic()
        horizon = now - _RECENT_PASSES * self._last_seconds
        self._answered = {caller: when for caller, when in self._answered.items() if when >= horizon}
        with self._arrived:
            present = {waiting.caller for waiting in self._waiting}
            missing = sum(caller not in present for caller in self._answered)
            if not missing or self._executor.depth_alone:
                return
            if self._passes_to_skip:
                self._passes_to_skip -= 1
                return
            before = len(self._waiting)
            patience = self._settings.wait_fraction * self._last_seconds
            self._arrived.wait_for(lambda: len(self._waiting) >= before + missing, patience)
            self._passes_to_skip = _PASSES_WITHOUT_WAIT if len(self._waiting) == before else 0

    def _take(self) -> list[_Waiting[I, R]]:
        """The longest beginning of the queue that fits into one pass."""
        with self._arrived:
            num_rows, count = 0, 0
            for waiting in self._waiting:
                num_rows += waiting.num_rows
                if count and not self.takes(num_rows):
                    break
                count += 1
            taken, self._waiting = self._waiting[:count], self._waiting[count:]
        return taken


def _deliver(batch: Sequence[_Waiting[I, R]], results: Sequence[R | Exception]) -> None:
    for waiting, result in zip(batch, results, strict=True):
        if waiting.result.done():
            continue
        if isinstance(result, Exception):
            waiting.result.set_exception(result)
        else:
            waiting.result.set_result(result)
