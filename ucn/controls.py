"""What each control message does to a session.

A plan's `work` runs on the device's thread. `commit` does the bookkeeping after it and `undo` takes bookings back
when the stack refused. Values (learning rates, indices, positions) are checked by the stack, which refuses before
it changes anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from splitwire.errors import StateError
from splitwire.v1 import stack_pb2
from ucn.caches import SessionCaches
from ucn.stacks.base import Stack
from ucn.steps import Terms


class ControlledSession(Protocol):
    """The parts of a session that control messages reach."""

    @property
    def terms(self) -> Terms:
        """What the handshake settled."""

    @property
    def stack(self) -> Stack:
        """The computation."""

    @property
    def caches(self) -> SessionCaches:
        """Booked cache bytes."""

    @property
    def kept_rows(self) -> dict[int, int]:
        """Rows of each TRAIN step whose BACKWARD has not come."""

    def save_checkpoint(self, label: str) -> str:
        """Writes a checkpoint and returns its digest."""

    def drop_checkpoint(self, label: str) -> None:
        """Removes a checkpoint, if it is there."""


def nothing() -> None:
    """The bookkeeping of what books nothing."""


@dataclass(frozen=True)
class Plan:
    """Work for the device's thread, which returns fields of the ControlResult, and the bookkeeping around it."""

    phase: str
    work: Callable[[], dict[str, Any]]
    commit: Callable[[], object] = nothing
    undo: Callable[[], object] = nothing


def plan_control(session: ControlledSession, control: stack_pb2.Control) -> Plan:
    """The plan of one control message; StateError or LimitError when the session cannot take it."""
    name = control.WhichOneof("action") or ""
    if name in _TRAINING_ONLY and not session.terms.is_training:
        raise StateError(f"{name} came in an inference session", remedy="open the session for training")
    plan: Plan = _PLANNERS[name](session, getattr(control, name))
    return plan


def _optimizer_step(session: ControlledSession, action: stack_pb2.OptimizerStep) -> Plan:
    if session.kept_rows:
        raise StateError(
            f"OptimizerStep came while TRAIN steps {sorted(session.kept_rows)} wait for BACKWARD",
            remedy="send their BACKWARD or DiscardStep first",
        )

    def work() -> dict[str, Any]:
        norm = session.stack.optimizer_step(action.learning_rate, action.gradient_scale, action.max_gradient_norm)
        return {"squared_gradient_norm": norm}

    return Plan("optimizer_step", work)


def _zero_grad(session: ControlledSession, _action: stack_pb2.ZeroGrad) -> Plan:
    return Plan("zero_grad", _quietly(session.stack.zero_grad))


def _gradient_norm(session: ControlledSession, _action: stack_pb2.GradientNorm) -> Plan:
    return Plan("gradient_norm", lambda: {"squared_gradient_norm": session.stack.squared_gradient_norm()})


def _discard_step(session: ControlledSession, action: stack_pb2.DiscardStep) -> Plan:
    return Plan(
        "discard_step",
        _quietly(lambda: session.stack.discard(action.train_step)),
        commit=lambda: session.kept_rows.pop(action.train_step),
    )


def _cache_reorder(session: ControlledSession, action: stack_pb2.CacheReorder) -> Plan:
    before = session.caches.reorder(action.cache_id, len(action.indices))
    return Plan(
        "cache_reorder",
        _quietly(lambda: session.stack.cache_reorder(action.cache_id, tuple(action.indices))),
        undo=lambda: session.caches.restore(action.cache_id, before),
    )


def _cache_crop(session: ControlledSession, action: stack_pb2.CacheCrop) -> Plan:
    return Plan("cache_crop", _quietly(lambda: session.stack.cache_crop(action.cache_id, action.num_positions)))


def _cache_release(session: ControlledSession, action: stack_pb2.CacheRelease) -> Plan:
    return Plan(
        "cache_release",
        _quietly(lambda: session.stack.cache_release(action.cache_id)),
        commit=lambda: session.caches.release(action.cache_id),
    )


def _checkpoint(session: ControlledSession, action: stack_pb2.Checkpoint) -> Plan:
    return Plan("checkpoint", lambda: {"checkpoint_digest": session.save_checkpoint(action.label)})


def _drop_checkpoint(session: ControlledSession, action: stack_pb2.DropCheckpoint) -> Plan:
    return Plan("drop_checkpoint", _quietly(lambda: session.drop_checkpoint(action.label)))


def _quietly(act: Callable[[], object]) -> Callable[[], dict[str, Any]]:
    def work() -> dict[str, Any]:
        act()
        return {}

    return work


_TRAINING_ONLY = frozenset(
    {"optimizer_step", "zero_grad", "discard_step", "gradient_norm", "checkpoint", "drop_checkpoint"}
)
_PLANNERS: dict[str, Callable[[ControlledSession, Any], Plan]] = {
    "optimizer_step": _optimizer_step,
    "zero_grad": _zero_grad,
    "discard_step": _discard_step,
    "gradient_norm": _gradient_norm,
    "cache_reorder": _cache_reorder,
    "cache_crop": _cache_crop,
    "cache_release": _cache_release,
    "checkpoint": _checkpoint,
    "drop_checkpoint": _drop_checkpoint,
}
