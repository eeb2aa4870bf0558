"""The text of one phase of training: its blocks, the order in which they come, and what is known of them beforehand.

The order follows from the run key, which is fresh for every run. Another name gives another order of the same text.

Shapes: N blocks, B blocks of a step, T positions, H hidden width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from splitwire.backbone.parts import HeadModel
from tln.context import StepContext
from tln.keys import RunKey
from tln.training.batches import ORDER_SCOPE, StepBatch
from tln.training.corpus import Blocks


@dataclass(frozen=True)
class TrainingText:
    """Blocks [N, T], the numbers of those that train, what the frozen head makes of them, and their targets.

    `hidden` and `targets` are [N, T, H]; `hidden` is None where the head runs in every step, targets without
    distillation. `baseline_nats` [N, T] is the unsplit model's cross-entropy, for the progress only. The documents of
    public text are nobody's, and are not told.
    """

    blocks: Blocks
    members: torch.Tensor
    hidden: torch.Tensor | None
    targets: torch.Tensor | None
    baseline_nats: torch.Tensor | None = None
    is_public: bool = False

    def orders(self, size: int, run_key: RunKey, purpose: str) -> Iterator[torch.Tensor]:
        """Numbers [size] of one step after the other; every epoch in a fresh order, steps never smaller."""
        left, epoch = torch.empty(0, dtype=torch.int64), 0
        name = f"public {purpose}" if self.is_public else purpose
        while True:
            while len(left) < size:
                stream = run_key.stream(ORDER_SCOPE, epoch, name)
                order = torch.from_numpy(stream.permutations(1, len(self.members))[0])
                left, epoch = torch.cat((left, self.members[order])), epoch + 1
            yield left[:size]
            left = left[size:]

    def hidden_rows(self, head: HeadModel, numbers: torch.Tensor) -> torch.Tensor:
        """Rows [B, T, H] of these blocks behind the head, on its device; computed now where the head is trained."""
        if self.hidden is None or any(parameter.requires_grad for parameter in head.parameters()):
            hidden: torch.Tensor = head(self.blocks.tokens[numbers].to(head.device))
            return hidden
        return self.hidden[numbers].to(head.device)

    def target_rows(self, numbers: torch.Tensor, device: torch.device) -> torch.Tensor | None:
        """Targets [B, T, H] of these blocks; None without distillation."""
        return None if self.targets is None else self.targets[numbers].to(device)

    def context(self, batch: StepBatch, step: int) -> StepContext:
        """The context of a training step on these blocks."""
        return StepContext(
            step,
            mode="train",
            tokens=self.blocks.tokens[batch.numbers],
            labels=self.blocks.labels[batch.numbers],
            documents=None if self.is_public else self.blocks.documents[batch.numbers],
            num_replayed=batch.num_replayed,
            real_lengths=batch.real_lengths,
        )
