"""Model-type identification: which public model made these rows, or one that is derived from it.

One autoencoder of three layers a candidate learns to rebuild the rows that the candidate's head makes of public text.
The candidate whose autoencoder rebuilds the captured rows best made them, if its error is within `threshold` times its
error on public rows that it did not learn from; else none of them did. A candidate of another width cannot have made
them. It answers which model, not which text, so it has no scorer of texts: it says what `replication.base` should be.

Shapes: N pieces of public text, T positions, M rows, H hidden width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from pydantic import PositiveFloat
from torch import nn

from auditor.attacks.inversion.parts.pieces import pieces_of
from auditor.attacks.inversion.parts.public_head import public_head
from auditor.attacks.inversion.parts.public_rows import rows_of_pieces, standard_of
from auditor.capture import Integers
from auditor.plan import Count
from auditor.progress import Progress
from auditor.public_model import PublicModel

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

    threshold: PositiveFloat = 2.0
    """Largest error ratio of a candidate that is chosen."""
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
        near = [(ratio, place) for place, ratio in enumerate(ratios) if ratio is not None and ratio <= self.threshold]
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


@torch.no_grad()
def _error(autoencoder: nn.Sequential, rows_MH: torch.Tensor) -> float:
    """Median over rows of the mean squared error: a few rows, such as the first of a text, are far from all others."""
    return float((autoencoder(rows_MH) - rows_MH).square().mean(-1).median())
