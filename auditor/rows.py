"""Rows of a capture on disk: appended while a bundle is read, then gathered by view. A capture need not fit memory.

Float32, one width a store. The file lies in a temporary folder of the audit, and holds only what the bundle holds.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from splitwire.errors import BundleError, RecordingError

Rows = NDArray[np.float32]


class RowStore:
    """Append rows, then `freeze`, then `gather`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("wb")
        self._mapped: Rows | None = None
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
        try:
            self._file.write(np.ascontiguousarray(rows, dtype=np.float32).data)
        except OSError as error:
            raise RecordingError(
                f"the rows of the capture cannot be kept at {self._path}: {error.strerror}",
                remedy="set TMPDIR to a folder with as much free space as the bundle has bytes",
            ) from None
        self.num_rows += len(rows)
        return first

    def freeze(self) -> None:
        """Ends appending."""
        self._file.close()
        if self.num_rows:
            self._mapped = np.memmap(self._path, np.float32, "r", shape=(self.num_rows, self.width))

    def gather(self, rows: NDArray[np.int64]) -> Rows:
        """Copies of the rows with these numbers [n, D]."""
        if self._mapped is None:
            return np.zeros((len(rows), self.width), np.float32)
        return np.asarray(self._mapped[rows])

    def close(self) -> None:
        """Lets go of the file."""
        self._file.close()
        self._mapped = None
