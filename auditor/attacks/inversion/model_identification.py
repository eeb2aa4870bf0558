"""Model-type identification: which public model made these rows, or one that is derived from it.

One autoencoder of three layers a candidate learns to rebuild the rows that the candidate's head makes of public text.
The candidate whose autoencoder rebuilds the captured rows best made them, if its error is within `threshold` times its
error on public rows that it did not learn from; else none of them did. A candidate of another width cannot have made
them. It answers which model and not which text: its scorer (auditor/scorers/model.py) holds it against the model whose
fingerprint crossed, and `replication` starts from its choice.

Shapes: N pieces of public text, T positions, M rows, H hidden width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import PositiveFloat
from torch import nn

from auditor.arrays import Integers
from auditor.attacks.base import Assumes, Question
from auditor.attacks.inversion.parts.pieces import pieces_of
from auditor.attacks.inversion.parts.public_head import public_head
from auditor.attacks.inversion.parts.public_rows import rows_of_pieces, standard_of
from auditor.channels import FORWARD_ONLY
from auditor.plan import Count, InversionSettings
from auditor.progress import Progress
from auditor.public_model import PublicModel
from auditor.views.prompt import PromptView
from splitwire.backbone import load_tokenizer

_HELD_OUT = 5  # every fifth piece is not learned from


@dataclass(frozen=True)
class Identified:
    """Error ratio of every candidate in order, None where its rows have another width; `chosen` is a place, or None.

    A ratio is the error on captured rows over that on public rows of the candidate: near 1 for the model itself.
    """

    error_ratios: tuple[float | None, ...]
    chosen: int | None


@dataclass(frozen=True)
class ModelIdentification:
    """Parameters as published, but for the sizes, which are ours."""

    candidates: str = ""
    """Folders or hub ids of public models, with commas between them. Empty: that whose fingerprint crossed, alone."""
    threshold: PositiveFloat = 2.0
    """Largest error ratio of a candidate that is chosen; the smallest is its inverse."""
    num_epochs: Count = 10
    learning_rate: PositiveFloat = 1e-3
    """Of Adam."""
    batch_rows: Count = 256
    bottleneck_ratio: PositiveFloat = 0.125
    """Width of the middle layer over that of the rows."""
    num_pieces: Count = 300
    """Pieces of public text at most."""
    piece_positions: Count = 64
    """Length of a piece."""

    name: ClassVar[str] = "model_identification"
    question: ClassVar[Question] = "model"
    families: ClassVar[tuple[str, ...]] = (FORWARD_ONLY,)
    knowledge: ClassVar[str] = "forward rows; candidate public models; public text"
    assumes: ClassVar[Assumes] = Assumes(public_weights=True, auxiliary_text=True)
    paper: ClassVar[str] = "model-type identification (inverting internal states of LLMs, section 4.3)"

    def sources(self, view: PromptView) -> list[str]:
        """The candidates' names, in order, each once."""
        named = [name.strip() for name in self.candidates.split(",") if name.strip()]
        return list(dict.fromkeys(named)) or [view.model.settings.source]

    def run(self, view: PromptView, settings: InversionSettings, progress: Progress) -> Identified:
        """Which candidate made the rows of these texts; ModelError for one that cannot be loaded."""
        candidates = [_candidate(view, source) for source in self.sources(view)]
        rows = [text.forward for text in view.texts]
        return self.identify(rows, candidates, seed=view.seed, device=settings.device, progress=progress)

    def identify(
        self,
        rows: Sequence[torch.Tensor],
        candidates: Sequence[tuple[PublicModel, Sequence[Integers]]],
        *,
        seed: int,
        device: str,
        progress: Progress,
    ) -> Identified:
        """Which candidate made these rows [T, H] of several texts. Each comes with public text in its own tokens."""
        rows_MH = torch.cat([row.float() for row in rows])
        ratios: list[float | None] = []
        for number, (model, texts) in enumerate(candidates):
            progress("training autoencoders", number, len(candidates))
            ratios.append(self._ratio(rows_MH, model, texts, seed, device))
        bounds = 1 / self.threshold, self.threshold  # rows that say nothing, such as zeros, are rebuilt too well
        near = [(r, place) for place, r in enumerate(ratios) if r is not None and bounds[0] <= r <= bounds[1]]
        return Identified(tuple(ratios), min(near)[1] if near else None)

    def _ratio(
        self, rows_MH: torch.Tensor, model: PublicModel, texts: Sequence[Integers], seed: int, device: str
    ) -> float | None:
        head = public_head(model, device)
        if head.head.hidden_width != rows_MH.shape[1]:
            return None
        pieces_NT = pieces_of(texts, self.piece_positions, self.num_pieces, seed).to(head.device)
        rows_NTH = rows_of_pieces(head, pieces_NT)
        held_out = torch.arange(len(rows_NTH)) % _HELD_OUT == 0
        standard = standard_of(rows_NTH)
        learned_MH = standard(rows_NTH[~held_out]).flatten(0, 1)
        autoencoder = self._trained(learned_MH, seed)
        own = _error(autoencoder, standard(rows_NTH[held_out]).flatten(0, 1))
        return _error(autoencoder, standard(rows_MH.to(head.device))) / max(own, 1e-12)

    def _trained(self, rows_MH: torch.Tensor, seed: int) -> nn.Sequential:
        width = rows_MH.shape[1]
        narrow = max(1, round(self.bottleneck_ratio * width))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            layers = (nn.Linear(width, width), nn.ReLU(), nn.Linear(width, narrow), nn.ReLU(), nn.Linear(narrow, width))
            autoencoder = nn.Sequential(*layers).to(rows_MH.device)
        optimizer = torch.optim.Adam(autoencoder.parameters(), lr=self.learning_rate)
        generator = torch.Generator().manual_seed(seed)
        for _ in range(self.num_epochs):
            for batch in torch.split(torch.randperm(len(rows_MH), generator=generator), self.batch_rows):
                loss = nn.functional.mse_loss(autoencoder(rows_MH[batch]), rows_MH[batch])
                optimizer.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        return autoencoder.eval()


def _candidate(view: PromptView, source: str) -> tuple[PublicModel, Sequence[Integers]]:
    """The model of that name, cut where the view's is, and the public text in its tokens."""
    if source == view.model.settings.source:
        return view.model, view.auxiliary
    model = PublicModel(replace(view.model.settings, source=source, revision=""))
    known, mine = load_tokenizer(view.model.settings), load_tokenizer(model.settings)
    return model, [_retold(piece, known, mine) for piece in view.auxiliary]


def _retold(tokens: Integers, known: Any, mine: Any) -> Integers:
    """The text of these tokens in those of another tokenizer."""
    text = known.decode(tokens.tolist(), skip_special_tokens=True)
    return np.array(mine(text, add_special_tokens=False, verbose=False)["input_ids"], dtype=np.int64)


@torch.no_grad()
def _error(autoencoder: nn.Sequential, rows_MH: torch.Tensor) -> float:
    """Median over rows of the mean squared error: a few rows, such as the first of a text, are far from all others."""
    return float((autoencoder(rows_MH) - rows_MH).square().mean(-1).median())
