"""Keeps what an active tap recorded apart from what crossed of itself.

A bundle of an active tap holds a run that was interfered with: its returned rows were changed, and everything after
them reacts. So no attack of a passive family reads it, nor any other bundle of its sessions; the truth of these
sessions goes with it. A bundle that only the trusted node recorded does not know of the tap: give the tap's bundle
beside it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from auditor.evidence.sources import FrameSource, TruthSource
from auditor.perturbation import Schedule, perturbation_of


@dataclass(frozen=True, eq=False)
class ActiveEvidence:
    """Bundles of active taps, the truths of their sessions, and the schedule of each session by its hash."""

    sources: Sequence[FrameSource]
    truths: Sequence[TruthSource]
    schedules: Mapping[str, Schedule]


@dataclass(frozen=True, eq=False)
class Parted:
    """The evidence in its two parts."""

    sources: Sequence[FrameSource]
    truths: Sequence[TruthSource]
    active: ActiveEvidence
    notes: Sequence[str]


def part_active(sources: Sequence[FrameSource], truths: Sequence[TruthSource]) -> Parted:
    """Takes the bundles of active taps, and whatever else is of their sessions, out of the passive evidence."""
    schedules: dict[str, Schedule] = {}
    for source in sources:
        perturbation = perturbation_of(getattr(source, "settings", {}))
        if perturbation.is_active:
            schedules |= dict.fromkeys(_sessions(source), Schedule(perturbation))
    if not schedules:
        return Parted(sources, truths, ActiveEvidence((), (), {}), ())
    ours = [source for source in sources if schedules.keys() & set(_sessions(source))]
    active = ActiveEvidence(
        [source for source in ours if perturbation_of(getattr(source, "settings", {})).is_active],
        [_Sessions(truth, schedules.keys(), inside=True) for truth in truths],
        schedules,
    )
    rest = [_Sessions(truth, schedules.keys(), inside=False) for truth in truths]
    note = f"{len(ours)} bundles are of sessions with an active tap: active_perturbation alone reads them"
    return Parted(
        [source for source in sources if source not in ours],
        [truth for truth in rest if truth.records],
        active,
        [note],
    )


class _Sessions:
    """The part of a truth that is, or is not, of some sessions."""

    def __init__(self, truth: TruthSource, sessions: Collection[str], *, inside: bool) -> None:
        self._truth = truth
        keys = [key for key in truth.records if (key[0] in sessions) == inside]
        self._chosen = _Chosen(truth.records, keys)

    @property
    def records(self) -> Mapping[tuple[str, int], Any]:
        """Truth of the frames of these sessions."""
        return self._chosen

    @property
    def documents(self) -> Sequence[Mapping[str, Any]]:
        """The whole documents table, whose numbers the records use."""
        return self._truth.documents

    @property
    def is_complete(self) -> bool:
        """Whether the file has its end."""
        return self._truth.is_complete


class _Chosen(Mapping[tuple[str, int], Any]):
    """Records of chosen keys, each opened when it is asked for."""

    def __init__(self, records: Mapping[tuple[str, int], Any], keys: Sequence[tuple[str, int]]) -> None:
        self._records = records
        self._keys = dict.fromkeys(keys)

    def __getitem__(self, key: tuple[str, int]) -> Any:
        if key not in self._keys:
            raise KeyError(key)
        return self._records[key]

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


def _sessions(source: FrameSource) -> list[str]:
    sessions = getattr(source, "sessions", None)
    return [] if sessions is None else list(sessions())
