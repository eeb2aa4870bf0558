"""Two nodes one after the other; between them rows come back here, are restored, and protected afresh.

    head -> protect -> node 1 -> restore -> (layers between, run here) -> protect -> node 2 -> restore -> tail

Neither node holds all delegated layers, and each hop has its own mechanisms, secrets, noise and gradient policy; on the
gram stack each hop also has its own encoder and decoder. Without layers in between the node-1 output is what node 2
gets under fresh secrets: two nodes that collude see both hops of the same rows.

The trainer's model does not know of it: node 1 is the crossing, and the way back from it (`RelayPipeline.restore`)
takes the second hop. Control messages go to both.

On the gram stack decoys of the second hop start as rows that went through the first hop's mechanisms and back without
node 1; for a while they differ from training rows by what node 1 computes. On the transformer stack decoys and mixup
are refused (see tln.topology.settings), and a cache is when layers run in between, since they would need one here.

Source: Privacy Failure in Split-LLM Training, two-segment delegation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from splitwire.backbone.parts import MiddleModel
from splitwire.errors import StateError
from splitwire.v1 import stack_pb2
from tln.context import RowTruth, StepContext
from tln.crossing import Crossing
from tln.mechanisms.base import Description, Mechanism
from tln.pipeline import FramePipeline
from tln.topology.group import GroupCrossing


class SegmentsCrossing(GroupCrossing):
    """Frames go to the first node here; `RelayPipeline` sends them to the second. Each member has its own policy."""

    def __init__(self, members: Sequence[Crossing], names: Sequence[str]) -> None:
        super().__init__(members, names, None)

    def join_norms(self, squared_norms: Sequence[float], step: int) -> float:  # noqa: ARG002 - the seam
        """Their sum: the nodes train different parameters."""
        return sum(squared_norms)

    def flush(self) -> None:
        """Tells both nodes what they may free."""
        super().flush()
        self.members[1].flush()

    def exchange_rows(self, rows: torch.Tensor, context: StepContext, truth: RowTruth | None) -> torch.Tensor:
        """Rows [B, T, D] to the first node and what it returns; the second is crossed by itself."""
        first = self.members[0]
        return first.send(first.outgoing_rows(rows, context, truth))

    def exchange_gradient(self, gradient: torch.Tensor, context: StepContext) -> torch.Tensor:
        """A gradient [B, T, D] back through the first node."""
        first = self.members[0]
        return first.send(first.outgoing_gradient(first.released(gradient, context), context))

    def _control(self, control: stack_pb2.Control) -> stack_pb2.ControlResult:
        if control.HasField("discard_step"):  # a step of node 1; node 2 hears of its own
            control.step = self.steps.take()
            return self.members[0].deliver(control)
        return super()._control(control)


class RelayPipeline(FramePipeline):
    """The first hop's pipeline, whose `restore` goes on through `between` and the second hop. TLN only."""

    def __init__(self, first: FramePipeline, second: FramePipeline, between: MiddleModel | None) -> None:
        own = [mechanism for mechanism in first.mechanisms if isinstance(mechanism, Mechanism)]
        super().__init__(own, first.input_gradient_clip_norm)
        self.second = second
        self.between = between
        if between is not None:
            between.requires_grad_(requires_grad=False)
        self._onward: Crossing | None = None

    @property
    def is_ready(self) -> bool:
        """Whether both hops can run."""
        return super().is_ready and self.second.is_ready

    def connect(self, onward: Crossing) -> None:
        """Sends the second hop over this crossing from now on."""
        self._onward = onward

    def restore(self, returned: torch.Tensor, context: StepContext) -> torch.Tensor:
        """Hidden rows [B, T, H] after both nodes, of what node 1 returned."""
        if self._onward is None:
            raise StateError(f"step {context.step}: no second node is connected", remedy="open both sessions first")
        hidden = self._run_between(super().restore(returned, context), context)
        onward = dataclasses.replace(context, step=self._onward.reserve_step(), stash={})
        frame = self.second.protect(hidden, onward)
        return self.second.restore(self._onward.cross(frame.rows, onward, frame.truth), onward)

    @torch.no_grad()
    def prime(self, hidden_BTH: torch.Tensor, context: StepContext) -> None:
        """Fills the pools of the first hop, then those of the second as if node 1 gave back what it gets.

        So the first decoys of the second hop are rows that no node has computed on; they leave the pool as training
        rows come.
        """
        if not super().is_ready:
            super().prime(hidden_BTH, context)
            return
        unsent = dataclasses.replace(context, mode="evaluate", stash={})
        echoed = super().restore(super().protect(hidden_BTH, unsent).rows, unsent)
        self.second.prime(echoed, dataclasses.replace(context, stash={}))

    def describe(self) -> dict[str, Description]:
        """The mechanisms of both hops; those of the second with a prefix."""
        second = {f"segment_2.{name}": parameters for name, parameters in self.second.describe().items()}
        return {**super().describe(), **second}

    def _run_between(self, hidden: torch.Tensor, context: StepContext) -> torch.Tensor:
        if self.between is None:
            return hidden
        if context.mode == "cached":
            raise StateError(
                f"step {context.step}: the layers between the segments run here without a cache",
                remedy="make topology.segment_1_end and segment_2_start equal, or generate with use_cache=False",
            )
        rows: torch.Tensor = self.between(hidden, attention_mask=mask_of(context, hidden))
        return rows


def mask_of(context: StepContext, hidden: torch.Tensor) -> torch.Tensor | None:
    """The mask [B, T] that the row lengths of the context stand for; None when all rows are full."""
    if not context.row_lengths:
        return None
    num_positions = hidden.shape[1]
    positions = torch.arange(num_positions, device=hidden.device)
    lengths = torch.tensor(context.row_lengths, device=hidden.device).unsqueeze(1)
    is_left = context.padding_side == "left"
    return (positions >= num_positions - lengths if is_left else positions < lengths).long()
