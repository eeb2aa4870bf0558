"""Decoys from the pool: extra rows in a latent frame, extra sequences in a batch of the transformer stack.

Gram stack: every frame is filled up to block_tokens + count rows, so a shorter prefix gets more decoys and the row
count of a frame tells nothing. Transformer stack: `count` whole earlier sequences join the batch, and the order of
the sequences is drawn afresh, since the order of rows inside a sequence must stay. The restore drops the decoys, so
with an open gradient their gradient rows are exactly zero; hiding that is the gradient policy's work.

Kinds: `recycled` are pool rows as they were after clipping, and get fresh noise. `reencoded` (gram stack) are earlier
hidden rows that go through the current encoder beside the real ones, so that no row is of an older encoder. `published`
re-sends released rows without fresh noise, as the published system did: the untrusted node finds them again by their
exact norm. It exists to show that, and needs `frame.unsafe = true`.

With `min_real_rows` a training frame sends a varying number of the rows of its block, drawn uniformly by the loop, and
decoys stand where the others would: frame size and computation stay the same. The rows that were not sent bear no loss.

Every row also needs fresh noise (see clip_noise), so the registry refuses decoys without it, and on the gram stack
without the permutation, since decoys at known places hide nothing. Refused while generating: decoy sequences have no
cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import torch

from splitwire.errors import StateError
from tln.context import ProtectedFrame, RowTruth, StepContext
from tln.keys import FrameKeys
from tln.mechanisms.base import (
    BatchDemand,
    Description,
    Stage,
    join_truth,
    map_truth,
)
from tln.mechanisms.permutation import take_rows
from tln.mechanisms.pool import PooledMechanism

DecoyKind = Literal["recycled", "reencoded", "published"]
PUBLISHED_WARNING = (
    "UNSAFE: frame.decoys.kind is 'published'. Decoys are released rows sent again with their old noise; whoever keeps "
    "what crossed finds each of them by its exact norm. Use it on public or throw-away text only."
)
_STAGES: Final[dict[DecoyKind, Stage]] = {
    "recycled": Stage.MIX,
    "reencoded": Stage.SOURCE,
    "published": Stage.RESEND,
}


@dataclass(frozen=True)
class DecoySettings:
    """`count` decoy rows a full frame (gram) or decoy sequences a batch (transformer).

    `pool_size` rows or sequences.
    """

    count: int = 48
    """Decoy rows a frame (gram) or decoy sequences a batch (transformer)."""
    kind: DecoyKind = "recycled"
    """Earlier rows with fresh noise, earlier text encoded again (gram only), or released rows re-sent (unsafe)."""
    pool_size: int = 8192
    """Earlier rows or sequences from which decoys are drawn. Nothing crosses before it is full."""
    min_real_rows: int = 0
    """Fewest real rows of a training frame, whose number is drawn from here to a full block; 0 sends all (gram)."""


class DecoyRows(PooledMechanism):
    """Decoy rows in every latent frame; no pool row twice in one frame."""

    name = "decoys"
    stage = Stage.MIX

    def __init__(self, settings: DecoySettings, block_tokens: int, keys: FrameKeys) -> None:
        super().__init__(settings.pool_size)
        self.stage = _STAGES[settings.kind]
        self.kind = settings.kind
        self.count = settings.count
        self.min_real_rows = settings.min_real_rows
        self.block_tokens = block_tokens
        self._keys = keys

    def protect(self, frame: ProtectedFrame, context: StepContext) -> ProtectedFrame:
        """[N, T, D] to [N, block_tokens + count, D], decoys last and where rows are not sent.

        Training rows then enter the pool.
        """
        num, length = frame.rows.shape[:2]
        if length > self.block_tokens:
            raise StateError(
                f"step {context.step}: {length} real rows do not fit a frame for {self.block_tokens}",
                remedy="use sequences of at most corpus.block_tokens positions",
            )
        wanted = self.block_tokens + self.count - length
        drawn = wanted if context.real_lengths is None else wanted + length
        chosen = self._keys.stream(context.step, self.name).subsets(num, self.pool.capacity, drawn)
        rows, truth = self.pool.take(torch.from_numpy(chosen))
        context.stash[self.name] = length
        if context.mode == "train":
            self.absorb(frame)
        joined = _join(frame, rows.to(frame.rows), truth, dim=1)
        if context.real_lengths is None:
            return joined
        return _substitute(joined, context.real_lengths.cpu(), length, self.block_tokens + self.count)

    def restore(self, rows: torch.Tensor, context: StepContext) -> torch.Tensor:
        """The real rows [N, T, D]."""
        return rows[:, : context.stash.pop(self.name)]

    def demand(self, num_real: int) -> BatchDemand | None:
        """A varying number of real rows, where the settings say so."""
        return BatchDemand(num_real, min_real_rows=self.min_real_rows) if self.min_real_rows else None

    def absorb(self, frame: ProtectedFrame) -> None:
        """Puts every row of the frame into the pool."""
        self.pool.add(frame.rows.flatten(0, 1), map_truth(frame.truth, lambda values: values.flatten(0, 1)))

    def describe(self) -> Description:
        """Decoys a full frame, real rows of a full frame, pool size."""
        facts: Description = {"kind": self.kind, "unit": "rows", "count": self.count, "real_rows": self.block_tokens}
        if self.min_real_rows:
            facts["min_real_rows"] = self.min_real_rows
        return {**facts, "pool_size": self.pool.capacity, **_warning(self.kind)}


class DecoySequences(PooledMechanism):
    """Decoy sequences in the batch, in a fresh secret order of sequences."""

    name = "decoys"
    stage = Stage.MIX

    def __init__(self, settings: DecoySettings, keys: FrameKeys) -> None:
        super().__init__(settings.pool_size)
        self.stage = _STAGES[settings.kind]
        self.kind = settings.kind
        self.count = settings.count
        self._keys = keys

    def protect(self, frame: ProtectedFrame, context: StepContext) -> ProtectedFrame:
        """[B, T, H] to [B + count, T, H]. Training sequences then enter the pool."""
        if context.mode == "cached" or context.row_lengths:
            raise StateError(
                f"step {context.step}: decoy sequences work with full blocks, without a cache",
                remedy="leave decoys out of frame.mechanisms for generation, or drop the padding",
            )
        stream = self._keys.stream(context.step, self.name)
        chosen = torch.from_numpy(stream.subsets(1, self.pool.capacity, self.count)[0])
        num_real = frame.rows.shape[0]
        order = torch.from_numpy(stream.permutations(1, num_real + self.count)[0])
        rows, truth = self.pool.take(chosen)
        if rows.shape[1:] != frame.rows.shape[1:]:
            raise StateError(
                f"step {context.step}: sequences of {frame.rows.shape[1]} positions cannot hide among decoys of "
                f"{rows.shape[1]}",
                remedy="use sequences of one length while decoys are on",
            )
        context.stash[self.name] = order.argsort()[:num_real]
        if context.mode == "train":
            self.absorb(frame)
        joined = _join(frame, rows.to(frame.rows), truth, dim=0)
        return ProtectedFrame(joined.rows[order], map_truth(joined.truth, lambda values: values[order]))

    def restore(self, rows: torch.Tensor, context: StepContext) -> torch.Tensor:
        """The real sequences [B, T, H] in their first order."""
        return rows[context.stash.pop(self.name)]

    def absorb(self, frame: ProtectedFrame) -> None:
        """Puts every sequence of the batch into the pool."""
        self.pool.add(frame.rows, frame.truth)

    def describe(self) -> Description:
        """Decoys a batch and pool size."""
        facts: Description = {"kind": self.kind, "unit": "sequences", "count": self.count}
        return {**facts, "pool_size": self.pool.capacity, **_warning(self.kind)}


def _warning(kind: DecoyKind) -> Description:
    return {"unsafe": True} if kind == "published" else {}


def _join(frame: ProtectedFrame, rows: torch.Tensor, truth: RowTruth, dim: int) -> ProtectedFrame:
    known = None if frame.truth is None else join_truth(frame.truth, truth, dim)
    return ProtectedFrame(torch.cat((frame.rows, rows), dim), known)


def _substitute(joined: ProtectedFrame, real_lengths: torch.Tensor, length: int, size: int) -> ProtectedFrame:
    """The first `size` rows, with spare decoys in place of the rows from real_lengths[n] to `length` of frame n."""
    places = torch.arange(size).expand(len(real_lengths), size)
    unsent = (places >= real_lengths.unsqueeze(1)) & (places < length)
    chosen = torch.where(unsent, places + size, places)
    return ProtectedFrame(
        take_rows(joined.rows, chosen.to(joined.rows.device)),
        map_truth(joined.truth, lambda values: values.gather(1, chosen)),
    )
