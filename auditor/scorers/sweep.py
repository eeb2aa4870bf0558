"""What a cheap probe reads at several fractions of compromise. It describes, and decides nothing: there is no check.

    frames_captured     only this share of the frames was captured, to learn from and to attack
    decoys_revealed     this share of the decoys is known to be decoys, and is left out of every frame
    gauges_leaked       the gauges of this share of the frames are known: their rows as `tln replay` wrote them
    known_plaintext     of the train documents, only this share is known

A value is the paired effect of the probe on real rows of the test documents, in percentage points over the constant
guesser, with its clustered bounds; None where the probe names one token for more than 99 % of rows, so reads nothing.
What is chosen at a small share is chosen at a larger one too. A twin on shuffled labels stands beside every value. All
rows cross the probe, decoys too: what gradient support gives away is the decoys_revealed sweep.

`gauges_leaked` is the effect on the frames whose gauges leaked, learned from such frames alone; the others stay what
they are at decoys_revealed 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from auditor.arrays import Flags, Integers
from auditor.attacks import Attack
from auditor.evidence.capture import Capture
from auditor.evidence.material import Material
from auditor.evidence.rows import take_rows
from auditor.evidence.splits import TEST, Splits
from auditor.evidence.ungauged import opened_ungauged
from auditor.plan import Plan
from auditor.progress import Progress, Tick, silent
from auditor.results import Result, finite
from auditor.scorers.arms import TokenScore, read_arms, score_arms
from auditor.scorers.planting import plant
from auditor.scorers.token import given_rows, planted_control, twin_view
from auditor.verdict import TWIN_ALPHA
from auditor.views.base import NotMeasurableError
from auditor.views.token import TokenKey, TokenView, token_view
from auditor.workers import run_jobs

_STEPS = 1000  # of a bar
NO_UNGAUGED = "gauges_leaked was not read: give the rows that tln replay wrote with --ungauged"


@dataclass(frozen=True, eq=False)
class _Setting:
    """One point of a sweep. `restrict` makes its view, when it is read; NotMeasurableError where that share leaves
    nothing to learn from or to score.
    """

    name: str
    ratio: float
    restrict: Callable[[], tuple[TokenView, TokenKey]]


@dataclass(frozen=True, eq=False)
class _Scores:
    """What the probe and its twin read; None where nothing could be read."""

    arm: TokenScore | None = None
    twin: TokenScore | None = None


def score_sweep(attack: Attack, material: Material, family: str, plan: Plan, progress: Progress) -> Result:
    """The table of all sweeps."""
    plan = replace(plan, partition="all", probe=replace(plan.probe, max_frames=plan.sweeps.max_frames))
    view, key = token_view(material.capture, material.splits, family, plan)
    settings = list(_settings(material.capture, material.splits, view, key, plan))
    notes = []
    if material.ungauged is not None:
        with opened_ungauged(material.ungauged, material, plan) as (capture, splits):
            settings += _leaked(capture, splits, family, plan)
    elif plan.sweeps.gauges_leaked:
        notes.append(NO_UNGAUGED)
    scores = _read_all(attack, settings, plan, progress)
    dosed = plant(view.rows, key.tokens, coverage_ratio=0.5, amplitude_ratio=1.0, seed=plan.split.seed)
    control = planted_control(
        "token codes in 50% of rows", _score(attack, view.with_rows(dosed), key, plan, plan.statistics.alpha)
    )
    whole = _score(attack, view, key, plan, plan.statistics.alpha)
    return Result(
        attack=attack.name,
        family=family,
        question=attack.question,
        partition=view.partition,
        knowledge=attack.knowledge,
        given=given_rows(view),
        paper=attack.paper,
        num_documents=whole.num_documents,
        num_frames=key.num_items,
        num_rows=whole.counts.total_rows,
        checks=(),
        baseline={"constant_effect_pp": 0.0},
        twin={},
        controls=(control,),
        details={"sweep": [_entry(setting, read) for setting, read in zip(settings, scores, strict=True)]},
        notes=tuple(notes),
    )


def _settings(capture: Capture, splits: Splits, view: TokenView, key: TokenKey, plan: Plan) -> Iterator[_Setting]:
    """Every point that needs no gauge."""
    real, item = capture.rows.real[key.rows], capture.rows.item[key.rows]
    document, everything = splits.row_document[key.rows], np.ones(len(key.rows), bool)
    for ratio in plan.sweeps.frames_captured:
        kept = np.isin(item, first_share(np.unique(item), ratio, plan.split.seed))
        yield _setting("frames_captured", ratio, view, key, kept=kept, known=everything, real=real)
    for ratio in plan.sweeps.decoys_revealed:
        kept = ~np.isin(np.arange(len(real)), first_share(np.flatnonzero(~real), ratio, plan.split.seed))
        yield _setting("decoys_revealed", ratio, view, key, kept=kept, known=everything, real=real)
    for ratio in plan.sweeps.known_plaintext:
        documents = first_share(np.unique(document[view.train_rows]), ratio, plan.split.seed, fewest=1)
        known = np.isin(document, documents)
        yield _setting("known_plaintext", ratio, view, key, kept=everything, known=known, real=real)


def _leaked(capture: Capture, splits: Splits, family: str, plan: Plan) -> Iterator[_Setting]:
    """Points of frames without their gauges."""
    whole = replace(plan, probe=replace(plan.probe, max_frames=0))
    view, key = token_view(capture, splits, family, whole)
    real, item = capture.rows.real[key.rows], capture.rows.item[key.rows]
    for ratio in plan.sweeps.gauges_leaked:
        kept = np.isin(item, first_share(np.unique(item), ratio, plan.split.seed))
        yield _setting("gauges_leaked", ratio, view, key, kept=kept, known=np.ones(len(item), bool), real=real)


def _setting(
    name: str, ratio: float, view: TokenView, key: TokenKey, *, kept: Flags, known: Flags, real: Flags
) -> _Setting:
    return _Setting(name, ratio, partial(restricted, view, key, kept=kept, known=known, scored=real))


def first_share(names: Integers, ratio: float, seed: int, fewest: int = 0) -> Integers:
    """The first round(ratio * N) of one fixed permutation of these names [N], at least `fewest`."""
    order = np.random.default_rng([seed, 6]).permutation(names)
    return order[: max(fewest, round(ratio * len(names)))]


def restricted(
    view: TokenView, key: TokenKey, *, kept: Flags, known: Flags, scored: Flags
) -> tuple[TokenView, TokenKey]:
    """The kept rows [M] alone; of them the known ones are learned from and the scored ones are scored."""
    place = np.cumsum(kept) - 1
    counts = np.add.reduceat(kept.astype(np.int64), view.offsets[:-1])
    train = kept[view.train_rows] & known[view.train_rows]
    score = kept[view.score_rows] & scored[view.score_rows]
    if not train.any() or not (key.score_split[score] == TEST).any():
        raise NotMeasurableError("nothing is left to learn from or to score")
    smaller = TokenView(
        view.family,
        view.partition,
        take_rows(view.rows, np.flatnonzero(kept)),
        np.cumsum([0, *counts[counts > 0]]),
        place[view.train_rows[train]],
        view.train_tokens[train],
        place[view.score_rows[score]],
        view.seed,
    )
    about = {
        name: getattr(key, name)[score] for name in ("score_tokens", "score_split", "score_document", "score_item")
    }
    return smaller, replace(key, **about, tokens=key.tokens[kept], rows=key.rows[kept])


def _read_all(attack: Attack, settings: list[_Setting], plan: Plan, progress: Progress) -> list[_Scores]:
    scores = [_Scores()] * len(settings)

    def job(number: int, tick: Tick) -> None:
        try:
            view, key = settings[number].restrict()
        except NotMeasurableError:
            return
        tick(0.0)
        arm = _score(attack, view, key, plan, plan.statistics.alpha)
        tick(0.5)
        scores[number] = _Scores(arm, _score(attack, twin_view(view, plan), key, plan, TWIN_ALPHA))

    jobs = [lambda tick, number=number: job(number, tick) for number in range(len(settings))]
    run_jobs(jobs, lambda share: progress(f"{len(jobs)} settings", round(_STEPS * share), _STEPS))
    return scores


def _score(attack: Attack, view: TokenView, key: TokenKey, plan: Plan, alpha: float) -> TokenScore:
    arms = attack.run(view, plan.probe, silent)
    for arm in arms:
        arm.fit(lambda _: None)
    return score_arms(read_arms(arms, key), view, key, plan, alpha)


def _entry(setting: _Setting, scores: _Scores) -> dict[str, Any]:
    arm, twin = scores.arm, scores.twin
    bounds = None if arm is None or arm.effect is None else arm.effect.bounds
    shuffled = None if twin is None or twin.effect is None else twin.effect.bounds
    return {
        "setting": setting.name,
        "ratio": setting.ratio,
        "value_pp": None if bounds is None else float(bounds.estimate.max()),
        "lower_pp": None if bounds is None else finite(bounds.max_lower),
        "upper_pp": None if bounds is None else finite(bounds.max_upper),
        "twin_pp": None if shuffled is None else float(shuffled.estimate.max()),
        "twin_lower_pp": None if shuffled is None else finite(shuffled.max_lower),
        "is_degenerate": arm is not None and all(arm.degenerate),
        "num_rows": 0 if arm is None else arm.counts.total_rows,
    }
