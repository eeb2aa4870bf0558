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
from auditor.attacks.inversion.parts.each_text import Guess, recover_each
from auditor.attacks.inversion.parts.pieces import pieces_of
from auditor.attacks.inversion.parts.public_head import public_head
from auditor.attacks.inversion.parts.public_rows import rows_of_pieces, standard_of
from auditor.attacks.inversion.parts.token_classifier import ClassifierTraining
from auditor.channels import FORWARD_ONLY
from auditor.plan import Count, InversionSettings
from auditor.progress import Progress, Tick
from auditor.views.prompt import CapturedText, PromptView


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
        head = public_head(view.model, settings.device)
        pieces_NT = pieces_of(view.auxiliary, self.piece_positions, self.num_pieces, view.seed).to(head.device)
        rows_NTH = rows_of_pieces(head, pieces_NT)
        vocabulary = torch.arange(len(head.table), device=head.device)
        unseen = vocabulary[~torch.isin(vocabulary, torch.unique(pieces_NT))]
        generator = torch.Generator().manual_seed(view.seed)

        def epoch(number: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
            yield rows_NTH.flatten(0, 1), pieces_NT.flatten()
            all_contexts = len(unseen) * self.contexts_per_token
            first, last = (all_contexts * bound // self.num_epochs for bound in (number, number + 1))
            here = unseen[torch.arange(first, last, device=head.device) % max(1, len(unseen))]
            yield from synthetic_rows(head, pieces_NT, here, self.replaced_ratio, generator)

        classifier = self.fit(
            head,
            standard_of(rows_NTH),
            vocabulary,
            epoch,
            view.seed,
            lambda done, of: progress(f"{self.name}: training", done, of),
        )

        def recover(text: CapturedText, generator: torch.Generator, tick: Tick) -> Guess:
            del generator, tick
            tokens_T, probability_T = classifier.name(text.forward)
            return Guess(tokens_T, certainty=torch.nn.functional.pad(probability_T, (0, 1)))

        return recover_each(self.name, view, progress, recover, fit_seconds=classifier.fit_seconds)
