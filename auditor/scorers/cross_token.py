"""Scores arms that name tokens by what both hops of a frame have in common: gate, effect and rare tokens.

All is as for any token arm (token.py) but the control: the gradient of some rows of a copy is turned until its cosine
to its own forward row tells the token. That survives a rotation, and neither hop shows it alone.
"""

from __future__ import annotations

import numpy as np

from auditor.arrays import Integers, Rows
from auditor.attacks import Attack
from auditor.evidence.material import Material
from auditor.evidence.rows import copy_rows, places
from auditor.plan import Plan
from auditor.progress import Progress
from auditor.results import Result
from auditor.scorers.arms import score_arms
from auditor.scorers.fitting import fit_and_read
from auditor.scorers.planting import covered
from auditor.scorers.token import given_rows, planted_control, token_result, twin_view
from auditor.views.token import token_view

_WEAKEST_COSINE = 0.5  # rows of a wide frame have smaller ones by chance


def score_cross_token(attack: Attack, material: Material, family: str, plan: Plan, progress: Progress) -> Result:
    """Gate and effects of the attack on the joint family."""
    view, key = token_view(material.capture, material.splits, family, plan)
    probe = plan.probe
    dosed = plant_cosines(
        view.rows,
        key.tokens,
        coverage_ratio=probe.control_coverage_ratio,
        amplitude_ratio=probe.control_amplitude_ratio,
        seed=plan.split.seed,
    )
    views = (view, twin_view(view, plan), view.with_rows(dosed))
    # One after the other: the features of one view are let go before those of the next are computed.
    arms, twin_arms, control_arms = (
        fit_and_read([attack.run(one, probe, progress)], key, progress)[0] for one in views
    )
    control = planted_control(
        f"cosines between the hops that tell the token in {probe.control_coverage_ratio:.0%} of rows",
        score_arms(control_arms, view, key, plan, plan.statistics.alpha),
    )
    return token_result(
        attack, view, key, plan, arms=arms, twin_arms=twin_arms, controls=(control,), given=given_rows(view)
    )


def plant_cosines(rows: Rows, tokens: Integers, *, coverage_ratio: float, amplitude_ratio: float, seed: int) -> Rows:
    """A dosed copy of joint rows [M, 2D]; rows without a token (-1) are never dosed.

    Every token has one fixed cosine, between .5 and 1 or between -1 and -.5. The gradient of a covered row becomes
    norm * normalise((1 - a) * unit + a * what has that cosine to its forward row).
    """
    dosed = copy_rows(rows)
    candidates = np.flatnonzero(tokens >= 0)
    chosen = covered(candidates, coverage_ratio, seed) if amplitude_ratio > 0 else candidates[:0]
    width, cosines = rows.shape[1] // 2, _token_cosines(tokens, seed)
    for place in places(len(chosen), rows.shape[1]):
        part = chosen[place]
        forward, gradient = _unit(rows[part, :width]), rows[part, width:]
        norm, own = np.linalg.norm(gradient, axis=1, keepdims=True), _unit(gradient)
        across = _unit(own - (own * forward).sum(1, keepdims=True) * forward)
        cosine = cosines[tokens[part]][:, None]
        wanted = np.asarray(cosine * forward + np.sqrt(1 - cosine**2) * across, np.float32)
        dosed[part, width:] = norm * _unit(own + np.float32(amplitude_ratio) * (wanted - own))
    return dosed


def _token_cosines(tokens: Integers, seed: int) -> Rows:
    """The cosine of every token number up to the largest."""
    drawn = np.random.default_rng([seed, 5]).uniform(-1, 1, max(0, int(tokens.max(initial=-1))) + 1)
    spread = _WEAKEST_COSINE + (1 - _WEAKEST_COSINE) * np.abs(drawn)
    return np.asarray(np.copysign(spread, drawn), np.float32)


def _unit(rows: Rows) -> Rows:
    length: Rows = np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.float32(1e-12))
    return rows / length
