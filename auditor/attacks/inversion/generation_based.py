"""Generation-based inversion: an encoder-decoder translates forward rows into the text that they came from.

It asks nothing of the weights behind the rows: it learns from texts whose rows are known. Those are the known plaintext
of the view, rows that crossed, and, unless `public_head` is off, public text through the public head. Off is the black
box of the paper, for a model that nobody knows. Published with T5-base; without `model` a small encoder-decoder is made
from nothing, which shows the method and not its strength.

Shapes: T positions of one text, H hidden width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from auditor.attacks.base import Assumes, Question
from auditor.attacks.inversion.base import Recovered
from auditor.attacks.inversion.parts.each_text import Guess, recover_each
from auditor.attacks.inversion.parts.encoder_decoder import Example, WriterTraining
from auditor.attacks.inversion.parts.pieces import pieces_of
from auditor.attacks.inversion.parts.public_head import public_head
from auditor.attacks.inversion.parts.public_rows import rows_of_pieces
from auditor.channels import FORWARD_ONLY
from auditor.plan import Count, InversionSettings
from auditor.progress import Progress, Tick
from auditor.views.base import NotMeasurableError
from auditor.views.prompt import CapturedText, PromptView


@dataclass(frozen=True)
class GenerationBased(WriterTraining):
    """Writes the tokens that crossed; none for the one that follows."""

    public_head: bool = True
    """Learn from public text through the public head as well."""
    num_pieces: Count = 300
    """Pieces of public text at most."""
    piece_positions: Count = 64
    """Length of a piece."""

    name: ClassVar[str] = "generation_based"
    question: ClassVar[Question] = "prompt"
    families: ClassVar[tuple[str, ...]] = (FORWARD_ONLY,)
    knowledge: ClassVar[str] = "forward rows; texts of train documents with their rows; the public head; public text"
    assumes: ClassVar[Assumes] = Assumes(known_plaintext=True, public_weights=True, auxiliary_text=True)
    paper: ClassVar[str] = "generation-based inversion (inverting internal states of LLMs, section 4.3)"

    def run(self, view: PromptView, settings: InversionSettings, progress: Progress) -> list[Recovered]:
        """One guess a text, in order; NotMeasurableError where there is nothing to learn from."""
        device = public_head(view.model, settings.device).device
        examples = self._examples(view, settings.device)
        label = f"{self.name}: training the encoder-decoder"
        writer = self.fit_writer(examples, view.model, view.seed, lambda d, n: progress(label, d, n))

        def recover(text: CapturedText, generator: torch.Generator, tick: Tick) -> Guess:
            del generator, tick
            return writer.invert(text.forward.to(device, torch.float32))

        return recover_each(self.name, view, progress, recover, fit_seconds=writer.fit_seconds)

    def _examples(self, view: PromptView, device: str) -> list[Example]:
        head = public_head(view.model, device)
        known = [
            Example(text.forward.to(head.device, torch.float32), torch.from_numpy(text.tokens)) for text in view.known
        ]
        if not self.public_head:
            if not known:
                raise NotMeasurableError("no text is declared known plaintext, and the public head is not to be used")
            return known
        pieces_NT = pieces_of(view.auxiliary, self.piece_positions, self.num_pieces, view.seed)
        rows_NTH = rows_of_pieces(head, pieces_NT)
        return known + [Example(*pair) for pair in zip(rows_NTH, pieces_NT, strict=True)]
