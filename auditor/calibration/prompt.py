"""The instrument of the inversion questions: the public model's own rows in place of a share of the captured ones."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import torch

from auditor.attacks import Attack
from auditor.calibration.base import Dose, Reading
from auditor.evidence.material import Material
from auditor.plan import DoseMode, Plan
from auditor.progress import silent
from auditor.results import finite
from auditor.scorers.bounds import sure_effect
from auditor.scorers.inverting import capture_texts
from auditor.scorers.planting import covered
from auditor.scorers.prompt_control import naked_text
from auditor.views.prompt import CapturedText, PromptView

_HOPS = ("forward", "returned", "gradient", "input_gradient")


class PromptInstrument:
    """A share of the positions carries, to the amplitude, the row that nothing protects."""

    modes: tuple[DoseMode, ...] = ("coordinate",)
    is_graded = True
    carrier = "positions"
    leak = "the row that the public model gives for the text, beside what is left of the captured one"

    def __init__(self, attack: Attack, material: Material, family: str, plan: Plan) -> None:
        self._plan = plan
        self._captured = capture_texts(attack, material, family, plan)
        self._naked: list[CapturedText] | None = None

    def read(self, dose: Dose | None, seed: int) -> list[Reading]:
        """The effect of the attack on all texts."""
        captured = self._captured
        view = captured.view if dose is None or dose.is_zero else self._dosed(captured.view, dose, seed)
        effect = captured.attacked(view, self._plan, silent).scored.effect(self._plan, self._plan.statistics.alpha)
        bounds, ceiling = None if effect is None else effect.bounds, self._plan.ceilings.prompt_token_pp
        lower, sure = None if bounds is None else bounds.max_lower, sure_effect(bounds, self._plan)
        return [
            Reading(
                captured.metric,
                "pp",
                ceiling,
                None if bounds is None else float(bounds.estimate.max()),
                finite(lower),
                finite(None if bounds is None else bounds.max_upper),
                detected=lower is not None and lower > 0,
                breaks=sure is not None and sure > ceiling,
            )
        ]

    def _dosed(self, view: PromptView, dose: Dose, seed: int) -> PromptView:
        lengths = [len(text.forward) for text in view.texts]
        chosen = covered(np.arange(sum(lengths)), dose.coverage_ratio, seed)
        ends = list(itertools.accumulate(lengths, initial=0))
        texts = []
        for text, naked, (start, end) in zip(view.texts, self._naked_texts(), itertools.pairwise(ends), strict=True):
            mine = torch.from_numpy(chosen[(chosen >= start) & (chosen < end)] - start)
            texts.append(_mixed(text, naked, mine, dose.amplitude_ratio))
        return replace(view, texts=tuple(texts))

    def _naked_texts(self) -> list[CapturedText]:
        """What would cross of each text with nothing to protect it."""
        if self._naked is None:
            captured = self._captured
            self._naked = [
                naked_text(captured.view.model, key.tokens, training=captured.is_training) for key in captured.key.texts
            ]
        return self._naked


def _mixed(text: CapturedText, naked: CapturedText, places: torch.Tensor, share: float) -> CapturedText:
    """The text with these rows moved towards the naked ones, on every hop that carried it."""
    changed = {}
    for name in _HOPS:
        rows, bare = getattr(text, name), getattr(naked, name)
        if rows is not None and bare is not None:
            mixed = rows.clone()
            mixed[places] = (1 - share) * rows[places] + share * bare[places]
            changed[name] = mixed
    return replace(text, **changed)
