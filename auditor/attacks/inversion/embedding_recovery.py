"""ER, embedding recovery: free embeddings that start at zero, kept distributed like the vocabulary's if asked.

Shapes: T positions of one text, H hidden width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import NonNegativeFloat, PositiveFloat

from auditor.attacks.base import Assumes, Question
from auditor.attacks.inversion.base import Recovered
from auditor.attacks.inversion.parts.distribution import distribution_penalty
from auditor.attacks.inversion.parts.each_text import Guess, recover_each
from auditor.attacks.inversion.parts.match_rows import Matching, match_rows
from auditor.attacks.inversion.parts.matching import Distance, target_of
from auditor.attacks.inversion.parts.nearest import nearest_tokens
from auditor.attacks.inversion.parts.public_head import public_head
from auditor.channels import FORWARD_ONLY
from auditor.plan import Count, InversionSettings
from auditor.progress import Progress, Tick
from auditor.views.prompt import CapturedText, PromptView


@dataclass(frozen=True)
class EmbeddingRecovery:
    """The iterate with the least loss is named by cosine."""

    learning_rate: PositiveFloat = 5e-4
    """Of AdamW; the paper tries 1e-3 to 1e-4."""
    num_steps: Count = 50_000
    distance: Distance = "mse"
    """mse or cosine."""
    penalty_weight: NonNegativeFloat = 0.0
    """Of distribution matching; the paper tries 0 and 1e-3."""

    name: ClassVar[str] = "embedding_recovery"
    question: ClassVar[Question] = "prompt"
    families: ClassVar[tuple[str, ...]] = (FORWARD_ONLY,)
    knowledge: ClassVar[str] = "forward rows; the public model"
    assumes: ClassVar[Assumes] = Assumes(public_weights=True)
    paper: ClassVar[str] = "ER (inverting internal states of LLMs, section 4.2 and algorithm 1)"

    def run(self, view: PromptView, settings: InversionSettings, progress: Progress) -> list[Recovered]:
        """Tokens of every position that crossed; none for the one that follows."""
        head = public_head(view.model, settings.device)
        how = Matching(self.distance, "adamw", self.learning_rate, self.num_steps)

        def recover(text: CapturedText, generator: torch.Generator, tick: Tick) -> Guess:
            target = target_of(text.forward, view.wire_dtype, head.device)
            penalty = distribution_penalty(head, self.penalty_weight, generator)
            start_TH = torch.zeros(text.forward.shape)
            embeddings_TH, found = match_rows(head, target, start_TH, how, tick, penalty=penalty)
            tokens_T = nearest_tokens(embeddings_TH, head.table, "cosine", 1)[:, 0]
            return Guess(tokens_T, details=found.details())

        return recover_each(self.name, view, progress, recover)
