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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from auditor.attacks import Attack
from auditor.attacks.inversion.base import Recovered
from auditor.attacks.inversion.parameters import configured, parameters_of
from auditor.capture import Integers
from auditor.channels import RESPONSE_SIDE
from auditor.material import Material
from auditor.plan import Plan
from auditor.progress import Progress
from auditor.results import Check, Control, Reason, Result, finite
from auditor.scorers.prompt_control import WHAT, naked_view
from auditor.statistics.effects import PairedEffect, most_frequent, paired_differences, paired_effect
from auditor.statistics.power import minimum_detectable_effect
from auditor.text_metrics.report import Pair, measure
from auditor.text_metrics.tokens import position_hits
from auditor.verdict import control_blockers, judge, power_blockers
from auditor.views.prompt import PromptView
from auditor.views.prompt_capture import Grants, PromptKey, prompt_view
from auditor.views.text_keys import UNKNOWN, TextKey
from splitwire.backbone import load_tokenizer
from splitwire.errors import SettingsError

TWIN_ALPHA = 0.01  # stricter: a false alarm of the twin voids a reading
_LARGEST_EFFECT_PP = 100.0


@dataclass(frozen=True, eq=False)
class Inversion:
    """What an attack made of the captured texts."""

    attack: Attack
    view: PromptView
    key: PromptKey
    recovered: list[Recovered]

    @property
    def is_training(self) -> bool:
        """Whether the texts are training sequences."""
        return self.attack.question == "training_text"


def score_prompt(attack: Attack, material: Material, family: str, plan: Plan, progress: Progress) -> Result:
    """The effect of the attack on one family, and every metric of what it recovered."""
    inversion = invert(attack, material, family, plan, progress)
    pairs = pairs_of(inversion.recovered, inversion.key.texts, family, training=inversion.is_training)
    control = _control(inversion, plan, progress)
    return _result(inversion, pairs, control, plan)


def invert(attack: Attack, material: Material, family: str, plan: Plan, progress: Progress) -> Inversion:
    """Runs the attack, with the plan's parameters, on the captured texts."""
    attack = configured(attack, plan.inversion)
    assumes = attack.assumes
    grants = Grants(
        training=attack.question == "training_text",
        auxiliary_text=assumes.auxiliary_text,
        known_plaintext=assumes.known_plaintext,
    )
    progress("joining texts", 0, 0)
    view, key = prompt_view(material, family, plan, grants)
    return Inversion(attack, view, key, _run(attack, view, plan, progress))


def pairs_of(recovered: Sequence[Recovered], keys: Sequence[TextKey], family: str, *, training: bool) -> list[Pair]:
    """Guesses beside what they are scored on: a forward row names its own token, a returned row the next one."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(key.document for key in keys))}
    pairs = []
    for guess, key in zip(recovered, keys, strict=True):
        true = key.tokens.copy()
        true[0 if family == RESPONSE_SIDE else -1] = UNKNOWN
        num_prompt = len(true) if training else key.num_prompt
        pairs.append(Pair(np.asarray(guess.tokens, dtype=np.int64), true, numbers[key.document], num_prompt))
    return pairs


def _run(attack: Attack, view: PromptView, plan: Plan, progress: Progress) -> list[Recovered]:
    """The attack's guesses; SettingsError when they do not fit the texts, as those of an installed attack may."""
    recovered = list(attack.run(view, plan.inversion, progress))
    lengths = [len(text.forward) + 1 for text in view.texts]
    if [len(guess.tokens) for guess in recovered] != lengths:
        raise SettingsError(
            f"the attack {attack.name} named tokens of {len(recovered)} texts, and not of the {len(lengths)} that it "
            "was given, each as long as it is",
            remedy="an attack gives one Recovered with T + 1 tokens for every text, in order",
        )
    return recovered


def _control(inversion: Inversion, plan: Plan, progress: Progress) -> Control:
    """Whether the attack reads naked rows."""
    progress("positive control", 0, 0)
    view, keys = naked_view(inversion.view, inversion.key, training=inversion.is_training)
    recovered = _run(inversion.attack, view, plan, progress)
    pairs = pairs_of(recovered, keys, view.family, training=inversion.is_training)
    effect = _effect(_scored(pairs, inversion), plan, plan.statistics.alpha)
    lower = None if effect is None else effect.bounds.max_lower
    found = lower is not None and lower > plan.ceilings.prompt_token_pp
    return Control(WHAT, None if effect is None else float(effect.bounds.estimate.max()), found)


@dataclass(frozen=True, eq=False)
class _Scored:
    """Every scored position of all texts in one row: guess, truth, number of the text and of its document."""

    guessed: Integers
    true: Integers
    text: Integers
    document: Integers


def _scored(pairs: Sequence[Pair], inversion: Inversion) -> _Scored:
    """The positions of the check: of the answer on the return wire where texts were generated, else all."""
    is_answer = inversion.view.family == RESPONSE_SIDE and not inversion.is_training
    parts = [pair.part("answer" if is_answer else "text") for pair in pairs]
    sizes = [len(true) for _, true in parts]
    return _Scored(
        np.concatenate([guessed for guessed, _ in parts]),
        np.concatenate([true for _, true in parts]),
        np.repeat(np.arange(len(pairs)), sizes),
        np.repeat([pair.document for pair in pairs], sizes),
    )


def _effect(scored: _Scored, plan: Plan, alpha: float) -> PairedEffect | None:
    if not len(scored.true):
        return None
    return paired_effect(
        paired_differences(scored.guessed, scored.true, most_frequent(scored.true))[None],
        scored.text,
        scored.document,
        alpha=alpha,
        repetitions=plan.statistics.repetitions,
        generator=np.random.default_rng([plan.split.seed, 15]),
    )


def _dealt(scored: _Scored, seed: int) -> _Scored:
    """Every text's guesses against the tokens of the next text of another document, in an order of chance."""
    generator = np.random.default_rng([seed, 16])
    texts = np.unique(scored.text)
    true = scored.true.copy()
    for number, text in enumerate(texts):
        mine = scored.text == text
        document = scored.document[mine][0]
        others = [
            other for other in np.roll(texts, -number) if (scored.document[scored.text == other] != document).any()
        ]
        tokens = scored.true[scored.text == (others[0] if others else text)]
        true[mine] = np.resize(generator.permutation(tokens), int(mine.sum()))
    return _Scored(scored.guessed, true, scored.text, scored.document)


def _result(inversion: Inversion, pairs: Sequence[Pair], control: Control, plan: Plan) -> Result:
    attack, view, key = inversion.attack, inversion.view, inversion.key
    scored = _scored(pairs, inversion)
    effect = _effect(scored, plan, plan.statistics.alpha)
    twin = _effect(_dealt(scored, plan.split.seed), plan, TWIN_ALPHA)
    is_answer = view.family == RESPONSE_SIDE and not inversion.is_training
    metric = "answer_token_effect" if is_answer else "text_token_effect"
    constant = most_frequent(scored.true) if len(scored.true) else UNKNOWN
    return Result(
        attack=attack.name,
        family=view.family,
        question=attack.question,
        partition="all",
        knowledge=attack.knowledge,
        given=_given(view),
        paper=attack.paper,
        num_documents=len(np.unique(scored.document)),
        num_frames=len(view.texts),
        num_rows=len(scored.true),
        checks=(_check(metric, scored, effect, twin, control, key, plan),),
        baseline={"unigram_ratio": float((scored.true == constant).mean()) if len(scored.true) else None},
        twin=_twin_values(twin),
        controls=(control,),
        details=_details(inversion, pairs, plan),
        notes=_notes(view, key),
    )


def _check(
    metric: str,
    scored: _Scored,
    effect: PairedEffect | None,
    twin: PairedEffect | None,
    control: Control,
    key: PromptKey,
    plan: Plan,
) -> Check:
    ceiling = plan.ceilings.prompt_token_pp
    bounds = None if effect is None else effect.bounds
    detectable = _detectable(effect, plan)
    blockers = [
        *(Reason("evidence", problem) for problem in key.problems),
        *power_blockers(
            plan, num_documents=len(np.unique(scored.document)), minimum_detectable=detectable, limit=ceiling
        ),
        *control_blockers([control]),
    ]
    lower = None if bounds is None else bounds.max_lower
    upper = None if bounds is None else bounds.max_upper
    twin_bounds = (None, None) if twin is None else (twin.bounds.max_lower, twin.bounds.max_upper)
    state, reasons = judge(ceiling=ceiling, lower=lower, upper=upper, blockers=blockers, twin=twin_bounds)
    hits = position_hits(scored.guessed, scored.true)
    constant = int((scored.true == most_frequent(scored.true)).sum()) if len(scored.true) else 0
    return Check(
        metric=metric,
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
        counts={"k": int(hits.sum()), "n": len(scored.true), "k_constant": constant},
    )


def _detectable(effect: PairedEffect | None, plan: Plan) -> float | None:
    if effect is None or effect.bounds.upper is None:
        return None
    error = float(effect.bounds.standard_error.max())
    found = minimum_detectable_effect(error, effect.bounds.upper_critical, power=plan.statistics.power_ratio)
    return min(found, _LARGEST_EFFECT_PP)


def _twin_values(twin: PairedEffect | None) -> dict[str, float | None]:
    bounds = None if twin is None else twin.bounds
    return {
        "effect_pp": None if bounds is None else float(bounds.estimate.max()),
        "lower_pp": None if bounds is None else bounds.max_lower,
        "upper_pp": None if bounds is None else bounds.max_upper,
    }


def _details(inversion: Inversion, pairs: Sequence[Pair], plan: Plan) -> dict[str, Any]:
    parameters = ", ".join(f"{name} {value}" for name, value in parameters_of(inversion.attack).items())
    return {
        "texts": len(pairs),
        "texts_available": inversion.key.num_available,
        "wire_dtype": inversion.view.wire_dtype,
        "parameters": parameters or "none",
        **told_numbers(inversion.recovered),
        "text_metrics": measure(pairs, load_tokenizer(inversion.view.model.settings), plan),
    }


def told_numbers(recovered: Sequence[Recovered]) -> dict[str, float]:
    """The mean over texts of every number that the attack tells of them, times left out."""
    values: dict[str, list[float]] = {}
    for guess in recovered:
        for name, value in guess.details.items():
            if isinstance(value, int | float) and not name.endswith("seconds"):
                values.setdefault(f"attack_{name}", []).append(float(value))
    certain = [guess.certainty for guess in recovered if guess.certainty is not None]
    means = {name: float(np.mean(numbers)) for name, numbers in values.items()}
    if certain:
        means["attack_certainty"] = float(np.nanmean(np.concatenate(certain)))
    return means


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
