"""What was captured, joined with the truth: the rows of every frame on disk, and flat tables over rows and units.

A *row* is one wire row. An *item* is one frame of the gram stack or one sequence of the transformer stack: the rows
that an attack may compare with one another. A *unit* is what the partition question asks about: a row of a gram
frame, a sequence of a transformer batch. A *group* holds the units that crossed together and among which the real
ones hide.

The truth in here is for the scorer: an attack gets a view (views/), never a capture.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from auditor.arrays import Flags, Integers
from auditor.evidence.rows import RowStore

STEP_BITS = 20
"""A group is the number of its step, shifted by so many bits, and below it the number of the frame in the step."""


@dataclass(frozen=True, eq=False)
class Items:
    """One entry an item. `gradient_first` and `returned_first` are -1 where none came; `document` is that of the real
    rows.
    """

    group: Integers
    first: Integers
    """Number of its first row, in the row table and in the forward store alike."""
    num_rows: Integers
    gradient_first: Integers
    document: Integers
    by_row: Flags
    """Whether its units are rows (gram) rather than the item itself (transformer)."""
    returned_first: Integers

    def __len__(self) -> int:
        return len(self.first)


@dataclass(frozen=True, eq=False)
class RowTable:
    """One entry a captured row. Truth: for the scorer only."""

    item: Integers
    real: Flags
    label: Integers
    token: Integers
    order: Integers
    """Position of the row in its text."""
    document: Integers
    forward_norm: NDArray[np.float64]
    gradient_norm: NDArray[np.float64]
    """NaN where no gradient came; exactly 0 only where every value was."""


@dataclass(frozen=True, eq=False)
class Capture:
    """Everything that an audit works on."""

    items: Items
    rows: RowTable
    forward: RowStore
    gradient: RowStore
    returned: RowStore
    documents: list[str]
    problems: list[str]
    notes: list[str] = field(default_factory=list)
    num_train_steps: int = 0
    num_backward_steps: int = 0
    steps: Sequence[tuple[str, int]] = ()
    """(session hash, step) of every step that joined, in order of crossing."""
    trains: Flags = field(default_factory=lambda: np.zeros(0, dtype=bool))
    """Whether that step was in mode TRAIN."""
    skipped: Mapping[int, int] = field(default_factory=dict)
    """FORWARD frames of the compute modes that were not asked for, by mode."""

    @property
    def num_skipped(self) -> int:
        """FORWARD frames of compute modes that were not asked for."""
        return sum(self.skipped.values())

    def step_of_items(self) -> Integers:
        """Number in `steps` of every item."""
        return self.items.group >> STEP_BITS

    def close(self) -> None:
        """Lets go of the files on disk."""
        self.forward.close()
        self.gradient.close()
        self.returned.close()
