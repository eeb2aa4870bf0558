"""Looking after every value, for long, does not raise the false alarms above their level; a leak is found soon."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from auditor.statistics.sequential import BettingTest

pytestmark = pytest.mark.stats

ALPHA = 0.1
RUNS = 150
LOOKS = 600
# Three standard errors of a rate of ALPHA over RUNS runs: what a sound test exceeds once in about 700.
ALLOWED = ALPHA + 3 * math.sqrt(ALPHA * (1 - ALPHA) / RUNS)


def _coins(generator: np.random.Generator) -> list[float]:
    return list((generator.random(LOOKS) < 0.55).astype(float))


def _fine(generator: np.random.Generator) -> list[float]:
    """Small spread, as an AUC within a large frame."""
    return list(0.55 + generator.uniform(-0.1, 0.1, LOOKS))


def _in_runs(generator: np.random.Generator) -> list[float]:
    """The spread of a value depends on all before it: only the conditional mean is that of the null."""
    values, level = [], 0.5
    for draw in generator.random(LOOKS):
        values.append(0.55 + (0.45 * level if draw < 0.5 else -0.45 * level))
        level = min(1.0, max(0.05, 0.9 * level + 0.2 * abs(values[-1] - 0.55)))
    return values


@pytest.mark.parametrize("draw", [_coins, _fine, _in_runs])
def test_false_alarms_stay_at_their_level_over_a_long_stream(
    draw: Callable[[np.random.Generator], list[float]],
) -> None:
    generator = np.random.default_rng(1)
    alarms = 0
    for _ in range(RUNS):
        test = BettingTest(0.55, ALPHA)
        for value in draw(generator):
            test.add(value)
        alarms += test.is_refuted
    assert alarms / RUNS <= ALLOWED


def test_the_lower_bound_covers_the_mean_at_all_looks_at_once() -> None:
    generator = np.random.default_rng(2)
    misses = 0
    for _ in range(RUNS):
        test = BettingTest(0.1, ALPHA, low=-1.0)
        misses += any(_lower_after(test, value) > 0.2 for value in generator.choice([-1.0, 1.0], 60, p=[0.4, 0.6]))
    assert misses / RUNS <= ALLOWED


def _lower_after(test: BettingTest, value: float) -> float:
    test.add(value)
    lower = test.lower
    assert lower is not None
    return lower


@pytest.mark.parametrize(("mean", "within"), [(0.65, 120), (0.6, 300), (1.0, 16)])
def test_a_mean_above_the_limit_is_found(mean: float, within: int) -> None:
    """In all of 20 runs, by values whose spread is that of an AUC within a frame of 80 rows."""
    generator = np.random.default_rng(3)
    for _ in range(20):
        test = BettingTest(0.55, 0.0125)
        for _ in range(within):
            test.add(mean + 0.07 * generator.standard_normal())
        assert test.is_refuted
        assert 0.55 < (test.lower or 0.0) <= mean
