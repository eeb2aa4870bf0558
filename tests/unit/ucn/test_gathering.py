"""What shares a pass, for whom a pass waits, and that nobody is left waiting."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from ucn.batching import Batcher
from ucn.executor import DeviceExecutor
from ucn.settings import BatchSettings


class Passes:
    """Doubles numbers, refuses negative ones, and remembers what came together. A pass takes `seconds`."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.batches: list[list[int]] = []
        self.seconds = seconds
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, items: Sequence[int]) -> list[int | Exception]:
        self.gate.wait()
        self.batches.append(list(items))
        time.sleep(self.seconds)
        return [2 * item if item >= 0 else ValueError(f"{item} is refused") for item in items]


def run(scenario: Callable[[Batcher[int, int], Passes], Coroutine[Any, Any, None]], **settings: Any) -> None:
    async def main() -> None:
        executor, passes = DeviceExecutor("cpu", 1), Passes(settings.pop("seconds", 0.0))
        try:
            await scenario(Batcher(executor, BatchSettings(**settings), passes), passes)
            assert executor.depth == 0
        finally:
            passes.gate.set()
            executor.shutdown()

    asyncio.run(main())


async def _hold(batcher: Batcher[int, int], passes: Passes, items: Sequence[int]) -> list[Any]:
    """A first item keeps the device; those after it wait together."""
    passes.gate.clear()
    first = asyncio.ensure_future(batcher.run(100, "first", 1))
    await asyncio.sleep(0.05)
    rest = [asyncio.ensure_future(batcher.run(item, item, 1)) for item in items]
    await asyncio.sleep(0.05)
    passes.gate.set()
    assert await first == 200
    return await asyncio.gather(*rest, return_exceptions=True)


def test_what_waits_goes_together_and_each_gets_its_own() -> None:
    async def scenario(batcher: Batcher[int, int], passes: Passes) -> None:
        one, refused, three = await _hold(batcher, passes, [1, -2, 3])
        assert (one, three) == (2, 6)
        assert isinstance(refused, ValueError)
        assert passes.batches == [[100], [1, -2, 3]]

    run(scenario)


def test_a_pass_takes_no_more_rows_than_it_may() -> None:
    """What does not fit goes next, in order; frames beyond the limit are not taken at all."""

    async def scenario(batcher: Batcher[int, int], passes: Passes) -> None:
        assert await _hold(batcher, passes, [1, 2, 3, 4, 5]) == [2, 4, 6, 8, 10]
        assert passes.batches == [[100], [1, 2], [3, 4], [5]]
        assert batcher.takes(2)
        assert not batcher.takes(3)

    run(scenario, max_rows=2)


def test_a_computation_that_raises_fails_those_of_its_pass_alone() -> None:
    async def scenario(batcher: Batcher[int, int], _passes: Passes) -> None:
        def fail(_items: Sequence[int]) -> list[int | Exception]:
            raise RuntimeError("broken")

        kept, batcher._compute = batcher._compute, fail
        with pytest.raises(RuntimeError, match="broken"):
            await batcher.run(1, "a", 1)
        batcher._compute = kept
        assert await batcher.run(1, "a", 1) == 2

    run(scenario)


def _count_waits(batcher: Batcher[int, int]) -> list[float]:
    """The patience of every wait from now on, in seconds."""
    waits: list[float] = []
    wait_for = batcher._arrived.wait_for

    def counted(predicate: Callable[[], bool], timeout: float) -> bool:
        waits.append(timeout)
        return wait_for(predicate, timeout)

    batcher._arrived.wait_for = counted  # type: ignore[assignment,method-assign]
    return waits


def test_a_pass_waits_for_one_that_was_answered_a_moment_ago() -> None:
    """b comes back while the pass of a waits for it. Alone, a waits for nobody."""

    async def scenario(batcher: Batcher[int, int], passes: Passes) -> None:
        waits = _count_waits(batcher)
        await batcher.run(1, "a", 1)
        await batcher.run(2, "a", 1)
        assert waits == []
        await asyncio.gather(batcher.run(3, "a", 1), batcher.run(4, "b", 1))
        batcher._passes_to_skip = 0
        waits.clear()
        batcher._last_seconds = 50  # both are recent, and there is time for b to come
        first = asyncio.ensure_future(batcher.run(5, "a", 1))
        await asyncio.sleep(0.05)
        await asyncio.gather(first, batcher.run(6, "b", 1))
        assert passes.batches[-1] == [5, 6]
        assert waits == [25]

    run(scenario, wait_fraction=0.5)


def test_after_a_vain_wait_the_next_passes_do_not_wait() -> None:
    async def scenario(batcher: Batcher[int, int], _passes: Passes) -> None:
        await asyncio.gather(batcher.run(1, "a", 1), batcher.run(2, "b", 1))
        batcher._passes_to_skip = 0
        waits = _count_waits(batcher)
        for item in range(3, 7):
            batcher._last_seconds = 50
            await batcher.run(item, "a", 1)
        assert waits == [pytest.approx(0.05)]

    run(scenario, wait_fraction=0.001)


def test_a_shutdown_leaves_nobody_waiting() -> None:
    async def main() -> None:
        executor, passes = DeviceExecutor("cpu", 1), Passes()
        batcher = Batcher(executor, BatchSettings(), passes)
        passes.gate.clear()
        first = asyncio.ensure_future(batcher.run(1, "a", 1))
        await asyncio.sleep(0.05)
        stopping = asyncio.ensure_future(asyncio.to_thread(executor.shutdown))
        busy = asyncio.ensure_future(batcher.run(2, "b", 1))
        await asyncio.sleep(0.05)
        passes.gate.set()
        await stopping
        assert await first == 2
        await asyncio.wait({busy}, timeout=5)
        assert busy.cancelled()

    asyncio.run(main())
