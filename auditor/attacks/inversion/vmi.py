"""VMI, vanilla model inversion: embeddings of all positions at once, by squared differences and small steps.

Shapes: T positions of one text, H hidden width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import NonNegativeInt, PositiveFloat

from auditor.attacks.base import Assumes, Question
from auditor.attacks.inversion.base import Recovered
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
class VanillaInversion:
    """Begins at zero and ends at the nearest rows of the embedding table by cosine, for the guess is still short.

    The papers say neither.
    """

    learning_rate: PositiveFloat = 0.001
    """Of Adam."""
    num_steps: Count = 1000
    """At most."""
    patience_steps: NonNegativeInt = 50
    """Ends when the loss has not fallen by a thousandth for so many steps; 0: never."""
    distance: Distance = "mse"
    """mse, or cosine."""

    name: ClassVar[str] = "vmi"
    question: ClassVar[Question] = "prompt"
    families: ClassVar[tuple[str, ...]] = (FORWARD_ONLY,)
    knowledge: ClassVar[str] = "forward rows; the public model"
    assumes: ClassVar[Assumes] = Assumes(public_weights=True)
    paper: ClassVar[str] = "model inversion as a baseline of PIDI (dual-sided inversion of split LLMs, section 5)"

    def run(self, view: PromptView, settings: InversionSettings, progress: Progress) -> list[Recovered]:
        """Tokens of every position that crossed; none for the one that follows."""
        head = public_head(view.model, settings.device)
        how = Matching(self.distance, "adam", self.learning_rate, self.num_steps, self.patience_steps)

        def recover(text: CapturedText, generator: torch.Generator, tick: Tick) -> Guess:
            target = target_of(text.forward, view.wire_dtype, head.device)
            del generator  # nothing is drawn
            start_TH = torch.zeros(text.forward.shape)
            embeddings_TH, found = match_rows(head, target, start_TH, how, tick)
            tokens_T = nearest_tokens(embeddings_TH, head.table, "cosine", 1)[:, 0]
            return Guess(tokens_T, details=found.details())

        return recover_each(self.name, view, progress, recover)
