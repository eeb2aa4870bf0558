"""logit2text: a trained inverter from the next-token probabilities of the return wire to the text that was read.

The public tail gives every returned row a distribution over the next token; it depends on what was read so far, and an
inverter learns from public text how. As published, one distribution goes into a T5, which writes the prompt: name a
`model` for that form. Without, a GRU reads the distributions of all positions and names each one's token.

Shapes: T positions of one text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from auditor.attacks.base import Assumes, Question
from auditor.attacks.inversion.base import Recovered
from auditor.attacks.inversion.parts.completion import public_tail
from auditor.attacks.inversion.parts.returned_features import LogitFeatures
from auditor.attacks.inversion.parts.returned_inverter import ReturnedInverter
from auditor.channels import RESPONSE_SIDE
from auditor.plan import Count, InversionSettings
from auditor.progress import Progress
from auditor.views.prompt import PromptView


@dataclass(frozen=True)
class LogitToText(ReturnedInverter):
    """Reads the probabilities of the next token."""

    num_features: Count = 640
    """Width of the random projection of a distribution; the model's own width and a little more loses least."""

    name: ClassVar[str] = "logit2text"
    question: ClassVar[Question] = "prompt"
    families: ClassVar[tuple[str, ...]] = (RESPONSE_SIDE,)
    knowledge: ClassVar[str] = (
        "returned rows, of which only the next-token probabilities are read; the public model; public text"
    )
    assumes: ClassVar[Assumes] = Assumes(public_weights=True, auxiliary_text=True)
    paper: ClassVar[str] = "logit2text (Morris et al., Language Model Inversion, 2023)"

    def run(self, view: PromptView, settings: InversionSettings, progress: Progress) -> list[Recovered]:
        """One guess a text, in order."""
        features = LogitFeatures(public_tail(view.model, settings.device), self.num_features, view.seed)
        return self.recover(self.name, features, view, settings, progress)
