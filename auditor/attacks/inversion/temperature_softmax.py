"""TS, token selection: a softmax over the whole vocabulary at every position, mixed from the embedding table.

Shapes: T positions of one text, H hidden width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import PositiveFloat

from auditor.attacks.base import Assumes, Question
from auditor.attacks.inversion.base import Recovered
from auditor.attacks.inversion.parts.each_text import Guess, recover_each
from auditor.attacks.inversion.parts.match_rows import Matching, match_rows
from auditor.attacks.inversion.parts.matching import Distance, target_of
from auditor.attacks.inversion.parts.public_head import public_head
from auditor.channels import FORWARD_ONLY
from auditor.plan import Count, InversionSettings
from auditor.progress import Progress, Tick
from auditor.views.prompt import CapturedText, PromptView


@dataclass(frozen=True)
class TokenSelection:
    """Begins with every token alike and names the token with the largest score."""

    temperature: PositiveFloat = 0.05
    """Scores are divided by it. The paper leaves it open."""
    learning_rate: PositiveFloat = 5e-4
    """Of AdamW."""
    num_steps: Count = 50_000
    distance: Distance = "mse"
    """mse or cosine."""

    name: ClassVar[str] = "temperature_softmax"
    question: ClassVar[Question] = "prompt"
    families: ClassVar[tuple[str, ...]] = (FORWARD_ONLY,)
    knowledge: ClassVar[str] = "forward rows; the public model"
    assumes: ClassVar[Assumes] = Assumes(public_weights=True)
    paper: ClassVar[str] = "TS (inverting internal states of LLMs, section 4.2)"

    def run(self, view: PromptView, settings: InversionSettings, progress: Progress) -> list[Recovered]:
        """Tokens of every position that crossed; none for the one that follows."""
        head = public_head(view.model, settings.device)
        how = Matching(self.distance, "adamw", self.learning_rate, self.num_steps)

        def embed(scores_TV: torch.Tensor) -> torch.Tensor:
            return (scores_TV / self.temperature).softmax(-1) @ head.table

        def recover(text: CapturedText, generator: torch.Generator, tick: Tick) -> Guess:
            del generator  # nothing is drawn
            target = target_of(text.forward, view.wire_dtype, head.device)
            start_TV = torch.full((len(text.forward), len(head.table)), 1 / head.table.shape[1])
            scores_TV, found = match_rows(head, target, start_TV, how, tick, embed=embed)
            return Guess(scores_TV.argmax(-1), details=found.details())

        return recover_each(self.name, view, progress, recover)
