"""The crossing as an operation of autograd: its forward sends FORWARD, its backward sends BACKWARD.

The peer keeps the graph of a TRAIN step once. It is used by one backward, or discarded when autograd lets go of it;
a second backward is refused, and so is the gradient of a step that was not sent for training. Of a gradient there is no
gradient.

Legend: B sequences or frames, T rows or positions, D width.
"""

from __future__ import annotations

import weakref
from typing import Any, Protocol

import torch

from splitwire.errors import StateError
from tln.context import RowTruth, StepContext


class Exchanging(Protocol):
    """What the operation needs of a crossing."""

    def exchange_rows(self, rows: torch.Tensor, context: StepContext, truth: RowTruth | None, /) -> torch.Tensor:
        """FORWARD out, RETURN in."""

    def exchange_gradient(self, gradient: torch.Tensor, context: StepContext, /) -> torch.Tensor:
        """BACKWARD out, INPUT_GRADIENT in."""

    def discard_later(self, step: int, /) -> None:
        """Has the peer drop the graph of a step, from a finalizer."""


class Cross(torch.autograd.Function):
    """Rows [B, T, D] to what the peer returns of them, of the same shape; made by `Crossing.cross`."""

    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, crossing: Exchanging, context: StepContext, truth: RowTruth | None
    ) -> torch.Tensor:
        """FORWARD out, RETURN in; with mode "train" the peer keeps a graph from here on."""
        returned = crossing.exchange_rows(rows, context, truth)
        ctx.crossing, ctx.context = crossing, context
        ctx.graph = _RemoteGraph(crossing, context) if context.mode == "train" else None
        return returned

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        """BACKWARD out, INPUT_GRADIENT in. StateError for a step without a graph, or whose graph was used."""
        if ctx.graph is None:
            raise StateError(
                f"step {ctx.context.step} was not sent for training and has no gradient",
                remedy="open a training session, and train without a cache",
            )
        ctx.graph.take()
        return ctx.crossing.exchange_gradient(gradient, ctx.context), None, None, None


class _RemoteGraph:
    """The graph that the peer keeps for one TRAIN step: used once, or discarded when autograd lets go of it."""

    def __init__(self, crossing: Exchanging, context: StepContext) -> None:
        self._step = context.step
        self._discard = weakref.finalize(self, crossing.discard_later, context.step)
        self._discard.atexit = False

    def take(self) -> None:
        if self._discard.detach() is None:
            raise StateError(
                f"the graph of step {self._step} was used before; the peer keeps it once",
                remedy="call backward once a step, without retain_graph",
            )
