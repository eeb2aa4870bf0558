"""Which dose of a nested ladder has to be read next, so that its onset is that of the whole ladder read in full.

A rung is a dose, the lowest one no dose at all; an answer says of one repetition on one rung whether an event was
there (a leak found, or a ceiling broken). The onset is the lowest rung from which on every rung has the event in the
needed share of the repetitions. What is left out, and why nothing is lost by it:

    repetitions   once a rung's outcome is the same whatever the others would answer (curtailed sampling)
    lower rungs   below one that missed: the onset lies above it by its definition, found or not
    upper rungs   doses are nested, so a larger one holds the smaller: between the onset and the top rung each is read
                  once, and in full as soon as that reading misses

No dose and the top rung are always read; between the highest miss and the lowest find above it the ladder is bisected.
The first two are exact. The third is exact for answers that never fall with the dose, which nested doses have but for
the luck of a fit; a fall that its one reading shows is followed up, one that it does not show is not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

Outcome = Literal["found", "missed", "inferred", "open"]
"""`found` and `missed` were read. `inferred`: a smaller dose is found, and what was read here does not contradict.
`open`: unknown, and the onset does not depend on it."""
Answers = Sequence[Sequence[bool]]
"""Answers of one event by rung, lowest dose first, and by repetition as far as they were read."""


def outcomes(answers: Answers, repetitions: int, power_ratio: float) -> list[Outcome]:
    """The outcome of every rung for one event."""
    decided = [_decided(rung, repetitions, power_ratio) for rung in answers]
    _, high = _bracket(decided)
    return [_outcome(known, rung, high) for rung, known in enumerate(decided)]


def onset(found: Sequence[Outcome]) -> int | None:
    """The lowest rung from which on every rung is found or inferred; None when the top one is not."""
    lowest = None
    for rung in range(len(found) - 1, -1, -1):
        if found[rung] not in ("found", "inferred"):
            break
        lowest = rung
    return lowest


def next_rung(events: Sequence[Answers], repetitions: int, power_ratio: float) -> int | None:
    """The rung whose next repetition has to be read; None when the onset of every event is settled."""
    for answers in events:
        rung = _wanted(answers, repetitions, power_ratio)
        if rung is not None:
            return rung
    return None


def _wanted(answers: Answers, repetitions: int, power_ratio: float) -> int | None:
    decided = [_decided(rung, repetitions, power_ratio) for rung in answers]
    top = len(decided) - 1
    for end in (0, top):
        if decided[end] is None:
            return end
    low, high = _bracket(decided)
    if high is None:
        return None
    if high - low > 1:
        return (low + high) // 2
    unconfirmed = (rung for rung in range(high + 1, top) if decided[rung] is None and not _agrees(answers[rung]))
    return next(unconfirmed, None)


def _decided(answers: Sequence[bool], repetitions: int, power_ratio: float) -> bool | None:
    """Whether the rung has the needed share; None while the repetitions that are left decide it."""
    hits = sum(answers)
    if hits / repetitions >= power_ratio:
        return True
    most = hits + repetitions - len(answers)
    return None if most / repetitions >= power_ratio else False


def _bracket(decided: Sequence[bool | None]) -> tuple[int, int | None]:
    """The highest rung that missed (-1: none), and the lowest one above it that is found (None: none)."""
    low = max((rung for rung, known in enumerate(decided) if known is False), default=-1)
    return low, next((rung for rung in range(low + 1, len(decided)) if decided[rung]), None)


def _outcome(known: bool | None, rung: int, high: int | None) -> Outcome:
    if known is not None:
        return "found" if known else "missed"
    return "inferred" if high is not None and rung > high else "open"


def _agrees(answers: Sequence[bool]) -> bool:
    return bool(answers) and all(answers)
