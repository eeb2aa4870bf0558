"""BiSR(f): the guess of a trained inverter, refined until the head makes the captured rows of it.

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
from auditor.attacks.inversion.parts.inverter import InverterTraining
from auditor.attacks.inversion.parts.match_rows import Matching, match_rows
from auditor.attacks.inversion.parts.matching import Distance, target_of
from auditor.attacks.inversion.parts.nearest import nearest_tokens
from auditor.attacks.inversion.parts.public_head import public_head
from auditor.channels import FORWARD_ONLY
from auditor.plan import Count, InversionSettings
from auditor.progress import Progress, Tick
from auditor.views.prompt import CapturedText, PromptView


@dataclass(frozen=True)
class BisrForward(InverterTraining):
    """SIP, then forward matching from the embeddings of its tokens. With mse it is what PIDI's authors call BiSR."""

    learning_rate: PositiveFloat = 1e-3
    """Of AdamW in the matching."""
    num_steps: Count = 600
    distance: Distance = "cosine"
    """cosine or mse."""

    name: ClassVar[str] = "bisr_forward"
    question: ClassVar[Question] = "prompt"
    families: ClassVar[tuple[str, ...]] = (FORWARD_ONLY,)
    knowledge: ClassVar[str] = "forward rows; the public model; public text"
    assumes: ClassVar[Assumes] = Assumes(public_weights=True, auxiliary_text=True)
    paper: ClassVar[str] = "BiSR(f) (Chen et al., BiSR: data reconstruction attacks in split learning of LLMs, 2024)"

    def run(self, view: PromptView, settings: InversionSettings, progress: Progress) -> list[Recovered]:
        """Tokens of every position that crossed; none for the one that follows."""
        head = public_head(view.model, settings.device)
        inverter = self.fit(view, head, self.name, progress)
        how = Matching(self.distance, "adamw", self.learning_rate, self.num_steps)

        def recover(text: CapturedText, generator: torch.Generator, tick: Tick) -> Guess:
            del generator  # the inverter's guess is the beginning
            target = target_of(text.forward, view.wire_dtype, head.device)
            start_TH = head.table[inverter.invert(text.forward).tokens]
            embeddings_TH, found = match_rows(head, target, start_TH, how, tick)
            tokens_T = nearest_tokens(embeddings_TH, head.table, "euclidean", 1)[:, 0]
            return Guess(tokens_T, details=found.details())

        return recover_each(self.name, view, progress, recover, fit_seconds=inverter.fit_seconds)
