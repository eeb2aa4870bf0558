"""Bookings of cache bytes, by session and by node."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitwire.errors import LimitError
from ucn.admission import CacheBudget
from ucn.caches import SessionCaches


def test_a_release_gives_back_exactly_what_the_cache_took() -> None:
    """Shares follow from the totals that the stack tells."""
    budget = CacheBudget(1000)
    caches = SessionCaches(budget, 1000)
    caches.extend(1, 2, 100)
    caches.extend(2, 1, 150)
    caches.extend(1, 2, 300)
    assert budget.used_bytes == 300
    caches.release(2)
    assert budget.used_bytes == 250
    caches.release(1)
    assert budget.used_bytes == 0


def test_a_reorder_scales_with_the_sequences() -> None:
    """Beam search that doubles the sequences doubles the bytes; an unknown cache books nothing."""
    budget = CacheBudget(1000)
    caches = SessionCaches(budget, 1000)
    caches.extend(1, 2, 100)
    before = caches.reorder(1, 4)
    assert budget.used_bytes == 200
    caches.restore(1, before)
    assert budget.used_bytes == 100
    assert caches.reorder(9, 3) is None


def test_refusals_change_nothing() -> None:
    """Both limits are checked before anything is booked."""
    budget = CacheBudget(250)
    first, second = SessionCaches(budget, 200), SessionCaches(budget, 200)
    first.extend(1, 1, 150)
    with pytest.raises(LimitError, match="of the session"):
        first.extend(1, 1, 201)
    with pytest.raises(LimitError, match="of this node"):
        second.extend(1, 1, 101)
    assert (first.num_bytes, second.num_bytes, budget.used_bytes) == (150, 0, 150)


@given(
    st.lists(st.tuples(st.sampled_from(["extend", "reorder", "release", "end"]), st.integers(0, 3), st.integers(1, 90)))
)
def test_the_budget_is_the_sum_of_the_sessions(operations: list[tuple[str, int, int]]) -> None:
    """Whatever happens, bookings neither leak nor go below zero, and the end of all sessions empties the budget."""
    budget = CacheBudget(500)
    sessions = [SessionCaches(budget, 300) for _ in range(2)]
    for number, (name, cache_id, size) in enumerate(operations):
        caches = sessions[number % 2]
        try:
            if name == "extend":
                caches.extend(cache_id, 1 + size % 4, caches.num_bytes + size)
            elif name == "reorder":
                caches.reorder(cache_id, 1 + size % 4)
            elif name == "release":
                caches.release(cache_id)
            else:
                caches.release_all()
        except LimitError:
            pass
        assert budget.used_bytes == sum(each.num_bytes for each in sessions)
        assert 0 <= budget.used_bytes <= 500
    for caches in sessions:
        caches.release_all()
    assert budget.used_bytes == 0
