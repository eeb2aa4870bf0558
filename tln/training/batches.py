"""Which blocks one training step takes beside its own, and how many rows of each are sent.

The mechanisms of the frame say what they want (BatchDemand): earlier blocks in place of decoys, or a varying number of
real rows. Both are drawn here from the run key, by the number of the training step, so a step taken again after a
resumption is the same.

Replayed blocks are drawn uniformly from all blocks that train, other than those of their own group, none twice in a
group. So a block that was never sent as real one may come as a replayed one first: whether it was sent before, and how
lately, does not tell the two apart.

Shapes: G groups (frames on the gram stack, one batch on the transformer stack), K blocks beside each, T positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from splitwire.errors import SettingsError
from tln.context import NO_LABEL
from tln.keys import KeyStream, RunKey
from tln.mechanisms import Mechanism
from tln.mechanisms.base import BatchDemand

ORDER_SCOPE = "order"


@dataclass(frozen=True)
class StepBatch:
    """Block numbers of one step, the real ones first; `real_lengths` [B] as in StepContext."""

    numbers: torch.Tensor
    num_replayed: int = 0
    real_lengths: torch.Tensor | None = None

    def loss_labels(self, labels_BT: torch.Tensor) -> torch.Tensor:
        """Labels without those of rows that are not sent."""
        sent_BT = self.sent_rows(labels_BT.shape[1])
        return labels_BT if sent_BT is None else labels_BT.masked_fill(~sent_BT, NO_LABEL)

    def sent_rows(self, length: int) -> torch.Tensor | None:
        """Which rows [B, T] are sent; None for all."""
        return None if self.real_lengths is None else torch.arange(length) < self.real_lengths.unsqueeze(1)


def demand_of(pipeline: nn.Module, num_real: int) -> BatchDemand:
    """What the mechanisms of a pipeline want; at most one of them wants something."""
    for mechanism in pipeline.modules():
        wanted = mechanism.demand(num_real) if isinstance(mechanism, Mechanism) else None
        if wanted is not None:
            return wanted
    return BatchDemand()


def make_batch(
    demand: BatchDemand, real: torch.Tensor, members: torch.Tensor, block_tokens: int, run_key: RunKey, step: int
) -> StepBatch:
    """The blocks `real` [G x blocks a group] and what the demand adds to them out of `members`, all as block numbers.

    `step` is the number of the training step.
    """
    if demand.num_replayed:
        stream = run_key.stream(ORDER_SCOPE, step, "replayed-blocks")
        groups = real.view(demand.num_groups, -1)
        extra = replayed_blocks(groups, members, demand.num_replayed, stream).flatten()
        return StepBatch(torch.cat((real, extra)), len(extra))
    if demand.min_real_rows:
        uniforms = torch.from_numpy(run_key.stream(ORDER_SCOPE, step, "real-rows").uniforms(len(real)))
        span = block_tokens - demand.min_real_rows + 1
        return StepBatch(real, real_lengths=demand.min_real_rows + (uniforms * span).long())
    return StepBatch(real)


def replayed_blocks(groups: torch.Tensor, members: torch.Tensor, count: int, stream: KeyStream) -> torch.Tensor:
    """[G, count] block numbers out of `members`, uniform without repetition, none of which is in its own group."""
    check_enough(members, count, groups.shape[1])
    keys = torch.from_numpy(stream.uniforms(len(groups), len(members)))
    own = (members.view(1, -1, 1) == groups.unsqueeze(1)).any(dim=-1)
    return members[keys.masked_fill(own, 2.0).argsort(dim=1)[:, :count]]


def check_enough(members: torch.Tensor, count: int, num_real: int) -> None:
    """SettingsError when the text is too small to replay `count` blocks beside `num_real` others."""
    if len(members) < count + num_real:
        raise SettingsError(
            f"{len(members)} training blocks are too few to replay {count} beside {num_real} real ones",
            remedy="use more text, or lower frame.decoys.count or train.frames_per_step",
        )
