"""Who gets room for a cache, who waits for it, and who is refused; against a plain account of the bytes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splitwire.errors import LimitError
from ucn.admission import CacheBudget
from ucn.settings import AdmissionSettings

PATIENT = AdmissionSettings(wait_seconds=5, start_fraction=1.0)


def started(budget: CacheBudget, owner: str, num_bytes: int) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(budget.start(owner, num_bytes))


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


def test_who_waits_starts_when_room_comes_first_come_first_served() -> None:
    async def scenario() -> None:
        budget = CacheBudget(100, admission=PATIENT)
        await budget.start("a", 90)
        large, small = started(budget, "b", 50), started(budget, "c", 10)
        await asyncio.sleep(0.01)
        assert budget.num_waiting == 2, "the small one must not pass the large one by for ever"
        budget.book("a", -90)
        await asyncio.gather(large, small)
        assert (budget.used_bytes, budget.num_waiting) == (60, 0)

    run(scenario())


def test_growth_never_waits_and_starts_leave_room_for_it() -> None:
    async def scenario() -> None:
        budget = CacheBudget(100, admission=AdmissionSettings(start_fraction=0.8, max_waiting=0))
        await budget.start("a", 70)
        with pytest.raises(LimitError, match="max_waiting is 0"):
            await budget.start("b", 20)
        budget.grow("a", 30)
        with pytest.raises(LimitError, match="would take"):
            budget.grow("a", 1)
        budget.book("a", -100)
        await budget.start("b", 95)
        assert budget.used_bytes == 95, "an empty node gives all it has"

    run(scenario())


def test_who_waited_in_vain_is_refused_and_lets_the_next_one_in() -> None:
    async def scenario() -> None:
        budget = CacheBudget(100, admission=AdmissionSettings(wait_seconds=0.1, start_fraction=1.0))
        await budget.start("a", 60)
        large = started(budget, "b", 50)
        await asyncio.sleep(0.05)
        small = started(budget, "c", 40)
        with pytest.raises(LimitError, match=r"no room for a new one came in 0.1 s"):
            await large
        await small
        assert (budget.used_bytes, budget.num_waiting) == (100, 0)

    run(scenario())


def test_a_peer_that_used_up_its_share_holds_nobody_up() -> None:
    async def scenario() -> None:
        budget = CacheBudget(100, 50, PATIENT)
        await budget.start("a", 50)
        own = started(budget, "a", 30)
        await asyncio.sleep(0.01)
        await budget.start("b", 40)
        assert budget.num_waiting == 1
        with pytest.raises(LimitError, match="of this peer"):
            budget.grow("a", 1)
        with pytest.raises(LimitError, match="of this peer"):
            await budget.start("b", 51)
        budget.book("a", -50)
        await own

    run(scenario())


def test_the_line_is_bounded_for_a_peer_and_for_all() -> None:
    async def scenario() -> None:
        limits = AdmissionSettings(max_waiting=2, max_waiting_per_peer=1, start_fraction=1.0)
        budget = CacheBudget(10, admission=limits)
        await budget.start("a", 10)
        waiting = [started(budget, "a", 1), started(budget, "b", 1)]
        await asyncio.sleep(0.01)
        with pytest.raises(LimitError, match="max_waiting is 2"):
            await budget.start("c", 1)
        waiting[1].cancel()
        await asyncio.sleep(0.01)
        with pytest.raises(LimitError, match="max_waiting_per_peer is 1"):
            await budget.start("a", 1)
        budget.book("a", -10)
        await waiting[0]
        assert budget.used_bytes == 1

    run(scenario())


def test_a_share_of_what_a_peer_may_hold_is_kept_for_its_caches_that_grow() -> None:
    """Else those that start would take all of it, and each would be refused its next position."""

    async def scenario() -> None:
        budget = CacheBudget(100, 20, AdmissionSettings(start_fraction=0.8, wait_seconds=60))
        await budget.start("a", 16)
        waiting = started(budget, "a", 1)
        await asyncio.sleep(0.01)
        assert not waiting.done()
        budget.grow("a", 4)
        with pytest.raises(LimitError, match="this peer"):
            budget.grow("a", 1)
        budget.book("a", -20)
        await waiting
        assert budget.used_bytes == 1

    run(scenario())


ACTIONS = st.tuples(st.sampled_from(["start", "grow", "free", "cancel"]), st.sampled_from("ab"), st.integers(1, 60))


class Account:
    """A budget of 100 bytes, 70 a peer, beside a list of what was granted."""

    def __init__(self) -> None:
        self.budget = CacheBudget(100, 70, AdmissionSettings(start_fraction=0.9, max_waiting=8, wait_seconds=60))
        self.held: list[tuple[str, int]] = []
        self.waiting: list[tuple[str, int, asyncio.Task[None]]] = []

    def start(self, owner: str, size: int) -> None:
        self.waiting.append((owner, size, started(self.budget, owner, size)))

    def grow(self, owner: str, size: int) -> None:
        with contextlib.suppress(LimitError):
            self.budget.grow(owner, size)
            self.held.append((owner, size))

    def free(self, _owner: str, size: int) -> None:
        if self.held:
            owner, freed = self.held.pop(size % len(self.held))
            self.budget.book(owner, -freed)

    def cancel(self, _owner: str, size: int) -> None:
        if self.waiting:
            self.waiting[size % len(self.waiting)][2].cancel()

    async def settle(self) -> None:
        """Lets everything happen that can, and checks the sums."""
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        ended = [entry for entry in self.waiting if entry[2].done()]
        self.waiting = [entry for entry in self.waiting if not entry[2].done()]
        self.held += [(owner, size) for owner, size, task in ended if not task.cancelled() and not task.exception()]
        assert self.budget.used_bytes == sum(size for _, size in self.held) <= 100
        assert all(sum(size for peer, size in self.held if peer == owner) <= 70 for owner in "ab")
        assert self.budget.num_waiting == len(self.waiting)


@settings(max_examples=60, deadline=None)
@given(st.lists(ACTIONS, max_size=25))
def test_bytes_are_the_sum_of_what_was_granted(actions: list[tuple[str, str, int]]) -> None:
    """Neither the node's nor a peer's limit is ever passed, nothing leaks, and in the end everyone was answered."""

    async def scenario() -> None:
        account = Account()
        for name, owner, size in actions:
            getattr(account, name)(owner, size)
            await account.settle()
        while account.waiting:
            assert account.held, "they wait although nobody holds anything"
            account.free("", 0)
            await account.settle()

    run(scenario())
