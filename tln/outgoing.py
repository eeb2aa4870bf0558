"""What is about to cross, its number, and who is told of it or decides on it before it does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from tln.context import RowTruth, StepContext
from tln.exchanges import Route

GradientPolicy = Callable[[torch.Tensor, StepContext], torch.Tensor]
"""Turns the gradient with respect to the returned rows [B, T, D] into what may cross, of the same shape."""

Guard = Callable[[Route, Sequence[bytes]], None]
"""Is shown the bytes of each tensor before anything of them is sent; an error keeps them here."""


class ForwardListener(Protocol):
    """Is told of each FORWARD frame before it is sent. Trusted node only: it sees the truth about the rows."""

    def __call__(self, context: StepContext, truth: RowTruth | None, messages: Sequence[bytes], /) -> None:
        """`messages` are the bytes that will cross."""


@dataclass(frozen=True)
class Outgoing:
    """Serialized messages of one tensor, where they belong, and the tensor whose shape the answer must have.

    FORWARD rows also have their context and truth, for a session that must be restored.
    """

    messages: Sequence[bytes]
    route: Route
    like: torch.Tensor
    context: StepContext | None = None
    truth: RowTruth | None = None


@dataclass
class StepCounter:
    """Numbers the steps of a session, or of several sessions that share it, which may be restored at the same time."""

    last: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def take(self) -> int:
        """The next number."""
        with self._lock:
            self.last += 1
            return self.last
