"""Trained inverters of the return wire: from what the public tail makes of returned rows to the tokens that were read.

Shapes: N pieces, T positions, H hidden width, F features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from auditor.attacks.inversion.base import Recovered
from auditor.attacks.inversion.parts.completion import known_returned, public_tail
from auditor.attacks.inversion.parts.each_text import Guess, recover_each
from auditor.attacks.inversion.parts.encoder_decoder import Example, WriterTraining
from auditor.attacks.inversion.parts.inverter import InverterTraining
from auditor.attacks.inversion.parts.pieces import completions_by_public, pieces_of
from auditor.plan import InversionSettings
from auditor.progress import Progress, Tick
from auditor.views.prompt import CapturedText, PromptView

Features = Callable[[torch.Tensor], torch.Tensor]
"""Features [.., F] of normed last hidden states [.., H]."""


@dataclass(frozen=True)
class ReturnedInverter(InverterTraining, WriterTraining):
    """Without `model` a GRU names the token of each position; with it the encoder-decoder writes the whole text."""

    def recover(
        self, name: str, features: Features, view: PromptView, settings: InversionSettings, progress: Progress
    ) -> list[Recovered]:
        """Trains on public text, then reads every text; NotMeasurableError without returned rows or public text."""
        for text in view.texts:
            known_returned(text)
        tail = public_tail(view.model, settings.device)
        pieces_NT = pieces_of(view.auxiliary, self.piece_positions, self.num_pieces, view.seed).to(tail.device)
        progress(f"{name}: running public text through the public model", 0, 1)
        learned_NTF = features(completions_by_public(view.model, pieces_NT, settings.device))
        invert, fit_seconds = self._fit(name, learned_NTF, pieces_NT, view, progress)

        def recover(text: CapturedText, generator: torch.Generator, tick: Tick) -> Guess:
            del generator, tick
            rows_1TH = known_returned(text)[None].to(tail.device, tail.dtype)
            with torch.no_grad():
                return invert(features(tail(rows_1TH)[0]))

        return recover_each(name, view, progress, recover, fit_seconds=fit_seconds)

    def _fit(
        self, name: str, features_NTF: torch.Tensor, pieces_NT: torch.Tensor, view: PromptView, progress: Progress
    ) -> tuple[Callable[[torch.Tensor], Guess], float]:
        if self.model:
            examples = [Example(*pair) for pair in zip(features_NTF, pieces_NT, strict=True)]
            label = f"{name}: training the encoder-decoder"
            writer = self.fit_writer(examples, view.model, view.seed, lambda d, n: progress(label, d, n))
            return writer.invert, writer.fit_seconds
        inverter = self.fit_rows(features_NTF, pieces_NT, view.seed, name, progress)
        return inverter.invert, inverter.fit_seconds
