"""The order of a session's requests, against a slow reference that says what must happen to each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from splitwire.errors import PeerError, ReplayError, StateError
from splitwire.frames import TensorFrame
from splitwire.v1 import channels_pb2, stack_pb2
from ucn.admission import CacheBudget
from ucn.caches import SessionCaches
from ucn.executor import DeviceExecutor
from ucn.intake import ControlRequest, Request, TensorRequest
from ucn.metrics import UcnMetrics
from ucn.replies import ReplyCache
from ucn.session import Session
from ucn.steps import Terms

FORWARD, BACKWARD, CONTROL = channels_pb2.HOP_FORWARD, channels_pb2.HOP_BACKWARD, channels_pb2.HOP_CONTROL
EVALUATE, TRAIN = stack_pb2.COMPUTE_MODE_EVALUATE, stack_pb2.COMPUTE_MODE_TRAIN
FP32 = stack_pb2.WIRE_DTYPE_FP32
ROWS = torch.ones(1, 2, 3)


@dataclass
class CountingStack:
    """Counts what is applied."""

    calls: list[str] = field(default_factory=list)

    def forward(self, rows: torch.Tensor, call: Any) -> torch.Tensor:
        self.calls.append(f"forward {call.step}")
        return rows

    def backward(self, step: int, gradient: torch.Tensor) -> torch.Tensor:
        self.calls.append(f"backward {step}")
        return gradient

    def zero_grad(self) -> None:
        self.calls.append("zero_grad")

    def optimizer_step(self, *_values: float) -> float:
        self.calls.append("optimizer_step")
        return 1.0

    def close(self) -> None:
        self.calls.append("close")


@dataclass(frozen=True)
class Operation:
    """One request; `variant` stands for its bytes."""

    hop: int
    step: int
    variant: int
    is_training: bool = False
    updates: bool = False

    def request(self) -> Request:
        if self.hop == CONTROL:
            action = (
                {"optimizer_step": stack_pb2.OptimizerStep()} if self.updates else {"zero_grad": stack_pb2.ZeroGrad()}
            )
            return ControlRequest(stack_pb2.Control(step=self.step, **action), self.digest)
        mode = (TRAIN if self.is_training else EVALUATE) if self.hop == FORWARD else 0
        header = stack_pb2.FrameHeader(hop=self.hop, step=self.step, dtype=FP32, shape=ROWS.shape, compute_mode=mode)
        return TensorRequest(TensorFrame(header, ROWS), self.digest)

    @property
    def digest(self) -> str:
        return f"{self.variant} {self.is_training} {self.updates}"


@dataclass
class Reference:
    """What the contract says, written as plainly as possible."""

    answered: dict[tuple[int, int], str] = field(default_factory=dict)
    last_step: int = 0
    kept: set[int] = field(default_factory=set)
    applied: int = 0

    def expect(self, operation: Operation) -> type[PeerError] | None:
        key = (operation.hop, operation.step)
        if key in self.answered:
            return None if self.answered[key] == operation.digest else ReplayError
        if operation.hop == BACKWARD:
            if operation.step not in self.kept:
                return StateError
            self.kept.remove(operation.step)
        elif operation.step <= self.last_step:
            return ReplayError
        elif operation.updates and self.kept:
            return StateError
        else:
            self.last_step = operation.step
            if operation.is_training:
                self.kept.add(operation.step)
        self.answered[key] = operation.digest
        self.applied += 1
        return None


STEPS, VARIANTS = st.integers(1, 5), st.integers(0, 1)
OPERATIONS = st.one_of(
    st.builds(Operation, st.just(FORWARD), STEPS, VARIANTS, st.booleans()),
    st.builds(Operation, st.just(BACKWARD), STEPS, VARIANTS),
    st.builds(Operation, st.just(CONTROL), STEPS, VARIANTS, st.just(value=False), st.booleans()),
)


@pytest.fixture(scope="module")
def executor() -> Iterator[DeviceExecutor]:
    """One thread for all examples."""
    found = DeviceExecutor("cpu", 1)
    yield found
    found.shutdown()


def _session(executor: DeviceExecutor, stack: Any) -> Session:
    terms = Terms(False, True, 3, FP32, FP32, FP32, 1000)
    return Session(
        "ab" * 16,
        "peer",
        terms=terms,
        stack=stack,
        executor=executor,
        caches=SessionCaches(CacheBudget(0), 0),
        replies=ReplyCache(1 << 20),
        metrics=UcnMetrics(),
        save=lambda _label, _stack: "",
        drop=lambda _label: None,
    )


@settings(max_examples=80, deadline=None)
@given(operations=st.lists(OPERATIONS, max_size=25))
def test_every_order_of_requests_ends_as_the_contract_says(
    executor: DeviceExecutor, operations: Sequence[Operation]
) -> None:
    """New, repeated, changed, stale and premature requests: each is answered or refused, and applied at most once."""

    async def main() -> None:
        stack, reference = CountingStack(), Reference()
        session = _session(executor, stack)
        answers: dict[tuple[int, int], Sequence[bytes]] = {}
        for operation in operations:
            expected = reference.expect(operation)
            if expected is not None:
                with pytest.raises(expected):
                    await session.answer(operation.request())
            else:
                answer = await session.answer(operation.request())
                assert answers.setdefault((operation.hop, operation.step), answer) == answer
            assert session.last_step == reference.last_step
            assert set(session.kept_rows) == reference.kept
            assert len(stack.calls) == reference.applied
        await session.close()

    asyncio.run(main())


def test_requests_that_race_are_taken_one_at_a_time(executor: DeviceExecutor) -> None:
    """The same request from two streams at once runs once; both get its answer; a close waits for it."""

    async def main() -> None:
        stack = CountingStack()
        session = _session(executor, stack)
        same = [asyncio.create_task(session.answer(Operation(FORWARD, 1, 0).request())) for _ in range(5)]
        await asyncio.sleep(0)
        await session.close()
        answers = await asyncio.gather(*same)
        assert all(answer == answers[0] for answer in answers)
        assert stack.calls == ["forward 1", "close"]
        with pytest.raises(StateError, match="is closed"):
            await session.answer(Operation(FORWARD, 2, 0).request())
        await session.close()
        assert stack.calls == ["forward 1", "close"]

    asyncio.run(main())
