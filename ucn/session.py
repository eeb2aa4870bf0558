"""One session: its order of steps, what it has answered, and the stack that it owns.

Invariants. One request at a time. FORWARD frames and control messages carry a strictly increasing step; BACKWARD
carries the step of a kept graph. A request that comes again with the same bytes gets the same answer and changes
nothing. A step that was refused before the stack ran is not taken. An unexpected failure of the stack leaves its
state unknown: the session then refuses everything but its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import torch

from splitwire.errors import LimitError, PeerError, ReplayError, StateError
from splitwire.logging import get_logger
from splitwire.v1 import channels_pb2, stack_pb2
from splitwire.wire import session_hash
from ucn.caches import SessionCaches
from ucn.controls import nothing, plan_control
from ucn.executor import DeviceExecutor
from ucn.intake import ControlRequest, Request, TensorRequest
from ucn.metrics import UcnMetrics
from ucn.replies import ReplyCache
from ucn.snapshots import SessionSnapshots
from ucn.stacks.base import ForwardCall, Stack
from ucn.steps import (
    Outcome,
    Terms,
    check_kept_rows,
    check_tensor,
    compute_backward,
    compute_forward,
    forward_call,
)
from ucn.together import Sharing

_log = get_logger("ucn")

T = TypeVar("T")


class Session:
    """State of one session. All methods run on the event loop; only the stack's work leaves it."""

    def __init__(
        self,
        session_id: str,
        owner: str,
        *,
        terms: Terms,
        stack: Stack,
        executor: DeviceExecutor,
        caches: SessionCaches,
        replies: ReplyCache,
        metrics: UcnMetrics,
        save: Callable[[str, Stack], str],
        drop: Callable[[str], None],
        resumed_digest: str = "",
        snapshots: SessionSnapshots | None = None,
        sharing: Sharing | None = None,
    ) -> None:
        self.session_id = session_id
        self.hash = session_hash(session_id)
        self.owner = owner
        self.terms = terms
        self.resumed_digest = resumed_digest
        self.stack = stack
        self.caches = caches
        self.kept_rows: dict[int, int] = {}
        self.last_step = 0
        self._executor = executor
        self._replies = replies
        self._metrics = metrics
        self._save = save
        self._drop = drop
        self._snapshots = snapshots
        self._sharing = sharing
        self._lock = asyncio.Lock()
        self._failed_step = 0
        self._is_closed = False
        self._is_ending = False
        self._starting: asyncio.Future[None] | None = None

    async def settle(self) -> int:
        """Waits for the request that runs, if any; the last step that was applied."""
        async with self._lock:
            return self.last_step

    async def answer(self, request: Request) -> Sequence[bytes]:
        """Applies a request, or finds the answer that it already had."""
        async with self._lock:
            self._check_usable()
            kept = self._replies.find(request.key, request.digest)
            if kept is not None:
                return kept
            messages = await self._apply(request)
            self._replies.keep(request.key, request.digest, messages)
            return messages

    async def close(self) -> None:
        """Frees what the session holds, after the request that runs; one that waits for room is refused.

        Calling it again does nothing.
        """
        self._is_ending = True
        if self._starting is not None:
            self._starting.cancel()
        async with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self.caches.release_all()
            self.kept_rows.clear()
            try:
                await self._executor.run(self.stack.close)
            except Exception as error:  # noqa: BLE001 - the session is gone either way, and its peer has no use for it
                _log.error("session_close_failed", session=self.hash, error=type(error).__name__)
            if self._snapshots is not None:
                await asyncio.to_thread(self._snapshots.close)

    def save_checkpoint(self, label: str) -> str:
        """Writes the trainable state under `label`; SHA-256 of the file. Runs on the device's thread."""
        return self._save(label, self.stack)

    def drop_checkpoint(self, label: str) -> None:
        """Removes the checkpoint `label` of the session's owner, if it is there. Runs on the device's thread."""
        self._drop(label)

    async def _apply(self, request: Request) -> Sequence[bytes]:
        if isinstance(request, ControlRequest):
            return await self._control(request.control)
        if request.frame.header.hop == channels_pb2.HOP_BACKWARD:
            return await self._backward(request)
        return await self._forward(request)

    async def _forward(self, request: TensorRequest) -> Sequence[bytes]:
        header = request.frame.header
        self._check_order(header.step)
        call = forward_call(header, self.terms)
        is_training = call.mode == "train"
        num_rows = check_kept_rows(header, self.terms, sum(self.kept_rows.values())) if is_training else 0
        undo = await self._book_cache(header, call)
        frame = None if self._sharing is None else self._sharing.frame(request, call, self.terms)
        if self._sharing is not None and frame is not None:
            outcome = await self._guarded("forward", header.step, self._sharing.run(frame, self.session_id), undo)
        else:

            def work() -> Outcome:
                return compute_forward(self.stack, request, call, self.terms, self._executor.device)

            outcome = await self._run("forward", header.step, work, undo)
        self.last_step = header.step
        if is_training and outcome.error is None:
            self.kept_rows[header.step] = num_rows
        return _messages(outcome)

    async def _backward(self, request: TensorRequest) -> Sequence[bytes]:
        header = request.frame.header
        if header.step not in self.kept_rows:
            raise StateError(
                f"BACKWARD of step {header.step} finds no kept graph",
                remedy="send it once, for a TRAIN step that was not discarded",
            )
        check_tensor(header, self.terms)

        def work() -> Outcome:
            return compute_backward(self.stack, request, self.terms, self._executor.device)

        outcome = await self._run("backward", header.step, work)
        del self.kept_rows[header.step]
        return _messages(outcome)

    async def _control(self, control: stack_pb2.Control) -> Sequence[bytes]:
        self._check_order(control.step)
        plan = plan_control(self, control)

        def work() -> dict[str, Any]:
            done = plan.work()
            if self._snapshots is not None and plan.phase == "optimizer_step":
                self._snapshots.take(self.stack, control.step)
            return done

        result = await self._run(plan.phase, control.step, work, plan.undo)
        plan.commit()
        self.last_step = control.step
        answer = stack_pb2.ControlResult(step=control.step, **result)
        return (stack_pb2.ExchangeResponse(control_result=answer).SerializeToString(),)

    async def _run(self, phase: str, step: int, work: Callable[[], T], undo: Callable[[], object] = nothing) -> T:
        def timed() -> T:
            with self._metrics.step(phase):
                return work()

        return await self._guarded(phase, step, self._executor.run(timed), undo)

    async def _guarded(self, phase: str, step: int, work: Awaitable[T], undo: Callable[[], object]) -> T:
        """The result of work on the device's thread. A PeerError means that the stack refused and nothing changed."""
        try:
            return await work
        except PeerError:
            undo()
            raise
        except torch.OutOfMemoryError:
            self._failed_step = step
            raise LimitError(
                f"the device has no memory left for step {step}",
                remedy="open a new session with smaller batches, or wait until other sessions have ended",
            ) from None
        except Exception as error:
            self._failed_step = step
            _log.error("session_failed", session=self.hash, step=step, phase=phase, error=type(error).__name__)
            raise

    async def _book_cache(self, header: stack_pb2.FrameHeader, call: ForwardCall) -> Callable[[], None]:
        """Reserves the cache that a CACHED frame will need, if need be after a wait; returns how to take that back."""
        if call.mode != "cached":
            return nothing
        total_bytes = self.stack.cache_bytes_for(call, tuple(header.shape))
        if self.caches.holds(call.cache_id):
            before = self.caches.extend(call.cache_id, header.shape[0], total_bytes)
            return lambda: self.caches.restore(call.cache_id, before)
        await self._start_cache(call.cache_id, header.shape[0], total_bytes)
        return lambda: self.caches.release(call.cache_id)

    async def _start_cache(self, cache_id: int, num_sequences: int, total_bytes: int) -> None:
        self._starting = asyncio.ensure_future(self.caches.start(cache_id, num_sequences, total_bytes))
        try:
            await self._starting
        except asyncio.CancelledError:
            if not self._is_ending:
                raise
            raise StateError(f"session {self.hash} is closed", remedy="open a new session") from None
        finally:
            self._starting = None

    def _check_usable(self) -> None:
        if self._is_closed:
            raise StateError(f"session {self.hash} is closed", remedy="open a new session")
        if self._failed_step:
            raise StateError(
                f"session {self.hash} failed at step {self._failed_step}",
                remedy="open a new session, from a checkpoint if there is one",
            )

    def _check_order(self, step: int) -> None:
        if step <= self.last_step:
            raise ReplayError(
                f"step {step} came after step {self.last_step}", remedy="number steps upwards and send them in order"
            )


def _messages(outcome: Outcome) -> Sequence[bytes]:
    if outcome.error is not None:
        raise outcome.error
    return outcome.messages
