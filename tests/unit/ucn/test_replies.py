"""What is kept of answers, and for how long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitwire.errors import ReplayError
from splitwire.v1 import channels_pb2
from ucn.replies import ReplyCache

FORWARD = channels_pb2.HOP_FORWARD


def test_an_unknown_request_has_no_answer() -> None:
    """It is new."""
    assert ReplyCache(100).find((FORWARD, 1), "a") is None


def test_hops_of_one_step_are_apart() -> None:
    """FORWARD 1 and BACKWARD 1 are two requests."""
    cache = ReplyCache(100)
    cache.keep((FORWARD, 1), "a", [b"x"])
    assert cache.find((channels_pb2.HOP_BACKWARD, 1), "a") is None


def test_another_digest_is_refused_even_when_the_answer_is_gone() -> None:
    """Digests outlive answers."""
    cache = ReplyCache(0)
    cache.keep((FORWARD, 1), "a", [b"x"])
    cache.keep((FORWARD, 2), "b", [b"y"])
    with pytest.raises(ReplayError, match="other bytes"):
        cache.find((FORWARD, 1), "c")
    with pytest.raises(ReplayError, match="no longer kept"):
        cache.find((FORWARD, 1), "a")
    assert cache.find((FORWARD, 2), "b") == [b"y"]


@given(sizes=st.lists(st.integers(0, 60), min_size=1, max_size=40), budget=st.integers(0, 120))
def test_the_budget_holds_and_the_last_answer_is_always_there(sizes: list[int], budget: int) -> None:
    """Answers beside the last one never take more than the budget, and only the oldest are dropped."""
    cache = ReplyCache(budget)
    for step, size in enumerate(sizes, 1):
        cache.keep((FORWARD, step), str(step), [b"x" * size])
    kept = []
    for step in range(1, len(sizes) + 1):
        try:
            kept.append(cache.find((FORWARD, step), str(step)) is not None)
        except ReplayError:
            kept.append(False)
    assert kept[-1]
    assert sum(size for size, is_kept in zip(sizes[:-1], kept[:-1], strict=True) if is_kept) <= budget
    assert kept == sorted(kept), "an older answer is kept while a younger one is not"


def test_digests_are_bounded() -> None:
    """A session of a million steps does not remember a million digests."""
    cache = ReplyCache(10)
    for step in range(1, 6000):
        cache.keep((FORWARD, step), "a", [b"x"])
    assert cache.num_digests <= 4096
    assert cache.num_bytes <= 11
