"""PMI, patched model inversion: the guess of a trained inverter, refined patch by patch and then as a whole.

Shapes: T positions of one text, H hidden width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from auditor.attacks.base import Assumes, Question
from auditor.attacks.inversion.base import Recovered
from auditor.attacks.inversion.parts.each_text import Guess, recover_each
from auditor.attacks.inversion.parts.match_rows import random_rows
from auditor.attacks.inversion.parts.matching import target_of
from auditor.attacks.inversion.parts.nearest import nearest_tokens
from auditor.attacks.inversion.parts.patches import PatchedInversion
from auditor.attacks.inversion.parts.public_head import public_head
from auditor.channels import FORWARD_ONLY
from auditor.plan import InversionSettings
from auditor.progress import Progress, Tick
from auditor.views.prompt import CapturedText, PromptView


@dataclass(frozen=True)
class PatchedModelInversion(PatchedInversion):
    """Forward rows alone, answer and prompt alike."""

    name: ClassVar[str] = "pmi"
    question: ClassVar[Question] = "prompt"
    families: ClassVar[tuple[str, ...]] = (FORWARD_ONLY,)
    knowledge: ClassVar[str] = "forward rows; the public model; public text"
    assumes: ClassVar[Assumes] = Assumes(public_weights=True, auxiliary_text=True)
    paper: ClassVar[str] = "PMI (dual-sided inversion of split LLMs, section 4.2)"

    def run(self, view: PromptView, settings: InversionSettings, progress: Progress) -> list[Recovered]:
        """Tokens of every position that crossed; none for the one that follows."""
        head = public_head(view.model, settings.device)
        inverter = self.fit(view, head, self.name, progress) if self.start == "inverter" else None

        def recover(text: CapturedText, generator: torch.Generator, tick: Tick) -> Guess:
            target = target_of(text.forward, view.wire_dtype, head.device)
            if inverter is None:
                start_TH = random_rows(head, len(text.forward), generator)
            else:
                start_TH = head.table[inverter.invert(text.forward).tokens]
            embeddings_TH, found = self.refine(head, target, start_TH, tick)
            tokens_T = nearest_tokens(embeddings_TH, head.table, "euclidean", 1)[:, 0]
            return Guess(tokens_T, details=found.details())

        fit_seconds = None if inverter is None else inverter.fit_seconds
        return recover_each(self.name, view, progress, recover, fit_seconds=fit_seconds)
