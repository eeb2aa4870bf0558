"""Scores the response question: what the public model, or a probe, reads from returned rows; next tokens are the truth.

The numbers are those of the token question, against the ceiling of the response. In the twin the rows of known texts
and the labels of train rows are dealt out at random; what is not learned (the public tail) is held against answers
that are dealt out. Two leaks are planted: token codes in the rows, which a probe must find, and the rows that the
public model itself would return for the true texts, behind one fixed linear map where the width is another: model
completion must read those, unless the public model names no more of this text than a constant guess does.

Without the public model completion cannot run: then a probe may still show a leak, but nothing can pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from auditor.attacks import Attack
from auditor.attacks.base import TokenArm
from auditor.attacks.model_completion import PUBLIC_TAIL
from auditor.evidence.material import Material
from auditor.evidence.splits import TEST
from auditor.plan import Plan
from auditor.progress import Progress, Tick, silent
from auditor.public_model import PublicModel, find_public_model
from auditor.results import Control, Result
from auditor.scorers.arms import ArmReading, score_arms
from auditor.scorers.fitting import fit_and_read
from auditor.scorers.planting import plant
from auditor.scorers.token import planted_control, token_result
from auditor.views.response import KnownText, ResponseView, response_view
from auditor.views.token import TokenKey

_LINEAR = "linear/"


def score_response(attack: Attack, material: Material, family: str, plan: Plan, progress: Progress) -> Result:
    """Gate and effects of the attack on returned rows."""
    del family
    plan = response_plan(plan)
    progress("loading the public model", 0, 0)
    model, why_not = find_public_model(material, plan.response)
    view, key, texts = response_view(material.capture, material.splits, plan, model)
    progress("preparing rows", 0, 0)
    sets = [attack.run(view, plan.probe, progress), _twin(attack, view, plan), _coded(attack, view, key, plan)]
    own_ratio = None if model is None else _own_accuracy(model, view, key, texts)
    if model is not None:
        sets.append(_naked(attack, view, texts, model, plan))
    arms, twin_arms, coded_arms, *naked_arms = fit_and_read(sets, key, progress)
    controls = [_control(_what_is_coded(plan), coded_arms, view, key, plan)]
    controls += _completion_controls(naked_arms, own_ratio, why_not, (view, key, plan))
    return token_result(
        attack,
        view,
        key,
        plan,
        arms=arms,
        twin_arms=twin_arms,
        controls=controls,
        given=_given(view),
        details={"public_model_accuracy_ratio": own_ratio, "in_order": view.in_order},
        notes=_notes(own_ratio, why_not, view),
    )


def response_plan(plan: Plan) -> Plan:
    """The plan with this question's ceiling and limits in the places of the token question's."""
    ceilings = replace(
        plan.ceilings, token_pp=plan.ceilings.response_token_pp, rare_token_pp=plan.ceilings.response_token_pp
    )
    frames = plan.response.max_frames
    frames = min(frames, plan.probe.max_frames) if plan.probe.max_frames else frames
    return replace(plan, target="label", ceilings=ceilings, probe=replace(plan.probe, max_frames=frames))


class _DealtArm:
    """An arm whose answers are dealt out over the score rows: the twin of an arm that learns nothing."""

    def __init__(self, arm: TokenArm, num_rows: int, seed: int) -> None:
        self.name, self.classes, self._arm = arm.name, arm.classes, arm
        self._places = np.random.default_rng([seed, 3]).permutation(num_rows)

    def fit(self, tick: Tick) -> None:
        self._arm.fit(tick)

    def log_probabilities(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        for positions, values in self._arm.log_probabilities():
            yield self._places[positions], values


def _twin(attack: Attack, view: ResponseView, plan: Plan) -> list[TokenArm]:
    generator = np.random.default_rng([plan.split.seed, 3])
    known = np.concatenate([np.zeros(0, np.int64), *(text.rows for text in view.texts)])
    ends = np.cumsum([len(text.rows) for text in view.texts])
    parts = np.split(generator.permutation(known), ends)  # the last one is empty
    dealt = tuple(KnownText(rows, text.tokens) for rows, text in zip(parts, view.texts, strict=False))
    shuffled = replace(view, train_tokens=generator.permutation(view.train_tokens), texts=dealt)
    arms: list[TokenArm] = attack.run(shuffled, plan.probe, silent)
    return [_DealtArm(arm, len(view.score_rows), plan.split.seed) if arm.name == PUBLIC_TAIL else arm for arm in arms]


def _coded(attack: Attack, view: ResponseView, key: TokenKey, plan: Plan) -> list[TokenArm]:
    """Probes on a copy with token codes; the public model knows nothing of them."""
    probe = plan.probe
    dosed = plant(
        view.rows,
        key.tokens,
        coverage_ratio=probe.control_coverage_ratio,
        amplitude_ratio=probe.control_amplitude_ratio,
        seed=plan.split.seed,
    )
    arms: list[TokenArm] = attack.run(replace(view, rows=dosed, model=None), probe, silent)
    return [arm for arm in arms if arm.name.startswith(_LINEAR)]


def _naked(
    attack: Attack, view: ResponseView, texts: Sequence[KnownText], model: PublicModel, plan: Plan
) -> list[TokenArm]:
    """Completion on a copy that holds what the public model would return for the true texts."""
    rows = view.rows.copy()
    width = rows.shape[1]
    turn: NDArray[np.float32] | None = None
    if width != model.width:
        generator = np.random.default_rng([plan.split.seed, 4])
        turn = (generator.standard_normal((model.width, width)) / np.sqrt(width)).astype(np.float32)
    for text, hidden in zip(texts, model.returned_rows([text.tokens for text in texts]), strict=True):
        values = hidden.numpy()
        rows[text.rows] = values if turn is None else values @ turn
    arms: list[TokenArm] = attack.run(view.with_rows(rows), plan.probe, silent)
    return [arm for arm in arms if not arm.name.startswith(_LINEAR)]


def _own_accuracy(model: PublicModel, view: ResponseView, key: TokenKey, texts: Sequence[KnownText]) -> float | None:
    """Share of the test rows with a text whose token the public model itself names, given the true text."""
    answer = np.full(len(view.rows), -1)
    tested = view.score_rows[key.score_split == TEST]
    answer[tested] = key.score_tokens[key.score_split == TEST]
    classes = np.unique(view.train_tokens)
    hits: list[NDArray[np.bool_]] = []
    chosen = [text for text in texts if (answer[text.rows] >= 0).any()]
    for text, hidden in zip(chosen, model.last_hidden([text.tokens for text in chosen]), strict=True):
        wanted = answer[text.rows] >= 0
        named = classes[model.log_probabilities(hidden[torch.from_numpy(wanted)], classes).argmax(-1).numpy()]
        hits.append(named == answer[text.rows][wanted])
    return float(np.concatenate(hits).mean()) if hits else None


def _completion_controls(
    naked: Sequence[Sequence[ArmReading]],
    own_ratio: float | None,
    why_not: str,
    place: tuple[ResponseView, TokenKey, Plan],
) -> list[Control]:
    """Whether completion reads undefended rows; unfound without a model, none where the model itself reads nothing."""
    if not naked:
        return [Control(f"model completion could not run: {why_not}", None, found=False)]
    view, key, plan = place
    if not naked[0] or not _can_read(own_ratio, view, key, plan):
        return []
    return [_control("rows that the public model returns for the true texts", naked[0], view, key, plan)]


def _can_read(own_ratio: float | None, view: ResponseView, key: TokenKey, plan: Plan) -> bool:
    """Whether the public model names this text better than a constant guess, by more than the ceiling."""
    tokens = key.score_tokens[key.score_split == TEST]
    values, counts = np.unique(view.train_tokens, return_counts=True)
    constant = float((tokens == values[counts.argmax()]).mean())
    return own_ratio is not None and 100 * (own_ratio - constant) > plan.ceilings.token_pp


def _control(what: str, arms: Sequence[ArmReading], view: ResponseView, key: TokenKey, plan: Plan) -> Control:
    return planted_control(what, score_arms(arms, view, key, plan, plan.statistics.alpha))


def _what_is_coded(plan: Plan) -> str:
    probe = plan.probe
    return f"token codes in {probe.control_coverage_ratio:.0%} of rows at amplitude {probe.control_amplitude_ratio:g}"


def _given(view: ResponseView) -> str:
    known = sum(len(text.rows) for text in view.texts)
    model = "the public model; " if view.model is not None else ""
    return (
        f"{len(view.rows)} returned rows of {len(view.offsets) - 1} frames; {model}texts of {known} rows and tokens of "
        f"{len(view.train_rows)} rows of train documents"
    )


def _notes(own_ratio: float | None, why_not: str, view: ResponseView) -> tuple[str, ...]:
    if view.model is None:
        return (f"model completion did not run: {why_not}",)
    notes = [f"completion chooses among the {len(np.unique(view.train_tokens))} tokens of the train rows"]
    if own_ratio is not None:
        notes.append(
            f"the public model itself names {own_ratio:.1%} of the test rows that have a text, given that text"
        )
    return tuple(notes)
