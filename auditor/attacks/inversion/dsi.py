"""DSI, dual-sided start: a trained inverter reads the prompt, the public tail reads the answer.

Shapes: T positions of one text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from auditor.attacks.base import Assumes, Question
from auditor.attacks.inversion.base import Recovered
from auditor.attacks.inversion.parts.dual_start import answer_of
from auditor.attacks.inversion.parts.each_text import Guess, recover_each
from auditor.attacks.inversion.parts.inverter import InverterTraining
from auditor.attacks.inversion.parts.public_head import public_head
from auditor.channels import RESPONSE_SIDE
from auditor.plan import InversionSettings
from auditor.progress import Progress, Tick
from auditor.views.prompt import CapturedText, PromptView


@dataclass(frozen=True)
class DualSidedStart(InverterTraining):
    """SIP on forward rows and model completion on returned ones, with nothing after it."""

    name: ClassVar[str] = "dsi"
    question: ClassVar[Question] = "prompt"
    families: ClassVar[tuple[str, ...]] = (RESPONSE_SIDE,)
    knowledge: ClassVar[str] = "forward and returned rows; the public model; public text"
    assumes: ClassVar[Assumes] = Assumes(public_weights=True, auxiliary_text=True)
    paper: ClassVar[str] = "DSI (dual-sided inversion of split LLMs, section 4.1)"

    def run(self, view: PromptView, settings: InversionSettings, progress: Progress) -> list[Recovered]:
        """Tokens of every position, and the one that follows where returned rows were captured."""
        head = public_head(view.model, settings.device)
        inverter = self.fit(view, head, self.name, progress)

        def recover(text: CapturedText, generator: torch.Generator, tick: Tick) -> Guess:
            del generator, tick
            answer = answer_of(view.model, text, settings.device)
            return Guess(answer.over(inverter.invert(text.forward).tokens), answer.guess.following)

        return recover_each(self.name, view, progress, recover, fit_seconds=inverter.fit_seconds)
