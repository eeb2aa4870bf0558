"""Names for every captured row the nearest row that one token alone gives.

The first layers mix little: the row of a token right behind the beginning of a text, or its embedding, lies near the
rows of that token anywhere. There is nothing to learn and one pass over the vocabulary to make, so this is what the
least of attackers reads; the other attacks have to be better.

Shapes: T positions, H hidden width, V vocabulary.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from auditor.attacks.base import Assumes, Question
from auditor.attacks.inversion.base import Recovered
from auditor.attacks.inversion.parts.each_text import Guess, recover_each
from auditor.attacks.inversion.parts.nearest import Measure, nearest_tokens
from auditor.attacks.inversion.parts.public_head import public_head
from auditor.channels import FORWARD_ONLY
from auditor.plan import InversionSettings
from auditor.progress import Progress, Tick
from auditor.views.prompt import CapturedText, PromptView


@dataclass(frozen=True)
class NearestVocabulary:
    """The nearest of V rows for each captured row."""

    candidates: Literal["head", "embedding"] = "head"
    """Rows to compare with: what the head gives for each token behind the beginning token, or the embedding table."""
    distance: Measure = "cosine"
    """cosine or euclidean."""
    name: ClassVar[str] = "nearest_vocabulary"
    question: ClassVar[Question] = "prompt"
    families: ClassVar[tuple[str, ...]] = (FORWARD_ONLY,)
    knowledge: ClassVar[str] = "forward rows; the public model's first layers"
    assumes: ClassVar[Assumes] = Assumes(public_weights=True)
    paper: ClassVar[str] = "nearest row of the vocabulary, the baseline of the literature on inversion"

    def run(self, view: PromptView, settings: InversionSettings, progress: Progress) -> list[Recovered]:
        """Tokens of every position; none for the one that follows."""
        began = time.perf_counter()
        progress(f"{self.name}: rows of the vocabulary", 0, 0)
        head = public_head(view.model, settings.device)
        table_VH = view.model.token_rows if self.candidates == "head" else head.table
        fit_seconds = time.perf_counter() - began

        def recover(text: CapturedText, generator: torch.Generator, tick: Tick) -> Guess:
            del generator, tick
            return Guess(nearest_tokens(text.forward.to(head.device), table_VH, self.distance, 1)[:, 0])

        return recover_each(self.name, view, progress, recover, fit_seconds=fit_seconds)
