"""A crossing over several sessions, which take the same steps at the same time.

Subclasses say what each session gets of the rows and how the answers become one. What is common is here: one counter of
steps, one gradient policy, whose release is shared out, control messages to all, and failures that name their node.

Invariants: frames are encoded, and listeners told, on the caller's thread and in order; only the waiting is parallel.
Every session is waited for before a failure is raised, so that no answer of a step arrives in the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

import torch

from splitwire.errors import PeerError, StateError
from splitwire.v1 import stack_pb2
from tln.context import RowTruth, StepContext
from tln.crossing import Crossing
from tln.outgoing import GradientPolicy, Outgoing

T = TypeVar("T")
S = TypeVar("S")


class GroupCrossing(Crossing):
    """`members` are open crossings without a policy; `names` name their nodes in errors."""

    def __init__(self, members: Sequence[Crossing], names: Sequence[str], policy: GradientPolicy | None) -> None:
        first = members[0]
        super().__init__(first.transport, policy=policy, is_training=first.is_training)
        self.members = tuple(members)
        self.names = tuple(names)
        self.forward_listeners = first.forward_listeners  # whoever asks whether somebody listens
        self._pool = ThreadPoolExecutor(len(self.members), thread_name_prefix="untrusted-node")
        for member in self.members:
            member.steps = self.steps

    def split(self, rows: torch.Tensor) -> list[torch.Tensor]:
        """What each node gets of rows or of a released gradient [N, R, D]."""
        raise NotImplementedError

    def join(self, answers: Sequence[torch.Tensor], step: int) -> torch.Tensor:
        """One tensor of the shape that was split."""
        raise NotImplementedError

    def join_norms(self, squared_norms: Sequence[float], step: int) -> float:
        """One squared gradient norm of those that the nodes say."""
        raise NotImplementedError

    def continue_after(self, step: int) -> None:
        """Refused: a checkpoint knows of one session."""
        raise StateError(f"step {step}: several sessions cannot go on from it", remedy="start a new run")

    def max_positions(self, num_sequences: int, width: int) -> int:
        """As many as every node takes."""
        return min(member.max_positions(num_sequences, width) for member in self.members)

    def close(self) -> None:
        """Ends all sessions."""
        self._deferred.clear()
        self.end_threads()
        for member in self.members:
            member.close()

    def end_threads(self) -> None:
        """Ends the threads that wait for the nodes. The sessions stay."""
        self._pool.shutdown()

    def exchange_rows(self, rows: torch.Tensor, context: StepContext, truth: RowTruth | None) -> torch.Tensor:
        """Each member sends its part of rows [B, T, D]; their answers joined."""
        parts = zip(self.members, self.split(rows), strict=True)
        return self._send_all([member.outgoing_rows(part, context, truth) for member, part in parts], context.step)

    def exchange_gradient(self, gradient: torch.Tensor, context: StepContext) -> torch.Tensor:
        """The same for a gradient [B, T, D], which the policy releases once for all."""
        parts = zip(self.members, self.split(self.released(gradient, context)), strict=True)
        return self._send_all([member.outgoing_gradient(part, context) for member, part in parts], context.step)

    def _send_all(self, outgoing: Sequence[Outgoing], step: int) -> torch.Tensor:
        return self.join(self._on_all(lambda member, frame: member.send(frame), outgoing), step)

    def _control(self, control: stack_pb2.Control) -> stack_pb2.ControlResult:
        control.step = self.steps.take()
        results = self._on_all(lambda member, message: member.deliver(message), [control] * len(self.members))
        norm = self.join_norms([result.squared_gradient_norm for result in results], control.step)
        digests = ",".join(result.checkpoint_digest for result in results if result.checkpoint_digest)
        return stack_pb2.ControlResult(step=control.step, squared_gradient_norm=norm, checkpoint_digest=digests)

    def _on_all(self, call: Callable[[Crossing, S], T], values: Sequence[S]) -> list[T]:
        """The results in the order of the members. Names the first node that fails."""
        pairs = zip(self.members, values, strict=True)
        futures: list[Future[T]] = [self._pool.submit(call, member, value) for member, value in pairs]
        wait(futures)
        for name, future in zip(self.names, futures, strict=True):
            error = future.exception()
            if isinstance(error, PeerError):
                error.message = f"untrusted node {name}: {error.message}"
        return [future.result() for future in futures]
