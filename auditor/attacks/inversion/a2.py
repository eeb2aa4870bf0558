"""A2: A1 that also learns tokens which its public text lacks, each at random places of that text.

Shapes: T positions of one text, H hidden width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field

from auditor.attacks.base import Assumes, Question
from auditor.attacks.inversion.base import Recovered
from auditor.attacks.inversion.parts.contexts import synthetic_rows
from auditor.attacks.inversion.parts.public_head import PublicHead
from auditor.attacks.inversion.parts.token_classifier import ClassifierTraining, Lessons
from auditor.channels import FORWARD_ONLY
from auditor.plan import Count, InversionSettings
from auditor.progress import Progress
from auditor.views.prompt import PromptView


@dataclass(frozen=True)
class AugmentedClassification(ClassifierTraining):
    """Names every token of the vocabulary."""

    contexts_per_token: Count = 128
    """Places for each token that the public text lacks, spread evenly over the epochs."""
    replaced_ratio: Annotated[float, Field(gt=0, le=1)] = 0.25
    """Share of the places of a piece that are taken at once."""

    name: ClassVar[str] = "a2"
    question: ClassVar[Question] = "prompt"
    families: ClassVar[tuple[str, ...]] = (FORWARD_ONLY,)
    knowledge: ClassVar[str] = "forward rows; the public model; public text"
    assumes: ClassVar[Assumes] = Assumes(public_weights=True, auxiliary_text=True)
    paper: ClassVar[str] = "A2 (Luo et al., Prompt Inference Attack on Distributed LLM Inference Frameworks, 2025)"

    def run(self, view: PromptView, settings: InversionSettings, progress: Progress) -> list[Recovered]:
        """Tokens of every position that crossed, with their probability; none for the one that follows."""

        def lessons(head: PublicHead, pieces_NT: torch.Tensor, rows_NTH: torch.Tensor) -> Lessons:
            vocabulary = torch.arange(len(head.table), device=head.device)
            unseen = vocabulary[~torch.isin(vocabulary, torch.unique(pieces_NT))]
            generator = torch.Generator().manual_seed(view.seed)

            def epoch(number: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
                yield rows_NTH.flatten(0, 1), pieces_NT.flatten()
                all_contexts = len(unseen) * self.contexts_per_token
                first, last = (all_contexts * bound // self.num_epochs for bound in (number, number + 1))
                here = unseen[torch.arange(first, last, device=head.device) % max(1, len(unseen))]
                yield from synthetic_rows(head, pieces_NT, here, self.replaced_ratio, generator)

            return Lessons(vocabulary, epoch)

        return self.recover(self.name, view, settings, progress, lessons)
