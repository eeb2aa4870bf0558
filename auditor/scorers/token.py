"""Scores the token question: the gate over all arms, the paired effect, rare tokens and cross-entropy, on test rows.

The checks are those of scorers/token_checks.py. No arm is chosen for their numbers: the bounds hold for all arms at
once. The arm that is best on select is named, for reading. Every arm has a twin of the same name that learns from
shuffled labels; an arm without one keeps every check from passing.

`token_cross_entropy` is the select-best arm less its shuffled twin, in nats, over rows whose token has a class;
beside it stands the marginal entropy, what the best constant distribution reads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from auditor.attacks import Attack
from auditor.evidence.material import Material
from auditor.evidence.splits import SELECT, TEST
from auditor.plan import DeepProbeSettings, Plan, ProbeSettings
from auditor.progress import Progress
from auditor.results import Control, Result
from auditor.scorers.arms import ArmReading, TokenScore, arm_values, cross_entropy, score_arms
from auditor.scorers.fitting import fit_and_read
from auditor.scorers.planting import plant
from auditor.scorers.token_checks import effect_check, gate_check, rare_check
from auditor.verdict import TWIN_ALPHA
from auditor.views.base import NotMeasurableError
from auditor.views.token import TokenKey, TokenView, token_view

_CONTROL_PROBE = "coordinate_plus_invariants"


def score_token(attack: Attack, material: Material, family: str, plan: Plan, progress: Progress) -> Result:
    """Gate and effects of the attack on one family."""
    view, key = token_view(material.capture, material.splits, family, plan)
    arms, twin_arms, control_arms = _fit_all(attack, view, key, plan, progress)
    control = _control(score_arms(control_arms, view, key, plan, plan.statistics.alpha), plan)
    return token_result(
        attack, view, key, plan, arms=arms, twin_arms=twin_arms, controls=(control,), given=given_rows(view)
    )


def token_result(
    attack: Attack,
    view: TokenView,
    key: TokenKey,
    plan: Plan,
    *,
    arms: Sequence[ArmReading],
    twin_arms: Sequence[ArmReading],
    controls: Sequence[Control],
    given: str,
    details: Mapping[str, Any] | None = None,
    notes: Sequence[str] = (),
) -> Result:
    """The result of arms that name a token a row: gate, effect and rare tokens against the plan's token ceilings."""
    score = score_arms(arms, view, key, plan, plan.statistics.alpha)
    twin = score_arms(twin_arms, view, key, plan, TWIN_ALPHA)
    chosen = _best_on_select(arms, score.degenerate, key)
    return Result(
        attack=attack.name,
        family=view.family,
        question=attack.question,
        partition=view.partition,
        knowledge=attack.knowledge,
        given=given,
        paper=attack.paper,
        num_documents=score.num_documents,
        num_frames=0 if score.effect is None else score.effect.num_frames,
        num_rows=score.counts.total_rows,
        checks=(
            gate_check(score, twin, controls, plan),
            effect_check(score, twin, controls, plan),
            rare_check(score, twin, controls, plan),
        ),
        baseline={
            "train_constant_ratio": score.counts.baseline_correct / score.counts.total_rows,
            "floor_pp": score.published.floor_pp,
        },
        twin=_twin_values(twin),
        controls=tuple(controls),
        details={**_details(twin_arms, chosen, score, twin, key), **(details or {})},
        notes=(*_notes(key, score), *_epoch_notes(arms, plan), *notes),
    )


def _fit_all(
    attack: Attack, view: TokenView, key: TokenKey, plan: Plan, progress: Progress
) -> tuple[list[ArmReading], list[ArmReading], list[ArmReading]]:
    """Readings of the arms, of their twins on shuffled labels, and of one arm on a copy with a planted leak."""
    settings = probe_settings(attack, plan)
    tasks = [(view, settings), (twin_view(view, plan), settings), _control_task(view, key, plan, settings)]
    sets = []
    for number, task in enumerate(tasks):
        progress("preparing rows", number, len(tasks))
        sets.append(attack.run(*task, progress))
    if not sets[0]:
        raise NotMeasurableError("the plan has no probe")
    real, twin, control = fit_and_read(sets, key, progress)
    return real, twin, control


def probe_settings(attack: Attack, plan: Plan) -> ProbeSettings | DeepProbeSettings:
    """What the attack may spend: the section of the plan that bears its name, else [probe]."""
    return plan.deep_probe if attack.name == "deep_probe" else plan.probe


def twin_view(view: TokenView, plan: Plan) -> TokenView:
    """The same rows with the tokens of the train rows dealt out at random."""
    return view.with_tokens(np.random.default_rng([plan.split.seed, 3]).permutation(view.train_tokens))


def _control_task(
    view: TokenView, key: TokenKey, plan: Plan, settings: ProbeSettings | DeepProbeSettings
) -> tuple[TokenView, ProbeSettings | DeepProbeSettings]:
    dosed = plant(
        view.rows,
        key.tokens,
        coverage_ratio=plan.probe.control_coverage_ratio,
        amplitude_ratio=plan.probe.control_amplitude_ratio,
        seed=plan.split.seed,
    )
    if isinstance(settings, ProbeSettings):
        probes = (_CONTROL_PROBE,) if _CONTROL_PROBE in settings.probes else settings.probes[:1]
        settings = dataclasses.replace(settings, probes=probes)
    return view.with_rows(dosed), dataclasses.replace(settings, restarts=1)


def _control(score: TokenScore, plan: Plan) -> Control:
    probe = plan.probe
    what = f"token codes in {probe.control_coverage_ratio:.0%} of rows at amplitude {probe.control_amplitude_ratio:g}"
    return planted_control(what, score)


def planted_control(what: str, score: TokenScore) -> Control:
    """A planted leak of tokens must break the gate and be detected."""
    lower = None if score.effect is None else score.effect.bounds.max_lower
    found = score.published.breaks_gate and lower is not None and lower > 0
    return Control(what, score.published.gate_pp, found)


def _best_on_select(arms: Sequence[ArmReading], degenerate: Sequence[bool], key: TokenKey) -> ArmReading:
    """The arm with the most hits on select; a degenerate one only where all are."""
    select = key.score_split == SELECT
    live = [arm for arm, guesses in zip(arms, degenerate, strict=True) if not guesses] or arms
    return max(live, key=lambda arm: int((arm.predictions[select] == key.score_tokens[select]).sum()))


def _twin_values(twin: TokenScore) -> dict[str, float | None]:
    bounds = None if twin.effect is None else twin.effect.bounds
    return {
        "gate_pp": twin.published.gate_pp,
        "effect_pp": None if bounds is None else float(bounds.estimate.max()),
        "lower_pp": None if bounds is None else bounds.max_lower,
        "upper_pp": None if bounds is None else bounds.max_upper,
    }


def _details(
    twin_arms: Sequence[ArmReading],
    chosen: ArmReading,
    score: TokenScore,
    twin: TokenScore,
    key: TokenKey,
) -> dict[str, Any]:
    twins = arm_values(twin)
    return {
        "correct_by_arm": list(score.counts.correct_by_arm),
        "total_rows": score.counts.total_rows,
        "baseline_correct": score.counts.baseline_correct,
        "scoreable_rows": score.num_scoreable,
        "train_tokens": score.num_train_tokens,
        "gate_pp": score.published.gate_pp,
        "floor_pp": score.published.floor_pp,
        "corrected_gate_pp": score.corrected.gate_pp,
        "corrected_floor_pp": score.corrected.floor_pp,
        "design_effect": score.corrected.design_effect,
        "selected_arm": chosen.name,
        "arms": [{"name": name, **values, "twin": twins.get(name)} for name, values in arm_values(score).items()],
        "token_cross_entropy": cross_entropy(chosen, twin_arms, key.score_tokens, key.score_split == TEST),
    }


def given_rows(view: TokenView) -> str:
    """What the attack saw, for the record."""
    seen = f"{len(view.rows)} rows of {len(view.offsets) - 1} frames"
    oracle = "; which rows are real (oracle)" if view.partition == "oracle" else ""
    return f"{seen}; tokens of the {len(view.train_rows)} rows of train documents{oracle}"


def _notes(key: TokenKey, score: TokenScore) -> tuple[str, ...]:
    notes = []
    if key.num_items < key.num_items_available:
        notes.append(f"{key.num_items} of {key.num_items_available} frames were sampled, as the plan's limits demand")
    guessing = [name for name, guesses in zip(score.names, score.degenerate, strict=True) if guesses]
    if guessing:
        notes.append(f"left out, for they name one token for more than 99 % of rows: {', '.join(guessing)}")
    return tuple(notes)


def _epoch_notes(arms: Sequence[ArmReading], plan: Plan) -> list[str]:
    """Which arms trained for fewer epochs than the plan names, as its budget demands."""
    reduced: dict[int, list[str]] = {}
    for arm in arms:
        if 0 < arm.epochs < plan.probe.epochs:
            reduced.setdefault(arm.epochs, []).append(arm.name)
    return [
        f"trained for {epochs} of {plan.probe.epochs} epochs, as probe.max_rows_trained demands: {', '.join(names)}"
        for epochs, names in sorted(reduced.items())
    ]
