"""Rows that are put together a piece at a time, so that a copy of all of them need not fit memory.

Shapes: N rows, K features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch

_PIECE_VALUES = 1 << 21


class RowSource(Protocol):
    """What a tensor [N, K] has, too."""

    def __len__(self) -> int:
        """Number of rows."""
        ...

    def __getitem__(self, place: slice) -> torch.Tensor:
        """Some of the rows [n, K]."""
        ...


class RowsOf:
    """The rows with these numbers [N] of several tensors [M, *], side by side, and then formed."""

    def __init__(
        self,
        parts: Sequence[torch.Tensor],
        numbers: torch.Tensor,
        form: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        self._parts, self._numbers, self._form = parts, numbers, form

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, place: slice | torch.Tensor) -> torch.Tensor:
        numbers = self._numbers[place]
        rows = torch.cat([part[numbers] for part in self._parts], dim=1)
        return rows if self._form is None else self._form(rows)


def pieces(rows: RowSource) -> Iterator[tuple[slice, torch.Tensor]]:
    """All rows in order, some at a time, each with its place."""
    step = max(1, _PIECE_VALUES // max(1, rows[0:1].shape[1]))
    for start in range(0, len(rows), step):
        place = slice(start, min(start + step, len(rows)))
        yield place, rows[place]
