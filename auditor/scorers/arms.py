"""Numbers of a set of token arms on the test rows: counts, gates, paired effects, rare tokens, cross-entropy.

Nothing is judged here, and no arm is chosen: bounds hold for all arms at once. Degenerate arms, which name one token
for more than 99 % of the rows, are left out of every number but the counts; where all are, the gate reads them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from auditor.arrays import Flags, Integers
from auditor.attacks.base import TokenArm
from auditor.evidence.splits import TEST
from auditor.plan import Plan
from auditor.results import finite
from auditor.statistics.binomial import clopper_pearson
from auditor.statistics.clusters import correlation
from auditor.statistics.effects import (
    PairedEffect,
    is_degenerate,
    luck_ratio,
    most_frequent,
    paired_differences,
    paired_effect,
    rare_rows,
)
from auditor.statistics.gate import GateCounts, GateReading, gate
from auditor.views.token import TokenKey, TokenView


@dataclass(frozen=True, eq=False)
class ArmReading:
    """Predictions [S] and negative log-likelihoods [S] (NaN where the token has no class) over the score rows."""

    name: str
    predictions: Integers
    surprise_nats: NDArray[np.float64]
    epochs: int = 0
    """Passes over its rows; 0 for an arm that does not train so."""


@dataclass(frozen=True, eq=False)
class TokenScore:
    """Numbers of one set of arms on the test rows. `effect` and `rare` are None when every arm is degenerate."""

    names: tuple[str, ...]
    counts: GateCounts
    """Of every arm, degenerate ones too."""
    published: GateReading
    corrected: GateReading
    degenerate: tuple[bool, ...]
    effect: PairedEffect | None
    rare: PairedEffect | None
    rare_upper_pp: float | None
    rare_luck_pp: float
    """What the luckiest arm would read on rare tokens if its predictions told nothing about the rows."""
    num_scoreable: int
    num_documents: int
    num_train_tokens: int
    effect_counts: dict[str, int]
    rare_counts: dict[str, int]
    """Rows `n` of the effect, of which its best arm names `k` and the constant guesser `k_constant`."""


def read_arms(arms: Sequence[TokenArm], key: TokenKey) -> list[ArmReading]:
    """Predictions and surprises of every arm."""
    return [_read_arm(arm, key.score_tokens) for arm in arms]


def score_arms(arms: Sequence[ArmReading], view: TokenView, key: TokenKey, plan: Plan, alpha: float) -> TokenScore:
    """All numbers of these arms on the test rows."""
    test = key.score_split == TEST
    tokens, documents, frames = key.score_tokens[test], key.score_document[test], key.score_item[test]
    predictions = [arm.predictions[test] for arm in arms]
    constant = most_frequent(view.train_tokens)
    counts = GateCounts(
        view.family, tuple(int((p == tokens).sum()) for p in predictions), len(tokens), int((tokens == constant).sum())
    )
    ceiling = plan.ceilings.token_pp
    degenerate = tuple(is_degenerate(p) for p in predictions)
    gated = [number for number, guesses in enumerate(degenerate) if not guesses] or list(range(len(arms)))
    gate_counts = replace(counts, correct_by_arm=tuple(counts.correct_by_arm[number] for number in gated))
    effects = [
        correlation(paired_differences(predictions[number], tokens, constant), documents).design_effect
        for number in gated
    ]
    scoreable = np.isin(tokens, view.train_tokens)
    live = [p[scoreable] for p, guesses in zip(predictions, degenerate, strict=True) if not guesses]
    effect = rare = rare_upper = None
    effect_counts: dict[str, int] = {}
    rare_counts: dict[str, int] = {}
    rare_luck = 0.0
    if live and scoreable.any():
        place = (tokens[scoreable], frames[scoreable], documents[scoreable])
        effect = _effect(live, *place, np.ones(int(scoreable.sum()), bool), plan, alpha)
        is_rare = rare_rows(place[0])
        rare = _effect(live, *place, is_rare, plan, alpha)
        effect_counts = _effect_counts(live, place[0], np.ones(len(place[0]), bool), effect)
        rare_counts = _effect_counts(live, place[0], is_rare, rare)
        rare_luck = 100 * max(luck_ratio(p[is_rare], place[0][is_rare]) for p in live)
        rare_upper = _exact_upper_pp([p[is_rare] for p in live], place[0][is_rare], place[2][is_rare], alpha)
    return TokenScore(
        tuple(arm.name for arm in arms),
        counts,
        gate(gate_counts, alpha=alpha, ceiling_pp=ceiling),
        gate(gate_counts, alpha=alpha, ceiling_pp=ceiling, design_effects=effects),
        degenerate,
        effect,
        rare,
        rare_upper,
        rare_luck,
        int(scoreable.sum()),
        len(np.unique(documents)),
        len(np.unique(view.train_tokens)),
        effect_counts,
        rare_counts,
    )


def _effect_counts(
    predictions: Sequence[Integers], tokens: Integers, rows: Flags, effect: PairedEffect
) -> dict[str, int]:
    """What the effect of its best arm is made of."""
    best = predictions[int(effect.bounds.estimate.argmax())]
    return {
        "k": int((best[rows] == tokens[rows]).sum()),
        "n": int(rows.sum()),
        "k_constant": int((tokens[rows] == most_frequent(tokens)).sum()),
    }


def _effect(
    predictions: Sequence[Integers],
    tokens: Integers,
    frames: Integers,
    documents: Integers,
    rows: Flags,
    plan: Plan,
    alpha: float,
) -> PairedEffect:
    constant = most_frequent(tokens)
    differences = np.stack([paired_differences(p[rows], tokens[rows], constant) for p in predictions])
    generator = np.random.default_rng(plan.split.seed)
    return paired_effect(
        differences,
        frames[rows],
        documents[rows],
        alpha=alpha,
        repetitions=plan.statistics.repetitions,
        generator=generator,
    )


def _exact_upper_pp(
    predictions: Sequence[Integers], tokens: Integers, documents: Integers, alpha: float
) -> float | None:
    """Largest exact upper bound over the arms: with no hit at all a bootstrap sees no variation and would say zero."""
    bounds = []
    for prediction in predictions:
        correct = prediction == tokens
        wide = correlation(correct.astype(np.float64), documents).design_effect
        bounds.append(clopper_pearson(correct.sum() / wide, len(tokens) / wide, alpha / len(predictions))[1])
    return 100 * max(bounds) if bounds else None


def arm_values(score: TokenScore) -> dict[str, dict[str, float | bool | None]]:
    """Accuracy and paired effect of every arm by its name; no effect of one that is degenerate."""
    live = iter(score.effect.bounds.estimate if score.effect is not None else ())
    return {
        name: {
            "accuracy_ratio": correct / score.counts.total_rows,
            "effect_pp": None if guesses or score.effect is None else finite(float(next(live))),
            "degenerate": guesses,
        }
        for name, correct, guesses in zip(score.names, score.counts.correct_by_arm, score.degenerate, strict=True)
    }


def cross_entropy(
    chosen: ArmReading, twin: Sequence[ArmReading], tokens: Integers, test: Flags
) -> dict[str, float | None]:
    """Mean surprise of an arm and of its shuffled twin over the test rows whose token has a class, in nats."""
    rows = test & np.isfinite(chosen.surprise_nats)
    if not rows.any():
        return {}
    shuffled = next((arm for arm in twin if arm.name == chosen.name), None)
    counts = np.unique(tokens[rows], return_counts=True)[1] / rows.sum()
    arm_nats = float(chosen.surprise_nats[rows].mean())
    twin_nats = None if shuffled is None else finite(float(np.nanmean(shuffled.surprise_nats[rows])))
    return {
        "arm_nats": arm_nats,
        "twin_nats": twin_nats,
        "arm_less_twin_nats": None if twin_nats is None else arm_nats - twin_nats,
        "marginal_entropy_nats": float(-(counts * np.log(counts)).sum()),
    }


def _read_arm(arm: TokenArm, tokens: Integers) -> ArmReading:
    predictions = np.zeros(len(tokens), np.int64)
    surprise = np.full(len(tokens), np.nan)
    place = np.searchsorted(arm.classes, tokens).clip(max=len(arm.classes) - 1)
    known = arm.classes[place] == tokens
    for positions, log_probabilities in arm.log_probabilities():
        predictions[positions] = arm.classes[log_probabilities.argmax(1)]
        mine = known[positions]
        surprise[positions[mine]] = -log_probabilities[mine, place[positions[mine]]]
    return ArmReading(arm.name, predictions, surprise, getattr(arm, "epochs", 0))
