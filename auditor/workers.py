"""Work side by side: one thread of torch a job, as many jobs as there are cores.

Two OpenMP threads on a busy two-core machine can be many times slower than one, and results would depend on their
number. Independent jobs on one thread each use the cores as well, and read the same anywhere.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

import torch

from auditor.progress import Tick

Job = Callable[[Tick], None]
_SHOW_SECONDS = 0.25


class _StoppedError(Exception):
    """Ends a job whose work nobody wants any more."""


@contextlib.contextmanager
def one_thread_a_job() -> Iterator[None]:
    """A scope in which torch computes on one thread; the process's number comes back after it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def release_memory() -> None:
    """Gives back to the system what was freed between pieces that are still in use; nothing where there is no glibc."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def num_workers() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_jobs(jobs: Sequence[Job], show: Callable[[float], None]) -> None:
    """Runs all jobs; `show` hears every now and then, in the caller's thread, what share of the work is done.

    The first failure, and an interrupt, end it: jobs not yet begun are dropped, those at work end at their next tick,
    and none is at work any more when this returns.
    """
    shares, stop = [0.0] * len(jobs), threading.Event()

    def work(number: int) -> None:
        def tick(share: float) -> None:
            if stop.is_set():
                raise _StoppedError
            shares[number] = share

        jobs[number](tick)
        shares[number] = 1.0

    with ThreadPoolExecutor(max_workers=num_workers()) as pool:
        try:
            pending = {pool.submit(work, number) for number in range(len(jobs))}
            while pending:
                show(sum(shares) / len(jobs))
                ended, pending = wait(pending, timeout=_SHOW_SECONDS, return_when=FIRST_COMPLETED)
                for future in ended:
                    future.result()
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    show(1.0)
