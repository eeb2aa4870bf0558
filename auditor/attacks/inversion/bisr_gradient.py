"""BiSR(b): a trained inverter's guess, then soft labels matched to the gradient at the tail cut.

The inverter (SIP) reads the forward rows; its scores for the token at the next position, divided by a temperature, make
the soft labels that a position begins with. The last one begins at the public tail's own prediction. They lie in 0 to
1, so that a few steps of AdamW can turn any of them, and are logits in the loss: a mixed distance between the gradient
that they would have made and the one that crossed. Each side repairs the other: the gradient corrects what the inverter
misread, and the inverter is a start that the gradient alone lacks.

Shapes: T positions of one text, V vocabulary, C tokens that the inverter names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field, PositiveFloat

from auditor.attacks.base import Assumes, Question
from auditor.attacks.inversion.base import Recovered
from auditor.attacks.inversion.parts.descent import descend
from auditor.attacks.inversion.parts.each_text import Guess, recover_each
from auditor.attacks.inversion.parts.inverter import Inverter, InverterTraining
from auditor.attacks.inversion.parts.label_matching import LabelMatch, absolute, squared
from auditor.attacks.inversion.parts.labels import labels_guess
from auditor.attacks.inversion.parts.public_head import public_head
from auditor.attacks.inversion.parts.tail_gradient import TailGradient
from auditor.channels import JOINT
from auditor.plan import Count, InversionSettings
from auditor.progress import Progress, Tick
from auditor.views.prompt import CapturedText, PromptView


@dataclass(frozen=True)
class BisrBackward(InverterTraining):
    """Names every token: the first by the inverter alone, the others as labels."""

    temperature: PositiveFloat = 1.2
    """Divides the inverter's scores."""
    learning_rate: PositiveFloat = 0.09
    """Of AdamW, on the soft labels, which go through another softmax in the loss."""
    num_steps: Count = 18
    squared_ratio: Annotated[float, Field(ge=0, le=1)] = 0.85
    """Weight of the squared distance; the absolute one has the rest."""

    name: ClassVar[str] = "bisr_gradient"
    question: ClassVar[Question] = "training_text"
    families: ClassVar[tuple[str, ...]] = (JOINT,)
    knowledge: ClassVar[str] = "forward rows, gradient and returned rows; the public model; public text"
    assumes: ClassVar[Assumes] = Assumes(public_weights=True, auxiliary_text=True)
    paper: ClassVar[str] = "BiSR(b) (Chen et al., BiSR: data reconstruction attacks in split learning of LLMs, 2024)"

    def run(self, view: PromptView, settings: InversionSettings, progress: Progress) -> list[Recovered]:
        """One guess a text, in order."""
        inverter = self.fit(view, public_head(view.model, settings.device), self.name, progress)

        def recover(text: CapturedText, generator: torch.Generator, tick: Tick) -> Guess:
            del generator
            gradient = TailGradient(view.model, text, settings.device)
            foreseen_TV = gradient.probabilities.clamp_min(1e-30).log()
            read_TV = _scores(inverter, text, foreseen_TV.shape[1])
            soft_TV = (torch.cat([read_TV[1:], foreseen_TV[-1:]]) / self.temperature).softmax(-1).requires_grad_()
            match = LabelMatch(gradient, self._distance)
            optimizer = torch.optim.AdamW([soft_TV], lr=self.learning_rate)
            done = descend(soft_TV, optimizer, lambda: match.loss(soft_TV), self.num_steps, tick)
            labels = labels_guess(soft_TV.detach(), gradient.observed, done.details())
            return _with_first(labels, read_TV[0])

        return recover_each(self.name, view, progress, recover, fit_seconds=inverter.fit_seconds)

    def _distance(self, guess_TH: torch.Tensor, observed_TH: torch.Tensor) -> torch.Tensor:
        share = self.squared_ratio
        return share * squared(guess_TH, observed_TH) + (1 - share) * absolute(guess_TH, observed_TH)


@torch.no_grad()
def _scores(inverter: Inverter, text: CapturedText, num_tokens: int) -> torch.Tensor:
    """Log-probabilities [T, V] of the inverter; tokens that it cannot name are as unlikely as its least likely one."""
    rows_TH = text.forward.to(inverter.classes.device, torch.float32)
    named_TC = inverter.net(inverter.standard(rows_TH)[None])[0].log_softmax(-1)
    scores_TV: torch.Tensor = named_TC.min(-1, keepdim=True).values.repeat(1, num_tokens)
    return scores_TV.index_copy(1, inverter.classes, named_TC)


def _with_first(labels: Guess, scores_V: torch.Tensor) -> Guess:
    tokens_T, certainty = labels.tokens.clone(), labels.certainty
    best = scores_V.exp().max(-1)
    tokens_T[0] = best.indices
    if certainty is not None:
        certainty = torch.cat([best.values[None].to(certainty.device), certainty[1:]])
    return Guess(tokens_T, labels.following, certainty, labels.details)
