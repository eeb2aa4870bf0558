"""Exact zeros of the gradient, from the first BACKWARD frame on: they say which rows bore no loss.

Nothing is estimated, so there is no error level: with the truth a leak is one frame whose zeros are exactly its decoys;
without it, one frame whose zeros separate some units from others.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from auditor.arrays import Flags
from auditor.watch.base import Reading
from auditor.watch.groups import Group
from splitwire.v1 import channels_pb2

_KEPT_FRAMES = 16


@dataclass(frozen=True)
class SupportLine:
    """One frame: whether each unit has a gradient, and which are real where the truth tells. Sorted, not in order."""

    nonzero: tuple[bool, ...]
    real: tuple[bool, ...] | None


class SupportDetector:
    """Counts frames whose support gives the partition away."""

    name = "support"
    hops: tuple[int, ...] = (channels_pb2.HOP_BACKWARD,)

    def __init__(self) -> None:
        self.num_groups = 0
        self.num_separated = 0
        self.num_exact = 0
        self._with_truth = False
        self.lines: deque[SupportLine] = deque(maxlen=_KEPT_FRAMES)
        """The last frames, for a picture."""

    def take(self, group: Group) -> None:
        """Looks at the zeros of one group."""
        nonzero = group.norm > 0
        truth = group.truth
        if len(nonzero) < 2 or (truth is not None and truth.real.all()):
            return
        self.num_groups += 1
        self.lines.append(_line(nonzero, None if truth is None else truth.real))
        if not 0 < int(nonzero.sum()) < len(nonzero):
            return
        self.num_separated += 1
        if truth is not None:
            self._with_truth = True
            self.num_exact += bool(np.array_equal(nonzero, truth.real))

    def reading(self) -> Reading:
        """Frames that are separated, or exact where the truth is known."""
        count = self.num_exact if self._with_truth else self.num_separated
        what = "frames whose zero gradients are exactly the decoys"
        if not self._with_truth:
            what = "frames in which zero gradients separate the rows"
        value = float(count)
        leak = f"{count} {what}" if count else ""
        return Reading(self.name, what, value, value, 0.0, "frames", self.num_groups, leak=leak)


def _line(nonzero: Flags, real: Flags | None) -> SupportLine:
    """Real units first, and among either those with a gradient: which row it was is not kept."""
    if real is None:
        return SupportLine(tuple(np.sort(nonzero)[::-1].tolist()), None)
    order = np.lexsort((~nonzero, ~real))
    return SupportLine(tuple(nonzero[order].tolist()), tuple(real[order].tolist()))
