"""Jobs side by side: how far they are is told all along, and nothing works on after an end."""

from __future__ import annotations

import threading
import time

import pytest

from auditor.progress import Tick
from auditor.workers import run_jobs


def test_shares_rise_to_the_whole() -> None:
    def job(tick: Tick) -> None:
        for step in range(4):
            tick(step / 4)

    seen: list[float] = []
    run_jobs([job] * 5, seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_interrupt_of_the_watcher_ends_jobs_that_are_at_work_and_drops_the_others(
    error: type[BaseException],
) -> None:
    begun, ended = [], []

    def job(tick: Tick) -> None:
        begun.append(1)
        try:
            while True:
                tick(0.5)
                time.sleep(0.001)
        finally:
            ended.append(1)

    def watch(share: float) -> None:
        if share > 0:
            raise error

    before = threading.active_count()
    with pytest.raises(error):
        run_jobs([job] * 64, watch)
    assert threading.active_count() == before
    assert 0 < len(begun) == len(ended) < 64


def test_the_first_failure_of_a_job_ends_the_others() -> None:
    def endless(tick: Tick) -> None:
        while True:
            tick(0.0)
            time.sleep(0.001)

    def failing(tick: Tick) -> None:
        raise ValueError("job")

    with pytest.raises(ValueError, match="job"):
        run_jobs([failing, endless, endless], lambda _: None)
