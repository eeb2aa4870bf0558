"""A1: every row by itself, through a network that was trained on public text, to its token.

Shapes: T positions of one text, H hidden width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch

from auditor.attacks.base import Assumes, Question
from auditor.attacks.inversion.base import Recovered
from auditor.attacks.inversion.parts.public_head import PublicHead
from auditor.attacks.inversion.parts.token_classifier import ClassifierTraining, Lessons
from auditor.channels import FORWARD_ONLY
from auditor.plan import InversionSettings
from auditor.progress import Progress
from auditor.views.prompt import PromptView


@dataclass(frozen=True)
class RowClassification(ClassifierTraining):
    """Names the tokens that the public text holds."""

    name: ClassVar[str] = "a1"
    question: ClassVar[Question] = "prompt"
    families: ClassVar[tuple[str, ...]] = (FORWARD_ONLY,)
    knowledge: ClassVar[str] = "forward rows; the public model; public text"
    assumes: ClassVar[Assumes] = Assumes(public_weights=True, auxiliary_text=True)
    paper: ClassVar[str] = "A1 (Luo et al., Prompt Inference Attack on Distributed LLM Inference Frameworks, 2025)"

    def run(self, view: PromptView, settings: InversionSettings, progress: Progress) -> list[Recovered]:
        """Tokens of every position that crossed, with their probability; none for the one that follows."""
        return self.recover(self.name, view, settings, progress, _lessons)


def _lessons(_head: PublicHead, pieces_NT: torch.Tensor, rows_NTH: torch.Tensor) -> Lessons:
    """Public text, the same in every epoch."""

    def epoch(number: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        del number  # all are alike
        yield rows_NTH.flatten(0, 1), pieces_NT.flatten()

    return Lessons(torch.unique(pieces_NT), epoch)
