"""Scores which public model made the captured rows, against the one whose fingerprint crossed. It describes: no check.

A model is no secret of the design (its fingerprint is in the handshake), so naming it is no leak that a ceiling could
bound, and a result without checks measures no family. What counts beside the choice:

    control   rows that the public model gives for public text that nobody learned from: named, where it is a candidate
    twin      the captured rows, their channels in an order of chance and every second sign turned: nothing is named

Shapes: T positions of one text, H hidden width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from auditor.attacks import Attack
from auditor.attacks.inversion.model_identification import Identified
from auditor.attacks.inversion.parameters import parameters_of
from auditor.evidence.material import Material
from auditor.plan import Plan
from auditor.progress import Progress
from auditor.public_model import PublicModel
from auditor.results import Control, Result
from auditor.scorers.inverting import Captured, capture_texts
from auditor.scorers.prompt_control import WHAT, naked_view
from auditor.views.prompt import PromptView
from splitwire.backbone import identity
from splitwire.errors import ModelError

NOT_SELECTIVE = "the twin was named as well, so the choice says nothing"


@dataclass(frozen=True)
class Naming:
    """What an attack named: `right` is the place of the true model among the candidates, None where it is none."""

    sources: tuple[str, ...]
    found: Identified
    right: int | None

    @property
    def is_right(self) -> bool:
        """Whether the choice is the true model, or none where none of them is."""
        return self.found.chosen == self.right

    @property
    def chosen(self) -> str:
        """Name of the candidate that was chosen."""
        return "none of them" if self.found.chosen is None else self.sources[self.found.chosen]

    @property
    def told(self) -> str:
        """Choice and error ratios in one line."""
        pairs = zip(self.sources, self.found.error_ratios, strict=True)
        ratios = ", ".join(f"{name} {'of another width' if ratio is None else f'{ratio:.3g}'}" for name, ratio in pairs)
        return f"named {self.chosen}, which is {'right' if self.is_right else 'wrong'}; error ratios: {ratios}"


def named_model(captured: Captured, view: PromptView, plan: Plan, progress: Progress) -> Naming:
    """What the attack says of the rows of this view."""
    attack: Any = captured.attack
    sources = tuple(attack.sources(view))
    return Naming(sources, attack.run(view, plan.inversion, progress), _place(sources, view.model))


def score_model(attack: Attack, material: Material, family: str, plan: Plan, progress: Progress) -> Result:
    """The choice, its error ratios, and what it is beside control and twin."""
    captured = capture_texts(attack, material, family, plan)
    view = captured.view
    naming = named_model(captured, view, plan, progress)
    naked, _ = naked_view(view, captured.key, training=False)
    control = named_model(captured, naked, plan, progress)
    twin = named_model(captured, turned(view, plan.split.seed), plan, progress)
    return Result(
        attack=captured.attack.name,
        family=family,
        question=captured.attack.question,
        partition="all",
        knowledge=captured.attack.knowledge,
        given=f"{sum(len(text.forward) for text in view.texts)} positions; {len(naming.sources)} candidate models; "
        f"{sum(map(len, view.auxiliary))} tokens of public text",
        paper=captured.attack.paper,
        num_documents=len({key.document for key in captured.key.texts}),
        num_frames=len(view.texts),
        num_rows=sum(len(text.forward) for text in view.texts),
        checks=(),
        baseline={"chance_ratio": 1 / (len(naming.sources) + 1)},
        twin={"named_ratio": float(twin.found.chosen is not None), "error_ratio": _least(twin)},
        controls=(Control(WHAT, _ratio(control), control.is_right and control.right is not None),),
        details={
            "chosen": naming.chosen,
            "is_right": naming.is_right,
            "error_ratios": dict(zip(naming.sources, naming.found.error_ratios, strict=True)),
            "parameters": ", ".join(f"{name} {value}" for name, value in parameters_of(captured.attack).items()),
        },
        notes=(naming.told,) if twin.found.chosen is None else (naming.told, NOT_SELECTIVE),
    )


def turned(view: PromptView, seed: int) -> PromptView:
    """The same view with channels of all rows in one order of chance and every second sign turned."""
    generator = torch.Generator().manual_seed(seed)
    width = view.texts[0].forward.shape[1]
    order, signs = torch.randperm(width, generator=generator), torch.ones(width)
    signs[::2] = -1
    return replace(view, texts=tuple(replace(text, forward=text.forward[:, order] * signs) for text in view.texts))


def _ratio(naming: Naming) -> float | None:
    return None if naming.right is None else naming.found.error_ratios[naming.right]


def _least(naming: Naming) -> float | None:
    """The smallest error ratio of any candidate."""
    return min((ratio for ratio in naming.found.error_ratios if ratio is not None), default=None)


def _place(sources: tuple[str, ...], model: PublicModel) -> int | None:
    """Which of these is the model, by the fingerprint of its delegated layers."""
    wanted = identity(model.settings)
    for place, source in enumerate(sources):
        if source == model.settings.source:
            return place
        try:
            if identity(replace(model.settings, source=source, revision="")) == wanted:
                return place
        except ModelError:
            continue
    return None
