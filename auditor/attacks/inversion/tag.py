"""TAG at the tail cut: dummy labels under a distance of squares and weighted absolute values.

As published, the absolute part is weighted by layer, as some carry more. Here there is one gradient, of the returned
rows, so it is weighted by row: a row with a small gradient has a label that the model foresaw, and says less.

Shapes: T positions of one text, H hidden width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from pydantic import NonNegativeFloat, PositiveFloat

from auditor.attacks.base import Assumes, Question
from auditor.attacks.inversion.base import Recovered
from auditor.attacks.inversion.parts.descent import descend
from auditor.attacks.inversion.parts.each_text import Guess, recover_each
from auditor.attacks.inversion.parts.label_matching import LabelMatch, by_row_norm, random_logits, squared
from auditor.attacks.inversion.parts.labels import labels_guess
from auditor.attacks.inversion.parts.tail_gradient import TailGradient
from auditor.channels import GRADIENT_ONLY
from auditor.plan import Count, InversionSettings
from auditor.progress import Progress, Tick
from auditor.views.prompt import CapturedText, PromptView


@dataclass(frozen=True)
class TransformerGradient:
    """Names the label of every row; the first token of a text is nobody's label."""

    num_steps: Count = 300
    """Steps of AdamW."""
    learning_rate: PositiveFloat = 0.1
    """Learning rate of AdamW."""
    alpha: NonNegativeFloat = 0.01
    """Weight of the absolute part."""

    start_deviation: PositiveFloat = 0.01
    """Of the normal that label logits start from; as published it is 1, from which somewhat fewer labels are found."""

    name = "tag"
    question: Question = "training_text"
    families: tuple[str, ...] = (GRADIENT_ONLY,)
    knowledge = "gradient and returned rows; the public model's last layers"
    assumes = Assumes(public_weights=True)
    paper = "TAG (Deng et al. 2021, Gradient Attack on Transformer-based Language Models), adapted to a cut"

    def run(self, view: PromptView, settings: InversionSettings, progress: Progress) -> list[Recovered]:
        """One guess a text, in order."""

        def recover(text: CapturedText, generator: torch.Generator, tick: Tick) -> Guess:
            gradient = TailGradient(view.model, text, settings.device)
            logits_TV = random_logits(gradient, self.start_deviation, generator).requires_grad_()
            match = LabelMatch(gradient, self._distance)
            optimizer = torch.optim.AdamW([logits_TV], lr=self.learning_rate, weight_decay=0.0)
            done = descend(logits_TV, optimizer, lambda: match.loss(logits_TV), self.num_steps, tick)
            return labels_guess(logits_TV.detach().softmax(-1), gradient.observed, done.details())

        return recover_each(self.name, view, progress, recover)

    def _distance(self, guess_TH: torch.Tensor, observed_TH: torch.Tensor) -> torch.Tensor:
        return squared(guess_TH, observed_TH).sqrt() + self.alpha * by_row_norm(guess_TH, observed_TH)
