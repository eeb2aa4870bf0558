"""The one thread of a device, and streams that others may end."""

from __future__ import annotations

import asyncio
import threading

import pytest
import torch

from splitwire.errors import StateError
from ucn.executor import DeviceExecutor
from ucn.streams import StreamHandle


def test_work_runs_in_order_on_one_thread_and_is_counted() -> None:
    """The depth covers what waits and what runs; the loop goes on meanwhile."""

    async def main() -> None:
        executor = DeviceExecutor("cpu", 1)
        gate, order = threading.Event(), []

        def work(number: int) -> int:
            gate.wait()
            order.append(number)
            return threading.get_ident()

        tasks = [asyncio.create_task(executor.run(lambda n=number: work(n))) for number in range(3)]
        await asyncio.sleep(0.01)
        assert executor.depth == 3
        gate.set()
        threads = await asyncio.gather(*tasks)
        assert order == [0, 1, 2]
        assert len(set(threads)) == 1
        assert executor.depth == 0
        assert await executor.run(torch.get_num_threads) == 1
        executor.shutdown()

    asyncio.run(main())


def test_work_whose_caller_is_gone_before_it_starts_is_dropped() -> None:
    """A peer that opens and cancels sessions leaves no queue behind."""

    async def main() -> None:
        executor = DeviceExecutor("cpu")
        gate, ran = threading.Event(), threading.Event()
        first = asyncio.create_task(executor.run(gate.wait))
        second = asyncio.create_task(executor.run(ran.set))
        await asyncio.sleep(0.01)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        gate.set()
        await first
        await asyncio.to_thread(executor.shutdown)
        assert not ran.is_set()
        assert executor.depth == 0

    asyncio.run(main())


def _served(handle_it: object) -> object:
    async def main() -> object:
        async def serve() -> object:
            stream = StreamHandle(asyncio.current_task())  # type: ignore[arg-type]
            asyncio.get_running_loop().call_soon(handle_it, stream)  # type: ignore[arg-type]
            return await stream.guard(asyncio.sleep(5, "served"))

        return await asyncio.create_task(serve())

    return asyncio.run(main())


def test_an_ended_stream_raises_the_reason_or_completes() -> None:
    """`end` with an error raises it in the serving task; without one the stream completes."""
    with pytest.raises(StateError, match="because"):
        _served(lambda stream: stream.end(StateError("because")))
    assert _served(lambda stream: stream.end(None)) is None


def test_the_first_reason_wins() -> None:
    """A stream ends once."""

    def twice(stream: StreamHandle) -> None:
        stream.end(StateError("first"))
        stream.end(StateError("second"))

    with pytest.raises(StateError, match="first"):
        _served(twice)


def test_a_cancellation_from_elsewhere_passes() -> None:
    """The peer's own cancellation is not turned into an answer."""
    with pytest.raises(asyncio.CancelledError):
        _served(lambda stream: stream._task.cancel())


def test_a_busy_stream_ends_after_its_answer() -> None:
    """`end_when_idle` waits for finish_answer, which raises the reason."""

    async def main() -> None:
        stream = StreamHandle(asyncio.current_task())  # type: ignore[arg-type]
        stream.begin_answer()
        stream.end_when_idle(StateError("later"))
        with pytest.raises(StateError, match="later"):
            stream.finish_answer()

    asyncio.run(main())
