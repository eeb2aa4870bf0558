"""A ladder that is read in part has the onset of the ladder read in full, for any answers that do not fall."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from auditor.calibration.search import next_rung, onset, outcomes

RUNGS = st.integers(2, 8)
REPETITIONS = st.integers(1, 7)
POWER = st.sampled_from((0.5, 0.8, 0.9, 1.0))
Table = list[list[bool]]


def searched(tables: Sequence[Table], repetitions: int, power_ratio: float) -> list[Table]:
    """What a search reads of the whole answers, by event, rung and repetition."""
    read: list[Table] = [[[] for _ in table] for table in tables]
    while (rung := next_rung(read, repetitions, power_ratio)) is not None:
        number = len(read[0][rung])
        assert number < repetitions, "a rung is read more often than it has repetitions"
        for mine, whole in zip(read, tables, strict=True):
            mine[rung].append(whole[rung][number])
    return read


def count(read: Sequence[Table]) -> int:
    return sum(len(rung) for rung in read[0])


@st.composite
def nested(draw: st.DrawFn, rungs: int, repetitions: int) -> Table:
    """Answers of nested doses: each repetition has a dose from which on it finds the leak, or none."""
    first = [draw(st.integers(0, rungs)) for _ in range(repetitions)]
    return [[rung >= start for start in first] for rung in range(rungs)]


@given(st.data(), RUNGS, REPETITIONS, POWER, st.integers(1, 3))
def test_answers_that_never_fall_give_the_onset_of_the_whole_ladder(
    data: st.DataObject, rungs: int, repetitions: int, power_ratio: float, events: int
) -> None:
    tables = [data.draw(nested(rungs, repetitions)) for _ in range(events)]
    read = searched(tables, repetitions, power_ratio)
    for mine, whole in zip(read, tables, strict=True):
        found = outcomes(mine, repetitions, power_ratio)
        full = outcomes(whole, repetitions, power_ratio)
        assert set(full) <= {"found", "missed"}
        assert onset(found) == onset(full)
        assert all(state == true for state, true in zip(found, full, strict=True) if state in ("found", "missed"))
        assert all(true == "found" for state, true in zip(found, full, strict=True) if state == "inferred")


@given(st.data(), RUNGS, REPETITIONS, POWER)
def test_any_answers_at_all_give_an_onset_that_what_was_read_supports(
    data: st.DataObject, rungs: int, repetitions: int, power_ratio: float
) -> None:
    """The onset's rung is read and found, the one below missed, and none above it shows a miss."""
    row = st.lists(st.booleans(), min_size=repetitions, max_size=repetitions)
    table = data.draw(st.lists(row, min_size=rungs, max_size=rungs))
    (mine,) = searched([table], repetitions, power_ratio)
    found, full = outcomes(mine, repetitions, power_ratio), outcomes(table, repetitions, power_ratio)
    first = onset(found)
    if first is None:
        assert full[-1] == "missed"
        return
    assert full[first] == found[first] == "found"
    assert first == 0 or full[first - 1] == found[first - 1] == "missed"
    for rung in range(first + 1, rungs):
        agrees = found[rung] == "inferred" and mine[rung] and all(mine[rung])
        assert agrees or found[rung] == full[rung] == "found"


def test_a_ladder_costs_a_fraction_of_what_it_holds() -> None:
    """Six rungs of five repetitions: what it takes where the leak is never found, and where from one tenth on."""
    never = [[False] * 5 for _ in range(6)]
    late = [[rung >= 3] * 5 for rung in range(6)]
    assert count(searched([never], 5, 0.8)) == 4
    assert count(searched([late], 5, 0.8)) == 2 + 4 + 2 + 4 + 1
    assert count(searched([never, late], 5, 0.8)) == 13


def test_a_fall_between_onset_and_top_is_followed_up() -> None:
    """The rung that misses its one reading is read in full, and the onset is above it when it misses."""
    fallen = [[False] * 5, [True] * 5, [True] * 5, [True] * 5, [False] * 5, [True] * 5]
    (read,) = searched([fallen], 5, 0.8)
    assert onset(outcomes(read, 5, 0.8)) == 5
    lucky = [[False] * 5, [True] * 5, [True] * 5, [True] * 5, [False, True, True, True, True], [True] * 5]
    (read,) = searched([lucky], 5, 0.8)
    assert onset(outcomes(read, 5, 0.8)) == 1
    assert len(read[4]) == 5
