"""Scores inversion attacks: tokens named at their place, above a guesser that knows the most frequent token.

    text_token_effect     all positions of a text (forward wire, gradients)
    answer_token_effect   the tokens of the answer (return wire); of the whole text where none was generated

The effect is paired with the unigram guesser and clustered on the document (statistics/effects.py). In the twin the
guesses are held against another text's tokens in an order of chance: nothing has to run again, since the view holds
no answers. The control is the same attack on naked rows (prompt_control.py). Everything else that is told of the texts
(text_metrics/) has no ceiling.

Numbers alone go into the result, never a text; nor the seconds, which another machine would change.

Shapes: T positions of one text.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from auditor.attacks import Attack
from auditor.attacks.inversion.parameters import parameters_of
from auditor.evidence.material import Material
from auditor.plan import Plan
from auditor.progress import Progress
from auditor.results import Check, Control, Reason, Result, finite
from auditor.scorers.bounds import detectable_effect, sure_effect, twin_effect
from auditor.scorers.inverting import Captured, Inversion, Scored, capture_texts
from auditor.scorers.prompt_control import WHAT, naked_view
from auditor.statistics.effects import PairedEffect, most_frequent
from auditor.text_metrics.report import measure
from auditor.text_metrics.tokens import position_hits
from auditor.verdict import TWIN_ALPHA, control_blockers, judge, power_blockers
from auditor.views.base import NotMeasurableError
from auditor.views.prompt import PromptView
from auditor.views.prompt_capture import PromptKey
from splitwire.backbone import load_tokenizer


def score_prompt(attack: Attack, material: Material, family: str, plan: Plan, progress: Progress) -> Result:
    """The effect of the attack on one family, and every metric of what it recovered."""
    progress("joining texts", 0, 0)
    captured = capture_texts(attack, material, family, plan)
    inversion = captured.attacked(captured.view, plan, progress)
    if not len(inversion.scored.true):
        what = "token of an answer" if captured.scores_answers else "position whose token the truth tells"
        raise NotMeasurableError(f"no {what} is among what is attacked: generate, or raise max_positions")
    control = _control(captured, plan, progress)
    effect = inversion.scored.effect(plan, plan.statistics.alpha)
    twin = inversion.scored.dealt(plan.split.seed).effect(plan, TWIN_ALPHA)
    scored, view = inversion.scored, captured.view
    return Result(
        attack=captured.attack.name,
        family=family,
        question=captured.attack.question,
        partition="all",
        knowledge=captured.attack.knowledge,
        given=_given(view),
        paper=captured.attack.paper,
        num_documents=len(np.unique(scored.document)),
        num_frames=len(view.texts),
        num_rows=len(scored.true),
        checks=(_check(captured, scored, effect, twin, control, plan),),
        baseline={"unigram_ratio": _constant(scored) / len(scored.true) if len(scored.true) else None},
        twin=_twin_values(twin),
        controls=(control,),
        details=_details(captured, inversion, plan),
        notes=_notes(view, captured.key),
    )


def _control(captured: Captured, plan: Plan, progress: Progress) -> Control:
    """Whether the attack reads naked rows."""
    progress("positive control", 0, 0)
    view, keys = naked_view(captured.view, captured.key, training=captured.is_training)
    effect = captured.attacked(view, plan, progress, keys).scored.effect(plan, plan.statistics.alpha)
    lower = None if effect is None else effect.bounds.max_lower
    found = lower is not None and lower > plan.ceilings.prompt_token_pp
    return Control(WHAT, None if effect is None else float(effect.bounds.estimate.max()), found)


def _check(
    captured: Captured,
    scored: Scored,
    effect: PairedEffect | None,
    twin: PairedEffect | None,
    control: Control,
    plan: Plan,
) -> Check:
    ceiling, detectable = plan.ceilings.prompt_token_pp, detectable_effect(effect, plan)
    bounds = None if effect is None else effect.bounds
    num_documents = len(np.unique(scored.document))
    blockers = [
        *(Reason("evidence", problem) for problem in captured.key.problems),
        *power_blockers(plan, num_documents=num_documents, minimum_detectable=detectable, limit=ceiling),
        *control_blockers([control]),
    ]
    lower = None if bounds is None else bounds.max_lower
    upper = None if bounds is None else bounds.max_upper
    state, reasons = judge(
        ceiling=ceiling,
        lower=lower,
        upper=upper,
        sure=sure_effect(bounds, plan),
        blockers=blockers,
        twin=twin_effect(twin, plan),
    )
    return Check(
        metric=captured.metric,
        unit="pp",
        ceiling=ceiling,
        value=None if bounds is None else float(bounds.estimate.max()),
        lower=finite(lower),
        upper=finite(upper),
        floor=0.0,
        minimum_detectable=finite(detectable),
        state=state,
        words=("detected",) if lower is not None and lower > 0 else ("at floor",),
        reasons=reasons,
        counts={
            "k": int(position_hits(scored.guessed, scored.true).sum()),
            "n": len(scored.true),
            "k_constant": _constant(scored),
        },
    )


def _constant(scored: Scored) -> int:
    """Positions that the unigram guesser names."""
    return int((scored.true == most_frequent(scored.true)).sum()) if len(scored.true) else 0


def _twin_values(twin: PairedEffect | None) -> dict[str, float | None]:
    bounds = None if twin is None else twin.bounds
    return {
        "effect_pp": None if bounds is None else float(bounds.estimate.max()),
        "lower_pp": None if bounds is None else bounds.max_lower,
        "upper_pp": None if bounds is None else bounds.max_upper,
    }


def _details(captured: Captured, inversion: Inversion, plan: Plan) -> dict[str, Any]:
    parameters = ", ".join(f"{name} {value}" for name, value in parameters_of(captured.attack).items())
    return {
        "texts": len(inversion.pairs),
        "texts_available": captured.key.num_available,
        "wire_dtype": captured.view.wire_dtype,
        "parameters": parameters or "none",
        **inversion.told_numbers(),
        "text_metrics": measure(inversion.pairs, load_tokenizer(captured.view.model.settings), plan),
    }


def _given(view: PromptView) -> str:
    num_rows = sum(len(text.forward) for text in view.texts)
    public = sum(map(len, view.auxiliary))
    parts = [f"{num_rows} positions of {len(view.texts)} texts ({view.wire_dtype} wire)", "the public model"]
    parts += [f"{public} tokens of public text"] if public else []
    parts += [f"{len(view.known)} texts of train documents with their tokens"] if view.known else []
    return "; ".join(parts)


def _notes(view: PromptView, key: PromptKey) -> tuple[str, ...]:
    if len(view.texts) >= key.num_available:
        return ()
    return (f"{len(view.texts)} of {key.num_available} texts were attacked, as the plan's limits demand",)
