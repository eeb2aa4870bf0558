"""Decoys that are whole training blocks with their context and labels: the gradient policy `replay`.

Every row of a training frame then is a row of text in its context, encoded by the current weights, and bears a loss of
its own: there is no partition of the frame to read. The price is that a frame of 32 real rows and 64 replayed ones
trains on three blocks of which one is new; extra data, which a budget must count.

The loop brings the blocks (see BatchDemand); they are packed into frames here and taken out again. Which blocks: any
blocks of the training documents other than the frame's own, drawn uniformly, so that how lately a block was sent tells
nothing either. In the truth they are not real. Evaluation has no gradient and takes its decoys from the pool.

Refused: a training step without the blocks; `count` that is no multiple of a block on the gram stack; published decoys.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from splitwire.errors import StateError
from tln.context import ProtectedFrame, RowTruth, StepContext
from tln.mechanisms.base import BatchDemand, Description, join_truth, map_truth
from tln.mechanisms.decoys import DecoyRows, DecoySequences


class ReplayedRows(DecoyRows):
    """Whole blocks after the real one in every training frame."""

    def demand(self, num_real: int) -> BatchDemand:
        """count / block_tokens blocks beside every real one."""
        return BatchDemand(num_groups=num_real, num_replayed=self.count // self.block_tokens)

    def protect(self, frame: ProtectedFrame, context: StepContext) -> ProtectedFrame:
        """Training: [N + N k, T, D] to [N, (1 + k) T, D]. Else as decoys from the pool."""
        if context.mode != "train" or context.priming:
            return super().protect(frame, context)
        num, length = frame.rows.shape[0] - context.num_replayed, self.block_tokens
        if frame.rows.shape[1] != length or num < 1 or context.num_replayed * length != num * self.count:
            raise _missing(context)
        context.stash[self.name] = None
        self.absorb(_part(frame, slice(num)))
        extra = frame.rows[num:].reshape(num, self.count, -1)
        rows = torch.cat((frame.rows[:num], extra), dim=1)
        if frame.truth is None:
            return ProtectedFrame(rows)
        packed = map_truth(frame.truth, lambda values: values[num:].reshape(num, self.count))
        first = map_truth(frame.truth, lambda values: values[:num])
        return ProtectedFrame(rows, _joined(first, packed))

    def restore(self, rows: torch.Tensor, context: StepContext) -> torch.Tensor:
        """Training: all blocks [N + N k, T, D], the real ones first. Else the real rows."""
        if context.stash[self.name] is not None:
            return super().restore(rows, context)
        del context.stash[self.name]
        length = self.block_tokens
        return torch.cat((rows[:, :length], rows[:, length:].reshape(-1, length, rows.shape[-1])))

    def describe(self) -> Description:
        """As decoy rows, and what they bear."""
        return {**super().describe(), "replayed_blocks": self.count // self.block_tokens}


class ReplayedSequences(DecoySequences):
    """Whole sequences in secret places of the batch."""

    def demand(self, num_real: int) -> BatchDemand:  # noqa: ARG002 - one batch, however many are real
        """`count` sequences beside the batch."""
        return BatchDemand(num_groups=1, num_replayed=self.count)

    def protect(self, frame: ProtectedFrame, context: StepContext) -> ProtectedFrame:
        """Training: [B + count, T, H] in a fresh secret order. Else as decoys from the pool."""
        if context.mode != "train" or context.priming:
            return super().protect(frame, context)
        total = frame.rows.shape[0]
        if context.num_replayed != self.count or total <= self.count or context.row_lengths:
            raise _missing(context)
        num = total - self.count
        self.absorb(_part(frame, slice(num)))
        order = torch.from_numpy(self._keys.stream(context.step, self.name).permutations(1, total)[0])
        context.stash[self.name] = order.argsort()
        truth = frame.truth
        if truth is not None:
            truth = _joined(
                map_truth(truth, lambda values: values[:num]), map_truth(truth, lambda values: values[num:]), dim=0
            )
        return ProtectedFrame(frame.rows[order], map_truth(truth, lambda values: values[order]))

    def describe(self) -> Description:
        """As decoy sequences, and what they bear."""
        return {**super().describe(), "replayed_blocks": self.count}


def _joined(real: RowTruth | None, replayed: RowTruth | None, dim: int = 1) -> RowTruth | None:
    if real is None or replayed is None:
        return None
    return join_truth(real, replace(replayed, real=torch.zeros_like(replayed.real)), dim)


def _part(frame: ProtectedFrame, rows: slice) -> ProtectedFrame:
    return ProtectedFrame(frame.rows[rows], map_truth(frame.truth, lambda values: values[rows]))


def _missing(context: StepContext) -> StateError:
    return StateError(
        f"step {context.step}: {context.num_replayed} replayed blocks are not what gradient.policy 'replay' needs",
        remedy="train with tln train, which brings them, or choose another gradient policy",
    )
