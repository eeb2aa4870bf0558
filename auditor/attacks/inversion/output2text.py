"""output2text: a trained inverter from the text that comes out of the return wire to the text that was read.

Of every returned row only the likeliest next token is kept: what someone sees who is shown no probabilities. As
published, outputs go into a T5, which writes the prompt: name a `model` for that form. Without, a GRU reads the tokens
of all positions and names each one's input. What it reads beside model completion is what outputs alone give away.

Shapes: T positions of one text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from auditor.attacks.base import Assumes, Question
from auditor.attacks.inversion.base import Recovered
from auditor.attacks.inversion.parts.completion import public_tail
from auditor.attacks.inversion.parts.returned_features import OutputFeatures
from auditor.attacks.inversion.parts.returned_inverter import ReturnedInverter
from auditor.channels import RESPONSE_SIDE
from auditor.plan import InversionSettings
from auditor.progress import Progress
from auditor.views.prompt import PromptView


@dataclass(frozen=True)
class OutputToText(ReturnedInverter):
    """Reads the likeliest next tokens."""

    name: ClassVar[str] = "output2text"
    question: ClassVar[Question] = "prompt"
    families: ClassVar[tuple[str, ...]] = (RESPONSE_SIDE,)
    knowledge: ClassVar[str] = (
        "returned rows, of which only the likeliest next tokens are read; the public model; public text"
    )
    assumes: ClassVar[Assumes] = Assumes(public_weights=True, auxiliary_text=True)
    paper: ClassVar[str] = "output2text (Zhang et al., Extracting Prompts by Inverting LLM Outputs, 2024)"

    def run(self, view: PromptView, settings: InversionSettings, progress: Progress) -> list[Recovered]:
        """One guess a text, in order."""
        features = OutputFeatures(public_tail(view.model, settings.device))
        return self.recover(self.name, features, view, settings, progress)
