"""How many tokens of a text were read: position by position, and as a bag.

Position-wise accuracy is what verdicts use. Bags forget the order: a shuffled guess scores 1, so every bag metric says
so in its name. NO_GUESS never counts as right, and is no member of the guessed bag.

Shapes: T positions of one text.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from auditor.arrays import Integers

Item = TypeVar("Item", int, str)


@dataclass(frozen=True)
class Overlap:
    """What two bags have in common, and how large each is. Precision and recall are over all texts (report.py)."""

    num_common: int
    num_guessed: int
    num_true: int


def position_hits(guessed: Integers, true: Integers) -> NDArray[np.bool_]:
    """Whether each position [T] is named."""
    return np.asarray((guessed == true) & (guessed >= 0))


def bag_overlap(guessed: Integers, true: Integers) -> Overlap:
    """Tokens in common, without their places."""
    named = guessed[guessed >= 0]
    return overlap(Counter(named.tolist()), Counter(true.tolist()))


def overlap(guessed: Counter[Item], true: Counter[Item]) -> Overlap:
    """What two bags have in common."""
    return Overlap((guessed & true).total(), guessed.total(), true.total())


def is_exact(guessed: Integers, true: Integers) -> bool:
    """Whether every position is named."""
    return bool(position_hits(guessed, true).all())
