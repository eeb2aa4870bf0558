"""What an active node names of tokens above what it names when it only watches.

One reading (a linear discriminant of forward row, gradient row and reaction) is trained and scored in the changed steps
of an active tap's run, and in its control steps; the arm that is best on select counts. The twin has shuffled labels,
the positive control a token's code planted into a copy of the changed steps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from auditor.arrays import Flags, Rows
from auditor.attacks import Attack
from auditor.channels import JOINT
from auditor.evidence.capture import Capture
from auditor.evidence.splits import SELECT, TEST, Splits
from auditor.plan import Plan
from auditor.progress import silent
from auditor.results import Check, Control, Reason, finite
from auditor.scorers.arms import ArmReading
from auditor.scorers.bounds import sure_lower
from auditor.scorers.fitting import fit_and_read
from auditor.scorers.planting import plant
from auditor.statistics.bootstrap import FEWEST_CLUSTERS
from auditor.statistics.effects import is_degenerate, most_frequent, paired_differences, paired_effect
from auditor.statistics.power import minimum_detectable_effect
from auditor.verdict import TWIN_ALPHA, control_blockers, judge, power_blockers
from auditor.views.base import NotMeasurableError
from auditor.views.reaction import Reactions, reaction_features
from auditor.views.token import TokenKey, TokenView, token_view


@dataclass(frozen=True)
class Gain:
    """An effect in percentage points with its clustered standard error and the critical values of its bounds."""

    effect_pp: float
    error_pp: float
    critical: float
    num_documents: int
    num_correct: int = 0
    num_rows: int = 0

    def less(self, other: Gain) -> Gain:
        """The difference of two that are taken as independent."""
        return Gain(
            self.effect_pp - other.effect_pp,
            float(np.hypot(self.error_pp, other.error_pp)),
            max(self.critical, other.critical),
            min(self.num_documents, other.num_documents),
        )

    @property
    def lower_pp(self) -> float:
        """One-sided lower bound."""
        return self.effect_pp - self.critical * self.error_pp

    @property
    def upper_pp(self) -> float:
        """One-sided upper bound."""
        return self.effect_pp + self.critical * self.error_pp


@dataclass(frozen=True)
class TokenOutcome:
    """The check, the twin's effect, the control, and what goes into the details."""

    check: Check
    twin: Gain
    control: Control
    details: dict[str, Any]


TokenRows = tuple[TokenView, TokenKey]


def token_gain(attack: Attack, changed: TokenRows, passive: TokenRows, plan: Plan) -> TokenOutcome:
    """Effect in changed steps less that in control steps."""
    view, key = changed
    dealt = np.random.default_rng([plan.split.seed, 3]).permutation(view.train_tokens)
    views = [view, view.with_tokens(dealt), view.with_rows(_planted(view, key, plan))]
    arms, twins, dosed = fit_and_read([attack.run(v, plan.probe, silent) for v in views], key, silent)
    (passive_arms,) = fit_and_read([attack.run(passive[0], plan.probe, silent)], passive[1], silent)
    chosen = _best_on_select(arms, key)
    active_gain, passive_gain = _gain(arms[chosen], view, key, plan), _gain(passive_arms[chosen], *passive, plan)
    twin = _gain(twins[chosen], views[1], key, plan)
    planted = _gain(dosed[chosen], view, key, plan).less(passive_gain)
    control = Control("token codes in rows of changed steps", planted.effect_pp, planted.lower_pp > 0)
    test = key.score_split == TEST
    guesses = is_degenerate(arms[chosen].predictions[test])
    check = _check(active_gain.less(passive_gain), twin, control, plan, guesses=guesses)
    counts = {
        "k": active_gain.num_correct,
        "n": active_gain.num_rows,
        "k_passive": passive_gain.num_correct,
        "n_passive": passive_gain.num_rows,
    }
    return TokenOutcome(
        dataclasses.replace(check, counts=counts),
        twin,
        control,
        {
            "token_arm": arms[chosen].name,
            "active_effect_pp": active_gain.effect_pp,
            "passive_effect_pp": passive_gain.effect_pp,
            "changed_test_rows": int(test.sum()),
            "control_test_rows": int((passive[1].score_split == TEST).sum()),
        },
    )


def read_gain(attack: Attack, changed: TokenRows, passive: TokenRows, plan: Plan) -> Gain:
    """The difference alone, of the arm that is best on select."""
    (arms,) = fit_and_read([attack.run(changed[0], plan.probe, silent)], changed[1], silent)
    (passive_arms,) = fit_and_read([attack.run(passive[0], plan.probe, silent)], passive[1], silent)
    chosen = _best_on_select(arms, changed[1])
    return _gain(arms[chosen], *changed, plan).less(_gain(passive_arms[chosen], *passive, plan))


def _planted(view: TokenView, key: TokenKey, plan: Plan) -> Rows:
    """A copy of the rows in which some tell their token."""
    return plant(
        view.rows,
        key.tokens,
        coverage_ratio=plan.probe.control_coverage_ratio,
        amplitude_ratio=plan.probe.control_amplitude_ratio,
        seed=plan.split.seed,
    )


def token_rows(capture: Capture, splits: Splits, found: Reactions, rows: Flags, family: str, plan: Plan) -> TokenRows:
    """Forward row, gradient row and reaction of the items of these rows."""
    items = np.unique(capture.rows.item[rows & np.isfinite(found.projection)])
    items = items[splits.by_item[items] >= 0]
    if not len(items):
        raise NotMeasurableError("the active bundle needs changed and control steps, of documents that are split")
    view, key = token_view(capture, splits, JOINT, plan, items)
    wide = view.with_rows(np.concatenate([view.rows, reaction_features(found, key.rows)], axis=1))
    return dataclasses.replace(wide, family=family), key


def _gain(arm: ArmReading, view: TokenView, key: TokenKey, plan: Plan) -> Gain:
    """Effect of an arm over the constant on test rows whose token occurs in train."""
    rows = (key.score_split == TEST) & np.isin(key.score_tokens, view.train_tokens)
    if not rows.any():
        raise NotMeasurableError("no test row of the active bundle has a token of the train rows")
    tokens = key.score_tokens[rows]
    bounds = paired_effect(
        paired_differences(arm.predictions[rows], tokens, most_frequent(tokens))[None],
        key.score_item[rows],
        key.score_document[rows],
        alpha=plan.statistics.alpha,
        repetitions=plan.statistics.repetitions,
        generator=np.random.default_rng(plan.split.seed),
    ).bounds
    if bounds.num_clusters < FEWEST_CLUSTERS:
        raise NotMeasurableError("the active bundle has too few test documents for a bound")
    return Gain(
        float(bounds.estimate[0]),
        float(bounds.standard_error[0]),
        0.0 if bounds.upper is None else bounds.upper_critical,  # an arm that is the constant never differs from it
        bounds.num_clusters,
        int((arm.predictions[rows] == tokens).sum()),
        len(tokens),
    )


def _check(gain: Gain, twin: Gain, control: Control, plan: Plan, *, guesses: bool) -> Check:
    ceiling = plan.ceilings.active_token_pp
    detectable = minimum_detectable_effect(gain.error_pp, gain.critical, power=plan.statistics.power_ratio)
    blockers = power_blockers(plan, num_documents=gain.num_documents, minimum_detectable=detectable, limit=ceiling)
    if guesses:
        blockers.append(Reason("instrument", "the arm names one token for more than 99 % of rows"))
    state, reasons = judge(
        ceiling=ceiling,
        lower=gain.lower_pp,
        upper=gain.upper_pp,
        sure=sure_lower(gain.effect_pp, gain.lower_pp, gain.num_documents, plan),
        blockers=[*blockers, *control_blockers([control])],
        twin=(sure_lower(twin.effect_pp, twin.lower_pp, twin.num_documents, plan, TWIN_ALPHA), twin.upper_pp),
    )
    words = ("detected",) if gain.lower_pp > 0 else ("at floor",)
    return Check(
        "active_token_top1_effect",
        "pp",
        ceiling,
        gain.effect_pp,
        gain.lower_pp,
        gain.upper_pp,
        0.0,
        finite(detectable),
        state,
        words,
        reasons,
    )


def _best_on_select(arms: Sequence[ArmReading], key: TokenKey) -> int:
    """The arm with the most hits on select; one that names a single token only where all do."""
    select = key.score_split == SELECT
    live = [n for n, arm in enumerate(arms) if not is_degenerate(arm.predictions[select])] or range(len(arms))
    return max(live, key=lambda n: int((arms[n].predictions[select] == key.score_tokens[select]).sum()))
