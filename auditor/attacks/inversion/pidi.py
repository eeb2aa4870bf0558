"""PIDI: the dual-sided start, refined by patched model inversion.

Shapes: T positions of one text, H hidden width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from auditor.attacks.base import Assumes, Question
from auditor.attacks.inversion.base import Recovered
from auditor.attacks.inversion.parts.dual_start import answer_of
from auditor.attacks.inversion.parts.each_text import Guess, recover_each
from auditor.attacks.inversion.parts.match_rows import random_rows
from auditor.attacks.inversion.parts.matching import target_of
from auditor.attacks.inversion.parts.nearest import nearest_tokens
from auditor.attacks.inversion.parts.patches import PatchedInversion
from auditor.attacks.inversion.parts.public_head import public_head
from auditor.channels import RESPONSE_SIDE
from auditor.plan import InversionSettings
from auditor.progress import Progress, Tick
from auditor.views.prompt import CapturedText, PromptView


@dataclass(frozen=True)
class Pidi(PatchedInversion):
    """DSI, then PMI over prompt and answer. Without patches it is DSI + VMI, from a random start besides MC + VMI."""

    name: ClassVar[str] = "pidi"
    question: ClassVar[Question] = "prompt"
    families: ClassVar[tuple[str, ...]] = (RESPONSE_SIDE,)
    knowledge: ClassVar[str] = "forward and returned rows; the public model; public text"
    assumes: ClassVar[Assumes] = Assumes(public_weights=True, auxiliary_text=True)
    paper: ClassVar[str] = "PIDI (Gu et al. 2026, section 4)"

    def run(self, view: PromptView, settings: InversionSettings, progress: Progress) -> list[Recovered]:
        """Tokens of every position, and the one that follows where returned rows were captured."""
        head = public_head(view.model, settings.device)
        inverter = self.fit(view, head, self.name, progress) if self.start == "inverter" else None

        def recover(text: CapturedText, generator: torch.Generator, tick: Tick) -> Guess:
            target = target_of(text.forward, view.wire_dtype, head.device)
            answer = answer_of(view.model, text, settings.device)
            start_TH = random_rows(head, len(text.forward), generator)
            if inverter is not None:
                start_TH = head.table[inverter.invert(text.forward).tokens]
            answer_TH = head.table[answer.guess.tokens.clamp_min(0).to(head.device)]
            start_TH = torch.where(answer.is_answer[:, None].to(head.device), answer_TH, start_TH)
            embeddings_TH, found = self.refine(head, target, start_TH, tick)
            tokens_T = nearest_tokens(embeddings_TH, head.table, "euclidean", 1)[:, 0]
            return Guess(tokens_T, answer.guess.following, details=found.details())

        fit_seconds = None if inverter is None else inverter.fit_seconds
        return recover_each(self.name, view, progress, recover, fit_seconds=fit_seconds)
