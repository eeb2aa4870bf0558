"""What a streaming detector is, and the reading that it keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from auditor.watch.groups import Group


@dataclass(frozen=True)
class Reading:
    """Where a detector stands. `lower` is a bound that holds at all times at once; `leak` says what was found, or ''.

    `evidence` is log10 of the evidence against "under the ceiling"; a leak is called at `evidence_needed`.
    """

    detector: str
    what: str
    value: float | None
    lower: float | None
    ceiling: float
    unit: str
    num_groups: int
    evidence: float | None = None
    evidence_needed: float | None = None
    leak: str = ""


class Detector(Protocol):
    """Takes groups in the order in which they crossed, in bounded memory."""

    name: str
    hops: tuple[int, ...]

    def take(self, group: Group) -> None:
        """Scores the group by what came before, then learns from it."""
        ...

    def reading(self) -> Reading:
        """Where it stands."""
        ...
