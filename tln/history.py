"""What a session has sent into its remote caches: enough to fill the caches of another session with the same rows.

Rows are kept as they crossed, in the dtype of the wire (float32 for int8), so that what crosses again is the same
bytes: nothing is protected twice and no noise is drawn again. Reordering, cropping and releasing a remote cache is done
to its history too. A reordering is noted and done when the history is read, so that it costs a decode step nothing.

Memory: a sequence of T positions takes T x D x 4 bytes for fp32 and int8 rows, half of it for bf16 and fp16; rows of
beams that were dropped stay until the cache is released. Past `max_bytes` in all, the history of the cache that grew is
dropped, and `lost` names it until it is released.

Shapes: B sequences, T positions, D width of a row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from splitwire.errors import StateError
from tln.context import PaddingSide, RowTruth, StepContext
from tln.mechanisms.base import map_truth


@dataclass(frozen=True)
class SentRows:
    """Rows [B, T, D] of one frame as they crossed, and the truth about them if somebody asked for it."""

    rows: torch.Tensor
    row_lengths: tuple[int, ...] = ()
    padding_side: PaddingSide = ""
    truth: RowTruth | None = None

    @property
    def num_positions(self) -> int:
        """T."""
        return int(self.rows.shape[1])

    def select(self, sequences: Sequence[int] | None) -> SentRows:
        """These sequences, in this order; None for all."""
        if sequences is None:
            return self
        index = torch.tensor(list(sequences))
        lengths = tuple(self.row_lengths[number] for number in sequences) if self.row_lengths else ()
        return SentRows(self.rows[index], lengths, self.padding_side, map_truth(self.truth, lambda part: part[index]))

    def cut(self, start: int, end: int) -> SentRows:
        """Positions [start, end); with padding on the left, `start` is 0 and all of it is before `end`."""
        rest = self.num_positions - end
        lengths = tuple(length - rest for length in self.row_lengths) if start == 0 else ()
        if self.padding_side == "right":
            lengths = tuple(min(length, end) for length in self.row_lengths)
        truth = map_truth(self.truth, lambda part: part[:, start:end])
        return SentRows(self.rows[:, start:end], lengths, self.padding_side if lengths else "", truth)


@dataclass
class CacheHistory:
    """Frames and reorderings of one cache, in order."""

    entries: list[SentRows | tuple[int, ...]] = field(default_factory=list)

    @property
    def num_bytes(self) -> int:
        """Bytes of rows."""
        return sum(entry.rows.nbytes for entry in self.entries if isinstance(entry, SentRows))

    def crop(self, num_positions: int) -> None:
        """Keeps the first `num_positions` positions."""
        frames = [place for place, entry in enumerate(self.entries) if isinstance(entry, SentRows)]
        end = sum(self._frame(place).num_positions for place in frames)
        for place in reversed(frames):
            frame = self._frame(place)
            start = end - frame.num_positions
            if end <= num_positions:
                return
            if start < num_positions:
                self.entries[place] = frame.cut(0, num_positions - start)
                return
            del self.entries[place]
            end = start
        self.entries.clear()

    def sent(self) -> list[SentRows]:
        """All rows of the sequences that the cache holds now, as few frames as can cross: one, or two when the first is
        padded on the right.
        """
        order: Sequence[int] | None = None
        frames: list[SentRows] = []
        for entry in reversed(self.entries):
            if isinstance(entry, SentRows):
                frames.append(entry.select(order))
            else:
                order = entry if order is None else [entry[number] for number in order]
        frames.reverse()
        if frames and frames[0].padding_side == "right":
            return [frames[0], *_joined(frames[1:])]
        return _joined(frames)

    def _frame(self, place: int) -> SentRows:
        entry = self.entries[place]
        assert isinstance(entry, SentRows)  # noqa: S101 - chosen so by the caller
        return entry


class SessionHistory:
    """The histories of all caches of a session, by cache id."""

    def __init__(self, dtype: torch.dtype, max_bytes: int) -> None:
        """`dtype` is that of the wire; float32 for int8."""
        self._dtype = dtype
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._caches: dict[int, CacheHistory] = {}
        self.lost: set[int] = set()

    @property
    def num_bytes(self) -> int:
        """Bytes of rows of all caches."""
        return self._num_bytes

    def add(self, rows: torch.Tensor, context: StepContext, truth: RowTruth | None) -> None:
        """Notes a frame that was answered."""
        if context.cache_id in self.lost:
            return
        kept = rows.detach().to("cpu", self._dtype, copy=True)
        sent = SentRows(kept, context.row_lengths, context.padding_side, truth)
        self._caches.setdefault(context.cache_id, CacheHistory()).entries.append(sent)
        self._num_bytes += kept.nbytes
        if self._num_bytes > self._max_bytes:
            self._drop(context.cache_id)
            self.lost.add(context.cache_id)

    def reorder(self, cache_id: int, indices: Sequence[int]) -> None:
        """New sequence i is old sequence indices[i]."""
        if cache_id in self._caches:
            self._caches[cache_id].entries.append(tuple(indices))

    def crop(self, cache_id: int, num_positions: int) -> None:
        """Keeps the first `num_positions` positions."""
        cache = self._caches.get(cache_id)
        if cache is not None:
            self._num_bytes -= cache.num_bytes
            cache.crop(num_positions)
            self._num_bytes += cache.num_bytes
        elif num_positions == 0:
            self.lost.discard(cache_id)

    def release(self, cache_id: int) -> None:
        """Forgets a cache."""
        self._drop(cache_id)
        self.lost.discard(cache_id)

    def sent(self) -> Iterator[tuple[int, SentRows]]:
        """The rows of every cache, with its id. StateError when the history of one was dropped."""
        if self.lost:
            raise StateError(
                f"the rows of {len(self.lost)} caches are no longer kept, which would take more than "
                f"{self._max_bytes} bytes",
                remedy="generate again; raise connection.recovery.history_bytes for texts of this length",
            )
        for cache_id, cache in self._caches.items():
            for frame in cache.sent():
                yield cache_id, frame

    def _drop(self, cache_id: int) -> None:
        cache = self._caches.pop(cache_id, None)
        self._num_bytes -= 0 if cache is None else cache.num_bytes


def _joined(frames: Sequence[SentRows]) -> list[SentRows]:
    """One frame of all, of which the first alone may be padded, on the left."""
    if len(frames) < 2:
        return list(frames)
    first = frames[0]
    rows = torch.cat([frame.rows for frame in frames], dim=1)
    more = rows.shape[1] - first.num_positions
    lengths = tuple(length + more for length in first.row_lengths)
    truths = [frame.truth for frame in frames if frame.truth is not None]
    truth = _joined_truths(truths) if len(truths) == len(frames) else None
    return [SentRows(rows, lengths, first.padding_side, truth)]


def _joined_truths(truths: Sequence[RowTruth]) -> RowTruth:
    names = [each.name for each in dataclasses.fields(RowTruth)]
    return RowTruth(**{name: torch.cat([getattr(truth, name) for truth in truths], dim=1) for name in names})
