"""Scores the history question: what probes read once the repeats of a block were found, averaged and pooled.

The numbers are those of the token question, on blocks that crossed more than once, each scored where it crossed last.
The arms on single rows stand in the details: the reading of the same probes without memory. The twin learns from
shuffled labels; repeats are found without any.

Three histories are planted into a copy. Repeats whose gauge was used again, with fresh noise: the attack must find them
and, when their rows hold token codes, read those. Repeats under fresh gauges with little noise: it must find them by
their Gram matrices.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import numpy as np

from auditor.arrays import Integers, Rows
from auditor.attacks import Attack
from auditor.attacks.base import TokenArm
from auditor.attacks.repeats import SINGLE, RepeatProbe, Repeats
from auditor.evidence.material import Material
from auditor.plan import Plan
from auditor.progress import Progress, silent
from auditor.results import Control, Result, finite
from auditor.scorers.arms import ArmReading, score_arms
from auditor.scorers.fitting import fit_and_read
from auditor.scorers.planting import plant
from auditor.scorers.token import planted_control, token_result
from auditor.views.base import NotMeasurableError
from auditor.views.history import HistoryKey, HistoryView, history_view

REUSED_NOISE_RATIO, FRESH_NOISE_RATIO = 0.25, 0.002
"""Fresh noise a value of planted repeats, in units of a value's own size."""
_FOUND_RATIO = 0.5
"""Share of planted repeats that the attack must link: with fewer than half, averaging has little to average."""
_MAX_CONTROL_FRAMES = 200
"""Frames of the planted copy, which bounds what a control costs."""
_Arm = TypeVar("_Arm", ArmReading, TokenArm)


@dataclass(frozen=True)
class Matching:
    """Of the pairs of repeats next to one another in time, the share that was linked; of the links, the right share."""

    found_ratio: float
    right_ratio: float | None


def score_history(asked: Attack, material: Material, family: str, plan: Plan, progress: Progress) -> Result:
    """Gate and effects of averaged and pooled probes."""
    del family
    attack = cast("RepeatProbe", asked)
    view, key = history_view(material.capture, material.splits, plan)
    if not len(view.score_rows):
        raise NotMeasurableError("no block of a test document crossed twice: record more epochs")
    repeats = attack.find(view, progress)
    coded = _reused_gauge(view, key, plan)
    coded_repeats = attack.find(coded, silent)
    shuffled = view.with_tokens(np.random.default_rng([plan.split.seed, 3]).permutation(view.train_tokens))
    progress("preparing rows", 0, 0)
    arms, twin_arms, coded_arms = fit_and_read(
        [
            attack.arms(view, repeats, plan.probe, silent),
            _with_memory(attack.arms(shuffled, repeats, plan.probe, silent)),
            _with_memory(attack.arms(coded, coded_repeats, plan.probe, silent)),
        ],
        key.token,
        progress,
    )
    single = [arm for arm in arms if arm.name.startswith(SINGLE)]
    return token_result(
        attack,
        view,
        key.token,
        plan,
        arms=_with_memory(arms),
        twin_arms=twin_arms,
        controls=_controls(attack, view, key, plan, coded_repeats, coded_arms),
        given=_given(view, key),
        details=_details(view, key, repeats, single, plan),
        notes=(f"{len(np.unique(key.token.score_item))} blocks are scored, each where it crossed last",),
    )


def _with_memory(arms: Sequence[_Arm]) -> list[_Arm]:
    return [arm for arm in arms if not arm.name.startswith(SINGLE)]


def _given(view: HistoryView, key: HistoryKey) -> str:
    seen = f"{len(view.rows)} forward rows of {len(key.block)} frames in order"
    return f"{seen}; tokens of the {len(view.train_rows)} rows of train documents"


def _details(
    view: HistoryView, key: HistoryKey, repeats: Repeats, single: Sequence[ArmReading], plan: Plan
) -> dict[str, Any]:
    alone = score_arms(single, view, key.token, plan, plan.statistics.alpha)
    matching = match(repeats, key)
    scored = repeats.count[view.score_rows]
    return {
        "single_gate_pp": alone.published.gate_pp,
        "single_effect_pp": None if alone.effect is None else finite(float(alone.effect.bounds.estimate.max())),
        "frames_averaged_mean": float(scored.mean()),
        "frames_averaged_most": int(scored.max()),
        "repeats_found_ratio": matching.found_ratio,
        "links_right_ratio": matching.right_ratio,
        "crossings_a_block_mean": float(len(key.block) / len(np.unique(key.block))),
        "has_gauge": view.has_gauge,
    }


def match(repeats: Repeats, key: HistoryKey) -> Matching:
    """How well frames were linked with the frames of the same block."""
    linked = {(int(one), int(other)) for one, other in repeats.pairs}
    wanted = set(_neighbours_in_time(key.block))
    right = [key.block[one] == key.block[other] for one, other in linked]
    return Matching(len(linked & wanted) / len(wanted) if wanted else 0.0, float(np.mean(right)) if right else None)


def _neighbours_in_time(block: Integers) -> list[tuple[int, int]]:
    """Pairs of frames of one block with none of it between them."""
    order = np.argsort(block, kind="stable")
    return [(int(one), int(other)) for one, other in itertools.pairwise(order) if block[one] == block[other]]


def _controls(
    attack: RepeatProbe,
    view: HistoryView,
    key: HistoryKey,
    plan: Plan,
    coded_repeats: Repeats,
    coded_arms: Sequence[ArmReading],
) -> list[Control]:
    probe = plan.probe
    codes = f"{probe.control_coverage_ratio:.0%} of their rows holding token codes"
    controls = [
        _found(f"repeats in one gauge with fresh noise of {REUSED_NOISE_RATIO:.0%}", match(coded_repeats, key)),
        planted_control(
            f"the same, {codes} at amplitude {probe.control_amplitude_ratio:g}",
            score_arms(coded_arms, view, key.token, plan, plan.statistics.alpha),
        ),
    ]
    if view.has_gauge:
        small, small_key = _first_blocks(view, key)
        fresh = attack.find(_fresh_gauges(small, small_key), silent)
        what = f"repeats under fresh gauges with noise of {FRESH_NOISE_RATIO:.1%}"
        controls.append(_found(what, match(fresh, small_key)))
    return controls


def _found(what: str, matching: Matching) -> Control:
    return Control(f"{what}: share that was found", matching.found_ratio, matching.found_ratio >= _FOUND_RATIO)


def _reused_gauge(view: HistoryView, key: HistoryKey, plan: Plan) -> HistoryView:
    """A copy in which the real rows of a block stay where they were first, with token codes and fresh noise."""
    probe = plan.probe
    dosed = plant(
        view.rows,
        key.token.tokens,
        coverage_ratio=probe.control_coverage_ratio,
        amplitude_ratio=probe.control_amplitude_ratio,
        seed=plan.split.seed,
    )
    rows = _repeated(dosed, key)
    generator = np.random.default_rng([plan.split.seed, 6])
    return view.with_rows(_noised(rows, REUSED_NOISE_RATIO, generator))


def _fresh_gauges(view: HistoryView, key: HistoryKey) -> HistoryView:
    """A copy in which the real rows of a block come again in every frame's own gauge, nearly without noise."""
    generator = np.random.default_rng([view.seed, 7])
    rows = _repeated(view.rows, key)
    for start, end in zip(view.offsets[:-1], view.offsets[1:], strict=True):
        turn = np.linalg.qr(generator.standard_normal((rows.shape[1], rows.shape[1])))[0]
        rows[start:end] = rows[start:end] @ turn.astype(np.float32)
    return view.with_rows(_noised(rows, FRESH_NOISE_RATIO, generator))


def _repeated(rows: Rows, key: HistoryKey) -> Rows:
    """A copy in which the real rows of a block are those of its first frame."""
    rows = rows.copy()
    first: dict[int, Integers] = {}
    for number, places in zip(key.block, key.real_rows, strict=True):
        source = first.setdefault(int(number), places)
        if len(source) == len(places):
            rows[places] = rows[source]
    return rows


def _noised(rows: Rows, ratio: float, generator: np.random.Generator) -> Rows:
    size = ratio * float(np.sqrt(np.mean(np.square(rows, dtype=np.float64))))
    return (rows + size * generator.standard_normal(rows.shape)).astype(np.float32)


def _first_blocks(view: HistoryView, key: HistoryKey) -> tuple[HistoryView, HistoryKey]:
    """The frames of some blocks alone: to find repeats is dear, and a few hundred frames show whether it works."""
    numbers, first, counts = np.unique(key.block, return_index=True, return_counts=True)
    order = np.argsort(first)
    kept = numbers[order][np.cumsum(counts[order]) <= max(_MAX_CONTROL_FRAMES, int(counts[order][0]))]
    frames = np.flatnonzero(np.isin(key.block, kept))
    parts = [np.arange(view.offsets[f], view.offsets[f + 1]) for f in frames]
    offsets = np.cumsum([0, *(len(part) for part in parts)]).astype(np.int64)
    shift = offsets[:-1] - view.offsets[frames]
    real_rows = tuple(key.real_rows[f] + by for f, by in zip(frames, shift, strict=True))
    small = replace(view, rows=view.rows[np.concatenate(parts)], offsets=offsets)
    return small, replace(key, block=key.block[frames], real_rows=real_rows)
