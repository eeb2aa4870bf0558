"""Work side by side: one thread of torch a job, as many jobs as there are cores.

Two OpenMP threads on a busy two-core machine can be many times slower than one, and results would depend on their
number. Independent jobs on one thread each use the cores as well, and read the same anywhere.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

import torch


@contextlib.contextmanager
def one_thread_a_job() -> Iterator[None]:
    """A scope in which torch computes on one thread; the process's number comes back after it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def num_workers() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_jobs(jobs: Sequence[Callable[[], None]], done: Callable[[int], None]) -> None:
    """Runs all jobs; `done` hears how many have ended. The first failure ends it: jobs not yet begun are dropped."""
    with ThreadPoolExecutor(max_workers=num_workers()) as pool:
        futures = [pool.submit(job) for job in jobs]
        try:
            for number, future in enumerate(as_completed(futures), start=1):
                future.result()
                done(number)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
