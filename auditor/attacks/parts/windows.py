"""Frames as windows of rows (start, end): a frame longer than 256 rows is read in several, to bound its pair table."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

WINDOW_ROWS = 256
Window = tuple[int, int]


def windows_of(offsets: Sequence[int]) -> list[Window]:
    """The windows of frames whose rows are offsets[f]:offsets[f + 1]."""
    return [
        (begin, min(end, begin + WINDOW_ROWS))
        for start, end in itertools.pairwise(offsets)
        for begin in range(start, end, WINDOW_ROWS)
    ]


def batches_of(windows: Sequence[Window], num_rows: int) -> Iterator[list[Window]]:
    """Windows whose padded size stays within `num_rows`, at least one a batch."""
    batch: list[Window] = []
    longest = 0
    for window in windows:
        longest = max(longest, window[1] - window[0])
        if batch and longest * (len(batch) + 1) > num_rows:
            yield batch
            batch, longest = [], window[1] - window[0]
        batch.append(window)
    if batch:
        yield batch
