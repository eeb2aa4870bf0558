"""Guessers of rare tokens, where tokens are so few that luck names some: the check must not call that a leak."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from auditor.evidence.splits import TEST
from auditor.plan import Plan, StatisticsSettings
from auditor.results import Check, Control
from auditor.scorers.arms import ArmReading, score_arms
from auditor.scorers.token_checks import rare_check
from auditor.statistics.effects import luck_ratio
from auditor.verdict import TWIN_ALPHA

PLAN = replace(
    Plan(attacks=("linear_probe",), families=("forward_only",)), statistics=StatisticsSettings(repetitions=300)
)
DOCUMENTS, FRAMES, ROWS, TOKENS, ARMS = 20, 4, 8, 24, 2
REPETITIONS = 80


def _check(seed: int, hit_ratio: float = 0.0) -> Check:
    """Documents with topics of their own, two guessers with twins; `hit_ratio` of the rows are named rightly."""
    generator = np.random.default_rng(seed)
    prior = 1 / np.arange(1, TOKENS + 1)
    topics = generator.dirichlet(20 * prior / prior.sum(), size=DOCUMENTS)
    each = FRAMES * ROWS
    tokens = np.concatenate([generator.choice(TOKENS, size=each, p=topic) for topic in topics])
    view: Any = SimpleNamespace(family="forward_only", train_tokens=generator.choice(TOKENS, size=2000, p=topics[0]))
    key: Any = SimpleNamespace(
        score_tokens=tokens,
        score_split=np.full(len(tokens), TEST),
        score_document=np.repeat(np.arange(DOCUMENTS), each),
        score_item=np.repeat(np.arange(DOCUMENTS * FRAMES), ROWS),
    )

    def arms(told: float) -> list[ArmReading]:
        guesses = generator.integers(0, TOKENS, (ARMS, len(tokens)))
        knows = generator.random((ARMS, len(tokens))) < told
        return [
            ArmReading(f"guesser/{n}", np.where(knows[n], tokens, guesses[n]), np.zeros(len(tokens)))
            for n in range(ARMS)
        ]

    score = score_arms(arms(hit_ratio), view, key, PLAN, PLAN.statistics.alpha)
    twin = score_arms(arms(0.0), view, key, PLAN, TWIN_ALPHA)
    return rare_check(score, twin, [Control("planted", 1.0, True)], PLAN)


def test_luck_is_no_leak() -> None:
    """False alarms stay within the level of 5 % and three standard errors of this many runs."""
    alarms = sum(_check(seed).state == "fail" for seed in range(REPETITIONS))
    nominal = PLAN.statistics.alpha * REPETITIONS
    assert alarms <= nominal + 3 * (nominal * (1 - PLAN.statistics.alpha)) ** 0.5


def test_a_real_leak_of_rare_tokens_is_still_told() -> None:
    """Three rows of ten named rightly, on top of the luck."""
    check = _check(1, hit_ratio=0.3)
    assert check.state == "fail"
    assert check.floor is not None
    assert 2 < check.floor < 15


def test_luck_of_frequencies() -> None:
    """One of two equally frequent tokens by a coin: half; a guesser of what never occurs: nothing."""
    assert luck_ratio(np.array([1, 2, 1, 2]), np.array([1, 1, 2, 2])) == 0.5
    assert luck_ratio(np.array([3, 3]), np.array([1, 2])) == 0.0
