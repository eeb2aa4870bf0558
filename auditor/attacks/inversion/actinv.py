"""ActInv: embeddings of all positions at once, moved until the head makes the captured rows of them.

Shapes: T positions of one text, H hidden width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import PositiveFloat

from auditor.attacks.base import Assumes, Question
from auditor.attacks.inversion.base import Recovered
from auditor.attacks.inversion.parts.each_text import Guess, recover_each
from auditor.attacks.inversion.parts.match_rows import Matching, match_rows, random_rows
from auditor.attacks.inversion.parts.matching import Distance, target_of
from auditor.attacks.inversion.parts.nearest import nearest_tokens
from auditor.attacks.inversion.parts.public_head import public_head
from auditor.channels import FORWARD_ONLY
from auditor.plan import Count, InversionSettings
from auditor.progress import Progress, Tick
from auditor.views.prompt import CapturedText, PromptView


@dataclass(frozen=True)
class ActInv:
    """Begins at random rows of the embedding table and ends at the nearest ones."""

    learning_rate: PositiveFloat = 0.01
    """Of Adam."""
    num_steps: Count = 2000
    distance: Distance = "cosine"
    """cosine, which ignores entries that a defence zeroed, or mse."""

    name: ClassVar[str] = "actinv"
    question: ClassVar[Question] = "prompt"
    families: ClassVar[tuple[str, ...]] = (FORWARD_ONLY,)
    knowledge: ClassVar[str] = "forward rows; the public model"
    assumes: ClassVar[Assumes] = Assumes(public_weights=True)
    paper: ClassVar[str] = "ActInv (Fan et al. 2026, section 4.2)"

    def run(self, view: PromptView, settings: InversionSettings, progress: Progress) -> list[Recovered]:
        """Tokens of every position that crossed; none for the one that follows."""
        head = public_head(view.model, settings.device)
        how = Matching(self.distance, "adam", self.learning_rate, self.num_steps)

        def recover(text: CapturedText, generator: torch.Generator, tick: Tick) -> Guess:
            target = target_of(text.forward, view.wire_dtype, head.device)
            start_TH = random_rows(head, len(text.forward), generator)
            embeddings_TH, found = match_rows(head, target, start_TH, how, tick)
            tokens_T = nearest_tokens(embeddings_TH, head.table, "euclidean", 1)[:, 0]
            return Guess(tokens_T, details=found.details())

        return recover_each(self.name, view, progress, recover)
