"""Rows of a capture on disk: appended while a bundle is read, then gathered by view. A capture need not fit memory.

Float32, one width a store. The file lies in a temporary folder of the audit, and holds only what the bundle holds. What
a view gathers, and every copy of it, is put together piece by piece in a nameless file in TMPDIR and mapped, so that
the system may drop its pages from memory.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import overload

import numpy as np

from auditor.arrays import Integers, Rows
from auditor.evidence.columns import keep
from splitwire.errors import BundleError, RecordingError

_PIECE_BYTES = 16 << 20
_SMALLEST_FILE_BYTES = 1 << 20  # what is smaller stays in memory


class RowStore:
    """Append rows, then `freeze`, then `gather`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("wb")
        self._frozen = False
        self.num_rows = 0
        self.width = 0

    def append(self, rows: Rows) -> int:
        """Adds rows [n, D] and gives the number of the first one. BundleError when D changes."""
        if self.width and rows.shape[1] != self.width:
            raise BundleError(
                f"the bundles hold frames of width {self.width} and of width {rows.shape[1]}",
                remedy="audit one stack at a time, or narrow compute_modes in the plan",
            )
        self.width = rows.shape[1]
        first = self.num_rows
        keep(self._file, self._path, np.ascontiguousarray(rows, dtype=np.float32))
        self.num_rows += len(rows)
        return first

    def freeze(self) -> None:
        """Ends appending."""
        self._file.close()
        self._frozen = self.num_rows > 0

    def gather(self, rows: Integers) -> Rows:
        """Copies of the rows with these numbers [n, D]. The file is mapped for that long alone: its pages then leave
        the memory of the process.
        """
        if not self._frozen:
            return np.zeros((len(rows), self.width), np.float32)
        mapped: Rows = np.memmap(self._path, np.float32, "r", shape=(self.num_rows, self.width))
        return np.asarray(mapped[rows])

    def pieces(self, rows: Integers) -> Iterator[tuple[slice, Rows]]:
        """The rows with these numbers, some at a time, each with its place among them."""
        for place in places(len(rows), self.width):
            yield place, self.gather(rows[place])

    def close(self) -> None:
        """Lets go of the file."""
        self._file.close()
        self._frozen = False


class StoredFrames(Sequence[Rows]):
    """Frames [R, D] of a store, each read when it is asked for; frame f has `num_rows[f]` rows from `first[f]` on."""

    def __init__(self, store: RowStore, first: Integers, num_rows: Integers) -> None:
        self._store, self._first, self._num_rows = store, first, num_rows

    def __len__(self) -> int:
        return len(self._first)

    @overload
    def __getitem__(self, number: int) -> Rows: ...
    @overload
    def __getitem__(self, number: slice) -> StoredFrames: ...
    def __getitem__(self, number: int | slice) -> Rows | StoredFrames:
        if isinstance(number, slice):
            return StoredFrames(self._store, self._first[number], self._num_rows[number])
        first = int(self._first[number])
        return self._store.gather(np.arange(first, first + int(self._num_rows[number])))


def places(num_rows: int, width: int) -> Iterator[slice]:
    """Where the pieces of so many rows of this width begin and end, in order."""
    step = max(1, _PIECE_BYTES // max(1, 4 * width))
    for start in range(0, num_rows, step):
        yield slice(start, min(start + step, num_rows))


def gather_scaled(parts: Sequence[tuple[RowStore, Integers]]) -> Rows:
    """The rows of all parts side by side [M, W], each part over its own label-free constant (see `scale_of`)."""
    count = len(parts[0][1])
    widths = [store.width for store, _ in parts]
    out = mapped_rows((count, sum(widths)))
    for (store, numbers), end in zip(parts, itertools.accumulate(widths), strict=True):
        norms = [np.linalg.norm(rows, axis=1) for _, rows in store.pieces(numbers)]
        scale = scale_of(np.concatenate(norms) if norms else np.zeros(0, np.float32), store.width)
        for place, rows in store.pieces(numbers):
            np.multiply(rows, scale, out=out[place, end - store.width : end])
    return out


def gather_mapped(store: RowStore, numbers: Integers) -> Rows:
    """The rows with these numbers [n, D] as they crossed."""
    out = mapped_rows((len(numbers), store.width))
    for place, rows in store.pieces(numbers):
        out[place] = rows
    return out


def copy_rows(rows: Rows) -> Rows:
    """A copy of the rows [M, W] of a view, to be changed."""
    out = mapped_rows(rows.shape)
    for place in places(*rows.shape):
        out[place] = rows[place]
    return out


def take_rows(rows: Rows, numbers: Integers) -> Rows:
    """Copies of the rows [M, W] of a view with these numbers [n, W]."""
    out = mapped_rows((len(numbers), rows.shape[1]))
    for place in places(*out.shape):
        out[place] = rows[numbers[place]]
    return out


def scale_of(norms: Rows, width: int) -> np.float32:
    """What rows of these norms are multiplied by, so that their median norm is the square root of their width."""
    positive = norms[norms > 0]
    return np.float32(np.sqrt(width) / (float(np.median(positive)) if len(positive) else 1.0))


def mapped_rows(shape: tuple[int, ...]) -> Rows:
    """Zeros [M, W] in a file without a name, which goes when the array goes; in memory where they are few.

    RecordingError where the disk has no room: that shows here, and not when a value is written.
    """
    num_bytes = 4 * int(np.prod(shape))
    if num_bytes < _SMALLEST_FILE_BYTES:
        return np.zeros(shape, np.float32)
    try:
        with tempfile.TemporaryFile(prefix="splitwire-rows-") as file:
            os.posix_fallocate(file.fileno(), 0, num_bytes)
            return np.memmap(file, np.float32, "r+", shape=shape)
    except OSError as error:
        raise RecordingError(
            f"the {num_bytes / 2**20:.0f} MiB of a view cannot be kept in {tempfile.gettempdir()}: {error.strerror}",
            remedy="set TMPDIR to a folder with as much free space as the bundle has bytes",
        ) from None
