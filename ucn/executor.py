"""Runs torch off the event loop: one thread a device, first come first served.

Every session has at most one piece of work here, so the queue is bounded by the number of sessions. Work that has
been queued runs to its end even when its stream is gone: the answer is kept for the peer's return.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")


class DeviceExecutor:
    """The one thread that touches a device."""

    def __init__(self, device: str, threads: int = 0) -> None:
        self.device = torch.device(device)
        self._depth = 0
        self._depth_alone = 0
        self._pool = ThreadPoolExecutor(1, f"torch-{device}", initializer=_prepare_thread, initargs=(threads,))

    @property
    def depth(self) -> int:
        """Pieces of work that wait or run."""
        return self._depth

    @property
    def depth_alone(self) -> int:
        """Those of them that share their pass with nobody."""
        return self._depth_alone

    @contextlib.contextmanager
    def counted(self, *, alone: bool) -> Iterator[None]:
        """Counts one piece of work into the depth."""
        self._depth += 1
        self._depth_alone += alone
        try:
            yield
        finally:
            self._depth -= 1
            self._depth_alone -= alone

    def submit(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Queues `work` for the device's thread, without counting it."""
        context = contextvars.copy_context()
        return asyncio.get_running_loop().run_in_executor(self._pool, context.run, work)

    async def run(self, work: Callable[[], T]) -> T:
        """The result of `work`, computed on the device's thread."""
        with self.counted(alone=True):
            return await self.submit(work)

    def shutdown(self) -> None:
        """Waits for the work that runs; drops what waits."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def _prepare_thread(threads: int) -> None:
    if threads:
        torch.set_num_threads(threads)
