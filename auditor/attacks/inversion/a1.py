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
from auditor.attacks.inversion.parts.each_text import Guess, recover_each
from auditor.attacks.inversion.parts.pieces import pieces_of
from auditor.attacks.inversion.parts.public_head import public_head
from auditor.attacks.inversion.parts.public_rows import rows_of_pieces, standard_of
from auditor.attacks.inversion.parts.token_classifier import ClassifierTraining
from auditor.channels import FORWARD_ONLY
from auditor.plan import InversionSettings
from auditor.progress import Progress, Tick
from auditor.views.prompt import CapturedText, PromptView


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
        head = public_head(view.model, settings.device)
        pieces_NT = pieces_of(view.auxiliary, self.piece_positions, self.num_pieces, view.seed).to(head.device)
        rows_NTH = rows_of_pieces(head, pieces_NT)

        def epoch(number: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
            del number  # all are alike
            yield rows_NTH.flatten(0, 1), pieces_NT.flatten()

        classifier = self.fit(
            head,
            standard_of(rows_NTH),
            torch.unique(pieces_NT),
            epoch,
            view.seed,
            lambda done, of: progress(f"{self.name}: training", done, of),
        )

        def recover(text: CapturedText, generator: torch.Generator, tick: Tick) -> Guess:
            del generator, tick
            tokens_T, probability_T = classifier.name(text.forward)
            return Guess(tokens_T, certainty=torch.nn.functional.pad(probability_T, (0, 1)))

        return recover_each(self.name, view, progress, recover, fit_seconds=classifier.fit_seconds)
