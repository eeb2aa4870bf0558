"""The utility gate: what the split costs in held-out cross-entropy over the unsplit model, by document.

The transformer stack is causal and is scored block by block. The gram stack is not: row t reads row t + 1, which
encodes the label of t. So it is scored without look-ahead: position t is restored from a frame that holds the prefix
0..t alone, and the tail then runs over rows none of which has seen a later one. The frames of the evaluation cross
under the same defence as those of training. A frame without decoys whose prefix is one row holds that row twice, since
the surrogate compares rows. Beside the gate stand two numbers that put it in its place: the delta as it reads with
look-ahead, and the delta when the delegated layers are skipped.

The interval is a bootstrap over documents, since rows of one document are not independent. Three outcomes: passes when
the whole interval is at or below the ceiling, fails when the whole interval is above it, else inconclusive.

Shapes: B blocks, T positions, D documents.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch

from tln.context import StepContext
from tln.keys import Floats, KeyStream
from tln.mechanisms import StackName
from tln.mechanisms.decoys import DecoyRows
from tln.model import SplitModelForCausalLM
from tln.training.corpus import Blocks
from tln.training.losses import token_losses
from tln.training.progress import Progress

RESAMPLES = 2000
CONFIDENCE = 0.95
FEW_DOCUMENTS = 20

Outcome = Literal["passes", "fails", "inconclusive"]


@dataclass(frozen=True)
class Utility:
    """Held-out cross-entropy in nats a token, split minus unsplit, with a 95 % interval over documents."""

    unsplit_nats: float
    split_nats: float
    delta_nats: float
    delta_lower_nats: float
    delta_upper_nats: float
    ceiling_nats: float
    num_documents: int
    num_rows: int
    outcome: Outcome
    note: str
    look_ahead_delta_nats: float | None = None
    """The delta of whole frames, in which a row sees later ones; None on a causal stack."""
    skipped_delta_nats: float | None = None
    """The delta when the tail follows the head directly."""


def split_losses(
    model: SplitModelForCausalLM, blocks: Blocks, stack: StackName, batch_blocks: int, progress: Progress
) -> torch.Tensor:
    """Cross-entropy [N, T] in nats of the split model on blocks [N, T], without look-ahead on any stack."""
    progress.begin("evaluation", len(blocks))
    losses = []
    with torch.no_grad():
        for start in range(0, len(blocks), batch_blocks):
            rows = slice(start, start + batch_blocks)
            restored = _restored(model, _part(blocks, rows), stack)
            losses.append(_tail_losses(model, restored, blocks.labels[rows]))
            progress.advance(len(blocks.tokens[rows]))
    return torch.cat(losses)


def compare(
    utility: Utility,
    model: SplitModelForCausalLM,
    blocks: Blocks,
    hidden: torch.Tensor,
    stack: StackName,
    batch_blocks: int,
    progress: Progress,
) -> Utility:
    """The same with the delta of whole frames, and that of hidden rows [N, T, H] which skip the delegated layers."""
    skipped = torch.cat([_tail_losses(model, hidden[n : n + 1], blocks.labels[n : n + 1]) for n in range(len(blocks))])
    seen = None
    if stack == "gram":
        seen = split_losses(model, blocks, "transformer", batch_blocks, progress).double().mean().item()
    return replace(
        utility,
        look_ahead_delta_nats=None if seen is None else seen - utility.unsplit_nats,
        skipped_delta_nats=skipped.double().mean().item() - utility.unsplit_nats,
    )


def judge(
    split_nats: torch.Tensor,
    unsplit_nats: torch.Tensor,
    documents: torch.Tensor,
    ceiling_nats: float,
    stream: KeyStream,
) -> Utility:
    """The gate on cross-entropies [N, T] of both models and the document [N] of each block."""
    deltas = (split_nats - unsplit_nats).double()
    names, owner = torch.unique(documents, return_inverse=True)
    sums = torch.zeros(len(names), dtype=torch.float64).index_add_(0, owner, deltas.sum(dim=1)).numpy()
    counts = torch.bincount(owner, minlength=len(names)).double().numpy() * deltas.shape[1]
    lower, upper = bootstrap_interval(sums, counts, stream)
    return Utility(
        unsplit_nats=unsplit_nats.double().mean().item(),
        split_nats=split_nats.double().mean().item(),
        delta_nats=deltas.mean().item(),
        delta_lower_nats=lower,
        delta_upper_nats=upper,
        ceiling_nats=ceiling_nats,
        num_documents=len(names),
        num_rows=deltas.numel(),
        outcome=_outcome(lower, upper, ceiling_nats),
        note=f"{len(names)} documents are few; the interval is too narrow" if len(names) < FEW_DOCUMENTS else "",
    )


def bootstrap_interval(sums: Floats, counts: Floats, stream: KeyStream) -> tuple[float, float]:
    """Percentile interval of sum(sums) / sum(counts) when whole documents are drawn with replacement."""
    chosen = (stream.uniforms(RESAMPLES, len(sums)) * len(sums)).astype(np.int64)
    means = sums[chosen].sum(axis=1) / counts[chosen].sum(axis=1)
    tail = (1 - CONFIDENCE) / 2
    lower, upper = np.quantile(means, (tail, 1 - tail))
    return float(lower), float(upper)


def restored_rows(model: SplitModelForCausalLM, hidden: torch.Tensor, context: StepContext) -> torch.Tensor:
    """Hidden rows [B, T, H] through protect, crossing and restore."""
    frame = model.pipeline.protect(hidden, context)
    returned = model.crossing.cross(frame.rows, context, frame.truth)
    return model.pipeline.restore(returned, context)


def _restored(model: SplitModelForCausalLM, blocks: Blocks, stack: StackName) -> torch.Tensor:
    hidden: torch.Tensor = model.head(blocks.tokens.to(model.head.device))
    if stack == "transformer":
        return restored_rows(model, hidden, _context(model, blocks, hidden.shape[1]))
    columns = [_last_of_prefix(model, blocks, hidden, length) for length in range(1, hidden.shape[1] + 1)]
    return torch.stack(columns, dim=1)


def _last_of_prefix(model: SplitModelForCausalLM, blocks: Blocks, hidden: torch.Tensor, length: int) -> torch.Tensor:
    if length == 1 and DecoyRows.name not in model.pipeline.describe():
        twice = [0, 0]
        pair = Blocks(blocks.tokens[:, twice], blocks.labels[:, twice], blocks.documents, blocks.ids, 0)
        return restored_rows(model, hidden[:, twice], _context(model, pair, 2))[:, 0]
    return restored_rows(model, hidden[:, :length], _context(model, blocks, length))[:, -1]


@torch.no_grad()
def _tail_losses(model: SplitModelForCausalLM, hidden: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross-entropy [B, T] of hidden rows [B, T, H] after the delegated layers."""
    logits = model.tail.logits(model.tail(hidden))
    return token_losses(logits, labels.to(logits.device)).cpu()


def _context(model: SplitModelForCausalLM, blocks: Blocks, length: int) -> StepContext:
    return StepContext(
        model.crossing.reserve_step(),
        mode="evaluate",
        tokens=blocks.tokens[:, :length],
        labels=blocks.labels[:, :length],
        documents=blocks.documents,
    )


def _part(blocks: Blocks, rows: slice) -> Blocks:
    return Blocks(blocks.tokens[rows], blocks.labels[rows], blocks.documents[rows], blocks.ids, 0)


def _outcome(lower: float, upper: float, ceiling: float) -> Outcome:
    if upper <= ceiling:
        return "passes"
    return "fails" if lower > ceiling else "inconclusive"
