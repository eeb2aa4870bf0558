"""What keeps a generation alive when the untrusted node loses its session: killed and started again, or after a lease.

A broken connection is the transport's to retry (tln.transport). When the peer then says that it does not know the
session any more, a new one is opened with the same request, the caches that this node still needs are filled again from
their history (tln.history), each in one frame or, where long, in parts, and the step that failed is sent in the new
session. The peer sees rows that it has seen before, byte for byte, and nothing else.

Steps are not counted anew: the new session goes on with the numbers of the old one, and the frame keys keep the scope
under which they were bound. So no stream of (scope, step, purpose) is ever asked for a second time, and what is sent
again was drawn under the old step. Recorders and truth take the new session's frames as any others.

Refused: training sessions, whose state is more than caches (checkpoints are there for them); going on when a history
was dropped; more than `attempts` new sessions for one step. The last error names the cause.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeVar

import torch

from splitwire.errors import PeerError, UnavailableError
from splitwire.logging import get_logger
from splitwire.v1 import stack_pb2
from tln.connection import RecoverySettings
from tln.context import StepContext
from tln.crossing import Crossing
from tln.history import SessionHistory
from tln.outgoing import Outgoing
from tln.peer_errors import SessionLostError
from tln.prefill import DEFAULT_PREFILL_POSITIONS, parts_of

_log = get_logger(__name__)

T = TypeVar("T")


class Recovery:
    """Sends the frames and control messages of one crossing in as many sessions as it takes."""

    def __init__(self, settings: RecoverySettings, dtype: torch.dtype, reopen: Callable[[], None]) -> None:
        """`reopen` opens a new session in place of the lost one; `dtype` is that of rows on the wire."""
        self.history = SessionHistory(dtype, settings.history_bytes)
        self._attempts = settings.attempts
        self._reopen = reopen

    def send(self, crossing: Crossing, outgoing: Outgoing, context: StepContext) -> torch.Tensor:
        """The answer to a FORWARD frame, in this session or in the one that takes its place."""

        def again() -> torch.Tensor:
            step = crossing.steps.take()
            anew = crossing.outgoing_rows(outgoing.like, dataclasses.replace(context, step=step), outgoing.truth)
            return crossing.send_once(anew)

        answer = self._surviving(crossing, context.step, lambda: crossing.send_once(outgoing), again)
        if context.mode == "cached":
            self.history.add(outgoing.like, context, outgoing.truth)
        return answer

    def deliver(self, crossing: Crossing, control: stack_pb2.Control) -> stack_pb2.ControlResult:
        """Has a control message done; one about a cache is part of what a new session is filled with."""
        action = control.WhichOneof("action")
        if action == "cache_reorder":
            self.history.reorder(control.cache_reorder.cache_id, control.cache_reorder.indices)
        elif action == "cache_crop":
            self.history.crop(control.cache_crop.cache_id, control.cache_crop.num_positions)
        elif action == "cache_release":
            self.history.release(control.cache_release.cache_id)
        else:
            return crossing.deliver_once(control)
        done = stack_pb2.ControlResult(step=control.step)
        return self._surviving(crossing, control.step, lambda: crossing.deliver_once(control), lambda: done)

    def _surviving(self, crossing: Crossing, step: int, first: Callable[[], T], again: Callable[[], T]) -> T:
        """`first`; after the session was lost, `again` in a new session."""
        try:
            return first()
        except SessionLostError as error:
            cause = error.message
        lost = crossing.session_hash
        for _ in range(self._attempts):
            try:
                self._restore(crossing)
                result = again()
            except SessionLostError as error:
                cause = error.message
            except PeerError as error:
                error.message = f"session {lost} was lost at step {step} and could not be restored: {error.message}"
                raise
            else:
                _log.warning("session restored", lost=lost, session=crossing.session_hash, step=step)
                return result
        raise UnavailableError(
            f"the untrusted node lost session {lost} at step {step} and {self._attempts} new ones; the last time: "
            f"{cause}",
            remedy="look at the untrusted node's log, or raise connection.recovery.attempts",
        )

    def _restore(self, crossing: Crossing) -> None:
        """Opens a session and fills its caches with the rows that the lost one had."""
        frames = list(self.history.sent())
        self._reopen()
        for cache_id, frame in frames:
            num, length, width = frame.rows.shape
            most = min(DEFAULT_PREFILL_POSITIONS, crossing.max_positions(num, width))
            for part in parts_of(length, frame.row_lengths, frame.padding_side, most):
                piece = frame.cut(part.start, part.end)
                context = StepContext(
                    step=crossing.steps.take(),
                    mode="cached",
                    cache_id=cache_id,
                    row_lengths=piece.row_lengths,
                    padding_side=piece.padding_side,
                )
                crossing.send_once(crossing.outgoing_rows(piece.rows, context, piece.truth))
