"""SIP, the semi-white-box inverter: a GRU learns on public text what rows the public head makes of which tokens.

Shapes: T positions of one text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from auditor.attacks.base import Assumes, Question
from auditor.attacks.inversion.base import Recovered
from auditor.attacks.inversion.parts.each_text import read_each
from auditor.attacks.inversion.parts.inverter import InverterTraining
from auditor.attacks.inversion.parts.public_head import public_head
from auditor.channels import FORWARD_ONLY
from auditor.plan import InversionSettings
from auditor.progress import Progress
from auditor.views.prompt import PromptView


@dataclass(frozen=True)
class Sip(InverterTraining):
    """One pass of the inverter over a text; its training is counted apart."""

    name: ClassVar[str] = "sip"
    question: ClassVar[Question] = "prompt"
    families: ClassVar[tuple[str, ...]] = (FORWARD_ONLY,)
    knowledge: ClassVar[str] = "forward rows; the public model; public text"
    assumes: ClassVar[Assumes] = Assumes(public_weights=True, auxiliary_text=True)
    paper: ClassVar[str] = "SIP (Chen et al., BiSR: data reconstruction attacks in split learning of LLMs, 2024)"

    def run(self, view: PromptView, settings: InversionSettings, progress: Progress) -> list[Recovered]:
        """Tokens of every position that crossed, with the inverter's probability; none for the one that follows."""
        head = public_head(view.model, settings.device)
        inverter = self.fit(view, head, self.name, progress)
        return read_each(self.name, view, progress, inverter.invert, fit_seconds=inverter.fit_seconds)
