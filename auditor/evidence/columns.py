"""A column of numbers, one a captured row: appended while a bundle is read, then mapped from disk.

Thousands of small arrays would fill the memory of a large capture with the gaps between them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from splitwire.errors import RecordingError


class Column:
    """`append`, then `mapped`."""

    def __init__(self, path: Path, dtype: type) -> None:
        self._path, self._dtype = path, np.dtype(dtype)
        self._file = path.open("wb")
        self._count = 0

    def append(self, values: NDArray[Any]) -> None:
        """Adds values [n]; RecordingError when the disk is full."""
        keep(self._file, self._path, np.ascontiguousarray(values, dtype=self._dtype))
        self._count += len(values)

    def mapped(self) -> NDArray[Any]:
        """Ends appending; all values. What is written to them stays in memory."""
        self.close()
        if not self._count:
            return np.zeros(0, self._dtype)
        return np.asarray(np.memmap(self._path, self._dtype, "c", shape=(self._count,)))

    def close(self) -> None:
        """Lets go of the file."""
        self._file.close()


def keep(file: BinaryIO, path: Path, values: NDArray[Any]) -> None:
    """Writes contiguous values to the end of a file of the capture; RecordingError when the disk is full."""
    try:
        file.write(values.data)
    except OSError as error:
        raise RecordingError(
            f"the rows of the capture cannot be kept at {path}: {error.strerror}",
            remedy="set TMPDIR to a folder with as much free space as the bundle has bytes",
        ) from None
